/* Links: hello and every reason to refuse it, liveness, redialling, messages. */
#include "unit/peer/hubs.h"

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

enum how { OVER_MEMORY, OVER_TCP };

static void link_hubs(struct test_hub *from, struct test_hub *to, const char *expect_role,
                      bool with_bulk, enum how how)
{
    if (how == OVER_MEMORY) {
        assert_int_equal(peer_hub_join(from->hub, to->hub, expect_role, with_bulk), STATUS_OK);
    } else {
        hub_listen(to);
        assert_int_equal(
            peer_hub_dial(from->hub, net_listener_address(to->listener), expect_role, with_bulk),
            STATUS_OK);
    }
}

static void test_up(void **state)
{
    for (int how = OVER_MEMORY; how <= OVER_TCP; how++)
        for (int bulk = 0; bulk < 2; bulk++) {
            struct test_hub a = {.stats = {.n_running = 3, .n_free_pages = 9}};
            struct test_hub b = {.stats = {.n_waiting = 5, .draining = true}};
            const struct wire_hello ha = model_hello("prefill-0", "prefill"),
                                    hb = model_hello("decode-0", "decode");
            hub_start_with(&a, loop, &ha, NULL, quick_limits);
            hub_start_with(&b, loop, &hb, NULL, quick_limits);
            link_hubs(&a, &b, "decode", bulk, how);
            WAIT(loop, a.link && b.link);
            assert_string_equal(peer_link_id(a.link), "decode-0");
            assert_string_equal(peer_link_id(b.link), "prefill-0");
            assert_int_equal(peer_link_hello(b.link)->epoch, ha.epoch);
            assert_int_equal(peer_link_has_bulk(a.link), bulk);
            assert_int_equal(peer_link_has_bulk(b.link), bulk);
            assert_ptr_equal(peer_hub_find(a.hub, "decode-0"), a.link);
            assert_null(peer_hub_find(a.hub, "prefill-0"));
            assert_ptr_equal(peer_hub_next(b.hub, NULL), b.link);
            assert_null(peer_hub_next(b.hub, b.link));
            /* each learns how the other is */
            WAIT(loop, peer_link_stats(b.link)->n_running == 3 &&
                           peer_link_stats(a.link)->n_waiting == 5);
            assert_int_equal(peer_link_stats(b.link)->n_free_pages, 9);
            assert_true(peer_link_stats(a.link)->draining);
            WAIT(loop, peer_link_round_trip_ms(a.link) > 0);
            hub_stop(&a);
            WAIT(loop, b.n_down == 1 && !b.link);
            assert_int_equal(b.last_reason, STATUS_PEER_LOST);
            assert_int_equal(a.n_down, 0); /* destroying is without a word */
            hub_stop(&b);
        }
}

/* ---- who is refused, and in what words ---- */

static struct wire_hello changed;

static void change_model(void)
{
    changed.model_digest[0] ^= 1;
}
static void change_numerics(void)
{
    changed.numerics_digest[31] ^= 1;
}
static void change_tokenizer(void)
{
    changed.tokenizer_digest[9] ^= 1;
}
static void change_layers(void)
{
    changed.kv.n_layers++;
}
static void change_kv_type(void)
{
    changed.kv_type++;
}
static void change_context(void)
{
    changed.max_context_tokens--;
}
static void change_role(void)
{
    strcpy(changed.role, "router");
}
static void change_id(void)
{
    strcpy(changed.node_id, "prefill-0");
}

