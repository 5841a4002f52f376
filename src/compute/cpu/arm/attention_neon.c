/* Attention of some rows of one sequence over one KV head (EXACTNESS 5). Keys are lanes of q.K,
 * dims are lanes of p.V; four (row, head) pairs at a time share what is read of a page. */
#include "compute/cpu/arm/neon.h"
#include "compute/cpu/attention_task.h"

#include <math.h>

#define PAIRS 4 /* of a register tile, beside 4 vectors */

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
    const float *a[ATTENTION_PAIRS];
    float *c[ATTENTION_PAIRS], m[ATTENTION_PAIRS], l[ATTENTION_PAIRS];
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

#define TIER(name) neon_##name
#define TIER_SCALE neon_scale
#include "compute/cpu/attention_walk.h"
