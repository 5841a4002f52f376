/* The limits of a core on eight lanes: dense streams of the instructions that each kind of product
 * is made of, and reading. */
#include "compute/cpu/x86/avx2.h"

#define CHAINS 12
#define PROBE_REGISTER "x"
#include "compute/cpu/x86/probe.h"

#define INTEGER_PEAK(name, operations, product)                                                    \
    static uint64_t name(uint32_t rounds)                                                          \
    {                                                                                              \
        const __m256i w = _mm256_set1_epi8(2), ones = _mm256_set1_epi16(1);                        \
        __m256i sum[CHAINS], x = _mm256_set1_epi8(1);                                              \
                                                                                                   \
        (void)ones;                                                                                \
        UNROLL for (int i = 0; i < CHAINS; i++) sum[i] = _mm256_setzero_si256();                   \
        for (uint32_t r = 0; r < rounds; r++)                                                      \
            ROUND(sum, product);                                                                   \
        UNROLL for (int i = 0; i < CHAINS; i++) USE(sum[i]);                                       \
        return (uint64_t)rounds * CHAINS * (operations);                                           \
    }

INTEGER_PEAK(nibble_peak, 64, _mm256_add_epi16(sum[i], _mm256_maddubs_epi16(w, x)))
INTEGER_PEAK(byte_peak, 64,
             _mm256_add_epi32(sum[i], _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), ones)))
INTEGER_PEAK(int16_peak, 32, _mm256_add_epi32(sum[i], _mm256_madd_epi16(w, x)))

static uint64_t float_peak(uint32_t rounds)
{
    __m256 sum[CHAINS], x = _mm256_set1_ps(0.5f), w = _mm256_set1_ps(0.25f);

    UNROLL for (int i = 0; i < CHAINS; i++) sum[i] = _mm256_setzero_ps();
    for (uint32_t r = 0; r < rounds; r++)
        ROUND(sum, _mm256_fmadd_ps(w, x, sum[i]));
    UNROLL for (int i = 0; i < CHAINS; i++) USE(sum[i]);
    return (uint64_t)rounds * CHAINS * 16;
}

uint64_t avx2_peak(enum compute_unit unit, uint32_t rounds)
{
    return unit == COMPUTE_DOT_NIBBLE  ? nibble_peak(rounds)
           : unit == COMPUTE_DOT_BYTE  ? byte_peak(rounds)
           : unit == COMPUTE_DOT_INT16 ? int16_peak(rounds)
                                       : float_peak(rounds);
}

void avx2_read(const void *data, uint64_t bytes, bool in_streams)
{
    const uint64_t apart = bytes / READ_STREAMS;
    const uint8_t *p = data;
    __m256i sum[8];

    UNROLL for (int i = 0; i < 8; i++) sum[i] = _mm256_setzero_si256();
    if (in_streams) {
        for (uint64_t n = apart / 64; n > 0; n--, p += 64)
            UNROLL for (int i = 0; i < 8; i++) sum[i] = _mm256_or_si256(
                sum[i], _mm256_loadu_si256((const __m256i *)(p + i / 2 * apart) + i % 2));
    } else {
        for (uint64_t n = bytes / 256; n > 0; n--, p += 256) {
            UNROLL for (int i = 0; i < 4; i++)
                _mm_prefetch((const char *)p + READ_AHEAD + 64 * i, _MM_HINT_T0);
            UNROLL for (int i = 0; i < 8; i++) sum[i] =
                _mm256_or_si256(sum[i], _mm256_loadu_si256((const __m256i *)p + i));
        }
    }
    UNROLL for (int i = 0; i < 8; i++) USE(sum[i]);
}
