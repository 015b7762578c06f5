/* SPDX-License-Identifier: MIT
 *
 * test_proxy.c - proxies that send to each other: order, back-pressure, sleep, and nodes that are lost.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <errno.h>
#include <pthread.h>

#include "daemon/net/frame.h"
#include "daemon/net/hello.h"
#include "tests/net/proxy_bed.h"

static unsigned char slice_byte(uint32_t node, uint32_t epoch, uint32_t slice)
{
    return (unsigned char)(node * 101 + epoch * 7 + slice * 3 + 1);
}

/* One operator: all slices to all nodes, then a flag, then the end; the sources are used again when it says so. */
static void operator_send(struct side *s, uint32_t epoch)
{
    WAIT_FOR(atomic_load_explicit(&s->done, memory_order_acquire) == epoch - 1);
    for (uint32_t i = 0; i < SLICES; i++)
        memset(s->shadow + (size_t)i * SLICE_BYTES, slice_byte(s->index, epoch, i), SLICE_BYTES);
    for (uint32_t i = 0; i < SLICES; i++) {
        for (uint32_t n = 0; n < NODES; n++) {
            if (n != s->index)
                push(s, n, FCC_TRIGGER_PUT | i, epoch);
        }
    }
    for (uint32_t n = 0; n < NODES; n++) {
        if (n != s->index)
            push(s, n, FCC_TRIGGER_FLAG | 3, epoch);
    }
    push_end(s, epoch);
}

/* Wait for everybody's flag and check what they sent. */
static void operator_check(struct side *s, const struct side *sides, uint32_t epoch)
{
    for (uint32_t n = 0; n < NODES; n++) {
        struct net_area area = slice_area(&sides[n]);
        if (n == s->index)
            continue;
        WAIT_FOR(atomic_load_explicit(&s->flags[n][3], memory_order_acquire) >= epoch);
        for (uint32_t i = 0; i < SLICES; i++) {
            const unsigned char *slice = s->memory + ((size_t)n * SLICES + i) * SLICE_BYTES;
            for (uint32_t row = 0; row < area.rows; row++) {
                const unsigned char *p = slice + row * area.stride;
                if (p[0] != slice_byte(n, epoch, i) || memcmp(p, p + 1, area.row_bytes - 1) != 0)
                    atomic_fetch_add(&s->wrong, 1);
            }
        }
    }
}

struct runner {
    struct side *side, *sides;
    pthread_barrier_t *barrier;
    uint32_t epochs;
    pthread_t thread;
};

static void *runner_main(void *arg)
{
    struct runner *r = arg;

    for (uint32_t epoch = 1; epoch <= r->epochs; epoch++) {
        operator_send(r->side, epoch);
        operator_check(r->side, r->sides, epoch);
        (void)pthread_barrier_wait(r->barrier); /* nobody overwrites what another one still looks at */
    }
    return NULL;
}

/* Three nodes, each sends all to all: with tiny buffers and queues everybody is blocked all the time, in both directions. */
static void flood(enum bed_kind kind, uint32_t buffer_bytes, uint32_t rows, bool slow, uint32_t epochs)
{
    static struct side sides[NODES];
    struct net_options options = BED_OPTIONS;
    struct runner runners[NODES];
    pthread_barrier_t barrier;
    uint64_t messages = 0;

    options.queue = 4;
    options.buffer_bytes = buffer_bytes;
    assert_int_equal(pthread_barrier_init(&barrier, NULL, NODES), 0);
    for (uint32_t n = 0; n < NODES; n++) {
        side_open(&sides[n], n, 20, &options);
        sides[n].rows = rows;
        sides[n].slow = slow;
    }
    for (uint32_t n = 0; n < NODES * NODES; n++) {
        if (n / NODES != n % NODES)
            connect_sides(&sides[n / NODES], &sides[n % NODES], kind);
    }
    for (uint32_t n = 0; n < NODES; n++) {
        runners[n] = (struct runner){.side = &sides[n], .sides = sides, .barrier = &barrier, .epochs = epochs};
        assert_int_equal(pthread_create(&runners[n].thread, NULL, runner_main, &runners[n]), 0);
    }
    for (uint32_t n = 0; n < NODES; n++)
        assert_int_equal(pthread_join(runners[n].thread, NULL), 0);
    for (uint32_t n = 0; n < NODES; n++) {
        WAIT_FOR(atomic_load(&sides[n].done) == epochs);
        assert_int_equal(atomic_load(&sides[n].failures), 0);
        messages += atomic_load(&proxy_received(sides[n].proxy, (n + 1) % NODES)->messages);
        assert_int_equal(atomic_load(&proxy_sent(sides[n].proxy, (n + 1) % NODES)->errors), 0);
        assert_int_equal(sides[n].resolved, epochs * (SLICES + 1) * (NODES - 1));
    }
    assert_int_equal(messages, NODES * epochs * (SLICES + 1));
    for (uint32_t n = 0; n < NODES; n++)
        side_close(&sides[n]);
    (void)pthread_barrier_destroy(&barrier);
}

