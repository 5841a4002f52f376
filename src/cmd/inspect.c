/* baton inspect: what is in a model file, and the memory that serving it takes. */
#include "cmd/inspect.h"

#include "base/checked.h"
#include "format/gguf.h"
#include "model/model.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHOWN_BYTES 60
#define SHOWN_ELEMENTS 6

static const char usage[] =
    "usage: baton inspect FILE [-c N] [-np N] [--tensors]\n"
    "  -c, --ctx-size N   context of a request in tokens (0: as trained)\n"
    "  -np, --parallel N  requests at once (16)\n"
    "  --tensors          each tensor, not only how many there are of a type\n"
    "  -m, --model FILE   the file, as with other commands\n"
    "  -h, --help         this text\n";

struct options {
    const char *path;
    uint32_t context_tokens, n_parallel;
    bool tensors, help;
};

/* ---- arguments ---- */

static bool parse_count(const char *name, const char *text, uint32_t *out)
{
    char *end;

    errno = 0;
    unsigned long v = text ? strtoul(text, &end, 10) : 0;
    if (!text || *text < '0' || *text > '9' || *end || errno || v > UINT32_MAX / 2) {
        fprintf(stderr, "baton inspect: %s needs a number, not %s\n", name,
                text ? text : "nothing");
        return false;
    }
    *out = (uint32_t)v;
    return true;
}

/* False after a message. */
static bool parse_options(int argc, char **argv, struct options *o)
{
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i], *next = i + 1 < argc ? argv[i + 1] : NULL;
        if (!strcmp(a, "-c") || !strcmp(a, "--ctx-size")) {
            if (!parse_count(a, next, &o->context_tokens))
                return false;
            i++;
        } else if (!strcmp(a, "-np") || !strcmp(a, "--parallel")) {
            if (!parse_count(a, next, &o->n_parallel))
                return false;
            i++;
        } else if (!strcmp(a, "-h") || !strcmp(a, "--help")) {
            o->help = true;
        } else if (!strcmp(a, "--tensors")) {
            o->tensors = true;
        } else if ((!strcmp(a, "-m") || !strcmp(a, "--model")) && next && !o->path) {
            o->path = argv[++i];
        } else if (a[0] != '-' && !o->path) {
            o->path = a;
        } else {
            fprintf(stderr, "baton inspect: unknown argument %s\n%s", a, usage);
            return false;
        }
    }
    if (!o->path && !o->help) {
        fprintf(stderr, "baton inspect: a file is missing\n%s", usage);
        return false;
    }
    return true;
}

/* ---- printing ---- */

/* Bytes of the file as they may go to a terminal: cut, and control characters are escaped. */
static void print_text(const char *bytes, uint64_t len)
{
    uint64_t shown = MIN(len, (uint64_t)SHOWN_BYTES);

    putchar('"');
    for (uint64_t i = 0; i < shown; i++) {
        unsigned char c = (unsigned char)bytes[i];
        if (c == '\n')
            printf("\\n");
        else if (c < 0x20 || c == 0x7f)
            printf("\\x%02x", c);
        else
            putchar(c);
    }
    putchar('"');
    if (shown < len)
        printf("... (%" PRIu64 " bytes)", len);
}

static void print_element(const struct gguf_value *v, uint64_t i)
{
    switch (v->element_type) {
    case GGUF_BOOL:
        printf("%s", gguf_element_i64(v, i) ? "true" : "false");
        break;
    case GGUF_F32:
        printf("%.6g", gguf_element_f64(v, i));
        break;
    case GGUF_F64:
        printf("%.9g", gguf_element_f64(v, i));
        break;
    case GGUF_U64:
        printf("%" PRIu64, (uint64_t)gguf_element_i64(v, i));
        break;
    default:
        printf("%" PRId64, gguf_element_i64(v, i));
    }
}

static void print_value(const struct gguf_value *v)
{
    struct gguf_cursor strings = gguf_strings(v);
    struct gguf_string s;

    if (v->type == GGUF_ARRAY)
        printf("%s[%" PRIu64 "] ", gguf_type_name(v->element_type), v->n_elements);
    for (uint64_t i = 0;
         i < MIN(v->n_elements, (uint64_t)SHOWN_ELEMENTS) && v->element_type != GGUF_ARRAY; i++) {
        if (i > 0)
            printf(", ");
        if (v->element_type != GGUF_STRING)
            print_element(v, i);
        else if (gguf_next_string(&strings, &s))
            print_text(s.bytes, s.len);
    }
    printf("%s\n", v->n_elements > SHOWN_ELEMENTS ? ", ..." : "");
}

