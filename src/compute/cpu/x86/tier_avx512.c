/* The AVX-512 tier: the AVX2 tier with wider matrices and attention. */
#include "compute/cpu/x86/avx512.h"

void compute_tier_avx512(struct compute_ops *ops)
{
    compute_tier_avx2(ops);
    ops->panel = AVX512_PANEL;
    ops->tile = AVX512_TILE;
    ops->strip_bytes = 256 << 10; /* stays in L2 */
    ops->panel_bytes = avx512_panel_bytes;
    ops->pack = avx512_pack;
    ops->acts_layout = avx512_acts_layout;
    ops->quantise = avx512_quantise;
    ops->matmul = avx512_matmul;
    ops->matmul_scratch = avx512_matmul_scratch;
    ops->attention = avx512_attention;
    ops->attention_merge = avx512_attention_merge;
#ifndef COMPUTE_SMALL_CODE
    ops->peak = avx512_peak;
    ops->read = avx512_read;
#endif
}
