/* Pages against a plain model of them, under random use. */
#include "kv/kv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_PAGES = 37, N_NAMES = 64 };

static struct page_name name_of(uint32_t i)
{
    struct page_name n = {{0}};

    memcpy(n.bytes, &(uint32_t){i * 2654435761u}, 4);
    n.bytes[8] = (uint8_t)i;
    return n;
}

static uint32_t next(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33);
}

static void test_random_use(void **state)
{
    const struct kv_geometry g = {.n_layers = 2, .n_kv_heads = 1, .head_dim = 8};
    void *memory = calloc(N_PAGES, kv_page_bytes(g));
    struct kv_pool *pool;
    uint32_t refs[N_PAGES] = {0}, n_held_pages = 0;
    kv_page_t held[4096];
    uint32_t n_held = 0;
    uint64_t seed = 1;

    assert_int_equal(kv_pool_create(memory, N_PAGES, g, &pool), STATUS_OK);
    for (int step = 0; step < 20000; step++) {
        const uint32_t what = next(&seed) % 5;
        if (what == 0) {
            const uint32_t n = 1 + next(&seed) % 5;
            kv_page_t pages[5];
            const struct kv_usage before = kv_pool_usage(pool);
            if (kv_pages_acquire(pool, n, pages) == STATUS_OK) {
                assert_true(n <= before.n_free + before.n_cached);
                for (uint32_t i = 0; i < n; i++) {
                    assert_int_equal(refs[pages[i]], 0);
                    refs[pages[i]] = 1;
                    held[n_held++] = pages[i];
                }
            } else {
                assert_true(n > before.n_free + before.n_cached);
                assert_int_equal(kv_pool_usage(pool).n_cached, before.n_cached);
            }
        } else if (what == 1 && n_held) {
            const uint32_t i = next(&seed) % n_held;
            kv_page_release(pool, held[i]);
            refs[held[i]]--;
            held[i] = held[--n_held];
        } else if (what == 2 && n_held) {
            const struct page_name n = name_of(next(&seed) % N_NAMES);
            kv_prefix_insert(pool, held[next(&seed) % n_held], &n);
        } else if (what == 3 && n_held < 4000) {
            const struct page_name n = name_of(next(&seed) % N_NAMES);
            const kv_page_t page = kv_prefix_find(pool, &n);
            if (page != KV_PAGE_NONE) {
                refs[page]++;
                held[n_held++] = page;
            }
        }
        n_held_pages = 0;
        for (uint32_t i = 0; i < N_PAGES; i++)
            n_held_pages += refs[i] > 0;
        const struct kv_usage u = kv_pool_usage(pool);
        assert_int_equal(u.n_held, n_held_pages);
        assert_int_equal(u.n_free + u.n_cached + u.n_held, N_PAGES);
    }
    while (n_held)
        kv_page_release(pool, held[--n_held]);
    kv_prefix_clear(pool);
    assert_int_equal(kv_pool_usage(pool).n_free, N_PAGES);
    kv_pool_destroy(&pool);
    free(memory);
}

static void test_oldest_goes_first(void **state)
{
    const struct kv_geometry g = {.n_layers = 1, .n_kv_heads = 1, .head_dim = 8};
    void *memory = calloc(4, kv_page_bytes(g));
    struct kv_pool *pool;
    kv_page_t pages[4], one;

    assert_int_equal(kv_pool_create(memory, 4, g, &pool), STATUS_OK);
    assert_int_equal(kv_pages_acquire(pool, 4, pages), STATUS_OK);
    for (uint32_t i = 0; i < 4; i++) {
        const struct page_name n = name_of(i);
        kv_prefix_insert(pool, pages[i], &n);
        kv_page_release(pool, pages[i]);
    }
    const struct page_name n0 = name_of(0), n1 = name_of(1);
    kv_page_release(pool, kv_prefix_find(pool, &n0)); /* used again: now the newest */
    assert_int_equal(kv_pages_acquire(pool, 1, &one), STATUS_OK);
    assert_int_equal(kv_prefix_find(pool, &n1), KV_PAGE_NONE);
    assert_int_not_equal(kv_prefix_find(pool, &n0), KV_PAGE_NONE);
    kv_pool_destroy(&pool);
    free(memory);
}

