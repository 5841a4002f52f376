/* A task of quantised weights, whatever its kernels: panels by two, unpacked first when many rows
 * read them. The tier that includes this has X86(name), TILE, the words of vector256.h or
 * vector512.h, its kernels, and unpacked_bytes() of a block and rows_worth_unpacking() of a form.
 */

/* Bias, then residual, of up to a vector's outputs. */
void X86(finish)(const struct compute_product *p, const float *y, uint32_t row, uint32_t output,
                 uint32_t n)
{
    float *to = p->y + row * p->y_stride + output;

    if (n == LANES) {
        lanes_f v = F_LOAD(y);
        if (p->bias)
            v = F_ADD(v, F_LOAD(p->bias + output));
        if (p->residual)
            v = F_ADD(F_LOAD(to), v);
        F_STORE(to, v);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        float v = p->bias ? y[i] + p->bias[output + i] : y[i];
        to[i] = p->residual ? to[i] + v : v;
    }
}

static void run_rows(const struct matmul_task *t, tile_kernel *const *by_rows,
                     const uint8_t *const *w, uint32_t panel, uint32_t panels, uint64_t ahead)
{
    _Alignas(64) float y[2][TILE][LANES];

    for (uint32_t row = t->row_begin; row < t->row_end; row += TILE) {
        uint32_t rows = MIN(TILE, t->row_end - row);
        uint64_t at = row / TILE;
        by_rows[rows - 1](w, row == t->row_begin ? ahead : 0,
                          (const void *)(t->acts->q8 + at * t->acts->q8_tile_bytes),
                          (const void *)(t->acts->outliers + at * t->acts->outlier_tile_bytes),
                          t->matrix->k, y);
        for (uint32_t p = 0; p < panels; p++) {
            uint32_t output = (panel + p) * LANES, n = MIN(LANES, t->matrix->n_outputs - output);
            for (uint32_t i = 0; i < rows; i++)
                X86(finish)(t->product, y[p][i], row + i, output, n);
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
    bool unpack_first = t->row_end - t->row_begin >= rows_worth_unpacking(m->form);
    uint64_t unpacked = (uint64_t)m->n_blocks * unpacked_bytes(m->form);
    for (uint32_t panel = t->panel_begin; panel < t->panel_end; panel += 2) {
        uint32_t panels = MIN(2, t->panel_end - panel);
        const uint8_t *w[2] = {m->data + panel * m->panel_bytes,
                               m->data + (panel + panels - 1) * m->panel_bytes};
        if (unpack_first) {
            uint8_t *to[2] = {t->scratch, (uint8_t *)t->scratch + unpacked};
            for (uint32_t p = 0; p < panels; p++) {
                k->unpack(w[p], m->n_blocks, to[p]);
                w[p] = to[p];
            }
        }
        run_rows(t, unpack_first ? k->bytes[panels - 1] : k->packed[panels - 1], w, panel, panels,
                 2 * m->panel_bytes);
    }
}
