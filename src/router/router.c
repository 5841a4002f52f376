/* The router as a service, and its links. */
#include "router/internal.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the service ---- */

/* No pair of nodes at this moment, but there was one moments ago: a node that restarts is worth the
 * wait in the queue. */
static bool nodes_just_lost(struct router *r)
{
    return dispatch_possible(r, 1) != STATUS_OK && r->possible_until_ms &&
           clock_now_ms() - r->possible_until_ms < RESTART_PATIENCE_MS;
}

static enum status submit(struct service *s, struct request *request, struct request_sink sink,
                          uint64_t *out_ticket)
{
    struct router *r = (struct router *)s;
    const struct resume *m = &request->resume;
    const uint64_t bytes =
        ((uint64_t)m->n_prompt + m->max_tokens) * sizeof(uint32_t) + sizeof(struct entry);
    const uint64_t frame_bytes = ((uint64_t)m->n_prompt + m->max_tokens) * sizeof(uint32_t) + 65536;

    if (r->draining)
        return fail(STATUS_DRAINING, "this server is shutting down");
    const enum status possible = dispatch_possible(r, m->n_prompt + m->max_tokens);
    if (possible != STATUS_OK && !nodes_just_lost(r))
        return possible;
    if (r->n_queued >= r->options.max_waiting)
        return fail(STATUS_QUEUE_FULL, "%u requests are waiting, %u may", r->n_queued,
                    r->options.max_waiting);
    TRY(rate_admit(&r->serving, r->n_unserved_tokens,
                   1e-3 * (double)(m->deadline_ms
                                       ? MIN(m->deadline_ms, (uint64_t)r->options.queue_timeout_ms)
                                       : r->options.queue_timeout_ms)));
    if (r->journal_bytes + bytes > r->options.max_journal_bytes)
        return fail(STATUS_QUEUE_FULL, "the requests in flight fill the journal of %llu bytes",
                    (unsigned long long)r->options.max_journal_bytes);
    if (frame_bytes > WIRE_FRAME_BYTES_MAX)
        return fail(STATUS_CONTEXT_LENGTH,
                    "%u prompt tokens and an answer of %u do not fit a message between nodes",
                    m->n_prompt, m->max_tokens);
    struct entry *e = memory_alloc(1, sizeof *e);
    if (!e)
        return STATUS_NO_MEMORY;
    e->router = r;
    const enum status status =
        text_stream_create(r->options.vocabulary, m, service_context(r), &e->stream);
    if (status != STATUS_OK) {
        free(e);
        return status;
    }
    snprintf(request->key.origin, sizeof request->key.origin, "%s", r->options.node_id);
    request->key.epoch = r->epoch;
    request->key.number = ++r->next_number;
    request->key.choice = m->choice;
    e->request = request;
    e->sink = sink;
    e->ticket = r->next_number;
    e->state = ENTRY_QUEUED;
    e->window_tokens = SERVICE_WINDOW_TOKENS;
    e->submitted_ms = e->queued_ms = clock_now_ms();
    if (m->deadline_ms)
        e->deadline_ms = e->submitted_ms + (int64_t)MIN(m->deadline_ms, (uint64_t)INT64_MAX / 2);
    e->journal_bytes = bytes;
    r->journal_bytes += bytes;
    r->n_entries++;
    r->n_queued++;
    r->n_unserved_tokens += m->n_prompt;
    e->unserved = true;
    metric_add(r->metrics.n_requests, 1);
    entry_append(r, e, false);
    entry_note(e, "new", "submit", "queued");
    *out_ticket = e->ticket;
    dispatch_soon(r);
    return STATUS_OK;
}

static struct entry *entry_of_ticket(struct router *r, uint64_t ticket)
{
    struct entry *e = r->first;

    while (e && (e->ticket != ticket || e->closing))
        e = e->next;
    return e;
}

static void cancel(struct service *s, uint64_t ticket)
{
    struct entry *e = entry_of_ticket((struct router *)s, ticket);

    if (!e)
        return;
    e->closing = true;
    entry_cancel_on_nodes(e);
    if (!e->in_result) /* else entry_result() frees it when the sink has returned */
        entry_end(e, STATUS_CANCELLED, FINISH_NONE, "cancelled by the client");
}

static void taken(struct service *s, uint64_t ticket, uint32_t n_tokens)
{
    struct entry *e = entry_of_ticket((struct router *)s, ticket);

    if (e)
        entry_taken(e, n_tokens);
}

