/* SPDX-License-Identifier: MIT
 *
 * kernel_gather.h - test_kernels.c's cases of all_gather_gemm.
 */
#ifndef FCC_TEST_KERNEL_GATHER_H
#define FCC_TEST_KERNEL_GATHER_H

#include "tests/kernels/kernel_bed.h"

/* Rows of a rank: up to m; each rank's columns: up to n. Large k: rows travel in several chunks. */
static void gather_open(struct test_case *c, enum fcc_dtype dtype, int64_t m, int64_t n, int64_t k, bool gathered)
{
    int64_t rows[RANKS], all = 0;

    for (int r = 0; r < c->nranks; r++)
        all += rows[r] = random_size(m);
    for (int r = 0; r < c->nranks; r++) {
        struct tensor *t = c->args[r].tensors;
        const int64_t cols = case_regular ? n : random_size(n);
        matrix_open(&t[FCC_GATHER_A], &c->memory[r][FCC_GATHER_A], dtype, rows[r], k, false);
        if (t[FCC_GATHER_A].stride[0] < k) { /* rows of a may not overlap */
            free(c->memory[r][FCC_GATHER_A].base);
            t[FCC_GATHER_A].stride[0] = k;
            input_open(&t[FCC_GATHER_A], &c->memory[r][FCC_GATHER_A], true);
        }
        matrix_open(&t[FCC_GATHER_B], &c->memory[r][FCC_GATHER_B], dtype, k, cols, false);
        if (gathered)
            matrix_open(&t[FCC_GATHER_GATHERED], &c->memory[r][FCC_GATHER_GATHERED], dtype, all, k, true);
        matrix_open(&t[FCC_GATHER_C], &c->memory[r][FCC_GATHER_C], dtype, all, cols, true);
    }
    c->result = FCC_GATHER_C;
    c->more = gathered ? FCC_GATHER_GATHERED : 0;
    case_place(c, bed.plugin || random_below(2) ? 1 : 1 + random_below(4));
}

/* A as doubles, to be freed by the caller. */
static double *gather_all(const struct test_case *c, int64_t k)
{
    const int64_t all = c->problem->dim[DIM_M];
    double *values = must(calloc((size_t)(all * k) + 1, sizeof(double))), *to = values;

    for (int r = 0; r < c->nranks; r++) {
        const struct tensor *a = &c->args[r].tensors[FCC_GATHER_A];
        double *part = matrix_values(a);
        memcpy(to, part, (size_t)(a->shape[0] * k) * sizeof(double));
        to += a->shape[0] * k;
        free(part);
    }
    return values;
}

/* Rank r's result. */
static void expect_product(const struct test_case *c, int r, int64_t k, const double *a)
{
    const int64_t all = c->problem->dim[DIM_M], n = c->args[r].tensors[FCC_GATHER_C].shape[1];
    double *b = matrix_values(&c->args[r].tensors[FCC_GATHER_B]);
    double *reference = must(calloc((size_t)(all * n) + 1, sizeof(double)));

    for (int64_t i = 0; i < all; i++) {
        for (int64_t q = 0; q < k; q++)
            for (int64_t j = 0; j < n; j++)
                reference[i * n + j] += a[i * k + q] * b[q * n + j];
        for (int64_t j = 0; j < n; j++)
            reference[i * n + j] += epilogue_value(c, r, i, j);
    }
    expect_output(&c->args[r].tensors[FCC_GATHER_C], &c->memory[r][FCC_GATHER_C], all, reference);
    free(reference);
    free(b);
}

/* The results, which may be `known` to have the bits of some that were right, and the gathered rows. */
static void expect_gather(const struct test_case *c, int64_t k, bool known)
{
    double *a = gather_all(c, k);

    for (int r = 0; r < c->nranks; r++) {
        if (!known)
            expect_product(c, r, k, a);
        if (c->more)
            expect_output(&c->args[r].tensors[FCC_GATHER_GATHERED], &c->memory[r][FCC_GATHER_GATHERED], c->problem->dim[DIM_M],
                          a);
    }
    free(a);
}

/* Fused, sequential, and fused again: right, and the same bits. Then the halves. */
static void expect_gather_runs(struct test_case *c, int number, int64_t k)
{
    unsigned char *bits[RANKS] = {NULL};
    struct schedule s = random_schedule(FCC_SCHEDULE_FUSED, 60, 60);
    struct error e = {0};

    for (int run = 0; run < 3; run++) {
        s.kind = run == 1 ? FCC_SCHEDULE_SEQUENTIAL : FCC_SCHEDULE_FUSED;
        (void)snprintf(case_text, sizeof(case_text), "all_gather_gemm %d: %s, %d ranks, k %lld, %u x %u%s", number,
                       schedule_name(s.kind), c->nranks, (long long)k, s.slice_rows, s.slice_cols, c->more ? ", gathered" : "");
        case_match(c, FCC_OP_ALL_GATHER_GEMM);
        if (execute(c, s, &e))
            fail_msg("%s: %s", case_text, e.text);
        expect_gather(c, k, run > 0);
        for (int r = 0; r < c->nranks; r++) {
            const struct memory *m = &c->memory[r][FCC_GATHER_C];
            if (run == 0)
                bits[r] = memcpy(must(malloc(m->bytes)), m->base, m->bytes);
            EXPECT(bits[r] && memcmp(bits[r], m->base, m->bytes) == 0);
        }
    }
    for (int r = 0; r < c->nranks; r++)
        free(bits[r]);
    execute_halves(c);
}

static void test_gather(void **state)
{
    (void)state;
    for (int i = 0; i < cases(120); i++) {
        const bool large = i % 12 == 11;
        struct test_case c = {.nranks = 1 + (int)random_below(RANKS)};
        case_regular = i % 3 == 2;
        const int64_t k = large ? 2000 + 8 * random_below(200) : case_regular ? 8 * (1 + random_below(12)) : random_size(90);
        const int64_t n = case_regular ? 8 * (1 + random_below(20)) : large ? 30 : random_below(5) ? 50 : 300;
        gather_open(&c, float_dtypes[i % 3], large ? 200 : 40, n, k, random_below(2));
        expect_gather_runs(&c, i, k);
        case_close(&c);
    }
    case_regular = false;
}

/* With a bias, a residual, or both, of each rank's own values; all ranks have as many columns here. */
static void test_gather_epilogue(void **state)
{
    (void)state;
    for (int i = 0; i < cases(60); i++) {
        struct test_case c = {.nranks = 1 + (int)random_below(RANKS)};
        const int64_t k = random_size(60), n = 8 * (1 + random_below(12));
        int64_t rows[RANKS];
        case_regular = true;
        gather_open(&c, float_dtypes[i % 3], 40, n, k, false);
        for (int r = 0; r < c.nranks; r++)
            rows[r] = c.args[r].tensors[FCC_GATHER_C].shape[0];
        epilogue_open(&c, FCC_GATHER_TENSORS, false, rows, n);
        expect_gather_runs(&c, i, k);
        case_close(&c);
    }
    case_regular = false;
}

#endif
