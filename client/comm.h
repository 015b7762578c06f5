/* SPDX-License-Identifier: MIT
 *
 * comm.h - making and freeing communicators, for the other public functions.
 */
#ifndef FCC_CLIENT_COMM_H
#define FCC_CLIENT_COMM_H

#include "client/core/context.h"

/* fcc_get_unique_id() and fcc_comm_init() with checked pointers. called: the function that the program called, for errors;
 * NULL: these two. */
int unique_id_ask(struct fcc_context *c, struct fcc_unique_id *out, const char *called);
int comm_join(fcc_context *context, const struct fcc_unique_id *id, int nranks, int rank,
              const struct fcc_comm_options *options, fcc_comm **out, const char *called);
/* fcc_comm_init_refuse() with an id. */
int comm_join_refuse(fcc_context *context, const struct fcc_unique_id *id, int nranks, int rank, int status,
                     const char *reason);
/* Free all that this process has of a communicator that no other thread can find any more. */
void comm_free(struct fcc_comm *comm);
/* In the child of a fork: comm_env.c's lock is free. */
void env_forked(void);

#endif
