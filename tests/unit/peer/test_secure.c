/* Links over TLS: the same pages arrive, and only who is what its certificate says is let in. */
#include "unit/peer/hubs.h"

#include "../support/certificates.h"

static struct net_loop *loop;
static struct test_authority house;
static struct tls_context *prefill, *decode, *router, *idle;

static int begin(void **state)
{
    const int64_t day = 86400;

    authority_make(&house, "house");
    authority_issue(&house, "prefill", "house", "prefill", "prefill-0", -60, day);
    authority_issue(&house, "decode", "house", "decode", "decode-0", -60, day);
    authority_issue(&house, "router", "house", "router", "router-0", -60, day);
    prefill = context_of("house", "prefill");
    decode = context_of("house", "decode");
    authority_issue(&house, "idle", "house", "decode", "decode-9", -60, day);
    router = context_of("house", "router");
    idle = context_of("house", "idle");
    return net_loop_create(&loop) == STATUS_OK ? 0 : -1;
}

static int end(void **state)
{
    net_loop_destroy(&loop);
    tls_context_destroy(&prefill);
    tls_context_destroy(&decode);
    tls_context_destroy(&router);
    tls_context_destroy(&idle);
    authority_deinit(&house);
    certificates_remove();
    return 0;
}

static uint64_t refusals(struct test_hub *h, const char *reason)
{
    char label[64];

    snprintf(label, sizeof label, "reason=\"%s\"", reason);
    return metric_count(metrics_counter(h->metrics, "peer_refusals_total", label, ""));
}

static void link_hubs(struct test_hub *from, struct test_hub *to, bool bulk, bool over_tcp)
{
    if (!over_tcp) {
        assert_int_equal(peer_hub_join(from->hub, to->hub, "decode", bulk), STATUS_OK);
        return;
    }
    hub_listen(to);
    assert_int_equal(peer_hub_dial(from->hub, net_listener_address(to->listener), "decode", bulk),
                     STATUS_OK);
}

static void test_pages_arrive(void **state)
{
    static const struct kv_geometry geometries[] = {
        {.n_layers = 3, .n_kv_heads = 1, .head_dim = 8},
        {.n_layers = 2, .n_kv_heads = 3, .head_dim = 64},
        {.n_layers = 1, .n_kv_heads = 16, .head_dim = 1024},
    };

    for (size_t i = 0; i < ARRAY_LENGTH(geometries); i++)
        for (int over_tcp = 0; over_tcp < 2; over_tcp++) {
            const struct kv_geometry g = geometries[i];
            const uint32_t n_pages = kv_slab_bytes(g) > 1 << 20 ? 5 : 37;
            struct wire_hello ha = model_hello("prefill-0", "prefill"),
                              hb = model_hello("decode-0", "decode");
            struct test_hub a = {.tls = prefill}, b = {.tls = decode};
            struct transfer t;
            ha.kv = hb.kv = g;
            hub_start(&a, loop, &ha);
            hub_start(&b, loop, &hb);
            link_hubs(&a, &b, true, over_tcp);
            WAIT(loop, a.link && b.link);
            transfer_init(&t, 0x100000001u, g, 3, n_pages);
            peer_bulk_ready(a.link, &t.bulk);
            send_numbered(a.link, 1, "beside them");
            WAIT(loop,
                 b.n_arrived == n_pages * g.n_layers && t.n_back == t.n_given && b.n_messages == 1);
            assert_int_equal(b.n_corrupt, 0);
            assert_int_equal(t.n_back_failed, 0);
            assert_true(transfer_arrived(&t, &b));
            assert_true(peer_link_bulk_bytes_sent(a.link) == peer_link_bulk_bytes_received(b.link));
            free(t.slabs);
            hub_stop(&a);
            WAIT(loop, b.n_down == 1);
            hub_stop(&b);
        }
}

/* The receiver goes away in mid-transfer: every frame comes back, nothing is touched afterwards. */
static void test_cut(void **state)
{
    const struct kv_geometry g = {.n_layers = 2, .n_kv_heads = 4, .head_dim = 128};

    for (int round = 0; round < 20; round++) {
        struct wire_hello ha = model_hello("prefill-0", "prefill"),
                          hb = model_hello("decode-0", "decode");
        struct test_hub a = {.tls = prefill}, b = {.tls = decode};
        struct transfer t;
        ha.kv = hb.kv = g;
        hub_start(&a, loop, &ha);
        hub_start(&b, loop, &hb);
        link_hubs(&a, &b, true, round % 2);
        WAIT(loop, a.link && b.link);
        transfer_init(&t, 1, g, 0, 60);
        peer_bulk_ready(a.link, &t.bulk);
        WAIT(loop, b.n_arrived > (uint32_t)round * 5);
        peer_hub_destroy(&b.hub);
        WAIT(loop, a.n_down && t.n_back == t.n_given);
        assert_int_equal(t.bulk.n_in_flight, 0);
        free(t.slabs);
        hub_stop(&a);
        hub_stop(&b);
    }
}

