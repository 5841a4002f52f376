#include "base/memory.h"

#include "base/checked.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *memory_alloc(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size ? size : 1);

    if (!p)
        fail(STATUS_NO_MEMORY, "no memory for %zu x %zu bytes", n, size);
    return p;
}

void *memory_grow(void *old, size_t n, size_t size)
{
    uint64_t bytes;
    void *p = NULL;

    if (mul_u64(n, size, &bytes))
        p = realloc(old, bytes ? bytes : 1);
    if (!p)
        fail(STATUS_NO_MEMORY, "no memory for %zu x %zu bytes", n, size);
    return p;
}

char *memory_strdup(const char *s)
{
    size_t len = strlen(s);
    char *p = memory_alloc(len + 1, 1);

    if (p)
        memcpy(p, s, len);
    return p;
}

struct arena_block {
    struct arena_block *next;
    size_t used, size;
    _Alignas(16) unsigned char bytes[];
};

void *arena_alloc(struct arena *a, size_t n, size_t size)
{
    uint64_t bytes;

    if (!mul_u64(n, size, &bytes) || !align_u64(bytes ? bytes : 1, 16, &bytes) ||
        bytes > SIZE_MAX / 2) {
        fail(STATUS_NO_MEMORY, "no memory for %zu x %zu bytes", n, size);
        return NULL;
    }
    if (!a->head || a->head->size - a->head->used < bytes) {
        size_t block = MAX((size_t)bytes, a->head ? MIN(a->head->size * 2, (size_t)1 << 20) : 4096);
        struct arena_block *b = calloc(1, sizeof *b + block);
        if (!b) {
            fail(STATUS_NO_MEMORY, "no memory for %zu bytes", block);
            return NULL;
        }
        b->size = block;
        b->next = a->head;
        a->head = b;
        a->total_bytes += block;
    }
    void *p = a->head->bytes + a->head->used;
    a->head->used += bytes;
    return p;
}

void *arena_memdup(struct arena *a, const void *data, size_t n, size_t size)
{
    void *p = arena_alloc(a, n, size);

    if (p && n && size)
        memcpy(p, data, n * size);
    return p;
}

char *arena_strndup(struct arena *a, const char *s, size_t len)
{
    char *p = arena_alloc(a, len + 1, 1);

    if (p && len)
        memcpy(p, s, len);
    return p;
}

void arena_deinit(struct arena *a)
{
    while (a->head) {
        struct arena_block *next = a->head->next;
        free(a->head);
        a->head = next;
    }
    a->total_bytes = 0;
}

void *buffer_reserve(struct buffer *b, size_t len)
{
    if (b->failed)
        return NULL;
    if (len >= SIZE_MAX - b->len - 1) {
        b->failed = true;
        return NULL;
    }
    if (b->len + len + 1 > b->capacity) {
        size_t capacity = MAX(b->len + len + 1, MAX(b->capacity + b->capacity / 2, (size_t)64));
        char *data = realloc(b->data, capacity);
        if (!data) {
            b->failed = true;
            return NULL;
        }
        b->data = data;
        b->capacity = capacity;
    }
    return b->data + b->len;
}

void buffer_append(struct buffer *b, const void *data, size_t len)
{
    char *p = buffer_reserve(b, len);

    if (!p)
        return;
    if (len)
        memcpy(p, data, len);
    b->len += len;
    b->data[b->len] = 0;
}

void buffer_append_string(struct buffer *b, const char *s)
{
    buffer_append(b, s, strlen(s));
}

void buffer_printf(struct buffer *b, const char *format, ...)
{
    va_list args, again;

    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    char *p = n < 0 ? NULL : buffer_reserve(b, (size_t)n);
    if (p) {
        vsnprintf(p, (size_t)n + 1, format, again);
        b->len += (size_t)n;
    } else {
        b->failed = true;
    }
    va_end(again);
}

void buffer_consume(struct buffer *b, size_t n)
{
    if (n >= b->len) {
        b->len = 0;
    } else {
        memmove(b->data, b->data + n, b->len - n);
        b->len -= n;
    }
    if (b->data)
        b->data[b->len] = 0;
}

void buffer_clear(struct buffer *b)
{
    b->len = 0;
    b->failed = false;
    if (b->data)
        b->data[0] = 0;
}

void buffer_deinit(struct buffer *b)
{
    free(b->data);
    *b = (struct buffer){0};
}

enum status buffer_status(const struct buffer *b)
{
    return b->failed ? fail(STATUS_NO_MEMORY, "no memory for a buffer of %zu bytes", b->len)
                     : STATUS_OK;
}
