#include "request/request.h"

#include "tensor/tensor.h"

#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

bool request_key_equal(const struct request_key *a, const struct request_key *b)
{
    return a->number == b->number && a->epoch == b->epoch && a->choice == b->choice &&
           !strcmp(a->origin, b->origin);
}

bool node_id_valid(const char *id, size_t len)
{
    if (len == 0 || len >= NODE_ID_BYTES)
        return false;
    for (size_t i = 0; i < len; i++) {
        char c = id[i];
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
              c == '.' || c == '_' || c == '-'))
            return false;
    }
    return true;
}

const char *finish_reason_name(enum finish_reason r)
{
    return r == FINISH_STOP ? "stop" : r == FINISH_LENGTH ? "length" : NULL;
}

enum finish_reason finish_reason_from_name(const char *name, size_t len)
{
    if (len == 4 && !memcmp(name, "stop", 4))
        return FINISH_STOP;
    return len == 6 && !memcmp(name, "length", 6) ? FINISH_LENGTH : FINISH_NONE;
}

struct request *request_create(void)
{
    struct request *r = memory_alloc(1, sizeof *r);

    if (!r)
        return NULL;
    r->attempt = 1;
    r->resume.n_logprobs = r->resume.n_prompt_logprobs = -1;
    r->resume.sampling.top_p = 1;
    r->resume.sampling.repetition_penalty = 1;
    return r;
}

void request_destroy(struct request **r)
{
    if (!*r)
        return;
    arena_deinit(&(*r)->arena);
    free(*r);
    *r = NULL;
}

static void put_u32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

struct page_name page_name(const struct page_name *parent, const struct page_namespace *space,
                           const uint32_t *ids)
{
    uint8_t
        in[PAGE_NAME_BYTES + REQUEST_SALT_BYTES + 2 * REQUEST_DIGEST_BYTES + 1 + 4 * PAGE_TOKENS],
        *p = in;
    uint8_t hash[EVP_MAX_MD_SIZE];
    struct page_name name;

    memset(p, 0, PAGE_NAME_BYTES);
    if (parent)
        memcpy(p, parent->bytes, PAGE_NAME_BYTES);
    p += PAGE_NAME_BYTES;
    memcpy(p, space->salt, REQUEST_SALT_BYTES);
    p += REQUEST_SALT_BYTES;
    memcpy(p, space->model_digest, REQUEST_DIGEST_BYTES);
    p += REQUEST_DIGEST_BYTES;
    memcpy(p, space->tokenizer_digest, REQUEST_DIGEST_BYTES);
    p += REQUEST_DIGEST_BYTES;
    *p++ = space->kv_type;
    for (int i = 0; i < PAGE_TOKENS; i++, p += 4)
        put_u32(p, ids[i]);
    EVP_Digest(in, sizeof in, hash, NULL, EVP_sha256(), NULL);
    memcpy(name.bytes, hash, PAGE_NAME_BYTES);
    return name;
}

uint32_t prefix_filter_bytes(uint32_t n_pages)
{
    uint32_t n = 64;

    while (n < PREFIX_FILTER_BYTES_MAX && n < n_pages + n_pages / 4) /* ten bits a page */
        n *= 2;
    return n;
}

/* A name is a hash already: its four words are four of them. */
static uint32_t filter_bit(const struct page_name *name, int i, uint32_t n_bytes)
{
    const uint8_t *b = name->bytes + (ptrdiff_t)4 * i;
    const uint32_t word = b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;

    return word & (n_bytes * 8 - 1);
}

void prefix_filter_add(uint8_t *filter, uint32_t n_bytes, const struct page_name *name)
{
    for (int i = 0; i < 4; i++) {
        const uint32_t bit = filter_bit(name, i, n_bytes);
        filter[bit / 8] |= (uint8_t)(1u << bit % 8);
    }
}

bool prefix_filter_has(const uint8_t *filter, uint32_t n_bytes, const struct page_name *name)
{
    for (int i = 0; i < 4 && n_bytes; i++) {
        const uint32_t bit = filter_bit(name, i, n_bytes);
        if (!(filter[bit / 8] & 1u << bit % 8))
            return false;
    }
    return n_bytes > 0;
}

struct digest {
    EVP_MD_CTX *context;
};

struct digest *digest_create(void)
{
    struct digest *d = memory_alloc(1, sizeof *d);

    if (!d)
        return NULL;
    d->context = EVP_MD_CTX_new();
    if (!d->context || !EVP_DigestInit_ex(d->context, EVP_sha256(), NULL)) {
        EVP_MD_CTX_free(d->context);
        free(d);
        fail(STATUS_NO_MEMORY, "no memory for a digest");
        return NULL;
    }
    return d;
}

void digest_add(struct digest *d, const void *data, size_t len)
{
    EVP_DigestUpdate(d->context, data, len);
}

void digest_finish(struct digest **pd, uint8_t out[REQUEST_DIGEST_BYTES])
{
    struct digest *d = *pd;

    EVP_DigestFinal_ex(d->context, out, NULL);
    EVP_MD_CTX_free(d->context);
    free(d);
    *pd = NULL;
}
