#include "base/random.h"

#include "base/clock.h"

#include <stdatomic.h>
#include <sys/random.h>
#include <unistd.h>

uint64_t random_u64(void)
{
    uint64_t r = 0;

    if (getrandom(&r, sizeof r, 0) != (ssize_t)sizeof r) {
        /* only before the kernel's pool is ready, which a server never sees: splitmix over what
         * differs between processes */
        static _Atomic uint64_t counter;
        uint64_t step = atomic_fetch_add(&counter, 0x9E3779B97F4A7C15u);
        uint64_t z = (uint64_t)clock_now_ns() ^ ((uint64_t)getpid() << 32) ^ step;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        r = z ^ (z >> 31);
    }
    return r;
}
