/* SPDX-License-Identifier: MIT
 *
 * test_gpu_regroup.c - jobs on NVIDIA GPUs that outlive one of their ranks, or fccd's broker. A rank is killed while the others wait for it, in operators that
 * they have launched, in graphs, and in those that the worker launches; they shrink the communicator, keep their buffers, and go on, and the old
 * communicator's graphs end at once. Brokers are killed, and started again, while operators of both kinds run all the time: none fails, and no result is wrong. A
 * rank dies without a kernel of its own running, so under MPS, too, no context is lost (test_gpu_jobs has that).
 *
 * How long things took is printed, and decides nothing.
 */
#include <stdio.h>

#include "tests/bed/keeper.h"
#include "tests/gpu/gpu_client.h"

enum { VICTIM = 1, BROKERS = 6, REPLAYS = 20 };

/* ---- a rank's operators ---- */

struct lane {
    fcc_comm *comm;
    struct product p;
    void *stream;
    fcc_prepared
        *prepared; /* which the rank launches; NULL: several ranks share a GPU, so the worker launches what is enqueued */
    void *graph;   /* of a run of `prepared`; NULL: of none */
};

static void lane_begin(struct lane *l, fcc_comm *comm, bool own)
{
    l->comm = comm;
    l->p = product_open(comm, 1);
    product_works(&l->p, 2);
    l->prepared = own ? product_prepare(&l->p, false) : NULL;
    l->graph = NULL;
    if (!own)
        return;
    CU(gpu.capture_begin(l->stream, CUDA_CAPTURE_THREAD_LOCAL));
    OK(fcc_prepared_enqueue(l->prepared, l->stream));
    l->graph = capture_finish(l->stream);
}

/* A run: by turns in the graph and as it is. */
static void lane_enqueue(const struct lane *l, int i)
{
    if (!l->prepared)
        product_enqueue(&l->p, 0, l->stream, NULL);
    else if (i % 2)
        OK(fcc_prepared_enqueue(l->prepared, l->stream));
    else
        CU(gpu.graph_launch(l->graph, l->stream));
}

/* Runs, and the right results. */
static void lane_works(const struct lane *l, float value)
{
    product_works(&l->p, value);
    memset(gpu.host, 0, PRODUCT_N * sizeof(float));
    for (int i = 0; i < REPLAYS; i++)
        lane_enqueue(l, i);
    product_fetch(&l->p, l->stream);
    CU(gpu.stream_synchronize(l->stream));
    OK(fcc_comm_error_wait(l->comm, -1));
    product_check(&l->p, gpu.host, value);
}

static void lane_end(struct lane *l)
{
    fcc_prepared_free(l->prepared);
    if (l->graph)
        CU(gpu.exec_destroy(l->graph));
    fcc_comm_destroy(l->comm);
}

/* ---- a rank dies ---- */

struct death {
    bool own; /* kernels, which the ranks launch */
    _Atomic int ready, waiting;
    double killed_ms, right_ms;
};

/* What is left of the old communicator is over, and holds no stream. */
static void old_is_over(struct lane *old)
{
    for (int i = 0; i < 3 && old->graph; i++)
        CU(gpu.graph_launch(old->graph, old->stream));
    CU(gpu.stream_synchronize(old->stream));
    if (old->prepared)
        FAILS(fcc_prepared_enqueue(old->prepared, old->stream), -ECONNABORTED, "rank 1");
    else
        FAILS(fcc_comm_error_wait(old->comm, -1), -ECONNABORTED, "rank 1"); /* of the run that waited for it */
    FAILS(fcc_noop(old->comm), -ECONNABORTED, "rank 1");
    OK(fcc_noop_enqueue(old->comm, old->stream, NULL)); /* which the stream passes */
    CU(gpu.stream_synchronize(old->stream));
    FAILS(fcc_comm_error_wait(old->comm, -1), -ECONNABORTED, "rank 1");
}

