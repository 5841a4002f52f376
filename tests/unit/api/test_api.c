/* api: exact answers over real sockets, with a small vocabulary and a service that the test writes.
 */
#include "api/api.h"

#include "base/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
/* after the four above */
#include <cmocka.h>
#include <locale.h>
#include <stdio.h>

#include "fake_service.h"
#include "unit/http/client.h"

static struct world {
    struct net_loop *loop;
    struct net_listener *listener;
    struct http_server *server;
    struct metrics *metrics;
    struct api *api;
    struct api_options options;
} w;

static const char *const model_ids[] = {"tiny", "other"};

#define SCRIPT(...)                                                                                \
    do {                                                                                           \
        static const uint32_t script[] = {__VA_ARGS__};                                            \
        fake_reset(script, sizeof script / sizeof *script);                                        \
    } while (0)

static int make(bool loaded)
{
    struct net_address a;

    fake_vocabulary_init();
    assert_int_equal(net_loop_create(&w.loop), STATUS_OK);
    assert_int_equal(net_address_parse("127.0.0.1:0", "--port", &a), STATUS_OK);
    assert_int_equal(net_listen(w.loop, &a, "--port", &w.listener), STATUS_OK);
    assert_int_equal(http_server_create(w.loop, NULL, &w.server), STATUS_OK);
    w.metrics = metrics_create("model_name=\"tiny\",role=\"hybrid\"");
    w.options.model_ids = model_ids;
    w.options.n_model_ids = 2;
    assert_int_equal(api_create(w.loop, &w.options, w.metrics, &w.api), STATUS_OK);
    api_attach_http(w.api, w.server);
    http_server_attach(w.server, w.listener);
    SCRIPT('o', 'k', FAKE_EOS);
    if (loaded)
        api_set_service(w.api, &fake.base, &fake_vocabulary);
    return 0;
}

static int setup(void **state)
{
    memset(&w, 0, sizeof w);
    api_options_init(&w.options);
    return make(true);
}

static int teardown(void **state)
{
    net_listener_close(&w.listener);
    http_server_destroy(&w.server);
    turn_for(w.loop, 2);
    assert_int_equal(api_n_running(w.api), 0);
    api_destroy(&w.api);
    net_loop_destroy(&w.loop);
    metrics_destroy(&w.metrics);
    fake_reset(NULL, 0);
    return 0;
}

/* ---- the client ---- */

static struct {
    int status;
    char head[8192];
    struct buffer body; /* without chunk marks */
    bool complete;
} got;

static bool dechunk(const char *p, const char *end)
{
    while (p < end) {
        char *rest;
        unsigned long n = strtoul(p, &rest, 16);

        if (n == 0)
            return true;
        if (end - rest < 2 || (unsigned long)(end - rest - 2) < n)
            return false;
        buffer_append(&got.body, rest + 2, n);
        p = rest + 2 + n + 2;
    }
    return false;
}

static bool parse_answer(const struct buffer *raw, bool closed)
{
    const char *body = raw->len > 0 ? strstr(raw->data, "\r\n\r\n") : NULL, *length;

    if (body == NULL)
        return false;
    snprintf(got.head, sizeof got.head, "%.*s", (int)(body + 2 - raw->data), raw->data);
    sscanf(got.head, "HTTP/1.1 %d", &got.status);
    body += 4;
    buffer_clear(&got.body);
    if (strstr(got.head, "chunked") != NULL)
        return dechunk(body, raw->data + raw->len);
    buffer_append(&got.body, body, (size_t)(raw->data + raw->len - body));
    length = strstr(got.head, "Content-Length: ");
    return length != NULL ? got.body.len >= strtoul(length + 16, NULL, 10) : closed;
}

static int open_request(const char *method, const char *path, const char *headers, const char *body)
{
    struct buffer request = {0};
    int fd = dial(w.listener);

    buffer_printf(&request, "%s %s HTTP/1.1\r\nHost: a\r\n%s", method, path, headers);
    if (body != NULL)
        buffer_printf(&request, "Content-Length: %zu\r\n", strlen(body));
    buffer_append_string(&request, "\r\n");
    if (body != NULL)
        buffer_append_string(&request, body);
    push(w.loop, fd, request.data, request.len);
    buffer_deinit(&request);
    return fd;
}

static void ask_with(const char *method, const char *path, const char *headers, const char *body)
{
    struct buffer raw = {0};
    int fd = open_request(method, path, headers, body);

    got.status = 0;
    got.complete = false;
    for (int64_t end = clock_now_ms() + 3000; clock_now_ms() < end && !got.complete;) {
        bool closed = pull(w.loop, fd, &raw, NULL, 1);

        got.complete = parse_answer(&raw, closed);
        if (closed)
            break;
        fake_step();
    }
    close(fd);
    buffer_deinit(&raw);
    turn_for(w.loop, 2);
}

static void post(const char *path, const char *body)
{
    ask_with("POST", path, "", body);
}

static void get(const char *path)
{
    ask_with("GET", path, "", NULL);
}

/* The body with ids and times made the same every time. */
static const char *canonical(void)
{
    static struct buffer out;
    const char *p = got.body.len > 0 ? got.body.data : "";

    buffer_clear(&out);
    while (*p != '\0') {
        if (strncmp(p, "cmpl-", 5) == 0) {
            buffer_append_string(&out, "cmpl-X");
            p += 5 + strspn(p + 5, "0123456789abcdef");
        } else if (strncmp(p, "\"created\":", 10) == 0) {
            buffer_append_string(&out, "\"created\":0");
            p += 10 + strspn(p + 10, "0123456789");
        } else
            buffer_append(&out, p++, 1);
    }
    return out.data != NULL ? out.data : "";
}

#define HEAD_OF(object, id)                                                                        \
    "{\"id\":\"" id "\",\"object\":\"" object                                                      \
    "\",\"created\":0,\"model\":\"tiny\",\"system_fingerprint\":\"fp_0123456789abcdef\","          \
    "\"choices\":["
