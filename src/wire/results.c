/* serve.result: one frame for an engine step and a reply link, an entry for each request. */
#include "wire/internal.h"

#include "base/checked.h"

#include <stdlib.h>
#include <string.h>

/* Room that the frame's own brackets and one entry's JSON may take beside what is counted. */
enum { FRAME_SLACK_BYTES = 64 };

static const char *const phase_names[] = {
#define X(name, text) text,
    WIRE_PHASE_TABLE(X)
#undef X
};

static enum status flush(struct wire_result_batch *b)
{
    struct buffer json = {0};

    if (b->n == 0)
        return STATUS_OK;
    buffer_append_string(&json, "{\"entries\":[");
    buffer_append(&json, b->json.data, b->json.len);
    buffer_append_string(&json, "]}");
    enum status status = buffer_status(&json);
    if (status == STATUS_OK)
        status = write_frame_text(&b->frames, WIRE_RESULT, json.data, json.len, &b->tail);
    buffer_deinit(&json);
    buffer_clear(&b->json);
    buffer_clear(&b->tail);
    b->n = 0;
    return status;
}

static json_t *lost_nodes_json(const struct wire_result *m)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < m->n_lost_nodes; i++) {
        json_t *node = json_object();
        json_object_set_new(node, "node_id", json_string(m->lost_nodes[i].node_id));
        json_object_set_new(node, "epoch", hex64_json(m->lost_nodes[i].epoch));
        json_array_append_new(list, node);
    }
    return list;
}

static json_t *entry_json(const struct wire_result *m, struct buffer *tail)
{
    json_t *o = json_object();

    put_key(o, &m->key, m->attempt);
    json_object_set_new(o, "phase", json_string(phase_names[m->phase]));
    if (*m->decode_node)
        json_object_set_new(o, "decode_node", json_string(m->decode_node));
    if (m->n_lost_nodes)
        json_object_set_new(o, "lost_nodes", lost_nodes_json(m));
    if (m->n_ids) {
        json_object_set_new(
            o, m->phase == WIRE_PHASE_PROMPT_LOGPROBS ? "start_position" : "start_sequence",
            json_integer(m->start));
        json_object_set_new(o, m->phase == WIRE_PHASE_PROMPT_LOGPROBS ? "n_rows" : "n_token_ids",
                            json_integer(m->n_ids));
        if (m->phase != WIRE_PHASE_PROMPT_LOGPROBS)
            append_u32s(tail, m->ids, m->n_ids);
        if (m->has_logprobs)
            append_logprobs(o, tail, &m->logprobs, m->n_ids);
    }
    if (m->has_text)
        json_object_set_new(o, "tokens", json_stringn(m->text, m->text_len));
    if (m->done) {
        json_object_set_new(o, "done", json_true());
        json_object_set_new(o, "generated_tokens", json_integer(m->n_generated));
        if (finish_reason_name(m->finish))
            json_object_set_new(o, "finish_reason", json_string(finish_reason_name(m->finish)));
    }
    if (m->error != STATUS_OK) {
        json_object_set_new(o, "error", json_string(status_code(m->error)));
        json_object_set_new(o, "message", json_string(m->message));
    }
    if (m->phase == WIRE_PHASE_FIRST_TOKEN)
        json_object_set_new(o, "cached_tokens", json_integer(m->n_cached));
    return o;
}

enum status wire_result_append(struct wire_result_batch *b, const struct wire_result *m)
{
    struct buffer tail = {0};
    json_t *o = entry_json(m, &tail);
    char *json = json_dumps(o, JSON_COMPACT);
    enum status status = STATUS_OK;

    json_decref(o);
    if (!json || tail.failed) {
        status = fail(STATUS_NO_MEMORY, "no memory for a result");
        goto out;
    }
    const size_t len = strlen(json) + tail.len;
    if (len + FRAME_SLACK_BYTES > WIRE_FRAME_BYTES_MAX) {
        status = fail(STATUS_TOO_LARGE, "a result of %zu bytes does not fit a frame", len);
        goto out;
    }
    if (b->json.len + b->tail.len + len + FRAME_SLACK_BYTES > WIRE_FRAME_BYTES_MAX)
        TRY_GOTO(out, flush(b));
    if (b->n++)
        buffer_append_string(&b->json, ",");
    buffer_append_string(&b->json, json);
    buffer_append(&b->tail, tail.data, tail.len);
    status = buffer_status(&b->json);
out:
    free(json);
    buffer_deinit(&tail);
    return status;
}

enum status wire_encode_results(struct buffer *out, struct wire_result_batch *b)
{
    enum status status = flush(b);

    if (status == STATUS_OK && b->frames.len)
        buffer_append(out, b->frames.data, b->frames.len);
    buffer_clear(&b->frames);
    return status == STATUS_OK ? buffer_status(out) : status;
}

