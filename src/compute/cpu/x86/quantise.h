/* Activations in the forms of avx2.h (EXACTNESS 2): the text of quantise_avx2.c, quantise_avxvnni.c
 * and quantise_avx512.c. Each says before it X86(name); TILE; X86_WIDE if the tier also reads 8-bit
 * integers as 16 bits; X86_STARTS_16 if it starts sums of 16 bits (enum avx2_start). Eight lanes
 * are enough: quantising is a fiftieth of a step. */
#ifdef X86_WIDE
#define WIDE_BYTES(a) ((a)->forms & ACT_Q8_WIDE ? sizeof(struct X86(wide)) : 0)
#else
#define WIDE_BYTES(a) 0
#endif

void X86(acts_layout)(struct compute_acts *a)
{
    a->q8_tile_bytes = (uint64_t)a->n_blocks * (sizeof(struct X86(q8)) + WIDE_BYTES(a));
    a->outlier_tile_bytes = (uint64_t)a->n_segments * sizeof(struct X86(outliers));
    a->i16_tile_bytes = (uint64_t)a->n_blocks * sizeof(struct X86(i16));
    a->f32_tile_bytes = (uint64_t)a->k * TILE * sizeof(float);
}

/* The segment's largest |x|, lowest index on ties. n is a multiple of 32. */
static uint32_t find_outlier(const float *x, uint32_t n, uint32_t *out_bits)
{
    __m256i m[4] = {avx2_abs_bits(x), avx2_abs_bits(x + 8), avx2_abs_bits(x + 16),
                    avx2_abs_bits(x + 24)};

    for (uint32_t i = 32; i < n; i += 32)
        for (int j = 0; j < 4; j++)
            m[j] = _mm256_max_epu32(m[j], avx2_abs_bits(x + i + 8 * j));
    uint32_t bits =
        avx2_max_bits(_mm256_max_epu32(_mm256_max_epu32(m[0], m[1]), _mm256_max_epu32(m[2], m[3])));
    __m256i wanted = _mm256_set1_epi32((int)bits);
    *out_bits = bits;
    for (uint32_t i = 0;; i += 8) {
        int found = _mm256_movemask_ps(
            _mm256_castsi256_ps(_mm256_cmpeq_epi32(avx2_abs_bits(x + i), wanted)));
        if (found)
            return i + (uint32_t)__builtin_ctz((unsigned)found);
    }
}

static float block_scale(uint32_t largest, float factor)
{
    return largest < SMALL_BITS ? 0.0f
                                : bits_float(float_bits(bits_float(largest) * factor) & ~0xFFu);
}

static void quantise_block(const float *x, struct X86(q8) * to, uint32_t r)
{
    __m256i largest =
        _mm256_max_epu32(_mm256_max_epu32(avx2_abs_bits(x), avx2_abs_bits(x + 8)),
                         _mm256_max_epu32(avx2_abs_bits(x + 16), avx2_abs_bits(x + 24)));
    float d = block_scale(avx2_max_bits(largest), 0x1.020408p-7f);
    __m256 inverse = _mm256_set1_ps(d > 0 ? 1.0f / d : 0.0f);
    __m256i q0 = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), inverse));
    __m256i q1 = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), inverse));
    __m256i q2 = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 16), inverse));
    __m256i q3 = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 24), inverse));
    __m256i q = _mm256_packs_epi16(_mm256_packs_epi32(q0, q1), _mm256_packs_epi32(q2, q3));
    q = _mm256_permutevar8x32_epi32(q, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _Alignas(32) int32_t groups[8];
    _mm256_store_si256((__m256i *)groups, q);
    for (int g = 0; g < 8; g++)
        to->x[g][r] = groups[g];
    /* pairs of values, then of each half of the block the sums of both kinds of pairs */
    __m256i sums = _mm256_maddubs_epi16(_mm256_set1_epi8(1), q);
    sums = _mm256_add_epi16(sums, _mm256_shuffle_epi32(sums, 0x4E));
    sums = _mm256_add_epi16(sums, _mm256_shuffle_epi32(sums, 0xB1));
    int32_t low_pairs = _mm256_extract_epi32(sums, 0), high_pairs = _mm256_extract_epi32(sums, 4);
    int32_t low = (int16_t)low_pairs + (low_pairs >> 16),
            high = (int16_t)high_pairs + (high_pairs >> 16);
    to->d[r] = d;
    to->c[r] = -12582912.0f * d;
    to->s[r] = d * (float)(low + high);
#ifdef X86_STARTS_16
    to->start[AVX2_START_8][r] = MAGIC - 8 * (low + high);
    to->start[AVX2_START_PLUS_16][r] = MAGIC + 16 * (low + high);
    __m128i pairs = _mm_setr_epi32(low_pairs, low_pairs, high_pairs, 0);
    pairs = _mm_add_epi16(pairs, _mm_setr_epi32(high_pairs, low_pairs, high_pairs, 0));
    pairs = _mm_sub_epi16(_mm_setzero_si128(), _mm_slli_epi16(pairs, 4));
    to->start[AVX2_PAIRS_16][r] = _mm_extract_epi32(pairs, 0);
    to->start[AVX2_PAIRS_32_LOW][r] = _mm_extract_epi32(pairs, 1);
    to->start[AVX2_PAIRS_32_HIGH][r] = _mm_extract_epi32(pairs, 2);
#else
    to->start[START_8][r] = MAGIC - 8 * (low + high);
    to->start[START_16][r] = MAGIC - 16 * (low + high);
    to->start[START_32_LOW][r] = MAGIC - 32 * low;
    to->start[START_32_HIGH][r] = MAGIC - 32 * high;
    to->start[START_128][r] = MAGIC - 128 * (low + high);
#endif
}

