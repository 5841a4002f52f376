/* Per segment of K and step of 32 (U6: 16): t = RN(A d), f = fmaf(t, dw, f), with a minimum f =
 * fmaf(m, s, f); then the outlier's step; y += f (EXACTNESS 3). A is a sum of integers, so its
 * order is free; the chain over steps is not.
 *
 * sdot takes both sides signed: weights of 4 to 6 bits are small positive numbers, those of 8 bits
 * signed as they are. It adds to 32 bits without saturating, so the sum starts at 0x4B400000 less
 * the offset's share and is a float's bits at the end: the tail is two fma. */
#include "compute/cpu/arm/neon.h"

/* What a kernel is made for; always a constant, so that each instance keeps only its own path. */
struct kind {
    enum weight_form form;
    bool has_min;
    bool half; /* scales are f16 */
    int start; /* which of the activations', or -1: no offset */
};

INLINE uint32_t integer_bytes(const struct kind k)
{
    return k.form == WEIGHT_U4 ? 128 : k.form == WEIGHT_U5 ? 160 : k.form == WEIGHT_U6 ? 192 : 256;
}

INLINE uint32_t block_bytes(const struct kind k)
{
    uint32_t scales = k.form == WEIGHT_U6 || k.has_min ? 2 : 1;

    return integer_bytes(k) + scales * (k.half ? 16 : 32);
}

/* v shifted left by n, which may be negative. */
INLINE uint8x16_t shifted(uint8x16_t v, int n)
{
    return vshlq_u8(v, vdupq_n_s8((int8_t)n));
}

/* Values 4 g to 4 g + 3 of a block, of outputs 0 to 3 (h = 0) or 4 to 7. */
INLINE int8x16_t group(const struct kind k, const uint8_t *w, int g, int h)
{
    if (k.form == WEIGHT_S8)
        return vld1q_s8((const int8_t *)w + 32 * g + 16 * h);
    uint8x16_t raw = vld1q_u8(w + 32 * (g / 2) + 16 * h);
    uint8x16_t v = g & 1 ? vshrq_n_u8(raw, 4) : vandq_u8(raw, vdupq_n_u8(15));
    if (k.form == WEIGHT_U5) {
        uint8x16_t bits = vld1q_u8(w + 128 + 16 * h);
        v = vorrq_u8(v, vandq_u8(shifted(bits, 4 - g), vdupq_n_u8(16)));
    }
    if (k.form == WEIGHT_U6) {
        uint8x16_t bits = vld1q_u8(w + 128 + 32 * (g / 4) + 16 * h);
        v = vorrq_u8(v, vandq_u8(shifted(bits, 4 - 2 * (g & 3)), vdupq_n_u8(48)));
    }
    return vreinterpretq_s8_u8(v);
}

/* Scale i (or minimum) of a block, of outputs 4 h to 4 h + 3. */
INLINE float32x4_t scale(const struct kind k, const uint8_t *w, int i, int h)
{
    w += integer_bytes(k);
    return k.half ? neon_halves(w + 16 * i + 8 * h)
                  : vld1q_f32((const float *)(w + 32 * i) + 4 * h);
}

/* Adds a group's products of row i; the lane that sdot takes must be written out. */
#define DOT(i)                                                                                     \
    do {                                                                                           \
        if ((i) < rows) {                                                                          \
            a[i][0] = vdotq_laneq_s32(a[i][0], w0, xx, i);                                         \
            a[i][1] = vdotq_laneq_s32(a[i][1], w1, xx, i);                                         \
            KEEP(a[i][0]);                                                                         \
            KEEP(a[i][1]);                                                                         \
        }                                                                                          \
    } while (0)

/* Sums of one step of a block. */
INLINE void sums(const struct kind k, const uint8_t *w, const struct neon_q8 *x, const int step,
                 const int rows, int32x4_t (*a)[2])
{
    const int n = k.form == WEIGHT_U6 ? 4 : 8;

    for (int i = 0; i < rows; i++)
        a[i][0] = a[i][1] = vdupq_n_s32(k.start < 0 ? MAGIC : x->start[k.start + step][i]);
    UNROLL for (int g = step * n; g < (step + 1) * n; g++)
    {
        int8x16_t xx = vreinterpretq_s8_s32(vld1q_s32(x->x[g]));
        int8x16_t w0 = group(k, w, g, 0), w1 = group(k, w, g, 1);
        DOT(0);
        DOT(1);
        DOT(2);
        DOT(3);
    }
}

