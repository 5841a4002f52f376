/* compute: the operations a model is made of, as one table that cpu/ref fills whole and each SIMD tier overrides; packed
 * weights; and the workers that run a step.
 *
 * The interface is a device's: a step is begun, operations are enqueued, the step is ended; nobody assumes that an
 * operation has finished because its call returned. */
#ifndef BATON_COMPUTE_COMPUTE_H
#define BATON_COMPUTE_COMPUTE_H

#include "base/status.h"
#include "tensor/tensor.h"

#include <stdint.h>

/* Where a pool's slabs lie: the slab of (page, layer) is base + page * page_stride + layer * slab bytes of the geometry. */
struct kv_view {
    void *base;
    uint64_t page_stride;
    struct kv_geometry geometry;
};

/* The pages of one sequence, in order of position. Token t lives in pages[t / PAGE_TOKENS], lane t % PAGE_TOKENS. */
struct page_table_view {
    const uint32_t *pages;
    uint32_t n_tokens; /* that will be in the pages when the step has ended */
};

#endif
