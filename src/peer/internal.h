/* What the files of peer/ share. */
#ifndef BATON_PEER_INTERNAL_H
#define BATON_PEER_INTERNAL_H

#include "peer/peer.h"

enum {
    CONTROL_READ_BYTES = 16 << 10,
    BULK_FRAMES_IN_FLIGHT = 2,
    HELLO_BYTES_MAX = 64 << 10, /* from somebody who has not said who it is */
    STRANGERS_MAX = 256,        /* accepted connections that have not said who they are */
    REFUSALS_LOGGED_A_SECOND = 20,
    PEER_FAMILIES = 5
};

/* When bytes last got out of a transport: writes that stand still mean that nobody reads. */
struct progress {
    uint64_t n_writes; /* that are complete */
    uint64_t n_writes_seen;
    size_t unsent;
    int64_t since_ms;
};

/* A control connection, or a bulk one before its hello. */
struct channel {
    struct transport *transport;
    struct buffer in;
    struct buffer out, out_next; /* out is being written; out_next gathers what comes meanwhile */
    struct transport_write write;
    bool writing;
    uint64_t n_sent, n_received; /* frames: a seal counts them */
    struct progress progress;
};

struct bulk_frame {
    struct transport_write write;
    struct peer_link *link;
    struct peer_bulk *bulk; /* NULL: its transfer is gone */
    uint8_t header[WIRE_KV_HEADER_BYTES];
    uint8_t crc[PEER_BULK_MAX_SLABS][WIRE_KV_CRC_BYTES];
    uint32_t n_slabs;
    uint64_t bytes;
    bool used;
};

enum link_state { LINK_HELLO, LINK_WAITING_BULK, LINK_UP, LINK_CLOSED };

struct dial {
    struct dial *next;
    struct peer_hub *hub;
    struct net_address address;
    char expect_role[16];
    bool with_bulk;
    uint32_t delay_ms;
    struct net_timer timer;
    struct transport_dial *connecting;
    struct peer_link *link;
    int64_t up_since_ms;
    uint32_t n_short_lives; /* one after the other: a peer that flaps is rested */
    enum status last_logged;
    char reached_id[NODE_ID_BYTES]; /* who answered last */
    uint64_t reached_epoch;
    bool logged_twin;
};

struct peer_link {
    struct peer_link *prev, *next;
    struct peer_hub *hub;
    struct dial *dial; /* NULL: the other side dialled */
    enum link_state state;
    struct wire_hello ours, theirs;
    struct channel control,
        bulk_hello; /* bulk_hello: the bulk connection until its hello is done */
    char address[80];
    bool closing_after_write;
    int64_t leaving_since_ms; /* 0: it is not, see peer_hub_dial_only() */
    bool broke;               /* see peer_link_broke() */
    bool doomed;              /* closed in the loop's next turn */
    enum status doom_reason;
    char doom_words[160];
    struct net_task doom_task;
    void *data;

    struct transport *bulk;
    struct progress bulk_progress;
    struct peer_bulk *turn_first, *turn_last;
    struct bulk_frame frames[BULK_FRAMES_IN_FLIGHT];
    uint64_t bulk_bytes_sent, bulk_bytes_received;
    uint32_t crc_bytes; /* behind each slab: none where the connection itself guards the bytes */
    /* what is being received */
    uint8_t header[WIRE_KV_HEADER_BYTES];
    uint32_t header_fill;
    struct wire_kv_header kv;
    uint32_t kv_page;   /* index within the frame */
    uint32_t slab_fill; /* bytes of slab and checksum that are in */
    char *slab;         /* NULL: thrown away */
    uint8_t crc[WIRE_KV_CRC_BYTES];

    int64_t last_heard_ms, progress_since_ms;
    struct wire_node_stats stats;
    struct buffer prefix_filter;
    double round_trip_ms;
    uint32_t
        n_pins; /* callbacks under way, and frames in flight: a closed link is freed when it is 0 */
};

struct peer_hub {
    struct peer_hub_options options;
    struct net_timer ping_timer;
    int64_t last_tick_ms;
    uint64_t ping_number;
    struct peer_link *links;
    struct dial *dials;
    char *discard; /* slab bytes nobody wants */
    uint32_t discard_bytes;
    bool closing, has_families;
    struct metrics_family families[PEER_FAMILIES];
    struct metric *n_links_up, *n_links_lost, *n_links_refused, *n_bad_messages, *bytes_sent,
        *bytes_received, *n_bad_slabs;
    /* strangers knock as often as they like: what they are told is logged so often a second */
    int64_t refusals_second;
    uint32_t n_refusals_logged;
};

struct peer_link *link_create(struct peer_hub *hub, struct transport *control, struct dial *d);
void link_begin(struct peer_link *link);
/* For the ring. */
const char *link_state_name(enum link_state state);
void link_set_state(struct peer_link *link, enum link_state state, const char *event);
void link_lost(struct peer_link *link, enum status reason);
/* The same in the loop's next turn, for faults met while sending: whoever sends may be walking over
 * links, or over what hangs on them, and must not lose them under its hands. */
void link_doom(struct peer_link *link, enum status reason);
void link_unpin(struct peer_link *link);
void link_adopt_bulk(struct peer_link *link, struct transport *t);
/* Who a connection has proved to be must be who its hello names. Errors: IDENTITY_MISMATCH. */
enum status link_check_identity(const struct transport *t,
                                const struct wire_hello *hello) WARN_UNUSED;
/* Whether a node of their role dials one of ours at all. Errors: CELL_MISMATCH. */
enum status link_check_direction(const struct wire_hello *ours,
                                 const struct wire_hello *theirs) WARN_UNUSED;
/* Logs (within reason) and counts that somebody was not let in. */
void link_count_refusal(struct peer_link *link, enum status reason);
/* hello.c */
void link_say_hello(struct channel *c, struct peer_link *link, bool bulk);
/* A frame before the link is up. */
void link_hello_frame(struct peer_link *link, const struct wire_frame *f);
void link_is_up(struct peer_link *link);
void link_start_bulk_hello(struct peer_link *link, struct transport *t);

/* Seals and sends whole frames. */
void channel_send(struct channel *c, struct peer_link *link, const void *frames, size_t len);
void channel_close(struct channel *c);

void bulk_receive_room(struct peer_link *link, char **base, size_t *len);
enum status bulk_receive_arrived(struct peer_link *link, size_t n) WARN_UNUSED;
void bulk_pump(struct peer_link *link);

void hub_add_gauges(struct peer_hub *hub);
void hub_remove_gauges(struct peer_hub *hub);
/* By reason, in either direction. */
void hub_count_refusal(struct peer_hub *hub, enum status reason);
void dial_bulk(struct peer_link *link);
void dial_link_lost(struct dial *d, enum status reason, bool was_up);

#endif
