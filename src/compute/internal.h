/* What compute's files share: the op table, packed weights, activations, the list of operations of
 * a step. */
#ifndef BATON_COMPUTE_INTERNAL_H
#define BATON_COMPUTE_INTERNAL_H

#include "base/checked.h"
#include "base/memory.h"
#include "compute/compute.h"

#include <stdatomic.h>
#include <string.h>

#define BLOCK 32          /* activations share a scale by so many */
#define SEGMENT 512       /* K is cut here (EXACTNESS 2) */
#define SUPER_BLOCKS 8    /* blocks of a K-quant's super-block */
#define ATTENTION_PAGES 8 /* pages of an attention segment of 256 keys */
#define ATTENTION_KEYS (ATTENTION_PAGES * PAGE_TOKENS)
#define ATTENTION_PAIRS 96 /* the most rows of an attention task, and (row, head) pairs at once */
#define LIMIT_BITS 0x6F800000u /* 2^96: values from here on are refused at quantisation */
#define INFINITY_BITS 0x7F800000u
#define SMALL_BITS 0x1F800000u /* 2^-64: a block whose largest value is below is zero */
#define LOG2_E 0x1.71547652b82fep+0
#define MAX_PRODUCTS 4
#define FEW_ROWS 2        /* at most so many rows of a matmul wait for memory */
#define TASKS_A_WORKER 16 /* aimed at, where there is enough to cut */

