/* Time, chance, and the order of events. */
#include "sim.h"

#include "base/ring.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct world world;

int __real_clock_gettime(clockid_t clock, struct timespec *out);
int __wrap_clock_gettime(clockid_t clock, struct timespec *out);
uint64_t __wrap_random_u64(void);
void __real_ring_note(const char *room, const char *name, uint64_t number, uint32_t attempt,
                      const char *from, const char *event, const char *to);
void __wrap_ring_note(const char *room, const char *name, uint64_t number, uint32_t attempt,
                      const char *from, const char *event, const char *to);

/* ---- chance ---- */

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

uint64_t sim_random(void)
{
    world.random += 0x9E3779B97F4A7C15u;
    return mix(world.random);
}

uint32_t sim_below(uint32_t n)
{
    return (uint32_t)(sim_random() % n);
}

int64_t sim_between(int64_t low, int64_t high)
{
    return low + (int64_t)(sim_random() % (uint64_t)(high - low + 1));
}

bool sim_chance(uint32_t percent)
{
    return sim_below(100) < percent;
}

uint64_t __wrap_random_u64(void)
{
    return sim_random();
}

/* ---- time ---- */

int __wrap_clock_gettime(clockid_t clock, struct timespec *out)
{
    out->tv_sec = world.now_ns / (1000 * MS);
    out->tv_nsec = world.now_ns % (1000 * MS);
    return 0;
}

double real_seconds(void)
{
    struct timespec t;

    __real_clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- what happened ---- */

static void hash_number(uint64_t n)
{
    world.hash = mix(world.hash ^ n) + 0x9E3779B97F4A7C15u;
}

static void hash_string(const char *s)
{
    uint64_t h = 0xcbf29ce484222325u;

    for (; *s; s++)
        h = (h ^ (unsigned char)*s) * 0x100000001b3u;
    hash_number(h);
}

/* "decode-1:handoff-receive": all processes share one ring here. */
static const char *room_of(const struct process *p, const char *room)
{
    static char *names[256];

    char name[64];
    snprintf(name, sizeof name, "%s:%s", p ? p->name : "world", room);
    for (size_t i = 0; i < 256; i++) {
        if (!names[i])
            names[i] = strdup(name);
        if (!strcmp(names[i], name))
            return names[i];
    }
    return room;
}

void __wrap_ring_note(const char *room, const char *name, uint64_t number, uint32_t attempt,
                      const char *from, const char *event, const char *to)
{
    __real_ring_note(room_of(world.current, room), name, number, attempt, from, event, to);
    world.n_notes++;
    hash_string(room);
    hash_string(event);
    hash_number(number);
    if (!strcmp(event, "reserved") && world.current)
        clients_note_reserved(world.current, name, number);
    faults_note(room, event);
}

void world_fail(const char *format, ...)
{
    va_list args;

    if (world.failed)
        return;
    world.failed = true;
    va_start(args, format);
    vsnprintf(world.failure, sizeof world.failure, format, args);
    va_end(args);
}

/* ---- events ---- */

static bool is_before(const struct event *a, const struct event *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->serial < b->serial;
}

static void push(struct event e)
{
    if (world.n_heap == world.heap_capacity) {
        world.heap_capacity = world.heap_capacity ? 2 * world.heap_capacity : 1024;
        world.heap = realloc(world.heap, world.heap_capacity * sizeof *world.heap);
    }
    uint32_t at = world.n_heap++;
    for (; at && is_before(&e, &world.heap[(at - 1) / 2]); at = (at - 1) / 2)
        world.heap[at] = world.heap[(at - 1) / 2];
    world.heap[at] = e;
}

static struct event pop(void)
{
    const struct event first = world.heap[0], last = world.heap[--world.n_heap];
    uint32_t at = 0;

    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= world.n_heap)
            break;
        if (child + 1 < world.n_heap && is_before(&world.heap[child + 1], &world.heap[child]))
            child++;
        if (!is_before(&world.heap[child], &last))
            break;
        world.heap[at] = world.heap[child];
        at = child;
    }
    world.heap[at] = last;
    return first;
}

void world_after(struct process *p, int64_t delay_ns, void (*run)(const struct event *, bool),
                 void *context, uint64_t number)
{
    push((struct event){.at_ns = world.now_ns + delay_ns,
                        .serial = world.next_serial++,
                        .process = p,
                        .life = p ? p->life : 0,
                        .run = run,
                        .context = context,
                        .number = number});
}

static void run(const struct event *e, bool alive)
{
    struct process *before = world.current;

    world.current = e->process;
    e->run(e, alive);
    world.current = before;
}

void world_step(void)
{
    struct event e = pop();
    struct process *p = e.process;

    if (e.at_ns > world.now_ns)
        world.now_ns = e.at_ns;
    const bool alive = !p || (p->alive && p->life == e.life);
    if (p && alive && p->frozen_until_ns > world.now_ns) { /* its sockets and timers wait for it */
        e.at_ns = p->frozen_until_ns;
        push(e);
        return;
    }
    world.n_events++;
    hash_number((uint64_t)world.now_ns);
    hash_number(e.serial);
    run(&e, alive);
}

void world_begin(uint64_t seed)
{
    struct event *heap = world.heap;
    const uint32_t capacity = world.heap_capacity;

    world = (struct world){.seed = seed, .random = mix(seed + 1), .now_ns = 1000 * 1000 * MS};
    world.heap = heap;
    world.heap_capacity = capacity;
}

void world_end(void)
{
    while (world.n_heap) {
        const struct event e = pop();
        run(&e, false);
    }
}
