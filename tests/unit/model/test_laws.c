/* The laws of EXACTNESS 7 on tiny generated models: chunk sizes, batches, threads and tiers change
 * no byte of pages or logits; a row that leaves the finite range is named and harms nobody. */
#include "tiny.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define TOKENS 300 /* past the first attention segment */
#define PAGES 10
#define MAX_ROWS 512
#define SEQUENCES 3

struct world {
    struct compute *c;
    struct model *m;
    struct model_limits limits;
    struct kv_view kv;
    uint64_t kv_bytes;
    uint32_t pages[SEQUENCES][PAGES];
    struct page_table_view tables[SEQUENCES];
    float *logits; /* [SEQUENCES][TOKENS][vocab] */
    int layers_seen;
};

static const struct tiny models[] = {
    {"llama", DTYPE_Q4_1, DTYPE_Q8_0, 2, 64, 96, 6, 2, 16, 80, false, true, 0, 1, NULL},
    {"llama", DTYPE_Q4_K, DTYPE_Q6_K, 2, 256, 512, 4, 4, 64, 70, true, false, 0, 2, NULL},
    {"llama", DTYPE_Q5_0, DTYPE_F16, 2, 96, 64, 3, 1, 32, 33, true, false, 0, 3, NULL},
    {"llama", DTYPE_Q5_K, DTYPE_Q4_0, 2, 256, 256, 2, 1, 128, 64, false, false, 0, 4, NULL},
    {"qwen3", DTYPE_BF16, DTYPE_BF16, 2, 72, 100, 4, 2, 32, 61, false, false, 0, 5, NULL},
    {"qwen3", DTYPE_F32, DTYPE_F32, 2, 40, 56, 4, 1, 24, 50, false, false, 0, 6, NULL},
    {"qwen3", DTYPE_Q8_0, DTYPE_Q4_0, 2, 1056, 64, 4, 2, 16, 50, false, false, 0, 7, NULL},
};

static void world_create(struct world *w, const struct tiny *t, uint32_t threads, const char *tier)
{
    struct gguf *file = tiny_open(t);

    memset(w, 0, sizeof *w);
    assert_non_null(file);
    assert_int_equal(compute_create(threads, tier, &w->c), STATUS_OK);
    if (model_load(file, NULL, w->c, MAX_ROWS, MAX_ROWS, &w->m) != STATUS_OK)
        fail_msg("%s", status_message());
    gguf_release(&file);
    model_get_limits(w->m, &w->limits);
    w->kv_bytes = kv_page_bytes(w->limits.kv) * PAGES * SEQUENCES;
    w->kv = (struct kv_view){compute_alloc(w->c, w->kv_bytes), kv_page_bytes(w->limits.kv),
                             w->limits.kv};
    for (uint32_t s = 0; s < SEQUENCES; s++)
        for (uint32_t i = 0; i < PAGES; i++)
            w->pages[s][i] = (s * PAGES + i) * 7 % (PAGES * SEQUENCES);
    for (uint32_t s = 0; s < SEQUENCES; s++)
        w->tables[s] = (struct page_table_view){w->pages[s], TOKENS};
    w->logits = calloc((size_t)SEQUENCES * TOKENS * w->limits.n_vocab, 4);
}

static void world_destroy(struct world *w)
{
    free(w->logits);
    compute_free(w->c, w->kv.base, w->kv_bytes);
    model_destroy(&w->m);
    compute_destroy(&w->c);
}

static uint32_t id_at(const struct world *w, uint32_t sequence, uint32_t position)
{
    uint64_t seed = sequence * 1000 + position;

    return selftest_random(&seed) % w->limits.n_vocab;
}

static void layer_done(void *context, uint32_t layer)
{
    struct world *w = context;

    assert_int_equal(layer, w->layers_seen % (int)w->limits.n_layers);
    w->layers_seen++;
}

