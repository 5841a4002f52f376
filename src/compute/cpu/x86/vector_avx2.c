/* Norms, activations, positions, pages and sampling on eight lanes (EXACTNESS 4 to 6). */
#include "compute/cpu/x86/avx2.h"

#include <math.h>

/* 64 lanes in eight vectors, lane = index mod 64. */
bool avx2_rms_norm(const float *x, const float *weight, float epsilon, uint32_t n, float *y)
{
    _Alignas(32) float lanes[64] = {0};
    __m256 acc[8];
    uint32_t i = 0;

    for (int j = 0; j < 8; j++)
        acc[j] = _mm256_setzero_ps();
    for (; i + 64 <= n; i += 64)
        UNROLL for (int j = 0; j < 8; j++)
        {
            __m256 v = _mm256_loadu_ps(x + i + 8 * j);
            acc[j] = _mm256_fmadd_ps(v, v, acc[j]);
        }
    for (int j = 0; j < 8; j++)
        _mm256_store_ps(lanes + 8 * j, acc[j]);
    for (; i < n; i++)
        lanes[i % 64] = fmaf(x[i], x[i], lanes[i % 64]);
    for (uint32_t h = 32; h >= 8; h /= 2)
        for (uint32_t j = 0; j < h; j += 8)
            _mm256_store_ps(
                lanes + j, _mm256_add_ps(_mm256_load_ps(lanes + j), _mm256_load_ps(lanes + j + h)));
    float v = avx2_sum(_mm256_load_ps(lanes)) / (float)n + epsilon;
    float r = 1.0f / sqrtf(v);
    __m256 rr = _mm256_set1_ps(r);
    for (i = 0; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + i), rr),
                                              _mm256_loadu_ps(weight + i)));
    for (; i < n; i++)
        y[i] = (x[i] * r) * weight[i];
    return (float_bits(v) & INFINITY_BITS) != INFINITY_BITS;
}

/* Runs body on eight values at a time; the last few go through a padded copy. */
#define FOR_EIGHTS(n, i, tail)                                                                     \
    for (uint32_t i = 0, tail; i < (n) && (tail = MIN(8u, (n)-i), 1); i += 8)

INLINE __m256 load_some(const float *x, uint32_t n)
{
    float padded[8] = {0};

    if (n == 8)
        return _mm256_loadu_ps(x);
    memcpy(padded, x, n * sizeof *x);
    return _mm256_loadu_ps(padded);
}

INLINE void store_some(float *y, __m256 v, uint32_t n)
{
    float padded[8];

    if (n == 8) {
        _mm256_storeu_ps(y, v);
        return;
    }
    _mm256_storeu_ps(padded, v);
    memcpy(y, padded, n * sizeof *y);
}

void avx2_gated(enum compute_gate kind, const float *gate, const float *up, uint32_t n, float *y)
{
    const __m256 one = _mm256_set1_ps(1.0f);

    FOR_EIGHTS(n, i, some)
    {
        __m256 g = load_some(gate + i, some), u = load_some(up + i, some), e;
        if (kind == COMPUTE_SILU) {
            e = avx2_exp2(_mm256_mul_ps(_mm256_set1_ps(-0x1.715476p+0f), g));
        } else {
            __m256 z = _mm256_mul_ps(
                g, _mm256_fmadd_ps(_mm256_mul_ps(g, g), _mm256_set1_ps(0x1.6e4e26p-5f), one));
            e = avx2_exp2(_mm256_mul_ps(z, _mm256_set1_ps(-0x1.26aec2p+1f)));
        }
        store_some(y + i, _mm256_mul_ps(_mm256_div_ps(g, _mm256_add_ps(one, e)), u), some);
    }
}

void avx2_soft_cap(float *z, uint32_t n, float cap)
{
    const __m256 sign = _mm256_set1_ps(-0.0f), one = _mm256_set1_ps(1.0f),
                 two = _mm256_set1_ps(2.0f);
    const __m256 caps = _mm256_set1_ps(cap), inverse = _mm256_set1_ps((float)(1.0 / (double)cap));

    FOR_EIGHTS(n, i, some)
    {
        __m256 x = load_some(z + i, some), a = _mm256_mul_ps(_mm256_andnot_ps(sign, x), inverse);
        __m256 e = avx2_exp2(_mm256_mul_ps(a, _mm256_set1_ps(0x1.715476p+1f)));
        __m256 y =
            _mm256_mul_ps(caps, _mm256_sub_ps(one, _mm256_div_ps(two, _mm256_add_ps(e, one))));
        y = _mm256_or_ps(_mm256_andnot_ps(sign, y), _mm256_and_ps(sign, x));
        store_some(z + i, y, some);
    }
}

