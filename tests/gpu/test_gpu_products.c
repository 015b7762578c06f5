/* SPDX-License-Identifier: MIT
 *
 * test_gpu_products.c - gemv_all_reduce that the ranks' own processes launch through rings, on NVIDIA GPUs, one rank on each, in memory that
 * this process has allocated: shapes drawn at random, with and without an epilogue, mixed with collectives; products in parts; more shapes than
 * are kept; graphs. Errors, and how runs end, are in test_gpu_products_ends.c.
 */
#include "tests/gpu/gpu_ends.h"
#include "tests/gpu/gpu_products.h"

enum { CASES = 150 };

/* ---- one product, the simplest ---- */

static void simple_rank(int rank, const struct ranks *all, void *argument)
{
    struct product_case c = {.dtype = *(const enum fcc_dtype *)argument, .m = 1, .n = 512, .seed = 1};
    static const int64_t ms[] = {1, 1, 2, 8, 64};
    struct rank r;

    rank_open(&r, rank, all, 0);
    for (int i = 0; i < RANKS_MOST; i++)
        c.k[i] = 256;
    for (int i = 0; i < 5; i++) {
        c.m = ms[i];
        c.seed++;
        case_fill(&r, &c);
        OK(case_enqueue(&r, &c));
        case_check(&r, &c, i);
    }
    rank_close(&r);
}

static void simple(void)
{
    static enum fcc_dtype dtypes[] = {FCC_F32, FCC_F16, FCC_BF16};

    for (int i = 0; i < 3; i++)
        ranks_of_gpus_run(simple_rank, &dtypes[i]);
}

/* ---- sums beside products ---- */

/* Elements: as packets, and as pieces. */
enum { FEW = 5000, MANY = 1000001 };

/* x's memory is the input, w's the result. */
static void sum_enqueue(const struct rank *r, int64_t n)
{
    const struct fcc_all_reduce_args args = {.in = fcc_tensor_1d(FCC_ADDRESS, r->memory[PART_X], FCC_F32, n),
                                             .out = fcc_tensor_1d(FCC_ADDRESS, r->memory[PART_W], FCC_F32, n)};

    OK(fcc_all_reduce_enqueue(r->comm, &args, r->stream, NULL));
}

static void sum_works(const struct rank *r, int64_t n, float each)
{
    const float mine = each * (float)(r->rank + 1), want = each * (float)(r->n * (r->n + 1)) / 2;
    const float *got = (const float *)(const void *)r->image;
    unsigned bits;

    memcpy(&bits, &mine, sizeof(bits));
    CU(gpu.set(r->memory[PART_X], bits, (size_t)n, r->stream));
    sum_enqueue(r, n);
    CU(gpu.copy_out(r->image, r->memory[PART_W], (size_t)n * sizeof(float), r->stream));
    CU(gpu.stream_synchronize(r->stream));
    for (int64_t i = 0; i < n; i++)
        if (got[i] != want)
            check_failed(__FILE__, __LINE__, "rank %d: element %ld of %ld is %g, expected %g", r->rank, (long)i, (long)n,
                         (double)got[i], (double)want);
}

/* ---- cases at random ---- */

static void random_rank(int rank, const struct ranks *all, void *argument)
{
    const int cases = number_of("FCC_TEST_CASES", CASES);
    struct product_case c;
    struct rank r;

    rank_open(&r, rank, all, 0);
    OK(fcc_collectives_prepare(r.comm));
    draw_state = *(const uint64_t *)argument;
    for (int i = 0; i < cases; i++) {
        case_draw(&c, r.n);
        if (i % 7 ==
            3) /* K of 0. Its y lies elsewhere in the same memory, so this comes before what lies beside c's is filled in */
            OK(case_enqueue(&r, &(struct product_case){.dtype = c.dtype, .m = c.m, .n = c.n}));
        case_fill(&r, &c);
        if (i % 3 == 1)
            OK(fcc_noop_enqueue(r.comm, r.stream, NULL));
        OK(case_enqueue(&r, &c));
        for (int again = (int)draw(3); again > 0 && !c.in_place; again--)
            OK(case_enqueue(&r, &c));
        case_check(&r, &c, i);
        if (i % 5 == 2)
            sum_works(&r, i % 2 ? FEW : MANY, (float)(i + 1));
    }
    rank_close(&r);
}

