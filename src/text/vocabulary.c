/* A vocabulary out of a GGUF file's metadata. Everything is copied; every number is checked. */
#include "base/checked.h"
#include "format/gguf.h"
#include "text/internal.h"
#include "text/unicode.h"

#include <stdlib.h>
#include <string.h>

/* Names under which models end an answer, whatever their metadata says. Only control tokens count.
 */
static const char *const end_names[] = {
    "<|im_end|>",    "<|eot_id|>",      "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>", "<|end|>",
    "<end_of_turn>", "<|end_of_turn|>", "<|return|>", "<|call|>",      "<EOT>",           "</s>",
};

/* ---- the byte-level alphabet: printable bytes stand for themselves, the others for U+0100 and on
 * ---- */

#define ALPHABET_END 324

static bool is_printable(uint32_t b)
{
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
}

static void fill_alphabet(int16_t byte_of_point[ALPHABET_END])
{
    uint32_t next = 256;

    for (uint32_t c = 0; c < ALPHABET_END; c++)
        byte_of_point[c] = -1;
    for (uint32_t b = 0; b < 256; b++)
        byte_of_point[is_printable(b) ? b : next++] = (int16_t)b;
}

/* What a token of the file stands for; a token with characters outside the alphabet stands for
 * itself. */
static enum status decode_token(struct arena *arena, const int16_t *byte_of_point, const char *text,
                                uint32_t len, struct byte_string *out)
{
    char *bytes = arena_alloc(arena, (size_t)len + 1, 1);
    uint32_t n = 0, c, step;

    if (!bytes)
        return STATUS_NO_MEMORY;
    for (uint32_t i = 0; i < len; i += step) {
        step = utf8_decode(text + i, len - i, &c);
        if (step == 0 || c >= ALPHABET_END || byte_of_point[c] < 0) {
            memcpy(bytes, text, len);
            n = len;
            break;
        }
        bytes[n++] = (char)byte_of_point[c];
    }
    *out = (struct byte_string){bytes, n};
    return STATUS_OK;
}

static void hash_string(struct digest *d, const char *bytes, uint64_t len)
{
    uint8_t length[8];

    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)(len >> 8 * i);
    digest_add(d, length, sizeof length);
    digest_add(d, bytes, len);
}

/* ---- parts of the file ---- */

static enum status find_array(const struct gguf *file, const char *key,
                              const struct gguf_value **out)
{
    const struct gguf_value *v = gguf_find(file, key);

    if (!v)
        return fail(STATUS_BAD_MODEL, "%s: there is no %s", gguf_path(file), key);
    if (v->type != GGUF_ARRAY || v->element_type != GGUF_STRING)
        return fail(STATUS_BAD_MODEL, "%s: %s is not an array of strings", gguf_path(file), key);
    if (v->n_elements > UINT32_MAX / 4)
        return fail(STATUS_BAD_MODEL, "%s: %s has %llu entries", gguf_path(file), key,
                    (unsigned long long)v->n_elements);
    *out = v;
    return STATUS_OK;
}

static enum status load_kinds(struct vocabulary *v, const struct gguf *file)
{
    const struct gguf_value *types = gguf_find(file, "tokenizer.ggml.token_type");
    uint32_t n = v->view.n_tokens;

    memset(v->kinds, TOKEN_NORMAL, n);
    if (!types)
        return STATUS_OK;
    if (types->type != GGUF_ARRAY || types->element_type == GGUF_STRING ||
        types->element_type == GGUF_ARRAY)
        return fail(STATUS_BAD_MODEL, "%s: tokenizer.ggml.token_type is not an array of numbers",
                    gguf_path(file));
    if (types->n_elements != n)
        return fail(STATUS_BAD_MODEL,
                    "%s: tokenizer.ggml.token_type has %llu entries for %u tokens", gguf_path(file),
                    (unsigned long long)types->n_elements, n);
    for (uint32_t i = 0; i < n; i++) {
        int64_t kind = gguf_element_i64(types, i);
        if (kind < 0 || kind > TOKEN_BYTE)
            return fail(STATUS_BAD_MODEL, "%s: token %u has type %lld; 1 to %d are known",
                        gguf_path(file), i, (long long)kind, TOKEN_BYTE);
        v->kinds[i] = kind ? (uint8_t)kind : TOKEN_NORMAL;
    }
    return STATUS_OK;
}

