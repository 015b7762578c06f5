/* SPDX-License-Identifier: MIT
 *
 * test_jobs.c - who dies, and who notices: clients, workers and the broker are killed in the middle of operators; other jobs
 * and other users go on. How long it took until the others heard is printed, and measured in the bench.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/bed/job_status.h"

/* What the ranks of a test share. */
struct scene {
    _Atomic int begun;   /* ranks whose operator is in flight */
    _Atomic int stop;    /* the bystander should end */
    _Atomic long rounds; /* operators that the bystander has done */
    _Atomic int errors;  /* that it got */
    _Atomic int phase;
    double killed_ms, heard_ms[RANKS_MAX];
};

/* A gemm that takes a good part of a second, so that there is a middle; and so many of them that they are not over when a test that waits for a core
 * comes to what it does then. */
enum { BIG = 1536, MANY = 20 };

/* Returns the last one's request. */
static fcc_request *big_start(fcc_comm *comm, int nranks, int many)
{
    fcc_buffer *a, *b, *c;
    fcc_request *request = NULL;
    struct fcc_gemm_all_to_all_args args;
    int64_t rows = (int64_t)BIG / nranks * nranks;

    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, (size_t)BIG * BIG * 4, &a));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, (size_t)BIG * BIG * 4, &b));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, (size_t)BIG * BIG * 4, &c));
    args = (struct fcc_gemm_all_to_all_args){.a = fcc_tensor_2d(a, 0, FCC_F32, rows, BIG),
                                             .b = fcc_tensor_2d(b, 0, FCC_F32, BIG, BIG),
                                             .c = fcc_tensor_2d(c, 0, FCC_F32, rows, BIG)};
    for (int i = 0; i < many; i++) {
        fcc_request_free(request);
        OK(fcc_gemm_all_to_all_start(comm, &args, &request));
    }
    return request;
}

/* A job of its own that runs operators all the time and counts them. */
static pid_t bystander_start(struct scene *scene)
{
    pid_t pid = fork();

    CHECK(pid >= 0);
    if (pid)
        return pid;
    struct fcc_connect_options options = {.job = "bystander"};
    fcc_context *context;
    fcc_comm *comm;
    struct fcc_unique_id id;
    OK(fcc_connect(&options, &context));
    OK(fcc_get_unique_id(context, &id));
    OK(fcc_comm_init(context, &id, 1, 0, NULL, &comm));
    while (!scene->stop) {
        if (fcc_noop(comm))
            scene->errors++;
        scene->rounds++;
        (void)usleep(500);
    }
    fcc_comm_destroy(comm);
    fcc_disconnect(context);
    _exit(0);
}

static void bystander_end(struct scene *scene, pid_t pid, long rounds_before)
{
    int status;

    for (double until = await_end(); scene->rounds <= rounds_before; (void)usleep(500))
        CHECK(now_ms() < until);
    scene->stop = 1;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    CHECK(scene->errors == 0);
}

static void all_begun(struct scene *scene, int n)
{
    double until = await_end();

    while (scene->begun < n) {
        CHECK(now_ms() < until);
        (void)usleep(500);
    }
}

/* ---- a client dies ---- */

static void victim_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;
    fcc_comm *comm = comm_open(all, rank, 0);
    fcc_request *request = big_start(comm, all->n, MANY);

    scene->begun++;
    if (rank == 1)
        (void)pause();
    FAILS(fcc_request_wait(request, -1), -ECONNABORTED, "rank 1", "pid", "gone", "gemm_all_to_all #");
    scene->heard_ms[rank] = now_ms();
    FAILS(fcc_noop(comm), -ECONNABORTED, "rank 1");
    fcc_request_free(request);
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void client_killed(void)
{
    struct test_daemon d;
    struct ranks r;
    struct scene *scene = shared_memory(sizeof(*scene));

    daemon_start(&d, NULL);
    pid_t bystander = bystander_start(scene);
    ranks_start(&r, 3, victim_rank, scene);
    all_begun(scene, 3);
    (void)usleep(20000); /* into the compute of the first slices */
    long rounds = scene->rounds;
    scene->killed_ms = now_ms();
    CHECK(kill(r.pid[1], SIGKILL) == 0);
    CHECK(WIFSIGNALED(rank_wait(&r, 1)));
    ranks_join(&r);
    for (int rank = 0; rank < 3; rank += 2)
        printf("rank %d heard after %.2f ms\n", rank, scene->heard_ms[rank] - scene->killed_ms);
    bystander_end(scene, bystander, rounds);
    daemon_stop(&d);
}

