/* SPDX-License-Identifier: MIT
 *
 * program.h - requests, and the two parts of an operator: a compute and an exchange. An operator made of existing parts needs
 * only a number in proto/operators.h and a row in operators.def.
 */
#ifndef FCC_KERNELS_PLAN_PROGRAM_H
#define FCC_KERNELS_PLAN_PROGRAM_H

#include <stdbool.h>

#include "kernels/plan/domain.h"
#include "kernels/plan/plan.h"
#include "kernels/plan/spec.h"
#include "proto/proto.h"

/* A tensor as the kernels see it, checked against its buffer: every element of shape x stride lies inside and is aligned to its
 * size. The contents belong to the client and may change at any time. */
struct tensor {
    unsigned char *data; /* NULL: absent */
    enum fcc_dtype dtype;
    int ndim;
    bool symmetric; /* in a buffer for results of this communicator: a symmetric or a result buffer */
    int64_t shape[FCC_MAX_DIMS];
    int64_t stride[FCC_MAX_DIMS]; /* elements, 0 or more */
};

/* One rank's request: the daemon's own copy. */
struct op_args {
    enum fcc_op op;
    enum fcc_schedule_kind schedule;
    enum plan_route route;
    bool batch_invariant; /* FCC_SCHEDULE_BATCH_INVARIANT */
    bool any_order;       /* FCC_SCHEDULE_ANY_ORDER */
    const int64_t *attrs; /* well-formed: op_attrs_check() */
    size_t nattrs;        /* words */
    int ntensors;
    struct tensor tensors[FCC_MAX_TENSORS]; /* [ntensors]; the others are undefined */
};

void op_args_copy(struct op_args *to, const struct op_args *from);
/* Do two requests have the same operator, equal tensors, attributes at the same address, and are both batch invariant or neither, and in any order or not? Neither the
 * attributes' values nor the rest of the schedule is compared. */
bool op_args_equal(const struct op_args *a, const struct op_args *b);
bool op_tensors_equal(const struct op_args *a, const struct op_args *b); /* the same without attributes */

/* 0, or -EINVAL if the words are not a sequence of attributes with known keys, each at most once. */
int op_attrs_check(const int64_t *attrs, size_t nattrs, struct error *e);
/* The values of an attribute and their number, or NULL (and 0) if it is absent. */
const int64_t *op_attr(const struct op_args *args, enum fcc_attr key, size_t *count);

/* What each rank computes: a file in compute/. Errors speak of arguments as "ARGUMENT: value: what is allowed"; the caller puts
 * "rank R: OPERATOR: " in front. */
struct compute_ops {
    struct problem_spec words; /* the words of its problems, whatever the exchange */
    /* Check one rank's request by itself. 0, or -EINVAL with the reason. */
    int (*check)(const struct op_args *args, int nranks, int rank, struct error *e);
    /* Match all ranks' checked requests and fill in *out, on which problem_begin() was called and node_of is set. 0, or -EINVAL
     * with a reason that names the two ranks that differ and both values: "n: rank 2 has 128, rank 0 has 256". */
    int (*match)(const struct op_args args[], int nranks, struct problem *out, struct error *e);
    /* Whether a rank's request has the attributes of this problem. NULL: this cannot be checked. */
    bool (*attrs_fit)(const struct problem *problem, int rank, const struct op_args *args);
    /* The results are so small that GPUs of one node exchange their partial sums as packets. */
    bool few_sums;
    struct work (*work)(const struct problem *problem, int rank);
    /* Replace the schedule's zero slice sizes by default ones. */
    void (*tile)(const struct problem *problem, int rank, struct schedule *schedule);
    /* Fill in which part of the rank's result goes to which rank; *out is zeroed, and has memory for its arrays, which is zeroed, too. For exchanges that put. */
    void (*domain)(const struct problem *problem, int rank, const struct schedule *schedule, struct domain *out);
};
extern const struct compute_ops compute_none, compute_bag, compute_gemv, compute_gemm, compute_vector, compute_step;

/* How the results reach the ranks: a file in exchange/. */
struct exchange_ops {
    /* Fill the builder's plan, whose schedule is the requested one. Sizes and route that were not requested are chosen here. */
    void (*plan)(const struct problem *problem, int rank, const struct compute_ops *compute, struct plan_builder *b);
    /* The values that a rank gets with its completion (operators with counts), at most FCC_MAX_RANKS; returns their number.
     * NULL: none. */
    int (*values)(const struct problem *problem, int rank, int64_t values[]);
};
extern const struct exchange_ops exchange_none, exchange_put, exchange_reduce, exchange_rings, exchange_gather;

/* The parts of an operator, whose number must be known. */
const struct compute_ops *op_compute(enum fcc_op op);
const struct exchange_ops *op_exchange(enum fcc_op op);

/* The words of the operator's problems, and the name of their counts (NULL: they have none). */
const struct problem_spec *op_words(enum fcc_op op);
const char *op_counts(enum fcc_op op);
int op_check(const struct op_args *args, int nranks, int rank, struct error *e);
int op_match(const struct op_args args[], int nranks, struct problem *out, struct error *e);
/* Whether the request has the attributes of this problem; false if this cannot be checked. */
bool op_attrs_fit(const struct problem *problem, int rank, const struct op_args *args);
/* The values of a rank's completion; none of a rank elsewhere (problem_is_here()). Returns their number. */
int op_values(const struct problem *problem, int rank, int64_t values[]);

#endif
