/* Filters over lists. Those that are generators in Jinja2 give something that can be walked once.
 */
#include "base/checked.h"
#include "text/jinja.h"
#include "text/jinja_filters.h"

#include <string.h>

#define LIST_FILTER(name)                                                                          \
    enum status name(struct render *r, struct value self, const struct call *call,                 \
                     struct value *out)

/* The input's items; an undefined one has none. */
static enum status input_items(struct render *r, struct value self, struct value **items,
                               uint32_t *n)
{
    TRY(jinja_value_items(r, self, items, n));
    return jinja_charge(r, (size_t)*n * sizeof(struct value));
}

static enum status get_step(struct render *r, struct value v, struct value key,
                            const struct value *fallback, struct value *out)
{
    TRY(jinja_get_item(r, v, key, out));
    if (fallback && out->type == VALUE_UNDEFINED)
        *out = *fallback;
    return STATUS_OK;
}

enum status jinja_get_path(struct render *r, struct value v, struct value path,
                           const struct value *fallback, struct value *out)
{
    if (path.type != VALUE_STRING)
        return get_step(r, v, path, fallback, out);
    const struct text *t = path.text;
    for (uint32_t start = 0, end; start <= t->len; start = end + 1) {
        struct value key;
        int64_t number = 0;
        bool digits = true;
        for (end = start; end < t->len && t->bytes[end] != '.'; end++) {
            digits = digits && t->bytes[end] >= '0' && t->bytes[end] <= '9' && end - start < 9;
            number = number * 10 + (digits ? t->bytes[end] - '0' : 0);
        }
        if (digits && end > start)
            key = jinja_value_int(number);
        else
            TRY(jinja_text_slice(r, t, start, end, &key));
        TRY(get_step(r, v, key, fallback, &v));
    }
    *out = v;
    return STATUS_OK;
}

/* The item itself without a path; in either case letters in lower case when case does not matter.
 */
static enum status sort_key(struct render *r, struct value item, const struct slot *path,
                            const struct value *fallback, bool ignore_case, struct value *out)
{
    *out = item;
    if (path && path->present && path->value.type != VALUE_NONE)
        TRY(jinja_get_path(r, item, path->value, fallback, out));
    if (ignore_case && out->type == VALUE_STRING)
        TRY(jinja_text_change_case(r, out->text, CASE_LOWER, out));
    return STATUS_OK;
}

struct keyed {
    struct value key, item;
};

/* Merging, so that equals keep their order; backwards they keep it too. */
static enum status sort_keyed(struct render *r, struct keyed *items, uint32_t n, bool backwards)
{
    struct keyed *other = jinja_alloc(r, n, sizeof *other), *from = items, *to = other;

    if (!other)
        return STATUS_BAD_TEMPLATE;
    for (uint64_t width = 1; width < n; width *= 2) {
        for (uint64_t low = 0; low < n; low += 2 * width) {
            uint64_t middle = MIN(low + width, (uint64_t)n),
                     high = MIN(low + 2 * width, (uint64_t)n), a = low, b = middle;
            for (uint64_t k = low; k < high; k++) {
                int order = 0;
                if (a < middle && b < high)
                    TRY(jinja_order(r, "<", from[a].key, from[b].key, &order));
                order = backwards ? -order : order;
                TRY(jinja_charge(r, 0));
                to[k] = a < middle && (b >= high || order <= 0) ? from[a++] : from[b++];
            }
        }
        struct keyed *t = from;
        from = to;
        to = t;
    }
    if (from != items)
        memcpy(items, from, n * sizeof *items);
    return STATUS_OK;
}

static enum status keyed_items(struct render *r, struct value self, const struct slot *path,
                               const struct value *fallback, bool ignore_case, struct keyed **out,
                               uint32_t *n)
{
    struct value *items;

    TRY(input_items(r, self, &items, n));
    *out = jinja_alloc(r, *n, sizeof **out);
    if (!*out)
        return STATUS_BAD_TEMPLATE;
    for (uint32_t i = 0; i < *n; i++) {
        (*out)[i].item = items[i];
        TRY(sort_key(r, items[i], path, fallback, ignore_case, &(*out)[i].key));
    }
    return STATUS_OK;
}

