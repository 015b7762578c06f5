/* SPDX-License-Identifier: MIT
 *
 * test_net_verbs.c - links over RDMA verbs, on a device of this machine, with itself: the mixes that tcp passes too; then keys, who may
 * connect, and how links are closed. Without a device it says so.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/verbs/verbs_bed.h"

/* ---- tests ---- */

static void mixes(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        random_state = 2000 + i;
        (void)snprintf(case_text, sizeof(case_text), "seed %u", 2000 + i);
        random_mix(BED_VERBS, 0, i % 2 ? 4 : 256, i % 2 ? 40 : 80);
    }
}

/* What comes goes on to another place, and is there when its flag is raised. */
static void bounces(void **state)
{
    (void)state;
    bed_bounced = true;
    for (unsigned i = 0; i < 4; i++) {
        random_state = 4000 + i;
        (void)snprintf(case_text, sizeof(case_text), "bounce, seed %u", 4000 + i);
        random_mix(BED_VERBS, 0, i % 2 ? 4 : 256, i % 2 ? 40 : 80);
    }
    bed_bounced = false;
}

/* More than the memory for copies, the list and the queue of requests hold. */
static void large(void **state)
{
    static struct bed b;
    const uint64_t bytes = 10u << 20;
    unsigned char *from = malloc(bytes), *to = calloc(1, bytes);
    struct error e;

    (void)state;
    assert_true(from && to);
    random_state = 5;
    for (uint64_t i = 0; i < bytes; i += 4)
        memcpy(from + i, &(uint32_t){random_u32()}, 4);
    bed_open(&b, BED_VERBS, &BED_OPTIONS, NULL);
    assert_int_equal(net_region_add(b.regions, COMM, 3, REGIONS, to, bytes, &e), 0);
    struct net_place place = {.comm = COMM, .rank = 3, .region = REGIONS};
    assert_int_equal(net_write(b.link, &place, from, &(struct net_area){bytes / 2, bytes / 2, 1}), 0);
    place.offset = bytes / 2; /* and many rows */
    assert_int_equal(net_write(b.link, &place, from + bytes / 2, &(struct net_area){1000, 1024, (uint32_t)(bytes / 2 / 1024)}),
                     0);
    assert_int_equal(net_flag(b.link, COMM, 3, 1, 1), 0);
    while (!b.raised)
        (void)bed_turn(&b);
    assert_memory_equal(from, to, bytes / 2);
    for (uint64_t row = bytes / 2; row < bytes; row += 1024) {
        assert_memory_equal(from + row, to + row, 1000);
        assert_true(to[row + 1000] == 0 && !memcmp(to + row + 1000, to + row + 1001, 23));
    }
    bed_close(&b);
    free(from);
    free(to);
}

static void full_queue(void **state)
{
    static struct bed b;
    struct net_options options = BED_OPTIONS;

    (void)state;
    options.queue = 8;
    bed_open(&b, BED_VERBS, &options, NULL);
    for (int i = 0; i < 8; i++)
        assert_int_equal(net_flag(b.link, COMM, 3, 1, 1), 0);
    assert_int_equal(net_flag(b.link, COMM, 3, 1, 1), -EAGAIN);
    bed_drain(&b);
    assert_int_equal(b.raised, 8);
    assert_int_equal(net_write(b.link, &(struct net_place){.comm = COMM, .rank = 3}, &b, &(struct net_area){8, 1ull << 63, 3}),
                     -EINVAL);
    bed_close(&b);
}

/* Only who shows the token is let in. Once: test_net_verbs_ends.c, comes_once_more. */
static void strangers(void **state)
{
    static struct bed b;
    static struct raw raw;
    unsigned char wrong[NET_TOKEN_BYTES];

    (void)state;
    raw_open(&raw, &b);
    memcpy(wrong, raw.hello.token, sizeof(wrong));
    wrong[NET_TOKEN_BYTES - 1] ^= 1;
    raw_connect(&raw, &b, wrong, sizeof(wrong), RDMA_CM_EVENT_REJECTED);
    raw_disconnect(&raw);
    raw_connect(&raw, &b, NULL, 0, RDMA_CM_EVENT_REJECTED);
    raw_disconnect(&raw);
    raw_connect(&raw, &b, raw.hello.token, NET_TOKEN_BYTES - 1, RDMA_CM_EVENT_REJECTED);
    raw_disconnect(&raw);
    raw_connect(&raw, &b, raw.hello.token, NET_TOKEN_BYTES, RDMA_CM_EVENT_ESTABLISHED);
    assert_int_equal(b.receiver->error.status, 0);
    raw_close(&raw, &b);
}

