/* The laws of the engine: what comes out of a sequence depends on nothing but the sequence. */
#include "unit/support/tiny_engine.h"

struct waiter {
    pthread_mutex_t lock;
    pthread_cond_t there;
    bool news;
};

static void on_news(void *context)
{
    struct waiter *w = context;

    pthread_mutex_lock(&w->lock);
    w->news = true;
    pthread_cond_signal(&w->there);
    pthread_mutex_unlock(&w->lock);
}

struct bench {
    struct tiny_world world;
    struct waiter waiter;
    struct engine *engine;
};

static void open_engine(struct bench *b, uint32_t n_pages, uint32_t chunk)
{
    struct engine_options o = tiny_engine_options(&b->world, n_pages, chunk);

    o.news = on_news;
    o.news_context = &b->waiter;
    assert_int_equal(engine_create(&o, &b->engine), STATUS_OK);
}

static void wait_news(struct bench *b)
{
    struct timespec until;

    pthread_mutex_lock(&b->waiter.lock);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 2000000; /* what is awaited may have been told already */
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    while (!b->waiter.news)
        if (pthread_cond_timedwait(&b->waiter.there, &b->waiter.lock, &until))
            break;
    b->waiter.news = false;
    pthread_mutex_unlock(&b->waiter.lock);
    while (engine_next_news(b->engine))
        ;
}

#define WAIT_FOR(b, s, v, condition)                                                               \
    do {                                                                                           \
        const int64_t end_ms = clock_now_ms() + 60000;                                             \
        for (sequence_get_view((s), &(v)); !(condition); sequence_get_view((s), &(v))) {           \
            assert_true(clock_now_ms() < end_ms);                                                  \
            wait_news(b);                                                                          \
        }                                                                                          \
    } while (0)

static struct sequence *start(struct bench *b, struct request *r, enum sequence_purpose purpose)
{
    struct sequence *s = NULL;

    assert_int_equal(sequence_create(b->engine, r, purpose, &s), STATUS_OK);
    engine_submit(b->engine, s);
    return s;
}

struct answer {
    uint32_t n, ids[256];
    float logprobs[256];
};

static void take(struct bench *b, struct sequence **s, struct answer *out)
{
    struct sequence_view v;

    WAIT_FOR(b, *s, v, v.ended);
    assert_int_equal(v.status, STATUS_OK);
    memset(out, 0, sizeof *out);
    out->n = v.n_generated;
    assert_true(out->n <= 256);
    memcpy(out->ids, v.generated, out->n * sizeof *out->ids);
    if (v.generated_rows.value)
        memcpy(out->logprobs, v.generated_rows.value, out->n * sizeof *out->logprobs);
    sequence_destroy(s);
}

enum { N_CASES = 8 };

static struct request *case_request(uint32_t i)
{
    static const uint32_t lengths[N_CASES] = {1, 5, 31, 32, 33, 64, 100, 150};
    struct request *r = tiny_request(lengths[i], i + 1, 40 + i, i % 2 ? 0.9 : 0);

    r->resume.n_logprobs = 3;
    if (i % 3 == 0) {
        r->resume.sampling.repetition_penalty = 1.2f;
        r->resume.sampling.presence_penalty = 0.3f;
    }
    if (i % 4 == 1) {
        r->resume.sampling.top_k = 20;
        r->resume.sampling.top_p = 0.9;
        r->resume.sampling.min_p = 0.01;
    }
    return r;
}

static struct answer expected[N_CASES];

static void pages_back(struct bench *b)
{
    struct engine_stats s;
    const int64_t end_ms = clock_now_ms() + 5000;

    do
        engine_get_stats(b->engine, &s);
    while (s.pages.n_held && clock_now_ms() < end_ms);
    assert_int_equal(s.pages.n_held, 0);
    assert_int_equal(s.pages.n_free + s.pages.n_cached, s.pages.n_total);
}

static void close_engine(struct bench *b)
{
    pages_back(b);
    engine_destroy(&b->engine);
}

