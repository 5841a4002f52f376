/* What the AVX-VNNI files share: 8 lanes with vpdpbusd in its VEX form, for CPUs that have it
 * without AVX-512. A panel has 8 outputs, a tile of activations 4 rows (avx2.h). */
#ifndef BATON_COMPUTE_CPU_X86_AVXVNNI_H
#define BATON_COMPUTE_CPU_X86_AVXVNNI_H

#include "compute/cpu/x86/avx2.h"
#include "compute/cpu/x86/vector256.h"

#define AVXVNNI_PANEL LANES
#define AVXVNNI_TILE 4
#define AVXVNNI_EACH_ROWS AVX2_EACH_ROWS

ACTS(avxvnni, AVXVNNI_TILE);

uint64_t avxvnni_panel_bytes(const struct compute_matrix *m);
uint8_t *avxvnni_pack(const struct compute_matrix *m, const struct raw_rows *raw, uint8_t *to);
void avxvnni_acts_layout(struct compute_acts *a);
bool avxvnni_quantise(struct compute_acts *a, uint32_t row, const float *x);
void avxvnni_matmul(const struct matmul_task *t);
void avxvnni_matmul_float(const struct matmul_task *t);
uint64_t avxvnni_matmul_scratch(const struct compute_matrix *m);
uint64_t avxvnni_peak(enum compute_unit unit, uint32_t rounds);

#endif
