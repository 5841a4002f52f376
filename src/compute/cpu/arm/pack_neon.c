/* Weights as panels of 8 outputs. A block of 32 along k is, by form:
 *   U4   four times 32 bytes: byte (output o, i) of the j-th holds w[o][8 j + i] low and
 *        w[o][8 j + 4 + i] high
 *   U5   the same, then 32 bytes of fifth bits: bit g of byte (o, i) belongs to w[o][4 g + i]
 *   U6   the same, then twice 32 bytes of two upper bits: bits 2 (g mod 4) of byte (o, i) in the
 *        (g / 4)th
 *   S8   eight times 32 bytes: byte (o, i) of the g-th is w[o][4 g + i]
 *   I16  32 times 8 outputs
 * then the scales of the 8 outputs (and minima), as f16 where the file's are. K-quants have none
 * there; instead their 8 blocks of a super-block come after a header, as many bytes as the file's:
 *   U4, U5  three times 8 dwords, each with five of the 8 scales and 7 minima in its bits 0 to 29;
 *           the eighth minimum lies in the bits 30 and 31, lowest bits first; then d, -dmin as f16
 *   U6      16 times 8 int8 scales, then d as f16
 * F32: 8 outputs for each k. */
#include "compute/cpu/arm/neon.h"

static uint32_t integer_bytes(enum weight_form form)
{
    switch (form) {
    case WEIGHT_U4:
        return 128;
    case WEIGHT_U5:
        return 160;
    case WEIGHT_U6:
        return 192;
    case WEIGHT_S8:
        return 256;
    default:
        return 512;
    }
}

static uint32_t block_bytes(const struct compute_matrix *m)
{
    return integer_bytes(m->form) + (m->scales == SCALES_K     ? 0
                                     : m->scales == SCALES_F16 ? (m->has_min ? 4 : 2) * NEON_PANEL
                                                               : 4 * NEON_PANEL);
}

static uint32_t header_bytes(const struct compute_matrix *m)
{
    return (m->form == WEIGHT_U6 ? 18 : 16) * NEON_PANEL;
}

uint64_t neon_panel_bytes(const struct compute_matrix *m)
{
    uint64_t headers =
        m->scales == SCALES_K ? (uint64_t)m->n_blocks / SUPER_BLOCKS * header_bytes(m) : 0;

    return m->form == WEIGHT_F32 ? (uint64_t)m->k * 4 * NEON_PANEL
                                 : (uint64_t)m->n_blocks * block_bytes(m) + headers;
}

static void put_scales(uint8_t *to, const float *from, size_t stride, bool half)
{
    for (int o = 0; o < NEON_PANEL; o++) {
        float x = from[o * stride];
        uint16_t h = half ? float_to_half(x) : 0;
        memcpy(to + o * (half ? 2 : 4), half ? (void *)&h : (void *)&x, half ? 2 : 4);
    }
}

/* Super-block s of each output. */
static void put_header(const struct compute_matrix *m, const struct raw_rows *raw, uint32_t s,
                       uint8_t *to)
{
    uint32_t factors = m->form == WEIGHT_U6 ? 1 : 2;
    uint8_t *super = to + header_bytes(m) - factors * 2 * NEON_PANEL;

    for (uint32_t o = 0; o < NEON_PANEL; o++) {
        const uint8_t *steps = raw->steps + ((size_t)o * m->n_blocks + s * SUPER_BLOCKS) * 2;
        const uint16_t *from = raw->super + ((size_t)o * (m->n_blocks / SUPER_BLOCKS) + s) * 2;
        for (uint32_t i = 0; i < factors; i++)
            memcpy(super + (i * NEON_PANEL + o) * 2, from + i, 2);
        if (m->form == WEIGHT_U6) {
            for (uint32_t i = 0; i < 16; i++)
                to[i * NEON_PANEL + o] = steps[i];
            continue;
        }
        for (uint32_t i = 0; i < 3; i++) {
            uint32_t fields = (uint32_t)steps[15] >> 2 * i << 30;
            for (uint32_t j = 0; j < 5; j++)
                fields |= (uint32_t)steps[5 * i + j] << 6 * j;
            memcpy(to + (i * NEON_PANEL + o) * 4, &fields, 4);
        }
    }
}

static void put_value(const struct compute_matrix *m, uint32_t o, uint32_t k, int16_t w,
                      uint8_t *to)
{
    uint32_t g = k / 4, at = 4 * o + k % 4, u = (uint32_t)(w + m->offset);

    switch (m->form) {
    case WEIGHT_I16:
        memcpy(to + (k * NEON_PANEL + o) * 2, &w, 2);
        return;
    case WEIGHT_S8:
        to[g * 32 + at] = (uint8_t)w;
        return;
    case WEIGHT_U5:
        to[128 + at] |= (uint8_t)(u >> 4 << g);
        break;
    case WEIGHT_U6:
        to[128 + g / 4 * 32 + at] |= (uint8_t)(u >> 4 << 2 * (g & 3));
        break;
    default:
        break;
    }
    to[g / 2 * 32 + at] |= (uint8_t)((u & 15) << 4 * (g & 1));
}

void neon_pack(const struct compute_matrix *m, const struct raw_rows *raw, uint8_t *to)
{
    const bool half = m->scales == SCALES_F16;
    uint32_t bytes = block_bytes(m);
    size_t stride = (size_t)m->n_blocks * 2;

    if (m->form == WEIGHT_F32) {
        float *f = (float *)to;
        for (uint32_t k = 0; k < m->k; k++)
            for (uint32_t o = 0; o < NEON_PANEL; o++)
                f[k * NEON_PANEL + o] = raw->values[(size_t)o * raw->stride + k];
        return;
    }
    for (uint32_t b = 0; b < m->n_blocks; b++, to += bytes) {
        if (m->scales == SCALES_K && b % SUPER_BLOCKS == 0) {
            put_header(m, raw, b / SUPER_BLOCKS, to);
            to += header_bytes(m);
        }
        memset(to, 0, integer_bytes(m->form));
        for (uint32_t o = 0; o < NEON_PANEL; o++)
            for (uint32_t k = 0; k < BLOCK; k++)
                put_value(m, o, k, raw->w[(size_t)o * raw->stride + b * BLOCK + k], to);
        if (m->scales == SCALES_K)
            continue;
        uint8_t *scales = to + integer_bytes(m->form);
        put_scales(scales, raw->d + b, stride, half);
        if (m->has_min)
            put_scales(scales + (half ? 2 : 4) * NEON_PANEL, raw->m + b, m->n_blocks, half);
    }
}
