/* SPDX-License-Identifier: MIT
 *
 * test_net_verbs.c - links over RDMA verbs, on a device of this machine, with itself: the mixes that tcp passes too; then keys, who may
 * connect, memory that is taken back, and how links end. Without a device it says so.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <ifaddrs.h>

#include "net_mix.h"
#include "net_verbs.h"

/* ---- a sender that says what it likes ---- */

struct raw {
    int sock;
    struct net_hello hello;
    struct rdma_event_channel *channel;
    struct rdma_cm_id *id;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_mr *mr;
    unsigned char memory[4096];
};

static void raw_say(const struct raw *raw, enum verbs_kind kind, uint32_t region)
{
    struct verbs_msg m = {.magic = htole32(VERBS_MAGIC),
                          .kind = htole16((uint16_t)kind),
                          .comm = htole64(COMM),
                          .rank = htole32(3),
                          .region = htole32(region)};

    assert_int_equal(send(raw->sock, &m, sizeof(m), MSG_NOSIGNAL), sizeof(m));
}

/* Read while the receiver takes its turns. */
static void raw_hear(const struct raw *raw, struct bed *b, void *to, size_t bytes)
{
    size_t got = 0;

    while (got < bytes) {
        (void)net_receive(b->receiver, clock_ns());
        ssize_t n = recv(raw->sock, (unsigned char *)to + got, bytes - got, MSG_DONTWAIT);
        assert_int_not_equal(n, 0);
        got += n > 0 ? (size_t)n : 0;
    }
}

static struct rdma_cm_event *raw_event(const struct raw *raw, struct bed *b)
{
    struct pollfd p = {.fd = raw->channel->fd, .events = POLLIN};
    struct rdma_cm_event *event;

    while (poll(&p, 1, 1) == 0)
        (void)net_receive(b->receiver, clock_ns());
    assert_int_equal(rdma_get_cm_event(raw->channel, &event), 0);
    return event;
}

static void raw_expect(const struct raw *raw, struct bed *b, enum rdma_cm_event_type what)
{
    struct rdma_cm_event *event = raw_event(raw, b);

    (void)snprintf(case_text, sizeof(case_text), "%s", rdma_event_str(event->event));
    EXPECT(event->event == what);
    (void)rdma_ack_cm_event(event);
}

/* Connect to where the receiver listens, with these bytes to show. */
static void raw_connect(struct raw *raw, struct bed *b, const void *token, uint8_t bytes, enum rdma_cm_event_type what)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr = bed_address, .sin_port = htons(le16toh(raw->hello.port))};
    struct ibv_qp_init_attr attr = {.cap = {.max_send_wr = 16, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
                                    .qp_type = IBV_QPT_RC,
                                    .sq_sig_all = 1};
    struct rdma_conn_param param = {.private_data = token, .private_data_len = bytes, .retry_count = 7, .rnr_retry_count = 7};

    assert_non_null(raw->channel = rdma_create_event_channel());
    assert_int_equal(rdma_create_id(raw->channel, &raw->id, NULL, RDMA_PS_TCP), 0);
    assert_int_equal(rdma_resolve_addr(raw->id, NULL, (struct sockaddr *)&to, 5000), 0);
    raw_expect(raw, b, RDMA_CM_EVENT_ADDR_RESOLVED);
    assert_int_equal(rdma_resolve_route(raw->id, 5000), 0);
    raw_expect(raw, b, RDMA_CM_EVENT_ROUTE_RESOLVED);
    assert_non_null(raw->pd = ibv_alloc_pd(raw->id->verbs));
    assert_non_null(raw->cq = ibv_create_cq(raw->id->verbs, 32, NULL, NULL, 0));
    assert_non_null(raw->mr = ibv_reg_mr(raw->pd, raw->memory, sizeof(raw->memory), IBV_ACCESS_LOCAL_WRITE));
    attr.send_cq = attr.recv_cq = raw->cq;
    assert_int_equal(rdma_create_qp(raw->id, raw->pd, &attr), 0);
    assert_int_equal(rdma_connect(raw->id, &param), 0);
    raw_expect(raw, b, what);
}

