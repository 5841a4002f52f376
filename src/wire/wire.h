/* wire: what nodes say to each other, as plain structs and as bytes. Pure: bytes in, structs out,
 * and back. docs/WIRE.md has the layouts. Every byte that is decoded is hostile.
 *
 * Control connection: frames of u32 length (of what follows), u16 type, u16 zero, u32 JSON bytes, a
 * JSON object, a binary tail of little-endian u32 and f32 arrays whose lengths the JSON says. Bulk
 * connection: a hello in that form, then KV frames. Decoded structs point into the frame and the
 * arena they were decoded with. */
#ifndef BATON_WIRE_WIRE_H
#define BATON_WIRE_WIRE_H

#include "base/memory.h"
#include "base/status.h"
#include "request/request.h"
#include "tensor/tensor.h"

#include <stdbool.h>
#include <stdint.h>

#define WIRE_VERSION_MIN 1
#define WIRE_VERSION_MAX 2
/* From 2 on a decode node takes serve.prefill_request, and answers the whole of it. */
#define WIRE_VERSION_WHOLE 2
#define WIRE_FRAME_BYTES_MAX (1u << 20) /* a control frame, length field excluded */
#define WIRE_FRAME_HEADER_BYTES 12
#define WIRE_KV_HEADER_BYTES 40
#define WIRE_KV_CRC_BYTES 4
#define WIRE_KV_FRAME_BYTES_MAX (1u << 20) /* slabs of one KV frame; one slab if it is larger */

/* name on the wire and in logs, number */
#define WIRE_TYPE_TABLE(X)                                                                         \
    X(HELLO, "link.hello", 1)                                                                      \
    X(REFUSE, "link.refuse", 2)                                                                    \
    X(PING, "link.ping", 3)                                                                        \
    X(PONG, "link.pong", 4)                                                                        \
    X(NODE_STATS, "node.stats", 5)                                                                 \
    X(PREFILL_REQUEST, "serve.prefill_request", 16)                                                \
    X(DECODE_META, "serve.decode_meta", 17)                                                        \
    X(DECODE_READY, "serve.decode_ready", 18)                                                      \
    X(DECODE_REFUSE, "serve.decode_refuse", 19)                                                    \
    X(HANDOFF_COMMIT, "serve.handoff_commit", 20)                                                  \
    X(HANDOFF_ACCEPTED, "serve.handoff_accepted", 21)                                              \
    X(HANDOFF_FAILED, "serve.handoff_failed", 22)                                                  \
    X(HANDOFF_LIVE, "serve.handoff_live", 23)                                                      \
    X(RESULT, "serve.result", 24)                                                                  \
    X(CREDIT, "serve.credit", 25)                                                                  \
    X(CANCEL, "serve.cancel", 26)

enum wire_type {
#define X(name, text, number) WIRE_##name = number,
    WIRE_TYPE_TABLE(X)
#undef X
};
const char *wire_type_name(uint32_t type); /* "unknown" for others */

/* ---- framing ---- */

struct wire_frame {
    uint32_t type;
    const char *json;
    uint32_t json_len;
    const uint8_t *tail;
    uint32_t tail_len;
};
/* Looks for a whole frame at the start of bytes. STATUS_OK with *used 0: more bytes are needed.
 * Errors: BAD_FRAME (the link cannot go on). */
enum status wire_frame_parse(const uint8_t *bytes, size_t len, struct wire_frame *out,
                             size_t *used) WARN_UNUSED;

/* On a connection each frame has two seals: one of its header before it, so that a wrong length is
 * not waited for, and one of all of it behind it. Both mix in the frame's number in that direction,
 * counted from 0: what was changed, lost, repeated or reordered on the way must end the link and
 * not change an answer. */
#define WIRE_SEAL_BYTES 4
void wire_seal(uint8_t out[WIRE_SEAL_BYTES], const void *bytes, size_t len, uint64_t number);

/* ---- messages ----
 * encode: appends one frame to out. Errors: TOO_LARGE (nothing is appended), NO_MEMORY.
 * decode: Errors: BAD_MESSAGE naming message and field; NO_MEMORY. */

