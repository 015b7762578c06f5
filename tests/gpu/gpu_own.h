/* SPDX-License-Identifier: MIT
 *
 * gpu_own.h - a rank on an NVIDIA GPU (collective_bed.h) whose tensors lie in memory that this process has allocated, one rank on each GPU.
 */
#ifndef GPU_OWN_H
#define GPU_OWN_H

#include "tests/gpu/gpu_ends.h"
#include "tests/operators/collective_bed.h"

static inline void memory_move(const struct rank *r, int which, bool out)
{
    if (out)
        CU(gpu.copy_out(r->images[which], r->memory[which], ROOM, r->stream));
    else
        CU(gpu.copy_in(r->memory[which], r->images[which], ROOM, r->stream));
    CU(gpu.stream_synchronize(r->stream));
}

static inline void own_open(struct rank *r, int rank, const struct ranks *all, uint32_t limit_ms)
{
    *r = (struct rank){.comm = comm_open(all, rank, limit_ms), .rank = rank, .n = all->n, .move = memory_move};
    gpu_open(r->comm);
    r->stream = stream_open(CUDA_STREAM_OWN_ORDER);
    for (int i = 0; i < 2; i++) {
        CU(gpu.memory_alloc(&r->memory[i], ROOM));
        r->images[i] = calloc(1, ROOM);
        CHECK(r->images[i] != NULL);
    }
}

static inline void own_close(const struct rank *r)
{
    OK(fcc_noop(r->comm));
    fcc_comm_destroy(r->comm);
    fcc_disconnect(comm_context());
}

static inline void ranks_of_gpus_run(void (*run)(int, const struct ranks *, void *), void *argument)
{
    ranks_run(gpus, run, argument);
}

#endif
