/* api: the OpenAI-compatible surface, the same for every role: JSON in, struct request out; token
 * events in, JSON, text and SSE out. Works on any struct service. Also health, metrics, statistics
 * and the tokenizer routes.
 *
 * Ports are bound and served before the model is loaded: until api_set_service() everything but
 * /livez and /metrics answers 503 `loading`. Threads: the loop's only; large bodies and templates
 * are worked on by the text threads (net_work). */
#ifndef BATON_API_API_H
#define BATON_API_API_H

#include "base/metrics.h"
#include "base/status.h"
#include "http/http.h"
#include "net/net.h"
#include "request/request.h"
#include "text/text.h"

#include <stdbool.h>
#include <stdint.h>

struct api;

struct api_options {
    const char *const *model_ids; /* what the model is served as (--alias, else the file's stem);
                                     replies carry the first */
    uint32_t n_model_ids;         /* at least 1 */
    const char *const *keys;      /* --api-key; any of them is good */
    uint32_t n_keys;              /* 0, and no key_file: everybody is let in */
    const char *key_file;         /* NULL, or more of them: a line each, KEY [NAME] [max-requests=N]
                                     [max-tokens=N]; # begins a comment */
    uint64_t key_max_requests;    /* of one key at a time, where its line does not say; 0: any */
    uint64_t key_max_tokens;
    bool strict_model;        /* another model name is a 404 instead of a warning */
    struct sampling sampling; /* what an absent field means: sampling flags */
    int64_t n_predict; /* -n: the answer's length when the request gives none; -1: up to the context
                          for chat, 16 for completions */
    const char
        *role; /* "hybrid", "router", "prefill", "decode", for messages before a service is there */
    const char *node_id;
    const char *admin_key; /* what /admin/... asks for; NULL: it is for this host alone */
    bool no_openai_routes; /* prefill and decode: /v1/... and the tokenizer routes are a 404 that
                              names the role */
    uint32_t max_prompts;  /* of one completion request; 0: 128 */
    uint32_t comment_ms;   /* silence in a stream before a `:` comment; 0: 15,000 */
};

/* Zeroed, but with every sampling field off as OpenAI means it (temperature 1, top_p 1, penalties
 * neutral), n_predict -1, role "hybrid". */
void api_options_init(struct api_options *o);

/* options, and all it points to, is kept, not copied. metrics gets the client-facing series, unless
 * no_openai_routes. */
enum status api_create(struct net_loop *l, const struct api_options *options,
                       struct metrics *metrics, struct api **out) WARN_UNUSED;
/* Sets the server's routes and hooks. Several servers may be attached. */
void api_attach_http(struct api *api, struct http_server *server);
/* The same for a listener of its own that serves /admin/..., health and metrics. Where
 * no_openai_routes is set, api_attach_http() serves /admin/... too. */
void api_attach_admin(struct api *api, struct http_server *server);
/* The model is there. service and vocabulary outlive the api. vocabulary may be NULL with
 * no_openai_routes. */
void api_set_service(struct api *api, struct service *service, const struct vocabulary *vocabulary);
/* Reads the keys again. Errors: USAGE; what was there stays. */
enum status api_reload_keys(struct api *api) WARN_UNUSED;
/* New requests are refused as `draining` and /readyz is 503; running ones go on. */
void api_drain(struct api *api);
uint32_t
api_n_running(const struct api *api); /* requests between their body's end and their answer's */
/* After the servers that it is attached to. Requests still running are cancelled. */
void api_destroy(struct api **api);

/* A log-probability as every surface prints it: 9 significant digits whatever the locale, always
 * with a point or an exponent; -inf (and anything below) is -9999.0. */
void api_format_logprob(float value, char out[32]);

#endif
