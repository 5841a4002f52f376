/* One request and its answer. */
#include "http/internal.h"

#include "base/checked.h"
#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

struct http_exchange *exchange_create(struct http_conn *c)
{
    struct http_exchange *x = memory_alloc(1, sizeof *x);

    if (x == NULL)
        return NULL;
    x->max_headers = c->server->limits.max_headers;
    x->headers = memory_alloc(x->max_headers, sizeof *x->headers);
    if (x->headers == NULL) {
        free(x);
        return NULL;
    }
    x->conn = c;
    x->path = x->query = "";
    x->body_pending = true;
    c->x = x;
    c->server->n_exchanges++;
    return x;
}

void exchange_destroy(struct http_exchange *x)
{
    x->conn->x = NULL;
    free(x->head);
    free(x->headers);
    buffer_deinit(&x->body);
    buffer_deinit(&x->extra);
    free(x);
}

/* ---- the request ---- */

enum http_method http_exchange_method(const struct http_exchange *x)
{
    return x->method;
}

const char *http_exchange_path(const struct http_exchange *x)
{
    return x->path;
}

const char *http_exchange_query(const struct http_exchange *x)
{
    return x->query;
}

const char *http_exchange_header(const struct http_exchange *x, const char *name)
{
    for (uint32_t i = 0; i < x->n_headers; i++)
        if (strcasecmp(x->headers[i].name, name) == 0)
            return x->headers[i].value;
    return NULL;
}

const char *http_exchange_peer(const struct http_exchange *x)
{
    return x->conn->peer;
}

const struct buffer *http_exchange_body(const struct http_exchange *x)
{
    return &x->body;
}

