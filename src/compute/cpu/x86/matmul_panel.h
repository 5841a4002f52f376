/* How kernels read a panel of packed weights: where its blocks are, their integers and their
 * scales.
 *
 * Text of matmul.h and of matmul_avx2.c, in the words of vector512.h or vector256.h. Each says
 * before it UNPACKED_S8_BYTES, of a block of 8-bit weights once it is unpacked. */

#include "compute/cpu/x86/prefetch.h"

/* What a kernel is made for; always a constant, so that each instance keeps only its own path. */
struct kind {
    enum weight_form form;
    bool has_min;
    enum scale_form scales;
    bool unpacked; /* a block is 8 vectors of bytes (or UNPACKED_S8 of bits), 2 of f32 scales */
    int start; /* which of the activations' 32-bit starts, or -1: 0x4B400000 alone, for there is no
                  offset or the sums took it off before */
};

INLINE uint32_t integer_bytes(const struct kind k)
{
    return k.unpacked && k.form == WEIGHT_S8   ? UNPACKED_S8_BYTES
           : k.unpacked || k.form == WEIGHT_S8 ? 8 * LANE_BYTES
           : k.form == WEIGHT_U4               ? 4 * LANE_BYTES
           : k.form == WEIGHT_U5               ? 5 * LANE_BYTES
                                               : 6 * LANE_BYTES;
}

INLINE uint32_t block_bytes(const struct kind k)
{
    uint32_t scale_bytes = k.scales == SCALES_K ? 0 : (k.has_min ? 4 : 2) * LANES;

    return integer_bytes(k) + (k.unpacked ? 2 * LANE_BYTES : scale_bytes);
}

/* Of a super-block, before its blocks. */
INLINE uint32_t header_bytes(const struct kind k)
{
    return k.scales != SCALES_K ? 0 : (k.form == WEIGHT_U6 ? 18 : 16) * LANES;
}

/* Where block b begins. */
INLINE const uint8_t *block_at(const struct kind k, const uint8_t *w, uint32_t b)
{
    return w + b * block_bytes(k) +
           (k.scales == SCALES_K ? (b / SUPER_BLOCKS + 1) * header_bytes(k) : 0);
}

/* Group g of U6: six bits, or what is above those of three vectors. */
INLINE lanes_i sixes(const uint8_t *w, uint32_t g)
{
    const lanes_i top = I_SET8(-64);

    if (g < 6)
        return I_AND(I_LOAD(w + g * LANE_BYTES), I_SET8(63));
    w += (g - 6) * 3 * LANE_BYTES;
    lanes_i v = I_SHIFT_RIGHT16(I_AND(I_LOAD(w), top), 2);
    v = I_OR(v, I_SHIFT_RIGHT16(I_AND(I_LOAD(w + LANE_BYTES), top), 4));
    return I_OR(v, I_SHIFT_RIGHT16(I_AND(I_LOAD(w + 2 * LANE_BYTES), top), 6));
}

/* The outputs' values 4 g to 4 g + 3 of a block. */
INLINE lanes_i group(const struct kind k, const uint8_t *w, int g)
{
    if (k.unpacked || k.form == WEIGHT_S8)
        return I_LOAD(w + g * LANE_BYTES);
    if (k.form == WEIGHT_U6)
        return sixes(w, (uint32_t)g);
    lanes_i raw = I_LOAD(w + g / 2 * LANE_BYTES);
    lanes_i v = I_AND(g & 1 ? I_SHIFT_RIGHT16(raw, 4) : raw, I_SET8(15));
    if (k.form == WEIGHT_U5) {
        lanes_i bits = I_LOAD(w + 4 * LANE_BYTES);
        bits = g < 4 ? I_SHIFT_LEFT16(bits, 4 - g) : I_SHIFT_RIGHT16(bits, g - 4);
        v = I_OR(v, I_AND(bits, I_SET8(16)));
    }
    return v;
}

/* Of a super-block the i'th of 16: U6 a step's scale; others a block's scale, then minimum. */
INLINE lanes_f super_scale(const struct kind k, const uint8_t *header, uint32_t i)
{
    lanes_i v;

    if (k.form == WEIGHT_U6)
        return F_MUL(I_TO_F(I_LOAD_INT8(header + i * LANES)), F_LOAD_HALVES(header + 16 * LANES));
    if (i < 15) {
        v = I_SHIFT_RIGHT32(I_LOAD(header + i / 5 * LANE_BYTES), 6 * (i % 5));
        v = I_AND(v, I_SET32(63));
    } else {
        v = I_SHIFT_RIGHT32(I_LOAD(header), 30);
        for (int j = 1; j < 3; j++) {
            lanes_i two = I_SHIFT_RIGHT32(I_LOAD(header + j * LANE_BYTES), 30);
            v = I_OR(v, I_SHIFT_LEFT32(two, 2 * j));
        }
    }
    return F_MUL(I_TO_F(v), F_LOAD_HALVES(header + (i < 8 ? 12 : 14) * LANES));
}

/* A super-block's scales in the order of use: of each block two. */
INLINE void expand(const struct kind k, const uint8_t *header, float (*to)[2][LANES])
{
    UNROLL for (int i = 0; i < 16; i++)
    {
        float *one = k.form == WEIGHT_U6 ? to[i / 2][i % 2] : to[i % 8][i / 8];
        F_STORE(one, super_scale(k, header, (uint32_t)i));
    }
}

/* A panel's block of 32 values; super: its scales, if they are a K-quant's. */
struct part {
    const uint8_t *w;
    const float (*super)[LANES];
};

/* Scale i (or minimum) of a block. */
INLINE lanes_f scale(const struct kind k, const struct part at, int i)
{
    const uint8_t *w = at.w + integer_bytes(k);

    if (k.scales == SCALES_K)
        return F_LOAD(at.super[i]);
    return k.scales == SCALES_F16 ? F_LOAD_HALVES(w + i * 2 * LANES)
                                  : F_LOAD((const float *)(w + i * LANE_BYTES));
}

/* The same of block b of a panel. */
INLINE lanes_f scale_of(const struct kind k, const uint8_t *panel, uint32_t b, int i)
{
    uint32_t j = b % SUPER_BLOCKS;

    if (k.scales == SCALES_K)
        return super_scale(k, block_at(k, panel, b - j) - header_bytes(k),
                           k.form == WEIGHT_U6 ? 2 * j + (uint32_t)i : 8 * (uint32_t)i + j);
    return scale(k, (struct part){.w = block_at(k, panel, b)}, i);
}