static bool flag(const struct slot *s)
{
    return s->present && jinja_value_is_true(s->value);
}

LIST_FILTER(jinja_filter_sort)
{
    struct slot slots[] = {{.name = "reverse"}, {.name = "case_sensitive"}, {.name = "attribute"}};
    struct keyed *items;
    uint32_t n;

    TRY(jinja_bind(r, "sort", call, slots, 3));
    TRY(keyed_items(r, self, &slots[2], NULL, !flag(&slots[1]), &items, &n));
    TRY(sort_keyed(r, items, n, flag(&slots[0])));
    TRY(jinja_value_list(r, VALUE_LIST, n, out));
    for (uint32_t i = 0; i < n; i++)
        out->list->items[i] = items[i].item;
    return STATUS_OK;
}

LIST_FILTER(jinja_filter_dictsort)
{
    struct slot slots[] = {{.name = "case_sensitive"}, {.name = "by"}, {.name = "reverse"}};
    struct slot position = {.present = true, .value = jinja_value_int(0)};
    struct value pairs;
    struct keyed *items;
    uint32_t n;

    TRY(jinja_bind(r, "dictsort", call, slots, 3));
    TRY(jinja_value_use(r, self));
    if (self.type != VALUE_DICT)
        return jinja_fail(r, "dictsort() wants a mapping, not %s", jinja_value_type_name(self));
    if (slots[1].present && jinja_value_is_text(slots[1].value, "value"))
        position.value = jinja_value_int(1);
    TRY(jinja_filter_items(r, self, &(struct call){0}, &pairs));
    TRY(keyed_items(r, pairs, &position, NULL, !flag(&slots[0]), &items, &n));
    TRY(sort_keyed(r, items, n, flag(&slots[2])));
    TRY(jinja_value_list(r, VALUE_LIST, n, out));
    for (uint32_t i = 0; i < n; i++)
        out->list->items[i] = items[i].item;
    return STATUS_OK;
}

LIST_FILTER(jinja_filter_groupby)
{
    struct slot slots[] = {{.name = "attribute"}, {.name = "default"}, {.name = "case_sensitive"}};
    struct keyed *items;
    uint32_t n, n_groups = 0;

    TRY(jinja_bind(r, "groupby", call, slots, 3));
    const struct value *fallback = slots[1].present ? &slots[1].value : NULL;
    TRY(keyed_items(r, self, &slots[0], fallback, !flag(&slots[2]), &items, &n));
    TRY(sort_keyed(r, items, n, false));
    for (uint32_t i = 0; i < n; i++)
        n_groups += i == 0 || !jinja_value_equal(items[i - 1].key, items[i].key);
    TRY(jinja_value_list(r, VALUE_LIST, n_groups, out));
    for (uint32_t i = 0, g = 0, end; i < n; i = end, g++) {
        for (end = i + 1; end < n && jinja_value_equal(items[end].key, items[i].key); end++)
            ;
        struct value *group = &out->list->items[g];
        TRY(jinja_value_list(r, VALUE_TUPLE, 2, group));
        group->list->view = "group";
        /* as the first one spells it */
        TRY(sort_key(r, items[i].item, &slots[0], fallback, false, &group->list->items[0]));
        TRY(jinja_value_list(r, VALUE_LIST, end - i, &group->list->items[1]));
        for (uint32_t k = i; k < end; k++)
            group->list->items[1].list->items[k - i] = items[k].item;
    }
    return STATUS_OK;
}

static enum status extreme(struct render *r, const char *name, struct value self,
                           const struct call *call, int sign, struct value *out)
{
    struct slot slots[] = {{.name = "case_sensitive"}, {.name = "attribute"}};
    struct keyed *items;
    uint32_t n, best = 0;
    int order;

    TRY(jinja_bind(r, name, call, slots, 2));
    TRY(keyed_items(r, self, &slots[1], NULL, !flag(&slots[0]), &items, &n));
    if (n == 0)
        return jinja_value_undefined(r, "No aggregated item, sequence was empty.", out);
    for (uint32_t i = 1; i < n; i++) {
        TRY(jinja_order(r, "<", items[i].key, items[best].key, &order));
        if (order * sign > 0)
            best = i;
    }
    *out = items[best].item;
    return STATUS_OK;
}

