/* Packing of weights, and the buffers of activations. */
#include "compute/internal.h"

#include <stdlib.h>

uint32_t weight_act_form(enum weight_form form)
{
    return form == WEIGHT_F32   ? ACT_F32
           : form == WEIGHT_I16 ? ACT_I16
           : form == WEIGHT_S8  ? ACT_Q8 | ACT_Q8_WIDE
                                : ACT_Q8;
}

void matrix_describe(const struct compute_ops *ops, enum dtype type, uint32_t n_outputs, uint32_t k,
                     struct compute_matrix *m)
{
    static const struct {
        enum dtype type;
        enum weight_form form;
        int32_t offset;
        bool has_min;
        enum scale_form scales;
    } table[] = {
        {DTYPE_F32, WEIGHT_F32, 0, false, SCALES_F32},
        {DTYPE_F16, WEIGHT_I16, 0, false, SCALES_F32},
        {DTYPE_BF16, WEIGHT_I16, 0, false, SCALES_F32},
        {DTYPE_Q8_0, WEIGHT_S8, 0, false, SCALES_F16},
        {DTYPE_Q4_0, WEIGHT_U4, 8, false, SCALES_F16},
        {DTYPE_Q4_1, WEIGHT_U4, 0, true, SCALES_F16},
        {DTYPE_Q5_0, WEIGHT_U5, 16, false, SCALES_F16},
        {DTYPE_Q4_K, WEIGHT_U4, 0, true, SCALES_K},
        {DTYPE_Q5_K, WEIGHT_U5, 0, true, SCALES_K},
        {DTYPE_Q6_K, WEIGHT_U6, 32, false, SCALES_K},
    };

    for (size_t i = 0; i < ARRAY_LENGTH(table); i++)
        if (table[i].type == type) {
            m->form = table[i].form;
            m->offset = table[i].offset;
            m->has_min = table[i].has_min;
            m->scales = table[i].scales;
        }
    m->type = type;
    m->n_outputs = n_outputs;
    m->k = k;
    m->n_blocks = (k + BLOCK - 1) / BLOCK;
    m->n_panels = (n_outputs + ops->panel - 1) / ops->panel;
    m->panel_bytes = ops->panel_bytes(m);
}

static bool decode(const struct compute_ops *ops, const struct compute_matrix *m,
                   const uint8_t *blocks, struct raw_rows *raw, uint32_t i)
{
    float power[SUPER_BLOCKS];

    if (m->form != WEIGHT_I16)
        return decode_columns(m, blocks, raw, i);
    bool ok = ops->halves(m->type, blocks, raw->n, raw->w[i], power);
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
            raw.n = MIN(RAW_VALUES, m->k - k);
            raw.n_blocks = (raw.n + BLOCK - 1) / BLOCK;
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

void compute_matrix_destroy(struct compute *c, struct compute_matrix **m)
{
    if (!*m)
        return;
    weights_free(c, (*m)->data);
    free(*m);
    *m = NULL;
}

uint64_t compute_matrix_bytes(const struct compute_matrix *m)
{
    return m->n_bytes;
}

void compute_dequantise(const struct compute *c, enum dtype type, const void *row, uint32_t k,
                        float *out)
{
    c->ops.dequantise(type, row, k, out);
}

/* ---- activations ---- */

static void part_sizes(const struct compute_ops *ops, const struct compute_acts *a,
                       uint64_t size[5])
{
    uint64_t n_tiles = (a->max_rows + ops->tile - 1) / ops->tile;

    size[0] = a->forms & ACT_Q8 ? a->q8_tile_bytes * n_tiles : 0;
    size[1] = a->forms & ACT_Q8 ? a->outlier_tile_bytes * n_tiles : 0;
    size[2] = a->forms & ACT_I16 ? a->i16_tile_bytes * n_tiles : 0;
    size[3] = a->forms & ACT_F32 ? a->f32_tile_bytes * n_tiles : 0;
    size[4] = (uint64_t)a->k * 4;
    for (int i = 0; i < 5; i++)
        size[i] = (size[i] + 63) / 64 * 64;
}

void acts_describe(const struct compute_ops *ops, uint32_t max_rows, uint32_t k, uint32_t forms,
                   struct compute_acts *a)
{
    uint64_t size[5];

    *a = (struct compute_acts){
        .k = k,
        .n_blocks = (k + BLOCK - 1) / BLOCK,
        .n_segments = segment_count(k),
        .max_rows = max_rows,
        .forms = forms,
    };
    ops->acts_layout(a);
    part_sizes(ops, a, size);
    for (int i = 0; i < 5; i++)
        a->n_bytes += size[i];
}

void acts_place(const struct compute_ops *ops, struct compute_acts *a)
{
    uint8_t **parts[] = {&a->q8, &a->outliers, &a->i16, &a->f32}, *at = a->memory;
    uint64_t size[5];

    part_sizes(ops, a, size);
    for (int i = 0; i < 4; at += size[i++])
        *parts[i] = at;
    a->zeros = (const float *)at;
}

enum status compute_acts_create(struct compute *c, uint32_t max_rows, uint32_t k,
                                const struct compute_matrix *const *matrices, uint32_t n_matrices,
                                struct compute_acts **out)
{
    struct compute_acts *a = memory_alloc(1, sizeof *a);

    if (!a)
        return STATUS_NO_MEMORY;
    uint32_t forms = 0;
    for (uint32_t i = 0; i < n_matrices; i++)
        forms |= weight_act_form(matrices[i]->form);
    acts_describe(&c->ops, max_rows, k, forms, a);
    a->memory = compute_alloc(c, a->n_bytes);
    if (!a->memory) {
        free(a);
        return STATUS_NO_MEMORY;
    }
    acts_place(&c->ops, a);
    *out = a;
    return STATUS_OK;
}

void compute_acts_destroy(struct compute *c, struct compute_acts **a)
{
    if (!*a)
        return;
    compute_free(c, (*a)->memory, (*a)->n_bytes);
    free(*a);
    *a = NULL;
}
