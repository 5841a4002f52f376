/* A hub against a peer that says anything, over a connection in memory: hello, control, bulk. The
 * input is a list of (connection, length, bytes); bytes go out as they are, or as a frame with a
 * header that is right, or as a KV frame. Whatever comes, nothing is written outside the slabs that
 * were given out, and every hold comes back. */
#include "base/checked.h"
#include "base/log.h"
#include "peer/internal.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CHECK(x)                                                                                   \
    do {                                                                                           \
        if (!(x))                                                                                  \
            abort();                                                                               \
    } while (0)

enum { N_PAGES = 4, N_LAYERS = 2, SLAB_BYTES = 1024 };

struct room {
    uint8_t *slabs; /* each exactly so large that a sanitizer sees a byte too far */
    uint32_t n_given, n_arrived;
    bool up;
};

static void link_up(void *context, struct peer_link *link)
{
    ((struct room *)context)->up = true;
}

static void link_down(void *context, struct peer_link *link, enum status reason)
{
    ((struct room *)context)->up = false;
    CHECK(reason != STATUS_OK);
}

static enum status message(void *context, struct peer_link *link, const struct wire_frame *f)
{
    struct wire_notice n;
    const enum status status = wire_decode_notice(f, &n);

    if (status == STATUS_OK && n.handle)
        peer_bulk_detach(link, n.handle);
    return status;
}

static void *slab_room(void *context, struct peer_link *link, const struct wire_kv_header *h,
                       uint32_t page)
{
    struct room *r = context;

    CHECK(h->layer < N_LAYERS && h->slab_bytes == SLAB_BYTES);
    if (page >= N_PAGES || h->handle % 3 == 2)
        return NULL;
    r->n_given++;
    return r->slabs + ((size_t)page * N_LAYERS + h->layer) * SLAB_BYTES;
}

static void slab_arrived(void *context, struct peer_link *link, const struct wire_kv_header *h,
                         uint32_t page, bool intact)
{
    struct room *r = context;

    CHECK(page < N_PAGES && h->layer < N_LAYERS);
    CHECK(++r->n_arrived <= r->n_given);
}

static void node_stats(void *context, struct wire_node_stats *out)
{
}

/* ---- the peer's ends ---- */

struct far_end {
    struct transport *t;
    uint64_t n_sent; /* frames, for their seals */
    char sink[4096];
};

static void far_room(void *context, char **base, size_t *len)
{
    struct far_end *e = context;

    *base = e->sink;
    *len = sizeof e->sink;
}

static void far_arrived(void *context, size_t n)
{
}

static void far_broken(void *context, enum status status)
{
    struct far_end *e = context;

    transport_close(&e->t);
}

struct far_write {
    struct transport_write write; /* first */
    size_t len;
    uint8_t data[];
};

static uint32_t n_writes;

static void far_written(struct transport_write *w, enum status status)
{
    n_writes--;
    free(w);
}

static void far_send(struct far_end *e, const void *data, size_t len)
{
    struct far_write *w = malloc(sizeof *w + len);
    struct iovec part = {.iov_base = w->data, .iov_len = len};

    if (!e->t || len == 0) {
        free(w);
        return;
    }
    memcpy(w->data, data, len);
    w->write.done = far_written;
    n_writes++;
    transport_write(e->t, &part, 1, &w->write);
}

/* A frame between its seals, which hold: what they refuse is not worth an hour of guessing. */
static void far_send_frame(struct far_end *e, const struct buffer *frame)
{
    struct buffer sealed = {0};
    uint8_t seal[WIRE_SEAL_BYTES];

    wire_seal(seal, frame->data, WIRE_FRAME_HEADER_BYTES, e->n_sent);
    buffer_append(&sealed, seal, sizeof seal);
    buffer_append(&sealed, frame->data, frame->len);
    wire_seal(seal, frame->data, frame->len, e->n_sent++);
    buffer_append(&sealed, seal, sizeof seal);
    far_send(e, sealed.data, sealed.len);
    buffer_deinit(&sealed);
}

static struct wire_hello hello_of(const char *id, const char *role)
{
    struct wire_hello h = {.version_min = 1,
                           .version_max = 1,
                           .epoch = 7,
                           .has_model = true,
                           .kv = {.n_layers = N_LAYERS, .n_kv_heads = 1, .head_dim = 8},
                           .max_context_tokens = 64};

    strcpy(h.node_id, id);
    strcpy(h.role, role);
    return h;
}

static void say_hello(struct far_end *e, bool bulk, bool follows)
{
    struct wire_hello h = hello_of("prefill-0", "prefill");
    struct buffer frame = {0};

    h.link = 5;
    h.bulk = bulk;
    h.wants_bulk = follows;
    if (wire_encode_hello(&frame, &h) == STATUS_OK)
        far_send_frame(e, &frame);
    buffer_deinit(&frame);
}

