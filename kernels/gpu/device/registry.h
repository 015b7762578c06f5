/* SPDX-License-Identifier: MIT
 *
 * registry.h - the operators' kernels, as the host's side of a plug-in (kernels/gpu/plugin/launch.hip) chooses and launches
 * them.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_REGISTRY_H
#define FCC_KERNELS_GPU_DEVICE_REGISTRY_H

#include "kernels/gpu/abi.h"

/* What the host needs to launch an operator's kernel for a dtype. */
struct gpu_kernel {
    const void *function; /* __global__ void (struct gpu_call) */
    unsigned threads;
    size_t shared_bytes;         /* dynamic */
    unsigned per_multiprocessor; /* workgroups; 0: as many as fit */
    unsigned cluster = 0;        /* workgroups of a cluster, of which the number of workgroups is a multiple; 0 means 1 */
    unsigned workgroups = 0;     /* the number of workgroups that the kernel is made for; 0: any */
};
/* over_nodes: get the kernel for ranks on several nodes (shape.over_nodes). There are only general kernels for these: the
 * faster kernels below only store to peer GPUs, and over several nodes the network takes most of the time. */
struct gpu_kernel gpu_embedding_kernel(enum fcc_dtype dtype, bool over_nodes);
struct gpu_kernel gpu_gemv_kernel(enum fcc_dtype dtype, bool over_nodes);
struct gpu_kernel gpu_gemm_kernel(enum fcc_dtype dtype, int gpu, bool over_nodes);

/* The number of a GPU's multiprocessors that a kernel may occupy if it may wait there for other ranks' streams. The rest stay
 * free for kernels that those streams depend on and that must run on this GPU, for example a small kernel that sends
 * something. */
static inline uint32_t gpu_multiprocessors_beside(uint32_t all)
{
    return all - all / 32;
}

/* The number of multiprocessors that an operator takes. A gemv on one node may wait (packets, no flags) and takes fewer. This
 * costs nothing: of 4096, 8192 or 12288 columns the busiest of 132 multiprocessors gets as many as the busiest of 128. */
static inline uint32_t gpu_multiprocessors_for(const struct gpu_shape *shape, uint32_t all)
{
    bool may_wait = shape->compute == COMPUTE_GEMV && shape->nranks > 1 && !shape->over_nodes;

    return may_wait ? gpu_multiprocessors_beside(all) : all;
}

/* A faster kernel for the same gemm plans, for calls whose addresses suit the copy engine. It takes a second argument. */
struct gpu_gemm_quick {
    struct gpu_kernel kernel; /* function is NULL: there is none for this GPU or these plans */
    uint32_t tile_rows;
    int64_t rows[GPU_MAX_RUNS];      /* rows of a */
    uint32_t together[GPU_MAX_RUNS]; /* slices that make one tile */
    uint32_t high[GPU_MAX_RUNS];     /* tiles that have the same columns, at the beginning of the plan */
    bool spread;                     /* stores to other ranks are spread over the time of a tile */
    bool can_wait;                   /* the kernel can wait for other ranks' words before it stores anything to them */
};
void gpu_gemm_quick_choose(const struct gpu_shape *shape, int gpu, const struct gpu_run runs[], int nruns,
                           struct gpu_gemm_quick *out);
/* The second argument for a call (TMA descriptors), valid until the next one; NULL if the call's addresses do not suit. */
void *gpu_gemm_quick_maps(const struct gpu_gemm_quick *quick, const struct gpu_call *call, const struct gpu_fixed *fixed);
/* Make the kernel itself wait for words that need not have come before it begins. False: it cannot. */
bool gpu_gemm_quick_gate(const struct gpu_gemm_quick *quick, void *maps, const struct gpu_waits *waits);

/* A faster kernel for gemv. The one for a single row needs addresses that suit the copy engine, the one for several rows does
 * not. */
struct gpu_gemv_quick {
    struct gpu_kernel kernel;
    uint32_t most; /* the most workgroups that run at a time */
    uint32_t together[GPU_MAX_RUNS];
    /* Several rows: jobs of a call, if workgroups reduce what they computed (kernels/gpu/device/exchange/reduce_hopper.h);
     * otherwise 0 */
    uint32_t jobs;
    uint32_t tile, reduced; /* one row: columns of a compute slice, of a reduce slice; 0: the kernel is for several rows */
};
void gpu_gemv_quick_choose(const struct gpu_shape *shape, int gpu, const struct gpu_run runs[], int nruns,
                           struct gpu_gemv_quick *out);
void *gpu_gemv_quick_maps(const struct gpu_gemv_quick *quick, const struct gpu_call *call, const struct gpu_fixed *fixed);

#endif
