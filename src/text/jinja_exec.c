/* Runs statements. A name that is set belongs to the innermost scope: a turn of a loop, a macro, a
 * block; `if` has none of its own. */
#include "base/checked.h"
#include "text/internal.h"
#include "text/jinja.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct value *jinja_scope_find(const struct scope *s, const char *name)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (s->variables[i].name == name)
            return &s->variables[i].value;
    return NULL;
}

enum status jinja_scope_set(struct render *r, struct scope *s, const char *name, struct value v)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (s->variables[i].name == name) {
            s->variables[i].value = v;
            return STATUS_OK;
        }
    if (s->n == s->capacity) {
        uint32_t capacity = s->capacity ? 2 * s->capacity : 4;
        struct variable *variables = jinja_alloc(r, capacity, sizeof *variables);
        if (!variables)
            return STATUS_BAD_TEMPLATE;
        if (s->n)
            memcpy(variables, s->variables, s->n * sizeof *variables);
        s->variables = variables;
        s->capacity = capacity;
    }
    s->variables[s->n++] = (struct variable){name, v};
    return STATUS_OK;
}

static struct scope *new_scope(struct render *r, struct scope *parent)
{
    struct scope *s = jinja_alloc(r, 1, sizeof *s);

    if (s)
        s->parent = parent;
    return s;
}

/* ---- assignment ---- */

static enum status assign_attribute(struct render *r, const struct node *target,
                                    struct scope *scope, struct value v)
{
    const struct value *space = NULL;
    struct value name;

    for (const struct scope *s = scope; s && !space; s = s->parent)
        space = jinja_scope_find(s, target->name);
    if (!space || space->type != VALUE_NAMESPACE)
        return jinja_fail(r, "cannot assign attribute on non-namespace object");
    TRY(jinja_value_string(r, target->attribute, strlen(target->attribute), true, &name));
    return jinja_dict_set(r, space->dict, name, v);
}

enum status jinja_assign(struct render *r, const struct node *target, struct scope *scope,
                         struct value v)
{
    struct value *items;
    uint32_t n;

    if (target->type == NODE_NAME)
        return jinja_scope_set(r, scope, target->name, v);
    if (target->type == NODE_NSREF)
        return assign_attribute(r, target, scope, v);
    TRY(jinja_value_use(r, v));
    TRY(jinja_value_items(r, v, &items, &n));
    if (n != target->items.n)
        return jinja_fail(r, "%s values to unpack (expected %u, got %u)",
                          n < target->items.n ? "not enough" : "too many", target->items.n, n);
    TRY(jinja_enter(r));
    for (uint32_t i = 0; i < n; i++)
        TRY(jinja_assign(r, target->items.at[i], scope, items[i]));
    jinja_leave(r);
    return STATUS_OK;
}

/* ---- blocks whose output is caught ---- */

static enum status capture(struct render *r, const struct node_list *body, struct scope *scope,
                           struct value *out)
{
    struct builder captured, *outer = r->out;
    enum flow flow;

    TRY(jinja_builder_init(&captured, r, 0));
    r->out = &captured;
    TRY(jinja_exec(r, body, scope, &flow));
    r->out = outer;
    return jinja_builder_finish(&captured, out);
}

/* A chain of filters over what a block wrote. */
static enum status filter_block(struct render *r, const struct node *n, struct scope *scope,
                                struct value input, struct value *out)
{
    struct call call;

    if (!n) {
        *out = input;
        return STATUS_OK;
    }
    TRY(jinja_enter(r));
    TRY(filter_block(r, n->a, scope, input, &input));
    jinja_leave(r);
    TRY(jinja_eval_arguments(r, n->arguments, scope, &call));
    r->line = n->line;
    return jinja_apply_filter(r, n->name, input, &call, out);
}

static enum status exec_captured(struct render *r, const struct node *n, struct scope *scope)
{
    struct scope *inner = new_scope(r, scope);
    struct value v;

    if (!inner)
        return STATUS_BAD_TEMPLATE;
    TRY(capture(r, &n->body, inner, &v));
    if (n->type == NODE_SET_BLOCK) {
        TRY(filter_block(r, n->b, inner, v, &v));
        return jinja_assign(r, n->a, scope, v);
    }
    TRY(filter_block(r, n->a, inner, v, &v));
    return jinja_print_str(r->out, v);
}

/* ---- macros ---- */

static enum status define_macro(struct render *r, const struct macro *m, struct scope *scope,
                                struct value *out)
{
    struct macro_value *v = jinja_alloc(r, 1, sizeof *v);

    if (!v)
        return STATUS_BAD_TEMPLATE;
    *v = (struct macro_value){m, scope};
    *out = (struct value){.type = VALUE_MACRO, .macro = v};
    return STATUS_OK;
}