#define CHAT HEAD_OF("chat.completion", "chatcmpl-X")
#define CHUNK "data: " HEAD_OF("chat.completion.chunk", "chatcmpl-X")
#define COMPLETION HEAD_OF("text_completion", "cmpl-X")
#define TEXT_CHUNK "data: " COMPLETION
#define USAGE(p, c, t)                                                                             \
    "\"usage\":{\"prompt_tokens\":" #p ",\"completion_tokens\":" #c ",\"total_tokens\":" #t
#define CACHED(n) ",\"prompt_tokens_details\":{\"cached_tokens\":" #n "}}"
#define HI "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"

static void test_chat(void **state)
{
    post("/v1/chat/completions", "{" HI ",\"seed\":5}");
    assert_int_equal(got.status, 200);
    assert_string_equal(canonical(),
                        CHAT "{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"ok\"},"
                             "\"logprobs\":null,\"finish_reason\":\"stop\"}]," USAGE(9, 3, 12)
                                 CACHED(2) "}");
    assert_non_null(strstr(got.head, "Content-Type: application/json\r\n"));
    assert_non_null(strstr(got.head, "x-baton-seed: 5\r\n"));
    assert_non_null(strstr(got.head, "x-request-id: chatcmpl-"));
    /* "<|im|>user:hi<|im|>" */
    assert_int_equal(fake.last.n_prompt, 9);
    assert_int_equal(fake.last.max_tokens, 512 - 9);
    assert_true(fake.last.sampling.temperature == 1 && fake.last.sampling.top_p == 1 &&
                fake.last.sampling.top_k == 0);
    assert_int_equal(fake.last.n_logprobs, -1);

    /* An id that the client gives is echoed; the alias works; parts are joined; the seed is drawn.
     */
    ask_with("POST", "/chat/completions", "X-Request-Id: mine-1\r\n",
             "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{"
             "\"type\":\"text\",\"text\":"
             "\"<|im|>\"}]},{\"role\":\"assistant\",\"content\":null}],\"max_tokens\":2,"
             "\"temperature\":0,\"stop\":[]}");
    assert_int_equal(got.status, 200);
    assert_non_null(strstr(got.head, "x-request-id: mine-1\r\n"));
    assert_null(strstr(got.head, "x-request-id: chatcmpl"));
    assert_non_null(strstr(got.head, "x-baton-seed: "));
    assert_non_null(strstr(got.body.data, "\"finish_reason\":\"length\""));
    assert_int_equal(fake.last.n_prompt, 14 + 11 + 1);
    assert_int_equal(fake.last_prompt[6], 'a');
    assert_int_equal(fake.last_prompt[8], '<');
}

static void test_chat_stream(void **state)
{
    /* A half character releases nothing; the EOS releases nothing. */
    SCRIPT('o', 0xc3, 0xa9, FAKE_HELLO, FAKE_EOS);
    fake.per_event = 2;
    post("/v1/chat/completions", "{" HI ",\"stream\":true,\"stream_options\":{\"include_usage\":"
                                 "true,\"continuous_usage_stats\":false}}");
    assert_int_equal(got.status, 200);
    assert_true(got.complete);
    assert_non_null(strstr(got.head, "Content-Type: text/event-stream"));
    assert_non_null(strstr(got.head, "Cache-Control: no-cache\r\n"));
    assert_non_null(strstr(got.head, "X-Accel-Buffering: no\r\n"));
#define DELTA(d)                                                                                   \
    CHUNK "{\"index\":0,\"delta\":{" d                                                             \
          "},\"logprobs\":null,\"finish_reason\":null}],\"usage\":null}\n\n"
    assert_string_equal(
        canonical(), DELTA("\"role\":\"assistant\",\"content\":\"\"") DELTA("\"content\":\"o\"")
                         DELTA("\"content\":\"\xc3\xa9\"") DELTA("\"content\":\"hello\"") CHUNK
        "{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"stop\"}],\"usage\":null}"
        "\n\n" CHUNK "]," USAGE(9, 5, 14) CACHED(2) "}\n\ndata: [DONE]\n\n");

    fake.per_event = 1;
    const char *one = strdup(canonical());
    post("/v1/chat/completions",
         "{" HI ",\"stream\":true,\"stream_options\":{\"include_usage\":true}}");
    assert_string_equal(canonical(), one); /* however tokens are batched */
    free((char *)one);

    post("/v1/chat/completions",
         "{" HI ",\"max_tokens\":1,\"stream\":true,\"stream_options\":{\"include_usage\":true,"
         "\"continuous_usage_stats\":true}}");
    assert_non_null(strstr(
        canonical(),
        "\"content\":\"o\"},\"logprobs\":null,\"finish_reason\":null}]," USAGE(9, 1, 10) "}}\n\n"));
    assert_non_null(strstr(canonical(), "\"finish_reason\":\"length\""));

    SCRIPT('o');
    post("/v1/chat/completions", "{" HI ",\"max_tokens\":1,\"stream\":true}");
    assert_null(strstr(canonical(), "usage"));
}

