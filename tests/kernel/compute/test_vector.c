/* Every tier's norms, activations, rotations, pages, attention and sampling against ref's, bit for
 * bit. */
#include "tiers.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define MOST 700

static void test_vectors(void **state)
{
    struct compute_ops ref = reference(), ops;
    float *x = test_alloc(MOST * 4), *y = test_alloc(MOST * 4), *a = test_alloc(MOST * 4),
          *b = test_alloc(MOST * 4);

    (void)state;
    for_each_tier (tier, &ops) {
        uint64_t seed = 11;
        for (int round = 0; round < 60; round++) {
            uint32_t n = 1 + random_below(&seed, MOST - 1);
            selftest_values(&seed, x, n);
            selftest_values(&seed, y, n);
            if (round % 3 == 0)
                for (uint32_t i = 0; i < n; i++)
                    x[i] *= round % 2 ? 200.0f : 0x1p60f;
            assert_true(ref.rms_norm(x, y, 1e-6f, n, a) == ops.rms_norm(x, y, 1e-6f, n, b));
            assert_memory_equal(a, b, n * 4);
            for (int kind = COMPUTE_SILU; kind <= COMPUTE_GELU; kind++) {
                if (round % 3 == 0 && round % 2 == 0)
                    break; /* the cube of 2^60 is not finite: bits are defined for finite values */
                ref.gated((enum compute_gate)kind, x, y, n, a);
                ops.gated((enum compute_gate)kind, x, y, n, b);
                assert_memory_equal(a, b, n * 4);
                memcpy(b, x, n * 4);
                ops.gated((enum compute_gate)kind, b, y, n, b);
                assert_memory_equal(a, b, n * 4);
            }
            ref.exp2(x, n, a);
            ops.exp2(x, n, b);
            assert_memory_equal(a, b, n * 4);
            memcpy(a, x, n * 4);
            memcpy(b, x, n * 4);
            ref.soft_cap(a, n, 30.0f);
            ops.soft_cap(b, n, 30.0f);
            assert_memory_equal(a, b, n * 4);
            ref.scale(a, n, 0.77f);
            ops.scale(b, n, 0.77f);
            assert_memory_equal(a, b, n * 4);
        }
    }
    free(x);
    free(y);
    free(a);
    free(b);
}

/* Where rounding, clamping and the sign of zero could differ: every few thousandth float, and those
 * around what the operations compare with. */
static uint32_t special_values(float *x)
{
    static const float around[] = {0,      0.5f, 1,      1.5f, 63.5f,    64,
                                   125.5f, 126,  126.5f, 127,  0x1p-126f};
    uint32_t n = 0;

    for (size_t i = 0; i < ARRAY_LENGTH(around); i++)
        for (int step = -1; step <= 1; step++) {
            float v = bits_float(float_bits(around[i]) + (uint32_t)(around[i] == 0 ? 0 : step));
            x[n++] = v;
            x[n++] = -v;
        }
    for (uint64_t u = 1; u < 0x43160000; u += 54321) { /* up to 150 */
        x[n++] = bits_float((uint32_t)u);
        x[n++] = -bits_float((uint32_t)u);
    }
    return n;
}

static void test_special_values(void **state)
{
    struct compute_ops ref = reference(), ops;
    const uint32_t most = 50000;
    float *x = test_alloc(most * 4), *up = test_alloc(most * 4), *a = test_alloc(most * 4),
          *b = test_alloc(most * 4);
    uint32_t n = special_values(x);

    (void)state;
    assert_true(n < most);
    for (uint32_t i = 0; i < n; i++)
        up[i] = x[n - 1 - i];
    for_each_tier (tier, &ops) {
        ref.exp2(x, n, a);
        ops.exp2(x, n, b);
        assert_memory_equal(a, b, n * 4);
        for (int kind = COMPUTE_SILU; kind <= COMPUTE_GELU; kind++) {
            ref.gated((enum compute_gate)kind, x, up, n, a);
            ops.gated((enum compute_gate)kind, x, up, n, b);
            assert_memory_equal(a, b, n * 4);
        }
        memcpy(a, x, n * 4);
        memcpy(b, x, n * 4);
        ref.soft_cap(a, n, 20.0f);
        ops.soft_cap(b, n, 20.0f);
        assert_memory_equal(a, b, n * 4);
        ref.scale(a, n, 0x1p-20f);
        ops.scale(b, n, 0x1p-20f);
        assert_memory_equal(a, b, n * 4);
        ref.sample_weights(x, n, 150.0f, 1.0f, (uint32_t *)a);
        ops.sample_weights(x, n, 150.0f, 1.0f, (uint32_t *)b);
        assert_memory_equal(a, b, n * 4);
        double s = ref.log_sum(x, n, 150.0f), t = ops.log_sum(x, n, 150.0f);
        assert_memory_equal(&s, &t, sizeof s);
        for (uint32_t i = 0; i < 64; i++) /* a maximum may be a zero of either sign */
            a[i] = i % 3 ? 0.0f : -0.0f;
        assert_true(ops.maximum(a, 61) == 0);
        assert_true(ops.largest_bits(a, 61) == 0);
    }
    free(x);
    free(up);
    free(a);
    free(b);
}

