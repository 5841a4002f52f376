/* Fixed vectors through every entry of an op table and every weight type, hashed. A tier that
 * misses ref's value is not used, and nodes whose values differ do not share a stream (EXACTNESS
 * 1). */
#include "compute/internal.h"

#include <sched.h>
#include <stdlib.h>

/* ---- numbers ---- */

uint32_t selftest_random(uint64_t *seed)
{
    uint64_t z = *seed += 0x9E3779B97F4A7C15ull;

    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    return (uint32_t)(z >> 32);
}

/* A finite f16: mostly of ordinary size, now and then zero, denormal or the largest. */
static uint16_t random_half(uint64_t *seed)
{
    uint32_t r = selftest_random(seed), sign = r & 0x8000, m = r & 0x3FF;

    switch (r >> 28) {
    case 0:
        return (uint16_t)(r & 1 << 27 ? sign : sign | m);
    case 1:
        return (uint16_t)(sign | 0x7800 | m);
    default:
        return (uint16_t)(sign | (8 + (r >> 20) % 10) << 10 | m);
    }
}

static void put_half(uint8_t *to, uint16_t h)
{
    to[0] = (uint8_t)h;
    to[1] = (uint8_t)(h >> 8);
}

void selftest_weights(enum dtype type, uint64_t *seed, void *data, uint64_t n_bytes)
{
    uint8_t *p = data;
    uint32_t block = dtype_block_bytes(type);

    for (uint64_t i = 0; i < n_bytes; i++)
        p[i] = (uint8_t)selftest_random(seed);
    for (uint64_t i = 0; i + block <= n_bytes; i += block) {
        uint16_t a = random_half(seed), b = random_half(seed);
        float x = half_to_float(a) * (selftest_random(seed) % 64 ? 1.0f : 0x1p-100f);
        uint32_t u = float_bits(x);
        switch (type) {
        case DTYPE_F32:
            memcpy(p + i, &x, 4);
            break;
        case DTYPE_BF16:
            put_half(p + i, (uint16_t)(u >> 16));
            break;
        case DTYPE_Q4_1:
        case DTYPE_Q4_K:
        case DTYPE_Q5_K:
            put_half(p + i, a);
            put_half(p + i + 2, b);
            break;
        case DTYPE_Q6_K:
            put_half(p + i + 208, a);
            break;
        default:
            put_half(p + i, a);
        }
    }
}

void selftest_values(uint64_t *seed, float *x, uint32_t n)
{
    uint32_t style = 0;

    for (uint32_t i = 0; i < n; i++) {
        if (i % BLOCK == 0)
            style = selftest_random(seed) % 12;
        uint32_t r = selftest_random(seed);
        float v = (float)(int32_t)r * 0x1p-30f;
        switch (style) {
        case 0: /* zeros of both signs */
            x[i] = r & 1 ? 0.0f : -0.0f;
            break;
        case 1: /* denormals and what is just above them */
            x[i] = bits_float((r & 0x80FFFFFFu));
            break;
        case 2: /* few values: ties in the search of the outlier and in rounding */
            x[i] = (float)((int32_t)(r % 9) - 4) * 0.5f;
            break;
        case 3: /* all alike in size: sums that are as large as they can be */
            x[i] = r & 1 ? 1.0f : -1.0f;
            break;
        case 4: /* around the smallest scale */
            x[i] = v * 0x1p-63f;
            break;
        case 5: /* one far out */
            x[i] = r % 31 ? v : v * 4096.0f;
            break;
        default:
            x[i] = v;
        }
    }
}

/* ---- hashing ---- */

struct hash {
    uint64_t h[4];
};

static void hash_words(struct hash *h, const void *data, size_t n)
{
    const uint8_t *p = data;

    for (size_t i = 0; i < n; i++) {
        uint32_t word;
        memcpy(&word, p + 4 * i, 4);
        for (int j = 0; j < 4; j++) {
            h->h[j] = (h->h[j] ^ word) * (0x100000001B3ull + 2 * (uint64_t)j);
            h->h[j] ^= h->h[j] >> 29;
        }
    }
}

/* What must hold without adding to the hash: it is spoilt where it does not. */
static void expect(struct hash *h, bool holds)
{
    if (!holds)
        hash_words(h, "different", 2);
}

/* ---- entries ---- */

#define ROWS 13 /* whole tiles and a rest, and enough for the kernels of many rows */
#define OUTPUTS 19
#define K_PLAIN 1088 /* segments of 512 and 576 */
#define K_SUPER 1280 /* of 512, 512 and 256; K-quants need multiples of 256 */

