/* A single node: whole requests, from the api to the engine and back. */
#include "node/internal.h"

#include "base/checked.h"
#include "base/log.h"

#include <stdio.h>
#include <string.h>

void job_is_served(struct job *j)
{
    if (j->unserved)
        j->node->n_unserved_tokens -= sequence_request(j->sequence)->resume.n_prompt;
    j->unserved = false;
}

static enum status submit(struct service *s, struct request *r, struct request_sink sink,
                          uint64_t *out_ticket)
{
    struct node *n = (struct node *)s;
    struct service_capacity capacity;
    enum status status;

    if (n->draining)
        return fail(STATUS_DRAINING, "this server is shutting down");
    node_capacity(s, &capacity);
    if (capacity.n_waiting >= n->options.max_waiting)
        return fail(STATUS_QUEUE_FULL, "%u requests are waiting, %u may", capacity.n_waiting,
                    n->options.max_waiting);
    if (r->resume.deadline_ms)
        TRY(rate_admit(&n->serving, n->n_unserved_tokens, 1e-3 * (double)r->resume.deadline_ms));
    snprintf(r->key.origin, sizeof r->key.origin, "%s", n->options.node_id);
    r->key.epoch = n->epoch;
    r->key.number = ++n->next_number;
    r->key.choice = r->resume.choice;
    struct job *j = job_create(n, r, SEQUENCE_WHOLE, &status);
    if (!j)
        return status;
    j->ticket = n->next_number;
    j->sink = sink;
    *out_ticket = j->ticket;
    n->n_unserved_tokens += r->resume.n_prompt;
    j->unserved = true;
    engine_set_window(n->engine, j->sequence, SERVICE_WINDOW_TOKENS);
    engine_submit(n->engine, j->sequence);
    return STATUS_OK;
}

static void cancel(struct service *s, uint64_t ticket)
{
    struct node *n = (struct node *)s;

    for (struct job *j = n->jobs; j; j = j->next)
        if (j->ticket == ticket && !j->closing) {
            j->closing = true;
            engine_cancel(n->engine, j->sequence);
            return;
        }
}

static void taken(struct service *s, uint64_t ticket, uint32_t n_tokens)
{
    struct node *n = (struct node *)s;

    for (struct job *j = n->jobs; j; j = j->next)
        if (j->ticket == ticket && !j->closing &&
            n_tokens >= j->n_taken + SERVICE_WINDOW_TOKENS / 4) {
            j->n_taken = n_tokens;
            engine_set_window(n->engine, j->sequence, n_tokens + SERVICE_WINDOW_TOKENS);
        }
}

/* The sink may cancel its request in any of these calls; the job itself stays until its sequence
 * has ended. */
static void tell_new(struct job *j, const struct sequence_view *v)
{
    const struct resume *r = &sequence_request(j->sequence)->resume;

    if (v->n_prompt_rows > j->n_prompt_rows_told && !j->closing) {
        const struct logprob_rows rows = rows_from(&v->prompt_rows, j->n_prompt_rows_told);
        const struct token_event e = {.kind = TOKEN_EVENT_PROMPT_LOGPROBS,
                                      .start = j->n_prompt_rows_told + 1,
                                      .n = v->n_prompt_rows - j->n_prompt_rows_told,
                                      .logprobs = &rows};
        j->n_prompt_rows_told = v->n_prompt_rows;
        j->sink.event(j->sink.context, &e);
    }
    if (v->n_generated && j->unserved) {
        rate_done(&j->node->serving, r->n_prompt);
        job_is_served(j);
    }
    if (v->n_generated > j->n_told && !j->closing) {
        const bool with_rows = r->n_logprobs >= 0;
        const struct logprob_rows rows =
            with_rows ? rows_from(&v->generated_rows, j->n_told) : (struct logprob_rows){0};
        const struct token_event e = {.kind = TOKEN_EVENT_TOKENS,
                                      .start = j->n_told,
                                      .n = v->n_generated - j->n_told,
                                      .ids = v->generated + j->n_told,
                                      .logprobs = with_rows ? &rows : NULL};
        j->n_told = v->n_generated;
        j->sink.event(j->sink.context, &e);
    }
}

void hybrid_news(struct job *j, const struct sequence_view *v)
{
    tell_new(j, v);
    if (!v->ended)
        return;
    if (!j->closing) {
        const struct token_event e = {.kind = TOKEN_EVENT_ENDED,
                                      .status = v->status,
                                      .message = v->message,
                                      .finish = v->finish,
                                      .n_generated = v->n_generated,
                                      .n_cached = v->n_cached_tokens,
                                      .prefill_node = j->node->options.node_id,
                                      .decode_node = j->node->options.node_id};
        j->closing = true;
        j->sink.event(j->sink.context, &e);
    }
    job_destroy(j);
}

static enum status readiness(struct service *s)
{
    struct node *n = (struct node *)s;

    return n->draining ? fail(STATUS_DRAINING, "this server is shutting down") : node_liveness(s);
}

const struct service_ops hybrid_ops = {
    .submit = submit,
    .cancel = cancel,
    .taken = taken,
    .capacity = node_capacity,
    .readiness = readiness,
    .liveness = node_liveness,
    .describe = node_describe,
    .stats = node_stats,
    .drain = node_drain,
};
