#include "text/unicode.h"

#include <stdlib.h>
#include <string.h>

uint32_t utf8_decode(const char *text, size_t len, uint32_t *out_point)
{
    const unsigned char *p = (const unsigned char *)text;
    uint32_t point, n;

    if (len == 0)
        return 0;
    if (p[0] < 0x80) {
        *out_point = p[0];
        return 1;
    }
    if (p[0] >= 0xc2 && p[0] <= 0xdf) {
        n = 2;
        point = p[0] & 0x1f;
    } else if (p[0] >= 0xe0 && p[0] <= 0xef) {
        n = 3;
        point = p[0] & 0x0f;
    } else if (p[0] >= 0xf0 && p[0] <= 0xf4) {
        n = 4;
        point = p[0] & 0x07;
    } else {
        return 0;
    }
    if (len < n)
        return 0;
    for (uint32_t i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
        point = point << 6 | (p[i] & 0x3f);
    }
    if ((n == 3 && point < 0x800) || (n == 4 && (point < 0x10000 || point > UNICODE_MAX)) ||
        (point >= 0xd800 && point <= 0xdfff))
        return 0;
    *out_point = point;
    return n;
}

uint32_t utf8_encode(uint32_t c, char out[UTF8_MAX_BYTES])
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xe0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3f));
        out[2] = (char)(0x80 | (c & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3f));
    out[2] = (char)(0x80 | (c >> 6 & 0x3f));
    out[3] = (char)(0x80 | (c & 0x3f));
    return 4;
}

size_t utf8_valid_prefix(const char *p, size_t len)
{
    size_t i = 0;
    uint32_t point, n;

    while (i < len) {
        if ((unsigned char)p[i] < 0x80) {
            i++;
            continue;
        }
        n = utf8_decode(p + i, len - i, &point);
        if (n == 0)
            break;
        i += n;
    }
    return i;
}

bool utf8_is_incomplete(const char *text, size_t len)
{
    const unsigned char *p = (const unsigned char *)text;
    uint32_t point;
    char padded[UTF8_MAX_BYTES];

    if (len == 0 || len >= UTF8_MAX_BYTES || p[0] < 0xc2 || p[0] > 0xf4)
        return false;
    uint32_t n = p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
    if (len >= n)
        return false;
    /* Either end of the range of what may follow makes it whole, or nothing does. */
    for (int low = 0; low < 2; low++) {
        for (uint32_t i = 0; i < n; i++)
            padded[i] = i < len ? text[i] : (char)(low ? 0x80 : 0xbf);
        if (utf8_decode(padded, n, &point))
            return true;
    }
    return false;
}

