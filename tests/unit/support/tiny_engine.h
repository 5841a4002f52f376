/* A tiny random model with its vocabulary and an engine on it, for tests of whatever sits above a
 * model. */
#ifndef BATON_TESTS_UNIT_SUPPORT_TINY_ENGINE_H
#define BATON_TESTS_UNIT_SUPPORT_TINY_ENGINE_H

#include "base/clock.h"
#include "engine/engine.h"
#include "unit/model/tiny.h"
#include "unit/text/small_vocabulary.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h> /* last: it has a macro named fail */

enum { TINY_CHUNK = 64, TINY_SLOTS = 8, TINY_CONTEXT = 512 };

struct tiny_world {
    struct vocabulary *vocabulary;
    struct compute *compute;
    struct model *model;
};

static inline void tiny_world_open(struct tiny_world *w, uint32_t n_threads)
{
    const struct tiny t = {.arch = "llama",
                           .matrix = DTYPE_Q4_1,
                           .embedding = DTYPE_Q8_0,
                           .n_layers = 3,
                           .n_embd = 64,
                           .n_ff = 128,
                           .n_heads = 4,
                           .n_kv_heads = 2,
                           .head_dim = 16,
                           .n_vocab = N_SMALL_TOKENS,
                           .seed = 7};
    const struct engine_options eo = {.n_slots = TINY_SLOTS};
    struct gguf *file = tiny_open(&t);

    assert_non_null(file);
    w->vocabulary = small_vocabulary_load("smollm", NULL);
    assert_non_null(w->vocabulary);
    assert_int_equal(compute_create(n_threads, NULL, &w->compute), STATUS_OK);
    assert_int_equal(model_load(file, NULL, w->compute, TINY_SLOTS + TINY_CHUNK,
                                engine_max_logit_rows(&eo), &w->model),
                     STATUS_OK);
    gguf_release(&file);
}

static inline void tiny_world_close(struct tiny_world *w)
{
    model_destroy(&w->model);
    compute_destroy(&w->compute);
    vocabulary_destroy(&w->vocabulary);
}

static inline struct engine_options tiny_engine_options(const struct tiny_world *w,
                                                        uint32_t n_pages, uint32_t chunk)
{
    return (struct engine_options){.model = w->model,
                                   .compute = w->compute,
                                   .vocabulary = w->vocabulary,
                                   .n_slots = TINY_SLOTS,
                                   .n_pages = n_pages,
                                   .max_context_tokens = TINY_CONTEXT,
                                   .max_chunk_tokens = TINY_CHUNK,
                                   .fixed_chunk_tokens = chunk,
                                   .target_step_ms = 100,
                                   .names = {.kv_type = KV_TYPE_F16}};
}

/* A request whose prompt is n pseudo-random bytes of a seed. */
static inline struct request *tiny_request(uint32_t n_prompt, uint32_t prompt_seed,
                                           uint32_t max_tokens, double temperature)
{
    struct request *r = request_create();

    r->resume.prompt_ids = arena_alloc(&r->arena, n_prompt, sizeof(uint32_t));
    for (uint32_t i = 0; i < n_prompt; i++)
        r->resume.prompt_ids[i] = (prompt_seed * 7919 + i * (31 + prompt_seed)) % 251;
    r->resume.n_prompt = n_prompt;
    r->resume.max_tokens = max_tokens;
    r->resume.ignore_eos = true;
    r->resume.seed = prompt_seed;
    r->resume.sampling.temperature = temperature;
    return r;
}

#endif