static void test_sampling(void **state)
{
    struct compute_ops ref = reference(), ops;
    float *z = test_alloc(MOST * 4);
    uint32_t *a = test_alloc(MOST * 4), *b = test_alloc(MOST * 4);

    (void)state;
    for_each_tier (tier, &ops) {
        uint64_t seed = 5;
        for (int round = 0; round < 60; round++) {
            uint32_t n = 1 + random_below(&seed, MOST - 1);
            selftest_values(&seed, z, n);
            for (uint32_t i = 0; i < n; i++)
                z[i] = random_below(&seed, 9) ? z[i] * 7.0f : -INFINITY;
            z[random_below(&seed, n)] = 3;
            float m = ref.maximum(z, n), got = ops.maximum(z, n);
            assert_true(m == got);
            assert_true(ref.largest_bits(z, n) == ops.largest_bits(z, n));
            assert_true(ref.all_valid(z, n) && ops.all_valid(z, n));
            float scale = 0.1f + (float)random_below(&seed, 100);
            ref.sample_weights(z, n, m, scale, a);
            ops.sample_weights(z, n, m, scale, b);
            assert_memory_equal(a, b, n * 4);
            double s = ref.log_sum(z, n, m), t = ops.log_sum(z, n, m);
            assert_memory_equal(&s, &t, sizeof s);
            uint32_t at = random_below(&seed, n);
            z[at] = round & 1 ? (float)NAN : INFINITY;
            assert_false(ops.all_valid(z, n));
            if (round & 1) /* NaN never wins */
                assert_true(ops.maximum(z, n) == ref.maximum(z, n));
        }
    }
    free(z);
    free(a);
    free(b);
}

/* ---- pages and attention ---- */

#define PAGES 24

struct scene {
    struct compute_attention a;
    struct kv_geometry geometry;
    struct kv_view view;
    struct page_table_view table;
    struct compute_batch batch;
    uint32_t pages[PAGES], positions[64], tables[64];
    uint64_t bytes;
    float *q, *out, *want;
};

static void make_scene(struct scene *s, uint64_t *seed)
{
    static const uint32_t dims[] = {8, 40, 64, 96, 128}, groups[] = {1, 2, 3, 4, 7, 8};
    uint32_t kv_heads = 1 + random_below(seed, 3),
             group = groups[random_below(seed, ARRAY_LENGTH(groups))];

    memset(s, 0, sizeof *s);
    s->a.head_dim = dims[random_below(seed, ARRAY_LENGTH(dims))];
    s->a.n_kv_heads = kv_heads;
    s->a.n_heads = kv_heads * group;
    s->a.layer = 1;
    s->a.soft_cap = random_below(seed, 4) ? 0 : 25.0f;
    s->a.n_rot = s->a.head_dim;
    s->geometry = (struct kv_geometry){2, kv_heads, s->a.head_dim};
    s->bytes = kv_page_bytes(s->geometry) * PAGES;
    s->view = (struct kv_view){test_alloc(s->bytes), kv_page_bytes(s->geometry), s->geometry};
    for (uint32_t i = 0; i < PAGES; i++)
        s->pages[i] = (i * 7 + 3) % PAGES;
    s->table = (struct page_table_view){s->pages, PAGES * PAGE_TOKENS};
    s->batch = (struct compute_batch){64, s->positions, s->tables, &s->table, &s->view, NULL};
    s->q = test_alloc((uint64_t)64 * s->a.n_heads * s->a.head_dim * 4);
    s->out = test_alloc((uint64_t)64 * s->a.n_heads * s->a.head_dim * 4);
    s->want = test_alloc((uint64_t)64 * s->a.n_heads * s->a.head_dim * 4);
}

static void free_scene(struct scene *s)
{
    free(s->view.base);
    free(s->q);
    free(s->out);
    free(s->want);
}

