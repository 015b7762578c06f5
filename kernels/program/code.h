/* SPDX-License-Identifier: MIT
 *
 * code.h - what an element step does with each element, as words that travel with its request (FCC_ATTR_CODE). A client makes them of a group of
 * statements (kernels/program/steps/code_make.c), the worker checks them anew (code_read()), and a core interprets them (kernels/cpu/step.c).
 *
 * Instructions work on registers: blocks of f32. Comparisons give 1 or 0. What a dtype of 16 bits would round is rounded by an instruction.
 *
 *   CODE_TEXT      no elements: the words are a program's text, as hashes of its lines, so that all ranks hear which line differs; with `result`
 *                  CODE_TEXT_SHARES its steps are such as only ranks of one node can run
 *   CODE_ELEMENTS  each rank's own elements, alone
 *   CODE_REDUCE    the sum of all ranks' `in` comes into register 0, and each rank works on its part of the elements; all ranks get the part's result in
 *                  `out`, if there is one
 *   CODE_GATHER    each rank works on its part of the elements, and all ranks get the part's result; there is no `in`
 */
#ifndef FCC_KERNELS_PROGRAM_CODE_H
#define FCC_KERNELS_PROGRAM_CODE_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/program/program.h"
#include "proto/base/error.h"
#include "proto/fccclient.h"

#define CODE_TENSORS 11       /* of a step, besides `in` and `out` */
#define CODE_OUT CODE_TENSORS /* an operand: `out` before the step */
#define CODE_OPERANDS_MAX 32
#define CODE_REGISTERS 64
#define CODE_INSTRUCTIONS_MAX 800
#define CODE_WORDS_MAX 4096
#define CODE_TABLES_MAX 4096 /* words that say where tables' tensors lie */
#define CODE_NO_RESULT (-1)
#define CODE_TEXT_SHARES 1

enum code_kind { CODE_TEXT = 1, CODE_ELEMENTS = 2, CODE_REDUCE = 3, CODE_GATHER = 4 };
/* Of an instruction, besides operations: a tensor's elements into a register, and back; a number into a register, before the first element; and a
 * register's elements added up, in double precision, `div` (of the operand) of the rank's own at a time, of which the last may be fewer. Such a sum is
 * divided by `number`, of `key` 1 its square root is taken, and element i of the operand's tensor gets the i-th. */
enum { CODE_LOAD = OPERATIONS, CODE_STORE, CODE_NUMBER, CODE_SUM };
#define CODE_SUMS_MAX 8 /* instructions SUM of a step; all have one `div` */
/* The order in which a sum's elements are added up, in double precision, on all devices, whatever tiles, blocks and threads they have. Element i of the sum is
 * added to lane i % CODE_SUM_LANES, the first one to 0. Then lanes are added in pairs: lane k and lane k + d for each k of whose bits d is none, for d = 4,
 * 8, ... CODE_SUM_LANES / 2, then 2, then 1. The elements of a table's tensor are so added up CODE_SUM_PIECE at a time, counted from the tensor's first one;
 * sum p of these is added to lane p % CODE_SUM_PIECES, and those are added in pairs for d = 1, 2, ... */
#define CODE_SUM_LANES 2048
#define CODE_SUM_PIECE 16384
#define CODE_SUM_PIECES 32

/* Where element i of all is in an operand's tensor. OWN: at i, less the rank's first element: the tensor is its part. WHOLE: at i. STRETCHED: at
 * i / div % length.  EACH: at i, less the rank's first element, / div: that many elements of the
 * rank's own have one together; `length` is 1. TENSOR: at the number of the table's tensor that has element i; `div` and `length` are 1. Of a sum it
 * says that the elements of each such tensor are added up. PART: the tensor has rows of `div` elements, of which the step works on the first
 * `length`: the rank's own element k is at k / length * div + k % length. */
enum code_index { CODE_OWN, CODE_WHOLE, CODE_STRETCHED, CODE_EACH, CODE_TENSOR, CODE_PART };

