/* Functions that every template knows: Jinja2's, and the two that Hugging Face adds. */
#include "base/checked.h"
#include "text/jinja.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define GLOBAL(name)                                                                               \
    static enum status name(struct render *r, struct value self, const struct call *call,          \
                            struct value *out)

GLOBAL(global_range)
{
    int64_t start = 0, stop, step = 1;

    if (call->n_keyword || call->n_positional < 1 || call->n_positional > 3)
        return jinja_fail(r, "range() wants 1 to 3 arguments");
    TRY(jinja_want_int(r, "range", call->positional[call->n_positional > 1], &stop));
    if (call->n_positional > 1)
        TRY(jinja_want_int(r, "range", call->positional[0], &start));
    if (call->n_positional > 2)
        TRY(jinja_want_int(r, "range", call->positional[2], &step));
    if (step == 0)
        return jinja_fail(r, "range() arg 3 must not be zero");
    if (start > INT32_MAX || start < -INT32_MAX || stop > INT32_MAX || stop < -INT32_MAX ||
        step > INT32_MAX || step < -INT32_MAX)
        return jinja_fail(r, "range() too large");
    int64_t distance = step > 0 ? stop - start : start - stop, width = step > 0 ? step : -step;
    int64_t n = distance > 0 ? (distance + width - 1) / width : 0;
    if (n > JINJA_MAX_RANGE)
        return jinja_fail(r, "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).",
                          JINJA_MAX_RANGE);
    struct range *range = jinja_alloc(r, 1, sizeof *range);
    if (!range)
        return STATUS_BAD_TEMPLATE;
    *range = (struct range){start, step, (uint32_t)n};
    *out = (struct value){.type = VALUE_RANGE, .range = range};
    return STATUS_OK;
}

/* A dict of a dict (or of pairs) and named arguments. */
static enum status make_dict(struct render *r, const char *name, const struct call *call,
                             struct value *out)
{
    struct value key;

    if (call->n_positional > 1)
        return jinja_fail(r, "%s() wants at most 1 argument", name);
    TRY(jinja_value_dict(r, call->n_keyword, out));
    if (call->n_positional == 1 && call->positional[0].type == VALUE_DICT) {
        const struct dict *d = call->positional[0].dict;
        for (uint32_t i = 0; i < d->n; i++)
            TRY(jinja_dict_set(r, out->dict, d->keys[i], d->values[i]));
    } else if (call->n_positional == 1) {
        struct value *pairs, *pair;
        uint32_t n, two;
        TRY(jinja_value_items(r, call->positional[0], &pairs, &n));
        for (uint32_t i = 0; i < n; i++) {
            TRY(jinja_value_items(r, pairs[i], &pair, &two));
            if (two != 2)
                return jinja_fail(r, "%s() wants pairs", name);
            TRY(jinja_dict_set(r, out->dict, pair[0], pair[1]));
        }
    }
    for (uint32_t k = 0; k < call->n_keyword; k++) {
        TRY(jinja_value_string(r, call->names[k], strlen(call->names[k]), true, &key));
        TRY(jinja_dict_set(r, out->dict, key, call->keyword[k]));
    }
    return STATUS_OK;
}

GLOBAL(global_dict)
{
    return make_dict(r, "dict", call, out);
}

GLOBAL(global_namespace)
{
    TRY(make_dict(r, "namespace", call, out));
    out->type = VALUE_NAMESPACE;
    return STATUS_OK;
}

GLOBAL(global_raise_exception)
{
    struct slot slots[] = {{.name = "message"}};
    struct value text;

    TRY(jinja_bind(r, "raise_exception", call, slots, 1));
    TRY(jinja_value_to_text(r, slots[0].present ? slots[0].value : jinja_value_none(), &text));
    return fail(STATUS_BAD_TEMPLATE, "the chat template refuses: %.*s",
                (int)MIN(text.text->len, 400u), text.text->bytes);
}

GLOBAL(global_strftime_now)
{
    struct slot slots[] = {{.name = "format"}};
    struct text *format;
    char with_end[256], text[512];
    struct tm local;
    time_t now = (time_t)r->now;

    TRY(jinja_bind(r, "strftime_now", call, slots, 1));
    TRY(jinja_want_text(r, "strftime_now", slots[0].present ? slots[0].value : jinja_value_none(),
                        &format));
    if (format->len + 2 > sizeof with_end || memchr(format->bytes, 0, format->len))
        return jinja_fail(r, "strftime_now() cannot use a format of %u bytes", format->len);
    /* A character at the end tells an empty result from one that does not fit. */
    memcpy(with_end, format->bytes, format->len);
    memcpy(with_end + format->len, ".", 2);
    localtime_r(&now, &local);
    size_t n = strftime(text, sizeof text, with_end, &local);
    if (n == 0)
        return jinja_fail(r, "strftime_now() gives a text that is too long");
    char *copy = jinja_alloc(r, n, 1);
    if (!copy)
        return STATUS_BAD_TEMPLATE;
    memcpy(copy, text, n - 1);
    return jinja_value_string(r, copy, n - 1, !format->spans && format->from_template, out);
}

const struct function *jinja_find_global(const char *name)
{
    static const struct function globals[] = {
        {"dict", global_dict},
        {"namespace", global_namespace},
        {"raise_exception", global_raise_exception},
        {"range", global_range},
        {"strftime_now", global_strftime_now},
    };

    for (size_t i = 0; i < ARRAY_LENGTH(globals); i++)
        if (!strcmp(globals[i].name, name))
            return &globals[i];
    return NULL;
}
