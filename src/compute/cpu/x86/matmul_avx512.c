/* Matrices on 16 lanes without a dot instruction. */
#include "compute/cpu/x86/avx512.h"

#define X86(name) avx512_##name
#define ACTS_OF(name) avx512_##name
#define TILE AVX512_TILE
#define EACH_ROWS AVX512_EACH_ROWS
#include "compute/cpu/x86/matmul.h"
