/* What prefill and decode nodes do with their links: messages find their handlers, lost links end
 * what hung on them. */
#include "node/internal.h"

#include "base/log.h"

#include <stdio.h>
#include <string.h>

static void cancel_job(struct job *j)
{
    if (j->node->options.role == NODE_PREFILL)
        prefill_cancel(j);
    else
        decode_cancel(j);
}

/* ---- a request's beginning, the same for both roles ---- */

/* Moves a decoded message and the arena it lies in into a request. */
static struct request *request_from_wire(struct wire_prefill_request *m, struct arena *arena)
{
    struct request *r = request_create();

    if (!r)
        return NULL;
    struct wire_prefill_request *kept = arena_memdup(arena, m, 1, sizeof *m);
    if (!kept) {
        request_destroy(&r);
        return NULL;
    }
    r->arena = *arena;
    *arena = (struct arena){0};
    r->key = m->key;
    r->attempt = m->attempt;
    r->request_id = (char *)m->request_id;
    r->resume = m->resume;
    r->attachment = kept;
    return r;
}

static enum status admit(struct node *n, const struct wire_prefill_request *m)
{
    if (n->draining)
        return fail(STATUS_DRAINING, "this node is shutting down");
    if (!peer_hub_find(n->hub, m->reply_to))
        return fail(STATUS_NO_REPLY_ROUTE, "no link to %s", m->reply_to);
    if (key_was_cancelled(n, &m->key, m->attempt))
        return fail(STATUS_CANCELLED, "the request was cancelled before it came");
    struct job *older = job_find(n, &m->key);
    if (older && older->attempt >= m->attempt)
        return fail(STATUS_STALE_ATTEMPT, "attempt %u is under way", older->attempt);
    if (older)
        cancel_job(older);
    return STATUS_OK;
}

/* The stream that makes `tokens`, brought to where the request stands. */
static enum status begin_text(struct job *j, const struct resume *r)
{
    const struct engine_options *o = &j->node->options.engine;

    TRY(text_stream_create(o->vocabulary, r, o->max_context_tokens, &j->text));
    for (uint32_t i = 0; i < r->n_generated; i++) {
        struct text_released released;
        TRY(text_stream_feed(j->text, r->generated_ids[i], &released));
    }
    return STATUS_OK;
}

enum status job_begin(struct node *n, struct wire_prefill_request *m, struct arena *arena,
                      enum sequence_purpose purpose, struct job **out)
{
    enum status status;

    TRY(admit(n, m));
    struct request *r = request_from_wire(m, arena);
    if (!r)
        return STATUS_NO_MEMORY;
    struct job *j = job_create(n, r, purpose, &status);
    if (!j) {
        request_destroy(&r);
        return status;
    }
    snprintf(j->reply_to, sizeof j->reply_to, "%s", m->reply_to);
    j->want_text = m->want_text;
    j->has_window = m->window_tokens && purpose != SEQUENCE_PREFILL;
    if (j->has_window)
        engine_set_window(n->engine, j->sequence, m->window_tokens);
    status = m->want_text ? begin_text(j, &r->resume) : STATUS_OK;
    if (status != STATUS_OK) {
        job_destroy(j);
        return status;
    }
    *out = j;
    return STATUS_OK;
}

/* ---- messages ---- */

/* Only the origin and the prefill node that opened it may cancel. */
static enum status on_cancel(struct node *n, struct peer_link *link, const struct wire_frame *f)
{
    struct wire_notice m;

    TRY(wire_decode_notice(f, &m));
    if (!m.has_key)
        return fail(STATUS_BAD_MESSAGE, "serve.cancel without a key");
    struct job *j = job_find(n, &m.key);
    if (!j) {
        if (!strcmp(m.key.origin, peer_link_id(link)))
            key_remember_cancelled(n, &m.key, m.attempt); /* it may have overtaken its request */
        return STATUS_OK;
    }
    if (strcmp(j->reply_to, peer_link_id(link)) && strcmp(m.key.origin, peer_link_id(link)) &&
        j->from != link)
        return fail(STATUS_BAD_MESSAGE, "%s may not cancel this request", peer_link_id(link));
    if (m.attempt < j->attempt)
        return STATUS_OK; /* meant for an earlier attempt */
    if (j->from == link && j->committed)
        return STATUS_OK; /* the prefill node's say ended with the hand-off */
    cancel_job(j);
    return STATUS_OK;
}

static enum status on_credit(struct node *n, struct peer_link *link, const struct wire_frame *f)
{
    struct wire_credit m;

    TRY(wire_decode_credit(f, &m));
    struct job *j = job_find(n, &m.key);
    if (!j || j->attempt != m.attempt)
        return STATUS_OK; /* it has ended */
    if (strcmp(j->reply_to, peer_link_id(link)))
        return fail(STATUS_BAD_MESSAGE, "%s is not whom this request answers", peer_link_id(link));
    if (j->has_window) /* else any number may be generated as it is */
        engine_set_window(n->engine, j->sequence, m.window_tokens);
    return STATUS_OK;
}

