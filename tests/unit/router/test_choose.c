/* Who serves: decisions on candidates written by hand. */
#include "router/router.h"

#include "base/checked.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static const uint8_t model_a[REQUEST_DIGEST_BYTES] = {1}, model_b[REQUEST_DIGEST_BYTES] = {2};
static const uint8_t numerics_a[REQUEST_DIGEST_BYTES] = {3}, numerics_b[REQUEST_DIGEST_BYTES] = {4};

static struct candidate node(const char *id)
{
    return (struct candidate){.node_id = id,
                              .model_digest = model_a,
                              .numerics_digest = numerics_a,
                              .max_context_tokens = 2048,
                              .n_slots = 4,
                              .n_total_pages = 64,
                              .n_free_pages = UINT32_MAX};
}

static uint32_t order[8], n_order;

static int choose(const struct candidate *p, uint32_t n_p, const struct candidate *d, uint32_t n_d,
                  uint32_t n_tokens)
{
    const struct wanted w = {.n_tokens = n_tokens};

    n_order = 99;
    return choose_nodes(p, n_p, d, n_d, &w, order, &n_order);
}

static void test_nobody(void **state)
{
    struct candidate p = node("p"), d = node("d");

    assert_int_equal(choose(NULL, 0, NULL, 0, 1), -1);
    assert_int_equal(choose(&p, 1, NULL, 0, 1), -1);
    assert_int_equal(choose(NULL, 0, &d, 1, 1), -1);
    assert_int_equal(choose(&p, 1, &d, 1, 1), 0);
    assert_int_equal(n_order, 1);
}

static void test_size(void **state)
{
    struct candidate p = node("p"), d[2] = {node("d0"), node("d1")};

    assert_int_equal(choose(&p, 1, d, 2, 2048), 0);
    assert_int_equal(choose(&p, 1, d, 2, 2049), -1); /* the context */
    d[0].n_total_pages = 10;
    assert_int_equal(choose(&p, 1, d, 2, 320), 0);
    assert_int_equal(n_order, 2);
    assert_int_equal(choose(&p, 1, d, 2, 321), 0); /* a whole request must fit the pool */
    assert_int_equal(n_order, 1);
    assert_int_equal(order[0], 1);
    p.n_total_pages = 10;
    assert_int_equal(choose(&p, 1, d, 2, 321), -1);
}

static void test_draining(void **state)
{
    struct candidate p[2] = {node("p0"), node("p1")}, d[2] = {node("d0"), node("d1")};

    p[0].draining = d[1].draining = true;
    assert_int_equal(choose(p, 2, d, 2, 10), 1);
    assert_int_equal(n_order, 1);
    assert_int_equal(order[0], 0);
    d[0].draining = true;
    assert_int_equal(choose(p, 2, d, 2, 10), -1);
}

/* What is suspected of crashing nodes goes to one pair alone, and that pair takes no others. */
static void test_suspects(void **state)
{
    struct candidate p[2] = {node("p0"), node("p1")}, d[2] = {node("d0"), node("d1")};
    const struct wanted suspect = {.n_tokens = 10, .suspect = true};

    p[0].n_assigned = 3;
    p[1].n_assigned = 1;
    p[1].n_assigned_tokens = 1000;
    d[0].n_assigned = 2;
    assert_int_equal(choose_nodes(p, 2, d, 2, &suspect, order, &n_order), 1);
    assert_int_equal(n_order, 1);
    assert_int_equal(order[0], 1);
    p[1].probation = d[1].probation = true;
    assert_int_equal(choose(p, 2, d, 2, 10), 0);
    assert_int_equal(n_order, 1);
    assert_int_equal(order[0], 0);
    d[0].probation = true;
    assert_int_equal(choose(p, 2, d, 2, 10), -1);
}

static void test_resumed_and_moved(void **state)
{
    struct candidate p[2] = {node("p0"), node("p1")}, d[2] = {node("d0"), node("d1")};
    struct wanted w = {.n_tokens = 10, .max_resumed = 2};

    p[0].n_resumed = 2;
    p[1].n_resumed = 1;
    assert_int_equal(choose_nodes(p, 2, d, 2, &w, order, &n_order), 1);
    p[1].n_resumed = 2;
    assert_int_equal(choose_nodes(p, 2, d, 2, &w, order, &n_order), -1);
    w = (struct wanted){.n_tokens = 10, .not_decode = "d0"};
    assert_int_equal(choose_nodes(p, 2, d, 2, &w, order, &n_order), 0);
    assert_int_equal(n_order, 1);
    assert_int_equal(order[0], 1);
    assert_int_equal(choose_nodes(p, 2, d, 1, &w, order, &n_order), -1);
}

