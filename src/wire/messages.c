/* The messages of one request's life, results excepted. */
#include "wire/internal.h"

#include "base/checked.h"

#include <string.h>

static json_t *sampling_json(const struct sampling *s)
{
    json_t *o = json_object();

    json_object_set_new(o, "temperature", json_real(s->temperature));
    json_object_set_new(o, "top_p", json_real(s->top_p));
    json_object_set_new(o, "min_p", json_real(s->min_p));
    json_object_set_new(o, "top_k", json_integer(s->top_k));
    json_object_set_new(o, "repetition_penalty", json_real(s->repetition_penalty));
    json_object_set_new(o, "frequency_penalty", json_real(s->frequency_penalty));
    json_object_set_new(o, "presence_penalty", json_real(s->presence_penalty));
    return o;
}

static json_t *resume_json(const struct resume *m, struct buffer *tail)
{
    json_t *o = json_object();

    json_object_set_new(o, "n_prompt", json_integer(m->n_prompt));
    json_object_set_new(o, "n_generated", json_integer(m->n_generated));
    json_object_set_new(o, "seed", hex64_json(m->seed));
    json_object_set_new(o, "choice", json_integer(m->choice));
    json_object_set_new(o, "sampling", sampling_json(&m->sampling));
    json_object_set_new(o, "n_logit_bias", json_integer(m->n_logit_bias));
    json_t *stops = json_array();
    for (uint32_t i = 0; i < m->n_stops; i++)
        json_array_append_new(stops, json_stringn(m->stops[i].bytes, m->stops[i].len));
    json_object_set_new(o, "stops", stops);
    if (m->grammar.len)
        json_object_set_new(o, "grammar", json_stringn(m->grammar.bytes, m->grammar.len));
    json_object_set_new(o, "n_logprobs", json_integer(m->n_logprobs));
    json_object_set_new(o, "n_prompt_logprobs", json_integer(m->n_prompt_logprobs));
    json_object_set_new(o, "min_tokens", json_integer(m->min_tokens));
    json_object_set_new(o, "max_tokens", json_integer(m->max_tokens));
    json_object_set_new(o, "ignore_eos", json_boolean(m->ignore_eos));
    if (m->has_tenant)
        json_object_set_new(o, "tenant_salt", digest_json(m->tenant_salt));
    json_object_set_new(o, "deadline_ms",
                        json_integer((json_int_t)MIN(m->deadline_ms, (uint64_t)INT64_MAX)));
    append_u32s(tail, m->prompt_ids, m->n_prompt);
    append_u32s(tail, m->generated_ids, m->n_generated);
    for (uint32_t i = 0; i < m->n_logit_bias; i++) {
        append_u32s(tail, &m->logit_bias[i].id, 1);
        append_f32s(tail, &m->logit_bias[i].bias, 1);
    }
    return o;
}

static enum status read_float(const struct wire_reader *r, const json_t *o, const char *field,
                              float *out)
{
    double v = *out;

    TRY(read_double(r, o, field, &v));
    *out = (float)v;
    return STATUS_OK;
}

static enum status read_sampling(const struct wire_reader *r, const json_t *o, struct sampling *s)
{
    *s = (struct sampling){.top_p = 1, .repetition_penalty = 1};
    if (!json_is_object(o))
        return fail(STATUS_BAD_MESSAGE, "%s: sampling is not an object", r->name);
    TRY(read_double(r, o, "temperature", &s->temperature));
    TRY(read_double(r, o, "top_p", &s->top_p));
    TRY(read_double(r, o, "min_p", &s->min_p));
    TRY(read_u32(r, o, "top_k", false, &s->top_k));
    TRY(read_float(r, o, "repetition_penalty", &s->repetition_penalty));
    TRY(read_float(r, o, "frequency_penalty", &s->frequency_penalty));
    TRY(read_float(r, o, "presence_penalty", &s->presence_penalty));
    if (s->temperature < 0 || s->top_p < 0 || s->min_p < 0 || s->repetition_penalty <= 0)
        return fail(STATUS_BAD_MESSAGE, "%s: a sampling parameter is out of range", r->name);
    return STATUS_OK;
}

