/* Who a node is (hello) and how it is (ping, pong, stats); short notices. */
#include "wire/internal.h"

#include <stdio.h>
#include <string.h>

enum status wire_encode_hello(struct buffer *out, const struct wire_hello *m)
{
    json_t *o = json_object();

    json_object_set_new(o, "version_min", json_integer(m->version_min));
    json_object_set_new(o, "version_max", json_integer(m->version_max));
    json_object_set_new(o, "node_id", json_string(m->node_id));
    json_object_set_new(o, "epoch", hex64_json(m->epoch));
    json_object_set_new(o, "role", json_string(m->role));
    json_object_set_new(o, "connection", json_string(m->bulk ? "bulk" : "control"));
    json_object_set_new(o, "link", hex64_json(m->link));
    if (m->wants_bulk)
        json_object_set_new(o, "bulk_follows", json_true());
    if (*m->expect_role)
        json_object_set_new(o, "expect_role", json_string(m->expect_role));
    if (m->has_tokenizer)
        json_object_set_new(o, "tokenizer", digest_json(m->tokenizer_digest));
    if (m->has_model) {
        json_t *kv = json_object();
        json_object_set_new(o, "model", digest_json(m->model_digest));
        json_object_set_new(o, "numerics", digest_json(m->numerics_digest));
        json_object_set_new(kv, "n_layers", json_integer(m->kv.n_layers));
        json_object_set_new(kv, "n_kv_heads", json_integer(m->kv.n_kv_heads));
        json_object_set_new(kv, "head_dim", json_integer(m->kv.head_dim));
        json_object_set_new(kv, "page_tokens", json_integer(PAGE_TOKENS));
        json_object_set_new(kv, "type", json_integer(m->kv_type));
        json_object_set_new(o, "kv", kv);
        json_object_set_new(o, "max_context_tokens", json_integer(m->max_context_tokens));
        json_object_set_new(o, "n_slots", json_integer(m->n_slots));
        json_object_set_new(o, "n_pages", json_integer(m->n_pages));
        json_object_set_new(o, "fingerprint", json_string(m->fingerprint));
    }
    return write_frame(out, WIRE_HELLO, o, NULL);
}

static enum status read_model(const struct wire_reader *r, struct wire_hello *m)
{
    const json_t *kv = json_object_get(r->root, "kv");
    uint32_t page_tokens = 0;

    m->has_model = json_object_get(r->root, "model") != NULL;
    m->has_tokenizer = json_object_get(r->root, "tokenizer") != NULL;
    if (m->has_tokenizer)
        TRY(read_digest(r, r->root, "tokenizer", m->tokenizer_digest));
    if (!m->has_model)
        return STATUS_OK;
    TRY(read_digest(r, r->root, "model", m->model_digest));
    TRY(read_digest(r, r->root, "numerics", m->numerics_digest));
    if (!json_is_object(kv))
        return fail(STATUS_BAD_MESSAGE, "%s: kv is not an object", r->name);
    TRY(read_u32(r, kv, "n_layers", true, &m->kv.n_layers));
    TRY(read_u32(r, kv, "n_kv_heads", true, &m->kv.n_kv_heads));
    TRY(read_u32(r, kv, "head_dim", true, &m->kv.head_dim));
    TRY(read_u32(r, kv, "page_tokens", true, &page_tokens));
    TRY(read_u32(r, kv, "type", true, &m->kv_type));
    if (page_tokens != PAGE_TOKENS)
        return fail(STATUS_CELL_MISMATCH, "%s: pages of %u tokens, ours have %d", r->name,
                    page_tokens, PAGE_TOKENS);
    TRY(read_u32(r, r->root, "max_context_tokens", true, &m->max_context_tokens));
    TRY(read_u32(r, r->root, "n_slots", false, &m->n_slots));
    TRY(read_u32(r, r->root, "n_pages", false, &m->n_pages));
    return read_string(r, r->root, "fingerprint", false, m->fingerprint, sizeof m->fingerprint);
}

