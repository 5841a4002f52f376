/* Every message there and back, cut short everywhere, with numbers that lie, and with bits turned.
 */
#include "unit/wire/wire_tests.h"

static struct wire_frame parse_whole(const struct buffer *b)
{
    struct wire_frame f;
    size_t used = 0;

    assert_int_equal(wire_frame_parse((const uint8_t *)b->data, b->len, &f, &used), STATUS_OK);
    assert_int_equal(used, b->len);
    return f;
}

static void test_round_trip(void **state)
{
    for (int round = 0; round < 300; round++)
        for (int what = 0; what < N_SAMPLES; what++) {
            struct buffer once = {0}, twice = {0};
            struct arena a = {0};
            encode_sample((enum sample)what, &once);
            const struct wire_frame f = parse_whole(&once);
            assert_int_equal(decode_any(&f, &a, &twice), STATUS_OK);
            assert_int_equal(once.len, twice.len);
            assert_memory_equal(once.data, twice.data, once.len);
            buffer_deinit(&once);
            buffer_deinit(&twice);
            arena_deinit(&a);
        }
}

/* Field by field, for the message that everything hangs on. */
static void test_request_fields(void **state)
{
    for (int round = 0; round < 100; round++) {
        struct arena a = {0}, b = {0};
        struct buffer frame = {0};
        const struct wire_prefill_request m = random_request(&a);
        struct wire_prefill_request got;
        assert_int_equal(wire_encode_prefill_request(&frame, &m), STATUS_OK);
        const struct wire_frame f = parse_whole(&frame);
        assert_int_equal(wire_decode_prefill_request(&f, &b, &got), STATUS_OK);
        const struct resume *r = &m.resume, *s = &got.resume;
        assert_true(request_key_equal(&m.key, &got.key));
        assert_int_equal(m.attempt, got.attempt);
        assert_string_equal(m.request_id, got.request_id);
        assert_string_equal(m.reply_to, got.reply_to);
        assert_int_equal(m.want_text, got.want_text);
        assert_int_equal(m.has_decode_targets, got.has_decode_targets);
        assert_int_equal(m.n_decode_targets, got.n_decode_targets);
        for (uint32_t i = 0; i < m.n_decode_targets; i++)
            assert_string_equal(m.decode_targets[i], got.decode_targets[i]);
        assert_int_equal(r->n_prompt, s->n_prompt);
        assert_int_equal(r->n_generated, s->n_generated);
        assert_memory_equal(r->prompt_ids, s->prompt_ids, 4 * r->n_prompt);
        assert_memory_equal(r->generated_ids, s->generated_ids, 4 * r->n_generated);
        assert_true(r->seed == s->seed && r->choice == s->choice);
        assert_memory_equal(&r->sampling, &s->sampling, sizeof r->sampling);
        assert_int_equal(r->n_logit_bias, s->n_logit_bias);
        assert_memory_equal(r->logit_bias, s->logit_bias, r->n_logit_bias * sizeof *r->logit_bias);
        assert_int_equal(r->n_stops, s->n_stops);
        for (uint32_t i = 0; i < r->n_stops; i++) {
            assert_int_equal(r->stops[i].len, s->stops[i].len);
            assert_memory_equal(r->stops[i].bytes, s->stops[i].bytes, r->stops[i].len);
        }
        assert_int_equal(r->grammar.len, s->grammar.len);
        assert_true(r->n_logprobs == s->n_logprobs && r->n_prompt_logprobs == s->n_prompt_logprobs);
        assert_true(r->min_tokens == s->min_tokens && r->max_tokens == s->max_tokens &&
                    r->ignore_eos == s->ignore_eos);
        assert_int_equal(r->has_tenant, s->has_tenant);
        assert_memory_equal(r->tenant_salt, s->tenant_salt, sizeof r->tenant_salt);
        assert_true(r->deadline_ms == s->deadline_ms);
        buffer_deinit(&frame);
        arena_deinit(&a);
        arena_deinit(&b);
    }
}

