/* 16-bit and f32 weights on 8 lanes without a dot instruction. */
#include "compute/cpu/x86/avx2.h"
#include "compute/cpu/x86/vector256.h"

#define X86(name) avx2_##name
#define ACTS_OF(name) avx2_##name
#define TILE AVX2_TILE
#define EACH_ROWS AVX2_EACH_ROWS
#define DOT_INT16(sum, a, b) _mm256_add_epi32(sum, _mm256_madd_epi16(a, b))
#define SUM_KEEP KEEP
#include "compute/cpu/x86/matmul_float.h"
