/* All of a node's hand-offs that are being sent: messages find theirs, time ends what gets no
 * answer. */
#include "handoff/internal.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TICK_MS = 250, ANSWER_MS = 5000, LIVE_EVERY_TICKS = 4 };

/* ---- messages ---- */

static struct handoff_sender *find(struct handoff_senders *s, const struct peer_link *link,
                                   const struct request_key *key, uint32_t attempt)
{
    for (struct handoff_sender *h = s->first; h; h = h->next)
        if (h->try && h->try->link == link && h->attempt == attempt &&
            request_key_equal(&h->key, key))
            return h;
    return NULL;
}

static enum status on_ready(struct handoff_senders *s, struct peer_link *link,
                            const struct wire_frame *f)
{
    struct wire_decode_ready m;

    TRY(wire_decode_decode_ready(f, &m));
    struct handoff_sender *h = find(s, link, &m.key, m.attempt);
    if (!h || h->state != SENDER_OPENING) {
        struct handoff_sender gone = {.key = m.key, .attempt = m.attempt};
        metric_add(s->n_late, 1);
        sender_notice(link, WIRE_CANCEL, &gone, m.handle);
        return STATUS_OK;
    }
    if (m.n_held_pages > h->n_prefix_tokens / PAGE_TOKENS)
        return fail(STATUS_BAD_MESSAGE, "decode_ready holds %u pages of %u", m.n_held_pages,
                    h->n_pages);
    h->try->handle = m.handle;
    for (uint32_t i = 0; i < s->kv.n_layers; i++)
        h->try->sent_pages[i] = m.n_held_pages;
    if (m.n_held_pages == h->n_pages)
        h->try->n_layers_done = s->kv.n_layers;
    h->commit.first_page = m.n_held_pages;
    h->commit.n_pages = h->n_pages - m.n_held_pages;
    h->source.opened(h->source.context, peer_link_id(link));
    sender_act(h, SENDER_READY);
    return STATUS_OK;
}

static enum status on_notice(struct handoff_senders *s, struct peer_link *link,
                             const struct wire_frame *f)
{
    const enum sender_event event = f->type == WIRE_DECODE_REFUSE      ? SENDER_REFUSED
                                    : f->type == WIRE_HANDOFF_ACCEPTED ? SENDER_ACCEPTED
                                                                       : SENDER_FAILED;
    struct wire_notice m;

    TRY(wire_decode_notice(f, &m));
    struct handoff_sender *h = m.has_key ? find(s, link, &m.key, m.attempt) : NULL;
    if (!h) {
        metric_add(s->n_late, 1);
        return STATUS_OK;
    }
    if (event != SENDER_ACCEPTED) {
        h->last_reason = event == SENDER_REFUSED ? STATUS_NO_DECODE_ROOM : STATUS_HANDOFF_FAILED;
        snprintf(h->last_message, sizeof h->last_message, "%s: %s: %s", peer_link_id(link),
                 status_code(m.reason), m.message);
        log_event(LOG_WARN, event == SENDER_REFUSED ? "hand-off refused" : "hand-off failed",
                  "peer=%s reason=%s error=" LOG_Q, peer_link_id(link), status_code(m.reason),
                  log_quote(m.message));
        s->stats.n_refused += event == SENDER_REFUSED;
        metric_add(s->n_refused, event == SENDER_REFUSED);
    }
    sender_act(h, event);
    return STATUS_OK;
}

enum status handoff_senders_message(struct handoff_senders *s, struct peer_link *link,
                                    const struct wire_frame *f)
{
    return f->type == WIRE_DECODE_READY ? on_ready(s, link, f) : on_notice(s, link, f);
}

void handoff_senders_link_down(struct handoff_senders *s, struct peer_link *link)
{
    for (struct handoff_sender *h = s->first, *next; h; h = next) {
        next = h->next;
        if (!h->try || h->try->link != link)
            continue;
        h->last_reason = STATUS_PEER_LOST;
        snprintf(h->last_message, sizeof h->last_message, "the link to %s was lost",
                 peer_link_id(link));
        /* two in a row may have died of this very request: a third is not put at risk from here */
        if (peer_link_broke(link) && !peer_link_stats(link)->draining) {
            if (h->source.target_broke)
                h->source.target_broke(h->source.context, peer_link_id(link),
                                       peer_link_hello(link)->epoch);
            if (++h->n_broken == WIRE_MAX_LOST_NODES)
                h->next_target = h->n_targets;
        }
        sender_act(h, SENDER_LINK_LOST);
    }
}

