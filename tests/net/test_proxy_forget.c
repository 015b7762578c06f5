/* SPDX-License-Identifier: MIT
 *
 * test_proxy_forget.c - nodes that the proxy's owner gives up.
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
#include "tests/net/proxy_bed.h"

/* The next flag that comes out of a link, behind signs of life. */
static uint64_t flag_receive(int sock)
{
    struct net_frame f;

    do {
        assert_int_equal(recv(sock, &f, sizeof(f), MSG_WAITALL), sizeof(f));
    } while (f.kind == NET_FRAME_BEAT);
    assert_int_equal(f.kind, NET_FRAME_FLAG);
    return f.offset;
}

/* Node 2's ends of its connections. */
struct ends {
    int link, in;
};

static struct ends ends_add(struct side *s)
{
    struct error e;
    int link[2], in[2];

    bed_sockets_of(BED_TCP, 4096, link); /* little goes in that is not read */
    assert_int_equal(proxy_link_add(s->proxy, 2, 0, link[0], &e), 0);
    bed_sockets(BED_TCP, in);
    assert_int_equal(proxy_receive(s->proxy, 2, 0, in[0], &e), 0);
    return (struct ends){.link = link[1], .in = in[1]};
}

/* All its connections are closed, and what waited for them is done; the owner, who knows, is told nothing; others are served. */
static void forgotten_node(void **state)
{
    static struct side a, b;
    struct net_options options = BED_OPTIONS;

    (void)state;
    options.queue = 8;
    options.buffer_bytes = 20000;
    side_open(&a, 0, 50, &options);
    side_open(&b, 1, 50, &options);
    connect_sides(&a, &b, BED_TCP);
    connect_sides(&b, &a, BED_TCP);
    struct ends n = ends_add(&a);
    assert_true(flag_send(n.in, 4, 11));
    WAIT_FOR(atomic_load(&a.flags[2][4]) == 11);
    for (uint32_t i = 0; i < 40; i++) /* more than it takes: the last ones wait in the FIFO */
        push(&a, 2, FCC_TRIGGER_PUT | i % SLICES, 1);
    push_end(&a, 1);
    WAIT_FOR(atomic_load(&proxy_sent(a.proxy, 2)->full) > 0);
    assert_int_equal(atomic_load(&a.done), 0);
    proxy_forget(a.proxy, 2);
    WAIT_FOR(atomic_load(&a.done) == 1);
    expect_closed(n.link);
    expect_closed(n.in);
    push(&a, 2, FCC_TRIGGER_PUT | 1, 1); /* goes nowhere */
    push(&a, 1, FCC_TRIGGER_FLAG | 1, 5);
    push_end(&a, 2);
    WAIT_FOR(atomic_load(&a.done) == 2);
    WAIT_FOR(atomic_load(&b.flags[0][1]) == 5);
    push(&b, 0, FCC_TRIGGER_FLAG | 1, 6);
    WAIT_FOR(atomic_load(&a.flags[1][1]) == 6);
    assert_int_equal(atomic_load(&a.failures), 0);
    /* It comes again: then its end is told again. */
    n = ends_add(&a);
    push(&a, 2, FCC_TRIGGER_FLAG | 1, 7);
    assert_int_equal(flag_receive(n.link), 7);
    assert_true(flag_send(n.in, 4, 12));
    WAIT_FOR(atomic_load(&a.flags[2][4]) == 12);
    (void)close(n.link);
    (void)close(n.in);
    WAIT_FOR(atomic_load(&a.failures) == 1);
    side_close(&a);
    side_close(&b);
}

/* While the thread is busy: connections that it has not seen are closed, too, and those that are added afterwards are not. */
static void forgotten_before_it_came(void **state)
{
    static struct side a, b;

    (void)state;
    side_open(&a, 0, 50, &BED_OPTIONS);
    side_open(&b, 1, 50, &BED_OPTIONS);
    struct ends seen = ends_add(&a);
    assert_true(flag_send(seen.in, 4, 10));
    WAIT_FOR(atomic_load(&a.flags[2][4]) == 10);
    push(&a, 1, FCC_TRIGGER_FLAG | HOLD, 1);
    WAIT_FOR(atomic_load(&a.holds) == 1);
    struct ends unseen = ends_add(&a);
    connect_sides(&a, &b, BED_TCP); /* another node's, in the same list */
    proxy_forget(a.proxy, 2);
    expect_closed(unseen.link); /* the thread stands still: closed by the caller */
    expect_closed(unseen.in);
    struct ends later = ends_add(&a);
    assert_true(flag_send(later.in, 5, 20));
    push(&a, 2, FCC_TRIGGER_FLAG | 1, 7);
    push(&a, 1, FCC_TRIGGER_FLAG | 1, 8);
    push_end(&a, 1);
    atomic_store(&a.holds, 2);
    expect_closed(seen.link);
    expect_closed(seen.in);
    assert_int_equal(flag_receive(later.link), 7);
    WAIT_FOR(atomic_load(&a.flags[2][5]) == 20);
    WAIT_FOR(atomic_load(&b.flags[0][1]) == 8);
    WAIT_FOR(atomic_load(&a.done) == 1);
    assert_int_equal(atomic_load(&a.failures), 0);
    side_close(&a);
    (void)close(later.link);
    (void)close(later.in);
    side_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forgotten_node),
        cmocka_unit_test(forgotten_before_it_came),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
