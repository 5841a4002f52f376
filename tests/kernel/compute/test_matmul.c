/* Every tier's matrices against ref's, bit for bit: random shapes, every weight type, values that
 * hurt; and each row alone against the same row in a batch. */
#include "tiers.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define SHAPES 25

struct problem {
    enum dtype type;
    uint32_t rows, n, k;
    uint8_t *weights;
    float *x, *bias, *before; /* [rows][k], [n] or NULL, [rows][n] or NULL: a residual */
};

/* ---- values that hurt ---- */

/* Integers of every weight; 0: as random as before. */
static const uint8_t fills[] = {0, 0x00, 0xFF, 0x80, 0x7F, 0x88};

/* Every integer of the file's blocks the same, so that sums are as large as they can be; scales
 * stay as they are. 16-bit and f32 weights: the largest integers that a block can get. */
static void fill_weights(enum dtype type, uint8_t fill, uint8_t *w, uint64_t bytes)
{
    uint32_t block = dtype_block_bytes(type),
             skip = type == DTYPE_Q4_1 || type == DTYPE_Q4_K || type == DTYPE_Q5_K ? 4 : 2;

    for (uint64_t b = 0; b + block <= bytes; b += block) {
        float x = fill & 1 ? 0x1.FFCp+0f : -0x1.FFCp+0f;
        uint16_t half = (uint16_t)(fill & 1 ? 0x3FFF : 0xBFFF),
                 top = (uint16_t)(float_bits(x) >> 16);
        if (type == DTYPE_F32)
            memcpy(w + b, &x, 4);
        else if (type == DTYPE_F16)
            memcpy(w + b, &half, 2);
        else if (type == DTYPE_BF16)
            memcpy(w + b, &top, 2);
        else if (type == DTYPE_Q6_K)
            memset(w + b, fill, 208);
        else
            memset(w + b + skip, fill, block - skip);
    }
}

enum pattern { ONES, MINUS_ONES, SIGNS, PAIRS, TIES, ZEROS, DENORMALS, SMALLEST_SCALE, PATTERNS };

static float pattern_value(enum pattern pattern, uint32_t i, uint64_t *seed)
{
    uint32_t r = selftest_random(seed);
    /* A block whose largest value is 1 has this scale (EXACTNESS 2). */
    const float d = bits_float(float_bits(0x1.020408p-7f) & ~0xFFu);

    switch (pattern) {
    case ONES:
        return 1;
    case MINUS_ONES:
        return -1;
    case SIGNS:
        return r & 1 ? 3.0f : -3.0f;
    case PAIRS:
        return i & 2 ? 1.0f : -1.0f;
    case TIES: /* two of a block set its scale, one of which may be the outlier */
        return i % BLOCK < 2 ? 1.0f : ((float)(r % 252) - 125.5f) * d;
    case ZEROS:
        return r & 1 ? 0.0f : -0.0f;
    case DENORMALS:
        return bits_float(r & 0x807FFFFFu);
    default: /* 2^-64 and its neighbours */
        return bits_float((0x1F800000u + r % 3 - 1) | (r & 0x80000000u));
    }
}

/* style 0: random; beyond, each filling with each pattern. */
#define STYLES (1 + ARRAY_LENGTH(fills) * PATTERNS)

