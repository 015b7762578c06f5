/* SPDX-License-Identifier: MIT
 *
 * steps.h - a scheduled program as steps, each of which is an operator: what runs, on which tensors, in which order.
 */
#ifndef FCC_KERNELS_PROGRAM_STEPS_H
#define FCC_KERNELS_PROGRAM_STEPS_H

#include "kernels/program/code.h"
#include "kernels/program/program.h"

#ifdef __cplusplus
extern "C" {
#endif

#define STEPS_MAX PROGRAM_OPERATIONS_MAX

/* Where a value lies: in a parameter's tensor, or in memory that the program has for itself. */
enum place_kind { PLACE_NONE, PLACE_PARAMETER, PLACE_TEMPORARY };
struct step_place {
    int32_t kind; /* enum place_kind */
    int32_t index;
    /* From this element on; and behind `each` elements for each row that the rank has of `rows`, which are spread over the ranks. */
    int64_t offset, rows, each;
    int64_t length; /* so many elements; 0: all that follow */
};

/* CODE: elements, also with the sum over the ranks before them. EXCHANGE: a collective. PRODUCT: matrices, and what enum step_product says. LOOKUP: rows of
 * tables, added up and sent to the ranks that have their samples. */
enum step_kind { STEP_OF_CODE, STEP_OF_EXCHANGE, STEP_OF_PRODUCT, STEP_OF_LOOKUP };

/* What follows a product: the sum over the ranks, on all ranks (REDUCE; THIN: of few rows, by a matrix that is stored transposed) or each its rows
 * (SCATTER); or nothing. */
enum step_product { PRODUCT_REDUCE, PRODUCT_THIN, PRODUCT_SCATTER, PRODUCT_ALONE };

/* A number of the code that is known when the program runs: that of an instruction, by the operation that makes it. */
struct step_number {
    uint32_t instruction;
    int32_t node;
};

struct program_step {
    uint8_t kind; /* enum step_kind */
    int32_t node; /* EXCHANGE: the operation. PRODUCT: that whose value is stored. CODE: the last statement */
    int32_t line;
    struct step_place in, out;         /* CODE: with a sum */
    struct step_place b;               /* PRODUCT: the second factor; LOOKUP: the indices */
    struct step_place t[CODE_TENSORS]; /* CODE; PRODUCT: the bias and the residual; LOOKUP: the offsets */
    int ntensors;
    uint8_t product; /* PRODUCT: enum step_product */
    bool
        overlaps; /* PRODUCT, LOOKUP: `overlap` was asked for: what is made is sent while the rest is made, and nothing else is tried */
    /* PRODUCT: the operations of the factors, as stored, and of the residual (-1: none). LOOKUP: a: that of the rows */
    int32_t a, second, residual;
    int activation; /* PRODUCT: an operation; 0: none */
    int64_t *words; /* CODE: numbers and keys are to be filled in: code.h */
    size_t nwords;
    int32_t
        copies; /* CODE: number of a parameter, from 1 on, whose table's tensors are copied to or from what stands for it; 0: none */
    int64_t pieces;              /* CODE: tiles of each rank's elements, as `chunk` says; 0: as many as suit the device */
    struct step_number *numbers; /* of instructions NUMBER, and of DROPOUT: the operation itself */
    uint32_t nnumbers;
};

/* Memory that the program needs between its steps. */
struct step_temporary {
    struct value value;
    bool symmetric; /* other ranks store into it */
    bool across;    /* and these are of other groups */
    /* Number of a parameter, from 1 on, for which it stands where that one is given as many tensors: operators other than code need one. 0: none.
     * by_code: code on one node needs none either. */
    int32_t stands_for;
    bool by_code;
};

struct program_steps {
    const struct program *program;
    struct program_step *steps;
    uint32_t nsteps, steps_capacity;
    struct step_temporary *temporaries;
    uint32_t ntemporaries, temporaries_capacity;
    uint32_t results;                    /* the number of parameters that other ranks store into */
    bool shared[PROGRAM_PARAMETERS_MAX]; /* which these are: they lie in memory for results */
};

/* The steps of a bound and scheduled program, to be freed; *out refers to it. -EOPNOTSUPP: an operation that nothing runs yet; the text says which. */
int program_steps(const struct program *p, struct program_steps *out, struct error *e);
void program_steps_free(struct program_steps *s);
/* The dtype of what lies there; f32 of nothing. */
enum fcc_dtype step_place_dtype(const struct program_steps *s, const struct step_place *place);
/* Fill in the table's tensors, [p->tensors + 1]: the first element of each, and the end of the last. */
void step_begins_set(struct program_step *step, const int64_t begins[]);
/* Numbers of all operations that are numbers, by scalars' values in the order of the parameters; [nnodes]. */
void program_numbers(const struct program *p, const double scalars[], double numbers[]);
/* Fill in a step's numbers. -EINVAL: a dropout's probability. */
int step_numbers_set(struct program_step *step, const struct program *p, const double numbers[], struct error *e);

#ifdef __cplusplus
}
#endif
#endif
