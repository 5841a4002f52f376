/* Attempts that follow one another: requests move away from nodes that drain, and those that crash
 * nodes are found out. */
#include "unit/router/world.h"

static void drain_node(struct fake_node *n)
{
    n->hub.stats.draining = true;
    peer_hub_announce(n->hub.hub);
    turn_some(loop, 10);
}

static const char *id_of(const struct world *w, const struct fake_node *n)
{
    return n == &w->p[0]   ? "prefill-0"
           : n == &w->p[1] ? "prefill-1"
           : n == &w->d[0] ? "decode-0"
                           : "decode-1";
}

static void crash_node(struct world *w, struct fake_node *n)
{
    hub_stop(&n->hub);
    WAIT(loop, !peer_hub_find(router_hub(w->r), id_of(w, n)));
}

static void restart_node(struct world *w, struct fake_node *n)
{
    const char *role = n == &w->p[0] || n == &w->p[1] ? "prefill" : "decode";

    fake_restart(n, loop, id_of(w, n), role, 4);
    link_node(w, n, role);
}

/* The second attempt gets as far as its decode node, which owns it from now on. */
static struct fake_node *resume_in_decode(struct world *w, struct flight *f)
{
    struct fake_node *p;
    const struct wire_prefill_request *m = request_at(w, 2, &p);
    struct fake_node *d = decode_named(w, m->decode_targets[0]);

    assert_int_equal(m->n_decode_targets, 1);
    say_opened(p, m, m->decode_targets[0]);
    say_tokens(p, m, WIRE_PHASE_FIRST_TOKEN, 5, " ", false);
    say_tokens(d, m, WIRE_PHASE_ACCEPTED, 5, " ", false);
    WAIT(loop, f->c.n_ids == 6);
    return d;
}

/* ---- moving away ---- */

/* Brings a request to where the decode node owns it, with "Hello" out. */
static void in_decode(struct world *w, struct flight *f)
{
    take_off(w, f, (struct wish){.logprobs = true});
    say_tokens(f->p, f->m, WIRE_PHASE_FIRST_TOKEN, 0, "H", false);
    say_tokens(f->d, f->m, WIRE_PHASE_ACCEPTED, 0, "H", false);
    say_tokens(f->d, f->m, WIRE_PHASE_CONTINUATION, 1, "ello", false);
    WAIT(loop, f->c.n_ids == 5);
}

static void test_moves_from_a_draining_node(void **state)
{
    struct world w;
    struct flight f;
    struct fake_node *p, *other;

    world_up(&w);
    in_decode(&w, &f);
    drain_node(f.d);
    const struct wire_prefill_request *m = request_at(&w, 2, &p);
    assert_int_equal(m->attempt, 2);
    assert_int_equal(m->resume.n_generated, 5);
    assert_int_equal(m->n_decode_targets, 1);
    other = decode_named(&w, m->decode_targets[0]);
    assert_ptr_not_equal(other, f.d);
    /* meanwhile the old attempt streams on */
    say_tokens(f.d, f.m, WIRE_PHASE_CONTINUATION, 5, " w", false);
    WAIT(loop, f.c.n_ids == 7);
    assert_int_equal(f.d->n_cancels, 0);
    say_opened(p, m, m->decode_targets[0]);
    say_tokens(p, m, WIRE_PHASE_FIRST_TOKEN, 5, " ", false);
    WAIT(loop, f.d->n_cancels == 1);
    assert_int_equal(f.d->cancelled_attempt, 1);
    say_tokens(f.d, f.m, WIRE_PHASE_CONTINUATION, 7, "XX", false); /* too late: not believed */
    say_tokens(other, m, WIRE_PHASE_ACCEPTED, 5, " ", false);
    say_tokens(other, m, WIRE_PHASE_CONTINUATION, 6, "world$", true);
    WAIT(loop, f.c.n_ended);
    assert_int_equal(f.c.status, STATUS_OK);
    assert_string_equal(f.c.text, "Hello world$");
    assert_int_equal(count(&w, "router_moved_total"), 1);
    assert_int_equal(other->n_cancels, 0);
    world_down(&w);
}

/* The old node ends the answer before the new one has said anything. */
static void test_move_overtaken_by_the_end(void **state)
{
    struct world w;
    struct flight f;
    struct fake_node *p;

    world_up(&w);
    in_decode(&w, &f);
    drain_node(f.d);
    const struct wire_prefill_request *m = request_at(&w, 2, &p);
    say_tokens(f.d, f.m, WIRE_PHASE_CONTINUATION, 5, "$", true);
    WAIT(loop, f.c.n_ended);
    assert_int_equal(f.c.status, STATUS_OK);
    WAIT(loop, p->n_cancels == 1);
    assert_int_equal(p->cancelled_attempt, m->attempt);
    world_down(&w);
}

