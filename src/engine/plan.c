/* What the next step does: who is taken from the queue, whose pages make room, which rows are
 * computed. */
#include "engine/internal.h"

#include "base/checked.h"
#include "base/clock.h"

#include <string.h>

/* Names of the first n_pages pages, as far as they are full of known ids. */
void sequence_learn_names(struct sequence *s, uint32_t n_pages)
{
    while (s->n_names < n_pages) {
        const struct page_name *parent = s->n_names ? &s->page_names[s->n_names - 1] : NULL;
        s->page_names[s->n_names] =
            page_name(parent, &s->names, s->ids + (size_t)s->n_names * PAGE_TOKENS);
        s->n_names++;
    }
}

/* A page whose every token has been computed may be found by others from now on. */
void sequence_index_full_pages(struct engine *e, struct sequence *s)
{
    const uint32_t n_full = MIN(s->n_computed / PAGE_TOKENS, s->n_pages);

    sequence_learn_names(s, n_full);
    for (; s->n_indexed < n_full; s->n_indexed++)
        kv_prefix_insert(e->pool, s->pages[s->n_indexed], &s->page_names[s->n_indexed]);
}

void sequence_release_pages(struct engine *e, struct sequence *s)
{
    /* last first, so that of one prefix the far end is evicted before the near one */
    while (s->n_pages)
        kv_page_release(e->pool, s->pages[--s->n_pages]);
    s->n_computed = s->n_indexed = 0;
}

static void append_fresh_pages(struct engine *e, struct sequence *s, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        kv_page_zero_lanes(e->pool, s->pages[s->n_pages + i], 0);
    s->n_pages += n;
    atomic_store(&s->published_pages, s->n_pages);
}

/* Retains the cached pages of the longest known prefix, at most max_pages. */
static void take_cached_prefix(struct engine *e, struct sequence *s, uint32_t max_pages)
{
    sequence_learn_names(s, max_pages);
    while (s->n_pages < max_pages) {
        kv_page_t page = kv_prefix_find(e->pool, &s->page_names[s->n_pages]);
        if (page == KV_PAGE_NONE)
            break;
        s->pages[s->n_pages++] = page;
    }
    s->n_indexed = s->n_pages;
}

/* Pages for everything known and the next token. All or nothing. */
static bool admit_one(struct engine *e, struct sequence *s)
{
    const bool reads_cache = s->prompt_rows.value == NULL;
    const uint32_t n_wanted = kv_pages_of_tokens(MIN(s->n_ids + 1, s->capacity));

    /* at least the last token is computed: its logits are wanted */
    if (reads_cache)
        take_cached_prefix(e, s, (s->n_ids - 1) / PAGE_TOKENS);
    const uint32_t n_cached = s->n_pages;
    const struct kv_usage usage = kv_pool_usage(e->pool);
    /* a page for each running sequence stays spare, or they would throw the newcomer out at once */
    const uint32_t n_spare = e->running.n;
    if (usage.n_free + usage.n_cached < n_wanted - n_cached + n_spare ||
        kv_pages_acquire(e->pool, n_wanted - n_cached, s->pages + n_cached) != STATUS_OK) {
        sequence_release_pages(e, s);
        return false;
    }
    if (reads_cache) {
        e->live.n_prefix_queries += s->n_ids;
        e->live.n_prefix_hits += (uint64_t)n_cached * PAGE_TOKENS;
    }
    s->n_computed = n_cached * PAGE_TOKENS;
    append_fresh_pages(e, s, n_wanted - n_cached);
    for (uint32_t layer = 0; layer < e->limits.n_layers; layer++)
        atomic_store_explicit(&s->layer_tokens[layer], s->n_computed, memory_order_release);
    if (!atomic_load(&s->started)) {
        if (s->purpose != SEQUENCE_IMPORT) /* there it was said with the reservation */
            s->n_cached_tokens = s->n_computed;
        atomic_store(&s->started, true);
        engine_publish(e, s);
    }
    return true;
}

static void end_late_ones(struct engine *e, struct sequence_list *list, const char *message)
{
    const int64_t now_ms = clock_now_ms();

    for (struct sequence *s = list->first, *next; s; s = next) {
        next = s->next;
        if (s->deadline_ms && now_ms > s->deadline_ms)
            sequence_end(e, s, STATUS_DEADLINE, message);
    }
}

