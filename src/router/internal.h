/* What the files of router/ share: the router and the journal's entries. */
#ifndef BATON_ROUTER_INTERNAL_H
#define BATON_ROUTER_INTERNAL_H

#include "router/router.h"

enum entry_state { ENTRY_QUEUED, ENTRY_ASSIGNED };
enum entry_owner { OWNER_PREFILL, OWNER_DECODE };

enum {
    WINDOW_TOKENS = 1024,
    MAX_FAILURES = 3,
    RETRY_PAUSE_MS = 50,
    TICK_MS = 50,
    RESTART_PATIENCE_MS = 5000,
    MAX_NODES = 64,
    ADRIFT_MS = 500
};

/* One request: what was asked, what has come back, who has it. */
struct entry {
    struct entry *prev, *next;
    struct router *router;
    enum entry_state state;
    enum entry_owner owner; /* who would have to give it up, or be lost, for it to be tried again */
    uint64_t ticket;
    struct request *request;
    struct request_sink sink;
    struct text_stream *stream; /* where the answer ends, from the ids alone */
    bool ended_by_ids;
    enum finish_reason finish_by_ids;
    uint32_t *ids; /* the journal: generated ids, as shown */
    uint32_t n_ids, capacity;
    uint32_t n_prompt_rows;
    uint32_t n_cached, window_tokens;
    char prefill_node[NODE_ID_BYTES], decode_node[NODE_ID_BYTES];
    bool opened;       /* decode_node is what the prefill node says, no longer a guess */
    bool first_seen;   /* this attempt's first token is out: the decode node may own it without our
                          knowing */
    int64_t adrift_ms; /* since when that decode node is not linked; 0: it is */
    struct wire_result_batch
        held;            /* what the decode node said before all of the prompt's rows were here */
    uint32_t n_failures; /* of nodes or hand-offs; refusals for want of room do not count */
    enum status last_error;
    char last_message[256];
    int64_t submitted_ms, queued_ms, not_before_ms, deadline_ms;
    uint64_t journal_bytes;
    bool closing;
    bool in_result; /* a result is being shown: who cancels now leaves the freeing to entry_result()
                     */
};

struct router {
    struct service service; /* first */
    struct router_options options;
    struct peer_hub *hub;
    struct entry *walk;         /* the next one of a walk during which any entry may end */
    struct entry *first, *last; /* queued ones in order of service: resumed ones first */
    uint32_t n_entries, n_queued;
    uint64_t journal_bytes;
    uint64_t epoch, next_number;
    struct net_timer timer;
    struct net_task dispatch_task;
    bool dispatch_posted;
    int64_t possible_until_ms; /* when a pair of nodes was last there */
    bool draining;
    void (*idle)(void *context);
    void *idle_context;
    struct {
        struct metric *n_requests, *n_ended_ok, *n_ended_error, *n_retries, *n_requeued, *n_inexact,
            *waiting;
    } metrics;
    uint64_t n_retries, n_requeued, n_inexact, n_tokens, n_handed_off;
};

/* entry.c: one request's life */
void entry_append(struct router *r, struct entry *e, bool in_front);
void entry_remove(struct entry *e);
struct entry *entry_find(struct router *r, const struct request_key *key);
/* Tells the sink how it ended, and frees it. */
void entry_end(struct entry *e, enum status status, enum finish_reason finish, const char *message);
/* Tries again elsewhere, from what the journal holds. */
void entry_retry(struct entry *e, enum status reason, const char *message);
void entry_cancel_on_nodes(const struct entry *e);
void entry_result(struct entry *e, const char *node_id, const struct wire_result *m);
/* A node is gone. The entry may be, when this returns. */
void entry_node_lost(struct entry *e, const char *node_id, int64_t now_ms);

/* dispatch.c: the queue */
void dispatch(struct router *r);
/* STATUS_OK if some pair of nodes could serve a request of so many tokens, were it free. */
enum status dispatch_possible(struct router *r, uint32_t n_tokens) WARN_UNUSED;
/* The largest request that can be served at present. */
uint32_t service_context(struct router *r);
uint32_t collect_candidates(struct router *r, const char *role, struct candidate out[MAX_NODES]);

#endif
