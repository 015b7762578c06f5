/* SPDX-License-Identifier: MIT
 *
 * test_net_refused.c - links between nodes: what a hostile sender says is refused, and nothing is written outside of the regions
 * that are known, or into one that was removed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <poll.h>
#include <pthread.h>

#include "tests/net/net_bed.h"

static struct net_frame frame_put(uint32_t region, uint64_t offset, uint64_t row_bytes, uint64_t stride, uint32_t rows)
{
    return (struct net_frame){.magic = NET_FRAME_MAGIC,
                              .version = NET_FRAME_VERSION,
                              .kind = NET_FRAME_PUT,
                              .comm = COMM,
                              .rank = 3,
                              .region = region,
                              .offset = offset,
                              .row_bytes = row_bytes,
                              .stride = stride,
                              .rows = rows};
}

static struct net_frame frame_flag(uint32_t flag, uint64_t epoch)
{
    struct net_frame f = frame_put(flag, epoch, 0, 0, 0);

    f.kind = NET_FRAME_FLAG;
    return f;
}

static struct net_frame frame_signal(uint32_t region, uint64_t offset)
{
    struct net_frame f = frame_put(region, offset, 0, 1, 0);

    f.kind = NET_FRAME_SIGNAL;
    return f;
}

static void raw_send(int sock, const void *bytes, size_t n)
{
    assert_int_equal(send(sock, bytes, n, MSG_NOSIGNAL), n);
}

static void raw_frame(int sock, struct net_frame f)
{
    raw_send(sock, &f, sizeof(f));
}

/* Receive until there is nothing more, or the link is broken. */
static int bed_receive(struct bed *b)
{
    int status;

    while ((status = net_receive(b->receiver, clock_ns())) > 0) {
    }
    return status;
}

static bool bed_is_untouched(const struct bed *b)
{
    for (int r = 0; r < REGIONS; r++) {
        for (size_t i = 0; i < REGION_BYTES + 2 * GUARD; i++) {
            if (b->memory[r][i])
                return false;
        }
    }
    return true;
}

/* The frame, with payload behind it, breaks the link with that word in its reason, and nothing is written. */
static void refused(struct net_frame f, const char *says)
{
    struct bed *b = malloc(sizeof(*b));
    unsigned char payload[8192];
    int raw;

    assert_non_null(b);
    memset(payload, 0xab, sizeof(payload));
    bed_open(b, BED_UNIX, &BED_OPTIONS, &raw);
    raw_frame(raw, f);
    raw_send(raw, payload, sizeof(payload));
    (void)snprintf(case_text, sizeof(case_text), "should say \"%s\"", says);
    EXPECT(bed_receive(b) == -EPROTO);
    if (!strstr(b->receiver->error.text, says))
        fail_msg("\"%s\" does not say \"%s\"", b->receiver->error.text, says);
    EXPECT(bed_is_untouched(b));
    EXPECT(!b->raised);
    EXPECT(bed_receive(b) == -EPROTO);
    (void)close(raw);
    bed_close(b);
    free(b);
}

