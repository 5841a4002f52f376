/* Results on their way to whoever asked: gathered for each link, one frame an engine step. */
#include "node/internal.h"

#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void flush_task(struct net_task *task)
{
    struct node *n = (struct node *)((char *)task - offsetof(struct node, flush_task));

    n->flush_posted = false;
    replies_flush(n);
}

void reply_append(struct node *n, const char *reply_to, const struct wire_result *m)
{
    struct peer_link *link = n->hub ? peer_hub_find(n->hub, reply_to) : NULL;
    struct wire_result_batch *batch = link ? peer_link_data(link) : NULL;

    if (!batch)
        return; /* the loss of that link cancels its requests */
    if (wire_result_append(batch, m) != STATUS_OK)
        log_event(LOG_ERROR, "result lost", "peer=%s error=" LOG_Q, reply_to,
                  log_quote(status_message()));
    if (!n->flush_posted) {
        n->flush_posted = true;
        n->flush_task.run = flush_task;
        net_post(n->options.loop, &n->flush_task);
    }
}

void reply_failed(struct node *n, const char *reply_to, const struct request_key *key,
                  uint32_t attempt, enum status error, const char *message)
{
    struct wire_result m = {
        .key = *key, .attempt = attempt, .phase = WIRE_PHASE_FAILED, .done = true, .error = error};

    snprintf(m.message, sizeof m.message, "%s", message);
    reply_append(n, reply_to, &m);
}

void replies_flush(struct node *n)
{
    for (struct peer_link *link = peer_hub_next(n->hub, NULL), *next; link; link = next) {
        struct wire_result_batch *batch = peer_link_data(link);
        struct buffer frames = {0};
        next = peer_hub_next(n->hub, link);
        if (!batch || (!batch->n && !batch->frames.len))
            continue;
        if (wire_encode_results(&frames, batch) == STATUS_OK)
            peer_link_send(link, &frames);
        else
            peer_link_close(link, STATUS_NO_MEMORY);
        buffer_deinit(&frames);
    }
}

void replies_link_up(struct node *n, struct peer_link *link)
{
    struct wire_result_batch *batch = memory_alloc(1, sizeof *batch);

    if (batch)
        peer_link_set_data(link, batch);
    else
        peer_link_close(link, STATUS_NO_MEMORY);
}

void replies_link_down(struct peer_link *link)
{
    struct wire_result_batch *batch = peer_link_data(link);

    if (batch)
        wire_result_batch_deinit(batch);
    free(batch);
    peer_link_set_data(link, NULL);
}

struct wire_result job_result(const struct job *j, enum wire_phase phase)
{
    return (struct wire_result){.key = j->key, .attempt = j->attempt, .phase = phase};
}

void job_add_text(struct job *j, struct wire_result *m, struct buffer *text)
{
    if (!j->text)
        return;
    for (uint32_t i = 0; i < m->n_ids; i++) {
        struct text_released released;
        if (text_stream_feed(j->text, m->ids[i], &released) != STATUS_OK)
            break;
        buffer_append(text, released.bytes, released.len);
        if (released.ended)
            break;
    }
    m->has_text = true;
    m->text = text->data ? text->data : "";
    m->text_len = (uint32_t)text->len;
}

void job_tell_prompt_rows(struct job *j, const struct sequence_view *v)
{
    while (v->n_prompt_rows > j->n_prompt_rows_told && !j->closing) {
        struct wire_result m = job_result(j, WIRE_PHASE_PROMPT_LOGPROBS);
        m.start = j->n_prompt_rows_told + 1;
        m.n_ids = MIN(v->n_prompt_rows - j->n_prompt_rows_told, (uint32_t)PROMPT_ROWS_A_RESULT);
        m.has_logprobs = true;
        m.logprobs = rows_from(&v->prompt_rows, j->n_prompt_rows_told);
        j->n_prompt_rows_told += m.n_ids;
        reply_append(j->node, j->reply_to, &m);
    }
}

struct wire_result job_tell_first_token(struct job *j, const struct sequence_view *v)
{
    const struct resume *r = &sequence_request(j->sequence)->resume;
    struct wire_result m = job_result(j, WIRE_PHASE_FIRST_TOKEN);
    struct buffer text = {0};

    m.start = r->n_generated;
    m.n_ids = 1;
    m.ids = v->generated + m.start;
    if (r->n_logprobs >= 0) {
        m.has_logprobs = true;
        m.logprobs = rows_from(&v->generated_rows, m.start);
    }
    m.n_cached = v->n_cached_tokens;
    m.done = v->n_generated == m.start + 1 && v->finish != FINISH_NONE;
    m.finish = m.done ? v->finish : FINISH_NONE;
    m.n_generated = m.done ? v->n_generated : 0;
    job_add_text(j, &m, &text);
    reply_append(j->node, j->reply_to, &m);
    replies_flush(j->node); /* ahead of the commit, and of anything the decode node says */
    buffer_deinit(&text);
    m.has_text = false;
    j->first_told = true;
    return m;
}
