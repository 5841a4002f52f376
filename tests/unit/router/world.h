/* The router's small world: its nodes are fakes, and how many of them are linked is the test's
 * choice. */
#ifndef TESTS_ROUTER_WORLD_H
#define TESTS_ROUTER_WORLD_H

#include "unit/router/fakes.h"

static struct net_loop *loop;
static struct vocabulary *vocabulary;

static inline int set_up(void **state)
{
    vocabulary = small_vocabulary_load("smollm", NULL);
    return vocabulary && net_loop_create(&loop) == STATUS_OK ? 0 : -1;
}

static inline int tear_down(void **state)
{
    net_loop_destroy(&loop);
    vocabulary_destroy(&vocabulary);
    return 0;
}

/* A router, two prefill nodes and two decode nodes; how many of them are linked is the test's
 * choice. */
struct world {
    struct router *r;
    struct metrics *metrics;
    struct fake_node p[2], d[2];
};

static inline void link_node(struct world *w, struct fake_node *n, const char *role)
{
    assert_int_equal(peer_hub_join(router_hub(w->r), n->hub.hub, role, false), STATUS_OK);
    WAIT(loop, n->hub.link && peer_hub_find(router_hub(w->r), peer_hub_hello(n->hub.hub)->node_id));
}

static inline void world_up_with(struct world *w, int n_prefill, int n_decode, uint32_t n_slots,
                                 struct router_options o)
{
    memset(w, 0, sizeof *w);
    w->metrics = metrics_create("");
    o.node_id = "router-0";
    o.loop = loop;
    o.metrics = w->metrics;
    o.vocabulary = vocabulary;
    o.limits = peer_limits_default;
    o.max_context_tokens = 4096;
    memset(o.tokenizer_digest, 3, sizeof o.tokenizer_digest);
    o.max_waiting = o.max_waiting ? o.max_waiting : 100;
    o.max_journal_bytes = o.max_journal_bytes ? o.max_journal_bytes : 1 << 20;
    o.queue_timeout_ms = o.queue_timeout_ms ? o.queue_timeout_ms : 30000;
    assert_int_equal(router_create(&o, &w->r), STATUS_OK);
    for (int i = 0; i < n_prefill; i++) {
        fake_start(&w->p[i], loop, i ? "prefill-1" : "prefill-0", "prefill", n_slots);
        link_node(w, &w->p[i], "prefill");
    }
    for (int i = 0; i < n_decode; i++) {
        fake_start(&w->d[i], loop, i ? "decode-1" : "decode-0", "decode", n_slots);
        link_node(w, &w->d[i], "decode");
    }
}

static inline void world_up(struct world *w)
{
    world_up_with(w, 2, 2, 4, (struct router_options){0});
}

static inline void world_down(struct world *w)
{
    router_destroy(&w->r);
    for (int i = 0; i < 2; i++) {
        fake_stop(&w->p[i]);
        fake_stop(&w->d[i]);
    }
    turn_some(loop, 20);
    metrics_destroy(&w->metrics);
}

/* The request's latest prefill_request, whoever has it; n: how many there were in all. */
static inline const struct wire_prefill_request *request_at(struct world *w, uint32_t n,
                                                            struct fake_node **who)
{
    WAIT(loop, w->p[0].n_asked + w->p[1].n_asked >= n);
    assert_int_equal(w->p[0].n_asked + w->p[1].n_asked, n);
    *who = NULL;
    for (int i = 0; i < 2; i++)
        if (w->p[i].n_asked && (!*who || w->p[i].asked[w->p[i].n_asked - 1].m.attempt >
                                             (*who)->asked[(*who)->n_asked - 1].m.attempt))
            *who = &w->p[i];
    return &(*who)->asked[(*who)->n_asked - 1].m;
}

static inline struct fake_node *decode_named(struct world *w, const char *id)
{
    return &w->d[!strcmp(id, "decode-1")];
}

static inline uint64_t count(struct world *w, const char *name)
{
    return metric_count(metrics_counter(w->metrics, name, NULL, ""));
}

/* The first steps of most tests: one request, its prefill node and the decode node that took it. */
struct flight {
    struct client c;
    struct fake_node *p, *d;
    const struct wire_prefill_request *m;
};

static inline void take_off(struct world *w, struct flight *f, struct wish wish)
{
    assert_int_equal(client_submit(&f->c, w->r, wish), STATUS_OK);
    f->m = request_at(w, 1, &f->p);
    f->d = decode_named(w, f->m->decode_targets[0]);
    say_opened(f->p, f->m, f->m->decode_targets[0]);
    turn_some(loop, 5);
}

#endif
