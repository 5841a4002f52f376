/* The processes: the real rooms, started, killed, frozen, drained, and looked at when all is quiet.
 */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct cluster cluster;

enum { DRAIN_TIMEOUT_MS = 25000 };

struct service *process_service(struct process *p)
{
    return p->node ? node_service(p->node) : router_service(p->router);
}

struct process *process_of_kind(enum process_kind kind, uint32_t index)
{
    for (uint32_t i = 0; i < cluster.n; i++)
        if (cluster.processes[i].kind == kind && index-- == 0)
            return &cluster.processes[i];
    return NULL;
}

/* ---- start ---- */

static void dial_all(struct process *p, enum process_kind kind, const char *role, bool bulk)
{
    struct peer_hub *hub = p->node ? node_hub(p->node) : router_hub(p->router);
    struct process *to;

    for (uint32_t i = 0; (to = process_of_kind(kind, i)) != NULL; i++) {
        struct net_address a = {0};
        snprintf(a.text, sizeof a.text, "sim:%u", to->number);
        if (peer_hub_dial(hub, &a, role, bulk) != STATUS_OK)
            world_fail("cannot dial: %s", status_message());
    }
}

static void start_router(struct process *p)
{
    const struct router_options o = {.node_id = p->name,
                                     .loop = p->loop,
                                     .metrics = p->metrics,
                                     .vocabulary = cluster.vocabulary,
                                     .tokenizer_digest = {5},
                                     .max_context_tokens = cluster.context_tokens,
                                     .limits = peer_limits_default,
                                     .policy = cluster.policy,
                                     .max_waiting = 64,
                                     .max_journal_bytes = 64 << 20,
                                     .max_local_tokens = 32,
                                     .queue_timeout_ms = 60000};

    if (router_create(&o, &p->router) != STATUS_OK) {
        world_fail("no router: %s", status_message());
        return;
    }
    dial_all(p, PROCESS_PREFILL, "prefill", false);
    dial_all(p, PROCESS_DECODE, "decode", false);
}

static void start_node(struct process *p)
{
    struct model_limits limits;
    struct node_options o = {.role = p->kind == PROCESS_PREFILL  ? NODE_PREFILL
                                     : p->kind == PROCESS_DECODE ? NODE_DECODE
                                                                 : NODE_HYBRID,
                             .node_id = p->name,
                             .loop = p->loop,
                             .metrics = p->metrics,
                             .engine = {.model = &p->model,
                                        .compute = cluster.compute,
                                        .vocabulary = cluster.vocabulary,
                                        .n_slots = cluster.n_slots,
                                        .n_pages = p->n_pages,
                                        .max_context_tokens = cluster.context_tokens,
                                        .max_chunk_tokens = cluster.chunk_tokens,
                                        .fixed_chunk_tokens = cluster.chunk_tokens,
                                        .target_step_ms = 100,
                                        .names = {.kv_type = KV_TYPE_F16}},
                             .hello = {.has_model = true,
                                       .has_tokenizer = true,
                                       .kv_type = KV_TYPE_F16,
                                       .max_context_tokens = cluster.context_tokens,
                                       .n_slots = cluster.n_slots,
                                       .n_pages = p->n_pages},
                             .limits = peer_limits_default,
                             .lease_ms = 5000,
                             .max_waiting = 64};

    model_get_limits(&p->model, &limits);
    o.hello.kv = limits.kv;
    o.hello.model_digest[0] = o.hello.numerics_digest[0] = 3;
    o.hello.tokenizer_digest[0] = 5;
    o.engine.names.model_digest[0] = 3;
    o.engine.names.tokenizer_digest[0] = 5;
    if (node_create(&o, &p->node) != STATUS_OK) {
        world_fail("no node: %s", status_message());
        return;
    }
    if (node_hub(p->node))
        peer_hub_listen(node_hub(p->node), p->listener);
    if (p->kind == PROCESS_PREFILL)
        dial_all(p, PROCESS_DECODE, "decode", true);
}

