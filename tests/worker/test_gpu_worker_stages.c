/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_stages.c - products and all_reduce with epilogues that the ranks launch themselves, with the real daemon and the real library on fake GPUs: the
 * cases of stage_cases.h in memory of the ranks' own, in graphs, what ranks hear if they differ, and what fccd does not launch. Real GPUs are in
 * test_gpu_stages.c.
 */
#include "tests/fake_gpu/fake_gpu_own.h"
#include "tests/operators/stage_cases.h"

#ifdef __SANITIZE_THREAD__
enum { STAGE_CASES = 30 };
#else
enum { STAGE_CASES = 100 };
#endif

static void random_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;
    fcc_context *context = own_open(&r, all, rank, 0);

    random_state = *(const uint64_t *)argument;
    for (unsigned i = 1; i <= STAGE_CASES; i++) {
        const struct stage_case c = stage_draw(all->n, i, true);
        stage_run(&r, &c);
        OK(fcc_comm_error(r.comm));
    }
    own_close(&r, context);
}

static void random_cases(void)
{
    fake_cases_run(random_rank);
}

/* A row-parallel layer with the residual and the norm behind it. */
static struct stage_case layer_case(const struct rank *r, enum stage_op op)
{
    struct stage_case c = {.op = op,
                           .dtype = FCC_BF16,
                           .n = 96,
                           .residual = true,
                           .in_place = true,
                           .sum = true,
                           .weight = true,
                           .norm = FCC_RMS_NORM,
                           .eps = 1e-5f,
                           .quantization = FCC_QUANTIZED_BY_ROW,
                           .seed = 11};

    for (int p = 0; p < r->n; p++) {
        c.m[p] = 3;
        c.k[p] = 16;
    }
    return c;
}

/* ---- graphs ---- */

static void graphs_rank(int rank, const struct ranks *all, void *argument)
{
    enum { REPLAYS = 5 };
    struct rank r;
    fcc_context *context = own_open(&r, all, rank, 0);
    const struct stage_case c = layer_case(&r, OP_GEMV);
    const struct fcc_tensor y = tensor_in(&r, 1, 0, c.dtype, c.m[0], c.n);
    struct fcc_epilogue e;

    (void)argument;
    OK(fcc_collectives_prepare(r.comm));
    epilogue_fill(&r, &c, c.m[0], &y, &e);
    driver->capture_begin();
    OK(stage_call(&r, &c, &y, &e));
    void *graph = driver->capture_end();
    for (int i = 0; i < REPLAYS; i++) {
        stage_prepare(&r, &c, &y, &e);
        if (i == 2)
            OK(stage_call(&r, &c, &y, &e));
        else
            driver->graph_launch(graph, r.stream);
        stage_check(&r, &c);
    }
    driver->graph_destroy(graph);
    own_close(&r, context);
}

static void graphs(void)
{
    fake_ranks_run(PAIR, graphs_rank, NULL);
}

/* ---- what is refused, on all ranks ---- */

static void errors_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;
    fcc_context *context = own_open(&r, all, rank, 0);
    const bool last = rank == all->n - 1;
    const struct stage_case c = layer_case(&r, OP_GEMV);
    const struct fcc_tensor y = tensor_in(&r, 1, 0, c.dtype, c.m[0], c.n);
    struct fcc_epilogue good, e;

    (void)argument;
    epilogue_fill(&r, &c, c.m[0], &y, &good);
    image_move(&r, 0, false);
