/* The role loops inside one process, on one loop, over the in-memory transport: a router, two
 * prefill and two decode nodes with a tiny random model, against a single node. Links are cut and
 * nodes destroyed at many moments. */
#include "base/log.h"
#include "node/node.h"

#include "router/router.h"
#include "unit/support/tiny_engine.h"

struct client {
    uint32_t n, ids[256];
    float logprobs[256];
    bool ended;
    enum status status;
    enum finish_reason finish;
    uint64_t ticket;
    char decode_node[NODE_ID_BYTES];
};

struct cluster {
    struct tiny_world world[5]; /* compute is one engine's: each node has its own */
    struct net_loop *loop;
    struct metrics *metrics;
    struct router *router;
    struct node *prefill[2], *decode[2], *single;
    struct node *all[5];
};

static void on_event(void *context, const struct token_event *e)
{
    struct client *c = context;

    assert_false(c->ended);
    if (e->kind == TOKEN_EVENT_TOKENS) {
        assert_int_equal(e->start, c->n);
        for (uint32_t i = 0; i < e->n; i++) {
            c->ids[c->n] = e->ids[i];
            if (e->logprobs)
                c->logprobs[c->n] = e->logprobs->value[i];
            c->n++;
        }
    } else if (e->kind == TOKEN_EVENT_ENDED) {
        c->ended = true;
        c->status = e->status;
        c->finish = e->finish;
        if (e->status == STATUS_OK)
            assert_int_equal(e->n_generated, c->n);
        if (e->decode_node)
            snprintf(c->decode_node, sizeof c->decode_node, "%s", e->decode_node);
    }
}

static struct node *make_node(struct cluster *c, uint32_t index, enum node_role role,
                              const char *id, uint32_t n_pages)
{
    struct node_options o = {.role = role,
                             .node_id = id,
                             .loop = c->loop,
                             .metrics = c->metrics,
                             .engine = tiny_engine_options(&c->world[index], n_pages, 16),
                             .hello = {.has_model = true,
                                       .has_tokenizer = true,
                                       .kv_type = KV_TYPE_F16,
                                       .max_context_tokens = TINY_CONTEXT,
                                       .n_slots = TINY_SLOTS,
                                       .n_pages = n_pages},
                             .limits = peer_limits_default,
                             .lease_ms = 5000,
                             .max_waiting = 64};
    struct model_limits limits;
    struct node *n;

    model_get_limits(c->world[index].model, &limits);
    o.hello.kv = limits.kv;
    model_digest(c->world[index].model, o.hello.model_digest);
    compute_numerics_digest(c->world[index].compute, o.hello.numerics_digest);
    vocabulary_digest(c->world[index].vocabulary, o.hello.tokenizer_digest);
    assert_int_equal(node_create(&o, &n), STATUS_OK);
    return n;
}

static void print_stat(void *context, const char *scope, const char *name, const char *text,
                       double number)
{
    if (number != 0)
        print_message("  %s.%s %g\n", scope, name, number);
}

/* What is stuck, when something is. */
static void print_state(struct cluster *c)
{
    struct node *const nodes[] = {c->prefill[0], c->prefill[1], c->decode[0], c->decode[1],
                                  c->single};

    for (size_t i = 0; i < 5; i++)
        if (nodes[i]) {
            struct service_description d;
            node_service(nodes[i])->ops->describe(node_service(nodes[i]), &d);
            print_message("%s\n", d.node_id);
            node_service(nodes[i])->ops->stats(node_service(nodes[i]), print_stat, NULL);
        }
    if (c->router) {
        print_message("router\n");
        router_service(c->router)->ops->stats(router_service(c->router), print_stat, NULL);
    }
}

static void turn_until(struct cluster *c, bool (*done)(struct cluster *, void *), void *context)
{
    const int64_t end_ms = clock_now_ms() + 60000;

    while (!done(c, context)) {
        if (clock_now_ms() > end_ms) {
            print_state(c);
            assert_true(false);
        }
        net_loop_turn(c->loop);
    }
}

static bool is_ready(struct cluster *c, void *context)
{
    struct service *s = router_service(c->router);
    uint32_t n_links = 0;

    for (struct peer_link *i = peer_hub_next(router_hub(c->router), NULL); i;
         i = peer_hub_next(router_hub(c->router), i))
        n_links++;
    return n_links == 4 && s->ops->readiness(s) == STATUS_OK &&
           node_service(c->prefill[0])->ops->readiness(node_service(c->prefill[0])) == STATUS_OK &&
           node_service(c->prefill[1])->ops->readiness(node_service(c->prefill[1])) == STATUS_OK;
}

