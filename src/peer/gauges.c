/* What /metrics says of each link. */
#include "peer/internal.h"

#include <stdio.h>

static void sample_link(struct metrics_samples *out, const struct peer_link *l, double value)
{
    char labels[NODE_ID_BYTES + 64];

    snprintf(labels, sizeof labels, "peer=\"%s\",peer_role=\"%s\"", l->theirs.node_id,
             l->theirs.role);
    metrics_sample(out, labels, value);
}

/* Whoever is dialled is there with its address, linked or not; whoever dials, while it is linked.
 */
static void fill_up(const struct metrics_family *f, struct metrics_samples *out)
{
    struct peer_hub *hub = f->context;
    char labels[128 + NODE_ID_BYTES];

    for (struct peer_link *l = peer_hub_next(hub, NULL); l; l = peer_hub_next(hub, l))
        if (!l->dial)
            sample_link(out, l, 1);
    for (const struct dial *d = hub->dials; d; d = d->next) {
        const bool up = d->link && d->link->state == LINK_UP;
        if (!up && *d->reached_id && peer_hub_find(hub, d->reached_id))
            continue; /* by another address */
        snprintf(labels, sizeof labels, "peer=\"%s\",peer_role=\"%s\",address=\"%s\"",
                 up ? d->link->theirs.node_id : d->reached_id, d->expect_role, d->address.text);
        metrics_sample(out, labels, up);
    }
}

#define FILL_LINKS(function, value)                                                                \
    static void function(const struct metrics_family *f, struct metrics_samples *out)              \
    {                                                                                              \
        struct peer_hub *hub = f->context;                                                         \
        for (struct peer_link *l = peer_hub_next(hub, NULL); l; l = peer_hub_next(hub, l))         \
            sample_link(out, l, value);                                                            \
    }
FILL_LINKS(fill_round_trip, l->round_trip_ms * 1e-3)
FILL_LINKS(fill_sent, (double)l->bulk_bytes_sent)
FILL_LINKS(fill_received, (double)l->bulk_bytes_received)
FILL_LINKS(fill_unsent, (double)(transport_unsent(l->control.transport) +
                                 (l->bulk ? transport_unsent(l->bulk) : 0)))

void hub_add_gauges(struct peer_hub *hub)
{
    static const struct metrics_family all[PEER_FAMILIES] = {
        {.name = "peer_link_up",
         .type = "gauge",
         .help = "1: linked; 0: it is dialled.",
         .fill = fill_up},
        {.name = "peer_round_trip_seconds",
         .type = "gauge",
         .help = "Of the last ping.",
         .fill = fill_round_trip},
        {.name = "peer_bulk_sent_bytes",
         .type = "gauge",
         .help = "Bytes of KV frames sent on this link.",
         .fill = fill_sent},
        {.name = "peer_bulk_received_bytes",
         .type = "gauge",
         .help = "Bytes of KV frames received on this link.",
         .fill = fill_received},
        {.name = "peer_unsent_bytes",
         .type = "gauge",
         .help = "Bytes that wait for the kernel to take them.",
         .fill = fill_unsent},
    };

    for (int i = 0; i < PEER_FAMILIES; i++) {
        hub->families[i] = all[i];
        hub->families[i].context = hub;
        metrics_add_family(hub->options.metrics, &hub->families[i]);
    }
    hub->has_families = true;
}

void hub_remove_gauges(struct peer_hub *hub)
{
    for (int i = 0; hub->has_families && i < PEER_FAMILIES; i++)
        metrics_remove_family(hub->options.metrics, &hub->families[i]);
    hub->has_families = false;
}
