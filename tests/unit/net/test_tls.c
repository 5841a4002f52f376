/* TLS: sessions whose bytes are cut anywhere, the transport over memory and over TCP, and who is
 * not let in. */
#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"
#include "net/tls_internal.h"
#include "net/transport.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
/* after those above */
#include <cmocka.h>
#undef fail
#include "../support/certificates.h"

static struct test_authority house, other;
static struct net_loop *loop;
static uint64_t random_state = 88172645463325252u;

static uint32_t draw(uint32_t below)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 11) % below;
}

static int make_certificates(void **state)
{
    const struct log_options quiet = {.level = LOG_ERROR + 1};
    const int64_t day = 86400;

    log_setup(&quiet);
    authority_make(&house, "house");
    authority_make(&other, "other");
    authority_issue(&house, "router", "house", "router", "router-0", -60, day);
    authority_issue(&house, "decode", "house", "decode", "decode-0", -60, day);
    authority_issue(&house, "expired", "house", "decode", "decode-0", -2 * day, -day);
    authority_issue(&house, "early", "house", "decode", "decode-0", day, 2 * day);
    authority_issue(&house, "foreign", "garden", "decode", "decode-0", -60, day);
    authority_issue(&other, "stranger", "house", "decode", "decode-0", -60, day);
    return net_loop_create(&loop) != STATUS_OK;
}

static int remove_certificates(void **state)
{
    net_loop_destroy(&loop);
    authority_deinit(&house);
    authority_deinit(&other);
    certificates_remove();
    return 0;
}

/* ---- names ---- */

static void test_identities(void **state)
{
    static const char *const bad[] = {
        "",
        "baton://",
        "baton://a/b",
        "baton:///b/c",
        "baton://a//c",
        "baton://a/b/",
        "baton://a/b/c/d",
        "baton://a/b/c d",
        "http://a/b/c",
        "baton://a/a-role-of-sixteen/c",
        "baton://a/b/0123456789012345678901234567890123456789012345678901234567890123",
    };
    struct net_identity who, again;
    char text[192];

    for (size_t i = 0; i < ARRAY_LENGTH(bad); i++)
        assert_int_equal(net_identity_parse(bad[i], strlen(bad[i]), &who), STATUS_BAD_CERTIFICATE);
    assert_int_equal(net_identity_parse("baton://x\0/b/c", 14, &who), STATUS_BAD_CERTIFICATE);
    assert_int_equal(net_identity_parse("baton://house/decode/decode-0.a_b", 33, &who), STATUS_OK);
    assert_string_equal(who.cluster, "house");
    assert_string_equal(who.role, "decode");
    assert_string_equal(who.node_id, "decode-0.a_b");
    assert_int_equal(net_identity_write(&who, text), STATUS_OK);
    assert_int_equal(net_identity_parse(text, strlen(text), &again), STATUS_OK);
    assert_memory_equal(&who, &again, sizeof who);
    who.role[0] = '/';
    assert_int_equal(net_identity_write(&who, text), STATUS_USAGE);
}

