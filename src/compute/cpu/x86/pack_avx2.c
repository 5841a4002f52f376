/* Panels of 8 outputs; 8-bit weights stay signed. */
#include "compute/cpu/x86/avx2.h"

#define X86(name) avx2_##name
#define PANEL AVX2_PANEL
#define S8_OFFSET 0
#include "compute/cpu/x86/pack.h"
