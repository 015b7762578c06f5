/* SPDX-License-Identifier: MIT
 *
 * comm.h - making and freeing communicators, for the other public functions.
 */
#ifndef FCC_CLIENT_COMM_H
#define FCC_CLIENT_COMM_H

#include "client/core/context.h"

/* fcc_get_unique_id() and fcc_comm_init() once their pointers are checked. `called` names the public function for error
 * texts; NULL: the message's own. */
int unique_id_ask(struct fcc_context *c, struct fcc_unique_id *out, const char *called);
int comm_join(fcc_context *context, const struct fcc_unique_id *id, int nranks, int rank,
              const struct fcc_comm_options *options, fcc_comm **out, const char *called);
/* fcc_comm_init_refuse() with an id. */
int comm_join_refuse(fcc_context *context, const struct fcc_unique_id *id, int nranks, int rank, int status,
                     const char *reason);
/* Frees what this process has of a communicator. No other thread may be able to find the communicator any more. */
void comm_free(struct fcc_comm *comm);
/* In the child of a fork: resets comm_env.c's lock, which a thread of the parent may have held. */
void env_forked(void);

#endif