static void make_problem(struct problem *p, enum dtype type, uint32_t style, uint64_t *seed)
{
    uint32_t unit = dtype_block_values(type) == 1 ? 8 : dtype_block_values(type);

    p->type = type;
    p->rows = 1 + random_below(seed, style ? 14 : 40);
    p->n = 1 + random_below(seed, style ? 40 : 150);
    p->k = unit * (1 + random_below(seed, (unit == 256 ? 7u : 1700 / unit)));
    uint64_t row_bytes = (uint64_t)p->k / dtype_block_values(type) * dtype_block_bytes(type),
             bytes = row_bytes * p->n;
    p->weights = test_alloc(bytes);
    selftest_weights(type, seed, p->weights, bytes);
    p->x = test_alloc((uint64_t)p->rows * p->k * 4);
    selftest_values(seed, p->x, p->rows * p->k);
    if (style) {
        if ((style - 1) / PATTERNS)
            fill_weights(type, fills[(style - 1) / PATTERNS], p->weights, bytes);
        for (uint32_t i = 0; i < p->rows * p->k; i++)
            p->x[i] = pattern_value((style - 1) % PATTERNS, i, seed);
    }
    p->bias = random_below(seed, 2) ? test_alloc((uint64_t)p->n * 4) : NULL;
    if (p->bias)
        selftest_values(seed, p->bias, p->n);
    p->before = random_below(seed, 2) ? test_alloc((uint64_t)p->rows * p->n * 4) : NULL;
    if (p->before)
        selftest_values(seed, p->before, p->rows * p->n);
}

static void free_problem(struct problem *p)
{
    free(p->weights);
    free(p->x);
    free(p->bias);
    free(p->before);
}

/* Rows first to end - 1 as one batch; in_streams: at most FEW_ROWS of them, in two tasks. */
static void solve(const struct compute_ops *ops, const struct problem *p,
                  const struct compute_matrix *m, uint32_t first, uint32_t end, bool in_streams,
                  float *y)
{
    struct compute_acts a;
    struct matmul_task t = {
        .matrix = m, .acts = &a, .panel_end = m->n_panels, .row_end = end - first};
    struct compute_product product = {
        .bias = p->bias, .y = y, .y_stride = p->n, .residual = p->before != NULL};

    test_acts(ops, end - first, p->k, weight_act_form(m->form), &a);
    for (uint32_t i = first; i < end; i++)
        assert_true(ops->quantise(&a, i - first, p->x + (size_t)i * p->k));
    if (p->before)
        memcpy(y, p->before + (size_t)first * p->n, (size_t)(end - first) * p->n * 4);
    t.product = &product;
    t.scratch = test_alloc(ops->matmul_scratch(m) + 64);
    if (in_streams) {
        t.stream_panels = (m->n_panels + ops->n_streams - 1) / ops->n_streams;
        t.panel_end = t.stream_panels / 2;
        ops->matmul(&t);
        t.panel_begin = t.panel_end;
        t.panel_end = t.stream_panels;
    }
    ops->matmul(&t);
    free(t.scratch);
    free(a.memory);
}

static void compare(const struct compute_ops *ops, const struct compute_ops *ref,
                    const struct problem *p)
{
    struct compute_matrix m, r;
    size_t bytes = (size_t)p->rows * p->n * 4;
    float *want = test_alloc(bytes), *got = test_alloc(bytes),
          *alone = test_alloc((size_t)p->n * 4);

    test_pack(ref, p->type, p->n, p->k, p->weights, &r);
    test_pack(ops, p->type, p->n, p->k, p->weights, &m);
    solve(ref, p, &r, 0, p->rows, false, want);
    solve(ops, p, &m, 0, p->rows, false, got);
    if (memcmp(want, got, bytes))
        for (uint32_t i = 0; i < p->rows * p->n; i++)
            if (memcmp(&want[i], &got[i], 4)) {
                print_message(
                    "%s %s: %u rows, %u outputs, k %u: row %u output %u is %a, ref has %a\n",
                    ops->name, dtype_name(p->type), p->rows, p->n, p->k, i / p->n, i % p->n, got[i],
                    want[i]);
                break;
            }
    assert_memory_equal(got, want, bytes);
    for (uint32_t i = 0; i < p->rows; i += 1 + p->rows / 4) {
        solve(ops, p, &m, i, i + 1, false, alone);
        assert_memory_equal(alone, want + (size_t)i * p->n, (size_t)p->n * 4);
    }
    for (uint32_t rows = 1; ops->n_streams > 1 && rows <= MIN(p->rows, FEW_ROWS); rows++) {
        memset(got, 0xFF, bytes);
        solve(ops, p, &m, p->rows - rows, p->rows, true, got);
        assert_memory_equal(got, want + (size_t)(p->rows - rows) * p->n, (size_t)rows * p->n * 4);
    }
    free(want);
    free(got);
    free(alone);
    free(m.data);
    free(r.data);
}

