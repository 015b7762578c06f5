/* SPDX-License-Identifier: MIT
 *
 * test_gpu_prepared.c - operators that are prepared once and launched by the ranks' own processes, through the real daemon on NVIDIA GPUs:
 * each run uses what the one before it has stored, on whatever stream, beside operators that the daemon runs. How they end is in
 * test_gpu_prepared_ends.c.
 */
#include "tests/gpu/gpu_chain.h"

/* One row, in one step: those are other kernels than those of several rows. */
static const struct shape row_f32 = {.dtype = FCC_F32, .m = 1, .n = 512, .steps = 48, .rounds = 60};
static const struct shape row_f16 = {.dtype = FCC_F16, .m = 1, .n = 4096, .steps = 16, .rounds = 60};
static const struct shape row_bf16 = {.dtype = FCC_BF16, .m = 1, .n = 1024, .steps = 32, .rounds = 60};
static const struct shape rows_f16 = {.dtype = FCC_F16, .m = 8, .n = 1024, .steps = 32, .rounds = 60};
/* In two steps: the ranks meet before. */
static const struct shape many_f16 = {.dtype = FCC_F16, .m = 64, .n = 2048, .steps = 16, .rounds = 30};
static const struct shape many_f32 = {.dtype = FCC_F32, .m = 64, .n = 2048, .steps = 8, .rounds = 30};
static const struct shape mixed_row = {.dtype = FCC_F32, .m = 1, .n = 512, .steps = 48, .rounds = 40, .mixed = true};
static const struct shape mixed_many = {.dtype = FCC_F16, .m = 64, .n = 2048, .steps = 16, .rounds = 30, .mixed = true};

CHAIN(gemv_row_f32, row_f32)
CHAIN(gemv_row_f16, row_f16)
CHAIN(gemv_row_bf16, row_bf16)
CHAIN(gemv_rows_f16, rows_f16)
CHAIN(gemv_many_f16, many_f16)
CHAIN(gemv_many_f32, many_f32)
CHAIN(gemv_mixed_row, mixed_row)
CHAIN(gemv_mixed_many, mixed_many)

static void gemv_of_one(void)
{
    chain_run(1, &row_f16);
}

static const struct shape few_f16 = {.dtype = FCC_F16, .m = 8, .n = 2048, .steps = 24, .rounds = 20, .per_rank = true};
static const struct shape few_bf16 = {.dtype = FCC_BF16, .m = 64, .n = 2048, .steps = 24, .rounds = 20, .per_rank = true};
static const struct shape few_f32 = {.dtype = FCC_F32, .m = 3, .n = 512, .steps = 24, .rounds = 20, .per_rank = true};
static const struct shape large_f16 = {.dtype = FCC_F16, .m = 4096, .n = 1024, .steps = 12, .rounds = 10};
static const struct shape large_f32 = {.dtype = FCC_F32, .m = 2048, .n = 512, .steps = 12, .rounds = 10};

SENT(gemm_few_f16, few_f16)
SENT(gemm_few_bf16, few_bf16)
SENT(gemm_few_f32, few_f32)
SENT(gemm_large_f16, large_f16)
SENT(gemm_large_f32, large_f32)

/* ---- two operators, each on a stream of its own, in an order that events make ---- */

enum { TURNS = 200 };

static void streams_rank(int rank, const struct ranks *all, void *argument)
{
    struct pair p;

    (void)argument;
    pair_open(&p, rank, all);
    pair_begin(&p);
    for (int turn = 0; turn < 2 * TURNS; turn++) {
        int i = turn % 2;
        be_late(rank, turn, p.streams[i]);
        pair_turn(&p, i);
    }
    pair_check(&p, 2 * TURNS);
    CU(gpu.stream_synchronize(p.streams[1]));
    OK(fcc_noop(p.comm));
    pair_close(&p);
}

static void two_streams(void)
{
    ranks_run(ranks_of_gpus(), streams_rank, NULL);
}

/* ---- what is refused ---- */

static void refused_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_context *context = client_connect(NULL);
    fcc_comm *comm = client_join(context, &all->id, all->n, rank, -1, 0);
    fcc_prepared *prepared;

    (void)argument;
    gpu_open(comm);
    struct product p = product_open(comm, 1);
    struct fcc_gemv_all_reduce_args args = product_args(&p, 0);
    void *stream = stream_open(CUDA_STREAM_OWN_ORDER);
    args.schedule = FCC_SCHEDULE_COMPUTE_ONLY;
    FAILS(fcc_gemv_all_reduce_prepare(comm, &args, &prepared), -EINVAL, "schedule");
    args.schedule = FCC_SCHEDULE_SEQUENTIAL;
    OK(fcc_gemv_all_reduce_prepare(comm, &args, &prepared));
    for (int i = 4; i < 8; i++) {
        gpu_fill(stream, p.x, PRODUCT_K, (float)i);
        OK(fcc_prepared_enqueue(prepared, stream));
        product_fetch(&p, stream);
        CU(gpu.stream_synchronize(stream));
        product_check(&p, gpu.host, (float)i);
    }
    OK(fcc_noop(comm));
    fcc_comm_destroy(comm);
    fcc_disconnect(context);
}

static void refused(void)
{
    ranks_run(ranks_of_gpus(), refused_rank, NULL);
}

static void together_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_context *context = client_connect(NULL);
    fcc_comm *comm = client_join(context, &all->id, 2, rank, 0, 0);
    fcc_prepared *prepared;

    (void)argument;
    struct product p = product_open(comm, 1);
    struct fcc_gemv_all_reduce_args args = product_args(&p, 0);
    FAILS(fcc_gemv_all_reduce_prepare(comm, &args, &prepared), -EOPNOTSUPP, "rank 1");
    product_works(&p, 3);
    fcc_comm_destroy(comm);
    fcc_disconnect(context);
}

static void on_one_gpu(void)
{
    struct test_daemon d;
    struct ranks r;

    daemon_start(&d, (const char *const[]){"--gpu-bind", "own", NULL});
    ranks_start(&r, 2, together_rank, NULL);
    ranks_join(&r);
    daemon_stop(&d);
}

int main(void)
{
    static const struct test tests[] = {
        {"gemv_of_one", gemv_of_one, 0},         {"gemv_row_f32", gemv_row_f32, 0},
        {"gemv_row_f16", gemv_row_f16, 0},       {"gemv_row_bf16", gemv_row_bf16, 0},
        {"gemv_rows_f16", gemv_rows_f16, 0},     {"gemv_many_f16", gemv_many_f16, 0},
        {"gemv_many_f32", gemv_many_f32, 0},     {"gemv_mixed_row", gemv_mixed_row, 0},
        {"gemv_mixed_many", gemv_mixed_many, 0}, {"gemm_few_f16", gemm_few_f16, 0},
        {"gemm_few_bf16", gemm_few_bf16, 0},     {"gemm_few_f32", gemm_few_f32, 0},
        {"gemm_large_f16", gemm_large_f16, 0},   {"gemm_large_f32", gemm_large_f32, 0},
        {"two_streams", two_streams, 0},         {"refused", refused, 0},
        {"on_one_gpu", on_one_gpu, 0},
    };
    return gpus_found() ? tests_run("gpu_prepared", TESTS(tests)) : EXIT_SUCCESS;
}
