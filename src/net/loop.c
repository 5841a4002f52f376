/* The event loop, tasks from other threads, and work on the text threads. */
#include "net/internal.h"

#include "base/clock.h"
#include "base/memory.h"

#include <stdlib.h>

/* Text threads (DESIGN section 2); libuv reads the variable when its pool first starts. */
#define N_TEXT_THREADS "2"

static void run_posted(uv_async_t *wake)
{
    struct net_loop *l = wake->data;
    struct net_task *newest = atomic_exchange_explicit(&l->posted, NULL, memory_order_acquire);
    struct net_task *oldest = NULL;

    while (newest != NULL) {
        struct net_task *next = newest->next;

        newest->next = oldest;
        oldest = newest;
        newest = next;
    }
    /* One batch a wake: what is posted meanwhile wakes the loop again, so that tasks which post
     * tasks cannot keep it from its sockets. */
    while (oldest != NULL) {
        struct net_task *task = oldest;

        oldest = task->next; /* run() may post it again or free it */
        task->next = NULL;
        task->run(task);
    }
}

static void note_turn(uv_prepare_t *prepare)
{
    struct net_loop *l = prepare->data;

    atomic_store_explicit(&l->last_turn_ms, clock_now_ms(), memory_order_relaxed);
}

enum status net_loop_create(struct net_loop **out)
{
    struct net_loop *l = memory_alloc(1, sizeof *l);
    int rc;

    if (l == NULL)
        return STATUS_NO_MEMORY;
    setenv("UV_THREADPOOL_SIZE", N_TEXT_THREADS, 0);
    rc = uv_loop_init(&l->uv);
    if (rc != 0) {
        free(l);
        return fail(STATUS_IO, "no event loop: %s", uv_strerror(rc));
    }
    rc = uv_async_init(&l->uv, &l->wake, run_posted);
    if (rc != 0) {
        uv_loop_close(&l->uv);
        free(l);
        return fail(STATUS_IO, "no event loop: %s", uv_strerror(rc));
    }
    l->wake.data = l;
    uv_prepare_init(&l->uv, &l->prepare);
    l->prepare.data = l;
    uv_prepare_start(&l->prepare, note_turn);
    uv_unref((uv_handle_t *)&l->prepare);
    atomic_store(&l->last_turn_ms, clock_now_ms());
    *out = l;
    return STATUS_OK;
}

static void close_open(uv_handle_t *handle, void *context)
{
    if (!uv_is_closing(handle))
        uv_close(handle, NULL);
}

void net_loop_destroy(struct net_loop **l)
{
    if (*l == NULL)
        return;
    uv_walk(&(*l)->uv, close_open, NULL);
    while (uv_run(&(*l)->uv, UV_RUN_DEFAULT) != 0)
        ;
    uv_loop_close(&(*l)->uv);
    free(*l);
    *l = NULL;
}

void net_loop_run(struct net_loop *l)
{
    uv_run(&l->uv, UV_RUN_DEFAULT);
}

void net_loop_stop(struct net_loop *l)
{
    uv_stop(&l->uv);
}

void net_loop_turn(struct net_loop *l)
{
    uv_run(&l->uv, UV_RUN_NOWAIT);
}

uv_loop_t *net_loop_uv(struct net_loop *l)
{
    return &l->uv;
}

int64_t net_loop_last_turn_ms(const struct net_loop *l)
{
    return atomic_load_explicit(&l->last_turn_ms, memory_order_relaxed);
}

void net_post(struct net_loop *l, struct net_task *task)
{
    struct net_task *head = atomic_load_explicit(&l->posted, memory_order_relaxed);

    do
        task->next = head;
    while (!atomic_compare_exchange_weak_explicit(&l->posted, &head, task, memory_order_release,
                                                  memory_order_relaxed));
    uv_async_send(&l->wake);
}

static void work_run(uv_work_t *uv)
{
    struct net_work *work = uv->data;

    work->work(work);
}

static void work_done(uv_work_t *uv, int cancelled)
{
    struct net_work *work = uv->data;

    work->done(work);
}

void net_work_submit(struct net_loop *l, struct net_work *work)
{
    work->uv.data = work;
    /* Fails only for a NULL callback. */
    uv_queue_work(&l->uv, &work->uv, work_run, work_done);
}
