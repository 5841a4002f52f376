/* The decode side: reservations that are being filled. A handle is a slot and a generation, so that
 * what arrives late for an earlier reservation finds nobody. */
#include "handoff/handoff.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/ring.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TICK_MS = 250, MAX_RECEIVERS = 4096 };

struct handoff_receiver {
    struct handoff_receivers *all;
    struct peer_link *link;
    struct handoff_sink sink;
    struct request_key key;
    uint32_t attempt;
    uint64_t handle;
    uint32_t n_prefix_tokens, first_page, n_pages; /* pages that are to be sent */
    uint8_t *present;                              /* [n_layers][n_pages] */
    uint64_t n_missing;
    int64_t heard_ms;
    struct arena commit_arena;
    struct wire_handoff_commit commit;
    bool commit_seen;
};

struct handoff_receivers {
    struct handoff_receivers_options options;
    struct handoff_receiver *slots[MAX_RECEIVERS];
    uint32_t generations[MAX_RECEIVERS];
    struct net_timer timer;
    struct handoff_receiver_stats stats;
    struct metric *n_committed, *n_ended, *n_stray;
    struct metrics_family in_flight;
};

static void note(const struct handoff_receiver *h, const char *from, const char *event,
                 const char *to)
{
    ring_note("handoff-receive", h->key.origin, h->key.number, h->attempt, from, event, to);
}

static const char *place(const struct handoff_receiver *h)
{
    return h->commit_seen ? "committing" : "receiving";
}

static uint32_t n_layers(const struct handoff_receivers *r)
{
    return peer_hub_hello(r->options.hub)->kv.n_layers;
}

static struct handoff_receiver *find(struct handoff_receivers *r, const struct peer_link *link,
                                     uint64_t handle)
{
    const uint32_t slot = (uint32_t)handle;
    struct handoff_receiver *h = slot < MAX_RECEIVERS ? r->slots[slot] : NULL;

    return h && h->handle == handle && h->link == link ? h : NULL;
}

static void tell(struct handoff_receiver *h, enum wire_type type, enum status reason)
{
    struct wire_notice n = {.has_key = true,
                            .key = h->key,
                            .attempt = h->attempt,
                            .handle = h->handle,
                            .reason = reason};
    struct buffer frame = {0};

    if (reason != STATUS_OK)
        snprintf(n.message, sizeof n.message, "%s", status_message());
    if (wire_encode_notice(&frame, type, &n) == STATUS_OK)
        peer_link_send(h->link, &frame);
    buffer_deinit(&frame);
}

static void receiver_free(struct handoff_receiver *h)
{
    struct handoff_receivers *r = h->all;

    peer_bulk_detach(h->link, h->handle);
    r->slots[(uint32_t)h->handle] = NULL;
    r->stats.n_open--;
    arena_deinit(&h->commit_arena);
    free(h->present);
    free(h);
}

static void end(struct handoff_receiver *h, enum status reason)
{
    const struct handoff_sink sink = h->sink;

    note(h, place(h), status_code(reason), "closed");
    h->all->stats.n_ended++;
    metric_add(h->all->n_ended, 1);
    receiver_free(h);
    sink.ended(sink.context, reason);
}

void handoff_receive_end(struct handoff_receiver *h, enum status reason)
{
    note(h, place(h), reason == STATUS_OK ? "cancel" : status_code(reason), "closed");
    h->all->stats.n_ended++;
    metric_add(h->all->n_ended, 1);
    if (reason != STATUS_OK)
        tell(h, WIRE_HANDOFF_FAILED, reason);
    receiver_free(h);
}

enum status handoff_receive_ready(struct handoff_receivers *r, struct peer_link *link,
                                  const struct request_key *key, uint32_t attempt,
                                  uint32_t n_prefix_tokens, uint32_t n_held_pages,
                                  const struct handoff_sink *sink, struct handoff_receiver **out)
{
    const uint32_t n_prefix_pages = kv_pages_of_tokens(n_prefix_tokens);
    struct handoff_receiver *h = NULL;
    uint32_t slot = 0;

    while (slot < MAX_RECEIVERS && r->slots[slot])
        slot++;
    if (slot == MAX_RECEIVERS)
        return fail(STATUS_QUEUE_FULL, "%d hand-offs are being received", MAX_RECEIVERS);
    h = memory_alloc(1, sizeof *h);
    if (!h)
        return STATUS_NO_MEMORY;
    h->n_pages = n_prefix_pages - n_held_pages;
    h->present = memory_alloc((size_t)h->n_pages * n_layers(r), 1);
    if (!h->present) {
        free(h);
        return STATUS_NO_MEMORY;
    }
    h->all = r;
    h->link = link;
    h->sink = *sink;
    h->key = *key;
    h->attempt = attempt;
    h->n_prefix_tokens = n_prefix_tokens;
    h->first_page = n_held_pages;
    h->n_missing = (uint64_t)h->n_pages * n_layers(r);
    h->handle = (uint64_t)++r->generations[slot] << 32 | slot;
    h->heard_ms = clock_now_ms();
    r->slots[slot] = h;
    r->stats.n_open++;
    note(h, "new", "reserved", "receiving");
    *out = h;

    const struct wire_decode_ready ready = {
        .key = *key, .attempt = attempt, .handle = h->handle, .n_held_pages = n_held_pages};
    struct buffer frame = {0};
    if (wire_encode_decode_ready(&frame, &ready) == STATUS_OK)
        peer_link_send(link, &frame);
    buffer_deinit(&frame);
    return STATUS_OK;
}