static void raw_disconnect(struct raw *raw)
{
    (void)rdma_disconnect(raw->id);
    rdma_destroy_qp(raw->id);
    (void)ibv_dereg_mr(raw->mr);
    (void)ibv_destroy_cq(raw->cq);
    (void)ibv_dealloc_pd(raw->pd);
    (void)rdma_destroy_id(raw->id);
    rdma_destroy_event_channel(raw->channel);
}

static void raw_open(struct raw *raw, struct bed *b)
{
    memset(raw, 0, sizeof(*raw));
    memset(raw->memory, 7, sizeof(raw->memory));
    bed_open(b, BED_VERBS, &BED_OPTIONS, &raw->sock);
    raw_say(raw, VERBS_BEAT, 0);
    raw_hear(raw, b, &raw->hello, sizeof(raw->hello));
    assert_int_equal(le16toh(raw->hello.transport), NET_VERBS);
}

static void raw_close(struct raw *raw, struct bed *b)
{
    raw_disconnect(raw);
    (void)close(raw->sock);
    bed_close(b);
}

static struct verbs_msg raw_key(const struct raw *raw, struct bed *b, uint32_t region)
{
    struct verbs_msg m;

    raw_say(raw, VERBS_ASK, region);
    raw_hear(raw, b, &m, sizeof(m));
    assert_int_equal(le16toh(m.kind), VERBS_KEY);
    return m;
}

/* Post one request; how it completes. */
static enum ibv_wc_status raw_post(struct raw *raw, enum ibv_wr_opcode opcode, uint64_t address, uint32_t rkey, uint32_t bytes)
{
    struct ibv_sge sge = {(uintptr_t)raw->memory, bytes, raw->mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = opcode, .wr = {.rdma = {address, rkey}}}, *bad;
    struct ibv_wc wc;

    assert_int_equal(ibv_post_send(raw->id->qp, &wr, &bad), 0);
    while (ibv_poll_cq(raw->cq, 1, &wc) == 0) {
    }
    return wc.status;
}

/* The receiver's next error. */
static int bed_fails(struct bed *b)
{
    int status;

    while ((status = net_receive(b->receiver, clock_ns())) >= 0) {
        struct pollfd p = {.fd = b->receiver->fd, .events = POLLIN};
        (void)poll(&p, 1, 10);
    }
    return status;
}

static bool bed_is_untouched(const struct bed *b)
{
    for (uint32_t r = 0; r < REGIONS; r++)
        if (memcmp(b->memory[r], b->model[r], REGION_BYTES + 2 * GUARD) != 0)
            return false;
    return true;
}

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

/* Only who shows the token is let in, and only once. */
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
    struct raw second = {.sock = raw.sock, .hello = raw.hello};
    raw_connect(&second, &b, raw.hello.token, NET_TOKEN_BYTES, RDMA_CM_EVENT_REJECTED);
    raw_disconnect(&second);
    assert_int_equal(b.receiver->error.status, 0);
    raw_close(&raw, &b);
}

