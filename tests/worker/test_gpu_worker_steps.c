/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_steps.c - bound programs, which the ranks' own processes launch, with the real daemon and the real library on fake GPUs: the cases of
 * program_cases.h on streams and in graphs, numbers that change between runs and between replays, tensors anywhere, what is refused, and how runs end. Real
 * GPUs are in test_gpu_steps.c.
 */
#include "tests/fake_gpu/fake_gpu_bed.h"
#include "tests/program/program_cases.h"

struct scene {
    _Atomic int step, open;
};

static void *stream;

static void scene_run(int n, void (*rank)(int, const struct ranks *, void *), const char *const options[])
{
    struct scene *scene = shared_memory(sizeof(*scene));
    struct test_daemon d;
    struct ranks r;

    CHECK(setenv("FCC_TEST_DEVICE", "cuda", 1) == 0);
    fake_start(&d, GPUS, options);
    ranks_start(&r, n, rank, scene);
    ranks_join(&r);
    fake_stop(&d);
}

/* ---- what comes of them ---- */

/* Once on the stream, and once by a graph. */
static int steps_call(fcc_program *p, int round)
{
    int status = round ? 0 : fcc_program_prepare(p);
    void *graph = NULL;

    if (status)
        return status;
    if (round)
        driver->capture_begin();
    status = fcc_program_enqueue(p, stream);
    if (round) {
        graph = driver->capture_end();
        driver->graph_launch(graph, stream);
    }
    stream_sync(stream);
    if (graph)
        driver->graph_destroy(graph);
    return status;
}

static void cases_bound_rank(int rank, const struct ranks *all, void *argument)
{
    driver_use();
    stream = stream_open();
    case_calls = steps_call;
    without_products = true;
    cases_rank(rank, all, argument);
    stream_close(stream);
}

static void cases_of_one(void)
{
    scene_run(1, cases_bound_rank, NULL);
}

static void cases_of_two(void)
{
    scene_run(PAIR, cases_bound_rank, NULL);
}

static void cases_of_three(void)
{
    scene_run(GPUS, cases_bound_rank, NULL);
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {
        {"cases_of_one", cases_of_one, 0},
        {"cases_of_two", cases_of_two, 0},
        {"cases_of_three", cases_of_three, 0},
    };
    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_steps", TESTS(tests));
}
