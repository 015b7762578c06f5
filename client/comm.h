/* SPDX-License-Identifier: MIT
 *
 * comm.h - communicators, as the rest of the entry points need them.
 */
#ifndef FCC_CLIENT_COMM_H
#define FCC_CLIENT_COMM_H

#include "client/core/context.h"

/* fcc_get_unique_id() and fcc_comm_init() for what the program has called; NULL: those. The arguments that must be there are. */
int unique_id_ask(struct fcc_context *c, struct fcc_unique_id *out, const char *called);
int comm_join(fcc_context *context, const struct fcc_unique_id *id, int nranks, int rank,
              const struct fcc_comm_options *options, fcc_comm **out, const char *called);
/* fcc_comm_init_refuse() with an id. */
int comm_join_refuse(fcc_context *context, const struct fcc_unique_id *id, int nranks, int rank, int status,
                     const char *reason);
/* All that this process has of it; nobody else knows of it any more. */
void comm_free(struct fcc_comm *comm);
/* In the child of a fork: comm_env.c's lock is free. */
void env_forked(void);

#endif
