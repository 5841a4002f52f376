/* A request's body, JSON or not, into a request: whatever comes, the parser says why not or makes
 * requests that keep the promises of struct resume. */
#include "api/internal.h"

#include "../tests/unit/api/fake_text.h"

#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const model_ids[] = {"tiny"};

#define CHECK(x)                                                                                   \
    do {                                                                                           \
        if (!(x))                                                                                  \
            abort();                                                                               \
    } while (0)

static void check(const struct call *c)
{
    for (uint32_t i = 0; i < c->n_choices; i++) {
        const struct resume *s = &c->choices[i].request->resume;

        CHECK(s->n_prompt > 0 && s->n_prompt < c->context_tokens);
        CHECK(s->max_tokens > 0 && s->max_tokens <= c->context_tokens - s->n_prompt);
        CHECK(s->min_tokens <= s->max_tokens);
        CHECK(s->n_stops <= REQUEST_MAX_STOPS && s->n_logit_bias <= REQUEST_MAX_LOGIT_BIAS);
        CHECK(s->n_logprobs <= REQUEST_MAX_LOGPROBS &&
              s->n_prompt_logprobs <= REQUEST_MAX_LOGPROBS);
        CHECK(s->sampling.temperature >= 0 && s->sampling.top_p > 0 && s->sampling.top_p <= 1);
        CHECK(s->sampling.repetition_penalty > 0);
        for (uint32_t k = 0; k < s->n_prompt; k++)
            CHECK(s->prompt_ids[k] < FAKE_N);
        for (uint32_t k = 0; k < s->n_logit_bias; k++)
            CHECK(s->logit_bias[k].id < FAKE_N);
        CHECK(c->choices[i].text != NULL);
    }
}

/* What a request can make of an answer without any service. */
static void answer(struct call *c)
{
    struct buffer out = {0};

    reply_whole(c, &out);
    json_decref(json_loadb(out.data, out.len, JSON_REJECT_DUPLICATES, NULL));
    buffer_deinit(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct api api;
    struct call c = {.api = &api, .context_tokens = 512, .n_logprobs = -1};

    if (api.vocabulary == NULL) {
        api.vocabulary = fake_vocabulary_init();
        api_options_init(&api.options);
        api.options.model_ids = model_ids;
        api.options.n_model_ids = 1;
        api.options.max_prompts = 8;
    }
    if (size == 0)
        return 0;
    c.kind = data[0] % 4;
    fake_vocabulary.adds_bos = data[0] & 4;
    strcpy(c.id, "cmpl-0");
    buffer_append(&c.body, data + 1, size - 1);
    if (c.kind == CALL_TOKENIZE)
        tokenize_parse(&c);
    else if (c.kind == CALL_DETOKENIZE)
        detokenize_parse(&c);
    else
        call_parse(&c);
    if (c.error.status == STATUS_OK && c.kind <= CALL_COMPLETION) {
        check(&c);
        answer(&c);
    }
    CHECK(c.error.status == STATUS_OK || c.error.message[0] != '\0');
    for (uint32_t i = 0; i < c.n_choices; i++) {
        request_destroy(&c.choices[i].request);
        text_stream_destroy(&c.choices[i].text);
        buffer_deinit(&c.choices[i].content);
        buffer_deinit(&c.choices[i].prompt_text);
        logprobs_deinit(&c.choices[i].logprobs);
    }
    buffer_deinit(&c.body);
    buffer_deinit(&c.out);
    arena_deinit(&c.arena);
    return 0;
}
