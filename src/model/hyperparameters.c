/* A file's metadata as hyperparameters, each number held against what the decoder can run. */
#include "base/checked.h"
#include "model/internal.h"

#include <stdio.h>

#define MAX_LAYERS 1024
#define MAX_WIDTH (1u << 20)
#define MAX_HEADS 4096
#define MAX_HEAD_DIM 1024

struct reader {
    const struct gguf *file;
    const struct architecture *arch;
};

/* NAME.key as an integer in 1..max; fallback 0: the key must be there. */
static enum status read_u32(const struct reader *r, const char *key, uint32_t fallback,
                            uint32_t max, uint32_t *out)
{
    char full[128];
    uint32_t value;

    snprintf(full, sizeof full, "%s.%s", r->arch->name, key);
    const struct gguf_value *v = gguf_find(r->file, full);
    if (!v && fallback == 0)
        return fail(STATUS_BAD_MODEL, "the model file has no %s", full);
    if (v && v->type == GGUF_ARRAY)
        return fail(STATUS_UNSUPPORTED_MODEL,
                    "%s differs from layer to layer, which %s models here cannot", full,
                    r->arch->name);
    if (v)
        TRY(gguf_get_u32(r->file, full, &value));
    else
        value = fallback;
    if (value == 0 || value > max)
        return fail(STATUS_BAD_MODEL, "%s is %u; 1 to %u are possible", full, value, max);
    *out = value;
    return STATUS_OK;
}

static enum status read_f64(const struct reader *r, const char *key, double fallback, double min,
                            double max, double *out)
{
    char full[128];
    double value = fallback;

    snprintf(full, sizeof full, "%s.%s", r->arch->name, key);
    if (gguf_find(r->file, full))
        TRY(gguf_get_f64(r->file, full, &value));
    if (!(value >= min && value <= max))
        return fail(STATUS_BAD_MODEL, "%s is %g; %g to %g are possible", full, value, min, max);
    *out = value;
    return STATUS_OK;
}

static bool string_is(struct gguf_string s, const char *word)
{
    return s.len == strlen(word) && memcmp(s.bytes, word, s.len) == 0;
}

static enum status read_rope(const struct reader *r, struct hyperparameters *hp)
{
    char full[128];
    struct gguf_string kind;

    TRY(read_u32(r, "rope.dimension_count", hp->head_dim, hp->head_dim, &hp->n_rot));
    if (hp->n_rot % 2)
        return fail(STATUS_BAD_MODEL, "%s.rope.dimension_count is %u; it must be even",
                    r->arch->name, hp->n_rot);
    TRY(read_f64(r, "rope.freq_base", r->arch->rope_base, 1, 1e12, &hp->rope_base));
    hp->rope_scale = 1;
    snprintf(full, sizeof full, "%s.rope.scaling.type", r->arch->name);
    if (!gguf_find(r->file, full))
        return read_f64(r, "rope.scale_linear", 1, 1e-6, 1e6, &hp->rope_scale);
    TRY(gguf_get_string(r->file, full, &kind));
    if (string_is(kind, "linear"))
        return read_f64(r, "rope.scaling.factor", 1, 1e-6, 1e6, &hp->rope_scale);
    if (string_is(kind, "none"))
        return STATUS_OK;
    return fail(STATUS_UNSUPPORTED_MODEL, "%s is %.*s; none and linear are supported", full,
                (int)MIN(kind.len, 40), kind.bytes);
}

static enum status read_heads(const struct reader *r, struct hyperparameters *hp)
{
    uint32_t value_length;

    TRY(read_u32(r, "attention.head_count", 0, MAX_HEADS, &hp->n_heads));
    TRY(read_u32(r, "attention.head_count_kv", hp->n_heads, MAX_HEADS, &hp->n_kv_heads));
    if (hp->n_heads % hp->n_kv_heads)
        return fail(STATUS_BAD_MODEL, "%u attention heads do not divide by %u key-value heads",
                    hp->n_heads, hp->n_kv_heads);
    TRY(read_u32(r, "attention.key_length", MAX(1, hp->n_embd / hp->n_heads), MAX_HEAD_DIM,
                 &hp->head_dim));
    TRY(read_u32(r, "attention.value_length", hp->head_dim, MAX_HEAD_DIM, &value_length));
    if (value_length != hp->head_dim)
        return fail(STATUS_UNSUPPORTED_MODEL,
                    "keys have %u dimensions and values %u; they must be equal", hp->head_dim,
                    value_length);
    if (hp->head_dim % 8)
        return fail(STATUS_UNSUPPORTED_MODEL, "a head has %u dimensions; a multiple of 8 is needed",
                    hp->head_dim);
    return STATUS_OK;
}

static enum status read_vocabulary(const struct gguf *file, struct hyperparameters *hp)
{
    const struct gguf_tensor *t = gguf_find_tensor(file, "token_embd.weight");

    if (!t)
        return fail(STATUS_BAD_MODEL, "the model file has no tensor token_embd.weight");
    if (t->n_dims != 2 || t->dims[0] != hp->n_embd || t->dims[1] == 0 || t->dims[1] > 1u << 24)
        return fail(STATUS_BAD_MODEL,
                    "tensor token_embd.weight is %llu x %llu; rows of %u are needed",
                    (unsigned long long)t->dims[0], (unsigned long long)t->dims[1], hp->n_embd);
    hp->n_vocab = (uint32_t)t->dims[1];
    return STATUS_OK;
}

/* Without touching libm: Newton's steps from above end at the correctly rounded root or next to it;
 * sqrt is exact. */
static double inverse_root(uint32_t n)
{
    return 1 / __builtin_sqrt((double)n);
}

enum status hyperparameters_read(const struct gguf *file, struct hyperparameters *out)
{
    struct gguf_string name;
    struct hyperparameters hp = {0};
    struct reader r = {.file = file};
    char full[128];
    double epsilon;
    uint32_t n_experts = 0;

    TRY(gguf_get_string(file, "general.architecture", &name));
    r.arch = hp.arch = architecture_find(name);
    if (!r.arch)
        return fail(STATUS_UNSUPPORTED_MODEL, "the model's architecture is %.*s; supported are %s",
                    (int)MIN(name.len, 40), name.bytes, architecture_names());
    snprintf(full, sizeof full, "%s.expert_count", r.arch->name);
    if (gguf_find(file, full))
        TRY(gguf_get_u32(file, full, &n_experts));
    if (n_experts > 0)
        return fail(STATUS_UNSUPPORTED_MODEL, "%s is %u; mixtures of experts are not supported",
                    full, n_experts);
    TRY(read_u32(&r, "block_count", 0, MAX_LAYERS, &hp.n_layers));
    TRY(read_u32(&r, "context_length", 0, 1u << 28, &hp.n_context));
    TRY(read_u32(&r, "embedding_length", 0, MAX_WIDTH, &hp.n_embd));
    TRY(read_u32(&r, "feed_forward_length", 0, MAX_WIDTH, &hp.n_ff));
    TRY(read_heads(&r, &hp));
    TRY(read_rope(&r, &hp));
    TRY(read_f64(&r, "attention.layer_norm_rms_epsilon", 1e-5, 0, 1, &epsilon));
    hp.norm_epsilon = (float)epsilon;
    TRY(read_f64(&r, "attention.scale", inverse_root(hp.head_dim), 1e-9, 1e9, &hp.attention_scale));
    TRY(read_vocabulary(file, &hp));
    *out = hp;
    return STATUS_OK;
}
