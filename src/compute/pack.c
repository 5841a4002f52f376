/* Packing of weights: panels from a file's rows, and all of a model's matrices as one loop. */
#include "compute/internal.h"

#include <stdlib.h>

/* Outputs, or values of a row: 32 bits hold what is reckoned with them. */
#define MAX_SIDE (1u << 28)

static bool decode(const struct compute_ops *ops, const struct compute_matrix *m,
                   const uint8_t *blocks, struct raw_rows *raw, uint32_t i)
{
    float power[SUPER_BLOCKS];

    if (m->form != WEIGHT_I16)
        return decode_columns(m, blocks, raw, i);
    bool ok = ops->halves(m->type, blocks, raw->n_values, raw->w[i], power);
    for (uint32_t b = 0; b < raw->n_blocks; b++)
        raw->power[b][i] = power[b];
    return ok;
}

/* Outputs that fill up the last panel are zero. */
static void raw_clear(struct raw_rows *raw, const struct compute_matrix *m)
{
    memset(raw, 0, sizeof *raw);
    if (m->form < WEIGHT_S8)
        memset(raw->u, m->offset, sizeof raw->u);
}

bool matrix_pack(const struct compute_ops *ops, const struct compute_matrix *m, const void *data,
                 uint32_t first_panel, uint32_t end_panel)
{
    uint32_t values = dtype_block_values(m->type), bytes = dtype_block_bytes(m->type);
    uint64_t row_bytes = (uint64_t)m->k / values * bytes;
    struct raw_rows raw;
    bool ok = true;

    for (uint32_t n = first_panel; n < end_panel; n++) {
        const uint8_t *rows = (const uint8_t *)data + (uint64_t)n * ops->panel * row_bytes;
        uint32_t n_rows = MIN(ops->panel, m->n_outputs - n * ops->panel);
        uint8_t *to = m->data + n * m->panel_bytes;
        if (n_rows < ops->panel)
            raw_clear(&raw, m);
        for (uint32_t k = 0; k < m->k; k += RAW_VALUES) {
            raw.n_values = MIN(RAW_VALUES, m->k - k);
            raw.n_blocks = (raw.n_values + BLOCK - 1) / BLOCK;
            for (uint32_t i = 0; i < n_rows; i++)
                ok &= decode(ops, m, rows + i * row_bytes + (uint64_t)k / values * bytes, &raw, i);
            to = ops->pack(m, &raw, to);
        }
    }
    return ok;
}

/* ---- all of a model's matrices as one loop ---- */

struct part {
    const struct compute_source *source;
    struct compute_matrix *m;
    uint64_t first_task;
};

struct packing {
    const struct compute_ops *ops;
    struct part *parts; /* as they lie in the file */
    uint32_t n_parts, panels_a_task;
    uint64_t n_tasks;
    _Atomic uint64_t next_task;
    _Atomic uint32_t first_bad; /* index of a part; n_parts: none */
    struct compute_pack_hooks hooks;
    _Atomic bool after_last_begun;
};

static const void *part_row(const struct part *part, uint32_t row)
{
    const struct compute_source *s = part->source;
    uint64_t bytes = (uint64_t)s->k / dtype_block_values(s->type) * dtype_block_bytes(s->type);

    return (const uint8_t *)s->data + row * bytes;
}

static void note_bad(struct packing *p, uint32_t part)
{
    uint32_t before = atomic_load(&p->first_bad);

    while (part < before && !atomic_compare_exchange_weak(&p->first_bad, &before, part))
        ;
    if (before == p->n_parts && p->hooks.give_up)
        p->hooks.give_up(p->hooks.context);
}

/* One pool_task a worker; a late worker's may be run by another when that has finished.
 * Tasks are taken in order, so that the file is read from front to back; and when one finds a bad
 * weight, all that could find an earlier one have been taken, and only those go on. */