static bool quantise_q8(struct compute_acts *a, uint32_t row, const float *x)
{
    uint32_t r = row % TILE;
    struct X86(q8) *q = (struct X86(q8) *)(a->q8 + row / TILE * a->q8_tile_bytes);
    struct X86(outliers) *o =
        (struct X86(outliers) *)(a->outliers + row / TILE * a->outlier_tile_bytes);

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

#ifdef X86_WIDE
static void widen(struct compute_acts *a, uint32_t row)
{
    uint32_t r = row % TILE;
    struct X86(q8) *q = (struct X86(q8) *)(a->q8 + row / TILE * a->q8_tile_bytes);
    struct X86(wide) *to = (struct X86(wide) *)(q + a->n_blocks);

    for (uint32_t b = 0; b < a->n_blocks; b++)
        for (int g = 0; g < 8; g++) {
            __m128i pairs = _mm_cvtepi8_epi16(_mm_cvtsi32_si128(q[b].x[g][r]));
            to[b].x[2 * g][r] = _mm_cvtsi128_si32(pairs);
            to[b].x[2 * g + 1][r] = _mm_extract_epi32(pairs, 1);
        }
}
#endif

static bool quantise_i16(struct compute_acts *a, uint32_t row, const float *x)
{
    uint32_t r = row % TILE;
    struct X86(i16) *q = (struct X86(i16) *)(a->i16 + row / TILE * a->i16_tile_bytes);

    for (uint32_t b = 0; b < a->n_blocks; b++) {
        float padded[BLOCK] = {0};
        const float *from = x + b * BLOCK;
        if (a->k - b * BLOCK < BLOCK) {
            memcpy(padded, from, (a->k - b * BLOCK) * sizeof *from);
            from = padded;
        }
        __m256i m =
            _mm256_max_epu32(_mm256_max_epu32(avx2_abs_bits(from), avx2_abs_bits(from + 8)),
                             _mm256_max_epu32(avx2_abs_bits(from + 16), avx2_abs_bits(from + 24)));
        uint32_t largest = avx2_max_bits(m);
        if (largest >= LIMIT_BITS)
            return false;
        float d = block_scale(largest, 0x1.0008p-13f);
        __m256 inverse = _mm256_set1_ps(d > 0 ? 1.0f / d : 0.0f);
        _Alignas(32) int32_t pairs[16];
        for (int j = 0; j < 2; j++) {
            __m256i q0 = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(from + 16 * j), inverse));
            __m256i q1 =
                _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(from + 16 * j + 8), inverse));
            __m256i both = _mm256_permute4x64_epi64(_mm256_packs_epi32(q0, q1), 0xD8);
            _mm256_store_si256((__m256i *)pairs + j, both);
        }
        for (int j = 0; j < 16; j++)
            q[b].x[j][r] = pairs[j];
        q[b].d[r] = d;
    }
    return true;
}

bool X86(quantise)(struct compute_acts *a, uint32_t row, const float *x)
{
    if (a->forms & ACT_Q8 && !quantise_q8(a, row, x))
        return false;
#ifdef X86_WIDE
    if (a->forms & ACT_Q8_WIDE)
        widen(a, row);
#endif
    if (a->forms & ACT_I16 && !quantise_i16(a, row, x))
        return false;
    if (a->forms & ACT_F32) {
        float *to = (float *)(a->f32 + row / TILE * a->f32_tile_bytes) + row % TILE;
        if (avx2_largest_bits(x, a->k) >= LIMIT_BITS)
            return false;
        for (uint32_t i = 0; i < a->k; i++)
            to[(size_t)i * TILE] = x[i];
    }
    return true;
}
