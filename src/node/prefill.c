/* A request's life on a prefill node: computed up to its first token, handed over, let go. */
#include "node/internal.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The sequence is not needed any more: its pages become cache. Only when nothing is being sent from
 * them. */
static void let_go(struct job *j)
{
    engine_finish(j->node->engine, j->sequence);
}

static void fail_job(struct job *j, enum status error, const char *message)
{
    struct node *n = j->node;
    const char *from = job_place(j);

    if (!j->closing) {
        reply_failed(n, j->reply_to, &j->key, j->attempt, error, message);
        log_event(LOG_WARN, "prefill ended", "req=%s attempt=%u reason=%s error=" LOG_Q,
                  j->request_id, j->attempt, status_code(error), log_quote(message));
    }
    j->closing = true;
    job_note(j, from, status_code(error));
    engine_cancel(n->engine, j->sequence);
    if (j->sender)
        handoff_send_cancel(j->sender); /* released() lets go */
    else
        let_go(j);
}

void prefill_cancel(struct job *j)
{
    const char *from = job_place(j);

    if (j->closing)
        return;
    j->closing = true;
    job_note(j, from, "cancel");
    engine_cancel(j->node->engine, j->sequence);
    if (j->sender)
        handoff_send_cancel(j->sender);
    else
        let_go(j);
}

/* ---- what the hand-off asks and says ---- */

static uint32_t source_layer_tokens(void *context, uint32_t layer)
{
    const struct job *j = context;

    return sequence_layer_tokens(j->sequence, layer);
}

static const void *source_slab(void *context, uint32_t page, uint32_t layer)
{
    const struct job *j = context;
    const struct kv_view view = engine_kv_view(j->node->engine);
    struct sequence_view v;

    sequence_get_view(j->sequence, &v);
    return kv_slab_address(&view, v.pages[page], layer);
}

static void source_target_broke(void *context, const char *decode_node, uint64_t epoch)
{
    struct job *j = context;

    if (j->n_lost_nodes == WIRE_MAX_LOST_NODES)
        return;
    struct wire_lost_node *lost = &j->lost_nodes[j->n_lost_nodes++];
    snprintf(lost->node_id, sizeof lost->node_id, "%s", decode_node);
    lost->epoch = epoch;
}

/* The router judges by it whether the request crashes nodes. */
static void add_lost_nodes(const struct job *j, struct wire_result *m)
{
    memcpy(m->lost_nodes, j->lost_nodes, sizeof m->lost_nodes);
    m->n_lost_nodes = j->n_lost_nodes;
}

static void source_opened(void *context, const char *decode_node)
{
    struct job *j = context;
    struct wire_result m = job_result(j, WIRE_PHASE_OPENED);

    snprintf(m.decode_node, sizeof m.decode_node, "%s", decode_node);
    add_lost_nodes(j, &m);
    reply_append(j->node, j->reply_to, &m);
}

static void source_accepted(void *context)
{
    struct job *j = context;
    const char *from = job_place(j);

    log_event(LOG_INFO, "handed off", "req=%s attempt=%u ms=%lld", j->request_id, j->attempt,
              (long long)(clock_now_ms() - j->begun_ms));
    j->closing = true;
    job_note(j, from, "accepted");
}

static void source_given_up(void *context, enum status reason, const char *message)
{
    struct job *j = context;
    const char *from = job_place(j);

    if (!j->closing) {
        struct wire_result m = job_result(j, WIRE_PHASE_FAILED);
        m.done = true;
        m.error = reason;
        snprintf(m.message, sizeof m.message, "%s", message);
        add_lost_nodes(j, &m);
        reply_append(j->node, j->reply_to, &m);
        log_event(LOG_WARN, "no decode node took it", "req=%s reason=%s error=" LOG_Q,
                  j->request_id, status_code(reason), log_quote(message));
    }
    j->closing = true;
    job_note(j, from, status_code(reason));
    engine_cancel(j->node->engine, j->sequence);
}

