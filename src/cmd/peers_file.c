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
    static struct peers p; /* large; the loop's thread alone reads */
    char line[512];
    uint32_t number = 0;
    enum status status = STATUS_OK;
    FILE *f = fopen(path, "r");

    if (!f)
        return fail(STATUS_USAGE, "--peers: %s: %s", path, strerror(errno));
    p = (struct peers){0};
    while (status == STATUS_OK && fgets(line, sizeof line, f))
        status = add_line(line, path, ++number, &p);
    if (status == STATUS_OK && ferror(f))
        status = fail(STATUS_IO, "--peers: %s: %s", path, strerror(errno));
    fclose(f);
    if (status == STATUS_OK)
        *out = p;
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

void peers_reread(struct peers_watch *w)
{
    struct peers fresh;
    enum status status = peers_read(w->path, &fresh);

    /* an editor that writes in place leaves it empty for a moment */
    if (status == STATUS_OK && !fresh.prefill.n && !fresh.decode.n)
        status = fail(STATUS_USAGE, "%s names no node", w->path);
    if (status == STATUS_OK)
        w->now = fresh;
    if (status != STATUS_OK) {
        log_event(LOG_WARN, "peers file not read, the old peers stay", "error=" LOG_Q,
                  log_quote(status_message()));
        return;
    }
    log_event(LOG_INFO, "peers", "file=%s prefill=%u decode=%u", w->path, w->now.prefill.n,
              w->now.decode.n);
    w->changed(w->context, &w->now);
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
}
