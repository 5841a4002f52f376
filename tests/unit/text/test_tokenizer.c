/* Ids against Hugging Face's `tokenizers` (tests/data/tokenizer_ids.json and ../shared/golden), and
 * what they say nothing about: bytes that are not UTF-8, limits, time. The whole corpus is
 * tests/e2e/test_tokenizer.py's. */
#include "base/clock.h"
#include "small_vocabulary.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static const char model_path[] = "models/SmolLM2-135M-Instruct.Q4_1.gguf";

struct ids {
    uint32_t *at, n;
};

static struct ids encode(const struct vocabulary *v, const char *text, size_t len, bool special)
{
    struct ids ids = {0};

    assert_int_equal(vocabulary_encode(v, text, len, special, 0, &ids.at, &ids.n), STATUS_OK);
    return ids;
}

static void check_ids(const struct vocabulary *v, const char *text, bool special,
                      const uint32_t *want, uint32_t n)
{
    struct ids got = encode(v, text, strlen(text), special);

    if (got.n != n || (n && memcmp(got.at, want, n * sizeof *want)))
        fail_msg("\"%s\": %u ids, the first is %u", text, got.n, got.n ? got.at[0] : 0);
    free(got.at);
}

static struct vocabulary *load_model(void)
{
    struct gguf *file;
    struct vocabulary *v = NULL;

    if (access(model_path, R_OK)) {
        print_message("skipped: %s is not there (make model)\n", model_path);
        skip();
    }
    assert_int_equal(gguf_open(model_path, &file), STATUS_OK);
    assert_int_equal(vocabulary_load(file, &v), STATUS_OK);
    gguf_release(&file);
    return v;
}

static void compare(const struct vocabulary *v, const char *text, size_t len, bool special,
                    const json_t *want)
{
    struct ids got = encode(v, text, len, special);

    assert_int_equal(got.n, json_array_size(want));
    for (uint32_t i = 0; i < got.n; i++)
        assert_int_equal(got.at[i], json_integer_value(json_array_get(want, i)));
    free(got.at);
}

static void test_model_ids(void **state)
{
    struct vocabulary *v = load_model();
    json_t *data = json_load_file("tests/data/tokenizer_ids.json", JSON_ALLOW_NUL, NULL), *text;
    size_t i;

    assert_non_null(data);
    json_array_foreach(json_object_get(data, "texts"), i, text)
        compare(v, json_string_value(text), json_string_length(text), false,
                json_array_get(json_object_get(json_object_get(data, "ids"), "smollm"), i));
    json_decref(data);
    vocabulary_destroy(&v);
}

/* Texts and chats with the ids that the golden data has. */
static void test_golden_prompts(void **state)
{
    const char *shared = getenv("BATON_SHARED");
    char path[4096];
    json_t *prompts, *p;
    size_t i;

    snprintf(path, sizeof path, "%s/golden/prompts.json", shared ? shared : "../shared");
    prompts = json_load_file(path, 0, NULL);
    if (!prompts) {
        print_message("skipped: %s is not there (set BATON_SHARED)\n", path);
        skip();
    }
    struct vocabulary *v = load_model();
    json_array_foreach(prompts, i, p)
    {
        const json_t *text = json_object_get(p, "text"), *ids = json_object_get(p, "ids");
        struct ids got = {0};
        if (text) {
            compare(v, json_string_value(text), json_string_length(text), true, ids);
            continue;
        }
        json_t *variables = json_pack("{s:O,s:b}", "messages", json_object_get(p, "messages"),
                                      "add_generation_prompt", 1);
        assert_int_equal(chat_prompt_encode(v, variables, 0, &got.at, &got.n), STATUS_OK);
        assert_int_equal(got.n, json_array_size(ids));
        for (uint32_t k = 0; k < got.n; k++)
            assert_int_equal(got.at[k], json_integer_value(json_array_get(ids, k)));
        free(got.at);
        json_decref(variables);
    }
    json_decref(prompts);
    vocabulary_destroy(&v);
}

