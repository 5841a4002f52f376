/* A vocabulary small enough to write down: the 256 bytes (ids as bytes), merges of a few words,
 * control tokens. */
#ifndef TESTS_SMALL_VOCABULARY_H
#define TESTS_SMALL_VOCABULARY_H

#include "format/gguf.h"
#include "text/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    ID_HE = 256,
    ID_LL,
    ID_HELL,
    ID_HELLO,
    ID_END,
    ID_START,
    ID_TEXT_END,
    ID_THINK,
    ID_UNUSED,
    N_SMALL_TOKENS
};

static void put(FILE *f, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        fputc((int)(v >> 8 * i & 0xff), f);
}

static void put_string(FILE *f, const char *s)
{
    put(f, strlen(s), 8);
    fputs(s, f);
}

static const char *byte_token(unsigned b)
{
    static char text[4];
    unsigned c = b, n = 256;

    if (!((b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174)) {
        for (unsigned k = 0; k < b; k++)
            n += !((k >= 33 && k <= 126) || (k >= 161 && k <= 172) || k >= 174);
        c = n;
    }
    memset(text, 0, sizeof text);
    if (c < 0x80) {
        text[0] = (char)c;
    } else {
        text[0] = (char)(0xc0 | c >> 6);
        text[1] = (char)(0x80 | (c & 0x3f));
    }
    return text;
}

/* template NULL: none. Returns NULL with the fault's words in status_message(). */
static struct vocabulary *small_vocabulary_load(const char *pre, const char *template)
{
    static const char *const words[] = {"he",         "ll",           "hell",          "hello",
                                        "<|im_end|>", "<|im_start|>", "<|endoftext|>", "<think>",
                                        "[PAD]"};
    static const int kinds[] = {1, 1, 1, 1, 3, 3, 3, 4, 5};
    static const char *const merges[] = {"h e", "l l", "he ll", "hell o"};
    char path[] = "/tmp/baton-vocabulary-XXXXXX";
    int fd = mkstemp(path);
    FILE *f = fdopen(fd, "wb");
    struct gguf *file = NULL;
    struct vocabulary *v = NULL;

    fputs("GGUF", f);
    put(f, 3, 4);
    put(f, 0, 8);
    put(f, template ? 8 : 7, 8);
    put_string(f, "tokenizer.ggml.model"), put(f, GGUF_STRING, 4), put_string(f, "gpt2");
    put_string(f, "tokenizer.ggml.pre"), put(f, GGUF_STRING, 4), put_string(f, pre);
    put_string(f, "tokenizer.ggml.tokens"), put(f, GGUF_ARRAY, 4), put(f, GGUF_STRING, 4),
        put(f, N_SMALL_TOKENS, 8);
    for (unsigned i = 0; i < N_SMALL_TOKENS; i++)
        put_string(f, i < 256 ? byte_token(i) : words[i - 256]);
    put_string(f, "tokenizer.ggml.token_type"), put(f, GGUF_ARRAY, 4), put(f, GGUF_I32, 4),
        put(f, N_SMALL_TOKENS, 8);
    for (unsigned i = 0; i < N_SMALL_TOKENS; i++)
        put(f, i < 256 ? 1 : (uint64_t)kinds[i - 256], 4);
    put_string(f, "tokenizer.ggml.merges"), put(f, GGUF_ARRAY, 4), put(f, GGUF_STRING, 4),
        put(f, 4, 8);
    for (unsigned i = 0; i < 4; i++)
        put_string(f, merges[i]);
    put_string(f, "tokenizer.ggml.eos_token_id"), put(f, GGUF_U32, 4), put(f, ID_END, 4);
    put_string(f, "tokenizer.ggml.bos_token_id"), put(f, GGUF_U32, 4), put(f, ID_START, 4);
    if (template)
        put_string(f, "tokenizer.chat_template"), put(f, GGUF_STRING, 4), put_string(f, template);
    fclose(f);
    if (gguf_open(path, &file) == STATUS_OK && vocabulary_load(file, &v) != STATUS_OK)
        v = NULL;
    gguf_release(&file);
    unlink(path);
    return v;
}

#endif
