/* The simulator: a whole cluster in one process and in virtual time. The rooms router/, node/,
 * handoff/, peer/, wire/, engine/, kv/ and text/ are the real ones. What lies below them is
 * replaced when the program is linked: clocks, timers and loops (world.c, loop.c), connections
 * (wires.c), the engine's thread (fiber.c) and the model's arithmetic (model.c). So one seed is one
 * history, and the same seed is the same history again.
 *
 * One thread runs everything: what is a process or a thread elsewhere is an event's owner here. */
#ifndef BATON_TESTS_SIM_SIM_H
#define BATON_TESTS_SIM_SIM_H

#include "net/net.h"
#include "node/node.h"
#include "router/router.h"

#include <stdbool.h>
#include <stdint.h>

#define MS INT64_C(1000000) /* ns */

enum { MAX_PROCESSES = 12, MAX_CLIENTS = 48, MAX_FAULTS = 12 };

/* ---- world.c: time and chance ---- */

struct process;

struct event {
    int64_t at_ns;
    uint64_t serial;         /* of equal times the earlier one goes first */
    struct process *process; /* whose event it is; NULL: the world's */
    uint32_t life;           /* of that process, when it was made */
    /* alive: that life goes on; else only memory is to be given back. */
    void (*run)(const struct event *e, bool alive);
    void *context;
    uint64_t number;
};

struct world {
    uint64_t seed, random;
    int64_t now_ns;
    struct event *heap;
    uint32_t n_heap, heap_capacity;
    uint64_t next_serial, n_events, n_notes, hash;
    struct process *current; /* whose code runs */
    bool failed;
    char failure[512];
};
extern struct world world;

void world_begin(uint64_t seed);
/* Runs every event that is left as one of a life that is over. */
void world_end(void);
void world_after(struct process *p, int64_t delay_ns, void (*run)(const struct event *, bool),
                 void *context, uint64_t number);
/* Runs the next event. */
void world_step(void);
/* The first failure of a seed is kept. */
void world_fail(const char *format, ...) PRINTF_LIKE(1, 2);
uint64_t sim_random(void);
uint32_t sim_below(uint32_t n); /* 0 to n - 1 */
int64_t sim_between(int64_t low, int64_t high);
bool sim_chance(uint32_t percent);
double real_seconds(void);

/* ---- loop.c ---- */

struct net_loop;
struct net_loop *loop_create(struct process *p);
/* What is still posted runs, as a last turn would have it; then the loop is gone. */
void loop_destroy(struct net_loop **l);
struct process *loop_process(const struct net_loop *l);
/* done() of a write, in one of the loop's next turns. */
struct transport_write;
void loop_post_done(struct net_loop *l, struct transport_write *w, enum status status);
struct net_listener *listener_create(struct process *p);
void listener_connection(struct net_listener *l, void *stream);

/* ---- wires.c: what lies between processes, by their numbers ---- */

enum mangle { MANGLE_NONE, MANGLE_FLIP, MANGLE_TWICE, MANGLE_LOSE, MANGLE_SWAP };

void wires_begin(void);
void wires_end(void);
/* Nothing passes from one to the other for so long; with_new: over new connections neither. */
void wires_block(uint32_t from, uint32_t to, int64_t for_ns, bool with_new);
void wires_slow(uint32_t a, uint32_t b, int64_t extra_ns, int64_t for_ns);
/* Resets every connection between the two. */
void wires_cut(uint32_t a, uint32_t b);
/* The next piece from one to the other, on control or bulk, is changed. False: no such connection.
 */
bool wires_mangle(uint32_t from, uint32_t to, bool bulk, enum mangle how);
/* Its connections as the kernel leaves them when a process is gone. */
void wires_process_died(struct process *p);

/* ---- fiber.c ---- */

/* Inside the engine's thread: time passes. */
void fiber_sleep(int64_t ns);
void fibers_end(void);

/* ---- model.c: arithmetic that depends on everything it may depend on ---- */

enum { SIM_LAYERS = 3, SIM_MAX_ANSWER = 1500 };

