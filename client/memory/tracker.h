/* SPDX-License-Identifier: MIT */
#ifndef FCC_CLIENT_MEMORY_TRACKER_H
#define FCC_CLIENT_MEMORY_TRACKER_H

#include "client/core/context.h"

/* The communicator's end, or the connection's: frees what this process has of its tracker, without a word to the worker. The thread that
 * calls the program's functions has ended when this returns. */
void tracker_end(struct fcc_comm *comm);

#endif
