/* The limits that `baton bench` holds speed against: what must be read over the bandwidth of a
 * buffer of that size, multiply-adds over the peak of the instructions that a type's products are
 * made of. */
#include "cmd/bench.h"

#include "base/checked.h"

/* The probe's rate for n bytes; sizes within a sixteenth share a measurement. */
static enum status read_rate(struct bench_probes *p, const struct loaded *l, double n, double *out)
{
    const uint64_t bytes = (uint64_t)n;

    for (uint32_t i = 0; i < p->n_read; i++)
        if (bytes / 16 * 15 <= p->read_bytes[i] && p->read_bytes[i] / 16 * 15 <= bytes) {
            *out = p->read[i];
            return STATUS_OK;
        }
    TRY(compute_probe_read(l->compute, bytes, out));
    const uint32_t i = p->n_read < ARRAY_LENGTH(p->read) ? p->n_read++ : p->n_read - 1;
    p->read[i] = *out;
    p->read_bytes[i] = bytes;
    return STATUS_OK;
}

struct operations {
    double all, seconds;
};

static enum status add_operations(struct bench_probes *p, const struct loaded *l,
                                  enum compute_unit unit, double n, struct operations *to)
{
    if (n <= 0)
        return STATUS_OK;
    if (p->peak[unit] <= 0)
        TRY(compute_probe_peak(l->compute, unit, &p->peak[unit]));
    to->all += n;
    to->seconds += n / p->peak[unit];
    return STATUS_OK;
}

/* Of so many rows, of which n_logit_rows have logits; keys: those of all rows of one layer, and of
 * the rows with logits, which alone look at keys in the last layer. */
static enum status count(struct bench_probes *p, const struct loaded *l, double n_rows,
                         double n_logit_rows, double keys, double logit_keys,
                         struct operations *out)
{
    struct model_work work;
    struct operations sum = {0};

    model_get_work(l->model, &work);
    for (int unit = 0; unit < COMPUTE_N_UNITS; unit++)
        TRY(add_operations(
            p, l, (enum compute_unit)unit,
            n_rows * work.row_operations[unit] + n_logit_rows * work.logit_operations[unit], &sum));
    TRY(add_operations(p, l, COMPUTE_FMA_F32,
                       work.key_operations * ((double)(l->limits.n_layers - 1) * keys + logit_keys),
                       &sum));
    *out = sum;
    return STATUS_OK;
}

enum status bench_limit_prefill(struct bench_probes *p, const struct loaded *l, uint32_t depth,
                                uint32_t n, uint32_t chunk, struct bench_limit *out)
{
    double keys = 0, logit_keys = 0, n_steps = 0;
    struct operations sum;

    for (uint32_t done = 0; done < n; done += chunk, n_steps++) {
        const uint32_t end = MIN(done + chunk, n);
        for (uint32_t i = done; i < end; i++)
            keys += depth + i + 1;
        logit_keys += depth + end;
    }
    TRY(count(p, l, n, n_steps, keys, logit_keys, &sum));
    *out = (struct bench_limit){.work = sum.all, .seconds = sum.seconds};
    return STATUS_OK;
}

enum status bench_limit_decode(struct bench_probes *p, const struct loaded *l, uint32_t depth,
                               uint32_t n, uint32_t n_sequences, struct bench_limit *out)
{
    const double keys = (double)n_sequences * (depth + 0.5 * (n + 1)); /* of a step, on average */
    struct model_work work;
    struct operations sum;
    double rate;

    model_get_work(l->model, &work);
    const double bytes = (double)work.weight_bytes + keys * (double)work.kv_token_bytes;
    TRY(read_rate(p, l, bytes, &rate));
    TRY(count(p, l, n_sequences, n_sequences, keys, keys, &sum));
    const double read_s = bytes / rate;
    if (read_s >= sum.seconds)
        *out = (struct bench_limit){.by_bytes = true, .work = bytes * n, .seconds = read_s * n};
    else
        *out = (struct bench_limit){.work = sum.all * n, .seconds = sum.seconds * n};
    return STATUS_OK;
}