/* The bytes of a stream come in any pieces: a frame is seen when its last byte is there, and not
 * before. */
static void test_pieces(void **state)
{
    for (int what = 0; what < N_SAMPLES; what++) {
        struct buffer b = {0};
        struct wire_frame f;
        size_t used;
        encode_sample((enum sample)what, &b);
        for (size_t n = 0; n < b.len; n++) {
            uint8_t *exact = memory_alloc(n, 1); /* so that a sanitizer sees a read too far */
            memcpy(exact, b.data, n);
            assert_int_equal(wire_frame_parse(exact, n, &f, &used), STATUS_OK);
            assert_int_equal(used, 0);
            free(exact);
        }
        encode_sample((enum sample)what, &b);
        assert_int_equal(wire_frame_parse((const uint8_t *)b.data, b.len, &f, &used), STATUS_OK);
        assert_true(used > 0 && used < b.len);
        buffer_deinit(&b);
    }
}

/* A frame whose content ends early is whole as a frame and refused as a message. */
static void test_truncated_content(void **state)
{
    for (int what = 0; what < N_SAMPLES; what++) {
        struct buffer b = {0};
        encode_sample((enum sample)what, &b);
        const struct wire_frame whole = parse_whole(&b);
        for (uint32_t cut = 1; cut <= whole.tail_len; cut++) {
            struct wire_frame f = whole;
            struct arena a = {0};
            uint8_t *tail = memory_alloc(whole.tail_len - cut, 1);
            memcpy(tail, whole.tail, whole.tail_len - cut);
            f.tail = tail;
            f.tail_len -= cut;
            assert_int_equal(decode_any(&f, &a, NULL), STATUS_BAD_MESSAGE);
            arena_deinit(&a);
            free(tail);
        }
        for (uint32_t cut = 1; cut <= whole.json_len; cut++) {
            struct wire_frame f = whole;
            struct arena a = {0};
            char *json = memory_alloc(whole.json_len - cut, 1);
            memcpy(json, whole.json, whole.json_len - cut);
            f.json = json;
            f.json_len -= cut;
            assert_int_equal(decode_any(&f, &a, NULL), STATUS_BAD_MESSAGE);
            arena_deinit(&a);
            free(json);
        }
        for (uint32_t more = 1; more < 9; more++) { /* bytes that nothing announces */
            struct wire_frame f = whole;
            struct arena a = {0};
            uint8_t *tail = memory_alloc(whole.tail_len + more, 1);
            memcpy(tail, whole.tail, whole.tail_len);
            f.tail = tail;
            f.tail_len += more;
            assert_int_equal(decode_any(&f, &a, NULL), STATUS_BAD_MESSAGE);
            arena_deinit(&a);
            free(tail);
        }
        buffer_deinit(&b);
    }
}

static void test_turned_bits(void **state)
{
    for (int round = 0; round < 2000; round++) {
        struct buffer b = {0};
        struct arena a = {0};
        struct wire_frame f;
        size_t used;
        encode_sample((enum sample)(round % N_SAMPLES), &b);
        for (uint32_t n = 1 + below(4); n; n--)
            b.data[below((uint32_t)b.len)] ^= (char)(1 << below(8));
        if (wire_frame_parse((const uint8_t *)b.data, b.len, &f, &used) == STATUS_OK && used) {
            const enum status status = decode_any(&f, &a, NULL);
            assert_true(status == STATUS_OK || status == STATUS_BAD_MESSAGE ||
                        status == STATUS_CELL_MISMATCH);
        }
        arena_deinit(&a);
        buffer_deinit(&b);
    }
}