void avx2_exp2_array(const float *x, uint32_t n, float *y)
{
    FOR_EIGHTS(n, i, some)
    store_some(y + i, avx2_exp2(load_some(x + i, some)), some);
}

void avx2_scale(float *x, uint32_t n, float by)
{
    FOR_EIGHTS(n, i, some)
    store_some(x + i, _mm256_mul_ps(load_some(x + i, some), _mm256_set1_ps(by)), some);
}

uint32_t avx2_largest_bits(const float *x, uint32_t n)
{
    __m256i m = _mm256_setzero_si256(), m2 = m;
    uint32_t i = 0;

    for (; i + 16 <= n; i += 16) {
        m = _mm256_max_epu32(m, avx2_abs_bits(x + i));
        m2 = _mm256_max_epu32(m2, avx2_abs_bits(x + i + 8));
    }
    uint32_t largest = avx2_max_bits(_mm256_max_epu32(m, m2));
    for (; i < n; i++)
        largest = MAX(largest, float_bits(x[i]) & 0x7FFFFFFF);
    return largest;
}

/* ---- positions and pages ---- */

/* Pairs interleave: (x0, x1) times (c, s) and (s, c), the even lanes subtracting. */
static void rotate_interleaved(const float *rope, float *head, uint32_t n)
{
    uint32_t i = 0;

    for (; i + 8 <= n; i += 8) {
        __m256 x = _mm256_loadu_ps(head + i), cs = _mm256_loadu_ps(rope + i);
        __m256 product = _mm256_mul_ps(_mm256_movehdup_ps(x), _mm256_permute_ps(cs, 0xB1));
        _mm256_storeu_ps(head + i, _mm256_fmaddsub_ps(_mm256_moveldup_ps(x), cs, product));
    }
    for (; i < n; i += 2) {
        float x0 = head[i], x1 = head[i + 1], c = rope[i], s = rope[i + 1];
        head[i] = fmaf(x0, c, -(x1 * s));
        head[i + 1] = fmaf(x0, s, x1 * c);
    }
}

static void rotate_halves(const float *rope, float *head, uint32_t n)
{
    uint32_t half = n / 2, i = 0;

    for (; i + 8 <= half; i += 8) {
        __m256 a = _mm256_loadu_ps(rope + 2 * i), b = _mm256_loadu_ps(rope + 2 * i + 8);
        __m256 low = _mm256_permute2f128_ps(a, b, 0x20), high = _mm256_permute2f128_ps(a, b, 0x31);
        __m256 c = _mm256_shuffle_ps(low, high, 0x88), s = _mm256_shuffle_ps(low, high, 0xDD);
        __m256 x0 = _mm256_loadu_ps(head + i), x1 = _mm256_loadu_ps(head + half + i);
        _mm256_storeu_ps(head + i, _mm256_fmsub_ps(x0, c, _mm256_mul_ps(x1, s)));
        _mm256_storeu_ps(head + half + i, _mm256_fmadd_ps(x0, s, _mm256_mul_ps(x1, c)));
    }
    for (; i < half; i++) {
        float x0 = head[i], x1 = head[half + i], c = rope[2 * i], s = rope[2 * i + 1];
        head[i] = fmaf(x0, c, -(x1 * s));
        head[half + i] = fmaf(x0, s, x1 * c);
    }
}

void avx2_rotate(const struct compute_attention *a, const float *rope, float *head)
{
    if (a->rope_halves)
        rotate_halves(rope, head, a->n_rot);
    else
        rotate_interleaved(rope, head, a->n_rot);
}

INLINE __m128i page_halves(const float *x)
{
    __m256 v = _mm256_max_ps(_mm256_loadu_ps(x), _mm256_set1_ps(-65504.0f));

    return _mm256_cvtps_ph(_mm256_min_ps(v, _mm256_set1_ps(65504.0f)), _MM_FROUND_TO_NEAREST_INT);
}

