/* The AVX-512 VNNI tier: the AVX2 tier with wider matrices and attention. */
#include "compute/cpu/x86/avx512vnni.h"

void compute_tier_avx512vnni(struct compute_ops *ops)
{
    compute_tier_avx2(ops);
    ops->panel = AVX512_PANEL;
    ops->tile = AVX512_TILE;
    ops->panel_bytes = avx512vnni_panel_bytes;
    ops->pack = avx512vnni_pack;
    ops->acts_layout = avx512vnni_acts_layout;
    ops->quantise = avx512vnni_quantise;
    ops->matmul = avx512vnni_matmul;
    ops->matmul_scratch = avx512vnni_matmul_scratch;
    ops->attention = avx512vnni_attention;
    ops->attention_merge = avx512vnni_attention_merge;
#ifndef COMPUTE_SMALL_CODE
    ops->peak = avx512vnni_peak;
    ops->read = avx512vnni_read;
#endif
}