static void test_framing(void **state)
{
    struct wire_frame f;
    size_t used;
    struct {
        uint8_t bytes[12];
        const char *why;
    } bad[] = {
        {{7, 0, 0, 0}, "shorter than its own header"},
        {{0, 0, 0, 0}, "empty"},
        {{1, 0, 16, 0}, "longer than a frame may be"},
        {{255, 255, 255, 255}, "longer than anything"},
        {{8, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0}, "more JSON than frame"},
        {{9, 0, 0, 0, 3, 0, 0, 0, 255, 255, 255, 255}, "more JSON than anything"},
        {{8, 0, 0, 0, 3, 0, 1, 0, 0, 0, 0, 0}, "a reserved byte"},
        {{8, 0, 0, 0, 3, 0, 0, 128, 0, 0, 0, 0}, "a reserved byte"},
    };

    for (size_t i = 0; i < ARRAY_LENGTH(bad); i++) {
        assert_int_equal(wire_frame_parse(bad[i].bytes, sizeof bad[i].bytes, &f, &used),
                         STATUS_BAD_FRAME);
        assert_int_equal(used, 0);
    }
    const uint8_t empty[12] = {8, 0, 0, 0, 0xFF, 0xFF, 0, 0, 0, 0, 0, 0};
    assert_int_equal(wire_frame_parse(empty, sizeof empty, &f, &used), STATUS_OK);
    assert_int_equal(used, 12);
    assert_int_equal(f.type, 0xFFFF);
    assert_string_equal(wire_type_name(f.type), "unknown");
    /* the length is judged before the rest has come */
    assert_int_equal(wire_frame_parse(bad[3].bytes, 4, &f, &used), STATUS_BAD_FRAME);
}

#define KEY                                                                                        \
    "\"key\":{\"origin\":\"r\",\"epoch\":\"00000000000000aa\",\"number\":\"0000000000000001\"}"
#define RESUME(fields)                                                                             \
    "{" KEY                                                                                        \
    ",\"reply_to\":\"r\",\"resume\":{\"n_prompt\":0,\"max_tokens\":4,\"sampling\":{}" fields "}}"

