/* Filters over single values. (Over lists: jinja_filters_list.c.) */
#include "text/jinja_filters.h"
#include "base/checked.h"
#include "text/jinja.h"
#include "text/unicode.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum status no_arguments(struct render *r, const char *name, const struct call *call)
{
    return jinja_bind(r, name, call, NULL, 0);
}

FILTER(filter_abs)
{
    TRY(no_arguments(r, "abs", call));
    TRY(jinja_value_use(r, self));
    if (self.type == VALUE_FLOAT) {
        *out = jinja_value_float(fabs(self.number));
        return STATUS_OK;
    }
    if (!jinja_value_is_number(self))
        return jinja_fail(r, "bad operand type for abs(): '%s'", jinja_value_type_name(self));
    *out = jinja_value_int(self.type == VALUE_BOOL ? self.boolean : self.integer);
    return out->integer < 0 ? jinja_binary(r, '-', jinja_value_int(0), *out, out) : STATUS_OK;
}

FILTER(filter_attr)
{
    struct slot slots[] = {{.name = "name"}};
    struct text *name;
    bool found;

    TRY(jinja_bind(r, "attr", call, slots, 1));
    TRY(jinja_want_text(r, "attr", slots[0].present ? slots[0].value : jinja_value_none(), &name));
    TRY(jinja_value_use(r, self));
    TRY(jinja_python_attribute(r, self, name->bytes, name->len, &found, out));
    return found ? STATUS_OK : jinja_value_missing(r, self, slots[0].value, out);
}

static enum status change_case(struct render *r, const char *name, struct value self,
                               const struct call *call, enum text_case how, struct value *out)
{
    struct value text;

    TRY(no_arguments(r, name, call));
    TRY(jinja_value_to_text(r, self, &text));
    return jinja_text_change_case(r, text.text, how, out);
}

FILTER(filter_capitalize)
{
    return change_case(r, "capitalize", self, call, CASE_CAPITALIZE, out);
}

FILTER(filter_lower)
{
    return change_case(r, "lower", self, call, CASE_LOWER, out);
}

FILTER(filter_upper)
{
    return change_case(r, "upper", self, call, CASE_UPPER, out);
}

/* Unlike str.title(), words begin only behind blanks, hyphens and opening brackets. */
FILTER(filter_title)
{
    struct value text, word;
    struct builder b;
    uint32_t start = 0, c = 0, step, point;

    TRY(no_arguments(r, "title", call));
    TRY(jinja_value_to_text(r, self, &text));
    const struct text *t = text.text;
    TRY(jinja_builder_init(&b, r, t->len));
    for (uint32_t i = 0; i <= t->len; i += step) {
        step = i < t->len ? utf8_decode(t->bytes + i, t->len - i, &c) : 1;
        step = step ? step : 1;
        bool between = i < t->len && (c == '-' || c == '(' || c == '{' || c == '[' || c == '<' ||
                                      jinja_is_space(c));
        if (i < t->len && !between)
            continue;
        uint32_t first = start < i ? utf8_decode(t->bytes + start, i - start, &point) : 0;
        first = start < i && first == 0 ? 1 : first;
        TRY(jinja_text_slice(r, t, start, start + first, &word));
        TRY(jinja_text_change_case(r, word.text, CASE_UPPER, &word));
        TRY(jinja_builder_add_text(&b, word.text, 0, word.text->len));
        TRY(jinja_text_slice(r, t, start + first, i, &word));
        TRY(jinja_text_change_case(r, word.text, CASE_LOWER, &word));
        TRY(jinja_builder_add_text(&b, word.text, 0, word.text->len));
        if (between)
            TRY(jinja_builder_add_text(&b, t, i, i + step));
        start = i + step;
    }
    return jinja_builder_finish(&b, out);
}

FILTER(filter_center)
{
    static const struct text space = {.bytes = " ", .len = 1, .from_template = true};
    struct slot slots[] = {{.name = "width"}};
    struct value text;
    int64_t width = 80;

    TRY(jinja_bind(r, "center", call, slots, 1));
    if (slots[0].present)
        TRY(jinja_want_int(r, "center", slots[0].value, &width));
    TRY(jinja_value_to_text(r, self, &text));
    return jinja_text_pad(r, text.text, width, &space, true, true, out);
}

