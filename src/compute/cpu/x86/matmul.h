/* Per segment of K and step of 32 (U6: 16): t = RN(A d), f = fmaf(t, dw, f), with a minimum f =
 * fmaf(m, s, f); then the outlier's step; y += f (EXACTNESS 3). A is a sum of integers, so its
 * order is free; the chain over steps is not.
 *
 * The sum starts at 0x4B400000 less the offset's share and is a float's bits at the end: the tail
 * is two fma. Few rows read packed weights straight; many have them unpacked to bytes once for all.
 * The small scales of a K-quant's super-block become f32 before its blocks.
 *
 * The text of matmul_avx512vnni.c, matmul_avx512.c and matmul_avxvnni.c, in the words of
 * vector512.h or vector256.h. Each says before it: X86(name); ACTS_OF(name), its activations'
 * types; TILE, their rows; EACH_ROWS(X, ...), X(1, ...) to X(TILE, ...); and DOT_BYTES(sum, u8, s8)
 * where the CPU has a dot instruction. */

#ifdef DOT_BYTES
/* 8-bit weights are stored plus 128, for the instruction takes them unsigned. */
#define START_S8 START_128
#else
#define START_S8 -1
#endif

/* What a kernel is made for; always a constant, so that each instance keeps only its own path. */
struct kind {
    enum weight_form form;
    bool has_min;
    enum scale_form scales;
    bool unpacked; /* a block is 8 vectors of bytes and 2 of scales */
    int start;     /* which of the activations', or -1: no offset */
};

#define UNPACKED_BYTES (10 * LANE_BYTES)

INLINE uint32_t integer_bytes(const struct kind k)
{
    return k.unpacked || k.form == WEIGHT_S8 ? 8 * LANE_BYTES
           : k.form == WEIGHT_U4             ? 4 * LANE_BYTES
           : k.form == WEIGHT_U5             ? 5 * LANE_BYTES
                                             : 6 * LANE_BYTES;
}

INLINE uint32_t block_bytes(const struct kind k)
{
    uint32_t scale_bytes = k.scales == SCALES_K ? 0 : (k.has_min ? 4 : 2) * LANES;

    return k.unpacked ? UNPACKED_BYTES : integer_bytes(k) + scale_bytes;
}

/* Of a super-block, before its blocks. */
INLINE uint32_t header_bytes(const struct kind k)
{
    return k.scales != SCALES_K ? 0 : (k.form == WEIGHT_U6 ? 18 : 16) * LANES;
}

/* Where block b begins. */
INLINE const uint8_t *block_at(const struct kind k, const uint8_t *w, uint32_t b)
{
    return w + b * block_bytes(k) +
           (k.scales == SCALES_K ? (b / SUPER_BLOCKS + 1) * header_bytes(k) : 0);
}

/* The outputs' values 4 g to 4 g + 3 of a block. */
INLINE lanes_i group(const struct kind k, const uint8_t *w, int g)
{
    if (k.unpacked || k.form == WEIGHT_S8)
        return I_LOAD(w + g * LANE_BYTES);
    lanes_i raw = I_LOAD(w + g / 2 * LANE_BYTES);
    lanes_i v = I_AND(g & 1 ? I_SHIFT_RIGHT16(raw, 4) : raw, I_SET8(15));
    if (k.form == WEIGHT_U5) {
        lanes_i bits = I_LOAD(w + 4 * LANE_BYTES);
        bits = g < 4 ? I_SHIFT_LEFT16(bits, 4 - g) : I_SHIFT_RIGHT16(bits, g - 4);
        v = I_OR(v, I_AND(bits, I_SET8(16)));
    }
    if (k.form == WEIGHT_U6) {
        lanes_i bits = I_LOAD(w + (4 + g / 4) * LANE_BYTES);
        int q = 2 * (g & 3);
        bits = q <= 4 ? I_SHIFT_LEFT16(bits, 4 - q) : I_SHIFT_RIGHT16(bits, q - 4);
        v = I_OR(v, I_AND(bits, I_SET8(48)));
    }
    return v;
}