static enum status load_tokens(struct vocabulary *v, const struct gguf *file, struct digest *digest)
{
    const struct gguf_value *list;
    struct gguf_string s;
    int16_t byte_of_point[ALPHABET_END];

    TRY(find_array(file, "tokenizer.ggml.tokens", &list));
    uint32_t n = (uint32_t)list->n_elements;
    if (n == 0)
        return fail(STATUS_BAD_MODEL, "%s: tokenizer.ggml.tokens is empty", gguf_path(file));
    v->tokens = memory_alloc(n, sizeof *v->tokens);
    v->kinds = memory_alloc(n, 1);
    v->texts = memory_alloc(n, sizeof *v->texts);
    v->ends = memory_alloc(n, sizeof *v->ends);
    if (!v->tokens || !v->kinds || !v->texts || !v->ends)
        return STATUS_NO_MEMORY;
    v->view = (struct vocabulary_view){n, v->tokens, v->kinds};
    TRY(load_kinds(v, file));
    fill_alphabet(byte_of_point);
    struct gguf_cursor cursor = gguf_strings(list);
    for (uint32_t i = 0; gguf_next_string(&cursor, &s); i++) {
        if (s.len > UINT32_MAX / 4)
            return fail(STATUS_BAD_MODEL, "%s: token %u has %llu bytes", gguf_path(file), i,
                        (unsigned long long)s.len);
        v->texts[i] = arena_strndup(&v->arena, s.bytes, s.len);
        if (!v->texts[i])
            return STATUS_NO_MEMORY;
        if (v->kinds[i] == TOKEN_UNUSED) /* a place in the embedding, no text */
            v->tokens[i] = (struct byte_string){v->texts[i], 0};
        else if (v->kinds[i] == TOKEN_CONTROL || v->kinds[i] == TOKEN_USER_DEFINED)
            v->tokens[i] = (struct byte_string){v->texts[i], (uint32_t)s.len};
        else
            TRY(decode_token(&v->arena, byte_of_point, s.bytes, (uint32_t)s.len, &v->tokens[i]));
        hash_string(digest, s.bytes, s.len);
    }
    digest_add(digest, v->kinds, n);
    return STATUS_OK;
}

/* Words are made of normal tokens, and of added ones where a merge spells one; never of control
 * tokens. */
static enum status index_tokens(struct vocabulary *v)
{
    TRY(token_map_init(&v->by_bytes, v->view.n_tokens));
    for (uint32_t i = 0; i < v->view.n_tokens; i++)
        if (v->kinds[i] == TOKEN_NORMAL || v->kinds[i] == TOKEN_BYTE)
            token_map_add(&v->by_bytes, v->tokens, i);
    for (uint32_t i = 0; i < v->view.n_tokens; i++)
        if (v->kinds[i] == TOKEN_USER_DEFINED)
            token_map_add(&v->by_bytes, v->tokens, i);
    for (uint32_t b = 0; b < 256; b++) {
        char byte = (char)b;
        v->byte_tokens[b] = token_map_find(&v->by_bytes, v->tokens, &byte, 1);
    }
    return special_trie_build(&v->specials, v);
}

static enum status load_merges(struct vocabulary *v, const struct gguf *file, struct digest *digest)
{
    const struct gguf_value *list;
    struct gguf_string s;
    int16_t byte_of_point[ALPHABET_END];
    struct arena scratch = {0};
    enum status status = STATUS_OK;

