/* SPDX-License-Identifier: MIT
 *
 * bound.h - operators that this process launches itself: what the rest of the library needs of them.
 */
#ifndef FCC_CLIENT_STREAM_BOUND_H
#define FCC_CLIENT_STREAM_BOUND_H

#include "client/core/call.h"
#include "client/core/request.h"
#include "client/memory/buffer.h"
#include "kernels/gpu/bound.h"
#include "kernels/gpu/bound_check.h"
#include "proto/session.h"

/* The operator that was to be bound. */
struct prepared_wanted {
    uint32_t op, ntensors;
    const struct fcc_wire_tensor *tensors; /* in the operator's order */
    bool repeated; /* each run brings its own inputs and result, so the plan does not have their addresses */
    /* A program's step: the request as this process has it, with the addresses of all tensors. NULL: it is none */
    const struct op_args *step;
};

/* The plan, and the plug-in's functions that run it. */
struct prepared_plan {
    struct gpu_prepared_plan *plan; /* to be freed with free() */
    size_t bytes;
    const struct gpu_prepared_functions *functions;
};

/* The buffers of this rank that an operator uses. NULL: absent. */
struct prepared_buffers {
    const fcc_buffer *inputs[2]; /* gemv's x and w, gemm's a and b; a program's step's `in` */
    const fcc_buffer *result;
    const fcc_buffer *others[FCC_MAX_TENSORS]; /* that a step uses besides */
};

struct fcc_prepared {
    LIST_ENTRY(fcc_prepared) link; /* context->prepared. context->prepared_lock */
    struct fcc_comm *comm;
    uint32_t number, place;           /* the worker's number, and the index of its words in the session memory */
    struct fcc_binding *words;        /* there; the worker writes those of a repeated operator */
    bool needs_results, needs_inputs; /* of other ranks */
    bool has_library;                 /* rings: of all ranks (FCC_ATTR_LIBRARY) */
    uint32_t level;                   /* rings: enum pieces_level, of all ranks */
    bool repeated;                    /* the worker has bound it, for repeated.c; the program does not know it */
    const struct gpu_prepared_functions *functions;
    struct gpu_prepared *gpu;                                                                   /* NULL: not open */
    struct accelerator_memory areas[GPU_MAX_RANKS], results[GPU_MAX_RANKS], ins[GPU_MAX_RANKS]; /* bytes is 0: not mapped */
    size_t numbers_at; /* a program's step: where its instructions are among the numbers that its kernel is told */
    pthread_mutex_t lock;
    uint64_t runs; /* number of the newest run, unless is_captured. lock; of a repeated one: comm->order */
    /* Its runs have been captured into graphs, which may be replayed: only the GPU knows the runs' numbers from then on. lock */
    bool is_captured;
    bool is_counted;  /* the same from the first run on, which a guard may make none. Constant after the first one */
    uint64_t capture; /* number of the newest capture. lock */
    struct prepared_buffers buffers; /* not those of a repeated operator */
    bool is_refused;                 /* the worker knows that the next run is refused. lock */
};

/* An operator that the worker has prepared, and that is to be opened here. */
struct prepare_begun {
    struct fcc_prepared *prepared; /* NULL: there is none any more */
    uint32_t op, ntensors;
    struct fcc_wire_tensor tensors[FCC_MAX_TENSORS];
};

/* Prepare the operator of a complete message, together with all other ranks. Sets recv_rows[nranks] unless it is NULL. */
int comm_prepare(struct fcc_comm *comm, struct fcc_submit *msg, size_t length, int64_t *recv_rows,
                 const struct prepared_buffers *buffers, fcc_prepared **out);
/* The same in two halves, so that the worker compiles the kernels of several steps side by side, before the first of them is waited for: all ranks begin the same
 * ones, and end these in one order. begin: 0, and *out is to be ended or dropped; or all ranks have the error. end: `step` is as in struct prepared_wanted. drop: all
 * ranks drop it; the last error stays. */
int comm_prepare_begin(struct fcc_comm *comm, struct fcc_submit *msg, size_t length, int64_t *recv_rows,
                       const struct prepared_buffers *buffers, struct prepare_begun *out);
int comm_prepare_end(struct prepare_begun *begun, const struct op_args *step, fcc_prepared **out);
void comm_prepare_drop(struct prepare_begun *begun);
/* Of a program's step: runs that are put onto the stream behind this have these instructions' numbers. */
int prepared_numbers(struct fcc_prepared *p, const int64_t words[], size_t n, void *stream);
/* Whether the stream is under capture: *capturing is an enum that says so (DRIVER_NOT_CAPTURING: no). */
int prepared_capturing(const struct fcc_comm *comm, void *stream, int *capturing);
/* Not locked. The rank has joined: load what it takes to launch operators here. What cannot be loaded is tried again when it is
 * needed, which says why not. */
void prepared_load(const struct fcc_comm *comm);
/* Take over the operator that the worker has prepared under this number, for repeated.c. `place` is the index of its words. NULL:
 * this process cannot use it, and has told the worker so. Slow. The communicator owns the result. */
struct fcc_prepared *prepared_adopt(struct fcc_comm *comm, uint32_t number, uint32_t place,
                                    const struct prepared_wanted *wanted);