static void test_refused(void **state)
{
    static const struct {
        void (*change)(void);
        enum status reason;
        const char *words;
    } cases[] = {
        {change_model, STATUS_CELL_MISMATCH, "model"},
        {change_numerics, STATUS_CELL_MISMATCH, "numerics"},
        {change_tokenizer, STATUS_CELL_MISMATCH, "tokenizer"},
        {change_layers, STATUS_CELL_MISMATCH, "geometry"},
        {change_kv_type, STATUS_CELL_MISMATCH, "geometry"},
        {change_context, STATUS_CELL_MISMATCH, "context"},
        {change_role, STATUS_CELL_MISMATCH, "a decode node"},
        {change_id, STATUS_DUPLICATE_NODE, "our own"},
    };

    for (int how = OVER_MEMORY; how <= OVER_TCP; how++)
        for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
            struct test_hub a = {0}, b = {0};
            struct raw_peer raw = {0};
            struct buffer keep = {0};
            struct wire_frame f;
            struct wire_notice n;
            const struct wire_hello ha = model_hello("prefill-0", "prefill");
            changed = model_hello("decode-0", "decode");
            cases[i].change();
            hub_start_with(&a, loop, &ha, NULL, quick_limits);
            hub_start_with(&b, loop, &changed, NULL, quick_limits);
            link_hubs(&a, &b, "decode", true, how);
            WAIT(loop, hub_count(&b, "peer_links_refused_total") > 0);
            turn_for(loop, 30);
            assert_int_equal(a.n_up + b.n_up, 0);
            /* the words, as whoever dials reads them */
            hub_listen(&b);
            struct wire_hello same = ha;
            raw_dial(&raw, &b);
            same.version_min = same.version_max = 1;
            same.link = 1;
            strcpy(same.expect_role, "decode");
            raw_send_hello(&raw, &same);
            raw_expect(&raw, WIRE_REFUSE, &f, &keep);
            assert_int_equal(wire_decode_notice(&f, &n), STATUS_OK);
            assert_int_equal(n.reason, cases[i].reason);
            assert_non_null(strstr(n.message, cases[i].words));
            WAIT(loop, raw.broken); /* and then it is closed */
            raw_close(&raw);
            buffer_deinit(&keep);
            hub_stop(&a);
            hub_stop(&b);
        }
}

static void expect_refusal(struct raw_peer *raw, enum status reason, const char *words)
{
    struct buffer keep = {0};
    struct wire_frame f;
    struct wire_notice n;

    raw_expect(raw, WIRE_REFUSE, &f, &keep);
    assert_int_equal(wire_decode_notice(&f, &n), STATUS_OK);
    assert_int_equal(n.reason, reason);
    assert_non_null(strstr(n.message, words));
    WAIT(loop, raw->broken);
    buffer_deinit(&keep);
}

static void test_version_and_twins(void **state)
{
    struct test_hub b = {0};
    const struct wire_hello hb = model_hello("decode-0", "decode");
    struct wire_hello mine = model_hello("prefill-0", "prefill"), other;
    struct raw_peer first = {0}, second = {0}, third = {0}, fourth = {0};

    hub_start(&b, loop, &hb);
    hub_listen(&b);
    other = mine;
    other.version_min = other.version_max = 3;
    raw_dial(&first, &b);
    raw_send_hello(&first, &other);
    expect_refusal(&first, STATUS_VERSION_MISMATCH, "versions 1 to 2");
    raw_close(&first);

    first = (struct raw_peer){0};
    raw_link(&first, NULL, &b, &mine);
    /* somebody else under the same name */
    other = mine;
    other.epoch++;
    raw_dial(&second, &b);
    raw_send_hello(&second, &other);
    expect_refusal(&second, STATUS_DUPLICATE_NODE, "linked already");
    assert_int_equal(b.n_down, 0);
    /* the same process again: it knows best that its old connection is dead */
    raw_dial(&third, &b);
    mine.link++;
    raw_send_hello(&third, &mine);
    WAIT(loop, b.n_up == 2 && first.broken);
    assert_int_equal(b.n_down, 1);
    assert_non_null(b.link);
    /* a bulk connection that belongs to none */
    raw_dial(&fourth, &b);
    other = mine;
    other.bulk = true;
    other.link = 12345;
    raw_send_hello(&fourth, &other);
    expect_refusal(&fourth, STATUS_BAD_MESSAGE, "bulk");
    raw_close(&first);
    raw_close(&second);
    raw_close(&third);
    raw_close(&fourth);
    hub_stop(&b);
}

/* Clients without a model, and without a tokenizer. */
static void test_client(void **state)
{
    struct test_hub b = {0};
    const struct wire_hello hb = model_hello("decode-0", "decode");
    struct wire_hello mine = {.node_id = "client-0", .role = "client", .epoch = 1};
    struct raw_peer raw = {0};

    hub_start(&b, loop, &hb);
    hub_listen(&b);
    raw_link(&raw, NULL, &b, &mine);
    assert_string_equal(peer_link_hello(b.link)->role, "client");
    raw_close(&raw);
    WAIT(loop, b.n_down == 1);
    hub_stop(&b);
}

/* ---- who is alive ---- */