void wire_result_batch_deinit(struct wire_result_batch *b)
{
    buffer_deinit(&b->json);
    buffer_deinit(&b->tail);
    buffer_deinit(&b->frames);
    b->n = 0; /* zeroed is valid: it may gather anew */
}

static enum status read_phase(const struct wire_reader *r, const json_t *o, enum wire_phase *out)
{
    const char *name = json_string_value(json_object_get(o, "phase"));

    for (size_t i = 0; name && i < ARRAY_LENGTH(phase_names); i++)
        if (!strcmp(name, phase_names[i])) {
            *out = (enum wire_phase)i;
            return STATUS_OK;
        }
    return fail(STATUS_BAD_MESSAGE, "%s: phase is none that is known", r->name);
}

static enum status read_end(const struct wire_reader *r, const json_t *o, struct wire_result *m)
{
    const json_t *finish = json_object_get(o, "finish_reason");

    TRY(read_bool(r, o, "done", &m->done));
    TRY(read_u32(r, o, "generated_tokens", false, &m->n_generated));
    TRY(read_u32(r, o, "cached_tokens", false, &m->n_cached));
    if (json_is_string(finish))
        m->finish = finish_reason_from_name(json_string_value(finish), json_string_length(finish));
    TRY(read_status(r, o, "error", &m->error));
    return read_string(r, o, "message", false, m->message, sizeof m->message);
}

static enum status read_lost_nodes(const struct wire_reader *r, const json_t *o,
                                   struct wire_result *m)
{
    const json_t *list = json_object_get(o, "lost_nodes");

    if (list && !json_is_array(list))
        return fail(STATUS_BAD_MESSAGE, "%s: lost_nodes is not an array", r->name);
    for (size_t i = 0; i < json_array_size(list) && i < WIRE_MAX_LOST_NODES; i++) {
        const json_t *node = json_array_get(list, i);
        if (!json_is_object(node))
            return fail(STATUS_BAD_MESSAGE, "%s: lost_nodes has what is no object", r->name);
        TRY(read_node_id(r, node, "node_id", m->lost_nodes[i].node_id));
        TRY(read_hex64(r, node, "epoch", true, &m->lost_nodes[i].epoch));
        m->n_lost_nodes++;
    }
    return STATUS_OK;
}

static enum status read_entry(struct wire_reader *r, const json_t *o, struct arena *a,
                              struct wire_result *m)
{
    const json_t *text = json_object_get(o, "tokens");
    uint32_t *ids = NULL;

    if (!json_is_object(o))
        return fail(STATUS_BAD_MESSAGE, "%s: an entry is not an object", r->name);
    TRY(read_key(r, o, &m->key, &m->attempt));
    TRY(read_phase(r, o, &m->phase));
    if (json_object_get(o, "decode_node"))
        TRY(read_node_id(r, o, "decode_node", m->decode_node));
    TRY(read_lost_nodes(r, o, m));
    const bool rows_only = m->phase == WIRE_PHASE_PROMPT_LOGPROBS;
    TRY(read_u32(r, o, rows_only ? "start_position" : "start_sequence", false, &m->start));
    TRY(read_u32(r, o, rows_only ? "n_rows" : "n_token_ids", false, &m->n_ids));
    if (m->n_ids > r->tail_left / 4)
        return fail(STATUS_BAD_MESSAGE, "%s: %u ids are announced, the frame has room for %u",
                    r->name, m->n_ids, r->tail_left / 4);
    if (!rows_only)
        TRY(read_u32s(r, a, m->n_ids, &ids));
    m->ids = ids;
    TRY(read_logprobs(r, o, a, m->n_ids, &m->has_logprobs, &m->logprobs));
    if (json_is_string(text)) {
        m->has_text = true;
        m->text_len = (uint32_t)json_string_length(text);
        m->text = arena_strndup(a, json_string_value(text), m->text_len);
        if (!m->text)
            return STATUS_NO_MEMORY;
    }
    return read_end(r, o, m);
}

enum status wire_decode_results(const struct wire_frame *f, struct arena *a,
                                struct wire_result **out, uint32_t *n)
{
    struct wire_result *entries = NULL;
    struct wire_reader r;
    uint32_t count = 0;

    TRY(reader_open(f, WIRE_RESULT, &r));
    const json_t *list = json_object_get(r.root, "entries");
    enum status status = STATUS_OK;
    if (!json_is_array(list))
        status = fail(STATUS_BAD_MESSAGE, "%s: entries is not an array", r.name);
    if (status == STATUS_OK) {
        count = (uint32_t)json_array_size(list);
        entries = arena_alloc(a, count, sizeof *entries);
        if (!entries)
            status = STATUS_NO_MEMORY;
    }
    for (uint32_t i = 0; status == STATUS_OK && i < count; i++)
        status = read_entry(&r, json_array_get(list, i), a, &entries[i]);
    TRY(reader_close(&r, status));
    *out = entries;
    *n = count;
    return STATUS_OK;
}
