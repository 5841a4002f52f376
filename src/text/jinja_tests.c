/* What may follow `is`. */
#include "base/checked.h"
#include "text/jinja.h"
#include "text/unicode.h"

#include <string.h>

#define TEST(name)                                                                                 \
    static enum status name(struct render *r, struct value self, const struct call *call,          \
                            struct value *out)

static enum status no_arguments(struct render *r, const struct call *call)
{
    return jinja_bind(r, "the test", call, NULL, 0);
}

/* A test of the value's type alone. */
#define TYPE_TEST(name, condition)                                                                 \
    TEST(name)                                                                                     \
    {                                                                                              \
        TRY(no_arguments(r, call));                                                                \
        *out = jinja_value_bool(condition);                                                        \
        return STATUS_OK;                                                                          \
    }

TYPE_TEST(test_defined, self.type != VALUE_UNDEFINED)
TYPE_TEST(test_undefined, self.type == VALUE_UNDEFINED)
TYPE_TEST(test_none, self.type == VALUE_NONE)
TYPE_TEST(test_boolean, self.type == VALUE_BOOL)
TYPE_TEST(test_true, self.type == VALUE_BOOL && self.boolean)
TYPE_TEST(test_false, self.type == VALUE_BOOL && !self.boolean)
TYPE_TEST(test_integer, self.type == VALUE_INT)
TYPE_TEST(test_float, self.type == VALUE_FLOAT)
TYPE_TEST(test_number, jinja_value_is_number(self))
TYPE_TEST(test_string, self.type == VALUE_STRING)
TYPE_TEST(test_mapping, self.type == VALUE_DICT)
TYPE_TEST(test_iterable, jinja_value_is_iterable(self))
TYPE_TEST(test_escaped, self.type == VALUE_STRING && self.text->markup)
/* Has a length and can be indexed; an undefined value pretends to. */
TYPE_TEST(test_sequence, self.type == VALUE_UNDEFINED || self.type == VALUE_STRING ||
                             self.type == VALUE_LIST || self.type == VALUE_TUPLE ||
                             self.type == VALUE_DICT || self.type == VALUE_RANGE)
TYPE_TEST(test_callable, self.type == VALUE_FUNCTION || self.type == VALUE_METHOD ||
                             self.type == VALUE_MACRO || self.type == VALUE_LOOP ||
                             self.type == VALUE_UNDEFINED)

static enum status one_argument(struct render *r, const struct call *call, struct value *out)
{
    struct slot slots[] = {{.name = "other"}};

    TRY(jinja_bind(r, "the test", call, slots, 1));
    if (!slots[0].present)
        return jinja_fail(r, "the test wants an argument");
    *out = slots[0].value;
    return STATUS_OK;
}

static enum status remainder_is(struct render *r, struct value self, struct value by,
                                int64_t wanted, struct value *out)
{
    struct value remainder;

    if (self.type == VALUE_STRING)
        return jinja_fail(r, "a string is neither odd nor even");
    TRY(jinja_binary(r, '%', self, by, &remainder));
    *out = jinja_value_bool(jinja_value_equal(remainder, jinja_value_int(wanted)));
    return STATUS_OK;
}

TEST(test_odd)
{
    TRY(no_arguments(r, call));
    return remainder_is(r, self, jinja_value_int(2), 1, out);
}

TEST(test_even)
{
    TRY(no_arguments(r, call));
    return remainder_is(r, self, jinja_value_int(2), 0, out);
}

TEST(test_divisibleby)
{
    struct value by;

    TRY(one_argument(r, call, &by));
    return remainder_is(r, self, by, 0, out);
}

static enum status compare(struct render *r, struct value self, const struct call *call,
                           enum compare_op op, struct value *out)
{
    struct value other;
    bool holds;

    TRY(one_argument(r, call, &other));
    TRY(jinja_compare(r, op, self, other, &holds));
    *out = jinja_value_bool(holds);
    return STATUS_OK;
}