static void test_identity(void **state)
{
    const struct {
        const char *id, *role;
        struct tls_context *shown;
        const char *reason;
    } cases[] = {
        {"prefill-1", "prefill", prefill, "identity_mismatch"}, /* another's id */
        {"router-0", "prefill", router, "identity_mismatch"},   /* another role */
        {"prefill-0", "prefill", NULL, "tls_failed"},           /* no TLS at all */
        {"decode-9", "decode", idle, "cell_mismatch"},          /* decode nodes dial nobody */
    };

    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++)
        for (int over_tcp = 0; over_tcp < 2; over_tcp++) {
            const struct wire_hello ha = model_hello(cases[i].id, cases[i].role),
                                    hb = model_hello("decode-0", "decode"),
                                    good = model_hello("router-0", "router");
            struct test_hub a = {.tls = cases[i].shown}, b = {.tls = decode}, c = {.tls = router};
            hub_start_with(&a, loop, &ha, NULL, quick_limits);
            hub_start_with(&b, loop, &hb, NULL, quick_limits);
            link_hubs(&a, &b, i != 1, over_tcp);
            WAIT(loop, refusals(&b, cases[i].reason) > 0);
            turn_for(loop, 30);
            assert_int_equal(a.n_up + b.n_up, 0);
            if (cases[i].shown && over_tcp)
                assert_true(refusals(&a, cases[i].reason) > 0); /* whoever dials is told why */
            /* and the node serves on */
            hub_start_with(&c, loop, &good, NULL, quick_limits);
            link_hubs(&c, &b, false, over_tcp);
            WAIT(loop, c.link && b.link);
            hub_stop(&c);
            hub_stop(&a);
            hub_stop(&b);
        }
}

/* The dialled node is not who it says: the dialling side finds it out, before it says anything. */
static void test_wrong_server(void **state)
{
    const struct wire_hello ha = model_hello("prefill-0", "prefill"),
                            hb = model_hello("decode-0", "decode");
    struct test_hub a = {.tls = prefill}, b = {.tls = router};

    hub_start_with(&a, loop, &ha, NULL, quick_limits);
    hub_start_with(&b, loop, &hb, NULL, quick_limits);
    link_hubs(&a, &b, true, true);
    WAIT(loop, refusals(&a, "identity_mismatch") > 0);
    assert_int_equal(a.n_up, 0);
    hub_stop(&a);
    hub_stop(&b);
}

/* A crowd that says nothing does not keep anybody out; and a hello may not be any length. */
static void test_crowd(void **state)
{
    static struct raw_peer crowd[400];
    const struct wire_hello ha = model_hello("prefill-0", "prefill"),
                            hb = model_hello("decode-0", "decode");

    for (int secure = 0; secure < 2; secure++) {
        struct test_hub a = {.tls = secure ? prefill : NULL}, b = {.tls = secure ? decode : NULL};
        memset(crowd, 0, sizeof crowd);
        hub_start(&b, loop, &hb);
        hub_listen(&b);
        for (size_t i = 0; i < ARRAY_LENGTH(crowd); i++)
            raw_dial(&crowd[i], &b);
        hub_start(&a, loop, &ha);
        link_hubs(&a, &b, true, true);
        WAIT(loop, a.link && b.link);
        size_t n_closed = 0;
        for (size_t i = 0; i < ARRAY_LENGTH(crowd); i++)
            n_closed += crowd[i].broken;
        assert_in_range(n_closed, 100, 300);
        if (!secure) {
            char *zeros = memory_alloc(1, 80000);
            static const uint8_t header[12] = {0, 0, 8, 0, 1, 0, 0, 0, 9, 0, 0, 0};
            raw_send(&crowd[399], header, sizeof header);
            raw_send(&crowd[399], zeros, 80000);
            WAIT(loop, crowd[399].broken);
            assert_true(refusals(&b, "bad_frame") > 0);
            free(zeros);
        }
        for (size_t i = 0; i < ARRAY_LENGTH(crowd); i++)
            raw_close(&crowd[i]);
        assert_non_null(a.link);
        hub_stop(&a);
        hub_stop(&b);
    }
}

int main(void)
{
    const struct log_options quiet = {.level = LOG_ERROR + 1};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pages_arrive), cmocka_unit_test(test_cut),
        cmocka_unit_test(test_identity),     cmocka_unit_test(test_wrong_server),
        cmocka_unit_test(test_crowd),
    };

    log_setup(&quiet);
    return cmocka_run_group_tests(tests, begin, end);
}
