/* net/tls: TLS over bytes that somebody else carries. A session takes ciphertext that arrived and
 * gives plaintext, and the other way round; it knows no socket. transport_secure() makes a
 * transport of it, http/ uses it for HTTPS.
 *
 * Between nodes it is TLS 1.3 with certificates on both sides, each with one name of the form
 * baton://CLUSTER/ROLE/NODE-ID. Nothing that the other side sends is given up before its
 * certificate has been checked. Threads: the loop's only. */
#ifndef BATON_NET_TLS_H
#define BATON_NET_TLS_H

#include "base/memory.h"
#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

/* ---- who a certificate is for ---- */

struct net_identity {
    char cluster[64], role[16], node_id[64];
};
/* Errors: BAD_CERTIFICATE. */
enum status net_identity_parse(const char *uri, size_t len, struct net_identity *out) WARN_UNUSED;
/* Errors: USAGE naming the part that cannot be in a name. */
enum status net_identity_write(const struct net_identity *who, char out[192]) WARN_UNUSED;

/* ---- what a process has to show, and whom it believes ---- */

struct tls_options {
    const char *ca_file; /* NULL: a server for anybody (HTTPS). Else both sides show certificates of
                            this authority, with identities of one cluster */
    const char *cert_file, *key_file; /* PEM; the chain may follow the certificate */
    const char *flags[3];             /* how messages call the three */
    uint64_t rekey_bytes;             /* new keys after so many bytes of one direction; 0: 64 GiB */
};
struct tls_context;
/* Errors: USAGE naming flag and file: not readable, no PEM, certificate and key that do not belong
 * together, without an identity, or not issued by that authority. */
enum status tls_context_create(const struct tls_options *o, struct tls_context **out) WARN_UNUSED;
/* Sessions made of it go on with what they need of it. */
void tls_context_destroy(struct tls_context **c);
/* Our own; NULL without ca_file. */
const struct net_identity *tls_context_identity(const struct tls_context *c);
/* Seconds until our certificate ends, negative when it has. */
int64_t tls_context_seconds_left(const struct tls_context *c);

/* ---- one connection ---- */

struct tls_session;
enum status tls_session_create(struct tls_context *c, bool accepting,
                               struct tls_session **out) WARN_UNUSED;
void tls_session_destroy(struct tls_session **s);

/* Room for ciphertext, len bytes; NULL without memory. Then how much of it was filled. */
char *tls_session_room(struct tls_session *s, size_t len);
void tls_session_arrived(struct tls_session *s, size_t n);
/* Throws away what arrived and has not been looked at: after a failure nobody will. */
void tls_session_discard(struct tls_session *s);
/* Ciphertext that must go out, in order. Whoever sends it takes it from here. */
struct buffer *tls_session_out(struct tls_session *s);

/* As far as it goes with what has arrived. After an error there may be an alert in out.
 * Errors: BAD_CERTIFICATE, IDENTITY_MISMATCH, TLS_FAILED, NO_MEMORY. */
enum status tls_session_handshake(struct tls_session *s, bool *done) WARN_UNUSED;
/* After the handshake. *n 0: more ciphertext is needed. Errors: PEER_LOST (closed in order),
 * BAD_CERTIFICATE (the other side did not take ours), TLS_FAILED. */
enum status tls_session_read(struct tls_session *s, void *base, size_t room, size_t *n) WARN_UNUSED;
/* After the handshake. All of it goes to out. */
enum status tls_session_write(struct tls_session *s, const void *data, size_t len) WARN_UNUSED;
/* Says that nothing follows. */
void tls_session_close(struct tls_session *s);
/* The other side's, after the handshake; NULL without ca_file. */
const struct net_identity *tls_session_identity(const struct tls_session *s);

#endif
