/* API keys: what a file may say, what a reload changes, whose pages are whose, and the limits. */
#include "api/internal.h"

#include "base/checked.h"
#include "base/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
/* after those above */
#include <cmocka.h>
#undef fail

static char path[64];

static void write_file(const char *text)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    chmod(path, 0600);
}

static struct api_key *named(struct api *api, const char *name)
{
    for (struct api_key *k = api->keys; k; k = k->next)
        if (!strcmp(k->name, name))
            return k;
    return NULL;
}

static uint32_t n_listed(const struct api *api)
{
    uint32_t n = 0;

    for (const struct api_key *k = api->keys; k; k = k->next)
        n++;
    return n;
}

static void test_file(void **state)
{
    struct api api = {.options = {.key_file = path, .key_max_requests = 9}};

    write_file("# the keys of the house\n\n"
               "first alice\n"
               "  second\tbob max-requests=2 max-tokens=1000 # so much\n"
               "third\r\n"
               "last-line-without-an-end zoe max-requests=0");
    assert_int_equal(api_load_keys(&api), STATUS_OK);
    assert_int_equal(api.n_keys, 4);
    assert_int_equal(n_listed(&api), 4);
    assert_int_equal(named(&api, "alice")->max_requests, 9);
    assert_int_equal(named(&api, "bob")->max_requests, 2);
    assert_int_equal(named(&api, "bob")->max_tokens, 1000);
    assert_int_equal(named(&api, "zoe")->max_requests, 0);
    assert_non_null(named(&api, ""));
    /* every tenant has a salt of its own, which is not what it is known by */
    for (struct api_key *a = api.keys; a; a = a->next) {
        assert_memory_not_equal(a->hash, a->salt, sizeof a->salt);
        for (struct api_key *b = a->next; b; b = b->next)
            assert_memory_not_equal(a->salt, b->salt, sizeof a->salt);
    }
    api_forget_keys(&api);
    assert_null(api.keys);
}

static void test_bad_files(void **state)
{
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"", "has no key"},
        {"# none\n\n", "has no key"},
        {"a\na\n", "line 2: a key is there twice"},
        {"a one two\n", "line 1: behind a key"},
        {"a max-requests=-1\n", "\"-1\" is no number"},
        {"a max-tokens=99999999999999999999\n", "is no number"},
        {"a max-tokens=\n", "is no number"},
        {"\n\nk\xc3\xa9y\n", "line 3: a key is 1 to 256"},
        {"a 0123456789012345678901234567890123456789012345678901234567890123456789\n", "a name of"},
    };
    struct api api = {.options = {.key_file = path}};
    char *longest = memory_alloc(1, 2000);

    write_file("good alice\n");
    assert_int_equal(api_load_keys(&api), STATUS_OK);
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        write_file(cases[i].text);
        assert_int_equal(api_load_keys(&api), STATUS_USAGE);
        if (!strstr(status_message(), cases[i].words))
            print_error("%s: %s\n", cases[i].words, status_message());
        assert_non_null(strstr(status_message(), cases[i].words));
        assert_non_null(named(&api, "alice")); /* what was there stays */
        assert_int_equal(api.n_keys, 1);
    }
    memset(longest, 'x', 1999);
    write_file(longest);
    assert_int_equal(api_load_keys(&api), STATUS_USAGE);
    memset(longest + 256, 0, 1);
    write_file(longest);
    assert_int_equal(api_load_keys(&api), STATUS_OK);
    unlink(path);
    assert_int_equal(api_load_keys(&api), STATUS_USAGE);
    assert_int_equal(api.n_keys, 1);
    free(longest);
    api_forget_keys(&api);
}

static void test_reload(void **state)
{
    const char *const flags[] = {"from-the-flag"};
    struct api api = {.options = {.keys = flags, .n_keys = 1, .key_file = path}};

    write_file("one alice\ntwo bob\n");
    assert_int_equal(api_load_keys(&api), STATUS_OK);
    assert_int_equal(n_listed(&api), 3);
    struct api_key *alice = named(&api, "alice"), *bob = named(&api, "bob");
    alice->n_refs++; /* a request of each runs */
    bob->n_refs++;
    assert_int_equal(api_key_take(alice, 1, 10), STATUS_OK);
    assert_int_equal(api_key_take(bob, 1, 10), STATUS_OK);
    write_file("three carol\none alice-again max-requests=1\n");
    assert_int_equal(api_load_keys(&api), STATUS_OK);
    assert_int_equal(n_listed(&api), 3);
    assert_ptr_equal(named(&api, "alice-again"), alice); /* the same key: what runs still counts */
    assert_null(named(&api, "bob"));
    assert_int_equal(api_key_take(alice, 1, 1), STATUS_RATE_LIMITED);
    api_key_give_back(alice, 1, 10);
    assert_int_equal(api_key_take(alice, 1, 1), STATUS_OK);
    api_key_give_back(alice, 1, 1);
    api_key_give_back(bob, 1, 10);
    api_key_release(bob); /* its last request: now it goes */
    api_key_release(alice);
    for (int i = 0; i < 20; i++) {
        write_file(i % 2 ? "one alice\n" : "two bob\none alice\nthree carol\n");
        assert_int_equal(api_load_keys(&api), STATUS_OK);
        assert_int_equal(n_listed(&api), i % 2 ? 2 : 4);
        assert_ptr_equal(named(&api, "alice"), alice);
    }
    api_forget_keys(&api);
}

static void test_limits(void **state)
{
    struct api_key k = {.max_requests = 3, .max_tokens = 100};

    assert_int_equal(api_key_take(&k, 2, 60), STATUS_OK);
    assert_int_equal(api_key_take(&k, 2, 1), STATUS_RATE_LIMITED);
    assert_non_null(strstr(status_message(), "2 of its 3 requests"));
    assert_int_equal(api_key_take(&k, 1, 41), STATUS_RATE_LIMITED);
    assert_non_null(strstr(status_message(), "60 are taken"));
    assert_int_equal(api_key_take(&k, 1, 101), STATUS_BAD_REQUEST); /* waiting does not help */
    assert_int_equal(api_key_take(&k, 1, UINT64_MAX), STATUS_BAD_REQUEST);
    assert_int_equal(api_key_take(&k, 1, 40), STATUS_OK);
    assert_int_equal(k.n_requests, 3);
    assert_int_equal(k.n_tokens, 100);
    k.max_tokens = 50; /* a reload lowered it */
    api_key_give_back(&k, 1, 40);
    assert_int_equal(api_key_take(&k, 1, 1), STATUS_RATE_LIMITED);
    api_key_give_back(&k, 2, 60);
    assert_int_equal(k.n_requests, 0);
    k.max_requests = k.max_tokens = 0;
    assert_int_equal(api_key_take(&k, 1000, 1u << 30), STATUS_OK);
}

int main(void)
{
    const struct log_options quiet = {.level = LOG_ERROR + 1};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_file),
        cmocka_unit_test(test_bad_files),
        cmocka_unit_test(test_reload),
        cmocka_unit_test(test_limits),
    };

    log_setup(&quiet);
    snprintf(path, sizeof path, "/tmp/baton-keys-%d", (int)getpid());
    const int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return n_failed;
}
