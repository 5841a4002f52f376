/* Arithmetic, comparison and membership, as Python has them. Integers are 64 bits: what would be
 * longer is an error. */
#include "base/checked.h"
#include "text/jinja.h"
#include "text/unicode.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *op_name(uint32_t op)
{
    switch (op) {
    case '+':
        return "+";
    case '-':
        return "-";
    case '*':
        return "*";
    case '/':
        return "/";
    case '%':
        return "%";
    default:
        return op == OP2('*', '*') ? "**" : "//";
    }
}

static int64_t as_int(struct value v)
{
    return v.type == VALUE_BOOL ? v.boolean : v.integer;
}

static enum status too_large(struct render *r)
{
    return jinja_fail(r, "a number is too large");
}

static enum status int_power(struct render *r, int64_t base, int64_t exponent, struct value *out)
{
    int64_t result = 1;

    if (exponent < 0) {
        if (base == 0)
            return jinja_fail(r, "zero cannot be raised to a negative power");
        *out = jinja_value_float(pow((double)base, (double)exponent));
        return STATUS_OK;
    }
    while (exponent > 0) {
        if ((exponent & 1) && __builtin_mul_overflow(result, base, &result))
            return too_large(r);
        exponent >>= 1;
        if (exponent > 0 && __builtin_mul_overflow(base, base, &base))
            return too_large(r);
    }
    *out = jinja_value_int(result);
    return STATUS_OK;
}

static enum status int_arithmetic(struct render *r, uint32_t op, int64_t a, int64_t b,
                                  struct value *out)
{
    int64_t result = 0;
    bool overflow = false;

    if ((op == '/' || op == '%' || op == OP2('/', '/')) && b == 0)
        return jinja_fail(r, "division by zero");
    switch (op) {
    case '+':
        overflow = __builtin_add_overflow(a, b, &result);
        break;
    case '-':
        overflow = __builtin_sub_overflow(a, b, &result);
        break;
    case '*':
        overflow = __builtin_mul_overflow(a, b, &result);
        break;
    case '/':
        *out = jinja_value_float((double)a / (double)b);
        return STATUS_OK;
    case OP2('*', '*'):
        return int_power(r, a, b, out);
    default:           /* towards minus infinity, and the remainder has the divisor's sign */
        if (b == -1) { /* the one quotient that may not fit */
            overflow = op != '%' && __builtin_sub_overflow((int64_t)0, a, &result);
            break;
        }
        int64_t quotient = a / b, remainder = a % b;
        if (remainder != 0 && (remainder < 0) != (b < 0)) {
            quotient--;
            remainder += b;
        }
        result = op == '%' ? remainder : quotient;
    }
    if (overflow)
        return too_large(r);
    *out = jinja_value_int(result);
    return STATUS_OK;
}

static enum status float_arithmetic(struct render *r, uint32_t op, double a, double b,
                                    struct value *out)
{
    double result;

    if ((op == '/' || op == '%' || op == OP2('/', '/')) && b == 0)
        return jinja_fail(r, "division by zero");
    switch (op) {
    case '+':
        result = a + b;
        break;
    case '-':
        result = a - b;
        break;
    case '*':
        result = a * b;
        break;
    case '/':
        result = a / b;
        break;
    case OP2('*', '*'):
        result = pow(a, b);
        break;
    default:
        result = fmod(a, b);
        if (result != 0 && (result < 0) != (b < 0))
            result += b;
        if (op != '%')
            result = floor((a - result) / b + 0.5);
    }
    *out = jinja_value_float(result);
    return STATUS_OK;
}

static enum status concat_texts(struct render *r, struct value a, struct value b, struct value *out)
{
    struct builder builder;
    bool markup = a.text->markup || b.text->markup;

    if (markup) {
        TRY(jinja_text_escape(r, a.text, &a));
        TRY(jinja_text_escape(r, b.text, &b));
    }
    TRY(jinja_builder_init(&builder, r, (size_t)a.text->len + b.text->len));
    TRY(jinja_builder_add_text(&builder, a.text, 0, a.text->len));
    TRY(jinja_builder_add_text(&builder, b.text, 0, b.text->len));
    TRY(jinja_builder_finish(&builder, out));
    out->text->markup = markup;
    return STATUS_OK;
}

static enum status concat_lists(struct render *r, struct value a, struct value b, struct value *out)
{
    TRY(jinja_charge(r, ((size_t)a.list->n + b.list->n) * sizeof(struct value)));
    TRY(jinja_value_list(r, a.type, a.list->n + b.list->n, out));
    memcpy(out->list->items, a.list->items, a.list->n * sizeof(struct value));
    memcpy(out->list->items + a.list->n, b.list->items, b.list->n * sizeof(struct value));
    return STATUS_OK;
}

