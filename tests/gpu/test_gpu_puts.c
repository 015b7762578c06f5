/* SPDX-License-Identifier: MIT
 *
 * test_gpu_puts.c - gemm_all_to_all that the ranks' own processes launch through rings, on NVIDIA GPUs, one rank on each, in memory that this
 * process has allocated: shapes drawn at random, with and without an epilogue, mixed with collectives and sums of products; products of which parts
 * use the same places in landing memory one after the other; graphs; and what ranks hear if they differ.
 */
#define ROOM (160 << 20)
#include "tests/gpu/gpu_ends.h"
#include "tests/gpu/gpu_products.h"
#include "tests/operators/put_errors.h"

enum { CASES = 100 };

/* ---- one product, the simplest ---- */

static void simple_rank(int rank, const struct ranks *all, void *argument)
{
    static const int64_t rows[] = {1, 64, 128, 300};
    struct rank r;

    rank_open(&r, rank, all, 0);
    for (int i = 0; i < 4; i++) {
        const struct put_case c = put_of(&r, *(const enum fcc_dtype *)argument, rows[i], 512);
        put_fill(&r, &c);
        OK(put_enqueue(&r, &c));
        put_check(&r, &c, i);
    }
    rank_close(&r);
}

static void simple(void)
{
    static enum fcc_dtype dtypes[] = {FCC_F32, FCC_F16, FCC_BF16};

    for (int i = 0; i < 3; i++)
        ranks_of_gpus_run(simple_rank, &dtypes[i]);
}

/* ---- cases at random ---- */

static void random_rank(int rank, const struct ranks *all, void *argument)
{
    const int cases = number_of("FCC_TEST_CASES", CASES);
    struct put_case c;
    struct rank r;

    rank_open(&r, rank, all, 0);
    OK(fcc_collectives_prepare(r.comm));
    draw_state = *(const uint64_t *)argument;
    for (int i = 0; i < cases; i++) {
        put_draw(&c, r.n);
        put_fill(&r, &c);
        if (i % 3 == 1)
            OK(fcc_noop_enqueue(r.comm, r.stream, NULL));
        OK(put_enqueue(&r, &c));
        for (int again = (int)draw(3); again > 0; again--)
            OK(put_enqueue(&r, &c));
        put_check(&r, &c, i);
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
        int64_t rows, n, gap;
    } shapes[] = {{FCC_BF16, 2048, 8192, 0}, {FCC_F16, 3000, 4096, 0}, {FCC_F32, 1500, 5000, 0}, {FCC_BF16, 5000, 2500, 3}};
    struct rank r;

    (void)argument;
    rank_open(&r, rank, all, 0);
    for (int i = 0; i < 4; i++) {
        struct put_case c = put_of(&r, shapes[i].dtype, shapes[i].rows * 2 / r.n, shapes[i].n);
        for (int p = 0; p < r.n; p++)
            c.k[p] = 72;
        c.gap[PART_Y] = shapes[i].gap;
        if (i == 1) /* much for one rank, little for others */
            for (int p = 0; p < r.n; p++)
                for (int to = 0; to < r.n; to++)
                    c.rows[p][to] = to == 0 ? shapes[i].rows * 2 / r.n : 10;
        put_fill(&r, &c);
        for (int again = 0; again < 3; again++)
            OK(put_enqueue(&r, &c));
        put_check_some(&r, &c, i, 37);
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
    enum { GRAPHS = 4, LAYERS = 16, REPLAYS = 200 };
    static const int64_t rows[GRAPHS] = {1, 16, 100, 700};
    struct put_case cases[GRAPHS];
    void *graphs[GRAPHS];
    struct rank r;

    (void)argument;
    rank_open(&r, rank, all, 0);
    OK(fcc_collectives_prepare(r.comm));
    for (int i = 0; i < GRAPHS; i++) {
        cases[i] = put_of(&r, FCC_BF16, rows[i], 1024);
        CU(gpu.capture_begin(r.stream, CUDA_CAPTURE_GLOBAL));
        for (int layer = 0; layer < LAYERS; layer++)
            OK(put_enqueue(&r, &cases[i]));
        graphs[i] = capture_finish(r.stream);
    }
    for (int i = 0; i < repeats(REPLAYS); i++) {
        const int which = (int)((unsigned)i * 7 % GRAPHS);
        const bool looks = i % 20 == 19;
        if (looks)
            put_fill(&r, &cases[which]);
        if (i % 6 == 5)
            OK(put_enqueue(&r, &cases[which])); /* beside the graphs */
        CU(gpu.graph_launch(graphs[which], r.stream));
        if (looks)
            put_check(&r, &cases[which], i);
    }
    graphs_outlive(r.comm, r.stream, (void *const[]){graphs[0], graphs[3], graphs[1]}, 3);
}

static void graphs(void)
{
    ranks_of_gpus_run(graphs_rank, NULL);
}

/* ---- ranks that differ ---- */

static void stream_settle(const struct rank *r)
{
    CU(gpu.stream_synchronize(r->stream));
}

static void errors_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;

    (void)argument;
    rank_open(&r, rank, all, 0);
    put_errors(&r);
    rank_close(&r);
}

static void errors(void)
{
    ranks_of_gpus_run(errors_rank, NULL);
}

int main(void)
{
    static const struct test tests[] = {{"simple", simple, 60},
                                        {"random_cases", random_cases, 200},
                                        {"parts", parts, 200},
                                        {"graphs", graphs, 100},
                                        {"errors", errors, 100}};

    if (!gpus_found())
        return EXIT_SUCCESS;
    product_schedule = FCC_SCHEDULE_FUSED; /* auto multiplies several rows by cuBLAS, which rounds each rank's term */
    return tests_run("gpu_puts", TESTS(tests));
}
