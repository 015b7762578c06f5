/* SPDX-License-Identifier: MIT
 *
 * registry.h - what the host's side of a plug-in (kernels/gpu/plugin/launch.hip) has to know of the operators' kernels.
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
    unsigned cluster = 0;        /* workgroups that work together: their number is a multiple of it; 0: 1 */
    unsigned workgroups = 0;     /* that the kernel is made for; 0: any number */
};
/* Over nodes: the one for ranks on several nodes (shape.over_nodes). It is always a general one: the quicker kernels below know only
 * peers, and over nodes the link is what takes the time. */
struct gpu_kernel gpu_embedding_kernel(enum fcc_dtype dtype, bool over_nodes);
struct gpu_kernel gpu_gemv_kernel(enum fcc_dtype dtype, bool over_nodes);
struct gpu_kernel gpu_gemm_kernel(enum fcc_dtype dtype, int gpu, bool over_nodes);

/* So many of a GPU's multiprocessors may a kernel take that may be there, and wait, before other ranks' streams have come: what these
 * wait for may have to run on this GPU, a small kernel that sends something for example. */
static inline uint32_t gpu_multiprocessors_beside(uint32_t all)
{
    return all - all / 32;
}

/* How many of them an operator takes: fewer if it is a gemv (plan.only_slots). It costs nothing: 4096, 8192 or 12288 columns are as many
 * for each of 132 as for each of 128 at most. */
static inline uint32_t gpu_multiprocessors_for(const struct gpu_shape *shape, uint32_t all)
{
    bool may_wait = shape->compute == COMPUTE_GEMV && shape->nranks > 1 && !shape->over_nodes;

    return may_wait ? gpu_multiprocessors_beside(all) : all;
}

/* A second kernel for the same plans, quicker, but only for calls whose addresses suit it. Takes a second argument. */
struct gpu_gemm_quick {
    struct gpu_kernel kernel; /* function is NULL: there is none for this GPU or these plans */
    uint32_t tile_rows;
    int64_t rows[GPU_MAX_RUNS];      /* of a */
    uint32_t together[GPU_MAX_RUNS]; /* slices that make one tile */
    uint32_t high[GPU_MAX_RUNS];     /* tiles that have the same columns, at the beginning of the plan */
    bool spread;                     /* what is for others leaves over the time of a tile */
    bool can_wait;                   /* ... for others' words, before it stores anything there */
};
void gpu_gemm_quick_choose(const struct gpu_shape *shape, int gpu, const struct gpu_run runs[], int nruns,
                           struct gpu_gemm_quick *out);
/* The second argument for a call, kept until the next one; NULL if the call does not suit. */
void *gpu_gemm_quick_maps(const struct gpu_gemm_quick *quick, const struct gpu_call *call, const struct gpu_fixed *fixed);
/* Let the call wait itself for what need not have come before its kernel begins. False: it cannot. */
bool gpu_gemm_quick_gate(const struct gpu_gemm_quick *quick, void *maps, const struct gpu_waits *waits);

/* The same for gemv: for calls of any addresses, or, where it is for one row, for those that suit the copy engine. */
struct gpu_gemv_quick {
    struct gpu_kernel kernel;
    uint32_t most; /* workgroups that run at a time */
    uint32_t together[GPU_MAX_RUNS];
    /* For several rows: of a call, if workgroups reduce what they compute (kernels/gpu/device/exchange/reduce_hopper.h); or 0 */
    uint32_t jobs;
    uint32_t tile, reduced; /* for one row: columns of the slices that are computed and reduced; 0: for several */
};
void gpu_gemv_quick_choose(const struct gpu_shape *shape, int gpu, const struct gpu_run runs[], int nruns,
                           struct gpu_gemv_quick *out);
void *gpu_gemv_quick_maps(const struct gpu_gemv_quick *quick, const struct gpu_call *call, const struct gpu_fixed *fixed);

#endif
