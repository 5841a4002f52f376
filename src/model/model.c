/* Loading a model: metadata, weights, the buffers of a step. */
#include "base/checked.h"
#include "base/memory.h"
#include "model/internal.h"

#include <stdlib.h>

static void fill_limits(const struct hyperparameters *hp, struct model_limits *out)
{
    *out = (struct model_limits){
        .n_layers = hp->n_layers,
        .n_vocab = hp->n_vocab,
        .trained_context_tokens = hp->n_context,
        .kv = {hp->n_layers, hp->n_kv_heads, hp->head_dim},
    };
}

enum status model_read_limits(const struct gguf *file, struct model_limits *out)
{
    struct hyperparameters hp;

    TRY(hyperparameters_read(file, &hp));
    fill_limits(&hp, out);
    /* What the weights will take, nearly: packed panels keep about the file's bits. */
    for (uint64_t i = 0; i < gguf_n_tensors(file); i++)
        out->packed_bytes += gguf_tensor_at(file, i)->n_bytes;
    return STATUS_OK;
}

void model_get_limits(const struct model *m, struct model_limits *out)
{
    fill_limits(&m->hp, out);
    out->packed_bytes = m->packed_bytes;
}

static void count_work(struct model_work *w, const struct linear *l, double *operations)
{
    operations[compute_matrix_unit(l->matrix)] += compute_matrix_operations(l->matrix);
    w->weight_bytes += compute_matrix_bytes(l->matrix);
}

void model_get_work(const struct model *m, struct model_work *out)
{
    const struct hyperparameters *hp = &m->hp;
    struct model_work w = {
        .key_operations = 4.0 * hp->n_heads * hp->head_dim,
        .kv_token_bytes = 4ull * hp->n_layers * hp->n_kv_heads * hp->head_dim,
    };

    for (uint32_t i = 0; i < hp->n_layers; i++) {
        struct layer *l = &m->layers[i];
        struct linear *early[] = {&l->q, &l->k, &l->v},
                      *late[] = {&l->o, &l->gate, &l->up, &l->down};
        /* behind the last layer's keys only rows with logits go on */
        double *rest = i + 1 < hp->n_layers ? w.row_operations : w.logit_operations;
        for (size_t j = 0; j < ARRAY_LENGTH(early); j++)
            count_work(&w, early[j], w.row_operations);
        for (size_t j = 0; j < ARRAY_LENGTH(late); j++)
            count_work(&w, late[j], rest);
    }
    count_work(&w, &m->output, w.logit_operations);
    *out = w;
}

void model_digest(const struct model *m, uint8_t out[REQUEST_DIGEST_BYTES])
{
    memcpy(out, m->digest, REQUEST_DIGEST_BYTES);
}

/* ---- buffers ---- */

static enum status create_acts(struct model *m)
{
    struct layer *l = m->layers;
    uint32_t n = m->hp.n_layers, n_matrices = 5 * n + 1;
    const struct compute_matrix **matrices = memory_alloc(n_matrices, sizeof *matrices);
    enum status status = STATUS_OK;
    uint32_t j = 0;

    if (!matrices)
        return STATUS_NO_MEMORY;
    for (uint32_t i = 0; i < n; i++) {
        const struct compute_matrix *five[] = {l[i].q.matrix, l[i].k.matrix, l[i].v.matrix,
                                               l[i].gate.matrix, l[i].up.matrix};
        for (int t = 0; t < 5; t++)
            matrices[j++] = five[t];
    }
    matrices[j++] = m->output.matrix;
    uint32_t rows = MAX(m->max_rows, m->max_logit_rows);
    TRY_GOTO(out, compute_acts_create(m->compute, rows, m->hp.n_embd, matrices, j, &m->acts_embd));
    for (uint32_t i = 0; i < n; i++)
        matrices[i] = l[i].o.matrix;
    TRY_GOTO(out, compute_acts_create(m->compute, rows, m->hp.n_heads * m->hp.head_dim, matrices, n,
                                      &m->acts_heads));
    for (uint32_t i = 0; i < n; i++)
        matrices[i] = l[i].down.matrix;
    TRY_GOTO(out, compute_acts_create(m->compute, rows, m->hp.n_ff, matrices, n, &m->acts_ff));
out:
    free(matrices);
    return status;
}

