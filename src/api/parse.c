/* Fields of a request into struct resume. Runs on a text thread, or on the loop for small bodies;
 * touches only its call and what never changes (options, vocabulary). */
#include "api/internal.h"

#include "base/checked.h"
#include "base/random.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what is known and not built yet ---- */

static bool is_not_one(const json_t *v)
{
    return !(json_is_integer(v) && json_integer_value(v) == 1);
}

static bool is_filled(const json_t *v)
{
    return !json_is_false(v) && !(json_is_array(v) && json_array_size(v) == 0) &&
           !(json_is_string(v) && json_string_length(v) == 0);
}

static bool is_not_text_format(const json_t *v)
{
    const char *type = json_string_value(json_object_get(v, "type"));

    return type == NULL || strcmp(type, "text") != 0;
}

static bool is_forced_tool(const json_t *v)
{
    const char *choice = json_string_value(v);

    return choice == NULL || (strcmp(choice, "none") != 0 && strcmp(choice, "auto") != 0);
}

static bool is_not_text_only(const json_t *v)
{
    const char *only = json_array_size(v) == 1 ? json_string_value(json_array_get(v, 0)) : NULL;

    return only == NULL || strcmp(only, "text") != 0;
}

static const struct {
    const char *name;
    bool (*wanted)(const json_t *v);
    const char *allowed;
} not_built[] = {
    {"n", is_not_one, "one choice a request is made; leave it out or give 1"},
    {"best_of", is_not_one, "one choice a request is made; leave it out or give 1"},
    {"tools", is_filled, "tools are not supported"},
    {"functions", is_filled, "functions are not supported"},
    {"tool_choice", is_forced_tool, "tools are not supported"},
    {"function_call", is_forced_tool, "functions are not supported"},
    {"response_format", is_not_text_format, "only {\"type\": \"text\"} is supported"},
    {"grammar", is_filled, "grammars are not supported"},
    {"json_schema", is_filled, "schemas are not supported"},
    {"structured_outputs", is_filled, "structured outputs are not supported"},
    {"guided_json", is_filled, "guided decoding is not supported"},
    {"guided_regex", is_filled, "guided decoding is not supported"},
    {"guided_choice", is_filled, "guided decoding is not supported"},
    {"guided_grammar", is_filled, "guided decoding is not supported"},
    {"suffix", is_filled, "insertion is not supported"},
    {"modalities", is_not_text_only, "only [\"text\"] is supported"},
    {"audio", is_filled, "audio is not supported"},
    {"use_beam_search", is_filled, "beam search is not supported"},
    {"continue_final_message", is_filled, "continuing a message is not supported"},
    {"prompt_embeds", is_filled, "embeddings as a prompt are not supported"},
};

static enum status refuse_not_built(const json_t *root, struct api_error *e)
{
    for (size_t i = 0; i < ARRAY_LENGTH(not_built); i++) {
        const json_t *v = field_get(root, not_built[i].name);

        if (v != NULL && not_built[i].wanted(v))
            return api_fail(e, STATUS_BAD_REQUEST, not_built[i].name, "'%s': %s", not_built[i].name,
                            not_built[i].allowed);
    }
    return STATUS_OK;
}

/* ---- sampling ---- */

static enum status parse_sampling(const json_t *root, struct api_error *e, struct sampling *out)
{
    struct sampling s = *out;
    double frequency = s.frequency_penalty, presence = s.presence_penalty,
           repetition = s.repetition_penalty;
    int64_t top_k = s.top_k;

    TRY(field_number(root, "temperature", 0, 100, e, &s.temperature));
    TRY(field_number(root, "top_p", 0, 1, e, &s.top_p));
    if (s.top_p == 0)
        s.top_p = 1e-9; /* the likeliest token alone; a sum of nothing does not reach it */
    TRY(field_number(root, "min_p", 0, 1, e, &s.min_p));
    TRY(field_i64(root, "top_k", -1, INT32_MAX, e, &top_k));
    s.top_k = top_k > 0 ? (uint32_t)top_k : 0;
    TRY(field_number(root, "frequency_penalty", -2, 2, e, &frequency));
    TRY(field_number(root, "presence_penalty", -2, 2, e, &presence));
    /* llama-server's name and vLLM's; the latter wins. 0 would divide by it. */
    TRY(field_number(root, "repeat_penalty", 0.01, 100, e, &repetition));
    TRY(field_number(root, "repetition_penalty", 0.01, 100, e, &repetition));
    s.frequency_penalty = (float)frequency;
    s.presence_penalty = (float)presence;
    s.repetition_penalty = (float)repetition;
    *out = s;
    return STATUS_OK;
}

static int by_id(const void *a, const void *b)
{
    uint32_t x = ((const struct logit_bias *)a)->id, y = ((const struct logit_bias *)b)->id;

    return x < y ? -1 : x > y;
}