static void waiting_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;
    fcc_comm *comm = comm_open(all, rank, 0);

    scene->begun++;
    if (rank == 1)
        (void)pause();
    FAILS(fcc_noop(comm), -ECONNABORTED, "rank 1", "gone");
    scene->heard_ms[rank] = now_ms();
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void client_killed_before_it_came(void)
{
    struct test_daemon d;
    struct ranks r;
    struct scene *scene = shared_memory(sizeof(*scene));

    daemon_start(&d, NULL);
    ranks_start(&r, 3, waiting_rank, scene);
    all_begun(scene, 3);
    (void)usleep(300000); /* the others sleep in their wait */
    scene->killed_ms = now_ms();
    CHECK(kill(r.pid[1], SIGKILL) == 0);
    CHECK(WIFSIGNALED(rank_wait(&r, 1)));
    ranks_join(&r);
    for (int rank = 0; rank < 3; rank += 2)
        printf("rank %d heard after %.2f ms\n", rank, scene->heard_ms[rank] - scene->killed_ms);
    daemon_stop(&d);
}

/* ---- a worker dies ---- */

static void orphan_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;
    fcc_comm *comm = comm_open(all, rank, 0);
    fcc_request *request = big_start(comm, all->n, MANY);

    scene->begun++;
    FAILS(fcc_request_wait(request, -1), -ECONNRESET, "worker", "test");
    scene->heard_ms[rank] = now_ms();
    FAILS(fcc_noop(comm), -ECONNRESET, "worker");
    fcc_request_free(request);
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void worker_killed(void)
{
    struct test_daemon d;
    struct ranks r;
    struct scene *scene = shared_memory(sizeof(*scene));

    daemon_start(&d, NULL);
    pid_t bystander = bystander_start(scene);
    while (!scene->rounds)
        (void)usleep(1000);
    ranks_start(&r, 2, orphan_rank, scene);
    all_begun(scene, 2);
    pid_t worker = (pid_t)job_number(&d, "test", "pid"); /* there are two */
    long rounds = scene->rounds;
    scene->killed_ms = now_ms();
    CHECK(kill(worker, SIGKILL) == 0);
    ranks_join(&r);
    for (int rank = 0; rank < 2; rank++)
        printf("rank %d heard after %.2f ms\n", rank, scene->heard_ms[rank] - scene->killed_ms);
    CHECK(daemon_logged(&d, "job 0/test: worker", true) || geteuid());
    ranks_start(&r, 2, alive_rank, NULL); /* a fresh worker */
    ranks_join(&r);
    printf("a fresh worker had served after %.2f ms\n", now_ms() - scene->killed_ms);
    bystander_end(scene, bystander, rounds);
    CHECK(daemon_logged(&d, "died: Killed", true));
    daemon_stop_unclean(&d);
}

/* ---- the broker dies, or is told to stop ---- */

static void survivor_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;
    fcc_comm *comm = comm_open(all, rank, 0);
    fcc_buffer *b;

    OK(fcc_noop(comm));
    scene->begun++;
    while (!scene->phase)
        (void)usleep(1000);
    for (int i = 0; i < 100; i++)
        OK(fcc_noop(comm));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, 1 << 20, &b));
    OK(fcc_noop(comm));
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void broker_killed(void)
{
    struct test_daemon d;
    struct ranks r;
    struct scene *scene = shared_memory(sizeof(*scene));

    daemon_start(&d, NULL);
    ranks_start(&r, 2, survivor_rank, scene);
    all_begun(scene, 2);
    pid_t worker = daemon_worker(&d);
    CHECK(kill(d.pid, SIGKILL) == 0);
    CHECK(waitpid(d.pid, NULL, 0) == d.pid);
    scene->phase = 1;
    ranks_join(&r); /* the running job did not notice */
    double until = await_end();
    while (kill(worker, 0) == 0) { /* and its worker goes when the last client has left */
        CHECK(now_ms() < until);
        (void)usleep(2000);
    }
    CHECK(access(d.socket, F_OK) == 0); /* left over by the killed broker; the next one takes its place */
    daemon_start(&d, NULL);
    ranks_start(&r, 2, alive_rank, NULL);
    ranks_join(&r);
    daemon_stop(&d);
}

