/* What comes after the chains of a tile: bias, then residual. For matmul_task.h and
 * matmul_float_task.h, with TILE and the words of vector256.h or vector512.h. */

/* One row of up to a vector's outputs. */
INLINE void finish_part(const struct compute_product *p, const float *y, float *to, uint32_t output,
                        uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        float v = p->bias ? y[i] + p->bias[output + i] : y[i];
        to[i] = p->residual ? to[i] + v : v;
    }
}

/* y[row][lane] of a panel, whose outputs begin at `output`, n of which the matrix has. */
INLINE void finish(const struct matmul_task *t, float (*y)[LANES], uint32_t row, uint32_t rows,
                   uint32_t output, uint32_t n)
{
    const struct compute_product *p = t->product;
    float *to = matmul_y(t, row, output);

    for (uint32_t i = 0; i < rows; i++, to += p->y_stride) {
        if (n < LANES) {
            finish_part(p, y[i], to, output, n);
            continue;
        }
        lanes_f v = F_LOAD(y[i]);
        if (p->bias)
            v = F_ADD(v, F_LOAD(p->bias + output));
        if (p->residual)
            v = F_ADD(F_LOAD(to), v);
        F_STORE(to, v);
    }
}

/* Prefetches where a tile's n outputs go: with many rows their lines are far apart and cold. */
INLINE void prefetch_outputs(const struct matmul_task *t, uint32_t row, uint32_t rows,
                             uint32_t output, uint32_t n)
{
    const float *to = matmul_y(t, row, output);

    for (uint32_t i = 0; i < rows; i++, to += t->product->y_stride)
        for (uint32_t j = 0; j < n; j += 64 / sizeof *to)
            __builtin_prefetch(to + j, 1);
}
