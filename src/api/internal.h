/* api, private: what the files of this room share.
 *
 * api.c         options, creation, service, drain, the end
 * routes.c      the table of routes, request ids
 * keys.c        API keys, their tenants and limits
 * call.c        the life of one chat or completion request, from its body to its last byte
 * parse.c       fields of a request into struct resume (text threads)
 * fields.c      one JSON field: type, range, and an error that names it
 * prompt.c      messages or prompts into token ids (text threads)
 * reply.c       whole answers, stream events, usage
 * logprobs.c    log-probabilities as completions and chat print them
 * json.c        JSON written by hand: fixed key order, fixed digits
 * errors.c      OpenAI-shaped errors
 * admin.c       what an operator may tell a server
 * tokenize.c, models.c, health.c, metrics.c: the small routes */
#ifndef BATON_API_INTERNAL_H
#define BATON_API_INTERNAL_H

#include "api/api.h"

#include <jansson.h>

/* What a request's JSON may be at most: the one table, with a test at each edge
 * (tests/e2e/test_limits.py). Bytes of head and body, headers and times are http's
 * (http_limits_default); what a request may be in itself is request's (REQUEST_MAX_*). */
#define API_MAX_JSON_DEPTH 64
#define API_MAX_JSON_VALUES (1 << 20)
#define API_MAX_PROMPTS 128
#define API_MAX_STOP_BYTES 1024
#define API_MAX_DEADLINE_MS 86400000 /* a day */

#define API_COMMENT_MS 15000
#define API_INLINE_BODY_BYTES 4096 /* larger bodies go to a text thread */

struct api_key {
    struct api_key *next, *next_taken;
    uint32_t n_refs; /* the table's, and one for each call */
    char name[64];   /* for logs; "" when it has none */
    uint8_t hash[REQUEST_DIGEST_BYTES], salt[REQUEST_SALT_BYTES];
    uint64_t max_requests, max_tokens; /* at a time; 0: any number */
    uint32_t n_requests;
    uint64_t n_tokens; /* prompts, and what their answers may still become */
};

struct api {
    struct net_loop *loop;
    struct api_options options;
    struct api_key *keys;
    uint32_t n_keys; /* 0: everybody is let in */
    struct metrics *metrics;
    struct service *service; /* NULL: loading */
    const struct vocabulary *vocabulary;
    struct call *calls;
    uint32_t n_calls;
    struct net_timer tick;
    bool draining;
    int64_t started_at; /* wall clock, for "created" */
    char warned_models[16][64];
    uint32_t n_warned_models;
    struct {
        struct metric *prompt_tokens, *generation_tokens, *running, *waiting;
        struct metric *success[4]; /* of enum call_end */
        struct metric *ttft, *itl, *e2e;
    } series;
};

enum call_kind { CALL_CHAT, CALL_COMPLETION, CALL_TOKENIZE, CALL_DETOKENIZE };
enum call_end { CALL_END_STOP, CALL_END_LENGTH, CALL_END_ABORT, CALL_END_ERROR };

/* What is wrong with a request, for its client. */
struct api_error {
    enum status status; /* STATUS_OK: nothing */
    char param[64];     /* "": none */
    char message[512];
};

/* Log-probabilities of a choice, formatted as they come: the elements of JSON arrays, without
 * brackets. */
struct logprob_text {
    struct buffer entries;               /* chat: objects; completions: the `tokens` array */
    struct buffer values, tops, offsets; /* completions */
    uint32_t n;
};

struct choice {
    struct call *call;
    uint32_t index;
    struct request *request; /* until it is submitted */
    struct text_stream *text;
    uint64_t ticket;
    bool submitted, ended;
    bool role_sent;  /* a stream's first event of this choice */
    bool text_ended; /* our own text_stream says that the answer is over */
    enum finish_reason finish;
    uint32_t *prompt_ids; /* kept for echo; in the call's arena */
    uint32_t n_prompt;
    bool bos_added;
    uint32_t n_generated, n_cached;
    struct buffer content;     /* of a whole answer */
    struct buffer prompt_text; /* echo */
    struct logprob_text logprobs;
    uint64_t n_chars; /* of the text so far, for text_offset */
};

