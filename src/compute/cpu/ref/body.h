/* cpu/ref: docs/EXACTNESS.md in plain C, rule by rule. Every other tier is held against this file's
 * bits, so it stays literal: no cleverness that the text does not have. Included by ref.c and
 * ref_fma.c. */
#include "compute/internal.h"

#include <math.h>

/* ---- EXACTNESS 4: exp2 and what is made of it ---- */

static inline float REF(exp2_one)(float x)
{
    x = x > -126.0f ? x : -126.0f;
    x = x < 126.0f ? x : 126.0f;
    float n = rintf(x), r = x - n;
    float p = 0x1.5bba14p-10f;
    p = fmaf(p, r, 0x1.3cea88p-7f);
    p = fmaf(p, r, 0x1.c6b752p-5f);
    p = fmaf(p, r, 0x1.ebf9bcp-3f);
    p = fmaf(p, r, 0x1.62e42ap-1f);
    p = fmaf(p, r, 1.0f);
    return bits_float(float_bits(p) + ((uint32_t)(int32_t)n << 23));
}

static void REF(exp2)(const float *x, uint32_t n, float *y)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = REF(exp2_one)(x[i]);
}

static void REF(gated)(enum compute_gate kind, const float *gate, const float *up, uint32_t n,
                       float *y)
{
    for (uint32_t i = 0; i < n; i++) {
        float g = gate[i];
        if (kind == COMPUTE_SILU) {
            y[i] = g / (1.0f + REF(exp2_one)(-0x1.715476p+0f * g)) * up[i];
        } else {
            float z = g * fmaf(g * g, 0x1.6e4e26p-5f, 1.0f);
            y[i] = g / (1.0f + REF(exp2_one)(z * -0x1.26aec2p+1f)) * up[i];
        }
    }
}

static inline float REF(soft_cap_one)(float z, float cap, float inverse)
{
    float e = REF(exp2_one)((fabsf(z) * inverse) * 0x1.715476p+1f);

    return copysignf(cap * (1.0f - 2.0f / (e + 1.0f)), z);
}

static void REF(soft_cap)(float *z, uint32_t n, float cap)
{
    float inverse = (float)(1.0 / (double)cap);

    for (uint32_t i = 0; i < n; i++)
        z[i] = REF(soft_cap_one)(z[i], cap, inverse);
}

static bool REF(rms_norm)(const float *x, const float *weight, float epsilon, uint32_t n, float *y)
{
    float lanes[64] = {0};

    for (uint32_t i = 0; i < n; i++)
        lanes[i % 64] = fmaf(x[i], x[i], lanes[i % 64]);
    for (uint32_t h = 32; h; h /= 2)
        for (uint32_t i = 0; i < h; i++)
            lanes[i] += lanes[i + h];
    float v = lanes[0] / (float)n + epsilon;
    float r = 1.0f / sqrtf(v);
    for (uint32_t i = 0; i < n; i++)
        y[i] = (x[i] * r) * weight[i];
    return (float_bits(v) & INFINITY_BITS) != INFINITY_BITS;
}

static void REF(scale)(float *x, uint32_t n, float by)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] *= by;
}

static void REF(rotate)(const struct compute_attention *a, const float *rope, float *head)
{
    uint32_t n_pairs = a->n_rot / 2;

    for (uint32_t i = 0; i < n_pairs; i++) {
        float *x0 = a->rope_halves ? head + i : head + 2 * i;
        float *x1 = a->rope_halves ? head + i + n_pairs : x0 + 1;
        float u = *x0, v = *x1, c = rope[2 * i], s = rope[2 * i + 1];
        *x0 = fmaf(u, c, -(v * s));
        *x1 = fmaf(u, s, v * c);
    }
}

static uint32_t REF(largest_bits)(const float *x, uint32_t n)
{
    uint32_t largest = 0;

    for (uint32_t i = 0; i < n; i++)
        largest = MAX(largest, float_bits(x[i]) & 0x7FFFFFFF);
    return largest;
}

/* ---- EXACTNESS 2 and 3: activations and matrices. A tile is one row, a panel one output. ---- */

