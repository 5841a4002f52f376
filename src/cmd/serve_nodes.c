/* The node or router of a server: made of its options once the model is there, and linked. */
#include "cmd/server.h"

#include "base/checked.h"
#include "base/log.h"

static void fingerprint(const struct loaded *l, char out[24])
{
    uint8_t hash[REQUEST_DIGEST_BYTES] = {0};
    struct digest *d = digest_create();

    if (d) {
        digest_add(d, l->model_digest, sizeof l->model_digest);
        digest_add(d, l->tokenizer_digest, sizeof l->tokenizer_digest);
        digest_add(d, l->numerics_digest, sizeof l->numerics_digest);
        digest_finish(&d, hash);
    }
    size_t n = (size_t)snprintf(out, 24, "fp_");
    for (int i = 0; i < 8; i++)
        n += (size_t)snprintf(out + n, 24 - n, "%02x", hash[i]);
}

static struct peer_limits peer_limits(const struct serve_options *o)
{
    struct peer_limits l = peer_limits_default;

    l.dead_ms = (uint32_t)o->dead_ms;
    l.stuck_ms = (uint32_t)o->stuck_ms;
    l.ping_ms = MIN(l.ping_ms, l.dead_ms / 5);
    return l;
}

/* Nodes of one role: what the file names, and what flags name for good. */
struct named {
    struct net_address items[2 * PEERS_MAX];
    uint32_t n;
};

/* What flags name: resolved at the start, once, since names may take long. */
static struct named flagged_prefill, flagged_decode;

static enum status resolve(const struct flag_strings *names, const char *flag, struct named *out)
{
    for (out->n = 0; out->n < names->n && out->n < ARRAY_LENGTH(out->items); out->n++)
        TRY(net_address_parse(names->items[out->n], flag, &out->items[out->n]));
    return STATUS_OK;
}

static enum status gather(const struct server *s, const struct peer_addresses *in_file,
                          const struct named *fixed, struct named *out)
{
    out->n = 0;
    for (uint32_t i = 0; i < in_file->n; i++) {
        TRY(secure_address(&s->options, &in_file->items[i], "--peers"));
        out->items[out->n++] = in_file->items[i];
    }
    for (uint32_t i = 0; i < fixed->n && out->n < ARRAY_LENGTH(out->items); i++)
        out->items[out->n++] = fixed->items[i];
    return STATUS_OK;
}

/* All of what the file says, or nothing of it. */
static enum status dial_named(struct server *s, const struct peers *p)
{
    static struct named prefill, decode; /* large; the loop's thread alone is here */
    struct peer_hub *hub = s->router ? router_hub(s->router) : node_hub(s->node);

    TRY(gather(s, &p->prefill, &flagged_prefill, &prefill));
    TRY(gather(s, &p->decode, &flagged_decode, &decode));
    if (s->router)
        TRY(peer_hub_dial_only(hub, "prefill", prefill.items, prefill.n, false));
    return peer_hub_dial_only(hub, "decode", decode.items, decode.n, !s->router);
}

static void peers_changed(void *context, const struct peers *p)
{
    if (dial_named(context, p) != STATUS_OK)
        log_event(LOG_ERROR, "peers not dialled", "error=" LOG_Q, log_quote(status_message()));
}

static enum status watch_peers(struct server *s)
{
    if (!s->options.peers_file)
        return STATUS_OK;
    return peers_watch_start(&s->peers, s->loop, s->options.peers_file, peers_changed, s);
}

static enum status dial_all(struct peer_hub *hub, const struct named *peers, const char *role,
                            bool with_bulk)
{
    for (uint32_t i = 0; i < peers->n; i++)
        TRY(peer_hub_dial(hub, &peers->items[i], role, with_bulk));
    return STATUS_OK;
}

enum status server_start_node(struct server *s)
{
    const struct serve_options *o = &s->options;
    struct loaded *l = &s->loaded;
    struct kv_plan kv;

