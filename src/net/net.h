/* net: the loop thread's world: the event loop, timers, tasks from other threads, listeners, and
 * byte streams.
 *
 * Everything here is called on the loop's thread, except net_post(). Callbacks run on the loop's
 * thread and must not block. Built on libuv; http/ and peer/ may use libuv through net_loop_uv().
 */
#ifndef BATON_NET_NET_H
#define BATON_NET_NET_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct net_loop;

enum status net_loop_create(struct net_loop **out) WARN_UNUSED;
/* Closes what is still open and frees; every object made on it must have been destroyed or closed
 * before. */
void net_loop_destroy(struct net_loop **l);
/* Runs until net_loop_stop(). */
void net_loop_run(struct net_loop *l);
void net_loop_stop(struct net_loop *l);
/* One non-blocking turn, for tests. */
void net_loop_turn(struct net_loop *l);
uv_loop_t *net_loop_uv(struct net_loop *l);
/* Monotonic ms at which the loop last began a turn; readable from any thread. */
int64_t net_loop_last_turn_ms(const struct net_loop *l);

/* Work posted from any thread, run once on the loop's thread, in order of posting per thread. The
 * task is intrusive: its owner keeps it alive and does not post it again until run() has been
 * called. A post cannot fail. */
struct net_task {
    void (*run)(struct net_task *task);
    struct net_task *next;
};
void net_post(struct net_loop *l, struct net_task *task);

/* Work done on one of two text threads (rendering, tokenizing, large JSON), then finished on the
 * loop. */
struct net_work {
    void (*work)(struct net_work *work); /* on a text thread */
    void (*done)(struct net_work *work); /* on the loop */
    uv_work_t uv;
};
void net_work_submit(struct net_loop *l, struct net_work *work);

/* A repeating or single timer. Zeroed is valid. deinit() is asynchronous inside, but safe: the
 * storage may go at once. */
struct net_timer {
    struct net_timer_handle *handle;
};
enum status net_timer_start(struct net_loop *l, struct net_timer *t, uint64_t first_ms,
                            uint64_t repeat_ms, void (*fire)(void *context),
                            void *context) WARN_UNUSED;
void net_timer_stop(struct net_timer *t);

/* "127.0.0.1:8080", "[::1]:0", ":8080" (all IPv4 addresses), "host:port".
 * Errors: USAGE naming flag and what was given. */
struct net_address {
    struct sockaddr_storage sa;
    char text[80]; /* numeric, with port */
};
enum status net_address_parse(const char *text, const char *flag,
                              struct net_address *out) WARN_UNUSED;
bool net_address_is_loopback(const struct net_address *a);

/* A bound and listening TCP socket. backlog connections wait in the kernel until on_connection is
 * set. Errors: ADDRESS_IN_USE naming flag and port, IO. */
struct net_listener;
enum status net_listen(struct net_loop *l, const struct net_address *address, const char *flag,
                       struct net_listener **out) WARN_UNUSED;
/* Adopts a listening socket that a parent process kept open. */
enum status net_listen_fd(struct net_loop *l, int fd, struct net_listener **out) WARN_UNUSED;
/* on_connection: accept with uv_accept() into a uv_tcp_t of your own. */
void net_listener_accept(struct net_listener *l,
                         void (*on_connection)(void *context, uv_stream_t *listener),
                         void *context);
const struct net_address *
net_listener_address(const struct net_listener *l); /* with the real port */
void net_listener_close(struct net_listener **l);

#endif