static const struct value *take_keyword(const struct call *call, bool *taken, const char *name)
{
    for (uint32_t k = 0; k < call->n_keyword; k++)
        if (!taken[k] && !strcmp(call->names[k], name)) {
            taken[k] = true;
            return &call->keyword[k];
        }
    return NULL;
}

static enum status bind_parameters(struct render *r, const struct macro *m, const struct call *call,
                                   bool *taken, struct scope *scope)
{
    for (uint32_t i = 0; i < m->n_parameters; i++) {
        struct value v;
        const struct value *given = i < call->n_positional
                                        ? &call->positional[i]
                                        : take_keyword(call, taken, m->parameters[i]);
        if (given) {
            v = *given;
        } else if (m->defaults[i]) {
            TRY(jinja_eval(r, m->defaults[i], scope, &v));
        } else {
            size_t size = strlen(m->parameters[i]) + 40;
            char *hint = jinja_alloc(r, size, 1);
            if (!hint)
                return STATUS_BAD_TEMPLATE;
            snprintf(hint, size, "parameter '%s' was not provided", m->parameters[i]);
            TRY(jinja_value_undefined(r, hint, &v));
        }
        TRY(jinja_scope_set(r, scope, m->parameters[i], v));
    }
    return STATUS_OK;
}

static enum status set_if_known(struct render *r, struct scope *scope, const char *name,
                                struct value v)
{
    const char *interned = jinja_find_name(r->t, name, strlen(name));

    return interned ? jinja_scope_set(r, scope, interned, v) : STATUS_OK;
}

/* varargs, kwargs and caller exist only in macros that mention them; others refuse what would go
 * there. */
static enum status bind_rest(struct render *r, const struct macro *m, const struct call *call,
                             bool *taken, struct scope *scope)
{
    struct value v, key;

    if (m->uses_caller && !jinja_scope_find(scope, jinja_find_name(r->t, "caller", 6))) {
        const struct value *caller = take_keyword(call, taken, "caller");
        if (caller)
            v = *caller;
        else
            TRY(jinja_value_undefined(r, "No caller defined", &v));
        TRY(set_if_known(r, scope, "caller", v));
    }
    if (m->uses_kwargs) {
        TRY(jinja_value_dict(r, call->n_keyword, &v));
        for (uint32_t k = 0; k < call->n_keyword; k++)
            if (!taken[k]) {
                TRY(jinja_value_string(r, call->names[k], strlen(call->names[k]), true, &key));
                TRY(jinja_dict_set(r, v.dict, key, call->keyword[k]));
            }
        TRY(set_if_known(r, scope, "kwargs", v));
    } else {
        for (uint32_t k = 0; k < call->n_keyword; k++)
            if (!taken[k])
                return jinja_fail(r, "macro '%s' takes no keyword argument '%.100s'", m->name,
                                  call->names[k]);
    }
    uint32_t n = call->n_positional > m->n_parameters ? call->n_positional - m->n_parameters : 0;
    if (m->uses_varargs) {
        TRY(jinja_value_list(r, VALUE_TUPLE, n, &v));
        for (uint32_t i = 0; i < n; i++)
            v.list->items[i] = call->positional[m->n_parameters + i];
        TRY(set_if_known(r, scope, "varargs", v));
    } else if (n > 0) {
        return jinja_fail(r, "macro '%s' takes not more than %u argument(s)", m->name,
                          m->n_parameters);
    }
    return STATUS_OK;
}

enum status jinja_call_macro(struct render *r, const struct macro_value *m, const struct call *call,
                             struct value *out)
{
    struct scope *scope = new_scope(r, m->outer);
    bool *taken = jinja_alloc(r, call->n_keyword, sizeof *taken);

    if (!scope || !taken)
        return STATUS_BAD_TEMPLATE;
    TRY(jinja_enter(r));
    TRY(bind_parameters(r, m->macro, call, taken, scope));
    TRY(bind_rest(r, m->macro, call, taken, scope));
    TRY(capture(r, &m->macro->body, scope, out));
    jinja_leave(r);
    return STATUS_OK;
}

static enum status exec_call_block(struct render *r, const struct node *n, struct scope *scope)
{
    struct value callee, caller, result;
    struct call call;

