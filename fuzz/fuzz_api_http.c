/* Bytes of a connection, through a real socket, into the server: it answers, refuses or waits, and
 * forgets the connection once the client is gone. The first byte says where the bytes are cut in
 * two. */
#include "api/api.h"

#include "base/log.h"

#include "../tests/unit/api/fake_text.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct net_loop *loop;
static struct net_listener *listener;
static struct http_server *server;
static struct api *api;

static void echo(void *context, struct http_exchange *x)
{
    const struct buffer *body = http_exchange_body(x);

    http_exchange_respond(x, 200, "text/plain", body->data, body->len);
}

static const struct http_route routes[] = {
    {HTTP_METHOD_GET | HTTP_METHOD_POST | HTTP_METHOD_PUT, "/*", echo},
};

static void start(void)
{
    static const char *const model_ids[] = {"tiny"};
    struct log_options quiet = {.level = LOG_ERROR};
    struct http_limits limits = http_limits_default;
    struct api_options options;
    struct net_address a;

    log_setup(&quiet);
    api_options_init(&options);
    options.model_ids = model_ids;
    options.n_model_ids = 1;
    limits.max_body_bytes = 4096;
    limits.max_header_bytes = 2048;
    if (net_loop_create(&loop) != STATUS_OK ||
        net_address_parse("127.0.0.1:0", "--port", &a) != STATUS_OK ||
        net_listen(loop, &a, "--port", &listener) != STATUS_OK ||
        http_server_create(loop, &limits, &server) != STATUS_OK ||
        api_create(loop, &options, metrics_create(""), &api) != STATUS_OK)
        abort();
    api_attach_http(api, server);
    if (getenv("FUZZ_API_ROUTES") == NULL)
        http_server_routes(server, routes, 1, NULL);
    http_server_attach(server, listener);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct linger reset = {.l_onoff = 1};
    size_t cut;
    int fd;

    if (loop == NULL)
        start();
    if (size < 2)
        return 0;
    cut = data[0] % size;
    data++;
    size--;
    if (cut > size)
        cut = size;
    fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&net_listener_address(listener)->sa,
                          sizeof(struct sockaddr_in)) != 0)
        abort();
    if (send(fd, data, cut, MSG_NOSIGNAL) >= 0)
        for (int i = 0; i < 2; i++)
            net_loop_turn(loop);
    if (send(fd, data + cut, size - cut, MSG_NOSIGNAL) >= 0)
        for (int i = 0; i < 2; i++)
            net_loop_turn(loop);
    /* A reset, so that ports are not used up by connections that wait for their end. */
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    close(fd);
    for (int i = 0; http_server_n_connections(server) > 0; i++) {
        net_loop_turn(loop);
        if (i > 1000)
            abort();
    }
    if (http_server_n_exchanges(server) != 0)
        abort();
    return 0;
}
