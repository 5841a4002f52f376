#include "cmd/flags.h"

#include "base/checked.h"
#include "base/log.h"
#include "base/memory.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static bool matches(const struct flag *f, const char *name)
{
    return !strcmp(f->name, name) || (f->short_name && !strcmp(f->short_name, name)) ||
           (f->other_name && !strcmp(f->other_name, name));
}

static bool takes_value(const struct flag *f)
{
    return f->kind != FLAG_BOOL && f->kind != FLAG_IGNORED;
}

/* Edits between two names, for "did you mean". */
static uint32_t distance(const char *a, const char *b)
{
    uint32_t row[64];
    const size_t n = strlen(b);

    if (n >= ARRAY_LENGTH(row))
        return UINT32_MAX;
    for (uint32_t j = 0; j <= n; j++)
        row[j] = j;
    for (uint32_t i = 1; a[i - 1]; i++) {
        uint32_t corner = row[0];
        row[0] = i;
        for (uint32_t j = 1; j <= n; j++) {
            const uint32_t replaced = corner + (a[i - 1] != b[j - 1]);
            corner = row[j];
            row[j] = MIN(MIN(row[j], row[j - 1]) + 1, replaced);
        }
    }
    return row[n];
}

static enum status unknown(const struct flag *flags, uint32_t n_flags, const char *name)
{
    const char *nearest = NULL;
    uint32_t best = 4;

    for (uint32_t i = 0; i < n_flags; i++) {
        const char *const names[] = {flags[i].name, flags[i].other_name};
        for (size_t k = 0; k < ARRAY_LENGTH(names); k++) {
            const uint32_t d = names[k] ? distance(name, names[k]) : UINT32_MAX;
            if (d < best) {
                best = d;
                nearest = names[k];
            }
        }
    }
    return nearest ? fail(STATUS_USAGE, "unknown flag %s; did you mean %s?", name, nearest)
                   : fail(STATUS_USAGE, "unknown flag %s; --help lists all", name);
}

static enum status parse_number(const struct flag *f, const char *text, double *out)
{
    char *end;

    errno = 0;
    const double v = strtod(text, &end);
    if (end == text || *end || errno)
        return fail(STATUS_USAGE, "%s wants a number, not \"%s\"", f->name, text);
    if (!(v >= f->min && v <= f->max))
        return fail(STATUS_USAGE, "%s wants a number from %g to %g, not %s", f->name, f->min,
                    f->max, text);
    *out = v;
    return STATUS_OK;
}

static enum status parse_bytes(const struct flag *f, const char *text, uint64_t *out)
{
    char *end;
    uint64_t unit = 1;
    const double v = strtod(text, &end);

    if (end == text || !(v > 0))
        return fail(STATUS_USAGE, "%s wants a size such as 512M or 4G, not \"%s\"", f->name, text);
    switch (toupper((unsigned char)*end)) {
    case 'T':
        unit *= 1024; /* fall through */
    case 'G':
        unit *= 1024; /* fall through */
    case 'M':
        unit *= 1024; /* fall through */
    case 'K':
        unit *= 1024;
        end++;
    }
    if (*end == 'i')
        end++;
    if (*end == 'B' || *end == 'b')
        end++;
    if (*end || v * (double)unit > 1e18)
        return fail(STATUS_USAGE, "%s wants a size such as 512M or 4G, not \"%s\"", f->name, text);
    *out = (uint64_t)(v * (double)unit);
    return STATUS_OK;
}

static enum status add_strings(const struct flag *f, const char *text, struct flag_strings *out)
{
    char *copy = memory_strdup(text), *save = NULL; /* lives as long as the process */

    if (!copy)
        return STATUS_NO_MEMORY;
    for (char *item = strtok_r(copy, ",", &save); item; item = strtok_r(NULL, ",", &save)) {
        if (out->n == ARRAY_LENGTH(out->items))
            return fail(STATUS_USAGE, "%s takes at most %zu values", f->name,
                        ARRAY_LENGTH(out->items));
        out->items[out->n++] = item;
    }
    return STATUS_OK;
}

