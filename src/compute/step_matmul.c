/* A step's matmuls: how they are cut into tasks. */
#include "compute/internal.h"

#define MAX_PANELS 8
#define MANY_ROWS 32  /* make a pair of panels long enough */
#define ROWS_AHEAD 24 /* of what is copied are prefetched */
#define LINES_AHEAD 8 /* of each stream, before a matmul begins */

/* Where a task is: which product, from which panel and row on. */
struct place {
    const struct compute_product *product;
    uint32_t panel, row;
};

static struct place place_of(const struct op *op, uint32_t task)
{
    uint32_t a_strip = op->u.matmul.first_task[op->u.matmul.n_products], i = 0;
    uint32_t strip = task / a_strip, rest = task % a_strip;

    while (rest >= op->u.matmul.first_task[i + 1])
        i++;
    return (struct place){
        .product = &op->u.matmul.products[i],
        .panel = (rest - op->u.matmul.first_task[i]) * op->u.matmul.panels_a_task,
        .row = strip * op->u.matmul.rows_a_task,
    };
}

/* The panels that are cut into tasks: the matrix's or, of streams side by side, the first's. */
static uint32_t panels_to_cut(const struct op *op, const struct compute_product *p)
{
    return (p->matrix->n_panels + op->u.matmul.n_streams - 1) / op->u.matmul.n_streams;
}

static const uint8_t *weights_at(const struct compute_product *p, uint32_t panel)
{
    return p->matrix->data + panel * p->matrix->panel_bytes;
}

static const uint8_t *weights_of(const struct op *op, uint32_t task)
{
    const struct place at = place_of(op, task);

    return weights_at(at.product, at.panel);
}

static bool is_own(const struct worker *w, const struct op *op, uint32_t task)
{
    const struct pool *p = w->c->pool;

    return pool_stretch(p, op, w->index) <= task && task < pool_stretch(p, op, w->index + 1);
}

static bool is_last_of_own(const struct worker *w, const struct op *op, uint32_t task)
{
    return is_own(w, op, task) && !is_own(w, op, task + 1);
}

/* What a worker reads after a task of its own stretch: the next one's weights or, at the stretch's
 * end, those with which it begins the next matmul, so that they arrive during the operations
 * between the two. NULL: unknown, or streams. */
static const uint8_t *weights_after(const struct worker *w, const struct op *op, uint32_t task)
{
    const struct op *next = op->u.matmul.next_matmul;

    if (op->u.matmul.n_streams > 1 || !is_own(w, op, task))
        return NULL;
    if (is_own(w, op, task + 1))
        return weights_of(op, task + 1);
    if (!next || next->u.matmul.n_streams > 1)
        return NULL;
    return weights_of(next, pool_stretch(w->c->pool, next, w->index));
}

/* A next matmul with streams is begun ahead of time here instead, behind the last task of a
 * worker's own: the first lines of each stream. */
static void prefetch_next_streams(const struct worker *w, const struct op *op, uint32_t task)
{
    const struct op *next = op->u.matmul.next_matmul;

    if (!next || next->u.matmul.n_streams == 1 || !is_last_of_own(w, op, task))
        return;
    const struct place at = place_of(next, pool_stretch(w->c->pool, next, w->index));
    const uint32_t apart = panels_to_cut(next, at.product);
    for (uint32_t i = at.panel; i < at.product->matrix->n_panels; i += apart)
        for (uint32_t line = 0; line < LINES_AHEAD; line++)
            __builtin_prefetch(weights_at(at.product, i) + 64 * line);
}

static struct matmul_task matmul_task(struct worker *w, const struct op *op, struct place at)
{
    const uint32_t n_panels = panels_to_cut(op, at.product);

    return (struct matmul_task){
        .matrix = at.product->matrix,
        .acts = op->acts,
        .product = at.product,
        .panel_begin = at.panel,
        .panel_end = MIN(at.panel + op->u.matmul.panels_a_task, n_panels),
        .stream_panels = op->u.matmul.n_streams > 1 ? n_panels : 0,
        .row_begin = at.row,
        .row_end = MIN(at.row + op->u.matmul.rows_a_task, op->n),
        .scratch = w->scratch,
    };
}