/* Of a super-block the i'th of 16: U6 a step's scale; others a block's scale, then minimum. */
INLINE lanes_f super_scale(const struct kind k, const uint8_t *header, uint32_t i)
{
    lanes_i v;

    if (k.form == WEIGHT_U6)
        return F_MUL(I_TO_F(I_LOAD_INT8(header + i * LANES)), F_LOAD_HALVES(header + 16 * LANES));
    if (i < 15) {
        v = I_SHIFT_RIGHT32(I_LOAD(header + i / 5 * LANE_BYTES), 6 * (i % 5));
        v = I_AND(v, I_SET32(63));
    } else {
        v = I_SHIFT_RIGHT32(I_LOAD(header), 30);
        for (int j = 1; j < 3; j++) {
            lanes_i two = I_SHIFT_RIGHT32(I_LOAD(header + j * LANE_BYTES), 30);
            v = I_OR(v, I_SHIFT_LEFT32(two, 2 * j));
        }
    }
    return F_MUL(I_TO_F(v), F_LOAD_HALVES(header + (i < 8 ? 12 : 14) * LANES));
}

/* A super-block's scales in the order of use: of each block two. */
INLINE void expand(const struct kind k, const uint8_t *header, float (*to)[2][LANES])
{
    UNROLL for (int i = 0; i < 16; i++)
    {
        float *one = k.form == WEIGHT_U6 ? to[i / 2][i % 2] : to[i % 8][i / 8];
        F_STORE(one, super_scale(k, header, (uint32_t)i));
    }
}

/* A panel's block of 32 values; super: its scales, if they are a K-quant's. */
struct part {
    const uint8_t *w;
    const float (*super)[LANES];
};

/* Scale i (or minimum) of a block. */
INLINE lanes_f scale(const struct kind k, const struct part at, int i)
{
    const uint8_t *w = at.w + integer_bytes(k);

    if (k.scales == SCALES_K)
        return F_LOAD(at.super[i]);
    return k.scales == SCALES_F16 ? F_LOAD_HALVES(w + i * 2 * LANES)
                                  : F_LOAD((const float *)(w + i * LANE_BYTES));
}

/* The same of block b of a panel. */
INLINE lanes_f scale_of(const struct kind k, const uint8_t *panel, uint32_t b, int i)
{
    uint32_t j = b % SUPER_BLOCKS;

    if (k.scales == SCALES_K)
        return super_scale(k, block_at(k, panel, b - j) - header_bytes(k),
                           k.form == WEIGHT_U6 ? 2 * j + (uint32_t)i : 8 * (uint32_t)i + j);
    return scale(k, (struct part){.w = block_at(k, panel, b)}, i);
}

#ifdef DOT_BYTES
/* n groups of a block from the first, added to the sums. */
INLINE void add_groups(const struct kind k, const struct part *w, const struct ACTS_OF(q8) * x,
                       const int first, const int n, const int rows, const int panels,
                       lanes_i (*a)[TILE])
{
    UNROLL for (int g = first; g < first + n; g++)
    {
        lanes_i v[2];
        UNROLL for (int p = 0; p < panels; p++) v[p] = group(k, w[p].w, g);
        UNROLL for (int i = 0; i < rows; i++)
        {
            lanes_i xx = I_SET32(x->x[g][i]);
            UNROLL for (int p = 0; p < panels; p++) a[p][i] = DOT_BYTES(a[p][i], v[p], xx);
        }
    }
}
#else
/* 8-bit weights multiply as |w| and x with w's sign, a pair of which stays below 2^15. */
INLINE void add_groups_s8(const struct kind k, const struct part *w, const struct ACTS_OF(q8) * x,
                          const int first, const int n, const int rows, const int panels,
                          lanes_i (*a)[TILE])
{
    const lanes_i ones = I_SET16(1);

    UNROLL for (int g = first; g < first + n; g++)
    {
        lanes_i v[2], u[2];
        UNROLL for (int p = 0; p < panels; p++)
        {
            v[p] = group(k, w[p].w, g);
            u[p] = I_ABS8(v[p]);
        }
        UNROLL for (int i = 0; i < rows; i++)
        {
            lanes_i xx = I_SET32(x->x[g][i]);
            UNROLL for (int p = 0; p < panels; p++)
            {
                lanes_i pairs = I_PAIRS_BYTES(u[p], I_SIGN8(xx, v[p]));
                a[p][i] = I_ADD32(a[p][i], I_PAIRS_INT16(pairs, ones));
                I_KEEP(a[p][i]);
            }
        }
    }
}

