/* The router against nodes that say what a test tells them to. */
#include "unit/router/world.h"

/* ---- the plain way ---- */

static void test_plain(void **state)
{
    struct world w;
    struct flight f;

    world_up(&w);
    take_off(&w, &f, (struct wish){.logprobs = true});
    assert_string_equal(f.m->reply_to, "router-0");
    assert_string_equal(f.m->key.origin, "router-0");
    assert_int_equal(f.m->attempt, 1);
    assert_string_equal(f.m->request_id, "test");
    assert_false(f.m->want_text);
    assert_true(f.m->has_decode_targets);
    assert_int_equal(f.m->n_decode_targets, 2);
    assert_int_equal(f.m->resume.seed, 4242);
    assert_int_equal(f.m->resume.n_generated, 0);
    say_tokens(f.p, f.m, WIRE_PHASE_FIRST_TOKEN, 0, "H", false);
    WAIT(loop, f.c.n_ids == 1);
    say_tokens(f.d, f.m, WIRE_PHASE_ACCEPTED, 0, "H", false);
    say_tokens(f.d, f.m, WIRE_PHASE_CONTINUATION, 1, "allo", false);
    WAIT(loop, f.c.n_ids == 5);
    say_tokens(f.d, f.m, WIRE_PHASE_CONTINUATION, 5, "!$", true);
    WAIT(loop, f.c.n_ended);
    assert_int_equal(f.c.status, STATUS_OK);
    assert_int_equal(f.c.finish, FINISH_STOP);
    assert_string_equal(f.c.text, "Hallo!$");
    assert_int_equal(f.c.n_events, 4); /* the repeated token is shown once */
    assert_string_equal(f.c.prefill_node, peer_hub_hello(f.p->hub.hub)->node_id);
    assert_string_equal(f.c.decode_node, peer_hub_hello(f.d->hub.hub)->node_id);
    assert_int_equal(router_n_requests(w.r), 0);
    assert_int_equal(count(&w, "router_inexact_total"), 0);
    world_down(&w);
}

/* The two links know no order between them. */
static void test_accepted_first(void **state)
{
    struct world w;
    struct flight f;

    world_up(&w);
    take_off(&w, &f, (struct wish){.logprobs = true});
    say_tokens(f.d, f.m, WIRE_PHASE_ACCEPTED, 0, "H", false);
    say_tokens(f.d, f.m, WIRE_PHASE_CONTINUATION, 1, "a", false);
    WAIT(loop, f.c.n_ids == 2);
    say_tokens(f.p, f.m, WIRE_PHASE_FIRST_TOKEN, 0, "H", false);
    turn_some(loop, 10);
    assert_int_equal(f.c.n_events, 2);
    say_tokens(f.d, f.m, WIRE_PHASE_CONTINUATION, 1, "a", false);   /* again: known and equal */
    say_tokens(f.d, f.m, WIRE_PHASE_CONTINUATION, 0, "Hal", false); /* known in part */
    say_tokens(f.d, f.m, WIRE_PHASE_CONTINUATION, 3, "$", true);
    WAIT(loop, f.c.n_ended);
    assert_int_equal(f.c.status, STATUS_OK);
    assert_string_equal(f.c.text, "Hal$");
    world_down(&w);
}

static void test_one_token(void **state)
{
    struct world w;
    struct flight f;

    world_up(&w);
    take_off(&w, &f, (struct wish){.max_tokens = 1});
    say_tokens(f.p, f.m, WIRE_PHASE_FIRST_TOKEN, 0, "H", true);
    WAIT(loop, f.c.n_ended);
    assert_int_equal(f.c.status, STATUS_OK);
    assert_int_equal(f.c.finish, FINISH_LENGTH);
    world_down(&w);
}

/* ---- contradictions ---- */

