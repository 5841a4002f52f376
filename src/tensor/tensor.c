#include "tensor/tensor.h"

bool dtype_known(uint32_t id)
{
    return dtype_name((enum dtype)id) != NULL;
}

const char *dtype_name(enum dtype t)
{
    switch ((uint32_t)t) {
#define X(name, id, values, bytes)                                                                 \
    case id:                                                                                       \
        return #name;
        DTYPE_TABLE(X)
#undef X
    }
    return NULL;
}

uint32_t dtype_block_values(enum dtype t)
{
    switch ((uint32_t)t) {
#define X(name, id, values, bytes)                                                                 \
    case id:                                                                                       \
        return values;
        DTYPE_TABLE(X)
#undef X
    }
    return 1;
}

uint32_t dtype_block_bytes(enum dtype t)
{
    switch ((uint32_t)t) {
#define X(name, id, values, bytes)                                                                 \
    case id:                                                                                       \
        return bytes;
        DTYPE_TABLE(X)
#undef X
    }
    return 1;
}
