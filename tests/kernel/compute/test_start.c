/* How a compute starts: which tiers there are, and what each worker finds out on its own. */
#include "tiers.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static void test_tiers(void **state)
{
    struct compute *c = NULL;
    uint32_t n = 0;

    (void)state;
    while (tier_at(n))
        n++;
    assert_string_equal(tier_at(n - 1)->name, "ref");
    for (uint32_t i = 0; i < n; i++) {
        enum status status = compute_create(1, tier_at(i)->name, &c);
        assert_int_equal(status, tier_runs_here(tier_at(i)) ? STATUS_OK : STATUS_USAGE);
        if (status == STATUS_OK)
            assert_string_equal(compute_tier_name(c), tier_at(i)->name);
        compute_destroy(&c);
    }
    assert_int_equal(compute_create(1, "abacus", &c), STATUS_USAGE);
    assert_non_null(strstr(status_message(), "ref"));
    assert_null(c);
}

/* Whatever the number of workers, each has its own look at the fixed vectors. */
static void test_workers(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 9; n += 4) {
        struct compute *c = NULL;
        bool same = false;
        assert_int_equal(compute_create(n, NULL, &c), STATUS_OK);
        assert_int_equal(selftest_workers(c, &same), STATUS_OK);
        assert_true(same);
        c->digest[5] ^= 1;
        assert_int_equal(selftest_workers(c, &same), STATUS_OK);
        assert_false(same);
        compute_destroy(&c);
    }
}

/* Packed weights share chunks, and leave nothing behind, in whatever order they go. */
static void test_weights(void **state)
{
    static const uint64_t sizes[] = {1, 64, 100000, 40u << 20, 20u << 20, 20u << 20, 4096, 65};
    uint8_t *p[ARRAY_LENGTH(sizes)];
    struct compute *c = NULL;

    (void)state;
    assert_int_equal(compute_create(1, "ref", &c), STATUS_OK);
    for (size_t i = 0; i < ARRAY_LENGTH(sizes); i++) {
        p[i] = weights_alloc(c, sizes[i]);
        assert_non_null(p[i]);
        assert_int_equal((uintptr_t)p[i] % 64, 0);
        assert_true(p[i][0] == 0 && p[i][sizes[i] - 1] == 0);
        memset(p[i], (int)i + 1, sizes[i]);
    }
    for (size_t i = 0; i < ARRAY_LENGTH(sizes); i++)
        assert_true(p[i][0] == i + 1 && p[i][sizes[i] - 1] == i + 1);
    assert_null(weights_alloc(c, 0));
    assert_null(weights_alloc(c, UINT64_MAX));
    assert_null(weights_alloc(c, UINT64_MAX / 2));
    for (size_t i = 0; i < ARRAY_LENGTH(sizes); i++)
        weights_free(c, p[i * 3 % ARRAY_LENGTH(sizes)]);
    weights_free(c, NULL);
    assert_null(c->weights);
    compute_destroy(&c);
}

static struct compute_ops broken_ops;

static bool broken_norm(const float *x, const float *weight, float epsilon, uint32_t n, float *y)
{
    bool ok = tier_ref()->rms_norm(x, weight, epsilon, n, y);

    y[n - 1] = bits_float(float_bits(y[n - 1]) ^ 1);
    return ok;
}

static void broken_merge(const float *parts, uint32_t n, uint32_t head_dim, float *out)
{
    tier_ref()->attention_merge(parts, n, head_dim, out);
    out[0] = bits_float(float_bits(out[0]) ^ 1);
}

static bool broken_valid(const float *z, uint32_t n)
{
    return false;
}

/* One wrong bit in one operation is seen. */
static void test_broken(void **state)
{
    uint8_t want[COMPUTE_DIGEST_BYTES], got[COMPUTE_DIGEST_BYTES];

    (void)state;
    assert_int_equal(selftest_digest(tier_ref(), want), STATUS_OK);
    for (int i = 0; i < 3; i++) {
        broken_ops = *tier_ref();
        if (i == 0)
            broken_ops.rms_norm = broken_norm;
        else if (i == 1)
            broken_ops.attention_merge = broken_merge;
        else
            broken_ops.all_valid = broken_valid;
        assert_int_equal(selftest_digest(&broken_ops, got), STATUS_OK);
        assert_memory_not_equal(got, want, sizeof got);
    }
}

static void break_norm(struct compute_ops *ops)
{
    ops->rms_norm = broken_norm;
}

static const struct tier *broken_tiers(uint32_t i)
{
    static const struct tier tiers[] = {{"broken", 0, break_norm}, {"ref", 0, NULL}};

    return i < ARRAY_LENGTH(tiers) ? &tiers[i] : NULL;
}

/* A tier with a wrong bit is passed over, and cannot be forced. */
static void test_dropped(void **state)
{
    struct compute c = {.n_threads = 3};

    (void)state;
    assert_int_equal(tier_start(&c, NULL, broken_tiers), STATUS_OK);
    assert_string_equal(c.ops.name, "ref");
    pool_destroy(&c.pool);
    assert_int_equal(tier_start(&c, "broken", broken_tiers), STATUS_USAGE);
    assert_null(c.pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiers),   cmocka_unit_test(test_workers),
        cmocka_unit_test(test_weights), cmocka_unit_test(test_broken),
        cmocka_unit_test(test_dropped),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
