/* Finds a family's tensors in a file, checks their shapes, packs matrices and reads vectors. */
#include "base/memory.h"
#include "model/internal.h"

#include <stdio.h>
#include <stdlib.h>

#define LAYER_MATRICES 7

struct sources {
    struct compute_source *items;
    uint32_t n;
};

static enum status find(const struct model *m, const char *name, uint64_t k, uint64_t rows,
                        bool required, const struct gguf_tensor **out)
{
    const struct gguf_tensor *t = gguf_find_tensor(m->file, name);

    if (!t && required)
        return fail(STATUS_BAD_MODEL, "the model file has no tensor %s", name);
    if (t && (t->n_dims > 2 || t->dims[0] != k || t->dims[1] != rows))
        return fail(STATUS_BAD_MODEL, "tensor %s is %llu x %llu; %llu x %llu is needed", name,
                    (unsigned long long)t->dims[0], (unsigned long long)t->dims[1],
                    (unsigned long long)k, (unsigned long long)rows);
    *out = t;
    return STATUS_OK;
}

static bool finite(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof u);
    return (u & 0x7F800000u) != 0x7F800000u;
}

/* A vector of n values as f32; stays NULL when it is optional and absent. */
static enum status bind_vector(struct model *m, const char *name, uint32_t n, bool required,
                               float **out)
{
    const struct gguf_tensor *t;

    TRY(find(m, name, n, 1, required, &t));
    if (!t)
        return STATUS_OK;
    if (n % dtype_block_values(t->type))
        return fail(STATUS_BAD_MODEL, "tensor %s has %u values, which are no whole blocks of %s",
                    name, n, dtype_name(t->type));
    float *v = memory_alloc(n, sizeof *v);
    if (!v)
        return STATUS_NO_MEMORY;
    *out = v;
    compute_dequantise(m->compute, t->type, t->data, n, v);
    for (uint32_t i = 0; i < n; i++)
        if (!finite(v[i]))
            return fail(STATUS_BAD_MODEL, "tensor %s has a weight that is not finite", name);
    m->packed_bytes += (uint64_t)n * sizeof *v;
    return STATUS_OK;
}

/* PREFIX.weight, to be packed with all others, and, if there is one, PREFIX.bias. */
static enum status bind_linear(struct model *m, struct sources *s, const char *prefix, uint32_t k,
                               uint32_t n, struct linear *out)
{
    char name[128];
    const struct gguf_tensor *t;

    snprintf(name, sizeof name, "%s.weight", prefix);
    TRY(find(m, name, k, n, true, &t));
    s->items[s->n++] = (struct compute_source){t->name, t->type, t->data, n, k, &out->matrix};
    snprintf(name, sizeof name, "%s.bias", prefix);
    return bind_vector(m, name, n, false, &out->bias);
}

static enum status bind_layer(struct model *m, struct sources *s, uint32_t index, struct layer *l)
{
    const struct hyperparameters *hp = &m->hp;
    uint32_t d = hp->n_embd, heads = hp->n_heads * hp->head_dim, kv = hp->n_kv_heads * hp->head_dim;
    const struct {
        const char *name;
        uint32_t k, n;
        struct linear *to;
    } linears[LAYER_MATRICES] = {
        {"attn_q", d, heads, &l->q},
        {"attn_k", d, kv, &l->k},
        {"attn_v", d, kv, &l->v},
        {"attn_output", heads, d, &l->o},
        {"ffn_gate", d, hp->n_ff, &l->gate},
        {"ffn_up", d, hp->n_ff, &l->up},
        {"ffn_down", hp->n_ff, d, &l->down},
    };
    const struct {
        const char *name;
        uint32_t n;
        bool wanted;
        float **to;
    } vectors[] = {
        {"attn_norm", d, true, &l->attn_norm},
        {"ffn_norm", d, true, &l->ffn_norm},
        {"attn_q_norm", hp->head_dim, hp->arch->qk_norm, &l->q_norm},
        {"attn_k_norm", hp->head_dim, hp->arch->qk_norm, &l->k_norm},
    };
    char name[128];