TEST(test_eq)
{
    return compare(r, self, call, COMPARE_EQ, out);
}

TEST(test_ne)
{
    return compare(r, self, call, COMPARE_NE, out);
}

TEST(test_lt)
{
    return compare(r, self, call, COMPARE_LT, out);
}

TEST(test_le)
{
    return compare(r, self, call, COMPARE_LE, out);
}

TEST(test_gt)
{
    return compare(r, self, call, COMPARE_GT, out);
}

TEST(test_ge)
{
    return compare(r, self, call, COMPARE_GE, out);
}

TEST(test_in)
{
    return compare(r, self, call, COMPARE_IN, out);
}

/* The same thing: for what is not a container, the same value of the same type. */
TEST(test_sameas)
{
    struct value other;

    TRY(one_argument(r, call, &other));
    bool container = self.type == VALUE_LIST || self.type == VALUE_TUPLE ||
                     self.type == VALUE_DICT || self.type == VALUE_NAMESPACE;
    *out = jinja_value_bool(self.type == other.type &&
                            (container ? self.list == other.list : jinja_value_equal(self, other)));
    return STATUS_OK;
}

static enum status has_case(struct render *r, struct value self, const char *method,
                            const struct call *call, struct value *out)
{
    struct value text;

    TRY(no_arguments(r, call));
    TRY(jinja_value_to_text(r, self, &text));
    return jinja_find_method(VALUE_STRING, method, strlen(method))->call(r, text, call, out);
}

TEST(test_lower)
{
    return has_case(r, self, "islower", call, out);
}

TEST(test_upper)
{
    return has_case(r, self, "isupper", call, out);
}

static enum status name_of(struct render *r, struct value self, char name[64])
{
    struct text *t;

    TRY(jinja_want_text(r, "the test", self, &t));
    memset(name, 0, 64);
    memcpy(name, t->bytes, MIN(t->len, 63u));
    return STATUS_OK;
}

TEST(test_filter)
{
    char name[64];

    TRY(no_arguments(r, call));
    TRY(name_of(r, self, name));
    *out = jinja_value_bool(jinja_find_filter(name) != NULL);
    return STATUS_OK;
}

TEST(test_test)
{
    char name[64];

    TRY(no_arguments(r, call));
    TRY(name_of(r, self, name));
    *out = jinja_value_bool(jinja_find_test(name) != NULL);
    return STATUS_OK;
}

const struct function *jinja_find_test(const char *name)
{
    static const struct function tests[] = {
        {"!=", test_ne},
        {"<", test_lt},
        {"<=", test_le},
        {"==", test_eq},
        {">", test_gt},
        {">=", test_ge},
        {"boolean", test_boolean},
        {"callable", test_callable},
        {"defined", test_defined},
        {"divisibleby", test_divisibleby},
        {"eq", test_eq},
        {"equalto", test_eq},
        {"escaped", test_escaped},
        {"even", test_even},
        {"false", test_false},
        {"filter", test_filter},
        {"float", test_float},
        {"ge", test_ge},
        {"greaterthan", test_gt},
        {"gt", test_gt},
        {"in", test_in},
        {"integer", test_integer},
        {"iterable", test_iterable},
        {"le", test_le},
        {"lessthan", test_lt},
        {"lower", test_lower},
        {"lt", test_lt},
        {"mapping", test_mapping},
        {"ne", test_ne},
        {"none", test_none},
        {"number", test_number},
        {"odd", test_odd},
        {"sameas", test_sameas},
        {"sequence", test_sequence},
        {"string", test_string},
        {"test", test_test},
        {"true", test_true},
        {"undefined", test_undefined},
        {"upper", test_upper},
    };

    for (size_t i = 0; i < ARRAY_LENGTH(tests); i++)
        if (!strcmp(tests[i].name, name))
            return &tests[i];
    return NULL;
}
