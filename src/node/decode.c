/* A request's life on a decode node: pages reserved, received, decoded to the answer's end. */
#include "node/internal.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void refuse(struct peer_link *link, const struct request_key *key, uint32_t attempt,
                   enum status reason, const char *message)
{
    struct wire_notice m = {.has_key = true, .key = *key, .attempt = attempt, .reason = reason};
    struct buffer frame = {0};

    snprintf(m.message, sizeof m.message, "%s", message);
    if (wire_encode_notice(&frame, WIRE_DECODE_REFUSE, &m) == STATUS_OK)
        peer_link_send(link, &frame);
    buffer_deinit(&frame);
}

/* Stops whatever the job is at and gives its pages back; the job goes with the sequence's last
 * news. */
void decode_cancel(struct job *j)
{
    const char *from = job_place(j);

    if (j->closing)
        return;
    j->closing = true;
    job_note(j, from, "cancel");
    if (j->receiver)
        handoff_receive_end(j->receiver, STATUS_OK);
    j->receiver = NULL;
    engine_cancel(j->node->engine, j->sequence);
    if (!j->committed)
        engine_finish(j->node->engine, j->sequence);
}

void decode_give_up(struct job *j, enum status reason)
{
    if (j->closing)
        return;
    if (j->receiver)
        handoff_receive_end(j->receiver, reason);
    else if (j->from && !j->asked_ready)
        refuse(j->from, &j->key, j->attempt, reason, status_message());
    j->receiver = NULL;
    decode_cancel(j);
}

/* ---- the pages ---- */

static void *sink_slab(void *context, uint32_t page, uint32_t layer)
{
    const struct job *j = context;
    const struct kv_view view = engine_kv_view(j->node->engine);
    struct sequence_view v;

    sequence_get_view(j->sequence, &v);
    return page < v.n_pages ? kv_slab_address(&view, v.pages[page], layer) : NULL;
}

static bool sink_committed(void *context, const struct wire_handoff_commit *m)
{
    struct job *j = context;
    const struct resume *r = &sequence_request(j->sequence)->resume;

    j->receiver = NULL;
    if (j->closing)
        return false;
    if (m->first_id >= vocabulary_view(j->node->options.engine.vocabulary)->n_tokens ||
        (r->n_logprobs >= 0 && (!m->has_logprobs || m->row.n_top < (uint32_t)r->n_logprobs))) {
        j->closing = true;
        engine_cancel(j->node->engine, j->sequence);
        engine_finish(j->node->engine, j->sequence);
        return false;
    }
    j->committed = true;
    job_note(j, "receiving", "commit");
    engine_commit(j->node->engine, j->sequence, m->first_id, m->has_logprobs ? &m->row : NULL);
    return true;
}

static void sink_ended(void *context, enum status reason)
{
    struct job *j = context;

    log_event(LOG_WARN, "hand-off ended", "req=%s attempt=%u reason=%s", j->request_id, j->attempt,
              status_code(reason));
    j->receiver = NULL;
    if (j->closing)
        return;
    j->closing = true;
    job_note(j, "receiving", status_code(reason));
    engine_cancel(j->node->engine, j->sequence);
    engine_finish(j->node->engine, j->sequence);
}

static void reserved(struct job *j, const struct sequence_view *v)
{
    const struct handoff_sink sink = {
        .slab = sink_slab, .committed = sink_committed, .ended = sink_ended, .context = j};

    j->asked_ready = true;
    job_note(j, "reserving", "reserved");
    const enum status status =
        handoff_receive_ready(j->node->receivers, j->from, &j->key, j->attempt, v->n_prefix,
                              v->n_held_pages, &sink, &j->receiver);
    if (status != STATUS_OK) {
        refuse(j->from, &j->key, j->attempt, status, status_message());
        decode_cancel(j);
    }
}

/* ---- the answer ---- */

