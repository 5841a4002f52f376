/* model: weights bound to an architecture descriptor, and the one decoder that runs every family.
 *
 * Owner: whoever loaded it. Threads: model_forward() on the engine's thread only; the rest is
 * immutable. */
#ifndef BATON_MODEL_MODEL_H
#define BATON_MODEL_MODEL_H

#include "base/status.h"
#include "compute/compute.h"
#include "request/request.h"
#include "tensor/tensor.h"

#include <stdint.h>

struct gguf;
struct model;

struct model_limits {
    uint32_t n_layers;
    uint32_t n_vocab;
    uint32_t trained_context_tokens;
    struct kv_geometry kv;
    uint64_t packed_bytes; /* resident memory of the weights */
};

/* SHA-256 over each tensor's name, type, shape and file bytes. It takes the longest of all that a
 * load does, so it begins first, on a thread of its own. Owner: the caller; it holds the file
 * itself. Errors: NO_MEMORY. */
struct model_digester;
enum status model_digester_create(struct gguf *file, struct model_digester **out) WARN_UNUSED;
/* Stops it if it still runs. */
void model_digester_destroy(struct model_digester **d);

/* Binds and packs the weights, and waits for the digest. The file may be closed afterwards unless
 * the model still reads from its mapping (it then holds a reference of its own). digester: the
 * file's, or NULL, then it begins here. max_rows: the most rows a step may have; max_logit_rows
 * likewise. Owner: digester stays the caller's; after an error it is good for nothing but
 * model_digester_destroy(). Errors: BAD_MODEL, UNSUPPORTED_MODEL, NO_MEMORY; each names the tensor
 * or key and what was expected. */
enum status model_load(struct gguf *file, struct model_digester *digester, struct compute *compute,
                       uint32_t max_rows, uint32_t max_logit_rows, struct model **out) WARN_UNUSED;
void model_destroy(struct model **m);
void model_get_limits(const struct model *m, struct model_limits *out);
/* The limits alone, from metadata and tensor list, without touching weights (for `inspect` and
 * routers). */
enum status model_read_limits(const struct gguf *file, struct model_limits *out) WARN_UNUSED;
/* The digester's result: equal for files of the same tensors. */
void model_digest(const struct model *m, uint8_t out[REQUEST_DIGEST_BYTES]);

/* What rows cost at least, to hold speed against the machine's limits. */
struct model_work {
    /* Multiplications and additions of matrices: for each row; for each row whose logits are
     * wanted, in addition. */
    double row_operations[COMPUTE_N_UNITS], logit_operations[COMPUTE_N_UNITS];
    double key_operations;   /* of attention, for each key that a row sees in each layer */
    uint64_t weight_bytes;   /* packed, that a step with logits reads */
    uint64_t kv_token_bytes; /* that one token's keys and values take in all layers */
};
void model_get_work(const struct model *m, struct model_work *out);

/* One step. Rows of one sequence are consecutive and ascending in position. */
struct model_batch {
    uint32_t n_rows;
    const uint32_t *ids;       /* [n_rows] */
    const uint32_t *positions; /* [n_rows] */
    const uint32_t *tables;    /* [n_rows] which page table a row's sequence has */
    const struct page_table_view *page_tables;
    uint32_t n_page_tables;
    const struct kv_view *kv;
    uint32_t n_logit_rows;
    const uint32_t *logit_rows; /* [n_logit_rows] rows whose logits are wanted, ascending */
    float *logits;              /* [n_logit_rows][n_vocab], written by the step */
    /* Called on the engine's thread as soon as every row's K and V of a layer are in their pages;
     * may be NULL. */
    void (*layer_done)(void *context, uint32_t layer);
    void *context;
};
/* Runs the step to its end. K and V of each row are written to the page of its position.
 * Errors: NUMERICS with out_bad_row set to a row whose activations or logits left the finite range;
 * rows of other sequences are valid all the same, so the caller ends that row's request and repeats
 * nothing. */
enum status model_forward(struct model *m, const struct model_batch *batch,
                          uint32_t *out_bad_row) WARN_UNUSED;
/* Of the last model_forward(): 1 for each row that left the finite range, should there be several.
 * Shapes: [n_rows]. Owner: the model, until the next step. */
const uint8_t *model_bad_rows(const struct model *m);

#endif
