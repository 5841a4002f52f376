/* Values as Python writes them: str(), repr(), json.dumps(). */
#include "base/checked.h"
#include "text/jinja.h"
#include "text/unicode.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* The shortest digits that read back as d, in Python's form. */
void jinja_format_float(double d, char out[40])
{
    char digits[32], *e;
    int precision = 1;

    if (isnan(d) || isinf(d)) {
        strcpy(out, isnan(d) ? "nan" : d < 0 ? "-inf" : "inf");
        return;
    }
    do
        snprintf(digits, sizeof digits, "%.*e", precision - 1, d);
    while (strtod(digits, NULL) != d && precision++ < 17);
    e = strchr(digits, 'e');
    int exponent = atoi(e + 1);
    *e = 0;
    if (exponent >= -4 && exponent < 16) {
        snprintf(out, 40, "%.*f", MAX(precision - 1 - exponent, 1), d);
    } else {
        snprintf(out, 40, "%se%c%02d", digits, exponent < 0 ? '-' : '+', abs(exponent));
    }
}

static enum status add(struct builder *b, const char *s, bool from_template)
{
    return jinja_builder_add(b, s, strlen(s), from_template);
}

/* What Python's repr() of a string leaves as it is. */
static bool is_printable(uint32_t c)
{
    if (c < 0x7f)
        return c >= 0x20;
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
        return false;
    default:
        return true;
    }
}

static enum status repr_text(struct builder *b, const struct text *t)
{
    bool single = memchr(t->bytes, '\'', t->len), dbl = memchr(t->bytes, '"', t->len);
    char quote = single && !dbl ? '"' : '\'', escape[16];
    uint32_t c, step;

    TRY(jinja_builder_add(b, &quote, 1, false));
    for (uint32_t i = 0; i < t->len; i += step) {
        step = utf8_decode(t->bytes + i, t->len - i, &c);
        if (step == 0)
            step = 1, c = 0xfffd;
        if (c == '\n' || c == '\r' || c == '\t' || c == '\\' || c == (unsigned char)quote)
            snprintf(escape, sizeof escape, "\\%c",
                     c == '\n'   ? 'n'
                     : c == '\r' ? 'r'
                     : c == '\t' ? 't'
                                 : (int)c);
        else if (is_printable(c)) {
            TRY(jinja_builder_add_text(b, t, i, i + step));
            continue;
        } else if (c < 0x100)
            snprintf(escape, sizeof escape, "\\x%02x", c);
        else
            snprintf(escape, sizeof escape, c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
        TRY(add(b, escape, jinja_text_origin(t, i)));
    }
    return jinja_builder_add(b, &quote, 1, false);
}

static enum status repr_items(struct builder *b, const struct list *l, const char *open,
                              const char *close)
{
    TRY(add(b, open, false));
    for (uint32_t i = 0; i < l->n; i++) {
        if (i > 0)
            TRY(add(b, ", ", false));
        TRY(jinja_print_repr(b, l->items[i]));
    }
    return add(b, close, false);
}

static enum status repr_dict(struct builder *b, const struct dict *d)
{
    TRY(add(b, "{", false));
    for (uint32_t i = 0; i < d->n; i++) {
        if (i > 0)
            TRY(add(b, ", ", false));
        TRY(jinja_print_repr(b, d->keys[i]));
        TRY(add(b, ": ", false));
        TRY(jinja_print_repr(b, d->values[i]));
    }
    return add(b, "}", false);
}

static enum status repr_range(struct builder *b, const struct range *range)
{
    char text[96];
    int64_t stop = range->start + range->step * range->n;

    if (range->step == 1)
        snprintf(text, sizeof text, "range(%" PRId64 ", %" PRId64 ")", range->start, stop);
    else
        snprintf(text, sizeof text, "range(%" PRId64 ", %" PRId64 ", %" PRId64 ")", range->start,
                 stop, range->step);
    return add(b, text, true);
}

static enum status repr_other(struct builder *b, struct value v)
{
    char text[64];

