/* 16-bit and f32 matrices on 16 lanes without a dot instruction. */
#include "compute/cpu/x86/avx512.h"

#define X86(name) avx512_##name
#define ACTS_OF(name) avx512_##name
#define TILE AVX512_TILE
#define EACH_ROWS AVX512_EACH_ROWS
#define DOT_INT16(sum, a, b) _mm512_add_epi32(sum, _mm512_madd_epi16(a, b))
#include "compute/cpu/x86/matmul_float.h"
