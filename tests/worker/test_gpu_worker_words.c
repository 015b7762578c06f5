/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_words.c - the words of streams in the memory of GPUs, which no CPU stores into: what the worker stores there
 * takes its time, as long as it likes here, and nothing comes too late. With the real daemon and the real library on fake GPUs,
 * which say so when such a store goes over a newer one, or into memory that was freed (fake_gpu_kernel.c).
 */
#include "tests/fake_gpu/fake_gpu_bed.h"

#define WHY "the loss is not a number"
enum { STORE_US = 50000, TRIED = 300 };

struct scene {
    struct fcc_unique_id other;
    _Atomic int step, open;
};

static void scene_run(void (*rank)(int, const struct ranks *, void *))
{
    struct scene *scene = shared_memory(sizeof(*scene));
    struct test_daemon d;
    struct ranks r;

    fake_start(&d, GPUS, NULL);
    fake->store_us = STORE_US;
    scene->other = id_make();
    ranks_start(&r, PAIR, rank, scene);
    ranks_join(&r);
    fake_stop(&d);
}

static void meet(struct scene *scene, int step)
{
    scene->step++;
    await(&scene->step, step * PAIR);
}

/* ---- a slot whose operator the GPU was told not to wait for ---- */

/* Its next one waits for its stream. No other communicator is there, so it is the GPU that waits. */
static void passed_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;
    fcc_request *request;

    driver_use();
    fcc_context *context = client_connect(NULL);
    struct product p = product_open(client_join(context, &all->id, PAIR, rank, 0));
    void *blocked = stream_open(), *stream = stream_open();
    if (rank)
        stream_gate(blocked, &scene->open);
    product_enqueue(&p, blocked, &request);
    await(&fake->enqueued, PAIR);
    (void)usleep(20000); /* rank 0's stream has come */
    if (rank)
        OK(fcc_comm_abort(p.comm, WHY));
    FAILS(fcc_request_wait(request, -1), -ECONNABORTED, WHY);
    fcc_request_free(request);
    fcc_comm_destroy(p.comm);
    meet(scene, 1);
    struct product other = product_open(client_join(context, &scene->other, PAIR, rank, 0));
    int before = fake->begun;
    if (!rank)
        stream_gate(stream, &scene->open);
    product_enqueue(&other, stream, &request);
    await(&fake->enqueued, 2 * PAIR);
    (void)usleep(2 * STORE_US);
    CHECK(fake->begun == before);
    meet(scene, 2);
    scene->open = 1;
    stream_sync(blocked);
    stream_close(stream);
    OK(fcc_request_wait(request, -1));
    fcc_request_free(request);
    stream_close(blocked);
    fcc_comm_destroy(other.comm);
    client_end(context);
}

static void passed(void)
{
    scene_run(passed_rank);
}

/* ---- an operator that no kernel finishes ---- */

static fcc_request *wrong_enqueue(const struct product *p, int rank, void *stream)
{
    struct product bad = *p;
    fcc_request *request;

    bad.args.x.dtype = rank ? FCC_F16 : FCC_F32; /* w is f32 */
    product_enqueue(&bad, stream, &request);
    return request;
}

/* Its slot is used again at once: the worker's store for it is not one for the next operator. */
static void finished_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_request *request;

    (void)argument;
    driver_use();
    fcc_context *context = client_connect(NULL);
    struct product p = product_open(client_join(context, &all->id, PAIR, rank, 0));
    void *stream = stream_open(), *streams[2] = {stream_open(), stream_open()};
    request = wrong_enqueue(&p, rank, stream);
    FAILS(fcc_request_wait(request, -1), -EINVAL, "rank 1");
    fcc_request_free(request);
    for (int i = 0; i < 2; i++) { /* the first stream still waits */
        product_enqueue(&p, streams[i], &request);
        stream_close(streams[i]);
        OK(fcc_request_wait(request, -1));
        fcc_request_free(request);
    }
    stream_close(stream);
    fcc_comm_destroy(p.comm);
    client_end(context);
}

static void finished(void)
{
    scene_run(finished_rank);
}

/* Its session ends at once: the memory stays until the store has come. */
static void freed_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_request *request;

    driver_use();
    fcc_context *context = client_connect(NULL);
    struct product p = product_open(client_join(context, &all->id, PAIR, rank, 0));
    request = wrong_enqueue(&p, rank, stream_open());
    FAILS(fcc_request_wait(request, -1), -EINVAL, "rank 1");
    meet(argument, 1);
    _exit(0);
}

static void freed(void)
{
    scene_run(freed_rank);
}

/* ---- the end of the worker: its clients' streams go on, by what the clients themselves store ---- */