static void test_silence(void **state)
{
    struct test_hub b = {0};
    const struct wire_hello hb = model_hello("decode-0", "decode");
    struct wire_hello mine = {.node_id = "client-0", .role = "client", .epoch = 1};
    struct raw_peer raw = {0};

    hub_start_with(&b, loop, &hb, NULL, quick_limits);
    hub_listen(&b);
    raw_link(&raw, NULL, &b, &mine);
    for (int i = 0; i < 12; i++) { /* a byte now and then is a life */
        raw_ping(&raw);
        turn_for(loop, 50);
    }
    assert_int_equal(b.n_down, 0);
    const int64_t since_ms = clock_now_ms();
    WAIT(loop, b.n_down);
    assert_true(clock_now_ms() - since_ms >= quick_limits.dead_ms / 2);
    assert_int_equal(b.last_reason, STATUS_PEER_LOST);
    assert_non_null(strstr(b.last_words, "not a byte"));
    WAIT(loop, raw.broken);
    raw_close(&raw);
    hub_stop(&b);
}

static void test_stuck(void **state)
{
    struct test_hub a = {0}, b = {.stats = {.busy = true, .progress = 5}};
    const struct wire_hello ha = model_hello("prefill-0", "prefill"),
                            hb = model_hello("decode-0", "decode");

    hub_start_with(&a, loop, &ha, NULL, quick_limits);
    hub_start_with(&b, loop, &hb, NULL, quick_limits);
    link_hubs(&a, &b, "decode", true, OVER_MEMORY);
    WAIT(loop, a.link);
    for (int i = 0; i < 20; i++) { /* busy and getting on */
        b.stats.progress++;
        turn_for(loop, 50);
    }
    assert_int_equal(a.n_down, 0);
    WAIT(loop, a.n_down);
    assert_non_null(strstr(a.last_words, "without progress"));
    hub_stop(&a);
    hub_stop(&b);
}

/* A loop that was away judges nobody by what it has not read yet. */
static void test_own_absence(void **state)
{
    struct test_hub a = {0}, b = {0};
    const struct wire_hello ha = model_hello("prefill-0", "prefill"),
                            hb = model_hello("decode-0", "decode");

    hub_start_with(&a, loop, &ha, NULL, quick_limits);
    hub_start_with(&b, loop, &hb, NULL, quick_limits);
    link_hubs(&a, &b, "decode", true, OVER_TCP);
    WAIT(loop, a.link && b.link);
    for (int i = 0; i < 3; i++) {
        usleep(2 * quick_limits.dead_ms * 1000);
        turn_for(loop, 60);
    }
    assert_int_equal(a.n_down + b.n_down, 0);
    hub_stop(&a);
    hub_stop(&b);
}

/* A loop whose every turn takes long finds something unsent each time it looks: that is no
 * standstill. */
static void test_slow_turns(void **state)
{
    struct test_hub a = {0}, b = {0};
    const struct wire_hello ha = model_hello("prefill-0", "prefill"),
                            hb = model_hello("decode-0", "decode");

    hub_start_with(&a, loop, &ha, NULL, quick_limits);
    hub_start_with(&b, loop, &hb, NULL, quick_limits);
    link_hubs(&a, &b, "decode", true, OVER_MEMORY);
    WAIT(loop, a.link && b.link);
    for (int i = 0; i < 16; i++) {
        usleep(quick_limits.dead_ms * 1000 * 3 / 8);
        net_loop_turn(loop);
    }
    assert_int_equal(a.n_down + b.n_down, 0);
    hub_stop(&a);
    hub_stop(&b);
}

/* ---- dialling again ---- */

static void test_redial(void **state)
{
    struct test_hub a = {0}, b = {0};
    const struct wire_hello ha = model_hello("prefill-0", "prefill");
    struct wire_hello hb = model_hello("decode-0", "decode");

    hub_start_with(&a, loop, &ha, NULL, quick_limits);
    hub_start_with(&b, loop, &hb, NULL, quick_limits);
    hub_listen(&b);
    const struct net_address address = *net_listener_address(b.listener);
    assert_int_equal(peer_hub_dial(a.hub, &address, "decode", true), STATUS_OK);
    for (uint32_t round = 1; round < 6; round++) {
        WAIT(loop, a.n_up == round && b.link && a.link);
        peer_hub_destroy(&b.hub); /* the process dies */
        net_listener_close(&b.listener);
        b.link = NULL;
        turn_some(loop, 3);
        if (round % 2) /* the next one is there at once, but still loading: callers wait */
            assert_int_equal(net_listen(loop, &address, "--test", &b.listener), STATUS_OK);
        WAIT(loop, a.n_down == round);
        turn_for(loop, 100);
        if (!b.listener)
            assert_int_equal(net_listen(loop, &address, "--test", &b.listener), STATUS_OK);
        hb.epoch++;
        hub_start_with(&b, loop, &hb, NULL, quick_limits);
        hub_listen(&b);
    }
    WAIT(loop, a.n_up == 6 && b.link);
    /* from here too */
    peer_link_close(a.link, STATUS_CANCELLED);
    assert_int_equal(a.n_down, 6); /* told before it returned */
    WAIT(loop, a.n_up == 7 && b.link);
    hub_stop(&a);
    hub_stop(&b);
}

