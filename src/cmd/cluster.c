/* --roles NpMd: a small cluster on this host. The parent is the router; its children are ordinary
 * `baton serve` processes whose listening sockets the parent keeps, so that a restarted child has
 * its old address. */
#include "cmd/cmd.h"
#include "cmd/serve.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "net/net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    MAX_CHILDREN = 32,
    MAX_ARGS = 64,
    DEATHS_MAX = 5,
    DEATHS_WITHIN_MS = 60000,
    RESTART_MS = 200
};

struct child {
    struct family *family;
    const char *role;
    char id[40];
    int http_fd, serving_fd;
    char http_address[32], serving_address[32];
    pid_t pid; /* 0: not running */
    struct net_timer restart;
};

struct family {
    struct net_loop *loop;
    const char *program;
    struct serve_options options; /* the parent's: children inherit most of it */
    struct child children[MAX_CHILDREN];
    uint32_t n_children, n_prefill;
    uint32_t n_threads_each;
    int64_t deaths_ms[DEATHS_MAX];
    uint32_t n_deaths;
    uv_signal_t sigchld;
    bool signal_open, stopping;
    void (*failed)(void *context);
    void *context;
};

int inherited_socket(const char *what)
{
    const char *list = getenv("BATON_LISTEN_FDS");
    char wanted[32];
    int fd;

    snprintf(wanted, sizeof wanted, "%s=", what);
    const char *p = list ? strstr(list, wanted) : NULL;
    return p && sscanf(p + strlen(wanted), "%d", &fd) == 1 ? fd : -1;
}

static enum status loopback_socket(int *out_fd, char address[32])
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof sa;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || bind(fd, (struct sockaddr *)&sa, sizeof sa) || listen(fd, 128) ||
        getsockname(fd, (struct sockaddr *)&sa, &len)) {
        if (fd >= 0)
            close(fd);
        return fail(STATUS_IO, "no socket for a child: %s", strerror(errno));
    }
    snprintf(address, 32, "127.0.0.1:%u", ntohs(sa.sin_port));
    *out_fd = fd;
    return STATUS_OK;
}

/* ---- a child's command line ---- */

struct args {
    char *items[MAX_ARGS];
    uint32_t n;
};

static void add(struct args *a, const char *flag, const char *value)
{
    if (a->n + 3 > MAX_ARGS)
        return;
    a->items[a->n++] = (char *)flag;
    if (value)
        a->items[a->n++] = (char *)value;
}

static void add_int(struct args *a, const char *flag, int64_t value)
{
    char text[32];

    snprintf(text, sizeof text, "%lld", (long long)value);
    char *copy =
        memory_strdup(text); /* this runs between fork and exec, or leaks a few bytes a restart */
    if (copy)
        add(a, flag, copy);
}

/* Each child shows its own certificate. */
static void add_certificate(struct args *a, const struct child *c)
{
    const struct serve_options *o = &c->family->options;
    static const char *const flags[] = {"--cluster-ca", "--cluster-cert", "--cluster-key"};
    static const char *const kinds[] = {"crt", "crt", "key"};

    for (int i = 0; i < 3 && o->cluster_dir; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s.%s", o->cluster_dir, i ? c->id : "ca", kinds[i]);
        char *copy = memory_strdup(path); /* as in add_int() */
        if (copy)
            add(a, flags[i], copy);
    }
}

static void child_args(const struct child *c, const char *decode_peers, struct args *a)
{
    const struct serve_options *o = &c->family->options;

    add(a, "baton", "serve");
    add(a, "--node-role", c->role);
    add(a, "--node-id", c->id);
    add(a, "-m", o->model);
    add(a, "--serving-bind", c->serving_address);
    add(a, "--port", strrchr(c->http_address, ':') + 1);
    if (!strcmp(c->role, "prefill"))
        add(a, "--decode-peers", decode_peers);
    add_certificate(a, c);
    add_int(a, "-t", c->family->n_threads_each);
    add_int(a, "-np", o->n_slots);
    if (o->context_given)
        add_int(a, "-c", o->context_tokens);
    if (o->kv_bytes)
        add_int(a, "--kv-mem", (int64_t)o->kv_bytes);
    add_int(a, "--step-ms", o->step_ms);
    if (o->prefill_chunk)
        add_int(a, "--prefill-chunk", o->prefill_chunk);
    add_int(a, "--peer-dead-ms", o->dead_ms);
    add_int(a, "--peer-stuck-ms", o->stuck_ms);
    add_int(a, "--lease-ms", o->lease_ms);
    add_int(a, "--max-queue", o->max_queue);
    add_int(a, "--drain-timeout", o->drain_timeout_s);
    add(a, "--log-level", o->log_level);
    if (o->log_json)
        add(a, "--log-json", NULL);
    a->items[a->n] = NULL;
}

