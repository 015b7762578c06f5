/* SPDX-License-Identifier: MIT
 *
 * proxy_bed.h - nodes in one process: each a proxy with an owner that remembers what it was told. Include after cmocka.h.
 */
#ifndef FCC_TEST_PROXY_BED_H
#define FCC_TEST_PROXY_BED_H

#include <errno.h>
#include <stdlib.h>

#include "daemon/net/frame.h"
#include "daemon/net/proxy.h"
#include "daemon/net/rails.h"
#include "tests/net/net_sockets.h"

enum {
    COMM = 5,
    NODES = 3,
    SLICES = 64,
    SLICE_BYTES = 20000,
    FLAGS = 8,
    FLAGS_ALL = FLAGS + NODES * DONE_OF_NODE,
    HOLD = 1000
};

/* A node: its proxy, a region of which each slice of each other node has its place, and what its owner was told. */
struct side {
    struct proxy *proxy;
    struct net_regions *regions;
    unsigned char *memory; /* [NODES][SLICES][SLICE_BYTES] */
    unsigned char *shadow; /* [SLICES][SLICE_BYTES]: what is sent, to every node alike */
    uint32_t index;
    uint32_t rows;  /* of a slice; 1, or many short ones with gaps */
    uint32_t rails; /* what a trigger's rank sends takes the rail rank % rails */
    bool drop;
    bool slow;              /* raises flags slowly */
    _Atomic uint32_t holds; /* resolve() of HOLD: sets 1, waits for 2 */
    unsigned resolved;
    _Atomic uint32_t done, failures;
    _Atomic uint64_t flags[NODES][FLAGS];
    uint64_t told[NODES][NET_RAILS_MAX]; /* its proxy thread's */
    _Atomic uint64_t turns[NODES];       /* of another node: flags behind FLAGS are done_number()s */
    _Atomic int status[PROXY_NODES];     /* of failed() */
    _Atomic uint32_t wrong;
};

static inline struct net_area slice_area(const struct side *s)
{
    return s->rows == 1 ? (struct net_area){SLICE_BYTES, SLICE_BYTES, 1}
                        : (struct net_area){SLICE_BYTES / 2 / s->rows, SLICE_BYTES / s->rows, s->rows};
}

static inline bool side_resolve(void *ctx, const struct fcc_trigger *t, struct proxy_send *out)
{
    struct side *s = ctx;
    uint32_t number = t->what & FCC_TRIGGER_NUMBER;

    s->resolved++;
    if (number == HOLD) {
        atomic_store(&s->holds, 1);
        while (atomic_load(&s->holds) != 2)
            (void)usleep(20);
        return false;
    }
    if (s->drop)
        return false;
    out->node = t->dst;
    out->rail = t->rank % s->rails;
    out->to =
        (struct net_place){.comm = COMM, .rank = s->index, .region = NET_STAGING, .offset = (uint64_t)number * SLICE_BYTES};
    if ((t->what & FCC_TRIGGER_KIND) == FCC_TRIGGER_PUT) {
        out->from = s->shadow + (size_t)number * SLICE_BYTES;
        out->area = slice_area(s);
    } else {
        out->flag = number;
        out->epoch = t->epoch;
    }
    return true;
}

static inline void side_done(void *ctx, uint32_t launch)
{
    struct side *s = ctx;

    if (launch != atomic_load(&s->done) + 1)
        atomic_fetch_add(&s->wrong, 1);
    atomic_store_explicit(&s->done, launch, memory_order_release);
}

static inline void side_failed(void *ctx, uint32_t node, const struct error *e)
{
    struct side *s = ctx;

    if (!e->status || !e->text[0])
        atomic_fetch_add(&s->wrong, 1);
    atomic_store(&s->status[node], e->status);
    atomic_fetch_add(&s->failures, 1);
}

static inline int side_raise(void *ctx, uint64_t comm, uint32_t rank, uint32_t flag, uint64_t epoch)
{
    struct side *s = ctx;

    if (comm != COMM || rank >= NODES)
        return -ENOENT;
    if (flag >= FLAGS) {
        uint32_t node = done_node(flag - FLAGS);
        if (done_by_all(s->told[node], flag - FLAGS, epoch))
            atomic_store_explicit(&s->turns[node], epoch, memory_order_release);
        return 0;
    }
    if (s->slow)
        (void)usleep(200);
    atomic_store_explicit(&s->flags[rank][flag], epoch, memory_order_release);
    return 0;
}

