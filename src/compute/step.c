/* A step: operations are noted in a list, then run by all workers. */
#include "compute/internal.h"

#include <stdlib.h>

void compute_step_begin(struct compute *c, const struct compute_batch *batch)
{
    c->batch = *batch;
    c->n_ops = 0;
    c->n_groups = 0;
    c->failed = false;
    c->scratch_bytes = 0;
}

enum status compute_step_end(struct compute *c)
{
    if (c->failed)
        return fail(STATUS_NO_MEMORY, "no memory for the list of a step's operations");
    step_link_matmuls(c);
    return pool_run(c->pool, c->list, c->n_ops, c->scratch_bytes);
}

struct op *step_enqueue(struct compute *c, void (*run)(struct worker *, struct op *, uint32_t),
                        uint32_t n_tasks)
{
    static _Thread_local struct op dummy;

    if (c->n_ops == c->max_ops) {
        uint32_t more = c->max_ops ? c->max_ops * 2 : 512;
        struct op *list = memory_grow(c->list, more, sizeof *list);
        if (!list) {
            c->failed = true;
            return &dummy;
        }
        c->list = list;
        c->max_ops = more;
    }
    struct op *op = &c->list[c->n_ops++];
    memset(op, 0, sizeof *op);
    op->run = run;
    op->n_tasks = n_tasks;
    return op;
}

void step_need_scratch(struct compute *c, uint64_t bytes)
{
    c->scratch_bytes = MAX(c->scratch_bytes, bytes);
}

static uint32_t row_of(const struct op *op, uint32_t i)
{
    return op->rows ? op->rows[i] : i;
}

/* Several tasks may say so of the same row. */
static void mark_bad(struct worker *w, const struct op *op, uint32_t i)
{
    __atomic_store_n(&w->c->batch.bad[row_of(op, i)], 1, __ATOMIC_RELAXED);
}

/* ---- signal ---- */

static void run_signal(struct worker *w, struct op *op, uint32_t task)
{
    (void)task;
    atomic_fetch_add(&w->c->progress, 1);
    if (op->u.signal.done)
        op->u.signal.done(op->u.signal.context, op->u.signal.layer);
}

void compute_signal(struct compute *c, void (*done)(void *context, uint32_t layer), void *context,
                    uint32_t layer)
{
    struct op *op = step_enqueue(c, run_signal, 1);

    op->is_signal = true;
    op->u.signal.done = done;
    op->u.signal.context = context;
    op->u.signal.layer = layer;
}

/* ---- embedding and gathering ---- */

static void run_embed(struct worker *w, struct op *op, uint32_t task)
{
    const uint8_t *row = op->u.embed.table + op->rows[task] * op->u.embed.row_bytes;

    w->c->ops.dequantise(op->u.embed.type, row, op->k, op->out + (size_t)task * op->k);
}

void compute_embed(struct compute *c, enum dtype type, const void *table, uint32_t k,
                   const uint32_t *ids, uint32_t n, float *x)
{
    struct op *op = step_enqueue(c, run_embed, n);

    op->rows = ids;
    op->k = k;
    op->out = x;
    op->u.embed.type = type;
    op->u.embed.table = table;
    op->u.embed.row_bytes = (uint64_t)k / dtype_block_values(type) * dtype_block_bytes(type);
}

static void run_gather(struct worker *w, struct op *op, uint32_t task)
{
    (void)w;
    memcpy(op->out + (size_t)task * op->k, op->in + (size_t)op->rows[task] * op->k,
           (size_t)op->k * sizeof(float));
}

void compute_gather(struct compute *c, const float *from, const uint32_t *rows, uint32_t n,
                    uint32_t k, float *to)
{
    struct op *op = step_enqueue(c, run_gather, n);

    op->rows = rows;
    op->k = k;
    op->in = from;
    op->out = to;
}

/* ---- activations ---- */

/* A row that left the finite range goes on as zero, so that nothing it touches is undefined. */
static void refuse(struct worker *w, struct op *op, uint32_t i)
{
    mark_bad(w, op, i);
    (void)w->c->ops.quantise(op->acts, i, op->acts->zeros);
}

static void quantise(struct worker *w, struct op *op, uint32_t i, const float *x)
{
    if (!w->c->ops.quantise(op->acts, i, x))
        refuse(w, op, i);
}

static void norm_row(struct worker *w, struct op *op, uint32_t i)
{
    float *y = w->scratch;

    if (w->c->ops.rms_norm(op->in + (size_t)i * op->k, op->u.fill.weight, op->u.fill.epsilon, op->k,
                           y))
        quantise(w, op, i, y);
    else
        refuse(w, op, i);
}