static void test_merges(void **state)
{
    struct vocabulary *v = small_vocabulary_load("gpt-2", NULL);

    check_ids(v, "hello", false, (uint32_t[]){ID_HELLO}, 1);
    check_ids(v, "hell", false, (uint32_t[]){ID_HELL}, 1);
    check_ids(v, "hhell", false, (uint32_t[]){'h', ID_HELL}, 2);
    check_ids(v, "helo", false, (uint32_t[]){ID_HE, 'l', 'o'}, 3);
    check_ids(v, "lll", false, (uint32_t[]){ID_LL, 'l'}, 2);
    check_ids(v, "", false, NULL, 0);
    vocabulary_destroy(&v);
}

static void test_special_tokens(void **state)
{
    struct vocabulary *v = small_vocabulary_load("gpt-2", NULL);
    static const char text[] = "<|im_end|>";
    uint32_t bytes[sizeof text];

    for (size_t i = 0; i < sizeof text; i++)
        bytes[i] = (unsigned char)text[i];
    check_ids(v, text, true, (uint32_t[]){ID_END}, 1);
    check_ids(v, text, false, bytes, sizeof text - 1);
    check_ids(v, "hello<|im_end|>", true, (uint32_t[]){ID_HELLO, ID_END}, 2);
    check_ids(v, "<|im_end", true, bytes, 8);
    check_ids(v, "<think>", false, (uint32_t[]){ID_THINK},
              1); /* controls nothing: recognised always */
    check_ids(v, "[PAD]", true, (uint32_t[]){'[', 'P', 'A', 'D', ']'}, 5);
    assert_true(vocabulary_is_end(v, ID_END));
    assert_true(vocabulary_is_end(v, ID_TEXT_END));
    assert_false(vocabulary_is_end(v, ID_START));
    assert_false(vocabulary_is_end(v, 1u << 30));
    assert_int_equal(vocabulary_bos(v), ID_START);
    assert_int_equal(vocabulary_eos(v), ID_END);
    assert_string_equal(vocabulary_token_text(v, ID_END), text);
    assert_null(vocabulary_token_text(v, N_SMALL_TOKENS));
    vocabulary_destroy(&v);
}

static void check_round_trip(const struct vocabulary *v, const char *text, size_t len)
{
    struct ids ids = encode(v, text, len, true);
    struct buffer out = {0};

    assert_int_equal(vocabulary_decode(v, ids.at, ids.n, true, &out), STATUS_OK);
    assert_int_equal(out.len, len);
    if (len)
        assert_memory_equal(out.data, text, len);
    free(ids.at);
    buffer_deinit(&out);
}

static void test_any_bytes(void **state)
{
    static const char *const families[] = {"gpt-2", "smollm", "llama-bpe", "qwen2"};
    static const char parts[] = "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xff\xc0 \n1a<|im_end|>hello";

    srand(3);
    for (size_t f = 0; f < 4; f++) {
        struct vocabulary *v = small_vocabulary_load(families[f], NULL);
        assert_non_null(v);
        for (int round = 0; round < 3000; round++) {
            char text[80];
            size_t len = (size_t)rand() % sizeof text;
            for (size_t i = 0; i < len; i++)
                text[i] = round % 2 ? (char)rand() : parts[(size_t)rand() % (sizeof parts - 1)];
            if (f == 3)
                for (size_t i = 0; i < len;
                     i++) /* qwen2 takes text to NFC: nothing that it would change */
                    text[i] = (char)(text[i] & 0x7f);
            check_round_trip(v, text, len);
        }
        vocabulary_destroy(&v);
    }
}

/* A byte that is not UTF-8 is a piece of its own: nothing merges across it. */
static void test_invalid_bytes_cut(void **state)
{
    struct vocabulary *v = small_vocabulary_load("gpt-2", NULL);

    check_ids(v, "he\xffll", false, (uint32_t[]){ID_HE, 0xff, ID_LL}, 3);
    check_ids(v, "h\xe2\x82llo", false, (uint32_t[]){'h', 0xe2, 0x82, ID_LL, 'o'}, 5);
    vocabulary_destroy(&v);
}

