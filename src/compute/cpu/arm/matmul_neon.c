/* Per segment of K and step of 32 (U6: 16): t = RN(A d), f = fmaf(t, dw, f), with a minimum f =
 * fmaf(m, s, f); then the outlier's step; y += f (EXACTNESS 3). A is a sum of integers, so its
 * order is free; the chain over steps is not.
 *
 * sdot takes both sides signed: weights of 4 to 6 bits are small positive numbers, those of 8 bits
 * signed as they are. It adds to 32 bits without saturating, so the sum starts at 0x4B400000 less
 * the offset's share and is a float's bits at the end: the tail is two fma. The small scales of a
 * K-quant's super-block become f32 before its blocks. */
#include "compute/cpu/arm/neon.h"

/* What a kernel is made for; always a constant, so that each instance keeps only its own path. */
struct kind {
    enum weight_form form;
    bool has_min;
    enum scale_form scales;
    int start; /* which of the activations', or -1: no offset */
};

INLINE uint32_t integer_bytes(const struct kind k)
{
    return k.form == WEIGHT_U4 ? 128 : k.form == WEIGHT_U5 ? 160 : k.form == WEIGHT_U6 ? 192 : 256;
}

INLINE uint32_t block_bytes(const struct kind k)
{
    return integer_bytes(k) + (k.scales == SCALES_K ? 0 : k.has_min ? 32 : 16);
}

/* Of a super-block, before its blocks. */
INLINE uint32_t header_bytes(const struct kind k)
{
    return k.scales != SCALES_K ? 0 : k.form == WEIGHT_U6 ? 144 : 128;
}

/* Where block b begins. */
INLINE const uint8_t *block_at(const struct kind k, const uint8_t *w, uint32_t b)
{
    return w + b * block_bytes(k) +
           (k.scales == SCALES_K ? (b / SUPER_BLOCKS + 1) * header_bytes(k) : 0);
}

/* v shifted left by n, which may be negative. */
INLINE uint8x16_t shifted(uint8x16_t v, int n)
{
    return vshlq_u8(v, vdupq_n_s8((int8_t)n));
}

/* Group g of U6: six bits, or what is above those of three vectors. */
INLINE int8x16_t sixes(const uint8_t *w, uint32_t g)
{
    if (g < 6)
        return vreinterpretq_s8_u8(vandq_u8(vld1q_u8(w + 32 * g), vdupq_n_u8(63)));
    w += 96 * (g - 6);
    uint8x16_t v = vsriq_n_u8(vld1q_u8(w), vld1q_u8(w + 32), 2);
    v = vsriq_n_u8(v, vld1q_u8(w + 64), 4);
    return vreinterpretq_s8_u8(vshrq_n_u8(v, 2));
}

/* Values 4 g to 4 g + 3 of a block, of outputs 0 to 3 (h = 0) or 4 to 7. */
INLINE int8x16_t group(const struct kind k, const uint8_t *w, int g, int h)
{
    if (k.form == WEIGHT_S8)
        return vld1q_s8((const int8_t *)w + 32 * g + 16 * h);
    if (k.form == WEIGHT_U6)
        return sixes(w + 16 * h, (uint32_t)g);
    uint8x16_t raw = vld1q_u8(w + 32 * (g / 2) + 16 * h);
    uint8x16_t v = g & 1 ? vshrq_n_u8(raw, 4) : vandq_u8(raw, vdupq_n_u8(15));
    if (k.form == WEIGHT_U5) {
        uint8x16_t bits = vld1q_u8(w + 128 + 16 * h);
        v = vorrq_u8(v, vandq_u8(shifted(bits, 4 - g), vdupq_n_u8(16)));
    }
    return vreinterpretq_s8_u8(v);
}

/* Bits `at` to at + n - 1 of each lane. */
INLINE uint32x4_t bits_of(uint32x4_t v, uint32_t at, uint32_t n)
{
    return vandq_u32(vshlq_u32(v, vdupq_n_s32(-(int32_t)at)), vdupq_n_u32((1u << n) - 1));
}

INLINE uint32x4_t bits_at(const uint8_t *w, uint32_t at, uint32_t n)
{
    return bits_of(vreinterpretq_u32_u8(vld1q_u8(w)), at, n);
}

/* Of a super-block the i'th of 16, of outputs 4 h to 4 h + 3: U6 a step's scale; others a block's
 * scale, then minimum. */
INLINE float32x4_t super_scale(const struct kind k, const uint8_t *header, uint32_t i, int h)
{
    if (k.form == WEIGHT_U6) {
        int16x8_t v = vmovl_s8(vld1_s8((const int8_t *)header + 8 * i));
        int32x4_t four = vmovl_s16(h ? vget_high_s16(v) : vget_low_s16(v));
        return vmulq_f32(vcvtq_f32_s32(four), neon_halves(header + 128 + 8 * h));
    }
    const uint8_t *w = header + 16 * h;
    uint32x4_t v;
    if (i < 15)
        v = bits_at(w + i / 5 * 32, 6 * (i % 5), 6);
    else
        v = vorrq_u32(bits_at(w, 30, 2), vorrq_u32(vshlq_n_u32(bits_at(w + 32, 30, 2), 2),
                                                   vshlq_n_u32(bits_at(w + 64, 30, 2), 4)));
    return vmulq_f32(vcvtq_f32_u32(v), neon_halves(header + (i < 8 ? 96 : 112) + 8 * h));
}

