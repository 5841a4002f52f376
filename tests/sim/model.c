/* model.h as arithmetic on the pages themselves: what a row leaves in its page depends on its id,
 * on the row before it and on another row somewhere in the sequence, read from where the engine
 * says they are. So a page that was lost, mixed up or given away too early changes the answer, and
 * the answer alone tells. */
#include "sim.h"

#include "base/checked.h"
#include "engine/internal.h"

#include <stdlib.h>
#include <string.h>

static struct {
    const struct vocabulary *vocabulary;
    uint32_t n_vocab;
    struct sampler sampler;
} m;

/* K holds half of it, V the other: two lanes of two f16 each. */
struct state {
    uint32_t k, v;
};

static uint32_t scramble(uint32_t a, uint32_t b)
{
    uint64_t z = ((uint64_t)a << 32 | b) * 0x9E3779B97F4A7C15u;

    z = (z ^ (z >> 29)) * 0xBF58476D1CE4E5B9u;
    return (uint32_t)(z >> 32);
}

/* The position that a row looks at, beside the one before it. */
static uint32_t looks_at(uint32_t layer, uint32_t position)
{
    return scramble(layer + 77, position) % position;
}

static struct state step(uint32_t layer, uint32_t position, uint32_t below, struct state before,
                         struct state other)
{
    uint32_t h = scramble(below, layer);

    if (position)
        h = scramble(scramble(scramble(h, before.k), before.v), scramble(other.k, other.v));
    return (struct state){.k = h, .v = scramble(h, 0x5a5a)};
}

/* A few likely ids, the rest flat; the answer's end now and then. */
static void logits_of(struct state s, float *out)
{
    memset(out, 0, m.n_vocab * sizeof *out);
    for (uint32_t i = 0; i < 6; i++)
        out[scramble(s.k, i) % 256] = 6.0f + (float)(scramble(s.v, i) % 1024) / 256;
    if (s.v % 61 == 0)
        out[(uint32_t)vocabulary_eos(m.vocabulary)] = 12;
}

static uint16_t *lanes(const struct kv_view *kv, const struct page_table_view *t, uint32_t layer,
                       uint32_t position)
{
    uint16_t *slab = kv_slab_address(kv, t->pages[position / PAGE_TOKENS], layer);

    return slab + position % PAGE_TOKENS;
}

/* K is [head_dim 2][32], V [32][2]. */
static struct state load_state(const struct kv_view *kv, const struct page_table_view *t,
                               uint32_t layer, uint32_t position)
{
    const uint16_t *k = lanes(kv, t, layer, position), *slab = k - position % PAGE_TOKENS,
                   *v = slab + 2 * PAGE_TOKENS + 2 * (position % PAGE_TOKENS);

    return (struct state){.k = k[0] | (uint32_t)k[PAGE_TOKENS] << 16,
                          .v = v[0] | (uint32_t)v[1] << 16};
}

static void store_state(const struct kv_view *kv, const struct page_table_view *t, uint32_t layer,
                        uint32_t position, struct state s)
{
    uint16_t *k = lanes(kv, t, layer, position), *slab = k - position % PAGE_TOKENS,
             *v = slab + 2 * PAGE_TOKENS + 2 * (position % PAGE_TOKENS);

    k[0] = (uint16_t)s.k;
    k[PAGE_TOKENS] = (uint16_t)(s.k >> 16);
    v[0] = (uint16_t)s.v;
    v[1] = (uint16_t)(s.v >> 16);
}

void model_get_limits(const struct model *model, struct model_limits *out)
{
    *out = (struct model_limits){.n_layers = SIM_LAYERS,
                                 .n_vocab = m.n_vocab,
                                 .trained_context_tokens = cluster.context_tokens,
                                 .kv = {.n_layers = SIM_LAYERS, .n_kv_heads = 1, .head_dim = 2}};
}

const uint8_t *model_bad_rows(const struct model *model)
{
    return model->bad;
}

/* Whose first id was poison: that row's state says so. */
static bool is_poison(const struct model_batch *b, uint32_t row)
{
    const struct state nothing = {0};
    const struct page_table_view *t = &b->page_tables[b->tables[row]];

    if (b->positions[row] == 0)
        return b->ids[row] == POISON_ID;
    return load_state(b->kv, t, 0, 0).k == step(0, 0, POISON_ID, nothing, nothing).k;
}

static void look_for_poison(struct model *model, const struct model_batch *b)
{
    for (uint32_t row = 0, n; row < b->n_rows; row += n) {
        n = 1;
        while (row + n < b->n_rows && b->tables[row + n] == b->tables[row])
            n++;
        if (is_poison(b, row))
            clients_note_poison(model->process, b->positions[row], n == 1 && b->positions[row]);
    }
}

enum status model_forward(struct model *model, const struct model_batch *b, uint32_t *out_bad_row)
{
    struct state *top = calloc(b->n_rows, sizeof *top);