static void join_addresses(const struct family *f, const char *role, char *out, size_t size)
{
    *out = 0;
    for (uint32_t i = 0; i < f->n_children; i++)
        if (!strcmp(f->children[i].role, role))
            snprintf(out + strlen(out), size - strlen(out), "%s%s", *out ? "," : "",
                     f->children[i].serving_address);
}

static void exec_child(const struct child *c)
{
    char decode_peers[1024], fds[64], share[16];
    struct args a = {0};
    sigset_t none;

    /* an environment variable for a flag was this process's affair; what matters is on the command
     * line */
    for (char **e = environ; *e;) {
        if (strncmp(*e, "BATON_ARG_", 10)) {
            e++;
            continue;
        }
        char name[128];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(*e, "="), *e);
        unsetenv(name);
        e = environ;
    }
    setpgid(0, 0); /* Ctrl-C is the parent's: it drains, and then ends its children */
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    join_addresses(c->family, "decode", decode_peers, sizeof decode_peers);
    fcntl(c->http_fd, F_SETFD, 0);
    fcntl(c->serving_fd, F_SETFD, 0);
    snprintf(fds, sizeof fds, "http=%d,serving=%d", c->http_fd, c->serving_fd);
    setenv("BATON_LISTEN_FDS", fds, 1);
    snprintf(share, sizeof share, "%u", c->family->n_children);
    setenv("BATON_MEMORY_SHARE", share, 1); /* children share this host's memory */
    child_args(c, decode_peers, &a);
    execv(c->family->program, a.items);
    _exit(127);
}

static void start_child(void *context)
{
    struct child *c = context;
    const pid_t parent = getpid(), pid = fork();

    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* first: who dies after the next look is noticed */
        if (getppid() == parent)
            exec_child(c);
        _exit(127);
    }
    if (pid < 0) {
        log_event(LOG_ERROR, "fork failed", "child=%s error=" LOG_Q, c->id,
                  log_quote(strerror(errno)));
        c->family->failed(c->family->context);
        return;
    }
    c->pid = pid;
    log_event(LOG_INFO, "child started", "child=%s pid=%d serving=%s http=%s", c->id, (int)pid,
              c->serving_address, c->http_address);
}

/* ---- deaths ---- */

static bool too_many_deaths(struct family *f)
{
    const int64_t now_ms = clock_now_ms();

    f->deaths_ms[f->n_deaths++ % DEATHS_MAX] = now_ms;
    return f->n_deaths >= DEATHS_MAX &&
           now_ms - f->deaths_ms[f->n_deaths % DEATHS_MAX] < DEATHS_WITHIN_MS;
}

static void child_died(struct child *c, int wait_status)
{
    struct family *f = c->family;

    c->pid = 0;
    if (f->stopping)
        return;
    if (WIFSIGNALED(wait_status))
        log_event(LOG_WARN, "child died", "child=%s signal=%d", c->id, WTERMSIG(wait_status));
    else
        log_event(WEXITSTATUS(wait_status) ? LOG_WARN : LOG_INFO, "child ended", "child=%s exit=%d",
                  c->id, WEXITSTATUS(wait_status));
    const bool ended_well = WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0;
    if (!ended_well && too_many_deaths(f)) {
        log_event(LOG_ERROR, "family given up", "child=%s deaths=%d within_s=%d", c->id, DEATHS_MAX,
                  DEATHS_WITHIN_MS / 1000);
        family_stop(f);
        f->failed(f->context);
        return;
    }
    if (net_timer_start(f->loop, &c->restart, RESTART_MS, 0, start_child, c) != STATUS_OK)
        f->failed(f->context);
}

static void on_sigchld(uv_signal_t *handle, int number)
{
    struct family *f = handle->data;

    for (uint32_t i = 0; i < f->n_children; i++) {
        int wait_status;
        if (f->children[i].pid &&
            waitpid(f->children[i].pid, &wait_status, WNOHANG) == f->children[i].pid)
            child_died(&f->children[i], wait_status);
    }
}

/* ---- the family ---- */

static enum status add_children(struct family *f, const char *role, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        struct child *c = &f->children[f->n_children];
        c->family = f;
        c->role = role;
        c->http_fd = c->serving_fd = -1;
        snprintf(c->id, sizeof c->id, "%s-%u", role, i);
        f->n_children++;
        TRY(loopback_socket(&c->http_fd, c->http_address));
        TRY(loopback_socket(&c->serving_fd, c->serving_address));
    }
    return STATUS_OK;
}

