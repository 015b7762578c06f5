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

struct gpu_launch;
struct gpu_words;
struct submission;
struct tune_class;

/* GPUs, over nodes: an operator is several kernels, one after the other, each of some phases of the plans (device/gpu/steps.c). */
enum gpu_step { GPU_STEP_SEND, GPU_STEP_REDUCE, GPU_STEP_WAIT, GPU_STEPS };

/* Flags of a rank that other nodes raise, and that have to be there before a step. */
struct awaited_flags {
    uint32_t *flags; /* [n] */
    uint32_t n;
    _Atomic uint32_t come; /* the first so many have, in this call */
};

/* What is written with every operator has a cache line of its own, in memory that begins with one, so that ranks on different
 * cores do not wait for each other's writes; so has what a workgroup counts in. */
struct launch_run {
    struct run run; /* what the kernels see */
    struct plan *plan;
    struct device *device;
    _Atomic uint64_t *flags;      /* W: of this rank. A cpu's; for a GPU only an address */
    _Atomic uint32_t *group_left; /* W: [plan->ngroups] slices that have not finished. Set back by who finishes the last one */
    /* [plan->nslices]. cpu, W: [launch's turn], each by the workgroup that took the slice. The other ones: of the run before, what
     * fccctl trace shows while this one runs. They are fetched. */
    struct slice_time *times[2];
    struct awaited_flags awaited[GPU_STEPS];
    uint64_t early;                     /* comm/early.c: a bit for each of its first slices that has run already */
    uint64_t staged;                    /* ... that has been computed into staging memory, and not put yet */
    _Alignas(64) _Atomic uint32_t next; /* W: the slice that nobody has taken yet, where threads take what comes */
};

/* What one device has to do. */
struct launch_part {
    struct launch *launch;
    struct device *device;
    TAILQ_ENTRY(launch_part) link;    /* the device's queue */
    uint64_t number;                  /* in the device's order */
    _Atomic uint32_t workgroups_left; /* W */
    struct gpu_launch *gpu;           /* the plug-in's */
    unsigned gpu_index;               /* device->index, for device/gpu/watch.c */
    bool absent;                      /* GPU: it could not be started */
    int nruns;
    uint16_t *ranks; /* [nruns], ascending; in launch.ranks */
};

/* A slot's words, for an operator that has its place on a client's stream (device/gpu/stream.c). */
struct launch_stream {
    _Atomic uint32_t *started;     /* in the session's memory */
    uint64_t started_address;      /* of that */
    uint64_t finished_address;     /* wherever it is */
    const struct gpu_words *words; /* the session's, in the memory of GPUs; NULL: those in its own memory are meant */
    uint32_t slot;
    uint32_t value; /* 0: no stream */
    /* A granted launch's (comm/bound/offers.h), whose streams have no words: what the rank's kernel says. Another one's: what that of the newest granted
     * launch before it says, which it waits for; NULL: there is none. */
    struct fcc_prepared_words *kernel;
    uint64_t ended_address; /* where the GPUs see its `ended` */
    uint32_t run;           /* its lower half */
};

/* What a launch tells whoever has made it. Any thread that runs the launch, but for what is said otherwise. */
struct launch_ops {
    /* The last workgroup has left the last part. The launch is to be handed back (worker_launch_give()), at once or when all that it has sent
     * has left; the ranks may be told before that if all went well. */
    void (*ended)(struct launch *l);
    /* Over nodes (NULL: all ranks are here): a slice of r has been put where what is for other nodes is sent from; a flag of a rank elsewhere is
     * to be raised, behind what was put before. */
    void (*put)(struct launch *l, const struct launch_run *r, uint32_t slice);
    void (*flag)(struct launch *l, const struct launch_run *r, int dst, uint32_t flag);
    /* Over nodes, GPUs, the engine: kernels are about to run that put and raise by themselves (struct gpu_nodes), or have ended. */
    void (*kernels)(struct launch *l, bool run);
};

