/* What the sender's table says, done. */
#include "handoff/internal.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/ring.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void act(struct handoff_sender *h, enum sender_event event);

/* ---- the end ---- */

static void maybe_released(struct handoff_sender *h)
{
    if (!h->over || h->n_tries || h->start_posted)
        return;
    *(h->prev ? &h->prev->next : &h->all->first) = h->next;
    if (h->next)
        h->next->prev = h->prev;
    h->all->stats.n_open--;
    h->source.released(h->source.context);
    buffer_deinit(&h->open_frame);
    free(h->targets);
    free(h);
}

static void try_free(struct try *t)
{
    struct handoff_sender *h = t->sender;

    free(t->sent_pages);
    free(t);
    h->n_tries--;
    maybe_released(h);
}

/* Leaves the target alone from now on; its memory goes when the last frame in flight is out. */
static void end_try(struct handoff_sender *h)
{
    struct try *t = h->try;

    h->try = NULL;
    if (!t)
        return;
    if (t->link)
        peer_bulk_remove(t->link, &t->bulk);
    t->link = NULL;
    if (t->bulk.n_in_flight == 0)
        try_free(t);
}

void sender_notice(struct peer_link *link, enum wire_type type, const struct handoff_sender *h,
                   uint64_t handle)
{
    struct wire_notice n = {
        .has_key = true, .key = h->key, .attempt = h->attempt, .handle = handle};
    struct buffer frame = {0};

    if (wire_encode_notice(&frame, type, &n) == STATUS_OK)
        peer_link_send(link, &frame);
    buffer_deinit(&frame);
}

/* ---- sending pages ---- */

static uint32_t ready_pages(const struct handoff_sender *h, uint32_t layer)
{
    const uint32_t n = h->source.layer_tokens(h->source.context, layer);

    return n >= h->n_prefix_tokens ? h->n_pages
                                   : n / PAGE_TOKENS; /* the tail page goes once it is all there */
}

static bool next_frame(struct peer_bulk *b, struct wire_kv_header *header, const void **slabs,
                       uint32_t max)
{
    struct try *t = (struct try *)b;
    struct handoff_sender *h = t->sender;
    const struct kv_geometry g = h->all->kv;

    for (uint32_t i = 0; i < g.n_layers; i++) {
        const uint32_t layer = (t->layer + i) % g.n_layers, first = t->sent_pages[layer];
        const uint32_t ready = ready_pages(h, layer);
        if (ready <= first)
            continue;
        const uint32_t n = MIN(ready - first, max);
        *header = (struct wire_kv_header){.handle = t->handle,
                                          .layer = layer,
                                          .first_page = first,
                                          .n_pages = n,
                                          .slab_bytes = (uint32_t)kv_slab_bytes(g)};
        for (uint32_t p = 0; p < n; p++)
            slabs[p] = h->source.slab(h->source.context, first + p, layer);
        t->sent_pages[layer] += n;
        t->layer = layer;
        if (t->sent_pages[layer] == h->n_pages)
            t->n_layers_done++;
        return true;
    }
    return false;
}

static bool all_sent(const struct handoff_sender *h)
{
    return h->try && h->prefill_done && h->try->n_layers_done == h->all->kv.n_layers;
}

static void frame_sent(struct peer_bulk *b, uint32_t n_slabs, uint64_t wire_bytes,
                       enum status status)
{
    struct try *t = (struct try *)b;
    struct handoff_sender *h = t->sender;

    if (status == STATUS_OK) {
        h->all->stats.n_slab_bytes_sent += (uint64_t)n_slabs * kv_slab_bytes(h->all->kv);
        h->all->stats.n_wire_bytes_sent += wire_bytes;
    }
    if (!t->link && b->n_in_flight == 0)
        try_free(t);
    else if (t->link && all_sent(h))
        act(h, SENDER_ALL_SENT);
}

static void pump(struct handoff_sender *h)
{
    struct try *t = h->try;

    peer_bulk_ready(t->link, &t->bulk);
    if (h->try == t && t->link && h->state == SENDER_STREAMING && all_sent(h))
        act(h, SENDER_ALL_SENT);
}