static void floods(void **state)
{
    (void)state;
    flood(BED_UNIX, 1, 1, false, 10);
    flood(BED_UNIX, 1, 50, true, 10);
    flood(BED_UNIX, 0, 2, true, 30);
    flood(BED_TCP, 0, 1, false, 30);
    flood(BED_TCP, 0, 50, false, 30);
}

/* Both sleep between any two messages, and are woken by their FIFO and their sockets. */
static void sleeps(void **state)
{
    static struct side a, b;
    struct net_options options = BED_OPTIONS;

    (void)state;
    options.beat_ms = options.silent_ms = 1000000; /* nothing else may wake them */
    side_open(&a, 0, 0, &options);
    side_open(&b, 1, 0, &options);
    connect_sides(&a, &b, BED_UNIX);
    connect_sides(&b, &a, BED_TCP);
    for (uint32_t n = 1; n <= 1000; n++) {
        if (n % 2) /* else: while it may be going to sleep */
            WAIT_FOR(atomic_load(&proxy_fifo(a.proxy)->sleeps) && atomic_load(&proxy_fifo(b.proxy)->sleeps));
        push(&a, 1, FCC_TRIGGER_FLAG | 1, n);
        while (atomic_load_explicit(&b.flags[0][1], memory_order_acquire) != n)
            (void)usleep(20);
        push(&b, 0, FCC_TRIGGER_FLAG | 1, n);
        while (atomic_load_explicit(&a.flags[1][1], memory_order_acquire) != n)
            (void)usleep(20);
    }
    side_close(&a);
    side_close(&b);
}

/* ---- nodes that are lost ---- */

static void lost_node(void **state)
{
    static struct side a, b;
    struct error e;
    int sockets[2], second[2];

    (void)state;
    side_open(&a, 0, 50, &BED_OPTIONS);
    side_open(&b, 1, 50, &BED_OPTIONS);
    connect_sides(&a, &b, BED_TCP);
    bed_sockets(BED_TCP, sockets); /* node 2 reads nothing */
    assert_int_equal(proxy_link_add(a.proxy, 2, 0, sockets[0], &e), 0);
    for (int n = 0; n < 4000; n++) /* far more than there is room for, if it were not lost meanwhile */
        if (n == 20)
            (void)close(sockets[1]);
        else
            push(&a, 2, FCC_TRIGGER_PUT | (n % SLICES), 1);
    push(&a, 2, FCC_TRIGGER_FLAG | 1, 1);
    push(&a, 1, FCC_TRIGGER_FLAG | 1, 1);
    push_end(&a, 1);
    WAIT_FOR(atomic_load(&a.done) == 1);
    WAIT_FOR(atomic_load(&b.flags[0][1]) == 1); /* others are still served */
    assert_int_equal(atomic_load(&a.failures), 1);
    int status = atomic_load(&a.status[2]); /* did the kernel have everything, or was there more to send? */
    assert_true(status == -ECONNRESET || status == -ESHUTDOWN);
    assert_int_equal(atomic_load(&proxy_sent(a.proxy, 2)->errors), status == -ECONNRESET);
    /* It comes back. */
    bed_sockets(BED_TCP, second);
    assert_int_equal(proxy_link_add(a.proxy, 2, 0, second[0], &e), 0);
    push(&a, 2, FCC_TRIGGER_FLAG | 6, 9);
    for (uint32_t kind = 0; kind != NET_FRAME_FLAG;) {
        struct net_frame f;
        assert_int_equal(recv(second[1], &f, sizeof(f), MSG_WAITALL), sizeof(f));
        kind = f.kind;
    }
    /* A node that there never was: said once. */
    push(&a, 40, FCC_TRIGGER_FLAG | 6, 9);
    push(&a, 40, FCC_TRIGGER_FLAG | 6, 9);
    push_end(&a, 2);
    WAIT_FOR(atomic_load(&a.done) == 2);
    assert_int_equal(atomic_load(&a.failures), 2);
    /* It ends in good order. */
    (void)close(second[1]);
    WAIT_FOR(atomic_load(&a.failures) == 3);
    assert_int_equal(atomic_load(&a.status[2]), -ESHUTDOWN);
    assert_int_equal(proxy_link_add(a.proxy, PROXY_NODES, 0, -1, &e), -EINVAL);
    assert_int_equal(proxy_receive(a.proxy, 1, 0, -1, &e), -EBADF);
    side_close(&a);
    side_close(&b);
}

