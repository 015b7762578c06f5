/* SPDX-License-Identifier: MIT
 *
 * test_gpu_products_ends.c - gemv_all_reduce through rings on NVIDIA GPUs: ranks that differ, which all hear of, and which does not end the
 * communicator; what is refused; and ranks that do not come, or give up.
 */
#include "tests/gpu/gpu_products.h"

enum { LIMIT_MS = 1000 };

static void ranks_of_gpus_run(void (*run)(int, const struct ranks *, void *), void *argument)
{
    ranks_run(gpus < RANKS_MOST ? gpus : RANKS_MOST, run, argument);
}

static struct product_case case_of(const struct rank *r, enum fcc_dtype dtype, int64_t m, int64_t n)
{
    static unsigned seed;
    struct product_case c = {.dtype = dtype, .m = m, .n = n, .seed = ++seed};

    for (int p = 0; p < r->n; p++)
        c.k[p] = 64;
    return c;
}

static void shape_works(const struct rank *r, int64_t m, int64_t n)
{
    const struct product_case c = case_of(r, FCC_F16, m, n);

    case_fill(r, &c);
    OK(case_enqueue(r, &c));
    case_check(r, &c, 0);
}

/* ---- errors ---- */

/* All ranks have it, the kernels' streams go on, and the communicator, too. */
static void error_is(const struct rank *r, int status, const char *text)
{
    CU(gpu.stream_synchronize(r->stream));
    int got = status < 0 ? status : fcc_comm_error(r->comm);
    if (got != -EINVAL || !strstr(fcc_last_error(), text))
        check_failed(__FILE__, __LINE__, "rank %d: %d (%s), expected %d (%s)", r->rank, got, fcc_last_error(), -EINVAL, text);
    if (status < 0)
        (void)fcc_comm_error(r->comm); /* the run itself says the same */
    OK(fcc_comm_error(r->comm));
    shape_works(r, 1, 256);
    shape_works(r, 8, 512);
}

/* The last rank has another shape than the others. */
static void shapes_differ(const struct rank *r, int64_t m, int64_t n, int64_t other_m, int64_t other_n, const char *text)
{
    const bool last = r->rank == r->n - 1;
    const struct product_case c = case_of(r, FCC_F16, last ? other_m : m, last ? other_n : n);

    error_is(r, case_enqueue(r, &c), text);
}

static void operators_differ(const struct rank *r, int64_t elements)
{
    const struct product_case c = case_of(r, FCC_F16, 4, 128);
    const struct fcc_all_reduce_args sum = {.in = fcc_tensor_1d(FCC_ADDRESS, r->memory[PART_X], FCC_F32, elements),
                                            .out = fcc_tensor_1d(FCC_ADDRESS, r->memory[PART_Y], FCC_F32, elements)};

    error_is(r, r->rank == r->n - 1 ? fcc_all_reduce_enqueue(r->comm, &sum, r->stream, NULL) : case_enqueue(r, &c), "called");
}

static void refusals(const struct rank *r)
{
    const bool last = r->rank == r->n - 1;
    struct product_case c = case_of(r, FCC_F16, 4, 128);
    struct fcc_gemv_all_reduce_args args = {
        .x = tensor_of(r, &c, PART_X), .w = tensor_of(r, &c, PART_W), .y = tensor_of(r, &c, PART_Y)};

    if (last)
        args.w.shape[1] = 63;
    error_is(r, fcc_gemv_all_reduce_enqueue(r->comm, &args, r->stream, NULL),
             "gemv_all_reduce: w: shape[1] 63: allowed is 64 (x's shape[1], K)");
    args.w.shape[1] = 64;
    args.y.offset = last ? args.x.offset : args.y.offset;
    error_is(r, fcc_gemv_all_reduce_enqueue(r->comm, &args, r->stream, NULL), "gemv_all_reduce: x: overlaps y");
    args.y = tensor_of(r, &c, PART_Y);
    args.x.offset += last;
    error_is(r, fcc_gemv_all_reduce_enqueue(r->comm, &args, r->stream, NULL), "gemv_all_reduce: x: address");
    c = case_of(r, FCC_F16, 64, 40000); /* in parts, of which only the last rank knows that they will not be */
    int status = last ? fcc_refuse_enqueue(r->comm, "gemv_all_reduce", "not today", r->stream) : case_enqueue(r, &c);
    CHECK(status == 0);
    CU(gpu.stream_synchronize(r->stream));
    status = fcc_comm_error(r->comm);
    CHECK(last ? status == 0 : status == -EINVAL && strstr(fcc_last_error(), "gemv_all_reduce: not today"));
    shape_works(r, 1, 256);
}