static void send_commit(struct handoff_sender *h)
{
    struct buffer frame = {0};

    h->commit.handle = h->try->handle;
    h->asked_ms = clock_now_ms();
    if (wire_encode_handoff_commit(&frame, &h->commit) == STATUS_OK)
        peer_link_send(h->try->link, &frame);
    buffer_deinit(&frame);
}

/* ---- targets ---- */

static struct try *try_create(struct handoff_sender *h, struct peer_link *link)
{
    struct try *t = memory_alloc(1, sizeof *t);

    if (!t)
        return NULL;
    t->sent_pages = memory_alloc(h->all->kv.n_layers, sizeof *t->sent_pages);
    if (!t->sent_pages) {
        free(t);
        return NULL;
    }
    t->bulk.next = next_frame;
    t->bulk.sent = frame_sent;
    t->sender = h;
    t->link = link;
    h->n_tries++;
    return t;
}

static void give_up(struct handoff_sender *h)
{
    h->state = SENDER_CLOSED;
    h->over = true;
    h->all->stats.n_failed++;
    metric_add(h->all->n_failed, 1);
    h->source.given_up(h->source.context, h->last_reason, h->last_message);
}

static void open_next(struct handoff_sender *h)
{
    while (h->next_target < h->n_targets) {
        struct peer_link *link = peer_hub_find(h->all->hub, h->targets[h->next_target++]);
        if (!link || !peer_link_has_bulk(link) || peer_link_is_leaving(link))
            continue; /* not a connected peer of this node, or not for long */
        h->try = try_create(h, link);
        if (!h->try)
            break;
        h->state = SENDER_OPENING;
        h->asked_ms = clock_now_ms();
        peer_link_send(link, &h->open_frame);
        return;
    }
    give_up(h);
}

static void start(struct net_task *task)
{
    struct handoff_sender *h =
        (struct handoff_sender *)((char *)task - offsetof(struct handoff_sender, start));

    h->start_posted = false;
    if (!h->over)
        open_next(h);
    maybe_released(h);
}

/* ---- the table's actions ---- */

static void act(struct handoff_sender *h, enum sender_event event)
{
    const enum sender_state from = h->state;
    const enum sender_action action = sender_next(&h->state, event);

    if (event != SENDER_LAYER_DONE) /* one a layer and chunk would drown the rest */
        ring_note("handoff-send", h->key.origin, h->key.number, h->attempt, sender_state_name(from),
                  sender_event_name(event), sender_state_name(h->state));
    switch (action) {
    case SENDER_DO_NOTHING:
    case SENDER_NOTE_LAYER:
    case SENDER_COUNT:
    case SENDER_LATE_READY: /* whoever got the message answers it: this sender has no link for it */
        break;
    case SENDER_NOTE_DONE:
        h->prefill_done = true;
        if (h->state == SENDER_STREAMING)
            pump(h);
        break;
    case SENDER_SEND_ALL_SO_FAR:
    case SENDER_SEND_LAYER:
        pump(h);
        break;
    case SENDER_SEND_COMMIT:
        send_commit(h);
        break;
    case SENDER_RELEASE:
        h->over = true;
        h->all->stats.n_accepted++;
        h->all->stats.n_pages_sent += h->n_pages;
        metric_add(h->all->n_accepted, 1);
        end_try(h);
        h->source.accepted(h->source.context);
        break;
    case SENDER_SEND_CANCEL:
        h->over = true;
        if (h->try && h->try->link)
            sender_notice(h->try->link, WIRE_CANCEL, h, h->try->handle);
        end_try(h);
        break;
    case SENDER_CANCEL_TRY_NEXT:
        if (h->try && h->try->link)
            sender_notice(h->try->link, WIRE_CANCEL, h, h->try->handle);
        end_try(h);
        open_next(h);
        break;
    case SENDER_TRY_NEXT:
        end_try(h);
        open_next(h);
        break;
    }
}

void sender_act(struct handoff_sender *h, enum sender_event event)
{
    h->n_tries++; /* held while it acts */
    act(h, event);
    h->n_tries--;
    maybe_released(h);
}

/* ---- what the node calls ---- */

static enum status copy_targets(struct handoff_sender *h, const struct wire_prefill_request *r)
{
    uint32_t n = r->n_decode_targets;

