/* Options, creation, the service, the end. */
#include "api/internal.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

void api_options_init(struct api_options *o)
{
    memset(o, 0, sizeof *o);
    o->sampling.temperature = 1;
    o->sampling.top_p = 1;
    o->sampling.repetition_penalty = 1;
    o->n_predict = -1;
    o->role = "hybrid";
    o->node_id = "";
}

enum status api_create(struct net_loop *l, const struct api_options *options,
                       struct metrics *metrics, struct api **out)
{
    struct api *api = memory_alloc(1, sizeof *api);
    enum status status;

    if (api == NULL)
        return STATUS_NO_MEMORY;
    api->loop = l;
    api->options = *options;
    if (api->options.max_prompts == 0)
        api->options.max_prompts = API_MAX_PROMPTS;
    if (api->options.comment_ms == 0)
        api->options.comment_ms = API_COMMENT_MS;
    api->metrics = metrics;
    api->started_at = (int64_t)time(NULL);
    status = api_load_keys(api);
    if (status != STATUS_OK) {
        free(api);
        return status;
    }
    metric_set(metrics_gauge(metrics, "build_info", "version=\"" BATON_VERSION "\"",
                             "1: which version this is."),
               1);
    if (!api->options.no_openai_routes)
        series_create(api);
    status = net_timer_start(l, &api->tick, 1000, 1000, api_tick, api);
    if (status != STATUS_OK) {
        api_forget_keys(api);
        free(api);
        return status;
    }
    *out = api;
    return STATUS_OK;
}

void api_attach_http(struct api *api, struct http_server *server)
{
    struct http_hooks hooks = {.admit = api_admit, .error_body = api_error_body, .context = api};

    http_server_routes(server, api_routes, api_n_routes, api);
    http_server_hooks(server, &hooks);
}

void api_attach_admin(struct api *api, struct http_server *server)
{
    struct http_hooks hooks = {.admit = admin_admit, .error_body = api_error_body, .context = api};

    http_server_routes(server, admin_routes, admin_n_routes, api);
    http_server_hooks(server, &hooks);
}

void api_set_service(struct api *api, struct service *service, const struct vocabulary *vocabulary)
{
    api->service = service;
    api->vocabulary = vocabulary;
}

enum status api_reload_keys(struct api *api)
{
    return api_load_keys(api);
}

void api_drain(struct api *api)
{
    api->draining = true;
}

uint32_t api_n_running(const struct api *api)
{
    return api->n_calls;
}

/* A text thread may still hold a call; it comes back before its storage goes. */
static void wait_for_text_threads(struct api *api)
{
    for (bool working = true; working;) {
        working = false;
        for (struct call *c = api->calls; c != NULL; c = c->next)
            working |= c->working;
        if (working)
            net_loop_turn(api->loop);
    }
}

void api_destroy(struct api **papi)
{
    struct api *api = *papi;

    if (api == NULL)
        return;
    net_timer_stop(&api->tick);
    wait_for_text_threads(api);
    while (api->calls != NULL)
        call_abandon(api->calls);
    api_forget_keys(api);
    free(api);
    *papi = NULL;
}