static enum status read_text(const struct wire_reader *r, struct arena *a, const json_t *v,
                             const char *field, struct byte_string *out)
{
    if (!json_is_string(v))
        return fail(STATUS_BAD_MESSAGE, "%s: %s is not a string", r->name, field);
    out->len = (uint32_t)json_string_length(v);
    out->bytes = arena_strndup(a, json_string_value(v), out->len);
    return out->bytes ? STATUS_OK : STATUS_NO_MEMORY;
}

static enum status read_stops(const struct wire_reader *r, struct arena *a, const json_t *stops,
                              struct resume *m)
{
    if (!stops)
        return STATUS_OK;
    if (!json_is_array(stops) || json_array_size(stops) > REQUEST_MAX_STOPS)
        return fail(STATUS_BAD_MESSAGE, "%s: stops is not an array of at most %d strings", r->name,
                    REQUEST_MAX_STOPS);
    m->n_stops = (uint32_t)json_array_size(stops);
    m->stops = arena_alloc(a, m->n_stops, sizeof *m->stops);
    if (!m->stops)
        return STATUS_NO_MEMORY;
    for (uint32_t i = 0; i < m->n_stops; i++)
        TRY(read_text(r, a, json_array_get(stops, i), "stops", &m->stops[i]));
    return STATUS_OK;
}

static enum status read_wish(const struct wire_reader *r, const json_t *o, const char *field,
                             int32_t *out)
{
    int64_t v = -1;

    TRY(read_i64(r, o, field, false, &v));
    if (v < -1 || v > REQUEST_MAX_LOGPROBS)
        return fail(STATUS_BAD_MESSAGE, "%s: %s is outside -1 to %d", r->name, field,
                    REQUEST_MAX_LOGPROBS);
    *out = (int32_t)v;
    return STATUS_OK;
}

static enum status read_bias(struct wire_reader *r, struct arena *a, struct resume *m)
{
    uint32_t *pairs;

    if (m->n_logit_bias > REQUEST_MAX_LOGIT_BIAS)
        return fail(STATUS_BAD_MESSAGE, "%s: %u entries of logit_bias, at most %d are possible",
                    r->name, m->n_logit_bias, REQUEST_MAX_LOGIT_BIAS);
    TRY(read_u32s(r, a, 2 * (uint64_t)m->n_logit_bias, &pairs));
    m->logit_bias = arena_alloc(a, m->n_logit_bias, sizeof *m->logit_bias);
    if (!m->logit_bias)
        return STATUS_NO_MEMORY;
    for (uint32_t i = 0; i < m->n_logit_bias; i++) {
        m->logit_bias[i].id = pairs[2 * i];
        memcpy(&m->logit_bias[i].bias, &pairs[2 * i + 1], sizeof m->logit_bias[i].bias);
        if (!(m->logit_bias[i].bias >= -1e30f && m->logit_bias[i].bias <= 1e30f))
            return fail(STATUS_BAD_MESSAGE, "%s: a logit_bias is not a sensible number", r->name);
    }
    return STATUS_OK;
}

static enum status read_resume(struct wire_reader *r, struct arena *a, struct resume *m)
{
    const json_t *o = json_object_get(r->root, "resume");
    int64_t deadline_ms = 0;

