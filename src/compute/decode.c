/* Rows of a file's blocks as signed integers and exact scales. Source: the block layouts of the
 * GGUF specification. */
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

static bool decode_q45_k(const uint8_t *p, bool five, int16_t *w, float *d, float *m,
                         uint8_t *steps)
{
    float scale = load_half(p), min = load_half(p + 2);
    const uint8_t *high = p + 16, *qs = five ? p + 48 : p + 16;

    for (int j = 0; j < 8; j++) {
        int sc, mn;
        k_scale_min(p + 4, j, &sc, &mn);
        d[j] = scale * (float)sc;
        m[j] = -(min * (float)mn);
        steps[j] = (uint8_t)sc;
        steps[SUPER_BLOCKS + j] = (uint8_t)mn;
    }
    for (int j = 0; j < 8; j += 2, qs += 32)
        for (int i = 0; i < 32; i++) {
            w[32 * j + i] = qs[i] & 15;
            w[32 * j + 32 + i] = qs[i] >> 4;
        }
    for (int j = 0; five && j < 8; j++)
        for (int i = 0; i < 32; i++)
            w[32 * j + i] = (int16_t)(w[32 * j + i] | (high[i] >> j & 1) << 4);
    return finite(scale) && finite(min);
}

static bool decode_q6_k(const uint8_t *p, int16_t *w, float *d)
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
    return finite(scale);
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
static bool decode_simple(enum dtype type, const uint8_t *p, int16_t *w, float *d, float *m)
{
    bool ok = true;

    *d = load_half(p);
    if (type == DTYPE_Q4_0) {
        decode_q4(p + 2, 8, w);
    } else if (type == DTYPE_Q4_1) {
        *m = load_half(p + 2);
        ok = finite(*m);
        decode_q4(p + 4, 0, w);
    } else if (type == DTYPE_Q5_0) {
        decode_q5_0(p, w);
    } else {
        for (uint32_t i = 0; i < BLOCK; i++)
            w[i] = (int8_t)p[2 + i];
    }
    return ok && finite(*d);
}

bool decode_block(enum dtype type, const void *block, int16_t *w, float *d, float *m)
{
    uint8_t steps[2 * SUPER_BLOCKS];

    if (type == DTYPE_Q6_K)
        return decode_q6_k(block, w, d);
    if (type == DTYPE_Q4_K || type == DTYPE_Q5_K)
        return decode_q45_k(block, type == DTYPE_Q5_K, w, d, m, steps);
    return decode_simple(type, block, w, d, m);
}

static bool decode_floats(const uint8_t *p, uint32_t k, float *values)
{
    bool ok = true;

    for (uint32_t i = 0; i < k; i++) {
        memcpy(&values[i], p + 4 * (size_t)i, 4);
        ok &= finite(values[i]);
    }
    return ok;
}

bool decode_row(const struct compute_matrix *matrix, const void *row, struct raw_rows *raw,
                uint32_t i)
{
    const uint8_t *p = row;
    enum dtype type = matrix->type;
    uint32_t k = matrix->k, n_blocks = matrix->n_blocks, block_bytes = dtype_block_bytes(type);
    int16_t *w = raw->w + (size_t)i * raw->stride;
    float *d = raw->d + (size_t)i * n_blocks * 2, *m = raw->m + (size_t)i * n_blocks;
    bool ok = true;

    if (type == DTYPE_F32)
        return decode_floats(p, k, raw->values + (size_t)i * raw->stride);
    if (matrix->scales != SCALES_K) {
        for (uint32_t b = 0; b < n_blocks; b++, p += block_bytes)
            ok &= decode_simple(type, p, w + b * BLOCK, d + b, m + b);
        return ok;
    }
    uint8_t *steps = raw->steps + (size_t)i * n_blocks * 2;
    uint16_t *super = raw->super + (size_t)i * (n_blocks / SUPER_BLOCKS * 2);
    for (uint32_t b = 0; b < n_blocks; b += SUPER_BLOCKS, p += block_bytes, super += 2) {
        if (type == DTYPE_Q6_K) {
            ok &= decode_q6_k(p, w + b * BLOCK, d + 2 * b);
            memcpy(steps + 2 * b, p + 192, 2 * SUPER_BLOCKS);
            super[0] = load_u16(p + 208);
        } else {
            ok &= decode_q45_k(p, type == DTYPE_Q5_K, w + b * BLOCK, d + b, m + b, steps + 2 * b);
            super[0] = load_u16(p);
            super[1] = load_u16(p + 2) ^ 0x8000;
        }
    }
    return ok;
}
