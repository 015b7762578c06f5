/* SPDX-License-Identifier: MIT
 *
 * net_verbs_connect.c - how a sending end's queue pair comes about: the receiver's hello says where it listens; the address and the
 * route are resolved, the queues are made, the token is shown. Each step is an event; nobody waits for one.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>

#include "net_verbs_link.h"

#define RESOLVE_MS 2000
#define ACK_TIMEOUT 16 /* 4.096 us * 2^16 = 268 ms; seven times that is about NET_SILENT_MS */

static int cm_failed(struct verbs_link *v, const char *what)
{
    return error_set(&v->link.error, -errno, "%s: %s", what, strerror(errno));
}

/* The receiver has said where it listens. */
static int connect_begin(struct verbs_link *v)
{
    struct sockaddr_storage remote = {.ss_family = v->hello.hello.family == NET_HELLO_IPV6 ? AF_INET6 : AF_INET};
    struct error *e = &v->link.error;
    size_t length;

    if (remote.ss_family != v->end.address.ss_family)
        return error_set(e, -EPROTO, "the other end listens at an address of another kind than this end's");
    void *bytes = verbs_address_bytes(&remote, &length);
    memcpy(bytes, v->hello.hello.address, length);
    verbs_address_port(&remote, le16toh(v->hello.hello.port));
    if (rdma_create_id(v->end.channel, &v->end.id, NULL, RDMA_PS_TCP)) {
        v->end.id = NULL;
        return cm_failed(v, "rdma_create_id");
    }
    int status = verbs_bind(v->end.id, &v->end.address, e);
    if (status)
        return status;
    v->state = CONNECTS;
    return rdma_resolve_addr(v->end.id, NULL, (struct sockaddr *)&remote, RESOLVE_MS) ? cm_failed(v, "rdma_resolve_addr") : 0;
}

static int connect_now(struct verbs_link *v)
{
    struct rdma_conn_param param = {.private_data = v->hello.hello.token,
                                    .private_data_len = sizeof(v->hello.hello.token),
                                    .retry_count = 7,
                                    .rnr_retry_count = 7}; /* 7: for ever. Whether the receiver lives is told by the socket */
    uint8_t timeout = ACK_TIMEOUT;
    int status = verbs_end_queues(&v->end, VERBS_SENDS, 1, &v->link.error);

    if (status)
        return status;
    v->ring = mmap(NULL, VERBS_RING, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (v->ring == MAP_FAILED) {
        v->ring = NULL;
        return error_set(&v->link.error, -ENOMEM, "no memory for a link");
    }
    status = verbs_register(v->end.device, v->ring, VERBS_RING, IBV_ACCESS_LOCAL_WRITE, &v->ring_mr, &v->link.error);
    if (status)
        return status;
    /* A kernel that does not know it takes seconds to notice a loss; the socket still tells of a node that is gone. */
    (void)rdma_set_option(v->end.id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof(timeout));
    return rdma_connect(v->end.id, &param) ? cm_failed(v, "rdma_connect") : 0;
}

static int ended(struct verbs_link *v)
{
    struct net_link *l = &v->link;

    /* The reason, if the device knows one, came before. */
    if (v->state == READY && verbs_completions_take(v) < 0)
        return l->error.status;
    if (l->queued != l->flushed || v->posted != v->done)
        return error_set(&l->error, -ECONNRESET, "the other end has closed the connection while there was more to send");
    return error_set(&l->error, -ESHUTDOWN, "the other end has closed the connection");
}

static int cm_event_handle(struct verbs_link *v, enum rdma_cm_event_type what, int status)
{
    switch (what) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
        return rdma_resolve_route(v->end.id, RESOLVE_MS) ? cm_failed(v, "rdma_resolve_route") : 0;
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
        return connect_now(v);
    case RDMA_CM_EVENT_ESTABLISHED:
        v->state = READY;
        return 0;
    case RDMA_CM_EVENT_DISCONNECTED:
        return ended(v);
    case RDMA_CM_EVENT_TIMEWAIT_EXIT:
        return 0;
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
        return error_set(&v->link.error, -ENODEV, "RDMA: the device has been removed");
    default:
        if (v->state == READY) /* REJECTED: the receiver was closed before it had seen that we know */
            return ended(v);
        return error_set(
            &v->link.error, what == RDMA_CM_EVENT_REJECTED ? -ECONNREFUSED : -ENETUNREACH,
            "RDMA: no queue pair: %s (status %d); look at the link (rdma link) and whether UDP port 4791 gets through, "
            "for RoCE",
            rdma_event_str(what), status);
    }
}

static int cm_look(struct verbs_link *v)
{
    struct rdma_cm_event *event;

    if (rdma_get_cm_event(v->end.channel, &event))
        return errno == EAGAIN ? 0 : cm_failed(v, "rdma_get_cm_event");
    enum rdma_cm_event_type what = event->event;
    int status = event->status;
    (void)rdma_ack_cm_event(event);
    return cm_event_handle(v, what, status);
}

static int socket_look(struct verbs_link *v)
{
    struct error *e = &v->link.error;
    struct verbs_msg m[VERBS_MSGS];
    int n;

    if (v->state == WAITS_HELLO) {
        n = net_hello_read(v->end.socket.fd, &v->hello, NET_VERBS, e);
        return n == -ESHUTDOWN ? ended(v) : n > 0 ? connect_begin(v) : n;
    }
    n = verbs_socket_read(&v->end.socket, m, e);
    if (n < 0)
        return n == -ESHUTDOWN ? ended(v) : n;
    for (int i = 0; i < n; i++) {
        if (m[i].kind == VERBS_KEY)
            verbs_keys_answer(v->keys, &m[i]);
        else if (m[i].kind != VERBS_END)
            return error_set(e, -EPROTO, "the other end answers what nobody has asked");
        else if (verbs_end_take(v, m[i].comm))
            return e->status;
    }
    return verbs_socket_flush(&v->end.socket, e);
}

int verbs_look(struct net_link *l)
{
    struct verbs_link *v = (struct verbs_link *)l; /* its first member */
    struct epoll_event events[4];
    int n, status = 0;

    while (!status && (n = epoll_wait(v->end.epoll, events, 4, 0)) > 0) {
        l->is_blocked = false;
        for (int i = 0; i < n && !status; i++)
            status = events[i].data.u32 == VERBS_CQ   ? verbs_end_notified(&v->end, &l->error)
                     : events[i].data.u32 == VERBS_CM ? cm_look(v)
                                                      : socket_look(v);
        if (!status)
            status = verbs_ends_answer(v);
    }
    return status;
}
