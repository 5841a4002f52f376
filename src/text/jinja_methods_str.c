/* Methods of Python's str. */
#include "base/checked.h"
#include "text/jinja.h"
#include "text/unicode.h"

#include <string.h>

#define METHOD(name)                                                                               \
    static enum status name(struct render *r, struct value self, const struct call *call,          \
                            struct value *out)

static const struct text space_text = {.bytes = " ", .len = 1, .from_template = true};
static const struct text zero_text = {.bytes = "0", .len = 1, .from_template = true};

static enum status no_arguments(struct render *r, const char *name, const struct call *call)
{
    return jinja_bind(r, name, call, NULL, 0);
}

static enum status strip(struct render *r, const char *name, struct value self,
                         const struct call *call, bool left, bool right, struct value *out)
{
    struct slot slots[] = {{.name = "chars"}};
    struct text *chars = NULL;

    TRY(jinja_bind(r, name, call, slots, 1));
    if (slots[0].present && slots[0].value.type != VALUE_NONE)
        TRY(jinja_want_text(r, name, slots[0].value, &chars));
    return jinja_text_strip(r, self.text, chars, left, right, out);
}

METHOD(str_strip)
{
    return strip(r, "strip", self, call, true, true, out);
}

METHOD(str_lstrip)
{
    return strip(r, "lstrip", self, call, true, false, out);
}

METHOD(str_rstrip)
{
    return strip(r, "rstrip", self, call, false, true, out);
}

static enum status split(struct render *r, const char *name, struct value self,
                         const struct call *call, bool from_right, struct value *out)
{
    struct slot slots[] = {{.name = "sep"}, {.name = "maxsplit"}};
    struct text *separator = NULL;
    int64_t most = -1;

    TRY(jinja_bind(r, name, call, slots, 2));
    if (slots[0].present && slots[0].value.type != VALUE_NONE)
        TRY(jinja_want_text(r, name, slots[0].value, &separator));
    if (slots[1].present)
        TRY(jinja_want_int(r, name, slots[1].value, &most));
    return jinja_text_split(r, self.text, separator, most, from_right, out);
}

METHOD(str_split)
{
    return split(r, "split", self, call, false, out);
}

METHOD(str_rsplit)
{
    return split(r, "rsplit", self, call, true, out);
}

METHOD(str_splitlines)
{
    struct slot slots[] = {{.name = "keepends"}};

    TRY(jinja_bind(r, "splitlines", call, slots, 1));
    return jinja_text_split_lines(r, self.text,
                                  slots[0].present && jinja_value_is_true(slots[0].value), out);
}

/* The part of a string that optional start and end arguments select, in bytes. */
static enum status bounds(struct render *r, const char *name, const struct text *t,
                          const struct slot *start, const struct slot *end, uint32_t *from,
                          uint32_t *to)
{
    int64_t length = jinja_text_points(t), first = 0, last = length;

    TRY(jinja_charge(r, t->len));
    if (start->present && start->value.type != VALUE_NONE)
        TRY(jinja_want_int(r, name, start->value, &first));
    if (end->present && end->value.type != VALUE_NONE)
        TRY(jinja_want_int(r, name, end->value, &last));
    first = first < 0 ? MAX(first + length, 0) : first;
    last = last < 0 ? MAX(last + length, 0) : MIN(last, length);
    *from = first > length ? t->len + 1 : jinja_text_offset(t, (uint32_t)first);
    *to = jinja_text_offset(t, (uint32_t)last);
    return STATUS_OK;
}

static enum status has_affix(struct render *r, const char *name, struct value self,
                             const struct call *call, bool at_end, struct value *out)
{
    struct slot slots[] = {{.name = "prefix"}, {.name = "start"}, {.name = "end"}};
    uint32_t from, to;

    TRY(jinja_bind(r, name, call, slots, 3));
    TRY(bounds(r, name, self.text, &slots[1], &slots[2], &from, &to));
    struct value *affixes = &slots[0].value;
    uint32_t n = 1;
    if (slots[0].present && slots[0].value.type == VALUE_TUPLE) {
        affixes = slots[0].value.list->items;
        n = slots[0].value.list->n;
    } else if (!slots[0].present) {
        return jinja_fail(r, "%s() wants an argument", name);
    }
    *out = jinja_value_bool(false);
    for (uint32_t i = 0; i < n && !out->boolean; i++) {
        struct text *affix, part;
        TRY(jinja_want_text(r, name, affixes[i], &affix));
        if (from > to)
            continue;
        part = (struct text){.bytes = self.text->bytes + from, .len = to - from};
        out->boolean = part.len >= affix->len &&
                       jinja_text_starts_with(&part, at_end ? part.len - affix->len : 0, affix);
    }
    return STATUS_OK;
}

METHOD(str_startswith)
{
    return has_affix(r, "startswith", self, call, false, out);
}

