/* Values: making them, their truth, equality, length and items, and JSON turned into them. */
#include "base/checked.h"
#include "text/jinja.h"
#include "text/unicode.h"

#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- limits ---- */

void *jinja_alloc(struct render *r, size_t n, size_t size)
{
    uint64_t bytes;

    if (!mul_u64(n, size, &bytes) || bytes > JINJA_MAX_MEMORY_BYTES ||
        r->arena.total_bytes + bytes > JINJA_MAX_MEMORY_BYTES) {
        jinja_fail(r, "the template needs more than %u MiB", JINJA_MAX_MEMORY_BYTES >> 20);
        return NULL;
    }
    return arena_alloc(&r->arena, n, size);
}

enum status jinja_fail(struct render *r, const char *format, ...)
{
    char text[400];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return fail(STATUS_BAD_TEMPLATE, "chat template, line %u: %s", r->line, text);
}

enum status jinja_charge(struct render *r, size_t bytes)
{
    r->steps += 1 + bytes / JINJA_STEP_BYTES;
    if (r->steps > JINJA_MAX_STEPS)
        return jinja_fail(r, "the template takes more than %u steps", JINJA_MAX_STEPS);
    return STATUS_OK;
}

enum status jinja_enter(struct render *r)
{
    TRY(jinja_charge(r, 0));
    if (r->depth >= JINJA_MAX_DEPTH)
        return jinja_fail(r, "nested more than %d deep", JINJA_MAX_DEPTH);
    r->depth++;
    return STATUS_OK;
}

void jinja_leave(struct render *r)
{
    r->depth--;
}

/* ---- making ---- */

struct value jinja_value_none(void)
{
    return (struct value){.type = VALUE_NONE};
}

struct value jinja_value_bool(bool b)
{
    return (struct value){.type = VALUE_BOOL, .boolean = b};
}

struct value jinja_value_int(int64_t i)
{
    return (struct value){.type = VALUE_INT, .integer = i};
}

struct value jinja_value_float(double d)
{
    return (struct value){.type = VALUE_FLOAT, .number = d};
}

static enum status new_undefined(struct render *r, struct undefined u, struct value *out)
{
    struct undefined *copy = jinja_alloc(r, 1, sizeof *copy);

    if (!copy)
        return STATUS_BAD_TEMPLATE;
    *copy = u;
    *out = (struct value){.type = VALUE_UNDEFINED, .undefined = copy};
    return STATUS_OK;
}

enum status jinja_value_undefined(struct render *r, const char *hint, struct value *out)
{
    return new_undefined(r, (struct undefined){.hint = hint}, out);
}

enum status jinja_value_missing(struct render *r, struct value object, struct value name,
                                struct value *out)
{
    return new_undefined(
        r, (struct undefined){.of_object = true, .object = object.type, .name = name}, out);
}

enum status jinja_value_undefined_name(struct render *r, const char *name, struct value *out)
{
    struct value text;

    TRY(jinja_value_string(r, name, strlen(name), true, &text));
    return new_undefined(r, (struct undefined){.name = text}, out);
}

enum status jinja_value_text(struct render *r, struct text t, struct value *out)
{
    struct text *copy = jinja_alloc(r, 1, sizeof *copy);

    if (!copy)
        return STATUS_BAD_TEMPLATE;
    *copy = t;
    *out = (struct value){.type = VALUE_STRING, .text = copy};
    return STATUS_OK;
}

/* The bytes are not copied: they outlive the rendering. */
enum status jinja_value_string(struct render *r, const char *bytes, size_t len, bool from_template,
                               struct value *out)
{
    if (len > JINJA_MAX_OUTPUT_BYTES)
        return jinja_fail(r, "a string of %zu bytes is too long", len);
    return jinja_value_text(
        r, (struct text){.bytes = bytes, .len = (uint32_t)len, .from_template = from_template},
        out);
}

enum status jinja_value_list(struct render *r, enum value_type type, uint32_t n, struct value *out)
{
    struct list *list = jinja_alloc(r, 1, sizeof *list);

    if (!list)
        return STATUS_BAD_TEMPLATE;
    list->items = jinja_alloc(r, n, sizeof *list->items);
    if (!list->items)
        return STATUS_BAD_TEMPLATE;
    list->n = n;
    *out = (struct value){.type = type, .list = list};
    return STATUS_OK;
}

/* ---- looking at values ---- */

enum status jinja_value_use(struct render *r, struct value v)
{
    const struct undefined *u = v.undefined;

