/* Packing of weights: panels from a file's rows, and all of a model's matrices as one loop. */
#include "compute/internal.h"

#include <stdlib.h>

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
    _Atomic bool bad;
};

struct packing {
    const struct compute_ops *ops;
    struct part *parts; /* as they lie in the file */
    uint32_t n_parts, panels_a_task;
    uint64_t n_tasks;
    _Atomic uint64_t next_task;
    const struct compute_beside *beside;
    _Atomic bool last_begun;
};

static const void *part_row(const struct part *part, uint32_t row)
{
    const struct compute_source *s = part->source;
    uint64_t bytes = (uint64_t)s->k / dtype_block_values(s->type) * dtype_block_bytes(s->type);

    return (const uint8_t *)s->data + row * bytes;
}

/* Tasks are taken in order, so that the file is read from front to back. */
static void pack_worker(struct worker *w, void *context, uint32_t worker)
{
    struct packing *p = context;
    struct part *part = p->parts, *end = p->parts + p->n_parts;
    uint64_t task;

    (void)w;
    if (worker == 0 && p->beside && p->beside->first)
        p->beside->first(p->beside->context);
    while ((task = atomic_fetch_add(&p->next_task, 1)) < p->n_tasks) {
        while (part + 1 < end && part[1].first_task <= task)
            part++;
        uint32_t first = (uint32_t)(task - part->first_task) * p->panels_a_task;
        if (!matrix_pack(p->ops, part->m, part->source->data, first,
                         MIN(first + p->panels_a_task, part->m->n_panels)))
            atomic_store(&part->bad, true);
        if (p->beside && p->beside->between)
            p->beside->between(p->beside->context, part_row(part, first * p->ops->panel));
    }
    if (p->beside && p->beside->last && !atomic_exchange(&p->last_begun, true))
        p->beside->last(p->beside->context);
}

static enum status describe_part(struct compute *c, struct part *part)
{
    const struct compute_source *s = part->source;

    if (s->n_outputs == 0 || s->k == 0 || s->k > 1u << 28 ||
        s->k % dtype_block_values(s->type) != 0)
        return fail(STATUS_BAD_MODEL, "tensor %s is %u x %u; rows of %s come in blocks of %u",
                    s->name, s->n_outputs, s->k, dtype_name(s->type), dtype_block_values(s->type));
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
    TRY(pool_loop(c->pool, c->n_threads, pack_worker, p));
    for (uint32_t i = 0; i < p->n_parts; i++)
        if (atomic_load(&p->parts[i].bad))
            return fail(STATUS_BAD_MODEL, "tensor %s has a %s that is not finite",
                        p->parts[i].source->name,
                        p->parts[i].m->form >= WEIGHT_I16 ? "weight" : "scale");
    return STATUS_OK;
}

enum status compute_matrices_create(struct compute *c, const struct compute_source *sources,
                                    uint32_t n, const struct compute_beside *beside)
{
    struct packing p = {.ops = &c->ops,
                        .n_parts = n,
                        .panels_a_task = MAX(1u, 64 / c->ops.panel),
                        .beside = beside};
    enum status status = STATUS_OK;

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