static void capacity(struct service *s, struct service_capacity *out)
{
    struct router *r = (struct router *)s;

    *out = (struct service_capacity){.n_running = r->n_entries - r->n_queued,
                                     .n_waiting = r->n_queued,
                                     .max_waiting = r->options.max_waiting,
                                     .retry_after_s =
                                         rate_retry_after_s(&r->serving, r->n_unserved_tokens)};
}

static enum status readiness(struct service *s)
{
    struct router *r = (struct router *)s;

    return r->draining ? fail(STATUS_DRAINING, "this server is shutting down")
                       : dispatch_possible(r, 1);
}

static enum status liveness(struct service *s)
{
    return STATUS_OK; /* a loop that answers is alive, and there is nothing else here */
}

/* The smallest that any node which could serve allows. While a role has no node, not more than when
 * it had: what is accepted meanwhile ends as it would have. The file's own before that. */
uint32_t service_context(struct router *r)
{
    struct candidate nodes[MAX_NODES];
    uint32_t context = r->options.max_context_tokens;
    bool complete = true;

    for (int role = 0; role < 2; role++) {
        const uint32_t n = collect_candidates(r, role ? "decode" : "prefill", nodes);
        complete &= n > 0;
        for (uint32_t i = 0; i < n; i++)
            context = MIN(context, nodes[i].max_context_tokens);
    }
    if (complete)
        r->known.context_tokens = context;
    else if (r->known.context_tokens)
        context = MIN(context, r->known.context_tokens);
    return context;
}

static void describe(struct service *s, struct service_description *out)
{
    struct router *r = (struct router *)s;
    uint32_t n_slots = 0;

    *out = (struct service_description){.role = "router", .node_id = r->options.node_id};
    memcpy(out->fingerprint, r->known.fingerprint, sizeof out->fingerprint);
    for (struct peer_link *i = peer_hub_next(r->hub, NULL); i; i = peer_hub_next(r->hub, i)) {
        if (strcmp(peer_link_hello(i)->role, "decode"))
            continue;
        n_slots += peer_link_hello(i)->n_slots;
        memcpy(out->fingerprint, peer_link_hello(i)->fingerprint, sizeof out->fingerprint);
    }
    out->n_slots = n_slots;
    out->max_context_tokens = service_context(r);
}

static void stats(struct service *s, service_stat_visitor *visit, void *context)
{
    struct router *r = (struct router *)s;
    struct candidate nodes[MAX_NODES];

    visit(context, "", "role", "router", 0);
    visit(context, "", "node_id", r->options.node_id, 0);
    visit(context, "", "requests", NULL, r->n_entries);
    visit(context, "", "waiting", NULL, r->n_queued);
    visit(context, "", "journal_bytes", NULL, (double)r->journal_bytes);
    visit(context, "", "waiting_prompt_tokens", NULL, (double)r->n_unserved_tokens);
    visit(context, "", "prompt_tokens_a_second", NULL, r->serving.tokens_a_second);
    visit(context, "", "tokens", NULL, (double)r->n_tokens);
    visit(context, "", "handed_off", NULL, (double)r->n_handed_off);
    visit(context, "", "resumed", NULL, (double)r->n_retries);
    visit(context, "", "requeued", NULL, (double)r->n_requeued);
    visit(context, "", "moved", NULL, (double)r->n_moved);
    visit(context, "", "poison", NULL, (double)r->n_poison);
    visit(context, "", "local", NULL, (double)r->n_local);
    visit(context, "", "inexact", NULL, (double)r->n_inexact);
    for (int role = 0; role < 2; role++) {
        const uint32_t n = collect_candidates(r, role ? "decode" : "prefill", nodes);
        for (uint32_t i = 0; i < n; i++) {
            struct peer_link *link = peer_hub_find(r->hub, nodes[i].node_id);
            char scope[80];
            snprintf(scope, sizeof scope, "nodes.%s", nodes[i].node_id);
            for (char *p = scope + 6; *p; p++)
                if (*p == '.')
                    *p = '_'; /* a dot would open another scope */
            visit(context, scope, "role", role ? "decode" : "prefill", 0);
            visit(context, scope, "address", peer_link_address(link), 0);
            visit(context, scope, "round_trip_ms", NULL, peer_link_round_trip_ms(link));
            visit(context, scope, "running", NULL, nodes[i].n_running);
            visit(context, scope, "waiting", NULL, nodes[i].n_waiting);
            visit(context, scope, "slots", NULL, nodes[i].n_slots);
            visit(context, scope, "free_pages", NULL, nodes[i].n_free_pages);
            visit(context, scope, "total_pages", NULL, nodes[i].n_total_pages);
            visit(context, scope, "draining", NULL, nodes[i].draining);
            visit(context, scope, "failovers", NULL,
                  (double)costs_of(r, nodes[i].node_id).n_failovers);
            visit(context, scope, "refusals", NULL,
                  (double)costs_of(r, nodes[i].node_id).n_refusals);
        }
    }
}

