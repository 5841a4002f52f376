/* Which tiers this program has, and which of them this CPU and this system run. */
#include "compute/internal.h"

enum {
    CPU_FMA = 1 << 0,
    CPU_AVX2 = 1 << 1,    /* with FMA and F16C */
    CPU_AVXVNNI = 1 << 2, /* the VEX forms, on vectors of 256 bits */
    CPU_AVX512 = 1 << 3,  /* F, BW, VL */
    CPU_AVX512VNNI = 1 << 4,
    CPU_DOTPROD = 1 << 5, /* Arm's sdot */
};

#if defined(__x86_64__)
#include <cpuid.h>

#define STATE_YMM 0x06u
#define STATE_ZMM 0xE6u
#define AVXVNNI_BIT (1u << 4) /* leaf 7.1, eax: older cpuid.h lack its name */

static uint64_t saved_state(void)
{
    uint32_t low, high;

    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

/* What the CPU has *and* the system saves (xgetbv). */
static unsigned cpu_features(void)
{
    const uint32_t avx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512VL;
    uint32_t a, b, c, d, b7, c7;
    unsigned found = 0;

    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE))
        return 0;
    uint64_t saved = saved_state();
    if ((saved & STATE_YMM) != STATE_YMM || !(c & bit_FMA && c & bit_AVX && c & bit_SSE4_1))
        return 0;
    found |= CPU_FMA;
    if (!(c & bit_F16C) || !__get_cpuid_count(7, 0, &a, &b7, &c7, &d) || !(b7 & bit_AVX2))
        return found;
    found |= CPU_AVX2;
    if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && a & AVXVNNI_BIT)
        found |= CPU_AVXVNNI;
    if ((saved & STATE_ZMM) == STATE_ZMM && (b7 & avx512) == avx512)
        found |= CPU_AVX512 | (c7 & bit_AVX512VNNI ? CPU_AVX512VNNI : 0);
    return found;
}
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>

#define HWCAP_DOTPROD (1ul << 20) /* asimddp */

static unsigned cpu_features(void)
{
    return CPU_FMA | (getauxval(AT_HWCAP) & HWCAP_DOTPROD ? CPU_DOTPROD : 0);
}
#elif defined(__aarch64__)
static unsigned cpu_features(void)
{
    return CPU_FMA;
}
#else
static unsigned cpu_features(void)
{
    return 0;
}
#endif

static unsigned features(void)
{
    enum { KNOWN = 1u << 31 };
    static _Atomic unsigned found;
    unsigned f = atomic_load_explicit(&found, memory_order_relaxed);

    if (!f) {
        f = cpu_features() | KNOWN;
        atomic_store_explicit(&found, f, memory_order_relaxed);
    }
    return f;
}

/* Best first. A dot instruction outweighs wider vectors: without it each group of four products
 * takes three instructions rather than one. */
static const struct tier tiers[] = {
#ifdef COMPUTE_HAS_X86
    {"avx512vnni", CPU_AVX512 | CPU_AVX512VNNI, compute_tier_avx512vnni},
#ifdef COMPUTE_HAS_AVXVNNI
    {"avxvnni", CPU_AVX2 | CPU_AVXVNNI, compute_tier_avxvnni},
#endif
    {"avx512", CPU_AVX512, compute_tier_avx512},
    {"avx2", CPU_AVX2, compute_tier_avx2},
#endif
#ifdef COMPUTE_HAS_NEON
    {"neon", CPU_DOTPROD, compute_tier_neon},
#endif
    {"ref", 0, NULL},
};

const struct tier *tier_at(uint32_t i)
{
    return i < ARRAY_LENGTH(tiers) ? &tiers[i] : NULL;
}

bool tier_runs_here(const struct tier *t)
{
    return (features() & t->needs) == t->needs;
}

const struct compute_ops *tier_ref(void)
{
    return features() & CPU_FMA ? &compute_ops_ref_fma : &compute_ops_ref;
}

struct compute_ops tier_ops(const struct tier *t)
{
    struct compute_ops ops = *tier_ref();

    if (t->override)
        t->override(&ops);
    ops.name = t->name;
    return ops;
}