    if (!r->has_decode_targets)
        for (struct peer_link *i = peer_hub_next(h->all->hub, NULL); i;
             i = peer_hub_next(h->all->hub, i))
            n++;
    h->targets = memory_alloc(n, sizeof *h->targets);
    if (!h->targets)
        return STATUS_NO_MEMORY;
    if (r->has_decode_targets) {
        if (n)
            memcpy(h->targets, r->decode_targets, n * sizeof *h->targets);
        h->n_targets = n;
        return STATUS_OK;
    }
    /* nobody chose: the peers with the most free pages first */
    for (struct peer_link *i = peer_hub_next(h->all->hub, NULL); i;
         i = peer_hub_next(h->all->hub, i)) {
        if (strcmp(peer_link_hello(i)->role, "decode"))
            continue;
        uint32_t at = h->n_targets++;
        const struct wire_node_stats *stats = peer_link_stats(i);
        for (; at > 0; at--) {
            const struct wire_node_stats *before =
                peer_link_stats(peer_hub_find(h->all->hub, h->targets[at - 1]));
            if (before->n_free_pages + before->n_cached_pages >=
                stats->n_free_pages + stats->n_cached_pages)
                break;
            memcpy(h->targets[at], h->targets[at - 1], NODE_ID_BYTES);
        }
        memcpy(h->targets[at], peer_link_id(i), strlen(peer_link_id(i)) + 1);
    }
    return STATUS_OK;
}

enum status handoff_send_open(struct handoff_senders *s, const struct wire_decode_meta *meta,
                              uint32_t n_prefix_tokens, const struct handoff_source *source,
                              struct handoff_sender **out)
{
    struct handoff_sender *h = memory_alloc(1, sizeof *h);
    enum status status;

    if (!h)
        return STATUS_NO_MEMORY;
    h->all = s;
    h->source = *source;
    h->key = meta->request.key;
    h->attempt = meta->request.attempt;
    h->n_prefix_tokens = n_prefix_tokens;
    h->n_pages = kv_pages_of_tokens(n_prefix_tokens);
    h->last_reason = STATUS_NO_DECODE_ROOM;
    snprintf(h->last_message, sizeof h->last_message, "no decode node is linked");
    TRY_GOTO(failed, copy_targets(h, &meta->request));
    TRY_GOTO(failed, wire_encode_decode_meta(&h->open_frame, meta));
    h->next = s->first;
    if (s->first)
        s->first->prev = h;
    s->first = h;
    s->stats.n_open++;
    h->start.run = start;
    h->start_posted = true;
    net_post(s->loop, &h->start); /* so that nothing is called back before this returns */
    *out = h;
    return STATUS_OK;
failed:
    buffer_deinit(&h->open_frame);
    free(h->targets);
    free(h);
    return status;
}

void handoff_send_progress(struct handoff_sender *h)
{
    sender_act(h, SENDER_LAYER_DONE);
}

void handoff_send_commit(struct handoff_sender *h, uint32_t first_id,
                         const struct logprob_rows *row)
{
    h->commit = (struct wire_handoff_commit){
        .key = h->key,
        .attempt = h->attempt,
        .n_prefix_tokens = h->n_prefix_tokens,
        .first_page = h->commit.first_page,
        .n_pages = h->commit.n_pages,
        .first_id = first_id,
        .has_logprobs = row != NULL,
    };
    if (row) {
        const uint32_t n = MIN(row->n_top, (uint32_t)REQUEST_MAX_LOGPROBS);
        h->row_value = row->value[0];
        memcpy(h->row_ids, row->top_ids, n * sizeof *h->row_ids);
        memcpy(h->row_values, row->top_values, n * sizeof *h->row_values);
        h->commit.row = (struct logprob_rows){
            .n_top = n, .value = &h->row_value, .top_ids = h->row_ids, .top_values = h->row_values};
    }
    h->prefill_done = true; /* also for a target that is opened later */
    sender_act(h, SENDER_PREFILL_DONE);
}

void handoff_send_cancel(struct handoff_sender *h)
{
    if (h->over)
        return;
    sender_act(h, SENDER_CANCEL);
}
