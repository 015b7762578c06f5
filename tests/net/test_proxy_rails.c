/* SPDX-License-Identifier: MIT
 *
 * test_proxy_rails.c - several links to one node: each keeps its order, what is said of the node is said of all of them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/net/frame.h"
#include "daemon/net/hello.h"
#include "tests/net/proxy_bed.h"

enum { RAILS = 3, EPOCHS = 40, PER_RAIL = SLICES / RAILS };

/* The other ends of a node's rails: those that are sent over, which hold little that is not read, and those that are received from. */
struct ends {
    int link[RAILS], in[RAILS];
};

static struct ends ends_add(struct side *s, uint32_t rails)
{
    struct ends ends = {.link = {0}, .in = {0}};
    struct error e;
    int pair[2];

    for (uint32_t r = 0; r < rails; r++) {
        bed_sockets_of(BED_TCP, 4096, pair);
        assert_int_equal(proxy_link_add(s->proxy, 2, r, pair[0], &e), 0);
        ends.link[r] = pair[1];
        bed_sockets(BED_TCP, pair);
        assert_int_equal(proxy_receive(s->proxy, 2, r, pair[0], &e), 0);
        ends.in[r] = pair[1];
        (void)flag_send(ends.in[r], r, 1);
        WAIT_FOR(atomic_load(&s->flags[2][r]) == 1);
    }
    return ends;
}

/* Two nodes, and all rails from a to b. Queues are short: each is full most of the time. */
static void sides_open(struct side *a, struct side *b)
{
    struct net_options options = BED_OPTIONS;

    options.queue = 4;
    options.buffer_bytes = 20000;
    side_open(a, 0, 50, &options);
    side_open(b, 1, 50, &options);
    a->rails = RAILS;
    for (uint32_t r = 0; r < RAILS; r++)
        connect_rail(a, b, r, BED_TCP);
}

/* Each rank's slices, then its flag, all over its own rail: when the flag is there the slices are, whatever the other rails do. The ranks
 * take turns at random with the rails' speeds: the queues are short, and each is full most of the time. */
static void order_of_each(void **state)
{
    static struct side a, b;
    uint64_t messages = 0;

    (void)state;
    sides_open(&a, &b);
    for (uint32_t epoch = 1; epoch <= EPOCHS; epoch++) {
        memset(a.shadow, (int)epoch, SLICES * SLICE_BYTES);
        for (uint32_t i = 0; i < PER_RAIL; i++)
            for (uint32_t r = 0; r < RAILS; r++)
                push_of(&a, r, 1, FCC_TRIGGER_PUT | (r * PER_RAIL + i), epoch);
        for (uint32_t r = 0; r < RAILS; r++)
            push_of(&a, r, 1, FCC_TRIGGER_FLAG | r, epoch);
        push_end(&a, epoch);
        for (uint32_t r = 0; r < RAILS; r++) {
            WAIT_FOR(atomic_load_explicit(&b.flags[0][r], memory_order_acquire) == epoch);
            for (uint32_t i = r * PER_RAIL * SLICE_BYTES; i < (r + 1) * PER_RAIL * SLICE_BYTES; i++)
                if (b.memory[i] != epoch)
                    fail_msg("rail %u, epoch %u: byte %u is %u", r, epoch, i, b.memory[i]);
            messages += PER_RAIL + 1;
        }
        WAIT_FOR(atomic_load(&a.done) == epoch);
    }
    assert_int_equal(atomic_load(&proxy_sent(a.proxy, 1)->messages), messages); /* of all rails */
    assert_int_equal(atomic_load(&proxy_received(b.proxy, 0)->messages), messages);
    assert_int_equal(atomic_load(&a.failures) + atomic_load(&b.failures), 0);
    side_close(&a);
    side_close(&b);
}

/* DONE stands for all ranks of a node: when all rails have told it, all that was sent before over any of them is there. Each rail in
 * turn is the last by far: it has much to send, and the others nothing. */
static void done_of_all(void **state)
{
    static struct side a, b;

    (void)state;
    sides_open(&a, &b);
    for (uint32_t turn = 1; turn <= EPOCHS; turn++) {
        memset(a.shadow, (int)turn, SLICES * SLICE_BYTES);
        for (uint32_t i = 0; i < SLICES; i++)
            push_of(&a, turn % RAILS, 1, FCC_TRIGGER_PUT | i, turn);
        for (uint32_t r = 0; r < RAILS; r++)
            push_of(&a, r, 1, FCC_TRIGGER_FLAG | (FLAGS + done_number(0, RAILS, r)), turn);
        push_end(&a, turn);
        WAIT_FOR(atomic_load_explicit(&b.turns[0], memory_order_acquire) == turn);
        for (uint32_t i = 0; i < SLICES * SLICE_BYTES; i++)
            if (b.memory[i] != turn)
                fail_msg("turn %u: byte %u is %u", turn, i, b.memory[i]);
        WAIT_FOR(atomic_load(&a.done) == turn);
    }
    side_close(&a);
    side_close(&b);
}