static void killed_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;
    fcc_request *request;

    driver_use();
    fcc_context *context = client_connect(NULL);
    struct product p = product_open(client_join(context, &all->id, PAIR, rank, 0));
    void *streams[3] = {stream_open(), stream_open(), stream_open()};
    stream_gate(streams[2], &scene->open);
    product_enqueue(&p, streams[0], &request);
    product_enqueue(&p, streams[1], NULL);
    product_enqueue(&p, streams[2], NULL);
    meet(scene, 1);
    stream_close(streams[0]); /* the program's threads are all in the driver */
    stream_close(streams[1]);
    FAILS(fcc_request_wait(request, -1), -ECONNRESET, "is gone");
    fcc_request_free(request);
    scene->open = 1; /* one that comes to its operator when the end is long over */
    FAILS(fcc_noop_enqueue(p.comm, streams[2], NULL), -ECONNRESET, "is gone");
    stream_close(streams[2]);
    fcc_comm_destroy(p.comm);
    client_end(context);
}

static void killed(void)
{
    struct scene *scene = shared_memory(sizeof(*scene));
    struct test_daemon d;
    struct ranks r;

    fake_start(&d, GPUS, NULL);
    fake->hold = ALL_GPUS;
    ranks_start(&r, PAIR, killed_rank, scene);
    await(&scene->step, PAIR);
    await(&fake->begun, PAIR);
    CHECK(kill(daemon_worker(&d), SIGKILL) == 0);
    ranks_join(&r);
    CHECK(daemon_logged(&d, "died: Killed", true));
    daemon_stop_unclean(&d); /* the log has the error that was wanted */
}

/* ---- an operator fails, and its stream has gone past it before the worker knows ---- */

static void untold_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;

    driver_use();
    fcc_context *context = client_connect(NULL);
    struct product p = product_open(client_join(context, &all->id, PAIR, rank, 0));
    void *stream = stream_open();
    product_works(&p, stream);
    CHECK((driver->batches == 0) == fake->no_gpu_words);
    if (rank) {
        fake->untold = ALL_GPUS;
        fake->failing_rank = 1;
        fake->failure = (struct gpu_failure){.kind = GPU_FAILURE_INDEX, .at = 3, .value = 8, .bag = 3, .most = 7};
        fake->failing = 1;
    }
    meet(scene, 1);
    product_enqueue(&p, stream, NULL);
    stream_sync(stream);
    OK(fcc_comm_error(p.comm));
    FAILS(fcc_comm_error_wait(p.comm, 0), -EAGAIN, "streams have gone past 1 operators");
    meet(scene, 2);
    if (rank)
        fake->untold = 0;
    FAILS(fcc_comm_error_wait(p.comm, -1), -ERANGE, "rank 1", "bag 3");
    OK(fcc_comm_error_wait(p.comm, -1));
    product_works(&p, stream);
    stream_close(stream);
    fcc_comm_destroy(p.comm);
    client_end(context);
}

static void untold(void)
{
    scene_run(untold_rank);
}

static void untold_by_host_words(void)
{
    struct scene *scene = shared_memory(sizeof(*scene));
    struct test_daemon d;
    struct ranks r;

    fake_start(&d, GPUS, NULL);
    fake->no_gpu_words = 1;
    ranks_start(&r, PAIR, untold_rank, scene);
    ranks_join(&r);
    fake_stop(&d);
}

/* ---- the client cannot import them: another GPU's, say ---- */

static void refused_rank(int rank, const struct ranks *all, void *argument)
{
    (void)argument;
    driver_use();
    fcc_context *context = client_connect(NULL);
    driver->fail = rank ? DRIVER_memory_import : -1;
    fcc_comm *comm = client_join(context, &all->id, PAIR, rank, 0);
    driver->fail = -1;
    struct product p = product_open(comm);
    void *stream = stream_open();
    product_works(&p, stream);
    CHECK(driver->batches == (rank ? 0 : 2) && driver->writes == (rank ? 2 : 0));
    stream_close(stream);
    fcc_comm_destroy(comm);
    client_end(context);
}

static void refused(void)
{
    struct test_daemon d;
    struct ranks r;

    fake_start(&d, GPUS, NULL);
    ranks_start(&r, PAIR, refused_rank, NULL);
    ranks_join(&r);
    CHECK(daemon_logged(&d, "rank 1: its streams hand over by words in the host's memory", true));
    fake_stop(&d);
}

/* ---- the GPUs' other lanes are tried ---- */

/* Operators that stand behind each other: each is right, by whatever lane it comes. */
static void tried_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;

    driver_use();
    fcc_context *context = client_connect(NULL);
    struct product p = fused_open(client_join(context, &all->id, PAIR, rank, 0));
    void *stream = stream_open();
    for (int i = 0; i < TRIED; i++)
        product_enqueue(&p, stream, NULL);
    stream_sync(stream);
    meet(scene, 1);
    CHECK(fake->by_lanes > 0);
    OK(fcc_gemv_all_reduce(p.comm, &p.args)); /* one by one again */
    OK(fcc_comm_error(p.comm));
    stream_close(stream);
    fcc_comm_destroy(p.comm);
    client_end(context);
}

static void tried(void)
{
    scene_run(tried_rank);
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {
        {"passed", passed, 0},   {"finished", finished, 0}, {"freed", freed, 0},
        {"killed", killed, 0},   {"untold", untold, 0},     {"untold_by_host_words", untold_by_host_words, 0},
        {"refused", refused, 0}, {"tried", tried, 0},
    };
    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_words", TESTS(tests));
}