static void hostile(void **state)
{
    struct net_frame f;

    (void)state;
    refused(frame_put(REGIONS, 0, 64, 64, 1), "not known");
    refused(frame_put(NET_FLAGS, 0, 8, 8, 1), "over flags");
    refused(frame_put(0, REGION_BYTES - 63, 64, 64, 1), "past the end");
    refused(frame_put(0, UINT64_MAX - 31, 64, 64, 1), "past the end");
    refused(frame_put(0, 0, UINT64_MAX, UINT64_MAX, UINT32_MAX), "past the end");
    refused(frame_put(0, 0, 64, 1ull << 61, 9), "past the end");
    refused(frame_put(0, 0, 64, 63, 2), "past the end");
    refused(frame_put(0, 0, 0, 0, 0), "past the end");
    refused(frame_put(0, 0, 1ull << 32, 1ull << 32, 1u << 31), "past the end");
    refused(frame_flag(FLAGS, 1), "does not exist");
    refused(frame_flag(UINT32_MAX, 1), "does not exist");
    f = frame_flag(0, 1);
    f.rank = 4;
    refused(f, "a rank that is not known");
    f = frame_flag(0, 1);
    f.rows = 1;
    refused(f, "with an area");
    refused(frame_signal(REGIONS, 0), "not known");
    refused(frame_signal(NET_FLAGS, 0), "not known");
    refused(frame_signal(0, 4), "not aligned");
    refused(frame_signal(0, REGION_BYTES), "past the end");
    refused(frame_signal(0, UINT64_MAX - 7), "past the end");
    f = frame_signal(0, 0);
    f.rows = 1;
    refused(f, "with an area");
    f = frame_put(0, 0, 64, 64, 1);
    f.comm++;
    refused(f, "not known");
    f = frame_put(0, 0, 64, 64, 1);
    f.magic ^= 1;
    refused(f, "not a frame");
    f = frame_put(0, 0, 64, 64, 1);
    f.version++;
    refused(f, "another version");
    f = frame_put(0, 0, 64, 64, 1);
    f.kind = 7;
    refused(f, "unknown kind");
    f.kind = NET_FRAME_MESSAGE;
    refused(f, "a message with a place");
    refused(
        (struct net_frame){.magic = NET_FRAME_MAGIC, .version = NET_FRAME_VERSION, .kind = NET_FRAME_MESSAGE, .row_bytes = 8},
        "not expected");
    f.kind = NET_FRAME_EARLY;
    refused(f, "early frames without a length, or not expected");
    refused(frame_put(NET_EARLY, 0, 8, 8, 1), "a write over early frames");
    refused(frame_signal(NET_EARLY, 0), "not known");
    f = frame_put(0, 0, 64, 64, 1);
    f.zero = 1;
    refused(f, "reserved field is not 0");
}

/* Streams of frames with bits turned and fields replaced: whatever comes of it, the guards and the heap stay whole. */
static void fuzz(void **state)
{
    static const uint64_t values[] = {0, 1, 63, 64, 4096, REGION_BYTES, 1ull << 31, 1ull << 32, 1ull << 63, UINT64_MAX};
    unsigned refusals = 0, taken = 0;

    (void)state;
    random_state = 7;
    for (int round = 0; round < 1500; round++) {
        struct bed *b = malloc(sizeof(*b));
        unsigned char payload[2048];
        int raw;
        assert_non_null(b);
        bed_open(b, BED_UNIX, &BED_OPTIONS, &raw);
        (void)snprintf(case_text, sizeof(case_text), "round %d", round);
        for (int n = 0; n < 6; n++) {
            uint64_t bytes = 1 + (uint64_t)random_size(sizeof(payload) - 1);
            struct net_frame f = random_below(3)
                                     ? frame_put((uint32_t)random_below(REGIONS), (uint64_t)random_below(1000), bytes, bytes, 1)
                                     : frame_flag((uint32_t)random_below(FLAGS), random_u32());
            unsigned char *wire = (unsigned char *)&f;
            uint64_t value = values[random_below(10)];
            switch (random_below(4)) {
            case 0:
                wire[random_below(sizeof(f))] ^= (unsigned char)(1u << random_below(8));
                break;
            case 1: /* one of its 64-bit words */
                memcpy(wire + 8 * (1 + random_below(6)), &value, 8);
                break;
            default:
                break;
            }
            memset(payload, n + 1, sizeof(payload));
            raw_send(raw, wire, sizeof(f));
            if (f.kind == htole16(NET_FRAME_PUT))
                raw_send(raw, payload, bytes);
        }
        int status = bed_receive(b);
        EXPECT(status == 0 || status == -EPROTO);
        refusals += status != 0;
        taken += atomic_load(&b->received.messages) > 0;
        for (int r = 0; r < REGIONS; r++) {
            static const unsigned char zeros[GUARD];
            EXPECT(!memcmp(b->memory[r], zeros, GUARD) && !memcmp(b->memory[r] + GUARD + REGION_BYTES, zeros, GUARD));
        }
        (void)close(raw);
        bed_close(b);
        free(b);
    }
    assert_true(refusals > 300 && taken > 300);
}

