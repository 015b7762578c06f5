/* SPDX-License-Identifier: MIT
 *
 * kernel_gemv.h - test_kernels.c's cases of gemv_all_reduce, and of gemm_all_reduce, which is the same but for b.
 */
#ifndef FCC_TEST_KERNEL_GEMV_H
#define FCC_TEST_KERNEL_GEMV_H

#include "tests/kernels/kernel_bed.h"

/* The ranks' k is random, from k_least on (-1: mostly small). Where all is regular it is a multiple of 8, but for one row: there
 * it may be less, with rows as far apart as if it were not. */
static void gemv_open(struct test_case *c, enum fcc_dtype dtype, int64_t m, int64_t n, int64_t k_least, int64_t k_more)
{
    for (int r = 0; r < c->nranks; r++) {
        struct tensor *t = c->args[r].tensors;
        int64_t k = k_least < 0 ? random_size(random_below(10) == 0 ? 1200 : 90) : k_least + random_size(k_more);
        k = k_least < 0 && random_below(8) == 0 ? 16 / (int64_t)dtype_size(dtype) : k; /* a vector */
        k = case_regular && k != 4 ? (k + 7) / 8 * 8 : k;
        matrix_open(&t[FCC_GEMV_X], &c->memory[r][FCC_GEMV_X], dtype, m, k, false);
        matrix_open(&t[FCC_GEMV_W], &c->memory[r][FCC_GEMV_W], dtype, n, k, false);
        matrix_open(&t[FCC_GEMV_Y], &c->memory[r][FCC_GEMV_Y], dtype, m, n, true);
        if (case_regular && m == 1 && k > 0) {
            int64_t less = random_below(2) ? 1 + random_below(7) : 0;
            t[FCC_GEMV_X].shape[1] -= less;
            t[FCC_GEMV_W].shape[1] -= less;
        }
    }
    c->result = FCC_GEMV_Y;
    case_place(c, random_below(2) ? 1 : 1 + random_below(4));
}

/* The same with b, [k][n], and all k random. */
static void gemm_sums_open(struct test_case *c, enum fcc_dtype dtype, int64_t m, int64_t n)
{
    for (int r = 0; r < c->nranks; r++) {
        struct tensor *t = c->args[r].tensors;
        int64_t k = random_size(random_below(10) == 0 ? 1200 : 90);
        matrix_open(&t[FCC_GEMM_A], &c->memory[r][FCC_GEMM_A], dtype, m, k, false);
        matrix_open(&t[FCC_GEMM_B], &c->memory[r][FCC_GEMM_B], dtype, k, n, false);
        matrix_open(&t[FCC_GEMM_C], &c->memory[r][FCC_GEMM_C], dtype, m, n, true);
    }
    c->result = FCC_GEMM_C;
    case_place(c, random_below(2) ? 1 : 1 + random_below(4));
}

static void expect_gemv(const struct test_case *c, int64_t m, int64_t n)
{
    const bool gemm = op_spec(c->problem->op)->compute == COMPUTE_GEMM;
    double *reference = must(calloc((size_t)(m * n) + 1, sizeof(double)));

    for (int r = 0; r < c->nranks; r++) {
        double *x = matrix_values(&c->args[r].tensors[FCC_GEMV_X]), *w = matrix_values(&c->args[r].tensors[FCC_GEMV_W]);
        int64_t depth = c->args[r].tensors[FCC_GEMV_X].shape[1];
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < n; j++)
                for (int64_t k = 0; k < depth; k++)
                    reference[i * n + j] += x[i * depth + k] * (gemm ? w[k * n + j] : w[j * depth + k]);
        free(x);
        free(w);
    }
    for (int64_t i = 0; i < m * n; i++)
        reference[i] += epilogue_value(c, 0, i / n, i % n);
    for (int r = 0; r < c->nranks; r++)
        expect_output(&c->args[r].tensors[FCC_GEMV_Y], &c->memory[r][FCC_GEMV_Y], m, reference);
    free(reference);
}

/* Every rank's y has the bits of `bits` (dense), which are set by rank 0 of the first run. */
static void expect_bits(const struct test_case *c, unsigned char *bits, bool first)
{
    for (int r = 0; r < c->nranks; r++) {
        const struct tensor *y = &c->args[r].tensors[FCC_GEMV_Y];
        size_t size = dtype_size(y->dtype), row = (size_t)y->shape[1] * size;
        for (int64_t i = 0; i < y->shape[0]; i++) {
            if (first && r == 0)
                memcpy(bits + (size_t)i * row, y->data + (size_t)(i * y->stride[0]) * size, row);
            EXPECT(memcmp(bits + (size_t)i * row, y->data + (size_t)(i * y->stride[0]) * size, row) == 0);
        }
    }
}

