/* SPDX-License-Identifier: MIT
 *
 * bound.h - bound operators, which each rank's own process launches: what the worker gives a client, and the functions of the
 * plug-in that a client calls. (The client's process loads the plug-in, too.) Plain C and C++.
 *
 * The worker makes a plan for each rank, as for an operator that it launches itself, and control memory for each rank (an
 * `area`): its flags (GPU_FLAG_WORDS), then what its kernels note of their runs (run_record.h), then its packet memory (slots), then its staging memory. The client imports all ranks' control memory and, unless only packets are sent, the other ranks' results. It
 * gives the plug-in the plan and the addresses.
 *
 * Runs have epochs of the operator's own, which follow each other, so its flags grow. A packet's stamp is the lower half of its epoch.
 * Stamps repeat after 2^32 runs, but a packet left over in a slot is from the run before the last, because all runs write the
 * same packets. (New packet memory is zeroed, and no run has epoch 0.)
 *
 * When must a run wait for the other ranks before it stores? Kernels of one rank follow each other on its stream, or on streams
 * that its program orders.
 * - An operator that sends packets only (plan.only_slots) need not wait. Run n may write to a rank that still reads the packets
 * of run
 *   n - 1, which are in the other half of its packet memory. That rank has finished reading the packets of run n - 2, because
 *   it has sent its packets of run n - 1.
 * - Any other operator raises flags, and stores into results that the other rank's program may still be using. So a barrier
 * precedes it,
 *   in a small kernel of one wave (barrier_kernel): it tells all ranks, in their control memory, that this rank's stream has
 *   arrived, and waits until all have. After that the operator's kernel waits only for kernels that run or can run, as kernels
 *   launched by the daemon do (daemon/worker/device/gpu/device.c). A kernel that can wait itself before it stores (struct
 *   gpu_waits) contains the barrier, and computes meanwhile.
 *
 * Graphs. A program may capture runs of an operator that it has bound into CUDA graphs, and replay these. A captured launch cannot
 * carry a number, and the host does not know how often graphs have been replayed. So from the first capture on no launch of the
 * operator carries its number: its kernels count the runs in the rank's control memory (struct gpu_series; numbers.h says how,
 * and what happens if two runs are under way at a time). Launches before the first capture carry their numbers, as those of
 * other operators do: then no kernel waits for a load before it knows which run it is. They leave their numbers in control
 * memory, too, for the runs that come later. The n-th runs of all ranks still belong together, whichever way each was launched.
 *
 * Launches let the next kernel follow them before they end (gpu_kernel_launch()). A capture keeps that as an edge of its own
 * kind, where the driver is of CUDA 12.3 or later. With older ones numbered launches do not say so. Kernels that follow wait for
 * the end of the one before (gpu_follow()) before they read the run's number.
 *
 * Steps of programs (kernels/program/code.h) are operators of this kind, with a kernel that the worker has compiled for them: a cubin, which the plug-in loads
 * when the operator is opened. Their plans, flags and memory order are all_reduce's, whose owners read all ranks' inputs: behind the barrier these are
 * there, and the last slice of a run waits until all ranks have read. What a run may have anew, numbers in the words of the code, lies in the GPU's
 * memory, where a kernel on the same stream changes it (numbers()), also between replays of a graph.
 *
 * Guarded steps. A run that one rank makes and another one does not would wait until the time limit ends the communicator. So ranks can compare first what they are about to
 * run: a run of the communicator's rings (rings.h) that moves nothing, whose header says which program it is. Where ranks differ, or one refuses, all of them give it up, as they do
 * with a collective, and say why. A kernel of one thread in front of each step (guard()) looks whether the rings' newest run here was given up. If so, it stores the step's next run as
 * the rank's failure epoch, so the run is over before it begins, uses no tensor, and is not counted; otherwise it takes such an epoch away. What one rank's kernel finds, all ranks' find: a
 * run of rings that moves nothing ends well on no rank if it was given up on one. So the step's runs have the same numbers on all ranks. The GPU alone counts them, from the first one on.
 * The end's failure epoch, the largest, may come from outside at any time, and is never taken away: the kernel changes the epoch by compare-and-swap.
 *
 * Operators that the worker binds (session.h, struct fcc_binding). All runs have the same problem, but each may have other inputs,
 * and, if no other rank stores into it, another result. A noop consists of the barrier alone.
 *
 * The end. The worker stores the largest epoch as each rank's failure epoch; if the worker has died, each client does so in its
 * own control memory. Then all kernels return, including those that begin later, also by a replay: what these use is there as
 * long as the graph is (client/device/graphs.h). A client does so, too, when it frees an operator that graphs may run. Kernels of an operator that the worker has bound
 * hand over to the worker before (gpu_recall): they set the words by which the stream tells the worker's kernel that it has come,
 * and wait for the word by which that tells of its end, which the worker sets if there is none, and the client if the worker has
 * died.
 */
#ifndef FCC_KERNELS_GPU_BOUND_H
#define FCC_KERNELS_GPU_BOUND_H

