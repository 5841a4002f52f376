/* What model's files share: descriptors, hyperparameters, bound weights. */
#ifndef BATON_MODEL_INTERNAL_H
#define BATON_MODEL_INTERNAL_H

#include "compute/compute.h"
#include "format/gguf.h"
#include "model/model.h"

#include <stdbool.h>
#include <string.h>

/* A family, as data. Metadata keys are NAME.key; tensor names are GGUF's. What no field can say
 * becomes a layer function that the descriptor points at; `if (family == x)` in the decoder is a
 * fault. */
struct architecture {
    const char *name;
    bool rope_halves;       /* rotation pairs are (i, i + n/2); otherwise (2i, 2i + 1) */
    bool qk_norm;           /* RMS norms over each head of q and k, before rotation */
    enum compute_gate gate; /* of the feed-forward */
    double rope_base;       /* where the file is silent */
};
/* NULL when unknown. */
const struct architecture *architecture_find(struct gguf_string name);
/* "llama, qwen3" for messages. */
const char *architecture_names(void);

struct hyperparameters {
    const struct architecture *arch;
    uint32_t n_layers, n_context, n_embd, n_ff, n_heads, n_kv_heads, head_dim, n_rot, n_vocab;
    float norm_epsilon;
    double rope_base, rope_scale; /* every angle is divided by rope_scale */
    double attention_scale;       /* 1/sqrt(head_dim) unless the file says otherwise */
};
enum status hyperparameters_read(const struct gguf *file, struct hyperparameters *out) WARN_UNUSED;

struct linear {
    struct compute_matrix *matrix;
    float *bias; /* NULL: none */
};

struct layer {
    float *attn_norm, *ffn_norm, *q_norm, *k_norm; /* the last two NULL without qk_norm */
    struct linear q, k, v, o, gate, up, down;
};

struct model {
    struct hyperparameters hp;
    struct compute *compute;
    struct gguf *file; /* embedding rows are read from its mapping */
    const struct gguf_tensor *embedding;
    struct layer *layers;
    float *output_norm;
    struct linear output;
    double *rope_frequency, *rope_factor;
    struct compute_rope_table rope_table;
    uint32_t max_rows, max_logit_rows;
    uint64_t packed_bytes;
    uint8_t digest[REQUEST_DIGEST_BYTES];

    /* of a step */
    struct compute_acts *acts_embd, *acts_heads, *acts_ff;
    float *x, *x_last, *q, *k, *v, *attended, *hidden, *rope;
    float *memory;
    uint64_t memory_bytes;
    uint8_t *bad; /* [max_rows] */
};

/* Until the digest is there or stopped; more than once if need be, not by two threads at a time. */
void model_digester_wait(struct model_digester *d);
/* Gives back to the system what the digest has read of the mapping and lies before `reached`.
 * Threads: any; it does nothing while another is at it. */
void model_digester_give_back(struct model_digester *d, const void *reached);
/* The same up to the file's end, as the digest reads it, until it is there or stopped. */
void model_digester_give_back_rest(struct model_digester *d);
/* Nobody will ask for the result: whoever waits need not. Threads: any. */
void model_digester_stop(struct model_digester *d);
/* After model_digester_wait(), if it was not stopped. */
void model_digester_result(const struct model_digester *d, uint8_t out[REQUEST_DIGEST_BYTES]);

enum status model_bind(struct model *m, const struct compute_pack_hooks *hooks) WARN_UNUSED;
void model_unbind(struct model *m);

#endif