/* Fused, sequential, and fused again: right, and the same bits. Then the halves. */
static void expect_gemv_runs(struct test_case *c, enum fcc_op op, int number, struct schedule s, int64_t m, int64_t n)
{
    unsigned char *bits = must(calloc((size_t)(m * n) + 1, sizeof(float)));
    struct error e = {0};

    for (int run = 0; run < 3; run++) {
        s.kind = run == 1 ? FCC_SCHEDULE_SEQUENTIAL : FCC_SCHEDULE_FUSED;
        (void)snprintf(case_text, sizeof(case_text), "%s %d: %s, %s, %s, %d ranks, m %lld, n %lld, tile %u", op_name(op),
                       number, case_regular ? "regular" : "any", schedule_name(s.kind), route_name(s.route), c->nranks,
                       (long long)m, (long long)n, s.slice_cols);
        case_match(c, op);
        if (execute(c, s, &e))
            fail_msg("%s: %s", case_text, e.text);
        if (run < 2)
            expect_gemv(c, m, n);
        expect_bits(c, bits, run == 0);
    }
    execute_halves(c);
    free(bits);
}

static void test_gemv(void **state)
{
    (void)state;
    for (int i = 0; i < cases(150); i++) {
        struct test_case c = {.nranks = 1 + (int)random_below(RANKS)};
        int64_t m = random_below(2) ? 1 : 1 + random_below(FCC_GEMV_MAX_M), n = random_size(random_below(5) ? 100 : 1500);
        struct schedule s = random_schedule(FCC_SCHEDULE_FUSED, 1, 90);
        gemv_open(&c, float_dtypes[i % 3], m, n, -1, 0);
        s.route = (enum plan_route)random_below(PLAN_HIERARCHICAL + 1);
        s.target = random_below(2) ? PLAN_GPU : PLAN_CPU;
        expect_gemv_runs(&c, FCC_OP_GEMV_ALL_REDUCE, i, s, m, n);
        case_close(&c);
    }
}

/* Any sizes; some of more tiles of a GPU's than one. */
static void test_gemm_sums(void **state)
{
    (void)state;
    for (int i = 0; i < cases(100); i++) {
        struct test_case c = {.nranks = 1 + (int)random_below(RANKS)};
        int64_t m = 1 + random_below(random_below(4) ? 90 : 700), n = random_size(random_below(5) ? 100 : 700);
        struct schedule s = random_schedule(FCC_SCHEDULE_FUSED, 60, 90);
        gemm_sums_open(&c, float_dtypes[i % 3], m, n);
        s.route = (enum plan_route)random_below(PLAN_HIERARCHICAL + 1);
        s.target = random_below(2) ? PLAN_GPU : PLAN_CPU;
        expect_gemv_runs(&c, FCC_OP_GEMM_ALL_REDUCE, i, s, m, n);
        case_close(&c);
    }
}

/* What y's first row must be to the last bit if K is 1, so that a partial sum is one product, rounded once: the ranks' in rank order, or
 * (by nodes) those of each node in rank order, and then the nodes' in the order of their first ranks. */
static float gemv_in_order(const struct test_case *c, int64_t j, bool by_nodes)
{
    float total = 0, sum;
    bool done[RANKS] = {false}, some = false;

    for (int r = 0; r < c->nranks; r++) {
        if (done[r])
            continue;
        sum = 0;
        for (int q = r, n = 0; q < c->nranks; q++) {
            const struct tensor *x = &c->args[q].tensors[FCC_GEMV_X], *w = &c->args[q].tensors[FCC_GEMV_W];
            if (by_nodes ? c->node_of[q] != c->node_of[r] : q != r)
                continue;
            volatile float product = (float)get(x->data, FCC_F32, 0) * (float)get(w->data, FCC_F32, j * w->stride[0]);
            sum = n++ ? sum + product : product;
            done[q] = true;
        }
        total = some ? total + sum : sum;
        some = true;
    }
    return total;
}