static void test_inexact(void **state)
{
    static const struct {
        uint32_t start;
        const char *text;
        bool done;
        const char *words;
    } cases[] = {
        {0, "X", false, "from another"},        /* not the token that is known */
        {1, "aX", false, NULL},                 /* fine; what follows it is not */
        {4, "x", false, "came before token 2"}, /* a gap */
        {2, "$x", false, "after the answer's end"},
        {2, "x", true, "disagree about the answer's end"}, /* the ids say that it goes on */
    };

    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        struct world w;
        struct flight f;
        world_up(&w);
        take_off(&w, &f, (struct wish){0});
        say_tokens(f.p, f.m, WIRE_PHASE_FIRST_TOKEN, 0, "H", false);
        say_tokens(f.d, f.m, WIRE_PHASE_ACCEPTED, 0, "H", false);
        say_tokens(f.d, f.m, WIRE_PHASE_CONTINUATION, 1, "a", false);
        WAIT(loop, f.c.n_ids == 2);
        say_tokens(f.d, f.m, WIRE_PHASE_CONTINUATION, cases[i].start, cases[i].text, cases[i].done);
        if (!cases[i].words) {
            WAIT(loop, f.c.n_ids == 3);
            say_tokens(f.d, f.m, WIRE_PHASE_CONTINUATION, 2, "Y", false);
        }
        WAIT(loop, f.c.n_ended);
        assert_int_equal(f.c.status, STATUS_INEXACT);
        if (cases[i].words)
            assert_non_null(strstr(f.c.message, cases[i].words));
        assert_int_equal(count(&w, "router_inexact_total"), 1);
        WAIT(loop, f.p->n_cancels == 1 && f.d->n_cancels == 1);
        assert_int_equal(router_n_requests(w.r), 0);
        world_down(&w);
    }
}

/* ---- faults ---- */

static void test_decode_lost(void **state)
{
    struct world w;
    struct flight f;
    struct fake_node *p, *d;

    world_up(&w);
    take_off(&w, &f, (struct wish){.logprobs = true});
    const struct wire_prefill_request first = *f.m;
    say_tokens(f.p, f.m, WIRE_PHASE_FIRST_TOKEN, 0, "H", false);
    say_tokens(f.d, f.m, WIRE_PHASE_ACCEPTED, 0, "H", false);
    say_tokens(f.d, f.m, WIRE_PHASE_CONTINUATION, 1, "al", false);
    WAIT(loop, f.c.n_ids == 3);
    peer_link_close(f.d->hub.link, STATUS_CANCELLED);
    const struct wire_prefill_request *m = request_at(&w, 2, &p);
    assert_int_equal(m->attempt, 2);
    assert_true(request_key_equal(&m->key, &first.key));
    assert_int_equal(m->resume.n_generated, 3);
    assert_int_equal(m->resume.generated_ids[0], 'H');
    assert_int_equal(m->resume.generated_ids[2], 'l');
    assert_int_equal(m->resume.seed, 4242);
    assert_int_equal(m->n_decode_targets, 1);
    d = decode_named(&w, m->decode_targets[0]);
    assert_ptr_not_equal(d, f.d);
    /* what an earlier attempt still says is nobody's */
    say_tokens(f.p, &first, WIRE_PHASE_FIRST_TOKEN, 0, "X", false);
    say_failed(f.p, &first, STATUS_INTERNAL);
    say_opened(p, m, m->decode_targets[0]);
    say_tokens(d, m, WIRE_PHASE_ACCEPTED, 3, "l", false);
    say_tokens(p, m, WIRE_PHASE_FIRST_TOKEN, 3, "l", false);
    say_tokens(d, m, WIRE_PHASE_CONTINUATION, 4, "o$", true);
    WAIT(loop, f.c.n_ended);
    assert_int_equal(f.c.status, STATUS_OK);
    assert_string_equal(f.c.text, "Hallo$");
    assert_int_equal(count(&w, "router_resumed_total"), 1);
    world_down(&w);
}

static void test_prefill_lost(void **state)
{
    struct world w;
    struct flight f;
    struct fake_node *p;

    world_up(&w);
    take_off(&w, &f, (struct wish){0});
    peer_link_close(f.p->hub.link, STATUS_CANCELLED);
    const struct wire_prefill_request *m = request_at(&w, 2, &p);
    assert_ptr_not_equal(p, f.p);
    assert_int_equal(m->attempt, 2);
    WAIT(loop, f.d->n_cancels == 1); /* it may hold a reservation */
    assert_int_equal(f.d->cancelled_attempt, 1);
    /* and when the decode node owns it, the prefill node's death is none of its concern */
    say_opened(p, m, "decode-0");
    say_tokens(p, m, WIRE_PHASE_FIRST_TOKEN, 0, "H", false);
    say_tokens(&w.d[0], m, WIRE_PHASE_ACCEPTED, 0, "H", false);
    WAIT(loop, f.c.n_ids == 1);
    turn_some(loop, 10);
    peer_link_close(p->hub.link, STATUS_CANCELLED);
    turn_for(loop, 200);
    say_tokens(&w.d[0], m, WIRE_PHASE_CONTINUATION, 1, "$", true);
    WAIT(loop, f.c.n_ended);
    assert_int_equal(f.c.status, STATUS_OK);
    world_down(&w);
}

