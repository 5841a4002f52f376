/* One request's life in the router: its attempts, its retry, its end. */
#include "router/internal.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void entry_append(struct router *r, struct entry *e, bool in_front)
{
    struct entry *after = in_front ? NULL : r->last;

    e->prev = after;
    e->next = after ? after->next : r->first;
    *(e->prev ? &e->prev->next : &r->first) = e;
    *(e->next ? &e->next->prev : &r->last) = e;
}

void entry_remove(struct entry *e)
{
    struct router *r = e->router;

    if (r->walk == e)
        r->walk = e->next;
    *(e->prev ? &e->prev->next : &r->first) = e->next;
    *(e->next ? &e->next->prev : &r->last) = e->prev;
    e->prev = e->next = NULL;
}

struct entry *entry_find(struct router *r, const struct request_key *key)
{
    struct entry *e = r->first;

    while (e && !request_key_equal(&e->request->key, key))
        e = e->next;
    return e;
}

void entry_cancel_attempt(const struct entry *e, const struct assignment *a)
{
    struct wire_notice m = {.has_key = true, .key = e->request->key, .attempt = a->attempt};
    const char *const nodes[] = {a->prefill_node, a->decode_node};
    struct buffer frame = {0};

    if (!a->attempt || wire_encode_notice(&frame, WIRE_CANCEL, &m) != STATUS_OK)
        return;
    for (size_t i = 0; i < ARRAY_LENGTH(nodes); i++) {
        if (i && !strcmp(nodes[0], nodes[1]))
            break;
        struct peer_link *link = *nodes[i] ? peer_hub_find(e->router->hub, nodes[i]) : NULL;
        if (link)
            peer_link_send(link, &frame);
    }
    buffer_deinit(&frame);
}

void entry_cancel_on_nodes(const struct entry *e)
{
    if (e->state == ENTRY_ASSIGNED)
        entry_cancel_attempt(e, &e->now);
    entry_cancel_attempt(e, &e->leaving);
}

void entry_is_served(struct entry *e)
{
    if (e->unserved)
        e->router->n_unserved_tokens -= e->request->resume.n_prompt;
    e->unserved = false;
}

static void entry_free(struct entry *e)
{
    struct router *r = e->router;

    entry_is_served(e);
    entry_remove(e);
    r->n_entries--;
    r->n_queued -= e->state == ENTRY_QUEUED;
    r->journal_bytes -= e->journal_bytes;
    text_stream_destroy(&e->stream);
    wire_result_batch_deinit(&e->held);
    request_destroy(&e->request);
    free(e->ids);
    free(e->names);
    free(e);
    if (r->draining && r->n_entries == 0 && r->idle) {
        void (*idle)(void *) = r->idle;
        r->idle = NULL;
        idle(r->idle_context);
    }
}

void entry_end(struct entry *e, enum status status, enum finish_reason finish, const char *message)
{
    const struct token_event event = {
        .kind = TOKEN_EVENT_ENDED,
        .status = status,
        .message = message,
        .finish = finish,
        .n_generated = e->n_ids,
        .n_cached = e->n_cached,
        .prefill_node = *e->now.prefill_node ? e->now.prefill_node : NULL,
        .decode_node = *e->now.decode_node ? e->now.decode_node : NULL};

    entry_note(e, entry_place(e), status_code(status), "ended");
    metric_add(
        status == STATUS_OK ? e->router->metrics.n_ended_ok : e->router->metrics.n_ended_error, 1);
    if (!e->closing) {
        e->closing = true;
        e->sink.event(e->sink.context, &event);
    }
    entry_free(e);
}

/* ---- attempts ---- */

void entry_begin_attempt(struct entry *e, bool moves)
{
    const char *from = entry_place(e);

    if (moves) {
        e->leaving = e->now;
    } else {
        e->router->n_queued--;
        e->state = ENTRY_ASSIGNED;
    }
    e->now = (struct assignment){.attempt = ++e->last_attempt,
                                 .owner = OWNER_PREFILL,
                                 .n_ids_before = e->n_ids,
                                 .begun_ms = clock_now_ms(),
                                 .probation = e->n_crashes > 0};
    entry_note(e, from, moves ? "move" : "send", "prefill");
}

/* The newer attempt came to nothing: the node that drains still has the request. */
static void stay(struct entry *e, enum status reason, const char *message)
{
    log_event(LOG_WARN, "move failed", "req=%s attempt=%u reason=%s error=" LOG_Q, entry_label(e),
              e->now.attempt, status_code(reason), log_quote(message));
    entry_cancel_attempt(e, &e->now);
    entry_note(e, entry_place(e), status_code(reason), "decode");
    e->now = e->leaving;
    e->leaving = (struct assignment){0};
    e->not_before_ms = clock_now_ms() + MOVE_PAUSE_MS;
}

