/* Which nodes serve a request. Pure: candidates in, choice out. */
#include "router/router.h"

#include "base/checked.h"

#include <string.h>

/* So many times more must wait at a prefill node than is to be read at a decode node: reading there
 * costs the answers that it writes a little. */
enum { LOCAL_WORTH = 4 };

enum status router_policy_from_name(const char *name, enum router_policy *out)
{
    static const char *const names[] = {"prefix", "least-loaded", "round-robin"};

    for (int i = 0; i < 3; i++)
        if (!strcmp(name, names[i])) {
            *out = (enum router_policy)i;
            return STATUS_OK;
        }
    return fail(STATUS_USAGE, "a policy is prefix, least-loaded or round-robin, not \"%s\"", name);
}

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

bool decode_is_free(const struct candidate *d)
{
    return decode_load(d) < 1 && !d->probation;
}

bool prefill_is_free(const struct candidate *p)
{
    return (!p->n_slots || p->n_assigned < 2 * p->n_slots) && !p->probation;
}

/* Whose turn it is, counted from the one that is next. */
static double turn_of(uint32_t i, uint32_t n, const struct wanted *w)
{
    return (i + n - w->turn % n) % n;
}

/* Less is better. What need not be sent is worth a quarter of the slots at most: pages come fast,
 * while a full node makes everybody wait. */
static double decode_cost(const struct candidate *d, uint32_t i, uint32_t n, const struct wanted *w)
{
    const double shared = w->n_prompt ? (double)d->n_prefix_tokens / w->n_prompt : 0;

    if (w->policy == POLICY_ROUND_ROBIN && !w->suspect)
        return turn_of(i, n, w);
    return decode_load(d) - (w->policy == POLICY_PREFIX && !w->suspect ? 0.25 * shared : 0);
}

static bool is_its_cell(const struct candidate *c, const struct wanted *w)
{
    return !w->cell || same_cell(c, w->cell);
}

static bool decode_can_take(const struct candidate *d, const struct wanted *w)
{
    const uint32_t n_wanted = kv_pages_of_tokens(w->n_reserved),
                   n_shared = MIN(d->n_prefix_tokens / PAGE_TOKENS, n_wanted);

    return could_hold(d, w->n_tokens) && decode_is_free(d) &&
           n_wanted - n_shared <= d->n_free_pages &&
           !(w->not_decode && !strcmp(d->node_id, w->not_decode));
}

static uint32_t order_decode(const struct candidate *prefill, const struct candidate *decode,
                             uint32_t n_decode, const struct wanted *w, uint32_t *order)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < n_decode; i++) {
        const struct candidate *d = &decode[i];
        if (!same_cell(prefill, d) || !decode_can_take(d, w))
            continue;
        uint32_t at = n++;
        for (; at > 0 && decode_cost(d, i, n_decode, w) <
                             decode_cost(&decode[order[at - 1]], order[at - 1], n_decode, w);
             at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
    /* it must not be offered to one node after another: each would be put at risk */
    return w->suspect && n > 1 ? 1 : n;
}

/* Tokens that are computed before this request's first, its own included. */
static uint64_t prefill_cost(const struct candidate *p, const struct wanted *w)
{
    return p->n_assigned_tokens +
           (w->policy == POLICY_PREFIX ? w->n_prompt - p->n_prefix_tokens : 0);
}

static bool is_better(const struct candidate *prefill, uint32_t a, uint32_t b, uint32_t n,
                      const struct wanted *w)
{
    const struct candidate *x = &prefill[a], *y = &prefill[b];

    if (w->suspect && x->n_assigned != y->n_assigned)
        return x->n_assigned < y->n_assigned;
    if (w->policy == POLICY_ROUND_ROBIN && !w->suspect)
        return turn_of(a, n, w) < turn_of(b, n, w);
    if (prefill_cost(x, w) != prefill_cost(y, w))
        return prefill_cost(x, w) < prefill_cost(y, w);
    return x->n_assigned < y->n_assigned;
}

int choose_nodes(const struct candidate *prefill, uint32_t n_prefill,
                 const struct candidate *decode, uint32_t n_decode, const struct wanted *w,
                 uint32_t *decode_order, uint32_t *n_order)
{
    int best = -1;

    for (uint32_t i = 0; i < n_prefill; i++) {
        const struct candidate *p = &prefill[i];
        if (!could_hold(p, w->n_tokens) || !prefill_is_free(p) || !is_its_cell(p, w) ||
            (w->max_resumed && p->n_resumed >= w->max_resumed))
            continue;
        if (best >= 0 && !is_better(prefill, i, (uint32_t)best, n_prefill, w))
            continue;
        if (order_decode(p, decode, n_decode, w, decode_order) > 0)
            best = (int)i;
    }
    if (best >= 0)
        *n_order = order_decode(&prefill[best], decode, n_decode, w, decode_order);
    return best;
}

int choose_local(const struct candidate *prefill, const struct candidate *decode, uint32_t n_decode,
                 const struct wanted *w)
{
    int best = -1;

    if (!w->max_local || w->suspect ||
        (prefill && prefill->n_assigned_tokens < LOCAL_WORTH * w->max_local))
        return -1;
    for (uint32_t i = 0; i < n_decode; i++) {
        const struct candidate *d = &decode[i];
        if (!d->takes_whole || !is_its_cell(d, w) ||
            w->n_known > d->n_prefix_tokens + w->max_local || !decode_can_take(d, w))
            continue;
        if (best < 0 || decode_cost(d, i, n_decode, w) <
                            decode_cost(&decode[best], (uint32_t)best, n_decode, w))
            best = (int)i;
    }
    return best;
}
