/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_guards.c - guarded programs, whose ranks compare each run before they make it, with the real daemon and the real library on fake GPUs: where two ranks
 * differ, or one refuses, all of them hear why, no tensor has changed, and the next runs are as if nothing had happened. How runs end is in
 * test_gpu_worker_steps_ends.c.
 */
#include "tests/fake_gpu/fake_gpu_steps.h"

#define WHY "the loss is not a number"

static void scene_run(int n, void (*rank)(int, const struct ranks *, void *))
{
    struct test_daemon d;
    struct ranks r;

    CHECK(setenv("FCC_TEST_DEVICE", "cuda", 1) == 0);
    fake_start(&d, GPUS, NULL);
    ranks_start(&r, n, rank, NULL);
    ranks_join(&r);
    fake_stop(&d);
}

/* All ranks go on from here, and have no error that was not heard of. */
static void all_meet(const struct bound *b)
{
    stream_sync(b->stream);
    OK(fcc_noop(b->comm));
    OK(fcc_comm_error_wait(b->comm, -1));
}

/* Runs are right, whatever was before. */
static void goes_on(struct bound *b)
{
    for (int i = 0; i < 3; i++) {
        OK(fcc_program_enqueue(b->program, b->stream));
        bound_count(b, 1, 1);
    }
    all_meet(b);
    bound_check(b);
}

static struct bound guarded_open(const struct ranks *all, int rank)
{
    struct bound b = bound_open(all, rank, 0);

    OK(fcc_program_prepare_guarded(b.program));
    return b;
}

/* The last run on the stream was none, for this reason, and has changed nothing. */
static void none_check(struct bound *b, const char *const says[])
{
    stream_sync(b->stream);
    check_error(__FILE__, __LINE__, "fcc_comm_error_wait", fcc_comm_error_wait(b->comm, -1), -EINVAL, says);
    all_meet(b);
    bound_check(b);
}

/* ---- what is well ---- */

/* On the stream and by replays in turns, with numbers of their own. It may be prepared otherwise. */
static void runs_rank(int rank, const struct ranks *all, void *argument)
{
    struct bound b = guarded_open(all, rank);

    (void)argument;
    driver->capture_begin();
    OK(fcc_program_enqueue(b.program, b.stream));
    void *graph = driver->capture_end();
    for (int i = 0; i < 6; i++) {
        scalars_give(&b, i + 1, i % 2);
        if (i % 3 == 2) {
            OK(fcc_program_scalars_enqueue(b.program, b.stream));
            driver->graph_launch(graph, b.stream);
        } else {
            OK(fcc_program_enqueue(b.program, b.stream));
        }
        bound_count(&b, (float)(i + 1), (float)(i % 2));
    }
    all_meet(&b);
    bound_check(&b);
    OK(fcc_program_prepare(b.program)); /* not guarded any more: what the graph has is over */
    FAILS(fcc_program_refuse_enqueue(b.program, WHY, b.stream), -EINVAL,
          "`sgd`: needed before is fcc_program_prepare_guarded()");
    scalars_give(&b, 1, 1);
    goes_on(&b);
    OK(fcc_program_prepare_guarded(b.program));
    goes_on(&b);
    driver->graph_destroy(graph);
    bound_close(&b);
}

static void runs(void)
{
    scene_run(PAIR, runs_rank);
}

static void runs_of_three(void)
{
    scene_run(GPUS, runs_rank);
}

static void runs_alone(void)
{
    scene_run(1, runs_rank);
}

/* ---- ranks that differ ---- */

static const struct fcc_program_size shorter = {.name = "N", .value = ELEMENTS - 1};

