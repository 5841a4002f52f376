/* Tiles of 4 rows. */
#include "compute/cpu/x86/avx2.h"

#define X86(name) avx2_##name
#define TILE AVX2_TILE
#define X86_WIDE
#define X86_STARTS_16
#include "compute/cpu/x86/quantise.h"
