/* SPDX-License-Identifier: MIT
 *
 * test_gpu_bags.c - embedding_all_to_all that the ranks' own processes launch through rings, on NVIDIA GPUs, one rank on each, in memory that this process
 * has allocated: shapes drawn at random, mixed with collectives and sums of products; results of which parts use the same places in landing memory one
 * after the other; graphs, whose indices change from replay to replay; and what ranks hear if they differ, or if data is wrong.
 */
#define ROOM (160 << 20)
#include "tests/gpu/gpu_ends.h"
#include "tests/gpu/gpu_products.h"
#include "tests/operators/bag_errors.h"

enum { CASES = 100 };

/* ---- cases at random ---- */

static void random_rank(int rank, const struct ranks *all, void *argument)
{
    const int cases = number_of("FCC_TEST_CASES", CASES);
    struct bag_case c;
    struct rank r;

    rank_open(&r, rank, all, 0);
    OK(fcc_collectives_prepare(r.comm));
    draw_state = *(const uint64_t *)argument;
    for (int i = 0; i < cases; i++) {
        bag_draw(&c, r.n);
        bag_fill(&r, &c);
        if (i % 3 == 1)
            OK(fcc_noop_enqueue(r.comm, r.stream, NULL));
        OK(bag_enqueue(&r, &c));
        for (int again = (int)draw(3); again > 0; again--)
            OK(bag_enqueue(&r, &c));
        bag_check_all(&r, &c, i);
        if (i % 5 == 2)
            sum_between(&r, i);
    }
    rank_close(&r);
}

static void random_cases(void)
{
    uint64_t seed = test_seed();

    ranks_of_gpus_run(random_rank, &seed);
}

/* ---- more parts than places ---- */

static void parts_rank(int rank, const struct ranks *all, void *argument)
{
    static const struct {
        enum fcc_dtype dtype;
        int64_t batch, dim, table_gap;
        int32_t tables;
    } shapes[] = {
        {FCC_F32, 8192, 64, 0, 66}, {FCC_F16, 3001, 256, 0, 60}, {FCC_BF16, 1500, 100, 4, 40}, {FCC_F32, 24, 40000, 0, 6}};
    struct rank r;

    (void)argument;
    rank_open(&r, rank, all, 0);
    for (int i = 0; i < 4; i++) {
        struct bag_case c = bag_of(&r, shapes[i].dtype, shapes[i].batch, shapes[i].tables / r.n + 1, shapes[i].dim);
        c.depth = 3;
        c.table_gap = shapes[i].table_gap;
        if (i == 1) { /* much for one rank, little for others */
            c.even = false;
            for (int p = 0; p < r.n; p++)
                c.split[p] = p ? 1 : c.batch - r.n + 1;
        }
        bag_fill(&r, &c);
        for (int again = 0; again < 3; again++)
            OK(bag_enqueue(&r, &c));
        bag_check_all(&r, &c, i);
    }
    rank_close(&r);
}

static void parts(void)
{
    ranks_of_gpus_run(parts_rank, NULL);
}

/* ---- graphs ---- */

static void graphs_rank(int rank, const struct ranks *all, void *argument)
{
    enum { GRAPHS = 3, LAYERS = 16, REPLAYS = 200, DEPTH = 9 };
    static const int64_t batches[GRAPHS] = {8, 100, 900};
    struct bag_case cases[GRAPHS];
    struct bag_call call;
    void *graphs[GRAPHS];
    struct rank r;

    (void)argument;
    rank_open(&r, rank, all, 0);
    OK(fcc_collectives_prepare(r.comm));
    for (int i = 0; i < GRAPHS; i++) {
        cases[i] = bag_of(&r, FCC_BF16, batches[i], 4, 128);
        bag_call_make(&r, &cases[i], &call);
        call.args.indices.shape[0] = 4 * batches[i] * DEPTH; /* as many as any replay has, or more */
        CU(gpu.capture_begin(r.stream, CUDA_CAPTURE_GLOBAL));
        for (int layer = 0; layer < LAYERS; layer++)
            OK(fcc_embedding_all_to_all_enqueue(r.comm, &call.args, r.stream, NULL));
        graphs[i] = capture_finish(r.stream);
    }
    for (int i = 0; i < GRAPHS; i++) /* all that a replay may read is there */
        bag_fill(&r, &cases[i]);
    for (int i = 0; i < repeats(REPLAYS); i++) {
        const int which = i / 10 % GRAPHS;
        const bool looks = i % 10 == 9;
        if (i % 10 == 0 || looks) {
            cases[which].depth = i / 10 % (DEPTH + 1); /* other lengths of bags, and other indices */
            bag_fill(&r, &cases[which]);
        }
        if (i % 6 == 5)
            OK(bag_enqueue(&r, &cases[which])); /* beside the graphs */
        CU(gpu.graph_launch(graphs[which], r.stream));
        if (looks)
            bag_check_all(&r, &cases[which], i);
    }
    graphs_outlive(r.comm, r.stream, (void *const[]){graphs[0], graphs[2], graphs[1]}, 3);
}

static void graphs(void)
{
    ranks_of_gpus_run(graphs_rank, NULL);
}

/* ---- ranks that differ, and what is wrong ---- */

static void stream_settle(const struct rank *r)
{
    CU(gpu.stream_synchronize(r->stream));
}

static void errors_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;

    (void)argument;
    rank_open(&r, rank, all, 0);
    bag_differences(&r);
    bag_arguments(&r);
    bag_data(&r);
    rank_close(&r);
}

static void errors(void)
{
    ranks_of_gpus_run(errors_rank, NULL);
}

int main(void)
{
    static const struct test tests[] = {
        {"random_cases", random_cases, 200}, {"parts", parts, 300}, {"graphs", graphs, 200}, {"errors", errors, 100}};

    if (!gpus_found())
        return EXIT_SUCCESS;
    product_schedule = FCC_SCHEDULE_FUSED; /* auto multiplies several rows by cuBLAS, which rounds each rank's term */
    return tests_run("gpu_bags", TESTS(tests));
}