static void activate_row(struct worker *w, struct op *op, uint32_t i)
{
    quantise(w, op, i, op->in + (size_t)i * op->k);
}

/* Rows of a tile share cache lines: one worker has them all. */
static void run_fill(struct worker *w, struct op *op, uint32_t task)
{
    uint32_t tile = w->c->ops.tile;

    for (uint32_t i = task * tile; i < MIN((task + 1) * tile, op->n); i++)
        op->u.fill.row(w, op, i);
}

static struct op *enqueue_fill(struct compute *c,
                               void (*row)(struct worker *, struct op *, uint32_t), const float *x,
                               const uint32_t *rows, uint32_t n, struct compute_acts *out)
{
    struct op *op = step_enqueue(c, run_fill, (n + c->ops.tile - 1) / c->ops.tile);

    op->u.fill.row = row;
    op->in = x;
    op->rows = rows;
    op->n = n;
    op->k = out->k;
    op->acts = out;
    out->n_rows = n;
    return op;
}

void compute_norm(struct compute *c, const float *x, const float *weight, float epsilon,
                  const uint32_t *rows, uint32_t n, struct compute_acts *out)
{
    struct op *op = enqueue_fill(c, norm_row, x, rows, n, out);

    step_need_scratch(c, (uint64_t)out->k * sizeof *x);
    op->u.fill.weight = weight;
    op->u.fill.epsilon = epsilon;
}

void compute_activate(struct compute *c, const float *x, const uint32_t *rows, uint32_t n,
                      struct compute_acts *out)
{
    enqueue_fill(c, activate_row, x, rows, n, out);
}

/* ---- attention ---- */

#define MAX_ROWS 8 /* of a task */

/* Few rows, as of a decode step, are spread over the workers. */
static void split_rows(const struct compute *c, struct op *op)
{
    op->n = c->batch.n_rows;
    op->rows_a_task = MAX(1, MIN(op->n / (2 * c->n_threads), MAX_ROWS));
    op->n_tasks = (op->n + op->rows_a_task - 1) / op->rows_a_task;
}

static void run_rope(struct worker *w, struct op *op, uint32_t task)
{
    const struct compute_rope_table *t = op->u.rope.table;

    for (uint32_t i = task * op->rows_a_task; i < MIN((task + 1) * op->rows_a_task, op->n); i++)
        for (uint32_t j = 0; j < t->n_pairs; j++) {
            double s, c, angle = (double)w->c->batch.positions[i] * t->frequency[j] / t->factor[j];
            compute_sin_cos(angle, &s, &c);
            op->out[((size_t)i * t->n_pairs + j) * 2] = (float)c;
            op->out[((size_t)i * t->n_pairs + j) * 2 + 1] = (float)s;
        }
}

void compute_rope(struct compute *c, const struct compute_rope_table *table, float *rope)
{
    struct op *op = step_enqueue(c, run_rope, 0);

    split_rows(c, op);
    op->u.rope.table = table;
    op->out = rope;
}

static void run_store(struct worker *w, struct op *op, uint32_t task)
{
    const struct compute_attention *a = &op->u.attention.a;
    const struct compute_ops *ops = &w->c->ops;
    uint32_t hd = a->head_dim;

    for (uint32_t row = task * op->rows_a_task; row < MIN((task + 1) * op->rows_a_task, op->n);
         row++) {
        const float *rope = a->rope + (size_t)row * a->n_rot;
        float *q = op->u.attention.q + (size_t)row * a->n_heads * hd,
              *k = op->u.attention.k + (size_t)row * a->n_kv_heads * hd;
        const float *v = op->u.attention.v + (size_t)row * a->n_kv_heads * hd;
        bool ok = true;
        for (uint32_t h = 0; h < a->n_heads; h++) {
            if (a->q_norm)
                ok &= ops->rms_norm(q + h * hd, a->q_norm, a->norm_epsilon, hd, q + h * hd);
            ops->rotate(a, rope, q + h * hd);
        }
        ops->scale(q, a->n_heads * hd, a->scale);
        for (uint32_t h = 0; h < a->n_kv_heads; h++) {
            if (a->k_norm)
                ok &= ops->rms_norm(k + h * hd, a->k_norm, a->norm_epsilon, hd, k + h * hd);
            ops->rotate(a, rope, k + h * hd);
        }
        /* Pages are clamped and scores need finite q, so an overflow is seen here or never. */
        if (!ok || ops->largest_bits(q, a->n_heads * hd) >= LIMIT_BITS ||
            ops->largest_bits(k, a->n_kv_heads * hd) >= LIMIT_BITS ||
            ops->largest_bits(v, a->n_kv_heads * hd) >= LIMIT_BITS)
            w->c->batch.bad[row] = 1;
        ops->store(&w->c->batch, a, row, k, v);
    }
}