static void test_chat_logprobs(void **state)
{
    SCRIPT(0xc3, 0xa9, FAKE_EOS);
    post("/v1/chat/completions", "{" HI ",\"logprobs\":true,\"top_logprobs\":1}");
    assert_int_equal(got.status, 200);
    assert_non_null(
        strstr(canonical(),
               "\"content\":\"\xc3\xa9\"},\"logprobs\":{\"content\":["
               "{\"token\":\"\xef\xbf\xbd\",\"logprob\":-0.125,\"bytes\":[195],\"top_logprobs\":["
               "{\"token\":\"A\",\"logprob\":-0.5,\"bytes\":[65]},{\"token\":\"\xef\xbf\xbd\","
               "\"logprob\":-0.125,\"bytes\":[195]}]},"
               "{\"token\":\"\xef\xbf\xbd\",\"logprob\":-0.25,\"bytes\":[169],\"top_logprobs\":["
               "{\"token\":\"A\",\"logprob\":-0.5,\"bytes\":[65]},{\"token\":\"\xef\xbf\xbd\","
               "\"logprob\":-0.25,\"bytes\":[169]}]},"
               "{\"token\":\"</s>\",\"logprob\":-0.375,\"bytes\":[60,47,115,62],\"top_logprobs\":["
               "{\"token\":\"A\",\"logprob\":-0.5,\"bytes\":[65]},{\"token\":\"</"
               "s>\",\"logprob\":-0.375,\"bytes\":[60,47,115,62]}]}]},"
               "\"finish_reason\":\"stop\""));
    /* In a stream an id that releases nothing rides with the next event. */
    post("/v1/chat/completions", "{" HI ",\"logprobs\":true,\"stream\":true}");
    assert_non_null(strstr(
        canonical(),
        "{\"content\":\"\xc3\xa9\"},\"logprobs\":{\"content\":["
        "{\"token\":\"\xef\xbf\xbd\",\"logprob\":-0.125,\"bytes\":[195],\"top_logprobs\":[]},"
        "{\"token\":\"\xef\xbf\xbd\",\"logprob\":-0.25,\"bytes\":[169],\"top_logprobs\":[]}]}"));
    assert_non_null(strstr(
        canonical(),
        "\"delta\":{},\"logprobs\":{\"content\":["
        "{\"token\":\"</s>\",\"logprob\":-0.375,\"bytes\":[60,47,115,62],\"top_logprobs\":[]}]}"));
}

static void test_completions(void **state)
{
    post("/v1/completions", "{\"prompt\":\"ab<s>\",\"seed\":7}");
    assert_int_equal(got.status, 200);
    assert_string_equal(
        canonical(), COMPLETION
        "{\"text\":\"ok\",\"index\":0,\"logprobs\":null,\"finish_reason\":\"stop\"}]," USAGE(
            3, 3, 6) CACHED(2) "}");
    assert_int_equal(fake.last_prompt[2], FAKE_BOS); /* special tokens are read in a prompt */
    assert_int_equal(fake.last.max_tokens, 16);

    post("/v1/completions", "{\"prompt\":\"ab<s>\",\"parse_special\":false}");
    assert_int_equal(fake.last.n_prompt, 5);
    post("/v1/completions", "{\"prompt\":[1,2,3,4],\"max_tokens\":-1}");
    assert_int_equal(fake.last.n_prompt, 4);
    assert_int_equal(fake.last.max_tokens, 16);
    post("/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":100000}");
    assert_int_equal(fake.last.max_tokens, 511);

    /* BOS: where the file says so, once, and never in front of ids. */
    fake_vocabulary.adds_bos = true;
    post("/v1/completions", "{\"prompt\":\"ab\"}");
    assert_int_equal(fake.last.n_prompt, 3);
    assert_int_equal(fake.last_prompt[0], FAKE_BOS);
    post("/v1/completions", "{\"prompt\":\"<s>ab\"}");
    assert_int_equal(fake.last.n_prompt, 3);
    post("/v1/completions", "{\"prompt\":[1]}");
    assert_int_equal(fake.last.n_prompt, 1);
    post("/v1/completions", "{\"prompt\":\"ab\",\"echo\":true,\"max_tokens\":1}");
    assert_non_null(strstr(canonical(), "\"text\":\"abo\""));
    fake_vocabulary.adds_bos = false;

    post("/v1/completions", "{\"prompt\":[\"a\",\"bc\"],\"max_tokens\":2,\"echo\":true}");
    assert_string_equal(
        canonical(), COMPLETION
        "{\"text\":\"aok\",\"index\":0,\"logprobs\":null,\"finish_reason\":\"length\"},"
        "{\"text\":\"bcok\",\"index\":1,\"logprobs\":null,\"finish_reason\":\"length\"}]," USAGE(
            3, 4, 7) CACHED(4) "}");
    post("/v1/completions", "{\"prompt\":[[1],[2,3]],\"max_tokens\":0}");
    assert_string_equal(
        canonical(), COMPLETION
        "{\"text\":\"\",\"index\":0,\"logprobs\":null,\"finish_reason\":\"length\"},"
        "{\"text\":\"\",\"index\":1,\"logprobs\":null,\"finish_reason\":\"length\"}]," USAGE(
            3, 0, 3) CACHED(4) "}");

    SCRIPT('x', 'y', 'E', 'N', 'D', 'z');
    post("/v1/completions", "{\"prompt\":\"a\",\"stop\":\"END\",\"stream\":true}");
    assert_string_equal(
        canonical(), TEXT_CHUNK
        "{\"text\":\"x\",\"index\":0,\"logprobs\":null,\"finish_reason\":null}]}\n\n" TEXT_CHUNK
        "{\"text\":\"y\",\"index\":0,\"logprobs\":null,\"finish_reason\":null}]}\n\n" TEXT_CHUNK
        "{\"text\":\"\",\"index\":0,\"logprobs\":null,\"finish_reason\":\"stop\"}]}\n\n"
        "data: [DONE]\n\n");
}

/* lm-eval: ids, one token, echo; it slices by the prompt's length, so that each list has exactly
 * prompt + answer entries. */
