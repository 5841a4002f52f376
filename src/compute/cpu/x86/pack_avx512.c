/* Panels of 16 outputs; 8-bit weights stay signed. */
#include "compute/cpu/x86/avx512.h"

#define X86(name) avx512_##name
#define PANEL AVX512_PANEL
#define S8_OFFSET 0
#include "compute/cpu/x86/pack.h"