struct bench {
    const struct compute_ops *ops;
    struct hash hash;
    uint64_t seed;
    float *x, *y; /* [ROWS][K_SUPER], [ROWS][OUTPUTS] */
    uint8_t *scratch;
};

/* A row or two of a matrix whose every panel is the first one of t's, in streams of two panels: the
 * last one of them lacks a panel, so that 4, 2 and 1 are read side by side. As in b->y. */
static enum status check_streams(struct bench *b, struct matmul_task t)
{
    const uint32_t panel = b->ops->panel, n_panels = 2 * b->ops->n_streams - 1,
                   n = n_panels * panel;
    const uint64_t panel_bytes = t.matrix->panel_bytes;
    struct compute_matrix m = *t.matrix;

    if (b->ops->n_streams == 1)
        return STATUS_OK;
    m.n_panels = n_panels;
    m.n_outputs = n;
    m.data = aligned_alloc(64, (n_panels * panel_bytes + 63) / 64 * 64);
    float *y = malloc(sizeof *y * FEW_ROWS * n);
    if (!m.data || !y) {
        free(m.data);
        free(y);
        return fail(STATUS_NO_MEMORY, "no memory for the self test");
    }
    for (uint32_t i = 0; i < n_panels; i++)
        memcpy(m.data + i * panel_bytes, t.matrix->data, panel_bytes);
    struct compute_product product = {.y = y, .y_stride = n};
    t.matrix = &m;
    t.product = &product;
    t.stream_panels = t.panel_end = 2;
    for (t.row_end = 1; t.row_end <= FEW_ROWS; t.row_end++) {
        memset(y, 0xFF, sizeof *y * FEW_ROWS * n);
        b->ops->matmul(&t);
        for (uint32_t i = 0; i < t.row_end * n_panels; i++)
            expect(&b->hash,
                   memcmp(y + i * panel, b->y + i / n_panels * OUTPUTS, sizeof *y * panel) == 0);
    }
    free(m.data);
    free(y);
    return STATUS_OK;
}

static enum status check_matrix(struct bench *b, enum dtype type)
{
    uint32_t k = dtype_block_values(type) == 256 ? K_SUPER : K_PLAIN;
    uint64_t bytes = (uint64_t)k / dtype_block_values(type) * dtype_block_bytes(type) * OUTPUTS;
    struct compute_matrix m = {0};
    struct compute_acts a;
    uint8_t *data = memory_alloc(bytes, 1);
    enum status status = data ? STATUS_OK : STATUS_NO_MEMORY;

    matrix_describe(b->ops, type, OUTPUTS, k, &m);
    acts_describe(b->ops, ROWS, k, weight_act_form(m.form), &a);
    m.data = aligned_alloc(64, (m.panel_bytes * m.n_panels + 63) / 64 * 64);
    a.memory = aligned_alloc(64, a.n_bytes);
    if (status == STATUS_OK && (!m.data || !a.memory))
        status = fail(STATUS_NO_MEMORY, "no memory for the self test");
    if (status != STATUS_OK)
        goto out;
    memset(a.memory, 0, a.n_bytes);
    acts_place(b->ops, &a);
    selftest_weights(type, &b->seed, data, bytes);
    (void)matrix_pack(b->ops, &m, data, 0, m.n_panels);
    selftest_values(&b->seed, b->x, ROWS * k);
    for (uint32_t i = 0; i < ROWS; i++)
        (void)b->ops->quantise(&a, i, b->x + (size_t)i * k);
    struct compute_product product = {.y = b->y, .y_stride = OUTPUTS};
    struct matmul_task t = {.matrix = &m,
                            .acts = &a,
                            .product = &product,
                            .panel_end = m.n_panels,
                            .row_end = ROWS,
                            .scratch = b->scratch};
    b->ops->matmul(&t);
    hash_words(&b->hash, b->y, ROWS * OUTPUTS);
    status = check_streams(b, t);
    if (status != STATUS_OK)
        goto out;
    t.row_end = 1; /* and what one row alone takes */
    b->ops->matmul(&t);
    hash_words(&b->hash, b->y, OUTPUTS);
    b->ops->dequantise(type, data, k, b->x);
    hash_words(&b->hash, b->x, k);
out:
    free(m.data);
    free(a.memory);
    free(data);
    return status;
}