    if (!json_is_object(o))
        return fail(STATUS_BAD_MESSAGE, "%s: resume is not an object", r->name);
    TRY(read_u32(r, o, "n_prompt", true, &m->n_prompt));
    TRY(read_u32(r, o, "n_generated", false, &m->n_generated));
    TRY(read_hex64(r, o, "seed", false, &m->seed));
    TRY(read_u32(r, o, "choice", false, &m->choice));
    TRY(read_sampling(r, json_object_get(o, "sampling"), &m->sampling));
    TRY(read_u32(r, o, "n_logit_bias", false, &m->n_logit_bias));
    TRY(read_stops(r, a, json_object_get(o, "stops"), m));
    if (json_object_get(o, "grammar"))
        TRY(read_text(r, a, json_object_get(o, "grammar"), "grammar", &m->grammar));
    TRY(read_wish(r, o, "n_logprobs", &m->n_logprobs));
    TRY(read_wish(r, o, "n_prompt_logprobs", &m->n_prompt_logprobs));
    TRY(read_u32(r, o, "min_tokens", false, &m->min_tokens));
    TRY(read_u32(r, o, "max_tokens", true, &m->max_tokens));
    TRY(read_bool(r, o, "ignore_eos", &m->ignore_eos));
    m->has_tenant = json_object_get(o, "tenant_salt") != NULL;
    if (m->has_tenant)
        TRY(read_digest(r, o, "tenant_salt", m->tenant_salt));
    TRY(read_i64(r, o, "deadline_ms", false, &deadline_ms));
    m->deadline_ms = (uint64_t)MAX(deadline_ms, (int64_t)0);
    TRY(read_u32s(r, a, m->n_prompt, &m->prompt_ids));
    TRY(read_u32s(r, a, m->n_generated, &m->generated_ids));
    return read_bias(r, a, m);
}

static json_t *request_json(const struct wire_prefill_request *m, struct buffer *tail)
{
    json_t *o = json_object();

    put_key(o, &m->key, m->attempt);
    json_object_set_new(o, "request_id", json_string(m->request_id ? m->request_id : ""));
    json_object_set_new(o, "reply_to", json_string(m->reply_to));
    json_object_set_new(o, "want_text", json_boolean(m->want_text));
    if (m->window_tokens)
        json_object_set_new(o, "window_tokens", json_integer(m->window_tokens));
    json_object_set_new(o, "resume", resume_json(&m->resume, tail));
    return o;
}

static enum status read_request(struct wire_reader *r, struct arena *a,
                                struct wire_prefill_request *m)
{
    char request_id[129] = "";

    TRY(read_key(r, r->root, &m->key, &m->attempt));
    TRY(read_string(r, r->root, "request_id", false, request_id, sizeof request_id));
    m->request_id = arena_strndup(a, request_id, strlen(request_id));
    if (!m->request_id)
        return STATUS_NO_MEMORY;
    TRY(read_node_id(r, r->root, "reply_to", m->reply_to));
    TRY(read_bool(r, r->root, "want_text", &m->want_text));
    TRY(read_u32(r, r->root, "window_tokens", false, &m->window_tokens));
    return read_resume(r, a, &m->resume);
}

enum status wire_encode_prefill_request(struct buffer *out, const struct wire_prefill_request *m)
{
    struct buffer tail = {0};
    json_t *o = request_json(m, &tail);

    if (m->has_decode_targets) {
        json_t *targets = json_array();
        for (uint32_t i = 0; i < m->n_decode_targets; i++)
            json_array_append_new(targets, json_string(m->decode_targets[i]));
        json_object_set_new(o, "decode_targets", targets);
    }
    enum status status = write_frame(out, WIRE_PREFILL_REQUEST, o, &tail);
    buffer_deinit(&tail);
    return status;
}

static enum status read_targets(const struct wire_reader *r, struct arena *a,
                                struct wire_prefill_request *m)
{
    const json_t *targets = json_object_get(r->root, "decode_targets");

    m->has_decode_targets = targets != NULL;
    if (!targets)
        return STATUS_OK;
    if (!json_is_array(targets) || json_array_size(targets) > 64)
        return fail(STATUS_BAD_MESSAGE, "%s: decode_targets is not an array of at most 64 node ids",
                    r->name);
    m->n_decode_targets = (uint32_t)json_array_size(targets);
    m->decode_targets = arena_alloc(a, m->n_decode_targets, sizeof *m->decode_targets);
    if (!m->decode_targets)
        return STATUS_NO_MEMORY;
    for (uint32_t i = 0; i < m->n_decode_targets; i++) {
        const json_t *t = json_array_get(targets, i);
        if (!json_is_string(t) || !node_id_valid(json_string_value(t), json_string_length(t)))
            return fail(STATUS_BAD_MESSAGE, "%s: decode_targets[%u] is not a node id", r->name, i);
        memcpy(m->decode_targets[i], json_string_value(t), json_string_length(t) + 1);
    }
    return STATUS_OK;
}

