/* A link's control connection: frames in, frames out, and its end. */
#include "peer/internal.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/ring.h"

#include <stdlib.h>
#include <string.h>

static void channel_start(struct channel *c, struct peer_link *link);

struct peer_link *link_create(struct peer_hub *hub, struct transport *control, struct dial *d)
{
    struct peer_link *link = memory_alloc(1, sizeof *link);

    if (!link)
        return NULL;
    link->hub = hub;
    link->dial = d;
    link->control.transport = control;
    memcpy(link->address, control->peer, sizeof link->address);
    link->last_heard_ms = link->progress_since_ms = clock_now_ms();
    link->next = hub->links;
    if (hub->links)
        hub->links->prev = link;
    hub->links = link;
    return link;
}

const char *link_state_name(enum link_state state)
{
    static const char *const names[] = {"hello", "waiting_bulk", "up", "closed"};

    return names[state];
}

void link_set_state(struct peer_link *link, enum link_state state, const char *event)
{
    ring_note("peer", *link->theirs.node_id ? link->theirs.node_id : link->address, 0, 0,
              link_state_name(link->state), event, link_state_name(state));
    link->state = state;
}

void link_unpin(struct peer_link *link)
{
    if (--link->n_pins == 0 && link->state == LINK_CLOSED) {
        buffer_deinit(&link->control.in);
        buffer_deinit(&link->bulk_hello.in);
        buffer_deinit(&link->prefix_filter);
        free(link);
    }
}

/* ---- writing ---- */

static void channel_flush(struct channel *c, struct peer_link *link);

static void written(struct channel *c, struct peer_link *link, enum status status)
{
    c->writing = false;
    c->progress.n_writes++;
    buffer_clear(&c->out);
    if (link->state != LINK_CLOSED) {
        if (status != STATUS_OK) {
            link->broke = true;
            link_doom(link, STATUS_PEER_LOST);
        } else {
            struct buffer swap = c->out;
            c->out = c->out_next;
            c->out_next = swap;
            if (c->out.len)
                channel_flush(c, link);
            else if (link->closing_after_write)
                link_lost(link, STATUS_OK);
        }
    }
    if (link->state == LINK_CLOSED) {
        buffer_deinit(&c->out);
        buffer_deinit(&c->out_next);
    }
    link_unpin(link);
}

static void control_written(struct transport_write *w, enum status status)
{
    struct peer_link *link =
        (struct peer_link *)((char *)w - offsetof(struct peer_link, control.write));

    written(&link->control, link, status);
}

static void bulk_hello_written(struct transport_write *w, enum status status)
{
    struct peer_link *link =
        (struct peer_link *)((char *)w - offsetof(struct peer_link, bulk_hello.write));

    written(&link->bulk_hello, link, status);
}

static void channel_flush(struct channel *c, struct peer_link *link)
{
    const struct iovec part = {.iov_base = c->out.data, .iov_len = c->out.len};

    c->writing = true;
    c->write.done = c == &link->control ? control_written : bulk_hello_written;
    link->n_pins++;
    transport_write(c->transport, &part, 1, &c->write);
}

void channel_send(struct channel *c, struct peer_link *link, const void *frames, size_t len)
{
    struct buffer *b = c->writing ? &c->out_next : &c->out;
    const uint8_t *bytes = frames;
    struct wire_frame frame;
    size_t used;

    if (!c->transport || !len || link->doomed)
        return;
    for (size_t at = 0; at < len; at += used) {
        uint8_t before[WIRE_SEAL_BYTES], behind[WIRE_SEAL_BYTES];
        if (wire_frame_parse(bytes + at, len - at, &frame, &used) != STATUS_OK || !used) {
            link_doom(link, fail(STATUS_INTERNAL, "what was to be sent is no frame"));
            return;
        }
        wire_seal(before, bytes + at, WIRE_FRAME_HEADER_BYTES, c->n_sent);
        wire_seal(behind, bytes + at, used, c->n_sent++);
        buffer_append(b, before, sizeof before);
        buffer_append(b, bytes + at, used);
        buffer_append(b, behind, sizeof behind);
    }
    if (b->failed)
        link_doom(link, fail(STATUS_NO_MEMORY, "no memory for what is to be sent"));
    else if (!c->writing)
        channel_flush(c, link);
}

