/* KV headers and CRC-32C. */
#include "unit/wire/wire_tests.h"
#include "wire/internal.h"

static void test_header(void **state)
{
    for (int round = 0; round < 1000; round++) {
        const struct wire_kv_header h = {.handle = next_random(),
                                         .layer = (uint32_t)next_random(),
                                         .first_page = (uint32_t)next_random(),
                                         .n_pages = (uint32_t)next_random(),
                                         .slab_bytes = (uint32_t)next_random()};
        uint8_t bytes[WIRE_KV_HEADER_BYTES];
        struct wire_kv_header got;
        wire_encode_kv_header(bytes, &h);
        assert_int_equal(wire_decode_kv_header(bytes, &got), STATUS_OK);
        assert_true(h.handle == got.handle && h.layer == got.layer &&
                    h.first_page == got.first_page && h.n_pages == got.n_pages &&
                    h.slab_bytes == got.slab_bytes);
        bytes[below(WIRE_KV_HEADER_BYTES)] ^= (uint8_t)(1 << below(8));
        assert_int_equal(wire_decode_kv_header(bytes, &got), STATUS_BAD_FRAME);
    }
}

/* RFC 3720, appendix B.4, and the check value that everybody quotes. */
static void test_known_crcs(void **state)
{
    static const uint8_t command[48] = {
        0x01, 0xc0, [16] = 0x14, [22] = 0x04, [27] = 0x14, [31] = 0x18, 0x28, [40] = 0x02};
    uint8_t bytes[32] = {0};

    assert_int_equal(wire_crc32c("123456789", 9), 0xE3069283);
    assert_int_equal(wire_crc32c("", 0), 0);
    assert_int_equal(wire_crc32c(bytes, 32), 0x8A9136AA);
    memset(bytes, 0xFF, 32);
    assert_int_equal(wire_crc32c(bytes, 32), 0x62A8AB43);
    for (int i = 0; i < 32; i++)
        bytes[i] = (uint8_t)i;
    assert_int_equal(wire_crc32c(bytes, 32), 0x46DD794E);
    for (int i = 0; i < 32; i++)
        bytes[i] = (uint8_t)(31 - i);
    assert_int_equal(wire_crc32c(bytes, 32), 0x113FDB5C);
    assert_int_equal(wire_crc32c(command, sizeof command), 0xD9963A56);
}

static void test_forms_agree(void **state)
{
    uint8_t *bytes = memory_alloc(100000, 1);

    for (int i = 0; i < 100000; i++)
        bytes[i] = (uint8_t)next_random();
    for (uint32_t len = 0; len < 300; len++)
        assert_int_equal(wire_crc32c(bytes + len % 7, len),
                         crc32c_bytewise(0xFFFFFFFF, bytes + len % 7, len) ^ 0xFFFFFFFF);
    for (int round = 0; round < 150; round++) {
        const uint32_t at = below(64), len = below(40000) + (round % 3) * 6144;
        assert_int_equal(wire_crc32c(bytes + at, len),
                         crc32c_bytewise(0xFFFFFFFF, bytes + at, len) ^ 0xFFFFFFFF);
    }
    for (uint32_t len = 6144 - 9; len < 6144 + 9; len++) /* where the three chains begin */
        assert_int_equal(wire_crc32c(bytes, len),
                         crc32c_bytewise(0xFFFFFFFF, bytes, len) ^ 0xFFFFFFFF);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_header),
        cmocka_unit_test(test_known_crcs),
        cmocka_unit_test(test_forms_agree),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
