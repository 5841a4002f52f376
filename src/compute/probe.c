/* What the machine could do at most, on the workers that will do the work: the yardstick of `baton
 * bench`. The best of several passes counts, since everything else that runs only slows a pass. */
#include "compute/internal.h"

#include "base/clock.h"

#include <stdlib.h>

#define READ_CHUNK (1u << 20)
#define PASSES 5
#define PASS_NS 20000000 /* long enough for every worker to be awake */

struct probe {
    const struct compute_ops *ops;
    const uint8_t *data;
    uint64_t bytes;
    bool in_streams;
    enum compute_unit unit;
    uint32_t rounds;
    _Atomic uint64_t done;
};

static void read_task(struct worker *w, void *context, uint32_t task)
{
    struct probe *p = context;
    uint64_t at = (uint64_t)task * READ_CHUNK % p->bytes, n = MIN(READ_CHUNK, p->bytes - at);

    (void)w;
    p->ops->read(p->data + at, n, p->in_streams);
    atomic_fetch_add_explicit(&p->done, n, memory_order_relaxed);
}

static void peak_task(struct worker *w, void *context, uint32_t task)
{
    struct probe *p = context;

    (void)w;
    (void)task;
    atomic_fetch_add_explicit(&p->done, p->ops->peak(p->unit, p->rounds), memory_order_relaxed);
}

/* Units a second of the best pass; the number of tasks grows until a pass is long enough. */
static enum status best_pass(struct compute *c, struct probe *p, uint32_t n_tasks,
                             void (*task)(struct worker *, void *, uint32_t), double *out)
{
    double best = 0;

    for (int pass = 0; pass < PASSES;) {
        atomic_store(&p->done, 0);
        int64_t start_ns = clock_now_ns();
        TRY(pool_loop(c->pool, n_tasks, task, p));
        int64_t ns = MAX(clock_now_ns() - start_ns, (int64_t)1);
        if (ns < PASS_NS && n_tasks < 1u << 24) {
            n_tasks *= 2;
            continue;
        }
        best = MAX(best, (double)atomic_load(&p->done) * 1e9 / (double)ns);
        pass++;
    }
    *out = best;
    return STATUS_OK;
}

enum status compute_probe_read(struct compute *c, uint64_t bytes, double *out)
{
    struct probe p = {.ops = &c->ops, .bytes = MAX(bytes / 4096 * 4096, (uint64_t)4096)};
    uint8_t *data = compute_alloc(c, p.bytes);

    if (!data)
        return STATUS_NO_MEMORY;
    for (uint64_t i = 0; i < p.bytes; i += 4096) /* pages that were never written are all one */
        data[i] = 1;
    p.data = data;
    const uint32_t n_tasks = (uint32_t)((p.bytes + READ_CHUNK - 1) / READ_CHUNK);
    double in_streams = 0;
    enum status status = best_pass(c, &p, n_tasks, read_task, out);
    p.in_streams = true;
    if (status == STATUS_OK)
        status = best_pass(c, &p, n_tasks, read_task, &in_streams);
    *out = MAX(*out, in_streams);
    compute_free(c, data, p.bytes);
    return status;
}

enum status compute_probe_peak(struct compute *c, enum compute_unit unit, double *out)
{
    struct probe p = {.ops = &c->ops, .unit = unit, .rounds = 10000};

    return best_pass(c, &p, 4 * c->n_threads, peak_task, out);
}

enum compute_unit compute_matrix_unit(const struct compute_matrix *m)
{
    switch (m->form) {
    case WEIGHT_S8:
        return COMPUTE_DOT_BYTE;
    case WEIGHT_I16:
        return COMPUTE_DOT_INT16;
    case WEIGHT_F32:
        return COMPUTE_FMA_F32;
    default:
        return COMPUTE_DOT_NIBBLE;
    }
}

double compute_matrix_operations(const struct compute_matrix *m)
{
    return 2.0 * m->n_outputs * m->k;
}
