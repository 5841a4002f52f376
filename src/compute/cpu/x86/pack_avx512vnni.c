/* Panels of 16 outputs; 8-bit weights become unsigned, as vpdpbusd takes them. */
#include "compute/cpu/x86/avx512vnni.h"

#define X86(name) avx512vnni_##name
#define PANEL AVX512_PANEL
#define S8_OFFSET 128
#include "compute/cpu/x86/pack.h"
