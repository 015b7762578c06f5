/* SPDX-License-Identifier: MIT
 *
 * test_net.c - links between nodes: what is written arrives where it should, in order, whatever pieces the sockets take.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/net/hello.h"
#include "tests/net/net_mix.h"

static void mixes(void **state)
{
    static const uint32_t buffers[] = {1, 20000, 0};

    (void)state;
    for (unsigned i = 0; i < BED_KINDS * 3 * 2; i++) {
        random_state = 1000 + i;
        (void)snprintf(case_text, sizeof(case_text), "kind %u, buffers of %u, seed %u", i % BED_KINDS,
                       buffers[i / BED_KINDS % 3], 1000 + i);
        random_mix(i % BED_KINDS, buffers[i / BED_KINDS % 3], i / 6 ? 4 : 256, buffers[i / BED_KINDS % 3] ? 60 : 300);
    }
}

/* What comes goes on to another place, and is there when its flag is raised. */
static void bounces(void **state)
{
    (void)state;
    bed_bounced = true;
    for (unsigned i = 0; i < BED_KINDS * 2; i++) {
        random_state = 3000 + i;
        (void)snprintf(case_text, sizeof(case_text), "bounce, kind %u, seed %u", i % BED_KINDS, 3000 + i);
        random_mix(i % BED_KINDS, 0, i / BED_KINDS ? 4 : 256, 200);
    }
    bed_bounced = false;
}

static void full_queue(void **state)
{
    struct bed *b = malloc(sizeof(*b));
    struct net_options options = BED_OPTIONS;

    (void)state;
    assert_non_null(b);
    options.queue = 8;
    bed_open(b, BED_UNIX, &options, NULL);
    for (int i = 0; i < 8; i++)
        assert_int_equal(net_flag(b->link, COMM, 3, 1, 1), 0);
    assert_int_equal(net_flag(b->link, COMM, 3, 1, 1), -EAGAIN);
    assert_int_equal(net_write(b->link, &(struct net_place){.comm = COMM, .rank = 3}, b, &(struct net_area){8, 8, 1}), -EAGAIN);
    assert_int_equal(net_write(b->link, &(struct net_place){.comm = COMM, .rank = 3}, b, &(struct net_area){8, 8, 0}),
                     0); /* nothing */
    bed_drain(b);
    assert_int_equal(b->raised, 8);
    assert_int_equal(net_flag(b->link, COMM, 3, 1, 1), 0);
    bed_drain(b);
    assert_int_equal(b->raised, 9);
    assert_int_equal(b->link->flushed, 9);
    assert_int_equal(net_write(b->link, &(struct net_place){.comm = COMM, .rank = 3}, b, &(struct net_area){8, 1ull << 63, 3}),
                     -EINVAL);
    assert_int_equal(net_flag(b->link, COMM, 3, 1, 1), -EINVAL); /* it stays broken */
    bed_close(b);
    free(b);
}