/* The answer is complete; only the word that says so was lost. */
static void test_done_lost(void **state)
{
    struct world w;
    struct flight f;

    world_up(&w);
    take_off(&w, &f, (struct wish){0});
    say_tokens(f.p, f.m, WIRE_PHASE_FIRST_TOKEN, 0, "H", false);
    say_tokens(f.d, f.m, WIRE_PHASE_ACCEPTED, 0, "H", false);
    say_tokens(f.d, f.m, WIRE_PHASE_CONTINUATION, 1, "i$", false);
    WAIT(loop, f.c.n_ids == 3);
    assert_int_equal(f.c.n_ended, 0);
    peer_link_close(f.d->hub.link, STATUS_CANCELLED);
    WAIT(loop, f.c.n_ended);
    assert_int_equal(f.c.status, STATUS_OK);
    assert_int_equal(f.c.finish, FINISH_STOP);
    assert_int_equal(w.p[0].n_asked + w.p[1].n_asked, 1);
    world_down(&w);
}

/* Between the first token and the decode node's word, that node's link goes: the prefill node may
 * have let go already. */
static void test_lost_around_the_hand_off(void **state)
{
    for (int how = 0; how < 4; how++) {
        struct world w;
        struct flight f;
        struct fake_node *p;
        world_up(&w);
        take_off(&w, &f, (struct wish){0});
        struct fake_node *other = f.d == &w.d[0] ? &w.d[1] : &w.d[0];
        if (how != 1)
            say_tokens(f.p, f.m, WIRE_PHASE_FIRST_TOKEN, 0, "H", false);
        turn_some(loop, 10);
        peer_link_close(f.d->hub.link, STATUS_CANCELLED);
        turn_some(loop, 10);
        if (how == 1) /* the token comes after the loss */
            say_tokens(f.p, f.m, WIRE_PHASE_FIRST_TOKEN, 0, "H", false);
        if (how == 2) { /* the prefill node found another */
            say_opened(f.p, f.m, peer_hub_hello(other->hub.hub)->node_id);
            turn_for(loop, 900);
            assert_int_equal(w.p[0].n_asked + w.p[1].n_asked, 1);
            say_tokens(other, f.m, WIRE_PHASE_ACCEPTED, 0, "H", false);
            say_tokens(other, f.m, WIRE_PHASE_CONTINUATION, 1, "$", true);
        } else if (how == 3) { /* it says that there is none */
            say_failed(f.p, f.m, STATUS_PEER_LOST);
            f.m = request_at(&w, 2, &p);
            say_tokens(p, f.m, WIRE_PHASE_FIRST_TOKEN, 1, "$", true);
        } else { /* it says nothing: it had handed over */
            f.m = request_at(&w, 2, &p);
            assert_int_equal(f.m->attempt, 2);
            assert_int_equal(f.m->resume.n_generated, 1);
            say_tokens(p, f.m, WIRE_PHASE_FIRST_TOKEN, 1, "$", true);
        }
        WAIT(loop, f.c.n_ended);
        assert_int_equal(f.c.status, STATUS_OK);
        assert_string_equal(f.c.text, "H$");
        world_down(&w);
    }
}

static void test_too_many_failures(void **state)
{
    static const enum status reasons[] = {STATUS_PEER_LOST, STATUS_HANDOFF_FAILED,
                                          STATUS_HANDOFF_TIMEOUT};
    struct world w;
    struct flight f;
    struct fake_node *p;

    world_up(&w);
    take_off(&w, &f, (struct wish){0});
    for (uint32_t i = 0; i < 5; i++) {
        const struct wire_prefill_request *m = request_at(&w, i + 1, &p);
        say_failed(p, m, reasons[i % 3]);
    }
    WAIT(loop, f.c.n_ended);
    assert_int_equal(f.c.status, STATUS_HANDOFF_FAILED);
    assert_string_equal(f.c.message, "because");
    world_down(&w);
}

/* An error that another attempt would only meet again. */
static void test_typed_error(void **state)
{
    struct world w;
    struct flight f;

    world_up(&w);
    take_off(&w, &f, (struct wish){0});
    say_tokens(f.p, f.m, WIRE_PHASE_FIRST_TOKEN, 0, "H", false);
    say_tokens(f.d, f.m, WIRE_PHASE_ACCEPTED, 0, "H", false);
    WAIT(loop, f.c.n_ids == 1);
    turn_some(loop, 10);
    say_failed(f.p, f.m, STATUS_INTERNAL); /* no longer the prefill node's to fail */
    turn_some(loop, 10);
    assert_int_equal(f.c.n_ended, 0);
    say_failed(f.d, f.m, STATUS_NUMERICS);
    WAIT(loop, f.c.n_ended);
    assert_int_equal(f.c.status, STATUS_NUMERICS);
    world_down(&w);
}