METHOD(str_endswith)
{
    return has_affix(r, "endswith", self, call, true, out);
}

METHOD(str_replace)
{
    struct slot slots[] = {{.name = "old"}, {.name = "new"}, {.name = "count"}};
    struct text *old, *new_text;
    int64_t most = -1;

    TRY(jinja_bind(r, "replace", call, slots, 3));
    if (!slots[0].present || !slots[1].present)
        return jinja_fail(r, "replace() wants two arguments");
    TRY(jinja_want_text(r, "replace", slots[0].value, &old));
    TRY(jinja_want_text(r, "replace", slots[1].value, &new_text));
    if (slots[2].present)
        TRY(jinja_want_int(r, "replace", slots[2].value, &most));
    return jinja_text_replace(r, self.text, old, new_text, most, out);
}

#define CASE_METHOD(name, word, how)                                                               \
    METHOD(name)                                                                                   \
    {                                                                                              \
        TRY(no_arguments(r, word, call));                                                          \
        return jinja_text_change_case(r, self.text, how, out);                                     \
    }
CASE_METHOD(str_upper, "upper", CASE_UPPER)
CASE_METHOD(str_lower, "lower", CASE_LOWER)
CASE_METHOD(str_title, "title", CASE_TITLE)
CASE_METHOD(str_capitalize, "capitalize", CASE_CAPITALIZE)
CASE_METHOD(str_swapcase, "swapcase", CASE_SWAP)

/* Where it is, counted in characters; -1: nowhere. */
static enum status find(struct render *r, const char *name, struct value self,
                        const struct call *call, bool last, bool must, struct value *out)
{
    struct slot slots[] = {{.name = "sub"}, {.name = "start"}, {.name = "end"}};
    struct text *needle;
    uint32_t from, to, found = UINT32_MAX;

    TRY(jinja_bind(r, name, call, slots, 3));
    TRY(jinja_want_text(r, name, slots[0].present ? slots[0].value : jinja_value_none(), &needle));
    TRY(bounds(r, name, self.text, &slots[1], &slots[2], &from, &to));
    if (from <= to) {
        struct text part = {.bytes = self.text->bytes + from, .len = to - from};
        TRY(jinja_charge(r, last ? (size_t)part.len * 4 : part.len));
        found = last ? jinja_text_find_last(&part, needle) : jinja_text_find(&part, needle, 0);
    }
    if (found == UINT32_MAX && must)
        return jinja_fail(r, "substring not found");
    struct text before = {.bytes = self.text->bytes, .len = found == UINT32_MAX ? 0 : from + found};
    *out = jinja_value_int(found == UINT32_MAX ? -1 : (int64_t)jinja_text_points(&before));
    return STATUS_OK;
}

METHOD(str_find)
{
    return find(r, "find", self, call, false, false, out);
}

METHOD(str_rfind)
{
    return find(r, "rfind", self, call, true, false, out);
}

METHOD(str_index)
{
    return find(r, "index", self, call, false, true, out);
}

METHOD(str_rindex)
{
    return find(r, "rindex", self, call, true, true, out);
}

METHOD(str_count)
{
    struct slot slots[] = {{.name = "sub"}, {.name = "start"}, {.name = "end"}};
    struct text *needle;
    uint32_t from, to;
    int64_t n = 0;

    TRY(jinja_bind(r, "count", call, slots, 3));
    TRY(jinja_want_text(r, "count", slots[0].present ? slots[0].value : jinja_value_none(),
                        &needle));
    TRY(bounds(r, "count", self.text, &slots[1], &slots[2], &from, &to));
    struct text part = {.bytes = self.text->bytes + MIN(from, to), .len = to - MIN(from, to)};
    if (from > to) {
        n = 0;
    } else if (needle->len == 0) {
        n = (int64_t)jinja_text_points(&part) + 1;
    } else {
        for (uint32_t at = 0; (at = jinja_text_find(&part, needle, at)) != UINT32_MAX;
             at += needle->len)
            n++;
    }
    *out = jinja_value_int(n);
    return STATUS_OK;
}

METHOD(str_join)
{
    struct slot slots[] = {{.name = "iterable"}};
    struct value *items;
    uint32_t n;

    TRY(jinja_bind(r, "join", call, slots, 1));
    if (!slots[0].present)
        return jinja_fail(r, "join() wants an argument");
    TRY(jinja_value_use(r, slots[0].value));
    TRY(jinja_value_items(r, slots[0].value, &items, &n));
    for (uint32_t i = 0; i < n; i++)
        if (items[i].type != VALUE_STRING)
            return jinja_fail(r, "sequence item %u: expected str instance, %s found", i,
                              jinja_value_type_name(items[i]));
    return jinja_text_join(r, self.text, items, n, out);
}