static enum status peers_of_router(const struct family *f, struct serve_options *o)
{
    for (uint32_t i = 0; i < f->n_children; i++) {
        const struct child *c = &f->children[i];
        struct flag_strings *list =
            strcmp(c->role, "prefill") ? &o->decode_peers : &o->prefill_peers;
        if (list->n == ARRAY_LENGTH(list->items))
            return fail(STATUS_USAGE, "--roles and %s together name more than %zu nodes",
                        strcmp(c->role, "prefill") ? "--decode-peers" : "--prefill-peers",
                        ARRAY_LENGTH(list->items));
        list->items[list->n++] = c->serving_address;
    }
    return STATUS_OK;
}

/* A child without its certificate would start, end, and be started again. */
static enum status check_certificates(const struct family *f)
{
    static const char *const kinds[] = {"crt", "key"};
    char path[512];

    for (uint32_t i = 0; f->options.cluster_dir && i < f->n_children; i++)
        for (uint32_t k = 0; k < ARRAY_LENGTH(kinds); k++) {
            snprintf(path, sizeof path, "%s/%s.%s", f->options.cluster_dir, f->children[i].id,
                     kinds[k]);
            if (access(path, R_OK))
                return fail(STATUS_USAGE, "--roles %s: %s: %s; `baton cluster add %s %s` makes it",
                            f->options.roles, path, strerror(errno), f->options.cluster_dir,
                            f->children[i].id);
        }
    return STATUS_OK;
}

enum status family_parse(const char *roles, unsigned *n_prefill, unsigned *n_decode)
{
    unsigned p, d;
    char end;

    if (sscanf(roles, "%up%ud%c", &p, &d, &end) != 2 || !p || !d || p > MAX_CHILDREN ||
        d > MAX_CHILDREN || p + d > MAX_CHILDREN)
        return fail(STATUS_USAGE,
                    "--roles wants, say, 1p1d or 2p2d, with at most %d children, not \"%s\"",
                    MAX_CHILDREN, roles);
    *n_prefill = p;
    *n_decode = d;
    return STATUS_OK;
}

enum status family_start(struct net_loop *loop, const char *program, struct serve_options *o,
                         void (*failed)(void *context), void *context, struct family **out)
{
    struct family *f = memory_alloc(1, sizeof *f);
    unsigned n_prefill, n_decode;
    enum status status;

    if (!f)
        return STATUS_NO_MEMORY;
    f->loop = loop;
    f->program = program;
    f->options = *o;
    f->failed = failed;
    f->context = context;
    TRY_GOTO(failed, family_parse(o->roles, &n_prefill, &n_decode));
    f->n_threads_each =
        MAX(1u, (o->n_threads ? (uint32_t)o->n_threads : host_threads()) / (n_prefill + n_decode));
    TRY_GOTO(failed, add_children(f, "prefill", n_prefill));
    TRY_GOTO(failed, add_children(f, "decode", n_decode));
    TRY_GOTO(failed, check_certificates(f));
    TRY_GOTO(failed, peers_of_router(f, o));
    uv_signal_init(net_loop_uv(loop), &f->sigchld);
    f->sigchld.data = f;
    f->signal_open = true;
    uv_signal_start(&f->sigchld, on_sigchld, SIGCHLD);
    for (uint32_t i = 0; i < f->n_children; i++)
        start_child(&f->children[i]);
    *out = f;
    return STATUS_OK;
failed:
    family_destroy(&f);
    return status;
}

void family_stop(struct family *f)
{
    f->stopping = true;
    for (uint32_t i = 0; i < f->n_children; i++) {
        net_timer_stop(&f->children[i].restart);
        if (f->children[i].pid)
            kill(f->children[i].pid, SIGTERM);
    }
}

void family_signal(const struct family *f, int number)
{
    for (uint32_t i = 0; i < f->n_children; i++)
        if (f->children[i].pid)
            kill(f->children[i].pid, number);
}

bool family_is_gone(const struct family *f)
{
    for (uint32_t i = 0; i < f->n_children; i++)
        if (f->children[i].pid)
            return false;
    return true;
}

static void close_signal(uv_handle_t *handle)
{
    free(handle->data);
}

void family_destroy(struct family **pf)
{
    struct family *f = *pf;

    if (!f)
        return;
    family_stop(f);
    for (uint32_t i = 0; i < f->n_children; i++) {
        struct child *c = &f->children[i];
        if (c->pid) {
            kill(c->pid, SIGKILL);
            waitpid(c->pid, NULL, 0);
        }
        if (c->http_fd >= 0)
            close(c->http_fd);
        if (c->serving_fd >= 0)
            close(c->serving_fd);
    }
    *pf = NULL;
    if (f->signal_open)
        uv_close((uv_handle_t *)&f->sigchld, close_signal);
    else
        free(f);
}
