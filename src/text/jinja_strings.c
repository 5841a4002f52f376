/* Operations on whole strings, as Python's str has them. Each keeps every byte's origin. */
#include "base/checked.h"
#include "text/jinja.h"
#include "text/unicode.h"

#include <string.h>
#include <utf8proc.h>

uint32_t jinja_point_upper(uint32_t c)
{
    return (uint32_t)utf8proc_toupper((utf8proc_int32_t)c);
}

uint32_t jinja_point_lower(uint32_t c)
{
    return (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
}

bool jinja_point_is_letter(uint32_t c)
{
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);

    return k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LL || k == UTF8PROC_CATEGORY_LT ||
           k == UTF8PROC_CATEGORY_LM || k == UTF8PROC_CATEGORY_LO;
}

bool jinja_point_is_number(uint32_t c)
{
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);

    return k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
}

bool jinja_point_is_upper(uint32_t c)
{
    return utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_LU;
}

bool jinja_point_is_lower(uint32_t c)
{
    return utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_LL;
}

/* The next character; what is not UTF-8 counts as U+FFFD, byte by byte. */
static uint32_t next_point(const struct text *t, uint32_t at, uint32_t *c)
{
    uint32_t step = utf8_decode(t->bytes + at, t->len - at, c);

    if (step == 0) {
        *c = 0xfffd;
        return 1;
    }
    return step;
}

enum status jinja_text_change_case(struct render *r, const struct text *t, enum text_case how,
                                   struct value *out)
{
    struct builder b;
    bool in_word = false;
    uint32_t c, step;

    TRY(jinja_builder_init(&b, r, t->len));
    for (uint32_t i = 0; i < t->len; i += step) {
        char encoded[UTF8_MAX_BYTES];
        step = next_point(t, i, &c);
        bool upper = how == CASE_UPPER ||
                     ((how == CASE_CAPITALIZE || how == CASE_TITLE) && !in_word) ||
                     (how == CASE_SWAP && jinja_point_is_lower(c));
        uint32_t changed = upper ? jinja_point_upper(c) : jinja_point_lower(c);
        in_word = how == CASE_CAPITALIZE || jinja_point_is_letter(c);
        if (upper && c == 0xdf) /* the sharp s has no capital of its own in Python */
            TRY(jinja_builder_add(&b, how == CASE_UPPER || how == CASE_SWAP ? "SS" : "Ss", 2,
                                  jinja_text_origin(t, i)));
        else if (changed == c)
            TRY(jinja_builder_add_text(&b, t, i, i + step));
        else
            TRY(jinja_builder_add(&b, encoded, utf8_encode(changed, encoded),
                                  jinja_text_origin(t, i)));
    }
    return jinja_builder_finish(&b, out);
}

static bool in_set(const struct text *chars, const char *p, uint32_t len)
{
    uint32_t c;

    if (!chars)
        return utf8_decode(p, len, &c) == len && jinja_is_space(c);
    return memmem(chars->bytes, chars->len, p, len) !=
           NULL; /* whole characters only match whole ones in UTF-8 */
}

enum status jinja_text_strip(struct render *r, const struct text *t, const struct text *chars,
                             bool left, bool right, struct value *out)
{
    uint32_t start = 0, end = t->len, c;

    while (left && start < end) {
        uint32_t step = next_point(t, start, &c);
        if (!in_set(chars, t->bytes + start, step))
            break;
        TRY(jinja_charge(r, chars ? chars->len : 0));
        start += step;
    }
    while (right && end > start) {
        uint32_t at = end - 1;
        while (at > start && ((unsigned char)t->bytes[at] & 0xc0) == 0x80)
            at--;
        if (!in_set(chars, t->bytes + at, end - at))
            break;
        TRY(jinja_charge(r, chars ? chars->len : 0));
        end = at;
    }
    TRY(jinja_text_slice(r, t, start, end, out));
    out->text->markup = t->markup;
    return STATUS_OK;
}

