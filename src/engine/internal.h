/* What the files of engine/ share: the sequence, the engine, and the two intrusive lists between
 * loop and engine. */
#ifndef BATON_ENGINE_INTERNAL_H
#define BATON_ENGINE_INTERNAL_H

#include "engine/engine.h"

#include <pthread.h>
#include <stdatomic.h>

enum command {
    COMMAND_SUBMIT = 1,
    COMMAND_COMMIT = 2,
    COMMAND_CANCEL = 4,
    COMMAND_FINISH = 8,
    COMMAND_WINDOW = 16
};

/* WAITING and RUNNING sequences are computed; PARKED ones have neither pages nor a window; HELD
 * ones only keep their pages. */
enum sequence_state {
    STATE_NEW,
    STATE_WAITING,
    STATE_RUNNING,
    STATE_IMPORTING,
    STATE_PARKED,
    STATE_HELD,
    STATE_ENDED
};

/* A list of sequences that one thread appends to and another takes from, a node at most once in it
 * at a time. Everything that says whether a sequence may still be touched (queued, its commands,
 * ended) changes under the lock, so a sequence is never freed under somebody's hands. */
struct mailbox_node {
    struct mailbox_node *next;
    bool queued;
};
struct mailbox {
    pthread_mutex_t lock;
    struct mailbox_node *first, *last;
};
void mailbox_init(struct mailbox *m);
void mailbox_deinit(struct mailbox *m);
/* Both with the lock held. */
void mailbox_append(struct mailbox *m, struct mailbox_node *n);
struct mailbox_node *mailbox_pop(struct mailbox *m);

struct row_store {
    uint32_t n_top;
    float *value;
    uint32_t *top_ids;
    float *top_values;
};

struct sequence {
    struct mailbox_node command_node, news_node;
    uint32_t commands; /* under the commands' lock */
    bool ended;        /* under the news' lock */
    bool ended_seen;   /* the loop's own copy */

    /* set at creation */
    struct engine *engine;
    struct request *request;
    void *owner;
    enum sequence_purpose purpose;
    struct text_stream *stream;
    uint32_t *ids; /* [capacity] prompt, then generated */
    uint32_t n_prompt, n_prefix, capacity;
    struct page_namespace names;
    int64_t deadline_ms; /* 0: none */
    struct row_store generated_rows, prompt_rows;

    _Atomic uint32_t window; /* the loop widens it */

    /* commit's payload: written by the loop before COMMAND_COMMIT */
    uint32_t commit_id;

    /* the engine's own */
    enum sequence_state state;
    struct sequence *prev, *next; /* in the list of its state */
    uint64_t serial;              /* order of first submission: who is youngest */
    uint32_t n_ids, n_computed;
    kv_page_t *pages; /* [max_pages] */
    uint32_t n_pages, max_pages;
    struct page_name *page_names; /* [max_pages]; n_names of them are known */
    uint32_t n_names, n_indexed;
    uint32_t *prompt_seen; /* [n_vocab] occurrences in the prompt; NULL unless a penalty is on */
    uint32_t *generated_counts;   /* [n_vocab] */
    uint32_t prefill_share;       /* rows of prefill that this step's plan gives it */
    uint32_t step_row, step_rows; /* this step's rows */
    bool failed_numerics;

    /* published */
    _Atomic uint32_t published_ids, published_prompt_rows, published_pages;
    _Atomic uint32_t *layer_tokens; /* [n_layers] */
    atomic_bool started, ready, prefilled, stopped;
    uint32_t n_cached_tokens, n_held_pages; /* before started / ready */
    uint32_t n_final;                       /* ids with the answer's last; before finish */
    _Atomic uint32_t finish; /* enum finish_reason; before the last id is published */
    enum status status;      /* before stopped or ended */
    char message[256];
};

struct sequence_list {
    struct sequence *first, *last;
    uint32_t n;
};
void list_append(struct sequence_list *l, struct sequence *s);
void list_prepend(struct sequence_list *l, struct sequence *s);
void list_remove(struct sequence_list *l, struct sequence *s);

