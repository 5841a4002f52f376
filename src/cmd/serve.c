/* baton serve: ports first, then the model, then requests, until a signal. */
#include "cmd/server.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/ring.h"
#include "net/net.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

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
    if (!server_is(s, "prefill") && !server_is(s, "decode"))
        fprintf(
            stderr,
            "try: curl -sN %s://%s/v1/chat/completions -H 'Content-Type: application/json'%s "
            "-d '{\"messages\":[{\"role\":\"user\",\"content\":\"Hello!\"}],\"stream\":true}'\n",
            s->https ? "https" : "http", address,
            s->options.api_keys.n || s->options.api_key_file
                ? " -H \"Authorization: Bearer $BATON_API_KEY\""
                : "");
}

static void on_loaded(struct net_task *task)
{
    struct server *s = (struct server *)((char *)task - offsetof(struct server, loaded_task));
    enum status status = s->load_status;

    pthread_join(s->loader, NULL);
    s->loading = false;
    if (status == STATUS_OK) {
        status = server_is(s, "router") ? server_start_router(s) : server_start_node(s);
        if (status != STATUS_OK)
            snprintf(s->load_message, sizeof s->load_message, "%s", status_message());
    }
    if (status != STATUS_OK) {
        log_event(LOG_ERROR, "start failed", "reason=%s error=" LOG_Q, status_code(status),
                  log_quote(s->load_message));
        server_quit(s, status == STATUS_USAGE ? EXIT_USAGE : EXIT_FAULT);
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
        server_is(s, "router")
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
    a->no_openai_routes = server_is(s, "prefill") || server_is(s, "decode");
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
    if ((server_is(s, "prefill") || server_is(s, "decode")) && o->serving_bind)
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
        if (uv_signal_start(handles[i], server_on_signal, numbers[i]))
            return fail(STATUS_IO, "no signal handler");
    }
    s->signals_open = true;
    return STATUS_OK;
}

static void family_failed(void *context)
{
    server_quit(context, EXIT_FAULT);
}

/* Peers that this role dials nobody of: most likely --node-role was forgotten. */
static void warn_unused_flags(const struct server *s)
{
    const struct serve_options *o = &s->options;
    const bool router = !strcmp(o->role, "router"), prefill = !strcmp(o->role, "prefill");
    const char *const unused[] = {
        o->prefill_peers.n && !router ? "--prefill-peers" : NULL,
        o->decode_peers.n && !router && !prefill ? "--decode-peers" : NULL,
        o->peers_file && !router && !prefill ? "--peers" : NULL,
        o->serving_bind && !prefill && strcmp(o->role, "decode") ? "--serving-bind" : NULL,
    };

    for (size_t i = 0; i < ARRAY_LENGTH(unused); i++)
        if (unused[i])
            log_event(LOG_WARN, "a flag that this role does not use", "role=%s flag=%s", o->role,
                      unused[i]);
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
    warn_unused_flags(s);
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
