/* SPDX-License-Identifier: MIT
 *
 * code_maker.h - the code of a step while it is made: instructions on as many values as there are (code_make.c), to which registers are given in the end
 * (code_words.c).
 */
#ifndef FCC_KERNELS_PROGRAM_STEPS_CODE_MAKER_H
#define FCC_KERNELS_PROGRAM_STEPS_CODE_MAKER_H

#include "kernels/program/steps/inside.h"

#define VALUES_MAX (2 * CODE_INSTRUCTIONS_MAX)

struct maker {
    struct stepping *s;
    struct program_step *step;
    struct value domain;      /* whose elements are worked on */
    struct step_place result; /* with `gives`: of the value that all ranks get */
    bool sliced;
    bool reduces, gives; /* whether register 0 has the sum over the ranks; whether all ranks get a result */
    int64_t tensors;     /* of the table; 0: none */
    int64_t kind;
    struct code_operand operands[CODE_OPERANDS_MAX];
    int loaded[CODE_OPERANDS_MAX]; /* the value of an operand's elements; 0: not loaded */
    int noperands;
    struct {
        struct code_instruction code; /* with no registers yet */
        int to, from[3];              /* values */
        int32_t node;                 /* whose number is filled in; -1: none */
    } body[CODE_INSTRUCTIONS_MAX];
    int nbody;
    int values;            /* so many; the first is 1 */
    int last[VALUES_MAX];  /* the last instruction that uses a value */
    int place[VALUES_MAX]; /* its register; -1: none yet */
    struct sum_plan sums[CODE_SUMS_MAX];
    int nsums;
    uint32_t ntouched; /* operations whose `reg` is set: s->touched */
};

/* Gives the values registers. False: there are not enough. */
bool registers_give(struct maker *m);
/* Makes the step's words of it. result: a register, or CODE_NO_RESULT. */
int words_write(struct maker *m, int result);

#endif