static void test_limits(void **state)
{
    struct vocabulary *v = small_vocabulary_load("gpt-2", NULL);
    uint32_t *ids = NULL, n = 0;
    struct buffer out = {0};

    assert_int_equal(vocabulary_encode(v, "abc", 3, false, 2, &ids, &n), STATUS_TOO_LARGE);
    assert_int_equal(n, 0);
    assert_int_equal(vocabulary_encode(v, "abc", 3, false, 3, &ids, &n), STATUS_OK);
    assert_int_equal(n, 3);
    assert_int_equal(vocabulary_encode(v, "hello", 5, false, 0, &ids, &n), STATUS_OK); /* appends */
    assert_int_equal(n, 4);
    assert_int_equal(ids[3], ID_HELLO);
    ids[0] = N_SMALL_TOKENS;
    assert_int_equal(vocabulary_decode(v, ids, n, false, &out), STATUS_BAD_REQUEST);
    free(ids);
    buffer_deinit(&out);
    vocabulary_destroy(&v);
}

/* Four times the text, about four times the time: none of these may be quadratic. */
static void test_long_texts(void **state)
{
    static const char *const units[] = {"l",       "hello", " ",    "\n ", "\xcc\x81\xcc\xa3",
                                        "<|im_en", "<",     "\xff", "1",   "e\xcc\x81",
                                        "ll "};
    static const char *const families[] = {"smollm", "qwen2", "llama-bpe"};
    size_t size = 1 << 20;
    char *text = malloc(size);

    for (size_t f = 0; f < 3; f++) {
        struct vocabulary *v = small_vocabulary_load(families[f], NULL);
        for (size_t u = 0; u < sizeof units / sizeof units[0]; u++) {
            int64_t start = clock_now_ms();
            for (size_t i = 0; i < size; i++)
                text[i] = units[u][i % strlen(units[u])];
            struct ids ids = encode(v, text, size, true);
            free(ids.at);
            if (clock_now_ms() - start > 10000) /* some hundred in fact */
                fail_msg("%s: 1 MiB of \"%s\" takes %lld ms", families[f], units[u],
                         (long long)(clock_now_ms() - start));
        }
        vocabulary_destroy(&v);
    }
    free(text);
}

static void test_refusals(void **state)
{
    assert_null(small_vocabulary_load("tekken", NULL));
    assert_non_null(strstr(status_message(), "tekken"));
}

static void test_digest(void **state)
{
    struct vocabulary *a = small_vocabulary_load("gpt-2", NULL),
                      *b = small_vocabulary_load("gpt-2", NULL);
    struct vocabulary *c = small_vocabulary_load("smollm", NULL),
                      *d = small_vocabulary_load("gpt-2", "x");
    uint8_t digests[4][REQUEST_DIGEST_BYTES];

    vocabulary_digest(a, digests[0]);
    vocabulary_digest(b, digests[1]);
    vocabulary_digest(c, digests[2]);
    vocabulary_digest(d, digests[3]);
    assert_memory_equal(digests[0], digests[1], REQUEST_DIGEST_BYTES);
    assert_memory_not_equal(digests[0], digests[2], REQUEST_DIGEST_BYTES);
    assert_memory_not_equal(digests[0], digests[3], REQUEST_DIGEST_BYTES);
    vocabulary_destroy(&a);
    vocabulary_destroy(&b);
    vocabulary_destroy(&c);
    vocabulary_destroy(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model_ids), cmocka_unit_test(test_golden_prompts),
        cmocka_unit_test(test_merges),    cmocka_unit_test(test_special_tokens),
        cmocka_unit_test(test_any_bytes), cmocka_unit_test(test_invalid_bytes_cut),
        cmocka_unit_test(test_limits),    cmocka_unit_test(test_long_texts),
        cmocka_unit_test(test_refusals),  cmocka_unit_test(test_digest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
