/* SPDX-License-Identifier: MIT
 *
 * gpu_data.h - data from GPUs to other nodes, and from there to GPUs (gpu_data.c). Engine thread, unless said otherwise.
 */
#ifndef FCC_DAEMON_WORKER_NODES_GPU_DATA_H
#define FCC_DAEMON_WORKER_NODES_GPU_DATA_H

#include "daemon/net/region.h"
#include "daemon/worker/comm/comm.h"

struct proxy;

/* Make the receive bounce buffer of a region in a GPU's memory; *out tells the proxy how to copy from there. */
int receive_bounce_add(const struct comm *c, int rank, uint32_t region, const struct device_memory *m, uint64_t bytes,
                       void **base, struct net_bounce *out, struct error *e);
/* The proxy no longer knows the region (rank -1: all regions of the communicator). Waits for copies into its memory to end. */
void receive_bounces_remove(struct worker *w, uint64_t number, int rank, uint32_t region);

/* The proxy thread: a flag for a rank on GPU d has come, after the data that it stands for. Store it for the engine (release). */
void gpu_data_flag_raise(const struct device *d, _Atomic uint64_t *flag, uint64_t epoch);
/* The proxy thread: DONE has come. Kernels launched after the engine has seen it see all data that its node has put. */
void gpu_data_flush(const struct device *d);

/* For a rank here: open its GPU's FIFO to the proxy, and make the memory that flags for the rank are stored in. */
int gpu_data_rank_open(struct member *m, struct proxy *proxy, struct error *e);
/* The proxy's thread has ended. */
void gpu_data_close(struct worker *w);

#endif
