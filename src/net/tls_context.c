/* Certificates and keys from files, and what is allowed on a connection. */
#include "net/tls_internal.h"

#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_CHAIN_BYTES = 32 << 10, MAX_CHAIN_DEPTH = 4 };

static const char *openssl_words(void)
{
    const char *reason = ERR_reason_error_string(ERR_peek_last_error());

    return reason ? reason : "not what it should be";
}

enum status tls_certificate_identity(X509 *certificate, struct net_identity *out)
{
    GENERAL_NAMES *names = X509_get_ext_d2i(certificate, NID_subject_alt_name, NULL, NULL);
    enum status status = STATUS_OK;
    struct net_identity found;
    int n_found = 0;

    for (int i = 0; i < sk_GENERAL_NAME_num(names) && status == STATUS_OK; i++) {
        const GENERAL_NAME *name = sk_GENERAL_NAME_value(names, i);
        if (name->type != GEN_URI)
            continue;
        const char *uri = (const char *)ASN1_STRING_get0_data(name->d.uniformResourceIdentifier);
        const size_t len = (size_t)ASN1_STRING_length(name->d.uniformResourceIdentifier);
        if (len < 8 || memcmp(uri, "baton://", 8))
            continue;
        status = net_identity_parse(uri, len, &found);
        n_found++;
    }
    GENERAL_NAMES_free(names);
    if (status == STATUS_OK && n_found != 1)
        status = fail(STATUS_BAD_CERTIFICATE,
                      "the certificate has %d names of the form baton://CLUSTER/ROLE/NODE-ID, one "
                      "is wanted",
                      n_found);
    if (status == STATUS_OK)
        *out = found;
    return status;
}

/* ---- the bytes between OpenSSL and the session's buffers ---- */

static int bio_create(BIO *b)
{
    BIO_set_init(b, 1);
    return 1;
}

static int bio_read(BIO *b, char *out, int len)
{
    struct tls_session *s = BIO_get_data(b);
    size_t n = s->in.len - s->in_used;

    BIO_clear_retry_flags(b);
    if (len <= 0)
        return 0;
    if (n == 0) {
        BIO_set_retry_read(b);
        return -1;
    }
    if (n > (size_t)len)
        n = (size_t)len;
    memcpy(out, s->in.data + s->in_used, n);
    s->in_used += n;
    return (int)n;
}

static int bio_write(BIO *b, const char *data, int len)
{
    struct tls_session *s = BIO_get_data(b);

    BIO_clear_retry_flags(b);
    if (len <= 0)
        return 0;
    buffer_append(&s->out, data, (size_t)len);
    return s->out.failed ? -1 : len;
}

static long bio_control(BIO *b, int what, long number, void *pointer)
{
    return what == BIO_CTRL_FLUSH;
}

static BIO_METHOD *make_bio_method(void)
{
    BIO_METHOD *m = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "session buffers");

    if (m && BIO_meth_set_create(m, bio_create) && BIO_meth_set_read(m, bio_read) &&
        BIO_meth_set_write(m, bio_write) && BIO_meth_set_ctrl(m, bio_control))
        return m;
    BIO_meth_free(m);
    return NULL;
}

/* ---- files ---- */

/* Without it OpenSSL would ask at the terminal. */
static int no_password(char *out, int size, int writing, void *context)
{
    return 0;
}

static enum status check_readable(const char *flag, const char *file)
{
    FILE *f = fopen(file, "r");

    if (!f)
        return fail(STATUS_USAGE, "%s: %s: %s", flag, file, strerror(errno));
    fclose(f);
    return STATUS_OK;
}

static void warn_about_mode(const char *flag, const char *file)
{
    struct stat st;

    if (stat(file, &st) == 0 && (st.st_mode & 077))
        log_event(LOG_WARN, "a private key that others can read",
                  "flag=%s file=" LOG_Q " mode=%04o", flag, log_quote(file),
                  (unsigned)st.st_mode & 07777);
}

static enum status load_own(struct tls_context *c, const struct tls_options *o)
{
    TRY(check_readable(o->flags[1], o->cert_file));
    TRY(check_readable(o->flags[2], o->key_file));
    warn_about_mode(o->flags[2], o->key_file);
    ERR_clear_error();
    if (SSL_CTX_use_certificate_chain_file(c->ssl, o->cert_file) != 1)
        return fail(STATUS_USAGE, "%s: %s has no certificate in PEM form: %s", o->flags[1],
                    o->cert_file, openssl_words());
    if (SSL_CTX_use_PrivateKey_file(c->ssl, o->key_file, SSL_FILETYPE_PEM) != 1) {
        if (ERR_GET_REASON(ERR_peek_last_error()) == X509_R_KEY_VALUES_MISMATCH)
            return fail(STATUS_USAGE, "%s: %s is not the key of the certificate %s", o->flags[2],
                        o->key_file, o->cert_file);
        return fail(STATUS_USAGE, "%s: %s has no private key without password in PEM form: %s",
                    o->flags[2], o->key_file, openssl_words());
    }
    if (SSL_CTX_check_private_key(c->ssl) != 1)
        return fail(STATUS_USAGE, "%s: %s is not the key of the certificate %s", o->flags[2],
                    o->key_file, o->cert_file);
    int days = 0, seconds = 0;
    const X509 *own = SSL_CTX_get0_certificate(c->ssl);
    if (ASN1_TIME_diff(&days, &seconds, NULL, X509_get0_notAfter(own)))
        c->ends_in_s = (int64_t)days * 86400 + seconds;
    c->created_ms = clock_now_ms();
    return STATUS_OK;
}