/* ---- no room ---- */

static void test_no_decode_room(void **state)
{
    struct world w;
    struct client c[2];
    struct fake_node *p = &w.p[0];

    world_up_with(&w, 1, 1, 1, (struct router_options){0});
    assert_int_equal(client_submit(&c[0], w.r, (struct wish){0}), STATUS_OK);
    WAIT(loop, p->n_asked == 1);
    assert_int_equal(client_submit(&c[1], w.r, (struct wish){0}),
                     STATUS_OK); /* waits for the slot */
    turn_for(loop, 100);
    assert_int_equal(p->n_asked, 1);
    for (uint32_t i = 0; i < 6; i++) { /* more often than faults are forgiven */
        say_failed(p, &p->asked[i].m, STATUS_NO_DECODE_ROOM);
        WAIT(loop, p->n_asked == i + 2);
        if (!request_key_equal(&p->asked[i + 1].m.key, &p->asked[0].m.key)) {
            /* the other one got the slot while the first paused */
            assert_int_equal(i, 0);
            say_tokens(p, &p->asked[1].m, WIRE_PHASE_FIRST_TOKEN, 0, "$", true);
            WAIT(loop, c[1].n_ended && p->n_asked == 3);
            break;
        }
        assert_int_equal(p->asked[i + 1].m.attempt, i + 2);
    }
    const struct wire_prefill_request *m = &p->asked[p->n_asked - 1].m;
    assert_true(request_key_equal(&m->key, &p->asked[0].m.key));
    say_tokens(p, m, WIRE_PHASE_FIRST_TOKEN, 0, "$", true);
    WAIT(loop, c[0].n_ended);
    assert_int_equal(c[0].status, STATUS_OK);
    assert_true(count(&w, "router_requeued_total") > 0);
    assert_int_equal(count(&w, "router_resumed_total"), 0);
    world_down(&w);
}

/* Being asked again and again does not make waiting shorter. */
static void test_queue_timeout(void **state)
{
    for (int asked = 0; asked < 2; asked++) {
        struct world w;
        struct client c, first;
        world_up_with(&w, 1, 1, 1, (struct router_options){.queue_timeout_ms = 600});
        if (!asked) {
            assert_int_equal(client_submit(&first, w.r, (struct wish){0}), STATUS_OK);
            WAIT(loop, w.p[0].n_asked == 1);
        }
        const int64_t since_ms = clock_now_ms();
        assert_int_equal(client_submit(&c, w.r, (struct wish){0}), STATUS_OK);
        for (uint32_t answered = 0; !c.n_ended && clock_now_ms() < since_ms + 5000;
             turn_some(loop, 3), usleep(500))
            if (asked && answered < w.p[0].n_asked)
                say_failed(&w.p[0], &w.p[0].asked[answered++].m, STATUS_NO_DECODE_ROOM);
        assert_int_equal(c.n_ended, 1);
        assert_int_equal(c.status, asked ? STATUS_NO_DECODE_ROOM : STATUS_NO_NODE);
        assert_true(clock_now_ms() - since_ms >= 500);
        world_down(&w);
    }
}

static void test_deadline(void **state)
{
    for (int assigned = 0; assigned < 2; assigned++) {
        struct world w;
        struct client c, first;
        world_up_with(&w, 1, 1, 1, (struct router_options){0});
        if (!assigned) {
            assert_int_equal(client_submit(&first, w.r, (struct wish){0}), STATUS_OK);
            WAIT(loop, w.p[0].n_asked == 1);
        }
        assert_int_equal(client_submit(&c, w.r, (struct wish){.deadline_ms = 300}), STATUS_OK);
        if (assigned) {
            WAIT(loop, w.p[0].n_asked == 1);
            assert_true(w.p[0].asked[0].m.resume.deadline_ms > 0 &&
                        w.p[0].asked[0].m.resume.deadline_ms <= 300);
        }
        WAIT(loop, c.n_ended); /* also when nothing waits */
        assert_int_equal(c.status, STATUS_DEADLINE);
        if (assigned)
            WAIT(loop, w.p[0].n_cancels == 1);
        world_down(&w);
    }
}

/* ---- admission ---- */

