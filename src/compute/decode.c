/* A file's blocks as integers and exact scales, twice for quantised types: plainly, one block alone
 * (decode_block(), which dequantises), and fast, for packing. A test holds the two together.
 * Source: the block layouts of the GGUF specification. */
#include "compute/internal.h"

static uint16_t load_u16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static float load_half(const uint8_t *p)
{
    return half_to_float(load_u16(p));
}

static bool finite(float x)
{
    return (float_bits(x) & 0x7F800000u) != 0x7F800000u;
}

static bool finite_half(uint16_t h)
{
    return (h & 0x7C00) != 0x7C00;
}

static void decode_q4(const uint8_t *qs, int offset, int16_t *w)
{
    for (int j = 0; j < 16; j++) {
        w[j] = (int16_t)((qs[j] & 15) - offset);
        w[j + 16] = (int16_t)((qs[j] >> 4) - offset);
    }
}

static void decode_q5_0(const uint8_t *p, int16_t *w)
{
    uint32_t high = p[2] | (uint32_t)p[3] << 8 | (uint32_t)p[4] << 16 | (uint32_t)p[5] << 24;

    for (int j = 0; j < 16; j++) {
        w[j] = (int16_t)(((p[6 + j] & 15) | (int)(high >> j & 1) << 4) - 16);
        w[j + 16] = (int16_t)(((p[6 + j] >> 4) | (int)(high >> (j + 16) & 1) << 4) - 16);
    }
}

/* The eight 6-bit scales and minima of a Q4_K or Q5_K super-block. */
static void k_scale_min(const uint8_t *s, int j, int *scale, int *min)
{
    if (j < 4) {
        *scale = s[j] & 63;
        *min = s[j + 4] & 63;
    } else {
        *scale = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
        *min = (s[j + 4] >> 4) | (s[j] >> 6) << 4;
    }
}

static void decode_q45_k(const uint8_t *p, bool five, int16_t *w, float *d, float *m)
{
    float scale = load_half(p), min = load_half(p + 2);
    const uint8_t *high = p + 16, *qs = five ? p + 48 : p + 16;

    for (int j = 0; j < 8; j++) {
        int sc, mn;
        k_scale_min(p + 4, j, &sc, &mn);
        d[j] = scale * (float)sc;
        m[j] = -(min * (float)mn);
    }
    for (int j = 0; j < 8; j += 2, qs += 32)
        for (int i = 0; i < 32; i++) {
            w[32 * j + i] = qs[i] & 15;
            w[32 * j + 32 + i] = qs[i] >> 4;
        }
    for (int j = 0; five && j < 8; j++)
        for (int i = 0; i < 32; i++)
            w[32 * j + i] = (int16_t)(w[32 * j + i] | (high[i] >> j & 1) << 4);
}

static void decode_q6_k(const uint8_t *p, int16_t *w, float *d)
{
    float scale = load_half(p + 208);
    const int8_t *sc = (const int8_t *)(p + 192);

    for (int half = 0; half < 2; half++) {
        const uint8_t *low = p + 64 * half, *high = p + 128 + 32 * half;
        int16_t *to = w + 128 * half;
        for (int l = 0; l < 64; l++) {
            to[l] = low[l] & 15;
            to[l + 64] = low[l] >> 4;
        }
        for (int quarter = 0; quarter < 4; quarter++, to += 32)
            for (int l = 0; l < 32; l++)
                to[l] = (int16_t)((to[l] | (high[l] >> (2 * quarter) & 3) << 4) - 32);
    }
    for (int j = 0; j < 16; j++)
        d[j] = scale * (float)sc[j];
}

/* A finite 16-bit float, in a form that compilers turn into vectors. */
static inline float float_of(uint16_t h, bool bf16)
{
    if (bf16)
        return bits_float((uint32_t)h << 16);
    /* The exponent's other bias by a multiplication, which is right for denormals, too. */
    float magnitude = bits_float((uint32_t)(h & 0x7FFF) << 13) * 0x1p112f;
    return bits_float(float_bits(magnitude) | (uint32_t)(h & 0x8000) << 16);
}