static void send_control_frame(struct far_end *e, const uint8_t *data, size_t len)
{
    static const uint8_t types[] = {1, 2, 3, 4, 5, 17, 20, 23, 26};
    struct buffer frame = {0};

    if (len < 1)
        return;
    const uint32_t n = (uint32_t)len - 1, total = n + 8;
    const uint8_t header[12] = {
        (uint8_t)total, (uint8_t)(total >> 8), 0, 0, types[data[0] % ARRAY_LENGTH(types)], 0, 0, 0,
        (uint8_t)n,     (uint8_t)(n >> 8),     0, 0};
    buffer_append(&frame, header, sizeof header);
    buffer_append(&frame, data + 1, n);
    far_send_frame(e, &frame);
    buffer_deinit(&frame);
}

/* handle, layer, page, number of slabs, whether the last checksum holds, where it is cut. */
static void send_kv_frame(struct far_end *e, const uint8_t *data, size_t len)
{
    struct buffer frame = {0};
    uint8_t slab[SLAB_BYTES], header[WIRE_KV_HEADER_BYTES];

    if (len < 6)
        return;
    const struct wire_kv_header h = {.handle = data[0],
                                     .layer = data[1] % (N_LAYERS + 1),
                                     .first_page = data[2] % (N_PAGES + 2),
                                     .n_pages = data[3] % 5,
                                     .slab_bytes = data[4] == 255 ? SLAB_BYTES - 1 : SLAB_BYTES};
    wire_encode_kv_header(header, &h);
    buffer_append(&frame, header, sizeof header);
    memset(slab, data[5], sizeof slab);
    for (uint32_t i = 0; i < h.n_pages; i++) {
        const uint32_t crc = wire_crc32c(slab, sizeof slab) ^ (data[4] == i);
        const uint8_t tail[4] = {(uint8_t)crc, (uint8_t)(crc >> 8), (uint8_t)(crc >> 16),
                                 (uint8_t)(crc >> 24)};
        buffer_append(&frame, slab, sizeof slab);
        buffer_append(&frame, tail, sizeof tail);
    }
    /* cut, the stream is out of step, unless the input goes on from there */
    far_send(e, frame.data, data[5] % 8 == 7 ? frame.len * data[4] / 256 : frame.len);
    buffer_deinit(&frame);
}

static void attach(struct net_loop *loop, struct peer_hub *hub, struct far_end *e)
{
    const struct transport_events events = {
        .room = far_room, .arrived = far_arrived, .broken = far_broken, .context = e};
    struct transport *near = NULL;

    CHECK(transport_memory_pair(loop, &e->t, &near) == STATUS_OK);
    transport_start(e->t, &events);
    struct peer_link *link = link_create(hub, near, NULL);
    CHECK(link);
    link_begin(link);
}

static void play(struct net_loop *loop, struct far_end ends[2], const uint8_t *data, size_t size)
{
    while (size >= 2) {
        const uint8_t what = data[0];
        const size_t len = MIN((size_t)data[1] * (what & 64 ? 8 : 1), size - 2);
        struct far_end *e = &ends[what & 1];
        switch (what >> 1 & 7) {
        case 0:
        case 1:
            far_send(e, data + 2, len);
            break;
        case 2:
        case 3:
            send_control_frame(&ends[0], data + 2, len);
            break;
        case 4:
        case 5:
            send_kv_frame(&ends[1], data + 2, len);
            break;
        case 6:
            say_hello(e, what & 8, what & 16);
            break;
        default:
            if (what == 255)
                transport_close(&e->t);
        }
        if (what & 32)
            net_loop_turn(loop);
        data += 2 + len;
        size -= 2 + len;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct net_loop *loop;
    static struct metrics *metrics;
    struct far_end ends[2] = {0};
    struct room room = {.slabs = malloc(N_PAGES * N_LAYERS * SLAB_BYTES)};
    const struct log_options quiet = {.level = LOG_ERROR + 1};
    struct peer_hub *hub;

    if (!loop) {
        log_setup(&quiet);
        CHECK(net_loop_create(&loop) == STATUS_OK);
        metrics = metrics_create("");
    }
    const struct peer_hub_options o = {.loop = loop,
                                       .hello = hello_of("decode-0", "decode"),
                                       .events = {.link_up = link_up,
                                                  .link_down = link_down,
                                                  .message = message,
                                                  .slab_room = slab_room,
                                                  .slab_arrived = slab_arrived,
                                                  .node_stats = node_stats,
                                                  .context = &room},
                                       .limits = peer_limits_default,
                                       .metrics = metrics};
    CHECK(peer_hub_create(&o, &hub) == STATUS_OK);
    attach(loop, hub, &ends[0]);
    attach(loop, hub, &ends[1]);
    if (size && data[0] % 4) { /* mostly a link that is up already */
        say_hello(&ends[0], false, true);
        net_loop_turn(loop);
        net_loop_turn(loop);
        say_hello(&ends[1], true, true);
        for (int i = 0; i < 4; i++)
            net_loop_turn(loop);
        CHECK(room.up);
    }
    if (size)
        play(loop, ends, data + 1, size - 1);
    for (int i = 0; i < 6; i++)
        net_loop_turn(loop);
    peer_hub_destroy(&hub);
    for (int i = 0; i < 2; i++)
        transport_close(&ends[i].t);
    for (int i = 0; i < 6; i++)
        net_loop_turn(loop);
    CHECK(n_writes == 0);
    free(room.slabs);
    return 0;
}
