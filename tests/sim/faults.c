/* What goes wrong, with whom, and when. */
#include "sim.h"

#include <stdio.h>
#include <string.h>

enum fault_kind {
    FAULT_KILL,
    FAULT_FREEZE,
    FAULT_CUT,
    FAULT_HALF_OPEN,
    FAULT_SLOW,
    FAULT_MANGLE,
    FAULT_DRAIN,
    FAULT_STUCK,
    FAULT_KILL_ROUTER,
    N_FAULT_KINDS
};
static const char *const kind_names[] = {"kill",   "freeze", "cut",   "half-open",  "slow",
                                         "mangle", "drain",  "stuck", "kill-router"};

/* An instant is a time, a number of events, or the n-th transition of a room. */
enum trigger { AT_TIME, AT_EVENT, AT_NOTE };

struct fault {
    enum fault_kind kind;
    enum trigger trigger;
    int64_t at_ns;
    uint64_t at_event;
    char room[24];
    uint32_t at_note, n_seen;
    struct process *a, *b;
    int64_t for_ns;
    bool both_ways, with_new, bulk;
    enum mangle mangle;
    bool due, done;
    int64_t done_ns;
};

static struct fault faults[MAX_FAULTS];
static uint32_t n_faults, n_left;
static bool storm, with_poison;
static int64_t over_ns;   /* when the last of them has passed */
static int64_t latest_ns; /* an instant that has not come by then comes now */

static struct process *any_node(void)
{
    for (;;) {
        struct process *p = &cluster.processes[sim_below(cluster.n)];
        if (p->kind == PROCESS_PREFILL || p->kind == PROCESS_DECODE)
            return p;
    }
}

/* Two that are linked. */
static void any_pair(struct process **a, struct process **b)
{
    do {
        *a = &cluster.processes[sim_below(cluster.n)];
        *b = any_node();
    } while ((*a)->kind >= (*b)->kind);
    if (sim_chance(50)) {
        struct process *swap = *a;
        *a = *b;
        *b = swap;
    }
}

static void plan(struct fault *f, int64_t earliest_ns, int64_t span_ns)
{
    static const char *const rooms[] = {"router",          "peer",    "handoff-send",
                                        "handoff-receive", "prefill", "decode"};

    *f = (struct fault){.kind = (enum fault_kind)sim_below(N_FAULT_KINDS),
                        .trigger = storm ? AT_TIME : (enum trigger)sim_below(3)};
    f->at_ns = earliest_ns + sim_between(0, span_ns);
    f->at_event = sim_below(sim_chance(50) ? 500 : 5000);
    snprintf(f->room, sizeof f->room, "%s", rooms[sim_below(6)]);
    f->at_note = 1 + sim_below(60);
    any_pair(&f->a, &f->b);
    f->bulk = sim_chance(50);
    if (f->kind == FAULT_MANGLE && f->bulk) { /* only pages go there, and only one way */
        f->a = process_of_kind(PROCESS_PREFILL, sim_below(cluster.n_prefill));
        f->b = process_of_kind(PROCESS_DECODE, sim_below(cluster.n_decode));
    }
    if (f->kind == FAULT_KILL || f->kind == FAULT_FREEZE || f->kind == FAULT_DRAIN ||
        f->kind == FAULT_STUCK)
        f->a = any_node();
    if (f->kind == FAULT_DRAIN && sim_chance(70)) /* what is decoded moves */
        f->a = process_of_kind(PROCESS_DECODE, sim_below(cluster.n_decode));
    if (f->kind == FAULT_FREEZE && sim_chance(15))
        f->a = process_of_kind(PROCESS_ROUTER, 0);
    if (f->kind == FAULT_KILL_ROUTER)
        f->a = process_of_kind(PROCESS_ROUTER, sim_below(cluster.n_routers));
    f->for_ns = sim_between(50, 3000) * MS;
    if (f->kind == FAULT_STUCK)
        f->for_ns = sim_between(1000, 9000) * MS;
    f->both_ways = sim_chance(50);
    f->with_new = sim_chance(50);
    f->mangle = (enum mangle)(1 + sim_below(4));
}

