/* One connection: its input, from bytes to a dispatched exchange, and its end. */
#include "http/internal.h"

#include "base/clock.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PIPELINED_BYTES 65536 /* read ahead while a request is handled; then reading stops */

static void read_ready(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf);

/* ---- the end ---- */

static void conn_free(struct http_conn *c)
{
    struct http_server *s = c->server;

    buffer_deinit(&c->in);
    buffer_deinit(&c->out);
    buffer_deinit(&c->sending);
    tls_session_destroy(&c->tls);
    server_remove(s, c);
    free(c);
}

/* Tells the handler. It may have answered in the meantime: then there is no exchange any more. */
static void conn_lose_exchange(struct http_conn *c)
{
    struct http_exchange *x = c->x;

    if (x == NULL)
        return;
    if (x->events.closed != NULL)
        x->events.closed(x->events.context);
    exchange_destroy(x);
    c->server->n_exchanges--;
    server_check_idle(c->server);
}

static void conn_closed(uv_handle_t *handle)
{
    struct http_conn *c = handle->data;

    conn_lose_exchange(c);
    c->closed = true;
    if (!c->resume_posted)
        conn_free(c);
}

void conn_drop(struct http_conn *c, bool now)
{
    bool was_flushing = c->state == CONN_FLUSHING;

    if (c->state != CONN_CLOSING) {
        c->state = CONN_CLOSING;
        c->deadline_ms = 0;
        uv_close((uv_handle_t *)&c->tcp, conn_closed);
        if (was_flushing) {
            c->server->n_exchanges--;
            server_check_idle(c->server);
        }
    }
    if (now)
        conn_lose_exchange(c);
}

/* ---- input ---- */

static void give_room(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    struct http_conn *c = handle->data;
    size_t want = c->state == CONN_BODY ? 4 * READ_BYTES : READ_BYTES;
    char *room = c->tls != NULL ? secure_room(c, &want) : buffer_reserve(&c->in, want);

    *buf = uv_buf_init(room, room != NULL ? (unsigned)want : 0);
}

void conn_read(struct http_conn *c, bool on)
{
    if (on == c->reading || c->state == CONN_CLOSING)
        return;
    c->reading = on;
    if (on)
        uv_read_start((uv_stream_t *)&c->tcp, give_room, read_ready);
    else
        uv_read_stop((uv_stream_t *)&c->tcp);
}

static void read_ready(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct http_conn *c = stream->data;

    if (n == 0 || c->state == CONN_CLOSING)
        return;
    if (n < 0) { /* gone, half-closed, or out of memory: nobody to answer to */
        conn_drop(c, true);
        return;
    }
    if (c->state == CONN_LINGER) {
        buffer_clear(&c->in);
        return;
    }
    if (c->tls != NULL) {
        if (!secure_arrived(c, buf->base, (size_t)n))
            return;
    } else {
        c->in.len += (size_t)n;
        c->in.data[c->in.len] = '\0';
    }
    conn_process(c);
    if (c->state >= CONN_HANDLING && c->state < CONN_LINGER && c->in.len > MAX_PIPELINED_BYTES)
        conn_read(c, false);
}

void conn_refuse(struct http_conn *c, enum status status, const char *message)
{
    if (c->x == NULL && exchange_create(c) == NULL) {
        conn_drop(c, true);
        return;
    }
    c->state = CONN_HANDLING;
    c->x->body_pending = true;
    http_exchange_respond_error(c->x, status, message);
}

static void conn_dispatch(struct http_conn *c)
{
    char allowed[64];
    const struct http_route *route = route_find(c->server, c->x, allowed);

    c->state = CONN_HANDLING;
    c->deadline_ms = 0;
    c->x->body_pending = false;
    route->handle(c->server->route_context, c->x);
}

static void answer_options(struct http_exchange *x)
{
    http_exchange_set_header(x, "Access-Control-Allow-Methods", "GET, HEAD, POST, OPTIONS");
    http_exchange_set_header(x, "Access-Control-Allow-Headers", "*, Authorization");
    http_exchange_set_header(x, "Access-Control-Max-Age", "86400");
    http_exchange_respond(x, 204, NULL, "", 0);
}

/* The head is known: everything that can be said without the body is said now. True: on to the body
 * or the handler. */