/* A program of other sizes, with the same tensors. */
static fcc_program *shorter_open(const struct bound *b)
{
    struct bound with = *b;

    OK(fcc_program_open(b->comm, sgd, strlen(sgd), &shorter, 1, &with.program));
    tensor_give(&with, "g", b->g, NULL, ELEMENTS - 1);
    tensor_give(&with, "p", b->p, NULL, ELEMENTS - 1);
    tensor_give(&with, "m", FCC_ADDRESS, b->m, own_elements(&with));
    scalars_give(&with, 1, 1);
    OK(fcc_program_prepare_guarded(with.program));
    return with.program;
}

static void sum_enqueue(const struct bound *b, float memory[])
{
    const struct fcc_tensor t = fcc_tensor_1d(FCC_ADDRESS, (uint64_t)(uintptr_t)memory, FCC_F32, 8);

    OK(fcc_all_reduce_enqueue(b->comm, &(struct fcc_all_reduce_args){.in = t, .out = t}, b->stream, NULL));
}

/* The last rank does something else in the place of a run, on its stream or by replays: another program, a collective, other numbers. */
static void differ_rank(int rank, const struct ranks *all, void *argument)
{
    struct bound b = guarded_open(all, rank);
    const bool odd = rank == all->n - 1;
    float memory[8] = {0};
    char last[32];

    (void)argument;
    (void)snprintf(last, sizeof(last), "rank %d runs", all->n - 1);
    fcc_program *other = shorter_open(&b);
    goes_on(&b);
    OK(fcc_program_enqueue(odd ? other : b.program, b.stream));
    none_check(&b, (const char *const[]){"runs program sgd(N = 3001)", "runs program sgd(N = 3000)", last, NULL});
    goes_on(&b);
    if (odd)
        sum_enqueue(&b, memory);
    else
        OK(fcc_program_enqueue(b.program, b.stream));
    none_check(&b, (const char *const[]){"called program sgd(N = 3001)", "called all_reduce of f32", NULL});
    goes_on(&b);
    scalars_give(&b, odd ? 2 : 1, 1);
    OK(fcc_program_enqueue(b.program, b.stream));
    none_check(&b, (const char *const[]){"program sgd(N = 3001): scalars: ", "have other values than", NULL});
    scalars_give(&b, 1, 1);
    goes_on(&b);
    driver->capture_begin();
    OK(fcc_program_enqueue(odd ? other : b.program, b.stream));
    void *graph = driver->capture_end();
    driver->graph_launch(graph, b.stream);
    none_check(&b, (const char *const[]){"runs program sgd(N = 3001)", "runs program sgd(N = 3000)", NULL});
    goes_on(&b);
    driver->graph_destroy(graph);
    driver->capture_begin();
    OK(fcc_program_enqueue(b.program, b.stream));
    graph = driver->capture_end();
    if (odd)
        driver->graph_launch(graph, b.stream);
    else
        OK(fcc_program_enqueue(b.program, b.stream));
    none_check(&b, (const char *const[]){"replays a graph", "does not: allowed is the same on all ranks", NULL});
    goes_on(&b);
    driver->graph_launch(graph, b.stream);
    bound_count(&b, 1, 1);
    goes_on(&b);
    driver->graph_destroy(graph);
    fcc_program_close(other);
    bound_close(&b);
}

static void differ(void)
{
    scene_run(PAIR, differ_rank);
}

static void differ_of_three(void)
{
    scene_run(GPUS, differ_rank);
}

/* ---- a rank refuses ---- */

