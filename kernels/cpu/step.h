/* SPDX-License-Identifier: MIT
 *
 * step.h - a program's step on a core: its code, interpreted block by block.
 */
#ifndef FCC_KERNELS_CPU_STEP_H
#define FCC_KERNELS_CPU_STEP_H

#include "kernels/cpu/combine.h"
#include "kernels/cpu/execute.h"
#include "kernels/plan/compute/step.h"

/* A sum that is not whole yet (CODE_SUM_LANES): of the lanes from `used` on, a multiple of 4, all are 0. */
struct step_sum {
    size_t used;
    double pieces[CODE_SUM_PIECES]; /* of a tensor */
    _Alignas(64) double lanes[CODE_SUM_LANES];
};

/* A rank's step while a tile is computed: registers are blocks of COMBINE_BLOCK elements, so that a few of them stay in the first cache. */
struct step {
    struct code code;
    const struct op_args *args;
    uint32_t stores;                                   /* code_stores() */
    int64_t begin;                                     /* of the rank's own elements */
    int64_t end;                                       /* of the rank's own elements */
    const int64_t *places[STEP_TENSOR + CODE_TENSORS]; /* step_places() of the tensors */
    int64_t tensor;                                    /* of the code's table: that of the block */
    struct step_sum sums[CODE_SUMS_MAX];               /* of instructions SUM, in their order */
    const float *value[CODE_REGISTERS];                /* where a register's block is: in `block`, or in a tensor */
    _Alignas(64) float block[CODE_REGISTERS][COMBINE_BLOCK];
};

/* Begins with a rank's checked request and its code, whose own elements are [begin, end). */
void step_begin(struct step *s, const struct op_args *args, struct code code, int64_t begin, int64_t end);
/* Executes the code for n elements, 1 to COMBINE_BLOCK, from element `at` of all on. With a sum, it stands in block[0] in f32.
 * Blocks follow each other from the begin of a sum of the step's own to the end of one. With a table, a block's elements are one tensor's. */
void step_block(struct step *s, int64_t at, size_t n);
/* The elements of a block from element `at` of all on, of which there are `left` more, 1 at least. */
size_t step_block_size(const struct step *s, int64_t at, int64_t left);
/* The address of element `at` in a rank's tensor `index` (STEP_IN, STEP_OUT), where that element has its place by itself: checked requests. */
unsigned char *step_place(const struct step *s, const struct op_args *args, int index, int64_t at);
/* With a sum: the result of the last block. */
static inline const float *step_result(const struct step *s)
{
    return s->value[s->code.head->result];
}

#endif
