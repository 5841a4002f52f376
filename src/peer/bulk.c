/* A link's bulk connection: pages out, in turns, straight from the pool; pages in, straight to it.
 */
#include "peer/internal.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"

#include <string.h>

enum { UNSENT_BYTES_MAX = 1 << 20 };

/* ---- sending ---- */

static void append_turn(struct peer_link *link, struct peer_bulk *b)
{
    b->prev_turn = link->turn_last;
    b->next_turn = NULL;
    *(link->turn_last ? &link->turn_last->next_turn : &link->turn_first) = b;
    link->turn_last = b;
    b->in_rotation = true;
}

static void remove_turn(struct peer_link *link, struct peer_bulk *b)
{
    *(b->prev_turn ? &b->prev_turn->next_turn : &link->turn_first) = b->next_turn;
    *(b->next_turn ? &b->next_turn->prev_turn : &link->turn_last) = b->prev_turn;
    b->prev_turn = b->next_turn = NULL;
    b->in_rotation = false;
}

static void frame_sent(struct transport_write *w, enum status status)
{
    struct bulk_frame *f = (struct bulk_frame *)w;
    struct peer_link *link = f->link;
    struct peer_bulk *b = f->bulk;

    f->used = false;
    link->bulk_progress.n_writes++;
    if (status == STATUS_OK &&
        link->state != LINK_CLOSED) { /* otherwise the hub may be gone already */
        link->bulk_bytes_sent += f->bytes;
        metric_add(link->hub->bytes_sent, f->bytes);
    }
    b->n_in_flight--;
    b->sent(b, f->n_slabs, f->bytes, status);
    if (status != STATUS_OK) {
        link->broke = true;
        link_doom(link, STATUS_PEER_LOST);
    }
    bulk_pump(link);
    link_unpin(link);
}

static void send_frame(struct peer_link *link, struct bulk_frame *f, struct peer_bulk *b,
                       const struct wire_kv_header *h, const void *const *slabs)
{
    struct iovec parts[1 + 2 * PEER_BULK_MAX_SLABS];
    uint32_t n = 0;

    wire_encode_kv_header(f->header, h);
    parts[n++] = (struct iovec){.iov_base = f->header, .iov_len = sizeof f->header};
    for (uint32_t i = 0; i < h->n_pages; i++) {
        parts[n++] = (struct iovec){.iov_base = (void *)slabs[i], .iov_len = h->slab_bytes};
        if (!link->crc_bytes)
            continue;
        const uint32_t crc = wire_crc32c(slabs[i], h->slab_bytes);
        for (int j = 0; j < WIRE_KV_CRC_BYTES; j++)
            f->crc[i][j] = (uint8_t)(crc >> (8 * j));
        parts[n++] = (struct iovec){.iov_base = f->crc[i], .iov_len = WIRE_KV_CRC_BYTES};
    }
    f->used = true;
    f->link = link;
    f->bulk = b;
    f->n_slabs = h->n_pages;
    f->bytes = sizeof f->header + (uint64_t)h->n_pages * (h->slab_bytes + link->crc_bytes);
    f->write.done = frame_sent;
    b->n_in_flight++;
    link->n_pins++;
    transport_write(link->bulk, parts, n, &f->write);
}

void bulk_pump(struct peer_link *link)
{
    for (uint32_t i = 0; i < BULK_FRAMES_IN_FLIGHT; i++) {
        struct bulk_frame *f = &link->frames[i];
        while (!f->used && link->state == LINK_UP && !link->doomed && link->bulk &&
               link->turn_first) {
            struct peer_bulk *b = link->turn_first;
            const uint32_t slab_bytes = (uint32_t)kv_slab_bytes(link->ours.kv);
            const uint32_t max =
                MAX(1u, MIN(PEER_BULK_MAX_SLABS, WIRE_KV_FRAME_BYTES_MAX / MAX(1u, slab_bytes)));
            const void *slabs[PEER_BULK_MAX_SLABS];
            struct wire_kv_header h;
            remove_turn(link, b);
            if (!b->next(b, &h, slabs, max))
                continue; /* it comes back with peer_bulk_ready() */
            append_turn(link, b);
            send_frame(link, f, b, &h, slabs);
        }
    }
}

void peer_bulk_ready(struct peer_link *link, struct peer_bulk *b)
{
    if (link->state != LINK_UP || b->in_rotation)
        return;
    append_turn(link, b);
    link->n_pins++;
    bulk_pump(link);
    link_unpin(link);
}

void peer_bulk_remove(struct peer_link *link, struct peer_bulk *b)
{
    if (b->in_rotation)
        remove_turn(link, b);
}

/* ---- receiving ---- */

void peer_bulk_detach(struct peer_link *link, uint64_t handle)
{
    if (link->header_fill == WIRE_KV_HEADER_BYTES && link->kv.handle == handle)
        link->slab = NULL;
}

static void begin_slab(struct peer_link *link)
{
    const struct peer_events *e = &link->hub->options.events;

    link->slab_fill = 0;
    link->slab = e->slab_room(e->context, link, &link->kv, link->kv.first_page + link->kv_page);
}

/* Sizes come from our own geometry: a header that says otherwise ends the link. */
static enum status begin_frame(struct peer_link *link)
{
    const struct kv_geometry g = link->ours.kv;
    struct wire_kv_header h;