/* ---- time ---- */

static void send_handles(struct peer_link *link, struct wire_handles *m)
{
    struct buffer frame = {0};

    if (m->n && wire_encode_handles(&frame, m) == STATUS_OK)
        peer_link_send(link, &frame);
    buffer_deinit(&frame);
    m->n = 0;
}

static void send_live_handles(struct handoff_senders *s)
{
    for (struct peer_link *link = peer_hub_next(s->hub, NULL); link;
         link = peer_hub_next(s->hub, link)) {
        uint64_t handles[256];
        struct wire_handles m = {.handles = handles};
        for (struct handoff_sender *h = s->first; h; h = h->next) {
            if (!h->try || h->try->link != link || !h->try->handle)
                continue;
            handles[m.n++] = h->try->handle;
            if (m.n == ARRAY_LENGTH(handles))
                send_handles(link, &m);
        }
        send_handles(link, &m);
    }
}

static void tick(void *context)
{
    struct handoff_senders *s = context;
    const int64_t now_ms = clock_now_ms();

    if (++s->ticks % LIVE_EVERY_TICKS == 0)
        send_live_handles(s);
    for (struct handoff_sender *h = s->first, *next; h; h = next) {
        next = h->next;
        /* while pages stream, the prefill's own pace is what decides; the target owes an answer to
         * an open and a commit */
        if (h->over || !h->try || h->state == SENDER_STREAMING || now_ms - h->asked_ms < ANSWER_MS)
            continue;
        h->last_reason = STATUS_HANDOFF_TIMEOUT;
        snprintf(h->last_message, sizeof h->last_message, "no answer for %lld ms",
                 (long long)(now_ms - h->asked_ms));
        sender_act(h, SENDER_LEASE_OVER);
    }
}

/* ---- the set ---- */

static void fill_in_flight(const struct metrics_family *f, struct metrics_samples *out)
{
    const struct handoff_senders *s = f->context;

    for (struct peer_link *link = peer_hub_next(s->hub, NULL); link;
         link = peer_hub_next(s->hub, link)) {
        char labels[NODE_ID_BYTES + 32];
        uint64_t n = 0;
        for (const struct handoff_sender *h = s->first; h; h = h->next)
            if (h->try && h->try->link == link && h->try->handle)
                n += h->n_pages - h->commit.first_page;
        snprintf(labels, sizeof labels, "peer=\"%s\"", peer_link_id(link));
        if (!strcmp(peer_link_hello(link)->role, "decode"))
            metrics_sample(out, labels, (double)n);
    }
}

enum status handoff_senders_create(struct net_loop *loop, struct peer_hub *hub, struct metrics *m,
                                   struct handoff_senders **out)
{
    struct handoff_senders *s = memory_alloc(1, sizeof *s);

    if (!s)
        return STATUS_NO_MEMORY;
    s->loop = loop;
    s->hub = hub;
    s->kv = peer_hub_hello(hub)->kv;
    s->n_accepted = metrics_counter(m, "handoff_accepted_total", NULL,
                                    "Hand-offs whose decode node took ownership.");
    s->n_refused =
        metrics_counter(m, "handoff_refused_total", NULL, "Opens that a decode node refused.");
    s->n_failed =
        metrics_counter(m, "handoff_given_up_total", NULL, "Hand-offs that no target completed.");
    s->n_late = metrics_counter(m, "handoff_late_messages_total", NULL,
                                "Messages for hand-offs that were over.");
    const enum status status = net_timer_start(loop, &s->timer, TICK_MS, TICK_MS, tick, s);
    if (status != STATUS_OK) {
        free(s);
        return status;
    }
    s->metrics = m;
    s->in_flight = (struct metrics_family){.name = "handoff_pages_leaving",
                                           .type = "gauge",
                                           .help = "Pages of hand-offs that a decode node has "
                                                   "taken and not yet accepted.",
                                           .fill = fill_in_flight,
                                           .context = s};
    metrics_add_family(m, &s->in_flight);
    *out = s;
    return STATUS_OK;
}

void handoff_senders_destroy(struct handoff_senders **s)
{
    if (!*s)
        return;
    net_timer_stop(&(*s)->timer);
    metrics_remove_family((*s)->metrics, &(*s)->in_flight);
    free(*s);
    *s = NULL;
}

void handoff_senders_stats(const struct handoff_senders *s, struct handoff_sender_stats *out)
{
    *out = s->stats;
}
