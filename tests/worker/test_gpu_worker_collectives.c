/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_collectives.c - the worker's side of collectives on GPUs: the cases of collective_cases.h on fake GPUs (fake_gpu.c), on
 * one node and several, several ranks on a GPU among them.
 */
#include "tests/fake_gpu/fake_gpu_bed.h"
#include "tests/operators/collective_cases.h"

#ifdef __SANITIZE_THREAD__
enum { CASES = 15 };
#else
enum { CASES = 50 };
#endif

static void random_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;

    CHECK(setenv("FCC_TEST_DEVICE", "cuda", 1) == 0);
    rank_open(&r, rank, all);
    CHECK(fcc_comm_device_kind(r.comm) == FCC_DEVICE_CUDA);
    cases_run(&r, *(const uint64_t *)argument, CASES);
    rank_close(&r);
}

static void random_on(int nodes, int most_ranks)
{
    struct test_daemon d;
    struct ranks r;
    uint64_t seed = (uint64_t)number_of("FCC_TEST_SEED", (int)getpid());

    printf("FCC_TEST_SEED=%lu\n", (unsigned long)seed);
    fake_nodes_start(&d, nodes, GPUS, NULL);
    for (int n = nodes > 1 ? nodes : 1; n <= most_ranks; n++) {
        seed += 1000;
        ranks_start(&r, n, random_rank, &seed);
        ranks_join(&r);
    }
    fake_stop(&d);
}

static void on_one_node(void)
{
    random_on(1, 4);
}

static void on_two_nodes(void)
{
    random_on(2, 5);
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {{"on_one_node", on_one_node, 90}, {"on_two_nodes", on_two_nodes, 120}};

    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_collectives", TESTS(tests));
}
