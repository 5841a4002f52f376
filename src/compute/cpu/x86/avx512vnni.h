/* What the AVX-512 VNNI files share. Lanes are outputs: a panel has 16, a tile of activations 6
 * rows (avx2.h). */
#ifndef BATON_COMPUTE_CPU_X86_AVX512VNNI_H
#define BATON_COMPUTE_CPU_X86_AVX512VNNI_H

#include "compute/cpu/x86/avx2.h"

#define AVX512_PANEL 16
#define AVX512_TILE 6

ACTS(avx512vnni, AVX512_TILE);

#define LOAD512(p) _mm512_loadu_si512((const void *)(p))

uint64_t avx512vnni_panel_bytes(const struct compute_matrix *m);
void avx512vnni_pack(const struct compute_matrix *m, const struct raw_rows *raw, uint8_t *to);
void avx512vnni_acts_layout(struct compute_acts *a);
bool avx512vnni_quantise(struct compute_acts *a, uint32_t row, const float *x);
void avx512vnni_matmul(const struct matmul_task *t);
void avx512vnni_matmul_float(const struct matmul_task *t);
uint64_t avx512vnni_matmul_scratch(const struct compute_matrix *m);
void avx512vnni_attention(const struct attention_task *t);
void avx512vnni_attention_merge(const float *parts, uint32_t n, uint32_t head_dim, float *out);
uint64_t avx512vnni_peak(enum compute_unit unit, uint32_t rounds);
void avx512vnni_read(const void *data, uint64_t bytes);
void avx512vnni_finish(const struct compute_product *p, const float *y, uint32_t row,
                       uint32_t output, uint32_t n);

#endif
