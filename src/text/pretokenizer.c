/* The cut of a text into the pieces within which tokens are merged, exactly as Hugging Face's
 * `tokenizers` cuts.
 *
 * The regular expressions do not run over the text but over one byte a character: ASCII as it is,
 * everything else as its class (enum char_class). They need no Unicode tables of PCRE2's then,
 * whose version the host decides, and no UTF mode. */
#include "text/internal.h"
#include "text/unicode.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

/* Inside brackets: letters, numbers and white space among class bytes. */
#define L "A-Za-z\\x80\\x84"
#define N "0-9\\x81"
#define S "\\t-\\r\\x20\\x82"
#define CONTRACTIONS_ANY_CASE "'(?:[SsTtMmDd\\x84]|[Rr][Ee]|[Vv][Ee]|[Ll][Ll])|"

/* In each, the alternatives are in the order of the original, since the first that matches wins. */
static const char pattern_gpt2[] =
    "'(?:s|t|re|ve|m|ll|d)|\\x20?[" L "]+|\\x20?[" N "]+|\\x20?[^" S L N "]+|"
    "[" S "]+(?![^" S "])|[" S "]+";
static const char pattern_llama3[] =
    CONTRACTIONS_ANY_CASE "[^\\r\\n" L N "]?[" L "]+|[" N "]{1,3}|\\x20?[^" S L N "]+[\\r\\n]*|[" S
                          "]*[\\r\\n]+|[" S "]+(?![^" S "])|[" S "]+";
static const char pattern_qwen2[] =
    CONTRACTIONS_ANY_CASE "[^\\r\\n" L N "]?[" L "]+|[" N "]|\\x20?[^" S L N "]+[\\r\\n]*|[" S
                          "]*[\\r\\n]+|[" S "]+(?![^" S "])|[" S "]+";

static const struct family {
    const char *name;
    const char *pattern;
    bool digits_first; /* each number is a piece, and no rule looks across it */
    bool nfc;
    bool ignores_merges;
    bool adds_bos;
} families[] = {
    {"gpt-2", pattern_gpt2, false, false, false, false},
    {"smollm", pattern_gpt2, true, false, false, false},
    {"llama-bpe", pattern_llama3, false, false, true, true},
    {"qwen2", pattern_qwen2, false, true, false, false},
};

struct pretokenizer {
    const struct family *family;
    pcre2_code *code;
};

enum status pretokenizer_create(const char *name, size_t len, struct pretokenizer **out)
{
    const struct family *family = NULL;
    int error;
    PCRE2_SIZE where;

    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++)
        if (strlen(families[i].name) == len && !memcmp(families[i].name, name, len))
            family = &families[i];
    if (!family)
        return fail(STATUS_UNSUPPORTED_MODEL,
                    "tokenizer.ggml.pre is %.*s; gpt-2, smollm, llama-bpe and qwen2 are supported",
                    (int)(len < 100 ? len : 100), name);
    struct pretokenizer *p = memory_alloc(1, sizeof *p);
    if (!p)
        return STATUS_NO_MEMORY;
    p->family = family;
    p->code = pcre2_compile((PCRE2_SPTR)family->pattern, PCRE2_ZERO_TERMINATED,
                            PCRE2_DOLLAR_ENDONLY, &error, &where, NULL);
    if (!p->code) {
        free(p);
        return fail(STATUS_INTERNAL, "PCRE2 refuses the pattern of %s at %zu (error %d)",
                    family->name, (size_t)where, error);
    }
    pcre2_jit_compile(p->code,
                      PCRE2_JIT_COMPLETE); /* where there is no JIT, pcre2_match() interprets */
    *out = p;
    return STATUS_OK;
}

void pretokenizer_destroy(struct pretokenizer **pp)
{
    if (!*pp)
        return;
    pcre2_code_free((*pp)->code);
    free(*pp);
    *pp = NULL;
}

bool pretokenizer_normalizes(const struct pretokenizer *p)
{
    return p->family->nfc;
}

bool pretokenizer_ignores_merges(const struct pretokenizer *p)
{
    return p->family->ignores_merges;
}

bool pretokenizer_adds_bos(const struct pretokenizer *p)
{
    return p->family->adds_bos;
}

/* Where we are in the text and, in step, in its class bytes. */
struct split {
    pcre2_code *code;
    pcre2_match_data *match;
    const char *text;
    const uint8_t *classes;
    pretokenizer_piece *piece;
    void *context;
};

/* The next n characters are a piece. */
static enum status emit(struct split *s, size_t n)
{
    size_t bytes = 0;

    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s->text[bytes];
        bytes += c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
    }
    const char *start = s->text;
    s->text += bytes;
    s->classes += n;
    return s->piece(s->context, start, bytes);
}

/* The next n characters, cut by the regular expression; it does not see beyond them. */
static enum status split_run(struct split *s, size_t n)
{
    const uint8_t *subject = s->classes;
    size_t at = 0;

    while (at < n) {
        int rc = pcre2_match(s->code, subject, n, at, PCRE2_NOTEMPTY, s->match, NULL);
        PCRE2_SIZE *found = pcre2_get_ovector_pointer(s->match);
        if (rc == PCRE2_ERROR_NOMATCH) /* what no alternative takes is a piece too */
            return emit(s, n - at);
        if (rc < 0)
            return fail(STATUS_INTERNAL, "PCRE2 fails with %d at character %zu of %zu", rc, at, n);
        if (found[0] > at)
            TRY(emit(s, found[0] - at));
        TRY(emit(s, found[1] - found[0]));
        at = found[1];
    }
    return STATUS_OK;
}

static bool is_digit(uint8_t class)
{
    return (class >= '0' && class <= '9') || class == CHAR_NUMBER || class == CHAR_DIGIT;
}

static enum status split_around_digits(struct split *s, size_t n)
{
    for (size_t i = 0, end; i < n; i = end) {
        end = i + 1;
        if (is_digit(*s->classes)) {
            TRY(emit(s, 1));
            continue;
        }
        while (end < n && !is_digit(s->classes[end - i]))
            end++;
        TRY(split_run(s, end - i));
    }
    return STATUS_OK;
}

enum status pretokenizer_split(const struct pretokenizer *p, const char *text, size_t len,
                               pretokenizer_piece *piece, void *context)
{
    uint8_t *classes = memory_alloc(len, 1);
    pcre2_match_data *match = pcre2_match_data_create(1, NULL);
    enum status status;
    size_t n = 0;

    if (!classes || !match) {
        status = fail(STATUS_NO_MEMORY, "no memory to cut a text of %zu bytes", len);
        goto done;
    }
    for (size_t i = 0; i < len; n++) {
        uint32_t c = (unsigned char)text[i];
        i += c < 0x80 ? 1 : utf8_decode(text + i, len - i, &c);
        classes[n] = unicode_class(c);
    }
    struct split s = {p->code, match, text, classes, piece, context};
    status = p->family->digits_first ? split_around_digits(&s, n) : split_run(&s, n);
done:
    free(classes);
    if (match)
        pcre2_match_data_free(match);
    return status;
}
