/* A step's matmuls: how they are cut into tasks. */
#include "compute/internal.h"

#define MAX_PANELS 8
#define MANY_ROWS 32  /* make a pair of panels long enough */
#define ROWS_AHEAD 24 /* of what is copied are prefetched */

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

static const uint8_t *weights_at(const struct compute_product *p, uint32_t panel)
{
    return p->matrix->data + panel * p->matrix->panel_bytes;
}

static const uint8_t *weights_of(const struct op *op, uint32_t task)
{
    const struct place at = place_of(op, task);

    return weights_at(at.product, at.panel);
}

/* What a worker reads after a task of its own stretch: the next one's weights or, at the stretch's
 * end, those with which it begins the next matmul, so that they arrive during the operations
 * between the two. NULL: unknown. */
static const uint8_t *weights_after(const struct worker *w, const struct op *op, uint32_t task)
{
    const struct pool *p = w->c->pool;
    const struct op *next = op->u.matmul.next_matmul;
    const uint32_t end = pool_stretch(p, op, w->index + 1);

    if (task < pool_stretch(p, op, w->index) || task >= end)
        return NULL;
    if (task + 1 < end)
        return weights_of(op, task + 1);
    return next ? weights_of(next, pool_stretch(p, next, w->index)) : NULL;
}

static struct matmul_task matmul_task(struct worker *w, const struct op *op, struct place at)
{
    return (struct matmul_task){
        .matrix = at.product->matrix,
        .acts = op->acts,
        .product = at.product,
        .panel_begin = at.panel,
        .panel_end = MIN(at.panel + op->u.matmul.panels_a_task, at.product->matrix->n_panels),
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
}

/* The same panels of both matrices, one after the other in scratch memory, then the activation of
 * all that they gave: of a row alone it would take much longer, for they are few outputs. */
static void run_gated(struct worker *w, struct op *op, uint32_t task)
{
    const struct place at = place_of(op, task);
    const struct compute_product *products = op->u.matmul.products, *to = &products[0];
    float *y[2] = {(float *)((uint8_t *)w->scratch + op->u.matmul.kernel_scratch)};
    struct matmul_task t = matmul_task(w, op, at);
    const uint32_t first = t.panel_begin * w->c->ops.panel, rows = t.row_end - t.row_begin,
                   n = MIN(t.panel_end * w->c->ops.panel, to->matrix->n_outputs) - first;

    y[1] = y[0] + (uint64_t)rows * n;
    for (uint32_t i = 0; i < 2; i++) {
        struct compute_product own = products[i];
        own.y = y[i];
        own.y_stride = n;
        t.matrix = own.matrix;
        t.product = &own;
        t.y_row = t.row_begin;
        t.y_output = first;
        t.next = i ? weights_after(w, op, task) : weights_at(&products[1], at.panel);
        w->c->ops.matmul(&t);
    }
    w->c->ops.gated(op->u.matmul.kind, y[0], y[1], rows * n, y[0]);
    float *row = to->y + t.row_begin * to->y_stride + first;
    for (uint32_t i = 0; i < rows; i++, row += to->y_stride) {
        /* Their lines are far apart and cold. */
        __builtin_prefetch(row + MIN(ROWS_AHEAD, rows - 1 - i) * to->y_stride, 1);
        memcpy(row, y[0] + (uint64_t)i * n, n * sizeof(float));
    }
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
    op->u.matmul.panels_a_task = MAX(2, (panels + 1) / 2 * 2);
    for (uint32_t i = 0; i < op->u.matmul.n_products; i++) {
        uint32_t n = op->u.matmul.products[i].matrix->n_panels;
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
    step_need_scratch(c, op->u.matmul.kernel_scratch + (uint64_t)op->u.matmul.rows_a_task * 2 *
                                                           op->u.matmul.panels_a_task *
                                                           c->ops.panel * sizeof(float));
}
