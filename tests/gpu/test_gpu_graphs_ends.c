/* SPDX-License-Identifier: MIT
 *
 * test_gpu_graphs_ends.c - replays that a rank does not come to, that overlap, and that outlive their operator, through the real daemon on
 * NVIDIA GPUs: the streams go on, all ranks hear why, and the GPUs are free for another communicator.
 */
#include "tests/gpu/gpu_client.h"

enum { LIMIT_MS = 500, WIDE = 2048 };
#define WHY "the loss is not a number"

/* The last rank replays no more, and nothing comes of it; or it aborts the communicator. Or the first one replays two graphs at a time. */
enum event { LATE, ABORTED, CLASH };

static const struct {
    int status;
    const char *says[3]; /* NULL at the end */
} verdicts[] = {
    [LATE] = {-ETIMEDOUT, {"run 4", "did not come within the time limit"}},
    [ABORTED] = {-ECONNABORTED, {WHY}},
    [CLASH] = {-EINVAL, {"rank 0: ", "two of its runs were under way at a time"}},
};

struct scene {
    enum event event;
    bool rows; /* of a gemm, for which the ranks meet */
    int n;
    struct fcc_unique_id other;
    _Atomic int gates[4];
    _Atomic int waiting;
};

static void gate_pass(struct scene *scene, int gate)
{
    scene->gates[gate]++;
    await(&scene->gates[gate], scene->n);
}

static void *run_capture(fcc_prepared *prepared, void *stream)
{
    CU(gpu.capture_begin(stream, CUDA_CAPTURE_GLOBAL));
    OK(fcc_prepared_enqueue(prepared, stream));
    return capture_finish(stream);
}

/* Whoever is left, on the same GPUs. */
static void other_works(const struct scene *scene, fcc_context *context, int rank, void *stream)
{
    fcc_comm *comm = client_join(context, &scene->other, scene->n, rank, gpu.number, 0);
    struct product p = product_open(comm, SENT_ROWS * scene->n);
    fcc_prepared *prepared = product_prepare(&p, false);
    void *graph = run_capture(prepared, stream);

    for (int i = 5; i < 8; i++) {
        gpu_fill(stream, p.x, PRODUCT_K, (float)i);
        CU(gpu.graph_launch(graph, stream));
        product_fetch(&p, stream);
        CU(gpu.stream_synchronize(stream));
        product_check(&p, gpu.host, (float)i);
    }
    product_works(&p, 7);
    CU(gpu.exec_destroy(graph));
    fcc_comm_destroy(comm);
}

/* It is over, and stays so: replays end at once. */
static void verdict_check(const struct scene *scene, const struct product *p, fcc_prepared *prepared, void *graph, void *stream,
                          const int32_t *status)
{
    double until = now_ms() + 60e3, begun;

    while (!__atomic_load_n(status, __ATOMIC_ACQUIRE))
        CHECK(now_ms() < until);
    CHECK(*status == verdicts[scene->event].status);
    begun = now_ms();
    for (int i = 0; i < 10; i++)
        CU(gpu.graph_launch(graph, stream));
    CU(gpu.stream_synchronize(stream));
    printf("rank %d: ten replays that were over took %.3f ms\n", fcc_comm_rank(p->comm), now_ms() - begun);
    FAILS(fcc_prepared_enqueue(prepared, stream), verdicts[scene->event].status);
    check_error(__FILE__, __LINE__, "fcc_noop", fcc_noop(p->comm), verdicts[scene->event].status, verdicts[scene->event].says);
    printf("rank %d heard: %s\n", fcc_comm_rank(p->comm), fcc_last_error());
}

/* What each rank does when all have replayed three times. */
static void event_make(struct scene *scene, const struct product *p, fcc_prepared *prepared, void *graph, void *stream)
{
    bool is_last = fcc_comm_rank(p->comm) == scene->n - 1;
    void *other = NULL, *second = NULL;

    if (scene->event == CLASH && fcc_comm_rank(p->comm) == 0) {
        second = stream_open(CUDA_STREAM_OWN_ORDER);
        other = run_capture(prepared, second);
        CU(gpu.graph_launch(graph, stream));
        CU(gpu.graph_launch(other, second));
        scene->waiting++;
    } else if (!is_last) {
        CU(gpu.graph_launch(graph, stream));
        scene->waiting++;
    } else {
        await(&scene->waiting, scene->n - 1);
        (void)usleep(100000); /* the others' kernels are there */
        if (scene->event == ABORTED)
            OK(fcc_comm_abort(p->comm, WHY));
        for (int i = 0; i < 2 && scene->event == CLASH; i++)
            CU(gpu.graph_launch(graph, stream));
    }
    CU(gpu.stream_synchronize(stream));
    if (second)
        CU(gpu.stream_synchronize(second));
    if (other)
        CU(gpu.exec_destroy(other));
}

