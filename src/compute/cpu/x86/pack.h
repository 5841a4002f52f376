/* Panels by vectors (compute/cpu/panels.h): the text of pack_avx2.c and its like. S8_OFFSET is
 * added to 8-bit weights; I16 is 16 times 4 PANEL bytes, pairs of each output. */
#include "compute/cpu/panels.h"

uint64_t X86(panel_bytes)(const struct compute_matrix *m)
{
    return panel_bytes(m);
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

/* Six groups of 6-bit weights, and two more above them, two bits in each of three. */
INLINE void put_sixes(const __m256i t[8], uint8_t *to)
{
    const __m256i top = _mm256_set1_epi8(-64);

    UNROLL
    for (uint32_t g = 0; g < 6; g++) {
        __m256i above = _mm256_slli_epi32(t[6 + g / 3], 2 + 2 * (int)(g % 3));
        put(to, g, _mm256_or_si256(t[g], _mm256_and_si256(above, top)));
    }
}

/* Nibbles of 4- and 5-bit weights, two groups a byte, and the fifth bits. */
INLINE void put_bits(const enum weight_form form, const __m256i t[8], uint8_t *to)
{
    const __m256i low = _mm256_set1_epi8(15), one = _mm256_set1_epi8(1);
    __m256i above = _mm256_setzero_si256();

    UNROLL
    for (uint32_t j = 0; j < 4; j++)
        put(to, j,
            _mm256_or_si256(_mm256_and_si256(t[2 * j], low),
                            _mm256_slli_epi32(_mm256_and_si256(t[2 * j + 1], low), 4)));
    if (form == WEIGHT_U4)
        return;
    UNROLL
    for (int g = 0; g < 8; g++) {
        __m256i v = _mm256_and_si256(_mm256_srli_epi32(t[g], 4), one);
        above = _mm256_or_si256(above, _mm256_slli_epi32(v, g));
    }
    put(to, 4, above);
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
    if (form == WEIGHT_U6) {
        put_sixes(t, to);
        return;
    }
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
        to = put_scales(m, raw, b, to + integer_bytes(form));
    }
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
