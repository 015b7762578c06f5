/* SPDX-License-Identifier: MIT
 *
 * arguments.h - requests of ranks that are well, to spoil one thing at a time, and what is said to them then. To be included behind cmocka.h.
 */
#ifndef FCC_TESTS_PLAN_ARGUMENTS_H
#define FCC_TESTS_PLAN_ARGUMENTS_H

#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "kernels/plan/program.h"
#include "kernels/plan/tensor.h"

enum { RANKS = 3, WORDS = 64 };

struct request {
    struct op_args args[RANKS];
    int64_t words[RANKS][WORDS];
};

static unsigned char memory[64]; /* never read or written: only places matter here */

static inline struct tensor tensor_of(enum fcc_dtype dtype, int ndim, int64_t n0, int64_t n1, int64_t n2)
{
    struct tensor t = {.data = memory, .dtype = dtype, .ndim = ndim, .symmetric = true, .shape = {n0, n1, n2}};

    for (int i = ndim - 1, stride = 1; i >= 0; stride *= (int)t.shape[i--])
        t.stride[i] = stride;
    return t;
}

static inline void attr_add(struct request *q, int rank, enum fcc_attr key, const int64_t *values, size_t n)
{
    struct op_args *a = &q->args[rank];

    /* The words are found through args.attrs, which SPOIL sets when the request is at its place. */
    q->words[rank][a->nattrs++] = (int64_t)((uint64_t)key << 32 | n);
    for (size_t i = 0; i < n; i++)
        q->words[rank][a->nattrs++] = values[i];
}

/* The values of a rank's attribute, to spoil them. */
static inline int64_t *attr(struct request *q, int rank, enum fcc_attr key)
{
    size_t n;

    return q->words[rank] + (op_attr(&q->args[rank], key, &n) - q->args[rank].attrs);
}

static inline void expect_text(int status, const struct error *e, const char *text)
{
    if (status != -EINVAL || strcmp(e->text, text) != 0)
        fail_msg("status %d, \"%s\", expected \"%s\"", status, e->text, text);
}

/* Rank 1's request alone is refused with this text. */
static inline void refuse(const struct request *q, const char *text)
{
    struct error e = {0};

    expect_text(op_check(&q->args[1], RANKS, 1, &e), &e, text);
}

/* Each rank's request is well by itself, together they are refused with this text; "" means that they fit. */
static inline void mismatch(const struct request *q, const char *text)
{
    const struct op_args *args = q->args;
    struct problem *problem = problem_new(RANKS);
    int64_t dim[DIMS] = {0};
    struct error e = {0};

    for (int r = 0; r < RANKS; r++)
        if (op_check(&q->args[r], RANKS, r, &e))
            fail_msg("rank %d: %s", r, e.text);
    assert_non_null(problem);
    assert_int_equal(problem_begin(problem, args->op), 0);
    if (*text == '\0')
        assert_int_equal(op_match(args, RANKS, problem, &e), 0);
    else
        expect_text(op_match(args, RANKS, problem, &e), &e, text);
    if (*text && q->args[0].op != FCC_OP_GEMM_ALL_TO_ALL) { /* which needs the problem to see whether the rows fit */
        assert_memory_equal(problem->dim, dim, sizeof(dim));
        for (int i = 0; i < RANK_DIMS * RANKS; i++)
            assert_int_equal(problem->rank_dim[i / RANKS][i % RANKS], 0);
    }
    problem_free(problem);
}

/* A good request, with its attributes where it lies now, is spoiled and judged. */
#define SPOIL(make, statement, judge, text)                                                                                    \
    do {                                                                                                                       \
        struct request q = make();                                                                                             \
        for (int r = 0; r < RANKS; r++)                                                                                        \
            q.args[r].attrs = q.words[r];                                                                                      \
        statement;                                                                                                             \
        judge(&q, text);                                                                                                       \
    } while (0)

/* ---- gemv_all_reduce ---- */

static inline struct request gemv(void)
{
    struct request q = {.args = {{.op = FCC_OP_GEMV_ALL_REDUCE}}};

    for (int r = 0; r < RANKS; r++) {
        q.args[r] = (struct op_args){.op = FCC_OP_GEMV_ALL_REDUCE, .ntensors = FCC_GEMV_TENSORS};
        q.args[r].tensors[FCC_GEMV_X] = tensor_of(FCC_F16, 2, 2, 10 + r, 0);
        q.args[r].tensors[FCC_GEMV_W] = tensor_of(FCC_F16, 2, 30, 10 + r, 0);
        q.args[r].tensors[FCC_GEMV_Y] = tensor_of(FCC_F16, 2, 2, 30, 0);
    }
    return q;
}

#define X q.args[1].tensors[FCC_GEMV_X]
#define W q.args[1].tensors[FCC_GEMV_W]
#define Y q.args[1].tensors[FCC_GEMV_Y]

/* ---- gemm_all_reduce: as gemv's, but for b, and for rows, of which there may be any number ---- */

static inline struct request sums(void)
{
    struct request q = {.args = {{.op = FCC_OP_GEMM_ALL_REDUCE}}};

    for (int r = 0; r < RANKS; r++) {
        q.args[r] = (struct op_args){.op = FCC_OP_GEMM_ALL_REDUCE, .ntensors = FCC_GEMM_TENSORS};
        q.args[r].tensors[FCC_GEMM_A] = tensor_of(FCC_F16, 2, 200, 10 + r, 0);
        q.args[r].tensors[FCC_GEMM_B] = tensor_of(FCC_F16, 2, 10 + r, 30, 0);
        q.args[r].tensors[FCC_GEMM_C] = tensor_of(FCC_F16, 2, 200, 30, 0);
    }
    return q;
}

/* ---- gemm_reduce_scatter: the same, and rank r gets 70, 60, 70 of the rows ---- */

static inline struct request scatter(void)
{
    struct request q = sums();

    for (int r = 0; r < RANKS; r++) {
        q.args[r].op = FCC_OP_GEMM_REDUCE_SCATTER;
        q.args[r].tensors[FCC_GEMM_C].shape[0] = r == 1 ? 60 : 70;
        attr_add(&q, r, FCC_ATTR_ROWS, (int64_t[]){70, 60, 70}, 3);
    }
    return q;
}

/* ---- all_gather_gemm ---- */

static inline struct request gathers(void)
{
    struct request q = {.args = {{.op = FCC_OP_ALL_GATHER_GEMM}}};

    for (int r = 0; r < RANKS; r++) {
        q.args[r] = (struct op_args){.op = FCC_OP_ALL_GATHER_GEMM, .ntensors = FCC_GATHER_TENSORS};
        q.args[r].tensors[FCC_GATHER_A] = tensor_of(FCC_F16, 2, 10 + r, 20, 0);
        q.args[r].tensors[FCC_GATHER_B] = tensor_of(FCC_F16, 2, 20, 30 + r, 0);
        q.args[r].tensors[FCC_GATHER_GATHERED] = tensor_of(FCC_F16, 2, 33, 20, 0);
        q.args[r].tensors[FCC_GATHER_C] = tensor_of(FCC_F16, 2, 33, 30 + r, 0);
    }
    return q;
}

#endif
