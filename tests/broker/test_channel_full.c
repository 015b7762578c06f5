/* SPDX-License-Identifier: MIT
 *
 * test_channel_full.c - what passes between broker, worker and clients where descriptors run out, and replies that are not read: nothing is
 * lost, and an error is one message's.
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "tests/bed/job_status.h"
#include "tests/bed/program.h"

/* ---- descriptors ---- */

static void limit_set(pid_t pid, int more)
{
    struct rlimit limit = {.rlim_cur = (rlim_t)(descriptors_count(pid) + more), .rlim_max = 4096};

    CHECK(prlimit(pid, RLIMIT_NOFILE, &limit, NULL) == 0);
}

/* Who comes when the worker's table is full is told so, with the reason; the worker stays the job's, keeps its account, and serves on. */
static void worker_full(void)
{
    enum { ROOM = 40, CLOSED = 8 };
    static struct raw *all[2 * ROOM];
    struct test_daemon d;
    int status = 0, n = 0;
    char who[16];

    daemon_start(&d, (const char *const[]){"--memory-per-user-mb", "16", NULL});
    struct raw *first = job_open_raw(&d, "raw", FCC_ROLE_CLIENT, &status);
    pid_t worker = daemon_worker(&d);
    uint32_t comm = raw_comm(first);
    (void)snprintf(who, sizeof(who), "%d", worker);
    limit_set(worker, ROOM);
    for (int round = 0; round < 3; round++) {
        for (; n < 2 * ROOM; n++) {
            all[n] = job_open_raw(&d, "raw", n % 2 ? FCC_ROLE_CLIENT : FCC_ROLE_CONTROL, &status);
            if (status)
                break;
        }
        CHECK(n < 2 * ROOM && status == -EMFILE);
        const char *text = ((struct fcc_reply *)all[n]->in)->text; /* it names the limit, and whose it is */
        if (!strstr(text, "RLIMIT_NOFILE") || !strstr(text, who))
            check_failed(__FILE__, __LINE__, "%s", text);
        CHECK(raw_closed(all[n]));
        raw_close(all[n]);
        struct fcc_submit m = noop_make(comm, FCC_NO_SLOT);
        CHECK(submit_socket(first, &m, sizeof(m))->status == 0);
        int full = descriptors_count(worker);
        CHECK(n >= CLOSED);
        for (int i = 0; i < CLOSED; i++)
            raw_close(all[--n]);
        descriptors_fall(worker, full - CLOSED); /* each has at least one; with less room the next round would open none */
        CHECK(daemon_worker(&d) == worker);
    }
    /* its memory is still accounted for: 16 MiB, whatever has gone wrong */
    struct fcc_buffer_alloc_msg alloc = {.msg = {.length = sizeof(alloc), .type = FCC_MSG_BUFFER_ALLOC, .id = 3},
                                         .comm = comm,
                                         .kind = FCC_BUFFER_LOCAL,
                                         .bytes = 4 << 20};
    int got = 0;
    do {
        raw_send(first, &alloc, sizeof(alloc), NULL, 0);
        status = raw_receive(first)->status;
        got += !status;
    } while (!status && got < 8);
    CHECK(status == -ENOMEM && got <= 3 && strstr(((struct fcc_reply *)first->in)->text, "MEMORY_PER_USER_MB"));
    CHECK(!daemon_logged(&d, "the broker is gone", false));
    while (n)
        raw_close(all[--n]);
    raw_close(first);
    daemon_stop(&d);
}

/* The client's own table is full: that call's error, and the worker keeps nothing of it; connection and communicator go on. */
static void client_full(void)
{
    struct test_daemon d;
    struct rlimit limit, small = {.rlim_cur = 64, .rlim_max = 64};
    fcc_context *context, *none;
    fcc_comm *comm;
    fcc_buffer *b;
    struct fcc_unique_id id;
    const int32_t *word;
    int fds[64], n = 0;

    daemon_start(&d, NULL);
    OK(fcc_connect(NULL, &context));
    OK(fcc_get_unique_id(context, &id));
    OK(fcc_comm_init(context, &id, 1, 0, NULL, &comm));
    OK(fcc_noop(comm));
    int64_t before = job_number(&d, "test", "memory_bytes");
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    small.rlim_max = limit.rlim_max;
    CHECK(setrlimit(RLIMIT_NOFILE, &small) == 0);
    while ((fds[n] = dup(STDERR_FILENO)) >= 0)
        n++;
    for (int i = 0; i < 20; i++) {
        FAILS(fcc_buffer_alloc(comm, i % 2 ? FCC_BUFFER_LOCAL : FCC_BUFFER_SYMMETRIC, 1 << 20, &b), -EMFILE, "RLIMIT_NOFILE");
        OK(fcc_noop(comm));
    }
    FAILS(fcc_comm_status(comm, &word), -EMFILE, "Too many open files");
    FAILS(fcc_connect(NULL, &none), -EMFILE, "Too many open files");
    (void)close(fds[--n]); /* the socket has room, and what comes with the answer has not */
    FAILS(fcc_connect(NULL, &none), -EMFILE, "RLIMIT_NOFILE");
    while (n)
        (void)close(fds[--n]);
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    CHECK(job_number(&d, "test", "memory_bytes") < before + (1 << 20)); /* none of them is left */
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, 1 << 20, &b));
    OK(fcc_comm_status(comm, &word));
    CHECK(*word == 0);
    OK(fcc_noop(comm));
    fcc_disconnect(context);
    daemon_stop(&d);
}

