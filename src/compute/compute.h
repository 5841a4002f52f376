/* compute: the operations a model is made of, as one table that cpu/ref fills whole and each SIMD
 * tier overrides; packed weights; and the workers that run a step. docs/EXACTNESS.md says what each
 * operation's bits are.
 *
 * The interface is a device's: a step is begun, operations are enqueued, the step is ended; nobody
 * assumes that an operation has finished because its call returned. Whatever a call points at must
 * stay valid until the step has ended. Owner: whoever created it. Threads: one thread, the
 * engine's, which is worker 0; exceptions are named. */
#ifndef BATON_COMPUTE_COMPUTE_H
#define BATON_COMPUTE_COMPUTE_H

#include "base/status.h"
#include "tensor/tensor.h"

#include <stdbool.h>
#include <stdint.h>

/* Goes up whenever a rule of docs/EXACTNESS.md changes. */
#define COMPUTE_CONTRACT_VERSION 1
#define COMPUTE_DIGEST_BYTES 32

struct compute;

/* Starts n_threads - 1 workers; the caller is worker 0. tier: a name from docs/EXACTNESS.md, 8, or
 * NULL for the best that this CPU has (the environment's BATON_TIER overrides NULL). A tier whose
 * self test misses ref's bits on any worker is dropped with one log line. Errors: USAGE when the
 * tier is unknown or this CPU lacks it; NO_MEMORY. */
enum status compute_create(uint32_t n_threads, const char *tier, struct compute **out) WARN_UNUSED;
void compute_destroy(struct compute **c);
const char *compute_tier_name(const struct compute *c);
uint32_t compute_n_threads(const struct compute *c);
/* Over the contract's version and the results of fixed vectors through every operation and weight
 * type: equal on every tier and host, or the two may not share a stream. */
void compute_numerics_digest(const struct compute *c, uint8_t out[COMPUTE_DIGEST_BYTES]);
/* Goes up by one each layer of each step. Threads: any. */
uint64_t compute_progress(const struct compute *c);

/* Zeroed memory for big things, 64-byte aligned (in fact by page), huge pages where the system
 * grants them; NULL with fail(STATUS_NO_MEMORY). Threads: any. */
void *compute_alloc(struct compute *c, uint64_t bytes);
void compute_free(struct compute *c, void *p, uint64_t bytes);

/* ---- pages ---- */

/* Where a pool's slabs lie: the slab of (page, layer) is base + page * page_stride + layer * slab
 * bytes of the geometry. */
struct kv_view {
    void *base;
    uint64_t page_stride;
    struct kv_geometry geometry;
};

/* The pages of one sequence, in order of position. Token t lives in pages[t / PAGE_TOKENS], lane t
 * % PAGE_TOKENS. */
struct page_table_view {
    const uint32_t *pages;
    uint32_t n_tokens; /* that will be in the pages when the step has ended */
};

/* ---- weights ---- */

/* A matrix packed for this compute's tier: y[n_outputs] = W x[k]. */
struct compute_matrix;
/* A matrix as it lies in a file: n_outputs rows of k values in the blocks of type. */
struct compute_source {
    const char *name; /* of the tensor, for messages */
    enum dtype type;
    const void *data;
    uint32_t n_outputs, k;
    struct compute_matrix **out;
};
/* What workers do beside packing; each may be NULL. */
struct compute_pack_hooks {
    /* One worker, before it packs; the others pack meanwhile. */
    void (*before)(void *context);
    /* Each worker after each of its tasks. Every task whose rows lie before reached has been taken,
     * though perhaps not finished. */
    void (*after_task)(void *context, const void *reached);
    /* One worker, once no task is left to take; others may still be in their last one. */
    void (*after_last)(void *context);
    /* One worker, at the first bad weight: before and after_last need wait for nothing any more. */
    void (*give_up)(void *context);
    void *context;
};
/* Packs matrices, all or none, in the order in which they lie, as one loop that the workers share;
 * not during a step. hooks may be NULL. Errors: BAD_MODEL for a scale or weight that is not finite,
 * which ends the loop (the message names the first such tensor of the file), NO_MEMORY. */