/* n groups of a block from the first, added to the sums: as many in 16 bits as cannot saturate. */
INLINE void add_groups(const struct kind k, const struct part *w, const struct ACTS_OF(q8) * x,
                       const int first, const int n, const int rows, const int panels,
                       lanes_i (*a)[TILE])
{
    const lanes_i ones = I_SET16(1);
    const int most = k.form == WEIGHT_U4 ? 8 : k.form == WEIGHT_U5 ? 4 : 2;

    if (k.form == WEIGHT_S8) {
        add_groups_s8(k, w, x, first, n, rows, panels, a);
        return;
    }
    UNROLL for (int chain = first; chain < first + n; chain += most)
    {
        lanes_i sum[2][TILE];
        UNROLL for (int g = chain; g < chain + most; g++)
        {
            lanes_i v[2];
            UNROLL for (int p = 0; p < panels; p++) v[p] = group(k, w[p].w, g);
            UNROLL for (int i = 0; i < rows; i++)
            {
                lanes_i xx = I_SET32(x->x[g][i]);
                UNROLL for (int p = 0; p < panels; p++)
                {
                    lanes_i pairs = I_PAIRS_BYTES(v[p], xx);
                    sum[p][i] = g == chain ? pairs : I_ADD16(sum[p][i], pairs);
                    I_KEEP(sum[p][i]);
                }
            }
        }
        UNROLL for (int p = 0; p < panels; p++) UNROLL for (int i = 0; i < rows; i++) a[p][i] =
            I_ADD32(a[p][i], I_PAIRS_INT16(sum[p][i], ones));
    }
}
#endif

INLINE void block(const struct kind k, const struct part *w, const struct ACTS_OF(q8) * x,
                  const int rows, const int panels, lanes_f (*f)[TILE])
{
    const int steps = k.form == WEIGHT_U6 ? 2 : 1;

    UNROLL for (int h = 0; h < steps; h++)
    {
        lanes_i a[2][TILE];
        UNROLL for (int i = 0; i < rows; i++)
        {
            lanes_i start =
                I_SET32(k.start < 0 ? MAGIC : x->start[k.start < 0 ? 0 : k.start + h][i]);
            UNROLL for (int p = 0; p < panels; p++) a[p][i] = start;
        }
        add_groups(k, w, x, h * 4, 8 / steps, rows, panels, a);
        UNROLL for (int p = 0; p < panels; p++)
        {
            lanes_f d = scale(k, w[p], h), m = k.has_min ? scale(k, w[p], 1) : d;
            UNROLL for (int i = 0; i < rows; i++)
            {
                lanes_f t = F_FMA(I_AS_F(a[p][i]), F_SET(x->d[i]), F_SET(x->c[i]));
                f[p][i] = F_FMA(t, d, f[p][i]);
                if (k.has_min)
                    f[p][i] = F_FMA(m, F_SET(x->s[i]), f[p][i]);
            }
        }
    }
}

/* The outputs' weight of one k, signed. */
INLINE lanes_f column(const struct kind k, const uint8_t *w, uint32_t at)
{
    const int offset = k.form == WEIGHT_S8   ? 128
                       : k.form == WEIGHT_U6 ? 32
                       : k.start == START_8  ? 8
                       : k.start == START_16 ? 16
                                             : 0;
    const bool bytes = k.unpacked || k.form == WEIGHT_S8;
    uint32_t g = at / 4, shift = 8 * (at % 4);
    lanes_i v;

    if (bytes) {
        v = I_SHIFT_RIGHT32(I_LOAD(w + g * LANE_BYTES), shift);
        v = I_AND(v, I_SET32(255));
#ifndef DOT_BYTES
        if (k.form == WEIGHT_S8) /* signed: as if it had the offset too */
            v = I_XOR(v, I_SET32(128));
#endif
    } else {
        v = I_SHIFT_RIGHT32(I_LOAD(w + g / 2 * LANE_BYTES), shift + 4 * (g & 1));
        v = I_AND(v, I_SET32(15));
    }
    if (k.form == WEIGHT_U5 && !bytes) {
        lanes_i bit = I_SHIFT_RIGHT32(I_LOAD(w + 4 * LANE_BYTES), shift + g);
        v = I_OR(v, I_SHIFT_LEFT32(I_AND(bit, I_SET32(1)), 4));
    }
    if (k.form == WEIGHT_U6 && !bytes) {
        lanes_i bits = I_SHIFT_RIGHT32(I_LOAD(w + (4 + g / 4) * LANE_BYTES), shift + 2 * (g & 3));
        v = I_OR(v, I_SHIFT_LEFT32(I_AND(bits, I_SET32(3)), 4));
    }
    return I_TO_F(I_SUB32(v, I_SET32(offset)));
}

