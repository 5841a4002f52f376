/* What the files of router/ share: the router and the journal's entries. */
#ifndef BATON_ROUTER_INTERNAL_H
#define BATON_ROUTER_INTERNAL_H

#include "base/rate.h"
#include "base/ring.h"
#include "router/router.h"

enum entry_state { ENTRY_QUEUED, ENTRY_ASSIGNED };
enum entry_owner { OWNER_PREFILL, OWNER_DECODE };

enum {
    MAX_FAILURES = 5,
    RETRY_PAUSE_MS = 50,
    REFUSED_PAUSE_MAX_MS = 1000, /* the pause doubles while there is no room */
    MOVE_PAUSE_MS = 500, /* until another try to move a request away from a node that drains */
    TICK_MS = 50,
    RESTART_PATIENCE_MS = 5000,
    MAX_NODES = 64,
    MAX_LOOKED =
        64, /* waiting requests whose prefixes are looked up while no prefill node is free */
    ADRIFT_MS = 500,
    VERDICT_MS = 5000,
    MAX_DEATHS = 16,
    NOTICE_MS = 2000, /* between a prefill node's word of a death and the broken link here */
    /* resumed requests that one prefill node computes again at a time: an outage must not become a
     * storm */
    MAX_RESUMED_A_NODE = 4,
    PROBATION_TOKENS = 8 /* that a suspect makes before its nodes take others again */
};

/* What a node has cost, as far as is remembered. */
struct tally {
    char node_id[NODE_ID_BYTES];
    uint64_t n_failovers, n_refusals; /* attempts that it owned and that were made again */
    int64_t used_ms;
};

/* Which nodes have one attempt of a request. */
struct assignment {
    uint32_t attempt;       /* 0: none */
    enum entry_owner owner; /* who would have to give it up, or be lost, for it to be tried again */
    char prefill_node[NODE_ID_BYTES], decode_node[NODE_ID_BYTES];
    uint32_t n_ids_before; /* journalled when it began */
    uint32_t window_sent;  /* with the request */
    bool opened;           /* decode_node is what the prefill node says, no longer a guess */
    bool first_seen;       /* this attempt's first token is out: the decode node may own it without
                              our knowing */
    bool probation;        /* a suspect: its nodes take no others */
    uint64_t decode_epoch; /* of decode_node, once opened; 0: it was not linked */
    int64_t begun_ms;
    int64_t adrift_ms; /* since when that decode node is not linked; 0: it is */
};

/* A node whose process may have died of a request: proven when it comes back as a new epoch; if it
 * comes back as the old one, only the link was lost. */
struct crash {
    char node_id[NODE_ID_BYTES];
    uint64_t epoch;
    bool proven;
};

/* A node whose loss was reported by the prefill node that sent it pages. Whether it died, the
 * router's own link to it tells, before that or soon after. */
struct report {
    char node_id[NODE_ID_BYTES];
    uint64_t epoch;
    int64_t at_ms;
    bool alone; /* the request was on probation there */
};

/* One request: what was asked, what has come back, who has it. */
struct entry {
    struct entry *prev, *next;
    struct router *router;
    enum entry_state state;    /* of the newest attempt */
    struct assignment now;     /* the newest attempt; while QUEUED its nodes are empty */
    struct assignment leaving; /* an older one that streams on from a node that drains, until the
                                  newer one's first token */
    uint32_t last_attempt;
    uint64_t ticket;
    struct request *request;
    struct request_sink sink;
    struct text_stream *stream; /* where the answer ends, from the ids alone */
    bool ended_by_ids;
    enum finish_reason finish_by_ids;
    uint32_t *ids; /* the journal: generated ids, as shown */
    uint32_t n_ids, capacity;
    struct candidate cell; /* whose nodes have it, or had; node_id NULL: nobody yet */
    uint8_t cell_model[REQUEST_DIGEST_BYTES], cell_numerics[REQUEST_DIGEST_BYTES];
    struct page_name *names; /* of the prompt's full pages, in the cell of names_of; NULL: not known
                                yet */
    uint32_t n_names;
    uint8_t names_of[REQUEST_DIGEST_BYTES];
    uint32_t n_prompt_rows;
    uint32_t n_cached;
    uint32_t n_taken, window_tokens; /* by the client; that the nodes may generate */
    struct wire_result_batch
        held;            /* what the decode node said before all of the prompt's rows were here */
    uint32_t n_failures; /* of nodes or hand-offs since a token was made; refusals for want of room
                            do not count */
    uint32_t n_refusals; /* one after the other */
    struct crash crashes[MAX_FAILURES]; /* of nodes that owned it */
    uint32_t n_crashes;
    struct report reports[WIRE_MAX_LOST_NODES]; /* the newest ones */
    uint32_t n_reports;
    int64_t verdict_by_ms; /* it seems to crash nodes: it waits until its crashes are proven or
                              explained, or taken for proven; 0: it does not */
    enum status last_error;
    char last_message[256];
    int64_t interrupted_ms; /* since when a fault keeps it from getting on; 0: none does */
    enum status interrupted_by;
    int64_t submitted_ms, queued_ms, not_before_ms, deadline_ms;
    uint64_t journal_bytes;
    bool unserved; /* counted among router.n_unserved_tokens */
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
    uint64_t n_unserved_tokens; /* of the prompts of requests that have no token yet */
    struct rate serving;        /* of them, while there are any */
    uint64_t epoch, next_number;
    uint32_t n_sent; /* attempts: whose turn it is */
    struct net_timer timer;
    struct net_task dispatch_task;
    bool dispatch_posted;
    bool has_pair; /* as last said in the log */
    struct {
        char node_id[NODE_ID_BYTES];
        uint64_t epoch;
        int64_t at_ms;
    } deaths[MAX_DEATHS]; /* of nodes, the newest ones: a report of them may be under way */
    uint32_t n_deaths;
    int64_t possible_until_ms; /* when a pair of nodes was last there */
    struct {
        uint32_t context_tokens;
        char fingerprint[24];
    } known; /* of the nodes, when both roles last had any */
    bool draining;
    void (*idle)(void *context);
    void *idle_context;
    struct {
        struct metric *n_requests, *n_ended_ok, *n_ended_error, *n_retries, *n_requeued, *n_inexact,
            *n_moved, *n_poison, *n_local, *n_recomputed, *waiting;
    } metrics;
    struct tally tallies[2 * MAX_NODES];
    uint64_t n_retries, n_requeued, n_inexact, n_tokens, n_handed_off, n_moved, n_poison, n_local;
};