static enum status misplaced(const struct node *n, const struct wire_frame *f)
{
    return fail(STATUS_BAD_MESSAGE, "a %s node does not take %s", node_role_name(n->options.role),
                wire_type_name(f->type));
}

static enum status begin(struct node *n, struct wire_prefill_request *m, struct arena *arena)
{
    if (n->n_jobs >= n->options.max_waiting + n->options.engine.n_slots)
        return fail(STATUS_QUEUE_FULL, "%u requests are here already", n->n_jobs);
    return n->options.role == NODE_PREFILL ? prefill_request(n, m, arena)
                                           : decode_request(n, m, arena);
}

static enum status on_request(struct node *n, struct peer_link *link, const struct wire_frame *f)
{
    const char *role = peer_link_hello(link)->role;
    struct wire_prefill_request m = {0};
    struct arena arena = {0};

    if (strcmp(role, "router") && strcmp(role, "client"))
        return fail(STATUS_BAD_MESSAGE, "a %s node may not ask for answers", role);
    if (n->options.role == NODE_DECODE && peer_link_version(link) < WIRE_VERSION_WHOLE)
        return misplaced(n, f);
    enum status status = wire_decode_prefill_request(f, &arena, &m);

    if (status == STATUS_OK) {
        const enum status refused = begin(n, &m, &arena);
        if (refused != STATUS_OK)
            reply_failed(n, peer_link_id(link), &m.key, m.attempt, refused, status_message());
    }
    arena_deinit(&arena);
    return status;
}

static enum status on_message(void *context, struct peer_link *link, const struct wire_frame *f)
{
    struct node *n = context;
    const bool prefill = n->options.role == NODE_PREFILL;

    switch (f->type) {
    case WIRE_PREFILL_REQUEST:
        return on_request(n, link, f);
    case WIRE_DECODE_META:
        return prefill ? misplaced(n, f) : decode_open(n, link, f);
    case WIRE_DECODE_READY:
    case WIRE_DECODE_REFUSE:
    case WIRE_HANDOFF_ACCEPTED:
    case WIRE_HANDOFF_FAILED:
        return prefill ? handoff_senders_message(n->senders, link, f) : misplaced(n, f);
    case WIRE_HANDOFF_COMMIT:
    case WIRE_HANDOFF_LIVE:
        return prefill ? misplaced(n, f) : handoff_receivers_message(n->receivers, link, f);
    case WIRE_CANCEL:
        return on_cancel(n, link, f);
    case WIRE_CREDIT:
        return on_credit(n, link, f);
    default:
        return misplaced(n, f);
    }
}

static void fill_stats(void *context, struct wire_node_stats *out)
{
    struct node *n = context;
    struct engine_stats e;

    engine_get_stats(n->engine, &e);
    out->busy = e.busy;
    out->draining = n->draining;
    out->progress = e.progress;
    out->n_running = e.n_running + e.n_importing;
    out->n_waiting = e.n_waiting;
    out->n_slots = e.n_slots;
    out->n_free_pages = e.pages.n_free;
    out->n_cached_pages = e.pages.n_cached;
    out->n_total_pages = e.pages.n_total;
}

static void tell_prefixes(struct node *n, struct peer_link *link)
{
    struct wire_node_stats s = {.prefix_filter = n->prefix_filter,
                                .n_prefix_filter_bytes = n->n_prefix_filter_bytes};
    struct buffer frame = {0};

    if (!s.n_prefix_filter_bytes || strcmp(peer_link_hello(link)->role, "router"))
        return;
    fill_stats(n, &s);
    if (wire_encode_node_stats(&frame, WIRE_NODE_STATS, &s) == STATUS_OK)
        peer_link_send(link, &frame);
    buffer_deinit(&frame);
}

void roles_tell_prefixes(struct node *n)
{
    const uint32_t n_bytes =
        engine_get_prefix_filter(n->engine, n->prefix_filter, &n->prefix_filter_version);

    if (!n_bytes)
        return;
    n->n_prefix_filter_bytes = n_bytes;
    for (struct peer_link *i = peer_hub_next(n->hub, NULL); i; i = peer_hub_next(n->hub, i))
        tell_prefixes(n, i);
}

static void on_link_up(void *context, struct peer_link *link)
{
    replies_link_up(context, link);
    tell_prefixes(context, link);
}

