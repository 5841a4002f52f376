/* Which links need certificates, and where they come from. */
#include "cmd/peers_file.h"
#include "cmd/serve.h"

#include "base/checked.h"
#include "base/log.h"
#include "base/memory.h"
#include "net/net.h"

#include <string.h>

enum { SOON_S = 30 * 86400 };

static enum status needs_certificates(const char *flag, const char *where)
{
    return fail(STATUS_USAGE,
                "%s %s is beyond this host: give --cluster-ca, --cluster-cert and --cluster-key "
                "(`baton cluster init` makes them), or --insecure-cluster to link without TLS",
                flag, where);
}

enum status secure_address(const struct serve_options *o, const struct net_address *address,
                           const char *flag)
{
    return o->cluster_tls || o->insecure_cluster || net_address_is_loopback(address)
               ? STATUS_OK
               : needs_certificates(flag, address->text);
}

static enum status check_list(const struct serve_options *o, const char *const *items, uint32_t n,
                              const char *flag)
{
    for (uint32_t i = 0; i < n; i++) {
        struct net_address address;
        /* a name that nobody knows yet may become anything */
        if (net_address_parse(items[i], flag, &address) != STATUS_OK ||
            secure_address(o, &address, flag) != STATUS_OK)
            return needs_certificates(flag, items[i]);
    }
    return STATUS_OK;
}

static enum status check_plain(const struct serve_options *o)
{
    struct peers named;

    TRY(check_list(o, &o->serving_bind, o->serving_bind != NULL, "--serving-bind"));
    TRY(check_list(o, o->prefill_peers.items, o->prefill_peers.n, "--prefill-peers"));
    TRY(check_list(o, o->decode_peers.items, o->decode_peers.n, "--decode-peers"));
    if (!o->peers_file)
        return STATUS_OK;
    TRY(peers_read(o->peers_file, &named));
    for (uint32_t i = 0; i < named.prefill.n; i++)
        TRY(secure_address(o, &named.prefill.items[i], "--peers"));
    for (uint32_t i = 0; i < named.decode.n; i++)
        TRY(secure_address(o, &named.decode.items[i], "--peers"));
    return STATUS_OK;
}

static enum status path_in(const char *dir, const char *name, const char *kind, const char **out)
{
    char path[512];

    if (snprintf(path, sizeof path, "%s/%s.%s", dir, name, kind) >= (int)sizeof path)
        return fail(STATUS_USAGE, "--cluster-dir %s is too long", dir);
    *out = memory_strdup(path); /* lives as long as the process */
    return *out ? STATUS_OK : STATUS_NO_MEMORY;
}

static enum status look_in_dir(struct serve_options *o)
{
    if (!o->node_id && o->roles)
        o->node_id = "router-0";
    if (!o->node_id)
        return fail(STATUS_USAGE, "--cluster-dir has a certificate for each --node-id; which one "
                                  "is this node?");
    if (!o->cluster_ca)
        TRY(path_in(o->cluster_dir, "ca", "crt", &o->cluster_ca));
    if (!o->cluster_cert)
        TRY(path_in(o->cluster_dir, o->node_id, "crt", &o->cluster_cert));
    if (!o->cluster_key)
        TRY(path_in(o->cluster_dir, o->node_id, "key", &o->cluster_key));
    return STATUS_OK;
}

static enum status load_cluster(const struct serve_options *o, struct tls_context **out)
{
    const struct tls_options t = {
        .ca_file = o->cluster_ca,
        .cert_file = o->cluster_cert,
        .key_file = o->cluster_key,
        .flags = {"--cluster-ca", "--cluster-cert", "--cluster-key"},
    };

    return tls_context_create(&t, out);
}

static enum status take_identity(struct serve_options *o)
{
    const struct net_identity *who = tls_context_identity(o->cluster_tls);

    if (strcmp(who->role, o->role))
        return fail(STATUS_USAGE, "--cluster-cert %s is for a %s node, this is a %s",
                    o->cluster_cert, who->role, o->role);
    if (!o->node_id) {
        o->node_id = memory_strdup(who->node_id); /* the certificate may be read again */
        if (!o->node_id)
            return STATUS_NO_MEMORY;
    }
    if (strcmp(who->node_id, o->node_id))
        return fail(STATUS_USAGE, "--cluster-cert %s is for the node %s, --node-id says %s",
                    o->cluster_cert, who->node_id, o->node_id);
    return STATUS_OK;
}

enum status secure_cluster(struct serve_options *o)
{
    if (o->cluster_dir)
        TRY(look_in_dir(o));
    const int n_given = !!o->cluster_ca + !!o->cluster_cert + !!o->cluster_key;
    if (n_given == 0)
        return o->insecure_cluster ? STATUS_OK : check_plain(o);
    if (n_given < 3)
        return fail(STATUS_USAGE,
                    "--cluster-ca, --cluster-cert and --cluster-key belong together; "
                    "%s is missing",
                    !o->cluster_ca     ? "--cluster-ca"
                    : !o->cluster_cert ? "--cluster-cert"
                                       : "--cluster-key");
    if (o->insecure_cluster)
        return fail(STATUS_USAGE, "--insecure-cluster contradicts --cluster-cert");
    if (o->roles && !o->cluster_dir)
        return fail(STATUS_USAGE, "--roles needs a certificate for each of its nodes: give "
                                  "--cluster-dir instead of --cluster-cert");
    TRY(load_cluster(o, &o->cluster_tls));
    return take_identity(o);
}

enum status secure_cluster_again(const struct serve_options *o, struct tls_context **out)
{
    struct tls_context *c;

    *out = NULL;
    if (!o->cluster_tls)
        return STATUS_OK;
    TRY(load_cluster(o, &c));
    if (memcmp(tls_context_identity(c), tls_context_identity(o->cluster_tls),
               sizeof(struct net_identity))) {
        tls_context_destroy(&c);
        return fail(STATUS_USAGE, "--cluster-cert %s is for another node now", o->cluster_cert);
    }
    *out = c;
    return STATUS_OK;
}

enum status secure_https(const struct serve_options *o, struct tls_context **out)
{
    const struct tls_options t = {
        .cert_file = o->tls_cert,
        .key_file = o->tls_key,
        .flags = {NULL, "--tls-cert", "--tls-key"},
    };

    *out = NULL;
    if (!o->tls_cert && !o->tls_key)
        return STATUS_OK;
    if (!o->tls_cert || !o->tls_key)
        return fail(STATUS_USAGE, "--tls-cert and --tls-key belong together; %s is missing",
                    o->tls_cert ? "--tls-key" : "--tls-cert");
    return tls_context_create(&t, out);
}

static void warn_of_end(const struct tls_context *c, const char *file)
{
    const int64_t left_s = tls_context_seconds_left(c);

    if (left_s < 0)
        log_event(LOG_ERROR, "the certificate has ended", "file=" LOG_Q " days_ago=%lld",
                  log_quote(file), (long long)(-left_s / 86400));
    else if (left_s < SOON_S)
        log_event(LOG_WARN, "the certificate ends soon", "file=" LOG_Q " days_left=%lld",
                  log_quote(file), (long long)(left_s / 86400));
}

void secure_warn(const struct serve_options *o)
{
    if (o->cluster_tls)
        warn_of_end(o->cluster_tls, o->cluster_cert);
    if (o->insecure_cluster)
        log_event(LOG_WARN, "links to other nodes are neither secret nor proven", "flag=%s",
                  "--insecure-cluster");
}
