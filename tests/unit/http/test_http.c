/* http: real sockets on loopback, the loop in the test. */
#include "base/clock.h"
#include "http/http.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
/* after the four above */
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "unit/http/client.h"

static struct world {
    struct net_loop *loop;
    struct net_listener *listener;
    struct http_server *server;
    struct http_exchange *held;
    int n_closed, n_writable, n_handled, n_idle;
} w;

static void on_closed(void *context)
{
    w.n_closed++;
    w.held = NULL;
}

static void on_writable(void *context)
{
    w.n_writable++;
}

static void hello(void *context, struct http_exchange *x)
{
    w.n_handled++;
    http_exchange_set_header(x, "x-test", "1");
    http_exchange_respond(x, 200, "text/plain", "hello", 5);
}

static void echo(void *context, struct http_exchange *x)
{
    const struct buffer *body = http_exchange_body(x);

    w.n_handled++;
    http_exchange_respond(x, 200, "text/plain", body->data, body->len);
}

static void hold(void *context, struct http_exchange *x)
{
    struct http_exchange_events events = {.closed = on_closed, .writable = on_writable};

    w.n_handled++;
    http_exchange_on(x, &events);
    w.held = x;
}

static void stream(void *context, struct http_exchange *x)
{
    w.n_handled++;
    http_exchange_stream_begin(x, 200, "text/event-stream");
    http_exchange_stream_write(x, "data: a\n\n", 9);
    http_exchange_stream_write(x, "data: b\n\n", 9);
    http_exchange_stream_end(x, false);
}

static const struct http_route routes[] = {
    {HTTP_METHOD_GET, "/hello", hello},
    {HTTP_METHOD_POST, "/echo", echo},
    {HTTP_METHOD_GET | HTTP_METHOD_POST, "/hold", hold},
    {HTTP_METHOD_GET, "/stream", stream},
    {HTTP_METHOD_GET, "/prefix/*", hello},
};

static bool admit(void *context, struct http_exchange *x)
{
    if (http_exchange_header(x, "x-forbidden") == NULL)
        return true;
    http_exchange_respond_error(x, STATUS_UNAUTHORIZED, "no");
    return false;
}

static int setup_with(const struct http_limits *limits)
{
    struct net_address a;
    struct http_hooks hooks = {.admit = admit};

    memset(&w, 0, sizeof w);
    assert_int_equal(net_loop_create(&w.loop), STATUS_OK);
    assert_int_equal(net_address_parse("127.0.0.1:0", "--port", &a), STATUS_OK);
    assert_int_equal(net_listen(w.loop, &a, "--port", &w.listener), STATUS_OK);
    assert_int_equal(http_server_create(w.loop, limits, &w.server), STATUS_OK);
    http_server_routes(w.server, routes, sizeof routes / sizeof *routes, NULL);
    http_server_hooks(w.server, &hooks);
    http_server_attach(w.server, w.listener);
    return 0;
}

static int setup(void **state)
{
    return setup_with(NULL);
}

static int setup_small(void **state)
{
    struct http_limits limits = http_limits_default;

    limits.max_header_bytes = 512;
    limits.max_body_bytes = 1000;
    limits.max_headers = 5;
    limits.header_timeout_ms = limits.body_timeout_ms = 100;
    limits.idle_timeout_ms = 300;
    limits.write_timeout_ms = 300;
    return setup_with(&limits);
}

static int teardown(void **state)
{
    net_listener_close(&w.listener);
    http_server_destroy(&w.server);
    net_loop_destroy(&w.loop);
    return 0;
}

/* Sends, reads until the answer's end is seen, and hands back a static copy. */
static const char *ask(const char *request, const char *until, bool *closed)
{
    static char answer[1 << 16];
    struct buffer got = {0};
    int fd = dial(w.listener);
    bool c;

    push(w.loop, fd, request, strlen(request));
    c = pull(w.loop, fd, &got, until, 2000);
    if (closed != NULL)
        *closed = c;
    snprintf(answer, sizeof answer, "%s", got.data != NULL ? got.data : "");
    buffer_deinit(&got);
    close(fd);
    turn_for(w.loop, 5);
    return answer;
}