void channel_close(struct channel *c)
{
    transport_close(&c->transport);
    if (!c->writing) {
        buffer_deinit(&c->out);
        buffer_deinit(&c->out_next);
    }
}

void peer_link_send(struct peer_link *link, const struct buffer *frames)
{
    if (link->state != LINK_UP)
        return;
    if (frames->failed)
        link_doom(link, fail(STATUS_NO_MEMORY, "no memory for what is to be sent"));
    else
        channel_send(&link->control, link, frames->data, frames->len);
}

/* ---- the end ---- */

void link_lost(struct peer_link *link, enum status reason)
{
    struct peer_hub *hub = link->hub;
    const bool was_up = link->state == LINK_UP;

    if (link->state == LINK_CLOSED)
        return;
    link->n_pins++;
    link_set_state(link, LINK_CLOSED, status_code(reason));
    *(link->prev ? &link->prev->next : &hub->links) = link->next;
    if (link->next)
        link->next->prev = link->prev;
    link->prev = link->next = NULL;
    if (was_up && !hub->closing) {
        metric_add(hub->n_links_lost, 1);
        const bool expected = link->leaving_since_ms || link->stats.draining;
        log_event(expected ? LOG_INFO : LOG_WARN, "link down",
                  "peer=%s role=%s addr=%s reason=%s error=" LOG_Q, link->theirs.node_id,
                  link->theirs.role, link->address, status_code(reason),
                  log_quote(status_message()));
        hub->options.events.link_down(hub->options.events.context, link, reason);
    }
    while (link->turn_first)
        peer_bulk_remove(link, link->turn_first);
    channel_close(&link->control);
    channel_close(&link->bulk_hello);
    transport_close(&link->bulk);
    if (link->dial)
        dial_link_lost(link->dial, reason, was_up);
    link->dial = NULL;
    link_unpin(link);
}

static void doomed(struct net_task *task)
{
    struct peer_link *link =
        (struct peer_link *)((char *)task - offsetof(struct peer_link, doom_task));

    if (link->state != LINK_CLOSED)
        link_lost(link, fail(link->doom_reason, "%s", link->doom_words));
    link_unpin(link);
}

void link_doom(struct peer_link *link, enum status reason)
{
    if (link->state == LINK_CLOSED || link->doomed)
        return;
    link->doomed = true;
    link->doom_reason = reason;
    strncpy(link->doom_words, status_message(), sizeof link->doom_words - 1);
    link->doom_task.run = doomed;
    link->n_pins++;
    net_post(link->hub->options.loop, &link->doom_task);
}

void peer_link_close(struct peer_link *link, enum status reason)
{
    link_lost(link, reason);
}

/* ---- reading ---- */

static void on_pong(struct peer_link *link, const struct wire_node_stats *s)
{
    const int64_t now_us = clock_now_ns() / 1000;

    if (s->sent_at_us > 0 && s->sent_at_us <= now_us)
        link->round_trip_ms = (double)(now_us - s->sent_at_us) * 1e-3;
}

static enum status on_stats(struct peer_link *link, const struct wire_frame *f)
{
    struct wire_node_stats s;
    struct buffer frame = {0};

    TRY(wire_decode_node_stats(f, &s));
    if (!s.busy || s.progress != link->stats.progress)
        link->progress_since_ms = clock_now_ms();
    if (s.n_prefix_filter_bytes) {
        buffer_clear(&link->prefix_filter);
        buffer_append(&link->prefix_filter, s.prefix_filter, s.n_prefix_filter_bytes);
        TRY(buffer_status(&link->prefix_filter));
    }
    s.prefix_filter = NULL; /* lies in the frame, which goes */
    link->stats = s;
    if (f->type == WIRE_PONG)
        on_pong(link, &s);
    if (f->type != WIRE_PING)
        return STATUS_OK;
    struct wire_node_stats ours = {0};
    link->hub->options.events.node_stats(link->hub->options.events.context, &ours);
    ours.number = s.number;
    ours.sent_at_us = s.sent_at_us;
    if (wire_encode_node_stats(&frame, WIRE_PONG, &ours) == STATUS_OK)
        peer_link_send(link, &frame);
    buffer_deinit(&frame);
    return STATUS_OK;
}

