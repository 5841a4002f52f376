#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *code;
    const char *type;
    int http;
} table[] = {
#define X(name, code, http, type) {code, type, http},
    STATUS_TABLE(X)
#undef X
};

static _Thread_local char message[512];

const char *status_code(enum status s)
{
    return (unsigned)s < STATUS_COUNT ? table[s].code : "internal";
}

enum status status_from_code(const char *code, size_t len)
{
    for (unsigned i = 0; i < STATUS_COUNT; i++)
        if (strlen(table[i].code) == len && memcmp(table[i].code, code, len) == 0)
            return (enum status)i;
    return STATUS_INTERNAL;
}

int status_http(enum status s)
{
    return (unsigned)s < STATUS_COUNT ? table[s].http : 500;
}

const char *status_error_type(enum status s)
{
    return (unsigned)s < STATUS_COUNT ? table[s].type : "server_error";
}

enum status fail(enum status s, const char *format, ...)
{
    char text[sizeof message];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args); /* an argument may be the old message */
    va_end(args);
    memcpy(message, text, sizeof message);
    return s;
}

const char *status_message(void)
{
    return message;
}
