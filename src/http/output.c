/* One connection's bytes out. A piece goes to the socket at once when nothing waits; else it queues
 * here, where it can be counted. */
#include "http/internal.h"

#include "base/clock.h"

#ifdef __linux__
#include <linux/sockios.h>
#endif
#include <stdlib.h>
#include <sys/ioctl.h>

static void output_start(struct http_conn *c);

static void output_drained(struct http_conn *c)
{
    if (c->close_after_output) {
        output_finish(c);
        return;
    }
    if (c->state == CONN_FLUSHING)
        conn_answer_sent(c);
    else if (c->x != NULL && c->x->begun && c->x->events.writable != NULL)
        c->x->events.writable(c->x->events.context);
}

static void write_done(uv_write_t *write, int status)
{
    struct http_conn *c = write->data;

    c->writing = false;
    buffer_clear(&c->sending);
    if (c->state == CONN_CLOSING)
        return;
    if (status < 0) {
        conn_drop(c, true);
        return;
    }
    if (c->out.len > 0)
        output_start(c);
    else
        output_drained(c);
}

static void output_start(struct http_conn *c)
{
    struct buffer empty = c->sending;
    uv_buf_t buf;

    c->sending = c->out;
    c->out = empty;
    buf = uv_buf_init(c->sending.data, (unsigned)c->sending.len);
    c->write.data = c;
    c->given_bytes += c->sending.len;
    if (uv_write(&c->write, (uv_stream_t *)&c->tcp, &buf, 1, write_done) != 0) {
        conn_drop(c, false);
        return;
    }
    c->writing = true;
}

void output_write(struct http_conn *c, const void *bytes, size_t len)
{
    if (c->state >= CONN_LINGER || len == 0)
        return;
    if (c->tls == NULL) {
        output_raw(c, bytes, len);
        return;
    }
    if (!c->secured || tls_session_write(c->tls, bytes, len) != STATUS_OK) {
        conn_drop(c, false);
        return;
    }
    struct buffer *out = tls_session_out(c->tls);
    output_raw(c, out->data, out->len);
    buffer_clear(out);
}

void output_raw(struct http_conn *c, const void *bytes, size_t len)
{
    const char *rest = bytes;

    if (c->state >= CONN_LINGER || len == 0)
        return;
    if (!c->writing && c->out.len == 0) {
        uv_buf_t buf = uv_buf_init((char *)rest, (unsigned)len);
        int n = uv_try_write((uv_stream_t *)&c->tcp, &buf, 1);

        if (n < 0 && n != UV_EAGAIN) {
            conn_drop(c, false);
            return;
        }
        if (n > 0) {
            c->given_bytes += (uint64_t)n;
            rest += n;
            len -= (size_t)n;
        }
        if (len == 0)
            return;
    }
    buffer_append(&c->out, rest, len);
    if (c->out.failed) {
        conn_drop(c, false);
        return;
    }
    if (!c->writing)
        output_start(c);
}

size_t output_queued(const struct http_conn *c)
{
    return c->out.len + uv_stream_get_write_queue_size((const uv_stream_t *)&c->tcp);
}

/* Bytes that the kernel has and the client's kernel has not acknowledged. */
static uint64_t unacknowledged(const struct http_conn *c)
{
    int n = 0;
#ifdef SIOCOUTQ
    int fd;

    if (uv_fileno((const uv_handle_t *)&c->tcp, &fd) != 0 || ioctl(fd, SIOCOUTQ, &n) != 0)
        n = 0;
#endif
    return n > 0 ? (uint64_t)n : 0;
}

size_t output_behind(const struct http_conn *c)
{
    return output_queued(c) + (size_t)unacknowledged(c);
}

/* What the client took is the measure, not what the kernel did: its buffer can hold minutes of a
 * slow reader's stream. */
bool output_progressed(struct http_conn *c)
{
    uint64_t waiting =
        uv_stream_get_write_queue_size((const uv_stream_t *)&c->tcp) + unacknowledged(c);
    uint64_t taken = c->given_bytes > waiting ? c->given_bytes - waiting : 0;
    bool progressed = taken != c->seen_taken || (waiting == 0 && c->out.len == 0);

    c->seen_taken = taken;
    return progressed;
}

static void shut(uv_shutdown_t *request, int status)
{
}

void output_finish(struct http_conn *c)
{
    c->close_after_output = true;
    secure_close(c);
    if (c->writing || c->out.len > 0 || c->state >= CONN_LINGER)
        return;
    /* Closing with unread input would reset the connection and could take the answer with it; so
     * the client closes first, within reason. */
    c->state = CONN_LINGER;
    c->deadline_ms = clock_now_ms() + 2000;
    buffer_clear(&c->in);
    conn_read(c, true);
    if (uv_shutdown(&c->shutdown, (uv_stream_t *)&c->tcp, shut) != 0)
        conn_drop(c, false);
}
