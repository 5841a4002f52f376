/* Dicts, which keep the order of insertion, and JSON turned into values. */
#include "text/jinja.h"

#include <jansson.h>
#include <string.h>

#define DICT_INDEX_FROM 12 /* entries; below, a scan is as fast */

enum status jinja_value_dict(struct render *r, uint32_t capacity, struct value *out)
{
    struct dict *d = jinja_alloc(r, 1, sizeof *d);

    if (!d)
        return STATUS_BAD_TEMPLATE;
    d->keys = jinja_alloc(r, capacity, sizeof *d->keys);
    d->values = jinja_alloc(r, capacity, sizeof *d->values);
    if (!d->keys || !d->values)
        return STATUS_BAD_TEMPLATE;
    d->capacity = capacity;
    *out = (struct value){.type = VALUE_DICT, .dict = d};
    return STATUS_OK;
}

/* Equal values have equal hashes; strings differ by their bytes alone. */
static uint32_t hash(struct value v)
{
    uint32_t h = 2166136261u;

    if (v.type == VALUE_STRING) {
        for (uint32_t i = 0; i < v.text->len; i++)
            h = (h ^ (unsigned char)v.text->bytes[i]) * 16777619u;
    } else if (jinja_value_is_number(v)) {
        double d = jinja_value_number(v);
        uint64_t bits;
        d = d == 0 ? 0 : d;
        memcpy(&bits, &d, sizeof bits);
        h ^= (uint32_t)(bits * 0x9E3779B97F4A7C15u >> 32);
    }
    return h ^ h >> 15;
}

/* Its slot in the index, or the free one where it would go. */
static uint32_t index_slot(const struct dict *d, struct value key)
{
    uint32_t i = hash(key) & d->index_mask;

    while (d->index[i] && !jinja_value_equal(d->keys[d->index[i] - 1], key))
        i = (i + 1) & d->index_mask;
    return i;
}

static enum status build_index(struct render *r, struct dict *d)
{
    uint32_t size = 32;

    while (size < 4 * (d->n + 1))
        size *= 2;
    d->index = jinja_alloc(r, size, sizeof *d->index);
    if (!d->index)
        return STATUS_BAD_TEMPLATE;
    d->index_mask = size - 1;
    for (uint32_t i = 0; i < d->n; i++)
        d->index[index_slot(d, d->keys[i])] = i + 1;
    return STATUS_OK;
}

static struct value *find(const struct dict *d, struct value key)
{
    if (d->index) {
        uint32_t entry = d->index[index_slot(d, key)];
        return entry ? &d->values[entry - 1] : NULL;
    }
    for (uint32_t i = 0; i < d->n; i++)
        if (jinja_value_equal(d->keys[i], key))
            return &d->values[i];
    return NULL;
}

const struct value *jinja_dict_find(const struct dict *d, struct value key)
{
    return find(d, key);
}

const struct value *jinja_dict_find_string(const struct dict *d, const char *key, size_t len)
{
    struct text text = {.bytes = key, .len = (uint32_t)len};

    return find(d, (struct value){.type = VALUE_STRING, .text = &text});
}

enum status jinja_dict_set(struct render *r, struct dict *d, struct value key, struct value v)
{
    struct value *old;

    if (key.type == VALUE_LIST || key.type == VALUE_DICT)
        return jinja_fail(r, "unhashable type: '%s'", jinja_value_type_name(key));
    TRY(jinja_charge(r, 0));
    old = find(d, key);
    if (old) {
        *old = v;
        return STATUS_OK;
    }
    if (d->n == d->capacity) {
        uint32_t capacity = d->capacity ? 2 * d->capacity : 8;
        struct value *keys = jinja_alloc(r, capacity, sizeof *keys),
                     *values = jinja_alloc(r, capacity, sizeof *values);
        if (!keys || !values)
            return STATUS_BAD_TEMPLATE;
        if (d->n) {
            memcpy(keys, d->keys, d->n * sizeof *keys);
            memcpy(values, d->values, d->n * sizeof *values);
        }
        d->keys = keys;
        d->values = values;
        d->capacity = capacity;
    }
    d->keys[d->n] = key;
    d->values[d->n++] = v;
    if (d->index && 2 * d->n <= d->index_mask)
        d->index[index_slot(d, key)] = d->n;
    else if (d->n > DICT_INDEX_FROM)
        TRY(build_index(r, d));
    return STATUS_OK;
}

/* ---- JSON ---- */

static enum status object_from_json(struct render *r, const json_t *j, struct value *out)
{
    struct value key, v;

    TRY(jinja_value_dict(r, (uint32_t)json_object_size(j), out));
    for (void *at = json_object_iter((json_t *)(uintptr_t)j); at;
         at = json_object_iter_next((json_t *)(uintptr_t)j, at)) {
        const char *name = json_object_iter_key(at);
#if JANSSON_VERSION_HEX >= 0x020e00
        size_t len = json_object_iter_key_len(at);
#else
        size_t len = strlen(name);
#endif
        TRY(jinja_value_string(r, name, len, false, &key));
        TRY(jinja_value_from_json(r, json_object_iter_value(at), &v));
        TRY(jinja_dict_set(r, out->dict, key, v));
    }
    return STATUS_OK;
}

enum status jinja_value_from_json(struct render *r, const json_t *j, struct value *out)
{
    TRY(jinja_enter(r));
    switch (json_typeof(j)) {
    case JSON_OBJECT:
        TRY(object_from_json(r, j, out));
        break;
    case JSON_ARRAY:
        TRY(jinja_value_list(r, VALUE_LIST, (uint32_t)json_array_size(j), out));
        for (uint32_t i = 0; i < out->list->n; i++)
            TRY(jinja_value_from_json(r, json_array_get(j, i), &out->list->items[i]));
        break;
    case JSON_STRING:
        TRY(jinja_value_string(r, json_string_value(j), json_string_length(j), false, out));
        break;
    case JSON_INTEGER:
        *out = jinja_value_int(json_integer_value(j));
        break;
    case JSON_REAL:
        *out = jinja_value_float(json_real_value(j));
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        *out = jinja_value_bool(json_is_true(j));
        break;
    case JSON_NULL:
        *out = jinja_value_none();
        break;
    }
    out->from_user = true;
    jinja_leave(r);
    return STATUS_OK;
}
