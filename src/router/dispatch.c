/* The queue: who is served next, and by whom. */
#include "router/internal.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"

#include <stdio.h>
#include <string.h>

uint32_t collect_candidates(struct router *r, const char *role, struct candidate out[MAX_NODES])
{
    uint32_t n = 0;

    for (struct peer_link *i = peer_hub_next(r->hub, NULL); i && n < MAX_NODES;
         i = peer_hub_next(r->hub, i)) {
        const struct wire_hello *h = peer_link_hello(i);
        const struct wire_node_stats *s = peer_link_stats(i);
        if (strcmp(h->role, role) || !h->has_model)
            continue;
        out[n++] = (struct candidate){
            .node_id = h->node_id,
            .model_digest = h->model_digest,
            .numerics_digest = h->numerics_digest,
            .max_context_tokens = h->max_context_tokens,
            .n_slots = h->n_slots,
            .n_total_pages = h->n_pages,
            .n_running = s->n_running,
            .n_waiting = s->n_waiting,
            .n_free_pages = s->n_total_pages ? s->n_free_pages + s->n_cached_pages : UINT32_MAX,
            .takes_whole = peer_link_version(i) >= WIRE_VERSION_WHOLE,
            .draining = s->draining || peer_link_is_leaving(i)};
    }
    return n;
}

static uint32_t n_tokens_of(const struct entry *e)
{
    const struct resume *r = &e->request->resume;

    return r->n_prompt + r->max_tokens;
}

static uint32_t n_known_of(const struct entry *e)
{
    return e->request->resume.n_prompt + e->n_ids;
}

/* What a decode node reserves when it is asked (docs/WIRE.md, 7). */
static uint32_t n_reserved_of(const struct entry *e)
{
    const struct resume *r = &e->request->resume;

    return r->n_prompt + e->n_ids + MIN(r->max_tokens - e->n_ids, 128u);
}

static struct candidate *by_id(struct candidate *c, uint32_t n, const char *id)
{
    for (uint32_t i = 0; i < n; i++)
        if (!strcmp(c[i].node_id, id))
            return &c[i];
    return NULL;
}

/* Names of the prompt's pages in a node's cell; none when memory is out, which only costs time. */
static void learn_names(struct entry *e, const struct candidate *c)
{
    const struct resume *r = &e->request->resume;
    struct page_namespace space = {.kv_type = KV_TYPE_F16};

    if (e->names && !memcmp(e->names_of, c->model_digest, sizeof e->names_of))
        return;
    if (!e->names)
        e->names = memory_alloc(r->n_prompt / PAGE_TOKENS + 1, sizeof *e->names);
    e->n_names = 0;
    if (!e->names)
        return;
    memcpy(space.model_digest, c->model_digest, sizeof space.model_digest);
    memcpy(space.tokenizer_digest, e->router->options.tokenizer_digest,
           sizeof space.tokenizer_digest);
    if (r->has_tenant)
        memcpy(space.salt, r->tenant_salt, sizeof space.salt);
    for (uint32_t i = 0; i < r->n_prompt / PAGE_TOKENS; i++)
        e->names[e->n_names++] =
            page_name(i ? &e->names[i - 1] : NULL, &space, r->prompt_ids + (size_t)i * PAGE_TOKENS);
    memcpy(e->names_of, c->model_digest, sizeof e->names_of);
}

/* How much of the request the cache of each node that could take it holds, as it last said. */
static void find_prefixes(struct entry *e, struct candidate *nodes, uint32_t n,
                          bool (*is_free)(const struct candidate *c))
{
    for (uint32_t i = 0; i < n; i++) {
        if (!is_free(&nodes[i]))
            continue;
        uint32_t n_bytes, n_pages = 0;
        const uint8_t *filter =
            peer_link_prefix_filter(peer_hub_find(e->router->hub, nodes[i].node_id), &n_bytes);
        nodes[i].n_prefix_tokens = 0;
        if (!n_bytes || e->request->resume.n_prompt_logprobs >= 0)
            continue; /* a request for the prompt's rows does not read the cache */
        learn_names(e, &nodes[i]);
        while (n_pages < e->n_names && prefix_filter_has(filter, n_bytes, &e->names[n_pages]))
            n_pages++;
        nodes[i].n_prefix_tokens = n_pages * PAGE_TOKENS;
    }
}

static void count_one(const struct entry *e, const struct assignment *a, struct candidate *prefill,
                      uint32_t n_prefill, struct candidate *decode, uint32_t n_decode)
{
    struct candidate *p =
        a->owner == OWNER_PREFILL ? by_id(prefill, n_prefill, a->prefill_node) : NULL;
    struct candidate *d = by_id(decode, n_decode, a->decode_node);

    if (p) {
        p->n_assigned++;
        p->n_assigned_tokens += e->request->resume.n_prompt + a->n_ids_before;
        p->n_resumed += a->n_ids_before || e->n_failures;
        p->probation |= a->probation;
    }
    if (d) {
        d->n_assigned += e->n_ids < e->window_tokens; /* else it is parked, without a slot */
        d->probation |= a->probation;
    }
}