enum { BOUNCE = REGIONS + 7 };

/* A receive bounce buffer, of which nobody is told what is not so. */
static void bounce_add(struct bed *b)
{
    static unsigned char memory[REGION_BYTES];
    struct net_bounce bounce = {.received = bed_received, .ctx = &bed_bounces[0], .given = bed_given};
    struct error e;

    assert_int_equal(net_region_add_bounce(b->regions, COMM, 3, BOUNCE, memory, sizeof(memory), &bounce, &e), 0);
}

/* As it goes over the wire, of rank 3. */
static void notice_put(void *to, const struct verbs_notice *n)
{
    struct verbs_notice wire = {.comm = htole64(COMM),
                                .rank = htole32(3),
                                .region = htole32(n->region),
                                .kind = htole16(n->kind),
                                .zero = htole16(n->zero),
                                .number = htole32(n->number),
                                .offset = htole64(n->offset),
                                .value = htole64(n->value),
                                .stride = htole64(n->stride)};

    memcpy(to, &wire, sizeof(wire));
}

/* What a hostile sender says is refused, and touches nothing. */
static void refused(void **state)
{
    static struct bed b;
    static struct raw raw;
    /* As messages: each is refused for one reason. Before them is what the socket says, and what is written. */
    static const struct verbs_notice messages[] = {
        {.kind = VERBS_FLAG, .region = NET_FLAGS, .number = FLAGS},
        {.kind = VERBS_FLAG, .region = 0, .number = 1},
        {.kind = VERBS_FLAG, .region = NET_FLAGS, .number = 1, .zero = 1},
        {.kind = 0, .region = NET_FLAGS, .number = 1},
        {.kind = VERBS_WRITTEN + 1, .region = NET_FLAGS, .number = 1},
        {.kind = VERBS_SIGNAL, .region = REGIONS},
        {.kind = VERBS_SIGNAL, .region = 0, .offset = REGION_BYTES},
        {.kind = VERBS_SIGNAL, .region = 0, .offset = 4},
        {.kind = VERBS_WRITTEN, .region = REGIONS, .number = 1, .value = 8},
        {.kind = VERBS_WRITTEN, .region = NET_FLAGS, .number = 1, .value = 8},
        {.kind = VERBS_WRITTEN, .region = 0, .number = 1, .value = 8},      /* it is no receive bounce buffer */
        {.kind = VERBS_WRITTEN, .region = BOUNCE, .number = 1, .value = 0}, /* nothing */
        {.kind = VERBS_WRITTEN, .region = BOUNCE, .number = 2, .value = 8, .stride = 7},
        {.kind = VERBS_WRITTEN, .region = BOUNCE, .number = 1, .value = 8, .offset = REGION_BYTES - 7},
        {.kind = VERBS_WRITTEN, .region = BOUNCE, .number = UINT32_MAX, .value = 8, .stride = UINT64_C(1) << 62},
    };
    enum { SAID = 7, ALL = SAID + sizeof(messages) / sizeof(messages[0]) };

    (void)state;
    for (int what = 0; what < ALL; what++) {
        (void)snprintf(case_text, sizeof(case_text), "case %d", what);
        raw_open(&raw, &b);
        raw_connect(&raw, &b, raw.hello.token, NET_TOKEN_BYTES, RDMA_CM_EVENT_ESTABLISHED);
        bounce_add(&b);
        notice_put(raw.memory, &messages[what < SAID ? 0 : what - SAID]);
        struct verbs_msg key = raw_key(&raw, &b, 1);
        uint64_t address = le64toh(key.address);
        uint32_t rkey = le32toh(key.rkey);
        assert_true(address == (uintptr_t)b.memory[1] + GUARD && le64toh(key.bytes) == REGION_BYTES && !key.status);
        (void)snprintf(case_text, sizeof(case_text), "case %d", what);
        if (what == 0)
            raw_say(&raw, VERBS_ASK, 77);
        if (what == 1)
            raw_say(&raw, VERBS_ASK, NET_FLAGS);
        if (what == 2)
            raw_say(&raw, VERBS_KEY, 1);
        if (what == 3)
            assert_int_equal(send(raw.sock, raw.memory, sizeof(struct verbs_msg), 0), sizeof(struct verbs_msg));
        if (what == 4) /* no message at all */
            EXPECT(raw_post(&raw, IBV_WR_SEND, 0, 0, 13) == IBV_WC_SUCCESS);
        if (what == 5)
            EXPECT(raw_post(&raw, IBV_WR_RDMA_WRITE, address + REGION_BYTES - 8, rkey, 16) == IBV_WC_REM_ACCESS_ERR);
        if (what == 6)
            EXPECT(raw_post(&raw, IBV_WR_RDMA_WRITE, address - 1, rkey, 16) == IBV_WC_REM_ACCESS_ERR);
        if (what >= SAID)
            EXPECT(raw_post(&raw, IBV_WR_SEND, 0, 0, sizeof(struct verbs_notice)) == IBV_WC_SUCCESS);
        bool is_seen = what < 5 || what >= SAID;
        int status = is_seen ? bed_fails(&b) : 0;
        EXPECT(status == (is_seen ? -EPROTO : 0));
        EXPECT(bed_is_untouched(&b) && !b.raised && !b.bounced);
        raw_close(&raw, &b);
    }
}

