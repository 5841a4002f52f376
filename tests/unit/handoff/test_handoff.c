/* Hand-offs end to end, over links in memory: what goes across, who is asked next, and that every
 * end gives every page back exactly once. */
#include "unit/handoff/nodes.h"

static struct net_loop *loop;

static int make_loop(void **state)
{
    return net_loop_create(&loop) == STATUS_OK ? 0 : -1;
}

static int end_loop(void **state)
{
    net_loop_destroy(&loop);
    return 0;
}

struct cluster {
    struct prefill p;
    struct decode d[2];
};

static const char *const both[] = {"decode-0", "decode-1", NULL};
static const char *const only_first[] = {"decode-0", NULL};
static const uint32_t n_layers = 3;

static void join(struct cluster *c, int i)
{
    assert_int_equal(peer_hub_join(c->p.hub.hub, c->d[i].hub.hub, "decode", true), STATUS_OK);
    WAIT(loop, c->p.hub.link && c->d[i].hub.link);
}

static void cluster_up(struct cluster *c)
{
    prefill_start(&c->p, loop);
    for (int i = 0; i < 2; i++) {
        char id[20];
        snprintf(id, sizeof id, "decode-%d", i);
        decode_start(&c->d[i], loop, id, 5000);
        join(c, i);
    }
}

static void expect_nothing_open(struct cluster *c)
{
    struct handoff_sender_stats s;

    WAIT(loop, (handoff_senders_stats(c->p.senders, &s), s.n_open == 0));
    for (int i = 0; i < 2; i++)
        if (c->d[i].receivers)
            WAIT(loop, decode_n_open(&c->d[i]) == 0);
}

static void cluster_down(struct cluster *c)
{
    expect_nothing_open(c);
    for (int i = 0; i < 2; i++)
        if (c->d[i].receivers)
            decode_stop(&c->d[i]);
    prefill_stop(&c->p);
}

static uint64_t slab_bytes_at(const struct decode *d)
{
    struct handoff_receiver_stats s;

    handoff_receivers_stats(d->receivers, &s);
    return s.n_slab_bytes_received;
}

/* ---- what goes across ---- */

static void test_overlap(void **state)
{
    const uint64_t slab = kv_slab_bytes(small_geometry);
    struct cluster c;
    struct source s;
    struct handoff_sender_stats stats;

    cluster_up(&c);
    source_open(&s, &c.p, 1, 100, both);
    WAIT(loop, s.n_opened == 1);
    assert_string_equal(s.opened_by, "decode-0");
    /* layers go out while the prefill runs: a layer's full pages at once, the tail page when it is
     * all there */
    source_layer_done(&s, 0, 64);
    WAIT(loop, slab_bytes_at(&c.d[0]) == 2 * slab);
    source_layer_done(&s, 1, 63);
    WAIT(loop, slab_bytes_at(&c.d[0]) == 3 * slab);
    source_layer_done(&s, 0, 99);
    WAIT(loop, slab_bytes_at(&c.d[0]) == 4 * slab);
    source_layer_done(&s, 0, 100);
    WAIT(loop, slab_bytes_at(&c.d[0]) == 5 * slab);
    turn_some(loop, 20);
    assert_int_equal(slab_bytes_at(&c.d[0]), 5 * slab);
    assert_int_equal(s.n_released, 0);
    source_finish(&s, 41);
    WAIT(loop, s.n_released == 1);
    assert_int_equal(s.n_accepted, 1);
    assert_int_equal(s.n_given_up, 0);
    const struct reception *r = &c.d[0].receptions[0];
    assert_int_equal(r->n_committed, 1);
    assert_int_equal(r->first_id, 41);
    assert_true(r->had_row);
    handoff_senders_stats(c.p.senders, &stats);
    assert_int_equal(stats.n_slab_bytes_sent, 4 * n_layers * slab); /* nothing twice */
    assert_int_equal(stats.n_pages_sent, 4);
    assert_int_equal(stats.n_accepted, 1);
    cluster_down(&c);
}

