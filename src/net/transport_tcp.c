/* TCP connections on libuv. */
#include "net/transport.h"

#include "base/checked.h"
#include "base/memory.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

struct tcp {
    struct transport transport;
    uv_tcp_t handle;
    bool closing;
};

struct tcp_write {
    uv_write_t request;
    struct transport_write *write;
};

static void on_room(uv_handle_t *handle, size_t suggested, uv_buf_t *out)
{
    struct tcp *t = handle->data;
    char *base = NULL;
    size_t len = 0;

    if (!t->closing)
        t->transport.events.room(t->transport.events.context, &base, &len);
    *out = uv_buf_init(base, (unsigned)MIN(len, (size_t)1 << 30));
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct tcp *t = stream->data;
    const struct transport_events e = t->transport.events;

    if (t->closing || n == 0)
        return;
    if (n > 0) {
        e.arrived(e.context, (size_t)n);
        return;
    }
    uv_read_stop(stream);
    e.broken(e.context,
             n == UV_EOF ? fail(STATUS_PEER_LOST, "the peer closed the connection")
                         : fail(STATUS_PEER_LOST, "the connection broke: %s", uv_strerror((int)n)));
}

static void tcp_start(struct transport *transport)
{
    struct tcp *t = (struct tcp *)transport;

    uv_read_start((uv_stream_t *)&t->handle, on_room, on_read);
}

static void on_written(uv_write_t *request, int error)
{
    struct tcp_write *w = (struct tcp_write *)request;
    struct transport_write *write = w->write;

    free(w);
    write->done(write, error ? fail(STATUS_CANCELLED, "the write failed: %s", uv_strerror(error))
                             : STATUS_OK);
}

static void tcp_write(struct transport *transport, const struct iovec *parts, uint32_t n_parts,
                      struct transport_write *write)
{
    struct tcp *t = (struct tcp *)transport;
    struct tcp_write *w = memory_alloc(1, sizeof *w);
    uv_buf_t bufs[TRANSPORT_MAX_PARTS];

    if (!w || t->closing || n_parts > TRANSPORT_MAX_PARTS) {
        free(w);
        write->done(write, STATUS_CANCELLED);
        return;
    }
    for (uint32_t i = 0; i < n_parts; i++)
        bufs[i] = uv_buf_init(parts[i].iov_base, (unsigned)parts[i].iov_len);
    w->write = write;
    const int error = uv_write(&w->request, (uv_stream_t *)&t->handle, bufs, n_parts, on_written);
    if (error) {
        free(w);
        write->done(write, fail(STATUS_CANCELLED, "the write failed: %s", uv_strerror(error)));
    }
}

static void on_closed(uv_handle_t *handle)
{
    free(handle->data);
}

static void tcp_close(struct transport *transport)
{
    struct tcp *t = (struct tcp *)transport;

    if (t->closing)
        return;
    t->closing = true;
    uv_close((uv_handle_t *)&t->handle, on_closed);
}

static size_t tcp_unsent(const struct transport *transport)
{
    return uv_stream_get_write_queue_size(
        (const uv_stream_t *)&((const struct tcp *)transport)->handle);
}

/* A hint: without it more waits in the kernel. */
static void tcp_limit_unsent(struct transport *transport, uint32_t bytes)
{
    const int value = (int)MIN(bytes, (uint32_t)INT32_MAX);
    uv_os_fd_t fd;

    if (uv_fileno((uv_handle_t *)&((struct tcp *)transport)->handle, &fd) == 0)
        setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &value, sizeof value);
}

static const struct transport_ops tcp_ops = {
    .start = tcp_start,
    .write = tcp_write,
    .close = tcp_close,
    .unsent = tcp_unsent,
    .limit_unsent = tcp_limit_unsent,
};

static enum status tcp_create(struct net_loop *l, struct tcp **out)
{
    struct tcp *t = memory_alloc(1, sizeof *t);

    if (!t)
        return STATUS_NO_MEMORY;
    const int error = uv_tcp_init(net_loop_uv(l), &t->handle);
    if (error) {
        free(t);
        return fail(STATUS_IO, "no socket: %s", uv_strerror(error));
    }
    t->transport.ops = &tcp_ops;
    t->handle.data = t;
    *out = t;
    return STATUS_OK;
}

static void connected_now(struct tcp *t)
{
    struct sockaddr_storage sa;
    int len = sizeof sa;
    char host[INET6_ADDRSTRLEN] = "?";

    uv_tcp_nodelay(&t->handle, 1);
    if (uv_tcp_getpeername(&t->handle, (struct sockaddr *)&sa, &len) == 0) {
        uv_ip_name((struct sockaddr *)&sa, host, sizeof host);
        const uint16_t port =
            ntohs(sa.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&sa)->sin6_port
                                           : ((struct sockaddr_in *)&sa)->sin_port);
        snprintf(t->transport.peer, sizeof t->transport.peer,
                 sa.ss_family == AF_INET6 ? "[%s]:%u" : "%s:%u", host, port);
    }
}

struct transport_dial {
    uv_connect_t request;
    struct tcp *tcp;
    void (*connected)(void *context, struct transport *t, enum status status);
    void *context;
    bool cancelled;
};

static void on_connected(uv_connect_t *request, int error)
{
    struct transport_dial *d = (struct transport_dial *)request;
    struct tcp *t = d->tcp;

    if (d->cancelled) {
        free(d);
        return;
    }
    void (*connected)(void *, struct transport *, enum status) = d->connected;
    void *context = d->context;
    free(d);
    if (error) {
        tcp_close(&t->transport);
        connected(context, NULL, fail(STATUS_PEER_LOST, "%s", uv_strerror(error)));
        return;
    }
    connected_now(t);
    connected(context, &t->transport, STATUS_OK);
}

enum status transport_dial_tcp(struct net_loop *l, const struct net_address *address,
                               void (*connected)(void *context, struct transport *t,
                                                 enum status status),
                               void *context, struct transport_dial **out)
{
    struct transport_dial *d = memory_alloc(1, sizeof *d);

    if (!d)
        return STATUS_NO_MEMORY;
    enum status status = tcp_create(l, &d->tcp);
    if (status != STATUS_OK) {
        free(d);
        return status;
    }
    d->connected = connected;
    d->context = context;
    const int error = uv_tcp_connect(&d->request, &d->tcp->handle,
                                     (const struct sockaddr *)&address->sa, on_connected);
    if (error) {
        tcp_close(&d->tcp->transport);
        free(d);
        return fail(STATUS_PEER_LOST, "%s: %s", address->text, uv_strerror(error));
    }
    *out = d;
    return STATUS_OK;
}

void transport_dial_cancel(struct transport_dial **d)
{
    if (*d) {
        (*d)->cancelled = true; /* freed by on_connected(), which the close brings about */
        tcp_close(&(*d)->tcp->transport);
    }
    *d = NULL;
}

enum status transport_accept_tcp(struct net_loop *l, uv_stream_t *listener, struct transport **out)
{
    struct tcp *t;

    TRY(tcp_create(l, &t));
    const int error = uv_accept(listener, (uv_stream_t *)&t->handle);
    if (error) {
        tcp_close(&t->transport);
        return fail(STATUS_IO, "accept: %s", uv_strerror(error));
    }
    connected_now(t);
    *out = &t->transport;
    return STATUS_OK;
}