INLINE void block(const struct kind k, const uint8_t *w, const struct neon_q8 *x, const int rows,
                  float32x4_t (*f)[2])
{
    const int steps = k.form == WEIGHT_U6 ? 2 : 1;

    UNROLL for (int step = 0; step < steps; step++)
    {
        int32x4_t a[NEON_TILE][2];
        sums(k, w, x, step, rows, a);
        UNROLL for (int h = 0; h < 2; h++)
        {
            float32x4_t d = scale(k, w, step, h), m = k.has_min ? scale(k, w, 1, h) : d;
            for (int i = 0; i < rows; i++) {
                float32x4_t t =
                    vfmaq_n_f32(vdupq_n_f32(x->c[i]), vreinterpretq_f32_s32(a[i][h]), x->d[i]);
                f[i][h] = vfmaq_f32(f[i][h], t, d);
                if (k.has_min)
                    f[i][h] = vfmaq_n_f32(f[i][h], m, x->s[i]);
            }
        }
    }
}

/* Bits `at` to at + n - 1 of each lane. */
INLINE uint32x4_t bits_at(const uint8_t *w, uint32_t at, uint32_t n)
{
    uint32x4_t v = vshlq_u32(vreinterpretq_u32_u8(vld1q_u8(w)), vdupq_n_s32(-(int32_t)at));

    return vandq_u32(v, vdupq_n_u32((1u << n) - 1));
}

/* Outputs' weight of one k, signed. */
INLINE float32x4_t column(const struct kind k, const uint8_t *w, uint32_t at, int h)
{
    const int offset = k.form == WEIGHT_S8   ? 128
                       : k.form == WEIGHT_U6 ? 32
                       : k.start == START_8  ? 8
                       : k.start == START_16 ? 16
                                             : 0;
    uint32_t g = at / 4, shift = 8 * (at % 4);
    uint32x4_t v;

    w += 16 * h;
    if (k.form == WEIGHT_S8) /* signed: as if it had the offset too */
        v = veorq_u32(bits_at(w + 32 * g, shift, 8), vdupq_n_u32(128));
    else
        v = bits_at(w + 32 * (g / 2), shift + 4 * (g & 1), 4);
    if (k.form == WEIGHT_U5)
        v = vorrq_u32(v, vshlq_n_u32(bits_at(w + 128, shift + g, 1), 4));
    if (k.form == WEIGHT_U6)
        v = vorrq_u32(v, vshlq_n_u32(bits_at(w + 128 + 32 * (g / 4), shift + 2 * (g & 3), 2), 4));
    return vcvtq_f32_s32(vsubq_s32(vreinterpretq_s32_u32(v), vdupq_n_s32(offset)));
}

INLINE void outlier(const struct kind k, const uint8_t *w, const struct neon_outliers *o,
                    const int rows, float32x4_t (*f)[2])
{
    for (int i = 0; i < rows; i++) {
        uint32_t at = o->k[i] % BLOCK;
        const uint8_t *from = w + o->k[i] / BLOCK * block_bytes(k);
        for (int h = 0; h < 2; h++) {
            float32x4_t t = vmulq_n_f32(column(k, from, at, h), o->x[i]);
            f[i][h] = vfmaq_f32(f[i][h], t, scale(k, from, k.form == WEIGHT_U6 && at >= 16, h));
            if (k.has_min)
                f[i][h] = vfmaq_n_f32(f[i][h], scale(k, from, 1, h), o->x[i]);
        }
    }
}

/* All of K for a tile: y[row][8]. */
INLINE void tile(const struct kind k, const uint8_t *w, const struct neon_q8 *x,
                 const struct neon_outliers *o, uint32_t n_k, const int rows,
                 float (*y)[NEON_PANEL])
{
    const uint8_t *at = w;

    for (uint32_t s = 0; s < segment_count(n_k); s++) {
        float32x4_t f[NEON_TILE][2];
        for (int i = 0; i < rows; i++)
            f[i][0] = f[i][1] = vdupq_n_f32(0);
        for (uint32_t b = segment_end(n_k, s) / BLOCK - s * (SEGMENT / BLOCK); b > 0; b--, x++) {
            __builtin_prefetch(at + 1024);
            block(k, at, x, rows, f);
            at += block_bytes(k);
        }
        outlier(k, w, o + s, rows, f);
        for (int i = 0; i < rows; i++)
            for (int h = 0; h < 2; h++) {
                float *to = y[i] + 4 * h;
                vst1q_f32(to, s == 0 ? f[i][h] : vaddq_f32(vld1q_f32(to), f[i][h]));
            }
    }
}

