/* Log-probabilities, formatted as they come. Completions: four parallel arrays (OpenAI's old form,
 * which lm-eval reads); chat: one array of objects. */
#include "api/internal.h"

#include "base/checked.h"

#include <stdlib.h>
#include <string.h>

/* What an id is called: its bytes, and for a control token, which adds nothing to a text, its name
 * in the file. */
static struct byte_string token_name(const struct vocabulary *v, uint32_t id)
{
    const struct vocabulary_view *view = vocabulary_view(v);
    struct byte_string name = view->tokens[id];

    if (view->kinds[id] == TOKEN_CONTROL || view->kinds[id] == TOKEN_UNKNOWN ||
        view->kinds[id] == TOKEN_UNUSED) {
        name.bytes = vocabulary_token_text(v, id);
        name.len = (uint32_t)strlen(name.bytes);
    }
    return name;
}

static bool same(struct byte_string a, struct byte_string b)
{
    return a.len == b.len && memcmp(a.bytes, b.bytes, a.len) == 0;
}

/* A token's bytes as a JSON string; if they are not UTF-8 alone, "bytes:\xe2\x80". */
static void append_name(struct buffer *out, struct byte_string name)
{
    if (utf8_valid(name.bytes, name.len)) {
        json_append_string(out, name.bytes, name.len);
        return;
    }
    buffer_append_string(out, "\"bytes:");
    for (uint32_t i = 0; i < name.len; i++)
        buffer_printf(out, "\\\\x%02x", (unsigned char)name.bytes[i]);
    buffer_append(out, "\"", 1);
}

static void append_value(struct buffer *out, float value)
{
    char text[32];

    api_format_logprob(value, text);
    buffer_append_string(out, text);
}

static void comma(struct buffer *out, bool first)
{
    if (!first)
        buffer_append(out, ",", 1);
}

/* The likeliest ids of one row. The chosen one is always among them, with the same number. */
struct top {
    uint32_t n;
    uint32_t ids[REQUEST_MAX_LOGPROBS + 1];
    float values[REQUEST_MAX_LOGPROBS + 1];
};

static struct top top_of(const struct logprob_rows *rows, uint32_t row, uint32_t id,
                         uint32_t n_wanted)
{
    struct top t = {.n = MIN(MIN(rows->n_top, n_wanted), REQUEST_MAX_LOGPROBS)};
    bool found = false;

    for (uint32_t j = 0; j < t.n; j++) {
        t.ids[j] = rows->top_ids[(size_t)row * rows->n_top + j];
        t.values[j] = rows->top_values[(size_t)row * rows->n_top + j];
        if (t.ids[j] == id) {
            t.values[j] = rows->value[row];
            found = true;
        }
    }
    if (!found) {
        t.ids[t.n] = id;
        t.values[t.n++] = rows->value[row];
    }
    return t;
}

/* ---- completions ---- */

/* An object's keys must differ, ids' bytes need not: whoever comes second, and is not the chosen
 * id, goes by its number. */
static bool name_taken(const struct vocabulary *v, const struct top *t, uint32_t j, uint32_t chosen)
{
    struct byte_string name = token_name(v, t->ids[j]);

    if (t->ids[j] == chosen)
        return false;
    if (same(name, token_name(v, chosen)))
        return true;
    for (uint32_t i = 0; i < j; i++)
        if (same(name, token_name(v, t->ids[i])))
            return true;
    return false;
}

static void append_top_object(struct buffer *out, const struct vocabulary *v, const struct top *t,
                              uint32_t chosen)
{
    buffer_append(out, "{", 1);
    for (uint32_t j = 0; j < t->n; j++) {
        comma(out, j == 0);
        if (name_taken(v, t, j, chosen))
            buffer_printf(out, "\"token_id:%u\"", t->ids[j]);
        else
            append_name(out, token_name(v, t->ids[j]));
        buffer_append(out, ":", 1);
        append_value(out, t->values[j]);
    }
    buffer_append(out, "}", 1);
}

static uint32_t n_characters_started(struct byte_string s)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < s.len; i++)
        n += ((unsigned char)s.bytes[i] & 0xc0) != 0x80;
    return n;
}

