/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_pieces.c - gemm_all_reduce, gemm_reduce_scatter and all_gather_gemm that the ranks launch themselves, with the real daemon and the real
 * library on fake GPUs (fake_gpu_pieces.c): in memory of the ranks' own, in buffers, and in graphs; what ranks hear if they differ, and the ends.
 * Real GPUs are in client/python/tests/test_streams_pieces.py.
 */
#include "tests/fake_gpu/fake_gpu_pieces.h"

enum { CASES = 60 };

/* ---- results ---- */

static void cases_rank(int rank, const struct ranks *all, void *argument)
{
    struct piece_case c;
    struct rank r;
    fcc_context *context = pieces_open(&r, rank, all, 0);

    draw_state = *(const uint64_t *)argument;
    if (draw(2))
        OK(fcc_products_prepare(r.comm)); /* otherwise the first product does it */
    for (int i = 0; i < test_rounds(CASES); i++) {
        piece_draw(&c, r.n);
        piece_works(&r, &c, i);
        if (i % 4 == 1) /* other places and numbers */
            piece_again(&r, &c, i);
        if (i % 5 == 2)
            sum_works(&r, i % 2 ? 1000 : 100001);
        if (i % 7 == 3)
            OK(fcc_noop_enqueue(r.comm, r.stream, NULL));
    }
    pieces_close(&r, context);
}

static void random_cases(void)
{
    fake_cases_run(cases_rank);
}

/* `auto` sends much in pieces; in sequence it is several runs, of ranks whose rows lie side by side, and of others. */
static void large_rank(int rank, const struct ranks *all, void *argument)
{
    static const uint32_t schedules[] = {FCC_SCHEDULE_AUTO, FCC_SCHEDULE_SEQUENTIAL | FCC_SCHEDULE_ANY_ORDER};
    struct rank r;
    fcc_context *context = pieces_open(&r, rank, all, 0);

    (void)argument;
    for (int kind = 0; kind < KINDS; kind++)
        for (int i = 0; i < 2; i++) {
            if (!test_takes((size_t)kind + (size_t)i)) /* of each schedule one kind */
                continue;
            struct piece_case c =
                piece_of(&r, (enum kind)kind, FCC_F32, kind == GATHER ? 1200 : 8400, kind == GATHER ? 3 : 1025);
            for (int p = 0; p < r.n; p++)
                c.k[p] = kind == GATHER ? 1100 : 1;
            c.schedule = schedules[i];
            c.gap[PART_Y] = i == 1 ? rank : 0;
            c.rows[0] -= 3;
            c.rows[r.n - 1] += 3;
            piece_works(&r, &c, kind);
        }
    pieces_close(&r, context);
}

static void large(void)
{
    fake_ranks_run(PAIR, large_rank, NULL);
}

static void large_of_three(void)
{
    fake_ranks_run(GPUS, large_rank, NULL);
}

/* ---- by tiles ---- */

/* All cases that can, where all ranks wish it; none, where one rank wishes pieces; the large ones, where ranks are to choose. */
enum { WISH_TILES, WISH_AUTO, WISH_APART };