    switch (v.type) {
    case VALUE_LIST:
        return repr_items(b, v.list, "[", "]");
    case VALUE_TUPLE:
        return repr_items(b, v.list, "(", v.list->n == 1 ? ",)" : ")");
    case VALUE_VIEW:
        TRY(add(b, v.list->view, false));
        return repr_items(b, v.list, "([", "])");
    case VALUE_DICT:
        return repr_dict(b, v.dict);
    case VALUE_RANGE:
        return repr_range(b, v.range);
    case VALUE_NAMESPACE:
        TRY(add(b, "<Namespace ", false));
        TRY(repr_dict(b, v.dict));
        return add(b, ">", false);
    case VALUE_LOOP:
        snprintf(text, sizeof text, "<LoopContext %u/%u>", v.loop->index0 + 1, v.loop->n);
        return add(b, text, false);
    case VALUE_MACRO:
        TRY(add(b, "<Macro '", false));
        TRY(add(b, v.macro->macro->name, false));
        return add(b, "'>", false);
    default:
        return jinja_fail(b->r, "a %s cannot be printed", jinja_value_type_name(v));
    }
}

enum status jinja_print_repr(struct builder *b, struct value v)
{
    char text[40];

    switch (v.type) {
    case VALUE_UNDEFINED:
        TRY(v.undefined->unsafe ? jinja_value_use(b->r, v) : STATUS_OK);
        return add(b, "Undefined", true);
    case VALUE_NONE:
        return add(b, "None", !v.from_user);
    case VALUE_BOOL:
        return add(b, v.boolean ? "True" : "False", !v.from_user);
    case VALUE_INT:
        snprintf(text, sizeof text, "%" PRId64, v.integer);
        return add(b, text, !v.from_user);
    case VALUE_FLOAT:
        jinja_format_float(v.number, text);
        return add(b, text, !v.from_user);
    case VALUE_STRING:
        return repr_text(b, v.text);
    default:
        TRY(jinja_enter(b->r));
        TRY(repr_other(b, v));
        jinja_leave(b->r);
        return STATUS_OK;
    }
}

enum status jinja_print_str(struct builder *b, struct value v)
{
    if (v.type == VALUE_STRING)
        return jinja_builder_add_text(b, v.text, 0, v.text->len);
    if (v.type == VALUE_UNDEFINED)
        return v.undefined->unsafe ? jinja_value_use(b->r, v) : STATUS_OK;
    return jinja_print_repr(b, v);
}

enum status jinja_value_to_text(struct render *r, struct value v, struct value *out)
{
    struct builder b;

    if (v.type == VALUE_STRING) {
        *out = v;
        return STATUS_OK;
    }
    TRY(jinja_builder_init(&b, r, 0));
    TRY(jinja_print_str(&b, v));
    return jinja_builder_finish(&b, out);
}

/* ---- JSON ---- */

static enum status json_text(struct builder *b, const struct text *t, bool ensure_ascii)
{
    uint32_t c, step, plain = 0; /* from here on nothing needed an escape */
    char escape[16];

    TRY(add(b, "\"", false));
    for (uint32_t i = 0; i < t->len; i += step) {
        step = (unsigned char)t->bytes[i] < 0x80 ? 1 : utf8_decode(t->bytes + i, t->len - i, &c);
        c = step == 1 ? (unsigned char)t->bytes[i] : c;
        if (step == 0)
            step = 1, c = 0xfffd;
        static const char short_escapes[] = "\"\"\\\\\nn\rr\tt\ff\bb";
        escape[0] = 0;
        for (size_t k = 0; c < 0x80 && k < sizeof short_escapes - 1; k += 2)
            if ((char)c == short_escapes[k])
                snprintf(escape, sizeof escape, "\\%c", short_escapes[k + 1]);
        if (escape[0] == 0 && (c < 0x20 || (ensure_ascii && c >= 0x7f && c != 0x7f))) {
            if (c >= 0x10000)
                snprintf(escape, sizeof escape, "\\u%04x\\u%04x", 0xd800 + ((c - 0x10000) >> 10),
                         0xdc00 + ((c - 0x10000) & 0x3ff));
            else
                snprintf(escape, sizeof escape, "\\u%04x", c);
        }
        if (escape[0] == 0)
            continue;
        TRY(jinja_builder_add_text(b, t, plain, i));
        TRY(add(b, escape, jinja_text_origin(t, i)));
        plain = i + step;
    }
    TRY(jinja_builder_add_text(b, t, plain, t->len));
    return add(b, "\"", false);
}

struct json_writer {
    struct builder *b;
    const struct json_style *style;
    uint32_t level;
};

static enum status json_value(struct json_writer *w, struct value v);

static enum status json_newline(struct json_writer *w)
{
    if (!w->style->indent)
        return STATUS_OK;
    TRY(add(w->b, "\n", false));
    for (uint32_t i = 0; i < w->level; i++)
        TRY(jinja_builder_add_text(w->b, w->style->indent, 0, w->style->indent->len));
    return STATUS_OK;
}

static enum status json_list(struct json_writer *w, const struct list *l)
{
    if (l->n == 0)
        return add(w->b, "[]", false);
    TRY(add(w->b, "[", false));
    w->level++;
    for (uint32_t i = 0; i < l->n; i++) {
        if (i > 0)
            TRY(add(w->b, w->style->item_separator, false));
        TRY(json_newline(w));
        TRY(json_value(w, l->items[i]));
    }
    w->level--;
    TRY(json_newline(w));
    return add(w->b, "]", false);
}

/* Keys are strings in JSON; Python turns numbers, bools and None into them. */
static enum status json_key(struct json_writer *w, struct value key)
{
    struct value text;
    struct builder b;

