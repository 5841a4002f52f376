/* What the tests of links share: hubs on one loop that write down what happens to them, and a raw
 * peer that can say anything at all. */
#ifndef TESTS_PEER_HUBS_H
#define TESTS_PEER_HUBS_H

#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"
#include "peer/peer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#undef fail /* base/status.h has it */

enum { MAX_HANDLES_SEEN = 4096, TEST_PAGES = 64 };

/* Turns the loop until the condition holds. */
#define WAIT(loop, condition)                                                                      \
    do {                                                                                           \
        const int64_t end_ms_ = clock_now_ms() + 20000;                                            \
        while (!(condition)) {                                                                     \
            if (clock_now_ms() > end_ms_) {                                                        \
                print_error("not in 20 s: %s\n", #condition);                                      \
                _fail(__FILE__, __LINE__);                                                         \
            }                                                                                      \
            net_loop_turn(loop);                                                                   \
            usleep(100);                                                                           \
        }                                                                                          \
    } while (0)

static inline void turn_for(struct net_loop *l, int64_t ms)
{
    const int64_t end_ms = clock_now_ms() + ms;

    while (clock_now_ms() < end_ms) {
        net_loop_turn(l);
        usleep(200);
    }
}

static inline void turn_some(struct net_loop *l, int n)
{
    while (n--)
        net_loop_turn(l);
}

struct test_hub {
    struct peer_hub *hub;
    struct metrics *metrics;
    struct net_listener *listener;
    struct net_loop *loop;
    struct tls_context *tls;
    struct wire_node_stats stats; /* what it says of itself */
    struct peer_link *link;       /* the last that came up; NULL when that one went down */
    uint32_t n_up, n_down;
    enum status last_reason;
    char last_words[200];
    uint32_t n_messages, n_out_of_order;
    uint64_t last_handle; /* of notices, which these tests number */
    bool refuse_messages;
    /* where slabs go: [page][layer] */
    char *pool;
    bool no_room, slabs_anywhere; /* slabs_anywhere: they are not in the pool, or need not be */
    uint32_t n_arrived, n_corrupt;
    uint64_t handles_seen[MAX_HANDLES_SEEN];
    /* further hooks of a test */
    void (*on_down)(struct test_hub *h);
};

static inline void hub_link_up(void *context, struct peer_link *link)
{
    struct test_hub *h = context;

    h->link = link;
    h->n_up++;
}

static inline void hub_link_down(void *context, struct peer_link *link, enum status reason)
{
    struct test_hub *h = context;

    if (h->link == link)
        h->link = NULL;
    h->n_down++;
    h->last_reason = reason;
    snprintf(h->last_words, sizeof h->last_words, "%s", status_message());
    if (h->on_down)
        h->on_down(h);
}

static inline enum status hub_message(void *context, struct peer_link *link,
                                      const struct wire_frame *f)
{
    struct test_hub *h = context;
    struct wire_notice m;

    TRY(wire_decode_notice(f, &m));
    if (h->refuse_messages)
        return fail(STATUS_BAD_MESSAGE, "not wanted");
    h->n_messages++;
    h->n_out_of_order += m.handle != h->last_handle + 1;
    h->last_handle = m.handle;
    return STATUS_OK;
}

static inline uint64_t hub_slab_bytes(const struct test_hub *h)
{
    return kv_slab_bytes(peer_hub_hello(h->hub)->kv);
}

static inline char *hub_slab(const struct test_hub *h, uint32_t page, uint32_t layer)
{
    return h->pool +
           ((uint64_t)page * peer_hub_hello(h->hub)->kv.n_layers + layer) * hub_slab_bytes(h);
}

static inline void *hub_slab_room(void *context, struct peer_link *link,
                                  const struct wire_kv_header *kv, uint32_t page)
{
    struct test_hub *h = context;

    return h->no_room || page >= TEST_PAGES ? NULL : hub_slab(h, page, kv->layer);
}

static inline void hub_slab_arrived(void *context, struct peer_link *link,
                                    const struct wire_kv_header *kv, uint32_t page, bool intact)
{
    struct test_hub *h = context;

    if (h->n_arrived < MAX_HANDLES_SEEN)
        h->handles_seen[h->n_arrived] = kv->handle;
    h->n_arrived++;
    h->n_corrupt += !intact;
}

static inline void hub_node_stats(void *context, struct wire_node_stats *out)
{
    const struct test_hub *h = context;
    const struct wire_node_stats asked = *out;

    *out = h->stats;
    out->number = asked.number;
    out->sent_at_us = asked.sent_at_us;
}

static const struct kv_geometry small_geometry = {.n_layers = 3, .n_kv_heads = 1, .head_dim = 8};
static const struct peer_limits quick_limits = {
    .ping_ms = 20, .dead_ms = 400, .stuck_ms = 600, .redial_min_ms = 10, .redial_max_ms = 50};

static inline struct wire_hello model_hello(const char *node_id, const char *role)
{
    struct wire_hello h = {.has_model = true,
                           .has_tokenizer = true,
                           .kv = small_geometry,
                           .kv_type = KV_TYPE_F16,
                           .max_context_tokens = 512,
                           .fingerprint = "fp_test",
                           .n_slots = 4,
                           .n_pages = 64};
    static uint64_t epoch = 77;

    snprintf(h.node_id, sizeof h.node_id, "%s", node_id);
    snprintf(h.role, sizeof h.role, "%s", role);
    memset(h.model_digest, 1, sizeof h.model_digest);
    memset(h.numerics_digest, 2, sizeof h.numerics_digest);
    memset(h.tokenizer_digest, 3, sizeof h.tokenizer_digest);
    h.epoch = ++epoch;
    return h;
}

static inline void hub_start_with(struct test_hub *h, struct net_loop *l,
                                  const struct wire_hello *hello, const struct peer_events *events,
                                  struct peer_limits limits)
{
    const struct peer_events own = {.link_up = hub_link_up,
                                    .link_down = hub_link_down,
                                    .message = hub_message,
                                    .slab_room = hub_slab_room,
                                    .slab_arrived = hub_slab_arrived,
                                    .node_stats = hub_node_stats,
                                    .context = h};
    if (!h->pool)
        h->pool = memory_alloc((size_t)TEST_PAGES * hello->kv.n_layers, kv_slab_bytes(hello->kv));
    const struct transport_region pool = {.base = h->pool,
                                          .bytes = TEST_PAGES * kv_page_bytes(hello->kv)};
    const struct peer_hub_options o = {.loop = l,
                                       .hello = *hello,
                                       .slabs =
                                           h->slabs_anywhere ? (struct transport_region){0} : pool,
                                       .events = events ? *events : own,
                                       .limits = limits,
                                       .metrics = h->metrics ? h->metrics : metrics_create(""),
                                       .tls = h->tls};

    h->loop = l;
    h->metrics = o.metrics;
    assert_int_equal(peer_hub_create(&o, &h->hub), STATUS_OK);
}

static inline void hub_start(struct test_hub *h, struct net_loop *l, const struct wire_hello *hello)
{
    hub_start_with(h, l, hello, NULL, peer_limits_default);
}

static inline struct net_address loopback(void)
{
    struct net_address a;

    assert_int_equal(net_address_parse("127.0.0.1:0", "--test", &a), STATUS_OK);
    return a;
}

static inline void hub_listen(struct test_hub *h)
{
    const struct net_address any = loopback();

    if (!h->listener)
        assert_int_equal(net_listen(h->loop, &any, "--test", &h->listener), STATUS_OK);
    peer_hub_listen(h->hub, h->listener);
}

static inline void hub_stop(struct test_hub *h)
{
    peer_hub_destroy(&h->hub);
    if (h->listener)
        net_listener_close(&h->listener);
    turn_some(h->loop, 20);
    metrics_destroy(&h->metrics);
    free(h->pool);
    h->pool = NULL;
    h->link = NULL;
}

static inline uint64_t hub_count(struct test_hub *h, const char *name)
{
    return metric_count(metrics_counter(h->metrics, name, NULL, ""));
}

static inline void send_numbered(struct peer_link *link, uint64_t number, const char *words)
{
    struct wire_notice m = {.handle = number};
    struct buffer frame = {0};

    snprintf(m.message, sizeof m.message, "%s", words);
    assert_int_equal(wire_encode_notice(&frame, WIRE_CANCEL, &m), STATUS_OK);
    peer_link_send(link, &frame);
    buffer_deinit(&frame);
}

/* ---- a raw peer: bytes as they are ---- */

struct raw_peer {
    struct net_loop *loop;
    struct transport *t;
    struct buffer in;
    char sink[65536];
    bool broken, deaf; /* deaf: gives the transport no room, which TCP takes for an error */
    uint32_t n_writes;
    uint64_t n_sent, n_received;
};

struct raw_write {
    struct transport_write write; /* first */
    struct raw_peer *peer;
    char *data;
};

static inline void raw_room(void *context, char **base, size_t *len)
{
    struct raw_peer *p = context;

    *base = p->sink;
    *len = sizeof p->sink;
}

static inline void raw_arrived(void *context, size_t n)
{
    struct raw_peer *p = context;

    buffer_append(&p->in, p->sink, n);
}

static inline void raw_broken(void *context, enum status status)
{
    ((struct raw_peer *)context)->broken = true;
}

static inline void raw_connected(void *context, struct transport *t, enum status status)
{
    struct raw_peer *p = context;
    const struct transport_events events = {
        .room = raw_room, .arrived = raw_arrived, .broken = raw_broken, .context = p};

    assert_int_equal(status, STATUS_OK);
    p->t = t;
    if (!p->deaf)
        transport_start(t, &events);
}

static inline void raw_dial(struct raw_peer *p, struct test_hub *to)
{
    struct transport_dial *dial;

    p->loop = to->loop;
    assert_int_equal(
        transport_dial_tcp(to->loop, net_listener_address(to->listener), raw_connected, p, &dial),
        STATUS_OK);
    WAIT(p->loop, p->t);
}

static inline void raw_written(struct transport_write *w, enum status status)
{
    struct raw_write *r = (struct raw_write *)w;

    r->peer->n_writes--;
    free(r->data);
    free(r);
}

static inline void raw_send(struct raw_peer *p, const void *data, size_t len)
{
    struct raw_write *w = memory_alloc(1, sizeof *w);
    struct iovec part = {.iov_base = memory_alloc(len, 1), .iov_len = len};

    memcpy(part.iov_base, data, len);
    w->write.done = raw_written;
    w->peer = p;
    w->data = part.iov_base;
    p->n_writes++;
    transport_write(p->t, &part, 1, &w->write);
}

/* A frame between its seals. */
static inline void raw_seal(struct raw_peer *p, const void *frame, size_t len, struct buffer *out)
{
    uint8_t seal[WIRE_SEAL_BYTES];

    wire_seal(seal, frame, WIRE_FRAME_HEADER_BYTES, p->n_sent);
    buffer_append(out, seal, sizeof seal);
    buffer_append(out, frame, len);
    wire_seal(seal, frame, len, p->n_sent++);
    buffer_append(out, seal, sizeof seal);
}

static inline void raw_send_frame(struct raw_peer *p, const void *frame, size_t len)
{
    struct buffer sealed = {0};

    raw_seal(p, frame, len, &sealed);
    raw_send(p, sealed.data, sealed.len);
    buffer_deinit(&sealed);
}

static inline void raw_send_hello(struct raw_peer *p, const struct wire_hello *hello)
{
    struct buffer frame = {0};

    assert_int_equal(wire_encode_hello(&frame, hello), STATUS_OK);
    raw_send_frame(p, frame.data, frame.len);
    buffer_deinit(&frame);
}

static inline void raw_close(struct raw_peer *p)
{
    transport_close(&p->t);
    WAIT(p->loop, p->n_writes == 0);
    turn_some(p->loop, 5);
    buffer_deinit(&p->in);
}

/* Takes the next whole frame out of what has arrived; type 0: none yet. payload is valid until the
 * next call. */
static inline uint32_t raw_next(struct raw_peer *p, struct wire_frame *out, struct buffer *keep)
{
    uint8_t seal[WIRE_SEAL_BYTES];
    size_t used = 0;

    if (p->in.len < sizeof seal + WIRE_FRAME_HEADER_BYTES)
        return 0;
    const uint8_t *frame = (const uint8_t *)p->in.data + sizeof seal;
    assert_int_equal(wire_frame_parse(frame, p->in.len - sizeof seal, out, &used), STATUS_OK);
    if (!used || p->in.len < used + 2 * sizeof seal)
        return 0;
    wire_seal(seal, frame, WIRE_FRAME_HEADER_BYTES, p->n_received);
    assert_memory_equal(seal, p->in.data, sizeof seal);
    wire_seal(seal, frame, used, p->n_received++);
    assert_memory_equal(seal, frame + used, sizeof seal);
    buffer_clear(keep);
    buffer_append(keep, frame, used);
    buffer_consume(&p->in, used + 2 * sizeof seal);
    assert_int_equal(wire_frame_parse((const uint8_t *)keep->data, keep->len, out, &used),
                     STATUS_OK);
    return out->type;
}

/* Waits for a frame of a type, passing over others. */
static inline void raw_expect(struct raw_peer *p, uint32_t type, struct wire_frame *out,
                              struct buffer *keep)
{
    uint32_t got = 0;

    WAIT(p->loop, (p->in.len && (got = raw_next(p, out, keep)) == type) || p->broken);
    assert_int_equal(got, type);
}

/* A link with a bulk connection, from a raw peer: two connections with their hellos done. */
static inline void raw_link(struct raw_peer *control, struct raw_peer *bulk, struct test_hub *to,
                            struct wire_hello *hello)
{
    struct buffer keep = {0};
    struct wire_frame f;

    raw_dial(control, to);
    hello->link = 4711;
    hello->wants_bulk = bulk != NULL;
    hello->bulk = false;
    hello->version_min = hello->version_max = 1;
    raw_send_hello(control, hello);
    raw_expect(control, WIRE_HELLO, &f, &keep);
    if (bulk) {
        raw_dial(bulk, to);
        hello->bulk = true;
        raw_send_hello(bulk, hello);
        if (!bulk->deaf)
            raw_expect(bulk, WIRE_HELLO, &f, &keep);
    }
    WAIT(to->loop, to->link);
    buffer_deinit(&keep);
}

/* Keeps a raw link alive and answers nothing else. */
static inline void raw_ping(struct raw_peer *control)
{
    const struct wire_node_stats s = {.number = 1};
    struct buffer frame = {0};

    assert_int_equal(wire_encode_node_stats(&frame, WIRE_PONG, &s), STATUS_OK);
    raw_send_frame(control, frame.data, frame.len);
    buffer_deinit(&frame);
}

/* ---- a transfer: pages of a pattern that says where it belongs ---- */

static inline void fill_slab(char *slab, uint64_t bytes, uint64_t handle, uint32_t page,
                             uint32_t layer)
{
    uint32_t x = (uint32_t)(handle * 2654435761u) ^ page * 40503u ^ layer * 69069u;

    for (uint64_t i = 0; i < bytes; i += 4) {
        x = x * 1664525u + 1013904223u;
        memcpy(slab + i, &x, 4);
    }
}

struct transfer {
    struct peer_bulk bulk; /* first */
    uint64_t handle;
    struct kv_geometry g;
    uint32_t first_page, n_pages;
    uint32_t at_page, at_layer;
    char *slabs; /* [page][layer] */
    uint32_t n_given, n_back, n_back_failed;
    uint32_t max_seen;
};

static inline char *transfer_slab(struct transfer *t, uint32_t page, uint32_t layer)
{
    return t->slabs + ((uint64_t)page * t->g.n_layers + layer) * kv_slab_bytes(t->g);
}

static inline bool transfer_next(struct peer_bulk *b, struct wire_kv_header *h, const void **slabs,
                                 uint32_t max)
{
    struct transfer *t = (struct transfer *)b;

    if (t->at_layer == t->g.n_layers)
        return false;
    const uint32_t n = MIN(max, t->n_pages - t->at_page);
    *h = (struct wire_kv_header){.handle = t->handle,
                                 .layer = t->at_layer,
                                 .first_page = t->first_page + t->at_page,
                                 .n_pages = n,
                                 .slab_bytes = (uint32_t)kv_slab_bytes(t->g)};
    for (uint32_t i = 0; i < n; i++)
        slabs[i] = transfer_slab(t, t->at_page + i, t->at_layer);
    t->at_page += n;
    if (t->at_page == t->n_pages) {
        t->at_page = 0;
        t->at_layer++;
    }
    t->n_given += n;
    t->max_seen = max;
    return true;
}

static inline void transfer_sent(struct peer_bulk *b, uint32_t n, uint64_t wire_bytes,
                                 enum status status)
{
    struct transfer *t = (struct transfer *)b;

    t->n_back += n;
    t->n_back_failed += status != STATUS_OK ? n : 0;
}

static inline void transfer_init(struct transfer *t, uint64_t handle, struct kv_geometry g,
                                 uint32_t first_page, uint32_t n_pages)
{
    *t = (struct transfer){.bulk = {.next = transfer_next, .sent = transfer_sent},
                           .handle = handle,
                           .g = g,
                           .first_page = first_page,
                           .n_pages = n_pages};
    t->slabs = memory_alloc((size_t)n_pages * g.n_layers, kv_slab_bytes(g));
    for (uint32_t p = 0; p < n_pages; p++)
        for (uint32_t l = 0; l < g.n_layers; l++)
            fill_slab(transfer_slab(t, p, l), kv_slab_bytes(g), handle, first_page + p, l);
}

static inline bool transfer_arrived(struct transfer *t, struct test_hub *at)
{
    for (uint32_t p = 0; p < t->n_pages; p++)
        for (uint32_t l = 0; l < t->g.n_layers; l++)
            if (memcmp(transfer_slab(t, p, l), hub_slab(at, t->first_page + p, l),
                       kv_slab_bytes(t->g)))
                return false;
    return true;
}

#endif