static inline uint32_t float_bits(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float bits_float(uint32_t u)
{
    float x;

    memcpy(&x, &u, sizeof x);
    return x;
}

static inline uint32_t segment_count(uint32_t k)
{
    uint32_t n = (k + SEGMENT / 2) / SEGMENT;

    return n ? n : 1;
}

/* One past the last value of segment s. */
static inline uint32_t segment_end(uint32_t k, uint32_t s)
{
    return s + 1 == segment_count(k) ? k : (s + 1) * SEGMENT;
}

float half_to_float(uint16_t h);
uint16_t float_to_half(float x); /* to nearest even; |x| <= 65504 */

/* ---- packed weights ---- */

/* How a packed matrix multiplies; several file types share one. */
enum weight_form {
    WEIGHT_U4,  /* 0..15, steps of 32: Q4_0, Q4_1, Q4_K */
    WEIGHT_U5,  /* 0..31, steps of 32: Q5_0, Q5_K */
    WEIGHT_U6,  /* 0..63, steps of 16: Q6_K */
    WEIGHT_S8,  /* -128..127, steps of 32: Q8_0 */
    WEIGHT_I16, /* blocks of 32 as int16: F16, BF16 */
    WEIGHT_F32,
};
/* How its scales, and minima, are kept. */
enum scale_form {
    SCALES_F32,
    SCALES_F16, /* as the file's are */
    SCALES_K,   /* small integers of each step and two f16 of each super-block, as K-quants have */
};
/* The activations that each form reads. */
enum act_form {
    ACT_Q8 = 1,
    ACT_I16 = 2,
    ACT_F32 = 4,
    ACT_Q8_WIDE = 8 /* Q8's integers in 16 bits too, for tiers without a dot instruction */
};

struct compute_matrix {
    enum dtype type;
    enum weight_form form;
    bool has_min;
    enum scale_form scales;
    int32_t offset; /* of the stored integer: what to take off */
    uint32_t n_outputs, k;
    uint32_t n_blocks; /* of 32 along k, the last perhaps short */
    uint32_t n_panels;
    uint64_t panel_bytes;
    uint8_t *data;
    uint64_t n_bytes;
};
/* One, or several ored together. */
uint32_t weight_act_form(enum weight_form form);

/* The next columns of a panel's rows, at most a super-block of each: the file's integers and
 * scales, unpacked but not yet in any order of a tier's. Scales have outputs innermost, as a panel
 * has them, so a tier copies them. */
#define MAX_PANEL_OUTPUTS 16
#define RAW_VALUES (SUPER_BLOCKS * BLOCK)
struct raw_rows {
    uint32_t n_values, n_blocks; /* of each row, blocks of 32; the last may be short */
    union {
        uint8_t u[MAX_PANEL_OUTPUTS][RAW_VALUES]; /* offset not taken off; S8: two's complement */
        int16_t w[MAX_PANEL_OUTPUTS][RAW_VALUES]; /* I16, a short block filled up with zeros */
        float values[MAX_PANEL_OUTPUTS][RAW_VALUES]; /* F32, likewise */
    };
    float power[SUPER_BLOCKS][MAX_PANEL_OUTPUTS]; /* SCALES_F32 */
    /* SCALES_F16 */
    uint16_t d[SUPER_BLOCKS][MAX_PANEL_OUTPUTS], m[SUPER_BLOCKS][MAX_PANEL_OUTPUTS];
    /* SCALES_K. 16 integers: scales, then minima (U6: int8 scales); and the two f16 that they are
     * multiplied with, for minima with its sign. */
    uint8_t steps[2 * SUPER_BLOCKS][MAX_PANEL_OUTPUTS];
    uint16_t super[2][MAX_PANEL_OUTPUTS];
};
/* Row i's, raw->n_values of it, 16-bit floats apart; false if a scale or weight is not finite. */
bool decode_columns(const struct compute_matrix *m, const void *blocks, struct raw_rows *raw,
                    uint32_t i);
/* 16-bit floats as int16 in blocks, the last filled up with zeros, and a power of two of each. */
bool decode_halves(enum dtype type, const void *row, uint32_t k, int16_t *w, float *d);
/* One block of a quantised type alone. */
void decode_block(enum dtype type, const void *block, int16_t *w, float *d, float *m);

/* ---- activations ---- */

struct compute_acts {
    uint32_t k, n_blocks, n_segments, max_rows;
    uint32_t n_rows; /* as of the last operation enqueued that fills it */
    uint32_t forms;  /* act_form bits */
    uint64_t q8_tile_bytes, outlier_tile_bytes, i16_tile_bytes, f32_tile_bytes;
    uint8_t *q8, *outliers, *i16, *f32; /* [tiles] */
    uint8_t *memory;
    uint64_t n_bytes;
    const float *zeros; /* [k] */
};

/* ---- the op table ---- */

struct matmul_task {
    const struct compute_matrix *matrix;
    const struct compute_acts *acts;
    const struct compute_product *product;
    uint32_t panel_begin, panel_end;
    /* Not 0, with at most FEW_ROWS rows: behind each of its panels the task also has those so
     * many, twice so many and so on further, to the matrix's end; they are read side by side. */
    uint32_t stream_panels;
    uint32_t row_begin, row_end; /* row_begin is a multiple of the tile */
    void *scratch;
    /* A hint: packed weights that the worker reads after the task's, or NULL. Streams need none. */
    const uint8_t *next;
    /* The row and the output that the product's y begins with: zeros, but for a y of the task's
     * own. */
    uint32_t y_row, y_output;
};

static inline float *matmul_y(const struct matmul_task *t, uint32_t row, uint32_t output)
{
    return t->product->y + (uint64_t)(row - t->y_row) * t->product->y_stride +
           (output - t->y_output);
}

struct attention_task {
    const struct compute_attention *a;
    const struct compute_batch *batch;
    const float *q;
    const uint32_t *rows; /* batch rows of entries; NULL: the same */
    uint32_t first, n;    /* entries of one sequence */
    uint32_t kv_head;
    float *out;
    /* One segment of one entry alone, keys [begin, end): for each head of the group m, l and o go
     * to part, and attention_merge() puts segments together. NULL: all keys, to out. */
    float *part; /* head h of the group at part + h * part_stride */
    uint64_t part_stride;
    uint32_t begin, end;
    const uint16_t *ahead; /* the page that the next task will read first, or NULL: a hint */
    void *scratch;
};

/* Every operation, once: result, name, arguments. The table's type and ref's table are both made
 * from this list, so an operation that ref lacks does not compile; a SIMD tier overrides what it
 * likes and inherits the rest. */
#define COMPUTE_OPS(X)                                                                             \
    X(uint64_t, panel_bytes, (const struct compute_matrix *m))                                     \
    /* Columns in the tier's order; returns where the next ones of the panel go. */                \
    X(uint8_t *, pack, (const struct compute_matrix *m, const struct raw_rows *raw, uint8_t *to))  \
    /* As decode_halves(). */                                                                      \
    X(bool, halves, (enum dtype type, const void *row, uint32_t k, int16_t *w, float *d))          \
    /* Sets the tile sizes of the forms. */                                                        \
    X(void, acts_layout, (struct compute_acts * a))                                                \
    /* Writes row's forms; false, with the forms unspecified, if a value is out of range. */       \
    X(bool, quantise, (struct compute_acts * a, uint32_t row, const float *x))                     \
    X(void, matmul, (const struct matmul_task *t))                                                 \
    X(uint64_t, matmul_scratch, (const struct compute_matrix *m))                                  \
    /* False if the sum of squares is not finite. */                                               \
    X(bool, rms_norm, (const float *x, const float *weight, float epsilon, uint32_t n, float *y))  \
    /* y may be gate. */                                                                           \
    X(void, gated,                                                                                 \
      (enum compute_gate kind, const float *gate, const float *up, uint32_t n, float *y))          \
    X(void, rotate, (const struct compute_attention *a, const float *rope, float *head))           \
    X(void, scale, (float *x, uint32_t n, float by))                                               \
    X(void, store,                                                                                 \
      (const struct compute_batch *b, const struct compute_attention *a, uint32_t row,             \
       const float *k, const float *v))                                                            \
    X(void, attention, (const struct attention_task *t))                                           \
    /* Shapes: parts [n][2 + head_dim], in order; out [head_dim]. */                               \
    X(void, attention_merge, (const float *parts, uint32_t n, uint32_t head_dim, float *out))      \
    X(void, soft_cap, (float *z, uint32_t n, float cap))                                           \
    X(void, dequantise, (enum dtype type, const void *row, uint32_t k, float *out))                \
    X(void, exp2, (const float *x, uint32_t n, float *y))                                          \
    /* Finite or -infinity. */                                                                     \
    X(bool, all_valid, (const float *z, uint32_t n))                                               \
    X(float, maximum, (const float *z, uint32_t n))                                                \
    /* Of |x|: NaN and infinity are the largest. */                                                \
    X(uint32_t, largest_bits, (const float *x, uint32_t n))                                        \
    X(void, sample_weights, (const float *z, uint32_t n, float zmax, float scale, uint32_t *w))    \
    /* The sum, before ln. */                                                                      \
    X(double, log_sum, (const float *z, uint32_t n, float zmax))                                   \
    /* Probes. Rounds of a dense stream of the unit's instructions: the operations done. */        \
    X(uint64_t, peak, (enum compute_unit unit, uint32_t rounds))                                   \
    /* A multiple of 256 bytes: from front to back, with prefetches, or in streams. */             \
    X(void, read, (const void *data, uint64_t bytes, bool in_streams))

struct compute_ops {
    const char *name;
    uint32_t panel;           /* outputs of a panel */
    uint32_t tile;            /* rows of an activation tile */
    uint32_t attention_heads; /* the most (row, head) pairs that one attention task takes well */
    uint32_t strip_bytes;     /* of activations that stay near a core while the panels go by */
    uint32_t n_streams;       /* of a matrix, read side by side by few rows; 1: it is read as one */
#define X(result, name, arguments) result(*name) arguments;
    COMPUTE_OPS(X)
#undef X
};

extern const struct compute_ops compute_ops_ref;     /* without FMA instructions */
extern const struct compute_ops compute_ops_ref_fma; /* the same source with them */
/* Each takes a copy of ref's and overrides entries. */
void compute_tier_avx2(struct compute_ops *ops);
void compute_tier_avxvnni(struct compute_ops *ops);
void compute_tier_avx512(struct compute_ops *ops);
void compute_tier_avx512vnni(struct compute_ops *ops);
void compute_tier_neon(struct compute_ops *ops);

/* ---- tiers.c: what this program has and this CPU runs ---- */

struct tier {
    const char *name;
    unsigned needs;                            /* features of the CPU, and of the system */
    void (*override)(struct compute_ops *ops); /* NULL: ref as it is */
};
/* The i'th, best first; NULL past the last, which is ref. */
const struct tier *tier_at(uint32_t i);
bool tier_runs_here(const struct tier *t);
struct compute_ops tier_ops(const struct tier *t);
/* The one of ref's two tables that is fast here. */
const struct compute_ops *tier_ref(void);

/* Scratch that an attention task of so many (row, head) pairs needs. */
static inline uint64_t attention_scratch_bytes(uint32_t pairs, uint32_t head_dim)
{
    return ((uint64_t)pairs * (ATTENTION_KEYS + 3 * (uint64_t)head_dim + 16) +
            2 * ATTENTION_KEYS * (uint64_t)head_dim) *
               4 +
           256;
}

static inline const void *kv_slab(const struct compute_batch *b, const struct page_table_view *t,
                                  uint32_t page, uint32_t layer)
{
    return (const uint8_t *)b->kv->base + t->pages[page] * b->kv->page_stride +
           layer * kv_slab_bytes(b->kv->geometry);
}

/* ---- weights.c ---- */

/* Zeroed, 64-byte aligned; NULL when there is none. Given back before the compute is. */
void *weights_alloc(struct compute *c, uint64_t bytes);
void weights_free(struct compute *c, void *p);

/* ---- parts of matrix.c and pack.c that the self test and the kernel tests use without workers
 * ---- */

void matrix_describe(const struct compute_ops *ops, enum dtype type, uint32_t n_outputs, uint32_t k,
                     struct compute_matrix *m);
/* Packs panels into m->data; false if a scale or weight is not finite. */
bool matrix_pack(const struct compute_ops *ops, const struct compute_matrix *m, const void *data,
                 uint32_t first_panel, uint32_t end_panel);
/* Sizes, then, once memory (n_bytes, zeroed, 64-byte aligned) is set, the parts within it. */
void acts_describe(const struct compute_ops *ops, uint32_t max_rows, uint32_t k, uint32_t forms,
                   struct compute_acts *a);
void acts_place(const struct compute_ops *ops, struct compute_acts *a);

/* ---- a step's list ---- */

struct worker {
    struct compute *c;
    uint32_t index;
    void *scratch; /* for the task at hand */
    uint64_t scratch_bytes;
};

struct group {
    uint32_t first, n;
};

struct op {
    void (*run)(struct worker *w, struct op *op, uint32_t task);
    uint32_t n_tasks;
    bool is_signal;
    uint32_t n, k, rows_a_task;
    const uint32_t *rows;
    struct compute_acts *acts;
    const float *in;
    float *out;
    union {
        struct {
            void (*done)(void *context, uint32_t layer);
            void *context;
            uint32_t layer;
        } signal;
        struct {
            enum dtype type;
            const uint8_t *table;
            uint64_t row_bytes;
        } embed;
        struct {
            void (*row)(struct worker *w, struct op *op, uint32_t i);
            const float *weight;
            float epsilon;
        } fill;
        struct {
            struct compute_product products[MAX_PRODUCTS];
            /* That are cut into tasks; a gated matmul's second one goes along with its first. */
            uint32_t n_products;
            enum compute_gate kind;  /* of a gated matmul */
            uint64_t kernel_scratch; /* behind which it keeps its outputs */
            /* Of n_streams streams the first one's panels are cut into tasks; a task takes the same
             * ones of all. */
            uint32_t n_streams, panels_a_task, rows_a_task;
            uint32_t first_task[MAX_PRODUCTS + 1]; /* within a strip of rows */
            const struct op *next_matmul;          /* of the list, or NULL */
        } matmul;
        struct {
            struct compute_attention a;
            float *q, *k;
            const float *v;
            uint32_t first_group, n_groups, n_segments; /* n_segments 0: whole entries */
        } attention;
        struct {
            const struct compute_rope_table *table;
        } rope;
        float cap;
        /* A loop of compute's own, such as packing. */
        struct {
            void (*body)(struct worker *w, void *context, uint32_t task);
            void *context;
        } loop;
    } u;
};

struct pool;
struct weight_chunk;
struct compute {
    struct compute_ops ops;
    struct pool *pool;
    uint32_t n_threads;
    struct weight_chunk *weights; /* newest first */
    struct compute_batch batch;
    struct op *list;
    uint32_t n_ops, max_ops;
    struct group *groups;
    uint32_t n_groups, max_groups;
    float *parts; /* attention by segments: [entries][heads][segments][2 + head_dim] */
    uint64_t max_parts;
    bool failed;            /* to enqueue */
    uint64_t scratch_bytes; /* that this step's tasks need */
    _Atomic uint64_t progress;
    uint8_t digest[COMPUTE_DIGEST_BYTES];
};

/* ---- step.c, for what enqueues ---- */

/* The next entry of the list; a dummy when there is no memory, which the step's end reports. */
struct op *step_enqueue(struct compute *c, void (*run)(struct worker *, struct op *, uint32_t),
                        uint32_t n_tasks);
/* What a task of the step needs at most. */
void step_need_scratch(struct compute *c, uint64_t bytes);
/* step_matmul.c: tells each matmul of the list which one is next. */
void step_link_matmuls(struct compute *c);

/* ---- pool.c ---- */

enum status pool_create(struct compute *c, uint32_t n_threads, struct pool **out) WARN_UNUSED;
void pool_destroy(struct pool **p);
/* The workers run the list together: an operation begins when those before it have ended, and one
 * of a single task runs on one worker while the others wait. */
enum status pool_run(struct pool *p, struct op *ops, uint32_t n_ops,
                     uint64_t scratch_bytes) WARN_UNUSED;
/* The first task of a worker's own stretch of an operation; that of worker n_threads is the end. */
uint32_t pool_stretch(const struct pool *p, const struct op *op, uint32_t worker);
/* One loop over tasks, outside a step. */
enum status pool_loop(struct pool *p, uint32_t n_tasks,
                      void (*body)(struct worker *w, void *context, uint32_t task),
                      void *context) WARN_UNUSED;

/* Fixed vectors through every entry and weight type, hashed with the contract's version. */
enum status selftest_digest(const struct compute_ops *ops,
                            uint8_t out[COMPUTE_DIGEST_BYTES]) WARN_UNUSED;
/* Starts c's workers on the named tier of a list like tier_at's, or on the best one, and leaves
 * ref's digest in c: a tier whose fixed vectors do not give it on every worker is dropped with a
 * log line. Errors: USAGE when none is left. */
enum status tier_start(struct compute *c, const char *name,
                       const struct tier *(*at)(uint32_t i)) WARN_UNUSED;
/* The fixed vectors on every worker at once, each in its own thread: *out_same if all have
 * c->digest. */
enum status selftest_workers(struct compute *c, bool *out_same) WARN_UNUSED;
/* Numbers from a seed: the same everywhere. */
uint32_t selftest_random(uint64_t *seed);
/* Rows of type as a file has them: random integers, finite scales of many sizes, zero and denormal
 * ones among them. */
void selftest_weights(enum dtype type, uint64_t *seed, void *data, uint64_t n_bytes);
/* Activations with what hurts: ties, denormals, zeros of both signs, outliers, whole blocks of
 * zeros. */
void selftest_values(uint64_t *seed, float *x, uint32_t n);

#endif