static void on_link_down(void *context, struct peer_link *link, enum status reason)
{
    struct node *n = context;

    replies_link_down(link);
    if (n->senders)
        handoff_senders_link_down(n->senders, link);
    if (n->receivers)
        handoff_receivers_link_down(n->receivers, link);
    for (struct job *j = n->jobs, *next; j; j = next) {
        next = j->next;
        if (!strcmp(j->reply_to, peer_link_id(link))) {
            if (n->options.role == NODE_DECODE)
                decode_give_up(
                    j, fail(STATUS_NO_REPLY_ROUTE, "the link to %s was lost", peer_link_id(link)));
            else
                cancel_job(j);
        }
        if (j->from == link && !j->committed)
            cancel_job(j); /* still waiting for its reservation */
        if (j->from == link)
            j->from = NULL;
    }
}

static void *on_slab_room(void *context, struct peer_link *link, const struct wire_kv_header *h,
                          uint32_t page)
{
    struct node *n = context;

    return n->receivers ? handoff_receivers_slab_room(n->receivers, link, h, page) : NULL;
}

static void on_slab_arrived(void *context, struct peer_link *link, const struct wire_kv_header *h,
                            uint32_t page, bool intact)
{
    struct node *n = context;

    if (n->receivers)
        handoff_receivers_slab_arrived(n->receivers, link, h, page, intact);
}

enum status roles_start(struct node *n)
{
    const struct kv_view pages = engine_kv_view(n->engine);
    struct peer_hub_options o = {
        .loop = n->options.loop,
        .hello = n->options.hello,
        .events = {.link_up = on_link_up,
                   .link_down = on_link_down,
                   .message = on_message,
                   .slab_room = on_slab_room,
                   .slab_arrived = on_slab_arrived,
                   .node_stats = fill_stats,
                   .context = n},
        .slabs = {.base = pages.base,
                  .bytes = (uint64_t)n->options.engine.n_pages * pages.page_stride},
        .limits = n->options.limits,
        .version_max = n->options.version_max,
        .metrics = n->options.metrics,
        .tls = n->options.tls,
    };

    snprintf(o.hello.node_id, sizeof o.hello.node_id, "%s", n->options.node_id);
    snprintf(o.hello.role, sizeof o.hello.role, "%s", node_role_name(n->options.role));
    o.hello.epoch = n->epoch;
    TRY(peer_hub_create(&o, &n->hub));
    if (n->options.role == NODE_PREFILL)
        return handoff_senders_create(n->options.loop, n->hub, n->options.metrics, &n->senders);
    const struct handoff_receivers_options r = {.loop = n->options.loop,
                                                .hub = n->hub,
                                                .metrics = n->options.metrics,
                                                .lease_ms = n->options.lease_ms};
    return handoff_receivers_create(&r, &n->receivers);
}

/* ---- towards the api: health and figures; requests come over the links only ---- */

static enum status submit(struct service *s, struct request *r, struct request_sink sink,
                          uint64_t *out_ticket)
{
    return fail(STATUS_NOT_FOUND, "this is a %s node: requests go to a router",
                node_role_name(((struct node *)s)->options.role));
}

static void cancel(struct service *s, uint64_t ticket)
{
}

static void taken(struct service *s, uint64_t ticket, uint32_t n_tokens)
{
}

static enum status readiness(struct service *s)
{
    struct node *n = (struct node *)s;

    if (n->draining)
        return fail(STATUS_DRAINING, "this node is shutting down");
    TRY(node_liveness(s));
    if (n->options.role == NODE_DECODE)
        return STATUS_OK;
    for (struct peer_link *i = peer_hub_next(n->hub, NULL); i; i = peer_hub_next(n->hub, i))
        if (!strcmp(peer_link_hello(i)->role, "decode"))
            return STATUS_OK;
    return fail(STATUS_NO_NODE, "no decode node is linked");
}

static void visit_links(struct node *n, service_stat_visitor *visit, void *context)
{
    for (struct peer_link *i = peer_hub_next(n->hub, NULL); i; i = peer_hub_next(n->hub, i)) {
        char scope[80];
        /* a dot would open another scope */
        snprintf(scope, sizeof scope, "links.%s", peer_link_id(i));
        for (char *p = scope + 6; *p; p++)
            if (*p == '.')
                *p = '_';
        visit(context, scope, "role", peer_link_hello(i)->role, 0);
        visit(context, scope, "address", peer_link_address(i), 0);
        visit(context, scope, "round_trip_ms", NULL, peer_link_round_trip_ms(i));
        visit(context, scope, "bulk_bytes_sent", NULL, (double)peer_link_bulk_bytes_sent(i));
        visit(context, scope, "bulk_bytes_received", NULL,
              (double)peer_link_bulk_bytes_received(i));
    }
}

static void stats(struct service *s, service_stat_visitor *visit, void *context)
{
    node_stats(s, visit, context);
    visit_links((struct node *)s, visit, context);
}

const struct service_ops role_ops = {
    .submit = submit,
    .cancel = cancel,
    .taken = taken,
    .capacity = node_capacity,
    .readiness = readiness,
    .liveness = node_liveness,
    .describe = node_describe,
    .stats = stats,
    .drain = node_drain,
};
