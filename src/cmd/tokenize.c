/* baton tokenize: text on stdin to ids on stdout, and back. */
#include "cmd/tokenize.h"
#include "base/memory.h"
#include "format/gguf.h"
#include "text/text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: baton tokenize -m FILE [--json] [--special] [--decode]\n"
    "  -m, --model FILE  model whose tokenizer is used\n"
    "  --json            a JSON array instead of ids with spaces between them\n"
    "  --special         special tokens written out in the text become their ids (with --decode:\n"
    "                    control tokens are written out)\n"
    "  --decode          ids on stdin (any of the two forms), text on stdout\n"
    "  -h, --help        this text\n";

struct options {
    const char *model;
    bool json, special, decode, help;
};

/* False after a message. */
static bool parse_options(int argc, char **argv, struct options *o)
{
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        if (!strcmp(a, "-m") || !strcmp(a, "--model")) {
            if (++i == argc) {
                fprintf(stderr, "baton tokenize: %s needs a file\n", a);
                return false;
            }
            o->model = argv[i];
        } else if (!strcmp(a, "--json")) {
            o->json = true;
        } else if (!strcmp(a, "--special")) {
            o->special = true;
        } else if (!strcmp(a, "--decode")) {
            o->decode = true;
        } else if (!strcmp(a, "-h") || !strcmp(a, "--help")) {
            o->help = true;
        } else {
            fprintf(stderr, "baton tokenize: unknown argument %s\n%s", a, usage);
            return false;
        }
    }
    if (!o->model && !o->help) {
        fprintf(stderr, "baton tokenize: -m FILE is missing\n%s", usage);
        return false;
    }
    return true;
}

static enum status read_stdin(struct buffer *in)
{
    for (;;) {
        char *p = buffer_reserve(in, 65536);
        if (!p)
            return buffer_status(in);
        size_t n = fread(p, 1, 65536, stdin);
        in->len += n;
        if (n == 0)
            return ferror(stdin) ? fail(STATUS_IO, "stdin: %s", strerror(errno)) : STATUS_OK;
    }
}

/* Numbers with anything of white space, commas and brackets between them. */
static enum status parse_ids(const struct buffer *in, uint32_t **ids, uint32_t *n_ids)
{
    uint32_t capacity = 0;

    for (size_t i = 0; i < in->len;) {
        if (strchr(" \t\r\n,[]", in->data[i]) && in->data[i]) {
            i++;
            continue;
        }
        uint64_t id = 0;
        size_t start = i;
        while (i < in->len && in->data[i] >= '0' && in->data[i] <= '9' && id <= UINT32_MAX)
            id = id * 10 + (uint64_t)(in->data[i++] - '0');
        if (i == start || id > UINT32_MAX)
            return fail(STATUS_USAGE, "byte %zu of the input is not a token id", start);
        if (*n_ids == capacity) {
            capacity = capacity + capacity / 2 + 64;
            uint32_t *more = memory_grow(*ids, capacity, sizeof **ids);
            if (!more)
                return STATUS_NO_MEMORY;
            *ids = more;
        }
        (*ids)[(*n_ids)++] = (uint32_t)id;
    }
    return STATUS_OK;
}

static enum status convert(const struct options *o, const struct vocabulary *v,
                           const struct buffer *in, struct buffer *out)
{
    uint32_t *ids = NULL, n = 0;
    enum status status;

    if (o->decode) {
        TRY_GOTO(done, parse_ids(in, &ids, &n));
        TRY_GOTO(done, vocabulary_decode(v, ids, n, o->special, out));
    } else {
        TRY_GOTO(done, vocabulary_encode(v, in->data, in->len, o->special, 0, &ids, &n));
        buffer_append_string(out, o->json ? "[" : "");
        for (uint32_t i = 0; i < n; i++)
            buffer_printf(out, "%s%u", i == 0 ? "" : o->json ? ", " : " ", ids[i]);
        buffer_append_string(out, o->json ? "]\n" : "\n");
    }
    status = buffer_status(out);
done:
    free(ids);
    return status;
}

int cmd_tokenize(int argc, char **argv)
{
    struct options o = {0};
    struct gguf *file = NULL;
    struct vocabulary *v = NULL;
    struct buffer in = {0}, out = {0};
    enum status status;

    if (!parse_options(argc, argv, &o))
        return 2;
    if (o.help) {
        fputs(usage, stdout);
        return 0;
    }
    TRY_GOTO(done, gguf_open(o.model, &file));
    TRY_GOTO(done, vocabulary_load(file, &v));
    TRY_GOTO(done, read_stdin(&in));
    TRY_GOTO(done, convert(&o, v, &in, &out));
    if (fwrite(out.data, 1, out.len, stdout) != out.len || fflush(stdout))
        status = fail(STATUS_IO, "stdout: %s", strerror(errno));
done:
    if (status != STATUS_OK)
        fprintf(stderr, "baton tokenize: %s\n", status_message());
    buffer_deinit(&in);
    buffer_deinit(&out);
    vocabulary_destroy(&v);
    gguf_release(&file);
    return status == STATUS_OK ? 0 : status == STATUS_USAGE ? 2 : 1;
}
