/* A client on a plain socket, and the server's loop turned while it waits. For tests, after
 * cmocka.h. */
#ifndef BATON_TESTS_HTTP_CLIENT_H
#define BATON_TESTS_HTTP_CLIENT_H

#include "base/clock.h"
#include "base/memory.h"
#include "net/net.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

static int dial(const struct net_listener *listener)
{
    const struct net_address *a = net_listener_address(listener);
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    assert_int_equal(connect(fd, (const struct sockaddr *)&a->sa, sizeof(struct sockaddr_in)), 0);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

static void turn_for(struct net_loop *loop, int ms)
{
    for (int64_t end = clock_now_ms() + ms; clock_now_ms() < end; usleep(500))
        net_loop_turn(loop);
}

static void push(struct net_loop *loop, int fd, const char *bytes, size_t len)
{
    while (len > 0) {
        ssize_t n = send(fd, bytes, len, MSG_NOSIGNAL);

        if (n < 0 && errno != EAGAIN)
            return;
        if (n > 0) {
            bytes += n;
            len -= (size_t)n;
        }
        net_loop_turn(loop);
    }
}

/* Reads until the server closes, `until` has come, or ms are over. True when the server closed. */
static bool pull(struct net_loop *loop, int fd, struct buffer *got, const char *until, int ms)
{
    for (int64_t end = clock_now_ms() + ms; clock_now_ms() < end;) {
        char *room = buffer_reserve(got, 65536);
        ssize_t n = recv(fd, room, 65536, 0);

        if (n == 0 || (n < 0 && errno != EAGAIN))
            return true;
        if (n > 0) {
            got->len += (size_t)n;
            got->data[got->len] = '\0';
        } else
            usleep(200);
        if (until != NULL && got->len > 0 && strstr(got->data, until) != NULL)
            return false;
        net_loop_turn(loop);
    }
    return false;
}

#endif
