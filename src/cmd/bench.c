/* baton bench: prefill (pp) and decode (tg) speed in llama-bench's form, and beside each figure how
 * near it comes to what the machine could do. */
#include "cmd/bench.h"
#include "cmd/flags.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"
#include "kv/kv.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BENCH_MAX_LIST = 16, BENCH_MAX_ROWS = 2048, BENCH_MAX_SEQUENCES = 64 };

struct bench_options {
    const char *model, *output;
    struct flag_strings prompt, generate, depth, threads, sequences;
    int64_t batch, repeats;
    bool engine, transfer, help;
};

#define AT(field) offsetof(struct bench_options, field)
static const struct flag flags[] = {
    {"--model", "-m", NULL, FLAG_STRING, AT(model), "FILE", 0, 0, "GGUF file"},
    {"--n-prompt", "-p", NULL, FLAG_STRINGS, AT(prompt), "LIST", 0, 0,
     "prompt tokens to prefill [512]"},
    {"--n-gen", "-n", NULL, FLAG_STRINGS, AT(generate), "LIST", 0, 0, "tokens to decode [128]"},
    {"--n-depth", "-d", NULL, FLAG_STRINGS, AT(depth), "LIST", 0, 0,
     "tokens there before each test [0]"},
    {"--parallel", "-np", NULL, FLAG_STRINGS, AT(sequences), "LIST", 0, 0,
     "sequences that decode together [1]"},
    {"--batch-size", "-b", NULL, FLAG_INT, AT(batch), "N", 1, BENCH_MAX_ROWS,
     "tokens of a prefill step [512]"},
    {"--threads", "-t", NULL, FLAG_STRINGS, AT(threads), "LIST", 0, 0,
     "compute threads [physical cores]"},
    {"--repetitions", "-r", NULL, FLAG_INT, AT(repeats), "N", 1, BENCH_MAX_REPEATS,
     "repetitions, after one to warm up [5]"},
    {"--engine", NULL, NULL, FLAG_BOOL, AT(engine), NULL, 0, 0,
     "also decode through the engine, with sampling, and show its own share of the time"},
    {"--transfer", NULL, NULL, FLAG_BOOL, AT(transfer), NULL, 0, 0,
     "instead: the KV of -p tokens to another process, as a hand-off (with and without TLS) and as "
     "a "
     "plain copy"},
    {"--output", "-o", NULL, FLAG_STRING, AT(output), "FORM", 0, 0, "md, csv or json [md]"},
    {"--help", "-h", NULL, FLAG_BOOL, AT(help), NULL, 0, 0, "this text"},
};

struct bench {
    const struct bench_options *options;
    struct loaded loaded;
    struct kv_pool *pool;
    void *memory;
    uint64_t memory_bytes;
    uint32_t *pages[BENCH_MAX_SEQUENCES];
    uint32_t n_pages_each;
    float *logits;
    uint32_t random;
    uint64_t n_values; /* of all tensors */
    uint32_t n_results;
};

struct result {
    char test[40];
    double median, deviation;
    /* Units: bytes or operations a second; limit 0: there is none. */
    bool by_bytes;
    double achieved, limit;
    double own_share; /* of the engine, in its time; negative: not through the engine */
};

static uint32_t next_id(struct bench *b)
{
    b->random = b->random * 1103515245u + 12345u;
    return 3 + (b->random >> 8) % (b->loaded.limits.n_vocab - 4);
}

/* One step: n rows from `first` on in each of n_sequences sequences, logits for each one's last. */
static enum status step(struct bench *b, uint32_t n_sequences, uint32_t first, uint32_t n)
{
    static uint32_t ids[BENCH_MAX_ROWS], positions[BENCH_MAX_ROWS], tables[BENCH_MAX_ROWS];
    struct page_table_view views[BENCH_MAX_SEQUENCES];
    uint32_t logit_rows[BENCH_MAX_SEQUENCES], bad, row = 0;
    const struct kv_view view = kv_pool_view(b->pool);