static void check_status(const char *request, int status)
{
    const char *answer = ask(request, NULL, NULL);
    int got = 0;

    sscanf(answer, "HTTP/1.1 %d", &got);
    if (got != status)
        fail_msg("%d, not %d, for:\n%s\nanswer:\n%s", got, status, request, answer);
}

#define HOST "Host: a\r\n"

static void test_simple(void **state)
{
    bool closed;
    const char *a = ask("GET /hello?x=1 HTTP/1.1\r\n" HOST "\r\n", "hello", &closed);

    assert_false(closed);
    assert_non_null(strstr(a, "HTTP/1.1 200 OK\r\n"));
    assert_non_null(strstr(a, "Content-Length: 5\r\n"));
    assert_non_null(strstr(a, "x-test: 1\r\n"));
    assert_non_null(strstr(a, "Access-Control-Allow-Origin: *\r\n"));
    assert_null(strstr(a, "Connection:"));

    a = ask("HEAD /hello HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n", NULL, &closed);
    assert_true(closed);
    assert_non_null(strstr(a, "Content-Length: 5\r\n"));
    assert_null(strstr(a, "hello"));

    a = ask("OPTIONS /anything HTTP/1.1\r\n" HOST "\r\n", "\r\n\r\n", &closed);
    assert_non_null(strstr(a, "HTTP/1.1 204 "));
    assert_non_null(strstr(a, "Access-Control-Allow-Headers: *, Authorization\r\n"));
    assert_null(strstr(a, "Content-Length"));
    assert_null(strstr(a, "Credentials"));

    a = ask("GET http://elsewhere:1/hello HTTP/1.1\r\n" HOST "\r\n", "hello", NULL);
    assert_non_null(strstr(a, " 200 "));
    a = ask("GET /prefix/x/y HTTP/1.1\r\n" HOST "Upgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
            "hello", NULL);
    assert_non_null(strstr(a, " 200 "));
    assert_int_equal(http_server_n_exchanges(w.server), 0);
}

static void test_http10(void **state)
{
    bool closed;
    const char *a = ask("GET /stream HTTP/1.0\r\n\r\n", NULL, &closed);

    assert_true(closed);
    assert_null(strstr(a, "chunked"));
    assert_non_null(strstr(a, "\r\n\r\ndata: a\n\ndata: b\n\n"));
    ask("GET /hello HTTP/1.0\r\n\r\n", NULL, &closed);
    assert_true(closed);
    a = ask("GET /hello HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", "hello", &closed);
    assert_false(closed);
    assert_non_null(strstr(a, "Connection: keep-alive\r\n"));
}

static void test_stream(void **state)
{
    bool closed;
    const char *a = ask("GET /stream HTTP/1.1\r\n" HOST "\r\n", "0\r\n\r\n", &closed);

    assert_false(closed);
    assert_non_null(strstr(a, "Transfer-Encoding: chunked\r\n"));
    assert_non_null(strstr(a, "\r\n\r\n9\r\ndata: a\n\n\r\n9\r\ndata: b\n\n\r\n0\r\n\r\n"));
}

static void test_bodies(void **state)
{
    const char *a =
        ask("POST /echo HTTP/1.1\r\n" HOST "Content-Length: 4\r\n\r\nabcd", "abcd", NULL);

    assert_non_null(strstr(a, "\r\n\r\nabcd"));
    a = ask("POST /echo HTTP/1.1\r\n" HOST
            "Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n3;x=y\r\ncde\r\n0\r\nTrailer: 1\r\n\r\n",
            "abcde", NULL);
    assert_non_null(strstr(a, "\r\n\r\nabcde"));
    a = ask("POST /echo HTTP/1.1\r\n" HOST "\r\n", "Content-Length: 0\r\n", NULL);
    assert_non_null(strstr(a, " 200 "));

    /* Expect: 100-continue is answered once the headers are good, and the final answer follows the
     * body. */
    struct buffer got = {0};
    int fd = dial(w.listener);
    const char *head =
        "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 3\r\nExpect: 100-continue\r\n\r\n";
    push(w.loop, fd, head, strlen(head));
    pull(w.loop, fd, &got, "100 Continue\r\n\r\n", 2000);
    assert_non_null(strstr(got.data, "HTTP/1.1 100 Continue\r\n\r\n"));
    assert_null(strstr(got.data, " 200 "));
    push(w.loop, fd, "xyz", 3);
    pull(w.loop, fd, &got, "xyz", 2000);
    assert_non_null(strstr(got.data, " 200 OK"));
    buffer_deinit(&got);
    close(fd);
    a = ask("POST /echo HTTP/1.1\r\n" HOST
            "Content-Length: 99999999\r\nExpect: 100-continue\r\n\r\n",
            NULL, NULL);
    assert_non_null(strstr(a, "HTTP/1.1 413 "));
    assert_null(strstr(a, "100 Continue"));
}