static void random_cases(void)
{
    uint64_t seed = test_seed();

    ranks_of_gpus_run(random_rank, &seed);
}

/* ---- products in parts, which are runs of their own; more shapes than launches are kept ---- */

static void parts_rank(int rank, const struct ranks *all, void *argument)
{
    static const int64_t ns[] = {16384, 16385, 20000, 40000};
    struct rank r;

    (void)argument;
    rank_open(&r, rank, all, 0);
    for (int i = 0; i < 4; i++) {
        struct product_case c = {.dtype = i % 2 ? FCC_F32 : FCC_BF16, .m = 64 - i % 2, .n = ns[i], .seed = (unsigned)i + 5};
        for (int p = 0; p < r.n; p++)
            c.k[p] = 16 + 8 * p;
        c.bias = i > 1;
        case_fill(&r, &c);
        OK(case_enqueue(&r, &c));
        OK(case_enqueue(&r, &c));
        case_check(&r, &c, i);
        sum_works(&r, FEW, (float)(i + 1));
    }
    rank_close(&r);
}

static void parts(void)
{
    ranks_of_gpus_run(parts_rank, NULL);
}

static void shapes_rank(int rank, const struct ranks *all, void *argument)
{
    enum { SHAPES = 300 };
    struct rank r;

    (void)argument;
    rank_open(&r, rank, all, 0);
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < SHAPES; i++) {
            struct product_case c = {.dtype = FCC_F16, .m = 1 + i % 5, .n = 64 + 8 * i, .seed = (unsigned)i};
            for (int p = 0; p < r.n; p++)
                c.k[p] = 64;
            if (i % 50 == 49)
                case_fill(&r, &c);
            OK(case_enqueue(&r, &c));
            if (i % 50 == 49)
                case_check(&r, &c, i);
        }
    rank_close(&r);
}

static void many_shapes(void)
{
    ranks_of_gpus_run(shapes_rank, NULL);
}

/* ---- graphs ---- */

/* Products and sums of a decoder's layers: y, then a sum of something else, then the same product again. */
static void *layers_capture(const struct rank *r, const struct product_case *c, int layers)
{
    CU(gpu.capture_begin(r->stream, CUDA_CAPTURE_GLOBAL));
    for (int i = 0; i < layers; i++) {
        OK(case_enqueue(r, c));
        if (i % 4 == 1) {
            const struct fcc_all_reduce_args args = {.in = fcc_tensor_1d(FCC_ADDRESS, r->memory[PART_BIAS], FCC_F32, FEW),
                                                     .out = fcc_tensor_1d(FCC_ADDRESS, r->memory[PART_RESIDUAL], FCC_F32, FEW)};
            OK(fcc_all_reduce_enqueue(r->comm, &args, r->stream, NULL));
        }
    }
    return capture_finish(r->stream);
}

static struct product_case layer_of(const struct rank *r, int64_t m)
{
    struct product_case c = {.dtype = FCC_BF16, .m = m, .n = 1024, .seed = (unsigned)m};

    for (int p = 0; p < r->n; p++)
        c.k[p] = 512;
    return c;
}

static void graphs_rank(int rank, const struct ranks *all, void *argument)
{
    enum { GRAPHS = 5, LAYERS = 64, REPLAYS = 300 };
    static const int64_t ms[GRAPHS] = {1, 2, 8, 24, 64};
    void *graphs[GRAPHS];
    struct rank r;

    (void)argument;
    rank_open(&r, rank, all, 0);
    OK(fcc_collectives_prepare(r.comm));
    for (int i = 0; i < GRAPHS; i++) {
        const struct product_case c = layer_of(&r, ms[i]);
        graphs[i] = layers_capture(&r, &c, LAYERS);
    }
    for (int i = 0; i < repeats(REPLAYS); i++) {
        const int which = (int)((unsigned)i * 7 % GRAPHS);
        const struct product_case c = layer_of(&r, ms[which]);
        const bool looks = i % 20 == 19;
        if (looks)
            case_fill(&r, &c);
        if (i % 6 == 5)
            OK(case_enqueue(&r, &c)); /* beside the graphs */
        CU(gpu.graph_launch(graphs[which], r.stream));
        if (looks)
            case_check(&r, &c, i);
        if (i % 50 == 49)
            sum_works(&r, MANY, (float)i);
    }
    graphs_outlive(r.comm, r.stream, (void *const[]){graphs[0], graphs[4], graphs[1]}, 3);
}

