/* baton score: log-probabilities of given ids, as the engine's own arithmetic gives them. */
#include "cmd/cmd.h"
#include "cmd/flags.h"

#include "base/checked.h"
#include "base/log.h"
#include "kv/kv.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SCORE_ROWS = 64, SCORE_TOP_MAX = 1024 };

struct score_options {
    const char *model;
    int64_t top, n_threads;
    bool help;
};

#define AT(field) offsetof(struct score_options, field)
static const struct flag flags[] = {
    {"--model", "-m", NULL, FLAG_STRING, AT(model), "FILE", 0, 0, "GGUF file"},
    {"--top", "-k", NULL, FLAG_INT, AT(top), "K", 0, SCORE_TOP_MAX,
     "likeliest ids at each position [1]"},
    {"--threads", "-t", NULL, FLAG_INT, AT(n_threads), "N", 1, 256,
     "compute threads [physical cores]"},
    {"--help", "-h", NULL, FLAG_BOOL, AT(help), NULL, 0, 0, "this text"},
};

/* Everything that scoring one list after another needs. */
struct scorer {
    struct loaded loaded;
    uint32_t n_top;
    float *logits; /* [SCORE_ROWS][n_vocab] */
    uint32_t *top; /* [n_top] */
    double sum_logprob;
    uint64_t n_next;
};

static enum status read_list(const json_t *list, uint32_t n_vocab, uint32_t context, uint32_t **out,
                             uint32_t *n)
{
    if (!json_is_array(list) || json_array_size(list) == 0)
        return fail(STATUS_BAD_REQUEST, "stdin is a JSON array of lists of ids, and none is empty");
    if (json_array_size(list) > context)
        return fail(STATUS_CONTEXT_LENGTH, "a list of %zu ids, the model was trained for %u",
                    json_array_size(list), context);
    *n = (uint32_t)json_array_size(list);
    uint32_t *ids = memory_alloc(*n, sizeof *ids);
    if (!ids)
        return STATUS_NO_MEMORY;
    for (uint32_t i = 0; i < *n; i++) {
        const json_t *v = json_array_get(list, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= n_vocab) {
            free(ids);
            return fail(STATUS_BAD_REQUEST, "entry %u of a list is no id below %u", i, n_vocab);
        }
        ids[i] = (uint32_t)json_integer_value(v);
    }
    *out = ids;
    return STATUS_OK;
}

static uint32_t find_top(const float *z, uint32_t n_vocab, uint32_t n_top, uint32_t *top)
{
    uint32_t n = 0;

    for (uint32_t id = 0; n_top && id < n_vocab; id++) {
        if (n == n_top && !(z[id] > z[top[n - 1]]))
            continue;
        uint32_t at = n < n_top ? n++ : n - 1;
        for (; at > 0 && z[id] > z[top[at - 1]]; at--)
            top[at] = top[at - 1];
        top[at] = id;
    }
    return n;
}

static void score_row(struct scorer *s, const float *z, int64_t next, json_t *tops,
                      json_t *logprobs, json_t *nexts)
{
    const uint32_t n_vocab = s->loaded.limits.n_vocab;
    const float zmax = compute_max(s->loaded.compute, z, n_vocab);
    const double log_sum = compute_log_sum(s->loaded.compute, z, n_vocab, zmax);
    const uint32_t n = find_top(z, n_vocab, s->n_top, s->top);
    json_t *ids = json_array(), *values = json_array();

    for (uint32_t i = 0; i < n; i++) {
        json_array_append_new(ids, json_integer(s->top[i]));
        json_array_append_new(values, json_real((double)z[s->top[i]] - zmax - log_sum));
    }
    json_array_append_new(tops, ids);
    json_array_append_new(logprobs, values);
    if (next >= 0) {
        const double logprob = (double)z[next] - zmax - log_sum;
        json_array_append_new(nexts, json_real(logprob));
        s->sum_logprob += logprob;
        s->n_next++;
    }
}

static enum status score_chunk(struct scorer *s, const struct kv_view *view, const uint32_t *pages,
                               const uint32_t *ids, uint32_t n_ids, uint32_t first, uint32_t n,
                               json_t *tops, json_t *logprobs, json_t *nexts)
{
    uint32_t positions[SCORE_ROWS], tables[SCORE_ROWS] = {0}, rows[SCORE_ROWS], bad = 0;
    const struct page_table_view table = {.pages = pages, .n_tokens = first + n};

    for (uint32_t i = 0; i < n; i++) {
        positions[i] = first + i;
        rows[i] = i;
    }
    const struct model_batch batch = {.n_rows = n,
                                      .ids = ids + first,
                                      .positions = positions,
                                      .tables = tables,
                                      .page_tables = &table,
                                      .n_page_tables = 1,
                                      .kv = view,
                                      .n_logit_rows = n,
                                      .logit_rows = rows,
                                      .logits = s->logits};
    TRY(model_forward(s->loaded.model, &batch, &bad));
    for (uint32_t i = 0; i < n; i++)
        score_row(s, s->logits + (size_t)i * s->loaded.limits.n_vocab,
                  first + i + 1 < n_ids ? (int64_t)ids[first + i + 1] : -1, tops, logprobs, nexts);
    return STATUS_OK;
}

