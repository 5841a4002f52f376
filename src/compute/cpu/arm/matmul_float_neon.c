/* F16 and BF16 weights as int16 blocks: t = RN((float)A d), f = fmaf(t, s, f); F32 weights by an
 * fmaf chain; segments as everywhere (EXACTNESS 3). */
#include "compute/cpu/arm/neon.h"

#define I16_BYTES (512 + 32)

INLINE void add_segment(float (*y)[NEON_PANEL], float32x4_t (*f)[2], bool first, const int rows)
{
    for (int i = 0; i < rows; i++)
        for (int h = 0; h < 2; h++) {
            float *to = y[i] + 4 * h;
            vst1q_f32(to, first ? f[i][h] : vaddq_f32(vld1q_f32(to), f[i][h]));
        }
}

/* Eight values of k: lanes must be written out. */
#define STEP(j)                                                                                    \
    do {                                                                                           \
        int16x8_t v = vld1q_s16(w + (j)*NEON_PANEL);                                               \
        a[0] = vmlal_laneq_s16(a[0], vget_low_s16(v), x, j);                                       \
        a[1] = vmlal_high_laneq_s16(a[1], v, x, j);                                                \
    } while (0)

INLINE void add_eight(const int16_t *w, int16x8_t x, int32x4_t *a)
{
    STEP(0);
    STEP(1);
    STEP(2);
    STEP(3);
    STEP(4);
    STEP(5);
    STEP(6);
    STEP(7);
}

INLINE void tile_i16(const uint8_t *w, const void *acts, uint32_t n_k, const int rows,
                     float (*y)[NEON_PANEL])
{
    const struct neon_i16 *x = acts;

    for (uint32_t s = 0; s < segment_count(n_k); s++) {
        float32x4_t f[NEON_TILE][2];
        for (int i = 0; i < rows; i++)
            f[i][0] = f[i][1] = vdupq_n_f32(0);
        uint32_t n = (segment_end(n_k, s) + BLOCK - 1) / BLOCK - s * (SEGMENT / BLOCK);
        for (; n > 0; n--, x++, w += I16_BYTES) {
            int32x4_t a[NEON_TILE][2];
            for (int i = 0; i < rows; i++)
                a[i][0] = a[i][1] = vdupq_n_s32(0);
            for (int j = 0; j < BLOCK; j += 8)
                for (int i = 0; i < rows; i++)
                    add_eight((const int16_t *)w + j * NEON_PANEL, vld1q_s16(x->x[i] + j), a[i]);
            for (int h = 0; h < 2; h++) {
                float32x4_t scale = vld1q_f32((const float *)(w + 512) + 4 * h);
                for (int i = 0; i < rows; i++)
                    f[i][h] =
                        vfmaq_f32(f[i][h], vmulq_n_f32(vcvtq_f32_s32(a[i][h]), x->d[i]), scale);
            }
        }
        add_segment(y, f, s == 0, rows);
    }
}

INLINE void tile_f32(const uint8_t *w, const void *acts, uint32_t n_k, const int rows,
                     float (*y)[NEON_PANEL])
{
    const float *x = acts, *at = (const float *)w;

    for (uint32_t s = 0; s < segment_count(n_k); s++) {
        float32x4_t f[NEON_TILE][2];
        for (int i = 0; i < rows; i++)
            f[i][0] = f[i][1] = vdupq_n_f32(0);
        for (uint32_t n = segment_end(n_k, s) - s * SEGMENT; n > 0; n--, x += NEON_TILE) {
            float32x4_t w0 = vld1q_f32(at), w1 = vld1q_f32(at + 4);
            for (int i = 0; i < rows; i++) {
                f[i][0] = vfmaq_n_f32(f[i][0], w0, x[i]);
                f[i][1] = vfmaq_n_f32(f[i][1], w1, x[i]);
            }
            at += NEON_PANEL;
        }
        add_segment(y, f, s == 0, rows);
    }
}

typedef void tile_kernel(const uint8_t *w, const void *x, uint32_t n_k, float (*y)[NEON_PANEL]);

#define INSTANCE(name, rows)                                                                       \
    static void name##_##rows(const uint8_t *w, const void *x, uint32_t n_k,                       \
                              float(*y)[NEON_PANEL])                                               \
    {                                                                                              \
        tile_##name(w, x, n_k, rows, y);                                                           \
    }
INSTANCE(i16, 1)
INSTANCE(i16, 2)
INSTANCE(i16, 3)
INSTANCE(i16, 4)
INSTANCE(f32, 1)
INSTANCE(f32, 2)
INSTANCE(f32, 3)
INSTANCE(f32, 4)

static tile_kernel *const kernels[2][NEON_TILE] = {{i16_1, i16_2, i16_3, i16_4},
                                                   {f32_1, f32_2, f32_3, f32_4}};

void neon_matmul_float(const struct matmul_task *t)
{
    const struct compute_matrix *m = t->matrix;
    const struct compute_acts *a = t->acts;
    const uint8_t *acts = m->form == WEIGHT_I16 ? a->i16 : a->f32;
    uint64_t tile_bytes = m->form == WEIGHT_I16 ? a->i16_tile_bytes : a->f32_tile_bytes;
    float y[NEON_TILE][NEON_PANEL];

    for (uint32_t panel = t->panel_begin; panel < t->panel_end; panel++)
        for (uint32_t row = t->row_begin; row < t->row_end; row += NEON_TILE) {
            uint32_t rows = MIN(NEON_TILE, t->row_end - row);
            kernels[m->form == WEIGHT_F32][rows - 1](m->data + panel * m->panel_bytes,
                                                     acts + row / NEON_TILE * tile_bytes, m->k, y);
            uint32_t output = panel * NEON_PANEL, n = MIN(NEON_PANEL, m->n_outputs - output);
            for (uint32_t i = 0; i < rows; i++)
                neon_finish(t, y[i], row + i, output, n);
        }
}