static void drain(struct service *s, void (*idle)(void *context), void *context)
{
    struct router *r = (struct router *)s;

    r->draining = true;
    r->idle = idle;
    r->idle_context = context;
    if (r->n_entries == 0 && idle) {
        r->idle = NULL;
        idle(context);
    }
}

static const struct service_ops ops = {
    .submit = submit,
    .cancel = cancel,
    .taken = taken,
    .capacity = capacity,
    .readiness = readiness,
    .liveness = liveness,
    .describe = describe,
    .stats = stats,
    .drain = drain,
};

/* ---- links ---- */

static enum status on_message(void *context, struct peer_link *link, const struct wire_frame *f)
{
    struct router *r = context;
    struct wire_result *results;
    struct arena arena = {0};
    uint32_t n;

    if (f->type != WIRE_RESULT)
        return fail(STATUS_BAD_MESSAGE, "a router does not take %s", wire_type_name(f->type));
    const enum status status = wire_decode_results(f, &arena, &results, &n);
    for (uint32_t i = 0; status == STATUS_OK && i < n; i++) {
        struct entry *e = entry_find(r, &results[i].key);
        if (e && !e->closing)
            entry_result(e, peer_link_id(link), &results[i]);
    }
    arena_deinit(&arena);
    if (r->n_queued)
        dispatch_soon(r);
    return status;
}

/* Says when requests can be served, and when not any more. */
static void note_nodes(struct router *r)
{
    struct candidate nodes[MAX_NODES];
    const bool possible = dispatch_possible(r, 1) == STATUS_OK;

    if (possible == r->has_pair)
        return;
    r->has_pair = possible;
    if (possible)
        log_event(LOG_INFO, "nodes linked", "prefill=%u decode=%u ctx=%u",
                  collect_candidates(r, "prefill", nodes), collect_candidates(r, "decode", nodes),
                  service_context(r));
    else
        log_event(LOG_WARN, "no pair of nodes is left", "prefill=%u decode=%u requests=%u",
                  collect_candidates(r, "prefill", nodes), collect_candidates(r, "decode", nodes),
                  r->n_entries);
}

static void on_link_up(void *context, struct peer_link *link)
{
    struct router *r = context;
    const struct wire_hello *node = peer_link_hello(link);

    for (struct entry *e = r->first; e; e = e->next)
        entry_node_found(e, node);
    if (!strcmp(node->role, "decode"))
        memcpy(r->known.fingerprint, node->fingerprint, sizeof r->known.fingerprint);
    service_context(r);
    note_nodes(r);
    dispatch(r);
}

/* Whoever's request was with the lost node goes on elsewhere. */
static void on_link_down(void *context, struct peer_link *link, enum status reason)
{
    struct router *r = context;
    const struct wire_hello node = *peer_link_hello(link);
    const bool died = peer_link_broke(link) && !peer_link_stats(link)->draining;

    if (died)
        router_note_death(r, &node, clock_now_ms());
    for (struct entry *e = r->first; e; e = r->walk) {
        r->walk = e->next;
        entry_node_lost(e, &node, died, clock_now_ms());
    }
}

static void fill_stats(void *context, struct wire_node_stats *out)
{
    struct router *r = context;

    out->draining = r->draining;
    out->n_running = r->n_entries - r->n_queued;
    out->n_waiting = r->n_queued;
}

static bool is_used(const struct router *r, const char *node_id)
{
    for (const struct entry *e = r->first; e; e = e->next) {
        const struct assignment *const all[] = {&e->now, &e->leaving};
        for (size_t i = 0; i < ARRAY_LENGTH(all); i++)
            if (!strcmp(all[i]->prefill_node, node_id) || !strcmp(all[i]->decode_node, node_id))
                return true;
    }
    return false;
}

/* Links to nodes that are no longer named go when the last request on them has. */
static void let_unused_go(struct router *r)
{
    for (struct peer_link *i = peer_hub_next(r->hub, NULL), *next; i; i = next) {
        next = peer_hub_next(r->hub, i);
        if (peer_link_is_leaving(i) && !is_used(r, peer_link_id(i)))
            peer_link_close(i, fail(STATUS_DRAINING, "it is no longer named as a peer"));
    }
}