/* Once the commit and every slab are there. */
static void try_commit(struct handoff_receiver *h)
{
    const struct handoff_sink sink = h->sink;

    if (!h->commit_seen || h->n_missing)
        return;
    if (!sink.committed(sink.context, &h->commit)) {
        tell(h, WIRE_HANDOFF_FAILED, fail(STATUS_HANDOFF_FAILED, "the reservation is gone"));
        end(h, STATUS_HANDOFF_FAILED);
        return;
    }
    note(h, "committing", "accepted", "closed");
    tell(h, WIRE_HANDOFF_ACCEPTED, STATUS_OK);
    h->all->stats.n_committed++;
    h->all->stats.n_pages_received += h->n_pages;
    metric_add(h->all->n_committed, 1);
    receiver_free(h);
}

static enum status on_commit(struct handoff_receivers *r, struct peer_link *link,
                             const struct wire_frame *f)
{
    struct wire_handoff_commit m;
    struct arena arena = {0};
    enum status status = wire_decode_handoff_commit(f, &arena, &m);
    struct handoff_receiver *h = status == STATUS_OK ? find(r, link, m.handle) : NULL;

    if (status == STATUS_OK && !h) {
        /* it ended here meanwhile; the peer may not know yet */
        struct wire_notice n = {
            .has_key = true, .key = m.key, .attempt = m.attempt, .reason = STATUS_HANDOFF_FAILED};
        struct buffer frame = {0};
        snprintf(n.message, sizeof n.message, "no reservation has this handle");
        if (wire_encode_notice(&frame, WIRE_HANDOFF_FAILED, &n) == STATUS_OK)
            peer_link_send(link, &frame);
        buffer_deinit(&frame);
    } else if (h && (m.n_prefix_tokens != h->n_prefix_tokens || m.first_page != h->first_page ||
                     m.n_pages != h->n_pages)) {
        status = fail(STATUS_BAD_MESSAGE,
                      "the commit is for pages %u + %u of %u tokens, reserved are %u + %u of %u",
                      m.first_page, m.n_pages, m.n_prefix_tokens, h->first_page, h->n_pages,
                      h->n_prefix_tokens);
        tell(h, WIRE_HANDOFF_FAILED, status);
        end(h, status);
    } else if (h && !h->commit_seen) {
        h->commit = m;
        h->commit_seen = true;
        note(h, "receiving", "commit", "committing");
        h->commit_arena = arena;
        arena = (struct arena){0};
        h->heard_ms = clock_now_ms();
        try_commit(h);
    }
    arena_deinit(&arena);
    return status;
}

static enum status on_live(struct handoff_receivers *r, struct peer_link *link,
                           const struct wire_frame *f)
{
    struct arena arena = {0};
    struct wire_handles m;
    const enum status status = wire_decode_handles(f, &arena, &m);

    for (uint32_t i = 0; status == STATUS_OK && i < m.n; i++) {
        struct handoff_receiver *h = find(r, link, m.handles[i]);
        if (h)
            h->heard_ms = clock_now_ms();
    }
    arena_deinit(&arena);
    return status;
}

enum status handoff_receivers_message(struct handoff_receivers *r, struct peer_link *link,
                                      const struct wire_frame *f)
{
    return f->type == WIRE_HANDOFF_COMMIT ? on_commit(r, link, f) : on_live(r, link, f);
}

/* ---- slabs ---- */

static uint8_t *presence(struct handoff_receiver *h, const struct wire_kv_header *kv, uint32_t page)
{
    if (page < h->first_page || page - h->first_page >= h->n_pages || kv->layer >= n_layers(h->all))
        return NULL;
    return &h->present[(size_t)kv->layer * h->n_pages + (page - h->first_page)];
}

void *handoff_receivers_slab_room(struct handoff_receivers *r, struct peer_link *link,
                                  const struct wire_kv_header *kv, uint32_t page)
{
    struct handoff_receiver *h = find(r, link, kv->handle);
    const uint8_t *present = h ? presence(h, kv, page) : NULL;

    if (!present || *present) { /* late, out of range, or sent twice */
        r->stats.n_stray_slabs++;
        metric_add(r->n_stray, 1);
        return NULL;
    }
    h->heard_ms = clock_now_ms();
    return h->sink.slab(h->sink.context, page, kv->layer);
}

