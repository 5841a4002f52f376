/* The sender's table as a pure function: every cell of it, and long random lives against what must
 * never happen. */
#include "handoff/handoff.h"

#include "base/checked.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { N_STATES = SENDER_CLOSED + 1, N_EVENTS = SENDER_LEASE_OVER + 1 };

/* PROTOCOL's rows, written again. NONE: the event changes nothing and is counted. */
#define NONE                                                                                       \
    {                                                                                              \
        -1, SENDER_COUNT                                                                           \
    }
static const struct {
    int to;
    enum sender_action action;
} expected[N_STATES][N_EVENTS] = {
    [SENDER_OPENING] = {[SENDER_LAYER_DONE] = {SENDER_OPENING, SENDER_NOTE_LAYER},
                        [SENDER_PREFILL_DONE] = {SENDER_OPENING, SENDER_NOTE_DONE},
                        [SENDER_READY] = {SENDER_STREAMING, SENDER_SEND_ALL_SO_FAR},
                        [SENDER_ALL_SENT] = NONE,
                        [SENDER_ACCEPTED] = NONE,
                        [SENDER_REFUSED] = {SENDER_CLOSED, SENDER_TRY_NEXT},
                        [SENDER_FAILED] = {SENDER_CLOSED, SENDER_TRY_NEXT},
                        [SENDER_CANCEL] = {SENDER_CLOSED, SENDER_SEND_CANCEL},
                        [SENDER_LINK_LOST] = {SENDER_CLOSED, SENDER_TRY_NEXT},
                        [SENDER_LEASE_OVER] = {SENDER_CLOSED, SENDER_CANCEL_TRY_NEXT}},
    [SENDER_STREAMING] = {[SENDER_LAYER_DONE] = {SENDER_STREAMING, SENDER_SEND_LAYER},
                          [SENDER_PREFILL_DONE] = {SENDER_STREAMING, SENDER_NOTE_DONE},
                          [SENDER_READY] = NONE,
                          [SENDER_ALL_SENT] = {SENDER_COMMITTING, SENDER_SEND_COMMIT},
                          [SENDER_ACCEPTED] = NONE,
                          [SENDER_REFUSED] = {SENDER_CLOSED, SENDER_TRY_NEXT},
                          [SENDER_FAILED] = {SENDER_CLOSED, SENDER_TRY_NEXT},
                          [SENDER_CANCEL] = {SENDER_CLOSED, SENDER_SEND_CANCEL},
                          [SENDER_LINK_LOST] = {SENDER_CLOSED, SENDER_TRY_NEXT},
                          [SENDER_LEASE_OVER] = {SENDER_CLOSED, SENDER_CANCEL_TRY_NEXT}},
    [SENDER_COMMITTING] = {[SENDER_LAYER_DONE] = NONE,
                           [SENDER_PREFILL_DONE] = NONE,
                           [SENDER_READY] = NONE,
                           [SENDER_ALL_SENT] = NONE,
                           [SENDER_ACCEPTED] = {SENDER_CLOSED, SENDER_RELEASE},
                           [SENDER_REFUSED] = {SENDER_CLOSED, SENDER_TRY_NEXT},
                           [SENDER_FAILED] = {SENDER_CLOSED, SENDER_TRY_NEXT},
                           [SENDER_CANCEL] = {SENDER_CLOSED, SENDER_SEND_CANCEL},
                           [SENDER_LINK_LOST] = {SENDER_CLOSED, SENDER_TRY_NEXT},
                           [SENDER_LEASE_OVER] = {SENDER_CLOSED, SENDER_CANCEL_TRY_NEXT}},
    [SENDER_CLOSED] = {[SENDER_LAYER_DONE] = NONE,
                       [SENDER_PREFILL_DONE] = NONE,
                       [SENDER_READY] = {SENDER_CLOSED, SENDER_LATE_READY},
                       [SENDER_ALL_SENT] = NONE,
                       [SENDER_ACCEPTED] = NONE,
                       [SENDER_REFUSED] = NONE,
                       [SENDER_FAILED] = NONE,
                       [SENDER_CANCEL] = NONE,
                       [SENDER_LINK_LOST] = NONE,
                       [SENDER_LEASE_OVER] = NONE},
};

static void test_every_cell(void **state)
{
    for (int s = 0; s < N_STATES; s++)
        for (int e = 0; e < N_EVENTS; e++) {
            enum sender_state now = (enum sender_state)s;
            assert_int_equal(sender_next(&now, (enum sender_event)e), expected[s][e].action);
            assert_int_equal((int)now, expected[s][e].to < 0 ? s : expected[s][e].to);
        }
}

static uint64_t x = 88172645463325252u;

static uint32_t below(uint32_t n)
{
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return (uint32_t)(x >> 11) % n;
}

/* A million events on lives that begin again when one is over, as a sender with further targets
 * does. */
static void test_random_lives(void **state)
{
    uint32_t n_committed = 0, n_released = 0;

    for (int life = 0; life < 100000; life++) {
        enum sender_state now = SENDER_OPENING;
        bool ready = false, committed = false, over = false;
        uint32_t n_ends = 0;
        for (int step = 0; step < 12; step++) {
            const enum sender_event event = (enum sender_event)below(N_EVENTS);
            const enum sender_state before = now;
            const enum sender_action action = sender_next(&now, event);
            /* nothing leaves CLOSED, and whatever enters it ends the try exactly once */
            assert_false(before == SENDER_CLOSED && now != SENDER_CLOSED);
            if (before != SENDER_CLOSED && now == SENDER_CLOSED) {
                n_ends++;
                over = true;
                assert_true(action == SENDER_RELEASE || action == SENDER_TRY_NEXT ||
                            action == SENDER_SEND_CANCEL || action == SENDER_CANCEL_TRY_NEXT);
            }
            ready |= action == SENDER_SEND_ALL_SO_FAR;
            /* no page and no commit before the decode node's reservation, no commit twice */
            if (action == SENDER_SEND_LAYER)
                assert_true(ready && !over);
            if (action == SENDER_SEND_COMMIT) {
                assert_true(ready && !committed && !over);
                committed = true;
                n_committed++;
            }
            /* pages are let go by the decode node's word only, and only after the commit */
            if (action == SENDER_RELEASE) {
                assert_true(committed && event == SENDER_ACCEPTED);
                n_released++;
            }
            /* who may still hold a reservation there is told */
            if (event == SENDER_CANCEL && before != SENDER_CLOSED)
                assert_int_equal(action, SENDER_SEND_CANCEL);
            if (event == SENDER_LEASE_OVER && before != SENDER_CLOSED)
                assert_int_equal(action, SENDER_CANCEL_TRY_NEXT);
            if (before == SENDER_CLOSED)
                assert_true(action == SENDER_COUNT || action == SENDER_LATE_READY);
        }
        assert_true(n_ends <= 1);
    }
    assert_true(n_committed > 100 && n_released > 10); /* the walk went somewhere */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_cell),
        cmocka_unit_test(test_random_lives),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
