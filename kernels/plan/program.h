/* SPDX-License-Identifier: MIT
 *
 * program.h - what an operator is: one row of the operator table. To add an operator: a number in proto.h, a row in program.c, a file
 * OP.c.
 */
#ifndef FCC_KERNELS_PLAN_PROGRAM_H
#define FCC_KERNELS_PLAN_PROGRAM_H

#include <stdbool.h>

#include "kernels/gpu/abi.h"
#include "kernels/plan/plan.h"
#include "proto/proto.h"

/* A tensor as the kernels see it: its place in this process is checked against its buffer (every element of shape x stride
 * lies inside, and is aligned to its size). The contents belong to the client and may change at any time. */
struct tensor {
    unsigned char *data; /* NULL: absent */
    enum fcc_dtype dtype;
    int ndim;
    bool symmetric; /* lies in a buffer that takes results of this communicator: a symmetric or a result buffer */
    int64_t shape[FCC_MAX_DIMS];
    int64_t stride[FCC_MAX_DIMS]; /* elements, 0 or more */
};

/* One rank's request: the daemon's own copy. */
struct op_args {
    enum fcc_op op;
    enum fcc_schedule_kind schedule;
    enum plan_route route;
    const int64_t *attrs; /* well-formed: op_attrs_check() */
    size_t nattrs;        /* words */
    int ntensors;
    struct tensor tensors[FCC_MAX_TENSORS]; /* [ntensors]; what is behind them is undefined */
};

void op_args_copy(struct op_args *to, const struct op_args *from);
/* The same words, in the same places; attributes in the same place (whatever they are). By whatever schedule, which is the plan's. */
bool op_args_equal(const struct op_args *a, const struct op_args *b);
bool op_tensors_equal(const struct op_args *a, const struct op_args *b); /* ... and the operators */

/* 0, or -EINVAL if the words are not a sequence of attributes with known keys, each at most once. */
int op_attrs_check(const int64_t *attrs, size_t nattrs, struct error *e);
/* The values of an attribute and their number, or NULL (and 0) if it is absent. */
const int64_t *op_attr(const struct op_args *args, enum fcc_attr key, size_t *count);

/* One rank's execution of its plan on a device whose memory this process can address. */
struct run {
    const struct plan *plan;
    const struct problem *problem;
    int rank;
    const struct op_args *args;    /* [nranks]: all ranks' requests */
    unsigned char *const *staging; /* [nranks]: all ranks' staging memory, plan->staging_bytes each, 64-byte aligned */
};

/* Where a slice that is put (all but compute and wait) lies at one of its destinations, as addressed in this process: `planes`
 * of them, plane_bytes apart, each of `rows` rows of row_bytes, row_stride bytes apart. For who sends it on to another node. */
struct put_area {
    int tensor; /* the destination's, whose memory it is; PUT_STAGING: its staging memory */
    uint32_t planes, rows;
    unsigned char *at;
    uint64_t plane_bytes, row_bytes, row_stride;
};
#define PUT_STAGING (-1)

/* One thread of a cpu device. Its scratch memory grows and is reused from slice to slice. */
struct workgroup {
    void *scratch;
    size_t scratch_bytes;
    bool alone;          /* no other takes slices of the runs that it executes */
    struct views *views; /* of the worker's shared memory; NULL: there are none */
};
/* At least `bytes` of 64-byte aligned memory with undefined contents, valid until the next call; or NULL. */
void *workgroup_scratch(struct workgroup *wg, size_t bytes);
void workgroup_release(struct workgroup *wg);

/* How a slice that is computed and put may be computed before the other ranks have come, while they may still read their results. */
enum op_early {
    EARLY_NEVER,
    EARLY_AS_IT_IS, /* it stores into staging memory, and no result */
    EARLY_STAGED,   /* as one that is only computed, and then, in its turn, as one that is only put; there is staging memory */
};

/* Errors speak of arguments as "ARGUMENT: value: what is allowed"; the caller puts "rank R: OPERATOR: " in front. */
struct op {
    const char *name;
    int ntensors;
    const char *const *tensor_names; /* [ntensors] */
    int result;                      /* the tensor that ranks store into; -1: there is none */
    /* One rank's request by itself. 0, or -EINVAL with the reason. */
    int (*check)(const struct op_args *args, int nranks, int rank, struct error *e);
    /* All ranks' (checked) requests together: fill in *out (whose op, nranks and node_of are set, and the rest 0). 0, or -EINVAL with a reason
     * that names the rank that differs, from which one, and both values: "n: rank 2 has 128, rank 0 has 256". */
    int (*match)(const struct op_args args[], int nranks, struct problem *out, struct error *e);
    /* Fill the builder's plan; schedule's zeros become the defaults. */
    void (*plan)(const struct problem *problem, int rank, struct schedule *schedule, struct plan_builder *b);
    struct work (*work)(const struct problem *problem, int rank);
    /* Execute one slice (never a SLICE_WAIT) on the cpu: its compute and its stores, not its waits and signals. Indices and
     * offsets are read from the client's memory once and checked before use. 0, -ERANGE or -ENOMEM with the reason. */
    int (*slice)(const struct run *run, const struct slice *slice, struct workgroup *wg, struct error *e);
    enum op_early early;
    /* Whether a rank's request is one of this problem by its attributes. For operators whose problem has all that these say; NULL: it is
     * if it has none. */
    bool (*attrs_fit)(const struct problem *problem, int rank, const struct op_args *args);
    /* How many slices from this one on, which wait for nothing, a workgroup that is alone had better execute together: 1 or more. NULL:
     * always 1. And do that. */
    uint32_t (*together)(const struct run *run, uint32_t first);
    int (*slices)(const struct run *run, uint32_t first, uint32_t count, struct workgroup *wg, struct error *e);
    /* Where a slice that is put lies at rank dst, which is its destination, or one of several. */
    void (*area)(const struct run *run, const struct slice *slice, int dst, struct put_area *out);
    /* What its GPU kernels are told (daemon/worker/device/gpu/call.c): of the operator, and of one rank. What is not the operator's is zero. */
    void (*gpu_shape)(const struct problem *problem, const struct schedule *schedule, struct gpu_shape *out);
    void (*gpu_rank)(const struct op_args *args, struct gpu_output *out, struct gpu_input *in);
    /* Values to return to the rank with its completion, at most FCC_MAX_RANKS; returns how many. */
    int (*values)(const struct problem *problem, int rank, int64_t values[]);
};

/* The operator's row, or NULL for an unknown number. */
const struct op *op_get(unsigned op);

#endif
