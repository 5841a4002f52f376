/* format/gguf: GGUF v2 and v3 files, mapped read-only. Every byte is hostile: counts, offsets and
 * products are checked against the file's size before anything is allocated, and everything handed
 * out lies inside the mapping.
 *
 * Owner: reference counted (gguf_acquire/gguf_release). Threads: immutable once open. Source: the
 * GGUF specification. */
#ifndef BATON_FORMAT_GGUF_H
#define BATON_FORMAT_GGUF_H

#include "base/status.h"
#include "tensor/tensor.h"

#include <stdbool.h>
#include <stdint.h>

struct gguf;

/* Errors: IO, BAD_MODEL (what was found, what would be right, where), UNSUPPORTED_MODEL (version,
 * tensor type), NO_MEMORY. A file cut short names the tensor it ends in and both sizes. */
enum status gguf_open(const char *path, struct gguf **out) WARN_UNUSED;
struct gguf *gguf_acquire(struct gguf *g);
void gguf_release(struct gguf **g);
const char *gguf_path(const struct gguf *g);
uint64_t gguf_file_bytes(const struct gguf *g);
/* These bytes of the file may leave this process's memory: what was packed is not kept twice.
 * Whoever reads them again gets them from the file. data NULL: the whole file. Threads: any. */
void gguf_forget(const struct gguf *g, const void *data, uint64_t n_bytes);
uint32_t gguf_version(const struct gguf *g);

/* A string of the file: not NUL-terminated. */
struct gguf_string {
    const char *bytes;
    uint64_t len;
};

enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
};

/* One metadata entry. data points at the value, or at an array's first element, in the file
 * (little-endian, unaligned; a string is its length as u64, then its bytes; an array within an
 * array is type as u32, length as u64, elements). */
struct gguf_value {
    struct gguf_string key;
    enum gguf_type type;
    enum gguf_type element_type; /* arrays; otherwise the type again */
    uint64_t n_elements;         /* arrays; 1 otherwise */
    const void *data;
};
const char *gguf_type_name(enum gguf_type type); /* "u32", "string", "array" */
uint64_t gguf_n_values(const struct gguf *g);
const struct gguf_value *gguf_value_at(const struct gguf *g, uint64_t index);
const struct gguf_value *gguf_find(const struct gguf *g, const char *key); /* NULL: absent */

/* Typed look-ups. Errors: NOT_FOUND when absent; BAD_MODEL when the type does not fit or the number
 * is out of range. Any integer type is taken for integers, any number for f64. */
enum status gguf_get_u32(const struct gguf *g, const char *key, uint32_t *out) WARN_UNUSED;
enum status gguf_get_f64(const struct gguf *g, const char *key, double *out) WARN_UNUSED;
enum status gguf_get_bool(const struct gguf *g, const char *key, bool *out) WARN_UNUSED;
enum status gguf_get_string(const struct gguf *g, const char *key,
                            struct gguf_string *out) WARN_UNUSED;
/* Walks an array of strings: cursor starts at value->data; false at the end. Lengths were checked
 * when the file was opened. */
struct gguf_cursor {
    const struct gguf_value *value;
    const unsigned char *next;
    uint64_t index;
};
struct gguf_cursor gguf_strings(const struct gguf_value *value);
bool gguf_next_string(struct gguf_cursor *cursor, struct gguf_string *out);
/* Element i of a numeric or bool array as a double / signed integer. */
double gguf_element_f64(const struct gguf_value *value, uint64_t i);
int64_t gguf_element_i64(const struct gguf_value *value, uint64_t i);

struct gguf_tensor {
    char name[128];
    uint32_t n_dims;
    uint64_t dims[TENSOR_MAX_DIMS]; /* dims[0] innermost (K of a matrix), dims[1] rows (outputs); 1
                                       beyond n_dims */
    uint64_t n_elements;
    enum dtype type;
    const void *data; /* in the mapping */
    uint64_t n_bytes;
};
uint64_t gguf_n_tensors(const struct gguf *g);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, uint64_t index);
const struct gguf_tensor *gguf_find_tensor(const struct gguf *g,
                                           const char *name); /* NULL: absent */

#endif