LIST_FILTER(jinja_filter_max)
{
    return extreme(r, "max", self, call, 1, out);
}

LIST_FILTER(jinja_filter_min)
{
    return extreme(r, "min", self, call, -1, out);
}

LIST_FILTER(jinja_filter_unique)
{
    struct slot slots[] = {{.name = "case_sensitive"}, {.name = "attribute"}};
    struct keyed *items;
    struct value seen;
    uint32_t n, kept = 0;

    TRY(jinja_bind(r, "unique", call, slots, 2));
    TRY(keyed_items(r, self, &slots[1], NULL, !flag(&slots[0]), &items, &n));
    TRY(jinja_value_dict(r, 16, &seen));
    TRY(jinja_value_list(r, VALUE_GENERATOR, n, out));
    for (uint32_t i = 0; i < n; i++) {
        if (jinja_dict_find(seen.dict, items[i].key))
            continue;
        TRY(jinja_dict_set(r, seen.dict, items[i].key, jinja_value_none()));
        out->list->items[kept++] = items[i].item;
    }
    out->list->n = kept;
    return STATUS_OK;
}

LIST_FILTER(jinja_filter_sum)
{
    struct slot slots[] = {{.name = "attribute"}, {.name = "start"}};
    struct value *items, item;
    uint32_t n;

    TRY(jinja_bind(r, "sum", call, slots, 2));
    TRY(input_items(r, self, &items, &n));
    *out = slots[1].present ? slots[1].value : jinja_value_int(0);
    for (uint32_t i = 0; i < n; i++) {
        TRY(sort_key(r, items[i], &slots[0], NULL, false, &item));
        TRY(jinja_binary(r, '+', *out, item, out));
    }
    return STATUS_OK;
}

LIST_FILTER(jinja_filter_first)
{
    TRY(jinja_bind(r, "first", call, NULL, 0));
    if (self.type == VALUE_GENERATOR) { /* takes one, and leaves the others */
        if (self.list->position < self.list->n) {
            *out = self.list->items[self.list->position++];
            return STATUS_OK;
        }
        return jinja_value_undefined(r, "No first item, sequence was empty.", out);
    }
    struct value *items;
    uint32_t n;
    TRY(input_items(r, self, &items, &n));
    if (n == 0)
        return jinja_value_undefined(r, "No first item, sequence was empty.", out);
    *out = items[0];
    return STATUS_OK;
}

LIST_FILTER(jinja_filter_last)
{
    struct value *items;
    uint32_t n;

    TRY(jinja_bind(r, "last", call, NULL, 0));
    if (self.type == VALUE_GENERATOR)
        return jinja_fail(r, "'generator' object is not reversible");
    TRY(input_items(r, self, &items, &n));
    if (n == 0)
        return jinja_value_undefined(r, "No last item, sequence was empty.", out);
    *out = items[n - 1];
    return STATUS_OK;
}

static enum status copy_items(struct render *r, enum value_type type, const struct value *items,
                              uint32_t n, struct value *out)
{
    TRY(jinja_value_list(r, type, n, out));
    for (uint32_t i = 0; i < n; i++)
        out->list->items[i] = items[i];
    return STATUS_OK;
}

LIST_FILTER(jinja_filter_list)
{
    struct value *items;
    uint32_t n;

    TRY(jinja_bind(r, "list", call, NULL, 0));
    TRY(input_items(r, self, &items, &n));
    return copy_items(r, VALUE_LIST, items, n, out);
}