static int setup(void **state)
{
    static struct bench b = {
        .waiter = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false}};

    tiny_world_open(&b.world, 2);
    open_engine(&b, 64, TINY_CHUNK);
    for (uint32_t i = 0; i < N_CASES; i++) {
        struct sequence *s = start(&b, case_request(i), SEQUENCE_WHOLE);
        take(&b, &s, &expected[i]);
        assert_int_equal(expected[i].n, 40 + i);
    }
    close_engine(&b);
    *state = &b;
    return 0;
}

static int teardown(void **state)
{
    struct bench *b = *state;

    tiny_world_close(&b->world);
    return 0;
}

static void check_all_together(struct bench *b)
{
    struct sequence *s[N_CASES];
    struct answer got;

    for (uint32_t i = 0; i < N_CASES; i++)
        s[i] = start(b, case_request(i), SEQUENCE_WHOLE);
    for (uint32_t i = 0; i < N_CASES; i++) {
        take(b, &s[i], &got);
        assert_memory_equal(&got, &expected[i], sizeof got);
    }
}

static void test_batched_is_alone(void **state)
{
    struct bench *b = *state;

    open_engine(b, 128, TINY_CHUNK);
    check_all_together(b);
    check_all_together(b); /* now from the prefix cache */
    struct engine_stats stats;
    engine_get_stats(b->engine, &stats);
    assert_true(stats.n_prefix_hits > 0);
    close_engine(b);
}

static void test_chunks(void **state)
{
    struct bench *b = *state;
    static const uint32_t chunks[] = {1, 7, 33};

    for (size_t i = 0; i < 3; i++) {
        open_engine(b, 128, chunks[i]);
        check_all_together(b);
        close_engine(b);
    }
}

/* Just enough for the largest request: the others are pre-empted again and again. */
static void test_preempted_is_undisturbed(void **state)
{
    struct bench *b = *state;
    struct engine_stats stats;

    open_engine(b, 16, TINY_CHUNK);
    check_all_together(b);
    engine_get_stats(b->engine, &stats);
    assert_true(stats.n_preemptions > 0);
    close_engine(b);
}

/* Whoever's window is used up holds no page, and goes on as if nothing had happened once it is
 * wider. */
static void test_parked_is_undisturbed(void **state)
{
    struct bench *b = *state;
    struct sequence *s[N_CASES];
    struct sequence_view v;
    struct engine_stats stats;
    struct answer got;

    open_engine(b, 64, TINY_CHUNK);
    for (uint32_t i = 0; i < N_CASES; i++) {
        assert_int_equal(sequence_create(b->engine, case_request(i), SEQUENCE_WHOLE, &s[i]),
                         STATUS_OK);
        engine_set_window(b->engine, s[i], 1 + 5 * i);
        engine_submit(b->engine, s[i]);
    }
    for (uint32_t window = 1; window < 60; window += 13) {
        for (uint32_t i = 0; i < N_CASES; i++) {
            const uint32_t now = MAX(window, 1 + 5 * i);
            WAIT_FOR(b, s[i], v, v.ended || v.n_generated >= now);
            assert_true(v.ended || v.n_generated == now);
        }
        do { /* the last ones are parked in the next step's plan */
            engine_get_stats(b->engine, &stats);
        } while (stats.n_running || stats.n_waiting);
        assert_int_equal(stats.pages.n_held, 0);
        for (uint32_t i = 0; i < N_CASES; i++)
            engine_set_window(b->engine, s[i], window + 13);
    }
    assert_true(stats.n_parkings >= N_CASES);
    engine_set_window(b->engine, s[0], UINT32_MAX);
    for (uint32_t i = 0; i < N_CASES; i++) {
        engine_set_window(b->engine, s[i], 1000);
        take(b, &s[i], &got);
        assert_memory_equal(&got, &expected[i], sizeof got);
    }
    close_engine(b);
}

