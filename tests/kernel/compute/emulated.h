/* AVX-512 and AVX-VNNI on a CPU without them: SIMDe's portable forms under the names of the
 * instructions, and the few that it lacks or misspells, from AVX2. The functions of the sources
 * built with this get names of their own, to stand beside the real ones. */
#ifndef BATON_TESTS_KERNEL_COMPUTE_EMULATED_H
#define BATON_TESTS_KERNEL_COMPUTE_EMULATED_H

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
static inline simde__m512i emulated_widen(__m128i bytes)
{
    __m256i halves[2] = {_mm256_cvtepi8_epi32(bytes),
                         _mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))};
    simde__m512i v;

    memcpy(&v, halves, sizeof v);
    return v;
}

#undef _mm512_cvtepi8_epi32
#define _mm512_cvtepi8_epi32(v) emulated_widen(v)
#undef _mm512_madd_epi16
#define _mm512_madd_epi16(a, b) simde_mm512_madd_epi16(a, b)

/* Even and odd bytes as int16, whose products' sums of pairs are those of four bytes. */
static inline __m256i emulated_dpbusd(__m256i sum, __m256i u8, __m256i s8)
{
    __m256i u_even = _mm256_and_si256(u8, _mm256_set1_epi16(255)), u_odd = _mm256_srli_epi16(u8, 8);
    __m256i s_even = _mm256_srai_epi16(_mm256_slli_epi16(s8, 8), 8),
            s_odd = _mm256_srai_epi16(s8, 8);

    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(u_even, s_even));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(u_odd, s_odd));
}

#define _mm256_dpbusd_avx_epi32(sum, u8, s8) emulated_dpbusd(sum, u8, s8)
#define _mm256_dpwssd_avx_epi32(sum, a, b) _mm256_add_epi32(sum, _mm256_madd_epi16(a, b))

#define compute_tier_avx512vnni compute_tier_avx512vnni_emulated
#define avx512vnni_panel_bytes emulated_avx512vnni_panel_bytes
#define avx512vnni_pack emulated_avx512vnni_pack
#define avx512vnni_matmul emulated_avx512vnni_matmul
#define avx512vnni_matmul_float emulated_avx512vnni_matmul_float
#define avx512vnni_matmul_scratch emulated_avx512vnni_matmul_scratch
#define compute_tier_avx512 compute_tier_avx512_emulated
#define avx512_panel_bytes emulated_avx512_panel_bytes
#define avx512_pack emulated_avx512_pack
#define avx512_acts_layout emulated_avx512_acts_layout
#define avx512_quantise emulated_avx512_quantise
#define avx512_matmul emulated_avx512_matmul
#define avx512_matmul_float emulated_avx512_matmul_float
#define avx512_matmul_scratch emulated_avx512_matmul_scratch
#define avx512_attention emulated_avx512_attention
#define avx512_attention_merge emulated_avx512_attention_merge
#define compute_tier_avxvnni compute_tier_avxvnni_emulated
#define avxvnni_panel_bytes emulated_avxvnni_panel_bytes
#define avxvnni_pack emulated_avxvnni_pack
#define avxvnni_acts_layout emulated_avxvnni_acts_layout
#define avxvnni_quantise emulated_avxvnni_quantise
#define avxvnni_matmul emulated_avxvnni_matmul
#define avxvnni_matmul_float emulated_avxvnni_matmul_float
#define avxvnni_matmul_scratch emulated_avxvnni_matmul_scratch

#endif
