/* SPDX-License-Identifier: MIT
 *
 * connect.c - makes a sending end's queue pair. The receiver's hello says where it listens. The sender chooses a pair of
 * addresses, resolves address and route, makes the queues, and connects with the token. Each step is triggered by an event;
 * nothing blocks. If the connection between the chosen addresses fails, the socket's own addresses are tried.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "daemon/net/verbs/link.h"
#include "proto/base/clock.h"

#define RESOLVE_MS 2000
#define ACK_TIMEOUT 16 /* 4.096 us * 2^16 = 268 ms; with seven retries about NET_SILENT_MS */

static int cm_failed(struct verbs_link *v, const char *what)
{
    return error_set(&v->link.error, -errno, "%s: %m", what);
}

void verbs_pair_text(const struct verbs_link *v, char text[VERBS_PAIR_TEXT])
{
    const struct verbs_place *mine = &v->places->of[v->pair.mine];
    const struct network theirs = places_listed(&v->hello.hello, v->pair.theirs);
    char from[NETWORK_TEXT_MAX], to[NETWORK_TEXT_MAX];

    network_address_text(&mine->at, from);
    network_address_text(&theirs, to);
    (void)snprintf(text, VERBS_PAIR_TEXT, "from %s (%s) to %s", from, mine->nic, to);
}

/* Logs a message about this rail. */
static void pair_log(const struct verbs_link *v, enum log_level level, const char *what, const char *why)
{
    char pair[VERBS_PAIR_TEXT], peer[NETWORK_TEXT_MAX];

    if (!v->places->net.log)
        return;
    verbs_pair_text(v, pair);
    network_address_text(&v->places->peer, peer);
    v->places->net.log(level, "RDMA: rail %u to %s %s %s%s", v->places->net.rail, peer, what, pair, why);
}

/* Begins to connect the two chosen addresses. */
static int connect_begin(struct verbs_link *v)
{
    const struct net_hello *hello = &v->hello.hello;
    const struct verbs_place *mine = &v->places->of[v->pair.mine];
    const struct network theirs = places_listed(hello, v->pair.theirs);
    struct error *e = &v->link.error;
    struct sockaddr_storage remote;

    if (mine->at.family != theirs.family)
        return error_set(e, -EPROTO, "the other end listens at an address of another kind than this end's");
    verbs_address_of(&theirs, mine->scope, hello->places[v->pair.theirs].port, &remote);
    v->state = CONNECTS;
    v->tried_ns = clock_ns();
    if (rdma_create_id(v->end.channel, &v->end.id, NULL, RDMA_PS_TCP)) {
        v->end.id = NULL;
        return cm_failed(v, "rdma_create_id");
    }
    int status = verbs_bind(v->end.id, mine, e);
    if (status)
        return status;
    return rdma_resolve_addr(v->end.id, NULL, (struct sockaddr *)&remote, RESOLVE_MS) ? cm_failed(v, "rdma_resolve_addr") : 0;
}

/* Are the chosen addresses the socket's own? Then there is nothing else to try. */
static bool is_beside_socket(const struct verbs_link *v)
{
    const struct network theirs = places_listed(&v->hello.hello, v->pair.theirs), first = places_listed(&v->hello.hello, 0);
    const struct verbs_place *mine = &v->places->of[v->pair.mine], *own = &v->places->of[0];

    return !memcmp(theirs.address, first.address, sizeof(first.address)) &&
           !memcmp(mine->at.address, own->at.address, sizeof(own->at.address));
}

/* Connecting has failed with link.error. If the chosen addresses are not the socket's own, the two networks may only look the
 * same, or be broken, and a slower connection is better than none. So the socket's own addresses are tried. The log says so,
 * and fccctl nodes shows the device. */
static int connect_again(struct verbs_link *v)
{
    char why[sizeof(v->link.error.text) + 128];

    if (v->state != CONNECTS || is_beside_socket(v))
        return v->link.error.status;
    (void)snprintf(why, sizeof(why), ": %s; it takes the nodes' own addresses. RAIL_NETWORKS says which networks are for rails",
                   v->link.error.text);
    pair_log(v, LOG_LEVEL_WARNING, "has not come about", why);
    verbs_end_drop(&v->end);
    v->link.error = (struct error){.status = 0};
    v->pair = (struct places_pair){.mine = 0, .theirs = 0};
    return connect_begin(v);
}

