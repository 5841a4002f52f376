/* router: makes prefill and decode nodes look like one server. It admits, chooses nodes, journals
 * every token id before it shows it, merges the first token with the continuation by sequence
 * number, and tells the client how it ended.
 *
 * It has no weights and no engine: a vocabulary (for the api and for checking where an answer ends)
 * and links. Threads: the loop's only. */
#ifndef BATON_ROUTER_ROUTER_H
#define BATON_ROUTER_ROUTER_H

#include "base/metrics.h"
#include "net/net.h"
#include "peer/peer.h"
#include "request/request.h"
#include "text/text.h"

#include <stdint.h>

struct router;

enum router_policy {
    POLICY_PREFIX,       /* who has the longest prefix, weighed against load */
    POLICY_LEAST_LOADED, /* who has least to do */
    POLICY_ROUND_ROBIN,  /* one after the other */
};
/* Errors: USAGE. */
enum status router_policy_from_name(const char *name, enum router_policy *out) WARN_UNUSED;

struct router_options {
    const char *node_id;
    struct net_loop *loop;
    struct metrics *metrics;
    const struct vocabulary *vocabulary;
    uint8_t tokenizer_digest[REQUEST_DIGEST_BYTES];
    uint32_t max_context_tokens; /* what the model's file says; nodes may allow less */
    struct peer_limits limits;
    struct tls_context *tls; /* for links; NULL: plain (peer/peer.h) */
    enum router_policy policy;
    uint32_t max_local_tokens;  /* a prompt of which no more need be computed may be read by its
                                   decode  node, when prefill nodes are busy; 0: never */
    uint32_t version_max;       /* of the protocol between nodes (peer/peer.h) */
    uint32_t max_waiting;       /* requests queued here; more are refused */
    uint64_t max_journal_bytes; /* of all requests; more are refused */
    uint32_t queue_timeout_ms;  /* a request that no node took for so long ends */
};
enum status router_create(const struct router_options *o, struct router **out) WARN_UNUSED;
void router_destroy(struct router **r);
struct service *router_service(struct router *r);
struct peer_hub *router_hub(struct router *r);
void router_cancel_all(struct router *r);
uint32_t router_n_requests(const struct router *r);

/* ---- who serves: a pure function (choose.c) ---- */

struct candidate {
    const char *node_id;
    const uint8_t *model_digest, *numerics_digest; /* together with geometry: the cell */
    uint32_t max_context_tokens;
    uint32_t n_slots, n_total_pages;
    uint32_t n_assigned;        /* requests that this router has given it */
    uint64_t n_assigned_tokens; /* their prompt tokens still to be prefilled, or tokens held */
    uint32_t n_running, n_waiting;
    uint32_t n_free_pages;    /* cached ones included; as it last said, UINT32_MAX: nothing yet */
    uint32_t n_prefix_tokens; /* of the request at hand, that its cache holds */
    uint32_t n_resumed;       /* of the assigned ones, those that were prefilled before */
    bool takes_whole;         /* decode: it can read a prompt itself */
    bool probation;           /* it has a request that is suspected of crashing nodes */
    bool draining;
};
/* What is to be served. */
struct wanted {
    enum router_policy policy;
    uint32_t turn;          /* ROUND_ROBIN: how many were served before */
    uint32_t n_tokens;      /* prompt and answer */
    uint32_t n_reserved;    /* of them, those that a decode node makes room for at once */
    uint32_t n_prompt;      /* what a prefill node without a prefix of it computes */
    uint32_t n_known;       /* prompt and what has been answered */
    uint32_t max_local;     /* router_options.max_local_tokens */
    uint32_t max_resumed;   /* 0: not a resumed one; else nodes with so many of them are passed over
                             */
    bool suspect;           /* of having crashed a node: it goes alone to as few others as can be */
    const char *not_decode; /* a node that it moves away from, or NULL */
    const struct candidate *cell; /* a node of the cell that has it already, which it never leaves;
                                     NULL: any will do */
};
/* Whether it has a slot for one more, whatever that is. */
bool prefill_is_free(const struct candidate *p);
bool decode_is_free(const struct candidate *d);
/* The prefill node that the policy likes best, among those that have a decode node of their cell
 * with room for it; decode_order: that cell's decode nodes, best first. -1: nobody can serve it
 * now. */
int choose_nodes(const struct candidate *prefill, uint32_t n_prefill,
                 const struct candidate *decode, uint32_t n_decode, const struct wanted *w,
                 uint32_t *decode_order, uint32_t *n_order);
/* The decode node that had better read the prompt itself, since little of it is new there and
 * prefill (what choose_nodes() chose; NULL: nobody is free) has other prompts to read first. -1:
 * none. */
int choose_local(const struct candidate *prefill, const struct candidate *decode, uint32_t n_decode,
                 const struct wanted *w);

#endif