static void dying_rank(int rank, const struct ranks *all, void *argument)
{
    struct death *death = argument;
    float kept[PRODUCT_K];
    struct lane old, now;
    fcc_comm *left;

    fcc_context *context = client_connect(NULL);
    fcc_comm *comm = client_join(context, &all->id, all->n, rank, -1, 0);
    gpu_open(comm);
    old.stream = now.stream = stream_open(CUDA_STREAM_OWN_ORDER);
    lane_begin(&old, comm, death->own);
    lane_works(&old, 5);
    death->ready++;
    if (rank == VICTIM)
        for (;;)
            (void)pause();
    await(&death->ready, all->n);
    lane_enqueue(&old, 0); /* it waits for the victim */
    death->waiting++;
    CU(gpu.stream_synchronize(old.stream));
    OK(fcc_comm_shrink(comm, NULL, 0, &left));
    CHECK(fcc_comm_size(left) == all->n - 1 && fcc_comm_rank(left) == rank - (rank > VICTIM));
    lane_begin(&now, left, death->own); /* with an operator and its right result */
    if (rank == 0)
        death->right_ms = now_ms();
    OK(fcc_buffer_read(old.p.x, 0, kept, sizeof(kept)));
    for (int i = 0; i < PRODUCT_K; i++)
        CHECK(kept[i] == 5);
    old_is_over(&old);
    lane_works(&now, 7);
    lane_end(&old);
    lane_works(&now, 8);
    lane_end(&now);
    fcc_disconnect(context);
}

static void one_dies(int n, bool own)
{
    struct death *death = shared_memory(sizeof(*death));
    struct test_daemon d;
    struct ranks r;

    death->own = own;
    daemon_start(&d, NULL);
    ranks_start(&r, n, dying_rank, death);
    await(&death->waiting, n - 1);
    (void)usleep(20000);
    death->killed_ms = now_ms();
    CHECK(!kill(r.pid[VICTIM], SIGKILL) && WIFSIGNALED(rank_wait(&r, VICTIM)));
    ranks_join(&r);
    printf("%d ranks, %s: the first right result %.0f ms after the death\n", n, own ? "their own kernels" : "the worker's",
           death->right_ms - death->killed_ms);
    daemon_stop(&d);
}

static void one_dies_launched_by_ranks(void)
{
    if (gpus < 2)
        test_skip("it takes two GPUs");
    one_dies(gpus, true);
}

static void one_dies_launched_by_worker(void)
{
    (void)unsetenv("FCCD_GPU_BIND");
    one_dies(2 * gpus, false);
}

/* ---- brokers die ---- */

struct scene {
    _Atomic int rounds, allowed, stop; /* rank 0's; how many there are at least; the last one's number */
};

static void served_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;
    fcc_context *context = client_connect(NULL);
    fcc_comm *comm = client_join(context, &all->id, all->n, rank, -1, 0);
    struct lane l;

    gpu_open(comm);
    l.stream = stream_open(CUDA_STREAM_OWN_ORDER);
    lane_begin(&l, comm, all->n == gpus && gpus > 1);
    for (int i = 1;; i++) {
        if (rank == 0)
            scene->allowed = scene->stop ? scene->stop : i;
        while (scene->allowed < i && !scene->stop)
            (void)usleep(20);
        if (scene->stop && i > scene->stop)
            break;
        lane_works(&l, (float)(i % 50 + 1));
        if (rank == 0)
            scene->rounds = i;
    }
    lane_end(&l);
    fcc_disconnect(context);
}

static void brokers_die(void)
{
    struct scene *scene = shared_memory(sizeof(*scene));
    const int n = gpus > 1 ? gpus : 2;
    struct fcc_unique_id id;
    struct test_daemon d;
    struct ranks r;

    keepers_start(1, 64);
    daemon_start(&d, NULL);
    ranks_start(&r, n, served_rank, scene);
    ranks_await(&r, &scene->rounds, 3);
    for (int i = 0; i < BROKERS; i++) {
        keeper_kill(&d, 0, i % 3 ? SIGKILL : SIGTERM);
        const int without = scene->rounds;
        ranks_await(&r, &scene->rounds, without + 3); /* nobody needs a broker meanwhile */
        keeper_next(&d, 0, NULL);
        ranks_await(&r, &scene->rounds, without + 6);
        fcc_context *another = client_connect(NULL); /* the new one serves */
        OK(fcc_get_unique_id(another, &id));
        fcc_disconnect(another);
    }
    scene->stop = scene->rounds + 5;
    ranks_join(&r); /* which have checked each of their results */
    printf("%d ranks did %d rounds through %d brokers\n", n, (int)scene->rounds, BROKERS + 1);
    keepers_stop(&d);
}

int main(void)
{
    static const struct test tests[] = {
        {"one_dies_launched_by_ranks", one_dies_launched_by_ranks, 60},
        {"one_dies_launched_by_worker", one_dies_launched_by_worker, 60},
        {"brokers_die", brokers_die, 90},
    };
    return gpus_found() ? tests_run("gpu_regroup", TESTS(tests)) : EXIT_SUCCESS;
}
