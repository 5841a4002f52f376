/* The engine's thread as a fiber: it runs until it waits for work or for the model's arithmetic,
 * and goes on when the world's time has come. */
#include "sim.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define ASAN 1
#else
#define ASAN 0
#endif

enum { STACK_BYTES = 512 << 10, MAX_FIBERS = 256 };

struct fiber {
    ucontext_t context, back;
    void *stack;
    void *(*run)(void *);
    void *argument;
    struct process *process;
    pthread_cond_t *waits_for;
    uint64_t turn; /* which sleep a wake belongs to */
    bool used, ended, woken;
    void *fake_stack, *fake_back;
    const void *back_bottom;
    size_t back_size;
};

static struct fiber fibers[MAX_FIBERS];
static struct fiber *running;

int __wrap_pthread_create(pthread_t *out, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *argument);
int __wrap_pthread_join(pthread_t thread, void **result);
int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *lock,
                                  const struct timespec *until);
int __wrap_pthread_cond_signal(pthread_cond_t *cond);

static void leave(struct fiber *f)
{
#if ASAN
    __sanitizer_start_switch_fiber(f->ended ? NULL : &f->fake_stack, f->back_bottom, f->back_size);
#endif
    swapcontext(&f->context, &f->back);
#if ASAN
    __sanitizer_finish_switch_fiber(f->fake_stack, &f->back_bottom, &f->back_size);
#endif
}

static void enter(struct fiber *f)
{
    struct fiber *before = running;

    running = f;
#if ASAN
    __sanitizer_start_switch_fiber(&f->fake_back, f->stack, STACK_BYTES);
#endif
    swapcontext(&f->back, &f->context);
#if ASAN
    __sanitizer_finish_switch_fiber(f->fake_back, NULL, NULL);
#endif
    running = before;
}

static void fiber_main(void)
{
    struct fiber *f = running;

#if ASAN
    __sanitizer_finish_switch_fiber(NULL, &f->back_bottom, &f->back_size);
#endif
    f->run(f->argument);
    f->ended = true;
    leave(f);
}

static void wake(const struct event *e, bool alive)
{
    struct fiber *f = e->context;

    if (alive && f->used && !f->ended && e->number == f->turn)
        enter(f);
}

/* timeout_ns negative: only a signal wakes it. True: it was woken by one. */
static bool sleep_until(struct fiber *f, int64_t delay_ns)
{
    f->woken = false;
    f->turn++;
    world_after(f->process, delay_ns, wake, f, f->turn);
    leave(f);
    f->turn++;
    return f->woken;
}

void fiber_sleep(int64_t ns)
{
    if (running && !running->process->dying)
        sleep_until(running, ns);
}

int __wrap_pthread_create(pthread_t *out, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *argument)
{
    struct fiber *f = fibers;

    while (f < fibers + MAX_FIBERS && f->used)
        f++;
    if (f == fibers + MAX_FIBERS)
        return EAGAIN;
    if (!f->stack)
        f->stack =
            mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    f->run = run;
    f->argument = argument;
    f->process = world.current;
    f->used = true;
    f->ended = false;
    f->waits_for = NULL;
    f->turn++;
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = STACK_BYTES;
    f->context.uc_link = NULL;
    makecontext(&f->context, fiber_main, 0);
    world_after(f->process, sim_between(1000, 100000), wake, f, f->turn);
    *out = (pthread_t)(uintptr_t)f;
    return 0;
}

int __wrap_pthread_join(pthread_t thread, void **result)
{
    struct fiber *f = (struct fiber *)(uintptr_t)thread;

    while (!f->ended) /* whatever it waits for, it looks again */
        enter(f);
    f->used = false;
    f->turn++;
    return 0;
}

int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *lock,
                                  const struct timespec *until)
{
    struct fiber *f = running;
    const int64_t until_ns = (int64_t)until->tv_sec * 1000 * MS + until->tv_nsec;

    if (f->process->dying)
        return ETIMEDOUT;
    f->waits_for = cond;
    pthread_mutex_unlock(lock);
    const bool woken = sleep_until(f, until_ns > world.now_ns ? until_ns - world.now_ns : 0);
    pthread_mutex_lock(lock);
    f->waits_for = NULL;
    return woken ? 0 : ETIMEDOUT;
}

int __wrap_pthread_cond_signal(pthread_cond_t *cond)
{
    for (struct fiber *f = fibers; f < fibers + MAX_FIBERS; f++)
        if (f->used && f->waits_for == cond && !f->woken) {
            f->woken = true;
            f->turn++;
            world_after(f->process, sim_between(1000, 60000), wake, f, f->turn);
        }
    return 0;
}

void fibers_end(void)
{
    for (struct fiber *f = fibers; f < fibers + MAX_FIBERS; f++) {
        if (f->stack)
            munmap(f->stack, STACK_BYTES);
        *f = (struct fiber){0};
    }
}
