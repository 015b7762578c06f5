/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_steps.c - bound programs, which the ranks' own processes launch, with the real daemon and the real library on fake GPUs: the cases of
 * program_cases.h on streams and in graphs, numbers that change between runs and between replays, tensors anywhere, what is refused, and how runs end. Real
 * GPUs are in test_gpu_steps.c.
 */
#include <math.h>
#include <sched.h>

#include "tests/fake_gpu/fake_gpu_steps.h"
#include "tests/program/program_cases.h"

static void *stream;

static void scene_run(int n, void (*rank)(int, const struct ranks *, void *), const char *const options[])
{
    struct test_daemon d;
    struct ranks r;

    CHECK(setenv("FCC_TEST_DEVICE", "cuda", 1) == 0);
    fake_start(&d, GPUS, options);
    ranks_start(&r, n, rank, NULL);
    ranks_join(&r);
    fake_stop(&d);
}

/* ---- what comes of them ---- */

/* Once on the stream, and once by a graph. */
static int steps_call(fcc_program *p, int round)
{
    int status = round ? 0 : fcc_program_prepare(p);
    void *graph = NULL;

    if (status)
        return status;
    if (round)
        driver->capture_begin();
    status = fcc_program_enqueue(p, stream);
    if (round) {
        graph = driver->capture_end();
        driver->graph_launch(graph, stream);
    }
    stream_sync(stream);
    if (graph)
        driver->graph_destroy(graph);
    return status;
}

static void cases_bound_rank(int rank, const struct ranks *all, void *argument)
{
    driver_use();
    stream = stream_open();
    case_calls = steps_call;
    without_products = true;
    cases_rank(rank, all, argument);
    stream_close(stream);
}

static void cases_of_one(void)
{
    scene_run(1, cases_bound_rank, NULL);
}

static void cases_of_two(void)
{
    scene_run(PAIR, cases_bound_rank, NULL);
}

static void cases_of_three(void)
{
    scene_run(GPUS, cases_bound_rank, NULL);
}

/* ---- numbers ---- */

enum { STEPS = 12 };

/* Nothing waits between the runs, so each finds the numbers that were given before it. Then replays of one graph, whose numbers come in front of them;
 * and of one that has numbers of its own. */
static void numbers_rank(int rank, const struct ranks *all, void *argument)
{
    struct bound b = bound_open(all, rank, 0);

    (void)argument;
    OK(fcc_program_prepare(b.program));
    for (int i = 0; i < STEPS; i++) {
        if (i % 3 != 2)
            scalars_give(&b, i + 1, i % 2);
        OK(fcc_program_enqueue(b.program, b.stream));
        bound_count(&b, (float)(i % 3 != 2 ? i + 1 : i), i % 3 != 2 ? (float)(i % 2) : (float)((i - 1) % 2));
    }
    stream_sync(b.stream);
    bound_check(&b);
    scalars_give(&b, 3, 0);
    driver->capture_begin(); /* numbers that have been given, but are on no stream, are not the graph's */
    OK(fcc_program_enqueue(b.program, b.stream));
    void *graph = driver->capture_end();
    for (int i = 0; i < STEPS; i++) {
        scalars_give(&b, i, 1);
        OK(fcc_program_scalars_enqueue(b.program, b.stream));
        driver->graph_launch(graph, b.stream);
        driver->graph_launch(graph, b.stream);
        bound_count(&b, (float)i, 1);
        bound_count(&b, (float)i, 1);
    }
    scalars_give(&b, 7, 0);
    driver->capture_begin();
    OK(fcc_program_scalars_enqueue(b.program, b.stream));
    OK(fcc_program_enqueue(b.program, b.stream));
    void *whole = driver->capture_end();
    for (int i = 0; i < 3; i++) {
        driver->graph_launch(whole, b.stream);
        driver->graph_launch(graph, b.stream);
        bound_count(&b, 7, 0);
        bound_count(&b, 7, 0);
    }
    /* They have changed since the host put them onto a stream, outside of captures: here they come again. */
    OK(fcc_program_enqueue(b.program, b.stream));
    bound_count(&b, 7, 0);
    stream_sync(b.stream);
    bound_check(&b);
    driver->graph_destroy(graph);
    driver->graph_destroy(whole);
    bound_close(&b);
}

