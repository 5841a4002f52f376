/* GGUF files written here byte by byte, then read whole, cut short at every offset, and with every
 * number spoilt. */
#include "format/gguf.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

struct writer {
    unsigned char bytes[65536];
    size_t n;
};

static void put(struct writer *w, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        w->bytes[w->n++] = (unsigned char)(v >> 8 * i);
}

static void put_bytes(struct writer *w, const char *s, uint64_t len)
{
    put(w, len, 8);
    memcpy(w->bytes + w->n, s, len);
    w->n += len;
}

static void put_string(struct writer *w, const char *s)
{
    put_bytes(w, s, strlen(s));
}

static void put_key(struct writer *w, const char *key, uint32_t type)
{
    put_string(w, key);
    put(w, type, 4);
}

static void put_float(struct writer *w, double d, int bytes)
{
    float f = (float)d;
    uint32_t single;
    uint64_t bits;

    memcpy(&single, &f, 4);
    memcpy(&bits, &d, 8);
    put(w, bytes == 4 ? single : bits, bytes);
}

static void put_header(struct writer *w, uint32_t version, uint64_t n_tensors, uint64_t n_values)
{
    memcpy(w->bytes, "GGUF", 4);
    w->n = 4;
    put(w, version, 4);
    put(w, n_tensors, 8);
    put(w, n_values, 8);
}

static void put_tensor(struct writer *w, const char *name, uint32_t n_dims, const uint64_t *dims,
                       uint32_t type, uint64_t offset)
{
    put_string(w, name);
    put(w, n_dims, 4);
    for (uint32_t i = 0; i < n_dims; i++)
        put(w, dims[i], 8);
    put(w, type, 4);
    put(w, offset, 8);
}

static void put_padding(struct writer *w, size_t alignment)
{
    while (w->n % alignment)
        w->bytes[w->n++] = 0;
}

static enum status open_bytes(const unsigned char *bytes, size_t n, struct gguf **out)
{
    char path[] = "/tmp/baton-gguf-XXXXXX";
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, n), n);
    close(fd);
    enum status status = gguf_open(path, out);
    unlink(path);
    return status;
}

static enum status open_writer(const struct writer *w, struct gguf **out)
{
    return open_bytes(w->bytes, w->n, out);
}

/* Opens, and lets go again if that worked. */
static enum status try_bytes(const unsigned char *bytes, size_t n)
{
    struct gguf *g = NULL;
    enum status status = open_bytes(bytes, n, &g);

    if (status == STATUS_OK)
        gguf_release(&g);
    return status;
}

static void expect(const struct writer *w, enum status status, const char *words)
{
    assert_int_equal(try_bytes(w->bytes, w->n), status);
    if (!strstr(status_message(), words))
        fail_msg("\"%s\" does not say \"%s\"", status_message(), words);
}

/* Every metadata type and three tensors. */
static void write_small(struct writer *w, uint32_t version)
{
    put_header(w, version, 3, 19);
    put_key(w, "u8", GGUF_U8), put(w, 200, 1);
    put_key(w, "i8", GGUF_I8), put(w, (uint64_t)-100, 1);
    put_key(w, "u16", GGUF_U16), put(w, 60000, 2);
    put_key(w, "i16", GGUF_I16), put(w, (uint64_t)-30000, 2);
    put_key(w, "u32", GGUF_U32), put(w, 4000000000u, 4);
    put_key(w, "i32", GGUF_I32), put(w, (uint64_t)-2000000000, 4);
    put_key(w, "u64", GGUF_U64), put(w, UINT64_MAX, 8);
    put_key(w, "i64", GGUF_I64), put(w, (uint64_t)INT64_MIN, 8);
    put_key(w, "f32", GGUF_F32), put_float(w, 1.5, 4);
    put_key(w, "f64", GGUF_F64), put_float(w, 0.1, 8);
    put_key(w, "nan", GGUF_F64), put_float(w, NAN, 8);
    put_key(w, "bool", GGUF_BOOL), put(w, 1, 1);
    put_key(w, "string", GGUF_STRING), put_bytes(w, "a\0b", 3);
    put_key(w, "i16s", GGUF_ARRAY), put(w, GGUF_I16, 4), put(w, 2, 8), put(w, 7, 2),
        put(w, (uint64_t)-8, 2);
    put_key(w, "f64s", GGUF_ARRAY), put(w, GGUF_F64, 4), put(w, 1, 8), put_float(w, 2.5, 8);
    put_key(w, "strings", GGUF_ARRAY), put(w, GGUF_STRING, 4), put(w, 3, 8);
    put_string(w, "one"), put_string(w, ""), put_string(w, "three");
    put_key(w, "nested", GGUF_ARRAY), put(w, GGUF_ARRAY, 4), put(w, 2, 8);
    put(w, GGUF_U8, 4), put(w, 2, 8), put(w, 1, 1), put(w, 2, 1);
    put(w, GGUF_STRING, 4), put(w, 1, 8), put_string(w, "deep");
    put_key(w, "empty", GGUF_ARRAY), put(w, GGUF_U32, 4), put(w, 0, 8);
    put_key(w, "general.alignment", GGUF_U32), put(w, 64, 4);
    put_tensor(w, "b.weight", 2, (uint64_t[]){32, 3}, DTYPE_Q4_1, 0);
    put_tensor(w, "a.norm", 1, (uint64_t[]){5}, DTYPE_F32, 64);
    put_tensor(w, "c", 4, (uint64_t[]){2, 1, 3, 1}, DTYPE_BF16, 128);
    put_padding(w, 64);
    for (int i = 0; i < 60; i++)
        put(w, (uint64_t)i, 1);
    put_padding(w, 64);
    for (int i = 0; i < 5; i++)
        put_float(w, i, 4);
    put_padding(w, 64);
    put(w, 0, 6), put(w, 0, 6);
}

