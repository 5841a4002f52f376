/* What the files of `baton serve` share: its options, and the family of --roles. */
#ifndef BATON_CMD_SERVE_H
#define BATON_CMD_SERVE_H

/* Rows of prefill in a step, at most. */
#define SERVE_MAX_CHUNK_TOKENS 512

#include "cmd/flags.h"
#include "net/net.h"
#include "net/tls.h"
#include "request/request.h"
#include "router/router.h"

struct serve_options {
    const char *model;
    int64_t context_tokens, n_slots, n_threads;
    const char *host;
    int64_t port;
    struct flag_strings api_keys, aliases;
    const char *api_key_file, *tls_cert, *tls_key, *admin, *admin_key;
    int64_t key_max_requests, key_max_tokens;
    const char *role, *node_id, *serving_bind, *roles, *policy, *peers_file;
    struct flag_strings prefill_peers, decode_peers;
    const char *cluster_ca, *cluster_cert, *cluster_key, *cluster_dir;
    bool insecure_cluster;
    bool require_role, strict_model, check_config, log_json, help;
    const char *log_level;
    uint64_t kv_bytes;
    int64_t n_predict;
    double temperature, top_p, min_p, repeat_penalty, frequency_penalty, presence_penalty;
    int64_t top_k;
    int64_t drain_timeout_s, max_queue, queue_timeout_s;
    int64_t prefill_chunk, step_ms, dead_ms, stuck_ms, lease_ms;
    int64_t local_prefill, protocol_max;
    /* worked out */
    enum router_policy router_policy;
    bool context_given;
    const char *misconfigured;       /* why a role cannot be played */
    struct tls_context *cluster_tls; /* NULL: links to other nodes are plain */
};

/* Errors: USAGE. Sets defaults, the node's id and what is misconfigured. */
enum status serve_options_parse(int argc, char **argv, struct serve_options *o) WARN_UNUSED;
void serve_options_help(FILE *out);
/* --check-config: prints what would run, or why it would not; the exit status. role: that it would
 * play. */
int serve_check(const struct serve_options *o, const char *role);

/* Certificates for the links to other nodes: completes and loads them, takes the node's id from
 * them where none was given, and insists on them (or on --insecure-cluster) for addresses beyond
 * loopback. Errors: USAGE. */
enum status secure_cluster(struct serve_options *o) WARN_UNUSED;
/* Whether an address may be linked to as things are. Errors: USAGE. */
enum status secure_address(const struct serve_options *o, const struct net_address *address,
                           const char *flag) WARN_UNUSED;
/* The same files again, for the same node; *out NULL without certificates. Errors: USAGE. */
enum status secure_cluster_again(const struct serve_options *o,
                                 struct tls_context **out) WARN_UNUSED;
/* The certificate that clients see; *out NULL without --tls-cert. Errors: USAGE. */
enum status secure_https(const struct serve_options *o, struct tls_context **out) WARN_UNUSED;
/* Warns of certificates that end soon. */
void secure_warn(const struct serve_options *o);

/* --roles NpMd: starts and watches the children; this process is their router. */
struct family;
struct net_loop;
/* How many children NpMd means. Errors: USAGE. */
enum status family_parse(const char *roles, unsigned *n_prefill, unsigned *n_decode) WARN_UNUSED;
/* Binds the children's sockets and starts them. failed() is called when the family cannot be kept
 * up. o gets the peer lists of the router. */
enum status family_start(struct net_loop *loop, const char *program, struct serve_options *o,
                         void (*failed)(void *context), void *context,
                         struct family **out) WARN_UNUSED;
/* SIGTERM to every child; they are not restarted. */
void family_stop(struct family *f);
/* Passes a signal on to every child. */
void family_signal(const struct family *f, int number);
bool family_is_gone(const struct family *f);
void family_destroy(struct family **f);
/* A listening socket that a --roles parent left open for this process; -1: none. what: "http" or
 * "serving". */
int inherited_socket(const char *what);

#endif