static void pack_worker(struct worker *w, void *context, uint32_t pool_task)
{
    struct packing *p = context;
    uint32_t i = 0; /* of the part */
    uint64_t task;

    (void)w;
    if (pool_task == 0 && p->hooks.before)
        p->hooks.before(p->hooks.context);
    while ((task = atomic_fetch_add(&p->next_task, 1)) < p->n_tasks) {
        while (i + 1 < p->n_parts && p->parts[i + 1].first_task <= task)
            i++;
        if (i >= atomic_load(&p->first_bad))
            return;
        const struct part *part = &p->parts[i];
        uint32_t first = (uint32_t)(task - part->first_task) * p->panels_a_task;
        if (!matrix_pack(p->ops, part->m, part->source->data, first,
                         MIN(first + p->panels_a_task, part->m->n_panels)))
            note_bad(p, i);
        if (p->hooks.after_task)
            p->hooks.after_task(p->hooks.context, part_row(part, first * p->ops->panel));
    }
    if (p->hooks.after_last && !atomic_exchange(&p->after_last_begun, true))
        p->hooks.after_last(p->hooks.context);
}

static enum status describe_part(struct compute *c, struct part *part)
{
    const struct compute_source *s = part->source;

    if (s->n_outputs == 0 || s->n_outputs > MAX_SIDE || s->k == 0 || s->k > MAX_SIDE ||
        s->k % dtype_block_values(s->type) != 0)
        return fail(STATUS_BAD_MODEL,
                    "tensor %s is %u x %u; 1 to %u are possible, and rows of %s come in blocks "
                    "of %u",
                    s->name, s->n_outputs, s->k, MAX_SIDE, dtype_name(s->type),
                    dtype_block_values(s->type));
    struct compute_matrix *m = part->m = memory_alloc(1, sizeof *m);
    if (!m)
        return STATUS_NO_MEMORY;
    matrix_describe(&c->ops, s->type, s->n_outputs, s->k, m);
    if (!mul_u64(m->panel_bytes, m->n_panels, &m->n_bytes) ||
        !(m->data = weights_alloc(c, m->n_bytes)))
        return fail(STATUS_NO_MEMORY, "no memory for the packed weights of %s", s->name);
    return STATUS_OK;
}

static int compare_parts(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t)((const struct part *)a)->source->data,
              y = (uintptr_t)((const struct part *)b)->source->data;

    return x < y ? -1 : x > y;
}

static enum status pack_parts(struct compute *c, struct packing *p)
{
    qsort(p->parts, p->n_parts, sizeof *p->parts, compare_parts);
    for (uint32_t i = 0; i < p->n_parts; i++) {
        p->parts[i].first_task = p->n_tasks;
        p->n_tasks += (p->parts[i].m->n_panels + p->panels_a_task - 1) / p->panels_a_task;
    }
    atomic_store(&p->first_bad, p->n_parts);
    TRY(pool_loop(c->pool, c->n_threads, pack_worker, p));
    uint32_t bad = atomic_load(&p->first_bad);
    if (bad < p->n_parts)
        return fail(STATUS_BAD_MODEL, "tensor %s has a %s that is not finite",
                    p->parts[bad].source->name,
                    p->parts[bad].m->form >= WEIGHT_I16 ? "weight" : "scale");
    return STATUS_OK;
}

enum status compute_matrices_create(struct compute *c, const struct compute_source *sources,
                                    uint32_t n, const struct compute_pack_hooks *hooks)
{
    struct packing p = {.ops = &c->ops, .n_parts = n, .panels_a_task = MAX(1u, 64 / c->ops.panel)};
    enum status status = STATUS_OK;

    if (hooks)
        p.hooks = *hooks;
    p.parts = memory_alloc(n, sizeof *p.parts);
    if (!p.parts)
        return STATUS_NO_MEMORY;
    for (uint32_t i = 0; i < n && status == STATUS_OK; i++) {
        p.parts[i].source = &sources[i];
        status = describe_part(c, &p.parts[i]);
    }
    if (status == STATUS_OK)
        status = pack_parts(c, &p);
    for (uint32_t i = 0; i < n; i++)
        if (status == STATUS_OK)
            *p.parts[i].source->out = p.parts[i].m;
        else
            compute_matrix_destroy(c, &p.parts[i].m);
    free(p.parts);
    return status;
}
