/* Per segment of K and step of 32 (U6: 16): t = RN(A d), f = fmaf(t, dw, f), with a minimum f =
 * fmaf(m, s, f); then the outlier's step; y += f (EXACTNESS 3). A is a sum of integers, so its
 * order is free; the chain over steps is not.
 *
 * vpdpbusd adds to 32 bits without saturating, so the sum starts at 0x4B400000 less the offset's
 * share and is a float's bits at the end: the tail is two fma. Up to two tiles of rows read packed
 * weights straight; more have them unpacked to bytes once for all. */
#include "compute/cpu/x86/avx512vnni.h"

/* What a kernel is made for; always a constant, so that each instance keeps only its own path. */
struct kind {
    enum weight_form form;
    bool has_min;
    bool half;     /* scales are f16 */
    bool unpacked; /* a block is 512 bytes and 32 f32 scales */
    int start;     /* which of the activations', or -1: no offset */
};

#define UNPACKED_BYTES 640

INLINE uint32_t integer_bytes(const struct kind k)
{
    return k.unpacked || k.form == WEIGHT_S8 ? 512
           : k.form == WEIGHT_U4             ? 256
           : k.form == WEIGHT_U5             ? 320
                                             : 384;
}

INLINE uint32_t block_bytes(const struct kind k)
{
    uint32_t scales = k.form == WEIGHT_U6 || k.has_min ? 2 : 1;

    return k.unpacked ? UNPACKED_BYTES : integer_bytes(k) + scales * (k.half ? 32 : 64);
}

/* The 16 outputs' values 4 g to 4 g + 3 of a block. */
INLINE __m512i group(const struct kind k, const uint8_t *w, int g)
{
    if (k.unpacked || k.form == WEIGHT_S8)
        return LOAD512(w + 64 * g);
    __m512i raw = LOAD512(w + 64 * (g / 2));
    __m512i v = _mm512_and_si512(g & 1 ? _mm512_srli_epi16(raw, 4) : raw, _mm512_set1_epi8(15));
    if (k.form == WEIGHT_U5) {
        __m512i bits = LOAD512(w + 256);
        bits = g < 4 ? _mm512_slli_epi16(bits, (unsigned)(4 - g))
                     : _mm512_srli_epi16(bits, (unsigned)(g - 4));
        v = _mm512_or_si512(v, _mm512_and_si512(bits, _mm512_set1_epi8(16)));
    }
    if (k.form == WEIGHT_U6) {
        __m512i bits = LOAD512(w + 256 + 64 * (g / 4));
        int q = 2 * (g & 3);
        bits = q <= 4 ? _mm512_slli_epi16(bits, (unsigned)(4 - q))
                      : _mm512_srli_epi16(bits, (unsigned)(q - 4));
        v = _mm512_or_si512(v, _mm512_and_si512(bits, _mm512_set1_epi8(48)));
    }
    return v;
}

/* Scale i (or minimum) of a block. */
INLINE __m512 scale(const struct kind k, const uint8_t *w, int i)
{
    w += integer_bytes(k);
    if (k.half && !k.unpacked)
        return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(w + 32 * i)));
    return _mm512_loadu_ps((const float *)(w + 64 * i));
}

INLINE void block(const struct kind k, const uint8_t *const *w, const struct avx512vnni_q8 *x,
                  const int rows, const int panels, __m512 (*f)[AVX512_TILE])
{
    const int steps = k.form == WEIGHT_U6 ? 2 : 1;

    UNROLL for (int h = 0; h < steps; h++)
    {
        __m512i a[2][AVX512_TILE];
        UNROLL for (int i = 0; i < rows; i++)
        {
            __m512i start =
                _mm512_set1_epi32(k.start < 0 ? MAGIC : x->start[k.start < 0 ? 0 : k.start + h][i]);
            UNROLL for (int p = 0; p < panels; p++) a[p][i] = start;
        }
        UNROLL for (int j = 0; j < 8 / steps; j++)
        {
            const int g = h * 4 + j;
            __m512i v[2];
            UNROLL for (int p = 0; p < panels; p++) v[p] = group(k, w[p], g);
            UNROLL for (int i = 0; i < rows; i++)
            {
                __m512i xx = _mm512_set1_epi32(x->x[g][i]);
                UNROLL for (int p = 0; p < panels; p++) a[p][i] =
                    _mm512_dpbusd_epi32(a[p][i], v[p], xx);
            }
        }
        UNROLL for (int p = 0; p < panels; p++)
        {
            __m512 d = scale(k, w[p], h), m = k.has_min ? scale(k, w[p], 1) : d;
            UNROLL for (int i = 0; i < rows; i++)
            {
                __m512 t = _mm512_fmadd_ps(_mm512_castsi512_ps(a[p][i]), _mm512_set1_ps(x->d[i]),
                                           _mm512_set1_ps(x->c[i]));
                f[p][i] = _mm512_fmadd_ps(t, d, f[p][i]);
                if (k.has_min)
                    f[p][i] = _mm512_fmadd_ps(m, _mm512_set1_ps(x->s[i]), f[p][i]);
            }
        }
    }
}

