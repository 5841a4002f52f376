/* --peers FILE: which nodes there are, one a line, while the process runs. */
#include "cmd/peers_file.h"

#include "base/checked.h"
#include "base/log.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* Errors: USAGE, naming the line. */
static enum status add_line(char *line, const char *path, uint32_t number, struct peers *out)
{
    char role[16], where[300], rest;
    struct net_address address;

    line[strcspn(line, "#\r\n")] = 0;
    const int n = sscanf(line, " %15s %299s %c", role, where, &rest);
    if (n < 1)
        return STATUS_OK;
    const bool prefill = !strcmp(role, "prefill");
    if (n != 2 || (!prefill && strcmp(role, "decode")))
        return fail(STATUS_USAGE,
                    "%s, line %u: wants \"prefill HOST:PORT\" or \"decode HOST:PORT\"", path,
                    number);
    char place[400];
    snprintf(place, sizeof place, "%s, line %u", path, number);
    TRY(net_address_parse(where, place, &address));
    struct peer_addresses *list = prefill ? &out->prefill : &out->decode;
    if (list->n == ARRAY_LENGTH(list->items))
        return fail(STATUS_USAGE, "%s, line %u: more than %zu %s nodes", path, number,
                    ARRAY_LENGTH(list->items), role);
    list->items[list->n++] = address;
    return STATUS_OK;
}

enum status peers_read(const char *path, struct peers *out)
{
    char line[512];
    uint32_t number = 0;
    enum status status = STATUS_OK;
    FILE *f = fopen(path, "r");

    if (!f)
        return fail(STATUS_USAGE, "--peers: %s: %s", path, strerror(errno));
    out->prefill.n = out->decode.n = 0;
    while (status == STATUS_OK && fgets(line, sizeof line, f))
        status = add_line(line, path, ++number, out);
    if (status == STATUS_OK && ferror(f))
        status = fail(STATUS_IO, "--peers: %s: %s", path, strerror(errno));
    fclose(f);
    return status;
}

static bool has_changed(struct peers_watch *w)
{
    struct stat st;

    if (stat(w->path, &st)) {
        /* being replaced, perhaps, the first time; what is known stays */
        if (++w->n_missing == 2)
            log_event(LOG_WARN, "peers file is gone, the old peers stay", "file=%s", w->path);
        return false;
    }
    w->n_missing = 0;
    const bool changed = st.st_ino != w->inode || st.st_size != w->size ||
                         st.st_mtim.tv_sec != w->modified.tv_sec ||
                         st.st_mtim.tv_nsec != w->modified.tv_nsec;
    w->inode = st.st_ino;
    w->size = st.st_size;
    w->modified = st.st_mtim;
    return changed;
}

static void read_on_a_thread(struct net_work *work)
{
    struct peers_watch *w =
        (struct peers_watch *)((char *)work - offsetof(struct peers_watch, work));

    w->read_status = peers_read(w->path, &w->fresh);
    /* an editor that writes in place leaves it empty for a moment */
    if (w->read_status == STATUS_OK && !w->fresh.prefill.n && !w->fresh.decode.n)
        w->read_status = fail(STATUS_USAGE, "%s names no node", w->path);
    if (w->read_status != STATUS_OK)
        snprintf(w->read_message, sizeof w->read_message, "%s", status_message());
}

static void take_what_was_read(struct net_work *work)
{
    struct peers_watch *w =
        (struct peers_watch *)((char *)work - offsetof(struct peers_watch, work));

    w->reading = false;
    if (w->stopped)
        return;
    if (w->read_status == STATUS_OK) {
        w->now = w->fresh;
        *w->told = 0;
        log_event(LOG_INFO, "peers", "file=%s prefill=%u decode=%u", w->path, w->now.prefill.n,
                  w->now.decode.n);
        w->changed(w->context, &w->now);
    } else {
        if (strcmp(w->told, w->read_message)) /* once, while it is tried again and again */
            log_event(LOG_WARN, "peers file not read, the old peers stay", "error=" LOG_Q,
                      log_quote(w->read_message));
        memcpy(w->told, w->read_message, sizeof w->told);
        w->inode = 0; /* the name server may be what is wrong */
    }
    if (w->read_again)
        peers_reread(w);
}

/* Not on the loop's thread: a name server that is slow to answer must not cost a link. */
void peers_reread(struct peers_watch *w)
{
    w->read_again = w->reading;
    if (w->reading)
        return;
    w->reading = true;
    w->work.work = read_on_a_thread;
    w->work.done = take_what_was_read;
    net_work_submit(w->loop, &w->work);
}

static void look(void *context)
{
    struct peers_watch *w = context;

    if (has_changed(w))
        peers_reread(w);
}

enum status peers_watch_start(struct peers_watch *w, struct net_loop *loop, const char *path,
                              void (*changed)(void *context, const struct peers *p), void *context)
{
    w->path = path;
    w->loop = loop;
    w->changed = changed;
    w->context = context;
    has_changed(w);
    TRY(peers_read(path, &w->now));
    changed(context, &w->now);
    return net_timer_start(loop, &w->timer, PEERS_LOOK_MS, PEERS_LOOK_MS, look, w);
}

void peers_watch_stop(struct peers_watch *w)
{
    net_timer_stop(&w->timer);
    w->stopped = true;
    while (w->reading)
        net_loop_turn(w->loop);
}
