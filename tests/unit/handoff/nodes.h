/* What the tests of hand-offs share: a prefill node and decode nodes without engines. Their pages
 * are memory that is freed at the very moment it may be, so that a sanitizer sees every touch too
 * late. */
#ifndef TESTS_HANDOFF_NODES_H
#define TESTS_HANDOFF_NODES_H

#include "handoff/handoff.h"
#include "unit/peer/hubs.h"

enum { MAX_RECEPTIONS = 64 };

/* ---- the prefill side ---- */

struct prefill {
    struct test_hub hub;
    struct handoff_senders *senders;
};

struct source {
    struct prefill *node;
    struct handoff_sender *sender;
    struct request_key key;
    uint32_t attempt, n_tokens, n_pages;
    uint32_t layer_tokens[8];
    char *slabs; /* [page][layer]; NULL once released */
    uint32_t n_opened, n_accepted, n_given_up, n_released;
    char opened_by[NODE_ID_BYTES];
    enum status reason;
    char words[256];
};

static inline enum status prefill_message(void *context, struct peer_link *link,
                                          const struct wire_frame *f)
{
    return handoff_senders_message(((struct prefill *)context)->senders, link, f);
}

static inline void prefill_link_up(void *context, struct peer_link *link)
{
    hub_link_up(&((struct prefill *)context)->hub, link);
}

static inline void prefill_link_down(void *context, struct peer_link *link, enum status reason)
{
    struct prefill *p = context;

    hub_link_down(&p->hub, link, reason);
    handoff_senders_link_down(p->senders, link);
}

static inline void prefill_node_stats(void *context, struct wire_node_stats *out)
{
    hub_node_stats(&((struct prefill *)context)->hub, out);
}

static inline void prefill_start(struct prefill *p, struct net_loop *l)
{
    const struct peer_events events = {.link_up = prefill_link_up,
                                       .link_down = prefill_link_down,
                                       .message = prefill_message,
                                       .slab_room = hub_slab_room,
                                       .slab_arrived = hub_slab_arrived,
                                       .node_stats = prefill_node_stats,
                                       .context = p};
    const struct wire_hello hello = model_hello("prefill-0", "prefill");

    memset(p, 0, sizeof *p);
    p->hub.slabs_anywhere = true;
    hub_start_with(&p->hub, l, &hello, &events, peer_limits_default);
    assert_int_equal(handoff_senders_create(l, p->hub.hub, p->hub.metrics, &p->senders), STATUS_OK);
}

static inline void prefill_stop(struct prefill *p)
{
    struct metrics *metrics = p->hub.metrics;

    p->hub.metrics = NULL;
    hub_stop(&p->hub);
    handoff_senders_destroy(&p->senders);
    metrics_destroy(&metrics);
}

static inline char *source_slab_at(struct source *s, uint32_t page, uint32_t layer)
{
    return s->slabs +
           ((uint64_t)page * small_geometry.n_layers + layer) * kv_slab_bytes(small_geometry);
}

static inline uint32_t source_layer_tokens(void *context, uint32_t layer)
{
    return ((struct source *)context)->layer_tokens[layer];
}

static inline const void *source_slab(void *context, uint32_t page, uint32_t layer)
{
    struct source *s = context;

    assert_true(page < s->n_pages && layer < small_geometry.n_layers);
    /* only what is complete may be asked for */
    assert_true(s->layer_tokens[layer] >= MIN((page + 1) * PAGE_TOKENS, s->n_tokens));
    return source_slab_at(s, page, layer);
}

static inline void source_opened(void *context, const char *decode_node)
{
    struct source *s = context;

    s->n_opened++;
    snprintf(s->opened_by, sizeof s->opened_by, "%s", decode_node);
}

static inline void source_accepted(void *context)
{
    ((struct source *)context)->n_accepted++;
}

static inline void source_given_up(void *context, enum status reason, const char *message)
{
    struct source *s = context;

    s->n_given_up++;
    s->reason = reason;
    snprintf(s->words, sizeof s->words, "%s", message);
}

static inline void source_released(void *context)
{
    struct source *s = context;

    s->n_released++;
    s->sender = NULL;
    free(s->slabs);
    s->slabs = NULL;
}

