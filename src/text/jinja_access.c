/* value.name, value[key] and value[start:stop:step], as Python has them and the sandbox allows. */
#include "base/checked.h"
#include "text/jinja.h"

#include <stdio.h>
#include <string.h>

static enum status unsafe_attribute(struct render *r, struct value v, const char *name, size_t len,
                                    struct value *out)
{
    char *hint = jinja_alloc(r, len + 100, 1);

    if (!hint)
        return STATUS_BAD_TEMPLATE;
    snprintf(hint, len + 100, "access to attribute '%.*s' of '%s' object is unsafe.", (int)len,
             name, jinja_value_type_name(v));
    TRY(jinja_value_undefined(r, hint, out));
    out->undefined->unsafe = true;
    return STATUS_OK;
}

static enum status loop_neighbour(struct render *r, const struct loop *l, bool next,
                                  struct value *out)
{
    if (next ? l->index0 + 1 >= l->n : l->index0 == 0)
        return jinja_value_undefined(
            r, next ? "there is no next item" : "there is no previous item", out);
    *out = l->items[next ? l->index0 + 1 : l->index0 - 1];
    return STATUS_OK;
}

/* False: it has no such attribute. */
static bool loop_attribute(const struct loop *l, const char *name, size_t len, struct value *out)
{
    const struct {
        const char *name;
        struct value v;
    } attributes[] = {
        {"index", jinja_value_int(l->index0 + 1)},
        {"index0", jinja_value_int(l->index0)},
        {"revindex", jinja_value_int(l->n - l->index0)},
        {"revindex0", jinja_value_int((int64_t)l->n - l->index0 - 1)},
        {"first", jinja_value_bool(l->index0 == 0)},
        {"last", jinja_value_bool(l->index0 + 1 == l->n)},
        {"length", jinja_value_int(l->n)},
        {"depth", jinja_value_int(l->depth0 + 1)},
        {"depth0", jinja_value_int(l->depth0)},
    };

    for (size_t i = 0; i < ARRAY_LENGTH(attributes); i++)
        if (strlen(attributes[i].name) == len && !memcmp(attributes[i].name, name, len)) {
            *out = attributes[i].v;
            return true;
        }
    return false;
}

enum status jinja_python_attribute(struct render *r, struct value v, const char *name, size_t len,
                                   bool *found, struct value *out)
{
    const struct function *method;

    *found = true;
    if (len >= 4 && !memcmp(name, "__", 2) && !memcmp(name + len - 2, "__", 2))
        return unsafe_attribute(r, v, name, len, out);
    if (v.type == VALUE_NAMESPACE) {
        const struct value *attribute = jinja_dict_find_string(v.dict, name, len);
        *found = attribute != NULL;
        if (attribute)
            *out = *attribute;
        return STATUS_OK;
    }
    if (v.type == VALUE_LOOP) {
        if (loop_attribute(v.loop, name, len, out))
            return STATUS_OK;
        if ((len == 8 && !memcmp(name, "previtem", 8)) ||
            (len == 8 && !memcmp(name, "nextitem", 8)))
            return loop_neighbour(r, v.loop, name[0] == 'n', out);
    }
    if (v.type == VALUE_TUPLE && v.list->view && v.list->n == 2 &&
        ((len == 7 && !memcmp(name, "grouper", 7)) || (len == 4 && !memcmp(name, "list", 4)))) {
        *out = v.list->items[len == 4]; /* what groupby gives */
        return STATUS_OK;
    }
    if (v.type == VALUE_MACRO && len == 4 && !memcmp(name, "name", 4))
        return jinja_value_string(r, v.macro->macro->name, strlen(v.macro->macro->name), true, out);
    if (jinja_is_mutation(v.type, name, len))
        return unsafe_attribute(r, v, name, len, out);
    method = jinja_find_method(v.type, name, len);
    if (method) {
        struct method *bound = jinja_alloc(r, 1, sizeof *bound);
        if (!bound)
            return STATUS_BAD_TEMPLATE;
        *bound = (struct method){v, method};
        *out = (struct value){.type = VALUE_METHOD, .method = bound};
        return STATUS_OK;
    }
    *found = false;
    return STATUS_OK;
}

/* An index as Python counts: from the end if negative. False: there is no such place. */
static bool place(struct value key, uint32_t n, uint32_t *out)
{
    int64_t i = key.type == VALUE_BOOL ? key.boolean : key.integer;

    if (key.type != VALUE_INT && key.type != VALUE_BOOL)
        return false;
    if (i < 0)
        i += n;
    if (i < 0 || i >= n)
        return false;
    *out = (uint32_t)i;
    return true;
}

/* What Python's v[key] finds; *found false: nothing, or it cannot be indexed so. */
static enum status python_item(struct render *r, struct value v, struct value key, bool *found,
                               struct value *out)
{
    const struct value *entry;
    uint32_t i;

    *found = false;
    switch (v.type) {
    case VALUE_DICT:
        TRY(jinja_charge(r, 0));
        entry = jinja_dict_find(v.dict, key);
        *found = entry != NULL;
        if (entry)
            *out = *entry;
        return STATUS_OK;
    case VALUE_LIST:
    case VALUE_TUPLE:
        *found = place(key, v.list->n, &i);
        if (*found)
            *out = v.list->items[i];
        return STATUS_OK;
    case VALUE_RANGE:
        *found = place(key, v.range->n, &i);
        if (*found)
            *out = jinja_value_int(v.range->start + v.range->step * i);
        return STATUS_OK;
    case VALUE_STRING:
        TRY(jinja_charge(r, v.text->len));
        *found = place(key, jinja_text_points(v.text), &i);
        if (!*found)
            return STATUS_OK;
        return jinja_text_slice(r, v.text, jinja_text_offset(v.text, i),
                                jinja_text_offset(v.text, i + 1), out);
    default:
        return STATUS_OK;
    }
}

