/* Norms, activations, positions, pages and sampling on four lanes (EXACTNESS 4 to 6). */
#include "compute/cpu/arm/neon.h"

#include <math.h>

/* 64 lanes in 16 vectors, lane = index mod 64. */
bool neon_rms_norm(const float *x, const float *weight, float epsilon, uint32_t n, float *y)
{
    float lanes[64];
    float32x4_t acc[16];
    uint32_t i = 0;

    for (int j = 0; j < 16; j++)
        acc[j] = vdupq_n_f32(0);
    for (; i + 64 <= n; i += 64)
        UNROLL for (int j = 0; j < 16; j++)
        {
            float32x4_t v = vld1q_f32(x + i + 4 * j);
            acc[j] = vfmaq_f32(acc[j], v, v);
        }
    for (int j = 0; j < 16; j++)
        vst1q_f32(lanes + 4 * j, acc[j]);
    for (; i < n; i++)
        lanes[i % 64] = fmaf(x[i], x[i], lanes[i % 64]);
    for (uint32_t h = 32; h >= 4; h /= 2)
        for (uint32_t j = 0; j < h; j += 4)
            vst1q_f32(lanes + j, vaddq_f32(vld1q_f32(lanes + j), vld1q_f32(lanes + j + h)));
    float v = neon_sum(vld1q_f32(lanes)) / (float)n + epsilon;
    float r = 1.0f / sqrtf(v);
    for (i = 0; i + 4 <= n; i += 4)
        vst1q_f32(y + i, vmulq_f32(vmulq_n_f32(vld1q_f32(x + i), r), vld1q_f32(weight + i)));
    for (; i < n; i++)
        y[i] = (x[i] * r) * weight[i];
    return (float_bits(v) & INFINITY_BITS) != INFINITY_BITS;
}

/* Runs body on four values at a time; the last few go through a padded copy. */
#define FOR_FOURS(n, i, tail)                                                                      \
    for (uint32_t i = 0, tail; i < (n) && (tail = MIN(4u, (n)-i), 1); i += 4)

INLINE float32x4_t load_some(const float *x, uint32_t n)
{
    float padded[4] = {0};

    if (n == 4)
        return vld1q_f32(x);
    memcpy(padded, x, n * sizeof *x);
    return vld1q_f32(padded);
}

INLINE void store_some(float *y, float32x4_t v, uint32_t n)
{
    float padded[4];

    if (n == 4) {
        vst1q_f32(y, v);
        return;
    }
    vst1q_f32(padded, v);
    memcpy(y, padded, n * sizeof *y);
}

void neon_gated(enum compute_gate kind, const float *gate, const float *up, uint32_t n, float *y)
{
    const float32x4_t one = vdupq_n_f32(1.0f);

    FOR_FOURS(n, i, some)
    {
        float32x4_t g = load_some(gate + i, some), u = load_some(up + i, some), e;
        if (kind == COMPUTE_SILU) {
            e = neon_exp2(vmulq_n_f32(g, -0x1.715476p+0f));
        } else {
            float32x4_t z =
                vmulq_f32(g, vfmaq_f32(one, vmulq_f32(g, g), vdupq_n_f32(0x1.6e4e26p-5f)));
            e = neon_exp2(vmulq_n_f32(z, -0x1.26aec2p+1f));
        }
        store_some(y + i, vmulq_f32(vdivq_f32(g, vaddq_f32(one, e)), u), some);
    }
}

void neon_soft_cap(float *z, uint32_t n, float cap)
{
    const float32x4_t one = vdupq_n_f32(1.0f), two = vdupq_n_f32(2.0f);
    const float inverse = (float)(1.0 / (double)cap);

    FOR_FOURS(n, i, some)
    {
        float32x4_t x = load_some(z + i, some), a = vmulq_n_f32(vabsq_f32(x), inverse);
        float32x4_t e = neon_exp2(vmulq_n_f32(a, 0x1.715476p+1f));
        float32x4_t y = vmulq_n_f32(vsubq_f32(one, vdivq_f32(two, vaddq_f32(e, one))), cap);
        store_some(z + i, vbslq_f32(vdupq_n_u32(0x80000000u), x, y), some);
    }
}

void neon_exp2_array(const float *x, uint32_t n, float *y)
{
    FOR_FOURS(n, i, some)
    store_some(y + i, neon_exp2(load_some(x + i, some)), some);
}

void neon_scale(float *x, uint32_t n, float by)
{
    FOR_FOURS(n, i, some)
    store_some(x + i, vmulq_n_f32(load_some(x + i, some), by), some);
}

uint32_t neon_largest_bits(const float *x, uint32_t n)
{
    const uint32x4_t mask = vdupq_n_u32(0x7FFFFFFF);
    uint32x4_t m = vdupq_n_u32(0), m2 = m;
    uint32_t i = 0;

    for (; i + 8 <= n; i += 8) {
        m = vmaxq_u32(m, vandq_u32(vreinterpretq_u32_f32(vld1q_f32(x + i)), mask));
        m2 = vmaxq_u32(m2, vandq_u32(vreinterpretq_u32_f32(vld1q_f32(x + i + 4)), mask));
    }
    uint32_t largest = vmaxvq_u32(vmaxq_u32(m, m2));
    for (; i < n; i++)
        largest = MAX(largest, float_bits(x[i]) & 0x7FFFFFFF);
    return largest;
}

/* ---- positions and pages ---- */

