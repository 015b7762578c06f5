/* SPDX-License-Identifier: MIT
 *
 * launch.h - one operator of all local ranks, on its way through the devices.
 *
 * The engine prepares a launch, gives its parts to the devices (one part per device, with the runs of all ranks there) and
 * does not touch it until it is handed back. Fields marked W are written by workgroups meanwhile.
 *
 * Memory order. A workgroup stores a slice's results, then counts down its signal group (acquire-release, so that the last one
 * to count has seen what the others stored), and the last one raises the flag (release). Who waits loads the flag (acquire) and
 * then the data. Handing a part over and back is a release and an acquire of its own (device/cpu/device.c).
 */
#ifndef FCC_DAEMON_WORKER_DEVICE_LAUNCH_H
#define FCC_DAEMON_WORKER_DEVICE_LAUNCH_H

#include "daemon/worker/device/device_comm.h"
#include "daemon/worker/engine/engine.h"
#include "kernels/cpu/execute.h"
#include "kernels/plan/program.h"
#include "kernels/plan/slice.h"
#include "proto/session.h"

struct gpu_launch;
struct gpu_words;
struct prepared;
struct submission;
struct tune_class;

/* GPUs, over nodes: an operator is several kernels, one after the other, each of some phases of the plans (device/gpu/steps.c). */
enum gpu_step { GPU_STEP_SEND, GPU_STEP_REDUCE, GPU_STEP_WAIT, GPU_STEPS };

/* Flags of a rank that other nodes raise, and that have to be there before a step begins. */
struct awaited_flags {
    uint32_t *flags; /* [n] */
    uint32_t n;
    _Atomic uint32_t come; /* in this run the first `come` of them have been seen */
};

/* One rank's share. What is written with every operator has a cache line of its own, in memory that begins with one, so that ranks on
 * different cores do not wait for each other's writes; so has what a workgroup counts in. */
struct launch_run {
    struct run run; /* what the kernels see */
    struct plan *plan;
    struct device *device;        /* NULL: the rank is on another node */
    _Atomic uint64_t *flags;      /* W: the rank's flags. On a GPU this is only an address */
    _Atomic uint32_t *group_left; /* W: [plan->ngroups], slices that have not finished. Set back by who finishes the last one */
    /* [plan->nslices] each. cpu, W: times[launch.turn], each by the workgroup that took the slice. The other one holds the run before, which
     * fccctl trace shows while this one runs. GPUs: times are fetched when somebody asks. */
    struct slice_time *times[2];
    struct awaited_flags awaited[GPU_STEPS];
    uint64_t early;  /* comm/early.c, nodes/early.c: a bit for each of the first slices that has run already */
    uint64_t staged; /* comm/early.c: a bit for each that was computed into staging memory, and not put yet */
    _Alignas(64) _Atomic uint32_t next; /* W: the slice that nobody has taken yet, where threads take what comes */
};

/* What one device has to do. */
struct launch_part {
    struct launch *launch;
    struct device *device;
    TAILQ_ENTRY(launch_part) link;    /* the device's queue */
    uint64_t number;                  /* place in the device's order */
    bool is_queued;                   /* cpu: it is in the device's queue; otherwise the engine runs it in steps */
    _Atomic uint32_t workgroups_left; /* W */
    struct gpu_launch *gpu;           /* GPU: the plug-in's launch. NULL: not made yet */
    unsigned gpu_index;               /* GPU: device->index, for device/gpu/watch.c */
    const char *
        code_text; /* GPU, a program's step: "generated", or "interpreted: " and why (device/gpu/code/code.h). Otherwise NULL */
    bool absent;   /* GPU: the part could not be started */
    int nruns;
    uint16_t *ranks; /* [nruns], ascending; points into launch.ranks */
};

