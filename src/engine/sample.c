/* Sampling as a pure function of logits, request and index (docs/EXACTNESS.md, 6). Sums are
 * integers, so they need no order, and nothing is ever sorted: whatever top-k or top-p keep lies
 * above a bound that one pass over the vocabulary finds, and the cut among the few entries above it
 * is selected. */
#include "base/checked.h"
#include "base/memory.h"
#include "engine/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 64 }; /* entries that are passed over together */

enum status sampler_init(struct sampler *s, const struct compute *c, uint32_t n_vocab)
{
    s->compute = c;
    s->n_vocab = n_vocab;
    s->z = memory_alloc(n_vocab, sizeof *s->z);
    s->w = memory_alloc(n_vocab, sizeof *s->w);
    s->kept_ids = memory_alloc(n_vocab, sizeof *s->kept_ids);
    s->kept_z = memory_alloc(n_vocab, sizeof *s->kept_z);
    s->keys = memory_alloc(n_vocab, sizeof *s->keys);
    return s->z && s->w && s->kept_ids && s->kept_z && s->keys ? STATUS_OK : STATUS_NO_MEMORY;
}

void sampler_deinit(struct sampler *s)
{
    free(s->z);
    free(s->w);
    free(s->kept_ids);
    free(s->kept_z);
    free(s->keys);
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

/* What is still in the race, ascending in id. */
struct candidates {
    uint32_t n;
    const uint32_t *ids; /* NULL: entry i is id i */
    const float *z;
    uint32_t *w;
};

static uint32_t id_of(const struct candidates *c, uint32_t i)
{
    return c->ids ? c->ids[i] : i;
}

static void swap_keys(struct sampler_key *a, struct sampler_key *b)
{
    const struct sampler_key t = *a;

    *a = *b;
    *b = t;
}

/* The key at which the running sum of weights, in order of keys, reaches `wanted`; the last key if
 * it never does. Linear on average: only the side of a pivot where the sum is reached is looked at
 * again. */
static uint64_t select_key(struct sampler_key *keys, uint32_t n, double wanted)
{
    uint64_t before = 0; /* of all keys below those still looked at */

    while (n > 1) {
        swap_keys(&keys[n / 2], &keys[n - 1]);
        const uint64_t pivot = keys[n - 1].key;
        uint64_t lower = 0;
        uint32_t at = 0;
        for (uint32_t i = 0; i + 1 < n; i++)
            if (keys[i].key < pivot) {
                lower += keys[i].weight;
                swap_keys(&keys[i], &keys[at++]);
            }
        swap_keys(&keys[at], &keys[n - 1]);
        if (at > 0 && (double)(before + lower) >= wanted) {
            n = at;
        } else if ((double)(before + lower + keys[at].weight) >= wanted || at + 1 == n) {
            return pivot;
        } else {
            before += lower + keys[at].weight;
            keys += at + 1;
            n -= at + 1;
        }
    }
    return keys[0].key;
}

static void fill_keys(struct sampler *s, const struct candidates *c, bool by_weight)
{
    for (uint32_t i = 0; i < c->n; i++)
        s->keys[i] = (struct sampler_key){order_key(c->z[i], id_of(c, i)), by_weight ? c->w[i] : 1};
}

/* Those whose key is at most the cut. */
static void keep_up_to(struct sampler *s, struct candidates *c, uint64_t cut)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < c->n; i++) {
        const uint32_t id = id_of(c, i);
        const float z = c->z[i];
        if (order_key(z, id) > cut)
            continue;
        s->kept_ids[n] = id;
        s->kept_z[n] = z;
        c->w[n++] = c->w[i];
    }
    *c = (struct candidates){n, s->kept_ids, s->kept_z, c->w};
}

/* Those with z of at least the bound. */
static struct candidates keep_above(struct sampler *s, const float *z, float bound)
{
    uint32_t n = 0;

