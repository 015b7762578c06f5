/* SPDX-License-Identifier: MIT
 *
 * verbs_bed.h - links over RDMA verbs on a device of this machine, with itself; and a sender that says what it likes. Include after
 * cmocka.h.
 */
#ifndef FCC_TEST_VERBS_BED_H
#define FCC_TEST_VERBS_BED_H

#include <ifaddrs.h>

#include "daemon/net/verbs/verbs.h"
#include "tests/net/net_mix.h"

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

static inline void raw_say(const struct raw *raw, enum verbs_kind kind, uint32_t region)
{
    struct verbs_msg m = {.magic = htole32(VERBS_MAGIC),
                          .kind = htole16((uint16_t)kind),
                          .comm = htole64(COMM),
                          .rank = htole32(3),
                          .region = htole32(region)};

    assert_int_equal(send(raw->sock, &m, sizeof(m), MSG_NOSIGNAL), sizeof(m));
}

/* Read while the receiver takes its turns. */
static inline void raw_hear(const struct raw *raw, struct bed *b, void *to, size_t bytes)
{
    size_t got = 0;

    while (got < bytes) {
        (void)net_receive(b->receiver, clock_ns());
        ssize_t n = recv(raw->sock, (unsigned char *)to + got, bytes - got, MSG_DONTWAIT);
        assert_int_not_equal(n, 0);
        got += n > 0 ? (size_t)n : 0;
    }
}

static inline struct rdma_cm_event *raw_event(const struct raw *raw, struct bed *b)
{
    struct pollfd p = {.fd = raw->channel->fd, .events = POLLIN};
    struct rdma_cm_event *event;

    while (poll(&p, 1, 1) == 0)
        (void)net_receive(b->receiver, clock_ns());
    assert_int_equal(rdma_get_cm_event(raw->channel, &event), 0);
    return event;
}

static inline void raw_expect(const struct raw *raw, struct bed *b, enum rdma_cm_event_type what)
{
    struct rdma_cm_event *event = raw_event(raw, b);

    (void)snprintf(case_text, sizeof(case_text), "%s", rdma_event_str(event->event));
    EXPECT(event->event == what);
    (void)rdma_ack_cm_event(event);
}

/* Begin to connect to where the receiver listens, with these bytes to show. */
static inline void raw_begin(struct raw *raw, struct bed *b, const void *token, uint8_t bytes)
{
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_addr = bed_address, .sin_port = htons(le16toh(raw->hello.places[0].port))};
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
}

static inline void raw_connect(struct raw *raw, struct bed *b, const void *token, uint8_t bytes, enum rdma_cm_event_type what)
{
    raw_begin(raw, b, token, bytes);
    raw_expect(raw, b, what);
}

static inline void raw_disconnect(struct raw *raw)
{
    (void)rdma_disconnect(raw->id);
    rdma_destroy_qp(raw->id);
    (void)ibv_dereg_mr(raw->mr);
    (void)ibv_destroy_cq(raw->cq);
    (void)ibv_dealloc_pd(raw->pd);
    (void)rdma_destroy_id(raw->id);
    rdma_destroy_event_channel(raw->channel);
}

static inline void raw_open(struct raw *raw, struct bed *b)
{
    memset(raw, 0, sizeof(*raw));
    memset(raw->memory, 7, sizeof(raw->memory));
    bed_open(b, BED_VERBS, &BED_OPTIONS, &raw->sock);
    raw_say(raw, VERBS_BEAT, 0);
    raw_hear(raw, b, &raw->hello, sizeof(raw->hello));
    assert_int_equal(le16toh(raw->hello.transport), NET_VERBS);
}

static inline void raw_close(struct raw *raw, struct bed *b)
{
    raw_disconnect(raw);
    (void)close(raw->sock);
    bed_close(b);
}

static inline struct verbs_msg raw_key(const struct raw *raw, struct bed *b, uint32_t region)
{
    struct verbs_msg m;

    raw_say(raw, VERBS_ASK, region);
    raw_hear(raw, b, &m, sizeof(m));
    assert_int_equal(le16toh(m.kind), VERBS_KEY);
    return m;
}

/* Post one request; how it completes. */
static inline enum ibv_wc_status raw_post(struct raw *raw, enum ibv_wr_opcode opcode, uint64_t address, uint32_t rkey,
                                          uint32_t bytes)
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
static inline int bed_fails(struct bed *b)
{
    int status;

    while ((status = net_receive(b->receiver, clock_ns())) >= 0) {
        struct pollfd p = {.fd = b->receiver->fd, .events = POLLIN};
        (void)poll(&p, 1, 10);
    }
    return status;
}

static inline bool bed_is_untouched(const struct bed *b)
{
    for (uint32_t r = 0; r < REGIONS; r++)
        if (memcmp(b->memory[r], b->model[r], REGION_BYTES + 2 * GUARD) != 0)
            return false;
    return true;
}

/* An address of this machine that belongs to an RDMA device. */
static inline bool device_find(void)
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

#define VERBS_SKIPPED "skipped: no RDMA device (make test-rdma runs these in emulated machines that have one)\n"

#endif