/* One that is parked can be cancelled, and has a deadline. */
static void test_parked_ends(void **state)
{
    struct bench *b = *state;

    open_engine(b, 64, TINY_CHUNK);
    for (int how = 0; how < 2; how++) {
        struct request *r = case_request(3);
        struct sequence *s;
        struct sequence_view v;
        r->resume.deadline_ms = how ? 300 : 0;
        assert_int_equal(sequence_create(b->engine, r, SEQUENCE_WHOLE, &s), STATUS_OK);
        engine_set_window(b->engine, s, 2);
        engine_submit(b->engine, s);
        WAIT_FOR(b, s, v, v.n_generated == 2);
        if (!how)
            engine_cancel(b->engine, s);
        WAIT_FOR(b, s, v, v.ended);
        assert_int_equal(v.status, how ? STATUS_DEADLINE : STATUS_CANCELLED);
        assert_int_equal(v.n_generated, 2);
        sequence_destroy(&s);
    }
    close_engine(b);
}

/* A sequence resumed from any of its tokens goes on as if nothing had happened. */
static void test_resumed_is_undisturbed(void **state)
{
    struct bench *b = *state;
    static const uint32_t at[] = {1, 2, 17, 39};

    open_engine(b, 64, TINY_CHUNK);
    for (uint32_t i = 0; i < N_CASES; i++)
        for (size_t k = 0; k < 4; k++) {
            struct request *r = case_request(i);
            struct answer got;
            r->resume.generated_ids =
                arena_memdup(&r->arena, expected[i].ids, at[k], sizeof(uint32_t));
            r->resume.n_generated = at[k];
            struct sequence *s = start(b, r, SEQUENCE_WHOLE);
            take(b, &s, &got);
            assert_memory_equal(got.ids, expected[i].ids, sizeof got.ids);
            assert_memory_equal(got.logprobs + at[k], expected[i].logprobs + at[k],
                                (got.n - at[k]) * sizeof(float));
        }
    close_engine(b);
}

static void copy_slabs(struct engine *from, const kv_page_t *from_pages, struct engine *to,
                       const kv_page_t *to_pages, uint32_t n)
{
    const struct kv_view a = engine_kv_view(from), b = engine_kv_view(to);

    for (uint32_t layer = 0; layer < a.geometry.n_layers; layer++)
        for (uint32_t p = 0; p < n; p++)
            memcpy(kv_slab_address(&b, to_pages[p], layer),
                   kv_slab_address(&a, from_pages[p], layer), kv_slab_bytes(a.geometry));
}

/* Prefilled in one engine, its pages carried to another, decoded there. */
static void test_split_is_whole(void **state)
{
    struct bench *b = *state;
    struct engine *decode;

    open_engine(b, 64, TINY_CHUNK);
    struct engine *prefill = b->engine;
    open_engine(b, 64, TINY_CHUNK);
    decode = b->engine;
    for (uint32_t i = 0; i < N_CASES; i++) {
        struct sequence_view v, w;
        struct answer got;
        b->engine = prefill;
        struct sequence *p = start(b, case_request(i), SEQUENCE_PREFILL);
        WAIT_FOR(b, p, v, v.prefilled);
        for (uint32_t layer = 0; layer < 3; layer++)
            assert_int_equal(sequence_layer_tokens(p, layer), v.n_prefix);
        b->engine = decode;
        struct sequence *d = start(b, case_request(i), SEQUENCE_IMPORT);
        WAIT_FOR(b, d, w, w.ready);
        assert_int_equal(w.n_held_pages, 0);
        copy_slabs(prefill, v.pages, decode, w.pages, kv_pages_of_tokens(v.n_prefix));
        const struct logprob_rows row = v.generated_rows;
        engine_commit(decode, d, v.generated[0], &row);
        take(b, &d, &got);
        assert_memory_equal(&got, &expected[i], sizeof got);
        b->engine = prefill;
        engine_finish(prefill, p);
        WAIT_FOR(b, p, v, v.ended);
        sequence_destroy(&p);
    }
    close_engine(b);
    b->engine = decode;
    close_engine(b);
}

