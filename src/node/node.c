/* The node itself: engine, jobs, and the way news of sequences finds their jobs. */
#include "node/internal.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "base/ring.h"

#include <stdlib.h>
#include <string.h>

const char *node_role_name(enum node_role role)
{
    return role == NODE_PREFILL ? "prefill" : role == NODE_DECODE ? "decode" : "hybrid";
}

/* ---- jobs ---- */

const char *job_place(const struct job *j)
{
    if (j->closing)
        return "closing";
    switch (j->node->options.role) {
    case NODE_PREFILL:
        return j->first_told ? "handing_over" : j->opened ? "prefilling" : "waiting";
    case NODE_DECODE:
        return j->whole && !j->first_told ? "prefilling"
               : j->committed             ? "decoding"
               : j->asked_ready           ? "receiving"
                                          : "reserving";
    case NODE_HYBRID:
        break;
    }
    return "running";
}

void job_note(const struct job *j, const char *from, const char *event)
{
    ring_note(node_role_name(j->node->options.role), j->key.origin, j->key.number, j->attempt, from,
              event, job_place(j));
}

struct job *job_create(struct node *n, struct request *r, enum sequence_purpose purpose,
                       enum status *status)
{
    struct job *j = memory_alloc(1, sizeof *j);

    if (!j) {
        *status = STATUS_NO_MEMORY;
        return NULL;
    }
    *status = sequence_create(n->engine, r, purpose, &j->sequence);
    if (*status != STATUS_OK) {
        free(j);
        return NULL;
    }
    j->node = n;
    j->key = r->key;
    j->attempt = r->attempt;
    strncpy(j->request_id, r->request_id ? r->request_id : "", sizeof j->request_id - 1);
    j->begun_ms = clock_now_ms();
    j->n_told = r->resume.n_generated;
    sequence_set_owner(j->sequence, j);
    j->next = n->jobs;
    if (n->jobs)
        n->jobs->prev = j;
    n->jobs = j;
    n->n_jobs++;
    job_note(j, "new", "request");
    return j;
}

void job_destroy(struct job *j)
{
    struct node *n = j->node;

    ring_note(node_role_name(n->options.role), j->key.origin, j->key.number, j->attempt,
              job_place(j), "ended", "gone");
    *(j->prev ? &j->prev->next : &n->jobs) = j->next;
    if (j->next)
        j->next->prev = j->prev;
    n->n_jobs--;
    job_is_served(j);
    text_stream_destroy(&j->text);
    sequence_destroy(&j->sequence);
    free(j);
    if (n->draining && n->n_jobs == 0 && n->idle) {
        void (*idle)(void *) = n->idle;
        n->idle = NULL;
        idle(n->idle_context);
    }
}

struct job *job_find(struct node *n, const struct request_key *key)
{
    struct job *j = n->jobs;

    while (j && (j->closing || !request_key_equal(&j->key, key)))
        j = j->next;
    return j;
}

void key_remember_cancelled(struct node *n, const struct request_key *key, uint32_t attempt)
{
    struct cancelled_key *c = &n->cancelled[n->next_cancelled++ % N_CANCELLED_KEYS];

    c->key = *key;
    c->attempt = attempt;
    c->until_ms = clock_now_ms() + CANCELLED_KEY_MS;
}

bool key_was_cancelled(const struct node *n, const struct request_key *key, uint32_t attempt)
{
    const int64_t now_ms = clock_now_ms();

    for (uint32_t i = 0; i < N_CANCELLED_KEYS; i++)
        if (n->cancelled[i].until_ms > now_ms && attempt <= n->cancelled[i].attempt &&
            request_key_equal(&n->cancelled[i].key, key))
            return true;
    return false;
}

struct logprob_rows rows_from(const struct logprob_rows *rows, uint32_t first)
{
    return (struct logprob_rows){.n_top = rows->n_top,
                                 .value = rows->value + first,
                                 .top_ids = rows->top_ids + (size_t)first * rows->n_top,
                                 .top_values = rows->top_values + (size_t)first * rows->n_top};
}

/* ---- news from the engine ---- */

static void engine_news(void *context)
{
    struct node *n = context;

    if (!atomic_exchange(&n->news_posted, true))
        net_post(n->options.loop, &n->news_task);
}