/* The 16 outputs' weight of one k, signed. */
INLINE __m512 column(const struct kind k, const uint8_t *w, uint32_t at)
{
    const int offset = k.form == WEIGHT_S8   ? 128
                       : k.form == WEIGHT_U6 ? 32
                       : k.start == START_8  ? 8
                       : k.start == START_16 ? 16
                                             : 0;
    uint32_t g = at / 4, shift = 8 * (at % 4);
    __m512i v;

    if (k.unpacked || k.form == WEIGHT_S8) {
        v = _mm512_srl_epi32(LOAD512(w + 64 * g), _mm_cvtsi32_si128((int)shift));
        v = _mm512_and_si512(v, _mm512_set1_epi32(255));
    } else {
        v = _mm512_srl_epi32(LOAD512(w + 64 * (g / 2)),
                             _mm_cvtsi32_si128((int)(shift + 4 * (g & 1))));
        v = _mm512_and_si512(v, _mm512_set1_epi32(15));
    }
    if (k.form == WEIGHT_U5 && !k.unpacked) {
        __m512i bit = _mm512_srl_epi32(LOAD512(w + 256), _mm_cvtsi32_si128((int)(shift + g)));
        v = _mm512_or_si512(v, _mm512_slli_epi32(_mm512_and_si512(bit, _mm512_set1_epi32(1)), 4));
    }
    if (k.form == WEIGHT_U6 && !k.unpacked) {
        __m512i bits = _mm512_srl_epi32(LOAD512(w + 256 + 64 * (g / 4)),
                                        _mm_cvtsi32_si128((int)(shift + 2 * (g & 3))));
        v = _mm512_or_si512(v, _mm512_slli_epi32(_mm512_and_si512(bits, _mm512_set1_epi32(3)), 4));
    }
    return _mm512_cvtepi32_ps(_mm512_sub_epi32(v, _mm512_set1_epi32(offset)));
}

INLINE void outlier(const struct kind k, const uint8_t *const *w,
                    const struct avx512vnni_outliers *o, const int rows, const int panels,
                    __m512 (*f)[AVX512_TILE])
{
    UNROLL for (int i = 0; i < rows; i++)
    {
        uint32_t b = o->k[i] / BLOCK, at = o->k[i] % BLOCK;
        __m512 x = _mm512_set1_ps(o->x[i]);
        UNROLL for (int p = 0; p < panels; p++)
        {
            const uint8_t *from = w[p] + b * block_bytes(k);
            __m512 d = k.form == WEIGHT_U6 && at >= 16 ? scale(k, from, 1) : scale(k, from, 0);
            f[p][i] = _mm512_fmadd_ps(_mm512_mul_ps(column(k, from, at), x), d, f[p][i]);
            if (k.has_min)
                f[p][i] = _mm512_fmadd_ps(scale(k, from, 1), x, f[p][i]);
        }
    }
}

/* All of K for a tile, prefetching the panels so many bytes ahead: y[panel][row][16]. */
INLINE void tile(const struct kind k, const uint8_t *const *w, uint64_t ahead,
                 const struct avx512vnni_q8 *x, const struct avx512vnni_outliers *o, uint32_t n_k,
                 const int rows, const int panels, float (*y)[AVX512_TILE][16])
{
    const uint8_t *at[2] = {w[0], w[panels - 1]};
    uint32_t n_segments = segment_count(n_k);

    for (uint32_t s = 0; s < n_segments; s++) {
        __m512 f[2][AVX512_TILE];
        UNROLL for (int p = 0; p < panels; p++) UNROLL for (int i = 0; i < rows; i++) f[p][i] =
            _mm512_setzero_ps();
        for (uint32_t b = segment_end(n_k, s) / BLOCK - s * (SEGMENT / BLOCK); b > 0; b--, x++) {
            if (!k.unpacked)
                UNROLL for (int p = 0; p < panels; p++)
                    UNROLL for (uint32_t line = 0; line < block_bytes(k); line += 64)
                        _mm_prefetch((const char *)(at[p] + ahead + line), _MM_HINT_T0);
            block(k, at, x, rows, panels, f);
            UNROLL for (int p = 0; p < panels; p++) at[p] += block_bytes(k);
        }
        outlier(k, w, o + s, rows, panels, f);
        UNROLL for (int p = 0; p < panels; p++) UNROLL for (int i = 0; i < rows; i++)
            _mm512_storeu_ps(y[p][i],
                             s == 0 ? f[p][i] : _mm512_add_ps(_mm512_loadu_ps(y[p][i]), f[p][i]));
    }
}