int verbs_connect_late(struct verbs_link *v, uint64_t now_ns)
{
    if (v->state != CONNECTS || is_beside_socket(v) || now_ns < v->tried_ns ||
        now_ns - v->tried_ns < VERBS_TRY_MS * UINT64_C(1000000))
        return 0;
    (void)error_set(&v->link.error, -ETIMEDOUT, "no answer within %u ms", VERBS_TRY_MS);
    return connect_again(v);
}

/* Handles the receiver's hello: chooses addresses and begins to connect. */
static int hello_take(struct verbs_link *v)
{
    int status = places_meet(v->places, &v->hello.hello, &v->pair, &v->link.error);

    if (status)
        return status;
    return connect_begin(v) ? connect_again(v) : 0;
}

static int connect_now(struct verbs_link *v)
{
    struct rdma_conn_param param = {.private_data = v->hello.hello.token,
                                    .private_data_len = sizeof(v->hello.hello.token),
                                    .retry_count = 7,
                                    .rnr_retry_count = 7}; /* 7: no limit. The socket detects a dead receiver */
    uint8_t timeout = ACK_TIMEOUT;
    int status = verbs_end_queues(&v->end, VERBS_SENDS, 1, VERBS_RING, &v->link.error);

    if (status)
        return status;
    /* Without this option, on old kernels, a loss is noticed after seconds only. The socket detects a dead node all the
     * same. */
    (void)rdma_set_option(v->end.id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof(timeout));
    return rdma_connect(v->end.id, &param) ? cm_failed(v, "rdma_connect") : 0;
}

static int ended(struct verbs_link *v)
{
    struct net_link *l = &v->link;

    /* A failed completion is the better reason. */
    if (v->state == READY && verbs_completions_take(v) < 0)
        return l->error.status;
    if (l->queued != l->flushed || v->posted != v->done)
        return error_set(&l->error, -ECONNRESET, "the other end has closed the connection while there was more to send");
    return error_set(&l->error, -ESHUTDOWN, "the other end has closed the connection");
}

static int cm_event_handle(struct verbs_link *v, enum rdma_cm_event_type what, int status)
{
    char pair[VERBS_PAIR_TEXT];

    switch (what) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
        return rdma_resolve_route(v->end.id, RESOLVE_MS) ? cm_failed(v, "rdma_resolve_route") : 0;
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
        return connect_now(v);
    case RDMA_CM_EVENT_ESTABLISHED:
        v->state = READY;
        v->link.device = ibv_get_device_name(v->end.id->verbs->device);
        pair_log(v, LOG_LEVEL_INFO, "goes", "");
        return 0;
    case RDMA_CM_EVENT_DISCONNECTED:
        return ended(v);
    case RDMA_CM_EVENT_TIMEWAIT_EXIT:
        return 0;
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
        return error_set(&v->link.error, -ENODEV, "RDMA: the device has been removed");
    default:
        if (v->state == READY) /* REJECTED: the receiver was closed before it had seen that the connection is established */
            return ended(v);
        verbs_pair_text(v, pair);
        return error_set(
            &v->link.error, what == RDMA_CM_EVENT_REJECTED ? -ECONNREFUSED : -ENETUNREACH,
            "RDMA: no queue pair %s: %s (status %d); look at the link (rdma link) and whether UDP port 4791 gets through, "
            "for RoCE",
            pair, rdma_event_str(what), status);
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
    return cm_event_handle(v, what, status) ? connect_again(v) : 0;
}

static int socket_look(struct verbs_link *v)
{
    struct error *e = &v->link.error;
    struct verbs_msg m[VERBS_MSGS];
    int n;

    if (v->state == WAITS_HELLO) {
        n = net_hello_read(v->end.socket.fd, &v->hello, NET_VERBS, e);
        return n == -ESHUTDOWN ? ended(v) : n > 0 ? hello_take(v) : n;
    }
    n = verbs_socket_read(&v->end.socket, m, e);
    if (n < 0)
        return n == -ESHUTDOWN ? ended(v) : n;
    for (int i = 0; i < n; i++) {
        if (m[i].kind == VERBS_KEY)
            verbs_keys_answer(&v->keys, &m[i]);
        else if (m[i].kind != VERBS_END)
            return error_set(e, -EPROTO, "the other end answers a question that was not asked");
        else if (verbs_end_take(v, m[i].comm))
            return e->status;
    }
    return verbs_socket_flush(&v->end.socket, e);
}

int verbs_look(struct net_link *l)
{
    struct verbs_link *v = (struct verbs_link *)l; /* `link` is the first member */
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
