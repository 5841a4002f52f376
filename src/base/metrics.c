#include "base/metrics.h"

#include "base/checked.h"
#include "base/clock.h"

#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum kind { COUNTER, GAUGE, HISTOGRAM };

struct metric {
    struct metric *next;
    char *name, *labels, *help;
    enum kind kind;
    _Atomic uint64_t count;
    _Atomic uint64_t value_bits; /* a double: the gauge, or the histogram's sum */
    uint32_t n_bounds;
    double bounds[32];
    _Atomic uint64_t buckets[33];
};

struct metrics {
    pthread_mutex_t lock;
    struct metric *first, *last;
    struct metrics_family *families;
    char *constant_labels;
    int64_t files_counted_ms;
    unsigned n_files;
};

const double metrics_latency_bounds[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                         0.5,   1,      2.5,   5,    10,    30,   60};
const uint32_t metrics_n_latency_bounds = ARRAY_LENGTH(metrics_latency_bounds);

static struct metric nowhere;

struct metrics *metrics_create(const char *constant_labels)
{
    struct metrics *m = memory_alloc(1, sizeof *m);

    if (!m)
        return NULL;
    m->constant_labels = memory_strdup(constant_labels);
    if (!m->constant_labels) {
        free(m);
        return NULL;
    }
    pthread_mutex_init(&m->lock, NULL);
    return m;
}

void metrics_destroy(struct metrics **pm)
{
    struct metrics *m = *pm;

    if (!m)
        return;
    while (m->first) {
        struct metric *next = m->first->next;
        free(m->first->name);
        free(m->first->labels);
        free(m->first->help);
        free(m->first);
        m->first = next;
    }
    free(m->constant_labels);
    pthread_mutex_destroy(&m->lock);
    free(m);
    *pm = NULL;
}

static struct metric *find_or_add(struct metrics *m, enum kind kind, const char *name,
                                  const char *labels, const char *help, const double *bounds,
                                  uint32_t n_bounds)
{
    struct metric *found;

    labels = labels ? labels : "";
    pthread_mutex_lock(&m->lock);
    for (found = m->first; found; found = found->next)
        if (!strcmp(found->name, name) && !strcmp(found->labels, labels))
            break;
    if (!found && (found = memory_alloc(1, sizeof *found))) {
        found->name = memory_strdup(name);
        found->labels = memory_strdup(labels);
        found->help = memory_strdup(help);
        if (!found->name || !found->labels || !found->help) {
            free(found->name);
            free(found->labels);
            free(found->help);
            free(found);
            found = NULL;
        } else {
            found->kind = kind;
            found->n_bounds = MIN(n_bounds, (uint32_t)ARRAY_LENGTH(found->bounds));
            if (bounds)
                memcpy(found->bounds, bounds, found->n_bounds * sizeof *bounds);
            if (m->last)
                m->last->next = found;
            else
                m->first = found;
            m->last = found;
        }
    }
    pthread_mutex_unlock(&m->lock);
    return found ? found : &nowhere;
}

struct metric *metrics_counter(struct metrics *m, const char *name, const char *labels,
                               const char *help)
{
    return find_or_add(m, COUNTER, name, labels, help, NULL, 0);
}

struct metric *metrics_gauge(struct metrics *m, const char *name, const char *labels,
                             const char *help)
{
    return find_or_add(m, GAUGE, name, labels, help, NULL, 0);
}

struct metric *metrics_histogram(struct metrics *m, const char *name, const char *labels,
                                 const char *help, const double *bounds, uint32_t n_bounds)
{
    return find_or_add(m, HISTOGRAM, name, labels, help, bounds, n_bounds);
}

static double bits_to_double(uint64_t bits)
{
    double d;
    memcpy(&d, &bits, sizeof d);
    return d;
}

static uint64_t double_to_bits(double d)
{
    uint64_t bits;
    memcpy(&bits, &d, sizeof bits);
    return bits;
}

void metric_add(struct metric *c, uint64_t n)
{
    atomic_fetch_add_explicit(&c->count, n, memory_order_relaxed);
}

void metric_set(struct metric *g, double value)
{
    atomic_store_explicit(&g->value_bits, double_to_bits(value), memory_order_relaxed);
}

void metric_observe(struct metric *h, double value)
{
    uint32_t i = 0;

    while (i < h->n_bounds && value > h->bounds[i])
        i++;
    atomic_fetch_add_explicit(&h->buckets[i], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&h->count, 1, memory_order_relaxed);
    uint64_t old = atomic_load_explicit(&h->value_bits, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&h->value_bits, &old,
                                                  double_to_bits(bits_to_double(old) + value),
                                                  memory_order_relaxed, memory_order_relaxed))
        ;
}

uint64_t metric_count(const struct metric *c)
{
    return atomic_load_explicit(&c->count, memory_order_relaxed);
}

double metric_value(const struct metric *g)
{
    return bits_to_double(atomic_load_explicit(&g->value_bits, memory_order_relaxed));
}

static void render_name(const struct metrics *m, const char *name, const char *suffix,
                        const char *labels, const char *extra, struct buffer *out)
{
    const char *parts[] = {m->constant_labels, labels, extra};
    bool any = false;

    buffer_printf(out, "baton_%s%s", name, suffix);
    for (size_t i = 0; i < ARRAY_LENGTH(parts); i++)
        if (*parts[i]) {
            buffer_printf(out, "%s%s", any ? "," : "{", parts[i]);
            any = true;
        }
    buffer_append_string(out, any ? "} " : " ");
}

