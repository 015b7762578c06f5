/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_factors.c - products with factors in e4m3, and batch invariant ones, that the ranks launch themselves, with the real daemon and the real
 * library on fake GPUs: the cases of factor_cases.h and batch_cases.h in memory of the ranks' own, what ranks hear if they differ, and what is
 * refused. Real GPUs are in test_gpu_factors.c.
 */
#include "tests/operators/batch_cases.h"

#include "tests/fake_gpu/fake_gpu_own.h"
#include "tests/operators/factor_cases.h"

#ifdef __SANITIZE_THREAD__
enum { FACTOR_CASES = 20, BATCH_CASES = 5 };
#else
enum { FACTOR_CASES = 60, BATCH_CASES = 15 };
#endif

static void factors_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;
    fcc_context *context = own_open(&r, all, rank, 0);

    random_state = *(const uint64_t *)argument;
    for (unsigned i = 1; i <= FACTOR_CASES; i++) {
        const struct factor_case c = factor_draw(all->n, i, true);
        factor_run(&r, &c);
        OK(fcc_comm_error(r.comm));
    }
    own_close(&r, context);
}

static void factors(void)
{
    fake_cases_run(factors_rank);
}

static void batches_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;
    fcc_context *context = own_open(&r, all, rank, 0);

    random_state = *(const uint64_t *)argument;
    for (unsigned i = 1; i <= BATCH_CASES; i++) {
        struct batch b = batch_draw(all->n, i, true);
        batch_run(&r, &b);
        OK(fcc_comm_error(r.comm));
    }
    own_close(&r, context);
}

static void batches(void)
{
    fake_cases_run(batches_rank);
}

/* ---- what is refused, on all ranks ---- */

static void errors_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;
    fcc_context *context = own_open(&r, all, rank, 0);
    const bool last = rank == all->n - 1;
    struct factor_case c = {.op = OP_GEMV,
                            .dtype = FCC_BF16,
                            .f8 = {true, true},
                            .scaled = {true, true},
                            .form = {{SCALE_ROW_BLOCK, SCALE_BLOCK}, {SCALE_LINE, SCALE_WHOLE}},
                            .n = 130,
                            .k = {140, 150},
                            .m = {100, 100},
                            .seed = 3};
    const struct factor_call good = factor_prepare(&r, &c);
    struct factor_call bad;

    (void)argument;
#define WRONG(change, text)                                                                                                    \
    do {                                                                                                                       \
        const uint32_t schedule = c.schedule;                                                                                  \
        bad = good;                                                                                                            \
        if (last)                                                                                                              \
            (change);                                                                                                          \
        error_is(&r, factor_call(&r, &c, &bad), text);                                                                         \
        c.schedule = schedule;                                                                                                 \
    } while (0)
    WRONG(bad.e.x_scale.shape[0] = 4, "gemv_all_reduce: x_scale: shape [4]: allowed are [1], [100] (each row of x), ");
    WRONG(bad.e.w_scale.dtype = FCC_BF16, "gemv_all_reduce: w_scale: dtype bf16: allowed: f32");
    WRONG(bad.e.w_scale.buffer = NULL, "gemv_all_reduce: w_scale: rank ");
    WRONG((bad.a.dtype = FCC_BF16, bad.e.x_scale.buffer = NULL), "gemv_all_reduce: x: dtype: rank ");
    WRONG(c.schedule = FCC_SCHEDULE_BATCH_INVARIANT, "gemv_all_reduce: schedule: rank ");
    WRONG(c.schedule = FCC_SCHEDULE_SEQUENTIAL,
          "schedule: sequential: allowed with FCC_ADDRESS for factors of the result's dtype, not batch invariant");
    WRONG(bad.a.shape[0] = bad.c.shape[0] = 65537, "gemv_all_reduce: x: shape[0] 65537: allowed are 1 to 65536");
#undef WRONG
    factor_run(&r, &c);
    own_close(&r, context);
}

static void errors(void)
{
    fake_ranks_run(PAIR, errors_rank, NULL);
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {{"factors", factors, 120}, {"batches", batches, 120}, {"errors", errors, 60}};

    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_factors", TESTS(tests));
}
