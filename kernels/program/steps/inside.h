/* SPDX-License-Identifier: MIT
 *
 * inside.h - what steps.c and code_make.c have in common: a program that is being cut into steps.
 */
#ifndef FCC_KERNELS_PROGRAM_STEPS_INSIDE_H
#define FCC_KERNELS_PROGRAM_STEPS_INSIDE_H

#include "kernels/program/steps.h"

struct stepping {
    const struct program *p;
    struct program_steps *out;
    struct error *e;
    struct step_place *place; /* [nnodes]: where a value lies; NONE: not yet, or never */
    bool *stored;             /* [nnodes]: an UPDATE whose value is stored by another step already */
    bool *outside;            /* [nnodes]: another step needs the value */
    bool *fused;              /* [nnodes]: part of a group that is one step with its sum over the ranks */
    int32_t *domain;          /* [nnodes]: an operation whose elements are worked on when this one's value is computed */
    int32_t *step_of;         /* [nnodes]: the number of the step that makes the value; -1: a parameter */
    int32_t
        *reg; /* [nnodes]: while code is made: the value that has the operation's result, by number from 1 on; 0: none yet */
    int32_t *touched; /* [nnodes]: operations whose `reg` is set, each once */
    uint32_t *uses;   /* [nnodes] */
};

int32_t step_unit_of(const struct program *p, int32_t node);                          /* a statement, or nnodes + its group */
int step_refuse(const struct node *n, const char *why, struct error *e);              /* -EOPNOTSUPP */
struct program_step *step_add(struct stepping *s, enum step_kind kind, int32_t node); /* NULL: no memory */
/* Sets the place of a result that other ranks store into, or of a value that this rank stores. */
int result_place(struct stepping *s, int32_t node);
/* With groups of ranks, whose memory for results is not the caller's, a result that is stored into a parameter is copied there by a step behind its own. */
int result_stored(struct stepping *s, int32_t node);
int stored_place(struct stepping *s, int32_t node);
int32_t step_source(const struct program *p, int32_t node);

/* Memory of a value between steps. */
int temporary_new(struct stepping *s, const struct value *v, bool symmetric, struct step_place *out);

/* ---- products.c ---- */

/* Whether a group's operations [begin, end) are one product with the sum over the ranks and its epilogue, which product_group_make() makes a step of. */
bool product_is_group(const struct stepping *s, int32_t begin, int32_t end);
int product_group_make(struct stepping *s, int32_t begin, int32_t end);
/* Whether the sum over the ranks is made with the product. */
bool product_is_summed(const struct stepping *s, int32_t matmul);
/* The step of a product; head: the sum over the ranks that is made with it; -1: none. */
int product_make(struct stepping *s, int32_t matmul, int32_t head);

/* ---- tables.c ---- */

/* How many tensors the table has whose elements code of this domain works on; 0: it works on other ones. */
int64_t table_tensors(const struct program *p, const struct value *domain);
/* An operator's operand in *place, a parameter of many tensors, is copied into memory that stands for it, by a step before. by_code: struct
 * step_temporary. */
int table_in(struct stepping *s, int32_t node, bool by_code, struct step_place *place);
/* A result goes into such memory, and table_stored() behind its step copies it. Called before its step is added. */
int table_out(struct stepping *s, int32_t node, bool by_code, struct step_place *place);
int table_stored(struct stepping *s, int32_t node, const struct step_place *place);

/* A step that copies elements of its first tensor to its second; the caller says which these are. NULL: no memory. */
struct program_step *copy_write(struct stepping *s, int32_t node, const struct code_head *head);

/* ---- moves.c ---- */

int slice_make(struct stepping *s, int32_t node);
/* Whether an exchange slices or gathers along another dimension than 0, and the steps of it. */
bool exchange_is_along(const struct program *p, int32_t node);
int exchange_along_make(struct stepping *s, int32_t node);

/* ---- sums.c ---- */

/* Adds a step of words that are known, but for the begins of a table. NULL: no memory. */
struct program_step *step_write(struct stepping *s, int32_t node, const struct code_head *head,
                                const struct code_operand operands[], const struct code_instruction code[]);

/* A sum in a step: `each` elements go into one, `to`. Where it is made of pieces, sums_finish() adds these up. */
struct sum_plan {
    int32_t node;
    bool square, root; /* of its elements; of the sum */
    bool tensors;      /* of each tensor of the table */
    int64_t each, pieces;
    double divisor;
    struct step_place to; /* of the pieces, or of the whole */
};
bool node_is_sum(const struct node *n);
int sum_plan(struct stepping *s, int32_t node, struct sum_plan *out);
int sums_finish(struct stepping *s, const struct sum_plan sums[], int n); /* adds the steps behind those of one step */

/* ---- groups.c ---- */

/* A group that is one step with what its ranks do together: the sum over them (-1: there is none), the all_gather (-1: there is none), and the value that
 * all ranks get, by the all_gather or because the sum is an all_reduce (-1: none). */
struct group_shape {
    int32_t head, gather, result;
};
/* Whether the operations [begin, end) are such a group: *out. */
bool group_is_step(const struct program *p, int32_t begin, int32_t end, struct group_shape *out);
/* Marks the operations of groups that are one step with the sum over the ranks, an all_gather, or their product (fused). */
void groups_choose(struct stepping *s);

/* ---- code_make.c ---- */

/* Makes the step of operations [begin, end), which are pointwise, or of such a group. */
int code_make(struct stepping *s, int32_t begin, int32_t end);

#endif
