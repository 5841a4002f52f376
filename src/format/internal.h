/* format: what the files of this room share. */
#ifndef BATON_FORMAT_INTERNAL_H
#define BATON_FORMAT_INTERNAL_H

#include "format/gguf.h"

#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

struct gguf {
    atomic_uint references;
    char *path;
    const unsigned char *map;
    uint64_t size;
    uint32_t version;
    struct gguf_value *values;
    uint32_t *values_by_key; /* indices, ascending by key */
    uint64_t n_values;
    struct gguf_tensor *tensors;
    uint32_t *tensors_by_name;
    uint64_t n_tensors;
};

/* Numbers in the file are little-endian and unaligned; so is every machine this program runs on. */
static inline uint16_t gguf_load_u16(const void *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline uint32_t gguf_load_u32(const void *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline uint64_t gguf_load_u64(const void *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* Bytes of one value; 0 for strings and arrays, whose size is in the file. */
uint32_t gguf_type_bytes(enum gguf_type type);
/* By bytes, then by length: the order of the indices. */
int gguf_compare_names(const char *a, uint64_t a_len, const char *b, uint64_t b_len);

#endif
