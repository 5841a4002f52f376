/* Opening a GGUF file: one pass over the header that checks every number against what is left of
 * the file, before any memory is taken for what the number counts. */
#include "format/gguf.h"

#include "base/checked.h"
#include "base/memory.h"
#include "format/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_KEY_BYTES 65535
#define MAX_NESTING 8
#define DEFAULT_ALIGNMENT 32
/* The least that an entry can take in the file: an upper bound for the counts. */
#define MIN_VALUE_BYTES (8 + 1 + 4 + 1)
#define MIN_TENSOR_BYTES (8 + 1 + 4 + 8 + 4 + 8)
#define MIN_ARRAY_BYTES (4 + 8)
/* How much of a name from the file an error shows. */
#define SHOWN(len) ((int)MIN((len), (uint64_t)120))

struct reader {
    const char *path;
    const unsigned char *start, *next, *end;
};

static uint64_t reader_left(const struct reader *r)
{
    return (uint64_t)(r->end - r->next);
}

static enum status reader_take(struct reader *r, uint64_t n, const char *what,
                               const unsigned char **out)
{
    if (n > reader_left(r))
        return fail(STATUS_BAD_MODEL,
                    "%s: the file ends inside %s (at byte %" PRIu64 ": needs %" PRIu64
                    " bytes, has %" PRIu64 ")",
                    r->path, what, (uint64_t)(r->next - r->start), n, reader_left(r));
    *out = r->next;
    r->next += n;
    return STATUS_OK;
}

static enum status reader_u32(struct reader *r, const char *what, uint32_t *out)
{
    const unsigned char *p;

    TRY(reader_take(r, 4, what, &p));
    *out = gguf_load_u32(p);
    return STATUS_OK;
}

static enum status reader_u64(struct reader *r, const char *what, uint64_t *out)
{
    const unsigned char *p;

    TRY(reader_take(r, 8, what, &p));
    *out = gguf_load_u64(p);
    return STATUS_OK;
}

static enum status reader_string(struct reader *r, const char *what, struct gguf_string *out)
{
    const unsigned char *p;
    uint64_t len;

    TRY(reader_u64(r, what, &len));
    TRY(reader_take(r, len, what, &p));
    *out = (struct gguf_string){(const char *)p, len};
    return STATUS_OK;
}

static enum status check_bools(const struct reader *r, const unsigned char *p, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (p[i] > 1)
            return fail(STATUS_BAD_MODEL,
                        "%s: a bool at byte %" PRIu64 " is %u; 0 and 1 are possible", r->path,
                        (uint64_t)(p + i - r->start), p[i]);
    return STATUS_OK;
}

/* Steps over n values of one type. depth counts arrays around them. */
static enum status skip_values(struct reader *r, enum gguf_type type, uint64_t n, int depth);

static enum status read_array_head(struct reader *r, enum gguf_type *out_type, uint64_t *out_n)
{
    uint32_t type;
    uint64_t n;

    TRY(reader_u32(r, "an array's type", &type));
    if (type > GGUF_F64)
        return fail(STATUS_BAD_MODEL, "%s: an array has elements of type %u; 0 to %d are known",
                    r->path, type, GGUF_F64);
    TRY(reader_u64(r, "an array's length", &n));
    *out_type = (enum gguf_type)type;
    *out_n = n;
    return STATUS_OK;
}

static enum status skip_values(struct reader *r, enum gguf_type type, uint64_t n, int depth)
{
    const unsigned char *p;
    uint64_t bytes;
    uint64_t least = type == GGUF_STRING  ? 8
                     : type == GGUF_ARRAY ? MIN_ARRAY_BYTES
                                          : gguf_type_bytes(type);

    if (!mul_u64(n, least, &bytes) || bytes > reader_left(r))
        return fail(STATUS_BAD_MODEL,
                    "%s: an array of %" PRIu64 " elements at byte %" PRIu64
                    " does not fit into the file",
                    r->path, n, (uint64_t)(r->next - r->start));
    if (type == GGUF_STRING) {
        struct gguf_string s;
        for (uint64_t i = 0; i < n; i++)
            TRY(reader_string(r, "a string", &s));
        return STATUS_OK;
    }
    if (type == GGUF_ARRAY) {
        if (depth >= MAX_NESTING)
            return fail(STATUS_BAD_MODEL, "%s: arrays are nested more than %d deep", r->path,
                        MAX_NESTING);
        for (uint64_t i = 0; i < n; i++) {
            enum gguf_type inner;
            uint64_t n_inner;
            TRY(read_array_head(r, &inner, &n_inner));
            TRY(skip_values(r, inner, n_inner, depth + 1));
        }
        return STATUS_OK;
    }
    TRY(reader_take(r, bytes, "a value", &p));
    return type == GGUF_BOOL ? check_bools(r, p, n) : STATUS_OK;
}