enum status compute_matrices_create(struct compute *c, const struct compute_source *sources,
                                    uint32_t n, const struct compute_pack_hooks *hooks) WARN_UNUSED;
void compute_matrix_destroy(struct compute *c, struct compute_matrix **m);
uint64_t compute_matrix_bytes(const struct compute_matrix *m);
/* The file's exact values, each rounded once to f32. Threads: any. */
void compute_dequantise(const struct compute *c, enum dtype type, const void *row, uint32_t k,
                        float *out);

/* Activation rows in the forms that packed weights multiply with. One for each distinct input
 * width. */
struct compute_acts;
/* matrices: those that will read it, which decide the forms kept.
 * Errors: NO_MEMORY. */
enum status compute_acts_create(struct compute *c, uint32_t max_rows, uint32_t k,
                                const struct compute_matrix *const *matrices, uint32_t n_matrices,
                                struct compute_acts **out) WARN_UNUSED;
void compute_acts_destroy(struct compute *c, struct compute_acts **a);

/* ---- a step ---- */

/* The rows of one step. Rows of one sequence are consecutive and ascending in position. */
struct compute_batch {
    uint32_t n_rows;
    const uint32_t *positions; /* [n_rows] */
    const uint32_t *tables;    /* [n_rows] index of the row's page table */
    const struct page_table_view *page_tables;
    const struct kv_view *kv;
    uint8_t *bad; /* [n_rows] zero at the start; 1 for a row whose values left the finite range */
};

void compute_step_begin(struct compute *c, const struct compute_batch *batch);
/* Runs what was enqueued. Errors: NO_MEMORY if the step could not be enqueued whole (nothing ran).
 */
enum status compute_step_end(struct compute *c) WARN_UNUSED;

/* Calls on worker 0, once everything enqueued before has finished, while the workers go on. Counts
 * as a layer's progress. */
void compute_signal(struct compute *c, void (*done)(void *context, uint32_t layer), void *context,
                    uint32_t layer);

/* x[i] = row ids[i] of a table of n_table rows in the file's blocks. Shapes: x [n][k]. */
void compute_embed(struct compute *c, enum dtype type, const void *table, uint32_t k,
                   const uint32_t *ids, uint32_t n, float *x);
/* to[i] = from[rows[i]]. Shapes: to [n][k]. */
void compute_gather(struct compute *c, const float *from, const uint32_t *rows, uint32_t n,
                    uint32_t k, float *to);

/* The two ways to fill activations. Row i is the batch's row rows[i], or i when rows is NULL;
 * only `bad` cares. */
/* RMS norm, then the forms. Shapes: x [n][k], weight [k]. */
void compute_norm(struct compute *c, const float *x, const float *weight, float epsilon,
                  const uint32_t *rows, uint32_t n, struct compute_acts *out);
/* The forms alone. */
void compute_activate(struct compute *c, const float *x, const uint32_t *rows, uint32_t n,
                      struct compute_acts *out);

/* One product of the rows in acts: y = W x (+ bias), or y = y + (W x + bias) when residual. Shapes:
 * y [n][y_stride]. */
struct compute_product {
    const struct compute_matrix *matrix;
    const float *bias; /* [n_outputs] or NULL */
    float *y;
    uint64_t y_stride; /* floats */
    bool residual;
};
/* All products of one input together, so that small ones share the workers. At most 4. */
void compute_matmul(struct compute *c, const struct compute_acts *acts,
                    const struct compute_product *products, uint32_t n);
enum compute_gate { COMPUTE_SILU, COMPUTE_GELU };
/* y = silu(gate x + its bias) * (up x + its bias), or gelu. The matrices have one shape; their
 * types may differ. Shapes: y [n][y_stride]. */
struct compute_gated {
    enum compute_gate kind;
    const struct compute_matrix *gate, *up;
    const float *gate_bias, *up_bias; /* [n_outputs] or NULL */
    float *y;
    uint64_t y_stride; /* floats */
};
/* One pass over both matrices. */
void compute_gated_matmul(struct compute *c, const struct compute_acts *acts,
                          const struct compute_gated *g);

