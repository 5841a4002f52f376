/* transport.h in virtual time: connections with latency, bounded buffers, pieces of any size, and
 * everything that can happen to them. */
#include "sim.h"

#include "base/checked.h"
#include "net/transport.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { DATA, FIN, RESET };

struct chunk {
    struct chunk *next;
    enum kind kind;
    int64_t at_ns;
    size_t len, offset;
    char bytes[];
};

struct pending {
    struct pending *next;
    struct transport_write *write;
    uint32_t n_parts, part;
    size_t offset;
    struct iovec parts[TRANSPORT_MAX_PARTS];
};

/* One direction, from the side it is numbered by. */
struct pipe {
    struct chunk *first, *last;
    size_t bytes;
    struct pending *pending_first, *pending_last;
    size_t unsent;
    int64_t last_ns, blocked_until_ns;
    bool scheduled;
    bool dead; /* nothing is taken any more: writes fail */
    enum mangle mangle;
};

struct end {
    struct transport transport;
    struct wire *wire;
    uint32_t side;
    bool started, told_broken;
};

struct wire {
    struct wire *next;
    struct process *process[2]; /* 0 has dialled */
    struct end *end[2];
    bool closed[2];
    struct pipe pipe[2];
    bool bulk;
};

static struct wire *all;
static int64_t blocked_until_ns[MAX_PROCESSES][MAX_PROCESSES];
static int64_t slow_until_ns[MAX_PROCESSES][MAX_PROCESSES], slow_ns[MAX_PROCESSES][MAX_PROCESSES];
static int64_t latency_ns[MAX_PROCESSES][MAX_PROCESSES];
static uint32_t bytes_per_ms[2];

static int64_t latency(const struct process *from, const struct process *to)
{
    const uint32_t a = from->number, b = to->number;
    const int64_t base = latency_ns[a][b];

    return base + sim_between(0, base / 2) +
           (slow_until_ns[a][b] > world.now_ns ? slow_ns[a][b] : 0);
}

/* ---- delivery ---- */

static void deliver(const struct event *e, bool alive);
static void take_pending(struct wire *w, uint32_t side);

static void schedule(struct wire *w, uint32_t side)
{
    struct pipe *p = &w->pipe[side];

    if (p->scheduled || !p->first)
        return;
    p->scheduled = true;
    world_after(w->process[!side], MAX(p->first->at_ns - world.now_ns, (int64_t)0), deliver, w,
                side);
}

static struct chunk *append(struct wire *w, uint32_t side, enum kind kind, size_t len)
{
    struct pipe *p = &w->pipe[side];
    struct chunk *c = calloc(1, sizeof *c + len);

    c->kind = kind;
    c->len = len;
    p->last_ns = MAX(p->last_ns, world.now_ns + latency(w->process[side], w->process[!side]));
    p->last_ns += (int64_t)len * MS / bytes_per_ms[w->bulk];
    c->at_ns = p->last_ns;
    p->bytes += len;
    *(p->last ? &p->last->next : &p->first) = c;
    p->last = c;
    return c;
}

static void drop_chunks(struct pipe *p)
{
    while (p->first) {
        struct chunk *c = p->first;
        p->first = c->next;
        free(c);
    }
    p->last = NULL;
    p->bytes = 0;
}

static void fail_pending(struct wire *w, uint32_t side)
{
    struct pipe *p = &w->pipe[side];

    while (p->pending_first) {
        struct pending *f = p->pending_first;
        p->pending_first = f->next;
        loop_post_done(w->process[side]->loop, f->write, STATUS_CANCELLED);
        free(f);
    }
    p->pending_last = NULL;
    p->unsent = 0;
}

static void writable(const struct event *e, bool alive)
{
    struct wire *w = e->context;

    if (alive && !w->closed[e->number])
        take_pending(w, (uint32_t)e->number);
}

static void break_end(struct end *e, const char *words)
{
    if (e->told_broken)
        return;
    e->told_broken = true;
    e->transport.events.broken(e->transport.events.context, fail(STATUS_PEER_LOST, "%s", words));
}