static void drained_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;
    fcc_comm *comm = comm_open(all, rank, 0);
    fcc_request *request = big_start(comm, all->n, 1);
    int status = 0;

    scene->begun++;
    OK(fcc_request_wait(request, -1)); /* what runs may finish */
    while (!status)                    /* it may have before the end was asked for */
        status = fcc_noop(comm);
    check_error(__FILE__, __LINE__, "fcc_noop", status, -ESHUTDOWN, (const char *const[]){"shutting down", NULL});
    fcc_request_free(request);
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void drain(void)
{
    struct test_daemon d;
    struct ranks r;
    struct scene *scene = shared_memory(sizeof(*scene));

    daemon_start(&d, (const char *const[]){"--drain-ms", "3600000", NULL});
    ranks_start(&r, 2, drained_rank, scene);
    all_begun(scene, 2);
    (void)usleep(20000);
    daemon_stop_unclean(&d); /* SIGTERM: it ends by itself, with status 0 */
    ranks_join(&r);
    CHECK(access(d.socket, F_OK) != 0);
}

/* A worker that is stopped does not hear that it shall end: it is killed after its time, and the broker ends as always. */
static void drain_stopped(void)
{
    struct test_daemon d;
    fcc_context *context;
    struct fcc_unique_id id;
    fcc_comm *comm;

    daemon_start(&d, (const char *const[]){"--drain-ms", "200", NULL});
    OK(fcc_connect(NULL, &context));
    OK(fcc_get_unique_id(context, &id));
    OK(fcc_comm_init(context, &id, 1, 0, NULL, &comm));
    pid_t worker = daemon_worker(&d);
    CHECK(kill(worker, SIGSTOP) == 0);
    double start = now_ms();
    daemon_stop_unclean(&d); /* SIGTERM: it ends by itself, with status 0 */
    CHECK(now_ms() - start < 20e3);
    CHECK(kill(worker, 0) < 0 && errno == ESRCH);
    CHECK(access(d.socket, F_OK) != 0);
    FAILS(fcc_noop(comm), -ECONNRESET, "the worker of job 'test' (pid ");
    fcc_comm_destroy(comm);
    fcc_disconnect(context);
}

/* ---- the service manager ---- */

/* What systemd does: a listening socket as descriptor 3, and a socket to tell when it is ready. */
static void socket_activation(void)
{
    struct sockaddr_un listen_at = {.sun_family = AF_UNIX}, notify_at = {.sun_family = AF_UNIX};
    struct timeval limit = {.tv_sec = 20};
    fcc_context *context;
    char told[256];
    int status;

    (void)snprintf(listen_at.sun_path, sizeof(listen_at.sun_path), "%s/activated.sock", test_directory());
    (void)snprintf(notify_at.sun_path, sizeof(notify_at.sun_path), "%s/notify.sock", test_directory());
    int notify = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0), sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    CHECK(bind(notify, (struct sockaddr *)&notify_at, sizeof(notify_at)) == 0);
    CHECK(setsockopt(notify, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0);
    CHECK(bind(sock, (struct sockaddr *)&listen_at, sizeof(listen_at)) == 0 && listen(sock, 16) == 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        char self[16];
        (void)snprintf(self, sizeof(self), "%d", getpid());
        (void)setenv("LISTEN_FDS", "1", 1);
        (void)setenv("LISTEN_PID", self, 1);
        (void)setenv("NOTIFY_SOCKET", notify_at.sun_path, 1);
        if (sock != 3 && dup2(sock, 3) != 3)
            _exit(126);
        if (sock == 3 && fcntl(3, F_SETFD, 0))
            _exit(126);
        (void)execl(daemon_binary(), "fccd", "--config", "/dev/null", "--log-level", "warning", "--worker-idle-ms", "50", NULL);
        _exit(127);
    }
    ssize_t n = recv(notify, told, sizeof(told) - 1, 0);
    CHECK(n > 0);
    told[n] = '\0';
    CHECK(strstr(told, "READY=1") != NULL);
    (void)setenv("FCCD_SOCKET", listen_at.sun_path, 1);
    OK(fcc_connect(NULL, &context));
    fcc_disconnect(context);
    CHECK(kill(pid, SIGTERM) == 0);
    n = recv(notify, told, sizeof(told) - 1, 0);
    CHECK(n > 0);
    told[n] = '\0';
    CHECK(strstr(told, "STOPPING=1") != NULL);
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    CHECK(access(listen_at.sun_path, F_OK) == 0); /* systemd's socket, not ours to remove */
    (void)close(notify);
    (void)close(sock);
    (void)unlink(listen_at.sun_path);
    (void)unlink(notify_at.sun_path);
}