/* What attention does in one layer. */
struct compute_attention {
    uint32_t layer;
    uint32_t n_heads, n_kv_heads, head_dim;
    float scale;      /* RN(attention scale * log2 e), or RN(attention scale) with a soft cap */
    float soft_cap;   /* 0: none */
    uint32_t n_rot;   /* rotated dims of a head, even */
    bool rope_halves; /* pairs are (i, i + n_rot/2); otherwise (2i, 2i + 1) */
    const float *q_norm, *k_norm; /* [head_dim] or NULL */
    float norm_epsilon;
    const float
        *rope; /* [n_rows][n_rot] cos, sin of pair 0, of pair 1, ...; compute_rope() fills it */
};
/* Angles of a model: inverse frequency of each pair and what divides it, in double. */
struct compute_rope_table {
    uint32_t n_pairs;
    const double *frequency; /* exp(-(2i/n_rot) ln theta) */
    const double *factor;
};
/* rope[row] = cos and sin of each pair at the row's position. Shapes: rope [n_rows][2 * n_pairs].
 */
void compute_rope(struct compute *c, const struct compute_rope_table *table, float *rope);
/* Norms, rotates and scales q in place; norms and rotates k; writes K and V of every row into its
 * page. Shapes: q [n_rows][n_heads * head_dim], k and v [n_rows][n_kv_heads * head_dim]. */
void compute_attention_store(struct compute *c, const struct compute_attention *a, float *q,
                             float *k, const float *v);
/* out[i] = attention of batch row rows[i] (or i) over its sequence's pages, up to its own position.
 * Shapes: q as left by compute_attention_store() (all rows), out [n][n_heads * head_dim]. */
void compute_attention(struct compute *c, const struct compute_attention *a, const float *q,
                       const uint32_t *rows, uint32_t n, float *out);
/* cap * tanh(z / cap) by our own form, cap 0: none; marks rows whose logits are not finite. Shapes:
 * z [n][k]. */
void compute_logits_finish(struct compute *c, float cap, const uint32_t *rows, uint32_t n,
                           uint32_t k, float *z);

/* ---- what the machine could do at most: measured on the spot, not during a step ---- */

/* The kinds of arithmetic that a step consists of; attention is FMA. */
enum compute_unit {
    COMPUTE_DOT_NIBBLE, /* products of 4- to 6-bit weights with bytes */
    COMPUTE_DOT_BYTE,   /* of 8-bit weights */
    COMPUTE_DOT_INT16,  /* of 16-bit weights */
    COMPUTE_FMA_F32,
    COMPUTE_N_UNITS,
};
enum compute_unit compute_matrix_unit(const struct compute_matrix *m);
/* Multiplications and additions for one row. */
double compute_matrix_operations(const struct compute_matrix *m);
/* Multiplications and additions a second of all workers together, by the densest instructions that
 * this tier has for the unit. */
enum status compute_probe_peak(struct compute *c, enum compute_unit unit, double *out) WARN_UNUSED;
/* Bytes a second that all workers together read from one buffer of this size, again and again.
 * Errors: NO_MEMORY. */
enum status compute_probe_read(struct compute *c, uint64_t bytes, double *out) WARN_UNUSED;

/* ---- sampling (docs/EXACTNESS.md, 6). At once, on the calling thread; not during a step. ---- */

/* The largest; -infinity counts, NaN never wins. */
float compute_max(const struct compute *c, const float *z, uint32_t n);
/* True if every z is finite or -infinity (a masked entry). */
bool compute_all_valid(const struct compute *c, const float *z, uint32_t n);
/* w[i] = rint(exp2((z[i] - zmax) * scale) * 2^30), 0 for -infinity. */
void compute_sample_weights(const struct compute *c, const float *z, uint32_t n, float zmax,
                            float scale, uint32_t *w);
/* ln of the sum of exp2((z[i] - zmax) * log2 e): log-probability of i is (double)z[i] - zmax -
 * this. */
double compute_log_sum(const struct compute *c, const float *z, uint32_t n, float zmax);

/* ---- our own mathematics: the same bits on every host. Threads: any. ---- */

float compute_exp2(float x);
double compute_ln(double x); /* x > 0 and finite */
double compute_exp(double x);
void compute_sin_cos(double x, double *sin, double *cos); /* |x| < 2^30 */

#endif
