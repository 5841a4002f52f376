/* The limits of a core on sixteen lanes without a dot instruction: dense streams of the
 * instructions that each kind of product is made of, and reading. */
#include "compute/cpu/x86/avx512.h"

#ifndef COMPUTE_SMALL_CODE /* emulated, or with sanitizers, there is nothing to measure */

#define CHAINS 16
#define PROBE_REGISTER "v"
#include "compute/cpu/x86/probe.h"

static uint64_t integer_peak(enum compute_unit unit, uint32_t rounds)
{
    __m512i sum[CHAINS], x = _mm512_set1_epi8(1), w = _mm512_set1_epi8(2);
    const __m512i ones = _mm512_set1_epi16(1);

    UNROLL for (int i = 0; i < CHAINS; i++) sum[i] = _mm512_setzero_si512();
    for (uint32_t r = 0; r < rounds; r++) {
        if (unit == COMPUTE_DOT_NIBBLE) {
            ROUND(sum, _mm512_add_epi16(sum[i], _mm512_maddubs_epi16(w, x)));
        } else if (unit == COMPUTE_DOT_BYTE) {
            ROUND(sum,
                  _mm512_add_epi32(sum[i], _mm512_madd_epi16(_mm512_maddubs_epi16(w, x), ones)));
        } else {
            ROUND(sum, _mm512_add_epi32(sum[i], _mm512_madd_epi16(w, x)));
        }
    }
    UNROLL for (int i = 0; i < CHAINS; i++) USE(sum[i]);
    return (uint64_t)rounds * CHAINS * (unit == COMPUTE_DOT_INT16 ? 64 : 128);
}

static uint64_t float_peak(uint32_t rounds)
{
    __m512 sum[CHAINS], x = _mm512_set1_ps(0.5f), w = _mm512_set1_ps(0.25f);

    UNROLL for (int i = 0; i < CHAINS; i++) sum[i] = _mm512_setzero_ps();
    for (uint32_t r = 0; r < rounds; r++)
        ROUND(sum, _mm512_fmadd_ps(w, x, sum[i]));
    UNROLL for (int i = 0; i < CHAINS; i++) USE(sum[i]);
    return (uint64_t)rounds * CHAINS * 32;
}

uint64_t avx512_peak(enum compute_unit unit, uint32_t rounds)
{
    return unit == COMPUTE_FMA_F32 ? float_peak(rounds) : integer_peak(unit, rounds);
}

void avx512_read(const void *data, uint64_t bytes, bool in_streams)
{
    const uint64_t apart = bytes / READ_STREAMS;
    const uint8_t *p = data;
    __m512i sum[4];

    UNROLL for (int i = 0; i < 4; i++) sum[i] = _mm512_setzero_si512();
    if (in_streams) {
        for (uint64_t n = apart / 64; n > 0; n--, p += 64)
            UNROLL for (int i = 0; i < 4; i++) sum[i] =
                _mm512_or_si512(sum[i], _mm512_loadu_si512(p + i * apart));
    } else {
        for (uint64_t n = bytes / 256; n > 0; n--, p += 256)
            UNROLL for (int i = 0; i < 4; i++)
            {
                _mm_prefetch((const char *)p + READ_AHEAD + 64 * i, _MM_HINT_T0);
                sum[i] = _mm512_or_si512(sum[i], _mm512_loadu_si512(p + 64 * i));
            }
    }
    UNROLL for (int i = 0; i < 4; i++) USE(sum[i]);
}

#endif
