/* node: a process with a model. As hybrid it serves whole requests; as prefill or decode node it
 * does its half of them for others. Either way it is a struct service to the api.
 *
 * Threads: the loop's only; the engine has its own. */
#ifndef BATON_NODE_NODE_H
#define BATON_NODE_NODE_H

#include "base/metrics.h"
#include "engine/engine.h"
#include "net/net.h"
#include "peer/peer.h"
#include "request/request.h"

#include <stdint.h>

enum node_role { NODE_HYBRID, NODE_PREFILL, NODE_DECODE };
const char *node_role_name(enum node_role role);

struct node;

struct node_options {
    enum node_role role;
    const char *node_id;
    const char
        *misconfigured; /* NULL, or why it serves as a single node; then role is NODE_HYBRID */
    struct net_loop *loop;
    struct metrics *metrics;
    struct engine_options engine; /* news is set by the node */
    struct wire_hello
        hello; /* digests, geometry and limits; id, epoch and role are set by the node */
    struct peer_limits limits;
    uint32_t version_max;    /* of the protocol between nodes (peer/peer.h) */
    struct tls_context *tls; /* for links; NULL: plain (peer/peer.h) */
    uint32_t lease_ms;
    uint32_t max_waiting; /* requests in the queue; more are refused */
};
enum status node_create(const struct node_options *o, struct node **out) WARN_UNUSED;
/* Ends what is running without a word; turns the loop until nothing of it is under way. */
void node_destroy(struct node **n);

struct service *node_service(struct node *n);
/* NULL for a hybrid: it has no peers. */
struct peer_hub *node_hub(struct node *n);
/* Cancels everything that runs. */
void node_cancel_all(struct node *n);
uint32_t node_n_requests(const struct node *n);

#endif
