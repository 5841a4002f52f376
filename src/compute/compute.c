/* Making a compute: the tier, its self test, the workers; memory; sampling's entries. */
#include "compute/internal.h"

#include "base/log.h"

#include <stdlib.h>
#include <sys/mman.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

enum { CPU_FMA = 1, CPU_AVX2 = 2, CPU_AVX512VNNI = 4 };

static uint64_t xgetbv0(void)
{
    uint32_t low, high;

    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

/* What the CPU has *and* the system saves (xgetbv). */
static unsigned cpu_features(void)
{
    uint32_t a, b, c, d, b7, c7, d7;
    unsigned found = 0;

    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE))
        return 0;
    uint64_t saved = xgetbv0();
    if ((saved & 6) != 6)
        return 0;
    bool fma = c & bit_FMA && c & bit_AVX && c & bit_SSE4_1, f16c = c & bit_F16C;
    if (!__get_cpuid_count(7, 0, &a, &b7, &c7, &d7))
        return fma ? CPU_FMA : 0;
    found |= fma ? CPU_FMA : 0;
    if (fma && f16c && b7 & bit_AVX2)
        found |= CPU_AVX2;
    uint32_t need = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    if (found & CPU_AVX2 && (saved & 0xE6) == 0xE6 && (b7 & need) == need && c7 & bit_AVX512VNNI)
        found |= CPU_AVX512VNNI;
    return found;
}
#else
enum { CPU_FMA = 1, CPU_AVX2 = 2, CPU_AVX512VNNI = 4 };

static unsigned cpu_features(void)
{
    return 0;
}
#endif

/* Best first. */
static const struct tier {
    const char *name;
    unsigned needs;
    void (*override)(struct compute_ops *ops);
} tiers[] = {
#ifdef COMPUTE_HAS_AVX512VNNI
    {"avx512vnni", CPU_AVX512VNNI, compute_tier_avx512vnni},
#endif
#ifdef COMPUTE_HAS_AVX2
    {"avx2", CPU_AVX2, compute_tier_avx2},
#endif
    {"ref", 0, NULL},
};

static struct compute_ops tier_ops(const struct tier *t, unsigned features)
{
    struct compute_ops ops = features & CPU_FMA ? compute_ops_ref_fma : compute_ops_ref;

    if (t->override)
        t->override(&ops);
    ops.name = t->name;
    return ops;
}

/* The named tier, or the best one whose fixed vectors give ref's bits. */
static enum status choose_tier(struct compute *c, const char *name)
{
    unsigned features = cpu_features();
    bool known = false;

    if (!name)
        name = getenv("BATON_TIER");
    if (name && !*name)
        name = NULL;
    struct compute_ops ref = features & CPU_FMA ? compute_ops_ref_fma : compute_ops_ref;
    TRY(selftest_digest(&ref, c->digest));
    for (size_t i = 0; i < ARRAY_LENGTH(tiers); i++) {
        const struct tier *t = &tiers[i];
        uint8_t digest[COMPUTE_DIGEST_BYTES];
        if (name && strcmp(name, t->name) != 0)
            continue;
        known = true;
        if ((features & t->needs) != t->needs)
            continue;
        c->ops = tier_ops(t, features);
        TRY(selftest_digest(&c->ops, digest));
        if (memcmp(digest, c->digest, sizeof digest) == 0)
            return STATUS_OK;
        log_event(LOG_WARN, "a kernel tier was dropped: its results differ from the reference",
                  "tier=%s", t->name);
    }
    if (known)
        return fail(STATUS_USAGE, "kernel tier %s does not run on this CPU", name);
    return fail(STATUS_USAGE, "there is no kernel tier %s in this program: ref, avx2, avx512vnni",
                name ? name : "ref");
}

enum status compute_create(uint32_t n_threads, const char *tier, struct compute **out)
{
    if (n_threads == 0 || n_threads > 1024)
        return fail(STATUS_USAGE, "%u threads: 1 to 1024 are possible", n_threads);
    struct compute *c = memory_alloc(1, sizeof *c);
    if (!c)
        return STATUS_NO_MEMORY;
    c->n_threads = n_threads;
    enum status status = choose_tier(c, tier);
    if (status == STATUS_OK)
        status = pool_create(c, n_threads, &c->pool);
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

void *compute_alloc(struct compute *c, uint64_t bytes)
{
    (void)c;
    void *p = MAP_FAILED;

    if (bytes && bytes <= SIZE_MAX / 2)
        p = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
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
    static _Atomic int has_fma = -1;
    float y;

    if (atomic_load(&has_fma) < 0)
        atomic_store(&has_fma, (cpu_features() & CPU_FMA) != 0);
    (atomic_load(&has_fma) ? compute_ops_ref_fma : compute_ops_ref).exp2(&x, 1, &y);
    return y;
}
