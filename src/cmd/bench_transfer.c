/* baton bench --transfer: the KV of a prompt from one process to another over loopback, as a
 * hand-off, as one over TLS, and as a plain copy through a socket, in turn. A child process is the
 * prefill node, this one the decode node; both know the order of what comes, and a byte on the
 * plain connection says that it may begin. */
#include "cmd/bench.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/metrics.h"
#include "handoff/handoff.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum way { WAY_COPY, WAY_HANDOFF, WAY_TLS, N_WAYS };
enum { COPY_CHUNK_BYTES = 256 << 10, PATIENCE_MS = 20000 };

/* One process's end of one kind of link. */
struct lane {
    struct transfer *transfer;
    struct tls_context *tls;
    struct net_listener *listener;
    struct metrics *metrics;
    struct peer_hub *hub;
    struct handoff_senders *senders;
    struct handoff_receivers *receivers;
    bool is_up;
};

struct transfer {
    struct net_loop *loop;
    struct net_timer patience;
    struct kv_geometry kv;
    uint32_t n_tokens, n_pages;
    uint64_t n_bytes;
    char *slabs; /* [page][layer], as in a pool */
    struct lane lanes[N_WAYS];
    int copy_fd;
    uint64_t number;
    bool waiting, done;
    enum status status;
};

/* ---- pages ---- */

static char *slab_at(const struct transfer *t, uint32_t page, uint32_t layer)
{
    return t->slabs + ((uint64_t)page * t->kv.n_layers + layer) * kv_slab_bytes(t->kv);
}

static const void *source_slab(void *context, uint32_t page, uint32_t layer)
{
    return slab_at(context, page, layer);
}

static uint32_t source_tokens(void *context, uint32_t layer)
{
    (void)layer;
    return ((struct transfer *)context)->n_tokens;
}

static void *sink_slab(void *context, uint32_t page, uint32_t layer)
{
    return slab_at(context, page, layer);
}

/* ---- what ends a wait ---- */

static void wake(struct transfer *t, enum status status)
{
    t->done = true;
    t->status = status;
    if (t->waiting)
        net_loop_stop(t->loop);
}

static void out_of_patience(void *context)
{
    wake(context, fail(STATUS_HANDOFF_TIMEOUT, "nothing happened for %d s", PATIENCE_MS / 1000));
}

/* Runs the loop until wake(). */
static enum status wait_for(struct transfer *t)
{
    if (!t->done) {
        TRY(net_timer_start(t->loop, &t->patience, PATIENCE_MS, 0, out_of_patience, t));
        t->waiting = true;
        net_loop_run(t->loop);
        t->waiting = false;
        net_timer_stop(&t->patience);
    }
    t->done = false;
    return t->status;
}

static void source_opened(void *context, const char *decode_node)
{
    (void)context, (void)decode_node;
}

static void source_accepted(void *context)
{
    wake(context, STATUS_OK);
}

static void source_given_up(void *context, enum status reason, const char *message)
{
    wake(context, fail(reason, "the hand-off failed: %s", message));
}

static void source_released(void *context)
{
    (void)context;
}

static bool sink_committed(void *context, const struct wire_handoff_commit *commit)
{
    (void)commit;
    wake(context, STATUS_OK);
    return true;
}

static void sink_ended(void *context, enum status reason)
{
    wake(context, fail(reason, "the reservation ended"));
}

/* ---- links ---- */

static void link_up(void *context, struct peer_link *link)
{
    struct lane *lane = context;

    (void)link;
    lane->is_up = true;
    wake(lane->transfer, STATUS_OK);
}

static void link_down(void *context, struct peer_link *link, enum status reason)
{
    struct lane *lane = context;

    if (lane->senders)
        handoff_senders_link_down(lane->senders, link);
    if (lane->receivers)
        handoff_receivers_link_down(lane->receivers, link);
    wake(lane->transfer, fail(reason, "the link was lost"));
}

static enum status opened(struct lane *lane, struct peer_link *link, const struct wire_frame *f)
{
    struct transfer *t = lane->transfer;
    const struct handoff_sink sink = {
        .slab = sink_slab, .committed = sink_committed, .ended = sink_ended, .context = t};
    struct handoff_receiver *receiver;
    struct wire_decode_meta m;
    struct arena a = {0};
    enum status status = wire_decode_decode_meta(f, &a, &m);

    if (status == STATUS_OK && m.request.resume.n_prompt != t->n_tokens)
        status = fail(STATUS_BAD_MESSAGE, "%u tokens come, %u were meant",
                      m.request.resume.n_prompt, t->n_tokens);
    if (status == STATUS_OK)
        status = handoff_receive_ready(lane->receivers, link, &m.request.key, m.request.attempt,
                                       t->n_tokens, 0, &sink, &receiver);
    arena_deinit(&a);
    return status;
}

