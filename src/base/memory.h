/* base/memory: allocation that says when there is none, an arena for things that die together, and
 * a growing byte buffer. */
#ifndef BATON_BASE_MEMORY_H
#define BATON_BASE_MEMORY_H

#include "base/status.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zeroed memory for n things of size bytes; NULL, with fail(STATUS_NO_MEMORY), if there is none or
 * the product overflows. n or size 0 gives a pointer that may be freed. Owner: the caller, with
 * free(). */
void *memory_alloc(size_t n, size_t size);
/* realloc() with a checked product; the old block stays valid when NULL is returned. New bytes are
 * not zeroed. */
void *memory_grow(void *old, size_t n, size_t size);
char *memory_strdup(const char *s);

/* An arena: bump allocation, freed at once. Zeroed is valid and empty. Threads: one at a time. */
struct arena_block;
struct arena {
    struct arena_block *head;
    size_t total_bytes;
};
/* Zeroed, 16-byte aligned; NULL with fail(STATUS_NO_MEMORY). Owner: the arena, until
 * arena_deinit(). */
void *arena_alloc(struct arena *a, size_t n, size_t size);
/* A copy of len bytes and a NUL behind them. */
char *arena_strndup(struct arena *a, const char *s, size_t len);
void *arena_memdup(struct arena *a, const void *data, size_t n, size_t size);
void arena_deinit(struct arena *a);

/* A growing byte buffer. Zeroed is valid and empty. After a failed growth `failed` stays set and
 * appends do nothing, so that a writer checks once, at the end. data has a NUL behind len whenever
 * it is not NULL. */
struct buffer {
    char *data;
    size_t len;
    size_t capacity;
    bool failed;
};
void buffer_append(struct buffer *b, const void *data, size_t len);
void buffer_append_string(struct buffer *b, const char *s);
void buffer_printf(struct buffer *b, const char *format, ...) PRINTF_LIKE(2, 3);
/* Room for len more bytes at data + len, to be filled before `len` is raised by hand; NULL when
 * there is none. */
void *buffer_reserve(struct buffer *b, size_t len);
/* Drops the first n bytes. */
void buffer_consume(struct buffer *b, size_t n);
void buffer_clear(struct buffer *b); /* keeps the memory */
void buffer_deinit(struct buffer *b);
/* STATUS_NO_MEMORY if any append failed. */
enum status buffer_status(const struct buffer *b) WARN_UNUSED;

#endif
