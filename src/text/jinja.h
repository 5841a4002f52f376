/* text/jinja (private to the room): the subset of Jinja2 that chat templates use, equal to Python's
 * Jinja2 with Hugging Face's settings (trim_blocks, lstrip_blocks, immutable sandbox, loop
 * controls, {% generation %}).
 *
 *   jinja_lexer.c        source to tokens
 *   jinja_parser.c       tokens to statements; jinja_expression.c, jinja_primary.c: expressions
 *   jinja_exec.c         runs statements: scopes, loops, macros
 *   jinja_eval.c         evaluates expressions; jinja_access.c: attributes and items;
 *                        jinja_operators.c: arithmetic, comparison, membership
 *   jinja_value.c        values: truth, equality, length, items; jinja_dict.c: dicts and JSON
 *   jinja_text.c         strings and where their bytes came from; jinja_strings.c: what they can do
 *   jinja_print.c        values as Python's str(), repr() and json.dumps() write them
 *   jinja_filters.c, jinja_filters_list.c, jinja_tests.c, jinja_methods.c, jinja_methods_str.c,
 *   jinja_globals.c      the names that templates call
 *
 * Everything of one rendering lives in one arena, so nothing is freed by itself. Limits hold for a
 * hostile template as well: depth, steps, memory, output. */
#ifndef BATON_TEXT_JINJA_H
#define BATON_TEXT_JINJA_H

#include "base/memory.h"
#include "base/status.h"
#include "text/jinja_syntax.h"
#include "text/text.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define JINJA_MAX_SOURCE_BYTES (1u << 20)
#define JINJA_MAX_PARSE_DEPTH 200
#define JINJA_MAX_DEPTH 700 /* nested evaluations, macros included */
/* Nodes evaluated, and one step more for each so many bytes of text looked through. */
#define JINJA_MAX_STEPS 20000000u
#define JINJA_STEP_BYTES 64
#define JINJA_MAX_MEMORY_BYTES (512u << 20)
#define JINJA_MAX_OUTPUT_BYTES (64u << 20)
#define JINJA_MAX_RANGE 100000 /* the sandbox's */

/* ---- values ---- */

enum value_type {
    VALUE_UNDEFINED,
    VALUE_NONE,
    VALUE_BOOL,
    VALUE_INT,
    VALUE_FLOAT,
    VALUE_STRING,
    VALUE_LIST,
    VALUE_TUPLE,
    VALUE_DICT,
    VALUE_VIEW,      /* dict.keys() and the like: a list that cannot be indexed */
    VALUE_GENERATOR, /* a list that can be walked once, and has no length */
    VALUE_RANGE,
    VALUE_NAMESPACE,
    VALUE_LOOP,
    VALUE_MACRO,
    VALUE_FUNCTION,
    VALUE_METHOD,
};

/* Bytes up to `end` (from the span before) came from the template or did not. */
struct span {
    uint32_t end;
    bool from_template;
};

/* A string. Immutable; slices share bytes. */
struct text {
    const char *bytes; /* UTF-8 */
    uint32_t len;
    bool from_template; /* all of it; spans is NULL then */
    bool markup;        /* Markup of `safe` and `escape`: `+` escapes what is added to it */
    uint32_t n_spans;
    const struct span *spans; /* NULL: one origin */
};

struct value {
    enum value_type type;
    bool from_user; /* a number out of messages or tools: its digits are not the template's */
    union {
        bool boolean;
        int64_t integer;
        double number;
        struct undefined *undefined;
        struct text *text;
        struct list *list;
        struct dict *dict; /* DICT, NAMESPACE */
        struct range *range;
        struct loop *loop;
        struct macro_value *macro;
        const struct function *function;
        struct method *method;
    };
};

struct undefined {
    const char *hint; /* NULL: made of the rest */
    bool of_object;
    enum value_type object;
    struct value name; /* string, or the subscript */
    bool unsafe;       /* the sandbox: an error as soon as it is used */
};

struct list { /* LIST, TUPLE, VIEW, GENERATOR */
    struct value *items;
    uint32_t n;
    uint32_t position; /* GENERATOR: the next */
    const char *view;  /* VIEW: "dict_keys" */
};

