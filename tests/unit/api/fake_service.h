/* A service whose answers are written by the test: a list of ids for every request, some a step. */
#ifndef BATON_TESTS_API_FAKE_SERVICE_H
#define BATON_TESTS_API_FAKE_SERVICE_H

#include "fake_text.h"
#include "request/request.h"

#define FAKE_MAX 64

struct fake_entry {
    struct request *request; /* NULL: free */
    struct request_sink sink;
    struct text_stream *text;
    uint32_t n_sent;
};

static struct fake {
    struct service base;
    struct fake_entry entries[FAKE_MAX];
    uint32_t n_submitted, n_cancelled, n_ended, n_taken;
    const uint32_t *script;
    uint32_t n_script;
    uint32_t per_event;      /* tokens in one event; 0: 1 */
    bool held;               /* nothing is sent */
    uint32_t held_after;     /* ... once so many tokens were */
    enum status refuse;      /* submit fails */
    enum status fail_status; /* ENDED with it after fail_after tokens */
    uint32_t fail_after;
    enum { LIE_NONE, LIE_FINISH, LIE_COUNT, LIE_EXTRA, LIE_GAP, LIE_NO_PROMPT_ROWS } lie;
    enum status ready;
    struct resume last; /* as submitted; pointers are stale after the end */
    uint32_t last_prompt[4096];
    struct logit_bias last_bias[4];
    char last_stops[8][32];
} fake;

static enum status fake_submit(struct service *s, struct request *r, struct request_sink sink,
                               uint64_t *out_ticket)
{
    uint32_t i = 0;

    if (fake.refuse != STATUS_OK)
        return fail(fake.refuse, "refused by the test");
    while (fake.entries[i].request != NULL)
        i++;
    assert_in_range(i, 0, FAKE_MAX - 1);
    assert_non_null(r->request_id);
    assert_true(r->key.number == 0 && r->key.origin[0] == '\0');
    assert_true(r->resume.n_prompt > 0 && r->resume.max_tokens > 0);
    fake.entries[i] = (struct fake_entry){.request = r, .sink = sink};
    assert_int_equal(text_stream_create(&fake_vocabulary, &r->resume, 512, &fake.entries[i].text),
                     STATUS_OK);
    fake.last = r->resume;
    memcpy(fake.last_prompt, r->resume.prompt_ids, r->resume.n_prompt * sizeof(uint32_t));
    for (uint32_t k = 0; k < r->resume.n_logit_bias && k < 4; k++)
        fake.last_bias[k] = r->resume.logit_bias[k];
    for (uint32_t k = 0; k < r->resume.n_stops && k < 8; k++)
        snprintf(fake.last_stops[k], 32, "%.*s", (int)r->resume.stops[k].len,
                 r->resume.stops[k].bytes);
    fake.n_submitted++;
    *out_ticket = i + 1;
    return STATUS_OK;
}

static void fake_free(struct fake_entry *e)
{
    text_stream_destroy(&e->text);
    request_destroy(&e->request);
}

static void fake_cancel(struct service *s, uint64_t ticket)
{
    assert_non_null(fake.entries[ticket - 1].request);
    fake_free(&fake.entries[ticket - 1]);
    fake.n_cancelled++;
}

static void fake_taken(struct service *s, uint64_t ticket, uint32_t n_tokens)
{
    assert_non_null(fake.entries[ticket - 1].request);
    assert_true(n_tokens > 0);
    fake.n_taken = n_tokens;
}

static void fake_capacity(struct service *s, struct service_capacity *out)
{
    *out = (struct service_capacity){
        .n_running = 3, .n_waiting = 4, .max_waiting = 1024, .retry_after_s = 7};
}

static enum status fake_readiness(struct service *s)
{
    return fake.ready == STATUS_OK ? STATUS_OK : fail(fake.ready, "not ready, says the test");
}

static enum status fake_liveness(struct service *s)
{
    return STATUS_OK;
}

static void fake_describe(struct service *s, struct service_description *out)
{
    *out = (struct service_description){
        .role = "hybrid", .node_id = "n-0", .max_context_tokens = 512, .n_slots = 4};
    strcpy(out->fingerprint, "fp_0123456789abcdef");
}

static void fake_stats(struct service *s, service_stat_visitor *visit, void *context)
{
    visit(context, "", "role", "router", 0);
    visit(context, "nodes.prefill-0", "pages_free", NULL, 12);
    visit(context, "nodes.prefill-0", "busy", NULL, 0.25);
    visit(context, "nodes.decode-0", "state", "healthy", 0);
}

static const struct service_ops fake_ops = {
    .submit = fake_submit,
    .cancel = fake_cancel,
    .taken = fake_taken,
    .capacity = fake_capacity,
    .readiness = fake_readiness,
    .liveness = fake_liveness,
    .describe = fake_describe,
    .stats = fake_stats,
};