/* False when its end is gone, or takes nothing. */
static bool hand_over(struct wire *w, struct end *to, struct chunk *c)
{
    const uint32_t side = to->side;

    while (c->offset < c->len) {
        char *base = NULL;
        size_t room = 0;
        to->transport.events.room(to->transport.events.context, &base, &room);
        if (!room) {
            world_fail("a transport was given no room to read into");
            return false;
        }
        size_t n = MIN(room, c->len - c->offset);
        if (sim_chance(5))
            n = 1 + sim_below((uint32_t)n);
        memcpy(base, c->bytes + c->offset, n);
        c->offset += n;
        to->transport.events.arrived(to->transport.events.context, n);
        if (w->end[side] != to)
            return false;
    }
    return true;
}

static void deliver(const struct event *e, bool alive)
{
    struct wire *w = e->context;
    const uint32_t from = (uint32_t)e->number, to_side = !from;
    struct pipe *p = &w->pipe[from];
    const int64_t blocked =
        MAX(p->blocked_until_ns,
            blocked_until_ns[w->process[from]->number][w->process[to_side]->number]);

    p->scheduled = false;
    if (!alive || w->closed[to_side]) {
        drop_chunks(p);
        return;
    }
    struct end *to = w->end[to_side];
    if (!to || !to->started || !p->first)
        return; /* it begins to read later */
    if (blocked > world.now_ns)
        p->first->at_ns = blocked + sim_between(0, 200 * MS); /* when it is sent again */
    if (p->first->at_ns > world.now_ns) {
        schedule(w, from);
        return;
    }
    struct chunk *c = p->first;
    const enum kind kind = c->kind;
    p->first = c->next;
    if (!p->first)
        p->last = NULL;
    p->bytes -= c->len;
    const bool there = hand_over(w, to, c);
    free(c);
    if (!there)
        return;
    if (kind == RESET) {
        w->pipe[to_side].dead = true;
        fail_pending(w, to_side);
    }
    if (kind != DATA) {
        break_end(to, kind == FIN ? "the peer closed the connection" : "the connection broke");
        return;
    }
    schedule(w, from);
    if (w->pipe[from].pending_first)
        world_after(w->process[from], sim_between(1000, 20000), writable, w, from);
}

/* ---- writing ---- */

static void flip(struct chunk *c)
{
    if (c->len)
        c->bytes[sim_below((uint32_t)c->len)] ^= (char)(1 << sim_below(8));
}

static void change(struct wire *w, uint32_t side, struct chunk *c)
{
    struct pipe *p = &w->pipe[side];
    const enum mangle how = p->mangle;

    p->mangle = MANGLE_NONE;
    if (how == MANGLE_FLIP) {
        flip(c);
    } else if (how == MANGLE_TWICE) {
        struct chunk *again = append(w, side, DATA, c->len);
        memcpy(again->bytes, c->bytes, c->len);
    } else if (how == MANGLE_LOSE) {
        p->bytes -= c->len;
        c->offset = c->len;
        p->bytes += c->len;
    } else if (how == MANGLE_SWAP && c->len > 1) { /* its halves change places */
        const size_t half = c->len / 2;
        char *copy = malloc(c->len);
        memcpy(copy, c->bytes + half, c->len - half);
        memcpy(copy + c->len - half, c->bytes, half);
        memcpy(c->bytes, copy, c->len);
        free(copy);
    }
}

static void copy_out(struct pending *f, char *to, size_t n)
{
    while (n) {
        const struct iovec *part = &f->parts[f->part];
        const size_t some = MIN(n, part->iov_len - f->offset);
        memcpy(to, (const char *)part->iov_base + f->offset, some);
        to += some;
        n -= some;
        f->offset += some;
        if (f->offset == part->iov_len) {
            f->part++;
            f->offset = 0;
        }
    }
}

static size_t left_of(const struct pending *f)
{
    size_t n = 0;

    for (uint32_t i = f->part; i < f->n_parts; i++)
        n += f->parts[i].iov_len;
    return n - f->offset;
}

/* What the kernel has room for. */
static void take_pending(struct wire *w, uint32_t side)
{
    struct pipe *p = &w->pipe[side];
    const size_t capacity = w->bulk ? 16 << 10 : 128 << 10;

    while (p->pending_first && p->bytes < capacity && !p->dead) {
        struct pending *f = p->pending_first;
        size_t n = MIN(left_of(f), capacity - p->bytes);
        if (n > 1 && sim_chance(20))
            n = 1 + sim_below((uint32_t)n);
        struct chunk *c = append(w, side, DATA, n);
        copy_out(f, c->bytes, n);
        p->unsent -= n;
        if (p->mangle != MANGLE_NONE)
            change(w, side, c);
        if (left_of(f))
            continue;
        p->pending_first = f->next;
        if (!p->pending_first)
            p->pending_last = NULL;
        loop_post_done(w->process[side]->loop, f->write, STATUS_OK);
        free(f);
    }
    schedule(w, side);
}