enum status jinja_text_replace(struct render *r, const struct text *t, const struct text *old,
                               const struct text *new_text, int64_t most, struct value *out)
{
    struct builder b;
    uint32_t at = 0, c;

    TRY(jinja_charge(r, t->len));
    TRY(jinja_builder_init(&b, r, t->len));
    if (old->len == 0) { /* between all characters */
        for (; most != 0; most--) {
            TRY(jinja_builder_add_text(&b, new_text, 0, new_text->len));
            if (at >= t->len)
                break;
            uint32_t step = next_point(t, at, &c);
            TRY(jinja_builder_add_text(&b, t, at, at + step));
            at += step;
        }
    } else {
        for (; most != 0; most--) {
            uint32_t found = jinja_text_find(t, old, at);
            if (found == UINT32_MAX)
                break;
            TRY(jinja_builder_add_text(&b, t, at, found));
            TRY(jinja_builder_add_text(&b, new_text, 0, new_text->len));
            at = found + old->len;
        }
    }
    TRY(jinja_builder_add_text(&b, t, at, t->len));
    return jinja_builder_finish(&b, out);
}

/* ---- splitting: pieces are collected, then put into a list ---- */

struct pieces {
    struct value *at;
    uint32_t n, capacity;
};

static enum status add_piece(struct render *r, struct pieces *p, const struct text *t,
                             uint32_t start, uint32_t end)
{
    if (p->n == p->capacity) {
        uint32_t capacity = p->capacity ? 2 * p->capacity : 8;
        struct value *at = jinja_alloc(r, capacity, sizeof *at);
        if (!at)
            return STATUS_BAD_TEMPLATE;
        if (p->n)
            memcpy(at, p->at, p->n * sizeof *at);
        p->at = at;
        p->capacity = capacity;
    }
    TRY(jinja_charge(r, 0));
    return jinja_text_slice(r, t, start, end, &p->at[p->n++]);
}

static enum status finish_pieces(struct render *r, struct pieces *p, bool reversed,
                                 struct value *out)
{
    TRY(jinja_value_list(r, VALUE_LIST, p->n, out));
    for (uint32_t i = 0; i < p->n; i++)
        out->list->items[reversed ? p->n - 1 - i : i] = p->at[i];
    return STATUS_OK;
}

static enum status split_at_text(struct render *r, const struct text *t,
                                 const struct text *separator, int64_t most, struct pieces *p)
{
    uint32_t at = 0;

    for (; most != 0; most--) {
        uint32_t found = jinja_text_find(t, separator, at);
        if (found == UINT32_MAX)
            break;
        TRY(add_piece(r, p, t, at, found));
        at = found + separator->len;
    }
    return add_piece(r, p, t, at, t->len);
}

static enum status split_at_text_from_right(struct render *r, const struct text *t,
                                            const struct text *separator, int64_t most,
                                            struct pieces *p)
{
    struct text rest = *t;

    for (; most != 0; most--) {
        uint32_t found = jinja_text_find_last(&rest, separator);
        TRY(jinja_charge(r, found == UINT32_MAX ? rest.len : rest.len - found));
        if (found == UINT32_MAX)
            break;
        TRY(add_piece(r, p, t, found + separator->len, rest.len));
        rest.len = found;
    }
    return add_piece(r, p, t, 0, rest.len);
}

static enum status split_at_space(struct render *r, const struct text *t, int64_t most,
                                  struct pieces *p)
{
    uint32_t at = 0, c, step;

    for (;;) {
        at += (uint32_t)jinja_leading_space(t->bytes + at, t->len - at);
        if (at >= t->len)
            return STATUS_OK;
        if (most-- == 0)
            return add_piece(r, p, t, at, t->len); /* the blanks at the end stay */
        uint32_t end = at;
        while (end < t->len && (step = next_point(t, end, &c)) > 0 && !jinja_is_space(c))
            end += step;
        TRY(add_piece(r, p, t, at, end));
        at = end;
    }
}

static enum status split_at_space_from_right(struct render *r, const struct text *t, int64_t most,
                                             struct pieces *p)
{
    uint32_t end = t->len;

    for (;;) {
        end -= (uint32_t)jinja_trailing_space(t->bytes, end);
        if (end == 0)
            return STATUS_OK;
        if (most-- == 0)
            return add_piece(r, p, t, 0, end);
        uint32_t start = end;
        while (start > 0 && jinja_trailing_space(t->bytes, start) == 0) {
            start--;
            while (start > 0 && ((unsigned char)t->bytes[start] & 0xc0) == 0x80)
                start--;
        }
        TRY(add_piece(r, p, t, start, end));
        end = start;
    }
}

