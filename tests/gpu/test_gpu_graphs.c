/* SPDX-License-Identifier: MIT
 *
 * test_gpu_graphs.c - runs of prepared operators that are captured into CUDA graphs and replayed, through the real daemon on NVIDIA GPUs:
 * each run uses what the one before it has stored, whether it is replayed or enqueued. How replays end is in test_gpu_graphs_ends.c.
 */
#include "tests/gpu/gpu_chain.h"

/* These use other kernels each: one row, several rows in one step, two steps, for which the ranks meet, and those for any shape. */
static const struct shape row_f32 = {.dtype = FCC_F32, .m = 1, .n = 512, .steps = 48, .rounds = 60, .graphs = true};
static const struct shape row_f16 = {.dtype = FCC_F16, .m = 1, .n = 4096, .steps = 16, .rounds = 60, .graphs = true};
static const struct shape rows_f16 = {.dtype = FCC_F16, .m = 8, .n = 1024, .steps = 32, .rounds = 60, .graphs = true};
static const struct shape rows_bf16 = {.dtype = FCC_BF16, .m = 24, .n = 1024, .steps = 32, .rounds = 60, .graphs = true};
static const struct shape many_f16 = {.dtype = FCC_F16, .m = 64, .n = 2048, .steps = 16, .rounds = 30, .graphs = true};
static const struct shape many_f32 = {.dtype = FCC_F32, .m = 64, .n = 2048, .steps = 8, .rounds = 30, .graphs = true};

CHAIN(gemv_row_f32, row_f32)
CHAIN(gemv_row_f16, row_f16)
CHAIN(gemv_rows_f16, rows_f16)
CHAIN(gemv_rows_bf16, rows_bf16)
CHAIN(gemv_many_f16, many_f16)
CHAIN(gemv_many_f32, many_f32)

static void gemv_of_one(void)
{
    chain_run(1, &row_f16);
}

static const struct shape few_f16 = {
    .dtype = FCC_F16, .m = 8, .n = 2048, .steps = 24, .rounds = 20, .per_rank = true, .graphs = true};
static const struct shape few_bf16 = {
    .dtype = FCC_BF16, .m = 64, .n = 2048, .steps = 24, .rounds = 20, .per_rank = true, .graphs = true};
static const struct shape few_f32 = {
    .dtype = FCC_F32, .m = 3, .n = 512, .steps = 24, .rounds = 20, .per_rank = true, .graphs = true};
static const struct shape large_f16 = {.dtype = FCC_F16, .m = 4096, .n = 1024, .steps = 12, .rounds = 10, .graphs = true};
static const struct shape large_f32 = {.dtype = FCC_F32, .m = 2048, .n = 512, .steps = 12, .rounds = 10, .graphs = true};

SENT(gemm_few_f16, few_f16)
SENT(gemm_few_bf16, few_bf16)
SENT(gemm_few_f32, few_f32)
SENT(gemm_large_f16, large_f16)
SENT(gemm_large_f32, large_f32)

/* ---- two graphs by turns, a thousand times, with runs outside of graphs between them ---- */

enum { REPLAYS = 1000, LOOKS = 10 /* each so-manieth result is looked at */ };

/* The product of x, which each increments first, so many times: behind the first run of a replay stands another one of its own. */
static void *product_capture(const struct product *p, fcc_prepared *prepared, int runs, void *stream)
{
    CU(gpu.capture_begin(stream, CUDA_CAPTURE_GLOBAL));
    for (int run = 0; run < runs; run++) {
        if (run < 2)
            gpu_increment(stream, p->x, PRODUCT_K);
        OK(fcc_prepared_enqueue(prepared, stream));
    }
    return capture_finish(stream);
}

static void turns_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_context *context = client_connect(NULL);
    fcc_comm *comm = client_join(context, &all->id, all->n, rank, -1, 0);
    fcc_prepared *prepared;
    int x = 1;

    (void)argument;
    gpu_open(comm);
    struct product p = product_open(comm, 1);
    struct fcc_gemv_all_reduce_args args = product_args(&p, 0);
    OK(fcc_gemv_all_reduce_prepare(comm, &args, &prepared));
    void *stream = stream_open(CUDA_STREAM_OWN_ORDER);
    void *one = product_capture(&p, prepared, 1, stream), *four = product_capture(&p, prepared, 4, stream);
    gpu_fill(stream, p.x, PRODUCT_K, 1);
    for (int i = 0; i < repeats(REPLAYS); i++) {
        be_late(rank, i, stream);
        if (i % 5 == 4) {
            gpu_increment(stream, p.x, PRODUCT_K);
            OK(fcc_prepared_enqueue(prepared, stream));
        } else {
            CU(gpu.graph_launch(i % 2 ? four : one, stream));
        }
        x += i % 5 != 4 && i % 2 ? 2 : 1;
        if (i % LOOKS)
            continue;
        product_fetch(&p, stream);
        CU(gpu.stream_synchronize(stream));
        product_check(&p, gpu.host, (float)x);
    }
    CU(gpu.stream_synchronize(stream));
    OK(fcc_noop(comm));
    OK(fcc_comm_error(comm));
    CU(gpu.exec_destroy(one));
    CU(gpu.exec_destroy(four));
    fcc_prepared_free(prepared);
    fcc_comm_destroy(comm);
    fcc_disconnect(context);
}

