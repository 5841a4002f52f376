/* Loading a model, and planning the memory for its pages. */
#include "cmd/cmd.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"
#include "kv/kv.h"

enum status load_model(const char *path, uint32_t n_threads, uint32_t max_rows,
                       uint32_t max_logit_rows, struct loaded *out)
{
    struct loaded l = {0};
    struct model_digester *digester = NULL;
    const int64_t start_ns = clock_now_ns();
    enum status status;

    TRY_GOTO(failed, gguf_open(path, &l.file));
    TRY_GOTO(failed, model_digester_create(l.file, &digester));
    TRY_GOTO(failed, vocabulary_load(l.file, &l.vocabulary));
    TRY_GOTO(failed, compute_create(n_threads, NULL, &l.compute));
    TRY_GOTO(failed, model_load(l.file, digester, l.compute, max_rows, max_logit_rows, &l.model));
    model_digester_destroy(&digester);
    model_get_limits(l.model, &l.limits);
    if (l.limits.n_vocab != vocabulary_view(l.vocabulary)->n_tokens) {
        status =
            fail(STATUS_BAD_MODEL, "%s: the model has %u output rows, its vocabulary %u tokens",
                 path, l.limits.n_vocab, vocabulary_view(l.vocabulary)->n_tokens);
        goto failed;
    }
    model_digest(l.model, l.model_digest);
    vocabulary_digest(l.vocabulary, l.tokenizer_digest);
    compute_numerics_digest(l.compute, l.numerics_digest);
    l.load_ms = (double)(clock_now_ns() - start_ns) * 1e-6;
    *out = l;
    return STATUS_OK;
failed:
    model_digester_destroy(&digester);
    unload_model(&l);
    return status;
}

enum status load_vocabulary(const char *path, struct loaded *l)
{
    TRY(gguf_open(path, &l->file));
    TRY(vocabulary_load(l->file, &l->vocabulary));
    vocabulary_digest(l->vocabulary, l->tokenizer_digest);
    return model_read_limits(l->file, &l->limits);
}

void unload_model(struct loaded *l)
{
    model_destroy(&l->model);
    compute_destroy(&l->compute);
    vocabulary_destroy(&l->vocabulary);
    gguf_release(&l->file);
}

enum status plan_kv(const struct model_limits *limits, int64_t context_tokens, bool context_given,
                    uint32_t n_slots, uint64_t kv_bytes, struct kv_plan *out)
{
    const uint64_t page_bytes = kv_page_bytes(limits->kv);
    uint64_t context =
        context_tokens > 0 ? (uint64_t)context_tokens : limits->trained_context_tokens;

    if (context > limits->trained_context_tokens) {
        log_event(LOG_WARN, "context is longer than the model was trained for",
                  "ctx=%llu trained=%u", (unsigned long long)context,
                  limits->trained_context_tokens);
        context = MIN(context, (uint64_t)1 << 24);
    }
    const uint64_t wanted = (context + PAGE_TOKENS - 1) / PAGE_TOKENS * n_slots;
    const uint64_t given = kv_bytes ? kv_bytes : host_memory_bytes() / 4;
    uint64_t n_pages = kv_bytes ? given / page_bytes : MIN(wanted, given / page_bytes);
    n_pages = MIN(n_pages, (uint64_t)UINT32_MAX / 2);
    if (n_pages == 0)
        return fail(STATUS_USAGE,
                    "the least KV memory is %llu bytes, one page of %d tokens; %llu are given "
                    "(--kv-mem)",
                    (unsigned long long)page_bytes, PAGE_TOKENS, (unsigned long long)given);
    if (n_pages * PAGE_TOKENS < context) {
        if (context_given)
            return fail(
                STATUS_USAGE,
                "a request of %llu tokens (-c) needs %llu bytes of KV memory, %llu are given "
                "(--kv-mem)",
                (unsigned long long)context,
                (unsigned long long)((context + PAGE_TOKENS - 1) / PAGE_TOKENS * page_bytes),
                (unsigned long long)given);
        log_event(LOG_WARN, "context lowered to what the KV memory holds", "ctx=%llu was=%llu",
                  (unsigned long long)(n_pages * PAGE_TOKENS), (unsigned long long)context);
        context = n_pages * PAGE_TOKENS;
    }
    *out = (struct kv_plan){.context_tokens = (uint32_t)context, .n_pages = (uint32_t)n_pages};
    return STATUS_OK;
}
