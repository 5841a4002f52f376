/* What nodes say of a request: merged by sequence number into the journal, then shown. */
#include "router/internal.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"

#include <stdio.h>
#include <string.h>

static bool append(struct entry *e, uint32_t id)
{
    struct text_released released;

    if (e->n_ids == e->capacity) {
        const uint32_t capacity = MAX(64u, e->capacity * 2);
        uint32_t *ids = memory_grow(e->ids, capacity, sizeof *ids);
        if (!ids)
            return false;
        e->ids = ids;
        e->capacity = capacity;
    }
    e->ids[e->n_ids++] = id;
    if (text_stream_feed(e->stream, id, &released) != STATUS_OK)
        return false;
    if (released.ended) {
        e->ended_by_ids = true;
        e->finish_by_ids = released.finish;
    }
    e->router->n_tokens++;
    return true;
}

static void send_credit(struct entry *e, const struct assignment *a)
{
    struct peer_link *link = *a->decode_node ? peer_hub_find(e->router->hub, a->decode_node) : NULL;
    const struct wire_credit m = {
        .key = e->request->key, .attempt = a->attempt, .window_tokens = e->window_tokens};
    struct buffer frame = {0};

    if (link && wire_encode_credit(&frame, &m) == STATUS_OK)
        peer_link_send(link, &frame);
    buffer_deinit(&frame);
}

void entry_taken(struct entry *e, uint32_t n_tokens)
{
    e->n_taken = MAX(e->n_taken, n_tokens);
    if (e->n_taken + SERVICE_WINDOW_TOKENS < e->window_tokens + SERVICE_WINDOW_TOKENS / 4)
        return;
    e->window_tokens = e->n_taken + SERVICE_WINDOW_TOKENS;
    if (e->state == ENTRY_ASSIGNED)
        send_credit(e, &e->now);
    if (e->leaving.attempt)
        send_credit(e, &e->leaving);
}

static void inexact(struct entry *e, const char *message)
{
    e->router->n_inexact++;
    metric_add(e->router->metrics.n_inexact, 1);
    log_event(LOG_ERROR, "results contradict each other",
              "req=%s prefill=%s decode=%s error=" LOG_Q, entry_label(e), e->now.prefill_node,
              e->now.decode_node, log_quote(message));
    entry_cancel_on_nodes(e);
    entry_end(e, STATUS_INEXACT, FINISH_NONE, message);
}

static struct logprob_rows rows_behind(const struct logprob_rows *l, uint32_t skip)
{
    return (struct logprob_rows){.n_top = l->n_top,
                                 .value = l->value + skip,
                                 .top_ids = l->top_ids + (size_t)skip * l->n_top,
                                 .top_values = l->top_values + (size_t)skip * l->n_top};
}

/* Merges ids by sequence number. False when the entry has ended over it. */
static bool merge_tokens(struct entry *e, const struct wire_result *m)
{
    const uint32_t n_before = e->n_ids;
    char message[160];

    if (m->n_ids && m->start > e->n_ids) {
        snprintf(message, sizeof message, "token %u came before token %u", m->start, e->n_ids);
        inexact(e, message);
        return false;
    }
    for (uint32_t i = 0; i < m->n_ids; i++) {
        const uint32_t at = m->start + i;
        if (at < e->n_ids) {
            if (e->ids[at] == m->ids[i])
                continue;
            snprintf(message, sizeof message, "token %u is %u from one node and %u from another",
                     at, e->ids[at], m->ids[i]);
            inexact(e, message);
            return false;
        }
        if (e->ended_by_ids || !append(e, m->ids[i])) {
            inexact(e, "a token came after the answer's end");
            return false;
        }
    }
    if (e->n_ids > n_before)
        costs_progress(e, clock_now_ms());
    if (e->unserved && e->n_ids) {
        rate_done(&e->router->serving, e->request->resume.n_prompt);
        entry_is_served(e);
    }
    if (e->n_ids > n_before && !e->closing) {
        const uint32_t skip = n_before - m->start;
        struct logprob_rows rows = {0};
        if (m->has_logprobs)
            rows = rows_behind(&m->logprobs, skip);
        const struct token_event event = {.kind = TOKEN_EVENT_TOKENS,
                                          .start = n_before,
                                          .n = e->n_ids - n_before,
                                          .ids = e->ids + n_before,
                                          .logprobs = m->has_logprobs ? &rows : NULL};
        e->sink.event(e->sink.context, &event);
    }
    return true;
}

