/* net: tasks keep their order, listeners name what is taken, timers may be dropped at once. */
#include "base/clock.h"
#include "net/net.h"
#include "net/transport.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
/* after the four above */
#include <cmocka.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#define N_POSTS 10000

struct numbered {
    struct net_task task;
    int thread, number;
};

static struct {
    int next[2];
    int total;
    bool out_of_order;
} seen;

static void note(struct net_task *task)
{
    struct numbered *n = (struct numbered *)task;

    if (n->number != seen.next[n->thread])
        seen.out_of_order = true;
    seen.next[n->thread]++;
    seen.total++;
}

static struct net_loop *the_loop;

static void *poster(void *arg)
{
    struct numbered *tasks = arg;

    for (int i = 0; i < N_POSTS; i++)
        net_post(the_loop, &tasks[i].task);
    return NULL;
}

static void test_tasks_keep_order(void **state)
{
    struct numbered *tasks[2];
    pthread_t threads[2];

    memset(&seen, 0, sizeof seen);
    assert_int_equal(net_loop_create(&the_loop), STATUS_OK);
    for (int t = 0; t < 2; t++) {
        tasks[t] = calloc(N_POSTS, sizeof **tasks);
        for (int i = 0; i < N_POSTS; i++)
            tasks[t][i] = (struct numbered){.task = {.run = note}, .thread = t, .number = i};
        pthread_create(&threads[t], NULL, poster, tasks[t]);
    }
    while (seen.total < 2 * N_POSTS)
        net_loop_turn(the_loop);
    for (int t = 0; t < 2; t++)
        pthread_join(threads[t], NULL);
    assert_false(seen.out_of_order);
    assert_true(clock_now_ms() - net_loop_last_turn_ms(the_loop) < 5000);
    net_loop_destroy(&the_loop);
    assert_null(the_loop);
    for (int t = 0; t < 2; t++)
        free(tasks[t]);
}

struct job {
    struct net_work work;
    pthread_t worker;
    bool done;
};

static void job_work(struct net_work *w)
{
    ((struct job *)w)->worker = pthread_self();
}

static void job_done(struct net_work *w)
{
    ((struct job *)w)->done = true;
}

static void test_work_runs_elsewhere(void **state)
{
    struct net_loop *l;
    struct job job = {.work = {.work = job_work, .done = job_done}};

    assert_int_equal(net_loop_create(&l), STATUS_OK);
    net_work_submit(l, &job.work);
    while (!job.done)
        net_loop_turn(l);
    assert_false(pthread_equal(job.worker, pthread_self()));
    net_loop_destroy(&l);
}

static void test_address_parse(void **state)
{
    struct net_address a;

    assert_int_equal(net_address_parse("127.0.0.1:8080", "--x", &a), STATUS_OK);
    assert_string_equal(a.text, "127.0.0.1:8080");
    assert_true(net_address_is_loopback(&a));
    assert_int_equal(net_address_parse("[::1]:0", "--x", &a), STATUS_OK);
    assert_string_equal(a.text, "[::1]:0");
    assert_true(net_address_is_loopback(&a));
    assert_int_equal(net_address_parse(":81", "--x", &a), STATUS_OK);
    assert_string_equal(a.text, "0.0.0.0:81");
    assert_false(net_address_is_loopback(&a));
    assert_int_equal(net_address_parse("localhost:81", "--x", &a), STATUS_OK);
    assert_true(net_address_is_loopback(&a));

    static const char *const bad[] = {
        "",       "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1",
        "::1:80", "[::1:80",   "[zz]:80",    "127.0.0.1:8o",    "127.0.0.1: 80"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(net_address_parse(bad[i], "--serving-bind", &a), STATUS_USAGE);
        assert_non_null(strstr(status_message(), "--serving-bind"));
    }
}

static int n_connections;

static void on_connection(void *context, uv_stream_t *listener)
{
    uv_tcp_t *tcp = calloc(1, sizeof *tcp);

    uv_tcp_init(listener->loop, tcp);
    assert_int_equal(uv_accept(listener, (uv_stream_t *)tcp), 0);
    n_connections++;
    uv_close((uv_handle_t *)tcp, (uv_close_cb)free);
}

static int dial(const struct net_address *a)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    assert_int_equal(connect(fd, (const struct sockaddr *)&a->sa, sizeof(struct sockaddr_in)), 0);
    return fd;
}

static void test_listener(void **state)
{
    struct net_loop *l;
    struct net_address a;
    struct net_listener *first, *second = NULL, *adopted;
    int fds[2], fd;

    assert_int_equal(net_loop_create(&l), STATUS_OK);
    assert_int_equal(net_address_parse("127.0.0.1:0", "--port", &a), STATUS_OK);
    assert_int_equal(net_listen(l, &a, "--port", &first), STATUS_OK);
    a = *net_listener_address(first);
    assert_string_not_equal(a.text, "127.0.0.1:0");

    assert_int_equal(net_listen(l, &a, "--port", &second), STATUS_ADDRESS_IN_USE);
    assert_non_null(strstr(status_message(), "--port"));
    assert_non_null(strstr(status_message(), a.text));
    assert_null(second);

    /* Two that come before anybody accepts are kept by the kernel. */
    for (int i = 0; i < 2; i++)
        fds[i] = dial(&a);
    for (int i = 0; i < 10; i++)
        net_loop_turn(l);
    assert_int_equal(n_connections, 0);
    net_listener_accept(first, on_connection, NULL);
    for (int64_t end = clock_now_ms() + 5000; n_connections < 2 && clock_now_ms() < end;)
        net_loop_turn(l);
    assert_int_equal(n_connections, 2);
    for (int i = 0; i < 2; i++)
        close(fds[i]);

    /* A child adopts what its parent kept. */
    uv_fileno((const uv_handle_t *)first, &fd); /* the handle is the listener's first member */
    fd = dup(fd);
    net_listener_close(&first);
    assert_null(first);
    for (int i = 0; i < 3; i++)
        net_loop_turn(l);
    assert_int_equal(net_listen_fd(l, fd, &adopted), STATUS_OK);
    assert_string_equal(net_listener_address(adopted)->text, a.text);
    net_listener_close(&adopted);
    assert_int_equal(net_listen_fd(l, 0x7fff, &adopted), STATUS_IO);
    net_loop_destroy(&l);
}