    TRY(find_array(file, "tokenizer.ggml.merges", &list));
    TRY(merge_map_init(&v->merges, list->n_elements));
    fill_alphabet(byte_of_point);
    struct gguf_cursor cursor = gguf_strings(list);
    for (uint32_t rank = 0; gguf_next_string(&cursor, &s); rank++) {
        struct byte_string left, right;
        const char *space = s.len > 1 ? memchr(s.bytes + 1, ' ', s.len - 1)
                                      : NULL; /* a token never holds a plain space */
        if (!space || s.len > UINT32_MAX / 4) {
            status =
                fail(STATUS_BAD_MODEL, "%s: merge %u is not two tokens with a space between them",
                     gguf_path(file), rank);
            break;
        }
        hash_string(digest, s.bytes, s.len);
        uint32_t left_len = (uint32_t)(space - s.bytes), right_len = (uint32_t)s.len - left_len - 1;
        TRY_GOTO(done, decode_token(&scratch, byte_of_point, s.bytes, left_len, &left));
        TRY_GOTO(done, decode_token(&scratch, byte_of_point, space + 1, right_len, &right));
        char *both = arena_alloc(&scratch, (size_t)left.len + right.len, 1);
        if (!both) {
            status = STATUS_NO_MEMORY;
            break;
        }
        memcpy(both, left.bytes, left.len);
        memcpy(both + left.len, right.bytes, right.len);
        uint32_t a = token_map_find(&v->by_bytes, v->tokens, left.bytes, left.len);
        uint32_t b = token_map_find(&v->by_bytes, v->tokens, right.bytes, right.len);
        uint32_t merged =
            token_map_find(&v->by_bytes, v->tokens, both, (size_t)left.len + right.len);
        if (a != NO_TOKEN && b != NO_TOKEN &&
            merged != NO_TOKEN) /* a merge of what does not exist never happens */
            merge_map_add(&v->merges, a, b, rank, merged);
    }
done:
    arena_deinit(&scratch);
    return status;
}

/* -1 when the file does not name it. */
static enum status load_id(const struct vocabulary *v, const struct gguf *file, const char *key,
                           int64_t *out)
{
    uint32_t id;
    enum status s = gguf_get_u32(file, key, &id);

    *out = -1;
    if (s == STATUS_NOT_FOUND)
        return STATUS_OK;
    TRY(s);
    if (id >= v->view.n_tokens)
        return fail(STATUS_BAD_MODEL, "%s: %s is %u, but there are %u tokens", gguf_path(file), key,
                    id, v->view.n_tokens);
    *out = id;
    return STATUS_OK;
}

static enum status load_ids(struct vocabulary *v, const struct gguf *file)
{
    int64_t eot, eom;
    enum status s;

    TRY(load_id(v, file, "tokenizer.ggml.bos_token_id", &v->bos));
    TRY(load_id(v, file, "tokenizer.ggml.eos_token_id", &v->eos));
    TRY(load_id(v, file, "tokenizer.ggml.eot_token_id", &eot));
    TRY(load_id(v, file, "tokenizer.ggml.eom_token_id", &eom));
    int64_t named[] = {v->eos, eot, eom};
    for (size_t i = 0; i < ARRAY_LENGTH(named); i++)
        if (named[i] >= 0)
            v->ends[named[i]] = true;
    for (uint32_t id = 0; id < v->view.n_tokens; id++)
        for (size_t i = 0; v->kinds[id] == TOKEN_CONTROL && i < ARRAY_LENGTH(end_names); i++)
            if (!strcmp(v->texts[id], end_names[i]))
                v->ends[id] = true;
    s = gguf_get_bool(file, "tokenizer.ggml.add_bos_token", &v->adds_bos);
    if (s == STATUS_NOT_FOUND)
        v->adds_bos = pretokenizer_adds_bos(v->pretokenizer);
    else
        TRY(s);
    v->adds_bos = v->adds_bos && v->bos >= 0;
    return STATUS_OK;
}

static enum status load_template(struct vocabulary *v, const struct gguf *file)
{
    struct gguf_string source;
    enum status s = gguf_get_string(file, "tokenizer.chat_template", &source);

    if (s == STATUS_NOT_FOUND)
        return STATUS_OK;
    TRY(s);
    v->template_source = arena_strndup(&v->arena, source.bytes, source.len);
    if (!v->template_source)
        return STATUS_NO_MEMORY;
    s = chat_template_parse(source.bytes, source.len, &v->chat_template);
    if (s != STATUS_BAD_TEMPLATE)
        return s;
    /* A template that we cannot read does not spoil the model for plain completions. */
    v->template_error = arena_strndup(&v->arena, status_message(), strlen(status_message()));
    return v->template_error ? STATUS_OK : STATUS_NO_MEMORY;
}

static enum status load_all(struct vocabulary *v, const struct gguf *file, struct digest *digest)
{
    struct gguf_string model, pre;

