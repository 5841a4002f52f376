/* What the router's tests share: nodes that only write down what they are asked and say what a test
 * tells them to, and a client that writes down what it is shown. */
#ifndef TESTS_ROUTER_FAKES_H
#define TESTS_ROUTER_FAKES_H

#include "router/router.h"
#include "unit/peer/hubs.h"
#include "unit/text/small_vocabulary.h"

enum { MAX_ASKED = 64, MAX_IDS = 4096 };

struct asked {
    struct arena arena;
    struct wire_prefill_request m;
};

struct fake_node {
    struct test_hub hub;
    struct asked asked[MAX_ASKED];
    uint32_t n_asked, n_cancels, n_credits, last_window;
    struct request_key cancelled;
    uint32_t cancelled_attempt;
};

static inline enum status fake_message(void *context, struct peer_link *link,
                                       const struct wire_frame *f)
{
    struct fake_node *n = context;
    struct wire_notice notice;
    struct wire_credit credit;

    switch (f->type) {
    case WIRE_PREFILL_REQUEST:
        assert_true(n->n_asked < MAX_ASKED);
        TRY(wire_decode_prefill_request(f, &n->asked[n->n_asked].arena, &n->asked[n->n_asked].m));
        n->n_asked++;
        return STATUS_OK;
    case WIRE_CANCEL:
        TRY(wire_decode_notice(f, &notice));
        n->n_cancels++;
        n->cancelled = notice.key;
        n->cancelled_attempt = notice.attempt;
        return STATUS_OK;
    case WIRE_CREDIT:
        TRY(wire_decode_credit(f, &credit));
        n->n_credits++;
        n->last_window = credit.window_tokens;
        return STATUS_OK;
    default:
        return fail(STATUS_BAD_MESSAGE, "not for a node");
    }
}

static inline void fake_link_up(void *context, struct peer_link *link)
{
    hub_link_up(&((struct fake_node *)context)->hub, link);
}

static inline void fake_link_down(void *context, struct peer_link *link, enum status reason)
{
    hub_link_down(&((struct fake_node *)context)->hub, link, reason);
}

static inline void fake_node_stats(void *context, struct wire_node_stats *out)
{
    hub_node_stats(&((struct fake_node *)context)->hub, out);
}

/* As a process does: another epoch each time. What it was asked before is kept. */
static inline void fake_restart_as(struct fake_node *n, struct net_loop *l,
                                   const struct wire_hello *hello)
{
    const struct peer_events events = {.link_up = fake_link_up,
                                       .link_down = fake_link_down,
                                       .message = fake_message,
                                       .node_stats = fake_node_stats,
                                       .context = n};

    memset(&n->hub, 0, sizeof n->hub);
    hub_start_with(&n->hub, l, hello, &events, peer_limits_default);
}

static inline void fake_restart(struct fake_node *n, struct net_loop *l, const char *id,
                                const char *role, uint32_t n_slots)
{
    struct wire_hello hello = model_hello(id, role);

    hello.n_slots = n_slots;
    fake_restart_as(n, l, &hello);
}

static inline void fake_start(struct fake_node *n, struct net_loop *l, const char *id,
                              const char *role, uint32_t n_slots)
{
    memset(n, 0, sizeof *n);
    fake_restart(n, l, id, role, n_slots);
}

static inline void fake_stop(struct fake_node *n)
{
    if (n->hub.hub)
        hub_stop(&n->hub);
    for (uint32_t i = 0; i < n->n_asked; i++)
        arena_deinit(&n->asked[i].arena);
    n->n_asked = 0;
}

static inline void fake_say(struct fake_node *n, const struct wire_result *m)
{
    struct wire_result_batch batch = {0};
    struct buffer frames = {0};

    assert_int_equal(wire_result_append(&batch, m), STATUS_OK);
    assert_int_equal(wire_encode_results(&frames, &batch), STATUS_OK);
    assert_non_null(n->hub.link);
    peer_link_send(n->hub.link, &frames);
    buffer_deinit(&frames);
    wire_result_batch_deinit(&batch);
}

/* A result with ids: `ids` is a string of single-byte tokens, '$' the end token. */
static inline void say_tokens(struct fake_node *n, const struct wire_prefill_request *about,
                              enum wire_phase phase, uint32_t start, const char *text, bool done)
{
    uint32_t ids[MAX_IDS], k = 0;
    float values[MAX_IDS];
    struct wire_result m = {
        .key = about->key, .attempt = about->attempt, .phase = phase, .start = start, .done = done};

    for (; text[k]; k++) {
        ids[k] = text[k] == '$' ? ID_END : (uint8_t)text[k];
        values[k] = -(float)(start + k);
    }
    m.ids = ids;
    m.n_ids = k;
    if (about->resume.n_logprobs >= 0) {
        m.has_logprobs = true;
        m.logprobs.value = values;
    }
    if (done) {
        m.n_generated = start + k;
        m.finish = k && text[k - 1] == '$' ? FINISH_STOP : FINISH_LENGTH;
    }
    fake_say(n, &m);
}

static inline void say_opened(struct fake_node *n, const struct wire_prefill_request *about,
                              const char *decode)
{
    struct wire_result m = {
        .key = about->key, .attempt = about->attempt, .phase = WIRE_PHASE_OPENED};

    snprintf(m.decode_node, sizeof m.decode_node, "%s", decode);
    fake_say(n, &m);
}

