/* A tiny model written as a GGUF file: random weights, every shape small. */
#ifndef BATON_TESTS_UNIT_MODEL_TINY_H
#define BATON_TESTS_UNIT_MODEL_TINY_H

#include "base/memory.h"
#include "compute/internal.h"
#include "format/gguf.h"
#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* A scale, minimum or weight that is not finite, in every matrix whose name ends so. */
struct tiny_spoilt {
    const char *name;
    uint32_t at; /* of its upper two bytes, from the last block's begin */
};

struct tiny {
    const char *arch; /* "llama" or "qwen3" */
    enum dtype matrix, embedding;
    uint32_t n_layers, n_embd, n_ff, n_heads, n_kv_heads, head_dim, n_vocab;
    bool bias, rope_factors;
    uint32_t huge_id; /* its embedding leaves the range; 0: none */
    uint64_t seed;
    const struct tiny_spoilt *spoilt; /* NULL: nothing */
};

struct tiny_tensor {
    char name[64];
    enum dtype type;
    uint64_t k, n; /* n 0: a vector */
    uint64_t bytes, offset;
};

struct tiny_writer {
    struct buffer head, data;
    struct tiny_tensor tensors[256];
    uint32_t n_tensors, n_values;
};

static inline void tiny_u32(struct buffer *b, uint32_t v)
{
    buffer_append(b, &v, 4);
}

static inline void tiny_u64(struct buffer *b, uint64_t v)
{
    buffer_append(b, &v, 8);
}

static inline void tiny_string(struct buffer *b, const char *s)
{
    tiny_u64(b, strlen(s));
    buffer_append_string(b, s);
}

static inline void tiny_key_u32(struct tiny_writer *w, const struct tiny *t, const char *key,
                                uint32_t v)
{
    char full[96];

    snprintf(full, sizeof full, "%s.%s", t->arch, key);
    tiny_string(&w->head, full);
    tiny_u32(&w->head, GGUF_U32);
    tiny_u32(&w->head, v);
    w->n_values++;
}

/* Random weights whose products stay of ordinary size. */
static inline void tiny_tensor(struct tiny_writer *w, uint64_t *seed, const char *name,
                               enum dtype type, uint64_t k, uint64_t n)
{
    struct tiny_tensor *t = &w->tensors[w->n_tensors++];
    static const uint8_t zeros[64];
    uint64_t block = dtype_block_bytes(type);

    snprintf(t->name, sizeof t->name, "%s", name);
    t->type = type;
    t->k = k;
    t->n = n;
    t->bytes = k / dtype_block_values(type) * block * (n ? n : 1);
    while (w->data.len % 32)
        buffer_append(&w->data, zeros, 1);
    t->offset = w->data.len;
    uint8_t *p = memory_alloc(t->bytes, 1);
    if (n == 0) {
        for (uint64_t i = 0; i < k; i++) {
            float x = 1.0f + (float)(selftest_random(seed) % 100) * 0.003f;
            memcpy(p + 4 * i, &x, 4);
        }
    } else if (type == DTYPE_F32) {
        for (uint64_t i = 0; i < k * n; i++) {
            float x = ((float)(selftest_random(seed) % 2001) - 1000.0f) * 0.0002f;
            memcpy(p + 4 * i, &x, 4);
        }
    } else {
        for (uint64_t i = 0; i < t->bytes; i++)
            p[i] = (uint8_t)selftest_random(seed);
        for (uint64_t i = 0; i + block <= t->bytes; i += block) {
            float s = 0.01f + (float)(selftest_random(seed) % 100) * 0.0001f;
            uint16_t d = float_to_half(type >= DTYPE_Q4_K && type <= DTYPE_Q6_K ? s * 0.05f : s),
                     m = float_to_half(-8 * s);
            if (type == DTYPE_BF16)
                d = (uint16_t)(float_bits(s * (selftest_random(seed) % 2 ? 4.0f : -4.0f)) >> 16);
            if (type == DTYPE_F16)
                d = float_to_half(s * (selftest_random(seed) % 2 ? 4.0f : -4.0f));
            memcpy(p + i + (type == DTYPE_Q6_K ? 208 : 0), &d, 2);
            if (type == DTYPE_Q4_1)
                memcpy(p + i + 2, &m, 2);
            if (type == DTYPE_Q4_K || type == DTYPE_Q5_K)
                memcpy(p + i + 2, &d, 2);
        }
    }
    buffer_append(&w->data, p, t->bytes);
    free(p);
}