/* The new attempt fails: the node that drains has the request still, and it is tried again later.
 */
static void test_move_fails(void **state)
{
    struct world w;
    struct flight f;
    struct fake_node *p;

    world_up(&w);
    in_decode(&w, &f);
    drain_node(f.d);
    const struct wire_prefill_request *m = request_at(&w, 2, &p);
    say_failed(p, m, STATUS_NO_DECODE_ROOM);
    turn_some(loop, 20);
    say_tokens(f.d, f.m, WIRE_PHASE_CONTINUATION, 5, " w", false);
    WAIT(loop, f.c.n_ids == 7);
    m = request_at(&w, 3, &p);
    assert_int_equal(m->attempt, 3);
    assert_int_equal(m->resume.n_generated, 7);
    say_tokens(p, m, WIRE_PHASE_FIRST_TOKEN, 7, "$", true);
    WAIT(loop, f.c.n_ended);
    assert_int_equal(f.c.status, STATUS_OK);
    assert_string_equal(f.c.text, "Hello w$");
    world_down(&w);
}

/* The node that drains is gone before the new attempt has said anything: that one goes on. */
static void test_move_and_the_old_node_ends(void **state)
{
    struct world w;
    struct flight f;
    struct fake_node *p;

    world_up(&w);
    in_decode(&w, &f);
    drain_node(f.d);
    const struct wire_prefill_request *m = request_at(&w, 2, &p);
    crash_node(&w, f.d);
    turn_some(loop, 20);
    assert_int_equal(f.c.n_ended, 0);
    say_tokens(p, m, WIRE_PHASE_FIRST_TOKEN, 5, "$", true);
    WAIT(loop, f.c.n_ended);
    assert_int_equal(f.c.status, STATUS_OK);
    assert_int_equal(count(&w, "router_resumed_total"), 0);
    world_down(&w);
}

/* ---- cells ---- */

/* A node of another model. */
static void start_stranger(struct world *w, struct fake_node *n, const char *id, const char *role)
{
    struct wire_hello hello = model_hello(id, role);

    memset(n, 0, sizeof *n);
    hello.n_slots = 4;
    memset(hello.model_digest, 0x77, sizeof hello.model_digest);
    fake_restart_as(n, loop, &hello);
    link_node(w, n, role);
}

/* What one model has begun no other one goes on with, be it an answer or the prompt's
 * log-probabilities: it waits for its own. */
static void test_a_stream_stays_in_its_cell(void **state)
{
    for (int rows_only = 0; rows_only < 2; rows_only++) {
        struct world w;
        struct flight f;

        world_up_with(&w, 1, 1, 4, (struct router_options){0});
        if (rows_only) {
            take_off(&w, &f, (struct wish){.n_prompt = 40, .prompt_rows = true});
            say_rows(f.p, f.m, 1, 20);
            turn_some(loop, 20);
        } else {
            in_decode(&w, &f);
        }
        start_stranger(&w, &w.p[1], "prefill-1", "prefill");
        start_stranger(&w, &w.d[1], "decode-1", "decode");
        struct fake_node *gone = rows_only ? f.p : f.d;
        crash_node(&w, gone);
        turn_for(loop, 200);
        assert_int_equal(w.p[0].n_asked, 1);
        assert_int_equal(w.p[1].n_asked, 0);
        assert_int_equal(f.c.n_ended, 0);
        restart_node(&w, gone);
        WAIT(loop, w.p[0].n_asked == 2);
        assert_int_equal(w.p[0].asked[1].m.resume.n_generated, rows_only ? 0 : 5);
        assert_int_equal(w.p[1].n_asked, 0);
        world_down(&w);
    }
}

/* ---- poison ---- */

static void test_second_crash_ends_it(void **state)
{
    struct world w;
    struct flight f;

    world_up(&w);
    in_decode(&w, &f);
    crash_node(&w, f.d);
    struct fake_node *d = resume_in_decode(&w, &f);
    crash_node(&w, d);
    turn_some(loop, 20);
    assert_int_equal(f.c.n_ended, 0); /* perhaps only the links were lost */
    restart_node(&w, f.d);
    restart_node(&w, d);
    WAIT(loop, f.c.n_ended);
    assert_int_equal(f.c.status, STATUS_REQUEST_CRASHED_NODES);
    assert_non_null(strstr(f.c.message, "2 nodes crashed"));
    assert_int_equal(count(&w, "router_poison_total"), 1);
    world_down(&w);
}

