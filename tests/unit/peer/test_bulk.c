/* Pages over a link: straight into place, checked, in turns, and every hold given back whatever
 * happens. */
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

struct pair {
    struct test_hub a, b;
};

static void pair_up(struct pair *p, struct kv_geometry g, bool over_tcp)
{
    struct wire_hello ha = model_hello("prefill-0", "prefill"),
                      hb = model_hello("decode-0", "decode");

    ha.kv = hb.kv = g;
    memset(p, 0, sizeof *p);
    p->a.slabs_anywhere = true; /* each transfer has memory of its own */
    hub_start(&p->a, loop, &ha);
    hub_start(&p->b, loop, &hb);
    if (over_tcp) {
        hub_listen(&p->b);
        assert_int_equal(
            peer_hub_dial(p->a.hub, net_listener_address(p->b.listener), "decode", true),
            STATUS_OK);
    } else {
        assert_int_equal(peer_hub_join(p->a.hub, p->b.hub, "decode", true), STATUS_OK);
    }
    WAIT(loop, p->a.link && p->b.link);
}

static void pair_down(struct pair *p)
{
    hub_stop(&p->a);
    hub_stop(&p->b);
}

static const struct kv_geometry geometries[] = {
    {.n_layers = 3, .n_kv_heads = 1, .head_dim = 8},   /* slabs of 1 KiB */
    {.n_layers = 2, .n_kv_heads = 3, .head_dim = 64},  /* 24 KiB: SmolLM2's */
    {.n_layers = 2, .n_kv_heads = 4, .head_dim = 128}, /* 64 KiB: 16 a frame */
    {.n_layers = 1,
     .n_kv_heads = 16,
     .head_dim = 1024}, /* 2 MiB: one a frame, larger than the limit */
};

static void test_pages_arrive(void **state)
{
    for (size_t i = 0; i < ARRAY_LENGTH(geometries); i++)
        for (int over_tcp = 0; over_tcp < 2; over_tcp++) {
            const struct kv_geometry g = geometries[i];
            const uint32_t n_pages = kv_slab_bytes(g) > 1 << 20 ? 5 : 37;
            struct pair p;
            struct transfer t;
            pair_up(&p, g, over_tcp);
            transfer_init(&t, 0x100000001u, g, 3, n_pages);
            peer_bulk_ready(p.a.link, &t.bulk);
            WAIT(loop, p.b.n_arrived == n_pages * g.n_layers && t.n_back == t.n_given);
            assert_int_equal(p.b.n_corrupt, 0);
            assert_int_equal(t.n_back_failed, 0);
            assert_int_equal(t.bulk.n_in_flight, 0);
            assert_true(transfer_arrived(&t, &p.b));
            assert_true((uint64_t)t.max_seen * kv_slab_bytes(g) <= WIRE_KV_FRAME_BYTES_MAX ||
                        t.max_seen == 1);
            /* little beside the pages themselves */
            const uint64_t raw = (uint64_t)n_pages * g.n_layers * kv_slab_bytes(g);
            assert_true(peer_link_bulk_bytes_sent(p.a.link) ==
                        peer_link_bulk_bytes_received(p.b.link));
            assert_true(peer_link_bulk_bytes_sent(p.a.link) - raw <= raw / 50);
            free(t.slabs);
            pair_down(&p);
        }
}

static void test_turns(void **state)
{
    for (int over_tcp = 0; over_tcp < 2; over_tcp++) {
        const struct kv_geometry g = geometries[2];
        struct pair p;
        struct transfer t[3];
        uint32_t changes = 0, arrived_of_short = 0;
        pair_up(&p, g, over_tcp);
        transfer_init(&t[0], 1, g, 0, 48); /* long */
        transfer_init(&t[1], 2, g, 0, 48);
        transfer_init(&t[2], 3, g, 0, 2); /* short */
        for (int i = 0; i < 3; i++)
            peer_bulk_ready(p.a.link, &t[i].bulk);
        WAIT(loop, p.b.n_arrived == (48 + 48 + 2) * g.n_layers);
        for (uint32_t i = 0; i < p.b.n_arrived; i++) {
            changes += i && p.b.handles_seen[i] != p.b.handles_seen[i - 1];
            if (p.b.handles_seen[i] == 3)
                arrived_of_short = i;
        }
        assert_true(changes >= 8);
        assert_true(arrived_of_short <
                    p.b.n_arrived * 3 / 4); /* it never waits for the long ones */
        for (int i = 0; i < 3; i++) {
            assert_int_equal(t[i].n_back, t[i].n_given);
            free(t[i].slabs);
        }
        pair_down(&p);
    }
}