struct model {
    struct process *process;
    int64_t layer_ns, row_ns;
    int64_t stuck_until_ns;
    uint64_t progress;
    uint8_t *bad;
};

/* What an undisturbed run answers. */
struct oracle {
    uint32_t n;
    uint32_t *ids;
    float *values; /* log-probabilities, if wanted */
    float *prompt_values;
    enum finish_reason finish;
};
void model_begin(const struct vocabulary *vocabulary, struct compute *compute);
void model_end(void);
void oracle_answer(const struct resume *r, uint32_t context_tokens, struct oracle *out);
void oracle_free(struct oracle *o);

/* ---- cluster.c ---- */

enum process_kind { PROCESS_ROUTER, PROCESS_PREFILL, PROCESS_DECODE, PROCESS_HYBRID };

struct process {
    enum process_kind kind;
    uint32_t number; /* in the world */
    char name[16];
    bool alive, draining;
    uint32_t life; /* grows when it dies */
    int64_t frozen_until_ns;
    bool dying;        /* its engine runs to its end without time */
    bool wants_to_die; /* asked for from its own code: done after the event */
    struct net_loop *loop;
    struct net_listener *listener;
    struct metrics *metrics;
    struct node *node;
    struct router *router;
    struct model model;
    uint32_t n_pages;
    int64_t restart_delay_ns;
    uint32_t n_deaths;
};

struct cluster {
    struct process processes[MAX_PROCESSES];
    uint32_t n;
    uint32_t n_routers, n_prefill, n_decode, n_hybrid;
    uint32_t context_tokens, n_slots, chunk_tokens;
    enum router_policy policy;
    const struct vocabulary *vocabulary;
    struct compute *compute;
    uint32_t n_down; /* that will be started again */
};
extern struct cluster cluster;

void cluster_begin(void);
void cluster_end(void);
/* As by SIGKILL: no code of it runs any more; its memory is given back. Started again later. */
void process_kill(struct process *p, int64_t restart_delay_ns);
void process_freeze(struct process *p, int64_t for_ns);
/* As by SIGTERM: it ends when it is idle, or after its time, and is started again. */
void process_drain(struct process *p, int64_t restart_delay_ns);
struct service *process_service(struct process *p);
struct process *process_of_kind(enum process_kind kind, uint32_t index);
/* NULL, or what is not as it was at the beginning. */
const char *cluster_unrest(void);
/* What all seeds so far have come past: a simulator that never pre-empts finds nothing about it. */
void cluster_print_figures(void);
/* Deaths asked for by the processes themselves. */
void cluster_reap(void);

/* ---- clients.c ---- */

void clients_begin(void);
/* When the first comes, and for how long others do. */
extern int64_t clients_first_ns, clients_spread_ns;
void clients_end(void);
bool clients_done(void);

/* A node computes a row of the request that is poison, or reserves pages for a request. */
enum { POISON_ID = 263 }; /* its prompt's first id, and nobody else's */
void clients_note_poison(struct process *p, uint32_t position, bool decoding);
void clients_note_reserved(struct process *p, const char *origin, uint64_t number);
/* Its connections to clients are gone. */
void clients_process_gone(struct process *p);
void clients_describe(void);
struct client_figures {
    uint64_t n_accepted, n_exact, n_errors, n_cancelled, n_gone, n_refused, n_poison, n_tokens;
    double slowest_s; /* virtual, of a request where little could be in its way */
    uint64_t slowest_seed;
};
extern struct client_figures client_figures;

/* ---- faults.c ---- */

/* What kind of seed it is; then, once there is a cluster, the faults themselves. */
void faults_choose(void);
void faults_begin(void);
/* After each event and each transition. */
void faults_look(void);
void faults_note(const char *room, const char *event);
bool faults_done(void);
/* One request of this seed crashes whoever computes it. */
bool faults_poison(void);
/* With one fault at a time nothing may be lost; in a storm, requests may end with an error. */
bool faults_are_a_storm(void);

void faults_describe(void);

#endif
