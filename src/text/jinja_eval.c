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