void faults_choose(void)
{
    storm = sim_chance(20);
    with_poison = !storm && sim_chance(12);
}

void faults_begin(void)
{
    clients_first_ns = world.now_ns + 600 * MS;
    clients_spread_ns = sim_chance(40) ? 50 * MS : sim_chance(50) ? 1000 * MS : 4000 * MS;
    n_faults = with_poison ? 0 : storm ? 3 + sim_below(MAX_FAULTS - 2) : sim_chance(95);
    n_left = n_faults;
    over_ns = world.now_ns;
    latest_ns = clients_first_ns + clients_spread_ns + 4000 * MS;
    for (uint32_t i = 0; i < n_faults; i++)
        plan(&faults[i], clients_first_ns, clients_spread_ns + (storm ? 4000 : 700) * MS);
}

static void strike(struct fault *f)
{
    f->done = true;
    f->done_ns = world.now_ns;
    n_left--;
    if (world.now_ns + f->for_ns > over_ns)
        over_ns = world.now_ns + f->for_ns;
    switch (f->kind) {
    case FAULT_KILL:
    case FAULT_KILL_ROUTER:
        process_kill(f->a, f->for_ns);
        break;
    case FAULT_FREEZE:
        process_freeze(f->a, f->for_ns);
        break;
    case FAULT_CUT:
        wires_cut(f->a->number, f->b->number);
        break;
    case FAULT_HALF_OPEN:
        wires_block(f->a->number, f->b->number, f->for_ns, f->with_new);
        if (f->both_ways)
            wires_block(f->b->number, f->a->number, f->for_ns, f->with_new);
        break;
    case FAULT_SLOW:
        wires_slow(f->a->number, f->b->number, sim_between(5, 200) * MS, f->for_ns);
        break;
    case FAULT_MANGLE:
        wires_mangle(f->a->number, f->b->number, f->bulk, f->mangle);
        break;
    case FAULT_DRAIN:
        process_drain(f->a, f->for_ns);
        break;
    case FAULT_STUCK:
        if (f->a->alive)
            f->a->model.stuck_until_ns = world.now_ns + f->for_ns;
        break;
    case N_FAULT_KINDS:
        break;
    }
}

void faults_note(const char *room, const char *event)
{
    for (uint32_t i = 0; i < n_faults; i++) {
        struct fault *f = &faults[i];
        if (f->trigger == AT_NOTE && world.now_ns >= clients_first_ns && !strcmp(f->room, room) &&
            ++f->n_seen == f->at_note)
            f->due = true;
    }
}

void faults_look(void)
{
    for (uint32_t i = 0; n_left && i < n_faults; i++) {
        struct fault *f = &faults[i];
        if (f->done)
            continue;
        if (f->due || (f->trigger == AT_TIME && world.now_ns >= f->at_ns) ||
            (f->trigger == AT_EVENT && world.now_ns >= clients_first_ns && f->at_event-- == 0) ||
            world.now_ns >= latest_ns)
            strike(f);
    }
}

bool faults_done(void)
{
    return n_left == 0 && world.now_ns >= over_ns && cluster.n_down == 0;
}

bool faults_are_a_storm(void)
{
    return storm;
}

bool faults_poison(void)
{
    return with_poison;
}

void faults_describe(void)
{
    if (storm || with_poison)
        printf("  %s\n", storm ? "a storm" : "with a poisonous request");
    for (uint32_t i = 0; i < n_faults; i++) {
        const struct fault *f = &faults[i];
        printf("  fault %s of %s%s%s for %lld ms%s%s%s, %s %.3f s ago\n", kind_names[f->kind],
               f->a->name, f->b ? " and " : "", f->b ? f->b->name : "", (long long)(f->for_ns / MS),
               f->both_ways ? ", both ways" : "", f->with_new ? ", new ones too" : "",
               f->bulk ? ", bulk" : "", f->done ? "struck" : "to come",
               (double)(world.now_ns - f->done_ns) / (1000.0 * MS));
    }
}
