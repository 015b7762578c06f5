/* SPDX-License-Identifier: MIT
 *
 * landings.h - what goes from GPUs to other nodes, and comes from there for GPUs: landings.c says how. The engine's, but for what says
 * otherwise.
 */
#ifndef FCC_DAEMON_WORKER_NODES_LANDINGS_H
#define FCC_DAEMON_WORKER_NODES_LANDINGS_H

#include "daemon/net/region.h"
#include "daemon/worker/comm/comm.h"

struct proxy;

/* Where what comes for a region in a GPU's memory lands, and who copies it on. */
int landing_add(const struct comm *c, int rank, uint32_t region, const struct device_memory *m, uint64_t bytes, void **base,
                struct net_landing *out, struct error *e);
/* No receiver knows the region any more (rank -1: any of the communicator's): when this returns nothing is copied there either. */
void landings_remove(struct worker *w, uint64_t number, int rank, uint32_t region);

/* The proxy's thread: a flag for a rank on that GPU has come, behind what it stands for; store it where the engine looks, with release. */
void landing_flag_raise(const struct device *d, _Atomic uint64_t *flag, uint64_t epoch);
/* ... DONE has come: what its node has put is to be seen by all kernels that are launched when the engine has seen it. */
void landings_flush(const struct device *d);

/* A rank here: its GPU's FIFO, and where flags for it come. */
int landings_rank_open(struct member *m, struct proxy *proxy, struct error *e);
/* The proxy's thread has ended. */
void landings_close(struct worker *w);

#endif