FILTER(filter_length)
{
    uint32_t n;

    TRY(no_arguments(r, "length", call));
    if (self.type == VALUE_UNDEFINED && self.undefined->unsafe)
        return jinja_value_use(r, self);
    TRY(jinja_value_length(r, self, &n));
    *out = jinja_value_int(n);
    return STATUS_OK;
}

FILTER(filter_default)
{
    struct slot slots[] = {{.name = "default_value"}, {.name = "boolean"}};

    TRY(jinja_bind(r, "default", call, slots, 2));
    bool falsy = slots[1].present && jinja_value_is_true(slots[1].value);
    if (self.type != VALUE_UNDEFINED && !(falsy && !jinja_value_is_true(self))) {
        *out = self;
        return STATUS_OK;
    }
    if (slots[0].present) {
        *out = slots[0].value;
        return STATUS_OK;
    }
    return jinja_value_string(r, "", 0, true, out);
}

FILTER(filter_escape)
{
    struct value text;

    TRY(no_arguments(r, "escape", call));
    TRY(jinja_value_to_text(r, self, &text));
    return jinja_text_escape(r, text.text, out);
}

FILTER(filter_forceescape)
{
    struct value text;

    TRY(no_arguments(r, "forceescape", call));
    TRY(jinja_value_to_text(r, self, &text));
    struct text plain = *text.text;
    plain.markup = false;
    return jinja_text_escape(r, &plain, out);
}

FILTER(filter_safe)
{
    struct value text;

    TRY(no_arguments(r, "safe", call));
    TRY(jinja_value_to_text(r, self, &text));
    TRY(jinja_value_text(r, *text.text, out));
    out->text->markup = true;
    return STATUS_OK;
}

FILTER(filter_string)
{
    TRY(no_arguments(r, "string", call));
    return jinja_value_to_text(r, self, out);
}

/* A number written in text, blanks around it allowed; false if it is none. */
static bool read_number(const struct text *t, int base, bool is_float, double *number,
                        int64_t *integer)
{
    char copy[64], *end;
    size_t start = jinja_leading_space(t->bytes, t->len), len = t->len - start;

    len -= jinja_trailing_space(t->bytes + start, len);
    if (len == 0 || len >= sizeof copy)
        return false;
    memcpy(copy, t->bytes + start, len);
    copy[len] = 0;
    if (memchr(copy, 'x', len) && base != 16)
        return false; /* strtod would read hexadecimal */
    if (is_float)
        *number = strtod(copy, &end);
    else
        *integer = strtoll(copy, &end, base);
    return end == copy + len;
}

FILTER(filter_float)
{
    struct slot slots[] = {{.name = "default"}};
    double d = 0;
    int64_t unused;

    TRY(jinja_bind(r, "float", call, slots, 1));
    TRY(jinja_value_use(r, self));
    if (jinja_value_is_number(self))
        *out = jinja_value_float(jinja_value_number(self));
    else if (self.type == VALUE_STRING && read_number(self.text, 10, true, &d, &unused))
        *out = jinja_value_float(d);
    else
        *out = slots[0].present ? slots[0].value : jinja_value_float(0);
    return STATUS_OK;
}

FILTER(filter_int)
{
    struct slot slots[] = {{.name = "default"}, {.name = "base"}};
    int64_t base = 10, i = 0;
    double d = 0;

    TRY(jinja_bind(r, "int", call, slots, 2));
    TRY(jinja_value_use(r, self));
    if (slots[1].present)
        TRY(jinja_want_int(r, "int", slots[1].value, &base));
    if (base < 2 || base > 36)
        return jinja_fail(r, "int() base must be 2 to 36");
    *out = slots[0].present ? slots[0].value : jinja_value_int(0);
    if (self.type == VALUE_INT || self.type == VALUE_BOOL) {
        *out = jinja_value_int(self.type == VALUE_INT ? self.integer : self.boolean);
    } else if (self.type == VALUE_STRING && read_number(self.text, (int)base, false, &d, &i)) {
        *out = jinja_value_int(i);
    } else if (self.type == VALUE_FLOAT ||
               (self.type == VALUE_STRING && read_number(self.text, 10, true, &d, &i))) {
        d = self.type == VALUE_FLOAT ? self.number : d;
        if (d > -9.2e18 && d < 9.2e18)
            *out = jinja_value_int((int64_t)d);
    }
    return STATUS_OK;
}