static void source_released(void *context)
{
    struct job *j = context;

    j->sender = NULL;
    let_go(j);
}

static enum status page_names_of(const struct job *j, const struct resume *r, struct arena *a,
                                 struct wire_decode_meta *meta)
{
    struct page_namespace space = j->node->options.engine.names;
    const uint32_t n_prefix = r->n_prompt + r->n_generated, n = n_prefix / PAGE_TOKENS;
    struct page_name *names = arena_alloc(a, n, sizeof *names);
    uint32_t *ids = arena_alloc(a, n_prefix, sizeof *ids);

    if (!names || !ids)
        return STATUS_NO_MEMORY;
    if (r->has_tenant)
        memcpy(space.salt, r->tenant_salt, sizeof space.salt);
    memcpy(ids, r->prompt_ids, r->n_prompt * sizeof *ids);
    if (r->n_generated)
        memcpy(ids + r->n_prompt, r->generated_ids, r->n_generated * sizeof *ids);
    for (uint32_t i = 0; i < n; i++)
        names[i] = page_name(i ? &names[i - 1] : NULL, &space, ids + (size_t)i * PAGE_TOKENS);
    meta->page_names = names;
    meta->n_page_names = n;
    return STATUS_OK;
}

/* When the request is taken from the queue for its first chunk. */
static enum status open_handoff(struct job *j)
{
    struct node *n = j->node;
    struct request *r = sequence_request(j->sequence);
    const struct handoff_source source = {.layer_tokens = source_layer_tokens,
                                          .slab = source_slab,
                                          .opened = source_opened,
                                          .target_broke = source_target_broke,
                                          .accepted = source_accepted,
                                          .given_up = source_given_up,
                                          .released = source_released,
                                          .context = j};
    const struct wire_prefill_request *asked = r->attachment;
    struct wire_decode_meta meta = {.request = *asked};
    struct arena a = {0};
    enum status status = page_names_of(j, &r->resume, &a, &meta);

    meta.request.resume = r->resume;
    if (status == STATUS_OK)
        status = handoff_send_open(n->senders, &meta, r->resume.n_prompt + r->resume.n_generated,
                                   &source, &j->sender);
    arena_deinit(&a);
    return status;
}

/* ---- news ---- */

static void tell_first_token(struct job *j, const struct sequence_view *v)
{
    const struct wire_result m = job_tell_first_token(j, v);

    job_note(j, "prefilling", "first_token");
    if (m.done) {
        prefill_cancel(j);
    } else if (j->sender) {
        handoff_send_commit(j->sender, m.ids[0], m.has_logprobs ? &m.logprobs : NULL);
    } else {
        fail_job(j, STATUS_HANDOFF_FAILED, "the hand-off ended before the first token");
    }
}

void prefill_news(struct job *j, const struct sequence_view *v)
{
    if (v->ended) {
        if (!j->closing)
            reply_failed(j->node, j->reply_to, &j->key, j->attempt, v->status, v->message);
        job_destroy(j);
        return;
    }
    if (j->closing)
        return;
    if (v->stopped) {
        fail_job(j, v->status, v->message);
        return;
    }
    if (v->started && j->needs_handoff && !j->opened) {
        j->opened = true;
        job_note(j, "waiting", "started");
        const enum status status = open_handoff(j);
        if (status != STATUS_OK) {
            fail_job(j, status, status_message());
            return;
        }
    }
    job_tell_prompt_rows(j, v);
    if (j->sender)
        handoff_send_progress(j->sender);
    if (v->prefilled && !j->first_told && !j->closing)
        tell_first_token(j, v);
}

/* ---- the request ---- */

enum status prefill_request(struct node *n, struct wire_prefill_request *m, struct arena *arena)
{
    struct job *j;

    TRY(job_begin(n, m, arena, SEQUENCE_PREFILL, &j));
    j->needs_handoff = m->resume.max_tokens - m->resume.n_generated > 1;
    engine_submit(n->engine, j->sequence);
    return STATUS_OK;
}
