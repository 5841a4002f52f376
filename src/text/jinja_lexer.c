/* Source to tokens. White space around tags is settled here: trim_blocks drops the newline behind a
 * block or comment, lstrip_blocks the blanks before one on its line, and a '-' at a tag's edge all
 * white space there. */
#include "text/jinja.h"
#include "text/unicode.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct lexer {
    struct arena *arena;
    const char *source;
    size_t len, at;
    uint32_t line;
    bool line_starting; /* the last tag or comment took a newline with it */
    char *open; /* closing brackets that are awaited; the end of a tag counts only when there are
                   none */
    uint32_t n_open, open_capacity;
    struct token *tokens;
    uint32_t n, capacity;
};

bool jinja_is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

size_t jinja_leading_space(const char *p, size_t len)
{
    size_t i = 0;
    uint32_t c, n;

    while (i < len && (n = utf8_decode(p + i, len - i, &c)) > 0 && jinja_is_space(c))
        i += n;
    return i;
}

size_t jinja_trailing_space(const char *p, size_t len)
{
    size_t end = len;

    while (end > 0) {
        size_t start = end - 1;
        uint32_t c;
        while (start > 0 && end - start < UTF8_MAX_BYTES &&
               ((unsigned char)p[start] & 0xc0) == 0x80)
            start--;
        if (utf8_decode(p + start, end - start, &c) != end - start || !jinja_is_space(c))
            break;
        end = start;
    }
    return len - end;
}

static enum status lex_fail(const struct lexer *x, const char *what)
{
    return fail(STATUS_BAD_TEMPLATE, "chat template, line %u: %s", x->line, what);
}

static void count_lines(struct lexer *x, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++)
        x->line += x->source[i] == '\n';
}

/* Moves on to `to`, counting lines. */
static void advance(struct lexer *x, size_t to)
{
    count_lines(x, x->at, to);
    if (to > x->at)
        x->line_starting = x->source[to - 1] == '\n';
    x->at = to;
}

static enum status add(struct lexer *x, struct token t)
{
    if (x->n == x->capacity) {
        uint32_t capacity = x->capacity ? x->capacity * 2 : 256;
        struct token *tokens = arena_alloc(x->arena, capacity, sizeof *tokens);
        if (!tokens)
            return STATUS_NO_MEMORY;
        if (x->n)
            memcpy(tokens, x->tokens, x->n * sizeof *tokens);
        x->tokens = tokens;
        x->capacity = capacity;
    }
    t.line = x->line;
    x->tokens[x->n++] = t;
    return STATUS_OK;
}

static bool starts_with(const struct lexer *x, size_t at, const char *s)
{
    size_t n = strlen(s);

    return x->len - at >= n && !memcmp(x->source + at, s, n);
}

/* The first of `what` from `from` on; len if there is none. */
static size_t find(const struct lexer *x, size_t from, const char *what)
{
    const char *p = memmem(x->source + from, x->len - from, what, strlen(what));

    return p ? (size_t)(p - x->source) : x->len;
}

/* Text before a tag at `end`, whose sign ('-', '+', or anything else for none) and kind decide
 * about its trailing blanks. */
static enum status add_data(struct lexer *x, size_t end, char sign, bool is_variable)
{
    size_t start = x->at, stop = end;

    if (sign == '-') {
        stop -= jinja_trailing_space(x->source + start, end - start);
    } else if (sign != '+' && !is_variable) {
        size_t line = end;
        while (line > start && x->source[line - 1] != '\n')
            line--;
        if ((line > start || x->line_starting) &&
            jinja_trailing_space(x->source + line, end - line) == end - line)
            stop = line;
    }
    if (stop > start)
        return add(x, (struct token){.type = TOKEN_DATA,
                                     .bytes = x->source + start,
                                     .len = (uint32_t)(stop - start)});
    return STATUS_OK;
}

/* Where the text goes on after a closing tag that ends at `end`. */
static size_t after_tag(const struct lexer *x, size_t end, char sign, bool trims_newline)
{
    if (sign == '-')
        return end + jinja_leading_space(x->source + end, x->len - end);
    if (sign != '+' && trims_newline && end < x->len && x->source[end] == '\n')
        return end + 1;
    return end;
}

static enum status lex_comment(struct lexer *x)
{
    size_t end = find(x, x->at + 2, "#}");
    char sign = end > x->at + 2 ? x->source[end - 1] : 0;