/* What this router itself has given to each node, which its own statistics do not show yet. */
static void count_assigned(struct router *r, struct candidate *prefill, uint32_t n_prefill,
                           struct candidate *decode, uint32_t n_decode)
{
    for (const struct entry *e = r->first; e; e = e->next) {
        if (e->state == ENTRY_ASSIGNED)
            count_one(e, &e->now, prefill, n_prefill, decode, n_decode);
        if (e->leaving.attempt)
            count_one(e, &e->leaving, prefill, n_prefill, decode, n_decode);
    }
}

enum status dispatch_possible(struct router *r, uint32_t n_tokens)
{
    struct candidate prefill[MAX_NODES], decode[MAX_NODES];
    const uint32_t n_prefill = collect_candidates(r, "prefill", prefill),
                   n_decode = collect_candidates(r, "decode", decode);
    const struct wanted w = {.n_tokens = n_tokens};
    uint32_t order[MAX_NODES], n_order;

    /* as if nothing ran: a full cluster does not make a request impossible */
    for (uint32_t i = 0; i < n_decode; i++)
        decode[i].n_running = 0;
    if (n_prefill == 0)
        return fail(STATUS_NO_NODE, "no prefill node is linked");
    if (n_decode == 0)
        return fail(STATUS_NO_NODE, "no decode node is linked");
    if (choose_nodes(prefill, n_prefill, decode, n_decode, &w, order, &n_order) < 0)
        return fail(STATUS_NO_NODE, "no prefill and decode node of one cell can take %u tokens",
                    n_tokens);
    return STATUS_OK;
}

static void send_request(struct router *r, struct entry *e, const struct candidate *decode,
                         const uint32_t *order, uint32_t n_order, int64_t now_ms)
{
    char targets[MAX_NODES][NODE_ID_BYTES];
    struct wire_prefill_request m = {.key = e->request->key,
                                     .attempt = e->now.attempt,
                                     .request_id = e->request->request_id,
                                     .resume = e->request->resume,
                                     .decode_targets = targets,
                                     .n_decode_targets = n_order,
                                     .has_decode_targets = true};
    struct peer_link *link = peer_hub_find(r->hub, e->now.prefill_node);
    struct buffer frame = {0};

    snprintf(m.reply_to, sizeof m.reply_to, "%s", r->options.node_id);
    for (uint32_t i = 0; i < n_order; i++)
        snprintf(targets[i], NODE_ID_BYTES, "%s", decode[order[i]].node_id);
    m.resume.generated_ids = e->ids;
    m.resume.n_generated = e->n_ids;
    if (e->n_prompt_rows + 1 >= m.resume.n_prompt)
        m.resume.n_prompt_logprobs = -1; /* they are all here */
    m.window_tokens = e->now.window_sent = e->window_tokens;
    if (e->deadline_ms)
        m.resume.deadline_ms = (uint64_t)MAX(e->deadline_ms - now_ms, (int64_t)1);
    const enum status status = wire_encode_prefill_request(&frame, &m);
    if (status == STATUS_OK) {
        log_event(LOG_DEBUG, "request sent", "req=%s attempt=%u prefill=%s decode=%s tokens=%u",
                  entry_label(e), e->now.attempt, e->now.prefill_node, e->now.decode_node,
                  e->n_ids);
        costs_resend(e);
        peer_link_send(link, &frame);
    } else {
        entry_end(e, status, FINISH_NONE, status_message());
    }
    buffer_deinit(&frame);
}

/* Ends what has waited too long. The entry may be gone when this returns. */
static void look_at_clock(struct entry *e, int64_t now_ms)
{
    char message[sizeof e->last_message];

    if (entry_judge(e, now_ms))
        return;
    if (e->deadline_ms && now_ms > e->deadline_ms) {
        entry_cancel_on_nodes(e);
        entry_end(e, STATUS_DEADLINE, FINISH_NONE,
                  "the deadline passed before the answer was complete");
    } else if (e->now.adrift_ms && now_ms - e->now.adrift_ms > ADRIFT_MS) {
        snprintf(message, sizeof message, "the link to %s was lost around the hand-off",
                 e->now.decode_node);
        entry_retry(e, STATUS_PEER_LOST, message);
    } else if (e->state == ENTRY_QUEUED &&
               now_ms - e->queued_ms >= e->router->options.queue_timeout_ms) {
        snprintf(message, sizeof message, "%s",
                 *e->last_message ? e->last_message : "no node took the request in time");
        entry_end(e, e->last_error != STATUS_OK ? e->last_error : STATUS_NO_NODE, FINISH_NONE,
                  message);
    }
}

