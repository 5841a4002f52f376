#include "base/checked.h"
#include "small_vocabulary.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static struct vocabulary *vocabulary;

struct answer {
    char text[4096];
    uint32_t n_text, n_fed, n_events;
    enum finish_reason finish;
};

static uint32_t next_id(const char **p)
{
    static const struct {
        const char *name;
        uint32_t id;
    } names[] = {{"{end}", ID_END},
                 {"{start}", ID_START},
                 {"{text_end}", ID_TEXT_END},
                 {"{hello}", ID_HELLO},
                 {"{think}", ID_THINK}};

    for (size_t i = 0; i < ARRAY_LENGTH(names); i++)
        if (!strncmp(*p, names[i].name, strlen(names[i].name))) {
            *p += strlen(names[i].name);
            return names[i].id;
        }
    return (unsigned char)*(*p)++;
}

/* Feeds `ids` (a byte is its own token, {name} a longer one) until the end of either. */
static struct answer feed(const struct resume *r, uint32_t context, const char *ids)
{
    struct text_stream *s;
    struct text_released out = {0};
    struct answer a = {0};

    assert_int_equal(text_stream_create(vocabulary, r, context, &s), STATUS_OK);
    for (const char *p = ids; *p && !out.ended;) {
        assert_int_equal(text_stream_feed(s, next_id(&p), &out), STATUS_OK);
        memcpy(a.text + a.n_text, out.bytes, out.len);
        a.n_text += out.len;
        a.n_events += out.len > 0;
    }
    a.finish = out.finish;
    a.n_fed = text_stream_n_fed(s);
    if (out.ended)
        assert_int_equal(text_stream_feed(s, 'x', &out), STATUS_INTERNAL);
    text_stream_destroy(&s);
    return a;
}

static struct resume limits(uint32_t max_tokens)
{
    return (struct resume){.max_tokens = max_tokens};
}

static void test_end_tokens(void **state)
{
    struct resume r = limits(100);
    struct answer a = feed(&r, 1000, "ab{end}c");
    assert_string_equal(a.text, "ab");
    assert_int_equal(a.finish, FINISH_STOP);
    assert_int_equal(a.n_fed, 3);
    a = feed(&r, 1000, "ab{text_end}c");
    assert_int_equal(a.n_fed, 3);
    a = feed(&r, 1000, "a{start}b{think}"); /* a control token that ends nothing and adds nothing */
    assert_string_equal(a.text, "ab<think>");
    assert_int_equal(a.finish, FINISH_NONE);
    r.ignore_eos = true;
    a = feed(&r, 1000, "ab{end}c");
    assert_string_equal(a.text, "abc");
    assert_int_equal(a.finish, FINISH_NONE);
}

static void test_lengths(void **state)
{
    struct resume r = limits(3);
    struct answer a = feed(&r, 1000, "abcdef");
    assert_string_equal(a.text, "abc");
    assert_int_equal(a.finish, FINISH_LENGTH);
    a = feed(&r, 1000, "ab{end}");
    assert_int_equal(a.finish, FINISH_STOP);
    r.n_prompt = 998;
    a = feed(&r, 1000, "abcdef");
    assert_int_equal(a.n_fed, 2);
    assert_int_equal(a.finish, FINISH_LENGTH);
    r.n_prompt = 1000;
    a = feed(&r, 1000, "abcdef");
    assert_int_equal(a.n_fed, 1);
    r = limits(0);
    a = feed(&r, 1000, "abcdef");
    assert_int_equal(a.n_fed, 1);
}

static void test_min_tokens(void **state)
{
    struct resume r = limits(100);
    struct byte_string stop = {"b", 1};
    r.min_tokens = 2;
    struct answer a = feed(&r, 1000, "a{end}c{end}d");
    assert_string_equal(a.text, "ac");
    assert_int_equal(a.n_fed, 4);
    r.stops = &stop;
    r.n_stops = 1;
    a = feed(&r, 1000, "bab");
    assert_string_equal(a.text, "ba");
    assert_int_equal(a.n_fed, 3);
    a = feed(&r, 1000, "ab");
    assert_string_equal(a.text, "a");
    assert_int_equal(a.finish, FINISH_STOP);
    struct byte_string overlapping = {
        "aba", 3}; /* complete at 3, where it does not count, and again at 5 */
    r.stops = &overlapping;
    r.min_tokens = 4;
    a = feed(&r, 1000, "ababa");
    assert_string_equal(a.text, "ab");
    assert_int_equal(a.finish, FINISH_STOP);
}

static void test_half_characters(void **state)
{
    struct resume r = limits(100);
    struct text_stream *s;
    struct text_released out;
    static const char emoji[] = "\xf0\x9f\x98\x80";

    assert_int_equal(text_stream_create(vocabulary, &r, 1000, &s), STATUS_OK);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(text_stream_feed(s, (unsigned char)emoji[i], &out), STATUS_OK);
        assert_int_equal(out.len, i < 3 ? 0 : 4);
    }
    assert_memory_equal(out.bytes, emoji, 4);
    text_stream_destroy(&s);

    static const struct {
        const char *fed, *text;
    } cases[] = {
        {"a\xe2\x82{end}", "a\xef\xbf\xbd"}, /* cut short at the end: one U+FFFD */
        {"\xe2\x82"
         "a{end}",
         "\xef\xbf\xbd"
         "a"},                                         /* a truncated character is one */
        {"\xff\xfe{end}", "\xef\xbf\xbd\xef\xbf\xbd"}, /* bytes that begin nothing are one each */
        {"\xed\xa0\x80{end}", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"}, /* a surrogate */
        {"\xf0\x9f\xe2\x82\xac{end}", "\xef\xbf\xbd\xe2\x82\xac"}, /* broken off by a whole one */
        {"\xc3{hello}{end}", "\xef\xbf\xbdhello"},
        {"\xe2\x82{start}\xac{end}", "\xe2\x82\xac"}, /* a control token does not come between */
    };
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++)
        assert_string_equal(feed(&r, 1000, cases[i].fed).text, cases[i].text);
}