/* A transfer that has nothing for a while comes back with peer_bulk_ready(). */
static void test_pauses(void **state)
{
    const struct kv_geometry g = small_geometry;
    struct pair p;
    struct transfer t;

    pair_up(&p, g, false);
    transfer_init(&t, 9, g, 0, 20);
    t.g.n_layers = 0; /* nothing yet */
    for (uint32_t layers = 1; layers <= g.n_layers; layers++) {
        peer_bulk_ready(p.a.link, &t.bulk);
        turn_some(loop, 10);
        assert_int_equal(p.b.n_arrived, (layers - 1) * 20);
        t.g.n_layers = layers;
        peer_bulk_ready(p.a.link, &t.bulk);
        peer_bulk_ready(p.a.link, &t.bulk); /* twice is once */
        WAIT(loop, p.b.n_arrived == layers * 20);
    }
    free(t.slabs);
    pair_down(&p);
}

/* A receiver that wants none of it, and removal in mid-transfer. */
static void test_unwanted(void **state)
{
    const struct kv_geometry g = geometries[2];
    struct pair p;
    struct transfer t, u;

    pair_up(&p, g, true);
    p.b.no_room = true;
    transfer_init(&t, 5, g, 0, 40);
    peer_bulk_ready(p.a.link, &t.bulk);
    WAIT(loop, t.n_back == 40 * g.n_layers);
    turn_some(loop, 50);
    assert_int_equal(p.b.n_arrived, 0);
    p.b.no_room = false;
    free(t.slabs);

    transfer_init(&t, 6, g, 0, 60);
    transfer_init(&u, 7, g, 0, 2);
    peer_bulk_ready(p.a.link, &t.bulk);
    peer_bulk_remove(p.a.link, &t.bulk); /* what is in flight still ends with sent() */
    assert_true(t.bulk.n_in_flight > 0);
    peer_bulk_ready(p.a.link, &u.bulk);
    WAIT(loop, t.bulk.n_in_flight == 0 && u.n_back == 2 * g.n_layers);
    assert_int_equal(t.n_back, t.n_given);
    assert_true(t.n_given < 60 * g.n_layers);
    free(t.slabs);
    free(u.slabs);
    pair_down(&p);
}

/* A link that ends in mid-transfer, from either side and at every point: all that was given comes
 * back once. */
static void test_cut(void **state)
{
    const struct kv_geometry g = geometries[2];

    for (int over_tcp = 0; over_tcp < 2; over_tcp++)
        for (int side = 0; side < 3; side++)
            for (int turns = 0; turns < 24; turns += over_tcp ? 2 : 3) {
                struct pair p;
                struct transfer t[2];
                pair_up(&p, g, over_tcp);
                for (int i = 0; i < 2; i++) {
                    transfer_init(&t[i], (uint64_t)i + 1, g, 0, 60);
                    peer_bulk_ready(p.a.link, &t[i].bulk);
                }
                turn_some(loop, turns);
                if (side == 0 && p.a.link)
                    peer_link_close(p.a.link, STATUS_CANCELLED);
                else if (side == 1 && p.b.link)
                    peer_link_close(p.b.link, STATUS_CANCELLED);
                else if (side == 2)
                    peer_hub_destroy(&p.a.hub); /* the memory must stay until all came back */
                WAIT(loop, t[0].bulk.n_in_flight == 0 && t[1].bulk.n_in_flight == 0);
                turn_some(loop, 10);
                for (int i = 0; i < 2; i++) {
                    assert_int_equal(t[i].n_back, t[i].n_given);
                    assert_false(t[i].bulk.in_rotation && side == 0);
                    free(t[i].slabs);
                }
                pair_down(&p);
            }
}

/* ---- from a peer that says whatever it likes ---- */

