/* Any bytes through each family's tokenizer and back, and through a text_stream. The first byte
 * chooses family and settings. */
#include "../tests/unit/text/small_vocabulary.h"

static const char *const families[] = {"gpt-2", "smollm", "llama-bpe", "qwen2"};
static struct vocabulary *vocabularies[4];

static void stream(const struct vocabulary *v, const uint32_t *ids, uint32_t n,
                   const uint8_t *settings)
{
    char stop[3] = {(char)(settings[0] & 0x7f), (char)(settings[1] & 0x7f), 0};
    struct byte_string stops[] = {{stop, 2}, {"lo", 2}};
    struct resume resume = {.max_tokens = settings[2],
                            .min_tokens = settings[0] % 4,
                            .ignore_eos = settings[1] & 1,
                            .stops = stops,
                            .n_stops = 2};
    struct text_stream *s;
    struct text_released out = {0};

    if (text_stream_create(v, &resume, 1000, &s) != STATUS_OK)
        return;
    for (uint32_t i = 0; i < n && !out.ended; i++)
        if (text_stream_feed(s, ids[i], &out) != STATUS_OK)
            abort();
    text_stream_destroy(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint32_t *ids = NULL, n = 0;
    struct buffer back = {0};

    if (size < 4)
        return 0;
    uint32_t family = data[0] & 3;
    bool special = data[0] & 4;
    struct vocabulary **v = &vocabularies[family];
    if (!*v)
        *v = small_vocabulary_load(families[family], NULL);
    const char *text = (const char *)data + 4;
    if (vocabulary_encode(*v, text, size - 4, special, 0, &ids, &n) != STATUS_OK ||
        vocabulary_decode(*v, ids, n, true, &back) != STATUS_OK)
        abort();
    if (family != 3 && (back.len != size - 4 ||
                        (back.len && memcmp(back.data, text, back.len)))) /* qwen2 normalises */
        abort();
    stream(*v, ids, n, data + 1);
    free(ids);
    buffer_deinit(&back);
    return 0;
}