/* The plug-in is the process's: whatever the context, one thread at a time opens and closes operators. */
extern pthread_mutex_t prepared_plugin_lock;
/* The program does not use the operator any more. Graphs may still replay its runs, which are over then. */
void prepared_end(struct fcc_prepared *p);
/* Tell the worker that this process has no use for it. */
void prepared_tell_freed(const struct fcc_prepared *p);
/* Have all runs of a repeated operator ended? */
bool prepared_is_idle(const struct fcc_prepared *p);
/* comm->order held, the GPU is the current one. Put the next run of a repeated operator onto the stream. 0, -EIO. */
int prepared_repeat(struct fcc_prepared *p, const struct gpu_repeated_run *run, void *stream);
/* A run's kernel could not be put onto the stream: nobody has to wait for its end. */
void prepared_run_lost(struct fcc_prepared *p, uint64_t run);
/* p->lock held, or comm->rings_lock of rings. Tell the worker, for ranks whose run waits for this one, that the run is refused with the last error (which is kept), or,
 * status 0, that it is on the stream after all. run 0: the next one, whose number nobody knows here. */
void prepared_run_tell(struct fcc_prepared *p, uint64_t run, int status);
/* The communicator is over, with this status, in which the function `called` finds it: sets the last error to the reason, which is had from a request that ends at once, if the
 * worker still answers. Returns its status. */
int prepared_over_explain(struct fcc_comm *comm, int status, const char *called);
/* Free all prepared operators of a communicator that is about to be destroyed. */
void prepared_free_all(struct fcc_comm *comm);
/* The same for a context that is about to be freed and that no other thread uses. Sends no messages. */
void prepared_forget_all(struct fcc_context *c);
/* In the child of a fork: the lock of the plug-ins is free. */
void prepared_forked(void);
/* Not locked. The context is dead or about to be freed: make the kernels of its prepared operators end. */
void prepared_release(struct fcc_context *c);

/* In front of a run of a guarded step: it is none if the newest run of the communicator's rings, which are open, was given up. guard.c */
int prepared_guard(struct fcc_prepared *p, void *stream);

/* p->lock held, the GPU is the current one, and the stream is under capture: its graph keeps what the operator uses, and the
 * operator's runs carry no numbers any more (struct gpu_series). capture.c */
int prepared_capture(struct fcc_prepared *p, void *stream);
/* The GPU is the current one, and the stream is under capture: the graph keeps what the communicator's graphs keep (graphs_hold()), once: nothing
 * happens if `has_it` and *number is the capture's, which it becomes. *graphs is then NULL, otherwise the communicator's. capture.c */
int capture_retain(struct fcc_comm *comm, void *stream, uint64_t *number, bool has_it, struct graphs **graphs);

/* ---- the worker's plan, which is fetched and checked before it is used: bound_plan.c ---- */

/* Fetch the plan of prepared operator `number`. -EPROTO: it is not the wanted operator, or the plan is not safe to run. */
int prepared_plan_get(const struct fcc_comm *comm, uint32_t number, const struct prepared_wanted *wanted,
                      struct prepared_plan *out);
/* The functions of the plug-in for the communicator's GPUs. -ENODEV, -EPROTO. `theirs` is the worker's plug-in file, for the error
 * text. */
int prepared_functions_load(const struct fcc_comm *comm, const char *theirs, const struct gpu_prepared_functions **out);
/* 0 if all memory that the plan's kernels store into is mapped; otherwise -EPROTO. */
int prepared_sizes_check(const struct fcc_comm *comm, const struct prepared_plan *plan, const struct gpu_prepared_sizes *sizes);
/* Map the memory of a rank's area or result. */
int prepared_memory_map(const struct fcc_comm *comm, uint32_t number, enum fcc_prepared_what what, int rank,
                        struct accelerator_memory *out);

/* Ask the worker for what `what` says. *fd: the caller closes it. */
int prepared_ask(const struct fcc_comm *comm, uint32_t number, enum fcc_prepared_what what, int rank,
                 struct fcc_prepared_reply *reply, int *fd);

/* ---- steps of programs: bound_step.c ---- */

struct prepared_step_parts {
    int64_t *numbers;
    size_t nnumbers;
    void *image;
    size_t image_bytes;
};
/* This rank's request by itself: -EINVAL, or -EOPNOTSUPP: no compiled kernel can run it. */
int prepared_step_check(const struct op_args *own, int nranks, int rank, struct error *e);
/* Whether a plan, which has been checked, is one of the wanted step. */
bool prepared_step_fits(const struct gpu_prepared_plan *plan, const struct prepared_wanted *w);
/* What the kernel is told, and the kernel, which is waited for; checks that all is mapped that it uses. To be freed with prepared_step_free(). -EOPNOTSUPP: it
 * cannot be compiled; -ETIMEDOUT, -EPROTO, -ENOMEM. */
int prepared_step_get(struct fcc_prepared *p, const struct gpu_prepared_plan *plan, const struct op_args *own,
                      const struct gpu_prepared_sizes *sizes, struct prepared_step_parts *out);
void prepared_step_free(struct prepared_step_parts *parts);

/* ---- operators that come to streams again and again: repeated.c ---- */

/* Whether this process launches an operator. Filled in by repeat_begin(). */
struct repeat {
    struct kind *kind;             /* NULL: operators of this kind are not counted */
    struct fcc_prepared *prepared; /* this process launches its next run, `run`; NULL: the worker launches the operator */
    struct gpu_repeated_run run;   /* without slot and value */
};
/* comm->order held. Called before and after an operator is put onto a stream. repeat_begin() may add to msg, which is otherwise
 * complete; it is slow when the worker has bound something. places: of its tensors. */
void repeat_begin(struct fcc_comm *comm, struct fcc_submit *msg, const struct tensor_place places[], struct repeat *out);
void repeat_end(const struct repeat *r);
/* comm->order not held. The communicator is about to be destroyed. */
void repeats_end(struct fcc_comm *comm);
/* comm->order not held. A buffer is about to be freed, and with it what is bound to it. */
void repeats_forget(struct fcc_comm *comm, uint32_t handle);

#endif