/* What a node sent before it closed its connections comes before the news that it is gone; a hostile one is closed at once. */
static void incoming_ends(void **state)
{
    static struct side a;
    struct net_frame frames[3] = {0}, first;
    struct error e;
    int in[2], out[2];
    struct net_hello hello;

    (void)state;
    for (int is_hostile = 0; is_hostile < 2; is_hostile++) {
        side_open(&a, 0, 50, &BED_OPTIONS);
        for (unsigned n = 0; n < 3; n++)
            frames[n] = (struct net_frame){.magic = NET_FRAME_MAGIC,
                                           .version = NET_FRAME_VERSION,
                                           .kind = NET_FRAME_FLAG,
                                           .comm = COMM,
                                           .rank = 1,
                                           .region = is_hostile && n == 2 ? FLAGS_ALL : n,
                                           .offset = n + 10};
        bed_sockets(BED_TCP, in);
        bed_sockets(BED_TCP, out);
        assert_int_equal(proxy_receive(a.proxy, 1, 0, in[1], &e), 0);
        assert_int_equal(proxy_link_add(a.proxy, 1, 0, out[0], &e), 0);
        assert_int_equal(send(in[0], frames, sizeof(frames[0]), 0), sizeof(frames[0]));
        assert_int_equal(recv(out[1], &first, sizeof(first), MSG_WAITALL), sizeof(first));
        WAIT_FOR(atomic_load(&a.flags[1][0]) == 10);                                      /* it has taken both connections */
        assert_int_equal(recv(in[0], &hello, sizeof(hello), MSG_WAITALL), sizeof(hello)); /* unread, it makes an end a reset */
        assert_int_equal(send(in[0], frames + 1, 2 * sizeof(frames[0]), 0), 2 * sizeof(frames[0]));
        if (!is_hostile) {
            (void)close(out[1]);
            (void)close(in[0]);
        }
        WAIT_FOR(atomic_load(&a.failures) == 1);
        assert_int_equal(atomic_load(&a.flags[1][1]), 11);
        assert_int_equal(atomic_load(&a.flags[1][2]), is_hostile ? 0 : 12);
        assert_int_equal(atomic_load(&a.status[1]), is_hostile ? -EPROTO : -ESHUTDOWN);
        assert_int_equal(atomic_load(&proxy_received(a.proxy, 1)->errors), is_hostile);
        push(&a, 1, FCC_TRIGGER_FLAG | 1, 1);
        push_end(&a, 1);
        WAIT_FOR(atomic_load(&a.done) == 1);
        if (is_hostile) { /* what it could read from is closed too */
            unsigned char byte[256];
            ssize_t n;
            do
                n = recv(out[1], byte, sizeof(byte), 0);
            while (n > 0);
            assert_true(n == 0 || errno == ECONNRESET);
            (void)close(in[0]);
            (void)close(out[1]);
        }
        assert_int_equal(atomic_load(&a.failures), 1);
        side_close(&a);
    }
}