static enum status message(void *context, struct peer_link *link, const struct wire_frame *f)
{
    struct lane *lane = context;

    if (lane->senders)
        return handoff_senders_message(lane->senders, link, f);
    return f->type == WIRE_DECODE_META ? opened(lane, link, f)
                                       : handoff_receivers_message(lane->receivers, link, f);
}

static void *slab_room(void *context, struct peer_link *link, const struct wire_kv_header *h,
                       uint32_t page)
{
    return handoff_receivers_slab_room(((struct lane *)context)->receivers, link, h, page);
}

static void slab_arrived(void *context, struct peer_link *link, const struct wire_kv_header *h,
                         uint32_t page, bool intact)
{
    handoff_receivers_slab_arrived(((struct lane *)context)->receivers, link, h, page, intact);
}

static void node_stats(void *context, struct wire_node_stats *out)
{
    (void)context;
    out->busy = false;
}

static enum status lane_start(struct transfer *t, enum way way, bool sends, uint16_t *port)
{
    struct lane *lane = &t->lanes[way];
    struct peer_hub_options o = {
        .loop = t->loop,
        .hello = {.has_model = true, .kv = t->kv, .max_context_tokens = t->n_tokens + 1},
        .events = {.link_up = link_up,
                   .link_down = link_down,
                   .message = message,
                   .slab_room = slab_room,
                   .slab_arrived = slab_arrived,
                   .node_stats = node_stats,
                   .context = lane},
        .slabs = {.base = t->slabs, .bytes = t->n_bytes},
        .limits = peer_limits_default,
        .metrics = lane->metrics = metrics_create(""),
        .tls = lane->tls};
    struct net_address address;
    char text[32];

    lane->transfer = t;
    if (!lane->metrics)
        return STATUS_NO_MEMORY;
    snprintf(o.hello.node_id, sizeof o.hello.node_id, sends ? "prefill-0" : "decode-0");
    snprintf(o.hello.role, sizeof o.hello.role, sends ? "prefill" : "decode");
    o.hello.epoch = 1 + sends;
    o.limits.dead_ms = PATIENCE_MS; /* a plain copy stands between two pings */
    TRY(peer_hub_create(&o, &lane->hub));
    snprintf(text, sizeof text, "127.0.0.1:%u", *port);
    TRY(net_address_parse(text, "--transfer", &address));
    if (sends) {
        TRY(handoff_senders_create(t->loop, lane->hub, lane->metrics, &lane->senders));
        return peer_hub_dial(lane->hub, &address, "decode", true);
    }
    const struct handoff_receivers_options r = {
        .loop = t->loop, .hub = lane->hub, .metrics = lane->metrics, .lease_ms = PATIENCE_MS};
    TRY(handoff_receivers_create(&r, &lane->receivers));
    TRY(net_listen(t->loop, &address, "--transfer", &lane->listener));
    peer_hub_listen(lane->hub, lane->listener);
    address = *net_listener_address(lane->listener);
    *port = ntohs(((struct sockaddr_in *)&address.sa)->sin_port);
    return STATUS_OK;
}

static void lane_stop(struct lane *lane)
{
    peer_hub_destroy(&lane->hub);
    handoff_senders_destroy(&lane->senders);
    handoff_receivers_destroy(&lane->receivers);
    net_listener_close(&lane->listener);
    metrics_destroy(&lane->metrics);
}

/* ---- the ways ---- */

static enum status move_bytes(int fd, char *data, uint64_t n, bool sends)
{
    for (uint64_t done = 0; done < n;) {
        const size_t some = (size_t)MIN(n - done, (uint64_t)COPY_CHUNK_BYTES);
        const ssize_t moved =
            sends ? send(fd, data + done, some, MSG_NOSIGNAL) : recv(fd, data + done, some, 0);
        if (moved == 0 || (moved < 0 && errno != EINTR))
            return fail(STATUS_IO, "the plain connection: %s",
                        moved ? strerror(errno) : "the other process ended");
        done += moved > 0 ? (uint64_t)moved : 0;
    }
    return STATUS_OK;
}

static enum status send_handoff(struct transfer *t, struct lane *lane)
{
    const struct handoff_source source = {.layer_tokens = source_tokens,
                                          .slab = source_slab,
                                          .opened = source_opened,
                                          .accepted = source_accepted,
                                          .given_up = source_given_up,
                                          .released = source_released,
                                          .context = t};
    struct wire_decode_meta meta = {.request = {.attempt = 1}};
    struct handoff_sender *sender;

