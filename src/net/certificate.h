/* net/certificate: a small authority of one's own, for a cluster's nodes and for tests. EC P-256
 * keys, everything as PEM. Nothing here is needed to serve with certificates made elsewhere. */
#ifndef BATON_NET_CERTIFICATE_H
#define BATON_NET_CERTIFICATE_H

#include "net/tls.h"

/* Both are appended. key: for the authority's owner alone. */
enum status certificate_make_authority(const char *cluster, int64_t days, struct buffer *cert,
                                       struct buffer *key) WARN_UNUSED;
/* A node's certificate, for either end of a connection, valid from from_s to until_s seconds from
 * now. Errors: USAGE when who is no identity or the PEM texts are no authority. */
enum status certificate_issue(const char *authority_cert, const char *authority_key,
                              const struct net_identity *who, int64_t from_s, int64_t until_s,
                              struct buffer *cert, struct buffer *key) WARN_UNUSED;
/* A server's certificate for HTTPS, for names and addresses ("localhost,127.0.0.1"). */
enum status certificate_issue_server(const char *authority_cert, const char *authority_key,
                                     const char *names, int64_t days, struct buffer *cert,
                                     struct buffer *key) WARN_UNUSED;

#endif