static bool lacks_rows(const struct entry *e)
{
    const struct resume *r = &e->request->resume;

    return r->n_prompt_logprobs >= 0 && e->n_prompt_rows + 1 < r->n_prompt;
}

/* A resume begins with the first row again, in parts of other sizes. */
static void prompt_rows(struct entry *e, const struct wire_result *m)
{
    if (!m->has_logprobs || m->start == 0 || m->start > e->n_prompt_rows + 1 ||
        m->n_ids <= e->n_prompt_rows + 1 - m->start)
        return;
    const uint32_t skip = e->n_prompt_rows + 1 - m->start;
    const struct logprob_rows rows = rows_behind(&m->logprobs, skip);
    const struct token_event event = {.kind = TOKEN_EVENT_PROMPT_LOGPROBS,
                                      .start = m->start + skip,
                                      .n = m->n_ids - skip,
                                      .logprobs = &rows};
    e->n_prompt_rows += event.n;
    if (!e->closing)
        e->sink.event(e->sink.context, &event);
}

static bool worth_retrying(enum status error)
{
    switch (error) {
    case STATUS_NO_DECODE_ROOM:
    case STATUS_QUEUE_FULL:
    case STATUS_DRAINING:
    case STATUS_PEER_LOST:
    case STATUS_HANDOFF_FAILED:
    case STATUS_HANDOFF_TIMEOUT:
    case STATUS_NO_REPLY_ROUTE:
    case STATUS_NO_PAGES:
        return true;
    default:
        return false;
    }
}

/* The two links know no common order: what the decode node says waits until the prompt's rows are
 * complete. */
static void hold(struct entry *e, const struct wire_result *m)
{
    e->now.first_seen = true;
    if (wire_result_append(&e->held, m) != STATUS_OK)
        entry_retry(e, STATUS_NO_MEMORY, status_message());
}

/* The entry may be gone when this returns. */
static void release_held(struct entry *e)
{
    struct router *r = e->router;
    const struct request_key key = e->request->key;
    char node_id[NODE_ID_BYTES];
    struct buffer frames = {0};
    struct arena arena = {0};
    struct wire_result *results;
    struct wire_frame f;
    uint32_t n;
    size_t used;

    if (!e->held.n && !e->held.frames.len)
        return;
    memcpy(node_id, e->now.decode_node, sizeof node_id);
    if (wire_encode_results(&frames, &e->held) != STATUS_OK) {
        entry_retry(e, STATUS_NO_MEMORY, status_message());
        frames.len = 0;
    }
    for (size_t at = 0; at < frames.len; at += used) {
        if (wire_frame_parse((const uint8_t *)frames.data + at, frames.len - at, &f, &used) !=
                STATUS_OK ||
            !used || wire_decode_results(&f, &arena, &results, &n) != STATUS_OK) {
            struct entry *still = entry_find(r, &key); /* memory is out: what was held is lost */
            if (still && !still->closing)
                entry_retry(still, STATUS_NO_MEMORY, status_message());
            break;
        }
        for (uint32_t i = 0; i < n; i++) {
            struct entry *still = entry_find(r, &key);
            if (still && !still->closing)
                entry_result(still, node_id, &results[i]);
        }
    }
    arena_deinit(&arena);
    buffer_deinit(&frames);
}

/* ---- a result ---- */

static void take_reports(struct entry *e, const struct assignment *a, const struct wire_result *m)
{
    for (uint32_t i = 0; i < m->n_lost_nodes; i++)
        entry_take_report(e, a, m->lost_nodes[i].node_id, m->lost_nodes[i].epoch, clock_now_ms());
}

/* An error that a node reports. The entry may be gone when this returns. */
static void attempt_failed(struct entry *e, struct assignment *a, const char *node_id,
                           const struct wire_result *m)
{
    if (a->owner == OWNER_DECODE && !strcmp(node_id, a->prefill_node) &&
        strcmp(node_id, a->decode_node))
        return; /* it is no longer the prefill node's to fail */
    if (a == &e->now && a->owner == OWNER_PREFILL) {
        take_reports(e, a, m);
        if (m->error == STATUS_PEER_LOST && !m->n_lost_nodes && a->decode_epoch)
            entry_take_report(e, a, a->decode_node, a->decode_epoch, clock_now_ms());
    }
    if (a == &e->leaving) {
        e->leaving = (struct assignment){0};
    } else if (worth_retrying(m->error) || e->leaving.attempt) {
        entry_retry(e, m->error, m->message);
    } else {
        entry_cancel_on_nodes(e);
        entry_end(e, m->error, FINISH_NONE, m->message);
    }
}