static void test_values(void **state)
{
    struct writer w = {0};
    struct gguf *g;
    uint32_t u;
    double d;
    bool b;
    struct gguf_string s;

    write_small(&w, 3);
    assert_int_equal(open_writer(&w, &g), STATUS_OK);
    assert_int_equal(gguf_version(g), 3);
    assert_int_equal(gguf_file_bytes(g), w.n);
    assert_int_equal(gguf_n_values(g), 19);
    assert_null(gguf_value_at(g, 19));
    assert_int_equal(gguf_get_u32(g, "u8", &u), STATUS_OK);
    assert_int_equal(u, 200);
    assert_int_equal(gguf_get_u32(g, "u16", &u), STATUS_OK);
    assert_int_equal(u, 60000);
    assert_int_equal(gguf_get_u32(g, "u32", &u), STATUS_OK);
    assert_int_equal(u, 4000000000u);
    const char *const negative[] = {"i8",  "i16",  "i32",    "i64", "u64",
                                    "f32", "bool", "string", "i16s"};
    for (size_t i = 0; i < sizeof negative / sizeof negative[0]; i++)
        assert_int_equal(gguf_get_u32(g, negative[i], &u), STATUS_BAD_MODEL);
    assert_int_equal(gguf_get_u32(g, "absent", &u), STATUS_NOT_FOUND);
    static const struct {
        const char *key;
        double value;
    } numbers[] = {{"u8", 200},
                   {"i8", -100},
                   {"i16", -30000},
                   {"i32", -2e9},
                   {"u64", 18446744073709551616.0},
                   {"i64", -9223372036854775808.0},
                   {"f32", 1.5},
                   {"f64", 0.1}};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        assert_int_equal(gguf_get_f64(g, numbers[i].key, &d), STATUS_OK);
        assert_true(d == numbers[i].value);
    }
    assert_int_equal(gguf_get_f64(g, "nan", &d), STATUS_BAD_MODEL);
    assert_int_equal(gguf_get_f64(g, "bool", &d), STATUS_BAD_MODEL);
    assert_int_equal(gguf_get_bool(g, "bool", &b), STATUS_OK);
    assert_true(b);
    assert_int_equal(gguf_get_bool(g, "u8", &b), STATUS_BAD_MODEL);
    assert_int_equal(gguf_get_string(g, "string", &s), STATUS_OK);
    assert_int_equal(s.len, 3);
    assert_memory_equal(s.bytes, "a\0b", 3);
    assert_int_equal(gguf_get_string(g, "strings", &s), STATUS_BAD_MODEL);
    gguf_release(&g);
    assert_null(g);
}

