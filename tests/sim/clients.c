/* The load: requests that come, read at their own pace, leave; and what each of them must see. */
#include "sim.h"

#include "base/checked.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum client_state { COMING, ACCEPTED, ENDED, LEFT, GONE, REFUSED };
static const char *const state_names[] = {"coming", "accepted", "ended", "left", "gone", "refused"};

enum poison { POISON_NONE, POISON_PREFILL, POISON_IMPORT, POISON_DECODE };

struct client {
    uint32_t number;
    enum client_state state;
    struct process *process;
    uint32_t life;
    uint64_t ticket;
    struct resume asked; /* prompt_ids is ours */
    struct oracle oracle;
    uint32_t n, n_prompt_rows, n_read;
    bool read_posted;
    int64_t read_ns; /* between two reads; each takes at most read_tokens */
    uint32_t read_tokens;
    uint32_t leaves_at; /* at this token; UINT32_MAX: never */
    bool leaves_in_sink;
    enum poison poison;
    uint32_t poison_at, n_crashed;
    uint32_t n_refusals;
    enum status status;
    int64_t accepted_ns, ended_ns;
};

static struct client clients[MAX_CLIENTS];
static uint32_t n_clients, n_left; /* that are not through */
struct client_figures client_figures;
int64_t clients_first_ns, clients_spread_ns;

enum { MAX_REFUSALS = 300 };

/* ---- what it must see ---- */

static void bad(const struct client *c, const char *what)
{
    world_fail("client %u (%s, request %llu): %s", c->number, c->process ? c->process->name : "?",
               (unsigned long long)c->ticket, what);
}

static void through(struct client *c, enum client_state state)
{
    if (c->state == COMING || c->state == ACCEPTED)
        n_left--;
    c->state = state;
    c->ended_ns = world.now_ns;
    const double s = (double)(c->ended_ns - c->accepted_ns) / (1000.0 * MS);
    if (state == ENDED && c->read_tokens == UINT32_MAX && n_clients <= 12 &&
        c->process->kind == PROCESS_ROUTER && cluster.context_tokens < 1000 &&
        s > client_figures.slowest_s && !faults_are_a_storm() && c->poison == POISON_NONE) {
        client_figures.slowest_s = s;
        client_figures.slowest_seed = world.seed;
    }
}

static void leave(struct client *c)
{
    struct service *s = process_service(c->process);

    through(c, LEFT);
    client_figures.n_cancelled++;
    s->ops->cancel(s, c->ticket);
}

static void leave_event(const struct event *e, bool alive)
{
    struct client *c = e->context;

    if (alive && c->state == ACCEPTED)
        leave(c);
}

static void take_rows(struct client *c, const struct token_event *e)
{
    if (c->asked.n_prompt_logprobs < 0 || !e->logprobs || e->start != c->n_prompt_rows + 1 ||
        e->start + e->n > c->asked.n_prompt || c->n) {
        bad(c, "rows of the prompt that nobody asked for, or not in order");
        return;
    }
    for (uint32_t i = 0; i < e->n; i++)
        if (e->logprobs->value[i] != c->oracle.prompt_values[e->start + i])
            bad(c, "a log-probability of the prompt differs");
    c->n_prompt_rows += e->n;
}

static void take_tokens(struct client *c, const struct token_event *e)
{
    char words[120];

    if (e->start != c->n || e->n == 0 || c->n + e->n > c->oracle.n) {
        snprintf(words, sizeof words, "tokens %u + %u after %u of %u", e->start, e->n, c->n,
                 c->oracle.n);
        bad(c, words);
        return;
    }
    for (uint32_t i = 0; i < e->n; i++) {
        if (e->ids[i] != c->oracle.ids[c->n + i]) {
            snprintf(words, sizeof words, "token %u is %u, not %u", c->n + i, e->ids[i],
                     c->oracle.ids[c->n + i]);
            bad(c, words);
            return;
        }
        if (c->asked.n_logprobs >= 0 &&
            (!e->logprobs || e->logprobs->value[i] != c->oracle.values[c->n + i]))
            bad(c, "a log-probability differs");
    }
    c->n += e->n;
    client_figures.n_tokens += e->n;
}

static bool may_fail(const struct client *c, enum status status)
{
    if (status == STATUS_REQUEST_CRASHED_NODES)
        return c->poison != POISON_NONE || faults_are_a_storm();
    if (status == STATUS_DEADLINE)
        return c->asked.deadline_ms != 0;
    if (status == STATUS_INEXACT || status == STATUS_INTERNAL || status == STATUS_BAD_MESSAGE)
        return false;
    if (c->process->draining && status == STATUS_DRAINING)
        return true; /* a server that is stopped for good */
    return faults_are_a_storm();
}

