/* handoff: moves a sequence's pages from a prefill node to a decode node: open, stream, commit,
 * accept, cancel.
 *
 * It knows slabs by address, never the pool they lie in: whoever uses it says where a slab is and
 * when more of them are complete, and learns when their memory is no longer needed. docs/WIRE.md
 * says who owns what when. Threads: the loop's only. */
#ifndef BATON_HANDOFF_HANDOFF_H
#define BATON_HANDOFF_HANDOFF_H

#include "base/metrics.h"
#include "peer/peer.h"
#include "wire/wire.h"

#include <stdbool.h>
#include <stdint.h>

/* ---- the prefill side: one object a hand-off ---- */

struct handoff_sender;
struct handoff_senders; /* all of one node's, so that messages find theirs */

struct handoff_source {
    /* Tokens whose K and V are complete in this layer. */
    uint32_t (*layer_tokens)(void *context, uint32_t layer);
    /* The slab of a page (index in the sequence) and layer; it stays while the sender needs it. */
    const void *(*slab)(void *context, uint32_t page, uint32_t layer);
    /* A decode node took the open. */
    void (*opened)(void *context, const char *decode_node);
    /* A target's connection broke, as a dying process leaves it; may be NULL. Another is tried, or
     * given_up() follows. */
    void (*target_broke)(void *context, const char *decode_node, uint64_t epoch);
    /* The decode node owns the sequence now. */
    void (*accepted)(void *context);
    /* Nobody took it, or every target failed: reason and words of the last. */
    void (*given_up)(void *context, enum status reason, const char *message);
    /* The sender is gone and needs no slab any more; always the last call, exactly once, after
     * accepted(), given_up() or handoff_send_cancel(). */
    void (*released)(void *context);
    void *context;
};

enum status handoff_senders_create(struct net_loop *loop, struct peer_hub *hub,
                                   struct metrics *metrics,
                                   struct handoff_senders **out) WARN_UNUSED;
/* Every sender must have been released. */
void handoff_senders_destroy(struct handoff_senders **s);

/* Opens at the first of targets that is linked; on refusal at the next. meta is
 * copied as bytes. n_prefix_tokens: prompt and earlier attempts' ids, what the pages are of.
 * Nothing is called back before the loop's next turn. */
enum status handoff_send_open(struct handoff_senders *s, const struct wire_decode_meta *meta,
                              uint32_t n_prefix_tokens, const struct handoff_source *source,
                              struct handoff_sender **out) WARN_UNUSED;
/* A layer got on. */
void handoff_send_progress(struct handoff_sender *h);
/* Prefill is done: what the commit will say. row may be NULL. */
void handoff_send_commit(struct handoff_sender *h, uint32_t first_id,
                         const struct logprob_rows *row);
/* Ends it here and at the decode node. */
void handoff_send_cancel(struct handoff_sender *h);
/* decode_ready, decode_refuse, handoff_accepted, handoff_failed. */
enum status handoff_senders_message(struct handoff_senders *s, struct peer_link *link,
                                    const struct wire_frame *f) WARN_UNUSED;
void handoff_senders_link_down(struct handoff_senders *s, struct peer_link *link);

struct handoff_sender_stats {
    uint32_t n_open;
    uint64_t n_pages_sent, n_slab_bytes_sent, n_wire_bytes_sent, n_accepted, n_refused, n_failed;
};
void handoff_senders_stats(const struct handoff_senders *s, struct handoff_sender_stats *out);

/* ---- the decode side ---- */

struct handoff_receivers;
struct handoff_receiver;

struct handoff_sink {
    void *(*slab)(void *context, uint32_t page, uint32_t layer);
    /* Every slab that the commit names is there and intact. row is NULL without log-probabilities.
     * True: taken, and the receiver is gone; false: too late, and the peer is told. */
    bool (*committed)(void *context, const struct wire_handoff_commit *commit);
    /* It ended before that (cancel, lost link, lease over, corrupt slab); the receiver is gone and
     * touches no slab. */
    void (*ended)(void *context, enum status reason);
    void *context;
};

struct handoff_receivers_options {
    struct net_loop *loop;
    struct peer_hub *hub;
    struct metrics *metrics;
    uint32_t
        lease_ms; /* 5,000: without a frame or a sign of life for so long, a reservation ends */
};
enum status handoff_receivers_create(const struct handoff_receivers_options *o,
                                     struct handoff_receivers **out) WARN_UNUSED;
void handoff_receivers_destroy(struct handoff_receivers **r);

/* Pages are reserved: gives out a handle, tells the prefill node that it may send.
 * n_prefix_pages: pages that hold the prefix; the first n_held_pages of them are there already. */
enum status handoff_receive_ready(struct handoff_receivers *r, struct peer_link *link,
                                  const struct request_key *key, uint32_t attempt,
                                  uint32_t n_prefix_tokens, uint32_t n_held_pages,
                                  const struct handoff_sink *sink,
                                  struct handoff_receiver **out) WARN_UNUSED;
/* Ends it from here, telling the peer why (reason OK: without a word). ended() is not called. */
void handoff_receive_end(struct handoff_receiver *h, enum status reason);

enum status handoff_receivers_message(struct handoff_receivers *r, struct peer_link *link,
                                      const struct wire_frame *f) WARN_UNUSED;
void *handoff_receivers_slab_room(struct handoff_receivers *r, struct peer_link *link,
                                  const struct wire_kv_header *h, uint32_t page);
void handoff_receivers_slab_arrived(struct handoff_receivers *r, struct peer_link *link,
                                    const struct wire_kv_header *h, uint32_t page, bool intact);
void handoff_receivers_link_down(struct handoff_receivers *r, struct peer_link *link);

struct handoff_receiver_stats {
    uint32_t n_open;
    uint64_t n_slab_bytes_received, n_pages_received, n_stray_slabs, n_committed, n_ended;
};
void handoff_receivers_stats(const struct handoff_receivers *r, struct handoff_receiver_stats *out);

/* ---- the sender's life, as a pure function (send_table.c) ---- */

enum sender_state { SENDER_OPENING, SENDER_STREAMING, SENDER_COMMITTING, SENDER_CLOSED };
enum sender_event {
    SENDER_LAYER_DONE,
    SENDER_PREFILL_DONE,
    SENDER_READY,
    SENDER_ALL_SENT,
    SENDER_ACCEPTED,
    SENDER_REFUSED,
    SENDER_FAILED,
    SENDER_CANCEL,
    SENDER_LINK_LOST,
    SENDER_LEASE_OVER,
};
enum sender_action {
    SENDER_DO_NOTHING,
    SENDER_NOTE_LAYER,
    SENDER_NOTE_DONE,
    SENDER_SEND_ALL_SO_FAR,
    SENDER_SEND_LAYER,
    SENDER_SEND_COMMIT,
    SENDER_RELEASE,
    SENDER_SEND_CANCEL,
    SENDER_TRY_NEXT,
    SENDER_CANCEL_TRY_NEXT,
    SENDER_LATE_READY, /* in CLOSED: answered with a cancel */
    SENDER_COUNT,      /* in CLOSED, or where it makes no sense */
};
enum sender_action sender_next(enum sender_state *state, enum sender_event event);
const char *sender_state_name(enum sender_state state);
const char *sender_event_name(enum sender_event event);

#endif
