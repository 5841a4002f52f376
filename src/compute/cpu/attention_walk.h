/* The walk of one task of attention over its segments, and the two operations made of it. A tier
 * that includes this has segment() and merge(), and says its name with TIER() and its scale
 * operation with TIER_SCALE. */

/* At most ATTENTION_PAIRS: heads [head, head + heads) of the rows. */
static void run_pairs(const struct attention_task *t, uint32_t head, uint32_t heads)
{
    struct pair pairs[ATTENTION_PAIRS];
    struct task k = {.t = t, .pairs = pairs, .hd = t->a->head_dim, .begin = t->part ? t->begin : 0};
    uint32_t end = 0, first_head = t->kv_head * (t->a->n_heads / t->a->n_kv_heads);

    for (uint32_t i = t->first; i < t->first + t->n; i++) {
        uint32_t row = t->rows ? t->rows[i] : i;
        k.table = &t->batch->page_tables[t->batch->tables[row]];
        end = t->part ? t->end : t->batch->positions[row] + 1;
        for (uint32_t h = head; h < head + heads; h++) {
            float *out = t->part ? t->part + (h - first_head) * t->part_stride + 2
                                 : t->out + ((size_t)i * t->a->n_heads + h) * k.hd;
            pairs[k.n++] = (struct pair){
                .q = t->q + ((size_t)row * t->a->n_heads + h) * k.hd, .out = out, .n_keys = end};
        }
    }
    k.page = t->scratch;
    k.end = end;
    k.s = k.page + (size_t)2 * ATTENTION_KEYS * k.hd;
    k.o = k.s + (size_t)k.n * ATTENTION_KEYS;
    for (uint32_t begin = k.begin; begin < end; begin += ATTENTION_KEYS)
        segment(&k, begin, MIN(end, begin + ATTENTION_KEYS));
    for (uint32_t i = 0; i < k.n; i++) {
        if (t->part) {
            pairs[i].out[-2] = pairs[i].m;
            pairs[i].out[-1] = pairs[i].l;
        } else {
            TIER_SCALE(pairs[i].out, k.hd, 1.0f / pairs[i].l);
        }
    }
}

void TIER(attention_merge)(const float *parts, uint32_t n, uint32_t head_dim, float *out)
{
    struct pair p = {.out = out};

    for (uint32_t i = 0; i < n; i++, parts += 2 + head_dim)
        merge(&p, parts + 2, head_dim, parts[0], parts[1], i == 0);
    TIER_SCALE(out, head_dim, 1.0f / p.l);
}

void TIER(attention)(const struct attention_task *t)
{
    uint32_t heads = t->a->n_heads / t->a->n_kv_heads, first = t->kv_head * heads,
             at_once = MAX(1, MIN(heads, ATTENTION_PAIRS / t->n));

    for (uint32_t h = 0; h < heads; h += at_once)
        run_pairs(t, first + h, MIN(at_once, heads - h));
}
