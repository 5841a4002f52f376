/* Weights as panels of 8 outputs. A block of 32 along k is, by form:
 *   U4   four times 32 bytes: byte (output o, i) of the j-th holds w[o][8 j + i] low and
 *        w[o][8 j + 4 + i] high
 *   U5   the same, then 32 bytes of fifth bits: bit g of byte (o, i) belongs to w[o][4 g + i]
 *   U6   the same, then twice 32 bytes of two upper bits: bits 2 (g mod 4) of byte (o, i) in the
 *        (g / 4)th
 *   S8   eight times 32 bytes: byte (o, i) of the g-th is w[o][4 g + i]
 *   I16  32 times 8 outputs
 * then the scales of the 8 outputs (U6: of both halves; minima), as f16 where the file's are.
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
    uint32_t scales = m->form == WEIGHT_U6 || m->has_min ? 2 : 1;

    return integer_bytes(m->form) + scales * (m->half_scales ? 2 : 4) * NEON_PANEL;
}

uint64_t neon_panel_bytes(const struct compute_matrix *m)
{
    return m->form == WEIGHT_F32 ? (uint64_t)m->k * 4 * NEON_PANEL
                                 : (uint64_t)m->n_blocks * block_bytes(m);
}

static void put_scales(uint8_t *to, const float *from, size_t stride, bool half)
{
    for (int o = 0; o < NEON_PANEL; o++) {
        float x = from[o * stride];
        uint16_t h = half ? float_to_half(x) : 0;
        memcpy(to + o * (half ? 2 : 4), half ? (void *)&h : (void *)&x, half ? 2 : 4);
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
    uint32_t scale_bytes = (m->half_scales ? 2 : 4) * NEON_PANEL, bytes = block_bytes(m);
    size_t stride = (size_t)m->n_blocks * 2;

    if (m->form == WEIGHT_F32) {
        float *f = (float *)to;
        for (uint32_t k = 0; k < m->k; k++)
            for (uint32_t o = 0; o < NEON_PANEL; o++)
                f[k * NEON_PANEL + o] = raw->values[(size_t)o * raw->stride + k];
        return;
    }
    for (uint32_t b = 0; b < m->n_blocks; b++, to += bytes) {
        uint8_t *scales = to + integer_bytes(m->form);
        memset(to, 0, integer_bytes(m->form));
        for (uint32_t o = 0; o < NEON_PANEL; o++)
            for (uint32_t k = 0; k < BLOCK; k++)
                put_value(m, o, k, raw->w[(size_t)o * raw->stride + b * BLOCK + k], to);
        if (m->form == WEIGHT_U6) {
            put_scales(scales, raw->d + 2 * b, stride, false);
            put_scales(scales + scale_bytes, raw->d + 2 * b + 1, stride, false);
        } else {
            put_scales(scales, raw->d + b, stride, m->half_scales);
            if (m->has_min)
                put_scales(scales + scale_bytes, raw->m + b, m->n_blocks, m->half_scales);
        }
    }
}