static void run_matmul(struct worker *w, struct op *op, uint32_t task)
{
    struct matmul_task t = matmul_task(w, op, place_of(op, task));

    t.next = weights_after(w, op, task);
    w->c->ops.matmul(&t);
    prefetch_next_streams(w, op, task);
}

/* What a gated matmul's task has in scratch memory: of each row n outputs from `first` on. */
struct gated_rows {
    float *gate, *up;
    uint32_t first, n;
};

/* Few outputs of each stream of a row at a time, for they are not neighbours. */
static void activate_streams(const struct worker *w, const struct op *op,
                             const struct matmul_task *t, const struct gated_rows *y)
{
    const struct compute_product *to = &op->u.matmul.products[0];
    const uint32_t panel = w->c->ops.panel, begin = t->panel_begin * panel,
                   n = (t->panel_end - t->panel_begin) * panel;

    for (uint32_t row = t->row_begin; row < t->row_end; row++)
        for (uint32_t i = begin; i < y->n; i += t->stream_panels * panel) {
            uint64_t at = (uint64_t)(row - t->row_begin) * y->n + i;
            w->c->ops.gated(op->u.matmul.kind, y->gate + at, y->up + at, MIN(n, y->n - i),
                            to->y + (uint64_t)row * to->y_stride + i);
        }
}

/* All rows at once: of a row alone it would take much longer, for its outputs are few. */
static void activate_rows(const struct worker *w, const struct op *op, const struct matmul_task *t,
                          const struct gated_rows *y)
{
    const struct compute_product *to = &op->u.matmul.products[0];
    const uint32_t rows = t->row_end - t->row_begin;
    float *row = to->y + t->row_begin * to->y_stride + y->first;

    w->c->ops.gated(op->u.matmul.kind, y->gate, y->up, rows * y->n, y->gate);
    for (uint32_t i = 0; i < rows; i++, row += to->y_stride) {
        /* Their lines are far apart and cold. */
        __builtin_prefetch(row + MIN(ROWS_AHEAD, rows - 1 - i) * to->y_stride, 1);
        memcpy(row, y->gate + (uint64_t)i * y->n, y->n * sizeof(float));
    }
}

/* The same panels of both matrices, one after the other in scratch memory, then the activation. */
static void run_gated(struct worker *w, struct op *op, uint32_t task)
{
    const struct place at = place_of(op, task);
    const struct compute_product *products = op->u.matmul.products;
    const uint32_t n_outputs = products[0].matrix->n_outputs;
    struct matmul_task t = matmul_task(w, op, at);
    struct gated_rows y = {.gate = (float *)((uint8_t *)w->scratch + op->u.matmul.kernel_scratch),
                           .n = n_outputs};

    if (t.stream_panels == 0) {
        y.first = t.panel_begin * w->c->ops.panel;
        y.n = MIN(t.panel_end * w->c->ops.panel, n_outputs) - y.first;
    }
    y.up = y.gate + (uint64_t)(t.row_end - t.row_begin) * y.n;
    for (uint32_t i = 0; i < 2; i++) {
        struct compute_product own = products[i];
        own.y = i ? y.up : y.gate;
        own.y_stride = y.n;
        t.matrix = own.matrix;
        t.product = &own;
        t.y_row = t.row_begin;
        t.y_output = y.first;
        t.next = i ? weights_after(w, op, task) : weights_at(&products[1], at.panel);
        w->c->ops.matmul(&t);
    }
    prefetch_next_streams(w, op, task);
    if (t.stream_panels > 0)
        activate_streams(w, op, &t, &y);
    else
        activate_rows(w, op, &t, &y);
}

static bool is_matmul(const struct op *op)
{
    return op->run == run_matmul || op->run == run_gated;
}

void step_link_matmuls(struct compute *c)
{
    const struct op *next_matmul = NULL;

    for (uint32_t i = c->n_ops; i > 0; i--)
        if (is_matmul(&c->list[i - 1])) {
            c->list[i - 1].u.matmul.next_matmul = next_matmul;
            next_matmul = &c->list[i - 1];
        }
}