void compute_attention_store(struct compute *c, const struct compute_attention *a, float *q,
                             float *k, const float *v)
{
    struct op *op = step_enqueue(c, run_store, 0);

    split_rows(c, op);
    op->u.attention.a = *a;
    op->u.attention.q = q;
    op->u.attention.k = k;
    op->u.attention.v = v;
}

static struct attention_task attention_task(struct worker *w, const struct op *op,
                                            const struct group *g, uint32_t kv_head)
{
    return (struct attention_task){
        .a = &op->u.attention.a,
        .batch = &w->c->batch,
        .q = op->in,
        .rows = op->rows,
        .first = g->first,
        .n = g->n,
        .kv_head = kv_head,
        .out = op->out,
        .scratch = w->scratch,
    };
}

/* The page of K where a task of entry i begins. */
static const uint16_t *first_page(const struct worker *w, const struct op *op, uint32_t i,
                                  uint32_t kv_head, uint32_t page)
{
    const struct compute_attention *a = &op->u.attention.a;
    const struct compute_batch *b = &w->c->batch;
    const struct page_table_view *table = &b->page_tables[b->tables[row_of(op, i)]];

    return (const uint16_t *)kv_slab(b, table, page, a->layer) +
           (size_t)kv_head * a->head_dim * PAGE_TOKENS;
}

/* The last groups of a chunk have the most keys: first, so that no worker ends with one. */
static const struct group *group_of(const struct worker *w, const struct op *op, uint32_t task)
{
    return &w->c->groups[op->u.attention.first_group + op->u.attention.n_groups - 1 -
                         task / op->u.attention.a.n_kv_heads];
}

static void run_attention(struct worker *w, struct op *op, uint32_t task)
{
    uint32_t n_kv_heads = op->u.attention.a.n_kv_heads;
    struct attention_task t = attention_task(w, op, group_of(w, op, task), task % n_kv_heads);

    if (task + 1 < op->n_tasks)
        t.ahead = first_page(w, op, group_of(w, op, task + 1)->first, (task + 1) % n_kv_heads, 0);
    w->c->ops.attention(&t);
}

/* ---- attention by segments: for a few rows with long contexts, so that every worker has something
 * to do ---- */

static uint32_t segments_of(const struct compute *c, const struct op *op, uint32_t i)
{
    return c->batch.positions[row_of(op, i)] / ATTENTION_KEYS + 1;
}

static float *part_of(const struct compute *c, const struct op *op, uint32_t i, uint32_t head,
                      uint32_t segment)
{
    const struct compute_attention *a = &op->u.attention.a;

    return c->parts + (((size_t)i * a->n_heads + head) * op->u.attention.n_segments + segment) *
                          (2 + a->head_dim);
}

static void run_segment(struct worker *w, struct op *op, uint32_t task)
{
    const struct compute_attention *a = &op->u.attention.a;
    uint32_t segment = task % op->u.attention.n_segments,
             kv_head = task / op->u.attention.n_segments % a->n_kv_heads;
    uint32_t i = task / op->u.attention.n_segments / a->n_kv_heads;

    if (segment >= segments_of(w->c, op, i))
        return;
    struct attention_task t = attention_task(w, op, &(struct group){i, 1}, kv_head);
    if (segment + 1 < segments_of(w->c, op, i))
        t.ahead = first_page(w, op, i, kv_head, (segment + 1) * ATTENTION_PAGES);
    else if (kv_head + 1 < a->n_kv_heads)
        t.ahead = first_page(w, op, i, kv_head + 1, 0);
    t.part = part_of(w->c, op, i, kv_head * (a->n_heads / a->n_kv_heads), segment);
    t.part_stride = (uint64_t)op->u.attention.n_segments * (2 + a->head_dim);
    t.begin = segment * ATTENTION_KEYS;
    t.end = MIN(t.begin + ATTENTION_KEYS, w->c->batch.positions[row_of(op, i)] + 1);
    w->c->ops.attention(&t);
}

