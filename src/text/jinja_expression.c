/* Tokens to expressions, in Jinja's order of precedence: if, or, and, not, comparisons, + -, ~, * /
 * // %, **; tighter ones are in jinja_primary.c. */
#include "text/jinja.h"

#include <string.h>

static enum status parse_power(struct parser *p, struct node **out)
{
    struct node *right;

    TRY(jinja_parse_unary(p, true, out));
    while (jinja_parser_skip_op(p, OP2('*', '*'))) { /* to the left, unlike Python */
        TRY(jinja_parse_unary(p, true, &right));
        TRY(jinja_parser_binary(p, NODE_BINARY, OP2('*', '*'), *out, right, out));
    }
    return STATUS_OK;
}

static enum status parse_product(struct parser *p, struct node **out)
{
    struct node *right;

    TRY(parse_power(p, out));
    while (jinja_parser_at_op(p, '*') || jinja_parser_at_op(p, '/') || jinja_parser_at_op(p, '%') ||
           jinja_parser_at_op(p, OP2('/', '/'))) {
        uint32_t op = (p->next++)->op;
        TRY(parse_power(p, &right));
        TRY(jinja_parser_binary(p, NODE_BINARY, op, *out, right, out));
    }
    return STATUS_OK;
}

static enum status parse_concat(struct parser *p, struct node **out)
{
    struct node_builder items = {0};
    struct node *n;

    TRY(parse_product(p, &n));
    if (jinja_parser_at_op(p, '~')) {
        struct node *concat;
        TRY(jinja_parser_node(p, NODE_CONCAT, &concat));
        TRY(jinja_parser_add(p, &items, n));
        while (jinja_parser_skip_op(p, '~')) {
            TRY(parse_product(p, &n));
            TRY(jinja_parser_add(p, &items, n));
        }
        concat->items = jinja_parser_list(&items);
        n = concat;
    }
    *out = n;
    return STATUS_OK;
}

static enum status parse_sum(struct parser *p, struct node **out)
{
    struct node *right;
    uint32_t depth = p->depth;

    TRY(parse_concat(p, out));
    while (jinja_parser_at_op(p, '+') || jinja_parser_at_op(p, '-')) {
        uint32_t op = (p->next++)->op;
        TRY(jinja_parser_enter(p));
        TRY(parse_concat(p, &right));
        TRY(jinja_parser_binary(p, NODE_BINARY, op, *out, right, out));
    }
    p->depth = depth;
    return STATUS_OK;
}

static bool skip_comparison(struct parser *p, enum compare_op *out)
{
    static const struct {
        uint32_t op;
        enum compare_op compare;
    } ops[] = {{OP2('=', '='), COMPARE_EQ}, {OP2('!', '='), COMPARE_NE},
               {'<', COMPARE_LT},           {OP2('<', '='), COMPARE_LE},
               {'>', COMPARE_GT},           {OP2('>', '='), COMPARE_GE}};

    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
        if (jinja_parser_skip_op(p, ops[i].op)) {
            *out = ops[i].compare;
            return true;
        }
    if (jinja_parser_skip_name(p, "in")) {
        *out = COMPARE_IN;
        return true;
    }
    if (jinja_parser_at_name(p, "not") && p->next[1].type == TOKEN_NAME && p->next[1].len == 2 &&
        !memcmp(p->next[1].bytes, "in", 2)) {
        p->next += 2;
        *out = COMPARE_NOT_IN;
        return true;
    }
    return false;
}

static enum status parse_comparison(struct parser *p, struct node **out)
{
    struct node_builder operands = {0};
    struct node *n, *operand, *compare;
    enum compare_op op;

    TRY(parse_sum(p, &n));
    while (skip_comparison(p, &op)) {
        TRY(jinja_parser_node(p, NODE_OPERAND, &operand));
        operand->op = op;
        TRY(parse_sum(p, &operand->a));
        TRY(jinja_parser_add(p, &operands, operand));
    }
    if (operands.n > 0) {
        TRY(jinja_parser_node(p, NODE_COMPARE, &compare));
        compare->a = n;
        compare->items = jinja_parser_list(&operands);
        n = compare;
    }
    *out = n;
    return STATUS_OK;
}

static enum status parse_not(struct parser *p, struct node **out)
{
    struct node *n;

