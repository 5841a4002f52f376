/* text/unicode (private to the room): UTF-8, the classes that pre-tokenizers tell apart, and NFC.
 * The tables are our own (tools/gen_unicode_tables.py), so that ids do not depend on the Unicode
 * version of a library on the host. */
#ifndef BATON_TEXT_UNICODE_H
#define BATON_TEXT_UNICODE_H

#include "base/memory.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define UNICODE_MAX 0x10ffff
#define UTF8_MAX_BYTES 4

/* Bytes of the well-formed character that starts at p (no surrogates, nothing overlong); 0 if there
 * is none. */
uint32_t utf8_decode(const char *p, size_t len, uint32_t *out_point);
/* Writes 1 to 4 bytes; point is a Unicode scalar value. */
uint32_t utf8_encode(uint32_t point, char out[UTF8_MAX_BYTES]);
/* How many of len bytes are well-formed from the start. */
size_t utf8_valid_prefix(const char *p, size_t len);
/* The character that starts at p lacks only bytes behind the end: more input could still complete
 * it. */
bool utf8_is_incomplete(const char *p, size_t len);

/* What a pre-tokenizer sees of a character: its own byte if it is ASCII, else one of these. */
enum char_class {
    CHAR_LETTER = 0x80,
    CHAR_NUMBER = 0x81,
    CHAR_SPACE = 0x82,
    CHAR_OTHER = 0x83,
    CHAR_LONG_S = 0x84, /* U+017F: a letter that equals s when case is ignored */
    CHAR_DIGIT =
        0x85, /* a number to the digit splitter, nothing special to the regular expressions */
};
uint8_t unicode_class(uint32_t point);

/* True when well-formed text is surely in NFC already; false: it may have to change. */
bool nfc_is_certain(const char *text, size_t len);
/* Appends the NFC of well-formed text. Linear but for the sorting of runs of marks. Errors:
 * NO_MEMORY. */
enum status nfc_append(struct buffer *out, const char *text, size_t len) WARN_UNUSED;

/* ---- tables ---- */

struct unicode_class_range {
    uint32_t first, last;
    uint8_t class;
};
struct unicode_combining_range {
    uint32_t first, last;
    uint8_t class;
};
struct unicode_decomposition {
    uint32_t point, first, second; /* second 0: a single character */
};
struct unicode_composition {
    uint32_t first, second, point;
};
extern const struct unicode_class_range unicode_class_ranges[];
extern const struct unicode_combining_range unicode_combining_ranges[];
extern const struct unicode_decomposition unicode_decompositions[];
extern const struct unicode_composition unicode_compositions[];
extern const uint32_t n_unicode_class_ranges, n_unicode_combining_ranges, n_unicode_decompositions,
    n_unicode_compositions;

#endif