struct dict {
    struct value *keys, *values; /* in order of insertion */
    uint32_t n, capacity;
    uint32_t *index; /* slots of n + 1; NULL while small */
    uint32_t index_mask;
};

struct range {
    int64_t start, step;
    uint32_t n;
};

struct loop {
    struct value *items;
    uint32_t n, index0;
    uint32_t depth0;
    struct value last_changed;
    bool has_changed;
    const struct node *node; /* recursive loops */
    struct scope *outer;
};

struct macro_value {
    const struct macro *macro;
    struct scope *outer;
};

struct variable {
    const char *name; /* interned */
    struct value value;
};
struct scope {
    struct scope *parent;
    struct variable *variables;
    uint32_t n, capacity;
};

/* Arguments of a call, evaluated. */
struct call {
    struct value *positional;
    uint32_t n_positional;
    const char **names; /* any string: not always interned */
    struct value *keyword;
    uint32_t n_keyword;
};

struct render;
typedef enum status function_call(struct render *r, struct value self, const struct call *call,
                                  struct value *out);
/* A filter, test, method or global function. */
struct function {
    const char *name;
    function_call *call;
};
struct method {
    struct value self;
    const struct function *function;
};

/* Text being written, with its origins. */
struct builder {
    struct render *r;
    char *bytes;
    uint32_t len, capacity;
    struct span *spans;
    uint32_t n_spans, span_capacity;
};

struct render {
    const struct chat_template *t;
    struct arena arena;
    uint64_t steps;
    uint32_t depth;
    uint32_t line; /* of the node being evaluated, for errors */
    int64_t now;   /* seconds since the epoch: strftime_now() */
    struct scope root;
    struct dict *variables; /* what the caller gave */
    struct builder *out;
};

/* ---- running ---- */

/* Renders into pieces that the caller frees with the arena; now is what strftime_now() tells. */
enum status jinja_render(const struct chat_template *t, const struct vocabulary *v,
                         const struct json_t *variables, int64_t now, struct buffer *out,
                         struct prompt_piece **pieces, uint32_t *n_pieces) WARN_UNUSED;

void *jinja_alloc(struct render *r, size_t n, size_t size); /* NULL after fail() */
enum status jinja_fail(struct render *r, const char *format, ...) PRINTF_LIKE(2, 3);
enum status jinja_charge(struct render *r,
                         size_t bytes) WARN_UNUSED;    /* for looking through so many bytes */
enum status jinja_enter(struct render *r) WARN_UNUSED; /* a step, and one level deeper */
void jinja_leave(struct render *r);

enum flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE };
enum status jinja_exec(struct render *r, const struct node_list *body, struct scope *scope,
                       enum flow *out) WARN_UNUSED;
enum status jinja_eval(struct render *r, const struct node *n, struct scope *scope,
                       struct value *out) WARN_UNUSED;
enum status jinja_eval_arguments(struct render *r, const struct arguments *a, struct scope *scope,
                                 struct call *out) WARN_UNUSED;
enum status jinja_apply_filter(struct render *r, const char *name, struct value input,
                               const struct call *call, struct value *out) WARN_UNUSED;
enum status jinja_apply_test(struct render *r, const char *name, struct value input,
                             const struct call *call, bool *out) WARN_UNUSED;
enum status jinja_call(struct render *r, struct value callee, const struct call *call,
                       struct value *out) WARN_UNUSED;
enum status jinja_call_macro(struct render *r, const struct macro_value *m, const struct call *call,
                             struct value *out) WARN_UNUSED;
enum status jinja_run_loop(struct render *r, const struct node *n, struct scope *outer,
                           struct value iterable, uint32_t depth0) WARN_UNUSED;
enum status jinja_assign(struct render *r, const struct node *target, struct scope *scope,
                         struct value v) WARN_UNUSED;
enum status jinja_scope_set(struct render *r, struct scope *s, const char *name,
                            struct value v) WARN_UNUSED;
const struct value *jinja_scope_find(const struct scope *s, const char *name); /* this scope only */

/* value.name and value[key], with the sandbox's rules. */
enum status jinja_get_attribute(struct render *r, struct value v, const char *name, size_t len,
                                struct value *out) WARN_UNUSED;
enum status jinja_get_item(struct render *r, struct value v, struct value key,
                           struct value *out) WARN_UNUSED;