/* One step: for each sequence the next counts[s] tokens from at[s]. */
static void step(struct world *w, uint32_t *at, const uint32_t *counts)
{
    static uint32_t ids[MAX_ROWS], positions[MAX_ROWS], tables[MAX_ROWS], rows[MAX_ROWS];
    uint32_t n = 0, bad, n_vocab = w->limits.n_vocab;
    float *logits = malloc((size_t)MAX_ROWS * n_vocab * 4);

    for (uint32_t s = 0; s < SEQUENCES; s++)
        for (uint32_t i = 0; i < counts[s]; i++, n++) {
            ids[n] = id_at(w, s, at[s] + i);
            positions[n] = at[s] + i;
            tables[n] = s;
            rows[n] = n;
        }
    struct model_batch b = {n,      ids, positions, tables, w->tables,  SEQUENCES,
                            &w->kv, n,   rows,      logits, layer_done, w};
    assert_int_equal(model_forward(w->m, &b, &bad), STATUS_OK);
    n = 0;
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        memcpy(w->logits + ((size_t)s * TOKENS + at[s]) * n_vocab, logits + (size_t)n * n_vocab,
               (size_t)counts[s] * n_vocab * 4);
        at[s] += counts[s];
        n += counts[s];
    }
    free(logits);
}

/* Sequence 0 alone in chunks of so many. */
static void run_chunks(struct world *w, uint32_t sequence, uint32_t chunk)
{
    uint32_t at[SEQUENCES] = {0};

    while (at[sequence] < TOKENS) {
        uint32_t counts[SEQUENCES] = {0};
        counts[sequence] = MIN(chunk, TOKENS - at[sequence]);
        step(w, at, counts);
    }
}

static void assert_same(const struct world *a, const struct world *b, uint32_t sequence)
{
    size_t bytes = (size_t)TOKENS * a->limits.n_vocab * 4,
           from = (size_t)sequence * TOKENS * a->limits.n_vocab;

    assert_memory_equal(a->logits + from, b->logits + from, bytes);
    for (uint32_t i = 0; i < PAGES; i++) {
        uint64_t at = a->pages[sequence][i] * a->kv.page_stride;
        assert_memory_equal((uint8_t *)a->kv.base + at, (uint8_t *)b->kv.base + at,
                            a->kv.page_stride);
    }
}

static void test_chunks(void **state)
{
    static const uint32_t chunks[] = {1, 7, 64, 512};

    (void)state;
    for (size_t i = 0; i < ARRAY_LENGTH(models); i++) {
        struct world whole, w;
        world_create(&whole, &models[i], 1, NULL);
        run_chunks(&whole, 0, TOKENS);
        for (size_t j = 0; j < ARRAY_LENGTH(chunks); j++) {
            world_create(&w, &models[i], j == 0 ? 2 : 1,
                         NULL); /* one row and two workers: attention by segments */
            run_chunks(&w, 0, chunks[j]);
            assert_same(&w, &whole, 0);
            world_destroy(&w);
        }
        world_destroy(&whole);
    }
}

static void test_tiers_and_threads(void **state)
{
    static const char *const tiers[] = {"avx2", "avx512", "avxvnni", "avx512vnni", "neon"};

    (void)state;
    for (size_t i = 0; i < ARRAY_LENGTH(models); i++) {
        struct world ref, w;
        world_create(&ref, &models[i], 1, "ref");
        run_chunks(&ref, 0, 77);
        for (size_t j = 0; j < ARRAY_LENGTH(tiers); j++)
            for (uint32_t threads = 1; threads <= 3; threads++) {
                struct compute *probe = NULL;
                if (compute_create(1, tiers[j], &probe) != STATUS_OK) {
                    if (i == 0 && threads == 1)
                        print_message("tier %s NOT RUN: %s\n", tiers[j], status_message());
                    break;
                }
                compute_destroy(&probe);
                world_create(&w, &models[i], threads, tiers[j]);
                run_chunks(&w, 0, 77);
                assert_same(&w, &ref, 0);
                world_destroy(&w);
            }
        world_destroy(&ref);
    }
}

/* Decode rows and prefill chunks of three sequences in one step, in changing company. */
static void test_batches(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LENGTH(models); i++) {
        struct world together, alone;
        uint32_t at[SEQUENCES] = {0};
        uint64_t seed = i;
        world_create(&together, &models[i], 2, NULL);
        world_create(&alone, &models[i], 1, NULL);
        while (at[0] + at[1] + at[2] < SEQUENCES * TOKENS) {
            uint32_t counts[SEQUENCES];
            for (uint32_t s = 0; s < SEQUENCES; s++) {
                uint32_t n = selftest_random(&seed) % 3 ? 1 + selftest_random(&seed) % 60 : 1;
                counts[s] = MIN(n, TOKENS - at[s]);
            }
            step(&together, at, counts);
        }
        for (uint32_t s = 0; s < SEQUENCES; s++) {
            run_chunks(&alone, s, 50);
            assert_same(&together, &alone, s);
        }
        assert_true(together.layers_seen > 0 &&
                    compute_progress(together.c) == (uint64_t)together.layers_seen);
        world_destroy(&together);
        world_destroy(&alone);
    }
}

