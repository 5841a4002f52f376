/* API keys: who asks, whose cache is whose, and how much at a time.
 *
 * Of a key only two hashes are kept: one to know it by, one that salts the names of its pages, so
 * that no two keys ever share a cached prefix. A key that a reload takes away lives on until its
 * last request has ended. */
#include "api/internal.h"

#include "base/checked.h"
#include "base/log.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

enum { MAX_KEY_BYTES = 256, MAX_LINE_BYTES = 1024, MAX_KEYS = 65536 };

static enum status hash_key(const char *domain, const char *key, size_t len,
                            uint8_t out[REQUEST_DIGEST_BYTES])
{
    struct digest *d = digest_create();

    if (!d)
        return STATUS_NO_MEMORY;
    digest_add(d, domain, strlen(domain) + 1);
    digest_add(d, key, len);
    digest_finish(&d, out);
    return STATUS_OK;
}

/* The same time wherever the first difference is. */
static bool hash_equal(const uint8_t *a, const uint8_t *b)
{
    volatile uint8_t difference = 0;

    for (int i = 0; i < REQUEST_DIGEST_BYTES; i++)
        difference |= a[i] ^ b[i];
    return difference == 0;
}

/* All keys are looked at, so that the time does not tell which one it was. */
static struct api_key *find_hash(struct api_key *list, const uint8_t *hash)
{
    struct api_key *found = NULL;

    for (struct api_key *k = list; k; k = k->next)
        if (hash_equal(k->hash, hash))
            found = k;
    return found;
}

/* ---- reading ---- */

static bool is_key(const char *s, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (s[i] <= ' ' || s[i] > '~')
            return false;
    return len > 0 && len <= MAX_KEY_BYTES;
}

static enum status add_key(struct api_key **list, uint32_t *n, const struct api_key *wanted,
                           const char *key, size_t len)
{
    struct api_key *k = memory_alloc(1, sizeof *k);

    if (!k)
        return STATUS_NO_MEMORY;
    *k = *wanted;
    k->next = *list;
    *list = k; /* the list's owner frees it, whatever follows */
    TRY(hash_key("baton api key", key, len, k->hash));
    TRY(hash_key("baton tenant salt", key, len, k->salt));
    if (++*n > MAX_KEYS)
        return fail(STATUS_USAGE, "there are more than %d keys", MAX_KEYS);
    return find_hash(k->next, k->hash) ? fail(STATUS_USAGE, "a key is there twice") : STATUS_OK;
}

static enum status read_limit(const char *word, uint64_t *out)
{
    char *end;

    errno = 0;
    const unsigned long long v = strtoull(word, &end, 10);
    if (!isdigit((unsigned char)*word) || *end || errno || v > UINT32_MAX)
        return fail(STATUS_USAGE, "\"%s\" is no number", word);
    *out = v;
    return STATUS_OK;
}

/* KEY [NAME] [max-requests=N] [max-tokens=N] */
static enum status read_line(struct api *api, char *line, struct api_key **list, uint32_t *n)
{
    struct api_key k = {.max_requests = api->options.key_max_requests,
                        .max_tokens = api->options.key_max_tokens};
    char *save = NULL;
    const char *key = strtok_r(line, " \t\r\n", &save);

    if (!key || *key == '#')
        return STATUS_OK;
    if (!is_key(key, strlen(key)))
        return fail(STATUS_USAGE, "a key is 1 to %d printable characters without spaces",
                    MAX_KEY_BYTES);
    for (char *word; (word = strtok_r(NULL, " \t\r\n", &save));) {
        if (*word == '#')
            break;
        if (!strncmp(word, "max-requests=", 13))
            TRY(read_limit(word + 13, &k.max_requests));
        else if (!strncmp(word, "max-tokens=", 11))
            TRY(read_limit(word + 11, &k.max_tokens));
        else if (*k.name || !is_key(word, strlen(word)) || strlen(word) >= sizeof k.name)
            return fail(STATUS_USAGE,
                        "behind a key stand a name of at most %zu characters, max-requests=N and "
                        "max-tokens=N",
                        sizeof k.name - 1);
        else
            strcpy(k.name, word);
    }
    return add_key(list, n, &k, key, strlen(key));
}

static enum status read_file(struct api *api, struct api_key **list, uint32_t *n)
{
    const char *path = api->options.key_file;
    char line[MAX_LINE_BYTES], why[300];
    enum status status = STATUS_OK;
    uint32_t n_lines = 0;
    struct stat st;
    FILE *f = fopen(path, "r");

    if (!f)
        return fail(STATUS_USAGE, "--api-key-file: %s: %s", path, strerror(errno));
    if (fstat(fileno(f), &st) == 0 && (st.st_mode & 077))
        log_event(LOG_WARN, "a file of keys that others can read", "file=" LOG_Q " mode=%04o",
                  log_quote(path), (unsigned)st.st_mode & 07777);
    while (status == STATUS_OK && fgets(line, sizeof line, f)) {
        n_lines++;
        status = strlen(line) + 1 == sizeof line
                     ? fail(STATUS_USAGE, "the line is longer than %d bytes", MAX_LINE_BYTES - 2)
                     : read_line(api, line, list, n);
    }
    fclose(f);
    explicit_bzero(line, sizeof line);
    snprintf(why, sizeof why, "%s", status_message());
    if (status != STATUS_OK)
        return fail(status, "--api-key-file: %s, line %u: %s", path, n_lines, why);
    /* an empty file must not open the door to everybody */
    return *n ? STATUS_OK : fail(STATUS_USAGE, "--api-key-file: %s has no key", path);
}

