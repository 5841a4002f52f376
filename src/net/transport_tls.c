/* TLS over another transport. Records are as large as they can be: small parts that follow each
 * other share one. What is being encrypted is bounded, and a write is done when the transport below
 * has taken its last byte, so that whoever looks at unsent bytes sees what it would see over TCP.
 */
#include "net/transport.h"

#include "base/checked.h"

#include <stdlib.h>
#include <string.h>

enum {
    RECORD_BYTES = 16 << 10,
    BATCH_BYTES = 128 << 10, /* of ciphertext, that gathers while the last batch is being written */
    READ_BYTES = 64 << 10,
    LINGER_MS = 250 /* after a failure, for the alert to reach the other side before a reset does */
};

struct pending {
    struct pending *next;
    struct transport_write *write;
    uint32_t n_parts, part;
    size_t offset;
    struct iovec parts[];
};

struct queue {
    struct pending *first, *last;
};

struct tls {
    struct transport transport;
    struct net_loop *loop;
    struct transport *inner;
    struct tls_session *session;
    struct queue waiting;         /* not encrypted to their ends */
    struct queue sealed, leaving; /* their last bytes are in session's out; in sending */
    struct buffer sending;
    struct transport_write inner_write;
    bool writing, established, failing, closed, told_broken;
    enum status why;
    char why_words[256];
    struct net_timer linger;
    uint32_t n_pins; /* functions of this file on the stack */
};

static void push(struct queue *q, struct pending *p)
{
    p->next = NULL;
    *(q->last ? &q->last->next : &q->first) = p;
    q->last = p;
}

static struct pending *pop(struct queue *q)
{
    struct pending *p = q->first;

    if (p) {
        q->first = p->next;
        if (!q->first)
            q->last = NULL;
    }
    return p;
}

/* Whoever is told may write again, so that the queue fills anew meanwhile. */
static void finish(struct queue *q, enum status status)
{
    struct queue done = *q;

    *q = (struct queue){0};
    for (struct pending *p; (p = pop(&done));) {
        struct transport_write *w = p->write;
        free(p);
        w->done(w, status);
    }
}

static void pin(struct tls *t)
{
    t->n_pins++;
}

static void unpin(struct tls *t)
{
    if (--t->n_pins || !t->closed || t->writing)
        return;
    tls_session_destroy(&t->session);
    buffer_deinit(&t->sending);
    free(t);
}

/* ---- the end ---- */

static void tell_broken(struct tls *t)
{
    if (t->closed || t->told_broken)
        return;
    t->told_broken = true;
    net_timer_stop(&t->linger);
    t->transport.events.broken(t->transport.events.context, fail(t->why, "%s", t->why_words));
}

static void linger_over(void *context)
{
    struct tls *t = context;

    pin(t);
    tell_broken(t);
    unpin(t);
}

/* A fault of ours or of the other side's: what TLS has to say about it goes out first. */
static void begin_failing(struct tls *t, enum status status)
{
    if (t->failing || t->closed)
        return;
    t->failing = true;
    t->why = status;
    strncpy(t->why_words, status_message(), sizeof t->why_words - 1);
    if (net_timer_start(t->loop, &t->linger, status == STATUS_PEER_LOST ? 0 : LINGER_MS, 0,
                        linger_over, t) != STATUS_OK)
        tell_broken(t);
}

/* ---- out ---- */

static void advance(struct tls *t, size_t n)
{
    struct pending *p = t->waiting.first;

    p->offset += n;
    while (p->part < p->n_parts && p->offset == p->parts[p->part].iov_len) {
        p->part++;
        p->offset = 0;
    }
    if (p->part == p->n_parts)
        push(&t->sealed, pop(&t->waiting));
}

/* One record: straight from where the bytes are if they fill it, else gathered. */
static enum status seal_record(struct tls *t)
{
    char gathered[RECORD_BYTES];
    size_t n = 0;

    while (t->waiting.first && n < RECORD_BYTES) {
        const struct pending *p = t->waiting.first;
        const struct iovec part = p->part < p->n_parts ? p->parts[p->part] : (struct iovec){0};
        const size_t left = part.iov_len - p->offset;
        const char *from = part.iov_base ? (const char *)part.iov_base + p->offset : NULL;
        if (n == 0 && left >= RECORD_BYTES) {
            TRY(tls_session_write(t->session, from, RECORD_BYTES));
            advance(t, RECORD_BYTES);
            return STATUS_OK;
        }
        const size_t take = MIN(left, RECORD_BYTES - n);
        if (take)
            memcpy(gathered + n, from, take);
        n += take;
        advance(t, take);
    }
    return n ? tls_session_write(t->session, gathered, n) : STATUS_OK;
}

static size_t waiting_bytes(const struct tls *t)
{
    size_t n = 0;

    for (const struct pending *p = t->waiting.first; p; p = p->next)
        for (uint32_t i = p->part; i < p->n_parts; i++)
            n += p->parts[i].iov_len - (i == p->part ? p->offset : 0);
    return n;
}

static void pump_out(struct tls *t);

static void inner_written(struct transport_write *w, enum status status)
{
    struct tls *t = (struct tls *)((char *)w - offsetof(struct tls, inner_write));

    pin(t);
    t->writing = false;
    buffer_clear(&t->sending);
    /* of a connection that was closed meanwhile, they have been told already */
    finish(&t->leaving, status);
    if (!t->closed && status != STATUS_OK)
        begin_failing(t, fail(STATUS_PEER_LOST, "the connection broke while writing"));
    else
        pump_out(t);
    unpin(t);
}