/* x0' = fma(x0, c, -(x1 s)), x1' = fma(x0, s, x1 c). */
INLINE void rotate_pairs(float32x4_t *x0, float32x4_t *x1, float32x4x2_t cs)
{
    float32x4_t u = *x0, v = *x1;

    *x0 = vfmaq_f32(vnegq_f32(vmulq_f32(v, cs.val[1])), u, cs.val[0]);
    *x1 = vfmaq_f32(vmulq_f32(v, cs.val[0]), u, cs.val[1]);
}

void neon_rotate(const struct compute_attention *a, const float *rope, float *head)
{
    uint32_t n_pairs = a->n_rot / 2, i = 0;

    for (; i + 4 <= n_pairs; i += 4) {
        float32x4x2_t cs = vld2q_f32(rope + 2 * i);
        if (a->rope_halves) {
            float32x4_t x0 = vld1q_f32(head + i), x1 = vld1q_f32(head + n_pairs + i);
            rotate_pairs(&x0, &x1, cs);
            vst1q_f32(head + i, x0);
            vst1q_f32(head + n_pairs + i, x1);
        } else {
            float32x4x2_t x = vld2q_f32(head + 2 * i);
            rotate_pairs(&x.val[0], &x.val[1], cs);
            vst2q_f32(head + 2 * i, x);
        }
    }
    for (; i < n_pairs; i++) {
        float *x0 = a->rope_halves ? head + i : head + 2 * i;
        float *x1 = a->rope_halves ? head + i + n_pairs : x0 + 1;
        float u = *x0, v = *x1, c = rope[2 * i], s = rope[2 * i + 1];
        *x0 = fmaf(u, c, -(v * s));
        *x1 = fmaf(u, s, v * c);
    }
}

INLINE uint16x4_t page_halves(const float *x)
{
    float32x4_t v = neon_max(vld1q_f32(x), vdupq_n_f32(-65504.0f));

    return vreinterpret_u16_f16(vcvt_f16_f32(neon_min(v, vdupq_n_f32(65504.0f))));
}

/* head_dim is a multiple of 8. */
void neon_store(const struct compute_batch *b, const struct compute_attention *a, uint32_t row,
                const float *k, const float *v)
{
    uint32_t position = b->positions[row], lane = position % PAGE_TOKENS, hd = a->head_dim;
    uint16_t *slab =
        (uint16_t *)kv_slab(b, &b->page_tables[b->tables[row]], position / PAGE_TOKENS, a->layer);
    uint16_t *page_k = slab + lane,
             *page_v = slab + (size_t)a->n_kv_heads * hd * PAGE_TOKENS + (size_t)lane * hd;

    for (uint32_t h = 0; h < a->n_kv_heads; h++, page_v += (size_t)hd * PAGE_TOKENS)
        for (uint32_t d = 0; d < hd; d += 4, k += 4, v += 4, page_k += 4 * PAGE_TOKENS) {
            uint16_t halves[4];
            vst1_u16(halves, page_halves(k));
            for (int i = 0; i < 4; i++)
                page_k[i * PAGE_TOKENS] = halves[i];
            vst1_u16(page_v + d, page_halves(v));
        }
}

/* ---- sampling ---- */

float neon_maximum(const float *z, uint32_t n)
{
    float32x4_t m = vdupq_n_f32(-INFINITY), m2 = m;
    float lanes[4], largest = -INFINITY;
    uint32_t i = 0;

    for (; i + 8 <= n; i += 8) {
        m = neon_max(vld1q_f32(z + i), m);
        m2 = neon_max(vld1q_f32(z + i + 4), m2);
    }
    vst1q_f32(lanes, neon_max(m, m2));
    for (int j = 0; j < 4; j++)
        largest = lanes[j] > largest ? lanes[j] : largest;
    for (; i < n; i++)
        largest = z[i] > largest ? z[i] : largest;
    return largest;
}

void neon_sample_weights(const float *z, uint32_t n, float zmax, float scale, uint32_t *w)
{
    FOR_FOURS(n, i, some)
    {
        float32x4_t x = vmulq_n_f32(vsubq_f32(load_some(z + i, some), vdupq_n_f32(zmax)), scale);
        uint32x4_t q = vcvtnq_u32_f32(vmulq_n_f32(neon_exp2(x), 0x1p30f));
        uint32_t padded[4];
        vst1q_u32(padded, q);
        memcpy(w + i, padded, some * sizeof *w);
    }
}

double neon_log_sum(const float *z, uint32_t n, float zmax)
{
    double lanes[64];
    float64x2_t acc[32];
    uint32_t i = 0;

    for (int j = 0; j < 32; j++)
        acc[j] = vdupq_n_f64(0);
    for (; i + 64 <= n; i += 64)
        for (int j = 0; j < 16; j++) {
            float32x4_t x = vsubq_f32(vld1q_f32(z + i + 4 * j), vdupq_n_f32(zmax));
            float32x4_t p = neon_exp2(vmulq_n_f32(x, (float)LOG2_E));
            acc[2 * j] = vaddq_f64(acc[2 * j], vcvt_f64_f32(vget_low_f32(p)));
            acc[2 * j + 1] = vaddq_f64(acc[2 * j + 1], vcvt_high_f64_f32(p));
        }
    for (int j = 0; j < 32; j++)
        vst1q_f64(lanes + 2 * j, acc[j]);
    for (; i < n; i++) {
        float x = (z[i] - zmax) * (float)LOG2_E, p;
        neon_exp2_array(&x, 1, &p);
        lanes[i % 64] += (double)p;
    }
    for (uint32_t h = 32; h; h /= 2)
        for (uint32_t j = 0; j < h; j++)
            lanes[j] += lanes[j + h];
    return lanes[0];
}
