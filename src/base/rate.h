/* base/rate: how fast prompts were read at best, so that whoever would surely wait too long can be
 * told at once. Zeroed is valid. Threads: one at a time.
 *
 * Prompts of some length count alone: short ones wait for other things than being read. What is
 * done shows only when a prompt is read whole, so a look without any says nothing; and the best
 * speed is kept, since a fault, a cancelled request or a full node makes the others look slow.
 * Whoever is refused could not have been served in time. */
#ifndef BATON_BASE_RATE_H
#define BATON_BASE_RATE_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

#define RATE_LEAST_TOKENS 256

struct rate {
    double tokens_a_second; /* 0: not known yet */
    double done;            /* since work was there, or since the last sample */
    int64_t looked_ms, busy_ms;
    bool was_busy;
};

/* A prompt of so many tokens has been read. */
static inline void rate_done(struct rate *r, uint32_t n_tokens)
{
    if (n_tokens >= RATE_LEAST_TOKENS)
        r->done += n_tokens;
}

/* Several times a second; n_waiting: prompt tokens that are still to be read. */
static inline void rate_look(struct rate *r, uint64_t n_waiting, int64_t now_ms)
{
    if (r->was_busy)
        r->busy_ms += now_ms - r->looked_ms;
    r->looked_ms = now_ms;
    r->was_busy = n_waiting >= RATE_LEAST_TOKENS;
    if (r->busy_ms >= 1000 && r->done > 0) {
        const double fresh = r->done * 1e3 / (double)r->busy_ms;
        /* a tenth slower with each sample that is: nodes may have left for good */
        r->tokens_a_second = fresh > 0.9 * r->tokens_a_second ? fresh : 0.9 * r->tokens_a_second;
        r->done = 0;
        r->busy_ms = 0;
    } else if (!r->was_busy) {
        r->done = 0;
        r->busy_ms = 0;
    }
}

/* How long so much work takes; 0 while that is not known. */
static inline double rate_seconds(const struct rate *r, uint64_t n_tokens)
{
    return r->tokens_a_second > 0 ? (double)n_tokens / r->tokens_a_second : 0;
}

/* Errors: QUEUE_FULL. */
static inline enum status rate_admit(const struct rate *r, uint64_t n_waiting, double limit_s)
{
    const double wait_s = rate_seconds(r, n_waiting);

    return wait_s <= limit_s
               ? STATUS_OK
               : fail(STATUS_QUEUE_FULL,
                      "%llu prompt tokens are waiting to be read, which takes %.1f s or more; this "
                      "request may wait %.1f s",
                      (unsigned long long)n_waiting, wait_s, limit_s);
}

/* What to tell somebody who is turned away: half of what the queue takes, 1 to 60 s. */
static inline uint32_t rate_retry_after_s(const struct rate *r, uint64_t n_waiting)
{
    const double s = 0.5 * rate_seconds(r, n_waiting);

    return s < 1 ? 1 : s > 60 ? 60 : (uint32_t)s;
}

#endif