struct REF(q8) {
    int16_t q[BLOCK];
    float d, s; /* s = RN(d * sum of q) */
};
struct REF(i16) {
    int16_t q[BLOCK];
    float d;
};
struct REF(outlier) {
    uint32_t k;
    float x;
};

static void REF(acts_layout)(struct compute_acts *a)
{
    a->q8_tile_bytes = (uint64_t)a->n_blocks * sizeof(struct REF(q8));
    a->outlier_tile_bytes = (uint64_t)a->n_segments * sizeof(struct REF(outlier));
    a->i16_tile_bytes = (uint64_t)a->n_blocks * sizeof(struct REF(i16));
    a->f32_tile_bytes = (uint64_t)a->k * 4;
}

static float REF(block_scale)(uint32_t largest, float factor)
{
    return bits_float(float_bits(bits_float(largest) * factor) & ~0xFFu);
}

static bool REF(quantise_q8)(const float *x, uint32_t k, struct REF(q8) * q,
                             struct REF(outlier) * outliers)
{
    for (uint32_t s = 0; s < segment_count(k); s++) {
        uint32_t begin = s * SEGMENT, end = segment_end(k, s), at = begin;
        for (uint32_t i = begin; i < end; i++)
            if ((float_bits(x[i]) & 0x7FFFFFFF) > (float_bits(x[at]) & 0x7FFFFFFF))
                at = i;
        if ((float_bits(x[at]) & 0x7FFFFFFF) >= LIMIT_BITS)
            return false;
        outliers[s] = (struct REF(outlier)){at, x[at]};
        for (uint32_t b = begin / BLOCK; b < end / BLOCK; b++) {
            uint32_t largest = 0;
            int32_t sum = 0;
            for (uint32_t i = b * BLOCK; i < (b + 1) * BLOCK; i++)
                if (i != at)
                    largest = MAX(largest, float_bits(x[i]) & 0x7FFFFFFF);
            float d = largest < SMALL_BITS ? 0.0f : REF(block_scale)(largest, 0x1.020408p-7f);
            float r = d > 0 ? 1.0f / d : 0.0f;
            for (uint32_t i = 0; i < BLOCK; i++) {
                q[b].q[i] = b * BLOCK + i == at ? 0 : (int16_t)rintf(x[b * BLOCK + i] * r);
                sum += q[b].q[i];
            }
            q[b].d = d;
            q[b].s = d * (float)sum;
        }
    }
    return true;
}

static bool REF(quantise_i16)(const float *x, uint32_t k, struct REF(i16) * q)
{
    for (uint32_t b = 0; b * BLOCK < k; b++) {
        uint32_t n = MIN(BLOCK, k - b * BLOCK), largest = 0;
        for (uint32_t i = 0; i < n; i++)
            largest = MAX(largest, float_bits(x[b * BLOCK + i]) & 0x7FFFFFFF);
        if (largest >= LIMIT_BITS)
            return false;
        float d = largest < SMALL_BITS ? 0.0f : REF(block_scale)(largest, 0x1.0008p-13f);
        float r = d > 0 ? 1.0f / d : 0.0f;
        for (uint32_t i = 0; i < BLOCK; i++)
            q[b].q[i] = i < n ? (int16_t)rintf(x[b * BLOCK + i] * r) : 0;
        q[b].d = d;
    }
    return true;
}

static bool REF(quantise)(struct compute_acts *a, uint32_t row, const float *x)
{
    if (a->forms & ACT_Q8 && !REF(quantise_q8)(x, a->k, (void *)(a->q8 + row * a->q8_tile_bytes),
                                               (void *)(a->outliers + row * a->outlier_tile_bytes)))
        return false;
    if (a->forms & ACT_I16 &&
        !REF(quantise_i16)(x, a->k, (void *)(a->i16 + row * a->i16_tile_bytes)))
        return false;
    if (a->forms & ACT_F32) {
        if (REF(largest_bits)(x, a->k) >= LIMIT_BITS)
            return false;
        memcpy(a->f32 + row * a->f32_tile_bytes, x, (size_t)a->k * 4);
    }
    return true;
}