/* ---- ends ---- */

static void closes(void **state)
{
    static const struct {
        size_t bytes; /* of a frame with 100 bytes of payload */
        int status;
        const char *says;
    } cases[] = {
        {0, -ESHUTDOWN, "closed"},   {10, -ECONNRESET, "middle of a frame"},  {56, -ECONNRESET, "middle of a frame"},
        {156, -ESHUTDOWN, "closed"}, {100, -ECONNRESET, "middle of a frame"},
    };
    unsigned char bytes[156];

    (void)state;
    for (unsigned i = 0; i < 5 * BED_KINDS; i++) {
        struct bed *b = malloc(sizeof(*b));
        struct net_frame f = frame_put(0, 0, 100, 100, 1);
        int raw, status;
        assert_non_null(b);
        memset(bytes, 1, sizeof(bytes));
        memcpy(bytes, &f, sizeof(f));
        bed_open(b, i / 5, &BED_OPTIONS, &raw);
        raw_send(raw, bytes, cases[i % 5].bytes);
        (void)close(raw);
        while ((status = bed_receive(b)) == 0) {
            struct pollfd p = {.fd = b->receiver->fd, .events = POLLIN};
            (void)poll(&p, 1, -1);
        }
        (void)snprintf(case_text, sizeof(case_text), "%zu bytes, then closed: %.100s", cases[i % 5].bytes,
                       b->receiver->error.text);
        EXPECT(status == cases[i % 5].status);
        EXPECT(strstr(b->receiver->error.text, cases[i % 5].says));
        bed_close(b);
        free(b);
    }
}

/* ---- regions ---- */

static void regions_end(void **state)
{
    unsigned char payload[20000];
    struct error e;
    int raw;

    (void)state;
    memset(payload, 5, sizeof(payload));
    for (int what = 0; what < 6; what++) {
        bool is_long = what % 2, stays;
        struct bed *b = malloc(sizeof(*b));
        assert_non_null(b);
        bed_open(b, BED_UNIX, &BED_OPTIONS, &raw);
        raw_frame(raw, is_long ? frame_put(1, 0, 20000, 20000, 1) : frame_put(1, 0, 100, 150, 200));
        raw_send(raw, payload, 6000);
        assert_int_equal(bed_receive(b), 0);
        assert_int_equal(b->memory[1][GUARD], 5);
        stays = what / 2 == 2;
        if (stays)
            net_comm_end(b->regions, COMM);
        else
            net_region_remove(b->regions, COMM, 3, 1);
        if (what / 2 == 1) /* another one of the same name */
            assert_int_equal(net_region_add(b->regions, COMM, 3, 1, b->memory[1] + GUARD, REGION_BYTES, &e), 0);
        memset(b->memory[1], 0, REGION_BYTES + 2 * GUARD);
        raw_send(raw, payload, 14000);
        (void)snprintf(case_text, sizeof(case_text), "case %d", what);
        EXPECT(bed_receive(b) == (stays ? 0 : -EPROTO));
        EXPECT(bed_is_untouched(b));
        if (stays) { /* all of it is dropped, and what follows of others arrives */
            raw_frame(raw, frame_put(2, 0, 20000, 20000, 1));
            raw_send(raw, payload, 20000);
            raw_frame(raw, frame_flag(1, 1));
            assert_int_equal(net_region_add(b->regions, COMM + 1, 3, 0, b->memory[3] + GUARD, 8, &e), 0);
            assert_int_equal(bed_receive(b), 0);
            EXPECT(bed_is_untouched(b) && !b->raised);
            struct net_frame f = frame_put(0, 0, 8, 8, 1);
            f.comm++;
            raw_frame(raw, f);
            raw_send(raw, payload, 8);
            assert_int_equal(bed_receive(b), 0);
            EXPECT(b->memory[3][GUARD + 7] == 5);
        }
        (void)close(raw);
        bed_close(b);
        free(b);
    }
}

