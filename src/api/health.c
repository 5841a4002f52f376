/* Health, and what the service tells of itself. Probes need no key and are not logged. */
#include "api/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void append_identity(struct api *api, struct buffer *out)
{
    struct service_description d = {.role = api->options.role, .node_id = api->options.node_id};

    if (api->service != NULL)
        api->service->ops->describe(api->service, &d);
    buffer_append_string(out, ",\"role\":");
    json_append_cstring(out, d.role);
    buffer_append_string(out, ",\"node\":");
    json_append_cstring(out, d.node_id);
    if (d.misconfigured != NULL) {
        buffer_append_string(out, ",\"misconfigured\":");
        json_append_cstring(out, d.misconfigured);
    }
}

static void respond(struct api *api, struct http_exchange *x, enum status status)
{
    struct buffer out = {0};

    if (status == STATUS_OK) {
        buffer_append_string(&out, "{\"status\":\"ok\"");
    } else {
        buffer_append_string(&out, "{\"status\":\"unavailable\",\"reason\":");
        json_append_cstring(&out, status_code(status));
        buffer_append_string(&out, ",\"message\":");
        json_append_cstring(&out, status_message());
    }
    append_identity(api, &out);
    buffer_append(&out, "}", 1);
    http_exchange_set_header(x, "Cache-Control", "no-store");
    http_exchange_respond(x, status == STATUS_OK ? 200 : 503, "application/json", out.data,
                          out.len);
    buffer_deinit(&out);
}

void route_ready(void *context, struct http_exchange *x)
{
    struct api *api = context;
    enum status status;

    if (api->service == NULL)
        status = fail(STATUS_LOADING, "the model is being loaded");
    else if (api->draining)
        status = fail(STATUS_DRAINING, "the server is shutting down");
    else
        status = api->service->ops->readiness(api->service);
    respond(api, x, status);
}

void route_live(void *context, struct http_exchange *x)
{
    struct api *api = context;

    /* That this runs at all shows that the loop does. */
    respond(api, x, api->service == NULL ? STATUS_OK : api->service->ops->liveness(api->service));
}

/* ---- statistics ---- */

static void visit(void *context, const char *scope, const char *name, const char *text,
                  double number)
{
    json_t *at = context;

    while (*scope != '\0') {
        size_t len = strcspn(scope, ".");
        char key[128];
        json_t *next;

        if (len >= sizeof key)
            return;
        memcpy(key, scope, len);
        key[len] = '\0';
        next = json_object_get(at, key);
        if (!json_is_object(next)) {
            next = json_object();
            if (json_object_set_new(at, key, next) != 0)
                return;
        }
        at = next;
        scope += len + (scope[len] == '.');
    }
    if (text != NULL)
        json_object_set_new(at, name, json_string(text));
    else if (number == floor(number) && fabs(number) < 9007199254740992.0)
        json_object_set_new(at, name, json_integer((json_int_t)number));
    else
        json_object_set_new(at, name, isfinite(number) ? json_real(number) : json_null());
}

void route_stats(void *context, struct http_exchange *x)
{
    struct api *api = context;
    json_t *root;
    char *text;

    if (!api_is_loaded(api, x))
        return;
    root = json_object();
    api->service->ops->stats(api->service, visit, root);
    text = json_dumps(root, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(9));
    json_decref(root);
    if (text == NULL)
        api_respond_error(api, x, STATUS_NO_MEMORY, NULL, "no memory for the statistics");
    else
        http_exchange_respond(x, 200, "application/json", text, strlen(text));
    free(text);
}