struct REF(weight_block) {
    int16_t w[BLOCK];
    float d[2]; /* U6: of each half */
    float m;
};

static uint64_t REF(panel_bytes)(const struct compute_matrix *m)
{
    return m->form == WEIGHT_F32 ? (uint64_t)m->n_blocks * BLOCK * 4
                                 : m->n_blocks * sizeof(struct REF(weight_block));
}

/* The scale of sub-block i of 16 values; the product of a K-quant's two is exact. */
static float REF(scale_of)(const struct compute_matrix *m, const struct raw_rows *raw, uint32_t i)
{
    if (m->scales == SCALES_F32)
        return raw->power[i / 2][0];
    if (m->scales == SCALES_F16)
        return half_to_float(raw->d[i / 2][0]);
    float step =
        m->form == WEIGHT_U6 ? (float)(int8_t)raw->steps[i][0] : (float)raw->steps[i / 2][0];
    return half_to_float(raw->super[0][0]) * step;
}

static float REF(minimum_of)(const struct compute_matrix *m, const struct raw_rows *raw, uint32_t b)
{
    if (!m->has_min)
        return 0;
    return m->scales == SCALES_F16
               ? half_to_float(raw->m[b][0])
               : half_to_float(raw->super[1][0]) * (float)raw->steps[SUPER_BLOCKS + b][0];
}

static uint8_t *REF(pack)(const struct compute_matrix *m, const struct raw_rows *raw, uint8_t *to)
{
    struct REF(weight_block) *block = (void *)to;

    if (m->form == WEIGHT_F32) {
        memcpy(to, raw->values[0], (size_t)raw->n_blocks * BLOCK * 4);
        return to + (size_t)raw->n_blocks * BLOCK * 4;
    }
    for (uint32_t b = 0; b < raw->n_blocks; b++, block++) {
        for (uint32_t i = 0; i < BLOCK; i++) {
            uint8_t u = raw->u[0][b * BLOCK + i];
            block->w[i] = m->form == WEIGHT_I16  ? raw->w[0][b * BLOCK + i]
                          : m->form == WEIGHT_S8 ? (int8_t)u
                                                 : (int16_t)(u - m->offset);
        }
        block->d[0] = REF(scale_of)(m, raw, 2 * b);
        block->d[1] = REF(scale_of)(m, raw, 2 * b + 1);
        block->m = REF(minimum_of)(m, raw, b);
    }
    return (uint8_t *)block;
}

static bool REF(halves)(enum dtype type, const void *row, uint32_t k, int16_t *w, float *d)
{
    return decode_halves(type, row, k, w, d);
}

static int32_t REF(dot)(const int16_t *a, const int16_t *b, uint32_t n)
{
    int32_t sum = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += (int32_t)a[i] * b[i];
    return sum;
}

static float REF(segment_q8)(const struct compute_matrix *m, const struct REF(weight_block) * w,
                             const struct REF(q8) * q, struct REF(outlier) o, uint32_t begin,
                             uint32_t end)
{
    uint32_t step = m->form == WEIGHT_U6 ? 16 : 32;
    float f = 0;

    for (uint32_t b = begin / BLOCK; b < end / BLOCK; b++) {
        for (uint32_t i = 0; i < BLOCK; i += step) {
            float t = (float)REF(dot)(w[b].w + i, q[b].q + i, step) * q[b].d;
            f = fmaf(t, w[b].d[i / 16], f);
        }
        if (m->has_min)
            f = fmaf(w[b].m, q[b].s, f);
    }
    uint32_t b = o.k / BLOCK, i = o.k % BLOCK;
    float t = (float)w[b].w[i] * o.x;
    f = fmaf(t, w[b].d[i / 16], f);
    return m->has_min ? fmaf(w[b].m, o.x, f) : f;
}

