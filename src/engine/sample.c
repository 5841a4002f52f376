/* Sampling as a pure function of logits, request and index (docs/EXACTNESS.md, 6). Sums are
 * integers, so they need no order; top-k and top-p find their cut in a histogram of the leading
 * bits of z and sort only the bucket it falls into. */
#include "base/checked.h"
#include "base/memory.h"
#include "engine/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N_BUCKETS = 1 << 16 };

enum status sampler_init(struct sampler *s, const struct compute *c, uint32_t n_vocab)
{
    s->compute = c;
    s->n_vocab = n_vocab;
    s->z = memory_alloc(n_vocab, sizeof *s->z);
    s->w = memory_alloc(n_vocab, sizeof *s->w);
    s->buckets_n = memory_alloc(N_BUCKETS, sizeof *s->buckets_n);
    s->buckets_sum = memory_alloc(N_BUCKETS, sizeof *s->buckets_sum);
    s->order = memory_alloc(n_vocab, sizeof *s->order);
    return s->z && s->w && s->buckets_n && s->buckets_sum && s->order ? STATUS_OK
                                                                      : STATUS_NO_MEMORY;
}

void sampler_deinit(struct sampler *s)
{
    free(s->z);
    free(s->w);
    free(s->buckets_n);
    free(s->buckets_sum);
    free(s->order);
}

/* Philox4x32-10; the first 64 bits of the block. Source: Salmon et al., "Parallel random numbers:
 * as easy as 1, 2, 3". */
static uint64_t philox(uint64_t key, uint32_t index, uint32_t choice)
{
    uint32_t c[4] = {index, choice, 0, 0}, k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);

    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c[0], p1 = (uint64_t)0xCD9E8D57u * c[2];
        const uint32_t n0 = (uint32_t)(p1 >> 32) ^ c[1] ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c[3] ^ k1;
        c[1] = (uint32_t)p1;
        c[3] = (uint32_t)p0;
        c[0] = n0;
        c[2] = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c[0] | (uint64_t)c[1] << 32;
}

/* Ascending keys are (z descending, id ascending). */
static uint64_t order_key(float z, uint32_t id)
{
    uint32_t bits;

    z += 0.0f; /* both zeros are one value */
    memcpy(&bits, &z, sizeof bits);
    bits = bits & 0x80000000u ? bits : ~bits & 0x7fffffffu;
    return (uint64_t)bits << 32 | id;
}

