/* What the tests of wire/ share: numbers that repeat, and one random message of every type. */
#ifndef TESTS_WIRE_TESTS_H
#define TESTS_WIRE_TESTS_H

#include "base/checked.h"
#include "wire/wire.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t random_state = 0x9E3779B97F4A7C15u;

static inline uint64_t next_random(void)
{
    uint64_t z = random_state += 0x9E3779B97F4A7C15u;

    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static inline uint32_t below(uint32_t n)
{
    return (uint32_t)(next_random() % n);
}

static inline void random_id(char out[NODE_ID_BYTES])
{
    static const char letters[] = "abcXYZ019._-";
    const uint32_t n = 1 + below(NODE_ID_BYTES - 1);

    memset(out, 0, NODE_ID_BYTES);
    for (uint32_t i = 0; i < n; i++)
        out[i] = letters[below(sizeof letters - 1)];
}

static inline struct request_key random_key(void)
{
    struct request_key k = {.epoch = next_random(), .number = next_random(), .choice = below(9)};

    random_id(k.origin);
    return k;
}

static inline uint32_t *random_ids(struct arena *a, uint32_t n)
{
    uint32_t *ids = arena_alloc(a, n, sizeof *ids);

    for (uint32_t i = 0; i < n; i++)
        ids[i] = (uint32_t)next_random();
    return ids;
}

/* Any bits at all, infinities and NaNs included: they travel as bits. */
static inline float *random_floats(struct arena *a, uint32_t n)
{
    return (float *)random_ids(a, n);
}

static inline struct logprob_rows random_rows(struct arena *a, uint32_t n)
{
    const uint32_t n_top = below(REQUEST_MAX_LOGPROBS + 1);

    return (struct logprob_rows){.n_top = n_top,
                                 .value = random_floats(a, n),
                                 .top_ids = random_ids(a, n * n_top),
                                 .top_values = random_floats(a, n * n_top)};
}

static inline struct resume random_resume(struct arena *a)
{
    static const char *const stops[] = {"\n", "the", "\xe2\x82\xac", "a\0b"};
    struct resume r = {
        .n_prompt = below(70), .n_generated = below(40), .seed = next_random(), .choice = below(5)};

    r.prompt_ids = random_ids(a, r.n_prompt);
    r.generated_ids = random_ids(a, r.n_generated);
    r.sampling = (struct sampling){.temperature = below(1000) / 777.0,
                                   .top_p = below(1000) / 999.0,
                                   .min_p = below(1000) / 1e5,
                                   .top_k = below(100),
                                   .repetition_penalty = 0.5f + (float)below(100) / 77,
                                   .frequency_penalty = (float)below(100) / 33 - 1,
                                   .presence_penalty = (float)below(100) / 7 - 3};
    r.n_logit_bias = below(6);
    r.logit_bias = arena_alloc(a, r.n_logit_bias, sizeof *r.logit_bias);
    for (uint32_t i = 0; i < r.n_logit_bias; i++)
        r.logit_bias[i] =
            (struct logit_bias){.id = (uint32_t)next_random(), .bias = (float)below(200) / 3 - 30};
    r.n_stops = below(5);
    r.stops = arena_alloc(a, r.n_stops, sizeof *r.stops);
    for (uint32_t i = 0; i < r.n_stops; i++)
        r.stops[i] =
            (struct byte_string){.bytes = stops[i], .len = i == 3 ? 3 : (uint32_t)strlen(stops[i])};
    if (below(2))
        r.grammar = (struct byte_string){.bytes = "root ::= \"x\"", .len = 12};
    r.n_logprobs = (int32_t)below(REQUEST_MAX_LOGPROBS + 2) - 1;
    r.n_prompt_logprobs = (int32_t)below(REQUEST_MAX_LOGPROBS + 2) - 1;
    r.min_tokens = below(9);
    r.max_tokens = 1 + below(2000);
    r.ignore_eos = below(2);
    r.has_tenant = below(2);
    for (int i = 0; r.has_tenant && i < REQUEST_SALT_BYTES; i++)
        r.tenant_salt[i] = (uint8_t)next_random();
    r.deadline_ms = below(2) ? 0 : next_random() >> 2;
    return r;
}

static inline struct wire_prefill_request random_request(struct arena *a)
{
    struct wire_prefill_request m = {.key = random_key(),
                                     .attempt = 1 + below(9),
                                     .request_id = "label \"quoted\"",
                                     .want_text = below(2)};

    m.resume = random_resume(a);
    random_id(m.reply_to);
    m.has_decode_targets = below(2);
    if (m.has_decode_targets) {
        m.n_decode_targets = below(65);
        m.decode_targets = arena_alloc(a, m.n_decode_targets, sizeof *m.decode_targets);
        for (uint32_t i = 0; i < m.n_decode_targets; i++)
            random_id(m.decode_targets[i]);
    }
    return m;
}

static inline struct wire_hello random_hello(void)
{
    struct wire_hello m = {.version_min = 1,
                           .version_max = 1 + below(3),
                           .epoch = next_random(),
                           .link = next_random()};

    random_id(m.node_id);
    strcpy(m.role, "decode");
    m.bulk = below(2);
    m.wants_bulk = below(2);
    if (below(2))
        strcpy(m.expect_role, "prefill");
    m.has_tokenizer = below(2);
    m.has_model = below(2);
    for (int i = 0; i < REQUEST_DIGEST_BYTES; i++) {
        m.tokenizer_digest[i] = m.has_tokenizer ? (uint8_t)next_random() : 0;
        m.model_digest[i] = m.has_model ? (uint8_t)next_random() : 0;
        m.numerics_digest[i] = m.has_model ? (uint8_t)next_random() : 0;
    }
    if (m.has_model) {
        m.kv = (struct kv_geometry){
            .n_layers = below(99), .n_kv_heads = below(99), .head_dim = below(999)};
        m.kv_type = below(9);
        m.max_context_tokens = below(1u << 20);
        m.n_slots = below(99);
        m.n_pages = (uint32_t)next_random();
        strcpy(m.fingerprint, "fp_0123456789abcdef");
    }
    return m;
}

static inline struct wire_result random_result(struct arena *a)
{
    struct wire_result m = {
        .key = random_key(), .attempt = 1 + below(4), .phase = (enum wire_phase)below(6)};

    if (m.phase == WIRE_PHASE_OPENED)
        random_id(m.decode_node);
    if (m.phase != WIRE_PHASE_OPENED && m.phase != WIRE_PHASE_FAILED) {
        m.n_ids = 1 + below(20);
        m.start = below(1000);
        m.has_logprobs = m.phase == WIRE_PHASE_PROMPT_LOGPROBS || below(2);
        if (m.has_logprobs)
            m.logprobs = random_rows(a, m.n_ids);
        if (m.phase != WIRE_PHASE_PROMPT_LOGPROBS)
            m.ids = random_ids(a, m.n_ids);
        m.has_text = below(2);
        m.text = m.has_text ? "t\xc3\xbcr \"\\\n" : NULL;
        m.text_len = m.has_text ? 8 : 0;
    }
    m.done = below(2);
    if (m.done) {
        m.n_generated = below(1000);
        m.finish = (enum finish_reason)below(3);
    }
    if (m.phase == WIRE_PHASE_FAILED) {
        m.error = (enum status)(1 + below(STATUS_COUNT - 1));
        strcpy(m.message, "in words");
    }
    if (m.phase == WIRE_PHASE_FIRST_TOKEN)
        m.n_cached = below(999);
    return m;
}

/* Every type of message, encoded at random; and decoded and encoded again, for comparison. */
enum sample {
    SAMPLE_HELLO,
    SAMPLE_NOTICE,
    SAMPLE_STATS,
    SAMPLE_REQUEST,
    SAMPLE_META,
    SAMPLE_READY,
    SAMPLE_COMMIT,
    SAMPLE_HANDLES,
    SAMPLE_CREDIT,
    SAMPLE_RESULT,
    N_SAMPLES
};

static inline void encode_sample(enum sample what, struct buffer *out)
{
    struct arena a = {0};
    enum status status = STATUS_OK;

    switch (what) {
    case SAMPLE_HELLO: {
        const struct wire_hello m = random_hello();
        status = wire_encode_hello(out, &m);
        break;
    }
    case SAMPLE_NOTICE: {
        static const enum wire_type types[] = {WIRE_REFUSE, WIRE_DECODE_REFUSE, WIRE_HANDOFF_FAILED,
                                               WIRE_HANDOFF_ACCEPTED, WIRE_CANCEL};
        struct wire_notice m = {.has_key = below(2), .handle = below(2) ? next_random() : 0};
        if (m.has_key) {
            m.key = random_key();
            m.attempt = below(9);
        }
        m.reason = (enum status)below(STATUS_COUNT);
        if (below(2))
            strcpy(m.message, "why \"so\"");
        status = wire_encode_notice(out, types[below(5)], &m);
        break;
    }
    case SAMPLE_STATS: {
        static const uint8_t filter[256] = {1, 2, 4, 255};
        const struct wire_node_stats m = {.number = next_random(),
                                          .sent_at_us = (int64_t)(next_random() >> 2),
                                          .busy = below(2),
                                          .draining = below(2),
                                          .progress = next_random(),
                                          .n_running = below(99),
                                          .n_waiting = below(99),
                                          .n_slots = below(99),
                                          .n_free_pages = (uint32_t)next_random(),
                                          .n_cached_pages = below(99),
                                          .n_total_pages = below(99),
                                          .prefix_filter = filter,
                                          .n_prefix_filter_bytes = below(2) * 1u << below(9)};
        status = wire_encode_node_stats(out, (enum wire_type)(WIRE_PING + below(3)), &m);
        break;
    }
    case SAMPLE_REQUEST: {
        const struct wire_prefill_request m = random_request(&a);
        status = wire_encode_prefill_request(out, &m);
        break;
    }
    case SAMPLE_META: {
        struct wire_decode_meta m = {.request = random_request(&a), .n_page_names = below(5)};
        m.page_names = (struct page_name *)random_ids(&a, m.n_page_names * PAGE_NAME_BYTES / 4);
        m.request.has_decode_targets = false;
        status = wire_encode_decode_meta(out, &m);
        break;
    }
    case SAMPLE_READY: {
        const struct wire_decode_ready m = {.key = random_key(),
                                            .attempt = below(9),
                                            .handle = next_random(),
                                            .n_held_pages = below(99),
                                            .credit_tokens = below(9999)};
        status = wire_encode_decode_ready(out, &m);
        break;
    }
    case SAMPLE_COMMIT: {
        struct wire_handoff_commit m = {.key = random_key(),
                                        .attempt = below(9),
                                        .handle = next_random(),
                                        .n_prefix_tokens = below(9999),
                                        .first_page = below(99),
                                        .n_pages = below(99),
                                        .first_id = (uint32_t)next_random(),
                                        .has_logprobs = below(2)};
        m.row = random_rows(&a, 1);
        status = wire_encode_handoff_commit(out, &m);
        break;
    }
    case SAMPLE_HANDLES: {
        struct wire_handles m = {.n = below(50)};
        m.handles = (uint64_t *)random_ids(&a, 2 * m.n);
        status = wire_encode_handles(out, &m);
        break;
    }
    case SAMPLE_CREDIT: {
        const struct wire_credit m = {
            .key = random_key(), .attempt = below(9), .window_tokens = (uint32_t)next_random()};
        status = wire_encode_credit(out, &m);
        break;
    }
    case SAMPLE_RESULT: {
        struct wire_result_batch b = {0};
        for (uint32_t n = below(6) + 1; status == STATUS_OK && n; n--) {
            const struct wire_result m = random_result(&a);
            status = wire_result_append(&b, &m);
        }
        if (status == STATUS_OK)
            status = wire_encode_results(out, &b);
        wire_result_batch_deinit(&b);
        break;
    }
    case N_SAMPLES:
        break;
    }
    arena_deinit(&a);
    if (status != STATUS_OK)
        abort();
}

/* Decodes by the frame's type; on success encodes what came out into again (NULL: not). */
static inline enum status decode_any(const struct wire_frame *f, struct arena *a,
                                     struct buffer *again)
{
    struct buffer unwanted = {0}, *out = again ? again : &unwanted;
    enum status status;

    switch (f->type) {
    case WIRE_HELLO: {
        struct wire_hello m;
        status = wire_decode_hello(f, &m);
        if (status == STATUS_OK)
            status = wire_encode_hello(out, &m);
        break;
    }
    case WIRE_PING:
    case WIRE_PONG:
    case WIRE_NODE_STATS: {
        struct wire_node_stats m;
        status = wire_decode_node_stats(f, &m);
        if (status == STATUS_OK)
            status = wire_encode_node_stats(out, (enum wire_type)f->type, &m);
        break;
    }
    case WIRE_PREFILL_REQUEST: {
        struct wire_prefill_request m;
        status = wire_decode_prefill_request(f, a, &m);
        if (status == STATUS_OK)
            status = wire_encode_prefill_request(out, &m);
        break;
    }
    case WIRE_DECODE_META: {
        struct wire_decode_meta m;
        status = wire_decode_decode_meta(f, a, &m);
        if (status == STATUS_OK)
            status = wire_encode_decode_meta(out, &m);
        break;
    }
    case WIRE_DECODE_READY: {
        struct wire_decode_ready m;
        status = wire_decode_decode_ready(f, &m);
        if (status == STATUS_OK)
            status = wire_encode_decode_ready(out, &m);
        break;
    }
    case WIRE_HANDOFF_COMMIT: {
        struct wire_handoff_commit m;
        status = wire_decode_handoff_commit(f, a, &m);
        if (status == STATUS_OK)
            status = wire_encode_handoff_commit(out, &m);
        break;
    }
    case WIRE_HANDOFF_LIVE: {
        struct wire_handles m;
        status = wire_decode_handles(f, a, &m);
        if (status == STATUS_OK)
            status = wire_encode_handles(out, &m);
        break;
    }
    case WIRE_CREDIT: {
        struct wire_credit m;
        status = wire_decode_credit(f, &m);
        if (status == STATUS_OK)
            status = wire_encode_credit(out, &m);
        break;
    }
    case WIRE_RESULT: {
        struct wire_result_batch b = {0};
        struct wire_result *m;
        uint32_t n;
        status = wire_decode_results(f, a, &m, &n);
        for (uint32_t i = 0; status == STATUS_OK && i < n; i++)
            status = wire_result_append(&b, &m[i]);
        if (status == STATUS_OK)
            status = wire_encode_results(out, &b);
        wire_result_batch_deinit(&b);
        break;
    }
    default: {
        struct wire_notice m;
        status = wire_decode_notice(f, &m);
        if (status == STATUS_OK)
            status = wire_encode_notice(out, (enum wire_type)f->type, &m);
    }
    }
    buffer_deinit(&unwanted);
    return status;
}

/* A frame by hand: json as given, tail_len bytes of tail. */
static inline void raw_frame(struct buffer *out, uint32_t type, const char *json, const void *tail,
                             size_t tail_len)
{
    const uint32_t json_len = (uint32_t)strlen(json), len = 8 + json_len + (uint32_t)tail_len;
    const uint8_t header[12] = {(uint8_t)len,
                                (uint8_t)(len >> 8),
                                (uint8_t)(len >> 16),
                                (uint8_t)(len >> 24),
                                (uint8_t)type,
                                (uint8_t)(type >> 8),
                                0,
                                0,
                                (uint8_t)json_len,
                                (uint8_t)(json_len >> 8),
                                (uint8_t)(json_len >> 16),
                                (uint8_t)(json_len >> 24)};

    buffer_clear(out);
    buffer_append(out, header, sizeof header);
    buffer_append(out, json, json_len);
    buffer_append(out, tail, tail_len);
}

#endif