/* One of two ranks has no room for its part of what both allocate: it is told so, and the other has its part; both go on. */
static void full_rank(int rank, const struct ranks *all, void *argument)
{
    struct rlimit limit, small = {.rlim_cur = 64};
    fcc_comm *comm = comm_open(all, rank, 0);
    _Atomic int *step = argument;
    int fds[64], n = 0;
    fcc_buffer *b;

    OK(fcc_noop(comm));
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    small.rlim_max = limit.rlim_max;
    CHECK(rank == 0 || setrlimit(RLIMIT_NOFILE, &small) == 0);
    while (rank == 1 && (fds[n] = dup(STDERR_FILENO)) >= 0)
        n++;
    for (int i = 0; i < 10; i++) {
        if (rank == 1) {
            FAILS(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, 1 << 20, &b), -EMFILE, "RLIMIT_NOFILE");
        } else {
            OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, 1 << 20, &b));
            OK(fcc_buffer_write(b, (1 << 20) - 1, "", 1));
            fcc_buffer_free(b);
        }
        OK(fcc_noop(comm));
    }
    while (n)
        (void)close(fds[--n]);
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, 1 << 20, &b));
    OK(fcc_noop(comm));
    ++*step;
    while (*step < all->n)
        nap();
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void client_full_of_two(void)
{
    ranks_run(2, full_rank, shared_memory(sizeof(int)));
}

/* ---- replies ---- */

static int ask_unread(struct raw *r, uint32_t comm)
{
    enum { ASKED = 1200, ALLOCATED = 60 };

    for (uint64_t i = 0; i < ASKED + ALLOCATED; i++) {
        struct fcc_buffer_alloc_msg m = {.msg = {.length = i < ASKED ? sizeof(m.msg) : sizeof(m),
                                                 .type = i < ASKED ? FCC_MSG_UNIQUE_ID : FCC_MSG_BUFFER_ALLOC,
                                                 .id = 100 + i},
                                         .comm = comm,
                                         .kind = FCC_BUFFER_LOCAL,
                                         .bytes = 4096};
        if (send(r->sock, &m, m.msg.length, MSG_NOSIGNAL) != (ssize_t)m.msg.length)
            break; /* closed */
    }
    return ASKED + ALLOCATED;
}

/* Replies that are not read for a while are kept with their descriptors: none is lost, and none comes without what it should have. Where the
 * worker has no room for these descriptors the connection ends, which the log explains. */
static void replies_unread(void)
{
    for (int full = 0; full < 2; full++) {
        struct test_daemon d;
        int got = 0, status;
        ssize_t n;

        daemon_start(&d, NULL);
        struct raw *r = job_open_raw(&d, "raw", FCC_ROLE_CLIENT, &status);
        uint32_t comm = raw_comm(r);
        if (full)
            limit_set(daemon_worker(&d), 30);
        int before = descriptors_count(daemon_worker(&d)), asked = ask_unread(r, comm);
        if (full)
            CHECK(daemon_logged(&d, "its connection ends: no file descriptor is left to keep a reply to it (RLIMIT_NOFILE)",
                                true));
        for (double until = await_end(); !full && descriptors_count(daemon_worker(&d)) < before + 60; (void)usleep(2000))
            CHECK(now_ms() < until); /* all is answered, and what has descriptors is kept */
        while (!full || got < asked) {
            n = msg_recv(r->sock, r->in, sizeof(r->in), 0, r->fds, &r->nfds);
            const struct fcc_reply *reply = (const struct fcc_reply *)r->in;
            if (n <= 0)
                break;
            CHECK(reply->msg.id == 100 + (uint64_t)got);
            CHECK(reply->status == 0 ? r->nfds == (reply->msg.type == (FCC_MSG_BUFFER_ALLOC | FCC_REPLY)) : full);
            fds_close(r->fds, r->nfds);
            got++;
            if (!full && got == asked)
                break;
        }
        CHECK(full ? got < asked : got == asked);
        raw_close(r);
        daemon_stop(&d);
    }
}

#define IN_FLIGHT 80 /* descriptors; the worker may have fewer */

/* A reply that can be neither sent nor kept: its connection ends, but says why first. With less room there is nothing to reply with; it grows by one
 * descriptor at most each time. */