static void test_scoring(void **state)
{
    SCRIPT('B');
    post("/v1/completions", "{\"model\":\"tiny\",\"prompt\":[[226,66,257]],\"max_tokens\":1,"
                            "\"logprobs\":1,\"echo\":true,"
                            "\"temperature\":0,\"seed\":1234}");
    assert_int_equal(got.status, 200);
    assert_int_equal(fake.last.n_prompt_logprobs, 1);
    assert_string_equal(canonical(), COMPLETION
                        "{\"text\":\"\xef\xbf\xbd"
                        "B</s>B\",\"index\":0,\"logprobs\":{"
                        "\"tokens\":[\"bytes:\\\\xe2\",\"B\",\"</s>\",\"B\"],"
                        "\"token_logprobs\":[null,-0.25,-0.375,-0.125],"
                        "\"top_logprobs\":[null,{\"A\":-0.5,\"B\":-0.25},{\"A\":-0.5,\"</"
                        "s>\":-0.375},{\"A\":-0.5,\"B\":-0.125}],"
                        "\"text_offset\":[0,1,2,6]},\"finish_reason\":\"length\"}]," USAGE(3, 1, 4)
                            CACHED(2) "}");

    /* Two ids of the same bytes are told apart, and the chosen one keeps its name; the end of the
     * scale is -9999. */
    SCRIPT(FAKE_OTHER_A, 'A', FAKE_EOS);
    post("/v1/completions", "{\"prompt\":\"a\",\"logprobs\":5}");
    assert_non_null(strstr(
        canonical(),
        "\"logprobs\":{\"tokens\":[\"A\",\"A\",\"</"
        "s>\"],\"token_logprobs\":[-1.5,-0.5,-3.5],\"top_logprobs\":["
        "{\"token_id:65\":-0.5,\"A\":-1.5,\"bytes:\\\\xe2\":-2.5,\"</s>\":-3.5,\"B\":-9999.0},"
        "{\"A\":-0.5,\"token_id:260\":-1.5,\"bytes:\\\\xe2\":-2.5,\"</s>\":-3.5,\"B\":-9999.0},"
        "{\"A\":-0.5,\"token_id:260\":-1.5,\"bytes:\\\\xe2\":-2.5,\"</s>\":-3.5,\"B\":-9999.0}],"
        "\"text_offset\":[0,1,2]}"));
    /* logprobs 0: the chosen one alone. Streamed, the echo comes first, with its own. */
    SCRIPT('B');
    post("/v1/completions",
         "{\"prompt\":\"bc\",\"logprobs\":0,\"echo\":true,\"max_tokens\":1,\"stream\":true}");
    assert_string_equal(
        canonical(), TEXT_CHUNK
        "{\"text\":\"bc\",\"index\":0,\"logprobs\":{\"tokens\":[\"b\",\"c\"],\"token_logprobs\":["
        "null,-0.25],"
        "\"top_logprobs\":[null,{\"c\":-0.25}],\"text_offset\":[0,1]},\"finish_reason\":null}]}"
        "\n\n" TEXT_CHUNK
        "{\"text\":\"B\",\"index\":0,\"logprobs\":{\"tokens\":[\"B\"],\"token_logprobs\":[-0.125],"
        "\"top_logprobs\":[{\"B\":-0.125}],\"text_offset\":[2]},\"finish_reason\":null}]}"
        "\n\n" TEXT_CHUNK "{\"text\":\"\",\"index\":0,\"logprobs\":null,\"finish_reason\":"
        "\"length\"}]}\n\ndata: [DONE]\n\n");
    fake.lie = LIE_NO_PROMPT_ROWS;
    post("/v1/completions", "{\"prompt\":\"bc\",\"logprobs\":0,\"echo\":true}");
    assert_int_equal(got.status, 500);
    assert_non_null(strstr(got.body.data, "\"code\":\"inexact\""));
}

static void test_fields(void **state)
{
    post("/v1/chat/completions", "{" HI ",\"temperature\":0.5,\"top_p\":0.25,\"top_k\":40,\"min_"
                                 "p\":0.125,\"frequency_penalty\":-1.5,"
                                 "\"presence_penalty\":2,\"repetition_penalty\":1.25,\"logit_"
                                 "bias\":{\"66\":-100,\"65\":1.5},\"seed\":9007199254740993,"
                                 "\"stop\":[\"a\",\"\",\"b\",\"c\",\"d\",\"e\"],\"max_completion_"
                                 "tokens\":9,\"max_tokens\":3,\"min_tokens\":4,"
                                 "\"ignore_eos\":true,\"user\":\"u\",\"unheard_of\":{\"x\":[]},"
                                 "\"n\":1,\"tools\":[],\"response_format\":{\"type\":\"text\"},"
                                 "\"model\":\"gpt\",\"tool_choice\":\"none\"}");
    assert_int_equal(got.status, 200);
    assert_true(fake.last.sampling.temperature == 0.5 && fake.last.sampling.top_p == 0.25);
    assert_true(fake.last.sampling.min_p == 0.125 && fake.last.sampling.top_k == 40);
    assert_true(fake.last.sampling.frequency_penalty == -1.5f &&
                fake.last.sampling.presence_penalty == 2.0f);
    assert_true(fake.last.sampling.repetition_penalty == 1.25f);
    assert_int_equal(fake.last.n_logit_bias, 2);
    assert_int_equal(fake.last_bias[0].id, 65);
    assert_true(fake.last_bias[0].bias == 1.5f && fake.last_bias[1].bias == -100.0f);
    assert_true(fake.last.seed == 9007199254740993u);
    assert_int_equal(fake.last.n_stops, 5);
    assert_string_equal(fake.last_stops[4], "e");
    assert_int_equal(fake.last.max_tokens, 9);
    assert_int_equal(fake.last.min_tokens, 4);
    assert_true(fake.last.ignore_eos);
    assert_non_null(strstr(got.body.data, "\"model\":\"tiny\""));
    post("/v1/chat/completions",
         "{" HI ",\"temperature\":null,\"top_k\":-1,\"seed\":-1,\"max_tokens\":null,\"stop\":null,"
         "\"repeat_penalty\":1.5,\"max_tokens\":16.0}");
    assert_int_equal(got.status, 400); /* max_tokens twice */
    post("/v1/chat/completions",
         "{" HI ",\"top_k\":-1,\"repeat_penalty\":1.5,\"max_tokens\":16.0}");
    assert_int_equal(got.status, 200);
    assert_int_equal(fake.last.sampling.top_k, 0);
    assert_int_equal(fake.last.max_tokens, 16);
    assert_true(fake.last.sampling.repetition_penalty == 1.5f);
}

