/* Panels of 8 outputs (compute/cpu/panels.h); I16 is 32 times 8 outputs. */
#include "compute/cpu/arm/neon.h"

#define PANEL NEON_PANEL
#include "compute/cpu/panels.h"

uint64_t neon_panel_bytes(const struct compute_matrix *m)
{
    return panel_bytes(m);
}

/* The byte loops are what compilers turn into vectors. t[g]: the g'th four bytes of every row. */
static void put_bits(enum weight_form form, uint8_t t[8][4 * PANEL], uint8_t *restrict to)
{
    for (int j = 0; j < 4; j++)
        for (int i = 0; i < 4 * PANEL; i++)
            to[j * 4 * PANEL + i] = (uint8_t)((t[2 * j][i] & 15) | (t[2 * j + 1][i] & 15) << 4);
    to += 16 * PANEL;
    for (int g = 0; form == WEIGHT_U5 && g < 8; g++)
        for (int i = 0; i < 4 * PANEL; i++)
            to[i] = (uint8_t)((g ? to[i] : 0) | t[g][i] >> 4 << g);
}

/* Six groups of 6-bit weights, and two more above them, two bits in each of three. */
static void put_sixes(uint8_t t[8][4 * PANEL], uint8_t *restrict to)
{
    for (int g = 0; g < 6; g++)
        for (int i = 0; i < 4 * PANEL; i++)
            to[g * 4 * PANEL + i] =
                (uint8_t)(t[g][i] | (t[6 + g / 3][i] << (2 + 2 * (g % 3)) & 192));
}

static void put_integers(enum weight_form form, const struct raw_rows *raw, uint32_t b, uint8_t *to)
{
    uint8_t t[8][4 * PANEL];

    for (uint32_t o = 0; o < PANEL; o++)
        for (uint32_t g = 0; g < 8; g++)
            memcpy((form == WEIGHT_S8 ? to + g * 4 * PANEL : t[g]) + 4 * o,
                   raw->u[o] + b * BLOCK + 4 * g, 4);
    if (form == WEIGHT_U6)
        put_sixes(t, to);
    else if (form != WEIGHT_S8)
        put_bits(form, t, to);
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
                for (uint32_t o = 0; o < PANEL; o++)
                    memcpy(to + (k * PANEL + o) * 2, &raw->w[o][b * BLOCK + k], 2);
        } else {
            put_integers(m->form, raw, b, to);
        }
        to = put_scales(m, raw, b, to + integer_bytes(m->form));
    }
    return to;
}
