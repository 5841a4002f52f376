/* Per segment of K and step of 32 (U6: 16): t = RN(A d), f = fmaf(t, dw, f), with a minimum f =
 * fmaf(m, s, f); then the outlier's step; y += f (EXACTNESS 3). A is a sum of integers, so its
 * order is free; the chain over steps is not.
 *
 * The products of a step of 4- to 6-bit weights are summed in 16 bits. 8-bit weights multiply as
 * |w| and x with w's sign, a pair of which stays below 2^15, or, unpacked, as 16 bits. Fewer rows
 * than rows_worth_unpacking() read packed weights straight; more have them unpacked to bytes (8
 * bits: to 16 bits) once for all.
 * The small scales of a K-quant's super-block become f32 before its blocks. */
#include "compute/cpu/x86/avx2.h"
#include "compute/cpu/x86/vector256.h"

#define X86(name) avx2_##name
#define ACTS_OF(name) avx2_##name
#define TILE AVX2_TILE
#define EACH_ROWS AVX2_EACH_ROWS

#define START_U4 AVX2_START_8
#define START_U5 -1 /* its 16-bit sums have the offset taken off, as U6's */
#define START_U5_MIN AVX2_START_PLUS_16
#define START_U6 -1
#define START_S8 -1
#define UNPACKED_S8_BYTES (16 * LANE_BYTES) /* as 16 bits */
#include "compute/cpu/x86/matmul_panel.h"

static uint32_t unpacked_bytes(enum weight_form form)
{
    return block_bytes((struct kind){.form = form, .unpacked = true});
}

/* As a float: vbroadcastss is a load and nothing else, vpbroadcastd also takes one of the pipes
 * that multiply and add (Zen 3). */
INLINE __m256i broadcast(const int32_t *x)
{
    return _mm256_castps_si256(_mm256_broadcast_ss((const float *)x));
}

/* The tail: t = RN(A d) since A was added to the magic number, f = fmaf(t, dw, f). */
INLINE void finish_step(const struct kind k, const struct part w, const struct avx2_q8 *x, int h,
                        int i, __m256i a, float *f)
{
    __m256i start = k.start < 0 ? _mm256_set1_epi32(MAGIC) : broadcast(&x->start[k.start][i]);
    __m256 t = _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_add_epi32(a, start)),
                               _mm256_broadcast_ss(&x->d[i]), _mm256_broadcast_ss(&x->c[i]));
    __m256 y = _mm256_fmadd_ps(t, scale(k, w, h), _mm256_load_ps(f));

    if (k.has_min)
        y = _mm256_fmadd_ps(_mm256_broadcast_ss(&x->s[i]), scale(k, w, 1), y);
    _mm256_store_ps(f, y);
}

/* 4 to 6 bits. A 16-bit lane sums 16 products, 8 of U6. U4: at most 15 * 127 * 16 = 30,480. U5 and
 * U6 could reach 62,992 and 64,008, so their sums start at minus offset * sum of x: they may wrap
 * on the way, but the end, at most 16 * 127 * 16 = 32 * 127 * 8 = 32,512, fits. */
