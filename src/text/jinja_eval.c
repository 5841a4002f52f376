/* Evaluates expressions. */
#include "base/checked.h"
#include "text/jinja.h"

#include <stdio.h>
#include <string.h>

static enum status eval_name(struct render *r, const struct node *n, struct scope *scope,
                             struct value *out)
{
    for (const struct scope *s = scope; s; s = s->parent) {
        const struct value *v = jinja_scope_find(s, n->name);
        if (v) {
            *out = *v;
            return STATUS_OK;
        }
    }
    const struct function *global = jinja_find_global(n->name);
    if (global) {
        *out = (struct value){.type = VALUE_FUNCTION, .function = global};
        return STATUS_OK;
    }
    return jinja_value_undefined_name(r, n->name, out);
}

static enum status eval_items(struct render *r, const struct node *n, struct scope *scope,
                              struct value *out)
{
    TRY(jinja_value_list(r, n->type == NODE_LIST ? VALUE_LIST : VALUE_TUPLE, n->items.n, out));
    for (uint32_t i = 0; i < n->items.n; i++)
        TRY(jinja_eval(r, n->items.at[i], scope, &out->list->items[i]));
    return STATUS_OK;
}

static enum status eval_dict(struct render *r, const struct node *n, struct scope *scope,
                             struct value *out)
{
    struct value key, v;

    TRY(jinja_value_dict(r, n->items.n / 2, out));
    for (uint32_t i = 0; i + 1 < n->items.n; i += 2) {
        TRY(jinja_eval(r, n->items.at[i], scope, &key));
        TRY(jinja_eval(r, n->items.at[i + 1], scope, &v));
        TRY(jinja_dict_set(r, out->dict, key, v));
    }
    return STATUS_OK;
}

/* ---- attributes and items ---- */

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
        v.type != VALUE_RANGE) /* as any key that is not there */
        return jinja_value_missing(r, v, jinja_value_none(), out);
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
    struct value *items;
    uint32_t n_items;
    TRY(jinja_value_items(r, v, &items, &n_items));
    TRY(jinja_charge(r, (size_t)n * sizeof(struct value)));
    TRY(jinja_value_list(r, v.type == VALUE_TUPLE ? VALUE_TUPLE : VALUE_LIST, n, out));
    for (uint32_t i = 0; i < n; i++)
        out->list->items[i] = items[start + step * i];
    return STATUS_OK;
}

static enum status eval_optional(struct render *r, const struct node *n, struct scope *scope,
                                 struct value *out)
{
    *out = jinja_value_none();
    return n ? jinja_eval(r, n, scope, out) : STATUS_OK;
}

static enum status eval_item(struct render *r, const struct node *n, struct scope *scope,
                             struct value *out)
{
    struct value v, key, start, stop, step;

    TRY(jinja_eval(r, n->a, scope, &v));
    if (n->b->type == NODE_SLICE) {
        TRY(eval_optional(r, n->b->a, scope, &start));
        TRY(eval_optional(r, n->b->b, scope, &stop));
        TRY(eval_optional(r, n->b->c, scope, &step));
        return jinja_slice(r, v, start, stop, step, out);
    }
    TRY(jinja_eval(r, n->b, scope, &key));
    return jinja_get_item(r, v, key, out);
}

/* ---- calls ---- */

enum status jinja_eval_arguments(struct render *r, const struct arguments *a, struct scope *scope,
                                 struct call *out)
{
    struct value star = jinja_value_none(), star_star = jinja_value_none(), *more = NULL;
    uint32_t n_more = 0, n_named = a->keyword.n;

    if (a->star) {
        TRY(jinja_eval(r, a->star, scope, &star));
        TRY(jinja_value_items(r, star, &more, &n_more));
    }
    if (a->star_star) {
        TRY(jinja_eval(r, a->star_star, scope, &star_star));
        if (star_star.type != VALUE_DICT)
            return jinja_fail(r, "argument after ** must be a mapping, not %s",
                              jinja_value_type_name(star_star));
        n_named += star_star.dict->n;
    }
    *out = (struct call){.n_positional = a->positional.n + n_more, .n_keyword = n_named};
    out->positional = jinja_alloc(r, out->n_positional, sizeof *out->positional);
    out->keyword = jinja_alloc(r, n_named, sizeof *out->keyword);
    out->names = jinja_alloc(r, n_named, sizeof *out->names);
    if (!out->positional || !out->keyword || !out->names)
        return STATUS_BAD_TEMPLATE;
    for (uint32_t i = 0; i < a->positional.n; i++)
        TRY(jinja_eval(r, a->positional.at[i], scope, &out->positional[i]));
    for (uint32_t i = 0; i < n_more; i++)
        out->positional[a->positional.n + i] = more[i];
    for (uint32_t i = 0; i < a->keyword.n; i++) {
        out->names[i] = a->names[i];
        TRY(jinja_eval(r, a->keyword.at[i], scope, &out->keyword[i]));
    }
    for (uint32_t i = a->keyword.n; i < n_named; i++) {
        struct value key = star_star.dict->keys[i - a->keyword.n];
        if (key.type != VALUE_STRING)
            return jinja_fail(r, "keywords must be strings");
        char *name = jinja_alloc(r, (size_t)key.text->len + 1, 1);
        if (!name)
            return STATUS_BAD_TEMPLATE;
        memcpy(name, key.text->bytes, key.text->len);
        out->names[i] = name;
        out->keyword[i] = star_star.dict->values[i - a->keyword.n];
    }
    return STATUS_OK;
}