static void pump_out(struct tls *t)
{
    struct buffer *out = tls_session_out(t->session);
    enum status status = STATUS_OK;

    while (!t->closed) {
        while (status == STATUS_OK && t->established && !t->failing && t->waiting.first &&
               out->len < BATCH_BYTES)
            status = seal_record(t);
        if (status != STATUS_OK)
            begin_failing(t, status);
        if (t->writing)
            return;
        if (out->len == 0) {
            finish(&t->sealed, STATUS_OK); /* writes of nothing at all */
            return;
        }
        const struct buffer empty = t->sending;
        t->sending = *out;
        *out = empty;
        t->leaving = t->sealed;
        t->sealed = (struct queue){0};
        const struct iovec part = {.iov_base = t->sending.data, .iov_len = t->sending.len};
        t->writing = true;
        t->inner_write.done = inner_written;
        transport_write(t->inner, &part, 1, &t->inner_write);
        return; /* inner_written() goes on, perhaps it has */
    }
}

static void tls_write(struct transport *transport, const struct iovec *parts, uint32_t n_parts,
                      struct transport_write *w)
{
    struct tls *t = (struct tls *)transport;
    struct pending *p = memory_alloc(1, sizeof *p + n_parts * sizeof *parts);

    if (!p || t->closed || t->failing || n_parts > TRANSPORT_MAX_PARTS) {
        free(p);
        w->done(w, STATUS_CANCELLED);
        return;
    }
    p->write = w;
    p->n_parts = n_parts;
    memcpy(p->parts, parts, n_parts * sizeof *parts);
    while (p->part < n_parts && p->parts[p->part].iov_len == 0)
        p->part++;
    pin(t);
    push(&t->waiting, p);
    pump_out(t);
    unpin(t);
}

static size_t tls_unsent(const struct transport *transport)
{
    const struct tls *t = (const struct tls *)transport;

    return waiting_bytes(t) + tls_session_out(t->session)->len +
           (t->inner ? transport_unsent(t->inner) : 0);
}

static void tls_limit_unsent(struct transport *transport, uint32_t bytes)
{
    struct tls *t = (struct tls *)transport;

    if (t->inner)
        transport_limit_unsent(t->inner, bytes);
}

/* ---- in ---- */

static void inner_room(void *context, char **base, size_t *len)
{
    struct tls *t = context;

    *base = tls_session_room(t->session, READ_BYTES);
    *len = *base ? READ_BYTES : 0;
}

static void shake_hands(struct tls *t)
{
    bool done;
    const enum status status = tls_session_handshake(t->session, &done);

    if (status != STATUS_OK) {
        begin_failing(t, status);
    } else if (done) {
        t->established = true;
        t->transport.identity = tls_session_identity(t->session);
    }
}

/* The events are read anew each time: what has arrived may have led to other ones. */
static void give_up_plaintext(struct tls *t)
{
    while (!t->closed && !t->failing) {
        const struct transport_events e = t->transport.events;
        char *base = NULL;
        size_t room = 0, n;
        e.room(e.context, &base, &room);
        if (t->closed)
            return;
        const enum status status = room ? tls_session_read(t->session, base, room, &n)
                                        : fail(STATUS_NO_MEMORY, "no room for what arrives");
        if (status != STATUS_OK) {
            begin_failing(t, status);
            return;
        }
        if (n == 0)
            return;
        e.arrived(e.context, n);
    }
}

static void inner_arrived(void *context, size_t n)
{
    struct tls *t = context;

    pin(t);
    tls_session_arrived(t->session, n);
    if (t->failing)
        tls_session_discard(t->session);
    else if (!t->established)
        shake_hands(t);
    if (t->established)
        give_up_plaintext(t);
    pump_out(t);
    unpin(t);
}

static void inner_broken(void *context, enum status status)
{
    struct tls *t = context;

    pin(t);
    if (!t->failing) {
        if (!t->established)
            status = fail(STATUS_PEER_LOST, "the peer left during the TLS handshake");
        t->why = status;
        strncpy(t->why_words, status_message(), sizeof t->why_words - 1);
        t->failing = true;
    }
    tell_broken(t);
    unpin(t);
}

static void tls_start(struct transport *transport)
{
    struct tls *t = (struct tls *)transport;
    const struct transport_events events = {
        .room = inner_room, .arrived = inner_arrived, .broken = inner_broken, .context = t};

    pin(t);
    transport_start(t->inner, &events);
    if (!t->closed && !t->failing) {
        shake_hands(t);
        pump_out(t);
    }
    unpin(t);
}

static void tls_close(struct transport *transport)
{
    struct tls *t = (struct tls *)transport;

    if (t->closed)
        return;
    pin(t);
    t->closed = true;
    net_timer_stop(&t->linger);
    transport_close(&t->inner);
    finish(&t->leaving, STATUS_CANCELLED);
    finish(&t->sealed, STATUS_CANCELLED);
    finish(&t->waiting, STATUS_CANCELLED);
    unpin(t);
}

static const struct transport_ops tls_ops = {
    .start = tls_start,
    .write = tls_write,
    .close = tls_close,
    .unsent = tls_unsent,
    .limit_unsent = tls_limit_unsent,
};

enum status transport_secure(struct net_loop *l, struct tls_context *tls, bool accepting,
                             struct transport **inner)
{
    struct tls *t;
    enum status status;

    if (!tls)
        return STATUS_OK;
    t = memory_alloc(1, sizeof *t);
    status = t ? tls_session_create(tls, accepting, &t->session) : STATUS_NO_MEMORY;
    if (status != STATUS_OK) {
        free(t);
        transport_close(inner);
        return status;
    }
    t->transport.ops = &tls_ops;
    memcpy(t->transport.peer, (*inner)->peer, sizeof t->transport.peer);
    t->transport.guarded = true;
    t->loop = l;
    t->inner = *inner;
    *inner = &t->transport;
    return STATUS_OK;
}