INLINE void block_of_pairs(const struct kind k, const struct part *w, const struct avx2_q8 *x,
                           const int rows, const int panels, float (*f)[AVX2_TILE][8])
{
    const __m256i ones = _mm256_set1_epi16(1);
    const int steps = k.form == WEIGHT_U6 ? 2 : 1, groups = 8 / steps;

    UNROLL for (int h = 0; h < steps; h++)
    {
        const int start = k.form == WEIGHT_U5 ? AVX2_PAIRS_16 : AVX2_PAIRS_32_LOW + h;
        __m256i sum[SIDE_BY_SIDE][AVX2_TILE];
        UNROLL for (int g = h * groups; g < (h + 1) * groups; g++)
        {
            __m256i v[SIDE_BY_SIDE];
            UNROLL for (int p = 0; p < panels; p++) v[p] = group(k, w[p].w, g);
            UNROLL for (int i = 0; i < rows; i++)
            {
                __m256i xx = broadcast(&x->x[g][i]), from;
                if (g == h * groups && k.form != WEIGHT_U4)
                    from = broadcast(&x->start[start][i]);
                UNROLL for (int p = 0; p < panels; p++)
                {
                    __m256i pairs = _mm256_maddubs_epi16(v[p], xx);
                    if (g > h * groups)
                        pairs = _mm256_add_epi16(sum[p][i], pairs);
                    else if (k.form != WEIGHT_U4)
                        pairs = _mm256_add_epi16(from, pairs);
                    sum[p][i] = pairs;
                    KEEP(sum[p][i]);
                }
            }
        }
        UNROLL for (int i = 0; i < rows; i++) UNROLL for (int p = 0; p < panels; p++)
            finish_step(k, w[p], x, h, i, _mm256_madd_epi16(sum[p][i], ones), f[p][i]);
    }
}

/* 8 bits, signed: |w| times x with w's sign. */
INLINE void block_of_bytes(const struct kind k, const struct part *w, const struct avx2_q8 *x,
                           const int rows, const int panels, float (*f)[AVX2_TILE][8])
{
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i a[SIDE_BY_SIDE][AVX2_TILE];

    UNROLL for (int g = 0; g < 8; g++)
    {
        __m256i v[SIDE_BY_SIDE], u[SIDE_BY_SIDE];
        UNROLL for (int p = 0; p < panels; p++)
        {
            v[p] = group(k, w[p].w, g);
            u[p] = _mm256_abs_epi8(v[p]);
        }
        UNROLL for (int i = 0; i < rows; i++)
        {
            __m256i xx = broadcast(&x->x[g][i]);
            UNROLL for (int p = 0; p < panels; p++)
            {
                __m256i pairs = _mm256_maddubs_epi16(u[p], _mm256_sign_epi8(xx, v[p]));
                pairs = _mm256_madd_epi16(pairs, ones);
                a[p][i] = g == 0 ? pairs : _mm256_add_epi32(a[p][i], pairs);
                KEEP(a[p][i]);
            }
        }
    }
    UNROLL for (int i = 0; i < rows; i++) UNROLL for (int p = 0; p < panels; p++)
        finish_step(k, w[p], x, 0, i, a[p][i], f[p][i]);
}

/* 8 bits, unpacked. */
INLINE void block_of_int16(const struct kind k, const struct part *w, const struct avx2_q8 *x,
                           const struct avx2_wide *wide, const int rows, const int panels,
                           float (*f)[AVX2_TILE][8])
{
    __m256i a[SIDE_BY_SIDE][AVX2_TILE];

    UNROLL for (int j = 0; j < 16; j++)
    {
        __m256i v[SIDE_BY_SIDE];
        UNROLL for (int p = 0; p < panels; p++) v[p] =
            _mm256_loadu_si256((const __m256i *)(w[p].w + 32 * j));
        UNROLL for (int i = 0; i < rows; i++)
        {
            __m256i xx = broadcast(&wide->x[j][i]);
            UNROLL for (int p = 0; p < panels; p++)
            {
                __m256i pairs = _mm256_madd_epi16(v[p], xx);
                a[p][i] = j == 0 ? pairs : _mm256_add_epi32(a[p][i], pairs);
                KEEP(a[p][i]);
            }
        }
    }
    UNROLL for (int i = 0; i < rows; i++) UNROLL for (int p = 0; p < panels; p++)
        finish_step(k, w[p], x, 0, i, a[p][i], f[p][i]);
}

INLINE void block(const struct kind k, const struct part *w, const struct avx2_q8 *x,
                  const struct avx2_wide *wide, const int rows, const int panels,
                  float (*f)[AVX2_TILE][8])
{
    if (k.form != WEIGHT_S8)
        block_of_pairs(k, w, x, rows, panels, f);
    else if (k.unpacked)
        block_of_int16(k, w, x, wide, rows, panels, f);
    else
        block_of_bytes(k, w, x, rows, panels, f);
}

