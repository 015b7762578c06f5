/* SPDX-License-Identifier: MIT
 *
 * test_net_verbs_ends.c - links over RDMA verbs, and what ends beside them: regions that are removed, communicators that end while they are
 * written, and queue pairs that are driven to error. On a device of this machine; without one it says so.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "daemon/net/verbs/link.h"
#include "daemon/net/verbs/receiver.h"
#include "tests/verbs/verbs_bed.h"

enum { OTHER = 1000, OTHER_BYTES = 1 << 20, OTHERS = 24 };

static struct verbs_link *link_of(const struct bed *b)
{
    return (struct verbs_link *)b->link; /* its first member */
}

static struct verbs_receiver *receiver_of(const struct bed *b)
{
    return (struct verbs_receiver *)b->receiver; /* its first member */
}

/* ---- regions ---- */

/* A key is no key any more when a region's removal has returned. */
static void taken_back(void **state)
{
    static struct bed b;
    static struct raw raw;

    (void)state;
    raw_open(&raw, &b);
    raw_connect(&raw, &b, raw.hello.token, NET_TOKEN_BYTES, RDMA_CM_EVENT_ESTABLISHED);
    struct verbs_msg key = raw_key(&raw, &b, 2);
    EXPECT(raw_post(&raw, IBV_WR_RDMA_WRITE, le64toh(key.address) + 5, le32toh(key.rkey), 100) == IBV_WC_SUCCESS);
    memset(b.model[2] + GUARD + 5, 7, 100);
    EXPECT(bed_is_untouched(&b));
    net_region_remove(b.regions, COMM, 3, 2);
    EXPECT(raw_post(&raw, IBV_WR_RDMA_WRITE, le64toh(key.address) + 500, le32toh(key.rkey), 100) == IBV_WC_REM_ACCESS_ERR);
    EXPECT(bed_is_untouched(&b));
    raw_close(&raw, &b);
}

/* The same of a link: it breaks, and says why. */
static void late_write(void **state)
{
    static struct bed b;
    const struct net_place place = {.comm = COMM, .rank = 3, .region = 1};
    int status;

    (void)state;
    bed_open(&b, BED_VERBS, &BED_OPTIONS, NULL);
    assert_int_equal(net_write(b.link, &place, "abcdefg", &(struct net_area){8, 8, 1}), 0);
    assert_int_equal(net_flag(b.link, COMM, 3, 1, 1), 0);
    bed_drain(&b);
    assert_string_equal(b.memory[1] + GUARD, "abcdefg");
    net_region_remove(b.regions, COMM, 3, 1);
    assert_int_equal(net_write(b.link, &place, "ABCDEFG", &(struct net_area){8, 8, 1}), 0);
    while ((status = net_progress(b.link, clock_ns())) >= 0)
        (void)b.ops->look(b.link);
    assert_int_equal(status, -EPROTO);
    assert_non_null(strstr(b.link->error.text, ibv_wc_status_str(IBV_WC_REM_ACCESS_ERR)));
    assert_non_null(strstr(b.link->error.text, "taken back"));
    assert_string_equal(b.memory[1] + GUARD, "abcdefg");
    status = bed_fails(&b);
    assert_int_equal(status, -ECONNRESET);
    bed_close(&b);
}

/* ---- communicators ---- */

/* Pages at this address, or anywhere. */
static unsigned char *pages(unsigned char *at)
{
    unsigned char *p =
        mmap(at, OTHER_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED_NOREPLACE : 0), -1, 0);

    assert_true(p != MAP_FAILED);
    return p;
}

static void other_add(const struct bed *b, uint64_t comm, unsigned char *memory)
{
    struct error e;

    assert_int_equal(net_region_add(b->regions, comm, 3, 0, memory, OTHER_BYTES, &e), 0);
}

static void raw_ask(const struct raw *raw, struct bed *b, enum verbs_kind kind, uint64_t comm, struct verbs_msg *answer)
{
    struct verbs_msg m = {
        .magic = htole32(VERBS_MAGIC), .kind = htole16((uint16_t)kind), .comm = htole64(comm), .rank = htole32(3)};

    assert_int_equal(send(raw->sock, &m, sizeof(m), MSG_NOSIGNAL), sizeof(m));
    if (answer)
        raw_hear(raw, b, answer, sizeof(*answer));
}