static inline void say_failed(struct fake_node *n, const struct wire_prefill_request *about,
                              enum status error)
{
    struct wire_result m = {.key = about->key,
                            .attempt = about->attempt,
                            .phase = WIRE_PHASE_FAILED,
                            .done = true,
                            .error = error};

    snprintf(m.message, sizeof m.message, "because");
    fake_say(n, &m);
}

/* Rows for positions first .. first + n - 1, each with a value that says which it is. */
static inline void say_rows(struct fake_node *n, const struct wire_prefill_request *about,
                            uint32_t first, uint32_t n_rows)
{
    float values[MAX_IDS];
    struct wire_result m = {.key = about->key,
                            .attempt = about->attempt,
                            .phase = WIRE_PHASE_PROMPT_LOGPROBS,
                            .start = first,
                            .n_ids = n_rows,
                            .has_logprobs = true};

    for (uint32_t i = 0; i < n_rows; i++)
        values[i] = (float)(first + i);
    m.logprobs.value = values;
    fake_say(n, &m);
}

/* ---- the client ---- */

struct client {
    struct router *router;
    uint64_t ticket;
    char text[MAX_IDS]; /* the ids, as say_tokens() writes them */
    uint32_t n_ids, n_rows, n_events, n_ended, n_cached;
    bool with_rows, with_logprobs;
    enum status status;
    enum finish_reason finish;
    char message[200], prefill_node[NODE_ID_BYTES], decode_node[NODE_ID_BYTES];
    /* what it does in the middle of being told something */
    uint32_t cancel_at_event; /* counted from 1 */
    struct client *cancels[8];
    uint32_t n_cancels;
    bool over; /* it has cancelled: nothing more may come */
};

static inline void client_cancel(struct client *c)
{
    struct service *s = router_service(c->router);

    c->over = true;
    s->ops->cancel(s, c->ticket);
}

static inline void client_event(void *context, const struct token_event *e)
{
    struct client *c = context;

    assert_false(c->over);
    assert_int_equal(c->n_ended, 0);
    c->n_events++;
    switch (e->kind) {
    case TOKEN_EVENT_PROMPT_LOGPROBS:
        assert_int_equal(c->n_ids, 0); /* before the first token */
        assert_int_equal(e->start, c->n_rows + 1);
        for (uint32_t i = 0; i < e->n; i++)
            assert_true(e->logprobs->value[i] == (float)(e->start + i));
        c->n_rows += e->n;
        break;
    case TOKEN_EVENT_TOKENS:
        assert_int_equal(e->start, c->n_ids);
        for (uint32_t i = 0; i < e->n; i++) {
            if (c->with_logprobs)
                assert_true(e->logprobs->value[i] == -(float)(e->start + i));
            c->text[c->n_ids++] = e->ids[i] == ID_END ? '$' : (char)e->ids[i];
        }
        break;
    case TOKEN_EVENT_ENDED:
        c->n_ended++;
        c->status = e->status;
        c->finish = e->finish;
        c->n_cached = e->n_cached;
        snprintf(c->message, sizeof c->message, "%s", e->message ? e->message : "");
        snprintf(c->prefill_node, NODE_ID_BYTES, "%s", e->prefill_node ? e->prefill_node : "");
        snprintf(c->decode_node, NODE_ID_BYTES, "%s", e->decode_node ? e->decode_node : "");
        if (e->status == STATUS_OK)
            assert_int_equal(e->n_generated, c->n_ids);
        break;
    }
    if (c->n_events == c->cancel_at_event)
        client_cancel(c);
    if (e->kind == TOKEN_EVENT_ENDED || c->n_events == c->cancel_at_event)
        for (uint32_t i = 0; i < c->n_cancels; i++)
            if (!c->cancels[i]->n_ended)
                client_cancel(c->cancels[i]);
}

struct wish {
    uint32_t n_prompt, max_tokens;
    uint64_t deadline_ms;
    bool prompt_rows, logprobs;
};

static inline enum status client_submit(struct client *c, struct router *r, struct wish w)
{
    struct service *s = router_service(r);
    struct request *q = request_create();
    const struct request_sink sink = {.event = client_event, .context = c};

    memset(c, 0, sizeof *c);
    c->router = r;
    c->with_logprobs = w.logprobs;
    q->request_id = arena_strndup(&q->arena, "test", 4);
    q->resume.n_prompt = w.n_prompt ? w.n_prompt : 5;
    q->resume.prompt_ids = arena_alloc(&q->arena, q->resume.n_prompt, sizeof(uint32_t));
    for (uint32_t i = 0; i < q->resume.n_prompt; i++)
        q->resume.prompt_ids[i] = i % 200;
    q->resume.max_tokens = w.max_tokens ? w.max_tokens : 100;
    q->resume.deadline_ms = w.deadline_ms;
    q->resume.seed = 4242;
    q->resume.n_prompt_logprobs = w.prompt_rows ? 0 : -1;
    q->resume.n_logprobs = w.logprobs ? 0 : -1;
    const enum status status = s->ops->submit(s, q, sink, &c->ticket);
    if (status != STATUS_OK)
        request_destroy(&q);
    assert_int_equal(c->n_events, 0); /* never before submit has returned */
    return status;
}

#endif
