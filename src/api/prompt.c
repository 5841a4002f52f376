/* Messages, or prompts, into token ids. Runs on a text thread. */
#include "api/internal.h"

#include "base/checked.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How far a prompt is counted, so that its refusal can name its length; beyond that it would only
 * keep a text thread busy. */
static uint32_t counted_tokens(uint32_t context_tokens)
{
    return context_tokens > UINT32_MAX / 4 ? UINT32_MAX : MAX(4 * context_tokens, 1u << 18);
}

enum status prompt_encode(const struct vocabulary *v, const char *text, size_t len,
                          bool parse_special, bool add_bos, uint32_t max_ids, uint32_t **ids,
                          uint32_t *n_ids, bool *bos_added)
{
    int64_t bos = vocabulary_bos(v);
    uint32_t *list = NULL, n = 0;
    enum status status;

    *bos_added = false;
    status = vocabulary_encode(v, text, len, parse_special, max_ids, &list, &n);
    if (status != STATUS_OK) {
        free(list);
        return status;
    }
    if (add_bos && bos >= 0 && vocabulary_adds_bos(v) && (n == 0 || list[0] != (uint32_t)bos)) {
        uint32_t *grown = memory_grow(list, (size_t)n + 1, sizeof *list);

        if (grown == NULL) {
            free(list);
            return STATUS_NO_MEMORY;
        }
        list = grown;
        memmove(list + 1, list, n * sizeof *list);
        list[0] = (uint32_t)bos;
        n++;
        *bos_added = true;
    }
    *ids = list;
    *n_ids = n;
    return STATUS_OK;
}

/* The tokenizer's own words, and which part of the request they are about. */
static enum status encoding_failed(struct call *c, enum status status, const char *param)
{
    if (status == STATUS_TOO_LARGE)
        return api_fail(&c->error, STATUS_CONTEXT_LENGTH, param,
                        "the prompt has more than %u tokens; this model's context is %u tokens",
                        counted_tokens(c->context_tokens), c->context_tokens);
    return api_fail(&c->error, status, param, "%s", status_message());
}

static enum status set_prompt(struct choice *k, const uint32_t *ids, uint32_t n)
{
    struct request *r = k->request;

    r->resume.prompt_ids = arena_memdup(&r->arena, ids, n, sizeof *ids);
    r->resume.n_prompt = n;
    if (r->resume.prompt_ids == NULL)
        return api_fail(&k->call->error, STATUS_NO_MEMORY, NULL, "%s", status_message());
    return STATUS_OK;
}

/* ---- chat ---- */

static enum status part_failed(struct api_error *e, size_t message, size_t part, const char *what)
{
    char param[64];

    snprintf(param, sizeof param, "messages[%zu].content[%zu]", message, part);
    return api_fail(e, STATUS_BAD_REQUEST, param, "%s %s", param, what);
}

/* Text parts become one string, a line each, which is what templates for plain strings expect. */
static enum status join_parts(const json_t *parts, size_t message, struct api_error *e,
                              json_t **out)
{
    struct buffer text = {0};
    enum status status = STATUS_OK;

    for (size_t i = 0; i < json_array_size(parts) && status == STATUS_OK; i++) {
        const json_t *part = json_array_get(parts, i), *words;
        const char *type = json_string_value(json_object_get(part, "type"));

        if (!json_is_object(part) || type == NULL)
            status = part_failed(e, message, i, "must be an object with a 'type'");
        else if (strcmp(type, "text") != 0)
            status = part_failed(e, message, i, "is not text; only text parts are supported");
        else if (words = json_object_get(part, "text"), !json_is_string(words))
            status = part_failed(e, message, i, "must have a string 'text'");
        else {
            if (i > 0)
                buffer_append(&text, "\n", 1);
            buffer_append(&text, json_string_value(words), json_string_length(words));
        }
    }
    if (status == STATUS_OK) {
        *out = text.failed ? NULL : json_stringn(text.len > 0 ? text.data : "", text.len);
        if (*out == NULL)
            status = api_fail(e, STATUS_NO_MEMORY, NULL, "no memory for a message");
    }
    buffer_deinit(&text);
    return status;
}

