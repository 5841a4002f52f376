/* Answers: whole, and as the events of a stream. The keys' order is fixed; nothing in here depends
 * on which process made the tokens. */
#include "api/internal.h"

#include <string.h>

static void append_head(struct call *c, const char *object, struct buffer *out)
{
    buffer_append_string(out, "{\"id\":");
    json_append_cstring(out, c->id);
    buffer_append_string(out, ",\"object\":\"");
    buffer_append_string(out, object);
    buffer_append_string(out, "\",\"created\":");
    json_append_i64(out, c->created);
    buffer_append_string(out, ",\"model\":");
    json_append_cstring(out, c->api->options.model_ids[0]);
    buffer_append_string(out, ",\"system_fingerprint\":");
    json_append_cstring(out, c->fingerprint);
    buffer_append_string(out, ",\"choices\":[");
}

static void append_finish(struct choice *k, struct buffer *out)
{
    const char *finish = finish_reason_name(k->finish);

    buffer_append_string(out, ",\"finish_reason\":");
    if (finish != NULL)
        json_append_cstring(out, finish);
    else
        buffer_append_string(out, "null");
}

/* final: what is known only at the end (the prefix cache's share) is added. */
static void append_usage(struct call *c, bool final, struct buffer *out)
{
    uint64_t prompt = 0, completion = 0, cached = 0;

    for (uint32_t i = 0; i < c->n_choices; i++) {
        prompt += c->choices[i].n_prompt;
        completion += c->no_answer ? 0 : c->choices[i].n_generated;
        cached += c->choices[i].n_cached;
    }
    buffer_printf(out, "{\"prompt_tokens\":%llu,\"completion_tokens\":%llu,\"total_tokens\":%llu",
                  (unsigned long long)prompt, (unsigned long long)completion,
                  (unsigned long long)(prompt + completion));
    if (final)
        buffer_printf(out, ",\"prompt_tokens_details\":{\"cached_tokens\":%llu}",
                      (unsigned long long)cached);
    buffer_append(out, "}", 1);
}

static void append_whole_choice(struct choice *k, struct buffer *out)
{
    bool chat = k->call->kind == CALL_CHAT;

    if (chat) {
        buffer_printf(out,
                      "{\"index\":%u,\"message\":{\"role\":\"assistant\",\"content\":", k->index);
        json_append_string(out, k->content.data != NULL ? k->content.data : "", k->content.len);
        buffer_append(out, "}", 1);
    } else {
        struct buffer text = {0};

        buffer_append(&text, k->prompt_text.data, k->prompt_text.len);
        buffer_append(&text, k->content.data, k->content.len);
        buffer_append_string(out, "{\"text\":");
        json_append_string(out, text.data != NULL ? text.data : "", text.len);
        buffer_printf(out, ",\"index\":%u", k->index);
        out->failed |= text.failed;
        buffer_deinit(&text);
    }
    out->failed |= k->content.failed;
    buffer_append_string(out, ",\"logprobs\":");
    logprobs_write(k, out);
    append_finish(k, out);
    buffer_append(out, "}", 1);
}

void reply_whole(struct call *c, struct buffer *out)
{
    append_head(c, c->kind == CALL_CHAT ? "chat.completion" : "text_completion", out);
    for (uint32_t i = 0; i < c->n_choices; i++) {
        if (i > 0)
            buffer_append(out, ",", 1);
        append_whole_choice(&c->choices[i], out);
    }
    buffer_append_string(out, "],\"usage\":");
    append_usage(c, true, out);
    buffer_append(out, "}", 1);
}

/* ---- streams ---- */

static void begin_event(struct call *c, struct buffer *out)
{
    buffer_append_string(out, "data: ");
    append_head(c, c->kind == CALL_CHAT ? "chat.completion.chunk" : "text_completion", out);
}

static void end_event(struct call *c, struct buffer *out)
{
    buffer_append(out, "]", 1);
    if (c->include_usage && c->continuous_usage) {
        buffer_append_string(out, ",\"usage\":");
        append_usage(c, false, out);
    } else if (c->include_usage) {
        buffer_append_string(out, ",\"usage\":null");
    }
    buffer_append_string(out, "}\n\n");
}

void reply_role(struct choice *k, struct buffer *out)
{
    begin_event(k->call, out);
    buffer_printf(out,
                  "{\"index\":%u,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":"
                  "null,\"finish_reason\":null}",
                  k->index);
    end_event(k->call, out);
}

void reply_text(struct choice *k, const char *bytes, size_t len, struct buffer *out)
{
    begin_event(k->call, out);
    if (k->call->kind == CALL_CHAT) {
        buffer_printf(out, "{\"index\":%u,\"delta\":{\"content\":", k->index);
        json_append_string(out, bytes, len);
        buffer_append(out, "}", 1);
    } else {
        buffer_append_string(out, "{\"text\":");
        json_append_string(out, bytes, len);
        buffer_printf(out, ",\"index\":%u", k->index);
    }
    buffer_append_string(out, ",\"logprobs\":");
    logprobs_write(k, out);
    buffer_append_string(out, ",\"finish_reason\":null}");
    end_event(k->call, out);
}

void reply_finish(struct choice *k, struct buffer *out)
{
    begin_event(k->call, out);
    if (k->call->kind == CALL_CHAT)
        buffer_printf(out, "{\"index\":%u,\"delta\":{}", k->index);
    else
        buffer_printf(out, "{\"text\":\"\",\"index\":%u", k->index);
    buffer_append_string(out, ",\"logprobs\":");
    logprobs_write(k, out);
    append_finish(k, out);
    buffer_append(out, "}", 1);
    end_event(k->call, out);
}

void reply_usage(struct call *c, struct buffer *out)
{
    buffer_append_string(out, "data: ");
    append_head(c, c->kind == CALL_CHAT ? "chat.completion.chunk" : "text_completion", out);
    buffer_append_string(out, "],\"usage\":");
    append_usage(c, true, out);
    buffer_append_string(out, "}\n\n");
}