/* prefill(prompt + generated) leaves the KV bytes of stepwise decode. */
static void test_kv_bytes(void **state)
{
    struct bench *b = *state;
    struct sequence_view v, w;
    uint32_t ids[TINY_CONTEXT];

    open_engine(b, 64, TINY_CHUNK);
    /* stepwise: an imported sequence that decodes 60 tokens, stopped with its pages still held */
    struct request *r = case_request(6);
    const uint32_t n_prompt = r->resume.n_prompt;
    memcpy(ids, r->resume.prompt_ids, n_prompt * sizeof *ids);
    struct sequence *whole = start(b, r, SEQUENCE_WHOLE);
    struct answer got;
    take(b, &whole, &got);
    memcpy(ids + n_prompt, got.ids, got.n * sizeof *ids);
    const uint32_t n = n_prompt + got.n - 1,
                   n_full = n / PAGE_TOKENS; /* pages that the stepwise run filled, now cached */
    struct request *again = tiny_request(n_full * PAGE_TOKENS + 1, 1, 2, 0);
    memcpy(again->resume.prompt_ids, ids, (n_full * PAGE_TOKENS + 1) * sizeof *ids);
    struct sequence *cached = start(b, again, SEQUENCE_PREFILL);
    WAIT_FOR(b, cached, v, v.prefilled);
    assert_int_equal(v.n_cached_tokens, n_full * PAGE_TOKENS);
    /* whole: the same ids as one prompt in an engine that has no cache */
    struct engine *stepwise = b->engine;
    open_engine(b, 64, TINY_CHUNK);
    struct request *cold = tiny_request(n_full * PAGE_TOKENS + 1, 1, 2, 0);
    memcpy(cold->resume.prompt_ids, ids, (n_full * PAGE_TOKENS + 1) * sizeof *ids);
    struct sequence *prefilled = start(b, cold, SEQUENCE_PREFILL);
    WAIT_FOR(b, prefilled, w, w.prefilled);
    assert_int_equal(w.n_cached_tokens, 0);
    const struct kv_view x = engine_kv_view(stepwise), y = engine_kv_view(b->engine);
    for (uint32_t layer = 0; layer < 3; layer++)
        for (uint32_t p = 0; p < n_full; p++)
            assert_memory_equal(kv_slab_address(&x, v.pages[p], layer),
                                kv_slab_address(&y, w.pages[p], layer), kv_slab_bytes(x.geometry));
    engine_finish(b->engine, prefilled);
    WAIT_FOR(b, prefilled, w, w.ended);
    sequence_destroy(&prefilled);
    close_engine(b);
    b->engine = stepwise;
    engine_finish(stepwise, cached);
    WAIT_FOR(b, cached, v, v.ended);
    sequence_destroy(&cached);
    close_engine(b);
}

static void test_prompt_rows(void **state)
{
    struct bench *b = *state;
    struct sequence_view v;
    float first[160];

    for (uint32_t chunk = 1; chunk <= TINY_CHUNK; chunk += 21) {
        open_engine(b, 64, chunk);
        for (int round = 0; round < 2; round++) { /* the cache is filled but not read */
            struct request *r = case_request(7);
            r->resume.n_prompt_logprobs = 2;
            struct sequence *s = start(b, r, SEQUENCE_WHOLE);
            WAIT_FOR(b, s, v, v.ended);
            assert_int_equal(v.n_prompt_rows, 149);
            if (chunk == 1 && round == 0)
                memcpy(first, v.prompt_rows.value, 149 * sizeof *first);
            assert_memory_equal(first, v.prompt_rows.value, 149 * sizeof *first);
            for (uint32_t i = 0; i < 149; i++)
                assert_true(v.prompt_rows.value[i] <= v.prompt_rows.top_values[2 * i]);
            sequence_destroy(&s);
        }
        close_engine(b);
    }
}