static uint64_t epoch_of(struct world *w, const struct fake_node *n)
{
    return peer_link_hello(peer_hub_find(router_hub(w->r), peer_hub_hello(n->hub.hub)->node_id))
        ->epoch;
}

/* It dies of the pages' arrival; who is heard first, prefill node or broken link, is chance. Where
 * nobody has said that the node took it, the prefill node names whom it lost. */
static void crash_at_import(bool was_opened, int order)
{
    struct world w;
    struct client c;
    struct fake_node *p;

    world_up(&w);
    assert_int_equal(client_submit(&c, w.r, (struct wish){0}), STATUS_OK);
    for (uint32_t i = 0; i < 2; i++) {
        const struct wire_prefill_request *m = request_at(&w, i + 1, &p);
        struct fake_node *d = decode_named(&w, m->decode_targets[0]);
        struct wire_result failed = {.key = m->key,
                                     .attempt = m->attempt,
                                     .phase = WIRE_PHASE_FAILED,
                                     .done = true,
                                     .error = STATUS_PEER_LOST,
                                     .n_lost_nodes = !was_opened};
        const bool link_first = order >> i & 1;
        strcpy(failed.lost_nodes[0].node_id, m->decode_targets[0]);
        failed.lost_nodes[0].epoch = epoch_of(&w, d);
        if (was_opened)
            say_opened(p, m, m->decode_targets[0]);
        turn_some(loop, 5);
        if (link_first)
            crash_node(&w, d);
        fake_say(p, &failed);
        turn_some(loop, 5);
        if (!link_first)
            crash_node(&w, d);
        restart_node(&w, d);
    }
    WAIT(loop, c.n_ended);
    assert_int_equal(c.status, STATUS_REQUEST_CRASHED_NODES);
    assert_int_equal(w.p[0].n_asked + w.p[1].n_asked, 2);
    world_down(&w);
}

static void test_crash_at_import(void **state)
{
    for (int order = 0; order < 4; order++)
        crash_at_import(true, order);
}

static void test_crash_before_opened(void **state)
{
    for (int order = 0; order < 4; order++)
        crash_at_import(false, order);
}

/* It dies as soon as it has taken the request over, and its word of that is lost: what the prefill
 * node says of it comes when its link is down. */
static void test_crash_before_accepted(void **state)
{
    struct world w;
    struct client c;
    struct fake_node *p, *d;

    world_up(&w);
    assert_int_equal(client_submit(&c, w.r, (struct wish){0}), STATUS_OK);
    for (uint32_t i = 0; i < 2; i++) {
        const struct wire_prefill_request *m = request_at(&w, i + 1, &p);
        d = decode_named(&w, m->decode_targets[0]);
        crash_node(&w, d);
        say_opened(p, m, m->decode_targets[0]);
        say_tokens(p, m, WIRE_PHASE_FIRST_TOKEN, i, "x", false);
        WAIT(loop, c.n_ids == i + 1);
        restart_node(&w, d);
        if (i == 0)
            say_failed(p, m, STATUS_PEER_LOST); /* not to wait for the router's patience */
        else
            say_failed(p, m, STATUS_HANDOFF_FAILED);
    }
    WAIT(loop, c.n_ended);
    assert_int_equal(c.status, STATUS_REQUEST_CRASHED_NODES);
    world_down(&w);
}

/* Two links cut one after the other are no crashes. */
static void test_cut_links_are_forgiven(void **state)
{
    struct world w;
    struct flight f;
    struct fake_node *p;

    world_up(&w);
    in_decode(&w, &f);
    peer_link_close(f.d->hub.link, STATUS_CANCELLED);
    struct fake_node *d = resume_in_decode(&w, &f);
    peer_link_close(d->hub.link, STATUS_CANCELLED);
    turn_some(loop, 20);
    link_node(&w, f.d, "decode");
    link_node(&w, d, "decode");
    const struct wire_prefill_request *m = request_at(&w, 3, &p);
    say_tokens(p, m, WIRE_PHASE_FIRST_TOKEN, 6, "$", true);
    WAIT(loop, f.c.n_ended);
    assert_int_equal(f.c.status, STATUS_OK);
    world_down(&w);
}

