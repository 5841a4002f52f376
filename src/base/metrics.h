/* base/metrics: a registry of counters, gauges and histograms, printed in Prometheus' text form.
 * Threads: creation before the threads that use a metric start; updates and metrics_render() from
 * any thread. */
#ifndef BATON_BASE_METRICS_H
#define BATON_BASE_METRICS_H

#include "base/memory.h"

#include <stdint.h>

struct metrics;
struct metric;

/* constant_labels: `model_name="x",role="y"` on every series, or "". */
struct metrics *metrics_create(const char *constant_labels);
void metrics_destroy(struct metrics **m);

/* name without the "baton_" prefix. labels: `reason="stop"` or NULL; several series of one name
 * share its help. The same name and labels again give the same metric. Owner: the registry. Never
 * NULL: when memory is out a shared metric that nobody prints is returned, since counting must not
 * fail. */
struct metric *metrics_counter(struct metrics *m, const char *name, const char *labels,
                               const char *help);
struct metric *metrics_gauge(struct metrics *m, const char *name, const char *labels,
                             const char *help);
/* bounds: ascending upper bounds in the metric's unit (seconds), copied; at most 32. */
struct metric *metrics_histogram(struct metrics *m, const char *name, const char *labels,
                                 const char *help, const double *bounds, uint32_t n_bounds);

void metric_add(struct metric *c, uint64_t n);
void metric_set(struct metric *g, double value);
void metric_observe(struct metric *h, double value);
uint64_t metric_count(const struct metric *c); /* a counter's value */
double metric_value(const struct metric *g);   /* a gauge's value */

/* Series of what comes and goes, such as links: made when they are asked for. fill() calls
 * metrics_sample() for each, within metrics_render() and on its thread. */
struct metrics_samples;
struct metrics_family {
    struct metrics_family *next;    /* the registry's */
    const char *name, *type, *help; /* type: "gauge" or "counter" */
    void (*fill)(const struct metrics_family *f, struct metrics_samples *out);
    void *context;
};
/* Owner: the caller, who keeps *f until metrics_remove_family(). */
void metrics_add_family(struct metrics *m, struct metrics_family *f);
void metrics_remove_family(struct metrics *m, struct metrics_family *f);
void metrics_sample(struct metrics_samples *out, const char *labels, double value);

/* Adds the text exposition, process_* included, to out. */
void metrics_render(struct metrics *m, struct buffer *out);

/* From 1 ms to 60 s, for latencies. */
extern const double metrics_latency_bounds[];
extern const uint32_t metrics_n_latency_bounds;

#endif