    for (uint32_t s = 0; s < n_sequences; s++) {
        views[s] = (struct page_table_view){.pages = b->pages[s], .n_tokens = first + n};
        for (uint32_t i = 0; i < n; i++, row++) {
            ids[row] = next_id(b);
            positions[row] = first + i;
            tables[row] = s;
        }
        logit_rows[s] = row - 1;
    }
    const struct model_batch batch = {.n_rows = row,
                                      .ids = ids,
                                      .positions = positions,
                                      .tables = tables,
                                      .page_tables = views,
                                      .n_page_tables = n_sequences,
                                      .kv = &view,
                                      .n_logit_rows = n_sequences,
                                      .logit_rows = logit_rows,
                                      .logits = b->logits};
    return model_forward(b->loaded.model, &batch, &bad);
}

static enum status fill(struct bench *b, uint32_t n_sequences, uint32_t first, uint32_t n)
{
    const uint32_t chunk = MAX(1u, (uint32_t)b->options->batch / n_sequences);

    for (uint32_t done = 0; done < n; done += chunk)
        TRY(step(b, n_sequences, first + done, MIN(chunk, n - done)));
    return STATUS_OK;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static double median(double *v, uint32_t n)
{
    qsort(v, n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : 0.5 * (v[n / 2 - 1] + v[n / 2]);
}

/* The limit, probed now; kept if it is higher than the one before. */
static enum status probe_limit(const struct bench *b, bool decode, uint32_t n, uint32_t depth,
                               uint32_t n_sequences, struct bench_limit *best)
{
    struct bench_probes probes = {0};
    struct bench_limit limit;

    TRY(decode ? bench_limit_decode(&probes, &b->loaded, depth, n, n_sequences, &limit)
               : bench_limit_prefill(&probes, &b->loaded, depth, n, (uint32_t)b->options->batch,
                                     &limit));
    if (limit.seconds < best->seconds)
        *best = limit;
    return STATUS_OK;
}

/* Medians of the repetitions. What else runs on the host comes and goes, so that the limit is
 * probed before them and after. */
static enum status measure(struct bench *b, bool decode, uint32_t n, uint32_t depth,
                           uint32_t n_sequences, struct result *out)
{
    double speed[BENCH_MAX_REPEATS], mean = 0, square = 0;
    const uint32_t repeats = (uint32_t)b->options->repeats;
    struct bench_limit limit = {.seconds = INFINITY};

    TRY(probe_limit(b, decode, n, depth, n_sequences, &limit));
    TRY(fill(b, n_sequences, 0, depth));
    for (uint32_t r = 0; r <= repeats; r++) {
        const int64_t start_ns = clock_now_ns();
        if (decode)
            for (uint32_t i = 0; i < n; i++)
                TRY(step(b, n_sequences, depth + i, 1));
        else
            TRY(fill(b, n_sequences, depth, n));
        const double seconds = (double)(clock_now_ns() - start_ns) * 1e-9;
        if (r)
            speed[r - 1] = (double)n * n_sequences / seconds;
    }
    TRY(probe_limit(b, decode, n, depth, n_sequences, &limit));
    for (uint32_t r = 0; r < repeats; r++) {
        mean += speed[r] / repeats;
        square += speed[r] * speed[r] / repeats;
    }
    out->median = median(speed, repeats);
    out->deviation = sqrt(MAX(square - mean * mean, 0.0));
    out->by_bytes = limit.by_bytes;
    out->achieved = limit.work * out->median / ((double)n * n_sequences);
    out->limit = limit.work / limit.seconds;
    out->own_share = -1;
    int at = snprintf(out->test, sizeof out->test, "%s%u", decode ? "tg" : "pp", n);
    if (depth)
        at += snprintf(out->test + at, sizeof out->test - (size_t)at, " @ d%u", depth);
    if (n_sequences > 1)
        snprintf(out->test + at, sizeof out->test - (size_t)at, " x %u", n_sequences);
    return STATUS_OK;
}

static enum status measure_engine(struct bench *b, uint32_t n, uint32_t n_sequences,
                                  struct result *out)
{
    *out = (struct result){0};
    TRY(bench_engine(&b->loaded, n, n_sequences, &out->median, &out->own_share));
    snprintf(out->test, sizeof out->test, n_sequences > 1 ? "engine tg%u x %u" : "engine tg%u", n,
             n_sequences);
    return STATUS_OK;
}

/* "31.4 of 40.2 GB/s, 78%" or "engine 0.7%". */
static void describe_limit(const struct result *r, char *out, size_t size)
{
    if (r->own_share >= 0)
        snprintf(out, size, "engine's own %.2f%%", 100 * r->own_share);
    else if (r->by_bytes)
        snprintf(out, size, "%.1f of %.1f GB/s, %2.0f%%", r->achieved * 1e-9, r->limit * 1e-9,
                 100 * r->achieved / r->limit);
    else
        snprintf(out, size, "%.0f of %.0f GOPS, %2.0f%%", r->achieved * 1e-9, r->limit * 1e-9,
                 100 * r->achieved / r->limit);
}

static void print_result(struct bench *b, const struct result *r)
{
    const char *name = strrchr(b->options->model, '/'), *form = b->options->output;
    const double size = (double)gguf_file_bytes(b->loaded.file) / 1048576,
                 millions = (double)b->n_values * 1e-6;
    const uint32_t threads = compute_n_threads(b->loaded.compute);
    const char *tier = compute_tier_name(b->loaded.compute);

    const double of_limit = r->limit > 0 ? r->achieved / r->limit : 0;
    const char *unit = r->own_share >= 0 ? "" : r->by_bytes ? "GB/s" : "GOPS";

    name = name ? name + 1 : b->options->model;
    if (!strcmp(form, "csv")) {
        if (!b->n_results)
            printf("model,size_mib,params_m,backend,threads,test,tokens_per_second,stddev,unit,"
                   "achieved,limit,of_limit,engine_share\n");
        printf("%s,%.2f,%.2f,%s,%u,%s,%.2f,%.2f,%s,%.2f,%.2f,%.4f,%.5f\n", name, size, millions,
               tier, threads, r->test, r->median, r->deviation, unit, r->achieved * 1e-9,
               r->limit * 1e-9, of_limit, MAX(r->own_share, 0.0));
    } else if (!strcmp(form, "json")) {
        printf("%s{\"model\":\"%s\",\"size_mib\":%.2f,\"params_m\":%.2f,\"backend\":\"%s\","
               "\"threads\":%u,\"test\":\"%s\",\"tokens_per_second\":%.2f,\"stddev\":%.2f,"
               "\"unit\":\"%s\",\"achieved\":%.2f,\"limit\":%.2f,\"of_limit\":%.4f,"
               "\"engine_share\":%.5f}",
               b->n_results ? ",\n " : "[", name, size, millions, tier, threads, r->test, r->median,
               r->deviation, unit, r->achieved * 1e-9, r->limit * 1e-9, of_limit,
               MAX(r->own_share, 0.0));
    } else {
        char limit[64];
        describe_limit(r, limit, sizeof limit);
        if (!b->n_results)
            printf("| model                          |       size |     params | backend    | "
                   "threads |            test |                  t/s |                of the limit "
                   "|\n"
                   "| ------------------------------ | ---------: | ---------: | ---------- | "
                   "------: | --------------: | -------------------: | --------------------------: "
                   "|\n");
        printf("| %-30.30s | %6.2f MiB | %8.2f M | %-10s | %7u | %15s | %11.2f \u00b1 %6.2f | "
               "%27s |\n",
               name, size, millions, tier, threads, r->test, r->median, r->deviation, limit);
    }
    fflush(stdout);
    b->n_results++;
}

static void print_end(const struct bench *b)
{
    if (!b->n_results || !strcmp(b->options->output, "csv"))
        return;
    if (!strcmp(b->options->output, "json")) {
        printf("]\n");
        return;
    }
    printf("\nThe limit is what probes on the same threads reach: of a prefill in multiplications "
           "and additions\n(GOPS), of decode in them or in bytes read (GB/s), whichever would take "
           "a step longer.\n");
    if (b->options->engine)
        printf("The engine's own is what it takes beside the model: planning, page tables, "
               "sampling.\n");
}

static enum status allocate(struct bench *b, uint32_t n_sequences, uint32_t n_tokens)
{
    const struct model_limits *l = &b->loaded.limits;

    b->n_pages_each = kv_pages_of_tokens(n_tokens);
    b->memory_bytes = kv_page_bytes(l->kv) * b->n_pages_each * n_sequences;
    b->memory = compute_alloc(b->loaded.compute, b->memory_bytes);
    b->logits = memory_alloc((size_t)n_sequences * l->n_vocab, sizeof *b->logits);
    if (!b->memory || !b->logits)
        return STATUS_NO_MEMORY;
    TRY(kv_pool_create(b->memory, b->n_pages_each * n_sequences, l->kv, &b->pool));
    for (uint32_t s = 0; s < n_sequences; s++) {
        b->pages[s] = memory_alloc(b->n_pages_each, sizeof **b->pages);
        if (!b->pages[s])
            return STATUS_NO_MEMORY;
        TRY(kv_pages_acquire(b->pool, b->n_pages_each, b->pages[s]));
    }
    return STATUS_OK;
}

static void release(struct bench *b)
{
    for (uint32_t s = 0; s < BENCH_MAX_SEQUENCES; s++) {
        free(b->pages[s]);
        b->pages[s] = NULL;
    }
    kv_pool_destroy(&b->pool);
    if (b->memory)
        compute_free(b->loaded.compute, b->memory, b->memory_bytes);
    b->memory = NULL;
    free(b->logits);
    b->logits = NULL;
    unload_model(&b->loaded);
}

static enum status read_numbers(const struct flag_strings *list, const char *flag, int64_t fallback,
                                int64_t max, uint32_t *out, uint32_t *n)
{
    *n = 0;
    if (!list->n)
        out[(*n)++] = (uint32_t)fallback;
    for (uint32_t i = 0; i < list->n; i++) {
        char *end;
        const long long v = strtoll(list->items[i], &end, 10);
        if (*end || end == list->items[i] || v < 0 || v > max || *n == BENCH_MAX_LIST)
            return fail(STATUS_USAGE, "%s wants up to %d numbers of at most %lld, not \"%s\"", flag,
                        BENCH_MAX_LIST, (long long)max, list->items[i]);
        out[(*n)++] = (uint32_t)v;
    }
    return STATUS_OK;
}

struct lists {
    uint32_t prompt[BENCH_MAX_LIST], generate[BENCH_MAX_LIST], depth[BENCH_MAX_LIST],
        threads[BENCH_MAX_LIST], sequences[BENCH_MAX_LIST];
    uint32_t n_prompt, n_generate, n_depth, n_threads, n_sequences;
};

static uint32_t largest(const uint32_t *v, uint32_t n)
{
    uint32_t m = 0;

    for (uint32_t i = 0; i < n; i++)
        m = MAX(m, v[i]);
    return m;
}

static enum status run_tests(struct bench *b, const struct lists *l)
{
    struct result r;

    for (uint32_t d = 0; d < l->n_depth; d++) {
        for (uint32_t i = 0; i < l->n_prompt; i++)
            if (l->prompt[i]) {
                TRY(measure(b, false, l->prompt[i], l->depth[d], 1, &r));
                print_result(b, &r);
            }
        for (uint32_t i = 0; i < l->n_generate; i++)
            for (uint32_t s = 0; s < l->n_sequences; s++)
                if (l->generate[i]) {
                    TRY(measure(b, true, l->generate[i], l->depth[d], MAX(1u, l->sequences[s]),
                                &r));
                    print_result(b, &r);
                }
    }
    for (uint32_t i = 0; b->options->engine && i < l->n_generate; i++)
        for (uint32_t s = 0; s < l->n_sequences; s++)
            if (l->generate[i]) {
                TRY(measure_engine(b, l->generate[i], MAX(1u, l->sequences[s]), &r));
                print_result(b, &r);
            }
    return STATUS_OK;
}

static enum status bench(const struct bench_options *o)
{
    struct bench b = {.options = o, .random = 12345};
    struct lists l;
    enum status status = STATUS_OK;

    TRY(read_numbers(&o->prompt, "-p", 512, 1 << 20, l.prompt, &l.n_prompt));
    TRY(read_numbers(&o->generate, "-n", 128, 1 << 20, l.generate, &l.n_generate));
    TRY(read_numbers(&o->depth, "-d", 0, 1 << 20, l.depth, &l.n_depth));
    TRY(read_numbers(&o->threads, "-t", host_threads(), 256, l.threads, &l.n_threads));
    TRY(read_numbers(&o->sequences, "-np", 1, BENCH_MAX_SEQUENCES, l.sequences, &l.n_sequences));
    if (strcmp(o->output, "md") && strcmp(o->output, "csv") && strcmp(o->output, "json"))
        return fail(STATUS_USAGE, "-o wants md, csv or json, not \"%s\"", o->output);
    if (!largest(l.prompt, l.n_prompt) && !largest(l.generate, l.n_generate))
        return fail(STATUS_USAGE, "-p 0 and -n 0 leave nothing to measure");
    if (o->transfer)
        return bench_transfer(o->model, l.prompt[0], (uint32_t)o->repeats);
    const uint32_t n_tokens = largest(l.depth, l.n_depth) +
                              MAX(largest(l.prompt, l.n_prompt), largest(l.generate, l.n_generate));
    for (uint32_t t = 0; status == STATUS_OK && t < l.n_threads; t++) {
        status = load_model(o->model, MAX(1u, l.threads[t]), BENCH_MAX_ROWS,
                            2 * BENCH_MAX_SEQUENCES, &b.loaded);
        if (status != STATUS_OK)
            break;
        b.n_values = 0;
        for (uint64_t i = 0; i < gguf_n_tensors(b.loaded.file); i++)
            b.n_values += gguf_tensor_at(b.loaded.file, i)->n_elements;
        status = allocate(&b, MAX(1u, largest(l.sequences, l.n_sequences)), n_tokens);
        if (status == STATUS_OK)
            status = run_tests(&b, &l);
        release(&b);
    }
    print_end(&b);
    return status;
}

int cmd_bench(int argc, char **argv)
{
    struct bench_options o = {.batch = 512, .repeats = 5, .output = "md"};
    struct log_options quiet = {.level = LOG_WARN};

    log_setup(&quiet);
    if (flags_parse(flags, ARRAY_LENGTH(flags), argc, argv, &o, NULL, NULL, 0, NULL) != STATUS_OK) {
        fprintf(stderr, "baton bench: %s\n", status_message());
        return EXIT_USAGE;
    }
    if (o.help) {
        printf("usage: baton bench -m FILE [flags]      lists are comma-separated; figures are "
               "medians\n\n");
        flags_print(stdout, flags, ARRAY_LENGTH(flags));
        return 0;
    }
    if (!o.model) {
        fprintf(stderr, "baton bench: -m FILE is missing\n");
        return EXIT_USAGE;
    }
    const enum status status = bench(&o);
    if (status != STATUS_OK) {
        fprintf(stderr, "baton bench: %s\n", status_message());
        return status == STATUS_USAGE ? EXIT_USAGE : EXIT_FAULT;
    }
    return 0;
}