/* So many rows that their activations stay near; panels by a few, so that no worker has much left
 * when the others have nothing. */
static void split_matmul(const struct compute *c, struct op *op, uint32_t n_products)
{
    uint32_t tile = c->ops.tile, n_panels = 0;
    uint64_t tile_bytes =
        op->acts->q8_tile_bytes ? op->acts->q8_tile_bytes : op->acts->f32_tile_bytes;
    uint32_t tiles =
        (uint32_t)MAX(c->ops.strip_bytes / MAX(tile_bytes, 1), (uint64_t)MAX(1u, 16 / tile));

    op->u.matmul.n_products = n_products;
    op->u.matmul.rows_a_task = MIN(tiles * tile, (op->n + tile - 1) / tile * tile);
    for (uint32_t i = 0; i < op->u.matmul.n_products; i++)
        n_panels += op->u.matmul.products[i].matrix->n_panels;
    uint32_t strips = (op->n + op->u.matmul.rows_a_task - 1) / op->u.matmul.rows_a_task;
    uint32_t panels =
        op->n >= MANY_ROWS ? 2 : MIN(n_panels / (c->n_threads * TASKS_A_WORKER), MAX_PANELS);
    op->u.matmul.n_streams = op->n <= FEW_ROWS ? c->ops.n_streams : 1;
    while (op->u.matmul.n_streams > 1 && n_panels < 2 * op->u.matmul.n_streams * c->n_threads)
        op->u.matmul.n_streams /= 2; /* or not every worker would have some */
    panels = MAX(2, (panels + 1) / 2 * 2);
    op->u.matmul.panels_a_task = MAX(1, panels / op->u.matmul.n_streams);
    for (uint32_t i = 0; i < op->u.matmul.n_products; i++) {
        uint32_t n = panels_to_cut(op, &op->u.matmul.products[i]);
        op->u.matmul.first_task[i + 1] =
            op->u.matmul.first_task[i] +
            (n + op->u.matmul.panels_a_task - 1) / op->u.matmul.panels_a_task;
    }
    op->n_tasks = strips * op->u.matmul.first_task[op->u.matmul.n_products];
}

static struct op *enqueue(struct compute *c, void (*run)(struct worker *, struct op *, uint32_t),
                          const struct compute_acts *acts, const struct compute_product *products,
                          uint32_t n)
{
    struct op *op = step_enqueue(c, run, 0);

    op->acts = (struct compute_acts *)acts;
    op->n = acts->n_rows;
    for (uint32_t i = 0; i < n; i++) {
        op->u.matmul.products[i] = products[i];
        step_need_scratch(c, c->ops.matmul_scratch(products[i].matrix));
    }
    return op;
}

void compute_matmul(struct compute *c, const struct compute_acts *acts,
                    const struct compute_product *products, uint32_t n)
{
    if (acts->n_rows == 0)
        return;
    n = MIN(n, MAX_PRODUCTS);
    split_matmul(c, enqueue(c, run_matmul, acts, products, n), n);
}

void compute_gated_matmul(struct compute *c, const struct compute_acts *acts,
                          const struct compute_gated *g)
{
    if (acts->n_rows == 0)
        return;
    const struct compute_product products[] = {
        {.matrix = g->gate, .bias = g->gate_bias, .y = g->y, .y_stride = g->y_stride},
        {.matrix = g->up, .bias = g->up_bias}};
    struct op *op = enqueue(c, run_gated, acts, products, 2);
    op->u.matmul.kind = g->kind;
    split_matmul(c, op, 1);
    uint64_t kernel = MAX(c->ops.matmul_scratch(g->gate), c->ops.matmul_scratch(g->up));
    op->u.matmul.kernel_scratch = (kernel + 63) / 64 * 64;
    uint32_t n = op->u.matmul.panels_a_task * c->ops.panel; /* outputs of a row */
    if (op->u.matmul.n_streams > 1)
        n = g->gate->n_outputs;
    step_need_scratch(c,
                      op->u.matmul.kernel_scratch +
                          (uint64_t)MIN(op->u.matmul.rows_a_task, op->n) * 2 * n * sizeof(float));
}
