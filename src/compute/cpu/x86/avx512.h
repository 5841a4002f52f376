/* What the tiers on 16 lanes share. Lanes are outputs: a panel has 16, a tile of activations 6 rows
 * (avx2.h). */
#ifndef BATON_COMPUTE_CPU_X86_AVX512_H
#define BATON_COMPUTE_CPU_X86_AVX512_H

#include "compute/cpu/x86/avx2.h"
#include "compute/cpu/x86/vector512.h"

#define AVX512_PANEL LANES
#define AVX512_TILE 6
#define AVX512_EACH_ROWS(X, ...)                                                                   \
    X(1, __VA_ARGS__)                                                                              \
    X(2, __VA_ARGS__) X(3, __VA_ARGS__) X(4, __VA_ARGS__) X(5, __VA_ARGS__) X(6, __VA_ARGS__)

ACTS(avx512, AVX512_TILE);

uint64_t avx512_panel_bytes(const struct compute_matrix *m);
uint8_t *avx512_pack(const struct compute_matrix *m, const struct raw_rows *raw, uint8_t *to);
void avx512_acts_layout(struct compute_acts *a);
bool avx512_quantise(struct compute_acts *a, uint32_t row, const float *x);
void avx512_matmul(const struct matmul_task *t);
void avx512_matmul_float(const struct matmul_task *t);
uint64_t avx512_matmul_scratch(const struct compute_matrix *m);
void avx512_attention(const struct attention_task *t);
void avx512_attention_merge(const float *parts, uint32_t n, uint32_t head_dim, float *out);
uint64_t avx512_peak(enum compute_unit unit, uint32_t rounds);
void avx512_read(const void *data, uint64_t bytes, bool in_streams);

#endif
