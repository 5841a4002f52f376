/* What an operator may tell a server: /admin/... */
#include "api/internal.h"

#include "base/checked.h"
#include "base/log.h"

#include <string.h>

const struct http_route admin_routes[] = {
    {HTTP_METHOD_GET | HTTP_METHOD_POST, "/admin/drain", route_drain},
    {HTTP_METHOD_GET, "/health", route_ready},
    {HTTP_METHOD_GET, "/readyz", route_ready},
    {HTTP_METHOD_GET, "/livez", route_live},
    {HTTP_METHOD_GET, "/metrics", route_metrics},
    {HTTP_METHOD_GET, "/stats", route_stats},
};
const uint32_t admin_n_routes = ARRAY_LENGTH(admin_routes);

bool is_admin_path(const char *path)
{
    return strncmp(path, "/admin/", 7) == 0 || strcmp(path, "/admin") == 0;
}

static bool is_this_host(const char *peer)
{
    return strncmp(peer, "127.", 4) == 0 || strcmp(peer, "::1") == 0 ||
           strncmp(peer, "::ffff:127.", 11) == 0;
}

bool admin_admit(void *context, struct http_exchange *x)
{
    struct api *api = context;
    const char *given = api_key_given(x), *path = http_exchange_path(x);

    if (!is_admin_path(path) && strcmp(path, "/stats") != 0)
        return true;
    if (api->options.admin_key != NULL) {
        if (given != NULL && api_key_is(given, api->options.admin_key))
            return true;
        api_respond_error(api, x, STATUS_UNAUTHORIZED, NULL,
                          "the admin's key is required here: send `Authorization: Bearer KEY` with "
                          "that of --admin-key");
        return false;
    }
    if (is_this_host(http_exchange_peer(x)))
        return true;
    api_respond_error(api, x, STATUS_UNAUTHORIZED, NULL,
                      "without --admin-key this is for the same host alone");
    return false;
}

/* POST: no new requests from now on; GET: how far it is. The process stays until it is told to end.
 */
void route_drain(void *context, struct http_exchange *x)
{
    struct api *api = context;
    struct service_capacity capacity = {0};
    struct buffer out = {0};
    const bool post = http_exchange_method(x) == HTTP_METHOD_POST;

    if (!api_is_loaded(api, x))
        return;
    if (post && !api->draining) {
        log_event(LOG_INFO, "draining", "asked_by=%s", http_exchange_peer(x));
        api_drain(api);
        api->service->ops->drain(api->service, NULL, NULL);
    }
    api->service->ops->capacity(api->service, &capacity);
    buffer_printf(&out, "{\"draining\":%s,\"running\":%u,\"waiting\":%u}",
                  api->draining ? "true" : "false", capacity.n_running, capacity.n_waiting);
    http_exchange_respond(x, post ? 202 : 200, "application/json", out.data, out.len);
    buffer_deinit(&out);
}