static void test_numbers_that_lie(void **state)
{
    static const struct {
        uint32_t type;
        const char *json;
    } bad[] = {
        {WIRE_PREFILL_REQUEST, "{" KEY ",\"reply_to\":\"r\",\"resume\":{\"n_prompt\":4294967295,"
                               "\"max_tokens\":4,\"sampling\":{}}}"},
        {WIRE_PREFILL_REQUEST, "{" KEY ",\"reply_to\":\"r\",\"resume\":{\"n_prompt\":4294967296,"
                               "\"max_tokens\":4,\"sampling\":{}}}"},
        {WIRE_PREFILL_REQUEST,
         "{" KEY
         ",\"reply_to\":\"r\",\"resume\":{\"n_prompt\":-1,\"max_tokens\":4,\"sampling\":{}}}"},
        {WIRE_PREFILL_REQUEST,
         "{" KEY
         ",\"reply_to\":\"r\",\"resume\":{\"n_prompt\":1.0,\"max_tokens\":4,\"sampling\":{}}}"},
        {WIRE_PREFILL_REQUEST,
         "{" KEY
         ",\"reply_to\":\"r\",\"resume\":{\"n_prompt\":\"1\",\"max_tokens\":4,\"sampling\":{}}}"},
        {WIRE_PREFILL_REQUEST,
         "{" KEY ",\"reply_to\":\"r\",\"resume\":{\"n_prompt\":0,\"sampling\":{}}}"},
        {WIRE_PREFILL_REQUEST,
         "{" KEY ",\"reply_to\":\"r\",\"resume\":{\"n_prompt\":0,\"max_tokens\":1}}"},
        {WIRE_PREFILL_REQUEST, "{" KEY ",\"reply_to\":\"r\",\"resume\":[]}"},
        {WIRE_PREFILL_REQUEST, "{" KEY ",\"reply_to\":\"r\"}"},
        {WIRE_PREFILL_REQUEST,
         "{" KEY
         ",\"reply_to\":\"no such\",\"resume\":{\"n_prompt\":0,\"max_tokens\":4,\"sampling\":{}}}"},
        {WIRE_PREFILL_REQUEST, RESUME(",\"n_generated\":1073741824")},
        {WIRE_PREFILL_REQUEST, RESUME(",\"n_logit_bias\":1025")},
        {WIRE_PREFILL_REQUEST, RESUME(",\"n_logit_bias\":2147483648")},
        {WIRE_PREFILL_REQUEST, RESUME(",\"n_logprobs\":21")},
        {WIRE_PREFILL_REQUEST, RESUME(",\"n_logprobs\":-2")},
        {WIRE_PREFILL_REQUEST, RESUME(",\"n_prompt_logprobs\":9223372036854775807")},
        {WIRE_PREFILL_REQUEST, RESUME(",\"stops\":{}")},
        {WIRE_PREFILL_REQUEST, RESUME(",\"stops\":[1]")},
        {WIRE_PREFILL_REQUEST, RESUME(",\"grammar\":1")},
        {WIRE_PREFILL_REQUEST, RESUME(",\"seed\":\"1\"")},
        {WIRE_PREFILL_REQUEST, RESUME(",\"seed\":\"00000000000000AA\"")},
        {WIRE_PREFILL_REQUEST, RESUME(",\"tenant_salt\":\"00\"")},
        {WIRE_PREFILL_REQUEST, RESUME(",\"ignore_eos\":1")},
        {WIRE_PREFILL_REQUEST, RESUME(",\"choice\":null")},
        {WIRE_PREFILL_REQUEST, RESUME(",\"sampling\":{\"temperature\":-1}")},
        {WIRE_PREFILL_REQUEST, "{" KEY ",\"reply_to\":\"r\",\"resume\":{\"n_prompt\":0,\"max_"
                               "tokens\":4,\"sampling\":{\"temperature\":-0.5}}}"},
        {WIRE_PREFILL_REQUEST, "{" KEY ",\"reply_to\":\"r\",\"resume\":{\"n_prompt\":0,\"max_"
                               "tokens\":4,\"sampling\":{\"top_p\":\"1\"}}}"},
        {WIRE_PREFILL_REQUEST, "{" KEY ",\"reply_to\":\"r\",\"resume\":{\"n_prompt\":0,\"max_"
                               "tokens\":4,\"sampling\":{\"repetition_penalty\":0}}}"},
        {WIRE_PREFILL_REQUEST,
         "{" KEY ",\"reply_to\":\"r\",\"decode_targets\":[\"a "
         "b\"],\"resume\":{\"n_prompt\":0,\"max_tokens\":4,\"sampling\":{}}}"},
        {WIRE_PREFILL_REQUEST, "{" KEY ",\"reply_to\":\"r\",\"decode_targets\":{},\"resume\":{\"n_"
                               "prompt\":0,\"max_tokens\":4,\"sampling\":{}}}"},
        {WIRE_PREFILL_REQUEST, "{\"key\":1,\"reply_to\":\"r\",\"resume\":{\"n_prompt\":0,\"max_"
                               "tokens\":4,\"sampling\":{}}}"},
        {WIRE_PREFILL_REQUEST,
         "{" KEY "," KEY
         ",\"reply_to\":\"r\",\"resume\":{\"n_prompt\":0,\"max_tokens\":4,\"sampling\":{}}}"},
        {WIRE_DECODE_META, "{" KEY ",\"reply_to\":\"r\",\"n_page_names\":268435457,\"resume\":{\"n_"
                           "prompt\":0,\"max_tokens\":4,\"sampling\":{}}}"},
        {WIRE_DECODE_READY, "{" KEY "}"},
        {WIRE_DECODE_READY, "{" KEY ",\"handle\":\"000000000000000g\"}"},
        {WIRE_DECODE_READY, "{\"key\":{\"origin\":\"\",\"epoch\":\"00000000000000aa\",\"number\":"
                            "\"0000000000000001\"},\"handle\":\"0000000000000001\"}"},
        {WIRE_HANDOFF_COMMIT,
         "{" KEY
         ",\"handle\":\"0000000000000001\",\"n_prefix_tokens\":1,\"first_page\":0,\"n_pages\":1}"},
        {WIRE_HANDOFF_COMMIT,
         "{" KEY ",\"handle\":\"0000000000000001\",\"n_prefix_tokens\":1,\"first_page\":0,\"n_"
         "pages\":1,\"first_id\":1,\"n_top\":21}"},
        {WIRE_HANDOFF_COMMIT, "{" KEY ",\"handle\":\"0000000000000001\",\"n_prefix_tokens\":1,"
                              "\"first_page\":0,\"n_pages\":1,\"first_id\":1,\"n_top\":0}"},
        {WIRE_HANDOFF_LIVE, "{\"n\":4294967295}"},
        {WIRE_HANDOFF_LIVE, "{\"n\":1}"},
        {WIRE_HANDOFF_LIVE, "{}"},
        {WIRE_RESULT, "{}"},
        {WIRE_RESULT, "{\"entries\":{}}"},
        {WIRE_RESULT, "{\"entries\":[1]}"},
        {WIRE_RESULT, "{\"entries\":[{" KEY ",\"phase\":\"none\"}]}"},
        {WIRE_RESULT, "{\"entries\":[{" KEY "}]}"},
        {WIRE_RESULT,
         "{\"entries\":[{" KEY ",\"phase\":\"continuation\",\"n_token_ids\":4294967295}]}"},
        {WIRE_RESULT, "{\"entries\":[{" KEY ",\"phase\":\"continuation\",\"n_token_ids\":1}]}"},
        {WIRE_RESULT,
         "{\"entries\":[{" KEY ",\"phase\":\"prompt_logprobs\",\"n_rows\":1,\"n_top\":20}]}"},
        {WIRE_RESULT, "{\"entries\":[{" KEY ",\"phase\":\"continuation\",\"done\":1}]}"},
        {WIRE_RESULT, "{\"entries\":[{" KEY ",\"phase\":\"opened\",\"decode_node\":\"a b\"}]}"},
        {WIRE_RESULT, "{\"entries\":[{" KEY ",\"phase\":\"failed\",\"error\":1}]}"},
        {WIRE_RESULT, "{\"entries\":[{" KEY ",\"phase\":\"failed\",\"lost_nodes\":{}}]}"},
        {WIRE_RESULT, "{\"entries\":[{" KEY ",\"phase\":\"failed\",\"lost_nodes\":[\"d\"]}]}"},
        {WIRE_RESULT,
         "{\"entries\":[{" KEY ",\"phase\":\"failed\",\"lost_nodes\":[{\"node_id\":\"d\"}]}]}"},
        {WIRE_CREDIT, "{" KEY "}"},
        {WIRE_CANCEL, "{\"key\":null}"},
        {WIRE_CANCEL, "[]"},
        {WIRE_CANCEL, "7"},
        {WIRE_CANCEL, ""},
        {WIRE_CANCEL, "{\"message\":\"a\\u0000b\"}"},
        {WIRE_CANCEL, "{\"message\":\"\xff\"}"},
        {WIRE_PING, "{\"busy\":0}"},
        {WIRE_PING, "{\"running\":-1}"},
        {WIRE_PING, "{\"sent_at_us\":92233720368547758080}"},
        {WIRE_HELLO, "{}"},
        {WIRE_HELLO, "{\"version_min\":1,\"version_max\":1,\"node_id\":\"x\",\"epoch\":"
                     "\"0000000000000001\",\"role\":\"a role far too long to be "
                     "one\",\"connection\":\"control\",\"link\":\"0000000000000001\"}"},
        {WIRE_HELLO,
         "{\"version_min\":1,\"version_max\":1,\"node_id\":\"x\",\"epoch\":\"0000000000000001\","
         "\"role\":\"router\",\"connection\":\"both\",\"link\":\"0000000000000001\"}"},
        {WIRE_HELLO, "{\"version_min\":1,\"version_max\":1,\"node_id\":\"x\",\"epoch\":"
                     "\"0000000000000001\",\"role\":\"router\",\"connection\":\"bulk\",\"link\":"
                     "\"0000000000000001\",\"model\":\"00\"}"},
    };
    struct buffer b = {0};

    for (size_t i = 0; i < ARRAY_LENGTH(bad); i++) {
        struct arena a = {0};
        raw_frame(&b, bad[i].type, bad[i].json, NULL, 0);
        const struct wire_frame f = parse_whole(&b);
        const enum status status = decode_any(&f, &a, NULL);
        if (status != STATUS_BAD_MESSAGE)
            fail_msg("%s gives %s", bad[i].json, status_code(status));
        assert_non_null(strstr(status_message(), wire_type_name(bad[i].type)));
        arena_deinit(&a);
    }
    buffer_deinit(&b);
}

