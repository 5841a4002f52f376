/* The hub: who is dialled, who is accepted, who is alive. */
#include "peer/internal.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"

#include <stdlib.h>
#include <string.h>

const struct peer_limits peer_limits_default = {
    .ping_ms = 200, .dead_ms = 1000, .stuck_ms = 5000, .redial_min_ms = 100, .redial_max_ms = 2000};

enum {
    HELLO_PATIENCE_MS = 30000,
    LEAVE_MS = 60000,
    SHORT_LIFE_MS = 3000,
    SHORT_LIVES_MAX = 5 /* in a row, before the peer is rested */
};

/* ---- liveness ---- */

static bool stands_still(struct progress *p, const struct transport *t, int64_t now_ms,
                         uint32_t limit_ms)
{
    const size_t unsent = t ? transport_unsent(t) : 0;

    /* the same number of bytes twice may be others: the loop looks seldom, and writes are alike */
    if (unsent == 0 || unsent != p->unsent || p->n_writes != p->n_writes_seen)
        p->since_ms = now_ms;
    p->unsent = unsent;
    p->n_writes_seen = p->n_writes;
    return now_ms - p->since_ms > limit_ms;
}

static void judge(struct peer_hub *hub, struct peer_link *link, int64_t now_ms)
{
    const struct peer_limits *limits = &hub->options.limits;

    if (link->state == LINK_HELLO) {
        /* a node that is still loading lets its callers wait in the kernel's queue */
        if (now_ms - link->last_heard_ms > HELLO_PATIENCE_MS)
            link_lost(link, fail(STATUS_PEER_LOST, "no hello for %d ms", HELLO_PATIENCE_MS));
        return;
    }
    if (link->leaving_since_ms && now_ms - link->leaving_since_ms > LEAVE_MS)
        link_lost(link, fail(STATUS_DRAINING, "it is no longer named as a peer"));
    else if (now_ms - link->last_heard_ms > limits->dead_ms)
        link_lost(link, fail(STATUS_PEER_LOST, "not a byte for %lld ms",
                             (long long)(now_ms - link->last_heard_ms)));
    else if (link->state == LINK_UP && link->stats.busy &&
             now_ms - link->progress_since_ms > limits->stuck_ms)
        link_lost(link, fail(STATUS_PEER_LOST, "busy without progress for %lld ms",
                             (long long)(now_ms - link->progress_since_ms)));
    else if (stands_still(&link->control.progress, link->control.transport, now_ms,
                          limits->dead_ms) ||
             stands_still(&link->bulk_progress, link->bulk, now_ms, limits->dead_ms))
        link_lost(link,
                  fail(STATUS_PEER_LOST, "the peer has read nothing for %u ms", limits->dead_ms));
}

void peer_hub_announce(struct peer_hub *hub)
{
    struct wire_node_stats stats = {.number = ++hub->ping_number,
                                    .sent_at_us = clock_now_ns() / 1000};
    struct buffer frame = {0};

    hub->options.events.node_stats(hub->options.events.context, &stats);
    if (wire_encode_node_stats(&frame, WIRE_PING, &stats) == STATUS_OK)
        for (struct peer_link *i = hub->links, *next; i; i = next) {
            next = i->next;
            peer_link_send(i, &frame);
        }
    buffer_deinit(&frame);
}

static void tick(void *context)
{
    struct peer_hub *hub = context;
    const int64_t now_ms = clock_now_ms();

    /* after a long absence of our own, what peers sent has not been read yet: judge nobody by it */
    if (now_ms - hub->last_tick_ms > hub->options.limits.dead_ms / 2)
        for (struct peer_link *i = hub->links; i; i = i->next)
            i->last_heard_ms = i->progress_since_ms = i->control.progress.since_ms =
                i->bulk_progress.since_ms = now_ms;
    hub->last_tick_ms = now_ms;
    for (struct peer_link *i = hub->links, *next; i; i = next) {
        next = i->next;
        judge(hub, i, now_ms);
    }
    peer_hub_announce(hub);
}

/* ---- dialling ---- */

static void dial_now(void *context);

static void dial_later(struct dial *d)
{
    if (net_timer_start(d->hub->options.loop, &d->timer, d->delay_ms, 0, dial_now, d) != STATUS_OK)
        log_event(LOG_ERROR, "redial impossible", "addr=%s error=" LOG_Q, d->address.text,
                  log_quote(status_message()));
    d->delay_ms = MIN(d->delay_ms * 2, d->hub->options.limits.redial_max_ms);
}

