/* Tiles of 6 rows. */
#include "compute/cpu/x86/avx512.h"

#define X86(name) avx512_##name
#define TILE AVX512_TILE
#include "compute/cpu/x86/quantise.h"
