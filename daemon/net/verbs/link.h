/* SPDX-License-Identifier: MIT
 *
 * link.h - the sending end's parts: verbs.c has its queue and work requests, connect.c how its queue pair
 * comes about, and what comes over the socket.
 */
#ifndef FCC_DAEMON_NET_VERBS_LINK_H
#define FCC_DAEMON_NET_VERBS_LINK_H

#include "daemon/net/verbs/places.h"
#include "daemon/net/verbs/verbs.h"

#define VERBS_SENDS 512u      /* work requests of a queue pair */
#define VERBS_LIST 64u        /* of one doorbell */
#define VERBS_RING (4u << 20) /* bytes that are on their way */
#define VERBS_TRY_MS 3000u    /* for the queue pair between the places that were chosen, before the socket's own are tried */
#define VERBS_ENDS 512u       /* communicators that have ended there, and what was posted for them is still on its way */

struct verbs_item {
    struct net_place to; /* a flag: its communicator and rank */
    struct net_area area;
    const unsigned char *from; /* NULL: a flag or a signal */
    uint64_t length;           /* 0: a flag or a signal */
    uint32_t flag;
    uint64_t epoch;
};

enum verbs_state { WAITS_HELLO, CONNECTS, READY };

struct verbs_link {
    struct net_link link;
    struct verbs_end end;
    enum verbs_state state;
    struct net_hello_in hello;
    struct verbs_places *places;
    struct places_pair pair; /* where it connects, once the hello is here */
    struct verbs_keys *keys;
    uint64_t beat_ns, opened_ns, tried_ns;
    uint32_t queue;           /* items, a power of two */
    struct verbs_item *items; /* item n, of all that ever were, at [n % queue]: link.flushed <= n < link.queued */
    uint64_t first_at;        /* bytes of the first one's payload that are posted */
    uint64_t bytes, messages; /* that flags tell of */
    /* Requests, and bytes of the ring: all that ever were posted, and those that are done. */
    uint64_t posted, done, ring_posted, ring_done;
    uint64_t marks[VERBS_SENDS]; /* ring_posted behind request n - 1, at [n % VERBS_SENDS] */
    unsigned char *ring;
    struct ibv_mr *ring_mr;
    struct {
        uint64_t comm, posted; /* when that many requests are done */
    } ends[VERBS_ENDS];        /* end n at [n % VERBS_ENDS], in the order in which they were told */
    uint64_t ends_first, ends_next;
    struct ibv_send_wr wrs[VERBS_LIST]; /* the list that is being made */
    struct ibv_sge sges[VERBS_LIST];
    struct verbs_notice notices[VERBS_LIST];
    unsigned nwrs;
};

/* ---- verbs.c ---- */

/* Take what has completed: how many; or an error, the first that did not go well: those behind it are only flushed. */
int verbs_completions_take(struct verbs_link *v);
/* The receiver has said that a communicator has ended there. */
int verbs_end_take(struct verbs_link *v, uint64_t comm);
/* Tell the receiver of which of them nothing is on its way any more. 0, or an error. */
int verbs_ends_answer(struct verbs_link *v);

/* ---- connect.c ---- */

/* net_ops.look */
int verbs_look(struct net_link *l);
/* Look whether the queue pair has taken so long that it is to be tried elsewhere. 0, or the link's error. */
int verbs_connect_late(struct verbs_link *v, uint64_t now_ns);
/* "from 10.1.0.1 (mlx5_0) to 10.1.0.2": where it connects. The hello is here. */
#define VERBS_PAIR_TEXT 192
void verbs_pair_text(const struct verbs_link *v, char text[VERBS_PAIR_TEXT]);
/* What has been made for its queue pair is no more. */
void verbs_link_drop(struct verbs_link *v);

#endif