struct call {
    struct net_work work;
    struct api *api;
    struct call *prev, *next;
    struct http_exchange *x; /* NULL: the client is gone */
    struct api_key *key;     /* whose request it is; NULL without keys */
    uint32_t n_taken;        /* requests and tokens of the key's limits */
    uint64_t n_tokens_taken;
    enum call_kind kind;
    bool working; /* on a text thread */
    bool was_submitted;
    struct buffer body;
    struct arena arena;
    char id[48];
    char client_id[132]; /* the client's x-request-id, or "" */
    char fingerprint[24];
    uint32_t context_tokens;
    int64_t created;
    int64_t start_ns, first_ns, last_ns; /* last_ns: the last token's */
    int64_t last_write_ms;
    const char *prefill_node, *decode_node; /* in the arena */

    /* parsed */
    struct api_error error;
    const char *model; /* the client's word for it, or NULL; in the arena */
    bool stream, include_usage, continuous_usage;
    bool echo;
    bool no_answer; /* max_tokens 0: the one token that must be made is not shown */
    bool add_special, parse_special, with_strings; /* tokenize */
    int32_t n_logprobs;                            /* -1: none */
    uint64_t seed;
    struct resume common; /* what all choices share; in the arena */
    struct choice *choices;
    uint32_t n_choices, n_ended;
    struct buffer out; /* JSON or SSE on its way to http */
};

/* ---- errors.c ---- */
/* Records the first fault of a request; returns status. param NULL: none. */
enum status api_fail(struct api_error *e, enum status status, const char *param, const char *format,
                     ...) PRINTF_LIKE(4, 5) WARN_UNUSED;
/* {"error":{...}} */
void api_error_json(struct buffer *out, enum status status, const char *param, const char *message);
void api_respond_error(struct api *api, struct http_exchange *x, enum status status,
                       const char *param, const char *message);
void api_error_body(void *context, enum status status, const char *message, struct buffer *out,
                    const char **content_type);

/* ---- json.c ---- */
bool utf8_valid(const char *bytes, size_t len);
/* A quoted string; what is not UTF-8 becomes U+FFFD. */
void json_append_string(struct buffer *out, const char *bytes, size_t len);
void json_append_cstring(struct buffer *out, const char *s);
void json_append_i64(struct buffer *out, int64_t v);
/* Parses a request's body. Errors: BAD_JSON. */
enum status api_json_parse(const struct buffer *body, struct api_error *e,
                           json_t **out) WARN_UNUSED;

/* ---- fields.c: null and absent leave *out as it is ---- */
enum status field_bool(const json_t *o, const char *name, struct api_error *e,
                       bool *out) WARN_UNUSED;
enum status field_i64(const json_t *o, const char *name, int64_t min, int64_t max,
                      struct api_error *e, int64_t *out) WARN_UNUSED;
enum status field_number(const json_t *o, const char *name, double min, double max,
                         struct api_error *e, double *out) WARN_UNUSED;
enum status field_string(const json_t *o, const char *name, struct api_error *e, const char **out,
                         size_t *len) WARN_UNUSED;
/* NULL when absent or null. */
const json_t *field_get(const json_t *o, const char *name);

/* ---- parse.c, prompt.c: on a text thread ---- */
/* From c->body to c->choices, each with a request and a text_stream; c->error says why not. */
void call_parse(struct call *c);
enum status prompt_chat(struct call *c, const json_t *root) WARN_UNUSED; /* makes the one choice */
enum status prompt_completion(struct call *c,
                              const json_t *root) WARN_UNUSED; /* makes the choices */
enum status prompt_encode(const struct vocabulary *v, const char *text, size_t len,
                          bool parse_special, bool add_bos, uint32_t max_ids, uint32_t **ids,
                          uint32_t *n_ids, bool *bos_added) WARN_UNUSED;