static void tiles_rank(int rank, const struct ranks *all, void *argument)
{
    const int wish = *(const int *)argument;
    struct piece_case c;
    struct rank r;

    CHECK(setenv("FCC_FUSED", wish == WISH_AUTO ? "auto" : wish == WISH_APART && rank == 0 ? "pieces" : "tiles", 1) == 0);
    fcc_context *context = pieces_open(&r, rank, all, 0);
    for (int i = 0; i < test_rounds(30); i++) {
        const enum kind kind = (enum kind)(i % KINDS);
        const int before = (int)fake->by_tiles, m = wish == WISH_AUTO ? 512 + i : 1 + i * 7;
        if (wish == WISH_APART)
            CHECK(setenv("FCC_FUSED", "pieces", 1) == 0); /* what is expected */
        c = piece_of(&r, kind,
                     i % 5 == 4 ? FCC_F32
                     : i % 2    ? FCC_F16
                                : FCC_BF16,
                     m,
                     i % 4 == 3                            ? 20
                     : wish == WISH_AUTO && kind != GATHER ? 2048
                                                           : 24 + 8 * (i % 3));
        for (int p = 0; p < r.n && kind == GATHER; p++) /* N may differ */
            c.n[p] += p;
        for (int p = 0; p < r.n; p++)
            c.k[p] = kind != GATHER ? i % 6 + p : wish == WISH_AUTO ? 2048 : 8 + 4 * (i % 2);
        c.schedule = wish == WISH_APART || i % 2 ? FCC_SCHEDULE_FUSED : FCC_SCHEDULE_AUTO;
        OK(fcc_noop(r.comm));
        piece_works(&r, &c, i);
        OK(fcc_noop(r.comm)); /* both have launched it */
        CHECK(is_by_tiles(&c, r.n) == ((int)fake->by_tiles > before));
        if (i % 5 == 2)
            sum_works(&r, 1000);
    }
    CHECK((fake->by_tiles > 0) == (wish != WISH_APART));
    pieces_close(&r, context);
}

static void tiles_of_wish(int wish)
{
    fake_ranks_run(PAIR, tiles_rank, &wish);
}

static void tiles(void)
{
    tiles_of_wish(WISH_AUTO);
}

static void tiles_wished(void)
{
    tiles_of_wish(WISH_TILES);
}

static void tiles_apart(void)
{
    tiles_of_wish(WISH_APART);
}

/* ---- graphs ---- */

static void graphs_rank(int rank, const struct ranks *all, void *argument)
{
    enum { REPLAYS = 24, GRAPHS = 2 * KINDS };
    struct piece_case c[GRAPHS];
    void *graphs[GRAPHS];
    struct rank r;
    fcc_context *context = pieces_open(&r, rank, all, 0);

    (void)argument;
    OK(fcc_products_prepare(r.comm));
    for (int i = 0; i < GRAPHS; i++) {
        c[i] = piece_of(&r, (enum kind)(i % KINDS), i % 2 ? FCC_BF16 : FCC_F32, 7 + i, 40);
        c[i].schedule = i < KINDS ? FCC_SCHEDULE_FUSED : FCC_SCHEDULE_SEQUENTIAL;
        c[i].gap[PART_Y] = i % 2 ? 3 : 0;
        driver->capture_begin();
        for (int layer = 0; layer < 3; layer++)
            OK(piece_enqueue(&r, &c[i], NULL));
        graphs[i] = driver->capture_end();
    }
    for (int i = 0; i < REPLAYS; i++) {
        struct piece_case *now = &c[i * 5 % GRAPHS];
        now->seed++;
        piece_fill(&r, now);
        if (i % 4 == 3)
            OK(piece_enqueue(&r, now, NULL));
        for (int again = i % 4 == 3 ? 0 : 1 + i % 2; again > 0; again--)
            driver->graph_launch(graphs[i * 5 % GRAPHS], r.stream);
        piece_check(&r, now, i);
        if (i % 6 == 1)
            sum_works(&r, 1000);
    }
    for (int i = 0; i < GRAPHS; i++)
        driver->graph_destroy(graphs[i]);
    pieces_close(&r, context);
}

static void graphs(void)
{
    fake_ranks_run(PAIR, graphs_rank, NULL);
}

static void graphs_of_three(void)
{
    fake_ranks_run(GPUS, graphs_rank, NULL);
}

/* ---- in buffers: fccd launches products, but for those in graphs ---- */