static void test_zero_lanes(void **state)
{
    const struct kv_geometry g = {.n_layers = 2, .n_kv_heads = 2, .head_dim = 8};
    uint16_t *memory = calloc(2, kv_page_bytes(g));
    struct kv_pool *pool;
    kv_page_t page;

    assert_int_equal(kv_pool_create(memory, 2, g, &pool), STATUS_OK);
    assert_int_equal(kv_pages_acquire(pool, 1, &page), STATUS_OK);
    memset(memory, 0xff, 2 * kv_page_bytes(g));
    kv_page_zero_lanes(pool, page, 5);
    const struct kv_view v = kv_pool_view(pool);
    for (uint32_t layer = 0; layer < 2; layer++) {
        const uint16_t *k = kv_slab_address(&v, page, layer), *values = k + 2 * 8 * PAGE_TOKENS;
        for (uint32_t head = 0; head < 2; head++)
            for (uint32_t d = 0; d < 8; d++)
                for (uint32_t t = 0; t < PAGE_TOKENS; t++) {
                    assert_int_equal(k[(head * 8 + d) * PAGE_TOKENS + t], t < 5 ? 0xffff : 0);
                    assert_int_equal(values[(head * PAGE_TOKENS + t) * 8 + d], t < 5 ? 0xffff : 0);
                }
    }
    const kv_page_t other = 1 - page;
    assert_int_equal(*(uint16_t *)kv_slab_address(&v, other, 0), 0xffff);
    kv_pool_destroy(&pool);
    free(memory);
}

/* A filter finds every name that is there, and hardly any other. */
static void test_filter(void **state)
{
    enum { N = 400 };
    const struct kv_geometry g = {.n_layers = 1, .n_kv_heads = 1, .head_dim = 8};
    const struct page_namespace space = {.kv_type = KV_TYPE_F16};
    const uint32_t n_bytes = prefix_filter_bytes(N);
    uint8_t filter[PREFIX_FILTER_BYTES_MAX] = {0};
    void *memory = calloc(N, kv_page_bytes(g));
    struct page_name names[2 * N];
    struct kv_pool *pool;
    kv_page_t pages[N];
    uint32_t n_false = 0;

    for (uint32_t i = 0; i < 2 * N; i++) {
        uint32_t ids[PAGE_TOKENS] = {i};
        names[i] = page_name(NULL, &space, ids);
    }
    assert_int_equal(kv_pool_create(memory, N, g, &pool), STATUS_OK);
    assert_int_equal(kv_pages_acquire(pool, N, pages), STATUS_OK);
    const uint64_t before = kv_prefix_version(pool);
    for (uint32_t i = 0; i < N; i++)
        kv_prefix_insert(pool, pages[i], &names[i]);
    assert_true(kv_prefix_version(pool) > before);
    kv_prefix_filter(pool, filter, n_bytes);
    for (uint32_t i = 0; i < N; i++)
        assert_true(prefix_filter_has(filter, n_bytes, &names[i]));
    for (uint32_t i = N; i < 2 * N; i++)
        n_false += prefix_filter_has(filter, n_bytes, &names[i]);
    assert_true(n_false < N / 20);
    assert_false(prefix_filter_has(filter, 0, &names[0]));
    for (uint32_t i = 0; i < N; i++)
        kv_page_release(pool, pages[i]);
    kv_prefix_clear(pool);
    memset(filter, 0, sizeof filter);
    kv_prefix_filter(pool, filter, n_bytes);
    assert_false(prefix_filter_has(filter, n_bytes, &names[0]));
    kv_pool_destroy(&pool);
    free(memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_use),
        cmocka_unit_test(test_oldest_goes_first),
        cmocka_unit_test(test_zero_lanes),
        cmocka_unit_test(test_filter),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