static void test_cancel_at_any_time(void **state)
{
    struct bench *b = *state;
    struct sequence_view v;

    open_engine(b, 64, 16);
    for (uint32_t i = 0; i < 60; i++) {
        const enum sequence_purpose purpose = (enum sequence_purpose)(i % 3);
        struct sequence *s = start(b, tiny_request(100, i, 200, 0), purpose);
        for (uint32_t k = 0; k < i / 6; k++)
            wait_news(b);
        engine_cancel(b->engine, s);
        if (purpose != SEQUENCE_WHOLE)
            engine_finish(b->engine, s);
        WAIT_FOR(b, s, v, v.ended);
        assert_true(v.status == STATUS_CANCELLED || v.status == STATUS_OK);
        sequence_destroy(&s);
    }
    close_engine(b);
}

static void test_refusals(void **state)
{
    struct bench *b = *state;
    struct sequence *s;
    struct sequence_view v;

    open_engine(b, 16, TINY_CHUNK);
    struct request *r = tiny_request(TINY_CONTEXT, 1, 1, 0);
    assert_int_equal(sequence_create(b->engine, r, SEQUENCE_WHOLE, &s), STATUS_CONTEXT_LENGTH);
    request_destroy(&r);
    r = tiny_request(4, 1, 4, 0);
    r->resume.prompt_ids[2] = N_SMALL_TOKENS;
    assert_int_equal(sequence_create(b->engine, r, SEQUENCE_WHOLE, &s), STATUS_BAD_REQUEST);
    request_destroy(&r);
    /* reservations that fill the pool refuse the next */
    struct sequence *first = start(b, tiny_request(400, 1, 100, 0), SEQUENCE_IMPORT);
    WAIT_FOR(b, first, v, v.ready);
    struct sequence *second = start(b, tiny_request(400, 2, 100, 0), SEQUENCE_IMPORT);
    WAIT_FOR(b, second, v, v.ended);
    assert_int_equal(v.status, STATUS_NO_PAGES);
    sequence_destroy(&second);
    engine_finish(b->engine, first);
    WAIT_FOR(b, first, v, v.ended);
    sequence_destroy(&first);
    /* a deadline that passes */
    r = tiny_request(300, 3, 200, 0);
    r->resume.deadline_ms = 1;
    s = start(b, r, SEQUENCE_WHOLE);
    WAIT_FOR(b, s, v, v.ended);
    assert_int_equal(v.status, STATUS_DEADLINE);
    sequence_destroy(&s);
    close_engine(b);
}

/* A deadline in the middle of a prefill: the pages stay until the loop, which may be sending from
 * them, lets go. */
static void test_deadline_keeps_pages(void **state)
{
    struct bench *b = *state;
    struct sequence_view v;
    uint32_t n_stopped = 0;

    open_engine(b, 64, 1);
    for (uint32_t ms = 1; ms < 12; ms++) {
        struct request *r = tiny_request(450, ms, 20, 0);
        r->resume.deadline_ms = ms;
        struct sequence *s = start(b, r, SEQUENCE_PREFILL);
        WAIT_FOR(b, s, v, v.stopped || v.prefilled);
        assert_false(v.ended && v.started);
        if (v.stopped)
            assert_int_equal(v.status, STATUS_DEADLINE);
        n_stopped += v.stopped && !v.ended;
        if (!v.ended)
            engine_finish(b->engine, s);
        WAIT_FOR(b, s, v, v.ended);
        sequence_destroy(&s);
    }
    assert_true(n_stopped > 0);
    close_engine(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batched_is_alone),
        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_preempted_is_undisturbed),
        cmocka_unit_test(test_parked_is_undisturbed),
        cmocka_unit_test(test_parked_ends),
        cmocka_unit_test(test_resumed_is_undisturbed),
        cmocka_unit_test(test_split_is_whole),
        cmocka_unit_test(test_kv_bytes),
        cmocka_unit_test(test_prompt_rows),
        cmocka_unit_test(test_cancel_at_any_time),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_deadline_keeps_pages),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
