/* The ring of transitions: order, wrap-around, many writers, and what it prints. */
#include "base/ring.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { N_THREADS = 4, N_EACH = 20000 };

struct seen {
    uint32_t n;
    uint64_t last_number[N_THREADS];
    bool whole, in_order;
};

static void look(void *context, const struct ring_transition *t)
{
    struct seen *s = context;
    const uint32_t writer = t->attempt - 1;

    s->n++;
    if (writer >= N_THREADS || strcmp(t->room, "test") || strcmp(t->name, "writer") ||
        strcmp(t->from, "a") || strcmp(t->event, "b") || strcmp(t->to, "c")) {
        s->whole = false;
        return;
    }
    s->in_order &= t->number > s->last_number[writer];
    s->last_number[writer] = t->number;
}

static void *write_many(void *context)
{
    const uint32_t *writer = context;

    for (uint64_t i = 1; i <= N_EACH; i++)
        ring_note("test", "writer", i, *writer + 1, "a", "b", "c");
    return NULL;
}

static void test_few(void **state)
{
    struct seen s = {.whole = true, .in_order = true};

    for (uint64_t i = 1; i <= 3; i++)
        ring_note("test", "writer", i, 1, "a", "b", "c");
    ring_walk(look, &s);
    assert_int_equal(s.n, 3);
    assert_true(s.in_order);
    assert_int_equal(s.last_number[0], 3);
}

static void test_wraps(void **state)
{
    struct seen s = {.whole = true, .in_order = true};
    uint32_t writer = 0;

    write_many(&writer);
    ring_walk(look, &s);
    assert_int_equal(s.n, RING_TRANSITIONS);
    assert_true(s.in_order);
    assert_int_equal(s.last_number[0], N_EACH);
}

/* A reader meets writers all the time; nothing half written is ever seen. */
static void test_writers(void **state)
{
    pthread_t threads[N_THREADS];
    uint32_t writers[N_THREADS];
    struct seen s;

    for (uint32_t i = 0; i < N_THREADS; i++) {
        writers[i] = i;
        assert_int_equal(pthread_create(&threads[i], NULL, write_many, &writers[i]), 0);
    }
    for (int i = 0; i < 20; i++) {
        s = (struct seen){.whole = true, .in_order = true};
        ring_walk(look, &s); /* not in order: the test before counted from 1, too */
        assert_true(s.whole);
    }
    for (uint32_t i = 0; i < N_THREADS; i++)
        pthread_join(threads[i], NULL);
    s = (struct seen){.whole = true, .in_order = true};
    ring_walk(look, &s);
    assert_true(s.whole && s.in_order);
    /* who was overtaken by a whole lap left its transition out */
    assert_in_range(s.n, RING_TRANSITIONS - 64, RING_TRANSITIONS);
}

static size_t read_all(int fd, char *out, size_t size)
{
    size_t len = 0;
    ssize_t n;

    while ((n = read(fd, out + len, size - 1 - len)) > 0)
        len += (size_t)n;
    out[len] = 0;
    return len;
}

static void test_prints(void **state)
{
    static char text[1 << 20];
    FILE *f = tmpfile();

    ring_note("room", "a-node-with-a-name-that-is-longer-than-any-ring-would-keep", 0, 0, "up",
              "peer_lost", "closed");
    ring_note("router", "router-0", 18446744073709551615u, 4294967295u, "queued", "send",
              "prefill");
    ring_print(fileno(f));
    rewind(f);
    read_all(fileno(f), text, sizeof text);
    assert_non_null(strstr(text, "ring pid="));
    assert_non_null(
        strstr(text, " room=room of=a-node-with-a-name-that-is-longer-than- from=up on=peer_lost "
                     "to=closed\n"));
    assert_non_null(strstr(text, " room=router of=router-0/18446744073709551615 "
                                 "attempt=4294967295 from=queued on=send to=prefill\nring end\n"));
    fclose(f);
}

/* A process that dies of a signal prints first, and still dies of that signal. */
static void test_signals(void **state)
{
    static const int numbers[] = {SIGUSR1, SIGABRT};
    static char text[1 << 20];

    for (int i = 0; i < 2; i++) {
        int ends[2], how;
        assert_int_equal(pipe(ends), 0);
        const pid_t child = fork();
        if (child == 0) {
            dup2(ends[1], STDERR_FILENO);
            close(ends[0]);
            close(ends[1]);
            ring_print_on_signals();
            ring_note("test", "child", 7, 0, "alive", "signal", "dead");
            raise(numbers[i]);
            _exit(3);
        }
        close(ends[1]);
        read_all(ends[0], text, sizeof text);
        close(ends[0]);
        assert_int_equal(waitpid(child, &how, 0), child);
        if (numbers[i] == SIGUSR1)
            assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 3);
        else
            assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGABRT);
        assert_non_null(strstr(text, "of=child/7 from=alive on=signal to=dead\nring end\n"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_few),     cmocka_unit_test(test_wraps),
        cmocka_unit_test(test_writers), cmocka_unit_test(test_prints),
        cmocka_unit_test(test_signals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