static void buffers_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;
    fcc_context *context = pieces_open(&r, rank, all, 0);
    struct piece_case c = piece_of(&r, SUM, FCC_F32, 6, 20);
    fcc_buffer *buffers[3];
    union piece_args args;

    (void)argument;
    OK(fcc_products_prepare(r.comm));
    args = piece_args(&r, &c);
    struct fcc_tensor *tensors[3] = {&args.sum.a, &args.sum.b, &args.sum.c};
    for (int i = 0; i < 3; i++) {
        OK(fcc_buffer_alloc(r.comm, i == PART_Y ? FCC_BUFFER_SYMMETRIC : FCC_BUFFER_LOCAL, 65536, &buffers[i]));
        tensors[i]->buffer = buffers[i];
        tensors[i]->offset = 0;
    }
    OK(fcc_noop(r.comm));
    const int before = fake->enqueued;
    driver->capture_begin();
    OK(fcc_gemm_all_reduce_enqueue(r.comm, &args.sum, r.stream, NULL));
    void *graph = driver->capture_end();
    for (int i = 0; i < 5; i++)
        driver->graph_launch(graph, r.stream);
    stream_sync(r.stream);
    OK(fcc_comm_error(r.comm));
    CHECK(fake->enqueued == before); /* none was fccd's */
    OK(fcc_gemm_all_reduce_enqueue(r.comm, &args.sum, r.stream, NULL));
    stream_sync(r.stream);
    CHECK(fake->enqueued > before);
    tensors[0]->buffer = FCC_ADDRESS; /* one tensor is enough */
    tensors[0]->offset = r.memory[PART_X];
    tensors[2]->offset = 16;
    OK(fcc_noop(r.comm));
    const int later = fake->enqueued;
    OK(fcc_gemm_all_reduce_enqueue(r.comm, &args.sum, r.stream, NULL));
    stream_sync(r.stream);
    OK(fcc_comm_error(r.comm));
    CHECK(fake->enqueued == later);
    args.sum.c.offset = 65536 - 16;
    piece_error_is(&r, fcc_gemm_all_reduce_enqueue(r.comm, &args.sum, r.stream, NULL),
                   "gemm_all_reduce: c: 480 bytes from byte 65520 on: its buffer has 16 from there on");
    driver->graph_destroy(graph);
    for (int i = 0; i < 3; i++)
        fcc_buffer_free(buffers[i]);
    pieces_close(&r, context);
}

static void buffers(void)
{
    fake_ranks_run(PAIR, buffers_rank, NULL);
}

/* ---- the vendor's library is not there on all ranks ---- */

static void lacking_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;

    (void)argument;
    if (rank == 1)
        CHECK(setenv("FAKE_GPU_WITHOUT_LIBRARY", "1", 1) == 0);
    fcc_context *context = pieces_open(&r, rank, all, 0);
    OK(fcc_collectives_prepare(r.comm));
    FAILS(fcc_products_prepare(r.comm), -EOPNOTSUPP, "products: allowed where all ranks can load cuBLAS");
    for (int kind = 0; kind < KINDS; kind++) {
        const struct piece_case c = piece_of(&r, (enum kind)kind, FCC_F32, 4, 16);
        FAILS(piece_enqueue(&r, &c, NULL), -EOPNOTSUPP, kind_names[kind],
              "FCC_ADDRESS: allowed where all ranks can load cuBLAS");
        (void)fcc_comm_error_wait(r.comm, -1);
    }
    sum_works(&r, 1000);
    pieces_close(&r, context);
}

static void lacking(void)
{
    fake_ranks_run(PAIR, lacking_rank, NULL);
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {{"random_cases", random_cases, 400},
                                        {"large", large, 400},
                                        {"large_of_three", large_of_three, 400},
                                        {"tiles", tiles, 400},
                                        {"tiles_wished", tiles_wished, 400},
                                        {"tiles_apart", tiles_apart, 400},
                                        {"graphs", graphs, 200},
                                        {"graphs_of_three", graphs_of_three, 200},
                                        {"buffers", buffers, 200},
                                        {"lacking", lacking, 200}};

    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_pieces", TESTS(tests));
}
