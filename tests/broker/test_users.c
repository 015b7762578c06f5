/* SPDX-License-Identifier: MIT
 *
 * test_users.c - one daemon, several real users: what is one's own, nobody else can reach.
 */
#include <dirent.h>
#include <errno.h>
#include <grp.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/base/timeslice.h"
#include "tests/bed/users_bed.h"

/* Run in a child as that user. */
static void as_user(uid_t uid, void (*run)(void *), void *argument)
{
    int status;
    pid_t pid = fork();

    CHECK(pid >= 0);
    if (pid == 0) {
        CHECK(setgroups(0, NULL) == 0 && setgid(uid) == 0 && setuid(uid) == 0);
        run(argument);
        _exit(0);
    }
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(status == 0);
}

static uid_t process_uid(pid_t pid)
{
    char path[64];
    struct stat st;

    (void)snprintf(path, sizeof(path), "/proc/%d", pid);
    CHECK(stat(path, &st) == 0);
    char line[256];
    unsigned uid = 0, found = 0;
    (void)snprintf(path, sizeof(path), "/proc/%d/status", pid);
    FILE *f = fopen(path, "re");
    CHECK(f != NULL);
    while (fgets(line, sizeof(line), f))
        found |= sscanf(line, "Uid: %u", &uid) == 1;
    (void)fclose(f);
    CHECK(found);
    return uid;
}

/* fccctl's connection to a job of another user. */
static int control_hello(const char *path, uid_t uid, const char *job, struct fcc_reply *reply)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct fcc_hello hello = {.msg = {.type = FCC_MSG_HELLO, .id = 1},
                              .magic = FCC_PROTO_MAGIC,
                              .version = FCC_PROTO_VERSION,
                              .role = FCC_ROLE_CONTROL,
                              .uid = uid};
    static _Alignas(16) unsigned char buf[FCC_MSG_MAX];
    int fds[FCC_MAX_FDS], nfds, sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    (void)snprintf(hello.job, sizeof(hello.job), "%s", job);
    CHECK(sock >= 0 && connect(sock, (struct sockaddr *)&address, sizeof(address)) == 0);
    CHECK(msg_send(sock, &hello.msg, sizeof(hello), NULL, 0) == 0);
    CHECK(msg_recv(sock, buf, sizeof(buf), 0, fds, &nfds) >= (ssize_t)sizeof(*reply));
    memcpy(reply, buf, sizeof(*reply));
    fds_close(fds, nfds);
    (void)close(sock);
    return reply->status;
}

struct intrusion {
    struct fcc_unique_id id;
    const char *socket;
    uid_t victim;
};

static void intruder(void *argument)
{
    struct intrusion *in = argument;
    struct fcc_comm_options options = {.device = -1, .time_limit_ms = 300};
    struct fcc_reply reply;
    fcc_context *context;
    fcc_comm *comm;

    /* the id has leaked, but the communicator belongs to another user: it does not exist here */
    OK(fcc_connect(NULL, &context));
    FAILS(fcc_comm_init(context, &in->id, 2, 1, &options, &comm), -ETIMEDOUT, "rank 0");
    fcc_disconnect(context);
    CHECK(control_hello(in->socket, in->victim, "test", &reply) == -EPERM);
    CHECK(strstr(reply.text, "may not look into the jobs of uid") != NULL);
}

static void owner(void *argument)
{
    struct intrusion *in = argument;
    fcc_context *context;
    fcc_comm *comm;
    struct fcc_comm_options options = {.device = -1, .time_limit_ms = 3000};

    in->victim = getuid();
    OK(fcc_connect(NULL, &context));
    OK(fcc_get_unique_id(context, &in->id));
    FAILS(fcc_comm_init(context, &in->id, 2, 0, &options, &comm), -ETIMEDOUT, "rank 1");
    fcc_disconnect(context);
}

