/* Operations that join several of the table's: the same bits as those give one by one, however many
 * workers and rows there are and however the work is cut. */
#include "tiers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define MANY 70
#define GUARD 3 /* floats behind a row of outputs, which nobody writes */

struct gated_problem {
    struct compute *c;
    enum dtype types[2]; /* gate's and up's: a file may mix them */
    uint32_t n, k;
    enum compute_gate kind;
    struct compute_matrix *matrices[2];
    struct compute_acts *acts;
    float *x, *bias[2];
    float *alone[2], *y, *want; /* [MANY][n + GUARD] */
    uint8_t bad[MANY];
};

static uint64_t y_bytes(const struct gated_problem *p, uint32_t rows)
{
    return (uint64_t)rows * (p->n + GUARD) * sizeof(float);
}

static void make_gated(struct gated_problem *p, uint64_t *seed)
{
    struct compute_source sources[2];
    void *weights[2];

    for (int i = 0; i < 2; i++) {
        uint64_t bytes = (uint64_t)p->n * p->k / dtype_block_values(p->types[i]) *
                         dtype_block_bytes(p->types[i]);
        weights[i] = test_alloc(bytes);
        selftest_weights(p->types[i], seed, weights[i], bytes);
        sources[i] = (struct compute_source){.name = i ? "up" : "gate",
                                             .type = p->types[i],
                                             .data = weights[i],
                                             .n_outputs = p->n,
                                             .k = p->k,
                                             .out = &p->matrices[i]};
        p->alone[i] = test_alloc(y_bytes(p, MANY));
        p->bias[i] = test_alloc((uint64_t)p->n * sizeof(float));
        for (uint32_t j = 0; j < p->n; j++)
            p->bias[i][j] = (float)random_below(seed, 100) / 64;
    }
    assert_int_equal(compute_matrices_create(p->c, sources, 2, NULL), STATUS_OK);
    assert_int_equal(compute_acts_create(p->c, MANY, p->k,
                                         (const struct compute_matrix *const *)p->matrices, 2,
                                         &p->acts),
                     STATUS_OK);
    p->y = test_alloc(y_bytes(p, MANY));
    p->want = test_alloc(y_bytes(p, MANY));
    p->x = test_alloc((uint64_t)MANY * p->k * sizeof(float));
    for (uint32_t i = 0; i < MANY; i++)
        selftest_values(seed, p->x + (uint64_t)i * p->k, p->k);
    free(weights[0]);
    free(weights[1]);
}

static void free_gated(struct gated_problem *p)
{
    for (int i = 0; i < 2; i++) {
        compute_matrix_destroy(p->c, &p->matrices[i]);
        free(p->alone[i]);
        free(p->bias[i]);
    }
    compute_acts_destroy(p->c, &p->acts);
    free(p->x);
    free(p->y);
    free(p->want);
}

static struct compute_product product(const struct gated_problem *p, int i, float *y)
{
    return (struct compute_product){
        .matrix = p->matrices[i], .bias = p->bias[i], .y = y, .y_stride = p->n + GUARD};
}

/* Two products and then the activation, each an operation of its own: want. */
static void solve_apart(struct gated_problem *p, uint32_t rows)
{
    struct compute_batch batch = {.n_rows = rows, .bad = p->bad};
    struct compute_product both[] = {product(p, 0, p->alone[0]), product(p, 1, p->alone[1])};

    memset(p->want, 0xFF, y_bytes(p, MANY));
    compute_step_begin(p->c, &batch);
    compute_activate(p->c, p->x, NULL, rows, p->acts);
    compute_matmul(p->c, p->acts, both, 2);
    assert_int_equal(compute_step_end(p->c), STATUS_OK);
    for (uint32_t i = 0; i < rows; i++) {
        uint64_t at = (uint64_t)i * (p->n + GUARD);
        p->c->ops.gated(p->kind, p->alone[0] + at, p->alone[1] + at, p->n, p->want + at);
    }
}

static void check_gated(struct gated_problem *p, uint32_t rows)
{
    struct compute_batch batch = {.n_rows = rows, .bad = p->bad};
    struct compute_gated gated = {p->kind,    p->matrices[0], p->matrices[1], p->bias[0],
                                  p->bias[1], p->y,           p->n + GUARD};

    memset(p->y, 0xFF, y_bytes(p, MANY));
    memset(p->want + y_bytes(p, rows) / sizeof(float), 0xFF, y_bytes(p, MANY) - y_bytes(p, rows));
    compute_step_begin(p->c, &batch);
    compute_activate(p->c, p->x, NULL, rows, p->acts);
    compute_gated_matmul(p->c, p->acts, &gated);
    assert_int_equal(compute_step_end(p->c), STATUS_OK);
    assert_memory_equal(p->y, p->want, y_bytes(p, MANY));
    for (uint32_t i = 0; i < rows; i++)
        assert_false(p->bad[i]);
}