static enum status repeat(struct render *r, struct value v, int64_t times, struct value *out)
{
    struct builder b;

    times = MAX(times, 0);
    if (v.type == VALUE_STRING) {
        if (v.text->len > 0 && times > JINJA_MAX_OUTPUT_BYTES / v.text->len)
            return jinja_fail(r, "a text repeated %lld times is too long", (long long)times);
        times = v.text->len ? times : 0;
        TRY(jinja_builder_init(&b, r, v.text->len * (size_t)times));
        for (int64_t i = 0; i < times; i++)
            TRY(jinja_builder_add_text(&b, v.text, 0, v.text->len));
        return jinja_builder_finish(&b, out);
    }
    if (v.list->n > 0 && times > JINJA_MAX_STEPS / v.list->n)
        return jinja_fail(r, "a list repeated %lld times is too long", (long long)times);
    uint32_t n = v.list->n * (uint32_t)(v.list->n ? times : 0);
    TRY(jinja_charge(r, (size_t)n * sizeof(struct value)));
    TRY(jinja_value_list(r, v.type, n, out));
    for (uint32_t i = 0; i < n; i++)
        out->list->items[i] = v.list->items[i % v.list->n];
    return STATUS_OK;
}

/* "%s of %d" % values: the conversions that templates use. */
static enum status format_percent(struct render *r, const struct text *t, struct value values,
                                  struct value *out)
{
    struct builder b;
    uint32_t next = 0, n = values.type == VALUE_TUPLE ? values.list->n : 1;
    char number[64];

    TRY(jinja_builder_init(&b, r, t->len));
    for (uint32_t i = 0; i < t->len; i++) {
        if (t->bytes[i] != '%') {
            TRY(jinja_builder_add_text(&b, t, i, i + 1));
            continue;
        }
        char kind = ++i < t->len ? t->bytes[i] : 0;
        if (kind == '%') {
            TRY(jinja_builder_add_text(&b, t, i, i + 1));
            continue;
        }
        if (next == n)
            return jinja_fail(r, "not enough arguments for format string");
        struct value v = values.type == VALUE_TUPLE ? values.list->items[next] : values;
        next++;
        if (kind == 's') {
            TRY(jinja_print_str(&b, v));
        } else if (kind == 'r') {
            TRY(jinja_print_repr(&b, v));
        } else if (kind == 'd' && jinja_value_is_number(v)) {
            snprintf(number, sizeof number, "%.0f", trunc(jinja_value_number(v)));
            if (v.type != VALUE_FLOAT)
                snprintf(number, sizeof number, "%lld", (long long)as_int(v));
            TRY(jinja_builder_add(&b, number, strlen(number), !v.from_user));
        } else {
            return jinja_fail(r, "the format %%%c is not supported here", kind ? kind : ' ');
        }
    }
    /* What can be indexed counts as a mapping there, of which nothing need be used. */
    bool mapping = values.type == VALUE_DICT || values.type == VALUE_LIST ||
                   values.type == VALUE_RANGE || values.type == VALUE_UNDEFINED;
    if (next < n && !mapping)
        return jinja_fail(r, "not all arguments converted during string formatting");
    return jinja_builder_finish(&b, out);
}

static bool is_sequence(struct value v)
{
    return v.type == VALUE_STRING || v.type == VALUE_LIST || v.type == VALUE_TUPLE;
}

static bool is_integer(struct value v)
{
    return v.type == VALUE_INT || v.type == VALUE_BOOL;
}

enum status jinja_binary(struct render *r, uint32_t op, struct value a, struct value b,
                         struct value *out)
{
    TRY(jinja_value_use(r, a));
    if (op == '%' && a.type == VALUE_STRING)
        return format_percent(r, a.text, b, out);
    TRY(jinja_value_use(r, b));
    if (is_integer(a) && is_integer(b))
        return int_arithmetic(r, op, as_int(a), as_int(b), out);
    if (jinja_value_is_number(a) && jinja_value_is_number(b))
        return float_arithmetic(r, op, jinja_value_number(a), jinja_value_number(b), out);
    if (op == '+' && a.type == VALUE_STRING && b.type == VALUE_STRING)
        return concat_texts(r, a, b, out);
    if (op == '+' && a.type == b.type && (a.type == VALUE_LIST || a.type == VALUE_TUPLE))
        return concat_lists(r, a, b, out);
    if (op == '*' && is_sequence(a) && is_integer(b))
        return repeat(r, a, as_int(b), out);
    if (op == '*' && is_integer(a) && is_sequence(b))
        return repeat(r, b, as_int(a), out);
    if (op == '+' && a.type == VALUE_STRING)
        return jinja_fail(r, "can only concatenate str (not \"%s\") to str",
                          jinja_value_type_name(b));
    return jinja_fail(r, "unsupported operand type(s) for %s: '%s' and '%s'", op_name(op),
                      jinja_value_type_name(a), jinja_value_type_name(b));
}