FILTER(filter_round)
{
    struct slot slots[] = {{.name = "precision"}, {.name = "method"}};
    int64_t precision = 0;
    char text[400];

    TRY(jinja_bind(r, "round", call, slots, 2));
    TRY(jinja_value_use(r, self));
    if (!jinja_value_is_number(self))
        return jinja_fail(r, "round() wants a number, not %s", jinja_value_type_name(self));
    if (slots[0].present)
        TRY(jinja_want_int(r, "round", slots[0].value, &precision));
    if (precision < -300 || precision > 300)
        return jinja_fail(r, "a precision of %lld is too large", (long long)precision);
    double d = jinja_value_number(self), scale = pow(10, (double)precision);
    if (slots[1].present && jinja_value_is_text(slots[1].value, "ceil")) {
        *out = jinja_value_float(ceil(d * scale) / scale);
    } else if (slots[1].present && jinja_value_is_text(slots[1].value, "floor")) {
        *out = jinja_value_float(floor(d * scale) / scale);
    } else if (slots[1].present && !jinja_value_is_text(slots[1].value, "common")) {
        return jinja_fail(r, "method must be common, ceil or floor");
    } else if (self.type != VALUE_FLOAT && precision >= 0) {
        *out = jinja_value_int(self.type == VALUE_INT ? self.integer : self.boolean);
    } else if (precision >= 0) {
        snprintf(text, sizeof text, "%.*f", (int)MIN(precision, 30), d);
        *out = jinja_value_float(strtod(text, NULL));
    } else {
        *out = jinja_value_float(nearbyint(d * scale) / scale);
    }
    return STATUS_OK;
}

FILTER(filter_format)
{
    struct value text, values = jinja_value_none();

    TRY(jinja_value_to_text(r, self, &text));
    if (call->n_keyword)
        return jinja_fail(r, "format() with named arguments is not supported");
    TRY(jinja_value_list(r, VALUE_TUPLE, call->n_positional, &values));
    memcpy(values.list->items, call->positional, call->n_positional * sizeof(struct value));
    return jinja_binary(r, '%', text, values, out);
}

FILTER(filter_indent)
{
    struct slot slots[] = {{.name = "width"}, {.name = "first"}, {.name = "blank"}};
    static const struct text newline = {.bytes = "\n", .len = 1, .from_template = true},
                             space = {.bytes = " ", .len = 1, .from_template = true};
    struct value text, lines, indent,
        newline_value = {.type = VALUE_STRING, .text = (struct text *)(uintptr_t)&newline};
    struct builder b;

    TRY(jinja_bind(r, "indent", call, slots, 3));
    TRY(jinja_value_use(r, self));
    if (self.type != VALUE_STRING)
        return jinja_fail(r, "indent() wants a str, not %s", jinja_value_type_name(self));
    text = self;
    if (slots[0].present && slots[0].value.type == VALUE_STRING) {
        indent = slots[0].value;
    } else {
        int64_t width = 4;
        if (slots[0].present)
            TRY(jinja_want_int(r, "indent", slots[0].value, &width));
        struct value blank = {.type = VALUE_STRING, .text = (struct text *)(uintptr_t)&space};
        TRY(jinja_binary(r, '*', blank, jinja_value_int(width), &indent));
    }
    bool first = slots[1].present && jinja_value_is_true(slots[1].value),
         blank_lines = slots[2].present && jinja_value_is_true(slots[2].value);
    TRY(jinja_binary(r, '+', text, newline_value,
                     &text)); /* an empty text is one line, as is an empty end */
    TRY(jinja_text_split_lines(r, text.text, false, &lines));
    TRY(jinja_builder_init(&b, r, text.text->len));
    for (uint32_t i = 0; i < lines.list->n; i++) {
        const struct text *line = lines.list->items[i].text;
        if (i > 0)
            TRY(jinja_builder_add(&b, "\n", 1, true));
        if (i > 0 ? blank_lines || line->len > 0 : first)
            TRY(jinja_builder_add_text(&b, indent.text, 0, indent.text->len));
        TRY(jinja_builder_add_text(&b, line, 0, line->len));
    }
    return jinja_builder_finish(&b, out);
}

