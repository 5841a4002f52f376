/* Any file as a model file: an error or values that can all be read. */
#include "format/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static volatile double sink;

static void read_values(const struct gguf *g)
{
    struct gguf_string s;
    uint32_t u;

    for (uint64_t i = 0; i < gguf_n_values(g); i++) {
        const struct gguf_value *v = gguf_value_at(g, i);
        struct gguf_cursor c = gguf_strings(v);
        while (gguf_next_string(&c, &s))
            sink += s.len ? s.bytes[s.len - 1] : 0;
        for (uint64_t k = 0;
             v->element_type != GGUF_STRING && v->element_type != GGUF_ARRAY && k < v->n_elements;
             k++)
            sink += gguf_element_f64(v, k);
    }
    if (gguf_get_u32(g, "general.alignment", &u) == STATUS_OK)
        sink += u;
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        sink += ((const unsigned char *)t->data)[t->n_bytes - 1];
        if (gguf_find_tensor(g, t->name) != t)
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct gguf *g;
    char path[64];
    int fd = memfd_create("fuzz", 0);

    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (gguf_open(path, &g) == STATUS_OK) {
        read_values(g);
        gguf_release(&g);
    }
    close(fd);
    return 0;
}
