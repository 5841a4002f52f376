/* A task of quantised weights, whatever its kernels: panels by two, unpacked first when many rows
 * read them. The tier that includes this has X86(name), TILE, the words of vector256.h or
 * vector512.h, its kernels, and unpacked_bytes() of a block and rows_worth_unpacking() of a matrix.
 */

#include "compute/cpu/x86/finish.h"

/* `next`, or NULL, is read after these panels. */
static void run_rows(const struct matmul_task *t, tile_kernel *const *by_rows,
                     const uint8_t *const *w, uint32_t panel, uint32_t panels, const uint8_t *next)
{
    _Alignas(64) float y[2][TILE][LANES];
    const uint32_t n_tiles = (t->row_end - t->row_begin + TILE - 1) / TILE;
    const uint32_t n_blocks = t->matrix->n_blocks;
    struct prefetch prefetch =
        prefetch_begin(next, next ? panels * t->matrix->panel_bytes : 0, n_blocks * n_tiles);

    for (uint32_t row = t->row_begin; row < t->row_end; row += TILE) {
        uint32_t rows = MIN(TILE, t->row_end - row);
        uint64_t at = row / TILE;
        prefetch_outputs(t, row, rows, panel * LANES, panels * LANES);
        by_rows[rows - 1](w, prefetch, (const void *)(t->acts->q8 + at * t->acts->q8_tile_bytes),
                          (const void *)(t->acts->outliers + at * t->acts->outlier_tile_bytes),
                          t->matrix->k, y);
        prefetch_advance(&prefetch, n_blocks);
        for (uint32_t p = 0; p < panels; p++) {
            uint32_t output = (panel + p) * LANES, n = MIN(LANES, t->matrix->n_outputs - output);
            finish(t, y[p], row, rows, output, n);
        }
    }
}

uint64_t X86(matmul_scratch)(const struct compute_matrix *m)
{
    return m->form < WEIGHT_I16 ? (uint64_t)m->n_blocks * unpacked_bytes(m->form) * 2 : 0;
}

void X86(matmul)(const struct matmul_task *t)
{
    const struct compute_matrix *m = t->matrix;
    const struct kernels *k = kernels;

    if (m->form >= WEIGHT_I16) {
        X86(matmul_float)(t);
        return;
    }
    while (k->type != m->type)
        k++;
    bool unpack_first = t->row_end - t->row_begin >= rows_worth_unpacking(m);
    uint64_t unpacked = (uint64_t)m->n_blocks * unpacked_bytes(m->form);
    for (uint32_t panel = t->panel_begin; panel < t->panel_end; panel += 2) {
        uint32_t panels = MIN(2, t->panel_end - panel);
        const uint8_t *w[2] = {m->data + panel * m->panel_bytes,
                               m->data + (panel + panels - 1) * m->panel_bytes},
                      *next = panel + panels < t->panel_end ? w[1] + m->panel_bytes : t->next;
        if (unpack_first) {
            uint8_t *to[2] = {t->scratch, (uint8_t *)t->scratch + unpacked};
            for (uint32_t p = 0; p < panels; p++) {
                k->unpack(w[p], m->n_blocks, to[p]);
                w[p] = to[p];
            }
        }
        run_rows(t, unpack_first ? k->bytes[panels - 1] : k->packed[panels - 1], w, panel, panels,
                 next);
    }
}