static float REF(segment)(const struct matmul_task *t, const uint8_t *panel, uint32_t row,
                          uint32_t s)
{
    const struct compute_matrix *m = t->matrix;
    const struct compute_acts *a = t->acts;
    uint32_t begin = s * SEGMENT, end = segment_end(m->k, s);
    float f = 0;

    if (m->form == WEIGHT_F32) {
        const float *w = (const float *)panel,
                    *x = (const float *)(a->f32 + row * a->f32_tile_bytes);
        for (uint32_t i = begin; i < end; i++)
            f = fmaf(w[i], x[i], f);
        return f;
    }
    const struct REF(weight_block) *w = (const void *)panel;
    if (m->form == WEIGHT_I16) {
        const struct REF(i16) *q = (const void *)(a->i16 + row * a->i16_tile_bytes);
        for (uint32_t b = begin / BLOCK; b * BLOCK < end; b++) {
            float product = (float)REF(dot)(w[b].w, q[b].q, BLOCK) * q[b].d;
            f = fmaf(product, w[b].d[0], f);
        }
        return f;
    }
    const struct REF(outlier) *o = (const void *)(a->outliers + row * a->outlier_tile_bytes);
    return REF(segment_q8)(m, w, (const void *)(a->q8 + row * a->q8_tile_bytes), o[s], begin, end);
}

static void REF(matmul)(const struct matmul_task *t)
{
    const struct compute_product *p = t->product;

    for (uint32_t n = t->panel_begin; n < t->panel_end; n++)
        for (uint32_t row = t->row_begin; row < t->row_end; row++) {
            const uint8_t *panel = t->matrix->data + n * t->matrix->panel_bytes;
            float y = REF(segment)(t, panel, row, 0);
            for (uint32_t s = 1; s < segment_count(t->matrix->k); s++)
                y = y + REF(segment)(t, panel, row, s);
            if (p->bias)
                y = y + p->bias[n];
            float *to = matmul_y(t, row, n);
            *to = p->residual ? *to + y : y;
        }
}

static uint64_t REF(matmul_scratch)(const struct compute_matrix *m)
{
    (void)m;
    return 0;
}

static void REF(dequantise)(enum dtype type, const void *row, uint32_t k, float *out)
{
    const uint8_t *p = row;
    uint32_t values = dtype_block_values(type), bytes = dtype_block_bytes(type);

    for (uint32_t begin = 0; begin < k; begin += values, p += bytes) {
        int16_t w[256];
        float d[16], m[8] = {0};
        if (type == DTYPE_F32) {
            memcpy(out + begin, p, 4);
        } else if (type == DTYPE_F16) {
            out[begin] = half_to_float((uint16_t)(p[0] | p[1] << 8));
        } else if (type == DTYPE_BF16) {
            out[begin] = bits_float((uint32_t)p[0] << 16 | (uint32_t)p[1] << 24);
        } else {
            decode_block(type, p, w, d, m);
            uint32_t step = type == DTYPE_Q6_K ? 16 : 32;
            for (uint32_t i = 0; i < values; i++)
                out[begin + i] = fmaf((float)w[i], d[i / step], m[i / BLOCK]);
        }
    }
}

/* ---- EXACTNESS 5: attention ---- */

static uint16_t REF(page_half)(float x)
{
    x = x > -65504.0f ? x : -65504.0f; /* NaN too ends here: pages are always finite */
    x = x < 65504.0f ? x : 65504.0f;
    return float_to_half(x);
}

static void REF(store)(const struct compute_batch *b, const struct compute_attention *a,
                       uint32_t row, const float *k, const float *v)
{
    uint32_t position = b->positions[row], lane = position % PAGE_TOKENS, hd = a->head_dim;
    uint16_t *slab =
        (uint16_t *)kv_slab(b, &b->page_tables[b->tables[row]], position / PAGE_TOKENS, a->layer);

    for (uint32_t h = 0; h < a->n_kv_heads; h++) {
        uint16_t *page_k = slab + (size_t)h * hd * PAGE_TOKENS;
        uint16_t *page_v =
            slab + (size_t)(a->n_kv_heads + h) * hd * PAGE_TOKENS + (size_t)lane * hd;
        for (uint32_t d = 0; d < hd; d++) {
            page_k[d * PAGE_TOKENS + lane] = REF(page_half)(k[h * hd + d]);
            page_v[d] = REF(page_half)(v[h * hd + d]);
        }
    }
}

