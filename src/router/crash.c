/* Requests that nodes crash of: what counts as a crash, and when that is proven. */
#include "router/internal.h"

#include "base/checked.h"

#include <stdio.h>
#include <string.h>

void router_note_death(struct router *r, const struct wire_hello *node, int64_t now_ms)
{
    const uint32_t at = r->n_deaths++ % MAX_DEATHS;

    memcpy(r->deaths[at].node_id, node->node_id, sizeof r->deaths[at].node_id);
    r->deaths[at].epoch = node->epoch;
    r->deaths[at].at_ms = now_ms;
}

void entry_count_crash(struct entry *e, const char *node_id, uint64_t epoch, bool alone,
                       int64_t now_ms)
{
    for (uint32_t i = 0; i < e->n_crashes; i++)
        if (e->crashes[i].epoch == epoch && !strcmp(e->crashes[i].node_id, node_id))
            return;
    if (e->n_crashes == ARRAY_LENGTH(e->crashes))
        return; /* the verdict is being waited for */
    struct crash *c = &e->crashes[e->n_crashes++];
    *c = (struct crash){.epoch = epoch};
    snprintf(c->node_id, sizeof c->node_id, "%s", node_id);
    entry_note(e, entry_place(e), "crash", entry_place(e));
    /* alone, or once too often to be chance */
    if ((alone && e->n_crashes > 1) || e->n_crashes == ARRAY_LENGTH(e->crashes))
        e->verdict_by_ms = now_ms + VERDICT_MS;
}

/* A decode node died while pages were on their way to it. The prefill node, which owns the request,
 * says so as well; which of the two is heard first is chance. */
void entry_count_death_at_import(struct entry *e, const struct wire_hello *node, int64_t now_ms)
{
    for (uint32_t i = 0; i < ARRAY_LENGTH(e->reports); i++) {
        struct report *report = &e->reports[i];
        if (strcmp(report->node_id, node->node_id) || report->epoch != node->epoch ||
            now_ms - report->at_ms >= NOTICE_MS)
            continue;
        *report->node_id = 0;
        entry_count_crash(e, node->node_id, node->epoch, report->alone, now_ms);
        e->now.probation = e->state == ENTRY_ASSIGNED; /* if it is under way again already */
        return;
    }
    if (e->state == ENTRY_ASSIGNED && e->now.owner == OWNER_PREFILL && e->now.opened &&
        !strcmp(e->now.decode_node, node->node_id))
        entry_count_crash(e, node->node_id, node->epoch, e->now.probation, now_ms);
}

void entry_take_report(struct entry *e, const struct assignment *a, const char *node_id,
                       uint64_t epoch, int64_t now_ms)
{
    struct router *r = e->router;
    struct peer_link *link = peer_hub_find(r->hub, node_id);

    if (link && peer_link_hello(link)->epoch == epoch) { /* not dead, or not known to be */
        struct report *report = &e->reports[e->n_reports++ % ARRAY_LENGTH(e->reports)];
        *report = (struct report){.epoch = epoch, .at_ms = now_ms, .alone = a->probation};
        snprintf(report->node_id, sizeof report->node_id, "%s", node_id);
        return;
    }
    for (uint32_t i = 0; i < MIN(r->n_deaths, (uint32_t)MAX_DEATHS); i++)
        if (!strcmp(r->deaths[i].node_id, node_id) && r->deaths[i].epoch == epoch &&
            now_ms - r->deaths[i].at_ms < NOTICE_MS)
            entry_count_crash(e, node_id, epoch, a->probation, now_ms);
}

/* The word that it took the request may come when it is dead already. */
void entry_opened_at_dead(struct entry *e, const struct assignment *a, int64_t now_ms)
{
    struct router *r = e->router;

    if (peer_hub_find(r->hub, a->decode_node))
        return;
    for (uint32_t i = 0; i < MIN(r->n_deaths, (uint32_t)MAX_DEATHS); i++)
        if (!strcmp(r->deaths[i].node_id, a->decode_node) && r->deaths[i].at_ms >= a->begun_ms)
            entry_count_crash(e, a->decode_node, r->deaths[i].epoch, a->probation, now_ms);
}

void entry_node_found(struct entry *e, const struct wire_hello *node)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < e->n_crashes; i++) {
        struct crash *c = &e->crashes[i];
        const bool same = !strcmp(c->node_id, node->node_id);
        c->proven |= same && c->epoch != node->epoch;
        if (!same || c->epoch != node->epoch)
            e->crashes[n++] = *c;
    }
    e->n_crashes = n;
    if (n == 0)
        e->now.probation = false;
    if (n < 2)
        e->verdict_by_ms = 0;
}

static bool has_crash(const struct entry *e, const struct crash *c)
{
    for (uint32_t i = 0; i < e->n_crashes; i++)
        if (e->crashes[i].epoch == c->epoch && !strcmp(e->crashes[i].node_id, c->node_id))
            return true;
    return false;
}

/* A node takes no others beside a suspect, but a prefill node may offer it one that it has itself:
 * who was there each time may have been the cause each time. */
static bool another_explains(const struct entry *e)
{
    for (const struct entry *other = e->router->first; other; other = other->next) {
        uint32_t n = 0;
        while (other != e && n < e->n_crashes && has_crash(other, &e->crashes[n]))
            n++;
        if (n == e->n_crashes)
            return true;
    }
    return false;
}

bool entry_judge(struct entry *e, int64_t now_ms)
{
    struct router *r = e->router;
    char message[200];
    uint32_t n_proven = 0;

    for (uint32_t i = 0; i < e->n_crashes; i++)
        n_proven += e->crashes[i].proven || now_ms >= e->verdict_by_ms;
    if (!e->verdict_by_ms || n_proven < 2)
        return false;
    if (e->n_crashes < ARRAY_LENGTH(e->crashes) && another_explains(e)) {
        e->verdict_by_ms = 0; /* it is tried again, alone */
        return false;
    }
    snprintf(message, sizeof message, "%u nodes crashed while they computed this request, %s last",
             n_proven, e->crashes[e->n_crashes - 1].node_id);
    r->n_poison++;
    metric_add(r->metrics.n_poison, 1);
    entry_cancel_on_nodes(e);
    entry_end(e, STATUS_REQUEST_CRASHED_NODES, FINISH_NONE, message);
    return true;
}
