/* A cluster's certificates in a folder of their own, for tests of TLS. After cmocka.h. */
#ifndef TESTS_SUPPORT_CERTIFICATES_H
#define TESTS_SUPPORT_CERTIFICATES_H

#include "net/certificate.h"
#include "net/tls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char certificates_dir[64];

static inline void certificates_write(const char *name, const char *kind, struct buffer *pem)
{
    char path[160];

    snprintf(path, sizeof path, "%s/%s.%s", certificates_dir, name, kind);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(pem->data, 1, pem->len, f), pem->len);
    fclose(f);
    assert_int_equal(chmod(path, 0600), 0);
}

struct test_authority {
    char name[32];
    struct buffer cert, key;
};

static inline void authority_make(struct test_authority *a, const char *name)
{
    if (!*certificates_dir) {
        strcpy(certificates_dir, "/tmp/baton-certificates-XXXXXX");
        assert_non_null(mkdtemp(certificates_dir));
    }
    snprintf(a->name, sizeof a->name, "%s", name);
    assert_int_equal(certificate_make_authority(name, 10, &a->cert, &a->key), STATUS_OK);
    certificates_write(name, "ca", &a->cert);
}

/* A file NODE.crt and NODE.key of that authority. */
static inline void authority_issue(struct test_authority *a, const char *file, const char *cluster,
                                   const char *role, const char *node_id, int64_t from_s,
                                   int64_t until_s)
{
    struct net_identity who = {0};
    struct buffer cert = {0}, key = {0};

    snprintf(who.cluster, sizeof who.cluster, "%s", cluster);
    snprintf(who.role, sizeof who.role, "%s", role);
    snprintf(who.node_id, sizeof who.node_id, "%s", node_id);
    assert_int_equal(
        certificate_issue(a->cert.data, a->key.data, &who, from_s, until_s, &cert, &key),
        STATUS_OK);
    certificates_write(file, "crt", &cert);
    certificates_write(file, "key", &key);
    buffer_deinit(&cert);
    buffer_deinit(&key);
}

/* What a process with those files has; status for those that must not be taken. */
static inline enum status context_try(const char *authority, const char *file, uint64_t rekey_bytes,
                                      struct tls_context **out)
{
    char ca[160], crt[160], key[160];
    const struct tls_options o = {
        .ca_file = authority ? ca : NULL,
        .cert_file = crt,
        .key_file = key,
        .flags = {"--cluster-ca", "--cluster-cert", "--cluster-key"},
        .rekey_bytes = rekey_bytes,
    };

    snprintf(ca, sizeof ca, "%s/%s.ca", certificates_dir, authority ? authority : "");
    snprintf(crt, sizeof crt, "%s/%s.crt", certificates_dir, file);
    snprintf(key, sizeof key, "%s/%s.key", certificates_dir, file);
    return tls_context_create(&o, out);
}

static inline struct tls_context *context_of(const char *authority, const char *file)
{
    struct tls_context *c = NULL;

    assert_int_equal(context_try(authority, file, 0, &c), STATUS_OK);
    return c;
}

static inline void authority_deinit(struct test_authority *a)
{
    buffer_deinit(&a->cert);
    buffer_deinit(&a->key);
}

static inline void certificates_remove(void)
{
    char command[128];

    if (!*certificates_dir)
        return;
    snprintf(command, sizeof command, "rm -r '%s'", certificates_dir);
    assert_int_equal(system(command), 0);
    *certificates_dir = 0;
}

#endif