#define WRONG(change, text)                                                                                                    \
    do {                                                                                                                       \
        e = good;                                                                                                              \
        if (last)                                                                                                              \
            (change);                                                                                                          \
        error_is(&r, stage_call(&r, &c, &y, &e), text);                                                                        \
    } while (0)
    WRONG(e.norm = 5, "gemv_all_reduce: norm: 5: allowed are 0 to 2");
    WRONG(e.reserved[0] = 1, "epilogue: reserved[0]: 1: must be 0");
    WRONG(e.norm = FCC_LAYER_NORM, "epilogue: norm, norm_eps, activation, scale or quantization: rank ");
    WRONG(e.norm_eps = 0.5f, "epilogue: norm, norm_eps, activation, scale or quantization: rank ");
    WRONG(e.norm_weight = (struct fcc_tensor){.buffer = NULL}, "norm_weight: rank ");
    WRONG(e.quantized = y, "gemv_all_reduce: quantized: dtype bf16: allowed: f8e4m3");
    WRONG(e.sum = y, "gemv_all_reduce: sum: overlaps y: allowed is apart from it");
    WRONG(e.norm_weight = (e.norm_weight.offset = e.sum.offset, e.norm_weight),
          "norm_weight: overlaps sum: allowed is apart from it");
#undef WRONG
    stage_run(&r, &c);
    own_close(&r, context);
}

static void errors(void)
{
    fake_ranks_run(PAIR, errors_rank, NULL);
}

static int sum_call(const struct rank *r, const struct stage_case *c, const struct fcc_epilogue *e, int64_t elements,
                    enum fcc_reduction reduction)
{
    return fcc_all_reduce_epilogue_enqueue(
        r->comm,
        &(const struct fcc_all_reduce_args){.in = part_of(r, PART_A, c->dtype, -1, elements),
                                            .out = tensor_in(r, 1, 0, c->dtype, -1, elements),
                                            .reduction = reduction},
        e, r->stream, NULL);
}

static void sum_errors_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;
    fcc_context *context = own_open(&r, all, rank, 0);
    const bool last = rank == all->n - 1;
    const struct stage_case c = layer_case(&r, OP_SUM);
    const int64_t all_elements = (int64_t)c.m[0] * c.n;
    const struct fcc_tensor y = tensor_in(&r, 1, 0, c.dtype, -1, all_elements);
    struct fcc_epilogue good, e;

    (void)argument;
    epilogue_fill(&r, &c, c.m[0], &y, &good);
    image_move(&r, 0, false);
    error_is(&r, sum_call(&r, &c, last ? NULL : &good, all_elements, FCC_SUM), "epilogue: rank ");
    error_is(&r, sum_call(&r, &c, &good, all_elements, last ? FCC_MAX : FCC_SUM), "all_reduce: reduction: rank ");
    e = good;
    if (last) { /* two rows instead of three */
        e.residual.shape[0] = e.sum.shape[0] = e.quantized.shape[0] = e.quantized_scale.shape[0] = 2;
    }
    error_is(&r, sum_call(&r, &c, &e, last ? 2 * c.n : all_elements, FCC_SUM), "all_reduce: in: rank ");
    error_is(&r, sum_call(&r, &c, &good, last ? all_elements - 1 : all_elements, FCC_SUM),
             "all_reduce: in: shape[0] 287: allowed with the epilogue's rows of 96 are multiples of that");
    e = good;
    if (last)
        e.norm_weight = (struct fcc_tensor){.buffer = NULL};
    error_is(&r, sum_call(&r, &c, &e, all_elements, FCC_SUM), "all_reduce: norm_weight: rank ");
    e = good;
    if (last) {
        e.sum = fcc_tensor_2d(y.buffer, y.offset, c.dtype, c.m[0], c.n);
        e.residual = part_of(&r, PART_RESIDUAL, c.dtype, c.m[0], c.n);
    }
    error_is(&r, sum_call(&r, &c, &e, all_elements, FCC_SUM), "sum: overlaps out: allowed is apart from it");
    stage_run(&r, &c);
    own_close(&r, context);
}

static void sum_errors(void)
{
    fake_ranks_run(PAIR, sum_errors_rank, NULL);
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {
        {"random_cases", random_cases, 120}, {"graphs", graphs, 60}, {"errors", errors, 60}, {"sum_errors", sum_errors, 60}};

    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_stages", TESTS(tests));
}
