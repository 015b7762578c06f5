/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_guard_products.c - guarded programs with products, with the real daemon and the real library on fake GPUs: their results are right, on
 * streams and in graphs; where two ranks differ, or one refuses, all hear why, no tensor has changed, and the next runs are right; a rank that does not come
 * ends them.
 */
#include "tests/fake_gpu/fake_gpu_steps.h"

#define WHY "the loss is not a number"

/* A sum of a product on all ranks; its rows on each; one of few rows by a matrix that is stored transposed, with a bias; a product alone, with a residual; and a sum that
 * elements follow, and a collective. */
static const char products[] =
    "program products(N = 12)\nin x: f32[N, N] sliced(1)\nin w: f32[N, N] sliced(0)\nin v: f32[N, N] sliced(1)\n"
    "in r, q: f32[N, N]\nin b: f32[N]\nout y, u, d: f32[N, N]\nout c: f32[N, N] sliced(0)\ninout z: f32[N, N]\nscalar k\n\n"
    "p1 = matmul(x, w)\ny = all_reduce(p1)\np2 = matmul(x, w)\nc = reduce_scatter(p2, 0)\n"
    "p3 = matmul(x, transpose(v))\ns3 = all_reduce(p3)\nu = s3 + b\np4 = matmul(r, q)\nd = p4 + r\n"
    "p5 = matmul(x, w)\ns5 = all_reduce(p5)\nz = z + s5 * k\n\n"
    "schedule\nfuse p3, s3, u as thin\nfuse p4, d as alone\n";
enum { N = 12, SMALLER = 6, TENSORS = 11, ROOM = N * N };
enum { X, W, V, R, Q, B, Y, U, D, C, Z };
static const char *const names[TENSORS] = {"x", "w", "v", "r", "q", "b", "y", "u", "d", "c", "z"};

struct products {
    fcc_context *context;
    fcc_comm *comm;
    fcc_program *program;
    void *stream;
    float memory[TENSORS][ROOM];
    int rank, n, count; /* runs that were some */
};

static void tensors_give(fcc_program *p, float memory[TENSORS][ROOM])
{
    for (int i = 0; i < TENSORS; i++) {
        const struct fcc_tensor t =
            fcc_tensor_1d(FCC_ADDRESS, (uint64_t)(uintptr_t)memory[i], FCC_F32, fcc_program_elements(p, names[i]));
        OK(fcc_program_tensor(p, names[i], &t));
    }
    OK(fcc_program_scalar(p, "k", 2));
}

static void results_spoil(struct products *s)
{
    for (int i = Y; i <= C; i++)
        for (int at = 0; at < ROOM; at++)
            s->memory[i][at] = -1;
}

static struct products *products_open(const struct ranks *all, int rank, uint32_t limit_ms)
{
    struct products *s = calloc(1, sizeof(*s));

    driver_use();
    CHECK(s != NULL);
    s->rank = rank;
    s->n = all->n;
    for (int i = X; i <= B; i++)
        for (int at = 0; at < ROOM; at++)
            s->memory[i][at] = i == X ? (float)(rank + 1) : (float)i;
    s->context = client_connect(NULL);
    s->comm = client_join(s->context, &all->id, all->n, rank, limit_ms);
    s->stream = stream_open();
    OK(fcc_program_open(s->comm, products, strlen(products), NULL, 0, &s->program));
    tensors_give(s->program, s->memory);
    OK(fcc_program_prepare_guarded(s->program));
    results_spoil(s);
    return s;
}

static void products_close(struct products *s)
{
    fcc_program_close(s->program);
    stream_close(s->stream);
    fcc_comm_destroy(s->comm);
    client_end(s->context);
    free(s);
}

static void value_check(const struct products *s, int tensor, float value)
{
    const int64_t elements = fcc_program_elements(s->program, names[tensor]);

    for (int64_t at = 0; at < elements; at++)
        if (s->memory[tensor][at] != value)
            check_failed(__FILE__, __LINE__, "rank %d of %d: %s[%d] is %g, expected is %g", s->rank, s->n, names[tensor],
                         (int)at, (double)s->memory[tensor][at], (double)value);
}

/* The last run was one, or none. */
static void results_check(struct products *s, bool was)
{
    const int whole = N / 2 * (s->n + 1); /* the sum of the ranks' x, over the columns of each */
    const float sum = (float)whole;

    value_check(s, Y, was ? W * sum : -1);
    value_check(s, C, was ? W * sum : -1);
    value_check(s, U, was ? V * sum + B : -1);
    value_check(s, D, was ? (float)(R * Q * N + R) : -1);
    value_check(s, Z, 2 * W * sum * (float)s->count);
    results_spoil(s);
}

/* All ranks go on from here, and have no error that was not heard of. */
static void all_meet(const struct products *s)
{
    stream_sync(s->stream);
    OK(fcc_noop(s->comm));
    OK(fcc_comm_error_wait(s->comm, -1));
}

