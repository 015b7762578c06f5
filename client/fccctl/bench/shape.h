/* SPDX-License-Identifier: MIT
 *
 * shape.h - an operator's shape as the options of plan and bench give it: the same for every rank.
 */
#ifndef FCC_CLIENT_FCCCTL_BENCH_SHAPE_H
#define FCC_CLIENT_FCCCTL_BENCH_SHAPE_H

#include "client/fccctl/fccctl.h"
#include "kernels/plan/plan.h"
#include "kernels/plan/spec.h"

struct json_object;

struct shape {
    enum fcc_op op;
    const struct op_spec *spec; /* op's */
    enum fcc_dtype dtype;
    enum fcc_dtype index_dtype;
    int nranks;
    int64_t m, n, k;                           /* of compute gemv and gemm; k and gemm's m are a rank's own */
    int64_t tables, rows, dim, batch, pooling; /* of compute bag; tables are a rank's own, batch is global */
    double zipf;                               /* how skewed the ids are; 0: uniform */
    int64_t ranks_option;                      /* targets of the options */
    int dtype_option, index_option;
};

#define SHAPE_ARGS 13

/* Set the options' targets to "not given" and write their rows to args; returns how many (at most SHAPE_ARGS). */
size_t shape_args(struct shape *shape, struct arg args[SHAPE_ARGS]);

/* After args_parse(): the operator from its name and the defaults for what was not given. 0, or EXIT_USAGE (printed). */
int shape_finish(struct shape *shape, const struct call *call, const char *op);

/* The problem that it is, with the ranks spread evenly over the nodes. NULL: no memory. */
struct problem *shape_problem(const struct shape *shape, int nodes);

/* How many of `total` rows or samples rank `rank` gets: even, the first (total modulo nranks) have one more. */
int64_t shape_share(int64_t total, int nranks, int rank);

/* {"m": 1, ...}: what matters for the operator. The caller owns it. */
struct json_object *shape_json(const struct shape *shape);
/* "m 1 n 4096 k 4096" */
const char *shape_text(const struct shape *shape, char *out, size_t room);

#endif
