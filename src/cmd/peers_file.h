/* --peers FILE: a line for each node, "prefill HOST:PORT" or "decode HOST:PORT"; # begins a
 * comment. Routers and prefill nodes look at it once a second, and at SIGHUP. */
#ifndef BATON_CMD_PEERS_FILE_H
#define BATON_CMD_PEERS_FILE_H

#include "base/status.h"
#include "net/net.h"

#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#define PEERS_MAX 64
#define PEERS_LOOK_MS 1000

struct peer_addresses {
    struct net_address items[PEERS_MAX];
    uint32_t n;
};
struct peers {
    struct peer_addresses prefill, decode;
};
/* May take as long as names take to resolve. Errors: USAGE, naming file and line. Threads: any. */
enum status peers_read(const char *path, struct peers *out) WARN_UNUSED;

struct peers_watch {
    const char *path;
    struct net_timer timer;
    ino_t inode;
    off_t size;
    struct timespec modified;
    uint32_t n_missing; /* looks in a row that found no file */
    /* a reading under way, on a text thread */
    struct net_loop *loop;
    struct net_work work;
    bool reading, read_again, stopped;
    struct peers fresh;
    enum status read_status;
    char read_message[256], told[256]; /* told: in the log, last */
    struct peers now;
    void (*changed)(void *context, const struct peers *p);
    void *context;
};
/* changed() is called at once, and whenever the file says something else and can be read. */
enum status peers_watch_start(struct peers_watch *w, struct net_loop *loop, const char *path,
                              void (*changed)(void *context, const struct peers *p),
                              void *context) WARN_UNUSED;
/* Reads it whether it has changed or not; changed() follows in a later turn of the loop. */
void peers_reread(struct peers_watch *w);
void peers_watch_stop(struct peers_watch *w);

#endif
