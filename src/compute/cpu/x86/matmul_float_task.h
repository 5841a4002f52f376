/* A task of 16-bit or f32 weights, whatever its kernels (see matmul_task.h). */
#include "compute/cpu/x86/finish.h"
#include "compute/cpu/x86/side_by_side.h"

void X86(matmul_float)(const struct matmul_task *t)
{
    const struct compute_matrix *m = t->matrix;
    const struct compute_acts *a = t->acts;
    const bool is_f32 = m->form == WEIGHT_F32;
    const uint8_t *acts = is_f32 ? a->f32 : a->i16;
    uint64_t tile_bytes = is_f32 ? a->f32_tile_bytes : a->i16_tile_bytes;
    const uint32_t n_tiles = (t->row_end - t->row_begin + TILE - 1) / TILE;
    _Alignas(64) float y[SIDE_BY_SIDE][TILE][LANES];

    for (struct side_by_side p = {.n = 0}; next_panels(t, &p);) {
        tile_kernel *const *by_rows =
            p.n == SIDE_BY_SIDE ? kernels_of_few[is_f32] : kernels[is_f32][p.n - 1];
        /* A single tile of these wide weights reads straight through memory: without prefetches
         * that is 1.4 times as fast. */
        const uint8_t *next = n_tiles > 1 ? after_panels(t, &p) : NULL;
        struct prefetch prefetch =
            prefetch_begin(next, next ? p.n * m->panel_bytes : 0, m->n_blocks * n_tiles);
        for (uint32_t row = t->row_begin; row < t->row_end; row += TILE) {
            uint32_t rows = MIN(TILE, t->row_end - row);
            prefetch_outputs_of(t, &p, row, rows);
            by_rows[rows - 1](p.w, prefetch, acts + row / TILE * tile_bytes, m->k, y);
            prefetch_advance(&prefetch, m->n_blocks);
            finish_panels(t, &p, y, row, rows);
        }
    }
}
