/* SPDX-License-Identifier: MIT
 *
 * test_collectives.c - the cases of collective_cases.h, on one node and several. FCC_TEST_DEVICE=cuda or hip: the same on GPUs.
 */
#include "tests/operators/collective_cases.h"

enum { CASES = 120 };

static void random_on(int nodes, int most_ranks)
{
    struct test_daemon d;

    daemons_start(&d, nodes, NULL);
    cases_of_ranks(nodes, most_ranks, test_rounds(CASES));
    daemon_stop(&d);
}

static void on_one_node(void)
{
    random_on(1, 4);
}

static void on_two_nodes(void)
{
    random_on(2, 5);
}

static void on_three_nodes(void)
{
    random_on(3, 6);
}

int main(void)
{
    static const struct test tests[] = {
        {"on_one_node", on_one_node, 60}, {"on_two_nodes", on_two_nodes, 90}, {"on_three_nodes", on_three_nodes, 90}};

    if (test_device_missing())
        return EXIT_SUCCESS;
    return tests_run("collectives", TESTS(tests));
}
