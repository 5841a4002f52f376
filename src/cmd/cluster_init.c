/* baton cluster: a small authority in a folder, and a certificate for each node. */
#include "cmd/cmd.h"
#include "cmd/flags.h"

#include "base/checked.h"
#include "net/certificate.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct cluster_options {
    const char *name;
    struct flag_strings nodes, http_names;
    int64_t days;
    bool help;
};

#define AT(field) offsetof(struct cluster_options, field)
static const struct flag flags[] = {
    {"--name", NULL, NULL, FLAG_STRING, AT(name), "NAME", 0, 0, "the cluster's name [baton]"},
    {"--nodes", NULL, NULL, FLAG_STRINGS, AT(nodes), "LIST", 0, 0,
     "node ids that begin with their role, or ROLE:ID [router-0,prefill-0,decode-0]"},
    {"--http-names", NULL, NULL, FLAG_STRINGS, AT(http_names), "LIST", 0, 0,
     "host names and addresses: a certificate for --tls-cert as well, http.crt"},
    {"--days", NULL, NULL, FLAG_INT, AT(days), "N", 1, 3650,
     "how long the nodes' certificates are good [825]"},
    {"--help", "-h", NULL, FLAG_BOOL, AT(help), NULL, 0, 0, "this text"},
};
#undef AT

static void help(FILE *out)
{
    fprintf(out,
            "usage: baton cluster init DIR [flags]     an authority in DIR, and certificates\n"
            "       baton cluster add DIR NODE...      more of them, by the same authority\n\n");
    flags_print(out, flags, ARRAY_LENGTH(flags));
}

/* ---- files ---- */

static enum status path_of(const char *dir, const char *name, const char *kind, char out[512])
{
    if (snprintf(out, 512, "%s/%s.%s", dir, name, kind) >= 512)
        return fail(STATUS_USAGE, "%s is too long a name", dir);
    return STATUS_OK;
}

/* Never over a file that is there: a key that is lost cannot be had again. */
static enum status write_new(const char *dir, const char *name, const char *kind,
                             const struct buffer *data, mode_t mode)
{
    char path[512];

    TRY(path_of(dir, name, kind, path));
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (fd < 0)
        return fail(STATUS_USAGE, "%s: %s", path, strerror(errno));
    const ssize_t n = write(fd, data->data, data->len);
    const int error = errno;
    if (close(fd) || n != (ssize_t)data->len) {
        unlink(path);
        return fail(STATUS_IO, "%s: %s", path, strerror(error));
    }
    return STATUS_OK;
}

static enum status read_file(const char *dir, const char *name, const char *kind,
                             struct buffer *out)
{
    char path[512];

    TRY(path_of(dir, name, kind, path));
    FILE *f = fopen(path, "r");
    if (!f)
        return fail(STATUS_USAGE, "%s: %s; `baton cluster init` makes an authority", path,
                    strerror(errno));
    char *room = buffer_reserve(out, 64 << 10);
    out->len += room ? fread(room, 1, 64 << 10, f) : 0;
    fclose(f);
    if (room)
        out->data[out->len] = 0;
    return buffer_status(out);
}

static void erase(struct buffer *key)
{
    if (key->data)
        explicit_bzero(key->data, key->capacity);
    buffer_deinit(key);
}

/* ---- the two commands ---- */

struct authority {
    const char *dir;
    char cluster[64];
    struct buffer cert, key;
    int64_t days;
};

/* "decode-3", "decode:east-3" */
static enum status read_node(const char *text, struct net_identity *who)
{
    const char *colon = strchr(text, ':'), *id = colon ? colon + 1 : text;
    const size_t role_len = colon ? (size_t)(colon - text) : strcspn(text, "-");
    static const char *const roles[] = {"router", "prefill", "decode", "client"};

    for (size_t i = 0; i < ARRAY_LENGTH(roles); i++)
        if (strlen(roles[i]) == role_len && !memcmp(roles[i], text, role_len) &&
            strlen(id) < sizeof who->node_id) {
            strcpy(who->role, roles[i]);
            strcpy(who->node_id, id);
            return STATUS_OK;
        }
    return fail(STATUS_USAGE,
                "\"%s\" does not begin with router, prefill, decode or client; write ROLE:ID",
                text);
}

static enum status add_node(const struct authority *a, const char *text)
{
    struct net_identity who = {0};
    struct buffer cert = {0}, key = {0};
    enum status status;

    strcpy(who.cluster, a->cluster);
    TRY(read_node(text, &who));
    status =
        certificate_issue(a->cert.data, a->key.data, &who, -3600, a->days * 86400, &cert, &key);
    if (status == STATUS_OK)
        status = write_new(a->dir, who.node_id, "key", &key, 0600);
    if (status == STATUS_OK)
        status = write_new(a->dir, who.node_id, "crt", &cert, 0644);
    if (status == STATUS_OK)
        printf("%s (%s): --cluster-ca %s/ca.crt --cluster-cert %s/%s.crt --cluster-key "
               "%s/%s.key\n",
               who.node_id, who.role, a->dir, a->dir, who.node_id, a->dir, who.node_id);
    buffer_deinit(&cert);
    erase(&key);
    return status;
}

