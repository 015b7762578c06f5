/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_products.c - gemv_all_reduces that the ranks launch themselves, with the real daemon and the real library on fake GPUs
 * (fake_gpu_rings.c): the cases of product_cases.h in memory of the ranks' own, in buffers, and in graphs, mixed with sums; what ranks hear if
 * they differ; and what fccd launches instead. Real GPUs are in test_gpu_products.c.
 */
#include "tests/fake_gpu/fake_gpu_products.h"
#include "tests/operators/product_errors.h"

enum { CASES = 60 };

/* ---- results ---- */

static void sum_works(const struct rank *r, int64_t n)
{
    const struct fcc_all_reduce_args args = {.in = fcc_tensor_1d(FCC_ADDRESS, r->memory[PART_X], FCC_F32, n),
                                             .out = fcc_tensor_1d(FCC_ADDRESS, r->memory[PART_W], FCC_F32, n)};
    float *in = (float *)(uintptr_t)r->memory[PART_X], *out = (float *)(uintptr_t)r->memory[PART_W];
    const int64_t ranks_sum = (int64_t)r->n * (r->n + 1) / 2;

    for (int64_t i = 0; i < n; i++)
        in[i] = (float)(i % 100 * (r->rank + 1));
    OK(fcc_all_reduce_enqueue(r->comm, &args, r->stream, NULL));
    stream_sync(r->stream);
    for (int64_t i = 0; i < n; i++)
        CHECK(out[i] == (float)(i % 100 * ranks_sum));
}

