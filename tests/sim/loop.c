/* net.h in virtual time: loops, timers, listeners. */
#include "sim.h"

#include "base/clock.h"
#include "net/transport.h"

#include <stdlib.h>

/* What a loop does in its next turn: a task, or the end of a write. */
struct posted {
    struct posted *next;
    struct net_task *task;
    struct transport_write *write;
    enum status status;
};

struct net_loop {
    struct process *process;
    struct posted *first, *last;
    bool scheduled;
};

struct net_loop *loop_create(struct process *p)
{
    struct net_loop *l = calloc(1, sizeof *l);

    l->process = p;
    return l;
}

struct process *loop_process(const struct net_loop *l)
{
    return l->process;
}

/* One batch a turn, as in net/loop.c. */
void net_loop_turn(struct net_loop *l)
{
    struct posted *batch = l->first;

    l->first = l->last = NULL;
    while (batch) {
        struct posted *next = batch->next;
        if (batch->task)
            batch->task->run(batch->task);
        else
            batch->write->done(batch->write, batch->status == STATUS_OK
                                                 ? STATUS_OK
                                                 : fail(batch->status, "the write failed"));
        free(batch);
        batch = next;
    }
}

static void turn(const struct event *e, bool alive)
{
    struct net_loop *l = e->context;

    if (!alive)
        return; /* the loop is gone with its process */
    l->scheduled = false;
    net_loop_turn(l);
}

static void post(struct net_loop *l, struct posted what)
{
    struct posted *p = malloc(sizeof *p);

    *p = what;
    *(l->last ? &l->last->next : &l->first) = p;
    l->last = p;
    if (!l->scheduled && l->process->alive) {
        l->scheduled = true;
        world_after(l->process, sim_between(1000, 50000), turn, l, 0);
    }
}

void net_post(struct net_loop *l, struct net_task *task)
{
    post(l, (struct posted){.task = task});
}

void loop_post_done(struct net_loop *l, struct transport_write *w, enum status status)
{
    post(l, (struct posted){.write = w, .status = status});
}

void loop_destroy(struct net_loop **l)
{
    while ((*l)->first)
        net_loop_turn(*l);
    free(*l);
    *l = NULL;
}

int64_t net_loop_last_turn_ms(const struct net_loop *l)
{
    return clock_now_ms();
}

/* ---- timers ---- */

struct net_timer_handle {
    struct process *process;
    void (*fire)(void *context);
    void *context;
    uint64_t repeat_ms;
    uint64_t turn; /* which start an event belongs to */
    uint32_t n_events;
    bool stopped;
};

static void timer_event(const struct event *e, bool alive);

static void arm(struct net_timer_handle *h, uint64_t ms)
{
    h->n_events++;
    world_after(h->process, (int64_t)ms * MS + sim_between(0, MS / 2), timer_event, h, h->turn);
}

static void timer_event(const struct event *e, bool alive)
{
    struct net_timer_handle *h = e->context;

    h->n_events--;
    if (h->stopped || !alive) {
        if (!h->n_events && h->stopped)
            free(h);
        return;
    }
    if (e->number != h->turn)
        return; /* started anew meanwhile */
    if (h->repeat_ms)
        arm(h, h->repeat_ms);
    h->fire(h->context);
}

enum status net_timer_start(struct net_loop *l, struct net_timer *t, uint64_t first_ms,
                            uint64_t repeat_ms, void (*fire)(void *context), void *context)
{
    struct net_timer_handle *h = t->handle;

    if (!h)
        h = t->handle = calloc(1, sizeof *h);
    h->process = l->process;
    h->fire = fire;
    h->context = context;
    h->repeat_ms = repeat_ms;
    h->turn++;
    arm(h, first_ms);
    return STATUS_OK;
}

void net_timer_stop(struct net_timer *t)
{
    if (!t->handle)
        return;
    t->handle->stopped = true;
    if (!t->handle->n_events)
        free(t->handle);
    t->handle = NULL;
}

/* ---- listeners ---- */

struct net_listener {
    struct process *process;
    void (*on_connection)(void *context, uv_stream_t *listener);
    void *context;
};

struct net_listener *listener_create(struct process *p)
{
    struct net_listener *l = calloc(1, sizeof *l);

    l->process = p;
    return l;
}

void net_listener_accept(struct net_listener *l,
                         void (*on_connection)(void *context, uv_stream_t *listener), void *context)
{
    l->on_connection = on_connection;
    l->context = context;
}

void listener_connection(struct net_listener *l, void *stream)
{
    if (l->on_connection)
        l->on_connection(l->context, stream);
}

void net_listener_close(struct net_listener **l)
{
    free(*l);
    *l = NULL;
}
