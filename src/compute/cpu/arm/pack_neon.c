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

_Static_assert(NEON_PANEL <= MAX_PANEL_OUTPUTS, "struct raw_rows holds a panel");

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

/* Super-block of each output. */
static uint8_t *put_header(const struct compute_matrix *m, const struct raw_rows *raw, uint8_t *to)
{
    if (m->form == WEIGHT_U6) {
        for (uint32_t i = 0; i < 16; i++, to += NEON_PANEL)
            memcpy(to, raw->steps[i], NEON_PANEL);
        memcpy(to, raw->super[0], 2 * NEON_PANEL);
        return to + 2 * NEON_PANEL;
    }
    for (uint32_t i = 0; i < 3; i++, to += 4 * NEON_PANEL) {
        uint32_t fields[NEON_PANEL];
        for (uint32_t o = 0; o < NEON_PANEL; o++) {
            fields[o] = (uint32_t)raw->steps[15][o] >> 2 * i << 30;
            for (uint32_t j = 0; j < 5; j++)
                fields[o] |= (uint32_t)raw->steps[5 * i + j][o] << 6 * j;
        }
        memcpy(to, fields, sizeof fields);
    }
    memcpy(to, raw->super[0], 2 * NEON_PANEL);
    memcpy(to + 2 * NEON_PANEL, raw->super[1], 2 * NEON_PANEL);
    return to + 4 * NEON_PANEL;
}

/* The byte loops are what compilers turn into vectors. t[g]: the g'th four bytes of every row. */
static void put_bits(enum weight_form form, uint8_t t[8][4 * NEON_PANEL], uint8_t *restrict to)
{
    for (int j = 0; j < 4; j++)
        for (int i = 0; i < 4 * NEON_PANEL; i++)
            to[j * 4 * NEON_PANEL + i] =
                (uint8_t)((t[2 * j][i] & 15) | (t[2 * j + 1][i] & 15) << 4);
    to += 16 * NEON_PANEL;
    for (int g = 0; form == WEIGHT_U5 && g < 8; g++)
        for (int i = 0; i < 4 * NEON_PANEL; i++)
            to[i] = (uint8_t)((g ? to[i] : 0) | t[g][i] >> 4 << g);
    for (int g = 0; form == WEIGHT_U6 && g < 8; g++)
        for (int i = 0; i < 4 * NEON_PANEL; i++) {
            uint8_t *at = to + g / 4 * 4 * NEON_PANEL + i;
            *at = (uint8_t)((g % 4 ? *at : 0) | t[g][i] >> 4 << 2 * (g % 4));
        }
}

static void put_integers(enum weight_form form, const struct raw_rows *raw, uint32_t b, uint8_t *to)
{
    uint8_t t[8][4 * NEON_PANEL];

    for (uint32_t o = 0; o < NEON_PANEL; o++)
        for (uint32_t g = 0; g < 8; g++)
            memcpy((form == WEIGHT_S8 ? to + g * 4 * NEON_PANEL : t[g]) + 4 * o,
                   raw->u[o] + b * BLOCK + 4 * g, 4);
    if (form != WEIGHT_S8)
        put_bits(form, t, to);
}

static uint8_t *put_floats(const struct raw_rows *raw, uint8_t *to)
{
    for (uint32_t k = 0; k < raw->n_values; k++)
        for (uint32_t o = 0; o < NEON_PANEL; o++, to += 4)
            memcpy(to, &raw->values[o][k], 4);
    return to;
}

uint8_t *neon_pack(const struct compute_matrix *m, const struct raw_rows *raw, uint8_t *to)
{
    if (m->form == WEIGHT_F32)
        return put_floats(raw, to);
    if (m->scales == SCALES_K)
        to = put_header(m, raw, to);
    for (uint32_t b = 0; b < raw->n_blocks; b++) {
        if (m->form == WEIGHT_I16) {
            for (uint32_t k = 0; k < BLOCK; k++)
                for (uint32_t o = 0; o < NEON_PANEL; o++)
                    memcpy(to + (k * NEON_PANEL + o) * 2, &raw->w[o][b * BLOCK + k], 2);
        } else {
            put_integers(m->form, raw, b, to);
        }
        to += integer_bytes(m->form);
        if (m->scales == SCALES_F32) {
            memcpy(to, raw->power[b], 4 * NEON_PANEL);
            to += 4 * NEON_PANEL;
        } else if (m->scales == SCALES_F16) {
            memcpy(to, raw->d[b], 2 * NEON_PANEL);
            to += 2 * NEON_PANEL;
            if (m->has_min) {
                memcpy(to, raw->m[b], 2 * NEON_PANEL);
                to += 2 * NEON_PANEL;
            }
        }
    }
    return to;
}
