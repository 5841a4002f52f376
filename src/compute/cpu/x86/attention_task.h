/* The rows and heads of one task of attention (attention.h). */
#include "compute/internal.h"

struct pair {
    const float *q;
    float *out;
    uint32_t n_keys;
    float m, l;
};

struct task {
    const struct attention_task *t;
    const struct page_table_view *table;
    struct pair *pairs;
    uint32_t n, hd;
    uint32_t begin; /* the first key */
    float *s;       /* [pairs][256] scores, then weights */
    float *o;       /* [pairs][hd] of a segment */
    float *page;    /* [hd * 32] a page of K or V as f32 */
};
