/* How fast a queue gets on, and series that are made when they are asked for. */
#include "base/metrics.h"
#include "base/rate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>
#undef fail /* base/status.h has it */

/* n looks a quarter of a second apart, while so many tokens wait. */
static void look(struct rate *r, int64_t *now_ms, int n, uint64_t n_waiting)
{
    while (n--) {
        *now_ms += 250;
        rate_look(r, n_waiting, *now_ms);
    }
}

static void test_rate(void **state)
{
    struct rate r = {0};
    int64_t now_ms = 5000;

    assert_int_equal(rate_admit(&r, 1u << 30, 0.001), STATUS_OK); /* nothing is known */
    assert_int_equal(rate_retry_after_s(&r, 1u << 30), 1);
    rate_look(&r, 4000, now_ms);
    rate_done(&r, 400);
    look(&r, &now_ms, 3, 4000);
    assert_true(r.tokens_a_second == 0); /* not a second yet */
    look(&r, &now_ms, 1, 4000);
    assert_true(r.tokens_a_second == 400);
    assert_int_equal(rate_admit(&r, 4000, 10.1), STATUS_OK);
    assert_int_equal(rate_admit(&r, 4000, 9.9), STATUS_QUEUE_FULL);
    assert_non_null(strstr(status_message(), "takes 10.0 s or more; this request may wait 9.9 s"));
    assert_int_equal(rate_retry_after_s(&r, 4000), 5);
    assert_int_equal(rate_retry_after_s(&r, 4000000), 60);
    /* a long prompt is being read: that it is not done says nothing, what it took counts at last */
    look(&r, &now_ms, 80, 4000);
    assert_true(r.tokens_a_second == 400);
    rate_done(&r, 9000);
    look(&r, &now_ms, 1, 300);
    assert_true(r.tokens_a_second > 440 && r.tokens_a_second < 450);
    /* short ones say nothing, and neither do they count as time */
    const double before = r.tokens_a_second;
    look(&r, &now_ms, 1, 100);
    for (int i = 0; i < 100; i++) {
        rate_done(&r, 12);
        look(&r, &now_ms, 4, 100);
    }
    assert_true(r.tokens_a_second == before);
    /* slower nodes are believed little by little */
    look(&r, &now_ms, 1, 5000);
    rate_done(&r, 300);
    look(&r, &now_ms, 12, 5000);
    assert_true(r.tokens_a_second == 0.9 * before);
    for (int i = 0; i < 40; i++) {
        rate_done(&r, 300);
        look(&r, &now_ms, 12, 5000);
    }
    assert_true(r.tokens_a_second > 99 && r.tokens_a_second < 130);
}

static void fill(const struct metrics_family *f, struct metrics_samples *out)
{
    const int *n = f->context;

    for (int i = 0; i < *n; i++)
        metrics_sample(out, i ? "peer=\"b\"" : "peer=\"a\"", 1.5 + i);
}

static void test_families(void **state)
{
    struct metrics *m = metrics_create("role=\"x\"");
    int n = 0;
    struct metrics_family f = {
        .name = "things", .type = "gauge", .help = "What there is.", .fill = fill, .context = &n};
    struct buffer out = {0};

    metrics_add_family(m, &f);
    metrics_render(m, &out);
    assert_null(strstr(out.data, "things")); /* none: not even its help */
    n = 2;
    buffer_clear(&out);
    metrics_render(m, &out);
    assert_non_null(strstr(out.data, "# HELP baton_things What there is.\n"
                                     "# TYPE baton_things gauge\n"
                                     "baton_things{role=\"x\",peer=\"a\"} 1.5\n"
                                     "baton_things{role=\"x\",peer=\"b\"} 2.5\n"));
    metrics_remove_family(m, &f);
    metrics_remove_family(m, &f); /* nothing happens */
    buffer_clear(&out);
    metrics_render(m, &out);
    assert_null(strstr(out.data, "things"));
    assert_non_null(strstr(out.data, "process_open_fds{role=\"x\"} "));
    buffer_deinit(&out);
    metrics_destroy(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rate),
        cmocka_unit_test(test_families),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