INLINE void outlier(const struct kind k, const uint8_t *const *w,
                    const struct ACTS_OF(outliers) * o, const int rows, const int panels,
                    lanes_f (*f)[TILE])
{
    UNROLL for (int i = 0; i < rows; i++)
    {
        uint32_t b = o->k[i] / BLOCK, at = o->k[i] % BLOCK;
        lanes_f x = F_SET(o->x[i]);
        UNROLL for (int p = 0; p < panels; p++)
        {
            lanes_f d = scale_of(k, w[p], b, k.form == WEIGHT_U6 && at >= 16);
            lanes_f t = F_MUL(column(k, block_at(k, w[p], b), at), x);
            f[p][i] = F_FMA(t, d, f[p][i]);
            if (k.has_min)
                f[p][i] = F_FMA(scale_of(k, w[p], b, 1), x, f[p][i]);
        }
    }
}

INLINE void fetch(const uint8_t *w, uint32_t bytes)
{
    UNROLL for (uint32_t line = 0; line < bytes; line += 64)
        _mm_prefetch((const char *)(w + line), _MM_HINT_T0);
}

/* All of K for a tile, prefetching the panels so many bytes ahead: y[panel][row][lane]. */
INLINE void tile(const struct kind k, const uint8_t *const *w, uint64_t ahead,
                 const struct ACTS_OF(q8) * x, const struct ACTS_OF(outliers) * o, uint32_t n_k,
                 const int rows, const int panels, float (*y)[TILE][LANES])
{
    _Alignas(64) float super[2][SUPER_BLOCKS][2][LANES];
    const uint8_t *at[2] = {w[0], w[panels - 1]};
    uint32_t n_segments = segment_count(n_k);

    for (uint32_t s = 0; s < n_segments; s++) {
        lanes_f f[2][TILE];
        UNROLL for (int p = 0; p < panels; p++) UNROLL for (int i = 0; i < rows; i++) f[p][i] =
            F_ZERO();
        for (uint32_t b = segment_end(n_k, s) / BLOCK - s * (SEGMENT / BLOCK); b > 0; b--, x++) {
            struct part now[2];
            if (k.scales == SCALES_K && b % SUPER_BLOCKS == 0)
                UNROLL for (int p = 0; p < panels; p++)
                {
                    fetch(at[p] + ahead, header_bytes(k));
                    expand(k, at[p], super[p]);
                    at[p] += header_bytes(k);
                }
            if (!k.unpacked)
                UNROLL for (int p = 0; p < panels; p++) fetch(at[p] + ahead, block_bytes(k));
            UNROLL for (int p = 0; p < panels; p++) now[p] =
                (struct part){at[p], super[p][-b % SUPER_BLOCKS]};
            block(k, now, x, rows, panels, f);
            UNROLL for (int p = 0; p < panels; p++) at[p] += block_bytes(k);
        }
        outlier(k, w, o + s, rows, panels, f);
        UNROLL for (int p = 0; p < panels; p++) UNROLL for (int i = 0; i < rows; i++)
            F_STORE(y[p][i], s == 0 ? f[p][i] : F_ADD(F_LOAD(y[p][i]), f[p][i]));
    }
}

/* ---- instances ---- */

typedef void tile_kernel(const uint8_t *const *w, uint64_t ahead, const struct ACTS_OF(q8) * x,
                         const struct ACTS_OF(outliers) * o, uint32_t n_k, float (*y)[TILE][LANES]);

#define INSTANCE(rows, name, panels, ...)                                                          \
    static void name##_##rows##_##panels(                                                          \
        const uint8_t *const *w, uint64_t ahead, const struct ACTS_OF(q8) * x,                     \
        const struct ACTS_OF(outliers) * o, uint32_t n_k, float(*y)[TILE][LANES])                  \
    {                                                                                              \
        const struct kind k = {__VA_ARGS__};                                                       \
        tile(k, w, ahead, x, o, n_k, rows, panels, y);                                             \
    }
#define INSTANCES(name, ...)                                                                       \
    EACH_ROWS(INSTANCE, name, 1, __VA_ARGS__) EACH_ROWS(INSTANCE, name, 2, __VA_ARGS__)
#define POINTER(rows, name, panels) name##_##rows##_##panels,
/* By panels - 1, then rows - 1. */
#define KERNELS(name)                                                                              \
    {                                                                                              \
        {EACH_ROWS(POINTER, name, 1)},                                                             \
        {                                                                                          \
            EACH_ROWS(POINTER, name, 2)                                                            \
        }                                                                                          \
    }