    for (uint32_t first = 0; first < s->n_vocab; first += BLOCK) {
        const uint32_t end = MIN(first + BLOCK, s->n_vocab);
        uint32_t any = 0;
        for (uint32_t i = first; i < end; i++)
            any |= z[i] >= bound;
        for (uint32_t i = first; any && i < end; i++) {
            s->kept_ids[n] = i;
            s->kept_z[n] = z[i];
            n += z[i] >= bound;
        }
    }
    return (struct candidates){n, s->kept_ids, s->kept_z, s->w};
}

/* A z that at least k entries reach, and not many more: the k-th largest of the maxima of blocks.
 */
static float bound_of_k(struct sampler *s, const float *z, uint32_t k)
{
    const uint32_t n_blocks = (s->n_vocab + BLOCK - 1) / BLOCK;

    if (k > n_blocks)
        return -INFINITY;
    for (uint32_t b = 0; b < n_blocks; b++) {
        const uint32_t n = MIN((uint32_t)BLOCK, s->n_vocab - b * BLOCK);
        s->kept_z[b] = compute_max(s->compute, z + (size_t)b * BLOCK, n);
        s->keys[b] = (struct sampler_key){order_key(s->kept_z[b], b), 1};
    }
    return s->kept_z[(uint32_t)select_key(s->keys, n_blocks, k)];
}

static struct candidates top_k(struct sampler *s, const float *z, uint32_t k, float zmax,
                               float scale)
{
    struct candidates c = keep_above(s, z, bound_of_k(s, z, k));

    compute_sample_weights(s->compute, c.z, c.n, zmax, scale, c.w);
    fill_keys(s, &c, false);
    keep_up_to(s, &c, select_key(s->keys, c.n, k));
    return c;
}

static uint64_t sum_above(const struct candidates *c, float bound)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < c->n; i++)
        sum += c->z[i] >= bound ? c->w[i] : 0;
    return sum;
}

/* The shortest prefix in order whose weight reaches p of all that is left. */
static void top_p(struct sampler *s, struct candidates *c, double p, float zmax, float scale)
{
    const double wanted = p * (double)sum_above(c, -INFINITY);

    if (!c->ids) { /* the whole vocabulary: most of it is far below the cut */
        float bound = -INFINITY;
        for (float halvings = 2; halvings < 32 && bound == -INFINITY; halvings *= 2)
            if ((double)sum_above(c, zmax - halvings / scale) >= wanted)
                bound = zmax - halvings / scale;
        const uint32_t *w = c->w;
        *c = keep_above(s, c->z, bound);
        for (uint32_t i = 0; i < c->n; i++)
            c->w[i] = w[c->ids[i]];
    }
    fill_keys(s, c, true);
    keep_up_to(s, c, select_key(s->keys, c->n, wanted));
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
    for (uint32_t first = 0; first < n; first += BLOCK) {
        const uint32_t end = MIN(first + BLOCK, n);
        uint32_t any = 0;
        for (uint32_t id = first; id < end; id++)
            any |= z[id] == zmax;
        for (uint32_t id = first; any && id < end; id++)
            if (z[id] == zmax)
                return id;
    }
    return 0;
}

static uint32_t draw(const struct candidates *c, double min_p, uint64_t random)
{
    const uint32_t least = (uint32_t)MIN(MAX(1.0, ceil(min_p * 0x1p30)), (double)UINT32_MAX);
    uint64_t total = 0, sum = 0;
    uint32_t last = 0;

    for (uint32_t i = 0; i < c->n; i++)
        total += c->w[i] >= least ? c->w[i] : 0;
    const uint64_t t = (uint64_t)((unsigned __int128)random * total >> 64);
    for (uint32_t i = 0; i < c->n; i++) {
        if (c->w[i] < least)
            continue;
        sum += c->w[i];
        last = id_of(c, i);
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
    const float scale = (float)(0x1.71547652b82fep+0 / p->temperature);
    struct candidates c = {s->n_vocab, NULL, z, s->w};
    if (p->top_k && p->top_k < s->n_vocab)
        c = top_k(s, z, p->top_k, zmax, scale);
    else
        compute_sample_weights(s->compute, z, s->n_vocab, zmax, scale, s->w);
    if (p->top_p < 1)
        top_p(s, &c, p->top_p, zmax, scale);
    *out_id = draw(&c, p->min_p, philox(seed, index, r->choice));
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
