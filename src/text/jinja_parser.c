/* Tokens to statements. (Expressions: jinja_expression.c.) */
#include "text/jinja.h"

#include <stdio.h>
#include <string.h>

/* ---- names: one copy each, so that scopes compare pointers ---- */

struct name_table {
    const char **slots;
    uint32_t n, mask;
};

static uint32_t name_slot(const struct name_table *t, const char *name, size_t len)
{
    uint32_t h = 2166136261u;

    for (size_t i = 0; i < len; i++)
        h = (h ^ (unsigned char)name[i]) * 16777619u;
    for (h ^= h >> 15;; h++) {
        const char *s = t->slots[h & t->mask];
        if (!s || (!strncmp(s, name, len) && !s[len]))
            return h & t->mask;
    }
}

const char *jinja_find_name(const struct chat_template *t, const char *name, size_t len)
{
    if (memchr(name, 0, len))
        return NULL;
    return t->names->slots[name_slot(t->names, name, len)];
}

const char *jinja_intern(struct chat_template *t, const char *name, size_t len)
{
    struct name_table *names = t->names;

    if (2 * (names->n + 1) > names->mask + 1) {
        struct name_table larger = {.mask = (names->mask + 1) * 2 - 1, .n = names->n};
        larger.slots = arena_alloc(&t->arena, larger.mask + 1, sizeof *larger.slots);
        if (!larger.slots)
            return NULL;
        for (uint32_t i = 0; i <= names->mask; i++)
            if (names->slots[i])
                larger.slots[name_slot(&larger, names->slots[i], strlen(names->slots[i]))] =
                    names->slots[i];
        *names = larger;
    }
    uint32_t slot = name_slot(names, name, len);
    if (!names->slots[slot]) {
        names->slots[slot] = arena_strndup(&t->arena, name, len);
        names->n += names->slots[slot] != NULL;
    }
    return names->slots[slot];
}

/* ---- what the parts of the parser share ---- */

enum status jinja_parser_node(struct parser *p, enum node_type type, struct node **out)
{
    struct node *n = arena_alloc(&p->t->arena, 1, sizeof *n);

    if (!n)
        return STATUS_NO_MEMORY;
    n->type = type;
    n->line = p->next->line;
    *out = n;
    return STATUS_OK;
}

enum status jinja_parser_add(struct parser *p, struct node_builder *b, struct node *n)
{
    if (b->n == b->capacity) {
        uint32_t capacity = b->capacity ? b->capacity * 2 : 4;
        struct node **at = arena_alloc(&p->t->arena, capacity, sizeof(struct node *));
        if (!at)
            return STATUS_NO_MEMORY;
        if (b->n)
            memcpy(at, b->at, b->n * sizeof *at);
        b->at = at;
        b->capacity = capacity;
    }
    b->at[b->n++] = n;
    return STATUS_OK;
}

struct node_list jinja_parser_list(const struct node_builder *b)
{
    return (struct node_list){b->at, b->n};
}

enum status jinja_parser_fail(const struct parser *p, const char *expected)
{
    const struct token *t = p->next;
    char found[80];

    switch (t->type) {
    case TOKEN_NAME:
        snprintf(found, sizeof found, "'%.*s'", (int)(t->len < 60 ? t->len : 60), t->bytes);
        break;
    case TOKEN_OPERATOR:
        snprintf(found, sizeof found, "'%.*s%c'", t->op > 255,
                 t->op > 255 ? (char[]){(char)(t->op >> 8), 0} : "", (int)(t->op & 255));
        break;
    case TOKEN_EOF:
        snprintf(found, sizeof found, "the end");
        break;
    case TOKEN_BLOCK_END:
    case TOKEN_VARIABLE_END:
        snprintf(found, sizeof found, "the end of the tag");
        break;
    default:
        snprintf(found, sizeof found, "%s",
                 t->type == TOKEN_STRING ? "a string"
                 : t->type == TOKEN_DATA ? "text"
                                         : "a number");
    }
    return fail(STATUS_BAD_TEMPLATE, "chat template, line %u: %s is expected, found %s", t->line,
                expected, found);
}

bool jinja_parser_at_name(const struct parser *p, const char *name)
{
    return p->next->type == TOKEN_NAME && strlen(name) == p->next->len &&
           !memcmp(p->next->bytes, name, p->next->len);
}

bool jinja_parser_at_op(const struct parser *p, uint32_t op)
{
    return p->next->type == TOKEN_OPERATOR && p->next->op == op;
}

bool jinja_parser_skip_name(struct parser *p, const char *name)
{
    bool found = jinja_parser_at_name(p, name);

    p->next += found;
    return found;
}