/* targets: ids in a row, NULL behind the last; NULL: whoever is linked. */
static inline void source_open(struct source *s, struct prefill *p, uint64_t number,
                               uint32_t n_tokens, const char *const *targets)
{
    char ids[8][NODE_ID_BYTES] = {{0}};
    struct wire_decode_meta meta = {.request = {.attempt = 1, .decode_targets = ids}};
    const struct handoff_source source = {.layer_tokens = source_layer_tokens,
                                          .slab = source_slab,
                                          .opened = source_opened,
                                          .accepted = source_accepted,
                                          .given_up = source_given_up,
                                          .released = source_released,
                                          .context = s};

    memset(s, 0, sizeof *s);
    s->node = p;
    s->n_tokens = n_tokens;
    s->n_pages = kv_pages_of_tokens(n_tokens);
    s->slabs =
        memory_alloc((size_t)s->n_pages * small_geometry.n_layers, kv_slab_bytes(small_geometry));
    for (uint32_t page = 0; page < s->n_pages; page++)
        for (uint32_t layer = 0; layer < small_geometry.n_layers; layer++)
            fill_slab(source_slab_at(s, page, layer), kv_slab_bytes(small_geometry), number, page,
                      layer);
    snprintf(s->key.origin, sizeof s->key.origin, "router-0");
    s->key.epoch = 5;
    s->key.number = number;
    s->attempt = 1;
    meta.request.key = s->key;
    snprintf(meta.request.reply_to, NODE_ID_BYTES, "router-0");
    meta.request.resume.n_prompt = n_tokens;
    meta.request.resume.prompt_ids = memory_alloc(n_tokens, sizeof(uint32_t));
    meta.request.resume.sampling.repetition_penalty = 1;
    meta.request.resume.max_tokens = 10;
    meta.request.has_decode_targets = targets != NULL;
    for (uint32_t i = 0; targets && targets[i]; i++)
        snprintf(ids[meta.request.n_decode_targets++], NODE_ID_BYTES, "%s", targets[i]);
    assert_int_equal(handoff_send_open(p->senders, &meta, n_tokens, &source, &s->sender),
                     STATUS_OK);
    assert_int_equal(s->n_opened + s->n_given_up + s->n_released, 0); /* only in later turns */
    free(meta.request.resume.prompt_ids);
}

static inline void source_layer_done(struct source *s, uint32_t layer, uint32_t n_tokens)
{
    s->layer_tokens[layer] = n_tokens;
    if (s->sender)
        handoff_send_progress(s->sender);
}

/* Everything is computed; the first token is `id`. */
static inline void source_finish(struct source *s, uint32_t id)
{
    static const float value = -0.25f, values[] = {-0.25f, -2};
    static const uint32_t ids[] = {7, 9};
    const struct logprob_rows row = {
        .n_top = 2, .value = &value, .top_ids = ids, .top_values = values};

    for (uint32_t layer = 0; layer < small_geometry.n_layers; layer++)
        source_layer_done(s, layer, s->n_tokens);
    if (s->sender)
        handoff_send_commit(s->sender, id, id % 2 ? &row : NULL);
}

/* ---- the decode side ---- */

struct decode;

struct reception {
    struct decode *node;
    struct handoff_receiver *receiver; /* NULL: over */
    struct peer_link *link;
    struct request_key key;
    uint32_t n_tokens, n_pages, n_held;
    char *slabs;
    uint32_t n_committed, n_ended;
    enum status reason;
    uint32_t first_id;
    bool had_row;
};

struct decode {
    struct test_hub hub;
    struct handoff_receivers *receivers;
    struct reception receptions[MAX_RECEPTIONS];
    uint32_t n_receptions, n_cancels, n_opens;
    /* how it behaves */
    bool refuses, silent, denies_commit;
    uint32_t n_held;
};

static inline char *reception_slab_at(struct reception *r, uint32_t page, uint32_t layer)
{
    return r->slabs +
           ((uint64_t)page * small_geometry.n_layers + layer) * kv_slab_bytes(small_geometry);
}

static inline void *reception_slab(void *context, uint32_t page, uint32_t layer)
{
    struct reception *r = context;

    assert_true(page >= r->n_held && page < r->n_pages);
    return reception_slab_at(r, page, layer);
}

static inline void reception_over(struct reception *r)
{
    r->receiver = NULL;
    free(r->slabs);
    r->slabs = NULL;
}

static inline bool reception_committed(void *context, const struct wire_handoff_commit *m)
{
    struct reception *r = context;
    char *want = memory_alloc(1, kv_slab_bytes(small_geometry));

    assert_non_null(r->slabs);
    for (uint32_t page = r->n_held; page < r->n_pages; page++)
        for (uint32_t layer = 0; layer < small_geometry.n_layers; layer++) {
            fill_slab(want, kv_slab_bytes(small_geometry), r->key.number, page, layer);
            assert_memory_equal(want, reception_slab_at(r, page, layer),
                                kv_slab_bytes(small_geometry));
        }
    free(want);
    if (r->node->denies_commit)
        return false;
    r->n_committed++;
    r->first_id = m->first_id;
    r->had_row = m->has_logprobs;
    if (m->has_logprobs) {
        assert_int_equal(m->row.n_top, 2);
        assert_true(m->row.value[0] == -0.25f && m->row.top_ids[1] == 9 &&
                    m->row.top_values[1] == -2);
    }
    reception_over(r);
    return true;
}

static inline void reception_ended(void *context, enum status reason)
{
    struct reception *r = context;

    r->n_ended++;
    r->reason = reason;
    reception_over(r);
}

