/* SPDX-License-Identifier: MIT
 *
 * steps.h - communicators over several nodes whose ranks are on GPUs: steps.c says how. The engine's, but for what says
 * otherwise.
 */
#ifndef FCC_DAEMON_WORKER_DEVICE_GPU_STEPS_H
#define FCC_DAEMON_WORKER_DEVICE_GPU_STEPS_H

#include "daemon/net/region.h"
#include "daemon/worker/device/launch.h"

struct member;
struct gpus;
struct proxy;

/* ---- memory ---- */

/* Zeroed memory that GPUs and the CPU see at the same address, charged to the user; gpus_host_free() keeps it while kernels run. */
int gpus_host_alloc(struct worker *w, uint64_t bytes, struct device_memory *out, struct error *e);
void gpus_host_free(struct device_memory *m);
/* No launch is in flight (or no GPU will see it any more): what was kept goes. */
void gpus_host_retired_free(struct gpus *g);
/* Where what comes for a region in a GPU's memory lands, and who copies it on. */
int gpus_landing_add(const struct comm *c, int rank, uint32_t region, const struct device_memory *m, uint64_t bytes,
                     void **base, struct net_landing *out, struct error *e);
/* No receiver knows the region any more (rank -1: any of the communicator's): when this returns nothing is copied there either. */
void gpus_landings_remove(struct worker *w, uint64_t number, int rank, uint32_t region);

/* The proxy's thread: a flag for a rank on that GPU has come, behind what it stands for; store it where the engine looks, with release. */
void gpus_flag_raise(const struct device *d, _Atomic uint64_t *flag, uint64_t epoch);
/* ... DONE has come: what its node has put is to be seen by all kernels that are launched when the engine has seen it. */
void gpus_done_flush(const struct device *d);

/* A rank here: its GPU's FIFO, and where flags for it come. */
int gpus_nodes_open(struct member *m, struct proxy *proxy, struct error *e);
/* The proxy's thread has ended. */
void gpus_nodes_close(struct gpus *g);

/* ---- operators ---- */

/* Which steps it has, and what each waits for; once. */
int gpus_steps_make(struct launch *l, struct error *e);
/* It begins: nothing has come. l->step is the first. */
void gpus_steps_begin(struct launch *l);
/* The one after l->step; GPU_STEPS: there is none. */
enum gpu_step gpus_step_next(const struct launch *l);
/* The engine or the watching thread: may the step begin? */
bool gpus_step_may_begin(struct launch *l, enum gpu_step step);
/* What the kernels of l->step are told. */
void gpus_nodes_fill(const struct launch *l, const struct device *d, struct gpu_nodes *out);

#endif
