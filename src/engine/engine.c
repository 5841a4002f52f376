/* The engine's thread: commands in, steps, news out. */
#include "engine/engine.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "engine/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Rows of prompt log-probabilities in a step: each takes a row of logits of the whole vocabulary.
 */
enum { PROMPT_LOGIT_ROWS = 64 };

uint32_t engine_max_logit_rows(const struct engine_options *o)
{
    return o->n_slots + PROMPT_LOGIT_ROWS;
}

static void command(struct engine *e, struct sequence *s, enum command c)
{
    pthread_mutex_lock(&e->commands.lock);
    s->commands |= (uint32_t)c;
    mailbox_append(&e->commands, &s->command_node);
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->commands.lock);
}

void engine_submit(struct engine *e, struct sequence *s)
{
    command(e, s, COMMAND_SUBMIT);
}

void engine_cancel(struct engine *e, struct sequence *s)
{
    command(e, s, COMMAND_CANCEL);
}

void engine_finish(struct engine *e, struct sequence *s)
{
    command(e, s, COMMAND_FINISH);
}

void engine_set_window(struct engine *e, struct sequence *s, uint32_t n_tokens)
{
    const uint32_t before = atomic_load(&s->window);

    if (before != UINT32_MAX && n_tokens <= before)
        return;
    atomic_store(&s->window, n_tokens);
    if (before != UINT32_MAX)
        command(e, s, COMMAND_WINDOW);
}

static void copy_row(struct row_store *rows, uint32_t i, const struct logprob_rows *row)
{
    const uint32_t n = MIN(rows->n_top, row->n_top);

    rows->value[i] = row->value[0];
    for (uint32_t j = 0; j < n; j++) {
        rows->top_ids[(size_t)i * rows->n_top + j] = row->top_ids[j];
        rows->top_values[(size_t)i * rows->n_top + j] = row->top_values[j];
    }
}

void engine_commit(struct engine *e, struct sequence *s, uint32_t first_id,
                   const struct logprob_rows *row)
{
    s->commit_id = first_id;
    if (row && s->generated_rows.value)
        copy_row(&s->generated_rows, s->n_prefix - s->n_prompt, row);
    command(e, s, COMMAND_COMMIT);
}

/* The loop is told once a step, after all of it is there. */
void engine_publish(struct engine *e, struct sequence *s)
{
    pthread_mutex_lock(&e->news.lock);
    mailbox_append(&e->news, &s->news_node);
    pthread_mutex_unlock(&e->news.lock);
}

struct sequence *engine_next_news(struct engine *e)
{
    struct sequence *s = NULL;

    pthread_mutex_lock(&e->news.lock);
    struct mailbox_node *n = mailbox_pop(&e->news);
    if (n) {
        s = (struct sequence *)((char *)n - offsetof(struct sequence, news_node));
        s->ended_seen = s->ended;
    }
    pthread_mutex_unlock(&e->news.lock);
    return s;
}

static struct sequence_list *list_of(struct engine *e, const struct sequence *s)
{
    switch (s->state) {
    case STATE_WAITING:
        return &e->waiting;
    case STATE_RUNNING:
        return &e->running;
    case STATE_IMPORTING:
        return &e->importing;
    case STATE_PARKED:
        return &e->parked;
    case STATE_HELD:
        return &e->held;
    case STATE_NEW:
    case STATE_ENDED:
        break;
    }
    return NULL;
}

void sequence_move_to(struct engine *e, struct sequence *s, enum sequence_state state)
{
    struct sequence_list *from = list_of(e, s), *to;

    if (from)
        list_remove(from, s);
    s->state = state;
    to = list_of(e, s);
    if (to)
        list_append(to, s);
}

static void set_status(struct sequence *s, enum status status, const char *message)
{
    if (status != s->status) /* a stopped sequence ends as what it was stopped for, which the loop
                                may be reading */
        s->status = status;
    if (message != s->message)
        snprintf(s->message, sizeof s->message, "%s", message);
}

/* The last touch: its owner may destroy the sequence as soon as the lock is free. */
void sequence_end(struct engine *e, struct sequence *s, enum status status, const char *message)
{
    sequence_move_to(e, s, STATE_ENDED);
    sequence_release_pages(e, s);
    set_status(s, status, message);
    pthread_mutex_lock(&e->news.lock);
    s->ended = true;
    mailbox_append(&e->news, &s->news_node);
    pthread_mutex_unlock(&e->news.lock);
}

