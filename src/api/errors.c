/* Errors as OpenAI's clients expect them. */
#include "api/internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum status api_fail(struct api_error *e, enum status status, const char *param, const char *format,
                     ...)
{
    char message[sizeof e->message];
    va_list args;

    va_start(args, format);
    vsnprintf(message, sizeof message, format,
              args); /* an argument may be e's or the thread's last message */
    va_end(args);
    e->status = status;
    memcpy(e->message, message, sizeof message);
    snprintf(e->param, sizeof e->param, "%s", param != NULL ? param : "");
    return status;
}

void api_error_json(struct buffer *out, enum status status, const char *param, const char *message)
{
    buffer_append_string(out, "{\"error\":{\"message\":");
    json_append_cstring(out, message);
    buffer_append_string(out, ",\"type\":");
    json_append_cstring(out, status_error_type(status));
    buffer_append_string(out, ",\"param\":");
    if (param != NULL && *param != '\0')
        json_append_cstring(out, param);
    else
        buffer_append_string(out, "null");
    buffer_append_string(out, ",\"code\":");
    json_append_cstring(out, status_code(status));
    buffer_append_string(out, "}}");
}

void api_error_body(void *context, enum status status, const char *message, struct buffer *out,
                    const char **content_type)
{
    *content_type = "application/json";
    api_error_json(out, status, NULL, message);
}

void api_respond_error(struct api *api, struct http_exchange *x, enum status status,
                       const char *param, const char *message)
{
    struct buffer out = {0};
    int http_status = status_http(status);

    api_error_json(&out, status, param, message);
    if (http_status == 429 || http_status == 503) {
        struct service_capacity capacity = {.retry_after_s = 1};
        char seconds[16];

        if (api->service != NULL)
            api->service->ops->capacity(api->service, &capacity);
        snprintf(seconds, sizeof seconds, "%u",
                 capacity.retry_after_s > 0 ? capacity.retry_after_s : 1);
        http_exchange_set_header(x, "Retry-After", seconds);
    }
    if (http_status == 401)
        http_exchange_set_header(x, "WWW-Authenticate", "Bearer");
    http_exchange_respond(x, http_status, "application/json", out.data, out.len);
    buffer_deinit(&out);
}
