/* SPDX-License-Identifier: MIT
 *
 * comm.h - joining communicators, and freeing them, for fcc_disconnect() and forks.
 */
#ifndef FCC_CLIENT_COMM_H
#define FCC_CLIENT_COMM_H

#include "client/core/context.h"

/* fcc_comm_init() once its pointers are checked. `called` names the public function for error texts; NULL: the message's own. */
int comm_join(struct fcc_context *context, const struct fcc_unique_id *id, int nranks, int rank,
              const struct fcc_comm_options *options, struct fcc_comm **out, const char *called);
/* Frees what this process has of a communicator. No other thread may be able to find the communicator any more. */
void comm_free(struct fcc_comm *comm);
/* In the child of a fork: resets comm_join.c's lock, which a thread of the parent may have held. */
void env_forked(void);

#endif