bool jinja_parser_skip_op(struct parser *p, uint32_t op)
{
    bool found = jinja_parser_at_op(p, op);

    p->next += found;
    return found;
}

enum status jinja_parser_expect_op(struct parser *p, uint32_t op)
{
    char expected[] = {'\'', (char)op, '\'', 0};

    return jinja_parser_skip_op(p, op) ? STATUS_OK : jinja_parser_fail(p, expected);
}

enum status jinja_parser_name(struct parser *p, const char **out)
{
    if (p->next->type != TOKEN_NAME)
        return jinja_parser_fail(p, "a name");
    *out = jinja_intern(p->t, p->next->bytes, p->next->len);
    p->next++;
    return *out ? STATUS_OK : STATUS_NO_MEMORY;
}

enum status jinja_parser_enter(struct parser *p)
{
    if (p->depth >= JINJA_MAX_PARSE_DEPTH)
        return fail(STATUS_BAD_TEMPLATE, "chat template, line %u: nested more than %d deep",
                    p->next->line, JINJA_MAX_PARSE_DEPTH);
    p->depth++;
    return STATUS_OK;
}

/* ---- statements ---- */

static enum status parse_body(struct parser *p, const char *const *ends, struct node_list *out);

static enum status expect_block_end(struct parser *p)
{
    if (p->next->type != TOKEN_BLOCK_END)
        return jinja_parser_fail(p, "the end of the tag");
    p->next++;
    return STATUS_OK;
}

/* The rest of the opening tag, then everything up to one of the ends; the end's name is the next
 * token. */
static enum status parse_block(struct parser *p, const char *const *ends, struct node_list *out)
{
    jinja_parser_skip_op(p, ':');
    TRY(expect_block_end(p));
    return parse_body(p, ends, out);
}

static enum status parse_block_to(struct parser *p, const char *end, struct node_list *out)
{
    const char *const ends[] = {end, NULL};

    TRY(parse_block(p, ends, out));
    p->next++;
    return STATUS_OK;
}

static enum status parse_set(struct parser *p, struct node **out)
{
    struct node *n;

    TRY(jinja_parser_node(p, NODE_SET, &n));
    TRY(jinja_parse_target(p, true, NULL, &n->a));
    if (jinja_parser_skip_op(p, '=')) {
        TRY(jinja_parse_tuple(p, true, NULL, &n->b));
    } else {
        n->type = NODE_SET_BLOCK;
        TRY(jinja_parse_filters(p, NULL, false, &n->b));
        TRY(parse_block_to(p, "endset", &n->body));
    }
    *out = n;
    return STATUS_OK;
}

static enum status parse_for(struct parser *p, struct node **out)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    struct node *n;

    TRY(jinja_parser_node(p, NODE_FOR, &n));
    TRY(jinja_parse_target(p, false, "in", &n->a));
    if (!jinja_parser_skip_name(p, "in"))
        return jinja_parser_fail(p, "'in'");
    TRY(jinja_parse_tuple(p, false, "recursive", &n->b));
    if (jinja_parser_skip_name(p, "if"))
        TRY(jinja_parse_expression(p, &n->c));
    n->recursive = jinja_parser_skip_name(p, "recursive");
    uint32_t n_macros = p->n_macros;
    p->loop_depth++;
    TRY(parse_block(p, ends, &n->body));
    p->loop_depth--;
    n->captures = p->n_macros > n_macros;
    if (jinja_parser_skip_name(p, "else"))
        TRY(parse_block_to(p, "endfor", &n->orelse));
    else
        p->next++;
    *out = n;
    return STATUS_OK;
}

static enum status parse_if(struct parser *p, struct node **out)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    struct node *first = NULL, **into = &first;

    /* Each elif is the only statement of the else before it: a loop, since chains of them may be
     * long. */
    for (;;) {
        struct node *n;
        TRY(jinja_parser_node(p, NODE_IF, &n));
        *into = n;
        TRY(jinja_parse_tuple(p, false, NULL, &n->a));
        TRY(parse_block(p, ends, &n->body));
        if (jinja_parser_skip_name(p, "elif")) {
            n->orelse.at = arena_alloc(&p->t->arena, 1, sizeof(struct node *));
            if (!n->orelse.at)
                return STATUS_NO_MEMORY;
            n->orelse.n = 1;
            into = &n->orelse.at[0];
            continue;
        }
        if (jinja_parser_skip_name(p, "else"))
            TRY(parse_block_to(p, "endif", &n->orelse));
        else
            p->next++;
        break;
    }
    *out = first;
    return STATUS_OK;
}

static enum status parse_signature(struct parser *p, struct macro *m)
{
    struct node_builder defaults = {0};
    uint32_t capacity = 0;

