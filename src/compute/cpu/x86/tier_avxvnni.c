/* The AVX-VNNI tier: the AVX2 tier with matrices by a dot instruction. */
#include "compute/cpu/x86/avxvnni.h"

void compute_tier_avxvnni(struct compute_ops *ops)
{
    compute_tier_avx2(ops);
    ops->panel = AVXVNNI_PANEL;
    ops->tile = AVXVNNI_TILE;
    ops->panel_bytes = avxvnni_panel_bytes;
    ops->pack = avxvnni_pack;
    ops->acts_layout = avxvnni_acts_layout;
    ops->quantise = avxvnni_quantise;
    ops->matmul = avxvnni_matmul;
    ops->matmul_scratch = avxvnni_matmul_scratch;
#ifndef COMPUTE_SMALL_CODE
    ops->peak = avxvnni_peak;
#endif
}