static void check_vectors(struct bench *b)
{
    const uint32_t n = 203; /* no multiple of any vector */
    float *x = b->x, *y = b->x + 256, *z = b->x + 512;
    uint32_t bits;

    for (int i = 0; i < 4; i++) {
        selftest_values(&b->seed, x, n);
        selftest_values(&b->seed, y, n);
        (void)b->ops->rms_norm(x, y, 1e-5f, n, z);
        hash_words(&b->hash, z, n);
        b->ops->gated(i & 1 ? COMPUTE_GELU : COMPUTE_SILU, x, y, n, z);
        hash_words(&b->hash, z, n);
        for (uint32_t j = 0; j < n; j++)
            z[j] = x[j] * 90.0f;
        b->ops->exp2(z, n, y);
        hash_words(&b->hash, y, n);
        float zmax = b->ops->maximum(z, n);
        zmax = zmax == 0 ? 0 : zmax; /* of either sign */
        hash_words(&b->hash, &zmax, 1);
        b->ops->sample_weights(z, n, zmax, 1.37f, (uint32_t *)y);
        hash_words(&b->hash, y, n);
        double sum = b->ops->log_sum(z, n, zmax), ln = compute_ln(sum);
        hash_words(&b->hash, &sum, 2);
        hash_words(&b->hash, &ln, 2);
        bits = b->ops->largest_bits(z, n);
        hash_words(&b->hash, &bits, 1);
        expect(&b->hash, b->ops->all_valid(z, n));
        b->ops->soft_cap(z, n, 30.0f);
        b->ops->scale(z, n, 0.3f);
        hash_words(&b->hash, z, n);
    }
}

#define HEADS 6
#define KV_HEADS 2
#define HEAD_DIM 40
#define PAGES 10
#define QUERIES 9

/* The last query once more, by segments that are merged: the same as in `whole`. */
static bool same_by_segments(const struct bench *b, struct attention_task t, const float *whole)
{
    enum { SEGMENTS = (PAGES * PAGE_TOKENS + ATTENTION_KEYS - 1) / ATTENTION_KEYS };
    float parts[HEADS / KV_HEADS][SEGMENTS][2 + HEAD_DIM], merged[HEAD_DIM];
    uint32_t n_keys = t.batch->positions[t.first] + 1, heads = HEADS / KV_HEADS;
    bool same = true;

    t.part_stride = sizeof parts[0] / sizeof(float);
    for (uint32_t s = 0; s < SEGMENTS; s++) {
        t.part = parts[0][s];
        t.begin = s * ATTENTION_KEYS;
        t.end = MIN(t.begin + ATTENTION_KEYS, n_keys);
        b->ops->attention(&t);
    }
    for (uint32_t h = 0; h < heads; h++) {
        b->ops->attention_merge(parts[h][0], SEGMENTS, HEAD_DIM, merged);
        same &= memcmp(merged, whole + ((size_t)t.first * HEADS + t.kv_head * heads + h) * HEAD_DIM,
                       sizeof merged) == 0;
    }
    return same;
}

static enum status check_attention(struct bench *b, bool halves, float soft_cap)
{
    struct kv_geometry geometry = {1, KV_HEADS, HEAD_DIM};
    uint64_t slab = kv_slab_bytes(geometry);
    uint32_t pages[PAGES], positions[PAGES * PAGE_TOKENS], tables[PAGES * PAGE_TOKENS] = {0};
    struct page_table_view table = {pages, PAGES * PAGE_TOKENS};
    uint8_t *memory = aligned_alloc(64, slab * PAGES), bad[1];
    float rope[HEAD_DIM], *q = b->x, *out = b->x + QUERIES * HEADS * HEAD_DIM;
    struct kv_view view = {memory, slab, geometry};
    struct compute_batch batch = {PAGES * PAGE_TOKENS, positions, tables, &table, &view, bad};
    struct compute_attention a = {.n_heads = HEADS,
                                  .n_kv_heads = KV_HEADS,
                                  .head_dim = HEAD_DIM,
                                  .soft_cap = soft_cap,
                                  .n_rot = HEAD_DIM,
                                  .rope_halves = halves};

