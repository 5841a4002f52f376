/* The prefill side of one hand-off: every state and event on one page, nothing decided elsewhere.
 * ANY is every state but CLOSED. A sender that tries its next target starts again in OPENING. */
#include "handoff/handoff.h"

#include "base/checked.h"

enum { ANY = SENDER_CLOSED + 1 };

static const struct row {
    unsigned in, on, to;
    enum sender_action action;
} rows[] = {
    {SENDER_OPENING, SENDER_LAYER_DONE, SENDER_OPENING, SENDER_NOTE_LAYER},
    {SENDER_OPENING, SENDER_PREFILL_DONE, SENDER_OPENING, SENDER_NOTE_DONE},
    {SENDER_OPENING, SENDER_READY, SENDER_STREAMING, SENDER_SEND_ALL_SO_FAR},
    {SENDER_STREAMING, SENDER_LAYER_DONE, SENDER_STREAMING, SENDER_SEND_LAYER},
    {SENDER_STREAMING, SENDER_PREFILL_DONE, SENDER_STREAMING, SENDER_NOTE_DONE},
    {SENDER_STREAMING, SENDER_ALL_SENT, SENDER_COMMITTING, SENDER_SEND_COMMIT},
    {SENDER_COMMITTING, SENDER_ACCEPTED, SENDER_CLOSED, SENDER_RELEASE},
    {ANY, SENDER_REFUSED, SENDER_CLOSED, SENDER_TRY_NEXT},
    {ANY, SENDER_FAILED, SENDER_CLOSED, SENDER_TRY_NEXT},
    {ANY, SENDER_CANCEL, SENDER_CLOSED, SENDER_SEND_CANCEL},
    {ANY, SENDER_LINK_LOST, SENDER_CLOSED, SENDER_TRY_NEXT},
    {ANY, SENDER_LEASE_OVER, SENDER_CLOSED, SENDER_CANCEL_TRY_NEXT},
    {SENDER_CLOSED, SENDER_READY, SENDER_CLOSED, SENDER_LATE_READY},
};

enum sender_action sender_next(enum sender_state *state, enum sender_event event)
{
    for (size_t i = 0; i < ARRAY_LENGTH(rows); i++) {
        const struct row *r = &rows[i];
        if (r->on == event && (r->in == *state || (r->in == ANY && *state != SENDER_CLOSED))) {
            *state = (enum sender_state)r->to;
            return r->action;
        }
    }
    return SENDER_COUNT;
}

const char *sender_state_name(enum sender_state state)
{
    static const char *const names[] = {"opening", "streaming", "committing", "closed"};

    return names[state];
}

const char *sender_event_name(enum sender_event event)
{
    static const char *const names[] = {"layer_done", "prefill_done", "ready",  "all_sent",
                                        "accepted",   "refused",      "failed", "cancel",
                                        "link_lost",  "lease_over"};

    return names[event];
}
