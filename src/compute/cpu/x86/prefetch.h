/* The panels that a worker reads next, prefetched a few lines with each block: spread evenly over
 * all tiles of the panels at hand, so that no burst of them fills the line buffers. It may run past
 * the end of the weights, as a prefetch may. */
struct prefetch { /* 16 bytes: passed in registers */
    const uint8_t *at;
    uint32_t lines; /* a block */
    uint32_t left;  /* in all */
};

/* n_bytes, while n_blocks go by. */
INLINE struct prefetch prefetch_begin(const uint8_t *next, uint64_t n_bytes, uint32_t n_blocks)
{
    uint32_t lines = (uint32_t)((n_bytes + 63) / 64);

    if (lines == 0) /* streams have none, and would feel the division */
        return (struct prefetch){next, 0, 0};
    return (struct prefetch){next, (lines + n_blocks - 1) / n_blocks, lines};
}

INLINE void prefetch_lines(struct prefetch *p)
{
    for (uint32_t i = 0; i < p->lines; i++, p->at += 64)
        _mm_prefetch((const char *)p->at, _MM_HINT_T0);
}

/* Of a copy of which n_blocks have gone by. */
INLINE void prefetch_advance(struct prefetch *p, uint32_t n_blocks)
{
    uint32_t lines = n_blocks * p->lines;

    p->at += 64 * (uint64_t)lines;
    p->left -= MIN(lines, p->left);
    if (p->left == 0)
        p->lines = 0;
}