static void numbers(void)
{
    scene_run(PAIR, numbers_rank, NULL);
}

static void numbers_of_three(void)
{
    scene_run(GPUS, numbers_rank, NULL);
}

/* ---- tensors ---- */

/* They may be others after the program has been prepared anew; in between nothing is put onto streams. fccd itself takes none that lie anywhere. */
static void moved_rank(int rank, const struct ranks *all, void *argument)
{
    struct bound b = bound_open(all, rank, 0);
    float *other = calloc((size_t)own_elements(&b) + 1, sizeof(*other));

    (void)argument;
    CHECK(other != NULL);
    FAILS(fcc_program_enqueue(b.program, b.stream), -EINVAL,
          "`sgd`: it is not prepared: needed before is fcc_program_prepare()");
    FAILS(fcc_program_scalars_enqueue(b.program, b.stream), -EINVAL, "fcc_program_scalars_enqueue", "not prepared");
    FAILS(fcc_program_run(b.program), -EOPNOTSUPP, "`m`: FCC_ADDRESS: allowed with fcc_program_enqueue()");
    for (int round = 0; round < 3; round++) {
        OK(fcc_program_prepare(b.program));
        tensor_give(&b, "m", FCC_ADDRESS, b.m, own_elements(&b)); /* where it is */
        OK(fcc_program_enqueue(b.program, b.stream));
        bound_count(&b, 1, 1);
        stream_sync(b.stream);
        bound_check(&b);
        memcpy(other, b.m, (size_t)own_elements(&b) * sizeof(*other));
        float *before = b.m;
        b.m = other;
        other = before;
        memset(before, 0xff, (size_t)own_elements(&b) * sizeof(*before));
        tensor_give(&b, "m", FCC_ADDRESS, b.m, own_elements(&b));
        FAILS(fcc_program_enqueue(b.program, b.stream), -EINVAL, "tensors have been given elsewhere since it was prepared");
    }
    tensor_give(&b, "g", FCC_ADDRESS, other, ELEMENTS);
    FAILS(fcc_program_prepare(b.program), -EINVAL, "program_step_prepare: in: FCC_ADDRESS: other ranks use it",
          "(line 8 of program `sgd`)");
    tensor_give(&b, "g", b.g, NULL, ELEMENTS);
    OK(fcc_program_prepare(b.program));
    OK(fcc_program_enqueue(b.program, b.stream));
    bound_count(&b, 1, 1);
    stream_sync(b.stream);
    bound_check(&b);
    bound_close(&b);
    free(other);
}

static void moved(void)
{
    scene_run(PAIR, moved_rank, NULL);
}

/* What lies in buffers stays as long as a graph, whatever is freed. */
static void outlive_rank(int rank, const struct ranks *all, void *argument)
{
    struct bound b = bound_open(all, rank, 0);

    (void)argument;
    OK(fcc_program_prepare(b.program));
    driver->capture_begin();
    OK(fcc_program_enqueue(b.program, b.stream));
    void *graph = driver->capture_end();
    driver->graph_launch(graph, b.stream);
    bound_count(&b, 1, 1);
    stream_sync(b.stream);
    bound_check(&b);
    OK(fcc_noop(b.comm));
    fcc_program_close(b.program);
    driver->graph_launch(graph, b.stream); /* it is over */
    fcc_buffer_free(b.g);
    fcc_buffer_free(b.p);
    driver->graph_launch(graph, b.stream);
    fcc_comm_destroy(b.comm);
    driver->graph_launch(graph, b.stream);
    stream_close(b.stream);
    driver->graph_destroy(graph);
    client_end(b.context);
    free(b.m);
}

static void outlive(void)
{
    scene_run(PAIR, outlive_rank, NULL);
}

/* ---- what is refused, on all ranks ---- */

