#include "kv/kv.h"

#include "base/checked.h"
#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

struct page {
    uint32_t refs;
    bool named;
    struct page_name name;
    kv_page_t hash_next;          /* chain of the prefix index */
    kv_page_t lru_prev, lru_next; /* while cached: prev is older */
    kv_page_t free_next;
};

struct kv_pool {
    struct kv_view view;
    struct page *pages;
    kv_page_t *buckets;
    uint32_t n_buckets; /* a power of two */
    uint32_t n_pages;
    kv_page_t free_head;
    kv_page_t lru_oldest, lru_newest;
    uint32_t n_free, n_cached;
    uint64_t version; /* of the index */
};

enum status kv_pool_create(void *memory, uint32_t n_pages, struct kv_geometry geometry,
                           struct kv_pool **out)
{
    struct kv_pool *pool = memory_alloc(1, sizeof *pool);

    if (!pool)
        return STATUS_NO_MEMORY;
    pool->n_buckets = 16;
    while (pool->n_buckets < n_pages && pool->n_buckets < 1u << 30)
        pool->n_buckets *= 2;
    pool->pages = memory_alloc(n_pages, sizeof *pool->pages);
    pool->buckets = memory_alloc(pool->n_buckets, sizeof *pool->buckets);
    if (!pool->pages || !pool->buckets) {
        kv_pool_destroy(&pool);
        return STATUS_NO_MEMORY;
    }
    pool->view = (struct kv_view){
        .base = memory, .page_stride = kv_page_bytes(geometry), .geometry = geometry};
    pool->n_pages = pool->n_free = n_pages;
    memset(pool->buckets, 0xff, pool->n_buckets * sizeof *pool->buckets);
    for (uint32_t i = 0; i < n_pages; i++)
        pool->pages[i].free_next = i + 1 < n_pages ? i + 1 : KV_PAGE_NONE;
    pool->free_head = n_pages ? 0 : KV_PAGE_NONE;
    pool->lru_oldest = pool->lru_newest = KV_PAGE_NONE;
    *out = pool;
    return STATUS_OK;
}

void kv_pool_destroy(struct kv_pool **pool)
{
    if (!*pool)
        return;
    free((*pool)->pages);
    free((*pool)->buckets);
    free(*pool);
    *pool = NULL;
}

struct kv_view kv_pool_view(const struct kv_pool *pool)
{
    return pool->view;
}

static uint32_t bucket_of(const struct kv_pool *pool, const struct page_name *name)
{
    uint32_t h;

    memcpy(&h, name->bytes, sizeof h); /* the name is a hash already */
    return h & (pool->n_buckets - 1);
}

static void lru_remove(struct kv_pool *pool, kv_page_t i)
{
    struct page *p = &pool->pages[i];

    *(p->lru_prev != KV_PAGE_NONE ? &pool->pages[p->lru_prev].lru_next : &pool->lru_oldest) =
        p->lru_next;
    *(p->lru_next != KV_PAGE_NONE ? &pool->pages[p->lru_next].lru_prev : &pool->lru_newest) =
        p->lru_prev;
    pool->n_cached--;
}

static void lru_append(struct kv_pool *pool, kv_page_t i)
{
    struct page *p = &pool->pages[i];

    p->lru_prev = pool->lru_newest;
    p->lru_next = KV_PAGE_NONE;
    *(pool->lru_newest != KV_PAGE_NONE ? &pool->pages[pool->lru_newest].lru_next
                                       : &pool->lru_oldest) = i;
    pool->lru_newest = i;
    pool->n_cached++;
}

static void forget_name(struct kv_pool *pool, kv_page_t i)
{
    kv_page_t *link = &pool->buckets[bucket_of(pool, &pool->pages[i].name)];

    while (*link != i)
        link = &pool->pages[*link].hash_next;
    *link = pool->pages[i].hash_next;
    pool->pages[i].named = false;
    pool->version++;
}

static void push_free(struct kv_pool *pool, kv_page_t i)
{
    pool->pages[i].free_next = pool->free_head;
    pool->free_head = i;
    pool->n_free++;
}

static void evict_oldest(struct kv_pool *pool)
{
    kv_page_t i = pool->lru_oldest;

    lru_remove(pool, i);
    forget_name(pool, i);
    push_free(pool, i);
}

