/* base/status: the one table of everything that can go wrong, and how a fault's exact words travel
 * to whoever reports it.
 *
 * A function that can fail returns enum status and sets its outputs only on STATUS_OK. The words
 * are formed where the fault is seen, with fail(), and kept per thread until the next fail();
 * whoever decides what the fault means for the request logs or sends them, once. */
#ifndef BATON_BASE_STATUS_H
#define BATON_BASE_STATUS_H

#include <stddef.h>

#define WARN_UNUSED __attribute__((warn_unused_result))
#define PRINTF_LIKE(f, a) __attribute__((format(printf, f, a)))

/* name, wire code and log reason, HTTP status, OpenAI error type */
#define STATUS_TABLE(X)                                                                            \
    X(OK, "ok", 200, "")                                                                           \
    X(INTERNAL, "internal", 500, "server_error")                                                   \
    X(NO_MEMORY, "no_memory", 500, "server_error")                                                 \
    X(IO, "io", 500, "server_error")                                                               \
    X(USAGE, "usage", 400, "invalid_request_error")                                                \
    X(BAD_MODEL, "bad_model", 500, "server_error")                                                 \
    X(UNSUPPORTED_MODEL, "unsupported_model", 500, "server_error")                                 \
    X(BAD_REQUEST, "bad_request", 400, "invalid_request_error")                                    \
    X(BAD_JSON, "bad_json", 400, "invalid_request_error")                                          \
    X(BAD_TEMPLATE, "bad_template", 400, "invalid_request_error")                                  \
    X(CONTEXT_LENGTH, "context_length_exceeded", 400, "invalid_request_error")                     \
    X(UNAUTHORIZED, "invalid_api_key", 401, "authentication_error")                                \
    X(NOT_FOUND, "not_found", 404, "invalid_request_error")                                        \
    X(MODEL_NOT_FOUND, "model_not_found", 404, "invalid_request_error")                            \
    X(METHOD_NOT_ALLOWED, "method_not_allowed", 405, "invalid_request_error")                      \
    X(TIMEOUT, "timeout", 408, "timeout_error")                                                    \
    X(TOO_LARGE, "too_large", 413, "invalid_request_error")                                        \
    X(UNSUPPORTED_MEDIA, "unsupported_media_type", 415, "invalid_request_error")                   \
    X(QUEUE_FULL, "queue_full", 429, "rate_limit_error")                                           \
    X(RATE_LIMITED, "rate_limit_exceeded", 429, "rate_limit_error")                                \
    X(HEADERS_TOO_LARGE, "headers_too_large", 431, "invalid_request_error")                        \
    X(CANCELLED, "cancelled", 499, "cancelled")                                                    \
    X(NUMERICS, "numerics", 500, "server_error")                                                   \
    X(INEXACT, "inexact", 500, "server_error")                                                     \
    X(LOADING, "loading", 503, "overloaded_error")                                                 \
    X(DRAINING, "draining", 503, "overloaded_error")                                               \
    X(NO_NODE, "no_node", 503, "overloaded_error")                                                 \
    X(NO_PAGES, "no_pages", 503, "overloaded_error")                                               \
    X(NO_DECODE_ROOM, "no_decode_room", 503, "overloaded_error")                                   \
    X(NO_REPLY_ROUTE, "no_reply_route", 503, "server_error")                                       \
    X(PEER_LOST, "peer_lost", 503, "server_error")                                                 \
    X(HANDOFF_FAILED, "handoff_failed", 503, "server_error")                                       \
    X(HANDOFF_TIMEOUT, "handoff_timeout", 503, "server_error")                                     \
    X(DEADLINE, "deadline_exceeded", 504, "timeout_error")                                         \
    X(STALE_ATTEMPT, "stale_attempt", 409, "server_error")                                         \
    X(BAD_FRAME, "bad_frame", 400, "server_error")                                                 \
    X(BAD_MESSAGE, "bad_message", 400, "server_error")                                             \
    X(VERSION_MISMATCH, "version_mismatch", 400, "server_error")                                   \
    X(CELL_MISMATCH, "cell_mismatch", 400, "server_error")                                         \
    X(DUPLICATE_NODE, "duplicate_node", 400, "server_error")                                       \
    X(TLS_FAILED, "tls_failed", 400, "server_error")                                               \
    X(BAD_CERTIFICATE, "bad_certificate", 400, "server_error")                                     \
    X(IDENTITY_MISMATCH, "identity_mismatch", 400, "server_error")                                 \
    X(ADDRESS_IN_USE, "address_in_use", 500, "server_error")                                       \
    X(REQUEST_CRASHED_NODES, "request_crashed_nodes", 500, "server_error")

enum status {
#define X(name, code, http, type) STATUS_##name,
    STATUS_TABLE(X)
#undef X
        STATUS_COUNT
};

/* The name that logs, frames and JSON use: "no_pages". Never NULL. */
const char *status_code(enum status s);
/* The reverse; STATUS_INTERNAL for a code that this version does not know. */
enum status status_from_code(const char *code, size_t len);
int status_http(enum status s);
/* OpenAI's "type" of an error object. */
const char *status_error_type(enum status s);

/* Records the words of a fault for this thread (cut at 511 bytes) and returns s. */
enum status fail(enum status s, const char *format, ...) PRINTF_LIKE(2, 3);
/* The words of this thread's last fail(); "" before the first.
 * Owner: the thread; valid until its next fail(). */
const char *status_message(void);

#define TRY(expression)                                                                            \
    do {                                                                                           \
        enum status try_status_ = (expression);                                                    \
        if (try_status_ != STATUS_OK)                                                              \
            return try_status_;                                                                    \
    } while (0)

#define TRY_GOTO(label, expression)                                                                \
    do {                                                                                           \
        status = (expression);                                                                     \
        if (status != STATUS_OK)                                                                   \
            goto label;                                                                            \
    } while (0)

#endif