void plan_admit(struct engine *e)
{
    end_late_ones(e, &e->waiting, "the deadline passed while the request was waiting");
    end_late_ones(e, &e->parked, "the deadline passed while the client read nothing");
    while (e->waiting.first && e->running.n + e->importing.n < e->options.n_slots) {
        struct sequence *s = e->waiting.first;
        if (!admit_one(e, s))
            break;
        list_remove(&e->waiting, s);
        s->state = STATE_RUNNING;
        list_append(&e->running, s);
    }
}

enum status import_reserve(struct engine *e, struct sequence *s)
{
    const struct resume *r = &s->request->resume;
    const uint32_t n_answer = MIN(r->max_tokens - r->n_generated, 128u);
    const uint32_t n_wanted = kv_pages_of_tokens(MIN(s->n_prefix + n_answer, s->capacity));

    /* who waits for its slot again, pre-empted or parked before, goes first */
    if (e->running.n + e->importing.n + e->waiting.n >= e->options.n_slots)
        return fail(STATUS_NO_PAGES, "all %u slots are taken", e->options.n_slots);
    take_cached_prefix(e, s, s->n_prefix / PAGE_TOKENS);
    const uint32_t n_cached = s->n_pages;
    enum status status = kv_pages_acquire(e->pool, n_wanted - n_cached, s->pages + n_cached);
    if (status != STATUS_OK) {
        sequence_release_pages(e, s);
        return status;
    }
    s->n_held_pages = n_cached;
    s->n_cached_tokens = n_cached * PAGE_TOKENS;
    s->n_pages = n_wanted;
    /* pages of the prefix are overwritten whole; only what lies behind it must be made zero */
    for (uint32_t i = kv_pages_of_tokens(s->n_prefix); i < n_wanted; i++)
        kv_page_zero_lanes(e->pool, s->pages[i], 0);
    atomic_store(&s->published_pages, s->n_pages);
    return STATUS_OK;
}

/* The pages of the youngest running sequence that may be pre-empted become cache, and it waits to
 * be computed again, ahead of new requests. The oldest is never chosen, so that somebody always
 * gets on. */
static bool preempt_youngest(struct engine *e, struct sequence *for_whom)
{
    struct sequence *youngest = NULL, *oldest = NULL;

    for (struct sequence *s = e->running.first; s; s = s->next) {
        if (!oldest || s->serial < oldest->serial)
            oldest = s;
        if (s->purpose != SEQUENCE_PREFILL && (!youngest || s->serial > youngest->serial))
            youngest = s;
    }
    if (!youngest || youngest == oldest || youngest->serial < for_whom->serial)
        return false;
    list_remove(&e->running, youngest);
    sequence_release_pages(e, youngest);
    youngest->state = STATE_WAITING;
    list_prepend(&e->waiting, youngest);
    e->live.n_preemptions++;
    return youngest != for_whom;
}

/* True if the sequence has pages for all its ids; false if it was pre-empted itself or must sit
 * this step out. */
static bool make_room(struct engine *e, struct sequence *s)
{
    while (s->n_pages < kv_pages_of_tokens(s->n_ids)) {
        if (kv_pages_acquire(e->pool, 1, s->pages + s->n_pages) == STATUS_OK)
            append_fresh_pages(e, s, 1);
        else if (!preempt_youngest(e, s))
            return false;
    }
    return true;
}

bool sequence_window_is_spent(const struct sequence *s)
{
    return s->n_ids - s->n_prompt >= atomic_load(&s->window);
}

/* Whoever's reader is behind makes room for others. */
static void park_spent(struct engine *e)
{
    for (struct sequence *s = e->running.first, *next; s; s = next) {
        next = s->next;
        if (s->purpose == SEQUENCE_PREFILL || !sequence_window_is_spent(s))
            continue;
        list_remove(&e->running, s);
        sequence_release_pages(e, s);
        s->state = STATE_PARKED;
        list_append(&e->parked, s);
        e->live.n_parkings++;
    }
}

/* A step with a chunk in it takes at most so many times one without, so that those who are being
 * answered hardly notice that somebody's prompt is read. */
#define SLOWER_BY_A_CHUNK 1.75

/* Rows of prefill for a step that has n_decode rows of answers in it. */
static uint32_t chunk_budget(const struct engine *e, uint32_t n_decode)
{
    const struct engine_options *o = &e->options;
    double n, target_ms = o->target_step_ms;

    if (o->fixed_chunk_tokens)
        return MIN(o->fixed_chunk_tokens, o->max_chunk_tokens);
    if (n_decode && e->decode_step_ms > 0)
        target_ms = MIN(target_ms, (SLOWER_BY_A_CHUNK - 1) * e->decode_step_ms);
    n = e->prefill_rows_per_ms > 0 ? e->prefill_rows_per_ms * target_ms : 64;
    n = MAX(16.0, MIN(n, (double)o->max_chunk_tokens));
    return MIN((uint32_t)n / 16 * 16, o->max_chunk_tokens);
}