/* GPUs: the words of a completion slot, for an operator that has its place on a client's stream (device/gpu/stream.c). */
struct launch_stream {
    _Atomic uint32_t *started;     /* in the session memory */
    uint64_t started_address;      /* where GPUs see `started` */
    uint64_t finished_address;     /* where GPUs see the word that lets the stream go on */
    const struct gpu_words *words; /* the session's words in the memory of GPUs. NULL: those in the session memory serve */
    uint32_t slot;
    uint32_t value; /* what the stream stores and waits for. 0: the operator is on no stream */
    /* Of a run of a bound operator: where the rank's own kernel says that it has begun and ended, and the lower half of the run's number. */
    struct fcc_binding *kernel;
    uint32_t run;
};

/* What a launch tells whoever has made it. Any thread that runs the launch, but for what is said otherwise. */
struct launch_ops {
    /* The last workgroup has left the last part. The launch is to be handed back (worker_launch_give()), at once or when all that it has sent
     * has left; the ranks may be told before that if all went well. */
    void (*ended)(struct launch *l);
    /* Over nodes (NULL: all ranks are here): a slice of r has been stored where it is sent from; a flag of a rank elsewhere is to be raised,
     * behind what was put before. */
    void (*put)(struct launch *l, const struct launch_run *r, uint32_t slice);
    void (*flag)(struct launch *l, const struct launch_run *r, int dst, uint32_t flag);
    /* Over nodes: whether a slice's put() and flag() need not wait. */
    bool (*has_room)(const struct launch *l);
    /* Over nodes, GPUs, the engine: kernels are about to run that put and raise by themselves (struct gpu_nodes), or have ended. */
    void (*kernels)(struct launch *l, bool run);
};

struct launch {
    /* ---- the same for as long as the launch is kept ---- */

    const struct launch_ops *ops;
    struct worker *worker;
    struct device_comm *comm;
    struct problem *problem;
    struct schedule schedule;  /* as it was asked for: zeros mean the operator's defaults */
    _Atomic int32_t *status;   /* W: the communicator's status word; a workgroup that fails sets it */
    struct op_args *args;      /* [nranks] */
    unsigned char **staging;   /* [nranks] */
    struct added_tile **added; /* [nranks]: of each rank here whose plan has tiles that ranks add into (struct run) */
    struct launch_part *parts; /* [nparts] */
    int nparts, nranks;
    uint16_t *ranks;  /* [nranks]: the ranks of each part, one part after the other */
    uint64_t charged; /* bytes that the account was charged */
    bool inline_;     /* the operator is small: the engine runs it itself */
    /* Over nodes, cpu: the engine runs the operator, a slice at a time between its other work, and sends and receives for it: small operators,
     * and collectives of one rank here, which only copy. Otherwise workgroups do. */
    bool stepwise;
    bool is_long;                    /* inline: the operator is large enough to give helpers some of it */
    bool starts_early;               /* plan_starts_early() of a rank's plan */
    int products;                    /* number of slices that compute, of the rank that has the fewest */
    double work_ns;                  /* estimate of how long one core takes for all ranks */
    uint32_t steps;                  /* GPU, over nodes: a bit for each enum gpu_step that there is. The last one always is */
    struct submission **submissions; /* [nranks]: comm/turn.c: the requests */
    uint64_t *stamps;                /* [nranks]: over nodes: submission.stamp of the last run's requests */
    struct tune_class *class;        /* comm/launches.c: the class of such problems */
    /* Not NULL: a run of this bound operator, whose kernels the ranks' own processes launch (comm/bound/launcher.h). The launch has no
     * plans, and the problem is the bound operator's. */
    struct prepared *bound;
    struct launch_stream *streams; /* GPU: [nranks] */

    /* ---- of this run; threads that run it read the first ones ---- */