static enum status score_list(struct scorer *s, const uint32_t *ids, uint32_t n)
{
    const uint32_t n_pages = kv_pages_of_tokens(n);
    const uint64_t bytes = kv_page_bytes(s->loaded.limits.kv) * n_pages;
    struct kv_pool *pool = NULL;
    json_t *tops = json_array(), *logprobs = json_array(), *nexts = json_array();
    uint32_t *pages = memory_alloc(n_pages, sizeof *pages);
    void *memory = compute_alloc(s->loaded.compute, bytes);
    enum status status = STATUS_NO_MEMORY;

    if (!pages || !memory)
        goto out;
    TRY_GOTO(out, kv_pool_create(memory, n_pages, s->loaded.limits.kv, &pool));
    TRY_GOTO(out, kv_pages_acquire(pool, n_pages, pages));
    const struct kv_view view = kv_pool_view(pool);
    for (uint32_t first = 0; first < n; first += SCORE_ROWS)
        TRY_GOTO(out, score_chunk(s, &view, pages, ids, n, first,
                                  MIN(n - first, (uint32_t)SCORE_ROWS), tops, logprobs, nexts));
    json_t *line = json_pack("{s:O, s:O, s:O}", "top", tops, "logprob", logprobs, "next", nexts);
    json_dumpf(line, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9));
    putchar('\n');
    json_decref(line);
out:
    kv_pool_destroy(&pool);
    if (memory)
        compute_free(s->loaded.compute, memory, bytes);
    free(pages);
    json_decref(tops);
    json_decref(logprobs);
    json_decref(nexts);
    return status;
}

static enum status score_all(struct scorer *s, const json_t *lists)
{
    if (!json_is_array(lists))
        return fail(STATUS_BAD_REQUEST, "stdin is not a JSON array of lists of ids");
    for (size_t i = 0; i < json_array_size(lists); i++) {
        uint32_t *ids = NULL, n = 0;
        TRY(read_list(json_array_get(lists, i), s->loaded.limits.n_vocab,
                      s->loaded.limits.trained_context_tokens, &ids, &n));
        const enum status status = score_list(s, ids, n);
        free(ids);
        TRY(status);
    }
    if (s->n_next)
        printf("{\"perplexity\":%.9g,\"tokens\":%llu}\n", exp(-s->sum_logprob / (double)s->n_next),
               (unsigned long long)s->n_next);
    else
        printf("{\"perplexity\":null,\"tokens\":0}\n");
    return fflush(stdout) ? fail(STATUS_IO, "stdout could not be written") : STATUS_OK;
}

static enum status score(const struct score_options *o)
{
    struct scorer s = {.n_top = (uint32_t)o->top};
    json_error_t error;
    json_t *lists = json_loadf(stdin, JSON_REJECT_DUPLICATES, &error);
    enum status status;

    if (!lists)
        return fail(STATUS_BAD_JSON, "stdin, line %d: %s", error.line, error.text);
    TRY_GOTO(out, load_model(o->model, o->n_threads ? (uint32_t)o->n_threads : host_threads(),
                             SCORE_ROWS, SCORE_ROWS, &s.loaded));
    s.logits = memory_alloc((size_t)SCORE_ROWS * s.loaded.limits.n_vocab, sizeof *s.logits);
    s.top = memory_alloc(MAX(s.n_top, 1u), sizeof *s.top);
    status = s.logits && s.top ? score_all(&s, lists) : STATUS_NO_MEMORY;
out:
    free(s.logits);
    free(s.top);
    unload_model(&s.loaded);
    json_decref(lists);
    return status;
}

int cmd_score(int argc, char **argv)
{
    struct score_options o = {.top = 1};
    struct log_options quiet = {.level = LOG_WARN};

    log_setup(&quiet);
    if (flags_parse(flags, ARRAY_LENGTH(flags), argc, argv, &o, NULL, NULL, 0, NULL) != STATUS_OK) {
        fprintf(stderr, "baton score: %s\n", status_message());
        return EXIT_USAGE;
    }
    if (o.help) {
        printf("usage: baton score -m FILE [--top K] < lists.json\n\n"
               "stdin: a JSON array of lists of ids. stdout: for each list a JSON line with `top` "
               "and `logprob` (the K\n"
               "likeliest next ids at each position and their natural-log probabilities) and "
               "`next` (that of the id that\n"
               "follows); at the end the perplexity.\n\n");
        flags_print(stdout, flags, ARRAY_LENGTH(flags));
        return 0;
    }
    if (!o.model) {
        fprintf(stderr, "baton score: -m FILE is missing\n");
        return EXIT_USAGE;
    }
    if (score(&o) != STATUS_OK) {
        fprintf(stderr, "baton score: %s\n", status_message());
        return EXIT_FAULT;
    }
    return 0;
}