enum status jinja_bind(struct render *r, const char *function, const struct call *call,
                       struct slot *slots, uint32_t n)
{
    if (call->n_positional > n)
        return jinja_fail(r, "%s() takes at most %u arguments, %u were given", function, n,
                          call->n_positional);
    for (uint32_t i = 0; i < n; i++) {
        slots[i].present = i < call->n_positional;
        if (slots[i].present)
            slots[i].value = call->positional[i];
    }
    for (uint32_t k = 0; k < call->n_keyword; k++) {
        uint32_t i = 0;
        while (i < n && strcmp(slots[i].name, call->names[k]))
            i++;
        if (i == n || slots[i].present)
            return jinja_fail(r, "%s() got an unexpected argument '%.100s'", function,
                              call->names[k]);
        slots[i].present = true;
        slots[i].value = call->keyword[k];
    }
    return STATUS_OK;
}

enum status jinja_call(struct render *r, struct value callee, const struct call *call,
                       struct value *out)
{
    switch (callee.type) {
    case VALUE_FUNCTION:
        return callee.function->call(r, jinja_value_none(), call, out);
    case VALUE_METHOD:
        return callee.method->function->call(r, callee.method->self, call, out);
    case VALUE_MACRO:
        return jinja_call_macro(r, callee.macro, call, out);
    case VALUE_LOOP: {
        struct loop *l = callee.loop;
        struct builder captured, *outer = r->out;
        if (!l->node->recursive)
            return jinja_fail(r, "the loop must have the 'recursive' marker to be called");
        if (call->n_positional != 1 || call->n_keyword)
            return jinja_fail(r, "loop() takes one argument");
        TRY(jinja_builder_init(&captured, r, 0));
        r->out = &captured;
        TRY(jinja_run_loop(r, l->node, l->outer, call->positional[0], l->depth0 + 1));
        r->out = outer;
        return jinja_builder_finish(&captured, out);
    }
    default:
        TRY(jinja_value_use(r, callee));
        return jinja_fail(r, "'%s' object is not callable", jinja_value_type_name(callee));
    }
}

static enum status eval_call(struct render *r, const struct node *n, struct scope *scope,
                             struct value *out)
{
    struct value callee;
    struct call call;

    TRY(jinja_eval(r, n->a, scope, &callee));
    TRY(jinja_eval_arguments(r, n->arguments, scope, &call));
    r->line = n->line;
    return jinja_call(r, callee, &call, out);
}

enum status jinja_apply_filter(struct render *r, const char *name, struct value input,
                               const struct call *call, struct value *out)
{
    const struct function *filter = jinja_find_filter(name);

    if (!filter)
        return jinja_fail(r, "there is no filter '%.100s'", name);
    if (input.type == VALUE_UNDEFINED && input.undefined->unsafe)
        return jinja_value_use(r, input);
    return filter->call(r, input, call, out);
}

enum status jinja_apply_test(struct render *r, const char *name, struct value input,
                             const struct call *call, bool *out)
{
    const struct function *test = jinja_find_test(name);
    struct value result;

    if (!test)
        return jinja_fail(r, "there is no test '%.100s'", name);
    TRY(test->call(r, input, call, &result));
    *out = jinja_value_is_true(result);
    return STATUS_OK;
}

static enum status eval_filter(struct render *r, const struct node *n, struct scope *scope,
                               struct value *out)
{
    struct value input;
    struct call call;

    TRY(jinja_eval(r, n->a, scope, &input));
    TRY(jinja_eval_arguments(r, n->arguments, scope, &call));
    r->line = n->line;
    return jinja_apply_filter(r, n->name, input, &call, out);
}

static enum status eval_test(struct render *r, const struct node *n, struct scope *scope,
                             struct value *out)
{
    struct value input;
    struct call call;
    bool result;

    TRY(jinja_eval(r, n->a, scope, &input));
    TRY(jinja_eval_arguments(r, n->arguments, scope, &call));
    r->line = n->line;
    TRY(jinja_apply_test(r, n->name, input, &call, &result));
    *out = jinja_value_bool(result);
    return STATUS_OK;
}

