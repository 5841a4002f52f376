/* The one table of `baton serve`'s flags. */
#include "cmd/cmd.h"
#include "cmd/serve.h"

#include "base/checked.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"

#include <stdlib.h>
#include <string.h>

#define AT(field) offsetof(struct serve_options, field)

static const struct flag flags[] = {
    {"--model", "-m", NULL, FLAG_STRING, AT(model), "FILE", 0, 0,
     "GGUF file; a router reads its tokenizer only"},
    {"--ctx-size", "-c", NULL, FLAG_INT, AT(context_tokens), "N", 0, 1 << 24,
     "tokens of one request, prompt and answer; 0: as trained [0]"},
    {"--parallel", "-np", NULL, FLAG_INT, AT(n_slots), "N", 1, 1024,
     "requests that run at a time [16]"},
    {"--threads", "-t", NULL, FLAG_INT, AT(n_threads), "N", 1, 256,
     "compute threads [physical cores]"},
    {"--kv-mem", NULL, NULL, FLAG_BYTES, AT(kv_bytes), "SIZE", 0, 0,
     "memory for keys and values [np x c, at most a quarter of the memory]"},
    {"--host", NULL, NULL, FLAG_STRING, AT(host), "ADDR", 0, 0, "HTTP address [127.0.0.1]"},
    {"--port", NULL, NULL, FLAG_INT, AT(port), "PORT", 0, 65535,
     "HTTP port; 0 takes a free one [8080; prefill 8081, decode 8082]"},
    {"--api-key", NULL, NULL, FLAG_STRINGS, AT(api_keys), "KEY", 0, 0,
     "keys that /v1/* asks for (also BATON_API_KEY) [none]"},
    {"--api-key-file", NULL, NULL, FLAG_STRING, AT(api_key_file), "FILE", 0, 0,
     "more keys, one a line: KEY [NAME] [max-requests=N] [max-tokens=N]; read again on SIGHUP"},
    {"--key-max-requests", NULL, NULL, FLAG_INT, AT(key_max_requests), "N", 0, 1 << 20,
     "requests that one key may have running; more get a 429 [0: any number]"},
    {"--key-max-tokens", NULL, NULL, FLAG_INT, AT(key_max_tokens), "N", 0, UINT32_MAX,
     "tokens of prompts and possible answers that one key may have running [0: any number]"},
    {"--tls-cert", NULL, NULL, FLAG_STRING, AT(tls_cert), "FILE", 0, 0,
     "HTTPS for clients, with this certificate; read again on SIGHUP"},
    {"--tls-key", NULL, NULL, FLAG_STRING, AT(tls_key), "FILE", 0, 0, "and its key"},
    {"--admin", NULL, NULL, FLAG_STRING, AT(admin), "HOST:PORT", 0, 0,
     "hybrid, router: where /admin/* is served; prefill and decode have it on --port"},
    {"--admin-key", NULL, NULL, FLAG_STRING, AT(admin_key), "KEY", 0, 0,
     "key that /admin/* asks for [none: only this host may ask]"},
    {"--alias", "-a", NULL, FLAG_STRINGS, AT(aliases), "NAME", 0, 0,
     "what the model is served as [the file's name]"},
    {"--strict-model", NULL, NULL, FLAG_BOOL, AT(strict_model), NULL, 0, 0,
     "another model name in a request is a 404"},
    {"--node-role", NULL, NULL, FLAG_STRING, AT(role), "ROLE", 0, 0,
     "hybrid, prefill, decode or router [hybrid]"},
    {"--node-id", NULL, NULL, FLAG_STRING, AT(node_id), "ID", 0, 0,
     "what other nodes know this one by [role and a random suffix]"},
    {"--serving-bind", NULL, NULL, FLAG_STRING, AT(serving_bind), "HOST:PORT", 0, 0,
     "prefill, decode: where nodes dial this one"},
    {"--prefill-peers", NULL, NULL, FLAG_STRINGS, AT(prefill_peers), "LIST", 0, 0,
     "router: HOST:PORT of prefill nodes, comma-separated"},
    {"--decode-peers", NULL, NULL, FLAG_STRINGS, AT(decode_peers), "LIST", 0, 0,
     "router, prefill: HOST:PORT of decode nodes"},
    {"--peers", NULL, NULL, FLAG_STRING, AT(peers_file), "FILE", 0, 0,
     "router, prefill: a file of nodes, read again when it changes: lines of \"prefill HOST:PORT\" "
     "and \"decode HOST:PORT\""},
    {"--local-prefill", NULL, NULL, FLAG_INT, AT(local_prefill), "N", 0, 4096,
     "router: a prompt of which at most N tokens are not cached may be read by its decode node "
     "while "
     "prefill nodes are busy; 0: never [32]"},
    {"--policy", NULL, NULL, FLAG_STRING, AT(policy), "POLICY", 0, 0,
     "router: prefix (who has the longest prefix cached, weighed against load), least-loaded or "
     "round-robin [prefix]"},
    {"--require-role", NULL, NULL, FLAG_BOOL, AT(require_role), NULL, 0, 0,
     "exit 2 when the role's flags are incomplete, instead of serving as a single node"},
    {"--roles", NULL, NULL, FLAG_STRING, AT(roles), "NpMd", 0, 0,
     "a whole cluster on this host: this router, N prefill and M decode nodes"},
    {"--cluster-ca", NULL, NULL, FLAG_STRING, AT(cluster_ca), "FILE", 0, 0,
     "authority whose certificates the nodes of this cluster show each other"},
    {"--cluster-cert", NULL, NULL, FLAG_STRING, AT(cluster_cert), "FILE", 0, 0,
     "this node's certificate (baton://CLUSTER/ROLE/NODE-ID); `baton cluster init` makes some"},
    {"--cluster-key", NULL, NULL, FLAG_STRING, AT(cluster_key), "FILE", 0, 0, "and its key"},
    {"--cluster-dir", NULL, NULL, FLAG_STRING, AT(cluster_dir), "DIR", 0, 0,
     "the three above in a folder of `baton cluster init`, by node id; with --roles for the "
     "family"},
    {"--insecure-cluster", NULL, NULL, FLAG_BOOL, AT(insecure_cluster), NULL, 0, 0,
     "link nodes beyond this host without TLS"},
    {"--n-predict", "-n", "--predict", FLAG_INT, AT(n_predict), "N", -1, 1 << 24,
     "answer's length when a request gives none [-1: chat up to the context, completions 16]"},
    {"--temp", NULL, "--temperature", FLAG_DOUBLE, AT(temperature), "T", 0, 100,
     "default temperature [1]"},
    {"--top-k", NULL, NULL, FLAG_INT, AT(top_k), "N", -1, 1 << 24, "default top-k [0: off]"},
    {"--top-p", NULL, NULL, FLAG_DOUBLE, AT(top_p), "P", 0, 1, "default top-p [1]"},
    {"--min-p", NULL, NULL, FLAG_DOUBLE, AT(min_p), "P", 0, 1, "default min-p [0]"},
    {"--repeat-penalty", NULL, "--repetition-penalty", FLAG_DOUBLE, AT(repeat_penalty), "R", 0.01,
     100, "default repetition penalty [1]"},
    {"--frequency-penalty", NULL, NULL, FLAG_DOUBLE, AT(frequency_penalty), "F", -2, 2,
     "default frequency penalty [0]"},
    {"--presence-penalty", NULL, NULL, FLAG_DOUBLE, AT(presence_penalty), "F", -2, 2,
     "default presence penalty [0]"},
    {"--max-queue", NULL, NULL, FLAG_INT, AT(max_queue), "N", 1, 1 << 20,
     "requests that may wait; more get a 429 [1024]"},
    {"--queue-timeout", NULL, NULL, FLAG_INT, AT(queue_timeout_s), "S", 1, 86400,
     "router: seconds a request waits for a node [600]"},
    {"--drain-timeout", NULL, NULL, FLAG_INT, AT(drain_timeout_s), "S", 0, 86400,
     "seconds that running answers get after SIGTERM [25]"},
    {"--step-ms", NULL, NULL, FLAG_INT, AT(step_ms), "MS", 1, 10000,
     "prefill chunks are sized to steps of so many ms [100]"},
    {"--prefill-chunk", NULL, NULL, FLAG_INT, AT(prefill_chunk), "N", 0, SERVE_MAX_CHUNK_TOKENS,
     "exactly so many tokens a chunk; 0: by --step-ms [0]"},
    {"--peer-dead-ms", NULL, NULL, FLAG_INT, AT(dead_ms), "MS", 100, 600000,
     "a peer silent for so long is lost [1000]"},
    {"--peer-stuck-ms", NULL, NULL, FLAG_INT, AT(stuck_ms), "MS", 100, 600000,
     "a busy peer without progress for so long is lost [5000]"},
    {"--lease-ms", NULL, NULL, FLAG_INT, AT(lease_ms), "MS", 500, 600000,
     "decode: a reservation without a sign of life ends [5000]"},
    {"--protocol-max", NULL, NULL, FLAG_INT, AT(protocol_max), "N", 0, 1000,
     "speak at most this version between nodes, as while a cluster is upgraded; 0: the highest "
     "[0]"},
    {"--log-level", NULL, NULL, FLAG_STRING, AT(log_level), "LEVEL", 0, 0,
     "debug, info, warn or error [info]"},
    {"--log-json", NULL, NULL, FLAG_BOOL, AT(log_json), NULL, 0, 0, "logs as JSON lines"},
    {"--check-config", NULL, NULL, FLAG_BOOL, AT(check_config), NULL, 0, 0,
     "say what would run, and exit"},
    {"--help", "-h", NULL, FLAG_BOOL, AT(help), NULL, 0, 0, "this text"},
    {"--n-gpu-layers", "-ngl", NULL, FLAG_IGNORED_VALUE, 0, NULL, 0, 0, ""},
    {"--flash-attn", "-fa", NULL, FLAG_IGNORED, 0, NULL, 0, 0, ""},
    {"--jinja", NULL, NULL, FLAG_IGNORED, 0, NULL, 0, 0, ""},
    {"--cont-batching", "-cb", NULL, FLAG_IGNORED, 0, NULL, 0, 0, ""},
    {"--metrics", NULL, NULL, FLAG_IGNORED, 0, NULL, 0, 0, ""},
    {"--slots", NULL, NULL, FLAG_IGNORED, 0, NULL, 0, 0, ""},
    {"--batch-size", "-b", NULL, FLAG_IGNORED_VALUE, 0, NULL, 0, 0, ""},
    {"--ubatch-size", "-ub", NULL, FLAG_IGNORED_VALUE, 0, NULL, 0, 0, ""},
    {"--no-webui", NULL, NULL, FLAG_IGNORED, 0, NULL, 0, 0, ""},
};