/* A raw sender that has written into memory of OTHER, whose end has been told, and whose memory belongs to somebody else since. */
static unsigned char *raw_told(struct raw *raw, struct bed *b, struct verbs_msg *key)
{
    unsigned char *memory = pages(NULL);
    struct verbs_msg end;

    raw_open(raw, b);
    raw_connect(raw, b, raw->hello.token, NET_TOKEN_BYTES, RDMA_CM_EVENT_ESTABLISHED);
    other_add(b, OTHER, memory);
    raw_ask(raw, b, VERBS_ASK, OTHER, key);
    assert_int_equal(key->status, 0);
    assert_int_equal(raw_post(raw, IBV_WR_RDMA_WRITE, le64toh(key->address), le32toh(key->rkey), 100), IBV_WC_SUCCESS);
    assert_int_equal(memory[99], 7);
    net_comm_end(b->regions, OTHER);
    raw_hear(raw, b, &end, sizeof(end));
    assert_int_equal(le16toh(end.kind), VERBS_END);
    assert_int_equal(le64toh(end.comm), OTHER);
    assert_int_equal(munmap(memory, OTHER_BYTES), 0);
    return pages(memory);
}

static enum ibv_wc_status raw_late(struct raw *raw, const struct verbs_msg *key)
{
    return raw_post(raw, IBV_WR_RDMA_WRITE, le64toh(key->address) + 200, le32toh(key->rkey), 100);
}

/* Who has been told that a communicator ends may still write, which harms nobody, until it has said that it does not. Then the key
 * is none any more. */
static void key_outlives(void **state)
{
    static struct bed b;
    static struct raw raw;
    struct verbs_msg key, answer;

    (void)state;
    unsigned char *memory = raw_told(&raw, &b, &key);
    assert_int_equal(raw_late(&raw, &key), IBV_WC_SUCCESS);
    for (int i = 0; i < OTHER_BYTES; i++)
        assert_int_equal(memory[i], 0);
    raw_ask(&raw, &b, VERBS_ENDED, OTHER, NULL);
    raw_ask(&raw, &b, VERBS_ASK, OTHER, &answer); /* behind it */
    assert_int_equal((int32_t)le32toh((uint32_t)answer.status), -ECANCELED);
    assert_int_equal(raw_late(&raw, &key), IBV_WC_REM_ACCESS_ERR);
    assert_true(bed_is_untouched(&b));
    assert_int_equal(munmap(memory, OTHER_BYTES), 0);
    raw_close(&raw, &b);
}

/* Who does not say so is given up, though it lives. Closing its queue pair takes the key back. */
static void never_says(void **state)
{
    static struct bed b, other_b;
    static struct raw raw, other;
    struct verbs_msg key;
    uint64_t later = clock_ns() + 50000 * 1000000ull;

    (void)state;
    raw_open(&other, &other_b); /* of the same protection domain: it shows when the key goes */
    raw_connect(&other, &other_b, other.hello.token, NET_TOKEN_BYTES, RDMA_CM_EVENT_ESTABLISHED);
    unsigned char *memory = raw_told(&raw, &b, &key);
    raw_say(&raw, VERBS_BEAT, 0);
    while (receiver_of(&b)->silence.heard_ns < later)
        assert_true(net_receive(b.receiver, later) >= 0);
    int status = net_receive(b.receiver, clock_ns() + 61000 * 1000000ull);
    while (status > 0)
        status = net_receive(b.receiver, clock_ns() + 61000 * 1000000ull);
    assert_int_equal(status, -ETIMEDOUT);
    assert_non_null(strstr(b.receiver->error.text, "writes no more"));
    assert_int_equal(raw_late(&other, &key), IBV_WC_SUCCESS);
    b.ops->receiver_close(b.receiver);
    b.receiver = NULL;
    assert_int_equal(raw_late(&other, &key), IBV_WC_REM_ACCESS_ERR);
    assert_int_equal(munmap(memory, OTHER_BYTES), 0);
    raw_close(&raw, &b);
    raw_close(&other, &other_b);
}

