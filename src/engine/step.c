/* A planned step, run: the model forward, then what its rows mean for each sequence. */
#include "engine/internal.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"

#include <stdio.h>

static enum status prompt_rows_of(struct engine *e, struct sequence *s, uint32_t *logit_row)
{
    const struct step_plan *p = &e->plan;
    uint32_t n_done = 0;

    for (; *logit_row < p->n_logit_rows && p->logit_rows[*logit_row] < s->step_row + s->step_rows;
         (*logit_row)++) {
        const uint32_t position = s->n_computed + p->logit_rows[*logit_row] - s->step_row;
        if (position + 1 >= s->n_prompt)
            break; /* the row that is sampled from */
        if (position < atomic_load_explicit(&s->published_prompt_rows, memory_order_relaxed))
            continue; /* computed again after a pre-emption */
        TRY(sampler_logprobs(&e->sampler, e->logits + (size_t)*logit_row * e->limits.n_vocab,
                             s->ids[position + 1], &s->prompt_rows, position));
        n_done = position + 1;
    }
    if (n_done)
        atomic_store(&s->published_prompt_rows, n_done);
    return STATUS_OK;
}

static enum status sample_next(struct engine *e, struct sequence *s, const float *logits,
                               uint32_t *id)
{
    const struct resume *r = &s->request->resume;
    const uint32_t index = s->n_ids - s->n_prompt;

    TRY(sampler_draw(&e->sampler, logits, r, r->seed, index, s->prompt_seen, s->generated_counts,
                     id));
    if (s->generated_rows.value)
        TRY(sampler_logprobs(&e->sampler, logits, *id, &s->generated_rows, index));
    e->live.n_tokens_sampled++;
    return STATUS_OK;
}

/* What a step means for one of its sequences. logit_row: the first of the plan's logit rows that
 * may be this one's. */
static void finish_rows(struct engine *e, struct sequence *s, uint32_t *logit_row)
{
    const bool to_the_end = s->n_computed + s->step_rows == s->n_ids;
    const uint32_t first_logit_row = *logit_row;
    enum status status = STATUS_OK;
    uint32_t id = 0;

    while (*logit_row < e->plan.n_logit_rows &&
           e->plan.logit_rows[*logit_row] < s->step_row + s->step_rows)
        ++*logit_row;
    if (s->failed_numerics) {
        sequence_stop(e, s, STATUS_NUMERICS,
                      "the model's activations left the range of finite numbers");
        return;
    }
    if (s->prompt_rows.value) {
        uint32_t row = first_logit_row;
        status = prompt_rows_of(e, s, &row);
    }
    if (status == STATUS_OK && to_the_end)
        status = sample_next(e, s, e->logits + (size_t)(*logit_row - 1) * e->limits.n_vocab, &id);
    if (s->n_computed < s->n_prompt)
        e->live.n_prompt_tokens_computed += MIN(s->step_rows, s->n_prompt - s->n_computed);
    s->n_computed += s->step_rows;
    if (status != STATUS_OK) {
        sequence_stop(e, s, status, status_message());
        return;
    }
    sequence_index_full_pages(e, s);
    if (!to_the_end) {
        if (s->prompt_rows.value)
            engine_publish(e, s);
        return;
    }
    bool goes_on = false;
    status = sequence_append_id(e, s, id, &goes_on);
    if (status != STATUS_OK) {
        sequence_stop(e, s, status, status_message());
        return;
    }
    if (s->purpose == SEQUENCE_PREFILL) {
        sequence_move_to(e, s, STATE_HELD);
        atomic_store(&s->prefilled, true);
        engine_publish(e, s);
    } else if (goes_on) {
        engine_publish(e, s);
    } else {
        sequence_end(e, s, STATUS_OK, "");
    }
}

/* Pages that are being handed over go out layer by layer, while the step runs on. */
static void layer_done(void *context, uint32_t layer)
{
    struct engine *e = context;
    bool any = false;

    for (uint32_t i = 0; i < e->plan.n_tables; i++) {
        struct sequence *s = e->plan.sequences[i];
        if (s->purpose != SEQUENCE_PREFILL)
            continue;
        atomic_store_explicit(&s->layer_tokens[layer], s->n_computed + s->step_rows,
                              memory_order_release);
        engine_publish(e, s);
        any = true;
    }
    if (any)
        e->options.news(e->options.news_context);
}

/* What the next chunk is sized by. */
static void measure_speed(struct engine *e, double step_ms)
{
    const struct step_plan *p = &e->plan;
    const double old = e->decode_step_ms;

    if (step_ms <= 0)
        return;
    if (p->n_prefill_rows == 0) {
        /* down at once, up slowly: a step that others on this machine held up says little */
        e->decode_step_ms = old <= 0 || step_ms < old ? step_ms : 0.9 * old + 0.1 * step_ms;
        return;
    }
    if (p->n_prefill_rows < 16)
        return;
    /* the answers' rows would have taken their time without the chunk too */
    const double waiting_ms = p->n_rows > p->n_prefill_rows ? old : 0;
    const double rate = p->n_prefill_rows / MAX(step_ms - waiting_ms, 0.25 * step_ms);
    e->prefill_rows_per_ms =
        e->prefill_rows_per_ms > 0 ? 0.7 * e->prefill_rows_per_ms + 0.3 * rate : rate;
}

void engine_run_step(struct engine *e)
{
    struct step_plan *p = &e->plan;
    uint32_t bad_row = UINT32_MAX, logit_row = 0;
    const struct kv_view view = kv_pool_view(e->pool);
    struct model_batch batch = {
        .n_rows = p->n_rows,
        .ids = p->ids,
        .positions = p->positions,
        .tables = p->tables,
        .page_tables = p->page_tables,
        .n_page_tables = p->n_tables,
        .kv = &view,
        .n_logit_rows = p->n_logit_rows,
        .logit_rows = p->logit_rows,
        .logits = e->logits,
        .layer_done = layer_done,
        .context = e,
    };
    const int64_t start_ns = clock_now_ns(), start_cpu_ns = clock_thread_ns();
    enum status status = model_forward(e->options.model, &batch, &bad_row);
    const int64_t step_ns = clock_now_ns() - start_ns;
    const double step_ms = (double)step_ns * 1e-6;
    const uint8_t *bad = model_bad_rows(e->options.model);
    char message[256];

    measure_speed(e, step_ms);
    e->live.n_steps++;
    e->live.model_ns += (uint64_t)step_ns;
    e->model_cpu_ns = clock_thread_ns() - start_cpu_ns;
    if (status != STATUS_OK) {
        snprintf(message, sizeof message, "%s", status_message());
        log_event(LOG_ERROR, "step failed", "reason=%s error=" LOG_Q, status_code(status),
                  log_quote(message));
    }
    for (uint32_t i = 0; i < p->n_tables; i++) {
        struct sequence *s = p->sequences[i];
        if (status != STATUS_OK && status != STATUS_NUMERICS) { /* nothing ran */
            sequence_stop(e, s, status, message);
            continue;
        }
        for (uint32_t row = s->step_row;
             status == STATUS_NUMERICS && row < s->step_row + s->step_rows; row++)
            s->failed_numerics |= bad[row];
        finish_rows(e, s, &logit_row);
    }
}