/* Random names, against a table. */
/* What comes for a retired region is dropped, also in the middle of a frame; the link goes on, and others are as they were. */
static void retired(void **state)
{
    struct bed *b = malloc(sizeof(*b));
    unsigned char payload[8192];
    int raw;

    (void)state;
    assert_non_null(b);
    memset(payload, 0xab, sizeof(payload));
    bed_open(b, BED_UNIX, &BED_OPTIONS, &raw);
    raw_frame(raw, frame_put(1, 0, 8192, 8192, 1));
    raw_send(raw, payload, 4096);
    assert_int_equal(bed_receive(b), 0);
    assert_int_equal(b->memory[1][GUARD], 0xab);
    net_region_retire(b->regions, COMM, 3, 1);
    memset(b->memory[1], 0, REGION_BYTES + 2 * GUARD);
    raw_send(raw, payload, 4096);
    raw_frame(raw, frame_put(1, 0, 64, 64, 1));
    raw_send(raw, payload, 64);
    raw_frame(raw, frame_signal(1, 8));
    raw_frame(raw, frame_flag(0, 1));
    assert_int_equal(bed_receive(b), 0);
    assert_int_equal(b->raised, 1);
    assert_true(bed_is_untouched(b));
    raw_frame(raw, frame_signal(2, 8));
    assert_int_equal(bed_receive(b), 0);
    assert_int_equal(b->memory[2][GUARD + 8], 1);
    raw_frame(raw, frame_signal(REGIONS, 8)); /* never known */
    assert_int_equal(bed_receive(b), -EPROTO);
    (void)close(raw);
    bed_close(b);
    free(b);
}

static void registry(void **state)
{
    struct net_regions *regions;
    struct net_held held;
    struct error e;
    enum { COMMS = 40, RANKS = 5, PER_RANK = 7 };
    static unsigned char memory[COMMS * RANKS * PER_RANK];
    static bool is_in[COMMS * RANKS * PER_RANK], is_over[COMMS];

    (void)state;
    random_state = 3;
    assert_int_equal(net_regions_open(&regions, &e), 0);
    for (int n = 0; n < 20000; n++) {
        uint32_t i = (uint32_t)random_below(sizeof(memory)), comm = i / RANKS / PER_RANK, rank = i / PER_RANK % RANKS,
                 region = i % PER_RANK;
        (void)snprintf(case_text, sizeof(case_text), "step %d", n);
        if (random_below(3)) {
            EXPECT(net_region_add(regions, comm, rank, region, &memory[i], i, &e) == (is_in[i]        ? -EEXIST
                                                                                      : is_over[comm] ? -ECANCELED
                                                                                                      : 0));
            is_in[i] = !is_over[comm];
        } else if (random_below(250)) {
            net_region_remove(regions, comm, rank, region);
            is_in[i] = false;
        } else {
            net_comm_end(regions, comm);
            is_over[comm] = true;
            memset(is_in + comm * RANKS * PER_RANK, 0, RANKS * PER_RANK);
            EXPECT(net_regions_hold(regions, comm, rank, region, &held) == -ECANCELED);
        }
        i = (uint32_t)random_below(sizeof(memory));
        int status = net_regions_hold(regions, i / RANKS / PER_RANK, i / PER_RANK % RANKS, i % PER_RANK, &held);
        EXPECT(status == (is_in[i] ? 0 : is_over[i / RANKS / PER_RANK] ? -ECANCELED : -ENOENT));
        if (!status) {
            EXPECT(held.base == &memory[i] && held.bytes == i && held.serial);
            net_regions_release(regions);
        }
    }
    for (uint64_t comm = 1000; comm < 1000 + 3 * NET_ENDED_KEPT; comm++) {
        net_comm_end(regions, comm);
        assert_int_equal(net_regions_hold(regions, comm, 0, 0, &held), -ECANCELED);
    }
    assert_int_equal(net_regions_hold(regions, 1000, 0, 0, &held), -ENOENT);
    assert_int_equal(net_regions_hold(regions, 1000 + 2 * NET_ENDED_KEPT, 0, 0, &held), -ECANCELED);
    net_regions_close(regions);
}