enum status jinja_text_split(struct render *r, const struct text *t, const struct text *separator,
                             int64_t most, bool from_right, struct value *out)
{
    struct pieces p = {0};

    TRY(jinja_charge(r, t->len));
    if (separator && separator->len == 0)
        return jinja_fail(r, "empty separator");
    if (separator)
        TRY(from_right ? split_at_text_from_right(r, t, separator, most, &p)
                       : split_at_text(r, t, separator, most, &p));
    else
        TRY(from_right ? split_at_space_from_right(r, t, most, &p)
                       : split_at_space(r, t, most, &p));
    return finish_pieces(r, &p, from_right, out);
}

static bool is_line_end(uint32_t c)
{
    return (c >= 10 && c <= 13) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
           c == 0x2029;
}

enum status jinja_text_split_lines(struct render *r, const struct text *t, bool keep_ends,
                                   struct value *out)
{
    struct pieces p = {0};
    uint32_t start = 0, c, step;

    TRY(jinja_charge(r, t->len));
    for (uint32_t i = 0; i < t->len; i += step) {
        step = next_point(t, i, &c);
        if (!is_line_end(c))
            continue;
        uint32_t end = i;
        step += c == '\r' && i + 1 < t->len && t->bytes[i + 1] == '\n';
        TRY(add_piece(r, &p, t, start, keep_ends ? i + step : end));
        start = i + step;
    }
    if (start < t->len)
        TRY(add_piece(r, &p, t, start, t->len));
    return finish_pieces(r, &p, false, out);
}

enum status jinja_text_join(struct render *r, const struct text *separator,
                            const struct value *items, uint32_t n, struct value *out)
{
    struct builder b;

    TRY(jinja_builder_init(&b, r, 0));
    for (uint32_t i = 0; i < n; i++) {
        if (i > 0)
            TRY(jinja_builder_add_text(&b, separator, 0, separator->len));
        TRY(jinja_print_str(&b, items[i]));
    }
    return jinja_builder_finish(&b, out);
}

enum status jinja_text_pad(struct render *r, const struct text *t, int64_t width,
                           const struct text *fill, bool left, bool right, struct value *out)
{
    struct builder b;
    uint32_t n = jinja_text_points(t);

    if (width > JINJA_MAX_OUTPUT_BYTES)
        return jinja_fail(r, "a width of %lld is too large", (long long)width);
    int64_t missing = width > n ? width - n : 0;
    int64_t before = left && right ? missing / 2 + (missing & width & 1) : left ? missing : 0;
    TRY(jinja_builder_init(&b, r, t->len));
    for (int64_t i = 0; i < before; i++)
        TRY(jinja_builder_add_text(&b, fill, 0, fill->len));
    TRY(jinja_builder_add_text(&b, t, 0, t->len));
    for (int64_t i = before; i < missing; i++)
        TRY(jinja_builder_add_text(&b, fill, 0, fill->len));
    return jinja_builder_finish(&b, out);
}

bool jinja_text_starts_with(const struct text *t, uint32_t at, const struct text *prefix)
{
    return at <= t->len && t->len - at >= prefix->len &&
           !memcmp(t->bytes + at, prefix->bytes, prefix->len);
}

enum status jinja_want_text(struct render *r, const char *function, struct value v,
                            struct text **out)
{
    TRY(jinja_value_use(r, v));
    if (v.type != VALUE_STRING)
        return jinja_fail(r, "%s() wants a str, not %s", function, jinja_value_type_name(v));
    *out = v.text;
    return STATUS_OK;
}

enum status jinja_want_int(struct render *r, const char *function, struct value v, int64_t *out)
{
    TRY(jinja_value_use(r, v));
    if (v.type != VALUE_INT && v.type != VALUE_BOOL)
        return jinja_fail(r, "%s() wants an int, not %s", function, jinja_value_type_name(v));
    *out = v.type == VALUE_INT ? v.integer : v.boolean;
    return STATUS_OK;
}
