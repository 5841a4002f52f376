/* text: what the files of this room share about a vocabulary. (Unicode: text/unicode.h, templates:
 * text/jinja.h.) */
#ifndef BATON_TEXT_INTERNAL_H
#define BATON_TEXT_INTERNAL_H

#include "text/text.h"

#define NO_TOKEN UINT32_MAX

/* ---- hash tables that are filled once ---- */

/* Bytes of a token to its id. */
struct token_map {
    uint32_t *slots; /* id + 1; 0: free */
    uint32_t mask;
};

struct merge {
    uint64_t pair; /* left << 32 | right */
    uint32_t rank;
    uint32_t id; /* NO_TOKEN: free */
};
struct merge_map {
    struct merge *slots;
    uint32_t mask;
};

/* The tokens that are recognised as written, in a trie over bytes whose edges are a hash table. */
struct special_trie {
    struct special_edge *slots;
    uint32_t mask;
    uint32_t n_nodes;
    uint32_t *token_of_node; /* [n_nodes] */
    bool first[256];         /* a special token starts with this byte */
};

struct pretokenizer;
/* NULL with fail(): UNSUPPORTED_MODEL for a name that is not known. */
enum status pretokenizer_create(const char *name, size_t len,
                                struct pretokenizer **out) WARN_UNUSED;
void pretokenizer_destroy(struct pretokenizer **p);
bool pretokenizer_normalizes(const struct pretokenizer *p); /* text goes through NFC first */
bool pretokenizer_ignores_merges(
    const struct pretokenizer *p); /* a piece that is a token as a whole is that token */
bool pretokenizer_adds_bos(
    const struct pretokenizer *p); /* what the family does when the file does not say */

/* Calls piece() for each piece of well-formed text, in order; together they are the text.
 * Errors: NO_MEMORY, INTERNAL, and whatever piece() returns. */
typedef enum status pretokenizer_piece(void *context, const char *bytes, size_t len);
enum status pretokenizer_split(const struct pretokenizer *p, const char *text, size_t len,
                               pretokenizer_piece *piece, void *context) WARN_UNUSED;

struct vocabulary {
    struct arena arena; /* every string */
    struct vocabulary_view view;
    struct byte_string *tokens;
    uint8_t *kinds;
    const char **texts; /* as in the file */
    bool *ends;
    uint32_t byte_tokens[256]; /* NO_TOKEN: the vocabulary cannot write this byte */
    struct token_map by_bytes; /* no control tokens: words never become one */
    struct merge_map merges;
    struct special_trie specials;
    struct pretokenizer *pretokenizer;
    int64_t bos, eos;
    bool adds_bos;
    char *template_source;
    struct chat_template *chat_template;
    char *template_error; /* why the file's template cannot be used */
    uint8_t digest[REQUEST_DIGEST_BYTES];
};

enum status token_map_init(struct token_map *m, uint32_t n_tokens) WARN_UNUSED;
/* The first id with these bytes stays. */
void token_map_add(struct token_map *m, const struct byte_string *tokens, uint32_t id);
uint32_t token_map_find(const struct token_map *m, const struct byte_string *tokens,
                        const char *bytes, size_t len);

enum status merge_map_init(struct merge_map *m, uint64_t n_merges) WARN_UNUSED;
void merge_map_add(struct merge_map *m, uint32_t left, uint32_t right, uint32_t rank, uint32_t id);
const struct merge *merge_map_find(const struct merge_map *m, uint32_t left, uint32_t right);

enum status special_trie_build(struct special_trie *t, const struct vocabulary *v) WARN_UNUSED;
void special_trie_deinit(struct special_trie *t);
/* The longest special token that text starts with; NO_TOKEN if none. */
uint32_t special_trie_match(const struct special_trie *t, const char *text, size_t len,
                            uint32_t *out_len);

/* Ids that grow; ids may be the caller's own array, which is moved. */
struct id_list {
    uint32_t *ids;
    uint32_t n, capacity;
    uint32_t max; /* 0: no limit */
};
enum status id_list_add(struct id_list *l, uint32_t id) WARN_UNUSED;

/* Memory that one run of the tokenizer uses again for each piece. Zeroed is valid. */
struct bpe_scratch {
    void *symbols;
    uint64_t *heap;
    size_t room, heap_room;
};
void bpe_scratch_deinit(struct bpe_scratch *s);
/* Appends the ids of one piece. */
enum status bpe_encode(const struct vocabulary *v, struct bpe_scratch *scratch, const char *piece,
                       size_t len, struct id_list *out) WARN_UNUSED;

/* Tokenizes; where pieces are given, control tokens are recognised only if all their bytes came
 * from the template. */
enum status encode_text(const struct vocabulary *v, const char *text, size_t len,
                        bool parse_special, const struct prompt_piece *pieces, uint32_t n_pieces,
                        struct id_list *out) WARN_UNUSED;

#endif