/* 2^(e - 12) and 2^(12 - e), e the exponent of the largest. */
static double block_power(float largest, double *inverse)
{
    double value = (double)largest, s = 1;
    uint64_t u;

    *inverse = 1;
    if (largest > 0) {
        memcpy(&u, &value, sizeof u);
        u = (u >> 52) - 12; /* a double has no denormals here */
        uint64_t bits = u << 52, inverse_bits = (2046 - u) << 52;
        memcpy(&s, &bits, sizeof s);
        memcpy(inverse, &inverse_bits, sizeof *inverse);
    }
    return s;
}

/* A block of floats as int16 with a power of two (EXACTNESS 3). */
static inline bool decode_float_block(const uint16_t *h, bool bf16, int16_t *w, float *d)
{
    int16_t largest = 0;
    double inverse;

    for (int i = 0; i < BLOCK; i++) {
        int16_t magnitude = (int16_t)(h[i] & 0x7FFF);
        largest = MAX(largest, magnitude);
    }
    if (largest >= (bf16 ? 0x7F80 : 0x7C00))
        return false;
    *d = (float)block_power(float_of((uint16_t)largest, bf16), &inverse);
    if (inverse < 0x1p126) {
        /* Exact, or so small that it is zero. To nearest even by a number whose last bit is 1. */
        const float by = (float)inverse;
        for (int i = 0; i < BLOCK; i++)
            w[i] = (int16_t)(float_bits(float_of(h[i], bf16) * by + 0x1.8p23f) - 0x4B400000u);
        return true;
    }
    for (int i = 0; i < BLOCK; i++) {
        double q = (double)float_of(h[i], bf16) * inverse + 0x1.8p52;
        w[i] = (int16_t)(q - 0x1.8p52);
    }
    return true;
}

bool decode_halves(enum dtype type, const void *row, uint32_t k, int16_t *w, float *d)
{
    const uint8_t *p = row;
    const bool bf16 = type == DTYPE_BF16;
    bool ok = true;

    for (; k > 0; w += BLOCK, d++, p += 2 * BLOCK) {
        uint16_t h[BLOCK];
        if (k >= BLOCK) {
            memcpy(h, p, sizeof h);
        } else {
            memset(h, 0, sizeof h);
            memcpy(h, p, 2 * (size_t)k);
        }
        ok &= bf16 ? decode_float_block(h, true, w, d) : decode_float_block(h, false, w, d);
        k -= MIN(k, BLOCK);
    }
    return ok;
}

/* A block of 32 of the types whose scales are plain f16. */
static void decode_simple(enum dtype type, const uint8_t *p, int16_t *w, float *d, float *m)
{
    *d = load_half(p);
    if (type == DTYPE_Q4_0) {
        decode_q4(p + 2, 8, w);
    } else if (type == DTYPE_Q4_1) {
        *m = load_half(p + 2);
        decode_q4(p + 4, 0, w);
    } else if (type == DTYPE_Q5_0) {
        decode_q5_0(p, w);
    } else {
        for (uint32_t i = 0; i < BLOCK; i++)
            w[i] = (int8_t)p[2 + i];
    }
}

void decode_block(enum dtype type, const void *block, int16_t *w, float *d, float *m)
{
    if (type == DTYPE_Q6_K)
        decode_q6_k(block, w, d);
    else if (type == DTYPE_Q4_K || type == DTYPE_Q5_K)
        decode_q45_k(block, type == DTYPE_Q5_K, w, d, m);
    else
        decode_simple(type, block, w, d, m);
}

/* ---- for packing: bytes, in forms that compilers turn into vectors ---- */

/* n is a multiple of 8. */
static inline void nibbles(const uint8_t *qs, uint32_t n, uint8_t *u)
{
    const uint64_t low = UINT64_C(0x0F0F0F0F0F0F0F0F);

    for (uint32_t i = 0; i < n; i += 8) {
        uint64_t q, lower, upper;
        memcpy(&q, qs + i, 8);
        lower = q & low;
        upper = q >> 4 & low;
        memcpy(u + i, &lower, 8);
        memcpy(u + n + i, &upper, 8);
    }
}

static inline void block_simple(const enum dtype type, const uint8_t *qs, uint8_t *u)
{
    if (type == DTYPE_Q8_0) {
        memcpy(u, qs, BLOCK);
    } else if (type == DTYPE_Q5_0) {
        nibbles(qs + 4, 16, u);
        for (int i = 0; i < BLOCK; i++)
            u[i] |= qs[i / 8] & 1 << i % 8 ? 16 : 0;
    } else {
        nibbles(qs, 16, u);
    }
}