static void by_turns(void)
{
    ranks_run(ranks_of_gpus(), turns_rank, NULL);
}

/* ---- barriers ---- */

/* Each rank writes down how often it has come, meets the others, and copies what these have written: into and from its part of a symmetric
 * buffer's rank 0, where all write and read. */
static void barrier_capture(fcc_prepared *prepared, uint64_t mine, uint64_t all, uint64_t seen, int n, void *stream)
{
    uint32_t elements = 1;
    void *at = (void *)(uintptr_t)mine;

    kernel_launch(gpu.kernel_increment, 32, stream, (void *[]){&at, &elements});
    OK(fcc_prepared_enqueue(prepared, stream));
    CU(gpu.copy_there(seen, all, (size_t)n * sizeof(float), stream));
    OK(fcc_prepared_enqueue(prepared, stream));
}

static void barriers_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_context *context = client_connect(NULL);
    fcc_comm *comm = client_join(context, &all->id, all->n, rank, -1, 0);
    fcc_buffer *counts, *seen;
    fcc_prepared *prepared;
    float found[FCC_MAX_RANKS];
    void *there;

    (void)argument;
    gpu_open(comm);
    OK(fcc_noop_prepare(comm, &prepared));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, FCC_MAX_RANKS * sizeof(float), &counts));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, FCC_MAX_RANKS * sizeof(float), &seen));
    OK(fcc_buffer_peer(counts, 0, &there));
    uint64_t at = (uint64_t)(uintptr_t)there, mine = at + (uint64_t)rank * sizeof(float);
    void *stream = stream_open(CUDA_STREAM_OWN_ORDER);
    CU(gpu.capture_begin(stream, CUDA_CAPTURE_GLOBAL));
    barrier_capture(prepared, mine, at, address_of(seen), all->n, stream);
    void *graph = capture_finish(stream);
    OK(fcc_noop(comm));
    for (int i = 1; i <= repeats(REPLAYS); i++) {
        be_late(rank, i, stream);
        if (i % 5)
            CU(gpu.graph_launch(graph, stream));
        else
            barrier_capture(prepared, mine, at, address_of(seen), all->n, stream);
        if (i % LOOKS)
            continue;
        CU(gpu.copy_out(found, address_of(seen), (size_t)all->n * sizeof(float), stream));
        CU(gpu.stream_synchronize(stream));
        for (int r = 0; r < all->n; r++)
            CHECK(found[r] == (float)i);
    }
    CU(gpu.stream_synchronize(stream));
    OK(fcc_noop(comm));
    CU(gpu.exec_destroy(graph));
    fcc_comm_destroy(comm);
    fcc_disconnect(context);
}

static void barriers(void)
{
    ranks_run(ranks_of_gpus(), barriers_rank, NULL);
}

/* ---- two operators of a graph on two streams, whose order are the events of the capture ---- */

static void branches_rank(int rank, const struct ranks *all, void *argument)
{
    struct pair p;

    (void)argument;
    pair_open(&p, rank, all);
    CU(gpu.capture_begin(p.streams[0], CUDA_CAPTURE_GLOBAL));
    for (int turn = 0; turn < 2 * 4; turn++) {
        int i = turn % 2;
        pair_turn(&p, i);
    }
    void *graph = capture_finish(p.streams[0]);
    pair_begin(&p);
    for (int i = 0; i < 50; i++) {
        be_late(rank, i, p.streams[0]);
        CU(gpu.graph_launch(graph, p.streams[0]));
    }
    pair_check(&p, 2 * 4 * 50);
    OK(fcc_noop(p.comm));
    CU(gpu.exec_destroy(graph));
    pair_close(&p);
}

static void two_branches(void)
{
    ranks_run(ranks_of_gpus(), branches_rank, NULL);
}

int main(void)
{
    static const struct test tests[] = {
        {"by_turns", by_turns, 0},
        {"barriers", barriers, 0},
        {"two_branches", two_branches, 0},
        {"gemv_of_one", gemv_of_one, 0},
        {"gemv_row_f32", gemv_row_f32, 0},
        {"gemv_row_f16", gemv_row_f16, 0},
        {"gemv_rows_f16", gemv_rows_f16, 0},
        {"gemv_rows_bf16", gemv_rows_bf16, 0},
        {"gemv_many_f16", gemv_many_f16, 0},
        {"gemv_many_f32", gemv_many_f32, 0},
        {"gemm_few_f16", gemm_few_f16, 0},
        {"gemm_few_bf16", gemm_few_bf16, 0},
        {"gemm_few_f32", gemm_few_f32, 0},
        {"gemm_large_f16", gemm_large_f16, 0},
        {"gemm_large_f32", gemm_large_f32, 0},
    };
    return gpus_found() ? tests_run("gpu_graphs", TESTS(tests)) : EXIT_SUCCESS;
}
