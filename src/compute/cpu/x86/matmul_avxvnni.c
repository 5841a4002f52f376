/* Matrices on 8 lanes with vpdpbusd, which adds to 32 bits without saturating. */
#include "compute/cpu/x86/avxvnni.h"

#define X86(name) avxvnni_##name
#define ACTS_OF(name) avxvnni_##name
#define TILE AVXVNNI_TILE
#define EACH_ROWS AVXVNNI_EACH_ROWS
#define DOT_BYTES(sum, u8, s8) _mm256_dpbusd_avx_epi32(sum, u8, s8)
#include "compute/cpu/x86/matmul.h"
