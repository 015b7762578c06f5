/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_puts.c - gemm_all_to_alls that the ranks launch themselves, with the real daemon and the real library on fake GPUs
 * (fake_gpu_rings.c): the cases of put_cases.h in memory of the ranks' own and in graphs; in buffers, which are fccd's outside of graphs; and
 * what ranks hear if they differ. Real GPUs are in test_gpu_puts.c.
 */
#include "tests/fake_gpu/fake_gpu_products.h"
#include "tests/operators/put_errors.h"

enum { CASES = 40 };
enum { BUSY = 1, LEAVES = 2 };

/* ---- results ---- */

static void random_rank(int rank, const struct ranks *all, void *argument)
{
    struct put_case c;
    struct rank r;
    fcc_context *context = own_open(&r, rank, all);

    draw_state = *(const uint64_t *)argument;
    if (draw(2))
        OK(fcc_collectives_prepare(r.comm)); /* otherwise the first product does it */
    for (int i = 0; i < test_rounds(CASES); i++) {
        do
            put_draw(&c, r.n);
        while (c.n * c.k[0] > 100000 || c.n * c.k[r.n - 1] > 100000);
        put_fill(&r, &c);
        OK(put_enqueue(&r, &c));
        for (int again = (int)draw(3); again > 0; again--)
            OK(put_enqueue(&r, &c));
        put_check(&r, &c, i);
        if (i % 7 == 3)
            OK(fcc_noop_enqueue(r.comm, r.stream, NULL));
    }
    own_close(&r, context);
}

static void random_cases(void)
{
    fake_cases_run(random_rank);
}

/* ---- graphs ---- */

static void graphs_rank(int rank, const struct ranks *all, void *argument)
{
    enum { REPLAYS = 30 };
    static const int64_t rows[2] = {1, 40};
    struct put_case c[2];
    void *graphs[2];
    struct rank r;
    fcc_context *context = own_open(&r, rank, all);

    (void)argument;
    OK(fcc_collectives_prepare(r.comm));
    for (int i = 0; i < 2; i++) {
        c[i] = put_of(&r, FCC_F32, rows[i], 100);
        c[i].bias = i;
        driver->capture_begin();
        for (int layer = 0; layer < 4; layer++)
            OK(put_enqueue(&r, &c[i]));
        graphs[i] = driver->capture_end();
    }
    for (int i = 0; i < REPLAYS; i++) {
        const struct put_case *now = &c[i % 3 == 0];
        put_fill(&r, now);
        if (i % 4 == 3)
            OK(put_enqueue(&r, now));
        else
            driver->graph_launch(graphs[i % 3 == 0], r.stream);
        put_check(&r, now, i);
    }
    for (int i = 0; i < 2; i++)
        driver->graph_destroy(graphs[i]);
    own_close(&r, context);
}

static void graphs(void)
{
    fake_ranks_run(PAIR, graphs_rank, NULL);
}

/* ---- ranks that differ, and arguments that are wrong ---- */

static void errors_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;
    fcc_context *context = own_open(&r, rank, all);

    (void)argument;
    put_errors(&r);
    own_close(&r, context);
}

static void errors(void)
{
    fake_ranks_run(PAIR, errors_rank, NULL);
}

static void errors_of_three(void)
{
    fake_ranks_run(GPUS, errors_rank, NULL);
}

/* ---- in buffers: fccd stores rows where they belong, so only graphs go through rings ---- */

static void buffers_rank(int rank, const struct ranks *all, void *argument)
{
    enum { ROWS = 4, N = 32 };
    struct rank r;
    fcc_context *context = own_open(&r, rank, all);
    fcc_buffer *buffers[3];
    void *graph;

    (void)argument;
    for (int i = 0; i < 3; i++)
        OK(fcc_buffer_alloc(r.comm, FCC_BUFFER_SYMMETRIC, (size_t)ROWS * N * sizeof(float) * 8, &buffers[i]));
    const struct fcc_gemm_all_to_all_args args = {.a = fcc_tensor_2d(buffers[0], 0, FCC_F32, (int64_t)ROWS * r.n, 8),
                                                  .b = fcc_tensor_2d(buffers[1], 0, FCC_F32, 8, N),
                                                  .c = fcc_tensor_2d(buffers[2], 0, FCC_F32, (int64_t)ROWS * r.n, N)};
    OK(fcc_collectives_prepare(r.comm));
    OK(fcc_noop(r.comm));
    const int before = fake->enqueued;
    OK(fcc_gemm_all_to_all_enqueue(r.comm, &args, r.stream, NULL));
    stream_sync(r.stream);
    OK(fcc_noop(r.comm));
    CHECK(fake->enqueued > before); /* fccd's */
    driver->capture_begin();
    OK(fcc_gemm_all_to_all_enqueue(r.comm, &args, r.stream, NULL));
    graph = driver->capture_end();
    driver->graph_launch(graph, r.stream);
    stream_sync(r.stream);
    OK(fcc_comm_error(r.comm));
    driver->graph_destroy(graph);
    for (int i = 0; i < 3; i++)
        fcc_buffer_free(buffers[i]);
    put_works(&r, 3, 40);
    own_close(&r, context);
}

static void buffers(void)
{
    fake_ranks_run(PAIR, buffers_rank, NULL);
}

/* ---- a rank that has all of the last run leaves, while another one still computes, and has not told the host that it has come ---- */

static void leaves_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;
    fcc_context *context = own_open(&r, rank, all);

    (void)argument;
    put_works(&r, 3, 40);
    OK(fcc_noop(r.comm));
    struct put_case c = put_of(&r, FCC_F32, 3, 40);
    c.rows[BUSY][LEAVES] = 0;
    fake->busy_us = 300000;
    put_fill(&r, &c);
    OK(put_enqueue(&r, &c));
    put_check(&r, &c, 1);
    own_close(&r, context);
}

static void one_leaves(void)
{
    struct test_daemon d;
    struct ranks r;

    fake_start(&d, GPUS, NULL);
    fake->busy_gpu = BUSY;
    ranks_start(&r, GPUS, leaves_rank, NULL);
    ranks_join(&r);
    fake_stop(&d);
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {
        {"random_cases", random_cases, 120},       {"graphs", graphs, 60},   {"errors", errors, 120},
        {"errors_of_three", errors_of_three, 120}, {"buffers", buffers, 60}, {"one_leaves", one_leaves, 60}};

    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_puts", TESTS(tests));
}
