/* base/ring: what this process did last. Whoever changes the state of a request, a link or a
 * hand-off notes it here; the last 4,096 of these transitions are printed on SIGUSR1 and when the
 * process crashes (docs/FAULTS.md says how to read them).
 *
 * Threads: any may note; nobody waits for anybody. */
#ifndef BATON_BASE_RING_H
#define BATON_BASE_RING_H

#include <stdint.h>

#define RING_TRANSITIONS 4096
#define RING_NAME_BYTES 40 /* with the NUL; longer names are cut */

struct ring_transition {
    int64_t ns; /* monotonic */
    uint64_t number;
    /* Strings that live as long as the process. */
    const char *room, *from, *event, *to;
    uint32_t attempt;
    char name[RING_NAME_BYTES];
};

/* name and number say which one it is: a request's origin and number, or a node's id and 0. All
 * strings but name must be static. attempt 0: none. */
void ring_note(const char *room, const char *name, uint64_t number, uint32_t attempt,
               const char *from, const char *event, const char *to);
/* Oldest first. What is being written or overwritten at the moment is left out. */
void ring_walk(void (*visit)(void *context, const struct ring_transition *t), void *context);

/* One line a transition. Allocates nothing and takes no lock, so that a signal handler may call
 * it. */
void ring_print(int fd);
/* Prints to stderr on SIGUSR1, and before the process dies of SIGSEGV, SIGBUS, SIGABRT, SIGFPE or
 * SIGILL. */
void ring_print_on_signals(void);

#endif
