/* One JSON field: its type, its range, and an error that names it. */
#include "api/internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

const json_t *field_get(const json_t *o, const char *name)
{
    const json_t *v = json_object_get(o, name);

    return v == NULL || json_is_null(v) ? NULL : v;
}

enum status field_bool(const json_t *o, const char *name, struct api_error *e, bool *out)
{
    const json_t *v = field_get(o, name);

    if (v == NULL)
        return STATUS_OK;
    if (!json_is_boolean(v))
        return api_fail(e, STATUS_BAD_REQUEST, name, "'%s' must be true or false", name);
    *out = json_is_true(v);
    return STATUS_OK;
}

enum status field_i64(const json_t *o, const char *name, int64_t min, int64_t max,
                      struct api_error *e, int64_t *out)
{
    const json_t *v = field_get(o, name);
    int64_t n = 0;
    bool whole = false;

    if (v == NULL)
        return STATUS_OK;
    if (json_is_integer(v)) {
        n = json_integer_value(v);
        whole = true;
    } else if (json_is_real(v)) { /* 16.0: what a client without integers sends */
        double d = json_real_value(v);

        whole = d == floor(d) && fabs(d) < 9007199254740992.0;
        n = whole ? (int64_t)d : 0;
    }
    if (!whole)
        return api_fail(e, STATUS_BAD_REQUEST, name, "'%s' must be a whole number", name);
    if (n < min || n > max) {
        if (max == INT64_MAX)
            return api_fail(e, STATUS_BAD_REQUEST, name,
                            "'%s' is %" PRId64 "; it must be at least %" PRId64, name, n, min);
        return api_fail(e, STATUS_BAD_REQUEST, name,
                        "'%s' is %" PRId64 "; it must be from %" PRId64 " to %" PRId64, name, n,
                        min, max);
    }
    *out = n;
    return STATUS_OK;
}

enum status field_number(const json_t *o, const char *name, double min, double max,
                         struct api_error *e, double *out)
{
    const json_t *v = field_get(o, name);
    double d;

    if (v == NULL)
        return STATUS_OK;
    if (!json_is_number(v))
        return api_fail(e, STATUS_BAD_REQUEST, name, "'%s' must be a number", name);
    d = json_number_value(v);
    if (!(d >= min && d <= max))
        return api_fail(e, STATUS_BAD_REQUEST, name, "'%s' is %g; it must be from %g to %g", name,
                        d, min, max);
    *out = d;
    return STATUS_OK;
}

enum status field_string(const json_t *o, const char *name, struct api_error *e, const char **out,
                         size_t *len)
{
    const json_t *v = field_get(o, name);

    if (v == NULL)
        return STATUS_OK;
    if (!json_is_string(v))
        return api_fail(e, STATUS_BAD_REQUEST, name, "'%s' must be a string", name);
    *out = json_string_value(v);
    if (len != NULL)
        *len = json_string_length(v);
    return STATUS_OK;
}
