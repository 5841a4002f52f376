/* Every op table this program has, and whether this machine runs it. */
#ifndef BATON_TESTS_KERNEL_COMPUTE_TIERS_H
#define BATON_TESTS_KERNEL_COMPUTE_TIERS_H

#include "compute/internal.h"

#include <stdio.h>
#include <stdlib.h>

enum { TIER_REF, TIER_AVX2, TIER_AVX512VNNI, TIER_AVX512VNNI_EMULATED, TIER_COUNT };

#ifdef BATON_TEST_EMULATED
void compute_tier_avx512vnni_emulated(struct compute_ops *ops);
#endif

/* False if there is no such tier here, or this CPU cannot run it. Says so, by name, once. */
static inline bool tier_get(int tier, struct compute_ops *ops)
{
    static const char *const names[] = {"ref without fma instructions", "avx2", "avx512vnni",
                                        "avx512vnni, emulated"};
    static bool said[TIER_COUNT];
    bool ok = true;
    struct compute *probe = NULL;

    *ops = tier == TIER_REF ? compute_ops_ref : compute_ops_ref_fma;
    switch (tier) {
    case TIER_AVX2:
    case TIER_AVX512VNNI:
        /* The library itself says whether the CPU has it: no second copy of the cpuid rules. */
        ok = compute_create(1, names[tier], &probe) == STATUS_OK;
        if (ok)
            *ops = probe->ops;
        compute_destroy(&probe);
        break;
    case TIER_AVX512VNNI_EMULATED:
#ifdef BATON_TEST_EMULATED
        compute_tier_avx512vnni_emulated(ops);
#else
        ok = false;
#endif
        break;
    default:
        break;
    }
    if (!said[tier])
        printf("tier %-30s %s\n", names[tier],
               !ok                                ? "NOT RUN here"
               : tier == TIER_AVX512VNNI_EMULATED ? "emulated"
                                                  : "native");
    said[tier] = true;
    return ok;
}

#define for_each_tier(tier, ops)                                                                   \
    for (int tier = 0; tier < TIER_COUNT; tier++)                                                  \
        if (tier_get(tier, ops))

/* What everything is held against: ref with FMA instructions where there are some. */
static inline struct compute_ops reference(void)
{
    struct compute *c = NULL;
    struct compute_ops ops = compute_ops_ref;

    if (compute_create(1, "ref", &c) == STATUS_OK)
        ops = c->ops;
    compute_destroy(&c);
    return ops;
}

static inline void *test_alloc(uint64_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 127) / 64 * 64);

    if (!p)
        abort();
    memset(p, 0, (bytes + 127) / 64 * 64);
    return p;
}

static inline uint32_t random_below(uint64_t *seed, uint32_t n)
{
    return selftest_random(seed) % n;
}

static const enum dtype all_types[] = {
#define X(name, id, values, bytes) DTYPE_##name,
    DTYPE_TABLE(X)
#undef X
};

/* A matrix packed for a table. */
static inline void test_pack(const struct compute_ops *ops, enum dtype type, uint32_t n, uint32_t k,
                             const void *data, struct compute_matrix *m)
{
    struct raw_rows raw = {0};

    *m = (struct compute_matrix){0};
    matrix_describe(ops, type, n, k, m);
    m->data = test_alloc(m->panel_bytes * m->n_panels);
    if (raw_init(&raw, m, ops->panel) != STATUS_OK)
        abort();
    (void)matrix_pack(ops, m, data, &raw, 0, m->n_panels);
    raw_deinit(&raw);
}

static inline void test_acts(const struct compute_ops *ops, uint32_t rows, uint32_t k,
                             uint32_t forms, struct compute_acts *a)
{
    acts_describe(ops, rows, k, forms, a);
    a->memory = test_alloc(a->n_bytes);
    acts_place(ops, a);
}

#endif
