/* /tokenize, /detokenize, /tokenizer_info. Both vLLM's names (prompt, add_special_tokens,
 * return_token_strs) and llama-server's (content, add_special, with_pieces) are read, and answers
 * carry both. */
#include "api/internal.h"

#include "base/checked.h"

#include <stdlib.h>
#include <string.h>

static void append_ids(struct buffer *out, const uint32_t *ids, uint32_t n)
{
    buffer_append(out, "[", 1);
    for (uint32_t i = 0; i < n; i++)
        buffer_printf(out, "%s%u", i > 0 ? "," : "", ids[i]);
    buffer_append(out, "]", 1);
}

static void append_strings(struct call *c, const uint32_t *ids, uint32_t n)
{
    const struct vocabulary *v = c->api->vocabulary;

    buffer_append(&c->out, "[", 1);
    for (uint32_t i = 0; i < n; i++) {
        const char *text = vocabulary_token_text(v, ids[i]);

        if (i > 0)
            buffer_append(&c->out, ",", 1);
        json_append_cstring(&c->out, text);
    }
    buffer_append(&c->out, "]", 1);
}

static enum status encode_request(struct call *c, const json_t *root, uint32_t **ids, uint32_t *n)
{
    const struct vocabulary *v = c->api->vocabulary;
    bool add_special = true, parse_special = true, bos_added;
    const char *text = NULL;
    size_t len = 0;
    enum status status;

    TRY(field_bool(root, "with_pieces", &c->error, &c->with_strings));
    TRY(field_bool(root, "return_token_strs", &c->error, &c->with_strings));
    if (field_get(root, "messages") != NULL) {
        json_t *variables;

        if (vocabulary_chat_template(v) == NULL)
            return api_fail(&c->error, STATUS_BAD_REQUEST, "messages",
                            "this model has no chat template");
        TRY(prompt_variables(root, &c->arena, &c->error, &variables));
        status = chat_prompt_encode(v, variables, 0, ids, n);
        json_decref(variables);
        return status == STATUS_OK
                   ? status
                   : api_fail(&c->error, status, "messages", "%s", status_message());
    }
    TRY(field_bool(root, "add_special", &c->error, &add_special));
    TRY(field_bool(root, "add_special_tokens", &c->error, &add_special));
    TRY(field_bool(root, "parse_special", &c->error, &parse_special));
    TRY(field_string(root, "content", &c->error, &text, &len));
    TRY(field_string(root, "prompt", &c->error, &text, &len));
    if (text == NULL)
        return api_fail(&c->error, STATUS_BAD_REQUEST, "prompt",
                        "'prompt' must be a string (or give 'messages')");
    status = prompt_encode(v, text, len, parse_special, add_special, 0, ids, n, &bos_added);
    return status == STATUS_OK ? status
                               : api_fail(&c->error, status, "prompt", "%s", status_message());
}

void tokenize_parse(struct call *c)
{
    json_t *root = NULL;
    uint32_t *ids = NULL, n = 0;

    if (api_json_parse(&c->body, &c->error, &root) != STATUS_OK)
        return;
    if (encode_request(c, root, &ids, &n) == STATUS_OK) {
        buffer_printf(&c->out, "{\"count\":%u,\"max_model_len\":%u,\"tokens\":", n,
                      c->context_tokens);
        append_ids(&c->out, ids, n);
        buffer_append_string(&c->out, ",\"token_strs\":");
        if (c->with_strings)
            append_strings(c, ids, n);
        else
            buffer_append_string(&c->out, "null");
        buffer_append(&c->out, "}", 1);
        if (c->out.failed)
            c->error.status =
                api_fail(&c->error, STATUS_NO_MEMORY, NULL, "no memory for the answer");
    }
    free(ids);
    json_decref(root);
}

void detokenize_parse(struct call *c)
{
    const struct vocabulary *v = c->api->vocabulary;
    json_t *root = NULL;
    uint32_t *ids, n;
    struct buffer text = {0};
    enum status status;

    if (api_json_parse(&c->body, &c->error, &root) != STATUS_OK)
        return;
    if (!json_is_array(json_object_get(root, "tokens"))) {
        status = api_fail(&c->error, STATUS_BAD_REQUEST, "tokens",
                          "'tokens' must be an array of token ids");
    } else {
        status = parse_ids(json_object_get(root, "tokens"), vocabulary_view(v)->n_tokens, "tokens",
                           &c->error, &c->arena, &ids, &n);
        if (status == STATUS_OK &&
            (status = vocabulary_decode(v, ids, n, true, &text)) != STATUS_OK)
            status = api_fail(&c->error, status, "tokens", "%s", status_message());
    }
    if (status == STATUS_OK) {
        const char *bytes = text.data != NULL ? text.data : "";

        buffer_append_string(&c->out, "{\"prompt\":");
        json_append_string(&c->out, bytes, text.len);
        buffer_append_string(&c->out, ",\"content\":");
        json_append_string(&c->out, bytes, text.len);
        buffer_append(&c->out, "}", 1);
        if (c->out.failed || text.failed)
            c->error.status =
                api_fail(&c->error, STATUS_NO_MEMORY, NULL, "no memory for the answer");
    }
    buffer_deinit(&text);
    json_decref(root);
}

static void append_token(struct buffer *out, const struct vocabulary *v, const char *key,
                         int64_t id)
{
    buffer_append_string(out, key);
    if (id < 0)
        buffer_append_string(out, "null");
    else
        json_append_cstring(out, vocabulary_token_text(v, (uint32_t)id));
}

void route_tokenizer_info(void *context, struct http_exchange *x)
{
    struct api *api = context;
    struct buffer out = {0};
    const char *source;

    if (!api_is_loaded(api, x))
        return;
    append_token(&out, api->vocabulary, "{\"bos_token\":", vocabulary_bos(api->vocabulary));
    append_token(&out, api->vocabulary, ",\"eos_token\":", vocabulary_eos(api->vocabulary));
    append_token(&out, api->vocabulary, ",\"pad_token\":", -1);
    buffer_append_string(&out, ",\"chat_template\":");
    source = vocabulary_chat_template_source(api->vocabulary);
    if (source != NULL)
        json_append_cstring(&out, source);
    else
        buffer_append_string(&out, "null");
    buffer_printf(&out, ",\"add_bos_token\":%s}",
                  vocabulary_adds_bos(api->vocabulary) ? "true" : "false");
    http_exchange_respond(x, 200, "application/json", out.data, out.len);
    buffer_deinit(&out);
}