static void link_all(struct cluster *c)
{
    for (int p = 0; p < 2; p++) {
        assert_int_equal(
            peer_hub_join(router_hub(c->router), node_hub(c->prefill[p]), "prefill", false),
            STATUS_OK);
        assert_int_equal(
            peer_hub_join(router_hub(c->router), node_hub(c->decode[p]), "decode", false),
            STATUS_OK);
        for (int d = 0; d < 2; d++)
            assert_int_equal(
                peer_hub_join(node_hub(c->prefill[p]), node_hub(c->decode[d]), "decode", true),
                STATUS_OK);
    }
    turn_until(c, is_ready, NULL);
}

static void open_cluster(struct cluster *c, uint32_t n_decode_pages)
{
    struct router_options r = {.node_id = "router-0",
                               .loop = c->loop,
                               .metrics = c->metrics,
                               .vocabulary = c->world[4].vocabulary,
                               .max_context_tokens = TINY_CONTEXT,
                               .limits = peer_limits_default,
                               .max_waiting = 64,
                               .max_journal_bytes = 1 << 24,
                               .queue_timeout_ms = 60000};

    vocabulary_digest(c->world[4].vocabulary, r.tokenizer_digest);
    c->prefill[0] = make_node(c, 0, NODE_PREFILL, "prefill-0", 64);
    c->prefill[1] = make_node(c, 1, NODE_PREFILL, "prefill-1", 64);
    c->decode[0] = make_node(c, 2, NODE_DECODE, "decode-0", n_decode_pages);
    c->decode[1] = make_node(c, 3, NODE_DECODE, "decode-1", n_decode_pages);
    assert_int_equal(router_create(&r, &c->router), STATUS_OK);
    link_all(c);
}

static bool pages_are_back(struct cluster *c, void *context)
{
    struct node *const nodes[] = {c->prefill[0], c->prefill[1], c->decode[0], c->decode[1],
                                  c->single};

    for (size_t i = 0; i < 5; i++)
        if (nodes[i] && node_n_requests(nodes[i]))
            return false;
    return router_n_requests(c->router) == 0;
}

struct held {
    double held, free, cached, total;
};

static void visit(void *context, const char *scope, const char *name, const char *text,
                  double number)
{
    struct held *h = context;

    if (strcmp(scope, "pages"))
        return;
    if (!strcmp(name, "held"))
        h->held = number;
    if (!strcmp(name, "free"))
        h->free = number;
    if (!strcmp(name, "cached"))
        h->cached = number;
    if (!strcmp(name, "total"))
        h->total = number;
}

static bool nothing_held(struct cluster *c, void *context)
{
    struct node *const nodes[] = {c->prefill[0], c->prefill[1], c->decode[0], c->decode[1]};

    for (size_t i = 0; i < 4; i++) {
        struct held h = {0};
        node_service(nodes[i])->ops->stats(node_service(nodes[i]), visit, &h);
        if (h.held != 0 || h.free + h.cached != h.total)
            return false;
    }
    return true;
}

static void close_cluster(struct cluster *c)
{
    turn_until(c, pages_are_back, NULL);
    turn_until(c, nothing_held, NULL);
    router_destroy(&c->router);
    for (int i = 0; i < 2; i++) {
        node_destroy(&c->prefill[i]);
        node_destroy(&c->decode[i]);
    }
}

enum { N_CASES = 10 };

static struct request *case_request(uint32_t i)
{
    static const uint32_t lengths[N_CASES] = {1, 7, 31, 32, 33, 64, 90, 128, 200, 300};
    struct request *r = tiny_request(lengths[i], i + 1, 20 + 3 * i, i % 2 ? 0.9 : 0);

    r->resume.n_logprobs = 2;
    if (i == 4)
        r->resume.max_tokens = 1;
    if (i == 5)
        r->resume.max_tokens = 2;
    if (i % 3 == 2)
        r->resume.sampling.frequency_penalty = 0.5f;
    return r;
}

static void submit(struct service *s, uint32_t i, struct client *client)
{
    struct request *r = case_request(i);

    *client = (struct client){0};
    assert_int_equal(s->ops->submit(s, r,
                                    (struct request_sink){.event = on_event, .context = client},
                                    &client->ticket),
                     STATUS_OK);
}

static bool all_ended(struct cluster *c, void *context)
{
    const struct client *clients = context;

    for (uint32_t i = 0; i < N_CASES; i++)
        if (!clients[i].ended)
            return false;
    return true;
}

static struct client expected[N_CASES];

static void check(const struct client *got)
{
    for (uint32_t i = 0; i < N_CASES; i++) {
        assert_int_equal(got[i].status, STATUS_OK);
        assert_int_equal(got[i].n, expected[i].n);
        assert_int_equal(got[i].finish, expected[i].finish);
        assert_memory_equal(got[i].ids, expected[i].ids, sizeof got[i].ids);
        assert_memory_equal(got[i].logprobs, expected[i].logprobs, sizeof got[i].logprobs);
    }
}

