/* Reading what gguf.c has checked: look-ups by name and typed values. */
#include "base/checked.h"
#include "format/internal.h"

#include <inttypes.h>
#include <math.h>

static const struct {
    const char *name;
    uint8_t bytes;
} types[] = {
    [GGUF_U8] = {"u8", 1},       [GGUF_I8] = {"i8", 1},     [GGUF_U16] = {"u16", 2},
    [GGUF_I16] = {"i16", 2},     [GGUF_U32] = {"u32", 4},   [GGUF_I32] = {"i32", 4},
    [GGUF_F32] = {"f32", 4},     [GGUF_BOOL] = {"bool", 1}, [GGUF_STRING] = {"string", 0},
    [GGUF_ARRAY] = {"array", 0}, [GGUF_U64] = {"u64", 8},   [GGUF_I64] = {"i64", 8},
    [GGUF_F64] = {"f64", 8},
};

const char *gguf_type_name(enum gguf_type type)
{
    return types[type].name;
}

uint32_t gguf_type_bytes(enum gguf_type type)
{
    return types[type].bytes;
}

int gguf_compare_names(const char *a, uint64_t a_len, const char *b, uint64_t b_len)
{
    int order = memcmp(a, b, MIN(a_len, b_len));

    return order ? order : (a_len > b_len) - (a_len < b_len);
}

const char *gguf_path(const struct gguf *g)
{
    return g->path;
}

uint64_t gguf_file_bytes(const struct gguf *g)
{
    return g->size;
}

uint32_t gguf_version(const struct gguf *g)
{
    return g->version;
}

uint64_t gguf_n_values(const struct gguf *g)
{
    return g->n_values;
}

const struct gguf_value *gguf_value_at(const struct gguf *g, uint64_t index)
{
    return index < g->n_values ? &g->values[index] : NULL;
}

const struct gguf_value *gguf_find(const struct gguf *g, const char *key)
{
    uint64_t low = 0, high = g->values_by_key ? g->n_values : 0, len = strlen(key);

    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        const struct gguf_value *v = &g->values[g->values_by_key[middle]];
        int order = gguf_compare_names(key, len, v->key.bytes, v->key.len);
        if (order == 0)
            return v;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

uint64_t gguf_n_tensors(const struct gguf *g)
{
    return g->n_tensors;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, uint64_t index)
{
    return index < g->n_tensors ? &g->tensors[index] : NULL;
}

const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name)
{
    uint64_t low = 0, high = g->n_tensors;

    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        const struct gguf_tensor *t = &g->tensors[g->tensors_by_name[middle]];
        int order = strcmp(name, t->name);
        if (order == 0)
            return t;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

static enum status find_scalar(const struct gguf *g, const char *key, const struct gguf_value **out)
{
    const struct gguf_value *v = gguf_find(g, key);

    if (!v)
        return fail(STATUS_NOT_FOUND, "%s: there is no %s", g->path, key);
    if (v->type == GGUF_ARRAY)
        return fail(STATUS_BAD_MODEL, "%s: %s is an array; a single value is expected", g->path,
                    key);
    *out = v;
    return STATUS_OK;
}

static enum status wrong_type(const struct gguf *g, const struct gguf_value *v,
                              const char *expected)
{
    return fail(STATUS_BAD_MODEL, "%s: %.*s is of type %s; %s is expected", g->path,
                (int)MIN(v->key.len, (uint64_t)120), v->key.bytes, gguf_type_name(v->type),
                expected);
}

static bool is_integer(enum gguf_type t)
{
    return t <= GGUF_I32 || t == GGUF_U64 || t == GGUF_I64;
}

enum status gguf_get_u32(const struct gguf *g, const char *key, uint32_t *out)
{
    const struct gguf_value *v;

    TRY(find_scalar(g, key, &v));
    if (!is_integer(v->type))
        return wrong_type(g, v, "an integer");
    int64_t n = gguf_element_i64(v, 0);
    if (n < 0 ||
        n > UINT32_MAX) /* a u64 beyond the signed range reads as negative, which is refused too */
        return fail(STATUS_BAD_MODEL, "%s: %s is out of range (%" PRId64 ")", g->path, key, n);
    *out = (uint32_t)n;
    return STATUS_OK;
}

enum status gguf_get_f64(const struct gguf *g, const char *key, double *out)
{
    const struct gguf_value *v;

    TRY(find_scalar(g, key, &v));
    if (!is_integer(v->type) && v->type != GGUF_F32 && v->type != GGUF_F64)
        return wrong_type(g, v, "a number");
    double number = gguf_element_f64(v, 0);
    if (!isfinite(number))
        return fail(STATUS_BAD_MODEL, "%s: %s is not finite", g->path, key);
    *out = number;
    return STATUS_OK;
}

enum status gguf_get_bool(const struct gguf *g, const char *key, bool *out)
{
    const struct gguf_value *v;

    TRY(find_scalar(g, key, &v));
    if (v->type != GGUF_BOOL)
        return wrong_type(g, v, "a bool");
    *out = *(const unsigned char *)v->data;
    return STATUS_OK;
}

enum status gguf_get_string(const struct gguf *g, const char *key, struct gguf_string *out)
{
    const struct gguf_value *v;

    TRY(find_scalar(g, key, &v));
    if (v->type != GGUF_STRING)
        return wrong_type(g, v, "a string");
    *out = (struct gguf_string){(const char *)v->data + 8, gguf_load_u64(v->data)};
    return STATUS_OK;
}

struct gguf_cursor gguf_strings(const struct gguf_value *value)
{
    return (struct gguf_cursor){value, value->data, 0};
}

bool gguf_next_string(struct gguf_cursor *c, struct gguf_string *out)
{
    if (c->value->element_type != GGUF_STRING || c->index >= c->value->n_elements)
        return false;
    *out = (struct gguf_string){(const char *)c->next + 8, gguf_load_u64(c->next)};
    c->next += 8 + out->len;
    c->index++;
    return true;
}

double gguf_element_f64(const struct gguf_value *v, uint64_t i)
{
    if (i >= v->n_elements)
        return 0;
    if (v->element_type == GGUF_F32) {
        float f;
        memcpy(&f, (const unsigned char *)v->data + 4 * i, sizeof f);
        return (double)f;
    }
    if (v->element_type == GGUF_F64) {
        double d;
        memcpy(&d, (const unsigned char *)v->data + 8 * i, sizeof d);
        return d;
    }
    if (v->element_type == GGUF_U64)
        return (double)(uint64_t)gguf_element_i64(v, i);
    return (double)gguf_element_i64(v, i);
}

int64_t gguf_element_i64(const struct gguf_value *v, uint64_t i)
{
    if (i >= v->n_elements)
        return 0;
    const unsigned char *p = (const unsigned char *)v->data + i * gguf_type_bytes(v->element_type);
    switch (v->element_type) {
    case GGUF_U8:
    case GGUF_BOOL:
        return *p;
    case GGUF_I8:
        return (int8_t)*p;
    case GGUF_U16:
        return gguf_load_u16(p);
    case GGUF_I16:
        return (int16_t)gguf_load_u16(p);
    case GGUF_U32:
        return gguf_load_u32(p);
    case GGUF_I32:
        return (int32_t)gguf_load_u32(p);
    case GGUF_U64:
    case GGUF_I64:
        return (int64_t)gguf_load_u64(p);
    default:
        return 0;
    }
}
