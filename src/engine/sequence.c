#include "engine/internal.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void mailbox_init(struct mailbox *m)
{
    pthread_mutex_init(&m->lock, NULL);
}

void mailbox_deinit(struct mailbox *m)
{
    pthread_mutex_destroy(&m->lock);
}

void mailbox_append(struct mailbox *m, struct mailbox_node *n)
{
    if (n->queued)
        return;
    n->queued = true;
    n->next = NULL;
    *(m->last ? &m->last->next : &m->first) = n;
    m->last = n;
}

struct mailbox_node *mailbox_pop(struct mailbox *m)
{
    struct mailbox_node *n = m->first;

    if (!n)
        return NULL;
    m->first = n->next;
    if (!m->first)
        m->last = NULL;
    n->queued = false;
    return n;
}

static void mailbox_remove(struct mailbox *m, struct mailbox_node *n)
{
    struct mailbox_node *before = NULL;

    pthread_mutex_lock(&m->lock);
    if (n->queued) {
        for (struct mailbox_node *i = m->first; i != n; i = i->next)
            before = i;
        *(before ? &before->next : &m->first) = n->next;
        if (m->last == n)
            m->last = before;
    }
    pthread_mutex_unlock(&m->lock);
}

void list_append(struct sequence_list *l, struct sequence *s)
{
    s->prev = l->last;
    s->next = NULL;
    *(l->last ? &l->last->next : &l->first) = s;
    l->last = s;
    l->n++;
}

void list_prepend(struct sequence_list *l, struct sequence *s)
{
    s->prev = NULL;
    s->next = l->first;
    *(l->first ? &l->first->prev : &l->last) = s;
    l->first = s;
    l->n++;
}

void list_remove(struct sequence_list *l, struct sequence *s)
{
    *(s->prev ? &s->prev->next : &l->first) = s->next;
    *(s->next ? &s->next->prev : &l->last) = s->prev;
    s->prev = s->next = NULL;
    l->n--;
}

static enum status rows_init(struct row_store *rows, int32_t n_top, uint32_t n)
{
    if (n_top < 0)
        return STATUS_OK;
    rows->n_top = (uint32_t)n_top;
    rows->value = memory_alloc(n, sizeof *rows->value);
    rows->top_ids = memory_alloc((size_t)n * rows->n_top, sizeof *rows->top_ids);
    rows->top_values = memory_alloc((size_t)n * rows->n_top, sizeof *rows->top_values);
    return rows->value && rows->top_ids && rows->top_values ? STATUS_OK : STATUS_NO_MEMORY;
}

static void rows_deinit(struct row_store *rows)
{
    free(rows->value);
    free(rows->top_ids);
    free(rows->top_values);
}

static bool wants_penalties(const struct sampling *s)
{
    return s->repetition_penalty != 1 || s->frequency_penalty != 0 || s->presence_penalty != 0;
}

static enum status check_ids(const struct engine *e, const uint32_t *ids, uint32_t n,
                             const char *what)
{
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] >= e->limits.n_vocab)
            return fail(STATUS_BAD_REQUEST, "%s token %u is id %u, the vocabulary has %u", what, i,
                        ids[i], e->limits.n_vocab);
    return STATUS_OK;
}

static enum status check_request(const struct engine *e, const struct resume *r)
{
    const uint32_t context = e->options.max_context_tokens;

    if (r->n_prompt == 0)
        return fail(STATUS_BAD_REQUEST, "the prompt has no tokens");
    if (r->n_prompt >= context || r->max_tokens == 0 || r->n_generated >= r->max_tokens ||
        r->max_tokens > context - r->n_prompt)
        return fail(STATUS_CONTEXT_LENGTH,
                    "%u prompt tokens and an answer of %u do not fit a context of %u tokens",
                    r->n_prompt, r->max_tokens, context);
    TRY(check_ids(e, r->prompt_ids, r->n_prompt, "prompt"));
    TRY(check_ids(e, r->generated_ids, r->n_generated, "generated"));
    for (uint32_t i = 0; i < r->n_logit_bias; i++)
        if (r->logit_bias[i].id >= e->limits.n_vocab)
            return fail(STATUS_BAD_REQUEST, "logit_bias names id %u, the vocabulary has %u",
                        r->logit_bias[i].id, e->limits.n_vocab);
    return STATUS_OK;
}

/* Rebuilds what follows from the ids alone: the end-of-answer state and the penalty counts. */
static enum status replay(struct sequence *s, const struct resume *r)
{
    for (uint32_t i = 0; i < r->n_generated; i++) {
        struct text_released released;
        TRY(text_stream_feed(s->stream, r->generated_ids[i], &released));
        if (released.ended)
            return fail(STATUS_BAD_REQUEST, "the answer had ended at generated token %u of %u",
                        i + 1, r->n_generated);
    }
    if (wants_penalties(&r->sampling)) {
        s->prompt_seen = memory_alloc(s->engine->limits.n_vocab, sizeof *s->prompt_seen);
        s->generated_counts = memory_alloc(s->engine->limits.n_vocab, sizeof *s->generated_counts);
        if (!s->prompt_seen || !s->generated_counts)
            return STATUS_NO_MEMORY;
        for (uint32_t i = 0; i < r->n_prompt; i++)
            s->prompt_seen[r->prompt_ids[i]]++;
        for (uint32_t i = 0; i < r->n_generated; i++)
            s->generated_counts[r->generated_ids[i]]++;
    }
    return STATUS_OK;
}