static void test_arrays(void **state)
{
    struct writer w = {0};
    struct gguf *g, *same;
    struct gguf_string s;

    write_small(&w, 2);
    assert_int_equal(open_writer(&w, &g), STATUS_OK);
    const struct gguf_value *v = gguf_find(g, "i16s");
    assert_int_equal(v->n_elements, 2);
    assert_int_equal(gguf_element_i64(v, 0), 7);
    assert_int_equal(gguf_element_i64(v, 1), -8);
    assert_int_equal(gguf_element_i64(v, 2), 0);
    assert_true(gguf_element_f64(gguf_find(g, "f64s"), 0) == 2.5);
    struct gguf_cursor c = gguf_strings(gguf_find(g, "strings"));
    const char *const want[] = {"one", "", "three"};
    for (int i = 0; i < 3; i++) {
        assert_true(gguf_next_string(&c, &s));
        assert_int_equal(s.len, strlen(want[i]));
        assert_memory_equal(s.bytes, want[i], s.len);
    }
    assert_false(gguf_next_string(&c, &s));
    c = gguf_strings(v);
    assert_false(gguf_next_string(&c, &s));
    v = gguf_find(g, "nested");
    assert_int_equal(v->element_type, GGUF_ARRAY);
    assert_int_equal(v->n_elements, 2);
    same = gguf_acquire(g);
    gguf_release(&g);
    assert_int_equal(gguf_find(same, "empty")->n_elements, 0);
    gguf_release(&same);
}

static void test_tensors(void **state)
{
    struct writer w = {0};
    struct gguf *g;

    write_small(&w, 3);
    assert_int_equal(open_writer(&w, &g), STATUS_OK);
    assert_int_equal(gguf_n_tensors(g), 3);
    assert_string_equal(gguf_tensor_at(g, 0)->name, "b.weight");
    const struct gguf_tensor *t = gguf_find_tensor(g, "b.weight");
    assert_ptr_equal(t, gguf_tensor_at(g, 0));
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->dims[0], 32);
    assert_int_equal(t->dims[1], 3);
    assert_int_equal(t->dims[2], 1);
    assert_int_equal(t->n_elements, 96);
    assert_int_equal(t->n_bytes, 60);
    assert_int_equal(((const unsigned char *)t->data)[59], 59);
    t = gguf_find_tensor(g, "a.norm");
    assert_true(((const float *)t->data)[4] == 4);
    assert_int_equal(gguf_find_tensor(g, "c")->n_bytes, 12);
    assert_null(gguf_find_tensor(g, "d"));
    assert_null(gguf_tensor_at(g, 3));
    /* What was forgotten is read again from the file. */
    t = gguf_find_tensor(g, "b.weight");
    gguf_forget(g, t->data, t->n_bytes);
    gguf_forget(g, NULL, 0);
    assert_int_equal(((const unsigned char *)t->data)[59], 59);
    gguf_release(&g);
}

/* No prefix of a file is a file; each is refused with the file's name, and none reads outside its
 * bytes (sanitizers watch). */
static void test_cut_short(void **state)
{
    struct writer w = {0};

    write_small(&w, 3);
    for (size_t n = 0; n < w.n; n++) {
        assert_int_equal(try_bytes(w.bytes, n), STATUS_BAD_MODEL);
        assert_non_null(strstr(status_message(), "/tmp/baton-gguf-"));
    }
    assert_int_equal(try_bytes(w.bytes, w.n), STATUS_OK);
    assert_int_equal(try_bytes(w.bytes, w.n - 1), STATUS_BAD_MODEL);
    assert_non_null(strstr(status_message(), "inside tensor c (needs 12 bytes, has 11)"));
}

/* Any byte changed to anything: an error or a file that can be read, never a crash. */
static void test_spoilt_bytes(void **state)
{
    static const unsigned char values[] = {0, 1, 0x7f, 0x80, 0xff};
    struct writer w = {0};

    write_small(&w, 3);
    for (size_t i = 0; i < w.n; i++)
        for (size_t k = 0; k < sizeof values; k++) {
            unsigned char old = w.bytes[i];
            w.bytes[i] = values[k];
            try_bytes(w.bytes, w.n);
            w.bytes[i] = old;
        }
}

static void test_bad_heads(void **state)
{
    struct writer w = {0};

    put_header(&w, 3, 0, 0);
    memcpy(w.bytes, "GGML", 4);
    expect(&w, STATUS_BAD_MODEL, "not a GGUF file");
    put_header(&w, 1, 0, 0);
    expect(&w, STATUS_UNSUPPORTED_MODEL, "version 1");
    put_header(&w, 0x03000000, 0, 0);
    expect(&w, STATUS_UNSUPPORTED_MODEL, "big-endian");
    put_header(&w, 3, 0, UINT64_MAX);
    expect(&w, STATUS_BAD_MODEL, "metadata entries");
    put_header(&w, 3, UINT64_MAX / 2, 0);
    expect(&w, STATUS_BAD_MODEL, "tensors");
    put_header(&w, 3, 0, 0);
    assert_int_equal(try_bytes(w.bytes, w.n), STATUS_OK);
}