static void take_news(struct net_task *task)
{
    struct node *n = (struct node *)((char *)task - offsetof(struct node, news_task));
    struct sequence *s;

    atomic_store(&n->news_posted, false);
    while ((s = engine_next_news(n->engine)) != NULL) {
        struct job *j = sequence_owner(s);
        struct sequence_view v;
        sequence_get_view(s, &v);
        if (n->options.role == NODE_HYBRID)
            hybrid_news(j, &v);
        else if (n->options.role == NODE_PREFILL)
            prefill_news(j, &v);
        else
            decode_news(j, &v);
    }
    if (n->hub)
        replies_flush(n);
}

/* ---- figures ---- */

static void add_since(struct metric *m, uint64_t now, uint64_t then)
{
    if (now > then)
        metric_add(m, now - then);
}

static void update_metrics(void *context)
{
    struct node *n = context;
    struct engine_stats s;

    rate_look(&n->serving, n->n_unserved_tokens, clock_now_ms());
    engine_get_stats(n->engine, &s);
    metric_set(n->metrics.running, s.n_running);
    metric_set(n->metrics.waiting, s.n_waiting);
    metric_set(n->metrics.kv_usage, s.pages.n_total ? (double)s.pages.n_held / s.pages.n_total : 0);
    metric_set(n->metrics.pages_free, s.pages.n_free);
    metric_set(n->metrics.pages_cached, s.pages.n_cached);
    metric_set(n->metrics.pages_held, s.pages.n_held);
    add_since(n->metrics.prefix_queries, s.n_prefix_queries, n->last_stats.n_prefix_queries);
    add_since(n->metrics.prefix_hits, s.n_prefix_hits, n->last_stats.n_prefix_hits);
    add_since(n->metrics.preemptions, s.n_preemptions, n->last_stats.n_preemptions);
    add_since(n->metrics.parkings, s.n_parkings, n->last_stats.n_parkings);
    add_since(n->metrics.prompt_computed, s.n_prompt_tokens_computed,
              n->last_stats.n_prompt_tokens_computed);
    add_since(n->metrics.sampled, s.n_tokens_sampled, n->last_stats.n_tokens_sampled);
    n->last_stats = s;
    if (n->hub)
        roles_tell_prefixes(n);
}

static void make_metrics(struct node *n)
{
    struct metrics *m = n->options.metrics;
    n->metrics.running =
        metrics_gauge(m, "num_requests_running", NULL, "Sequences in the engine's steps.");
    n->metrics.waiting =
        metrics_gauge(m, "num_requests_waiting", NULL, "Sequences in the engine's queue.");
    n->metrics.kv_usage = metrics_gauge(m, "kv_cache_usage_perc", NULL,
                                        "Share of KV pages held by sequences, 0 to 1.");
    n->metrics.pages_free = metrics_gauge(m, "kv_pages", "state=\"free\"", "KV pages by state.");
    n->metrics.pages_cached =
        metrics_gauge(m, "kv_pages", "state=\"cached\"", "KV pages by state.");
    n->metrics.pages_held = metrics_gauge(m, "kv_pages", "state=\"held\"", "KV pages by state.");
    n->metrics.prefix_queries = metrics_counter(m, "prefix_cache_queries_total", NULL,
                                                "Tokens looked up in the prefix cache.");
    n->metrics.prefix_hits =
        metrics_counter(m, "prefix_cache_hits_total", NULL, "Tokens found in the prefix cache.");
    n->metrics.preemptions =
        metrics_counter(m, "num_preemptions_total", NULL,
                        "Sequences that gave their pages up and were computed again.");
    n->metrics.parkings =
        metrics_counter(m, "num_parkings_total", NULL,
                        "Sequences that gave their pages up because their reader was behind.");
    n->metrics.prompt_computed = metrics_counter(m, "engine_prompt_tokens_total", NULL,
                                                 "Prompt tokens computed by this node's engine.");
    n->metrics.sampled = metrics_counter(m, "engine_sampled_tokens_total", NULL,
                                         "Tokens sampled by this node's engine.");
    n->metrics.misconfigured = metrics_gauge(
        m, "role_misconfigured", NULL,
        "1 if the role's flags are incomplete and the process serves as a single node.");
    metric_set(n->metrics.misconfigured, n->options.misconfigured != NULL);
}