static void event_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;
    fcc_context *context = client_connect(NULL);
    fcc_comm *comm = client_join(context, &all->id, scene->n, rank, -1, scene->event == LATE ? LIMIT_MS : 0);
    const int32_t *status;

    gpu_open(comm);
    struct product p = product_open(comm, SENT_ROWS * scene->n);
    fcc_prepared *prepared = product_prepare(&p, scene->rows);
    void *stream = stream_open(CUDA_STREAM_OWN_ORDER), *graph = run_capture(prepared, stream);
    OK(fcc_comm_status(comm, &status));
    OK(fcc_noop(comm));
    gate_pass(scene, 0);
    for (int i = 0; i < 3; i++)
        CU(gpu.graph_launch(graph, stream));
    CU(gpu.stream_synchronize(stream));
    gate_pass(scene, 1);
    event_make(scene, &p, prepared, graph, stream);
    verdict_check(scene, &p, prepared, graph, stream, status);
    fcc_prepared_free(prepared);
    CU(gpu.graph_launch(graph, stream));
    CU(gpu.stream_synchronize(stream));
    gate_pass(scene, 2);
    other_works(scene, context, rank, stream);
    fcc_comm_destroy(comm);
    CU(gpu.graph_launch(graph, stream));
    CU(gpu.stream_synchronize(stream));
    CU(gpu.exec_destroy(graph));
    fcc_disconnect(context);
}

static void scene_run(enum event event, bool rows, void (*rank)(int, const struct ranks *, void *))
{
    struct scene *scene = shared_memory(sizeof(*scene));
    struct test_daemon d;
    struct ranks r;

    if (gpus < 2)
        test_skip("skipped: this machine has one GPU");
    daemon_start(&d, NULL);
    *scene = (struct scene){.event = event, .rows = rows, .n = gpus > 2 ? 3 : 2};
    fcc_context *context = client_connect(NULL);
    OK(fcc_get_unique_id(context, &scene->other));
    fcc_disconnect(context);
    ranks_start(&r, scene->n, rank, scene);
    ranks_join(&r);
    daemon_stop(&d);
}

#define EVENT(name, event, rows)                                                                                               \
    static void name(void)                                                                                                     \
    {                                                                                                                          \
        scene_run(event, rows, event_rank);                                                                                    \
    }
EVENT(never_comes, LATE, false)
EVENT(never_comes_for_rows, LATE, true)
EVENT(aborted, ABORTED, false)
EVENT(aborted_for_rows, ABORTED, true)
EVENT(clash, CLASH, false)
EVENT(clash_for_rows, CLASH, true)

/* ---- graphs that outlive what they use ---- */

/* Several rows of f16, whose kernel begins before it knows that it is over: product_open()'s tensors, but larger. */
static fcc_prepared *wide_prepare(fcc_comm *comm, int m)
{
    fcc_buffer *x, *w, *y;
    fcc_prepared *prepared;

    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, (size_t)m * WIDE * 2, &x));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, (size_t)WIDE * WIDE * 2, &w));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, (size_t)m * WIDE * 2, &y));
    struct fcc_gemv_all_reduce_args args = {.x = fcc_tensor_2d(x, 0, FCC_F16, m, WIDE),
                                            .w = fcc_tensor_2d(w, 0, FCC_F16, WIDE, WIDE),
                                            .y = fcc_tensor_2d(y, 0, FCC_F16, m, WIDE)};
    OK(fcc_gemv_all_reduce_prepare(comm, &args, &prepared));
    return prepared;
}

/* A graph of all kinds, of operators that one after the other are gone: freed, with their communicator, with the connection. */
static void outlive_rank(int rank, const struct ranks *all, void *argument)
{
    static const int rows[] = {1, 8, 64};
    struct scene *scene = argument;
    fcc_context *context = client_connect(NULL);
    fcc_comm *comm = client_join(context, &all->id, scene->n, rank, -1, 0);
    fcc_prepared *prepared[5];

    gpu_open(comm);
    struct product p = product_open(comm, SENT_ROWS * scene->n);
    for (int i = 0; i < 3; i++)
        prepared[i] = wide_prepare(comm, rows[i]);
    prepared[3] = product_prepare(&p, false);
    prepared[4] = product_prepare(&p, true);
    void *stream = stream_open(CUDA_STREAM_OWN_ORDER);
    CU(gpu.capture_begin(stream, CUDA_CAPTURE_GLOBAL));
    for (int i = 0; i < 5; i++)
        OK(fcc_prepared_enqueue(prepared[i], stream));
    void *graph = capture_finish(stream);
    for (int i = 0; i < 3; i++)
        CU(gpu.graph_launch(graph, stream));
    CU(gpu.stream_synchronize(stream));
    gate_pass(scene, 0);
    for (int i = 0; i < 5; i += 2)
        fcc_prepared_free(prepared[i]);
    gate_pass(scene, 1);
    fcc_comm_destroy(comm);
    for (int i = 0; i < 10; i++)
        CU(gpu.graph_launch(graph, stream));
    CU(gpu.stream_synchronize(stream));
    gate_pass(scene, 2);
    other_works(scene, context, rank, stream);
    for (int i = 0; i < 10; i++)
        CU(gpu.graph_launch(graph, stream));
    CU(gpu.stream_synchronize(stream));
    fcc_disconnect(context);
    for (int i = 0; i < 10; i++)
        CU(gpu.graph_launch(graph, stream));
    CU(gpu.stream_synchronize(stream));
    CU(gpu.exec_destroy(graph));
    context = client_connect(NULL);
    fcc_disconnect(context);
}

static void outlives(void)
{
    scene_run(LATE, false, outlive_rank);
}

int main(void)
{
    static const struct test tests[] = {
        {"never_comes", never_comes, 0},
        {"never_comes_for_rows", never_comes_for_rows, 0},
        {"aborted", aborted, 0},
        {"aborted_for_rows", aborted_for_rows, 0},
        {"clash", clash, 0},
        {"clash_for_rows", clash_for_rows, 0},
        {"outlives", outlives, 0},
    };
    return gpus_found() ? tests_run("gpu_graphs_ends", TESTS(tests)) : EXIT_SUCCESS;
}