/* ... whatever order the rails tell it in, also where one of them is a turn ahead; and a number is of one node and one rail. */
static void done_numbers(void **state)
{
    uint64_t told[NET_RAILS_MAX] = {0}, one[NET_RAILS_MAX] = {0};
    unsigned char seen[3 * DONE_OF_NODE] = {0};

    (void)state;
    assert_false(done_by_all(told, done_number(1, 2, 0), 1));
    assert_false(done_by_all(told, done_number(1, 2, 0), 2)); /* ahead */
    assert_true(done_by_all(told, done_number(1, 2, 1), 1));
    assert_true(done_by_all(told, done_number(1, 2, 1), 2));
    assert_false(done_by_all(told, done_number(1, 2, 1), 3));
    assert_true(done_by_all(told, done_number(1, 2, 0), 3));
    assert_true(done_by_all(one, done_number(2, 1, 0), 1)); /* with one rail each is all */
    assert_true(done_by_all(one, done_number(2, 1, 0), 2));
    for (uint32_t node = 0; node < 3; node++)
        for (uint32_t rails = 1; rails <= NET_RAILS_MAX; rails++)
            for (uint32_t r = 0; r < rails; r++) {
                assert_int_equal(seen[done_number(node, rails, r)]++, 0);
                assert_int_equal(done_node(done_number(node, rails, r)), node);
            }
}

/* END stands behind what was pushed before it on all rails, also on one that takes nothing, and whichever that is. */
static void end_of_all(void **state)
{
    static struct side a, b;
    struct net_options options = BED_OPTIONS;

    (void)state;
    options.queue = 8;
    options.buffer_bytes = 20000;
    for (uint32_t stuck = 0; stuck < RAILS; stuck++) {
        unsigned char bytes[8 * SLICE_BYTES];
        side_open(&a, 0, 50, &options);
        side_open(&b, 1, 50, &options);
        a.rails = RAILS;
        connect_rail(&a, &b, 0, BED_UNIX);
        struct ends n = ends_add(&a, RAILS);
        for (uint32_t i = 0; i < 8; i++) /* its queue takes them all, its sockets do not, at either end */
            push_of(&a, stuck, 2, FCC_TRIGGER_PUT | i, 1);
        for (uint32_t r = 0; r < RAILS; r++)
            if (r != stuck)
                push_of(&a, r, 2, FCC_TRIGGER_FLAG | 1, 1);
        push_end(&a, 1);
        push(&a, 1, FCC_TRIGGER_FLAG | 2, 1); /* when it is there, the end was taken too */
        WAIT_FOR(atomic_load(&b.flags[0][2]) == 1);
        for (uint32_t r = 0; r < RAILS; r++) { /* all that is on the others is through */
            uint32_t kind = r == stuck ? NET_FRAME_FLAG : NET_FRAME_BEAT;
            while (kind != NET_FRAME_FLAG) {
                struct net_frame f;
                assert_int_equal(recv(n.link[r], &f, sizeof(f), MSG_WAITALL), sizeof(f));
                kind = f.kind;
            }
        }
        push(&a, 1, FCC_TRIGGER_FLAG | 3, 1); /* and the proxy has had a turn since then */
        WAIT_FOR(atomic_load(&b.flags[0][3]) == 1);
        assert_int_equal(atomic_load(&a.done), 0);
        while (atomic_load(&a.done) == 0)
            assert_true(recv(n.link[stuck], bytes, sizeof(bytes), MSG_DONTWAIT) != 0);
        assert_int_equal(atomic_load(&a.failures), 0);
        side_close(&a);
        for (uint32_t r = 0; r < RAILS; r++) {
            (void)close(n.link[r]);
            (void)close(n.in[r]);
        }
        side_close(&b);
    }
}

/* One rail that is broken, whichever and either way, is the end of the node, once; others are served. */
static void one_is_broken(void **state)
{
    static struct side a, b;

    (void)state;
    for (uint32_t broken = 0; broken < 2 * RAILS; broken++) {
        uint32_t rail = broken % RAILS;
        bool is_link = broken >= RAILS;
        side_open(&a, 0, 50, &BED_OPTIONS);
        side_open(&b, 1, 50, &BED_OPTIONS);
        a.rails = RAILS;
        connect_rail(&a, &b, 0, BED_UNIX);
        struct ends n = ends_add(&a, RAILS);
        if (is_link) { /* a sender that is spoken to by what is no receiver */
            static const unsigned char garbage[sizeof(struct net_hello)] = {1, 2, 3};
            assert_int_equal(send(n.link[rail], garbage, sizeof(garbage), MSG_NOSIGNAL), sizeof(garbage));
            push_of(&a, rail, 2, FCC_TRIGGER_FLAG | 1, 1);
        } else {
            (void)flag_send(n.in[rail], FLAGS_ALL, 1); /* there is no such flag */
        }
        WAIT_FOR(atomic_load(&a.failures) == 1);
        assert_int_equal(atomic_load(&a.status[2]), -EPROTO);
        for (uint32_t r = 0; r < RAILS; r++)
            expect_closed(n.link[r]);
        for (uint32_t r = 0; r < RAILS; r++) {
            push_of(&a, r, 2, FCC_TRIGGER_PUT | r, 1); /* go nowhere */
            push_of(&a, r, 2, FCC_TRIGGER_FLAG | r, 1);
            (void)close(n.in[r]);
        }
        push_end(&a, 1);
        push(&a, 1, FCC_TRIGGER_FLAG | 2, 1);
        WAIT_FOR(atomic_load(&a.done) == 1);
        WAIT_FOR(atomic_load(&b.flags[0][2]) == 1);
        assert_int_equal(atomic_load(&a.failures), 1);
        assert_int_equal(atomic_load(&proxy_sent(a.proxy, 2)->errors), is_link);
        assert_int_equal(atomic_load(&proxy_received(a.proxy, 2)->errors), !is_link);
        side_close(&a);
        side_close(&b);
    }
}