/* The same bytes, whole, in every two pieces, and byte by byte, give the same answers. */
static void test_pipelining(void **state)
{
    const char *requests =
        "GET /hello HTTP/1.1\r\n" HOST "\r\n"
        "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 2\r\n\r\nhi"
        "\r\n"
        "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n1\r\nz\r\n0\r\n\r\n"
        "GET /stream HTTP/1.1\r\n" HOST "\r\n"
        "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 3\r\nConnection: close\r\n\r\nend";
    size_t len = strlen(requests);

    for (size_t cut = 0; cut <= len; cut++) {
        struct buffer got = {0};
        int fd = dial(w.listener);
        int n_ok = 0;
        bool closed;

        w.n_handled = 0;
        if (cut == len) {
            for (size_t i = 0; i < len; i++)
                push(w.loop, fd, requests + i, 1);
        } else {
            push(w.loop, fd, requests, cut);
            net_loop_turn(w.loop);
            push(w.loop, fd, requests + cut, len - cut);
        }
        closed = pull(w.loop, fd, &got, NULL, 3000);
        assert_true(closed);
        for (const char *p = got.data; (p = strstr(p, "HTTP/1.1 200 OK")) != NULL; p++)
            n_ok++;
        assert_int_equal(n_ok, 5);
        assert_int_equal(w.n_handled, 5);
        assert_non_null(strstr(got.data, "\r\n\r\nend"));
        buffer_deinit(&got);
        close(fd);
    }
    turn_for(w.loop, 5);
    assert_int_equal(http_server_n_exchanges(w.server), 0);
}

static void test_held_pipelined(void **state)
{
    struct buffer got = {0};
    int fd = dial(w.listener);
    const char *two = "GET /hold HTTP/1.1\r\n" HOST "\r\nGET /hello HTTP/1.1\r\n" HOST "\r\n";

    push(w.loop, fd, two, strlen(two));
    turn_for(w.loop, 20);
    assert_int_equal(w.n_handled, 1);
    assert_non_null(w.held);
    http_exchange_respond(w.held, 200, "text/plain", "first", 5);
    assert_int_equal(w.n_handled, 1); /* not from within */
    pull(w.loop, fd, &got, "hello", 2000);
    assert_int_equal(w.n_handled, 2);
    assert_true(strstr(got.data, "first") < strstr(got.data, "hello"));
    buffer_deinit(&got);
    close(fd);
}

