/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_rings_elsewhere.c - collectives of ranks on fake GPUs that do not launch any themselves: several on a GPU, on several nodes, or with
 * a request. fccd launches them, and what needs the ranks' own kernels is refused with the reason.
 */
#include "tests/fake_gpu/fake_gpu_own.h"

static void captures_are_refused(const struct rank *r, const struct fcc_all_reduce_args *sum, const char *says)
{
    driver->capture_begin();
    FAILS(fcc_all_reduce_enqueue(r->comm, sum, r->stream, NULL), -EOPNOTSUPP, "all_reduce: ", "being captured into a graph",
          says);
    FAILS(fcc_noop_enqueue(r->comm, r->stream, NULL), -EOPNOTSUPP, "noop: ", "being captured into a graph", says);
    driver->graph_destroy(driver->capture_end());
}

/* fccd launches, from buffers. All that needs the ranks' own kernels is refused with the reason why there are none. */
static void elsewhere_rank(int rank, const struct ranks *all, void *argument)
{
    const char *says = argument;
    struct rank r;
    fcc_context *context = own_open(&r, all, rank, 0);
    fcc_buffer *in, *out;
    float *got = calloc(FEW, sizeof(float));

    OK(fcc_buffer_alloc(r.comm, FCC_BUFFER_LOCAL, FEW * sizeof(float), &in));
    OK(fcc_buffer_alloc(r.comm, FCC_BUFFER_RESULT, FEW * sizeof(float), &out));
    sum_inputs(&r, FEW, 3);
    OK(fcc_buffer_write(in, 0, r.images[0], FEW * sizeof(float)));
    const struct fcc_all_reduce_args sum = {.in = fcc_tensor_1d(in, 0, FCC_F32, FEW),
                                            .out = fcc_tensor_1d(out, 0, FCC_F32, FEW)};
    FAILS(fcc_collectives_prepare(r.comm), -EOPNOTSUPP, says);
    FAILS(fcc_collectives_prepare(r.comm), -EOPNOTSUPP, says); /* is known by now */
    FAILS(sum_enqueue(&r, FEW), -EOPNOTSUPP, "all_reduce: ", says);
    FAILS(fcc_refuse_enqueue(r.comm, "all_reduce", "why", r.stream), -EOPNOTSUPP, says);
    captures_are_refused(&r, &sum, says);
    const struct fcc_all_reduce_args sums[3] = {sum, sum, sum};
    OK(fcc_all_reduce_many_enqueue(r.comm, sums, 3, r.stream)); /* a group */
    stream_sync(r.stream);
    OK(fcc_buffer_read(out, 0, got, FEW * sizeof(float)));
    CHECK(got[0] == ranks_sum(&r, 3) && got[FEW - 1] == got[0]);
    OK(fcc_noop(r.comm));
    while (fcc_comm_error(r.comm)) /* of refused operators that nobody waited for */
        CHECK(strstr(fcc_last_error(), says) != NULL);
    free(got);
    own_close(&r, context);
}

static void elsewhere(int nodes, int n, const char *says)
{
    struct test_daemon d;
    struct ranks r;

    fake_nodes_start(&d, nodes, GPUS, NULL);
    ranks_start(&r, n, elsewhere_rank, (void *)(uintptr_t)says);
    ranks_join(&r);
    CHECK(fake->runs == 0);
    fake_stop(&d);
}

static void several_on_a_gpu(void)
{
    elsewhere(1, GPUS + 1, "rank 3: another rank is on its GPU, 0: each must have its own");
}

/* With GPU_BIND=shared ranks that share a GPU launch collectives, too. */
static void shared_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;
    fcc_context *context = own_open(&r, all, rank, 0);

    (void)argument;
    OK(fcc_collectives_prepare(r.comm));
    sum_works(&r, FEW, 3);
    OK(fcc_noop(r.comm));
    own_close(&r, context);
}

static void several_on_a_shared_gpu(void)
{
    struct test_daemon d;
    struct ranks r;

    fake_start(&d, GPUS, (const char *const[]){"--gpu-bind", "shared", NULL});
    ranks_start(&r, 2 * GPUS, shared_rank, NULL);
    ranks_join(&r);
    CHECK(fake->runs > 0);
    fake_stop(&d);
}

static void several_nodes(void)
{
    elsewhere(2, 2, "the communicator's ranks are on several nodes: allowed on one");
}

/* With a request fccd launches the operator. */
static void request_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;
    fcc_context *context = own_open(&r, all, rank, 0);
    struct product p = product_open(r.comm);
    const struct fcc_all_reduce_args own = sum_args(&r, FEW), sum = {.in = fcc_tensor_1d(p.args.w.buffer, 0, FCC_F32, FEW),
                                                                     .out = fcc_tensor_1d(p.args.y.buffer, 0, FCC_F32, FEW)};
    fcc_request *request = NULL;

    (void)argument;
    OK(fcc_collectives_prepare(r.comm));
    FAILS(fcc_all_reduce_enqueue(r.comm, &own, r.stream, &request), -EOPNOTSUPP,
          "all_reduce: FCC_ADDRESS: ", "without a request");
    FAILS(fcc_all_reduce_start(r.comm, &own, &request), -EOPNOTSUPP, "all_reduce: FCC_ADDRESS: ");
    FAILS(fcc_all_reduce(r.comm, &own), -EOPNOTSUPP, "all_reduce: FCC_ADDRESS: ");
    driver->capture_begin();
    FAILS(fcc_all_reduce_enqueue(r.comm, &sum, r.stream, &request), -EOPNOTSUPP, "captured into a graph", "without a request");
    driver->graph_destroy(driver->capture_end());
    int before = fake->runs;
    OK(fcc_all_reduce_enqueue(r.comm, &sum, r.stream, &request));
    OK(fcc_request_wait(request, -1));
    fcc_request_free(request);
    OK(fcc_noop(r.comm));
    CHECK(fake->runs == before);
    OK(fcc_noop(r.comm));
    sum_works(&r, FEW, 2);
    own_close(&r, context);
}

static void with_a_request(void)
{
    fake_ranks_run(PAIR, request_rank, NULL);
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {{"several_on_a_gpu", several_on_a_gpu, 60},
                                        {"several_on_a_shared_gpu", several_on_a_shared_gpu, 60},
                                        {"several_nodes", several_nodes, 60},
                                        {"with_a_request", with_a_request, 60}};

    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_rings_elsewhere", TESTS(tests));
}
