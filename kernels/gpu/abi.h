/* SPDX-License-Identifier: MIT
 *
 * abi.h - the arguments of GPU kernels, and the interface between fccd and its GPU plug-ins (hip.so, cuda.so). Plain C and C++.
 *
 * A plug-in is a shared object with one function, gpu_plugin(). It is loaded at run time, so one fccd serves machines
 * with any GPU or none; only plug-ins call a GPU's runtime. Addresses are uint64_t device addresses, which are valid
 * on every GPU of the process.
 *
 * Ownership: the plug-in frees what it has made. Threads: one thread calls all functions, with these exceptions.
 * launch_numbers() and launch_start() of different GPUs may be called by several threads at a time, while nothing else is
 * called. health() may be called by one other thread at any time. copy_in() and writes_flush() are called by one other thread,
 * at any time, and rule_start() and words_look() by one more, and clock_read() and records_read() by a further one, at any time after open() of their GPUs.
 */
#ifndef FCC_KERNELS_GPU_ABI_H
#define FCC_KERNELS_GPU_ABI_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/plan/exchange/run_record.h"
#include "kernels/plan/slice.h"
#include "kernels/plan/spec.h"
#include "proto/base/error.h"
#include "proto/fccclient.h"
#include "proto/operators.h"

#ifdef __cplusplus
extern "C" {
#endif

#define GPU_PLUGIN_ABI 35u
#define GPU_MAX_GPUS 16
#define GPU_COMPILER_TEXT 512                        /* bytes of what a compiler says of itself, with its NUL */
#define GPU_SETS 2                                   /* sets of ranks that a plan's slices may have as destinations */
#define GPU_LANES 2u                                 /* the most queues (streams) of a GPU for launches */
#define GPU_MAX_RUNS 8                               /* ranks of one communicator on one GPU */
#define GPU_MAX_WORDS (GPU_MAX_RANKS + GPU_MAX_GPUS) /* words that a launch can wait for */
/* A rank's flags are uint64_t[GPU_FLAG_WORDS]. [0, GPU_FLAGS): flags, whose values are epochs. [GPU_FLAGS]: the failure epoch;
 * kernels of operators up to this epoch must return. [GPU_FLAG_RUN], bound by the program: the last run that has ended (struct
 * gpu_series). [GPU_FLAG_DONE + g], worker-launched: the epoch of GPU g's last kernel that has ended (struct gpu_end.peers; the
 * lower half). [GPU_FLAG_DONE + r], bound: the run that rank r's stream has reached. */
#define GPU_FLAGS 16384u
#define GPU_FLAG_RUN (GPU_FLAGS + 1) /* directly behind the failure epoch: both are loaded at once */
#define GPU_FLAG_DONE (GPU_FLAGS + 2)
#define GPU_FLAG_WORDS (GPU_FLAG_DONE + GPU_MAX_GPUS)
/* Bound operators: what follows the flags: struct run_record[RUN_RECORDS], of the operator's last runs. */
#define GPU_RECORDS_AT ((GPU_FLAG_WORDS * sizeof(uint64_t) + 255) / 256 * 256)

/* ---- arguments of kernels ------------------------------------------------------------------------------------ */

/* The operator, as all ranks see it. */
struct gpu_shape {
    uint16_t compute, exchange; /* enum compute_kind, exchange_kind */
    uint32_t dtype;             /* enum fcc_dtype */
    uint32_t nranks;
    uint32_t over_nodes; /* 1: the plans are those for ranks on several nodes: kernels/gpu/device/triggers.h */
    int64_t m;           /* reduce: rows of the result */
    int64_t n;           /* gemv, gemm: columns of the result */
    int64_t k;           /* gemv: the largest K of all ranks; gather: K */
    int64_t dim, batch;  /* embedding: columns of a table, number of samples */
    /* embedding: the first sample of each rank's part of the batch. Reduce: the first of the columns (by_rows: rows) that each rank
     * reduces. Gather: the first of each rank's rows of A, which lie at [row][k] in staging memory of the other ranks */
    int64_t first[GPU_MAX_RANKS + 1];
    /* Collectives (kernels/plan/compute/vector.h): the elements of a column, the bytes of an element; those that reduce: how (enum
     * fcc_reduction), and the first element of the whole vector that each rank reduces. */
    int64_t unit, elements[GPU_MAX_RANKS + 1];
    uint32_t element_bytes, reduction;
    uint32_t keeps_own; /* 1: a rank's result is what it reduces; 0: the whole vector */
    /* waits: 1: through rings, rows that are put: the kernel waits for other ranks', before it stores and in the end. through_rings:
     * embedding: 1: its runs have struct gpu_in_rings */
    uint32_t waits, through_rings;
    uint32_t by_rows; /* reduce: 1: `first` are rows, not columns, and each rank gets those that it reduces */
    uint32_t factors; /* of products: enum factors */
    /* Packets: bytes of one rank's packets in another rank's packet memory. Reduce with flags: bytes of one receive slot of
     * partial sums in staging memory. */
    uint64_t slot_bytes;
    /* Reduce with flags: bytes of a rank's own partial sums, which precede the receive slots; fused: 0. Products through rings, in two steps:
     * offset of the results in a slot. */
    uint64_t local_bytes;
    uint32_t nodes; /* reduce with flags: number of nodes whose ranks are summed up first; flat: 1 */
    uint32_t
        stages; /* the epilogue's that concern each element: a bit (1 << enum stage) each; activation and scale: that of the gate */
};

/* A packet (NCCL's LL protocol): a number for another rank with the stamp of its call. It is stored by one 8-byte store, so it
 * is never seen in halves. A rank that finds the stamp has the number; it needs no flag and no fence. Packet memory (`slots`)
 * holds only packets, so nothing left over in it looks like a packet of this call. */
struct gpu_stamped {
    uint32_t bits;  /* an f32 */
    uint32_t stamp; /* gpu_call.stamp of the call */
};
#ifdef __cplusplus
static_assert(sizeof(struct gpu_stamped) == 8, "stored and loaded at once");
#endif

/* Phases: the order of a plan's slices. A slice waits only for slices of earlier phases, of any rank. */
enum gpu_phase {
    GPU_PHASE_FREE = 0,    /* slices that wait for nothing */
    GPU_PHASE_PUT = 1,     /* wait for slices of the same rank, then put */
    GPU_PHASE_NODE = 2,    /* over nodes: wait for slices of this node's ranks, then reduce these */
    GPU_PHASE_REDUCE = 3,  /* wait for slices of all ranks, then reduce */
    GPU_PHASE_FORWARD = 4, /* over nodes: wait for a tile from another node, then copy it to ranks of this node */
    GPU_PHASE_WAIT = 5,    /* wait only */
    GPU_PHASES = 6,
};

/* One rank's plan on its GPU. Phase p has the slices [first[p], first[p + 1]). */
struct gpu_plan {
    uint64_t slices;   /* struct slice[nslices], nslices being first[GPU_PHASES] */
    uint64_t groups;   /* struct signal_group[ngroups] */
    uint64_t counters; /* uint32_t[]: enum gpu_counter, then for each group the number of its slices that have not finished */
    uint64_t times;    /* struct slice_time[nslices] */
    uint64_t flags;    /* this rank's flags, as in gpu_fixed */
    uint32_t first[GPU_PHASES + 1];
    uint32_t ngroups;
    uint32_t rank;
    uint32_t free_kind;           /* enum slice_kind of all slices of GPU_PHASE_FREE; undefined if there are none */
    uint32_t free_col, free_cols; /* first column and number of columns of the plan's first slice */
    uint64_t sets[GPU_SETS];      /* over nodes: set i, a bit for each rank, is the destination SLICE_DST_SET + i */
};

enum gpu_counter {
    GPU_NEXT = 0,            /* [GPU_PHASES]: slices of each phase that workgroups have taken */
    GPU_FAILED = GPU_PHASES, /* 1: a workgroup of this rank's run has written its failure */
    GPU_GROUPS,
};

#define GPU_CLAIMS 32 /* lanes of a wave */

/* What stays the same from call to call; in device memory. The arrays have an entry for every rank. */
struct gpu_fixed {
    struct gpu_shape shape;
    uint64_t flags[GPU_MAX_RANKS];   /* uint64_t[GPU_FLAG_WORDS]; 0: the rank is on another node */
    uint64_t staging[GPU_MAX_RANKS]; /* staging memory; 0: none */
    uint64_t slots[GPU_MAX_RANKS];   /* packet memory: struct gpu_stamped[]; 0: none */
    struct gpu_plan plans[GPU_MAX_RUNS];
    uint64_t began;              /* the GPU's clock at the operator's begin; set by the first workgroup of its first kernel */
    uint32_t left;               /* workgroups of the kernel that have ended; of numbered runs more: GPU_LEFT_BEGUN */
    uint32_t runs;               /* runs through rings that have ended (struct gpu_in_rings) */
    uint64_t claims[GPU_CLAIMS]; /* the epoch in which each work item was last claimed: device/exchange/take_hopper.h */
};

/* A rank's result: out, y or c. Strides in elements; the last dimension's stride is 1. */
struct gpu_output {
    uint64_t data;
    union {
        int64_t stride[2]; /* embedding: of samples, of tables; gemv and gemm: [0] of rows */
        uint64_t in;       /* collectives: the rank's input, which other ranks may read */
    };
};

enum { GPU_INDEX_WIDE = 1, GPU_POOL_MEAN = 2 };

/* The scales of a factor in e4m3: element [i][j], as it is stored, has the scale at[((i + first) >> rows) * stride + (j >> cols)]. */
struct gpu_scales {
    uint64_t at; /* float[]; 0: all are 1 */
    uint32_t stride;
    uint8_t rows, cols;
    uint16_t first; /* rows of the first block that precede the first row */
};
#define GPU_SCALES_WHOLE 31 /* of sizes below 2^31, one for all */
#define GPU_SCALES_BLOCK 7

/* Those of the factor's rows from `row` on. */
static inline struct gpu_scales gpu_scales_from(const struct gpu_scales *all, int64_t row)
{
    const int64_t index = all->first + row;
    struct gpu_scales some = *all;

    some.at += all->at ? (uint64_t)(index >> all->rows) * all->stride * sizeof(float) : 0;
    some.first = all->rows == GPU_SCALES_BLOCK ? (uint16_t)(index % (1 << GPU_SCALES_BLOCK)) : (uint16_t)0;
    return some;
}
/* Of a rank's first and second factor. */
struct gpu_factor_scales {
    struct gpu_scales of[2];
};

/* The inputs of one rank. Strides in elements. */
struct gpu_input {
    union {
        struct {
            uint64_t tables;
            int64_t row_stride;
            uint64_t indices, offsets;
            uint64_t weights;     /* sample_weights; 0: none */
            uint64_t table_first; /* int64_t[ntables + 1] in device memory: the first row of each table */
            int64_t nnz;
            uint32_t ntables, flags; /* GPU_INDEX_WIDE, GPU_POOL_MEAN */
        } embedding;
        struct {
            uint64_t x, w;
            int64_t x_stride, w_stride, m, n, k;
        } gemv;
        struct {
            uint64_t a, b, gathered; /* gathered: the tensor of all ranks' rows of A; 0: none */
            int64_t a_stride, b_stride, k, gathered_stride;
        } gemm;
        struct {
            uint64_t in;
            /* Collectives that only move: int64_t[3][nranks] in device memory, elements: where the part for each rank begins in `in`, and
             * in that rank's result, and how long it is. Steps of programs: struct gpu_step (step.h) in device memory */
            uint64_t parts;
        } vector;
    };
    uint64_t bias, residual; /* the epilogue's; 0: absent */
    int64_t residual_stride;
    uint64_t failure; /* struct gpu_failure in host memory */
};

/* A GPU's trigger FIFO, to which its kernels push triggers for the proxy: the producers' side of daemon/net/fifo.h. Between
 * kernels only the worker and the proxy use its memory. */
struct gpu_fifo {
    uint64_t head;  /* uint64_t[2] in the GPU's memory, zeroed: positions taken; a tail that one of the producers has loaded */
    uint64_t tail;  /* uint64_t in host memory */
    uint64_t slots; /* uint64_t[capacity][2] in host memory */
    uint32_t capacity; /* a power of two */
    uint32_t room; /* a producer may take a position if at most this many are taken: capacity minus the number of producers */
};

/* Further arguments of an operator over nodes. */
struct gpu_nodes {
    struct gpu_fifo fifo;
    uint64_t remote; /* bit r: rank r is on another node. Its staging and results are bounce buffers here; it has no flags */
    uint32_t number; /* fcc_trigger.launch of its triggers */
    uint32_t phase_first, phase_next; /* the phases that this kernel runs: [phase_first, phase_next) */
    uint32_t later; /* 1: not the operator's first kernel on this GPU; gpu_fixed.began stays the first one's */
};

/* Whose kernel it is. GPU_IN_STREAM: a client's, and only later work of the same stream uses the kernel's stores, although `done` is
 * set. GPU_IN_STREAMS: a client's, and another stream that waits for `done` uses them, too. 0: the worker's. */
enum gpu_in_stream { GPU_IN_STREAM = 1, GPU_IN_STREAMS };

/* The completion of a kernel, which its last workgroup signals: first to the streams and the other GPUs, then to the host. */
struct gpu_end {
    uint64_t done;                /* uint64_t in host memory: becomes gpu_done_make() when the last workgroup ends */
    uint64_t begun;               /* uint64_t in host memory: becomes the epoch when the kernel begins; 0: none */
    uint32_t epoch;               /* lower half of gpu_call.epoch */
    uint32_t nwords;              /* number of words and values */
    uint32_t npeers;              /* number of peers */
    uint32_t in_stream;           /* enum gpu_in_stream */
    uint64_t words[GPU_MAX_RUNS]; /* uint32_t in the memory of this GPU or of the host: words[i] becomes values[i] */
    uint32_t values[GPU_MAX_RUNS];
    /* uint32_t in the memory of each other GPU: becomes the epoch. That GPU's next launch waits for it */
    uint64_t peers[GPU_MAX_GPUS];
};
#ifdef __cplusplus
static_assert(sizeof(struct gpu_end) % 8 == 0, "the argument of a kernel");
#endif

/* A kernel's completion in one word, so that no order is needed: the epoch's lower half, and the kernel's duration in ticks of
 * the GPU's clock. */
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

/* A barrier inside a kernel that waits for the other ranks itself (bound.h): the words by which it tells them that this rank's
 * stream has reached the call. */
struct gpu_barrier {
    uint64_t words[GPU_MAX_GPUS]; /* uint64_t in the memory of other GPUs: become the epoch */
    uint32_t n, zero;             /* n: number of words */
};

/* The addresses of the stream words of an operator that the worker runs itself (struct fcc_slot in session.h): slot s has a
 * uint32_t at address + s * pitch. */
struct gpu_stream_places {
    uint32_t n, zero; /* n: number of `started` */
    struct {
        uint64_t address, pitch;
    } started[GPU_MAX_GPUS + 1], finished;
};

/* How a run of a bound operator hands over to the worker if it is recalled (daemon/worker/comm/bound/launcher.h). */
struct gpu_recall {
    uint64_t places; /* struct gpu_stream_places in the GPU's memory. 0: the run is never recalled */
    uint32_t slot;   /* the operator's completion slot */
    uint32_t value;  /* the value of its stream words */
};

/* The runs of an operator that the program has bound. A launch carries its run's number, as a worker's launch does, until the
 * operator is first captured into a graph. From then on no launch does (`numbered`), because a graph is replayed any number of
 * times: each kernel finds the number of the last run in the rank's control memory, and its own run is the next one
 * (kernels/gpu/device/numbers.h). */
struct gpu_series {
    uint64_t word;  /* uint64_t in the GPU's memory, GPU_FLAG_RUN of the rank's flags: the last run that has ended. 0: none */
    uint64_t clash; /* uint64_t in host memory: becomes the run's number if two runs are under way at a time */
    uint64_t slots_bytes; /* of one half of the packet memory: run n uses half n % 2, */
    uint64_t counters[2]; /* ... and this set of counters */
    uint32_t numbered;    /* 1: the kernel itself finds the run's number. 0: the launch carries it */
    uint32_t zero;
};

/* gpu_fixed.left of numbered runs: the workgroups that have ended, those that have begun, and the runs that have told the host
 * that they have begun. */
#define GPU_LEFT_BEGUN (1u << 12)
#define GPU_LEFT_TOLD (1u << 24)
#define GPU_LEFT_MOST 2047u /* workgroups: two runs at a time can be counted */

/* A run through the rings of its communicator (rings.h), which it shares with collectives and other operators: they count all their
 * runs together, and exchange what they do as headers. Such a run is numbered, and has GPU_IN_STREAM. */
struct gpu_in_rings {
    uint64_t heads[GPU_MAX_GPUS]; /* each rank's struct rings_head, which is as far behind its flags on all ranks */
    uint64_t failed;              /* uint64_t in host memory: becomes the run's number if it is given up */
    uint64_t what, whole, own;    /* the header, without the run */
    uint32_t nranks;              /* 0: it is no such run */
    uint32_t number;              /* of the call, as that of a collective */
    /* 1: the run belongs to a call together with the one before it. If that was given up, this one does nothing, and is not counted: then
     * all ranks go on with the next call, whatever they took this one for. */
    uint32_t continues;
    /* Not 0: what the rank computes for others lies in their landing memory until they move it (kernels/plan/exchange/landing.h), in places of so
     * many bytes. gpu_output.data of another rank is this one's slot there. Then `own` is the room for rows in this rank's result, and the header
     * that a rank gets has the rows for it. */
    uint32_t place_bytes, element_bytes;
    uint32_t rows
        [GPU_MAX_GPUS]; /* for each rank. Of embedding_all_to_all the samples, and `own` is the number of tables in the result */
    uint32_t expected[GPU_MAX_GPUS]; /* from each rank; UINT32_MAX: any number */
};

/* What an epilogue does with each element behind bias and residual, of what a rank launches itself (kernels/plan/epilogue.h). All 0: nothing. */
struct gpu_each {
    uint64_t gate; /* 0: absent */
    int64_t gate_stride;
    uint32_t activation; /* enum fcc_activation */
    float scale;         /* 0: 1 */
    /* 1: of sums in one step: the results are f32, gpu_output.data of this rank too. What follows them is done behind the kernel (whole_rows.h) */
    uint32_t wide, zero;
};

/* The argument of every kernel, by value; noop's is its beginning, `end`. */
struct gpu_call {
    struct gpu_end end;
    const struct gpu_fixed *fixed;
    uint64_t epoch;
    uint32_t nruns;    /* ranks of this GPU: number of `in` and `plans` */
    uint32_t stamp;    /* stamp of this call's packets: grows by one with every call that uses packets; never 0 */
    uint64_t slots_at; /* offset of this call's half of the packet memory; calls alternate between the two halves */
    struct gpu_output out[GPU_MAX_RANKS];
    struct gpu_input in[GPU_MAX_RUNS];
    struct gpu_plan plans[GPU_MAX_RUNS]; /* a copy of fixed->plans, which the kernel can read without a load from memory */
    struct gpu_nodes nodes;              /* valid if shape.over_nodes */
    struct gpu_barrier barrier;
    struct gpu_recall recall;
    /* Client-launched runs alternate between two sets of counters. This run resets the other set, which the previous run has
     * used, for the next run. 0: worker-launched, there is one set. */
    uint64_t idle_counters;
    struct gpu_series series;
    struct gpu_in_rings rings;
    struct gpu_each each;
    /* [nruns], in host memory, until the launch has started: kernels for factors in e4m3 get them as their second argument. NULL: all are 1 */
    const struct gpu_factor_scales *scales;
};
#ifdef __cplusplus
static_assert(sizeof(struct gpu_call) <= 4096, "kernels take at most 4 KiB of arguments");
#endif

/* An error in a client's data. */
enum gpu_failure_kind {
    GPU_FAILURE_NONE = 0,
    GPU_FAILURE_OFFSET_BEGIN, /* offsets[at], the begin of bag `bag` of `table`, is outside [least, most] */
    GPU_FAILURE_OFFSET_END,   /* offsets[at], the end of bag `bag` of `table`, is outside [least, most] */
    GPU_FAILURE_INDEX, /* indices[at], number `position` of bag `bag` of `table`, is outside [0, most] (most -1: no rows) */
};
struct gpu_failure {
    uint32_t kind; /* written last */
    uint32_t table;
    int64_t at, value, bag, position, least, most;
};

/* ---- the plug-in's functions --------------------------------------------------------------------------------------- */

struct gpu_description {
    char name[128];
    char pci[32]; /* "0000:1b:00.0" */
    unsigned char uuid[16];
    uint64_t memory_bytes;
    uint32_t multiprocessors;
    uint32_t peers;                    /* bit p: can address the memory of GPU p */
    char links[GPU_MAX_GPUS][16];      /* to GPU p: "NVLink", "xGMI", "PCIe", or "" */
    uint32_t stream_memory_operations; /* 1: streams can wait for words, so the GPU can be synchronized with client streams */
    uint32_t words_in_memory;          /* 1: such words may be in the memory of GPUs; 0: only in host memory */
    uint32_t lanes; /* number of queues for launches, 1 to GPU_LANES; their costs of synchronization may differ */
};

/* Memory that a client may import. `bytes` is rounded up to the granularity with which the GPU can share memory. */
struct gpu_memory {
    uint64_t address;
    uint64_t bytes;
    uint64_t handle;
    int gpu;
    int kind; /* enum fcc_memory_kind: how a client imports it */
};

/* One rank's part of a launch. */
struct gpu_run {
    int rank;
    const struct slice *slices;
    const struct signal_group *groups;
    uint64_t sets[GPU_SETS];                 /* as struct gpu_plan's */
    uint32_t first[GPU_PHASES + 1], ngroups; /* as in gpu_plan */
};

struct gpu_launch;
struct gpu_code;

/* The same moment by a GPU's clock and by CLOCK_MONOTONIC, and how many ns a tick of the former is. */
struct gpu_moment {
    uint64_t clock, ns;
    double rate;
};

/* A run of a rule of a tracker. */
struct gpu_rule_run {
    int gpu;                 /* whose queue: of the memory that is read; of additions: of the memory that is added to */
    uint32_t lane;           /* STORE, SIGNAL: runs of different lanes need not follow each other */
    uint32_t action, dtype;  /* enum fcc_rule_action; ADD: enum fcc_dtype */
    uint64_t from, to, rows; /* rows 0: nothing is moved */
    uint64_t row_bytes, from_stride, to_stride;
    uint64_t signal; /* uint64_t in a GPU's memory: becomes `run` behind the rows; 0: none */
    uint64_t done;   /* uint64_t in host memory (host_alloc()): becomes `run` behind the signal */
    uint64_t run;
};

/* What a launch waits for: words (uint32_t, aligned to 8 bytes, in host memory or in the memory of the GPU that waits) that
 * must reach values. */
struct gpu_waits {
    uint64_t words[GPU_MAX_WORDS];
    uint32_t values[GPU_MAX_WORDS];
    /* words[0, before) must reach their values before the kernel begins. words[before, count) are in the GPU's memory, and must
     * reach their values before the kernel stores anything into other ranks' memory. */
    int count, before;
    /* Set by launch_start(). True: the kernel itself waits for words[before, count). False: it begins after all words. */
    bool in_kernel;
};

struct gpu_plugin {
    uint32_t abi;
    const char *kind; /* "hip", "cuda" */
    /* Returns the number of GPUs (1 or more), or with the reason -ENODEV: there is none; -EAGAIN: the runtime did not start,
     * and never will in this process, but may in another. Makes no context. */
    int (*count)(struct error *e);
    int (*describe)(int gpu, struct gpu_description *out, struct error *e);
    /* Makes a context and streams on each GPU of the mask, and lets these GPUs address each other's memory. May be called again
     * with further GPUs. With ipc, memory is shared by IPC handles even if file descriptors are supported. */
    int (*open)(uint32_t gpus, bool ipc, struct error *e);
    void (*close)(void);
    /* Allocates zeroed memory that all open GPUs can address. If fd is not NULL, *fd is a descriptor for clients to import,
     * which the caller closes. */
    int (*memory_alloc)(int gpu, uint64_t bytes, struct gpu_memory *out, int *fd, struct error *e);
    void (*memory_free)(struct gpu_memory *m);
    int (*memory_copy)(void *to, int gpu, uint64_t from, uint64_t bytes, struct error *e);        /* device to host; waits */
    int (*memory_write)(int gpu, uint64_t to, const void *from, uint64_t bytes, struct error *e); /* host to device; waits */
    /* Makes host memory (whole pages) accessible to all open GPUs, at *address. */
    int (*host_register)(void *memory, size_t bytes, uint64_t *address, struct error *e);
    void (*host_unregister)(void *memory);
    /* Makes a launch: an operator's plans for the ranks of one GPU. flags[nranks] as in gpu_fixed. */
    int (*launch_make)(int gpu, const struct gpu_shape *shape, const uint64_t flags[], const struct gpu_run runs[], int nruns,
                       struct gpu_launch **out, struct error *e);
    void (*launch_free)(struct gpu_launch *l);
    /* Uploads numbers of a run, 1 or more, unless they are unchanged. Returns their device address, for
     * gpu_input.embedding.table_first or gpu_input.vector.parts. */
    int (*launch_numbers)(struct gpu_launch *l, int run, const int64_t numbers[], uint32_t count, uint64_t *address,
                          struct error *e);
    /* Enqueues on one of the GPU's queues, after everything enqueued before on any of them: waits for the words, one after the
     * other, then the kernel. Fills in call->fixed, nruns, plans and end.epoch. staging[nranks] and slots[nranks] as in
     * gpu_fixed. Does not block. */
    int (*launch_start)(struct gpu_launch *l, struct gpu_call *call, const uint64_t staging[], const uint64_t slots[],
                        struct gpu_waits *waits, uint32_t lane, struct error *e);
    /* Enqueues a store of a value at a device address on a side stream, which is executed even while kernels run and streams
     * wait. Does not block. */
    int (*word_store)(int gpu, uint64_t address, uint64_t value, struct error *e);
    /* A further descriptor of memory that the plug-in has allocated, of kind FCC_MEMORY_GPU_FD, for clients to import; the caller closes it. */
    int (*memory_share)(const struct gpu_memory *m, int *fd, struct error *e);
    /* Returns 0 if the GPU works; -EIO with the reason if its context is lost for ever. */
    int (*health)(int gpu, struct error *e);
    /* Fetches the times of a run whose kernel has finished: out[nslices], in CLOCK_MONOTONIC. */
    int (*launch_times)(struct gpu_launch *l, int run, struct slice_time out[], struct error *e);
    /* Number of workgroups of a launch. */
    uint32_t (*launch_workgroups)(const struct gpu_launch *l);

    /* ---- operators over several nodes ---- */

    /* Allocates zeroed, pinned host memory (whole pages), which has the same address for the CPU and all open GPUs. Freeing it
     * may wait until no kernel runs. */
    int (*host_alloc)(uint64_t bytes, void **memory, struct error *e);
    void (*host_free)(void *memory, uint64_t bytes);
    /* Enqueues a copy of rows from such host memory into the GPU's memory; rows are `stride` bytes apart at both ends. Copies
     * of a GPU are done in order, and wait for no kernel. */
    int (*copy_in)(int gpu, uint64_t to, const void *from, uint64_t row_bytes, uint64_t stride, uint32_t rows, struct error *e);
    /* Waits for all copies enqueued before. (A launch over nodes needs no such call: it waits for them on the GPU before its
     * kernel.) */
    int (*copies_await)(int gpu, struct error *e);

    /* Exports [address, address + bytes) of the GPU's memory, whole pages of one allocation, as a dma-buf that an adapter can
     * write. The memory begins at byte *offset of *fd, which the caller closes. Returns an error with the reason if that is not
     * possible, as with many drivers. */
    int (*memory_export)(int gpu, uint64_t address, uint64_t bytes, int *fd, uint64_t *offset, struct error *e);
    /* Makes adapters' writes into such memory, whose completion the CPU has seen, visible to kernels that are launched after
     * this call. Called by the thread that calls copy_in(). Waits for no kernel. */
    int (*writes_flush)(int gpu, struct error *e);

    /* ---- rules of trackers ---- */

    /* Enqueues a run: rows are stored by copy engines, or added by a few workgroups; behind them the signal is stored, then `done`. It waits
     * for no other work than runs of the same GPU and, unless they add, lane; all additions of a GPU follow each other. Does not block. */
    int (*rule_start)(const struct gpu_rule_run *run, struct error *e);
    /* Enqueues copies of n words of the GPU's memory into host memory (host_alloc()), and behind them the store of `number` into *done, there,
     * too. It waits for no other work than earlier looks. Does not block. */
    int (*words_look)(int gpu, const uint64_t words[], uint32_t n, uint64_t to[], uint64_t *done, uint64_t number,
                      struct error *e);

    /* ---- what ranks' own kernels have noted of their runs (run_record.h) ---- */

    /* Reads the clock by which they have. Takes some 0.1 ms of the GPU, and waits until there is a place for a thread. */
    int (*clock_read)(int gpu, struct gpu_moment *out, struct error *e);
    /* Copies memory of the GPU. Waits for nothing but the copy. */
    int (*records_read)(void *to, int gpu, uint64_t from, uint64_t bytes, struct error *e);

    /* ---- generated code (kernels/generate/generate.h). compiler() and code_compile() are called by threads that need not be the engine: compiler() by one
     * at a time, code_compile() by several. ---- */

    /* Loads the compiler, the first time, from the library `path`, or, NULL, from where there is one. Returns in `text` all that its result depends on
     * besides the source: its version and options, the chip, the driver, and the headers that belong to the plug-in. -ENOENT: there is none. */
    int (*compiler)(int gpu, const char *path, char text[GPU_COMPILER_TEXT], struct error *e);
    /* Compiles a source for the GPU's chip, after compiler(). *image is to be freed with free(). Takes up to some seconds; uses no GPU. */
    int (*code_compile)(int gpu, const char *source, void **image, size_t *bytes, struct error *e);
    /* Loads what code_compile() has made, here or in another process, onto the GPU. Called while nothing is in the GPU's queues: it may wait for that. */
    int (*code_load)(int gpu, const void *image, size_t bytes, struct gpu_code **out, struct error *e);
    /* No launch has it any more, and nothing is in the GPU's queues. */
    void (*code_free)(struct gpu_code *code);
    /* Calls of the launch, which is a step's and runs nowhere now, have this kernel from now on; NULL: the interpreter. */
    int (*launch_code)(struct gpu_launch *l, const struct gpu_code *code, struct error *e);
};

/* The function that a plug-in exports. */
const struct gpu_plugin *gpu_plugin(void);
typedef const struct gpu_plugin *gpu_plugin_function(void);
#define GPU_PLUGIN_SYMBOL "gpu_plugin"

#ifdef __cplusplus
}
#endif
#endif
