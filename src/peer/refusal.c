/* Who is not let in, and how that is told. */
#include "peer/internal.h"

#include "base/clock.h"
#include "base/log.h"

#include <stdio.h>
#include <string.h>

void hub_count_refusal(struct peer_hub *hub, enum status reason)
{
    char label[64];

    if (reason == STATUS_PEER_LOST)
        return; /* not there, or not there any more: no refusal */
    snprintf(label, sizeof label, "reason=\"%s\"", status_code(reason));
    metric_add(metrics_counter(hub->options.metrics, "peer_refusals_total", label,
                               "Connections that TLS or hello ended, by reason."),
               1);
}

void link_count_refusal(struct peer_link *link, enum status reason)
{
    struct peer_hub *hub = link->hub;
    const int64_t second = clock_now_ms() / 1000;

    metric_add(hub->n_links_refused, 1);
    hub_count_refusal(hub, reason);
    if (second != hub->refusals_second)
        hub->n_refusals_logged = 0;
    hub->refusals_second = second;
    if (++hub->n_refusals_logged <= REFUSALS_LOGGED_A_SECOND)
        log_event(LOG_WARN, "link refused", "peer=%s addr=%s reason=%s error=" LOG_Q,
                  *link->theirs.node_id ? link->theirs.node_id : "unknown", link->address,
                  status_code(reason), log_quote(status_message()));
}

enum status link_check_identity(const struct transport *t, const struct wire_hello *hello)
{
    const struct net_identity *who = t->identity;

    if (!who)
        return STATUS_OK; /* nobody proves anything on this transport */
    if (strcmp(who->node_id, hello->node_id))
        return fail(STATUS_IDENTITY_MISMATCH,
                    "the certificate is for the node %s, the hello says %s", who->node_id,
                    hello->node_id);
    if (strcmp(who->role, hello->role))
        return fail(STATUS_IDENTITY_MISMATCH,
                    "the certificate of %s is for a %s node, the hello says %s", who->node_id,
                    who->role, hello->role);
    return STATUS_OK;
}

/* docs/WIRE.md, 1: routers and clients dial whom they like, prefill nodes dial decode nodes, decode
 * nodes nobody. So a certificate of the one cannot be used to order work in the place of the other.
 */
enum status link_check_direction(const struct wire_hello *ours, const struct wire_hello *theirs)
{
    const bool prefill = !strcmp(theirs->role, "prefill");

    if (!strcmp(theirs->role, "decode") || (prefill && strcmp(ours->role, "decode")))
        return fail(STATUS_CELL_MISMATCH, "%s is a %s node, which does not dial a %s node",
                    theirs->node_id, theirs->role, ours->role);
    return STATUS_OK;
}
