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
    bool loaded = false;         /* function: a hipFunction_t that was loaded at run time */
};
/* The number of a GPU's multiprocessors that a kernel may occupy if it may wait there for other ranks' streams. The rest stay
 * free for kernels that those streams depend on and that must run on this GPU, for example a small kernel that sends
 * something. */
static inline uint32_t gpu_multiprocessors_beside(uint32_t all)
{
    return all - all / 32;
}

/* The number of multiprocessors that an operator takes. A gemv on one node may wait (packets, no flags) and takes fewer. This
 * costs nothing: of 4096, 8192 or 12288 columns the busiest of 132 multiprocessors gets as many as the busiest of 128. So do products
 * whose rows are put through rings: two communicators' kernels, which ranks may have begun in opposite orders, both find room. */
static inline uint32_t gpu_multiprocessors_for(const struct gpu_shape *shape, uint32_t all)
{
    bool may_wait = shape->waits || (shape->compute == COMPUTE_GEMV && shape->nranks > 1 && !shape->over_nodes);

    return may_wait ? gpu_multiprocessors_beside(all) : all;
}

/* A kernel that was chosen for a launch, and what its functions have found out about the plans. */
struct gpu_choice {
    const struct gpu_kernel_entry *entry;
    struct gpu_kernel kernel;
    uint32_t most;       /* the most workgroups that run at a time; 0: as many as fit */
    uint32_t workgroups; /* of a call */
    /* Specialised kernels: slices that make one tile. */
    uint32_t together[GPU_MAX_RUNS];
    /* gemm's. */
    uint32_t tile_rows;
    int64_t rows[GPU_MAX_RUNS];  /* rows of a */
    uint32_t high[GPU_MAX_RUNS]; /* tiles that have the same columns, at the beginning of the plan */
    bool spread;                 /* stores to other ranks are spread over the time of a tile */
    bool can_wait;               /* the kernel can wait for other ranks' words before it stores anything to them */
    /* gemv's for several rows: jobs of a call, if workgroups reduce what they computed
     * (kernels/gpu/device/exchange/reduce_hopper.h); otherwise 0. */
    uint32_t jobs;
    /* gemv's for one row: columns of a compute slice, of a reduce slice. tile is 0: the kernel is for several rows. */
    uint32_t tile, reduced;
};

/* A row of the kernels' table (kernels/gpu/plugin/launch.hip). Over several nodes there are only general kernels: specialised ones
 * only store to peer GPUs, and over several nodes the network takes most of the time. */
struct gpu_kernel_entry {
    uint8_t compute, exchange;
    uint16_t dtypes; /* a bit (1 << enum fcc_dtype) each */
    uint8_t where;   /* on one node, over several, or both */
    uint8_t stages;  /* stages of an epilogue, a bit each, that the kernel can apply */
    uint8_t factors; /* enum factors, that it can have */
    bool hopper;     /* only on GPUs of compute capability 9.0 */
    bool all_calls;  /* params() never returns NULL */
    /* Whether the kernel is for these plans on this GPU, which is the current device; fills in *out, which is zeroed. */
    bool (*fits)(const struct gpu_shape *shape, int gpu, const struct gpu_run runs[], int nruns, struct gpu_choice *out);
    /* The second argument for a call (TMA descriptors and the like), valid until the next one. NULL: the call's addresses do not
     * suit. No function: the kernel takes no second argument. */
    void *(*params)(const struct gpu_choice *choice, const struct gpu_call *call, const struct gpu_fixed *fixed);
    /* Make the kernel itself wait for words that need not have come before it begins. False, or no function: it cannot. */
    bool (*gate)(const struct gpu_choice *choice, void *params, const struct gpu_waits *waits);
};

/* Calls a function template for a dtype. */
#define GPU_BY_DTYPE(dtype, function, ...)                                                                                     \
    ((dtype) == FCC_F16    ? function<gpu_f16>(__VA_ARGS__)                                                                    \
     : (dtype) == FCC_BF16 ? function<gpu_bf16>(__VA_ARGS__)                                                                   \
                           : function<float>(__VA_ARGS__))

#define GPU_FITS(name)                                                                                                         \
    bool name(const struct gpu_shape *shape, int gpu, const struct gpu_run runs[], int nruns, struct gpu_choice *out)
GPU_FITS(gpu_bag_fits);
GPU_FITS(gpu_gemv_fits);
GPU_FITS(gpu_gemm_fits);
GPU_FITS(gpu_gemv_factors_fits);
GPU_FITS(gpu_gemm_factors_fits);
void *gpu_factors_params(const struct gpu_choice *choice, const struct gpu_call *call, const struct gpu_fixed *fixed);
GPU_FITS(gpu_vector_put_fits);
GPU_FITS(gpu_vector_reduce_fits);
GPU_FITS(gpu_step_fits);
GPU_FITS(gpu_noop_fits);
void *gpu_noop_params(const struct gpu_choice *choice, const struct gpu_call *call, const struct gpu_fixed *fixed);
bool gpu_noop_gate(const struct gpu_choice *choice, void *params, const struct gpu_waits *waits);
/* For calls whose addresses suit the copy engine; of gemv's, the one for several rows takes any. */
GPU_FITS(gpu_gemm_hopper_fits);
void *gpu_gemm_hopper_params(const struct gpu_choice *choice, const struct gpu_call *call, const struct gpu_fixed *fixed);
bool gpu_gemm_hopper_gate(const struct gpu_choice *choice, void *params, const struct gpu_waits *waits);
GPU_FITS(gpu_gemv_hopper_fits);
void *gpu_gemv_hopper_params(const struct gpu_choice *choice, const struct gpu_call *call, const struct gpu_fixed *fixed);

#endif