/* The 8 outputs' weight of one k, signed. */
INLINE __m256 column(const struct kind k, const uint8_t *w, uint32_t at)
{
    uint32_t g = at / 4;
    __m128i shift = _mm_cvtsi32_si128((int)(8 * (at % 4)));
    const int offset = k.has_min             ? 0
                       : k.form == WEIGHT_U6 ? 32
                       : k.form == WEIGHT_U5 ? 16
                       : k.form == WEIGHT_U4 ? 8
                                             : 0;

    if (k.form == WEIGHT_S8 && k.unpacked) {
        __m256i v = _mm256_loadu_si256((const __m256i *)(w + 32 * (at / 2)));
        v = at & 1 ? v : _mm256_slli_epi32(v, 16);
        return _mm256_cvtepi32_ps(_mm256_srai_epi32(v, 16));
    }
    if (k.form == WEIGHT_S8) {
        __m256i v = _mm256_srl_epi32(_mm256_loadu_si256((const __m256i *)(w + 32 * g)), shift);
        return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(v, 24), 24));
    }
    __m256i v;
    if (k.unpacked) {
        v = _mm256_srl_epi32(_mm256_loadu_si256((const __m256i *)(w + 32 * g)), shift);
        v = _mm256_and_si256(v, _mm256_set1_epi32(255));
    } else if (k.form == WEIGHT_U6) {
        v = _mm256_and_si256(_mm256_srl_epi32(sixes(w, g), shift), _mm256_set1_epi32(255));
    } else {
        __m128i nibble = _mm_cvtsi32_si128((int)(8 * (at % 4) + 4 * (g & 1)));
        v = _mm256_srl_epi32(_mm256_loadu_si256((const __m256i *)(w + 32 * (g / 2))), nibble);
        v = _mm256_and_si256(v, _mm256_set1_epi32(15));
        if (k.form == WEIGHT_U5) {
            __m128i by = _mm_cvtsi32_si128((int)(8 * (at % 4) + g));
            __m256i bit = _mm256_srl_epi32(_mm256_loadu_si256((const __m256i *)(w + 128)), by);
            v = _mm256_or_si256(v,
                                _mm256_slli_epi32(_mm256_and_si256(bit, _mm256_set1_epi32(1)), 4));
        }
    }
    if (offset)
        v = _mm256_sub_epi32(v, _mm256_set1_epi32(offset));
    return _mm256_cvtepi32_ps(v);
}

INLINE void outlier(const struct kind k, const uint8_t *const *w, const struct avx2_outliers *o,
                    const int rows, const int panels, float (*f)[AVX2_TILE][8])
{
    for (int i = 0; i < rows; i++) {
        uint32_t b = o->k[i] / BLOCK, at = o->k[i] % BLOCK;
        __m256 x = _mm256_broadcast_ss(&o->x[i]);
        UNROLL for (int p = 0; p < panels; p++)
        {
            __m256 d = scale_of(k, w[p], b, k.form == WEIGHT_U6 && at >= 16);
            __m256 t = _mm256_mul_ps(column(k, block_at(k, w[p], b), at), x);
            __m256 y = _mm256_fmadd_ps(t, d, _mm256_load_ps(f[p][i]));
            if (k.has_min)
                y = _mm256_fmadd_ps(scale_of(k, w[p], b, 1), x, y);
            _mm256_store_ps(f[p][i], y);
        }
    }
}