    if (!memory)
        return fail(STATUS_NO_MEMORY, "no memory for the self test");
    memset(memory, 0, slab * PAGES);
    for (uint32_t i = 0; i < PAGES; i++)
        pages[i] = PAGES - 1 - i;
    for (uint32_t i = 0; i < HEAD_DIM / 2; i++) {
        double s, c;
        compute_sin_cos(0.37 * i + 1000.0 * compute_exp(-0.5 * i), &s, &c);
        rope[2 * i] = (float)c;
        rope[2 * i + 1] = (float)s;
    }
    for (uint32_t i = 0; i < PAGES * PAGE_TOKENS - 7; i++) {
        positions[i] = i;
        selftest_values(&b->seed, b->y, KV_HEADS * HEAD_DIM * 2);
        b->ops->rotate(&a, rope, b->y);
        b->ops->store(&batch, &a, i, b->y, b->y + KV_HEADS * HEAD_DIM);
    }
    hash_words(&b->hash, memory, slab * PAGES / 4);
    selftest_values(&b->seed, q, QUERIES * HEADS * HEAD_DIM);
    for (uint32_t i = 0; i < QUERIES; i++)
        positions[i] = PAGES * PAGE_TOKENS - 7 - QUERIES + i -
                       (i == 0 ? 260 : 0); /* the first within one segment */
    for (uint32_t h = 0; h < KV_HEADS; h++) {
        struct attention_task t = {.a = &a,
                                   .batch = &batch,
                                   .q = q,
                                   .n = QUERIES,
                                   .kv_head = h,
                                   .out = out,
                                   .scratch = b->scratch};
        b->ops->attention(&t);
        t.first = QUERIES - 1; /* one row alone gives the same: hashed again */
        t.n = 1;
        t.out = out + QUERIES * HEADS * HEAD_DIM;
        b->ops->attention(&t);
        expect(&b->hash, same_by_segments(b, t, out));
    }
    hash_words(&b->hash, out, QUERIES * HEADS * HEAD_DIM);
    hash_words(&b->hash, out + (2 * QUERIES - 1) * HEADS * HEAD_DIM, HEADS * HEAD_DIM);
    free(memory);
    return STATUS_OK;
}

static enum status check_all(struct bench *b)
{
    static const enum dtype types[] = {
#define X(name, id, values, bytes) DTYPE_##name,
        DTYPE_TABLE(X)
#undef X
    };

    for (size_t i = 0; i < ARRAY_LENGTH(types); i++)
        TRY(check_matrix(b, types[i]));
    check_vectors(b);
    TRY(check_attention(b, false, 0));
    return check_attention(b, true, 20.0f);
}

enum status selftest_digest(const struct compute_ops *ops, uint8_t out[COMPUTE_DIGEST_BYTES])
{
    struct bench b = {.ops = ops, .hash = {{1, 2, 3, 4}}, .seed = 1};
    uint32_t version = COMPUTE_CONTRACT_VERSION;
    enum status status = STATUS_NO_MEMORY;

    b.x = memory_alloc(ROWS * K_SUPER, sizeof *b.x);
    b.y = memory_alloc(ROWS * OUTPUTS, sizeof *b.y);
    b.scratch = aligned_alloc(64, 1 << 18);
    if (b.x && b.y && b.scratch) {
        hash_words(&b.hash, &version, 1);
        status = check_all(&b);
    }
    if (status == STATUS_OK)
        for (int i = 0; i < 4; i++)
            memcpy(out + 8 * i, &b.hash.h[i], 8);
    free(b.x);
    free(b.y);
    free(b.scratch);
    return status;
}

/* ---- on every worker ---- */

struct check {
    struct compute *c;
    _Atomic uint32_t n_come, n_different;
    _Atomic bool no_memory;
};

static void check_worker(struct worker *w, void *context, uint32_t task)
{
    struct check *k = context;
    uint8_t digest[COMPUTE_DIGEST_BYTES];

    (void)w;
    (void)task;
    /* Tasks are anybody's; since nobody goes on until all have come, each worker has one. */
    atomic_fetch_add(&k->n_come, 1);
    while (atomic_load(&k->n_come) < k->c->n_threads)
        sched_yield();
    if (selftest_digest(&k->c->ops, digest) != STATUS_OK)
        atomic_store(&k->no_memory, true);
    else if (memcmp(digest, k->c->digest, sizeof digest) != 0)
        atomic_fetch_add(&k->n_different, 1);
}

enum status selftest_workers(struct compute *c, bool *out_same)
{
    struct check k = {.c = c};

    TRY(pool_loop(c->pool, c->n_threads, check_worker, &k));
    if (atomic_load(&k.no_memory))
        return fail(STATUS_NO_MEMORY, "no memory for the self test");
    *out_same = atomic_load(&k.n_different) == 0;
    return STATUS_OK;
}