/* Prefill is over before the decode node answers. */
static void test_late_answer(void **state)
{
    struct cluster c;
    struct source s;

    cluster_up(&c);
    source_open(&s, &c.p, 2, 33, both);
    source_finish(&s, 40);
    WAIT(loop, s.n_released == 1);
    assert_int_equal(s.n_accepted, 1);
    assert_false(c.d[0].receptions[0].had_row);
    cluster_down(&c);
}

static void test_lengths(void **state)
{
    static const uint32_t lengths[] = {1, 31, 32, 33, 63, 64, 65, 1000};
    struct cluster c;

    cluster_up(&c);
    for (size_t i = 0; i < ARRAY_LENGTH(lengths); i++) {
        struct source s;
        source_open(&s, &c.p, 10 + i, lengths[i], NULL);
        source_finish(&s, 3);
        WAIT(loop, s.n_released == 1);
        assert_int_equal(s.n_accepted, 1);
    }
    cluster_down(&c);
}

static void test_held_pages(void **state)
{
    const uint64_t slab = kv_slab_bytes(small_geometry);
    static const struct {
        uint32_t n_tokens, n_held, n_sent;
    } cases[] = {{100, 2, 2}, {100, 3, 1}, {96, 3, 0}, {97, 3, 1}, {96, 1, 2}};

    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++)
        for (int late = 0; late < 2; late++) {
            struct cluster c;
            struct source s;
            struct handoff_sender_stats stats;
            cluster_up(&c);
            c.d[0].n_held = cases[i].n_held;
            source_open(&s, &c.p, 3, cases[i].n_tokens, both);
            if (late)
                WAIT(loop, s.n_opened == 1);
            source_finish(&s, 5);
            WAIT(loop, s.n_released == 1);
            assert_int_equal(s.n_accepted, 1);
            handoff_senders_stats(c.p.senders, &stats);
            assert_int_equal(stats.n_slab_bytes_sent, cases[i].n_sent * n_layers * slab);
            assert_true(stats.n_wire_bytes_sent - stats.n_slab_bytes_sent <=
                        cases[i].n_sent * n_layers * (WIRE_KV_HEADER_BYTES + WIRE_KV_CRC_BYTES));
            cluster_down(&c);
        }
}

static void test_at_once(void **state)
{
    struct cluster c;
    struct source s[20];

    cluster_up(&c);
    for (uint32_t i = 0; i < 20; i++)
        source_open(&s[i], &c.p, 100 + i, 40 + 17 * i, i % 2 ? both : NULL);
    for (uint32_t layer = 0; layer < n_layers; layer++)
        for (uint32_t i = 0; i < 20; i++) {
            source_layer_done(&s[i], layer, 40);
            net_loop_turn(loop);
        }
    for (uint32_t i = 0; i < 20; i++)
        source_finish(&s[i], i);
    for (uint32_t i = 0; i < 20; i++) {
        WAIT(loop, s[i].n_released == 1);
        assert_int_equal(s[i].n_accepted, 1);
    }
    cluster_down(&c);
}

/* ---- who is asked next ---- */

static void test_next_target(void **state)
{
    static const char *const with_strangers[] = {"decode-9", "prefill-0", "decode-0", "decode-1",
                                                 NULL};
    struct cluster c;
    struct source s;

    cluster_up(&c);
    c.d[0].refuses = true;
    source_open(&s, &c.p, 4, 70, with_strangers);
    source_layer_done(&s, 0, 64);
    WAIT(loop, s.n_opened == 1);
    assert_string_equal(s.opened_by, "decode-1");
    source_finish(&s, 5);
    WAIT(loop, s.n_released == 1);
    assert_int_equal(s.n_accepted, 1);
    assert_int_equal(c.d[0].n_opens, 1);
    cluster_down(&c);
}

