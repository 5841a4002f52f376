/* Strings, each byte with its origin: written in the template, or come out of the caller's
 * variables. A string of one origin says so with a flag; only mixed ones have spans. */
#include "base/checked.h"
#include "text/jinja.h"
#include "text/unicode.h"

#include <string.h>

bool jinja_text_origin(const struct text *t, uint32_t position)
{
    uint32_t low = 0, high = t->n_spans;

    if (!t->spans)
        return t->from_template;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (position >= t->spans[middle].end)
            low = middle + 1;
        else
            high = middle;
    }
    return low < t->n_spans && t->spans[low].from_template;
}

uint32_t jinja_text_points(const struct text *t)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < t->len; i++)
        n += ((unsigned char)t->bytes[i] & 0xc0) != 0x80;
    return n;
}

uint32_t jinja_text_offset(const struct text *t, uint32_t point)
{
    uint32_t at = 0;

    for (; at < t->len; at++)
        if (((unsigned char)t->bytes[at] & 0xc0) != 0x80 && point-- == 0)
            break;
    return at;
}

uint32_t jinja_text_find(const struct text *t, const struct text *needle, uint32_t from)
{
    if (from > t->len)
        return UINT32_MAX;
    const char *p = memmem(t->bytes + from, t->len - from, needle->bytes, needle->len);
    return p ? (uint32_t)(p - t->bytes) : UINT32_MAX;
}

uint32_t jinja_text_find_last(const struct text *t, const struct text *needle)
{
    for (uint32_t at = t->len + 1; at-- > 0;)
        if (t->len - at >= needle->len && !memcmp(t->bytes + at, needle->bytes, needle->len))
            return at;
    return UINT32_MAX;
}

/* ---- building ---- */

enum status jinja_builder_init(struct builder *b, struct render *r, size_t capacity)
{
    *b = (struct builder){.r = r};
    if (capacity > JINJA_MAX_OUTPUT_BYTES)
        return jinja_fail(r, "a text of %zu bytes is too long", capacity);
    b->capacity = (uint32_t)capacity;
    b->bytes = capacity ? jinja_alloc(r, capacity, 1) : NULL;
    return b->bytes || !capacity ? STATUS_OK : STATUS_BAD_TEMPLATE;
}

static enum status grow_bytes(struct builder *b, size_t len)
{
    uint64_t needed = (uint64_t)b->len + len;

    if (needed <= b->capacity)
        return STATUS_OK;
    if (needed > JINJA_MAX_OUTPUT_BYTES)
        return jinja_fail(b->r, "the template writes more than %u MiB",
                          JINJA_MAX_OUTPUT_BYTES >> 20);
    uint32_t capacity =
        (uint32_t)MAX(needed, MIN((uint64_t)b->capacity * 2, (uint64_t)JINJA_MAX_OUTPUT_BYTES));
    capacity = MAX(capacity, 64u);
    char *bytes = jinja_alloc(b->r, capacity, 1);
    if (!bytes)
        return STATUS_BAD_TEMPLATE;
    if (b->len)
        memcpy(bytes, b->bytes, b->len);
    b->bytes = bytes;
    b->capacity = capacity;
    return STATUS_OK;
}

static enum status add_span(struct builder *b, bool from_template)
{
    if (b->n_spans > 0 && b->spans[b->n_spans - 1].from_template == from_template) {
        b->spans[b->n_spans - 1].end = b->len;
        return STATUS_OK;
    }
    if (b->n_spans == b->span_capacity) {
        uint32_t capacity = b->span_capacity ? 2 * b->span_capacity : 4;
        struct span *spans = jinja_alloc(b->r, capacity, sizeof *spans);
        if (!spans)
            return STATUS_BAD_TEMPLATE;
        if (b->n_spans)
            memcpy(spans, b->spans, b->n_spans * sizeof *spans);
        b->spans = spans;
        b->span_capacity = capacity;
    }
    b->spans[b->n_spans++] = (struct span){b->len, from_template};
    return STATUS_OK;
}

enum status jinja_builder_add(struct builder *b, const char *bytes, size_t len, bool from_template)
{
    if (len == 0)
        return STATUS_OK;
    TRY(jinja_charge(b->r, len));
    TRY(grow_bytes(b, len));
    memcpy(b->bytes + b->len, bytes, len);
    b->len += (uint32_t)len;
    return add_span(b, from_template);
}

enum status jinja_builder_add_text(struct builder *b, const struct text *t, uint32_t start,
                                   uint32_t end)
{
    if (!t->spans)
        return jinja_builder_add(b, t->bytes + start, end - start, t->from_template);
    for (uint32_t i = 0; i < t->n_spans && start < end; i++) {
        uint32_t stop = MIN(t->spans[i].end, end);
        if (stop <= start)
            continue;
        TRY(jinja_builder_add(b, t->bytes + start, stop - start, t->spans[i].from_template));
        start = stop;
    }
    return STATUS_OK;
}

enum status jinja_builder_finish(struct builder *b, struct value *out)
{
    struct text t = {.bytes = b->bytes ? b->bytes : "", .len = b->len, .from_template = true};

    if (b->n_spans == 1) {
        t.from_template = b->spans[0].from_template;
    } else if (b->n_spans > 1) {
        t.spans = b->spans;
        t.n_spans = b->n_spans;
    }
    return jinja_value_text(b->r, t, out);
}

enum status jinja_text_slice(struct render *r, const struct text *t, uint32_t start, uint32_t end,
                             struct value *out)
{
    struct text part = {
        .bytes = t->bytes + start, .len = end - start, .from_template = t->from_template};

    if (t->spans) {
        uint32_t first = 0;
        while (first < t->n_spans && t->spans[first].end <= start)
            first++;
        uint32_t last = first;
        while (last < t->n_spans && t->spans[last].end < end)
            last++;
        TRY(jinja_charge(r, (size_t)(last - first) * sizeof(struct span)));
        if (start >= end || first >= last) {
            part.from_template =
                start >= end || (first < t->n_spans && t->spans[first].from_template);
        } else {
            struct span *spans = jinja_alloc(r, last - first + 1, sizeof *spans);
            if (!spans)
                return STATUS_BAD_TEMPLATE;
            for (uint32_t i = first; i <= last; i++)
                spans[i - first] =
                    (struct span){MIN(t->spans[i].end, end) - start, t->spans[i].from_template};
            part.spans = spans;
            part.n_spans = last - first + 1;
        }
    }
    return jinja_value_text(r, part, out);
}

enum status jinja_text_escape(struct render *r, const struct text *t, struct value *out)
{
    struct builder b;

    if (t->markup)
        return jinja_value_text(r, *t, out);
    TRY(jinja_builder_init(&b, r, t->len));
    for (uint32_t i = 0; i < t->len; i++) {
        char c = t->bytes[i];
        const char *e = c == '&'    ? "&amp;"
                        : c == '<'  ? "&lt;"
                        : c == '>'  ? "&gt;"
                        : c == '\'' ? "&#39;"
                        : c == '"'  ? "&#34;"
                                    : NULL;
        TRY(e ? jinja_builder_add(&b, e, strlen(e), jinja_text_origin(t, i))
              : jinja_builder_add_text(&b, t, i, i + 1));
    }
    TRY(jinja_builder_finish(&b, out));
    out->text->markup = true;
    return STATUS_OK;
}