void entry_leave(struct entry *e)
{
    struct router *r = e->router;

    log_event(LOG_INFO, "request moved", "req=%s attempt=%u from=%s to=%s tokens=%u",
              entry_label(e), e->now.attempt, e->leaving.decode_node, e->now.decode_node, e->n_ids);
    r->n_moved++;
    entry_note(e, "decode", "moved", entry_place(e));
    metric_add(r->metrics.n_moved, 1);
    entry_cancel_attempt(e, &e->leaving);
    e->leaving = (struct assignment){0};
}

static bool only_full(enum status reason)
{
    return reason == STATUS_NO_DECODE_ROOM || reason == STATUS_QUEUE_FULL ||
           reason == STATUS_DRAINING;
}

static void queue_again(struct entry *e, bool waits_on)
{
    struct router *r = e->router;
    const int64_t now_ms = clock_now_ms();

    e->not_before_ms =
        now_ms + MIN(RETRY_PAUSE_MS << MIN(e->n_refusals, 8u), (int)REFUSED_PAUSE_MAX_MS);
    if (!waits_on) /* what nobody has room for waits no longer for being asked again */
        e->queued_ms = now_ms;
    e->now = (struct assignment){0};
    wire_result_batch_deinit(&e->held);
    r->n_queued += e->state == ENTRY_ASSIGNED;
    e->state = ENTRY_QUEUED;
    entry_remove(e);
    entry_append(r, e, true);
}

void entry_retry(struct entry *e, enum status reason, const char *message)
{
    struct router *r = e->router;
    const bool full = only_full(reason);

    if (e->ended_by_ids) { /* only the word `done` was lost */
        entry_cancel_on_nodes(e);
        entry_end(e, STATUS_OK, e->finish_by_ids, "");
        return;
    }
    if (e->leaving.attempt) {
        stay(e, reason, message);
        return;
    }
    snprintf(e->last_message, sizeof e->last_message, "%s", message);
    e->last_error = reason;
    const bool progressed = e->n_ids > e->now.n_ids_before;
    if (!full)
        e->n_failures = progressed ? 1 : e->n_failures + 1;
    e->n_refusals = full && !progressed ? e->n_refusals + 1 : 0;
    costs_retry(e, reason, full, clock_now_ms());
    entry_cancel_on_nodes(e);
    if (e->n_failures >= MAX_FAILURES) {
        char last[sizeof e->last_message];
        memcpy(last, e->last_message, sizeof last);
        entry_end(e, reason, FINISH_NONE, last);
        return;
    }
    if (full)
        r->n_requeued++;
    else
        r->n_retries++;
    metric_add(full ? r->metrics.n_requeued : r->metrics.n_retries, 1);
    log_event(full && e->n_refusals > 1 ? LOG_DEBUG : LOG_WARN,
              full ? "request queued again" : "request resumed elsewhere",
              "req=%s attempt=%u reason=%s tokens=%u error=" LOG_Q, entry_label(e), e->now.attempt,
              status_code(reason), e->n_ids, log_quote(e->last_message));
    entry_note(e, entry_place(e), status_code(reason), "queued");
    queue_again(e, full && !e->now.first_seen);
}

/* ---- lost nodes ---- */

void entry_note_decode_link(struct entry *e, int64_t now_ms)
{
    const bool adrift = e->state == ENTRY_ASSIGNED && e->now.first_seen && e->now.opened &&
                        !peer_hub_find(e->router->hub, e->now.decode_node);

    if (!adrift)
        e->now.adrift_ms = 0;
    else if (!e->now.adrift_ms)
        e->now.adrift_ms = now_ms;
}

void entry_node_lost(struct entry *e, const struct wire_hello *node, bool died, int64_t now_ms)
{
    char message[160];

    if (e->leaving.attempt && !strcmp(assignment_owner(&e->leaving), node->node_id))
        e->leaving = (struct assignment){0}; /* what it still had to say, the newer attempt says */
    if (died && !e->leaving.attempt && !e->ended_by_ids)
        entry_count_death_at_import(e, node, now_ms);
    if (e->state != ENTRY_ASSIGNED)
        return;
    if (strcmp(assignment_owner(&e->now), node->node_id)) {
        entry_note_decode_link(e, now_ms);
        return;
    }
    if (died && !e->leaving.attempt && !e->ended_by_ids)
        entry_count_crash(e, node->node_id, node->epoch, e->now.probation, now_ms);
    snprintf(message, sizeof message, "the link to %s was lost", node->node_id);
    entry_retry(e, STATUS_PEER_LOST, message);
}
