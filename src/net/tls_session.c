/* One connection's TLS, from bytes to bytes, and the words for what goes wrong with it. */
#include "net/tls_internal.h"

#include <openssl/err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEEP_BYTES = 512 << 10 };

/* ---- the other side's certificate ---- */

int tls_session_verify(int good, X509_STORE_CTX *chain)
{
    const SSL *ssl = X509_STORE_CTX_get_ex_data(chain, SSL_get_ex_data_X509_STORE_CTX_idx());
    struct tls_session *s = SSL_get_app_data(ssl);
    const struct net_identity *ours = &s->context->identity;
    struct net_identity theirs = {0};
    enum status status = STATUS_OK;

    if (good && X509_STORE_CTX_get_error_depth(chain) != 0)
        return 1;
    /* who it says it is helps to find the machine, whatever is wrong with it */
    status = tls_certificate_identity(X509_STORE_CTX_get0_cert(chain), &theirs);
    if (!good) {
        snprintf(s->refused_words, sizeof s->refused_words,
                 "the certificate of %s is not accepted: %s",
                 status == STATUS_OK ? theirs.node_id : "a peer without a name",
                 X509_verify_cert_error_string(X509_STORE_CTX_get_error(chain)));
        s->refused = STATUS_BAD_CERTIFICATE;
        return 0;
    }
    if (status == STATUS_OK && strcmp(theirs.cluster, ours->cluster))
        status = fail(STATUS_IDENTITY_MISMATCH, "%s belongs to the cluster %s, this is %s",
                      theirs.node_id, theirs.cluster, ours->cluster);
    if (status != STATUS_OK) {
        s->refused = status;
        snprintf(s->refused_words, sizeof s->refused_words, "%s", status_message());
        X509_STORE_CTX_set_error(chain, X509_V_ERR_CERT_REJECTED);
        return 0;
    }
    s->identity = theirs;
    s->has_identity = true;
    return 1;
}

/* ---- what went wrong ---- */

static bool is_about_certificates(int alert)
{
    switch (alert) {
    case SSL_AD_BAD_CERTIFICATE:
    case SSL_AD_UNSUPPORTED_CERTIFICATE:
    case SSL_AD_CERTIFICATE_REVOKED:
    case SSL_AD_CERTIFICATE_EXPIRED:
    case SSL_AD_CERTIFICATE_UNKNOWN:
    case SSL_AD_UNKNOWN_CA:
    case SSL_AD_ACCESS_DENIED:
    case TLS13_AD_CERTIFICATE_REQUIRED:
        return true;
    }
    return false;
}

static enum status why(const struct tls_session *s)
{
    const unsigned long error = ERR_peek_error();
    const int reason = ERR_GET_REASON(error);

    if (s->refused != STATUS_OK)
        return fail(s->refused, "%s", s->refused_words);
    if (s->out.failed || s->in.failed)
        return fail(STATUS_NO_MEMORY, "no memory for TLS");
    if (ERR_GET_LIB(error) == ERR_LIB_SSL && reason >= SSL_AD_REASON_OFFSET) {
        const int alert = reason - SSL_AD_REASON_OFFSET;
        return is_about_certificates(alert)
                   ? fail(STATUS_BAD_CERTIFICATE,
                          "of the two certificates the peer does not accept ours: %s",
                          SSL_alert_desc_string_long(alert))
                   : fail(STATUS_TLS_FAILED, "the peer ended TLS: %s",
                          SSL_alert_desc_string_long(alert));
    }
    if (reason == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE)
        return fail(STATUS_BAD_CERTIFICATE, "the peer shows no certificate");
    if (!SSL_is_init_finished(s->ssl) &&
        (reason == SSL_R_WRONG_VERSION_NUMBER || reason == SSL_R_HTTP_REQUEST ||
         reason == SSL_R_HTTPS_PROXY_REQUEST || reason == SSL_R_UNEXPECTED_MESSAGE ||
         reason == SSL_R_BAD_PACKET_LENGTH || reason == SSL_R_PACKET_LENGTH_TOO_LONG))
        return fail(STATUS_TLS_FAILED, "the peer does not speak TLS: %s",
                    ERR_reason_error_string(error));
    const char *words = ERR_reason_error_string(error);
    return fail(STATUS_TLS_FAILED, "TLS failed: %s", words ? words : "for no stated reason");
}