static void test_bad_values(void **state)
{
    static const struct {
        uint32_t element;
        uint64_t n;
    } arrays[] = {{GGUF_U8, UINT64_MAX},
                  {GGUF_F64, UINT64_MAX / 8 + 1},
                  {GGUF_STRING, 1u << 30},
                  {GGUF_ARRAY, 1u << 20},
                  {GGUF_U16, 9}};
    struct writer w = {0};

    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        put_header(&w, 3, 0, 1);
        put_key(&w, "k", GGUF_ARRAY), put(&w, arrays[i].element, 4), put(&w, arrays[i].n, 8),
            put(&w, 0, 8), put(&w, 0, 8);
        expect(&w, STATUS_BAD_MODEL, "does not fit");
    }
    put_header(&w, 3, 0, 1);
    put_key(&w, "k", 13), put(&w, 0, 8);
    expect(&w, STATUS_BAD_MODEL, "k has type 13");
    put_header(&w, 3, 0, 1);
    put_key(&w, "k", GGUF_ARRAY), put(&w, 99, 4), put(&w, 0, 8);
    expect(&w, STATUS_BAD_MODEL, "type 99");
    put_header(&w, 3, 0, 1);
    put_key(&w, "k", GGUF_BOOL), put(&w, 2, 1);
    expect(&w, STATUS_BAD_MODEL, "bool");
    put_header(&w, 3, 0, 1);
    put(&w, UINT64_MAX - 3, 8), put(&w, 0, 8), put(&w, 0, 8);
    expect(&w, STATUS_BAD_MODEL, "ends inside a metadata key");
    put_header(&w, 3, 0, 1);
    put_key(&w, "", GGUF_U32), put(&w, 0, 8);
    expect(&w, STATUS_BAD_MODEL, "0 bytes");
    put_header(&w, 3, 0, 2);
    put_key(&w, "same", GGUF_U8), put(&w, 1, 1), put_key(&w, "same", GGUF_U32), put(&w, 1, 4);
    expect(&w, STATUS_BAD_MODEL, "same is there twice");
    put_header(&w, 3, 0, 1);
    put_key(&w, "k", GGUF_ARRAY);
    for (int i = 0; i < 20; i++)
        put(&w, GGUF_ARRAY, 4), put(&w, 1, 8);
    put(&w, GGUF_U8, 4), put(&w, 0, 8);
    expect(&w, STATUS_BAD_MODEL, "nested");
    static const uint32_t alignments[] = {0, 1, 4, 24, 0xffffffff};
    for (size_t i = 0; i < sizeof alignments / sizeof alignments[0]; i++) {
        put_header(&w, 3, 0, 1);
        put_key(&w, "general.alignment", GGUF_U32), put(&w, alignments[i], 4);
        expect(&w, STATUS_BAD_MODEL, "general.alignment");
    }
    put_header(&w, 3, 0, 1);
    put_key(&w, "general.alignment", GGUF_STRING), put_string(&w, "32");
    expect(&w, STATUS_BAD_MODEL, "general.alignment");
}

static void one_tensor(struct writer *w, const char *name, uint32_t n_dims, const uint64_t *dims,
                       uint32_t type, uint64_t offset)
{
    put_header(w, 3, 1, 0);
    put_tensor(w, name, n_dims, dims, type, offset);
    put_padding(w, 32);
    for (int i = 0; i < 64; i++)
        put(w, 0, 8);
}

