/* Attention of some rows of one sequence over one KV head (EXACTNESS 5). Keys are lanes of q.K,
 * dims are lanes of p.V. The (row, head) pairs of a task share a segment's conversion to f32 and go
 * over it in groups whose scores stay in L1; a few pairs convert in registers. The text of
 * attention_avx2.c and attention_avx512.c; before it comes wide_product(), which may do the first
 * columns of a product on wider vectors. */
#include <math.h>

#define PAIRS 3  /* of a register tile, beside 4 vectors */
#define DIRECT 6 /* up to so many pairs read f16 straight */
#define GROUP 12
#define CHUNK_FLOATS 4096 /* of V: half of L1 */

INLINE __m256 load8(const void *page, uint32_t i, const bool half)
{
    return half ? _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)((const uint16_t *)page + i)))
                : _mm256_loadu_ps((const float *)page + i);
}

/* c[pair][0..8 vectors) = (first ? 0 : c) + sum over j of a[pair][j] * b[j][...], one chain an
 * element, j ascending. Beside f16 rows, those at `ahead` are fetched. */
INLINE void chains(const float *const *a, const void *b, const void *ahead, const bool half,
                   uint32_t b_stride, uint32_t n, float *const *c, bool first, const int pairs,
                   const int vectors)
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
        if (half && vectors == 4) {
            _mm_prefetch(ahead, _MM_HINT_T0);
            ahead = (const uint8_t *)ahead + (size_t)b_stride * 2;
        }
    }
    UNROLL for (int i = 0; i < pairs; i++) UNROLL for (int v = 0; v < vectors; v++)
        _mm256_storeu_ps(c[i] + 8 * v, acc[i][v]);
}

INLINE void chains_of(const float *const *a, const void *b, const void *ahead, const bool half,
                      uint32_t b_stride, uint32_t n, float *const *c, bool first, uint32_t pairs,
                      const int vectors)
{
    if (pairs == 3)
        chains(a, b, ahead, half, b_stride, n, c, first, 3, vectors);
    else if (pairs == 2)
        chains(a, b, ahead, half, b_stride, n, c, first, 2, vectors);
    else
        chains(a, b, ahead, half, b_stride, n, c, first, 1, vectors);
}

INLINE const void *column(const void *b, uint32_t v, const bool half)
{
    return half ? (const void *)((const uint16_t *)b + v) : (const float *)b + v;
}

/* c = a b for all pairs from `from`, or c + a b; width columns, a multiple of 8. */
INLINE void product(const struct task *k, uint32_t from, const float *const *a, const void *b,
                    const void *ahead, const bool half, uint32_t width, uint32_t n, float *const *c,
                    bool first)
{
    uint32_t done = wide_product(k, from, a, b, ahead, half, width, n, c, first);

    for (uint32_t i = from; i < k->n && done < width; i += PAIRS) {
        uint32_t pairs = MIN(PAIRS, k->n - i);
        for (uint32_t v = done; v < width;) {
            float *to[PAIRS];
            for (uint32_t j = 0; j < pairs; j++)
                to[j] = c[i + j] + v;
            if (v + 32 <= width) {
                chains_of(a + i, column(b, v, half), half ? column(ahead, v, true) : NULL, half,
                          width, n, to, first, pairs, 4);
                v += 32;
            } else {
                chains_of(a + i, column(b, v, half), NULL, half, width, n, to, first, pairs, 1);
                v += 8;
            }
        }
    }
}

/* A segment's pages as f32, so that V's keys follow each other. */
static void convert_segment(const struct task *k, uint32_t begin, uint32_t end)
{
    for (int values = 0; values < 2; values++)
        for (uint32_t key = begin; key < end; key += PAGE_TOKENS) {
            const uint16_t *page = page_of(k, key / PAGE_TOKENS, values),
                           *ahead = page_ahead(k, key, values, begin, end);
            float *to = k->page + ((size_t)values * ATTENTION_KEYS + (key - begin)) * k->hd;
            ahead = ahead ? ahead : page;
            for (uint32_t i = 0; i < k->hd * PAGE_TOKENS; i += 32) {
                _mm_prefetch((const char *)(ahead + i), _MM_HINT_T0);
                UNROLL for (uint32_t v = 0; v < 32; v += 8)
                    _mm256_storeu_ps(to + i + v, load8(page, i + v, true));
            }
        }
}

static void scores(const struct task *k, uint32_t begin, uint32_t end, const bool half)
{
    const float *a[GROUP];
    float *c[GROUP];

    for (uint32_t i = 0; i < k->n; i++)
        a[i] = k->pairs[i].q;
    for (uint32_t key = begin; key < end; key += PAGE_TOKENS) {
        uint32_t from = first_pair(k, key);
        for (uint32_t i = from; i < k->n; i++)
            c[i] = k->s + i * ATTENTION_KEYS + (key - begin);
        if (half) {
            const uint16_t *page = page_of(k, key / PAGE_TOKENS, false),
                           *ahead = page_ahead(k, key, false, begin, end);
            product(k, from, a, page, ahead ? ahead : page, true, PAGE_TOKENS, k->hd, c, true);
        } else {
            product(k, from, a, k->page + (size_t)(key - begin) * k->hd, NULL, false, PAGE_TOKENS,
                    k->hd, c, true);
        }
    }
}

/* o = sum of weights times V. A chunk of several pages, where all pairs have all its keys, keeps
 * the sums in registers for longer. */