/* The same failure again is not news. */
static void log_failure(struct dial *d, enum status reason)
{
    if (d->last_logged == reason)
        return;
    d->last_logged = reason;
    log_event(LOG_WARN, "peer not reachable", "addr=%s reason=%s error=" LOG_Q, d->address.text,
              status_code(reason), log_quote(status_message()));
}

void dial_link_lost(struct dial *d, enum status reason, bool was_up)
{
    d->link = NULL;
    if (d->hub->closing)
        return;
    transport_dial_cancel(&d->connecting);
    if (!was_up) {
        hub_count_refusal(d->hub, reason);
        log_failure(d, reason);
    } else if (clock_now_ms() - d->up_since_ms > SHORT_LIFE_MS) {
        d->n_short_lives = 0;
    } else if (++d->n_short_lives >= SHORT_LIVES_MAX) {
        d->delay_ms = d->hub->options.limits.redial_max_ms;
        log_event(LOG_WARN, "peer rests", "addr=%s ms=%u links=%u", d->address.text, d->delay_ms,
                  d->n_short_lives);
    }
    dial_later(d);
}

static void dialled(void *context, struct transport *t, enum status status)
{
    struct dial *d = context;
    struct peer_hub *hub = d->hub;

    d->connecting = NULL;
    if (status == STATUS_OK)
        status = transport_secure(hub->options.loop, hub->options.tls, false, &t);
    if (status == STATUS_OK) {
        d->link = link_create(hub, t, d);
        if (d->link) {
            d->link->ours = hub->options.hello;
            d->link->ours.link = random_u64() | 1; /* zero is for links that others dialled */
            d->link->ours.wants_bulk = d->with_bulk;
            memcpy(d->link->ours.expect_role, d->expect_role, sizeof d->expect_role);
            link_begin(d->link);
            return;
        }
        transport_close(&t);
        status = STATUS_NO_MEMORY;
    }
    log_failure(d, status);
    dial_later(d);
}

/* Two addresses of one node: a second link would only end the first. */
static bool reached_otherwise(struct dial *d)
{
    const struct peer_link *link = *d->reached_id ? peer_hub_find(d->hub, d->reached_id) : NULL;

    if (!link || link->theirs.epoch != d->reached_epoch)
        return false;
    if (!d->logged_twin)
        log_event(LOG_WARN, "two addresses lead to one node", "peer=%s addr=%s addr=%s",
                  d->reached_id, link->address, d->address.text);
    d->logged_twin = true;
    return true;
}

static void dial_now(void *context)
{
    struct dial *d = context;

    if (reached_otherwise(d)) {
        dial_later(d);
        return;
    }
    const enum status status =
        transport_dial_tcp(d->hub->options.loop, &d->address, dialled, d, &d->connecting);

    if (status != STATUS_OK) {
        log_failure(d, status);
        dial_later(d);
    }
}

static void bulk_dialled(void *context, struct transport *t, enum status status)
{
    struct dial *d = context;

    d->connecting = NULL;
    if (status == STATUS_OK)
        status = transport_secure(d->hub->options.loop, d->hub->options.tls, false, &t);
    if (status != STATUS_OK)
        link_lost(d->link, status);
    else
        link_start_bulk_hello(d->link, t);
}

void dial_bulk(struct peer_link *link)
{
    struct dial *d = link->dial;

    if (!d)
        return; /* joined over memory: both ends are there already */
    const enum status status =
        transport_dial_tcp(link->hub->options.loop, &d->address, bulk_dialled, d, &d->connecting);
    if (status != STATUS_OK)
        link_lost(link, status);
}

/* It was named again while its link was still leaving. */
static bool take_back(struct peer_hub *hub, const struct net_address *address, const char *role,
                      struct dial *d)
{
    for (struct peer_link *i = hub->links; i; i = i->next)
        if (i->leaving_since_ms && !strcmp(i->address, address->text) &&
            !strcmp(i->theirs.role, role)) {
            i->leaving_since_ms = 0;
            i->dial = d;
            d->link = i;
            return true;
        }
    return false;
}

