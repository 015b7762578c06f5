/* SPDX-License-Identifier: MIT
 *
 * test_gpu_jobs.c - fault domains on NVIDIA GPUs: two jobs side by side on the same GPUs, and a client of one of them dies
 * while a kernel of its own runs, or its kernel stores where there is no memory. Its job's other ranks hear of it; the other
 * job goes on without an error; and a new job of the same name is served. Once without MPS, where only the client's own
 * context is lost, and once with an MPS server for each job, where the job's worker loses its contexts too and ends.
 *
 * How long things took is printed, and decides nothing.
 */
#include <signal.h>
#include <stdio.h>

#include "tests/bed/mps.h"
#include "tests/gpu/gpu_client.h"

enum { MEMBERS = 2, VICTIM = 1, LIMIT_MS = 60000, AGAIN_LIMIT_MS = 10000 };
#define NOWHERE 0x10u

enum fault { KILLED_RUNNING, STRAY_STORE };

struct scene {
    enum fault fault;
    bool mps;
    _Atomic int begun, go, heard, served;
    double fault_ms, heard_ms, lost_ms;
    /* the other job */
    _Atomic int stop;
    _Atomic int allowed, ended; /* rounds that its rank 0 has begun; there are no more */
    _Atomic int rounds;
    double longest_ms;
};

/* ---- the job that is hit ---- */

static void victim_run(struct scene *scene, void *stream)
{
    uint64_t nowhere = NOWHERE;

    if (scene->fault == KILLED_RUNNING) {
        gpu_hold(stream);
        while (!gpu.words[WORD_BEGUN])
            (void)usleep(100);
        scene->begun++;
        (void)pause();
    }
    scene->begun++;
    await(&scene->go, 1);
    scene->fault_ms = now_ms();
    kernel_launch(gpu.kernel_stray, 1, stream, (void *[]){&nowhere});
    CHECK(gpu.stream_synchronize(stream) != 0);
    (void)kill(getpid(), SIGKILL);
}

/* Under MPS: the worker's contexts go, it says so, and ends. */
static void lost_await(fcc_context *context, struct scene *scene)
{
    double until = now_ms() + 10e3;
    struct fcc_unique_id id;

    int status;
    while (!(status = fcc_get_unique_id(context, &id))) {
        CHECK(now_ms() < until);
        (void)usleep(500);
    }
    scene->lost_ms = now_ms();
    printf("rank 0 heard: %s\n", fcc_last_error());
    FAILS(status, -ECONNRESET, "GPU contexts", "lost", "connect again");
}

static void hit_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;
    fcc_context *context = client_connect(NULL);
    fcc_comm *comm = client_join(context, &all->id, all->n, rank, -1, LIMIT_MS);
    struct fcc_unique_id id;
    fcc_request *request;

    gpu_open(comm);
    struct product p = product_open(comm, 1);
    void *stream = stream_open(CUDA_STREAM_OWN_ORDER);
    product_works(&p, 2);
    if (rank == VICTIM)
        victim_run(scene, stream);
    product_enqueue(&p, 0, stream, &request);
    product_fetch(&p, stream);
    scene->begun++;
    FAILS(fcc_request_wait(request, -1), -ECONNABORTED, "rank 1", "pid", "gone");
    scene->heard_ms = now_ms();
    printf("rank 0 heard: %s\n", fcc_last_error());
    scene->heard = 1;
    int status = gpu.stream_synchronize(stream); /* it returns */
    if (scene->mps) {
        printf("rank 0: its stream ended with %d\n", status);
        lost_await(context, scene);
    } else {
        CU(status);
        await(&scene->served, 1);
        OK(fcc_get_unique_id(context, &id)); /* the worker is still the same */
    }
    fcc_request_free(request);
    fcc_comm_destroy(comm);
    fcc_disconnect(context);
}

/* ---- the same job, once more ---- */

static void again_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_context *context = client_connect(NULL);
    fcc_comm *comm = client_join(context, &all->id, all->n, rank, -1, AGAIN_LIMIT_MS);

    (void)argument;
    gpu_open(comm);
    struct product p = product_open(comm, 1);
    product_works(&p, 9);
    fcc_comm_destroy(comm);
    fcc_disconnect(context);
}

/* One attempt, in a process of its own: it may come to the worker that is about to end. */
static bool again_served(void)
{
    int status;

    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        struct ranks r;
        ranks_start(&r, MEMBERS, again_rank, NULL);
        int first = rank_wait(&r, 0), second = rank_wait(&r, 1);
        _exit(first || second);
    }
    CHECK(waitpid(pid, &status, 0) == pid);
    return status == 0;
}

/* ---- the other job ---- */

static void other_round(const struct product *p, void *stream, int round)
{
    float value = (float)(round % 100 + 1);

    gpu_fill(stream, p->x, PRODUCT_K, value);
    product_enqueue(p, 0, stream, NULL);
    product_fetch(p, stream);
    CU(gpu.stream_synchronize(stream));
    product_check(p, gpu.host, value);
    OK(fcc_comm_error(p->comm));
}

