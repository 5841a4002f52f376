/* The workers: each task of a list runs once, after all that came before, whoever runs it. */
#include "tiers.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define MAX_OPS 40
#define MAX_TASKS 300

struct trace {
    _Atomic uint32_t runs[MAX_OPS][MAX_TASKS];
    _Atomic uint32_t done[MAX_OPS];
    uint32_t wanted[MAX_OPS]; /* tasks */
    bool is_signal[MAX_OPS];  /* for which nobody waits */
    _Atomic uint32_t early, elsewhere;
    bool lazy; /* some tasks take long, so that others take their worker's */
};
static struct trace trace;

static void run(struct worker *w, struct op *op, uint32_t task)
{
    for (uint32_t i = 0; i < op->n; i++)
        if (!trace.is_signal[i] && atomic_load(&trace.done[i]) != trace.wanted[i])
            atomic_fetch_add(&trace.early, 1);
    if (op->is_signal && w->index != 0)
        atomic_fetch_add(&trace.elsewhere, 1);
    for (int i = 0; trace.lazy && task % 7 == 0 && i < 20; i++)
        sched_yield();
    atomic_fetch_add(&trace.runs[op->n][task], 1);
    atomic_fetch_add(&trace.done[op->n], 1);
}

static void test_lists(void **state)
{
    static const uint32_t tasks[] = {0, 1, 1, 1, 2, 3, 17, 64, MAX_TASKS};
    static struct op ops[MAX_OPS];
    uint64_t seed = 41;

    (void)state;
    for (uint32_t n_threads = 1; n_threads <= 5; n_threads++) {
        struct compute c = {.n_threads = n_threads};
        assert_int_equal(pool_create(&c, n_threads, &c.pool), STATUS_OK);
        for (int round = 0; round < 300; round++) {
            uint32_t n_ops = random_below(&seed, round % 3 ? 6 : MAX_OPS);
            memset(&trace, 0, sizeof trace);
            trace.lazy = random_below(&seed, 8) == 0;
            for (uint32_t i = 0; i < n_ops; i++) {
                bool is_signal = random_below(&seed, 4) == 0;
                uint32_t n = is_signal ? 1 : tasks[random_below(&seed, ARRAY_LENGTH(tasks))];
                ops[i] = (struct op){.run = run, .n = i, .n_tasks = n, .is_signal = is_signal};
                trace.wanted[i] = n;
                trace.is_signal[i] = is_signal;
            }
            assert_int_equal(pool_run(c.pool, ops, n_ops, 0), STATUS_OK);
            for (uint32_t i = 0; i < n_ops; i++)
                for (uint32_t task = 0; task < MAX_TASKS; task++)
                    assert_int_equal(atomic_load(&trace.runs[i][task]), task < trace.wanted[i]);
            assert_int_equal(atomic_load(&trace.early), 0);
            assert_int_equal(atomic_load(&trace.elsewhere), 0);
        }
        pool_destroy(&c.pool);
    }
}

/* Its number in a worker's word comes around many times. */
static void test_many(void **state)
{
    static struct op ops[MAX_OPS];
    struct compute c = {.n_threads = 3};

    (void)state;
    assert_int_equal(pool_create(&c, 3, &c.pool), STATUS_OK);
    for (int round = 0; round < 200; round++) {
        memset(&trace, 0, sizeof trace);
        for (uint32_t i = 0; i < MAX_OPS; i++) {
            trace.wanted[i] = i == 20 ? 1 : 2 + i % 5;
            ops[i] = (struct op){.run = run, .n = i, .n_tasks = trace.wanted[i]};
        }
        assert_int_equal(pool_run(c.pool, ops, MAX_OPS, 0), STATUS_OK);
        for (uint32_t i = 0; i < MAX_OPS; i++)
            assert_int_equal(atomic_load(&trace.done[i]), trace.wanted[i]);
        assert_int_equal(atomic_load(&trace.early), 0);
    }
    pool_destroy(&c.pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lists), cmocka_unit_test(test_many)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
