/* Attention on sixteen lanes; what a head's width leaves over goes on eight. */
#include "compute/cpu/x86/avx512.h"

#define X86(name) avx512_##name
#include "compute/cpu/attention_task.h"

#define WIDE_PAIRS 6 /* beside 4 vectors: 24 sums of 32 registers */

/* c[pair][vectors of 16] = (first ? 0 : c) + sum over j of a[pair][j] * b[j][...], one chain an
 * element, j ascending. */
INLINE void wide_chains(const float *const *a, const void *b, const void *ahead, const bool half,
                        uint32_t b_stride, uint32_t n, float *const *c, uint32_t column, bool first,
                        const int pairs, const int vectors)
{
    __m512 acc[WIDE_PAIRS][4];
    const float *x[WIDE_PAIRS];

    UNROLL for (int i = 0; i < pairs; i++)
    {
        x[i] = a[i];
        UNROLL for (int v = 0; v < vectors; v++) acc[i][v] =
            first ? _mm512_setzero_ps() : _mm512_loadu_ps(c[i] + column + 16 * v);
    }
    for (uint32_t j = 0; j < n; j++) {
        UNROLL for (int v = 0; v < vectors; v++)
        {
            __m512 row = half ? _mm512_cvtph_ps(_mm256_loadu_si256(
                                    (const __m256i *)((const uint16_t *)b + 16 * v)))
                              : _mm512_loadu_ps((const float *)b + 16 * v);
            UNROLL for (int i = 0; i < pairs; i++) acc[i][v] =
                _mm512_fmadd_ps(_mm512_set1_ps(x[i][j]), row, acc[i][v]);
        }
        b = (const uint8_t *)b + (size_t)b_stride * (half ? 2 : 4);
        if (half) {
            UNROLL for (int v = 0; v < vectors; v += 2)
                _mm_prefetch((const char *)ahead + 32 * v, _MM_HINT_T0);
            ahead = (const uint8_t *)ahead + (size_t)b_stride * 2;
        }
    }
    UNROLL for (int i = 0; i < pairs; i++) UNROLL for (int v = 0; v < vectors; v++)
        _mm512_storeu_ps(c[i] + column + 16 * v, acc[i][v]);
}

typedef void wide_kernel(const float *const *a, const void *b, const void *ahead, uint32_t b_stride,
                         uint32_t n, float *const *c, uint32_t column, bool first);

#define INSTANCE(kind, half, pairs, vectors)                                                       \
    static void kind##_##pairs##_##vectors(const float *const *a, const void *b,                   \
                                           const void *ahead, uint32_t b_stride, uint32_t n,       \
                                           float *const *c, uint32_t column, bool first)           \
    {                                                                                              \
        wide_chains(a, b, ahead, half, b_stride, n, c, column, first, pairs, vectors);             \
    }
#define INSTANCES(kind, half, vectors)                                                             \
    INSTANCE(kind, half, 1, vectors)                                                               \
    INSTANCE(kind, half, 2, vectors)                                                               \
    INSTANCE(kind, half, 3, vectors)                                                               \
    INSTANCE(kind, half, 4, vectors)                                                               \
    INSTANCE(kind, half, 5, vectors)                                                               \
    INSTANCE(kind, half, 6, vectors)
INSTANCES(f16, true, 2)
INSTANCES(f16, true, 4)
INSTANCES(f32, false, 2)
INSTANCES(f32, false, 4)
#define ROW(kind, vectors)                                                                         \
    {                                                                                              \
        kind##_1_##vectors, kind##_2_##vectors, kind##_3_##vectors, kind##_4_##vectors,            \
            kind##_5_##vectors, kind##_6_##vectors                                                 \
    }
/* By f16, four vectors rather than two, pairs - 1. */
static wide_kernel *const wide_kernels[2][2][WIDE_PAIRS] = {{ROW(f32, 2), ROW(f32, 4)},
                                                            {ROW(f16, 2), ROW(f16, 4)}};

static uint32_t wide_product(const struct task *k, uint32_t from, const float *const *a,
                             const void *b, const void *ahead, bool half, uint32_t width,
                             uint32_t n, float *const *c, bool first)
{
    uint32_t end = width / 32 * 32;

    for (uint32_t i = from; i < k->n; i += WIDE_PAIRS) {
        uint32_t pairs = MIN(WIDE_PAIRS, k->n - i);
        for (uint32_t v = 0; v < end;) {
            bool four = v + 64 <= end;
            const void *at = half ? (const void *)((const uint16_t *)b + v) : (const float *)b + v;
            const void *next = half ? (const uint16_t *)ahead + v : NULL;
            wide_kernels[half][four][pairs - 1](a + i, at, next, width, n, c + i, v, first);
            v += four ? 64 : 32;
        }
    }
    return end;
}

#include "compute/cpu/x86/attention.h"
