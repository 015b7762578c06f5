/* SPDX-License-Identifier: MIT
 *
 * test_gpu_steps.c - bound programs, which the ranks' own processes launch, through the real daemon on NVIDIA GPUs: the cases of program_cases.h on streams
 * and in graphs, with the bits that fccd's launches give; numbers that change between runs and replays; tensors in this process's own memory; and how
 * replays end.
 */
#include <sys/mman.h>

#include "tests/gpu/gpu_ends.h"
#include "tests/program/program_cases.h"

enum { RANKS_MOST = 4 };

static int ranks_of_steps(void)
{
    return gpus < RANKS_MOST ? gpus : RANKS_MOST;
}

static void *stream;

static void *steps_capture(fcc_program *p)
{
    CU(gpu.capture_begin(stream, CUDA_CAPTURE_GLOBAL));
    OK(fcc_program_enqueue(p, stream));
    return capture_finish(stream);
}

/* ---- the cases ---- */

static int bound_programs;

/* Whether bits follow from the order of additions alone: products that ranks launch add in another one, and round partial sums to their dtype. */
static bool has_product(const char *text)
{
    return strstr(text, "matmul(") || strstr(text, "embedding");
}

static bool is_left_to_fccd(const char *text)
{
    return has_product(text) && strstr(text, "f16");
}

/* Once on the stream, and once by a graph. What cannot be bound is run by fccd. */
static int steps_call(fcc_program *p, int round)
{
    static bool is_bound;

    if (round == 0) {
        const int status = is_left_to_fccd(fcc_program_text(p)) ? 1 : fcc_program_prepare(p);
        is_bound = status == 0;
        bound_programs += is_bound;
        if (status < 0 && (status != -EOPNOTSUPP || !strstr(fcc_last_error(), "can load cuBLAS")))
            return status;
    }
    if (!is_bound)
        return fcc_program_run(p);
    if (round == 0) {
        OK(fcc_program_enqueue(p, stream));
        CU(gpu.stream_synchronize(stream));
        return 0;
    }
    void *graph = steps_capture(p);
    CU(gpu.graph_launch(graph, stream));
    CU(gpu.stream_synchronize(stream));
    CU(gpu.exec_destroy(graph));
    return 0;
}

static void cases_bound_rank(int rank, const struct ranks *all, void *bound)
{
    fcc_comm *comm = comm_open(all, rank, 0);

    if (bound) {
        gpu_open(comm);
        stream = stream_open(CUDA_STREAM_OWN_ORDER);
        case_calls = steps_call;
    }
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        case_now = (int)i;
        case_run(comm, rank, &cases[i]);
    }
    CHECK(!bound || bound_programs > (int)(sizeof(cases) / sizeof(cases[0])) / 3);
    OK(fcc_comm_error(comm));
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static bool case_has_product(const struct program_case *c)
{
    char *text = text_of(c);
    const bool has = has_product(text);

    free(text);
    return has;
}