/* What may be left out, and what a later version may add. */
static void test_defaults(void **state)
{
    struct wire_prefill_request m;
    struct arena a = {0};
    struct buffer b = {0};

    raw_frame(&b, WIRE_PREFILL_REQUEST,
              "{" KEY ",\"reply_to\":\"r\",\"new\":[{}],\"resume\":{\"n_prompt\":1,\"max_tokens\":"
              "4,\"later\":1,\"sampling\":{}}}",
              "\1\0\0\0", 4);
    const struct wire_frame f = parse_whole(&b);
    assert_int_equal(wire_decode_prefill_request(&f, &a, &m), STATUS_OK);
    assert_int_equal(m.attempt, 1);
    assert_int_equal(m.key.choice, 0);
    assert_false(m.has_decode_targets);
    assert_true(m.resume.sampling.top_p == 1 && m.resume.sampling.repetition_penalty == 1 &&
                m.resume.sampling.temperature == 0);
    assert_int_equal(m.resume.n_logprobs, -1);
    assert_int_equal(m.resume.n_prompt_logprobs, -1);
    assert_int_equal(m.resume.prompt_ids[0], 1);
    assert_false(m.resume.has_tenant);
    arena_deinit(&a);
    buffer_deinit(&b);
}

static void test_depth(void **state)
{
    struct buffer json = {0}, b = {0};
    struct wire_notice m;

    buffer_append_string(&json, "{\"x\":");
    for (int i = 0; i < 200000; i++)
        buffer_append_string(&json, "[");
    raw_frame(&b, WIRE_CANCEL, json.data, NULL, 0);
    const struct wire_frame f = parse_whole(&b);
    assert_int_equal(wire_decode_notice(&f, &m), STATUS_BAD_MESSAGE);
    buffer_deinit(&json);
    buffer_deinit(&b);
}

