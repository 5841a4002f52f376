/* sim FIRST N: seeds, one after the other; says which failed and how to see them again. */
#include "sim.h"

#include "base/log.h"
#include "base/ring.h"
#include "unit/text/small_vocabulary.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATIENCE_MS = 150000, QUIET_MS = 25000 };

static uint64_t present_seed;

/* The state of everything when a seed crashes. */
static void on_crash(int number)
{
    static char text[160];
    const int n = snprintf(text, sizeof text, "\nseed %llu crashed (signal %d)\n",
                           (unsigned long long)present_seed, number);

    if (write(STDERR_FILENO, text, (size_t)n) < 0)
        _exit(1);
    ring_print(STDERR_FILENO);
    signal(number, SIG_DFL);
    raise(number);
}

static void run_until_quiet(void)
{
    const int64_t end_ns = world.now_ns + PATIENCE_MS * MS;
    int64_t calm_ns = 0, looked_ns = 0;

    while (!world.failed) {
        world_step();
        faults_look();
        cluster_reap();
        if (!clients_done() || !faults_done()) {
            calm_ns = 0;
            if (world.now_ns > end_ns)
                world_fail("not at an end after %d virtual seconds", PATIENCE_MS / 1000);
            continue;
        }
        if (!calm_ns)
            calm_ns = world.now_ns;
        if (world.now_ns - looked_ns < 20 * MS)
            continue;
        looked_ns = world.now_ns;
        const char *unrest = cluster_unrest();
        if (!unrest)
            return;
        if (world.now_ns - calm_ns > QUIET_MS * MS)
            world_fail("no rest %d virtual seconds after the last answer: %s", QUIET_MS / 1000,
                       unrest);
    }
}

static void describe(void)
{
    printf("  %u routers, %u prefill, %u decode, %u hybrid; context %u, slots %u, chunk %u, "
           "policy %d; pages",
           cluster.n_routers, cluster.n_prefill, cluster.n_decode, cluster.n_hybrid,
           cluster.context_tokens, cluster.n_slots, cluster.chunk_tokens, (int)cluster.policy);
    for (uint32_t i = 0; i < cluster.n; i++)
        printf(" %u", cluster.processes[i].n_pages);
    printf("; %.3f virtual s, %llu events\n",
           (double)(world.now_ns - 1000 * 1000 * MS) / (1000.0 * MS),
           (unsigned long long)world.n_events);
    faults_describe();
    clients_describe();
}

static bool run_seed(uint64_t seed, bool verbose)
{
    present_seed = seed;
    world_begin(seed);
    wires_begin();
    faults_choose();
    cluster_begin();
    faults_begin();
    clients_begin();
    run_until_quiet();
    if (world.failed || verbose) {
        printf("seed %llu %s %s\n", (unsigned long long)seed, world.failed ? "FAILED:" : "ran",
               world.failure);
        describe();
        fflush(stdout);
        ring_print(STDOUT_FILENO);
    }
    const bool ok = !world.failed;
    cluster_end();
    world_end();
    wires_end();
    fibers_end();
    clients_end();
    if (ok && world.failed)
        printf("seed %llu FAILED: %s\n", (unsigned long long)seed, world.failure);
    return !world.failed;
}

static void open_world(void)
{
    static struct vocabulary *vocabulary;
    const struct log_options quiet = {.level = getenv("SIM_LOG") ? LOG_DEBUG : LOG_ERROR};

    log_setup(&quiet);
    vocabulary = small_vocabulary_load("smollm", NULL);
    if (!vocabulary || compute_create(1, "ref", &cluster.compute) != STATUS_OK) {
        fprintf(stderr, "sim: %s\n", status_message());
        exit(2);
    }
    cluster.vocabulary = vocabulary;
    model_begin(vocabulary, cluster.compute);
    static const int numbers[] = {SIGSEGV, SIGABRT, SIGBUS, SIGFPE};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        signal(numbers[i], on_crash);
}

int main(int argc, char **argv)
{
    const uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 0,
                   n = argc > 2 ? strtoull(argv[2], NULL, 10) : 100;
    const bool verbose = getenv("SIM_VERBOSE") != NULL, twice = getenv("SIM_TWICE") != NULL;
    const double begin_s = real_seconds();
    uint64_t n_events = 0, n_failed = 0, failed[64], n_notes = 0;

    setvbuf(stdout, NULL, _IOLBF, 0); /* a run that is cut short has said what failed */
    open_world();
    for (uint64_t seed = first; seed < first + n; seed++) {
        const bool ok = run_seed(seed, verbose);
        const uint64_t hash = world.hash;
        n_events += world.n_events;
        n_notes += world.n_notes;
        if (!ok && n_failed++ < 64)
            failed[n_failed - 1] = seed;
        if (!ok)
            continue;
        if (twice || seed == first) {
            run_seed(seed, false);
            if (world.hash != hash) {
                printf("seed %llu is not the same history twice\n", (unsigned long long)seed);
                failed[n_failed++ % 64] = seed;
            }
        }
    }
    const double s = real_seconds() - begin_s;
    const struct client_figures *f = &client_figures;
    printf("sim: seeds %llu to %llu, %llu failed; %llu events and %llu transitions in %.1f s (%.1f "
           "million a minute); %llu requests accepted: %llu exact, %llu errors (%llu poison), %llu "
           "left, %llu gone with their router; %llu tokens\n",
           (unsigned long long)first, (unsigned long long)(first + n - 1),
           (unsigned long long)n_failed, (unsigned long long)n_events, (unsigned long long)n_notes,
           s, (double)n_events / s * 60e-6, (unsigned long long)f->n_accepted,
           (unsigned long long)f->n_exact, (unsigned long long)f->n_errors,
           (unsigned long long)f->n_poison, (unsigned long long)f->n_cancelled,
           (unsigned long long)f->n_gone, (unsigned long long)f->n_tokens);
    printf("sim: slowest=%.1f virtual s, of seed %llu\n", f->slowest_s,
           (unsigned long long)f->slowest_seed);
    cluster_print_figures();
    for (uint64_t i = 0; i < n_failed && i < 64; i++)
        printf("again: make sim SEEDS=1 FIRST=%llu\n", (unsigned long long)failed[i]);
    model_end();
    compute_destroy(&cluster.compute);
    struct vocabulary *v = (struct vocabulary *)cluster.vocabulary;
    vocabulary_destroy(&v);
    return n_failed != 0;
}
