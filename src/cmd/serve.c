/* baton serve: ports first, then the model, then requests, until a signal. */
#include "cmd/serve.h"
#include "cmd/cmd.h"

#include "api/api.h"
#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/ring.h"
#include "cmd/peers_file.h"
#include "http/http.h"
#include "net/net.h"
#include "node/node.h"
#include "router/router.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { FAMILY_PATIENCE_MS = 5000 }; /* for children that have nothing left to do */

struct server {
    struct serve_options options;
    const char *program;
    const char *role; /* that it plays: hybrid when misconfigured */
    struct net_loop *loop;
    struct net_listener *http_listener, *serving_listener, *admin_listener;
    struct http_server *http, *admin;
    struct tls_context *https; /* NULL: HTTP is plain */
    struct metrics *metrics;
    struct api *api;
    struct api_options api_options;
    char model_id[256];
    const char *model_ids[64];
    struct loaded loaded;
    uint64_t n_pages; /* of KV; 0 for a router */
    struct node *node;
    struct router *router;
    struct family *family;
    struct peers_watch peers;

    pthread_t loader;
    bool loading;
    struct net_task loaded_task;
    enum status load_status;
    char load_message[512];

    uv_signal_t sigterm, sigint, sighup;
    bool signals_open;
    int signals_seen;
    int exit_code;
    bool draining, service_idle, http_idle;
    struct net_timer drain_timer, quit_timer;
    int64_t start_ms, family_stopped_ms;
};

static bool is_role(const struct server *s, const char *role)
{
    return !strcmp(s->role, role);
}

/* ---- the end ---- */

static void quit(struct server *s, int code)
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
        quit(s, 0); /* who is still there (stopped, say) is killed with the family */
}

