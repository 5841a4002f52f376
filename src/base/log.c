#include "base/log.h"

#include "base/checked.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static struct log_options options = {.level = LOG_INFO};
static const char *const level_name[] = {"debug", "info", "warn", "error"};
static const char *const level_color[] = {"\033[2m", "", "\033[33m", "\033[31m"};
static const int level_priority[] = {7, 6, 4, 3};

void log_setup(const struct log_options *o)
{
    options = *o;
}

bool log_enabled(enum log_level level)
{
    return level >= options.level;
}

const char *log_quote(const char *value)
{
    static _Thread_local char ring[4][1700];
    static _Thread_local unsigned next;
    char *out = ring[next++ % 4], *p = out;
    size_t len = strnlen(value, 400);
    bool plain = len > 0;

    for (size_t i = 0; i < len && plain; i++) {
        unsigned char c = (unsigned char)value[i];
        plain = c > ' ' && c != '"' && c != '\\' && c != '=' && c != 127;
    }
    if (!plain)
        *p++ = '"';
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)value[i];
        if (c == '"' || c == '\\') {
            *p++ = '\\';
            *p++ = (char)c;
        } else if (c < ' ' || c == 127) {
            p += sprintf(p, "\\x%02x", c);
        } else {
            *p++ = (char)c;
        }
    }
    if (!plain)
        *p++ = '"';
    *p = 0;
    return out;
}

/* Turns the logfmt fields that a caller wrote into JSON members, so that call sites know one form
 * only. */
static size_t json_fields(char *out, size_t room, const char *fields)
{
    size_t n = 0;
    const char *p = fields;

    while (*p && n + 8 < room) {
        const char *eq = strchr(p, '=');
        if (!eq)
            break;
        n += (size_t)snprintf(out + n, room - n, ",\"%.*s\":\"",
                              (int)MIN((size_t)(eq - p), (size_t)40), p);
        p = eq + 1;
        bool quoted = *p == '"';
        p += quoted;
        while (*p && (quoted ? *p != '"' : *p != ' ') && n + 8 < room) {
            if (*p == '\\' && p[1] == 'x' && p[2] && p[3]) {
                n += (size_t)snprintf(out + n, room - n, "\\u00%.2s", p + 2);
                p += 4;
                continue;
            }
            if (*p == '\\' && p[1])
                out[n++] = *p++;
            out[n++] = *p++;
        }
        while (*p && *p != ' ')
            p++;
        while (*p == ' ')
            p++;
        out[n++] = '"';
    }
    out[MIN(n, room - 1)] = 0;
    return MIN(n, room - 1);
}

void log_event(enum log_level level, const char *message, const char *format, ...)
{
    char fields[3000], line[4096], stamp[40] = "";
    va_list args;
    size_t n = 0;

    if (!log_enabled(level))
        return;
    va_start(args, format);
    vsnprintf(fields, sizeof fields, format, args);
    va_end(args);
    if (!options.journald) {
        struct timespec now;
        struct tm tm;
        clock_gettime(CLOCK_REALTIME, &now);
        gmtime_r(&now.tv_sec, &tm);
        size_t s = strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &tm);
        snprintf(stamp + s, sizeof stamp - s, ".%03ldZ", now.tv_nsec / 1000000);
    }
    const size_t room = sizeof line - 8;
    if (options.journald)
        n += (size_t)snprintf(line + n, room - n, "<%d>", level_priority[level]);
    if (options.json) {
        n += (size_t)snprintf(line + n, room - n, "{\"level\":\"%s\",\"msg\":\"%s\"",
                              level_name[level], message);
        if (*stamp)
            n += (size_t)snprintf(line + n, room - n, ",\"ts\":\"%s\"", stamp);
        if (options.node_id)
            n += (size_t)snprintf(line + n, room - n, ",\"node\":\"%s\"", options.node_id);
        n += json_fields(line + n, room - n - 2, fields);
        line[n++] = '}';
    } else {
        const char *color = options.color ? level_color[level] : "";
        if (*stamp)
            n += (size_t)snprintf(line + n, room - n, "ts=%s ", stamp);
        n += (size_t)snprintf(line + n, room - n, "%slevel=%s%s msg=%s", color, level_name[level],
                              *color ? "\033[0m" : "", log_quote(message));
        if (options.node_id)
            n += (size_t)snprintf(line + n, room - n, " node=%s", options.node_id);
        if (*fields)
            n += (size_t)snprintf(line + n, room - n, " %s", fields);
        n = MIN(n, room - 1);
    }
    line[n++] = '\n';
    ssize_t ignored = write(STDERR_FILENO, line, n);
    (void)ignored;
}
