/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_refusals.c - what ends one operator, or one call, and nothing else, with the real daemon and the real library
 * on fake GPUs: what a kernel finds wrong, and what the GPUs' runtime refuses.
 */
#include "tests/fake_gpu/fake_gpu_bed.h"

/* ---- what a kernel finds wrong is told in the cpu's words ---- */

enum { ROWS = 50, DIM = 8, BATCH = 40, POOL = 5, BAG = 7, POSITION = 3 };

/* Bags of one table per rank; rank 1 has an index that is none. */
static struct fcc_embedding_all_to_all_args bags_open(fcc_comm *comm, bool wrong)
{
    static const int64_t rows = ROWS;
    int64_t offsets[BATCH + 1], row = ROWS;
    fcc_buffer *table, *indices, *begins, *out;
    int n = fcc_comm_size(comm);

    for (int i = 0; i <= BATCH; i++)
        offsets[i] = i * POOL;
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, ROWS * DIM * sizeof(float), &table));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, BATCH * POOL * sizeof(int64_t), &indices));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, sizeof(offsets), &begins));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, (size_t)BATCH * (size_t)n * DIM * sizeof(float), &out));
    OK(fcc_buffer_write(begins, 0, offsets, sizeof(offsets)));
    if (wrong)
        OK(fcc_buffer_write(indices, (BAG * POOL + POSITION) * sizeof(row), &row, sizeof(row)));
    return (struct fcc_embedding_all_to_all_args){.tables = fcc_tensor_2d(table, 0, FCC_F32, ROWS, DIM),
                                                  .table_rows = &rows,
                                                  .num_tables = 1,
                                                  .indices = fcc_tensor_1d(indices, 0, FCC_I64, BATCH * POOL),
                                                  .offsets = fcc_tensor_1d(begins, 0, FCC_I64, BATCH + 1),
                                                  .batch = BATCH,
                                                  .out = fcc_tensor_3d(out, 0, FCC_F32, BATCH / n, n, DIM)};
}

/* The fake kernel says of rank 1 what a real one would have found. */
static void failure_arm(int rank)
{
    if (rank != 1)
        return;
    fake->failing_rank = 1;
    fake->failure = (struct gpu_failure){.kind = GPU_FAILURE_INDEX,
                                         .at = BAG * POOL + POSITION,
                                         .value = ROWS,
                                         .bag = BAG,
                                         .position = POSITION,
                                         .most = ROWS - 1};
    fake->failing = 1;
}

static void failure_rank(int rank, const struct ranks *all, void *argument)
{
    const struct fcc_unique_id *second = argument;
    struct fcc_embedding_all_to_all_args args;
    char text[512];
    fcc_comm *on_cpu;
    fcc_request *request;

    driver_use();
    fcc_context *context = client_connect(NULL);
    OK(fcc_comm_init(context, second, all->n, rank, NULL, &on_cpu));
    args = bags_open(on_cpu, rank == 1);
    FAILS(fcc_embedding_all_to_all(on_cpu, &args), -ERANGE, "rank 1", "table 0", "bag 7", "position 3");
    (void)snprintf(text, sizeof(text), "%s", fcc_last_error());
    struct product p = product_open(client_join(context, &all->id, all->n, rank, 0));
    args = bags_open(p.comm, false);
    void *stream = stream_open();
    failure_arm(rank);
    FAILS(fcc_embedding_all_to_all(p.comm, &args), -ERANGE, text);
    OK(fcc_gemv_all_reduce(p.comm, &p.args)); /* all have heard: one can be armed again */
    failure_arm(rank);
    OK(fcc_embedding_all_to_all_enqueue(p.comm, &args, stream, &request));
    FAILS(fcc_request_wait(request, -1), -ERANGE, text);
    product_works(&p, stream);
    stream_close(stream);
    fcc_request_free(request);
    fcc_comm_destroy(on_cpu);
    fcc_comm_destroy(p.comm);
    client_end(context);
}