static void goes_on(struct products *s, void *graph)
{
    for (int i = 0; i < 3; i++) {
        if (graph)
            driver->graph_launch(graph, s->stream);
        else
            OK(fcc_program_enqueue(s->program, s->stream));
        s->count++;
        all_meet(s);
        results_check(s, true);
    }
}

static void *captured(struct products *s)
{
    driver->capture_begin();
    OK(fcc_program_enqueue(s->program, s->stream));
    return driver->capture_end();
}

/* The last run on the stream was none, for this reason, and has changed nothing. */
static void none_check(struct products *s, const char *const says[])
{
    stream_sync(s->stream);
    check_error(__FILE__, __LINE__, "fcc_comm_error_wait", fcc_comm_error_wait(s->comm, -1), -EINVAL, says);
    all_meet(s);
    results_check(s, false);
}

/* ---- what is well ---- */

static void runs_rank(int rank, const struct ranks *all, void *argument)
{
    struct products *s = products_open(all, rank, 0);

    (void)argument;
    goes_on(s, NULL);
    void *graph = captured(s);
    goes_on(s, graph);
    goes_on(s, NULL);
    OK(fcc_program_prepare(s->program)); /* not guarded any more, and again */
    goes_on(s, NULL);
    OK(fcc_program_prepare_guarded(s->program));
    goes_on(s, NULL);
    driver->graph_destroy(graph);
    products_close(s);
}

static void runs(void)
{
    guarded_run(PAIR, runs_rank, NULL);
}

static void runs_of_three(void)
{
    guarded_run(GPUS, runs_rank, NULL);
}

static void runs_alone(void)
{
    guarded_run(1, runs_rank, NULL);
}

/* ---- ranks that differ ---- */

static fcc_program *smaller_open(struct products *s, float memory[TENSORS][ROOM])
{
    static const struct fcc_program_size smaller = {.name = "N", .value = SMALLER};
    fcc_program *p;

    OK(fcc_program_open(s->comm, products, strlen(products), &smaller, 1, &p));
    tensors_give(p, memory);
    OK(fcc_program_prepare_guarded(p));
    return p;
}

/* The last rank brings other sizes, a product of its own, other numbers, or a run of its own in the place of a replay. */
static void differ_rank(int rank, const struct ranks *all, void *argument)
{
    struct products *s = products_open(all, rank, 0);
    const bool odd = rank == all->n - 1;
    fcc_program *other = smaller_open(s, s->memory);
    const struct fcc_gemv_all_reduce_args gemv = {
        .x = fcc_tensor_2d(FCC_ADDRESS, (uint64_t)(uintptr_t)s->memory[X], FCC_F32, 1, N),
        .w = fcc_tensor_2d(FCC_ADDRESS, (uint64_t)(uintptr_t)s->memory[V], FCC_F32, N, N),
        .y = fcc_tensor_2d(FCC_ADDRESS, (uint64_t)(uintptr_t)s->memory[Y], FCC_F32, 1, N)};

    (void)argument;
    goes_on(s, NULL);
    OK(fcc_program_enqueue(odd ? other : s->program, s->stream));
    none_check(s, (const char *const[]){"runs program products(N = 6)", "runs program products(N = 12)", NULL});
    goes_on(s, NULL);
    OK(odd ? fcc_gemv_all_reduce_enqueue(s->comm, &gemv, s->stream, NULL) : fcc_program_enqueue(s->program, s->stream));
    stream_sync(s->stream);
    if (odd)
        results_spoil(s); /* what it has called itself may have been stored into */
    none_check(s, (const char *const[]){"called program products(N = 12)", "called gemv_all_reduce of f32", NULL});
    goes_on(s, NULL);
    OK(fcc_program_scalar(s->program, "k", odd ? 3 : 2));
    OK(fcc_program_enqueue(s->program, s->stream));
    none_check(s, (const char *const[]){"program products(N = 12): scalars: ", "have other values than", NULL});
    OK(fcc_program_scalar(s->program, "k", 2));
    goes_on(s, NULL);
    void *graph = captured(s);
    if (odd)
        driver->graph_launch(graph, s->stream);
    else
        OK(fcc_program_enqueue(s->program, s->stream));
    none_check(s, (const char *const[]){"replays a graph", "does not: allowed is the same on all ranks", NULL});
    goes_on(s, graph);
    driver->graph_destroy(graph);
    fcc_program_close(other);
    products_close(s);
}

static void differ(void)
{
    guarded_run(PAIR, differ_rank, NULL);
}

static void differ_of_three(void)
{
    guarded_run(GPUS, differ_rank, NULL);
}

/* ---- a rank refuses ---- */