/* A refusing node is asked again and again, and taken once it changes its mind. */
static void test_redial_after_refusal(void **state)
{
    struct test_hub a = {0}, b = {0};
    const struct wire_hello ha = model_hello("prefill-0", "prefill");
    struct wire_hello hb = model_hello("decode-0", "decode");

    hb.model_digest[0] ^= 1;
    hub_start_with(&a, loop, &ha, NULL, quick_limits);
    hub_start_with(&b, loop, &hb, NULL, quick_limits);
    link_hubs(&a, &b, "decode", true, OVER_TCP);
    WAIT(loop, hub_count(&b, "peer_links_refused_total") >= 3);
    peer_hub_destroy(&b.hub);
    hb.model_digest[0] ^= 1;
    hub_start_with(&b, loop, &hb, NULL, quick_limits);
    hub_listen(&b);
    WAIT(loop, a.link && b.link);
    hub_stop(&a);
    hub_stop(&b);
}

/* One node under two addresses: one link, and it stays. */
static void test_two_addresses(void **state)
{
    struct test_hub a = {0}, b = {0};
    const struct wire_hello ha = model_hello("prefill-0", "prefill"),
                            hb = model_hello("decode-0", "decode");

    hub_start_with(&a, loop, &ha, NULL, quick_limits);
    hub_start_with(&b, loop, &hb, NULL, quick_limits);
    hub_listen(&b);
    for (int i = 0; i < 2; i++)
        assert_int_equal(peer_hub_dial(a.hub, net_listener_address(b.listener), "decode", true),
                         STATUS_OK);
    turn_for(loop, 600);
    assert_non_null(a.link);
    assert_null(peer_hub_next(a.hub, a.link));
    assert_true(a.n_up <= 4);
    const uint32_t n_up = a.n_up;
    turn_for(loop, 400);
    assert_int_equal(a.n_up, n_up);
    assert_non_null(a.link);
    hub_stop(&a);
    hub_stop(&b);
}

/* ---- messages ---- */

static void test_order(void **state)
{
    char words[200];

    memset(words, 'w', sizeof words - 1);
    words[sizeof words - 1] = 0;
    for (int how = OVER_MEMORY; how <= OVER_TCP; how++) {
        struct test_hub a = {0}, b = {0};
        const struct wire_hello ha = model_hello("prefill-0", "prefill"),
                                hb = model_hello("decode-0", "decode");
        hub_start(&a, loop, &ha);
        hub_start(&b, loop, &hb);
        link_hubs(&a, &b, "decode", false, how);
        WAIT(loop, a.link && b.link);
        for (uint64_t i = 1; i <= 5000; i++) {
            send_numbered(a.link, i, words + i % 199);
            send_numbered(b.link, i, words + i % 197);
            if (i % 700 == 0)
                net_loop_turn(loop);
        }
        WAIT(loop, a.n_messages == 5000 && b.n_messages == 5000);
        assert_int_equal(a.n_out_of_order + b.n_out_of_order, 0);
        hub_stop(&a);
        hub_stop(&b);
    }
}

