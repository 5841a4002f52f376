/* The AVX-512 VNNI tier: the AVX-512 tier with matrices by a dot instruction. */
#include "compute/cpu/x86/avx512vnni.h"

void compute_tier_avx512vnni(struct compute_ops *ops)
{
    compute_tier_avx512(ops);
    ops->panel_bytes = avx512vnni_panel_bytes;
    ops->pack = avx512vnni_pack;
    ops->matmul = avx512vnni_matmul;
    ops->matmul_scratch = avx512vnni_matmul_scratch;
#ifndef COMPUTE_SMALL_CODE
    ops->peak = avx512vnni_peak;
#endif
}
