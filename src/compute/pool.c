/* The workers. All run the same list of operations; within one they claim tasks from a counter, and
 * between two they meet at a barrier that spins briefly, yields, then sleeps. Which worker runs a
 * task never changes a bit (EXACTNESS 3). */
#include "compute/internal.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* Spinning finds a worker that comes within microseconds; yielding costs little on an idle machine
 * and, on a crowded one, lets the very thread run that is waited for; sleeping costs the waker tens
 * of microseconds. */
#define SPINS 200
#define YIELDS_BARRIER 100
#define YIELDS_IDLE 400 /* between steps: as long as sampling takes */

struct pool {
    uint32_t n;
    struct worker *workers;
    pthread_t *threads;
    uint32_t n_started;
    _Atomic uint32_t arrived;
    _Atomic uint32_t generation;
    _Atomic uint32_t sleepers;
    _Atomic bool stop;
    pthread_mutex_t mutex;
    pthread_cond_t moved;
    struct op *ops;
    uint32_t n_ops;
};

static void relax(void)
{
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb"); /* long enough for the other hardware thread; yield is not */
#endif
}

/* Rounding to nearest, denormals kept, exceptions masked, whatever a library did to this thread
 * (EXACTNESS 1). */
static void check_float_mode(void)
{
#if defined(__x86_64__)
    if ((_mm_getcsr() & 0xFFC0u) != 0x1F80u)
        _mm_setcsr(0x1F80u);
#elif defined(__aarch64__)
    uint64_t mode;

    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    if (mode)
        __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0));
#endif
}

static void wait_change(struct pool *p, uint32_t generation, uint32_t yields)
{
    for (uint32_t i = 0; i < SPINS + yields; i++) {
        if (atomic_load_explicit(&p->generation, memory_order_acquire) != generation)
            return;
        if (i < SPINS)
            relax();
        else
            sched_yield();
    }
    pthread_mutex_lock(&p->mutex);
    atomic_fetch_add(&p->sleepers, 1);
    while (atomic_load(&p->generation) == generation)
        pthread_cond_wait(&p->moved, &p->mutex);
    atomic_fetch_sub(&p->sleepers, 1);
    pthread_mutex_unlock(&p->mutex);
}

/* All n meet; the last to come lets the others go. */
static void barrier(struct pool *p, uint32_t yields)
{
    uint32_t generation = atomic_load(&p->generation);

    if (p->n == 1)
        return;
    if (atomic_fetch_add(&p->arrived, 1) + 1 < p->n) {
        wait_change(p, generation, yields);
        return;
    }
    atomic_store(&p->arrived, 0);
    atomic_store(&p->generation, generation + 1);
    if (atomic_load(&p->sleepers)) {
        pthread_mutex_lock(&p->mutex);
        pthread_cond_broadcast(&p->moved);
        pthread_mutex_unlock(&p->mutex);
    }
}

static void run_list(struct worker *w, struct pool *p)
{
    /* Read once: when one worker leaves the last barrier, worker 0 may already have reused the
     * list. */
    struct op *ops = p->ops;
    uint32_t n_ops = p->n_ops;
    bool meets_at_end = n_ops > 0 && !ops[n_ops - 1].is_signal;

    check_float_mode();
    for (uint32_t i = 0; i < n_ops; i++) {
        struct op *op = &ops[i];
        if (op->is_signal) { /* what it tells of was finished at the last barrier */
            if (w->index == 0)
                op->run(w, op, 0);
            continue;
        }
        for (;;) {
            uint32_t task = atomic_fetch_add_explicit(&op->next_task, 1, memory_order_relaxed);
            if (task >= op->n_tasks)
                break;
            op->run(w, op, task);
        }
        barrier(p, YIELDS_BARRIER);
    }
    if (!meets_at_end)
        barrier(p, YIELDS_BARRIER);
}

static void *worker_main(void *argument)
{
    struct worker *w = argument;
    struct pool *p = w->c->pool;

    check_float_mode();
    for (;;) {
        barrier(p, YIELDS_IDLE); /* worker 0 arrives when it has a list */
        if (atomic_load(&p->stop))
            return NULL;
        run_list(w, p);
    }
}

static enum status reserve_scratch(struct pool *p, uint64_t bytes)
{
    for (uint32_t i = 0; i < p->n; i++) {
        struct worker *w = &p->workers[i];
        if (w->scratch_bytes >= bytes)
            continue;
        uint64_t rounded;
        if (!align_u64(bytes, 4096, &rounded))
            return fail(STATUS_NO_MEMORY, "a task needs too much scratch memory");
        void *scratch = aligned_alloc(4096, rounded);
        if (!scratch)
            return fail(STATUS_NO_MEMORY, "no memory for %llu bytes of scratch",
                        (unsigned long long)rounded);
        free(w->scratch);
        w->scratch = scratch;
        w->scratch_bytes = rounded;
    }
    return STATUS_OK;
}

enum status pool_run(struct pool *p, struct op *ops, uint32_t n_ops, uint64_t scratch_bytes)
{
    TRY(reserve_scratch(p, scratch_bytes));
    p->ops = ops;
    p->n_ops = n_ops;
    barrier(p, YIELDS_BARRIER);
    run_list(&p->workers[0], p);
    return STATUS_OK;
}

static void run_loop(struct worker *w, struct op *op, uint32_t task)
{
    op->u.loop.body(w, op->u.loop.context, task);
}

enum status pool_loop(struct pool *p, uint32_t n_tasks,
                      void (*body)(struct worker *w, void *context, uint32_t task), void *context)
{
    struct op op = {.run = run_loop, .n_tasks = n_tasks, .u.loop = {body, context}};

    return pool_run(p, &op, 1, 0);
}

enum status pool_create(struct compute *c, uint32_t n_threads, struct pool **out)
{
    struct pool *p = memory_alloc(1, sizeof *p);

    if (!p)
        return STATUS_NO_MEMORY;
    p->n = n_threads;
    pthread_mutex_init(&p->mutex, NULL);
    pthread_cond_init(&p->moved, NULL);
    p->workers = memory_alloc(n_threads, sizeof *p->workers);
    p->threads = memory_alloc(n_threads, sizeof *p->threads);
    *out = p; /* the workers find it through c */
    if (!p->workers || !p->threads) {
        pool_destroy(out);
        return STATUS_NO_MEMORY;
    }
    for (uint32_t i = 0; i < n_threads; i++)
        p->workers[i] = (struct worker){.c = c, .index = i};
    for (uint32_t i = 1; i < n_threads; i++) {
        if (pthread_create(&p->threads[i], NULL, worker_main, &p->workers[i])) {
            pool_destroy(out);
            return fail(STATUS_NO_MEMORY, "worker %u of %u could not be started", i, n_threads);
        }
        p->n_started++;
    }
    return STATUS_OK;
}

void pool_destroy(struct pool **pp)
{
    struct pool *p = *pp;

    if (!p)
        return;
    atomic_store(&p->stop, true);
    if (p->n_started) {
        /* If some were never started they are counted as having come. */
        atomic_fetch_add(&p->arrived, p->n - 1 - p->n_started);
        barrier(p, YIELDS_BARRIER);
    }
    for (uint32_t i = 1; i <= p->n_started; i++)
        pthread_join(p->threads[i], NULL);
    for (uint32_t i = 0; p->workers && i < p->n; i++)
        free(p->workers[i].scratch);
    pthread_cond_destroy(&p->moved);
    pthread_mutex_destroy(&p->mutex);
    free(p->workers);
    free(p->threads);
    free(p);
    *pp = NULL;
}