static void tick(void *context)
{
    struct router *r = context;

    rate_look(&r->serving, r->n_unserved_tokens, clock_now_ms());
    let_unused_go(r);
    note_nodes(r); /* a lost link is still among them while its loss is told */
    if (dispatch_possible(r, 1) == STATUS_OK)
        r->possible_until_ms = clock_now_ms();
    dispatch(r);
}

static void run_dispatch(struct net_task *task)
{
    struct router *r = (struct router *)((char *)task - offsetof(struct router, dispatch_task));

    r->dispatch_posted = false;
    dispatch(r);
}

/* ---- the router itself ---- */

static void make_metrics(struct router *r)
{
    struct metrics *m = r->options.metrics;
    r->metrics.n_requests = metrics_counter(m, "router_requests_total", NULL, "Requests accepted.");
    r->metrics.n_ended_ok =
        metrics_counter(m, "router_ended_total", "result=\"ok\"", "Requests that ended.");
    r->metrics.n_ended_error =
        metrics_counter(m, "router_ended_total", "result=\"error\"", "Requests that ended.");
    r->metrics.n_retries =
        metrics_counter(m, "router_resumed_total", NULL, "Attempts made again after a fault.");
    r->metrics.n_requeued = metrics_counter(m, "router_requeued_total", NULL,
                                            "Requests queued again for want of room.");
    r->metrics.n_inexact =
        metrics_counter(m, "router_inexact_total", NULL,
                        "Requests whose nodes contradicted each other; must stay 0.");
    r->metrics.n_moved = metrics_counter(m, "router_moved_total", NULL,
                                         "Requests moved away from a node that drains.");
    r->metrics.n_poison = metrics_counter(m, "router_poison_total", NULL,
                                          "Requests ended because nodes crashed of them.");
    r->metrics.n_local = metrics_counter(m, "router_local_total", NULL,
                                         "Attempts whose decode node read the prompt itself.");
    r->metrics.n_recomputed =
        metrics_counter(m, "router_recomputed_tokens_total", NULL,
                        "Tokens sent to be computed again after a fault or a move; caches spare "
                        "some.");
    r->metrics.waiting =
        metrics_gauge(m, "num_requests_waiting", NULL, "Requests in the router's queue.");
}

enum status router_create(const struct router_options *o, struct router **out)
{
    struct router *r = memory_alloc(1, sizeof *r);
    enum status status;

    if (!r)
        return STATUS_NO_MEMORY;
    r->options = *o;
    r->service.ops = &ops;
    r->epoch = random_u64();
    r->dispatch_task.run = run_dispatch;
    make_metrics(r);
    struct peer_hub_options h = {
        .loop = o->loop,
        .events = {.link_up = on_link_up,
                   .link_down = on_link_down,
                   .message = on_message,
                   .node_stats = fill_stats,
                   .context = r},
        .limits = o->limits,
        .metrics = o->metrics,
        .version_max = o->version_max,
        .tls = o->tls,
    };
    snprintf(h.hello.node_id, sizeof h.hello.node_id, "%s", o->node_id);
    snprintf(h.hello.role, sizeof h.hello.role, "router");
    h.hello.epoch = r->epoch;
    h.hello.has_tokenizer = true;
    memcpy(h.hello.tokenizer_digest, o->tokenizer_digest, sizeof h.hello.tokenizer_digest);
    TRY_GOTO(failed, peer_hub_create(&h, &r->hub));
    TRY_GOTO(failed, net_timer_start(o->loop, &r->timer, TICK_MS, TICK_MS, tick, r));
    *out = r;
    return STATUS_OK;
failed:
    router_destroy(&r);
    return status;
}

void router_cancel_all(struct router *r)
{
    while (r->first) {
        entry_cancel_on_nodes(r->first);
        entry_end(r->first, STATUS_DRAINING, FINISH_NONE, "the server is stopping");
    }
}

void router_destroy(struct router **pr)
{
    struct router *r = *pr;

    if (!r)
        return;
    r->idle = NULL;
    net_timer_stop(&r->timer);
    router_cancel_all(r);
    while (r->dispatch_posted)
        net_loop_turn(r->options.loop);
    peer_hub_destroy(&r->hub);
    free(r);
    *pr = NULL;
}

struct service *router_service(struct router *r)
{
    return &r->service;
}

struct peer_hub *router_hub(struct router *r)
{
    return r->hub;
}

uint32_t router_n_requests(const struct router *r)
{
    return r->n_entries;
}
