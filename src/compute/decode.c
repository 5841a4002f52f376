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

static bool decode_q45_k(const uint8_t *p, bool five, int16_t *w, float *d, float *m)
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

/* A block of floats as int16 with a power of two (EXACTNESS 3). */
static bool decode_float_block(const uint8_t *p, bool bf16, uint32_t n, int16_t *w, float *d)
{
    float x[BLOCK] = {0};
    uint32_t largest = 0;

    for (uint32_t i = 0; i < n; i++) {
        x[i] = bf16 ? bits_float((uint32_t)load_u16(p + 2 * i) << 16) : load_half(p + 2 * i);
        largest = MAX(largest, float_bits(x[i]) & 0x7FFFFFFFu);
    }
    if (largest >= 0x7F800000u)
        return false;
    /* The exponent of a denormal too: scaling up first is exact. */
    double value = (double)bits_float(largest), s = 1, inverse = 1;
    if (largest) {
        uint64_t u;
        memcpy(&u, &value, sizeof u);
        u = ((u >> 52) - 12) << 52; /* 2^(e - 12): a double has no denormals here */
        memcpy(&s, &u, sizeof s);
        inverse = 1 / s; /* a power of two, too */
    }
    for (uint32_t i = 0; i < BLOCK; i++) {
        double q = (double)x[i] * inverse + 0x1.8p52; /* to nearest even */
        w[i] = (int16_t)(q - 0x1.8p52);
    }
    *d = (float)s;
    return true;
}

bool decode_row(enum dtype type, const void *row, uint32_t k, int16_t *w, float *values, float *d,
                float *m)
{
    const uint8_t *p = row;
    uint32_t n_blocks = (k + BLOCK - 1) / BLOCK, block_bytes = dtype_block_bytes(type);
    bool ok = true;

    switch (type) {
    case DTYPE_F32:
        for (uint32_t i = 0; i < k; i++) {
            memcpy(&values[i], p + 4 * (size_t)i, 4);
            ok &= finite(values[i]);
        }
        break;
    case DTYPE_F16:
    case DTYPE_BF16:
        for (uint32_t b = 0; b < n_blocks; b++)
            ok &= decode_float_block(p + 64 * (size_t)b, type == DTYPE_BF16,
                                     MIN(BLOCK, k - b * BLOCK), w + b * BLOCK, d + b);
        break;
    case DTYPE_Q4_0:
    case DTYPE_Q4_1:
    case DTYPE_Q5_0:
    case DTYPE_Q8_0:
        for (uint32_t b = 0; b < n_blocks; b++, p += block_bytes) {
            d[b] = load_half(p);
            ok &= finite(d[b]);
            if (type == DTYPE_Q4_0) {
                decode_q4(p + 2, 8, w + b * BLOCK);
            } else if (type == DTYPE_Q4_1) {
                m[b] = load_half(p + 2);
                ok &= finite(m[b]);
                decode_q4(p + 4, 0, w + b * BLOCK);
            } else if (type == DTYPE_Q5_0) {
                decode_q5_0(p, w + b * BLOCK);
            } else {
                for (uint32_t i = 0; i < BLOCK; i++)
                    w[b * BLOCK + i] = (int8_t)p[2 + i];
            }
        }
        break;
    case DTYPE_Q4_K:
    case DTYPE_Q5_K:
        for (uint32_t b = 0; b < n_blocks; b += 8, p += block_bytes)
            ok &= decode_q45_k(p, type == DTYPE_Q5_K, w + b * BLOCK, d + b, m + b);
        break;
    case DTYPE_Q6_K:
        for (uint32_t b = 0; b < n_blocks; b += 8, p += block_bytes)
            ok &= decode_q6_k(p, w + b * BLOCK, d + 2 * b);
        break;
    }
    return ok;
}
