/* A task of 16-bit or f32 weights, whatever its kernels (see matmul_task.h). */
#include "compute/cpu/x86/finish.h"

void X86(matmul_float)(const struct matmul_task *t)
{
    const struct compute_matrix *m = t->matrix;
    const struct compute_acts *a = t->acts;
    const uint8_t *acts = m->form == WEIGHT_I16 ? a->i16 : a->f32;
    uint64_t tile_bytes = m->form == WEIGHT_I16 ? a->i16_tile_bytes : a->f32_tile_bytes;
    const uint32_t n_tiles = (t->row_end - t->row_begin + TILE - 1) / TILE;
    _Alignas(64) float y[2][TILE][LANES];

    for (uint32_t panel = t->panel_begin; panel < t->panel_end; panel += 2) {
        uint32_t panels = MIN(2, t->panel_end - panel);
        const uint8_t *w[2] = {m->data + panel * m->panel_bytes,
                               m->data + (panel + panels - 1) * m->panel_bytes},
                      *next = panel + panels < t->panel_end ? w[1] + m->panel_bytes : t->next;
        /* A single tile of these wide weights reads straight through memory: without prefetches
         * that is 1.4 times as fast. */
        const uint64_t n_bytes = next && n_tiles > 1 ? panels * m->panel_bytes : 0;
        struct prefetch prefetch = prefetch_begin(next, n_bytes, m->n_blocks * n_tiles);
        for (uint32_t row = t->row_begin; row < t->row_end; row += TILE) {
            uint32_t rows = MIN(TILE, t->row_end - row);
            prefetch_outputs(t, row, rows, panel * LANES, panels * LANES);
            kernels[m->form == WEIGHT_F32][panels - 1][rows - 1](
                w, prefetch, acts + row / TILE * tile_bytes, m->k, y);
            prefetch_advance(&prefetch, m->n_blocks);
            for (uint32_t p = 0; p < panels; p++) {
                uint32_t output = (panel + p) * LANES, n = MIN(LANES, m->n_outputs - output);
                finish(t, y[p], row, rows, output, n);
            }
        }
    }
}