/* The words: head, operands, instructions, and with a table `tensors` + 1 words: the first element of each tensor, and the end of the last. */
struct code_head {
    int64_t kind;        /* enum code_kind */
    int64_t rows, inner; /* the elements: rows x inner */
    int64_t sliced;      /* 1: rank r has the rows from slice_begin(rows, ranks, r) on. 0, of ELEMENTS: each has all */
    int64_t result;      /* REDUCE, GATHER: the register that goes to `out`; REDUCE: CODE_NO_RESULT: there is no `out` */
    int64_t operands, instructions;
    int64_t tensors; /* of the table whose elements these are; 0: there is none */
};
struct code_operand {
    int64_t tensor; /* 0 to CODE_TENSORS - 1, or CODE_OUT */
    int64_t index;  /* enum code_index */
    int64_t div, length;
};
struct code_instruction {
    uint8_t op;      /* enum operation of OPERATION_POINT, CODE_LOAD, CODE_STORE, CODE_NUMBER, CODE_SUM */
    uint8_t to;      /* register; STORE, SUM: none */
    uint8_t from[3]; /* registers; LOAD, STORE, SUM: from[1] is the operand */
    uint8_t zero[3];
    int32_t line; /* of the program's text */
    int32_t zero_too;
    double number; /* NUMBER, dropout's probability, SUM's divisor */
    uint64_t key;  /* dropout's (dropout_key()); SUM: 1: a root */
};
static_assert(sizeof(struct code_head) == 64 && sizeof(struct code_operand) == 32 && sizeof(struct code_instruction) == 32,
              "wire");

/* Code that was checked: pointers into its words. */
struct code {
    const struct code_head *head;
    const struct code_operand *operands;
    const struct code_instruction *instructions;
    const int64_t *begins; /* [head->tensors + 1]; NULL: no table */
};

/* Check words that anybody may have written. 0 and *out, or -EINVAL with what is allowed. The words must not change afterwards. */
int code_read(const int64_t *words, size_t count, struct code *out, struct error *e);
/* The number of the table's tensor that has an element, which there is. */
int64_t code_tensor_of(const struct code *code, int64_t element);
/* Where tensors of tables lie in the step's tensors, if not one behind the other: words of which the first has a bit for each such tensor of the step
 * (bit 0: `in`, 1: `out`, 2 and more: t), followed by [head->tensors] first elements for each bit, in their order. NULL: the tensor has no such. */
const int64_t *code_places(const struct code *code, const int64_t *tables, size_t count, int tensor);
/* Check such words against the code, without the tensors' sizes. */
int code_tables_check(const struct code *code, const int64_t *tables, size_t count, struct error *e);
/* The elements of a sum of the code, of which a tile has whole ones; 0: it has none. */
int64_t code_sum_elements(const struct code *code);
/* Whether inputs of all ranks are added up; whether all ranks get a result; and whether either is so. */
static inline bool code_reduces(const struct code *code)
{
    return code->head->kind == CODE_REDUCE;
}
static inline bool code_has_result(const struct code *code)
{
    return code->head->kind == CODE_GATHER || (code_reduces(code) && code->head->result != CODE_NO_RESULT);
}
static inline bool code_is_shared(const struct code *code)
{
    return code_reduces(code) || code_has_result(code);
}
/* Whether only ranks of one node can run it: on several, what all add up is what all get, and nothing else is added up meanwhile. */
static inline bool code_is_of_one_node(const struct code *code)
{
    return code_is_shared(code) && (!code_reduces(code) || !code_has_result(code) || code_sum_elements(code) != 0);
}
/* Whether elements are added up tensor by tensor; and whether others are, too. */
bool code_sums_tensors(const struct code *code);
bool code_mixes_sums(const struct code *code);
/* How many elements an operand's tensor has to have, of which the rank has `own` for itself. */
int64_t code_operand_elements(const struct code *code, const struct code_operand *o, int64_t own);
/* A bit for each tensor (CODE_OUT too) that the code stores into, its sums, too, or loads from. */
uint32_t code_stores(const struct code *code);
uint32_t code_loads(const struct code *code);
/* The first difference of two ranks' words: 0 if there is none; otherwise -EINVAL, and the text says at which line of the program. */
int code_match(const int64_t *words, size_t count, int rank, const int64_t *first, size_t first_count, struct error *e);

/* The arguments of the step as an operator, which the library calls for programs. */
struct fcc_program_step_args {
    struct fcc_tensor in, out, t[CODE_TENSORS];
    const int64_t *code, *tables, *tile, *dtypes;
    int32_t words, table_words, tile_words, dtype_words;
    uint32_t schedule;
    uint32_t reserved[7];
};

#endif