/* "1234", without sign or leading zeros, so that no id can be given twice. */
static bool parse_id(const char *key, uint32_t n_tokens, uint32_t *out)
{
    uint64_t id = 0;

    if (*key == '\0' || (*key == '0' && key[1] != '\0'))
        return false;
    for (; *key != '\0'; key++) {
        if (*key < '0' || *key > '9')
            return false;
        id = id * 10 + (uint64_t)(*key - '0');
        if (id >= n_tokens)
            return false;
    }
    *out = (uint32_t)id;
    return true;
}

static enum status parse_logit_bias(struct call *c, const json_t *root)
{
    const json_t *map = field_get(root, "logit_bias"), *value;
    uint32_t n_tokens = vocabulary_view(c->api->vocabulary)->n_tokens, n = 0;
    struct logit_bias *list;
    const char *key;

    if (map == NULL)
        return STATUS_OK;
    if (!json_is_object(map))
        return api_fail(&c->error, STATUS_BAD_REQUEST, "logit_bias",
                        "'logit_bias' must be an object of token ids and numbers");
    if (json_object_size(map) > REQUEST_MAX_LOGIT_BIAS)
        return api_fail(&c->error, STATUS_BAD_REQUEST, "logit_bias",
                        "'logit_bias' has %zu entries; at most %d are taken", json_object_size(map),
                        REQUEST_MAX_LOGIT_BIAS);
    list = arena_alloc(&c->arena, json_object_size(map), sizeof *list);
    if (list == NULL)
        return api_fail(&c->error, STATUS_NO_MEMORY, NULL, "%s", status_message());
    json_object_foreach((json_t *)map, key, value)
    {
        if (!parse_id(key, n_tokens, &list[n].id))
            return api_fail(&c->error, STATUS_BAD_REQUEST, "logit_bias",
                            "'logit_bias': '%.32s' is not a token id below %u", key, n_tokens);
        if (!json_is_number(value) ||
            !(json_number_value(value) >= -100 && json_number_value(value) <= 100))
            return api_fail(&c->error, STATUS_BAD_REQUEST, "logit_bias",
                            "'logit_bias': the bias of token %s must be from -100 to 100", key);
        list[n++].bias = (float)json_number_value(value);
    }
    qsort(list, n, sizeof *list, by_id);
    c->common.logit_bias = list;
    c->common.n_logit_bias = n;
    return STATUS_OK;
}

/* ---- stops and lengths ---- */

static enum status add_stop(struct call *c, const json_t *v)
{
    size_t len = json_string_length(v);
    struct byte_string *stop = &c->common.stops[c->common.n_stops];

    if (!json_is_string(v))
        return api_fail(&c->error, STATUS_BAD_REQUEST, "stop",
                        "'stop' must be a string or an array of strings");
    if (len > API_MAX_STOP_BYTES)
        return api_fail(&c->error, STATUS_BAD_REQUEST, "stop",
                        "'stop' has a string of %zu bytes; at most %d are taken", len,
                        API_MAX_STOP_BYTES);
    if (len == 0)
        return STATUS_OK; /* would stop everything */
    stop->bytes = arena_strndup(&c->arena, json_string_value(v), len);
    stop->len = (uint32_t)len;
    if (stop->bytes == NULL)
        return api_fail(&c->error, STATUS_NO_MEMORY, NULL, "%s", status_message());
    c->common.n_stops++;
    return STATUS_OK;
}

static enum status parse_stops(struct call *c, const json_t *root)
{
    const json_t *stop = field_get(root, "stop");
    size_t n = json_is_array(stop) ? json_array_size(stop) : 1;

    if (stop == NULL)
        return STATUS_OK;
    if (n > REQUEST_MAX_STOPS)
        return api_fail(&c->error, STATUS_BAD_REQUEST, "stop",
                        "'stop' has %zu strings; at most %d are taken", n, REQUEST_MAX_STOPS);
    c->common.stops = arena_alloc(&c->arena, n, sizeof *c->common.stops);
    if (c->common.stops == NULL)
        return api_fail(&c->error, STATUS_NO_MEMORY, NULL, "%s", status_message());
    if (!json_is_array(stop))
        return add_stop(c, stop);
    for (size_t i = 0; i < n; i++)
        TRY(add_stop(c, json_array_get(stop, i)));
    return STATUS_OK;
}

/* common.max_tokens before it is clamped to the room that a prompt leaves. */
static enum status parse_lengths(struct call *c, const json_t *root)
{
    int64_t max_tokens = -1, min_tokens = 0;
    const char *name = "max_tokens";
    bool chat = c->kind == CALL_CHAT;