    if (!jinja_parser_skip_name(p, "not"))
        return parse_comparison(p, out);
    TRY(jinja_parser_enter(p));
    TRY(parse_not(p, &n));
    p->depth--;
    return jinja_parser_binary(p, NODE_NOT, 0, n, NULL, out);
}

static enum status parse_and(struct parser *p, struct node **out)
{
    struct node *right;
    uint32_t depth = p->depth;

    TRY(parse_not(p, out));
    while (jinja_parser_skip_name(p, "and")) {
        TRY(jinja_parser_enter(p));
        TRY(parse_not(p, &right));
        TRY(jinja_parser_binary(p, NODE_AND, 0, *out, right, out));
    }
    p->depth = depth;
    return STATUS_OK;
}

enum status jinja_parse_expression_without_if(struct parser *p, struct node **out)
{
    struct node *right;
    uint32_t depth = p->depth;

    TRY(parse_and(p, out));
    while (jinja_parser_skip_name(p, "or")) {
        TRY(jinja_parser_enter(p));
        TRY(parse_and(p, &right));
        TRY(jinja_parser_binary(p, NODE_OR, 0, *out, right, out));
    }
    p->depth = depth;
    return STATUS_OK;
}

enum status jinja_parse_expression(struct parser *p, struct node **out)
{
    uint32_t depth = p->depth;
    struct node *n, *cond;

    TRY(jinja_parser_enter(p));
    TRY(jinja_parse_expression_without_if(p, &n));
    while (jinja_parser_skip_name(p, "if")) {
        TRY(jinja_parser_enter(p));
        TRY(jinja_parser_node(p, NODE_COND, &cond));
        cond->a = n;
        TRY(jinja_parse_expression_without_if(p, &cond->b));
        if (jinja_parser_skip_name(p, "else"))
            TRY(jinja_parse_expression(p, &cond->c));
        n = cond;
    }
    p->depth = depth;
    *out = n;
    return STATUS_OK;
}

static bool at_tuple_end(const struct parser *p, const char *until)
{
    return p->next->type == TOKEN_VARIABLE_END || p->next->type == TOKEN_BLOCK_END ||
           jinja_parser_at_op(p, ')') || (until && jinja_parser_at_name(p, until));
}

/* One item, or a tuple if there is a comma; targets are made of names alone. */
static enum status parse_items(struct parser *p, bool is_target, bool flag, const char *until,
                               struct node **out)
{
    struct node_builder items = {0};
    struct node *n;
    bool is_tuple = false;

    for (;;) {
        if (items.n > 0 && !jinja_parser_skip_op(p, ','))
            break;
        is_tuple = items.n > 0;
        if (at_tuple_end(p, until))
            break;
        if (is_target)
            TRY(jinja_parse_primary(p, flag, &n));
        else
            TRY(flag ? jinja_parse_expression(p, &n) : jinja_parse_expression_without_if(p, &n));
        TRY(jinja_parser_add(p, &items, n));
    }
    if (items.n == 0)
        return jinja_parser_fail(p, "an expression");
    if (!is_tuple) {
        *out = items.at[0];
        return STATUS_OK;
    }
    TRY(jinja_parser_node(p, NODE_TUPLE, &n));
    n->items = jinja_parser_list(&items);
    *out = n;
    return STATUS_OK;
}

enum status jinja_parse_tuple(struct parser *p, bool with_if, const char *until, struct node **out)
{
    return parse_items(p, false, with_if, until, out);
}

static bool is_assignable(const struct node *n)
{
    if (n->type == NODE_NAME || n->type == NODE_NSREF)
        return true;
    if (n->type != NODE_TUPLE && n->type != NODE_LIST)
        return false;
    for (uint32_t i = 0; i < n->items.n; i++)
        if (!is_assignable(n->items.at[i]))
            return false;
    return true;
}

enum status jinja_parse_target(struct parser *p, bool with_namespace, const char *until,
                               struct node **out)
{
    uint32_t depth = p->depth;

    TRY(jinja_parser_enter(p));
    TRY(parse_items(p, true, with_namespace, until, out));
    p->depth = depth;
    if (!is_assignable(*out))
        return jinja_parser_fail(p, "a name to assign to");
    return STATUS_OK;
}
