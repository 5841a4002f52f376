/* --check-config: what would run, from all that can be known without listening or loading weights.
 */
#include "cmd/cmd.h"
#include "cmd/peers_file.h"
#include "cmd/serve.h"

#include "kv/kv.h"
#include "net/net.h"

#include <string.h>

static enum status check_peers(const struct flag_strings *peers, const char *flag)
{
    for (uint32_t i = 0; i < peers->n; i++) {
        struct net_address address;
        TRY(net_address_parse(peers->items[i], flag, &address));
    }
    return STATUS_OK;
}

static enum status check(const struct serve_options *o, const char *role, struct loaded *l,
                         struct kv_plan *kv)
{
    struct tls_context *https = NULL;
    struct net_address address;

    TRY(check_peers(&o->prefill_peers, "--prefill-peers"));
    TRY(check_peers(&o->decode_peers, "--decode-peers"));
    if (o->peers_file) {
        struct peers p;
        TRY(peers_read(o->peers_file, &p));
    }
    if (o->admin)
        TRY(net_address_parse(o->admin, "--admin", &address));
    TRY(secure_https(o, &https));
    tls_context_destroy(&https);
    if (o->serving_bind)
        TRY(net_address_parse(o->serving_bind, "--serving-bind", &address));
    TRY(load_vocabulary(o->model, l));
    if (!strcmp(role, "router"))
        return STATUS_OK;
    return plan_kv(&l->limits, o->context_tokens, o->context_given, (uint32_t)o->n_slots,
                   o->kv_bytes, kv);
}

int serve_check(const struct serve_options *o, const char *role)
{
    struct loaded l = {0};
    struct kv_plan kv = {0};
    const enum status status = check(o, role, &l, &kv);

    if (status != STATUS_OK) {
        fprintf(stderr, "baton serve: %s\n", status_message());
        unload_model(&l);
        return status == STATUS_USAGE ? EXIT_USAGE : EXIT_FAULT;
    }
    printf("role=%s node=%s http=%s:%lld serving=%s model=%s", role, o->node_id, o->host,
           (long long)o->port, o->serving_bind && !o->misconfigured ? o->serving_bind : "none",
           o->model);
    for (uint32_t i = 0; i < o->prefill_peers.n; i++)
        printf("%s%s", i ? "," : " prefill_peers=", o->prefill_peers.items[i]);
    for (uint32_t i = 0; i < o->decode_peers.n; i++)
        printf("%s%s", i ? "," : " decode_peers=", o->decode_peers.items[i]);
    if (o->roles)
        printf(" roles=%s", o->roles);
    if (strcmp(role, "router"))
        printf(" ctx=%u slots=%lld kv=%lluMiB threads=%lld", kv.context_tokens,
               (long long)o->n_slots,
               (unsigned long long)(kv.n_pages * kv_page_bytes(l.limits.kv) >> 20),
               o->n_threads ? (long long)o->n_threads : (long long)host_threads());
    printf("%s%s\n", o->misconfigured ? " misconfigured: " : "",
           o->misconfigured ? o->misconfigured : "");
    unload_model(&l);
    return 0;
}
