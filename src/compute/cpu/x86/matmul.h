/* Per segment of K and step of 32 (U6: 16): t = RN(A d), f = fmaf(t, dw, f), with a minimum f =
 * fmaf(m, s, f); then the outlier's step; y += f (EXACTNESS 3). A is a sum of integers, so its
 * order is free; the chain over steps is not.
 *
 * The sum starts at 0x4B400000 less the offset's share and is a float's bits at the end: the tail
 * is two fma. Fewer rows than rows_worth_unpacking() read packed weights straight; more have them
 * unpacked to bytes once for all.
 * The small scales of a K-quant's super-block become f32 before its blocks.
 *
 * The text of matmul_avx512vnni.c, matmul_avx512.c and matmul_avxvnni.c, in the words of
 * vector512.h or vector256.h. Each says before it: X86(name); ACTS_OF(name), its activations'
 * types; TILE, their rows; EACH_ROWS(X, ...), X(1, ...) to X(TILE, ...); and DOT_BYTES(sum, u8, s8)
 * where the CPU has a dot instruction. */

#define START_U4 START_8
#define START_U5 START_16
#define START_U5_MIN -1
#define START_U6 START_32_LOW
#ifdef DOT_BYTES
/* 8-bit weights are stored plus 128, for the instruction takes them unsigned. */
#define START_S8 START_128
#else
#define START_S8 -1
#endif

#define UNPACKED_S8_BYTES (8 * LANE_BYTES)
#include "compute/cpu/x86/matmul_panel.h"

#ifdef DOT_BYTES
/* n groups of a block from the first, added to the sums. */
INLINE void add_groups(const struct kind k, const struct part *w, const struct ACTS_OF(q8) * x,
                       const int first, const int n, const int rows, const int panels,
                       lanes_i (*a)[TILE])
{
    UNROLL for (int g = first; g < first + n; g++)
    {
        lanes_i v[SIDE_BY_SIDE];
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
        lanes_i v[SIDE_BY_SIDE], u[SIDE_BY_SIDE];
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
        lanes_i sum[SIDE_BY_SIDE][TILE];
        UNROLL for (int g = chain; g < chain + most; g++)
        {
            lanes_i v[SIDE_BY_SIDE];
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
        lanes_i a[SIDE_BY_SIDE][TILE];
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
    } else if (k.form == WEIGHT_U6) {
        v = I_AND(I_SHIFT_RIGHT32(sixes(w, g), shift), I_SET32(255));
    } else {
        v = I_SHIFT_RIGHT32(I_LOAD(w + g / 2 * LANE_BYTES), shift + 4 * (g & 1));
        v = I_AND(v, I_SET32(15));
    }
    if (k.form == WEIGHT_U5 && !bytes) {
        lanes_i bit = I_SHIFT_RIGHT32(I_LOAD(w + 4 * LANE_BYTES), shift + g);
        v = I_OR(v, I_SHIFT_LEFT32(I_AND(bit, I_SET32(1)), 4));
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

/* All of K for a tile: y[panel][row][lane]. */
INLINE void tile(const struct kind k, const uint8_t *const *w, struct prefetch prefetch,
                 const struct ACTS_OF(q8) * x, const struct ACTS_OF(outliers) * o, uint32_t n_k,
                 const int rows, const int panels, float (*y)[TILE][LANES])
{
    _Alignas(64) float super[SIDE_BY_SIDE][SUPER_BLOCKS][2][LANES];
    const uint8_t *at[SIDE_BY_SIDE];
    uint32_t n_segments = segment_count(n_k);

    UNROLL for (int p = 0; p < panels; p++) at[p] = w[p];
    for (uint32_t s = 0; s < n_segments; s++) {
        lanes_f f[SIDE_BY_SIDE][TILE];
        UNROLL for (int p = 0; p < panels; p++) UNROLL for (int i = 0; i < rows; i++) f[p][i] =
            F_ZERO();
        for (uint32_t b = segment_end(n_k, s) / BLOCK - s * (SEGMENT / BLOCK); b > 0; b--, x++) {
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
            block(k, now, x, rows, panels, f);
            UNROLL for (int p = 0; p < panels; p++) at[p] += block_bytes(k);
        }
        outlier(k, w, o + s, rows, panels, f);
        UNROLL for (int p = 0; p < panels; p++) UNROLL for (int i = 0; i < rows; i++)
            F_STORE(y[p][i], s == 0 ? f[p][i] : F_ADD(F_LOAD(y[p][i]), f[p][i]));
    }
}

/* A panel's blocks as bytes with f32 scales. */
INLINE void unpack(const struct kind k, const uint8_t *w, uint32_t n_blocks, uint8_t *to)
{
    const uint8_t *panel = w;

    for (uint32_t b = 0; b < n_blocks; b++, to += 10 * LANE_BYTES) {
        w = block_at(k, panel, b);
        UNROLL for (int g = 0; g < 8; g++) I_STORE(to + LANE_BYTES * g, group(k, w, g));
        F_STORE((float *)(to + 8 * LANE_BYTES), scale_of(k, panel, b, 0));
        if (k.has_min || k.form == WEIGHT_U6)
            F_STORE((float *)(to + 9 * LANE_BYTES), scale_of(k, panel, b, 1));
    }
}

#include "compute/cpu/x86/matmul_instances.h"

static uint32_t unpacked_bytes(enum weight_form form)
{
    return block_bytes((struct kind){.form = form, .unpacked = true});
}

static uint32_t rows_worth_unpacking(const struct compute_matrix *m)
{
    return 2 * TILE + 1;
}

#include "compute/cpu/x86/matmul_task.h"
