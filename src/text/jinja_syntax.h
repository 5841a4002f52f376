/* text/jinja_syntax (private to the room): from a template's source to its syntax tree. */
#ifndef BATON_TEXT_JINJA_SYNTAX_H
#define BATON_TEXT_JINJA_SYNTAX_H

#include "base/memory.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- source ---- */

enum token_type {
    TOKEN_DATA,
    TOKEN_VARIABLE_BEGIN,
    TOKEN_VARIABLE_END,
    TOKEN_BLOCK_BEGIN,
    TOKEN_BLOCK_END,
    TOKEN_NAME,
    TOKEN_STRING,
    TOKEN_INTEGER,
    TOKEN_FLOAT,
    TOKEN_OPERATOR,
    TOKEN_EOF,
};

/* Operators are their characters: '+' or OP2('*', '*'). */
#define OP2(a, b) ((a) << 8 | (b))

struct token {
    enum token_type type;
    uint32_t line;
    uint32_t op;       /* OPERATOR */
    const char *bytes; /* DATA, NAME, STRING (unescaped) */
    uint32_t len;
    int64_t integer;
    double number;
};
/* Tokens and their texts live in the arena; the last one is EOF. */
enum status jinja_lex(struct arena *arena, const char *source, size_t len,
                      struct token **out) WARN_UNUSED;

/* White space as Python's str has it. */
bool jinja_is_space(uint32_t point);
/* Bytes of white space at the start and at the end. */
size_t jinja_leading_space(const char *p, size_t len);
size_t jinja_trailing_space(const char *p, size_t len);

/* ---- syntax tree ---- */

enum node_type {
    /* expressions */
    NODE_CONST,   /* value */
    NODE_NAME,    /* name */
    NODE_LIST,    /* items */
    NODE_TUPLE,   /* items */
    NODE_DICT,    /* items: key, value, key, value */
    NODE_GETATTR, /* a, name */
    NODE_GETITEM, /* a, b */
    NODE_SLICE,   /* a, b, c: start, stop, step, each may be NULL; only as b of GETITEM */
    NODE_CALL,    /* a, arguments */
    NODE_FILTER,  /* a (NULL: the body of a block), name, arguments */
    NODE_TEST,    /* a, name, arguments */
    NODE_NOT,     /* a */
    NODE_NEG,
    NODE_POS,
    NODE_BINARY,  /* op, a, b */
    NODE_CONCAT,  /* items */
    NODE_COMPARE, /* a, items: OPERAND nodes */
    NODE_OPERAND, /* op, a */
    NODE_AND,     /* a, b */
    NODE_OR,
    NODE_COND,  /* a if b else c (may be NULL) */
    NODE_NSREF, /* name.attribute as a target */
    /* statements */
    NODE_DATA,      /* value */
    NODE_OUTPUT,    /* a */
    NODE_SET,       /* a: target, b */
    NODE_SET_BLOCK, /* a: target, b: filter or NULL, body */
    NODE_FOR,       /* a: target, b: iterable, c: test or NULL, body, orelse, recursive, captures */
    NODE_IF,        /* a, body, orelse */
    NODE_MACRO,     /* macro */
    NODE_CALL_BLOCK,   /* a: CALL, macro */
    NODE_FILTER_BLOCK, /* a, body */
    NODE_WITH,         /* items: target, value, ...; body */
    NODE_SCOPE,        /* body */
    NODE_BREAK,
    NODE_CONTINUE,
};

enum compare_op {
    COMPARE_EQ,
    COMPARE_NE,
    COMPARE_LT,
    COMPARE_LE,
    COMPARE_GT,
    COMPARE_GE,
    COMPARE_IN,
    COMPARE_NOT_IN
};

struct node_list {
    struct node **at;
    uint32_t n;
};

struct arguments {
    struct node_list positional;
    const char **names; /* [keyword.n] interned */
    struct node_list keyword;
    struct node *star, *star_star;
};

struct macro {
    const char *name;
    const char **parameters; /* interned */
    struct node **defaults;  /* [n_parameters], NULL: none */
    uint32_t n_parameters;
    struct node_list body;
    bool uses_varargs, uses_kwargs, uses_caller;
};

struct node {
    enum node_type type;
    uint32_t line;
    uint32_t op;
    bool recursive;
    bool captures;    /* a macro is made in the body, so that a turn's scope may outlive it */
    const char *name; /* interned: equal names are equal pointers */
    const char *attribute;
    struct node *a, *b, *c;
    struct node_list items, body, orelse;
    struct arguments *arguments;
    struct macro *macro;
    struct value *value;
};

struct name_table;
struct chat_template {
    struct arena arena;
    struct name_table *names;
    struct node_list body;
};
/* The one copy of a name. Owner: the arena of the template. NULL: no memory. */
const char *jinja_intern(struct chat_template *t, const char *name, size_t len);
/* The one copy if the template mentions the name at all, else NULL. */
const char *jinja_find_name(const struct chat_template *t, const char *name, size_t len);
enum status jinja_parse(struct chat_template *t, const struct token *tokens) WARN_UNUSED;

/* What the parts of the parser share. */
struct parser {
    struct chat_template *t;
    const struct token *next;
    uint32_t depth;
    uint32_t loop_depth;
    uint32_t n_macros;          /* so far */
    struct parser_macro *macro; /* innermost */
};
struct parser_macro {
    struct parser_macro *outer;
    struct macro *macro;
};
struct node_builder { /* a list that grows */
    struct node **at;
    uint32_t n, capacity;
};
enum status jinja_parser_node(struct parser *p, enum node_type type, struct node **out) WARN_UNUSED;
enum status jinja_parser_add(struct parser *p, struct node_builder *b, struct node *n) WARN_UNUSED;
struct node_list jinja_parser_list(const struct node_builder *b);
enum status jinja_parser_fail(const struct parser *p, const char *expected);
bool jinja_parser_at_name(const struct parser *p, const char *name);
bool jinja_parser_at_op(const struct parser *p, uint32_t op);
enum status jinja_parser_binary(struct parser *p, enum node_type type, uint32_t op, struct node *a,
                                struct node *b, struct node **out) WARN_UNUSED;
bool jinja_parser_skip_name(struct parser *p, const char *name);
bool jinja_parser_skip_op(struct parser *p, uint32_t op);
enum status jinja_parser_expect_op(struct parser *p, uint32_t op) WARN_UNUSED;
enum status jinja_parser_name(struct parser *p, const char **out) WARN_UNUSED;
enum status
jinja_parser_enter(struct parser *p) WARN_UNUSED; /* one level deeper; left by --p->depth */
enum status jinja_parse_primary(struct parser *p, bool with_namespace,
                                struct node **out) WARN_UNUSED;
enum status jinja_parse_unary(struct parser *p, bool with_filters, struct node **out) WARN_UNUSED;
enum status jinja_parse_expression(struct parser *p, struct node **out) WARN_UNUSED;
enum status jinja_parse_expression_without_if(struct parser *p, struct node **out) WARN_UNUSED;
/* A tuple without parentheses, or one expression. until: a name that ends it, or NULL. */
enum status jinja_parse_tuple(struct parser *p, bool with_if, const char *until,
                              struct node **out) WARN_UNUSED;
enum status jinja_parse_target(struct parser *p, bool with_namespace, const char *until,
                               struct node **out) WARN_UNUSED;
enum status jinja_parse_filters(struct parser *p, struct node *input, bool first_without_pipe,
                                struct node **out) WARN_UNUSED;

#endif