LIST_FILTER(jinja_filter_reverse)
{
    struct value *items;
    uint32_t n;

    TRY(jinja_bind(r, "reverse", call, NULL, 0));
    if (self.type == VALUE_STRING)
        return jinja_slice(r, self, jinja_value_none(), jinja_value_none(), jinja_value_int(-1),
                           out);
    TRY(input_items(r, self, &items, &n));
    TRY(jinja_value_list(r, VALUE_GENERATOR, n, out));
    for (uint32_t i = 0; i < n; i++)
        out->list->items[i] = items[n - 1 - i];
    return STATUS_OK;
}

LIST_FILTER(jinja_filter_items)
{
    TRY(jinja_bind(r, "items", call, NULL, 0));
    if (self.type == VALUE_UNDEFINED)
        return jinja_value_list(r, VALUE_GENERATOR, 0, out);
    if (self.type != VALUE_DICT)
        return jinja_fail(r, "Can only get item pairs from a mapping.");
    TRY(jinja_call(
        r,
        (struct value){.type = VALUE_METHOD,
                       .method = &(struct method){self, jinja_find_method(VALUE_DICT, "items", 5)}},
        &(struct call){0}, out));
    out->type = VALUE_GENERATOR;
    return STATUS_OK;
}

LIST_FILTER(jinja_filter_join)
{
    struct slot slots[] = {{.name = "d"}, {.name = "attribute"}};
    struct value *items, separator, *parts;
    uint32_t n;

    TRY(jinja_bind(r, "join", call, slots, 2));
    TRY(input_items(r, self, &items, &n));
    if (slots[0].present)
        TRY(jinja_value_to_text(r, slots[0].value, &separator));
    else
        TRY(jinja_value_string(r, "", 0, true, &separator));
    parts = jinja_alloc(r, n, sizeof *parts);
    if (!parts)
        return STATUS_BAD_TEMPLATE;
    for (uint32_t i = 0; i < n; i++)
        TRY(sort_key(r, items[i], &slots[1], NULL, false, &parts[i]));
    return jinja_text_join(r, separator.text, parts, n, out);
}

/* Lists of `size` items each; the last may be filled up. */
LIST_FILTER(jinja_filter_batch)
{
    struct slot slots[] = {{.name = "linecount"}, {.name = "fill_with"}};
    struct value *items;
    uint32_t n;
    int64_t size;

    TRY(jinja_bind(r, "batch", call, slots, 2));
    TRY(jinja_want_int(r, "batch", slots[0].present ? slots[0].value : jinja_value_none(), &size));
    TRY(input_items(r, self, &items, &n));
    if (size < 1 || size > JINJA_MAX_RANGE)
        return jinja_fail(r, "batch() cannot make lists of %lld", (long long)size);
    bool fill = slots[1].present && slots[1].value.type != VALUE_NONE;
    uint32_t step = (uint32_t)size;
    TRY(jinja_value_list(r, VALUE_GENERATOR, n / step + (n % step > 0), out));
    for (uint32_t i = 0; i < out->list->n; i++) {
        uint32_t have = MIN(step, n - i * step), length = fill ? step : have;
        TRY(jinja_value_list(r, VALUE_LIST, length, &out->list->items[i]));
        for (uint32_t k = 0; k < length; k++)
            out->list->items[i].list->items[k] = k < have ? items[i * step + k] : slots[1].value;
    }
    return STATUS_OK;
}

/* So many lists of nearly equal length. */
LIST_FILTER(jinja_filter_slice)
{
    struct slot slots[] = {{.name = "slices"}, {.name = "fill_with"}};
    struct value *items;
    uint32_t n, at = 0;
    int64_t count;

    TRY(jinja_bind(r, "slice", call, slots, 2));
    TRY(jinja_want_int(r, "slice", slots[0].present ? slots[0].value : jinja_value_none(), &count));
    TRY(input_items(r, self, &items, &n));
    if (count < 1 || count > JINJA_MAX_RANGE)
        return jinja_fail(r, "slice() cannot make %lld lists", (long long)count);
    bool fill = slots[1].present && slots[1].value.type != VALUE_NONE;
    uint32_t each = n / (uint32_t)count, longer = n % (uint32_t)count;
    TRY(jinja_value_list(r, VALUE_GENERATOR, (uint32_t)count, out));
    for (uint32_t i = 0; i < (uint32_t)count; i++) {
        uint32_t have = each + (i < longer), length = have + (fill && i >= longer);
        TRY(jinja_charge(r, 0));
        TRY(jinja_value_list(r, VALUE_LIST, length, &out->list->items[i]));
        for (uint32_t k = 0; k < length; k++)
            out->list->items[i].list->items[k] = k < have ? items[at++] : slots[1].value;
    }
    return STATUS_OK;
}

