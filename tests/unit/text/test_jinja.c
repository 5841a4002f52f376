/* Templates against what Python's Jinja2 makes of them (tests/data, written by
 * tools/gen_text_expectations.py). */
#include "small_vocabulary.h"
#include "text/jinja.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define NOW 1722000000 /* as in the script */

static json_t *load(const char *path)
{
    json_error_t error;
    json_t *j = json_load_file(path, JSON_ALLOW_NUL, &error);

    if (!j)
        fail_msg("%s: %s", path, error.text);
    return j;
}

struct rendering {
    enum status status;
    struct buffer text;
    struct prompt_piece *pieces;
    uint32_t n_pieces;
};

static struct rendering render(const char *source, size_t len, const struct vocabulary *v,
                               const json_t *variables)
{
    struct rendering r = {0};
    struct chat_template *t = NULL;

    r.status = chat_template_parse(source, len, &t);
    if (r.status == STATUS_OK)
        r.status = jinja_render(t, v, variables, NOW, &r.text, &r.pieces, &r.n_pieces);
    chat_template_destroy(&t);
    buffer_append(&r.text, "", 0); /* a NUL at the end even of nothing */
    return r;
}

static void rendering_deinit(struct rendering *r)
{
    buffer_deinit(&r->text);
    free(r->pieces);
}

static void test_features(void **state)
{
    json_t *data = load("tests/data/jinja_features.json"), *c;
    size_t i;

    json_array_foreach(json_object_get(data, "cases"), i, c)
    {
        const json_t *source = json_object_get(c, "template"), *text = json_object_get(c, "text");
        struct rendering r = render(json_string_value(source), json_string_length(source), NULL,
                                    json_object_get(data, "variables"));
        if (!text) {
            if (r.status != STATUS_BAD_TEMPLATE)
                fail_msg("%s: no error, but \"%s\"", json_string_value(source), r.text.data);
        } else {
            if (r.status != STATUS_OK)
                fail_msg("%s: %s", json_string_value(source), status_message());
            assert_int_equal(r.text.len, json_string_length(text));
            assert_memory_equal(r.text.data, json_string_value(text), r.text.len);
        }
        rendering_deinit(&r);
    }
    json_decref(data);
}

static char *read_file(const char *path, size_t *len)
{
    FILE *f = fopen(path, "rb");
    struct buffer b = {0};

    if (!f)
        return NULL;
    for (;;) {
        char *p = buffer_reserve(&b, 65536);
        size_t n = fread(p, 1, 65536, f);
        b.len += n;
        if (n == 0)
            break;
    }
    fclose(f);
    *len = b.len;
    return b.data;
}

/* The template itself, or the one inside a tokenizer_config.json. NULL when the file is not there.
 */
static char *read_template(const char *name, size_t *len)
{
    const char *shared = getenv("BATON_SHARED");
    char path[4096];

    snprintf(path, sizeof path, "%s/%s", shared ? shared : "../shared", name);
    char *source = read_file(path, len);
    if (source && strstr(name, ".json")) {
        json_t *config = json_loadb(source, *len, JSON_DECODE_INT_AS_REAL, NULL),
               *t = json_object_get(config, "chat_template");
        free(source);
        *len = json_string_length(t);
        source = strdup(json_string_value(t));
        json_decref(config);
    }
    return source;
}

static void hash(const struct buffer *b, char out[65])
{
    struct digest *d = digest_create();
    uint8_t bytes[REQUEST_DIGEST_BYTES];

    digest_add(d, b->data, b->len);
    digest_finish(&d, bytes);
    for (int i = 0; i < 32; i++)
        snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}

static void test_known_templates(void **state)
{
    json_t *hashes = load("tests/data/template_hashes.json"),
           *talks = load("tests/data/conversations.json"), *expected;
    const char *name;
    int n_absent = 0;

    json_object_foreach(hashes, name, expected)
    {
        size_t len, i;
        json_t *want;
        char *source = read_template(name, &len), got[65];
        if (!source) {
            n_absent++;
            continue;
        }
        json_array_foreach(expected, i, want)
        {
            json_t *talk = json_array_get(talks, i);
            const char *talk_name = json_string_value(json_object_get(talk, "name"));
            struct rendering r = render(source, len, NULL, json_object_get(talk, "variables"));
            if (json_is_null(want) != (r.status != STATUS_OK))
                fail_msg("%s, %s: %s", name, talk_name,
                         r.status == STATUS_OK ? "no error" : status_message());
            if (r.status == STATUS_OK) {
                hash(&r.text, got);
                if (strcmp(got, json_string_value(want)))
                    fail_msg("%s, %s: other text: %s", name, talk_name, r.text.data);
            }
            rendering_deinit(&r);
        }
        free(source);
    }
    if (n_absent)
        print_message("skipped: %d templates are not there (set BATON_SHARED)\n", n_absent);
    json_decref(hashes);
    json_decref(talks);
    if (n_absent)
        skip();
}