static int setup(void **state)
{
    static struct cluster c;
    struct client clients[N_CASES];

    for (int i = 0; i < 5; i++)
        tiny_world_open(&c.world[i], 1);
    assert_int_equal(net_loop_create(&c.loop), STATUS_OK);
    c.metrics = metrics_create("");
    c.single = make_node(&c, 4, NODE_HYBRID, "single-0", 64);
    for (uint32_t i = 0; i < N_CASES; i++)
        submit(node_service(c.single), i, &clients[i]);
    turn_until(&c, all_ended, clients);
    memcpy(expected, clients, sizeof expected);
    node_destroy(&c.single);
    *state = &c;
    return 0;
}

static int teardown(void **state)
{
    struct cluster *c = *state;

    for (int i = 0; i < 10; i++)
        net_loop_turn(c->loop); /* connections that were closed go in the loop's next turns */
    net_loop_destroy(&c->loop);
    metrics_destroy(&c->metrics);
    for (int i = 0; i < 5; i++)
        tiny_world_close(&c->world[i]);
    return 0;
}

static void run_all(struct cluster *c, struct client *clients)
{
    for (uint32_t i = 0; i < N_CASES; i++)
        submit(router_service(c->router), i, &clients[i]);
    turn_until(c, all_ended, clients);
}

static void test_split_is_single(void **state)
{
    struct cluster *c = *state;
    struct client clients[N_CASES];

    open_cluster(c, 64);
    run_all(c, clients);
    check(clients);
    run_all(c, clients); /* from the caches of both sides: held pages are not sent */
    check(clients);
    close_cluster(c);
}

/* Room for one large request at a time: opens are refused, requests wait, decodes are pre-empted.
 */
static void test_scarce_pages(void **state)
{
    struct cluster *c = *state;
    struct client clients[N_CASES];

    open_cluster(c, 16);
    run_all(c, clients);
    check(clients);
    close_cluster(c);
}

static void cancel_some(struct cluster *c, struct client *clients, uint64_t *seed)
{
    for (uint32_t i = 0; i < N_CASES; i++)
        if (!clients[i].ended && selftest_random(seed) % 2) {
            router_service(c->router)->ops->cancel(router_service(c->router), clients[i].ticket);
            clients[i].ended = true;
        }
}

static void test_cancel(void **state)
{
    struct cluster *c = *state;
    struct client clients[N_CASES];
    uint64_t seed = 3;

    open_cluster(c, 32);
    for (int round = 0; round < 30; round++) {
        for (uint32_t i = 0; i < N_CASES; i++)
            submit(router_service(c->router), i, &clients[i]);
        for (uint32_t turns = selftest_random(&seed) % 400; turns > 0; turns--)
            net_loop_turn(c->loop);
        cancel_some(c, clients, &seed);
        turn_until(c, all_ended, clients);
        turn_until(c, pages_are_back, NULL);
        turn_until(c, nothing_held, NULL);
    }
    run_all(c, clients);
    check(clients);
    close_cluster(c);
}

static void relink(struct cluster *c, struct peer_hub *from, struct peer_hub *to, const char *role,
                   bool bulk)
{
    /* the other end learns of the loss in a later turn; until then it refuses a second link */
    for (int i = 0; i < 5; i++)
        net_loop_turn(c->loop);
    assert_int_equal(peer_hub_join(from, to, role, bulk), STATUS_OK);
}

/* Links are cut while requests run; every stream ends with the bytes of an undisturbed one. */
static void test_cut_links(void **state)
{
    struct cluster *c = *state;
    struct client clients[N_CASES];
    uint64_t seed = 11;

    open_cluster(c, 48);
    for (int round = 0; round < 40; round++) {
        for (uint32_t i = 0; i < N_CASES; i++)
            submit(router_service(c->router), i, &clients[i]);
        for (uint32_t turns = selftest_random(&seed) % 600; turns > 0; turns--)
            net_loop_turn(c->loop);
        const uint32_t what = selftest_random(&seed) % 3, which = selftest_random(&seed) % 2,
                       other = selftest_random(&seed) % 2;
        struct peer_hub *from = what < 2 ? router_hub(c->router) : node_hub(c->prefill[which]);
        struct peer_hub *to = what == 0   ? node_hub(c->prefill[which])
                              : what == 1 ? node_hub(c->decode[which])
                                          : node_hub(c->decode[other]);
        struct peer_link *link = peer_hub_find(from, peer_hub_hello(to)->node_id);
        assert_non_null(link);
        peer_link_close(link, STATUS_PEER_LOST);
        relink(c, from, to, what == 0 ? "prefill" : "decode", what == 2);
        turn_until(c, all_ended, clients);
        check(clients);
        turn_until(c, pages_are_back, NULL);
        turn_until(c, nothing_held, NULL);
        turn_until(c, is_ready, NULL);
    }
    close_cluster(c);
}

int main(void)
{
    const struct log_options quiet = {.level = LOG_ERROR};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split_is_single),
        cmocka_unit_test(test_scarce_pages),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_cut_links),
    };

    log_setup(&quiet);
    return cmocka_run_group_tests(tests, setup, teardown);
}
