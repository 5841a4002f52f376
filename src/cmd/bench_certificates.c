/* Certificates for an hour, for the two processes of baton bench --transfer. */
#include "cmd/bench.h"

#include "base/checked.h"
#include "net/certificate.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static enum status write_file(const char *dir, const char *name, const struct buffer *text)
{
    char path[96];

    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wx");
    const bool written = f && fwrite(text->data, 1, text->len, f) == text->len;
    if ((f && fclose(f)) || !written)
        return fail(STATUS_IO, "%s: %s", path, strerror(errno));
    return STATUS_OK;
}

static enum status make_certificates(const char *dir)
{
    struct buffer ca = {0}, ca_key = {0};
    enum status status;

    TRY_GOTO(done, certificate_make_authority("bench", 1, &ca, &ca_key));
    TRY_GOTO(done, write_file(dir, "ca.crt", &ca));
    for (int i = 0; i < 2; i++) {
        struct net_identity who = {.cluster = "bench"};
        struct buffer cert = {0}, key = {0};
        char name[32];
        snprintf(who.role, sizeof who.role, i ? "prefill" : "decode");
        snprintf(who.node_id, sizeof who.node_id, i ? "prefill-0" : "decode-0");
        status = certificate_issue(ca.data, ca_key.data, &who, -60, 3600, &cert, &key);
        snprintf(name, sizeof name, "%s.crt", who.role);
        if (status == STATUS_OK)
            status = write_file(dir, name, &cert);
        snprintf(name, sizeof name, "%s.key", who.role);
        if (status == STATUS_OK)
            status = write_file(dir, name, &key);
        buffer_deinit(&cert);
        buffer_deinit(&key);
        if (status != STATUS_OK)
            goto done;
    }
done:
    buffer_deinit(&ca);
    buffer_deinit(&ca_key);
    return status;
}

static enum status load_certificates(const char *dir, bool sends, struct tls_context **out)
{
    const char *role = sends ? "prefill" : "decode";
    char ca[96], cert[96], key[96];
    const struct tls_options o = {.ca_file = ca,
                                  .cert_file = cert,
                                  .key_file = key,
                                  .flags = {"--transfer", "--transfer", "--transfer"}};

    snprintf(ca, sizeof ca, "%s/ca.crt", dir);
    snprintf(cert, sizeof cert, "%s/%s.crt", dir, role);
    snprintf(key, sizeof key, "%s/%s.key", dir, role);
    return tls_context_create(&o, out);
}

static void remove_certificates(const char *dir)
{
    static const char *const names[] = {"ca.crt", "decode.crt", "decode.key", "prefill.crt",
                                        "prefill.key"};
    char path[96];

    for (uint32_t i = 0; i < ARRAY_LENGTH(names); i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
    rmdir(dir);
}

enum status bench_certificates(struct tls_context *contexts[2])
{
    const char *tmp = getenv("TMPDIR");
    char dir[64];
    enum status status;

    if (snprintf(dir, sizeof dir, "%s/baton-bench-XXXXXX", tmp && *tmp ? tmp : "/tmp") >=
            (int)sizeof dir ||
        !mkdtemp(dir))
        return fail(STATUS_IO, "%s: %s", dir, strerror(errno));
    umask(077);
    status = make_certificates(dir);
    for (int sends = 0; status == STATUS_OK && sends < 2; sends++)
        status = load_certificates(dir, sends, &contexts[sends]);
    remove_certificates(dir);
    return status;
}