static void in_flight_lost(const struct test_daemon *d, struct raw *r, const struct fcc_buffer_alloc_msg *m)
{
    const pid_t worker = daemon_worker(d);
    const struct fcc_reply *reply;
    struct rlimit limit = {.rlim_cur = 4, .rlim_max = 4096};
    char who[32];

    (void)snprintf(who, sizeof(who), "process %d, RLIMIT_NOFILE", worker);
    do {
        CHECK(++limit.rlim_cur < IN_FLIGHT && prlimit(worker, RLIMIT_NOFILE, &limit, NULL) == 0);
        raw_send(r, m, sizeof(*m), NULL, 0);
        reply = raw_receive(r);
        if (reply->status != -EMFILE || r->nfds || !strstr(reply->text, who))
            check_failed(__FILE__, __LINE__, "%d: %s", reply->status, reply->text);
    } while (!daemon_logged(d, "its connection ends: no file descriptor is left", false));
    CHECK(strstr(reply->text, "can be neither sent now nor kept") && raw_closed(r));
}

/* Another process of the same user has so many descriptors on their way that the kernel takes no more of that user's. A reply with one is
 * kept until it does, unless the worker's table is full. The user has no privilege, under which this would not be so. */
static void in_flight_user(const struct test_daemon *d, bool full)
{
    int pairs[IN_FLIGHT][2], status;
    char byte = 0;
    struct raw *r = job_open_raw(d, "raw", FCC_ROLE_CLIENT, &status);
    uint32_t comm = raw_comm(r);
    struct fcc_buffer_alloc_msg m = {.msg = {.length = sizeof(m), .type = FCC_MSG_BUFFER_ALLOC, .id = 9},
                                     .comm = comm,
                                     .kind = FCC_BUFFER_LOCAL,
                                     .bytes = 4096};
    struct rlimit small = {.rlim_cur = IN_FLIGHT - 20, .rlim_max = 4096};

    CHECK(status == 0 && prlimit(daemon_worker(d), RLIMIT_NOFILE, &small, NULL) == 0);
    for (int i = 0; i < IN_FLIGHT; i++) {
        CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pairs[i]) == 0);
        struct raw to = {.sock = pairs[i][0]};
        raw_send(&to, &byte, 1, (int[]){STDERR_FILENO}, 1);
    }
    if (full) {
        in_flight_lost(d, r, &m);
        raw_close(r);
        return;
    }
    raw_send(r, &m, sizeof(m), NULL, 0);
    struct timeval soon = {.tv_usec = 300000}, limit = {.tv_sec = (time_t)((await_end() - now_ms()) / 1e3)};
    CHECK(setsockopt(r->sock, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof(soon)) == 0);
    CHECK(msg_recv(r->sock, r->in, sizeof(r->in), 0, r->fds, &r->nfds) == -EAGAIN);
    for (int i = 0; i < IN_FLIGHT; i++) {
        (void)close(pairs[i][0]);
        (void)close(pairs[i][1]);
    }
    CHECK(setsockopt(r->sock, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0);
    CHECK(msg_recv(r->sock, r->in, sizeof(r->in), 0, r->fds, &r->nfds) == sizeof(struct fcc_buffer_alloc_reply));
    CHECK(((struct fcc_reply *)r->in)->status == 0 && r->nfds == 1);
    fds_close(r->fds, r->nfds);
    raw_close(r);
}

static void replies_in_flight(void)
{
    struct test_daemon d;
    int status;

    if (geteuid())
        test_skip("skipped: needs root, to be another user than the daemon");
    daemon_start(&d, NULL);
    CHECK(chmod(test_directory(), 0711) == 0 && chmod(d.socket, 0666) == 0);
    for (int full = 0; full < 2; full++) {
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            CHECK(setgroups(0, NULL) == 0 && setgid(40005) == 0 && setuid(40005) == 0);
            in_flight_user(&d, full);
            _exit(0);
        }
        CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    }
    daemon_stop(&d);
}

/* Its worker dies before it has read the connection, which waits in its channel or, by then, at the broker: the client meets the next
 * worker. */
static void worker_dies_unread(void)
{
    struct test_daemon d;
    fcc_context *first, *context;

    daemon_start(&d, NULL);
    for (int i = 0; i < 20; i++) {
        OK(fcc_connect(NULL, &first));
        pid_t worker = daemon_worker(&d);
        CHECK(kill(worker, SIGSTOP) == 0);
        pid_t killer = fork();
        CHECK(killer >= 0);
        if (killer == 0) {
            (void)usleep((useconds_t)(i * 500));
            _exit(kill(worker, SIGKILL) != 0);
        }
        OK(fcc_connect(NULL, &context));
        CHECK(waitpid(killer, NULL, 0) == killer && daemon_worker(&d) != worker);
        fcc_disconnect(context);
        fcc_disconnect(first);
    }
    daemon_stop_unclean(&d);
}

int main(void)
{
    static const struct test tests[] = {{"worker_full", worker_full, 0},
                                        {"client_full", client_full, 0},
                                        {"client_full_of_two", client_full_of_two, 0},
                                        {"replies_unread", replies_unread, 60},
                                        {"worker_dies_unread", worker_dies_unread, 60},
                                        {"replies_in_flight", replies_in_flight, 0}};

    return tests_run("channel_full", TESTS(tests));
}