    TRY(wire_decode_kv_header(link->header, &h));
    if (h.slab_bytes != kv_slab_bytes(g))
        return fail(STATUS_BAD_FRAME, "a KV frame has slabs of %u bytes, ours have %llu",
                    h.slab_bytes, (unsigned long long)kv_slab_bytes(g));
    if (h.layer >= g.n_layers)
        return fail(STATUS_BAD_FRAME, "a KV frame is for layer %u of %u", h.layer, g.n_layers);
    if (h.n_pages == 0 ||
        (h.n_pages > 1 && (uint64_t)h.n_pages * h.slab_bytes > WIRE_KV_FRAME_BYTES_MAX) ||
        h.first_page > UINT32_MAX - h.n_pages)
        return fail(STATUS_BAD_FRAME, "a KV frame has %u slabs of %u bytes, %u bytes are possible",
                    h.n_pages, h.slab_bytes, WIRE_KV_FRAME_BYTES_MAX);
    link->kv = h;
    link->kv_page = 0;
    begin_slab(link);
    return STATUS_OK;
}

void bulk_receive_room(struct peer_link *link, char **base, size_t *len)
{
    if (link->header_fill < WIRE_KV_HEADER_BYTES) {
        *base = (char *)link->header + link->header_fill;
        *len = WIRE_KV_HEADER_BYTES - link->header_fill;
    } else if (link->slab_fill >= link->kv.slab_bytes) {
        *base = (char *)link->crc + (link->slab_fill - link->kv.slab_bytes);
        *len = link->kv.slab_bytes + link->crc_bytes - link->slab_fill;
    } else {
        const size_t left = link->kv.slab_bytes - link->slab_fill;
        *base = link->slab ? link->slab + link->slab_fill : link->hub->discard;
        *len = link->slab ? left : MIN(left, (size_t)link->hub->discard_bytes);
    }
}

static void end_slab(struct peer_link *link)
{
    const struct peer_events *e = &link->hub->options.events;

    if (link->slab) {
        uint32_t crc = 0;
        for (int i = 0; i < WIRE_KV_CRC_BYTES; i++)
            crc |= (uint32_t)link->crc[i] << (8 * i);
        const bool intact = !link->crc_bytes || wire_crc32c(link->slab, link->kv.slab_bytes) == crc;
        if (!intact)
            metric_add(link->hub->n_bad_slabs, 1);
        link->slab = NULL;
        e->slab_arrived(e->context, link, &link->kv, link->kv.first_page + link->kv_page, intact);
    }
}

enum status bulk_receive_arrived(struct peer_link *link, size_t n)
{
    link->last_heard_ms = clock_now_ms();
    link->bulk_bytes_received += n;
    metric_add(link->hub->bytes_received, n);
    if (link->header_fill < WIRE_KV_HEADER_BYTES) {
        link->header_fill += (uint32_t)n;
        return link->header_fill == WIRE_KV_HEADER_BYTES ? begin_frame(link) : STATUS_OK;
    }
    link->slab_fill += (uint32_t)n;
    if (link->slab_fill < link->kv.slab_bytes + link->crc_bytes)
        return STATUS_OK;
    end_slab(link);
    if (++link->kv_page < link->kv.n_pages)
        begin_slab(link);
    else
        link->header_fill = 0;
    return STATUS_OK;
}

static void room(void *context, char **base, size_t *len)
{
    bulk_receive_room(context, base, len);
}

static void arrived(void *context, size_t n)
{
    struct peer_link *link = context;

    link->n_pins++;
    const enum status status = bulk_receive_arrived(link, n);
    if (status != STATUS_OK)
        link_lost(link, status);
    link_unpin(link);
}

static void broken(void *context, enum status status)
{
    struct peer_link *link = context;

    link->broke = true;
    link_lost(link, status);
}

static enum status register_slabs(const struct peer_hub *hub, struct transport *t)
{
    const struct transport_region unwanted = {.base = hub->discard, .bytes = hub->discard_bytes};

    if (!hub->options.slabs.base)
        return STATUS_OK;
    TRY(transport_register(t, &hub->options.slabs));
    return transport_register(t, &unwanted);
}

/* Both sides: the connection's hello is done and it carries KV frames from now on. */
void link_adopt_bulk(struct peer_link *link, struct transport *t)
{
    link->n_pins++;
    link->bulk = t;
    link->crc_bytes = t->guarded ? 0 : WIRE_KV_CRC_BYTES;
    t->events = (struct transport_events){
        .room = room, .arrived = arrived, .broken = broken, .context = link};
    transport_limit_unsent(t, UNSENT_BYTES_MAX);
    const enum status status = register_slabs(link->hub, t);
    if (status != STATUS_OK)
        link_doom(link, status);
    if (!link->dial && !link->ours.wants_bulk) {
        /* the accepting side answers here; the frame lives in the channel that no longer reads */
        struct buffer frame = {0};
        link->ours.bulk = true;
        if (wire_encode_hello(&frame, &link->ours) == STATUS_OK) {
            link->bulk_hello.transport = t;
            channel_send(&link->bulk_hello, link, frame.data, frame.len);
            link->bulk_hello.transport = NULL;
        }
        buffer_deinit(&frame);
    }
    if (link->state == LINK_WAITING_BULK)
        link_is_up(link);
    link_unpin(link);
}