struct step_plan {
    uint32_t n_rows, n_tables, n_logit_rows;
    uint32_t *ids, *positions, *tables;
    struct page_table_view *page_tables;
    struct sequence **sequences; /* [n_tables] */
    uint32_t *logit_rows;
    uint32_t n_prefill_rows;
};

/* Where an entry stands in the order of sampling, and what it weighs there. */
struct sampler_key {
    uint64_t key;
    uint32_t weight;
};

/* Scratch of the sampler; see sample.c. */
struct sampler {
    const struct compute *compute;
    uint32_t n_vocab;
    /* [n_vocab] each */
    float *z; /* after penalties */
    uint32_t *w;
    uint32_t *kept_ids;
    float *kept_z;
    struct sampler_key *keys;
};
enum status sampler_init(struct sampler *s, const struct compute *c, uint32_t n_vocab) WARN_UNUSED;
void sampler_deinit(struct sampler *s);
/* Draws the next id of a sequence from its raw logits.
 * index: the generated token's number, from 0. Errors: NUMERICS (a logit is not finite). */
enum status sampler_draw(struct sampler *s, const float *logits, const struct resume *r,
                         uint64_t seed, uint32_t index, const uint32_t *prompt_seen,
                         const uint32_t *generated_counts, uint32_t *out_id) WARN_UNUSED;
/* Fills row i of a store: log-softmax of the raw logits for id, and the n_top likeliest. */
enum status sampler_logprobs(struct sampler *s, const float *logits, uint32_t id,
                             struct row_store *rows, uint32_t i) WARN_UNUSED;

struct engine {
    struct engine_options options;
    struct model_limits limits;
    struct kv_pool *pool;
    void *pool_memory;
    struct sampler sampler;
    struct sequence_list waiting, running, importing, parked, held;
    struct step_plan plan;
    float *logits; /* [max_logit_rows][n_vocab] */
    uint32_t max_logit_rows;
    uint64_t next_serial;
    double prefill_rows_per_ms; /* measured; 0 before the first chunk */
    double decode_step_ms;      /* of steps without prefill, measured; 0 before the first */
    int64_t model_cpu_ns;       /* of this thread, in the last step's model */

    struct mailbox commands, news;
    pthread_cond_t wake; /* with the commands' lock */
    bool stopping;       /* under the commands' lock */
    pthread_t thread;
    bool thread_started;

    pthread_mutex_t stats_lock;
    struct engine_stats stats; /* under stats_lock */
    struct engine_stats live;  /* the engine's own copy */
    uint8_t *prefix_filter;    /* under stats_lock, as are the next two */
    uint32_t n_prefix_filter_bytes;
    uint64_t prefix_filter_version; /* 0: never filled */
    int64_t prefix_filter_ms;
};

/* plan.c */
bool sequence_window_is_spent(const struct sequence *s);
void plan_admit(struct engine *e);
void plan_step(struct engine *e);
void sequence_index_full_pages(struct engine *e, struct sequence *s);
void sequence_release_pages(struct engine *e, struct sequence *s);
void sequence_learn_names(struct sequence *s, uint32_t n_pages);
enum status import_reserve(struct engine *e, struct sequence *s) WARN_UNUSED;

/* step.c */
void engine_run_step(struct engine *e);

/* engine.c */
void sequence_move_to(struct engine *e, struct sequence *s, enum sequence_state state);
/* Appends a sampled id. goes_on: it was not the last. Errors: text_stream_feed()'s, with nothing
 * appended. */
enum status sequence_append_id(struct engine *e, struct sequence *s, uint32_t id,
                               bool *goes_on) WARN_UNUSED;
void engine_publish(struct engine *e, struct sequence *s);
void sequence_end(struct engine *e, struct sequence *s, enum status status, const char *message);
/* Ends a sequence whose pages nobody else uses; keeps the pages of one that the loop may be sending
 * from or reading into. The sequence must not be touched after this. */
void sequence_stop(struct engine *e, struct sequence *s, enum status status, const char *message);

#endif