/* ---- operators ---- */

static enum status eval_concat(struct render *r, const struct node *n, struct scope *scope,
                               struct value *out)
{
    struct builder b;
    struct value v;

    TRY(jinja_builder_init(&b, r, 0));
    for (uint32_t i = 0; i < n->items.n; i++) {
        TRY(jinja_eval(r, n->items.at[i], scope, &v));
        TRY(jinja_print_str(&b, v));
    }
    return jinja_builder_finish(&b, out);
}

static enum status eval_compare(struct render *r, const struct node *n, struct scope *scope,
                                struct value *out)
{
    struct value left, right;
    bool holds = true;

    TRY(jinja_eval(r, n->a, scope, &left));
    for (uint32_t i = 0; i < n->items.n && holds; i++) {
        TRY(jinja_eval(r, n->items.at[i]->a, scope, &right));
        TRY(jinja_compare(r, (enum compare_op)n->items.at[i]->op, left, right, &holds));
        left = right;
    }
    *out = jinja_value_bool(holds);
    return STATUS_OK;
}

static enum status eval_sign(struct render *r, const struct node *n, struct scope *scope,
                             struct value *out)
{
    struct value v;

    TRY(jinja_eval(r, n->a, scope, &v));
    TRY(jinja_value_use(r, v));
    if (!jinja_value_is_number(v))
        return jinja_fail(r, "bad operand type for unary %c: '%s'", n->type == NODE_NEG ? '-' : '+',
                          jinja_value_type_name(v));
    if (v.type == VALUE_FLOAT) {
        *out = jinja_value_float(n->type == NODE_NEG ? -v.number : v.number);
        return STATUS_OK;
    }
    if (n->type == NODE_NEG)
        return jinja_binary(r, '-', jinja_value_int(0), v, out);
    *out = jinja_value_int(v.type == VALUE_BOOL ? v.boolean : v.integer);
    return STATUS_OK;
}

static enum status eval_condition(struct render *r, const struct node *n, struct scope *scope,
                                  struct value *out)
{
    struct value test;

    TRY(jinja_eval(r, n->b, scope, &test));
    if (jinja_value_is_true(test))
        return jinja_eval(r, n->a, scope, out);
    if (n->c)
        return jinja_eval(r, n->c, scope, out);
    return jinja_value_undefined(
        r, "the inline if-expression evaluated to false and no else section was defined.", out);
}

static enum status eval_node(struct render *r, const struct node *n, struct scope *scope,
                             struct value *out)
{
    struct value a, b;

    switch (n->type) {
    case NODE_CONST:
        *out = *n->value;
        return STATUS_OK;
    case NODE_NAME:
        return eval_name(r, n, scope, out);
    case NODE_LIST:
    case NODE_TUPLE:
        return eval_items(r, n, scope, out);
    case NODE_DICT:
        return eval_dict(r, n, scope, out);
    case NODE_GETATTR:
        TRY(jinja_eval(r, n->a, scope, &a));
        r->line = n->line;
        return jinja_get_attribute(r, a, n->name, strlen(n->name), out);
    case NODE_GETITEM:
        return eval_item(r, n, scope, out);
    case NODE_CALL:
        return eval_call(r, n, scope, out);
    case NODE_FILTER:
        return eval_filter(r, n, scope, out);
    case NODE_TEST:
        return eval_test(r, n, scope, out);
    case NODE_NOT:
        TRY(jinja_eval(r, n->a, scope, &a));
        *out = jinja_value_bool(!jinja_value_is_true(a));
        return STATUS_OK;
    case NODE_NEG:
    case NODE_POS:
        return eval_sign(r, n, scope, out);
    case NODE_BINARY:
        TRY(jinja_eval(r, n->a, scope, &a));
        TRY(jinja_eval(r, n->b, scope, &b));
        r->line = n->line;
        return jinja_binary(r, n->op, a, b, out);
    case NODE_CONCAT:
        return eval_concat(r, n, scope, out);
    case NODE_COMPARE:
        return eval_compare(r, n, scope, out);
    case NODE_AND:
    case NODE_OR:
        TRY(jinja_eval(r, n->a, scope, out));
        return jinja_value_is_true(*out) == (n->type == NODE_AND) ? jinja_eval(r, n->b, scope, out)
                                                                  : STATUS_OK;
    case NODE_COND:
        return eval_condition(r, n, scope, out);
    default:
        return jinja_fail(r, "a slice stands where it means nothing");
    }
}

enum status jinja_eval(struct render *r, const struct node *n, struct scope *scope,
                       struct value *out)
{
    TRY(jinja_enter(r));
    r->line = n->line;
    TRY(eval_node(r, n, scope, out));
    jinja_leave(r);
    return STATUS_OK;
}
