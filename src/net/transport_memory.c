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
    struct transport_region regions[TRANSPORT_MAX_REGIONS];
    uint32_t n_regions;
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

/* What a transport with a map of registered memory could reach. */
static bool can_reach(const struct end *e, const void *base, size_t len)
{
    if (e->n_regions == 0 || len <= TRANSPORT_INLINE_BYTES)
        return true;
    for (uint32_t i = 0; i < e->n_regions; i++) {
        const struct transport_region *r = &e->regions[i];
        const uintptr_t at = (uintptr_t)base - (uintptr_t)r->base;
        if ((uintptr_t)base >= (uintptr_t)r->base && at <= r->bytes && len <= r->bytes - at)
            return true;
    }
    return false;
}

static void break_end(struct end *e, const char *what)
{
    e->told_broken = true;
    e->transport.events.broken(e->transport.events.context,
                               fail(STATUS_INTERNAL, "%s is not in registered memory", what));
}

/* Delivers this end's writes to the other end. False when nothing more can be done now. */
static bool deliver_some(struct end *e, size_t *budget)
{
    struct pending *p = e->first;
    struct end *to = e->other;

    if (!p || !to || !to->started || to->told_broken || *budget == 0)
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
    if (!can_reach(to, base, room)) {
        break_end(to, "the room for what arrives");
        return false;
    }
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

static enum status memory_register(struct transport *t, const struct transport_region *r)
{
    struct end *e = (struct end *)t;

    if (e->n_regions == TRANSPORT_MAX_REGIONS)
        return fail(STATUS_NO_MEMORY, "more than %d regions", TRANSPORT_MAX_REGIONS);
    e->regions[e->n_regions++] = *r;
    return STATUS_OK;
}

static void memory_write(struct transport *t, const struct iovec *parts, uint32_t n_parts,
                         struct transport_write *w)
{
    struct end *e = (struct end *)t;
    struct pending *p = memory_alloc(1, sizeof *p + n_parts * sizeof *parts);

    bool reached = true;

    for (uint32_t i = 0; i < n_parts; i++)
        reached &= can_reach(e, parts[i].iov_base, parts[i].iov_len);
    if (!p || !e->other || n_parts > TRANSPORT_MAX_PARTS || !reached) {
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
    .register_memory = memory_register,
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