/* What a hostile sender says is refused, and touches nothing. */
static void refused(void **state)
{
    static struct bed b;
    static struct raw raw;
    struct verbs_flag f = {.comm = htole64(COMM), .rank = htole32(3), .flag = htole32(FLAGS)};

    (void)state;
    for (int what = 0; what < 8; what++) {
        (void)snprintf(case_text, sizeof(case_text), "case %d", what);
        raw_open(&raw, &b);
        raw_connect(&raw, &b, raw.hello.token, NET_TOKEN_BYTES, RDMA_CM_EVENT_ESTABLISHED);
        memcpy(raw.memory, &f, sizeof(f));
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
        if (what == 4) /* no such flag */
            EXPECT(raw_post(&raw, IBV_WR_SEND, 0, 0, sizeof(f)) == IBV_WC_SUCCESS);
        if (what == 5) /* no flag at all */
            EXPECT(raw_post(&raw, IBV_WR_SEND, 0, 0, 13) == IBV_WC_SUCCESS);
        if (what == 6)
            EXPECT(raw_post(&raw, IBV_WR_RDMA_WRITE, address + REGION_BYTES - 8, rkey, 16) == IBV_WC_REM_ACCESS_ERR);
        if (what == 7)
            EXPECT(raw_post(&raw, IBV_WR_RDMA_WRITE, address - 1, rkey, 16) == IBV_WC_REM_ACCESS_ERR);
        int status = what < 6 ? bed_fails(&b) : 0;
        EXPECT(status == (what < 6 ? -EPROTO : 0));
        EXPECT(bed_is_untouched(&b) && !b.raised);
        raw_close(&raw, &b);
    }
}

/* A key is no key any more when the removal has returned. */
static void taken_back(void **state)
{
    static struct bed b;
    static struct raw raw;

    (void)state;
    for (int what = 0; what < 2; what++) {
        raw_open(&raw, &b);
        raw_connect(&raw, &b, raw.hello.token, NET_TOKEN_BYTES, RDMA_CM_EVENT_ESTABLISHED);
        struct verbs_msg key = raw_key(&raw, &b, 2);
        (void)snprintf(case_text, sizeof(case_text), "case %d", what);
        EXPECT(raw_post(&raw, IBV_WR_RDMA_WRITE, le64toh(key.address) + 5, le32toh(key.rkey), 100) == IBV_WC_SUCCESS);
        memset(b.model[2] + GUARD + 5, 7, 100);
        EXPECT(bed_is_untouched(&b));
        if (what)
            net_comm_end(b.regions, COMM);
        else
            net_region_remove(b.regions, COMM, 3, 2);
        EXPECT(raw_post(&raw, IBV_WR_RDMA_WRITE, le64toh(key.address) + 500, le32toh(key.rkey), 100) == IBV_WC_REM_ACCESS_ERR);
        EXPECT(bed_is_untouched(&b));
        raw_close(&raw, &b);
    }
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
    int status = net_receive(b.receiver, clock_ns() + 61000 * ms);
    assert_int_equal(status, -ETIMEDOUT);
    raw_close(&raw, &b);
}

/* An address of this machine that belongs to an RDMA device. */
static bool device_find(void)
{
    struct ifaddrs *all = NULL, *a;
    bool found = false;

    assert_int_equal(getifaddrs(&all), 0);
    for (a = all; a && !found; a = a->ifa_next) {
        struct sockaddr_in address;
        struct error e;
        int sock;
        if (!a->ifa_addr || a->ifa_addr->sa_family != AF_INET)
            continue;
        memcpy(&address, a->ifa_addr, sizeof(address));
        address.sin_port = 0;
        sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        found = sock >= 0 && !bind(sock, (struct sockaddr *)&address, sizeof(address)) && !net_verbs.usable(sock, &e);
        bed_address = address.sin_addr;
        (void)close(sock);
    }
    freeifaddrs(all);
    return found;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mixes),   cmocka_unit_test(large),      cmocka_unit_test(full_queue),    cmocka_unit_test(strangers),
        cmocka_unit_test(refused), cmocka_unit_test(taken_back), cmocka_unit_test(late_write),    cmocka_unit_test(made_anew),
        cmocka_unit_test(closes),  cmocka_unit_test(differ),     cmocka_unit_test(signs_of_life),
    };

    bed_verbs = &net_verbs;
    if (!device_find()) {
        printf("skipped: no RDMA device (make test-rdma runs these in emulated machines that have one)\n");
        return EXIT_SUCCESS;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