/* ---- the service's parts that all roles share ---- */

void node_describe(struct service *s, struct service_description *out)
{
    struct node *n = (struct node *)s;

    *out = (struct service_description){
        .role = node_role_name(n->options.role),
        .node_id = n->options.node_id,
        .misconfigured = n->options.misconfigured,
        .max_context_tokens = n->options.engine.max_context_tokens,
        .n_slots = n->options.engine.n_slots,
    };
    memcpy(out->fingerprint, n->options.hello.fingerprint, sizeof out->fingerprint);
}

void node_capacity(struct service *s, struct service_capacity *out)
{
    struct node *n = (struct node *)s;
    struct engine_stats stats;

    engine_get_stats(n->engine, &stats);
    *out = (struct service_capacity){.n_running = stats.n_running,
                                     .n_waiting = n->n_jobs > stats.n_running + stats.n_parked
                                                      ? n->n_jobs - stats.n_running - stats.n_parked
                                                      : 0,
                                     .max_waiting = n->options.max_waiting,
                                     .retry_after_s =
                                         rate_retry_after_s(&n->serving, n->n_unserved_tokens)};
}

/* A busy engine that makes no progress is stuck, whoever asks. */
enum status node_liveness(struct service *s)
{
    struct node *n = (struct node *)s;
    static const int64_t stuck_ms = 10000;
    struct engine_stats stats;
    const int64_t now_ms = clock_now_ms();

    engine_get_stats(n->engine, &stats);
    if (!stats.busy || stats.progress != n->last_progress || !n->progress_since_ms) {
        n->last_progress = stats.progress;
        n->progress_since_ms = now_ms;
    }
    if (now_ms - n->progress_since_ms > stuck_ms)
        return fail(STATUS_INTERNAL, "the engine is busy and has made no progress for %lld ms",
                    (long long)(now_ms - n->progress_since_ms));
    return STATUS_OK;
}

void node_drain(struct service *s, void (*idle)(void *context), void *context)
{
    struct node *n = (struct node *)s;

    n->draining = true;
    if (n->hub)
        peer_hub_announce(n->hub); /* before anything else changes: routers move what they can */
    n->idle = idle;
    n->idle_context = context;
    if (n->n_jobs == 0 && idle) {
        n->idle = NULL;
        idle(context);
    }
}

void node_stats(struct service *s, service_stat_visitor *visit, void *context)
{
    struct node *n = (struct node *)s;
    struct engine_stats e;

    engine_get_stats(n->engine, &e);
    visit(context, "", "role", node_role_name(n->options.role), 0);
    visit(context, "", "node_id", n->options.node_id, 0);
    visit(context, "engine", "running", NULL, e.n_running);
    visit(context, "engine", "waiting", NULL, e.n_waiting);
    visit(context, "engine", "importing", NULL, e.n_importing);
    visit(context, "engine", "slots", NULL, e.n_slots);
    visit(context, "engine", "steps", NULL, (double)e.n_steps);
    visit(context, "engine", "prompt_tokens_computed", NULL, (double)e.n_prompt_tokens_computed);
    visit(context, "engine", "tokens_sampled", NULL, (double)e.n_tokens_sampled);
    visit(context, "engine", "prefix_query_tokens", NULL, (double)e.n_prefix_queries);
    visit(context, "engine", "prefix_hit_tokens", NULL, (double)e.n_prefix_hits);
    visit(context, "engine", "preemptions", NULL, (double)e.n_preemptions);
    visit(context, "engine", "parked", NULL, e.n_parked);
    visit(context, "engine", "parkings", NULL, (double)e.n_parkings);
    visit(context, "pages", "total", NULL, e.pages.n_total);
    visit(context, "pages", "free", NULL, e.pages.n_free);
    visit(context, "pages", "cached", NULL, e.pages.n_cached);
    visit(context, "pages", "held", NULL, e.pages.n_held);
    visit(context, "", "requests", NULL, n->n_jobs);
    if (n->senders) {
        struct handoff_sender_stats h;
        handoff_senders_stats(n->senders, &h);
        visit(context, "handoff_sent", "open", NULL, h.n_open);
        visit(context, "handoff_sent", "pages", NULL, (double)h.n_pages_sent);
        visit(context, "handoff_sent", "slab_bytes", NULL, (double)h.n_slab_bytes_sent);
        visit(context, "handoff_sent", "wire_bytes", NULL, (double)h.n_wire_bytes_sent);
        visit(context, "handoff_sent", "accepted", NULL, (double)h.n_accepted);
        visit(context, "handoff_sent", "refused", NULL, (double)h.n_refused);
        visit(context, "handoff_sent", "failed", NULL, (double)h.n_failed);
    }
    if (n->receivers) {
        struct handoff_receiver_stats h;
        handoff_receivers_stats(n->receivers, &h);
        visit(context, "handoff_received", "open", NULL, h.n_open);
        visit(context, "handoff_received", "pages", NULL, (double)h.n_pages_received);
        visit(context, "handoff_received", "slab_bytes", NULL, (double)h.n_slab_bytes_received);
        visit(context, "handoff_received", "stray_slabs", NULL, (double)h.n_stray_slabs);
        visit(context, "handoff_received", "committed", NULL, (double)h.n_committed);
        visit(context, "handoff_received", "ended", NULL, (double)h.n_ended);
    }
}

