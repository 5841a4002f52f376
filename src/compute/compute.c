/* Making a compute: the tier, its self test, the workers; memory; sampling's entries. */
#include "compute/internal.h"

#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define HUGE_PAGE_BYTES ((size_t)2 << 20)

static enum status no_such_tier(const char *name, const struct tier *(*at)(uint32_t i))
{
    char names[128] = "";
    size_t n = 0;

    for (uint32_t i = 0; at(i) && n < sizeof names; i++)
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", i ? ", " : "", at(i)->name);
    return fail(STATUS_USAGE, "there is no kernel tier %s in this program: %s", name, names);
}

/* The workers on one tier; *out_same if each of them gets ref's bits from it. */
static enum status start_workers(struct compute *c, const struct tier *t, bool *out_same)
{
    c->ops = tier_ops(t);
    TRY(pool_create(c, c->n_threads, &c->pool));
    enum status status = selftest_workers(c, out_same);
    if (status != STATUS_OK || !*out_same)
        pool_destroy(&c->pool);
    return status;
}

enum status tier_start(struct compute *c, const char *name, const struct tier *(*at)(uint32_t i))
{
    bool known = false;

    TRY(selftest_digest(tier_ref(), c->digest));
    for (uint32_t i = 0; at(i); i++) {
        const struct tier *t = at(i);
        bool same;
        if (name && strcmp(name, t->name) != 0)
            continue;
        known = true;
        if (!tier_runs_here(t))
            continue;
        TRY(start_workers(c, t, &same));
        if (same)
            return STATUS_OK;
        log_event(LOG_WARN, "a kernel tier was dropped: its results differ from the reference",
                  "tier=%s", t->name);
    }
    if (!name)
        return fail(STATUS_USAGE, "the reference kernels do not repeat their results on this CPU");
    return known ? fail(STATUS_USAGE, "kernel tier %s does not run on this CPU", name)
                 : no_such_tier(name, at);
}

enum status compute_create(uint32_t n_threads, const char *tier, struct compute **out)
{
    if (n_threads == 0 || n_threads > 1024)
        return fail(STATUS_USAGE, "%u threads: 1 to 1024 are possible", n_threads);
    struct compute *c = memory_alloc(1, sizeof *c);
    if (!c)
        return STATUS_NO_MEMORY;
    c->n_threads = n_threads;
    if (!tier)
        tier = getenv("BATON_TIER");
    enum status status = tier_start(c, tier && *tier ? tier : NULL, tier_at);
    if (status != STATUS_OK) {
        free(c);
        return status;
    }
    *out = c;
    return STATUS_OK;
}

void compute_destroy(struct compute **c)
{
    if (!*c)
        return;
    pool_destroy(&(*c)->pool);
    free((*c)->list);
    free((*c)->groups);
    free((*c)->parts);
    free(*c);
    *c = NULL;
}

const char *compute_tier_name(const struct compute *c)
{
    return c->ops.name;
}

uint32_t compute_n_threads(const struct compute *c)
{
    return c->n_threads;
}

void compute_numerics_digest(const struct compute *c, uint8_t out[COMPUTE_DIGEST_BYTES])
{
    memcpy(out, c->digest, COMPUTE_DIGEST_BYTES);
}

uint64_t compute_progress(const struct compute *c)
{
    return atomic_load(&c->progress);
}

/* Big things begin where a huge page may. */
static void *map_aligned(size_t bytes)
{
    size_t unit = bytes < HUGE_PAGE_BYTES ? 0 : HUGE_PAGE_BYTES;
    uint8_t *p =
        mmap(NULL, bytes + unit, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED || unit == 0)
        return p;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), kept = (bytes + page - 1) / page * page,
           before = (unit - (uintptr_t)p % unit) % unit;
    if (before > 0)
        munmap(p, before);
    munmap(p + before + kept, unit - before); /* at least a page */
    return p + before;
}

void *compute_alloc(struct compute *c, uint64_t bytes)
{
    (void)c;
    void *p = MAP_FAILED;

    if (bytes && bytes <= SIZE_MAX / 2)
        p = map_aligned((size_t)bytes);
    if (p == MAP_FAILED) {
        fail(STATUS_NO_MEMORY, "no memory for %llu bytes", (unsigned long long)bytes);
        return NULL;
    }
#ifdef MADV_HUGEPAGE
    (void)madvise(p, (size_t)bytes, MADV_HUGEPAGE); /* a hint only */
#endif
    return p;
}

void compute_free(struct compute *c, void *p, uint64_t bytes)
{
    (void)c;
    if (p)
        munmap(p, (size_t)bytes);
}

float compute_max(const struct compute *c, const float *z, uint32_t n)
{
    return c->ops.maximum(z, n);
}

bool compute_all_valid(const struct compute *c, const float *z, uint32_t n)
{
    return c->ops.all_valid(z, n);
}

void compute_sample_weights(const struct compute *c, const float *z, uint32_t n, float zmax,
                            float scale, uint32_t *w)
{
    c->ops.sample_weights(z, n, zmax, scale, w);
}

double compute_log_sum(const struct compute *c, const float *z, uint32_t n, float zmax)
{
    return compute_ln(c->ops.log_sum(z, n, zmax));
}

float compute_exp2(float x)
{
    float y;

    tier_ref()->exp2(&x, 1, &y);
    return y;
}
