/* The AVX2 tier: what it overrides. */
#include "compute/cpu/x86/avx2.h"

void compute_tier_avx2(struct compute_ops *ops)
{
    ops->panel = AVX2_PANEL;
    ops->tile = AVX2_TILE;
    ops->attention_heads = ATTENTION_PAIRS;
    ops->strip_bytes = 2 << 20; /* unpacking a panel anew costs more than activations out of L3 */
    ops->n_streams = SIDE_BY_SIDE;
    ops->panel_bytes = avx2_panel_bytes;
    ops->pack = avx2_pack;
    ops->halves = avx2_halves;
    ops->acts_layout = avx2_acts_layout;
    ops->quantise = avx2_quantise;
    ops->matmul = avx2_matmul;
    ops->matmul_scratch = avx2_matmul_scratch;
    ops->attention = avx2_attention;
    ops->attention_merge = avx2_attention_merge;
    ops->rms_norm = avx2_rms_norm;
    ops->gated = avx2_gated;
    ops->rotate = avx2_rotate;
    ops->scale = avx2_scale;
    ops->store = avx2_store;
    ops->soft_cap = avx2_soft_cap;
    ops->exp2 = avx2_exp2_array;
    ops->largest_bits = avx2_largest_bits;
    ops->all_valid = avx2_all_valid;
    ops->maximum = avx2_maximum;
    ops->sample_weights = avx2_sample_weights;
    ops->log_sum = avx2_log_sum;
    ops->peak = avx2_peak;
    ops->read = avx2_read;
}
