/* SPDX-License-Identifier: MIT
 *
 * inside.h - the internal interface of a GPU plug-in's host files.
 *
 *   plugin.hip   the GPUs of the node; contexts and streams; the clock
 *   memory.hip   memory that clients import, and host memory that GPUs access
 *   direct.hip   memory that adapters write
 *   launch.hip   launches: an operator's plans on one GPU, made once, launched many times
 *   compile.hip  generated code: the compiler, and what it makes
 *   bound.hip    bound operators: the part of the plug-in that a client's process uses
 *   product.hip  ... of it, products through rings
 *   rules.hip    rules of trackers: what moves rows, and the client's kernels that count and wait
 *
 * Each open GPU has these streams. Operators run on `run`, in the order in which they were enqueued; it may block for long
 * while it waits for a client. Data from other nodes is copied on `in`, by the proxy's thread. Rules of trackers use streams of
 * their own, `rules`, and `looks` for words in memory, which nothing ever blocks, and what runs have noted is read on `reads`. Everything else (copies,
 * zeroing, clocks) uses `side`, so that it never waits for operators. For the same reason nothing here calls a function that
 * waits for the whole GPU, as hipFree() does.
 */
#ifndef FCC_KERNELS_GPU_PLUGIN_INSIDE_H
#define FCC_KERNELS_GPU_PLUGIN_INSIDE_H

#include <errno.h>

#include "kernels/gpu/abi.h"
#include "kernels/gpu/bound.h"
#include "kernels/gpu/runtime.h"

#define GPU_RULE_QUEUES 3 /* the last one: of additions */

struct gpu {
    bool open;
    hipStream_t run[GPU_LANES], side, in;
    hipStream_t rules[GPU_RULE_QUEUES], looks;
    uint32_t lane;     /* index in `run` of the queue of the newest launch */
    hipEvent_t moved;  /* recorded on one queue, awaited by another */
    hipEvent_t copied; /* recorded on `in`, awaited by `run` */
    uint32_t multiprocessors;
    bool follows;                 /* a kernel may be launched before the previous one has ended: gpu_follow() */
    bool hopper;                  /* it has the instructions of sm_90a */
    volatile unsigned *data_path; /* HIP, direct.hip: flushes the host data path; NULL: the GPU has none */
    void *clock_words; /* plugin.hip: struct clock_words in host memory: the engine's, and those of records_clock() */
    hipStream_t reads; /* of what runs have noted: records_clock() and records_read() */
    void *read_room;   /* host memory for what is read, GPU_READ_ROOM bytes */
    uint64_t opened_clock, opened_ns; /* the same moment by the GPU's clock and by CLOCK_MONOTONIC */
};

extern struct gpu gpus[GPU_MAX_GPUS];
extern bool gpus_share_by_ipc; /* share memory by IPC handles even if file descriptors are supported */

/* Sets the error "KIND GPU G: WHAT: the runtime's words". Returns -ENOMEM if memory is used up, else -EIO. */
int gpu_error(struct error *e, int gpu, const char *what, hipError_t status);
/* Bit p: GPU p can address the memory of GPU `gpu`. The GPU's own bit is set. */
uint32_t gpu_peers(int gpu);
#define GPU_READ_ROOM (32u << 10)
/* Reads the GPU's clock and CLOCK_MONOTONIC at the same moment. Engine's thread. */
int gpu_clock_read(int gpu, uint64_t *clock, uint64_t *ns, struct error *e);

int memory_alloc(int gpu, uint64_t bytes, struct gpu_memory *out, int *fd, struct error *e);
void memory_free(struct gpu_memory *m);
int memory_share(const struct gpu_memory *m, int *fd, struct error *e);
int memory_copy(void *to, int gpu, uint64_t from, uint64_t bytes, struct error *e);
int memory_write(int gpu, uint64_t to, const void *from, uint64_t bytes, struct error *e);
int memory_zero(int gpu, uint64_t at, uint64_t bytes, struct error *e);
/* Lets newly opened GPUs access all existing allocations. */
int memory_open(uint32_t gpus, struct error *e);
int word_store(int gpu, uint64_t address, uint64_t value, struct error *e);
int host_alloc(uint64_t bytes, void **memory, struct error *e);
void host_free(void *memory, uint64_t bytes);
int copy_in(int gpu, uint64_t to, const void *from, uint64_t row_bytes, uint64_t stride, uint32_t rows, struct error *e);
int copies_await(int gpu, struct error *e);
/* Lets launches enqueued from now on wait for the copies that have been enqueued. */
hipError_t copies_join(int gpu);
int memory_export(int gpu, uint64_t address, uint64_t bytes, int *fd, uint64_t *offset, struct error *e);
int writes_flush(int gpu, struct error *e);
/* Sets the properties so that the allocation can be exported, if the GPU supports that. */
void direct_allow(int gpu, hipMemAllocationProp *properties);
int host_register(void *memory, size_t bytes, uint64_t *address, struct error *e);
void host_unregister(void *memory);

/* rules.hip: a GPU's streams; the plug-in's functions; and the client's, for bound.hip */
hipError_t rules_open(struct gpu *g);
void rules_close(struct gpu *g);
int rule_start(const struct gpu_rule_run *run, struct error *e);
int words_look(int gpu, const uint64_t words[], uint32_t n, uint64_t to[], uint64_t *done, uint64_t number, struct error *e);
int rule_add(const struct gpu_rule_words *words, uint64_t n, void *stream, struct error *e);
int rule_await(const struct gpu_rule_words *words, void *stream, struct error *e);
int rule_run(const struct gpu_rule_words *words, const struct gpu_rule_work *work, void *stream, struct error *e);
const void *rules_kernel(void); /* one of the client's; loading it loads the others */

int launch_make(int gpu, const struct gpu_shape *shape, const uint64_t flags[], const struct gpu_run runs[], int nruns,
                struct gpu_launch **out, struct error *e);
void launch_free(struct gpu_launch *l);
int launch_numbers(struct gpu_launch *l, int run, const int64_t numbers[], uint32_t count, uint64_t *address, struct error *e);
int launch_start(struct gpu_launch *l, struct gpu_call *call, const uint64_t staging[], const uint64_t slots[],
                 struct gpu_waits *waits, uint32_t lane, struct error *e);
int launch_code(struct gpu_launch *l, const struct gpu_code *code, struct error *e);
/* For bound.hip: a kernel of each file that has some. Returns their number. */
#define GPU_FILES 10
int kernels_one_of_each_file(const void *functions[GPU_FILES]);
/* For bound.hip. launch_addresses() sets the addresses of all ranks' staging memory and packet memory. launch_complete() fills in what a call has of
 * its launch, sets waits->in_kernel, and returns the argument `params` for launch_enqueue(), which enqueues the call on the
 * caller's stream. follows: as gpu_kernel_launch()'s. */
int launch_addresses(struct gpu_launch *l, const uint64_t staging[], const uint64_t slots[], struct error *e);
void *launch_complete(struct gpu_launch *l, struct gpu_call *call, struct gpu_waits *waits);
hipError_t launch_enqueue(const struct gpu_launch *l, struct gpu_call *call, void *params, hipStream_t stream, bool follows);
int launch_times(struct gpu_launch *l, int run, struct slice_time out[], struct error *e);
uint32_t launch_workgroups(const struct gpu_launch *l);

#endif
