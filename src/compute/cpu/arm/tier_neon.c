/* The NEON tier: what it overrides. It needs the dot instructions of Armv8.2 (asimddp). */
#include "compute/cpu/arm/neon.h"

void compute_tier_neon(struct compute_ops *ops)
{
    ops->panel = NEON_PANEL;
    ops->tile = NEON_TILE;
    ops->attention_heads = ATTENTION_PAIRS;
    ops->panel_bytes = neon_panel_bytes;
    ops->pack = neon_pack;
    ops->acts_layout = neon_acts_layout;
    ops->quantise = neon_quantise;
    ops->matmul = neon_matmul;
    ops->attention = neon_attention;
    ops->attention_merge = neon_attention_merge;
    ops->rms_norm = neon_rms_norm;
    ops->gated = neon_gated;
    ops->rotate = neon_rotate;
    ops->scale = neon_scale;
    ops->store = neon_store;
    ops->soft_cap = neon_soft_cap;
    ops->exp2 = neon_exp2_array;
    ops->largest_bits = neon_largest_bits;
    ops->maximum = neon_maximum;
    ops->sample_weights = neon_sample_weights;
    ops->log_sum = neon_log_sum;
}