/* Those that were with it when a node crashed go on one by one, and none of them ends over it. */
static void test_bystanders_survive(void **state)
{
    enum { N = 4, POISON = 2 };
    struct world w;
    struct client c[N];

    world_up_with(&w, 1, 1, 8, (struct router_options){0});
    for (int i = 0; i < N; i++)
        assert_int_equal(client_submit(&c[i], w.r, (struct wish){0}), STATUS_OK);
    WAIT(loop, w.p[0].n_asked == N);
    const uint64_t poison = w.p[0].asked[POISON].m.key.number;
    crash_node(&w, &w.p[0]);
    restart_node(&w, &w.p[0]);
    for (uint32_t at = N; router_n_requests(w.r); at++) {
        WAIT(loop, w.p[0].n_asked > at || !router_n_requests(w.r));
        turn_some(loop, 20);
        if (!router_n_requests(w.r))
            break;
        assert_int_equal(w.p[0].n_asked, at + 1); /* never two at once */
        const struct wire_prefill_request *m = &w.p[0].asked[at].m;
        if (m->key.number == poison) {
            crash_node(&w, &w.p[0]);
            restart_node(&w, &w.p[0]);
        } else {
            say_tokens(&w.p[0], m, WIRE_PHASE_FIRST_TOKEN, 0, "$", true);
        }
    }
    for (int i = 0; i < N; i++) {
        assert_int_equal(c[i].n_ended, 1);
        assert_int_equal(c[i].status, i == POISON ? STATUS_REQUEST_CRASHED_NODES : STATUS_OK);
    }
    world_down(&w);
}

/* A suspect is alone with its nodes, as far as the router can tell; but another request's prefill
 * node, whose first target died as well, offers that one to the same decode node. When it dies,
 * either may have been the cause: nobody is condemned. */
static void test_suspect_that_was_not_alone(void **state)
{
    for (int order = 0; order < 2; order++) {
        struct world w;
        struct flight f;
        struct client other;
        struct fake_node *p;

        world_up(&w);
        in_decode(&w, &f);
        assert_int_equal(client_submit(&other, w.r, (struct wish){0}), STATUS_OK);
        WAIT(loop, w.p[0].n_asked + w.p[1].n_asked == 2);
        struct fake_node *p_other = NULL;
        const struct wire_prefill_request *m_other = NULL;
        for (int i = 0; i < 2; i++)
            for (uint32_t j = 0; j < w.p[i].n_asked; j++)
                if (w.p[i].asked[j].m.key.number != f.m->key.number) {
                    p_other = &w.p[i];
                    m_other = &w.p[i].asked[j].m;
                }
        say_opened(p_other, m_other, id_of(&w, f.d));
        turn_some(loop, 10);
        crash_node(&w, f.d);
        WAIT(loop, w.p[0].n_asked + w.p[1].n_asked == 3);
        const struct wire_prefill_request *m = NULL;
        for (int i = 0; i < 2; i++)
            if (w.p[i].n_asked && w.p[i].asked[w.p[i].n_asked - 1].m.attempt == 2) {
                p = &w.p[i];
                m = &p->asked[p->n_asked - 1].m;
            }
        assert_non_null(m);
        struct fake_node *d = decode_named(&w, m->decode_targets[0]);
        assert_ptr_not_equal(d, f.d);
        say_opened(p, m, m->decode_targets[0]);
        say_tokens(p, m, WIRE_PHASE_FIRST_TOKEN, 5, " ", false);
        say_tokens(d, m, WIRE_PHASE_ACCEPTED, 5, " ", false);
        WAIT(loop, f.c.n_ids == 6);
        if (order == 0) /* else its word comes when the node is dead */
            say_opened(p_other, m_other, m->decode_targets[0]);
        turn_some(loop, 10);
        crash_node(&w, d);
        if (order == 1)
            say_opened(p_other, m_other, m->decode_targets[0]);
        turn_some(loop, 10);
        restart_node(&w, d);
        restart_node(&w, f.d);
        say_failed(p_other, m_other, STATUS_PEER_LOST);
        turn_for(loop, 300);
        assert_int_equal(f.c.n_ended, 0);
        assert_int_equal(other.n_ended, 0);
        assert_int_equal(count(&w, "router_poison_total"), 0);
        assert_true(w.p[0].n_asked + w.p[1].n_asked >= 4); /* they are tried again, one by one */
        world_down(&w);
    }
}

int main(void)
{
    const struct log_options quiet = {.level = LOG_ERROR + 1};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_moves_from_a_draining_node),
        cmocka_unit_test(test_move_overtaken_by_the_end),
        cmocka_unit_test(test_move_fails),
        cmocka_unit_test(test_move_and_the_old_node_ends),
        cmocka_unit_test(test_a_stream_stays_in_its_cell),
        cmocka_unit_test(test_second_crash_ends_it),
        cmocka_unit_test(test_crash_at_import),
        cmocka_unit_test(test_crash_before_opened),
        cmocka_unit_test(test_crash_before_accepted),
        cmocka_unit_test(test_cut_links_are_forgiven),
        cmocka_unit_test(test_bystanders_survive),
        cmocka_unit_test(test_suspect_that_was_not_alone),
    };

    log_setup(&quiet);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