/* ---- a broker that somebody has started in a terminal ---- */

struct belongs {
    int group, session, terminal; /* 0: to no terminal */
};

static struct belongs belongs(pid_t pid)
{
    char path[64], line[512];
    struct belongs b;

    (void)snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    FILE *f = fopen(path, "re");
    CHECK(f && fgets(line, sizeof(line), f));
    (void)fclose(f);
    const char *after_name = strrchr(line, ')');
    CHECK(after_name && sscanf(after_name, ") %*c %*d %d %d %d", &b.group, &b.session, &b.terminal) == 3);
    return b;
}

/* Leads a session with a terminal. The worker hears no Ctrl-C and reaches no keyboard; but it stays in the session, with whose other
 * threads it then shares the cores as if they were all of one process. */
static void terminal_leader(const char *terminal)
{
    struct test_daemon d;
    fcc_context *context;

    CHECK(setsid() == getpid());
    int fd = open(terminal, O_RDWR | O_CLOEXEC);
    CHECK(fd >= 0);
    daemon_start(&d, NULL);
    OK(fcc_connect(NULL, &context));
    pid_t worker = daemon_worker(&d);
    struct belongs its = belongs(worker), broker = belongs(d.pid);
    CHECK(broker.session == getpid() && broker.terminal != 0);
    CHECK(its.group == worker && its.session == getpid() && its.terminal == 0);
    fcc_disconnect(context);
    daemon_stop(&d);
    (void)close(fd);
    _exit(0);
}

static void terminal(void)
{
    int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC), status;

    CHECK(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (!pid)
        terminal_leader(ptsname(master));
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    (void)close(master);
}

/* A worker that is told to end by itself says so to its clients, and not that fccd ends, which goes on: the next connection gets a fresh one. */
static void worker_terminated(void)
{
    struct test_daemon d;
    struct fcc_unique_id id;
    fcc_context *context;
    fcc_comm *comm;
    char says[96];

    daemon_start(&d, NULL);
    OK(fcc_connect(NULL, &context));
    OK(fcc_get_unique_id(context, &id));
    OK(fcc_comm_init(context, &id, 1, 0, NULL, &comm));
    OK(fcc_noop(comm));
    pid_t worker = daemon_worker(&d);
    (void)snprintf(says, sizeof(says), "the worker of job 'test' (pid %d) was told to end, by SIGTERM", worker);
    CHECK(kill(worker, SIGTERM) == 0);
    for (double until = await_end(); kill(worker, 0) == 0; nap()) /* until the broker has reaped it */
        CHECK(now_ms() < until);
    FAILS(fcc_noop(comm), -ESHUTDOWN, says);
    FAILS(fcc_get_unique_id(context, &id), -ESHUTDOWN, says);
    fcc_comm_destroy(comm);
    fcc_disconnect(context);
    expect_alive(2);
    CHECK(!daemon_logged(&d, "shutting down", false));
    daemon_stop(&d);
}

int main(void)
{
    static const struct test tests[] = {
        {"client_killed", client_killed, 0},
        {"client_killed_before_it_came", client_killed_before_it_came, 0},
        {"worker_killed", worker_killed, 0},
        {"broker_killed", broker_killed, 0},
        {"worker_terminated", worker_terminated, 0},
        {"drain", drain, 0},
        {"drain_stopped", drain_stopped, 0},
        {"socket_activation", socket_activation, 0},
        {"terminal", terminal, 0},
    };
    return tests_run("jobs", TESTS(tests));
}
