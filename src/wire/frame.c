#include "wire/internal.h"

#include <stdlib.h>
#include <string.h>

const char *wire_type_name(uint32_t type)
{
    switch (type) {
#define X(name, text, number)                                                                      \
    case number:                                                                                   \
        return text;
        WIRE_TYPE_TABLE(X)
#undef X
    }
    return "unknown";
}

static uint32_t get_u32(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static void put_u32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

enum status wire_frame_parse(const uint8_t *bytes, size_t len, struct wire_frame *out, size_t *used)
{
    *used = 0;
    if (len < 4)
        return STATUS_OK;
    const uint32_t frame_len = get_u32(bytes);
    if (frame_len < WIRE_FRAME_HEADER_BYTES - 4 || frame_len > WIRE_FRAME_BYTES_MAX)
        return fail(STATUS_BAD_FRAME, "a frame of %u bytes, %d to %u are possible", frame_len,
                    WIRE_FRAME_HEADER_BYTES - 4, WIRE_FRAME_BYTES_MAX);
    if (len < WIRE_FRAME_HEADER_BYTES)
        return STATUS_OK;
    const uint32_t json_len = get_u32(bytes + 8);
    if (json_len > frame_len - (WIRE_FRAME_HEADER_BYTES - 4))
        return fail(STATUS_BAD_FRAME, "a frame of %u bytes says it has %u bytes of JSON", frame_len,
                    json_len);
    if (bytes[6] || bytes[7])
        return fail(STATUS_BAD_FRAME, "a frame's reserved bytes are not zero");
    if (len - 4 < frame_len)
        return STATUS_OK;
    *out = (struct wire_frame){
        .type = bytes[4] | (uint32_t)bytes[5] << 8,
        .json = (const char *)bytes + WIRE_FRAME_HEADER_BYTES,
        .json_len = json_len,
        .tail = bytes + WIRE_FRAME_HEADER_BYTES + json_len,
        .tail_len = frame_len - (WIRE_FRAME_HEADER_BYTES - 4) - json_len,
    };
    *used = 4 + (size_t)frame_len;
    return STATUS_OK;
}

void wire_seal(uint8_t out[WIRE_SEAL_BYTES], const void *bytes, size_t len, uint64_t number)
{
    uint8_t count[8];

    put_u32(count, (uint32_t)number);
    put_u32(count + 4, (uint32_t)(number >> 32));
    put_u32(out, wire_crc32c(bytes, len) ^ wire_crc32c(count, sizeof count));
}

enum status write_frame_text(struct buffer *out, enum wire_type type, const char *json,
                             size_t json_len, const struct buffer *tail)
{
    const size_t tail_len = tail ? tail->len : 0,
                 len = WIRE_FRAME_HEADER_BYTES - 4 + json_len + tail_len;
    uint8_t header[WIRE_FRAME_HEADER_BYTES] = {0};

    if (tail)
        TRY(buffer_status(tail));
    if (len > WIRE_FRAME_BYTES_MAX)
        return fail(STATUS_TOO_LARGE, "%s would take a frame of %zu bytes, %u are possible",
                    wire_type_name(type), len, WIRE_FRAME_BYTES_MAX);
    put_u32(header, (uint32_t)len);
    header[4] = (uint8_t)type;
    header[5] = (uint8_t)(type >> 8);
    put_u32(header + 8, (uint32_t)json_len);
    buffer_append(out, header, sizeof header);
    buffer_append(out, json, json_len);
    if (tail_len)
        buffer_append(out, tail->data, tail_len);
    return buffer_status(out);
}

enum status write_frame(struct buffer *out, enum wire_type type, json_t *root,
                        const struct buffer *tail)
{
    char *json = root ? json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
    enum status status;

    json_decref(root);
    if (!json)
        return fail(STATUS_BAD_MESSAGE,
                    "%s cannot be written: a string is not UTF-8, or memory is out",
                    wire_type_name(type));
    status = write_frame_text(out, type, json, strlen(json), tail);
    free(json);
    return status;
}

enum status reader_open(const struct wire_frame *f, enum wire_type type, struct wire_reader *r)
{
    json_error_t error;

    *r = (struct wire_reader){
        .name = wire_type_name(type), .tail = f->tail, .tail_left = f->tail_len};
    if (f->type != type)
        return fail(STATUS_BAD_MESSAGE, "a %s where a %s was expected", wire_type_name(f->type),
                    r->name);
    r->root = json_loadb(f->json, f->json_len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (!r->root)
        return fail(STATUS_BAD_MESSAGE, "%s: %s", r->name, error.text);
    if (!json_is_object(r->root)) {
        json_decref(r->root);
        r->root = NULL;
        return fail(STATUS_BAD_MESSAGE, "%s: the JSON is not an object", r->name);
    }
    return STATUS_OK;
}

enum status reader_close(struct wire_reader *r, enum status s)
{
    if (s == STATUS_OK && r->tail_left)
        s = fail(STATUS_BAD_MESSAGE, "%s: %u bytes too many", r->name, r->tail_left);
    json_decref(r->root);
    r->root = NULL;
    return s;
}