static const struct {
    const char *path, *body;
    int status;
    const char *param; /* NULL: null */
    const char *code;
} bad[] = {
#define C "/v1/completions"
#define M "/v1/chat/completions"
    {M, "", 400, NULL, "bad_json"},
    {M, "{", 400, NULL, "bad_json"},
    {M, "[]", 400, NULL, "bad_json"},
    {M, "{} x", 400, NULL, "bad_json"},
    {M, "{\"a\":1,\"a\":2}", 400, NULL, "bad_json"},
    {M, "{\"a\":\"\\ud800\"}", 400, NULL, "bad_json"},
    {M, "{\"a\":\"\xff\"}", 400, NULL, "bad_json"},
    {M, "{\"a\":\"\\u0000\"}", 400, NULL, "bad_json"},
    {M, "{\"a\":1e999}", 400, NULL, "bad_json"},
    {M, "{\"a\":NaN}", 400, NULL, "bad_json"},
    {M, "{\"a\":99999999999999999999}", 400, NULL, "bad_json"},
    {M, "{}", 400, "messages", "bad_request"},
    {M, "{\"messages\":[]}", 400, "messages", "bad_request"},
    {M, "{\"messages\":\"hi\"}", 400, "messages", "bad_request"},
    {M, "{\"messages\":[1]}", 400, "messages[0]", "bad_request"},
    {M, "{\"messages\":[{\"content\":\"x\"}]}", 400, "messages[0].role", "bad_request"},
    {M, "{\"messages\":[{\"role\":\"king\",\"content\":\"x\"}]}", 400, "messages[0].role",
     "bad_request"},
    {M, "{\"messages\":[{\"role\":\"tool\",\"content\":\"x\"}]}", 400, "messages[0].role",
     "bad_request"},
    {M, "{\"messages\":[{\"role\":\"user\",\"content\":5}]}", 400, "messages[0].content",
     "bad_request"},
    {M, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}", 400,
     "messages[0].content[0]", "bad_request"},
    {M, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]}", 400,
     "messages[0].content[0]", "bad_request"},
    {M, "{\"messages\":[{\"role\":\"user\",\"content\":\"RAISE\"}]}", 400, "messages",
     "bad_template"},
    {M, "{" HI ",\"model\":5}", 400, "model", "bad_request"},
    {M, "{" HI ",\"n\":2}", 400, "n", "bad_request"},
    {M, "{" HI ",\"tools\":[{}]}", 400, "tools", "bad_request"},
    {M, "{" HI ",\"tool_choice\":\"required\"}", 400, "tool_choice", "bad_request"},
    {M, "{" HI ",\"response_format\":{\"type\":\"json_object\"}}", 400, "response_format",
     "bad_request"},
    {M, "{" HI ",\"stream\":1}", 400, "stream", "bad_request"},
    {M, "{" HI ",\"stream_options\":{}}", 400, "stream_options", "bad_request"},
    {M, "{" HI ",\"stream\":true,\"stream_options\":[]}", 400, "stream_options", "bad_request"},
    {M, "{" HI ",\"temperature\":-0.1}", 400, "temperature", "bad_request"},
    {M, "{" HI ",\"temperature\":\"1\"}", 400, "temperature", "bad_request"},
    {M, "{" HI ",\"top_p\":1.1}", 400, "top_p", "bad_request"},
    {M, "{" HI ",\"top_k\":-2}", 400, "top_k", "bad_request"},
    {M, "{" HI ",\"top_k\":1.5}", 400, "top_k", "bad_request"},
    {M, "{" HI ",\"min_p\":2}", 400, "min_p", "bad_request"},
    {M, "{" HI ",\"frequency_penalty\":2.1}", 400, "frequency_penalty", "bad_request"},
    {M, "{" HI ",\"presence_penalty\":-2.1}", 400, "presence_penalty", "bad_request"},
    {M, "{" HI ",\"repetition_penalty\":0}", 400, "repetition_penalty", "bad_request"},
    {M, "{" HI ",\"logit_bias\":[]}", 400, "logit_bias", "bad_request"},
    {M, "{" HI ",\"logit_bias\":{\"261\":1}}", 400, "logit_bias", "bad_request"},
    {M, "{" HI ",\"logit_bias\":{\"01\":1}}", 400, "logit_bias", "bad_request"},
    {M, "{" HI ",\"logit_bias\":{\"1\":101}}", 400, "logit_bias", "bad_request"},
    {M, "{" HI ",\"logit_bias\":{\"1\":\"x\"}}", 400, "logit_bias", "bad_request"},
    {M, "{" HI ",\"stop\":5}", 400, "stop", "bad_request"},
    {M, "{" HI ",\"stop\":[5]}", 400, "stop", "bad_request"},
    {M, "{" HI ",\"max_tokens\":0}", 400, "max_tokens", "bad_request"},
    {M, "{" HI ",\"max_completion_tokens\":-2}", 400, "max_completion_tokens", "bad_request"},
    {M, "{" HI ",\"max_tokens\":3,\"min_tokens\":4}", 400, "min_tokens", "bad_request"},
    {M, "{" HI ",\"ignore_eos\":\"yes\"}", 400, "ignore_eos", "bad_request"},
    {M, "{" HI ",\"logprobs\":5}", 400, "logprobs", "bad_request"},
    {M, "{" HI ",\"top_logprobs\":5}", 400, "top_logprobs", "bad_request"},
    {M, "{" HI ",\"logprobs\":true,\"top_logprobs\":21}", 400, "top_logprobs", "bad_request"},
    {M, "{" HI ",\"seed\":1.5}", 400, "seed", "bad_request"},
    {C, "{}", 400, "prompt", "bad_request"},
    {C, "{\"prompt\":\"\"}", 400, "prompt", "bad_request"},
    {C, "{\"prompt\":[]}", 400, "prompt", "bad_request"},
    {C, "{\"prompt\":[[]]}", 400, "prompt", "bad_request"},
    {C, "{\"prompt\":[1,\"a\"]}", 400, "prompt", "bad_request"},
    {C, "{\"prompt\":[\"a\",[1]]}", 400, "prompt", "bad_request"},
    {C, "{\"prompt\":[261]}", 400, "prompt", "bad_request"},
    {C, "{\"prompt\":[-1]}", 400, "prompt", "bad_request"},
    {C, "{\"prompt\":[1.5]}", 400, "prompt", "bad_request"},
    {C, "{\"prompt\":{}}", 400, "prompt", "bad_request"},
    {C, "{\"prompt\":\"a\",\"best_of\":2}", 400, "best_of", "bad_request"},
    {C, "{\"prompt\":\"a\",\"suffix\":\"x\"}", 400, "suffix", "bad_request"},
    {C, "{\"prompt\":\"a\",\"logprobs\":21}", 400, "logprobs", "bad_request"},
    {C, "{\"prompt\":\"a\",\"echo\":1}", 400, "echo", "bad_request"},
    {"/tokenize", "{}", 400, "prompt", "bad_request"},
    {"/detokenize", "{}", 400, "tokens", "bad_request"},
    {"/detokenize", "{\"tokens\":[999]}", 400, "tokens", "bad_request"},
};