static enum status read_hello(const struct wire_reader *r, struct wire_hello *m)
{
    char connection[16];

    TRY(read_u32(r, r->root, "version_min", true, &m->version_min));
    TRY(read_u32(r, r->root, "version_max", true, &m->version_max));
    TRY(read_node_id(r, r->root, "node_id", m->node_id));
    TRY(read_hex64(r, r->root, "epoch", true, &m->epoch));
    TRY(read_string(r, r->root, "role", true, m->role, sizeof m->role));
    TRY(read_string(r, r->root, "connection", true, connection, sizeof connection));
    if (strcmp(connection, "bulk") && strcmp(connection, "control"))
        return fail(STATUS_BAD_MESSAGE, "%s: connection is neither control nor bulk", r->name);
    m->bulk = !strcmp(connection, "bulk");
    TRY(read_hex64(r, r->root, "link", true, &m->link));
    TRY(read_bool(r, r->root, "bulk_follows", &m->wants_bulk));
    TRY(read_string(r, r->root, "expect_role", false, m->expect_role, sizeof m->expect_role));
    return read_model(r, m);
}

enum status wire_decode_hello(const struct wire_frame *f, struct wire_hello *out)
{
    struct wire_hello m = {0};
    struct wire_reader r;

    TRY(reader_open(f, WIRE_HELLO, &r));
    TRY(reader_close(&r, read_hello(&r, &m)));
    *out = m;
    return STATUS_OK;
}

enum status wire_hello_match(const struct wire_hello *a, const struct wire_hello *b)
{
    if (a->version_max < b->version_min || b->version_max < a->version_min)
        return fail(STATUS_VERSION_MISMATCH, "we speak versions %u to %u, %s speaks %u to %u",
                    a->version_min, a->version_max, b->node_id, b->version_min, b->version_max);
    if (*b->expect_role && strcmp(b->expect_role, a->role))
        return fail(STATUS_CELL_MISMATCH, "%s expects a %s node, this is a %s node", b->node_id,
                    b->expect_role, a->role);
    if (*a->expect_role && strcmp(a->expect_role, b->role))
        return fail(STATUS_CELL_MISMATCH, "%s is a %s node, a %s node was expected", b->node_id,
                    b->role, a->expect_role);
    if (a->has_tokenizer && b->has_tokenizer &&
        memcmp(a->tokenizer_digest, b->tokenizer_digest, REQUEST_DIGEST_BYTES))
        return fail(STATUS_CELL_MISMATCH, "%s has another tokenizer or chat template", b->node_id);
    if (!a->has_model || !b->has_model)
        return STATUS_OK;
    if (memcmp(a->model_digest, b->model_digest, REQUEST_DIGEST_BYTES))
        return fail(STATUS_CELL_MISMATCH, "%s has another model", b->node_id);
    if (memcmp(a->numerics_digest, b->numerics_digest, REQUEST_DIGEST_BYTES))
        return fail(STATUS_CELL_MISMATCH, "%s computes other numerics", b->node_id);
    if (memcmp(&a->kv, &b->kv, sizeof a->kv) || a->kv_type != b->kv_type)
        return fail(STATUS_CELL_MISMATCH, "%s has another KV geometry", b->node_id);
    if (a->max_context_tokens != b->max_context_tokens)
        return fail(STATUS_CELL_MISMATCH, "%s has a context of %u tokens, ours is %u (-c)",
                    b->node_id, b->max_context_tokens, a->max_context_tokens);
    return STATUS_OK;
}

enum status wire_encode_notice(struct buffer *out, enum wire_type type, const struct wire_notice *m)
{
    json_t *o = json_object();

    if (m->has_key)
        put_key(o, &m->key, m->attempt);
    if (m->handle)
        json_object_set_new(o, "handle", hex64_json(m->handle));
    if (m->reason != STATUS_OK)
        json_object_set_new(o, "reason", json_string(status_code(m->reason)));
    if (*m->message)
        json_object_set_new(o, "message", json_string(m->message));
    return write_frame(out, type, o, NULL);
}

