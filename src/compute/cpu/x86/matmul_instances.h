/* A kernel for each packed type, number of rows and of panels, and the table that finds them.
 *
 * Text of matmul.h and of matmul_avx2.c, behind their tile() and unpack(). */

typedef void tile_kernel(const uint8_t *const *w, struct prefetch prefetch,
                         const struct ACTS_OF(q8) * x, const struct ACTS_OF(outliers) * o,
                         uint32_t n_k, float (*y)[TILE][LANES]);

#define INSTANCE(rows, name, panels, ...)                                                          \
    static void name##_##rows##_##panels(                                                          \
        const uint8_t *const *w, struct prefetch prefetch, const struct ACTS_OF(q8) * x,           \
        const struct ACTS_OF(outliers) * o, uint32_t n_k, float(*y)[TILE][LANES])                  \
    {                                                                                              \
        const struct kind k = {__VA_ARGS__};                                                       \
        tile(k, w, prefetch, x, o, n_k, rows, panels, y);                                          \
    }
#define INSTANCES(name, ...)                                                                       \
    EACH_ROWS(INSTANCE, name, 1, __VA_ARGS__) EACH_ROWS(INSTANCE, name, 2, __VA_ARGS__)
#define POINTER(rows, name, panels) name##_##rows##_##panels,
/* Of up to FEW_ROWS rows, SIDE_BY_SIDE panels. */
#define INSTANCES_OF_FEW(name, ...)                                                                \
    INSTANCE(1, name, 4, __VA_ARGS__) INSTANCE(2, name, 4, __VA_ARGS__)
#define KERNELS_OF_FEW(name)                                                                       \
    {                                                                                              \
        name##_1_4, name##_2_4                                                                     \
    }
/* By panels - 1, then rows - 1. */
#define KERNELS(name)                                                                              \
    {                                                                                              \
        {EACH_ROWS(POINTER, name, 1)},                                                             \
        {                                                                                          \
            EACH_ROWS(POINTER, name, 2)                                                            \
        }                                                                                          \
    }

/* X(name, struct kind's members). Packed types, and what they are once unpacked. */
#define PACKED_KINDS(X)                                                                            \
    X(q4_0, WEIGHT_U4, false, SCALES_F16, false, START_U4)                                         \
    X(q4_1, WEIGHT_U4, true, SCALES_F16, false, -1)                                                \
    X(q4_k, WEIGHT_U4, true, SCALES_K, false, -1)                                                  \
    X(q5_0, WEIGHT_U5, false, SCALES_F16, false, START_U5)                                         \
    X(q5_k, WEIGHT_U5, true, SCALES_K, false, START_U5_MIN)                                        \
    X(q6_k, WEIGHT_U6, false, SCALES_K, false, START_U6)                                           \
    X(q8_0, WEIGHT_S8, false, SCALES_F16, false, START_S8)
#define UNPACKED_KINDS(X)                                                                          \
    X(bytes_q4_0, WEIGHT_U4, false, SCALES_F32, true, START_U4)                                    \
    X(bytes_q4_m, WEIGHT_U4, true, SCALES_F32, true, -1)                                           \
    X(bytes_q5_0, WEIGHT_U5, false, SCALES_F32, true, START_U5)                                    \
    X(bytes_q5_m, WEIGHT_U5, true, SCALES_F32, true, START_U5_MIN)                                 \
    X(bytes_q6, WEIGHT_U6, false, SCALES_F32, true, START_U6)                                      \
    X(bytes_q8, WEIGHT_S8, false, SCALES_F32, true, START_S8)

#define UNPACK(name, ...)                                                                          \
    static void unpack_##name(const uint8_t *w, uint32_t n_blocks, uint8_t *to)                    \
    {                                                                                              \
        unpack((struct kind){__VA_ARGS__}, w, n_blocks, to);                                       \
    }

PACKED_KINDS(INSTANCES)
PACKED_KINDS(INSTANCES_OF_FEW)
UNPACKED_KINDS(INSTANCES)
PACKED_KINDS(UNPACK)

static const struct kernels {
    enum dtype type;
    tile_kernel *packed[2][TILE], *few[FEW_ROWS], *bytes[2][TILE];
    void (*unpack)(const uint8_t *w, uint32_t n_blocks, uint8_t *to);
} kernels[] = {
    {DTYPE_Q4_0, KERNELS(q4_0), KERNELS_OF_FEW(q4_0), KERNELS(bytes_q4_0), unpack_q4_0},
    {DTYPE_Q4_1, KERNELS(q4_1), KERNELS_OF_FEW(q4_1), KERNELS(bytes_q4_m), unpack_q4_1},
    {DTYPE_Q4_K, KERNELS(q4_k), KERNELS_OF_FEW(q4_k), KERNELS(bytes_q4_m), unpack_q4_k},
    {DTYPE_Q5_0, KERNELS(q5_0), KERNELS_OF_FEW(q5_0), KERNELS(bytes_q5_0), unpack_q5_0},
    {DTYPE_Q5_K, KERNELS(q5_k), KERNELS_OF_FEW(q5_k), KERNELS(bytes_q5_m), unpack_q5_k},
    {DTYPE_Q6_K, KERNELS(q6_k), KERNELS_OF_FEW(q6_k), KERNELS(bytes_q6), unpack_q6_k},
    {DTYPE_Q8_0, KERNELS(q8_0), KERNELS_OF_FEW(q8_0), KERNELS(bytes_q8), unpack_q8_0},
};
