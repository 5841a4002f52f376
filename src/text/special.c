/* The tokens that a text may contain as written: control tokens such as <|im_end|>, and those the
 * model's makers added. */
#include "base/checked.h"
#include "text/internal.h"

#include <stdlib.h>

/* Longer ones are never recognised: a hostile vocabulary must not make tokenizing quadratic. */
#define MAX_SPECIAL_BYTES 1024

struct special_edge {
    uint32_t node;  /* where it starts; the edge is (node, byte) */
    uint32_t child; /* 0: free (the root is nobody's child) */
    unsigned char byte;
};

static bool is_special(const struct vocabulary *v, uint32_t id)
{
    uint32_t len = v->tokens[id].len;

    return (v->kinds[id] == TOKEN_CONTROL || v->kinds[id] == TOKEN_USER_DEFINED) && len > 0 &&
           len <= MAX_SPECIAL_BYTES;
}

static uint32_t edge_slot(const struct special_trie *t, uint32_t node, unsigned char byte)
{
    uint64_t h = ((uint64_t)node << 8 | byte) * 0x9E3779B97F4A7C15u;
    uint32_t i = (uint32_t)(h >> 32) & t->mask;

    while (t->slots[i].child && (t->slots[i].node != node || t->slots[i].byte != byte))
        i = (i + 1) & t->mask;
    return i;
}

static void add(struct special_trie *t, const struct byte_string *token, uint32_t id)
{
    uint32_t node = 0;

    t->first[(unsigned char)token->bytes[0]] = true;
    for (uint32_t k = 0; k < token->len; k++) {
        uint32_t i = edge_slot(t, node, (unsigned char)token->bytes[k]);
        if (!t->slots[i].child)
            t->slots[i] = (struct special_edge){node, t->n_nodes++, (unsigned char)token->bytes[k]};
        node = t->slots[i].child;
    }
    if (t->token_of_node[node] == NO_TOKEN)
        t->token_of_node[node] = id;
}

enum status special_trie_build(struct special_trie *t, const struct vocabulary *v)
{
    uint64_t bytes = 0;
    uint32_t size = 16;

    for (uint32_t id = 0; id < v->view.n_tokens; id++)
        if (is_special(v, id))
            bytes += v->tokens[id].len;
    if (bytes > UINT32_MAX / 4)
        return fail(STATUS_BAD_MODEL, "the special tokens have %llu bytes",
                    (unsigned long long)bytes);
    while (size < 2 * bytes)
        size *= 2;
    t->slots = memory_alloc(size, sizeof *t->slots);
    t->token_of_node = memory_alloc(bytes + 1, sizeof *t->token_of_node);
    if (!t->slots || !t->token_of_node)
        return STATUS_NO_MEMORY;
    t->mask = size - 1;
    t->n_nodes = 1;
    for (uint64_t i = 0; i <= bytes; i++)
        t->token_of_node[i] = NO_TOKEN;
    for (uint32_t id = 0; id < v->view.n_tokens; id++)
        if (is_special(v, id))
            add(t, &v->tokens[id], id);
    return STATUS_OK;
}

void special_trie_deinit(struct special_trie *t)
{
    free(t->slots);
    free(t->token_of_node);
}

uint32_t special_trie_match(const struct special_trie *t, const char *text, size_t len,
                            uint32_t *out_len)
{
    uint32_t node = 0, found = NO_TOKEN;

    for (size_t k = 0; k < len; k++) {
        node = t->slots[edge_slot(t, node, (unsigned char)text[k])].child;
        if (!node)
            break;
        if (t->token_of_node[node] != NO_TOKEN) {
            found = t->token_of_node[node];
            *out_len = (uint32_t)k + 1;
        }
    }
    return found;
}