    snprintf(meta.request.key.origin, sizeof meta.request.key.origin, "bench");
    snprintf(meta.request.reply_to, sizeof meta.request.reply_to, "bench");
    meta.request.key.number = ++t->number;
    meta.request.resume.n_prompt = t->n_tokens;
    meta.request.resume.prompt_ids = memory_alloc(t->n_tokens, sizeof(uint32_t));
    meta.request.resume.sampling.repetition_penalty = 1;
    meta.request.resume.max_tokens = 1;
    if (!meta.request.resume.prompt_ids)
        return STATUS_NO_MEMORY;
    const enum status status =
        handoff_send_open(lane->senders, &meta, t->n_tokens, &source, &sender);
    free(meta.request.resume.prompt_ids);
    TRY(status);
    handoff_send_commit(sender, 1, NULL);
    return wait_for(t);
}

/* Both sides are done with what came before. The loop runs meanwhile: the last acceptance must go
 * out. */
static enum status agree(struct transfer *t, bool sends)
{
    char word = 0;

    if (sends) {
        TRY(move_bytes(t->copy_fd, &word, 1, true));
    } else {
        ssize_t n;
        while ((n = recv(t->copy_fd, &word, 1, MSG_DONTWAIT)) < 0 && errno == EAGAIN)
            net_loop_turn(t->loop);
        if (n <= 0)
            return fail(STATUS_IO, "the prefill side is gone");
    }
    return move_bytes(t->copy_fd, &word, 1, !sends);
}

/* One transfer, either side; *seconds from its first call until the other side has said that it has
 * all of it. */
static enum status once(struct transfer *t, enum way way, bool sends, double *seconds)
{
    char word = 0;

    t->done = false;
    TRY(agree(t, sends));
    const int64_t start_ns = clock_now_ns();
    if (way == WAY_COPY) {
        TRY(move_bytes(t->copy_fd, t->slabs, t->n_bytes, sends));
        TRY(move_bytes(t->copy_fd, &word, 1, !sends));
    } else {
        TRY(sends ? send_handoff(t, &t->lanes[way]) : wait_for(t));
    }
    *seconds = (double)(clock_now_ns() - start_ns) * 1e-9;
    return STATUS_OK;
}

/* ---- the two processes ---- */

static enum status plain_socket(bool sends, uint16_t *port, int *out)
{
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(*port)};
    socklen_t len = sizeof a;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);

    *out = fd;
    if (fd < 0 || (sends ? connect(fd, (struct sockaddr *)&a, len)
                         : bind(fd, (struct sockaddr *)&a, len) || listen(fd, 1) ||
                               getsockname(fd, (struct sockaddr *)&a, &len)))
        return fail(STATUS_IO, "a plain socket: %s", strerror(errno));
    *port = ntohs(a.sin_port);
    return STATUS_OK;
}