static void test_admission(void **state)
{
    struct world w;
    struct client c[5];
    struct service *s;
    struct service_capacity capacity;
    struct service_description d;

    world_up_with(&w, 0, 0, 1,
                  (struct router_options){.max_waiting = 2, .max_journal_bytes = 100000});
    s = router_service(w.r);
    assert_int_equal(s->ops->readiness(s), STATUS_NO_NODE);
    assert_int_equal(client_submit(&c[0], w.r, (struct wish){0}), STATUS_NO_NODE);
    fake_start(&w.p[0], loop, "prefill-0", "prefill", 1);
    link_node(&w, &w.p[0], "prefill");
    assert_int_equal(s->ops->readiness(s), STATUS_NO_NODE);
    assert_non_null(strstr(status_message(), "decode"));
    fake_start(&w.d[0], loop, "decode-0", "decode", 1);
    link_node(&w, &w.d[0], "decode");
    assert_int_equal(s->ops->readiness(s), STATUS_OK);
    s->ops->describe(s, &d);
    assert_int_equal(d.max_context_tokens, 512);
    assert_string_equal(d.fingerprint, "fp_test");
    /* what is accepted while a node restarts is described as its neighbours are */
    peer_link_close(w.d[0].hub.link, STATUS_CANCELLED);
    WAIT(loop, s->ops->readiness(s) == STATUS_NO_NODE);
    s->ops->describe(s, &d);
    assert_int_equal(d.max_context_tokens, 512);
    assert_string_equal(d.fingerprint, "fp_test");
    link_node(&w, &w.d[0], "decode");
    assert_int_equal(s->ops->readiness(s), STATUS_OK);
    assert_int_equal(client_submit(&c[0], w.r, (struct wish){.n_prompt = 500, .max_tokens = 13}),
                     STATUS_NO_NODE);
    assert_int_equal(client_submit(&c[0], w.r, (struct wish){0}), STATUS_OK);
    WAIT(loop, w.p[0].n_asked == 1);
    assert_int_equal(client_submit(&c[1], w.r, (struct wish){0}), STATUS_OK);
    assert_int_equal(client_submit(&c[2], w.r, (struct wish){0}), STATUS_OK);
    assert_int_equal(client_submit(&c[3], w.r, (struct wish){0}), STATUS_QUEUE_FULL);
    s->ops->capacity(s, &capacity);
    assert_int_equal(capacity.n_running, 1);
    assert_int_equal(capacity.n_waiting, 2);
    assert_int_equal(s->ops->readiness(s), STATUS_OK); /* full is not unready */
    client_cancel(&c[1]);
    client_cancel(&c[2]);
    s->ops->drain(s, NULL, NULL);
    assert_int_equal(client_submit(&c[3], w.r, (struct wish){0}), STATUS_DRAINING);
    world_down(&w);
    assert_int_equal(c[0].n_ended, 1); /* the router is gone, and said so */
    assert_int_equal(c[0].status, STATUS_DRAINING);
}

static void test_journal_bound(void **state)
{
    struct world w;
    struct client c[9];
    uint32_t taken = 0;

    world_up_with(&w, 1, 1, 1, (struct router_options){.max_journal_bytes = 8000});
    while (taken < 9 &&
           client_submit(&c[taken], w.r, (struct wish){.max_tokens = 400}) == STATUS_OK)
        taken++;
    assert_true(taken > 1 && taken < 9);
    client_cancel(&c[0]);
    assert_int_equal(client_submit(&c[taken], w.r, (struct wish){.max_tokens = 400}),
                     STATUS_OK); /* given back */
    world_down(&w);
}

static void note_idle(void *context)
{
    ++*(int *)context;
}

static void test_drain(void **state)
{
    struct world w;
    struct flight f;
    int idle = 0;

    world_up(&w);
    take_off(&w, &f, (struct wish){0});
    router_service(w.r)->ops->drain(router_service(w.r), note_idle, &idle);
    turn_for(loop, 50);
    assert_int_equal(idle, 0);
    say_tokens(f.p, f.m, WIRE_PHASE_FIRST_TOKEN, 0, "$", true);
    WAIT(loop, idle == 1);
    assert_int_equal(f.c.status, STATUS_OK);
    world_down(&w);
    assert_int_equal(idle, 1);
}

/* ---- cancelling, wherever one stands ---- */