static void test_contexts(void **state)
{
    static const struct {
        const char *authority, *file, *words;
    } bad[] = {
        {"house", "nobody", "--cluster-cert"},
        {"nobody", "decode", "--cluster-ca"},
        {"other", "decode", "not issued by the authority"},
    };
    struct tls_context *c = NULL;
    char from[160], to[160];

    for (size_t i = 0; i < ARRAY_LENGTH(bad); i++) {
        assert_int_equal(context_try(bad[i].authority, bad[i].file, 0, &c), STATUS_USAGE);
        assert_non_null(strstr(status_message(), bad[i].words));
    }
    /* a key of another certificate, and no key at all */
    snprintf(from, sizeof from, "%s/router.key", certificates_dir);
    snprintf(to, sizeof to, "%s/mixed.key", certificates_dir);
    assert_int_equal(link(from, to), 0);
    snprintf(from, sizeof from, "%s/decode.crt", certificates_dir);
    snprintf(to, sizeof to, "%s/mixed.crt", certificates_dir);
    assert_int_equal(link(from, to), 0);
    assert_int_equal(context_try("house", "mixed", 0, &c), STATUS_USAGE);
    assert_non_null(strstr(status_message(), "not the key of"));
    struct buffer nothing = {0};
    buffer_append_string(&nothing,
                         "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n");
    snprintf(to, sizeof to, "%s/mixed.key", certificates_dir);
    unlink(to);
    certificates_write("mixed", "key", &nothing);
    buffer_deinit(&nothing);
    assert_int_equal(context_try("house", "mixed", 0, &c), STATUS_USAGE);
    assert_non_null(strstr(status_message(), "no private key"));
    /* of no cluster */
    struct buffer cert = {0}, key = {0};
    assert_int_equal(certificate_issue_server(house.cert.data, house.key.data,
                                              "localhost,127.0.0.1", 1, &cert, &key),
                     STATUS_OK);
    certificates_write("server", "crt", &cert);
    certificates_write("server", "key", &key);
    buffer_deinit(&cert);
    buffer_deinit(&key);
    assert_int_equal(context_try("house", "server", 0, &c), STATUS_USAGE);
    assert_non_null(strstr(status_message(), "baton://"));
    c = context_of(NULL, "server");
    assert_null(tls_context_identity(c));
    tls_context_destroy(&c);
    c = context_of("house", "decode");
    assert_string_equal(tls_context_identity(c)->node_id, "decode-0");
    assert_in_range(tls_context_seconds_left(c), 86000, 86400);
    tls_context_destroy(&c);
    c = context_of("house", "expired"); /* the log says it; the others refuse it */
    assert_true(tls_context_seconds_left(c) < 0);
    tls_context_destroy(&c);
}

/* ---- sessions ---- */

struct side {
    struct tls_session *session;
    bool done;
    enum status status;
    char words[200];
    struct buffer sent, got;
};

/* Carries a random piece of one's ciphertext to the other. */
static bool carry(struct side *from, struct side *to, uint32_t max)
{
    struct buffer *out = tls_session_out(from->session);
    const size_t most = draw(max) + 1, n = MIN(most, out->len);

    if (n == 0)
        return false;
    memcpy(tls_session_room(to->session, n), out->data, n);
    tls_session_arrived(to->session, n);
    buffer_consume(out, n);
    return true;
}

static void step(struct side *s)
{
    if (s->status != STATUS_OK)
        return;
    if (!s->done) {
        s->status = tls_session_handshake(s->session, &s->done);
        if (s->status != STATUS_OK)
            snprintf(s->words, sizeof s->words, "%s", status_message());
        return;
    }
    for (size_t n = 1; n && s->status == STATUS_OK;) {
        const size_t room = draw(3) ? draw(40000) + 1 : draw(8) + 1;
        s->status = tls_session_read(s->session, buffer_reserve(&s->got, room), room, &n);
        s->got.len += n;
        if (s->status != STATUS_OK)
            snprintf(s->words, sizeof s->words, "%s", status_message());
    }
}

static void shake(struct side *a, struct side *b, uint32_t max)
{
    for (int i = 0; i < 20000 && !(a->done && b->done); i++) {
        step(a);
        step(b);
        carry(a, b, max);
        carry(b, a, max);
        if ((a->status != STATUS_OK && tls_session_out(a->session)->len == 0) ||
            (b->status != STATUS_OK && tls_session_out(b->session)->len == 0))
            break;
    }
    step(a);
    step(b);
}

static void say(struct side *s)
{
    char text[50000];
    const size_t n = draw(4) ? draw(200) + 1 : draw(sizeof text) + 1;

    for (size_t i = 0; i < n; i++)
        text[i] = (char)draw(256);
    assert_int_equal(tls_session_write(s->session, text, n), STATUS_OK);
    buffer_append(&s->sent, text, n);
}

