/* SPDX-License-Identifier: MIT
 *
 * test_gpu_products_ends.c - gemv_all_reduce through rings on NVIDIA GPUs: ranks that differ, which all hear of, and which does not end the
 * communicator; what is refused; and ranks that do not come, or give up.
 */
#include "tests/gpu/gpu_ends.h"
#include "tests/gpu/gpu_products.h"
#include "tests/operators/product_errors.h"

static void stream_settle(const struct rank *r)
{
    CU(gpu.stream_synchronize(r->stream));
}

/* ---- errors ---- */

static void errors_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;

    (void)argument;
    rank_open(&r, rank, all, 0);
    product_errors(&r);
    rank_close(&r);
}

static void errors(void)
{
    ranks_of_gpus_run(errors_rank, NULL);
}

/* ---- a rank that does not come, and one that gives up ---- */

static void *runs_capture(const struct rank *r, const struct product_case *c)
{
    CU(gpu.capture_begin(r->stream, CUDA_CAPTURE_GLOBAL));
    for (int i = 0; i < 3; i++)
        OK(case_enqueue(r, c));
    return capture_finish(r->stream);
}

struct end {
    bool aborts;
    int64_t m;
};

static void ends_rank(int rank, const struct ranks *all, void *argument)
{
    const struct end *end = argument;
    struct product_case c;
    struct rank r;
    void *graph;

    rank_open(&r, rank, all, LIMIT_MS);
    c = case_of(&r, FCC_F16, end->m, 512);
    shape_works(&r, end->m, 512);
    graph = runs_capture(&r, &c);
    int status = replays_end(r.comm, rank, r.stream, graph, end->aborts, "gemv_all_reduce");
    CHECK(case_enqueue(&r, &c) == status);
    replays_over(r.comm, rank, r.stream, graph);
}

static void late(void)
{
    ranks_of_gpus_run(ends_rank, &(struct end){.aborts = false, .m = 1});
    ranks_of_gpus_run(ends_rank, &(struct end){.aborts = false, .m = 16});
}

static void aborted(void)
{
    ranks_of_gpus_run(ends_rank, &(struct end){.aborts = true, .m = 1});
    ranks_of_gpus_run(ends_rank, &(struct end){.aborts = true, .m = 16});
}

/* ---- a capture on one rank only is no run; two runs at a time end the communicator ---- */

static void clash_rank(int rank, const struct ranks *all, void *argument)
{
    struct product_case c;
    struct rank r;
    void *other;

    (void)argument;
    rank_open(&r, rank, all, 0);
    c = case_of(&r, FCC_F16, 1, 512);
    case_fill(&r, &c);
    OK(case_enqueue(&r, &c));
    case_check(&r, &c, 0);
    other = stream_open(CUDA_STREAM_OWN_ORDER);
    OK(fcc_noop(r.comm));
    /* Rank 0's two runs wait for the other ranks, who come later, so that they are under way at a time. */
    if (rank == 0) {
        OK(case_enqueue(&r, &c));
        void *own = r.stream;
        r.stream = other;
        OK(case_enqueue(&r, &c));
        r.stream = own;
        CU(gpu.stream_synchronize(own));
        CU(gpu.stream_synchronize(other));
    } else {
        (void)usleep(300000);
        OK(case_enqueue(&r, &c));
        (void)case_enqueue(&r, &c);
        CU(gpu.stream_synchronize(r.stream));
    }
    int status = fcc_noop(r.comm);
    printf("rank %d heard: %d: %s\n", rank, status, fcc_last_error());
    CHECK(status == -EINVAL && strstr(fcc_last_error(), "two of its runs were under way at a time"));
    fcc_comm_destroy(r.comm);
    fcc_disconnect(comm_context());
}

static void clashes(void)
{
    ranks_of_gpus_run(clash_rank, NULL);
}

int main(void)
{
    static const struct test tests[] = {
        {"errors", errors, 100}, {"late", late, 60}, {"aborted", aborted, 60}, {"clashes", clashes, 60}};

    if (!gpus_found())
        return EXIT_SUCCESS;
    product_schedule = FCC_SCHEDULE_FUSED;
    return tests_run("gpu_products_ends", TESTS(tests));
}