/* ---- comparison ---- */

static enum status order_lists(struct render *r, const char *op, const struct list *a,
                               const struct list *b, int *out)
{
    for (uint32_t i = 0; i < a->n && i < b->n; i++) {
        TRY(jinja_charge(r, 0));
        if (!jinja_value_equal(a->items[i], b->items[i]))
            return jinja_order(r, op, a->items[i], b->items[i], out);
    }
    *out = (a->n > b->n) - (a->n < b->n);
    return STATUS_OK;
}

enum status jinja_order(struct render *r, const char *op, struct value a, struct value b, int *out)
{
    TRY(jinja_value_use(r, a));
    TRY(jinja_value_use(r, b));
    if (is_integer(a) && is_integer(b)) {
        *out = (as_int(a) > as_int(b)) - (as_int(a) < as_int(b));
        return STATUS_OK;
    }
    if (jinja_value_is_number(a) && jinja_value_is_number(b)) {
        double x = jinja_value_number(a), y = jinja_value_number(b);
        *out = (x > y) - (x < y);
        return STATUS_OK;
    }
    if (a.type == VALUE_STRING &&
        b.type == VALUE_STRING) { /* bytes of UTF-8 are in the order of the code points */
        TRY(jinja_charge(r, MIN(a.text->len, b.text->len)));
        int order = memcmp(a.text->bytes, b.text->bytes, MIN(a.text->len, b.text->len));
        *out = order ? order : (a.text->len > b.text->len) - (a.text->len < b.text->len);
        return STATUS_OK;
    }
    if (a.type == b.type && (a.type == VALUE_LIST || a.type == VALUE_TUPLE)) {
        TRY(jinja_enter(r));
        TRY(order_lists(r, op, a.list, b.list, out));
        jinja_leave(r);
        return STATUS_OK;
    }
    return jinja_fail(r, "'%s' not supported between instances of '%s' and '%s'", op,
                      jinja_value_type_name(a), jinja_value_type_name(b));
}

enum status jinja_contains(struct render *r, struct value container, struct value item, bool *out)
{
    struct value *items;
    uint32_t n;

    if (container.type == VALUE_STRING) {
        TRY(jinja_value_use(r, item));
        if (item.type != VALUE_STRING)
            return jinja_fail(r, "'in <string>' requires string as left operand, not %s",
                              jinja_value_type_name(item));
        TRY(jinja_charge(r, container.text->len));
        *out = jinja_text_find(container.text, item.text, 0) != UINT32_MAX;
        return STATUS_OK;
    }
    if (container.type == VALUE_DICT) {
        if (item.type == VALUE_LIST || item.type == VALUE_DICT)
            return jinja_fail(r, "unhashable type: '%s'", jinja_value_type_name(item));
        TRY(jinja_charge(r, container.dict->index ? 0 : container.dict->n));
        *out = jinja_dict_find(container.dict, item) != NULL;
        return STATUS_OK;
    }
    if (!jinja_value_is_iterable(container))
        return jinja_fail(r, "argument of type '%s' is not iterable",
                          jinja_value_type_name(container));
    TRY(jinja_value_items(r, container, &items, &n));
    *out = false;
    for (uint32_t i = 0; i < n && !*out; i++) {
        TRY(jinja_charge(r, 0));
        *out = jinja_value_equal(items[i], item);
    }
    return STATUS_OK;
}

enum status jinja_compare(struct render *r, enum compare_op op, struct value a, struct value b,
                          bool *out)
{
    static const char *const names[] = {
        [COMPARE_LT] = "<", [COMPARE_LE] = "<=", [COMPARE_GT] = ">", [COMPARE_GE] = ">="};
    bool found;
    int order;

    switch (op) {
    case COMPARE_EQ:
    case COMPARE_NE:
        TRY(jinja_charge(r, a.type == VALUE_STRING && b.type == VALUE_STRING
                                ? MIN(a.text->len, b.text->len)
                                : 0));
        *out = jinja_value_equal(a, b) == (op == COMPARE_EQ);
        return STATUS_OK;
    case COMPARE_IN:
    case COMPARE_NOT_IN:
        TRY(jinja_contains(r, b, a, &found));
        *out = found == (op == COMPARE_IN);
        return STATUS_OK;
    default:
        TRY(jinja_order(r, names[op], a, b, &order));
        *out = op == COMPARE_LT   ? order < 0
               : op == COMPARE_LE ? order <= 0
               : op == COMPARE_GT ? order > 0
                                  : order >= 0;
        return STATUS_OK;
    }
}