INSTANCES(q4_0, WEIGHT_U4, false, SCALES_F16, false, START_8)
INSTANCES(q4_1, WEIGHT_U4, true, SCALES_F16, false, -1)
INSTANCES(q4_k, WEIGHT_U4, true, SCALES_K, false, -1)
INSTANCES(q5_0, WEIGHT_U5, false, SCALES_F16, false, START_16)
INSTANCES(q5_k, WEIGHT_U5, true, SCALES_K, false, -1)
INSTANCES(q6_k, WEIGHT_U6, false, SCALES_K, false, START_32_LOW)
INSTANCES(q8_0, WEIGHT_S8, false, SCALES_F16, false, START_S8)
INSTANCES(bytes_q4_0, WEIGHT_U4, false, SCALES_F32, true, START_8)
INSTANCES(bytes_q4_m, WEIGHT_U4, true, SCALES_F32, true, -1)
INSTANCES(bytes_q5_0, WEIGHT_U5, false, SCALES_F32, true, START_16)
INSTANCES(bytes_q5_m, WEIGHT_U5, true, SCALES_F32, true, -1)
INSTANCES(bytes_q6, WEIGHT_U6, false, SCALES_F32, true, START_32_LOW)
INSTANCES(bytes_q8, WEIGHT_S8, false, SCALES_F32, true, START_S8)

/* A panel's blocks as bytes with f32 scales. */
INLINE void unpack(const struct kind k, const uint8_t *w, uint32_t n_blocks, uint8_t *to)
{
    const uint8_t *panel = w;

    for (uint32_t b = 0; b < n_blocks; b++, to += UNPACKED_BYTES) {
        w = block_at(k, panel, b);
        UNROLL for (int g = 0; g < 8; g++) I_STORE(to + LANE_BYTES * g, group(k, w, g));
        F_STORE((float *)(to + 8 * LANE_BYTES), scale_of(k, panel, b, 0));
        if (k.has_min || k.form == WEIGHT_U6)
            F_STORE((float *)(to + 9 * LANE_BYTES), scale_of(k, panel, b, 1));
    }
}

#define UNPACK(name, ...)                                                                          \
    static void unpack_##name(const uint8_t *w, uint32_t n_blocks, uint8_t *to)                    \
    {                                                                                              \
        unpack((struct kind){__VA_ARGS__}, w, n_blocks, to);                                       \
    }
UNPACK(q4_0, WEIGHT_U4, false, SCALES_F16, false, START_8)
UNPACK(q4_1, WEIGHT_U4, true, SCALES_F16, false, -1)
UNPACK(q4_k, WEIGHT_U4, true, SCALES_K, false, -1)
UNPACK(q5_0, WEIGHT_U5, false, SCALES_F16, false, START_16)
UNPACK(q5_k, WEIGHT_U5, true, SCALES_K, false, -1)
UNPACK(q6_k, WEIGHT_U6, false, SCALES_K, false, START_32_LOW)
UNPACK(q8_0, WEIGHT_S8, false, SCALES_F16, false, START_S8)

static const struct kernels {
    enum dtype type;
    tile_kernel *packed[2][TILE], *bytes[2][TILE];
    void (*unpack)(const uint8_t *w, uint32_t n_blocks, uint8_t *to);
} kernels[] = {
    {DTYPE_Q4_0, KERNELS(q4_0), KERNELS(bytes_q4_0), unpack_q4_0},
    {DTYPE_Q4_1, KERNELS(q4_1), KERNELS(bytes_q4_m), unpack_q4_1},
    {DTYPE_Q4_K, KERNELS(q4_k), KERNELS(bytes_q4_m), unpack_q4_k},
    {DTYPE_Q5_0, KERNELS(q5_0), KERNELS(bytes_q5_0), unpack_q5_0},
    {DTYPE_Q5_K, KERNELS(q5_k), KERNELS(bytes_q5_m), unpack_q5_k},
    {DTYPE_Q6_K, KERNELS(q6_k), KERNELS(bytes_q6), unpack_q6_k},
    {DTYPE_Q8_0, KERNELS(q8_0), KERNELS(bytes_q8), unpack_q8_0},
};

static uint32_t unpacked_bytes(enum weight_form form)
{
    return UNPACKED_BYTES;
}

static uint32_t rows_worth_unpacking(const struct compute_matrix *m)
{
    return 2 * TILE + 1;
}

#include "compute/cpu/x86/matmul_task.h"
