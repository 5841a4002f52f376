/* The limits of a core on sixteen lanes with VNNI: a dense stream of dot instructions; what is not
 * a dot product as without them. */
#include "compute/cpu/x86/avx512vnni.h"

#ifndef COMPUTE_SMALL_CODE /* emulated, or with sanitizers, there is nothing to measure */

#define CHAINS 16
#define PROBE_REGISTER "v"
#include "compute/cpu/x86/probe.h"

static uint64_t integer_peak(enum compute_unit unit, uint32_t rounds)
{
    __m512i sum[CHAINS], x = _mm512_set1_epi32(0x01010101), w = _mm512_set1_epi32(0x02020202);

    UNROLL for (int i = 0; i < CHAINS; i++) sum[i] = _mm512_setzero_si512();
    for (uint32_t r = 0; r < rounds; r++) {
        if (unit == COMPUTE_DOT_INT16) {
            ROUND(sum, _mm512_dpwssd_epi32(sum[i], w, x));
        } else {
            ROUND(sum, _mm512_dpbusd_epi32(sum[i], w, x));
        }
    }
    UNROLL for (int i = 0; i < CHAINS; i++) USE(sum[i]);
    return (uint64_t)rounds * CHAINS * (unit == COMPUTE_DOT_INT16 ? 64 : 128);
}

uint64_t avx512vnni_peak(enum compute_unit unit, uint32_t rounds)
{
    return unit == COMPUTE_FMA_F32 ? avx512_peak(unit, rounds) : integer_peak(unit, rounds);
}

#endif