static enum status message_failed(struct api_error *e, size_t message, const char *field,
                                  const char *what)
{
    char param[64];

    snprintf(param, sizeof param, "messages[%zu]%s%s", message, *field != '\0' ? "." : "", field);
    return api_fail(e, STATUS_BAD_REQUEST, param, "%s %s", param, what);
}

/* Adds to the messages that the template will see. */
static enum status add_message(const json_t *m, size_t i, struct api_error *e, json_t *messages)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant"};
    const json_t *content = field_get(m, "content"), *name = field_get(m, "name");
    const char *role = json_string_value(json_object_get(m, "role"));
    json_t *copy, *text = NULL;
    size_t r;

    if (!json_is_object(m))
        return message_failed(e, i, "", "must be an object");
    if (role == NULL)
        return message_failed(e, i, "role", "must be a string");
    for (r = 0; r < ARRAY_LENGTH(roles) && strcmp(role, roles[r]) != 0; r++)
        ;
    if (r == ARRAY_LENGTH(roles))
        return message_failed(e, i, "role",
                              strcmp(role, "tool") == 0 || strcmp(role, "function") == 0
                                  ? "names a tool; tools are not supported"
                                  : "must be 'system', 'developer', 'user' or 'assistant'");
    if (field_get(m, "tool_calls") != NULL && json_array_size(field_get(m, "tool_calls")) > 0)
        return message_failed(e, i, "tool_calls", "is not supported");
    if (name != NULL && !json_is_string(name))
        return message_failed(e, i, "name", "must be a string");
    if (json_is_array(content))
        TRY(join_parts(content, i, e, &text));
    else if (content == NULL && strcmp(role, "assistant") != 0 &&
             json_object_get(m, "content") == NULL)
        return message_failed(e, i, "content", "is missing");
    else if (content == NULL)
        text = json_string("");
    else if (json_is_string(content))
        text = json_stringn(json_string_value(content), json_string_length(content));
    else
        return message_failed(e, i, "content", "must be a string, null, or an array of parts");
    copy = json_object();
    if (text == NULL || copy == NULL || json_object_set_new(copy, "role", json_string(role)) != 0) {
        json_decref(text);
        json_decref(copy);
        return api_fail(e, STATUS_NO_MEMORY, NULL, "no memory for a message");
    }
    if (json_object_set_new(copy, "content", text) != 0 ||
        (name != NULL && json_object_set(copy, "name", (json_t *)name) != 0) ||
        json_array_append(messages, copy) != 0) {
        json_decref(copy);
        return api_fail(e, STATUS_NO_MEMORY, NULL, "no memory for a message");
    }
    json_decref(copy);
    return STATUS_OK;
}

enum status prompt_variables(const json_t *root, struct arena *arena, struct api_error *e,
                             json_t **out)
{
    const json_t *messages = field_get(root, "messages"),
                 *more = field_get(root, "chat_template_kwargs");
    json_t *variables, *list;
    bool generate = true;
    enum status status = STATUS_OK;

    TRY(field_bool(root, "add_generation_prompt", e, &generate));
    if (!json_is_array(messages) || json_array_size(messages) == 0)
        return api_fail(e, STATUS_BAD_REQUEST, "messages",
                        "'messages' must be an array with at least one message");
    if (more != NULL && !json_is_object(more))
        return api_fail(e, STATUS_BAD_REQUEST, "chat_template_kwargs",
                        "'chat_template_kwargs' must be an object");
    variables = more != NULL ? json_deep_copy(more) : json_object();
    list = json_array();
    if (json_object_set_new(variables, "messages", list) != 0 ||
        json_object_set_new(variables, "add_generation_prompt", json_boolean(generate)) != 0) {
        json_decref(variables);
        return api_fail(e, STATUS_NO_MEMORY, NULL, "no memory for the messages");
    }
    for (size_t i = 0; i < json_array_size(messages) && status == STATUS_OK; i++)
        status = add_message(json_array_get(messages, i), i, e, list);
    if (status != STATUS_OK) {
        json_decref(variables);
        return status;
    }
    *out = variables;
    return STATUS_OK;
}

enum status prompt_chat(struct call *c, const json_t *root)
{
    const struct vocabulary *v = c->api->vocabulary;
    json_t *variables;
    uint32_t *ids = NULL, n = 0;
    enum status status;