    if (v.type != VALUE_UNDEFINED)
        return STATUS_OK;
    if (u->hint)
        return jinja_fail(r, "%s", u->hint);
    if (u->of_object && u->name.type == VALUE_INT)
        return jinja_fail(r, "%s has no element %lld", jinja_type_object_name(u->object),
                          (long long)u->name.integer);
    if (u->of_object && u->name.type != VALUE_STRING)
        return jinja_fail(r, "%s has no such element", jinja_type_object_name(u->object));
    int len = (int)MIN(u->name.text->len, 100u);
    if (!u->of_object)
        return jinja_fail(r, "'%.*s' is undefined", len, u->name.text->bytes);
    return jinja_fail(r, "'%s' has no attribute '%.*s'", jinja_type_object_name(u->object), len,
                      u->name.text->bytes);
}

bool jinja_value_is_true(struct value v)
{
    switch (v.type) {
    case VALUE_UNDEFINED:
    case VALUE_NONE:
        return false;
    case VALUE_BOOL:
        return v.boolean;
    case VALUE_INT:
        return v.integer != 0;
    case VALUE_FLOAT:
        return v.number != 0;
    case VALUE_STRING:
        return v.text->len > 0;
    case VALUE_LIST:
    case VALUE_TUPLE:
    case VALUE_VIEW:
        return v.list->n > 0;
    case VALUE_DICT:
        return v.dict->n > 0;
    case VALUE_RANGE:
        return v.range->n > 0;
    case VALUE_LOOP:
        return v.loop->n > 0;
    default:
        return true;
    }
}

bool jinja_value_is_number(struct value v)
{
    return v.type == VALUE_BOOL || v.type == VALUE_INT || v.type == VALUE_FLOAT;
}

double jinja_value_number(struct value v)
{
    return v.type == VALUE_BOOL ? v.boolean : v.type == VALUE_INT ? (double)v.integer : v.number;
}

bool jinja_value_is_text(struct value v, const char *s)
{
    return v.type == VALUE_STRING && v.text->len == strlen(s) &&
           !memcmp(v.text->bytes, s, v.text->len);
}

const char *jinja_value_type_name(struct value v)
{
    static const char *const names[] = {
        [VALUE_UNDEFINED] = "Undefined", [VALUE_NONE] = "NoneType",
        [VALUE_BOOL] = "bool",           [VALUE_INT] = "int",
        [VALUE_FLOAT] = "float",         [VALUE_STRING] = "str",
        [VALUE_LIST] = "list",           [VALUE_TUPLE] = "tuple",
        [VALUE_DICT] = "dict",           [VALUE_GENERATOR] = "generator",
        [VALUE_RANGE] = "range",         [VALUE_NAMESPACE] = "Namespace",
        [VALUE_LOOP] = "LoopContext",    [VALUE_MACRO] = "Macro",
        [VALUE_FUNCTION] = "function",   [VALUE_METHOD] = "builtin_function_or_method",
    };

    return v.type == VALUE_VIEW ? v.list->view : names[v.type];
}

const char *jinja_type_object_name(enum value_type t)
{
    static const char *const names[] = {
        [VALUE_UNDEFINED] = "undefined", [VALUE_NONE] = "None",
        [VALUE_BOOL] = "bool object",    [VALUE_INT] = "int object",
        [VALUE_FLOAT] = "float object",  [VALUE_STRING] = "str object",
        [VALUE_LIST] = "list object",    [VALUE_TUPLE] = "tuple object",
        [VALUE_DICT] = "dict object",    [VALUE_VIEW] = "dict view",
        [VALUE_GENERATOR] = "generator", [VALUE_RANGE] = "range object",
        [VALUE_NAMESPACE] = "namespace", [VALUE_LOOP] = "loop",
        [VALUE_MACRO] = "macro",         [VALUE_FUNCTION] = "function",
        [VALUE_METHOD] = "method",
    };

    return names[t];
}

/* What one comparison may cost: values built by a hostile template can be deep, or share parts so
 * that walking them takes for ever. Beyond it they count as different. */
struct comparison {
    uint32_t depth, steps;
};

static bool equal(struct value a, struct value b, struct comparison *c);

static bool lists_equal(const struct list *a, const struct list *b, struct comparison *c)
{
    if (a->n != b->n)
        return false;
    for (uint32_t i = 0; i < a->n; i++)
        if (!equal(a->items[i], b->items[i], c))
            return false;
    return true;
}

static bool dicts_equal(const struct dict *a, const struct dict *b, struct comparison *c)
{
    if (a->n != b->n)
        return false;
    for (uint32_t i = 0; i < a->n; i++) {
        const struct value *other = jinja_dict_find(b, a->keys[i]);
        if (!other || !equal(a->values[i], *other, c))
            return false;
    }
    return true;
}

static bool ranges_equal(const struct range *a, const struct range *b)
{
    return a->n == b->n &&
           (a->n == 0 || (a->start == b->start && (a->n == 1 || a->step == b->step)));
}

