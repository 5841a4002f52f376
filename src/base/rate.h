/* base/rate: how fast a queue gets on, so that whoever would wait too long can be told at once.
 * Zeroed is valid. Threads: one at a time. */
#ifndef BATON_BASE_RATE_H
#define BATON_BASE_RATE_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct rate {
    double work_a_second; /* while there was work; 0: not known yet */
    double done;          /* since the last look */
    int64_t looked_ms, busy_ms;
    bool was_busy;
};

static inline void rate_done(struct rate *r, double work)
{
    r->done += work;
}

/* Several times a second; busy: there is work. A second of work counts a fifth. */
static inline void rate_look(struct rate *r, bool busy, int64_t now_ms)
{
    if (r->was_busy)
        r->busy_ms += now_ms - r->looked_ms;
    r->looked_ms = now_ms;
    r->was_busy = busy;
    if (r->busy_ms < 1000)
        return;
    const double fresh = r->done * 1e3 / (double)r->busy_ms;
    r->work_a_second = r->work_a_second > 0 ? 0.8 * r->work_a_second + 0.2 * fresh : fresh;
    r->done = 0;
    r->busy_ms = 0;
}

/* How long so much work takes; 0 while that is not known. */
static inline double rate_seconds(const struct rate *r, double work)
{
    return r->work_a_second > 0 ? work / r->work_a_second : 0;
}

/* Who would wait longer than it may is told at once, not when the time has passed.
 * Errors: QUEUE_FULL. */
static inline enum status rate_admit(const struct rate *r, uint64_t n_tokens, double limit_s)
{
    const double wait_s = rate_seconds(r, (double)n_tokens);

    return wait_s <= limit_s
               ? STATUS_OK
               : fail(STATUS_QUEUE_FULL,
                      "%llu prompt tokens are waiting to be read, which takes about %.1f s; this "
                      "request may wait %.1f s",
                      (unsigned long long)n_tokens, wait_s, limit_s);
}

/* What to tell somebody who is turned away: half of what the queue takes, 1 to 60 s. */
static inline uint32_t rate_retry_after_s(const struct rate *r, double work)
{
    const double s = 0.5 * rate_seconds(r, work);

    return s < 1 ? 1 : s > 60 ? 60 : (uint32_t)s;
}

#endif