/* A message that makes no sense is refused and the link goes on; broken framing ends it. */
static void test_malformed(void **state)
{
    static const uint8_t nonsense[] = {12, 0, 0, 0, 26, 0, 0, 0, 4, 0, 0, 0, '{', '"', 'x', '}'};
    static const uint8_t unknown[] = {10, 0, 0, 0, 99, 1, 0, 0, 2, 0, 0, 0, '{', '}'};
    static const uint8_t broken[WIRE_FRAME_HEADER_BYTES] = {255, 255, 255, 255};
    struct test_hub b = {0};
    const struct wire_hello hb = model_hello("decode-0", "decode");
    struct wire_hello mine = {.node_id = "client-0", .role = "client", .epoch = 1};
    struct raw_peer raw = {0};
    struct buffer frame = {0}, sealed = {0};
    struct wire_notice n = {.handle = 1};

    hub_start(&b, loop, &hb);
    hub_listen(&b);
    raw_link(&raw, NULL, &b, &mine);
    raw_send_frame(&raw, nonsense, sizeof nonsense);
    raw_send_frame(&raw, unknown, sizeof unknown);
    assert_int_equal(wire_encode_notice(&frame, WIRE_CANCEL, &n), STATUS_OK);
    raw_seal(&raw, frame.data, frame.len, &sealed);
    for (size_t i = 0; i < sealed.len; i++) { /* a byte at a time */
        raw_send(&raw, sealed.data + i, 1);
        net_loop_turn(loop);
    }
    WAIT(loop, b.n_messages >= 1);
    assert_int_equal(b.last_handle, 1);
    assert_true(hub_count(&b, "peer_messages_refused_total") >= 1);
    assert_int_equal(b.n_down, 0);
    raw_send_frame(&raw, broken, sizeof broken);
    WAIT(loop, b.n_down == 1);
    assert_int_equal(b.last_reason, STATUS_BAD_FRAME);
    raw_close(&raw);
    buffer_deinit(&frame);
    buffer_deinit(&sealed);

    /* what comes before the hello is no better */
    raw = (struct raw_peer){0};
    raw_dial(&raw, &b);
    raw_send(&raw, "GET / HTTP/1.1\r\n\r\n", 18);
    WAIT(loop, raw.broken);
    raw_close(&raw);
    raw = (struct raw_peer){0};
    raw_dial(&raw, &b);
    raw_send_frame(&raw, unknown, sizeof unknown);
    expect_refusal(&raw, STATUS_BAD_MESSAGE, "link.hello");
    raw_close(&raw);
    hub_stop(&b);
}

/* Three frames as they should be, then in every way that a box between two nodes could spoil them:
 * no message comes of what is wrong, and the link ends. */
static void test_seals(void **state)
{
    enum { AS_IT_IS, CHANGED, LENGTH_CHANGED, REPEATED, LOST, REORDERED, N_WAYS };
    const struct wire_hello hb = model_hello("decode-0", "decode");

    for (int way = 0; way < N_WAYS; way++) {
        struct wire_hello mine = {.node_id = "client-0", .role = "client", .epoch = 1};
        struct buffer sealed[3] = {{0}}, frame = {0};
        struct raw_peer raw = {0};
        struct test_hub b = {0};
        hub_start(&b, loop, &hb);
        hub_listen(&b);
        raw_link(&raw, NULL, &b, &mine);
        for (uint64_t i = 0; i < 3; i++) {
            const struct wire_notice n = {.handle = i + 1};
            buffer_clear(&frame);
            assert_int_equal(wire_encode_notice(&frame, WIRE_CANCEL, &n), STATUS_OK);
            raw_seal(&raw, frame.data, frame.len, &sealed[i]);
        }
        if (way == CHANGED)
            sealed[1].data[sealed[1].len / 2] ^= 4;
        if (way == LENGTH_CHANGED)
            sealed[1].data[WIRE_SEAL_BYTES + 1] ^= 4;
        raw_send(&raw, sealed[0].data, sealed[0].len);
        if (way == REORDERED)
            raw_send(&raw, sealed[2].data, sealed[2].len);
        if (way != LOST)
            raw_send(&raw, sealed[1].data, sealed[1].len);
        if (way == REPEATED)
            raw_send(&raw, sealed[1].data, sealed[1].len);
        raw_send(&raw, sealed[2].data, sealed[2].len);
        WAIT(loop, b.n_messages == 3 || b.n_down == 1);
        turn_some(loop, 5);
        assert_int_equal(b.n_down, way != AS_IT_IS);
        assert_int_equal(b.n_messages, way == AS_IT_IS ? 3 : way == REPEATED ? 2 : 1);
        if (way != AS_IT_IS)
            assert_int_equal(b.last_reason, STATUS_BAD_FRAME);
        raw_close(&raw);
        hub_stop(&b);
        buffer_deinit(&frame);
        for (int i = 0; i < 3; i++)
            buffer_deinit(&sealed[i]);
    }
}