/* ---- the node's own life ---- */

enum status node_create(const struct node_options *o, struct node **out)
{
    struct node *n = memory_alloc(1, sizeof *n);
    enum status status;

    if (!n)
        return STATUS_NO_MEMORY;
    n->options = *o;
    n->epoch = random_u64();
    n->service.ops = o->role == NODE_HYBRID ? &hybrid_ops : &role_ops;
    n->news_task.run = take_news;
    n->options.engine.news = engine_news;
    n->options.engine.news_context = n;
    make_metrics(n);
    TRY_GOTO(failed, engine_create(&n->options.engine, &n->engine));
    TRY_GOTO(failed, net_timer_start(o->loop, &n->timer, 250, 250, update_metrics, n));
    if (o->role != NODE_HYBRID)
        TRY_GOTO(failed, roles_start(n));
    *out = n;
    return STATUS_OK;
failed:
    node_destroy(&n);
    return status;
}

void node_cancel_all(struct node *n)
{
    for (struct job *j = n->jobs, *next; j; j = next) {
        next = j->next;
        if (n->options.role == NODE_PREFILL) {
            prefill_cancel(j);
        } else if (n->options.role == NODE_DECODE) {
            decode_cancel(j);
        } else {
            j->closing = true;
            engine_cancel(n->engine, j->sequence);
        }
    }
}

static void turn_until_quiet(struct node *n)
{
    for (int i = 0; i < 1000; i++) {
        struct handoff_sender_stats h = {0};
        if (n->senders)
            handoff_senders_stats(n->senders, &h);
        if (!h.n_open && !atomic_load(&n->news_posted) && !n->flush_posted)
            return;
        net_loop_turn(n->options.loop);
    }
}

void node_destroy(struct node **pn)
{
    struct node *n = *pn;

    if (!n)
        return;
    n->idle = NULL;
    n->draining = true; /* what comes during the turns below is refused: its link is about to go */
    net_timer_stop(&n->timer);
    if (n->engine)
        node_cancel_all(n);
    /* what is being sent gives its memory back, and news under way arrive, in the loop's next turns
     */
    turn_until_quiet(n);
    for (struct peer_link *i = n->hub ? peer_hub_next(n->hub, NULL) : NULL; i;
         i = peer_hub_next(n->hub, i))
        replies_link_down(i); /* the hub's end is without a word */
    peer_hub_destroy(&n->hub);
    if (n->engine)
        engine_stop(n->engine);
    turn_until_quiet(n);
    handoff_receivers_destroy(&n->receivers);
    handoff_senders_destroy(&n->senders);
    while (n->jobs)
        job_destroy(n->jobs);
    engine_destroy(&n->engine);
    free(n);
    *pn = NULL;
}

struct service *node_service(struct node *n)
{
    return &n->service;
}

struct peer_hub *node_hub(struct node *n)
{
    return n->hub;
}

uint32_t node_n_requests(const struct node *n)
{
    return n->n_jobs;
}
