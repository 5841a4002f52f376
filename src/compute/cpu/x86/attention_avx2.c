/* Attention on eight lanes. */
#include "compute/cpu/x86/avx2.h"

#define X86(name) avx2_##name
#include "compute/cpu/attention_task.h"

INLINE uint32_t wide_product(const struct task *k, uint32_t from, const float *const *a,
                             const void *b, const void *ahead, const bool half, uint32_t width,
                             uint32_t n, float *const *c, bool first)
{
    return 0;
}

#include "compute/cpu/x86/attention.h"