static enum status pad(struct render *r, const char *name, struct value self,
                       const struct call *call, const struct text *fill, bool left, bool right,
                       struct value *out)
{
    struct slot slots[] = {{.name = "width"}, {.name = "fillchar"}};
    struct text *chosen;
    int64_t width;

    TRY(jinja_bind(r, name, call, slots, 2));
    TRY(jinja_want_int(r, name, slots[0].present ? slots[0].value : jinja_value_none(), &width));
    if (slots[1].present) {
        TRY(jinja_want_text(r, name, slots[1].value, &chosen));
        fill = chosen;
        if (jinja_text_points(fill) != 1)
            return jinja_fail(r, "the fill character must be exactly one character long");
    }
    return jinja_text_pad(r, self.text, width, fill, left, right, out);
}

METHOD(str_ljust)
{
    return pad(r, "ljust", self, call, &space_text, false, true, out);
}

METHOD(str_rjust)
{
    return pad(r, "rjust", self, call, &space_text, true, false, out);
}

METHOD(str_center)
{
    return pad(r, "center", self, call, &space_text, true, true, out);
}

METHOD(str_zfill)
{
    bool is_signed =
        self.text->len > 0 && (self.text->bytes[0] == '-' || self.text->bytes[0] == '+');
    struct value sign, digits;

    if (!is_signed)
        return pad(r, "zfill", self, call, &zero_text, true, false, out);
    struct slot slots[] = {{.name = "width"}};
    int64_t width;
    TRY(jinja_bind(r, "zfill", call, slots, 1));
    TRY(jinja_want_int(r, "zfill", slots[0].present ? slots[0].value : jinja_value_none(), &width));
    TRY(jinja_text_slice(r, self.text, 0, 1, &sign));
    TRY(jinja_text_slice(r, self.text, 1, self.text->len, &digits));
    TRY(jinja_text_pad(r, digits.text, width - 1, &zero_text, true, false, &digits));
    return jinja_binary(r, '+', sign, digits, out);
}

static enum status partition(struct render *r, const char *name, struct value self,
                             const struct call *call, bool last, struct value *out)
{
    struct slot slots[] = {{.name = "sep"}};
    struct text *separator;

    TRY(jinja_bind(r, name, call, slots, 1));
    TRY(jinja_want_text(r, name, slots[0].present ? slots[0].value : jinja_value_none(),
                        &separator));
    if (separator->len == 0)
        return jinja_fail(r, "empty separator");
    TRY(jinja_charge(r, (size_t)self.text->len * (last ? 4 : 1)));
    uint32_t at = last ? jinja_text_find_last(self.text, separator)
                       : jinja_text_find(self.text, separator, 0),
             len = self.text->len;
    uint32_t cuts[4] = {0, at, at + separator->len, len};
    if (at == UINT32_MAX) {
        cuts[1] = cuts[2] = last ? 0 : len;
    }
    TRY(jinja_value_list(r, VALUE_TUPLE, 3, out));
    for (int i = 0; i < 3; i++)
        TRY(jinja_text_slice(r, self.text, cuts[i], cuts[i + 1], &out->list->items[i]));
    return STATUS_OK;
}

METHOD(str_partition)
{
    return partition(r, "partition", self, call, false, out);
}

METHOD(str_rpartition)
{
    return partition(r, "rpartition", self, call, true, out);
}

METHOD(str_removeprefix)
{
    struct slot slots[] = {{.name = "prefix"}};
    struct text *affix;

    TRY(jinja_bind(r, "removeprefix", call, slots, 1));
    TRY(jinja_want_text(r, "removeprefix", slots[0].present ? slots[0].value : jinja_value_none(),
                        &affix));
    uint32_t cut = jinja_text_starts_with(self.text, 0, affix) ? affix->len : 0;
    return jinja_text_slice(r, self.text, cut, self.text->len, out);
}

METHOD(str_removesuffix)
{
    struct slot slots[] = {{.name = "suffix"}};
    struct text *affix;

    TRY(jinja_bind(r, "removesuffix", call, slots, 1));
    TRY(jinja_want_text(r, "removesuffix", slots[0].present ? slots[0].value : jinja_value_none(),
                        &affix));
    uint32_t len = self.text->len;
    bool has = len >= affix->len && jinja_text_starts_with(self.text, len - affix->len, affix);
    return jinja_text_slice(r, self.text, 0, has ? len - affix->len : len, out);
}