static enum status read_value(struct reader *r, struct gguf_value *v)
{
    uint32_t type;

    TRY(reader_string(r, "a metadata key", &v->key));
    if (v->key.len == 0 || v->key.len > MAX_KEY_BYTES)
        return fail(STATUS_BAD_MODEL,
                    "%s: a metadata key has %" PRIu64 " bytes; 1 to %d are possible", r->path,
                    v->key.len, MAX_KEY_BYTES);
    TRY(reader_u32(r, "a metadata type", &type));
    if (type > GGUF_F64)
        return fail(STATUS_BAD_MODEL, "%s: %.*s has type %u; 0 to %d are known", r->path,
                    SHOWN(v->key.len), v->key.bytes, type, GGUF_F64);
    v->type = v->element_type = (enum gguf_type)type;
    v->n_elements = 1;
    if (v->type == GGUF_ARRAY)
        TRY(read_array_head(r, &v->element_type, &v->n_elements));
    v->data = r->next;
    return skip_values(r, v->element_type, v->n_elements, 1);
}

static enum status read_dims(struct reader *r, struct gguf_tensor *t)
{
    TRY(reader_u32(r, t->name, &t->n_dims));
    if (t->n_dims == 0 || t->n_dims > TENSOR_MAX_DIMS)
        return fail(STATUS_BAD_MODEL, "%s: tensor %s has %u dimensions; 1 to %d are possible",
                    r->path, t->name, t->n_dims, TENSOR_MAX_DIMS);
    t->n_elements = 1;
    for (uint32_t i = 0; i < TENSOR_MAX_DIMS; i++) {
        t->dims[i] = 1;
        if (i < t->n_dims)
            TRY(reader_u64(r, t->name, &t->dims[i]));
        if (t->dims[i] == 0)
            return fail(STATUS_BAD_MODEL, "%s: dimension %u of tensor %s is 0", r->path, i,
                        t->name);
        if (!mul_u64(t->n_elements, t->dims[i], &t->n_elements))
            return fail(STATUS_BAD_MODEL, "%s: tensor %s is larger than any file", r->path,
                        t->name);
    }
    return STATUS_OK;
}

/* Leaves the offset in *out_offset: where data starts is known only after the last entry. */
static enum status read_tensor(struct reader *r, struct gguf_tensor *t, uint64_t *out_offset)
{
    struct gguf_string name;
    uint32_t type;

    TRY(reader_string(r, "a tensor's name", &name));
    if (name.len == 0 || name.len >= sizeof t->name || memchr(name.bytes, 0, name.len))
        return fail(STATUS_BAD_MODEL,
                    "%s: a tensor's name has %" PRIu64 " bytes; 1 to %zu without NUL are possible",
                    r->path, name.len, sizeof t->name - 1);
    memcpy(t->name, name.bytes, name.len);
    t->name[name.len] = 0;
    TRY(read_dims(r, t));
    TRY(reader_u32(r, t->name, &type));
    if (!dtype_known(type))
        return fail(STATUS_UNSUPPORTED_MODEL, "%s: tensor %s has type %u, which is not supported",
                    r->path, t->name, type);
    t->type = (enum dtype)type;
    uint64_t block = dtype_block_values(t->type);
    if (t->dims[0] % block)
        return fail(STATUS_BAD_MODEL,
                    "%s: rows of tensor %s have %" PRIu64
                    " values; %s needs a multiple of %" PRIu64,
                    r->path, t->name, t->dims[0], dtype_name(t->type), block);
    if (!mul_u64(t->n_elements / block, dtype_block_bytes(t->type), &t->n_bytes))
        return fail(STATUS_BAD_MODEL, "%s: tensor %s is larger than any file", r->path, t->name);
    return reader_u64(r, t->name, out_offset);
}

