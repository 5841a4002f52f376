/* What a worker reads next, fetched a few lines with each block: spread over the tiles of the
 * panels at hand, memory is never asked for more than it gives in that time. */
struct ahead {
    const uint8_t *at, *end;
    uint32_t lines; /* a block */
};

/* n_bytes, while n_blocks go by. */
INLINE struct ahead ahead_of(const uint8_t *next, uint64_t n_bytes, uint32_t n_blocks)
{
    return (struct ahead){
        next, next + n_bytes,
        (uint32_t)((n_bytes + 64 * (uint64_t)n_blocks - 1) / (64 * (uint64_t)n_blocks))};
}

INLINE void fetch_ahead(struct ahead *a)
{
    for (uint32_t i = 0; i < a->lines; i++, a->at += 64)
        _mm_prefetch((const char *)a->at, _MM_HINT_T0);
}

/* After n_blocks more. */
INLINE void move_ahead(struct ahead *a, uint32_t n_blocks)
{
    a->at += 64 * (uint64_t)n_blocks * a->lines;
    if (a->at >= a->end)
        a->lines = 0;
}
