/* http, private: what the files of this room share.
 *
 * server.c  the set of connections, timeouts, drain
 * conn.c    one connection's input: head, body, dispatch, and its end
 * head.c    one request's head: what llhttp does not refuse, headers, routes
 * output.c  one connection's bytes out
 * secure.c  TLS between the two and the socket
 * exchange.c one request and its answer */
#ifndef BATON_HTTP_INTERNAL_H
#define BATON_HTTP_INTERNAL_H

#include "http/http.h"

#include <llhttp.h>

enum conn_state {
    CONN_HEAD,     /* reading a head; idle while nothing of it has come */
    CONN_BODY,     /* reading a body */
    CONN_HANDLING, /* a handler has the exchange */
    CONN_FLUSHING, /* the answer is made, its bytes are on their way */
    CONN_LINGER, /* our side is shut; what the client still sends is thrown away until it closes too
                  */
    CONN_CLOSING /* uv_close() has been called */
};

struct http_server {
    struct net_loop *loop;
    struct http_limits limits;
    const struct http_route *routes;
    uint32_t n_routes;
    void *route_context;
    struct http_hooks hooks;
    struct tls_context *tls;
    struct http_conn *conns; /* doubly linked */
    uint32_t n_conns;
    uint32_t n_exchanges;
    struct net_timer sweep;
    bool draining, destroyed;
    void (*idle)(void *context);
    void *idle_context;
};

struct http_conn {
    uv_tcp_t tcp;
    struct tls_session *tls; /* NULL: plain */
    bool secured;            /* the handshake is done */
    bool first_bytes;        /* something has come */
    bool said_close;
    struct http_server *server;
    struct http_conn *prev, *next;
    enum conn_state state;
    bool reading;
    bool processing;   /* conn_process() is on the stack */
    bool headers_done; /* llhttp saw the head's end */
    bool message_done; /* ... and the message's */
    bool body_too_large;
    llhttp_t parser;
    struct buffer in;
    size_t scanned; /* bytes of `in` in which no head's end was found */
    struct http_exchange *x;
    int64_t deadline_ms; /* of the present state; 0: none */
    char peer[80];

    struct buffer out;     /* waits behind `sending` */
    struct buffer sending; /* libuv has it */
    uv_write_t write;
    bool writing;
    bool close_after_output;
    uv_shutdown_t shutdown;
    uint64_t given_bytes; /* to libuv, ever */
    uint64_t seen_taken;  /* by the client, at the last sweep */
    int64_t progress_ms;

    struct net_task resume;
    bool resume_posted;
    bool closed; /* libuv has let go; freed once resume is not posted */
};

struct http_header {
    char *name, *value;
    size_t name_len, value_len;
};

struct http_exchange {
    struct http_conn *conn;
    char *head; /* the strings below point into it */
    char *target;
    size_t target_len;
    char *path, *query;
    enum http_method method;
    bool is_head, is_options;
    bool http10;
    bool body_pending; /* not all of the body has been read */
    bool expect_continue;
    bool keep_alive;
    struct http_header *headers;
    uint32_t n_headers, max_headers;
    bool too_many_headers;
    uint64_t content_length;
    struct buffer body;
    struct http_exchange_events events;
    struct buffer extra; /* response headers, as they will be sent */
    bool begun, chunked;
};

/* conn.c */
void conn_accept(struct http_server *s, uv_stream_t *listener);
void conn_process(struct http_conn *c);
void conn_read(struct http_conn *c, bool on);
/* The answer's bytes are out: on to the next request, or close. */
void conn_answer_sent(struct http_conn *c);
/* Closes without ceremony. The exchange's closed() is called now if `now`, else in this turn of the
 * loop. */
void conn_drop(struct http_conn *c, bool now);
/* An error before there was a whole head; ends the connection. */
void conn_refuse(struct http_conn *c, enum status status, const char *message);

/* head.c */
extern const llhttp_settings_t http_parser_settings;
enum head_scan { HEAD_PARTIAL, HEAD_WHOLE, HEAD_BAD };
/* Looks for the head's end in data[from, len). *end: the bytes of the head, when whole. */
enum head_scan head_scan(const char *data, size_t from, size_t len, size_t *end);
/* Fills x from parser's results. Errors: BAD_REQUEST, UNSUPPORTED_MEDIA, HEADERS_TOO_LARGE. */
enum status head_finish(struct http_exchange *x, const llhttp_t *parser);
/* NULL with *allowed (a list for the Allow header, "" for an unknown path). */
const struct http_route *route_find(const struct http_server *s, const struct http_exchange *x,
                                    char allowed[64]);

/* secure.c */
#define READ_BYTES 16384
/* False: no memory. */
bool secure_begin(struct http_conn *c);
char *secure_room(struct http_conn *c, size_t *len);
/* n bytes have been read; what they hold is added to c->in. False: the connection is over. */
bool secure_arrived(struct http_conn *c, const char *bytes, size_t n);
/* Says that nothing follows, once. */
void secure_close(struct http_conn *c);

/* output.c */
/* Bytes as they go to the socket. */
void output_raw(struct http_conn *c, const void *bytes, size_t len);
void output_write(struct http_conn *c, const void *bytes, size_t len);
size_t output_queued(const struct http_conn *c);
size_t output_behind(const struct http_conn *c);
/* Shuts our side once all is out. */
void output_finish(struct http_conn *c);
/* Since it was last asked: the client took bytes, or has none to take. */
bool output_progressed(struct http_conn *c);

/* exchange.c */
struct http_exchange *exchange_create(struct http_conn *c);
/* Frees x and takes it off its connection. */
void exchange_destroy(struct http_exchange *x);

/* server.c */
void server_remove(struct http_server *s, struct http_conn *c);
void server_check_idle(struct http_server *s);

#endif