static void take_end(struct client *c, const struct token_event *e)
{
    char words[200];

    c->status = e->status;
    through(c, ENDED);
    if (e->status != STATUS_OK) {
        snprintf(words, sizeof words, "lost: %s (%s) after %u tokens", status_code(e->status),
                 e->message, c->n);
        if (!may_fail(c, e->status))
            bad(c, words);
        client_figures.n_errors++;
        client_figures.n_poison += e->status == STATUS_REQUEST_CRASHED_NODES;
        return;
    }
    if (c->n != c->oracle.n || e->n_generated != c->n || e->finish != c->oracle.finish) {
        snprintf(words, sizeof words, "ended with %u tokens (%u shown), not %u", e->n_generated,
                 c->n, c->oracle.n);
        bad(c, words);
    }
    if (c->asked.n_prompt_logprobs >= 0 && c->n_prompt_rows + 1 != c->asked.n_prompt)
        bad(c, "rows of the prompt are missing");
    client_figures.n_exact++;
}

static void read_event(const struct event *e, bool alive)
{
    struct client *c = e->context;

    c->read_posted = false;
    if (!alive || c->state != ACCEPTED)
        return;
    c->n_read += MIN(c->read_tokens, c->n - c->n_read);
    struct service *s = process_service(c->process);
    s->ops->taken(s, c->ticket, c->n_read);
    if (c->n_read < c->n) {
        c->read_posted = true;
        world_after(c->process, c->read_ns, read_event, c, 0);
    }
}

static void on_event(void *context, const struct token_event *e)
{
    struct client *c = context;

    if (c->state == GONE)
        return; /* its connection broke with the process */
    if (c->state != ACCEPTED) {
        bad(c, "an event after its end");
        return;
    }
    if (e->kind == TOKEN_EVENT_PROMPT_LOGPROBS)
        take_rows(c, e);
    else if (e->kind == TOKEN_EVENT_TOKENS)
        take_tokens(c, e);
    else
        take_end(c, e);
    if (c->state != ACCEPTED)
        return;
    if (c->n >= c->leaves_at) {
        if (c->leaves_in_sink)
            leave(c);
        else
            world_after(c->process, sim_between(0, 30 * MS), leave_event, c, 0);
        c->leaves_at = UINT32_MAX;
    }
    if (!c->read_posted) {
        c->read_posted = true;
        world_after(c->process, c->read_ns, read_event, c, 0);
    }
}

/* ---- coming ---- */

static void come(const struct event *e, bool alive);

static struct request *request_of(struct client *c)
{
    struct request *r = request_create();

    r->resume = c->asked;
    r->resume.prompt_ids =
        arena_memdup(&r->arena, c->asked.prompt_ids, c->asked.n_prompt, sizeof(uint32_t));
    return r;
}

static void come_later(struct client *c, int64_t delay_ns)
{
    struct process *to;

    do
        to = &cluster.processes[sim_below(cluster.n)];
    while (to->kind != PROCESS_ROUTER && to->kind != PROCESS_HYBRID);
    c->process = to;
    world_after(NULL, delay_ns, come, c, 0);
}

static void submit(const struct event *e, bool alive)
{
    struct client *c = e->context;

    if (!alive || !c->process->alive || c->process->draining) {
        come_later(c, sim_between(50, 300) * MS);
        return;
    }
    struct service *s = process_service(c->process);
    struct request *r = request_of(c);
    const struct request_sink sink = {.event = on_event, .context = c};
    const enum status status = s->ops->submit(s, r, sink, &c->ticket);
    if (status == STATUS_OK) {
        c->state = ACCEPTED;
        c->life = c->process->life;
        c->accepted_ns = world.now_ns;
        client_figures.n_accepted++;
        if (c->leaves_at == 0)
            world_after(c->process, sim_between(0, sim_chance(50) ? 40 : 500) * MS, leave_event, c,
                        0);
        return;
    }
    request_destroy(&r);
    if (status != STATUS_QUEUE_FULL && status != STATUS_NO_NODE && status != STATUS_DRAINING)
        bad(c, status_message());
    if (++c->n_refusals > MAX_REFUSALS) {
        client_figures.n_refused++;
        through(c, REFUSED);
        bad(c, "refused for ever");
        return;
    }
    come_later(c, sim_between(50, 300) * MS);
}

static void come(const struct event *e, bool alive)
{
    struct client *c = e->context;

    if (alive)
        world_after(c->process->alive ? c->process : NULL, 0, submit, c, 0);
}

void clients_process_gone(struct process *p)
{
    for (uint32_t i = 0; i < n_clients; i++) {
        struct client *c = &clients[i];
        if (c->state == ACCEPTED && c->process == p) {
            through(c, GONE);
            client_figures.n_gone++;
        }
    }
}

/* ---- poison ---- */

static void crash(struct client *c, struct process *p)
{
    if (p->wants_to_die || !p->alive || p->kind == PROCESS_ROUTER || p->dying)
        return;
    p->wants_to_die = true;
    /* at its import, or before that is answered, a prefill node offers it to a second target
     * before the router can know */
    if (++c->n_crashed > (c->poison == POISON_PREFILL ? 2u : 3u) && !faults_are_a_storm())
        bad(c, "crashed one node more than it may");
}

