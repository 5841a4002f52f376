/* How fast a queue gets on, and series that are made when they are asked for. */
#include "base/metrics.h"
#include "base/rate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>
#undef fail /* base/status.h has it */

/* n looks a quarter of a second apart, with so much work done before each. */
static void look(struct rate *r, int64_t *now_ms, int n, double work, bool busy)
{
    while (n--) {
        *now_ms += 250;
        rate_done(r, work);
        rate_look(r, busy, *now_ms);
    }
}

static void test_rate(void **state)
{
    struct rate r = {0};
    int64_t now_ms = 5000;

    assert_int_equal(rate_admit(&r, 1u << 30, 0.001), STATUS_OK); /* nothing is known */
    assert_int_equal(rate_retry_after_s(&r, 1e9), 1);
    rate_look(&r, true, now_ms);
    look(&r, &now_ms, 3, 100, true);
    assert_true(r.work_a_second == 0); /* not a second yet */
    look(&r, &now_ms, 1, 100, true);
    assert_true(r.work_a_second == 400);
    assert_int_equal(rate_admit(&r, 4000, 10.1), STATUS_OK);
    assert_int_equal(rate_admit(&r, 4000, 9.9), STATUS_QUEUE_FULL);
    assert_non_null(strstr(status_message(), "takes about 10.0 s; this request may wait 9.9 s"));
    assert_int_equal(rate_retry_after_s(&r, 4000), 5);
    assert_int_equal(rate_retry_after_s(&r, 4e6), 60);
    /* slower from now on */
    look(&r, &now_ms, 4, 0, true);
    assert_true(r.work_a_second == 320);
    /* idle time says nothing */
    look(&r, &now_ms, 1, 0, false);
    const double before = r.work_a_second;
    look(&r, &now_ms, 400, 0, false);
    assert_true(r.work_a_second == before);
    look(&r, &now_ms, 40, 100, true);
    assert_true(r.work_a_second > 380 && r.work_a_second < 401);
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