static void test_bad_requests(void **state)
{
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        json_t *root, *error;
        const char *param;

        post(bad[i].path, bad[i].body);
        root = json_loadb(got.body.data, got.body.len, 0, NULL);
        error = json_object_get(root, "error");
        param = json_string_value(json_object_get(error, "param"));
        if (got.status != bad[i].status || error == NULL ||
            strcmp(param ? param : "", bad[i].param ? bad[i].param : "") != 0 ||
            strcmp(json_string_value(json_object_get(error, "code")), bad[i].code) != 0)
            fail_msg("%s %s:\n%d %s", bad[i].path, bad[i].body, got.status, got.body.data);
        assert_string_equal(json_string_value(json_object_get(error, "type")),
                            "invalid_request_error");
        assert_true(json_string_length(json_object_get(error, "message")) > 0);
        assert_int_equal(json_object_size(error), 4);
        json_decref(root);
    }
    assert_int_equal(fake.n_submitted, 0);

    struct buffer deep = {0};
    buffer_append_string(&deep, "{\"a\":");
    for (int i = 0; i < 100000; i++)
        buffer_append_string(&deep, "[");
    post(M, deep.data);
    assert_int_equal(got.status, 400);
    assert_non_null(strstr(got.body.data, "nested"));

    /* A prompt that does not fit is refused with both numbers; one that just fits is not. */
    buffer_clear(&deep);
    buffer_printf(&deep, "{\"prompt\":\"%0512d\"}", 0);
    post(C, deep.data);
    assert_int_equal(got.status, 400);
    assert_non_null(strstr(got.body.data, "has 512 tokens"));
    assert_non_null(
        strstr(got.body.data, "\"param\":\"prompt\",\"code\":\"context_length_exceeded\""));
    buffer_clear(&deep);
    buffer_printf(&deep, "{\"prompt\":\"%0511d\"}", 0);
    post(C, deep.data);
    assert_int_equal(got.status, 200);
    assert_int_equal(fake.last.max_tokens, 1);
    buffer_clear(&deep);
    buffer_printf(&deep, "{\"messages\":[{\"role\":\"user\",\"content\":\"%05000d\"}]}", 0);
    post(M, deep.data);
    assert_non_null(
        strstr(got.body.data, "\"param\":\"messages\",\"code\":\"context_length_exceeded\""));
    buffer_deinit(&deep);
    get("/nothing");
    assert_int_equal(got.status, 404);
    assert_non_null(strstr(got.body.data, "\"code\":\"not_found\""));
    get(M);
    assert_int_equal(got.status, 405);
    assert_non_null(strstr(got.head, "Allow: POST, OPTIONS\r\n"));
}

static void test_service_errors(void **state)
{
    fake.refuse = STATUS_QUEUE_FULL;
    post(M, "{" HI "}");
    assert_int_equal(got.status, 429);
    assert_non_null(strstr(got.head, "Retry-After: 7\r\n"));
    assert_non_null(
        strstr(got.body.data,
               "\"message\":\"refused by the test\",\"type\":\"rate_limit_error\",\"param\":null,"
               "\"code\":\"queue_full\""));
    fake.refuse = STATUS_NO_NODE;
    post(M, "{" HI ",\"stream\":true}");
    assert_int_equal(got.status, 503);

    /* Before the first token an error keeps its status, in a stream, too. */
    SCRIPT('o', 'k');
    fake.fail_status = STATUS_PEER_LOST;
    post(M, "{" HI ",\"stream\":true}");
    assert_int_equal(got.status, 503);
    assert_non_null(strstr(got.head, "application/json"));
    assert_non_null(strstr(got.body.data, "\"code\":\"peer_lost\""));
    fake.fail_after = 1;
    post(M, "{" HI "}");
    assert_int_equal(got.status, 503);
    /* After it there is an error event, and no [DONE]. */
    post(M, "{" HI ",\"stream\":true}");
    assert_int_equal(got.status, 200);
    assert_true(got.complete);
    assert_non_null(strstr(canonical(), "\"content\":\"o\""));
    assert_non_null(
        strstr(canonical(), "event: error\ndata: {\"error\":{\"message\":\"failed by the test\""));
    assert_null(strstr(canonical(), "[DONE]"));
    /* One of several fails: all do, and the others are cancelled. */
    fake.fail_after = 0;
    post(C, "{\"prompt\":[\"a\",\"b\",\"c\"]}");
    assert_int_equal(got.status, 503);
    assert_int_equal(fake.n_cancelled, 2);
}

