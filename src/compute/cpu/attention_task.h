/* The rows and heads of one task of attention, and the pages that they read: what all vector tiers
 * share. */
#include "compute/internal.h"

struct pair {
    const float *q;
    float *out;
    uint32_t n_keys;
    float m, l;
};

struct task {
    const struct attention_task *t;
    const struct page_table_view *table;
    struct pair *pairs;
    uint32_t n, hd;
    uint32_t begin, end; /* the first key, one past the last */
    float *page;         /* [2][256 * hd] a segment's pages of K, then V, as f32 */
    float *s;            /* [pairs][256] scores, then weights */
    float *o;            /* [pairs][hd] of a segment */
};

static const uint16_t *page_of(const struct task *k, uint32_t page, bool values)
{
    const struct compute_attention *a = k->t->a;
    const uint16_t *slab = kv_slab(k->t->batch, k->table, page, a->layer);

    return slab + (size_t)(k->t->kv_head + (values ? a->n_kv_heads : 0)) * k->hd * PAGE_TOKENS;
}

/* The page that is read after this one: a segment's K, its V, then the next segment's K. NULL: not
 * known. */
static inline const uint16_t *page_ahead(const struct task *k, uint32_t key, bool values,
                                         uint32_t begin, uint32_t end)
{
    if (key + PAGE_TOKENS < end)
        return page_of(k, key / PAGE_TOKENS + 1, values);
    if (!values)
        return page_of(k, begin / PAGE_TOKENS, true);
    return end < k->end ? page_of(k, end / PAGE_TOKENS, false) : k->t->ahead;
}

/* Pairs are in order of position: the first one with a key at or after `key`. */
static uint32_t first_pair(const struct task *k, uint32_t key)
{
    uint32_t i = 0;

    while (i < k->n && k->pairs[i].n_keys <= key)
        i++;
    return i;
}
