/* SPDX-License-Identifier: MIT
 *
 * inside.h - what the host files of a GPU plug-in offer each other.
 *
 *   plugin.hip   which GPUs there are; contexts and streams; the clock
 *   memory.hip   memory that clients import, and host memory that GPUs see
 *   direct.hip   memory that adapters write
 *   launch.hip   an operator's runs on one GPU: made once, launched many times
 *   bound.hip the same for one that a client launches: what a client's process uses of the plug-in
 *
 * Each open GPU has three streams. Operators run on `run`, in the order in which they were enqueued; it may stand for long,
 * waiting for a client. What comes from other nodes is copied on `in`, by the proxy's thread. Everything else (copies, zeroing, clocks)
 * uses `side`, so it never waits behind that. For the same reason nothing here calls what waits for a whole GPU, as hipFree() does.
 */
#ifndef FCC_KERNELS_GPU_PLUGIN_INSIDE_H
#define FCC_KERNELS_GPU_PLUGIN_INSIDE_H

#include <errno.h>

#include "kernels/gpu/abi.h"
#include "kernels/gpu/runtime.h"

struct gpu {
    bool open;
    hipStream_t run[GPU_LANES], side, in;
    uint32_t lane;     /* of `run`, by which the newest launch came */
    hipEvent_t moved;  /* recorded on one lane, awaited by another */
    hipEvent_t copied; /* recorded on `in`, awaited by `run` */
    uint32_t multiprocessors;
    bool follows;                     /* its kernels may be launched when the one before has not ended: gpu_follow() */
    volatile unsigned *data_path;     /* direct.hip's, of HIP; NULL: there is none */
    void *clock_words;                /* plugin.hip's; in host memory */
    uint64_t opened_clock, opened_ns; /* the same moment by the GPU's clock and by CLOCK_MONOTONIC */
};

extern struct gpu gpus[GPU_MAX_GPUS];
extern bool gpus_share_by_ipc; /* whatever the driver could */

/* Says "gpu G: WHAT: the runtime's words". -ENOMEM if memory is used up, else -EIO. */
int gpu_error(struct error *e, int gpu, const char *what, hipError_t status);
/* Bit p: GPU p can address GPU gpu's memory; itself too. */
uint32_t gpu_peers(int gpu);
/* A moment by GPU's clock and by CLOCK_MONOTONIC. */
int gpu_clock_read(int gpu, uint64_t *clock, uint64_t *ns, struct error *e);
uint64_t host_clock_ns(void);

int memory_alloc(int gpu, uint64_t bytes, struct gpu_memory *out, int *fd, struct error *e);
void memory_free(struct gpu_memory *m);
int memory_copy(void *to, int gpu, uint64_t from, uint64_t bytes, struct error *e);
int memory_write(int gpu, uint64_t to, const void *from, uint64_t bytes, struct error *e);
int memory_zero(int gpu, uint64_t at, uint64_t bytes, struct error *e);
/* Give all memory there is to the GPUs that were opened last. */
int memory_open(uint32_t gpus, struct error *e);
int word_store(int gpu, uint64_t address, uint64_t value, struct error *e);
int host_alloc(uint64_t bytes, void **memory, struct error *e);
void host_free(void *memory, uint64_t bytes);
int copy_in(int gpu, uint64_t to, const void *from, uint64_t row_bytes, uint64_t stride, uint32_t rows, struct error *e);
int copies_await(int gpu, struct error *e);
/* What is enqueued on `run` from now on waits for the copies that have been enqueued. */
hipError_t copies_join(int gpu);
int memory_export(int gpu, uint64_t address, uint64_t bytes, int *fd, uint64_t *offset, struct error *e);
int writes_flush(int gpu, struct error *e);
/* What is allocated so can be exported, if the GPU can. */
void direct_allow(int gpu, hipMemAllocationProp *properties);
int host_register(void *memory, size_t bytes, uint64_t *address, struct error *e);
void host_unregister(void *memory);

int launch_make(int gpu, const struct gpu_shape *shape, const uint64_t flags[], const struct gpu_run runs[], int nruns,
                struct gpu_launch **out, struct error *e);
void launch_free(struct gpu_launch *l);
int launch_tables(struct gpu_launch *l, int run, const int64_t first[], uint32_t ntables, uint64_t *address, struct error *e);
int launch_start(struct gpu_launch *l, struct gpu_call *call, const uint64_t staging[], const uint64_t slots[],
                 struct gpu_waits *waits, uint32_t lane, struct error *e);
/* For bound.hip: where the slots of all ranks are; what a call has of its launch (returns what launch_enqueue() takes; waits->in_kernel:
 * the kernel waits for the words itself); and the call by the caller's stream, whatever is on it. */
int launch_slots(struct gpu_launch *l, const uint64_t slots[], struct error *e);
void *launch_complete(struct gpu_launch *l, struct gpu_call *call, struct gpu_waits *waits);
hipError_t launch_enqueue(const struct gpu_launch *l, struct gpu_call *call, void *maps, hipStream_t stream);
int launch_times(struct gpu_launch *l, int run, struct slice_time out[], struct error *e);
uint32_t launch_workgroups(const struct gpu_launch *l);

#endif