static inline bool unpack_simple(const enum dtype type, const uint8_t *p, uint32_t bytes,
                                 struct raw_rows *raw, uint32_t i)
{
    const uint32_t n_blocks = raw->n_blocks;
    bool ok = true;

    for (uint32_t b = 0; b < n_blocks; b++, p += bytes) {
        uint16_t d = load_u16(p), m = 0;
        raw->d[b][i] = d;
        if (type == DTYPE_Q4_1)
            raw->m[b][i] = m = load_u16(p + 2);
        ok &= finite_half(d) & finite_half(m);
        block_simple(type, p + (type == DTYPE_Q4_1 ? 4 : 2), raw->u[i] + b * BLOCK);
    }
    return ok;
}

static inline void unpack_q45_k(const uint8_t *restrict p, bool five, uint8_t *restrict u)
{
    const uint8_t *high = p + 16, *qs = five ? p + 48 : p + 16;

    for (int j = 0; j < 4; j++)
        nibbles(qs + 32 * j, 32, u + 64 * j);
    for (int j = 0; five && j < 8; j++)
        for (int i = 0; i < 32; i++)
            u[32 * j + i] |= high[i] & 1 << j ? 16 : 0;
}

static void unpack_q6_k(const uint8_t *restrict p, uint8_t *restrict u)
{
    for (int half = 0; half < 2; half++, u += 128) {
        const uint8_t *high = p + 128 + 32 * half;
        nibbles(p + 64 * half, 64, u);
        for (int i = 0; i < 32; i++) {
            u[i] |= (uint8_t)((high[i] & 3) << 4);
            u[i + 32] |= (uint8_t)((high[i] & 12) << 2);
            u[i + 64] |= high[i] & 48;
            u[i + 96] |= (uint8_t)((high[i] >> 2) & 48);
        }
    }
}

static bool unpack_k(enum dtype type, const uint8_t *p, struct raw_rows *raw, uint32_t i)
{
    if (type == DTYPE_Q6_K) {
        unpack_q6_k(p, raw->u[i]);
        for (int j = 0; j < 2 * SUPER_BLOCKS; j++)
            raw->steps[j][i] = p[192 + j];
        raw->super[0][i] = load_u16(p + 208);
        return finite_half(raw->super[0][i]);
    }
    unpack_q45_k(p, type == DTYPE_Q5_K, raw->u[i]);
    for (int j = 0; j < SUPER_BLOCKS; j++) {
        int scale, min;
        k_scale_min(p + 4, j, &scale, &min);
        raw->steps[j][i] = (uint8_t)scale;
        raw->steps[SUPER_BLOCKS + j][i] = (uint8_t)min;
    }
    raw->super[0][i] = load_u16(p);
    raw->super[1][i] = load_u16(p + 2) ^ 0x8000;
    return finite_half(raw->super[0][i]) && finite_half(raw->super[1][i]);
}

static bool unpack_f32(const uint8_t *p, struct raw_rows *raw, uint32_t i)
{
    float *values = raw->values[i];
    bool ok = true;

    memset(values, 0, RAW_VALUES * sizeof *values);
    memcpy(values, p, raw->n_values * sizeof *values);
    for (uint32_t j = 0; j < raw->n_values; j++)
        ok &= finite(values[j]);
    return ok;
}

bool decode_columns(const struct compute_matrix *m, const void *blocks, struct raw_rows *raw,
                    uint32_t i)
{
    switch (m->type) {
    case DTYPE_F32:
        return unpack_f32(blocks, raw, i);
    case DTYPE_Q8_0:
        return unpack_simple(DTYPE_Q8_0, blocks, 34, raw, i);
    case DTYPE_Q4_0:
        return unpack_simple(DTYPE_Q4_0, blocks, 18, raw, i);
    case DTYPE_Q4_1:
        return unpack_simple(DTYPE_Q4_1, blocks, 20, raw, i);
    case DTYPE_Q5_0:
        return unpack_simple(DTYPE_Q5_0, blocks, 22, raw, i);
    default:
        return unpack_k(m->type, blocks, raw, i);
    }
}