/* All of K for a tile: y[panel][row][8]. */
INLINE void tile(const struct kind k, const uint8_t *const *w, struct prefetch prefetch,
                 const struct avx2_q8 *x, const struct avx2_outliers *o, uint32_t n_k,
                 const int rows, const int panels, float (*y)[AVX2_TILE][8])
{
    _Alignas(32) float f[SIDE_BY_SIDE][AVX2_TILE][8];
    _Alignas(32) float super[SIDE_BY_SIDE][SUPER_BLOCKS][2][8];
    const uint8_t *at[SIDE_BY_SIDE];
    const struct avx2_wide *wide = (const void *)(x + n_k / BLOCK);
    uint32_t n_segments = segment_count(n_k);

    UNROLL for (int p = 0; p < panels; p++) at[p] = w[p];
    for (uint32_t s = 0; s < n_segments; s++) {
        for (int p = 0; p < panels; p++)
            for (int i = 0; i < rows; i++)
                _mm256_store_ps(f[p][i], _mm256_setzero_ps());
        for (uint32_t b = segment_end(n_k, s) / BLOCK - s * (SEGMENT / BLOCK); b > 0;
             b--, x++, wide++) {
            struct part now[SIDE_BY_SIDE];
            if (k.scales == SCALES_K && b % SUPER_BLOCKS == 0)
                UNROLL for (int p = 0; p < panels; p++)
                {
                    expand(k, at[p], super[p]);
                    at[p] += header_bytes(k);
                }
            prefetch_lines(&prefetch);
            UNROLL for (int p = 0; p < panels; p++) now[p] =
                (struct part){at[p], super[p][-b % SUPER_BLOCKS]};
            block(k, now, x, wide, rows, panels, f);
            UNROLL for (int p = 0; p < panels; p++) at[p] += block_bytes(k);
        }
        outlier(k, w, o + s, rows, panels, f);
        for (int p = 0; p < panels; p++)
            for (int i = 0; i < rows; i++) {
                __m256 v = _mm256_load_ps(f[p][i]);
                _mm256_store_ps(y[p][i], s == 0 ? v : _mm256_add_ps(_mm256_load_ps(y[p][i]), v));
            }
    }
}

/* A panel's blocks as bytes, or 16 bits, with f32 scales. */
INLINE void unpack(const struct kind k, const uint8_t *w, uint32_t n_blocks, uint8_t *to)
{
    const uint8_t *panel = w;

    for (uint32_t b = 0; b < n_blocks; b++, w += block_bytes(k)) {
        if (k.scales == SCALES_K && b % SUPER_BLOCKS == 0)
            w += header_bytes(k);
        UNROLL for (int g = 0; g < 8; g++)
        {
            __m256i v = group(k, w, g);
            if (k.form != WEIGHT_S8) {
                _mm256_store_si256((__m256i *)to + g, v);
                continue;
            }
            /* of each output's four bytes two to either vector */
            __m256i low = _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8),
                    high = _mm256_srai_epi16(v, 8);
            __m256i even = _mm256_blend_epi16(low, _mm256_slli_epi32(high, 16), 0xAA),
                    odd = _mm256_blend_epi16(_mm256_srli_epi32(low, 16), high, 0xAA);
            _mm256_store_si256((__m256i *)to + 2 * g, even);
            _mm256_store_si256((__m256i *)to + 2 * g + 1, odd);
        }
        to += k.form == WEIGHT_S8 ? 512 : 256;
        _mm256_store_ps((float *)to, scale_of(k, panel, b, 0));
        if (k.has_min || k.form == WEIGHT_U6)
            _mm256_store_ps((float *)(to + 32), scale_of(k, panel, b, 1));
        to += 64;
    }
}

#include "compute/cpu/x86/matmul_instances.h"

/* From so many rows on a panel is unpacked first. Bits of 5-bit weights, and of two in eight groups
 * of 6-bit ones, are put together again for every tile; K-quants' scales become f32 for every tile;
 * other 4-bit weights come apart at once, and 8-bit weights only get wider. */
static uint32_t rows_worth_unpacking(const struct compute_matrix *m)
{
    return m->form == WEIGHT_S8                              ? 16 * TILE
           : m->form == WEIGHT_U4 && m->scales == SCALES_F16 ? 2 * TILE + 1
                                                             : TILE + 1;
}

#include "compute/cpu/x86/matmul_task.h"