/* Only some rows' logits: the same as when all are wanted. */
static void test_some_logits(void **state)
{
    struct world all, some;
    uint32_t at[SEQUENCES] = {0}, counts[SEQUENCES] = {40, 30, 1}, ids[71], positions[71],
             tables[71], bad;
    uint32_t rows[] = {3, 39, 69, 70};

    (void)state;
    world_create(&all, &models[0], 1, NULL);
    world_create(&some, &models[0], 2, NULL);
    step(&all, at, counts);
    for (uint32_t s = 0, n = 0; s < SEQUENCES; s++)
        for (uint32_t i = 0; i < counts[s]; i++, n++) {
            ids[n] = id_at(&some, s, i);
            positions[n] = i;
            tables[n] = s;
        }
    struct model_batch b = {71,       ids, positions, tables,      some.tables, SEQUENCES,
                            &some.kv, 4,   rows,      some.logits, NULL,        NULL};
    assert_int_equal(model_forward(some.m, &b, &bad), STATUS_OK);
    uint32_t v = all.limits.n_vocab;
    const float *want[] = {all.logits + 3 * v, all.logits + 39 * v, all.logits + (TOKENS + 29) * v,
                           all.logits + 2 * TOKENS * v};
    for (int i = 0; i < 4; i++)
        assert_memory_equal(some.logits + (size_t)i * v, want[i], v * 4);
    assert_memory_equal(some.kv.base, all.kv.base, all.kv_bytes);
    b.n_logit_rows = 0; /* none at all is a step too */
    assert_int_equal(model_forward(some.m, &b, &bad), STATUS_OK);
    assert_memory_equal(some.kv.base, all.kv.base, all.kv_bytes);
    world_destroy(&all);
    world_destroy(&some);
}

static void test_numerics(void **state)
{
    static const char *const tiers[] = {"ref", NULL};
    struct tiny t = {"llama", DTYPE_Q4_1, DTYPE_F32, 2,     64, 96, 6,   2,
                     16,      80,         false,     false, 5,  8,  NULL};

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct world w, alone;
        world_create(&w, &t, 2, tiers[i]);
        world_create(&alone, &t, 1, tiers[i]);
        uint32_t v = w.limits.n_vocab, ids[] = {1, 2, 9, 5, 7, 8}, positions[] = {0, 1, 2, 0, 0, 1},
                 tables[] = {0, 0, 0, 1, 2, 2};
        uint32_t rows[] = {2, 3, 5}, bad = 99;
        struct model_batch b = {6,     ids, positions, tables,   w.tables, SEQUENCES,
                                &w.kv, 3,   rows,      w.logits, NULL,     NULL};
        assert_int_equal(model_forward(w.m, &b, &bad), STATUS_NUMERICS);
        assert_int_equal(bad, 3);
        for (uint32_t r = 0; r < 6; r++)
            assert_int_equal(model_bad_rows(w.m)[r], r == 3);
        uint32_t others[] = {1, 2, 9, 7, 8}, at[] = {0, 1, 2, 0, 1}, in[] = {0, 0, 0, 2, 2},
                 last[] = {2, 4};
        struct model_batch good = {5,         others, at,   in,           alone.tables, SEQUENCES,
                                   &alone.kv, 2,      last, alone.logits, NULL,         NULL};
        assert_int_equal(model_forward(alone.m, &good, &bad), STATUS_OK);
        assert_memory_equal(w.logits, alone.logits, v * 4);
        assert_memory_equal(w.logits + 2 * v, alone.logits + v, v * 4);
        world_destroy(&w);
        world_destroy(&alone);
    }
}

/* What a wrong file is told. */
static void test_bad_files(void **state)
{
    struct tiny t = models[0];
    struct compute *c;
    struct model *m = NULL;
    struct model_limits limits;

    (void)state;
    assert_int_equal(compute_create(1, NULL, &c), STATUS_OK);
    t.arch = "gpt9";
    struct gguf *file = tiny_open(&t);
    assert_int_equal(model_load(file, NULL, c, 8, 8, &m), STATUS_UNSUPPORTED_MODEL);
    assert_non_null(strstr(status_message(), "gpt9"));
    gguf_release(&file);
    t = models[0];
    t.n_kv_heads = 4; /* 6 heads do not divide by 4 */
    file = tiny_open(&t);
    assert_int_equal(model_read_limits(file, &limits), STATUS_BAD_MODEL);
    gguf_release(&file);
    t = models[0];
    t.arch = "qwen3"; /* written without q and k norms by the llama layer: take one away */
    t.n_layers = 1;
    file = tiny_open(&t);
    assert_int_equal(model_read_limits(file, &limits), STATUS_OK);
    assert_int_equal(limits.n_vocab, 80);
    assert_int_equal(limits.kv.head_dim, 16);
    gguf_release(&file);
    assert_null(m);
    compute_destroy(&c);
}

