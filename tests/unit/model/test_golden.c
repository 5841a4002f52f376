/* The default model against a float64 forward pass made from parts that share no code with this
 * program (tests/golden/README.md): mean KL divergence and top-1 agreement over every position of
 * every prompt. Skipped, by name, when models/ has no file. BATON_GOLDEN_PROMPTS limits the number
 * of prompts. */
#include "base/clock.h"
#include "base/memory.h"
#include "compute/compute.h"
#include "format/gguf.h"
#include "model/model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MODEL_PATH "models/SmolLM2-135M-Instruct.Q4_1.gguf"
#define GOLDEN_PATH "tests/golden/smollm2.bin"
#define CHUNK 128
#define MAX_TOKENS 2048

struct totals {
    double kl, largest, next_difference;
    uint32_t n, n_agree;
};

struct run {
    struct compute *compute;
    struct model *model;
    struct model_limits limits;
    struct kv_view kv;
    float *logits;
};

static const unsigned char *take(const unsigned char **at, size_t bytes)
{
    const unsigned char *p = *at;

    *at += bytes;
    return p;
}

static uint32_t take_u32(const unsigned char **at)
{
    uint32_t u;

    memcpy(&u, take(at, 4), 4);
    return u;
}

/* KL over the listed ids and one bucket for the rest. */
static double divergence(const struct run *r, const float *z, const uint16_t *top,
                         const float *logprob, uint32_t n_top, double *out_log_sum)
{
    float zmax = compute_max(r->compute, z, r->limits.n_vocab);
    double log_sum = compute_log_sum(r->compute, z, r->limits.n_vocab, zmax) + zmax;
    double kl = 0, p_rest = 1, q_rest = 1;

    for (uint32_t i = 0; i < n_top; i++) {
        double lp = logprob[i], lq = (double)z[top[i]] - log_sum;
        kl += exp(lp) * (lp - lq);
        p_rest -= exp(lp);
        q_rest -= exp(lq);
    }
    if (p_rest > 1e-9 && q_rest > 1e-9)
        kl += p_rest * log(p_rest / q_rest);
    *out_log_sum = log_sum;
    return kl;
}

static uint32_t best(const float *z, uint32_t n)
{
    uint32_t b = 0;

    for (uint32_t i = 1; i < n; i++)
        b = z[i] > z[b] ? i : b;
    return b;
}

static void run_chunk(struct run *r, const uint32_t *ids, uint32_t first, uint32_t n,
                      uint32_t n_all)
{
    uint32_t positions[CHUNK], tables[CHUNK] = {0}, rows[CHUNK], pages[MAX_TOKENS / PAGE_TOKENS],
                               bad;

    for (uint32_t i = 0; i < CHUNK; i++) {
        positions[i] = first + i;
        rows[i] = i;
    }
    for (uint32_t i = 0; i < MAX_TOKENS / PAGE_TOKENS; i++)
        pages[i] = i;
    struct page_table_view table = {pages, first + n};
    struct model_batch batch = {
        .n_rows = n,
        .ids = ids + first,
        .positions = positions,
        .tables = tables,
        .page_tables = &table,
        .n_page_tables = 1,
        .kv = &r->kv,
        .n_logit_rows = n,
        .logit_rows = rows,
        .logits = r->logits,
    };
    (void)n_all;
    assert_int_equal(model_forward(r->model, &batch, &bad), STATUS_OK);
}