/* What Python's getattr() finds, methods included; found false: nothing. */
enum status jinja_python_attribute(struct render *r, struct value v, const char *name, size_t len,
                                   bool *found, struct value *out) WARN_UNUSED;
enum status jinja_slice(struct render *r, struct value v, struct value start, struct value stop,
                        struct value step, struct value *out) WARN_UNUSED;
const struct function *jinja_find_method(enum value_type type, const char *name, size_t len);
const struct function *jinja_find_filter(const char *name);
const struct function *jinja_find_test(const char *name);
const struct function *jinja_find_global(const char *name);
extern const struct function jinja_str_methods[]; /* up to a name of NULL */
/* A method that would change what the sandbox keeps as it is. */
bool jinja_is_mutation(enum value_type type, const char *name, size_t len);

/* Puts arguments into slots by position or name; names end with NULL. Absent ones stay
 * VALUE_UNDEFINED with present false. */
struct slot {
    const char *name;
    bool present;
    struct value value;
};
enum status jinja_bind(struct render *r, const char *function, const struct call *call,
                       struct slot *slots, uint32_t n) WARN_UNUSED;

/* Values */
struct value jinja_value_none(void);
struct value jinja_value_bool(bool b);
struct value jinja_value_int(int64_t i);
struct value jinja_value_float(double d);
enum status jinja_value_undefined(struct render *r, const char *hint,
                                  struct value *out) WARN_UNUSED;
enum status jinja_value_missing(struct render *r, struct value object, struct value name,
                                struct value *out) WARN_UNUSED;
enum status jinja_value_undefined_name(struct render *r, const char *name,
                                       struct value *out) WARN_UNUSED;
enum status jinja_value_string(struct render *r, const char *bytes, size_t len, bool from_template,
                               struct value *out) WARN_UNUSED;
enum status jinja_value_text(struct render *r, struct text t, struct value *out) WARN_UNUSED;
enum status jinja_value_list(struct render *r, enum value_type type, uint32_t n,
                             struct value *out) WARN_UNUSED; /* items to be filled */
enum status jinja_value_dict(struct render *r, uint32_t capacity, struct value *out) WARN_UNUSED;
enum status jinja_dict_set(struct render *r, struct dict *d, struct value key,
                           struct value v) WARN_UNUSED;
const struct value *jinja_dict_find(const struct dict *d, struct value key);
const struct value *jinja_dict_find_string(const struct dict *d, const char *key, size_t len);
enum status jinja_value_from_json(struct render *r, const struct json_t *j,
                                  struct value *out) WARN_UNUSED;
enum status jinja_value_use(struct render *r,
                            struct value v) WARN_UNUSED; /* the error of an undefined value */
bool jinja_value_is_true(struct value v);
bool jinja_value_is_number(struct value v); /* bool included */
double jinja_value_number(struct value v);
bool jinja_value_is_text(struct value v, const char *s);
const char *jinja_value_type_name(struct value v);     /* Python's: "str" */
const char *jinja_type_object_name(enum value_type t); /* "dict object" */
bool jinja_value_equal(struct value a, struct value b);
enum status jinja_value_length(struct render *r, struct value v, uint32_t *out) WARN_UNUSED;
/* The items of anything iterable; a generator is used up. */
enum status jinja_value_items(struct render *r, struct value v, struct value **items,
                              uint32_t *n) WARN_UNUSED;
bool jinja_value_is_iterable(struct value v);

/* Operators */
enum status jinja_binary(struct render *r, uint32_t op, struct value a, struct value b,
                         struct value *out) WARN_UNUSED;
enum status jinja_compare(struct render *r, enum compare_op op, struct value a, struct value b,
                          bool *out) WARN_UNUSED;
enum status jinja_order(struct render *r, const char *op, struct value a, struct value b,
                        int *out) WARN_UNUSED; /* < 0, 0, > 0 */
enum status jinja_contains(struct render *r, struct value container, struct value item,
                           bool *out) WARN_UNUSED;

/* Text */
enum status jinja_builder_init(struct builder *b, struct render *r, size_t capacity) WARN_UNUSED;
enum status jinja_builder_add(struct builder *b, const char *bytes, size_t len,
                              bool from_template) WARN_UNUSED;