static bool conn_admit(struct http_conn *c)
{
    struct http_exchange *x = c->x;
    const struct http_hooks *hooks = &c->server->hooks;
    char allowed[64], message[160];

    c->state = CONN_HANDLING;
    x->body_pending = !c->message_done;
    if (x->is_options) {
        answer_options(x);
        return false;
    }
    if (hooks->admit != NULL && !hooks->admit(hooks->context, x))
        return false;
    if (route_find(c->server, x, allowed) == NULL) {
        if (allowed[0] == '\0') {
            snprintf(message, sizeof message, "there is nothing at %.100s", x->path);
            http_exchange_respond_error(x, STATUS_NOT_FOUND, message);
        } else {
            snprintf(message, sizeof message, "this method is not allowed at %.64s; these are: %s",
                     x->path, allowed);
            http_exchange_set_header(x, "Allow", allowed);
            http_exchange_respond_error(x, STATUS_METHOD_NOT_ALLOWED, message);
        }
        return false;
    }
    if (x->content_length > c->server->limits.max_body_bytes) {
        snprintf(message, sizeof message, "the body is %llu bytes long; at most %zu are read",
                 (unsigned long long)x->content_length, c->server->limits.max_body_bytes);
        http_exchange_respond_error(x, STATUS_TOO_LARGE, message);
        return false;
    }
    if (x->expect_continue && !c->message_done && c->in.len == 0)
        output_write(c, "HTTP/1.1 100 Continue\r\n\r\n", 25);
    return c->state != CONN_CLOSING;
}

/* Parses the head of head_len bytes at in's start. */
static void conn_take_head(struct http_conn *c, size_t head_len)
{
    struct http_exchange *x = exchange_create(c);
    llhttp_errno_t rc;
    enum status status;

    if (x == NULL) {
        conn_drop(c, true);
        return;
    }
    x->head = memory_alloc(head_len + 1, 1);
    if (x->head == NULL) {
        conn_refuse(c, STATUS_NO_MEMORY, status_message());
        return;
    }
    memcpy(x->head, c->in.data, head_len);
    buffer_consume(&c->in, head_len);
    c->scanned = 0;
    c->headers_done = c->message_done = c->body_too_large = false;
    llhttp_init(&c->parser, HTTP_REQUEST, &http_parser_settings);
    c->parser.data = c;
    rc = llhttp_execute(&c->parser, x->head, head_len);
    if (rc == HPE_PAUSED_UPGRADE) /* an offer that is not taken up */
        c->message_done = true;
    else if (rc == HPE_PAUSED && c->message_done)
        llhttp_resume(&c->parser);
    else if (rc != HPE_OK || !c->headers_done) {
        if (x->too_many_headers)
            conn_refuse(c, STATUS_HEADERS_TOO_LARGE, "the request has too many headers");
        else
            conn_refuse(c, STATUS_BAD_REQUEST,
                        rc == HPE_OK ? "the request's head is malformed"
                                     : llhttp_get_error_reason(&c->parser));
        return;
    }
    status = head_finish(x, &c->parser);
    if (status != STATUS_OK) {
        conn_refuse(c, status, status_message());
        return;
    }
    if (!conn_admit(c))
        return;
    if (c->message_done) {
        conn_dispatch(c);
        return;
    }
    c->state = CONN_BODY;
    c->deadline_ms = clock_now_ms() + c->server->limits.body_timeout_ms;
}

/* True when a head was taken (or refused), false when more bytes must come first. */
static bool conn_process_head(struct http_conn *c)
{
    size_t head_len = 0, skip = 0;

    /* Empty lines in front of a request are allowed; some clients send one after a body. */
    if (c->scanned == 0) {
        while (skip + 1 < c->in.len && c->in.data[skip] == '\r' && c->in.data[skip + 1] == '\n')
            skip += 2;
        buffer_consume(&c->in, skip);
    }
    if (c->in.len == 0 || (c->in.len == 1 && c->in.data[0] == '\r'))
        return false;
    if (c->scanned == 0)
        c->deadline_ms = clock_now_ms() + c->server->limits.header_timeout_ms;
    if (c->in.data[0] < 'A' || c->in.data[0] > 'Z') {
        conn_refuse(c, STATUS_BAD_REQUEST, "this is not an HTTP request");
        return true;
    }
    /* From one byte back: head_scan() looks at its neighbours. */
    switch (head_scan(c->in.data, c->scanned > 0 ? c->scanned - 1 : 0, c->in.len, &head_len)) {
    case HEAD_BAD:
        conn_refuse(c, STATUS_BAD_REQUEST,
                    "the request's head is malformed: lines end with CRLF and are not folded");
        return true;
    case HEAD_PARTIAL:
        c->scanned = c->in.len;
        if (c->in.len <= c->server->limits.max_header_bytes)
            return false;
        break;
    case HEAD_WHOLE:
        if (head_len <= c->server->limits.max_header_bytes) {
            conn_take_head(c, head_len);
            return true;
        }
        break;
    }
    conn_refuse(c, STATUS_HEADERS_TOO_LARGE, "the request's headers are too large");
    return true;
}