/* Sending never ends a link under the sender's hands, even when the other side is gone. */
static void test_send_does_not_call_back(void **state)
{
    struct test_hub a = {0}, b = {0};
    const struct wire_hello ha = model_hello("prefill-0", "prefill"),
                            hb = model_hello("decode-0", "decode");

    hub_start(&a, loop, &ha);
    hub_start(&b, loop, &hb);
    link_hubs(&a, &b, "decode", true, OVER_MEMORY);
    WAIT(loop, a.link && b.link);
    peer_hub_destroy(&b.hub);
    b.link = NULL;
    for (uint64_t i = 1; i < 50; i++)
        send_numbered(a.link, i, "");
    assert_int_equal(a.n_down, 0);
    WAIT(loop, a.n_down == 1);
    turn_some(loop, 10);
    assert_int_equal(a.n_down, 1);
    hub_stop(&a);
    hub_stop(&b);
}

/* Who sends but does not read is no peer. */
static void test_peer_that_does_not_read(void **state)
{
    char words[250];
    struct test_hub b = {0};
    const struct wire_hello hb = model_hello("decode-0", "decode");
    struct wire_hello mine = {.node_id = "client-0",
                              .role = "client",
                              .epoch = 1,
                              .link = 1,
                              .version_min = 1,
                              .version_max = 1};
    struct raw_peer raw = {.deaf = true};
    uint64_t number = 0;

    memset(words, 'w', sizeof words - 1);
    words[sizeof words - 1] = 0;
    hub_start_with(&b, loop, &hb, NULL, quick_limits);
    hub_listen(&b);
    raw_dial(&raw, &b);
    raw_send_hello(&raw, &mine);
    WAIT(loop, b.link);
    const int64_t end_ms = clock_now_ms() + 15000;
    while (!b.n_down && clock_now_ms() < end_ms) {
        for (int i = 0; i < 2000 && b.link && number < 100000; i++)
            send_numbered(b.link, ++number, words);
        raw_ping(&raw);
        turn_for(loop, 20);
    }
    assert_int_equal(b.n_down, 1);
    assert_non_null(strstr(b.last_words, "read nothing"));
    raw_close(&raw);
    hub_stop(&b);
}

/* A link that goes down while another does: nothing is walked into the ground. */
static struct test_hub *closing_hub;

static void close_next(struct test_hub *h)
{
    struct peer_link *other = peer_hub_next(closing_hub->hub, NULL);

    if (other)
        peer_link_close(other, STATUS_CANCELLED);
}

static void test_links_close_links(void **state)
{
    struct test_hub a = {0}, b[6] = {{0}};
    const struct wire_hello ha = model_hello("prefill-0", "prefill");

    hub_start_with(&a, loop, &ha, NULL, quick_limits);
    for (int i = 0; i < 6; i++) {
        char id[20];
        snprintf(id, sizeof id, "decode-%d", i);
        const struct wire_hello hb = model_hello(id, "decode");
        hub_start_with(&b[i], loop, &hb, NULL, quick_limits);
        link_hubs(&a, &b[i], "decode", true, OVER_MEMORY);
    }
    WAIT(loop, a.n_up == 6);
    closing_hub = &a;
    a.on_down = close_next;
    peer_hub_destroy(&b[3].hub);
    WAIT(loop, a.n_down == 6);
    turn_for(loop, 60);
    for (int i = 0; i < 6; i++)
        hub_stop(&b[i]);
    hub_stop(&a);
}

int main(void)
{
    const struct log_options quiet = {.level = LOG_ERROR};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_up),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_version_and_twins),
        cmocka_unit_test(test_client),
        cmocka_unit_test(test_silence),
        cmocka_unit_test(test_stuck),
        cmocka_unit_test(test_own_absence),
        cmocka_unit_test(test_slow_turns),
        cmocka_unit_test(test_redial),
        cmocka_unit_test(test_redial_after_refusal),
        cmocka_unit_test(test_two_addresses),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_malformed),
        cmocka_unit_test(test_seals),
        cmocka_unit_test(test_send_does_not_call_back),
        cmocka_unit_test(test_peer_that_does_not_read),
        cmocka_unit_test(test_links_close_links),
    };

    log_setup(&quiet);
    return cmocka_run_group_tests(tests, make_loop, end_loop);
}
