/* Which nodes serve a request. Pure: candidates in, choice out. */
#include "router/router.h"

#include <string.h>

static bool same_cell(const struct candidate *a, const struct candidate *b)
{
    return !memcmp(a->model_digest, b->model_digest, REQUEST_DIGEST_BYTES) &&
           !memcmp(a->numerics_digest, b->numerics_digest, REQUEST_DIGEST_BYTES) &&
           a->max_context_tokens == b->max_context_tokens;
}

static bool could_hold(const struct candidate *c, uint32_t n_tokens)
{
    return !c->draining && n_tokens <= c->max_context_tokens &&
           kv_pages_of_tokens(n_tokens) <= c->n_total_pages;
}

/* A decode node's load: the share of its slots that is spoken for. More than all of them means that
 * it will refuse. */
static double decode_load(const struct candidate *c)
{
    const double slots = c->n_slots ? c->n_slots : 1,
                 n = c->n_assigned > c->n_running ? c->n_assigned : c->n_running;

    return n / slots;
}

static uint32_t order_decode(const struct candidate *prefill, const struct candidate *decode,
                             uint32_t n_decode, const struct wanted *w, uint32_t *order)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < n_decode; i++) {
        const struct candidate *d = &decode[i];
        if (!same_cell(prefill, d) || !could_hold(d, w->n_tokens) || decode_load(d) >= 1 ||
            d->probation || (w->not_decode && !strcmp(d->node_id, w->not_decode)))
            continue;
        uint32_t at = n++;
        for (; at > 0 && decode_load(d) < decode_load(&decode[order[at - 1]]); at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
    /* it must not be offered to one node after another: each would be put at risk */
    return w->suspect && n > 1 ? 1 : n;
}

static bool has_less_to_do(const struct candidate *a, const struct candidate *b,
                           const struct wanted *w)
{
    if (w->suspect && a->n_assigned != b->n_assigned)
        return a->n_assigned < b->n_assigned;
    if (a->n_assigned_tokens != b->n_assigned_tokens)
        return a->n_assigned_tokens < b->n_assigned_tokens;
    return a->n_assigned < b->n_assigned;
}

int choose_nodes(const struct candidate *prefill, uint32_t n_prefill,
                 const struct candidate *decode, uint32_t n_decode, const struct wanted *w,
                 uint32_t *decode_order, uint32_t *n_order)
{
    int best = -1;

    for (uint32_t i = 0; i < n_prefill; i++) {
        const struct candidate *p = &prefill[i];
        if (!could_hold(p, w->n_tokens) || (p->n_slots && p->n_assigned >= 2 * p->n_slots) ||
            p->probation || (w->max_resumed && p->n_resumed >= w->max_resumed))
            continue;
        if (best >= 0 && !has_less_to_do(p, &prefill[best], w))
            continue;
        if (order_decode(p, decode, n_decode, w, decode_order) > 0)
            best = (int)i;
    }
    if (best >= 0)
        *n_order = order_decode(&prefill[best], decode, n_decode, w, decode_order);
    return best;
}