/* ... and who says so unasked is refused. */
static void says_too_much(void **state)
{
    static struct bed b;
    static struct raw raw;
    struct verbs_msg key;

    (void)state;
    unsigned char *memory = raw_told(&raw, &b, &key);
    raw_ask(&raw, &b, VERBS_ENDED, COMM, NULL);
    int status = bed_fails(&b);
    assert_int_equal(status, -EPROTO);
    assert_int_equal(munmap(memory, OTHER_BYTES), 0);
    raw_close(&raw, &b);
}

static void write_other(struct bed *b, uint64_t comm, const unsigned char *from)
{
    const struct net_place to = {.comm = comm, .rank = 3};
    const struct net_area area = {1 + (uint64_t)random_below(OTHER_BYTES), OTHER_BYTES, 1};

    while (net_write(b->link, &to, from, &area) == -EAGAIN) {
        (void)bed_turn(b);
        bed_free_flushed(b);
    }
}

static void write_checked(struct bed *b, unsigned *flags)
{
    struct entry entry = random_entry();

    while (bed_put(b, entry) == -EAGAIN) {
        (void)bed_turn(b);
        bed_free_flushed(b);
    }
    while (bed_flag(b, *flags % FLAGS, *flags * 3ull) == -EAGAIN)
        (void)bed_turn(b);
    ++*flags;
}

/* Communicators end while their memory is being written, and the memory goes at once. The link stays, and nothing of another communicator
 * that goes over it is lost. */
static void ends_under_way(void **state)
{
    static struct bed b;
    unsigned flags = 0, under_way = 0, writes = 0;
    unsigned char *from = malloc(OTHER_BYTES);

    (void)state;
    assert_non_null(from);
    memset(from, 9, OTHER_BYTES);
    random_state = 77;
    bed_open(&b, BED_VERBS, &BED_OPTIONS, NULL);
    b.check_all = true;
    for (uint64_t comm = OTHER; comm < OTHER + OTHERS; comm++) {
        unsigned char *memory = pages(NULL);
        other_add(&b, comm, memory);
        for (int64_t n = 1 + random_below(4); n; n--, writes++) {
            write_other(&b, comm, from);
            write_checked(&b, &flags);
        }
        for (int64_t turns = random_below(200); turns && memory[0] == 0; turns--)
            (void)bed_turn(&b);
        under_way += link_of(&b)->posted != link_of(&b)->done;
        net_comm_end(b.regions, comm);
        assert_int_equal(munmap(memory, OTHER_BYTES), 0);
        if (random_below(2))
            write_other(&b, comm, from); /* for nobody */
        write_checked(&b, &flags);
        bed_free_flushed(&b);
    }
    bed_drain(&b);
    bed_free_flushed(&b);
    assert_int_equal(b.raised, flags);
    assert_int_equal(b.applied, b.added);
    while (link_of(&b)->ends_first != link_of(&b)->ends_next || verbs_party_owes(&receiver_of(&b)->party)) {
        (void)bed_turn(&b);
        (void)b.ops->look(b.link);
        assert_true(net_receive(b.receiver, clock_ns()) >= 0);
    }
    printf("%u writes to %d communicators; %u ended with requests under way\n", writes, OTHERS, under_way);
    assert_true(link_of(&b)->ends_next > OTHERS / 2 && under_way > OTHERS / 4);
    bed_close(&b);
    free(from);
}

/* ---- queue pairs ---- */

static void queue_pair_break(struct ibv_qp *qp)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};

    assert_int_equal(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
}

