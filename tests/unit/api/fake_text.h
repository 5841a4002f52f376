/* A text room of 261 tokens, defined in the test so that the linker takes it instead of src/text:
 * each byte is a token, and five more. What it does is easy to say by hand, which is what exact
 * expectations need. */
#ifndef BATON_TESTS_API_FAKE_TEXT_H
#define BATON_TESTS_API_FAKE_TEXT_H

#include "text/text.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* cmocka has macros of these names. */
#undef fail
#undef fail_msg
#define fail_msg(...) (print_error(__VA_ARGS__), _fail(__FILE__, __LINE__))

enum {
    FAKE_BOS = 256,
    FAKE_EOS = 257,
    FAKE_IM = 258,
    FAKE_HELLO = 259,
    FAKE_OTHER_A = 260,
    FAKE_N = 261
};

struct vocabulary {
    struct vocabulary_view view;
    bool adds_bos, no_template;
};

static char fake_bytes[256];
static const char *const fake_texts[] = {"<s>", "</s>", "<|im|>", "hello", "A"};
static struct byte_string fake_tokens[FAKE_N];
static uint8_t fake_kinds[FAKE_N];
static struct vocabulary fake_vocabulary;

static const struct vocabulary *fake_vocabulary_init(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        fake_bytes[i] = (char)i;
        fake_tokens[i] = (struct byte_string){&fake_bytes[i], 1};
        fake_kinds[i] = TOKEN_NORMAL;
    }
    for (uint32_t i = 256; i < FAKE_N; i++) {
        bool control = i <= FAKE_IM;

        fake_tokens[i] = (struct byte_string){control ? "" : fake_texts[i - 256],
                                              control ? 0 : (uint32_t)strlen(fake_texts[i - 256])};
        fake_kinds[i] = control ? TOKEN_CONTROL : TOKEN_NORMAL;
    }
    fake_vocabulary = (struct vocabulary){.view = {FAKE_N, fake_tokens, fake_kinds}};
    return &fake_vocabulary;
}

const struct vocabulary_view *vocabulary_view(const struct vocabulary *v)
{
    return &v->view;
}

bool vocabulary_is_end(const struct vocabulary *v, uint32_t id)
{
    return id == FAKE_EOS;
}

int64_t vocabulary_bos(const struct vocabulary *v)
{
    return FAKE_BOS;
}

int64_t vocabulary_eos(const struct vocabulary *v)
{
    return FAKE_EOS;
}

bool vocabulary_adds_bos(const struct vocabulary *v)
{
    return v->adds_bos;
}

const char *vocabulary_token_text(const struct vocabulary *v, uint32_t id)
{
    static _Thread_local char one[2];

    if (id >= 256)
        return fake_texts[id - 256];
    one[0] = (char)id;
    return one;
}

const struct chat_template *vocabulary_chat_template(const struct vocabulary *v)
{
    return v->no_template ? NULL : (const struct chat_template *)fake_texts;
}

const char *vocabulary_chat_template_source(const struct vocabulary *v)
{
    return v->no_template ? NULL : "{{ messages }}";
}

enum status vocabulary_encode(const struct vocabulary *v, const char *text, size_t len,
                              bool parse_special, uint32_t max_ids, uint32_t **ids, uint32_t *n_ids)
{
    if (max_ids > 0 && *n_ids + len > max_ids)
        return fail(STATUS_TOO_LARGE, "more than %u tokens", max_ids);
    *ids = memory_grow(*ids, *n_ids + len + 1, sizeof **ids);
    for (size_t i = 0; i < len;) {
        uint32_t id = (unsigned char)text[i];
        size_t used = 1;

        for (uint32_t s = FAKE_BOS; parse_special && s <= FAKE_IM; s++) {
            size_t n = strlen(fake_texts[s - 256]);

            if (len - i >= n && memcmp(text + i, fake_texts[s - 256], n) == 0) {
                id = s;
                used = n;
            }
        }
        (*ids)[(*n_ids)++] = id;
        i += used;
    }
    return STATUS_OK;
}

enum status vocabulary_decode(const struct vocabulary *v, const uint32_t *ids, uint32_t n_ids,
                              bool special, struct buffer *out)
{
    for (uint32_t i = 0; i < n_ids; i++) {
        if (ids[i] >= FAKE_N)
            return fail(STATUS_BAD_REQUEST, "no token %u", ids[i]);
        if (special && ids[i] >= 256)
            buffer_append_string(out, fake_texts[ids[i] - 256]);
        else
            buffer_append(out, fake_tokens[ids[i]].bytes, fake_tokens[ids[i]].len);
    }
    return STATUS_OK;
}

