/* SPDX-License-Identifier: MIT
 *
 * program.h - what an operator is: one row of the operator table. To add an operator: a number in proto.h, a row in program.c, a file
 * OP.c.
 */
#ifndef FCC_KERNELS_PLAN_PROGRAM_H
#define FCC_KERNELS_PLAN_PROGRAM_H

#include <stdbool.h>

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

/* Errors speak of arguments as "ARGUMENT: value: what is allowed"; the caller puts "rank R: OPERATOR: " in front. */
struct op {
    const char *name;
    int ntensors;
    const char *const *tensor_names; /* [ntensors] */
    int result;                      /* the tensor that ranks store into; -1: there is none */
    struct problem_spec words;       /* of its problems */
    /* One rank's request by itself. 0, or -EINVAL with the reason. */
    int (*check)(const struct op_args *args, int nranks, int rank, struct error *e);
    /* All ranks' (checked) requests together: fill in *out (problem_begin(), and node_of is set). 0, or -EINVAL with a reason
     * that names the rank that differs, from which one, and both values: "n: rank 2 has 128, rank 0 has 256". */
    int (*match)(const struct op_args args[], int nranks, struct problem *out, struct error *e);
    /* Fill the builder's plan; schedule's zeros become the defaults. */
    void (*plan)(const struct problem *problem, int rank, struct schedule *schedule, struct plan_builder *b);
    struct work (*work)(const struct problem *problem, int rank);
    /* Whether a rank's request is one of this problem by its attributes. For operators whose problem has all that these say; NULL: it is
     * if it has none. */
    bool (*attrs_fit)(const struct problem *problem, int rank, const struct op_args *args);
    /* Values to return to the rank with its completion, at most FCC_MAX_RANKS; returns how many. */
    int (*values)(const struct problem *problem, int rank, int64_t values[]);
};

/* The operator's row, or NULL for an unknown number. */
const struct op *op_get(unsigned op);

#endif
