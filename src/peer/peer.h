/* peer: links to other nodes. A hub dials and redials, accepts, says hello, watches who is alive,
 * and carries messages and pages; what they mean is for the rooms above.
 *
 * A link has a control connection and, where KV flows, a bulk connection bound to it by hello
 * (docs/WIRE.md). Threads: the loop's only. */
#ifndef BATON_PEER_PEER_H
#define BATON_PEER_PEER_H

#include "base/metrics.h"
#include "net/net.h"
#include "net/transport.h"
#include "wire/wire.h"

#include <stdbool.h>
#include <stdint.h>

struct peer_hub;
struct peer_link;

struct peer_events {
    /* Both connections are there and hello is done. */
    void (*link_up)(void *context, struct peer_link *link);
    /* The link is gone when this returns; nothing is sent on it any more. Called only for links
     * that were up. */
    void (*link_down)(void *context, struct peer_link *link, enum status reason);
    /* One message. An error refuses that message: it is logged and counted, the link goes on. */
    enum status (*message)(void *context, struct peer_link *link, const struct wire_frame *frame);
    /* Where a slab goes: slab_bytes of room, which the hub fills until slab_arrived() or
     * link_down(); NULL: it is thrown away. */
    void *(*slab_room)(void *context, struct peer_link *link, const struct wire_kv_header *h,
                       uint32_t page);
    /* A slab for which there was room is whole. intact: its checksum holds. */
    void (*slab_arrived)(void *context, struct peer_link *link, const struct wire_kv_header *h,
                         uint32_t page, bool intact);
    /* How this node is, for pings. */
    void (*node_stats)(void *context, struct wire_node_stats *out);
    void *context;
};

struct peer_limits {
    uint32_t ping_ms;  /* 200 */
    uint32_t dead_ms;  /* 1,000: a peer that sent no byte for so long is lost */
    uint32_t stuck_ms; /* 5,000: a peer that is busy without progress for so long is lost */
    uint32_t redial_min_ms, redial_max_ms; /* 100, 2,000 */
};
extern const struct peer_limits peer_limits_default;

struct peer_hub_options {
    struct net_loop *loop;
    struct wire_hello
        hello; /* what this node says of itself; bulk, link and expect_role are set by the hub */
    struct peer_events events;
    /* Where slabs lie, ours and those that slab_room() gives; registered with every bulk
     * connection. Zeroed: nothing is. Outlives the hub. */
    struct transport_region slabs;
    struct peer_limits limits;
    uint32_t version_max; /* the highest protocol version to speak; 0: the highest there is */
    struct metrics *metrics;
    /* NULL: links are plain. Else every connection is TLS, and who a peer's certificate names must
     * be who its hello names. Outlives the hub, or its place there. */
    struct tls_context *tls;
};
enum status peer_hub_create(const struct peer_hub_options *o, struct peer_hub **out) WARN_UNUSED;
/* Closes everything; link_down() is not called. */
void peer_hub_destroy(struct peer_hub **hub);
/* Other certificates, for connections made from now on. The old ones may be destroyed then. */
void peer_hub_set_tls(struct peer_hub *hub, struct tls_context *tls);
const struct wire_hello *peer_hub_hello(const struct peer_hub *hub);

/* Tells every peer at once how this node is; else they hear of it with the next ping. */
void peer_hub_announce(struct peer_hub *hub);

/* Accepts links on a listener that stays the caller's. */
void peer_hub_listen(struct peer_hub *hub, struct net_listener *listener);
/* Keeps a link to an address: dials until it is up, and again whenever it is lost. */
enum status peer_hub_dial(struct peer_hub *hub, const struct net_address *address,
                          const char *expect_role, bool with_bulk) WARN_UNUSED;
/* Keeps links to exactly these addresses of a role. A link to one that is not named any more is
 * leaving: nothing new should go there, and it is closed after a minute or by whoever finds it
 * unused. */
enum status peer_hub_dial_only(struct peer_hub *hub, const char *expect_role,
                               const struct net_address *addresses, uint32_t n,
                               bool with_bulk) WARN_UNUSED;
/* In one process: links two hubs of one loop over memory. Not redialled. */
enum status peer_hub_join(struct peer_hub *dialling, struct peer_hub *accepting,
                          const char *expect_role, bool with_bulk) WARN_UNUSED;

/* NULL when no such node is linked (and up). */
struct peer_link *peer_hub_find(struct peer_hub *hub, const char *node_id);
/* Walks the links that are up; NULL starts and ends. */
struct peer_link *peer_hub_next(struct peer_hub *hub, struct peer_link *after);

const struct wire_hello *peer_link_hello(const struct peer_link *link); /* the peer's */
uint32_t peer_link_version(const struct peer_link *link); /* of the protocol, spoken on it */
const char *peer_link_id(const struct peer_link *link);
const char *peer_link_address(const struct peer_link *link);
bool peer_link_has_bulk(const struct peer_link *link);
const struct wire_node_stats *peer_link_stats(const struct peer_link *link); /* the peer's last */
bool peer_link_is_leaving(const struct peer_link *link);
/* Once it is down: its connection ended or was reset, as when a process dies; not that it fell
 * silent or was closed from here. */
bool peer_link_broke(const struct peer_link *link);
/* What it last said of its prefix cache (request/request.h); n_bytes is 0 while it said nothing. */
const uint8_t *peer_link_prefix_filter(const struct peer_link *link, uint32_t *n_bytes);
double peer_link_round_trip_ms(const struct peer_link *link);
uint64_t peer_link_bulk_bytes_sent(const struct peer_link *link);
uint64_t peer_link_bulk_bytes_received(const struct peer_link *link);
/* Whoever uses the link may hang something on it. */
void peer_link_set_data(struct peer_link *link, void *data);
void *peer_link_data(const struct peer_link *link);

/* Queues frames (whole ones; copied). Cannot fail: a link without memory is closed. */
void peer_link_send(struct peer_link *link, const struct buffer *frames);
/* Closes a link from here; link_down() is called before this returns. */
void peer_link_close(struct peer_link *link, enum status reason);

/* ---- bulk ---- */

#define PEER_BULK_MAX_SLABS 31

/* One transfer's share of a bulk connection. Transfers take turns, a frame each. */
struct peer_bulk {
    /* Fills h and slabs with the next frame's; at most max slabs. False: nothing to send at
     * present. */
    bool (*next)(struct peer_bulk *b, struct wire_kv_header *h, const void **slabs, uint32_t max);
    /* The memory of a frame's slabs is no longer needed. status not OK: it was not sent. */
    void (*sent)(struct peer_bulk *b, uint32_t n_slabs, uint64_t wire_bytes, enum status status);
    /* the hub's */
    struct peer_bulk *prev_turn, *next_turn;
    bool in_rotation;
    uint32_t n_in_flight; /* frames; while it is not 0 the slabs' memory must stay */
};
/* It has something to send. */
void peer_bulk_ready(struct peer_link *link, struct peer_bulk *b);
/* It sends no more. Frames in flight still end with sent(). */
void peer_bulk_remove(struct peer_link *link, struct peer_bulk *b);
/* What still arrives for handle is thrown away from the next byte on; the hub does not touch its
 * room any more. */
void peer_bulk_detach(struct peer_link *link, uint64_t handle);

#endif