/* What has come behind it on the stream runs all the same, and the reason is heard when the program asks. */
static void refuses_rank(int rank, const struct ranks *all, void *argument)
{
    struct bound b = guarded_open(all, rank);
    const bool odd = rank == all->n - 1;
    char says[96];

    (void)argument;
    (void)snprintf(says, sizeof(says), "rank %d: program sgd(N = 3001): " WHY, all->n - 1);
    for (int round = 0; round < 3; round++) {
        if (odd)
            OK(fcc_program_refuse_enqueue(b.program, round ? WHY : "rank 9: " WHY, b.stream));
        else
            OK(fcc_program_enqueue(b.program, b.stream));
        for (int i = 0; i < round; i++) {
            OK(fcc_program_enqueue(b.program, b.stream));
            bound_count(&b, 1, 1);
        }
        stream_sync(b.stream);
        if (odd)
            OK(fcc_comm_error_wait(b.comm, -1));
        else
            FAILS(fcc_comm_error_wait(b.comm, -1), -EINVAL, round ? says : WHY);
        all_meet(&b);
        bound_check(&b);
    }
    /* In the place of a replay, and of a capture, which is no run. */
    driver->capture_begin();
    OK(odd ? fcc_program_refuse_enqueue(b.program, WHY, b.stream) : fcc_program_enqueue(b.program, b.stream));
    void *graph = driver->capture_end();
    if (odd)
        OK(fcc_program_refuse_enqueue(b.program, WHY, b.stream));
    else
        driver->graph_launch(graph, b.stream);
    stream_sync(b.stream);
    if (odd)
        OK(fcc_comm_error_wait(b.comm, -1));
    else
        FAILS(fcc_comm_error_wait(b.comm, -1), -EINVAL, says);
    goes_on(&b);
    FAILS(fcc_program_refuse_enqueue(NULL, WHY, b.stream), -EINVAL, "program: NULL");
    FAILS(fcc_program_refuse_enqueue(b.program, NULL, b.stream), -EINVAL, "reason: NULL");
    driver->graph_destroy(graph);
    bound_close(&b);
}

static void refuses(void)
{
    scene_run(PAIR, refuses_rank);
}

static void refuses_of_three(void)
{
    scene_run(GPUS, refuses_rank);
}

/* ---- several steps ---- */

/* Elements, a collective, and elements again, which all change y. */
static const char steps[] = "program steps(N = 400)\nin x: f32[N] local\ninout y, z: f32[N]\nscalar k\n\n"
                            "a = x * k\nb = a + 1\ns = all_reduce(b)\nz = z + s\ny = y + s * 2\n";
enum { STEPS_N = 400 };

static void steps_tensor(fcc_program *p, const char *name, const float *at)
{
    const struct fcc_tensor t = fcc_tensor_1d(FCC_ADDRESS, (uint64_t)(uintptr_t)at, FCC_F32, STEPS_N);

    OK(fcc_program_tensor(p, name, &t));
}

static void steps_check(const float *y, const float *z, int count, int n)
{
    const float each = (float)(n * (n + 1)) + (float)n; /* k is 2, and x rank + 1 */

    for (int i = 0; i < STEPS_N; i++)
        CHECK(z[i] == each * (float)count && y[i] == 2 * each * (float)count);
}

static void steps_rank(int rank, const struct ranks *all, void *argument)
{
    float *x = calloc(3 * (size_t)STEPS_N, sizeof(*x)), *y = x + STEPS_N, *z = y + STEPS_N;
    const bool odd = rank == all->n - 1;
    int count = 0;
    fcc_program *p;

    (void)argument;
    driver_use();
    CHECK(x != NULL);
    for (int i = 0; i < STEPS_N; i++)
        x[i] = (float)(rank + 1);
    fcc_context *context = client_connect(NULL);
    fcc_comm *comm = client_join(context, &all->id, all->n, rank, 0);
    void *on = stream_open();
    OK(fcc_program_open(comm, steps, strlen(steps), NULL, 0, &p));
    steps_tensor(p, "x", x);
    steps_tensor(p, "y", y);
    steps_tensor(p, "z", z);
    OK(fcc_program_scalar(p, "k", 2));
    OK(fcc_program_prepare_guarded(p));
    driver->capture_begin();
    OK(fcc_program_enqueue(p, on));
    void *graph = driver->capture_end();
    for (int round = 0; round < 8; round++) {
        const bool lost = round % 4 == 1 || round % 4 == 3;
        if (odd && lost)
            OK(fcc_program_refuse_enqueue(p, WHY, on));
        else if (round % 4 < 2)
            OK(fcc_program_enqueue(p, on));
        else
            driver->graph_launch(graph, on);
        count += !lost;
        stream_sync(on);
        FAILS(fcc_comm_error_wait(comm, -1), lost && !odd ? -EINVAL : 0, lost && !odd ? WHY : "");
        OK(fcc_noop(comm));
        steps_check(y, z, count, all->n);
    }
    fcc_program_close(p);
    driver->graph_destroy(graph);
    stream_close(on);
    fcc_comm_destroy(comm);
    client_end(context);
    free(x);
}

