#include "base/ring.h"

#include "base/checked.h"
#include "base/clock.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

enum { N_WORDS = sizeof(struct ring_transition) / sizeof(uint64_t) };
_Static_assert(sizeof(struct ring_transition) % sizeof(uint64_t) == 0, "a transition is words");

/* Words, so that a reader which meets a writer reads old or new ones, never halves of one. stamp is
 * 2k + 1 while transition k is written and 2k + 2 when it is there: it tells a reader that it met a
 * writer, and lets one writer at a time in. Whoever finds another there, because one of them fell
 * behind by a whole lap, leaves its transition out. */
static struct {
    _Atomic uint64_t stamp;
    _Atomic uint64_t words[N_WORDS];
} slots[RING_TRANSITIONS];
static _Atomic uint64_t n_noted;

void ring_note(const char *room, const char *name, uint64_t number, uint32_t attempt,
               const char *from, const char *event, const char *to)
{
    struct ring_transition t = {.ns = clock_now_ns(),
                                .number = number,
                                .room = room,
                                .from = from,
                                .event = event,
                                .to = to,
                                .attempt = attempt};
    uint64_t words[N_WORDS];
    const uint64_t mine = atomic_fetch_add_explicit(&n_noted, 1, memory_order_relaxed);
    const size_t at = mine % RING_TRANSITIONS;
    uint64_t before = atomic_load_explicit(&slots[at].stamp, memory_order_relaxed);

    for (size_t i = 0; i + 1 < sizeof t.name && name[i]; i++)
        t.name[i] = name[i];
    memcpy(words, &t, sizeof words);
    if (before % 2 || before > 2 * mine ||
        !atomic_compare_exchange_strong_explicit(&slots[at].stamp, &before, 2 * mine + 1,
                                                 memory_order_acquire, memory_order_relaxed))
        return;
    atomic_thread_fence(memory_order_release);
    for (size_t i = 0; i < N_WORDS; i++)
        atomic_store_explicit(&slots[at].words[i], words[i], memory_order_relaxed);
    atomic_store_explicit(&slots[at].stamp, 2 * mine + 2, memory_order_release);
}

void ring_walk(void (*visit)(void *context, const struct ring_transition *t), void *context)
{
    const uint64_t end = atomic_load(&n_noted);

    for (uint64_t i = end > RING_TRANSITIONS ? end - RING_TRANSITIONS : 0; i < end; i++) {
        const size_t at = i % RING_TRANSITIONS;
        struct ring_transition t;
        uint64_t words[N_WORDS];
        if (atomic_load_explicit(&slots[at].stamp, memory_order_acquire) != 2 * i + 2)
            continue;
        for (size_t w = 0; w < N_WORDS; w++)
            words[w] = atomic_load_explicit(&slots[at].words[w], memory_order_relaxed);
        atomic_thread_fence(memory_order_acquire);
        if (atomic_load_explicit(&slots[at].stamp, memory_order_relaxed) != 2 * i + 2)
            continue;
        memcpy(&t, words, sizeof t);
        visit(context, &t);
    }
}

/* ---- text, without the C library's help: a handler may interrupt it ---- */

struct printer {
    int fd;
    int64_t now_ns;
    size_t len;
    char text[4096];
};

static void flush(struct printer *p)
{
    for (size_t at = 0; at < p->len;) {
        const ssize_t n = write(p->fd, p->text + at, p->len - at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break; /* nobody reads: nothing can be done about it here */
        at += (size_t)n;
    }
    p->len = 0;
}

static void put(struct printer *p, const char *s)
{
    for (; *s && p->len < sizeof p->text; s++)
        p->text[p->len++] = *s;
}

static void put_number(struct printer *p, uint64_t n, int min_digits)
{
    char digits[24];
    int i = sizeof digits - 1;

    digits[i] = 0;
    do {
        digits[--i] = (char)('0' + n % 10);
        n /= 10;
    } while (n || (int)sizeof digits - 1 - i < min_digits);
    put(p, digits + i);
}

static void print_one(void *context, const struct ring_transition *t)
{
    struct printer *p = context;
    const uint64_t ago_us = (uint64_t)MAX(p->now_ns - t->ns, (int64_t)0) / 1000;

    if (p->len + 512 > sizeof p->text) /* whole lines, so that log lines come between them */
        flush(p);
    put(p, "ring t=-");
    put_number(p, ago_us / 1000000, 1);
    put(p, ".");
    put_number(p, ago_us % 1000000, 6);
    put(p, " room=");
    put(p, t->room);
    put(p, " of=");
    put(p, t->name);
    if (t->number) {
        put(p, "/");
        put_number(p, t->number, 1);
    }
    if (t->attempt) {
        put(p, " attempt=");
        put_number(p, t->attempt, 1);
    }
    put(p, " from=");
    put(p, t->from);
    put(p, " on=");
    put(p, t->event);
    put(p, " to=");
    put(p, t->to);
    put(p, "\n");
}

void ring_print(int fd)
{
    struct printer p = {.fd = fd, .now_ns = clock_now_ns()};

    put(&p, "ring pid=");
    put_number(&p, (uint64_t)getpid(), 1);
    put(&p, " transitions=");
    put_number(&p, atomic_load(&n_noted), 1);
    put(&p, " the last of them follow, t is seconds before now\n");
    ring_walk(print_one, &p);
    put(&p, "ring end\n");
    flush(&p);
}

/* ---- signals ---- */

static atomic_flag printing = ATOMIC_FLAG_INIT;

static void on_signal(int number)
{
    const int error = errno;
    const bool dies = number != SIGUSR1;

    /* a second thread, or a fault in here, must not begin again */
    if (!atomic_flag_test_and_set(&printing)) {
        ring_print(STDERR_FILENO);
        atomic_flag_clear(&printing);
    }
    if (dies) { /* once this handler has returned, as if it had not been there */
        signal(number, SIG_DFL);
        raise(number);
    }
    errno = error;
}

void ring_print_on_signals(void)
{
    /* a sanitizer's own report says more; it ends with SIGABRT, if asked to */
    static const int numbers[] = {SIGUSR1, SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    static char stack[64 << 10]; /* this thread, the loop's, may have run over its own */
    const stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};

    if (!SANITIZED)
        sigaltstack(&other, NULL);
    for (size_t i = 0; i < (SANITIZED ? 2 : ARRAY_LENGTH(numbers)); i++) {
        struct sigaction a = {.sa_handler = on_signal, .sa_flags = SA_RESTART | SA_ONSTACK};
        sigemptyset(&a.sa_mask);
        sigaction(numbers[i], &a, NULL);
    }
}