void serve_options_help(FILE *out)
{
    fprintf(out, "usage: baton serve -m FILE [flags]      (also as baton-server)\n\n");
    flags_print(out, flags, ARRAY_LENGTH(flags));
    fprintf(out, "\nEvery flag is also a variable: --ctx-size is BATON_ARG_CTX_SIZE. "
                 "llama-server's -ngl -fa --jinja -cb\n"
                 "--metrics --slots -b -ub --no-webui are accepted and change nothing.\n");
}

static bool is_role(const char *role)
{
    return !strcmp(role, "hybrid") || !strcmp(role, "prefill") || !strcmp(role, "decode") ||
           !strcmp(role, "router");
}

/* Why the flags do not make the role. */
static const char *missing(const struct serve_options *o)
{
    if ((!strcmp(o->role, "prefill") || !strcmp(o->role, "decode")) && !o->serving_bind)
        return "--serving-bind is missing";
    if (o->peers_file)
        return NULL; /* it may name them later */
    if (!strcmp(o->role, "prefill") && !o->decode_peers.n)
        return "--decode-peers is missing";
    if (!strcmp(o->role, "router") && !o->roles && (!o->prefill_peers.n || !o->decode_peers.n))
        return o->prefill_peers.n ? "--decode-peers is missing" : "--prefill-peers is missing";
    return NULL;
}

