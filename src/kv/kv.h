/* kv: the pages that hold keys and values, who holds them, and which prefixes they spell.
 *
 * A page is PAGE_TOKENS (tensor/tensor.h) tokens of one sequence in every layer. Its slab for one
 * layer is K then V, contiguous, so a slab goes from pool to socket and from socket to pool without
 * a copy. A page is free, held (by one or more sequences) or cached: held by nobody, but named in
 * the prefix index and evictable, least recently used first. Threads: the engine's only, except
 * kv_slab_address(), which is arithmetic. */
#ifndef BATON_KV_KV_H
#define BATON_KV_KV_H

#include "base/status.h"
#include "compute/compute.h"
#include "request/request.h"
#include "tensor/tensor.h"

#include <stdint.h>

typedef uint32_t kv_page_t;
#define KV_PAGE_NONE UINT32_MAX

struct kv_pool;

/* memory: n_pages * kv_page_bytes(geometry), zeroed, 64-byte aligned; it must outlive the pool,
 * which does not free it. */
enum status kv_pool_create(void *memory, uint32_t n_pages, struct kv_geometry geometry,
                           struct kv_pool **out) WARN_UNUSED;
void kv_pool_destroy(struct kv_pool **pool);
struct kv_view kv_pool_view(const struct kv_pool *pool);

/* Takes n_pages free pages, evicting cached prefixes, oldest first, where needed. All or none.
 * Contents are undefined. Owner:  the caller, who returns each with kv_page_release(). Errors:
 * STATUS_NO_PAGES, with nothing evicted in vain. */
enum status kv_pages_acquire(struct kv_pool *pool, uint32_t n_pages,
                             kv_page_t *out_pages) WARN_UNUSED;
void kv_page_retain(struct kv_pool *pool, kv_page_t page);
/* The last release makes a named page cached and any other free. */
void kv_page_release(struct kv_pool *pool, kv_page_t page);
/* Zeroes the lanes from first_lane on, in every layer: what lies beyond a sequence's last token
 * must be zero. */
void kv_page_zero_lanes(struct kv_pool *pool, kv_page_t page, uint32_t first_lane);

/* One layer of one page.
 * Shapes: K [n_kv_heads][head_dim][PAGE_TOKENS], then V [n_kv_heads][PAGE_TOKENS][head_dim].
 * Owner:  the pool, while the caller holds the page. Threads: any. */
static inline void *kv_slab_address(const struct kv_view *view, kv_page_t page, uint32_t layer)
{
    return (char *)view->base + page * view->page_stride + layer * kv_slab_bytes(view->geometry);
}

/* The page of that name, retained for the caller; KV_PAGE_NONE if no page has it. */
kv_page_t kv_prefix_find(struct kv_pool *pool, const struct page_name *name);
/* Names a full page that the caller holds. Nothing happens if the name or the page is taken
 * already. */
void kv_prefix_insert(struct kv_pool *pool, kv_page_t page, const struct page_name *name);
/* Grows whenever a name comes or goes. */
uint64_t kv_prefix_version(const struct kv_pool *pool);
/* Adds every name to a filter (request/request.h). */
void kv_prefix_filter(const struct kv_pool *pool, uint8_t *filter, uint32_t n_bytes);
/* Forgets every cached page that nobody holds. */
void kv_prefix_clear(struct kv_pool *pool);

/* held + cached + free = total. */
struct kv_usage {
    uint32_t n_total, n_free, n_cached, n_held;
};
struct kv_usage kv_pool_usage(const struct kv_pool *pool);

#endif