void clients_note_poison(struct process *p, uint32_t position, bool decoding)
{
    for (uint32_t i = 0; i < n_clients; i++) {
        struct client *c = &clients[i];
        if ((c->poison == POISON_PREFILL && !decoding) ||
            (c->poison == POISON_DECODE && decoding &&
             position >= c->asked.n_prompt + c->poison_at))
            crash(c, p);
    }
}

void clients_note_reserved(struct process *p, const char *origin, uint64_t number)
{
    for (uint32_t i = 0; i < n_clients; i++) {
        struct client *c = &clients[i];
        if (c->poison == POISON_IMPORT && c->state == ACCEPTED && c->ticket == number &&
            !strcmp(c->process->name, origin))
            crash(c, p);
    }
}

/* ---- who comes ---- */

static void ask(struct client *c)
{
    const uint32_t context = cluster.context_tokens, base = sim_below(4);
    struct resume *r = &c->asked;
    const bool is_long = context >= 2048 && sim_chance(30);

    r->n_prompt = 1 + sim_below(sim_chance(50) ? context / 2 : MIN(context / 2, 40u));
    const uint32_t n_shared = sim_chance(60) ? sim_below(r->n_prompt + 1) : 0;
    r->prompt_ids = calloc(r->n_prompt, sizeof *r->prompt_ids);
    for (uint32_t i = 0; i < r->n_prompt; i++)
        r->prompt_ids[i] = i < n_shared ? (base * 7919 + i * (31 + base)) % 251 : sim_below(256);
    r->max_tokens = is_long          ? context / 2 + sim_below(400)
                    : sim_chance(15) ? 1 + sim_below(4)
                                     : 1 + sim_below(sim_chance(50) ? 60 : 200);
    r->max_tokens = MIN(r->max_tokens, context - r->n_prompt);
    r->ignore_eos = is_long || sim_chance(70);
    r->seed = sim_random();
    r->sampling = (struct sampling){.top_p = 1, .repetition_penalty = 1};
    if (sim_chance(40)) {
        r->sampling.temperature = 0.8;
        r->sampling.top_p = sim_chance(50) ? 0.9 : 1;
        r->sampling.presence_penalty = sim_chance(30) ? 0.5f : 0;
    }
    r->n_logprobs = sim_chance(20) ? (int32_t)sim_below(4) : -1;
    r->n_prompt_logprobs = sim_chance(10) ? (int32_t)sim_below(3) : -1;
    if (sim_chance(4))
        r->deadline_ms = 100 + sim_below(3000);
    const bool slow = sim_chance(is_long ? 60 : 15);
    c->read_ns = slow ? sim_between(5, 150) * MS : sim_between(10000, 2 * MS);
    c->read_tokens = slow ? 1 + sim_below(32) : UINT32_MAX;
    c->leaves_at = sim_chance(93) ? UINT32_MAX : sim_chance(50) ? 0 : sim_below(r->max_tokens);
    c->leaves_in_sink = sim_chance(50);
}

static void poison(struct client *c)
{
    c->poison = (enum poison)(1 + sim_below(3));
    c->poison_at = sim_below(10);
    c->asked.prompt_ids[0] = POISON_ID;
    c->asked.deadline_ms = 0;
    c->leaves_at = UINT32_MAX;
}

void clients_begin(void)
{
    const bool with_poison = faults_poison();

    n_clients = n_left = 1 + sim_below(sim_chance(30) ? MAX_CLIENTS : 12);
    for (uint32_t i = 0; i < n_clients; i++) {
        struct client *c = &clients[i];
        *c = (struct client){.number = i};
        ask(c);
        if (with_poison && i == n_clients / 2)
            poison(c);
        oracle_answer(&c->asked, cluster.context_tokens, &c->oracle);
        come_later(c, clients_first_ns - world.now_ns + sim_between(0, clients_spread_ns));
        if (c->poison) /* a hybrid has nobody to go to */
            c->process = process_of_kind(PROCESS_ROUTER, 0);
    }
}

bool clients_done(void)
{
    return n_left == 0;
}

void clients_end(void)
{
    for (uint32_t i = 0; i < n_clients; i++) {
        free(clients[i].asked.prompt_ids);
        oracle_free(&clients[i].oracle);
    }
    n_clients = 0;
}

void clients_describe(void)
{
    for (uint32_t i = 0; i < n_clients; i++) {
        const struct client *c = &clients[i];
        printf("  client %u: %s/%llu %s prompt=%u max=%u n=%u of %u%s%s%s%s status=%s\n", c->number,
               c->process->name, (unsigned long long)c->ticket, state_names[c->state],
               c->asked.n_prompt, c->asked.max_tokens, c->n, c->oracle.n,
               c->poison ? " poison" : "", c->asked.n_logprobs >= 0 ? " logprobs" : "",
               c->asked.n_prompt_logprobs >= 0 ? " prompt-logprobs" : "",
               c->asked.deadline_ms ? " deadline" : "", status_code(c->status));
    }
}
