/* Activations in the forms of neon.h (EXACTNESS 2). */
#include "compute/cpu/arm/neon.h"

void neon_acts_layout(struct compute_acts *a)
{
    a->q8_tile_bytes = (uint64_t)a->n_blocks * sizeof(struct neon_q8);
    a->outlier_tile_bytes = (uint64_t)a->n_segments * sizeof(struct neon_outliers);
    a->i16_tile_bytes = (uint64_t)a->n_blocks * sizeof(struct neon_i16);
    a->f32_tile_bytes = (uint64_t)a->k * NEON_TILE * sizeof(float);
}

/* The segment's largest |x|, lowest index on ties. */
static uint32_t find_outlier(const float *x, uint32_t n, uint32_t *out_bits)
{
    uint32_t bits = neon_largest_bits(x, n), i = 0;

    while ((float_bits(x[i]) & 0x7FFFFFFF) != bits)
        i++;
    *out_bits = bits;
    return i;
}

static float block_scale(uint32_t largest, float factor)
{
    if (largest < SMALL_BITS)
        return 0;
    return bits_float(float_bits(bits_float(largest) * factor) & ~0xFFu);
}

INLINE int32x4_t rounded(const float *x, float32x4_t inverse)
{
    return vcvtnq_s32_f32(vmulq_f32(vld1q_f32(x), inverse));
}

static void quantise_block(const float *x, struct neon_q8 *to, uint32_t r)
{
    float d = block_scale(neon_largest_bits(x, BLOCK), 0x1.020408p-7f);
    float32x4_t inverse = vdupq_n_f32(d > 0 ? 1.0f / d : 0.0f);
    int32_t sums[2] = {0};

    for (int g = 0; g < 8; g++) {
        int32x4_t q = rounded(x + 4 * g, inverse);
        int16x4_t narrow = vmovn_s32(q);
        int8x8_t bytes = vmovn_s16(vcombine_s16(narrow, narrow));
        to->x[g][r] = vget_lane_s32(vreinterpret_s32_s8(bytes), 0);
        sums[g / 4] += vaddvq_s32(q);
    }
    to->d[r] = d;
    to->c[r] = -12582912.0f * d;
    to->s[r] = d * (float)(sums[0] + sums[1]);
    to->start[START_8][r] = MAGIC - 8 * (sums[0] + sums[1]);
    to->start[START_16][r] = MAGIC - 16 * (sums[0] + sums[1]);
    to->start[START_32_LOW][r] = MAGIC - 32 * sums[0];
    to->start[START_32_HIGH][r] = MAGIC - 32 * sums[1];
}

static bool quantise_q8(struct compute_acts *a, uint32_t row, const float *x)
{
    uint32_t r = row % NEON_TILE;
    struct neon_q8 *q = (struct neon_q8 *)(a->q8 + row / NEON_TILE * a->q8_tile_bytes);
    struct neon_outliers *o =
        (struct neon_outliers *)(a->outliers + row / NEON_TILE * a->outlier_tile_bytes);

    for (uint32_t s = 0; s < a->n_segments; s++) {
        uint32_t begin = s * SEGMENT, end = segment_end(a->k, s), bits;
        uint32_t at = begin + find_outlier(x + begin, end - begin, &bits);
        if (bits >= LIMIT_BITS)
            return false;
        o[s].k[r] = at;
        o[s].x[r] = x[at];
        for (uint32_t b = begin / BLOCK; b < end / BLOCK; b++) {
            if (b != at / BLOCK) {
                quantise_block(x + b * BLOCK, q + b, r);
                continue;
            }
            float without[BLOCK];
            memcpy(without, x + b * BLOCK, sizeof without);
            without[at % BLOCK] = 0;
            quantise_block(without, q + b, r);
        }
    }
    return true;
}

static bool quantise_i16(struct compute_acts *a, uint32_t row, const float *x)
{
    uint32_t r = row % NEON_TILE;
    struct neon_i16 *q = (struct neon_i16 *)(a->i16 + row / NEON_TILE * a->i16_tile_bytes);

    for (uint32_t b = 0; b < a->n_blocks; b++) {
        float padded[BLOCK] = {0};
        memcpy(padded, x + b * BLOCK, MIN(BLOCK, a->k - b * BLOCK) * sizeof *x);
        uint32_t largest = neon_largest_bits(padded, BLOCK);
        if (largest >= LIMIT_BITS)
            return false;
        float d = block_scale(largest, 0x1.0008p-13f);
        float32x4_t inverse = vdupq_n_f32(d > 0 ? 1.0f / d : 0.0f);
        for (int i = 0; i < BLOCK; i += 4)
            vst1_s16(q[b].x[r] + i, vmovn_s32(rounded(padded + i, inverse)));
        q[b].d[r] = d;
    }
    return true;
}

bool neon_quantise(struct compute_acts *a, uint32_t row, const float *x)
{
    if (a->forms & ACT_Q8 && !quantise_q8(a, row, x))
        return false;
    if (a->forms & ACT_I16 && !quantise_i16(a, row, x))
        return false;
    if (a->forms & ACT_F32) {
        float *to = (float *)(a->f32 + row / NEON_TILE * a->f32_tile_bytes) + row % NEON_TILE;
        if (neon_largest_bits(x, a->k) >= LIMIT_BITS)
            return false;
        for (uint32_t i = 0; i < a->k; i++)
            to[(size_t)i * NEON_TILE] = x[i];
    }
    return true;
}