struct wire_hello {
    uint32_t version_min, version_max;
    char node_id[NODE_ID_BYTES];
    uint64_t epoch;
    char role[16];        /* prefill, decode, hybrid, router, client */
    bool bulk;            /* this connection carries KV */
    bool wants_bulk;      /* on control: a bulk connection follows */
    uint64_t link;        /* drawn by the dialling node; binds its two connections */
    char expect_role[16]; /* what the dialling node believes it dialled; "" for anything */
    bool has_model; /* the five below hold; routers and clients have only a tokenizer digest, or
                       none */
    uint8_t model_digest[REQUEST_DIGEST_BYTES];
    uint8_t numerics_digest[REQUEST_DIGEST_BYTES];
    struct kv_geometry kv;
    uint32_t kv_type;
    uint32_t max_context_tokens;
    bool has_tokenizer;
    uint8_t tokenizer_digest[REQUEST_DIGEST_BYTES];
    uint32_t n_slots;
    uint32_t n_pages;
    char fingerprint[24];
};
enum status wire_encode_hello(struct buffer *out, const struct wire_hello *m) WARN_UNUSED;
enum status wire_decode_hello(const struct wire_frame *f, struct wire_hello *out) WARN_UNUSED;
/* Why two hellos do not make a link, as BAD..., VERSION_MISMATCH or CELL_MISMATCH with the
 * differing field named; nodes with models must agree in all that makes a cell, anybody else in the
 * tokenizer when both state one. */
enum status wire_hello_match(const struct wire_hello *ours,
                             const struct wire_hello *theirs) WARN_UNUSED;

/* link.refuse, decode_refuse, handoff_failed, handoff_accepted, cancel: a key or handle, and a
 * reason. */
struct wire_notice {
    bool has_key;
    struct request_key key;
    uint32_t attempt;
    uint64_t handle; /* 0: none */
    enum status reason;
    char message[256];
};
enum status wire_encode_notice(struct buffer *out, enum wire_type type,
                               const struct wire_notice *m) WARN_UNUSED;
enum status wire_decode_notice(const struct wire_frame *f, struct wire_notice *out) WARN_UNUSED;

/* ping, pong, node.stats: how a node is. */
struct wire_node_stats {
    uint64_t number;    /* of the ping; a pong repeats it */
    int64_t sent_at_us; /* the pinger's clock; a pong repeats it */
    bool busy;
    bool draining;
    uint64_t progress;
    uint32_t n_running, n_waiting, n_slots;
    uint32_t n_free_pages, n_cached_pages, n_total_pages;
    const uint8_t *prefix_filter;   /* lies in the frame */
    uint32_t n_prefix_filter_bytes; /* 0: it is not said now */
};
enum status wire_encode_node_stats(struct buffer *out, enum wire_type type,
                                   const struct wire_node_stats *m) WARN_UNUSED;
enum status wire_decode_node_stats(const struct wire_frame *f,
                                   struct wire_node_stats *out) WARN_UNUSED;

struct wire_prefill_request {
    struct request_key key;
    uint32_t attempt;
    const char *request_id; /* a label */
    struct resume resume;
    char reply_to[NODE_ID_BYTES];
    char (*decode_targets)[NODE_ID_BYTES]; /* in order */
    uint32_t n_decode_targets;
    bool has_decode_targets; /* absent: all of the node's own peers */
    bool want_text;
    uint32_t window_tokens; /* that may be generated before a credit says more; 0: any number */
};
enum status wire_encode_prefill_request(struct buffer *out,
                                        const struct wire_prefill_request *m) WARN_UNUSED;
enum status wire_decode_prefill_request(const struct wire_frame *f, struct arena *a,
                                        struct wire_prefill_request *out) WARN_UNUSED;

/* The open: the same request on its way to the decode node. */
struct wire_decode_meta {
    struct wire_prefill_request request; /* decode_targets unused */
    uint32_t n_page_names;
    const struct page_name *
        page_names; /* of the full pages of prompt + generated ids; the receiver computes its own */
};
enum status wire_encode_decode_meta(struct buffer *out,
                                    const struct wire_decode_meta *m) WARN_UNUSED;
enum status wire_decode_decode_meta(const struct wire_frame *f, struct arena *a,
                                    struct wire_decode_meta *out) WARN_UNUSED;

struct wire_decode_ready {
    struct request_key key;
    uint32_t attempt;
    uint64_t handle;
    uint32_t n_held_pages; /* leading pages that need not be sent */
    uint32_t credit_tokens;
};
enum status wire_encode_decode_ready(struct buffer *out,
                                     const struct wire_decode_ready *m) WARN_UNUSED;
enum status wire_decode_decode_ready(const struct wire_frame *f,
                                     struct wire_decode_ready *out) WARN_UNUSED;