void sequence_stop(struct engine *e, struct sequence *s, enum status status, const char *message)
{
    const bool loop_uses_pages =
        s->purpose == SEQUENCE_PREFILL ? atomic_load(&s->started) : s->state == STATE_IMPORTING;

    if (!loop_uses_pages) {
        sequence_end(e, s, status, message);
        return;
    }
    if (s->state == STATE_HELD)
        return;
    set_status(s, status, message);
    sequence_move_to(e, s, STATE_HELD);
    atomic_store(&s->stopped, true);
    engine_publish(e, s);
}

static void begin(struct engine *e, struct sequence *s)
{
    s->serial = e->next_serial++;
    if (s->purpose != SEQUENCE_IMPORT) {
        sequence_move_to(e, s, STATE_WAITING);
        return;
    }
    enum status status = import_reserve(e, s);
    if (status != STATUS_OK) {
        sequence_end(e, s, status, status_message());
        return;
    }
    sequence_move_to(e, s, STATE_IMPORTING);
    atomic_store(&s->ready, true);
    engine_publish(e, s);
}

enum status sequence_append_id(struct engine *e, struct sequence *s, uint32_t id, bool *goes_on)
{
    struct text_released released;

    TRY(text_stream_feed(s->stream, id, &released));
    s->ids[s->n_ids++] = id;
    if (s->generated_counts)
        s->generated_counts[id]++;
    if (released.ended) {
        s->n_final = s->n_ids;
        atomic_store(&s->finish, (uint32_t)released.finish);
    }
    atomic_store(&s->published_ids, s->n_ids);
    *goes_on = !released.ended;
    return STATUS_OK;
}

static void accept_import(struct engine *e, struct sequence *s)
{
    const uint32_t tail = s->n_prefix % PAGE_TOKENS;

    if (s->state != STATE_IMPORTING)
        return; /* cancelled meanwhile */
    s->n_computed = s->n_prefix;
    if (tail) /* whatever the peer sent there, a masked key must meet zeros */
        kv_page_zero_lanes(e->pool, s->pages[s->n_prefix / PAGE_TOKENS], tail);
    s->n_indexed = s->n_held_pages;
    sequence_index_full_pages(e, s);
    sequence_move_to(e, s, STATE_RUNNING);
    bool goes_on = false;
    const enum status status = sequence_append_id(e, s, s->commit_id, &goes_on);
    if (status == STATUS_OK && goes_on)
        engine_publish(e, s);
    else
        sequence_end(e, s, status, status == STATUS_OK ? "" : status_message());
}

/* Ahead of new requests, as one that was pre-empted. */
static void unpark(struct engine *e, struct sequence *s)
{
    list_remove(&e->parked, s);
    s->state = STATE_WAITING;
    list_prepend(&e->waiting, s);
}

static void obey(struct engine *e, struct sequence *s, uint32_t commands)
{
    if ((commands & COMMAND_WINDOW) && s->state == STATE_PARKED && !sequence_window_is_spent(s))
        unpark(e, s);
    if (commands & COMMAND_SUBMIT) {
        if (commands & (COMMAND_CANCEL | COMMAND_FINISH)) {
            sequence_end(e, s, STATUS_CANCELLED, "cancelled");
            return;
        }
        begin(e, s);
    } else if (commands & COMMAND_FINISH) {
        sequence_end(e, s, s->status, s->message);
    } else if ((commands & COMMAND_CANCEL) && (commands & COMMAND_COMMIT)) {
        sequence_end(e, s, STATUS_CANCELLED,
                     "cancelled"); /* with its commit the loop let the pages go */
    } else if (commands & COMMAND_CANCEL) {
        sequence_stop(e, s, STATUS_CANCELLED, "cancelled");
    } else if (commands & COMMAND_COMMIT) {
        accept_import(e, s);
    }
}

static void take_commands(struct engine *e)
{
    for (;;) {
        struct sequence *s = NULL;
        uint32_t commands = 0;
        pthread_mutex_lock(&e->commands.lock);
        struct mailbox_node *n = mailbox_pop(&e->commands);
        if (n) {
            s = (struct sequence *)((char *)n - offsetof(struct sequence, command_node));
            commands = s->state == STATE_ENDED ? 0 : s->commands;
            s->commands = 0;
        }
        pthread_mutex_unlock(&e->commands.lock);
        if (!n)
            return;
        if (commands)
            obey(e, s, commands);
    }
}

