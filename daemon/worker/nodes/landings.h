/* SPDX-License-Identifier: MIT
 *
 * landings.h - data from GPUs to other nodes, and from there to GPUs (landings.c). Engine thread, unless said otherwise.
 */
#ifndef FCC_DAEMON_WORKER_NODES_LANDINGS_H
#define FCC_DAEMON_WORKER_NODES_LANDINGS_H

#include "daemon/net/region.h"
#include "daemon/worker/comm/comm.h"

struct proxy;

/* Make the receive bounce buffer of a region in a GPU's memory; *out tells the proxy how to copy from there. */
int landing_add(const struct comm *c, int rank, uint32_t region, const struct device_memory *m, uint64_t bytes, void **base,
                struct net_landing *out, struct error *e);
/* The proxy no longer knows the region (rank -1: all regions of the communicator). Waits for copies into its memory to end. */
void landings_remove(struct worker *w, uint64_t number, int rank, uint32_t region);

/* The proxy thread: a flag for a rank on GPU d has come, after the data that it stands for. Store it for the engine (release). */
void landing_flag_raise(const struct device *d, _Atomic uint64_t *flag, uint64_t epoch);
/* The proxy thread: DONE has come. Kernels launched after the engine has seen it see all data that its node has put. */
void landings_flush(const struct device *d);

/* For a rank here: open its GPU's FIFO to the proxy, and make the memory that flags for the rank are stored in. */
int landings_rank_open(struct member *m, struct proxy *proxy, struct error *e);
/* The proxy's thread has ended. */
void landings_close(struct worker *w);

#endif