void http_exchange_take_body(struct http_exchange *x, struct buffer *out)
{
    *out = x->body;
    memset(&x->body, 0, sizeof x->body);
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool http_percent_decode(const char *text, struct buffer *out)
{
    for (; *text != '\0'; text++) {
        char c = *text;

        if (c == '%') {
            int high = hex_digit(text[1]);
            int low = high < 0 ? -1 : hex_digit(text[2]);

            if (low < 0 || (high == 0 && low == 0))
                return false;
            c = (char)(high * 16 + low);
            text += 2;
        }
        buffer_append(out, &c, 1);
    }
    return !out->failed;
}

/* ---- the answer ---- */

static const char *reason(int http_status)
{
    static const struct {
        int status;
        const char *reason;
    } table[] = {
        {200, "OK"},
        {202, "Accepted"},
        {204, "No Content"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {408, "Request Timeout"},
        {409, "Conflict"},
        {413, "Payload Too Large"},
        {415, "Unsupported Media Type"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {499, "Client Closed Request"},
        {500, "Internal Server Error"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
    };

    for (size_t i = 0; i < ARRAY_LENGTH(table); i++)
        if (table[i].status == http_status)
            return table[i].reason;
    return "Unknown";
}

void http_exchange_on(struct http_exchange *x, const struct http_exchange_events *events)
{
    x->events = *events;
}

void http_exchange_set_header(struct http_exchange *x, const char *name, const char *value)
{
    for (const char *p = value; *p != '\0'; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            return;
    buffer_append_string(&x->extra, name);
    buffer_append_string(&x->extra, ": ");
    buffer_append_string(&x->extra, value);
    buffer_append_string(&x->extra, "\r\n");
}

/* Written by hand: strftime() would follow the locale. */
static void append_date(struct buffer *out)
{
    static const char days[] = "SunMonTueWedThuFriSat",
                      months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    time_t now = time(NULL);
    struct tm t;

    gmtime_r(&now, &t);
    buffer_printf(out, "Date: %.3s, %02d %.3s %d %02d:%02d:%02d GMT\r\n", days + 3 * t.tm_wday,
                  t.tm_mday, months + 3 * t.tm_mon, t.tm_year + 1900, t.tm_hour, t.tm_min,
                  t.tm_sec);
}

static void append_head(struct http_exchange *x, int http_status, const char *content_type,
                        struct buffer *out)
{
    buffer_printf(out, "HTTP/1.1 %d %s\r\n", http_status, reason(http_status));
    append_date(out);
    if (content_type != NULL) {
        buffer_append_string(out, "Content-Type: ");
        buffer_append_string(out, content_type);
        buffer_append_string(out, "\r\n");
    }
    if (x->body_pending || x->conn->server->draining)
        x->keep_alive = false;
    if (!x->keep_alive)
        buffer_append_string(out, "Connection: close\r\n");
    else if (x->http10)
        buffer_append_string(out, "Connection: keep-alive\r\n");
    buffer_append_string(out,
                         "Access-Control-Allow-Origin: *\r\nAccess-Control-Expose-Headers: *\r\n");
    if (x->extra.len > 0)
        buffer_append(out, x->extra.data, x->extra.len);
}

/* The answer is made; x is gone from here on. */
static void answer_made(struct http_exchange *x, bool keep)
{
    struct http_conn *c = x->conn;

    exchange_destroy(x);
    if (c->state == CONN_CLOSING) {
        c->server->n_exchanges--;
        server_check_idle(c->server);
        return;
    }
    c->state = CONN_FLUSHING;
    c->deadline_ms = 0;
    if (!keep)
        c->close_after_output = true;
    if (output_queued(c) == 0)
        conn_answer_sent(c);
    else if (!keep)
        output_finish(c);
}

void http_exchange_respond(struct http_exchange *x, int http_status, const char *content_type,
                           const void *body, size_t len)
{
    struct buffer out = {0};
    bool failed;

    append_head(x, http_status, content_type, &out);
    if (http_status != 204)
        buffer_printf(&out, "Content-Length: %zu\r\n", len);
    buffer_append_string(&out, "\r\n");
    if (!x->is_head)
        buffer_append(&out, body, len);
    failed = out.failed;
    if (!failed)
        output_write(x->conn, out.data, out.len);
    buffer_deinit(&out);
    if (failed)
        http_exchange_abort(x);
    else
        answer_made(x, x->keep_alive);
}

void http_exchange_respond_error(struct http_exchange *x, enum status status, const char *message)
{
    const struct http_hooks *hooks = &x->conn->server->hooks;
    const char *content_type = "text/plain; charset=utf-8";
    struct buffer body = {0};

    if (hooks->error_body != NULL)
        hooks->error_body(hooks->context, status, message, &body, &content_type);
    else
        buffer_printf(&body, "%s: %s\n", status_code(status), message);
    http_exchange_respond(x, status_http(status), content_type, body.data, body.len);
    buffer_deinit(&body);
}

void http_exchange_stream_begin(struct http_exchange *x, int http_status, const char *content_type)
{
    struct buffer out = {0};

    x->chunked = !x->http10;
    if (x->http10)
        x->keep_alive = false;
    append_head(x, http_status, content_type, &out);
    if (x->chunked)
        buffer_append_string(&out, "Transfer-Encoding: chunked\r\n");
    buffer_append_string(&out, "\r\n");
    x->begun = true;
    if (out.failed)
        conn_drop(x->conn, false);
    else
        output_write(x->conn, out.data, out.len);
    buffer_deinit(&out);
}

bool http_exchange_stream_begun(const struct http_exchange *x)
{
    return x->begun;
}

void http_exchange_stream_write(struct http_exchange *x, const void *bytes, size_t len)
{
    struct buffer out = {0};

    if (len == 0 || x->is_head)
        return;
    if (output_queued(x->conn) > x->conn->server->limits.max_queued_bytes) {
        conn_drop(x->conn, false);
        return;
    }
    if (!x->chunked) {
        output_write(x->conn, bytes, len);
        return;
    }
    buffer_printf(&out, "%zx\r\n", len);
    buffer_append(&out, bytes, len);
    buffer_append_string(&out, "\r\n");
    if (out.failed)
        conn_drop(x->conn, false);
    else
        output_write(x->conn, out.data, out.len);
    buffer_deinit(&out);
}

size_t http_exchange_queued_bytes(const struct http_exchange *x)
{
    return output_queued(x->conn);
}

size_t http_exchange_behind_bytes(const struct http_exchange *x)
{
    return output_behind(x->conn);
}

void http_exchange_stream_end(struct http_exchange *x, bool close)
{
    if (x->chunked && !x->is_head)
        output_write(x->conn, "0\r\n\r\n", 5);
    answer_made(x, x->keep_alive && !close);
}

void http_exchange_abort(struct http_exchange *x)
{
    struct http_conn *c = x->conn;

    exchange_destroy(x);
    if (c->state == CONN_CLOSING) {
        c->server->n_exchanges--;
        server_check_idle(c->server);
        return;
    }
    c->state = CONN_FLUSHING; /* counted as an exchange until conn_drop() */
    conn_drop(c, false);
}