    TRY(jinja_parser_expect_op(p, '('));
    while (!jinja_parser_at_op(p, ')')) {
        const char *name;
        struct node *value = NULL;
        if (m->n_parameters > 0)
            TRY(jinja_parser_expect_op(p, ','));
        TRY(jinja_parser_name(p, &name));
        if (jinja_parser_skip_op(p, '='))
            TRY(jinja_parse_expression(p, &value));
        else if (m->n_parameters > 0 && defaults.at[m->n_parameters - 1])
            return jinja_parser_fail(p, "a default (as the parameter before has one)");
        if (m->n_parameters == capacity) {
            capacity = capacity ? 2 * capacity : 8;
            const char **names = arena_alloc(&p->t->arena, capacity, sizeof *names);
            if (!names)
                return STATUS_NO_MEMORY;
            if (m->n_parameters)
                memcpy(names, m->parameters, m->n_parameters * sizeof *names);
            m->parameters = names;
        }
        m->parameters[m->n_parameters++] = name;
        TRY(jinja_parser_add(p, &defaults, value));
    }
    m->defaults = defaults.at;
    return jinja_parser_expect_op(p, ')');
}

/* The body of a macro or of a call block; names in it that only some macros have are noted. */
static enum status parse_macro_body(struct parser *p, const char *end, struct macro *m)
{
    struct parser_macro around = {p->macro, m};
    uint32_t loop_depth = p->loop_depth;

    p->n_macros++;
    p->macro = &around;
    p->loop_depth = 0;
    TRY(parse_block_to(p, end, &m->body));
    p->macro = around.outer;
    p->loop_depth = loop_depth;
    return STATUS_OK;
}

static enum status parse_macro(struct parser *p, struct node **out)
{
    struct node *n;

    TRY(jinja_parser_node(p, NODE_MACRO, &n));
    n->macro = arena_alloc(&p->t->arena, 1, sizeof *n->macro);
    if (!n->macro)
        return STATUS_NO_MEMORY;
    TRY(jinja_parser_name(p, &n->name));
    n->macro->name = n->name;
    TRY(parse_signature(p, n->macro));
    TRY(parse_macro_body(p, "endmacro", n->macro));
    *out = n;
    return STATUS_OK;
}

static enum status parse_call_block(struct parser *p, struct node **out)
{
    struct node *n;

    TRY(jinja_parser_node(p, NODE_CALL_BLOCK, &n));
    n->macro = arena_alloc(&p->t->arena, 1, sizeof *n->macro);
    if (!n->macro)
        return STATUS_NO_MEMORY;
    n->macro->name = "caller";
    if (jinja_parser_at_op(p, '('))
        TRY(parse_signature(p, n->macro));
    TRY(jinja_parse_expression(p, &n->a));
    if (n->a->type != NODE_CALL)
        return jinja_parser_fail(p, "a call");
    TRY(parse_macro_body(p, "endcall", n->macro));
    *out = n;
    return STATUS_OK;
}

static enum status parse_filter_block(struct parser *p, struct node **out)
{
    struct node *n;

    TRY(jinja_parser_node(p, NODE_FILTER_BLOCK, &n));
    TRY(jinja_parse_filters(p, NULL, true, &n->a));
    TRY(parse_block_to(p, "endfilter", &n->body));
    *out = n;
    return STATUS_OK;
}

static enum status parse_with(struct parser *p, struct node **out)
{
    struct node_builder items = {0};
    struct node *n, *target, *value;

    TRY(jinja_parser_node(p, NODE_WITH, &n));
    while (p->next->type != TOKEN_BLOCK_END) {
        if (items.n > 0)
            TRY(jinja_parser_expect_op(p, ','));
        TRY(jinja_parse_target(p, false, NULL, &target));
        TRY(jinja_parser_expect_op(p, '='));
        TRY(jinja_parse_expression(p, &value));
        TRY(jinja_parser_add(p, &items, target));
        TRY(jinja_parser_add(p, &items, value));
    }
    n->items = jinja_parser_list(&items);
    TRY(parse_block_to(p, "endwith", &n->body));
    *out = n;
    return STATUS_OK;
}

/* A scope of its own and nothing more. */
static enum status parse_scope(struct parser *p, const char *end, struct node **out)
{
    struct node *n;

    TRY(jinja_parser_node(p, NODE_SCOPE, &n));
    TRY(parse_block_to(p, end, &n->body));
    *out = n;
    return STATUS_OK;
}

static enum status parse_autoescape(struct parser *p, struct node **out)
{
    struct node *wanted;

    TRY(jinja_parse_expression(p, &wanted));
    if (wanted->type != NODE_CONST || jinja_value_is_true(*wanted->value))
        return jinja_parser_fail(p, "false (automatic escaping is not supported)");
    return parse_scope(p, "endautoescape", out);
}