/* ---- instances ---- */

typedef void tile_kernel(const uint8_t *const *w, uint64_t ahead, const struct avx512vnni_q8 *x,
                         const struct avx512vnni_outliers *o, uint32_t n_k,
                         float (*y)[AVX512_TILE][16]);

#define INSTANCE(name, kind_, rows, panels)                                                        \
    static void name##_##rows##_##panels(                                                          \
        const uint8_t *const *w, uint64_t ahead, const struct avx512vnni_q8 *x,                    \
        const struct avx512vnni_outliers *o, uint32_t n_k, float(*y)[AVX512_TILE][16])             \
    {                                                                                              \
        const struct kind k = kind_;                                                               \
        tile(k, w, ahead, x, o, n_k, rows, panels, y);                                             \
    }
#define INSTANCES_OF(name, panels, ...)                                                            \
    INSTANCE(name, ((struct kind){__VA_ARGS__}), 1, panels)                                        \
    INSTANCE(name, ((struct kind){__VA_ARGS__}), 2, panels)                                        \
    INSTANCE(name, ((struct kind){__VA_ARGS__}), 3, panels)                                        \
    INSTANCE(name, ((struct kind){__VA_ARGS__}), 4, panels)                                        \
    INSTANCE(name, ((struct kind){__VA_ARGS__}), 5, panels)                                        \
    INSTANCE(name, ((struct kind){__VA_ARGS__}), 6, panels)
#define INSTANCES(name, ...) INSTANCES_OF(name, 1, __VA_ARGS__) INSTANCES_OF(name, 2, __VA_ARGS__)
#define ROW_KERNELS(name, panels)                                                                  \
    {                                                                                              \
        name##_1_##panels, name##_2_##panels, name##_3_##panels, name##_4_##panels,                \
            name##_5_##panels, name##_6_##panels                                                   \
    }
#define KERNELS(name)                                                                              \
    {                                                                                              \
        ROW_KERNELS(name, 1), ROW_KERNELS(name, 2)                                                 \
    }

INSTANCES(q4_0, WEIGHT_U4, false, true, false, START_8)
INSTANCES(q4_1, WEIGHT_U4, true, true, false, -1)
INSTANCES(q4_k, WEIGHT_U4, true, false, false, -1)
INSTANCES(q5_0, WEIGHT_U5, false, true, false, START_16)
INSTANCES(q5_k, WEIGHT_U5, true, false, false, -1)
INSTANCES(q6_k, WEIGHT_U6, false, false, false, START_32_LOW)
INSTANCES(q8_0, WEIGHT_S8, false, true, false, START_128)
/* Unpacked, 4 and 5 bits differ in the offset alone. */
INSTANCES(bytes_8, WEIGHT_U4, false, false, true, START_8)
INSTANCES(bytes_16, WEIGHT_U4, false, false, true, START_16)
INSTANCES(bytes_min, WEIGHT_U4, true, false, true, -1)
INSTANCES(bytes_q6, WEIGHT_U6, false, false, true, START_32_LOW)
INSTANCES(bytes_q8, WEIGHT_S8, false, false, true, START_128)

/* A panel's blocks as bytes with f32 scales. */
INLINE void unpack(const struct kind k, const uint8_t *w, uint32_t n_blocks, uint8_t *to)
{
    for (uint32_t b = 0; b < n_blocks; b++, w += block_bytes(k), to += UNPACKED_BYTES) {
        UNROLL for (int g = 0; g < 8; g++)
            _mm512_storeu_si512((void *)(to + 64 * g), group(k, w, g));
        _mm512_storeu_ps((float *)(to + 512), scale(k, w, 0));
        if (k.has_min || k.form == WEIGHT_U6)
            _mm512_storeu_ps((float *)(to + 576), scale(k, w, 1));
    }
}

#define UNPACK(name, ...)                                                                          \
    static void unpack_##name(const uint8_t *w, uint32_t n_blocks, uint8_t *to)                    \
    {                                                                                              \
        unpack((struct kind){__VA_ARGS__}, w, n_blocks, to);                                       \
    }
UNPACK(q4_0, WEIGHT_U4, false, true, false, START_8)
UNPACK(q4_1, WEIGHT_U4, true, true, false, -1)
UNPACK(q4_k, WEIGHT_U4, true, false, false, -1)
UNPACK(q5_0, WEIGHT_U5, false, true, false, START_16)
UNPACK(q5_k, WEIGHT_U5, true, false, false, -1)
UNPACK(q6_k, WEIGHT_U6, false, false, false, START_32_LOW)
UNPACK(q8_0, WEIGHT_S8, false, true, false, START_128)