static void graphs(void)
{
    ranks_of_gpus_run(graphs_rank, NULL);
}

/* ---- as many graphs as a program has numbers of rows, each of all its layers ---- */

/* A second communicator: what it takes of the GPU is its own, as the contexts, the kernels and what the vendor's library has are there for the first. */
static struct rank second_open(const struct rank *first, struct fcc_unique_id *id)
{
    struct rank second = *first;

    OK(fcc_collectives_prepare(first->comm));
    if (first->rank == 0)
        OK(fcc_get_unique_id(comm_context(), id));
    OK(fcc_noop(first->comm)); /* the other ranks read it behind this */
    second.comm = client_join(comm_context(), id, first->n, first->rank, gpu.number, 0);
    return second;
}

static void batches_rank(int rank, const struct ranks *all, void *argument)
{
    enum { GRAPHS = 100, LAYERS = 64 };
    const size_t most = 256u << 20;
    static void *graphs[GRAPHS];
    size_t before, prepared, after, whole;
    struct product_case c;
    struct rank first, r;

    rank_open(&first, rank, all, 0);
    r = second_open(&first, argument);
    c = layer_of(&r, 1);
    case_fill(&r, &c);
    CU(gpu.memory_left(&before, &whole));
    OK(fcc_collectives_prepare(r.comm));
    CU(gpu.memory_left(&prepared, &whole));
    for (int i = 0; i < GRAPHS; i++) {
        c = layer_of(&r, 1 + i % 64);
        c.n += i / 64 * 256;
        CU(gpu.capture_begin(r.stream, CUDA_CAPTURE_GLOBAL));
        for (int layer = 0; layer < LAYERS; layer++)
            OK(case_enqueue(&r, &c));
        CU(gpu.capture_end(r.stream, &graphs[i]));
    }
    CU(gpu.memory_left(&after, &whole));
    printf("rank %d: %d graphs of %d layers took %.0f MiB of the GPU's memory, %.0f of which what collectives need\n", rank,
           GRAPHS, LAYERS, (double)(before - after) / (1 << 20), (double)(before - prepared) / (1 << 20));
    fflush(stdout);
    CHECK(before - after <= most || ranks_on_gpu() > 1); /* there what others take of the GPU's memory counts, too */
    for (int i = 0; i < GRAPHS; i++) {
        void *exec;
        c = layer_of(&r, 1 + i % 64);
        c.n += i / 64 * 256;
        case_fill(&r, &c);
        CU(gpu.graph_instantiate(&exec, graphs[i], 0));
        CU(gpu.graph_launch(exec, r.stream));
        if (i % 10 == 9)
            case_check(&r, &c, i);
        CU(gpu.stream_synchronize(r.stream));
        CU(gpu.exec_destroy(exec));
        CU(gpu.graph_destroy(graphs[i]));
    }
    fcc_comm_destroy(r.comm);
    rank_close(&first);
}

static void batches(void)
{
    ranks_of_gpus_run(batches_rank, shared_memory(sizeof(struct fcc_unique_id)));
}

int main(void)
{
    static const struct test tests[] = {{"simple", simple, 60},  {"random_cases", random_cases, 200},
                                        {"parts", parts, 100},   {"many_shapes", many_shapes, 100},
                                        {"graphs", graphs, 100}, {"batches", batches, 200}};

    if (!gpus_found())
        return EXIT_SUCCESS;
    product_schedule = FCC_SCHEDULE_FUSED;
    return tests_run("gpu_products", TESTS(tests));
}