/* Either end's, with requests under way. Who closes its end when it hears of it, as the proxy does, lets the other hear. */
static void driven_to_error(void **state)
{
    static struct bed b;
    static unsigned char from[REGION_BYTES];

    (void)state;
    for (int receiver = 0; receiver < 2; receiver++) {
        const struct net_place to = {.comm = COMM, .rank = 3};
        int sent = 0, taken = 0;
        bed_open(&b, BED_VERBS, &BED_OPTIONS, NULL);
        assert_int_equal(net_flag(b.link, COMM, 3, 1, 1), 0);
        bed_drain(&b);
        for (int n = 0; n < 32; n++)
            assert_int_equal(net_write(b.link, &to, from, &(struct net_area){REGION_BYTES, REGION_BYTES, 1}), 0);
        while (link_of(&b)->posted == link_of(&b)->done) /* its key has to come */
            (void)bed_turn(&b);
        queue_pair_break(receiver ? receiver_of(&b)->end.id->qp : link_of(&b)->end.id->qp);
        uint64_t since = clock_ns(), sent_ns = 0, taken_ns = 0;
        while (!sent || !taken) {
            if (!sent && (net_progress(b.link, clock_ns()) < 0 || b.ops->look(b.link))) {
                sent = b.link->error.status;
                sent_ns = clock_ns();
                printf("%s: the sender, after %.1f ms: %s\n", receiver ? "receiver's" : "sender's",
                       (double)(sent_ns - since) / 1e6, b.link->error.text);
                b.ops->link_close(b.link);
                b.link = NULL;
            }
            if (!taken && net_receive(b.receiver, clock_ns()) < 0) {
                taken = b.receiver->error.status;
                taken_ns = clock_ns();
                printf("%s: the receiver, after %.1f ms: %s\n", receiver ? "receiver's" : "sender's",
                       (double)(taken_ns - since) / 1e6, b.receiver->error.text);
                b.ops->receiver_close(b.receiver);
                b.receiver = NULL;
            }
        }
        /* Who is first knows that it was no orderly end. */
        assert_true(sent_ns < taken_ns ? sent != -ESHUTDOWN : taken != -ESHUTDOWN);
        assert_true(receiver || sent_ns < taken_ns);
        bed_close(&b);
    }
}

/* A sender that has given its queue pair up, before it knew that it was accepted, may connect once more, also before the receiver knows of
 * that; and the one that it then has is as good as any. */
static void comes_once_more(void **state)
{
    static struct bed b;
    static struct raw raw;

    (void)state;
    for (int is_told = 0; is_told < 2; is_told++) {
        raw_open(&raw, &b);
        struct raw first = {.sock = raw.sock, .hello = raw.hello};
        raw_begin(&first, &b, raw.hello.token, NET_TOKEN_BYTES);
        while (!receiver_of(&b)->end.id) /* it has accepted; what the first one is told of it, it does not look at */
            assert_true(net_receive(b.receiver, clock_ns()) >= 0);
        if (is_told)
            raw_disconnect(&first);
        while (is_told && receiver_of(&b)->end.id)
            assert_true(net_receive(b.receiver, clock_ns()) >= 0);
        raw_connect(&raw, &b, raw.hello.token, NET_TOKEN_BYTES, RDMA_CM_EVENT_ESTABLISHED);
        while (receiver_of(&b)->nlisteners)
            assert_true(net_receive(b.receiver, clock_ns()) >= 0);
        struct verbs_msg key = raw_key(&raw, &b, 2);
        EXPECT(raw_post(&raw, IBV_WR_RDMA_WRITE, le64toh(key.address) + 5, le32toh(key.rkey), 100) == IBV_WC_SUCCESS);
        memset(b.model[2] + GUARD + 5, 7, 100);
        EXPECT(bed_is_untouched(&b));
        if (!is_told)
            raw_disconnect(&first);
        struct raw stranger = {.sock = raw.sock, .hello = raw.hello};
        raw_connect(&stranger, &b, raw.hello.token, NET_TOKEN_BYTES, RDMA_CM_EVENT_REJECTED); /* now it is too late */
        raw_disconnect(&stranger);
        assert_int_equal(b.receiver->error.status, 0);
        raw_close(&raw, &b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(taken_back),      cmocka_unit_test(late_write),      cmocka_unit_test(key_outlives),
        cmocka_unit_test(never_says),      cmocka_unit_test(says_too_much),   cmocka_unit_test(ends_under_way),
        cmocka_unit_test(driven_to_error), cmocka_unit_test(comes_once_more),
    };

    bed_verbs = &net_verbs;
    if (!device_find()) {
        printf(VERBS_SKIPPED);
        return EXIT_SUCCESS;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