enum status peer_hub_dial(struct peer_hub *hub, const struct net_address *address,
                          const char *expect_role, bool with_bulk)
{
    struct dial *d = memory_alloc(1, sizeof *d);

    if (!d)
        return STATUS_NO_MEMORY;
    d->hub = hub;
    d->address = *address;
    d->with_bulk = with_bulk;
    strncpy(d->expect_role, expect_role, sizeof d->expect_role - 1);
    d->delay_ms = hub->options.limits.redial_min_ms;
    d->next = hub->dials;
    hub->dials = d;
    if (!take_back(hub, address, expect_role, d))
        dial_now(d);
    return STATUS_OK;
}

static void dial_destroy(struct dial *d)
{
    struct dial **at = &d->hub->dials;

    while (*at != d)
        at = &(*at)->next;
    *at = d->next;
    net_timer_stop(&d->timer);
    transport_dial_cancel(&d->connecting);
    free(d);
}

static void undial(struct dial *d)
{
    struct peer_link *link = d->link;

    log_event(LOG_INFO, "peer leaves", "role=%s addr=%s", d->expect_role, d->address.text);
    dial_destroy(d);
    if (!link)
        return;
    link->dial = NULL;
    link->leaving_since_ms = clock_now_ms();
    if (link->state != LINK_UP)
        link_lost(link, fail(STATUS_DRAINING, "it is no longer named as a peer"));
}

static bool names(const struct net_address *addresses, uint32_t n, const char *text)
{
    for (uint32_t i = 0; i < n; i++)
        if (!strcmp(addresses[i].text, text))
            return true;
    return false;
}

enum status peer_hub_dial_only(struct peer_hub *hub, const char *role,
                               const struct net_address *addresses, uint32_t n, bool with_bulk)
{
    for (struct dial *d = hub->dials, *next; d; d = next) {
        next = d->next;
        if (!strcmp(d->expect_role, role) && !names(addresses, n, d->address.text))
            undial(d);
    }
    for (uint32_t i = 0; i < n; i++) {
        struct dial *d = hub->dials;
        while (d && (strcmp(d->expect_role, role) || strcmp(d->address.text, addresses[i].text)))
            d = d->next;
        if (!d)
            TRY(peer_hub_dial(hub, &addresses[i], role, with_bulk));
    }
    return STATUS_OK;
}

/* ---- accepting ---- */

/* The oldest connection that has not said who it is makes room for the next. */
static void limit_strangers(struct peer_hub *hub)
{
    struct peer_link *oldest = NULL;
    uint32_t n = 0;

    for (struct peer_link *i = hub->links; i; i = i->next) /* the newest come first */
        if (i->state == LINK_HELLO && !i->ours.link) {
            oldest = i;
            n++;
        }
    if (n >= STRANGERS_MAX)
        link_lost(oldest, fail(STATUS_PEER_LOST, "more than %d connections without a hello",
                               STRANGERS_MAX));
}

/* Takes t over, also on failure. */
static enum status accept_transport(struct peer_hub *hub, struct transport *t)
{
    limit_strangers(hub);
    TRY(transport_secure(hub->options.loop, hub->options.tls, true, &t));
    struct peer_link *link = link_create(hub, t, NULL);
    if (!link) {
        transport_close(&t);
        return STATUS_NO_MEMORY;
    }
    link_begin(link);
    return STATUS_OK;
}

static void on_connection(void *context, uv_stream_t *listener)
{
    struct peer_hub *hub = context;
    struct transport *t;

    if (transport_accept_tcp(hub->options.loop, listener, &t) != STATUS_OK ||
        accept_transport(hub, t) != STATUS_OK)
        log_event(LOG_WARN, "peer not accepted", "error=" LOG_Q, log_quote(status_message()));
}

void peer_hub_listen(struct peer_hub *hub, struct net_listener *listener)
{
    net_listener_accept(listener, on_connection, hub);
}