static void several_steps(void)
{
    scene_run(PAIR, steps_rank);
}

static void several_steps_of_three(void)
{
    scene_run(GPUS, steps_rank);
}

/* ---- a rank that is about to agree with the others, which run ---- */

/* It waits for fccd, and they on their GPUs: that ends with the time limit, on all ranks, whose error says where each waits. */
static void agrees_rank(int rank, const struct ranks *all, void *argument)
{
    struct bound b = bound_open(all, rank, hang_limit_ms());
    const char *const says[] = {"did not come within the time limit", "rank 1 waits in program_step, which fccd launches",
                                "rank 0 waits in program_step, run 4, which it has launched itself", NULL};

    (void)argument;
    OK(fcc_program_prepare_guarded(b.program));
    goes_on(&b);
    if (rank) {
        check_error(__FILE__, __LINE__, "fcc_program_prepare_guarded", fcc_program_prepare_guarded(b.program), -ETIMEDOUT,
                    says);
    } else {
        OK(fcc_program_enqueue(b.program, b.stream));
        stream_sync(b.stream);
        check_error(__FILE__, __LINE__, "fcc_noop", fcc_noop(b.comm), -ETIMEDOUT, says);
    }
    FAILS(fcc_program_refuse_enqueue(b.program, WHY, b.stream), rank ? -EINVAL : -ETIMEDOUT, "");
    bound_close(&b);
}

static void agrees(void)
{
    scene_run(PAIR, agrees_rank);
}

/* ---- what cannot be prepared so ---- */

#define GROUPS "program apart(N = 8)\ngroups ranks\nin x: f32[N]\nout y: f32[N]\ny = send(x, 1) + 1\n"

static void unfit_rank(int rank, const struct ranks *all, void *argument)
{
    struct bound b = bound_open(all, rank, 0);
    float memory[2][8] = {{0}};
    fcc_program *p;

    (void)argument;
    FAILS(fcc_program_prepare_guarded(NULL), -EINVAL, "NULL");
    FAILS(rank ? fcc_program_prepare(b.program) : fcc_program_prepare_guarded(b.program), -EINVAL, "");
    FAILS(fcc_program_enqueue(b.program, b.stream), -EINVAL, "it is not prepared");
    FAILS(fcc_program_refuse_enqueue(b.program, WHY, b.stream), -EINVAL, "fcc_program_prepare_guarded()");
    OK(fcc_program_open(b.comm, GROUPS, strlen(GROUPS), NULL, 0, &p));
    for (int i = 0; i < 2; i++) {
        const struct fcc_tensor t = fcc_tensor_1d(FCC_ADDRESS, (uint64_t)(uintptr_t)memory[i], FCC_F32, 8);
        OK(fcc_program_tensor(p, i ? "y" : "x", &t));
    }
    FAILS(fcc_program_prepare_guarded(p), -EOPNOTSUPP,
          "groups of ranks: not in guarded programs yet: allowed is fcc_program_prepare()");
    fcc_program_close(p);
    OK(fcc_program_prepare_guarded(b.program));
    goes_on(&b);
    bound_close(&b);
}

static void unfit(void)
{
    scene_run(PAIR, unfit_rank);
}

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
        {"several_steps", several_steps, 0},
        {"several_steps_of_three", several_steps_of_three, 0},
        {"agrees", agrees, 0},
        {"unfit", unfit, 0},
    };
    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_guards", TESTS(tests));
}
