/* Attention of some rows of one sequence over one KV head (EXACTNESS 5). Keys are lanes of q.K,
 * dims are lanes of p.V; four (row, head) pairs at a time share what is read of a page. */
#include "compute/cpu/arm/neon.h"

#include <math.h>

#define PAIRS 4 /* of a register tile, beside 4 vectors */

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
    uint32_t begin; /* the first key */
    float *s;       /* [pairs][256] scores, then weights */
    float *o;       /* [pairs][hd] of a segment */
};

/* c[pair][vectors of 4] = (first ? 0 : c) + sum over j of a[pair][j] * b[j][...], one chain an
 * element, j ascending. */
INLINE void chains(const float *const *a, const uint16_t *b, uint32_t b_stride, uint32_t n,
                   float *const *c, uint32_t column, bool first, const int pairs, const int vectors)
{
    float32x4_t acc[PAIRS][4];

    UNROLL for (int i = 0; i < pairs; i++) UNROLL for (int v = 0; v < vectors; v++) acc[i][v] =
        first ? vdupq_n_f32(0) : vld1q_f32(c[i] + column + 4 * v);
    for (uint32_t j = 0; j < n; j++, b += b_stride)
        UNROLL for (int v = 0; v < vectors; v++)
        {
            float32x4_t row = neon_halves(b + 4 * v);
            UNROLL for (int i = 0; i < pairs; i++) acc[i][v] = vfmaq_n_f32(acc[i][v], row, a[i][j]);
        }
    UNROLL for (int i = 0; i < pairs; i++) UNROLL for (int v = 0; v < vectors; v++)
        vst1q_f32(c[i] + column + 4 * v, acc[i][v]);
}

typedef void chains_kernel(const float *const *a, const uint16_t *b, uint32_t b_stride, uint32_t n,
                           float *const *c, uint32_t column, bool first);

#define INSTANCE(pairs, vectors)                                                                   \
    static void chains_##pairs##_##vectors(const float *const *a, const uint16_t *b,               \
                                           uint32_t b_stride, uint32_t n, float *const *c,         \
                                           uint32_t column, bool first)                            \
    {                                                                                              \
        chains(a, b, b_stride, n, c, column, first, pairs, vectors);                               \
    }
INSTANCE(1, 2)
INSTANCE(2, 2)
INSTANCE(3, 2)
INSTANCE(4, 2)
INSTANCE(1, 4)
INSTANCE(2, 4)
INSTANCE(3, 4)
INSTANCE(4, 4)

static chains_kernel *const kernels[2][PAIRS] = {
    {chains_1_2, chains_2_2, chains_3_2, chains_4_2},
    {chains_1_4, chains_2_4, chains_3_4, chains_4_4},
};

/* c = a b for all pairs from `from`, or c + a b; width columns, a multiple of 8. */
static void product(const struct task *k, uint32_t from, const float *const *a, const uint16_t *b,
                    uint32_t width, uint32_t n, float *const *c, bool first)
{
    for (uint32_t i = from; i < k->n; i += PAIRS)
        for (uint32_t v = 0; v < width;) {
            bool four = v + 16 <= width;
            kernels[four][MIN(PAIRS, k->n - i) - 1](a + i, b + v, width, n, c + i, v, first);
            v += four ? 16 : 8;
        }
}

static const uint16_t *page_of(const struct task *k, uint32_t page, bool values)
{
    const struct compute_attention *a = k->t->a;
    const uint16_t *slab = kv_slab(k->t->batch, k->table, page, a->layer);

    return slab + (size_t)(k->t->kv_head + (values ? a->n_kv_heads : 0)) * k->hd * PAGE_TOKENS;
}

/* Pairs are in order of position: the first one with a key at or after `key`. */
static uint32_t first_pair(const struct task *k, uint32_t key)
{
    uint32_t i = 0;

    while (i < k->n && k->pairs[i].n_keys <= key)
        i++;
    return i;
}

static void scores(const struct task *k, uint32_t begin, uint32_t end, const float **a, float **c)
{
    for (uint32_t i = 0; i < k->n; i++)
        a[i] = k->pairs[i].q;
    for (uint32_t key = begin; key < end; key += PAGE_TOKENS) {
        for (uint32_t i = 0; i < k->n; i++)
            c[i] = k->s + i * ATTENTION_KEYS + (key - begin);
        product(k, first_pair(k, key), a, page_of(k, key / PAGE_TOKENS, false), PAGE_TOKENS, k->hd,
                c, true);
    }
}

/* Scores of one pair as weights; what lies beyond its keys becomes +0. Returns the maximum. */
static float weights(float *s, uint32_t n, float *sum)
{
    static const uint32_t lane[4] = {0, 1, 2, 3};
    float largest = neon_maximum(s, n);
    float32x4_t acc[8];

    for (int v = 0; v < 8; v++)
        acc[v] = vdupq_n_f32(0);
    for (uint32_t i = 0; i < n; i += PAGE_TOKENS)
        UNROLL for (int v = 0; v < 8; v++)
        {
            uint32_t at = i + 4 * (uint32_t)v;
            float32x4_t x = vsubq_f32(vld1q_f32(s + at), vdupq_n_f32(largest));
            uint32x4_t keep = vmvnq_u32(vcltq_f32(x, vdupq_n_f32(-64.0f)));
            keep = vandq_u32(
                keep, vcltq_u32(vaddq_u32(vld1q_u32(lane), vdupq_n_u32(at)), vdupq_n_u32(n)));
            float32x4_t p =
                vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(neon_exp2(x)), keep));
            vst1q_f32(s + at, p);
            acc[v] = vaddq_f32(acc[v], p);
        }
    for (int h = 4; h > 0; h /= 2)
        for (int v = 0; v < h; v++)
            acc[v] = vaddq_f32(acc[v], acc[v + h]);
    *sum = neon_sum(acc[0]);
    return largest;
}

