/* What faults cost: attempts made again by node, how long clients waited for the next token, tokens
 * computed twice. */
#include "router/internal.h"

#include "base/checked.h"

#include <stdio.h>
#include <string.h>

static struct tally *tally_of(struct router *r, const char *node_id, int64_t now_ms)
{
    struct tally *oldest = &r->tallies[0];

    for (uint32_t i = 0; i < ARRAY_LENGTH(r->tallies); i++) {
        struct tally *t = &r->tallies[i];
        if (!strcmp(t->node_id, node_id)) {
            t->used_ms = now_ms;
            return t;
        }
        if (t->used_ms < oldest->used_ms)
            oldest = t;
    }
    *oldest = (struct tally){.used_ms = now_ms};
    snprintf(oldest->node_id, sizeof oldest->node_id, "%s", node_id);
    return oldest;
}

struct tally costs_of(const struct router *r, const char *node_id)
{
    for (uint32_t i = 0; i < ARRAY_LENGTH(r->tallies); i++)
        if (!strcmp(r->tallies[i].node_id, node_id))
            return r->tallies[i];
    return (struct tally){0};
}

/* A prefill node that is still there reports what its decode node did. */
static const char *cause_of(const struct entry *e, enum status reason)
{
    const struct assignment *a = &e->now;

    if (a->owner == OWNER_PREFILL && reason != STATUS_QUEUE_FULL && reason != STATUS_DRAINING &&
        peer_hub_find(e->router->hub, a->prefill_node))
        return a->decode_node;
    return assignment_owner(a);
}

void costs_retry(struct entry *e, enum status reason, bool full, int64_t now_ms)
{
    const char *cause = cause_of(e, reason);

    if (*cause) {
        struct tally *t = tally_of(e->router, cause, now_ms);
        t->n_failovers += !full;
        t->n_refusals += full;
    }
    if (full)
        return;
    if (!e->interrupted_ms) {
        e->interrupted_ms = now_ms;
        e->interrupted_by = reason;
    }
}

void costs_progress(struct entry *e, int64_t now_ms)
{
    char label[64];

    if (!e->interrupted_ms)
        return;
    snprintf(label, sizeof label, "reason=\"%s\"", status_code(e->interrupted_by));
    metric_observe(metrics_histogram(e->router->options.metrics, "router_recovery_seconds", label,
                                     "From a fault to the request's next token.",
                                     metrics_latency_bounds, metrics_n_latency_bounds),
                   (double)(now_ms - e->interrupted_ms) * 1e-3);
    e->interrupted_ms = 0;
}

void costs_resend(struct entry *e)
{
    if (entry_is_resumed(e))
        metric_add(e->router->metrics.n_recomputed, e->request->resume.n_prompt + e->n_ids);
}