static void fill_pages(const struct compute_ops *ops, struct scene *s, uint32_t n_tokens,
                       uint64_t seed)
{
    uint32_t n = s->a.n_kv_heads * s->a.head_dim;
    float *k = test_alloc(n * 4), *v = test_alloc(n * 4);

    memset(s->view.base, 0, s->bytes);
    for (uint32_t i = 0; i < n_tokens; i++) {
        selftest_values(&seed, k, n);
        selftest_values(&seed, v, n);
        if (i % 50 == 7) { /* what is clamped */
            k[i % n] = 1e9f;
            v[i % n] = -1e9f;
            v[(i + 1) % n] = NAN;
        }
        s->positions[0] = i;
        ops->store(&s->batch, &s->a, 0, k, v);
    }
    free(k);
    free(v);
}

/* Every f16 and every tie between two, as keys and as values. */
static void test_page_rounding(void **state)
{
    enum { DIM = 128, HALVES = 0x7C00, ROWS = HALVES / DIM };
    struct compute_ops ref = reference(), ops;
    struct compute_attention a = {.n_kv_heads = 1, .n_heads = 1, .head_dim = DIM};
    struct kv_geometry geometry = {1, 1, DIM};
    uint32_t page = 0, position = 0, tables = 0;
    uint64_t bytes = kv_page_bytes(geometry);
    uint8_t *want = test_alloc(bytes), *got = test_alloc(bytes);
    struct kv_view view = {want, bytes, geometry};
    struct page_table_view table = {&page, PAGE_TOKENS};
    struct compute_batch batch = {1, &position, &tables, &table, &view, NULL};
    float k[DIM], v[DIM];

    (void)state;
    for_each_tier (tier, &ops)
        for (uint32_t row = 0; row < ROWS; row++) {
            for (uint32_t d = 0; d < DIM; d++) {
                float h = half_to_float((uint16_t)(row * DIM + d)),
                      next = half_to_float((uint16_t)MIN(row * DIM + d + 1, HALVES - 1u));
                k[d] = d & 1 ? h : -h;
                v[d] = (h + next) * (row & 1 ? 0.5f : -0.5f);
            }
            position = row % PAGE_TOKENS;
            view.base = want;
            ref.store(&batch, &a, 0, k, v);
            view.base = got;
            ops.store(&batch, &a, 0, k, v);
            if (position == PAGE_TOKENS - 1 || row == ROWS - 1)
                assert_memory_equal(got, want, bytes);
        }
    free(want);
    free(got);
}

/* Whatever finite f16 a page may hold, denormals among them. */
static void scramble_pages(struct scene *s, uint64_t *seed)
{
    uint16_t *h = s->view.base;

    for (uint64_t i = 0; i < s->bytes / 2; i++) {
        uint32_t r = selftest_random(seed);
        h[i] = (uint16_t)(r & 0x10000 ? r & 0x83FF : (r & 0x8000) | (r & 0x7FFF) % 0x7C00);
    }
}

static void attend(const struct compute_ops *ops, struct scene *s, uint32_t first, uint32_t n,
                   float *out)
{
    void *scratch = test_alloc(attention_scratch_bytes(64 * 8, s->a.head_dim));

    for (uint32_t h = 0; h < s->a.n_kv_heads; h++) {
        struct attention_task t = {.a = &s->a,
                                   .batch = &s->batch,
                                   .q = s->q,
                                   .first = first,
                                   .n = n,
                                   .kv_head = h,
                                   .out = out,
                                   .scratch = scratch};
        ops->attention(&t);
    }
    free(scratch);
}

static void attend_by_segments(const struct compute_ops *ops, struct scene *s, uint32_t i,
                               float *out)
{
    uint32_t hd = s->a.head_dim, heads = s->a.n_heads / s->a.n_kv_heads,
             n_keys = s->positions[i] + 1;
    uint32_t n = (n_keys + ATTENTION_KEYS - 1) / ATTENTION_KEYS;
    void *scratch = test_alloc(attention_scratch_bytes(64 * 8, hd));
    float *parts = test_alloc((uint64_t)heads * n * (2 + hd) * 4);

    for (uint32_t h = 0; h < s->a.n_kv_heads; h++) {
        for (uint32_t g = n; g-- > 0;) {
            struct attention_task t = {.a = &s->a,
                                       .batch = &s->batch,
                                       .q = s->q,
                                       .first = i,
                                       .n = 1,
                                       .kv_head = h,
                                       .part = parts + g * (2 + hd),
                                       .part_stride = (uint64_t)n * (2 + hd),
                                       .begin = g * ATTENTION_KEYS,
                                       .end = MIN((g + 1) * ATTENTION_KEYS, n_keys),
                                       .scratch = scratch};
            ops->attention(&t);
        }
        for (uint32_t g = 0; g < heads; g++)
            ops->attention_merge(parts + (size_t)g * n * (2 + hd), n, hd,
                                 out + ((size_t)i * s->a.n_heads + h * heads + g) * hd);
    }
    free(scratch);
    free(parts);
}