static void on_frame(struct peer_link *link, const struct wire_frame *f)
{
    struct peer_hub *hub = link->hub;
    enum status status;

    if (link->closing_after_write)
        return;
    if (link->state == LINK_HELLO) {
        link_hello_frame(link, f);
        return;
    }
    switch (f->type) {
    case WIRE_PING:
    case WIRE_PONG:
    case WIRE_NODE_STATS:
        status = on_stats(link, f);
        break;
    default:
        status =
            link->state == LINK_UP
                ? hub->options.events.message(hub->options.events.context, link, f)
                : fail(STATUS_BAD_MESSAGE, "%s before the link is up", wire_type_name(f->type));
    }
    if (status != STATUS_OK) {
        metric_add(hub->n_bad_messages, 1);
        log_event(LOG_WARN, "message refused", "peer=%s type=%s reason=%s error=" LOG_Q,
                  link->theirs.node_id, wire_type_name(f->type), status_code(status),
                  log_quote(status_message()));
    }
}

/* Somebody who dialled us and did not get as far as a hello that makes sense. */
static void count_stranger(struct peer_link *link, enum status status)
{
    if (link->state == LINK_HELLO && !link->ours.link && !link->closing_after_write &&
        status != STATUS_PEER_LOST)
        link_count_refusal(link, status);
}

static void control_room(void *context, char **base, size_t *len)
{
    struct peer_link *link = context;

    *base = buffer_reserve(&link->control.in, CONTROL_READ_BYTES);
    *len = *base ? CONTROL_READ_BYTES : 0;
}

static enum status check_seal(const struct channel *c, const uint8_t *seal, const uint8_t *bytes,
                              size_t len)
{
    uint8_t want[WIRE_SEAL_BYTES];

    wire_seal(want, bytes, len, c->n_received);
    return !memcmp(want, seal, sizeof want)
               ? STATUS_OK
               : fail(STATUS_BAD_FRAME,
                      "frame %llu was changed, lost, repeated or reordered on its way",
                      (unsigned long long)c->n_received);
}

/* The next whole frame between its seals. *used 0: more bytes are needed. */
static enum status channel_next(struct channel *c, size_t at, struct wire_frame *out, size_t *used)
{
    const uint8_t *seal = (const uint8_t *)c->in.data + at, *bytes = seal + WIRE_SEAL_BYTES;
    const size_t len = c->in.len - at;

    *used = 0;
    if (len < WIRE_SEAL_BYTES + WIRE_FRAME_HEADER_BYTES)
        return STATUS_OK;
    TRY(check_seal(c, seal, bytes, WIRE_FRAME_HEADER_BYTES));
    TRY(wire_frame_parse(bytes, len - WIRE_SEAL_BYTES, out, used));
    if (!*used || len - WIRE_SEAL_BYTES - *used < WIRE_SEAL_BYTES) {
        *used = 0;
        return STATUS_OK;
    }
    const enum status status = check_seal(c, bytes + *used, bytes, *used);
    c->n_received++;
    *used += 2 * (size_t)WIRE_SEAL_BYTES;
    return status;
}

static void control_arrived(void *context, size_t n)
{
    struct peer_link *link = context;
    struct buffer *in = &link->control.in;
    enum status status;
    size_t at = 0;

    link->n_pins++;
    if (link->state !=
        LINK_HELLO) /* a hello that comes byte by byte has no more time than another */
        link->last_heard_ms = clock_now_ms();
    in->len += n;
    if (link->state == LINK_HELLO && in->len > HELLO_BYTES_MAX) {
        status = fail(STATUS_BAD_FRAME, "more than %d bytes instead of a hello", HELLO_BYTES_MAX);
        count_stranger(link, status);
        link_lost(link, status);
    }
    while (link->state != LINK_CLOSED) {
        struct wire_frame frame;
        size_t used;
        status = channel_next(&link->control, at, &frame, &used);
        if (status != STATUS_OK) {
            count_stranger(link, status);
            link_lost(link, status);
            break;
        }
        if (!used)
            break;
        on_frame(link, &frame);
        at += used;
    }
    buffer_consume(in, at);
    link_unpin(link);
}

