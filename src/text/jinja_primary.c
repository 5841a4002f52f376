/* Tokens to the tightest parts of expressions: literals and names, then what may follow them:
 * attributes, subscripts, calls, filters, tests. */
#include "text/jinja.h"

#include <string.h>

static enum status parse_postfix(struct parser *p, struct node *n, struct node **out);

static enum status constant(struct parser *p, struct value v, struct node **out)
{
    struct node *n;

    TRY(jinja_parser_node(p, NODE_CONST, &n));
    n->value = arena_memdup(&p->t->arena, &v, 1, sizeof v);
    *out = n;
    return n->value ? STATUS_OK : STATUS_NO_MEMORY;
}

enum status jinja_parser_binary(struct parser *p, enum node_type type, uint32_t op, struct node *a,
                                struct node *b, struct node **out)
{
    struct node *n;

    TRY(jinja_parser_node(p, type, &n));
    n->op = op;
    n->a = a;
    n->b = b;
    *out = n;
    return STATUS_OK;
}

/* ---- primary ---- */

/* "a" "b" is one string, as in Python. */
static enum status parse_strings(struct parser *p, struct node **out)
{
    size_t len = 0;
    const struct token *t = p->next;

    for (; t->type == TOKEN_STRING; t++)
        len += t->len;
    struct text *text = arena_alloc(&p->t->arena, 1, sizeof *text);
    char *bytes = arena_alloc(&p->t->arena, len + 1, 1);
    if (!text || !bytes)
        return STATUS_NO_MEMORY;
    text->bytes = bytes;
    text->from_template = true;
    for (; p->next < t; p->next++) {
        memcpy(bytes + text->len, p->next->bytes, p->next->len);
        text->len += p->next->len;
    }
    return constant(p, (struct value){.type = VALUE_STRING, .text = text}, out);
}

static enum status parse_list(struct parser *p, struct node **out)
{
    struct node_builder items = {0};
    struct node *n, *item;

    TRY(jinja_parser_node(p, NODE_LIST, &n));
    p->next++;
    while (!jinja_parser_at_op(p, ']')) {
        if (items.n > 0)
            TRY(jinja_parser_expect_op(p, ','));
        if (jinja_parser_at_op(p, ']'))
            break;
        TRY(jinja_parse_expression(p, &item));
        TRY(jinja_parser_add(p, &items, item));
    }
    p->next++;
    n->items = jinja_parser_list(&items);
    *out = n;
    return STATUS_OK;
}

static enum status parse_dict(struct parser *p, struct node **out)
{
    struct node_builder items = {0};
    struct node *n, *item;

    TRY(jinja_parser_node(p, NODE_DICT, &n));
    p->next++;
    while (!jinja_parser_at_op(p, '}')) {
        if (items.n > 0)
            TRY(jinja_parser_expect_op(p, ','));
        if (jinja_parser_at_op(p, '}'))
            break;
        TRY(jinja_parse_expression(p, &item));
        TRY(jinja_parser_add(p, &items, item));
        TRY(jinja_parser_expect_op(p, ':'));
        TRY(jinja_parse_expression(p, &item));
        TRY(jinja_parser_add(p, &items, item));
    }
    p->next++;
    n->items = jinja_parser_list(&items);
    *out = n;
    return STATUS_OK;
}

/* Names that only the body of a macro gives a meaning to change what the macro accepts. */
static void note_name(struct parser *p, const char *name)
{
    for (struct parser_macro *m = p->macro; m; m = m->outer) {
        m->macro->uses_varargs |= !strcmp(name, "varargs");
        m->macro->uses_kwargs |= !strcmp(name, "kwargs");
        m->macro->uses_caller |= !strcmp(name, "caller");
    }
}

static enum status parse_name(struct parser *p, bool with_namespace, struct node **out)
{
    struct node *n;
    const char *name;

    if (jinja_parser_at_name(p, "true") || jinja_parser_at_name(p, "True") ||
        jinja_parser_at_name(p, "false") || jinja_parser_at_name(p, "False")) {
        bool b = p->next->bytes[0] == 't' || p->next->bytes[0] == 'T';
        p->next++;
        return constant(p, jinja_value_bool(b), out);
    }
    if (jinja_parser_skip_name(p, "none") || jinja_parser_skip_name(p, "None"))
        return constant(p, jinja_value_none(), out);
    TRY(jinja_parser_node(p, NODE_NAME, &n));
    TRY(jinja_parser_name(p, &name));
    n->name = name;
    if (with_namespace && jinja_parser_skip_op(p, '.')) {
        n->type = NODE_NSREF;
        TRY(jinja_parser_name(p, &n->attribute));
    }
    note_name(p, name);
    *out = n;
    return STATUS_OK;
}

static enum status parse_parentheses(struct parser *p, struct node **out)
{
    p->next++;
    if (jinja_parser_at_op(p, ')')) {
        TRY(jinja_parser_node(p, NODE_TUPLE, out));
    } else {
        TRY(jinja_parse_tuple(p, true, NULL, out));
    }
    return jinja_parser_expect_op(p, ')');
}

