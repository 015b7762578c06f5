/* SPDX-License-Identifier: MIT
 *
 * bound.h - an operator that is launched by each rank's own process: what the worker hands a client, and what the client asks of the
 * plug-in, which it loads, too. Plain C and C++.
 *
 * The worker makes a plan for each rank, as for an operator that it runs itself, and memory for each rank, an `area`: its flags
 * (GPU_FLAG_WORDS), the words by which it decides about offers (GPU_OFFER_WORDS), then its slots. The client imports the areas and, unless only words are
 * sent, the other ranks' results, and gives the plug-in the plan and the addresses.
 *
 * Runs have epochs 1, 2, 3, ... of the operator's own, so its flags grow, and stamps are epochs' lower halves. These come again after 2^32
 * runs, but what lies in a slot is of the run before the last then, because all runs write the same words. (A fresh one is zeroed,
 * and the first run is not 0.)
 *
 * Why a run need not wait for the other ranks before it begins, and when it does. Kernels of one rank follow each other on its stream, or on
 * streams that its program orders. An operator that sends words only (plan.only_slots) may write to a rank that still reads the words of
 * run n - 1, which lie in the other half of its slots; those of n - 2 it has done with, because it has sent its words of n - 1.
 * Anything else is stored where the other rank's program may still use the last result, and raises flags. So before it a small kernel (meet)
 * says to all ranks that this one's stream has come, in their areas, and waits until all have said so. It takes one wave; and the
 * kernel behind it then waits for what runs or can run, as those of the daemon (daemon/worker/device/gpu/device.c). A kernel that can wait itself before it stores
 * (struct gpu_waits) says so itself, and computes meanwhile.
 *
 * Offers (proto.h, struct fcc_prepared_words): operators whose kernels a client puts onto its streams before the worker has said that they may
 * run. Each run has a word for that, which is not another one's before this one is over (GPU_OFFER_WORDS): so decisions may come
 * in any order, and long before the kernel does. A run is of the same problem each time, but its inputs may lie elsewhere, and its
 * result where no other rank stores into it. A noop is nothing but the meeting.
 *
 * The end. The worker stores the largest epoch as each rank's failure epoch, or, when the worker has died, each client does so in its own area:
 * all kernels leave, those that have not begun yet, too.
 */
#ifndef FCC_KERNELS_GPU_BOUND_H
#define FCC_KERNELS_GPU_BOUND_H

#include "kernels/gpu/abi.h"

#ifdef __cplusplus
extern "C" {
#endif

#define GPU_PREPARED_INPUTS 2

/* What begins a plan; the slices and signal groups follow it. */
struct gpu_prepared_plan {
    uint32_t abi; /* GPU_PLUGIN_ABI */
    uint32_t rank;
    uint64_t bytes; /* of the whole */
    struct gpu_shape shape;
    uint32_t only_slots; /* 1: it need not meet the others, and stores into no result but its own */
    uint32_t ngroups;
    uint32_t first[GPU_PHASES + 1];
    uint32_t shares_result; /* 1: ranks store into each other's results */
    uint64_t sets[GPU_SETS];
    uint64_t slices, groups;              /* where they begin in the plan */
    uint64_t slots_at, slots_bytes;       /* in an area: where the slots begin; of one half of them */
    struct gpu_output out[FCC_MAX_RANKS]; /* data: where it begins in the memory of that rank's result */
    struct gpu_input in;                  /* addresses: where they begin in the memory of gemv's x and w, gemm's a and b */
};

/* Addresses on the rank's GPU, in this process. */
struct gpu_prepared_memory {
    uint64_t inputs[GPU_PREPARED_INPUTS]; /* the memory of gemv's x and w, gemm's a and b; 0: none */
    uint64_t areas[FCC_MAX_RANKS];        /* [nranks] */
    uint64_t results[FCC_MAX_RANKS];      /* [nranks]; the others': if it needs them */
    uint64_t begun, ended;                /* struct fcc_prepared_words, in host memory */
    struct gpu_stream_places places;      /* n is 0: no runs are offered */
};

/* The inputs' first elements' addresses. A noop's: without meaning. */
static inline void gpu_prepared_inputs(const struct gpu_prepared_plan *plan, const struct gpu_prepared_memory *memory,
                                       uint64_t inputs[GPU_PREPARED_INPUTS])
{
    bool is_gemv = plan->shape.compute == COMPUTE_GEMV;

    inputs[0] = memory->inputs[0] + (is_gemv ? plan->in.gemv.x : plan->in.gemm.a);
    inputs[1] = memory->inputs[1] + (is_gemv ? plan->in.gemv.w : plan->in.gemm.b);
}

/* Those of a call of one run. */
static inline void gpu_call_inputs_set(struct gpu_call *call, uint32_t compute, const uint64_t inputs[GPU_PREPARED_INPUTS])
{
    if (compute == COMPUTE_GEMV) {
        call->in[0].gemv.x = inputs[0];
        call->in[0].gemv.w = inputs[1];
    } else if (compute == COMPUTE_GEMM) {
        call->in[0].gemm.a = inputs[0];
        call->in[0].gemm.b = inputs[1];
    }
}

/* A run that is offered. */
struct gpu_offered_run {
    uint64_t epoch;
    /* Their first elements' addresses: gemv's x and w, gemm's a and b; y, c. noop: 0. */
    uint64_t inputs[GPU_PREPARED_INPUTS], result;
    uint32_t slot, value; /* the words of the stream that the operator has, if the worker runs it itself */
};

/* As many as a rank has operators in flight, at most: run n + GPU_OFFER_WORDS is offered when run n has been told to be over. */
#define GPU_OFFER_WORDS 64u

/* In an area: the word by which the worker decides about its rank's run. It becomes GPU_GRANTED() or GPU_DECLINED() of it. */
static inline uint64_t gpu_offer_word_at(uint64_t run)
{
    return (GPU_FLAG_WORDS + run % GPU_OFFER_WORDS) * sizeof(uint64_t);
}

/* In an area: where the slots begin. */
#define GPU_PREPARED_SLOTS_AT (((GPU_FLAG_WORDS + GPU_OFFER_WORDS) * sizeof(uint64_t) + 255) / 256 * 256)

struct gpu_prepared;

/* For the client. Errors as the plug-in's: 0 or a negative errno value and why. */
struct gpu_prepared_functions {
    uint32_t abi;
    /* gpu: as the process's runtime numbers it. plan: `bytes` that came from the worker. Any thread; one at a time. */
    int (*open)(int gpu, const struct gpu_prepared_plan *plan, size_t bytes, const struct gpu_prepared_memory *memory,
                struct gpu_prepared **out, struct error *e);
    /* Enqueue a run: epochs from 1 on, one after the other. The GPU is the thread's current one. Does not wait. One thread at a time. */
    int (*start)(struct gpu_prepared *p, uint64_t epoch, void *stream, struct error *e);
    /* Enqueue one that is offered, in the same way; all of its runs are. */
    int (*offer)(struct gpu_prepared *p, const struct gpu_offered_run *run, void *stream, struct error *e);
    /* Its runs have ended. */
    void (*close)(struct gpu_prepared *p);
};

const struct gpu_prepared_functions *gpu_prepared_functions(void);
typedef const struct gpu_prepared_functions *gpu_prepared_functions_function(void);
#define GPU_PREPARED_SYMBOL "gpu_prepared_functions"

/* Where an area's failure epoch lies. */
#define GPU_PREPARED_FAILURE_AT (GPU_FLAGS * sizeof(uint64_t))

#ifdef __cplusplus
}
#endif
#endif