/* Row r (any number) for id: the value is -(r + 1) / 8, and so on down the list; "A" twice among
 * the top. */
static void fake_row(uint32_t id, uint32_t r, uint32_t n_top, float *value, uint32_t *ids,
                     float *values)
{
    static const uint32_t likely[] = {'A', FAKE_OTHER_A, 0xe2, FAKE_EOS, 'B'};

    *value = -(float)(r + 1) / 8;
    for (uint32_t j = 0; j < n_top; j++) {
        ids[j] = j < 5 ? likely[j] : 'a' + j;
        values[j] = j == 4 ? -1e30f : -(float)j - 0.5f;
        if (ids[j] == id)
            *value = values[j];
    }
}

static void fake_rows(struct fake_entry *e, const uint32_t *ids, uint32_t start, uint32_t n,
                      int32_t n_top, struct logprob_rows *out)
{
    static float values[4096], top_values[4096 * 20];
    static uint32_t top_ids[4096 * 20];

    for (uint32_t i = 0; i < n; i++)
        fake_row(ids[i], start + i, (uint32_t)n_top, &values[i], top_ids + i * (uint32_t)n_top,
                 top_values + i * (uint32_t)n_top);
    *out = (struct logprob_rows){(uint32_t)n_top, values, top_ids, top_values};
}

static void fake_prompt_rows(struct fake_entry *e)
{
    const struct resume *s = &e->request->resume;

    /* In two parts. */
    for (uint32_t start = 1, n; start < s->n_prompt; start += n) {
        struct logprob_rows rows;
        struct token_event event = {
            .kind = TOKEN_EVENT_PROMPT_LOGPROBS, .start = start, .logprobs = &rows};

        n = start == 1 && s->n_prompt > 2 ? 1 : s->n_prompt - start;
        event.n = n;
        fake_rows(e, s->prompt_ids + start, start, n, s->n_prompt_logprobs, &rows);
        e->sink.event(e->sink.context, &event);
    }
}

static void fake_step_entry(struct fake_entry *e)
{
    const struct resume *s = &e->request->resume;
    struct logprob_rows rows;
    struct token_event event = {.kind = TOKEN_EVENT_TOKENS,
                                .start = e->n_sent,
                                .prefill_node = "p-0",
                                .decode_node = "d-0"};
    struct text_released r = {0};
    struct request *request = e->request;
    uint32_t max = fake.per_event > 0 ? fake.per_event : 1;
    uint32_t ids[64];

    if (fake.fail_status != STATUS_OK && e->n_sent >= fake.fail_after) {
        event = (struct token_event){
            .kind = TOKEN_EVENT_ENDED, .status = fake.fail_status, .message = "failed by the test"};
        e->sink.event(e->sink.context, &event);
        fake_free(e);
        fake.n_ended++;
        return;
    }
    if (e->n_sent == 0 && s->n_prompt_logprobs >= 0 && fake.lie != LIE_NO_PROMPT_ROWS)
        fake_prompt_rows(e);
    while (event.n < max && !r.ended) {
        ids[event.n] = fake.script[(e->n_sent + event.n) % fake.n_script];
        assert_int_equal(text_stream_feed(e->text, ids[event.n++], &r), STATUS_OK);
    }
    if (s->n_logprobs >= 0) {
        fake_rows(e, ids, e->n_sent, event.n, s->n_logprobs, &rows);
        event.logprobs = &rows;
    }
    event.ids = ids;
    e->n_sent += event.n;
    if (fake.lie == LIE_GAP)
        event.start++;
    e->sink.event(e->sink.context, &event);
    if (e->request != request) /* cancelled from within */
        return;
    if (r.ended && fake.lie == LIE_EXTRA) {
        event.start = e->n_sent;
        event.n = 1;
        e->sink.event(e->sink.context, &event);
        return;
    }
    if (!r.ended)
        return;
    event = (struct token_event){
        .kind = TOKEN_EVENT_ENDED, .finish = r.finish, .n_generated = e->n_sent, .n_cached = 2};
    event.finish = fake.lie == LIE_FINISH ? FINISH_STOP + FINISH_LENGTH - r.finish : r.finish;
    event.n_generated += fake.lie == LIE_COUNT;
    e->sink.event(e->sink.context, &event);
    fake_free(e);
    fake.n_ended++;
}

static void fake_step(void)
{
    for (uint32_t i = 0; i < FAKE_MAX; i++)
        if (fake.entries[i].request != NULL && !fake.held &&
            !(fake.held_after > 0 && fake.entries[i].n_sent >= fake.held_after))
            fake_step_entry(&fake.entries[i]);
}

static void fake_reset(const uint32_t *script, uint32_t n)
{
    for (uint32_t i = 0; i < FAKE_MAX; i++)
        fake_free(&fake.entries[i]);
    memset(&fake, 0, sizeof fake);
    fake.base.ops = &fake_ops;
    fake.script = script;
    fake.n_script = n;
}

#endif