#include "kernels/gpu/abi.h"
#include "kernels/gpu/rings.h"

#ifdef __cplusplus
extern "C" {
#endif

#define GPU_PREPARED_INPUTS 2
#define GPU_PREPARED_CODE_MOST (8u << 20) /* bytes of a step's kernel */

/* The header of a rank's plan; its slices and signal groups follow. */
struct gpu_prepared_plan {
    uint32_t abi; /* GPU_PLUGIN_ABI */
    uint32_t rank;
    uint64_t bytes; /* of the plan with its slices and groups */
    struct gpu_shape shape;
    /* 1: the operator sends packets only: it needs no barrier, and stores only into its own rank's result */
    uint32_t only_slots;
    uint32_t ngroups;
    uint32_t first[GPU_PHASES + 1];
    uint32_t shares_result; /* 1: ranks store into each other's results */
    uint32_t reads_inputs;  /* 1: ranks read each other's inputs: a program's step that adds up */
    /* Of a step of which either is so, with a table: for each rank so many words, at `tables` in the plan, that say where its tensors of `in` and `out` lie, as
     * FCC_ATTR_TABLES does. 0: there are none */
    uint32_t table_words;
    /* lines: 1: of rings: the ranks are two, and NVLink joins their GPUs, or they share one: large parts travel as lines (device/exchange/rings_lines.h) */
    uint32_t lines, zero;
    uint64_t tables;
    uint64_t sets[GPU_SETS];
    uint64_t slices, groups; /* offsets in the plan */
    uint64_t slots_at;       /* offset of the packet memory in a rank's control memory */
    uint64_t slots_bytes;    /* bytes of one half of the packet memory */
    /* Staging memory, of a plan that computes before it puts: behind the packet memory. staging_bytes is 0: it has none. */
    uint64_t staging_at, staging_bytes;
    struct gpu_output out[GPU_MAX_RANKS]; /* data: offset in the memory of that rank's result; in: ... input */
    struct gpu_input in;                  /* x and w, or a and b: offsets in the memory of that input */
};

/* Addresses on the rank's GPU, in this process. */
struct gpu_prepared_memory {
    uint64_t inputs[GPU_PREPARED_INPUTS]; /* memory of gemv's x and w, or of gemm's a and b; 0: none */
    uint64_t areas[GPU_MAX_RANKS];        /* [nranks]: control memory */
    uint64_t results[GPU_MAX_RANKS]; /* [nranks]: memory of the results; of other ranks only if the plan stores into them */
    uint64_t begun, ended, clash;    /* those of struct fcc_binding, in host memory */
    uint64_t failed;                 /* ... of rings: `until` */
    /* Of a program's step: */
    uint64_t ins[GPU_MAX_RANKS]; /* [nranks]: memory of the inputs that are added up */
    const int64_t *numbers;      /* what the kernel is told (step_numbers.h); NULL: it is no step */
    size_t nnumbers;
    const void *image; /* its kernel, as the worker's compiler has made it */
    size_t image_bytes;
    struct gpu_stream_places places; /* n is 0: the program has bound the operator */
};

/* Sets inputs[] to the addresses of the inputs' first elements. Meaningless for a noop. */
static inline void gpu_prepared_inputs(const struct gpu_prepared_plan *plan, const struct gpu_prepared_memory *memory,
                                       uint64_t inputs[GPU_PREPARED_INPUTS])
{
    bool is_gemv = plan->shape.compute == COMPUTE_GEMV;

    inputs[0] = inputs[1] = 0;
    if (plan->shape.compute == COMPUTE_STEP)
        return;
    inputs[0] = memory->inputs[0] + (is_gemv ? plan->in.gemv.x : plan->in.gemm.a);
    inputs[1] = memory->inputs[1] + (is_gemv ? plan->in.gemv.w : plan->in.gemm.b);
}

/* Sets the input addresses of a call with one run. */
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

/* A run of an operator that the worker has bound. */
struct gpu_repeated_run {
    uint64_t epoch;
    uint64_t inputs[GPU_PREPARED_INPUTS]; /* addresses of the first elements of gemv's x and w, or gemm's a and b; noop: 0 */
    uint64_t result;                      /* address of the first element of y or c; noop: 0 */
    uint32_t slot, value;                 /* the operator's slot and stream count: struct gpu_recall */
    uint32_t fenced, zero;                /* 1: other streams may wait for the run's end by `ended`, and use the results */
};

/* Offset of the packet memory in control memory. */
#define GPU_PREPARED_SLOTS_AT ((GPU_RECORDS_AT + RUN_RECORDS * sizeof(struct run_record) + 255) / 256 * 256)

/* A rule of a tracker, in host memory, as the GPU addresses it (session.h, struct fcc_rule_state and fcc_tracker_memory). */
struct gpu_rule_words {
    uint64_t count, streams, need, done, begun, ran; /* uint64_t each */
    uint64_t status, ended;                          /* int32_t each */
};

/* What a run of a rule does that a stream of the rank works off itself: addresses on the rank's GPU. */
struct gpu_rule_work {
    uint32_t action, dtype;  /* enum fcc_rule_action; ADD: enum fcc_dtype */
    uint64_t from, to, rows; /* rows 0: nothing is moved */
    uint64_t row_bytes, from_stride, to_stride;
    uint64_t signal; /* uint64_t: becomes the run's number behind the rows; 0: none */
    struct {
        uint64_t word; /* uint64_t; 0: none */
        uint64_t lag;  /* run n awaits that the word is n - lag at least */
    } awaits[FCC_RULE_AWAITS];
};

struct gpu_prepared;

/* The functions for the client. They return 0, or a negative errno value with the reason. */
struct gpu_prepared_functions {
    uint32_t abi;
    /* Loads all kernels of bound operators. A driver that loads a kernel may first wait for all kernels that run. So this is called
     * when a communicator begins, as a kernel of the program may wait later for what the program does after it has called this
     * library. The GPU is the thread's current device. Any thread, one at a time. */
    int (*load)(int gpu, struct error *e);
    /* Opens a bound operator. gpu: index in this process's runtime. plan: `bytes` bytes from the worker. Any thread, one at a
     * time. */
    int (*open)(int gpu, const struct gpu_prepared_plan *plan, size_t bytes, const struct gpu_prepared_memory *memory,
                struct gpu_prepared **out, struct error *e);
    /* Enqueues a run of an operator that the program has bound. Epochs are 1, 2, 3, ..., then always 0: the kernel itself finds
     * the run's number, so the stream may be under capture into a graph. The GPU is the thread's current device. Does not block.
     * One thread at a time. */
    int (*start)(struct gpu_prepared *p, uint64_t epoch, void *stream, struct error *e);
    /* The same of an operator that the worker has bound. Epochs follow each other. */
    int (*repeat)(struct gpu_prepared *p, const struct gpu_repeated_run *run, void *stream, struct error *e);
    /* Frees the operator. Its runs must have ended. */
    void (*close)(struct gpu_prepared *p);
    /* Enqueues a collective through rings (rings.h), which were opened as an operator: the stream may be captured into a graph. The GPU is
     * the thread's current device. Does not block. One thread at a time. */
    int (*collective)(struct gpu_prepared *p, const struct gpu_collective *what, void *stream, struct error *e);
    /* The same for a product. The first one of a shape takes longer, and may take memory on the GPU. NULL: the
     * plug-in runs none. */
    int (*product)(struct gpu_prepared *p, const struct rings_product *what, void *stream, struct error *e);
    /* The same for a product with an exchange in pieces. NULL: the plug-in runs none. */
    int (*pieces)(struct gpu_prepared *p, const struct rings_pieces *what, void *stream, struct error *e);
    /* Whether this process has the vendor's library of products. Rings whose plan says so (shape.n is 1 or more: all ranks have it) run products
     * with `library`. NULL: it has not. */
    bool (*library)(void);
    /* Enqueues an addition of n to `streams` of a rule, behind what the stream has been given; a wait until the last run that has then been
     * counted for is done, or the rule or its tracker has ended. The GPU is the thread's current device; the stream may be under capture. Do
     * not block. Any thread. */
    int (*rule_add)(const struct gpu_rule_words *words, uint64_t n, void *stream, struct error *e);
    int (*rule_await)(const struct gpu_rule_words *words, void *stream, struct error *e);
    /* Enqueues the rule's next run: a wait for its words, its rows, which a copy engine stores or a few workgroups add, and its signal. The run's
     * number is found on the GPU. When the rule or its tracker has ended there is no wait, and no signal. Otherwise as above. */
    int (*rule_run)(const struct gpu_rule_words *words, const struct gpu_rule_work *work, void *stream, struct error *e);
    /* Enqueues stores of a program's step's numbers [at, at + n), which the runs behind them find. The words are copied by the call, and if the
     * stream is under capture, its graph has them. The GPU is the thread's current device. Does not block. One thread at a time. */
    int (*numbers)(struct gpu_prepared *p, size_t at, const int64_t words[], size_t n, void *stream, struct error *e);
    /* Enqueues, in front of a run of a program's step whose runs are all numbered (epoch 0), a kernel that makes it no run if the newest run of these
     * rings, of the same rank and on the same stream, was given up. The GPU is the thread's current device; the stream may be under capture. Does not
     * block. One thread at a time. */
    int (*guard)(struct gpu_prepared *p, const struct gpu_prepared *rings, void *stream, struct error *e);
};

const struct gpu_prepared_functions *gpu_prepared_functions(void);
typedef const struct gpu_prepared_functions *gpu_prepared_functions_function(void);
#define GPU_PREPARED_SYMBOL "gpu_prepared_functions"

/* Offset of the failure epoch in control memory. */
#define GPU_PREPARED_FAILURE_AT (GPU_FLAGS * sizeof(uint64_t))

#ifdef __cplusplus
}
#endif
#endif