    TRY(jinja_eval(r, n->a->a, scope, &callee));
    TRY(jinja_eval_arguments(r, n->a->arguments, scope, &call));
    TRY(define_macro(r, n->macro, scope, &caller));
    struct call with_caller = call;
    with_caller.n_keyword++;
    with_caller.names = jinja_alloc(r, with_caller.n_keyword, sizeof *with_caller.names);
    with_caller.keyword = jinja_alloc(r, with_caller.n_keyword, sizeof *with_caller.keyword);
    if (!with_caller.names || !with_caller.keyword)
        return STATUS_BAD_TEMPLATE;
    memcpy(with_caller.names, call.names, call.n_keyword * sizeof *call.names);
    memcpy(with_caller.keyword, call.keyword, call.n_keyword * sizeof *call.keyword);
    with_caller.names[call.n_keyword] = "caller";
    with_caller.keyword[call.n_keyword] = caller;
    TRY(jinja_call(r, callee, &with_caller, &result));
    return jinja_print_str(r->out, result);
}

/* ---- loops ---- */

/* The items for which the loop's own `if` holds. */
static enum status jinja_filter_items(struct render *r, const struct node *n, struct scope *outer,
                                      struct value **items, uint32_t *n_items)
{
    struct value *kept = jinja_alloc(r, *n_items, sizeof *kept), test;
    uint32_t n_kept = 0;

    if (!kept)
        return STATUS_BAD_TEMPLATE;
    for (uint32_t i = 0; i < *n_items; i++) {
        struct scope *scope = new_scope(r, outer);
        if (!scope)
            return STATUS_BAD_TEMPLATE;
        TRY(jinja_assign(r, n->a, scope, (*items)[i]));
        TRY(jinja_eval(r, n->c, scope, &test));
        if (jinja_value_is_true(test))
            kept[n_kept++] = (*items)[i];
    }
    *items = kept;
    *n_items = n_kept;
    return STATUS_OK;
}

static enum status exec_else(struct render *r, const struct node *n, struct scope *outer)
{
    struct scope *scope = new_scope(r, outer);
    enum flow flow;

    return scope ? jinja_exec(r, &n->orelse, scope, &flow) : STATUS_BAD_TEMPLATE;
}

enum status jinja_run_loop(struct render *r, const struct node *n, struct scope *outer,
                           struct value iterable, uint32_t depth0)
{
    const char *loop_name = jinja_find_name(r->t, "loop", 4);
    struct loop *loop = jinja_alloc(r, 1, sizeof *loop);
    struct scope *scope = NULL;
    struct value *items;
    uint32_t n_items;
    enum flow flow;

    if (!loop)
        return STATUS_BAD_TEMPLATE;
    TRY(jinja_value_items(r, iterable, &items, &n_items));
    if (n->c)
        TRY(jinja_filter_items(r, n, outer, &items, &n_items));
    if (n_items == 0)
        return exec_else(r, n, outer);
    *loop =
        (struct loop){.items = items, .n = n_items, .depth0 = depth0, .node = n, .outer = outer};
    for (; loop->index0 < n_items; loop->index0++) {
        if (!scope || n->captures)
            scope = new_scope(r, outer);
        if (!scope)
            return STATUS_BAD_TEMPLATE;
        scope->n = 0;
        if (loop_name)
            TRY(jinja_scope_set(r, scope, loop_name,
                                (struct value){.type = VALUE_LOOP, .loop = loop}));
        TRY(jinja_assign(r, n->a, scope, items[loop->index0]));
        TRY(jinja_exec(r, &n->body, scope, &flow));
        if (flow == FLOW_BREAK)
            break;
    }
    return STATUS_OK;
}

/* ---- statements ---- */

static enum status exec_if(struct render *r, const struct node *n, struct scope *scope,
                           enum flow *out)
{
    struct value test;

    for (;;) {
        TRY(jinja_eval(r, n->a, scope, &test));
        if (jinja_value_is_true(test))
            return jinja_exec(r, &n->body, scope, out);
        if (n->orelse.n != 1 || n->orelse.at[0]->type != NODE_IF)
            return jinja_exec(r, &n->orelse, scope, out);
        n = n->orelse.at[0]; /* elif */
    }
}

static enum status exec_with(struct render *r, const struct node *n, struct scope *scope,
                             enum flow *out)
{
    struct scope *inner = new_scope(r, scope);
    struct value v;

    if (!inner)
        return STATUS_BAD_TEMPLATE;
    for (uint32_t i = 0; i + 1 < n->items.n; i += 2) {
        TRY(jinja_eval(r, n->items.at[i + 1], scope, &v)); /* values do not see the new names */
        TRY(jinja_assign(r, n->items.at[i], inner, v));
    }
    return jinja_exec(r, &n->body, inner, out);
}

static enum status exec_node(struct render *r, const struct node *n, struct scope *scope,
                             enum flow *out)
{
    struct value v;

