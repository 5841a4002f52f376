/* F16 and BF16 weights as int16 blocks: t = RN((float)A d), f = fmaf(t, s, f); F32 weights by an
 * fmaf chain; segments as everywhere (EXACTNESS 3). */
#include "compute/cpu/x86/avx2.h"
#include "compute/cpu/x86/vector256.h"

#define X86(name) avx2_##name
#define TILE AVX2_TILE

#include "compute/cpu/x86/ahead.h"

#define I16_BYTES (512 + 32)

INLINE void add_segment(float (*y)[AVX2_TILE][8], __m256 (*f)[AVX2_TILE], bool first,
                        const int rows, const int panels)
{
    UNROLL for (int p = 0; p < panels; p++) UNROLL for (int i = 0; i < rows; i++)
        _mm256_store_ps(y[p][i], first ? f[p][i] : _mm256_add_ps(_mm256_load_ps(y[p][i]), f[p][i]));
}

INLINE void tile_i16(const uint8_t *const *w, struct ahead ahead, const void *acts, uint32_t n_k,
                     const int rows, const int panels, float (*y)[AVX2_TILE][8])
{
    const struct avx2_i16 *x = acts;
    const uint8_t *at[2] = {w[0], w[panels - 1]};
    uint32_t n_segments = segment_count(n_k);

    for (uint32_t s = 0; s < n_segments; s++) {
        __m256 f[2][AVX2_TILE];
        UNROLL for (int p = 0; p < panels; p++) UNROLL for (int i = 0; i < rows; i++) f[p][i] =
            _mm256_setzero_ps();
        uint32_t n = (segment_end(n_k, s) + BLOCK - 1) / BLOCK - s * (SEGMENT / BLOCK);
        for (; n > 0; n--, x++) {
            fetch_ahead(&ahead);
            __m256i a[2][AVX2_TILE];
            UNROLL for (int j = 0; j < 16; j++)
            {
                __m256i v[2];
                UNROLL for (int p = 0; p < panels; p++) v[p] =
                    _mm256_loadu_si256((const __m256i *)(at[p] + 32 * j));
                UNROLL for (int i = 0; i < rows; i++)
                {
                    __m256i xx =
                        _mm256_castps_si256(_mm256_broadcast_ss((const float *)&x->x[j][i]));
                    UNROLL for (int p = 0; p < panels; p++)
                    {
                        __m256i product = _mm256_madd_epi16(v[p], xx);
                        a[p][i] = j == 0 ? product : _mm256_add_epi32(a[p][i], product);
                        KEEP(a[p][i]);
                    }
                }
            }
            UNROLL for (int p = 0; p < panels; p++)
            {
                __m256 scale = _mm256_loadu_ps((const float *)(at[p] + 512));
                UNROLL for (int i = 0; i < rows; i++)
                {
                    __m256 t =
                        _mm256_mul_ps(_mm256_cvtepi32_ps(a[p][i]), _mm256_broadcast_ss(&x->d[i]));
                    f[p][i] = _mm256_fmadd_ps(t, scale, f[p][i]);
                }
                at[p] += I16_BYTES;
            }
        }
        add_segment(y, f, s == 0, rows, panels);
    }
}

INLINE void tile_f32(const uint8_t *const *w, struct ahead ahead, const void *acts, uint32_t n_k,
                     const int rows, const int panels, float (*y)[AVX2_TILE][8])
{
    const float *x = acts, *at[2] = {(const float *)w[0], (const float *)w[panels - 1]};
    uint32_t n_segments = segment_count(n_k);

    for (uint32_t s = 0; s < n_segments; s++) {
        __m256 f[2][AVX2_TILE];
        UNROLL for (int p = 0; p < panels; p++) UNROLL for (int i = 0; i < rows; i++) f[p][i] =
            _mm256_setzero_ps();
        for (uint32_t n = segment_end(n_k, s) - s * SEGMENT; n > 0; n--, x += AVX2_TILE) {
            if (n % BLOCK == 0)
                fetch_ahead(&ahead);
            UNROLL for (int p = 0; p < panels; p++)
            {
                __m256 v = _mm256_loadu_ps(at[p]);
                UNROLL for (int i = 0; i < rows; i++) f[p][i] =
                    _mm256_fmadd_ps(v, _mm256_broadcast_ss(x + i), f[p][i]);
                at[p] += AVX2_PANEL;
            }
        }
        add_segment(y, f, s == 0, rows, panels);
    }
}

typedef void tile_kernel(const uint8_t *const *w, struct ahead ahead, const void *x, uint32_t n_k,
                         float (*y)[AVX2_TILE][8]);

#define INSTANCE(name, rows, panels)                                                               \
    static void name##_##rows##_##panels(const uint8_t *const *w, struct ahead ahead,              \
                                         const void *x, uint32_t n_k, float(*y)[AVX2_TILE][8])     \
    {                                                                                              \
        tile_##name(w, ahead, x, n_k, rows, panels, y);                                            \
    }
INSTANCE(i16, 1, 1)
INSTANCE(i16, 2, 1)
INSTANCE(i16, 3, 1)
INSTANCE(i16, 4, 1)
INSTANCE(i16, 1, 2)
INSTANCE(i16, 2, 2)
INSTANCE(i16, 3, 2)
INSTANCE(i16, 4, 2)
INSTANCE(f32, 1, 1)
INSTANCE(f32, 2, 1)
INSTANCE(f32, 3, 1)
INSTANCE(f32, 4, 1)
INSTANCE(f32, 1, 2)
INSTANCE(f32, 2, 2)
INSTANCE(f32, 3, 2)
INSTANCE(f32, 4, 2)

static tile_kernel *const kernels[2][2][AVX2_TILE] = {
    {{i16_1_1, i16_2_1, i16_3_1, i16_4_1}, {i16_1_2, i16_2_2, i16_3_2, i16_4_2}},
    {{f32_1_1, f32_2_1, f32_3_1, f32_4_1}, {f32_1_2, f32_2_2, f32_3_2, f32_4_2}},
};

#include "compute/cpu/x86/matmul_float_task.h"