static void test_prefix(void **state)
{
    struct candidate p[2] = {node("p0"), node("p1")}, d[2] = {node("d0"), node("d1")};
    struct wanted w = {.policy = POLICY_PREFIX, .n_tokens = 1100, .n_prompt = 1000};

    p[1].n_prefix_tokens = d[1].n_prefix_tokens = 960;
    assert_int_equal(choose_nodes(p, 2, d, 2, &w, order, &n_order), 1);
    assert_int_equal(order[0], 1);
    assert_int_equal(order[1], 0);
    /* waiting costs more than computing it again */
    p[1].n_assigned_tokens = 2000;
    assert_int_equal(choose_nodes(p, 2, d, 2, &w, order, &n_order), 0);
    p[1].n_assigned_tokens = 900;
    assert_int_equal(choose_nodes(p, 2, d, 2, &w, order, &n_order), 1);
    d[1].n_assigned = 2; /* of four slots */
    assert_int_equal(choose_nodes(p, 2, d, 2, &w, order, &n_order), 1);
    assert_int_equal(order[0], 0);
    /* the other policies do not look at prefixes */
    w.policy = POLICY_LEAST_LOADED;
    assert_int_equal(choose_nodes(p, 2, d, 2, &w, order, &n_order), 0);
    assert_int_equal(order[0], 0);
}

static void test_round_robin(void **state)
{
    struct candidate p[3] = {node("p0"), node("p1"), node("p2")}, d[2] = {node("d0"), node("d1")};
    struct wanted w = {.policy = POLICY_ROUND_ROBIN, .n_tokens = 10};

    p[0].n_assigned_tokens = 5000;
    for (w.turn = 0; w.turn < 12; w.turn++) {
        assert_int_equal(choose_nodes(p, 3, d, 2, &w, order, &n_order), w.turn % 3);
        assert_int_equal(order[0], w.turn % 2);
    }
    p[1].draining = true; /* who cannot is passed over */
    w.turn = 1;
    assert_int_equal(choose_nodes(p, 3, d, 2, &w, order, &n_order), 2);
}

/* A stream never leaves its cell. */
static void test_cells(void **state)
{
    struct candidate p[2] = {node("p0"), node("p1")}, d[3] = {node("d0"), node("d1"), node("d2")};

    p[1].model_digest = d[2].model_digest = model_b;
    d[1].numerics_digest = numerics_b;
    assert_int_equal(choose(p, 2, d, 3, 10), 0);
    assert_int_equal(n_order, 1);
    assert_int_equal(order[0], 0);
    p[0].n_assigned_tokens = 100; /* the other cell is idle */
    assert_int_equal(choose(p, 2, d, 3, 10), 1);
    assert_int_equal(n_order, 1);
    assert_int_equal(order[0], 2);
    d[2].max_context_tokens = 1024; /* and no cell any more */
    assert_int_equal(choose(p, 2, d, 3, 10), 0);
    d[0].n_running = 4; /* the first cell is full, the second broken */
    assert_int_equal(choose(p, 2, d, 3, 10), -1);
    /* what one cell has begun, it ends, or nobody does */
    d[2].max_context_tokens = 2048;
    const struct candidate begun_in = node("gone");
    const struct wanted w = {.n_tokens = 10, .cell = &begun_in};
    assert_int_equal(choose(p, 2, d, 3, 10), 1);
    assert_int_equal(choose_nodes(p, 2, d, 3, &w, order, &n_order), -1);
    d[0].n_running = 0;
    assert_int_equal(choose_nodes(p, 2, d, 3, &w, order, &n_order), 0);
    d[0].takes_whole = d[2].takes_whole = true;
    struct wanted short_one = {.n_tokens = 10, .n_prompt = 5, .n_known = 5, .max_local = 32};
    d[0].n_running = 1;
    assert_int_equal(choose_local(NULL, d, 3, &short_one), 2);
    short_one.cell = &begun_in;
    assert_int_equal(choose_local(NULL, d, 3, &short_one), 0);
}