    if (end == x->len)
        return lex_fail(x, "a comment is not closed");
    /* {#-} is no end: the sign that opened it is not the one that closes it. */
    if (end == x->at + 3 && (sign == '-' || sign == '+'))
        sign = 0;
    advance(x, after_tag(x, end + 2, sign, true));
    return STATUS_OK;
}

/* A tag `{% NAME %}` at `at`, with its signs; 0 if there is none, else where it ends. */
static size_t match_simple_tag(const struct lexer *x, size_t at, const char *name, char *out_left,
                               char *out_right)
{
    size_t i = at + 2;

    if (!starts_with(x, at, "{%"))
        return 0;
    *out_left = i < x->len && (x->source[i] == '-' || x->source[i] == '+') ? x->source[i++] : 0;
    i += jinja_leading_space(x->source + i, x->len - i);
    if (!starts_with(x, i, name))
        return 0;
    i += strlen(name);
    i += jinja_leading_space(x->source + i, x->len - i);
    *out_right = i < x->len && (x->source[i] == '-' || x->source[i] == '+') ? x->source[i++] : 0;
    return starts_with(x, i, "%}") ? i + 2 : 0;
}

static enum status lex_raw(struct lexer *x, size_t body, char sign)
{
    char left = 0, right = 0;
    size_t end = 0, tag;

    advance(x, after_tag(x, body, sign, false));
    for (tag = find(x, x->at, "{%"); tag < x->len; tag = find(x, tag + 2, "{%"))
        if ((end = match_simple_tag(x, tag, "endraw", &left, &right)) > 0)
            break;
    if (end == 0)
        return lex_fail(x, "a raw block is not closed");
    TRY(add_data(x, tag, left, false));
    advance(x, after_tag(x, end, right, true));
    return STATUS_OK;
}

/* ---- inside tags ---- */

