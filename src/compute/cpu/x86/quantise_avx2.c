/* Tiles of 4 rows. */
#include "compute/cpu/x86/avx2.h"

#define X86(name) avx2_##name
#define TILE AVX2_TILE
#define X86_WIDE
#define X86_PAIRS /* and starts of 16-bit sums */
#include "compute/cpu/x86/quantise.h"
