/* A link's beginning: who says hello, who is let in, and what is told to whoever is not. */
#include "peer/internal.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"

#include <string.h>

/* Says why, and closes once that is out. */
static void refuse(struct peer_link *link, enum status reason)
{
    struct wire_notice notice = {.reason = reason};
    struct buffer frame = {0};

    strncpy(notice.message, status_message(), sizeof notice.message - 1);
    link_count_refusal(link, reason);
    if (wire_encode_notice(&frame, WIRE_REFUSE, &notice) == STATUS_OK) {
        link->closing_after_write = true;
        channel_send(&link->control, link, frame.data, frame.len);
    } else {
        link_lost(link, reason);
    }
    buffer_deinit(&frame);
}

void link_say_hello(struct channel *c, struct peer_link *link, bool bulk)
{
    struct buffer frame = {0};

    link->ours.bulk = bulk;
    if (wire_encode_hello(&frame, &link->ours) == STATUS_OK)
        channel_send(c, link, frame.data, frame.len);
    else
        link_lost(link, STATUS_NO_MEMORY);
    buffer_deinit(&frame);
}

void link_is_up(struct peer_link *link)
{
    struct peer_hub *hub = link->hub;

    link_set_state(link, LINK_UP, "linked");
    if (link->dial) {
        link->dial->delay_ms = hub->options.limits.redial_min_ms;
        link->dial->last_logged = STATUS_OK;
        link->dial->up_since_ms = clock_now_ms();
    }
    link->last_heard_ms = link->progress_since_ms = clock_now_ms();
    link->control.progress.since_ms = link->bulk_progress.since_ms = link->last_heard_ms;
    metric_add(hub->n_links_up, 1);
    log_event(LOG_INFO, "link up", "peer=%s role=%s addr=%s bulk=%s", link->theirs.node_id,
              link->theirs.role, link->address, link->bulk ? "yes" : "no");
    hub->options.events.link_up(hub->options.events.context, link);
}

static struct peer_link *link_of_bulk(struct peer_hub *hub, const struct wire_hello *hello)
{
    for (struct peer_link *i = hub->links; i; i = i->next)
        if (i->state == LINK_WAITING_BULK && !i->dial && i->theirs.link == hello->link &&
            i->theirs.epoch == hello->epoch && !strcmp(i->theirs.node_id, hello->node_id))
            return i;
    return NULL;
}

static struct peer_link *link_of_node(struct peer_hub *hub, const char *node_id,
                                      const struct peer_link *except)
{
    for (struct peer_link *i = hub->links; i; i = i->next)
        if (i != except && (i->state == LINK_UP || i->state == LINK_WAITING_BULK) &&
            !strcmp(i->theirs.node_id, node_id))
            return i;
    return NULL;
}

/* The accepting side: a connection's first frame says who dials and what the connection is for. */
static void accept_hello(struct peer_link *link, const struct wire_hello *hello)
{
    struct peer_hub *hub = link->hub;
    enum status status;

    link->theirs = *hello;
    link->ours = hub->options.hello;
    link->ours.link = hello->link;
    status = link_check_identity(link->control.transport, hello);
    if (status != STATUS_OK) {
        refuse(link, status);
        return;
    }
    if (hello->bulk) {
        struct peer_link *owner = link_of_bulk(hub, hello);
        if (!owner) {
            refuse(link,
                   fail(STATUS_BAD_MESSAGE, "a bulk connection without its control connection"));
            return;
        }
        struct transport *t = link->control.transport;
        link->control.transport = NULL;
        link_lost(link, STATUS_OK); /* it was only ever this connection's first bytes */
        link_adopt_bulk(owner, t);
        return;
    }
    status = wire_hello_match(&hub->options.hello, hello);
    if (status == STATUS_OK)
        status = link_check_direction(&hub->options.hello, hello);
    struct peer_link *other = status == STATUS_OK ? link_of_node(hub, hello->node_id, link) : NULL;
    if (other && other->theirs.epoch == hello->epoch)
        link_lost(other,
                  fail(STATUS_PEER_LOST,
                       "the peer dialled anew")); /* it knows best that the old one is dead */
    else if (other)
        status = fail(STATUS_DUPLICATE_NODE, "a node %s is linked already", hello->node_id);
    if (status == STATUS_OK && !strcmp(hub->options.hello.node_id, hello->node_id))
        status = fail(STATUS_DUPLICATE_NODE, "the id %s is our own", hello->node_id);
    if (status != STATUS_OK) {
        refuse(link, status);
        return;
    }
    link_say_hello(&link->control, link, false);
    if (link->state == LINK_CLOSED)
        return;
    link->last_heard_ms = clock_now_ms(); /* a hello may take long; from now on silence counts */
    if (hello->wants_bulk)
        link_set_state(link, LINK_WAITING_BULK, "hello");
    else
        link_is_up(link);
}

/* The dialling side: the answer to our hello. */
static void answered_hello(struct peer_link *link, const struct wire_hello *hello)
{
    enum status status = link_check_identity(link->control.transport, hello);

    if (status == STATUS_OK)
        status = wire_hello_match(&link->ours, hello);
    link->theirs = *hello;
    if (status != STATUS_OK) {
        link_lost(link, status);
        return;
    }
    if (link->dial) {
        memcpy(link->dial->reached_id, hello->node_id, sizeof link->dial->reached_id);
        link->dial->reached_epoch = hello->epoch;
    }
    link->last_heard_ms = clock_now_ms();
    if (link->ours.wants_bulk) {
        link_set_state(link, LINK_WAITING_BULK, "answered");
        dial_bulk(link);
    } else {
        link_is_up(link);
    }
}

void link_hello_frame(struct peer_link *link, const struct wire_frame *f)
{
    struct wire_hello hello;
    enum status status;

    if (f->type == WIRE_REFUSE) {
        struct wire_notice notice;
        if (wire_decode_notice(f, &notice) == STATUS_OK)
            link_lost(link, fail(notice.reason, "refused: %s", notice.message));
        else
            link_lost(link, STATUS_BAD_MESSAGE);
        return;
    }
    status = wire_decode_hello(f, &hello);
    if (status != STATUS_OK)
        link->dial ? link_lost(link, status) : refuse(link, status);
    else if (link->ours.link)
        answered_hello(link, &hello);
    else
        accept_hello(link, &hello);
}
