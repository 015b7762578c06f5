/* SPDX-License-Identifier: MIT
 *
 * shape.h - an operator's shape, from the options of the verbs plan and bench. It is the same for every rank.
 */
#ifndef FCC_CLIENT_FCCCTL_BENCH_SHAPE_H
#define FCC_CLIENT_FCCCTL_BENCH_SHAPE_H

#include "client/fccctl/fccctl.h"
#include "client/fccctl/field.h"
#include "kernels/plan/plan.h"
#include "kernels/plan/spec.h"

struct json_object;

struct shape {
    enum fcc_op op;
    const struct op_spec *spec; /* the row of `op` */
    enum fcc_dtype dtype;
    enum fcc_dtype index_dtype;
    int nranks;
    int64_t m, n, k;                           /* compute gemv and gemm. k, and gemm's m, are per rank */
    int64_t tables, rows, dim, batch, pooling; /* compute bag. tables is per rank, batch is of all ranks together */
    int64_t count;                             /* compute vector: elements of the whole vector, or that a rank sends */
    double zipf;                               /* skew of the ids; 0: uniform */
    int64_t ranks_option;                      /* values of the options */
    int dtype_option, index_option;
};

#define SHAPE_ARGS 14

/* Sets the options' targets to "not given" and writes their rows to args. Returns their number, at most SHAPE_ARGS. */
size_t shape_args(struct shape *shape, struct arg args[SHAPE_ARGS]);

/* After args_parse(): finds the operator, which is the call's operand, and sets defaults for sizes that were not given. Returns 0,
 * or EXIT_USAGE (printed). */
int shape_finish(struct shape *shape, const struct call *call);
/* The same without options: begins with sizes that are not given, sets some (false: the operator has no such size), and gives the others their
 * defaults. */
void shape_begin(struct shape *shape, enum fcc_op op, int nranks, enum fcc_dtype dtype);
bool shape_size_set(struct shape *shape, const char *name, int64_t value);
void shape_default(struct shape *shape);
/* The i-th name of a size, NULL: there are no more. */
const char *shape_size_name(size_t i);
/* Checks --nodes. Returns 0, or EXIT_USAGE (printed). */
int shape_nodes_check(const struct shape *shape, const struct call *call, int64_t nodes);

/* Rows, or elements of a collective, that a rank with counts receives from another. */
int64_t shape_received(const struct shape *shape, int source, int rank);

/* The shape's problem, with the ranks divided evenly among the nodes. NULL: out of memory. */
struct problem *shape_problem(const struct shape *shape, int nodes);

/* The number of `total` rows or samples that rank `rank` gets: equal shares, the first (total modulo nranks) ranks one
 * more. */
int64_t shape_share(int64_t total, int nranks, int rank);

/* ---- collectives: bench_vector.c ---- */

/* Elements of a rank's input or result; -1: it has none. */
int64_t vector_length(const struct shape *shape, bool in, int rank);
/* Elements that a rank sends to another, of operators with counts. */
int64_t vector_sent(const struct shape *shape, int source, int destination);
/* Sets the problem's words. to: [nranks], room. */
void vector_problem(const struct shape *shape, struct problem *p, int64_t to[]);
/* The i-th number of a rank's attribute. */
int64_t vector_attr(const struct shape *shape, enum fcc_attr key, int rank, int64_t i);

/* The sizes that the operator uses: {"m": 1, ...}. The caller owns the object. */
struct json_object *shape_json(const struct shape *shape);
/* "m 1 n 4096 k 4096" */
struct words shape_text(const struct shape *shape);

#endif