enum status jinja_builder_add_text(struct builder *b, const struct text *t, uint32_t start,
                                   uint32_t end) WARN_UNUSED;
enum status jinja_builder_finish(struct builder *b, struct value *out) WARN_UNUSED;
bool jinja_text_origin(const struct text *t, uint32_t position);
enum status jinja_text_slice(struct render *r, const struct text *t, uint32_t start, uint32_t end,
                             struct value *out) WARN_UNUSED; /* bytes */
enum status jinja_text_escape(struct render *r, const struct text *t,
                              struct value *out) WARN_UNUSED; /* HTML, as Markup */
uint32_t jinja_text_points(const struct text *t);
/* The byte at which the point with this number starts. */
uint32_t jinja_text_offset(const struct text *t, uint32_t point);
/* Where needle starts in t from byte `from` on; UINT32_MAX: nowhere. */
uint32_t jinja_text_find(const struct text *t, const struct text *needle, uint32_t from);
uint32_t jinja_text_find_last(const struct text *t, const struct text *needle);

/* Whole strings (jinja_strings.c), with Python's rules */
enum text_case { CASE_UPPER, CASE_LOWER, CASE_CAPITALIZE, CASE_TITLE, CASE_SWAP };
enum status jinja_text_change_case(struct render *r, const struct text *t, enum text_case how,
                                   struct value *out) WARN_UNUSED;
/* chars NULL: white space. */
enum status jinja_text_strip(struct render *r, const struct text *t, const struct text *chars,
                             bool left, bool right, struct value *out) WARN_UNUSED;
/* most < 0: all of them. */
enum status jinja_text_replace(struct render *r, const struct text *t, const struct text *old,
                               const struct text *new_text, int64_t most,
                               struct value *out) WARN_UNUSED;
/* separator NULL: runs of white space. */
enum status jinja_text_split(struct render *r, const struct text *t, const struct text *separator,
                             int64_t most, bool from_right, struct value *out) WARN_UNUSED;
enum status jinja_text_split_lines(struct render *r, const struct text *t, bool keep_ends,
                                   struct value *out) WARN_UNUSED;
enum status jinja_text_join(struct render *r, const struct text *separator,
                            const struct value *items, uint32_t n, struct value *out) WARN_UNUSED;
/* Padded to width characters. */
enum status jinja_text_pad(struct render *r, const struct text *t, int64_t width,
                           const struct text *fill, bool left, bool right,
                           struct value *out) WARN_UNUSED;
bool jinja_text_starts_with(const struct text *t, uint32_t at, const struct text *prefix);
/* Simple upper, lower and title case of one character. */
uint32_t jinja_point_upper(uint32_t c);
uint32_t jinja_point_lower(uint32_t c);
bool jinja_point_is_letter(uint32_t c);
bool jinja_point_is_number(uint32_t c);
bool jinja_point_is_upper(uint32_t c);
bool jinja_point_is_lower(uint32_t c);
/* Arguments as the functions want them; a wrong type is an error that names the function. */
enum status jinja_want_text(struct render *r, const char *function, struct value v,
                            struct text **out) WARN_UNUSED;
enum status jinja_want_int(struct render *r, const char *function, struct value v,
                           int64_t *out) WARN_UNUSED;
/* "a.b.0" of v, as the filters' `attribute` has it (an integer is an index). What is missing on the
 * way becomes the fallback, if there is one. */
enum status jinja_get_path(struct render *r, struct value v, struct value path,
                           const struct value *fallback, struct value *out) WARN_UNUSED;

/* Printing */
enum status jinja_print_str(struct builder *b, struct value v) WARN_UNUSED;
enum status jinja_print_repr(struct builder *b, struct value v) WARN_UNUSED;
enum status jinja_value_to_text(struct render *r, struct value v,
                                struct value *out) WARN_UNUSED; /* str(): a string stays */
struct json_style {
    bool ensure_ascii, sort_keys;
    const struct text *indent; /* NULL: one line */
    const char *item_separator, *key_separator;
};
enum status jinja_print_json(struct builder *b, struct value v,
                             const struct json_style *style) WARN_UNUSED;
/* repr() of a float. */
void jinja_format_float(double d, char out[40]);

#endif