enum status peer_hub_join(struct peer_hub *dialling, struct peer_hub *accepting,
                          const char *expect_role, bool with_bulk)
{
    struct transport *a[2] = {0}, *b[2] = {0};
    struct peer_link *link = NULL;
    enum status status;

    for (int i = 0; i < (with_bulk ? 2 : 1); i++) {
        TRY_GOTO(failed, transport_memory_pair(dialling->options.loop, &a[i], &b[i]));
        TRY_GOTO(failed,
                 transport_secure(dialling->options.loop, dialling->options.tls, false, &a[i]));
    }
    link = link_create(dialling, a[0], NULL);
    if (!link) {
        status = STATUS_NO_MEMORY;
        goto failed;
    }
    link->ours = dialling->options.hello;
    link->ours.link = random_u64() | 1;
    link->ours.wants_bulk = with_bulk;
    strncpy(link->ours.expect_role, expect_role, sizeof link->ours.expect_role - 1);
    struct transport *taken = b[0];
    b[0] = NULL;
    TRY_GOTO(failed, accept_transport(accepting, taken));
    link_begin(link);
    a[0] = NULL;
    if (with_bulk) {
        taken = b[1];
        b[1] = NULL;
        TRY_GOTO(failed, accept_transport(accepting, taken));
        link_start_bulk_hello(link, a[1]);
    }
    return STATUS_OK;
failed:
    if (link)
        link_lost(link, status);
    else
        transport_close(&a[0]);
    transport_close(&a[1]);
    transport_close(&b[0]);
    transport_close(&b[1]);
    return status;
}

/* ---- the hub itself ---- */

static void make_metrics(struct peer_hub *hub)
{
    struct metrics *m = hub->options.metrics;
    hub->n_links_up =
        metrics_counter(m, "peer_links_up_total", NULL, "Links to other nodes that came up.");
    hub->n_links_lost =
        metrics_counter(m, "peer_links_lost_total", NULL, "Links that were up and were lost.");
    hub->n_links_refused =
        metrics_counter(m, "peer_links_refused_total", NULL, "Links refused at hello.");
    hub->n_bad_messages = metrics_counter(m, "peer_messages_refused_total", NULL,
                                          "Messages that were malformed or made no sense.");
    hub->bytes_sent = metrics_counter(m, "handoff_sent_bytes_total", NULL,
                                      "Bytes of KV frames sent, headers and checksums included.");
    hub->bytes_received =
        metrics_counter(m, "handoff_received_bytes_total", NULL, "Bytes of KV frames received.");
    hub->n_bad_slabs = metrics_counter(m, "handoff_corrupt_slabs_total", NULL,
                                       "Slabs whose checksum did not hold.");
}

enum status peer_hub_create(const struct peer_hub_options *o, struct peer_hub **out)
{
    struct peer_hub *hub = memory_alloc(1, sizeof *hub);
    enum status status;

    if (!hub)
        return STATUS_NO_MEMORY;
    hub->options = *o;
    hub->options.hello.version_min = WIRE_VERSION_MIN;
    hub->options.hello.version_max =
        o->version_max ? MIN(o->version_max, (uint32_t)WIRE_VERSION_MAX) : WIRE_VERSION_MAX;
    hub->discard_bytes = 64 << 10;
    hub->discard = memory_alloc(hub->discard_bytes, 1);
    if (!hub->discard) {
        status = STATUS_NO_MEMORY;
        goto failed;
    }
    make_metrics(hub);
    hub_add_gauges(hub);
    hub->last_tick_ms = clock_now_ms();
    TRY_GOTO(failed, net_timer_start(o->loop, &hub->ping_timer, o->limits.ping_ms,
                                     o->limits.ping_ms, tick, hub));
    *out = hub;
    return STATUS_OK;
failed:
    peer_hub_destroy(&hub);
    return status;
}

void peer_hub_destroy(struct peer_hub **phub)
{
    struct peer_hub *hub = *phub;

    if (!hub)
        return;
    hub->closing = true;
    hub_remove_gauges(hub);
    net_timer_stop(&hub->ping_timer);
    while (hub->links)
        link_lost(hub->links, STATUS_CANCELLED);
    while (hub->dials)
        dial_destroy(hub->dials);
    free(hub->discard);
    free(hub);
    *phub = NULL;
}

void peer_hub_set_tls(struct peer_hub *hub, struct tls_context *tls)
{
    hub->options.tls = tls;
}

const struct wire_hello *peer_hub_hello(const struct peer_hub *hub)
{
    return &hub->options.hello;
}

struct peer_link *peer_hub_find(struct peer_hub *hub, const char *node_id)
{
    for (struct peer_link *i = hub->links; i; i = i->next)
        if (i->state == LINK_UP && !strcmp(i->theirs.node_id, node_id))
            return i;
    return NULL;
}

struct peer_link *peer_hub_next(struct peer_hub *hub, struct peer_link *after)
{
    struct peer_link *i = after ? after->next : hub->links;

    while (i && i->state != LINK_UP)
        i = i->next;
    return i;
}