static void run_merge(struct worker *w, struct op *op, uint32_t i)
{
    const struct compute_attention *a = &op->u.attention.a;

    for (uint32_t h = 0; h < a->n_heads; h++)
        w->c->ops.attention_merge(part_of(w->c, op, i, h, 0), segments_of(w->c, op, i), a->head_dim,
                                  op->out + ((size_t)i * a->n_heads + h) * a->head_dim);
}

/* True if there are so few tasks of whole rows that workers would wait for one another. */
static bool by_segments(struct compute *c, struct op *op)
{
    const struct compute_attention *a = &op->u.attention.a;
    uint32_t most = 0;

    if (c->n_threads == 1 || (uint64_t)op->n * a->n_kv_heads >= 8 * (uint64_t)c->n_threads)
        return false;
    for (uint32_t i = 0; i < op->n; i++)
        most = MAX(most, segments_of(c, op, i));
    if (most < 2)
        return false;
    uint64_t floats = (uint64_t)op->n * a->n_heads * most * (2 + a->head_dim);
    if (floats > c->max_parts) {
        float *parts = memory_grow(c->parts, floats, sizeof *parts);
        if (!parts)
            return false; /* it goes without */
        c->parts = parts;
        c->max_parts = floats;
    }
    op->u.attention.n_segments = most;
    return true;
}

/* Entries of one sequence that one task takes together, for they share its pages. */
static void add_groups(struct compute *c, const struct op *op, uint32_t most)
{
    for (uint32_t i = 0; i < op->n;) {
        uint32_t n = 1, table = c->batch.tables[row_of(op, i)];
        while (i + n < op->n && n < most && c->batch.tables[row_of(op, i + n)] == table)
            n++;
        if (c->n_groups == c->max_groups) {
            uint32_t more = c->max_groups ? c->max_groups * 2 : 256;
            struct group *groups = memory_grow(c->groups, more, sizeof *groups);
            if (!groups) {
                c->failed = true;
                return;
            }
            c->groups = groups;
            c->max_groups = more;
        }
        c->groups[c->n_groups++] = (struct group){i, n};
        i += n;
    }
}

void compute_attention(struct compute *c, const struct compute_attention *a, const float *q,
                       const uint32_t *rows, uint32_t n, float *out)
{
    uint32_t heads = a->n_heads / a->n_kv_heads, most = MAX(1, c->ops.attention_heads / heads);
    struct op *op = step_enqueue(c, run_attention, 0);

    op->n = n;
    op->in = q;
    op->rows = rows;
    op->out = out;
    op->u.attention.a = *a;
    step_need_scratch(c, attention_scratch_bytes(most * heads, a->head_dim));
    if (by_segments(c, op)) {
        op->run = run_segment;
        op->n_tasks = n * a->n_kv_heads * op->u.attention.n_segments;
        struct op whole = *op; /* the list may move */
        struct op *merge = step_enqueue(c, run_merge, n);
        merge->n = n;
        merge->rows = rows;
        merge->out = out;
        merge->u.attention = whole.u.attention;
        return;
    }
    if (c->n_threads > 1)
        most = MAX(1, MIN(most, n * a->n_kv_heads / (c->n_threads * TASKS_A_WORKER)));
    op->u.attention.first_group = c->n_groups;
    add_groups(c, op, most);
    op->u.attention.n_groups = c->n_groups - op->u.attention.first_group;
    op->n_tasks = op->u.attention.n_groups * a->n_kv_heads;
}

/* ---- logits ---- */

#define LOGITS_A_TASK 8192u

static void run_finish(struct worker *w, struct op *op, uint32_t task)
{
    uint32_t pieces = (op->k + LOGITS_A_TASK - 1) / LOGITS_A_TASK, i = task / pieces,
             first = task % pieces * LOGITS_A_TASK, n = MIN(LOGITS_A_TASK, op->k - first);
    float *z = op->out + (size_t)i * op->k + first;

    if (op->u.cap > 0)
        w->c->ops.soft_cap(z, n, op->u.cap);
    if (w->c->ops.largest_bits(z, n) >= INFINITY_BITS)
        mark_bad(w, op, i);
}

void compute_logits_finish(struct compute *c, float cap, const uint32_t *rows, uint32_t n,
                           uint32_t k, float *z)
{
    struct op *op = step_enqueue(c, run_finish, n * ((k + LOGITS_A_TASK - 1) / LOGITS_A_TASK));

    op->rows = rows;
    op->k = k;
    op->out = z;
    op->u.cap = cap;
}