/* A super-block's scales in the order of use: of each block two. */
INLINE void expand(const struct kind k, const uint8_t *header, float (*to)[2][NEON_PANEL])
{
    UNROLL for (int i = 0; i < 16; i++)
    {
        float *one = k.form == WEIGHT_U6 ? to[i / 2][i % 2] : to[i % 8][i / 8];
        vst1q_f32(one, super_scale(k, header, (uint32_t)i, 0));
        vst1q_f32(one + 4, super_scale(k, header, (uint32_t)i, 1));
    }
}

/* A panel's block of 32 values; super: its scales, if they are a K-quant's. */
struct part {
    const uint8_t *w;
    const float (*super)[NEON_PANEL];
};

/* Scale i (or minimum) of a block, of outputs 4 h to 4 h + 3. */
INLINE float32x4_t scale(const struct kind k, const struct part at, int i, int h)
{
    return k.scales == SCALES_K ? vld1q_f32(at.super[i] + 4 * h)
                                : neon_halves(at.w + integer_bytes(k) + 16 * i + 8 * h);
}

/* The same of block b of a panel. */
INLINE float32x4_t scale_of(const struct kind k, const uint8_t *panel, uint32_t b, int i, int h)
{
    uint32_t j = b % SUPER_BLOCKS;

    if (k.scales == SCALES_K)
        return super_scale(k, block_at(k, panel, b - j) - header_bytes(k),
                           k.form == WEIGHT_U6 ? 2 * j + (uint32_t)i : 8 * (uint32_t)i + j, h);
    return scale(k, (struct part){.w = block_at(k, panel, b)}, i, h);
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

INLINE void block(const struct kind k, const struct part w, const struct neon_q8 *x, const int rows,
                  float32x4_t (*f)[2])
{
    const int steps = k.form == WEIGHT_U6 ? 2 : 1;

    UNROLL for (int step = 0; step < steps; step++)
    {
        int32x4_t a[NEON_TILE][2];
        sums(k, w.w, x, step, rows, a);
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
    else if (k.form == WEIGHT_U6)
        v = bits_of(vreinterpretq_u32_s8(sixes(w, g)), shift, 8);
    else
        v = bits_at(w + 32 * (g / 2), shift + 4 * (g & 1), 4);
    if (k.form == WEIGHT_U5)
        v = vorrq_u32(v, vshlq_n_u32(bits_at(w + 128, shift + g, 1), 4));
    return vcvtq_f32_s32(vsubq_s32(vreinterpretq_s32_u32(v), vdupq_n_s32(offset)));
}

INLINE void outlier(const struct kind k, const uint8_t *w, const struct neon_outliers *o,
                    const int rows, float32x4_t (*f)[2])
{
    for (int i = 0; i < rows; i++) {
        uint32_t b = o->k[i] / BLOCK, at = o->k[i] % BLOCK;
        for (int h = 0; h < 2; h++) {
            float32x4_t t = vmulq_n_f32(column(k, block_at(k, w, b), at, h), o->x[i]);
            f[i][h] = vfmaq_f32(f[i][h], t, scale_of(k, w, b, k.form == WEIGHT_U6 && at >= 16, h));
            if (k.has_min)
                f[i][h] = vfmaq_n_f32(f[i][h], scale_of(k, w, b, 1, h), o->x[i]);
        }
    }
}

/* All of K for a tile: y[row][8]. */
INLINE void tile(const struct kind k, const uint8_t *w, const struct neon_q8 *x,
                 const struct neon_outliers *o, uint32_t n_k, const int rows,
                 float (*y)[NEON_PANEL])
{
    float super[SUPER_BLOCKS][2][NEON_PANEL];
    const uint8_t *at = w;

    for (uint32_t s = 0; s < segment_count(n_k); s++) {
        float32x4_t f[NEON_TILE][2];
        for (int i = 0; i < rows; i++)
            f[i][0] = f[i][1] = vdupq_n_f32(0);
        for (uint32_t b = segment_end(n_k, s) / BLOCK - s * (SEGMENT / BLOCK); b > 0; b--, x++) {
            __builtin_prefetch(at + 1024);
            if (k.scales == SCALES_K && b % SUPER_BLOCKS == 0) {
                expand(k, at, super);
                at += header_bytes(k);
            }
            block(k, (struct part){at, super[-b % SUPER_BLOCKS]}, x, rows, f);
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

INSTANCES(q4_0, WEIGHT_U4, false, SCALES_F16, START_8)
INSTANCES(q4_1, WEIGHT_U4, true, SCALES_F16, -1)
INSTANCES(q4_k, WEIGHT_U4, true, SCALES_K, -1)
INSTANCES(q5_0, WEIGHT_U5, false, SCALES_F16, START_16)
INSTANCES(q5_k, WEIGHT_U5, true, SCALES_K, -1)
INSTANCES(q6_k, WEIGHT_U6, false, SCALES_K, START_32_LOW)
INSTANCES(q8_0, WEIGHT_S8, false, SCALES_F16, -1)

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
void neon_finish(const struct matmul_task *t, const float *y, uint32_t row, uint32_t output,
                 uint32_t n)
{
    const struct compute_product *p = t->product;
    float *to = matmul_y(t, row, output);

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
                neon_finish(t, y[i], row + i, output, n);
        }
}
