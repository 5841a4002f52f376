/* What the files of `baton serve` share of a running server. */
#ifndef BATON_CMD_SERVER_H
#define BATON_CMD_SERVER_H

#include "api/api.h"
#include "cmd/cmd.h"
#include "cmd/peers_file.h"
#include "cmd/serve.h"
#include "http/http.h"
#include "node/node.h"
#include "router/router.h"

#include <pthread.h>
#include <string.h>

struct server {
    struct serve_options options;
    const char *program;
    const char *role; /* that it plays: hybrid when misconfigured */
    struct net_loop *loop;
    struct net_listener *http_listener, *serving_listener, *admin_listener;
    struct http_server *http, *admin;
    struct tls_context *https; /* NULL: HTTP is plain */
    struct metrics *metrics;
    struct api *api;
    struct api_options api_options;
    char model_id[256];
    const char *model_ids[64];
    struct loaded loaded;
    uint64_t n_pages; /* of KV; 0 for a router */
    struct node *node;
    struct router *router;
    struct family *family;
    struct peers_watch peers;

    pthread_t loader;
    bool loading;
    struct net_task loaded_task;
    enum status load_status;
    char load_message[512];

    uv_signal_t sigterm, sigint, sighup;
    bool signals_open;
    int signals_seen;
    int exit_code;
    bool draining, service_idle, http_idle;
    struct net_timer drain_timer, quit_timer;
    int64_t start_ms, family_stopped_ms;
};

static inline bool server_is(const struct server *s, const char *role)
{
    return !strcmp(s->role, role);
}

/* serve_end.c: stops the loop, with this exit status unless there is one already. */
void server_quit(struct server *s, int code);
void server_on_signal(uv_signal_t *handle, int number);

/* serve_nodes.c: the node or router that the model is there for, and its links. */
enum status server_start_node(struct server *s) WARN_UNUSED;
enum status server_start_router(struct server *s) WARN_UNUSED;

#endif
