/* The contract in scalar C, for hosts without FMA instructions: fmaf() is libm's, slow and exact.
 */
#define REF(name) ref_##name
#define REF_OPS compute_ops_ref
#include "compute/cpu/ref/body.h"