/* A region of the same name again, elsewhere: who sends knows by the version. One of a communicator that has ended is dropped, and
 * what others get is not. */
static void made_anew(void **state)
{
    static struct bed b;
    struct net_place place = {.comm = COMM, .rank = 3, .region = 1, .version = 1};
    struct net_area area = {8, 8, 1};
    struct error e;

    (void)state;
    bed_open(&b, BED_VERBS, &BED_OPTIONS, NULL);
    for (place.version = 1; place.version < 6; place.version++) {
        unsigned char *memory = b.memory[place.version % 2 ? 1 : 2] + GUARD;
        net_region_remove(b.regions, COMM, 3, 1);
        assert_int_equal(net_region_add(b.regions, COMM, 3, 1, memory, REGION_BYTES, &e), 0);
        char text[8] = {'a', (char)('0' + place.version)};
        assert_int_equal(net_write(b.link, &place, text, &area), 0);
        assert_int_equal(net_flag(b.link, COMM, 3, 1, 1), 0);
        bed_drain(&b);
        assert_string_equal(memory, text);
    }
    net_comm_end(b.regions, COMM);
    assert_int_equal(net_region_add(b.regions, COMM + 1, 3, 1, b.memory[3] + GUARD, REGION_BYTES, &e), 0);
    assert_int_equal(net_region_add(b.regions, COMM + 1, 3, NET_FLAGS, NULL, FLAGS, &e), 0);
    b.raised = 0;
    place = (struct net_place){.comm = COMM, .rank = 3, .region = 0};
    assert_int_equal(net_write(b.link, &place, "dropped", &area), 0);
    assert_int_equal(net_flag(b.link, COMM, 3, 1, 1), 0);
    place = (struct net_place){.comm = COMM + 1, .rank = 3, .region = 1};
    assert_int_equal(net_write(b.link, &place, "arrives", &area), 0);
    assert_int_equal(net_flag(b.link, COMM + 1, 3, 1, 1), 0);
    bed_drain(&b);
    assert_int_equal(b.raised, 1);
    assert_string_equal(b.memory[3] + GUARD, "arrives");
    assert_true(b.memory[0][GUARD] == 0);
    bed_close(&b);
}

