/* What matmul.h and matmul_float.h are written in, on 8 lanes. vector512.h is the same on 16, and
 * has what tiers without a dot instruction need beside. */
#ifndef BATON_COMPUTE_CPU_X86_VECTOR256_H
#define BATON_COMPUTE_CPU_X86_VECTOR256_H

#include <immintrin.h>

#define LANES 8
#define LANE_BYTES 32 /* of a vector */

typedef __m256i lanes_i;
typedef __m256 lanes_f;

#define I_LOAD(p) _mm256_loadu_si256((const __m256i *)(p))
#define I_STORE(p, v) _mm256_storeu_si256((__m256i *)(p), v)
#define I_LOAD_INT8(p) _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(p)))
#define I_ZERO() _mm256_setzero_si256()
#define I_SET8(x) _mm256_set1_epi8(x)
#define I_SET32(x) _mm256_set1_epi32(x)
#define I_AND(a, b) _mm256_and_si256(a, b)
#define I_OR(a, b) _mm256_or_si256(a, b)
#define I_SHIFT_LEFT16(v, n) _mm256_slli_epi16(v, n)
#define I_SHIFT_RIGHT16(v, n) _mm256_srli_epi16(v, n)
#define I_SHIFT_LEFT32(v, n) _mm256_slli_epi32(v, n)
#define I_SHIFT_RIGHT32(v, n) _mm256_srl_epi32(v, _mm_cvtsi32_si128((int)(n)))
#define I_SUB32(a, b) _mm256_sub_epi32(a, b)
#define I_TO_F(v) _mm256_cvtepi32_ps(v)
#define I_AS_F(v) _mm256_castsi256_ps(v)

#define F_LOAD(p) _mm256_loadu_ps(p)
#define F_LOAD_HALVES(p) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p)))
#define F_STORE(p, v) _mm256_storeu_ps(p, v)
#define F_ZERO() _mm256_setzero_ps()
#define F_SET(x) _mm256_set1_ps(x)
#define F_ADD(a, b) _mm256_add_ps(a, b)
#define F_MUL(a, b) _mm256_mul_ps(a, b)
#define F_FMA(a, b, c) _mm256_fmadd_ps(a, b, c)

#endif