static inline enum status decode_opened(struct decode *d, struct peer_link *link,
                                        const struct wire_frame *f)
{
    struct wire_decode_meta m;
    struct arena a = {0};

    TRY(wire_decode_decode_meta(f, &a, &m));
    d->n_opens++;
    if (d->refuses) {
        const struct wire_notice n = {.has_key = true,
                                      .key = m.request.key,
                                      .attempt = m.request.attempt,
                                      .reason = STATUS_NO_PAGES,
                                      .message = "no room"};
        struct buffer frame = {0};
        assert_int_equal(wire_encode_notice(&frame, WIRE_DECODE_REFUSE, &n), STATUS_OK);
        peer_link_send(link, &frame);
        buffer_deinit(&frame);
    } else if (!d->silent) {
        struct reception *r = &d->receptions[d->n_receptions++];
        const struct handoff_sink sink = {.slab = reception_slab,
                                          .committed = reception_committed,
                                          .ended = reception_ended,
                                          .context = r};
        assert_true(d->n_receptions <= MAX_RECEPTIONS);
        *r = (struct reception){.node = d,
                                .link = link,
                                .key = m.request.key,
                                .n_tokens = m.request.resume.n_prompt,
                                .n_held = d->n_held};
        r->n_pages = kv_pages_of_tokens(r->n_tokens);
        r->slabs = memory_alloc((size_t)r->n_pages * small_geometry.n_layers,
                                kv_slab_bytes(small_geometry));
        assert_int_equal(handoff_receive_ready(d->receivers, link, &r->key, m.request.attempt,
                                               r->n_tokens, r->n_held, &sink, &r->receiver),
                         STATUS_OK);
    }
    arena_deinit(&a);
    return STATUS_OK;
}

static inline enum status decode_message(void *context, struct peer_link *link,
                                         const struct wire_frame *f)
{
    struct decode *d = context;
    struct wire_notice n;

    if (f->type == WIRE_DECODE_META)
        return decode_opened(d, link, f);
    if (f->type != WIRE_CANCEL)
        return handoff_receivers_message(d->receivers, link, f);
    TRY(wire_decode_notice(f, &n));
    d->n_cancels++;
    for (uint32_t i = 0; i < d->n_receptions; i++) {
        struct reception *r = &d->receptions[i];
        if (!r->receiver || !request_key_equal(&r->key, &n.key))
            continue;
        handoff_receive_end(r->receiver, STATUS_OK);
        r->n_ended++;
        r->reason = STATUS_CANCELLED;
        reception_over(r);
    }
    return STATUS_OK;
}

static inline void decode_link_up(void *context, struct peer_link *link)
{
    hub_link_up(&((struct decode *)context)->hub, link);
}

static inline void decode_link_down(void *context, struct peer_link *link, enum status reason)
{
    struct decode *d = context;

    hub_link_down(&d->hub, link, reason);
    handoff_receivers_link_down(d->receivers, link);
}

static inline void *decode_slab_room(void *context, struct peer_link *link,
                                     const struct wire_kv_header *h, uint32_t page)
{
    return handoff_receivers_slab_room(((struct decode *)context)->receivers, link, h, page);
}

static inline void decode_slab_arrived(void *context, struct peer_link *link,
                                       const struct wire_kv_header *h, uint32_t page, bool intact)
{
    handoff_receivers_slab_arrived(((struct decode *)context)->receivers, link, h, page, intact);
}

static inline void decode_node_stats(void *context, struct wire_node_stats *out)
{
    hub_node_stats(&((struct decode *)context)->hub, out);
}

static inline void decode_start(struct decode *d, struct net_loop *l, const char *id,
                                uint32_t lease_ms)
{
    const struct peer_events events = {.link_up = decode_link_up,
                                       .link_down = decode_link_down,
                                       .message = decode_message,
                                       .slab_room = decode_slab_room,
                                       .slab_arrived = decode_slab_arrived,
                                       .node_stats = decode_node_stats,
                                       .context = d};
    const struct wire_hello hello = model_hello(id, "decode");

    memset(d, 0, sizeof *d);
    d->hub.slabs_anywhere = true;
    hub_start_with(&d->hub, l, &hello, &events, peer_limits_default);
    const struct handoff_receivers_options o = {
        .loop = l, .hub = d->hub.hub, .metrics = d->hub.metrics, .lease_ms = lease_ms};
    assert_int_equal(handoff_receivers_create(&o, &d->receivers), STATUS_OK);
}

static inline uint32_t decode_n_open(const struct decode *d)
{
    struct handoff_receiver_stats s;

    handoff_receivers_stats(d->receivers, &s);
    return s.n_open;
}

/* The hub's end is silent: receivers that are open end with their set. */
static inline void decode_stop(struct decode *d)
{
    struct metrics *metrics = d->hub.metrics;

    handoff_receivers_destroy(&d->receivers);
    d->hub.metrics = NULL;
    hub_stop(&d->hub);
    metrics_destroy(&metrics);
    for (uint32_t i = 0; i < d->n_receptions; i++)
        reception_over(&d->receptions[i]);
}

#endif