static void random_rank(int rank, const struct ranks *all, void *argument)
{
    struct product_case c;
    struct rank r;
    fcc_context *context = own_open(&r, rank, all);

    draw_state = *(const uint64_t *)argument;
    if (draw(2))
        OK(fcc_collectives_prepare(r.comm)); /* otherwise the first product does it */
    for (int i = 0; i < test_rounds(CASES); i++) {
        do
            case_draw(&c, r.n);
        while (c.m * c.n * (c.k[0] + 1) > 1000000 || c.n * (c.k[0] + c.k[r.n - 1]) > 1000000);
        if (i % 7 == 3)
            OK(case_enqueue(&r, &(struct product_case){.dtype = c.dtype, .m = c.m, .n = c.n})); /* K of 0 */
        case_fill(&r, &c);
        OK(case_enqueue(&r, &c));
        for (int again = (int)draw(3); again > 0 && !c.in_place; again--)
            OK(case_enqueue(&r, &c));
        case_check(&r, &c, i);
        if (i % 5 == 2)
            sum_works(&r, i % 2 ? 1000 : 100001);
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
    static const int64_t ms[2] = {1, 5};
    struct product_case c[2];
    void *graphs[2];
    struct rank r;
    fcc_context *context = own_open(&r, rank, all);

    (void)argument;
    OK(fcc_collectives_prepare(r.comm));
    for (int i = 0; i < 2; i++) {
        c[i] = case_of(&r, FCC_F32, ms[i], 100);
        c[i].bias = i;
        driver->capture_begin();
        for (int layer = 0; layer < 4; layer++)
            OK(case_enqueue(&r, &c[i]));
        graphs[i] = driver->capture_end();
    }
    for (int i = 0; i < REPLAYS; i++) {
        const struct product_case *now = &c[i % 3 == 0];
        case_fill(&r, now);
        if (i % 4 == 3)
            OK(case_enqueue(&r, now));
        else
            driver->graph_launch(graphs[i % 3 == 0], r.stream);
        case_check(&r, now, i);
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

static void wrong_arguments(const struct rank *r)
{
    const bool last = r->rank == r->n - 1;
    struct product_case c = case_of(r, FCC_F32, 2, 16);
    struct fcc_gemv_all_reduce_args args = {
        .x = tensor_of(r, &c, PART_X), .w = tensor_of(r, &c, PART_W), .y = tensor_of(r, &c, PART_Y)};
    const struct fcc_gemv_all_reduce_args right = args;
    struct fcc_epilogue epilogue = {.bias = {.buffer = NULL}};

#define WRONG(change, ...)                                                                                                     \
    do {                                                                                                                       \
        args = right;                                                                                                          \
        if (last)                                                                                                              \
            change;                                                                                                            \
        error_is(r, fcc_gemv_all_reduce_enqueue(r->comm, &args, r->stream, NULL), __VA_ARGS__);                                \
    } while (0)
    WRONG(args.x.buffer = NULL, "gemv_all_reduce: x: absent: it must be there");
    WRONG(args.x.offset = 0, "gemv_all_reduce: x: address 0: not allowed");
    WRONG(args.x.dtype = FCC_I32, "gemv_all_reduce: x: dtype i32: allowed: f32, f16, bf16, f8e4m3");
    WRONG(args.w.dtype = FCC_F16, "gemv_all_reduce: w: dtype f16: allowed are f32 (x's) and f8e4m3");
    WRONG(args.x.ndim = 1, "gemv_all_reduce: x: 1 dimensions: allowed is 2");
    WRONG(args.x.ndim = 9, "gemv_all_reduce: x: 9 dimensions: allowed are 1 to 4");
    WRONG(args.x.shape[0] = 65, "gemv_all_reduce: x: shape[0] 65: allowed are 1 to 64");
    WRONG(args.y.shape[0] = 3, "gemv_all_reduce: y: shape[0] 3: allowed is 2 (x's shape[0], M)");
    WRONG(args.y.shape[1] = 17, "gemv_all_reduce: y: shape[1] 17: allowed is 16 (w's shape[0], N)");
    WRONG(args.w.shape[0] = -1, "gemv_all_reduce: w: shape[0] -1: allowed are 0 to");
    WRONG(args.x.stride[1] = 2, "gemv_all_reduce: x: stride[1] 2: allowed is 1");
    WRONG(args.y.stride[0] = 1, "gemv_all_reduce: y: stride[0] 1: elements overlap");
    WRONG(args.reserved[2] = 7, "gemv_all_reduce: reserved[2]: 7: must be 0");
    WRONG(args.y.offset += 2, "gemv_all_reduce: y: address 0x");
#undef WRONG
    args = right;
    epilogue.residual = right.y;
    epilogue.residual.offset += last ? 4 : 0;
    error_is(r, fcc_gemv_all_reduce_epilogue_enqueue(r->comm, &args, &epilogue, r->stream, NULL),
             "gemv_all_reduce: residual: overlaps y: allowed is the same place, or apart from it");
    epilogue.residual = (struct fcc_tensor){.buffer = NULL};
    epilogue.bias = fcc_tensor_1d(FCC_ADDRESS, r->memory[PART_BIAS], FCC_F32, last ? 15 : 16);
    error_is(r, fcc_gemv_all_reduce_epilogue_enqueue(r->comm, &args, &epilogue, r->stream, NULL),
             "gemv_all_reduce: bias: shape[0] 15: allowed is 16 (N)");
}

static void errors_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;
    fcc_context *context = own_open(&r, rank, all);

    (void)argument;
    product_errors(&r);
    wrong_arguments(&r);
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

/* ---- in buffers: the ranks launch products once they have rings; but for other schedules ---- */

static void buffers_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;
    fcc_context *context = own_open(&r, rank, all);
    struct product p = product_open(r.comm);
    const struct product_case c = case_of(&r, FCC_F32, 2, 64);

    (void)argument;
    const struct fcc_gemv_all_reduce_args own = {
        .x = tensor_of(&r, &c, PART_X), .w = tensor_of(&r, &c, PART_W), .y = tensor_of(&r, &c, PART_Y)};
    product_works(&p, r.stream);
    OK(fcc_noop(r.comm));
    const int launched = fake->enqueued;
    CHECK(launched > 0); /* fccd's */
    OK(fcc_collectives_prepare(r.comm));
    OK(fcc_noop(r.comm));
    const int before = fake->enqueued;
    for (int i = 0; i < 10; i++)
        product_enqueue(&p, r.stream, NULL);
    stream_sync(r.stream);
    CHECK(fake->enqueued == before); /* none was fccd's */
    p.args.schedule = FCC_SCHEDULE_SEQUENTIAL;
    product_enqueue(&p, r.stream, NULL);
    stream_sync(r.stream);
    CHECK(fake->enqueued > before);
    struct fcc_gemv_all_reduce_args later = own;
    later.schedule = FCC_SCHEDULE_SEQUENTIAL;
    FAILS(fcc_gemv_all_reduce_enqueue(r.comm, &later, r.stream, NULL), -EOPNOTSUPP,
          "schedule: sequential: allowed with FCC_ADDRESS where all ranks can load cuBLAS");
    FAILS(fcc_gemv_all_reduce(r.comm, &own), -EOPNOTSUPP, "FCC_ADDRESS: allowed only where this process launches");
    (void)fcc_comm_error_wait(r.comm, -1);
    shape_works(&r, 3, 40);
    own_close(&r, context);
}

static void buffers(void)
{
    fake_ranks_run(PAIR, buffers_rank, NULL);
}

/* ---- the vendor's library ---- */

/* 200 rows, which only the library takes. */
static void library_rank(int rank, const struct ranks *all, void *argument)
{
    enum { ROWS = 200 };
    struct rank r;

    fake->library = 1;
    fcc_context *context = own_open(&r, rank, all);
    struct product_case c = case_of(&r, FCC_F32, ROWS, 30);
    struct fcc_gemv_all_reduce_args args;
    const bool last = rank == all->n - 1;

    (void)argument;
    OK(fcc_collectives_prepare(r.comm));
    case_fill(&r, &c);
    OK(case_enqueue(&r, &c));
    case_check(&r, &c, 0);
    args = (struct fcc_gemv_all_reduce_args){
        .x = tensor_of(&r, &c, PART_X), .w = tensor_of(&r, &c, PART_W), .y = tensor_of(&r, &c, PART_Y)};
    args.schedule = FCC_SCHEDULE_FUSED;
    error_is(&r, fcc_gemv_all_reduce_enqueue(r.comm, &args, r.stream, NULL), "x: shape[0] 200: allowed are 1 to 64");
    args.schedule = last ? FCC_SCHEDULE_SEQUENTIAL : FCC_SCHEDULE_FUSED;
    args.x.shape[0] = args.y.shape[0] = 2;
    error_is(&r, fcc_gemv_all_reduce_enqueue(r.comm, &args, r.stream, NULL), "gemv_all_reduce: schedule: rank ");
    args.schedule = FCC_SCHEDULE_AUTO;
    args.x.shape[0] = args.y.shape[0] = last ? 1 : 2;
    error_is(&r, fcc_gemv_all_reduce_enqueue(r.comm, &args, r.stream, NULL), "gemv_all_reduce: y: shape[0]: rank ");
    args.x.shape[0] = args.y.shape[0] = 65537;
    error_is(&r, fcc_gemv_all_reduce_enqueue(r.comm, &args, r.stream, NULL), "x: shape[0] 65537: allowed are 1 to 65536");
    shape_works(&r, 3, 40);
    own_close(&r, context);
}

static void library_random_rank(int rank, const struct ranks *all, void *argument)
{
    fake->library = 1;
    random_rank(rank, all, argument);
}

static void library(void)
{
    fake_ranks_run(PAIR, library_rank, NULL);
}

static void library_cases(void)
{
    fake_cases_run(library_random_rank);
}

/* One rank's process lacks it: none uses it. */
static void lacking_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;

    fake->library = 1;
    if (rank == 1)
        CHECK(setenv("FAKE_GPU_WITHOUT_LIBRARY", "1", 1) == 0);
    fcc_context *context = own_open(&r, rank, all);
    struct product_case c = case_of(&r, FCC_F32, 65, 30);
    struct fcc_gemv_all_reduce_args args = {
        .x = tensor_of(&r, &c, PART_X), .w = tensor_of(&r, &c, PART_W), .y = tensor_of(&r, &c, PART_Y)};

    (void)argument;
    OK(fcc_collectives_prepare(r.comm));
    error_is(&r, fcc_gemv_all_reduce_enqueue(r.comm, &args, r.stream, NULL), "x: shape[0] 65: allowed are 1 to 64");
    args.schedule = FCC_SCHEDULE_SEQUENTIAL;
    FAILS(fcc_gemv_all_reduce_enqueue(r.comm, &args, r.stream, NULL), -EOPNOTSUPP,
          "schedule: sequential: allowed with FCC_ADDRESS where all ranks can load cuBLAS");
    (void)fcc_comm_error_wait(r.comm, -1);
    shape_works(&r, 3, 40);
    own_close(&r, context);
}

static void lacking(void)
{
    fake_ranks_run(PAIR, lacking_rank, NULL);
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {
        {"random_cases", random_cases, 120},       {"graphs", graphs, 60},   {"errors", errors, 120},
        {"errors_of_three", errors_of_three, 120}, {"buffers", buffers, 60}, {"library", library, 120},
        {"library_cases", library_cases, 120},     {"lacking", lacking, 60}};

    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_products", TESTS(tests));
}