static enum status set(const struct flag *f, const char *value, void *options,
                       bool from_environment)
{
    void *field = (char *)options + f->offset;
    double number;

    switch (f->kind) {
    case FLAG_BOOL:
        *(bool *)field =
            !from_environment || (strcmp(value, "0") && strcmp(value, "false") && *value);
        return STATUS_OK;
    case FLAG_STRING:
        *(const char **)field = value;
        return STATUS_OK;
    case FLAG_STRINGS:
        return add_strings(f, value, field);
    case FLAG_INT:
        TRY(parse_number(f, value, &number));
        if (number != (double)(int64_t)number)
            return fail(STATUS_USAGE, "%s wants a whole number, not %s", f->name, value);
        *(int64_t *)field = (int64_t)number;
        return STATUS_OK;
    case FLAG_DOUBLE:
        TRY(parse_number(f, value, &number));
        *(double *)field = number;
        return STATUS_OK;
    case FLAG_BYTES:
        return parse_bytes(f, value, field);
    case FLAG_IGNORED:
    case FLAG_IGNORED_VALUE:
        if (!from_environment)
            log_event(LOG_WARN, "flag changes nothing here", "flag=%s", f->name);
        return STATUS_OK;
    }
    return STATUS_OK;
}

static enum status from_environment(const struct flag *flags, uint32_t n_flags, void *options,
                                    bool *given)
{
    for (uint32_t i = 0; i < n_flags; i++) {
        char name[80] = "BATON_ARG_";
        size_t n = strlen(name);
        for (const char *p = flags[i].name + 2; *p && n + 1 < sizeof name; p++)
            name[n++] = *p == '-' ? '_' : (char)toupper((unsigned char)*p);
        name[n] = 0;
        const char *value = flags[i].name[1] == '-' ? getenv(name) : NULL;
        if (!value)
            continue;
        if (set(&flags[i], value, options, true) != STATUS_OK) {
            char why[400];
            snprintf(why, sizeof why, "%s", status_message());
            return fail(STATUS_USAGE, "%s: %s", name, why);
        }
        if (given)
            given[i] = true;
    }
    return STATUS_OK;
}

enum status flags_parse(const struct flag *flags, uint32_t n_flags, int argc, char **argv,
                        void *options, bool *given, const char **rest, uint32_t max_rest,
                        uint32_t *n_rest)
{
    bool seen[128] = {0};
    uint32_t n = 0;

    TRY(from_environment(flags, n_flags, options, given));
    for (int i = 0; i < argc; i++) {
        const char *arg = argv[i], *value = NULL;
        char name[64];
        if (*arg != '-' || !arg[1]) {
            if (n == max_rest)
                return fail(STATUS_USAGE, "\"%s\" is no flag, and nothing else is expected here",
                            arg);
            rest[n++] = arg;
            continue;
        }
        const char *equals = arg[1] == '-' ? strchr(arg, '=') : NULL;
        snprintf(name, sizeof name, "%.*s", equals ? (int)(equals - arg) : (int)strlen(arg), arg);
        uint32_t f = 0;
        while (f < n_flags && !matches(&flags[f], name))
            f++;
        if (f == n_flags)
            return unknown(flags, n_flags, name);
        if (takes_value(&flags[f])) {
            value = equals ? equals + 1 : i + 1 < argc ? argv[++i] : NULL;
            if (!value)
                return fail(STATUS_USAGE, "%s wants a value%s%s", name, flags[f].value ? ": " : "",
                            flags[f].value ? flags[f].value : "");
        } else if (equals) {
            return fail(STATUS_USAGE, "%s takes no value", name);
        }
        if (flags[f].kind == FLAG_STRINGS && f < ARRAY_LENGTH(seen) && !seen[f]) {
            ((struct flag_strings *)((char *)options + flags[f].offset))->n =
                0; /* the command line wins */
            seen[f] = true;
        }
        TRY(set(&flags[f], value, options, false));
        if (given)
            given[f] = true;
    }
    if (n_rest)
        *n_rest = n;
    return STATUS_OK;
}

void flags_print(FILE *out, const struct flag *flags, uint32_t n_flags)
{
    for (uint32_t i = 0; i < n_flags; i++) {
        char left[80];
        if (flags[i].kind == FLAG_IGNORED || flags[i].kind == FLAG_IGNORED_VALUE)
            continue;
        snprintf(left, sizeof left, "%s%s%s%s%s", flags[i].short_name ? flags[i].short_name : "",
                 flags[i].short_name ? ", " : "    ", flags[i].name, flags[i].value ? " " : "",
                 flags[i].value ? flags[i].value : "");
        fprintf(out, "  %-34s %s\n", left, flags[i].help);
    }
}