static float cut_exp2(float x)
{
    return x < -64.0f ? 0.0f : vgetq_lane_f32(neon_exp2(vdupq_n_f32(x)), 0);
}

/* A segment's maximum, sum and output into the pair's. */
static void merge(struct pair *p, const float *o, uint32_t hd, float m, float l, bool first)
{
    if (first) {
        p->m = m;
        p->l = l;
        memcpy(p->out, o, hd * sizeof *o);
        return;
    }
    float all = p->m > m ? p->m : m, a = cut_exp2(p->m - all), b = cut_exp2(m - all);
    p->l = fmaf(l, b, p->l * a);
    p->m = all;
    for (uint32_t d = 0; d < hd; d += 4) {
        float32x4_t old = vmulq_n_f32(vld1q_f32(p->out + d), a);
        vst1q_f32(p->out + d, vfmaq_n_f32(old, vld1q_f32(o + d), b));
    }
}

static void segment(struct task *k, uint32_t begin, uint32_t end)
{
    const float *a[64];
    float *c[64], m[64], l[64];
    uint32_t from = first_pair(k, begin);

    scores(k, begin, end, a, c);
    for (uint32_t i = from; i < k->n; i++) {
        uint32_t n = MIN(k->pairs[i].n_keys, end) - begin;
        float *s = k->s + i * ATTENTION_KEYS;
        if (k->t->a->soft_cap > 0) {
            neon_soft_cap(s, n, k->t->a->soft_cap);
            neon_scale(s, n, (float)LOG2_E);
        }
        m[i] = weights(s, n, &l[i]);
    }
    for (uint32_t i = 0; i < k->n; i++)
        c[i] = k->o + i * k->hd;
    for (uint32_t key = begin; key < end; key += PAGE_TOKENS) {
        for (uint32_t i = 0; i < k->n; i++)
            a[i] = k->s + i * ATTENTION_KEYS + (key - begin);
        product(k, first_pair(k, key), a, page_of(k, key / PAGE_TOKENS, true), k->hd,
                MIN(PAGE_TOKENS, end - key), c, key == begin);
    }
    for (uint32_t i = from; i < k->n; i++)
        merge(&k->pairs[i], c[i], k->hd, m[i], l[i], begin == k->begin);
}

/* At most 64 pairs: heads [head, head + heads) of the rows. */
static void run_pairs(const struct attention_task *t, uint32_t head, uint32_t heads)
{
    struct pair pairs[64];
    struct task k = {.t = t, .pairs = pairs, .hd = t->a->head_dim, .begin = t->part ? t->begin : 0};
    uint32_t end = 0, first_head = t->kv_head * (t->a->n_heads / t->a->n_kv_heads);

    for (uint32_t i = t->first; i < t->first + t->n; i++) {
        uint32_t row = t->rows ? t->rows[i] : i;
        k.table = &t->batch->page_tables[t->batch->tables[row]];
        end = t->part ? t->end : t->batch->positions[row] + 1;
        for (uint32_t h = head; h < head + heads; h++) {
            float *out = t->part ? t->part + (h - first_head) * t->part_stride + 2
                                 : t->out + ((size_t)i * t->a->n_heads + h) * k.hd;
            pairs[k.n++] = (struct pair){
                .q = t->q + ((size_t)row * t->a->n_heads + h) * k.hd, .out = out, .n_keys = end};
        }
    }
    k.s = t->scratch;
    k.o = k.s + (size_t)k.n * ATTENTION_KEYS;
    for (uint32_t begin = k.begin; begin < end; begin += ATTENTION_KEYS)
        segment(&k, begin, MIN(end, begin + ATTENTION_KEYS));
    for (uint32_t i = 0; i < k.n; i++) {
        if (t->part) {
            pairs[i].out[-2] = pairs[i].m;
            pairs[i].out[-1] = pairs[i].l;
        } else {
            neon_scale(pairs[i].out, k.hd, 1.0f / pairs[i].l);
        }
    }
}

void neon_attention_merge(const float *parts, uint32_t n, uint32_t head_dim, float *out)
{
    struct pair p = {.out = out};

    for (uint32_t i = 0; i < n; i++, parts += 2 + head_dim)
        merge(&p, parts + 2, head_dim, parts[0], parts[1], i == 0);
    neon_scale(out, head_dim, 1.0f / p.l);
}

void neon_attention(const struct attention_task *t)
{
    uint32_t heads = t->a->n_heads / t->a->n_kv_heads, first = t->kv_head * heads,
             at_once = MAX(1, MIN(heads, 64 / t->n));

    for (uint32_t h = 0; h < heads; h += at_once)
        run_pairs(t, first + h, MIN(at_once, heads - h));
}