/* "{} {0} {name}".format(): no conversions and no widths. */
METHOD(str_format)
{
    struct builder b;
    const struct text *t = self.text;
    uint32_t next = 0;

    TRY(jinja_builder_init(&b, r, t->len));
    for (uint32_t i = 0; i < t->len; i++) {
        char c = t->bytes[i];
        if ((c != '{' && c != '}') || (i + 1 < t->len && t->bytes[i + 1] == c)) {
            TRY(jinja_builder_add_text(&b, t, i, i + 1));
            i += c == '{' || c == '}';
            continue;
        }
        const char *close = c == '{' ? memchr(t->bytes + i, '}', t->len - i) : NULL;
        if (!close)
            return jinja_fail(r, "a single '%c' in a format string", c);
        const char *name = t->bytes + i + 1;
        size_t len = (size_t)(close - name);
        const struct value *v = NULL;
        if (len == 0 && next < call->n_positional) {
            v = &call->positional[next++];
        } else {
            uint32_t number = 0;
            size_t k = 0;
            for (; k < len && k < 9 && name[k] >= '0' && name[k] <= '9'; k++)
                number = number * 10 + (uint32_t)(name[k] - '0');
            v = k > 0 && k == len && number < call->n_positional ? &call->positional[number] : NULL;
        }
        for (uint32_t k = 0; !v && k < call->n_keyword; k++)
            if (strlen(call->names[k]) == len && !memcmp(call->names[k], name, len))
                v = &call->keyword[k];
        if (!v)
            return jinja_fail(r, "format() has no argument for {%.*s}", (int)MIN(len, (size_t)60),
                              name);
        TRY(jinja_print_str(&b, *v));
        i += (uint32_t)len + 1;
    }
    return jinja_builder_finish(&b, out);
}

/* All characters are of a kind, and there is at least one. */
static enum status all_are(struct render *r, const char *name, struct value self,
                           const struct call *call, bool (*is)(uint32_t), struct value *out)
{
    uint32_t c, step;
    bool all = self.text->len > 0;

    TRY(no_arguments(r, name, call));
    TRY(jinja_charge(r, self.text->len));
    for (uint32_t i = 0; i < self.text->len && all; i += step) {
        step = utf8_decode(self.text->bytes + i, self.text->len - i, &c);
        all = step > 0 && is(c);
    }
    *out = jinja_value_bool(all);
    return STATUS_OK;
}

static bool is_letter_or_number(uint32_t c)
{
    return jinja_point_is_letter(c) || jinja_point_is_number(c);
}

METHOD(str_isdigit)
{
    return all_are(r, "isdigit", self, call, jinja_point_is_number, out);
}

METHOD(str_isalpha)
{
    return all_are(r, "isalpha", self, call, jinja_point_is_letter, out);
}

METHOD(str_isalnum)
{
    return all_are(r, "isalnum", self, call, is_letter_or_number, out);
}

METHOD(str_isspace)
{
    return all_are(r, "isspace", self, call, jinja_is_space, out);
}

static enum status has_case(struct render *r, const char *name, struct value self,
                            const struct call *call, bool upper, struct value *out)
{
    uint32_t c, step;
    bool any = false, other = false;

    TRY(no_arguments(r, name, call));
    TRY(jinja_charge(r, self.text->len));
    for (uint32_t i = 0; i < self.text->len; i += step) {
        step = utf8_decode(self.text->bytes + i, self.text->len - i, &c);
        step = step ? step : 1;
        any |= upper ? jinja_point_is_upper(c) : jinja_point_is_lower(c);
        other |= upper ? jinja_point_is_lower(c) : jinja_point_is_upper(c);
    }
    *out = jinja_value_bool(any && !other);
    return STATUS_OK;
}

METHOD(str_isupper)
{
    return has_case(r, "isupper", self, call, true, out);
}

METHOD(str_islower)
{
    return has_case(r, "islower", self, call, false, out);
}

const struct function jinja_str_methods[] = {
    {"capitalize", str_capitalize},
    {"casefold", str_lower},
    {"center", str_center},
    {"count", str_count},
    {"endswith", str_endswith},
    {"find", str_find},
    {"format", str_format},
    {"index", str_index},
    {"isalnum", str_isalnum},
    {"isalpha", str_isalpha},
    {"isdecimal", str_isdigit},
    {"isdigit", str_isdigit},
    {"islower", str_islower},
    {"isnumeric", str_isdigit},
    {"isspace", str_isspace},
    {"isupper", str_isupper},
    {"join", str_join},
    {"ljust", str_ljust},
    {"lower", str_lower},
    {"lstrip", str_lstrip},
    {"partition", str_partition},
    {"removeprefix", str_removeprefix},
    {"removesuffix", str_removesuffix},
    {"replace", str_replace},
    {"rfind", str_rfind},
    {"rindex", str_rindex},
    {"rjust", str_rjust},
    {"rpartition", str_rpartition},
    {"rsplit", str_rsplit},
    {"rstrip", str_rstrip},
    {"split", str_split},
    {"splitlines", str_splitlines},
    {"startswith", str_startswith},
    {"strip", str_strip},
    {"swapcase", str_swapcase},
    {"title", str_title},
    {"upper", str_upper},
    {"zfill", str_zfill},
    {NULL, NULL},
};