static void control_broken(void *context, enum status status)
{
    struct peer_link *link = context;

    link->broke = true;
    count_stranger(link, status);
    link_lost(link, status);
}

static void bulk_hello_room(void *context, char **base, size_t *len)
{
    struct peer_link *link = context;

    *base = buffer_reserve(&link->bulk_hello.in, 4096);
    *len = *base ? 4096 : 0;
}

/* The dialling side of a bulk connection: after the answering hello the rest of the bytes are none,
 * since only we send. */
static void bulk_hello_arrived(void *context, size_t n)
{
    struct peer_link *link = context;
    struct channel *c = &link->bulk_hello;
    struct wire_frame frame;
    struct wire_hello hello;
    size_t used = 0;

    link->n_pins++;
    c->in.len += n;
    enum status status = channel_next(c, 0, &frame, &used);
    if (status == STATUS_OK && used) {
        status = wire_decode_hello(&frame, &hello);
        if (status == STATUS_OK && (!hello.bulk || hello.epoch != link->theirs.epoch))
            status = fail(STATUS_BAD_MESSAGE, "the bulk connection reached another node");
        if (status == STATUS_OK)
            status = link_check_identity(c->transport, &link->theirs);
        if (status == STATUS_OK) {
            struct transport *t = c->transport;
            c->transport = NULL;
            link_adopt_bulk(link, t);
        }
    }
    if (status != STATUS_OK)
        link_lost(link, status);
    link_unpin(link);
}

static void channel_start(struct channel *c, struct peer_link *link)
{
    const bool control = c == &link->control;
    const struct transport_events events = {
        .room = control ? control_room : bulk_hello_room,
        .arrived = control ? control_arrived : bulk_hello_arrived,
        .broken = control_broken,
        .context = link,
    };

    transport_start(c->transport, &events);
}

void link_begin(struct peer_link *link)
{
    link->n_pins++;
    channel_start(&link->control, link);
    if (link->ours.link) /* we dialled */
        link_say_hello(&link->control, link, false);
    link_unpin(link);
}

void link_start_bulk_hello(struct peer_link *link, struct transport *t)
{
    link->n_pins++;
    link->bulk_hello.transport = t;
    channel_start(&link->bulk_hello, link);
    link_say_hello(&link->bulk_hello, link, true);
    link_unpin(link);
}

/* ---- what a link says of itself ---- */

const struct wire_hello *peer_link_hello(const struct peer_link *link)
{
    return &link->theirs;
}

uint32_t peer_link_version(const struct peer_link *link)
{
    return MIN(link->ours.version_max, link->theirs.version_max);
}

const char *peer_link_id(const struct peer_link *link)
{
    return link->theirs.node_id;
}

const char *peer_link_address(const struct peer_link *link)
{
    return link->address;
}

bool peer_link_has_bulk(const struct peer_link *link)
{
    return link->bulk != NULL;
}

const struct wire_node_stats *peer_link_stats(const struct peer_link *link)
{
    return &link->stats;
}

const uint8_t *peer_link_prefix_filter(const struct peer_link *link, uint32_t *n_bytes)
{
    *n_bytes = link->prefix_filter.failed ? 0 : (uint32_t)link->prefix_filter.len;
    return (const uint8_t *)link->prefix_filter.data;
}

bool peer_link_is_leaving(const struct peer_link *link)
{
    return link->leaving_since_ms != 0;
}

bool peer_link_broke(const struct peer_link *link)
{
    return link->broke;
}

double peer_link_round_trip_ms(const struct peer_link *link)
{
    return link->round_trip_ms;
}

uint64_t peer_link_bulk_bytes_sent(const struct peer_link *link)
{
    return link->bulk_bytes_sent;
}

uint64_t peer_link_bulk_bytes_received(const struct peer_link *link)
{
    return link->bulk_bytes_received;
}

void peer_link_set_data(struct peer_link *link, void *data)
{
    link->data = data;
}

void *peer_link_data(const struct peer_link *link)
{
    return link->data;
}
