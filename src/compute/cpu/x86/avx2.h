/* What the AVX2 files share: the layout of activations and panels, and exp2 on eight lanes.
 *
 * Lanes are outputs: a panel has 8 of them, a tile of activations 4 rows. A block of 32 values of a
 * tile is, for each row r:
 *
 * x[8][r], four quantised values in each; d[r], the scale, and c[r] = -12582912 d: t = fma(float
 * with the bits 0x4B400000 + A, d, c) is RN(A d); s[r] = RN(d * sum of q); start[5][r], where sums
 * of products start so that an offset inside the weights costs nothing: 0x4B400000 - offset * sum
 * of q, for the offsets 8, 16, 32 (each half of a block) and 128.
 *
 * A tier that sums 5 and 6 bits in 16-bit lanes starts them differently (avx2_start). */
#ifndef BATON_COMPUTE_CPU_X86_AVX2_H
#define BATON_COMPUTE_CPU_X86_AVX2_H

#include "compute/internal.h"

#include <immintrin.h>

#ifdef COMPUTE_SMALL_CODE /* sanitizers and emulation: unrolled, these files take minutes to       \
                             compile */
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

/* Computes v here and now: gcc otherwise puts off whole chains of integer sums and spills every
 * product meanwhile. */
#define KEEP(v) __asm__("" : "+x"(v))

#define SIDE_BY_SIDE 4 /* panels that a kernel reads for FEW_ROWS rows; for more at most 2 */

#define AVX2_PANEL 8
#define AVX2_TILE 4
#define AVX2_EACH_ROWS(X, ...)                                                                     \
    X(1, __VA_ARGS__) X(2, __VA_ARGS__) X(3, __VA_ARGS__) X(4, __VA_ARGS__)
#define MAGIC 0x4B400000

enum { START_8, START_16, START_32_LOW, START_32_HIGH, START_128 };
/* AVX2's: PAIRS are two int16, of values 0 and 1 and of values 2 and 3 of each four. */
enum avx2_start {
    AVX2_START_8,
    AVX2_START_PLUS_16, /* 0x4B400000 + 16 * sum of q */
    AVX2_PAIRS_16,      /* -16 * sums of q */
    AVX2_PAIRS_32_LOW,  /* -32 * sums of q of the block's first half */
    AVX2_PAIRS_32_HIGH,
};

#define ACTS(prefix, tile)                                                                         \
    struct prefix##_q8 {                                                                           \
        int32_t x[8][tile];                                                                        \
        float d[tile], c[tile], s[tile];                                                           \
        int32_t start[5][tile];                                                                    \
    };                                                                                             \
    struct prefix##_outliers { /* of one segment */                                                \
        uint32_t k[tile];                                                                          \
        float x[tile];                                                                             \
    };                                                                                             \
    struct prefix##_i16 {                                                                          \
        int32_t x[16][tile]; /* pairs */                                                           \
        float d[tile];                                                                             \
    }
ACTS(avx2, AVX2_TILE);
/* With ACT_Q8_WIDE they lie behind all q8 of a tile. */
struct avx2_wide {
    int32_t x[16][AVX2_TILE]; /* pairs */
};

/* exp2 of what rounding leaves, -0.5 to 0.5. */
INLINE __m256 avx2_exp2_of_rest(__m256 r)
{
    __m256 p = _mm256_set1_ps(0x1.5bba14p-10f);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.3cea88p-7f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.c6b752p-5f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.ebf9bcp-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.62e42ap-1f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    return p;
}

INLINE __m256 avx2_exp2(__m256 x)
{
    x = _mm256_max_ps(x, _mm256_set1_ps(-126.0f));
    x = _mm256_min_ps(x, _mm256_set1_ps(126.0f));
    __m256 n = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
           r = _mm256_sub_ps(x, n);
    __m256 p = avx2_exp2_of_rest(r);
    __m256i e = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), e));
}

/* Halves onto halves: lane i += lane i + 4, 2, 1. */
INLINE float avx2_sum(__m256 v)
{
    __m128 a = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));

    a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    a = _mm_add_ss(a, _mm_movehdup_ps(a));
    return _mm_cvtss_f32(a);
}

INLINE float avx2_max(__m256 v)
{
    __m128 a = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));

    a = _mm_max_ps(a, _mm_movehl_ps(a, a));
    a = _mm_max_ss(a, _mm_movehdup_ps(a));
    return _mm_cvtss_f32(a);
}

INLINE uint32_t avx2_max_bits(__m256i v)
{
    __m128i a = _mm_max_epu32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));

    a = _mm_max_epu32(a, _mm_shuffle_epi32(a, 0x4E));
    a = _mm_max_epu32(a, _mm_shuffle_epi32(a, 0xB1));
    return (uint32_t)_mm_cvtsi128_si32(a);
}

INLINE __m256i avx2_abs_bits(const float *x)
{
    return _mm256_and_si256(_mm256_loadu_si256((const __m256i *)x), _mm256_set1_epi32(0x7FFFFFFF));
}

uint64_t avx2_panel_bytes(const struct compute_matrix *m);
uint8_t *avx2_pack(const struct compute_matrix *m, const struct raw_rows *raw, uint8_t *to);
bool avx2_halves(enum dtype type, const void *row, uint32_t k, int16_t *w, float *d);
void avx2_acts_layout(struct compute_acts *a);
bool avx2_quantise(struct compute_acts *a, uint32_t row, const float *x);
void avx2_matmul(const struct matmul_task *t);
uint64_t avx2_matmul_scratch(const struct compute_matrix *m);
void avx2_matmul_float(const struct matmul_task *t);
void avx2_attention(const struct attention_task *t);
void avx2_attention_merge(const float *parts, uint32_t n, uint32_t head_dim, float *out);
bool avx2_rms_norm(const float *x, const float *weight, float epsilon, uint32_t n, float *y);
void avx2_gated(enum compute_gate kind, const float *gate, const float *up, uint32_t n, float *y);
void avx2_rotate(const struct compute_attention *a, const float *rope, float *head);
void avx2_scale(float *x, uint32_t n, float by);
void avx2_store(const struct compute_batch *b, const struct compute_attention *a, uint32_t row,
                const float *k, const float *v);
void avx2_soft_cap(float *z, uint32_t n, float cap);
void avx2_exp2_array(const float *x, uint32_t n, float *y);
uint32_t avx2_largest_bits(const float *x, uint32_t n);
bool avx2_all_valid(const float *z, uint32_t n);
float avx2_maximum(const float *z, uint32_t n);
void avx2_sample_weights(const float *z, uint32_t n, float zmax, float scale, uint32_t *w);
uint64_t avx2_peak(enum compute_unit unit, uint32_t rounds);
void avx2_read(const void *data, uint64_t bytes, bool in_streams);
double avx2_log_sum(const float *z, uint32_t n, float zmax);

#endif