static void test_matmul(void **state)
{
    struct compute_ops ref = reference(), ops;

    (void)state;
    for_each_tier (tier, &ops) {
        uint64_t seed = 7;
        for (size_t i = 0; i < ARRAY_LENGTH(all_types); i++)
            for (uint32_t s = 0; s < SHAPES - 1 + STYLES; s++) {
                struct problem p;
                make_problem(&p, all_types[i], s < SHAPES ? 0 : s - SHAPES + 1, &seed);
                compare(&ops, &ref, &p);
                free_problem(&p);
            }
    }
}

/* Packing and dequantising decode each on its own, and agree: a row that is 1 at k and zero
 * elsewhere gives weight k of every output, exactly, for the 1 is an outlier. */
static void test_one_hot(void **state)
{
    struct compute_ops ref = reference();
    uint64_t seed = 11;

    (void)state;
    for (size_t i = 0; i < ARRAY_LENGTH(all_types); i++) {
        const uint32_t k = 512, n = 40, block = dtype_block_values(all_types[i]);
        uint64_t row_bytes = (uint64_t)k / block * dtype_block_bytes(all_types[i]);
        if (block == 1)
            continue;
        struct problem p = {.type = all_types[i], .rows = k, .n = n, .k = k};
        struct compute_matrix m;
        float *y = test_alloc((size_t)k * n * 4), *weights = test_alloc(k * 4);
        p.weights = test_alloc(row_bytes * n);
        selftest_weights(p.type, &seed, p.weights, row_bytes * n);
        p.x = test_alloc((size_t)k * k * 4);
        for (uint32_t at = 0; at < k; at++)
            p.x[(size_t)at * k + at] = 1;
        test_pack(&ref, p.type, n, k, p.weights, &m);
        solve(&ref, &p, &m, 0, k, false, y);
        for (uint32_t o = 0; o < n; o++) {
            ref.dequantise(p.type, p.weights + o * row_bytes, k, weights);
            for (uint32_t at = 0; at < k; at++)
                if (!(y[(size_t)at * n + o] == weights[at]))
                    fail_msg("%s: weight %u of output %u is %a packed, %a dequantised",
                             dtype_name(p.type), at, o, y[(size_t)at * n + o], weights[at]);
        }
        free(y);
        free(weights);
        free(m.data);
        free_problem(&p);
    }
}

/* Packed weights of quantised types take no more than the file's: a step reads no byte twice as
 * wide as it was. (ref's are not for use.) */
static void test_packed_bytes(void **state)
{
    struct compute_ops ops;

    (void)state;
    for_each_tier (tier, &ops)
        for (size_t i = 0; i < ARRAY_LENGTH(all_types); i++) {
            enum dtype type = all_types[i];
            uint32_t n = 3 * ops.panel, k = 768;
            struct compute_matrix m = {0};
            matrix_describe(&ops, type, n, k, &m);
            uint64_t file = (uint64_t)n * k / dtype_block_values(type) * dtype_block_bytes(type);
            if (ops.panel > 1 && m.form < WEIGHT_I16)
                assert_true(m.panel_bytes * m.n_panels <= file);
        }
}

static double double_of(uint16_t h, bool bf16)
{
    return bf16 ? (double)bits_float((uint32_t)h << 16) : (double)half_to_float(h);
}

/* Every finite 16-bit float, beside block maxima of every exponent: the packed integers are those
 * of the contract, worked out in double. */
