/* The decode side against a prefill node that says whatever it likes: late, early, twice, for
 * others, or nothing. */
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

enum { N_TOKENS = 70, N_PAGES = 3, N_LAYERS = 3 };

/* A decode node with one raw prefill node whose open has been answered. */
struct fixture {
    struct decode d;
    struct wire_hello mine;
    struct raw_peer own_control, own_bulk;
    struct raw_peer *control, *bulk; /* who speaks at present */
    struct request_key key;
    struct wire_decode_ready ready;
    struct buffer keep;
};

static void send_frame(struct raw_peer *to, struct buffer *frame)
{
    raw_send_frame(to, frame->data, frame->len);
    buffer_deinit(frame);
}

static void open_again(struct fixture *f, uint64_t number)
{
    uint32_t ids[N_TOKENS] = {0};
    struct wire_decode_meta m = {.request = {.attempt = 1}};
    struct buffer frame = {0};
    struct wire_frame got;

    f->key = (struct request_key){.origin = "router-0", .epoch = 3, .number = number};
    m.request.key = f->key;
    strcpy(m.request.reply_to, "router-0");
    m.request.resume.prompt_ids = ids;
    m.request.resume.n_prompt = N_TOKENS;
    m.request.resume.max_tokens = 5;
    m.request.resume.sampling.repetition_penalty = 1;
    assert_int_equal(wire_encode_decode_meta(&frame, &m), STATUS_OK);
    send_frame(f->control, &frame);
    raw_expect(f->control, WIRE_DECODE_READY, &got, &f->keep);
    assert_int_equal(wire_decode_decode_ready(&got, &f->ready), STATUS_OK);
}

static void begin(struct fixture *f, uint32_t lease_ms)
{
    memset(f, 0, sizeof *f);
    decode_start(&f->d, loop, "decode-0", lease_ms);
    hub_listen(&f->d.hub);
    f->mine = model_hello("prefill-0", "prefill");
    f->control = &f->own_control;
    f->bulk = &f->own_bulk;
    raw_link(f->control, f->bulk, &f->d.hub, &f->mine);
    open_again(f, 1);
}

static void finish(struct fixture *f)
{
    raw_close(f->bulk);
    raw_close(f->control);
    WAIT(loop, f->d.hub.n_down == 1);
    assert_int_equal(decode_n_open(&f->d), 0);
    decode_stop(&f->d);
    buffer_deinit(&f->keep);
}

static void send_slabs(struct fixture *f, uint64_t handle, uint32_t layer, uint32_t first_page,
                       uint32_t n, bool corrupt)
{
    const uint32_t bytes = (uint32_t)kv_slab_bytes(small_geometry);
    const struct wire_kv_header h = {.handle = handle,
                                     .layer = layer,
                                     .first_page = first_page,
                                     .n_pages = n,
                                     .slab_bytes = bytes};
    struct buffer frame = {0};
    uint8_t header[WIRE_KV_HEADER_BYTES];
    char *slab = memory_alloc(1, bytes);

    wire_encode_kv_header(header, &h);
    buffer_append(&frame, header, sizeof header);
    for (uint32_t i = 0; i < n; i++) {
        fill_slab(slab, bytes, f->key.number, first_page + i, layer);
        uint32_t crc = wire_crc32c(slab, bytes) ^ (corrupt && i == n - 1);
        const uint8_t tail[4] = {(uint8_t)crc, (uint8_t)(crc >> 8), (uint8_t)(crc >> 16),
                                 (uint8_t)(crc >> 24)};
        buffer_append(&frame, slab, bytes);
        buffer_append(&frame, tail, 4);
    }
    free(slab);
    raw_send(f->bulk, frame.data, frame.len);
    buffer_deinit(&frame);
}

static void send_commit(struct fixture *f, uint64_t handle, uint32_t n_prefix, uint32_t first_page,
                        uint32_t n_pages)
{
    const struct wire_handoff_commit m = {.key = f->key,
                                          .attempt = 1,
                                          .handle = handle,
                                          .n_prefix_tokens = n_prefix,
                                          .first_page = first_page,
                                          .n_pages = n_pages,
                                          .first_id = 99};
    struct buffer frame = {0};

    assert_int_equal(wire_encode_handoff_commit(&frame, &m), STATUS_OK);
    send_frame(f->control, &frame);
}

static void expect_failed(struct fixture *f, enum status reason, const char *words)
{
    struct wire_frame got;
    struct wire_notice n;

    raw_expect(f->control, WIRE_HANDOFF_FAILED, &got, &f->keep);
    assert_int_equal(wire_decode_notice(&got, &n), STATUS_OK);
    assert_true(n.has_key && request_key_equal(&n.key, &f->key));
    assert_int_equal(n.reason, reason);
    assert_non_null(strstr(n.message, words));
}

static struct handoff_receiver_stats stats_of(struct fixture *f)
{
    struct handoff_receiver_stats s;

    handoff_receivers_stats(f->d.receivers, &s);
    return s;
}

