/* request: the traveller. What a request is, what must continue when it moves (struct resume), what
 * comes back (token events), the names of pages, and the two interfaces through which lower rooms
 * call upper ones. Plain data.
 *
 * Threads: none of its own; who holds a thing may touch it. */
#ifndef BATON_REQUEST_REQUEST_H
#define BATON_REQUEST_REQUEST_H

#include "base/memory.h"
#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

#define NODE_ID_BYTES 64 /* with the NUL; ids are [A-Za-z0-9._-]{1,63} */
#define REQUEST_MAX_LOGPROBS 20
#define REQUEST_MAX_STOPS 64
#define REQUEST_MAX_LOGIT_BIAS 1024
#define REQUEST_SALT_BYTES 32
#define REQUEST_DIGEST_BYTES 32
#define PAGE_NAME_BYTES 16

/* ---- identity ---- */

/* Unique in a cluster: the origin (router, hybrid or test client) counts its requests within one
 * epoch of its own. */
struct request_key {
    char origin[NODE_ID_BYTES];
    uint64_t epoch;
    uint64_t number;
    uint32_t choice;
};
bool request_key_equal(const struct request_key *a, const struct request_key *b);
bool node_id_valid(const char *id, size_t len);

/* ---- what must continue ---- */

/* docs/EXACTNESS.md, 6. "Off" is the value in brackets. */
struct sampling {
    double temperature;       /* [0 = greedy] */
    double top_p;             /* [1] */
    double min_p;             /* [0] */
    uint32_t top_k;           /* [0] */
    float repetition_penalty; /* [1] over prompt and generated ids */
    float frequency_penalty;  /* [0] over generated ids */
    float presence_penalty;   /* [0] over generated ids */
};

struct logit_bias {
    uint32_t id;
    float bias;
};

struct byte_string {
    const char *bytes;
    uint32_t len;
};

/* Everything a request needs to go on anywhere; all else is replayed from it. Pointers live in the
 * request's arena. */
struct resume {
    uint32_t *prompt_ids;
    uint32_t n_prompt;
    uint32_t *generated_ids;
    uint32_t n_generated;
    uint64_t seed;
    uint32_t choice;
    struct sampling sampling;
    struct logit_bias *logit_bias;
    uint32_t n_logit_bias;
    struct byte_string *stops;
    uint32_t n_stops;
    struct byte_string grammar; /* len 0: none */
    int32_t n_logprobs; /* top ones wanted beside each generated token; -1: no log-probabilities at
                           all */
    int32_t n_prompt_logprobs; /* the same for the prompt's tokens */
    uint32_t min_tokens;       /* EOS and stops are not honoured before so many generated tokens */
    uint32_t max_tokens; /* of the whole answer, earlier attempts included; at least 1, clamped to
                            the context */
    bool ignore_eos;
    bool has_tenant;
    uint8_t tenant_salt[REQUEST_SALT_BYTES];
    uint64_t deadline_ms; /* what remains; 0: none */
};

enum finish_reason { FINISH_NONE, FINISH_STOP, FINISH_LENGTH };
const char *finish_reason_name(enum finish_reason r); /* "stop", "length"; NULL for FINISH_NONE */
enum finish_reason finish_reason_from_name(const char *name, size_t len);

/* One request on its way. Owner: whoever it was handed to last, with request_destroy(). */
struct request {
    struct arena arena; /* everything below that is a pointer */
    struct request_key key;
    uint32_t attempt; /* from 1 */
    char *request_id; /* a label for logs, never a key */
    struct resume resume;
    const void *attachment; /* what its present owner keeps with it, in the arena */
};
struct request *request_create(void); /* NULL with fail(STATUS_NO_MEMORY) */
void request_destroy(struct request **r);

/* ---- what comes back ---- */

/* Log-probabilities (natural) of n rows. Owner: the event, for the length of the call. */
struct logprob_rows {
    uint32_t n_top;     /* top entries a row; fewer exist only when the vocabulary is smaller */
    const float *value; /* [n] of the row's own token */
    const uint32_t *top_ids; /* [n][n_top], likeliest first, ties by lower id */
    const float *top_values; /* [n][n_top] */
};

enum token_event_kind {
    TOKEN_EVENT_PROMPT_LOGPROBS, /* rows for prompt positions, ascending, in one or more parts,
                                    before the first token */
    TOKEN_EVENT_TOKENS,          /* generated ids, ascending without gap or repeat */
    TOKEN_EVENT_ENDED, /* the last event: exactly one, unless the request was cancelled by its
                          sink's owner */
};

struct token_event {
    enum token_event_kind kind;
    /* PROMPT_LOGPROBS: row i is for prompt position start + i; position 0 has no row (start is at
     * least 1). TOKENS: token i is generated token number start + i. */
    uint32_t start;
    uint32_t n;
    const uint32_t *ids;                 /* [n], TOKENS only */
    const struct logprob_rows *logprobs; /* NULL: not wanted */
    /* ENDED */
    enum status status;  /* STATUS_OK: finish holds */
    const char *message; /* what went wrong, in words */
    enum finish_reason finish;
    uint32_t n_generated;     /* counted tokens, EOS included */
    uint32_t n_cached;        /* prompt tokens that a prefix cache spared */
    const char *prefill_node; /* ids for logs and headers; may be NULL */
    const char *decode_node;
};

