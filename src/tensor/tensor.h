/* tensor: data types, block layouts and the geometry of pages and slabs. Plain data; no arithmetic
 * on values. */
#ifndef BATON_TENSOR_TENSOR_H
#define BATON_TENSOR_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TENSOR_MAX_DIMS 4

/* Values are GGUF's type ids. name, id, values in a block, bytes of a block */
#define DTYPE_TABLE(X)                                                                             \
    X(F32, 0, 1, 4)                                                                                \
    X(F16, 1, 1, 2)                                                                                \
    X(Q4_0, 2, 32, 18)                                                                             \
    X(Q4_1, 3, 32, 20)                                                                             \
    X(Q5_0, 6, 32, 22)                                                                             \
    X(Q8_0, 8, 32, 34)                                                                             \
    X(Q4_K, 12, 256, 144)                                                                          \
    X(Q5_K, 13, 256, 176)                                                                          \
    X(Q6_K, 14, 256, 210)                                                                          \
    X(BF16, 30, 1, 2)

enum dtype {
#define X(name, id, values, bytes) DTYPE_##name = id,
    DTYPE_TABLE(X)
#undef X
};

/* False for an id that this program does not read. */
bool dtype_known(uint32_t id);
/* "Q4_1"; "type 7" style numbers are the caller's affair: NULL when unknown. */
const char *dtype_name(enum dtype t);
uint32_t dtype_block_values(enum dtype t);
uint32_t dtype_block_bytes(enum dtype t);

/* A page holds this many tokens of one sequence, in every layer. Part of the wire format and of
 * page names. */
#define PAGE_TOKENS 32

/* What a page looks like for one model. One layer of one page is a slab: K
 * [n_kv_heads][head_dim][PAGE_TOKENS], then V [n_kv_heads][PAGE_TOKENS][head_dim], both f16. K has
 * tokens innermost since keys are the lanes of q.K, V has dims innermost since dims are the lanes
 * of p.V; so attention reads a page straight. */
struct kv_geometry {
    uint32_t n_layers;
    uint32_t n_kv_heads;
    uint32_t head_dim;
};
/* Units: bytes; a multiple of 64 for every head_dim that is a multiple of 1. */
static inline uint64_t kv_slab_bytes(struct kv_geometry g)
{
    return (uint64_t)g.n_kv_heads * g.head_dim * PAGE_TOKENS * 2 * 2;
}
static inline uint64_t kv_page_bytes(struct kv_geometry g)
{
    return kv_slab_bytes(g) * g.n_layers;
}
static inline uint32_t kv_pages_of_tokens(uint32_t n_tokens)
{
    return n_tokens / PAGE_TOKENS + (n_tokens % PAGE_TOKENS != 0);
}

#endif
