/* The answer as it grows: ids to bytes, bytes to whole characters, characters past the stop
 * strings, and the rule that ends it. What is released depends on the ids alone, never on when they
 * came. */
#include "base/checked.h"
#include "text/internal.h"
#include "text/unicode.h"

#include <stdlib.h>
#include <string.h>

/* A stop string as a matching automaton (Knuth, Morris, Pratt), so that a byte costs the same
 * whatever came before. */
struct stop {
    const char *bytes;
    uint32_t len;
    uint32_t matched;   /* how much of it the text ends with */
    uint32_t *fallback; /* [len + 1] the longest proper prefix of it that a match of this length
                           ends with */
};

struct text_stream {
    struct arena arena;
    const struct vocabulary *v;
    struct stop *stops;
    uint32_t n_stops;
    uint32_t min_tokens, max_tokens;
    bool ignore_eos;
    uint32_t n_fed;
    bool ended;
    char half[UTF8_MAX_BYTES]; /* bytes of a character that is not whole yet */
    uint32_t n_half;
    struct buffer held;     /* characters that are not released yet */
    struct buffer released; /* by the last feed */
};

static enum status stop_init(struct arena *arena, const struct byte_string *source, uint32_t number,
                             struct stop *s)
{
    if (source->len == 0)
        return fail(STATUS_BAD_REQUEST, "stop string %u is empty", number);
    if (utf8_valid_prefix(source->bytes, source->len) != source->len)
        return fail(STATUS_BAD_REQUEST, "stop string %u is not UTF-8", number);
    s->len = source->len;
    s->bytes = arena_memdup(arena, source->bytes, source->len, 1);
    s->fallback = arena_alloc(arena, (size_t)s->len + 1, sizeof *s->fallback);
    if (!s->bytes || !s->fallback)
        return STATUS_NO_MEMORY;
    for (uint32_t i = 1, k = 0; i < s->len; i++) {
        while (k > 0 && s->bytes[i] != s->bytes[k])
            k = s->fallback[k];
        k += s->bytes[i] == s->bytes[k];
        s->fallback[i + 1] = k;
    }
    return STATUS_OK;
}

enum status text_stream_create(const struct vocabulary *v, const struct resume *resume,
                               uint32_t context_tokens, struct text_stream **out)
{
    struct text_stream *s = memory_alloc(1, sizeof *s);
    enum status status = STATUS_OK;

    if (!s)
        return STATUS_NO_MEMORY;
    s->v = v;
    s->min_tokens = resume->min_tokens;
    s->ignore_eos = resume->ignore_eos;
    /* The context is one more bound on the number of tokens; a stream takes at least one. */
    uint32_t room = context_tokens > resume->n_prompt ? context_tokens - resume->n_prompt : 0;
    s->max_tokens = MAX(MIN(resume->max_tokens, room), 1u);
    s->stops = arena_alloc(&s->arena, resume->n_stops, sizeof *s->stops);
    if (!s->stops)
        status = STATUS_NO_MEMORY;
    for (; status == STATUS_OK && s->n_stops < resume->n_stops; s->n_stops++)
        status =
            stop_init(&s->arena, &resume->stops[s->n_stops], s->n_stops, &s->stops[s->n_stops]);
    if (status == STATUS_OK)
        *out = s;
    else
        text_stream_destroy(&s);
    return status;
}

void text_stream_destroy(struct text_stream **ps)
{
    struct text_stream *s = *ps;

    if (!s)
        return;
    buffer_deinit(&s->held);
    buffer_deinit(&s->released);
    arena_deinit(&s->arena);
    free(s);
    *ps = NULL;
}

/* Takes one byte into the automata; the longest stop string that ends with it, 0 if none. */
static uint32_t match_stops(struct text_stream *s, char byte)
{
    uint32_t found = 0;

    for (uint32_t i = 0; i < s->n_stops; i++) {
        struct stop *p = &s->stops[i];
        if (p->matched == p->len) /* a match that was not honoured */
            p->matched = p->fallback[p->len];
        while (p->matched > 0 && p->bytes[p->matched] != byte)
            p->matched = p->fallback[p->matched];
        p->matched += p->bytes[p->matched] == byte;
        if (p->matched == p->len)
            found = MAX(found, p->len);
    }
    return found;
}

