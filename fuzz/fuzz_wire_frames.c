/* Every decoder of wire/: whatever comes, it is refused in words or gives what can be written down
 * and read again as the same. The first byte chooses: a stream of frames as they are, one frame
 * whose type, JSON and tail are the input's, or a KV header. */
#include "../tests/unit/wire/wire_tests.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CHECK(x)                                                                                   \
    do {                                                                                           \
        if (!(x))                                                                                  \
            abort();                                                                               \
    } while (0)

/* What was read once reads again as the same bytes. (Not so the input itself: unknown members and
 * defaults are gone.) */
static void decode_frame(const struct wire_frame *f)
{
    struct buffer once = {0}, twice = {0};
    struct arena a = {0};
    struct wire_frame g;
    size_t used = 0;

    if (decode_any(f, &a, &once) == STATUS_OK && once.len) {
        CHECK(wire_frame_parse((const uint8_t *)once.data, once.len, &g, &used) == STATUS_OK);
        CHECK(used > 0 && g.type == f->type);
        if (used == once.len) { /* results may have come to fill several frames */
            CHECK(decode_any(&g, &a, &twice) == STATUS_OK);
            CHECK(once.len == twice.len && !memcmp(once.data, twice.data, once.len));
        }
    } else {
        CHECK(status_message()[0]);
    }
    arena_deinit(&a);
    buffer_deinit(&once);
    buffer_deinit(&twice);
}

static void decode_stream(const uint8_t *data, size_t size)
{
    struct wire_frame f;
    size_t used;

    for (size_t at = 0; wire_frame_parse(data + at, size - at, &f, &used) == STATUS_OK && used;
         at += used)
        decode_frame(&f);
}

/* type, JSON length, then both parts: so that a mutation need not repair lengths. */
static void decode_parts(const uint8_t *data, size_t size)
{
    static const uint16_t types[] = {1, 2, 3, 4, 5, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26};

    if (size < 3)
        return;
    const uint32_t json_len = (uint32_t)MIN((size_t)(data[1] | data[2] << 8), size - 3);
    const struct wire_frame f = {.type = types[data[0] % ARRAY_LENGTH(types)],
                                 .json = (const char *)data + 3,
                                 .json_len = json_len,
                                 .tail = data + 3 + json_len,
                                 .tail_len = (uint32_t)(size - 3 - json_len)};
    decode_frame(&f);
}

static void decode_kv(const uint8_t *data, size_t size)
{
    uint8_t bytes[WIRE_KV_HEADER_BYTES] = {0};
    struct wire_kv_header h;

    memcpy(bytes, data, MIN(size, sizeof bytes));
    if (wire_decode_kv_header(bytes, &h) != STATUS_OK) {
        CHECK(status_message()[0]);
        wire_encode_kv_header(bytes, &(struct wire_kv_header){.handle = size ? data[0] : 0});
        CHECK(wire_decode_kv_header(bytes, &h) == STATUS_OK);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    switch (data[0] % 3) {
    case 0:
        decode_stream(data + 1, size - 1);
        break;
    case 1:
        decode_parts(data + 1, size - 1);
        break;
    default:
        decode_kv(data + 1, size - 1);
    }
    return 0;
}
