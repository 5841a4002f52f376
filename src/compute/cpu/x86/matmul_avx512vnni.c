/* Matrices on 16 lanes with vpdpbusd, which adds to 32 bits without saturating. */
#include "compute/cpu/x86/avx512vnni.h"

#define X86(name) avx512vnni_##name
#define ACTS_OF(name) avx512_##name
#define TILE AVX512_TILE
#define EACH_ROWS AVX512_EACH_ROWS
#define DOT_BYTES(sum, u8, s8) _mm512_dpbusd_epi32(sum, u8, s8)
#include "compute/cpu/x86/matmul.h"
