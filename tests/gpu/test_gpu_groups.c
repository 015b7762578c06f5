/* SPDX-License-Identifier: MIT
 *
 * test_gpu_groups.c - operators in groups, through the real daemon on NVIDIA GPUs: each uses what the one before has stored, though
 * no stream has seen its end; and the end of the group is the end of them all.
 */
#include "tests/gpu/gpu_client.h"

enum { N = 512, STEPS = 48, ROUNDS = 40 };

/* Rows 0 to STEPS of n floats on each rank, of which row i + 1 is the sum over the ranks of row i, turned by one element and divided by the
 * number of ranks. That is a power of 2 and the numbers are whole, so all is exact, and all ranks that begin with the same end with that. */
struct chain {
    fcc_comm *comm;
    fcc_buffer *w, *rows;
};

static struct chain chain_open(fcc_comm *comm)
{
    struct chain c = {.comm = comm};
    float *w = calloc((size_t)N * N, sizeof(float));

    CHECK(w != NULL);
    for (int i = 0; i < N; i++)
        w[i * N + (i + 1) % N] = 1.0f / (float)fcc_comm_size(comm);
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, (size_t)N * N * sizeof(float), &c.w));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, (STEPS + 1) * N * sizeof(float), &c.rows));
    OK(fcc_buffer_write(c.w, 0, w, (size_t)N * N * sizeof(float)));
    free(w);
    return c;
}

static void chain_enqueue(const struct chain *c, int step, void *stream)
{
    uint64_t row = N * sizeof(float);
    struct fcc_gemv_all_reduce_args args = {.x = fcc_tensor_2d(c->rows, (uint64_t)step * row, FCC_F32, 1, N),
                                            .w = fcc_tensor_2d(c->w, 0, FCC_F32, N, N),
                                            .y = fcc_tensor_2d(c->rows, (uint64_t)(step + 1) * row, FCC_F32, 1, N),
                                            .schedule = step % 3 == 2 ? FCC_SCHEDULE_SEQUENTIAL : FCC_SCHEDULE_FUSED};

    OK(fcc_gemv_all_reduce_enqueue(c->comm, &args, stream, NULL));
    if (step % 7 == 6)
        OK(fcc_noop_enqueue(c->comm, stream, NULL));
}

/* The stream copies the last row as soon as it may. Before the next round it wipes all rows. */
static void round_run(const struct chain *c, int round, void *stream, float *first, float *last)
{
    uint64_t rows = (uint64_t)(uintptr_t)fcc_buffer_data(c->rows), row = N * sizeof(float);
    uint64_t copied = rows + STEPS * row;

    for (int i = 0; i < N; i++)
        first[i] = (float)((i * 37 + round) % 1024);
    CU(gpu.set(rows, 0xffffffff, (STEPS + 1) * N, stream)); /* not numbers */
    CU(gpu.copy_in(rows, first, row, stream));
    if ((round + fcc_comm_rank(c->comm)) % 4 == 0) /* now one rank is late, now another */
        gpu_delay(stream, 300000);
    fcc_group_begin();
    for (int step = 0; step < STEPS; step++)
        chain_enqueue(c, step, stream);
    OK(fcc_group_end());
    CU(gpu.copy_out(last, copied, row, stream));
    CU(gpu.stream_synchronize(stream));
    for (int i = 0; i < N; i++)
        if (last[i] != first[(i + STEPS) % N])
            check_failed(__FILE__, __LINE__, "rank %d, round %d: element %d is %g, not %g", fcc_comm_rank(c->comm), round, i,
                         (double)last[i], (double)first[(i + STEPS) % N]);
    OK(fcc_comm_error_wait(c->comm, -1));
}

static void chain_rank(int rank, const struct ranks *all, void *argument)
{
    const int *device = argument;
    fcc_context *context = client_connect(NULL);
    fcc_comm *comm = client_join(context, &all->id, all->n, rank, *device, 0);
    float first[N], last[N];

    gpu_open(comm);
    struct chain c = chain_open(comm);
    void *stream = stream_open(CUDA_STREAM_OWN_ORDER);
    OK(fcc_noop(comm));
    for (int round = 0; round < ROUNDS; round++) {
        round_run(&c, round, stream, first, last);
        OK(fcc_noop(comm)); /* nobody wipes rows that others still store to */
    }
    fcc_comm_destroy(comm);
    fcc_disconnect(context);
}

static void chain_run(int device)
{
    struct test_daemon d;
    struct ranks r;

    daemon_start(&d, NULL);
    ranks_start(&r, 2, chain_rank, &device);
    ranks_join(&r);
    daemon_stop(&d);
}

static void chain(void)
{
    chain_run(-1);
}

static void chain_on_one_gpu(void)
{
    chain_run(0);
}

/* ---- errors ---- */

enum { BAD = 2, PRODUCTS = 5 };

/* One of the group is refused, at once and before the others have run: the stream still waits for those. */
static void refused_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_context *context = client_connect(NULL);
    fcc_comm *comm = client_join(context, &all->id, all->n, rank, -1, 0);
    float *y = calloc((size_t)PRODUCTS * PRODUCT_N, sizeof(float));

    (void)argument;
    CHECK(y != NULL);
    gpu_open(comm);
    struct product p = product_open(comm, PRODUCTS);
    void *stream = stream_open(CUDA_STREAM_OWN_ORDER);
    gpu_fill(stream, p.x, PRODUCT_K, 3);
    if (rank == 0)
        gpu_delay(stream, 20000000);
    fcc_group_begin();
    for (int i = 0; i < PRODUCTS; i++) {
        struct fcc_gemv_all_reduce_args args = product_args(&p, i);
        if (i == BAD)
            args.y.shape[1]++; /* N of w and y differ */
        OK(fcc_gemv_all_reduce_enqueue(comm, &args, stream, NULL));
    }
    OK(fcc_group_end());
    CU(gpu.copy_out(y, (uint64_t)(uintptr_t)fcc_buffer_data(p.y), (size_t)PRODUCTS * PRODUCT_N * sizeof(float), stream));
    CU(gpu.stream_synchronize(stream));
    for (int i = 0; i < PRODUCTS; i++)
        if (i != BAD)
            product_check(&p, y + (size_t)i * PRODUCT_N, 3);
    CHECK(fcc_comm_error_wait(comm, -1) == -EINVAL);
    free(y);
    fcc_comm_destroy(comm);
    fcc_disconnect(context);
}

static void one_is_refused(void)
{
    struct test_daemon d;
    struct ranks r;

    daemon_start(&d, NULL);
    ranks_start(&r, 2, refused_rank, NULL);
    ranks_join(&r);
    daemon_stop(&d);
}

int main(void)
{
    static const struct test tests[] = {
        {"chain", chain, 0},
        {"chain_on_one_gpu", chain_on_one_gpu, 0},
        {"one_is_refused", one_is_refused, 0},
    };

    return gpus_found() ? tests_run("gpu_groups", TESTS(tests)) : EXIT_SUCCESS;
}