static int n_fired;

static void fired(void *context)
{
    n_fired++;
    if (context != NULL)
        net_timer_stop(context); /* from inside its own callback */
}

static void test_timers(void **state)
{
    struct net_loop *l;
    struct net_timer *t = calloc(1, sizeof *t), zero = {0};

    assert_int_equal(net_loop_create(&l), STATUS_OK);
    assert_int_equal(net_timer_start(l, t, 1, 1, fired, NULL), STATUS_OK);
    while (n_fired < 3)
        net_loop_turn(l);
    assert_int_equal(net_timer_start(l, t, 0, 1, fired, t), STATUS_OK);
    n_fired = 0;
    for (int64_t end = clock_now_ms() + 20; clock_now_ms() < end;)
        net_loop_turn(l);
    assert_int_equal(n_fired, 1);
    net_timer_stop(t);
    free(t);
    net_timer_stop(&zero);
    net_loop_destroy(&l);
}

/* ---- registered memory ---- */

struct far_end {
    char *room;
    size_t room_bytes, n_arrived;
    enum status broken;
};

static void far_room(void *context, char **base, size_t *len)
{
    struct far_end *f = context;

    *base = f->room;
    *len = f->room_bytes;
}

static void far_arrived(void *context, size_t n)
{
    ((struct far_end *)context)->n_arrived += n;
}

static void far_broken(void *context, enum status status)
{
    ((struct far_end *)context)->broken = status;
}

static enum status written_as;
static bool was_written;

static void written(struct transport_write *w, enum status status)
{
    was_written = true;
    written_as = status;
}

/* One write of len bytes; how it ended, once it has or the other end broke. */
static enum status write_now(struct net_loop *l, struct transport *t, const void *data, size_t len,
                             const struct far_end *f)
{
    static struct transport_write w; /* what is not delivered ends when the transport closes */
    const struct iovec part = {.iov_base = (void *)data, .iov_len = len};

    was_written = false;
    w = (struct transport_write){.done = written};
    transport_write(t, &part, 1, &w);
    for (int i = 0; i < 100 && !was_written && !f->broken; i++)
        net_loop_turn(l);
    return was_written ? written_as : STATUS_CANCELLED;
}

/* What a transport that must map memory could not reach is found out by the one that need not. */
static void test_registered_memory(void **state)
{
    enum { N = 3 * TRANSPORT_INLINE_BYTES };
    static char pool[2][N], elsewhere[N];
    struct far_end f = {.room = pool[1], .room_bytes = N};
    const struct transport_events events = {
        .room = far_room, .arrived = far_arrived, .broken = far_broken, .context = &f};
    const struct transport_region regions[2] = {{pool[0], N}, {pool[1], N}};
    struct transport *a, *b;
    struct net_loop *l;

    assert_int_equal(net_loop_create(&l), STATUS_OK);
    assert_int_equal(transport_memory_pair(l, &a, &b), STATUS_OK);
    transport_start(a, &events);
    transport_start(b, &events);
    assert_int_equal(write_now(l, a, elsewhere, N, &f), STATUS_OK); /* nothing is registered */
    assert_int_equal(transport_register(a, &regions[0]), STATUS_OK);
    assert_int_equal(transport_register(b, &regions[1]), STATUS_OK);
    assert_int_equal(write_now(l, a, pool[0], N, &f), STATUS_OK);
    assert_int_equal(write_now(l, a, pool[0] + N - 5000, 5000, &f), STATUS_OK);
    assert_int_equal(write_now(l, a, elsewhere, TRANSPORT_INLINE_BYTES, &f), STATUS_OK);
    assert_int_equal(f.n_arrived, 2 * N + 5000 + TRANSPORT_INLINE_BYTES);
    assert_int_equal(write_now(l, a, elsewhere, N, &f), STATUS_CANCELLED);
    assert_int_equal(write_now(l, a, pool[0] + N - 5000, 5001, &f), STATUS_CANCELLED);
    assert_int_equal(f.broken, STATUS_OK);
    f.room = elsewhere;
    assert_int_equal(write_now(l, a, pool[0], N, &f), STATUS_CANCELLED);
    assert_int_equal(f.broken, STATUS_INTERNAL);
    for (int i = 0; i < TRANSPORT_MAX_REGIONS - 1; i++)
        assert_int_equal(transport_register(a, &regions[0]), STATUS_OK);
    assert_int_equal(transport_register(a, &regions[0]), STATUS_NO_MEMORY);
    transport_close(&a);
    transport_close(&b);
    for (int i = 0; i < 5; i++)
        net_loop_turn(l);
    net_loop_destroy(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tasks_keep_order), cmocka_unit_test(test_work_runs_elsewhere),
        cmocka_unit_test(test_address_parse),    cmocka_unit_test(test_listener),
        cmocka_unit_test(test_timers),           cmocka_unit_test(test_registered_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