enum status wire_decode_prefill_request(const struct wire_frame *f, struct arena *a,
                                        struct wire_prefill_request *out)
{
    struct wire_prefill_request m = {0};
    struct wire_reader r;

    TRY(reader_open(f, WIRE_PREFILL_REQUEST, &r));
    enum status status = read_request(&r, a, &m);
    if (status == STATUS_OK)
        status = read_targets(&r, a, &m);
    TRY(reader_close(&r, status));
    *out = m;
    return STATUS_OK;
}

enum status wire_encode_decode_meta(struct buffer *out, const struct wire_decode_meta *m)
{
    struct buffer tail = {0};
    json_t *o = request_json(&m->request, &tail);

    json_object_set_new(o, "n_page_names", json_integer(m->n_page_names));
    buffer_append(&tail, m->page_names, (size_t)m->n_page_names * PAGE_NAME_BYTES);
    enum status status = write_frame(out, WIRE_DECODE_META, o, &tail);
    buffer_deinit(&tail);
    return status;
}

enum status wire_decode_decode_meta(const struct wire_frame *f, struct arena *a,
                                    struct wire_decode_meta *out)
{
    struct wire_decode_meta m = {0};
    struct wire_reader r;
    char *names = NULL;

    TRY(reader_open(f, WIRE_DECODE_META, &r));
    enum status status = read_request(&r, a, &m.request);
    if (status == STATUS_OK)
        status = read_u32(&r, r.root, "n_page_names", false, &m.n_page_names);
    if (status == STATUS_OK)
        status = read_bytes(&r, a, (uint64_t)m.n_page_names * PAGE_NAME_BYTES, &names);
    TRY(reader_close(&r, status));
    m.page_names = (const struct page_name *)names;
    *out = m;
    return STATUS_OK;
}

enum status wire_encode_decode_ready(struct buffer *out, const struct wire_decode_ready *m)
{
    json_t *o = json_object();

    put_key(o, &m->key, m->attempt);
    json_object_set_new(o, "handle", hex64_json(m->handle));
    json_object_set_new(o, "n_held_pages", json_integer(m->n_held_pages));
    json_object_set_new(o, "credit_tokens", json_integer(m->credit_tokens));
    return write_frame(out, WIRE_DECODE_READY, o, NULL);
}

static enum status read_ready(const struct wire_reader *r, struct wire_decode_ready *m)
{
    TRY(read_key(r, r->root, &m->key, &m->attempt));
    TRY(read_hex64(r, r->root, "handle", true, &m->handle));
    TRY(read_u32(r, r->root, "n_held_pages", false, &m->n_held_pages));
    return read_u32(r, r->root, "credit_tokens", false, &m->credit_tokens);
}

enum status wire_decode_decode_ready(const struct wire_frame *f, struct wire_decode_ready *out)
{
    struct wire_decode_ready m = {0};
    struct wire_reader r;

    TRY(reader_open(f, WIRE_DECODE_READY, &r));
    TRY(reader_close(&r, read_ready(&r, &m)));
    *out = m;
    return STATUS_OK;
}

enum status wire_encode_handoff_commit(struct buffer *out, const struct wire_handoff_commit *m)
{
    struct buffer tail = {0};
    json_t *o = json_object();

