/* Decoding through the engine, as a server does it, to see what the engine costs beside the model.
 */
#include "cmd/bench.h"

#include "base/checked.h"
#include "base/clock.h"
#include "engine/engine.h"

#include <pthread.h>
#include <stdlib.h>

enum { PROMPT_TOKENS = 16, MAX_SEQUENCES = 64 };

struct bell {
    pthread_mutex_t lock;
    pthread_cond_t rung;
    bool news;
};

static void ring(void *context)
{
    struct bell *b = context;

    pthread_mutex_lock(&b->lock);
    b->news = true;
    pthread_cond_signal(&b->rung);
    pthread_mutex_unlock(&b->lock);
}

static void wait_for_news(struct bell *b)
{
    pthread_mutex_lock(&b->lock);
    while (!b->news)
        pthread_cond_wait(&b->rung, &b->lock);
    b->news = false;
    pthread_mutex_unlock(&b->lock);
}

/* The sampling that most clients ask for: temperature, top-k and top-p. */
static struct request *sampled_request(uint32_t n_vocab, uint32_t n, uint32_t seed)
{
    struct request *r = request_create();

    if (!r)
        return NULL;
    r->resume.prompt_ids = arena_alloc(&r->arena, PROMPT_TOKENS, sizeof(uint32_t));
    if (!r->resume.prompt_ids) {
        request_destroy(&r);
        return NULL;
    }
    for (uint32_t i = 0; i < PROMPT_TOKENS; i++)
        r->resume.prompt_ids[i] = (3 + seed * 7919 + i * 613) % n_vocab;
    r->resume.n_prompt = PROMPT_TOKENS;
    r->resume.n_logprobs = r->resume.n_prompt_logprobs = -1;
    r->resume.max_tokens = n;
    r->resume.ignore_eos = true;
    r->resume.seed = seed;
    r->resume.sampling =
        (struct sampling){.temperature = 0.8, .top_k = 40, .top_p = 0.95, .repetition_penalty = 1};
    return r;
}

static enum status run(struct engine *e, struct bell *bell, uint32_t n_vocab, uint32_t n,
                       uint32_t n_sequences, double *speed, double *own_share)
{
    struct sequence *sequences[MAX_SEQUENCES];
    struct engine_stats before, after;
    enum status status = STATUS_OK;
    uint32_t n_made = 0, n_ended = 0, n_waited = 0;
    int64_t start_ns = 0;

    for (; n_made < n_sequences && status == STATUS_OK; n_made++) {
        struct request *r = sampled_request(n_vocab, n, n_made + 1);
        status = r ? sequence_create(e, r, SEQUENCE_WHOLE, &sequences[n_made]) : STATUS_NO_MEMORY;
        if (status != STATUS_OK) {
            request_destroy(&r);
            break;
        }
        engine_submit(e, sequences[n_made]);
    }
    engine_get_stats(e, &before);
    while (n_ended < n_made) {
        struct sequence *s;
        wait_for_news(bell);
        while ((s = engine_next_news(e))) {
            struct sequence_view v;
            sequence_get_view(s, &v);
            /* what was prefilled is over when each has its first token */
            if (!sequence_owner(s) && v.n_generated) {
                sequence_set_owner(s, s);
                if (++n_waited == n_made) {
                    engine_get_stats(e, &before);
                    start_ns = clock_now_ns();
                }
            }
            if (v.ended && status == STATUS_OK && v.status != STATUS_OK)
                status = fail(v.status, "%s", v.message);
            n_ended += v.ended;
        }
    }
    const double seconds = (double)(clock_now_ns() - start_ns) * 1e-9;
    engine_get_stats(e, &after);
    for (uint32_t i = 0; i < n_made; i++)
        sequence_destroy(&sequences[i]);
    const double own = (double)(int64_t)(after.own_ns - before.own_ns),
                 model = (double)(after.model_ns - before.model_ns);
    *speed = (double)(after.n_tokens_sampled - before.n_tokens_sampled) / seconds;
    *own_share = own + model > 0 ? own / (own + model) : 0;
    return status;
}

enum status bench_engine(const struct loaded *l, uint32_t n, uint32_t n_sequences, double *speed,
                         double *own_share)
{
    struct bell bell = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false};
    const uint32_t n_pages = kv_pages_of_tokens(PROMPT_TOKENS + n + 1);
    const struct engine_options o = {
        .model = l->model,
        .compute = l->compute,
        .vocabulary = l->vocabulary,
        .n_slots = n_sequences,
        .n_pages = (n_pages + 1) * n_sequences,
        .max_context_tokens = n_pages * PAGE_TOKENS,
        .max_chunk_tokens = 512,
        .target_step_ms = 100,
        .names = {.kv_type = KV_TYPE_F16},
        .news = ring,
        .news_context = &bell,
    };
    struct engine *e = NULL;

    TRY(engine_create(&o, &e));
    const enum status status = run(e, &bell, l->limits.n_vocab, n, n_sequences, speed, own_share);
    engine_destroy(&e);
    return status;
}