static void tell_tokens(struct job *j, const struct sequence_view *v)
{
    const struct resume *r = &sequence_request(j->sequence)->resume;
    struct buffer text = {0};

    while (j->n_told < v->n_generated) {
        /* the first result repeats the prefill's token: it says that the sequence is owned here now
         */
        const bool first = !j->accepted_told;
        struct wire_result m = job_result(j, first ? WIRE_PHASE_ACCEPTED : WIRE_PHASE_CONTINUATION);
        m.start = j->n_told;
        m.n_ids = first ? 1 : MIN(v->n_generated - j->n_told, 256u);
        m.ids = v->generated + j->n_told;
        if (r->n_logprobs >= 0) {
            m.has_logprobs = true;
            m.logprobs = rows_from(&v->generated_rows, j->n_told);
        }
        j->n_told += m.n_ids;
        m.done = j->n_told == v->n_generated && v->finish != FINISH_NONE;
        if (m.done) {
            m.finish = v->finish;
            m.n_generated = v->n_generated;
        }
        buffer_clear(&text);
        if (!first || !j->whole) /* a whole request's first token has been fed */
            job_add_text(j, &m, &text);
        if (first)
            m.has_text = false; /* it went with the first token */
        j->accepted_told = true;
        reply_append(j->node, j->reply_to, &m);
    }
    buffer_deinit(&text);
}

void decode_news(struct job *j, const struct sequence_view *v)
{
    if (v->ready && !j->asked_ready && !j->closing)
        reserved(j, v);
    if (j->whole && !j->closing)
        job_tell_prompt_rows(j, v);
    if (j->whole && !j->closing && !j->first_told && v->n_generated > j->n_told)
        j->n_told += job_tell_first_token(j, v).done; /* there is nothing more to say then */
    if (j->committed && !j->closing)
        tell_tokens(j, v);
    if (!v->ended)
        return;
    if (!j->closing && !j->asked_ready) {
        refuse(j->from, &j->key, j->attempt, v->status, v->message);
    } else if (!j->closing && v->status != STATUS_OK) {
        reply_failed(j->node, j->reply_to, &j->key, j->attempt, v->status, v->message);
        log_event(LOG_WARN, "decode ended", "req=%s attempt=%u reason=%s error=" LOG_Q,
                  j->request_id, j->attempt, status_code(v->status), log_quote(v->message));
    } else if (!j->closing) {
        log_event(LOG_INFO, "decoded", "req=%s attempt=%u prompt=%u generated=%u finish=%s ms=%lld",
                  j->request_id, j->attempt, v->n_prefix, v->n_generated,
                  finish_reason_name(v->finish), (long long)(clock_now_ms() - j->begun_ms));
    }
    job_destroy(j);
}

/* ---- the open ---- */

static enum status begin(struct node *n, struct peer_link *link, struct wire_prefill_request *m,
                         struct arena *arena)
{
    struct job *j;

    TRY(job_begin(n, m, arena, SEQUENCE_IMPORT, &j));
    j->from = link;
    engine_submit(n->engine, j->sequence);
    return STATUS_OK;
}

enum status decode_open(struct node *n, struct peer_link *link, const struct wire_frame *f)
{
    struct wire_decode_meta m = {0};
    struct arena arena = {0};
    enum status status = wire_decode_decode_meta(f, &arena, &m);

    if (status == STATUS_OK) {
        const enum status refused = begin(n, link, &m.request, &arena);
        if (refused != STATUS_OK)
            refuse(link, &m.request.key, m.request.attempt, refused, status_message());
    }
    arena_deinit(&arena);
    return status;
}

enum status decode_request(struct node *n, struct wire_prefill_request *m, struct arena *arena)
{
    struct job *j;

    TRY(job_begin(n, m, arena, SEQUENCE_WHOLE, &j));
    j->whole = j->asked_ready = j->committed = true; /* there is no hand-off to wait for */
    engine_submit(n->engine, j->sequence);
    return STATUS_OK;
}