static float REF(cut_exp2)(float x)
{
    return x < -64.0f ? 0.0f : REF(exp2_one)(x);
}

/* One segment of at most 256 keys for one head: its maximum, sum and output. */
static float REF(attend_segment)(const struct attention_task *t,
                                 const struct page_table_view *table, const float *q,
                                 uint32_t begin, uint32_t end, float *sum, float *o)
{
    const struct compute_attention *a = t->a;
    uint32_t hd = a->head_dim;
    float p[ATTENTION_KEYS], m = 0, lanes[PAGE_TOKENS] = {0},
                             inverse = a->soft_cap > 0 ? (float)(1.0 / (double)a->soft_cap) : 0;

    for (uint32_t j = begin; j < end; j++) {
        const uint16_t *k = (const uint16_t *)kv_slab(t->batch, table, j / PAGE_TOKENS, a->layer) +
                            (size_t)t->kv_head * hd * PAGE_TOKENS + j % PAGE_TOKENS;
        float s = 0;
        for (uint32_t d = 0; d < hd; d++)
            s = fmaf(q[d], half_to_float(k[d * PAGE_TOKENS]), s);
        if (a->soft_cap > 0)
            s = REF(soft_cap_one)(s, a->soft_cap, inverse) * (float)LOG2_E;
        p[j - begin] = s;
        m = j == begin || s > m ? s : m;
    }
    for (uint32_t j = begin; j < end; j++) {
        p[j - begin] = REF(cut_exp2)(p[j - begin] - m);
        lanes[j % PAGE_TOKENS] += p[j - begin];
    }
    for (uint32_t h = PAGE_TOKENS / 2; h; h /= 2)
        for (uint32_t i = 0; i < h; i++)
            lanes[i] += lanes[i + h];
    *sum = lanes[0];
    for (uint32_t d = 0; d < hd; d++)
        o[d] = 0;
    for (uint32_t j = begin; j < end; j++) {
        const uint16_t *v = (const uint16_t *)kv_slab(t->batch, table, j / PAGE_TOKENS, a->layer) +
                            (size_t)(a->n_kv_heads + t->kv_head) * hd * PAGE_TOKENS +
                            (size_t)(j % PAGE_TOKENS) * hd;
        for (uint32_t d = 0; d < hd; d++)
            o[d] = fmaf(p[j - begin], half_to_float(v[d]), o[d]);
    }
    return m;
}

/* What is known of one head's keys so far: the largest score, the sum of weights, the weighted
 * values. */
static void REF(add_segment)(float *m, float *l, float *out, float segment_m, float segment_l,
                             const float *o, uint32_t hd, bool first)
{
    if (first) {
        *m = segment_m;
        *l = segment_l;
        memcpy(out, o, hd * sizeof *out);
        return;
    }
    float all = *m > segment_m ? *m : segment_m;
    float scale_old = REF(cut_exp2)(*m - all), scale_new = REF(cut_exp2)(segment_m - all);
    *l = fmaf(segment_l, scale_new, *l * scale_old);
    for (uint32_t d = 0; d < hd; d++)
        out[d] = fmaf(o[d], scale_new, out[d] * scale_old);
    *m = all;
}

static void REF(attend)(const struct attention_task *t, uint32_t row, const float *q, float *out)
{
    const struct page_table_view *table = &t->batch->page_tables[t->batch->tables[row]];
    uint32_t n_keys = t->batch->positions[row] + 1, hd = t->a->head_dim;
    float m = 0, l = 0, *o = t->scratch;

    for (uint32_t begin = 0; begin < n_keys; begin += ATTENTION_KEYS) {
        float sum, largest = REF(attend_segment)(t, table, q, begin,
                                                 MIN(n_keys, begin + ATTENTION_KEYS), &sum, o);
        REF(add_segment)(&m, &l, out, largest, sum, o, hd, begin == 0);
    }
    float r = 1.0f / l;
    for (uint32_t d = 0; d < hd; d++)
        out[d] *= r;
}