enum status jinja_get_attribute(struct render *r, struct value v, const char *name, size_t len,
                                struct value *out)
{
    struct value key;
    bool found;

    TRY(jinja_value_use(r, v));
    TRY(jinja_python_attribute(r, v, name, len, &found, out));
    if (found)
        return STATUS_OK;
    TRY(jinja_value_string(r, name, len, true, &key));
    TRY(python_item(r, v, key, &found, out));
    return found ? STATUS_OK : jinja_value_missing(r, v, key, out);
}

enum status jinja_get_item(struct render *r, struct value v, struct value key, struct value *out)
{
    bool found;

    TRY(jinja_value_use(r, v));
    if (key.type == VALUE_UNDEFINED && key.undefined->unsafe)
        return jinja_value_use(r, key);
    TRY(python_item(r, v, key, &found, out));
    if (!found && key.type == VALUE_STRING)
        TRY(jinja_python_attribute(r, v, key.text->bytes, key.text->len, &found, out));
    return found ? STATUS_OK : jinja_value_missing(r, v, key, out);
}

/* One bound of a slice, put into 0..n (or -1..n-1 when going backwards). */
static enum status slice_bound(struct render *r, struct value v, int64_t n, bool backwards,
                               int64_t absent, int64_t *out)
{
    TRY(jinja_value_use(r, v));
    if (v.type == VALUE_NONE) {
        *out = absent;
        return STATUS_OK;
    }
    if (v.type != VALUE_INT && v.type != VALUE_BOOL)
        return jinja_fail(r, "slice indices must be integers or None");
    int64_t i = v.type == VALUE_BOOL ? v.boolean : v.integer, low = backwards ? -1 : 0,
            high = backwards ? n - 1 : n;
    if (i < 0)
        i = i < -n ? low : i + n;
    *out = i < low ? low : i > high ? high : i;
    return STATUS_OK;
}

static enum status slice_text(struct render *r, const struct text *t, int64_t start, int64_t step,
                              uint32_t n, struct value *out)
{
    struct builder b;

    if (step == 1) {
        uint32_t from = jinja_text_offset(t, (uint32_t)start);
        struct text rest = {.bytes = t->bytes + from, .len = t->len - from};
        return jinja_text_slice(r, t, from, from + jinja_text_offset(&rest, n), out);
    }
    TRY(jinja_builder_init(&b, r, 0));
    for (uint32_t i = 0; i < n; i++, start += step) {
        uint32_t at = jinja_text_offset(t, (uint32_t)start), end = at + 1;
        TRY(jinja_charge(r, at));
        while (end < t->len && ((unsigned char)t->bytes[end] & 0xc0) == 0x80)
            end++;
        TRY(jinja_builder_add_text(&b, t, at, end));
    }
    return jinja_builder_finish(&b, out);
}

enum status jinja_slice(struct render *r, struct value v, struct value from, struct value to,
                        struct value by, struct value *out)
{
    int64_t start, stop, step = 1;
    uint32_t length;

    TRY(jinja_value_use(r, v));
    if (v.type != VALUE_STRING && v.type != VALUE_LIST && v.type != VALUE_TUPLE &&
        v.type != VALUE_RANGE)
        return jinja_fail(r, "a '%s' object cannot be sliced", jinja_value_type_name(v));
    TRY(jinja_value_length(r, v, &length));
    if (by.type != VALUE_NONE)
        TRY(slice_bound(r, by, INT32_MAX, false, 1, &step));
    if (by.type == VALUE_INT)
        step = by.integer < -INT32_MAX  ? -INT32_MAX
               : by.integer > INT32_MAX ? INT32_MAX
                                        : by.integer;
    if (step == 0)
        return jinja_fail(r, "slice step cannot be zero");
    TRY(slice_bound(r, from, length, step < 0, step < 0 ? (int64_t)length - 1 : 0, &start));
    TRY(slice_bound(r, to, length, step < 0, step < 0 ? -1 : (int64_t)length, &stop));
    int64_t distance = step > 0 ? stop - start : start - stop, width = step > 0 ? step : -step;
    uint32_t n = distance > 0 ? (uint32_t)((distance + width - 1) / width) : 0;
    if (v.type == VALUE_STRING)
        return slice_text(r, v.text, n ? start : 0, step, n, out);
    if (v.type == VALUE_RANGE) {
        struct range *range = jinja_alloc(r, 1, sizeof *range);
        if (!range)
            return STATUS_BAD_TEMPLATE;
        *range = (struct range){v.range->start + v.range->step * start, v.range->step * step, n};
        *out = (struct value){.type = VALUE_RANGE, .range = range};
        return STATUS_OK;
    }
    struct value *items;
    uint32_t n_items;
    TRY(jinja_value_items(r, v, &items, &n_items));
    TRY(jinja_charge(r, (size_t)n * sizeof(struct value)));
    TRY(jinja_value_list(r, v.type == VALUE_TUPLE ? VALUE_TUPLE : VALUE_LIST, n, out));
    for (uint32_t i = 0; i < n; i++)
        out->list->items[i] = items[start + step * i];
    return STATUS_OK;
}