static void outputs(const struct task *k, uint32_t begin, uint32_t end, const bool half)
{
    const float *a[GROUP];
    float *c[GROUP];
    uint32_t step = PAGE_TOKENS;

    for (uint32_t i = 0; i < k->n; i++)
        c[i] = k->o + i * k->hd;
    for (uint32_t key = begin; key < end; key += step) {
        uint32_t from = first_pair(k, key), whole = k->pairs[0].n_keys;
        step = PAGE_TOKENS;
        if (!half && from == 0)
            while ((step + PAGE_TOKENS) * k->hd <= CHUNK_FLOATS &&
                   key + step + PAGE_TOKENS <= MIN(whole, end))
                step += PAGE_TOKENS;
        for (uint32_t i = from; i < k->n; i++)
            a[i] = k->s + i * ATTENTION_KEYS + (key - begin);
        if (half) {
            const uint16_t *page = page_of(k, key / PAGE_TOKENS, true),
                           *ahead = page_ahead(k, key, true, begin, end);
            product(k, from, a, page, ahead ? ahead : page, true, k->hd, MIN(step, end - key), c,
                    key == begin);
        } else {
            product(k, from, a, k->page + (size_t)(ATTENTION_KEYS + key - begin) * k->hd, NULL,
                    false, k->hd, MIN(step, end - key), c, key == begin);
        }
    }
}

static void cap_scores(float *s, uint32_t n, float cap)
{
    avx2_soft_cap(s, n, cap);
    avx2_scale(s, n, (float)LOG2_E);
}

/* exp2 where x <= 0, and +0 where x < -64: nothing to clamp; the sum's last bits are rint(x). */
INLINE __m256 weight_of(__m256 x)
{
    const __m256 magic = _mm256_set1_ps(0x1.8p23f);
    __m256 t = _mm256_add_ps(x, magic), r = _mm256_sub_ps(x, _mm256_sub_ps(t, magic));
    __m256 p = avx2_exp2_of_rest(r);
    __m256i e = _mm256_slli_epi32(_mm256_castps_si256(t), 23);
    p = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), e));
    return _mm256_andnot_ps(_mm256_cmp_ps(x, _mm256_set1_ps(-64.0f), _CMP_LT_OQ), p);
}

/* Of n scores, the last page perhaps in part. */
static float largest_of(const float *s, uint32_t n)
{
    __m256 m[4];
    uint32_t i = 0;

    UNROLL for (int v = 0; v < 4; v++) m[v] = _mm256_set1_ps(-INFINITY);
    for (; i + PAGE_TOKENS <= n; i += PAGE_TOKENS)
        UNROLL for (int v = 0; v < 4; v++) m[v] =
            _mm256_max_ps(_mm256_loadu_ps(s + i + 8 * v), m[v]);
    float largest = avx2_max(_mm256_max_ps(_mm256_max_ps(m[0], m[1]), _mm256_max_ps(m[2], m[3])));
    for (; i < n; i++)
        largest = s[i] > largest ? s[i] : largest;
    return largest;
}

/* Scores of one pair as weights; what lies beyond its keys becomes +0. Returns the maximum. */
static float weights(float *s, uint32_t n, float *sum)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    float largest = largest_of(s, n);
    __m256 all = _mm256_set1_ps(largest), acc[4];
    uint32_t i = 0;

    UNROLL for (int v = 0; v < 4; v++) acc[v] = _mm256_setzero_ps();
    for (; i + PAGE_TOKENS <= n; i += PAGE_TOKENS)
        UNROLL for (int v = 0; v < 4; v++)
        {
            float *at = s + i + 8 * v;
            __m256 p = weight_of(_mm256_sub_ps(_mm256_loadu_ps(at), all));
            _mm256_storeu_ps(at, p);
            acc[v] = _mm256_add_ps(acc[v], p);
        }
    if (i < n)
        UNROLL for (int v = 0; v < 4; v++)
        {
            float *at = s + i + 8 * v;
            __m256i left = _mm256_set1_epi32((int)(n - i) - 8 * v);
            __m256 p = weight_of(_mm256_sub_ps(_mm256_loadu_ps(at), all));
            p = _mm256_and_ps(p, _mm256_castsi256_ps(_mm256_cmpgt_epi32(left, lane)));
            _mm256_storeu_ps(at, p);
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

/* Keys [begin, end) for at most GROUP pairs, each of which has some of them. */
INLINE void attend(const struct task *k, uint32_t begin, uint32_t end, const bool half)
{
    float m[GROUP], l[GROUP];

    scores(k, begin, end, half);
    for (uint32_t i = 0; i < k->n; i++) {
        uint32_t n = MIN(k->pairs[i].n_keys, end) - begin;
        float *s = k->s + i * ATTENTION_KEYS;
        if (k->t->a->soft_cap > 0)
            cap_scores(s, n, k->t->a->soft_cap);
        m[i] = weights(s, n, &l[i]);
    }
    outputs(k, begin, end, half);
    for (uint32_t i = 0; i < k->n; i++)
        merge(&k->pairs[i], k->o + i * k->hd, k->hd, m[i], l[i], begin == k->begin);
}

static void segment(struct task *k, uint32_t begin, uint32_t end)
{
    bool half = k->n <= DIRECT;

    if (!half)
        convert_segment(k, begin, end);
    for (uint32_t i = first_pair(k, begin); i < k->n; i += GROUP) {
        struct task group = *k;
        group.pairs += i;
        group.n = MIN(GROUP, k->n - i);
        if (half)
            attend(&group, begin, end, true);
        else
            attend(&group, begin, MIN(end, group.pairs[group.n - 1].n_keys), false);
    }
}

#define TIER(name) X86(name)
#define TIER_SCALE avx2_scale
#include "compute/cpu/attention_walk.h"
