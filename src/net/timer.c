/* Timers whose storage may go at once, though libuv closes handles later. */
#include "net/internal.h"

#include "base/memory.h"

#include <stdlib.h>

struct net_timer_handle {
    uv_timer_t uv;
    void (*fire)(void *context);
    void *context;
};

static void timer_fired(uv_timer_t *uv)
{
    struct net_timer_handle *h = uv->data;

    h->fire(h->context);
}

static void timer_closed(uv_handle_t *uv)
{
    free(uv->data);
}

enum status net_timer_start(struct net_loop *l, struct net_timer *t, uint64_t first_ms,
                            uint64_t repeat_ms, void (*fire)(void *context), void *context)
{
    struct net_timer_handle *h = t->handle;

    if (h == NULL) {
        h = memory_alloc(1, sizeof *h);
        if (h == NULL)
            return STATUS_NO_MEMORY;
        uv_timer_init(&l->uv, &h->uv);
        h->uv.data = h;
        t->handle = h;
    }
    h->fire = fire;
    h->context = context;
    /* libuv counts from its own last look at the clock, which a long callback leaves behind. */
    uv_update_time(&l->uv);
    uv_timer_start(&h->uv, timer_fired, first_ms, repeat_ms);
    return STATUS_OK;
}

void net_timer_stop(struct net_timer *t)
{
    if (t->handle == NULL)
        return;
    uv_timer_stop(&t->handle->uv);
    uv_close((uv_handle_t *)&t->handle->uv, timer_closed);
    t->handle = NULL;
}