static void test_load(void **state)
{
    struct candidate p[3] = {node("p0"), node("p1"), node("p2")},
                     d[3] = {node("d0"), node("d1"), node("d2")};

    p[0].n_assigned_tokens = 500;
    p[1].n_assigned_tokens = 300;
    p[2].n_assigned_tokens = 300;
    p[1].n_assigned = 3;
    p[2].n_assigned = 2;
    d[0].n_running = 3; /* what it says, and what we have given it: the greater counts */
    d[1].n_assigned = 1;
    d[2].n_assigned = 2;
    d[2].n_running = 1;
    assert_int_equal(choose(p, 3, d, 3, 10), 2);
    assert_int_equal(n_order, 3);
    assert_int_equal(order[0], 1);
    assert_int_equal(order[1], 2);
    assert_int_equal(order[2], 0);
    d[1].n_slots = 1; /* all its slots are spoken for: it would refuse */
    assert_int_equal(choose(p, 3, d, 3, 10), 2);
    assert_int_equal(n_order, 2);
    assert_int_equal(order[0], 2);
    for (int i = 0; i < 3; i++)
        p[i].n_assigned = 8; /* twice its slots is enough in front of a prefill node */
    assert_int_equal(choose(p, 3, d, 3, 10), -1);
    p[1].n_assigned = 7;
    assert_int_equal(choose(p, 3, d, 3, 10), 1);
}

static void test_local(void **state)
{
    struct candidate p = node("p"), d[3] = {node("d0"), node("d1"), node("d2")};
    struct wanted w = {.policy = POLICY_PREFIX,
                       .n_tokens = 300,
                       .n_reserved = 200,
                       .n_prompt = 100,
                       .n_known = 100,
                       .max_local = 32};

    d[0].takes_whole = d[1].takes_whole = true;
    d[2].n_prefix_tokens = 96; /* but it speaks an older version */
    d[1].n_prefix_tokens = 64;
    p.n_assigned_tokens = 1000;
    assert_int_equal(choose_local(&p, d, 3, &w), -1);
    d[1].n_prefix_tokens = 96;
    assert_int_equal(choose_local(&p, d, 3, &w), 1);
    assert_int_equal(choose_local(NULL, d, 3, &w), 1);
    p.n_assigned_tokens = 100; /* it is soon there */
    assert_int_equal(choose_local(&p, d, 3, &w), -1);
    p.n_assigned_tokens = 1000;
    w.max_local = 0;
    assert_int_equal(choose_local(&p, d, 3, &w), -1);
    d[1].n_prefix_tokens = 128; /* all of it: never is never */
    assert_int_equal(choose_local(&p, d, 3, &w), -1);
    d[1].n_prefix_tokens = 96;
    w.max_local = 3;
    assert_int_equal(choose_local(&p, d, 3, &w), -1);
    w.max_local = 32;
    w.n_known = 120; /* some of the answer is there already */
    assert_int_equal(choose_local(&p, d, 3, &w), 1);
    w.n_known = 129;
    assert_int_equal(choose_local(&p, d, 3, &w), -1);
    w.n_known = w.n_prompt = 20;
    d[1].n_prefix_tokens = d[2].n_prefix_tokens = 0;
    d[0].n_assigned = 1;
    assert_int_equal(choose_local(&p, d, 3, &w), 1);
    d[1].n_assigned = 3;
    assert_int_equal(choose_local(&p, d, 3, &w), 0);
    w.not_decode = "d0";
    assert_int_equal(choose_local(&p, d, 3, &w), 1);
    d[1].n_free_pages = 1;
    assert_int_equal(choose_local(&p, d, 3, &w), -1);
    w.not_decode = NULL;
    w.suspect = true;
    assert_int_equal(choose_local(&p, d, 3, &w), -1);
    w.suspect = false;
    d[0].draining = true;
    assert_int_equal(choose_local(&p, d, 3, &w), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nobody),
        cmocka_unit_test(test_size),
        cmocka_unit_test(test_draining),
        cmocka_unit_test(test_prefix),
        cmocka_unit_test(test_round_robin),
        cmocka_unit_test(test_suspects),
        cmocka_unit_test(test_resumed_and_moved),
        cmocka_unit_test(test_cells),
        cmocka_unit_test(test_load),
        cmocka_unit_test(test_local),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
