/* Who may ask what, and who answers. */
#include "api/internal.h"

#include "base/checked.h"

#include <stdio.h>
#include <string.h>

static void route_chat(void *context, struct http_exchange *x)
{
    call_start(context, x, CALL_CHAT);
}

static void route_completions(void *context, struct http_exchange *x)
{
    call_start(context, x, CALL_COMPLETION);
}

static void route_tokenize(void *context, struct http_exchange *x)
{
    call_start(context, x, CALL_TOKENIZE);
}

static void route_detokenize(void *context, struct http_exchange *x)
{
    call_start(context, x, CALL_DETOKENIZE);
}

const struct http_route api_routes[] = {
    {HTTP_METHOD_POST, "/v1/chat/completions", route_chat},
    {HTTP_METHOD_POST, "/chat/completions", route_chat},
    {HTTP_METHOD_POST, "/v1/completions", route_completions},
    {HTTP_METHOD_POST, "/completions", route_completions},
    {HTTP_METHOD_GET, "/v1/models", route_models},
    {HTTP_METHOD_GET, "/models", route_models},
    {HTTP_METHOD_GET, "/v1/models/*", route_model},
    {HTTP_METHOD_GET, "/models/*", route_model},
    {HTTP_METHOD_POST, "/tokenize", route_tokenize},
    {HTTP_METHOD_POST, "/v1/tokenize", route_tokenize},
    {HTTP_METHOD_POST, "/detokenize", route_detokenize},
    {HTTP_METHOD_POST, "/v1/detokenize", route_detokenize},
    {HTTP_METHOD_GET, "/tokenizer_info", route_tokenizer_info},
    {HTTP_METHOD_GET, "/v1/tokenizer_info", route_tokenizer_info},
    {HTTP_METHOD_GET, "/health", route_ready},
    {HTTP_METHOD_GET, "/readyz", route_ready},
    {HTTP_METHOD_GET, "/livez", route_live},
    {HTTP_METHOD_GET, "/metrics", route_metrics},
    {HTTP_METHOD_GET, "/router/stats", route_stats},
    {HTTP_METHOD_GET, "/stats", route_stats},
    {HTTP_METHOD_GET | HTTP_METHOD_POST, "/admin/drain", route_drain},
};
const uint32_t api_n_routes = ARRAY_LENGTH(api_routes);

/* What probes and scrapers read without a key. */
static bool is_open(const char *path)
{
    static const char *const open[] = {"/health", "/readyz", "/livez", "/metrics"};

    for (size_t i = 0; i < ARRAY_LENGTH(open); i++)
        if (strcmp(path, open[i]) == 0)
            return true;
    return false;
}

static bool is_openai(const char *path)
{
    static const char *const paths[] = {"/v1",          "/v1/*",       "/chat/completions",
                                        "/completions", "/models",     "/models/*",
                                        "/tokenize",    "/detokenize", "/tokenizer_info"};

    for (size_t i = 0; i < ARRAY_LENGTH(paths); i++) {
        size_t len = strlen(paths[i]);

        if (paths[i][len - 1] == '*' ? strncmp(path, paths[i], len - 1) == 0
                                     : strcmp(path, paths[i]) == 0)
            return true;
    }
    return false;
}

/* An id is echoed if it is short and printable; else it is as if there were none. */
static void echo_request_id(struct http_exchange *x)
{
    const char *id = http_exchange_header(x, "x-request-id");

    if (id == NULL || *id == '\0' || strlen(id) > 128)
        return;
    for (const char *p = id; *p != '\0'; p++)
        if (*p < 0x20 || *p > 0x7e)
            return;
    http_exchange_set_header(x, "x-request-id", id);
}

bool api_admit(void *context, struct http_exchange *x)
{
    struct api *api = context;
    const char *path = http_exchange_path(x);
    char message[160];

    echo_request_id(x);
    if (is_admin_path(path)) {
        if (api->options.no_openai_routes)
            return admin_admit(api, x);
        api_respond_error(api, x, STATUS_NOT_FOUND, NULL,
                          "/admin is served on the listener of --admin");
        return false;
    }
    if (api->options.no_openai_routes && is_openai(path)) {
        snprintf(message, sizeof message, "this node is a %s node; send requests to the router",
                 api->options.role);
        api_respond_error(api, x, STATUS_NOT_FOUND, NULL, message);
        return false;
    }
    if (api->n_keys > 0 && !is_open(path) && api_key_of(api, x) == NULL) {
        api_respond_error(api, x, STATUS_UNAUTHORIZED, NULL,
                          "an API key is required here: send `Authorization: Bearer KEY` with one "
                          "that this server knows");
        return false;
    }
    return true;
}

bool api_is_loaded(struct api *api, struct http_exchange *x)
{
    if (api->service != NULL)
        return true;
    api_respond_error(api, x, STATUS_LOADING, NULL, "the model is being loaded");
    return false;
}

bool api_serves_model(const struct api *api, const char *name)
{
    for (uint32_t i = 0; i < api->options.n_model_ids; i++)
        if (strcmp(api->options.model_ids[i], name) == 0)
            return true;
    return false;
}
