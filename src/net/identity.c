/* The name in a node's certificate: baton://CLUSTER/ROLE/NODE-ID. */
#include "net/tls.h"

#include <stdio.h>
#include <string.h>

#define SCHEME "baton://"

static bool is_name(const char *s, size_t len, size_t size)
{
    if (len == 0 || len >= size)
        return false;
    for (size_t i = 0; i < len; i++) {
        const char c = s[i];
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
              c == '.' || c == '_' || c == '-'))
            return false;
    }
    return true;
}

enum status net_identity_parse(const char *uri, size_t len, struct net_identity *out)
{
    struct net_identity who = {0};
    struct {
        char *to;
        size_t size;
    } const parts[] = {{who.cluster, sizeof who.cluster},
                       {who.role, sizeof who.role},
                       {who.node_id, sizeof who.node_id}};
    const char *at = uri + strlen(SCHEME), *const end = uri + len;

    if (len < strlen(SCHEME) || memcmp(uri, SCHEME, strlen(SCHEME)))
        return fail(STATUS_BAD_CERTIFICATE, "the name does not begin with " SCHEME);
    for (int i = 0; i < 3; i++) {
        const char *slash = i < 2 ? memchr(at, '/', (size_t)(end - at)) : end;
        const char *stop = slash ? slash : end;
        if (!slash || !is_name(at, (size_t)(stop - at), parts[i].size))
            return fail(STATUS_BAD_CERTIFICATE,
                        "the name is not " SCHEME "CLUSTER/ROLE/NODE-ID with letters, digits, "
                        "'.', '_' and '-'");
        memcpy(parts[i].to, at, (size_t)(stop - at));
        at = stop + 1;
    }
    *out = who;
    return STATUS_OK;
}

enum status net_identity_write(const struct net_identity *who, char out[192])
{
    struct net_identity same;

    snprintf(out, 192, SCHEME "%s/%s/%s", who->cluster, who->role, who->node_id);
    if (net_identity_parse(out, strlen(out), &same) != STATUS_OK)
        return fail(STATUS_USAGE,
                    "\"%s\", \"%s\" and \"%s\" must be letters, digits, '.', '_' and '-' (63, 15 "
                    "and 63 at most)",
                    who->cluster, who->role, who->node_id);
    return STATUS_OK;
}
