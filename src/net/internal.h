/* net, private: what the files of this room share. */
#ifndef BATON_NET_INTERNAL_H
#define BATON_NET_INTERNAL_H

#include "net/net.h"

#include <stdatomic.h>

struct net_loop {
    uv_loop_t uv;
    uv_async_t wake;
    uv_prepare_t prepare;
    _Atomic(struct net_task *) posted; /* newest first */
    _Atomic int64_t last_turn_ms;
};

/* sa is AF_INET or AF_INET6. */
void net_address_from_sockaddr(const struct sockaddr *sa, struct net_address *out);

#endif
