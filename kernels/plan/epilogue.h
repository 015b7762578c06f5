/* SPDX-License-Identifier: MIT
 *
 * epilogue.h - what an operator does with its sums before and after it rounds them (struct fcc_epilogue). A request with an epilogue has up to
 * STAGES tensors more than its operator's row, in the order of enum stage, some of which may be absent, and its numbers in FCC_ATTR_EPILOGUE.
 *
 * Three kinds of stages:
 *
 *   added   bias and residual, to the sums in f32
 *   each    activation, gate, scale: of each element by itself
 *   rows    norm, sum, quantization: of a rank's whole rows (epilogue_has_rows())
 *
 * Without rows stages, the added ones and those of each element are applied to the sums in f32, which are rounded once, by whoever makes the
 * element. Exchanges that put: the rank that computes a tile, with its own tensors. Exchange reduce: the rank that adds up a tile, before it
 * stores the tile at all ranks; so the tensors must be the same on all ranks there.
 *
 * With rows stages, sums with what is added to them are rounded and stored into staging memory of the ranks that get them, dense (plan.h,
 * has_rows). When all of a rank's rows have come there, its rows slices make its results of them. So no other rank stores into a result, and what a
 * deputy forwards to the ranks of its node (kernels/plan/exchange/reduce_nodes.c) stays as it came.
 *
 * Reduce: the residual may be the result itself, or `sum`, element by element. Whoever adds up an element is the only rank that reads its
 * residual, its own, and it does so before it stores that element, at its own rank or at any other; rows slices run when all elements have come.
 * Put: ranks store into the result, or make `sum`, while residuals are read for rows that go elsewhere, so this is refused.
 */
#ifndef FCC_KERNELS_PLAN_EPILOGUE_H
#define FCC_KERNELS_PLAN_EPILOGUE_H

#include "kernels/plan/problem.h"
#include "kernels/plan/program.h"

/* A tensor of the request's epilogue; NULL: absent. */
const struct tensor *epilogue_tensor(const struct op_args *args, enum stage stage);
/* Check one rank's epilogue. The rows that it computes, the rows of its result, and their columns. dtype_of names the tensor that has the dtype.
 * 0 or -EINVAL. */
int epilogue_check(const struct op_args *args, const char *dtype_of, enum fcc_dtype dtype, int64_t rows, int64_t result_rows,
                   int64_t cols, struct error *e);
/* The elements of a row, by the epilogue's tensors; `otherwise`: it has none. */
int64_t epilogue_cols(const struct op_args *args, int64_t otherwise);
/* The rows of the first tensor that has rows; 0: there is none. */
int64_t epilogue_rows(const struct op_args *args);
/* Whether a request has an epilogue that does anything. */
bool epilogue_is_there(const struct op_args *args);
/* A checked request's epilogue, of rows of `cols` elements. */
struct epilogue epilogue_of(const struct op_args *args, int64_t cols);
/* Set the problem's epilogue, of rows of `cols` elements, if all ranks have the same one; otherwise -EINVAL. */
int epilogue_match(const struct op_args args[], int nranks, int64_t cols, struct epilogue *out, struct error *e);
/* 0, or the reason: what fccd launches on GPUs has not all stages, nor all kinds of factors everywhere (-EOPNOTSUPP), and few rows in
 * gemv_all_reduce (-EINVAL). over_nodes: the communicator's ranks are on several nodes. */
int epilogue_check_gpu(const struct op_args *args, bool over_nodes, struct error *e);
/* 16 bits of the epilogue's numbers: 0 if all are 0. */
uint32_t epilogue_hash(const struct epilogue *p);
/* Whether a request has these numbers. */
bool epilogue_fits(const struct epilogue *p, const struct op_args *args);
/* Whether a tensor of a checked request may lie exactly where `other` does, although the operator stores into one of them: the residual of a sum
 * where the result or STAGE_SUM is. Indices among the request's tensors. */
bool epilogue_may_share(const struct op_args *args, int tensor, int other);
/* The tensors besides the result that the rank itself stores into, and no other, those of a program's step, too: a bit for each of the request's
 * tensors. */
uint32_t epilogue_results(const struct op_args *args);

/* A problem's epilogue. */
static inline bool epilogue_has(const struct epilogue *p, enum stage stage)
{
    return p->stages >> stage & 1;
}
static inline bool epilogue_has_rows(const struct epilogue *p)
{
    return p->number[NUMBER_NORM] || p->number[NUMBER_QUANTIZATION] || epilogue_has(p, STAGE_SUM);
}
/* Whether activation, gate and scale follow the rounding of the sum: with whole rows. Otherwise they precede it. */
static inline bool epilogue_rounds_first(const struct epilogue *p)
{
    return p->number[NUMBER_NORM] || epilogue_has(p, STAGE_SUM);
}
static inline bool epilogue_has_each(const struct epilogue *p)
{
    return epilogue_has(p, STAGE_GATE) || p->number[NUMBER_ACTIVATION] || p->number[NUMBER_SCALE];
}
/* The stages of each element that precede the rounding, a bit each: that of the gate stands for activation and scale, too. */
static inline uint32_t epilogue_each(const struct epilogue *p)
{
    return (p->stages & ((1u << STAGES_ADDED) - 1)) |
           (epilogue_has_each(p) && !epilogue_rounds_first(p) ? 1u << STAGE_GATE : 0);
}
/* A number whose bits are those of an f32; of the scale 1 if it is 0. */
float epilogue_float(const struct epilogue *p, enum epilogue_number number);

#endif
