/* Memory of packed weights: many matrices share a chunk, so that small ones lie in huge pages, too.
 * A chunk goes back when the last of its matrices is gone; models are loaded and dropped whole. */
#include "compute/internal.h"

#include <stdlib.h>

#define CHUNK_BYTES (32u << 20)
#define ALIGNMENT 64

struct weight_chunk {
    struct weight_chunk *next;
    uint8_t *data;
    uint64_t bytes, used;
    uint32_t n_live;
};

static struct weight_chunk *add_chunk(struct compute *c, uint64_t bytes)
{
    struct weight_chunk *chunk = memory_alloc(1, sizeof *chunk);

    if (!chunk)
        return NULL;
    chunk->bytes = MAX(bytes, CHUNK_BYTES);
    chunk->data = compute_alloc(c, chunk->bytes);
    if (!chunk->data) {
        free(chunk);
        return NULL;
    }
    chunk->next = c->weights;
    c->weights = chunk;
    return chunk;
}

void *weights_alloc(struct compute *c, uint64_t bytes)
{
    struct weight_chunk *chunk = c->weights;

    if (bytes == 0 || bytes > UINT64_MAX - ALIGNMENT)
        return NULL;
    bytes = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    while (chunk && chunk->bytes - chunk->used < bytes)
        chunk = chunk->next;
    if (!chunk)
        chunk = add_chunk(c, bytes);
    if (!chunk)
        return NULL;
    void *p = chunk->data + chunk->used;
    chunk->used += bytes;
    chunk->n_live++;
    return p;
}

void weights_free(struct compute *c, void *p)
{
    for (struct weight_chunk **at = &c->weights; p && *at; at = &(*at)->next) {
        struct weight_chunk *chunk = *at;
        if ((uint8_t *)p < chunk->data || (uint8_t *)p >= chunk->data + chunk->bytes)
            continue;
        if (--chunk->n_live == 0) {
            *at = chunk->next;
            compute_free(c, chunk->data, chunk->bytes);
            free(chunk);
        }
        return;
    }
}
