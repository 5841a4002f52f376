/* KV frames and their checksum. */
#include "wire/internal.h"

#include <pthread.h>
#include <string.h>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

static const char magic[8] = {'B', 'A', 'T', 'O', 'N', 'K', 'V', '1'};

static void put(uint8_t *p, uint64_t v, int n)
{
    for (int i = 0; i < n; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

static uint64_t get(const uint8_t *p, int n)
{
    uint64_t v = 0;

    for (int i = 0; i < n; i++)
        v |= (uint64_t)p[i] << (8 * i);
    return v;
}

void wire_encode_kv_header(uint8_t out[WIRE_KV_HEADER_BYTES], const struct wire_kv_header *h)
{
    memcpy(out, magic, sizeof magic);
    put(out + 8, h->handle, 8);
    put(out + 16, h->layer, 4);
    put(out + 20, h->first_page, 4);
    put(out + 24, h->n_pages, 4);
    put(out + 28, h->slab_bytes, 4);
    put(out + 32, 0, 4);
    put(out + 36, wire_crc32c(out, 36), 4);
}

enum status wire_decode_kv_header(const uint8_t in[WIRE_KV_HEADER_BYTES],
                                  struct wire_kv_header *out)
{
    if (memcmp(in, magic, sizeof magic))
        return fail(STATUS_BAD_FRAME, "a KV frame does not start with its magic bytes");
    if (get(in + 36, 4) != wire_crc32c(in, 36))
        return fail(STATUS_BAD_FRAME, "a KV frame's header does not match its checksum");
    *out = (struct wire_kv_header){
        .handle = get(in + 8, 8),
        .layer = (uint32_t)get(in + 16, 4),
        .first_page = (uint32_t)get(in + 20, 4),
        .n_pages = (uint32_t)get(in + 24, 4),
        .slab_bytes = (uint32_t)get(in + 28, 4),
    };
    return STATUS_OK;
}

/* ---- CRC-32C, reflected polynomial 0x82F63B78 ---- */

uint32_t crc32c_bytewise(uint32_t crc, const uint8_t *p, size_t len)
{
    while (len--) {
        crc ^= *p++;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
    }
    return crc;
}

#if defined(__x86_64__)
/* What n zero bytes do to a CRC is linear over GF(2): a 32 x 32 bit matrix. */
static uint32_t apply(const uint32_t matrix[32], uint32_t v)
{
    uint32_t r = 0;

    for (int i = 0; v; i++, v >>= 1)
        if (v & 1)
            r ^= matrix[i];
    return r;
}

enum { LANE_BYTES = 2048 };

static uint32_t lane_shift[32]; /* of LANE_BYTES zero bytes */
static pthread_once_t lane_shift_once = PTHREAD_ONCE_INIT;

static void make_lane_shift(void)
{
    static const uint8_t zeros[LANE_BYTES];

    for (int i = 0; i < 32; i++)
        lane_shift[i] = crc32c_bytewise(1u << i, zeros, sizeof zeros);
}

__attribute__((target("sse4.2"))) static uint32_t crc_hardware(const uint8_t *p, size_t len)
{
    uint64_t a = 0xFFFFFFFFu, v;

    pthread_once(&lane_shift_once, make_lane_shift);
    while (len >= 3 * LANE_BYTES) {
        uint64_t b = 0, c = 0, v1, v2;
        for (size_t i = 0; i < LANE_BYTES; i += 8) {
            memcpy(&v, p + i, 8);
            memcpy(&v1, p + LANE_BYTES + i, 8);
            memcpy(&v2, p + 2 * LANE_BYTES + i, 8);
            a = _mm_crc32_u64(a, v);
            b = _mm_crc32_u64(b, v1);
            c = _mm_crc32_u64(c, v2);
        }
        a = apply(lane_shift, apply(lane_shift, (uint32_t)a) ^ (uint32_t)b) ^ (uint32_t)c;
        p += 3 * LANE_BYTES;
        len -= 3 * LANE_BYTES;
    }
    for (; len >= 8; p += 8, len -= 8) {
        memcpy(&v, p, 8);
        a = _mm_crc32_u64(a, v);
    }
    while (len--)
        a = _mm_crc32_u8((uint32_t)a, *p++);
    return (uint32_t)a ^ 0xFFFFFFFFu;
}
#endif

uint32_t wire_crc32c(const void *data, size_t len)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2"))
        return crc_hardware(data, len);
#endif
    return crc32c_bytewise(0xFFFFFFFFu, data, len) ^ 0xFFFFFFFFu;
}
