/* A task of quantised weights, whatever its kernels: panels side by side, unpacked first when many
 * rows read them. The tier that includes this has X86(name), TILE, the words of vector256.h or
 * vector512.h, its kernels, and unpacked_bytes() of a block and rows_worth_unpacking() of a matrix.
 */

#include "compute/cpu/x86/finish.h"
#include "compute/cpu/x86/side_by_side.h"

/* w: the panels p or what they are unpacked to. */
static void run_rows(const struct matmul_task *t, tile_kernel *const *by_rows,
                     const struct side_by_side *p, const uint8_t *const *w)
{
    _Alignas(64) float y[SIDE_BY_SIDE][TILE][LANES];
    const uint32_t n_tiles = (t->row_end - t->row_begin + TILE - 1) / TILE;
    const uint32_t n_blocks = t->matrix->n_blocks;
    const uint8_t *next = after_panels(t, p);
    struct prefetch prefetch =
        prefetch_begin(next, next ? p->n * t->matrix->panel_bytes : 0, n_blocks * n_tiles);

    for (uint32_t row = t->row_begin; row < t->row_end; row += TILE) {
        uint32_t rows = MIN(TILE, t->row_end - row);
        uint64_t at = row / TILE;
        prefetch_outputs_of(t, p, row, rows);
        by_rows[rows - 1](w, prefetch, (const void *)(t->acts->q8 + at * t->acts->q8_tile_bytes),
                          (const void *)(t->acts->outliers + at * t->acts->outlier_tile_bytes),
                          t->matrix->k, y);
        prefetch_advance(&prefetch, n_blocks);
        finish_panels(t, p, y, row, rows);
    }
}

uint64_t X86(matmul_scratch)(const struct compute_matrix *m)
{
    return m->form < WEIGHT_I16 ? (uint64_t)m->n_blocks * unpacked_bytes(m->form) * 2 : 0;
}

/* Two at most: few rows, which may have more, read packed ones. */
static void unpack_panels(const struct matmul_task *t, const struct kernels *k,
                          const struct side_by_side *p, const uint8_t **unpacked)
{
    const struct compute_matrix *m = t->matrix;
    uint8_t *to = t->scratch;

    for (uint32_t i = 0; i < p->n; i++, to += (uint64_t)m->n_blocks * unpacked_bytes(m->form)) {
        k->unpack(p->w[i], m->n_blocks, to);
        unpacked[i] = to;
    }
}

void X86(matmul)(const struct matmul_task *t)
{
    const struct compute_matrix *m = t->matrix;
    const struct kernels *k = kernels;
    struct side_by_side p = {.n = 0};
    const uint8_t *unpacked[2];

    if (m->form >= WEIGHT_I16) {
        X86(matmul_float)(t);
        return;
    }
    while (k->type != m->type)
        k++;
    bool unpack_first = t->row_end - t->row_begin >= rows_worth_unpacking(m);
    while (next_panels(t, &p)) {
        if (unpack_first) {
            unpack_panels(t, k, &p, unpacked);
            run_rows(t, k->bytes[p.n - 1], &p, unpacked);
        } else {
            run_rows(t, p.n == SIDE_BY_SIDE ? k->few : k->packed[p.n - 1], &p, p.w);
        }
    }
}