enum { PREFIX_FILTER_MS = 1000 };

/* With the stats' lock held. A whole new one each time: names go as well as come. */
static void refresh_prefix_filter(struct engine *e)
{
    const uint64_t version = kv_prefix_version(e->pool) + 1;
    const int64_t now_ms = clock_now_ms();

    if (version == e->prefix_filter_version || now_ms - e->prefix_filter_ms < PREFIX_FILTER_MS)
        return;
    e->prefix_filter_ms = now_ms;
    e->prefix_filter_version = version;
    memset(e->prefix_filter, 0, e->n_prefix_filter_bytes);
    kv_prefix_filter(e->pool, e->prefix_filter, e->n_prefix_filter_bytes);
}

static void publish_stats(struct engine *e, bool busy)
{
    e->live.pages = kv_pool_usage(e->pool);
    e->live.n_running = e->running.n;
    e->live.n_waiting = e->waiting.n;
    e->live.n_importing = e->importing.n;
    e->live.n_parked = e->parked.n;
    e->live.n_slots = e->options.n_slots;
    e->live.busy = busy;
    pthread_mutex_lock(&e->stats_lock);
    e->stats = e->live;
    refresh_prefix_filter(e);
    pthread_mutex_unlock(&e->stats_lock);
}

static void tell_news(struct engine *e)
{
    pthread_mutex_lock(&e->news.lock);
    const bool any = e->news.first != NULL;
    pthread_mutex_unlock(&e->news.lock);
    if (any)
        e->options.news(e->options.news_context);
}

static bool wait_for_work(struct engine *e, bool idle)
{
    pthread_mutex_lock(&e->commands.lock);
    if (idle && !e->commands.first && !e->stopping) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += 1; /* deadlines of the waiting are looked at once a second */
        pthread_cond_timedwait(&e->wake, &e->commands.lock, &until);
    }
    const bool stopping = e->stopping;
    pthread_mutex_unlock(&e->commands.lock);
    return !stopping;
}

static void *engine_main(void *context)
{
    struct engine *e = context;
    bool idle = false;

    while (wait_for_work(e, idle)) {
        const int64_t start_ns = clock_thread_ns();
        take_commands(e);
        plan_admit(e);
        plan_step(e);
        idle = e->plan.n_rows == 0;
        publish_stats(e, !idle);
        tell_news(e);
        if (idle)
            continue;
        engine_run_step(e);
        publish_stats(e, true);
        tell_news(e);
        e->live.own_ns += (uint64_t)(clock_thread_ns() - start_ns - e->model_cpu_ns);
    }
    take_commands(e);
    struct sequence_list *const lists[] = {&e->waiting, &e->running, &e->importing, &e->parked,
                                           &e->held};
    for (size_t i = 0; i < ARRAY_LENGTH(lists); i++)
        while (lists[i]->first)
            sequence_end(e, lists[i]->first, STATUS_CANCELLED, "the server is stopping");
    publish_stats(e, false);
    tell_news(e);
    return NULL;
}

static enum status plan_init(struct step_plan *p, uint32_t n_rows, uint32_t n_tables,
                             uint32_t n_logit_rows)
{
    p->ids = memory_alloc(n_rows, sizeof *p->ids);
    p->positions = memory_alloc(n_rows, sizeof *p->positions);
    p->tables = memory_alloc(n_rows, sizeof *p->tables);
    p->page_tables = memory_alloc(n_tables, sizeof *p->page_tables);
    p->sequences = memory_alloc(n_tables, sizeof *p->sequences);
    p->logit_rows = memory_alloc(n_logit_rows, sizeof *p->logit_rows);
    return p->ids && p->positions && p->tables && p->page_tables && p->sequences && p->logit_rows
               ? STATUS_OK
               : STATUS_NO_MEMORY;
}

static void plan_deinit(struct step_plan *p)
{
    free(p->ids);
    free(p->positions);
    free(p->tables);
    free(p->page_tables);
    free(p->sequences);
    free(p->logit_rows);
}

static enum status allocate(struct engine *e)
{
    const struct engine_options *o = &e->options;
    const uint64_t page_bytes = kv_page_bytes(e->limits.kv);
    uint64_t pool_bytes;