void handoff_receivers_slab_arrived(struct handoff_receivers *r, struct peer_link *link,
                                    const struct wire_kv_header *kv, uint32_t page, bool intact)
{
    struct handoff_receiver *h = find(r, link, kv->handle);
    uint8_t *present = h ? presence(h, kv, page) : NULL;

    if (!present || *present)
        return;
    if (!intact) {
        const enum status reason =
            fail(STATUS_BAD_FRAME, "the slab of page %u, layer %u does not match its checksum",
                 page, kv->layer);
        log_event(LOG_WARN, "corrupt slab", "peer=%s page=%u layer=%u", peer_link_id(link), page,
                  kv->layer);
        tell(h, WIRE_HANDOFF_FAILED, reason);
        end(h, reason);
        return;
    }
    *present = 1;
    h->n_missing--;
    h->heard_ms = clock_now_ms();
    r->stats.n_slab_bytes_received += kv->slab_bytes;
    try_commit(h);
}

void handoff_receivers_link_down(struct handoff_receivers *r, struct peer_link *link)
{
    for (uint32_t i = 0; i < MAX_RECEIVERS; i++)
        if (r->slots[i] && r->slots[i]->link == link)
            end(r->slots[i], STATUS_PEER_LOST);
}

/* ---- leases and the set ---- */

static void tick(void *context)
{
    struct handoff_receivers *r = context;
    const int64_t now_ms = clock_now_ms();

    for (uint32_t i = 0; r->stats.n_open && i < MAX_RECEIVERS; i++) {
        struct handoff_receiver *h = r->slots[i];
        if (!h || now_ms - h->heard_ms < r->options.lease_ms)
            continue;
        const enum status reason =
            fail(STATUS_HANDOFF_TIMEOUT, "no frame and no sign of life for %lld ms",
                 (long long)(now_ms - h->heard_ms));
        log_event(LOG_WARN, "lease over", "peer=%s error=" LOG_Q, peer_link_id(h->link),
                  log_quote(status_message()));
        tell(h, WIRE_HANDOFF_FAILED, reason);
        end(h, reason);
    }
}

static void fill_in_flight(const struct metrics_family *f, struct metrics_samples *out)
{
    const struct handoff_receivers *r = f->context;
    struct peer_hub *hub = r->options.hub;

    for (struct peer_link *link = peer_hub_next(hub, NULL); link; link = peer_hub_next(hub, link)) {
        char labels[NODE_ID_BYTES + 32];
        uint64_t n = 0;
        for (uint32_t i = 0; r->stats.n_open && i < MAX_RECEIVERS; i++)
            if (r->slots[i] && r->slots[i]->link == link)
                n += r->slots[i]->n_pages;
        snprintf(labels, sizeof labels, "peer=\"%s\"", peer_link_id(link));
        if (!strcmp(peer_link_hello(link)->role, "prefill"))
            metrics_sample(out, labels, (double)n);
    }
}

enum status handoff_receivers_create(const struct handoff_receivers_options *o,
                                     struct handoff_receivers **out)
{
    struct handoff_receivers *r = memory_alloc(1, sizeof *r);

    if (!r)
        return STATUS_NO_MEMORY;
    r->options = *o;
    r->n_committed = metrics_counter(o->metrics, "handoff_committed_total", NULL,
                                     "Hand-offs received whole and taken over.");
    r->n_ended = metrics_counter(o->metrics, "handoff_reservations_ended_total", NULL,
                                 "Reservations that ended without a commit.");
    r->n_stray = metrics_counter(o->metrics, "handoff_stray_slabs_total", NULL,
                                 "Slabs that arrived late, twice or for nobody.");
    const enum status status = net_timer_start(o->loop, &r->timer, TICK_MS, TICK_MS, tick, r);
    if (status != STATUS_OK) {
        free(r);
        return status;
    }
    r->in_flight = (struct metrics_family){.name = "handoff_pages_arriving",
                                           .type = "gauge",
                                           .help = "Pages of reservations that wait to be filled "
                                                   "and committed.",
                                           .fill = fill_in_flight,
                                           .context = r};
    metrics_add_family(o->metrics, &r->in_flight);
    *out = r;
    return STATUS_OK;
}

void handoff_receivers_destroy(struct handoff_receivers **pr)
{
    struct handoff_receivers *r = *pr;

    if (!r)
        return;
    net_timer_stop(&r->timer);
    metrics_remove_family(r->options.metrics, &r->in_flight);
    for (uint32_t i = 0; i < MAX_RECEIVERS; i++)
        if (r->slots[i])
            receiver_free(r->slots[i]);
    free(r);
    *pr = NULL;
}

void handoff_receivers_stats(const struct handoff_receivers *r, struct handoff_receiver_stats *out)
{
    *out = r->stats;
}