static void render_series(const struct metrics *m, const struct metric *x, const char *suffix,
                          const char *extra, struct buffer *out)
{
    render_name(m, x->name, suffix, x->labels, extra, out);
}

/* ---- families ---- */

struct metrics_samples {
    const struct metrics *metrics;
    const struct metrics_family *family;
    struct buffer *out;
    uint32_t n;
};

void metrics_add_family(struct metrics *m, struct metrics_family *f)
{
    pthread_mutex_lock(&m->lock);
    f->next = m->families;
    m->families = f;
    pthread_mutex_unlock(&m->lock);
}

void metrics_remove_family(struct metrics *m, struct metrics_family *f)
{
    pthread_mutex_lock(&m->lock);
    for (struct metrics_family **at = &m->families; *at; at = &(*at)->next)
        if (*at == f) {
            *at = f->next;
            break;
        }
    pthread_mutex_unlock(&m->lock);
}

void metrics_sample(struct metrics_samples *s, const char *labels, double value)
{
    const struct metrics_family *f = s->family;

    if (s->n++ == 0)
        buffer_printf(s->out, "# HELP baton_%s %s\n# TYPE baton_%s %s\n", f->name, f->help, f->name,
                      f->type);
    render_name(s->metrics, f->name, "", labels, "", s->out);
    buffer_printf(s->out, "%.15g\n", value);
}

static void render_families(const struct metrics *m, struct buffer *out)
{
    for (const struct metrics_family *f = m->families; f; f = f->next) {
        struct metrics_samples samples = {.metrics = m, .family = f, .out = out};
        f->fill(f, &samples);
    }
}

static void render_histogram(const struct metrics *m, const struct metric *x, struct buffer *out)
{
    uint64_t cumulative = 0;

    for (uint32_t i = 0; i <= x->n_bounds; i++) {
        char le[40] = "le=\"+Inf\"";
        if (i < x->n_bounds)
            snprintf(le, sizeof le, "le=\"%g\"", x->bounds[i]);
        cumulative += atomic_load_explicit(&x->buckets[i], memory_order_relaxed);
        render_series(m, x, "_bucket", le, out);
        buffer_printf(out, "%llu\n", (unsigned long long)cumulative);
    }
    render_series(m, x, "_sum", "", out);
    buffer_printf(out, "%.9g\n", metric_value(x));
    render_series(m, x, "_count", "", out);
    buffer_printf(out, "%llu\n", (unsigned long long)cumulative);
}

/* With thousands of connections counting takes milliseconds, which whoever asks often must not cost
 * everybody. */
static unsigned count_files(struct metrics *m)
{
    const int64_t now_ms = clock_now_ms();
    unsigned n = 0;
    DIR *d;

    if (m->files_counted_ms && now_ms - m->files_counted_ms < 1000)
        return m->n_files;
    d = opendir("/proc/self/fd");
    if (d) {
        while (readdir(d))
            n++;
        closedir(d);
    }
    m->files_counted_ms = now_ms;
    m->n_files = n > 3 ? n - 3 : 0; /* ".", ".." and the folder itself */
    return m->n_files;
}

/* A process_* series, with the constant labels and without the prefix. */
static void render_process_series(const struct metrics *m, const char *name, const char *type,
                                  const char *help, struct buffer *out)
{
    buffer_printf(out, "# HELP %s %s\n# TYPE %s %s\n%s", name, help, name, type, name);
    buffer_printf(out, *m->constant_labels ? "{%s} " : "%s ", m->constant_labels);
}

static void render_process(struct metrics *m, struct buffer *out)
{
    struct rusage usage;
    unsigned long size_pages = 0, resident_pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");

    if (f) {
        if (fscanf(f, "%lu %lu", &size_pages, &resident_pages) != 2)
            resident_pages = 0;
        fclose(f);
    }
    getrusage(RUSAGE_SELF, &usage);
    render_process_series(m, "process_resident_memory_bytes", "gauge", "Memory in use.", out);
    buffer_printf(out, "%llu\n",
                  (unsigned long long)resident_pages * (unsigned long long)sysconf(_SC_PAGESIZE));
    render_process_series(m, "process_open_fds", "gauge", "Open files and sockets.", out);
    buffer_printf(out, "%u\n", count_files(m));
    render_process_series(m, "process_cpu_seconds_total", "counter", "Processor time spent.", out);
    buffer_printf(out, "%.3f\n",
                  (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                      (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6);
}

void metrics_render(struct metrics *m, struct buffer *out)
{
    static const char *const type_name[] = {"counter", "gauge", "histogram"};

    pthread_mutex_lock(&m->lock);
    for (const struct metric *x = m->first; x; x = x->next) {
        const struct metric *first = m->first;
        while (strcmp(first->name, x->name))
            first = first->next;
        if (first != x)
            continue; /* its series were printed with the first of its name */
        buffer_printf(out, "# HELP baton_%s %s\n# TYPE baton_%s %s\n", x->name, x->help, x->name,
                      type_name[x->kind]);
        for (const struct metric *s = x; s; s = s->next) {
            if (strcmp(s->name, x->name))
                continue;
            if (s->kind == HISTOGRAM) {
                render_histogram(m, s, out);
                continue;
            }
            render_series(m, s, "", "", out);
            if (s->kind == COUNTER)
                buffer_printf(out, "%llu\n", (unsigned long long)metric_count(s));
            else
                buffer_printf(out, "%.9g\n", metric_value(s));
        }
    }
    render_families(m, out);
    render_process(m, out);
    pthread_mutex_unlock(&m->lock);
}
