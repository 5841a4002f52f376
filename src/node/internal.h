/* What the files of node/ share: a node, and a request's life on it (a job). */
#ifndef BATON_NODE_INTERNAL_H
#define BATON_NODE_INTERNAL_H

#include "base/rate.h"
#include "handoff/handoff.h"
#include "node/node.h"
#include "text/text.h"

#include <stdatomic.h>

struct job {
    struct job *prev, *next;
    struct node *node;
    struct sequence *sequence;
    struct request_key key; /* what the request is known by; its resume belongs to the sequence */
    uint32_t attempt;
    char request_id[129];
    int64_t begun_ms;
    uint32_t n_told; /* generated ids that went up or out */
    uint32_t n_prompt_rows_told;
    bool closing; /* nothing more goes up or out */

    /* hybrid */
    uint64_t ticket;
    struct request_sink sink;
    uint32_t n_taken; /* tokens that the client has read */
    bool unserved;    /* counted among node.n_unserved_tokens */

    /* prefill and decode */
    char reply_to[NODE_ID_BYTES];
    bool want_text;
    bool has_window;          /* credits widen it */
    struct text_stream *text; /* with want_text: makes `tokens` */
    struct handoff_sender *sender;
    bool needs_handoff, opened;
    bool first_told, accepted_told;
    struct wire_lost_node lost_nodes[WIRE_MAX_LOST_NODES]; /* prefill: whose connections broke */
    uint32_t n_lost_nodes;
    struct peer_link *from; /* decode: the prefill node's link, until the hand-off is done */
    struct handoff_receiver *receiver;
    bool asked_ready; /* decode: ready or a refusal has been sent */
    bool committed;
    bool whole; /* decode: nobody hands it over, the prompt is read here */
};

enum { N_CANCELLED_KEYS = 256, CANCELLED_KEY_MS = 10000, PROMPT_ROWS_A_RESULT = 256 };

struct cancelled_key {
    struct request_key key;
    uint32_t attempt; /* and the earlier ones: a resume of it is welcome */
    int64_t until_ms;
};

struct node {
    struct service service; /* first */
    struct node_options options;
    struct engine *engine;
    struct peer_hub *hub;
    struct handoff_senders *senders;
    struct handoff_receivers *receivers;
    struct job *jobs;
    uint32_t n_jobs;
    uint64_t next_number, epoch;
    uint64_t n_unserved_tokens; /* hybrid: of the prompts of requests that have no token yet */
    struct rate serving;        /* of them, while there are any */
    struct net_task news_task, flush_task;
    atomic_bool news_posted;
    bool flush_posted;
    bool draining;
    void (*idle)(void *context);
    void *idle_context;
    struct net_timer timer; /* gauges */
    struct cancelled_key cancelled[N_CANCELLED_KEYS];
    uint32_t next_cancelled;
    struct {
        struct metric *running, *waiting, *kv_usage, *prefix_queries, *prefix_hits, *preemptions,
            *parkings;
        struct metric *pages_free, *pages_cached, *pages_held, *prompt_computed, *sampled,
            *misconfigured;
    } metrics;
    struct engine_stats last_stats;
    uint8_t prefix_filter[PREFIX_FILTER_BYTES_MAX]; /* what routers were told last */
    uint32_t n_prefix_filter_bytes;
    uint64_t prefix_filter_version;
    uint64_t last_progress; /* for liveness */
    int64_t progress_since_ms;
};

/* node.c */
struct job *job_create(struct node *n, struct request *r, enum sequence_purpose purpose,
                       enum status *status);
/* The sequence has ended (or never began). */
void job_destroy(struct job *j);
/* For the ring: where it stands, and that this has changed. */
const char *job_place(const struct job *j);
void job_note(const struct job *j, const char *from, const char *event);
struct job *job_find(struct node *n, const struct request_key *key);
void key_remember_cancelled(struct node *n, const struct request_key *key, uint32_t attempt);
bool key_was_cancelled(const struct node *n, const struct request_key *key, uint32_t attempt);
struct logprob_rows rows_from(const struct logprob_rows *rows, uint32_t first);

/* hybrid.c */
/* Its prompt is no longer waited for: it has a token, or has ended. */
void job_is_served(struct job *j);
extern const struct service_ops hybrid_ops;
void hybrid_news(struct job *j, const struct sequence_view *v);

/* replies.c: results to whoever asked, gathered for each link and engine step */
void reply_append(struct node *n, const char *reply_to, const struct wire_result *m);
void reply_failed(struct node *n, const char *reply_to, const struct request_key *key,
                  uint32_t attempt, enum status error, const char *message);
void replies_flush(struct node *n);
void replies_link_up(struct node *n, struct peer_link *link);
void replies_link_down(struct peer_link *link);
/* A result with the job's key and, with want_text, what its text_stream releases for the ids. */
struct wire_result job_result(const struct job *j, enum wire_phase phase);
void job_add_text(struct job *j, struct wire_result *m, struct buffer *text);
/* The rows of the prompt that are new. */
void job_tell_prompt_rows(struct job *j, const struct sequence_view *v);
/* This attempt's first token, which the sequence has; what was said of it, without text. */
struct wire_result job_tell_first_token(struct job *j, const struct sequence_view *v);

/* prefill.c, decode.c */
enum status prefill_request(struct node *n, struct wire_prefill_request *m,
                            struct arena *arena) WARN_UNUSED;
void prefill_news(struct job *j, const struct sequence_view *v);
void prefill_cancel(struct job *j);
/* Whoever asked wants the whole answer from here. */
enum status decode_request(struct node *n, struct wire_prefill_request *m,
                           struct arena *arena) WARN_UNUSED;
enum status decode_open(struct node *n, struct peer_link *link,
                        const struct wire_frame *f) WARN_UNUSED;
void decode_news(struct job *j, const struct sequence_view *v);
void decode_cancel(struct job *j);
/* The same, and the prefill node is told why (status_message()), so that it does not wait for an
 * answer. */
void decode_give_up(struct job *j, enum status reason);

/* roles.c */
/* Tells routers which prefixes the cache holds, if that has changed. */
void roles_tell_prefixes(struct node *n);
extern const struct service_ops role_ops;
enum status roles_start(struct node *n) WARN_UNUSED;
void node_stats(struct service *s, service_stat_visitor *visit, void *context);
void node_describe(struct service *s, struct service_description *out);
void node_capacity(struct service *s, struct service_capacity *out);
enum status node_liveness(struct service *s);
void node_drain(struct service *s, void (*idle)(void *context), void *context);
/* Makes a job of a message that asked for one, arena and all; whoever calls submits it.
 * Errors: why the node does not take it. */
enum status job_begin(struct node *n, struct wire_prefill_request *m, struct arena *arena,
                      enum sequence_purpose purpose, struct job **out) WARN_UNUSED;

#endif
