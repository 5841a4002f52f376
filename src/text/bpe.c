/* Byte-pair merging: in a piece, the pair of lowest rank is merged, the leftmost of equals first,
 * until none is left. */
#include "base/checked.h"
#include "text/internal.h"

#include <stdlib.h>
#include <string.h>

/* Up to here a scan over all pairs beats a heap. */
#define SMALL_PIECE 48

static uint64_t hash_bytes(const char *p, size_t len)
{
    uint64_t h = 0x9E3779B97F4A7C15u ^ len, word;

    for (; len >= 8; p += 8, len -= 8) {
        memcpy(&word, p, 8);
        h = (h ^ word) * 0xD6E8FEB86659FD93u;
        h ^= h >> 32;
    }
    word = 0;
    memcpy(&word, p, len);
    h = (h ^ word) * 0xD6E8FEB86659FD93u;
    return h ^ h >> 32;
}

static uint64_t hash_u64(uint64_t x)
{
    x *= 0x9E3779B97F4A7C15u;
    return x ^ x >> 32;
}

/* A power of two of which n is at most half. */
static uint32_t table_size(uint64_t n)
{
    uint32_t size = 16;

    while (size < 2 * n && size < 1u << 31)
        size *= 2;
    return size;
}

enum status token_map_init(struct token_map *m, uint32_t n_tokens)
{
    uint32_t size = table_size(n_tokens);

    m->slots = memory_alloc(size, sizeof *m->slots);
    m->mask = size - 1;
    return m->slots ? STATUS_OK : STATUS_NO_MEMORY;
}

void token_map_add(struct token_map *m, const struct byte_string *tokens, uint32_t id)
{
    const struct byte_string *t = &tokens[id];
    uint32_t i = (uint32_t)hash_bytes(t->bytes, t->len) & m->mask;

    for (; m->slots[i]; i = (i + 1) & m->mask) {
        const struct byte_string *other = &tokens[m->slots[i] - 1];
        if (other->len == t->len && !memcmp(other->bytes, t->bytes, t->len))
            return;
    }
    m->slots[i] = id + 1;
}

uint32_t token_map_find(const struct token_map *m, const struct byte_string *tokens,
                        const char *bytes, size_t len)
{
    for (uint32_t i = (uint32_t)hash_bytes(bytes, len) & m->mask; m->slots[i];
         i = (i + 1) & m->mask) {
        const struct byte_string *t = &tokens[m->slots[i] - 1];
        if (t->len == len && !memcmp(t->bytes, bytes, len))
            return m->slots[i] - 1;
    }
    return NO_TOKEN;
}

enum status merge_map_init(struct merge_map *m, uint64_t n_merges)
{
    uint32_t size = table_size(n_merges);

    m->slots = memory_alloc(size, sizeof *m->slots);
    if (!m->slots)
        return STATUS_NO_MEMORY;
    m->mask = size - 1;
    for (uint32_t i = 0; i < size; i++)
        m->slots[i].id = NO_TOKEN;
    return STATUS_OK;
}

void merge_map_add(struct merge_map *m, uint32_t left, uint32_t right, uint32_t rank, uint32_t id)
{
    uint64_t pair = (uint64_t)left << 32 | right;
    uint32_t i = (uint32_t)hash_u64(pair) & m->mask;

    while (m->slots[i].id != NO_TOKEN && m->slots[i].pair != pair)
        i = (i + 1) & m->mask;
    m->slots[i] = (struct merge){pair, rank, id}; /* of two equal merges the later one counts */
}

const struct merge *merge_map_find(const struct merge_map *m, uint32_t left, uint32_t right)
{
    uint64_t pair = (uint64_t)left << 32 | right;

    for (uint32_t i = (uint32_t)hash_u64(pair) & m->mask; m->slots[i].id != NO_TOKEN;
         i = (i + 1) & m->mask)
        if (m->slots[i].pair == pair)
            return &m->slots[i];
    return NULL;
}

enum status id_list_add(struct id_list *l, uint32_t id)
{
    if (l->max && l->n >= l->max)
        return fail(STATUS_TOO_LARGE, "the text has more than %u tokens", l->max);
    if (l->n == l->capacity) {
        if (l->n > UINT32_MAX / 2 - 64)
            return fail(STATUS_TOO_LARGE, "the text has more than %u tokens", l->n);
        uint32_t capacity = l->n + l->n / 2 + 64;
        uint32_t *ids = memory_grow(l->ids, capacity, sizeof *ids);
        if (!ids)
            return STATUS_NO_MEMORY;
        l->ids = ids;
        l->capacity = capacity;
    }
    l->ids[l->n++] = id;
    return STATUS_OK;
}

static uint32_t pair_rank(const struct vocabulary *v, uint32_t left, uint32_t right,
                          uint32_t *out_id)
{
    const struct merge *m = merge_map_find(&v->merges, left, right);

    if (!m)
        return UINT32_MAX;
    *out_id = m->id;
    return m->rank;
}

static enum status encode_small(const struct vocabulary *v, const char *piece, size_t len,
                                struct id_list *out)
{
    uint32_t ids[SMALL_PIECE], ranks[SMALL_PIECE],
        merged[SMALL_PIECE]; /* of the pair that starts here */
    uint32_t n = 0;