static void test_nobody(void **state)
{
    static const char *const strangers[] = {"decode-7", "decode-8", NULL}, *const none[] = {NULL};
    const char *const *const lists[] = {both, NULL, strangers, none};

    for (int list = 0; list < 4; list++)
        for (int finished = 0; finished < 2; finished++) {
            struct cluster c;
            struct source s;
            cluster_up(&c);
            c.d[0].refuses = c.d[1].refuses = true;
            source_open(&s, &c.p, 5, 70, lists[list]);
            if (finished)
                source_finish(&s, 5);
            WAIT(loop, s.n_released == 1);
            assert_int_equal(s.n_given_up, 1);
            assert_int_equal(s.reason, STATUS_NO_DECODE_ROOM);
            assert_int_equal(s.n_accepted + s.n_opened, 0);
            if (list < 2)
                assert_non_null(strstr(s.words, "no_pages: no room"));
            cluster_down(&c);
        }
}

/* Whoever answers nothing is given up, and told so. */
static void test_silent_target(void **state)
{
    struct cluster c;
    struct source s;

    cluster_up(&c);
    c.d[0].silent = true;
    source_open(&s, &c.p, 6, 70, both);
    source_finish(&s, 5);
    WAIT(loop, s.n_released == 1);
    assert_int_equal(s.n_accepted, 1);
    assert_string_equal(s.opened_by, "decode-1");
    WAIT(loop, c.d[0].n_cancels == 1);
    cluster_down(&c);
}

/* The decode node cannot take what it was promised. */
static void test_commit_denied(void **state)
{
    struct cluster c;
    struct source s;

    cluster_up(&c);
    c.d[0].denies_commit = true;
    source_open(&s, &c.p, 7, 70, both);
    source_finish(&s, 5);
    WAIT(loop, s.n_released == 1);
    assert_int_equal(s.n_accepted, 1);
    assert_int_equal(s.n_opened, 2);
    assert_int_equal(c.d[0].receptions[0].n_ended, 1);
    assert_int_equal(c.d[1].receptions[0].n_committed, 1);
    cluster_down(&c);
}

/* ---- ends ---- */

static void test_cancel_everywhere(void **state)
{
    for (int finish_at = 0; finish_at < 12; finish_at += 2)
        for (int turns = 0; turns < 16; turns++) {
            struct cluster c;
            struct source s;
            cluster_up(&c);
            source_open(&s, &c.p, 8, 300, both);
            for (int t = 0; t < turns; t++) {
                if (t == finish_at)
                    source_finish(&s, 5);
                else
                    source_layer_done(&s, 0, (uint32_t)MIN(20 * t, 300));
                net_loop_turn(loop);
            }
            const bool was_over = s.n_released;
            if (s.sender) {
                handoff_send_cancel(s.sender);
                if (s.sender)
                    handoff_send_cancel(s.sender); /* twice is once */
            }
            WAIT(loop, s.n_released == 1);
            turn_some(loop, 10);
            assert_int_equal(s.n_released, 1);
            assert_int_equal(s.n_given_up, 0);
            assert_int_equal(s.n_accepted, was_over);
            expect_nothing_open(&c);
            uint32_t ended = 0, committed = 0;
            for (uint32_t i = 0; i < c.d[0].n_receptions; i++) {
                ended += c.d[0].receptions[i].n_ended;
                committed += c.d[0].receptions[i].n_committed;
                assert_int_equal(c.d[0].receptions[i].n_ended + c.d[0].receptions[i].n_committed,
                                 1);
            }
            assert_int_equal(ended + committed, c.d[0].n_receptions);
            cluster_down(&c);
        }
}