/* A node ends in good order when all of its rails have: what it sent before on another one is not lost. */
static void all_have_ended(void **state)
{
    static struct side a;

    (void)state;
    for (uint32_t last = 0; last < RAILS; last++) {
        side_open(&a, 0, 50, &BED_OPTIONS);
        struct ends n = ends_add(&a, RAILS);
        for (uint32_t r = 0; r < RAILS; r++)
            if (r != last) {
                assert_int_equal(shutdown(n.in[r], SHUT_WR), 0);
                expect_closed(n.in[r]); /* it has seen that */
            }
        (void)flag_send(n.in[last], 5, 9);
        WAIT_FOR(atomic_load(&a.flags[2][5]) == 9);
        assert_int_equal(atomic_load(&a.failures), 0);
        assert_int_equal(shutdown(n.in[last], SHUT_WR), 0);
        WAIT_FOR(atomic_load(&a.failures) == 1);
        assert_int_equal(atomic_load(&a.status[2]), -ESHUTDOWN);
        expect_closed(n.in[last]);
        for (uint32_t r = 0; r < RAILS; r++)
            (void)close(n.link[r]);
        side_close(&a);
    }
}

/* ... but it has to end them all: one that goes on, whatever comes over it, is given up. */
static void one_goes_on(void **state)
{
    static struct side a;
    struct net_options options = BED_OPTIONS;

    (void)state;
    options.silent_ms = 300;
    side_open(&a, 0, 50, &options);
    struct ends n = ends_add(&a, 2);
    assert_int_equal(shutdown(n.in[0], SHUT_WR), 0);
    for (uint64_t epoch = 2; atomic_load(&a.failures) == 0; epoch++) {
        (void)flag_send(n.in[1], 1, epoch);
        (void)usleep(5000);
    }
    int status = atomic_load(&a.status[2]);
    assert_true(status == -ECONNRESET || status == -ETIMEDOUT); /* the second: this process was not run for so long */
    for (uint32_t r = 0; r < 2; r++) {
        expect_closed(n.in[r]);
        expect_closed(n.link[r]);
    }
    side_close(&a);
}

/* All rails go when the owner gives the node up, and come back one by one. */
static void forgotten(void **state)
{
    static struct side a;
    struct error e;

    (void)state;
    side_open(&a, 0, 50, &BED_OPTIONS);
    a.rails = RAILS;
    struct ends n = ends_add(&a, RAILS);
    proxy_forget(a.proxy, 2);
    for (uint32_t r = 0; r < RAILS; r++) {
        expect_closed(n.link[r]);
        expect_closed(n.in[r]);
    }
    n = ends_add(&a, RAILS);
    for (uint32_t r = 0; r < RAILS; r++)
        push_of(&a, r, 2, FCC_TRIGGER_FLAG | 1, 1);
    push_end(&a, 1);
    WAIT_FOR(atomic_load(&a.done) == 1);
    assert_int_equal(atomic_load(&a.failures), 0);
    int again[2];
    bed_sockets(BED_TCP, again); /* the first of others takes the place of all */
    assert_int_equal(proxy_link_add(a.proxy, 2, 0, again[0], &e), 0);
    for (uint32_t r = 0; r < RAILS; r++)
        expect_closed(n.link[r]);
    push_of(&a, RAILS - 1, 1, FCC_TRIGGER_FLAG | 1, 1); /* a rail that there never was */
    push_end(&a, 2);
    WAIT_FOR(atomic_load(&a.done) == 2);
    assert_int_equal(atomic_load(&a.status[1]), -ENOTCONN);
    assert_int_equal(proxy_link_add(a.proxy, 2, NET_RAILS_MAX, -1, &e), -EINVAL);
    assert_int_equal(proxy_receive(a.proxy, 2, NET_RAILS_MAX, -1, &e), -EINVAL);
    assert_int_equal(atomic_load(&a.failures), 1);
    side_close(&a);
    (void)close(again[1]);
    for (uint32_t r = 0; r < RAILS; r++)
        (void)close(n.in[r]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(order_of_each), cmocka_unit_test(done_of_all),   cmocka_unit_test(done_numbers),
        cmocka_unit_test(end_of_all),    cmocka_unit_test(one_is_broken), cmocka_unit_test(all_have_ended),
        cmocka_unit_test(one_goes_on),   cmocka_unit_test(forgotten),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