static bool conn_process_body(struct http_conn *c)
{
    llhttp_errno_t rc = llhttp_execute(&c->parser, c->in.data, c->in.len);
    char message[96];

    if (c->message_done) {
        size_t used = (size_t)(llhttp_get_error_pos(&c->parser) - c->in.data);

        llhttp_resume(&c->parser);
        buffer_consume(&c->in, used);
        conn_dispatch(c);
        return true;
    }
    if (c->body_too_large) {
        snprintf(message, sizeof message, "the body is longer than the %zu bytes that are read",
                 c->server->limits.max_body_bytes);
        conn_refuse(c, STATUS_TOO_LARGE, message);
        return true;
    }
    if (rc != HPE_OK) {
        if (c->x->body.failed)
            conn_refuse(c, STATUS_NO_MEMORY, "no memory for the body");
        else
            conn_refuse(c, STATUS_BAD_REQUEST, llhttp_get_error_reason(&c->parser));
        return true;
    }
    buffer_clear(&c->in);
    return false;
}

void conn_process(struct http_conn *c)
{
    bool more = true;

    if (c->processing)
        return;
    c->processing = true;
    while (more && c->in.len > 0)
        switch (c->state) {
        case CONN_HEAD:
            more = conn_process_head(c);
            break;
        case CONN_BODY:
            more = conn_process_body(c);
            break;
        default:
            more = false;
            break;
        }
    c->processing = false;
}

static void resume(struct net_task *task)
{
    struct http_conn *c = (struct http_conn *)((char *)task - offsetof(struct http_conn, resume));

    c->resume_posted = false;
    if (c->closed)
        conn_free(c);
    else if (c->state != CONN_CLOSING)
        conn_process(c);
}

void conn_answer_sent(struct http_conn *c)
{
    struct http_server *s = c->server;

    s->n_exchanges--;
    c->state = CONN_HEAD; /* no longer counted as an exchange */
    if (c->close_after_output || s->draining) {
        output_finish(c);
        server_check_idle(s);
        return;
    }
    c->scanned = 0;
    c->deadline_ms = clock_now_ms() + s->limits.idle_timeout_ms;
    conn_read(c, true);
    /* Not from here: whoever answered is still on the stack. */
    if (c->in.len > 0 && !c->processing && !c->resume_posted) {
        c->resume_posted = true;
        net_post(s->loop, &c->resume);
    }
    if (c->in.len == 0 && !c->processing) /* thousands may wait like this for long */
        buffer_deinit(&c->in);
}

/* ---- the beginning ---- */

static void set_peer(struct http_conn *c)
{
    struct sockaddr_storage sa;
    int len = sizeof sa;

    strcpy(c->peer, "unknown");
    if (uv_tcp_getpeername(&c->tcp, (struct sockaddr *)&sa, &len) != 0)
        return;
    if (sa.ss_family == AF_INET)
        uv_ip4_name((const struct sockaddr_in *)&sa, c->peer, sizeof c->peer);
    else if (sa.ss_family == AF_INET6)
        uv_ip6_name((const struct sockaddr_in6 *)&sa, c->peer, sizeof c->peer);
}

void conn_accept(struct http_server *s, uv_stream_t *listener)
{
    struct http_conn *c = memory_alloc(1, sizeof *c);

    if (c == NULL)
        return;
    c->server = s;
    c->resume.run = resume;
    uv_tcp_init(listener->loop, &c->tcp);
    c->tcp.data = c;
    c->next = s->conns;
    if (s->conns != NULL)
        s->conns->prev = c;
    s->conns = c;
    s->n_conns++;
    if (uv_accept(listener, (uv_stream_t *)&c->tcp) != 0 ||
        s->n_conns > s->limits.max_connections) {
        conn_drop(c, true);
        return;
    }
    uv_tcp_nodelay(&c->tcp, 1);
    set_peer(c);
    c->progress_ms = clock_now_ms();
    c->deadline_ms = c->progress_ms + s->limits.idle_timeout_ms;
    if (s->tls != NULL && !secure_begin(c)) {
        conn_drop(c, true);
        return;
    }
    conn_read(c, true);
}