struct launch {
    /* The same for as long as it is kept. */
    const struct launch_ops *ops;
    struct worker *worker;
    struct device_comm *comm;
    struct problem *problem;
    struct schedule schedule;  /* as asked for: zeros mean the operator's defaults */
    _Atomic int32_t *status;   /* W: the communicator's word; a workgroup that fails sets it */
    struct op_args *args;      /* [nranks] */
    unsigned char **staging;   /* [nranks] */
    struct launch_part *parts; /* [nparts] */
    int nparts, nranks;
    uint16_t *ranks;                 /* [nranks]: those of each part, one part after the other */
    uint64_t charged;                /* bytes */
    bool inline_;                    /* small: the engine runs it itself */
    bool is_long;                    /* ... and then it is worth to give helpers some of it */
    bool starts_early;               /* a rank's plan_starts_early() */
    int products;                    /* slices that compute, of the rank that has the fewest */
    double work_ns;                  /* a guess at how long one core would take for all ranks */
    uint32_t steps;                  /* GPU, over nodes: a bit for each enum gpu_step that there is; the last always is */
    struct submission **submissions; /* [nranks]: comm/turn.c: what the launch was made of */
    struct tune_class *class;        /* comm/launches.c: of such problems */
    struct launch_stream *streams;   /* GPU: [nranks] */

    /* Of this operator. Threads that run it read the first ones. */
    _Alignas(64) uint64_t epoch;
    uint64_t serial;       /* among all that the worker has begun */
    int shares;            /* inline: threads that share each part */
    bool aided;            /* ... helpers were among them, the last time */
    uint64_t early_ns;     /* ... when the first slices ran, before all ranks had come; 0: none did */
    uint64_t began_ns;     /* when all had come */
    unsigned turn;         /* which of the runs' times are written */
    uint32_t nodes_number; /* nodes/triggers.c's, while it runs; its ranks are on several nodes. 0: they are all here */
    uint32_t stamp;        /* GPU: for the words in the slots; 0: it uses none */
    bool crowded;          /* with its workgroups, the engine and the clients there are more threads than cores */
    bool automatic;        /* its time tells the tuner */
    bool gated;            /* GPU: waits, on the CPU's side, for the clients' streams or for other nodes; device/gpu/device.c */
    bool granted;          /* GPU: its ranks' own processes have put its kernels onto their streams; offers.h */
    _Atomic bool dropped;  /* GPU: ... and nobody waits for their ends any more */
    bool passed;           /* GPU: was told not to wait for words in the memory of GPUs; device/gpu/stream.c */
    bool leaves;           /* GPU: its kernels were told to leave; device/gpu/leave.c */
    TAILQ_ENTRY(launch) leaving; /* ... a link, if so */
    bool running;                /* among those of its communicator */
    bool begun;                  /* GPU: it has been given to the device */
    bool left;                   /* over nodes: ops->ended() has been called. GPU: no kernel of it runs any more */
    enum gpu_step step;       /* GPU: of `steps`, the one that runs or ran last. Without nodes: WAIT, which then is all of it */
    bool first_step;          /* ... no other one has run before it */
    bool behind;              /* GPU: others of its communicator ran when it was enqueued */
    bool alone;               /* GPU: each begins when its own ranks' streams have come, whatever the others do */
    bool tries_lanes;         /* GPU: its time tells what lanes are worth */
    uint32_t lanes;           /* GPU: bit g: it comes to GPU g by the second lane; device/gpu/lanes.h */
    struct launch *following; /* the one that began after it, if it runs already */
    uint64_t busy_ns;         /* GPU: how long its kernels ran */
    TAILQ_ENTRY(launch) watched; /* device/gpu/watch.c's */
    bool is_watched;             /* ... */
    struct launch_span {
        uint64_t number, started_ns, finished_ns; /* started: with its first slice, if some ran early */
    } span, span_shown;                           /* of this run, and of the one before */
    struct finished finished;                     /* handed back */
    struct launch *next_cached;                   /* the communicator's cache */
    _Atomic uint32_t parts_left;                  /* W */
    _Atomic uint32_t failed;                      /* W: the first to set it may write `error` */
    struct error error;                           /* W */
    struct launch_run runs[];                     /* [nranks] */
};

/* The times of a run's slices that are not being written now: of the operator before, or, once it is over, of this one. */
static inline struct slice_time *launch_times_shown(const struct launch *l, int rank)
{
    return l->runs[rank].times[!l->turn];
}

/* A launch of *problem, which is copied, with the plans of all ranks of c, charged to the user's account. NULL with the reason. */
struct launch *launch_make(struct device_comm *c, const struct problem *problem, const struct schedule *schedule,
                           const struct launch_ops *ops, struct error *e);
/* Free a launch that does not run and that nobody refers to. */
void launch_free(struct launch *l);
/* Workgroups: the first failure of a launch is its error, and makes all workgroups leave. */
void launch_fail(struct launch *l, int rank, const struct error *e);
/* Every signal group waits for all of its slices. */
void launch_groups_set(struct launch_run *run);

#endif
