/* baton run: one prompt, one answer; stdout has only the answer. */
#include "cmd/cmd.h"
#include "cmd/flags.h"

#include "base/checked.h"
#include "base/log.h"
#include "base/random.h"
#include "engine/engine.h"

#include <errno.h>
#include <jansson.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RUN_CHUNK_TOKENS = 512 };

struct run_options {
    const char *model, *prompt, *system;
    bool raw, help, ignore_eos, stats;
    int64_t context_tokens, n_threads, n_predict, seed, top_k;
    double temperature, top_p, min_p, repeat_penalty, frequency_penalty, presence_penalty;
};

#define AT(field) offsetof(struct run_options, field)
static const struct flag flags[] = {
    {"--model", "-m", NULL, FLAG_STRING, AT(model), "FILE", 0, 0, "GGUF file"},
    {"--prompt", "-p", NULL, FLAG_STRING, AT(prompt), "TEXT", 0, 0, "the question; - reads stdin"},
    {"--system", "-sys", "--system-prompt", FLAG_STRING, AT(system), "TEXT", 0, 0,
     "a system message before it"},
    {"--raw", NULL, NULL, FLAG_BOOL, AT(raw), NULL, 0, 0,
     "continue the text as it is, without the chat template"},
    {"--n-predict", "-n", "--predict", FLAG_INT, AT(n_predict), "N", -1, 1 << 24,
     "tokens at most [-1: up to the context]"},
    {"--ctx-size", "-c", NULL, FLAG_INT, AT(context_tokens), "N", 0, 1 << 24,
     "tokens of prompt and answer [0: as trained]"},
    {"--threads", "-t", NULL, FLAG_INT, AT(n_threads), "N", 1, 256,
     "compute threads [physical cores]"},
    {"--temp", NULL, "--temperature", FLAG_DOUBLE, AT(temperature), "T", 0, 100,
     "temperature [0: greedy]"},
    {"--top-k", NULL, NULL, FLAG_INT, AT(top_k), "N", 0, 1 << 24, "top-k [0: off]"},
    {"--top-p", NULL, NULL, FLAG_DOUBLE, AT(top_p), "P", 0, 1, "top-p [1]"},
    {"--min-p", NULL, NULL, FLAG_DOUBLE, AT(min_p), "P", 0, 1, "min-p [0]"},
    {"--repeat-penalty", NULL, NULL, FLAG_DOUBLE, AT(repeat_penalty), "R", 0.01, 100,
     "repetition penalty [1]"},
    {"--frequency-penalty", NULL, NULL, FLAG_DOUBLE, AT(frequency_penalty), "F", -2, 2,
     "frequency penalty [0]"},
    {"--presence-penalty", NULL, NULL, FLAG_DOUBLE, AT(presence_penalty), "F", -2, 2,
     "presence penalty [0]"},
    {"--seed", "-s", NULL, FLAG_INT, AT(seed), "N", -1, 9e15, "seed [-1: drawn]"},
    {"--ignore-eos", NULL, NULL, FLAG_BOOL, AT(ignore_eos), NULL, 0, 0,
     "go on behind the end of the answer"},
    {"--help", "-h", NULL, FLAG_BOOL, AT(help), NULL, 0, 0, "this text"},
};

/* The engine says so from its own thread; here that one waits for it. */
struct waiter {
    pthread_mutex_t lock;
    pthread_cond_t there;
    bool news;
};

static void on_news(void *context)
{
    struct waiter *w = context;

    pthread_mutex_lock(&w->lock);
    w->news = true;
    pthread_cond_signal(&w->there);
    pthread_mutex_unlock(&w->lock);
}

static void wait_for_news(struct waiter *w)
{
    pthread_mutex_lock(&w->lock);
    while (!w->news)
        pthread_cond_wait(&w->there, &w->lock);
    w->news = false;
    pthread_mutex_unlock(&w->lock);
}

static enum status read_all_stdin(struct buffer *out)
{
    char chunk[65536];
    size_t n;

    while ((n = fread(chunk, 1, sizeof chunk, stdin)) > 0)
        buffer_append(out, chunk, n);
    if (ferror(stdin))
        return fail(STATUS_IO, "stdin: %s", strerror(errno));
    return buffer_status(out);
}