static enum status create_buffers(struct model *m)
{
    const struct hyperparameters *hp = &m->hp;
    uint64_t rows = m->max_rows, heads = (uint64_t)hp->n_heads * hp->head_dim,
             kv = (uint64_t)hp->n_kv_heads * hp->head_dim;
    const struct {
        float **to;
        uint64_t rows, width;
    } parts[] = {
        {&m->x, rows, hp->n_embd},
        {&m->x_last, m->max_logit_rows, hp->n_embd},
        {&m->q, rows, heads},
        {&m->k, rows, kv},
        {&m->v, rows, kv},
        {&m->attended, rows, heads},
        {&m->hidden, rows, hp->n_ff},
        {&m->rope, rows, hp->n_rot},
    };
    uint64_t at = 0;

    for (size_t i = 0; i < ARRAY_LENGTH(parts); i++)
        m->memory_bytes += (parts[i].rows * parts[i].width * 4 + 63) / 64 * 64;
    m->memory = compute_alloc(m->compute, m->memory_bytes);
    m->bad = memory_alloc(m->max_rows, 1);
    if (!m->memory || !m->bad)
        return STATUS_NO_MEMORY;
    for (size_t i = 0; i < ARRAY_LENGTH(parts); i++) {
        *parts[i].to = m->memory + at;
        at += (parts[i].rows * parts[i].width * 4 + 63) / 64 * 16;
    }
    return create_acts(m);
}

/* ---- the digest beside packing ---- */

static void wait_for_digest(void *digester)
{
    model_digester_wait(digester);
}

static void give_back(void *digester, const void *reached)
{
    model_digester_give_back(digester, reached);
}

static void give_back_rest(void *digester)
{
    model_digester_give_back_rest(digester);
}

static void stop_digest(void *digester)
{
    model_digester_stop(digester);
}

static enum status fill(struct model *m, struct model_digester *digester)
{
    /* A core for the digest as long as it runs; where there is but one worker they take turns. */
    const struct compute_pack_hooks hooks = {
        .before = compute_n_threads(m->compute) > 1 ? wait_for_digest : NULL,
        .after_task = give_back,
        .after_last = give_back_rest,
        .give_up = stop_digest,
        .context = digester,
    };

    TRY(model_bind(m, &hooks));
    TRY(create_buffers(m));
    model_digester_wait(digester);
    model_digester_result(digester, m->digest);
    gguf_forget(m->file, NULL, 0); /* pages that two pieces share, and the head of the file */
    return STATUS_OK;
}

enum status model_load(struct gguf *file, struct model_digester *digester, struct compute *compute,
                       uint32_t max_rows, uint32_t max_logit_rows, struct model **out)
{
    struct hyperparameters hp;
    struct model_digester *own = NULL;

    TRY(hyperparameters_read(file, &hp));
    if (max_rows == 0 || max_rows > 1u << 20 || max_logit_rows == 0 || max_logit_rows > max_rows)
        return fail(STATUS_INTERNAL, "a model with %u rows and %u logit rows a step was asked for",
                    max_rows, max_logit_rows);
    struct model *m = memory_alloc(1, sizeof *m);
    if (!m)
        return STATUS_NO_MEMORY;
    m->hp = hp;
    m->compute = compute;
    m->file = gguf_acquire(file);
    m->max_rows = max_rows;
    m->max_logit_rows = max_logit_rows;
    enum status status = digester ? STATUS_OK : model_digester_create(file, &own);
    if (status == STATUS_OK)
        status = fill(m, digester ? digester : own);
    model_digester_destroy(&own);
    if (status != STATUS_OK) {
        model_destroy(&m);
        return status;
    }
    *out = m;
    return STATUS_OK;
}

void model_destroy(struct model **mm)
{
    struct model *m = *mm;

    if (!m)
        return;
    model_unbind(m);
    compute_acts_destroy(m->compute, &m->acts_embd);
    compute_acts_destroy(m->compute, &m->acts_heads);
    compute_acts_destroy(m->compute, &m->acts_ff);
    compute_free(m->compute, m->memory, m->memory_bytes);
    free(m->bad);
    gguf_release(&m->file);
    free(m);
    *mm = NULL;
}