/* Where the token begins in the text, in characters; inside one, that one. */
static void append_offset(struct choice *k, uint32_t id, bool in_prompt)
{
    const struct vocabulary_view *view = vocabulary_view(k->call->api->vocabulary);
    struct byte_string bytes = token_name(k->call->api->vocabulary, id);
    bool silent = in_prompt ? k->bos_added && k->logprobs.n == 0 : view->kinds[id] == TOKEN_CONTROL;
    bool inside = !silent && bytes.len > 0 && ((unsigned char)bytes.bytes[0] & 0xc0) == 0x80 &&
                  k->n_chars > 0;

    buffer_printf(&k->logprobs.offsets, "%llu", (unsigned long long)k->n_chars - inside);
    if (!silent)
        k->n_chars += n_characters_started(bytes);
}

static void add_completion(struct choice *k, uint32_t id, const struct logprob_rows *rows,
                           uint32_t i, bool in_prompt)
{
    const struct vocabulary *v = k->call->api->vocabulary;
    struct logprob_text *t = &k->logprobs;
    bool first = t->entries.len == 0;

    comma(&t->entries, first);
    comma(&t->values, first);
    comma(&t->tops, first);
    comma(&t->offsets, first);
    append_name(&t->entries, token_name(v, id));
    append_offset(k, id, in_prompt);
    if (rows == NULL) {
        buffer_append_string(&t->values, "null");
        buffer_append_string(&t->tops, "null");
        return;
    }
    struct top top = top_of(rows, i, id, (uint32_t)k->call->n_logprobs);
    append_value(&t->values, rows->value[i]);
    append_top_object(&t->tops, v, &top, id);
}

/* ---- chat ---- */

static void append_entry(struct buffer *out, struct byte_string name, float value)
{
    buffer_append_string(out, "{\"token\":");
    json_append_string(out, name.bytes, name.len);
    buffer_append_string(out, ",\"logprob\":");
    append_value(out, value);
    buffer_append_string(out, ",\"bytes\":[");
    for (uint32_t i = 0; i < name.len; i++)
        buffer_printf(out, "%s%u", i > 0 ? "," : "", (unsigned char)name.bytes[i]);
    buffer_append(out, "]", 1);
}

static void add_chat(struct choice *k, uint32_t id, const struct logprob_rows *rows, uint32_t i)
{
    const struct vocabulary *v = k->call->api->vocabulary;
    struct buffer *out = &k->logprobs.entries;

    comma(out, out->len == 0);
    append_entry(out, token_name(v, id), rows->value[i]);
    buffer_append_string(out, ",\"top_logprobs\":[");
    if (k->call->n_logprobs > 0) {
        struct top top = top_of(rows, i, id, (uint32_t)k->call->n_logprobs);

        for (uint32_t j = 0; j < top.n; j++) {
            comma(out, j == 0);
            append_entry(out, token_name(v, top.ids[j]), top.values[j]);
            buffer_append(out, "}", 1);
        }
    }
    buffer_append_string(out, "]}");
}

void logprobs_add(struct choice *k, uint32_t id, const struct logprob_rows *rows, uint32_t i,
                  bool in_prompt)
{
    if (k->call->kind == CALL_CHAT)
        add_chat(k, id, rows, i);
    else
        add_completion(k, id, rows, i, in_prompt);
    k->logprobs.n++;
}

static void append_array(struct buffer *out, const char *key, struct buffer *elements)
{
    buffer_append_string(out, key);
    buffer_append(out, elements->data, elements->len);
    buffer_append(out, "]", 1);
    if (elements->failed)
        out->failed = true;
    buffer_clear(elements);
}

void logprobs_write(struct choice *k, struct buffer *out)
{
    struct logprob_text *t = &k->logprobs;

    if (k->call->n_logprobs < 0 || (t->entries.len == 0 && k->call->stream)) {
        buffer_append_string(out, "null");
        return;
    }
    if (k->call->kind == CALL_CHAT) {
        append_array(out, "{\"content\":[", &t->entries);
        buffer_append(out, "}", 1);
        return;
    }
    append_array(out, "{\"tokens\":[", &t->entries);
    append_array(out, ",\"token_logprobs\":[", &t->values);
    append_array(out, ",\"top_logprobs\":[", &t->tops);
    append_array(out, ",\"text_offset\":[", &t->offsets);
    buffer_append(out, "}", 1);
}

void logprobs_deinit(struct logprob_text *t)
{
    buffer_deinit(&t->entries);
    buffer_deinit(&t->values);
    buffer_deinit(&t->tops);
    buffer_deinit(&t->offsets);
}