static void test_cancel(void **state)
{
    for (int point = 0; point < 4; point++) {
        struct world w;
        struct flight f;
        world_up(&w);
        take_off(&w, &f, (struct wish){0});
        if (point >= 1)
            say_tokens(f.p, f.m, WIRE_PHASE_FIRST_TOKEN, 0, "H", false);
        if (point >= 2)
            say_tokens(f.d, f.m, WIRE_PHASE_ACCEPTED, 0, "H", false);
        if (point >= 3)
            say_tokens(f.d, f.m, WIRE_PHASE_CONTINUATION, 1, "a", false);
        turn_some(loop, 10);
        const uint32_t n_events = f.c.n_events;
        client_cancel(&f.c);
        assert_int_equal(router_n_requests(w.r), 0);
        WAIT(loop, f.p->n_cancels == 1 && f.d->n_cancels == 1);
        assert_true(request_key_equal(&f.d->cancelled, &f.m->key));
        say_tokens(f.d, f.m, WIRE_PHASE_CONTINUATION, 2, "l", false); /* was on its way */
        turn_some(loop, 10);
        assert_int_equal(f.c.n_events, n_events);
        client_cancel(&f.c); /* a ticket that is over is ignored */
        world_down(&w);
    }
}

static void test_cancel_from_the_sink(void **state)
{
    for (uint32_t at = 1; at <= 5; at++) {
        struct world w;
        struct flight f;
        world_up(&w);
        take_off(&w, &f, (struct wish){.prompt_rows = true, .n_prompt = 40});
        f.c.cancel_at_event = at;
        say_rows(f.p, f.m, 1, 20);
        say_rows(f.p, f.m, 21, 19);
        say_tokens(f.p, f.m, WIRE_PHASE_FIRST_TOKEN, 0, "H", false);
        say_tokens(f.d, f.m, WIRE_PHASE_ACCEPTED, 0, "H", false);
        say_tokens(f.d, f.m, WIRE_PHASE_CONTINUATION, 1, "i", false);
        say_tokens(f.d, f.m, WIRE_PHASE_CONTINUATION, 2, "$", true);
        WAIT(loop, router_n_requests(w.r) == 0);
        turn_some(loop, 10);
        assert_int_equal(f.c.n_events, at);
        world_down(&w);
    }
}

/* A client whose one choice fails cancels the others, in the middle of the router's walk over all
 * of them. */
static void test_cancel_others_from_the_sink(void **state)
{
    for (int how = 0; how < 3; how++) {
        struct world w;
        struct client c[8];
        world_up_with(&w, 1, 1, 8, (struct router_options){.queue_timeout_ms = 300});
        for (int i = 0; i < 8; i++)
            assert_int_equal(
                client_submit(&c[i], w.r, (struct wish){.deadline_ms = how == 1 ? 200 : 0}),
                STATUS_OK);
        for (int i = 0; i < 8; i++) {
            c[i].n_cancels = 8;
            for (int j = 0; j < 8; j++)
                c[i].cancels[j] = &c[j];
        }
        if (how == 0) { /* a node fails until the budget of one of them is spent */
            WAIT(loop, w.p[0].n_asked == 8);
            for (uint32_t n = w.p[0].n_asked; router_n_requests(w.r); n = w.p[0].n_asked) {
                peer_link_close(w.p[0].hub.link, STATUS_CANCELLED);
                WAIT(loop, !w.p[0].hub.link);
                turn_some(loop, 5);
                link_node(&w, &w.p[0], "prefill");
                WAIT(loop, w.p[0].n_asked > n || !router_n_requests(w.r));
            }
        } else if (how == 2) { /* nobody there any more: the queue's timeout */
            WAIT(loop, w.p[0].n_asked == 8);
            peer_link_close(w.p[0].hub.link, STATUS_CANCELLED);
        }
        WAIT(loop, router_n_requests(w.r) == 0);
        uint32_t n_ended = 0, n_over = 0;
        for (int i = 0; i < 8; i++) {
            n_ended += c[i].n_ended;
            n_over += c[i].over;
        }
        assert_int_equal(n_ended, 1);
        assert_int_equal(n_over, 7);
        world_down(&w);
    }
}

/* ---- log-probabilities of the prompt ---- */