static bool equal(struct value a, struct value b, struct comparison *c)
{
    if (jinja_value_is_number(a) && jinja_value_is_number(b)) {
        if (a.type != VALUE_FLOAT && b.type != VALUE_FLOAT)
            return (a.type == VALUE_INT ? a.integer : a.boolean) ==
                   (b.type == VALUE_INT ? b.integer : b.boolean);
        return jinja_value_number(a) == jinja_value_number(b);
    }
    if (a.type != b.type)
        return false;
    bool same = false;
    if (c->steps == 0 || c->depth == 0)
        return false;
    c->steps--;
    c->depth--;
    switch (a.type) {
    case VALUE_UNDEFINED:
    case VALUE_NONE:
        same = true;
        break;
    case VALUE_STRING:
        same = a.text == b.text ||
               (a.text->len == b.text->len && !memcmp(a.text->bytes, b.text->bytes, a.text->len));
        break;
    case VALUE_LIST:
    case VALUE_TUPLE:
        same = a.list == b.list || lists_equal(a.list, b.list, c);
        break;
    case VALUE_DICT:
        same = a.dict == b.dict || dicts_equal(a.dict, b.dict, c);
        break;
    case VALUE_RANGE:
        same = ranges_equal(a.range, b.range);
        break;
    default:
        same = a.list == b.list; /* the same thing */
    }
    c->depth++;
    return same;
}

bool jinja_value_equal(struct value a, struct value b)
{
    struct comparison c = {.depth = JINJA_MAX_DEPTH, .steps = JINJA_MAX_STEPS / 4};

    return equal(a, b, &c);
}

enum status jinja_value_length(struct render *r, struct value v, uint32_t *out)
{
    switch (v.type) {
    case VALUE_UNDEFINED:
        *out = 0;
        return STATUS_OK;
    case VALUE_STRING:
        TRY(jinja_charge(r, v.text->len));
        *out = jinja_text_points(v.text);
        return STATUS_OK;
    case VALUE_LIST:
    case VALUE_TUPLE:
    case VALUE_VIEW:
        *out = v.list->n;
        return STATUS_OK;
    case VALUE_DICT:
        *out = v.dict->n;
        return STATUS_OK;
    case VALUE_RANGE:
        *out = v.range->n;
        return STATUS_OK;
    case VALUE_LOOP:
        *out = v.loop->n;
        return STATUS_OK;
    default:
        return jinja_fail(r, "object of type '%s' has no len()", jinja_value_type_name(v));
    }
}

bool jinja_value_is_iterable(struct value v)
{
    switch (v.type) {
    case VALUE_UNDEFINED:
    case VALUE_STRING:
    case VALUE_LIST:
    case VALUE_TUPLE:
    case VALUE_VIEW:
    case VALUE_GENERATOR:
    case VALUE_DICT:
    case VALUE_RANGE:
    case VALUE_LOOP:
        return true;
    default:
        return false;
    }
}

static enum status text_items(struct render *r, const struct text *t, struct value **items,
                              uint32_t *n)
{
    uint32_t count = jinja_text_points(t), at = 0, point;

    TRY(jinja_charge(r, t->len));
    *items = jinja_alloc(r, count, sizeof **items);
    if (!*items)
        return STATUS_BAD_TEMPLATE;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t step = utf8_decode(t->bytes + at, t->len - at, &point);
        step = step ? step : 1;
        TRY(jinja_text_slice(r, t, at, at + step, &(*items)[i]));
        at += step;
    }
    *n = count;
    return STATUS_OK;
}

enum status jinja_value_items(struct render *r, struct value v, struct value **items, uint32_t *n)
{
    switch (v.type) {
    case VALUE_UNDEFINED:
        TRY(v.undefined->unsafe ? jinja_value_use(r, v) : STATUS_OK);
        *items = NULL;
        *n = 0;
        return STATUS_OK;
    case VALUE_STRING:
        return text_items(r, v.text, items, n);
    case VALUE_LIST:
    case VALUE_TUPLE:
    case VALUE_VIEW:
        *items = v.list->items;
        *n = v.list->n;
        return STATUS_OK;
    case VALUE_GENERATOR:
        *items = v.list->items + v.list->position;
        *n = v.list->n - v.list->position;
        v.list->position = v.list->n;
        return STATUS_OK;
    case VALUE_DICT:
        *items = v.dict->keys;
        *n = v.dict->n;
        return STATUS_OK;
    case VALUE_RANGE:
        *items = jinja_alloc(r, v.range->n, sizeof **items);
        if (!*items)
            return STATUS_BAD_TEMPLATE;
        for (uint32_t i = 0; i < v.range->n; i++)
            (*items)[i] = jinja_value_int(v.range->start + v.range->step * i);
        *n = v.range->n;
        return STATUS_OK;
    default:
        return jinja_fail(r, "'%s' object is not iterable", jinja_value_type_name(v));
    }
}
