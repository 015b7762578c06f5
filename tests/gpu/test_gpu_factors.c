/* SPDX-License-Identifier: MIT
 *
 * test_gpu_factors.c - products with factors in e4m3, and batch invariant ones, that the ranks' own processes launch, on NVIDIA GPUs, one rank on each: the
 * cases of factor_cases.h and batch_cases.h in memory that this process has allocated. test_gpu_worker_factors.c has the same on fake GPUs, and
 * what is refused.
 */
#include "tests/operators/batch_cases.h"

#include "tests/gpu/gpu_own.h"
#include "tests/operators/factor_cases.h"

enum { FACTOR_CASES = 150, BATCH_CASES = 60 };

static void factors_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;

    own_open(&r, rank, all, 0);
    random_state = *(const uint64_t *)argument;
    for (unsigned i = 1; i <= (unsigned)test_rounds(FACTOR_CASES); i++) {
        const struct factor_case c = factor_draw(all->n, i, true);
        factor_run(&r, &c);
        OK(fcc_comm_error(r.comm));
    }
    own_close(&r);
}

static void factors(void)
{
    uint64_t seed = test_seed();

    ranks_of_gpus_run(factors_rank, &seed);
}

static void batches_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;

    own_open(&r, rank, all, 0);
    random_state = *(const uint64_t *)argument;
    for (unsigned i = 1; i <= (unsigned)test_rounds(BATCH_CASES); i++) {
        struct batch b = batch_draw(all->n, i, true);
        batch_run(&r, &b);
        OK(fcc_comm_error(r.comm));
    }
    own_close(&r);
}

static void batches(void)
{
    uint64_t seed = test_seed();

    ranks_of_gpus_run(batches_rank, &seed);
}

int main(void)
{
    static const struct test tests[] = {{"factors", factors, 120}, {"batches", batches, 120}};

    if (!gpus_found())
        return EXIT_SUCCESS;
    gpus = gpus < STAGE_RANKS ? gpus : STAGE_RANKS;
    return tests_run("gpu_factors", TESTS(tests));
}
