/* The one decoder. What a family does differently is in its descriptor and in which tensors it has.
 */
#include "model/internal.h"

struct step {
    struct model *m;
    const struct model_batch *batch;
};

static struct compute_product product(const struct linear *l, float *y, uint32_t stride,
                                      bool residual)
{
    return (struct compute_product){
        .matrix = l->matrix, .bias = l->bias, .y = y, .y_stride = stride, .residual = residual};
}

static struct compute_attention attention_of(const struct model *m, uint32_t index)
{
    const struct hyperparameters *hp = &m->hp;

    return (struct compute_attention){
        .layer = index,
        .n_heads = hp->n_heads,
        .n_kv_heads = hp->n_kv_heads,
        .head_dim = hp->head_dim,
        .scale = (float)(hp->attention_scale * 0x1.71547652b82fep+0), /* log2 e: softmax by exp2 */
        .n_rot = hp->n_rot,
        .rope_halves = hp->arch->rope_halves,
        .q_norm = m->layers[index].q_norm,
        .k_norm = m->layers[index].k_norm,
        .norm_epsilon = hp->norm_epsilon,
        .rope = m->rope,
    };
}

/* q, k and v of every row, and K and V into their pages. */
static void enqueue_keys(const struct step *s, uint32_t index, const struct compute_attention *a)
{
    struct model *m = s->m;
    const struct layer *l = &m->layers[index];
    uint32_t heads = a->n_heads * a->head_dim, kv = a->n_kv_heads * a->head_dim;
    struct compute_product qkv[] = {product(&l->q, m->q, heads, false),
                                    product(&l->k, m->k, kv, false),
                                    product(&l->v, m->v, kv, false)};

    compute_norm(m->compute, m->x, l->attn_norm, m->hp.norm_epsilon, NULL, s->batch->n_rows,
                 m->acts_embd);
    compute_matmul(m->compute, m->acts_embd, qkv, 3);
    compute_attention_store(m->compute, a, m->q, m->k, m->v);
    compute_signal(m->compute, s->batch->layer_done, s->batch->context, index);
}

/* Attention and feed-forward of n rows, which are the batch's rows rows[i], added to x. */
static void enqueue_rest(const struct step *s, uint32_t index, const struct compute_attention *a,
                         const uint32_t *rows, uint32_t n, float *x)
{
    struct model *m = s->m;
    const struct layer *l = &m->layers[index];
    struct compute *c = m->compute;
    uint32_t d = m->hp.n_embd;
    struct compute_product o = product(&l->o, x, d, true), down = product(&l->down, x, d, true);
    struct compute_gated gated = {.kind = m->hp.arch->gate,
                                  .gate = l->gate.matrix,
                                  .up = l->up.matrix,
                                  .gate_bias = l->gate.bias,
                                  .up_bias = l->up.bias,
                                  .y = m->hidden,
                                  .y_stride = m->hp.n_ff};

    compute_attention(c, a, m->q, rows, n, m->attended);
    compute_activate(c, m->attended, rows, n, m->acts_heads);
    compute_matmul(c, m->acts_heads, &o, 1);
    compute_norm(c, x, l->ffn_norm, m->hp.norm_epsilon, rows, n, m->acts_embd);
    compute_gated_matmul(c, m->acts_embd, &gated);
    compute_activate(c, m->hidden, rows, n, m->acts_ff);
    compute_matmul(c, m->acts_ff, &down, 1);
}

static void enqueue_logits(const struct step *s, const float *x)
{
    struct model *m = s->m;
    const struct model_batch *b = s->batch;
    struct compute_product output = product(&m->output, b->logits, m->hp.n_vocab, false);

    compute_norm(m->compute, x, m->output_norm, m->hp.norm_epsilon, b->logit_rows, b->n_logit_rows,
                 m->acts_embd);
    compute_matmul(m->compute, m->acts_embd, &output, 1);
    compute_logits_finish(m->compute, 0, b->logit_rows, b->n_logit_rows, m->hp.n_vocab, b->logits);
}

static enum status check(const struct model *m, const struct model_batch *b)
{
    struct kv_geometry g = b->kv->geometry;

    if (b->n_rows == 0 || b->n_rows > m->max_rows || b->n_logit_rows > m->max_logit_rows)
        return fail(STATUS_INTERNAL, "a step of %u rows and %u logit rows; %u and %u are possible",
                    b->n_rows, b->n_logit_rows, m->max_rows, m->max_logit_rows);
    if (g.n_layers != m->hp.n_layers || g.n_kv_heads != m->hp.n_kv_heads ||
        g.head_dim != m->hp.head_dim)
        return fail(STATUS_INTERNAL, "a step over pages of another geometry");
    for (uint32_t i = 0; i < b->n_rows; i++)
        if (b->ids[i] >= m->hp.n_vocab || b->tables[i] >= b->n_page_tables)
            return fail(STATUS_INTERNAL, "row %u has id %u of %u and page table %u of %u", i,
                        b->ids[i], m->hp.n_vocab, b->tables[i], b->n_page_tables);
    for (uint32_t i = 0; i < b->n_logit_rows; i++)
        if (b->logit_rows[i] >= b->n_rows)
            return fail(STATUS_INTERNAL, "logit row %u of %u rows", b->logit_rows[i], b->n_rows);
    return STATUS_OK;
}

enum status model_forward(struct model *m, const struct model_batch *b, uint32_t *out_bad_row)
{
    struct step s = {m, b};
    struct compute_batch rows = {b->n_rows, b->positions, b->tables, b->page_tables, b->kv, m->bad};
    struct compute *c = m->compute;
    uint32_t last = m->hp.n_layers - 1;

    TRY(check(m, b));
    memset(m->bad, 0, b->n_rows);
    compute_step_begin(c, &rows);
    compute_rope(c, &m->rope_table, m->rope);
    compute_embed(c, m->embedding->type, m->embedding->data, m->hp.n_embd, b->ids, b->n_rows, m->x);
    for (uint32_t i = 0; i <= last; i++) {
        struct compute_attention a = attention_of(m, i);
        enqueue_keys(&s, i, &a);
        if (i < last)
            enqueue_rest(&s, i, &a, NULL, b->n_rows, m->x);
        else if (b->n_logit_rows) { /* only these rows go on: nobody reads what the others would
                                       become */
            compute_gather(c, m->x, b->logit_rows, b->n_logit_rows, m->hp.n_embd, m->x_last);
            enqueue_rest(&s, i, &a, b->logit_rows, b->n_logit_rows, m->x_last);
            enqueue_logits(&s, m->x_last);
        }
    }
    TRY(compute_step_end(c));
    for (uint32_t i = 0; i < b->n_rows; i++)
        if (m->bad[i]) {
            *out_bad_row = i;
            return fail(STATUS_NUMERICS, "the values of a row left the finite range");
        }
    return STATUS_OK;
}

const uint8_t *model_bad_rows(const struct model *m)
{
    return m->bad;
}