/* A slab that changed on its way: the decode node says so, and the next one gets everything. */
static void test_corrupt_slab(void **state)
{
    for (uint32_t layer = 0; layer < 2; layer++) { /* the frames in flight */
        struct cluster c;
        struct source s;
        cluster_up(&c);
        source_open(&s, &c.p, 9, 100, both);
        WAIT(loop, s.n_opened == 1);
        source_finish(&s, 5); /* the checksums are made; the bytes are still here */
        if (s.slabs)
            source_slab_at(&s, 2, layer)[77] ^= 8;
        WAIT(loop, c.d[0].receptions[0].n_ended == 1);
        assert_int_equal(c.d[0].receptions[0].reason, STATUS_BAD_FRAME);
        assert_int_equal(s.n_released, 0);
        source_slab_at(&s, 2, layer)[77] ^= 8;
        WAIT(loop, s.n_released == 1);
        assert_int_equal(s.n_accepted, 1);
        assert_string_equal(s.opened_by, "decode-1");
        assert_int_equal(c.d[1].receptions[0].n_committed, 1);
        cluster_down(&c);
    }
}

static void test_corrupt_everywhere(void **state)
{
    struct cluster c;
    struct source s;

    cluster_up(&c);
    source_open(&s, &c.p, 10, 100, only_first);
    WAIT(loop, s.n_opened == 1);
    source_finish(&s, 5);
    source_slab_at(&s, 0, 0)[0] ^= 1;
    WAIT(loop, s.n_released == 1);
    assert_int_equal(s.n_given_up, 1);
    assert_int_equal(s.reason, STATUS_HANDOFF_FAILED);
    assert_non_null(strstr(s.words, "checksum"));
    cluster_down(&c);
}

/* The first target is lost at every point, by its death or ours of the link. */
static void test_link_lost_everywhere(void **state)
{
    for (int how = 0; how < 2; how++)
        for (int turns = 0; turns < 14; turns++)
            for (int alone = 0; alone < 2; alone++) {
                struct cluster c;
                struct source s;
                cluster_up(&c);
                source_open(&s, &c.p, 11, 300, alone ? only_first : both);
                for (int t = 0; t < turns; t++) {
                    if (t == 5)
                        source_finish(&s, 5);
                    else if (t < 5)
                        source_layer_done(&s, 1, 32u * (uint32_t)t);
                    net_loop_turn(loop);
                }
                if (how == 0)
                    decode_stop(&c.d[0]);
                else
                    peer_link_close(peer_hub_find(c.p.hub.hub, "decode-0"), STATUS_CANCELLED);
                source_finish(&s, 5);
                WAIT(loop, s.n_released == 1);
                turn_some(loop, 10);
                assert_int_equal(s.n_released, 1);
                assert_int_equal(s.n_accepted + s.n_given_up, 1);
                if (!alone)
                    assert_int_equal(s.n_accepted, 1);
                if (s.n_given_up)
                    assert_true(s.reason == STATUS_PEER_LOST || s.reason == STATUS_NO_DECODE_ROOM);
                for (uint32_t i = 0; c.d[0].receivers && i < c.d[0].n_receptions; i++)
                    assert_int_equal(
                        c.d[0].receptions[i].n_ended + c.d[0].receptions[i].n_committed, 1);
                cluster_down(&c);
            }
}

/* The whole prefill side goes while pages are on their way. */
static void test_hub_gone(void **state)
{
    for (int turns = 0; turns < 10; turns++) {
        struct cluster c;
        struct source s;
        cluster_up(&c);
        source_open(&s, &c.p, 12, 1500, both);
        source_finish(&s, 5);
        turn_some(loop, turns);
        if (s.sender)
            handoff_send_cancel(s.sender);
        peer_hub_destroy(&c.p.hub.hub);
        WAIT(loop, s.n_released == 1);
        for (int i = 0; i < 2; i++)
            WAIT(loop, decode_n_open(&c.d[i]) == 0);
        for (uint32_t i = 0; i < c.d[0].n_receptions; i++)
            assert_int_equal(c.d[0].receptions[i].n_ended + c.d[0].receptions[i].n_committed, 1);
        cluster_down(&c);
    }
}