static void test_bad_tensors(void **state)
{
    static char long_name[200];
    struct writer w = {0};
    uint64_t many[5] = {1, 1, 1, 1, 1};

    memset(long_name, 'x', sizeof long_name - 1);
    one_tensor(&w, "t", 1, (uint64_t[]){32}, DTYPE_F32, 0);
    assert_int_equal(try_bytes(w.bytes, w.n), STATUS_OK);
    one_tensor(&w, "t", 0, NULL, DTYPE_F32, 0);
    expect(&w, STATUS_BAD_MODEL, "0 dimensions");
    one_tensor(&w, "t", 5, many, DTYPE_F32, 0);
    expect(&w, STATUS_BAD_MODEL, "5 dimensions");
    one_tensor(&w, "t", 2, (uint64_t[]){32, 0}, DTYPE_F32, 0);
    expect(&w, STATUS_BAD_MODEL, "is 0");
    one_tensor(&w, "t", 2, (uint64_t[]){1ull << 40, 1ull << 40}, DTYPE_F32, 0);
    expect(&w, STATUS_BAD_MODEL, "larger than any file");
    one_tensor(&w, "t", 1, (uint64_t[]){1ull << 63}, DTYPE_F32, 0);
    expect(&w, STATUS_BAD_MODEL, "larger than any file");
    one_tensor(&w, "t", 1, (uint64_t[]){1ull << 40}, DTYPE_F32, 0);
    expect(&w, STATUS_BAD_MODEL, "ends inside tensor t");
    one_tensor(&w, "t", 1, (uint64_t[]){32}, DTYPE_F32, UINT64_MAX - 31);
    expect(&w, STATUS_BAD_MODEL, "ends inside tensor t");
    one_tensor(&w, "t", 1, (uint64_t[]){32}, DTYPE_F32, 4);
    expect(&w, STATUS_BAD_MODEL, "offset 4");
    one_tensor(&w, "t", 2, (uint64_t[]){48, 2}, DTYPE_Q4_0, 0);
    expect(&w, STATUS_BAD_MODEL, "multiple of 32");
    one_tensor(&w, "t", 1, (uint64_t[]){128}, DTYPE_Q6_K, 0);
    expect(&w, STATUS_BAD_MODEL, "multiple of 256");
    one_tensor(&w, "t", 1, (uint64_t[]){32}, 7, 0);
    expect(&w, STATUS_UNSUPPORTED_MODEL, "tensor t has type 7");
    one_tensor(&w, "", 1, (uint64_t[]){32}, DTYPE_F32, 0);
    expect(&w, STATUS_BAD_MODEL, "name has 0 bytes");
    one_tensor(&w, long_name, 1, (uint64_t[]){32}, DTYPE_F32, 0);
    expect(&w, STATUS_BAD_MODEL, "name has 199 bytes");
    put_header(&w, 3, 2, 0);
    put_tensor(&w, "t", 1, (uint64_t[]){1}, DTYPE_F32, 0);
    put_tensor(&w, "t", 1, (uint64_t[]){1}, DTYPE_F32, 0);
    put_padding(&w, 32);
    put(&w, 0, 8);
    expect(&w, STATUS_BAD_MODEL, "tensor t is there twice");
}

static void test_no_file(void **state)
{
    struct gguf *g = NULL;

    assert_int_equal(gguf_open("/nonexistent/model.gguf", &g), STATUS_IO);
    assert_non_null(strstr(status_message(), "/nonexistent/model.gguf: No such file"));
    assert_int_equal(gguf_open("/tmp", &g), STATUS_IO);
    assert_null(g);
    gguf_release(&g);
}

/* Look-ups among many names. */
static void test_many(void **state)
{
    static struct writer w;
    struct gguf *g;
    char key[32];
    uint32_t u;

    put_header(&w, 3, 0, 1000);
    for (uint32_t i = 0; i < 1000; i++) {
        snprintf(key, sizeof key, "key.%u", i * 7919 % 1000);
        put_key(&w, key, GGUF_U32), put(&w, i, 4);
    }
    assert_int_equal(open_writer(&w, &g), STATUS_OK);
    for (uint32_t i = 0; i < 1000; i++) {
        snprintf(key, sizeof key, "key.%u", i * 7919 % 1000);
        assert_int_equal(gguf_get_u32(g, key, &u), STATUS_OK);
        assert_int_equal(u, i);
    }
    assert_null(gguf_find(g, "key."));
    assert_null(gguf_find(g, "key.10000"));
    gguf_release(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),       cmocka_unit_test(test_arrays),
        cmocka_unit_test(test_tensors),      cmocka_unit_test(test_cut_short),
        cmocka_unit_test(test_spoilt_bytes), cmocka_unit_test(test_bad_heads),
        cmocka_unit_test(test_bad_values),   cmocka_unit_test(test_bad_tensors),
        cmocka_unit_test(test_no_file),      cmocka_unit_test(test_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
