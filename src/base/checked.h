/* base/checked: arithmetic on numbers that came from outside. Each returns false, with *out
 * untouched, on overflow. */
#ifndef BATON_BASE_CHECKED_H
#define BATON_BASE_CHECKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool add_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t r;
    if (__builtin_add_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

static inline bool mul_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t r;
    if (__builtin_mul_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

/* Rounds a up to a multiple of align, a power of two. */
static inline bool align_u64(uint64_t a, uint64_t align, uint64_t *out)
{
    uint64_t r;
    if (__builtin_add_overflow(a, align - 1, &r))
        return false;
    *out = r & ~(align - 1);
    return true;
}

#define ARRAY_LENGTH(a) (sizeof(a) / sizeof((a)[0]))
/* <sys/param.h>, which <uv.h> brings in, has the same two. */
#undef MIN
#undef MAX
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

#endif