enum status kv_pages_acquire(struct kv_pool *pool, uint32_t n_pages, kv_page_t *out_pages)
{
    if (n_pages > pool->n_free + pool->n_cached)
        return fail(STATUS_NO_PAGES, "%u pages wanted, %u free and %u cached of %u", n_pages,
                    pool->n_free, pool->n_cached, pool->n_pages);
    while (pool->n_free < n_pages)
        evict_oldest(pool);
    for (uint32_t i = 0; i < n_pages; i++) {
        kv_page_t page = pool->free_head;
        pool->free_head = pool->pages[page].free_next;
        pool->n_free--;
        pool->pages[page].refs = 1;
        out_pages[i] = page;
    }
    return STATUS_OK;
}

void kv_page_retain(struct kv_pool *pool, kv_page_t page)
{
    struct page *p = &pool->pages[page];

    if (p->refs++ == 0)
        lru_remove(pool, page);
}

void kv_page_release(struct kv_pool *pool, kv_page_t page)
{
    struct page *p = &pool->pages[page];

    if (--p->refs > 0)
        return;
    if (p->named)
        lru_append(pool, page);
    else
        push_free(pool, page);
}

void kv_page_zero_lanes(struct kv_pool *pool, kv_page_t page, uint32_t first_lane)
{
    const struct kv_geometry g = pool->view.geometry;

    if (first_lane >= PAGE_TOKENS)
        return;
    for (uint32_t layer = 0; layer < g.n_layers; layer++) {
        uint16_t *k = kv_slab_address(&pool->view, page, layer);
        uint16_t *v = k + (size_t)g.n_kv_heads * g.head_dim * PAGE_TOKENS;
        if (first_lane == 0) {
            memset(k, 0, kv_slab_bytes(g));
            continue;
        }
        for (uint32_t row = 0; row < g.n_kv_heads * g.head_dim; row++)
            memset(k + (size_t)row * PAGE_TOKENS + first_lane, 0,
                   (PAGE_TOKENS - first_lane) * sizeof *k);
        for (uint32_t head = 0; head < g.n_kv_heads; head++)
            memset(v + ((size_t)head * PAGE_TOKENS + first_lane) * g.head_dim, 0,
                   (size_t)(PAGE_TOKENS - first_lane) * g.head_dim * sizeof *v);
    }
}

kv_page_t kv_prefix_find(struct kv_pool *pool, const struct page_name *name)
{
    kv_page_t i = pool->buckets[bucket_of(pool, name)];

    while (i != KV_PAGE_NONE && memcmp(&pool->pages[i].name, name, sizeof *name))
        i = pool->pages[i].hash_next;
    if (i != KV_PAGE_NONE)
        kv_page_retain(pool, i);
    return i;
}

void kv_prefix_insert(struct kv_pool *pool, kv_page_t page, const struct page_name *name)
{
    struct page *p = &pool->pages[page];
    kv_page_t *bucket = &pool->buckets[bucket_of(pool, name)];

    if (p->named)
        return;
    for (kv_page_t i = *bucket; i != KV_PAGE_NONE; i = pool->pages[i].hash_next)
        if (!memcmp(&pool->pages[i].name, name, sizeof *name))
            return;
    p->named = true;
    p->name = *name;
    p->hash_next = *bucket;
    *bucket = page;
    pool->version++;
}

uint64_t kv_prefix_version(const struct kv_pool *pool)
{
    return pool->version;
}

void kv_prefix_filter(const struct kv_pool *pool, uint8_t *filter, uint32_t n_bytes)
{
    for (uint32_t i = 0; i < pool->n_pages; i++)
        if (pool->pages[i].named)
            prefix_filter_add(filter, n_bytes, &pool->pages[i].name);
}

void kv_prefix_clear(struct kv_pool *pool)
{
    while (pool->n_cached)
        evict_oldest(pool);
}

struct kv_usage kv_pool_usage(const struct kv_pool *pool)
{
    return (struct kv_usage){.n_total = pool->n_pages,
                             .n_free = pool->n_free,
                             .n_cached = pool->n_cached,
                             .n_held = pool->n_pages - pool->n_free - pool->n_cached};
}