enum status jinja_parse_primary(struct parser *p, bool with_namespace, struct node **out)
{
    switch (p->next->type) {
    case TOKEN_NAME:
        return parse_name(p, with_namespace, out);
    case TOKEN_STRING:
        return parse_strings(p, out);
    case TOKEN_INTEGER:
        return constant(p, jinja_value_int((p->next++)->integer), out);
    case TOKEN_FLOAT:
        return constant(p, jinja_value_float((p->next++)->number), out);
    case TOKEN_OPERATOR:
        if (p->next->op == '(')
            return parse_parentheses(p, out);
        if (p->next->op == '[')
            return parse_list(p, out);
        if (p->next->op == '{')
            return parse_dict(p, out);
        /* fall through */
    default:
        return jinja_parser_fail(p, "an expression");
    }
}

/* ---- what follows a primary ---- */

static enum status parse_arguments(struct parser *p, struct arguments **out)
{
    struct arguments *a = arena_alloc(&p->t->arena, 1, sizeof *a);
    struct node_builder positional = {0}, keyword = {0};
    const char *names[64];
    bool first = true;
    struct node *value;

    if (!a)
        return STATUS_NO_MEMORY;
    TRY(jinja_parser_expect_op(p, '('));
    for (; !jinja_parser_at_op(p, ')'); first = false) {
        if (!first)
            TRY(jinja_parser_expect_op(p, ','));
        if (jinja_parser_at_op(p, ')'))
            break;
        if (!a->star && !a->star_star && jinja_parser_skip_op(p, '*')) {
            TRY(jinja_parse_expression(p, &a->star));
        } else if (!a->star_star && jinja_parser_skip_op(p, OP2('*', '*'))) {
            TRY(jinja_parse_expression(p, &a->star_star));
        } else if (p->next->type == TOKEN_NAME && p->next[1].type == TOKEN_OPERATOR &&
                   p->next[1].op == '=' && !a->star_star) {
            if (keyword.n == sizeof names / sizeof names[0])
                return jinja_parser_fail(p, "at most 64 named arguments");
            TRY(jinja_parser_name(p, &names[keyword.n]));
            p->next++;
            TRY(jinja_parse_expression(p, &value));
            TRY(jinja_parser_add(p, &keyword, value));
        } else if (keyword.n == 0 && !a->star && !a->star_star) {
            TRY(jinja_parse_expression(p, &value));
            TRY(jinja_parser_add(p, &positional, value));
        } else {
            return jinja_parser_fail(p, "a named argument");
        }
    }
    p->next++;
    a->positional = jinja_parser_list(&positional);
    a->keyword = jinja_parser_list(&keyword);
    a->names = arena_memdup(&p->t->arena, names, keyword.n, sizeof names[0]);
    *out = a;
    return a->names ? STATUS_OK : STATUS_NO_MEMORY;
}

static enum status parse_call(struct parser *p, struct node *callee, struct node **out)
{
    struct node *n;

    TRY(jinja_parser_node(p, NODE_CALL, &n));
    n->a = callee;
    TRY(parse_arguments(p, &n->arguments));
    *out = n;
    return STATUS_OK;
}

static bool at_subscript_end(const struct parser *p)
{
    return jinja_parser_at_op(p, ']') || jinja_parser_at_op(p, ',');
}

/* What stands in brackets: an expression, or start:stop:step with any of the three left out. */
static enum status parse_subscript(struct parser *p, struct node **out)
{
    struct node *n, *start = NULL;

    if (!jinja_parser_at_op(p, ':')) {
        TRY(jinja_parse_expression(p, &start));
        if (!jinja_parser_at_op(p, ':')) {
            *out = start;
            return STATUS_OK;
        }
    }
    TRY(jinja_parser_node(p, NODE_SLICE, &n));
    n->a = start;
    p->next++;
    if (!jinja_parser_at_op(p, ':') && !at_subscript_end(p))
        TRY(jinja_parse_expression(p, &n->b));
    if (jinja_parser_skip_op(p, ':') && !at_subscript_end(p))
        TRY(jinja_parse_expression(p, &n->c));
    *out = n;
    return STATUS_OK;
}

static enum status parse_item(struct parser *p, struct node *object, struct node **out)
{
    struct node_builder items = {0};
    struct node *n, *key;

    TRY(jinja_parser_node(p, NODE_GETITEM, &n));
    n->a = object;
    p->next++;
    while (!jinja_parser_at_op(p, ']')) {
        if (items.n > 0)
            TRY(jinja_parser_expect_op(p, ','));
        TRY(parse_subscript(p, &key));
        TRY(jinja_parser_add(p, &items, key));
    }
    if (items.n != 1) {
        TRY(jinja_parser_node(p, NODE_TUPLE, &n->b));
        n->b->items = jinja_parser_list(&items);
    } else {
        n->b = items.at[0];
    }
    p->next++;
    *out = n;
    return STATUS_OK;
}