static enum status parse_print(struct parser *p, struct node **out)
{
    struct node_builder items = {0};
    struct node *n, *output;

    TRY(jinja_parser_node(p, NODE_SCOPE, &n));
    while (p->next->type != TOKEN_BLOCK_END) {
        if (items.n > 0)
            TRY(jinja_parser_expect_op(p, ','));
        TRY(jinja_parser_node(p, NODE_OUTPUT, &output));
        TRY(jinja_parse_expression(p, &output->a));
        TRY(jinja_parser_add(p, &items, output));
    }
    n->body = jinja_parser_list(&items);
    *out = n;
    return STATUS_OK;
}

static enum status parse_statement(struct parser *p, struct node **out)
{
    static const struct {
        const char *name;
        enum status (*parse)(struct parser *p, struct node **out);
    } statements[] = {
        {"set", parse_set},         {"if", parse_if},
        {"for", parse_for},         {"macro", parse_macro},
        {"call", parse_call_block}, {"filter", parse_filter_block},
        {"with", parse_with},       {"autoescape", parse_autoescape},
        {"print", parse_print},
    };

    for (size_t i = 0; i < sizeof statements / sizeof statements[0]; i++)
        if (jinja_parser_skip_name(p, statements[i].name))
            return statements[i].parse(p, out);
    if (jinja_parser_skip_name(p, "generation"))
        return parse_scope(p, "endgeneration", out);
    if (jinja_parser_at_name(p, "break") || jinja_parser_at_name(p, "continue")) {
        if (p->loop_depth == 0)
            return jinja_parser_fail(p, "a statement that may stand outside a loop");
        TRY(jinja_parser_node(p, jinja_parser_at_name(p, "break") ? NODE_BREAK : NODE_CONTINUE,
                              out));
        p->next++;
        return STATUS_OK;
    }
    return jinja_parser_fail(
        p, "a statement (set, if, for, macro, call, filter, with, break, continue, generation)");
}

static bool at_any(const struct parser *p, const char *const *ends)
{
    for (; ends && *ends; ends++)
        if (jinja_parser_at_name(p, *ends))
            return true;
    return false;
}

static enum status parse_data(struct parser *p, struct node **out)
{
    struct node *n;

    TRY(jinja_parser_node(p, NODE_DATA, &n));
    n->value = arena_alloc(&p->t->arena, 1, sizeof *n->value);
    struct text *text = arena_alloc(&p->t->arena, 1, sizeof *text);
    if (!n->value || !text)
        return STATUS_NO_MEMORY;
    text->bytes = arena_strndup(&p->t->arena, p->next->bytes, p->next->len);
    if (!text->bytes)
        return STATUS_NO_MEMORY;
    text->len = p->next->len;
    text->from_template = true;
    *n->value = (struct value){.type = VALUE_STRING, .text = text};
    p->next++;
    *out = n;
    return STATUS_OK;
}

static enum status parse_body(struct parser *p, const char *const *ends, struct node_list *out)
{
    struct node_builder body = {0};
    struct node *n;

    TRY(jinja_parser_enter(p));
    while (p->next->type != TOKEN_EOF) {
        if (p->next->type == TOKEN_DATA) {
            TRY(parse_data(p, &n));
        } else if (p->next->type == TOKEN_VARIABLE_BEGIN) {
            p->next++;
            TRY(jinja_parser_node(p, NODE_OUTPUT, &n));
            TRY(jinja_parse_tuple(p, true, NULL, &n->a));
            if (p->next->type != TOKEN_VARIABLE_END)
                return jinja_parser_fail(p, "the end of the tag");
            p->next++;
        } else {
            p->next++;
            if (at_any(p, ends)) {
                *out = jinja_parser_list(&body);
                p->depth--;
                return STATUS_OK;
            }
            TRY(parse_statement(p, &n));
            TRY(expect_block_end(p));
        }
        TRY(jinja_parser_add(p, &body, n));
    }
    if (ends)
        return fail(STATUS_BAD_TEMPLATE, "chat template: it ends where '%s' is expected", ends[0]);
    *out = jinja_parser_list(&body);
    p->depth--;
    return STATUS_OK;
}

enum status jinja_parse(struct chat_template *t, const struct token *tokens)
{
    struct parser p = {.t = t, .next = tokens};

    t->names = arena_alloc(&t->arena, 1, sizeof *t->names);
    if (!t->names)
        return STATUS_NO_MEMORY;
    t->names->mask = 63;
    t->names->slots = arena_alloc(&t->arena, 64, sizeof *t->names->slots);
    if (!t->names->slots)
        return STATUS_NO_MEMORY;
    return parse_body(&p, NULL, &t->body);
}
