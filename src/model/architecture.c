/* The families that the decoder runs. */
#include "model/internal.h"

#include <string.h>

/* SmolLM2, Llama 2 and 3, Mistral: q and k rows are stored so that pairs interleave. */
static const struct architecture llama = {
    .name = "llama",
    .rope_halves = false,
    .qk_norm = false,
    .gate = COMPUTE_SILU,
    .rope_base = 10000,
};

static const struct architecture qwen3 = {
    .name = "qwen3",
    .rope_halves = true,
    .qk_norm = true,
    .gate = COMPUTE_SILU,
    .rope_base = 1000000,
};

static const struct architecture *const all[] = {&llama, &qwen3};

const struct architecture *architecture_find(struct gguf_string name)
{
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (name.len == strlen(all[i]->name) && memcmp(name.bytes, all[i]->name, name.len) == 0)
            return all[i];
    return NULL;
}

const char *architecture_names(void)
{
    return "llama, qwen3";
}
