/* SPDX-License-Identifier: MIT
 *
 * step.h - steps of programs (kernels/program/code.h): requests, and which elements are whose.
 *
 * The problem's words: DIM_N elements, of which rank r has rank_dim[DIM_K][r] from rank_dim[DIM_N][r] on; DIM_ROOT is the enum code_kind, DIM_K the
 * dtype of `out` (0: there is none). With a sum over the ranks, dtype is that of `in`. DIM_VECTOR is how many elements each of the step's own sums has (0: it has none):
 * tiles have whole ones. DIM_GATHERED is how many tensors a table has whose elements are added up, tensor by tensor (0: no such sums).
 * DIM_FACTOR_BYTES is how many elements a tile has (0: as many as suit the device).
 */
#ifndef FCC_KERNELS_PLAN_COMPUTE_STEP_H
#define FCC_KERNELS_PLAN_COMPUTE_STEP_H

#include "kernels/plan/program.h"
#include "kernels/program/code.h"

enum { STEP_IN, STEP_OUT, STEP_TENSOR };

static inline bool op_is_step(enum fcc_op op)
{
    return op_spec(op)->compute == COMPUTE_STEP;
}
/* Whether the step adds up inputs of all ranks; whether all ranks get what each makes; and whether either is so: otherwise each rank works by itself. */
static inline bool step_reduces(const struct problem *problem)
{
    return problem->dim[DIM_ROOT] == CODE_REDUCE;
}
static inline bool step_has_result(const struct problem *problem)
{
    return problem->dim[DIM_K] != 0;
}
static inline bool step_is_shared(const struct problem *problem)
{
    return step_reduces(problem) || step_has_result(problem);
}
/* As compute_ops.check: one rank's request by itself. The rest of this file is of checked requests. */
int step_check(const struct op_args *args, int nranks, int rank, struct error *e);
/* The first element of a rank, and how many it has. */
int64_t step_begin_of(const struct code *code, int nranks, int rank);
int64_t step_count_of(const struct code *code, int nranks, int rank);
/* On GPUs a rank's slices of a step that adds up tensors have pieces of them (CODE_SUM_PIECE), by their numbers: those of the first tensor first. At most so
 * many pieces a rank has of so many elements. The sums of a piece lie in the rank's staging memory. */
static inline int64_t step_pieces_most(int64_t elements, int64_t tensors)
{
    return elements / CODE_SUM_PIECE + 2 * tensors;
}
#define STEP_PIECE_BYTES (CODE_SUMS_MAX * sizeof(double))
/* The code of a checked request. */
struct code step_code(const struct op_args *args);
/* Where the tensors of the code's table lie in a tensor of a checked request: their first elements. NULL: one behind the other. */
const int64_t *step_places(const struct op_args *args, const struct code *code, int tensor);
/* The tensors of a request that its step stores into, besides `out`: a bit each. */
uint32_t step_results(const struct op_args *args);
/* The tensor of an operand. */
static inline const struct tensor *step_tensor(const struct op_args *args, const struct code_operand *o)
{
    return &args->tensors[o->tensor == CODE_OUT ? STEP_OUT : STEP_TENSOR + (int)o->tensor];
}
/* Of a step that is to be bound: the dtypes of its tensors t, which the worker does not see; -1: absent. NULL: the step is to be run. */
const int64_t *step_dtypes(const struct op_args *args);
/* The dtype of an operand's tensor. */
static inline enum fcc_dtype step_tensor_dtype(const struct op_args *args, const struct code_operand *o)
{
    const int64_t *dtypes = o->tensor == CODE_OUT ? NULL : step_dtypes(args);

    return dtypes ? (enum fcc_dtype)dtypes[o->tensor] : step_tensor(args, o)->dtype;
}
/* Whether a tensor that the step stores into shares memory with another one that it uses, with addresses as they are in the arguments: generated code loads
 * everything before it stores, the interpreter instruction by instruction. step_share.c */
bool step_tensors_share(const struct op_args *args);
/* The dtype of a vector operator's results. */
static inline enum fcc_dtype step_result_dtype(const struct problem *problem)
{
    return op_is_step(problem->op) && problem->dim[DIM_K] ? (enum fcc_dtype)problem->dim[DIM_K] : problem->dtype;
}

#endif
