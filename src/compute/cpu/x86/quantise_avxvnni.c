/* Tiles of 4 rows. */
#include "compute/cpu/x86/avxvnni.h"

#define X86(name) avxvnni_##name
#define TILE AVXVNNI_TILE
#include "compute/cpu/x86/quantise.h"