/* "<|im|>role:content" for each message, "<|im|>" behind. */
enum status chat_prompt_encode(const struct vocabulary *v, const struct json_t *variables,
                               uint32_t max_ids, uint32_t **ids, uint32_t *n_ids)
{
    const json_t *messages = json_object_get(variables, "messages"), *m;
    size_t i;

    *ids = NULL;
    *n_ids = 0;
    json_array_foreach(messages, i, m)
    {
        const char *role = json_string_value(json_object_get(m, "role"));
        const char *content = json_string_value(json_object_get(m, "content"));

        if (strcmp(content, "RAISE") == 0)
            return fail(STATUS_BAD_TEMPLATE, "the template says no");
        TRY(vocabulary_encode(v, "<|im|>", 6, true, max_ids, ids, n_ids));
        TRY(vocabulary_encode(v, role, strlen(role), false, max_ids, ids, n_ids));
        TRY(vocabulary_encode(v, ":", 1, false, max_ids, ids, n_ids));
        TRY(vocabulary_encode(v, content, strlen(content), false, max_ids, ids, n_ids));
    }
    return vocabulary_encode(v, "<|im|>", 6, true, max_ids, ids, n_ids);
}

struct text_stream {
    struct resume limits;
    char stops[8][64];
    uint32_t n_stops, n_fed, room;
    struct buffer text; /* all of it */
    size_t released;
};

enum status text_stream_create(const struct vocabulary *v, const struct resume *resume,
                               uint32_t context_tokens, struct text_stream **out)
{
    struct text_stream *s = calloc(1, sizeof *s);

    s->limits = *resume;
    for (uint32_t i = 0; i < resume->n_stops && i < 8 && resume->stops[i].len < 64; i++)
        memcpy(s->stops[s->n_stops++], resume->stops[i].bytes, resume->stops[i].len);
    s->room = resume->max_tokens < context_tokens - resume->n_prompt
                  ? resume->max_tokens
                  : context_tokens - resume->n_prompt;
    *out = s;
    return STATUS_OK;
}

void text_stream_destroy(struct text_stream **s)
{
    if (*s == NULL)
        return;
    buffer_deinit(&(*s)->text);
    free(*s);
    *s = NULL;
}

/* Bytes at the end that must wait: an unfinished character, or what may become a stop string. */
static size_t fake_held(const struct text_stream *s)
{
    size_t held = 0, len = s->text.len;

    for (size_t back = 1; back <= 3 && back <= len; back++) {
        unsigned char c = (unsigned char)s->text.data[len - back];
        size_t need = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : c >= 0xc0 ? 2 : 1;

        if (c >= 0xc0) {
            held = need > back ? back : 0;
            break;
        }
        if (c < 0x80)
            break;
    }
    for (uint32_t i = 0; i < s->n_stops; i++)
        for (size_t n = strlen(s->stops[i]); n > 0; n--)
            if (n <= len && memcmp(s->text.data + len - n, s->stops[i], n) == 0 && n > held)
                held = n;
    return held < len - s->released ? held : len - s->released;
}

enum status text_stream_feed(struct text_stream *s, uint32_t id, struct text_released *out)
{
    size_t end;
    bool honoured = ++s->n_fed > s->limits.min_tokens;

    *out = (struct text_released){0};
    buffer_append(&s->text, fake_tokens[id].bytes, fake_tokens[id].len);
    end = s->text.len;
    if (id == FAKE_EOS && !s->limits.ignore_eos && honoured) {
        out->ended = true;
        out->finish = FINISH_STOP;
    }
    for (uint32_t i = 0; i < s->n_stops && honoured && s->text.data != NULL; i++) {
        char *at = strstr(s->text.data, s->stops[i]);

        if (at != NULL) {
            end = (size_t)(at - s->text.data);
            out->ended = true;
            out->finish = FINISH_STOP;
        }
    }
    if (!out->ended && s->n_fed >= s->room) {
        out->ended = true;
        out->finish = FINISH_LENGTH;
    }
    if (!out->ended)
        end = s->text.len - fake_held(s);
    out->bytes = s->text.data + s->released;
    out->len = end > s->released ? (uint32_t)(end - s->released) : 0;
    s->released += out->len;
    return STATUS_OK;
}

uint32_t text_stream_n_fed(const struct text_stream *s)
{
    return s->n_fed;
}

#endif