static void start(struct process *p)
{
    struct process *before = world.current;

    world.current = p;
    p->alive = true;
    p->dying = p->draining = p->wants_to_die = false;
    p->frozen_until_ns = 0;
    p->model.stuck_until_ns = 0;
    p->loop = loop_create(p);
    p->listener = listener_create(p);
    p->metrics = metrics_create("");
    if (p->kind == PROCESS_ROUTER)
        start_router(p);
    else
        start_node(p);
    world.current = before;
}

static void start_event(const struct event *e, bool alive)
{
    cluster.n_down--;
    if (alive && !world.failed)
        start(e->context);
}

/* ---- what was come past ---- */

static struct figure {
    const char *name;
    double n;
} figures[] = {{"resumed", 0},
               {"requeued", 0},
               {"moved", 0},
               {"handed_off", 0},
               {"engine.preemptions", 0},
               {"engine.parkings", 0},
               {"engine.prefix_hit_tokens", 0},
               {"handoff_sent.refused", 0},
               {"handoff_sent.failed", 0},
               {"handoff_received.ended", 0},
               {"handoff_received.stray_slabs", 0}};

static const char *whole_name(const char *scope, const char *name)
{
    static char whole[96];

    snprintf(whole, sizeof whole, "%s%s%s", scope, *scope ? "." : "", name);
    return whole;
}

static void add_figure(void *context, const char *scope, const char *name, const char *text,
                       double number)
{
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
        if (!strcmp(figures[i].name, whole_name(scope, name)))
            figures[i].n += number;
}

void cluster_print_figures(void)
{
    printf("sim:");
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
        printf(" %s=%.0f", figures[i].name, figures[i].n);
    printf("\n");
}

/* ---- the end of a process ---- */

static void end(struct process *p)
{
    struct process *before = world.current;

    clients_process_gone(p);
    world.current = p;
    if (p->node || p->router)
        process_service(p)->ops->stats(process_service(p), add_figure, NULL);
    p->dying = true;
    p->alive = false;
    p->life++;
    node_destroy(&p->node);
    router_destroy(&p->router);
    net_listener_close(&p->listener);
    loop_destroy(&p->loop);
    metrics_destroy(&p->metrics);
    world.current = before;
}

void process_kill(struct process *p, int64_t restart_delay_ns)
{
    if (!p->alive)
        return;
    p->n_deaths++;
    wires_process_died(p);
    end(p);
    cluster.n_down++;
    world_after(NULL, restart_delay_ns, start_event, p, 0);
}

void process_freeze(struct process *p, int64_t for_ns)
{
    if (p->alive)
        p->frozen_until_ns = world.now_ns + for_ns;
}

static void exit_event(const struct event *e, bool alive)
{
    if (alive)
        ((struct process *)e->context)->wants_to_die = true;
}

static void is_idle(void *context)
{
    ((struct process *)context)->wants_to_die = true;
}

void process_drain(struct process *p, int64_t restart_delay_ns)
{
    struct process *before = world.current;

    if (!p->alive || p->draining)
        return;
    p->draining = true;
    p->restart_delay_ns = restart_delay_ns;
    world.current = p;
    process_service(p)->ops->drain(process_service(p), is_idle, p);
    world_after(p, DRAIN_TIMEOUT_MS * MS, exit_event, p, 0);
    world.current = before;
}

void cluster_reap(void)
{
    for (uint32_t i = 0; i < cluster.n; i++) {
        struct process *p = &cluster.processes[i];
        if (!p->alive || !p->wants_to_die)
            continue;
        if (p->draining && p->restart_delay_ns) { /* it leaves as a server does that ends */
            end(p);
            cluster.n_down++;
            world_after(NULL, p->restart_delay_ns, start_event, p, 0);
        } else {
            process_kill(p, sim_between(50, 1500) * MS);
        }
    }
}

/* ---- quiet ---- */

static char unrest[160];