/* They go in front of everything, though the decode node's words may overtake them. */
static void test_rows_first(void **state)
{
    for (int order = 0; order < 3; order++) {
        struct world w;
        struct flight f;
        world_up(&w);
        take_off(&w, &f, (struct wish){.prompt_rows = true, .logprobs = true, .n_prompt = 40});
        if (order < 2) {
            if (order == 1)
                say_rows(f.p, f.m, 1, 20);
            turn_some(loop, 10);
            say_tokens(f.d, f.m, WIRE_PHASE_ACCEPTED, 0, "H", false);
            say_tokens(f.d, f.m, WIRE_PHASE_CONTINUATION, 1, "a", false);
            say_tokens(f.d, f.m, WIRE_PHASE_CONTINUATION, 2, "ll", false);
            say_tokens(f.d, f.m, WIRE_PHASE_CONTINUATION, 4, "$", true);
            turn_some(loop, 10);
            assert_int_equal(f.c.n_ids, 0);
        }
        if (order != 1)
            say_rows(f.p, f.m, 1, 20);
        say_rows(f.p, f.m, 21, 19);
        say_tokens(f.p, f.m, WIRE_PHASE_FIRST_TOKEN, 0, "H", false);
        if (order == 2) {
            say_tokens(f.d, f.m, WIRE_PHASE_ACCEPTED, 0, "H", false);
            say_tokens(f.d, f.m, WIRE_PHASE_CONTINUATION, 1, "all$", true);
        }
        WAIT(loop, f.c.n_ended);
        assert_int_equal(f.c.status, STATUS_OK);
        assert_int_equal(f.c.n_rows, 39);
        assert_string_equal(f.c.text, "Hall$");
        world_down(&w);
    }
}

/* A resume begins again, in parts of other sizes. */
static void test_rows_again(void **state)
{
    struct world w;
    struct flight f;
    struct fake_node *p, *d;

    world_up(&w);
    take_off(&w, &f, (struct wish){.prompt_rows = true, .n_prompt = 40});
    say_rows(f.p, f.m, 1, 7);
    WAIT(loop, f.c.n_rows == 7);
    /* held words of an attempt that is given up are given up with it */
    say_tokens(f.d, f.m, WIRE_PHASE_ACCEPTED, 0, "X", false);
    turn_some(loop, 10);
    peer_link_close(f.p->hub.link, STATUS_CANCELLED);
    const struct wire_prefill_request *m = request_at(&w, 2, &p);
    assert_int_equal(m->resume.n_prompt_logprobs, 0);
    d = decode_named(&w, m->decode_targets[0]);
    say_opened(p, m, m->decode_targets[0]);
    say_rows(p, m, 1, 3);
    say_rows(p, m, 4, 20);
    say_rows(p, m, 24, 16);
    say_tokens(p, m, WIRE_PHASE_FIRST_TOKEN, 0, "H", false);
    say_tokens(d, m, WIRE_PHASE_ACCEPTED, 0, "H", false);
    WAIT(loop, f.c.n_ids == 1);
    assert_int_equal(f.c.n_rows, 39);
    turn_some(loop, 10);
    /* and once they are all here they are not asked for again */
    peer_link_close(d->hub.link, STATUS_CANCELLED);
    link_node(&w, f.p, "prefill");
    m = request_at(&w, 3, &p);
    assert_int_equal(m->resume.n_prompt_logprobs, -1);
    say_tokens(p, m, WIRE_PHASE_FIRST_TOKEN, 1, "$", true);
    WAIT(loop, f.c.n_ended);
    assert_int_equal(f.c.status, STATUS_OK);
    world_down(&w);
}

/* What the decode node said waits, and then its link is gone. */
static void test_held_and_lost(void **state)
{
    for (int rows = 0; rows < 2; rows++) {
        struct world w;
        struct flight f;
        struct fake_node *p;
        world_up(&w);
        take_off(&w, &f, (struct wish){.prompt_rows = true, .n_prompt = 40});
        say_tokens(f.d, f.m, WIRE_PHASE_ACCEPTED, 0, "H", false);
        turn_some(loop, 10);
        peer_link_close(f.d->hub.link, STATUS_CANCELLED);
        turn_some(loop, 10);
        if (rows) {
            say_rows(f.p, f.m, 1, 39);
            say_tokens(f.p, f.m, WIRE_PHASE_FIRST_TOKEN, 0, "H", false);
        }
        const struct wire_prefill_request *m = request_at(&w, 2, &p);
        assert_int_equal(m->resume.n_generated, rows ? 1 : 0);
        if (!rows)
            say_rows(p, m, 1, 39);
        say_tokens(p, m, WIRE_PHASE_FIRST_TOKEN, m->resume.n_generated, rows ? "$" : "H", rows);
        if (!rows) {
            WAIT(loop, f.c.n_ids == 1);
            client_cancel(&f.c);
        } else {
            WAIT(loop, f.c.n_ended);
            assert_string_equal(f.c.text, "H$");
        }
        world_down(&w);
    }
}