    for (size_t i = 0; i < len; i++) {
        ids[n] = v->byte_tokens[(unsigned char)piece[i]];
        n += ids[n] != NO_TOKEN;
    }
    for (uint32_t i = 0; i + 1 < n; i++)
        ranks[i] = pair_rank(v, ids[i], ids[i + 1], &merged[i]);
    while (n > 1) {
        uint32_t best = 0;
        for (uint32_t i = 1; i + 1 < n; i++)
            if (ranks[i] < ranks[best])
                best = i;
        if (ranks[best] == UINT32_MAX)
            break;
        ids[best] = merged[best];
        n--;
        memmove(ids + best + 1, ids + best + 2, (n - best - 1) * sizeof *ids);
        memmove(ranks + best, ranks + best + 1, (n - best - 1) * sizeof *ranks);
        memmove(merged + best, merged + best + 1, (n - best - 1) * sizeof *merged);
        if (best > 0)
            ranks[best - 1] = pair_rank(v, ids[best - 1], ids[best], &merged[best - 1]);
        if (best + 1 < n)
            ranks[best] = pair_rank(v, ids[best], ids[best + 1], &merged[best]);
    }
    for (uint32_t i = 0; i < n; i++)
        TRY(id_list_add(out, ids[i]));
    return STATUS_OK;
}

/* ---- long pieces: a list of symbols and a heap of (rank, position); what has changed since it was
 * pushed is skipped ---- */

struct symbol {
    uint32_t id; /* NO_TOKEN: merged into its left neighbour */
    uint32_t previous, next;
};
#define NO_SYMBOL UINT32_MAX

static void heap_push(uint64_t *heap, size_t *n, uint64_t entry)
{
    size_t i = (*n)++;

    for (; i > 0 && heap[(i - 1) / 2] > entry; i = (i - 1) / 2)
        heap[i] = heap[(i - 1) / 2];
    heap[i] = entry;
}

static uint64_t heap_pop(uint64_t *heap, size_t *n)
{
    uint64_t top = heap[0], entry = heap[--*n];
    size_t i = 0;

    for (size_t child = 1; child < *n; i = child, child = 2 * i + 1) {
        if (child + 1 < *n && heap[child + 1] < heap[child])
            child++;
        if (heap[child] >= entry)
            break;
        heap[i] = heap[child];
    }
    heap[i] = entry;
    return top;
}

static void push_pair(const struct vocabulary *v, const struct symbol *symbols, uint32_t left,
                      uint64_t *heap, size_t *n_heap)
{
    uint32_t right = symbols[left].next, id;

    if (right == NO_SYMBOL)
        return;
    uint32_t rank = pair_rank(v, symbols[left].id, symbols[right].id, &id);
    if (rank != UINT32_MAX)
        heap_push(heap, n_heap, (uint64_t)rank << 32 | left);
}

static enum status scratch_grow(struct bpe_scratch *s, size_t len)
{
    if (len <= s->room)
        return STATUS_OK;
    free(s->symbols);
    free(s->heap);
    s->room = 0;
    s->symbols = memory_alloc(len, sizeof(struct symbol));
    s->heap =
        memory_alloc(len, 3 * sizeof *s->heap); /* a push a pair, then at most two for each merge */
    if (!s->symbols || !s->heap)
        return STATUS_NO_MEMORY;
    s->room = len;
    return STATUS_OK;
}

void bpe_scratch_deinit(struct bpe_scratch *s)
{
    free(s->symbols);
    free(s->heap);
    *s = (struct bpe_scratch){0};
}

static enum status encode_long(const struct vocabulary *v, struct bpe_scratch *scratch,
                               const char *piece, size_t len, struct id_list *out)
{
    TRY(scratch_grow(scratch, len));
    struct symbol *symbols = scratch->symbols;
    uint64_t *heap = scratch->heap;
    size_t n_heap = 0;
    uint32_t n = 0, id;

    for (size_t i = 0; i < len; i++) {
        id = v->byte_tokens[(unsigned char)piece[i]];
        if (id != NO_TOKEN) {
            symbols[n] = (struct symbol){id, n - 1, n + 1}; /* n - 1 of the first is NO_SYMBOL */
            n++;
        }
    }
    if (n == 0)
        return STATUS_OK;
    symbols[n - 1].next = NO_SYMBOL;
    for (uint32_t i = 0; i + 1 < n; i++)
        push_pair(v, symbols, i, heap, &n_heap);
    while (n_heap > 0) {
        uint64_t entry = heap_pop(heap, &n_heap);
        uint32_t left = (uint32_t)entry, right = symbols[left].next;
        if (symbols[left].id == NO_TOKEN || right == NO_SYMBOL ||
            pair_rank(v, symbols[left].id, symbols[right].id, &id) != entry >> 32)
            continue;
        symbols[left].id = id;
        symbols[left].next = symbols[right].next;
        if (symbols[right].next != NO_SYMBOL)
            symbols[symbols[right].next].previous = left;
        symbols[right].id = NO_TOKEN;
        if (symbols[left].previous != NO_SYMBOL)
            push_pair(v, symbols, symbols[left].previous, heap, &n_heap);
        push_pair(v, symbols, left, heap, &n_heap);
    }
    for (uint32_t i = 0; i != NO_SYMBOL; i = symbols[i].next)
        TRY(id_list_add(out, symbols[i].id));
    return STATUS_OK;
}

enum status bpe_encode(const struct vocabulary *v, struct bpe_scratch *scratch, const char *piece,
                       size_t len, struct id_list *out)
{
    if (pretokenizer_ignores_merges(v->pretokenizer)) {
        uint32_t id = token_map_find(&v->by_bytes, v->tokens, piece, len);
        if (id != NO_TOKEN)
            return id_list_add(out, id);
    }
    if (len <= SMALL_PIECE)
        return encode_small(v, piece, len, out);
    if (len >= UINT32_MAX)
        return fail(STATUS_TOO_LARGE, "a text of %zu bytes is too long", len);
    return encode_long(v, scratch, piece, len, out);
}
