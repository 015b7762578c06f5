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
#include <sys/stat.h>

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

/* ---- a job's environment ---- */

/* A job with an MPS server of its own, or none. */
struct domain {
    const char *job;
    char pipe[64], log[80];
    pid_t guard; /* 0: no MPS */
    int guard_end;
};

static void domain_enter(const struct domain *m)
{
    (void)setenv("FCCD_JOB", m->job, 1);
    (void)setenv("CUDA_MPS_PIPE_DIRECTORY", m->pipe, 1);
    (void)setenv("CUDA_MPS_LOG_DIRECTORY", m->log, 1);
}

static int shell(char *text, size_t room, const char *command)
{
    return program_run(text, room, "sh", (const char *const[]){"-c", command, NULL});
}

/* Ends the MPS daemon when the test's process and all that it forked have ended, however they did: it is in none of their
 * groups. */
static void guard_run(int end)
{
    char byte;

    (void)setsid();
    (void)close_range(3, (unsigned)end - 1, 0);
    (void)close_range((unsigned)end + 1, ~0u, 0);
    while (read(end, &byte, 1) > 0) {
    }
    (void)execl("/bin/sh", "sh", "-c",
                "echo quit -t 5 | nvidia-cuda-mps-control >/dev/null 2>&1; rm -rf \"$CUDA_MPS_PIPE_DIRECTORY\"", NULL);
    _exit(127);
}

static void domain_mps_start(struct domain *m)
{
    double until = now_ms() + 10e3;
    char text[1024];
    int ends[2];

    if (shell(text, sizeof(text), "command -v nvidia-cuda-mps-control"))
        test_skip("skipped: this machine has no nvidia-cuda-mps-control");
    (void)snprintf(m->pipe, sizeof(m->pipe), "/tmp/fccd-mps.XXXXXX");
    CHECK(mkdtemp(m->pipe) && mkdir(m->log, 0755) == 0);
    domain_enter(m);
    CHECK(pipe2(ends, O_CLOEXEC) == 0);
    m->guard = fork();
    CHECK(m->guard >= 0);
    if (m->guard == 0)
        guard_run(ends[0]);
    (void)close(ends[0]);
    m->guard_end = ends[1];
    CHECK(shell(text, sizeof(text), "nvidia-cuda-mps-control -d </dev/null >/dev/null 2>&1") == 0);
    while (!mps_answers()) {
        CHECK(now_ms() < until);
        (void)usleep(20000);
    }
}

static void domain_open(struct domain *m, const char *job, bool mps)
{
    *m = (struct domain){.job = job};
    (void)snprintf(m->log, sizeof(m->log), "%s/.mps-%s", test_directory(), job);
    if (mps)
        domain_mps_start(m);
    else /* where no MPS server is: then there is none for this job, even if the machine has one */
        (void)snprintf(m->pipe, sizeof(m->pipe), "%s/.none", test_directory());
}

static void domain_close(const struct domain *m)
{
    int status;

    if (!m->guard)
        return;
    (void)close(m->guard_end);
    CHECK(waitpid(m->guard, &status, 0) == m->guard && status == 0);
}

/* The job's processes do use its MPS server. */
static void domain_check(const struct domain *m)
{
    char text[256];

    domain_enter(m);
    CHECK(!m->guard || (shell(text, sizeof(text), "echo get_server_list | nvidia-cuda-mps-control") == 0 && atoi(text) > 0));
}

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
    struct domain a, b;
    struct ranks hit, other;
    struct test_daemon d;

    *scene = (struct scene){.fault = fault, .mps = mps};
    domain_open(&a, "a", mps);
    domain_open(&b, "b", mps);
    daemon_start(&d, NULL);
    domain_enter(&a);
    ranks_start(&hit, MEMBERS, hit_rank, scene);
    await(&scene->begun, MEMBERS);
    domain_check(&a);
    pid_t worker = daemon_worker(&d); /* the only one yet */
    domain_enter(&b);
    ranks_start(&other, MEMBERS, other_rank, scene);
    await(&scene->rounds, 1);
    domain_check(&b);
    rounds_await(scene, 20);
    fault_make(scene, &hit);
    rounds_await(scene, 20);
    domain_enter(&a);
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
    domain_close(&a);
    domain_close(&b);
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
