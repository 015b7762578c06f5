/* SPDX-License-Identifier: MIT
 *
 * link.h - the sending end's internals. verbs.c has its queue and its work requests; connect.c makes its queue pair, and
 * handles messages on the socket.
 */
#ifndef FCC_DAEMON_NET_VERBS_LINK_H
#define FCC_DAEMON_NET_VERBS_LINK_H

#include "daemon/net/verbs/places.h"
#include "daemon/net/verbs/verbs.h"

#define VERBS_SENDS 512u      /* work requests that a queue pair can hold */
#define VERBS_LIST 64u        /* the most work requests that are posted at once, with one doorbell */
#define VERBS_RING (4u << 20) /* bytes of end.memory, the ring of copies of data in flight */
#define VERBS_TRY_MS 3000u    /* how long to try the chosen addresses before the socket's own are tried */
#define VERBS_ENDS 512u       /* the most communicators that have ended at the receiver while requests for them are in flight */

enum verbs_state { WAITS_HELLO, CONNECTS, READY };

struct verbs_link {
    struct net_link link;
    struct verbs_end end;
    enum verbs_state state;
    struct net_hello_in hello;
    struct verbs_places *places;
    struct places_pair pair; /* the chosen addresses; valid when the hello has arrived */
    struct verbs_keys keys;
    uint64_t beat_ns, opened_ns, tried_ns;
    uint64_t first_at;        /* bytes of the first queued frame's payload that have been posted */
    uint64_t bytes, messages; /* counters that each message on the queue pair carries: struct verbs_notice */
    /* Work requests, and bytes of the ring: how many were ever posted, and how many of them have completed. */
    uint64_t posted, done, ring_posted, ring_done;
    uint64_t marks[VERBS_SENDS]; /* [n % VERBS_SENDS]: value of ring_posted after the n-th request */
    struct {
        uint64_t comm, posted; /* the receiver is to be answered when `posted` requests have completed */
    } ends[VERBS_ENDS];        /* communicators that have ended at the receiver; a ring: end n is at [n % VERBS_ENDS] */
    uint64_t ends_first, ends_next;
    struct ibv_send_wr wrs[VERBS_LIST]; /* the list that is being built */
    struct ibv_sge sges[VERBS_LIST];
    struct verbs_notice notices[VERBS_LIST];
    unsigned nwrs;
};

/* ---- verbs.c ---- */

/* Polls the completion queue. Returns the number of completions, or the error of the first failed one (later ones are only
 * flushed). */
int verbs_completions_take(struct verbs_link *v);
/* Handles the receiver's message that a communicator has ended there. */
int verbs_end_take(struct verbs_link *v, uint64_t comm);
/* Answers such messages for communicators that have no requests in flight any more. Returns 0 or an error. */
int verbs_ends_answer(struct verbs_link *v);

/* ---- connect.c ---- */

/* net_ops.look */
int verbs_look(struct net_link *l);
/* If the queue pair has taken too long between the chosen addresses, tries the socket's own. Returns 0, or the link's error. */
int verbs_connect_late(struct verbs_link *v, uint64_t now_ns);
/* The chosen addresses: "from 10.1.0.1 (mlx5_0) to 10.1.0.2". To be called after the hello has arrived. */
#define VERBS_PAIR_TEXT 192
void verbs_pair_text(const struct verbs_link *v, char text[VERBS_PAIR_TEXT]);

#endif
