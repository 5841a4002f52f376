/* HTTPS: a client whose ciphertext is cut anywhere, over real sockets; and those who speak no TLS.
 */
#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"
#include "http/http.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
/* after those above */
#include <cmocka.h>
#undef fail
#include <sys/socket.h>

#include "../support/certificates.h"
#include "unit/http/client.h"

static struct net_loop *loop;
static struct net_listener *listener;
static struct http_server *server;
static struct tls_context *tls;
static char *large;
enum { LARGE_BYTES = 3 << 20 };
static struct http_exchange *held;
static int n_closed;

static void echo(void *context, struct http_exchange *x)
{
    const struct buffer *body = http_exchange_body(x);

    http_exchange_respond(x, 200, "text/plain", body->data, body->len);
}

static void give_large(void *context, struct http_exchange *x)
{
    http_exchange_respond(x, 200, "text/plain", large, LARGE_BYTES);
}

static void stream(void *context, struct http_exchange *x)
{
    http_exchange_stream_begin(x, 200, "text/plain");
    for (int i = 0; i < 100; i++)
        http_exchange_stream_write(x, "piece", 5);
    http_exchange_stream_end(x, true);
}

static void on_closed(void *context)
{
    n_closed++;
    held = NULL;
}

static void hold(void *context, struct http_exchange *x)
{
    const struct http_exchange_events events = {.closed = on_closed};

    http_exchange_on(x, &events);
    held = x;
}

static const struct http_route routes[] = {
    {HTTP_METHOD_POST, "/echo", echo},
    {HTTP_METHOD_GET, "/large", give_large},
    {HTTP_METHOD_GET, "/stream", stream},
    {HTTP_METHOD_GET, "/hold", hold},
};

static int begin(void **state)
{
    struct test_authority house = {0};
    struct buffer cert = {0}, key = {0};
    struct http_limits limits = http_limits_default;
    struct net_address a;

    signal(SIGPIPE, SIG_IGN);
    authority_make(&house, "house");
    assert_int_equal(
        certificate_issue_server(house.cert.data, house.key.data, "localhost", 1, &cert, &key),
        STATUS_OK);
    certificates_write("http", "crt", &cert);
    certificates_write("http", "key", &key);
    buffer_deinit(&cert);
    buffer_deinit(&key);
    authority_deinit(&house);
    tls = context_of(NULL, "http");
    large = memory_alloc(LARGE_BYTES, 1);
    for (int i = 0; i < LARGE_BYTES; i++)
        large[i] = (char)('a' + i % 23);
    limits.header_timeout_ms = 400;
    assert_int_equal(net_loop_create(&loop), STATUS_OK);
    assert_int_equal(net_address_parse("127.0.0.1:0", "--port", &a), STATUS_OK);
    assert_int_equal(net_listen(loop, &a, "--port", &listener), STATUS_OK);
    assert_int_equal(http_server_create(loop, &limits, &server), STATUS_OK);
    http_server_routes(server, routes, ARRAY_LENGTH(routes), NULL);
    http_server_tls(server, tls);
    http_server_attach(server, listener);
    return 0;
}

static int end(void **state)
{
    net_listener_close(&listener);
    http_server_destroy(&server);
    turn_for(loop, 5);
    net_loop_destroy(&loop);
    tls_context_destroy(&tls);
    free(large);
    certificates_remove();
    return 0;
}

/* ---- a client ---- */

struct client {
    int fd;
    struct tls_session *s;
    bool done, closed, ended; /* ended: with a close_notify */
    uint32_t max_piece;
    struct buffer got;
};

static uint64_t random_state = 88172645463325252u;

static uint32_t draw(uint32_t below)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 11) % below;
}

static void client_open(struct client *c, uint32_t max_piece)
{
    *c = (struct client){.fd = dial(listener), .max_piece = max_piece};
    assert_int_equal(tls_session_create(tls, false, &c->s), STATUS_OK);
}

static void client_turn(struct client *c)
{
    struct buffer *out = tls_session_out(c->s);
    enum status status = STATUS_OK;

    if (!c->done)
        status = tls_session_handshake(c->s, &c->done);
    assert_int_equal(status, STATUS_OK);
    if (out->len) {
        const size_t most = draw(c->max_piece) + 1;
        const ssize_t n = send(c->fd, out->data, MIN(most, out->len), MSG_NOSIGNAL);
        buffer_consume(out, n > 0 ? (size_t)n : 0);
    }
    net_loop_turn(loop);
    const ssize_t n = recv(c->fd, tls_session_room(c->s, 65536), draw(c->max_piece) + 1, 0);
    c->closed |= n == 0;
    if (n > 0)
        tls_session_arrived(c->s, (size_t)n);
    for (size_t k = 1; c->done && k && !c->ended;) {
        status = tls_session_read(c->s, buffer_reserve(&c->got, 65536), 65536, &k);
        c->got.len += k;
        c->ended = status == STATUS_PEER_LOST;
        if (c->got.data)
            c->got.data[c->got.len] = 0;
    }
}

static void client_say(struct client *c, const char *text, size_t len)
{
    while (!c->done)
        client_turn(c);
    assert_int_equal(tls_session_write(c->s, text, len), STATUS_OK);
}

