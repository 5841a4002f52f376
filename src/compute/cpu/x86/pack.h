/* Weights as panels of PANEL outputs, one lane each: the text of pack_avx2.c and its like.
 * With n = PANEL, a block of 32 along k is, by form:
 *   U4   four times 4 n bytes: byte (output o, i) of the j-th holds w[o][8 j + i] low and
 *        w[o][8 j + 4 + i] high
 *   U5   the same, then 4 n bytes of fifth bits: bit g of byte (o, i) belongs to w[o][4 g + i]
 *   U6   the same, then twice 4 n bytes of two upper bits: bits 2 (g mod 4) of byte (o, i) in the
 *        (g / 4)th
 *   S8   eight times 4 n bytes, plus S8_OFFSET
 *   I16  16 times 4 n bytes: pairs of each output
 * then the scales of the n outputs (and minima), as f16 where the file's are. K-quants have none
 * there; instead their 8 blocks of a super-block come after a header, as many bytes as the file's:
 *   U4, U5  three times n dwords, each with five of the 8 scales and 7 minima in its bits 0 to 29;
 *           the eighth minimum lies in the bits 30 and 31, lowest bits first; then d, -dmin as f16
 *   U6      16 times n int8 scales, then d as f16
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

uint64_t X86(panel_bytes)(const struct compute_matrix *m)
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

/* Of 32 bytes of each of 8 rows: t[g] has the g'th four bytes of every row. */
INLINE void transpose_8_rows(const void *from, size_t stride, __m256i t[8])
{
    const uint8_t *row = from;

    UNROLL
    for (int half = 0; half < 2; half++, row += 16, t += 4) {
        __m256i r[4];
        UNROLL
        for (int o = 0; o < 4; o++)
            r[o] = _mm256_inserti128_si256(
                _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(row + o * stride))),
                _mm_loadu_si128((const __m128i *)(row + (o + 4) * stride)), 1);
        __m256i low01 = _mm256_unpacklo_epi32(r[0], r[1]),
                low23 = _mm256_unpacklo_epi32(r[2], r[3]),
                high01 = _mm256_unpackhi_epi32(r[0], r[1]),
                high23 = _mm256_unpackhi_epi32(r[2], r[3]);
        t[0] = _mm256_unpacklo_epi64(low01, low23);
        t[1] = _mm256_unpackhi_epi64(low01, low23);
        t[2] = _mm256_unpacklo_epi64(high01, high23);
        t[3] = _mm256_unpackhi_epi64(high01, high23);
    }
}

/* The g'th four bytes of 8 outputs. */
INLINE void put(uint8_t *to, uint32_t g, __m256i v)
{
    _mm256_storeu_si256((__m256i *)(to + g * 4 * PANEL), v);
}

/* Nibbles of 4-, 5- and 6-bit weights, two groups a byte, and what is above them. */
INLINE void put_bits(const enum weight_form form, const __m256i t[8], uint8_t *to)
{
    const __m256i low = _mm256_set1_epi8(15), upper = _mm256_set1_epi8(form == WEIGHT_U5 ? 1 : 3);
    __m256i above[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};

    UNROLL
    for (uint32_t j = 0; j < 4; j++)
        put(to, j,
            _mm256_or_si256(_mm256_and_si256(t[2 * j], low),
                            _mm256_slli_epi32(_mm256_and_si256(t[2 * j + 1], low), 4)));
    if (form == WEIGHT_U4)
        return;
    UNROLL
    for (int g = 0; g < 8; g++) {
        __m256i v = _mm256_and_si256(_mm256_srli_epi32(t[g], 4), upper);
        if (form == WEIGHT_U5)
            above[0] = _mm256_or_si256(above[0], _mm256_slli_epi32(v, g));
        else
            above[g / 4] = _mm256_or_si256(above[g / 4], _mm256_slli_epi32(v, 2 * (g & 3)));
    }
    put(to, 4, above[0]);
    if (form == WEIGHT_U6)
        put(to, 5, above[1]);
}

/* Block b of 8 outputs from o on. */
INLINE void put_integers(const enum weight_form form, const struct raw_rows *raw, uint32_t b,
                         uint32_t o, uint8_t *to)
{
    __m256i t[8];

    if (form == WEIGHT_I16) {
        UNROLL
        for (uint32_t half = 0; half < 2; half++) {
            transpose_8_rows(raw->w[o] + b * BLOCK + 16 * half, sizeof raw->w[0], t);
            UNROLL
            for (uint32_t g = 0; g < 8; g++)
                put(to, 8 * half + g, t[g]);
        }
        return;
    }
    transpose_8_rows(raw->u[o] + b * BLOCK, sizeof raw->u[0], t);
    if (form != WEIGHT_S8) {
        put_bits(form, t, to);
        return;
    }
    UNROLL
    for (uint32_t g = 0; g < 8; g++)
        put(to, g, _mm256_add_epi8(t[g], _mm256_set1_epi8((char)S8_OFFSET)));
}

INLINE uint8_t *put_blocks(const enum weight_form form, const struct compute_matrix *m,
                           const struct raw_rows *raw, uint8_t *to)
{
    for (uint32_t b = 0; b < raw->n_blocks; b++) {
        for (uint32_t o = 0; o < PANEL; o += 8)
            put_integers(form, raw, b, o, to + 4 * o);
        to += integer_bytes(form);
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

uint8_t *X86(pack)(const struct compute_matrix *m, const struct raw_rows *raw, uint8_t *to)
{
    if (m->scales == SCALES_K)
        to = put_header(m, raw, to);
    switch (m->form) {
    case WEIGHT_U4:
        return put_blocks(WEIGHT_U4, m, raw, to);
    case WEIGHT_U5:
        return put_blocks(WEIGHT_U5, m, raw, to);
    case WEIGHT_U6:
        return put_blocks(WEIGHT_U6, m, raw, to);
    case WEIGHT_S8:
        return put_blocks(WEIGHT_S8, m, raw, to);
    case WEIGHT_I16:
        return put_blocks(WEIGHT_I16, m, raw, to);
    default:
        return put_floats(raw, to);
    }
}