    put_key(o, &m->key, m->attempt);
    json_object_set_new(o, "handle", hex64_json(m->handle));
    json_object_set_new(o, "n_prefix_tokens", json_integer(m->n_prefix_tokens));
    json_object_set_new(o, "first_page", json_integer(m->first_page));
    json_object_set_new(o, "n_pages", json_integer(m->n_pages));
    json_object_set_new(o, "first_id", json_integer(m->first_id));
    if (m->has_logprobs)
        append_logprobs(o, &tail, &m->row, 1);
    enum status status = write_frame(out, WIRE_HANDOFF_COMMIT, o, &tail);
    buffer_deinit(&tail);
    return status;
}

static enum status read_commit(struct wire_reader *r, struct arena *a,
                               struct wire_handoff_commit *m)
{
    TRY(read_key(r, r->root, &m->key, &m->attempt));
    TRY(read_hex64(r, r->root, "handle", true, &m->handle));
    TRY(read_u32(r, r->root, "n_prefix_tokens", true, &m->n_prefix_tokens));
    TRY(read_u32(r, r->root, "first_page", true, &m->first_page));
    TRY(read_u32(r, r->root, "n_pages", true, &m->n_pages));
    TRY(read_u32(r, r->root, "first_id", true, &m->first_id));
    return read_logprobs(r, r->root, a, 1, &m->has_logprobs, &m->row);
}

enum status wire_decode_handoff_commit(const struct wire_frame *f, struct arena *a,
                                       struct wire_handoff_commit *out)
{
    struct wire_handoff_commit m = {0};
    struct wire_reader r;

    TRY(reader_open(f, WIRE_HANDOFF_COMMIT, &r));
    TRY(reader_close(&r, read_commit(&r, a, &m)));
    *out = m;
    return STATUS_OK;
}

enum status wire_encode_handles(struct buffer *out, const struct wire_handles *m)
{
    struct buffer tail = {0};
    json_t *o = json_object();

    json_object_set_new(o, "n", json_integer(m->n));
    for (uint32_t i = 0; i < m->n; i++) {
        const uint32_t halves[2] = {(uint32_t)m->handles[i], (uint32_t)(m->handles[i] >> 32)};
        append_u32s(&tail, halves, 2);
    }
    enum status status = write_frame(out, WIRE_HANDOFF_LIVE, o, &tail);
    buffer_deinit(&tail);
    return status;
}

static enum status read_handles(struct wire_reader *r, struct arena *a, struct wire_handles *m)
{
    uint32_t *halves;
    uint64_t *handles;

    TRY(read_u32(r, r->root, "n", true, &m->n));
    TRY(read_u32s(r, a, 2 * (uint64_t)m->n, &halves));
    handles = arena_alloc(a, m->n, sizeof *handles);
    if (!handles)
        return STATUS_NO_MEMORY;
    for (uint32_t i = 0; i < m->n; i++)
        handles[i] = halves[2 * i] | (uint64_t)halves[2 * i + 1] << 32;
    m->handles = handles;
    return STATUS_OK;
}

enum status wire_decode_handles(const struct wire_frame *f, struct arena *a,
                                struct wire_handles *out)
{
    struct wire_handles m = {0};
    struct wire_reader r;

    TRY(reader_open(f, WIRE_HANDOFF_LIVE, &r));
    TRY(reader_close(&r, read_handles(&r, a, &m)));
    *out = m;
    return STATUS_OK;
}

enum status wire_encode_credit(struct buffer *out, const struct wire_credit *m)
{
    json_t *o = json_object();

    put_key(o, &m->key, m->attempt);
    json_object_set_new(o, "window_tokens", json_integer(m->window_tokens));
    return write_frame(out, WIRE_CREDIT, o, NULL);
}

enum status wire_decode_credit(const struct wire_frame *f, struct wire_credit *out)
{
    struct wire_credit m = {0};
    struct wire_reader r;

    TRY(reader_open(f, WIRE_CREDIT, &r));
    enum status status = read_key(&r, r.root, &m.key, &m.attempt);
    if (status == STATUS_OK)
        status = read_u32(&r, r.root, "window_tokens", true, &m.window_tokens);
    TRY(reader_close(&r, status));
    *out = m;
    return STATUS_OK;
}