struct request_sink {
    void (*event)(void *context, const struct token_event *event);
    void *context;
};

/* ---- upward: what the api calls, whatever the role ---- */

struct service_description {
    const char *role; /* "hybrid", "router", "prefill", "decode" */
    const char *node_id;
    const char *misconfigured;   /* NULL, or why it serves as a single node */
    uint32_t max_context_tokens; /* of one request: prompt + answer */
    uint32_t n_slots;
    char fingerprint[24]; /* "fp_" and 16 hex digits over model, tokenizer and numerics; equal on
                             hybrid and router */
};

struct service_capacity {
    uint32_t n_running, n_waiting, max_waiting;
    uint32_t retry_after_s; /* what to tell a refused client */
};

/* One figure of /router/stats. scope is a path such as "nodes.prefill-0"; text is NULL for numbers.
 */
typedef void service_stat_visitor(void *context, const char *scope, const char *name,
                                  const char *text, double number);

#define SERVICE_WINDOW_TOKENS 1024

struct service;
struct service_ops {
    /* Takes the request. On STATUS_OK the sink gets events (never before submit has returned) until
     * ENDED or cancel(). Errors: QUEUE_FULL, NO_NODE, DRAINING, LOADING, CONTEXT_LENGTH, ...: the
     * caller still owns the request. */
    enum status (*submit)(struct service *s, struct request *r, struct request_sink sink,
                          uint64_t *out_ticket) WARN_UNUSED;
    /* No event follows once this returns. A ticket that has ended is ignored. */
    void (*cancel)(struct service *s, uint64_t ticket);
    /* The client has taken the bytes of so many generated tokens. The service generates at most
     * SERVICE_WINDOW_TOKENS beyond that, and parks who is behind. */
    void (*taken)(struct service *s, uint64_t ticket, uint32_t n_tokens);
    void (*capacity)(struct service *s, struct service_capacity *out);
    /* STATUS_OK if a request could be served now; else why, with status_message(). */
    enum status (*readiness)(struct service *s);
    enum status (*liveness)(struct service *s);
    void (*describe)(struct service *s, struct service_description *out);
    void (*stats)(struct service *s, service_stat_visitor *visit, void *context);
    /* No new requests from now on. idle() is called once, when none is left. */
    void (*drain)(struct service *s, void (*idle)(void *context), void *context);
};
/* Implementations embed this first. Threads: the loop's only. */
struct service {
    const struct service_ops *ops;
};

/* ---- page names ---- */

struct page_name {
    uint8_t bytes[PAGE_NAME_BYTES];
};
/* What all pages of one cell and tenant share. */
struct page_namespace {
    uint8_t salt[REQUEST_SALT_BYTES]; /* zero without tenant */
    uint8_t model_digest[REQUEST_DIGEST_BYTES];
    uint8_t tokenizer_digest[REQUEST_DIGEST_BYTES];
    uint8_t kv_type;
};
#define KV_TYPE_F16 1
/* The first 128 bits of SHA-256 over parent (zero for the first page), salt, model digest,
 * tokenizer digest, KV type and the page's ids as little-endian u32. Shapes: ids [PAGE_TOKENS]. */
struct page_name page_name(const struct page_name *parent, const struct page_namespace *space,
                           const uint32_t *ids);

/* Which pages a prefix cache holds, roughly: a few bits for each name, so that a name that is there
 * is always found and another hardly ever. n_bytes is a power of two; no filter has 0. */
#define PREFIX_FILTER_BYTES_MAX 32768
uint32_t prefix_filter_bytes(uint32_t n_pages);
void prefix_filter_add(uint8_t *filter, uint32_t n_bytes, const struct page_name *name);
bool prefix_filter_has(const uint8_t *filter, uint32_t n_bytes, const struct page_name *name);

/* ---- bytes and kinds of a vocabulary's entries, for those who must not know the tokenizer ---- */

enum token_kind {
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN = 2,
    TOKEN_CONTROL = 3,
    TOKEN_USER_DEFINED = 4,
    TOKEN_UNUSED = 5,
    TOKEN_BYTE = 6
};

struct vocabulary_view {
    uint32_t n_tokens;
    const struct byte_string
        *tokens;          /* [n_tokens] what each id adds to a text (byte level decoded) */
    const uint8_t *kinds; /* [n_tokens] enum token_kind */
};

/* SHA-256 in pieces, for digests of models and names. */
struct digest;
struct digest *digest_create(void); /* NULL with fail(STATUS_NO_MEMORY) */
void digest_add(struct digest *d, const void *data, size_t len);
/* Ends and frees. */
void digest_finish(struct digest **d, uint8_t out[REQUEST_DIGEST_BYTES]);

#endif