/* entry.c, result.c: one request's life */
void entry_append(struct router *r, struct entry *e, bool in_front);
void entry_remove(struct entry *e);
struct entry *entry_find(struct router *r, const struct request_key *key);
/* Tells the sink how it ended, and frees it. */
void entry_end(struct entry *e, enum status status, enum finish_reason finish, const char *message);
/* Tries again elsewhere, from what the journal holds. The entry may be gone when this returns. */
void entry_retry(struct entry *e, enum status reason, const char *message);
void entry_cancel_on_nodes(const struct entry *e);
void entry_cancel_attempt(const struct entry *e, const struct assignment *a);
/* The newer attempt has its first token out: the node that drains is left. */
void entry_leave(struct entry *e);
/* Once its first token is out, the decode node may own a request whose prefill node has nothing
 * more to say about it. A prefill node that still holds the pages finds another target; if it does
 * not soon, there was nobody left to. */
void entry_note_decode_link(struct entry *e, int64_t now_ms);
void entry_result(struct entry *e, const char *node_id, const struct wire_result *m);
/* A node is gone; died: with a broken connection, as a process that ends leaves it. The entry may
 * be gone when this returns. */
void entry_node_lost(struct entry *e, const struct wire_hello *node, bool died, int64_t now_ms);
/* The client has read so much: the nodes may generate more. */
void entry_taken(struct entry *e, uint32_t n_tokens);
/* Its prompt is no longer waited for: it has a token, or has ended. */
void entry_is_served(struct entry *e);
/* Before an attempt is sent: the next number, and what streams on from a node that drains. */
void entry_begin_attempt(struct entry *e, bool moves);

static inline const char *assignment_owner(const struct assignment *a)
{
    return a->owner == OWNER_PREFILL ? a->prefill_node : a->decode_node;
}

static inline const char *entry_label(const struct entry *e)
{
    return e->request->request_id ? e->request->request_id : "";
}

/* For the ring: whose it is. */
static inline const char *entry_place(const struct entry *e)
{
    return e->state == ENTRY_QUEUED        ? "queued"
           : e->now.owner == OWNER_PREFILL ? "prefill"
                                           : "decode";
}

static inline void entry_note(const struct entry *e, const char *from, const char *event,
                              const char *to)
{
    ring_note("router", e->request->key.origin, e->request->key.number, e->last_attempt, from,
              event, to);
}

/* What it computes, some node has computed before. */
static inline bool entry_is_resumed(const struct entry *e)
{
    return e->n_ids || e->n_failures;
}

/* costs.c: what faults cost */
/* An attempt came to nothing, full: for want of room alone. */
void costs_retry(struct entry *e, enum status reason, bool full, int64_t now_ms);
/* It gets on: tokens that no attempt had made before. */
void costs_progress(struct entry *e, int64_t now_ms);
/* An attempt is sent that computes again what another had computed. */
void costs_resend(struct entry *e);
/* Zeroes for a node that nothing is known of. */
struct tally costs_of(const struct router *r, const char *node_id);

/* crash.c: requests that nodes crash of */
void router_note_death(struct router *r, const struct wire_hello *node, int64_t now_ms);
/* alone: no other request could have been the cause. */
void entry_count_crash(struct entry *e, const char *node_id, uint64_t epoch, bool alone,
                       int64_t now_ms);
/* A node died that may have been receiving this request's pages. */
void entry_count_death_at_import(struct entry *e, const struct wire_hello *node, int64_t now_ms);
/* The prefill node of attempt a lost its connection to a node that it had opened at. */
void entry_take_report(struct entry *e, const struct assignment *a, const char *node_id,
                       uint64_t epoch, int64_t now_ms);
/* The decode node of attempt a is known now. */
void entry_opened_at_dead(struct entry *e, const struct assignment *a, int64_t now_ms);
/* A node is linked: a crash that it was suspected of did not happen if its epoch is the old one. */
void entry_node_found(struct entry *e, const struct wire_hello *node);
/* Ends a request that has crashed nodes, once that is proven. False if it was not, yet. */
bool entry_judge(struct entry *e, int64_t now_ms);

/* dispatch.c: the queue */
/* In the loop's next turn, once for however many reasons. */
void dispatch_soon(struct router *r);
void dispatch(struct router *r);
/* STATUS_OK if some pair of nodes could serve a request of so many tokens, were it free. */
enum status dispatch_possible(struct router *r, uint32_t n_tokens) WARN_UNUSED;
/* The largest request that can be served at present. */
uint32_t service_context(struct router *r);
uint32_t collect_candidates(struct router *r, const char *role, struct candidate out[MAX_NODES]);

#endif