static enum status chat_ids(const struct run_options *o, const struct vocabulary *v,
                            const char *text, size_t len, uint32_t **ids, uint32_t *n)
{
    json_t *content = json_stringn(text, len), *system = json_string(o->system ? o->system : "");

    if (!content || !system) {
        const char *what = content ? "the system message (-sys)" : "the prompt";
        json_decref(content);
        json_decref(system);
        return fail(STATUS_BAD_REQUEST, "%s is not UTF-8", what);
    }
    json_t *messages = json_array(), *variables = json_object();
    if (o->system)
        json_array_append_new(messages,
                              json_pack("{s:s, s:O}", "role", "system", "content", system));
    json_decref(system);
    json_array_append_new(messages, json_pack("{s:s, s:o}", "role", "user", "content", content));
    json_object_set_new(variables, "messages", messages);
    json_object_set_new(variables, "add_generation_prompt", json_true());
    const enum status status = chat_prompt_encode(v, variables, 0, ids, n);
    json_decref(variables);
    return status;
}

static enum status prompt_ids(const struct run_options *o, const struct vocabulary *v,
                              uint32_t **ids, uint32_t *n)
{
    struct buffer text = {0};
    enum status status = STATUS_OK;

    if (!strcmp(o->prompt, "-"))
        status = read_all_stdin(&text);
    else
        buffer_append_string(&text, o->prompt);
    if (status == STATUS_OK)
        status = buffer_status(&text);
    if (status == STATUS_OK && !o->raw && vocabulary_chat_template(v)) {
        status = chat_ids(o, v, text.data ? text.data : "", text.len, ids, n);
    } else if (status == STATUS_OK) {
        if (vocabulary_adds_bos(v) && vocabulary_bos(v) >= 0) {
            *ids = memory_alloc(1, sizeof **ids);
            if (*ids)
                (*ids)[(*n)++] = (uint32_t)vocabulary_bos(v);
        }
        status = vocabulary_encode(v, text.data ? text.data : "", text.len, true, 0, ids, n);
    }
    buffer_deinit(&text);
    return status;
}

static enum status make_request(const struct run_options *o, const struct vocabulary *v,
                                uint32_t context_tokens, struct request **out)
{
    struct request *r = request_create();
    uint32_t *ids = NULL, n = 0;
    enum status status;

    if (!r)
        return STATUS_NO_MEMORY;
    TRY_GOTO(failed, prompt_ids(o, v, &ids, &n));
    if (n == 0 || n >= context_tokens) {
        status = n ? fail(STATUS_CONTEXT_LENGTH, "the prompt has %u tokens, the context %u", n,
                          context_tokens)
                   : fail(STATUS_BAD_REQUEST, "the prompt is empty");
        goto failed;
    }
    r->resume.prompt_ids = arena_memdup(&r->arena, ids, n, sizeof *ids);
    if (!r->resume.prompt_ids) {
        status = STATUS_NO_MEMORY;
        goto failed;
    }
    r->resume.n_prompt = n;
    r->resume.seed = o->seed < 0 ? random_u64() : (uint64_t)o->seed;
    r->resume.sampling = (struct sampling){.temperature = o->temperature,
                                           .top_p = o->top_p,
                                           .min_p = o->min_p,
                                           .top_k = (uint32_t)o->top_k,
                                           .repetition_penalty = (float)o->repeat_penalty,
                                           .frequency_penalty = (float)o->frequency_penalty,
                                           .presence_penalty = (float)o->presence_penalty};
    r->resume.ignore_eos = o->ignore_eos;
    r->resume.max_tokens = context_tokens - n;
    if (o->n_predict >= 0)
        r->resume.max_tokens =
            (uint32_t)MIN((int64_t)r->resume.max_tokens, MAX(o->n_predict, (int64_t)1));
    free(ids);
    *out = r;
    return STATUS_OK;
failed:
    free(ids);
    request_destroy(&r);
    return status;
}