/* Packing names the tensor, the first if there are several, however many workers look. */
static void test_not_finite(void **state)
{
    static const struct {
        enum dtype type;
        uint32_t at;
    } cases[] = {
        {DTYPE_F32, 2},  {DTYPE_F16, 0},  {DTYPE_BF16, 0},   {DTYPE_Q8_0, 0}, {DTYPE_Q4_0, 0},
        {DTYPE_Q4_1, 0}, {DTYPE_Q4_1, 2}, {DTYPE_Q5_0, 0},   {DTYPE_Q4_K, 0}, {DTYPE_Q4_K, 2},
        {DTYPE_Q5_K, 0}, {DTYPE_Q5_K, 2}, {DTYPE_Q6_K, 208},
    };
    static const struct {
        const char *spoilt, *named;
    } names[] = {{"blk.1.ffn_up.weight", "blk.1.ffn_up.weight"},
                 {"ffn_up.weight", "blk.0.ffn_up.weight"},
                 {"weight", "token_embd.weight"}};

    (void)state;
    for (uint32_t i = 0; i < 4 * 3 * ARRAY_LENGTH(cases); i++) {
        struct tiny t = models[1];
        struct tiny_spoilt spoilt = {names[i / 4 % 3].spoilt, cases[i / 12].at};
        struct compute *c;
        struct model *m = NULL;
        t.matrix = t.embedding = cases[i / 12].type;
        t.spoilt = &spoilt;
        struct gguf *file = tiny_open(&t);
        assert_int_equal(compute_create(1 + i % 4, NULL, &c), STATUS_OK);
        assert_int_equal(model_load(file, NULL, c, 8, 8, &m), STATUS_BAD_MODEL);
        assert_non_null(strstr(status_message(), names[i / 4 % 3].named));
        assert_null(m);
        assert_null(c->weights);
        gguf_release(&file);
        compute_destroy(&c);
    }
}

/* The digest is what it is said to be, whoever begins it and whoever is beside it. */
static void check_digest(const struct tiny *tiny)
{
    uint8_t wanted[REQUEST_DIGEST_BYTES], got[REQUEST_DIGEST_BYTES];
    struct gguf *file = tiny_open(tiny);
    struct digest *d = digest_create();
    struct model_digester *digester;

    for (uint64_t i = 0; i < gguf_n_tensors(file); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(file, i);
        uint64_t shape[2] = {t->type, t->n_dims};
        digest_add(d, t->name, strlen(t->name) + 1);
        digest_add(d, shape, sizeof shape);
        digest_add(d, t->dims, sizeof t->dims);
        digest_add(d, t->data, t->n_bytes);
    }
    digest_finish(&d, wanted);
    for (uint32_t i = 0; i < 4; i++) {
        struct compute *c;
        struct model *m;
        digester = NULL;
        if (i % 2)
            assert_int_equal(model_digester_create(file, &digester), STATUS_OK);
        assert_int_equal(compute_create(1 + i, NULL, &c), STATUS_OK);
        assert_int_equal(model_load(file, digester, c, 8, 8, &m), STATUS_OK);
        model_digester_destroy(&digester);
        model_digest(m, got);
        assert_memory_equal(got, wanted, sizeof got);
        model_destroy(&m);
        compute_destroy(&c);
    }
    assert_int_equal(model_digester_create(file, &digester), STATUS_OK);
    model_digester_destroy(&digester); /* perhaps before it is through */
    gguf_release(&file);
}

static void test_digest(void **state)
{
    struct tiny large = models[1];

    (void)state;
    check_digest(&models[0]);
    large.embedding = DTYPE_F32;
    large.n_vocab = 9000; /* more than 8 MiB: the digest reads a tensor in pieces of 4 */
    check_digest(&large);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_files),   cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_digest),      cmocka_unit_test(test_numerics),
        cmocka_unit_test(test_some_logits), cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_batches),     cmocka_unit_test(test_tiers_and_threads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
