/* /v1/models */
#include "api/internal.h"

#include <stdio.h>
#include <string.h>

static void append_model(const struct api *api, const char *id, uint32_t context_tokens,
                         struct buffer *out)
{
    buffer_append_string(out, "{\"id\":");
    json_append_cstring(out, id);
    buffer_append_string(out, ",\"object\":\"model\",\"created\":");
    json_append_i64(out, api->started_at);
    buffer_printf(out, ",\"owned_by\":\"baton\",\"max_model_len\":%u}", context_tokens);
}

static uint32_t context_tokens(const struct api *api)
{
    struct service_description d = {0};

    api->service->ops->describe(api->service, &d);
    return d.max_context_tokens;
}

void route_models(void *context, struct http_exchange *x)
{
    struct api *api = context;
    struct buffer out = {0};

    if (!api_is_loaded(api, x))
        return;
    buffer_append_string(&out, "{\"object\":\"list\",\"data\":[");
    for (uint32_t i = 0; i < api->options.n_model_ids; i++) {
        if (i > 0)
            buffer_append(&out, ",", 1);
        append_model(api, api->options.model_ids[i], context_tokens(api), &out);
    }
    buffer_append_string(&out, "]}");
    http_exchange_respond(x, 200, "application/json", out.data, out.len);
    buffer_deinit(&out);
}

void route_model(void *context, struct http_exchange *x)
{
    struct api *api = context;
    const char *path = http_exchange_path(x);
    struct buffer name = {0}, out = {0};
    char message[200];

    if (!api_is_loaded(api, x))
        return;
    path = strstr(path, "/models/") + strlen("/models/");
    if (!http_percent_decode(path, &name) || name.len == 0 || !api_serves_model(api, name.data)) {
        snprintf(message, sizeof message, "the model '%.100s' is not served here; '%.50s' is", path,
                 api->options.model_ids[0]);
        api_respond_error(api, x, STATUS_MODEL_NOT_FOUND, "model", message);
    } else {
        append_model(api, name.data, context_tokens(api), &out);
        http_exchange_respond(x, 200, "application/json", out.data, out.len);
    }
    buffer_deinit(&name);
    buffer_deinit(&out);
}
