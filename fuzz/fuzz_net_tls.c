/* What a stranger may send to a port that speaks TLS, before and during the handshake, and names in
 * certificates. The first byte picks: a name; bytes as they are; or a real handshake of which the
 * input cuts, changes and repeats bytes. Whatever comes, nothing is given up before the other side
 * has shown who it is, and what is given up is what was sent. */
#include "net/certificate.h"
#include "net/tls_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CHECK(x)                                                                                   \
    do {                                                                                           \
        if (!(x))                                                                                  \
            abort();                                                                               \
    } while (0)

static struct tls_context *node, *https;

static void put(const char *dir, const char *name, struct buffer *pem)
{
    char path[128];

    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    CHECK(f && fwrite(pem->data, 1, pem->len, f) == pem->len);
    fclose(f);
    CHECK(chmod(path, 0600) == 0);
    buffer_clear(pem);
}

static void start(void)
{
    static const struct net_identity who = {"house", "decode", "decode-0"};
    struct buffer ca = {0}, ca_key = {0}, cert = {0}, key = {0}, text = {0};
    char dir[] = "/tmp/baton-fuzz-XXXXXX", paths[3][128];

    CHECK(mkdtemp(dir));
    CHECK(certificate_make_authority("house", 10, &ca, &ca_key) == STATUS_OK);
    CHECK(certificate_issue(ca.data, ca_key.data, &who, -60, 86400, &cert, &key) == STATUS_OK);
    buffer_append(&text, ca.data, ca.len);
    put(dir, "ca", &text);
    put(dir, "crt", &cert);
    put(dir, "key", &key);
    snprintf(paths[0], sizeof paths[0], "%s/ca", dir);
    snprintf(paths[1], sizeof paths[1], "%s/crt", dir);
    snprintf(paths[2], sizeof paths[2], "%s/key", dir);
    struct tls_options o = {.ca_file = paths[0],
                            .cert_file = paths[1],
                            .key_file = paths[2],
                            .flags = {"ca", "crt", "key"},
                            .rekey_bytes = 100};
    CHECK(tls_context_create(&o, &node) == STATUS_OK);
    o.ca_file = NULL;
    CHECK(tls_context_create(&o, &https) == STATUS_OK);
    for (int i = 0; i < 3; i++)
        unlink(paths[i]);
    rmdir(dir);
    buffer_deinit(&ca);
    buffer_deinit(&ca_key);
    buffer_deinit(&cert);
    buffer_deinit(&key);
    buffer_deinit(&text);
}

static void identity(const uint8_t *data, size_t size)
{
    struct net_identity who, again;
    char text[192];
    char *exact = malloc(size + !size); /* a sanitizer sees a byte too far */

    memcpy(exact, data, size);
    if (net_identity_parse(exact, size, &who) == STATUS_OK) {
        CHECK(net_identity_write(&who, text) == STATUS_OK);
        CHECK(strlen(text) == size && !memcmp(text, exact, size));
        CHECK(net_identity_parse(text, size, &again) == STATUS_OK);
        CHECK(!memcmp(&who, &again, sizeof who));
    }
    free(exact);
}

struct side {
    struct tls_session *s;
    bool done;
    enum status status;
    struct buffer got;
};

static void give(struct side *to, const void *bytes, size_t n)
{
    char *room = n ? tls_session_room(to->s, n) : NULL;

    if (!room)
        return;
    memcpy(room, bytes, n);
    tls_session_arrived(to->s, n);
    if (to->status != STATUS_OK)
        return;
    if (!to->done)
        to->status = tls_session_handshake(to->s, &to->done);
    for (size_t k = 1; to->done && k && to->status == STATUS_OK;) {
        to->status = tls_session_read(to->s, buffer_reserve(&to->got, 1000), 1000, &k);
        to->got.len += k;
    }
}

static void raw(struct tls_context *c, const uint8_t *data, size_t size)
{
    struct side server = {0};

    CHECK(tls_session_create(c, true, &server.s) == STATUS_OK);
    while (size) {
        const size_t n = data[0] % 64 + 1 < size ? data[0] % 64u + 1 : size;
        give(&server, data, n);
        data += n;
        size -= n;
    }
    CHECK(!server.done && !server.got.len && !tls_session_identity(server.s));
    CHECK(tls_session_out(server.s)->len < 65536);
    tls_session_destroy(&server.s);
    buffer_deinit(&server.got);
}

/* The client's bytes pass through the input's hands: each byte of it says what happens next. */
static void mutated(struct tls_context *c, const uint8_t *data, size_t size)
{
    struct side server = {0}, client = {0};
    static const char words[] = "what the client said";
    bool touched = false, said = false;

    CHECK(tls_session_create(c, true, &server.s) == STATUS_OK);
    CHECK(tls_session_create(c, false, &client.s) == STATUS_OK);
    client.status = tls_session_handshake(client.s, &client.done);
    for (int turn = 0; turn < 400; turn++) {
        struct buffer *out = tls_session_out(client.s), *back = tls_session_out(server.s);
        if (client.done && !said && client.status == STATUS_OK) {
            said = true;
            CHECK(tls_session_write(client.s, words, sizeof words) == STATUS_OK);
        }
        if (back->len) {
            give(&client, back->data, back->len);
            buffer_clear(back);
        }
        if (!out->len && !size)
            break;
        const uint8_t what = size ? data[0] : 0;
        if (size) {
            data++;
            size--;
        }
        size_t n = what ? (size_t)what * 3 : out->len;
        n = n < out->len ? n : out->len;
        if (what % 8 == 7 && n) {
            out->data[what / 8 % n] ^= (char)(1 << what % 5);
            touched = true;
        }
        give(&server, out->data, n);
        if (what % 16 == 5 && n) {
            give(&server, out->data, n / 2);
            touched = true;
        }
        buffer_consume(out, n);
    }
    CHECK(server.got.len <= sizeof words &&
          !memcmp(server.got.data ? server.got.data : "", words, server.got.len));
    if (!touched && said)
        CHECK(server.done && server.got.len == sizeof words);
    tls_session_destroy(&server.s);
    tls_session_destroy(&client.s);
    buffer_deinit(&server.got);
    buffer_deinit(&client.got);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!node)
        start();
    if (!size)
        return 0;
    struct tls_context *c = data[0] & 4 ? https : node;
    switch (data[0] % 4) {
    case 0:
        identity(data + 1, size - 1);
        break;
    case 1:
        raw(c, data + 1, size - 1);
        break;
    default:
        mutated(c, data + 1, size - 1);
    }
    return 0;
}