/* ---- windows, balance ---- */

static void test_window(void **state)
{
    struct world w;
    struct flight f;
    char text[401];

    world_up(&w);
    take_off(&w, &f, (struct wish){.max_tokens = 500});
    assert_int_equal(f.m->window_tokens, 1024);
    memset(text, 'a', 400);
    text[400] = 0;
    say_tokens(f.p, f.m, WIRE_PHASE_FIRST_TOKEN, 0, "a", false);
    say_tokens(f.d, f.m, WIRE_PHASE_ACCEPTED, 0, "a", false);
    say_tokens(f.d, f.m, WIRE_PHASE_CONTINUATION, 1, text, false);
    WAIT(loop, f.c.n_ids == 401);
    assert_int_equal(f.d->n_credits, 0); /* nobody has read it yet */
    router_service(w.r)->ops->taken(router_service(w.r), f.c.ticket, 100);
    turn_some(loop, 10);
    assert_int_equal(f.d->n_credits, 0); /* not worth a message */
    router_service(w.r)->ops->taken(router_service(w.r), f.c.ticket, 401);
    WAIT(loop, f.d->n_credits == 1);
    assert_int_equal(f.d->last_window, 1425);
    text[98] = 0;
    say_tokens(f.d, f.m, WIRE_PHASE_CONTINUATION, 401, text, false);
    turn_some(loop, 10);
    say_tokens(f.d, f.m, WIRE_PHASE_CONTINUATION, 499, "a", true);
    WAIT(loop, f.c.n_ended);
    assert_int_equal(f.c.finish, FINISH_LENGTH);
    world_down(&w);
}

/* Many at once spread over both pools, and a small one passes a large one that does not fit. */
static void test_balance(void **state)
{
    struct world w;
    struct client c[16];
    uint32_t targets[2] = {0};

    world_up_with(&w, 2, 2, 8, (struct router_options){0});
    for (int i = 0; i < 16; i++)
        assert_int_equal(client_submit(&c[i], w.r, (struct wish){0}), STATUS_OK);
    WAIT(loop, w.p[0].n_asked + w.p[1].n_asked == 16);
    assert_int_equal(w.p[0].n_asked, 8);
    for (int i = 0; i < 2; i++)
        for (uint32_t j = 0; j < w.p[i].n_asked; j++)
            targets[!strcmp(w.p[i].asked[j].m.decode_targets[0], "decode-1")]++;
    assert_int_equal(targets[0], 8);
    assert_int_equal(targets[1], 8);
    /* answers in any order find their requests */
    for (int i = 0; i < 2; i++)
        for (uint32_t j = w.p[i].n_asked; j-- > 0;)
            say_tokens(&w.p[i], &w.p[i].asked[j].m, WIRE_PHASE_FIRST_TOKEN, 0, "$", true);
    for (int i = 0; i < 16; i++)
        WAIT(loop, c[i].n_ended);
    world_down(&w);
}

static void visit(void *context, const char *scope, const char *name, const char *text,
                  double number)
{
    ++*(uint32_t *)context;
    assert_true(scope && name);
}

static void test_stats(void **state)
{
    struct world w;
    uint32_t n = 0;

    world_up(&w);
    router_service(w.r)->ops->stats(router_service(w.r), visit, &n);
    assert_true(n > 40);
    world_down(&w);
}

int main(void)
{
    const struct log_options quiet = {.level = LOG_ERROR + 1};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_accepted_first),
        cmocka_unit_test(test_one_token),
        cmocka_unit_test(test_inexact),
        cmocka_unit_test(test_decode_lost),
        cmocka_unit_test(test_prefill_lost),
        cmocka_unit_test(test_done_lost),
        cmocka_unit_test(test_lost_around_the_hand_off),
        cmocka_unit_test(test_too_many_failures),
        cmocka_unit_test(test_typed_error),
        cmocka_unit_test(test_no_decode_room),
        cmocka_unit_test(test_queue_timeout),
        cmocka_unit_test(test_deadline),
        cmocka_unit_test(test_admission),
        cmocka_unit_test(test_journal_bound),
        cmocka_unit_test(test_drain),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_cancel_from_the_sink),
        cmocka_unit_test(test_cancel_others_from_the_sink),
        cmocka_unit_test(test_rows_first),
        cmocka_unit_test(test_rows_again),
        cmocka_unit_test(test_held_and_lost),
        cmocka_unit_test(test_window),
        cmocka_unit_test(test_balance),
        cmocka_unit_test(test_stats),
    };

    log_setup(&quiet);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
