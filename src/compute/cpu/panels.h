/* Weights as panels of PANEL outputs, one lane each: what x86's and Arm's packing share, and the
 * text of both. With n = PANEL, a block of 32 along k is, by form:
 *
 *   U4   four times 4 n bytes: byte (output o, i) of the j-th holds w[o][8 j + i] low and
 *        w[o][8 j + 4 + i] high
 *   U5   the same, then 4 n bytes of fifth bits: bit g of byte (o, i) belongs to w[o][4 g + i]
 *   U6   six times 4 n bytes: byte (o, i) of the g-th holds w[o][4 g + i] in its low six bits; the
 *        upper two of the first three are, highest first, w[o][24 + i], of the others w[o][28 + i]:
 *        six groups of eight come apart with a mask alone
 *   S8   eight times 4 n bytes: byte (o, i) of the g-th is w[o][4 g + i]
 *   I16  64 n bytes, in an order of the tier's own
 *
 * then the scales of the n outputs (and minima), as f16 where the file's are. K-quants have none
 * there; instead their 8 blocks of a super-block come after a header, as many bytes as the file's:
 *
 *   U4, U5  three times n dwords, each with five of the 8 scales and 7 minima in its bits 0 to 29;
 *           the eighth minimum lies in the bits 30 and 31, lowest bits first; then d, -dmin as f16
 *   U6      16 times n int8 scales, then d as f16
 *
 * F32: n outputs for each k. */
_Static_assert(PANEL <= MAX_PANEL_OUTPUTS, "struct raw_rows holds a panel");

static uint32_t integer_bytes(enum weight_form form)
{
    switch (form) {
    case WEIGHT_U4:
        return 16 * PANEL;
    case WEIGHT_U5:
        return 20 * PANEL;
    case WEIGHT_U6:
        return 24 * PANEL;
    case WEIGHT_S8:
        return 32 * PANEL;
    default:
        return 64 * PANEL;
    }
}

static uint32_t block_bytes(const struct compute_matrix *m)
{
    return integer_bytes(m->form) + (m->scales == SCALES_K     ? 0
                                     : m->scales == SCALES_F16 ? (m->has_min ? 4 : 2) * PANEL
                                                               : 4 * PANEL);
}

static uint32_t header_bytes(const struct compute_matrix *m)
{
    return (m->form == WEIGHT_U6 ? 18 : 16) * PANEL;
}

static uint64_t panel_bytes(const struct compute_matrix *m)
{
    uint64_t headers =
        m->scales == SCALES_K ? (uint64_t)m->n_blocks / SUPER_BLOCKS * header_bytes(m) : 0;

    return m->form == WEIGHT_F32 ? (uint64_t)m->k * 4 * PANEL
                                 : (uint64_t)m->n_blocks * block_bytes(m) + headers;
}

/* Super-block of each output. */
static uint8_t *put_header(const struct compute_matrix *m, const struct raw_rows *raw, uint8_t *to)
{
    if (m->form == WEIGHT_U6) {
        for (uint32_t i = 0; i < 16; i++, to += PANEL)
            memcpy(to, raw->steps[i], PANEL);
        memcpy(to, raw->super[0], 2 * PANEL);
        return to + 2 * PANEL;
    }
    for (uint32_t i = 0; i < 3; i++, to += 4 * PANEL) {
        uint32_t fields[PANEL];
        for (uint32_t o = 0; o < PANEL; o++) {
            fields[o] = (uint32_t)raw->steps[15][o] >> 2 * i << 30;
            for (uint32_t j = 0; j < 5; j++)
                fields[o] |= (uint32_t)raw->steps[5 * i + j][o] << 6 * j;
        }
        memcpy(to, fields, sizeof fields);
    }
    memcpy(to, raw->super[0], 2 * PANEL);
    memcpy(to + 2 * PANEL, raw->super[1], 2 * PANEL);
    return to + 4 * PANEL;
}

/* Of block b, where they are not a K-quant's. */
static inline uint8_t *put_scales(const struct compute_matrix *m, const struct raw_rows *raw,
                                  uint32_t b, uint8_t *to)
{
    if (m->scales == SCALES_F32) {
        memcpy(to, raw->power[b], 4 * PANEL);
        to += 4 * PANEL;
    } else if (m->scales == SCALES_F16) {
        memcpy(to, raw->d[b], 2 * PANEL);
        to += 2 * PANEL;
        if (m->has_min) {
            memcpy(to, raw->m[b], 2 * PANEL);
            to += 2 * PANEL;
        }
    }
    return to;
}

static uint8_t *put_floats(const struct raw_rows *raw, uint8_t *to)
{
    for (uint32_t k = 0; k < raw->n_values; k++)
        for (uint32_t o = 0; o < PANEL; o++, to += 4)
            memcpy(to, &raw->values[o][k], 4);
    return to;
}