static void two_users(void)
{
    struct test_daemon d;
    struct intrusion *in = shared_memory(sizeof(*in));

    if (geteuid())
        test_skip("skipped: needs root, to be two users");
    daemon_start(&d, NULL);
    CHECK(chmod(d.socket, 0666) == 0);
    in->socket = d.socket;
    pid_t first = fork();
    CHECK(first >= 0);
    if (first == 0) {
        as_user(40001, owner, in);
        _exit(0);
    }
    pid_t worker = daemon_worker(&d);
    double until = await_end();
    while (process_uid(worker) != 40001 || !in->victim)
        AWAITING(until);
    (void)usleep(100000);
    as_user(40002, intruder, in);
    int status;
    CHECK(waitpid(first, &status, 0) == first && status == 0);
    daemon_stop(&d);
}

static const struct test_daemon *weighing;

static void too_many(void *argument)
{
    fcc_context *contexts[3];

    (void)argument;
    for (int i = 0; i < 3; i++) {
        char name[16];
        (void)snprintf(name, sizeof(name), "job-%d", i);
        struct fcc_connect_options options = {.job = name};
        if (i < 2)
            OK(fcc_connect(&options, &contexts[i]));
        else
            FAILS(fcc_connect(&options, &contexts[i]), -EPERM, "job-2", "JOBS_PER_USER");
    }
    fcc_disconnect(contexts[0]);
    fcc_disconnect(contexts[1]);
}

static void too_many_jobs(void)
{
    static const char *const options[] = {"--jobs-per-user", "2", NULL};
    struct test_daemon d;

    daemon_start(&d, options);
    too_many(NULL);
    daemon_stop(&d);
}

/* A user's workers weigh what USER_WEIGHTS says, all of their threads; the user cannot change it. */
static void weighs(void *argument)
{
    int expected = *(int *)argument, n = 0;
    fcc_context *context;
    char path[64];
    struct dirent *entry;

    OK(fcc_connect(NULL, &context));
    pid_t worker = daemon_worker(weighing);
    for (double until = await_end(); process_uid(worker) != getuid(); worker = daemon_worker(weighing))
        AWAITING(until); /* another user's, which is about to end */
    (void)snprintf(path, sizeof(path), "/proc/%d/task", worker);
    DIR *tasks = opendir(path);
    CHECK(tasks != NULL);
    while ((entry = readdir(tasks))) {
        if (*entry->d_name == '.')
            continue;
        pid_t task = (pid_t)atoi(entry->d_name);
        errno = 0;
        CHECK(getpriority(PRIO_PROCESS, (id_t)task) == expected && !errno);
        CHECK(expected == 0 || setpriority(PRIO_PROCESS, (id_t)task, expected - 1) < 0);
        n++;
    }
    CHECK(n > 0);
    (void)closedir(tasks);
    fcc_disconnect(context);
}

static void weights(void)
{
    struct test_daemon d;
    char list[64];
    int own = getpriority(PRIO_PROCESS, 0), light = own + 3, heavy = own;

    needs_users();
    if (light > 19)
        test_skip("skipped: this process is as nice as can be");
    (void)snprintf(list, sizeof(list), "%d=200,%d=100", OTHER, HOSTILE);
    daemon_start(&d, (const char *const[]){"--user-weights", list, "--worker-idle-ms", "1", NULL});
    weighing = &d;
    open_to_all(&d);
    as_user(HOSTILE, weighs, &light);
    as_user(OTHER, weighs, &heavy);
    daemon_stop(&d);
}

/* ns; 0: this kernel does not say, or has no such slices (before Linux 6.12) */
static uint64_t timeslice_of(pid_t pid)
{
    struct timeslice_attr a;

    return syscall(SYS_sched_getattr, pid, &a, sizeof(a), 0) ? 0 : a.runtime;
}

/* Broker and workers have short slices of time: who is woken for microseconds does not wait for other users' programs that compute. */
static void timeslices(void)
{
    struct test_daemon d;
    fcc_context *context;

    pid_t child = fork(); /* what this process has, all that it starts would have, too */
    if (child == 0)
        _exit(!timeslice_shorten() || timeslice_of(0) != TIMESLICE_NS);
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    if (status || timeslice_of(0) == TIMESLICE_NS)
        test_skip("skipped: slices of time: this kernel has them all of one length");
    daemon_start(&d, NULL);
    OK(fcc_connect(NULL, &context));
    CHECK(timeslice_of(d.pid) == TIMESLICE_NS && timeslice_of(daemon_worker(&d)) == TIMESLICE_NS);
    fcc_disconnect(context);
    daemon_stop(&d);
}

