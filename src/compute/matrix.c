/* What a packed matrix is, and the buffers of activations. */
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