static enum status read_all(struct api *api, struct api_key **list, uint32_t *n)
{
    const struct api_key k = {.name = "",
                              .max_requests = api->options.key_max_requests,
                              .max_tokens = api->options.key_max_tokens};

    for (uint32_t i = 0; i < api->options.n_keys; i++) {
        const char *key = api->options.keys[i];
        if (!is_key(key, strlen(key)))
            return fail(STATUS_USAGE,
                        "--api-key: a key is 1 to %d printable characters without spaces",
                        MAX_KEY_BYTES);
        TRY(add_key(list, n, &k, key, strlen(key)));
    }
    return api->options.key_file ? read_file(api, list, n) : STATUS_OK;
}

/* ---- the table ---- */

void api_key_release(struct api_key *k)
{
    if (k && --k->n_refs == 0)
        free(k);
}

static void free_list(struct api_key **list)
{
    for (struct api_key *k; (k = *list);) {
        *list = k->next;
        free(k);
    }
}

static void let_go_of(struct api_key *list)
{
    for (struct api_key *k = list, *next; k; k = next) {
        next = k->next;
        k->next = NULL;
        api_key_release(k);
    }
}

enum status api_load_keys(struct api *api)
{
    struct api_key *read = NULL, *taken = NULL;
    uint32_t n = 0;
    const enum status status = read_all(api, &read, &n);

    if (status != STATUS_OK) {
        free_list(&read);
        return status;
    }
    /* who is known already keeps what is running; order does not matter */
    for (struct api_key *k; (k = read);) {
        struct api_key *old = find_hash(api->keys, k->hash);
        read = k->next;
        if (old) {
            memcpy(old->name, k->name, sizeof old->name);
            old->max_requests = k->max_requests;
            old->max_tokens = k->max_tokens;
            free(k);
            k = old;
        }
        k->n_refs++;
        /* an old one is still in the old list: its links must stay until that is let go */
        k->next_taken = taken;
        taken = k;
    }
    let_go_of(api->keys);
    api->keys = taken;
    for (struct api_key *k = taken; k; k = k->next)
        k->next = k->next_taken;
    api->n_keys = n;
    return STATUS_OK;
}

void api_forget_keys(struct api *api)
{
    let_go_of(api->keys);
    api->keys = NULL;
}

const char *api_key_given(struct http_exchange *x)
{
    const char *given = http_exchange_header(x, "authorization");

    if (!given || strncasecmp(given, "bearer ", 7))
        return http_exchange_header(x, "x-api-key");
    for (given += 7; *given == ' '; given++)
        ;
    return given;
}

bool api_key_is(const char *given, const char *key)
{
    uint8_t a[REQUEST_DIGEST_BYTES], b[REQUEST_DIGEST_BYTES];

    return hash_key("baton api key", given, strlen(given), a) == STATUS_OK &&
           hash_key("baton api key", key, strlen(key), b) == STATUS_OK && hash_equal(a, b);
}

struct api_key *api_key_of(struct api *api, struct http_exchange *x)
{
    const char *given = api_key_given(x);
    uint8_t hash[REQUEST_DIGEST_BYTES];

    if (!given || hash_key("baton api key", given, strlen(given), hash) != STATUS_OK)
        return NULL;
    return find_hash(api->keys, hash);
}

/* ---- what one key may have running ---- */

enum status api_key_take(struct api_key *k, uint32_t n_requests, uint64_t n_tokens)
{
    if (k->max_requests && k->n_requests + n_requests > k->max_requests)
        return fail(STATUS_RATE_LIMITED,
                    "this key has %u of its %llu requests running; try again when one has ended",
                    k->n_requests, (unsigned long long)k->max_requests);
    if (k->max_tokens && n_tokens > k->max_tokens)
        return fail(STATUS_BAD_REQUEST,
                    "prompt and answer may take %llu tokens, more than this key's %llu",
                    (unsigned long long)n_tokens, (unsigned long long)k->max_tokens);
    if (k->max_tokens && n_tokens > k->max_tokens - MIN(k->n_tokens, k->max_tokens))
        return fail(STATUS_RATE_LIMITED,
                    "prompt and answer may take %llu tokens; of this key's %llu, %llu are taken by "
                    "running requests",
                    (unsigned long long)n_tokens, (unsigned long long)k->max_tokens,
                    (unsigned long long)k->n_tokens);
    k->n_requests += n_requests;
    k->n_tokens += n_tokens;
    return STATUS_OK;
}

void api_key_give_back(struct api_key *k, uint32_t n_requests, uint64_t n_tokens)
{
    k->n_requests -= n_requests;
    k->n_tokens -= n_tokens;
}
