/* SPDX-License-Identifier: MIT
 *
 * vector.h - collectives, which compute nothing: where the parts of a vector lie in the ranks' inputs and results.
 *
 * A rank's input and result are vectors of elements. Plans cut a part of a vector (what one rank has for another, or what one rank
 * reduces) into columns of `unit` elements, of which the last one may be shorter. A slice's columns begin at 0 in its part, so parts
 * of any size and place have plans, also beyond 2^31 elements.
 */
#ifndef FCC_KERNELS_PLAN_COMPUTE_VECTOR_H
#define FCC_KERNELS_PLAN_COMPUTE_VECTOR_H

#include "kernels/plan/program.h"

#define VECTOR_MOST ((int64_t)1 << 48) /* elements */
/* Of a GPU's rank: where there is much to do, it has so many tiles, or a multiple: all its workgroups have as many, and end together. */
#define VECTOR_GPU_TILES 264

/* Whether the operator's data are vectors: collectives, and steps of programs. */
static inline bool op_is_vector(enum fcc_op op)
{
    return op_spec(op)->compute == COMPUTE_VECTOR || op_spec(op)->compute == COMPUTE_STEP;
}

/* ---- requests: vector_request.c ---- */

/* The number that an attribute of the operator's row has; `otherwise`: it has none. */
int64_t vector_number(const struct op_args *args, enum fcc_attr key, int64_t otherwise);
/* The elements of a row that the program's counts are in, 1 or more; those of the request are in elements. */
int64_t vector_row_elements(const struct op_args *args);
/* As compute_ops.check: one rank's request by itself. */
int vector_check(const struct op_args *args, int nranks, int rank, struct error *e);
const char *reduction_name(int64_t reduction); /* "sum", "product", ...; "unknown" */

/* The number of elements of a column: a power of two, 1 unless a vector has 2^31 elements or more. */
int64_t vector_unit(const struct problem *problem);
/* Columns of so many elements. The unit is the caller's, who asks for many, as vector_unit() looks at all ranks. */
static inline int64_t vector_columns(int64_t elements, int64_t unit)
{
    return (elements + unit - 1) / unit;
}

/* For exchanges that put: what rank `source`, which is here, sends to rank `destination`. Elements. */
struct vector_part {
    int64_t to; /* where it begins in the destination's result */
    int64_t count;
};
struct vector_part vector_part(const struct problem *problem, int source, int destination);
/* Sets the byte of the source's input at which its part for each rank begins. */
void vector_parts_at(const struct problem *problem, int source, uint64_t at[]);

/* For exchanges that reduce: sets where the part of the whole vector that each rank reduces begins, and the end. Elements. */
void vector_chunks(const struct problem *problem, int64_t elements[]);
/* The rank that gets what the owner of a chunk has reduced; -1: all ranks do. */
int vector_receiver(const struct problem *problem, int owner);
/* Where an element of the whole vector is in the result of a rank that gets it. */
int64_t vector_result_at(const struct problem *problem, int rank, int64_t element);

/* The dtype in which elements of this dtype are added. */
enum fcc_dtype vector_sum_dtype(enum fcc_dtype dtype);

#endif