/* The end of the connection that is sent over, in order or by a reset, overtakes what the node has sent last: that is received all the same,
 * whatever is to be sent there meanwhile, and then the owner is told. */
static void end_overtakes(void **state)
{
    static struct side a;
    struct error e;
    int in[2], out[2];

    (void)state;
    for (int is_reset = 0; is_reset < 2; is_reset++) {
        struct linger now = {.l_onoff = 1};
        struct net_hello hello;
        side_open(&a, 0, 50, &BED_OPTIONS);
        bed_sockets(BED_TCP, in);
        bed_sockets(BED_TCP, out);
        assert_int_equal(proxy_receive(a.proxy, 2, 0, in[1], &e), 0);
        assert_int_equal(proxy_link_add(a.proxy, 2, 0, out[0], &e), 0);
        assert_true(flag_send(in[0], 0, 10));
        WAIT_FOR(atomic_load(&a.flags[2][0]) == 10);
        assert_int_equal(recv(in[0], &hello, sizeof(hello), MSG_WAITALL), sizeof(hello)); /* unread, it makes an end a reset */
        push(&a, 2, FCC_TRIGGER_FLAG | 1, 1);
        push_end(&a, 1);
        WAIT_FOR(atomic_load(&a.done) == 1); /* it has taken both connections */
        if (is_reset)
            assert_int_equal(setsockopt(out[1], SOL_SOCKET, SO_LINGER, &now, sizeof(now)), 0);
        else
            (void)shutdown(out[1], SHUT_WR);
        if (is_reset)
            (void)close(out[1]);
        for (uint32_t n = 1; n <= 100; n++) { /* turns, in one of which it has seen the end */
            push(&a, 2, FCC_TRIGGER_FLAG | 1, n);
            push_end(&a, n + 1);
            assert_true(flag_send(in[0], 1, n));
            WAIT_FOR(atomic_load(&a.flags[2][1]) == n && atomic_load(&a.done) == n + 1);
        }
        assert_int_equal(atomic_load(&a.failures), 0);
        (void)close(in[0]);
        WAIT_FOR(atomic_load(&a.failures) == 1);
        assert_int_equal(atomic_load(&a.status[2]), -ESHUTDOWN);
        push(&a, 2, FCC_TRIGGER_FLAG | 1, 1);
        push_end(&a, 102);
        WAIT_FOR(atomic_load(&a.done) == 102);
        assert_int_equal(atomic_load(&a.failures), 1);
        if (!is_reset)
            (void)close(out[1]);
        side_close(&a);
    }
}

/* A node that says nothing is given up; one whose proxy only has nothing to send is not. */
static void silent_node(void **state)
{
    static struct side a, b;
    struct net_options options = BED_OPTIONS;
    struct error e;
    int sockets[2];

    (void)state;
    options.beat_ms = 10;
    side_open(&a, 0, 0, &options);
    side_open(&b, 1, 0, &options);
    connect_sides(&b, &a, BED_TCP);
    WAIT_FOR(atomic_load(&proxy_received(a.proxy, 1)->bytes) >= 20 * sizeof(struct net_frame));
    assert_int_equal(atomic_load(&proxy_received(a.proxy, 1)->messages), 0);
    assert_int_equal(atomic_load(&a.failures), 0);
    side_close(&b);
    WAIT_FOR(atomic_load(&a.failures) == 1);
    assert_int_equal(atomic_load(&a.status[1]), -ESHUTDOWN);
    side_close(&a);

    options.silent_ms = 100;
    side_open(&a, 0, 0, &options);
    bed_sockets(BED_TCP, sockets);
    assert_int_equal(proxy_receive(a.proxy, 2, 0, sockets[1], &e), 0);
    WAIT_FOR(atomic_load(&a.failures) == 1);
    assert_int_equal(atomic_load(&a.status[2]), -ETIMEDOUT);
    (void)close(sockets[0]);
    side_close(&a);
}

