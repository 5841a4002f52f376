/* text: strings to ids and back, chat messages to a prompt, ids to the bytes of an answer and where
 * it ends.
 *
 * A struct vocabulary is immutable once loaded and may be read by any thread; other objects belong
 * to one thread at a time. Everything here is a pure function of its inputs. */
#ifndef BATON_TEXT_TEXT_H
#define BATON_TEXT_TEXT_H

#include "base/memory.h"
#include "base/status.h"
#include "request/request.h"

#include <stdbool.h>
#include <stdint.h>

struct gguf;

/* ---- vocabulary and tokenizer ---- */

struct vocabulary;
/* From a GGUF file's metadata (tokenizer.ggml.*), copied: the file may be closed afterwards.
 * Errors: BAD_MODEL, UNSUPPORTED_MODEL (model or pre-tokenizer not known, named), NO_MEMORY. */
enum status vocabulary_load(const struct gguf *file, struct vocabulary **out) WARN_UNUSED;
void vocabulary_destroy(struct vocabulary **v);

const struct vocabulary_view *vocabulary_view(const struct vocabulary *v);
/* EOS, EOT and the like: ids that end an answer. */
bool vocabulary_is_end(const struct vocabulary *v, uint32_t id);
int64_t vocabulary_bos(const struct vocabulary *v); /* -1: none */
int64_t vocabulary_eos(const struct vocabulary *v); /* -1: none */
/* The file (or, where it is silent, its family) says that a text starts with BOS. */
bool vocabulary_adds_bos(const struct vocabulary *v);
/* As in the file, for templates and /tokenizer_info; NULL for an id outside. */
const char *vocabulary_token_text(const struct vocabulary *v, uint32_t id);
/* SHA-256 over tokens, kinds, merges, pre-tokenizer, special ids and chat template: what nodes
 * compare. */
void vocabulary_digest(const struct vocabulary *v, uint8_t out[REQUEST_DIGEST_BYTES]);

/* Appends the ids of text to *ids (grown with memory_grow, perhaps moved even when it fails; owner:
 * the caller, with free()). BOS is not added.
 *
 * Ids equal those of Hugging Face's `tokenizers` on all UTF-8. A byte that is not UTF-8 is a piece
 * of its own and becomes that byte's token. So decode(encode(x)) = x for any bytes, but for what
 * `tokenizers` does not keep either: qwen2 takes the text to NFC, and a byte for which the
 * vocabulary has no token is dropped (SmolLM2 lacks some control characters).
 *
 * parse_special: control tokens written out in the text become their ids; otherwise they are
 * ordinary characters. Tokens that the model's makers added but that control nothing
 * (TOKEN_USER_DEFINED, such as Qwen's <think>) are recognised always: in an earlier answer they
 * must be the ids they were. Errors: NO_MEMORY, TOO_LARGE (more than max_ids; 0: no limit). */
enum status vocabulary_encode(const struct vocabulary *v, const char *text, size_t len,
                              bool parse_special, uint32_t max_ids, uint32_t **ids,
                              uint32_t *n_ids) WARN_UNUSED;
/* Appends the bytes of ids. special: control tokens are written out too; otherwise they add
 * nothing. Errors: BAD_REQUEST for an id outside the vocabulary. */
enum status vocabulary_decode(const struct vocabulary *v, const uint32_t *ids, uint32_t n_ids,
                              bool special, struct buffer *out) WARN_UNUSED;

/* ---- chat template ---- */

/* A piece of a rendered prompt: from the template itself (special tokens are recognised) or from a
 * user's words (not). */
struct prompt_piece {
    bool from_template;
    uint32_t start, len; /* bytes in the rendered text */
};

struct json_t; /* jansson */

struct chat_template;
/* Errors: BAD_TEMPLATE with line and what was expected. source is copied. */
enum status chat_template_parse(const char *source, size_t len,
                                struct chat_template **out) WARN_UNUSED;
void chat_template_destroy(struct chat_template **t);
/* The template in the vocabulary's file; NULL if it has none. */
const struct chat_template *vocabulary_chat_template(const struct vocabulary *v);
const char *vocabulary_chat_template_source(const struct vocabulary *v);
/* Renders with `variables` (a JSON object: messages, tools, add_generation_prompt, ...; bos_token
 * and eos_token are added from v when absent), as Python's Jinja2 does with Hugging Face's
 * settings. Text that came out of `messages` or `tools` is marked as not from the template. Owner:
 * the caller frees *pieces and deinits *out. Errors: BAD_TEMPLATE (also raise_exception(), and
 * every limit on steps, depth and output). Threads: any. */
enum status chat_template_render(const struct chat_template *t, const struct vocabulary *v,
                                 const struct json_t *variables, struct buffer *out,
                                 struct prompt_piece **pieces, uint32_t *n_pieces) WARN_UNUSED;
/* Renders and tokenizes: special tokens only where the template wrote them, never from a user's
 * words. */
enum status chat_prompt_encode(const struct vocabulary *v, const struct json_t *variables,
                               uint32_t max_ids, uint32_t **ids, uint32_t *n_ids) WARN_UNUSED;

/* ---- text_stream: the answer's bytes and where it ends ---- */

struct text_stream;
/* A pure function of (request, ids fed): the node feeds one to know when to stop, the api its own
 * to make the bytes. It copies what it needs of resume (stops, min_tokens, max_tokens, ignore_eos)
 * and does not replay generated ids: the caller feeds them. context_tokens: the length limit of
 * prompt + answer. v must outlive it. Errors: BAD_REQUEST for a stop string that is empty or not
 * UTF-8, NO_MEMORY. */
enum status text_stream_create(const struct vocabulary *v, const struct resume *resume,
                               uint32_t context_tokens, struct text_stream **out) WARN_UNUSED;
void text_stream_destroy(struct text_stream **s);

struct text_released {
    /* Whole UTF-8 characters that can no longer become part of a stop string.
     * Owner: the stream, until the next feed. */
    const char *bytes;
    uint32_t len;
    bool ended; /* this id is the last one counted; nothing may be fed after it */
    enum finish_reason finish;
};
/* Half characters and what may be the start of a stop string are held back; at the end they are
 * released (half characters as U+FFFD, as a lossy decode gives), except from the stop string on.
 * Control tokens add no bytes.
 *
 * An end token counts once min_tokens others came before it, a stop string once min_tokens have
 * been fed; what came earlier is text. Of several stop strings the one that is complete first ends
 * the answer, of those complete at the same byte the longest. An end token or stop string that
 * comes with the last token that max_tokens or the context allow is still FINISH_STOP. Errors:
 * BAD_REQUEST for an id outside the vocabulary, INTERNAL after the end, NO_MEMORY. */
enum status text_stream_feed(struct text_stream *s, uint32_t id,
                             struct text_released *out) WARN_UNUSED;
uint32_t text_stream_n_fed(const struct text_stream *s);

#endif