/* By fccd with the interpreter, then bound, with compiled kernels: the bits are the same. */
static void cases_of_gpus(void)
{
    static const char *const options[][3] = {{"--gpu-compiler", "none", NULL}, {"--gpu-compiler", "auto", NULL}};
    const size_t bytes = BITS_CASES * sizeof(case_bits[0]);
    uint64_t(*both)[BITS_CASES][BITS_RANKS] = mmap(NULL, 2 * bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct test_daemon d;
    struct ranks r;

    CHECK(both != MAP_FAILED);
    for (int way = 0; way < 2; way++) {
        case_bits = both[way];
        daemon_start(&d, options[way]);
        ranks_start(&r, ranks_of_steps(), cases_bound_rank, way ? both : NULL);
        ranks_join(&r);
        daemon_stop(&d);
    }
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (int rank = 0; rank < ranks_of_steps() && !case_has_product(&cases[i]); rank++)
            if (both[0][i][rank] != both[1][i][rank])
                check_failed(__FILE__, __LINE__, "rank %d: other bits than fccd's: %s", rank,
                             cases[i].file ? cases[i].file : cases[i].text);
    CHECK(munmap(both, 2 * bytes) == 0);
}

/* ---- one program, whose values are easy to tell ---- */

/* m is this rank's own; other ranks read g, and store into p. */
static const char sgd[] = "program sgd(N = 1000003)\nin g: f32[N] local\ninout p, m: f32[N] replicated\nscalar lr, momentum\n\n"
                          "s = all_reduce(g)\nm = momentum * m + s\np = p - lr * m\n\n"
                          "schedule\nsplit s\nreorder s\nas_slice m\nfuse s_part, m_part, m, p as step\n";
enum { ELEMENTS = 1000003 };

struct bound {
    fcc_comm *comm;
    fcc_program *program;
    fcc_buffer *g, *p;
    int rank, n;
    float moment, sum; /* what m and -p are times the sum of the gradients */
};

static void tensor_give(const struct bound *b, const char *name, fcc_buffer *buffer, uint64_t offset, int64_t n)
{
    const struct fcc_tensor t = fcc_tensor_1d(buffer, offset, FCC_F32, n);

    OK(fcc_program_tensor(b->program, name, &t));
}

static struct bound bound_open(const struct ranks *all, int rank, uint32_t time_limit_ms)
{
    struct bound b = {.comm = comm_open(all, rank, time_limit_ms), .rank = rank, .n = all->n};
    float *g = calloc(ELEMENTS, sizeof(*g));
    uint64_t m;

    gpu_open(b.comm);
    stream = stream_open(CUDA_STREAM_OWN_ORDER);
    OK(fcc_program_open(b.comm, sgd, strlen(sgd), NULL, 0, &b.program));
    CHECK(g != NULL);
    for (int i = 0; i < ELEMENTS; i++)
        g[i] = (float)((rank + 1) * (i % 7 + 1));
    OK(fcc_buffer_alloc(b.comm, FCC_BUFFER_LOCAL, ELEMENTS * sizeof(float), &b.g));
    OK(fcc_buffer_alloc(b.comm, FCC_BUFFER_RESULT, ELEMENTS * sizeof(float), &b.p));
    OK(fcc_buffer_write(b.g, 0, g, ELEMENTS * sizeof(float)));
    free(g);
    const int64_t own = fcc_program_elements(b.program, "m");
    CU(gpu.memory_alloc(&m, ELEMENTS * sizeof(float)));
    CU(gpu.set(m, 0, ELEMENTS, stream));
    CU(gpu.stream_synchronize(stream));
    tensor_give(&b, "g", b.g, 0, ELEMENTS);
    tensor_give(&b, "p", b.p, 0, ELEMENTS);
    tensor_give(&b, "m", FCC_ADDRESS, m, own);
    OK(fcc_program_scalar(b.program, "lr", 1));
    OK(fcc_program_scalar(b.program, "momentum", 1));
    OK(fcc_program_prepare(b.program));
    return b;
}

/* The scalars are such that all values are whole numbers that f32 holds. */
static void scalars_give(const struct bound *b, double lr, double momentum)
{
    OK(fcc_program_scalar(b->program, "lr", lr));
    OK(fcc_program_scalar(b->program, "momentum", momentum));
}

static void bound_count(struct bound *b, float lr, float momentum)
{
    b->moment = momentum * b->moment + 1;
    b->sum += lr * b->moment;
}

static void bound_check(const struct bound *b)
{
    const float ranks = (float)(b->n * (b->n + 1)) / 2;

    CU(gpu.copy_out(gpu.host, (uint64_t)(uintptr_t)fcc_buffer_data(b->p), ELEMENTS * sizeof(float), stream));
    CU(gpu.stream_synchronize(stream));
    for (int i = 0; i < ELEMENTS; i++)
        if (gpu.host[i] != -b->sum * ranks * (float)(i % 7 + 1))
            check_failed(__FILE__, __LINE__, "rank %d of %d: element %d is %g, expected is %g", b->rank, b->n, i,
                         (double)gpu.host[i], (double)(-b->sum * ranks * (float)(i % 7 + 1)));
}
static_assert(ELEMENTS * sizeof(float) <= GPU_HOST_BYTES, "all of it is fetched");

enum { STEPS = 60, REPLAYS = 40 };

/* Nothing waits between the runs, so each finds the numbers that were given before it; then replays, whose numbers come in front of them. */
static void numbers_rank(int rank, const struct ranks *all, void *argument)
{
    struct bound b = bound_open(all, rank, 0);

    (void)argument;
    for (int i = 0; i < STEPS; i++) {
        scalars_give(&b, i % 5 + 1, i % 2);
        if (rank == i % all->n)
            gpu_delay(stream, 300000);
        OK(fcc_program_enqueue(b.program, stream));
        bound_count(&b, (float)(i % 5 + 1), (float)(i % 2));
    }
    bound_check(&b);
    void *graph = steps_capture(b.program);
    for (int i = 0; i < REPLAYS; i++) {
        scalars_give(&b, i % 3, 0);
        OK(fcc_program_scalars_enqueue(b.program, stream));
        if (rank == i % all->n)
            gpu_delay(stream, 300000);
        CU(gpu.graph_launch(graph, stream));
        CU(gpu.graph_launch(graph, stream));
        bound_count(&b, (float)(i % 3), 0);
        bound_count(&b, (float)(i % 3), 0);
    }
    bound_check(&b);
    void *other = steps_capture(b.program);
    fcc_program_close(b.program); /* replays end at once, with it, with the communicator, and behind the connection */
    graphs_outlive(b.comm, stream, (void *const[]){graph, other}, 2);
}

static void numbers(void)
{
    ranks_run(ranks_of_steps(), numbers_rank, NULL);
}

static void numbers_of_one(void)
{
    ranks_run(1, numbers_rank, NULL);
}

/* ---- guarded runs ---- */

enum { GUARDED = 200 };

/* Runs and replays, in between such as the ranks in turns refuse, with nothing that waits between: the others are right, and the reasons come. */
static void guarded_rank(int rank, const struct ranks *all, void *argument)
{
    struct bound b = bound_open(all, rank, 0);
    int heard = 0;

    (void)argument;
    OK(fcc_program_prepare_guarded(b.program));
    scalars_give(&b, 1, 0);
    OK(fcc_program_enqueue(b.program, stream));
    bound_count(&b, 1, 0);
    void *graph = steps_capture(b.program);
    for (int i = 0; i < GUARDED; i++) {
        const bool refused = i % 5 == 4;
        if (rank == i % all->n)
            gpu_delay(stream, 20000);
        if (refused && rank == i / 5 % all->n)
            OK(fcc_program_refuse_enqueue(b.program, "for once", stream));
        else if (i % 2)
            CU(gpu.graph_launch(graph, stream));
        else
            OK(fcc_program_enqueue(b.program, stream));
        if (!refused)
            bound_count(&b, 1, 0);
        if (i % 20 == 19) {
            CU(gpu.stream_synchronize(stream));
            heard +=
                fcc_comm_error_wait(b.comm, -1) == -EINVAL && strstr(fcc_last_error(), "program sgd(N = 1000003): for once");
        }
    }
    CHECK(all->n == 1 || heard > 0);
    bound_check(&b);
    for (int way = 0; way < 2; way++) { /* what a guard costs: a run of each kind */
        OK(way ? fcc_program_prepare(b.program) : fcc_program_prepare_guarded(b.program));
        for (int i = -20; i < GUARDED; i++) {
            static double begun;
            if (i == 0) {
                CU(gpu.stream_synchronize(stream));
                OK(fcc_noop(b.comm));
                begun = now_ms();
            }
            OK(fcc_program_enqueue(b.program, stream));
            bound_count(&b, 1, 0);
            if (i == GUARDED - 1) {
                CU(gpu.stream_synchronize(stream));
                printf("rank %d: a run %s: %.1f us\n", rank, way ? "without a guard" : "with one",
                       (now_ms() - begun) * 1e3 / GUARDED);
            }
        }
    }
    bound_check(&b);
    fcc_program_close(b.program);
    graphs_outlive(b.comm, stream, (void *const[]){graph}, 1);
}

static void guarded(void)
{
    ranks_run(ranks_of_steps(), guarded_rank, NULL);
}

/* ---- how replays end ---- */

static void end_rank(int rank, const struct ranks *all, void *aborts)
{
    struct bound b = bound_open(all, rank, aborts ? 0 : LIMIT_MS);
    void *graph = steps_capture(b.program);

    const int status = replays_end(b.comm, rank, stream, graph, aborts != NULL, "program_step");
    FAILS(fcc_program_enqueue(b.program, stream), status);
    fcc_program_close(b.program);
    replays_over(b.comm, rank, stream, graph);
}

static void aborted(void)
{
    static int yes;

    ranks_run(ranks_of_steps(), end_rank, &yes);
}

static void late(void)
{
    ranks_run(ranks_of_steps(), end_rank, NULL);
}

int main(void)
{
    static const struct test tests[] = {
        {"numbers", numbers, 0}, {"numbers_of_one", numbers_of_one, 0}, {"guarded", guarded, 0}, {"aborted", aborted, 0},
        {"late", late, 0},       {"cases_of_gpus", cases_of_gpus, 600}, /* each step of each case is compiled */
    };
    return gpus_found() ? tests_run("gpu_steps", TESTS(tests)) : EXIT_SUCCESS;
}