/* y and these inputs lie in one buffer, one behind the other, or all at its begin. */
static void program_refused(fcc_comm *comm, const char *text, const char *const inputs[], bool apart, const char *why)
{
    uint64_t at = 0;
    fcc_program *p;
    fcc_buffer *b;

    OK(fcc_program_open(comm, text, strlen(text), NULL, 0, &p));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_RESULT, 4096, &b));
    for (int i = 0; inputs[i]; i++, at += apart ? 512 : 0) {
        const struct fcc_tensor t = fcc_tensor_1d(b, at, FCC_F32, fcc_program_elements(p, inputs[i]));
        OK(fcc_program_tensor(p, inputs[i], &t));
    }
    FAILS(fcc_program_prepare(p), -EOPNOTSUPP, why);
    FAILS(fcc_program_enqueue(p, NULL), -EINVAL, "it is not prepared");
    fcc_program_close(p);
    fcc_buffer_free(b);
}

#define ROWS_ADDED                                                                                                             \
    "program product(N = 8)\nin x: f32[N, N] sliced(1)\nin w: f32[N, N] sliced(0)\nin b: f32[N]\nout y: f32[N, N]\n"           \
    "product = matmul(x, w)\ns = all_reduce(product)\n"

static void refused_rank(int rank, const struct ranks *all, void *argument)
{
    struct bound b = bound_open(all, rank, 0);

    (void)argument;
    FAILS(fcc_program_prepare(NULL), -EINVAL, "NULL");
    FAILS(fcc_program_enqueue(NULL, b.stream), -EINVAL, "NULL");
    FAILS(fcc_program_scalars_enqueue(NULL, b.stream), -EINVAL, "NULL");
    program_refused(b.comm, ROWS_ADDED "y = s + b\n", (const char *const[]){"x", "w", "b", "y", NULL}, true,
                    "products: allowed where all ranks can load cuBLAS");
    program_refused(b.comm, ROWS_ADDED "y = s + b\nschedule\nfuse product, s, y as end\n",
                    (const char *const[]){"x", "w", "b", "y", NULL}, true, "products: allowed where all ranks can load cuBLAS");
    program_refused(b.comm, "program twice(N = 32)\nin x: f32[N]\nout y: f32[N]\ny = x * 2\n",
                    (const char *const[]){"x", "y", NULL}, false, "tensors of the step share memory");
    fcc_program *p;
    OK(fcc_program_open(b.comm, sgd, strlen(sgd), NULL, 0, &p));
    FAILS(fcc_program_prepare(p), -EINVAL, "`g`: not given: needed is fcc_program_tensor() before");
    fcc_program_close(p);
    for (uint32_t which = 0; which < PAIR; which++)
        for (enum fake_call call = FAKE_PREPARED_OPEN; call <= FAKE_PREPARED_CODE;
             call++) { /* all hear what one rank's process refuses */
            OK(fcc_noop(b.comm));
            fake->fail_gpu = which;
            fake->fail = call;
            OK(fcc_noop(b.comm));
            FAILS(fcc_program_prepare(b.program), -EIO,
                  which ? "rank 1: " : "rank 0: ", "program_step_prepare: ", "made to fail (line 8 of program `sgd`)");
        }
    OK(fcc_program_prepare(b.program));
    OK(fcc_program_enqueue(b.program, b.stream));
    bound_count(&b, 1, 1);
    stream_sync(b.stream);
    bound_check(&b);
    bound_close(&b);
}

static void refused(void)
{
    scene_run(PAIR, refused_rank, NULL);
}

/* Nothing compiles, for this reason; fccd goes on with the interpreter. */
static void uncompiled_rank(int rank, const struct ranks *all, const char *why)
{
    struct bound b = bound_open(all, rank, 0);
    fcc_buffer *m;

    FAILS(fcc_program_prepare(b.program), -EOPNOTSUPP, "its kernel cannot be made: ", why, "(line 8 of program `sgd`)");
    FAILS(fcc_program_enqueue(b.program, b.stream), -EINVAL, "it is not prepared");
    OK(fcc_buffer_alloc(b.comm, FCC_BUFFER_LOCAL, ELEMENTS * sizeof(float), &m));
    tensor_give(&b, "m", m, NULL, own_elements(&b));
    OK(fcc_program_run(b.program));
    bound_count(&b, 1, 1);
    bound_check(&b);
    bound_close(&b);
}

static void no_compiler_rank(int rank, const struct ranks *all, void *argument)
{
    (void)argument;
    uncompiled_rank(rank, all, "GPU_COMPILER=none");
}