static void test_too_large(void **state)
{
    struct arena a = {0};
    struct buffer b = {0};
    struct wire_prefill_request m = random_request(&a);

    buffer_append_string(&b, "before");
    m.resume.n_prompt = WIRE_FRAME_BYTES_MAX / 4;
    m.resume.prompt_ids = random_ids(&a, m.resume.n_prompt);
    assert_int_equal(wire_encode_prefill_request(&b, &m), STATUS_TOO_LARGE);
    assert_string_equal(b.data, "before");
    buffer_deinit(&b);
    arena_deinit(&a);
}

/* ---- hello ---- */

static void test_match(void **state)
{
    struct wire_hello a = {.version_min = 1,
                           .version_max = 2,
                           .node_id = "a",
                           .role = "prefill",
                           .has_model = true,
                           .has_tokenizer = true};
    struct wire_hello b;

    a.kv = (struct kv_geometry){.n_layers = 2, .n_kv_heads = 1, .head_dim = 8};
    a.max_context_tokens = 64;
#define MATCH(change, status, word)                                                                \
    do {                                                                                           \
        b = a;                                                                                     \
        strcpy(b.node_id, "b");                                                                    \
        change;                                                                                    \
        assert_int_equal(wire_hello_match(&a, &b), status);                                        \
        if (status != STATUS_OK)                                                                   \
            assert_non_null(strstr(status_message(), word));                                       \
    } while (0)
    MATCH((void)0, STATUS_OK, "");
    MATCH(b.version_min = b.version_max = 3, STATUS_VERSION_MISMATCH, "versions");
    MATCH(b.version_min = b.version_max = 0, STATUS_VERSION_MISMATCH, "versions");
    MATCH((b.version_min = 2, b.version_max = 9), STATUS_OK, "");
    MATCH(strcpy(b.expect_role, "decode"), STATUS_CELL_MISMATCH, "decode");
    MATCH(strcpy(b.expect_role, "prefill"), STATUS_OK, "");
    MATCH(b.tokenizer_digest[31] ^= 1, STATUS_CELL_MISMATCH, "tokenizer");
    MATCH((b.tokenizer_digest[31] ^= 1, b.has_tokenizer = false), STATUS_OK, "");
    MATCH(b.model_digest[0] ^= 1, STATUS_CELL_MISMATCH, "model");
    MATCH((b.model_digest[0] ^= 1, b.has_model = false), STATUS_OK, "");
    MATCH(b.numerics_digest[7] ^= 128, STATUS_CELL_MISMATCH, "numerics");
    MATCH(b.kv.n_layers++, STATUS_CELL_MISMATCH, "geometry");
    MATCH(b.kv.n_kv_heads++, STATUS_CELL_MISMATCH, "geometry");
    MATCH(b.kv.head_dim++, STATUS_CELL_MISMATCH, "geometry");
    MATCH(b.kv_type++, STATUS_CELL_MISMATCH, "geometry");
    MATCH(b.max_context_tokens++, STATUS_CELL_MISMATCH, "context");
    strcpy(a.expect_role, "decode");
    MATCH(*b.expect_role = 0, STATUS_CELL_MISMATCH, "was expected");
    MATCH((*b.expect_role = 0, strcpy(b.role, "decode")), STATUS_OK, "");
}

