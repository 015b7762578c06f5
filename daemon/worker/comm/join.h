/* SPDX-License-Identifier: MIT
 *
 * join.h - joining, shared by ranks here (join.c) and ranks on other nodes (nodes/join.c).
 */
#ifndef FCC_DAEMON_WORKER_COMM_JOIN_H
#define FCC_DAEMON_WORKER_COMM_JOIN_H

#include "daemon/worker/comm/comm.h"

/* The arguments with which a rank joins. */
struct joining {
    const struct fcc_unique_id *unique_id;
    int nranks, rank;
    uint32_t time_limit_ms;
    pid_t pid;
    const char *address; /* of the rank's node. "": this node speaks to no other */
};

/* Make a forming communicator with m's id and number of ranks, on devices of d's kind. NULL with the reason. */
struct comm *comm_make(struct worker *w, const struct joining *m, struct device *d, struct error *e);
/* The communicator with this id that forms here. NULL: there is none. */
struct comm *comm_find_forming(const struct worker *w, const struct fcc_unique_id *id);
/* Whether all ranks have joined. */
bool comm_is_complete(const struct comm *c);
/* Check the arguments by themselves. -EINVAL with the reason. */
int join_check_args(const struct joining *m, struct error *e);
/* Check the arguments against those of c's ranks that have joined. */
int join_check(const struct joining *m, const struct comm *c, struct error *e);
/* No communicator with this id forms here. -EALREADY: one runs, or has ended but its ranks have not all left. */
int join_check_id(const struct worker *w, const struct joining *m, struct error *e);
/* A rank asks for a time limit. Ranks and nodes may have different limits; the shortest is the communicator's. */
void join_limit(struct comm *c, uint32_t asked_ms);

#endif