static void areas(void **state)
{
    uint64_t length = 0;
    static const struct {
        struct net_area area;
        uint64_t offset, bytes;
        int status;
        uint64_t length;
    } cases[] = {
        {{8, 16, 2}, 0, 24, 0, 16},
        {{8, 16, 2}, 1, 24, -ERANGE, 0},
        {{8, 16, 2}, 0, 23, -ERANGE, 0},
        {{8, 8, 3}, 0, 24, 0, 24},
        {{8, 7, 2}, 0, 1000, -EINVAL, 0},
        {{8, 0, 1}, 16, 24, 0, 8}, /* the stride of one row says nothing */
        {{8, UINT64_MAX, 1}, 16, 24, 0, 8},
        {{8, 0, 2}, 0, 1000, -EINVAL, 0},
        {{0, 8, 2}, 0, 1000, -EINVAL, 0},
        {{8, 8, 0}, 0, 1000, -EINVAL, 0},
        {{8, 8, 1}, UINT64_MAX, UINT64_MAX, -ERANGE, 0},
        {{8, 8, 1}, UINT64_MAX - 7, UINT64_MAX, -ERANGE, 0},
        {{8, 8, 1}, UINT64_MAX - 8, UINT64_MAX, 0, 8},
        {{UINT64_MAX, UINT64_MAX, 1}, 1, 1000, -ERANGE, 0},
        {{8, 1ull << 63, 3}, 0, UINT64_MAX, -ERANGE, 0},
        {{1ull << 32, 1ull << 32, UINT32_MAX}, 0, 1ull << 40, -ERANGE, 0},
        {{1, 1, UINT32_MAX}, 0, UINT32_MAX, 0, UINT32_MAX},
        {{UINT64_MAX - 10, UINT64_MAX - 10, 2}, 0, UINT64_MAX, -ERANGE, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        (void)snprintf(case_text, sizeof(case_text), "area %zu", i);
        EXPECT(net_area_check(&cases[i].area, cases[i].offset, cases[i].bytes, &length) == cases[i].status);
        EXPECT(cases[i].status || length == cases[i].length);
    }
}

/* The sending end finds that the other one is gone, or speaks. */
static void looks(void **state)
{
    struct net_options options = BED_OPTIONS;
    struct net_counts counts = {0};
    struct net_link *l;
    struct error e;
    int sockets[2];
    static const unsigned char bytes[sizeof(struct net_hello)] = {1};
    static const int wants[] = {-EPROTO, -ESHUTDOWN, -ECONNRESET, -EPROTONOSUPPORT, -EPROTO, -ESHUTDOWN, -EPROTO};
    const struct net_hello old = {
        .magic = htole32(NET_HELLO_MAGIC), .version = htole16(NET_HELLO_VERSION - 1), .transport = htole16(NET_TCP)};

    (void)state;
    for (int what = 0; what < 7; what++) {
        bed_sockets(BED_TCP, sockets);
        assert_int_equal(net_tcp.link_open(sockets[0], &options, &counts, &l, &e), 0);
        assert_int_equal(net_tcp.look(l), 0);
        if (what < 4) /* 3: it takes another transport; 4, 5: it says nothing that makes sense, or nothing at all */
            assert_int_equal(net_hello_send(sockets[1], what == 3 ? NET_VERBS : NET_TCP, NULL, &e), 0);
        if (what == 4)
            assert_int_equal(send(sockets[1], bytes, sizeof(bytes), 0), sizeof(bytes));
        if (what == 6) /* another version, of which no more may come */
            assert_int_equal(send(sockets[1], &old, NET_HELLO_HEAD, 0), NET_HELLO_HEAD);
        if (what == 0)
            assert_int_equal(send(sockets[1], "x", 1, 0), 1);
        if (what == 2)
            assert_int_equal(net_flag(l, 1, 1, 1, 1), 0);
        (void)shutdown(sockets[1], SHUT_WR);
        struct pollfd p = {.fd = l->fd, .events = POLLIN};
        assert_int_equal(poll(&p, 1, -1), 1);
        assert_int_equal(net_tcp.look(l), wants[what]);
        if (what == 3)
            assert_non_null(strstr(l->error.text, "the other end takes verbs and this one sends over tcp: TRANSPORT"));
        if (what == 6)
            assert_string_equal(l->error.text, "the other end is of another version of fccd");
        assert_int_equal(net_progress(l, 0), l->error.status);
        (void)close(sockets[1]);
        net_tcp.link_close(l);
    }
}

/* Time is what the caller says it is. */
static void signs_of_life(void **state)
{
    struct bed *b = malloc(sizeof(*b));
    const uint64_t ms = 1000000;
    struct net_options options = BED_OPTIONS;
    struct net_frame f;

    (void)state;
    assert_non_null(b);
    options.silent_ms = NET_SILENT_MS;
    bed_open(b, BED_UNIX, &options, NULL);
    uint64_t now = clock_ns(), begin = now;
    assert_int_equal(net_progress(b->link, now), 0); /* the first one at once */
    assert_int_equal(atomic_load(&b->sent.bytes), sizeof(f));
    assert_int_equal(b->link->due_ns, now + NET_BEAT_MS * ms);
    assert_int_equal(net_progress(b->link, now + NET_BEAT_MS * ms - 1), 0);
    assert_int_equal(atomic_load(&b->sent.bytes), sizeof(f));
    for (int n = 2; n < 12; n++) { /* 5 s of nothing but signs of life */
        now += NET_BEAT_MS * ms;
        assert_int_equal(net_progress(b->link, now), 0);
        assert_int_equal(atomic_load(&b->sent.bytes), n * sizeof(f));
        assert_int_equal(net_receive(b->receiver, now), 0);
        assert_int_equal(b->receiver->due_ns, now + NET_SILENT_MS / NET_LOOKS * ms);
    }
    assert_true(now - begin >= 5000 * ms);
    assert_int_equal(atomic_load(&b->received.messages), 0);
    /* Whatever is sent is a sign of life. */
    assert_int_equal(net_flag(b->link, COMM, 3, 1, 1), 0);
    now += 100 * ms;
    assert_int_equal(net_progress(b->link, now), 0);
    assert_int_equal(b->link->due_ns, now + NET_BEAT_MS * ms);
    assert_int_equal(net_receive(b->receiver, now), 0);
    assert_int_equal(net_receive(b->receiver, now + NET_SILENT_MS * ms), 0);
    /* A process that was stopped reads first what came meanwhile. */
    assert_int_equal(net_flag(b->link, COMM, 3, 1, 1), 0);
    assert_int_equal(net_progress(b->link, now), 0);
    now += 10000 * ms;
    assert_int_equal(net_receive(b->receiver, now), 0);
    assert_int_equal(b->raised, 2);
    /* Nothing has come meanwhile: it was not there to hear it. However long, that is one look, and looks in between are none. */
    static const unsigned away_ms[] = {NET_SILENT_MS + 100, 10000};
    for (size_t i = 0; i < sizeof(away_ms) / sizeof(away_ms[0]); i++) {
        assert_int_equal(net_flag(b->link, COMM, 3, 1, i + 2), 0);
        assert_int_equal(net_progress(b->link, now), 0);
        assert_int_equal(net_receive(b->receiver, now), 0);
        assert_int_equal(b->raised, i + 3);
        now += away_ms[i] * ms;
        for (int n = 0; n < 100; n++)
            assert_int_equal(net_receive(b->receiver, now + (unsigned)n), 0);
    }
    for (unsigned look = 2; look < NET_LOOKS; look++) {
        now = b->receiver->due_ns;
        assert_int_equal(net_receive(b->receiver, now), 0);
        assert_int_equal(b->receiver->due_ns, now + NET_SILENT_MS / NET_LOOKS * ms);
    }
    assert_int_equal(net_receive(b->receiver, b->receiver->due_ns), -ETIMEDOUT);
    assert_non_null(strstr(b->receiver->error.text, "for 2500 ms"));
    bed_close(b);
    free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(areas), cmocka_unit_test(mixes),         cmocka_unit_test(full_queue),
        cmocka_unit_test(looks), cmocka_unit_test(signs_of_life), cmocka_unit_test(bounces),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
