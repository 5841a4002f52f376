/* net, private: what the TLS files share. */
#ifndef BATON_NET_TLS_INTERNAL_H
#define BATON_NET_TLS_INTERNAL_H

#include "net/tls.h"

#include <openssl/ssl.h>

struct tls_context {
    SSL_CTX *ssl;
    BIO_METHOD *bio;
    uint32_t n_refs; /* the owner's, and one for each session */
    bool mutual;
    struct net_identity identity; /* ours, when mutual */
    int64_t ends_in_s;            /* seconds from created_ms */
    int64_t created_ms;
    uint64_t rekey_bytes;
};

struct tls_session {
    struct tls_context *context;
    SSL *ssl;
    struct buffer in, out;
    size_t in_used;         /* of in, that OpenSSL has taken */
    uint64_t written_bytes; /* since the last new keys */
    struct net_identity identity;
    bool has_identity;
    /* what our own look at the other side's certificate found */
    enum status refused;
    char refused_words[256];
};

/* The one baton:// name of a certificate. Errors: BAD_CERTIFICATE. */
enum status tls_certificate_identity(X509 *certificate, struct net_identity *out) WARN_UNUSED;
/* OpenSSL calls it for each certificate of the other side's chain. */
int tls_session_verify(int good, X509_STORE_CTX *chain);

#endif