static void send_slab(struct raw_peer *bulk, const struct test_hub *to, uint64_t handle,
                      uint32_t page, uint32_t layer, size_t from, size_t n, bool corrupt)
{
    const uint32_t bytes = (uint32_t)hub_slab_bytes(to);
    const struct wire_kv_header h = {
        .handle = handle, .layer = layer, .first_page = page, .n_pages = 1, .slab_bytes = bytes};
    char *whole = memory_alloc(WIRE_KV_HEADER_BYTES + bytes + WIRE_KV_CRC_BYTES, 1);

    wire_encode_kv_header((uint8_t *)whole, &h);
    fill_slab(whole + WIRE_KV_HEADER_BYTES, bytes, handle, page, layer);
    const uint32_t crc = wire_crc32c(whole + WIRE_KV_HEADER_BYTES, bytes);
    for (int i = 0; i < 4; i++)
        whole[WIRE_KV_HEADER_BYTES + bytes + i] = (char)(crc >> (8 * i));
    if (corrupt)
        whole[WIRE_KV_HEADER_BYTES + bytes / 2] ^= 4;
    raw_send(bulk, whole + from, n ? n : WIRE_KV_HEADER_BYTES + bytes + WIRE_KV_CRC_BYTES - from);
    free(whole);
}

static bool holds(const struct test_hub *b, uint64_t handle, uint32_t page, uint32_t layer)
{
    char want[1024];

    fill_slab(want, sizeof want, handle, page, layer);
    return !memcmp(want, hub_slab(b, page, layer), sizeof want);
}

static void test_corrupt(void **state)
{
    struct test_hub b = {0};
    const struct wire_hello hb = model_hello("decode-0", "decode");
    struct wire_hello mine = model_hello("prefill-0", "prefill");
    struct raw_peer control = {0}, bulk = {0};

    hub_start(&b, loop, &hb);
    hub_listen(&b);
    raw_link(&control, &bulk, &b, &mine);
    send_slab(&bulk, &b, 1, 0, 0, 0, 0, false);
    send_slab(&bulk, &b, 1, 1, 0, 0, 0, true);
    send_slab(&bulk, &b, 1, 2, 0, 0, 0, false);
    WAIT(loop, b.n_arrived == 3);
    assert_int_equal(b.n_corrupt, 1);
    assert_int_equal(hub_count(&b, "handoff_corrupt_slabs_total"), 1);
    assert_true(holds(&b, 1, 0, 0) && !holds(&b, 1, 1, 0) && holds(&b, 1, 2, 0));
    assert_int_equal(b.n_down, 0); /* one request's trouble, not the link's */
    raw_close(&bulk);
    WAIT(loop, b.n_down == 1); /* the two connections are one link */
    raw_close(&control);
    hub_stop(&b);
}

/* A reservation that ends while its slab is half read: nothing more is written there. */
static void test_detach(void **state)
{
    static const size_t cuts[] = {40, 41, 500, 40 + 1023, 40 + 1024, 40 + 1027};

    for (size_t i = 0; i < ARRAY_LENGTH(cuts); i++) {
        struct test_hub b = {0};
        const struct wire_hello hb = model_hello("decode-0", "decode");
        struct wire_hello mine = model_hello("prefill-0", "prefill");
        struct raw_peer control = {0}, bulk = {0};
        hub_start(&b, loop, &hb);
        hub_listen(&b);
        raw_link(&control, &bulk, &b, &mine);
        send_slab(&bulk, &b, 1, 5, 1, 0, cuts[i], false);
        WAIT(loop, peer_link_bulk_bytes_received(b.link) == cuts[i]);
        peer_bulk_detach(b.link, 2); /* another's: nothing happens */
        peer_bulk_detach(b.link, 1);
        char before[1024];
        memset(hub_slab(&b, 5, 1), 0x55, 1024); /* the page has a new owner */
        memcpy(before, hub_slab(&b, 5, 1), 1024);
        send_slab(&bulk, &b, 1, 5, 1, cuts[i], 0, false);
        send_slab(&bulk, &b, 2, 6, 1, 0, 0, false); /* and the stream is in step */
        WAIT(loop, b.n_arrived == 1);
        assert_int_equal(b.handles_seen[0], 2);
        assert_int_equal(b.n_corrupt, 0);
        assert_memory_equal(before, hub_slab(&b, 5, 1), 1024);
        assert_true(holds(&b, 2, 6, 1));
        raw_close(&bulk);
        raw_close(&control);
        hub_stop(&b);
    }
}

