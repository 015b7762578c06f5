/* SPDX-License-Identifier: MIT
 *
 * kernel_scatter.h - test_kernels.c's cases of gemm_reduce_scatter, and of sums in any order.
 */
#ifndef FCC_TEST_KERNEL_SCATTER_H
#define FCC_TEST_KERNEL_SCATTER_H

#include "tests/kernels/kernel_gemv.h"

/* Random rows for each rank, some of them none, given as an attribute or, where they are equal, not. */
static void scatter_rows_choose(struct test_case *c, int64_t m, int64_t rows[RANKS])
{
    int64_t left = m;
    const bool equal = random_below(3) == 0;

    for (int r = 0; r < c->nranks; r++) {
        int64_t part = r == c->nranks - 1 ? left : random_below(5) == 0 ? 0 : random_size(2 * m / c->nranks + 1);
        rows[r] = equal ? m / c->nranks + (r < m % c->nranks) : part < left ? part : left;
        left -= rows[r];
    }
    for (int r = 0; r < c->nranks && !equal; r++)
        attr_add(&c->args[r], c->attrs[r], FCC_ATTR_ROWS, rows, (size_t)c->nranks);
}

static void scatter_open(struct test_case *c, enum fcc_dtype dtype, int64_t m, int64_t n, int64_t rows[RANKS])
{
    gemm_sums_open(c, dtype, m, n);
    scatter_rows_choose(c, m, rows);
    for (int r = 0; r < c->nranks; r++) {
        free(c->memory[r][FCC_GEMM_C].base);
        matrix_open(&c->args[r].tensors[FCC_GEMM_C], &c->memory[r][FCC_GEMM_C], dtype, rows[r], n, true);
    }
}

static void expect_scatter(const struct test_case *c, int64_t m, int64_t n, const int64_t rows[RANKS])
{
    double *reference = must(calloc((size_t)(m * n) + 1, sizeof(double)));
    int64_t first = 0;

    for (int r = 0; r < c->nranks; r++) {
        double *a = matrix_values(&c->args[r].tensors[FCC_GEMM_A]), *b = matrix_values(&c->args[r].tensors[FCC_GEMM_B]);
        int64_t depth = c->args[r].tensors[FCC_GEMM_A].shape[1];
        for (int64_t i = 0; i < m; i++)
            for (int64_t k = 0; k < depth; k++)
                for (int64_t j = 0; j < n; j++)
                    reference[i * n + j] += a[i * depth + k] * b[k * n + j];
        free(a);
        free(b);
    }
    for (int r = 0; r < c->nranks; first += rows[r++]) {
        for (int64_t i = 0; i < rows[r] * n; i++)
            reference[first * n + i] += epilogue_value(c, r, i / n, i % n);
        expect_output(&c->args[r].tensors[FCC_GEMM_C], &c->memory[r][FCC_GEMM_C], rows[r], reference + first * n);
    }
    free(reference);
}

/* All ranks' results, dense, one after the other; returns how many bytes differ from those that were there. */
static size_t scatter_bits(const struct test_case *c, unsigned char *bits)
{
    size_t differ = 0;

    for (int r = 0; r < c->nranks; r++) {
        const struct tensor *t = &c->args[r].tensors[FCC_GEMM_C];
        size_t size = dtype_size(t->dtype), row = (size_t)t->shape[1] * size;
        for (int64_t i = 0; i < t->shape[0]; i++, bits += row) {
            const unsigned char *now = t->data + (size_t)(i * t->stride[0]) * size;
            differ += memcmp(bits, now, row) != 0;
            memcpy(bits, now, row);
        }
    }
    return differ;
}

/* Fused, sequential, and fused again: right, and the same bits. Then in any order, twice, as the first run leaves the tiles for the second; and the halves. */
static void expect_scatter_runs(struct test_case *c, int number, struct schedule s, int64_t m, int64_t n,
                                const int64_t rows[RANKS])
{
    unsigned char *bits = must(calloc((size_t)(m * n) + 1, sizeof(float)));
    struct error e = {0};

    for (int run = 0; run < 5; run++) {
        s.kind = run == 1 ? FCC_SCHEDULE_SEQUENTIAL : FCC_SCHEDULE_FUSED;
        for (int r = 0; r < c->nranks; r++)
            c->args[r].any_order = run > 2;
        (void)snprintf(case_text, sizeof(case_text),
                       "gemm_reduce_scatter %d: run %d, %s, %s, %d ranks, m %lld, n %lld, slices %u x %u", number, run,
                       schedule_name(s.kind), route_name(s.route), c->nranks, (long long)m, (long long)n, s.slice_rows,
                       s.slice_cols);
        case_match(c, FCC_OP_GEMM_REDUCE_SCATTER);
        if (execute(c, s, &e))
            fail_msg("%s: %s", case_text, e.text);
        if (run != 2)
            expect_scatter(c, m, n, rows);
        size_t differ = scatter_bits(c, bits);
        EXPECT(!differ || run == 0 || run > 2);
    }
    for (int r = 0; r < c->nranks; r++)
        c->args[r].any_order = false;
    case_match(c, FCC_OP_GEMM_REDUCE_SCATTER);
    execute_halves(c);
    free(bits);
}

/* Any sizes, none too; some of more tiles of a GPU's than one. Half of them with an epilogue, each rank's its own. */
static void test_scatter(void **state)
{
    (void)state;
    for (int i = 0; i < cases(120); i++) {
        struct test_case c = {.nranks = 1 + (int)random_below(RANKS)};
        int64_t m = random_size(random_below(4) ? 90 : 700), n = random_size(random_below(5) ? 100 : 700), rows[RANKS] = {0};
        struct schedule s = random_schedule(FCC_SCHEDULE_FUSED, 60, 90);
        case_regular = random_below(3) == 0;
        scatter_open(&c, float_dtypes[i % 3], m, n, rows);
        if (random_below(2)) {
            epilogue_open(&c, FCC_GEMM_TENSORS, false, rows, n);
            c.in_place = c.stages[0][STAGE_RESIDUAL].data && random_below(2);
        }
        s.route = (enum plan_route)random_below(PLAN_HIERARCHICAL + 1);
        s.target = random_below(2) ? PLAN_GPU : PLAN_CPU;
        expect_scatter_runs(&c, i, s, m, n, rows);
        case_close(&c);
    }
    case_regular = false;
}

/* gemm_all_reduce in any order: right, and the same bits on all ranks. */
static void test_sums_any_order(void **state)
{
    (void)state;
    for (int i = 0; i < cases(40); i++) {
        struct test_case c = {.nranks = 1 + (int)random_below(RANKS)};
        int64_t m = 1 + random_below(200), n = random_size(200);
        struct schedule s = random_schedule(FCC_SCHEDULE_FUSED, 60, 90);
        struct error e = {0};
        gemm_sums_open(&c, float_dtypes[i % 3], m, n);
        unsigned char *bits = must(calloc((size_t)(m * n) + 1, sizeof(float)));
        for (int r = 0; r < c.nranks; r++)
            c.args[r].any_order = true;
        (void)snprintf(case_text, sizeof(case_text), "gemm_all_reduce in any order %d: %d ranks, m %lld, n %lld", i, c.nranks,
                       (long long)m, (long long)n);
        case_match(&c, FCC_OP_GEMM_ALL_REDUCE);
        EXPECT(c.problem->any_order);
        if (execute(&c, s, &e))
            fail_msg("%s: %s", case_text, e.text);
        expect_gemv(&c, m, n);
        expect_bits(&c, bits, true);
        free(bits);
        case_close(&c);
    }
}

#endif