static void errors_rank(int rank, const struct ranks *all, void *argument)
{
    struct product_case c;
    struct rank r;

    (void)argument;
    rank_open(&r, rank, all, 0);
    const bool last = rank == r.n - 1;
    OK(fcc_collectives_prepare(r.comm));
    shapes_differ(&r, 1, 512, 2, 512, "gemv_all_reduce: y: shape[0]: rank");
    shapes_differ(&r, 2, 64, 1, 128, "gemv_all_reduce: y: shape[0]: rank");
    shapes_differ(&r, 8, 512, 8, 520, "gemv_all_reduce: y: shape[1]: rank");
    shapes_differ(&r, 64, 256, 64, 40000, "gemv_all_reduce: y: shape[1]: rank"); /* of many parts, and of one */
    shapes_differ(&r, 64, 0, 64, 40000, "gemv_all_reduce: y: shape[1]: rank");
    c = case_of(&r, last ? FCC_BF16 : FCC_F16, 4, 128);
    error_is(&r, case_enqueue(&r, &c), "gemv_all_reduce: y: dtype: rank");
    c = case_of(&r, FCC_F16, 4, 128);
    c.bias = last;
    error_is(&r, case_enqueue(&r, &c), "gemv_all_reduce: bias: rank");
    c = case_of(&r, FCC_F32, 4, 128);
    c.bias = true;
    c.residual = !last;
    error_is(&r, case_enqueue(&r, &c), "gemv_all_reduce: residual: rank");
    operators_differ(&r, 1000);
    operators_differ(&r, 1000000);
    refusals(&r);
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
    double begun;
    struct rank r;
    void *graph;

    rank_open(&r, rank, all, LIMIT_MS);
    c = case_of(&r, FCC_F16, end->m, 512);
    shape_works(&r, end->m, 512);
    graph = runs_capture(&r, &c);
    for (int i = 0; i < 3; i++)
        CU(gpu.graph_launch(graph, r.stream));
    CU(gpu.stream_synchronize(r.stream));
    OK(fcc_noop(r.comm));
    begun = now_ms();
    if (rank > 0) {
        CU(gpu.graph_launch(graph, r.stream));
        CU(gpu.stream_synchronize(r.stream));
        printf("rank %d: the replay ended after %.0f ms\n", rank, now_ms() - begun);
    } else if (end->aborts) {
        (void)usleep(200000);
        OK(fcc_comm_abort(r.comm, "the loss is not a number"));
    } else {
        (void)usleep(LIMIT_MS * 3000);
    }
    int status = fcc_noop(r.comm);
    printf("rank %d heard: %d: %s\n", rank, status, fcc_last_error());
    CHECK(status == (end->aborts ? -ECONNABORTED : -ETIMEDOUT));
    CHECK(strstr(fcc_last_error(), end->aborts ? "the loss is not a number" : "rank 0 did not come within the time limit") !=
          NULL);
    CHECK(strstr(fcc_last_error(), end->aborts ? "" : "gemv_all_reduce") != NULL);
    CHECK(case_enqueue(&r, &c) == status);
    begun = now_ms();
    for (int i = 0; i < 10; i++)
        CU(gpu.graph_launch(graph, r.stream));
    CU(gpu.stream_synchronize(r.stream));
    printf("rank %d: ten replays that were over took %.3f ms\n", rank, now_ms() - begun);
    fcc_comm_destroy(r.comm);
    fcc_disconnect(comm_context());
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
    return tests_run("gpu_products_ends", TESTS(tests));
}