static void test_gemv_order(void **state)
{
    int unlike = 0;

    (void)state;
    for (int i = 0; i < cases(60); i++) {
        struct test_case c = {.nranks = 3 + (int)random_below(RANKS - 2)};
        int64_t n = 1 + random_below(200);
        struct schedule s = {.target = i / 2 % 2 ? PLAN_GPU : PLAN_CPU,
                             .route = i % 2 ? PLAN_FLAT : PLAN_HIERARCHICAL,
                             .slice_cols = (uint32_t)(1 + random_below(40))};
        struct error e = {0};
        gemv_open(&c, FCC_F32, 1, n, 1, 0);
        case_place(&c, 2 + random_below(3));
        for (int kind = FCC_SCHEDULE_FUSED; kind <= FCC_SCHEDULE_SEQUENTIAL; kind++) {
            s.kind = (enum fcc_schedule_kind)kind;
            (void)snprintf(case_text, sizeof(case_text), "gemv order %d: %s, %s, %d ranks, n %lld, tile %u", i,
                           schedule_name(s.kind), route_name(s.route), c.nranks, (long long)n, s.slice_cols);
            case_match(&c, FCC_OP_GEMV_ALL_REDUCE);
            if (execute(&c, s, &e))
                fail_msg("%s: %s", case_text, e.text);
            for (int64_t j = 0; j < n; j++) {
                float want = gemv_in_order(&c, j, s.route != PLAN_FLAT);
                unlike += want != gemv_in_order(&c, j, s.route == PLAN_FLAT);
                for (int r = 0; r < c.nranks; r++)
                    EXPECT((float)get(c.args[r].tensors[FCC_GEMV_Y].data, FCC_F32, j) == want);
            }
        }
        case_close(&c);
    }
    EXPECT(unlike > 2 * cases(60)); /* the two orders give other bits, often enough to tell them apart */
}

/* Rows that begin at multiples of 16 bytes, all numbers of rows of x, a K in many parts and in few. One case in four has so
 * many rows that its results take two steps on GPUs; one in eight has a K whose x does not fit into a workgroup's memory, one
 * has one row that is long, sometimes longer than fits, one a short one and so many columns that all workgroups get some, and one
 * several rows and as many columns, in one step: for one rank, or for two with few rows. On GPUs one in eight has so many columns and
 * rows, in one step, that workgroups cannot keep all of their own sums. */
static void test_gemv_regular(void **state)
{
    (void)state;
    case_regular = true;
    for (int i = 0; i < cases(32); i++) {
        bool many = i % 4 == 3, deep = i % 8 == 5, one = i % 8 == 2, short_one = i % 8 == 6;
        bool wide = i % 8 == 4, crowded = i % 8 == 1 && bed_device();
        struct test_case c = {.nranks = deep ? 2 : many ? 4 : 1 + (int)random_below(4)};
        int64_t m = many || deep ? FCC_GEMV_MAX_M - random_below(8) : 2 + random_below(FCC_GEMV_MAX_M - 1);
        int64_t n = many ? 640 + random_below(300) : 1 + random_below(deep || one ? 70 : i % 3 ? 150 : 400);
        int64_t longest = random_below(3) == 0 ? 66000 : random_below(2) ? 15000 : 3900;
        struct schedule s = random_schedule(FCC_SCHEDULE_FUSED, 1, 90);
        m = one || short_one ? 1 : m;
        n = short_one || wide ? 1 + random_below(3000) : n;
        if (wide) {
            c.nranks = 1 + (int)random_below(2);
            m = c.nranks == 1 ? m : 2 + random_below(7);
        } else if (crowded) {
            c.nranks = 1;
            m = 33;
            n = 58000 + random_below(5000);
            s.slice_cols = 0;
        }
        int64_t k_least = deep ? 9000 : one ? longest : 0, k_more = wide || crowded ? 200 : many ? 300 : 1100;
        gemv_open(&c, float_dtypes[1 + random_below(2)], m, n, k_least, k_more);
        expect_gemv_runs(&c, FCC_OP_GEMV_ALL_REDUCE, i, s, m, n);
        case_close(&c);
    }
    case_regular = false;
}

/* With a bias, a residual, or both: sums of gemv and of gemm, of all sizes. */
static void test_sums_epilogue(void **state)
{
    (void)state;
    for (int i = 0; i < cases(80); i++) {
        struct test_case c = {.nranks = 1 + (int)random_below(RANKS)};
        const bool gemm = i % 2;
        int64_t m = gemm ? 1 + random_below(random_below(4) ? 90 : 400) : 1 + random_below(FCC_GEMV_MAX_M);
        int64_t n = 1 + random_size(random_below(5) ? 100 : 700), rows[RANKS];
        struct schedule s = random_schedule(FCC_SCHEDULE_FUSED, 60, 90);
        case_regular = random_below(3) == 0;
        if (gemm)
            gemm_sums_open(&c, float_dtypes[i / 2 % 3], m, n);
        else
            gemv_open(&c, float_dtypes[i / 2 % 3], m, n, -1, 0);
        for (int r = 0; r < c.nranks; r++)
            rows[r] = m;
        epilogue_open(&c, FCC_GEMV_TENSORS, true, rows, n);
        s.route = (enum plan_route)random_below(PLAN_HIERARCHICAL + 1);
        s.target = random_below(2) ? PLAN_GPU : PLAN_CPU;
        expect_gemv_runs(&c, gemm ? FCC_OP_GEMM_ALL_REDUCE : FCC_OP_GEMV_ALL_REDUCE, i, s, m, n);
        case_close(&c);
    }
    case_regular = false;
}

#endif