static void end_start(struct transport *t)
{
    struct end *e = (struct end *)t;

    e->started = true;
    schedule(e->wire, !e->side);
}

static void end_write(struct transport *t, const struct iovec *parts, uint32_t n_parts,
                      struct transport_write *write)
{
    struct end *e = (struct end *)t;
    struct pipe *p = &e->wire->pipe[e->side];

    if (p->dead) {
        loop_post_done(e->wire->process[e->side]->loop, write, STATUS_CANCELLED);
        return;
    }
    struct pending *f = calloc(1, sizeof *f);
    f->write = write;
    f->n_parts = n_parts;
    memcpy(f->parts, parts, n_parts * sizeof *parts);
    p->unsent += left_of(f);
    *(p->pending_last ? &p->pending_last->next : &p->pending_first) = f;
    p->pending_last = f;
    take_pending(e->wire, e->side);
}

/* How the kernel tells the other side. */
static void say_goodbye(struct wire *w, uint32_t side)
{
    struct pipe *p = &w->pipe[side];

    if (p->dead)
        return;
    p->dead = true;
    const bool reset = sim_chance(25); /* unread bytes were there */
    if (reset)
        drop_chunks(p);
    append(w, side, reset ? RESET : FIN, 0);
    schedule(w, side);
}

static void end_close(struct transport *t)
{
    struct end *e = (struct end *)t;
    struct wire *w = e->wire;

    say_goodbye(w, e->side);
    fail_pending(w, e->side);
    w->closed[e->side] = true;
    w->end[e->side] = NULL;
    drop_chunks(&w->pipe[!e->side]);
    free(e);
}

static size_t end_unsent(const struct transport *t)
{
    const struct end *e = (const struct end *)t;

    return e->wire->pipe[e->side].unsent;
}

static void end_limit_unsent(struct transport *t, uint32_t bytes)
{
}

static const struct transport_ops end_ops = {.start = end_start,
                                             .write = end_write,
                                             .close = end_close,
                                             .unsent = end_unsent,
                                             .limit_unsent = end_limit_unsent};

static struct transport *end_create(struct wire *w, uint32_t side)
{
    struct end *e = calloc(1, sizeof *e);

    e->transport.ops = &end_ops;
    snprintf(e->transport.peer, sizeof e->transport.peer, "sim:%u", w->process[!side]->number);
    e->wire = w;
    e->side = side;
    w->end[side] = e;
    return &e->transport;
}

/* ---- dialling ---- */

struct transport_dial {
    struct process *process;
    struct process *to;
    void (*connected)(void *context, struct transport *t, enum status status);
    void *context;
    bool cancelled;
};

static void accept_event(const struct event *e, bool alive)
{
    struct wire *w = e->context;

    if (alive)
        listener_connection(w->process[1]->listener, w);
    if (!w->end[1]) {
        w->closed[1] = true;
        say_goodbye(w, 1);
    }
}

static bool has_wire(const struct process *a, const struct process *b)
{
    for (const struct wire *w = all; w; w = w->next)
        if (w->process[0] == a && w->process[1] == b && !w->closed[0] && !w->closed[1])
            return true;
    return false;
}

static bool blocked(const struct process *a, const struct process *b)
{
    return blocked_until_ns[a->number][b->number] > world.now_ns ||
           blocked_until_ns[b->number][a->number] > world.now_ns;
}

static void dial_event(const struct event *e, bool alive)
{
    struct transport_dial *d = e->context;

    if (!alive || d->cancelled) {
        free(d);
        return;
    }
    if (blocked(d->process, d->to)) { /* the kernel knocks again */
        world_after(d->process, 1000 * MS, dial_event, d, 0);
        return;
    }
    void (*connected)(void *, struct transport *, enum status) = d->connected;
    void *context = d->context;
    struct process *from = d->process, *to = d->to;
    free(d);
    if (!to->alive) {
        connected(context, NULL, fail(STATUS_PEER_LOST, "connection refused"));
        return;
    }
    struct wire *w = calloc(1, sizeof *w);
    w->process[0] = from;
    w->process[1] = to;
    w->bulk = has_wire(from, to);
    w->next = all;
    all = w;
    struct transport *t = end_create(w, 0);
    world_after(to, latency(from, to), accept_event, w, 0);
    connected(context, t, STATUS_OK);
}