/* ---- batches of results ---- */

static uint32_t count_entries(const struct buffer *frames, uint32_t *n_frames)
{
    uint32_t total = 0;

    *n_frames = 0;
    for (size_t at = 0; at < frames->len;) {
        struct wire_frame f;
        struct wire_result *entries;
        struct arena a = {0};
        uint32_t n;
        size_t used;
        assert_int_equal(
            wire_frame_parse((const uint8_t *)frames->data + at, frames->len - at, &f, &used),
            STATUS_OK);
        assert_true(used > 0);
        assert_int_equal(wire_decode_results(&f, &a, &entries, &n), STATUS_OK);
        for (uint32_t i = 0; i < n; i++, total++)
            assert_int_equal(entries[i].start, total);
        arena_deinit(&a);
        at += used;
        ++*n_frames;
    }
    return total;
}

static void test_lost_nodes(void **state)
{
    struct wire_result_batch batch = {0};
    struct buffer frames = {0};
    struct arena a = {0};
    struct wire_result *entries, m = {.key = random_key(),
                                      .attempt = 3,
                                      .phase = WIRE_PHASE_FAILED,
                                      .error = STATUS_PEER_LOST,
                                      .n_lost_nodes = 2,
                                      .lost_nodes = {{"decode-1", UINT64_MAX}, {"d", 1}}};
    struct wire_frame f;
    uint32_t n;
    size_t used;

    assert_int_equal(wire_result_append(&batch, &m), STATUS_OK);
    assert_int_equal(wire_encode_results(&frames, &batch), STATUS_OK);
    assert_int_equal(wire_frame_parse((const uint8_t *)frames.data, frames.len, &f, &used),
                     STATUS_OK);
    assert_int_equal(wire_decode_results(&f, &a, &entries, &n), STATUS_OK);
    assert_int_equal(n, 1);
    assert_int_equal(entries->n_lost_nodes, 2);
    for (int i = 0; i < 2; i++) {
        assert_string_equal(entries->lost_nodes[i].node_id, m.lost_nodes[i].node_id);
        assert_true(entries->lost_nodes[i].epoch == m.lost_nodes[i].epoch);
    }
    arena_deinit(&a);
    buffer_deinit(&frames);
    wire_result_batch_deinit(&batch);
}

