/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_collectives.c - the worker's side of collectives on GPUs: the cases of collective_cases.h on fake GPUs (fake_gpu.c), on
 * one node and several, several ranks on a GPU among them.
 */
#include "tests/fake_gpu/fake_gpu_bed.h"
#include "tests/operators/collective_cases.h"

enum { CASES = 50 };

static void random_on(int nodes, int most_ranks)
{
    struct test_daemon d;

    CHECK(setenv("FCC_TEST_DEVICE", "cuda", 1) == 0);
    fake_nodes_start(&d, nodes, GPUS, NULL);
    cases_of_ranks(nodes, most_ranks, test_rounds(CASES));
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