static void check_float_blocks(const struct compute_ops *ops, enum dtype type)
{
    const bool bf16 = type == DTYPE_BF16;
    const uint32_t infinity = bf16 ? 0x7F80 : 0x7C00, mantissa = bf16 ? 7 : 10;
    uint16_t h[BLOCK] = {0};
    int16_t w[BLOCK];
    float d;

    h[BLOCK - 1] = (uint16_t)(infinity | 0x8000);
    assert_false(ops->halves(type, h, BLOCK, w, &d));
    for (uint32_t first = 0; first < infinity; first += 13)
        for (uint32_t above = 0; above < 16; above += 3) {
            uint32_t top = MIN(first + (above << mantissa) + 5, infinity - 1);
            for (uint32_t i = 0; i < BLOCK; i++)
                h[i] = (uint16_t)(MIN(first + i, top) | (i & 1) << 15);
            h[7] = (uint16_t)top;
            assert_true(ops->halves(type, h, BLOCK, w, &d));
            /* The largest has 13 bits, and all are the nearest multiples of the power. */
            double s = (double)d, largest = fabs(double_of(h[7], bf16));
            assert_true(s > 0 && largest < s * 8192 && largest >= s * 4096);
            for (uint32_t i = 0; i < BLOCK; i++) {
                double off = fabs(double_of(h[i], bf16) / s - w[i]);
                assert_true(off < 0.5 || (off == 0.5 && w[i] % 2 == 0));
            }
        }
}

static void test_float_blocks(void **state)
{
    struct compute_ops ops;

    (void)state;
    for_each_tier (tier, &ops) {
        check_float_blocks(&ops, DTYPE_BF16);
        check_float_blocks(&ops, DTYPE_F16);
    }
}

/* Out of range anywhere in a row is seen, in every form; at the limit and below it is not. */
static void test_range(void **state)
{
    static const float bad[] = {__builtin_nanf(""), __builtin_inff(), -__builtin_inff(), 0x1p96f,
                                -0x1p97f};
    static const float good[] = {0x1.fffffep95f, -0x1.fffffep95f, 0x1p-149f, 0};
    struct compute_ops ops;

    (void)state;
    for_each_tier (tier, &ops)
        for (uint32_t form = ACT_Q8; form <= ACT_F32; form *= 2) {
            const uint32_t k = 1088;
            struct compute_acts a;
            float *x = test_alloc(k * 4);
            uint64_t seed = 3;
            test_acts(&ops, 5, k, form, &a);
            for (uint32_t i = 0; i < 64; i++) {
                uint32_t at = random_below(&seed, k), row = random_below(&seed, 5);
                selftest_values(&seed, x, k);
                x[at] = bad[i % ARRAY_LENGTH(bad)];
                assert_false(ops.quantise(&a, row, x));
                x[at] = good[i % ARRAY_LENGTH(good)];
                assert_true(ops.quantise(&a, row, x));
            }
            free(x);
            free(a.memory);
        }
}

/* Of version 1 of the contract, whatever compiler and host: a change here is a change of the
 * contract. */
static const uint8_t version_1[COMPUTE_DIGEST_BYTES] = {
    0xf8, 0xd0, 0xfe, 0x44, 0xce, 0x21, 0x64, 0xf6, 0x75, 0x04, 0xb4, 0xe6, 0xeb, 0x57, 0x0e, 0x99,
    0xfb, 0x84, 0x6e, 0x25, 0x78, 0x8c, 0xcc, 0x9f, 0xfc, 0xdb, 0x3f, 0xc3, 0x78, 0x5a, 0xff, 0xe1,
};

static void test_digest(void **state)
{
    struct compute_ops ref = reference(), ops;
    uint8_t want[COMPUTE_DIGEST_BYTES], got[COMPUTE_DIGEST_BYTES];

    (void)state;
    assert_int_equal(selftest_digest(&ref, want), STATUS_OK);
    assert_memory_equal(want, version_1, sizeof want);
    for_each_tier (tier, &ops) {
        assert_int_equal(selftest_digest(&ops, got), STATUS_OK);
        assert_memory_equal(got, want, sizeof want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_digest),       cmocka_unit_test(test_packed_bytes),
        cmocka_unit_test(test_float_blocks), cmocka_unit_test(test_range),
        cmocka_unit_test(test_one_hot),      cmocka_unit_test(test_matmul),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