/* The commit first, between, or last: accepted when both are there, not before. */
static void test_commit_any_time(void **state)
{
    for (uint32_t commit_at = 0; commit_at <= N_LAYERS; commit_at++) {
        struct fixture f;
        struct wire_frame got;
        begin(&f, 5000);
        for (uint32_t layer = 0; layer < N_LAYERS; layer++) {
            if (layer == commit_at)
                send_commit(&f, f.ready.handle, N_TOKENS, 0, N_PAGES);
            turn_some(loop, 20);
            assert_int_equal(f.d.receptions[0].n_committed, 0);
            send_slabs(&f, f.ready.handle, N_LAYERS - 1 - layer, 0, N_PAGES,
                       false); /* any order of layers */
        }
        if (commit_at == N_LAYERS) {
            turn_some(loop, 20);
            assert_int_equal(f.d.receptions[0].n_committed, 0);
            send_commit(&f, f.ready.handle, N_TOKENS, 0, N_PAGES);
        }
        raw_expect(f.control, WIRE_HANDOFF_ACCEPTED, &got, &f.keep);
        assert_int_equal(f.d.receptions[0].n_committed, 1);
        assert_int_equal(f.d.receptions[0].first_id, 99);
        assert_int_equal(f.d.receptions[0].n_ended, 0);
        /* what still comes for it finds nobody */
        send_slabs(&f, f.ready.handle, 0, 0, N_PAGES, false);
        WAIT(loop, stats_of(&f).n_stray_slabs == N_PAGES);
        send_commit(&f, f.ready.handle, N_TOKENS, 0, N_PAGES);
        expect_failed(&f, STATUS_HANDOFF_FAILED, "no reservation");
        assert_int_equal(f.d.receptions[0].n_committed, 1);
        finish(&f);
    }
}

static void test_strays(void **state)
{
    struct fixture f;
    struct wire_frame got;

    begin(&f, 5000);
    send_slabs(&f, f.ready.handle, 0, 0, N_PAGES, false);
    send_slabs(&f, f.ready.handle, 0, 0, N_PAGES, false);        /* twice: the first counts */
    send_slabs(&f, f.ready.handle, 0, 0, N_PAGES, true);         /* not even looked at */
    send_slabs(&f, f.ready.handle, 1, N_PAGES, 2, false);        /* behind the end */
    send_slabs(&f, f.ready.handle, 1, UINT32_MAX - 2, 2, false); /* far behind */
    send_slabs(&f, f.ready.handle + ((uint64_t)1 << 32), 1, 0, 1, false); /* another generation */
    send_slabs(&f, f.ready.handle + 1, 1, 0, 1, false);                   /* another slot */
    send_slabs(&f, UINT64_MAX, 1, 0, 1, false);
    send_slabs(&f, 0, 1, 0, 1, false);
    WAIT(loop, stats_of(&f).n_stray_slabs == 2 * N_PAGES + 2 + 2 + 4);
    send_slabs(&f, f.ready.handle, 1, 0, 1, false); /* a layer in pieces */
    send_slabs(&f, f.ready.handle, 1, 1, 2, false);
    send_slabs(&f, f.ready.handle, 2, 0, N_PAGES, false);
    send_commit(&f, f.ready.handle, N_TOKENS, 0, N_PAGES);
    raw_expect(f.control, WIRE_HANDOFF_ACCEPTED, &got, &f.keep);
    assert_int_equal(stats_of(&f).n_slab_bytes_received,
                     N_LAYERS * N_PAGES * kv_slab_bytes(small_geometry));
    finish(&f);
}

static void test_commit_of_something_else(void **state)
{
    static const uint32_t wrong[][3] = {{N_TOKENS + 1, 0, N_PAGES},
                                        {N_TOKENS, 1, N_PAGES},
                                        {N_TOKENS, 0, N_PAGES - 1},
                                        {N_TOKENS, 1, N_PAGES - 1},
                                        {0, 0, 0}};

    for (size_t i = 0; i < ARRAY_LENGTH(wrong); i++) {
        struct fixture f;
        begin(&f, 5000);
        send_commit(&f, f.ready.handle, wrong[i][0], wrong[i][1], wrong[i][2]);
        expect_failed(&f, STATUS_BAD_MESSAGE, "reserved are");
        assert_int_equal(f.d.receptions[0].n_ended, 1);
        assert_int_equal(f.d.hub.n_down, 0);
        finish(&f);
    }
}

/* Handles of a slot that was used before: late things of the earlier life change nothing of the
 * later. */
