/* Listening sockets. Bound and listening from the start, so that a port is known to be ours before
 * the model loads. */
#include "net/internal.h"

#include "base/memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BACKLOG 1024

struct net_listener {
    uv_tcp_t tcp;
    struct net_address address;
    void (*on_connection)(void *context, uv_stream_t *listener);
    void *context;
};

static void listener_closed(uv_handle_t *handle)
{
    free(handle->data);
}

/* Takes fd over, also on failure. */
static enum status adopt(struct net_loop *l, int fd, struct net_listener **out)
{
    struct net_listener *n = memory_alloc(1, sizeof *n);
    struct sockaddr_storage sa;
    socklen_t sa_len = sizeof sa;
    int rc;

    if (n == NULL) {
        close(fd);
        return STATUS_NO_MEMORY;
    }
    if (getsockname(fd, (struct sockaddr *)&sa, &sa_len) != 0) {
        rc = errno;
        close(fd);
        free(n);
        return fail(STATUS_IO, "a listening socket without address: %s", strerror(rc));
    }
    net_address_from_sockaddr((const struct sockaddr *)&sa, &n->address);
    uv_tcp_init(&l->uv, &n->tcp);
    n->tcp.data = n;
    rc = uv_tcp_open(&n->tcp, fd);
    if (rc != 0) {
        close(fd);
        uv_close((uv_handle_t *)&n->tcp, listener_closed);
        return fail(STATUS_IO, "cannot use the listening socket of %s: %s", n->address.text,
                    uv_strerror(rc));
    }
    *out = n;
    return STATUS_OK;
}

enum status net_listen(struct net_loop *l, const struct net_address *address, const char *flag,
                       struct net_listener **out)
{
    bool v6 = address->sa.ss_family == AF_INET6;
    socklen_t sa_len = v6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    int one = 1, error;
    int fd = socket(v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return fail(STATUS_IO, "%s: no socket for %s: %s", flag, address->text, strerror(errno));
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (const struct sockaddr *)&address->sa, sa_len) != 0 || listen(fd, BACKLOG) != 0) {
        error = errno;
        close(fd);
        if (error == EADDRINUSE)
            return fail(STATUS_ADDRESS_IN_USE, "%s: %s is already in use", flag, address->text);
        if (error == EADDRNOTAVAIL && !strcmp(flag, "--port"))
            flag = "--host"; /* its port is not to blame */
        return fail(STATUS_IO, "%s: cannot listen on %s: %s", flag, address->text, strerror(error));
    }
    return adopt(l, fd, out);
}

enum status net_listen_fd(struct net_loop *l, int fd, struct net_listener **out)
{
    int listening = 0;
    socklen_t len = sizeof listening;

    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &len) != 0)
        return fail(STATUS_IO, "descriptor %d is not a socket: %s", fd, strerror(errno));
    if (!listening)
        return fail(STATUS_IO, "descriptor %d is not a listening socket", fd);
    return adopt(l, fd, out);
}

static void connection(uv_stream_t *stream, int status)
{
    struct net_listener *n = stream->data;

    if (status == 0)
        n->on_connection(n->context, stream);
}

void net_listener_accept(struct net_listener *n,
                         void (*on_connection)(void *context, uv_stream_t *listener), void *context)
{
    bool first = n->on_connection == NULL;

    n->on_connection = on_connection;
    n->context = context;
    /* Until here the kernel alone collected connections; libuv would stop at the first one that
     * nobody accepts. */
    if (first)
        uv_listen((uv_stream_t *)&n->tcp, BACKLOG, connection);
}

const struct net_address *net_listener_address(const struct net_listener *n)
{
    return &n->address;
}

void net_listener_close(struct net_listener **n)
{
    if (*n == NULL)
        return;
    uv_close((uv_handle_t *)&(*n)->tcp, listener_closed);
    *n = NULL;
}
