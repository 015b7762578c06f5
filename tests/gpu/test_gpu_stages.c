/* SPDX-License-Identifier: MIT
 *
 * test_gpu_stages.c - products with epilogues that the ranks' own processes launch, on NVIDIA GPUs, one rank on each: the cases of stage_cases.h in memory
 * that this process has allocated, and in graphs. test_gpu_worker_stages.c has the same on fake GPUs, and what is refused.
 */
#include <dlfcn.h>

#include "tests/gpu/gpu_own.h"
#include "tests/operators/stage_cases.h"

enum { STAGE_CASES = 150 };

static void random_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;

    own_open(&r, rank, all, 0);
    random_state = *(const uint64_t *)argument;
    for (unsigned i = 1; i <= STAGE_CASES; i++) {
        const struct stage_case c = stage_draw(all->n, i, true);
        stage_run(&r, &c);
        OK(fcc_comm_error(r.comm));
    }
    own_close(&r);
}

static void random_cases(void)
{
    uint64_t seed = test_seed();

    ranks_of_gpus_run(random_rank, &seed);
}

/* Each layer's graph is replayed with other numbers than it was captured with. */
static void graphs_rank(int rank, const struct ranks *all, void *argument)
{
    enum { GRAPHS = 20, ROUNDS = 5 };
    struct stage_case cases[GRAPHS];
    void *graphs[GRAPHS];
    struct rank r;

    own_open(&r, rank, all, 0);
    random_state = *(const uint64_t *)argument;
    OK(fcc_collectives_prepare(r.comm));
    for (int i = 0; i < GRAPHS; i++) {
        cases[i] = stage_draw(all->n, (unsigned)i + 1, true);
        const struct fcc_tensor y = stage_result(&r, &cases[i]);
        struct fcc_epilogue e;
        stage_prepare(&r, &cases[i], &y, &e);
        CU(gpu.capture_begin(r.stream, CUDA_CAPTURE_GLOBAL));
        OK(stage_call(&r, &cases[i], &y, &e));
        graphs[i] = capture_finish(r.stream);
    }
    for (int i = 0; i < GRAPHS * ROUNDS; i++) {
        struct stage_case *c = &cases[i % GRAPHS];
        const struct fcc_tensor y = stage_result(&r, c);
        struct fcc_epilogue e;
        c->seed += 7;
        stage_prepare(&r, c, &y, &e);
        CU(gpu.graph_launch(graphs[i % GRAPHS], r.stream));
        stage_check(&r, c);
        OK(fcc_comm_error(r.comm));
    }
    for (int i = 0; i < GRAPHS; i++)
        CU(gpu.exec_destroy(graphs[i]));
    own_close(&r);
}

static void graphs(void)
{
    uint64_t seed = test_seed();

    ranks_of_gpus_run(graphs_rank, &seed);
}

int main(void)
{
    static const struct test tests[] = {{"random_cases", random_cases, 120}, {"graphs", graphs, 120}};

    if (!gpus_found())
        return EXIT_SUCCESS;
    gpus = gpus < STAGE_RANKS ? gpus : STAGE_RANKS;
    stage_library = dlopen("libcublas.so.13", RTLD_LAZY) || dlopen("libcublas.so.12", RTLD_LAZY);
    return tests_run("gpu_stages", TESTS(tests));
}
