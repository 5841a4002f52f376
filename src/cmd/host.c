/* What this host gives a process: cores and memory. */
#include "cmd/cmd.h"

#include "base/checked.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Logical CPUs that share a core count once. */
static bool first_of_its_core(int cpu, const cpu_set_t *mask)
{
    char path[96];
    int first = cpu;

    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    FILE *f = fopen(path, "r");
    if (!f)
        return true;
    int a, b;
    char separator;
    const int n = fscanf(f, "%d%c%d", &a, &separator, &b);
    fclose(f);
    if (n >= 1)
        first = a;
    return first == cpu || !CPU_ISSET(first, mask);
}

uint32_t host_threads(void)
{
    cpu_set_t mask;
    uint32_t n = 0;
    long long quota = 0, period = 0;

    if (sched_getaffinity(0, sizeof mask, &mask) == 0)
        for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
            n += CPU_ISSET(cpu, &mask) && first_of_its_core(cpu, &mask);
    FILE *f = fopen("/sys/fs/cgroup/cpu.max", "r");
    if (f) {
        if (fscanf(f, "%lld %lld", &quota, &period) == 2 && period > 0 && quota > 0)
            n = MIN(n, (uint32_t)MAX(quota / period, 1LL));
        fclose(f);
    }
    return MAX(n, 1u);
}

static uint64_t read_bytes(const char *path)
{
    unsigned long long v = 0;
    FILE *f = fopen(path, "r");

    if (!f)
        return UINT64_MAX;
    if (fscanf(f, "%llu", &v) != 1) /* "max" */
        v = 0;
    fclose(f);
    return v ? v : UINT64_MAX;
}

uint64_t host_memory_bytes(void)
{
    const uint64_t machine = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    const char *text = getenv("BATON_MEMORY_SHARE");
    const long share = text ? strtol(text, NULL, 10) : 1;

    return MIN(machine, MIN(read_bytes("/sys/fs/cgroup/memory.max"),
                            read_bytes("/sys/fs/cgroup/memory/memory.limit_in_bytes"))) /
           (uint64_t)MAX(share, 1L);
}