static enum status parse_attribute(struct parser *p, struct node *object, struct node **out)
{
    struct node *n;

    p->next++;
    TRY(jinja_parser_node(p, NODE_GETATTR, &n));
    n->a = object;
    if (p->next->type == TOKEN_INTEGER) {
        n->type = NODE_GETITEM;
        TRY(constant(p, jinja_value_int(p->next->integer), &n->b));
        p->next++;
    } else {
        TRY(jinja_parser_name(p, &n->name));
    }
    *out = n;
    return STATUS_OK;
}

static enum status parse_postfix(struct parser *p, struct node *n, struct node **out)
{
    for (;;) {
        if (jinja_parser_at_op(p, '.'))
            TRY(parse_attribute(p, n, &n));
        else if (jinja_parser_at_op(p, '['))
            TRY(parse_item(p, n, &n));
        else if (jinja_parser_at_op(p, '('))
            TRY(parse_call(p, n, &n));
        else
            break;
        TRY(jinja_parser_enter(p)); /* a chain is as deep to evaluate as it is long */
    }
    *out = n;
    return STATUS_OK;
}

static enum status no_arguments(struct parser *p, struct arguments **out)
{
    *out = arena_alloc(&p->t->arena, 1, sizeof **out);
    return *out ? STATUS_OK : STATUS_NO_MEMORY;
}

enum status jinja_parse_filters(struct parser *p, struct node *input, bool first_without_pipe,
                                struct node **out)
{
    while (first_without_pipe || jinja_parser_skip_op(p, '|')) {
        struct node *n;
        first_without_pipe = false;
        TRY(jinja_parser_enter(p));
        TRY(jinja_parser_node(p, NODE_FILTER, &n));
        n->a = input;
        TRY(jinja_parser_name(p, &n->name));
        TRY(jinja_parser_at_op(p, '(') ? parse_arguments(p, &n->arguments)
                                       : no_arguments(p, &n->arguments));
        input = n;
    }
    *out = input;
    return STATUS_OK;
}

/* Whether what follows a test's name is its one argument, written without parentheses. */
static bool at_test_argument(const struct parser *p)
{
    switch (p->next->type) {
    case TOKEN_NAME:
        return !jinja_parser_at_name(p, "else") && !jinja_parser_at_name(p, "or") &&
               !jinja_parser_at_name(p, "and");
    case TOKEN_STRING:
    case TOKEN_INTEGER:
    case TOKEN_FLOAT:
        return true;
    default:
        return jinja_parser_at_op(p, '[') || jinja_parser_at_op(p, '{');
    }
}

static enum status parse_test(struct parser *p, struct node *input, struct node **out)
{
    struct node *n, *argument;

    p->next++;
    bool negated = jinja_parser_skip_name(p, "not");
    TRY(jinja_parser_node(p, NODE_TEST, &n));
    n->a = input;
    TRY(jinja_parser_name(p, &n->name));
    if (jinja_parser_at_op(p, '(')) {
        TRY(parse_arguments(p, &n->arguments));
    } else {
        TRY(no_arguments(p, &n->arguments));
        if (at_test_argument(p)) {
            struct node_builder positional = {0};
            if (jinja_parser_at_name(p, "is"))
                return jinja_parser_fail(p, "something other than a second test");
            TRY(jinja_parse_primary(p, false, &argument));
            TRY(parse_postfix(p, argument, &argument));
            TRY(jinja_parser_add(p, &positional, argument));
            n->arguments->positional = jinja_parser_list(&positional);
        }
    }
    if (negated)
        return jinja_parser_binary(p, NODE_NOT, 0, n, NULL, out);
    *out = n;
    return STATUS_OK;
}

static enum status parse_filters_and_tests(struct parser *p, struct node *n, struct node **out)
{
    for (;;) {
        if (jinja_parser_at_op(p, '|'))
            TRY(jinja_parse_filters(p, n, false, &n));
        else if (jinja_parser_at_name(p, "is"))
            TRY(parse_test(p, n, &n));
        else if (jinja_parser_at_op(p, '('))
            TRY(parse_call(p, n, &n));
        else
            break;
        TRY(jinja_parser_enter(p));
    }
    *out = n;
    return STATUS_OK;
}

enum status jinja_parse_unary(struct parser *p, bool with_filters, struct node **out)
{
    uint32_t depth = p->depth;
    struct node *n;

    TRY(jinja_parser_enter(p));
    if (jinja_parser_at_op(p, '-') || jinja_parser_at_op(p, '+')) {
        enum node_type type = jinja_parser_at_op(p, '-') ? NODE_NEG : NODE_POS;
        p->next++;
        TRY(jinja_parse_unary(p, false, &n));
        TRY(jinja_parser_binary(p, type, 0, n, NULL, &n));
    } else {
        TRY(jinja_parse_primary(p, false, &n));
    }
    TRY(parse_postfix(p, n, &n));
    if (with_filters)
        TRY(parse_filters_and_tests(p, n, &n));
    p->depth = depth;
    *out = n;
    return STATUS_OK;
}
