/* The life of one request from its submission to its last byte.
 *
 *   choice_event    tokens become text here, by our own text_stream; the service says when it is
 *                   over, and both must agree
 *   call_finish, call_fail, call_client_left
 *                   the three ends; each frees the call
 *
 * call_start.c has the way in. */
#include "api/internal.h"

#include "base/clock.h"
#include "base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the end ---- */

static void choice_deinit(struct choice *k)
{
    request_destroy(&k->request);
    text_stream_destroy(&k->text);
    buffer_deinit(&k->content);
    buffer_deinit(&k->prompt_text);
    logprobs_deinit(&k->logprobs);
}

void call_free(struct call *c)
{
    struct api *api = c->api;

    if (c->prev != NULL)
        c->prev->next = c->next;
    else
        api->calls = c->next;
    if (c->next != NULL)
        c->next->prev = c->prev;
    api->n_calls--;
    for (uint32_t i = 0; i < c->n_choices; i++)
        choice_deinit(&c->choices[i]);
    if (c->key != NULL)
        api_key_give_back(c->key, c->n_taken, c->n_tokens_taken);
    api_key_release(c->key);
    buffer_deinit(&c->body);
    buffer_deinit(&c->out);
    arena_deinit(&c->arena);
    free(c);
}

static void cancel_choices(struct call *c)
{
    for (uint32_t i = 0; i < c->n_choices; i++) {
        struct choice *k = &c->choices[i];

        if (k->submitted && !k->ended)
            c->api->service->ops->cancel(c->api->service, k->ticket);
        k->ended = true;
    }
}

/* The one line of a request's end, whatever its end. */
static void log_ended(struct call *c, enum log_level level, const char *finish, const char *error)
{
    uint64_t prompt = 0, generated = 0, cached = 0;
    struct buffer more = {0};
    int64_t now = clock_now_ns();
    double ttft_ms = c->first_ns > 0 ? (double)(c->first_ns - c->start_ns) * 1e-6 : 0;
    double rest_s = c->last_ns > c->first_ns ? (double)(c->last_ns - c->first_ns) * 1e-9 : 0;

    for (uint32_t i = 0; i < c->n_choices; i++) {
        prompt += c->choices[i].n_prompt;
        generated += c->choices[i].n_generated;
        cached += c->choices[i].n_cached;
    }
    if (c->key != NULL && c->key->name[0] != '\0')
        buffer_printf(&more, " key=%s", log_quote(c->key->name));
    if (c->client_id[0] != '\0')
        buffer_printf(&more, " client_req=%s", log_quote(c->client_id));
    if (*error != '\0')
        buffer_printf(&more, " error=%s", log_quote(error));
    log_event(
        level, "request ended",
        "req=%s prompt_tokens=%" PRIu64 " cached=%" PRIu64 " generated=%" PRIu64
        " finish=%s ttft_ms=%.1f tok_s=%.1f total_ms=%.1f prefill=%s decode=%s seed=%" PRId64 "%s",
        c->id, prompt, cached, generated, finish, ttft_ms,
        rest_s > 0 && generated > c->n_choices ? (double)(generated - c->n_choices) / rest_s : 0.0,
        (double)(now - c->start_ns) * 1e-6, c->prefill_node != NULL ? c->prefill_node : "-",
        c->decode_node != NULL ? c->decode_node : "-", (int64_t)c->seed,
        more.data != NULL ? more.data : "");
    buffer_deinit(&more);
}

void call_fail(struct call *c, enum status status, const char *param, const char *message)
{
    struct http_exchange *x = c->x;
    char words[512];

    snprintf(words, sizeof words, "%s",
             message != NULL && *message != '\0' ? message : status_code(status));
    c->x = NULL;
    cancel_choices(c);
    if (c->was_submitted || status_http(status) >= 500) {
        log_ended(c, status_http(status) >= 500 ? LOG_WARN : LOG_INFO, status_code(status), words);
        series_ended(c, CALL_END_ERROR);
    }
    if (http_exchange_stream_begun(x)) {
        buffer_append_string(&c->out, "event: error\ndata: ");
        api_error_json(&c->out, status, param, words);
        buffer_append_string(&c->out, "\n\n");
        if (!c->out.failed)
            http_exchange_stream_write(x, c->out.data, c->out.len);
        http_exchange_stream_end(x, true);
    } else {
        api_respond_error(c->api, x, status, param, words);
    }
    call_free(c);
}

void call_client_left(void *context)
{
    struct call *c = context;

    c->x = NULL;
    if (c->working)
        return; /* call_parsed() finds it so */
    cancel_choices(c);
    log_ended(c, LOG_INFO, "abort", "the client left");
    series_ended(c, CALL_END_ABORT);
    call_free(c);
}

