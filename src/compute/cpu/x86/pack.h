/* Weights as panels of PANEL outputs, one lane each: the text of pack_avx2.c and pack_avx512vnni.c.
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

static void put_scales(uint8_t *to, const float *from, size_t stride, bool half)
{
    for (int o = 0; o < PANEL; o++) {
        float x = from[o * stride];
        uint16_t h = (uint16_t)_cvtss_sh(x, 0); /* exact where it is used: the file has f16 */
        memcpy(to + o * (half ? 2 : 4), half ? (void *)&h : (void *)&x, half ? 2 : 4);
    }
}

/* Super-block s of each output. */
static void put_header(const struct compute_matrix *m, const struct raw_rows *raw, uint32_t s,
                       uint8_t *to)
{
    uint32_t factors = m->form == WEIGHT_U6 ? 1 : 2;
    uint8_t *super = to + header_bytes(m) - factors * 2 * PANEL;

    for (uint32_t o = 0; o < PANEL; o++) {
        const uint8_t *steps = raw->steps + ((size_t)o * m->n_blocks + s * SUPER_BLOCKS) * 2;
        const uint16_t *from = raw->super + ((size_t)o * (m->n_blocks / SUPER_BLOCKS) + s) * 2;
        for (uint32_t i = 0; i < factors; i++)
            memcpy(super + (i * PANEL + o) * 2, from + i, 2);
        if (m->form == WEIGHT_U6) {
            for (uint32_t i = 0; i < 16; i++)
                to[i * PANEL + o] = steps[i];
            continue;
        }
        for (uint32_t i = 0; i < 3; i++) {
            uint32_t fields = (uint32_t)steps[15] >> 2 * i << 30;
            for (uint32_t j = 0; j < 5; j++)
                fields |= (uint32_t)steps[5 * i + j] << 6 * j;
            memcpy(to + (i * PANEL + o) * 4, &fields, 4);
        }
    }
}

/* An output's 32 integers, with the offset back, as bytes. */
static __m256i as_bytes(const int16_t *w, int32_t offset)
{
    const __m256i *from = (const __m256i *)w;
    __m256i add = _mm256_set1_epi8((char)offset);
    __m256i v = _mm256_packs_epi16(_mm256_loadu_si256(from), _mm256_loadu_si256(from + 1));

    return _mm256_add_epi8(_mm256_permute4x64_epi64(v, 0xD8), add);
}

/* Nibbles of 4-, 5- and 6-bit weights, the two groups of a byte together: of each 8 values those of
 * the upper four come to lie above those of the lower four. */
static void put_nibbles(const int16_t *w, uint32_t stride, int32_t offset, uint8_t *to)
{
    for (uint32_t o = 0; o < PANEL; o++, w += stride) {
        __m256i v = _mm256_and_si256(as_bytes(w, offset), _mm256_set1_epi8(15));
        _Alignas(32) uint32_t both[8];
        _mm256_store_si256((__m256i *)both, _mm256_or_si256(v, _mm256_srli_epi64(v, 28)));
        for (uint32_t j = 0; j < 4; j++)
            memcpy(to + j * 4 * PANEL + o * 4, &both[2 * j], 4);
    }
}

static void put_upper_bits(enum weight_form form, const int16_t *w, uint32_t stride, int32_t offset,
                           uint8_t *to)
{
    for (uint32_t o = 0; o < PANEL; o++, w += stride) {
        __m256i v = _mm256_srli_epi16(as_bytes(w, offset), 4);
        _Alignas(32) uint32_t u[8], both[2];
        _mm256_store_si256((__m256i *)u, _mm256_and_si256(v, _mm256_set1_epi8(3)));
        if (form == WEIGHT_U5) {
            both[0] = u[0] | u[1] << 1 | u[2] << 2 | u[3] << 3 | u[4] << 4 | u[5] << 5 | u[6] << 6 |
                      u[7] << 7;
        } else {
            both[0] = u[0] | u[1] << 2 | u[2] << 4 | u[3] << 6;
            both[1] = u[4] | u[5] << 2 | u[6] << 4 | u[7] << 6;
            memcpy(to + 4 * PANEL + o * 4, &both[1], 4);
        }
        memcpy(to + o * 4, &both[0], 4);
    }
}

static void put_integers(enum weight_form form, const int16_t *w, uint32_t stride, int32_t offset,
                         uint8_t *to)
{
    if (form == WEIGHT_I16) {
        for (uint32_t o = 0; o < PANEL; o++)
            for (uint32_t k = 0; k < BLOCK; k += 2)
                memcpy(to + k / 2 * 4 * PANEL + o * 4, w + (size_t)o * stride + k, 4);
        return;
    }
    if (form == WEIGHT_S8) {
        for (uint32_t o = 0; o < PANEL; o++) {
            _Alignas(32) uint32_t groups[8];
            _mm256_store_si256((__m256i *)groups, as_bytes(w + (size_t)o * stride, S8_OFFSET));
            for (uint32_t g = 0; g < 8; g++)
                memcpy(to + g * 4 * PANEL + o * 4, &groups[g], 4);
        }
        return;
    }
    put_nibbles(w, stride, offset, to);
    if (form != WEIGHT_U4)
        put_upper_bits(form, w, stride, offset, to + 16 * PANEL);
}

void X86(pack)(const struct compute_matrix *m, const struct raw_rows *raw, uint8_t *to)
{
    const bool half = m->scales == SCALES_F16;
    uint32_t bytes = block_bytes(m);
    size_t stride = (size_t)m->n_blocks * 2;

    if (m->form == WEIGHT_F32) {
        float *f = (float *)to;
        for (uint32_t k = 0; k < m->k; k++)
            for (uint32_t o = 0; o < PANEL; o++)
                f[k * PANEL + o] = raw->values[(size_t)o * raw->stride + k];
        return;
    }
    for (uint32_t b = 0; b < m->n_blocks; b++, to += bytes) {
        if (m->scales == SCALES_K && b % SUPER_BLOCKS == 0) {
            put_header(m, raw, b / SUPER_BLOCKS, to);
            to += header_bytes(m);
        }
        put_integers(m->form, raw->w + b * BLOCK, raw->stride, m->offset, to);
        if (m->scales == SCALES_K)
            continue;
        uint8_t *scales = to + integer_bytes(m->form);
        put_scales(scales, raw->d + b, stride, half);
        if (m->has_min)
            put_scales(scales + (half ? 2 : 4) * PANEL, raw->m + b, m->n_blocks, half);
    }
}
