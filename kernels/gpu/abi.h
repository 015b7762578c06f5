/* SPDX-License-Identifier: MIT
 *
 * abi.h - what a GPU kernel is told, and what fccd and its GPU plug-ins (hip.so, cuda.so) say to each other. Plain C and C++.
 *
 * A plug-in is a shared object with one function, gpu_plugin(). It is loaded at run time, so one fccd serves machines
 * with any GPU or none; it is the only thing in fccd that calls a GPU's runtime. Addresses are device addresses, valid
 * on every GPU of the process, in uint64_t.
 *
 * Ownership: what the plug-in made, the plug-in frees. Threads: health() may be called from one other thread at any time;
 * everything else is called by one thread, but for launch_tables() and launch_start(): those of different GPUs may be called by
 * several threads at a time, and nothing else meanwhile; and for copy_in() and writes_flush(), which are called by one other thread, at
 * any time.
 */
#ifndef FCC_KERNELS_GPU_ABI_H
#define FCC_KERNELS_GPU_ABI_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/plan/slice.h"
#include "kernels/plan/spec.h"
#include "proto/base/error.h"
#include "proto/fccclient.h"
#include "proto/operators.h"

#ifdef __cplusplus
extern "C" {
#endif

#define GPU_PLUGIN_ABI 14u
#define GPU_MAX_GPUS 16
#define GPU_SETS 2                                   /* sets of ranks that a plan's slices may go to */
#define GPU_LANES 2u                                 /* queues of a GPU by which launches may come to it */
#define GPU_MAX_RUNS 8                               /* ranks of one communicator on one GPU */
#define GPU_MAX_WORDS (FCC_MAX_RANKS + GPU_MAX_GPUS) /* that a launch waits for */
#define GPU_FLAGS 16384u /* epochs of a rank; one more follows, its failure epoch: operators up to this one are to leave */
#define GPU_FLAG_DONE (GPU_FLAGS + 1) /* and then one for each GPU, of which the lower half is used: see struct gpu_end.peers */
#define GPU_FLAG_WORDS (GPU_FLAG_DONE + GPU_MAX_GPUS) /* uint64_t that a rank's flags have */

/* ---- what a kernel is told ------------------------------------------------------------------------------------ */

/* The operator, for all ranks. */
struct gpu_shape {
    uint16_t compute, exchange; /* enum compute_kind, exchange_kind */
    uint32_t dtype;             /* enum fcc_dtype */
    uint32_t nranks;
    uint32_t over_nodes; /* 1: the plans are such that ranks may be on other nodes; kernels/gpu/device/triggers.h */
    int64_t m;           /* gemv: rows of x */
    int64_t n;           /* gemv, gemm: columns of the result */
    int64_t k;           /* gemv: the longest of all ranks' */
    int64_t dim, batch;  /* embedding */
    /* embedding: the first sample of each rank's part of the batch; gemv: the first column of those that each rank reduces */
    int64_t first[FCC_MAX_RANKS + 1];
    /* gemv: bytes of one rank's words in another one's slots; over nodes: of one of the slots of partial sums in staging memory */
    uint64_t slot_bytes;
    uint64_t local_bytes; /* gemv over nodes: of a rank's own partial sums, in front of the slots; fused: 0 */
    uint32_t nodes;       /* gemv over nodes: whose sums are added up by themselves first; flat: 1 */
    uint32_t zero;
};

/* Are there kernels that exchange so what they compute? */
static inline bool gpu_has_kernels(const struct gpu_shape *shape)
{
    switch (shape->compute) {
    case COMPUTE_NONE:
        return shape->exchange == EXCHANGE_NONE;
    case COMPUTE_GEMV:
        return shape->exchange == EXCHANGE_REDUCE;
    default:
        return shape->compute < COMPUTE_KINDS && shape->exchange == EXCHANGE_PUT;
    }
}

/* A number on its way to another rank, together with the stamp of the call that it belongs to: one store of 8 bytes, which is
 * never seen in halves. Who finds the stamp has the number, and needs no flag and no fence. In the memory of slots there is
 * nothing but such words, so nothing that is left over there looks like this call's. */
struct gpu_stamped {
    uint32_t bits; /* of an f32 */
    uint32_t stamp;
};
#ifdef __cplusplus
static_assert(sizeof(struct gpu_stamped) == 8, "stored and loaded at once");
#endif

/* A plan's slices stand in this order; each phase waits for slices of the phases before it only (of any rank). */
enum gpu_phase {
    GPU_PHASE_FREE = 0,    /* wait for nothing */
    GPU_PHASE_PUT = 1,     /* wait for the own rank's, then put */
    GPU_PHASE_NODE = 2,    /* over nodes: wait for this node's ranks', then reduce these */
    GPU_PHASE_REDUCE = 3,  /* wait for all ranks', then reduce */
    GPU_PHASE_FORWARD = 4, /* over nodes: wait for another node's, then hand it on here */
    GPU_PHASE_WAIT = 5,    /* wait only */
    GPU_PHASES = 6,
};

/* One rank's plan on its GPU. Phase p has the slices [first[p], first[p + 1]). */
struct gpu_plan {
    uint64_t slices;   /* struct slice[nslices], nslices being first[GPU_PHASES] */
    uint64_t groups;   /* struct signal_group[ngroups] */
    uint64_t counters; /* uint32_t: enum gpu_counter, then [ngroups] slices of each group that have not finished */
    uint64_t times;    /* struct slice_time[nslices] */
    uint64_t flags;    /* of this rank, as in gpu_fixed */
    uint32_t first[GPU_PHASES + 1];
    uint32_t ngroups;
    uint32_t rank;
    uint32_t free_kind;           /* enum slice_kind: what all slices of the first phase are; undefined if there are none */
    uint32_t free_col, free_cols; /* of the first one: where it begins, how many columns it has */
    uint64_t sets[GPU_SETS];      /* over nodes: ranks, a bit each: what destinations from SLICE_DST_SET on are */
};

enum gpu_counter {
    GPU_NEXT = 0,            /* [GPU_PHASES]: slices of the phase that have been taken */
    GPU_FAILED = GPU_PHASES, /* 1: a workgroup of this run has written its failure */
    GPU_GROUPS,
};

#define GPU_CLAIMS 32 /* a wave's lanes */

/* What stays the same from call to call; in device memory. */
struct gpu_fixed {
    struct gpu_shape shape;
    uint64_t flags[FCC_MAX_RANKS];   /* of every rank: uint64_t[GPU_FLAG_WORDS]; 0: it is on another node */
    uint64_t staging[FCC_MAX_RANKS]; /* of every rank; 0: none */
    uint64_t slots[FCC_MAX_RANKS];   /* of every rank: struct gpu_stamped[]; 0: none */
    struct gpu_plan plans[GPU_MAX_RUNS];
    uint64_t began; /* the GPU's clock, by the operator's first kernel, and there by the first workgroup */
    uint32_t left;  /* workgroups of the kernel that have left */
    uint32_t zero;
    uint64_t claims
        [GPU_CLAIMS]; /* who has taken what was dealt out: the last epoch in which somebody has (kernels/gpu/device/exchange/take_hopper.h) */
};

/* Where a rank's result lies: out, y or c. Strides in elements; the last dimension's is 1. */
struct gpu_output {
    uint64_t data;
    int64_t stride[2]; /* embedding: sample, table; gemv and gemm: row, - */
};

enum { GPU_INDEX_WIDE = 1, GPU_POOL_MEAN = 2 };

/* What one rank computes from. Strides in elements. */
struct gpu_input {
    union {
        struct {
            uint64_t tables;
            int64_t row_stride;
            uint64_t indices, offsets;
            uint64_t weights;     /* 0: none */
            uint64_t table_first; /* int64_t[ntables + 1]: the first row of each table; in device memory */
            int64_t nnz;
            uint32_t ntables, flags; /* GPU_INDEX_WIDE, GPU_POOL_MEAN */
        } embedding;
        struct {
            uint64_t x, w;
            int64_t x_stride, w_stride, m, n, k;
        } gemv;
        struct {
            uint64_t a, b;
            int64_t a_stride, b_stride, k;
        } gemm;
    };
    uint64_t failure; /* struct gpu_failure in host memory */
};

/* Where a GPU's kernels push triggers for the proxy: the producers' side of daemon/net/fifo.h. Between kernels its memory is the
 * worker's and the proxy's. */
struct gpu_fifo {
    uint64_t head;     /* uint64_t[2] in the GPU's memory, zeroed: positions taken; a tail that one of the producers has seen */
    uint64_t tail;     /* uint64_t in host memory */
    uint64_t slots;    /* uint64_t[capacity][2] in host memory */
    uint32_t capacity; /* a power of two */
    uint32_t room;     /* take a position if no more than so many are taken: capacity less the producers */
};

/* What a kernel of an operator over nodes is told besides. */
struct gpu_nodes {
    struct gpu_fifo fifo;
    uint64_t remote; /* bit r: rank r is on another node. Its staging and results are bounce buffers here, it has no flags */
    uint32_t number; /* triggers' `launch` */
    uint32_t phase_first, phase_next; /* the phases that this kernel runs: [phase_first, phase_next) */
    uint32_t later;                   /* 1: it is not the operator's first here, whose begin is its own, too */
};

/* Who is told of a kernel's end, by its last workgroup: first the streams and the other GPUs, then the host. */
struct gpu_end {
    uint64_t done;  /* uint64_t in host memory that becomes gpu_done_make(), when the last workgroup leaves */
    uint64_t begun; /* uint64_t in host memory that becomes the epoch when the kernel begins; 0: there is none */
    uint32_t epoch; /* the lower half of gpu_call's */
    uint32_t nwords, npeers;
    uint32_t
        in_stream; /* 1: nobody but what is behind the kernel on its stream uses what it has stored, whatever `done` says */
    uint64_t words[GPU_MAX_RUNS]; /* uint32_t in the memory of this GPU or the host's: words[i] becomes values[i] */
    uint32_t values[GPU_MAX_RUNS];
    uint64_t peers[GPU_MAX_GPUS]; /* uint32_t in the memory of other GPUs: becomes the epoch. What is launched there next waits
                                     for it at its own memory */
};
#ifdef __cplusplus
static_assert(sizeof(struct gpu_end) % 8 == 0, "the argument of a kernel");
#endif

/* A kernel's end, in one word, so that nothing has to be ordered: the epoch's lower half, and how long the kernel took by the
 * GPU's clock. */
static inline uint64_t gpu_done_make(uint32_t epoch, uint64_t ticks)
{
    return (ticks < UINT32_MAX ? ticks : UINT32_MAX) << 32 | epoch;
}

static inline uint32_t gpu_done_ticks(uint64_t done)
{
    return (uint32_t)(done >> 32);
}

static inline bool gpu_done_reached(uint64_t done, uint64_t epoch)
{
    return (int32_t)((uint32_t)done - (uint32_t)epoch) >= 0;
}

/* Who is told that this rank's stream has come to the call, by a kernel that waits for the other ranks' itself (bound.h). */
struct gpu_meeting {
    uint64_t words[GPU_MAX_GPUS]; /* uint64_t in the memory of other GPUs: become the epoch */
    uint32_t n, zero;
};

/* Where the streams' words are that an operator has if the worker runs it itself (struct fcc_slot in proto.h): slot s's at address +
 * s * pitch, uint32_t. */
struct gpu_stream_places {
    uint32_t n, zero;
    struct {
        uint64_t address, pitch;
    } started[GPU_MAX_GPUS + 1], finished;
};

/* A kernel that stands on its stream before it is known whether it is to run (proto.h, struct fcc_prepared_words; bound.h). */
struct gpu_offer {
    uint64_t word;   /* uint64_t in the rank's area: the run's own, see gpu_offer_word_at(). 0: it is no offer */
    uint64_t places; /* struct gpu_stream_places in the GPU's memory */
    uint32_t slot, value;
};

#define GPU_GRANTED(run) ((uint64_t)(run) << 1)
#define GPU_DECLINED(run) (GPU_GRANTED(run) | 1)

/* The argument of every kernel, by value; noop's is its beginning, `end`. */
struct gpu_call {
    struct gpu_end end;
    const struct gpu_fixed *fixed;
    uint64_t epoch;
    uint32_t nruns;
    uint32_t stamp;    /* of the words in slots: grows by one with every call that uses them; never 0 */
    uint64_t slots_at; /* this call's part of the slots: one half of them or, for the next such call, the other */
    struct gpu_output out[FCC_MAX_RANKS];
    struct gpu_input in[GPU_MAX_RUNS];
    struct gpu_plan plans[GPU_MAX_RUNS]; /* fixed's: here they are at hand when the kernel begins */
    struct gpu_nodes nodes;              /* shape.over_nodes */
    struct gpu_meeting meeting;
    struct gpu_offer offer;
    uint64_t idle_counters; /* in_stream: those of the run before, for the next one: set back by this one. Otherwise 0 */
};
#ifdef __cplusplus
static_assert(sizeof(struct gpu_call) <= 4096, "kernels take at most 4 KiB of arguments");
#endif

/* What was wrong in a client's data. */
enum gpu_failure_kind {
    GPU_FAILURE_NONE = 0,
    GPU_FAILURE_OFFSET_BEGIN, /* offsets[at] is the begin of bag `bag` of `table` and lies outside [least, most] */
    GPU_FAILURE_OFFSET_END,   /* ... the end ... */
    GPU_FAILURE_INDEX, /* indices[at], number `position` of bag `bag` of `table`, lies outside [0, most] (most -1: no rows) */
};
struct gpu_failure {
    uint32_t kind; /* written last */
    uint32_t table;
    int64_t at, value, bag, position, least, most;
};

/* ---- what a plug-in does --------------------------------------------------------------------------------------- */

struct gpu_description {
    char name[128];
    char pci[32]; /* "0000:1b:00.0" */
    unsigned char uuid[16];
    uint64_t memory_bytes;
    uint32_t multiprocessors;
    uint32_t peers;                    /* bit p: can address the memory of GPU p */
    char links[GPU_MAX_GPUS][16];      /* to GPU p: "NVLink", "xGMI", "PCIe", or "" */
    uint32_t stream_memory_operations; /* 1: kernels' starts and ends may be tied to client streams by waiting for words */
    uint32_t words_in_memory;          /* 1: ... which may lie in the memory of GPUs; otherwise in the host's only */
    uint32_t lanes;                    /* 1 to GPU_LANES: queues for launches that may differ in what hand-overs cost */
};

/* Memory that a client may import. `bytes` is rounded up to what the GPU can share. */
struct gpu_memory {
    uint64_t address;
    uint64_t bytes;
    uint64_t handle;
    int gpu;
    int kind; /* enum fcc_memory_kind: how a client imports it */
};

/* One rank's share of a launch. */
struct gpu_run {
    int rank;
    const struct slice *slices;
    const struct signal_group *groups;
    const uint64_t *sets;                    /* [GPU_SETS] */
    uint32_t first[GPU_PHASES + 1], ngroups; /* as in gpu_plan */
};

struct gpu_launch;

/* Words (uint32_t, aligned to 8 bytes, in host memory or in that of the GPU that waits) and the values that they are to reach. */
struct gpu_waits {
    uint64_t words[GPU_MAX_WORDS];
    uint32_t values[GPU_MAX_WORDS];
    /* Of them [0, before): before the kernel begins. The others, in the GPU's memory: before it stores anything at other ranks. */
    int count, before;
    bool in_kernel; /* launch_start()'s answer: the kernel waits for these itself. Otherwise it begins when all are there */
};

struct gpu_plugin {
    uint32_t abi;
    const char *kind; /* "hip", "cuda" */
    /* The number of GPUs (1 or more), or -ENODEV and why there is none; -EAGAIN: the runtime did not start, and never will in
     * this process, but may in another. Makes no context. */
    int (*count)(struct error *e);
    int (*describe)(int gpu, struct gpu_description *out, struct error *e);
    /* Make a context and a stream on each GPU of the mask and map them to each other. May be called again with more. With ipc,
     * memory is shared by IPC handles even where file descriptors could be had. */
    int (*open)(uint32_t gpus, bool ipc, struct error *e);
    void (*close)(void);
    /* Zeroed memory that all open GPUs can address. *fd, if not NULL, is the caller's: what the client imports. */
    int (*memory_alloc)(int gpu, uint64_t bytes, struct gpu_memory *out, int *fd, struct error *e);
    void (*memory_free)(struct gpu_memory *m);
    int (*memory_copy)(void *to, int gpu, uint64_t from, uint64_t bytes, struct error *e);        /* device to host; waits */
    int (*memory_write)(int gpu, uint64_t to, const void *from, uint64_t bytes, struct error *e); /* host to device; waits */
    /* Make host memory (whole pages) known to all open GPUs. *address is where they see it. */
    int (*host_register)(void *memory, size_t bytes, uint64_t *address, struct error *e);
    void (*host_unregister)(void *memory);
    /* Prepare an operator's runs on one GPU. flags[nranks]: as in gpu_fixed. */
    int (*launch_make)(int gpu, const struct gpu_shape *shape, const uint64_t flags[], const struct gpu_run runs[], int nruns,
                       struct gpu_launch **out, struct error *e);
    void (*launch_free)(struct gpu_launch *l);
    /* The rows at which run i's tables begin, [ntables + 1]; returns their device address for gpu_input. Kept while
     * unchanged. */
    int (*launch_tables)(struct gpu_launch *l, int run, const int64_t first[], uint32_t ntables, uint64_t *address,
                         struct error *e);
    /* Enqueue, by one of the GPU's lanes, behind what was enqueued before by any: wait for the words, one after the other, then
     * run the kernel. call->fixed, nruns, plans and end.epoch are filled in. staging[nranks] and slots[nranks] as in gpu_fixed.
     * Does not wait. */
    int (*launch_start)(struct gpu_launch *l, struct gpu_call *call, const uint64_t staging[], const uint64_t slots[],
                        struct gpu_waits *waits, uint32_t lane, struct error *e);
    /* Store a value at a device address, soon and in passing: also while kernels run and streams wait. Does not wait. */
    int (*word_store)(int gpu, uint64_t address, uint64_t value, struct error *e);
    /* 0: the GPU works. Otherwise the context is lost for ever (-EIO), and why. */
    int (*health)(int gpu, struct error *e);
    /* A run's times, [nslices], in CLOCK_MONOTONIC. Its kernel has finished. */
    int (*launch_times)(struct gpu_launch *l, int run, struct slice_time out[], struct error *e);
    /* Workgroups that run a launch. */
    uint32_t (*launch_workgroups)(const struct gpu_launch *l);

    /* ---- operators over several nodes ---- */

    /* Zeroed host memory, whole pages, that stays in its place and that the CPU and all open GPUs address by the same number. Freeing it
     * may wait until no kernel runs. */
    int (*host_alloc)(uint64_t bytes, void **memory, struct error *e);
    void (*host_free)(void *memory, uint64_t bytes);
    /* Enqueue a copy of rows, `stride` bytes apart at both ends, from such memory into the GPU's. Copies of a GPU are done in their order
     * and wait for no kernel. */
    int (*copy_in)(int gpu, uint64_t to, const void *from, uint64_t row_bytes, uint64_t stride, uint32_t rows, struct error *e);
    /* Wait for those that were enqueued before. A launch over nodes waits for them by itself, on the GPU, before its kernel. */
    int (*copies_await)(int gpu, struct error *e);

    /* A dma-buf of [address, address + bytes) of the GPU's memory, whole pages of one allocation, for an adapter to write to; the
     * caller's. They begin at its byte *offset. Not 0: there is none, and why (the driver offers none, mostly). */
    int (*memory_export)(int gpu, uint64_t address, uint64_t bytes, int *fd, uint64_t *offset, struct error *e);
    /* What adapters have written there before, as the CPU has heard, kernels see that are launched from now on. Called as copy_in() is.
     * Waits for no kernel. */
    int (*writes_flush)(int gpu, struct error *e);
};

/* The one symbol of a plug-in. */
const struct gpu_plugin *gpu_plugin(void);
typedef const struct gpu_plugin *gpu_plugin_function(void);
#define GPU_PLUGIN_SYMBOL "gpu_plugin"

#ifdef __cplusplus
}
#endif
#endif