static void no_compiler(void)
{
    scene_run(PAIR, no_compiler_rank, (const char *const[]){"--gpu-compiler", "none", NULL});
}

static void missing_rank(int rank, const struct ranks *all, void *argument)
{
    (void)argument;
    uncompiled_rank(rank, all, "no compiler for GPUs (fake): /nonexistent/libnvrtc.so");
}

static void missing_compiler(void)
{
    scene_run(PAIR, missing_rank, (const char *const[]){"--gpu-compiler", "/nonexistent/libnvrtc.so", NULL});
}

/* Ranks on cpu devices, on one GPU, and whose GPU's compiler fails. */
static void unfit_check(const struct ranks *all, int rank, const struct fcc_comm_options *options, const char *why)
{
    struct bound b = {.rank = rank, .n = all->n};

    driver_use();
    b.context = client_connect(NULL);
    OK(fcc_comm_init(b.context, &all->id, all->n, rank, options, &b.comm));
    OK(fcc_program_open(b.comm, sgd, strlen(sgd), NULL, 0, &b.program));
    bound_tensors(&b);
    scalars_give(&b, 1, 1);
    FAILS(fcc_program_prepare(b.program), -EOPNOTSUPP, why);
    FAILS(fcc_program_enqueue(b.program, NULL), -EINVAL, "it is not prepared");
    fcc_program_close(b.program);
    fcc_comm_destroy(b.comm);
    client_end(b.context);
    free(b.m);
}

static void cpu_rank(int rank, const struct ranks *all, void *argument)
{
    (void)argument;
    unfit_check(all, rank, NULL, "its ranks are on cpu devices: allowed on CUDA GPUs");
}

static void on_cpus(void)
{
    scene_run(PAIR, cpu_rank, NULL);
}

static void together_rank(int rank, const struct ranks *all, void *argument)
{
    (void)argument;
    unfit_check(all, rank, &(struct fcc_comm_options){.device = 1, .device_kind = FCC_DEVICE_CUDA},
                "rank 1: another rank is on its GPU");
}

static void on_one_gpu(void)
{
    scene_run(PAIR, together_rank, NULL);
}

/* One GPU's compiler fails: all ranks hear it, and whose it was. */
static void failing_rank(int rank, const struct ranks *all, void *argument)
{
    struct bound b = bound_open(all, rank, 0);

    (void)argument;
    if (rank == 0) {
        fake->fail_gpu = 1;
        fake->fail = FAKE_CODE_COMPILE;
    }
    OK(fcc_noop(b.comm));
    FAILS(fcc_program_prepare(b.program), -EOPNOTSUPP,
          "rank 1: program_step_prepare: ", "its kernel cannot be made: cuda GPU 1: compiling: made to fail");
    bound_close(&b);
}

static void failing_compiler(void)
{
    scene_run(PAIR, failing_rank, NULL);
}

/* ---- kernels are compiled side by side ---- */

static const char three[] = "program three(N = 500)\nin x: f32[N] local\nout a, b, c: f32[N] local\nscalar k\n"
                            "p = tanh(x * k)\nq = exp(x * k)\nr = sqrt(x * k)\na = p\nb = q\nc = r\n";
enum { THREE = 500, THREE_KERNELS = 4 }; /* of its six steps, as the copies have one */

struct three_memory {
    float x[THREE], out[3][THREE];
};

static fcc_program *three_open(fcc_comm *comm, struct three_memory *m)
{
    static const char *const names[] = {"a", "b", "c"};
    fcc_program *p;

    OK(fcc_program_open(comm, three, strlen(three), NULL, 0, &p));
    for (int i = 0; i < THREE; i++)
        m->x[i] = (float)(i % 5);
    const struct fcc_tensor x = fcc_tensor_1d(FCC_ADDRESS, (uint64_t)(uintptr_t)m->x, FCC_F32, THREE);
    OK(fcc_program_tensor(p, "x", &x));
    for (int i = 0; i < 3; i++) {
        const struct fcc_tensor t = fcc_tensor_1d(FCC_ADDRESS, (uint64_t)(uintptr_t)m->out[i], FCC_F32, THREE);
        OK(fcc_program_tensor(p, names[i], &t));
    }
    OK(fcc_program_scalar(p, "k", 0.25));
    return p;
}

