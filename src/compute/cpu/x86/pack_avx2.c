/* Panels of 8 outputs; 8-bit weights stay signed. */
#include "compute/cpu/x86/avx2.h"

#define X86(name) avx2_##name
#define PANEL AVX2_PANEL
#define S8_OFFSET 0
#include "compute/cpu/x86/pack.h"

/* The largest of 32 times 15 bits. */
static uint32_t largest_of(__m256i a, __m256i b)
{
    const __m128i all = _mm_set1_epi16(0x7FFF);
    __m256i m = _mm256_and_si256(_mm256_set1_epi16(0x7FFF), a);

    m = _mm256_max_epi16(m, _mm256_and_si256(_mm256_set1_epi16(0x7FFF), b));
    __m128i half = _mm_max_epi16(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    uint32_t least = (uint32_t)_mm_cvtsi128_si32(_mm_minpos_epu16(_mm_sub_epi16(all, half)));
    return 0x7FFF - (least & 0xFFFF);
}

INLINE __m256 eight_floats(const bool bf16, const uint8_t *p)
{
    __m128i v = _mm_loadu_si128((const __m128i *)p);

    return bf16 ? _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16))
                : _mm256_cvtph_ps(v);
}

INLINE bool block_of_halves(enum dtype type, const bool bf16, const uint8_t *p, int16_t *w,
                            float *d)
{
    uint32_t largest = largest_of(_mm256_loadu_si256((const __m256i *)p),
                                  _mm256_loadu_si256((const __m256i *)p + 1));
    float top = bf16 ? bits_float(largest << 16) : _cvtsh_ss((uint16_t)largest);
    uint32_t e = float_bits(top) >> 23;

    if (e < 13 || e == 255) /* the power or its inverse is no normal f32, or is none */
        return decode_halves(type, p, BLOCK, w, d);
    *d = bits_float((e - 12) << 23);
    const __m256 inverse = _mm256_set1_ps(bits_float((266 - e) << 23));
    for (int i = 0; i < BLOCK; i += 16) {
        __m256 a = _mm256_mul_ps(eight_floats(bf16, p + 2 * i), inverse),
               b = _mm256_mul_ps(eight_floats(bf16, p + 2 * i + 16), inverse);
        __m256i both = _mm256_packs_epi32(_mm256_cvtps_epi32(a), _mm256_cvtps_epi32(b));
        _mm256_storeu_si256((__m256i *)(w + i), _mm256_permute4x64_epi64(both, 0xD8));
    }
    return true;
}

bool avx2_halves(enum dtype type, const void *row, uint32_t k, int16_t *w, float *d)
{
    const uint8_t *p = row;
    bool ok = true;

    for (; k >= BLOCK; k -= BLOCK, p += 2 * BLOCK, w += BLOCK, d++)
        ok &= type == DTYPE_BF16 ? block_of_halves(type, true, p, w, d)
                                 : block_of_halves(type, false, p, w, d);
    return k == 0 ? ok : ok & decode_halves(type, p, k, w, d);
}
