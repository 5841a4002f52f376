/* AVX-512 on a CPU without it: SIMDe's portable forms under the names of the instructions, and the
 * few that it lacks, from halves of 256 bits. The functions of the sources built with this get
 * names of their own, to stand beside the real ones. */
#ifndef BATON_TESTS_KERNEL_COMPUTE_EMULATED_AVX512_H
#define BATON_TESTS_KERNEL_COMPUTE_EMULATED_AVX512_H

#define SIMDE_ENABLE_NATIVE_ALIASES
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
#include <simde/x86/avx512.h>
#pragma GCC diagnostic pop

#include <string.h>

static inline __m256i emulated_half(simde__m512i v, int i)
{
    __m256i halves[2];

    memcpy(halves, &v, sizeof halves);
    return halves[i];
}

static inline simde__m512 emulated_join(__m256 low, __m256 high)
{
    __m256 halves[2] = {low, high};
    simde__m512 v;

    memcpy(&v, halves, sizeof v);
    return v;
}

#undef _mm512_cvtepi32_ps
#define _mm512_cvtepi32_ps(v)                                                                      \
    emulated_join(_mm256_cvtepi32_ps(emulated_half(v, 0)), _mm256_cvtepi32_ps(emulated_half(v, 1)))
#undef _mm512_cvtph_ps
#define _mm512_cvtph_ps(v)                                                                         \
    emulated_join(_mm256_cvtph_ps(_mm256_castsi256_si128(v)),                                      \
                  _mm256_cvtph_ps(_mm256_extracti128_si256(v, 1)))

#define compute_tier_avx512vnni compute_tier_avx512vnni_emulated
#define avx512vnni_panel_bytes emulated_panel_bytes
#define avx512vnni_pack emulated_pack
#define avx512vnni_acts_layout emulated_acts_layout
#define avx512vnni_quantise emulated_quantise
#define avx512vnni_matmul emulated_matmul
#define avx512vnni_matmul_float emulated_matmul_float
#define avx512vnni_matmul_scratch emulated_matmul_scratch
#define avx512vnni_attention emulated_attention
#define avx512vnni_attention_merge emulated_attention_merge
#define avx512vnni_finish emulated_finish

#endif