static void print_size(uint64_t bytes)
{
    if (bytes >= 1u << 30)
        printf("%8.2f GiB", (double)bytes / (1u << 30));
    else
        printf("%8.2f MiB", (double)bytes / (1u << 20));
}

static void print_metadata(const struct gguf *file)
{
    printf("%s: GGUF version %u, %" PRIu64 " bytes, %" PRIu64 " metadata entries, %" PRIu64
           " tensors\n\n",
           gguf_path(file), gguf_version(file), gguf_file_bytes(file), gguf_n_values(file),
           gguf_n_tensors(file));
    for (uint64_t i = 0; i < gguf_n_values(file); i++) {
        const struct gguf_value *v = gguf_value_at(file, i);
        int len = (int)MIN(v->key.len, (uint64_t)SHOWN_BYTES);
        printf("  %-*.*s %-6s ", MAX(len, 40), len, v->key.bytes, gguf_type_name(v->type));
        print_value(v);
    }
}

static void print_tensors(const struct gguf *file, bool each)
{
    static const enum dtype types[] = {
#define X(name, id, values, bytes) DTYPE_##name,
        DTYPE_TABLE(X)
#undef X
    };
    uint64_t n = gguf_n_tensors(file), all = 0;

    printf("\n");
    for (size_t k = 0; k < ARRAY_LENGTH(types); k++) {
        uint64_t count = 0, values = 0, bytes = 0;
        for (uint64_t i = 0; i < n; i++) {
            const struct gguf_tensor *t = gguf_tensor_at(file, i);
            if (t->type == types[k]) {
                count++;
                values += t->n_elements;
                bytes += t->n_bytes;
            }
        }
        all += bytes;
        if (count == 0)
            continue;
        printf("  %-5s %5" PRIu64 " tensors %12" PRIu64 " values ", dtype_name(types[k]), count,
               values);
        print_size(bytes);
        printf("\n");
    }
    printf("  all   %5" PRIu64 " tensors %19s ", n, "");
    print_size(all);
    printf("\n");
    for (uint64_t i = 0; each && i < n; i++) {
        const struct gguf_tensor *t = gguf_tensor_at(file, i);
        printf("%s  %-40s %-5s", i ? "" : "\n", t->name, dtype_name(t->type));
        for (uint32_t d = 0; d < t->n_dims; d++)
            printf("%s%" PRIu64, d ? " x " : " ", t->dims[d]);
        printf("\n");
    }
}

static enum status print_memory(const struct gguf *file, const struct options *o)
{
    struct model_limits limits;
    uint64_t pages, bytes;

    TRY(model_read_limits(file, &limits));
    uint32_t context = o->context_tokens ? o->context_tokens : limits.trained_context_tokens;
    if (!mul_u64(kv_pages_of_tokens(context), o->n_parallel, &pages) ||
        !mul_u64(pages, kv_page_bytes(limits.kv), &bytes))
        return fail(STATUS_USAGE, "-c %u and -np %u are too large", context, o->n_parallel);
    printf("\n  %u layers, %u KV heads of %u, %u tokens in the vocabulary, trained for %u tokens\n",
           limits.n_layers, limits.kv.n_kv_heads, limits.kv.head_dim, limits.n_vocab,
           limits.trained_context_tokens);
    printf("\nmemory with -c %u -np %u\n", context, o->n_parallel);
    printf("  weights, packed  ");
    print_size(limits.packed_bytes);
    printf("\n  keys and values  ");
    print_size(bytes);
    printf("  (%" PRIu64 " pages of %u tokens, %" PRIu64 " bytes each)\n  together         ", pages,
           PAGE_TOKENS, kv_page_bytes(limits.kv));
    print_size(limits.packed_bytes + bytes);
    printf("\n  --kv-mem lowers the second figure: requests then take turns\n");
    return STATUS_OK;
}

int cmd_inspect(int argc, char **argv)
{
    struct options o = {.n_parallel = 16};
    struct gguf *file = NULL;
    enum status status;

    if (!parse_options(argc, argv, &o))
        return 2;
    if (o.help) {
        fputs(usage, stdout);
        return 0;
    }
    TRY_GOTO(done, gguf_open(o.path, &file));
    print_metadata(file);
    print_tensors(file, o.tensors);
    status = print_memory(file, &o);
    if (fflush(stdout) && status == STATUS_OK)
        status = fail(STATUS_IO, "stdout: %s", strerror(errno));
done:
    if (status != STATUS_OK)
        fprintf(stderr, "baton inspect: %s\n", status_message());
    gguf_release(&file);
    return status == STATUS_OK ? 0 : status == STATUS_USAGE ? 2 : 1;
}