/* A node that reads nothing fills its queue and holds up the FIFO; what is queued for others still goes out, and what comes
 * in is taken. Then the proxy is stopped with all that under way. */
static void stuck_node(void **state)
{
    static struct side a, b;
    struct net_options options = BED_OPTIONS;
    struct error e;
    int sockets[2];

    (void)state;
    options.queue = 8;
    options.buffer_bytes = 20000;
    side_open(&a, 0, 50, &options);
    side_open(&b, 1, 50, &options);
    connect_sides(&a, &b, BED_UNIX);
    connect_sides(&b, &a, BED_UNIX);
    bed_sockets(BED_UNIX, sockets);
    assert_int_equal(proxy_link_add(a.proxy, 2, 0, sockets[0], &e), 0);
    memset(a.shadow, 3, SLICES * SLICE_BYTES);
    for (uint32_t i = 0; i < 6; i++)
        push(&a, 1, FCC_TRIGGER_PUT | i, 1);
    for (uint32_t i = 0; i < 8; i++) /* the queue takes them all, the socket does not */
        push(&a, 2, FCC_TRIGGER_PUT | i, 1);
    push_end(&a, 1);
    push(&a, 1, FCC_TRIGGER_FLAG | 2, 1); /* when it is there, the end was taken too */
    WAIT_FOR(atomic_load(&b.flags[0][2]) == 1);
    assert_int_equal(atomic_load(&a.done), 0);
    for (int n = 0; n < 30; n++)
        push(&a, 2, FCC_TRIGGER_PUT | (n % SLICES), 1);
    for (uint32_t i = 0; i < 6 * SLICE_BYTES; i++)
        assert_int_equal(b.memory[i], 3);
    WAIT_FOR(atomic_load(&proxy_sent(a.proxy, 2)->full) > 0);
    for (uint32_t n = 1; n <= 50; n++) {
        push(&b, 0, FCC_TRIGGER_PUT | (n % SLICES), 1);
        push(&b, 0, FCC_TRIGGER_FLAG | 2, n);
    }
    WAIT_FOR(atomic_load(&a.flags[1][2]) == 50);
    assert_int_equal(atomic_load(&a.done), 0);
    assert_int_equal(atomic_load(&a.failures), 0);
    side_close(&a);
    (void)close(sockets[1]);
    side_close(&b);
}

/* A link is added and used while the proxy is busy with earlier triggers. */
static void late_link(void **state)
{
    static struct side a, b;

    (void)state;
    side_open(&a, 0, 50, &BED_OPTIONS);
    side_open(&b, 1, 50, &BED_OPTIONS);
    push(&a, 1, FCC_TRIGGER_FLAG | HOLD, 1);
    WAIT_FOR(atomic_load(&a.holds) == 1);
    connect_sides(&a, &b, BED_TCP);
    push(&a, 1, FCC_TRIGGER_FLAG | 1, 7);
    push_end(&a, 1);
    atomic_store(&a.holds, 2);
    WAIT_FOR(atomic_load(&a.done) == 1);
    assert_int_equal(atomic_load(&a.failures), 0);
    WAIT_FOR(atomic_load(&b.flags[0][1]) == 7);
    side_close(&a);
    side_close(&b);
}

static void dropped_triggers(void **state)
{
    static struct side a;

    (void)state;
    side_open(&a, 0, 50, &BED_OPTIONS);
    a.drop = true;
    for (uint32_t n = 1; n <= 1000; n++) {
        push(&a, 1, FCC_TRIGGER_PUT | 1, 1);
        push_end(&a, n);
    }
    WAIT_FOR(atomic_load_explicit(&a.done, memory_order_acquire) == 1000);
    assert_int_equal(a.resolved, 1000);
    assert_int_equal(atomic_load(&a.failures), 0);
    side_close(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(floods),           cmocka_unit_test(sleeps),      cmocka_unit_test(lost_node),
        cmocka_unit_test(incoming_ends),    cmocka_unit_test(silent_node), cmocka_unit_test(stuck_node),
        cmocka_unit_test(dropped_triggers), cmocka_unit_test(late_link),   cmocka_unit_test(end_overtakes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