static enum status place_tensor(const struct gguf *g, struct gguf_tensor *t, uint64_t offset,
                                uint64_t data_start, uint64_t alignment)
{
    uint64_t start, end;

    if (offset % alignment)
        return fail(STATUS_BAD_MODEL,
                    "%s: tensor %s lies at offset %" PRIu64 ", which is no multiple of %" PRIu64,
                    g->path, t->name, offset, alignment);
    if (!add_u64(data_start, offset, &start) || !add_u64(start, t->n_bytes, &end) || end > g->size)
        return fail(STATUS_BAD_MODEL,
                    "%s: the file ends inside tensor %s (needs %" PRIu64 " bytes, has %" PRIu64
                    "); it was probably cut short while copying",
                    g->path, t->name, t->n_bytes,
                    offset < g->size - MIN(data_start, g->size) ? g->size - data_start - offset
                                                                : 0);
    t->data = g->map + start;
    return STATUS_OK;
}

static int compare_values(const void *a, const void *b, void *context)
{
    const struct gguf *g = context;
    const struct gguf_string *x = &g->values[*(const uint32_t *)a].key,
                             *y = &g->values[*(const uint32_t *)b].key;

    return gguf_compare_names(x->bytes, x->len, y->bytes, y->len);
}

static int compare_tensors(const void *a, const void *b, void *context)
{
    const struct gguf *g = context;

    return strcmp(g->tensors[*(const uint32_t *)a].name, g->tensors[*(const uint32_t *)b].name);
}

static uint32_t *sorted_index(struct gguf *g, uint64_t n,
                              int (*compare)(const void *, const void *, void *))
{
    uint32_t *index = memory_alloc(n, sizeof *index);

    if (!index)
        return NULL;
    for (uint64_t i = 0; i < n; i++)
        index[i] = (uint32_t)i;
    qsort_r(index, n, sizeof *index, compare, g);
    return index;
}

static enum status read_values(struct gguf *g, struct reader *r, uint64_t n)
{
    if (n > reader_left(r) / MIN_VALUE_BYTES || n > UINT32_MAX)
        return fail(STATUS_BAD_MODEL,
                    "%s: %" PRIu64 " metadata entries do not fit into %" PRIu64 " bytes", g->path,
                    n, g->size);
    g->values = memory_alloc(n, sizeof *g->values);
    if (!g->values)
        return STATUS_NO_MEMORY;
    for (; g->n_values < n; g->n_values++)
        TRY(read_value(r, &g->values[g->n_values]));
    g->values_by_key = sorted_index(g, n, compare_values);
    if (!g->values_by_key)
        return STATUS_NO_MEMORY;
    for (uint64_t i = 1; i < n; i++) {
        struct gguf_string key = g->values[g->values_by_key[i]].key;
        if (!compare_values(&g->values_by_key[i - 1], &g->values_by_key[i], g))
            return fail(STATUS_BAD_MODEL, "%s: %.*s is there twice", g->path, SHOWN(key.len),
                        key.bytes);
    }
    return STATUS_OK;
}

static enum status read_alignment(const struct gguf *g, uint64_t *out)
{
    uint32_t alignment = DEFAULT_ALIGNMENT;
    const struct gguf_value *v = gguf_find(g, "general.alignment");

    if (v)
        TRY(gguf_get_u32(g, "general.alignment", &alignment));
    if (alignment < 8 || (alignment & (alignment - 1)))
        return fail(STATUS_BAD_MODEL,
                    "%s: general.alignment is %u; a power of two from 8 on is possible", g->path,
                    alignment);
    *out = alignment;
    return STATUS_OK;
}

static enum status read_tensors(struct gguf *g, struct reader *r, uint64_t n)
{
    enum status status = STATUS_OK;
    uint64_t *offsets, alignment = DEFAULT_ALIGNMENT, data_start;

    if (n > reader_left(r) / MIN_TENSOR_BYTES || n > UINT32_MAX)
        return fail(STATUS_BAD_MODEL, "%s: %" PRIu64 " tensors do not fit into %" PRIu64 " bytes",
                    g->path, n, g->size);
    TRY(read_alignment(g, &alignment));
    g->tensors = memory_alloc(n, sizeof *g->tensors);
    offsets = memory_alloc(n, sizeof *offsets);
    if (!g->tensors || !offsets) {
        status = STATUS_NO_MEMORY;
        goto done;
    }
    for (; g->n_tensors < n; g->n_tensors++)
        TRY_GOTO(done, read_tensor(r, &g->tensors[g->n_tensors], &offsets[g->n_tensors]));
    if (!align_u64((uint64_t)(r->next - r->start), alignment, &data_start))
        data_start = g->size;
    for (uint64_t i = 0; i < n; i++)
        TRY_GOTO(done, place_tensor(g, &g->tensors[i], offsets[i], data_start, alignment));
    g->tensors_by_name = sorted_index(g, n, compare_tensors);
    if (!g->tensors_by_name) {
        status = STATUS_NO_MEMORY;
        goto done;
    }
    for (uint64_t i = 1; i < n; i++)
        if (!compare_tensors(&g->tensors_by_name[i - 1], &g->tensors_by_name[i], g)) {
            status = fail(STATUS_BAD_MODEL, "%s: tensor %s is there twice", g->path,
                          g->tensors[g->tensors_by_name[i]].name);
            break;
        }
done:
    free(offsets);
    return status;
}

