/* What matmul.h and matmul_float.h are written in, on 16 lanes. vector256.h is the same on 8. */
#ifndef BATON_COMPUTE_CPU_X86_VECTOR512_H
#define BATON_COMPUTE_CPU_X86_VECTOR512_H

#include <immintrin.h>

#define LANES 16
#define LANE_BYTES 64 /* of a vector */

typedef __m512i lanes_i;
typedef __m512 lanes_f;

#define I_LOAD(p) _mm512_loadu_si512((const void *)(p))
#define I_STORE(p, v) _mm512_storeu_si512((void *)(p), v)
#define I_LOAD_INT8(p) _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(p)))
#define I_ZERO() _mm512_setzero_si512()
#define I_SET8(x) _mm512_set1_epi8(x)
#define I_SET16(x) _mm512_set1_epi16(x)
#define I_SET32(x) _mm512_set1_epi32(x)
#define I_AND(a, b) _mm512_and_si512(a, b)
#define I_XOR(a, b) _mm512_xor_si512(a, b)
#define I_OR(a, b) _mm512_or_si512(a, b)
#define I_SHIFT_LEFT16(v, n) _mm512_slli_epi16(v, (unsigned)(n))
#define I_SHIFT_RIGHT16(v, n) _mm512_srli_epi16(v, (unsigned)(n))
#define I_SHIFT_LEFT32(v, n) _mm512_slli_epi32(v, n)
#define I_SHIFT_RIGHT32(v, n) _mm512_srl_epi32(v, _mm_cvtsi32_si128((int)(n)))
#define I_ADD16(a, b) _mm512_add_epi16(a, b)
#define I_ADD32(a, b) _mm512_add_epi32(a, b)
#define I_SUB32(a, b) _mm512_sub_epi32(a, b)
#define I_ABS8(v) _mm512_abs_epi8(v)
/* x, negated where the byte of v is negative. */
#define I_SIGN8(x, v) _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(v), _mm512_setzero_si512(), x)
#define I_PAIRS_BYTES(a, b) _mm512_maddubs_epi16(a, b)
#define I_PAIRS_INT16(a, b) _mm512_madd_epi16(a, b)
#define I_TO_F(v) _mm512_cvtepi32_ps(v)
#define I_AS_F(v) _mm512_castsi512_ps(v)

#define F_LOAD(p) _mm512_loadu_ps(p)
#define F_LOAD_HALVES(p) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(p)))
#define F_STORE(p, v) _mm512_storeu_ps(p, v)
#define F_ZERO() _mm512_setzero_ps()
#define F_SET(x) _mm512_set1_ps(x)
#define F_ADD(a, b) _mm512_add_ps(a, b)
#define F_MUL(a, b) _mm512_mul_ps(a, b)
#define F_FMA(a, b, c) _mm512_fmadd_ps(a, b, c)

/* Computes v here and now (avx2.h's KEEP, with all 32 registers). */
#ifdef COMPUTE_SMALL_CODE
#define I_KEEP(v)
#else
#define I_KEEP(v) __asm__("" : "+v"(v))
#endif

#endif