/* A certificate that the others would not take is better noticed here. Its dates are not judged:
 * the start may come before the day, and the log says when it ends. */
static enum status check_own_chain(struct tls_context *c, const struct tls_options *o)
{
    X509_STORE_CTX *chain = X509_STORE_CTX_new();
    STACK_OF(X509) *extra = NULL;
    int good = 0, error = X509_V_ERR_OUT_OF_MEM;

    SSL_CTX_get0_chain_certs(c->ssl, &extra);
    if (chain && X509_STORE_CTX_init(chain, SSL_CTX_get_cert_store(c->ssl),
                                     SSL_CTX_get0_certificate(c->ssl), extra)) {
        X509_STORE_CTX_set_flags(chain, X509_V_FLAG_NO_CHECK_TIME);
        good = X509_verify_cert(chain) == 1;
        error = X509_STORE_CTX_get_error(chain);
    }
    X509_STORE_CTX_free(chain);
    return good ? STATUS_OK
                : fail(STATUS_USAGE, "%s: %s was not issued by the authority in %s: %s",
                       o->flags[1], o->cert_file, o->ca_file, X509_verify_cert_error_string(error));
}

static enum status make_mutual(struct tls_context *c, const struct tls_options *o)
{
    c->mutual = true;
    TRY(check_readable(o->flags[0], o->ca_file));
    if (SSL_CTX_load_verify_file(c->ssl, o->ca_file) != 1)
        return fail(STATUS_USAGE, "%s: %s has no certificate in PEM form: %s", o->flags[0],
                    o->ca_file, openssl_words());
    if (tls_certificate_identity(SSL_CTX_get0_certificate(c->ssl), &c->identity) != STATUS_OK) {
        char why[256];
        snprintf(why, sizeof why, "%s", status_message());
        return fail(STATUS_USAGE, "%s: %s: %s", o->flags[1], o->cert_file, why);
    }
    TRY(check_own_chain(c, o));
    SSL_CTX_set_verify(c->ssl, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT,
                       tls_session_verify);
    SSL_CTX_set_verify_depth(c->ssl, MAX_CHAIN_DEPTH);
    return STATUS_OK;
}

/* A client that offers protocols and not ours is served all the same: HTTP/1.1 is what it gets. */
static int choose_protocol(SSL *ssl, const unsigned char **out, unsigned char *out_len,
                           const unsigned char *offered, unsigned n_offered, void *context)
{
    static const unsigned char ours[] = "\x08http/1.1";
    unsigned char *chosen;

    if (SSL_select_next_proto(&chosen, out_len, ours, sizeof ours - 1, offered, n_offered) !=
        OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_NOACK;
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
}

enum status tls_context_create(const struct tls_options *o, struct tls_context **out)
{
    struct tls_context *c = memory_alloc(1, sizeof *c);
    enum status status;

    if (!c)
        return STATUS_NO_MEMORY;
    c->n_refs = 1;
    c->rekey_bytes = o->rekey_bytes ? o->rekey_bytes : (uint64_t)64 << 30;
    c->bio = make_bio_method();
    c->ssl = SSL_CTX_new(TLS_method());
    if (!c->bio || !c->ssl) {
        status = fail(STATUS_NO_MEMORY, "no memory for TLS");
        goto failed;
    }
    SSL_CTX_set_min_proto_version(c->ssl, o->ca_file ? TLS1_3_VERSION : TLS1_2_VERSION);
    SSL_CTX_set_options(c->ssl, SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_TICKET |
                                    SSL_OP_CIPHER_SERVER_PREFERENCE);
    SSL_CTX_set_num_tickets(c->ssl, 0);
    SSL_CTX_set_session_cache_mode(c->ssl, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_mode(c->ssl, SSL_MODE_NO_AUTO_CHAIN | SSL_MODE_ENABLE_PARTIAL_WRITE |
                                 SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                 (o->ca_file ? 0 : SSL_MODE_RELEASE_BUFFERS));
    SSL_CTX_set_max_cert_list(c->ssl, MAX_CHAIN_BYTES);
    SSL_CTX_set_default_passwd_cb(c->ssl, no_password);
    /* the smaller key first: as good for this, and a quarter faster */
    if (SSL_CTX_set_ciphersuites(c->ssl, "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:"
                                         "TLS_CHACHA20_POLY1305_SHA256") != 1) {
        status = fail(STATUS_INTERNAL, "OpenSSL has no TLS 1.3 ciphers");
        goto failed;
    }
    if (!o->ca_file)
        SSL_CTX_set_alpn_select_cb(c->ssl, choose_protocol, NULL);
    TRY_GOTO(failed, load_own(c, o));
    if (o->ca_file)
        TRY_GOTO(failed, make_mutual(c, o));
    ERR_clear_error();
    *out = c;
    return STATUS_OK;
failed:
    tls_context_destroy(&c);
    return status;
}

void tls_context_destroy(struct tls_context **pc)
{
    struct tls_context *c = *pc;

    *pc = NULL;
    if (!c || --c->n_refs)
        return;
    SSL_CTX_free(c->ssl);
    BIO_meth_free(c->bio);
    free(c);
}

const struct net_identity *tls_context_identity(const struct tls_context *c)
{
    return c->mutual ? &c->identity : NULL;
}

int64_t tls_context_seconds_left(const struct tls_context *c)
{
    return c->ends_in_s - (clock_now_ms() - c->created_ms) / 1000;
}
