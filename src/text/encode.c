/* Text to ids: special tokens are cut out first, then well-formed stretches go through normaliser,
 * pre-tokenizer and merges, and a byte that is not UTF-8 is a piece of its own. */
#include "base/checked.h"
#include "text/internal.h"
#include "text/unicode.h"

#include <stdlib.h>

struct encoder {
    const struct vocabulary *v;
    struct bpe_scratch scratch;
    struct buffer normalized;
    struct id_list *out;
};

static enum status encode_piece(void *context, const char *bytes, size_t len)
{
    struct encoder *e = context;

    return bpe_encode(e->v, &e->scratch, bytes, len, e->out);
}

static enum status encode_well_formed(struct encoder *e, const char *text, size_t len)
{
    if (pretokenizer_normalizes(e->v->pretokenizer) && !nfc_is_certain(text, len)) {
        buffer_clear(&e->normalized);
        TRY(nfc_append(&e->normalized, text, len));
        text = e->normalized.data;
        len = e->normalized.len;
    }
    return pretokenizer_split(e->v->pretokenizer, text, len, encode_piece, e);
}

static enum status encode_plain(struct encoder *e, const char *text, size_t len)
{
    while (len > 0) {
        size_t valid = utf8_valid_prefix(text, len);
        if (valid > 0)
            TRY(encode_well_formed(e, text, valid));
        if (valid < len) {
            uint32_t id = e->v->byte_tokens[(unsigned char)text[valid]];
            if (id != NO_TOKEN)
                TRY(id_list_add(e->out, id));
            valid++;
        }
        text += valid;
        len -= valid;
    }
    return STATUS_OK;
}

/* Whether bytes [start, end) all came from the template. *piece is where the last question was
 * answered; questions ascend. */
static bool is_from_template(const struct prompt_piece *pieces, uint32_t n_pieces, uint32_t *piece,
                             size_t start, size_t end)
{
    while (*piece < n_pieces && (size_t)pieces[*piece].start + pieces[*piece].len <= start)
        ++*piece;
    for (uint32_t i = *piece; i < n_pieces && pieces[i].start < end; i++)
        if (!pieces[i].from_template)
            return false;
    return true;
}

enum status encode_text(const struct vocabulary *v, const char *text, size_t len,
                        bool parse_special, const struct prompt_piece *pieces, uint32_t n_pieces,
                        struct id_list *out)
{
    struct encoder e = {.v = v, .out = out};
    enum status status = STATUS_OK;
    size_t plain = 0; /* where the text that is not encoded yet begins */
    uint32_t piece = 0;

    for (size_t i = 0; i < len;) {
        uint32_t n = 0, id = NO_TOKEN;
        if (v->specials.first[(unsigned char)text[i]])
            id = special_trie_match(&v->specials, text + i, len - i, &n);
        if (id == NO_TOKEN) {
            i++;
            continue;
        }
        if (v->kinds[id] == TOKEN_CONTROL) {
            if (!parse_special) { /* passed over whole, as `tokenizers` does */
                i += n;
                continue;
            }
            if (pieces && !is_from_template(pieces, n_pieces, &piece, i, i + n)) {
                i++; /* the template's own may begin within it */
                continue;
            }
        }
        TRY_GOTO(done, encode_plain(&e, text + plain, i - plain));
        TRY_GOTO(done, id_list_add(out, id));
        i += n;
        plain = i;
    }
    TRY_GOTO(done, encode_plain(&e, text + plain, len - plain));
done:
    bpe_scratch_deinit(&e.scratch);
    buffer_deinit(&e.normalized);
    return status;
}

enum status vocabulary_encode(const struct vocabulary *v, const char *text, size_t len,
                              bool parse_special, uint32_t max_ids, uint32_t **ids, uint32_t *n_ids)
{
    struct id_list list = {*ids, *n_ids, *n_ids, max_ids};
    enum status status = encode_text(v, text, len, parse_special, NULL, 0, &list);

    *ids = list.ids; /* growing may have moved it, whatever came of it */
    if (status == STATUS_OK)
        *n_ids = list.n;
    return status;
}
