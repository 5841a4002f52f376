/* Which panels of a task a kernel reads side by side: two neighbours or, when few rows read them,
 * one of each stream of the matrix. Few rows wait for memory, and the CPU's own prefetcher, which
 * follows several streams that go on for long, is faster then than any instructions that ask for
 * lines: a row reads 1.2 to 1.4 times as fast as from pairs with prefetches (measured on Zen 3).
 *
 * Text of matmul_task.h and matmul_float_task.h. */
_Static_assert(SIDE_BY_SIDE == 4 && FEW_ROWS == 2, "these kernels are written out one by one");

struct side_by_side {
    const uint8_t *w[SIDE_BY_SIDE];
    uint32_t n;            /* 1, 2 or SIDE_BY_SIDE */
    uint32_t first, apart; /* panels first, first + apart, ... */
    uint32_t at_in_stream; /* which of a stream's panels they are */
};

/* The next ones, or the first if p->n is 0; false when there are none left. */
INLINE bool next_panels(const struct matmul_task *t, struct side_by_side *p)
{
    const struct compute_matrix *m = t->matrix;
    uint32_t end = t->panel_end, most = 2;

    if (p->n == 0)
        p->first = p->at_in_stream = t->panel_begin;
    p->first += p->n * p->apart;
    p->apart = 1;
    if (t->stream_panels > 0) {
        if (p->first >= m->n_panels)
            p->first = ++p->at_in_stream;
        if (p->at_in_stream >= end)
            return false;
        p->apart = t->stream_panels;
        end = m->n_panels;
        most = SIDE_BY_SIDE;
    } else if (p->first >= end) {
        return false;
    }
    uint32_t left = (end - p->first + p->apart - 1) / p->apart;
    p->n = left < most ? MIN(left, 2) : most;
    for (uint32_t i = 0; i < p->n; i++)
        p->w[i] = m->data + (p->first + i * p->apart) * m->panel_bytes;
    return true;
}

/* What a worker reads after them, to be prefetched, or NULL: streams go on by themselves. */
INLINE const uint8_t *after_panels(const struct matmul_task *t, const struct side_by_side *p)
{
    if (t->stream_panels > 0)
        return NULL;
    return p->first + p->n < t->panel_end ? p->w[p->n - 1] + t->matrix->panel_bytes : t->next;
}

/* The outputs of a row or two, whose panels are far apart, are few lines and stay warm. */
INLINE void prefetch_outputs_of(const struct matmul_task *t, const struct side_by_side *p,
                                uint32_t row, uint32_t rows)
{
    if (p->apart == 1)
        prefetch_outputs(t, row, rows, p->first * LANES, p->n * LANES);
}

/* y[panel][row][lane], of a tile's rows. */
INLINE void finish_panels(const struct matmul_task *t, const struct side_by_side *p,
                          float (*y)[TILE][LANES], uint32_t row, uint32_t rows)
{
    for (uint32_t i = 0; i < p->n; i++) {
        uint32_t output = (p->first + i * p->apart) * LANES;
        finish(t, y[i], row, rows, output, MIN(LANES, t->matrix->n_outputs - output));
    }
}