/* The status of a call that did not succeed; *more: it only lacks bytes. */
static enum status judge(const struct tls_session *s, int result, bool *more)
{
    *more = false;
    switch (SSL_get_error(s->ssl, result)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
        *more = true;
        return s->out.failed ? fail(STATUS_NO_MEMORY, "no memory for TLS") : STATUS_OK;
    case SSL_ERROR_ZERO_RETURN:
        return fail(STATUS_PEER_LOST, "the peer closed the connection");
    default:
        return why(s);
    }
}

/* ---- bytes ---- */

enum status tls_session_create(struct tls_context *c, bool accepting, struct tls_session **out)
{
    struct tls_session *s = memory_alloc(1, sizeof *s);

    if (!s)
        return STATUS_NO_MEMORY;
    s->context = c;
    s->ssl = SSL_new(c->ssl);
    BIO *bio = s->ssl ? BIO_new(c->bio) : NULL;
    if (!bio) {
        SSL_free(s->ssl);
        free(s);
        return fail(STATUS_NO_MEMORY, "no memory for TLS");
    }
    c->n_refs++;
    BIO_set_data(bio, s);
    SSL_set_bio(s->ssl, bio, bio);
    SSL_set_app_data(s->ssl, s);
    if (accepting)
        SSL_set_accept_state(s->ssl);
    else
        SSL_set_connect_state(s->ssl);
    *out = s;
    return STATUS_OK;
}

void tls_session_destroy(struct tls_session **ps)
{
    struct tls_session *s = *ps;

    if (!s)
        return;
    SSL_free(s->ssl);
    tls_context_destroy(&s->context);
    buffer_deinit(&s->in);
    buffer_deinit(&s->out);
    free(s);
    *ps = NULL;
}

char *tls_session_room(struct tls_session *s, size_t len)
{
    buffer_consume(&s->in, s->in_used);
    s->in_used = 0;
    return buffer_reserve(&s->in, len);
}

void tls_session_arrived(struct tls_session *s, size_t n)
{
    s->in.len += n;
}

void tls_session_discard(struct tls_session *s)
{
    s->in_used = 0;
    buffer_clear(&s->in);
}

struct buffer *tls_session_out(struct tls_session *s)
{
    return &s->out;
}

/* Everything that came has been taken. A link between nodes is soon read again; of clients there
 * may be thousands that say nothing, and those keep no memory here. */
static void let_go(struct tls_session *s)
{
    if (s->in_used < s->in.len)
        return;
    s->in_used = 0;
    if (s->in.capacity > (s->context->mutual ? KEEP_BYTES : 0))
        buffer_deinit(&s->in);
    else
        buffer_clear(&s->in);
}

enum status tls_session_handshake(struct tls_session *s, bool *done)
{
    bool more;

    *done = false;
    ERR_clear_error();
    const int result = SSL_do_handshake(s->ssl);
    if (result == 1) {
        *done = true;
        return STATUS_OK;
    }
    const enum status status = judge(s, result, &more);
    if (more)
        let_go(s);
    return status;
}

enum status tls_session_read(struct tls_session *s, void *base, size_t room, size_t *n)
{
    bool more;

    ERR_clear_error();
    *n = 0;
    const int result = SSL_read_ex(s->ssl, base, room, n);
    if (result == 1)
        return STATUS_OK;
    *n = 0;
    const enum status status = judge(s, result, &more);
    if (more)
        let_go(s);
    return status;
}

enum status tls_session_write(struct tls_session *s, const void *data, size_t len)
{
    const char *at = data;

    while (len) {
        size_t n = 0;
        bool more;
        ERR_clear_error();
        const int result = SSL_write_ex(s->ssl, at, len, &n);
        if (result != 1) {
            const enum status status = judge(s, result, &more);
            /* our buffer takes everything, so that OpenSSL never waits for room */
            return more ? fail(STATUS_TLS_FAILED, "TLS does not take what is to be sent") : status;
        }
        at += n;
        len -= n;
        s->written_bytes += n;
    }
    if (s->written_bytes >= s->context->rekey_bytes && SSL_version(s->ssl) >= TLS1_3_VERSION) {
        SSL_key_update(s->ssl, SSL_KEY_UPDATE_NOT_REQUESTED); /* goes out with the next bytes */
        s->written_bytes = 0;
    }
    return STATUS_OK;
}

void tls_session_close(struct tls_session *s)
{
    ERR_clear_error();
    if (SSL_is_init_finished(s->ssl))
        SSL_shutdown(s->ssl);
}

const struct net_identity *tls_session_identity(const struct tls_session *s)
{
    return s->has_identity && SSL_is_init_finished(s->ssl) ? &s->identity : NULL;
}
