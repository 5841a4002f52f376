/* What the AVX-512 VNNI files share. */
#ifndef BATON_COMPUTE_CPU_X86_AVX512VNNI_H
#define BATON_COMPUTE_CPU_X86_AVX512VNNI_H

#include "compute/cpu/x86/avx512.h"

uint64_t avx512vnni_panel_bytes(const struct compute_matrix *m);
uint8_t *avx512vnni_pack(const struct compute_matrix *m, const struct raw_rows *raw, uint8_t *to);
void avx512vnni_matmul(const struct matmul_task *t);
void avx512vnni_matmul_float(const struct matmul_task *t);
uint64_t avx512vnni_matmul_scratch(const struct compute_matrix *m);
uint64_t avx512vnni_peak(enum compute_unit unit, uint32_t rounds);

#endif