static const enum dtype types[][2] = {{DTYPE_Q4_K, DTYPE_Q6_K},
                                      {DTYPE_Q8_0, DTYPE_Q8_0},
                                      {DTYPE_BF16, DTYPE_F16},
                                      {DTYPE_F32, DTYPE_Q4_1}};

static void check_shapes(struct compute *c)
{
    static const uint32_t outputs[] = {5, 16, 33, 600}, rows[] = {MANY, 33, 5, 2, 1};
    uint64_t seed = 19;

    for (size_t i = 0; i < ARRAY_LENGTH(types); i++)
        for (size_t j = 0; j < ARRAY_LENGTH(outputs); j++) {
            struct gated_problem p = {.c = c,
                                      .types = {types[i][0], types[i][1]},
                                      .n = outputs[j],
                                      .k = 256,
                                      .kind = j % 2 ? COMPUTE_GELU : COMPUTE_SILU};
            make_gated(&p, &seed);
            solve_apart(&p, MANY);
            for (size_t r = 0; r < ARRAY_LENGTH(rows); r++)
                check_gated(&p, rows[r]);
            free_gated(&p);
        }
}

/* Streams so long that a task has several panels of each: a row or two against three, which have
 * none. */
static void check_streams(struct compute *c)
{
    uint64_t seed = 23;

    for (size_t i = 0; i < ARRAY_LENGTH(types); i++) {
        struct gated_problem p = {.c = c, .types = {types[i][0], types[i][1]}, .n = 1801, .k = 256};
        make_gated(&p, &seed);
        solve_apart(&p, FEW_ROWS + 1);
        for (uint32_t rows = FEW_ROWS; rows > 0; rows--)
            check_gated(&p, rows);
        free_gated(&p);
    }
}

/* Products of one operation, whose matrices have streams of their own lengths. */
static void check_products(struct compute *c)
{
    enum { N = 3, K = 256, ROWS = FEW_ROWS + 1 };
    static const uint32_t outputs[N] = {33, 600, 5};
    static const enum dtype of[N] = {DTYPE_Q4_0, DTYPE_Q8_0, DTYPE_Q5_K};
    struct compute_source sources[N];
    struct compute_matrix *matrices[N];
    struct compute_product products[N];
    struct compute_acts *acts;
    void *weights[N];
    float *want[N], *got[N], x[ROWS * K];
    uint8_t bad[ROWS];
    uint64_t seed = 29;

    selftest_values(&seed, x, ROWS * K);
    for (int i = 0; i < N; i++) {
        uint64_t bytes =
            (uint64_t)outputs[i] * K / dtype_block_values(of[i]) * dtype_block_bytes(of[i]);
        weights[i] = test_alloc(bytes);
        selftest_weights(of[i], &seed, weights[i], bytes);
        sources[i] = (struct compute_source){.name = "part",
                                             .type = of[i],
                                             .data = weights[i],
                                             .n_outputs = outputs[i],
                                             .k = K,
                                             .out = &matrices[i]};
        want[i] = test_alloc(ROWS * outputs[i] * sizeof(float));
        got[i] = test_alloc(ROWS * outputs[i] * sizeof(float));
    }
    assert_int_equal(compute_matrices_create(c, sources, N, NULL), STATUS_OK);
    assert_int_equal(
        compute_acts_create(c, ROWS, K, (const struct compute_matrix *const *)matrices, N, &acts),
        STATUS_OK);
    for (uint32_t rows = ROWS; rows > 0; rows--) {
        struct compute_batch batch = {.n_rows = rows, .bad = bad};
        for (int i = 0; i < N; i++) {
            float *y = rows == ROWS ? want[i] : got[i];
            memset(y, 0xFF, ROWS * outputs[i] * sizeof(float));
            products[i] =
                (struct compute_product){.matrix = matrices[i], .y = y, .y_stride = outputs[i]};
        }
        compute_step_begin(c, &batch);
        compute_activate(c, x, NULL, rows, acts);
        compute_matmul(c, acts, products, N);
        assert_int_equal(compute_step_end(c), STATUS_OK);
        for (int i = 0; rows < ROWS && i < N; i++)
            assert_memory_equal(got[i], want[i], rows * outputs[i] * sizeof(float));
    }
    compute_acts_destroy(c, &acts);
    for (int i = 0; i < N; i++) {
        compute_matrix_destroy(c, &matrices[i]);
        free(weights[i]);
        free(want[i]);
        free(got[i]);
    }
}

static void test_tiers(void **state)
{
    struct compute_ops ops;

    (void)state;
    for_each_tier (tier, &ops)
        for (uint32_t n_threads = 1; n_threads <= 3; n_threads++) {
            struct compute *c;
            assert_int_equal(compute_create(n_threads, NULL, &c), STATUS_OK);
            c->ops = ops;
            check_shapes(c);
            check_products(c);
            if (n_threads == 1)
                check_streams(c);
            c->ops.strip_bytes = 1; /* strips of as few rows as can be */
            check_shapes(c);
            compute_destroy(&c);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_tiers)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