    for (size_t i = 0; i < sizeof linears / sizeof linears[0]; i++) {
        snprintf(name, sizeof name, "blk.%u.%s", index, linears[i].name);
        TRY(bind_linear(m, s, name, linears[i].k, linears[i].n, linears[i].to));
    }
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        snprintf(name, sizeof name, "blk.%u.%s.weight", index, vectors[i].name);
        if (vectors[i].wanted)
            TRY(bind_vector(m, name, vectors[i].n, true, vectors[i].to));
    }
    return STATUS_OK;
}

/* Frequencies of the pairs, in double (EXACTNESS 4). */
static enum status bind_rope(struct model *m)
{
    uint32_t n = m->hp.n_rot / 2;
    const struct gguf_tensor *t;
    float *factors = NULL;
    double ln_base = compute_ln(m->hp.rope_base);

    m->rope_frequency = memory_alloc(n, sizeof(double));
    m->rope_factor = memory_alloc(n, sizeof(double));
    if (!m->rope_frequency || !m->rope_factor)
        return STATUS_NO_MEMORY;
    TRY(find(m, "rope_freqs.weight", n, 1, false, &t));
    if (t)
        TRY(bind_vector(m, "rope_freqs.weight", n, true, &factors));
    for (uint32_t i = 0; i < n; i++) {
        m->rope_frequency[i] = compute_exp(-(2.0 * i / m->hp.n_rot) * ln_base);
        m->rope_factor[i] = (factors ? (double)factors[i] : 1) * m->hp.rope_scale;
        if (!(m->rope_factor[i] > 0)) {
            free(factors);
            return fail(STATUS_BAD_MODEL,
                        "tensor rope_freqs.weight has %g at %u; positive numbers are needed",
                        m->rope_factor[i], i);
        }
    }
    free(factors);
    m->rope_table = (struct compute_rope_table){n, m->rope_frequency, m->rope_factor};
    return STATUS_OK;
}

static enum status bind_output(struct model *m, struct sources *s)
{
    m->embedding = gguf_find_tensor(m->file, "token_embd.weight");
    TRY(bind_vector(m, "output_norm.weight", m->hp.n_embd, true, &m->output_norm));
    /* Without a matrix of its own the output shares the embedding's. */
    const char *name = gguf_find_tensor(m->file, "output.weight") ? "output" : "token_embd";
    return bind_linear(m, s, name, m->hp.n_embd, m->hp.n_vocab, &m->output);
}

static enum status bind_all(struct model *m, struct sources *s)
{
    for (uint32_t i = 0; i < m->hp.n_layers; i++)
        TRY(bind_layer(m, s, i, &m->layers[i]));
    TRY(bind_rope(m));
    return bind_output(m, s);
}

enum status model_bind(struct model *m, const struct compute_pack_hooks *hooks)
{
    struct sources s = {0};

    m->layers = memory_alloc(m->hp.n_layers, sizeof *m->layers);
    s.items = memory_alloc((size_t)m->hp.n_layers * LAYER_MATRICES + 1, sizeof *s.items);
    enum status status = m->layers && s.items ? bind_all(m, &s) : STATUS_NO_MEMORY;
    if (status == STATUS_OK)
        status = compute_matrices_create(m->compute, s.items, s.n, hooks);
    for (uint32_t i = 0; status == STATUS_OK && i < s.n; i++)
        m->packed_bytes += compute_matrix_bytes(*s.items[i].out);
    free(s.items);
    return status;
}

static void linear_deinit(struct model *m, struct linear *l)
{
    compute_matrix_destroy(m->compute, &l->matrix);
    free(l->bias);
}

void model_unbind(struct model *m)
{
    for (uint32_t i = 0; m->layers && i < m->hp.n_layers; i++) {
        struct layer *l = &m->layers[i];
        struct linear *linears[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
        for (size_t j = 0; j < sizeof linears / sizeof linears[0]; j++)
            linear_deinit(m, linears[j]);
        free(l->attn_norm);
        free(l->ffn_norm);
        free(l->q_norm);
        free(l->k_norm);
    }
    linear_deinit(m, &m->output);
    free(m->layers);
    free(m->output_norm);
    free(m->rope_frequency);
    free(m->rope_factor);
}