static void test_generations(void **state)
{
    struct fixture f;
    struct wire_frame got;
    struct buffer frame = {0};

    begin(&f, 5000);
    const uint64_t first = f.ready.handle;
    send_slabs(&f, first, 0, 0, 1, false);
    const struct wire_notice cancel = {.has_key = true, .key = f.key, .attempt = 1};
    assert_int_equal(wire_encode_notice(&frame, WIRE_CANCEL, &cancel), STATUS_OK);
    send_frame(f.control, &frame);
    WAIT(loop, decode_n_open(&f.d) == 0);
    open_again(&f, 2);
    assert_true(f.ready.handle != first && (uint32_t)f.ready.handle == (uint32_t)first);
    send_slabs(&f, first, 0, 0, N_PAGES, false);
    send_commit(&f, first, N_TOKENS, 0, N_PAGES);
    raw_expect(f.control, WIRE_HANDOFF_FAILED, &got, &f.keep);
    assert_int_equal(decode_n_open(&f.d), 1);
    assert_int_equal(f.d.receptions[1].n_ended, 0);
    for (uint32_t layer = 0; layer < N_LAYERS; layer++)
        send_slabs(&f, f.ready.handle, layer, 0, N_PAGES, false);
    send_commit(&f, f.ready.handle, N_TOKENS, 0, N_PAGES);
    raw_expect(f.control, WIRE_HANDOFF_ACCEPTED, &got, &f.keep);
    assert_int_equal(f.d.receptions[1].n_committed, 1);
    finish(&f);
}

/* A handle belongs to the link it was given out on. */
static void test_others_handles(void **state)
{
    struct fixture f;
    struct raw_peer control = {0}, bulk = {0};
    struct wire_hello other = model_hello("prefill-1", "prefill");

    begin(&f, 5000);
    f.d.hub.link = NULL; /* so that raw_link() waits for the second */
    raw_link(&control, &bulk, &f.d.hub, &other);
    f.bulk = &bulk;
    f.control = &control;
    send_slabs(&f, f.ready.handle, 0, 0, N_PAGES, false);
    WAIT(loop, stats_of(&f).n_stray_slabs == N_PAGES);
    send_commit(&f, f.ready.handle, N_TOKENS, 0, N_PAGES);
    expect_failed(&f, STATUS_HANDOFF_FAILED, "no reservation");
    assert_int_equal(f.d.receptions[0].n_ended, 0);
    f.bulk = &f.own_bulk;
    f.control = &f.own_control;
    raw_close(&control);
    raw_close(&bulk);
    WAIT(loop, f.d.hub.n_down == 1);
    assert_int_equal(decode_n_open(&f.d), 1); /* the other link's end is not ours */
    f.d.hub.n_down = 0;
    finish(&f);
    assert_int_equal(f.d.receptions[0].n_ended, 1);
}

static void test_lease(void **state)
{
    struct fixture f;

    begin(&f, 1400);              /* a loaded host may hold a turn up for long */
    for (int i = 0; i < 8; i++) { /* signs of life: a list of handles, or a slab */
        struct buffer frame = {0};
        const struct wire_handles m = {.n = 1, .handles = &f.ready.handle};
        if (i % 2)
            send_slabs(&f, f.ready.handle, 0, (uint32_t)i / 4, 1, false);
        else if (wire_encode_handles(&frame, &m) == STATUS_OK)
            send_frame(f.control, &frame);
        raw_ping(f.control);
        turn_for(loop, 200);
    }
    assert_int_equal(decode_n_open(&f.d), 1);
    for (int i = 0; i < 16 && decode_n_open(&f.d);
         i++) { /* pings are the link's life, not the hand-off's */
        raw_ping(f.control);
        turn_for(loop, 200);
    }
    expect_failed(&f, STATUS_HANDOFF_TIMEOUT, "no sign of life");
    assert_int_equal(f.d.receptions[0].n_ended, 1);
    assert_int_equal(f.d.receptions[0].reason, STATUS_HANDOFF_TIMEOUT);
    finish(&f);
}

/* The link goes with a slab half read, at every point of it. */
static void test_cut_inside_a_slab(void **state)
{
    for (size_t cut = 1; cut < WIRE_KV_HEADER_BYTES + 1024 + 4; cut += cut < 48 ? 1 : 97) {
        struct fixture f;
        const struct wire_kv_header h = {
            .handle = 0, .layer = 0, .first_page = 0, .n_pages = 1, .slab_bytes = 1024};
        struct wire_kv_header mine = h;
        char bytes[WIRE_KV_HEADER_BYTES + 1024 + 4] = {0};
        begin(&f, 5000);
        mine.handle = f.ready.handle;
        wire_encode_kv_header((uint8_t *)bytes, &mine);
        raw_send(f.bulk, bytes, cut);
        WAIT(loop, peer_link_bulk_bytes_received(f.d.hub.link) == cut);
        if (cut % 2) { /* or a cancel while it is half read */
            handoff_receive_end(f.d.receptions[0].receiver, STATUS_OK);
            reception_over(&f.d.receptions[0]);
            raw_send(f.bulk, bytes + cut, sizeof bytes - cut);
            WAIT(loop, peer_link_bulk_bytes_received(f.d.hub.link) == sizeof bytes);
        }
        finish(&f);
    }
}

int main(void)
{
    const struct log_options quiet = {.level = LOG_ERROR + 1};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_commit_any_time),          cmocka_unit_test(test_strays),
        cmocka_unit_test(test_commit_of_something_else), cmocka_unit_test(test_generations),
        cmocka_unit_test(test_others_handles),           cmocka_unit_test(test_lease),
        cmocka_unit_test(test_cut_inside_a_slab),
    };

    log_setup(&quiet);
    return cmocka_run_group_tests(tests, make_loop, end_loop);
}