static void failure_record(void)
{
    struct fcc_unique_id *second = shared_memory(sizeof(*second));
    struct test_daemon d;
    struct ranks r;

    fake_start(&d, GPUS, NULL);
    *second = id_make();
    ranks_start(&r, 2, failure_rank, second);
    ranks_join(&r);
    fake_stop(&d);
}

/* ---- what the GPUs' runtime refuses ends one operator, or one call ---- */

/* Rank 0 says what is to fail, when all have come. */
static void fail_next(int rank, enum fake_call call, uint32_t which, _Atomic int *at, int *turn, int n)
{
    step_meet(at, n, turn);
    if (rank == 0) {
        fake->fail_gpu = which;
        fake->fail = call;
    }
    step_meet(at, n, turn);
}

static void refusal_of_launch(int rank, const struct product *p, void *stream, enum fake_call call, uint32_t which,
                              const char *what, _Atomic int *at, int *turn)
{
    int n = fcc_comm_size(p->comm);
    fcc_request *request;

    fail_next(rank, call, which, at, turn, n);
    FAILS(fcc_gemv_all_reduce(p->comm, &p->args), -EIO, what, "made to fail",
          which ? "rank 1: " : "rank 0: ", which ? "cuda GPU 1" : "cuda GPU 0");
    product_works(p, stream);
    if (call == FAKE_LAUNCH_MAKE)
        return; /* it is made now */
    fail_next(rank, call, which, at, turn, n);
    product_enqueue(p, stream, &request);
    FAILS(fcc_request_wait(request, -1), -EIO, what, "made to fail");
    product_works(p, stream);
    fcc_request_free(request);
}

static void refusals_rank(int rank, const struct ranks *all, void *argument)
{
    _Atomic int *at = argument;
    int n = all->n, turn = 0;
    fcc_buffer *buffer;

    driver_use();
    fcc_context *context = client_connect(NULL);
    for (uint32_t which = 0; which < 2; which++) {
        struct fcc_unique_id *id = (struct fcc_unique_id *)(void *)&at[16] + which;
        fcc_comm *comm = client_join(context, id, n, rank, 0);
        struct product p = product_open(comm);
        void *stream = stream_open();
        fail_next(rank, FAKE_MEMORY_ALLOC, which, at, &turn, n);
        FAILS(fcc_gemv_all_reduce(comm, &p.args), -ENOMEM, which ? "rank 1" : "rank 0", "staging memory", "made to fail");
        refusal_of_launch(rank, &p, stream, FAKE_LAUNCH_MAKE, which, "preparing an operator", at, &turn);
        refusal_of_launch(rank, &p, stream, FAKE_LAUNCH_START, which, "launching an operator", at, &turn);
        fail_next(rank, FAKE_MEMORY_ALLOC, which, at, &turn, n);
        FAILS(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, 100, &buffer), -ENOMEM, "made to fail");
        fail_next(rank, FAKE_MEMORY_ALLOC, which, at, &turn, n);
        if (rank == (int)which)
            FAILS(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, 100, &buffer), -ENOMEM, "made to fail");
        product_works(&p, stream);
        stream_close(stream);
        fcc_comm_destroy(comm);
    }
    client_end(context);
}

static void refusals(void)
{
    _Atomic int *at = shared_memory(16 * sizeof(*at) + 2 * sizeof(struct fcc_unique_id));
    struct test_daemon d;
    struct ranks r;

    fake_start(&d, GPUS, NULL);
    for (int i = 0; i < 2; i++)
        ((struct fcc_unique_id *)(void *)&at[16])[i] = id_make();
    ranks_start(&r, 2, refusals_rank, at);
    ranks_join(&r);
    fake_stop(&d);
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {
        {"failure_record", failure_record, 0},
        {"refusals", refusals, 0},
    };
    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_refusals", TESTS(tests));
}
