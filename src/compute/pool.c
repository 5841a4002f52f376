/* The workers. All run the same list of operations. Each owns a stretch of an operation's tasks, so
 * that it reads its part of the weights, or of each of their streams, from front to back, and takes
 * from the end of others' stretches when its own is done. Between two operations they meet at a
 * barrier that spins briefly, yields, then sleeps; an operation of a single task is run there by
 * the last to come, before it lets the others go, and costs no barrier of its own. Which worker
 * runs a task never changes a bit (EXACTNESS 3). */
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
#define LINE 64

/* What is left of a worker's stretch of an operation's tasks, in one word that its owner shortens
 * from the front and others from the back: the operation's number in 10 bits, first and end task in
 * 27 each. A word is never more than one operation behind, so its number can't be mistaken. Words
 * lie a line apart. */
#define TASK_BITS 27
#define MAX_TASKS ((UINT32_C(1) << TASK_BITS) - 1)
#define NUMBERS (UINT32_C(1) << (64 - 2 * TASK_BITS))
struct stretch {
    _Atomic uint64_t left;
    uint32_t number; /* of the operation its owner is at; the owner's alone */
    char apart[LINE - sizeof(uint64_t) - sizeof(uint32_t)];
};

struct pool {
    uint32_t n;
    struct worker *workers;
    pthread_t *threads;
    uint32_t n_started;
    struct stretch *stretches; /* [n] */
    char apart0[LINE];
    _Atomic uint32_t arrived;
    char apart1[LINE]; /* who waits looks at the generation all the time */
    _Atomic uint32_t generation;
    char apart2[LINE];
    _Atomic uint32_t sleepers;
    _Atomic bool stop;
    pthread_mutex_t mutex;
    pthread_cond_t moved;
    struct op *ops;
    uint32_t n_ops;
    uint32_t next; /* the operation that comes after the barrier */
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

/* True for the last of all n to arrive, who then must leave(). */
static bool arrive(struct pool *p)
{
    return atomic_fetch_add(&p->arrived, 1) + 1 == p->n;
}

static void leave(struct pool *p)
{
    atomic_store(&p->arrived, 0);
    atomic_fetch_add(&p->generation, 1);
    if (atomic_load(&p->sleepers)) {
        pthread_mutex_lock(&p->mutex);
        pthread_cond_broadcast(&p->moved);
        pthread_mutex_unlock(&p->mutex);
    }
}

/* All n meet; the last to come lets the others go. */
static void barrier(struct pool *p, uint32_t yields)
{
    uint32_t generation = atomic_load(&p->generation);

    if (arrive(p))
        leave(p);
    else
        wait_change(p, generation, yields);
}

/* ---- tasks ---- */

static uint64_t stretch_word(uint32_t number, uint32_t first, uint32_t end)
{
    return (uint64_t)number << 2 * TASK_BITS | (uint64_t)first << TASK_BITS | end;
}

uint32_t pool_stretch(const struct pool *p, const struct op *op, uint32_t worker)
{
    return (uint32_t)((uint64_t)op->n_tasks * worker / p->n);
}

/* A task of the owner's stretch; whoever comes first lays it out. */
static bool take(struct pool *p, const struct op *op, uint32_t number, uint32_t owner, bool own,
                 uint32_t *out_task)
{
    _Atomic uint64_t *left = &p->stretches[owner].left;
    uint64_t seen = atomic_load_explicit(left, memory_order_relaxed), then;
    uint32_t first, end;

    do {
        first = (uint32_t)(seen >> TASK_BITS) & MAX_TASKS;
        end = (uint32_t)seen & MAX_TASKS;
        if (seen >> 2 * TASK_BITS != number) {
            first = pool_stretch(p, op, owner);
            end = pool_stretch(p, op, owner + 1);
        }
        *out_task = own ? first : end - 1;
        if (first < end)
            then =
                own ? stretch_word(number, first + 1, end) : stretch_word(number, first, end - 1);
        else
            then = stretch_word(number, 0, 0);
    } while (!atomic_compare_exchange_weak_explicit(left, &seen, then, memory_order_relaxed,
                                                    memory_order_relaxed));
    return first < end;
}

static void run_tasks(struct worker *w, struct pool *p, struct op *op)
{
    uint32_t task, number = (p->stretches[w->index].number + 1) % NUMBERS;

    p->stretches[w->index].number = number;
    for (uint32_t i = 0; i < p->n; i++)
        while (take(p, op, number, (w->index + i) % p->n, i == 0, &task))
            op->run(w, op, task);
}

/* ---- lists ---- */

static bool is_alone(const struct op *op)
{
    return !op->is_signal && op->n_tasks <= 1;
}

/* A barrier before operation i; returns the first operation that is not already done behind it. */
static uint32_t meet(struct worker *w, struct pool *p, struct op *ops, uint32_t n_ops, uint32_t i)
{
    uint32_t generation = atomic_load(&p->generation);

    if (!arrive(p)) {
        wait_change(p, generation, YIELDS_BARRIER);
        return p->next;
    }
    for (; i < n_ops && is_alone(&ops[i]); i++)
        for (uint32_t task = 0; task < ops[i].n_tasks; task++)
            ops[i].run(w, &ops[i], task);
    p->next = i;
    leave(p);
    return i;
}

static void run_list(struct worker *w, struct pool *p)
{
    /* Read once: when one worker leaves the last barrier, worker 0 may already have reused the
     * list. */
    struct op *ops = p->ops;
    uint32_t n_ops = p->n_ops;
    bool meets_at_end = n_ops > 0 && !ops[n_ops - 1].is_signal;

    check_float_mode();
    for (uint32_t i = 0; i < n_ops;) {
        struct op *op = &ops[i];
        if (op->is_signal) { /* what it tells of was finished at the last barrier */
            if (w->index == 0)
                op->run(w, op, 0);
            i++;
        } else if (is_alone(op)) { /* nothing parallel before it */
            i = meet(w, p, ops, n_ops, i);
        } else {
            run_tasks(w, p, op);
            i = meet(w, p, ops, n_ops, i + 1);
        }
    }
    if (!meets_at_end)
        barrier(p, YIELDS_BARRIER);
}

/* Without others there is nobody to meet. */
static void run_list_alone(struct worker *w, struct op *ops, uint32_t n_ops)
{
    check_float_mode();
    for (uint32_t i = 0; i < n_ops; i++)
        for (uint32_t task = 0; task < ops[i].n_tasks; task++)
            ops[i].run(w, &ops[i], task);
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
    if (p->n == 1) {
        run_list_alone(&p->workers[0], ops, n_ops);
        return STATUS_OK;
    }
    for (uint32_t i = 0; i < n_ops; i++)
        if (ops[i].n_tasks > MAX_TASKS)
            return fail(STATUS_INTERNAL, "an operation of %u tasks", ops[i].n_tasks);
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
    p->stretches = memory_alloc(n_threads, sizeof *p->stretches);
    *out = p; /* the workers find it through c */
    if (!p->workers || !p->threads || !p->stretches) {
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
    free(p->stretches);
    free(p);
    *pp = NULL;
}