/* ---- instances ---- */

typedef void tile_kernel(const uint8_t *w, const struct neon_q8 *x, const struct neon_outliers *o,
                         uint32_t n_k, float (*y)[NEON_PANEL]);

#define INSTANCE(name, rows, ...)                                                                  \
    static void name##_##rows(const uint8_t *w, const struct neon_q8 *x,                           \
                              const struct neon_outliers *o, uint32_t n_k, float(*y)[NEON_PANEL])  \
    {                                                                                              \
        const struct kind k = {__VA_ARGS__};                                                       \
        tile(k, w, x, o, n_k, rows, y);                                                            \
    }
#define INSTANCES(name, ...)                                                                       \
    INSTANCE(name, 1, __VA_ARGS__)                                                                 \
    INSTANCE(name, 2, __VA_ARGS__) INSTANCE(name, 3, __VA_ARGS__) INSTANCE(name, 4, __VA_ARGS__)

INSTANCES(q4_0, WEIGHT_U4, false, true, START_8)
INSTANCES(q4_1, WEIGHT_U4, true, true, -1)
INSTANCES(q4_k, WEIGHT_U4, true, false, -1)
INSTANCES(q5_0, WEIGHT_U5, false, true, START_16)
INSTANCES(q5_k, WEIGHT_U5, true, false, -1)
INSTANCES(q6_k, WEIGHT_U6, false, false, START_32_LOW)
INSTANCES(q8_0, WEIGHT_S8, false, true, -1)

static const struct kernels {
    enum dtype type;
    tile_kernel *by_rows[NEON_TILE];
} kernels[] = {
    {DTYPE_Q4_0, {q4_0_1, q4_0_2, q4_0_3, q4_0_4}}, {DTYPE_Q4_1, {q4_1_1, q4_1_2, q4_1_3, q4_1_4}},
    {DTYPE_Q4_K, {q4_k_1, q4_k_2, q4_k_3, q4_k_4}}, {DTYPE_Q5_0, {q5_0_1, q5_0_2, q5_0_3, q5_0_4}},
    {DTYPE_Q5_K, {q5_k_1, q5_k_2, q5_k_3, q5_k_4}}, {DTYPE_Q6_K, {q6_k_1, q6_k_2, q6_k_3, q6_k_4}},
    {DTYPE_Q8_0, {q8_0_1, q8_0_2, q8_0_3, q8_0_4}},
};

/* ---- a task ---- */

/* Bias, then residual, of up to 8 outputs. */
void neon_finish(const struct compute_product *p, const float *y, uint32_t row, uint32_t output,
                 uint32_t n)
{
    float *to = p->y + row * p->y_stride + output;

    for (uint32_t i = 0; i < n; i++) {
        float v = p->bias ? y[i] + p->bias[output + i] : y[i];
        to[i] = p->residual ? to[i] + v : v;
    }
}

void neon_matmul(const struct matmul_task *t)
{
    const struct compute_matrix *m = t->matrix;
    const struct compute_acts *a = t->acts;
    const struct kernels *k = kernels;
    float y[NEON_TILE][NEON_PANEL];

    if (m->form >= WEIGHT_I16) {
        neon_matmul_float(t);
        return;
    }
    while (k->type != m->type)
        k++;
    for (uint32_t panel = t->panel_begin; panel < t->panel_end; panel++)
        for (uint32_t row = t->row_begin; row < t->row_end; row += NEON_TILE) {
            uint32_t rows = MIN(NEON_TILE, t->row_end - row), at = row / NEON_TILE;
            k->by_rows[rows - 1](m->data + panel * m->panel_bytes,
                                 (const void *)(a->q8 + at * a->q8_tile_bytes),
                                 (const void *)(a->outliers + at * a->outlier_tile_bytes), m->k, y);
            uint32_t output = panel * NEON_PANEL, n = MIN(NEON_PANEL, m->n_outputs - output);
            for (uint32_t i = 0; i < rows; i++)
                neon_finish(t->product, y[i], row + i, output, n);
        }
}
