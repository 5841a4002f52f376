/* What the files of the prefill side share: a hand-off being sent, and the set of them. */
#ifndef BATON_HANDOFF_INTERNAL_H
#define BATON_HANDOFF_INTERNAL_H

#include "handoff/handoff.h"

/* One target being tried. It outlives the try while frames are in flight. */
struct
try {
    struct peer_bulk bulk;
    struct handoff_sender *sender;
    struct peer_link *link; /* NULL once the try is over */
    uint64_t handle;
    uint32_t *sent_pages;   /* [n_layers] */
    uint32_t n_layers_done; /* whose pages are all handed over */
    uint32_t layer;         /* where next() looks first */
};

struct handoff_sender {
    struct handoff_sender *prev, *next;
    struct handoff_senders *all;
    enum sender_state state;
    struct handoff_source source;
    struct request_key key;
    uint32_t attempt;
    uint32_t n_prefix_tokens, n_pages;
    struct buffer open_frame; /* serve.decode_meta, the same for every target */
    char (*targets)[NODE_ID_BYTES];
    uint32_t n_targets, next_target;
    uint32_t n_broken; /* targets whose connection broke, as a dying process leaves it */
    struct try *try;
    uint32_t n_tries; /* not freed yet, this one included */
    bool prefill_done, over;
    struct wire_handoff_commit commit;
    float row_value; /* the first token's log-probabilities, what commit.row points at */
    uint32_t row_ids[REQUEST_MAX_LOGPROBS];
    float row_values[REQUEST_MAX_LOGPROBS];
    int64_t asked_ms; /* when the target was asked something that it owes an answer to */
    enum status last_reason;
    char last_message[256];
    struct net_task start;
    bool start_posted;
};

struct handoff_senders {
    struct net_loop *loop;
    struct peer_hub *hub;
    struct kv_geometry kv; /* the hub's: frames in flight may outlive it */
    struct handoff_sender *first;
    struct net_timer timer;
    uint32_t ticks;
    struct handoff_sender_stats stats;
    struct metric *n_accepted, *n_refused, *n_failed, *n_late;
    struct metrics *metrics;
    struct metrics_family in_flight;
};

/* Runs an event, and frees the sender if that was its end. */
void sender_act(struct handoff_sender *h, enum sender_event event);
void sender_notice(struct peer_link *link, enum wire_type type, const struct handoff_sender *h,
                   uint64_t handle);

#endif