/* What was handed to a link that is closed in good order arrives before its end. */
static void closes(void **state)
{
    static struct bed b;

    (void)state;
    for (int what = 0; what < 2; what++) {
        bed_open(&b, BED_VERBS, &BED_OPTIONS, NULL);
        assert_int_equal(net_flag(b.link, COMM, 3, 1, 1), 0);
        bed_drain(&b);
        if (what == 0) {
            for (int i = 0; i < 60; i++)
                assert_int_equal(net_flag(b.link, COMM, 3, 1, 1), 0);
            while (b.link->flushed != b.link->queued)
                assert_true(net_progress(b.link, clock_ns()) >= 0);
            b.ops->link_close(b.link);
            b.link = NULL;
            int status = bed_fails(&b);
            assert_int_equal(status, -ESHUTDOWN);
            assert_int_equal(b.raised, 61);
            bed_close(&b);
            continue;
        }
        b.ops->receiver_close(b.receiver);
        int status = 0;
        while (!status)
            status = b.ops->look(b.link);
        assert_int_equal(status, -ESHUTDOWN);
        b.ops->link_close(b.link);
        net_regions_close(b.regions);
        for (int r = 0; r < REGIONS; r++) {
            free(b.memory[r]);
            free(b.model[r]);
        }
    }
}

/* Ends that were set differently say so, both. */
static void differ(void **state)
{
    struct net_options options = BED_OPTIONS;
    struct net_counts counts = {0};
    struct net_receiver *r;
    struct net_link *l;
    struct error e;
    int sockets[2];

    (void)state;
    for (int what = 0; what < 2; what++) {
        const struct net_ops *sends = what ? &net_tcp : bed_verbs, *takes = what ? bed_verbs : &net_tcp;
        struct net_sink sink = {0};
        assert_int_equal(net_regions_open(&sink.regions, &e), 0);
        bed_sockets(BED_VERBS, sockets);
        assert_int_equal(sends->link_open(sockets[0], &options, &counts, &l, &e), 0);
        assert_int_equal(takes->receiver_open(sockets[1], &options, &sink, &counts, &r, &e), 0);
        int sent = 0, taken = 0;
        while (!sent || taken >= 0) {
            (void)net_progress(l, clock_ns());
            sent = sent ? sent : l->ops->look(l);
            taken = net_receive(r, clock_ns());
        }
        assert_int_equal(sent, -EPROTONOSUPPORT);
        assert_non_null(strstr(l->error.text,
                               what ? "takes verbs and this one sends over tcp" : "takes tcp and this one sends over verbs"));
        assert_int_equal(taken, -EPROTO);
        assert_non_null(strstr(r->error.text, "TRANSPORT must be the same"));
        sends->link_close(l);
        takes->receiver_close(r);
        net_regions_close(sink.regions);
    }
}

/* Who has nothing to send lives; who says nothing at all is given up. */
static void signs_of_life(void **state)
{
    static struct bed b;
    static struct raw raw;
    const uint64_t ms = 1000000;

    (void)state;
    bed_open(&b, BED_VERBS, &BED_OPTIONS, NULL);
    assert_int_equal(net_flag(b.link, COMM, 3, 1, 1), 0);
    bed_drain(&b);
    uint64_t now = b.link->due_ns;
    for (int n = 0; n < 200; n++, now += NET_BEAT_MS * ms) {
        assert_true(net_progress(b.link, now) >= 0);
        struct pollfd p = {.fd = b.receiver->fd, .events = POLLIN};
        assert_int_equal(poll(&p, 1, -1), 1);
        assert_true(net_receive(b.receiver, now) >= 0);
    }
    bed_close(&b);
    raw_open(&raw, &b);
    raw_connect(&raw, &b, raw.hello.token, NET_TOKEN_BYTES, RDMA_CM_EVENT_ESTABLISHED);
    while (net_receive(b.receiver, clock_ns()) > 0) {
    }
    uint64_t much_later = clock_ns();
    for (unsigned look = 1; look < NET_LOOKS; look++) { /* who looks so late was not listening: each time it is one look */
        much_later += 120000 * ms;
        while (net_receive(b.receiver, much_later) > 0) {
        }
        assert_int_equal(b.receiver->error.status, 0);
    }
    int status = net_receive(b.receiver, much_later + 120000 * ms);
    assert_int_equal(status, -ETIMEDOUT);
    raw_close(&raw, &b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mixes),         cmocka_unit_test(large),     cmocka_unit_test(full_queue), cmocka_unit_test(strangers),
        cmocka_unit_test(refused),       cmocka_unit_test(made_anew), cmocka_unit_test(closes),     cmocka_unit_test(differ),
        cmocka_unit_test(signs_of_life), cmocka_unit_test(bounces),
    };

    bed_verbs = &net_verbs;
    if (!device_find()) {
        printf(VERBS_SKIPPED);
        return EXIT_SUCCESS;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