static void test_sessions_cut_anywhere(void **state)
{
    struct tls_context *ca = NULL, *cb = NULL;

    /* new keys every 100,000 bytes */
    assert_int_equal(context_try("house", "router", 100000, &ca), STATUS_OK);
    assert_int_equal(context_try("house", "decode", 100000, &cb), STATUS_OK);
    for (int round = 0; round < 20; round++) {
        static const uint32_t cuts[] = {1, 7, 100, 3000, 70000};
        const uint32_t max = cuts[round % ARRAY_LENGTH(cuts)];
        struct side a = {0}, b = {0};
        assert_int_equal(tls_session_create(ca, false, &a.session), STATUS_OK);
        assert_int_equal(tls_session_create(cb, true, &b.session), STATUS_OK);
        assert_null(tls_session_identity(a.session));
        shake(&a, &b, max);
        assert_true(a.done && b.done);
        assert_string_equal(tls_session_identity(a.session)->node_id, "decode-0");
        assert_string_equal(tls_session_identity(b.session)->role, "router");
        for (int i = 0; i < 60; i++) {
            say(draw(2) ? &a : &b);
            for (int k = 0; k < 20; k++) {
                carry(&a, &b, max);
                carry(&b, &a, max);
            }
            step(&a);
            step(&b);
        }
        while (carry(&a, &b, 70000) | carry(&b, &a, 70000)) {
            step(&a);
            step(&b);
        }
        assert_int_equal(a.status, STATUS_OK);
        assert_int_equal(b.status, STATUS_OK);
        assert_int_equal(a.sent.len, b.got.len);
        assert_int_equal(b.sent.len, a.got.len);
        assert_memory_equal(a.sent.data, b.got.data, a.sent.len);
        assert_memory_equal(b.sent.data, a.got.data, b.sent.len);
        tls_session_close(&*a.session);
        while (carry(&a, &b, max))
            ;
        step(&b);
        assert_int_equal(b.status, STATUS_PEER_LOST);
        struct side *const sides[] = {&a, &b};
        for (int i = 0; i < 2; i++) {
            tls_session_destroy(&sides[i]->session);
            buffer_deinit(&sides[i]->sent);
            buffer_deinit(&sides[i]->got);
        }
    }
    tls_context_destroy(&ca);
    tls_context_destroy(&cb);
}

/* One bit of a record is another: the connection ends, and nothing of the record is shown. */
static void test_changed_bytes(void **state)
{
    struct tls_context *ca = context_of("house", "router"), *cb = context_of("house", "decode");

    for (int round = 0; round < 200; round++) {
        struct side a = {0}, b = {0};
        assert_int_equal(tls_session_create(ca, false, &a.session), STATUS_OK);
        assert_int_equal(tls_session_create(cb, true, &b.session), STATUS_OK);
        shake(&a, &b, 70000);
        assert_true(a.done && b.done);
        assert_int_equal(tls_session_write(a.session, "a page of keys", 14), STATUS_OK);
        struct buffer *out = tls_session_out(a.session);
        /* not the length field, which would only make the other side wait */
        const uint32_t at = draw((uint32_t)out->len - 5);
        out->data[at < 3 ? at : at + 5 < out->len ? at + 2 : at] ^= (char)(1 << draw(8));
        while (carry(&a, &b, 70000))
            ;
        step(&b);
        assert_int_equal(b.got.len, 0);
        if (b.status == STATUS_OK) /* it waits for a record that is longer now */
            assert_true(tls_session_out(b.session)->len == 0);
        tls_session_destroy(&a.session);
        tls_session_destroy(&b.session);
        buffer_deinit(&a.got);
        buffer_deinit(&b.got);
    }
    tls_context_destroy(&ca);
    tls_context_destroy(&cb);
}

static void test_not_let_in(void **state)
{
    /* what we find as the accepting and as the dialling side; who is accepted by us may refuse us
     * first, since a client sees the server's certificate before it shows its own */
    static const struct {
        const char *authority, *file;
        enum status accepting;
        const char *accepting_words;
        enum status dialling;
        const char *dialling_words;
    } cases[] = {
        {"house", "expired", STATUS_BAD_CERTIFICATE, "expired", STATUS_BAD_CERTIFICATE, "expired"},
        {"house", "early", STATUS_BAD_CERTIFICATE, "not yet valid", STATUS_BAD_CERTIFICATE,
         "not yet valid"},
        {"house", "foreign", STATUS_BAD_CERTIFICATE, "does not accept ours",
         STATUS_IDENTITY_MISMATCH, "decode-0 belongs to the cluster garden"},
        {"other", "stranger", STATUS_BAD_CERTIFICATE, "does not accept ours",
         STATUS_BAD_CERTIFICATE, "issuer"},
    };

    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++)
        for (int accepts = 0; accepts < 2; accepts++) {
            struct tls_context *good = context_of("house", "router");
            struct tls_context *bad = context_of(cases[i].authority, cases[i].file);
            struct side us = {0}, them = {0};
            assert_int_equal(tls_session_create(good, accepts, &us.session), STATUS_OK);
            assert_int_equal(tls_session_create(bad, !accepts, &them.session), STATUS_OK);
            shake(&us, &them, 70000);
            assert_int_equal(us.status, accepts ? cases[i].accepting : cases[i].dialling);
            assert_non_null(
                strstr(us.words, accepts ? cases[i].accepting_words : cases[i].dialling_words));
            assert_false(us.done);
            assert_null(tls_session_identity(us.session));
            assert_int_equal(us.got.len, 0);
            tls_session_destroy(&us.session);
            tls_session_destroy(&them.session);
            buffer_deinit(&us.got);
            buffer_deinit(&them.got);
            tls_context_destroy(&good);
            tls_context_destroy(&bad);
        }
}