static void refuses_rank(int rank, const struct ranks *all, void *argument)
{
    struct products *s = products_open(all, rank, 0);
    const bool odd = rank == all->n - 1;
    void *graph = captured(s);

    (void)argument;
    for (int round = 0; round < 4; round++) {
        if (odd)
            OK(fcc_program_refuse_enqueue(s->program, WHY, s->stream));
        else if (round % 2)
            driver->graph_launch(graph, s->stream);
        else
            OK(fcc_program_enqueue(s->program, s->stream));
        stream_sync(s->stream);
        FAILS(fcc_comm_error_wait(s->comm, -1), odd ? 0 : -EINVAL, odd ? "" : "program products(N = 12): " WHY);
        all_meet(s);
        results_check(s, false);
        goes_on(s, round < 2 ? graph : NULL);
    }
    driver->graph_destroy(graph);
    products_close(s);
}

static void refuses(void)
{
    guarded_run(PAIR, refuses_rank, NULL);
}

static void refuses_of_three(void)
{
    guarded_run(GPUS, refuses_rank, NULL);
}

/* ---- a rank does not come ---- */

enum end { LATE, KILLED, ABORTED };
static const struct {
    int status;
    const char *says;
} verdicts[] = {[LATE] = {-ETIMEDOUT, "rank 1 did not come within the time limit"},
                [KILLED] = {-ECONNABORTED, "rank 1"},
                [ABORTED] = {-ECONNABORTED, WHY}};

struct ending {
    enum end end;
    bool replayed;
    _Atomic int ready, heard;
};

/* The second rank has runs with the first one, and does not come to the next, which begins with products' guard and is none. */
static void ends_rank(int rank, const struct ranks *all, void *argument)
{
    struct ending *e = argument;
    struct products *s = products_open(all, rank, e->end == LATE ? hang_limit_ms() : 0);

    goes_on(s, NULL);
    void *graph = captured(s);
    goes_on(s, graph);
    if (rank == 0) {
        if (e->replayed)
            driver->graph_launch(graph, s->stream);
        else
            OK(fcc_program_enqueue(s->program, s->stream));
        e->ready++;
        stream_sync(s->stream);
        e->heard++;
    } else {
        await(&e->ready, 1);
        if (e->end == KILLED)
            (void)raise(SIGKILL);
        if (e->end == ABORTED)
            OK(fcc_comm_abort(s->comm, WHY));
        await(&e->heard, 1);
    }
    FAILS(fcc_noop(s->comm), verdicts[e->end].status, verdicts[e->end].says);
    FAILS(fcc_program_enqueue(s->program, s->stream), verdicts[e->end].status, "");
    driver->graph_launch(graph, s->stream); /* it ends at once */
    stream_sync(s->stream);
    value_check(s, U, -1);
    value_check(s, D, -1);
    value_check(s, Y, -1);
    value_check(s, C, -1);
    driver->graph_destroy(graph);
    products_close(s);
}

static void ends_run(enum end end, bool replayed)
{
    struct ending *e = shared_memory(sizeof(*e));
    struct test_daemon d;
    struct ranks r;

    CHECK(setenv("FCC_TEST_DEVICE", "cuda", 1) == 0);
    fake_start(&d, GPUS, NULL);
    fake->library = 1;
    *e = (struct ending){.end = end, .replayed = replayed};
    ranks_start(&r, PAIR, ends_rank, e);
    if (end == KILLED) {
        CHECK(WIFSIGNALED(rank_wait(&r, 1)));
        fake->prepared -= 2; /* it had the rings open, and a step of code with its kernel */
        fake->codes--;
    }
    ranks_join(&r);
    CHECK(fake->prepared == 0);
    fake_stop(&d);
    CHECK(fake->wrong == 0);
}

#define ENDING(name, end)                                                                                                      \
    static void name##_run(void)                                                                                               \
    {                                                                                                                          \
        ends_run(end, false);                                                                                                  \
    }                                                                                                                          \
    static void name##_replayed(void)                                                                                          \
    {                                                                                                                          \
        ends_run(end, true);                                                                                                   \
    }
ENDING(late, LATE)
ENDING(killed, KILLED)
ENDING(aborted, ABORTED)

int main(int argc, char *argv[])
{
    static const struct test tests[] = {
        {"runs", runs, 0},
        {"runs_of_three", runs_of_three, 0},
        {"runs_alone", runs_alone, 0},
        {"differ", differ, 0},
        {"differ_of_three", differ_of_three, 0},
        {"refuses", refuses, 0},
        {"refuses_of_three", refuses_of_three, 0},
        {"late", late_run, 0},
        {"late_replayed", late_replayed, 0},
        {"killed", killed_run, 0},
        {"killed_replayed", killed_replayed, 0},
        {"aborted", aborted_run, 0},
        {"aborted_replayed", aborted_replayed, 0},
    };
    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_guard_products", TESTS(tests));
}