static void REF(attention)(const struct attention_task *t)
{
    uint32_t heads = t->a->n_heads / t->a->n_kv_heads, hd = t->a->head_dim;

    for (uint32_t i = t->first; i < t->first + t->n; i++) {
        uint32_t row = t->rows ? t->rows[i] : i;
        for (uint32_t h = 0; h < heads; h++) {
            size_t head = t->kv_head * heads + h;
            const float *q = t->q + ((size_t)row * t->a->n_heads + head) * hd;
            if (t->part) {
                float *part = t->part + h * t->part_stride;
                part[0] = REF(attend_segment)(t, &t->batch->page_tables[t->batch->tables[row]], q,
                                              t->begin, t->end, &part[1], part + 2);
            } else {
                REF(attend)(t, row, q, t->out + ((size_t)i * t->a->n_heads + head) * hd);
            }
        }
    }
}

static void REF(attention_merge)(const float *parts, uint32_t n, uint32_t hd, float *out)
{
    float m = 0, l = 0;

    for (uint32_t i = 0; i < n; i++, parts += 2 + hd)
        REF(add_segment)(&m, &l, out, parts[0], parts[1], parts + 2, hd, i == 0);
    float r = 1.0f / l;
    for (uint32_t d = 0; d < hd; d++)
        out[d] *= r;
}

/* ---- EXACTNESS 6: sampling ---- */

static float REF(maximum)(const float *z, uint32_t n)
{
    float m = -INFINITY;

    for (uint32_t i = 0; i < n; i++)
        m = z[i] > m ? z[i] : m;
    return m;
}

static bool REF(all_valid)(const float *z, uint32_t n)
{
    uint32_t bad = 0;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t u = float_bits(z[i]);
        bad |= (uint32_t)((u & INFINITY_BITS) == INFINITY_BITS) & (uint32_t)(u != 0xFF800000u);
    }
    return !bad;
}

static void REF(sample_weights)(const float *z, uint32_t n, float zmax, float scale, uint32_t *w)
{
    for (uint32_t i = 0; i < n; i++)
        w[i] = (uint32_t)rintf(REF(exp2_one)((z[i] - zmax) * scale) * 0x1p30f);
}

static double REF(log_sum)(const float *z, uint32_t n, float zmax)
{
    double lanes[64] = {0};

    for (uint32_t i = 0; i < n; i++)
        lanes[i % 64] += (double)REF(exp2_one)((z[i] - zmax) * (float)LOG2_E);
    for (uint32_t h = 32; h; h /= 2)
        for (uint32_t i = 0; i < h; i++)
            lanes[i] += lanes[i + h];
    return lanes[0];
}

/* ---- probes: what the compiler makes of plain loops ---- */

static uint64_t REF(peak)(enum compute_unit unit, uint32_t rounds)
{
    int32_t sums[16] = {0}, w = 3;
    float chains[16] = {0}, x = 0.5f;

    for (uint32_t r = 0; r < rounds; r++) {
        if (unit == COMPUTE_FMA_F32)
            for (int i = 0; i < 16; i++)
                chains[i] = fmaf(x, 0.25f, chains[i]);
        else
            for (int i = 0; i < 16; i++)
                sums[i] += (int32_t)(int8_t)(w + i) * (int32_t)(int8_t)r;
        __asm__ volatile("" : "+r"(w) : "r"(sums), "r"(chains) : "memory");
    }
    return (uint64_t)rounds * 32;
}

static void REF(read)(const void *data, uint64_t bytes, bool in_streams)
{
    const uint64_t *p = data;
    uint64_t sum = 0;

    (void)in_streams;
    for (uint64_t i = 0; i < bytes / 8; i++)
        sum |= p[i];
    __asm__ volatile("" : : "r"(sum));
}

const struct compute_ops REF_OPS = {
    .name = "ref",
    .panel = 1,
    .tile = 1,
    .attention_heads = 1,
    .strip_bytes = 256 << 10,
    .n_streams = 1,
/* clang-format off */
#define X(result, name, arguments) .name = REF(name),
    COMPUTE_OPS(X)
#undef X
    /* clang-format on */
};
