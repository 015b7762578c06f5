/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_programs.c - the worker's side of programs on GPUs: the cases of program_cases.h on fake GPUs (fake_gpu.c), several ranks on a GPU
 * among them; over several nodes programs are refused on all ranks.
 */
#include "tests/fake_gpu/fake_gpu_bed.h"
#include "tests/program/program_cases.h"

static void on_gpus(void)
{
    struct test_daemon d;
    struct ranks r;

    without_products = true;
    CHECK(setenv("FCC_TEST_DEVICE", "cuda", 1) == 0);
    fake_start(&d, GPUS, NULL);
    for (int n = 1; n <= 3; n++) {
        ranks_start(&r, n, cases_rank, NULL);
        ranks_join(&r);
    }
    fake_stop(&d);
}

static void refused_rank(int rank, const struct ranks *all, void *argument)
{
    static const char text[] = "program twice(N = 5)\nin x: f32[N]\nout y: f32[N]\ny = x * 2\n";
    fcc_comm *comm = comm_open(all, rank, 0);
    fcc_program *p = NULL;

    (void)argument;
    CHECK(fcc_program_open(comm, text, strlen(text), NULL, 0, &p) == -EOPNOTSUPP && !p);
    if (!strstr(fcc_last_error(), "GPUs of several nodes"))
        check_failed(__FILE__, __LINE__, "%s", fcc_last_error());
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void refused_over_nodes(void)
{
    struct test_daemon d;
    struct ranks r;

    CHECK(setenv("FCC_TEST_DEVICE", "cuda", 1) == 0);
    fake_nodes_start(&d, 2, GPUS, NULL);
    ranks_start(&r, 2, refused_rank, NULL);
    ranks_join(&r);
    fake_stop(&d);
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {{"on_gpus", on_gpus, 120}, {"refused_over_nodes", refused_over_nodes, 60}};

    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_programs", TESTS(tests));
}