/* A long silent prefill keeps its reservation: the list of live handles speaks for it. */
static void test_lease_is_renewed(void **state)
{
    struct cluster c;
    struct source s;

    prefill_start(&c.p, loop);
    memset(c.d, 0, sizeof c.d);
    decode_start(&c.d[0], loop, "decode-0", 1600);
    join(&c, 0);
    source_open(&s, &c.p, 13, 100, only_first);
    WAIT(loop, s.n_opened == 1);
    turn_for(loop, 3200);
    assert_int_equal(decode_n_open(&c.d[0]), 1);
    source_finish(&s, 5);
    WAIT(loop, s.n_released == 1);
    assert_int_equal(s.n_accepted, 1);
    cluster_down(&c);
}

/* Anything may happen to anybody; in the end nothing is held and everything was told once. */
static void test_random(void **state)
{
    uint64_t x = 1;
    uint32_t n_accepted = 0;

    for (int round = 0; round < 60; round++) {
        struct cluster c;
        struct source s[8];
        bool finished[8] = {0};
        cluster_up(&c);
        for (uint32_t i = 0; i < 8; i++)
            source_open(&s[i], &c.p, 1000 + i, 20 + 61 * i, i % 3 ? both : NULL);
        for (int step = 0; step < 60; step++) {
            x = x * 6364136223846793005u + 1442695040888963407u;
            const uint32_t dice = (uint32_t)(x >> 33) % 100, who = (uint32_t)(x >> 40) % 8;
            const uint32_t d = (uint32_t)(x >> 50) % 2;
            if (dice < 40)
                source_layer_done(&s[who], (uint32_t)(x >> 45) % n_layers, s[who].n_tokens);
            else if (dice < 60)
                source_finish(&s[who], who), finished[who] = true;
            else if (dice < 64 && s[who].sender)
                handoff_send_cancel(s[who].sender);
            else if (dice < 67)
                c.d[d].refuses = !c.d[d].refuses;
            else if (dice < 69)
                c.d[d].n_held = (uint32_t)(x >> 52) % 2;
            else if (dice < 71 && peer_hub_find(c.p.hub.hub, d ? "decode-1" : "decode-0"))
                peer_link_close(peer_hub_find(c.p.hub.hub, d ? "decode-1" : "decode-0"),
                                STATUS_CANCELLED);
            else if (dice < 74 && !peer_hub_find(c.p.hub.hub, d ? "decode-1" : "decode-0"))
                join(&c, (int)d);
            if (c.d[d].n_held && s[0].n_tokens < 32)
                c.d[d].n_held = 0;
            net_loop_turn(loop);
        }
        for (uint32_t i = 0; i < 8; i++)
            if (s[i].sender && !finished[i])
                source_finish(&s[i], i);
        for (uint32_t i = 0; i < 8; i++) {
            WAIT(loop, s[i].n_released == 1);
            assert_true(s[i].n_accepted + s[i].n_given_up <= 1);
            n_accepted += s[i].n_accepted;
        }
        expect_nothing_open(&c);
        for (int d = 0; d < 2; d++)
            for (uint32_t i = 0; i < c.d[d].n_receptions; i++)
                assert_int_equal(c.d[d].receptions[i].n_ended + c.d[d].receptions[i].n_committed,
                                 1);
        cluster_down(&c);
    }
    assert_true(n_accepted > 60);
}

int main(void)
{
    const struct log_options quiet = {.level = LOG_ERROR + 1};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_overlap),
        cmocka_unit_test(test_late_answer),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_held_pages),
        cmocka_unit_test(test_at_once),
        cmocka_unit_test(test_next_target),
        cmocka_unit_test(test_nobody),
        cmocka_unit_test(test_silent_target),
        cmocka_unit_test(test_commit_denied),
        cmocka_unit_test(test_cancel_everywhere),
        cmocka_unit_test(test_corrupt_slab),
        cmocka_unit_test(test_corrupt_everywhere),
        cmocka_unit_test(test_link_lost_everywhere),
        cmocka_unit_test(test_hub_gone),
        cmocka_unit_test(test_lease_is_renewed),
        cmocka_unit_test(test_random),
    };

    log_setup(&quiet);
    return cmocka_run_group_tests(tests, make_loop, end_loop);
}