static void test_results_overflow(void **state)
{
    for (int round = 0; round < 20; round++) {
        struct wire_result_batch batch = {0};
        struct buffer frames = {0};
        const uint32_t n = 200 + below(300);
        uint32_t n_frames;
        for (uint32_t i = 0; i < n; i++) {
            struct arena a = {0};
            struct wire_result m = {
                .key = random_key(), .attempt = 1, .phase = WIRE_PHASE_CONTINUATION, .start = i};
            m.n_ids = 1 + below(3000);
            m.ids = random_ids(&a, m.n_ids);
            assert_int_equal(wire_result_append(&batch, &m), STATUS_OK);
            arena_deinit(&a);
        }
        assert_int_equal(wire_encode_results(&frames, &batch), STATUS_OK);
        assert_int_equal(count_entries(&frames, &n_frames), n);
        assert_true(n_frames > 1);
        assert_int_equal(batch.n, 0);
        frames.len = 0;
        assert_int_equal(wire_encode_results(&frames, &batch), STATUS_OK); /* empty: nothing */
        assert_int_equal(frames.len, 0);
        wire_result_batch_deinit(&batch);
        buffer_deinit(&frames);
    }
}

/* Entries whose sizes come within a byte of the limit. */
static void test_results_at_the_limit(void **state)
{
    struct wire_result_batch batch = {0};
    struct buffer frames = {0};
    struct arena a = {0};
    struct wire_result m = {.key = random_key(), .attempt = 1, .phase = WIRE_PHASE_CONTINUATION};
    uint32_t n_frames, n = 0;

    m.ids = random_ids(&a, 1 << 18);
    for (uint32_t size = (1 << 18) - 160; size < (1 << 18); size++) {
        m.n_ids = size;
        m.start = n;
        const enum status status = wire_result_append(&batch, &m);
        assert_true(status == STATUS_OK || status == STATUS_TOO_LARGE);
        n += status == STATUS_OK;
        if (status == STATUS_TOO_LARGE) { /* and what is small still goes */
            m.n_ids = 1;
            assert_int_equal(wire_result_append(&batch, &m), STATUS_OK);
            n++;
        }
    }
    assert_int_equal(wire_encode_results(&frames, &batch), STATUS_OK);
    assert_int_equal(count_entries(&frames, &n_frames), n);
    wire_result_batch_deinit(&batch);
    buffer_deinit(&frames);
    arena_deinit(&a);
}

/* What was gathered and thrown away leaves nothing behind in the next frame. */
static void test_results_thrown_away(void **state)
{
    struct wire_result_batch batch = {0};
    struct buffer frames = {0};
    const struct wire_result m = {
        .key = random_key(), .attempt = 1, .phase = WIRE_PHASE_CONTINUATION};
    uint32_t n_frames;

    assert_int_equal(wire_result_append(&batch, &m), STATUS_OK);
    wire_result_batch_deinit(&batch);
    assert_int_equal(wire_encode_results(&frames, &batch), STATUS_OK);
    assert_int_equal(frames.len, 0);
    assert_int_equal(wire_result_append(&batch, &m), STATUS_OK);
    assert_int_equal(wire_encode_results(&frames, &batch), STATUS_OK);
    assert_int_equal(count_entries(&frames, &n_frames), 1);
    wire_result_batch_deinit(&batch);
    buffer_deinit(&frames);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_request_fields),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_truncated_content),
        cmocka_unit_test(test_turned_bits),
        cmocka_unit_test(test_framing),
        cmocka_unit_test(test_numbers_that_lie),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_too_large),
        cmocka_unit_test(test_match),
        cmocka_unit_test(test_lost_nodes),
        cmocka_unit_test(test_results_overflow),
        cmocka_unit_test(test_results_at_the_limit),
        cmocka_unit_test(test_results_thrown_away),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
