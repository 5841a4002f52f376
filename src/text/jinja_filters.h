/* text/jinja_filters (private to the room): how a filter is written, and those over lists. */
#ifndef BATON_TEXT_JINJA_FILTERS_H
#define BATON_TEXT_JINJA_FILTERS_H

#include "text/jinja.h"

#define FILTER(name)                                                                               \
    static enum status name(struct render *r, struct value self, const struct call *call,          \
                            struct value *out)

function_call jinja_filter_batch, jinja_filter_dictsort, jinja_filter_first, jinja_filter_groupby,
    jinja_filter_items, jinja_filter_join, jinja_filter_last, jinja_filter_list, jinja_filter_map,
    jinja_filter_max, jinja_filter_min, jinja_filter_reject, jinja_filter_rejectattr,
    jinja_filter_reverse, jinja_filter_select, jinja_filter_selectattr, jinja_filter_slice,
    jinja_filter_sort, jinja_filter_sum, jinja_filter_unique;

#endif
