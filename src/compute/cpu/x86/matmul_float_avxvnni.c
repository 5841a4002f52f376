/* 16-bit and f32 matrices on 8 lanes with vpdpwssd. */
#include "compute/cpu/x86/avxvnni.h"

#define X86(name) avxvnni_##name
#define ACTS_OF(name) avxvnni_##name
#define TILE AVXVNNI_TILE
#define EACH_ROWS AVXVNNI_EACH_ROWS
#define DOT_INT16(sum, a, b) _mm256_dpwssd_avx_epi32(sum, a, b)
#include "compute/cpu/x86/matmul_float.h"