static void test_disagreement(void **state)
{
    for (int lie = LIE_FINISH; lie <= LIE_GAP; lie++) {
        SCRIPT('o', 'k', FAKE_EOS);
        fake.lie = lie;
        post(M, "{" HI "}");
        assert_int_equal(got.status, 500);
        assert_non_null(strstr(got.body.data, "\"code\":\"inexact\""));
    }
}

static void test_client_leaves(void **state)
{
    struct buffer raw = {0};
    int fd;

    fake.held = true;
    fd = open_request("POST", M, "", "{" HI "}");
    turn_for(w.loop, 30);
    assert_int_equal(fake.n_submitted, 1);
    assert_int_equal(api_n_running(w.api), 1);
    close(fd);
    turn_for(w.loop, 10);
    assert_int_equal(fake.n_cancelled, 1);
    assert_int_equal(api_n_running(w.api), 0);

    fake.held = false;
    fake.held_after = 1;
    fd = open_request("POST", M, "", "{" HI ",\"stream\":true}");
    for (int i = 0; i < 20; i++) {
        pull(w.loop, fd, &raw, NULL, 2);
        fake_step();
    }
    assert_non_null(strstr(raw.data, "\"content\":\"o\""));
    close(fd);
    turn_for(w.loop, 10);
    assert_int_equal(fake.n_cancelled, 2);
    buffer_deinit(&raw);

    /* While a text thread has it. */
    fd = open_request("POST", M, "", "{" HI "}");
    close(fd);
    turn_for(w.loop, 30);
    assert_int_equal(api_n_running(w.api), 0);
    get("/metrics");
    assert_non_null(strstr(got.body.data, "baton_request_success_total{model_name=\"tiny\",role="
                                          "\"hybrid\",finished_reason=\"abort\"}"));
}

static void test_silence(void **state)
{
    struct buffer raw = {0};
    int fd;

    teardown(NULL);
    memset(&w, 0, sizeof w);
    api_options_init(&w.options);
    w.options.comment_ms = 1;
    make(true);
    fake.held_after = 1;
    fd = open_request("POST", M, "", "{" HI ",\"stream\":true}");
    for (int i = 0; i < 700 && (raw.len == 0 || strstr(raw.data, ": waiting") == NULL); i++) {
        pull(w.loop, fd, &raw, NULL, 2);
        fake_step();
    }
    assert_non_null(strstr(raw.data, "\n: waiting\n\n"));
    fake.held_after = 0;
    for (int i = 0; i < 10; i++) {
        fake_step();
        pull(w.loop, fd, &raw, NULL, 2);
    }
    assert_non_null(strstr(raw.data, "[DONE]"));
    buffer_deinit(&raw);
    close(fd);
    turn_for(w.loop, 5);
}

static void test_small_routes(void **state)
{
    get("/v1/models");
    assert_string_equal(canonical(), "{\"object\":\"list\",\"data\":[{\"id\":\"tiny\",\"object\":"
                                     "\"model\",\"created\":0,\"owned_by\":\"baton\","
                                     "\"max_model_len\":512},{\"id\":\"other\",\"object\":"
                                     "\"model\",\"created\":0,\"owned_by\":\"baton\","
                                     "\"max_model_len\":512}]}");
    get("/v1/models/%6fther");
    assert_string_equal(canonical(), "{\"id\":\"other\",\"object\":\"model\",\"created\":0,\"owned_"
                                     "by\":\"baton\",\"max_model_len\":512}");
    get("/models/gpt-4");
    assert_int_equal(got.status, 404);
    assert_non_null(strstr(got.body.data, "\"code\":\"model_not_found\""));

    post("/tokenize", "{\"prompt\":\"a<s>\"}");
    assert_string_equal(
        canonical(), "{\"count\":2,\"max_model_len\":512,\"tokens\":[97,256],\"token_strs\":null}");
    post("/tokenize", "{\"content\":\"a<s>\",\"parse_special\":false,\"with_pieces\":true}");
    assert_string_equal(canonical(), "{\"count\":4,\"max_model_len\":512,\"tokens\":[97,60,115,62],"
                                     "\"token_strs\":[\"a\",\"<\",\"s\",\">\"]}");
    post("/tokenize", "{" HI "}");
    assert_non_null(strstr(got.body.data, "\"count\":9,"));
    post("/detokenize", "{\"tokens\":[97,256,10,34]}");
    assert_string_equal(canonical(), "{\"prompt\":\"a<s>\\n\\\"\",\"content\":\"a<s>\\n\\\"\"}");
    get("/tokenizer_info");
    assert_string_equal(canonical(),
                        "{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\",\"pad_token\":null,"
                        "\"chat_template\":\"{{ messages }}\",\"add_bos_token\":false}");

    get("/router/stats");
    assert_string_equal(
        canonical(),
        "{\"role\":\"router\",\"nodes\":{\"prefill-0\":{\"pages_free\":12,\"busy\":0.25},"
        "\"decode-0\":{\"state\":\"healthy\"}}}");
    get("/health");
    assert_int_equal(got.status, 200);
    assert_string_equal(canonical(), "{\"status\":\"ok\",\"role\":\"hybrid\",\"node\":\"n-0\"}");
    ask_with("HEAD", "/readyz", "", NULL);
    assert_int_equal(got.status, 200);
    fake.ready = STATUS_NO_NODE;
    get("/readyz");
    assert_int_equal(got.status, 503);
    assert_non_null(
        strstr(got.body.data, "\"reason\":\"no_node\",\"message\":\"not ready, says the test\""));
    get("/livez");
    assert_int_equal(got.status, 200);

    post(M, "{" HI "}");
    get("/metrics");
    assert_int_equal(got.status, 200);
    static const char *const series[] = {
        "baton_num_requests_running{model_name=\"tiny\",role=\"hybrid\"} 3\n",
        "baton_num_requests_waiting{model_name=\"tiny\",role=\"hybrid\"} 4\n",
        "baton_prompt_tokens_total{model_name=\"tiny\",role=\"hybrid\"} 9\n",
        "baton_generation_tokens_total{model_name=\"tiny\",role=\"hybrid\"} 3\n",
        "baton_request_success_total{model_name=\"tiny\",role=\"hybrid\",finished_reason=\"stop\"} "
        "1\n",
        "baton_time_to_first_token_seconds_count{model_name=\"tiny\",role=\"hybrid\"} 1\n",
        "baton_inter_token_latency_seconds_count{model_name=\"tiny\",role=\"hybrid\"} 2\n",
        "baton_e2e_request_latency_seconds_count{model_name=\"tiny\",role=\"hybrid\"} 1\n",
    };
    for (size_t i = 0; i < sizeof series / sizeof *series; i++)
        if (strstr(got.body.data, series[i]) == NULL)
            fail_msg("%s is not in:\n%s", series[i], got.body.data);

    api_drain(w.api);
    fake.ready = STATUS_OK;
    get("/readyz");
    assert_int_equal(got.status, 503);
    post(M, "{" HI "}");
    assert_int_equal(got.status, 503);
    assert_non_null(strstr(got.body.data, "\"code\":\"draining\""));
}