static int compare_keys(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

static void fill_buckets(struct sampler *s, uint64_t limit)
{
    memset(s->buckets_n, 0, N_BUCKETS * sizeof *s->buckets_n);
    memset(s->buckets_sum, 0, N_BUCKETS * sizeof *s->buckets_sum);
    for (uint32_t id = 0; id < s->n_vocab; id++) {
        const uint64_t key = order_key(s->z[id], id);
        if (key > limit)
            continue;
        s->buckets_n[key >> 48]++;
        s->buckets_sum[key >> 48] += s->w[id];
    }
}

static uint32_t sort_bucket(struct sampler *s, uint32_t bucket, uint64_t limit)
{
    uint32_t n = 0;

    for (uint32_t id = 0; id < s->n_vocab; id++) {
        const uint64_t key = order_key(s->z[id], id);
        if (key >> 48 == bucket && key <= limit)
            s->order[n++] = key;
    }
    qsort(s->order, n, sizeof *s->order, compare_keys);
    return n;
}

/* The key of the k-th entry in order. */
static uint64_t cut_top_k(struct sampler *s, uint32_t k)
{
    uint32_t bucket = 0, n = 0;

    if (k >= s->n_vocab)
        return UINT64_MAX;
    fill_buckets(s, UINT64_MAX);
    while (n + s->buckets_n[bucket] < k)
        n += s->buckets_n[bucket++];
    sort_bucket(s, bucket, UINT64_MAX);
    return s->order[k - n - 1];
}

/* The key of the last entry of the shortest prefix whose weight reaches p of the survivors'. */
static uint64_t cut_top_p(struct sampler *s, double p, uint64_t limit)
{
    uint64_t total = 0, sum = 0;
    uint32_t bucket = 0;

    fill_buckets(s, limit);
    for (uint32_t i = 0; i < N_BUCKETS; i++)
        total += s->buckets_sum[i];
    const double wanted = p * (double)total;
    while (bucket < N_BUCKETS &&
           (s->buckets_n[bucket] == 0 || (double)(sum + s->buckets_sum[bucket]) < wanted))
        sum += s->buckets_sum[bucket++];
    if (bucket == N_BUCKETS)
        return limit;
    const uint32_t n = sort_bucket(s, bucket, limit);
    for (uint32_t i = 0; i < n; i++) {
        sum += s->w[(uint32_t)s->order[i]];
        if ((double)sum >= wanted)
            return s->order[i];
    }
    return s->order[n - 1];
}

static void adjust(struct sampler *s, const struct resume *r, const uint32_t *prompt_seen,
                   const uint32_t *generated_counts)
{
    const struct sampling *p = &r->sampling;

    for (uint32_t i = 0; i < r->n_logit_bias; i++)
        s->z[r->logit_bias[i].id] += r->logit_bias[i].bias;
    if (!prompt_seen)
        return;
    for (uint32_t id = 0; id < s->n_vocab; id++) {
        const uint32_t n = generated_counts[id];
        if (n + prompt_seen[id] == 0)
            continue;
        float z = s->z[id];
        if (p->repetition_penalty != 1)
            z = z > 0 ? z / p->repetition_penalty : z * p->repetition_penalty;
        if (n) {
            z = z - (float)n * p->frequency_penalty;
            z = z - p->presence_penalty;
        }
        s->z[id] = z;
    }
}

static uint32_t lowest_largest(const float *z, uint32_t n, float zmax)
{
    for (uint32_t id = 0; id < n; id++)
        if (z[id] == zmax)
            return id;
    return 0;
}

static uint32_t draw(const struct sampler *s, uint64_t cut, double min_p, uint64_t random)
{
    const double least = min_p * 0x1p30;
    uint64_t total = 0, sum = 0;
    uint32_t last = 0;

    for (uint32_t id = 0; id < s->n_vocab; id++)
        if (s->w[id] && (double)s->w[id] >= least && order_key(s->z[id], id) <= cut)
            total += s->w[id];
    const uint64_t t = (uint64_t)((unsigned __int128)random * total >> 64);
    for (uint32_t id = 0; id < s->n_vocab; id++) {
        if (!s->w[id] || (double)s->w[id] < least || order_key(s->z[id], id) > cut)
            continue;
        sum += s->w[id];
        last = id;
        if (sum > t)
            break;
    }
    return last;
}

enum status sampler_draw(struct sampler *s, const float *logits, const struct resume *r,
                         uint64_t seed, uint32_t index, const uint32_t *prompt_seen,
                         const uint32_t *generated_counts, uint32_t *out_id)
{
    const struct sampling *p = &r->sampling;
    const float *z = logits;
    float zmax = compute_max(s->compute, z, s->n_vocab);

    if (!isfinite(zmax))
        return fail(STATUS_NUMERICS, "a logit is not finite");
    if (r->n_logit_bias || prompt_seen) {
        memcpy(s->z, logits, s->n_vocab * sizeof *s->z);
        adjust(s, r, prompt_seen, generated_counts);
        z = s->z;
        zmax = compute_max(s->compute, z, s->n_vocab);
        if (!isfinite(zmax) || !compute_all_valid(s->compute, z, s->n_vocab))
            return fail(STATUS_NUMERICS, "a penalised logit is not finite");
    }
    if (p->temperature < 0x1p-20) {
        *out_id = lowest_largest(z, s->n_vocab, zmax);
        return STATUS_OK;
    }
    if (z != s->z)
        memcpy(s->z, z, s->n_vocab * sizeof *s->z);
    const float scale = (float)(0x1.71547652b82fep+0 / p->temperature);
    compute_sample_weights(s->compute, s->z, s->n_vocab, zmax, scale, s->w);
    uint64_t cut = UINT64_MAX;
    if (p->top_k)
        cut = cut_top_k(s, p->top_k);
    if (p->top_p < 1)
        cut = cut_top_p(s, p->top_p, cut);
    *out_id = draw(s, cut, p->min_p, philox(seed, index, r->choice));
    return STATUS_OK;
}

enum status sampler_logprobs(struct sampler *s, const float *logits, uint32_t id,
                             struct row_store *rows, uint32_t i)
{
    const float zmax = compute_max(s->compute, logits, s->n_vocab);

    if (!isfinite(zmax))
        return fail(STATUS_NUMERICS, "a logit is not finite");
    const double log_sum = compute_log_sum(s->compute, logits, s->n_vocab, zmax);
    const uint32_t n_top = rows->n_top;
    uint32_t *top_ids = rows->top_ids + (size_t)i * n_top, n = 0;
    float *top_values = rows->top_values + (size_t)i * n_top;

    for (uint32_t j = 0; n_top && j < s->n_vocab; j++) {
        if (n == n_top && !(logits[j] > logits[top_ids[n - 1]]))
            continue;
        uint32_t at = n < n_top ? n++ : n - 1;
        for (; at > 0 && logits[j] > logits[top_ids[at - 1]]; at--)
            top_ids[at] = top_ids[at - 1];
        top_ids[at] = j;
    }
    for (uint32_t j = 0; j < n; j++)
        top_values[j] = (float)((double)logits[top_ids[j]] - zmax - log_sum);
    rows->value[i] = (float)((double)logits[id] - zmax - log_sum);
    return STATUS_OK;
}