    switch (n->type) {
    case NODE_DATA:
        return jinja_builder_add_text(r->out, n->value->text, 0, n->value->text->len);
    case NODE_OUTPUT:
        TRY(jinja_eval(r, n->a, scope, &v));
        return jinja_print_str(r->out, v);
    case NODE_SET:
        TRY(jinja_eval(r, n->b, scope, &v));
        return jinja_assign(r, n->a, scope, v);
    case NODE_SET_BLOCK:
    case NODE_FILTER_BLOCK:
        return exec_captured(r, n, scope);
    case NODE_FOR:
        TRY(jinja_eval(r, n->b, scope, &v));
        return jinja_run_loop(r, n, scope, v, 0);
    case NODE_IF:
        return exec_if(r, n, scope, out);
    case NODE_MACRO:
        TRY(define_macro(r, n->macro, scope, &v));
        return jinja_scope_set(r, scope, n->name, v);
    case NODE_CALL_BLOCK:
        return exec_call_block(r, n, scope);
    case NODE_WITH:
    case NODE_SCOPE:
        return exec_with(r, n, scope, out);
    case NODE_BREAK:
        *out = FLOW_BREAK;
        return STATUS_OK;
    case NODE_CONTINUE:
        *out = FLOW_CONTINUE;
        return STATUS_OK;
    default:
        return jinja_fail(r, "an expression stands where a statement is expected");
    }
}

enum status jinja_exec(struct render *r, const struct node_list *body, struct scope *scope,
                       enum flow *out)
{
    *out = FLOW_NEXT;
    TRY(jinja_enter(r));
    for (uint32_t i = 0; i < body->n && *out == FLOW_NEXT; i++) {
        r->line = body->at[i]->line;
        TRY(exec_node(r, body->at[i], scope, out));
    }
    jinja_leave(r);
    return STATUS_OK;
}

/* ---- a whole template ---- */

static enum status set_special(struct render *r, const struct vocabulary *v, const char *name,
                               int64_t id)
{
    const char *interned = jinja_find_name(r->t, name, strlen(name));
    struct value text;

    if (!v || id < 0 || !interned || jinja_scope_find(&r->root, interned))
        return STATUS_OK;
    const char *bytes = vocabulary_token_text(v, (uint32_t)id);
    TRY(jinja_value_string(r, bytes, strlen(bytes), true, &text));
    return jinja_scope_set(r, &r->root, interned, text);
}

static enum status set_variables(struct render *r, const struct vocabulary *v,
                                 const json_t *variables)
{
    const char *name;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)variables, name, value)
    {
        const char *interned = jinja_find_name(r->t, name, strlen(name));
        struct value converted;
        if (!interned)
            continue; /* what the template never mentions need not be converted */
        TRY(jinja_value_from_json(r, value, &converted));
        TRY(jinja_scope_set(r, &r->root, interned, converted));
    }
    TRY(set_special(r, v, "bos_token", v ? vocabulary_bos(v) : -1));
    return set_special(r, v, "eos_token", v ? vocabulary_eos(v) : -1);
}

static enum status run(struct render *r, const struct vocabulary *v, const json_t *variables,
                       struct builder *text)
{
    struct scope top = {.parent = &r->root};
    enum flow flow;

    TRY(set_variables(r, v, variables));
    TRY(jinja_builder_init(text, r, 4096));
    r->out = text;
    return jinja_exec(r, &r->t->body, &top, &flow);
}

static enum status copy_pieces(const struct builder *b, struct prompt_piece **out)
{
    struct prompt_piece *pieces = memory_alloc(b->n_spans, sizeof *pieces);
    uint32_t start = 0;

    if (!pieces)
        return STATUS_NO_MEMORY;
    for (uint32_t i = 0; i < b->n_spans; i++) {
        pieces[i] =
            (struct prompt_piece){b->spans[i].from_template, start, b->spans[i].end - start};
        start = b->spans[i].end;
    }
    *out = pieces;
    return STATUS_OK;
}

enum status jinja_render(const struct chat_template *t, const struct vocabulary *v,
                         const json_t *variables, int64_t now, struct buffer *out,
                         struct prompt_piece **pieces, uint32_t *n_pieces)
{
    struct render r = {.t = t, .now = now, .line = 1};
    struct builder text = {0};
    struct prompt_piece *copied = NULL;
    enum status status;

    if (!json_is_object(variables))
        return fail(STATUS_BAD_TEMPLATE, "the variables of a chat template are not an object");
    TRY_GOTO(done, run(&r, v, variables, &text));
    TRY_GOTO(done, copy_pieces(&text, &copied));
    buffer_append(out, text.bytes, text.len);
    TRY_GOTO(done, buffer_status(out));
    *pieces = copied;
    *n_pieces = text.n_spans;
    copied = NULL;
done:
    free(copied);
    arena_deinit(&r.arena);
    return status;
}
