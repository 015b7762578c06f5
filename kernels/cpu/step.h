/* SPDX-License-Identifier: MIT
 *
 * step.h - a program's step on a core: its code, interpreted block by block.
 */
#ifndef FCC_KERNELS_CPU_STEP_H
#define FCC_KERNELS_CPU_STEP_H

#include "kernels/cpu/combine.h"
#include "kernels/cpu/execute.h"
#include "kernels/plan/compute/step.h"

/* A rank's step while a tile is computed: registers are blocks of COMBINE_BLOCK elements, so that a few of them stay in the first cache. */
struct step {
    struct code code;
    const struct op_args *args;
    uint32_t stores;                    /* code_stores() */
    int64_t begin;                      /* of the rank's own elements */
    const float *value[CODE_REGISTERS]; /* where a register's block is: in `block`, or in a tensor */
    _Alignas(64) float block[CODE_REGISTERS][COMBINE_BLOCK];
};

/* Begins with a rank's checked request and its code, whose own elements are from `begin` on. */
void step_begin(struct step *s, const struct op_args *args, struct code code, int64_t begin);
/* Executes the code for n elements, 1 to COMBINE_BLOCK, from element `at` of all on. With a sum, it stands in block[0] in f32. */
void step_block(struct step *s, int64_t at, size_t n);
/* With a sum: the result of the last block. */
static inline const float *step_result(const struct step *s)
{
    return s->value[s->code.head->result];
}

#endif
