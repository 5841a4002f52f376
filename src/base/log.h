/* base/log: one line an event, logfmt (or JSON), to stderr. Messages are lower case and exact;
 * never prompts. Threads: any. A line is one write(). */
#ifndef BATON_BASE_LOG_H
#define BATON_BASE_LOG_H

#include "base/status.h"

#include <stdbool.h>

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };

struct log_options {
    enum log_level level;
    bool json;
    bool journald; /* no timestamp, a <N> priority in front */
    bool color;
    const char *node_id; /* on every line when not NULL; must outlive the process's logging */
};

/* Once, before threads start. Without it: level info, logfmt, no node. */
void log_setup(const struct log_options *options);
bool log_enabled(enum log_level level);

/* fields is a printf format of space-separated key=value pairs, or "": log_event(LOG_WARN,
 * "hand-off refused", "req=%s need=%u", id, n). A value with spaces or quotes is written with
 * LOG_Q: "error=" LOG_Q, and the argument wrapped by log_quote(). */
void log_event(enum log_level level, const char *message, const char *fields, ...)
    PRINTF_LIKE(3, 4);

/* A value made safe for a line: quoted and escaped if it needs to be, control characters as \xNN,
 * cut at 400 bytes. Owner: a ring of four per thread, so at most four in one log_event(). */
const char *log_quote(const char *value);
#define LOG_Q "%s"

#endif