struct removing {
    struct bed *bed;
    _Atomic uint32_t stop;
    _Atomic uint64_t comm; /* that is sent to, even when it has ended */
    _Atomic uint64_t raised;
    unsigned char *_Atomic flags;
};

static void *removing_main(void *arg)
{
    struct removing *r = arg;
    struct pollfd more = {.fd = r->bed->receiver->fd, .events = POLLIN};

    while (!atomic_load(&r->stop)) {
        int status = net_receive(r->bed->receiver, clock_ns());
        assert_true(status >= 0);
        if (status == 0) /* who waits leaves the cores to the others: there may be fewer than there are threads */
            (void)poll(&more, 1, 10);
    }
    return NULL;
}

static void *removing_send(void *arg)
{
    struct removing *r = arg;
    static unsigned char payload[100000];
    struct net_link *l = r->bed->link;
    struct pollfd room = {.fd = l->fd, .events = POLLOUT};
    unsigned n = 0;

    while (!atomic_load(&r->stop)) {
        struct net_place to = {.comm = atomic_load(&r->comm)};
        struct net_area area = n++ % 2 ? (struct net_area){100000, 100000, 1} : (struct net_area){10, 20, 5000};
        if (net_write(l, &to, payload, &area) == -EAGAIN || net_flag(l, to.comm, 0, 3, n) == -EAGAIN)
            (void)net_progress(l, clock_ns());
        if (l->is_blocked && poll(&room, 1, 10) > 0)
            l->is_blocked = false;
    }
    return NULL;
}

/* The owner's memory of flags goes with the registration. */
static int removing_raise(void *ctx, uint64_t comm, uint32_t rank, uint32_t flag, uint64_t epoch)
{
    struct removing *r = ctx;

    (void)comm;
    (void)rank;
    r->flags[flag] = (unsigned char)epoch;
    atomic_fetch_add(&r->raised, 1);
    return 0;
}

/* Memory is freed right after its removal while a receiver runs: no write may come after that (the sanitizers tell). */
static void removed_while_received(void **state)
{
    struct bed *b = malloc(sizeof(*b));
    struct removing r = {.bed = b};
    pthread_t receiver, sender;
    struct error e;
    struct net_options options = BED_OPTIONS;
    uint64_t seen = 0;

    (void)state;
    assert_non_null(b);
    options.queue = 8; /* what is queued for the memory before comes first */
    bed_open(b, BED_UNIX, &options, NULL);
    b->sink.raise = removing_raise;
    b->sink.ctx = &r;
    net_comm_end(b->regions, 0);
    assert_int_equal(pthread_create(&receiver, NULL, removing_main, &r), 0);
    assert_int_equal(pthread_create(&sender, NULL, removing_send, &r), 0);
    for (uint64_t comm = 1000; comm < 1300; comm++) {
        unsigned char *memory = malloc(100000), *flags = malloc(FLAGS);
        assert_true(memory && flags);
        r.flags = flags;
        assert_int_equal(net_region_add(b->regions, comm, 0, NET_FLAGS, NULL, FLAGS, &e), 0);
        assert_int_equal(net_region_add(b->regions, comm, 0, 0, memory, 100000, &e), 0);
        atomic_store(&r.comm, comm);
        while (atomic_load(&r.raised) < seen + 3)
            (void)usleep(100);
        net_comm_end(b->regions, comm);
        seen = atomic_load(&r.raised);
        memset(memory, 1, 100000);
        memset(flags, 1, FLAGS);
        free(memory);
        free(flags);
        assert_int_equal(atomic_load(&r.raised), seen);
    }
    atomic_store(&r.stop, 1);
    assert_int_equal(pthread_join(receiver, NULL), 0);
    assert_int_equal(pthread_join(sender, NULL), 0);
    bed_close(b);
    free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hostile),
        cmocka_unit_test(fuzz),
        cmocka_unit_test(closes),
        cmocka_unit_test(regions_end),
        cmocka_unit_test(registry),
        cmocka_unit_test(retired),
        cmocka_unit_test(removed_while_received),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