    if (model->stuck_until_ns > world.now_ns)
        fiber_sleep(model->stuck_until_ns - world.now_ns);
    look_for_poison(model, b);
    for (uint32_t layer = 0; layer < SIM_LAYERS; layer++) {
        fiber_sleep(model->layer_ns + b->n_rows * model->row_ns);
        for (uint32_t row = 0; row < b->n_rows; row++) {
            const struct page_table_view *t = &b->page_tables[b->tables[row]];
            const uint32_t at = b->positions[row];
            struct state before = {0}, other = {0};
            if (at) {
                before = load_state(b->kv, t, layer, at - 1);
                other = load_state(b->kv, t, layer, looks_at(layer, at));
            }
            top[row] = step(layer, at, layer ? top[row].k : b->ids[row], before, other);
            store_state(b->kv, t, layer, at, top[row]);
        }
        model->progress++;
        if (b->layer_done)
            b->layer_done(b->context, layer);
    }
    for (uint32_t i = 0; i < b->n_logit_rows; i++)
        logits_of(top[b->logit_rows[i]], b->logits + (size_t)i * m.n_vocab);
    free(top);
    return STATUS_OK;
}

/* All processes have one compute here. */
uint64_t __wrap_compute_progress(const struct compute *c);
uint64_t __wrap_compute_progress(const struct compute *c)
{
    return world.current ? world.current->model.progress : 0;
}

/* ---- the oracle ---- */

struct history {
    struct state *layers[SIM_LAYERS];
    uint32_t n;
};

static struct state advance(struct history *h, uint32_t id)
{
    struct state s = {0};

    for (uint32_t layer = 0; layer < SIM_LAYERS; layer++) {
        struct state before = {0}, other = {0};
        if (h->n) {
            before = h->layers[layer][h->n - 1];
            other = h->layers[layer][looks_at(layer, h->n)];
        }
        s = step(layer, h->n, layer ? s.k : id, before, other);
        h->layers[layer][h->n] = s;
    }
    h->n++;
    return s;
}

static float logprob_of(const float *logits, uint32_t id)
{
    float value = 0;
    uint32_t tops[REQUEST_MAX_LOGPROBS];
    float values[REQUEST_MAX_LOGPROBS];
    struct row_store rows = {.value = &value, .top_ids = tops, .top_values = values};

    if (sampler_logprobs(&m.sampler, logits, id, &rows, 0) != STATUS_OK)
        world_fail("the oracle has no log-probability: %s", status_message());
    return value;
}

void oracle_answer(const struct resume *r, uint32_t context_tokens, struct oracle *out)
{
    struct history h = {0};
    struct text_stream *stream = NULL;
    uint32_t *seen = calloc(m.n_vocab, sizeof *seen), *counts = calloc(m.n_vocab, sizeof *counts);
    float *logits = calloc(m.n_vocab, sizeof *logits);
    struct state s = {0};

    *out = (struct oracle){0};
    out->ids = calloc(r->max_tokens, sizeof *out->ids);
    out->values = calloc(r->max_tokens, sizeof *out->values);
    out->prompt_values = calloc(r->n_prompt + 1, sizeof *out->prompt_values);
    for (uint32_t i = 0; i < SIM_LAYERS; i++)
        h.layers[i] = calloc(r->n_prompt + r->max_tokens + 1, sizeof *h.layers[i]);
    if (text_stream_create(m.vocabulary, r, context_tokens, &stream) != STATUS_OK)
        world_fail("no stream for the oracle: %s", status_message());
    for (uint32_t i = 0; i < r->n_prompt; i++) {
        if (i && r->n_prompt_logprobs >= 0) {
            logits_of(s, logits);
            out->prompt_values[i] = logprob_of(logits, r->prompt_ids[i]);
        }
        s = advance(&h, r->prompt_ids[i]);
        seen[r->prompt_ids[i]]++;
    }
    while (out->finish == FINISH_NONE && !world.failed) {
        struct text_released released;
        uint32_t id = 0;
        logits_of(s, logits);
        if (sampler_draw(&m.sampler, logits, r, r->seed, out->n, seen, counts, &id) != STATUS_OK)
            world_fail("the oracle cannot draw: %s", status_message());
        if (r->n_logprobs >= 0)
            out->values[out->n] = logprob_of(logits, id);
        out->ids[out->n++] = id;
        counts[id]++;
        if (text_stream_feed(stream, id, &released) != STATUS_OK)
            world_fail("the oracle's text ends badly: %s", status_message());
        out->finish = released.finish;
        s = advance(&h, id);
    }
    text_stream_destroy(&stream);
    for (uint32_t i = 0; i < SIM_LAYERS; i++)
        free(h.layers[i]);
    free(seen);
    free(counts);
    free(logits);
}

void oracle_free(struct oracle *o)
{
    free(o->ids);
    free(o->values);
    free(o->prompt_values);
    *o = (struct oracle){0};
}

void model_begin(const struct vocabulary *vocabulary, struct compute *compute)
{
    m.vocabulary = vocabulary;
    m.n_vocab = vocabulary_view(vocabulary)->n_tokens;
    if (sampler_init(&m.sampler, compute, m.n_vocab) != STATUS_OK)
        abort();
}

void model_end(void)
{
    sampler_deinit(&m.sampler);
}