enum status sequence_create(struct engine *e, struct request *request,
                            enum sequence_purpose purpose, struct sequence **out)
{
    const struct resume *r = &request->resume;
    struct sequence *s;
    enum status status;

    TRY(check_request(e, r));
    s = memory_alloc(1, sizeof *s);
    if (!s)
        return STATUS_NO_MEMORY;
    s->engine = e;
    s->purpose = purpose;
    s->n_prompt = r->n_prompt;
    s->n_prefix = s->n_ids = r->n_prompt + r->n_generated;
    s->capacity = purpose == SEQUENCE_PREFILL ? s->n_prefix + 1 : r->n_prompt + r->max_tokens;
    s->max_pages = kv_pages_of_tokens(s->capacity);
    s->names = e->options.names;
    if (r->has_tenant)
        memcpy(s->names.salt, r->tenant_salt, sizeof s->names.salt);
    if (r->deadline_ms)
        s->deadline_ms = clock_now_ms() + (int64_t)MIN(r->deadline_ms, (uint64_t)INT64_MAX / 2);
    s->ids = memory_alloc(s->capacity, sizeof *s->ids);
    s->pages = memory_alloc(s->max_pages, sizeof *s->pages);
    s->page_names = memory_alloc(s->max_pages, sizeof *s->page_names);
    s->layer_tokens = memory_alloc(e->limits.n_layers, sizeof *s->layer_tokens);
    if (!s->ids || !s->pages || !s->page_names || !s->layer_tokens) {
        status = STATUS_NO_MEMORY;
        goto failed;
    }
    memcpy(s->ids, r->prompt_ids, r->n_prompt * sizeof *s->ids);
    if (r->n_generated)
        memcpy(s->ids + r->n_prompt, r->generated_ids, r->n_generated * sizeof *s->ids);
    atomic_init(&s->published_ids, s->n_ids);
    atomic_init(&s->window, UINT32_MAX);
    TRY_GOTO(failed, text_stream_create(e->options.vocabulary, r, e->options.max_context_tokens,
                                        &s->stream));
    TRY_GOTO(failed, replay(s, r));
    TRY_GOTO(failed, rows_init(&s->generated_rows, r->n_logprobs, s->capacity - r->n_prompt));
    if (purpose != SEQUENCE_IMPORT && r->n_generated == 0)
        TRY_GOTO(failed, rows_init(&s->prompt_rows, r->n_prompt_logprobs, r->n_prompt));
    s->request = request;
    *out = s;
    return STATUS_OK;
failed:
    sequence_destroy(&s);
    return status;
}

void sequence_destroy(struct sequence **ps)
{
    struct sequence *s = *ps;

    if (!s)
        return;
    mailbox_remove(&s->engine->commands, &s->command_node);
    mailbox_remove(&s->engine->news, &s->news_node);
    request_destroy(&s->request);
    text_stream_destroy(&s->stream);
    rows_deinit(&s->generated_rows);
    rows_deinit(&s->prompt_rows);
    free(s->ids);
    free(s->pages);
    free(s->page_names);
    free(s->layer_tokens);
    free(s->prompt_seen);
    free(s->generated_counts);
    free(s);
    *ps = NULL;
}

struct request *sequence_request(struct sequence *s)
{
    return s->request;
}

void sequence_set_owner(struct sequence *s, void *owner)
{
    s->owner = owner;
}

void *sequence_owner(const struct sequence *s)
{
    return s->owner;
}

static struct logprob_rows rows_view(const struct row_store *rows)
{
    return (struct logprob_rows){.n_top = rows->n_top,
                                 .value = rows->value,
                                 .top_ids = rows->top_ids,
                                 .top_values = rows->top_values};
}

void sequence_get_view(const struct sequence *s, struct sequence_view *out)
{
    struct sequence_view v = {0};

    v.ended = s->ended_seen;
    v.stopped = v.ended || atomic_load(&s->stopped);
    v.prefilled = atomic_load(&s->prefilled);
    v.ready = atomic_load(&s->ready);
    v.started = atomic_load(&s->started);
    if (v.stopped) {
        v.status = s->status;
        v.message = s->message;
    }
    if (v.started || v.ready) {
        v.n_cached_tokens = s->n_cached_tokens;
        v.n_held_pages = s->n_held_pages;
    }
    v.n_prefix = s->n_prefix;
    const uint32_t n_ids = atomic_load(&s->published_ids);
    v.n_generated = n_ids - s->n_prompt;
    v.finish =
        (enum finish_reason)atomic_load(&s->finish); /* set before the last id was published */
    if (v.finish != FINISH_NONE && n_ids != s->n_final)
        v.finish = FINISH_NONE; /* the last id came between the two looks: the next view has both */
    v.generated = s->ids + s->n_prompt;
    v.generated_rows = rows_view(&s->generated_rows);
    v.n_prompt_rows = atomic_load(&s->published_prompt_rows);
    v.prompt_rows = rows_view(&s->prompt_rows);
    v.n_pages = atomic_load(&s->published_pages);
    v.pages = s->pages;
    *out = v;
}

uint32_t sequence_layer_tokens(const struct sequence *s, uint32_t layer)
{
    return atomic_load_explicit(&s->layer_tokens[layer], memory_order_acquire);
}