    if (vocabulary_chat_template(v) == NULL)
        return api_fail(&c->error, STATUS_BAD_REQUEST, NULL,
                        "this model has no chat template; use /v1/completions");
    TRY(prompt_variables(root, &c->arena, &c->error, &variables));
    status = chat_prompt_encode(v, variables, counted_tokens(c->context_tokens), &ids, &n);
    json_decref(variables);
    if (status != STATUS_OK) {
        free(ids);
        return encoding_failed(c, status, "messages");
    }
    status = call_make_choices(c, 1);
    if (status == STATUS_OK)
        status = set_prompt(&c->choices[0], ids, n);
    free(ids);
    return status;
}

/* ---- completions ---- */

enum status parse_ids(const json_t *array, uint32_t n_tokens, const char *param,
                      struct api_error *e, struct arena *arena, uint32_t **ids, uint32_t *n_ids)
{
    size_t n = json_array_size(array);
    uint32_t *list = n < UINT32_MAX ? arena_alloc(arena, n, sizeof *list) : NULL;

    if (list == NULL)
        return api_fail(e, STATUS_NO_MEMORY, NULL, "no memory for %zu token ids", n);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(array, i);

        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= n_tokens)
            return api_fail(e, STATUS_BAD_REQUEST, param,
                            "'%s': entry %zu is not a token id from 0 to %u", param, i,
                            n_tokens - 1);
        list[i] = (uint32_t)json_integer_value(v);
    }
    *ids = list;
    *n_ids = (uint32_t)n;
    return STATUS_OK;
}

static enum status prompt_from_string(struct choice *k, const json_t *text, bool add_special,
                                      bool parse_special)
{
    struct call *c = k->call;
    uint32_t *ids = NULL, n = 0;
    enum status status = prompt_encode(c->api->vocabulary, json_string_value(text),
                                       json_string_length(text), parse_special, add_special,
                                       counted_tokens(c->context_tokens), &ids, &n, &k->bos_added);

    if (status != STATUS_OK)
        return encoding_failed(c, status, "prompt");
    status = set_prompt(k, ids, n);
    free(ids);
    return status;
}

static enum status prompt_from_ids(struct choice *k, const json_t *array)
{
    struct request *r = k->request;

    return parse_ids(array, vocabulary_view(k->call->api->vocabulary)->n_tokens, "prompt",
                     &k->call->error, &r->arena, &r->resume.prompt_ids, &r->resume.n_prompt);
}

enum status prompt_completion(struct call *c, const json_t *root)
{
    const json_t *prompt = field_get(root, "prompt"), *first = json_array_get(prompt, 0);
    bool parse_special = true, add_special = true;
    size_t n = json_array_size(prompt);
    uint32_t max = c->api->options.max_prompts;

    TRY(field_bool(root, "parse_special", &c->error, &parse_special));
    TRY(field_bool(root, "add_special_tokens", &c->error, &add_special));
    if (json_is_string(prompt)) {
        TRY(call_make_choices(c, 1));
        return prompt_from_string(&c->choices[0], prompt, add_special, parse_special);
    }
    if (first == NULL)
        return api_fail(&c->error, STATUS_BAD_REQUEST, "prompt",
                        "'prompt' must be a string, an array of strings, an array of token ids, or "
                        "an array of such arrays");
    if (json_is_integer(first)) {
        TRY(call_make_choices(c, 1));
        return prompt_from_ids(&c->choices[0], prompt);
    }
    if (n > max)
        return api_fail(&c->error, STATUS_BAD_REQUEST, "prompt",
                        "'prompt' has %zu prompts; at most %u are taken", n, max);
    TRY(call_make_choices(c, (uint32_t)n));
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_array_get(prompt, i);

        if (json_is_string(one) && json_is_string(first))
            TRY(prompt_from_string(&c->choices[i], one, add_special, parse_special));
        else if (json_is_array(one) && json_is_array(first))
            TRY(prompt_from_ids(&c->choices[i], one));
        else
            return api_fail(&c->error, STATUS_BAD_REQUEST, "prompt",
                            "'prompt': entry %zu is of another kind than the first; all are "
                            "strings or all are arrays of ids",
                            i);
    }
    return STATUS_OK;
}