/* map('filter', arguments...) or map(attribute='path', default=...). */
LIST_FILTER(jinja_filter_map)
{
    struct value *items, path = jinja_value_none(), fallback = jinja_value_none();
    bool has_path = false, has_fallback = false;
    struct call rest = *call;
    struct text *name = NULL;
    uint32_t n;

    TRY(input_items(r, self, &items, &n));
    if (call->n_positional == 0) {
        for (uint32_t k = 0; k < call->n_keyword; k++) {
            bool is_path = !strcmp(call->names[k], "attribute");
            if (!is_path && strcmp(call->names[k], "default"))
                return jinja_fail(r, "map() got an unexpected argument '%.100s'", call->names[k]);
            *(is_path ? &path : &fallback) = call->keyword[k];
            *(is_path ? &has_path : &has_fallback) = true;
        }
        if (!has_path)
            return jinja_fail(r, "map() wants a filter or an attribute");
    } else {
        TRY(jinja_want_text(r, "map", call->positional[0], &name));
        rest.positional++;
        rest.n_positional--;
    }
    char filter[64] = {0};
    if (name)
        memcpy(filter, name->bytes, MIN(name->len, sizeof filter - 1));
    TRY(jinja_value_list(r, VALUE_GENERATOR, n, out));
    for (uint32_t i = 0; i < n; i++) {
        struct value *item = &out->list->items[i];
        TRY(jinja_enter(r));
        if (name)
            TRY(jinja_apply_filter(r, filter, items[i], &rest, item));
        else
            TRY(jinja_get_path(r, items[i], path, has_fallback ? &fallback : NULL, item));
        jinja_leave(r);
    }
    return STATUS_OK;
}

/* Keeps the items, or those items' attributes, for which a test gives `wanted`; without a test,
 * their truth. */
static enum status choose(struct render *r, const char *name, struct value self,
                          const struct call *call, bool by_attribute, bool wanted,
                          struct value *out)
{
    struct value *items, path = jinja_value_none();
    struct call rest = *call;
    char test[64] = {0};
    uint32_t n, kept = 0;

    if (by_attribute) {
        if (rest.n_positional == 0)
            return jinja_fail(r, "%s() wants an attribute", name);
        path = *rest.positional++;
        rest.n_positional--;
    }
    bool has_test = rest.n_positional > 0;
    if (has_test) {
        struct text *t;
        TRY(jinja_want_text(r, name, *rest.positional++, &t));
        rest.n_positional--;
        memcpy(test, t->bytes, MIN(t->len, sizeof test - 1));
    }
    TRY(input_items(r, self, &items, &n));
    TRY(jinja_value_list(r, VALUE_GENERATOR, n, out));
    for (uint32_t i = 0; i < n; i++) {
        struct value v = items[i];
        bool holds;
        if (by_attribute)
            TRY(jinja_get_path(r, v, path, NULL, &v));
        if (has_test)
            TRY(jinja_apply_test(r, test, v, &rest, &holds));
        else
            holds = jinja_value_is_true(v);
        if (holds == wanted)
            out->list->items[kept++] = items[i];
    }
    out->list->n = kept;
    return STATUS_OK;
}

LIST_FILTER(jinja_filter_select)
{
    return choose(r, "select", self, call, false, true, out);
}

LIST_FILTER(jinja_filter_reject)
{
    return choose(r, "reject", self, call, false, false, out);
}

LIST_FILTER(jinja_filter_selectattr)
{
    return choose(r, "selectattr", self, call, true, true, out);
}

LIST_FILTER(jinja_filter_rejectattr)
{
    return choose(r, "rejectattr", self, call, true, false, out);
}