    _Alignas(64) uint64_t epoch;
    uint64_t serial;          /* counts all launches of the worker */
    int shares;               /* inline: number of threads that share each part */
    bool aided;               /* inline: helpers were among them, the last time */
    uint64_t early_ns;        /* inline: when the first slices ran, before all ranks had come. 0: none did */
    uint64_t began_ns;        /* when all ranks had come */
    uint64_t computed_ns;     /* over nodes: when the last workgroup left. 0: it has not */
    uint64_t position;        /* which of the communicator's turns it is */
    unsigned turn;            /* which of launch_run.times are written */
    uint64_t nodes_turn;      /* over nodes: the last turn that it has run in, on all nodes. 0: none */
    uint32_t nodes_number;    /* over nodes: nodes/triggers.c's number of the launch while it runs. 0: all ranks are here */
    bool engine_sends;        /* over nodes: the engine sends and receives, too, not a thread of the proxy's */
    uint32_t stamp;           /* GPU: stamp of the packets. 0: the plan has none */
    bool crowded;             /* its workgroups, the engine and the clients are more threads than there are cores */
    bool automatic;           /* its time tells the tuner */
    bool running;             /* it is one of those of its communicator that run */
    bool left;                /* over nodes: ops->ended() has been called. GPU: no kernel of it runs any more */
    struct launch *following; /* the launch of the communicator that began after this one and runs, too. NULL: there is none */
    struct finished finished; /* for handing the launch back */
    struct launch *next_cached;  /* the communicator's cache */
    _Atomic uint32_t parts_left; /* W */
    _Atomic uint32_t failed;     /* W: who sets it first may write `error` */
    struct error error;          /* W */
    struct launch_span {
        uint64_t number, started_ns, finished_ns; /* started_ns: of the first slice, if some ran early */
    } span, span_shown;                           /* of this run; of the run whose times are shown */

    /* ---- of this run, on GPUs ---- */

    bool begun;           /* the launch was given to the device */
    bool gated;           /* it waits on the CPU's side for the clients' streams or for other nodes (device/gpu/device.c) */
    _Atomic bool dropped; /* bound: nobody waits for the ends of those kernels any more */
    bool passed;          /* it was told not to wait for words in the memory of GPUs (device/gpu/stream.c) */
    bool leaves;          /* its kernels were told to leave (device/gpu/leave.c) */
    TAILQ_ENTRY(launch) leaving; /* leaves: gpus.leaving */
    enum gpu_step step;  /* the step of `steps` that runs or ran last. Without nodes: WAIT, which then is all of the launch */
    bool first_step;     /* no other step has run before that one */
    bool behind;         /* other launches of the communicator ran when this one was enqueued */
    bool alone;          /* independent start: each GPU begins when the streams of its own ranks have come */
    bool tries_lanes;    /* its time tells what a second lane is worth */
    uint32_t lanes;      /* bit g: the launch comes to GPU g by the second lane (device/gpu/lanes.h) */
    uint64_t busy_ns;    /* how long its kernels ran */
    uint64_t counted_ns; /* device/gpu/share.c: when the kernels of `step` were enqueued, which count as running. 0: none do */
    uint64_t took_ns[GPU_STEPS]; /* how long those of a step ran the last time, on the slowest GPU. 0: they have not */
    TAILQ_ENTRY(launch) watched; /* is_watched: device/gpu/watch.c's list */
    bool is_watched;

    struct launch_run runs[]; /* [nranks] */
};

/* The times of a run's slices that are not being written: of the run before, or, once this one is over, of this one. */
static inline struct slice_time *launch_times_shown(const struct launch *l, int rank)
{
    return l->runs[rank].times[!l->turn];
}

/* A launch of *problem, which is copied, with the plans of all ranks of c, charged to the user's account. NULL with the reason. */
struct launch *launch_make(struct device_comm *c, const struct problem *problem, const struct schedule *schedule,
                           const struct launch_ops *ops, struct error *e);
/* A launch for runs of bound operators. NULL: no memory. */
struct launch *launch_make_bound(struct device_comm *c, const struct launch_ops *ops);
/* Free a launch that does not run and that nobody refers to. */
void launch_free(struct launch *l);
/* Workgroups: the first failure of a launch is its error, and makes all workgroups leave. */
void launch_fail(struct launch *l, int rank, const struct error *e);
/* Every signal group waits for all of its slices, and no rank has added anything to the rank's tiles (struct added_tile). No workgroup runs the launch. */
void launch_groups_set(struct launch_run *run);

#endif