struct wire_handoff_commit {
    struct request_key key;
    uint32_t attempt;
    uint64_t handle;
    uint32_t n_prefix_tokens;     /* prompt and earlier attempts' ids: what the pages are of */
    uint32_t first_page, n_pages; /* every layer's slabs of these pages must be there */
    uint32_t first_id;            /* this attempt's first token */
    bool has_logprobs;
    struct logprob_rows row; /* of first_id */
};
enum status wire_encode_handoff_commit(struct buffer *out,
                                       const struct wire_handoff_commit *m) WARN_UNUSED;
enum status wire_decode_handoff_commit(const struct wire_frame *f, struct arena *a,
                                       struct wire_handoff_commit *out) WARN_UNUSED;

struct wire_handles {
    uint32_t n;
    const uint64_t *handles;
};
enum status wire_encode_handles(struct buffer *out, const struct wire_handles *m) WARN_UNUSED;
enum status wire_decode_handles(const struct wire_frame *f, struct arena *a,
                                struct wire_handles *out) WARN_UNUSED;

struct wire_credit {
    struct request_key key;
    uint32_t attempt;
    uint32_t window_tokens; /* generated tokens that may exist in all */
};
enum status wire_encode_credit(struct buffer *out, const struct wire_credit *m) WARN_UNUSED;
enum status wire_decode_credit(const struct wire_frame *f, struct wire_credit *out) WARN_UNUSED;

/* name, wire name */
#define WIRE_PHASE_TABLE(X)                                                                        \
    X(OPENED, "opened")                                                                            \
    X(PROMPT_LOGPROBS, "prompt_logprobs")                                                          \
    X(FIRST_TOKEN, "first_token")                                                                  \
    X(ACCEPTED, "accepted")                                                                        \
    X(CONTINUATION, "continuation")                                                                \
    X(FAILED, "failed")
enum wire_phase {
#define X(name, text) WIRE_PHASE_##name,
    WIRE_PHASE_TABLE(X)
#undef X
};

#define WIRE_MAX_LOST_NODES 2
struct wire_lost_node {
    char node_id[NODE_ID_BYTES];
    uint64_t epoch;
};
struct wire_result {
    struct request_key key;
    uint32_t attempt;
    enum wire_phase phase;
    char decode_node[NODE_ID_BYTES]; /* opened: which one took it; "" : none needed */
    /* opened, failed: targets whose connection broke while the request was there */
    struct wire_lost_node lost_nodes[WIRE_MAX_LOST_NODES];
    uint32_t n_lost_nodes;
    uint32_t start;      /* start_sequence, or start_position for prompt_logprobs */
    uint32_t n_ids;      /* rows, for prompt_logprobs */
    const uint32_t *ids; /* NULL for prompt_logprobs */
    bool has_logprobs;
    struct logprob_rows logprobs;
    bool has_text;
    const char *text; /* what the node's text_stream released for these ids */
    uint32_t text_len;
    bool done;
    enum finish_reason finish;
    enum status error; /* STATUS_OK: none */
    char message[256];
    uint32_t n_generated; /* with done */
    uint32_t n_cached;    /* with first_token */
};
/* One frame holds the entries of one engine step and reply link. append adds an entry to a batch;
 * encode writes one frame or, when they do not fit one, several. Zeroed is valid and empty; what is
 * appended is copied. */
struct wire_result_batch {
    struct buffer json, tail;
    uint32_t n;
    struct buffer frames; /* whole frames that were full */
};
enum status wire_result_append(struct wire_result_batch *b,
                               const struct wire_result *m) WARN_UNUSED;
enum status wire_encode_results(struct buffer *out, struct wire_result_batch *b)
    WARN_UNUSED; /* and empties the batch */
void wire_result_batch_deinit(struct wire_result_batch *b);
enum status wire_decode_results(const struct wire_frame *f, struct arena *a,
                                struct wire_result **out, uint32_t *n) WARN_UNUSED;

/* ---- bulk ---- */

/* Then n_pages times: a slab, and its CRC32C as a little-endian u32. */
struct wire_kv_header {
    uint64_t handle;
    uint32_t layer;
    uint32_t first_page; /* index in the sequence */
    uint32_t n_pages;
    uint32_t slab_bytes;
};
void wire_encode_kv_header(uint8_t out[WIRE_KV_HEADER_BYTES], const struct wire_kv_header *h);
/* Errors: BAD_FRAME (magic or the header's own CRC). Sizes are judged by the receiver, from its own
 * geometry. */
enum status wire_decode_kv_header(const uint8_t in[WIRE_KV_HEADER_BYTES],
                                  struct wire_kv_header *out) WARN_UNUSED;

/* CRC-32C (Castagnoli). The instruction where the CPU has it, in three interleaved chains. */
uint32_t wire_crc32c(const void *data, size_t len);

#endif
