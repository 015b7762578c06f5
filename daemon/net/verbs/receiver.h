/* SPDX-License-Identifier: MIT
 *
 * receiver.h - the receiving end's internals, for receive.c, notice.c, and tests that break its queue pair.
 */
#ifndef FCC_DAEMON_NET_VERBS_RECEIVER_H
#define FCC_DAEMON_NET_VERBS_RECEIVER_H

#include "daemon/net/verbs/verbs.h"

struct verbs_receiver {
    struct net_receiver receiver;
    struct verbs_end end;
    struct verbs_party party;
    uint32_t nlisteners; /* 0 when the queue pair is established */
    struct rdma_cm_id *listeners[NET_HELLO_PLACES];
    struct net_hello hello; /* the listeners' addresses, and the token */
    const struct net_sink *sink;
    struct net_silence silence;
    bool has_ended;           /* the socket's end was seen */
    uint64_t ended_ns;        /* when the queue pair's end was seen; 0: it was not */
    uint64_t bytes, messages; /* the last message's counters */
};

/* ---- notice.c ---- */

/* Handles a message on the queue pair. */
int verbs_notice_take(struct verbs_receiver *v, struct verbs_notice n);

#endif
