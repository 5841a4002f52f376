/* net/transport: connections that carry bytes between nodes, as an interface: TCP, in memory for
 * tests, and TLS over either. Nothing above it knows which one runs.
 *
 * A reader says where the next bytes go before they arrive, so that a page is read straight into
 * the pool. A writer keeps its memory until done() is called, so that a page is written straight
 * from it. The memory that pages lie in is registered once for each connection that carries them,
 * for transports that must map it before they can reach it (a network card, a device); TCP and TLS
 * need not, the one in memory checks it. Threads: the loop's only. */
#ifndef BATON_NET_TRANSPORT_H
#define BATON_NET_TRANSPORT_H

#include "net/net.h"
#include "net/tls.h"

#include <sys/uio.h>

struct transport;

struct transport_events {
    /* Where the next bytes go: at least one byte of room. Called anew before each read. */
    void (*room)(void *context, char **base, size_t *len);
    /* n bytes have been put there. */
    void (*arrived)(void *context, size_t n);
    /* The other side closed, or the connection broke (status_message() says how). Once; close it
     * then. */
    void (*broken)(void *context, enum status status);
    void *context;
};

struct transport_write {
    void (*done)(struct transport_write *w, enum status status); /* exactly once */
    struct transport_write *next;
};

/* Larger parts of what is written, and larger room for what arrives, lie in registered memory,
 * once a connection has any. */
#define TRANSPORT_INLINE_BYTES 4096
#define TRANSPORT_MAX_REGIONS 4

struct transport_region {
    const void *base;
    uint64_t bytes;
};

/* One implementation. */
struct transport_ops {
    /* NULL: it can reach any memory. */
    enum status (*register_memory)(struct transport *t, const struct transport_region *r);
    void (*start)(struct transport *t); /* begins reading; events are set */
    void (*write)(struct transport *t, const struct iovec *parts, uint32_t n_parts,
                  struct transport_write *w);
    void (*close)(struct transport *t);
    size_t (*unsent)(const struct transport *t);
    void (*limit_unsent)(struct transport *t, uint32_t bytes);
};
struct transport {
    const struct transport_ops *ops;
    struct transport_events events;
    char peer[80]; /* address, for logs */
    /* What arrives is what was sent, or the connection breaks: no checksum of ours is needed. */
    bool guarded;
    /* Who the other side has proved to be, from the first byte that arrives on; NULL where nobody
     * proves anything. */
    const struct net_identity *identity;
};

static inline void transport_start(struct transport *t, const struct transport_events *events)
{
    t->events = *events;
    t->ops->start(t);
}
/* Before the memory is used; it must stay until the transport is closed. Errors: NO_MEMORY when it
 * cannot be mapped, or there are too many. */
static inline enum status transport_register(struct transport *t, const struct transport_region *r)
{
    return t->ops->register_memory ? t->ops->register_memory(t, r) : STATUS_OK;
}
/* Queues the parts, at most 64, in order. parts is copied, what it points at is not. done() may run
 * before this returns. */
static inline void transport_write(struct transport *t, const struct iovec *parts, uint32_t n_parts,
                                   struct transport_write *w)
{
    t->ops->write(t, parts, n_parts, w);
}
/* No event follows. Writes under way are done() as CANCELLED, at once or in the loop's next turn;
 * their memory must stay until then. Sets *t to NULL. */
static inline void transport_close(struct transport **t)
{
    if (*t)
        (*t)->ops->close(*t);
    *t = NULL;
}
/* Bytes that were written here and that the kernel has not taken. */
static inline size_t transport_unsent(const struct transport *t)
{
    return t->ops->unsent(t);
}

#define TRANSPORT_MAX_PARTS 64

/* Dials; connected() is called once with a transport or with what went wrong, never after
 * transport_dial_cancel(). */
struct transport_dial;
enum status transport_dial_tcp(struct net_loop *l, const struct net_address *address,
                               void (*connected)(void *context, struct transport *t,
                                                 enum status status),
                               void *context, struct transport_dial **out) WARN_UNUSED;
void transport_dial_cancel(struct transport_dial **d);
/* Accepts one connection of a listener, inside its on_connection callback. */
enum status transport_accept_tcp(struct net_loop *l, uv_stream_t *listener,
                                 struct transport **out) WARN_UNUSED;
/* At most this many bytes are left unsent in the kernel before a write waits (TCP_NOTSENT_LOWAT).
 */
static inline void transport_limit_unsent(struct transport *t, uint32_t bytes)
{
    t->ops->limit_unsent(t, bytes);
}

/* Two ends of one connection inside this process. */
enum status transport_memory_pair(struct net_loop *l, struct transport **a,
                                  struct transport **b) WARN_UNUSED;

/* Puts TLS over *t, which must not have been started; with tls NULL *t stays as it is. The
 * handshake begins with transport_start(); what is written before its end waits.
 * Owner: *t is closed on failure. */
enum status transport_secure(struct net_loop *l, struct tls_context *tls, bool accepting,
                             struct transport **t) WARN_UNUSED;

#endif