static void three_rank(int rank, const struct ranks *all, void *argument)
{
    struct three_memory *m = calloc(1, sizeof(*m));

    (void)argument;
    driver_use();
    CHECK(m != NULL);
    fcc_context *context = client_connect(NULL);
    fcc_comm *comm = client_join(context, &all->id, all->n, rank, 0);
    void *on = stream_open();
    fcc_program *p = three_open(comm, m);
    OK(fcc_program_prepare(p));
    OK(fcc_program_enqueue(p, on));
    stream_sync(on);
    for (int i = 0; i < THREE; i++) {
        const float x = m->x[i] * 0.25f;
        CHECK(fabsf(m->out[0][i] - tanhf(x)) < 1e-5f && fabsf(m->out[1][i] - expf(x)) < 1e-5f &&
              fabsf(m->out[2][i] - sqrtf(x)) < 1e-5f);
    }
    fcc_program_close(p);
    stream_close(on);
    fcc_comm_destroy(comm);
    client_end(context);
    free(m);
}

/* The compiler ends nothing until as many threads are at it as there may be. GPUs 0 and 2 have one chip, so three ranks need kernels for two. */
static void side_by_side(void)
{
    const int kernels = 2 * THREE_KERNELS;
    struct test_daemon d;
    struct ranks r;
    cpu_set_t cores;

    CHECK(setenv("FCC_TEST_DEVICE", "cuda", 1) == 0);
    CHECK(sched_getaffinity(0, sizeof(cores), &cores) == 0);
    fake_start(&d, GPUS, NULL);
    fake->compile_hold = 1;
    ranks_start(&r, GPUS, three_rank, NULL);
    const int most = CPU_COUNT(&cores) < kernels ? CPU_COUNT(&cores) : kernels;
    await(&fake->compiling, most);
    CHECK(fake->compiling == most && fake->compiled == 0);
    fake->compile_hold = 0;
    ranks_join(&r);
    CHECK(fake->compiled == kernels);
    ranks_start(&r, GPUS, three_rank, NULL); /* another worker, that takes them from the disk */
    ranks_join(&r);
    CHECK(fake->compiled == kernels);
    fake_stop(&d);
}

/* One step of several does not compile: all ranks hear of its line, and of no other, and nothing is bound. */
static void failing_step_rank(int rank, const struct ranks *all, void *argument)
{
    struct three_memory *m = calloc(1, sizeof(*m));

    (void)argument;
    driver_use();
    CHECK(m != NULL);
    fcc_context *context = client_connect(NULL);
    fcc_comm *comm = client_join(context, &all->id, all->n, rank, 0);
    fcc_program *p = three_open(comm, m);
    if (rank == 0)
        (void)snprintf(fake->compile_refuses, sizeof(fake->compile_refuses), "step_exp(");
    OK(fcc_noop(comm));
    FAILS(fcc_program_prepare(p), -EOPNOTSUPP,
          "its kernel cannot be made: the compiler for GPUs (fake): it has refused step_exp(", "(line 6 of program `three`)");
    FAILS(fcc_program_enqueue(p, NULL), -EINVAL, "it is not prepared");
    fcc_program_close(p);
    fcc_comm_destroy(comm);
    client_end(context);
    free(m);
}

static void failing_step(void)
{
    scene_run(PAIR, failing_step_rank, NULL);
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {
        {"cases_of_one", cases_of_one, 300},
        {"cases_of_two", cases_of_two, 300},
        {"cases_of_three", cases_of_three, 300},
        {"numbers", numbers, 0},
        {"numbers_of_three", numbers_of_three, 0},
        {"moved", moved, 0},
        {"outlive", outlive, 0},
        {"refused", refused, 0},
        {"no_compiler", no_compiler, 0},
        {"missing_compiler", missing_compiler, 0},
        {"failing_compiler", failing_compiler, 0},
        {"side_by_side", side_by_side, 0},
        {"failing_step", failing_step, 0},
        {"on_cpus", on_cpus, 0},
        {"on_one_gpu", on_one_gpu, 0},
    };
    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_steps", TESTS(tests));
}
