/* A server's end, and what may change while it runs: signals. */
#include "cmd/server.h"

#include "base/clock.h"
#include "base/log.h"

#include <signal.h>
#include <unistd.h>

enum { FAMILY_PATIENCE_MS = 5000 }; /* for children that have nothing left to do */

void server_quit(struct server *s, int code)
{
    if (s->exit_code == 0)
        s->exit_code = code;
    net_loop_stop(s->loop);
}

static void family_gone(void *context)
{
    struct server *s = context;

    if (!s->family || family_is_gone(s->family) ||
        clock_now_ms() - s->family_stopped_ms > FAMILY_PATIENCE_MS)
        server_quit(s, 0); /* who is still there (stopped, say) is killed with the family */
}

static void maybe_done(struct server *s)
{
    if (!s->draining || !s->service_idle || !s->http_idle)
        return;
    if (!s->family) {
        server_quit(s, 0);
        return;
    }
    family_stop(s->family);
    if (!s->family_stopped_ms)
        s->family_stopped_ms = clock_now_ms();
    if (net_timer_start(s->loop, &s->quit_timer, 10, 10, family_gone, s) != STATUS_OK)
        server_quit(s, 0);
}

static void service_idle(void *context)
{
    struct server *s = context;

    s->service_idle = true;
    maybe_done(s);
}

static void http_idle(void *context)
{
    struct server *s = context;

    s->http_idle = true;
    maybe_done(s);
}

static void drain_over(void *context)
{
    struct server *s = context;

    log_event(LOG_WARN, "drain timeout", "seconds=%lld unfinished=%u",
              (long long)s->options.drain_timeout_s,
              s->node     ? node_n_requests(s->node)
              : s->router ? router_n_requests(s->router)
                          : 0);
    if (s->node)
        node_cancel_all(s->node);
    if (s->router)
        router_cancel_all(s->router);
    s->service_idle = s->http_idle = true;
    maybe_done(s);
}

static void drain(struct server *s)
{
    struct service *service = s->node     ? node_service(s->node)
                              : s->router ? router_service(s->router)
                                          : NULL;

    if (s->draining)
        return;
    s->draining = true;
    log_event(LOG_INFO, "draining", "timeout_s=%lld", (long long)s->options.drain_timeout_s);
    if (net_timer_start(s->loop, &s->drain_timer, (uint64_t)s->options.drain_timeout_s * 1000, 0,
                        drain_over, s) != STATUS_OK) {
        server_quit(s, 0);
        return;
    }
    api_drain(s->api);
    if (service)
        service->ops->drain(service, service_idle, s);
    else
        s->service_idle = true;
    http_server_drain(s->http, http_idle, s);
    maybe_done(s);
}

/* What may change while requests run: keys and certificates. All of it, or nothing. */
static enum status read_again(struct server *s)
{
    struct tls_context *https, *cluster;
    enum status status;

    TRY(secure_https(&s->options, &https));
    status = secure_cluster_again(&s->options, &cluster);
    if (status == STATUS_OK)
        status = api_reload_keys(s->api);
    if (status != STATUS_OK) {
        tls_context_destroy(&https);
        tls_context_destroy(&cluster);
        return status;
    }
    http_server_tls(s->http, https);
    if (s->admin)
        http_server_tls(s->admin, https);
    tls_context_destroy(&s->https);
    s->https = https;
    if (s->node && node_hub(s->node)) /* a hybrid has no links */
        peer_hub_set_tls(node_hub(s->node), cluster);
    if (s->router)
        peer_hub_set_tls(router_hub(s->router), cluster);
    tls_context_destroy(&s->options.cluster_tls);
    s->options.cluster_tls = cluster;
    return STATUS_OK;
}

static void reload(struct server *s)
{
    if (s->peers.path)
        peers_reread(&s->peers);
    if (s->family)
        family_signal(s->family, SIGHUP);
    if (!s->api || !s->http)
        return;
    if (read_again(s) == STATUS_OK)
        log_event(LOG_INFO, "keys and certificates read again", "https=%s cluster_tls=%s",
                  s->https ? "yes" : "no", s->options.cluster_tls ? "yes" : "no");
    else
        log_event(LOG_ERROR, "not read again, what was there stays", "error=" LOG_Q,
                  log_quote(status_message()));
    secure_warn(&s->options);
}

void server_on_signal(uv_signal_t *handle, int number)
{
    struct server *s = handle->data;

    if (number == SIGHUP) {
        reload(s);
        return;
    }
    if (++s->signals_seen > 1 || s->loading) {
        if (s->family)
            family_stop(s->family);
        _exit(s->signals_seen > 1 ? 128 + number : 0); /* now means now */
    }
    drain(s);
}