/* Operators all the time. Rank 0 says how many there are to be. */
static void other_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;
    fcc_context *context = client_connect(NULL);
    fcc_comm *comm = client_join(context, &all->id, all->n, rank, -1, 0);

    gpu_open(comm);
    struct product p = product_open(comm, 1);
    void *stream = stream_open(CUDA_STREAM_OWN_ORDER);
    for (int round = 0;; round++) {
        if (rank == 0 && scene->stop)
            scene->ended = 1;
        else if (rank == 0)
            scene->allowed = round + 1;
        while (scene->allowed <= round && !scene->ended)
            (void)usleep(20);
        if (scene->allowed <= round)
            break;
        double start = now_ms();
        other_round(&p, stream, round);
        if (rank == 0 && round && now_ms() - start > scene->longest_ms)
            scene->longest_ms = now_ms() - start;
        if (rank == 0)
            scene->rounds++;
    }
    fcc_comm_destroy(comm);
    fcc_disconnect(context);
}

static void rounds_await(const struct scene *scene, int more)
{
    await(&scene->rounds, scene->rounds + more);
}

/* ---- both ---- */

static void fault_make(struct scene *scene, struct ranks *hit)
{
    if (scene->fault == KILLED_RUNNING) {
        scene->fault_ms = now_ms();
        CHECK(kill(hit->pid[VICTIM], SIGKILL) == 0);
    }
    scene->go = 1;
    CHECK(WIFSIGNALED(rank_wait(hit, VICTIM)));
    await(&scene->heard, 1);
    printf("rank 0 heard after %.2f ms\n", scene->heard_ms - scene->fault_ms);
    if (!scene->mps)
        return;
    CHECK(rank_wait(hit, 0) == 0); /* like the rest of a job that has failed, it ends */
    printf("the contexts were lost after %.0f ms\n", scene->lost_ms - scene->fault_ms);
}

static void job_again(const struct scene *scene)
{
    double until = now_ms() + 30e3;
    int attempts = 1;

    for (; !again_served(); attempts++, (void)usleep(10000))
        CHECK(now_ms() < until);
    printf("the next job of this name was served after %.0f ms, by attempt %d\n", now_ms() - scene->fault_ms, attempts);
}

static void worker_check(const struct scene *scene, pid_t worker)
{
    double until = now_ms() + 10e3;

    if (!scene->mps) {
        CHECK(kill(worker, 0) == 0);
        return;
    }
    while (kill(worker, 0) == 0) {
        CHECK(now_ms() < until);
        (void)usleep(2000);
    }
    CHECK(errno == ESRCH);
}

static void fault_run(enum fault fault, bool mps)
{
    struct scene *scene = shared_memory(sizeof(*scene));
    struct mps_domain a, b;
    struct ranks hit, other;
    struct test_daemon d;

    *scene = (struct scene){.fault = fault, .mps = mps};
    mps_domain_open(&a, "a", mps);
    mps_domain_open(&b, "b", mps);
    daemon_start(&d, NULL);
    mps_domain_enter(&a);
    ranks_start(&hit, MEMBERS, hit_rank, scene);
    await(&scene->begun, MEMBERS);
    mps_domain_check(&a);
    pid_t worker = daemon_worker(&d); /* the only one yet */
    mps_domain_enter(&b);
    ranks_start(&other, MEMBERS, other_rank, scene);
    await(&scene->rounds, 1);
    mps_domain_check(&b);
    rounds_await(scene, 20);
    fault_make(scene, &hit);
    rounds_await(scene, 20);
    mps_domain_enter(&a);
    job_again(scene);
    worker_check(scene, worker);
    scene->served = 1;
    ranks_join(&hit);
    rounds_await(scene, 20);
    scene->stop = 1;
    ranks_join(&other); /* which has checked each of its results */
    printf("the other job did %d operators, the longest in %.2f ms\n", (int)scene->rounds, scene->longest_ms);
    if (mps)
        daemon_stop_unclean(&d);
    else
        daemon_stop(&d);
    mps_domain_close(&a);
    mps_domain_close(&b);
}

static void killed_running(void)
{
    fault_run(KILLED_RUNNING, false);
}

static void killed_running_under_mps(void)
{
    fault_run(KILLED_RUNNING, true);
}

static void stray_store(void)
{
    fault_run(STRAY_STORE, false);
}

static void stray_store_under_mps(void)
{
    fault_run(STRAY_STORE, true);
}

int main(void)
{
    static const struct test tests[] = {
        {"killed_running", killed_running, 60},
        {"killed_running_under_mps", killed_running_under_mps, 60},
        {"stray_store", stray_store, 60},
        {"stray_store_under_mps", stray_store_under_mps, 60},
    };
    return gpus_found() ? tests_run("gpu_jobs", TESTS(tests)) : EXIT_SUCCESS;
}