static void test_stop_strings(void **state)
{
    static const struct {
        const char *stops[3];
        const char *fed, *text;
        uint32_t n_fed;
        enum finish_reason finish;
    } cases[] = {
        {{"lo w"}, "hello world", "hel", 7, FINISH_STOP},
        {{"lo w"}, "hello there", "hello there", 11, FINISH_NONE},
        {{"lo w"}, "x{hello} w!", "xhel", 4, FINISH_STOP}, /* across tokens */
        {{"el"}, "{hello}{end}", "h", 1, FINISH_STOP}, /* within one; the rest of it is dropped */
        {{"aab"}, "aaab", "a", 4, FINISH_STOP},
        {{"\n\n"}, "a\nb\n\nc", "a\nb", 5, FINISH_STOP},
        {{"abcd", "bc"}, "xabcd", "xa", 4, FINISH_STOP}, /* the one complete first */
        {{"c", "abc"}, "xabc", "x", 4, FINISH_STOP},     /* complete together: the longest */
        {{"lox"},
         "{hello}{end}",
         "hello",
         2,
         FINISH_STOP}, /* held back, then released at the end */
        {{"\xe2\x82\xac"}, "a\xe2\x82\xac", "a", 4, FINISH_STOP},
        {{"\xef\xbf\xbd"},
         "a\xff"
         "b",
         "a",
         2,
         FINISH_STOP},
        {{"<|im_end|>"}, "a{end}", "a", 2, FINISH_STOP},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        struct byte_string stops[3];
        struct resume r = limits(100);
        r.stops = stops;
        for (; r.n_stops < 3 && cases[i].stops[r.n_stops]; r.n_stops++)
            stops[r.n_stops] = (struct byte_string){cases[i].stops[r.n_stops],
                                                    (uint32_t)strlen(cases[i].stops[r.n_stops])};
        struct answer a = feed(&r, 1000, cases[i].fed);
        /* Without an end the held text is not shown yet: only what follows it could. */
        assert_string_equal(a.text, cases[i].text);
        assert_int_equal(a.n_fed, cases[i].n_fed);
        assert_int_equal(a.finish, cases[i].finish);
    }
}

/* Whatever the text and the stops, what is released is the text up to the first complete stop. */
static void test_random_stops(void **state)
{
    srand(1);
    for (int round = 0; round < 20000; round++) {
        char text[41] = {0}, stop[2][5] = {{0}};
        struct byte_string stops[2];
        struct resume r = limits(40);
        for (int i = 0; i < 40; i++)
            text[i] = (char)('a' + rand() % 2);
        for (int k = 0; k < 2; k++) {
            int n = 1 + rand() % 4;
            for (int i = 0; i < n; i++)
                stop[k][i] = (char)('a' + rand() % 3);
            stops[k] = (struct byte_string){stop[k], (uint32_t)n};
        }
        r.stops = stops;
        r.n_stops = 2;
        size_t cut = 40, end = 40;
        for (size_t i = 1; i <= 40 && cut == 40; i++)
            for (int k = 0; k < 2; k++)
                if (stops[k].len <= i && !memcmp(text + i - stops[k].len, stop[k], stops[k].len)) {
                    cut = cut < i - stops[k].len ? cut : i - stops[k].len;
                    end = i;
                }
        struct answer a = feed(&r, 1000, text);
        assert_int_equal(a.n_fed, end);
        assert_int_equal(a.n_text, cut);
        assert_memory_equal(a.text, text, cut);
    }
}

static void test_refusals(void **state)
{
    struct text_stream *s;
    struct text_released out;
    struct resume r = limits(10);
    struct byte_string stop = {"", 0};

    r.stops = &stop;
    r.n_stops = 1;
    assert_int_equal(text_stream_create(vocabulary, &r, 100, &s), STATUS_BAD_REQUEST);
    stop = (struct byte_string){"\xac", 1};
    assert_int_equal(text_stream_create(vocabulary, &r, 100, &s), STATUS_BAD_REQUEST);
    r.n_stops = 0;
    assert_int_equal(text_stream_create(vocabulary, &r, 100, &s), STATUS_OK);
    assert_int_equal(text_stream_feed(s, N_SMALL_TOKENS, &out), STATUS_BAD_REQUEST);
    text_stream_destroy(&s);
}

static int set_up(void **state)
{
    vocabulary = small_vocabulary_load("gpt-2", NULL);
    return vocabulary ? 0 : -1;
}

static int tear_down(void **state)
{
    vocabulary_destroy(&vocabulary);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_end_tokens),   cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_min_tokens),   cmocka_unit_test(test_half_characters),
        cmocka_unit_test(test_stop_strings), cmocka_unit_test(test_random_stops),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