/* A daemon that is not root's serves its own user only. */
static void unprivileged(void *argument)
{
    struct test_daemon *d = argument;
    fcc_context *context;
    fcc_comm *comm;
    struct fcc_unique_id id;

    daemon_start(d, NULL);
    OK(fcc_connect(NULL, &context));
    OK(fcc_get_unique_id(context, &id));
    OK(fcc_comm_init(context, &id, 1, 0, NULL, &comm));
    OK(fcc_noop(comm));
    CHECK(process_uid(daemon_worker(d)) == getuid());
    fcc_comm_destroy(comm);
    fcc_disconnect(context);
    CHECK(chmod(d->socket, 0666) == 0);
    (void)pause();
}

static void may_execute(void *argument)
{
    *(int *)argument = access(daemon_binary(), X_OK) == 0;
}

struct advice {
    char text[8192];
};

static void doctor_run(void *advice)
{
    struct advice *a = advice;

    CHECK(program_run(a->text, sizeof(a->text), fccctl_binary(), (const char *const[]){"doctor", NULL}) == 1);
}

/* Whoever may not open the socket is told how he may, and never to join the group root. */
static void advice_to_join(void)
{
    struct test_daemon d;
    struct advice *a = shared_memory(sizeof(*a));
    int *may = shared_memory(sizeof(int));

    if (geteuid())
        test_skip("skipped: needs root, to be another user than the daemon");
    CHECK(chmod(test_directory(), 0755) == 0);
    as_user(40001, may_execute, may);
    if (!*may)
        test_skip("skipped: another user cannot reach the fccd that is to be tested");
    daemon_start(&d, NULL);
    as_user(40001, doctor_run, a);
    CHECK(strstr(a->text, "bad   socket") && strstr(a->text, "group root, mode 0660"));
    CHECK(strstr(a->text, "SOCKET_GROUP=fcc") && strstr(a->text, "usermod -aG fcc ") && !strstr(a->text, "-aG root"));
    daemon_stop(&d);
    daemon_start(&d, (const char *const[]){"--socket-group", "daemon", NULL});
    as_user(40001, doctor_run, a);
    CHECK(strstr(a->text, "usermod -aG daemon ") && strstr(a->text, "SOCKET_GROUP"));
    daemon_stop(&d);
}

static void private_daemon(void)
{
    struct test_daemon d;
    int *may = shared_memory(sizeof(int));
    struct fcc_reply reply;

    if (geteuid())
        test_skip("skipped: needs root, to be another user than the daemon");
    CHECK(chmod(test_directory(), 0777) == 0);
    as_user(40001, may_execute, may);
    if (!*may)
        test_skip("skipped: another user cannot reach the fccd that is to be tested");
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        CHECK(setgroups(0, NULL) == 0 && setgid(40001) == 0 && setuid(40001) == 0);
        unprivileged(&d);
    }
    char path[128];
    struct stat st;
    double until = await_end();
    (void)snprintf(path, sizeof(path), "%s/fccd.sock", test_directory());
    while (stat(path, &st) || (st.st_mode & 0777) != 0666)
        AWAITING(until);
    CHECK(control_hello(path, 0, "", &reply) == -EPERM);
    CHECK(strstr(reply.text, "runs as uid 40001") != NULL);
    CHECK(kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid);
    (void)unlink(path);
}

/* ---- another user's buffer ---- */

struct owner {
    _Atomic int ready, done;
};

/* Buffers of a user, with the handles that a first communicator's buffers get. */
static void owner_run(struct owner *o)
{
    fcc_context *context;
    fcc_comm *comm;
    fcc_buffer *b;
    struct fcc_unique_id id;

    OK(fcc_connect(NULL, &context));
    OK(fcc_get_unique_id(context, &id));
    OK(fcc_comm_init(context, &id, 1, 0, NULL, &comm));
    for (int i = 0; i < 4; i++)
        OK(fcc_buffer_alloc(comm, i % 2 ? FCC_BUFFER_SYMMETRIC : FCC_BUFFER_LOCAL, 4096, &b));
    memset(fcc_buffer_data(b), 7, 4096);
    o->ready = 1;
    while (!o->done)
        (void)usleep(1000);
    for (int i = 0; i < 4096; i++)
        CHECK(((char *)fcc_buffer_data(b))[i] == 7);
    fcc_disconnect(context);
}

