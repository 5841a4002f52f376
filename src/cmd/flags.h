/* cmd/flags: one table per command says flag, variable, help text and default, and is what parses,
 * prints and documents. */
#ifndef BATON_CMD_FLAGS_H
#define BATON_CMD_FLAGS_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum flag_kind {
    FLAG_BOOL,    /* bool; takes no value */
    FLAG_STRING,  /* const char * */
    FLAG_STRINGS, /* struct flag_strings; may be repeated, commas separate */
    FLAG_INT,     /* int64_t within min and max */
    FLAG_DOUBLE,  /* double within min and max */
    FLAG_BYTES,   /* uint64_t; "512M", "4G" */
    FLAG_IGNORED, /* of llama-server; takes no value, and changes nothing here */
    FLAG_IGNORED_VALUE,
};

struct flag_strings {
    const char *items[64];
    uint32_t n;
};

struct flag {
    const char *name;       /* "--ctx-size" */
    const char *short_name; /* "-c" or NULL */
    const char *other_name; /* another spelling, or NULL */
    enum flag_kind kind;
    size_t offset;     /* of the field in the command's options */
    const char *value; /* its name in the help, NULL for none */
    double min, max;   /* numbers */
    const char *help;
};

/* Environment first (BATON_ARG_CTX_SIZE for --ctx-size), then the command line. What is not a flag
 * goes to rest (at most max_rest; NULL: nothing may be left). given: [n_flags] set for what was
 * said anywhere; may be NULL. Errors: USAGE with the nearest name. */
enum status flags_parse(const struct flag *flags, uint32_t n_flags, int argc, char **argv,
                        void *options, bool *given, const char **rest, uint32_t max_rest,
                        uint32_t *n_rest) WARN_UNUSED;
void flags_print(FILE *out, const struct flag *flags, uint32_t n_flags);

#endif