    TRY(plan_kv(&l->limits, o->context_tokens, o->context_given, (uint32_t)o->n_slots, o->kv_bytes,
                &kv));
    s->n_pages = kv.n_pages;
    struct node_options n = {
        .role = server_is(s, "prefill")  ? NODE_PREFILL
                : server_is(s, "decode") ? NODE_DECODE
                                         : NODE_HYBRID,
        .node_id = o->node_id,
        .misconfigured = o->misconfigured,
        .loop = s->loop,
        .metrics = s->metrics,
        .engine = {.model = l->model,
                   .compute = l->compute,
                   .vocabulary = l->vocabulary,
                   .n_slots = (uint32_t)o->n_slots,
                   .n_pages = kv.n_pages,
                   .max_context_tokens = kv.context_tokens,
                   .max_chunk_tokens = SERVE_MAX_CHUNK_TOKENS,
                   .fixed_chunk_tokens = (uint32_t)o->prefill_chunk,
                   .target_step_ms = (uint32_t)o->step_ms},
        .hello = {.has_model = true,
                  .has_tokenizer = true,
                  .kv = l->limits.kv,
                  .kv_type = KV_TYPE_F16,
                  .max_context_tokens = kv.context_tokens,
                  .n_slots = (uint32_t)o->n_slots,
                  .n_pages = kv.n_pages},
        .limits = peer_limits(o),
        .version_max = (uint32_t)o->protocol_max,
        .tls = o->cluster_tls,
        .lease_ms = (uint32_t)o->lease_ms,
        .max_waiting = (uint32_t)o->max_queue,
    };
    n.engine.names.kv_type = KV_TYPE_F16;
    memcpy(n.engine.names.model_digest, l->model_digest, REQUEST_DIGEST_BYTES);
    memcpy(n.engine.names.tokenizer_digest, l->tokenizer_digest, REQUEST_DIGEST_BYTES);
    memcpy(n.hello.model_digest, l->model_digest, REQUEST_DIGEST_BYTES);
    memcpy(n.hello.tokenizer_digest, l->tokenizer_digest, REQUEST_DIGEST_BYTES);
    memcpy(n.hello.numerics_digest, l->numerics_digest, REQUEST_DIGEST_BYTES);
    fingerprint(l, n.hello.fingerprint);
    TRY(node_create(&n, &s->node));
    if (s->serving_listener)
        peer_hub_listen(node_hub(s->node), s->serving_listener);
    if (server_is(s, "prefill")) {
        TRY(resolve(&o->decode_peers, "--decode-peers", &flagged_decode));
        TRY(dial_all(node_hub(s->node), &flagged_decode, "decode", true));
        TRY(watch_peers(s));
    }
    api_set_service(s->api, node_service(s->node), l->vocabulary);
    return STATUS_OK;
}

enum status server_start_router(struct server *s)
{
    const struct serve_options *o = &s->options;
    struct router_options r = {
        .node_id = o->node_id,
        .loop = s->loop,
        .metrics = s->metrics,
        .vocabulary = s->loaded.vocabulary,
        .max_context_tokens = s->loaded.limits.trained_context_tokens,
        .limits = peer_limits(o),
        .tls = o->cluster_tls,
        .policy = o->router_policy,
        .max_local_tokens = (uint32_t)o->local_prefill,
        .version_max = (uint32_t)o->protocol_max,
        .max_waiting = (uint32_t)o->max_queue,
        .max_journal_bytes = (uint64_t)256 << 20,
        .queue_timeout_ms = (uint32_t)o->queue_timeout_s * 1000,
    };

    memcpy(r.tokenizer_digest, s->loaded.tokenizer_digest, sizeof r.tokenizer_digest);
    TRY(router_create(&r, &s->router));
    TRY(resolve(&o->prefill_peers, "--prefill-peers", &flagged_prefill));
    TRY(resolve(&o->decode_peers, "--decode-peers", &flagged_decode));
    TRY(dial_all(router_hub(s->router), &flagged_prefill, "prefill", false));
    TRY(dial_all(router_hub(s->router), &flagged_decode, "decode", false));
    TRY(watch_peers(s));
    api_set_service(s->api, router_service(s->router), s->loaded.vocabulary);
    return STATUS_OK;
}