uint8_t unicode_class(uint32_t c)
{
    if (c < 0x80)
        return (uint8_t)c;
    if (c == 0x17f)
        return CHAR_LONG_S;
    uint32_t low = 0, high = n_unicode_class_ranges;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (c > unicode_class_ranges[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    if (low < n_unicode_class_ranges && c >= unicode_class_ranges[low].first)
        return unicode_class_ranges[low].class;
    return CHAR_OTHER;
}

/* ---- NFC ---- */

enum {
    S_BASE = 0xac00,
    L_BASE = 0x1100,
    V_BASE = 0x1161,
    T_BASE = 0x11a7,
    L_COUNT = 19,
    V_COUNT = 21,
    T_COUNT = 28
};
#define S_COUNT (L_COUNT * V_COUNT * T_COUNT)

/* A code point with its canonical combining class (0: a starter) in the upper bits, so that a block
 * takes little memory. */
typedef uint32_t point_t;
#define POINT(c, class) ((c) | (class) << 24)
#define POINT_CODE(p) ((p)&0xffffff)
#define POINT_CLASS(p) ((p) >> 24)
/* U+1F82 and the like: three bytes become four points; two bytes (U+0390) three. */
#define MAX_POINTS(bytes) ((bytes) + (bytes) / 2 + 4)

static uint32_t combining_class(uint32_t c)
{
    uint32_t low = 0, high = n_unicode_combining_ranges;

    if (c < 0x300)
        return 0;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (c > unicode_combining_ranges[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    if (low < n_unicode_combining_ranges && c >= unicode_combining_ranges[low].first)
        return unicode_combining_ranges[low].class;
    return 0;
}

/* A starter that is its own NFC and composes with nothing before it: text may be cut in front of
 * it. Only the common blocks; everything else takes the long way. */
static bool is_certain(uint32_t c)
{
    return c < 0x300 || (c >= 0x400 && c < 0x483) || (c >= 0x2010 && c < 0x2070) ||
           (c >= 0x3001 && c < 0x3029) || (c >= 0x3041 && c < 0x3097) ||
           (c >= 0x30a0 && c < 0x3100) || (c >= 0x3400 && c < 0xa000) ||
           (c >= S_BASE && c < S_BASE + S_COUNT) || (c >= 0xff01 && c < 0xfff0) ||
           (c >= 0x1f300 && c < 0x1fb00);
}

bool nfc_is_certain(const char *text, size_t len)
{
    uint32_t c, n;

    for (size_t i = 0; i < len; i += n) {
        n = (unsigned char)text[i] < 0x80 ? 1 : utf8_decode(text + i, len - i, &c);
        if (n == 0 || (n > 1 && !is_certain(c)))
            return false;
    }
    return true;
}

static const struct unicode_decomposition *find_decomposition(uint32_t c)
{
    uint32_t low = 0, high = n_unicode_decompositions;

    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (c > unicode_decompositions[middle].point)
            low = middle + 1;
        else
            high = middle;
    }
    return low < n_unicode_decompositions && unicode_decompositions[low].point == c
               ? &unicode_decompositions[low]
               : NULL;
}

/* out has room for four: no canonical decomposition is longer. */
static uint32_t decompose(uint32_t c, point_t *out)
{
    if (c >= S_BASE && c < S_BASE + S_COUNT) {
        uint32_t s = c - S_BASE;
        out[0] = L_BASE + s / (V_COUNT * T_COUNT);
        out[1] = V_BASE + s % (V_COUNT * T_COUNT) / T_COUNT;
        if (s % T_COUNT == 0)
            return 2;
        out[2] = T_BASE + s % T_COUNT;
        return 3;
    }
    const struct unicode_decomposition *d = c < 0xc0 ? NULL : find_decomposition(c);
    if (!d) {
        out[0] = POINT(c, combining_class(c));
        return 1;
    }
    uint32_t n = decompose(d->first, out); /* the data is a tree of depth 3 at most */
    if (d->second)
        n += decompose(d->second, out + n);
    return n;
}

static uint32_t compose(uint32_t a, uint32_t b)
{
    if (a >= L_BASE && a < L_BASE + L_COUNT && b >= V_BASE && b < V_BASE + V_COUNT)
        return S_BASE + ((a - L_BASE) * V_COUNT + (b - V_BASE)) * T_COUNT;
    if (a >= S_BASE && a < S_BASE + S_COUNT && (a - S_BASE) % T_COUNT == 0 && b > T_BASE &&
        b < T_BASE + T_COUNT)
        return a + (b - T_BASE);
    uint32_t low = 0, high = n_unicode_compositions;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        const struct unicode_composition *m = &unicode_compositions[middle];
        if (a > m->first || (a == m->first && b > m->second))
            low = middle + 1;
        else
            high = middle;
    }
    const struct unicode_composition *m = &unicode_compositions[low];
    return low < n_unicode_compositions && m->first == a && m->second == b ? m->point : 0;
}

/* Stable, by class; counting keeps a hostile run of marks linear. */
static enum status sort_marks(point_t *p, size_t n)
{
    if (n <= 16) {
        for (size_t i = 1; i < n; i++)
            for (size_t k = i; k > 0 && POINT_CLASS(p[k - 1]) > POINT_CLASS(p[k]); k--) {
                point_t t = p[k];
                p[k] = p[k - 1];
                p[k - 1] = t;
            }
        return STATUS_OK;
    }
    size_t starts[257] = {0};
    point_t *sorted = memory_alloc(n, sizeof *sorted);
    if (!sorted)
        return STATUS_NO_MEMORY;
    for (size_t i = 0; i < n; i++)
        starts[POINT_CLASS(p[i]) + 1]++;
    for (size_t i = 1; i < 257; i++)
        starts[i] += starts[i - 1];
    for (size_t i = 0; i < n; i++)
        sorted[starts[POINT_CLASS(p[i])]++] = p[i];
    memcpy(p, sorted, n * sizeof *p);
    free(sorted);
    return STATUS_OK;
}

static size_t compose_all(point_t *p, size_t n)
{
    size_t out = 0, starter = SIZE_MAX;
    uint32_t last_class = 0;

    for (size_t i = 0; i < n; i++) {
        /* Blocked when something between it and the starter has the same or a higher class, or is a
         * starter itself. */
        bool adjacent = starter != SIZE_MAX && out == starter + 1;
        if (adjacent || (starter != SIZE_MAX && last_class < POINT_CLASS(p[i]))) {
            uint32_t c = compose(POINT_CODE(p[starter]), POINT_CODE(p[i]));
            if (c) {
                p[starter] = c;
                continue;
            }
        }
        if (POINT_CLASS(p[i]) == 0)
            starter = out;
        last_class = POINT_CLASS(p[i]);
        p[out++] = p[i];
    }
    return out;
}

/* One block, from a place where text may be cut to the next. */
static enum status normalize_block(struct buffer *out, const char *text, size_t len,
                                   point_t *points)
{
    size_t n = 0;
    uint32_t c;

    for (size_t i = 0; i < len;) {
        i += utf8_decode(text + i, len - i, &c);
        n += decompose(c, points + n);
    }
    for (size_t i = 0, end; i < n; i = end) {
        end = i + 1;
        if (POINT_CLASS(points[i]) == 0)
            continue;
        while (end < n && POINT_CLASS(points[end]) != 0)
            end++;
        TRY(sort_marks(points + i, end - i));
    }
    n = compose_all(points, n);
    for (size_t i = 0; i < n; i++) {
        char encoded[UTF8_MAX_BYTES];
        buffer_append(out, encoded, utf8_encode(POINT_CODE(points[i]), encoded));
    }
    return STATUS_OK;
}

enum status nfc_append(struct buffer *out, const char *text, size_t len)
{
    enum status status = STATUS_OK;
    point_t *points = NULL;
    size_t room = 0, block = 0, i = 0; /* block: the last place where text may be cut */
    bool certain = true;               /* nothing after that place needs the long way */

    while (i <= len) {
        uint32_t c = 0, n = i < len ? utf8_decode(text + i, len - i, &c) : 1;
        if (n == 0) {
            status = fail(STATUS_INTERNAL,
                          "text that is not UTF-8 at byte %zu came to be normalised", i);
            break;
        }
        if (is_certain(c)) { /* the end counts as such a place */
            if (certain) {
                buffer_append(out, text + block, i - block);
            } else {
                if (MAX_POINTS(i - block) > room) {
                    free(points);
                    room = MAX_POINTS(i - block) + 64;
                    points = memory_alloc(room, sizeof *points);
                    if (!points)
                        return STATUS_NO_MEMORY;
                }
                TRY_GOTO(done, normalize_block(out, text + block, i - block, points));
            }
            block = i;
            certain = true;
        } else {
            certain = false;
        }
        i += n;
    }
    status = status == STATUS_OK ? buffer_status(out) : status;
done:
    free(points);
    return status;
}