/* head_dim is a multiple of 8. */
void avx2_store(const struct compute_batch *b, const struct compute_attention *a, uint32_t row,
                const float *k, const float *v)
{
    uint32_t position = b->positions[row], lane = position % PAGE_TOKENS, hd = a->head_dim;
    uint16_t *slab =
        (uint16_t *)kv_slab(b, &b->page_tables[b->tables[row]], position / PAGE_TOKENS, a->layer);
    uint16_t *page_k = slab + lane,
             *page_v = slab + (size_t)a->n_kv_heads * hd * PAGE_TOKENS + (size_t)lane * hd;

    for (uint32_t h = 0; h < a->n_kv_heads; h++, page_v += (size_t)hd * PAGE_TOKENS)
        for (uint32_t d = 0; d < hd; d += 8, k += 8, v += 8, page_k += 8 * PAGE_TOKENS) {
            _Alignas(16) uint16_t halves[8];
            _mm_store_si128((__m128i *)halves, page_halves(k));
            UNROLL for (int i = 0; i < 8; i++) page_k[i * PAGE_TOKENS] = halves[i];
            _mm_storeu_si128((__m128i *)(page_v + d), page_halves(v));
        }
}

/* ---- sampling ---- */

float avx2_maximum(const float *z, uint32_t n)
{
    __m256 m = _mm256_set1_ps(-INFINITY), m2 = m;
    uint32_t i = 0;

    for (; i + 16 <= n; i += 16) {
        m = _mm256_max_ps(_mm256_loadu_ps(z + i),
                          m); /* the second operand where the first is NaN */
        m2 = _mm256_max_ps(_mm256_loadu_ps(z + i + 8), m2);
    }
    float largest = avx2_max(_mm256_max_ps(m, m2));
    for (; i < n; i++)
        largest = z[i] > largest ? z[i] : largest;
    return largest;
}

bool avx2_all_valid(const float *z, uint32_t n)
{
    uint32_t bad = 0;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t u = float_bits(z[i]);
        bad |= (uint32_t)((u & INFINITY_BITS) == INFINITY_BITS) & (uint32_t)(u != 0xFF800000u);
    }
    return !bad;
}

void avx2_sample_weights(const float *z, uint32_t n, float zmax, float scale, uint32_t *w)
{
    FOR_EIGHTS(n, i, some)
    {
        __m256 x = _mm256_mul_ps(_mm256_sub_ps(load_some(z + i, some), _mm256_set1_ps(zmax)),
                                 _mm256_set1_ps(scale));
        __m256i q = _mm256_cvtps_epi32(_mm256_mul_ps(avx2_exp2(x), _mm256_set1_ps(0x1p30f)));
        if (some == 8) {
            _mm256_storeu_si256((__m256i *)(w + i), q);
        } else {
            uint32_t padded[8];
            _mm256_storeu_si256((__m256i *)padded, q);
            memcpy(w + i, padded, some * sizeof *w);
        }
    }
}

double avx2_log_sum(const float *z, uint32_t n, float zmax)
{
    _Alignas(32) double lanes[64];
    __m256d acc[16];
    uint32_t i = 0;

    for (int j = 0; j < 16; j++)
        acc[j] = _mm256_setzero_pd();
    for (; i + 64 <= n; i += 64)
        UNROLL for (int j = 0; j < 8; j++)
        {
            __m256 x = _mm256_sub_ps(_mm256_loadu_ps(z + i + 8 * j), _mm256_set1_ps(zmax));
            __m256 p = avx2_exp2(_mm256_mul_ps(x, _mm256_set1_ps((float)LOG2_E)));
            acc[2 * j] = _mm256_add_pd(acc[2 * j], _mm256_cvtps_pd(_mm256_castps256_ps128(p)));
            acc[2 * j + 1] =
                _mm256_add_pd(acc[2 * j + 1], _mm256_cvtps_pd(_mm256_extractf128_ps(p, 1)));
        }
    for (int j = 0; j < 16; j++)
        _mm256_store_pd(lanes + 4 * j, acc[j]);
    for (; i < n; i++) {
        float x = (z[i] - zmax) * (float)LOG2_E, p;
        avx2_exp2_array(&x, 1, &p);
        lanes[i % 64] += (double)p;
    }
    for (uint32_t h = 32; h; h /= 2)
        for (uint32_t j = 0; j < h; j++)
            lanes[j] += lanes[j + h];
    return lanes[0];
}
