/* The digest of a file's tensors, on a thread of its own: one chain through the whole file, longer
 * than everything else that a load does where two cores or more pack the weights. */
#include "base/checked.h"
#include "base/memory.h"
#include "model/internal.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#define PIECE_BYTES (UINT64_C(4) << 20)

struct model_digester {
    struct gguf *file;
    struct digest *digest;
    pthread_t thread;
    bool running; /* not yet joined */
    _Atomic bool stop;
    _Atomic uint64_t n_pieces; /* read */
    uint8_t out[REQUEST_DIGEST_BYTES];
};

static bool digest_tensor(struct model_digester *g, const struct gguf_tensor *t)
{
    uint64_t shape[2 + TENSOR_MAX_DIMS] = {t->type, t->n_dims};

    memcpy(shape + 2, t->dims, sizeof t->dims);
    digest_add(g->digest, t->name, strlen(t->name) + 1);
    digest_add(g->digest, shape, sizeof shape);
    for (uint64_t at = 0; at < t->n_bytes; at += PIECE_BYTES) {
        if (atomic_load(&g->stop))
            return false;
        digest_add(g->digest, (const uint8_t *)t->data + at, MIN(PIECE_BYTES, t->n_bytes - at));
        atomic_fetch_add(&g->n_pieces, 1);
    }
    return true;
}

static void *digest_main(void *argument)
{
    struct model_digester *g = argument;

    for (uint64_t i = 0; i < gguf_n_tensors(g->file); i++)
        if (!digest_tensor(g, gguf_tensor_at(g->file, i)))
            break;
    digest_finish(&g->digest, g->out);
    return NULL;
}

enum status model_digester_start(struct gguf *file, struct model_digester **out)
{
    struct model_digester *g = memory_alloc(1, sizeof *g);

    if (!g)
        return STATUS_NO_MEMORY;
    g->file = gguf_acquire(file);
    g->digest = digest_create();
    g->running = g->digest && pthread_create(&g->thread, NULL, digest_main, g) == 0;
    if (!g->running) {
        model_digester_destroy(&g);
        return fail(STATUS_NO_MEMORY, "no memory or thread for the digest of the model");
    }
    *out = g;
    return STATUS_OK;
}

void digester_wait(void *digester)
{
    struct model_digester *g = digester;

    if (g->running)
        pthread_join(g->thread, NULL);
    g->running = false;
}

void digester_forget_behind(void *digester)
{
    struct model_digester *g = digester;
    const struct timespec pause = {.tv_nsec = 500 * 1000};
    uint64_t piece = 0;

    for (uint64_t i = 0; i < gguf_n_tensors(g->file); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g->file, i);
        for (uint64_t at = 0; at < t->n_bytes; at += PIECE_BYTES, piece++) {
            while (atomic_load(&g->n_pieces) <= piece)
                nanosleep(&pause, NULL);
            gguf_forget(g->file, (const uint8_t *)t->data + at, MIN(PIECE_BYTES, t->n_bytes - at));
        }
    }
}

void digester_result(const struct model_digester *g, uint8_t out[REQUEST_DIGEST_BYTES])
{
    memcpy(out, g->out, REQUEST_DIGEST_BYTES);
}

void model_digester_destroy(struct model_digester **pg)
{
    struct model_digester *g = *pg;

    *pg = NULL;
    if (!g)
        return;
    atomic_store(&g->stop, true);
    digester_wait(g);
    if (g->digest)
        digest_finish(&g->digest, g->out);
    gguf_release(&g->file);
    free(g);
}