/* Origins written with a letter for each byte: T template, u user. */
static void check_origins(const char *source, const char *variables, const char *text,
                          const char *origins)
{
    json_t *v = json_loads(variables, 0, NULL);
    struct rendering r = render(source, strlen(source), NULL, v);
    char got[256] = {0};

    if (r.status != STATUS_OK)
        fail_msg("%s: %s", source, status_message());
    uint32_t end = 0;
    for (uint32_t i = 0; i < r.n_pieces; i++) {
        assert_int_equal(r.pieces[i].start, end);
        end += r.pieces[i].len;
        memset(got + r.pieces[i].start, r.pieces[i].from_template ? 'T' : 'u', r.pieces[i].len);
    }
    assert_int_equal(end, r.text.len);
    assert_string_equal(r.text.data, text);
    assert_string_equal(got, origins);
    rendering_deinit(&r);
    json_decref(v);
}

static void test_origins(void **state)
{
    static const char variables[] =
        "{\"m\": \" <X> y \", \"n\": 7, \"l\": [\"p\", \"q\"], \"d\": {\"k\": \"v\"}}";
    static const struct {
        const char *source, *text, *origins;
    } cases[] = {
        {"a{{ m }}b", "a <X> y b", "TuuuuuuuT"},
        {"{{ '[' + m + ']' }}", "[ <X> y ]", "TuuuuuuuT"},
        {"{{ '[' ~ m ~ ']' }}", "[ <X> y ]", "TuuuuuuuT"},
        {"{{ m | trim }}|{{ m.strip() }}", "<X> y|<X> y", "uuuuuTuuuuu"},
        {"{{ ('[' + m + ']')[1:5] }}", " <X>", "uuuu"},
        {"{{ ('[' + m + ']')[:3] }}", "[ <", "Tuu"},
        {"{{ ('[' + m + ']')[::-1] }}", "] y >X< [", "TuuuuuuuT"},
        {"{{ m | upper }}{{ m.lower() }}", " <X> Y  <x> y ", "uuuuuuuuuuuuuu"},
        {"{{ m.replace('X', 'T') }}", " <T> y ", "uuTuuuu"},
        {"{{ '<X>'.replace('X', m) }}", "< <X> y >", "TuuuuuuuT"},
        {"{{ m.split('X') | join('|') }}", " <|> y ", "uuTuuuu"},
        {"{{ l | join('-') }}{{ l[0] }}{{ l | first }}", "p-qpp", "uTuuu"},
        {"{{ n }}{{ n + 1 }}{{ n | string }}", "787", "uTu"},
        {"{% for c in 'a' + l[0] %}{{ c }}{% endfor %}", "ap", "Tu"},
        {"{% set x %}[{{ m }}]{% endset %}{{ x | trim }}", "[ <X> y ]", "TuuuuuuuT"},
        {"{% macro f(a) %}<{{ a }}>{% endmacro %}{{ f(l[1]) }}{{ f('t') }}", "<q><t>", "TuTTTT"},
        {"{% filter upper %}t{{ l[0] }}{% endfilter %}", "TP", "Tu"},
        {"{{ d | tojson }}", "{\"k\": \"v\"}", "uuuuuuuuuu"},
        {"{{ d }}{% for k, v in d.items() %}{{ k }}{{ v }}{% endfor %}", "{'k': 'v'}kv",
         "uuuuuuuuuuuu"},
        {"{{ '%s!' % m }}{{ '{}!'.format(l[0]) }}", " <X> y !p!", "uuuuuuuTuT"},
        {"{{ m | default('t') }}{{ zz | default('t') }}", " <X> y t", "uuuuuuuT"},
        {"{{ m | e }}", " &lt;X&gt; y ", "uuuuuuuuuuuuu"},
        {"{{ 'a\\n' ~ l[0] | indent(1, true) }}", "a\n p", "TTTu"},
        {"{{ l[0] * 2 ~ 'ab'.center(4) }}", "pp ab ", "uuTTTT"},
        {"{% set ns = namespace(t='') %}{% for i in l %}{% set ns.t = ns.t + '<' + i %}{% endfor "
         "%}{{ ns.t }}",
         "<p<q", "TuTu"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check_origins(cases[i].source, variables, cases[i].text, cases[i].origins);
}

/* A user's marks are letters, the template's are tokens; text runs on across the border between
 * them. */
static void test_prompt_ids(void **state)
{
    static const char template[] = "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role "
                                   "}}\n{{ m.content }}<|im_end|>\n"
                                   "{% endfor %}h{{ messages[0].tail }}{{ eos_token }}";
    struct vocabulary *v = small_vocabulary_load("gpt-2", template);
    json_t *variables = json_loads("{\"messages\": [{\"role\": \"u\", \"content\": "
                                   "\"<|im_end|>x<|im_end|\", \"tail\": \"ello\"}]}",
                                   0, NULL);
    uint32_t *ids = NULL, n = 0, want[64], n_want = 0;

    assert_non_null(v);
    assert_int_equal(chat_prompt_encode(v, variables, 0, &ids, &n), STATUS_OK);
    want[n_want++] = ID_START;
    want[n_want++] = ID_START;
    for (const char *p = "u\n<|im_end|>x<|im_end|"; *p; p++)
        want[n_want++] = (unsigned char)*p;
    want[n_want++] = ID_END;
    want[n_want++] = '\n';
    want[n_want++] = ID_HELLO; /* one word, half of it the template's */
    want[n_want++] = ID_END;
    assert_int_equal(n, n_want);
    assert_memory_equal(ids, want, n * sizeof *ids);
    n = 0;
    assert_int_equal(chat_prompt_encode(v, variables, 10, &ids, &n), STATUS_TOO_LARGE);
    assert_int_equal(n, 0);
    free(ids);
    json_decref(variables);
    vocabulary_destroy(&v);
}

static void test_broken_template_keeps_the_model(void **state)
{
    struct vocabulary *v = small_vocabulary_load("gpt-2", "{% if %}");
    uint32_t *ids = NULL, n = 0;
    json_t *variables = json_object();

    assert_non_null(v);
    assert_null(vocabulary_chat_template(v));
    assert_string_equal(vocabulary_chat_template_source(v), "{% if %}");
    assert_int_equal(chat_prompt_encode(v, variables, 0, &ids, &n), STATUS_BAD_TEMPLATE);
    assert_non_null(strstr(status_message(), "expression"));
    json_decref(variables);
    vocabulary_destroy(&v);
}

static void check_limit(const char *source, const char *words)
{
    json_t *variables = json_object();
    struct rendering r = render(source, strlen(source), NULL, variables);

    assert_int_equal(r.status, STATUS_BAD_TEMPLATE);
    if (!strstr(status_message(), words))
        fail_msg("%s: %s", source, status_message());
    rendering_deinit(&r);
    json_decref(variables);
}

static void test_limits(void **state)
{
    char deep[4096] = "{{ ";

    for (int i = 0; i < 1000; i++)
        strcat(deep, "[");
    for (int i = 0; i < 1000; i++)
        strcat(deep, "]");
    check_limit(strcat(deep, " }}"), "nested");
    strcpy(deep, "{{ x");
    for (int i = 0; i < 1000; i++)
        strcat(deep, ".y");
    check_limit(strcat(deep, " }}"), "nested");
    strcpy(deep, "{{ ");
    for (int i = 0; i < 1000; i++)
        strcat(deep, "-");
    check_limit(strcat(deep, "1 }}"), "nested");
    check_limit("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "nested");
    check_limit("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
                "steps");
    check_limit("{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s "
                "%}{% endfor %}",
                "too long");
    check_limit("{% set ns = namespace(l=[1]) %}{% for i in range(99) %}{% set ns.l = ns.l + ns.l "
                "%}{% endfor %}",
                "more than");
    check_limit("{% set ns = namespace(l=1) %}{% for i in range(99999) %}{% set ns.l = [ns.l] %}{% "
                "endfor %}{{ ns.l }}",
                "nested");
    check_limit("{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] "
                "%}{% endfor %}{{ ns.l | string | length }}",
                "more than");
    check_limit("{{ 'x' * 1000000000 }}", "too long");
    check_limit("{{ 9223372036854775807 + 1 }}", "too large");
    check_limit("{{ 10 ** 100 }}", "too large");
    check_limit("{{ 'x'.center(9999999999) }}", "too large");
    check_limit("{% set ns = namespace(s='x') %}{% for i in range(25) %}{% set ns.s = ns.s + ns.s "
                "%}{% endfor %}"
                "{{ ns.s }}{{ ns.s }}{{ ns.s }}",
                "writes more");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_features), cmocka_unit_test(test_known_templates),
        cmocka_unit_test(test_origins),  cmocka_unit_test(test_prompt_ids),
        cmocka_unit_test(test_limits),   cmocka_unit_test(test_broken_template_keeps_the_model),
    };
    setenv("TZ", "UTC", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
