/* engine: the continuous-batching step. One thread takes sequences from a queue, plans a step of
 * decode rows and prefill chunks, runs the model, samples, and publishes what came out.
 *
 * A sequence is made on the loop's thread with all the memory it will ever need and handed over;
 * from then on the engine alone touches its pages and its plan, while what it publishes (ids,
 * log-probabilities, layer progress, how it stands) only grows and is read by the loop through
 * sequence_get_view(). Neither side ever waits for the other, and telling the other side cannot
 * fail: commands and news are bits on the sequence and an intrusive list. */
#ifndef BATON_ENGINE_ENGINE_H
#define BATON_ENGINE_ENGINE_H

#include "base/status.h"
#include "kv/kv.h"
#include "model/model.h"
#include "request/request.h"
#include "text/text.h"

#include <stdbool.h>
#include <stdint.h>

struct engine;
struct sequence;

struct engine_options {
    struct model *model; /* borrowed, as are the next two */
    struct compute *compute;
    const struct vocabulary *vocabulary;
    uint32_t n_slots; /* sequences that may run at a time */
    uint32_t n_pages;
    uint32_t max_context_tokens; /* of one request */
    uint32_t max_chunk_tokens;   /* rows of prefill in a step, at most; the model's max_rows is
                                    n_slots + this */
    uint32_t fixed_chunk_tokens; /* 0: chunks are sized to target_step_ms; else exactly this, for
                                    tests */
    uint32_t target_step_ms;     /* 100 */
    struct page_namespace names; /* salt zero: each request brings its own */
    /* Called on the engine's thread when engine_next_news() has something; must only post a wake.
     */
    void (*news)(void *context);
    void *news_context;
};
/* Rows of logits that a model must be loaded with room for. */
uint32_t engine_max_logit_rows(const struct engine_options *o);

/* Starts the thread. Errors: NO_MEMORY, CONTEXT_LENGTH (the pool cannot hold one full request). */
enum status engine_create(const struct engine_options *o, struct engine **out) WARN_UNUSED;
/* Stops the thread. Sequences still in the engine are ended as CANCELLED. */
void engine_stop(struct engine *e);
/* After engine_stop() and after every sequence has been destroyed (or with none). */
void engine_destroy(struct engine **e);

enum sequence_purpose {
    SEQUENCE_WHOLE,   /* prefill and decode here */
    SEQUENCE_PREFILL, /* until the first token is sampled; then the pages stay held until
                         engine_finish() */
    SEQUENCE_IMPORT,  /* pages are reserved, filled from outside, and decoded after engine_commit()
                       */
};

/* Takes r on success. For IMPORT, r's resume holds the ids that the pages will be of (prompt and
 * generated). Errors: CONTEXT_LENGTH, BAD_REQUEST (an id outside the vocabulary), NO_MEMORY.
 * Threads: the loop's. */
enum status sequence_create(struct engine *e, struct request *r, enum sequence_purpose purpose,
                            struct sequence **out) WARN_UNUSED;
/* Only before engine_submit(), or after the sequence has ended. */
void sequence_destroy(struct sequence **s);
struct request *sequence_request(struct sequence *s);
/* A pointer for whoever watches over the sequence. */
void sequence_set_owner(struct sequence *s, void *owner);
void *sequence_owner(const struct sequence *s);

/* Each of these takes effect before the next step is planned. Threads: the loop's. */
void engine_submit(struct engine *e, struct sequence *s);
/* Stops computing it. WHOLE ends; PREFILL and IMPORT keep their pages until engine_finish(), since
 * the loop may still be sending from them or reading into them. */
void engine_cancel(struct engine *e, struct sequence *s);
/* The loop no longer touches the pages: the sequence gives them back and ends. */
void engine_finish(struct engine *e, struct sequence *s);
/* How many tokens may be generated in all, earlier attempts' included; only ever widens. A sequence
 * that has used its window up is parked: its pages become cache, and once the window is wider it
 * goes on like one that was pre-empted. Unlimited unless said before engine_submit(). */
void engine_set_window(struct engine *e, struct sequence *s, uint32_t n_tokens);
/* IMPORT: every slab is in place. first_id is the token that the prefill sampled, with its
 * log-probability row. */
void engine_commit(struct engine *e, struct sequence *s, uint32_t first_id,
                   const struct logprob_rows *row);

/* The next sequence that published something since it was last returned; NULL: none. Threads: the
 * loop's. */
struct sequence *engine_next_news(struct engine *e);

/* A snapshot of what is published. Arrays stay where they are and only grow until
 * sequence_destroy(). */
struct sequence_view {
    bool started;   /* taken from the queue: its pages are there, its first chunk is planned */
    bool ready;     /* IMPORT: pages reserved */
    bool prefilled; /* PREFILL: the first token has been sampled, all layers are complete */
    bool stopped;   /* no longer computed, but its pages are held until engine_finish(); status and
                       message hold */
    bool ended;     /* the engine has let go for good; status and message hold */
    enum status status;
    enum finish_reason
        finish; /* not FINISH_NONE if and only if generated holds the last id of the answer */
    const char *message;
    uint32_t n_prefix;         /* prompt and earlier attempts' ids: what is prefilled */
    uint32_t n_generated;      /* earlier attempts' included */
    const uint32_t *generated; /* [n_generated] */
    struct logprob_rows
        generated_rows;     /* row i for generated token i; earlier attempts' rows are not filled */
    uint32_t n_prompt_rows; /* row i is for prompt position i + 1 */
    struct logprob_rows prompt_rows;
    uint32_t n_cached_tokens; /* spared by the prefix cache */
    uint32_t n_pages;
    uint32_t n_held_pages; /* IMPORT: leading pages that were in the cache and need not be sent */
    const kv_page_t *pages;
};
void sequence_get_view(const struct sequence *s, struct sequence_view *out);
/* Tokens of the prefix whose K and V are in their pages in this layer. */
uint32_t sequence_layer_tokens(const struct sequence *s, uint32_t layer);

struct kv_view engine_kv_view(const struct engine *e);

/* Figures as of the last step. Threads: any. */
struct engine_stats {
    struct kv_usage pages;
    uint32_t n_running, n_waiting, n_importing, n_parked, n_slots;
    bool busy;
    uint64_t
        progress; /* grows while a step runs; a busy engine whose progress stands still is stuck */
    uint64_t n_prompt_tokens_computed, n_tokens_sampled, n_steps;
    uint64_t n_prefix_queries, n_prefix_hits; /* in tokens */
    uint64_t n_preemptions, n_parkings;
    uint64_t model_ns; /* that steps took in the model */
    uint64_t own_ns;   /* that the engine's thread computed outside it */
};
void engine_get_stats(const struct engine *e, struct engine_stats *out);
/* Which pages the prefix cache holds (request/request.h), as of some moment of the last second.
 * Copies at most PREFIX_FILTER_BYTES_MAX bytes and returns how many; 0 if nothing has changed since
 * the call that left *version as it is (0: the first). Threads: any. */
uint32_t engine_get_prefix_filter(const struct engine *e, uint8_t *out, uint64_t *version);

#endif
