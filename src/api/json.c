/* JSON: written by hand, so that keys keep their order and numbers their digits; read by jansson.
 */
#include "api/internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* The length of the character at s[0..len), or 0 if it is not UTF-8 (overlong forms, surrogates,
 * above U+10FFFF). */
static size_t utf8_character(const unsigned char *s, size_t len)
{
    size_t n = s[0] < 0x80   ? 1
               : s[0] < 0xc2 ? 0
               : s[0] < 0xe0 ? 2
               : s[0] < 0xf0 ? 3
               : s[0] < 0xf5 ? 4
                             : 0;

    if (n == 0 || n > len)
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) ||
        (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f))
        return 0;
    return n;
}

bool utf8_valid(const char *bytes, size_t len)
{
    for (size_t i = 0, n; i < len; i += n) {
        n = utf8_character((const unsigned char *)bytes + i, len - i);
        if (n == 0)
            return false;
    }
    return true;
}

static void append_escape(struct buffer *out, unsigned char ch)
{
    switch (ch) {
    case '"':
        buffer_append(out, "\\\"", 2);
        break;
    case '\\':
        buffer_append(out, "\\\\", 2);
        break;
    case '\n':
        buffer_append(out, "\\n", 2);
        break;
    case '\r':
        buffer_append(out, "\\r", 2);
        break;
    case '\t':
        buffer_append(out, "\\t", 2);
        break;
    default:
        buffer_printf(out, "\\u%04x", ch);
        break;
    }
}

void json_append_string(struct buffer *out, const char *bytes, size_t len)
{
    const unsigned char *s = (const unsigned char *)bytes;
    size_t plain = 0; /* start of what has not been copied yet */

    buffer_append(out, "\"", 1);
    for (size_t i = 0; i < len;) {
        size_t n = utf8_character(s + i, len - i);
        bool escape = n == 1 && (s[i] < 0x20 || s[i] == 0x7f || s[i] == '"' || s[i] == '\\');

        if (n > 0 && !escape) {
            i += n;
            continue;
        }
        buffer_append(out, s + plain, i - plain);
        if (n == 0)
            buffer_append(out, "\xef\xbf\xbd", 3);
        else
            append_escape(out, s[i]);
        plain = ++i;
    }
    buffer_append(out, s + plain, len - plain);
    buffer_append(out, "\"", 1);
}

void json_append_cstring(struct buffer *out, const char *s)
{
    json_append_string(out, s, strlen(s));
}

void json_append_i64(struct buffer *out, int64_t v)
{
    buffer_printf(out, "%" PRId64, v);
}

void api_format_logprob(float value, char out[32])
{
    char *comma;

    if (!(value > -9999.0f)) { /* not a number, too: none is ever printed as one */
        strcpy(out, "-9999.0");
        return;
    }
    if (value == 0)
        value = 0; /* -0 */
    snprintf(out, 32, "%.9g", (double)value);
    comma = strchr(out, ',');
    if (comma != NULL)
        *comma = '.';
    if (strpbrk(out, ".e") == NULL)
        strcat(out, ".0");
}

/* jansson's parser recurses, and makes an object of forty bytes and more out of a two-byte number:
 * depth and number of values are known before it starts. */
static enum status check_shape(const struct buffer *body, struct api_error *e)
{
    uint32_t depth = 0, n_values = 1;
    bool in_string = false;

    for (size_t i = 0; i < body->len; i++) {
        char ch = body->data[i];

        if (in_string) {
            if (ch == '\\')
                i++;
            else if (ch == '"')
                in_string = false;
        } else if (ch == '"') {
            in_string = true;
        } else if (ch == '{' || ch == '[') {
            n_values++;
            if (++depth > API_MAX_JSON_DEPTH)
                return api_fail(e, STATUS_BAD_JSON, NULL,
                                "the body's JSON is nested deeper than %d levels",
                                API_MAX_JSON_DEPTH);
        } else if (ch == '}' || ch == ']') {
            depth -= depth > 0;
        } else if (ch == ',' && ++n_values > API_MAX_JSON_VALUES) {
            return api_fail(e, STATUS_TOO_LARGE, NULL, "the body's JSON has more than %d values",
                            API_MAX_JSON_VALUES);
        }
    }
    return STATUS_OK;
}

enum status api_json_parse(const struct buffer *body, struct api_error *e, json_t **out)
{
    json_error_t error;
    json_t *root;

    if (body->len == 0)
        return api_fail(e, STATUS_BAD_JSON, NULL, "the body is empty; a JSON object is expected");
    TRY(check_shape(body, e));
    root = json_loadb(body->data, body->len, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL && json_error_code(&error) == json_error_null_character)
        return api_fail(e, STATUS_BAD_JSON, NULL,
                        "a string has a NUL character (\\u0000); line %d, column %d", error.line,
                        error.column);
    if (root == NULL)
        return api_fail(e, STATUS_BAD_JSON, NULL, "the body is not JSON: %s (line %d, column %d)",
                        error.text, error.line, error.column);
    if (!json_is_object(root)) {
        json_decref(root);
        return api_fail(e, STATUS_BAD_JSON, NULL, "the body must be a JSON object");
    }
    *out = root;
    return STATUS_OK;
}