/* Whole characters join the held text. True when a stop string ended the answer; held then ends
 * before it. */
static bool hold(struct text_stream *s, const char *bytes, uint32_t len)
{
    for (uint32_t i = 0; i < len; i++) {
        buffer_append(&s->held, &bytes[i], 1);
        uint32_t stop_len = match_stops(s, bytes[i]);
        if (stop_len > 0 && s->n_fed >= s->min_tokens) {
            if (!s->held.failed)
                s->held.len -= MIN(stop_len, s->held.len);
            return true;
        }
    }
    return false;
}

/* How long the ill-formed start of text is that a lossy decode replaces by one U+FFFD: a truncated
 * character, or one byte. */
static uint32_t ill_formed_len(const char *text, uint32_t len)
{
    uint32_t n = 1;

    while (n < len && utf8_is_incomplete(text, n + 1))
        n++;
    return n;
}

/* Cuts the half character and the token's bytes into characters. At the end nothing stays half.
 * True as of hold(). */
static bool decode(struct text_stream *s, const char *bytes, uint32_t len, bool at_end)
{
    char text[2 * UTF8_MAX_BYTES];
    uint32_t taken = 0, n = s->n_half, point;

    memcpy(text, s->half, n);
    for (;;) {
        while (n < UTF8_MAX_BYTES && taken < len)
            text[n++] = bytes[taken++];
        if (n == 0 || (!at_end && taken == len && utf8_is_incomplete(text, n)))
            break;
        uint32_t step = utf8_decode(text, n, &point);
        if (step ? hold(s, text, step) : hold(s, "\xef\xbf\xbd", 3))
            return true;
        step = step ? step : ill_formed_len(text, n);
        n -= step;
        memmove(text, text + step, n);
    }
    memcpy(s->half, text, n);
    s->n_half = n;
    return false;
}

/* How much of the text's end may be the start of a stop string. */
static size_t held_back(const struct text_stream *s)
{
    size_t n = 0;

    for (uint32_t i = 0; i < s->n_stops; i++) {
        const struct stop *p = &s->stops[i];
        n = MAX(n, p->matched == p->len ? p->fallback[p->len] : p->matched);
    }
    return MIN(n, s->held.len);
}

enum status text_stream_feed(struct text_stream *s, uint32_t id, struct text_released *out)
{
    const struct vocabulary_view *view = vocabulary_view(s->v);
    enum finish_reason finish = FINISH_NONE;

    if (s->ended)
        return fail(STATUS_INTERNAL, "token %u was fed to a text that had ended", id);
    if (id >= view->n_tokens)
        return fail(STATUS_BAD_REQUEST, "token %u is outside the vocabulary of %u", id,
                    view->n_tokens);
    s->n_fed++;
    buffer_clear(&s->released);
    bool is_end = vocabulary_is_end(s->v, id) && !s->ignore_eos && s->n_fed > s->min_tokens;
    bool is_stop = false;
    if (!is_end && view->kinds[id] != TOKEN_CONTROL)
        is_stop = decode(s, view->tokens[id].bytes, view->tokens[id].len, false);
    if (is_end || is_stop)
        finish = FINISH_STOP;
    else if (s->n_fed >= s->max_tokens)
        finish = FINISH_LENGTH;
    /* The last half character, released as U+FFFD, may complete a stop string. */
    if (finish != FINISH_NONE && !is_stop && decode(s, NULL, 0, true))
        finish = FINISH_STOP;
    size_t n = s->held.len - (finish == FINISH_NONE ? held_back(s) : 0);
    buffer_append(&s->released, s->held.data, n);
    buffer_consume(&s->held, n);
    TRY(buffer_status(&s->held));
    TRY(buffer_status(&s->released));
    s->ended = finish != FINISH_NONE;
    *out = (struct text_released){s->released.data, (uint32_t)s->released.len, s->ended, finish};
    return STATUS_OK;
}

uint32_t text_stream_n_fed(const struct text_stream *s)
{
    return s->n_fed;
}