/* The `messages` of root, checked and with plain strings as content, and the other variables of a
 * chat template. Owner: the caller, with json_decref(). */
enum status prompt_variables(const json_t *root, struct arena *arena, struct api_error *e,
                             json_t **out) WARN_UNUSED;
enum status parse_ids(const json_t *array, uint32_t n_tokens, const char *param,
                      struct api_error *e, struct arena *arena, uint32_t **ids,
                      uint32_t *n_ids) WARN_UNUSED;
enum status call_make_choices(struct call *c, uint32_t n) WARN_UNUSED;

/* ---- call.c ---- */
void call_start(struct api *api, struct http_exchange *x, enum call_kind kind);
/* The service's word about one choice, a struct choice. */
void choice_event(void *context, const struct token_event *e);
/* Ends a call with an error, before or within its answer, and frees it. param: the member that is
 * at fault, or NULL. */
void call_fail(struct call *c, enum status status, const char *param, const char *message);
void call_free(struct call *c);
void call_client_left(void *context); /* a struct call */
void api_tick(void *context);
void call_abandon(struct call *c); /* the api is being destroyed */

/* ---- reply.c ---- */
void reply_whole(struct call *c, struct buffer *out);
void reply_role(struct choice *k, struct buffer *out);
void reply_text(struct choice *k, const char *bytes, size_t len, struct buffer *out);
void reply_finish(struct choice *k, struct buffer *out);
void reply_usage(struct call *c, struct buffer *out);

/* ---- logprobs.c ---- */
/* Row i of rows (NULL: a prompt's first token, which has none) for id. */
void logprobs_add(struct choice *k, uint32_t id, const struct logprob_rows *rows, uint32_t i,
                  bool in_prompt);
/* The value of "logprobs": an object, or null without entries. Takes the entries out. */
void logprobs_write(struct choice *k, struct buffer *out);
void logprobs_deinit(struct logprob_text *t);

/* ---- the small routes ---- */
void route_models(void *context, struct http_exchange *x);
void route_model(void *context, struct http_exchange *x);
void route_ready(void *context, struct http_exchange *x);
void route_live(void *context, struct http_exchange *x);
void route_metrics(void *context, struct http_exchange *x);
void route_stats(void *context, struct http_exchange *x);
void route_tokenizer_info(void *context, struct http_exchange *x);
void tokenize_parse(struct call *c);
void detokenize_parse(struct call *c);
void series_create(struct api *api);
void series_ended(struct call *c, enum call_end end);

/* ---- keys.c ---- */
/* Errors: USAGE naming file and line; the keys that were there stay. */
enum status api_load_keys(struct api *api) WARN_UNUSED;
void api_forget_keys(struct api *api);
/* The key of a request's headers; NULL: none, or not one of ours. */
struct api_key *api_key_of(struct api *api, struct http_exchange *x);
/* What a request's headers give as key, or NULL. */
const char *api_key_given(struct http_exchange *x);
/* In a time that does not depend on where they differ. */
bool api_key_is(const char *given, const char *key);
void api_key_release(struct api_key *k);
/* Errors: RATE_LIMITED, with nothing taken. */
enum status api_key_take(struct api_key *k, uint32_t n_requests, uint64_t n_tokens) WARN_UNUSED;
void api_key_give_back(struct api_key *k, uint32_t n_requests, uint64_t n_tokens);

/* ---- admin.c ---- */
extern const struct http_route admin_routes[];
extern const uint32_t admin_n_routes;
/* Health and metrics need no key here either; the rest needs the admin's. */
bool admin_admit(void *context, struct http_exchange *x);
bool is_admin_path(const char *path);
void route_drain(void *context, struct http_exchange *x);

/* ---- routes.c ---- */
extern const struct http_route api_routes[];
extern const uint32_t api_n_routes;
bool api_admit(void *context, struct http_exchange *x);
/* False after it has answered that the model is still being loaded. */
bool api_is_loaded(struct api *api, struct http_exchange *x);
bool api_serves_model(const struct api *api, const char *name);

#endif
