/* What the NEON files share: the layout of activations, and small things on four lanes.
 *
 * Lanes are outputs: a panel has 8 of them, two vectors; a tile of activations 4 rows, which are
 * the lanes that sdot and fmla take their factor from. In a block of 32 values of a tile, x[g][row]
 * is four quantised values, c is -12582912 d, so that t = fma(float with the bits 0x4B400000 + A,
 * d, c) is RN(A d), and start is 0x4B400000 less the offset inside the weights times the sum of q.
 */
#ifndef BATON_COMPUTE_CPU_ARM_NEON_H
#define BATON_COMPUTE_CPU_ARM_NEON_H

#include "compute/internal.h"

#include <arm_neon.h>

#ifdef COMPUTE_SMALL_CODE /* sanitizers: unrolled, these files take minutes to compile */
#define INLINE static __attribute__((noinline, unused))
#define UNROLL
#else
#define INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#endif

/* Computes v here and now: gcc otherwise puts off whole chains of sums and keeps every factor in a
 * register, or on the stack, meanwhile. */
#define KEEP(v) __asm__("" : "+w"(v))

#define NEON_PANEL 8
#define NEON_TILE 4
#define MAGIC 0x4B400000

enum { START_8, START_16, START_32_LOW, START_32_HIGH };

struct neon_q8 {
    int32_t x[8][NEON_TILE];
    float d[NEON_TILE], c[NEON_TILE], s[NEON_TILE]; /* s = RN(d * sum of q) */
    int32_t start[4][NEON_TILE];
};
struct neon_outliers { /* of one segment */
    uint32_t k[NEON_TILE];
    float x[NEON_TILE];
};
struct neon_i16 {
    int16_t x[NEON_TILE][BLOCK];
    float d[NEON_TILE];
};

/* a > b ? a : b, and b where a is NaN, as everywhere (EXACTNESS 1). */
INLINE float32x4_t neon_max(float32x4_t a, float32x4_t b)
{
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}

INLINE float32x4_t neon_min(float32x4_t a, float32x4_t b)
{
    return vbslq_f32(vcltq_f32(a, b), a, b);
}

INLINE float32x4_t neon_exp2(float32x4_t x)
{
    x = neon_max(x, vdupq_n_f32(-126.0f));
    x = neon_min(x, vdupq_n_f32(126.0f));
    float32x4_t n = vrndnq_f32(x), r = vsubq_f32(x, n), p = vdupq_n_f32(0x1.5bba14p-10f);
    p = vfmaq_f32(vdupq_n_f32(0x1.3cea88p-7f), p, r);
    p = vfmaq_f32(vdupq_n_f32(0x1.c6b752p-5f), p, r);
    p = vfmaq_f32(vdupq_n_f32(0x1.ebf9bcp-3f), p, r);
    p = vfmaq_f32(vdupq_n_f32(0x1.62e42ap-1f), p, r);
    p = vfmaq_f32(vdupq_n_f32(1.0f), p, r);
    int32x4_t e = vshlq_n_s32(vcvtnq_s32_f32(n), 23);
    return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(p), e));
}

/* Halves onto halves: lane i += lane i + 2, 1. */
INLINE float neon_sum(float32x4_t v)
{
    float32x2_t a = vadd_f32(vget_low_f32(v), vget_high_f32(v));

    return vget_lane_f32(a, 0) + vget_lane_f32(a, 1);
}

INLINE float32x4_t neon_halves(const void *f16)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(f16)));
}

uint64_t neon_panel_bytes(const struct compute_matrix *m);
uint8_t *neon_pack(const struct compute_matrix *m, const struct raw_rows *raw, uint8_t *to);
void neon_acts_layout(struct compute_acts *a);
bool neon_quantise(struct compute_acts *a, uint32_t row, const float *x);
void neon_matmul(const struct matmul_task *t);
void neon_matmul_float(const struct matmul_task *t);
void neon_finish(const struct matmul_task *t, const float *y, uint32_t row, uint32_t output,
                 uint32_t n);
void neon_attention(const struct attention_task *t);
void neon_attention_merge(const float *parts, uint32_t n, uint32_t head_dim, float *out);
bool neon_rms_norm(const float *x, const float *weight, float epsilon, uint32_t n, float *y);
void neon_gated(enum compute_gate kind, const float *gate, const float *up, uint32_t n, float *y);
void neon_rotate(const struct compute_attention *a, const float *rope, float *head);
void neon_scale(float *x, uint32_t n, float by);
void neon_store(const struct compute_batch *b, const struct compute_attention *a, uint32_t row,
                const float *k, const float *v);
void neon_soft_cap(float *z, uint32_t n, float cap);
void neon_exp2_array(const float *x, uint32_t n, float *y);
uint32_t neon_largest_bits(const float *x, uint32_t n);
float neon_maximum(const float *z, uint32_t n);
void neon_sample_weights(const float *z, uint32_t n, float zmax, float scale, uint32_t *w);
double neon_log_sum(const float *z, uint32_t n, float zmax);

#endif
