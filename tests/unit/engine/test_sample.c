/* What the sampler draws, held against the rules of docs/EXACTNESS.md, 6, followed naively: sort
 * everything, cut, and walk. */
#include "base/checked.h"
#include "base/memory.h"
#include "engine/internal.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 5000, ROUNDS = 400, DRAWS = 6 };

static uint64_t seed = 1;

static uint32_t below(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % n;
}

struct entry {
    float z;
    uint32_t id, w;
};

static int by_order(const void *pa, const void *pb)
{
    const struct entry *a = pa, *b = pb;

    if (a->z != b->z)
        return a->z > b->z ? -1 : 1;
    return a->id < b->id ? -1 : 1;
}

static int by_id(const void *pa, const void *pb)
{
    const struct entry *a = pa, *b = pb;

    return a->id < b->id ? -1 : 1;
}

/* Of the candidates in order, how many top-k and top-p leave. */
static uint32_t n_left(const struct entry *e, uint32_t n, const struct sampling *p)
{
    uint64_t total = 0, sum = 0;

    if (p->top_k && p->top_k < n)
        n = p->top_k;
    if (p->top_p >= 1)
        return n;
    for (uint32_t i = 0; i < n; i++)
        total += e[i].w;
    for (uint32_t i = 0; i < n; i++)
        if ((double)(sum += e[i].w) >= p->top_p * (double)total)
            return i + 1;
    return n;
}

/* The first 64 bits of a block of Philox4x32-10. */
static uint64_t random_bits(uint64_t key, uint32_t index)
{
    uint32_t x[4] = {index, 0, 0, 0}, k[2] = {(uint32_t)key, (uint32_t)(key >> 32)};

    for (int round = 0; round < 10; round++) {
        const uint64_t a = x[0] * UINT64_C(0xD2511F53), b = x[2] * UINT64_C(0xCD9E8D57);
        const uint32_t y[4] = {(uint32_t)(b >> 32) ^ x[1] ^ k[0], (uint32_t)b,
                               (uint32_t)(a >> 32) ^ x[3] ^ k[1], (uint32_t)a};
        memcpy(x, y, sizeof x);
        k[0] += 0x9E3779B9u;
        k[1] += 0xBB67AE85u;
    }
    return x[0] | (uint64_t)x[1] << 32;
}

/* e: what is left, ascending in id. */
static uint32_t drawn(const struct entry *e, uint32_t n, double min_p, uint64_t random)
{
    uint64_t total = 0, sum = 0;
    uint32_t last = 0;

    for (uint32_t i = 0; i < n; i++)
        total += (double)e[i].w >= min_p * 0x1p30 ? e[i].w : 0;
    const uint64_t t = (uint64_t)((unsigned __int128)random * total >> 64);
    for (uint32_t i = 0; i < n && sum <= t; i++)
        if (e[i].w && (double)e[i].w >= min_p * 0x1p30) {
            sum += e[i].w;
            last = e[i].id;
        }
    return last;
}

static void fill_logits(float *z, uint32_t n, uint32_t style)
{
    for (uint32_t i = 0; i < n; i++) {
        z[i] = (float)((int32_t)below(20001) - 10000) * 1e-3f;
        if (style == 1) /* many ties */
            z[i] = (float)((int32_t)below(7) - 3);
        if (style == 2 && below(3)) /* masked */
            z[i] = -INFINITY;
        if (style == 3) /* flat */
            z[i] *= 1e-3f;
    }
    if (style == 2)
        z[below(n)] = 1;
}

static void test_draws(void **state)
{
    static float z[MOST];
    static uint32_t w[MOST];
    static struct entry entries[MOST];
    struct compute *c;

    (void)state;
    assert_int_equal(compute_create(1, NULL, &c), STATUS_OK);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        const uint32_t n = 1 + below(round % 4 ? 600 : MOST);
        struct sampler s;
        struct resume r = {.sampling = {.temperature = 0.05 + below(40) * 0.05,
                                        .top_k = below(3) ? below(round % 5 ? 60 : n + 3) : 0,
                                        .top_p = below(3) ? below(1001) * 1e-3 : 1,
                                        .min_p = below(3) ? 0 : below(100) * 1e-2,
                                        .repetition_penalty = 1}};
        assert_int_equal(sampler_init(&s, c, n), STATUS_OK);
        fill_logits(z, n, round % 6);
        const float zmax = compute_max(c, z, n);
        compute_sample_weights(c, z, n, zmax,
                               (float)(0x1.71547652b82fep+0 / r.sampling.temperature), w);
        for (uint32_t i = 0; i < n; i++)
            entries[i] = (struct entry){z[i], i, w[i]};
        qsort(entries, n, sizeof *entries, by_order);
        const uint32_t left = n_left(entries, n, &r.sampling);
        qsort(entries, left, sizeof *entries, by_id);
        for (uint32_t draw = 0; draw < DRAWS; draw++) {
            uint32_t id;
            assert_int_equal(sampler_draw(&s, z, &r, round, draw, NULL, NULL, &id), STATUS_OK);
            assert_int_equal(id, drawn(entries, left, r.sampling.min_p, random_bits(round, draw)));
        }
        sampler_deinit(&s);
    }
    compute_destroy(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_draws)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
