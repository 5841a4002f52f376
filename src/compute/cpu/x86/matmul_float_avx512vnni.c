/* 16-bit and f32 matrices on 16 lanes with vpdpwssd. */
#include "compute/cpu/x86/avx512vnni.h"

#define X86(name) avx512vnni_##name
#define ACTS_OF(name) avx512_##name
#define TILE AVX512_TILE
#define EACH_ROWS AVX512_EACH_ROWS
#define DOT_INT16(sum, a, b) _mm512_dpwssd_epi32(sum, a, b)
#include "compute/cpu/x86/matmul_float.h"
