/* /metrics, and the client-facing series: they come only from the process that owns the HTTP
 * socket, so that a sum over a cluster counts each request once. */
#include "api/internal.h"

#include "base/clock.h"

static const double inter_token_bounds[] = {0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03,
                                            0.05,  0.075,  0.1,   0.25, 0.5,   1,    5};

void series_create(struct api *api)
{
    static const char *const reasons[] = {"finished_reason=\"stop\"", "finished_reason=\"length\"",
                                          "finished_reason=\"abort\"", "finished_reason=\"error\""};
    struct metrics *m = api->metrics;

    api->series.running =
        metrics_gauge(m, "num_requests_running", NULL, "Requests that are being worked on.");
    api->series.waiting = metrics_gauge(m, "num_requests_waiting", NULL, "Requests in the queue.");
    api->series.prompt_tokens = metrics_counter(m, "prompt_tokens_total", NULL,
                                                "Prompt tokens of requests that got a token.");
    api->series.generation_tokens =
        metrics_counter(m, "generation_tokens_total", NULL, "Tokens generated for clients.");
    for (uint32_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        api->series.success[i] = metrics_counter(m, "request_success_total", reasons[i],
                                                 "Requests that ended, by reason.");
    api->series.ttft = metrics_histogram(m, "time_to_first_token_seconds", NULL,
                                         "From a request's body to its first token.",
                                         metrics_latency_bounds, metrics_n_latency_bounds);
    api->series.itl = metrics_histogram(m, "inter_token_latency_seconds", NULL,
                                        "Between two tokens of one request.", inter_token_bounds,
                                        sizeof inter_token_bounds / sizeof *inter_token_bounds);
    api->series.e2e = metrics_histogram(m, "e2e_request_latency_seconds", NULL,
                                        "From a request's body to its answer's end.",
                                        metrics_latency_bounds, metrics_n_latency_bounds);
}

void series_ended(struct call *c, enum call_end end)
{
    if (c->api->series.e2e == NULL)
        return;
    metric_add(c->api->series.success[end], 1);
    if (end == CALL_END_STOP || end == CALL_END_LENGTH)
        metric_observe(c->api->series.e2e, (double)(clock_now_ns() - c->start_ns) * 1e-9);
}

void route_metrics(void *context, struct http_exchange *x)
{
    struct api *api = context;
    struct buffer out = {0};

    if (api->service != NULL && api->series.running != NULL) {
        struct service_capacity capacity = {0};

        api->service->ops->capacity(api->service, &capacity);
        metric_set(api->series.running, capacity.n_running);
        metric_set(api->series.waiting, capacity.n_waiting);
    }
    metrics_render(api->metrics, &out);
    http_exchange_respond(x, 200, "text/plain; version=0.0.4; charset=utf-8", out.data, out.len);
    buffer_deinit(&out);
}
