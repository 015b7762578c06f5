/* SPDX-License-Identifier: MIT
 *
 * join.h - what the joining of a rank here (join.c) and of a rank on another node (nodes/join.c) have in common.
 */
#ifndef FCC_DAEMON_WORKER_COMM_JOIN_H
#define FCC_DAEMON_WORKER_COMM_JOIN_H

#include "daemon/worker/comm/comm.h"

/* What a rank says of the communicator when it joins. */
struct joining {
    const struct fcc_unique_id *unique_id;
    int nranks, rank;
    uint32_t time_limit_ms;
    pid_t pid;
    const char *address; /* of the node that it is on; "": this one speaks to no other */
};

/* A communicator that forms, of `m`'s id and number of ranks, on devices of d's kind. NULL with the reason. */
struct comm *comm_make(struct worker *w, const struct joining *m, struct device *d, struct error *e);
/* The one with this id that forms here; NULL: there is none. */
struct comm *comm_find_forming(const struct worker *w, const struct fcc_unique_id *id);
/* All ranks have joined, so nobody waits for another. */
bool comm_is_complete(const struct comm *c);
/* 0 or -EINVAL: the arguments by themselves. */
int join_check_args(const struct joining *m, struct error *e);
/* The arguments against the ranks of c that have joined. */
int join_check(const struct joining *m, const struct comm *c, struct error *e);
/* No communicator with this id forms here: does one run, or wait for its ranks to let it go? Then -EALREADY. */
int join_check_id(const struct worker *w, const struct joining *m, struct error *e);
/* The ranks may ask for different time limits, or their nodes may have different ones: the shortest holds for all. */
void join_limit(struct comm *c, uint32_t asked_ms);

#endif