/* Of other users' jobs, not even that they exist. */
static void status_is_private(const struct test_daemon *d)
{
    struct raw *r = raw_open(d);
    struct fcc_hello h = hello_make();
    struct fcc_query q = {.msg = {.length = sizeof(q), .type = FCC_MSG_QUERY, .id = 2}, .what = FCC_QUERY_STATUS};
    char text[4096];

    h.role = FCC_ROLE_CONTROL;
    h.job[0] = '\0';
    raw_send(r, &h, sizeof(h), NULL, 0);
    CHECK(raw_receive(r)->status == 0);
    raw_send(r, &q, sizeof(q), NULL, 0);
    CHECK(msg_recv(r->sock, r->in, sizeof(r->in), 0, r->fds, &r->nfds) == sizeof(struct fcc_reply) && r->nfds == 1);
    ssize_t n = pread(r->fds[0], text, sizeof(text) - 1, 0);
    CHECK(n > 0);
    text[n] = '\0';
    CHECK(strstr(text, "40002") && !strstr(text, "40001"));
    (void)close(r->fds[0]);
    raw_close(r);
}

static void intruder_run(const struct test_daemon *d)
{
    struct raw *r = raw_session(d);
    uint32_t comm = raw_comm(r);
    struct {
        struct fcc_submit m;
        struct fcc_wire_tensor t[FCC_GEMV_TENSORS];
    } m = {.m = noop_make(comm, FCC_NO_SLOT)};

    m.m.msg.length = sizeof(m);
    m.m.op = FCC_OP_GEMV_ALL_REDUCE;
    m.m.ntensors = FCC_GEMV_TENSORS;
    for (uint32_t handle = 1; handle < 16; handle++) {
        for (int i = 0; i < FCC_GEMV_TENSORS; i++)
            m.t[i] = (struct fcc_wire_tensor){.buffer = handle, .dtype = FCC_F32, .ndim = 2, .shape = {1, 1}, .stride = {1, 1}};
        CHECK(submit_socket(r, &m, sizeof(m))->status == -ENOENT &&
              strstr(((struct fcc_reply *)r->in)->text, "no such buffer"));
    }
    status_is_private(d);
    raw_close(r);
}

static pid_t user_fork(uid_t uid)
{
    pid_t pid = fork();

    CHECK(pid >= 0);
    if (pid == 0)
        CHECK(setgroups(0, NULL) == 0 && setgid(uid) == 0 && setuid(uid) == 0);
    return pid;
}

static void another_users_buffer(void)
{
    struct test_daemon d;
    struct owner *o = shared_memory(sizeof(*o));
    pid_t pids[2];
    int status;

    if (geteuid())
        test_skip("skipped: needs root, to be two users");
    daemon_start(&d, NULL);
    CHECK(chmod(d.socket, 0666) == 0);
    pids[0] = user_fork(40001);
    if (pids[0] == 0) {
        owner_run(o);
        _exit(0);
    }
    double until = await_end();
    while (!o->ready)
        AWAITING(until);
    char path[64];
    (void)snprintf(path, sizeof(path), "/proc/%d/fd", daemon_worker(&d));
    pids[1] = user_fork(40002);
    if (pids[1] == 0) {
        intruder_run(&d);
        CHECK(access(path, R_OK) != 0); /* nor by way of the other's worker */
        _exit(0);
    }
    CHECK(waitpid(pids[1], &status, 0) == pids[1] && status == 0);
    o->done = 1;
    CHECK(waitpid(pids[0], &status, 0) == pids[0] && status == 0);
    daemon_stop(&d);
}

int main(void)
{
    static const struct test tests[] = {
        {"two_users", two_users, 0},           {"another_users_buffer", another_users_buffer, 0},
        {"timeslices", timeslices, 0},         {"weights", weights, 0},
        {"too_many_jobs", too_many_jobs, 0},   {"private_daemon", private_daemon, 0},
        {"advice_to_join", advice_to_join, 0},
    };
    return tests_run("users", TESTS(tests));
}