static void test_bad_headers(void **state)
{
    const struct wire_kv_header bad[] = {
        {.handle = 1, .layer = 0, .n_pages = 1, .slab_bytes = 1023},
        {.handle = 1, .layer = 0, .n_pages = 1, .slab_bytes = 0},
        {.handle = 1, .layer = 0, .n_pages = 1, .slab_bytes = UINT32_MAX},
        {.handle = 1, .layer = 3, .n_pages = 1, .slab_bytes = 1024},
        {.handle = 1, .layer = UINT32_MAX, .n_pages = 1, .slab_bytes = 1024},
        {.handle = 1, .layer = 0, .n_pages = 0, .slab_bytes = 1024},
        {.handle = 1, .layer = 0, .n_pages = 1025, .slab_bytes = 1024},
        {.handle = 1, .layer = 0, .n_pages = UINT32_MAX, .slab_bytes = 1024},
        {.handle = 1, .layer = 0, .first_page = UINT32_MAX, .n_pages = 2, .slab_bytes = 1024},
    };

    for (size_t i = 0; i <= ARRAY_LENGTH(bad); i++) {
        struct test_hub b = {0};
        const struct wire_hello hb = model_hello("decode-0", "decode");
        struct wire_hello mine = model_hello("prefill-0", "prefill");
        struct raw_peer control = {0}, bulk = {0};
        uint8_t header[WIRE_KV_HEADER_BYTES];
        hub_start(&b, loop, &hb);
        hub_listen(&b);
        raw_link(&control, &bulk, &b, &mine);
        if (i < ARRAY_LENGTH(bad))
            wire_encode_kv_header(header, &bad[i]);
        else
            memset(header, 'x', sizeof header);
        raw_send(&bulk, header, sizeof header);
        WAIT(loop, b.n_down == 1);
        assert_int_equal(b.last_reason, STATUS_BAD_FRAME);
        WAIT(loop, bulk.broken && control.broken);
        raw_close(&bulk);
        raw_close(&control);
        hub_stop(&b);
    }
}

/* A peer that pings and never reads its pages is lost, and they come back. */
static void test_receiver_that_does_not_read(void **state)
{
    const struct kv_geometry g = geometries[3];
    struct test_hub a = {0};
    struct wire_hello ha = model_hello("decode-0", "decode"),
                      mine = model_hello("prefill-0", "prefill");
    struct raw_peer control = {0}, bulk = {.deaf = true};
    struct transfer t;

    ha.kv = mine.kv = g;
    hub_start_with(&a, loop, &ha, NULL, quick_limits);
    hub_listen(&a);
    raw_link(&control, &bulk, &a, &mine);
    transfer_init(&t, 1, g, 0, 20);
    peer_bulk_ready(a.link, &t.bulk);
    const int64_t end_ms = clock_now_ms() + 15000;
    while (!a.n_down && clock_now_ms() < end_ms) {
        raw_ping(&control);
        turn_for(loop, 20);
    }
    assert_int_equal(a.n_down, 1);
    assert_non_null(strstr(a.last_words, "read nothing"));
    WAIT(loop, t.bulk.n_in_flight == 0);
    assert_int_equal(t.n_back, t.n_given);
    free(t.slabs);
    raw_close(&bulk);
    raw_close(&control);
    hub_stop(&a);
}

int main(void)
{
    const struct log_options quiet = {.level = LOG_ERROR};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pages_arrive),
        cmocka_unit_test(test_turns),
        cmocka_unit_test(test_pauses),
        cmocka_unit_test(test_unwanted),
        cmocka_unit_test(test_cut),
        cmocka_unit_test(test_corrupt),
        cmocka_unit_test(test_detach),
        cmocka_unit_test(test_bad_headers),
        cmocka_unit_test(test_receiver_that_does_not_read),
    };

    log_setup(&quiet);
    return cmocka_run_group_tests(tests, make_loop, end_loop);
}
