/* HTTPS: a TLS session between a connection's socket and its input and output. */
#include "http/internal.h"

#include "base/clock.h"
#include "base/log.h"

#include <string.h>

bool secure_begin(struct http_conn *c)
{
    if (tls_session_create(c->server->tls, true, &c->tls) != STATUS_OK)
        return false;
    /* a handshake has as long as a request's head */
    c->deadline_ms = clock_now_ms() + c->server->limits.header_timeout_ms;
    return true;
}

char *secure_room(struct http_conn *c, size_t *len)
{
    if (c->state == CONN_LINGER)
        tls_session_discard(c->tls);
    return tls_session_room(c->tls, *len);
}

static void flush(struct http_conn *c)
{
    struct buffer *out = tls_session_out(c->tls);

    output_raw(c, out->data, out->len);
    buffer_clear(out);
}

static void answer_plain(struct http_conn *c)
{
    static const char answer[] = "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\n"
                                 "Content-Length: 30\r\nConnection: close\r\n\r\n"
                                 "this port speaks https, only\r\n";

    c->said_close = true;
    output_raw(c, answer, sizeof answer - 1);
}

/* True when the handshake is done. */
static bool shake_hands(struct http_conn *c, bool is_plain)
{
    bool done;
    const enum status status = tls_session_handshake(c->tls, &done);

    if (status != STATUS_OK) {
        log_event(LOG_DEBUG, "no TLS with a client", "peer=%s reason=%s error=" LOG_Q, c->peer,
                  status_code(status), log_quote(status_message()));
        if (is_plain)
            answer_plain(c);
        else
            flush(c);
        c->said_close = true; /* the alert is the last word */
        output_finish(c);
        return false;
    }
    flush(c);
    if (!done || c->state == CONN_CLOSING)
        return false;
    c->secured = true;
    c->deadline_ms = clock_now_ms() + c->server->limits.idle_timeout_ms;
    return true;
}

bool secure_arrived(struct http_conn *c, const char *bytes, size_t n)
{
    const bool is_plain = !c->first_bytes && bytes[0] >= 'A' && bytes[0] <= 'Z';
    enum status status = STATUS_OK;

    c->first_bytes = true;
    tls_session_arrived(c->tls, n);
    if (!c->secured && !shake_hands(c, is_plain))
        return false;
    for (size_t got = 1; got && status == STATUS_OK;) {
        char plain[READ_BYTES]; /* not c->in: who says nothing gets no memory */
        status = tls_session_read(c->tls, plain, sizeof plain, &got);
        buffer_append(&c->in, plain, got);
        if (c->in.failed)
            status = STATUS_NO_MEMORY;
    }
    flush(c); /* an alert, or an answer to new keys */
    if (status != STATUS_OK) {
        conn_drop(c, true); /* gone, or broken: nobody to answer to */
        return false;
    }
    return c->state != CONN_CLOSING;
}

void secure_close(struct http_conn *c)
{
    if (c->tls == NULL || c->said_close || !c->secured)
        return;
    c->said_close = true;
    tls_session_close(c->tls);
    flush(c);
}
