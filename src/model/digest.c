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

    pthread_mutex_t giving_back; /* whoever has it may use what follows */
    uint64_t tensor, at, n_given_back;
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

enum status model_digester_create(struct gguf *file, struct model_digester **out)
{
    struct model_digester *g = memory_alloc(1, sizeof *g);

    if (!g)
        return STATUS_NO_MEMORY;
    pthread_mutex_init(&g->giving_back, NULL);
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

void model_digester_wait(struct model_digester *g)
{
    if (g->running)
        pthread_join(g->thread, NULL);
    g->running = false;
}

/* One piece if it is before reached (NULL: anywhere) and read; false if not, or at the end. */
static bool give_back_piece(struct model_digester *g, const void *reached, uint64_t n_read)
{
    while (g->tensor < gguf_n_tensors(g->file)) {
        const struct gguf_tensor *t = gguf_tensor_at(g->file, g->tensor);
        const uint8_t *piece = (const uint8_t *)t->data + g->at;
        if (g->at >= t->n_bytes) {
            g->tensor++;
            g->at = 0;
            continue;
        }
        uint64_t bytes = MIN(PIECE_BYTES, t->n_bytes - g->at);
        if (g->n_given_back >= n_read || (reached && piece + bytes > (const uint8_t *)reached))
            return false;
        gguf_forget(g->file, piece, bytes);
        g->at += bytes;
        g->n_given_back++;
        return true;
    }
    return false;
}

void model_digester_give_back(struct model_digester *g, const void *reached)
{
    if (pthread_mutex_trylock(&g->giving_back))
        return;
    while (give_back_piece(g, reached, atomic_load(&g->n_pieces)))
        ;
    pthread_mutex_unlock(&g->giving_back);
}

void model_digester_give_back_rest(struct model_digester *g)
{
    const struct timespec pause = {.tv_nsec = 500 * 1000};

    pthread_mutex_lock(&g->giving_back);
    while (g->tensor < gguf_n_tensors(g->file) && !atomic_load(&g->stop))
        if (!give_back_piece(g, NULL, atomic_load(&g->n_pieces)))
            nanosleep(&pause, NULL);
    pthread_mutex_unlock(&g->giving_back);
}

void model_digester_stop(struct model_digester *g)
{
    atomic_store(&g->stop, true);
}

void model_digester_result(const struct model_digester *g, uint8_t out[REQUEST_DIGEST_BYTES])
{
    memcpy(out, g->out, REQUEST_DIGEST_BYTES);
}

void model_digester_destroy(struct model_digester **pg)
{
    struct model_digester *g = *pg;

    *pg = NULL;
    if (!g)
        return;
    model_digester_stop(g);
    model_digester_wait(g);
    if (g->digest)
        digest_finish(&g->digest, g->out);
    pthread_mutex_destroy(&g->giving_back);
    gguf_release(&g->file);
    free(g);
}
