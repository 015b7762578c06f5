/* SPDX-License-Identifier: MIT
 *
 * step_numbers.h - makes what a GPU is told of a rank's step of a program (step.h), of checked requests. Pure functions, for the worker, which launches
 * steps, and for the library, which launches those that are bound.
 */
#ifndef FCC_KERNELS_GPU_STEP_NUMBERS_H
#define FCC_KERNELS_GPU_STEP_NUMBERS_H

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/gpu/step.h"
#include "kernels/plan/compute/step.h"

struct step_numbers {
    int64_t *words;
    size_t count;
    struct gpu_step step; /* the first of the words, when all are there */
};

/* Puts the shifts of a tensor that has a table behind the words so far. */
static inline void step_shifts_put(struct step_numbers *n, const struct op_args *args, const struct code *code, int tensor,
                                   int place)
{
    const int64_t *places = code->begins ? step_places(args, code, tensor) : NULL;

    if (!places)
        return;
    n->step.places[place] = (uint32_t)n->count;
    for (int64_t k = 0; k < code->head->tensors; k++)
        n->words[n->count++] = places[k] - code->begins[k];
}

/* Puts the numbers of the table's pieces behind the words so far. */
static inline void step_pieces_put(struct step_numbers *n, const struct code *code)
{
    const int64_t end = n->step.begin + n->step.count;
    int64_t pieces = 0;

    if (!code_sums_tensors(code))
        return;
    assert(code->begins);
    n->step.pieces = (uint32_t)n->count;
    for (int64_t k = 0; k < code->head->tensors; k++) {
        const int64_t begin = code->begins[k], lower = n->step.begin > begin ? n->step.begin : begin,
                      upper = end < code->begins[k + 1] ? end : code->begins[k + 1];
        n->words[n->count++] = pieces;
        pieces += upper > lower ? (upper - begin + CODE_SUM_PIECE - 1) / CODE_SUM_PIECE - (lower - begin) / CODE_SUM_PIECE : 0;
    }
    n->words[n->count++] = pieces;
}

/* The numbers of rank `rank`, whose own elements are `count` from `begin` on: *out->words, to be freed. args[nranks]: of the other ranks only the tables of
 * `in` and `out` are used. False: no memory. */
static inline bool step_numbers_make(const struct op_args args[], int nranks, int rank, int64_t begin, int64_t count,
                                     struct step_numbers *out)
{
    const struct code code = step_code(&args[rank]);
    size_t nwords;
    const int64_t *words = op_attr(&args[rank], FCC_ATTR_CODE, &nwords);
    const size_t tensors = code.begins ? (size_t)code.head->tensors : 0;

    *out = (struct step_numbers){.step = {.begin = begin, .count = count}};
    out->words = (int64_t *)calloc(GPU_STEP_NUMBERS + nwords + tensors * (CODE_TENSORS + 1 + 2 * (size_t)nranks + 1) + 1,
                                   sizeof(out->words[0]));
    if (!out->words)
        return false;
    for (int64_t i = 0; i <= CODE_OUT; i++) {
        const struct code_operand operand = {.tensor = i};
        out->step.tensor[i] = (uint64_t)(uintptr_t)step_tensor(&args[rank], &operand)->data;
        out->step.dtype[i] = step_tensor(&args[rank], &operand)->dtype;
    }
    memcpy(out->words + GPU_STEP_NUMBERS, words, nwords * sizeof(words[0]));
    out->count = GPU_STEP_NUMBERS + nwords;
    for (int i = 0; i <= CODE_OUT; i++)
        step_shifts_put(out, &args[rank], &code, i == CODE_OUT ? STEP_OUT : STEP_TENSOR + i, i);
    for (int r = 0; r < nranks && code.begins; r++) {
        step_shifts_put(out, &args[r], &code, STEP_IN, GPU_STEP_IN + r);
        step_shifts_put(out, &args[r], &code, STEP_OUT, GPU_STEP_OUT + r);
    }
    step_pieces_put(out, &code);
    memcpy(out->words, &out->step, sizeof(out->step));
    return true;
}

#endif
