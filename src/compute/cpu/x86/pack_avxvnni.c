/* Panels of 8 outputs; 8-bit weights become unsigned, as vpdpbusd takes them. */
#include "compute/cpu/x86/avxvnni.h"

#define X86(name) avxvnni_##name
#define PANEL AVXVNNI_PANEL
#define S8_OFFSET 128
#include "compute/cpu/x86/pack.h"