static enum status read_notice(const struct wire_reader *r, struct wire_notice *m)
{
    m->has_key = json_object_get(r->root, "key") != NULL;
    if (m->has_key)
        TRY(read_key(r, r->root, &m->key, &m->attempt));
    TRY(read_hex64(r, r->root, "handle", false, &m->handle));
    TRY(read_status(r, r->root, "reason", &m->reason));
    return read_string(r, r->root, "message", false, m->message, sizeof m->message);
}

enum status wire_decode_notice(const struct wire_frame *f, struct wire_notice *out)
{
    struct wire_notice m = {0};
    struct wire_reader r;

    TRY(reader_open(f, (enum wire_type)f->type, &r));
    TRY(reader_close(&r, read_notice(&r, &m)));
    *out = m;
    return STATUS_OK;
}

enum status wire_encode_node_stats(struct buffer *out, enum wire_type type,
                                   const struct wire_node_stats *m)
{
    json_t *o = json_object();

    json_object_set_new(o, "number", hex64_json(m->number));
    json_object_set_new(o, "sent_at_us", json_integer(m->sent_at_us));
    json_object_set_new(o, "busy", json_boolean(m->busy));
    json_object_set_new(o, "draining", json_boolean(m->draining));
    json_object_set_new(o, "progress", hex64_json(m->progress));
    json_object_set_new(o, "running", json_integer(m->n_running));
    json_object_set_new(o, "waiting", json_integer(m->n_waiting));
    json_object_set_new(o, "slots", json_integer(m->n_slots));
    json_object_set_new(o, "free_pages", json_integer(m->n_free_pages));
    json_object_set_new(o, "cached_pages", json_integer(m->n_cached_pages));
    json_object_set_new(o, "total_pages", json_integer(m->n_total_pages));
    const struct buffer tail = {.data = (char *)m->prefix_filter, .len = m->n_prefix_filter_bytes};
    if (tail.len)
        json_object_set_new(o, "prefix_filter_bytes", json_integer(m->n_prefix_filter_bytes));
    return write_frame(out, type, o, &tail);
}

static enum status read_stats(struct wire_reader *r, struct wire_node_stats *m)
{
    TRY(read_hex64(r, r->root, "number", false, &m->number));
    TRY(read_i64(r, r->root, "sent_at_us", false, &m->sent_at_us));
    TRY(read_bool(r, r->root, "busy", &m->busy));
    TRY(read_bool(r, r->root, "draining", &m->draining));
    TRY(read_hex64(r, r->root, "progress", false, &m->progress));
    TRY(read_u32(r, r->root, "running", false, &m->n_running));
    TRY(read_u32(r, r->root, "waiting", false, &m->n_waiting));
    TRY(read_u32(r, r->root, "slots", false, &m->n_slots));
    TRY(read_u32(r, r->root, "free_pages", false, &m->n_free_pages));
    TRY(read_u32(r, r->root, "cached_pages", false, &m->n_cached_pages));
    TRY(read_u32(r, r->root, "total_pages", false, &m->n_total_pages));
    TRY(read_u32(r, r->root, "prefix_filter_bytes", false, &m->n_prefix_filter_bytes));
    const uint32_t n = m->n_prefix_filter_bytes;
    if (n > PREFIX_FILTER_BYTES_MAX || (n & (n - 1)) || n > r->tail_left)
        return fail(STATUS_BAD_MESSAGE, "%s: a prefix filter of %u bytes, of which %u are there",
                    r->name, n, r->tail_left);
    m->prefix_filter = n ? r->tail : NULL;
    r->tail += n;
    r->tail_left -= n;
    return STATUS_OK;
}

enum status wire_decode_node_stats(const struct wire_frame *f, struct wire_node_stats *out)
{
    struct wire_node_stats m = {0};
    struct wire_reader r;

    TRY(reader_open(f, (enum wire_type)f->type, &r));
    TRY(reader_close(&r, read_stats(&r, &m)));
    *out = m;
    return STATUS_OK;
}
