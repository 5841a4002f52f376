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
                             uint32_t n_decode, uint32_t n_tokens, uint32_t *order)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < n_decode; i++) {
        if (!same_cell(prefill, &decode[i]) || !could_hold(&decode[i], n_tokens) ||
            decode_load(&decode[i]) >= 1)
            continue;
        uint32_t at = n++;
        for (; at > 0 && decode_load(&decode[i]) < decode_load(&decode[order[at - 1]]); at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
    return n;
}

int choose_nodes(const struct candidate *prefill, uint32_t n_prefill,
                 const struct candidate *decode, uint32_t n_decode, uint32_t n_tokens,
                 uint32_t *decode_order, uint32_t *n_order)
{
    int best = -1;

    for (uint32_t i = 0; i < n_prefill; i++) {
        const struct candidate *p = &prefill[i];
        if (!could_hold(p, n_tokens) || (p->n_slots && p->n_assigned >= 2 * p->n_slots))
            continue;
        if (best >= 0 && (p->n_assigned_tokens > prefill[best].n_assigned_tokens ||
                          (p->n_assigned_tokens == prefill[best].n_assigned_tokens &&
                           p->n_assigned >= prefill[best].n_assigned)))
            continue;
        if (order_decode(p, decode, n_decode, n_tokens, decode_order) > 0)
            best = (int)i;
    }
    if (best >= 0)
        *n_order = order_decode(&prefill[best], decode, n_decode, n_tokens, decode_order);
    return best;
}
