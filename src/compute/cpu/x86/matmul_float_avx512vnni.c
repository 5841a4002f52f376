/* F16 and BF16 weights as int16 blocks: t = RN((float)A d), f = fmaf(t, s, f); F32 weights by an
 * fmaf chain; segments as everywhere (EXACTNESS 3). */
#include "compute/cpu/x86/avx512vnni.h"

#define I16_BYTES (1024 + 64)

INLINE void add_segment(float (*y)[AVX512_TILE][16], __m512 (*f)[AVX512_TILE], bool first,
                        const int rows, const int panels)
{
    UNROLL for (int p = 0; p < panels; p++) UNROLL for (int i = 0; i < rows; i++) _mm512_storeu_ps(
        y[p][i], first ? f[p][i] : _mm512_add_ps(_mm512_loadu_ps(y[p][i]), f[p][i]));
}

INLINE void tile_i16(const uint8_t *const *w, const void *acts, uint32_t n_k, const int rows,
                     const int panels, float (*y)[AVX512_TILE][16])
{
    const struct avx512vnni_i16 *x = acts;
    const uint8_t *at[2] = {w[0], w[panels - 1]};
    uint32_t n_segments = segment_count(n_k);

    for (uint32_t s = 0; s < n_segments; s++) {
        __m512 f[2][AVX512_TILE];
        UNROLL for (int p = 0; p < panels; p++) UNROLL for (int i = 0; i < rows; i++) f[p][i] =
            _mm512_setzero_ps();
        uint32_t n = (segment_end(n_k, s) + BLOCK - 1) / BLOCK - s * (SEGMENT / BLOCK);
        for (; n > 0; n--, x++) {
            __m512i a[2][AVX512_TILE];
            UNROLL for (int p = 0; p < panels; p++) UNROLL for (int i = 0; i < rows; i++) a[p][i] =
                _mm512_setzero_si512();
            UNROLL for (int j = 0; j < 16; j++)
            {
                __m512i v[2];
                UNROLL for (int p = 0; p < panels; p++) v[p] = LOAD512(at[p] + 64 * j);
                UNROLL for (int i = 0; i < rows; i++)
                {
                    __m512i xx = _mm512_set1_epi32(x->x[j][i]);
                    UNROLL for (int p = 0; p < panels; p++) a[p][i] =
                        _mm512_dpwssd_epi32(a[p][i], v[p], xx);
                }
            }
            UNROLL for (int p = 0; p < panels; p++)
            {
                __m512 scale = _mm512_loadu_ps((const float *)(at[p] + 1024));
                UNROLL for (int i = 0; i < rows; i++)
                {
                    __m512 t = _mm512_mul_ps(_mm512_cvtepi32_ps(a[p][i]), _mm512_set1_ps(x->d[i]));
                    f[p][i] = _mm512_fmadd_ps(t, scale, f[p][i]);
                }
                at[p] += I16_BYTES;
            }
        }
        add_segment(y, f, s == 0, rows, panels);
    }
}

INLINE void tile_f32(const uint8_t *const *w, const void *acts, uint32_t n_k, const int rows,
                     const int panels, float (*y)[AVX512_TILE][16])
{
    const float *x = acts, *at[2] = {(const float *)w[0], (const float *)w[panels - 1]};
    uint32_t n_segments = segment_count(n_k);

    for (uint32_t s = 0; s < n_segments; s++) {
        __m512 f[2][AVX512_TILE];
        UNROLL for (int p = 0; p < panels; p++) UNROLL for (int i = 0; i < rows; i++) f[p][i] =
            _mm512_setzero_ps();
        for (uint32_t n = segment_end(n_k, s) - s * SEGMENT; n > 0; n--, x += AVX512_TILE) {
            UNROLL for (int p = 0; p < panels; p++)
            {
                __m512 v = _mm512_loadu_ps(at[p]);
                UNROLL for (int i = 0; i < rows; i++) f[p][i] =
                    _mm512_fmadd_ps(v, _mm512_set1_ps(x[i]), f[p][i]);
                at[p] += AVX512_PANEL;
            }
        }
        add_segment(y, f, s == 0, rows, panels);
    }
}

typedef void tile_kernel(const uint8_t *const *w, const void *x, uint32_t n_k,
                         float (*y)[AVX512_TILE][16]);

#define INSTANCE(name, rows, panels)                                                               \
    static void name##_##rows##_##panels(const uint8_t *const *w, const void *x, uint32_t n_k,     \
                                         float(*y)[AVX512_TILE][16])                               \
    {                                                                                              \
        tile_##name(w, x, n_k, rows, panels, y);                                                   \
    }
#define INSTANCES(name, panels)                                                                    \
    INSTANCE(name, 1, panels)                                                                      \
    INSTANCE(name, 2, panels)                                                                      \
    INSTANCE(name, 3, panels)                                                                      \
    INSTANCE(name, 4, panels)                                                                      \
    INSTANCE(name, 5, panels)                                                                      \
    INSTANCE(name, 6, panels)
#define ROW_KERNELS(name, panels)                                                                  \
    {                                                                                              \
        name##_1_##panels, name##_2_##panels, name##_3_##panels, name##_4_##panels,                \
            name##_5_##panels, name##_6_##panels                                                   \
    }
INSTANCES(i16, 1)
INSTANCES(i16, 2)
INSTANCES(f32, 1)
INSTANCES(f32, 2)

static tile_kernel *const kernels[2][2][AVX512_TILE] = {
    {ROW_KERNELS(i16, 1), ROW_KERNELS(i16, 2)},
    {ROW_KERNELS(f32, 1), ROW_KERNELS(f32, 2)},
};

void avx512vnni_matmul_float(const struct matmul_task *t)
{
    const struct compute_matrix *m = t->matrix;
    const struct compute_acts *a = t->acts;
    const uint8_t *acts = m->form == WEIGHT_I16 ? a->i16 : a->f32;
    uint64_t tile_bytes = m->form == WEIGHT_I16 ? a->i16_tile_bytes : a->f32_tile_bytes;
    _Alignas(64) float y[2][AVX512_TILE][16];

    for (uint32_t panel = t->panel_begin; panel < t->panel_end; panel += 2) {
        uint32_t panels = MIN(2, t->panel_end - panel);
        const uint8_t *w[2] = {m->data + panel * m->panel_bytes,
                               m->data + (panel + panels - 1) * m->panel_bytes};
        for (uint32_t row = t->row_begin; row < t->row_end; row += AVX512_TILE) {
            uint32_t rows = MIN(AVX512_TILE, t->row_end - row);
            kernels[m->form == WEIGHT_F32][panels - 1][rows - 1](
                w, acts + row / AVX512_TILE * tile_bytes, m->k, y);
            for (uint32_t p = 0; p < panels; p++) {
                uint32_t output = (panel + p) * AVX512_PANEL,
                         n = MIN(AVX512_PANEL, m->n_outputs - output);
                for (uint32_t i = 0; i < rows; i++)
                    avx512vnni_finish(t->product, y[p][i], row + i, output, n);
            }
        }
    }
}
