/* Methods of Python's list, tuple and dict, and of loops (str: jinja_methods_str.c). Those that
 * change their object are the sandbox's to refuse. */
#include "base/checked.h"
#include "text/jinja.h"
#include "text/unicode.h"

#include <string.h>

#define METHOD(name)                                                                               \
    static enum status name(struct render *r, struct value self, const struct call *call,          \
                            struct value *out)

static enum status no_arguments(struct render *r, const char *name, const struct call *call)
{
    return jinja_bind(r, name, call, NULL, 0);
}

/* ---- list and tuple ---- */

METHOD(list_index)
{
    struct slot slots[] = {{.name = "value"}};

    TRY(jinja_bind(r, "index", call, slots, 1));
    for (uint32_t i = 0; slots[0].present && i < self.list->n; i++) {
        TRY(jinja_charge(r, 0));
        if (jinja_value_equal(self.list->items[i], slots[0].value)) {
            *out = jinja_value_int(i);
            return STATUS_OK;
        }
    }
    return jinja_fail(r, "the value is not in the list");
}

METHOD(list_count)
{
    struct slot slots[] = {{.name = "value"}};
    int64_t n = 0;

    TRY(jinja_bind(r, "count", call, slots, 1));
    for (uint32_t i = 0; slots[0].present && i < self.list->n; i++) {
        TRY(jinja_charge(r, 0));
        n += jinja_value_equal(self.list->items[i], slots[0].value);
    }
    *out = jinja_value_int(n);
    return STATUS_OK;
}

/* Nothing changes a list or a dict, so it is its own copy. */
METHOD(copy)
{
    TRY(no_arguments(r, "copy", call));
    *out = self;
    return STATUS_OK;
}

/* ---- dict ---- */

METHOD(dict_get)
{
    struct slot slots[] = {{.name = "key"}, {.name = "default"}};

    TRY(jinja_bind(r, "get", call, slots, 2));
    if (!slots[0].present)
        return jinja_fail(r, "get() wants an argument");
    const struct value *v = jinja_dict_find(self.dict, slots[0].value);
    *out = v ? *v : slots[1].present ? slots[1].value : jinja_value_none();
    return STATUS_OK;
}

static enum status view(struct render *r, const struct dict *d, const char *name,
                        const struct call *call, struct value *out)
{
    bool keys = name[5] == 'k', values = name[5] == 'v';

    TRY(no_arguments(r, name + 5, call));
    TRY(jinja_charge(r, (size_t)d->n * sizeof(struct value)));
    TRY(jinja_value_list(r, VALUE_VIEW, d->n, out));
    out->list->view = name;
    for (uint32_t i = 0; i < d->n; i++) {
        struct value *item = &out->list->items[i];
        if (keys || values) {
            *item = keys ? d->keys[i] : d->values[i];
            continue;
        }
        TRY(jinja_value_list(r, VALUE_TUPLE, 2, item));
        item->list->items[0] = d->keys[i];
        item->list->items[1] = d->values[i];
    }
    return STATUS_OK;
}

METHOD(dict_keys)
{
    return view(r, self.dict, "dict_keys", call, out);
}

METHOD(dict_values)
{
    return view(r, self.dict, "dict_values", call, out);
}

METHOD(dict_items)
{
    return view(r, self.dict, "dict_items", call, out);
}

/* ---- loop ---- */

METHOD(loop_cycle)
{
    if (call->n_positional == 0)
        return jinja_fail(r, "no items for cycling given");
    *out = call->positional[self.loop->index0 % call->n_positional];
    return STATUS_OK;
}

METHOD(loop_changed)
{
    struct value now;

    TRY(jinja_value_list(r, VALUE_TUPLE, call->n_positional, &now));
    memcpy(now.list->items, call->positional, call->n_positional * sizeof(struct value));
    *out = jinja_value_bool(!self.loop->has_changed ||
                            !jinja_value_equal(self.loop->last_changed, now));
    self.loop->has_changed = true;
    self.loop->last_changed = now;
    return STATUS_OK;
}

/* ---- tables ---- */

static const struct function list_methods[] = {
    {"copy", copy}, {"count", list_count}, {"index", list_index}, {NULL, NULL}};
static const struct function tuple_methods[] = {
    {"count", list_count}, {"index", list_index}, {NULL, NULL}};
static const struct function dict_methods[] = {{"copy", copy},          {"get", dict_get},
                                               {"items", dict_items},   {"keys", dict_keys},
                                               {"values", dict_values}, {NULL, NULL}};
static const struct function loop_methods[] = {
    {"changed", loop_changed}, {"cycle", loop_cycle}, {NULL, NULL}};

const struct function *jinja_find_method(enum value_type type, const char *name, size_t len)
{
    const struct function *f = type == VALUE_STRING  ? jinja_str_methods
                               : type == VALUE_LIST  ? list_methods
                               : type == VALUE_TUPLE ? tuple_methods
                               : type == VALUE_DICT  ? dict_methods
                               : type == VALUE_LOOP  ? loop_methods
                                                     : NULL;

    for (; f && f->name; f++)
        if (strlen(f->name) == len && !memcmp(f->name, name, len))
            return f;
    return NULL;
}

bool jinja_is_mutation(enum value_type type, const char *name, size_t len)
{
    static const char *const of_list[] = {"append", "clear",   "extend", "insert", "pop",
                                          "remove", "reverse", "sort",   NULL};
    static const char *const of_dict[] = {"clear", "pop", "popitem", "setdefault", "update", NULL};
    const char *const *names = type == VALUE_LIST ? of_list : type == VALUE_DICT ? of_dict : NULL;

    for (; names && *names; names++)
        if (strlen(*names) == len && !memcmp(*names, name, len))
            return true;
    return false;
}
