/* Attention of some rows of one sequence over one KV head (EXACTNESS 5). Every (row, head) pair of
 * the task shares the conversion of a page to f32; with few pairs it happens in registers. Keys are
 * lanes of q.K, dims are lanes of p.V. The text of attention_avx2.c and attention_avx512vnni.c;
 * before it comes wide_product(), which may do the first columns of a product on wider vectors. */
#include <math.h>

#define PAIRS 3  /* of a register tile, beside 4 vectors */
#define DIRECT 3 /* up to so many pairs read f16 straight */

INLINE __m256 load8(const void *page, uint32_t i, const bool half)
{
    return half ? _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)((const uint16_t *)page + i)))
                : _mm256_loadu_ps((const float *)page + i);
}

/* c[pair][0..8 vectors) = (first ? 0 : c) + sum over j of a[pair][j] * b[j][...], one chain an
 * element, j ascending. */
INLINE void chains(const float *const *a, const void *b, const bool half, uint32_t b_stride,
                   uint32_t n, float *const *c, bool first, const int pairs, const int vectors)
{
    __m256 acc[PAIRS][4];

    UNROLL for (int i = 0; i < pairs; i++) UNROLL for (int v = 0; v < vectors; v++) acc[i][v] =
        first ? _mm256_setzero_ps() : _mm256_loadu_ps(c[i] + 8 * v);
    const float *x0 = a[0], *x1 = a[pairs > 1 ? 1 : 0], *x2 = a[pairs > 2 ? 2 : 0];
    for (uint32_t j = 0; j < n; j++) {
        /* 12 sums, 3 factors and one row at a time: all 16 registers. */
        __m256 x[PAIRS] = {_mm256_broadcast_ss(x0 + j), _mm256_broadcast_ss(x1 + j),
                           _mm256_broadcast_ss(x2 + j)};
        UNROLL for (int v = 0; v < vectors; v++)
        {
            __m256 row = load8(b, 8 * (uint32_t)v, half);
            UNROLL for (int i = 0; i < pairs; i++) acc[i][v] =
                _mm256_fmadd_ps(x[i], row, acc[i][v]);
        }
        b = (const uint8_t *)b + (size_t)b_stride * (half ? 2 : 4);
    }
    UNROLL for (int i = 0; i < pairs; i++) UNROLL for (int v = 0; v < vectors; v++)
        _mm256_storeu_ps(c[i] + 8 * v, acc[i][v]);
}

INLINE void chains_of(const float *const *a, const void *b, const bool half, uint32_t b_stride,
                      uint32_t n, float *const *c, bool first, uint32_t pairs, const int vectors)
{
    if (pairs == 3)
        chains(a, b, half, b_stride, n, c, first, 3, vectors);
    else if (pairs == 2)
        chains(a, b, half, b_stride, n, c, first, 2, vectors);
    else
        chains(a, b, half, b_stride, n, c, first, 1, vectors);
}

/* c = a b for all pairs from `from`, or c + a b; width columns, a multiple of 8. */
INLINE void product(const struct task *k, uint32_t from, const float *const *a, const void *b,
                    const bool half, uint32_t width, uint32_t n, float *const *c, bool first)
{
    uint32_t done = wide_product(k, from, a, b, half, width, n, c, first);

    for (uint32_t i = from; i < k->n && done < width; i += PAIRS) {
        uint32_t pairs = MIN(PAIRS, k->n - i), v = done;
        for (; v + 32 <= width; v += 32) {
            float *to[PAIRS];
            for (uint32_t j = 0; j < pairs; j++)
                to[j] = c[i + j] + v;
            chains_of(a + i, half ? (const void *)((const uint16_t *)b + v) : (const float *)b + v,
                      half, width, n, to, first, pairs, 4);
        }
        for (; v < width; v += 8) {
            float *to[PAIRS];
            for (uint32_t j = 0; j < pairs; j++)
                to[j] = c[i + j] + v;
            chains_of(a + i, half ? (const void *)((const uint16_t *)b + v) : (const float *)b + v,
                      half, width, n, to, first, pairs, 1);
        }
    }
}

static const void *converted(const struct task *k, const uint16_t *page)
{
    for (uint32_t i = 0; i < k->hd * PAGE_TOKENS; i += 8)
        _mm256_store_ps(k->page + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(page + i))));
    return k->page;
}

static void prefetch_page(const uint16_t *page, uint32_t hd)
{
    for (uint32_t i = 0; i < hd * PAGE_TOKENS; i += 32)
        _mm_prefetch((const char *)(page + i), _MM_HINT_T0);
}