static bool is_name_char(unsigned char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c >= 0x80;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Digits with single underscores between them. */
static size_t digits(const struct lexer *x, size_t i)
{
    size_t start = i;

    while (i < x->len && (is_digit(x->source[i]) || (x->source[i] == '_' && i > start &&
                                                     i + 1 < x->len && is_digit(x->source[i + 1]))))
        i++;
    return i;
}

static enum status lex_number(struct lexer *x)
{
    size_t start = x->at, end = digits(x, start), point = end;
    bool is_float = false;
    char text[64];
    size_t n = 0;

    if (end + 1 < x->len && x->source[end] == '.' && is_digit(x->source[end + 1])) {
        point = digits(x, end + 1);
        is_float = true;
    }
    size_t e = point;
    if (e < x->len && (x->source[e] == 'e' || x->source[e] == 'E')) {
        e++;
        if (e < x->len && (x->source[e] == '+' || x->source[e] == '-'))
            e++;
        if (e < x->len && is_digit(x->source[e])) {
            point = digits(x, e);
            is_float = true;
        }
    }
    if (start > 0 && x->source[start - 1] == '.') /* the number of a.0.1 is an index each time */
        is_float = false;
    int base = 10;
    if (!is_float && end - start == 1 && x->source[start] == '0' && end + 1 < x->len) {
        char kind = (char)(x->source[end] | 0x20);
        base = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 10;
        if (base != 10)
            for (end++; end < x->len && is_name_char((unsigned char)x->source[end]); end++)
                ;
    }
    if (is_float)
        end = point;
    for (size_t i = start + (base != 10 ? 2 : 0); i < end; i++) {
        if (n + 1 == sizeof text)
            return lex_fail(x, "a number is too long");
        if (x->source[i] != '_')
            text[n++] = x->source[i];
    }
    text[n] = 0;
    struct token t = {.type = is_float ? TOKEN_FLOAT : TOKEN_INTEGER};
    char *rest;
    errno = 0;
    if (is_float)
        t.number = strtod(text, &rest);
    else
        t.integer = strtoll(text, &rest, base);
    if (*rest || n == 0 || (!is_float && errno))
        return lex_fail(x, "a number cannot be read");
    TRY(add(x, t));
    advance(x, end);
    return STATUS_OK;
}

static enum status lex_hex(const struct lexer *x, const char *p, size_t len, size_t n_digits,
                           uint32_t *out)
{
    uint32_t c = 0;

    if (len < n_digits)
        return lex_fail(x, "a string has an escape that is cut short");
    for (size_t i = 0; i < n_digits; i++) {
        char d = p[i];
        uint32_t v = is_digit(d)            ? (uint32_t)(d - '0')
                     : d >= 'a' && d <= 'f' ? (uint32_t)(d - 'a' + 10)
                     : d >= 'A' && d <= 'F' ? (uint32_t)(d - 'A' + 10)
                                            : 16;
        if (v == 16)
            return lex_fail(x, "a string has an escape that is cut short");
        c = c << 4 | v;
    }
    if (c > UNICODE_MAX || (c >= 0xd800 && c <= 0xdfff))
        return lex_fail(x, "a string has an escape that is no character");
    *out = c;
    return STATUS_OK;
}

/* Python's escapes. out has room for len bytes: no escape is shorter than what it stands for. */
static enum status unescape(const struct lexer *x, const char *p, size_t len, char *out,
                            uint32_t *out_len)
{
    static const char letters[] = "n\nt\tr\r\\\\'\'\"\"a\ab\bf\fv\v";
    uint32_t n = 0, c = 0;

    for (size_t i = 0; i < len; i++) {
        if (p[i] != '\\' || i + 1 == len) {
            out[n++] = p[i];
            continue;
        }
        char e = p[++i];
        size_t width = e == 'x' ? 2 : e == 'u' ? 4 : e == 'U' ? 8 : 0;
        const char *letter = NULL;
        for (size_t k = 0; k < sizeof letters - 1; k += 2)
            if (letters[k] == e)
                letter = &letters[k + 1];
        if (letter) {
            out[n++] = *letter;
        } else if (width) {
            TRY(lex_hex(x, p + i + 1, len - i - 1, width, &c));
            n += utf8_encode(c, out + n);
            i += width;
        } else if (e >= '0' && e <= '7') {
            c = 0;
            for (size_t k = 0; k < 3 && i < len && p[i] >= '0' && p[i] <= '7'; k++, i++)
                c = c << 3 | (uint32_t)(p[i] - '0');
            i--;
            n += utf8_encode(c, out + n);
        } else if (e == 'N') {
            return lex_fail(x, "characters by name (\\N) are not supported");
        } else if (e != '\n') { /* what is no escape stays */
            out[n++] = '\\';
            out[n++] = e;
        }
    }
    *out_len = n;
    return STATUS_OK;
}

static enum status lex_string(struct lexer *x)
{
    char quote = x->source[x->at];
    size_t start = x->at + 1, end = start;
    struct token t = {.type = TOKEN_STRING};

    while (end < x->len && x->source[end] != quote)
        end += x->source[end] == '\\' ? 2 : 1;
    if (end >= x->len)
        return lex_fail(x, "a string is not closed");
    char *text = arena_alloc(x->arena, end - start + 1, 1);
    if (!text)
        return STATUS_NO_MEMORY;
    TRY(unescape(x, x->source + start, end - start, text, &t.len));
    t.bytes = text;
    TRY(add(x, t));
    advance(x, end + 1);
    return STATUS_OK;
}

static enum status push_open(struct lexer *x, char closing)
{
    if (x->n_open == x->open_capacity) {
        uint32_t capacity = x->open_capacity ? x->open_capacity * 2 : 64;
        char *open = arena_alloc(x->arena, capacity, 1);
        if (!open)
            return STATUS_NO_MEMORY;
        if (x->n_open)
            memcpy(open, x->open, x->n_open);
        x->open = open;
        x->open_capacity = capacity;
    }
    x->open[x->n_open++] = closing;
    return STATUS_OK;
}

static enum status lex_operator(struct lexer *x)
{
    static const char pairs[] = "//**==!=>=<=", single[] = "+-/*%~[](){}><=.:|,;";
    char c = x->source[x->at];
    struct token t = {.type = TOKEN_OPERATOR, .op = (unsigned char)c};
    size_t n = 1;

    for (size_t i = 0; i < sizeof pairs - 1; i += 2)
        if (c == pairs[i] && x->at + 1 < x->len && x->source[x->at + 1] == pairs[i + 1]) {
            t.op = OP2((uint32_t)c, (uint32_t)pairs[i + 1]);
            n = 2;
        }
    if (n == 1 && !memchr(single, c, sizeof single - 1))
        return lex_fail(x, "a character makes no sense here");
    if (c == '(' || c == '[' || c == '{') {
        TRY(push_open(x, c == '(' ? ')' : c == '[' ? ']' : '}'));
    } else if (c == ')' || c == ']' || c == '}') {
        if (x->n_open == 0 || x->open[x->n_open - 1] != c)
            return lex_fail(x, "a bracket closes nothing");
        x->n_open--;
    }
    TRY(add(x, t));
    advance(x, x->at + n);
    return STATUS_OK;
}

/* The inside of {{ }} or {% %}, its end included. */
static enum status lex_tag(struct lexer *x, bool is_variable)
{
    const char *closing = is_variable ? "}}" : "%}";

    x->n_open = 0;
    for (;;) {
        advance(x, x->at + jinja_leading_space(x->source + x->at, x->len - x->at));
        if (x->at == x->len)
            return lex_fail(x, "a tag is not closed");
        char c = x->source[x->at];
        bool signed_end =
            (c == '-' || (c == '+' && !is_variable)) && starts_with(x, x->at + 1, closing);
        if (x->n_open == 0 && (signed_end || starts_with(x, x->at, closing))) {
            TRY(add(x, (struct token){.type = is_variable ? TOKEN_VARIABLE_END : TOKEN_BLOCK_END}));
            advance(x,
                    after_tag(x, x->at + (signed_end ? 3 : 2), signed_end ? c : 0, !is_variable));
            return STATUS_OK;
        }
        if (is_digit(c)) {
            TRY(lex_number(x));
        } else if (c == '\'' || c == '"') {
            TRY(lex_string(x));
        } else if (is_name_char((unsigned char)c)) {
            size_t end = x->at;
            while (end < x->len && is_name_char((unsigned char)x->source[end]))
                end++;
            TRY(add(x, (struct token){.type = TOKEN_NAME,
                                      .bytes = x->source + x->at,
                                      .len = (uint32_t)(end - x->at)}));
            advance(x, end);
        } else {
            TRY(lex_operator(x));
        }
    }
}

static enum status lex_all(struct lexer *x)
{
    while (x->at < x->len) {
        size_t tag = find(x, x->at, "{");
        while (tag + 1 < x->len && !memchr("{%#", x->source[tag + 1], 3))
            tag = find(x, tag + 1, "{");
        if (tag + 1 >= x->len)
            tag = x->len;
        if (tag == x->len)
            return add(x, (struct token){.type = TOKEN_DATA,
                                         .bytes = x->source + x->at,
                                         .len = (uint32_t)(x->len - x->at)});
        char left = 0, right = 0, kind = x->source[tag + 1];
        size_t raw = kind == '%' ? match_simple_tag(x, tag, "raw", &left, &right) : 0;
        bool has_sign =
            tag + 2 < x->len && (x->source[tag + 2] == '-' || x->source[tag + 2] == '+');
        TRY(add_data(x, tag, has_sign ? x->source[tag + 2] : 0, kind == '{'));
        if (raw && right != '+') {
            advance(x, tag);
            TRY(lex_raw(x, raw, right));
        } else if (kind == '#') {
            advance(x, tag);
            TRY(lex_comment(x));
        } else {
            advance(x, tag);
            TRY(add(
                x, (struct token){.type = kind == '{' ? TOKEN_VARIABLE_BEGIN : TOKEN_BLOCK_BEGIN}));
            advance(x, tag + 2 + has_sign);
            TRY(lex_tag(x, kind == '{'));
        }
    }
    return STATUS_OK;
}

/* Newlines become "\n" and one at the very end is dropped. */
static char *normalize_newlines(struct arena *arena, const char *source, size_t *len)
{
    char *out = arena_alloc(arena, *len + 1, 1);
    size_t n = 0;

    for (size_t i = 0; out && i < *len; i++) {
        if (source[i] == '\r' && i + 1 < *len && source[i + 1] == '\n')
            continue;
        out[n++] = source[i] == '\r' ? '\n' : source[i];
    }
    if (out && n > 0 && out[n - 1] == '\n')
        n--;
    *len = n;
    return out;
}

enum status jinja_lex(struct arena *arena, const char *source, size_t len, struct token **out)
{
    struct lexer x = {.arena = arena, .len = len, .line = 1, .line_starting = true};

    if (len > JINJA_MAX_SOURCE_BYTES)
        return fail(STATUS_BAD_TEMPLATE, "the chat template has %zu bytes; %u are possible", len,
                    JINJA_MAX_SOURCE_BYTES);
    if (utf8_valid_prefix(source, len) != len)
        return fail(STATUS_BAD_TEMPLATE, "the chat template is not UTF-8 at byte %zu",
                    utf8_valid_prefix(source, len));
    x.source = normalize_newlines(arena, source, &x.len);
    if (!x.source)
        return STATUS_NO_MEMORY;
    TRY(lex_all(&x));
    TRY(add(&x, (struct token){.type = TOKEN_EOF}));
    *out = x.tokens;
    return STATUS_OK;
}