static void look(void *context, const char *scope, const char *name, const char *text,
                 double number)
{
    static const char *const must_be_zero[] = {"pages.held",
                                               "requests",
                                               "waiting",
                                               "journal_bytes",
                                               "inexact",
                                               "handoff_sent.open",
                                               "handoff_received.open",
                                               "engine.running",
                                               "engine.waiting",
                                               "engine.importing",
                                               "engine.parked"};
    const struct process *p = context;
    const char *whole = whole_name(scope, name);

    for (size_t i = 0; i < sizeof must_be_zero / sizeof *must_be_zero; i++)
        if (!strcmp(whole, must_be_zero[i]) && number != 0)
            snprintf(unrest, sizeof unrest, "%s: %s is %g", p->name, whole, number);
}

static uint32_t n_links(struct process *p)
{
    struct peer_hub *hub = p->node ? node_hub(p->node) : router_hub(p->router);
    uint32_t n = 0;

    for (struct peer_link *i = hub ? peer_hub_next(hub, NULL) : NULL; i; i = peer_hub_next(hub, i))
        n++;
    return n;
}

static uint32_t n_links_wanted(const struct process *p)
{
    switch (p->kind) {
    case PROCESS_ROUTER:
        return cluster.n_prefill + cluster.n_decode;
    case PROCESS_PREFILL:
        return cluster.n_routers + cluster.n_decode;
    case PROCESS_DECODE:
        return cluster.n_routers + cluster.n_prefill;
    case PROCESS_HYBRID:
        break;
    }
    return 0;
}

const char *cluster_unrest(void)
{
    *unrest = 0;
    for (uint32_t i = 0; i < cluster.n && !*unrest; i++) {
        struct process *p = &cluster.processes[i];
        if (!p->alive || p->frozen_until_ns > world.now_ns)
            snprintf(unrest, sizeof unrest, "%s is %s", p->name, p->alive ? "frozen" : "down");
        else if (n_links(p) != n_links_wanted(p))
            snprintf(unrest, sizeof unrest, "%s has %u links of %u", p->name, n_links(p),
                     n_links_wanted(p));
        else
            process_service(p)->ops->stats(process_service(p), look, p);
    }
    return *unrest ? unrest : NULL;
}

/* ---- the whole ---- */

static void add(enum process_kind kind, uint32_t n)
{
    static const char *const names[] = {"router", "prefill", "decode", "hybrid"};

    for (uint32_t i = 0; i < n; i++) {
        struct process *p = &cluster.processes[cluster.n];
        *p = (struct process){.kind = kind, .number = cluster.n++};
        snprintf(p->name, sizeof p->name, "%s-%u", names[kind], i);
        const uint32_t least = kv_pages_of_tokens(cluster.context_tokens);
        p->n_pages = least + sim_below(sim_chance(65) ? 5 : 6 * least);
        p->model = (struct model){.process = p,
                                  .layer_ns = sim_between(MS / 4, 3 * MS),
                                  .row_ns = sim_between(1000, 100000)};
    }
}

void cluster_begin(void)
{
    const bool small = sim_chance(25); /* one of each: whoever dies is waited for */

    cluster.n = 0;
    cluster.n_down = 0;
    /* a router knows of its own requests only who is to be alone */
    cluster.n_routers = 1 + (!faults_poison() && sim_chance(25));
    cluster.n_prefill = small ? 1 : 2 + sim_chance(30);
    cluster.n_decode = small ? 1 : 2 + sim_chance(30);
    cluster.n_hybrid = sim_chance(15);
    cluster.context_tokens = sim_chance(8) ? 2600 : 256 + sim_below(512);
    cluster.n_slots = 1 + sim_below(14);
    cluster.chunk_tokens = 16 << sim_below(4);
    cluster.policy = (enum router_policy)sim_below(3);
    add(PROCESS_ROUTER, cluster.n_routers);
    add(PROCESS_PREFILL, cluster.n_prefill);
    add(PROCESS_DECODE, cluster.n_decode);
    add(PROCESS_HYBRID, cluster.n_hybrid);
    for (uint32_t i = 0; i < cluster.n; i++) {
        cluster.n_down++;
        world_after(NULL, sim_between(0, 300) * MS, start_event, &cluster.processes[i], 0);
    }
}

void cluster_end(void)
{
    for (uint32_t i = 0; i < cluster.n; i++)
        if (cluster.processes[i].alive)
            end(&cluster.processes[i]);
}