    if (chat && field_get(root, "max_completion_tokens") != NULL)
        name = "max_completion_tokens";
    TRY(field_i64(root, name, -1, INT64_MAX, &c->error, &max_tokens));
    TRY(field_i64(root, "min_tokens", 0, INT32_MAX, &c->error, &min_tokens));
    TRY(field_bool(root, "ignore_eos", &c->error, &c->common.ignore_eos));
    if (max_tokens == -1)
        max_tokens = c->api->options.n_predict >= 0 ? MAX(c->api->options.n_predict, 1)
                     : chat                         ? UINT32_MAX
                                                    : 16;
    if (max_tokens == 0) {
        if (chat)
            return api_fail(&c->error, STATUS_BAD_REQUEST, name, "'%s' must be at least 1", name);
        c->no_answer = true;
        max_tokens = 1;
    }
    if (min_tokens > max_tokens)
        return api_fail(&c->error, STATUS_BAD_REQUEST, "min_tokens",
                        "'min_tokens' is %" PRId64 ", above 'max_tokens', %" PRId64, min_tokens,
                        max_tokens);
    c->common.max_tokens = (uint32_t)MIN(max_tokens, (int64_t)UINT32_MAX);
    c->common.min_tokens = (uint32_t)min_tokens;
    return STATUS_OK;
}

/* ---- log-probabilities ---- */

static enum status parse_chat_logprobs(struct call *c, const json_t *root)
{
    bool wanted = false;
    int64_t top = 0;

    TRY(field_bool(root, "logprobs", &c->error, &wanted));
    TRY(field_i64(root, "top_logprobs", 0, REQUEST_MAX_LOGPROBS, &c->error, &top));
    if (top > 0 && !wanted)
        return api_fail(&c->error, STATUS_BAD_REQUEST, "top_logprobs",
                        "'top_logprobs' needs 'logprobs' to be true");
    c->n_logprobs = wanted ? (int32_t)top : -1;
    c->common.n_logprobs = c->n_logprobs;
    return STATUS_OK;
}

static enum status parse_completion_logprobs(struct call *c, const json_t *root)
{
    int64_t top = -1;

    TRY(field_bool(root, "echo", &c->error, &c->echo));
    if (!json_is_false(json_object_get(root, "logprobs")))
        TRY(field_i64(root, "logprobs", 0, REQUEST_MAX_LOGPROBS, &c->error, &top));
    c->n_logprobs = (int32_t)top;
    c->common.n_logprobs = c->n_logprobs;
    c->common.n_prompt_logprobs = c->echo ? c->n_logprobs : -1;
    return STATUS_OK;
}

/* ---- streams, seed, model ---- */

static enum status parse_stream(struct call *c, const json_t *root)
{
    const json_t *options = field_get(root, "stream_options");

    TRY(field_bool(root, "stream", &c->error, &c->stream));
    if (options == NULL)
        return STATUS_OK;
    if (!json_is_object(options))
        return api_fail(&c->error, STATUS_BAD_REQUEST, "stream_options",
                        "'stream_options' must be an object");
    if (!c->stream)
        return api_fail(&c->error, STATUS_BAD_REQUEST, "stream_options",
                        "'stream_options' needs 'stream' to be true");
    TRY(field_bool(options, "include_usage", &c->error, &c->include_usage));
    TRY(field_bool(options, "continuous_usage_stats", &c->error, &c->continuous_usage));
    return STATUS_OK;
}

static enum status parse_model(struct call *c, const json_t *root)
{
    const char *name = NULL;
    size_t len = 0;

    TRY(field_string(root, "model", &c->error, &name, &len));
    if (name == NULL)
        return STATUS_OK;
    if (c->api->options.strict_model && !api_serves_model(c->api, name))
        return api_fail(&c->error, STATUS_MODEL_NOT_FOUND, "model",
                        "the model '%.100s' is not served here; '%s' is", name,
                        c->api->options.model_ids[0]);
    c->model = arena_strndup(&c->arena, name, len);
    return STATUS_OK;
}

static enum status parse_seed(struct call *c, const json_t *root)
{
    int64_t seed = -1;

    TRY(field_i64(root, "seed", INT64_MIN, INT64_MAX, &c->error, &seed));
    /* Drawn seeds have 53 bits: every JSON reader can give them back. */
    c->seed = seed == -1 ? random_u64() >> 11 : (uint64_t)seed;
    c->common.seed = c->seed;
    return STATUS_OK;
}

/* ---- choices ---- */

enum status call_make_choices(struct call *c, uint32_t n)
{
    c->choices = arena_alloc(&c->arena, n, sizeof *c->choices);
    if (c->choices == NULL)
        return api_fail(&c->error, STATUS_NO_MEMORY, NULL, "%s", status_message());
    for (uint32_t i = 0; i < n; i++) {
        struct choice *k = &c->choices[i];

        k->call = c;
        k->index = i;
        c->n_choices = i + 1;
        k->request = request_create();
        if (k->request == NULL)
            return api_fail(&c->error, STATUS_NO_MEMORY, NULL, "%s", status_message());
    }
    return STATUS_OK;
}