static const struct kernels {
    enum dtype type;
    tile_kernel *packed[2][AVX512_TILE], *bytes[2][AVX512_TILE];
    void (*unpack)(const uint8_t *w, uint32_t n_blocks, uint8_t *to);
} kernels[] = {
    {DTYPE_Q4_0, KERNELS(q4_0), KERNELS(bytes_8), unpack_q4_0},
    {DTYPE_Q4_1, KERNELS(q4_1), KERNELS(bytes_min), unpack_q4_1},
    {DTYPE_Q4_K, KERNELS(q4_k), KERNELS(bytes_min), unpack_q4_k},
    {DTYPE_Q5_0, KERNELS(q5_0), KERNELS(bytes_16), unpack_q5_0},
    {DTYPE_Q5_K, KERNELS(q5_k), KERNELS(bytes_min), unpack_q5_k},
    {DTYPE_Q6_K, KERNELS(q6_k), KERNELS(bytes_q6), unpack_q6_k},
    {DTYPE_Q8_0, KERNELS(q8_0), KERNELS(bytes_q8), unpack_q8_0},
};

/* ---- a task ---- */

#define ROWS_WORTH_UNPACKING 13

/* Bias, then residual, of up to 16 outputs. */
void avx512vnni_finish(const struct compute_product *p, const float *y, uint32_t row,
                       uint32_t output, uint32_t n)
{
    float *to = p->y + row * p->y_stride + output;

    if (n == 16) {
        __m512 v = _mm512_loadu_ps(y);
        if (p->bias)
            v = _mm512_add_ps(v, _mm512_loadu_ps(p->bias + output));
        if (p->residual)
            v = _mm512_add_ps(_mm512_loadu_ps(to), v);
        _mm512_storeu_ps(to, v);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        float v = p->bias ? y[i] + p->bias[output + i] : y[i];
        to[i] = p->residual ? to[i] + v : v;
    }
}

static void run_rows(const struct matmul_task *t, tile_kernel *const *by_rows,
                     const uint8_t *const *w, uint32_t panel, uint32_t panels, uint64_t ahead)
{
    _Alignas(64) float y[2][AVX512_TILE][16];

    for (uint32_t row = t->row_begin; row < t->row_end; row += AVX512_TILE) {
        uint32_t rows = MIN(AVX512_TILE, t->row_end - row);
        uint64_t at = row / AVX512_TILE;
        by_rows[rows - 1](w, row == t->row_begin ? ahead : 0,
                          (const void *)(t->acts->q8 + at * t->acts->q8_tile_bytes),
                          (const void *)(t->acts->outliers + at * t->acts->outlier_tile_bytes),
                          t->matrix->k, y);
        for (uint32_t p = 0; p < panels; p++) {
            uint32_t output = (panel + p) * AVX512_PANEL,
                     n = MIN(AVX512_PANEL, t->matrix->n_outputs - output);
            for (uint32_t i = 0; i < rows; i++)
                avx512vnni_finish(t->product, y[p][i], row + i, output, n);
        }
    }
}

uint64_t avx512vnni_matmul_scratch(const struct compute_matrix *m)
{
    return (uint64_t)m->n_blocks * UNPACKED_BYTES * 2;
}

void avx512vnni_matmul(const struct matmul_task *t)
{
    const struct compute_matrix *m = t->matrix;
    const struct kernels *k = kernels;

    if (m->form >= WEIGHT_I16) {
        avx512vnni_matmul_float(t);
        return;
    }
    while (k->type != m->type)
        k++;
    bool unpack_first = t->row_end - t->row_begin >= ROWS_WORTH_UNPACKING;
    uint64_t unpacked = (uint64_t)m->n_blocks * UNPACKED_BYTES;
    for (uint32_t panel = t->panel_begin; panel < t->panel_end; panel += 2) {
        uint32_t panels = MIN(2, t->panel_end - panel);
        const uint8_t *w[2] = {m->data + panel * m->panel_bytes,
                               m->data + (panel + panels - 1) * m->panel_bytes};
        if (unpack_first) {
            uint8_t *to[2] = {t->scratch, (uint8_t *)t->scratch + unpacked};
            for (uint32_t p = 0; p < panels; p++) {
                k->unpack(w[p], m->n_blocks, to[p]);
                w[p] = to[p];
            }
        }
        run_rows(t, unpack_first ? k->bytes[panels - 1] : k->packed[panels - 1], w, panel, panels,
                 2 * m->panel_bytes);
    }
}