static void test_attention(void **state)
{
    struct compute_ops ref = reference(), ops;

    (void)state;
    for_each_tier (tier, &ops) {
        uint64_t seed = 17;
        for (int round = 0; round < 24; round++) {
            struct scene s;
            make_scene(&s, &seed);
            uint32_t width = s.a.n_heads * s.a.head_dim,
                     n = 1 + random_below(&seed, round % 6 == 5 ? 64 : 12);
            uint32_t last = n + random_below(&seed, PAGES * PAGE_TOKENS - n);
            fill_pages(&ref, &s, last, seed);
            uint8_t *want_pages = test_alloc(s.bytes);
            memcpy(want_pages, s.view.base, s.bytes);
            fill_pages(&ops, &s, last, seed);
            assert_memory_equal(s.view.base, want_pages, s.bytes);
            free(want_pages);
            if (round % 4 == 3)
                scramble_pages(&s, &seed);
            for (uint32_t i = 0; i < n; i++)
                s.positions[i] = last - n + i;
            selftest_values(&seed, s.q, n * width);
            attend(&ref, &s, 0, n, s.want);
            attend(&ops, &s, 0, n, s.out);
            assert_memory_equal(s.out, s.want, (size_t)n * width * 4);
            /* Alone, and in other company, the same. */
            memset(s.out, 0, (size_t)n * width * 4);
            for (uint32_t i = 0; i < n; i++)
                attend(&ops, &s, i, 1, s.out);
            assert_memory_equal(s.out, s.want, (size_t)n * width * 4);
            /* By segments too. */
            memset(s.out, 0, (size_t)n * width * 4);
            for (uint32_t i = 0; i < n; i++)
                attend_by_segments(&ops, &s, i, s.out);
            assert_memory_equal(s.out, s.want, (size_t)n * width * 4);
            free_scene(&s);
        }
    }
}

static void test_rotate(void **state)
{
    struct compute_ops ref = reference(), ops;

    (void)state;
    for_each_tier (tier, &ops) {
        uint64_t seed = 23;
        for (int round = 0; round < 40; round++) {
            float rope[128], a[128], b[128];
            struct compute_attention t = {.head_dim = 128,
                                          .n_rot = 2 * (1 + random_below(&seed, 64)),
                                          .rope_halves = round & 1};
            for (uint32_t i = 0; i < 64; i++) {
                double s, c;
                compute_sin_cos(random_below(&seed, 100000) * 0.37, &s, &c);
                rope[2 * i] = (float)c;
                rope[2 * i + 1] = (float)s;
            }
            selftest_values(&seed, a, 128);
            memcpy(b, a, sizeof a);
            ref.rotate(&t, rope, a);
            ops.rotate(&t, rope, b);
            assert_memory_equal(a, b, sizeof a);
        }
    }
}

/* Our own mathematics against libm's, which is near enough to find a wrong constant. */
static void test_mathematics(void **state)
{
    uint64_t seed = 29;

    (void)state;
    for (int i = 0; i < 100000; i++) {
        double x = (double)selftest_random(&seed) * 0x1p-12, s, c; /* up to 2^20 */
        compute_sin_cos(x, &s, &c);
        assert_true(fabs(s - sin(x)) < 4e-16 && fabs(c - cos(x)) < 4e-16);
        compute_sin_cos(-x, &s, &c);
        assert_true(fabs(s - sin(-x)) < 4e-16 && fabs(c - cos(x)) < 4e-16);
        double y = (double)selftest_random(&seed) * 0x1p-31 + 1e-9;
        assert_true(fabs(compute_ln(y) - log(y)) <= 4e-16 * fmax(1, fabs(log(y))));
        double e = y * 30 - 30;
        assert_true(fabs(compute_exp(e) / exp(e) - 1) < 1e-14);
        assert_true(fabs((double)compute_exp2((float)e) / exp2((float)e) - 1) < 3e-7);
    }
    for (uint32_t h = 0; h < 0x7C00; h++) { /* every finite f16, there and back */
        assert_int_equal(float_to_half(half_to_float((uint16_t)h)), h);
        assert_int_equal(float_to_half(-half_to_float((uint16_t)h)), h | 0x8000);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mathematics),    cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_special_values), cmocka_unit_test(test_page_rounding),
        cmocka_unit_test(test_sampling),       cmocka_unit_test(test_rotate),
        cmocka_unit_test(test_attention),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