static void client_until(struct client *c, size_t len)
{
    const int64_t end_ms = clock_now_ms() + 20000;

    while (c->got.len < len && !c->closed && clock_now_ms() < end_ms)
        client_turn(c);
    assert_true(c->got.len >= len);
}

static void client_close(struct client *c)
{
    close(c->fd);
    tls_session_destroy(&c->s);
    buffer_deinit(&c->got);
}

/* ---- tests ---- */

static void test_cut_anywhere(void **state)
{
    static const uint32_t pieces[] = {1, 13, 1000, 60000};

    for (size_t i = 0; i < ARRAY_LENGTH(pieces); i++) {
        const size_t n_body = pieces[i] < 100 ? 3000 : 200000;
        struct buffer request = {0};
        struct client c;
        client_open(&c, pieces[i]);
        /* three at once: pipelined requests come out of one record */
        for (int k = 0; k < 3; k++) {
            buffer_printf(&request, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n",
                          n_body);
            buffer_append(&request, large + k, n_body);
        }
        client_say(&c, request.data, request.len);
        client_until(&c, 3 * n_body + 300);
        const char *at = c.got.data;
        for (int k = 0; k < 3; k++) {
            at = strstr(at, "\r\n\r\n");
            assert_non_null(at);
            at += 4;
            while ((size_t)(c.got.data + c.got.len - at) < n_body)
                client_turn(&c);
            assert_memory_equal(at, large + k, n_body);
        }
        assert_false(c.closed);
        buffer_deinit(&request);
        client_close(&c);
    }
}

static void test_large_answer(void **state)
{
    struct client c;

    client_open(&c, 50000);
    client_say(&c, "GET /large HTTP/1.1\r\nHost: x\r\n\r\n", 32);
    client_until(&c, LARGE_BYTES + 100);
    const char *body = strstr(c.got.data, "\r\n\r\n") + 4;
    while (c.got.data + c.got.len - body < LARGE_BYTES) {
        client_turn(&c);
        body = strstr(c.got.data, "\r\n\r\n") + 4;
    }
    assert_memory_equal(body, large, LARGE_BYTES);
    client_close(&c);
}

/* An answer that ends with its connection says so first: it was not cut short. */
static void test_close_is_said(void **state)
{
    struct client c;

    client_open(&c, 1000);
    client_say(&c, "GET /stream HTTP/1.0\r\n\r\n", 24);
    for (int64_t end_ms = clock_now_ms() + 10000; !c.ended && clock_now_ms() < end_ms;)
        client_turn(&c);
    assert_true(c.ended);
    assert_int_equal(strlen(strstr(c.got.data, "\r\n\r\n") + 4), 500);
    client_close(&c);
}

static void test_client_leaves(void **state)
{
    for (int round = 0; round < 40; round++) {
        struct client c;
        client_open(&c, 40);
        for (int i = 0; i < round && !c.done; i++)
            client_turn(&c);
        client_close(&c);
    }
    for (int round = 0; round < 2; round++) {
        struct client c;
        n_closed = 0;
        client_open(&c, 1000);
        client_say(&c, "GET /hold HTTP/1.1\r\nHost: x\r\n\r\n", 31);
        while (!held)
            client_turn(&c);
        if (round) { /* in order */
            tls_session_close(c.s);
            for (int i = 0; i < 50 && !n_closed; i++)
                client_turn(&c);
        }
        client_close(&c);
        turn_for(loop, 50);
        assert_int_equal(n_closed, 1);
    }
    turn_for(loop, 600);
    assert_int_equal(http_server_n_connections(server), 0);
    assert_int_equal(http_server_n_exchanges(server), 0);
}

static void test_no_tls(void **state)
{
    struct buffer got = {0};
    int fd = dial(listener);

    push(loop, fd, "GET /hold HTTP/1.1\r\nHost: x\r\n\r\n", 31);
    assert_true(pull(loop, fd, &got, NULL, 5000));
    assert_non_null(strstr(got.data, "HTTP/1.1 400 "));
    assert_non_null(strstr(got.data, "https"));
    close(fd);
    buffer_clear(&got);
    fd = dial(listener); /* an alert, at most */
    push(loop, fd, "\x16\x03\x01\x40\x00rubbish that is no handshake", 32);
    assert_true(pull(loop, fd, &got, NULL, 5000));
    assert_true(got.len < 20);
    close(fd);
    buffer_clear(&got);
    /* a handshake that takes too long */
    fd = dial(listener);
    push(loop, fd, "\x16\x03\x01\x00\xff\x01", 6);
    const int64_t start_ms = clock_now_ms();
    assert_true(pull(loop, fd, &got, NULL, 5000));
    assert_in_range(clock_now_ms() - start_ms, 200, 4000);
    close(fd);
    turn_for(loop, 50);
    assert_int_equal(http_server_n_connections(server), 0);
    buffer_deinit(&got);
}

int main(void)
{
    const struct log_options quiet = {.level = LOG_ERROR + 1};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cut_anywhere),  cmocka_unit_test(test_large_answer),
        cmocka_unit_test(test_close_is_said), cmocka_unit_test(test_client_leaves),
        cmocka_unit_test(test_no_tls),
    };

    log_setup(&quiet);
    return cmocka_run_group_tests(tests, begin, end);
}
