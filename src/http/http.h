/* http: HTTP/1.1 (and 1.0) on a net loop: bytes in, bytes out. Knows a table of handlers and no
 * JSON.
 *
 * A handler gets an exchange once the request is whole, and answers it now or later: one response,
 * or a stream of pieces. One request of a connection is handled at a time; pipelined ones wait. A
 * client that leaves is noticed while its request is held, and the exchange's closed() is called at
 * once. Threads: the loop's only. */
#ifndef BATON_HTTP_HTTP_H
#define BATON_HTTP_HTTP_H

#include "base/memory.h"
#include "base/status.h"
#include "net/net.h"
#include "net/tls.h"

#include <stdbool.h>
#include <stdint.h>

struct http_server;
struct http_exchange;

/* ---- the server ---- */

struct http_limits {
    size_t max_header_bytes;    /* request line and headers; more is 431 */
    size_t max_body_bytes;      /* more is 413 */
    uint32_t max_headers;       /* more is 431 */
    uint32_t max_connections;   /* more are closed at once */
    uint32_t header_timeout_ms; /* from a request's first byte to the end of its headers; 408 */
    uint32_t body_timeout_ms;   /* from there to the end of its body; 408 */
    uint32_t idle_timeout_ms;   /* a connection between requests */
    uint32_t write_timeout_ms;  /* a client that takes nothing for so long is closed */
    size_t max_queued_bytes; /* of one stream, in our memory; a client further behind is closed */
};
extern const struct http_limits http_limits_default; /* the one table: SURFACES' figures */

enum http_method {
    HTTP_METHOD_GET = 1,
    HTTP_METHOD_POST = 2,
    HTTP_METHOD_PUT = 4,
    HTTP_METHOD_DELETE = 8,
    HTTP_METHOD_PATCH = 16
};

/* path: whole ("/health"), or a prefix when it ends in "*" (which may stand for nothing). The first
 * that fits in path and method wins. A route for GET serves HEAD too. OPTIONS is answered by the
 * server (204, CORS for any origin). */
struct http_route {
    unsigned methods; /* of enum http_method */
    const char *path;
    void (*handle)(void *context, struct http_exchange *x);
};

/* What the rooms above add. Zeroed is valid. */
struct http_hooks {
    /* Headers are known, the body is not. Returns true to go on; false when it has answered x (its
     * body is not read). */
    bool (*admit)(void *context, struct http_exchange *x);
    /* The body of an error that the server itself answers; without it, message as plain text. Sets
     * *content_type. */
    void (*error_body)(void *context, enum status status, const char *message, struct buffer *out,
                       const char **content_type);
    void *context;
};

/* limits NULL: the default. routes are kept, not copied; context goes to their handlers. */
enum status http_server_create(struct net_loop *l, const struct http_limits *limits,
                               struct http_server **out) WARN_UNUSED;
void http_server_routes(struct http_server *s, const struct http_route *routes, uint32_t n_routes,
                        void *context);
/* HTTPS for connections accepted from now on; NULL: plain. Others go on as they began.
 * Owner: the caller; it may be destroyed once another is set or the server is gone. */
void http_server_tls(struct http_server *s, struct tls_context *tls);
void http_server_hooks(struct http_server *s, const struct http_hooks *hooks);
/* Serves connections of listener, which stays the caller's and is closed before the server is
 * destroyed. Any number. */
void http_server_attach(struct http_server *s, struct net_listener *listener);
/* From now on every answer closes its connection and idle connections are closed; new ones are
 * still served, so that probes see why. idle() (may be NULL) is called once, when no exchange is
 * running and all bytes are out. */
void http_server_drain(struct http_server *s, void (*idle)(void *context), void *context);
uint32_t http_server_n_connections(const struct http_server *s);
uint32_t
http_server_n_exchanges(const struct http_server *s); /* being handled or still being sent */
/* Closes every connection (closed() is called on running exchanges). What is left is freed in the
 * loop's next turns, or by net_loop_destroy(). */
void http_server_destroy(struct http_server **s);

/* ---- the request ----
 * Strings are the exchange's and live as long as it does. */

enum http_method http_exchange_method(const struct http_exchange *x); /* HEAD reads as GET */
const char *http_exchange_path(const struct http_exchange *x);  /* as sent, without the query */
const char *http_exchange_query(const struct http_exchange *x); /* behind the '?', or "" */
/* The first header of that name (any case), or NULL. */
const char *http_exchange_header(const struct http_exchange *x, const char *name);
const char *http_exchange_peer(const struct http_exchange *x); /* the client's address, for logs */
const struct buffer *http_exchange_body(const struct http_exchange *x);
/* Moves the body out. Owner: the caller, with buffer_deinit(). */
void http_exchange_take_body(struct http_exchange *x, struct buffer *out);
/* Decodes %XX; false when the text is malformed or holds a NUL. Owner of *out: the caller,
 * appended. */
bool http_percent_decode(const char *text, struct buffer *out);

/* ---- the answer ----
 * Every exchange ends exactly once: by respond(), stream_end(), abort(), or closed(). After that it
 * is gone. */

struct http_exchange_events {
    /* The client left, took nothing for write_timeout_ms, or the server closes. The exchange is
     * gone when it returns. */
    void (*closed)(void *context);
    /* A stream's queue became empty. May be NULL. */
    void (*writable)(void *context);
    void *context;
};
void http_exchange_on(struct http_exchange *x, const struct http_exchange_events *events);

/* A header of the response, before it begins; copied. Values with control characters are dropped.
 */
void http_exchange_set_header(struct http_exchange *x, const char *name, const char *value);
/* A whole response; body is copied. With HEAD the body's length is said and the body left out. */
void http_exchange_respond(struct http_exchange *x, int http_status, const char *content_type,
                           const void *body, size_t len);
/* An error as the server itself would answer it (hooks' error_body). */
void http_exchange_respond_error(struct http_exchange *x, enum status status, const char *message);

/* A response in pieces: chunked, or delimited by the connection's close for HTTP/1.0. */
void http_exchange_stream_begin(struct http_exchange *x, int http_status, const char *content_type);
bool http_exchange_stream_begun(const struct http_exchange *x);
/* One piece is one chunk, and leaves at once if the socket takes it. Copied. len 0 does nothing. */
void http_exchange_stream_write(struct http_exchange *x, const void *bytes, size_t len);
size_t http_exchange_queued_bytes(const struct http_exchange *x);
/* The same, and what the client's kernel has not taken from ours: how far behind its reader is. */
size_t http_exchange_behind_bytes(const struct http_exchange *x);
/* close: the connection is not used again. */
void http_exchange_stream_end(struct http_exchange *x, bool close);
/* Breaks the connection off, so that the client sees an incomplete answer. closed() is not called.
 */
void http_exchange_abort(struct http_exchange *x);

#endif