static void test_loading_and_keys(void **state)
{
    static const char *const keys[] = {"secret", "other-secret"};

    teardown(NULL);
    memset(&w, 0, sizeof w);
    api_options_init(&w.options);
    w.options.keys = keys;
    w.options.n_keys = 2;
    w.options.strict_model = true;
    make(false);
    get("/v1/models");
    assert_int_equal(got.status, 401);
    assert_non_null(strstr(got.head, "WWW-Authenticate: Bearer\r\n"));
    assert_non_null(strstr(got.body.data, "\"code\":\"invalid_api_key\""));
    ask_with("GET", "/v1/models", "Authorization: Bearer secret\r\n", NULL);
    assert_int_equal(got.status, 503);
    assert_non_null(strstr(got.body.data, "\"code\":\"loading\""));
    assert_non_null(strstr(got.head, "Retry-After: 1\r\n"));
    get("/health");
    assert_int_equal(got.status, 503);
    assert_non_null(strstr(got.body.data, "\"reason\":\"loading\""));
    get("/livez");
    assert_int_equal(got.status, 200);
    get("/metrics");
    assert_int_equal(got.status, 200);

    api_set_service(w.api, &fake.base, &fake_vocabulary);
    ask_with("GET", "/v1/models", "authorization: bearer other-secret\r\n", NULL);
    assert_int_equal(got.status, 200);
    ask_with("GET", "/v1/models", "Authorization: Bearer secre\r\n", NULL);
    assert_int_equal(got.status, 401);
    ask_with("GET", "/v1/models", "Authorization: Bearer secretx\r\n", NULL);
    assert_int_equal(got.status, 401);
    ask_with("GET", "/router/stats", "", NULL);
    assert_int_equal(got.status, 401);
    ask_with("OPTIONS", "/v1/models", "", NULL);
    assert_int_equal(got.status, 204);
    ask_with("POST", M, "X-Api-Key: secret\r\n", "{" HI ",\"model\":\"gpt\"}");
    assert_int_equal(got.status, 404);
    assert_non_null(strstr(got.body.data, "\"param\":\"model\",\"code\":\"model_not_found\""));
    ask_with("POST", M, "X-Api-Key: secret\r\n", "{" HI ",\"model\":\"other\"}");
    assert_int_equal(got.status, 200);
}

static void test_roles(void **state)
{
    teardown(NULL);
    memset(&w, 0, sizeof w);
    api_options_init(&w.options);
    w.options.role = "prefill";
    w.options.no_openai_routes = true;
    make(false);
    api_set_service(w.api, &fake.base, NULL);
    static const char *const paths[] = {"/v1/models", "/v1/whatever", "/models", "/tokenizer_info"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        get(paths[i]);
        assert_int_equal(got.status, 404);
        assert_non_null(strstr(got.body.data, "prefill"));
    }
    post(M, "{" HI "}");
    assert_int_equal(got.status, 404);
    get("/health");
    assert_int_equal(got.status, 200);
    get("/metrics");
    assert_null(strstr(got.body.data, "request_success"));
}

static void test_format(void **state)
{
    static const struct {
        float value;
        const char *text;
    } cases[] = {{0.0f, "0.0"},
                 {-0.0f, "0.0"},
                 {-1.0f, "-1.0"},
                 {-0.1f, "-0.100000001"},
                 {-1e-7f, "-1.00000001e-07"},
                 {-12.3456789f, "-12.3456793"},
                 {-1e30f, "-9999.0"}};
    char out[32];

    setlocale(LC_ALL, "de_DE.UTF-8"); /* where it exists */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        api_format_logprob(cases[i].value, out);
        assert_string_equal(out, cases[i].text);
    }
    api_format_logprob(-__builtin_inff(), out);
    assert_string_equal(out, "-9999.0");
    setlocale(LC_ALL, "C");
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_chat),
        T(test_chat_stream),
        T(test_chat_logprobs),
        T(test_completions),
        T(test_scoring),
        T(test_fields),
        T(test_bad_requests),
        T(test_service_errors),
        T(test_disagreement),
        T(test_client_leaves),
        T(test_silence),
        T(test_small_routes),
        T(test_loading_and_keys),
        T(test_roles),
        T(test_format),
    };
    struct log_options quiet = {.level = LOG_ERROR};
    int failed;

    log_setup(&quiet);
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    buffer_deinit(&got.body);
    return failed;
}