/* A request that decodes on a node which drains goes on elsewhere, if there is anywhere. */
static bool wants_to_move(const struct entry *e, struct candidate *decode, uint32_t n_decode)
{
    if (e->state != ENTRY_ASSIGNED || e->now.owner != OWNER_DECODE || e->leaving.attempt ||
        e->ended_by_ids)
        return false;
    const struct candidate *d = by_id(decode, n_decode, e->now.decode_node);
    return d && d->draining;
}

static bool any_is_free(const struct candidate *nodes, uint32_t n,
                        bool (*is_free)(const struct candidate *c))
{
    for (uint32_t i = 0; i < n; i++)
        if (is_free(&nodes[i]))
            return true;
    return false;
}

/* What has been answered by one cell's nodes goes on there, or nowhere: others would say other
 * things. */
static void remember_cell(struct entry *e, const struct candidate *node)
{
    memcpy(e->cell_model, node->model_digest, sizeof e->cell_model);
    memcpy(e->cell_numerics, node->numerics_digest, sizeof e->cell_numerics);
    e->cell = (struct candidate){.model_digest = e->cell_model,
                                 .numerics_digest = e->cell_numerics,
                                 .max_context_tokens = node->max_context_tokens};
}

static void serve_queue(struct router *r, int64_t now_ms)
{
    struct candidate prefill[MAX_NODES], decode[MAX_NODES];
    const uint32_t n_prefill = collect_candidates(r, "prefill", prefill),
                   n_decode = collect_candidates(r, "decode", decode);
    uint32_t n_looked = 0;

    count_assigned(r, prefill, n_prefill, decode, n_decode);
    for (struct entry *e = r->first; e; e = r->walk) {
        uint32_t order[MAX_NODES], n_order = 0;
        r->walk = e->next;
        const bool prefill_free = any_is_free(prefill, n_prefill, prefill_is_free);
        if (!any_is_free(decode, n_decode, decode_is_free) ||
            (!prefill_free && !r->options.max_local_tokens))
            break; /* a long queue is not walked in vain */
        const bool moves = wants_to_move(e, decode, n_decode);
        if ((e->state != ENTRY_QUEUED && !moves) || e->not_before_ms > now_ms || e->verdict_by_ms)
            continue;
        if (!prefill_free && n_known_of(e) > r->options.max_local_tokens &&
            (r->options.policy != POLICY_PREFIX || n_looked++ >= MAX_LOOKED))
            continue; /* only a decode node that has most of it could take it */
        const struct wanted w = {.policy = r->options.policy,
                                 .turn = r->n_sent,
                                 .n_tokens = n_tokens_of(e),
                                 .n_reserved = n_reserved_of(e),
                                 .n_prompt = e->request->resume.n_prompt,
                                 .n_known = n_known_of(e),
                                 .max_local = r->options.max_local_tokens,
                                 .max_resumed = entry_is_resumed(e) ? MAX_RESUMED_A_NODE : 0,
                                 .suspect = e->n_crashes > 0,
                                 .not_decode = moves ? e->now.decode_node : NULL,
                                 .cell = e->n_ids || e->n_prompt_rows ? &e->cell : NULL};
        if (r->options.policy == POLICY_PREFIX) {
            find_prefixes(e, prefill, n_prefill, prefill_is_free);
            find_prefixes(e, decode, n_decode, decode_is_free);
        }
        const int p = choose_nodes(prefill, n_prefill, decode, n_decode, &w, order, &n_order);
        const int local = choose_local(p < 0 ? NULL : &prefill[p], decode, n_decode, &w);
        if (p < 0 && local < 0)
            continue; /* a smaller one behind it may still fit */
        if (local >= 0) {
            order[0] = (uint32_t)local;
            n_order = 1;
            r->n_local++;
            metric_add(r->metrics.n_local, 1);
        }
        remember_cell(e, &decode[order[0]]);
        entry_begin_attempt(e, moves);
        r->n_sent++;
        /* the first target, until it is known which one took it */
        snprintf(e->now.decode_node, sizeof e->now.decode_node, "%s", decode[order[0]].node_id);
        snprintf(e->now.prefill_node, sizeof e->now.prefill_node, "%s",
                 local >= 0 ? e->now.decode_node : prefill[p].node_id);
        count_one(e, &e->now, prefill, n_prefill, decode, n_decode);
        send_request(r, e, decode, order, n_order, now_ms);
    }
}

void dispatch(struct router *r)
{
    const int64_t now_ms = clock_now_ms();

    if (r->n_entries)
        serve_queue(r, now_ms);
    for (struct entry *e = r->first; e; e = r->walk) {
        r->walk = e->next;
        look_at_clock(e, now_ms);
    }
    metric_set(r->metrics.waiting, r->n_queued);
}

void dispatch_soon(struct router *r)
{
    if (r->dispatch_posted)
        return;
    r->dispatch_posted = true;
    net_post(r->options.loop, &r->dispatch_task);
}
