/* F16 and BF16 weights as int16 blocks: t = RN((float)A d), f = fmaf(t, s, f); F32 weights by an
 * fmaf chain; segments as everywhere (EXACTNESS 3).
 *
 * The text of matmul_float_avx512vnni.c, matmul_float_avx512.c, matmul_float_avxvnni.c and
 * matmul_float_avx2.c; what each says before it is matmul.h's, with DOT_INT16(sum, a, b) for
 * DOT_BYTES and, where that is more than an instruction, SUM_KEEP(v), which computes v at once. */
#ifndef SUM_KEEP
#define SUM_KEEP(v) (void)0
#endif

#include "compute/cpu/x86/prefetch.h"

#define I16_BYTES (17 * LANE_BYTES)

INLINE void add_segment(float (*y)[TILE][LANES], lanes_f (*f)[TILE], bool first, const int rows,
                        const int panels)
{
    UNROLL for (int p = 0; p < panels; p++) UNROLL for (int i = 0; i < rows; i++)
        F_STORE(y[p][i], first ? f[p][i] : F_ADD(F_LOAD(y[p][i]), f[p][i]));
}

INLINE void tile_i16(const uint8_t *const *w, struct prefetch prefetch, const void *acts,
                     uint32_t n_k, const int rows, const int panels, float (*y)[TILE][LANES])
{
    const struct ACTS_OF(i16) *x = acts;
    const uint8_t *at[SIDE_BY_SIDE];
    uint32_t n_segments = segment_count(n_k);

    UNROLL for (int p = 0; p < panels; p++) at[p] = w[p];
    for (uint32_t s = 0; s < n_segments; s++) {
        lanes_f f[SIDE_BY_SIDE][TILE];
        UNROLL for (int p = 0; p < panels; p++) UNROLL for (int i = 0; i < rows; i++) f[p][i] =
            F_ZERO();
        uint32_t n = (segment_end(n_k, s) + BLOCK - 1) / BLOCK - s * (SEGMENT / BLOCK);
        for (; n > 0; n--, x++) {
            prefetch_lines(&prefetch);
            lanes_i a[SIDE_BY_SIDE][TILE];
            UNROLL for (int p = 0; p < panels; p++) UNROLL for (int i = 0; i < rows; i++) a[p][i] =
                I_ZERO();
            UNROLL for (int j = 0; j < 16; j++)
            {
                lanes_i v[SIDE_BY_SIDE];
                UNROLL for (int p = 0; p < panels; p++) v[p] = I_LOAD(at[p] + j * LANE_BYTES);
                UNROLL for (int i = 0; i < rows; i++)
                {
                    lanes_i xx = I_SET32(x->x[j][i]);
                    UNROLL for (int p = 0; p < panels; p++)
                    {
                        a[p][i] = DOT_INT16(a[p][i], v[p], xx);
                        SUM_KEEP(a[p][i]);
                    }
                }
            }
            UNROLL for (int p = 0; p < panels; p++)
            {
                lanes_f scale = F_LOAD((const float *)(at[p] + 16 * LANE_BYTES));
                UNROLL for (int i = 0; i < rows; i++)
                {
                    lanes_f t = F_MUL(I_TO_F(a[p][i]), F_SET(x->d[i]));
                    f[p][i] = F_FMA(t, scale, f[p][i]);
                }
                at[p] += I16_BYTES;
            }
        }
        add_segment(y, f, s == 0, rows, panels);
    }
}

INLINE void tile_f32(const uint8_t *const *w, struct prefetch prefetch, const void *acts,
                     uint32_t n_k, const int rows, const int panels, float (*y)[TILE][LANES])
{
    const float *x = acts, *at[SIDE_BY_SIDE];
    uint32_t n_segments = segment_count(n_k);

    UNROLL for (int p = 0; p < panels; p++) at[p] = (const float *)w[p];
    for (uint32_t s = 0; s < n_segments; s++) {
        lanes_f f[SIDE_BY_SIDE][TILE];
        UNROLL for (int p = 0; p < panels; p++) UNROLL for (int i = 0; i < rows; i++) f[p][i] =
            F_ZERO();
        for (uint32_t n = segment_end(n_k, s) - s * SEGMENT; n > 0; n--, x += TILE) {
            if (n % BLOCK == 0)
                prefetch_lines(&prefetch);
            UNROLL for (int p = 0; p < panels; p++)
            {
                lanes_f v = F_LOAD(at[p]);
                UNROLL for (int i = 0; i < rows; i++) f[p][i] = F_FMA(v, F_SET(x[i]), f[p][i]);
                at[p] += LANES;
            }
        }
        add_segment(y, f, s == 0, rows, panels);
    }
}

typedef void tile_kernel(const uint8_t *const *w, struct prefetch prefetch, const void *x,
                         uint32_t n_k, float (*y)[TILE][LANES]);

#define INSTANCE(rows, name, panels)                                                               \
    static void name##_##rows##_##panels(const uint8_t *const *w, struct prefetch prefetch,        \
                                         const void *x, uint32_t n_k, float(*y)[TILE][LANES])      \
    {                                                                                              \
        tile_##name(w, prefetch, x, n_k, rows, panels, y);                                         \
    }
EACH_ROWS(INSTANCE, i16, 1)
EACH_ROWS(INSTANCE, i16, 2)
EACH_ROWS(INSTANCE, f32, 1)
EACH_ROWS(INSTANCE, f32, 2)
INSTANCE(1, i16, 4)
INSTANCE(2, i16, 4)
INSTANCE(1, f32, 4)
INSTANCE(2, f32, 4)

#define POINTER(rows, name, panels) name##_##rows##_##panels,
static tile_kernel *const kernels[2][2][TILE] = {
    {{EACH_ROWS(POINTER, i16, 1)}, {EACH_ROWS(POINTER, i16, 2)}},
    {{EACH_ROWS(POINTER, f32, 1)}, {EACH_ROWS(POINTER, f32, 2)}},
};
static tile_kernel *const kernels_of_few[2][FEW_ROWS] = {{i16_1_4, i16_2_4}, {f32_1_4, f32_2_4}};

#include "compute/cpu/x86/matmul_float_task.h"