static void scores(const struct task *k, uint32_t begin, uint32_t end, const float **a, float **c)
{
    for (uint32_t i = 0; i < k->n; i++)
        a[i] = k->pairs[i].q;
    for (uint32_t key = begin; key < end; key += PAGE_TOKENS) {
        const uint16_t *page = page_of(k, key / PAGE_TOKENS, false);
        if (key + PAGE_TOKENS < end)
            prefetch_page(page_of(k, key / PAGE_TOKENS + 1, false), k->hd);
        for (uint32_t i = 0; i < k->n; i++)
            c[i] = k->s + i * ATTENTION_KEYS + (key - begin);
        uint32_t from = first_pair(k, key);
        if (k->n <= DIRECT)
            product(k, from, a, page, true, PAGE_TOKENS, k->hd, c, true);
        else
            product(k, from, a, converted(k, page), false, PAGE_TOKENS, k->hd, c, true);
    }
}

static void cap_scores(float *s, uint32_t n, float cap)
{
    avx2_soft_cap(s, n, cap);
    avx2_scale(s, n, (float)LOG2_E);
}

/* Scores of one pair as weights; what lies beyond its keys becomes +0. Returns the maximum. */
static float weights(float *s, uint32_t n, float *sum)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256 m = _mm256_set1_ps(-INFINITY), acc[4];
    uint32_t i = 0;

    for (; i + 8 <= n; i += 8)
        m = _mm256_max_ps(_mm256_loadu_ps(s + i), m);
    float largest = avx2_max(m);
    for (; i < n; i++)
        largest = s[i] > largest ? s[i] : largest;
    __m256 all = _mm256_set1_ps(largest), cut = _mm256_set1_ps(-64.0f);
    for (int v = 0; v < 4; v++)
        acc[v] = _mm256_setzero_ps();
    for (i = 0; i < n; i += PAGE_TOKENS)
        UNROLL for (int v = 0; v < 4; v++)
        {
            uint32_t at = i + 8 * (uint32_t)v;
            __m256 x = _mm256_sub_ps(_mm256_loadu_ps(s + at), all);
            __m256 p = _mm256_andnot_ps(_mm256_cmp_ps(x, cut, _CMP_LT_OQ), avx2_exp2(x));
            __m256i valid = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n - (int)at), lane);
            p = _mm256_and_ps(p, _mm256_castsi256_ps(valid));
            _mm256_storeu_ps(s + at, p);
            acc[v] = _mm256_add_ps(acc[v], p);
        }
    *sum = avx2_sum(_mm256_add_ps(_mm256_add_ps(acc[0], acc[2]), _mm256_add_ps(acc[1], acc[3])));
    return largest;
}

static float cut_exp2(float x)
{
    return x < -64.0f ? 0.0f : _mm256_cvtss_f32(avx2_exp2(_mm256_set1_ps(x)));
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
    __m256 va = _mm256_set1_ps(a), vb = _mm256_set1_ps(b);
    p->l = fmaf(l, b, p->l * a);
    p->m = all;
    for (uint32_t d = 0; d < hd; d += 8) {
        __m256 old = _mm256_mul_ps(_mm256_loadu_ps(p->out + d), va);
        _mm256_storeu_ps(p->out + d, _mm256_fmadd_ps(_mm256_loadu_ps(o + d), vb, old));
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
        if (k->t->a->soft_cap > 0)
            cap_scores(s, n, k->t->a->soft_cap);
        m[i] = weights(s, n, &l[i]);
    }
    for (uint32_t i = 0; i < k->n; i++)
        c[i] = k->o + i * k->hd;
    for (uint32_t key = begin; key < end; key += PAGE_TOKENS) {
        const uint16_t *page = page_of(k, key / PAGE_TOKENS, true);
        uint32_t n = MIN(PAGE_TOKENS, end - key), with = first_pair(k, key);
        if (key + PAGE_TOKENS < end)
            prefetch_page(page_of(k, key / PAGE_TOKENS + 1, true), k->hd);
        for (uint32_t i = 0; i < k->n; i++)
            a[i] = k->s + i * ATTENTION_KEYS + (key - begin);
        if (k->n <= DIRECT)
            product(k, with, a, page, true, k->hd, n, c, key == begin);
        else
            product(k, with, a, converted(k, page), false, k->hd, n, c, key == begin);
    }
    for (uint32_t i = from; i < k->n; i++)
        merge(&k->pairs[i], c[i], k->hd, m[i], l[i], begin == k->begin);
}

#define TIER(name) X86(name)
#define TIER_SCALE avx2_scale
#include "compute/cpu/attention_walk.h"