void call_abandon(struct call *c)
{
    cancel_choices(c);
    call_free(c);
}

/* ---- the answer ---- */

static void set_headers(struct call *c)
{
    char seed[24];

    snprintf(seed, sizeof seed, "%" PRId64, (int64_t)c->seed);
    http_exchange_set_header(c->x, "x-baton-seed", seed);
}

/* Sends what is in c->out. The answer begins with the first token, so that errors before it keep
 * their status. */
static void stream_flush(struct call *c)
{
    if (!http_exchange_stream_begun(c->x)) {
        set_headers(c);
        http_exchange_set_header(c->x, "Cache-Control", "no-cache");
        http_exchange_set_header(c->x, "X-Accel-Buffering", "no");
        http_exchange_stream_begin(c->x, 200, "text/event-stream; charset=utf-8");
    }
    if (c->out.len > 0)
        http_exchange_stream_write(c->x, c->out.data, c->out.len);
    buffer_clear(&c->out);
    c->last_write_ms = clock_now_ms();
}

/* A reader that is behind by more than this holds its tokens' window shut. */
enum { BEHIND_BYTES = 64 << 10 };

/* Tells the service what the client has read; nothing while it is behind. */
static void tell_taken(struct call *c)
{
    if (c->stream && http_exchange_behind_bytes(c->x) > BEHIND_BYTES)
        return;
    for (uint32_t i = 0; i < c->n_choices; i++) {
        const struct choice *k = &c->choices[i];
        if (k->submitted && !k->ended && k->n_generated)
            c->api->service->ops->taken(c->api->service, k->ticket, k->n_generated);
    }
}

static void call_finish(struct call *c)
{
    struct http_exchange *x = c->x;
    enum finish_reason finish = c->choices[0].finish;

    if (!c->stream)
        reply_whole(c, &c->out);
    else {
        if (c->include_usage)
            reply_usage(c, &c->out);
        buffer_append_string(&c->out, "data: [DONE]\n\n");
    }
    if (buffer_status(&c->out) != STATUS_OK) {
        buffer_deinit(&c->out);
        call_fail(c, STATUS_NO_MEMORY, NULL, "no memory for the answer");
        return;
    }
    log_ended(c, LOG_INFO, finish_reason_name(finish), "");
    series_ended(c, finish == FINISH_STOP ? CALL_END_STOP : CALL_END_LENGTH);
    if (c->stream) {
        stream_flush(c);
        http_exchange_stream_end(x, false);
    } else {
        set_headers(c);
        http_exchange_respond(x, 200, "application/json", c->out.data, c->out.len);
    }
    call_free(c);
}

/* ---- token events ---- */

static enum status inexact(struct choice *k, const char *what)
{
    log_event(LOG_ERROR, "the service and the api disagree",
              "req=%s choice=%u what=" LOG_Q " generated=%u", k->call->id, k->index,
              log_quote(what), k->n_generated);
    return fail(STATUS_INEXACT, "the answer's two ends do not agree: %s", what);
}

static enum status prompt_logprobs(struct choice *k, const struct token_event *e)
{
    if (!k->call->echo || k->call->n_logprobs < 0)
        return STATUS_OK;
    if (k->logprobs.n == 0)
        logprobs_add(k, k->prompt_ids[0], NULL, 0, true);
    if (e->start != k->logprobs.n || e->n > k->n_prompt - e->start ||
        (e->n > 0 && e->logprobs == NULL))
        return inexact(k, "log-probabilities of the prompt are not in order");
    for (uint32_t i = 0; i < e->n; i++)
        logprobs_add(k, k->prompt_ids[e->start + i], e->logprobs, i, true);
    return STATUS_OK;
}

/* Before the first token of a choice is shown. */
static enum status choice_begins(struct choice *k)
{
    struct call *c = k->call;

    if (c->echo && c->n_logprobs >= 0) {
        if (k->logprobs.n == 0)
            logprobs_add(k, k->prompt_ids[0], NULL, 0, true);
        if (k->logprobs.n != k->n_prompt)
            return inexact(k, "log-probabilities of the prompt are missing");
    }
    if (!c->stream)
        return STATUS_OK;
    if (c->kind == CALL_CHAT)
        reply_role(k, &c->out);
    else if (c->echo)
        reply_text(k, k->prompt_text.data != NULL ? k->prompt_text.data : "", k->prompt_text.len,
                   &c->out);
    return STATUS_OK;
}