FILTER(filter_replace)
{
    struct slot slots[] = {{.name = "old"}, {.name = "new"}, {.name = "count"}};
    struct value text, old, new_text;
    int64_t most = -1;

    TRY(jinja_bind(r, "replace", call, slots, 3));
    if (!slots[0].present || !slots[1].present)
        return jinja_fail(r, "replace() wants two arguments");
    TRY(jinja_value_to_text(r, self, &text));
    TRY(jinja_value_to_text(r, slots[0].value, &old));
    TRY(jinja_value_to_text(r, slots[1].value, &new_text));
    if (slots[2].present && slots[2].value.type != VALUE_NONE)
        TRY(jinja_want_int(r, "replace", slots[2].value, &most));
    return jinja_text_replace(r, text.text, old.text, new_text.text, most, out);
}

FILTER(filter_trim)
{
    struct slot slots[] = {{.name = "chars"}};
    struct text *chars = NULL;
    struct value text;

    TRY(jinja_bind(r, "trim", call, slots, 1));
    if (slots[0].present && slots[0].value.type != VALUE_NONE)
        TRY(jinja_want_text(r, "trim", slots[0].value, &chars));
    TRY(jinja_value_to_text(r, self, &text));
    return jinja_text_strip(r, text.text, chars, true, true, out);
}

FILTER(filter_truncate)
{
    struct slot slots[] = {
        {.name = "length"}, {.name = "killwords"}, {.name = "end"}, {.name = "leeway"}};
    static const struct text dots = {.bytes = "...", .len = 3, .from_template = true};
    int64_t length = 255, leeway = 5;
    struct value text;
    uint32_t n;
    struct builder b;
    const struct text *end = &dots;

    TRY(jinja_bind(r, "truncate", call, slots, 4));
    if (slots[0].present)
        TRY(jinja_want_int(r, "truncate", slots[0].value, &length));
    if (slots[2].present) {
        struct text *given;
        TRY(jinja_want_text(r, "truncate", slots[2].value, &given));
        end = given;
    }
    if (slots[3].present && slots[3].value.type != VALUE_NONE)
        TRY(jinja_want_int(r, "truncate", slots[3].value, &leeway));
    int64_t kept = length - (int64_t)jinja_text_points(end);
    if (kept < 0 || leeway < 0)
        return jinja_fail(r, "truncate() expects a length of at least %u", jinja_text_points(end));
    TRY(jinja_value_length(r, self, &n));
    if (n <= length + leeway) {
        *out = self;
        return STATUS_OK;
    }
    if (self.type != VALUE_STRING)
        return jinja_fail(r, "truncate() wants a str, not %s", jinja_value_type_name(self));
    text = self;
    uint32_t cut = jinja_text_offset(text.text, (uint32_t)kept);
    if (!(slots[1].present && jinja_value_is_true(slots[1].value))) {
        uint32_t space = cut;
        while (space > 0 && text.text->bytes[space - 1] != ' ')
            space--;
        cut = space > 0 ? space - 1 : cut;
    }
    TRY(jinja_builder_init(&b, r, (size_t)cut + end->len));
    TRY(jinja_builder_add_text(&b, text.text, 0, cut));
    TRY(jinja_builder_add_text(&b, end, 0, end->len));
    return jinja_builder_finish(&b, out);
}

FILTER(filter_wordcount)
{
    struct value text;
    uint32_t c, step;
    int64_t n = 0;
    bool in_word = false;

    TRY(no_arguments(r, "wordcount", call));
    TRY(jinja_value_to_text(r, self, &text));
    TRY(jinja_charge(r, text.text->len));
    for (uint32_t i = 0; i < text.text->len; i += step) {
        step = utf8_decode(text.text->bytes + i, text.text->len - i, &c);
        step = step ? step : 1;
        bool word = c == '_' || jinja_point_is_letter(c) || jinja_point_is_number(c);
        n += word && !in_word;
        in_word = word;
    }
    *out = jinja_value_int(n);
    return STATUS_OK;
}

FILTER(filter_urlencode)
{
    struct value text;
    struct builder b;
    char escape[8];

    TRY(no_arguments(r, "urlencode", call));
    if (self.type == VALUE_DICT || self.type == VALUE_LIST)
        return jinja_fail(r, "urlencode() of a %s is not supported", jinja_value_type_name(self));
    TRY(jinja_value_to_text(r, self, &text));
    TRY(jinja_builder_init(&b, r, text.text->len));
    for (uint32_t i = 0; i < text.text->len; i++) {
        unsigned char c = (unsigned char)text.text->bytes[i];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                     (c && strchr("_.-~/", c));
        snprintf(escape, sizeof escape, "%%%02X", c);
        TRY(plain ? jinja_builder_add_text(&b, text.text, i, i + 1)
                  : jinja_builder_add(&b, escape, 3, jinja_text_origin(text.text, i)));
    }
    return jinja_builder_finish(&b, out);
}

