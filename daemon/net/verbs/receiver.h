/* SPDX-License-Identifier: MIT
 *
 * receiver.h - what a receiving end has: receive.c's and notice.c's, and for tests that break its queue pair.
 */
#ifndef FCC_DAEMON_NET_VERBS_RECEIVER_H
#define FCC_DAEMON_NET_VERBS_RECEIVER_H

#include "daemon/net/verbs/verbs.h"

struct verbs_receiver {
    struct net_receiver receiver;
    struct verbs_end end;
    struct verbs_party party;
    uint32_t nlisteners; /* 0: the queue pair is there */
    struct rdma_cm_id *listeners[NET_HELLO_PLACES];
    struct net_hello hello; /* where they listen, and the token */
    const struct net_sink *sink;
    struct net_silence silence;
    bool has_greeted;
    bool has_ended;    /* the socket */
    uint64_t ended_ns; /* the queue pair; 0: it has not */
    unsigned char *slots;
    struct ibv_mr *mr;
    uint64_t bytes, messages; /* counted */
};

/* ---- notice.c ---- */

/* Break the link, which has said what it must not. */
int verbs_refused(struct verbs_receiver *v, int status, const char *why);
/* A message has come whole. */
int verbs_notice_take(struct verbs_receiver *v, struct verbs_notice n);

#endif