static void maybe_done(struct server *s)
{
    if (!s->draining || !s->service_idle || !s->http_idle)
        return;
    if (!s->family) {
        quit(s, 0);
        return;
    }
    family_stop(s->family);
    if (!s->family_stopped_ms)
        s->family_stopped_ms = clock_now_ms();
    if (net_timer_start(s->loop, &s->quit_timer, 10, 10, family_gone, s) != STATUS_OK)
        quit(s, 0);
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
        quit(s, 0);
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

static void on_signal(uv_signal_t *handle, int number)
{
    struct server *s = handle->data;

    if (number == SIGHUP) {
        reload(s);
        return;
    }
    if (++s->signals_seen > 1 || s->loading) {
        if (s->family)
            family_stop(s->family);
        if (s->loading || s->signals_seen > 1)
            _exit(s->signals_seen > 1 ? 128 + number : 0); /* now means now */
    }
    drain(s);
}

/* ---- ready ---- */

static void log_ready(struct server *s)
{
    const char *address = net_listener_address(s->http_listener)->text;
    const char *why = s->options.misconfigured;
    struct service_description d;
    struct service *service = s->node ? node_service(s->node) : router_service(s->router);

    service->ops->describe(service, &d);
    char compute[160] = ""; /* a router has none */
    if (s->loaded.compute)
        snprintf(compute, sizeof compute, " slots=%u kv=%lluMiB tier=%s threads=%u", d.n_slots,
                 (unsigned long long)(s->n_pages * kv_page_bytes(s->loaded.limits.kv) >> 20),
                 compute_tier_name(s->loaded.compute), compute_n_threads(s->loaded.compute));
    log_event(LOG_INFO, "ready",
              "role=%s listener=http addr=%s%s model=%s ctx=%u%s pid=%d load_ms=%lld%s%s", s->role,
              address, s->https ? " tls=yes" : "", log_quote(s->model_ids[0]), d.max_context_tokens,
              compute, (int)getpid(), (long long)(clock_now_ms() - s->start_ms),
              why ? " misconfigured=" : "", why ? log_quote(why) : "");
    if (s->admin_listener)
        log_event(LOG_INFO, "ready", "role=%s listener=admin addr=%s pid=%d", s->role,
                  net_listener_address(s->admin_listener)->text, (int)getpid());
    if (s->serving_listener)
        log_event(LOG_INFO, "ready", "role=%s listener=serving addr=%s tls=%s pid=%d", s->role,
                  net_listener_address(s->serving_listener)->text,
                  s->options.cluster_tls ? "yes" : "no", (int)getpid());
    if (!is_role(s, "prefill") && !is_role(s, "decode"))
        fprintf(
            stderr,
            "try: curl -sN %s://%s/v1/chat/completions -H 'Content-Type: application/json'%s "
            "-d '{\"messages\":[{\"role\":\"user\",\"content\":\"Hello!\"}],\"stream\":true}'\n",
            s->https ? "https" : "http", address,
            s->options.api_keys.n || s->options.api_key_file
                ? " -H \"Authorization: Bearer $BATON_API_KEY\""
                : "");
}

static void fingerprint(const struct loaded *l, char out[24])
{
    uint8_t hash[REQUEST_DIGEST_BYTES] = {0};
    struct digest *d = digest_create();

    if (d) {
        digest_add(d, l->model_digest, sizeof l->model_digest);
        digest_add(d, l->tokenizer_digest, sizeof l->tokenizer_digest);
        digest_add(d, l->numerics_digest, sizeof l->numerics_digest);
        digest_finish(&d, hash);
    }
    size_t n = (size_t)snprintf(out, 24, "fp_");
    for (int i = 0; i < 8; i++)
        n += (size_t)snprintf(out + n, 24 - n, "%02x", hash[i]);
}

static struct peer_limits peer_limits(const struct serve_options *o)
{
    struct peer_limits l = peer_limits_default;

    l.dead_ms = (uint32_t)o->dead_ms;
    l.stuck_ms = (uint32_t)o->stuck_ms;
    l.ping_ms = MIN(l.ping_ms, l.dead_ms / 5);
    return l;
}

/* What the file names, and what flags name for good. */
static enum status dial_only(const struct server *s, struct peer_hub *hub,
                             const struct peer_addresses *named, const struct flag_strings *fixed,
                             const char *flag, const char *role, bool with_bulk)
{
    struct net_address all[2 * PEERS_MAX];
    uint32_t n = 0;

    for (; n < named->n; n++) {
        TRY(secure_address(&s->options, &named->items[n], "--peers"));
        all[n] = named->items[n];
    }
    for (uint32_t i = 0; i < fixed->n && n < ARRAY_LENGTH(all); i++, n++)
        TRY(net_address_parse(fixed->items[i], flag, &all[n]));
    return peer_hub_dial_only(hub, role, all, n, with_bulk);
}

static void peers_changed(void *context, const struct peers *p)
{
    struct server *s = context;
    const struct serve_options *o = &s->options;
    enum status status = STATUS_OK;

    if (s->router)
        status = dial_only(s, router_hub(s->router), &p->prefill, &o->prefill_peers,
                           "--prefill-peers", "prefill", false);
    if (s->router && status == STATUS_OK)
        status = dial_only(s, router_hub(s->router), &p->decode, &o->decode_peers, "--decode-peers",
                           "decode", false);
    if (s->node && is_role(s, "prefill"))
        status = dial_only(s, node_hub(s->node), &p->decode, &o->decode_peers, "--decode-peers",
                           "decode", true);
    if (status != STATUS_OK)
        log_event(LOG_ERROR, "peers not dialled", "error=" LOG_Q, log_quote(status_message()));
}

static enum status watch_peers(struct server *s)
{
    if (!s->options.peers_file)
        return STATUS_OK;
    return peers_watch_start(&s->peers, s->loop, s->options.peers_file, peers_changed, s);
}

static enum status dial_all(struct peer_hub *hub, const struct flag_strings *peers,
                            const char *flag, const char *role, bool with_bulk)
{
    for (uint32_t i = 0; i < peers->n; i++) {
        struct net_address address;
        TRY(net_address_parse(peers->items[i], flag, &address));
        TRY(peer_hub_dial(hub, &address, role, with_bulk));
    }
    return STATUS_OK;
}

static enum status start_node(struct server *s)
{
    const struct serve_options *o = &s->options;
    struct loaded *l = &s->loaded;
    struct kv_plan kv;

    TRY(plan_kv(&l->limits, o->context_tokens, o->context_given, (uint32_t)o->n_slots, o->kv_bytes,
                &kv));
    s->n_pages = kv.n_pages;
    struct node_options n = {
        .role = is_role(s, "prefill")  ? NODE_PREFILL
                : is_role(s, "decode") ? NODE_DECODE
                                       : NODE_HYBRID,
        .node_id = o->node_id,
        .misconfigured = o->misconfigured,
        .loop = s->loop,
        .metrics = s->metrics,
        .engine = {.model = l->model,
                   .compute = l->compute,
                   .vocabulary = l->vocabulary,
                   .n_slots = (uint32_t)o->n_slots,
                   .n_pages = kv.n_pages,
                   .max_context_tokens = kv.context_tokens,
                   .max_chunk_tokens = SERVE_MAX_CHUNK_TOKENS,
                   .fixed_chunk_tokens = (uint32_t)o->prefill_chunk,
                   .target_step_ms = (uint32_t)o->step_ms},
        .hello = {.has_model = true,
                  .has_tokenizer = true,
                  .kv = l->limits.kv,
                  .kv_type = KV_TYPE_F16,
                  .max_context_tokens = kv.context_tokens,
                  .n_slots = (uint32_t)o->n_slots,
                  .n_pages = kv.n_pages},
        .limits = peer_limits(o),
        .version_max = (uint32_t)o->protocol_max,
        .tls = o->cluster_tls,
        .lease_ms = (uint32_t)o->lease_ms,
        .max_waiting = (uint32_t)o->max_queue,
    };
    n.engine.names.kv_type = KV_TYPE_F16;
    memcpy(n.engine.names.model_digest, l->model_digest, REQUEST_DIGEST_BYTES);
    memcpy(n.engine.names.tokenizer_digest, l->tokenizer_digest, REQUEST_DIGEST_BYTES);
    memcpy(n.hello.model_digest, l->model_digest, REQUEST_DIGEST_BYTES);
    memcpy(n.hello.tokenizer_digest, l->tokenizer_digest, REQUEST_DIGEST_BYTES);
    memcpy(n.hello.numerics_digest, l->numerics_digest, REQUEST_DIGEST_BYTES);
    fingerprint(l, n.hello.fingerprint);
    TRY(node_create(&n, &s->node));
    if (s->serving_listener)
        peer_hub_listen(node_hub(s->node), s->serving_listener);
    if (is_role(s, "prefill"))
        TRY(dial_all(node_hub(s->node), &o->decode_peers, "--decode-peers", "decode", true));
    if (is_role(s, "prefill"))
        TRY(watch_peers(s));
    api_set_service(s->api, node_service(s->node), l->vocabulary);
    return STATUS_OK;
}

static enum status start_router(struct server *s)
{
    const struct serve_options *o = &s->options;
    struct router_options r = {
        .node_id = o->node_id,
        .loop = s->loop,
        .metrics = s->metrics,
        .vocabulary = s->loaded.vocabulary,
        .max_context_tokens = s->loaded.limits.trained_context_tokens,
        .limits = peer_limits(o),
        .tls = o->cluster_tls,
        .policy = o->router_policy,
        .max_local_tokens = (uint32_t)o->local_prefill,
        .version_max = (uint32_t)o->protocol_max,
        .max_waiting = (uint32_t)o->max_queue,
        .max_journal_bytes = (uint64_t)256 << 20,
        .queue_timeout_ms = (uint32_t)o->queue_timeout_s * 1000,
    };

    memcpy(r.tokenizer_digest, s->loaded.tokenizer_digest, sizeof r.tokenizer_digest);
    TRY(router_create(&r, &s->router));
    TRY(dial_all(router_hub(s->router), &o->prefill_peers, "--prefill-peers", "prefill", false));
    TRY(dial_all(router_hub(s->router), &o->decode_peers, "--decode-peers", "decode", false));
    TRY(watch_peers(s));
    api_set_service(s->api, router_service(s->router), s->loaded.vocabulary);
    return STATUS_OK;
}

static void on_loaded(struct net_task *task)
{
    struct server *s = (struct server *)((char *)task - offsetof(struct server, loaded_task));
    enum status status = s->load_status;

    pthread_join(s->loader, NULL);
    s->loading = false;
    if (status == STATUS_OK) {
        status = is_role(s, "router") ? start_router(s) : start_node(s);
        if (status != STATUS_OK)
            snprintf(s->load_message, sizeof s->load_message, "%s", status_message());
    }
    if (status != STATUS_OK) {
        log_event(LOG_ERROR, "start failed", "reason=%s error=" LOG_Q, status_code(status),
                  log_quote(s->load_message));
        quit(s, status == STATUS_USAGE ? EXIT_USAGE : EXIT_FAULT);
        return;
    }
    log_ready(s);
}

static void *load(void *context)
{
    struct server *s = context;
    const struct serve_options *o = &s->options;
    const uint32_t n_slots = (uint32_t)o->n_slots;
    const struct engine_options engine = {.n_slots = n_slots};

    s->load_status =
        is_role(s, "router")
            ? load_vocabulary(o->model, &s->loaded)
            : load_model(o->model, o->n_threads ? (uint32_t)o->n_threads : host_threads(),
                         n_slots + SERVE_MAX_CHUNK_TOKENS, engine_max_logit_rows(&engine),
                         &s->loaded);
    if (s->load_status != STATUS_OK)
        snprintf(s->load_message, sizeof s->load_message, "%s", status_message());
    net_post(s->loop, &s->loaded_task);
    return NULL;
}

/* ---- the start ---- */

static void name_model(struct server *s)
{
    const char *base = strrchr(s->options.model, '/');

    snprintf(s->model_id, sizeof s->model_id, "%s", base ? base + 1 : s->options.model);
    char *end = s->model_id + strlen(s->model_id);
    if (end - s->model_id > 5 && !strcmp(end - 5, ".gguf"))
        end[-5] = 0;
    s->model_ids[0] = s->model_id;
    api_options_init(&s->api_options);
    s->api_options.n_model_ids = 1;
    for (uint32_t i = 0; i < s->options.aliases.n; i++)
        s->model_ids[i] = s->options.aliases.items[i];
    s->api_options.n_model_ids = MAX(s->options.aliases.n, 1u);
    s->api_options.model_ids = s->model_ids;
}

static void fill_api_options(struct server *s)
{
    const struct serve_options *o = &s->options;
    struct api_options *a = &s->api_options;

    name_model(s);
    a->keys = o->api_keys.items;
    a->n_keys = o->api_keys.n;
    a->admin_key = o->admin_key;
    a->key_file = o->api_key_file;
    a->key_max_requests = (uint64_t)o->key_max_requests;
    a->key_max_tokens = (uint64_t)o->key_max_tokens;
    a->strict_model = o->strict_model;
    a->sampling = (struct sampling){.temperature = o->temperature,
                                    .top_p = o->top_p,
                                    .min_p = o->min_p,
                                    .top_k = (uint32_t)o->top_k,
                                    .repetition_penalty = (float)o->repeat_penalty,
                                    .frequency_penalty = (float)o->frequency_penalty,
                                    .presence_penalty = (float)o->presence_penalty};
    a->n_predict = o->n_predict;
    a->role = s->role;
    a->node_id = o->node_id;
    a->no_openai_routes = is_role(s, "prefill") || is_role(s, "decode");
}

static enum status listen_on(struct server *s, const char *what, const char *host_port,
                             const char *flag, struct net_listener **out)
{
    const int fd = inherited_socket(what);
    struct net_address address;

    if (fd >= 0)
        return net_listen_fd(s->loop, fd, out);
    TRY(net_address_parse(host_port, strcmp(flag, "--port") ? flag : "--host", &address));
    if (!strcmp(what, "http") && !net_address_is_loopback(&address) && !s->options.api_keys.n &&
        !s->options.api_key_file)
        log_event(LOG_WARN, "no api key, and reachable from outside this host", "addr=%s",
                  address.text);
    return net_listen(s->loop, &address, flag, out);
}

static enum status bind_ports(struct server *s)
{
    const struct serve_options *o = &s->options;
    char host_port[300];

    snprintf(host_port, sizeof host_port,
             strchr(o->host, ':') && *o->host != '[' ? "[%s]:%lld" : "%s:%lld", o->host,
             (long long)o->port);
    TRY(listen_on(s, "http", host_port, "--port", &s->http_listener));
    if ((is_role(s, "prefill") || is_role(s, "decode")) && o->serving_bind)
        TRY(listen_on(s, "serving", o->serving_bind, "--serving-bind", &s->serving_listener));
    if (o->admin)
        TRY(listen_on(s, "admin", o->admin, "--admin", &s->admin_listener));
    return STATUS_OK;
}

static enum status watch_signals(struct server *s)
{
    uv_loop_t *uv = net_loop_uv(s->loop);
    uv_signal_t *const handles[] = {&s->sigterm, &s->sigint, &s->sighup};
    static const int numbers[] = {SIGTERM, SIGINT, SIGHUP};

    for (size_t i = 0; i < ARRAY_LENGTH(handles); i++) {
        uv_signal_init(uv, handles[i]);
        handles[i]->data = s;
        if (uv_signal_start(handles[i], on_signal, numbers[i]))
            return fail(STATUS_IO, "no signal handler");
    }
    s->signals_open = true;
    return STATUS_OK;
}

static void family_failed(void *context)
{
    quit(context, EXIT_FAULT);
}

static enum status start(struct server *s)
{
    char labels[400];
    const char *role = s->options.role;

    char name[256];
    snprintf(name, sizeof name, "%s", s->model_ids[0]);
    for (char *p = name; *p; p++)
        if (*p == '"' || *p == '\\' || (unsigned char)*p < ' ')
            *p = '_'; /* what would end a label's value */
    snprintf(labels, sizeof labels, "model_name=\"%s\",role=\"%s\"", name, s->role);
    secure_warn(&s->options);
    TRY(secure_https(&s->options, &s->https));
    TRY(net_loop_create(&s->loop));
    TRY(bind_ports(s));
    TRY(watch_signals(s));
    s->metrics = metrics_create(labels);
    if (!s->metrics)
        return STATUS_NO_MEMORY;
    TRY(http_server_create(s->loop, NULL, &s->http));
    TRY(api_create(s->loop, &s->api_options, s->metrics, &s->api));
    api_attach_http(s->api, s->http);
    http_server_tls(s->http, s->https);
    http_server_attach(s->http, s->http_listener);
    if (s->admin_listener) {
        TRY(http_server_create(s->loop, NULL, &s->admin));
        api_attach_admin(s->api, s->admin);
        http_server_tls(s->admin, s->https);
        http_server_attach(s->admin, s->admin_listener);
    }
    if (s->options.misconfigured)
        log_event(LOG_WARN, "misconfigured role, serving as a single node", "role=%s error=" LOG_Q,
                  role, log_quote(s->options.misconfigured));
    if (s->options.roles)
        TRY(family_start(s->loop, s->program, &s->options, family_failed, s, &s->family));
    s->loaded_task.run = on_loaded;
    s->loading = true;
    if (pthread_create(&s->loader, NULL, load, s)) {
        s->loading = false;
        return fail(STATUS_NO_MEMORY, "no thread to load the model");
    }
    return STATUS_OK;
}

static void close_all(struct server *s)
{
    if (s->signals_open) {
        uv_close((uv_handle_t *)&s->sigterm, NULL);
        uv_close((uv_handle_t *)&s->sigint, NULL);
        uv_close((uv_handle_t *)&s->sighup, NULL);
    }
    net_timer_stop(&s->drain_timer);
    net_timer_stop(&s->quit_timer);
    peers_watch_stop(&s->peers);
    family_destroy(&s->family);
    if (s->http_listener)
        net_listener_close(&s->http_listener);
    if (s->serving_listener)
        net_listener_close(&s->serving_listener);
    if (s->admin_listener)
        net_listener_close(&s->admin_listener);
    http_server_destroy(&s->http);
    http_server_destroy(&s->admin);
    api_destroy(&s->api);
    node_destroy(&s->node);
    router_destroy(&s->router);
    net_loop_destroy(&s->loop);
    metrics_destroy(&s->metrics);
    tls_context_destroy(&s->options.cluster_tls);
    tls_context_destroy(&s->https);
    unload_model(&s->loaded);
}

static void setup_log(const struct serve_options *o)
{
    static const char *const levels[] = {"debug", "info", "warn", "error"};
    struct log_options l = {.level = LOG_INFO, .json = o->log_json, .node_id = o->node_id};

    for (int i = 0; i < 4; i++)
        if (!strcmp(o->log_level, levels[i]))
            l.level = (enum log_level)i;
    l.journald = getenv("JOURNAL_STREAM") && !isatty(STDERR_FILENO);
    l.color = isatty(STDERR_FILENO) && !getenv("NO_COLOR");
    log_setup(&l);
}

/* The keys' file, which the api reads when it begins. */
static enum status check_keys(struct server *s)
{
    TRY(net_loop_create(&s->loop));
    s->metrics = metrics_create("");
    return s->metrics ? api_create(s->loop, &s->api_options, s->metrics, &s->api)
                      : STATUS_NO_MEMORY;
}

static int check_config(struct server *s)
{
    const enum status status = check_keys(s);

    if (status != STATUS_OK)
        fprintf(stderr, "baton serve: %s\n", status_message());
    close_all(s);
    return status == STATUS_USAGE ? EXIT_USAGE
           : status != STATUS_OK  ? EXIT_FAULT
                                  : serve_check(&s->options, s->role);
}

int cmd_serve(int argc, char **argv)
{
    static struct server server; /* one a process; too large for a stack that may be small */
    struct server *s = &server;
    struct rlimit files;
    enum status status = serve_options_parse(argc, argv, &s->options);

    if (status != STATUS_OK) {
        fprintf(stderr, "baton serve: %s\n", status_message());
        return EXIT_USAGE;
    }
    if (s->options.help) {
        serve_options_help(stdout);
        return 0;
    }
    setup_log(&s->options);
    ring_print_on_signals();
    s->start_ms = clock_now_ms();
    s->program = "/proc/self/exe";
    s->role = s->options.misconfigured ? "hybrid" : s->options.role;
    fill_api_options(s);
    if (s->options.check_config)
        return check_config(s);
    if (access(s->options.model, R_OK)) {
        fprintf(stderr, "baton serve: %s: %s\n", s->options.model, strerror(errno));
        return EXIT_USAGE;
    }
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    status = start(s);
    if (status == STATUS_OK) {
        net_loop_run(s->loop);
    } else {
        log_event(LOG_ERROR, "start failed", "reason=%s error=" LOG_Q, status_code(status),
                  log_quote(status_message()));
        s->exit_code = status == STATUS_USAGE ? EXIT_USAGE : EXIT_FAULT;
    }
    if (s->loading) /* the loader owns what it loads */
        _exit(s->exit_code);
    close_all(s);
    return s->exit_code;
}