/* Writes the answer as it comes. */
static enum status answer(struct engine *e, struct waiter *w, const struct vocabulary *v,
                          uint32_t context_tokens, struct sequence *s)
{
    struct text_stream *stream = NULL;
    struct sequence_view view;
    uint32_t n_shown = 0;
    bool ended = false;
    enum status status =
        text_stream_create(v, &sequence_request(s)->resume, context_tokens, &stream);

    engine_submit(e, s);
    do {
        wait_for_news(w);
        while (engine_next_news(e))
            ;
        sequence_get_view(s, &view);
        for (; status == STATUS_OK && !ended && n_shown < view.n_generated; n_shown++) {
            struct text_released released;
            status = text_stream_feed(stream, view.generated[n_shown], &released);
            if (status != STATUS_OK)
                break;
            ended = released.ended;
            fwrite(released.bytes, 1, released.len, stdout);
            if (fflush(stdout))
                status = fail(STATUS_IO, "stdout: %s", strerror(errno));
        }
        if (status != STATUS_OK)
            engine_cancel(e, s);
    } while (!view.ended);
    text_stream_destroy(&stream);
    if (status == STATUS_OK && view.status != STATUS_OK)
        status = fail(view.status, "%s", view.message);
    return status;
}

static enum status run(const struct run_options *o)
{
    struct waiter w = {.lock = PTHREAD_MUTEX_INITIALIZER, .there = PTHREAD_COND_INITIALIZER};
    struct engine_options eo = {.n_slots = 1,
                                .max_chunk_tokens = RUN_CHUNK_TOKENS,
                                .target_step_ms = 1000,
                                .news = on_news,
                                .news_context = &w};
    struct loaded l = {0};
    struct engine *e = NULL;
    struct request *r = NULL;
    struct sequence *s = NULL;
    struct kv_plan kv;
    enum status status;

    TRY(load_model(o->model, o->n_threads ? (uint32_t)o->n_threads : host_threads(),
                   1 + RUN_CHUNK_TOKENS, engine_max_logit_rows(&eo), &l));
    TRY_GOTO(out, plan_kv(&l.limits, o->context_tokens, o->context_tokens > 0, 1, 0, &kv));
    TRY_GOTO(out, make_request(o, l.vocabulary, kv.context_tokens, &r));
    eo.model = l.model;
    eo.compute = l.compute;
    eo.vocabulary = l.vocabulary;
    eo.n_pages = kv.n_pages;
    eo.max_context_tokens = kv.context_tokens;
    eo.names.kv_type = KV_TYPE_F16;
    TRY_GOTO(out, engine_create(&eo, &e));
    TRY_GOTO(out, sequence_create(e, r, SEQUENCE_WHOLE, &s));
    r = NULL;
    status = answer(e, &w, l.vocabulary, kv.context_tokens, s);
    if (status == STATUS_OK && isatty(STDOUT_FILENO))
        putchar('\n');
out:
    if (e)
        engine_stop(e);
    sequence_destroy(&s);
    engine_destroy(&e);
    request_destroy(&r);
    unload_model(&l);
    return status;
}

int cmd_run(int argc, char **argv)
{
    struct run_options o = {.n_predict = -1, .seed = -1, .top_p = 1, .repeat_penalty = 1};
    struct log_options quiet = {.level = LOG_WARN};

    log_setup(&quiet);
    if (flags_parse(flags, ARRAY_LENGTH(flags), argc, argv, &o, NULL, NULL, 0, NULL) != STATUS_OK) {
        fprintf(stderr, "baton run: %s\n", status_message());
        return EXIT_USAGE;
    }
    if (o.help) {
        printf("usage: baton run -m FILE -p TEXT [flags]\n\n");
        flags_print(stdout, flags, ARRAY_LENGTH(flags));
        return 0;
    }
    if (!o.model || !o.prompt) {
        fprintf(stderr,
                o.model ? "baton run: -p TEXT is missing (-p - reads stdin)\n"
                        : "baton run: -m FILE is missing (`make model` fetches a small model into "
                          "models/)\n");
        return EXIT_USAGE;
    }
    signal(SIGPIPE, SIG_DFL);
    if (run(&o) != STATUS_OK) {
        fprintf(stderr, "baton run: %s\n", status_message());
        return EXIT_FAULT;
    }
    return 0;
}
