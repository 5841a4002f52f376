/* The panels that a worker reads next, prefetched a few lines with each block: spread evenly over
 * all tiles of the panels at hand, so that no burst of them fills the line buffers. It may run past
 * the end of the weights, as a prefetch may. */
struct prefetch {
    const uint8_t *at, *end;
    uint32_t lines; /* a block */
};

/* n_bytes, while n_blocks go by. */
INLINE struct prefetch prefetch_begin(const uint8_t *next, uint64_t n_bytes, uint32_t n_blocks)
{
    return (struct prefetch){
        next, next + n_bytes,
        (uint32_t)((n_bytes + 64 * (uint64_t)n_blocks - 1) / (64 * (uint64_t)n_blocks))};
}

INLINE void prefetch_lines(struct prefetch *p)
{
    for (uint32_t i = 0; i < p->lines; i++, p->at += 64)
        _mm_prefetch((const char *)p->at, _MM_HINT_T0);
}

/* Of a copy of which n_blocks have gone by. */
INLINE void prefetch_advance(struct prefetch *p, uint32_t n_blocks)
{
    p->at += 64 * (uint64_t)n_blocks * p->lines;
    if (p->at >= p->end)
        p->lines = 0;
}