static void test_no_tls(void **state)
{
    static const char *const said[] = {
        "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "\x40\x00\x00\x00\x01\x00\x00\x00\x38\x00\x00\x00{\"version_min\":1}",
        "\x16\x03\x01\xff\xff\x01\x00",
        "\x80\x2e\x01\x03\x01",
    };
    struct tls_context *c = context_of("house", "decode");

    for (size_t i = 0; i < ARRAY_LENGTH(said); i++) {
        struct side s = {0};
        const size_t n = i == 1 ? 29 : i == 2 ? 7 : i == 3 ? 5 : strlen(said[i]);
        assert_int_equal(tls_session_create(c, true, &s.session), STATUS_OK);
        memcpy(tls_session_room(s.session, n), said[i], n);
        tls_session_arrived(s.session, n);
        s.status = tls_session_handshake(s.session, &s.done);
        assert_false(s.done);
        if (s.status != STATUS_OK)
            assert_int_equal(s.status, STATUS_TLS_FAILED);
        else
            assert_int_not_equal(i, 0);
        tls_session_destroy(&s.session);
    }
    tls_context_destroy(&c);
}

/* ---- the transport ---- */

struct end {
    struct transport *t;
    struct buffer got;
    size_t max_room;
    uint32_t n_broken, n_writes, n_failed;
    enum status why;
    char words[200];
    size_t close_at; /* bytes; closes itself inside arrived() */
};

struct end_write {
    struct transport_write write; /* first */
    struct end *end;
    char *data;
};

static void end_room(void *context, char **base, size_t *len)
{
    struct end *e = context;

    *len = draw((uint32_t)e->max_room) + 1;
    *base = buffer_reserve(&e->got, *len);
}

static void end_arrived(void *context, size_t n)
{
    struct end *e = context;

    assert_non_null(e->t->identity);
    e->got.len += n;
    if (e->close_at && e->got.len >= e->close_at)
        transport_close(&e->t);
}

static void end_broken(void *context, enum status status)
{
    struct end *e = context;

    e->n_broken++;
    e->why = status;
    snprintf(e->words, sizeof e->words, "%s", status_message());
}

static void end_start(struct end *e)
{
    const struct transport_events events = {
        .room = end_room, .arrived = end_arrived, .broken = end_broken, .context = e};

    e->max_room = 50000;
    transport_start(e->t, &events);
}

static void end_written(struct transport_write *w, enum status status)
{
    struct end_write *r = (struct end_write *)w;

    r->end->n_writes--;
    r->end->n_failed += status != STATUS_OK;
    free(r->data);
    free(r);
}

static void end_send(struct end *e, struct buffer *expected, uint32_t max)
{
    struct end_write *w = memory_alloc(1, sizeof *w);
    struct iovec parts[TRANSPORT_MAX_PARTS];
    const uint32_t n_parts = draw(8) + 1;
    const size_t each = draw(max);
    size_t at = 0;

    w->data = memory_alloc(n_parts * each + 1, 1);
    for (uint32_t i = 0; i < n_parts; i++) {
        const size_t n = draw(5) ? draw((uint32_t)each + 1) : 0;
        for (size_t k = 0; k < n; k++)
            w->data[at + k] = (char)draw(256);
        parts[i] = (struct iovec){.iov_base = w->data + at, .iov_len = n};
        at += n;
    }
    if (expected)
        buffer_append(expected, w->data, at);
    w->write.done = end_written;
    w->end = e;
    e->n_writes++;
    transport_write(e->t, parts, n_parts, &w->write);
}

static void turn(int n)
{
    while (n--)
        net_loop_turn(loop);
}

#define WAIT_FOR(condition)                                                                        \
    do {                                                                                           \
        const int64_t end_ms_ = clock_now_ms() + 20000;                                            \
        while (!(condition)) {                                                                     \
            if (clock_now_ms() > end_ms_) {                                                        \
                print_error("not in 20 s: %s\n", #condition);                                      \
                _fail(__FILE__, __LINE__);                                                         \
            }                                                                                      \
            net_loop_turn(loop);                                                                   \
        }                                                                                          \
    } while (0)

static void pair_over_memory(struct end *a, struct end *b, struct tls_context *ca,
                             struct tls_context *cb)
{
    assert_int_equal(transport_memory_pair(loop, &a->t, &b->t), STATUS_OK);
    assert_int_equal(transport_secure(loop, ca, false, &a->t), STATUS_OK);
    assert_int_equal(transport_secure(loop, cb, true, &b->t), STATUS_OK);
    assert_true(a->t->guarded);
}

static void accepted(void *context, uv_stream_t *listener)
{
    struct end *e = context;

    assert_int_equal(transport_accept_tcp(loop, listener, &e->t), STATUS_OK);
}

static void dialled(void *context, struct transport *t, enum status status)
{
    assert_int_equal(status, STATUS_OK);
    ((struct end *)context)->t = t;
}

static void pair_over_tcp(struct end *a, struct end *b, struct tls_context *ca,
                          struct tls_context *cb)
{
    struct net_address any;
    struct net_listener *listener;
    struct transport_dial *dial;

    assert_int_equal(net_address_parse("127.0.0.1:0", "--test", &any), STATUS_OK);
    assert_int_equal(net_listen(loop, &any, "--test", &listener), STATUS_OK);
    net_listener_accept(listener, accepted, b);
    assert_int_equal(transport_dial_tcp(loop, net_listener_address(listener), dialled, a, &dial),
                     STATUS_OK);
    WAIT_FOR(a->t && b->t);
    net_listener_close(&listener);
    assert_int_equal(transport_secure(loop, ca, false, &a->t), STATUS_OK);
    assert_int_equal(transport_secure(loop, cb, true, &b->t), STATUS_OK);
}

static void end_deinit(struct end *e)
{
    transport_close(&e->t);
    turn(5);
    assert_int_equal(e->n_writes, 0);
    buffer_deinit(&e->got);
}

static void test_transport_carries(void **state)
{
    struct tls_context *ca = context_of("house", "router"), *cb = context_of("house", "decode");

    for (int over_tcp = 0; over_tcp < 2; over_tcp++)
        for (int round = 0; round < 6; round++) {
            struct end a = {0}, b = {0};
            struct buffer to_a = {0}, to_b = {0};
            (over_tcp ? pair_over_tcp : pair_over_memory)(&a, &b, ca, cb);
            assert_null(a.t->identity);
            /* what is written before the handshake, before the start even, is not lost */
            end_send(&a, &to_b, 3000);
            end_start(&a);
            end_start(&b);
            for (int i = 0; i < 80; i++) {
                end_send(&a, &to_b, draw(2) ? 300 : 60000);
                end_send(&b, &to_a, draw(2) ? 300 : 60000);
                if (draw(2))
                    net_loop_turn(loop);
            }
            WAIT_FOR(a.got.len == to_a.len && b.got.len == to_b.len && !a.n_writes && !b.n_writes);
            assert_memory_equal(a.got.data, to_a.data, to_a.len);
            assert_memory_equal(b.got.data, to_b.data, to_b.len);
            assert_int_equal(a.n_failed + b.n_failed + a.n_broken + b.n_broken, 0);
            assert_int_equal(transport_unsent(a.t) + transport_unsent(b.t), 0);
            assert_string_equal(a.t->identity->node_id, "decode-0");
            assert_string_equal(b.t->identity->node_id, "router-0");
            transport_close(&a.t);
            WAIT_FOR(b.n_broken == 1);
            assert_int_equal(b.why, STATUS_PEER_LOST);
            end_deinit(&a);
            end_deinit(&b);
            buffer_deinit(&to_a);
            buffer_deinit(&to_b);
        }
    tls_context_destroy(&ca);
    tls_context_destroy(&cb);
}

/* A reader that does not read: what is encrypted ahead is bounded, and the writes wait. */
static void test_transport_waits(void **state)
{
    struct tls_context *ca = context_of("house", "router"), *cb = context_of("house", "decode");
    struct end a = {0}, b = {0};
    struct buffer to_b = {0};

    pair_over_memory(&a, &b, ca, cb);
    end_start(&a);
    for (int i = 0; i < 64; i++)
        end_send(&a, &to_b, 60000);
    turn(50);
    assert_true(transport_unsent(a.t) >= to_b.len);
    assert_int_equal(a.n_writes, 64);
    end_start(&b);
    WAIT_FOR(b.got.len == to_b.len && a.n_writes == 0);
    assert_memory_equal(b.got.data, to_b.data, to_b.len);
    end_deinit(&a);
    end_deinit(&b);
    buffer_deinit(&to_b);
    tls_context_destroy(&ca);
    tls_context_destroy(&cb);
}

/* One end goes away after any number of turns: the other hears of it once, every write ends. */
static void test_transport_cut(void **state)
{
    struct tls_context *ca = context_of("house", "router"), *cb = context_of("house", "decode");

    for (int round = 0; round < 120; round++) {
        struct end a = {0}, b = {0};
        struct end *const leaves = round % 2 ? &a : &b, *const stays = round % 2 ? &b : &a;
        (round % 4 < 2 ? pair_over_memory : pair_over_tcp)(&a, &b, ca, cb);
        end_start(&a);
        if (round % 5)
            end_start(&b);
        for (int i = 0; i < 4; i++) {
            end_send(&a, NULL, 30000);
            end_send(&b, NULL, 30000);
        }
        if (round % 3 == 0 && round % 5)
            leaves->close_at = draw(40000) + 1; /* inside its own callback */
        turn((int)draw(12));
        transport_close(&leaves->t);
        if (round % 5)
            WAIT_FOR(stays->n_broken == 1);
        turn(5);
        assert_true(stays->n_broken <= 1);
        assert_int_equal(leaves->n_broken, 0);
        end_deinit(&a);
        end_deinit(&b);
    }
    tls_context_destroy(&ca);
    tls_context_destroy(&cb);
}

/* Each side hears why, in words, over a real connection, where a reset could overtake them. */
static void test_transport_refuses(void **state)
{
    static const char *const files[] = {"expired", "foreign", "stranger"};

    for (int i = 0; i < 9; i++) {
        struct tls_context *good = context_of("house", "router");
        struct tls_context *bad = context_of(i % 3 == 2 ? "other" : "house", files[i % 3]);
        struct end a = {0}, b = {0}; /* a has the bad one, and dials */
        pair_over_tcp(&a, &b, bad, good);
        end_start(&a);
        end_start(&b);
        end_send(&a, NULL, 3000);
        WAIT_FOR(a.n_broken && b.n_broken);
        assert_int_equal(a.n_broken + b.n_broken, 2);
        assert_int_equal(b.got.len, 0);
        if (i % 3 == 0) {
            assert_int_equal(b.why, STATUS_BAD_CERTIFICATE);
            assert_non_null(strstr(b.words, "expired"));
            assert_int_equal(a.why, STATUS_BAD_CERTIFICATE);
            assert_non_null(strstr(a.words, "does not accept ours"));
        }
        end_deinit(&a);
        end_deinit(&b);
        tls_context_destroy(&good);
        tls_context_destroy(&bad);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_identities),
        cmocka_unit_test(test_contexts),
        cmocka_unit_test(test_sessions_cut_anywhere),
        cmocka_unit_test(test_changed_bytes),
        cmocka_unit_test(test_not_let_in),
        cmocka_unit_test(test_no_tls),
        cmocka_unit_test(test_transport_carries),
        cmocka_unit_test(test_transport_waits),
        cmocka_unit_test(test_transport_cut),
        cmocka_unit_test(test_transport_refuses),
    };

    signal(SIGPIPE, SIG_IGN); /* as the program does */
    return cmocka_run_group_tests(tests, make_certificates, remove_certificates);
}