enum status transport_dial_tcp(struct net_loop *l, const struct net_address *address,
                               void (*connected)(void *context, struct transport *t,
                                                 enum status status),
                               void *context, struct transport_dial **out)
{
    struct transport_dial *d = calloc(1, sizeof *d);

    d->process = loop_process(l);
    d->to = &cluster.processes[atoi(address->text + 4)];
    d->connected = connected;
    d->context = context;
    world_after(d->process, 2 * latency(d->process, d->to), dial_event, d, 0);
    *out = d;
    return STATUS_OK;
}

void transport_dial_cancel(struct transport_dial **d)
{
    if (*d)
        (*d)->cancelled = true;
    *d = NULL;
}

enum status transport_accept_tcp(struct net_loop *l, uv_stream_t *listener, struct transport **out)
{
    *out = end_create((struct wire *)listener, 1);
    return STATUS_OK;
}

enum status transport_memory_pair(struct net_loop *l, struct transport **a, struct transport **b)
{
    return fail(STATUS_INTERNAL, "not simulated");
}

enum status transport_secure(struct net_loop *l, struct tls_context *tls, bool accepting,
                             struct transport **t)
{
    return STATUS_OK;
}

/* ---- faults ---- */

static bool is_between(const struct wire *w, uint32_t a, uint32_t b, uint32_t *side_of_a)
{
    const uint32_t x = w->process[0]->number, y = w->process[1]->number;

    *side_of_a = x == a ? 0 : 1;
    return ((x == a && y == b) || (x == b && y == a)) && !w->closed[0] && !w->closed[1];
}

void wires_block(uint32_t from, uint32_t to, int64_t for_ns, bool with_new)
{
    uint32_t side;

    if (with_new)
        blocked_until_ns[from][to] = world.now_ns + for_ns;
    for (struct wire *w = all; w; w = w->next)
        if (is_between(w, from, to, &side))
            w->pipe[side].blocked_until_ns = world.now_ns + for_ns;
}

void wires_slow(uint32_t a, uint32_t b, int64_t extra_ns, int64_t for_ns)
{
    slow_ns[a][b] = slow_ns[b][a] = extra_ns;
    slow_until_ns[a][b] = slow_until_ns[b][a] = world.now_ns + for_ns;
}

void wires_cut(uint32_t a, uint32_t b)
{
    uint32_t side;

    for (struct wire *w = all; w; w = w->next) {
        if (!is_between(w, a, b, &side))
            continue;
        for (uint32_t i = 0; i < 2; i++) {
            w->pipe[i].dead = true;
            drop_chunks(&w->pipe[i]);
            append(w, i, RESET, 0);
            schedule(w, i);
        }
    }
}

bool wires_mangle(uint32_t from, uint32_t to, bool bulk, enum mangle how)
{
    uint32_t side;

    for (struct wire *w = all; w; w = w->next)
        if (w->bulk == bulk && is_between(w, from, to, &side)) {
            w->pipe[side].mangle = how;
            return true;
        }
    return false;
}

void wires_process_died(struct process *p)
{
    for (struct wire *w = all; w; w = w->next)
        for (uint32_t side = 0; side < 2; side++)
            if (w->process[side] == p && w->end[side])
                say_goodbye(w, side);
}

void wires_begin(void)
{
    memset(blocked_until_ns, 0, sizeof blocked_until_ns);
    memset(slow_until_ns, 0, sizeof slow_until_ns);
    bytes_per_ms[0] = (uint32_t)sim_between(20000, 200000);
    bytes_per_ms[1] = (uint32_t)sim_between(100, 1000) << sim_below(6);
    for (uint32_t a = 0; a < MAX_PROCESSES; a++)
        for (uint32_t b = 0; b < MAX_PROCESSES; b++)
            latency_ns[a][b] = sim_between(20000, sim_chance(80) ? 300000 : 3 * MS);
}

void wires_end(void)
{
    while (all) {
        struct wire *w = all;
        all = w->next;
        for (uint32_t i = 0; i < 2; i++) {
            drop_chunks(&w->pipe[i]);
            if (w->end[i] || w->pipe[i].pending_first)
                world_fail("a connection of %s was never closed", w->process[i]->name);
        }
        free(w);
    }
}