static inline void tiny_layer(struct tiny_writer *w, const struct tiny *t, uint64_t *seed,
                              uint32_t layer)
{
    uint32_t d = t->n_embd, heads = t->n_heads * t->head_dim, kv = t->n_kv_heads * t->head_dim;
    const struct {
        const char *name;
        uint32_t k, n;
        bool biased;
    } all[] = {
        {"attn_q", d, heads, true},
        {"attn_k", d, kv, true},
        {"attn_v", d, kv, true},
        {"attn_output", heads, d, false},
        {"ffn_gate", d, t->n_ff, false},
        {"ffn_up", d, t->n_ff, false},
        {"ffn_down", t->n_ff, d, false},
        {"attn_norm", d, 0, false},
        {"ffn_norm", d, 0, false},
        {"attn_q_norm", t->head_dim, 0, false},
        {"attn_k_norm", t->head_dim, 0, false},
    };
    char name[64];

    for (size_t i = 0; i < (strcmp(t->arch, "qwen3") ? 9 : 11); i++) {
        snprintf(name, sizeof name, "blk.%u.%s.weight", layer, all[i].name);
        tiny_tensor(w, seed, name, all[i].n ? t->matrix : DTYPE_F32, all[i].k, all[i].n);
        if (t->bias && all[i].biased) {
            snprintf(name, sizeof name, "blk.%u.%s.bias", layer, all[i].name);
            tiny_tensor(w, seed, name, DTYPE_F32, all[i].n, 0);
        }
    }
}

static inline void tiny_infos(struct tiny_writer *w, struct buffer *b)
{
    for (uint32_t i = 0; i < w->n_tensors; i++) {
        tiny_string(b, w->tensors[i].name);
        tiny_u32(b, w->tensors[i].n ? 2 : 1);
        tiny_u64(b, w->tensors[i].k);
        if (w->tensors[i].n)
            tiny_u64(b, w->tensors[i].n);
        tiny_u32(b, w->tensors[i].type);
        tiny_u64(b, w->tensors[i].offset);
    }
}

/* Opens the written file, which is already unlinked. */
static inline struct gguf *tiny_open(const struct tiny *t)
{
    struct tiny_writer *w = memory_alloc(1, sizeof *w);
    struct buffer file = {0};
    struct gguf *g = NULL;
    char path[] = "/tmp/baton-tiny-XXXXXX";
    uint64_t seed = t->seed;
    static const uint8_t zeros[64];

    tiny_string(&w->head, "general.architecture");
    tiny_u32(&w->head, GGUF_STRING);
    tiny_string(&w->head, t->arch);
    w->n_values++;
    tiny_key_u32(w, t, "block_count", t->n_layers);
    tiny_key_u32(w, t, "context_length", 4096);
    tiny_key_u32(w, t, "embedding_length", t->n_embd);
    tiny_key_u32(w, t, "feed_forward_length", t->n_ff);
    tiny_key_u32(w, t, "attention.head_count", t->n_heads);
    tiny_key_u32(w, t, "attention.head_count_kv", t->n_kv_heads);
    tiny_key_u32(w, t, "attention.key_length", t->head_dim);
    tiny_key_u32(w, t, "attention.value_length", t->head_dim);
    tiny_tensor(w, &seed, "token_embd.weight", t->embedding, t->n_embd, t->n_vocab);
    if (t->huge_id) {
        float huge = 0x1p100f, *row = (float *)(w->data.data + w->tensors[0].offset) +
                                      (size_t)t->huge_id * t->n_embd;
        row[1] = huge;
        row[2] = -huge;
    }
    tiny_tensor(w, &seed, "output_norm.weight", DTYPE_F32, t->n_embd, 0);
    for (uint32_t i = 0; i < t->n_layers; i++)
        tiny_layer(w, t, &seed, i);
    for (uint32_t i = 0; t->spoilt && i < w->n_tensors; i++) {
        const struct tiny_tensor *s = &w->tensors[i];
        size_t skip = strlen(s->name) - MIN(strlen(s->name), strlen(t->spoilt->name));
        if (s->n && !strcmp(s->name + skip, t->spoilt->name))
            memset(w->data.data + s->offset + s->bytes - dtype_block_bytes(s->type) + t->spoilt->at,
                   0xFF, 2);
    }
    if (t->rope_factors)
        tiny_tensor(w, &seed, "rope_freqs.weight", DTYPE_F32, t->head_dim / 2, 0);
    buffer_append(&file, "GGUF", 4);
    tiny_u32(&file, 3);
    tiny_u64(&file, w->n_tensors);
    tiny_u64(&file, w->n_values);
    buffer_append(&file, w->head.data, w->head.len);
    tiny_infos(w, &file);
    while (file.len % 32)
        buffer_append(&file, zeros, 1);
    buffer_append(&file, w->data.data, w->data.len);
    int fd = mkstemp(path);
    if (fd >= 0 && write(fd, file.data, file.len) == (ssize_t)file.len &&
        gguf_open(path, &g) != STATUS_OK)
        fprintf(stderr, "%s\n", status_message());
    close(fd);
    unlink(path);
    buffer_deinit(&file);
    buffer_deinit(&w->head);
    buffer_deinit(&w->data);
    free(w);
    return g;
}

#endif
