/* The contract in scalar C, compiled with FMA instructions: the same bits, and what the SIMD tiers
 * fall back on. */
#define REF(name) ref_fma_##name
#define REF_OPS compute_ops_ref_fma
#include "compute/cpu/ref/body.h"