/* On node A, what comes from node B is rank B's: a place of its own. */
static inline void side_open(struct side *s, uint32_t index, uint32_t spin_us, const struct net_options *net)
{
    struct proxy_owner owner = {
        .resolve = side_resolve, .done = side_done, .failed = side_failed, .raise = side_raise, .ctx = s};
    struct error e;

    memset(s, 0, sizeof(*s));
    s->index = index;
    s->rows = s->rails = 1;
    s->memory = calloc(NODES * SLICES, SLICE_BYTES);
    s->shadow = calloc(SLICES, SLICE_BYTES);
    assert_true(s->memory && s->shadow);
    assert_int_equal(net_regions_open(&s->regions, &e), 0);
    for (uint32_t n = 0; n < NODES; n++) {
        assert_int_equal(net_region_add(s->regions, COMM, n, NET_STAGING, s->memory + (size_t)n * SLICES * SLICE_BYTES,
                                        SLICES * SLICE_BYTES, &e),
                         0);
        assert_int_equal(net_region_add(s->regions, COMM, n, NET_FLAGS, NULL, FLAGS_ALL, &e), 0);
    }
    struct proxy_options options = {
        .net_ops = &net_tcp, .net = *net, .regions = s->regions, .capacity = 64, .producers = 4, .spin_us = spin_us};
    assert_int_equal(proxy_start(&owner, &options, &s->proxy, &e), 0);
}

static inline void side_close(struct side *s)
{
    proxy_stop(s->proxy);
    proxy_free(s->proxy);
    net_regions_close(s->regions);
    free(s->memory);
    free(s->shadow);
    assert_int_equal(atomic_load(&s->wrong), 0);
}

static inline void connect_rail(struct side *from, struct side *to, uint32_t rail, enum bed_kind kind)
{
    struct error e;
    int sockets[2];

    bed_sockets(kind, sockets);
    assert_int_equal(proxy_link_add(from->proxy, to->index, rail, sockets[0], &e), 0);
    assert_int_equal(proxy_receive(to->proxy, from->index, rail, sockets[1], &e), 0);
}

static inline void connect_sides(struct side *from, struct side *to, enum bed_kind kind)
{
    connect_rail(from, to, 0, kind);
}

static inline void push_of(struct side *s, uint32_t rank, uint32_t dst, uint32_t what, uint32_t epoch)
{
    assert_true(fifo_push(proxy_fifo(s->proxy), (struct fcc_trigger){1, (uint16_t)rank, (uint16_t)dst, what, epoch}, NULL));
}

static inline void push(struct side *s, uint32_t dst, uint32_t what, uint32_t epoch)
{
    push_of(s, 0, dst, what, epoch);
}

static inline void push_end(struct side *s, uint32_t launch)
{
    assert_true(fifo_push(proxy_fifo(s->proxy), (struct fcc_trigger){.launch = launch, .what = FCC_TRIGGER_END}, NULL));
}

/* ---- the other end of a TCP link, by hand: node 2's ---- */

/* False: the other end has gone. */
static inline bool flag_send(int sock, uint32_t flag, uint64_t epoch)
{
    struct net_frame f = (struct net_frame){.magic = NET_FRAME_MAGIC,
                                            .version = NET_FRAME_VERSION,
                                            .kind = NET_FRAME_FLAG,
                                            .comm = COMM,
                                            .rank = 2,
                                            .region = flag,
                                            .offset = epoch};
    return send(sock, &f, sizeof(f), MSG_NOSIGNAL) == sizeof(f);
}

/* Until the other end is closed; drops what came before. */
static inline void expect_closed(int sock)
{
    unsigned char bytes[4096];
    ssize_t n;

    do
        n = recv(sock, bytes, sizeof(bytes), 0);
    while (n > 0);
    assert_true(n == 0 || errno == ECONNRESET);
    (void)close(sock);
}

#define WAIT_FOR(condition)                                                                                                    \
    while (!(condition))                                                                                                       \
    (void)usleep(50)

#endif