static enum status read_all(struct gguf *g)
{
    struct reader r = {g->path, g->map, g->map, g->map + g->size};
    const unsigned char *magic;
    uint64_t n_tensors, n_values;

    TRY(reader_take(&r, 4, "the magic", &magic));
    if (memcmp(magic, "GGUF", 4))
        return fail(STATUS_BAD_MODEL, "%s: not a GGUF file (it starts with %02x %02x %02x %02x)",
                    g->path, magic[0], magic[1], magic[2], magic[3]);
    TRY(reader_u32(&r, "the version", &g->version));
    if (g->version != 2 && g->version != 3)
        return fail(STATUS_UNSUPPORTED_MODEL, "%s: GGUF version %u%s; 2 and 3 are supported",
                    g->path, g->version,
                    g->version && !(g->version & 0xffff) ? " (a big-endian file)" : "");
    TRY(reader_u64(&r, "the tensor count", &n_tensors));
    TRY(reader_u64(&r, "the metadata count", &n_values));
    TRY(read_values(g, &r, n_values));
    return read_tensors(g, &r, n_tensors);
}

static enum status map_file(struct gguf *g)
{
    enum status status = STATUS_OK;
    struct stat st;
    int fd = open(g->path, O_RDONLY | O_CLOEXEC);

    if (fd < 0 || fstat(fd, &st) < 0) {
        status = fail(STATUS_IO, "%s: %s", g->path, strerror(errno));
    } else if (!S_ISREG(st.st_mode)) {
        status = fail(STATUS_IO, "%s: not a regular file", g->path);
    } else if (st.st_size == 0) {
        status = fail(STATUS_BAD_MODEL, "%s: the file is empty", g->path);
    } else {
        void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (map == MAP_FAILED) {
            status = fail(STATUS_IO, "%s: cannot map %" PRIu64 " bytes: %s", g->path,
                          (uint64_t)st.st_size, strerror(errno));
        } else {
            g->map = map;
            g->size = (uint64_t)st.st_size;
        }
    }
    if (fd >= 0)
        close(fd);
    return status;
}

enum status gguf_open(const char *path, struct gguf **out)
{
    struct gguf *g = memory_alloc(1, sizeof *g);
    enum status status;

    if (!g)
        return STATUS_NO_MEMORY;
    atomic_init(&g->references, 1);
    g->path = memory_strdup(path);
    status = g->path ? map_file(g) : STATUS_NO_MEMORY;
    if (status == STATUS_OK)
        status = read_all(g);
    if (status == STATUS_OK)
        *out = g;
    else
        gguf_release(&g);
    return status;
}

struct gguf *gguf_acquire(struct gguf *g)
{
    atomic_fetch_add_explicit(&g->references, 1, memory_order_relaxed);
    return g;
}

void gguf_release(struct gguf **pg)
{
    struct gguf *g = *pg;

    *pg = NULL;
    if (!g || atomic_fetch_sub_explicit(&g->references, 1, memory_order_acq_rel) != 1)
        return;
    if (g->map)
        munmap((void *)(uintptr_t)g->map, g->size);
    free(g->values);
    free(g->values_by_key);
    free(g->tensors);
    free(g->tensors_by_name);
    free(g->path);
    free(g);
}

void gguf_forget(const struct gguf *g, const void *data, uint64_t n_bytes)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = (uintptr_t)(data ? data : g->map), end = begin + (data ? n_bytes : g->size);

    begin = (begin + page - 1) / page * page; /* a page's other bytes may be somebody else's */
    end = end / page * page;
    if (begin < end)
        (void)madvise((void *)begin, end - begin, MADV_DONTNEED);
}