static void plan_rows(struct engine *e, struct sequence *s, uint32_t n)
{
    struct step_plan *p = &e->plan;
    const bool to_the_end = s->n_computed + n == s->n_ids;

    s->step_row = p->n_rows;
    s->step_rows = n;
    s->failed_numerics = false;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t position = s->n_computed + i;
        p->ids[p->n_rows] = s->ids[position];
        p->positions[p->n_rows] = position;
        p->tables[p->n_rows] = p->n_tables;
        if ((to_the_end && i == n - 1) || (s->prompt_rows.value && position + 1 < s->n_prompt))
            p->logit_rows[p->n_logit_rows++] = p->n_rows;
        p->n_rows++;
    }
    p->page_tables[p->n_tables] =
        (struct page_table_view){.pages = s->pages, .n_tokens = s->n_computed + n};
    p->sequences[p->n_tables++] = s;
}

/* Rows of prefill that a sequence could use in this step. */
static uint32_t prefill_left(const struct sequence *s)
{
    const uint32_t n = s->n_ids - s->n_computed;

    return n >= 2 && s->n_pages >= kv_pages_of_tokens(s->n_ids) ? n : 0;
}

/* Half of a step's rows are the oldest prompt's, the rest goes to whoever has least left: a short
 * prompt does not wait until a long one has been read, nor the other way round. */
static void share_prefill(struct engine *e, uint32_t budget)
{
    struct sequence *oldest = NULL;
    uint32_t n_waiting = 0;

    for (struct sequence *s = e->running.first; s; s = s->next) {
        s->prefill_share = 0;
        n_waiting += prefill_left(s) > 0;
        if (!oldest && prefill_left(s))
            oldest = s;
    }
    if (!oldest)
        return;
    oldest->prefill_share = MIN(prefill_left(oldest), n_waiting > 1 ? (budget + 1) / 2 : budget);
    budget -= oldest->prefill_share;
    for (uint32_t i = 1; i < n_waiting && budget; i++) {
        struct sequence *next = NULL;
        for (struct sequence *s = e->running.first; s; s = s->next)
            if (!s->prefill_share && prefill_left(s) &&
                (!next || prefill_left(s) < prefill_left(next)))
                next = s;
        next->prefill_share = MIN(prefill_left(next), budget);
        budget -= next->prefill_share;
    }
    oldest->prefill_share += MIN(prefill_left(oldest) - oldest->prefill_share, budget);
}

void plan_step(struct engine *e)
{
    struct step_plan *p = &e->plan;
    const int64_t now_ms = clock_now_ms();

    p->n_rows = p->n_tables = p->n_logit_rows = p->n_prefill_rows = 0;
    for (struct sequence *s = e->running.first, *next; s; s = next) {
        next = s->next;
        if (s->deadline_ms && now_ms > s->deadline_ms)
            sequence_stop(e, s, STATUS_DEADLINE,
                          "the deadline passed before the answer was complete");
    }
    park_spent(e);
    /* making room may pre-empt any sequence, so all room is made before the first row is planned */
restart:
    for (struct sequence *s = e->running.first; s; s = s->next) {
        const uint32_t n_running = e->running.n;
        if (!make_room(e, s) && e->running.n == n_running)
            continue; /* it sits this step out */
        if (e->running.n != n_running)
            goto restart;
    }
    for (struct sequence *s = e->running.first; s; s = s->next)
        if (s->n_ids - s->n_computed == 1 && s->n_pages >= kv_pages_of_tokens(s->n_ids))
            plan_rows(e, s, 1);
    share_prefill(e, chunk_budget(e, p->n_rows));
    uint32_t logit_budget = e->max_logit_rows - e->options.n_slots;
    for (struct sequence *s = e->running.first; s; s = s->next) {
        uint32_t n = s->prefill_share;
        if (s->prompt_rows.value) { /* every row's logits are wanted */
            n = MIN(n, logit_budget);
            logit_budget -= n;
        }
        if (n == 0)
            continue;
        plan_rows(e, s, n);
        p->n_prefill_rows += n;
    }
}
