/* Fields of messages: JSON members and arrays of the binary tail. */
#include "wire/internal.h"

#include "base/checked.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static enum status wrong(const struct wire_reader *r, const char *field, const char *expected)
{
    return fail(STATUS_BAD_MESSAGE, "%s: %s is not %s", r->name, field, expected);
}

static enum status absent(const struct wire_reader *r, const char *field, bool required)
{
    return required ? fail(STATUS_BAD_MESSAGE, "%s: %s is missing", r->name, field) : STATUS_OK;
}

enum status read_i64(const struct wire_reader *r, const json_t *object, const char *field,
                     bool required, int64_t *out)
{
    const json_t *v = json_object_get(object, field);

    if (!v)
        return absent(r, field, required);
    if (!json_is_integer(v))
        return wrong(r, field, "an integer");
    *out = json_integer_value(v);
    return STATUS_OK;
}

enum status read_u32(const struct wire_reader *r, const json_t *object, const char *field,
                     bool required, uint32_t *out)
{
    int64_t v = *out;

    TRY(read_i64(r, object, field, required, &v));
    if (v < 0 || v > UINT32_MAX)
        return wrong(r, field, "an unsigned 32-bit number");
    *out = (uint32_t)v;
    return STATUS_OK;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

enum status read_hex64(const struct wire_reader *r, const json_t *object, const char *field,
                       bool required, uint64_t *out)
{
    const json_t *v = json_object_get(object, field);
    uint64_t n = 0;

    if (!v)
        return absent(r, field, required);
    if (!json_is_string(v) || json_string_length(v) != 16)
        return wrong(r, field, "a string of 16 hexadecimal digits");
    for (const char *p = json_string_value(v); *p; p++) {
        if (hex_digit(*p) < 0)
            return wrong(r, field, "a string of 16 hexadecimal digits");
        n = n << 4 | (uint64_t)hex_digit(*p);
    }
    *out = n;
    return STATUS_OK;
}

enum status read_double(const struct wire_reader *r, const json_t *object, const char *field,
                        double *out)
{
    const json_t *v = json_object_get(object, field);

    if (!v)
        return STATUS_OK;
    if (!json_is_number(v) || !isfinite(json_number_value(v)))
        return wrong(r, field, "a number");
    *out = json_number_value(v);
    return STATUS_OK;
}

enum status read_bool(const struct wire_reader *r, const json_t *object, const char *field,
                      bool *out)
{
    const json_t *v = json_object_get(object, field);

    if (!v)
        return STATUS_OK;
    if (!json_is_boolean(v))
        return wrong(r, field, "true or false");
    *out = json_is_true(v);
    return STATUS_OK;
}

enum status read_string(const struct wire_reader *r, const json_t *object, const char *field,
                        bool required, char *out, size_t size)
{
    const json_t *v = json_object_get(object, field);

    if (!v)
        return absent(r, field, required);
    if (!json_is_string(v) || json_string_length(v) >= size ||
        strlen(json_string_value(v)) != json_string_length(v))
        return wrong(r, field, "a short string");
    memcpy(out, json_string_value(v), json_string_length(v) + 1);
    return STATUS_OK;
}

enum status read_node_id(const struct wire_reader *r, const json_t *object, const char *field,
                         char out[NODE_ID_BYTES])
{
    const json_t *v = json_object_get(object, field);

    if (!json_is_string(v) || !node_id_valid(json_string_value(v), json_string_length(v)))
        return wrong(r, field, "a node id");
    memcpy(out, json_string_value(v), json_string_length(v) + 1);
    return STATUS_OK;
}

enum status read_digest(const struct wire_reader *r, const json_t *object, const char *field,
                        uint8_t out[REQUEST_DIGEST_BYTES])
{
    const json_t *v = json_object_get(object, field);
    uint8_t digest[REQUEST_DIGEST_BYTES];

    if (!json_is_string(v) || json_string_length(v) != 2 * sizeof digest)
        return wrong(r, field, "a string of 64 hexadecimal digits");
    const char *p = json_string_value(v);
    for (size_t i = 0; i < sizeof digest; i++) {
        const int high = hex_digit(p[2 * i]), low = hex_digit(p[2 * i + 1]);
        if (high < 0 || low < 0)
            return wrong(r, field, "a string of 64 hexadecimal digits");
        digest[i] = (uint8_t)(high << 4 | low);
    }
    memcpy(out, digest, sizeof digest);
    return STATUS_OK;
}

enum status read_key(const struct wire_reader *r, const json_t *object, struct request_key *out,
                     uint32_t *attempt)
{
    const json_t *v = json_object_get(object, "key");
    struct request_key key = {0};

    if (!json_is_object(v))
        return wrong(r, "key", "an object");
    TRY(read_node_id(r, v, "origin", key.origin));
    TRY(read_hex64(r, v, "epoch", true, &key.epoch));
    TRY(read_hex64(r, v, "number", true, &key.number));
    TRY(read_u32(r, v, "choice", false, &key.choice));
    *attempt = 1;
    TRY(read_u32(r, object, "attempt", false, attempt));
    *out = key;
    return STATUS_OK;
}

enum status read_status(const struct wire_reader *r, const json_t *object, const char *field,
                        enum status *out)
{
    const json_t *v = json_object_get(object, field);

    if (!v)
        return STATUS_OK;
    if (!json_is_string(v))
        return wrong(r, field, "a string");
    *out = status_from_code(json_string_value(v), json_string_length(v));
    return STATUS_OK;
}

static enum status take(struct wire_reader *r, uint64_t n, uint64_t size, const uint8_t **out)
{
    uint64_t bytes;

    if (!mul_u64(n, size, &bytes) || bytes > r->tail_left)
        return fail(STATUS_BAD_MESSAGE,
                    "%s: the tail ends early (%u bytes are left, %llu items are announced)",
                    r->name, r->tail_left, (unsigned long long)n);
    *out = r->tail;
    r->tail += bytes;
    r->tail_left -= (uint32_t)bytes;
    return STATUS_OK;
}

enum status read_u32s(struct wire_reader *r, struct arena *a, uint64_t n, uint32_t **out)
{
    const uint8_t *p = NULL;
    uint32_t *v;

    TRY(take(r, n, 4, &p));
    v = arena_alloc(a, n, sizeof *v);
    if (!v)
        return STATUS_NO_MEMORY;
    for (uint64_t i = 0; i < n; i++, p += 4)
        v[i] = p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
    *out = v;
    return STATUS_OK;
}

enum status read_bytes(struct wire_reader *r, struct arena *a, uint64_t n, char **out)
{
    const uint8_t *p = NULL;

    TRY(take(r, n, 1, &p));
    *out = arena_strndup(a, (const char *)p, n);
    return *out ? STATUS_OK : STATUS_NO_MEMORY;
}

static enum status read_f32s(struct wire_reader *r, struct arena *a, uint64_t n, const float **out)
{
    uint32_t *bits = NULL;

    TRY(read_u32s(r, a, n, &bits));
    *out = (const float *)bits; /* the program is built without strict aliasing */
    return STATUS_OK;
}

enum status read_logprobs(struct wire_reader *r, const json_t *object, struct arena *a, uint32_t n,
                          bool *has, struct logprob_rows *out)
{
    uint32_t *ids;

    *has = json_object_get(object, "n_top") != NULL;
    if (!*has)
        return STATUS_OK;
    out->n_top = 0;
    TRY(read_u32(r, object, "n_top", true, &out->n_top));
    if (out->n_top > REQUEST_MAX_LOGPROBS)
        return wrong(r, "n_top", "at most 20");
    TRY(read_f32s(r, a, n, &out->value));
    TRY(read_u32s(r, a, (uint64_t)n * out->n_top, &ids));
    out->top_ids = ids;
    return read_f32s(r, a, (uint64_t)n * out->n_top, &out->top_values);
}

json_t *hex64_json(uint64_t v)
{
    char text[17];

    snprintf(text, sizeof text, "%016llx", (unsigned long long)v);
    return json_string(text);
}

json_t *digest_json(const uint8_t digest[REQUEST_DIGEST_BYTES])
{
    char text[2 * REQUEST_DIGEST_BYTES + 1];

    for (int i = 0; i < REQUEST_DIGEST_BYTES; i++)
        snprintf(text + 2 * i, 3, "%02x", digest[i]);
    return json_string(text);
}

void put_key(json_t *object, const struct request_key *key, uint32_t attempt)
{
    json_t *k = json_object();

    json_object_set_new(k, "origin", json_string(key->origin));
    json_object_set_new(k, "epoch", hex64_json(key->epoch));
    json_object_set_new(k, "number", hex64_json(key->number));
    json_object_set_new(k, "choice", json_integer(key->choice));
    json_object_set_new(object, "key", k);
    json_object_set_new(object, "attempt", json_integer(attempt));
}

void append_u32s(struct buffer *b, const uint32_t *v, size_t n)
{
    uint8_t *p = buffer_reserve(b, n * 4);

    if (!p)
        return;
    for (size_t i = 0; i < n; i++, p += 4)
        for (int j = 0; j < 4; j++)
            p[j] = (uint8_t)(v[i] >> (8 * j));
    b->len += n * 4;
    b->data[b->len] = 0;
}

void append_f32s(struct buffer *b, const float *v, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &v[i], sizeof bits);
        append_u32s(b, &bits, 1);
    }
}

void append_logprobs(json_t *object, struct buffer *tail, const struct logprob_rows *rows,
                     uint32_t n)
{
    json_object_set_new(object, "n_top", json_integer(rows->n_top));
    append_f32s(tail, rows->value, n);
    append_u32s(tail, rows->top_ids, (size_t)n * rows->n_top);
    append_f32s(tail, rows->top_values, (size_t)n * rows->n_top);
}