static void run_prompt(struct run *r, const unsigned char **at, uint32_t n_top, struct totals *all)
{
    uint32_t name_len = take_u32(at);
    const char *name = (const char *)take(at, name_len);
    uint32_t n = take_u32(at);
    uint32_t *ids = memory_alloc(n, 4);
    memcpy(ids, take(at, 4 * (size_t)n), 4 * (size_t)n);
    float *next = memory_alloc(n, 4);
    memcpy(next, take(at, 4 * (size_t)(n - 1)), 4 * (size_t)(n - 1));
    uint16_t *top = memory_alloc((size_t)n * n_top, 2);
    memcpy(top, take(at, (size_t)n * n_top * 2), (size_t)n * n_top * 2);
    float *logprob = memory_alloc((size_t)n * n_top, 4);
    memcpy(logprob, take(at, (size_t)n * n_top * 4), (size_t)n * n_top * 4);
    struct totals t = {0};

    assert_true(n <= MAX_TOKENS);
    int64_t start = clock_now_ms();
    for (uint32_t first = 0; first < n; first += CHUNK) {
        uint32_t rows = n - first < CHUNK ? n - first : CHUNK;
        run_chunk(r, ids, first, rows, n);
        for (uint32_t i = 0; i < rows; i++) {
            const float *z = r->logits + (size_t)i * r->limits.n_vocab;
            uint32_t p = first + i;
            double log_sum, kl = divergence(r, z, top + (size_t)p * n_top,
                                            logprob + (size_t)p * n_top, n_top, &log_sum);
            t.kl += kl;
            t.largest = kl > t.largest ? kl : t.largest;
            t.n_agree += best(z, r->limits.n_vocab) == top[(size_t)p * n_top];
            if (p + 1 < n)
                t.next_difference += fabs(((double)z[ids[p + 1]] - log_sum) - next[p]);
            t.n++;
        }
    }
    print_message("%-16.*s %5u positions  mean KL %.5f  top-1 %.4f  %lld ms\n", (int)name_len, name,
                  n, t.kl / n, (double)t.n_agree / n, (long long)(clock_now_ms() - start));
    all->kl += t.kl;
    all->largest = t.largest > all->largest ? t.largest : all->largest;
    all->next_difference += t.next_difference;
    all->n_agree += t.n_agree;
    all->n += t.n;
    free(ids);
    free(next);
    free(top);
    free(logprob);
}

static unsigned char *read_golden(void)
{
    FILE *f = fopen(GOLDEN_PATH, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    long size = ftell(f);
    rewind(f);
    unsigned char *data = memory_alloc((size_t)size, 1);
    assert_int_equal(fread(data, 1, (size_t)size, f), size);
    fclose(f);
    assert_memory_equal(data, "BGOLD1\0\0", 8);
    return data;
}

static void test_golden(void **state)
{
    struct gguf *file = NULL;
    struct run r = {0};
    struct totals all = {0};
    const char *limit = getenv("BATON_GOLDEN_PROMPTS");
    FILE *probe = fopen(MODEL_PATH, "rb");

    (void)state;
    if (!probe) {
        print_message("skipped: there is no " MODEL_PATH " (make model)\n");
        skip();
    }
    fclose(probe);
    assert_int_equal(gguf_open(MODEL_PATH, &file), STATUS_OK);
    assert_int_equal(compute_create(2, NULL, &r.compute), STATUS_OK);
    int64_t start = clock_now_ms();
    assert_int_equal(model_load(file, NULL, r.compute, CHUNK, CHUNK, &r.model), STATUS_OK);
    print_message("tier %s, loaded in %lld ms\n", compute_tier_name(r.compute),
                  (long long)(clock_now_ms() - start));
    gguf_release(&file);
    model_get_limits(r.model, &r.limits);
    uint64_t page = kv_page_bytes(r.limits.kv), kv_bytes = page * (MAX_TOKENS / PAGE_TOKENS);
    r.kv = (struct kv_view){compute_alloc(r.compute, kv_bytes), page, r.limits.kv};
    r.logits = memory_alloc((size_t)CHUNK * r.limits.n_vocab, sizeof *r.logits);
    assert_true(r.kv.base && r.logits);

    unsigned char *data = read_golden();
    const unsigned char *at = data + 8;
    uint32_t n_prompts = take_u32(&at), n_top = take_u32(&at);
    if (limit && (uint32_t)atoi(limit) < n_prompts)
        n_prompts = (uint32_t)atoi(limit);
    for (uint32_t i = 0; i < n_prompts; i++)
        run_prompt(&r, &at, n_top, &all);
    double kl = all.kl / all.n, agreement = (double)all.n_agree / all.n;
    print_message("%u positions: mean KL %.5f, largest %.4f, top-1 agreement %.4f, |difference of "
                  "next log-probability| %.4f\n",
                  all.n, kl, all.largest, agreement, all.next_difference / all.n);
    if (!limit) {
        assert_true(kl <= 0.0017);
        assert_true(agreement >= 0.968);
    }
    free(data);
    free(r.logits);
    compute_free(r.compute, r.kv.base, kv_bytes);
    model_destroy(&r.model);
    compute_destroy(&r.compute);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_golden)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
