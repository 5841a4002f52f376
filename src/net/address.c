/* HOST:PORT, as flags give it. */
#include "net/internal.h"

#include <netdb.h>
#include <stdio.h>
#include <string.h>

/* The numeric form, with port; IPv6 in brackets. */
static void write_text(struct net_address *a)
{
    char host[64] = "?";

    if (a->sa.ss_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)&a->sa;

        uv_ip6_name(in6, host, sizeof host);
        snprintf(a->text, sizeof a->text, "[%s]:%u", host, ntohs(in6->sin6_port));
    } else {
        const struct sockaddr_in *in = (const struct sockaddr_in *)&a->sa;

        uv_ip4_name(in, host, sizeof host);
        snprintf(a->text, sizeof a->text, "%s:%u", host, ntohs(in->sin_port));
    }
}

void net_address_from_sockaddr(const struct sockaddr *sa, struct net_address *out)
{
    memset(out, 0, sizeof *out);
    memcpy(&out->sa, sa,
           sa->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in));
    write_text(out);
}

static bool parse_port(const char *text, int *out)
{
    int port = 0;

    if (*text == '\0')
        return false;
    for (; *text != '\0'; text++) {
        if (*text < '0' || *text > '9')
            return false;
        port = port * 10 + (*text - '0');
        if (port > 65535)
            return false;
    }
    *out = port;
    return true;
}

static enum status resolve(const char *host, int port, const char *flag, struct net_address *out)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL, *best;
    int rc = getaddrinfo(host, NULL, &hints, &found);

    if (rc != 0)
        return fail(STATUS_USAGE, "%s: cannot resolve host '%s': %s", flag, host, gai_strerror(rc));
    /* IPv4 first: `localhost` then means the same for both ends of a connection. */
    for (best = found; best != NULL && best->ai_family != AF_INET; best = best->ai_next)
        ;
    if (best == NULL)
        best = found;
    if (best->ai_family == AF_INET)
        ((struct sockaddr_in *)best->ai_addr)->sin_port = htons((uint16_t)port);
    else
        ((struct sockaddr_in6 *)best->ai_addr)->sin6_port = htons((uint16_t)port);
    net_address_from_sockaddr(best->ai_addr, out);
    freeaddrinfo(found);
    return STATUS_OK;
}

enum status net_address_parse(const char *text, const char *flag, struct net_address *out)
{
    const char *colon = strrchr(text, ':');
    struct sockaddr_storage sa = {0};
    char host[256];
    size_t host_len;
    int port;

    if (colon == NULL || !parse_port(colon + 1, &port))
        return fail(STATUS_USAGE, "%s: '%s' is not HOST:PORT with a port from 0 to 65535", flag,
                    text);
    host_len = (size_t)(colon - text);
    if (host_len >= sizeof host)
        return fail(STATUS_USAGE, "%s: the host in '%s' is too long", flag, text);
    memcpy(host, text, host_len);
    host[host_len] = '\0';
    if (host_len == 0)
        strcpy(host, "0.0.0.0");
    if (host[0] == '[') {
        if (host[host_len - 1] != ']')
            return fail(STATUS_USAGE, "%s: '%s' has no closing ]", flag, text);
        host[host_len - 1] = '\0';
        if (uv_ip6_addr(host + 1, port, (struct sockaddr_in6 *)&sa) != 0)
            return fail(STATUS_USAGE, "%s: '%s' is not an IPv6 address", flag, host + 1);
    } else if (strchr(host, ':') != NULL) {
        return fail(STATUS_USAGE, "%s: '%s' is ambiguous; write IPv6 addresses as [ADDRESS]:PORT",
                    flag, text);
    } else if (uv_ip4_addr(host, port, (struct sockaddr_in *)&sa) != 0) {
        return resolve(host, port, flag, out);
    }
    net_address_from_sockaddr((const struct sockaddr *)&sa, out);
    return STATUS_OK;
}

bool net_address_is_loopback(const struct net_address *a)
{
    static const struct in6_addr mapped_loopback = {
        {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1}}};

    if (a->sa.ss_family == AF_INET)
        return (ntohl(((const struct sockaddr_in *)&a->sa)->sin_addr.s_addr) >> 24) == 127;
    const struct in6_addr *in6 = &((const struct sockaddr_in6 *)&a->sa)->sin6_addr;
    return memcmp(in6, &in6addr_loopback, sizeof *in6) == 0 ||
           memcmp(in6, &mapped_loopback, sizeof *in6) == 0;
}