static void test_refused(void **state)
{
    check_status("GET /hello HTTP/1.1\r\n\r\n", 400);
    check_status("GET /hello HTTP/1.1\r\n" HOST HOST "\r\n", 400);
    check_status("GET /hello HTTP/2.0\r\n" HOST "\r\n", 400);
    check_status("GET /hello HTTP/1.1\n" HOST "\r\n", 400);
    check_status("GET /hello HTTP/1.1\r\n" HOST "A: b\r\n c\r\n\r\n", 400);
    check_status("GET /hello HTTP/1.1\r\n" HOST "A: b\rX: c\r\n\r\n", 400);
    check_status("GET /hello HTTP/1.1\r\n" HOST "A : b\r\n\r\n", 400);
    check_status("GET /hello HTTP/1.1\r\n" HOST ": b\r\n\r\n", 400);
    check_status("GET /hello HTTP/1.1\r\n: b\r\n\r\n", 400);
    check_status("GET hello HTTP/1.1\r\n" HOST "\r\n", 400);
    check_status("\x16\x03\x01\x02", 400);
    check_status("BREW /hello HTTP/1.1\r\n" HOST "\r\n", 400);
    check_status("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400);
    check_status("CONNECT a:1 HTTP/1.1\r\n" HOST "\r\n", 405);
    check_status("TRACE /hello HTTP/1.1\r\n" HOST "\r\n", 405);
    check_status("POST /hello HTTP/1.1\r\n" HOST "\r\n", 405);
    check_status("GET /nothing HTTP/1.1\r\n" HOST "\r\n", 404);
    check_status("GET /prefix HTTP/1.1\r\n" HOST "\r\n", 404);
    check_status("GET /hello HTTP/1.1\r\n" HOST "X-Forbidden: 1\r\n\r\n", 401);
    check_status(
        "POST /echo HTTP/1.1\r\n" HOST "Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx", 415);
    check_status("POST /echo HTTP/1.1\r\n" HOST "Expect: miracles\r\nContent-Length: 1\r\n\r\nx",
                 400);
    /* Smuggling: two lengths, a length beside chunks, codings that hide chunks, lengths that are
     * not numbers. */
    check_status("POST /echo HTTP/1.1\r\n" HOST "Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
                 400);
    check_status("POST /echo HTTP/1.1\r\n" HOST
                 "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
                 400);
    check_status("POST /echo HTTP/1.1\r\n" HOST
                 "Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n0\r\n\r\n",
                 400);
    check_status("POST /echo HTTP/1.1\r\n" HOST
                 "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
                 400);
    check_status("POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
                 400);
    check_status("POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
                 400);
    check_status("POST /echo HTTP/1.1\r\n" HOST "Content-Length: +1\r\n\r\nx", 400);
    check_status("POST /echo HTTP/1.1\r\n" HOST "Content-Length: 1 2\r\n\r\nx", 400);
    check_status("POST /echo HTTP/1.1\r\n" HOST "Content-Length: 0x1\r\n\r\nx", 400);
    check_status("POST /echo HTTP/1.1\r\n" HOST "Content-Length: 99999999999999999999999\r\n\r\nx",
                 400);
    check_status("POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n-1\r\n", 400);
    check_status("POST /echo HTTP/1.1\r\n" HOST
                 "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
                 400);
    check_status("POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400);
    assert_int_equal(w.n_handled, 0);
    assert_int_equal(http_server_n_exchanges(w.server), 0);
}

static void test_limits(void **state)
{
    char big[4096];
    struct buffer got = {0};
    int fd;

    check_status("GET /hello HTTP/1.1\r\n" HOST "A: 1\r\nB: 1\r\nC: 1\r\nD: 1\r\nE: 1\r\n\r\n",
                 431);
    snprintf(big, sizeof big, "GET /hello HTTP/1.1\r\n" HOST "A: %0600d\r\n\r\n", 0);
    check_status(big, 431);
    snprintf(big, sizeof big, "GET /%0600d", 0);
    check_status(big, 431);
    check_status("POST /echo HTTP/1.1\r\n" HOST "Content-Length: 1001\r\n\r\n", 413);
    snprintf(big, sizeof big,
             "POST /echo HTTP/1.1\r\n" HOST
             "Transfer-Encoding: chunked\r\n\r\n258\r\n%0600d\r\n258\r\n%0600d\r\n",
             0, 0);
    check_status(big, 413);
    check_status("GET /hel", 408);
    check_status("POST /echo HTTP/1.1\r\n" HOST "Content-Length: 10\r\n\r\nabc", 408);

    /* Idle: closed without a word. */
    fd = dial(w.listener);
    assert_true(pull(w.loop, fd, &got, NULL, 2000));
    assert_int_equal(got.len, 0);
    close(fd);
    buffer_deinit(&got);
}

static void test_client_leaves(void **state)
{
    int fd = dial(w.listener);
    const char *request = "GET /hold HTTP/1.1\r\n" HOST "\r\n";

    push(w.loop, fd, request, strlen(request));
    turn_for(w.loop, 20);
    assert_non_null(w.held);
    close(fd);
    turn_for(w.loop, 20);
    assert_int_equal(w.n_closed, 1);

    /* The same in mid-stream. */
    fd = dial(w.listener);
    push(w.loop, fd, request, strlen(request));
    turn_for(w.loop, 20);
    http_exchange_stream_begin(w.held, 200, "text/plain");
    http_exchange_stream_write(w.held, "x", 1);
    close(fd);
    for (int i = 0; i < 50 && w.held != NULL; i++) {
        http_exchange_stream_write(w.held, "yyyyyyyyyyyyyyyy", 16);
        turn_for(w.loop, 1);
    }
    assert_int_equal(w.n_closed, 2);
    assert_int_equal(http_server_n_exchanges(w.server), 0);
}

static void test_slow_reader(void **state)
{
    int fd = dial(w.listener);
    int small = 4096;
    const char *request = "GET /hold HTTP/1.1\r\n" HOST "\r\n";
    char *piece = calloc(1, 1 << 20);
    struct buffer got = {0};

    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    push(w.loop, fd, request, strlen(request));
    turn_for(w.loop, 20);
    http_exchange_stream_begin(w.held, 200, "text/plain");
    for (int i = 0; i < 8; i++)
        http_exchange_stream_write(w.held, piece, 1 << 20);
    assert_true(http_exchange_queued_bytes(w.held) > 1 << 20);
    /* As long as it reads a little it lives, however long that takes ... */
    for (int i = 0; i < 10; i++) {
        static char some[400000];
        int n = 0;

        while (n < 400000) {
            ssize_t got_now = recv(fd, some, sizeof some, 0);

            if (got_now <= 0)
                break;
            n += (int)got_now;
            net_loop_turn(w.loop);
        }
        turn_for(w.loop, 60);
    }
    assert_int_equal(w.n_closed, 0);
    /* ... and when it stops it is cut. */
    turn_for(w.loop, 700);
    assert_int_equal(w.n_closed, 1);
    close(fd);

    /* One that catches up is told of as writable. */
    fd = dial(w.listener);
    push(w.loop, fd, request, strlen(request));
    turn_for(w.loop, 20);
    http_exchange_stream_begin(w.held, 200, "text/plain");
    for (int i = 0; i < 8; i++)
        http_exchange_stream_write(w.held, piece, 1 << 20);
    w.n_writable = 0;
    for (int i = 0; i < 2000 && w.n_writable == 0; i++)
        pull(w.loop, fd, &got, NULL, 2);
    assert_int_equal(w.n_writable, 1);
    http_exchange_stream_end(w.held, true);
    assert_true(pull(w.loop, fd, &got, NULL, 2000));
    assert_memory_equal(got.data + got.len - 5, "0\r\n\r\n", 5);
    buffer_deinit(&got);
    close(fd);
    free(piece);
}

static void on_idle(void *context)
{
    w.n_idle++;
}

static void test_drain(void **state)
{
    int fd = dial(w.listener), idle_fd = dial(w.listener);
    const char *request = "GET /hold HTTP/1.1\r\n" HOST "\r\n";
    struct buffer got = {0};

    push(w.loop, fd, request, strlen(request));
    turn_for(w.loop, 20);
    http_server_drain(w.server, on_idle, NULL);
    assert_true(pull(w.loop, idle_fd, &got, NULL, 1000));
    assert_int_equal(w.n_idle, 0);
    /* New connections are still served. */
    assert_non_null(
        strstr(ask("GET /hello HTTP/1.1\r\n" HOST "\r\n", NULL, NULL), "Connection: close\r\n"));
    assert_int_equal(w.n_idle, 0);
    http_exchange_respond(w.held, 200, "text/plain", "bye", 3);
    assert_true(pull(w.loop, fd, &got, NULL, 1000));
    assert_non_null(strstr(got.data, "bye"));
    assert_int_equal(w.n_idle, 1);
    buffer_deinit(&got);
    close(fd);
    close(idle_fd);
}

static void test_destroy_while_held(void **state)
{
    int fd = dial(w.listener);
    const char *request = "GET /hold HTTP/1.1\r\n" HOST "\r\n";

    push(w.loop, fd, request, strlen(request));
    turn_for(w.loop, 20);
    net_listener_close(&w.listener);
    http_server_destroy(&w.server);
    assert_int_equal(w.n_closed, 1);
    turn_for(w.loop, 5);
    close(fd);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
#define S(f) cmocka_unit_test_setup_teardown(f, setup_small, teardown)
    const struct CMUnitTest tests[] = {
        T(test_simple),        T(test_http10),         T(test_stream),  T(test_bodies),
        T(test_pipelining),    T(test_held_pipelined), T(test_refused), S(test_limits),
        T(test_client_leaves), S(test_slow_reader),    T(test_drain),   T(test_destroy_while_held),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