static void decode_node_is(struct entry *e, struct assignment *a, const char *node_id)
{
    const struct peer_link *link = peer_hub_find(e->router->hub, node_id);

    a->decode_epoch = link ? peer_link_hello(link)->epoch : 0;
    snprintf(a->decode_node, sizeof a->decode_node, "%s", node_id);
    a->opened = true;
    if (a == &e->now)
        entry_note_decode_link(e, clock_now_ms());
}

/* What a result says beside its tokens. False if that was all, or the entry is gone. */
static bool take_phase(struct entry *e, struct assignment *a, const char *node_id,
                       const struct wire_result *m)
{
    switch (m->phase) {
    case WIRE_PHASE_OPENED:
        decode_node_is(e, a, m->decode_node);
        if (a == &e->now) {
            take_reports(e, a, m);
            entry_opened_at_dead(e, a, clock_now_ms());
        }
        entry_note(e, entry_place(e), "opened", entry_place(e));
        log_event(LOG_DEBUG, "request opened", "req=%s attempt=%u prefill=%s decode=%s",
                  entry_label(e), a->attempt, a->prefill_node, a->decode_node);
        return false;
    case WIRE_PHASE_PROMPT_LOGPROBS:
        e->in_result = true;
        prompt_rows(e, m);
        e->in_result = false;
        if (e->closing)
            entry_end(e, STATUS_CANCELLED, FINISH_NONE, "cancelled by the client");
        return false;
    case WIRE_PHASE_FIRST_TOKEN:
        if (a->attempt == 1)
            e->n_cached = m->n_cached;
        if (lacks_rows(e)) {
            inexact(e, "the first token came before the prompt's log-probabilities were complete");
            return false;
        }
        a->first_seen = true;
        entry_note(e, entry_place(e), "first_token", entry_place(e));
        if (a == &e->now)
            entry_note_decode_link(e, clock_now_ms());
        return true;
    case WIRE_PHASE_ACCEPTED:
        if (a->owner == OWNER_PREFILL && strcmp(a->prefill_node, a->decode_node))
            e->router->n_handed_off++;
        entry_note(e, entry_place(e), "accepted", "decode");
        a->owner = OWNER_DECODE;
        a->first_seen = true;
        decode_node_is(e, a, node_id);
        return true;
    case WIRE_PHASE_CONTINUATION:
    case WIRE_PHASE_FAILED:
        return true;
    }
    return true;
}

/* The entry may be gone when this returns. */
void entry_result(struct entry *e, const char *node_id, const struct wire_result *m)
{
    struct assignment *a = e->state != ENTRY_ASSIGNED         ? NULL
                           : m->attempt == e->now.attempt     ? &e->now
                           : m->attempt == e->leaving.attempt ? &e->leaving
                                                              : NULL;

    if (!a || !m->attempt)
        return; /* of an attempt that was given up */
    if (m->error != STATUS_OK) {
        attempt_failed(e, a, node_id, m);
        return;
    }
    if (lacks_rows(e) && (m->phase == WIRE_PHASE_ACCEPTED || m->phase == WIRE_PHASE_CONTINUATION)) {
        snprintf(a->decode_node, sizeof a->decode_node, "%s", node_id);
        a->opened = true;
        hold(e, m);
        return;
    }
    if (!take_phase(e, a, node_id, m))
        return;
    e->in_result = true;
    if (!merge_tokens(e, m))
        return;
    e->in_result = false;
    if (e->closing) { /* cancelled by its own sink */
        entry_end(e, STATUS_CANCELLED, FINISH_NONE, "cancelled by the client");
        return;
    }
    if (e->now.probation && e->n_ids >= e->now.n_ids_before + PROBATION_TOKENS)
        e->now.probation = false;
    if (a == &e->now && e->leaving.attempt && m->n_ids)
        entry_leave(e);
    if (!m->done) {
        /* what was said before its node was known may have gone to another */
        if (m->phase == WIRE_PHASE_ACCEPTED && e->window_tokens > a->window_sent)
            send_credit(e, a);
        if (m->phase == WIRE_PHASE_FIRST_TOKEN)
            release_held(e);
        return;
    }
    if (!e->ended_by_ids || e->finish_by_ids != m->finish || m->n_generated != e->n_ids) {
        inexact(e, "the node and the router disagree about the answer's end");
        return;
    }
    if (e->leaving.attempt) /* whichever was first: the other need not go on */
        entry_cancel_attempt(e, a == &e->now ? &e->leaving : &e->now);
    entry_end(e, STATUS_OK, m->finish, "");
}