    if (key.type == VALUE_STRING)
        return json_text(w->b, key.text, w->style->ensure_ascii);
    if (!jinja_value_is_number(key) && key.type != VALUE_NONE)
        return jinja_fail(w->b->r, "keys must be str, int, float, bool or None, not %s",
                          jinja_value_type_name(key));
    TRY(jinja_builder_init(&b, w->b->r, 0));
    TRY(json_value(&(struct json_writer){&b, w->style, 0}, key));
    TRY(jinja_builder_finish(&b, &text));
    return json_text(w->b, text.text, w->style->ensure_ascii);
}

static int compare_keys(const void *a, const void *b)
{
    const struct text *x = (*(const struct value *const *)a)->text,
                      *y = (*(const struct value *const *)b)->text;
    int order = memcmp(x->bytes, y->bytes, MIN(x->len, y->len));

    return order ? order : (x->len > y->len) - (x->len < y->len);
}

/* The entries' keys in the order in which they are written; only strings can be sorted. */
static enum status ordered_keys(struct json_writer *w, const struct dict *d,
                                const struct value ***out)
{
    const struct value **keys = jinja_alloc(w->b->r, d->n, sizeof *keys);

    if (!keys)
        return STATUS_BAD_TEMPLATE;
    for (uint32_t i = 0; i < d->n; i++) {
        keys[i] = &d->keys[i];
        if (w->style->sort_keys && d->keys[i].type != VALUE_STRING)
            return jinja_fail(w->b->r, "only keys that are strings can be sorted");
    }
    if (w->style->sort_keys)
        qsort(keys, d->n, sizeof *keys, compare_keys);
    *out = keys;
    return STATUS_OK;
}

static enum status json_dict(struct json_writer *w, const struct dict *d)
{
    const struct value **keys = NULL;

    if (d->n == 0)
        return add(w->b, "{}", false);
    TRY(ordered_keys(w, d, &keys));
    TRY(add(w->b, "{", false));
    w->level++;
    for (uint32_t i = 0; i < d->n; i++) {
        if (i > 0)
            TRY(add(w->b, w->style->item_separator, false));
        TRY(json_newline(w));
        TRY(json_key(w, *keys[i]));
        TRY(add(w->b, w->style->key_separator, false));
        TRY(json_value(w, d->values[keys[i] - d->keys]));
    }
    w->level--;
    TRY(json_newline(w));
    return add(w->b, "}", false);
}

static enum status json_value(struct json_writer *w, struct value v)
{
    switch (v.type) {
    case VALUE_NONE:
        return add(w->b, "null", !v.from_user);
    case VALUE_BOOL:
        return add(w->b, v.boolean ? "true" : "false", !v.from_user);
    case VALUE_FLOAT:
        if (!isfinite(v.number))
            return add(w->b,
                       isnan(v.number) ? "NaN"
                       : v.number < 0  ? "-Infinity"
                                       : "Infinity",
                       !v.from_user);
        return jinja_print_repr(w->b, v);
    case VALUE_INT:
        return jinja_print_repr(w->b, v);
    case VALUE_STRING:
        return json_text(w->b, v.text, w->style->ensure_ascii);
    case VALUE_LIST:
    case VALUE_TUPLE:
    case VALUE_DICT:
        TRY(jinja_enter(w->b->r));
        TRY(v.type == VALUE_DICT ? json_dict(w, v.dict) : json_list(w, v.list));
        jinja_leave(w->b->r);
        return STATUS_OK;
    default:
        return jinja_fail(w->b->r, "Object of type %s is not JSON serializable",
                          jinja_value_type_name(v));
    }
}

enum status jinja_print_json(struct builder *b, struct value v, const struct json_style *style)
{
    return json_value(&(struct json_writer){b, style, 0}, v);
}
