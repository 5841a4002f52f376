/* A connection inside one process: what one end writes is copied to where the other end wants it,
 * in later turns of the loop, so that the order of events is that of a network. */
#include "net/transport.h"

#include "base/checked.h"
#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

/* Bytes that one turn of the loop delivers, so that large transfers take turns with small ones. */
enum { TURN_BYTES = 256 << 10 };

struct pending {
    struct pending *next;
    struct transport_write *write;
    uint32_t n_parts, part;
    size_t offset;
    struct iovec parts[];
};

struct end {
    struct transport transport;
    struct net_loop *loop;
    struct end *other; /* NULL once that one is closed */
    struct pending *first, *last;
    size_t unsent;
    bool started, closed, told_broken;
    struct net_task task;
    bool task_posted;
};

static void wake(struct end *e)
{
    if (!e->task_posted) {
        e->task_posted = true;
        net_post(e->loop, &e->task);
    }
}

/* Delivers this end's writes to the other end. False when nothing more can be done now. */
static bool deliver_some(struct end *e, size_t *budget)
{
    struct pending *p = e->first;
    struct end *to = e->other;

    if (!p || !to || !to->started || *budget == 0)
        return false;
    if (p->part == p->n_parts) {
        e->first = p->next;
        if (!e->first)
            e->last = NULL;
        struct transport_write *w = p->write;
        free(p);
        w->done(w, STATUS_OK);
        return true;
    }
    const struct iovec *part = &p->parts[p->part];
    char *base = NULL;
    size_t room = 0;
    to->transport.events.room(to->transport.events.context, &base, &room);
    const size_t n = MIN(MIN(part->iov_len - p->offset, room), *budget);
    if (n)
        memcpy(base, (const char *)part->iov_base + p->offset, n);
    p->offset += n;
    e->unsent -= n;
    *budget -= n;
    if (p->offset == part->iov_len) {
        p->part++;
        p->offset = 0;
    }
    if (n)
        to->transport.events.arrived(to->transport.events.context, n);
    return true;
}

static void run(struct net_task *task)
{
    struct end *e = (struct end *)((char *)task - offsetof(struct end, task));
    size_t budget = TURN_BYTES;

    e->task_posted = false;
    if (e->closed) {
        free(e);
        return;
    }
    while (!e->closed && deliver_some(e, &budget))
        ;
    if (e->closed)
        return; /* closing posted the task again */
    if (e->first && e->other && e->other->started)
        wake(e);
    if (!e->other && e->started && !e->told_broken) {
        e->told_broken = true;
        e->transport.events.broken(e->transport.events.context,
                                   fail(STATUS_PEER_LOST, "the peer closed the connection"));
    }
}

static void memory_start(struct transport *t)
{
    struct end *e = (struct end *)t;

    e->started = true;
    if (e->other)
        wake(e->other);
    wake(e);
}

static void memory_write(struct transport *t, const struct iovec *parts, uint32_t n_parts,
                         struct transport_write *w)
{
    struct end *e = (struct end *)t;
    struct pending *p = memory_alloc(1, sizeof *p + n_parts * sizeof *parts);

    if (!p || !e->other || n_parts > TRANSPORT_MAX_PARTS) {
        free(p);
        w->done(w, STATUS_CANCELLED);
        return;
    }
    p->write = w;
    p->n_parts = n_parts;
    memcpy(p->parts, parts, n_parts * sizeof *parts);
    for (uint32_t i = 0; i < n_parts; i++)
        e->unsent += parts[i].iov_len;
    *(e->last ? &e->last->next : &e->first) = p;
    e->last = p;
    wake(e);
}

static void memory_close(struct transport *t)
{
    struct end *e = (struct end *)t;

    e->closed = true;
    if (e->other) {
        e->other->other = NULL;
        wake(e->other);
        e->other = NULL;
    }
    while (e->first) {
        struct pending *p = e->first;
        e->first = p->next;
        p->write->done(p->write, STATUS_CANCELLED);
        free(p);
    }
    e->last = NULL;
    wake(e);
}

static size_t memory_unsent(const struct transport *t)
{
    return ((const struct end *)t)->unsent;
}

static void memory_limit_unsent(struct transport *t, uint32_t bytes)
{
}

static const struct transport_ops memory_ops = {
    .start = memory_start,
    .write = memory_write,
    .close = memory_close,
    .unsent = memory_unsent,
    .limit_unsent = memory_limit_unsent,
};

static struct end *end_create(struct net_loop *l)
{
    struct end *e = memory_alloc(1, sizeof *e);

    if (!e)
        return NULL;
    e->transport.ops = &memory_ops;
    strcpy(e->transport.peer, "memory");
    e->loop = l;
    e->task.run = run;
    return e;
}

enum status transport_memory_pair(struct net_loop *l, struct transport **out_a,
                                  struct transport **out_b)
{
    struct end *a = end_create(l), *b = end_create(l);

    if (!a || !b) {
        free(a);
        free(b);
        return STATUS_NO_MEMORY;
    }
    a->other = b;
    b->other = a;
    *out_a = &a->transport;
    *out_b = &b->transport;
    return STATUS_OK;
}