static enum status one_token(struct choice *k, uint32_t id, const struct logprob_rows *rows,
                             uint32_t i)
{
    struct call *c = k->call;
    struct text_released released;

    if (k->text_ended)
        return inexact(k, "a token came after the answer's end");
    if (id >= vocabulary_view(c->api->vocabulary)->n_tokens)
        return inexact(k, "a token is not in the vocabulary");
    if (c->n_logprobs >= 0 && rows == NULL)
        return inexact(k, "a token came without its log-probability");
    TRY(text_stream_feed(k->text, id, &released));
    k->n_generated++;
    if (released.ended) {
        k->text_ended = true;
        k->finish = released.finish;
    }
    if (c->no_answer)
        return STATUS_OK;
    if (c->n_logprobs >= 0)
        logprobs_add(k, id, rows, i, false);
    if (released.len == 0)
        return STATUS_OK;
    if (c->stream)
        reply_text(k, released.bytes, released.len, &c->out);
    else
        buffer_append(&k->content, released.bytes, released.len);
    return STATUS_OK;
}

static void measure_tokens(struct call *c, struct choice *k, uint32_t n)
{
    int64_t now = clock_now_ns();

    if (!k->role_sent && c->api->series.prompt_tokens != NULL)
        metric_add(c->api->series.prompt_tokens, k->n_prompt);
    if (c->first_ns == 0) {
        c->first_ns = now;
        if (c->api->series.ttft != NULL)
            metric_observe(c->api->series.ttft, (double)(now - c->start_ns) * 1e-9);
    } else if (c->n_choices == 1 && c->api->series.itl != NULL) {
        for (uint32_t i = 0; i < n;
             i++) /* several that came at once share the time that they took */
            metric_observe(c->api->series.itl, (double)(now - c->last_ns) * 1e-9 / n);
    }
    c->last_ns = now;
    if (c->api->series.generation_tokens != NULL)
        metric_add(c->api->series.generation_tokens, n);
}

static enum status tokens_came(struct choice *k, const struct token_event *e)
{
    struct call *c = k->call;

    if (e->n == 0)
        return STATUS_OK;
    if (e->start != k->n_generated)
        return inexact(k, "tokens are not in order");
    measure_tokens(c, k, e->n);
    if (!k->role_sent) {
        k->role_sent = true;
        TRY(choice_begins(k));
    }
    for (uint32_t i = 0; i < e->n; i++)
        TRY(one_token(k, e->ids[i], e->logprobs, i));
    if (c->stream)
        stream_flush(c);
    tell_taken(c);
    return STATUS_OK;
}

static void note_nodes(struct call *c, const struct token_event *e)
{
    if (c->prefill_node == NULL && e->prefill_node != NULL)
        c->prefill_node = arena_strndup(&c->arena, e->prefill_node, strlen(e->prefill_node));
    if (c->decode_node == NULL && e->decode_node != NULL)
        c->decode_node = arena_strndup(&c->arena, e->decode_node, strlen(e->decode_node));
}

/* True when the call is over (and freed). */
static enum status choice_ended(struct choice *k, const struct token_event *e, bool *over)
{
    struct call *c = k->call;

    k->ended = true;
    note_nodes(c, e);
    k->n_cached = e->n_cached;
    if (e->status != STATUS_OK)
        return fail(e->status, "%s", e->message != NULL ? e->message : status_code(e->status));
    if (!k->text_ended)
        return inexact(k, "the service ended the answer before its end");
    if (k->finish != e->finish || k->n_generated != e->n_generated)
        return inexact(k, "the reasons or lengths of the end differ");
    if (c->stream)
        reply_finish(k, &c->out);
    c->n_ended++;
    if (c->n_ended < c->n_choices) {
        if (c->stream)
            stream_flush(c);
        return STATUS_OK;
    }
    *over = true;
    return STATUS_OK;
}

void choice_event(void *context, const struct token_event *e)
{
    struct choice *k = context;
    struct call *c = k->call;
    enum status status = STATUS_INTERNAL;
    bool over = false;

    switch (e->kind) {
    case TOKEN_EVENT_PROMPT_LOGPROBS:
        status = prompt_logprobs(k, e);
        break;
    case TOKEN_EVENT_TOKENS:
        status = tokens_came(k, e);
        break;
    case TOKEN_EVENT_ENDED:
        status = choice_ended(k, e, &over);
        break;
    }
    if (status != STATUS_OK)
        call_fail(c, status, NULL, status_message());
    else if (over)
        call_finish(c);
}

/* Once a second: a stream that has been silent for long says that it is still there, and readers
 * that have caught up are noticed. */
void api_tick(void *context)
{
    struct api *api = context;
    int64_t now = clock_now_ms();

    for (struct call *c = api->calls; c != NULL; c = c->next) {
        if (c->x == NULL || !http_exchange_stream_begun(c->x))
            continue;
        tell_taken(c);
        if (now - c->last_write_ms >= api->options.comment_ms) {
            http_exchange_stream_write(c->x, ": waiting\n\n", 11);
            c->last_write_ms = now;
        }
    }
}
