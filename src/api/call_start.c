/* A request's way in.
 *
 *   call_start      takes the body off the exchange
 *   call_work       parses, renders, tokenizes (a text thread when that may take long)
 *   call_parsed     back on the loop: refuses, or submits every choice; call.c goes on */
#include "api/internal.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void warn_model(struct call *c)
{
    struct api *api = c->api;
    uint32_t n = sizeof api->warned_models / sizeof *api->warned_models;

    if (c->model == NULL || api_serves_model(api, c->model))
        return;
    for (uint32_t i = 0; i < api->n_warned_models; i++)
        if (strncmp(api->warned_models[i], c->model, sizeof api->warned_models[i] - 1) == 0)
            return;
    if (api->n_warned_models == n)
        return;
    snprintf(api->warned_models[api->n_warned_models++], sizeof api->warned_models[0], "%s",
             c->model);
    log_event(LOG_WARN, "a client asks for another model and gets this one",
              "asked=" LOG_Q " served=" LOG_Q, log_quote(c->model),
              log_quote(api->options.model_ids[0]));
}

/* The tokenizer routes are answered from here; their JSON was made by the parser. */
static void call_respond(struct call *c)
{
    struct http_exchange *x = c->x;

    http_exchange_respond(x, 200, "application/json", c->out.data, c->out.len);
    call_free(c);
}

/* Admission counts what a key has running, before anything is accepted. */
static enum status take_of_key(struct call *c)
{
    uint64_t n_tokens = 0;

    if (c->key == NULL)
        return STATUS_OK;
    for (uint32_t i = 0; i < c->n_choices; i++) {
        const struct resume *r = &c->choices[i].request->resume;

        n_tokens += (uint64_t)r->n_prompt + r->max_tokens;
    }
    TRY(api_key_take(c->key, c->n_choices, n_tokens));
    c->n_taken = c->n_choices;
    c->n_tokens_taken = n_tokens;
    return STATUS_OK;
}

static void call_submit(struct call *c)
{
    struct service *s = c->api->service;

    warn_model(c);
    const enum status taken = take_of_key(c);
    if (taken != STATUS_OK) {
        call_fail(c, taken, taken == STATUS_RATE_LIMITED ? NULL : "max_tokens", status_message());
        return;
    }
    for (uint32_t i = 0; i < c->n_choices; i++) {
        struct choice *k = &c->choices[i];
        struct request_sink sink = {.event = choice_event, .context = k};
        enum status status = s->ops->submit(s, k->request, sink, &k->ticket);

        if (status != STATUS_OK) {
            call_fail(c, status, NULL, status_message());
            return;
        }
        k->request = NULL; /* the service's */
        k->submitted = true;
        c->was_submitted = true;
    }
    log_event(LOG_DEBUG, "request accepted", "req=%s client_req=" LOG_Q, c->id,
              log_quote(c->client_id));
}

static void call_parsed(struct call *c)
{
    if (c->x == NULL) {
        call_free(c);
        return;
    }
    if (c->error.status != STATUS_OK)
        call_fail(c, c->error.status, c->error.param, c->error.message);
    else if (c->kind == CALL_TOKENIZE || c->kind == CALL_DETOKENIZE)
        call_respond(c);
    else if (c->api->draining)
        call_fail(c, STATUS_DRAINING, NULL, "the server is shutting down");
    else
        call_submit(c);
}

static void call_work(struct net_work *work)
{
    struct call *c = (struct call *)work;

    switch (c->kind) {
    case CALL_TOKENIZE:
        tokenize_parse(c);
        break;
    case CALL_DETOKENIZE:
        detokenize_parse(c);
        break;
    default:
        call_parse(c);
        break;
    }
}

static void call_work_done(struct net_work *work)
{
    struct call *c = (struct call *)work;

    c->working = false;
    call_parsed(c);
}

/* x-baton-deadline-ms: the answer must be complete by then, or it ends as an error. */
static enum status read_deadline(struct http_exchange *x, uint64_t *out)
{
    const char *text = http_exchange_header(x, "x-baton-deadline-ms");
    char *end;

    if (text == NULL)
        return STATUS_OK;
    *out = strspn(text, "0123456789") == strlen(text) ? strtoull(text, &end, 10) : 0;
    if (*out == 0 || *out > API_MAX_DEADLINE_MS)
        return fail(STATUS_BAD_REQUEST, "x-baton-deadline-ms is a whole number from 1 to %d",
                    API_MAX_DEADLINE_MS);
    return STATUS_OK;
}

static void set_ids(struct call *c)
{
    const char *client_id = http_exchange_header(c->x, "x-request-id");

    snprintf(c->id, sizeof c->id, "%s-%016" PRIx64 "%08" PRIx32,
             c->kind == CALL_CHAT ? "chatcmpl" : "cmpl", random_u64(), (uint32_t)random_u64());
    if (client_id != NULL)
        snprintf(c->client_id, sizeof c->client_id, "%s", client_id);
    else
        http_exchange_set_header(c->x, "x-request-id",
                                 c->id); /* the client's own was set by api_admit() */
}

void call_start(struct api *api, struct http_exchange *x, enum call_kind kind)
{
    struct http_exchange_events events = {.closed = call_client_left};
    struct service_description d = {0};
    uint64_t deadline_ms = 0;
    struct call *c;

    if (!api_is_loaded(api, x))
        return;
    if (read_deadline(x, &deadline_ms) != STATUS_OK) {
        api_respond_error(api, x, STATUS_BAD_REQUEST, "x-baton-deadline-ms", status_message());
        return;
    }
    if (api->draining && kind <= CALL_COMPLETION) {
        api_respond_error(api, x, STATUS_DRAINING, NULL, "the server is shutting down");
        return;
    }
    api->service->ops->describe(api->service, &d);
    if (d.max_context_tokens == 0) { /* a router that has not met a node yet */
        enum status status = api->service->ops->readiness(api->service);

        if (status == STATUS_OK)
            status = fail(STATUS_NO_NODE, "no node can serve yet");
        api_respond_error(api, x, status, NULL, status_message());
        return;
    }
    c = memory_alloc(1, sizeof *c);
    if (c == NULL) {
        api_respond_error(api, x, STATUS_NO_MEMORY, NULL, "no memory for the request");
        return;
    }
    c->api = api;
    c->x = x;
    c->kind = kind;
    c->n_logprobs = -1;
    c->created = (int64_t)time(NULL);
    c->start_ns = clock_now_ns();
    c->context_tokens = d.max_context_tokens;
    c->common.deadline_ms = deadline_ms;
    c->key = api_key_of(api, x);
    if (c->key != NULL) {
        c->key->n_refs++;
        c->common.has_tenant = true;
        memcpy(c->common.tenant_salt, c->key->salt, sizeof c->common.tenant_salt);
    }
    memcpy(c->fingerprint, d.fingerprint, sizeof c->fingerprint);
    c->fingerprint[sizeof c->fingerprint - 1] = '\0';
    set_ids(c);
    c->next = api->calls;
    if (api->calls != NULL)
        api->calls->prev = c;
    api->calls = c;
    api->n_calls++;
    events.context = c;
    http_exchange_on(x, &events);
    http_exchange_take_body(x, &c->body);
    c->work.work = call_work;
    c->work.done = call_work_done;
    if (kind != CALL_CHAT && c->body.len <= API_INLINE_BODY_BYTES) {
        call_work(&c->work);
        call_parsed(c);
        return;
    }
    c->working = true;
    net_work_submit(api->loop, &c->work);
}