    TRY(gguf_get_string(file, "tokenizer.ggml.model", &model));
    if (model.len != 4 || memcmp(model.bytes, "gpt2", 4))
        return fail(STATUS_UNSUPPORTED_MODEL, "%s: tokenizer.ggml.model is %.*s; gpt2 is supported",
                    gguf_path(file), (int)MIN(model.len, (uint64_t)100), model.bytes);
    TRY(gguf_get_string(file, "tokenizer.ggml.pre", &pre));
    TRY(pretokenizer_create(pre.bytes, pre.len, &v->pretokenizer));
    hash_string(digest, pre.bytes, pre.len);
    TRY(load_tokens(v, file, digest));
    TRY(index_tokens(v));
    TRY(load_merges(v, file, digest));
    TRY(load_ids(v, file));
    TRY(load_template(v, file));
    digest_add(digest, v->ends, v->view.n_tokens * sizeof *v->ends);
    digest_add(digest, &v->bos, sizeof v->bos);
    digest_add(digest, &v->eos, sizeof v->eos);
    digest_add(digest, &v->adds_bos, sizeof v->adds_bos);
    if (v->template_source)
        hash_string(digest, v->template_source, strlen(v->template_source));
    return STATUS_OK;
}

enum status vocabulary_load(const struct gguf *file, struct vocabulary **out)
{
    struct vocabulary *v = memory_alloc(1, sizeof *v);
    struct digest *digest = digest_create();
    enum status status = v && digest ? STATUS_OK : STATUS_NO_MEMORY;

    if (status == STATUS_OK) {
        status = load_all(v, file, digest);
        if (status == STATUS_NOT_FOUND) /* a key without which there is no tokenizer */
            status = STATUS_BAD_MODEL;
    }
    if (digest) {
        uint8_t hash[REQUEST_DIGEST_BYTES];
        digest_finish(&digest, hash);
        if (v)
            memcpy(v->digest, hash, sizeof hash);
    }
    if (status == STATUS_OK)
        *out = v;
    else
        vocabulary_destroy(&v);
    return status;
}

void vocabulary_destroy(struct vocabulary **pv)
{
    struct vocabulary *v = *pv;

    if (!v)
        return;
    chat_template_destroy(&v->chat_template);
    pretokenizer_destroy(&v->pretokenizer);
    special_trie_deinit(&v->specials);
    free(v->by_bytes.slots);
    free(v->merges.slots);
    free(v->tokens);
    free(v->kinds);
    free(v->texts);
    free(v->ends);
    arena_deinit(&v->arena);
    free(v);
    *pv = NULL;
}

const struct vocabulary_view *vocabulary_view(const struct vocabulary *v)
{
    return &v->view;
}

bool vocabulary_is_end(const struct vocabulary *v, uint32_t id)
{
    return id < v->view.n_tokens && v->ends[id];
}

int64_t vocabulary_bos(const struct vocabulary *v)
{
    return v->bos;
}

int64_t vocabulary_eos(const struct vocabulary *v)
{
    return v->eos;
}

bool vocabulary_adds_bos(const struct vocabulary *v)
{
    return v->adds_bos;
}

const char *vocabulary_token_text(const struct vocabulary *v, uint32_t id)
{
    return id < v->view.n_tokens ? v->texts[id] : NULL;
}

void vocabulary_digest(const struct vocabulary *v, uint8_t out[REQUEST_DIGEST_BYTES])
{
    memcpy(out, v->digest, REQUEST_DIGEST_BYTES);
}

const struct chat_template *vocabulary_chat_template(const struct vocabulary *v)
{
    return v->chat_template;
}

const char *vocabulary_chat_template_source(const struct vocabulary *v)
{
    return v->template_source;
}

enum status vocabulary_decode(const struct vocabulary *v, const uint32_t *ids, uint32_t n_ids,
                              bool special, struct buffer *out)
{
    for (uint32_t i = 0; i < n_ids; i++)
        if (ids[i] >= v->view.n_tokens)
            return fail(STATUS_BAD_REQUEST, "token %u is outside the vocabulary of %u", ids[i],
                        v->view.n_tokens);
    for (uint32_t i = 0; i < n_ids; i++)
        if (special || v->kinds[ids[i]] != TOKEN_CONTROL)
            buffer_append(out, v->tokens[ids[i]].bytes, v->tokens[ids[i]].len);
    return buffer_status(out);
}
