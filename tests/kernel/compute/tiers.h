/* What the kernel tests share: every tier that this machine can run or emulate, and problems for
 * them. */
#ifndef BATON_TESTS_KERNEL_COMPUTE_TIERS_H
#define BATON_TESTS_KERNEL_COMPUTE_TIERS_H

#include "compute/internal.h"

#include <stdio.h>
#include <stdlib.h>

#ifdef BATON_TEST_EMULATED
void compute_tier_avx512vnni_emulated(struct compute_ops *ops);
void compute_tier_avx512_emulated(struct compute_ops *ops);
void compute_tier_avxvnni_emulated(struct compute_ops *ops);
#else
#define compute_tier_avx512vnni_emulated NULL
#define compute_tier_avx512_emulated NULL
#define compute_tier_avxvnni_emulated NULL
#endif

/* Those of every processor, so that what did not run is named. */
static const struct test_tier {
    const char *name;
    void (*emulated)(struct compute_ops *ops);
} known_tiers[] = {
    {"ref", NULL}, /* without FMA instructions: with them it is what all are held against */
    {"avx2", NULL},
    {"avx512", compute_tier_avx512_emulated},
    {"avxvnni", compute_tier_avxvnni_emulated},
    {"avx512vnni", compute_tier_avx512vnni_emulated},
    {"neon", NULL},
};

/* NULL if this program or this CPU lacks it. */
static inline const struct tier *tier_named(const char *name)
{
    for (uint32_t i = 0; tier_at(i); i++)
        if (strcmp(tier_at(i)->name, name) == 0)
            return tier_runs_here(tier_at(i)) ? tier_at(i) : NULL;
    return NULL;
}

enum tier_how { TIER_NATIVE, TIER_EMULATED, TIER_NOT_RUN };

static inline enum tier_how tier_get(size_t i, struct compute_ops *ops)
{
    *ops = *tier_ref();
    if (i == 0) {
        *ops = compute_ops_ref;
        return TIER_NATIVE;
    }
    const struct tier *t = tier_named(known_tiers[i].name);
    if (t) {
        *ops = tier_ops(t);
        return TIER_NATIVE;
    }
    if (!known_tiers[i].emulated || !tier_named("avx2")) /* which the emulation is made of */
        return TIER_NOT_RUN;
    known_tiers[i].emulated(ops);
    ops->name = known_tiers[i].name;
    return TIER_EMULATED;
}

/* One line, once: which tiers run natively, which emulated, and which not at all. A program that is
 * itself run by an emulator learns that from the environment. */
static inline void tiers_say(void)
{
    static const char *const how[] = {"native", "emulated", "not run"};
    static bool said;
    const char *whole = getenv("BATON_TEST_EMULATOR");
    struct compute_ops ops;

    if (said)
        return;
    said = true;
    printf("tiers:");
    for (int h = TIER_NATIVE; h <= TIER_NOT_RUN; h++) {
        printf("%s %s:", h ? ";" : "", how[h]);
        for (size_t i = 0; i < ARRAY_LENGTH(known_tiers); i++) {
            int got = (int)tier_get(i, &ops);
            if ((got == TIER_NATIVE && whole ? TIER_EMULATED : got) == h)
                printf(" %s", known_tiers[i].name);
        }
    }
    printf("\n");
}

#define for_each_tier(tier, ops)                                                                   \
    for (size_t tier = (tiers_say(), 0); tier < ARRAY_LENGTH(known_tiers); tier++)                 \
        if (tier_get(tier, ops) != TIER_NOT_RUN)

/* What everything is held against. */
static inline struct compute_ops reference(void)
{
    return *tier_ref();
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
    *m = (struct compute_matrix){0};
    matrix_describe(ops, type, n, k, m);
    m->data = test_alloc(m->panel_bytes * m->n_panels);
    (void)matrix_pack(ops, m, data, 0, m->n_panels);
}

static inline void test_acts(const struct compute_ops *ops, uint32_t rows, uint32_t k,
                             uint32_t forms, struct compute_acts *a)
{
    acts_describe(ops, rows, k, forms, a);
    a->memory = test_alloc(a->n_bytes);
    acts_place(ops, a);
}

#endif