static enum status add_http(const struct authority *a, const struct flag_strings *names)
{
    struct buffer list = {0}, cert = {0}, key = {0};
    enum status status;

    for (uint32_t i = 0; i < names->n; i++)
        buffer_printf(&list, "%s%s", i ? "," : "", names->items[i]);
    status = buffer_status(&list);
    if (status == STATUS_OK)
        status =
            certificate_issue_server(a->cert.data, a->key.data, list.data, a->days, &cert, &key);
    if (status == STATUS_OK)
        status = write_new(a->dir, "http", "key", &key, 0600);
    if (status == STATUS_OK)
        status = write_new(a->dir, "http", "crt", &cert, 0644);
    if (status == STATUS_OK)
        printf("clients (%s): --tls-cert %s/http.crt --tls-key %s/http.key, and trust %s/ca.crt\n",
               list.data, a->dir, a->dir, a->dir);
    buffer_deinit(&list);
    buffer_deinit(&cert);
    erase(&key);
    return status;
}

static enum status make_authority(struct authority *a, const char *name)
{
    const struct net_identity probe = {.role = "router", .node_id = "router-0"};
    struct net_identity who = probe;
    struct buffer text = {0};
    char uri[192];
    enum status status;

    if (strlen(name) >= sizeof a->cluster)
        return fail(STATUS_USAGE, "--name is 1 to 63 letters, digits, '.', '_' or '-'");
    strcpy(a->cluster, name);
    strcpy(who.cluster, name);
    if (net_identity_write(&who, uri) != STATUS_OK)
        return fail(STATUS_USAGE, "--name is 1 to 63 letters, digits, '.', '_' or '-'");
    if (mkdir(a->dir, 0700) && errno != EEXIST)
        return fail(STATUS_USAGE, "%s: %s", a->dir, strerror(errno));
    TRY(certificate_make_authority(name, 3650, &a->cert, &a->key));
    TRY(write_new(a->dir, "ca", "key", &a->key, 0600));
    TRY(write_new(a->dir, "ca", "crt", &a->cert, 0644));
    buffer_printf(&text, "%s\n", name);
    status = write_new(a->dir, "cluster", "name", &text, 0644);
    buffer_deinit(&text);
    if (status == STATUS_OK)
        printf("authority of %s: %s/ca.crt; keep %s/ca.key where no node can read it\n", name,
               a->dir, a->dir);
    return status;
}

static enum status open_authority(struct authority *a)
{
    struct buffer name = {0};
    enum status status;

    TRY(read_file(a->dir, "ca", "crt", &a->cert));
    TRY(read_file(a->dir, "ca", "key", &a->key));
    status = read_file(a->dir, "cluster", "name", &name);
    if (status == STATUS_OK)
        snprintf(a->cluster, sizeof a->cluster, "%.*s", (int)strcspn(name.data, "\n"), name.data);
    buffer_deinit(&name);
    return status;
}

static enum status carry_out(const char *what, struct authority *a, const struct cluster_options *o,
                             const char *const *nodes, uint32_t n_nodes)
{
    static const char *const usual[] = {"router-0", "prefill-0", "decode-0"};

    if (!strcmp(what, "init")) {
        TRY(make_authority(a, o->name));
        if (!n_nodes && !o->nodes.n) {
            nodes = usual;
            n_nodes = ARRAY_LENGTH(usual);
        }
    } else {
        TRY(open_authority(a));
    }
    for (uint32_t i = 0; i < o->nodes.n; i++)
        TRY(add_node(a, o->nodes.items[i]));
    for (uint32_t i = 0; i < n_nodes; i++)
        TRY(add_node(a, nodes[i]));
    return o->http_names.n ? add_http(a, &o->http_names) : STATUS_OK;
}

int cmd_cluster(int argc, char **argv)
{
    /* static: what flags are given as is kept to the process's end */
    static struct cluster_options o = {.name = "baton", .days = 825};
    const char *rest[64];
    uint32_t n_rest = 0;
    enum status status = flags_parse(flags, ARRAY_LENGTH(flags), argc, argv, &o, NULL, rest,
                                     ARRAY_LENGTH(rest), &n_rest);

    if (status == STATUS_OK && o.help) {
        help(stdout);
        return 0;
    }
    if (status == STATUS_OK &&
        (n_rest < 2 || (strcmp(rest[0], "init") && strcmp(rest[0], "add")))) {
        help(stderr);
        return EXIT_USAGE;
    }
    if (status == STATUS_OK) {
        struct authority a = {.dir = rest[1], .days = o.days};
        status = carry_out(rest[0], &a, &o, rest + 2, n_rest - 2);
        buffer_deinit(&a.cert);
        erase(&a.key);
    }
    if (status != STATUS_OK) {
        fprintf(stderr, "baton cluster: %s\n", status_message());
        return status == STATUS_USAGE ? EXIT_USAGE : EXIT_FAULT;
    }
    return 0;
}
