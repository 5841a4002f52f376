/* The set of connections: timeouts, drain, the end. */
#include "http/internal.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"

#include <stdlib.h>

const struct http_limits http_limits_default = {
    .max_header_bytes = 32 << 10,
    .max_body_bytes = 32 << 20,
    .max_headers = 100,
    .max_connections = 16384,
    .header_timeout_ms = 10000,
    .body_timeout_ms = 60000,
    .idle_timeout_ms = 120000,
    .write_timeout_ms = 60000,
    .max_queued_bytes = 16 << 20,
};

static void sweep_conn(struct http_conn *c, int64_t now)
{
    const struct http_limits *limits = &c->server->limits;

    if (c->state == CONN_CLOSING)
        return;
    if (c->state < CONN_HANDLING || output_progressed(c)) {
        c->progress_ms = now;
    } else if (now - c->progress_ms >= limits->write_timeout_ms) {
        log_event(LOG_WARN, "client took nothing for too long", "peer=" LOG_Q " queued_bytes=%zu",
                  log_quote(c->peer), output_queued(c));
        conn_drop(c, true);
        return;
    }
    if (c->deadline_ms == 0 || now < c->deadline_ms)
        return;
    if (c->state == CONN_HEAD && c->in.len > 0)
        conn_refuse(c, STATUS_TIMEOUT, "the request's headers did not come in time");
    else if (c->state == CONN_BODY)
        conn_refuse(c, STATUS_TIMEOUT, "the request's body did not come in time");
    else
        conn_drop(c, true);
}

/* Nothing is freed while the loop walks: libuv closes in a later phase of the turn. */
static void sweep(void *context)
{
    struct http_server *s = context;
    int64_t now = clock_now_ms();

    for (struct http_conn *c = s->conns, *next; c != NULL; c = next) {
        next = c->next;
        sweep_conn(c, now);
    }
}

static uint64_t sweep_period_ms(const struct http_limits *l)
{
    uint32_t shortest = MIN(MIN(l->header_timeout_ms, l->body_timeout_ms),
                            MIN(l->idle_timeout_ms, l->write_timeout_ms));

    return MAX(10u, MIN(500u, shortest / 4));
}

enum status http_server_create(struct net_loop *l, const struct http_limits *limits,
                               struct http_server **out)
{
    struct http_server *s = memory_alloc(1, sizeof *s);
    uint64_t period_ms;
    enum status status;

    if (s == NULL)
        return STATUS_NO_MEMORY;
    s->loop = l;
    s->limits = limits != NULL ? *limits : http_limits_default;
    period_ms = sweep_period_ms(&s->limits);
    status = net_timer_start(l, &s->sweep, period_ms, period_ms, sweep, s);
    if (status != STATUS_OK) {
        free(s);
        return status;
    }
    *out = s;
    return STATUS_OK;
}

void http_server_routes(struct http_server *s, const struct http_route *routes, uint32_t n_routes,
                        void *context)
{
    s->routes = routes;
    s->n_routes = n_routes;
    s->route_context = context;
}

void http_server_tls(struct http_server *s, struct tls_context *tls)
{
    s->tls = tls;
}

void http_server_hooks(struct http_server *s, const struct http_hooks *hooks)
{
    s->hooks = *hooks;
}

static void on_connection(void *context, uv_stream_t *listener)
{
    conn_accept(context, listener);
}

void http_server_attach(struct http_server *s, struct net_listener *listener)
{
    net_listener_accept(listener, on_connection, s);
}

uint32_t http_server_n_connections(const struct http_server *s)
{
    return s->n_conns;
}

uint32_t http_server_n_exchanges(const struct http_server *s)
{
    return s->n_exchanges;
}

void server_check_idle(struct http_server *s)
{
    void (*idle)(void *context) = s->idle;

    if (!s->draining || s->n_exchanges > 0 || idle == NULL)
        return;
    s->idle = NULL;
    idle(s->idle_context);
}

void http_server_drain(struct http_server *s, void (*idle)(void *context), void *context)
{
    s->draining = true;
    s->idle = idle;
    s->idle_context = context;
    for (struct http_conn *c = s->conns, *next; c != NULL; c = next) {
        next = c->next;
        if (c->state == CONN_HEAD && c->in.len == 0)
            conn_drop(c, true);
    }
    server_check_idle(s);
}

void server_remove(struct http_server *s, struct http_conn *c)
{
    if (c->prev != NULL)
        c->prev->next = c->next;
    else
        s->conns = c->next;
    if (c->next != NULL)
        c->next->prev = c->prev;
    s->n_conns--;
    if (s->destroyed && s->n_conns == 0)
        free(s);
}

void http_server_destroy(struct http_server **ps)
{
    struct http_server *s = *ps;

    if (s == NULL)
        return;
    *ps = NULL;
    net_timer_stop(&s->sweep);
    s->idle = NULL;
    s->destroyed = true;
    if (s->n_conns == 0) {
        free(s);
        return;
    }
    for (struct http_conn *c = s->conns, *next; c != NULL; c = next) {
        next = c->next;
        conn_drop(c, true);
    }
}