/* Copies what all choices share into k's request, whose prompt is there already, and clamps its
 * lengths. */
static enum status choice_fill(struct choice *k)
{
    struct call *c = k->call;
    struct request *r = k->request;
    struct resume *s = &r->resume;
    uint32_t room;
    char label[64];

    k->n_prompt = s->n_prompt;
    if (s->n_prompt == 0)
        return api_fail(&c->error, STATUS_BAD_REQUEST, c->kind == CALL_CHAT ? "messages" : "prompt",
                        "the prompt is empty");
    if (s->n_prompt >= c->context_tokens)
        return api_fail(&c->error, STATUS_CONTEXT_LENGTH,
                        c->kind == CALL_CHAT ? "messages" : "prompt",
                        "the prompt has %u tokens; this model's context is %u tokens, one of which "
                        "the answer needs",
                        s->n_prompt, c->context_tokens);
    room = c->context_tokens - s->n_prompt;

    struct resume filled = c->common;
    filled.prompt_ids = s->prompt_ids;
    filled.n_prompt = s->n_prompt;
    filled.max_tokens = MIN(filled.max_tokens, room);
    filled.min_tokens = MIN(filled.min_tokens, filled.max_tokens);
    filled.logit_bias =
        arena_memdup(&r->arena, filled.logit_bias, filled.n_logit_bias, sizeof *filled.logit_bias);
    filled.stops = arena_memdup(&r->arena, filled.stops, filled.n_stops, sizeof *filled.stops);
    if (filled.logit_bias == NULL || filled.stops == NULL)
        return api_fail(&c->error, STATUS_NO_MEMORY, NULL, "%s", status_message());
    for (uint32_t i = 0; i < filled.n_stops; i++) {
        filled.stops[i].bytes =
            arena_strndup(&r->arena, c->common.stops[i].bytes, c->common.stops[i].len);
        if (filled.stops[i].bytes == NULL)
            return api_fail(&c->error, STATUS_NO_MEMORY, NULL, "%s", status_message());
    }
    *s = filled;
    if (c->n_choices > 1)
        snprintf(label, sizeof label, "%s-%u", c->id, k->index);
    else
        snprintf(label, sizeof label, "%s", c->id);
    r->request_id = arena_strndup(&r->arena, label, strlen(label));
    if (r->request_id == NULL)
        return api_fail(&c->error, STATUS_NO_MEMORY, NULL, "%s", status_message());
    if (c->echo) {
        k->prompt_ids = arena_memdup(&c->arena, s->prompt_ids, s->n_prompt, sizeof *s->prompt_ids);
        if (k->prompt_ids == NULL)
            return api_fail(&c->error, STATUS_NO_MEMORY, NULL, "%s", status_message());
        /* A BOS that we put in front is not part of the client's text. */
        if (vocabulary_decode(c->api->vocabulary, s->prompt_ids + k->bos_added,
                              s->n_prompt - k->bos_added, true, &k->prompt_text) != STATUS_OK)
            return api_fail(&c->error, STATUS_INTERNAL, NULL, "%s", status_message());
    }
    if (text_stream_create(c->api->vocabulary, s, c->context_tokens, &k->text) != STATUS_OK)
        return api_fail(&c->error, STATUS_INTERNAL, NULL, "%s", status_message());
    return STATUS_OK;
}

static enum status parse_fields(struct call *c, const json_t *root)
{
    struct resume *s = &c->common;

    s->sampling = c->api->options.sampling;
    s->n_logprobs = s->n_prompt_logprobs = -1;
    TRY(parse_model(c, root));
    TRY(refuse_not_built(root, &c->error));
    TRY(parse_stream(c, root));
    TRY(parse_sampling(root, &c->error, &s->sampling));
    TRY(parse_logit_bias(c, root));
    TRY(parse_stops(c, root));
    TRY(parse_lengths(c, root));
    TRY(parse_seed(c, root));
    TRY(c->kind == CALL_CHAT ? parse_chat_logprobs(c, root) : parse_completion_logprobs(c, root));
    TRY(c->kind == CALL_CHAT ? prompt_chat(c, root) : prompt_completion(c, root));
    for (uint32_t i = 0; i < c->n_choices; i++)
        TRY(choice_fill(&c->choices[i]));
    return STATUS_OK;
}

void call_parse(struct call *c)
{
    json_t *root = NULL;
    enum status status = api_json_parse(&c->body, &c->error, &root);

    buffer_deinit(&c->body);
    if (status == STATUS_OK)
        status = parse_fields(c, root);
    json_decref(root);
    /* Every path says why; this one holds even if one forgot. */
    if (status != STATUS_OK && c->error.status == STATUS_OK)
        c->error.status = status;
}
