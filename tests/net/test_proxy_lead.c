/* SPDX-License-Identifier: MIT
 *
 * test_proxy_lead.c - a thread of the owner that does the proxy's work itself: everything arrives in order whether it drives, sleeps or
 * is busy, and the proxy's own thread takes over where it must.
 */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/net/proxy_bed.h"

static struct side a, b;

static void sides_open(void)
{
    const struct net_options options = BED_OPTIONS;

    side_open(&a, 0, 50, &options);
    side_open(&b, 1, 50, &options);
    connect_sides(&a, &b, BED_TCP);
    connect_sides(&b, &a, BED_TCP);
    for (uint32_t i = 0; i < SLICES * SLICE_BYTES; i++) {
        a.shadow[i] = (unsigned char)(i * 7 + i / SLICE_BYTES);
        b.shadow[i] = (unsigned char)(i * 5 + i / SLICE_BYTES + 1);
    }
    proxy_lead(a.proxy);
    assert_true(proxy_leads(a.proxy));
}

static void sides_close(void)
{
    side_close(&a);
    side_close(&b);
}

/* Some slices, then a flag. */
static void slices_push(struct side *from, const struct side *to, uint32_t epoch)
{
    for (uint32_t i = 0; i < 16; i++)
        push(from, to->index, FCC_TRIGGER_PUT | i, epoch);
    push(from, to->index, FCC_TRIGGER_FLAG | 1, epoch);
}

static bool has_come(struct side *at, const struct side *from, uint32_t epoch)
{
    if (atomic_load(&at->flags[from->index][1]) != epoch)
        return false;
    assert_memory_equal(at->memory + (size_t)from->index * SLICES * SLICE_BYTES, from->shadow, 16 * SLICE_BYTES);
    memset(at->memory, 0, (size_t)NODES * SLICES * SLICE_BYTES); /* the next ones have to come, too */
    return true;
}

/* The leader alone sends, receives and ends, or the thread that stands in where it was quicker. */
static void driven(void **state)
{
    (void)state;
    sides_open();
    for (uint32_t n = 1; n <= 200; n++) {
        slices_push(&a, &b, n);
        push_end(&a, n);
        slices_push(&b, &a, n);
        while (atomic_load(&a.done) != n || !has_come(&a, &b, n))
            (void)proxy_drive(a.proxy);
        WAIT_FOR(has_come(&b, &a, n));
    }
    sides_close();
}

/* What has been pushed has been sent when proxy_has_sent() says so, without END; it does not before the leader has driven, and never without a leader. */
static void sent(void **state)
{
    (void)state;
    sides_open();
    for (uint32_t n = 1; n <= 200; n++) {
        slices_push(&a, &b, n);
        while (!proxy_has_sent(a.proxy))
            (void)proxy_drive(a.proxy);
        assert_int_equal(a.resolved, 17 * n); /* 16 slices and a flag: none is left in the FIFO */
        memset(a.shadow, (int)n, 16 * SLICE_BYTES);
        WAIT_FOR(atomic_load(&b.flags[a.index][1]) == n);
        for (uint32_t i = 0; i < 16 * SLICE_BYTES && n > 1; i++)
            assert_int_equal(b.memory[i], n - 1); /* what was there before the memset */
    }
    assert_false(proxy_has_sent(b.proxy));
    sides_close();
}

static void sleep_until_readable(void)
{
    struct pollfd fd = {.fd = proxy_rest_fd(a.proxy), .events = POLLIN};

    assert_int_equal(poll(&fd, 1, -1), 1);
}

/* Whoever sleeps is woken by what comes, and by what another thread pushes. */
static void resting(void **state)
{
    (void)state;
    sides_open();
    for (uint32_t n = 1; n <= 100; n++) {
        bool sends = n % 2, pushed = false, there = false;
        if (!sends)
            slices_push(&b, &a, n);
        while (!there) {
            if (proxy_rest(a.proxy)) {
                if (sends)
                    slices_push(&a, &b, n);
                pushed = sends;
                there = sends && has_come(&b, &a, n); /* the thread that stands in may have sent it */
                there |= !sends && has_come(&a, &b, n);
                if (!there && !sends)
                    sleep_until_readable();
            }
            proxy_wake(a.proxy);
            while (proxy_drive(a.proxy)) {
            }
            if (pushed) /* where the thread stands in, a leader may not rest, and has pushed nothing yet */
                WAIT_FOR(there || (there = has_come(&b, &a, n)));
            else if (!sends)
                there = there || has_come(&a, &b, n);
        }
    }
    sides_close();
}

/* A push rings for a leader that sleeps: its descriptor becomes readable, or the thread that stands in has sent. */
static void rung(void **state)
{
    struct pollfd fd = {.events = POLLIN};

    (void)state;
    sides_open();
    for (uint32_t n = 1; n <= 50; n++) {
        while (!proxy_rest(a.proxy)) {
            proxy_wake(a.proxy);
            (void)proxy_drive(a.proxy);
        }
        push(&a, b.index, FCC_TRIGGER_FLAG | 1, n);
        fd.fd = proxy_rest_fd(a.proxy);
        while (atomic_load(&b.flags[a.index][1]) != n && poll(&fd, 1, 1) == 0) {
        }
        proxy_wake(a.proxy);
        while (atomic_load(&b.flags[a.index][1]) != n)
            (void)proxy_drive(a.proxy);
    }
    sides_close();
}

/* A leader that is busy with something long, and one that sleeps for long: the thread stands in, and keeps the other node from taking this
 * one for dead. */
static void away(void **state)
{
    (void)state;
    sides_open();
    (void)proxy_drive(a.proxy);
    for (uint32_t n = 1; n <= 5; n++) {
        slices_push(&a, &b, n);
        push_end(&a, n);
        slices_push(&b, &a, n);
        WAIT_FOR(atomic_load(&a.done) == n);
        WAIT_FOR(has_come(&a, &b, n));
        WAIT_FOR(has_come(&b, &a, n));
    }
    assert_true(proxy_rest(a.proxy));
    uint64_t sent = atomic_load(&proxy_sent(a.proxy, b.index)->bytes);
    WAIT_FOR(atomic_load(&proxy_sent(a.proxy, b.index)->bytes) > sent); /* a heartbeat */
    proxy_wake(a.proxy);
    assert_int_equal(atomic_load(&a.failures), 0);
    assert_int_equal(atomic_load(&b.failures), 0);
    sides_close();
}

/* A GPU's FIFO needs a thread that polls it. */
static void ended(void **state)
{
    static struct fifo_slot slots[16];
    static struct fifo feed;
    struct error e;

    (void)state;
    sides_open();
    slices_push(&a, &b, 1);
    while (!has_come(&b, &a, 1))
        (void)proxy_drive(a.proxy);
    memset(slots, 0, sizeof(slots));
    assert_int_equal(fifo_init(&feed, slots, 16, 1, -1), 0);
    assert_int_equal(proxy_feed_add(a.proxy, &feed, &e), 0);
    assert_false(proxy_leads(a.proxy));
    slices_push(&a, &b, 2);
    WAIT_FOR(has_come(&b, &a, 2));
    proxy_lead(a.proxy);
    assert_false(proxy_leads(a.proxy));
    assert_false(proxy_drive(a.proxy));
    assert_true(proxy_rest(a.proxy));
    proxy_wake(a.proxy);
    slices_push(&b, &a, 3);
    WAIT_FOR(has_come(&a, &b, 3));
    sides_close();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(driven), cmocka_unit_test(sent), cmocka_unit_test(resting),
                                       cmocka_unit_test(rung),   cmocka_unit_test(away), cmocka_unit_test(ended)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