    if (!mul_u64(page_bytes, o->n_pages, &pool_bytes))
        return fail(STATUS_NO_MEMORY, "%u pages of %llu bytes are more than any memory", o->n_pages,
                    (unsigned long long)page_bytes);
    e->pool_memory = compute_alloc(o->compute, pool_bytes);
    if (!e->pool_memory)
        return fail(STATUS_NO_MEMORY, "no memory for a KV pool of %llu bytes",
                    (unsigned long long)pool_bytes);
    TRY(kv_pool_create(e->pool_memory, o->n_pages, e->limits.kv, &e->pool));
    e->n_prefix_filter_bytes = prefix_filter_bytes(o->n_pages);
    e->prefix_filter = memory_alloc(e->n_prefix_filter_bytes, 1);
    if (!e->prefix_filter)
        return STATUS_NO_MEMORY;
    e->max_logit_rows = engine_max_logit_rows(o);
    e->logits = memory_alloc((size_t)e->max_logit_rows * e->limits.n_vocab, sizeof *e->logits);
    if (!e->logits)
        return STATUS_NO_MEMORY;
    TRY(plan_init(&e->plan, o->n_slots + o->max_chunk_tokens, o->n_slots, e->max_logit_rows));
    return sampler_init(&e->sampler, o->compute, e->limits.n_vocab);
}

enum status engine_create(const struct engine_options *o, struct engine **out)
{
    struct engine *e = memory_alloc(1, sizeof *e);
    pthread_condattr_t attributes;
    enum status status;

    if (!e)
        return STATUS_NO_MEMORY;
    e->options = *o;
    model_get_limits(o->model, &e->limits);
    mailbox_init(&e->commands);
    mailbox_init(&e->news);
    pthread_mutex_init(&e->stats_lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&e->wake, &attributes);
    pthread_condattr_destroy(&attributes);
    if (kv_pages_of_tokens(o->max_context_tokens) > o->n_pages) {
        status =
            fail(STATUS_CONTEXT_LENGTH, "one request of %u tokens needs %u pages, the pool has %u",
                 o->max_context_tokens, kv_pages_of_tokens(o->max_context_tokens), o->n_pages);
        goto failed;
    }
    TRY_GOTO(failed, allocate(e));
    publish_stats(e, false);
    if (pthread_create(&e->thread, NULL, engine_main, e)) {
        status = fail(STATUS_NO_MEMORY, "no thread for the engine");
        goto failed;
    }
    e->thread_started = true;
    *out = e;
    return STATUS_OK;
failed:
    engine_destroy(&e);
    return status;
}

void engine_stop(struct engine *e)
{
    if (!e->thread_started)
        return;
    pthread_mutex_lock(&e->commands.lock);
    e->stopping = true;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->commands.lock);
    pthread_join(e->thread, NULL);
    e->thread_started = false;
}

void engine_destroy(struct engine **pe)
{
    struct engine *e = *pe;

    if (!e)
        return;
    engine_stop(e);
    sampler_deinit(&e->sampler);
    plan_deinit(&e->plan);
    free(e->logits);
    free(e->prefix_filter);
    kv_pool_destroy(&e->pool);
    if (e->pool_memory)
        compute_free(e->options.compute, e->pool_memory,
                     kv_page_bytes(e->limits.kv) * e->options.n_pages);
    mailbox_deinit(&e->commands);
    mailbox_deinit(&e->news);
    pthread_mutex_destroy(&e->stats_lock);
    pthread_cond_destroy(&e->wake);
    free(e);
    *pe = NULL;
}

struct kv_view engine_kv_view(const struct engine *e)
{
    return kv_pool_view(e->pool);
}

void engine_get_stats(const struct engine *ce, struct engine_stats *out)
{
    struct engine *e = (struct engine *)ce;

    pthread_mutex_lock(&e->stats_lock);
    *out = e->stats;
    pthread_mutex_unlock(&e->stats_lock);
    out->progress = compute_progress(e->options.compute);
}

uint32_t engine_get_prefix_filter(const struct engine *ce, uint8_t *out, uint64_t *version)
{
    struct engine *e = (struct engine *)ce;
    uint32_t n = 0;

    pthread_mutex_lock(&e->stats_lock);
    if (e->prefix_filter_version != *version) {
        *version = e->prefix_filter_version;
        n = e->n_prefix_filter_bytes;
        memcpy(out, e->prefix_filter, n);
    }
    pthread_mutex_unlock(&e->stats_lock);
    return n;
}
