/* SPDX-License-Identifier: MIT
 *
 * test_factors.c - factors in f8e4m3: every form of scales, the cases of factor_cases.h, drawn at random, on one node and over two and three, each
 * again with other contents; and what is refused, on all ranks. FCC_TEST_DEVICE=cuda or hip: the same on GPUs.
 */
#include <errno.h>

#include "tests/operators/factor_cases.h"

enum { CASES = 60, TIMES = 3 }; /* TIMES: a case runs, with the same tensors: later ones may begin early */

static void cases_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;

    random_state = *(const uint64_t *)argument;
    rank_open(&r, rank, all);
    for (unsigned i = 1; i <= (unsigned)test_rounds(CASES); i++) {
        struct factor_case c = factor_draw(all->n, i, false);
        for (int again = 0; again < TIMES; again++, c.seed++)
            factor_run(&r, &c);
    }
    rank_close(&r);
}

/* Every form of both scales with all operators, for few rows, many, and several blocks. */
static void forms_rank(int rank, const struct ranks *all, void *argument)
{
    static const int rows[] = {1, 2, 5, 132};
    const unsigned step = test_rounds(4) < 4 ? 5 : 1; /* has no factor in common with the numbers of choices */
    struct rank r;

    (void)argument;
    rank_open(&r, rank, all);
    for (unsigned i = 0; i < 3 * 4 * SCALE_FORMS * SCALE_ROW_BLOCK; i += step) {
        const unsigned forms = i / 12;
        struct factor_case c = {.op = (enum stage_op)(i % 3),
                                .dtype = FCC_F32,
                                .f8 = {true, true},
                                .scaled = {true, true},
                                .n = 260,
                                .seed = 7000u + i * 10};
        const bool few = c.op == OP_GEMV && test_device() != FCC_DEVICE_CPU;
        const int m = few && rows[i / 3 % 4] > FCC_GEMV_MAX_M ? FCC_GEMV_MAX_M : rows[i / 3 % 4];
        for (int p = 0; p < all->n; p++) {
            c.form[p][0] = (enum scale_form)(forms % SCALE_FORMS);
            c.form[p][1] = (enum scale_form)(forms / SCALE_FORMS);
            c.k[p] = 200 - p;
            c.m[p] = m;
            for (int to = 0; to < all->n; to++)
                c.rows[p][to] = to == 0 ? m - m / 2 : to == 1 ? m / 2 : 0;
        }
        factor_run(&r, &c);
    }
    rank_close(&r);
}

static void all_forms(void)
{
    pair_run(forms_rank);
}

static void on_one_node(void)
{
    cases_on(1, 4, cases_rank);
}

static void on_two_nodes(void)
{
    cases_on(2, 4, cases_rank);
}

static void on_three_nodes(void)
{
    cases_on(3, 4, cases_rank);
}

/* ---- what is refused, on all ranks ---- */

static void refused_rank(int rank, const struct ranks *all, void *argument)
{
    const bool last = rank == all->n - 1;
    struct factor_case c = {.op = OP_GEMV,
                            .dtype = FCC_BF16,
                            .f8 = {true, true},
                            .scaled = {true, true},
                            .form = {{SCALE_ROW_BLOCK, SCALE_BLOCK}, {SCALE_LINE, SCALE_WHOLE}},
                            .n = 130,
                            .k = {140, 150},
                            .m = {5, 5},
                            .seed = 3};
    struct factor_call good, bad;
    struct rank r;

    (void)argument;
    rank_open(&r, rank, all);
    good = factor_prepare(&r, &c);
#define REFUSED(change, text)                                                                                                  \
    do {                                                                                                                       \
        bad = good;                                                                                                            \
        if (last)                                                                                                              \
            (change);                                                                                                          \
        FAILS(factor_call(&r, &c, &bad), -EINVAL);                                                                             \
        if (!strstr(fcc_last_error(), text))                                                                                   \
            check_failed(__FILE__, __LINE__, "rank %d: \"%s\", expected \"%s\"", rank, fcc_last_error(), text);                \
    } while (0)
    REFUSED(
        bad.e.x_scale.shape[0] = 4,
        "rank 1: gemv_all_reduce: x_scale: shape [4]: allowed are [1], [5] (each row of x), [1][2] (each block of 128 x 128), "
        "[5][2] (each 128 elements of a row)");
    REFUSED(bad.e.w_scale.shape[0] = 2, "rank 1: gemv_all_reduce: w_scale: shape [2]: allowed are [1], [130] (each row of w), "
                                        "[2][2] (each block of 128 x 128)");
    REFUSED(bad.e.w_scale.dtype = FCC_BF16, "rank 1: gemv_all_reduce: w_scale: dtype bf16: allowed: f32");
    REFUSED(bad.e.w_scale.buffer = NULL, "gemv_all_reduce: w_scale: rank 1 has none, rank 0 has one");
    REFUSED((bad.a.dtype = FCC_F16, bad.e.x_scale.buffer = NULL),
            "rank 1: gemv_all_reduce: y: dtype bf16: allowed is f16 (x's)");
    REFUSED((bad.a.dtype = FCC_BF16, bad.e.x_scale.buffer = NULL),
            "gemv_all_reduce: x: dtype: rank 1 has bf16, rank 0 has f8e4m3");
    REFUSED(bad.a.dtype = FCC_BF16, "rank 1: gemv_all_reduce: x_scale: given: allowed only where x is f8e4m3");
    REFUSED(bad.c.dtype = FCC_F8E4M3, "rank 1: gemv_all_reduce: y: dtype f8e4m3: allowed: f32, f16, bf16");
    REFUSED((bad.e.residual = bad.c, bad.e.x_scale = bad.c, bad.e.x_scale.dtype = FCC_F32, bad.e.x_scale.ndim = 1,
             bad.e.x_scale.shape[0] = 5),
            "rank 1: gemv_all_reduce: x_scale: bytes ");
#undef REFUSED
    const struct fcc_all_reduce_args sum = {.in = tensor_in(&r, 0, 0, FCC_BF16, -1, 64),
                                            .out = tensor_in(&r, 1, 0, FCC_BF16, -1, 64)};
    const struct fcc_epilogue scale = {.w_scale = last ? good.e.w_scale : (struct fcc_tensor){.buffer = NULL}};
    FAILS(fcc_all_reduce_epilogue(r.comm, &sum, &scale), -EINVAL);
    CHECK(strstr(fcc_last_error(), "rank 1: all_reduce: w_scale: given: allowed only of products"));
    OK(factor_call(&r, &c, &good));
    factor_run(&r, &c);
    rank_close(&r);
}

static void refused(void)
{
    pair_run(refused_rank);
}

int main(void)
{
    static const struct test tests[] = {{"all_forms", all_forms, 120},
                                        {"on_one_node", on_one_node, 120},
                                        {"on_two_nodes", on_two_nodes, 120},
                                        {"on_three_nodes", on_three_nodes, 120},
                                        {"refused", refused, 30}};

    return tests_run("factors", TESTS(tests));
}