static void no_delay(int fd)
{
    const int one = 1;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

/* ports_fd: a pipe on which the decode side says where it listens. */
static enum status start(struct transfer *t, bool sends, int ports_fd)
{
    uint16_t ports[N_WAYS] = {0};
    int fd = -1;

    t->slabs = memory_alloc(1, t->n_bytes);
    if (!t->slabs)
        return STATUS_NO_MEMORY;
    for (uint64_t i = 0; i < t->n_bytes; i += 8)
        memcpy(t->slabs + i, &(uint64_t){(i + sends) * 0x9E3779B97F4A7C15u}, 8);
    TRY(net_loop_create(&t->loop));
    if (sends && read(ports_fd, ports, sizeof ports) != sizeof ports)
        return fail(STATUS_IO, "the decode side did not start");
    TRY(plain_socket(sends, &ports[WAY_COPY], &fd));
    for (enum way way = WAY_HANDOFF; way < N_WAYS; way++)
        TRY(lane_start(t, way, sends, &ports[way]));
    if (!sends) {
        if (write(ports_fd, ports, sizeof ports) != sizeof ports)
            return fail(STATUS_IO, "the prefill side is gone");
        struct pollfd knock = {.fd = fd, .events = POLLIN};
        if (poll(&knock, 1, PATIENCE_MS) == 1)
            t->copy_fd = accept(fd, NULL, NULL);
        close(fd);
        if (t->copy_fd < 0)
            return fail(STATUS_IO, "the prefill side did not come");
    } else {
        t->copy_fd = fd;
    }
    no_delay(t->copy_fd);
    while (!t->lanes[WAY_HANDOFF].is_up || !t->lanes[WAY_TLS].is_up)
        TRY(wait_for(t));
    return STATUS_OK;
}

static void stop(struct transfer *t)
{
    for (enum way way = WAY_HANDOFF; way < N_WAYS; way++) {
        lane_stop(&t->lanes[way]);
        tls_context_destroy(&t->lanes[way].tls);
    }
    for (int i = 0; t->loop && i < 20; i++)
        net_loop_turn(t->loop);
    net_loop_destroy(&t->loop);
    if (t->copy_fd >= 0)
        close(t->copy_fd);
    free(t->slabs);
}

static enum status rounds(struct transfer *t, bool sends, uint32_t n, double (*seconds)[N_WAYS])
{
    double ignored[N_WAYS];

    for (uint32_t r = 0; r <= n; r++)
        for (enum way way = 0; way < N_WAYS; way++)
            TRY(once(t, way, sends, &(r ? seconds[r - 1] : ignored)[way]));
    return agree(t, sends);
}

/* ---- all of it ---- */

static double median(double *values, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++)
        for (uint32_t j = i; j > 0 && values[j] < values[j - 1]; j--) {
            const double v = values[j];
            values[j] = values[j - 1];
            values[j - 1] = v;
        }
    return n % 2 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

static void print_table(const struct transfer *t, uint32_t n, double (*seconds)[N_WAYS])
{
    static const char *const names[] = {"plain socket copy", "hand-off", "hand-off over TLS"};
    double columns[N_WAYS][BENCH_MAX_REPEATS], shares[BENCH_MAX_REPEATS];

    printf("%u tokens, %.1f MB of KV in %u pages; medians of %u rounds in turn, of shares too; a "
           "hand-off is timed from its open to its acceptance\n",
           t->n_tokens, (double)t->n_bytes * 1e-6, t->n_pages, n);
    for (enum way way = 0; way < N_WAYS; way++) {
        for (uint32_t r = 0; r < n; r++) {
            columns[way][r] = (double)t->n_bytes / seconds[r][way] * 1e-9;
            shares[r] = seconds[r][WAY_COPY] / seconds[r][way];
        }
        printf("%-18s %6.2f GB/s  %4.0f%% of the plain copy\n", names[way], median(columns[way], n),
               100 * median(shares, n));
    }
}

static enum status run_parent(struct transfer *t, int ports_fd, uint32_t n)
{
    double seconds[BENCH_MAX_REPEATS][N_WAYS];

    TRY(start(t, false, ports_fd));
    TRY(rounds(t, false, n, seconds));
    return STATUS_OK;
}

static enum status run_child(struct transfer *t, int ports_fd, uint32_t n)
{
    double seconds[BENCH_MAX_REPEATS][N_WAYS];

    TRY(start(t, true, ports_fd));
    TRY(rounds(t, true, n, seconds));
    print_table(t, n, seconds);
    return STATUS_OK;
}

enum status bench_transfer(const char *model, uint32_t n_tokens, uint32_t n_rounds)
{
    struct transfer t = {.n_tokens = MAX(1u, n_tokens), .copy_fd = -1};
    struct tls_context *contexts[2] = {0}; /* of the decode side, and of the prefill side */
    struct loaded loaded = {0};
    int ports[2], child_status = 0;
    enum status status = load_vocabulary(model, &loaded);

    log_setup(&(struct log_options){.level = LOG_ERROR}); /* both ends hang up */
    t.kv = loaded.limits.kv;
    unload_model(&loaded);
    TRY(status);
    t.n_pages = kv_pages_of_tokens(t.n_tokens);
    t.n_bytes = t.n_pages * kv_page_bytes(t.kv);
    if (pipe(ports))
        return fail(STATUS_IO, "pipe: %s", strerror(errno));
    status = bench_certificates(contexts);
    const pid_t child = status == STATUS_OK ? fork() : -1;
    t.lanes[WAY_TLS].tls = contexts[child == 0];
    tls_context_destroy(&contexts[child != 0]);
    if (child == 0) {
        close(ports[1]);
        status = run_child(&t, ports[0], n_rounds);
        if (status != STATUS_OK)
            fprintf(stderr, "baton bench: %s\n", status_message());
        fflush(stdout);
        stop(&t);
        _exit(status == STATUS_OK ? 0 : EXIT_FAULT);
    }
    close(ports[0]);
    if (status == STATUS_OK)
        status = child < 0 ? fail(STATUS_IO, "fork: %s", strerror(errno))
                           : run_parent(&t, ports[1], n_rounds);
    close(ports[1]);
    stop(&t);
    if (child > 0 && (waitpid(child, &child_status, 0) < 0 || child_status) && status == STATUS_OK)
        status = fail(STATUS_IO, "the prefill side ended with status %d", child_status);
    return status;
}