/* Hugging Face's: json.dumps(value, ensure_ascii, indent, separators, sort_keys). */
FILTER(filter_tojson)
{
    struct slot slots[] = {{.name = "ensure_ascii"},
                           {.name = "indent"},
                           {.name = "separators"},
                           {.name = "sort_keys"}};
    static const struct text space = {.bytes = " ", .len = 1, .from_template = true};
    struct json_style style = {.item_separator = ", ", .key_separator = ": "};
    struct value indent;
    struct builder b;

    TRY(jinja_bind(r, "tojson", call, slots, 4));
    style.ensure_ascii = slots[0].present && jinja_value_is_true(slots[0].value);
    style.sort_keys = slots[3].present && jinja_value_is_true(slots[3].value);
    if (slots[1].present && slots[1].value.type != VALUE_NONE) {
        indent = slots[1].value;
        if (indent.type != VALUE_STRING) {
            struct value blank = {.type = VALUE_STRING, .text = (struct text *)(uintptr_t)&space};
            int64_t width;
            TRY(jinja_want_int(r, "tojson", indent, &width));
            TRY(jinja_binary(r, '*', blank, jinja_value_int(width), &indent));
        }
        style.indent = indent.text;
        style.item_separator = ",";
    }
    if (slots[2].present && slots[2].value.type != VALUE_NONE) {
        const struct list *pair = slots[2].value.list;
        char *texts[2];
        if ((slots[2].value.type != VALUE_TUPLE && slots[2].value.type != VALUE_LIST) ||
            pair->n != 2)
            return jinja_fail(r, "tojson() wants two separators");
        for (int i = 0; i < 2; i++) {
            struct text *t;
            TRY(jinja_want_text(r, "tojson", pair->items[i], &t));
            texts[i] = jinja_alloc(r, (size_t)t->len + 1, 1);
            if (!texts[i])
                return STATUS_BAD_TEMPLATE;
            memcpy(texts[i], t->bytes, t->len);
        }
        style.item_separator = texts[0];
        style.key_separator = texts[1];
    }
    TRY(jinja_builder_init(&b, r, 256));
    TRY(jinja_print_json(&b, self, &style));
    return jinja_builder_finish(&b, out);
}

const struct function *jinja_find_filter(const char *name)
{
    static const struct function filters[] = {
        {"abs", filter_abs},
        {"attr", filter_attr},
        {"batch", jinja_filter_batch},
        {"capitalize", filter_capitalize},
        {"center", filter_center},
        {"count", filter_length},
        {"d", filter_default},
        {"default", filter_default},
        {"dictsort", jinja_filter_dictsort},
        {"e", filter_escape},
        {"escape", filter_escape},
        {"first", jinja_filter_first},
        {"float", filter_float},
        {"forceescape", filter_forceescape},
        {"format", filter_format},
        {"groupby", jinja_filter_groupby},
        {"indent", filter_indent},
        {"int", filter_int},
        {"items", jinja_filter_items},
        {"join", jinja_filter_join},
        {"last", jinja_filter_last},
        {"length", filter_length},
        {"list", jinja_filter_list},
        {"lower", filter_lower},
        {"map", jinja_filter_map},
        {"max", jinja_filter_max},
        {"min", jinja_filter_min},
        {"reject", jinja_filter_reject},
        {"rejectattr", jinja_filter_rejectattr},
        {"replace", filter_replace},
        {"reverse", jinja_filter_reverse},
        {"round", filter_round},
        {"safe", filter_safe},
        {"select", jinja_filter_select},
        {"selectattr", jinja_filter_selectattr},
        {"slice", jinja_filter_slice},
        {"sort", jinja_filter_sort},
        {"string", filter_string},
        {"sum", jinja_filter_sum},
        {"title", filter_title},
        {"tojson", filter_tojson},
        {"trim", filter_trim},
        {"truncate", filter_truncate},
        {"unique", jinja_filter_unique},
        {"upper", filter_upper},
        {"urlencode", filter_urlencode},
        {"wordcount", filter_wordcount},
    };

    for (size_t i = 0; i < ARRAY_LENGTH(filters); i++)
        if (!strcmp(filters[i].name, name))
            return &filters[i];
    return NULL;
}