static enum status work_out(struct serve_options *o)
{
    TRY(router_policy_from_name(o->policy, &o->router_policy));
    if (!o->model)
        return fail(STATUS_USAGE, "no model: give -m FILE or BATON_ARG_MODEL; `make model` fetches "
                                  "a small one into models/");
    if (!is_role(o->role))
        return fail(STATUS_USAGE, "--node-role is hybrid, prefill, decode or router, not \"%s\"",
                    o->role);
    if (o->roles && strcmp(o->role, "hybrid") && strcmp(o->role, "router"))
        return fail(STATUS_USAGE,
                    "--roles makes this process the router; --node-role %s contradicts it",
                    o->role);
    if (o->roles) {
        unsigned n_prefill, n_decode;
        TRY(family_parse(o->roles, &n_prefill, &n_decode));
        o->role = "router";
    }
    o->misconfigured = missing(o);
    if (o->misconfigured && o->require_role)
        return fail(STATUS_USAGE, "role %s: %s (--require-role)", o->role, o->misconfigured);
    if (o->port < 0)
        o->port = !strcmp(o->role, "prefill") ? 8081 : !strcmp(o->role, "decode") ? 8082 : 8080;
    if (strcmp(o->role, "hybrid"))
        TRY(secure_cluster(o));
    if (!o->node_id) {
        char id[40];
        snprintf(id, sizeof id, "%s-%06x", o->role, (unsigned)(random_u64() & 0xffffff));
        o->node_id = memory_strdup(id);
        if (!o->node_id)
            return STATUS_NO_MEMORY;
    }
    if (!node_id_valid(o->node_id, strlen(o->node_id)))
        return fail(STATUS_USAGE,
                    "--node-id is 1 to 63 letters, digits, '.', '_' or '-', not \"%s\"",
                    o->node_id);
    if (!o->api_keys.n && getenv("BATON_API_KEY"))
        o->api_keys.items[o->api_keys.n++] = getenv("BATON_API_KEY");
    return STATUS_OK;
}

enum status serve_options_parse(int argc, char **argv, struct serve_options *out)
{
    static struct serve_options o; /* what it points at is kept to the process's end */

    o = (struct serve_options){
        .n_slots = 16,
        .host = "127.0.0.1",
        .port = -1,
        .role = "hybrid",
        .policy = "prefix",
        .local_prefill = 32,
        .log_level = "info",
        .n_predict = -1,
        .temperature = 1,
        .top_p = 1,
        .repeat_penalty = 1,
        .drain_timeout_s = 25,
        .max_queue = 1024,
        .queue_timeout_s = 600,
        .step_ms = 100,
        .dead_ms = 1000,
        .stuck_ms = 5000,
        .lease_ms = 5000,
    };

    TRY(flags_parse(flags, ARRAY_LENGTH(flags), argc, argv, &o, NULL, NULL, 0, NULL));
    if (!o.help)
        TRY(work_out(&o));
    o.context_given = o.context_tokens > 0;
    if (o.top_k < 0)
        o.top_k = 0;
    *out = o;
    return STATUS_OK;
}
