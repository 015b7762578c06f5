/* SPDX-License-Identifier: MIT
 *
 * test_visitors.c - one user against the others, at the broker's door: silent connections, questions without end, refusals that fill the
 * log, a full table of descriptors, and connections without number. Others are served meanwhile. test_names.c: a slow name service.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/bed/job_status.h"
#include "tests/bed/users_bed.h"

/* The same for one with a siege of his own, whose connections make room for each other: a new one may have to go for the next, also for those
 * that the broker has still to accept when the siege is over. */
static void served_soon(const struct test_daemon *d, uid_t uid)
{
    for (double until = await_end(); !is_served(d, uid);)
        AWAITING(until);
}

/* What a user does to the broker until it is told to end, in a process of its own. */
struct siege {
    _Atomic int ready, done;
    _Atomic int evicted, held; /* connections that the broker closed with -EUSERS; that are open now */
    bool asks;
    int connections;
};

static struct raw *siege_open(const struct test_daemon *d, const struct siege *s)
{
    struct raw *r = raw_open(d);
    struct fcc_hello h = hello_make();

    h.role = FCC_ROLE_CONTROL;
    h.job[0] = '\0';
    if (s->asks)
        (void)send(r->sock, &h, sizeof(h), MSG_NOSIGNAL);
    return r;
}

/* Read what has come, and ask again for each answer; false: the broker has closed it. It says why first, and that is read also when it can
 * no longer be asked. */
static bool siege_look(struct siege *s, struct raw *r)
{
    const struct fcc_query q = {.msg = {.length = sizeof(q), .type = FCC_MSG_QUERY, .id = 2}, .what = FCC_QUERY_STATUS};
    const struct fcc_reply *reply = (const struct fcc_reply *)r->in;

    for (;;) {
        int fds[FCC_MAX_FDS], nfds = 0;
        ssize_t n = msg_recv(r->sock, r->in, sizeof(r->in), MSG_DONTWAIT, fds, &nfds);
        if (n == -EAGAIN)
            return true;
        if (n <= 0)
            return false;
        fds_close(fds, nfds);
        if (reply->msg.type == FCC_MSG_ERROR) {
            s->evicted += reply->status == -EUSERS && strstr(reply->text, "makes room for another") != NULL;
            return false;
        }
        if (send(r->sock, &q, sizeof(q), MSG_NOSIGNAL) == sizeof(q))
            return true;
    }
}

static void siege_run(const struct test_daemon *d, struct siege *s)
{
    struct raw **all = calloc((size_t)s->connections, sizeof(struct raw *));

    CHECK(all != NULL);
    while (!s->done) {
        int held = 0;
        for (int i = 0; i < s->connections && !s->done; i++) {
            if (!all[i])
                all[i] = siege_open(d, s);
            if (siege_look(s, all[i])) {
                held++;
                continue;
            }
            raw_close(all[i]);
            all[i] = NULL;
        }
        s->held = held;
        s->ready = 1;
    }
}

static pid_t siege_start(const struct test_daemon *d, struct siege *s, uid_t uid)
{
    double until = await_end();
    pid_t pid = fork();

    CHECK(pid >= 0);
    if (pid == 0) {
        become(uid);
        siege_run(d, s);
        _exit(0);
    }
    while (!s->ready) {
        CHECK(now_ms() < until);
        nap();
    }
    return pid;
}

static void siege_end(struct siege *s, pid_t pid)
{
    int status;

    s->done = 1;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

static void besieged(bool asks, int connections)
{
    struct test_daemon d;
    struct siege *s = shared_memory(sizeof(*s));

    needs_users();
    daemon_start(&d, NULL);
    open_to_all(&d);
    *s = (struct siege){.asks = asks, .connections = connections};
    pid_t pid = siege_start(&d, s, HOSTILE);
    for (int i = 0; i < 2; i++) { /* each starts a worker, beside a user who leaves no core idle */
        served(&d, OTHER);
        served(&d, 0);
    }
    for (double until = await_end(); !s->evicted; nap()) /* there is no room for all of his, and he is told so */
        CHECK(now_ms() < until);
    served_soon(&d, HOSTILE); /* not even he is shut out: his own make room */
    siege_end(s, pid);
    served_soon(&d, HOSTILE);
    daemon_stop(&d);
}

static void silent(void)
{
    besieged(false, 400);
}

static void asking(void)
{
    besieged(true, 150);
}

/* Three users together fill all places: who has most makes room. */
static void silent_users(void)
{
    struct test_daemon d;
    struct siege *s = shared_memory(5 * sizeof(*s));
    pid_t pid[5];

    needs_users();
    daemon_start(&d, NULL);
    open_to_all(&d);
    for (int i = 0; i < 5; i++) {
        s[i] = (struct siege){.connections = 250};
        pid[i] = siege_start(&d, &s[i], (uid_t)(HOSTILE + 10 + i));
    }
    for (int i = 0; i < 5; i++)
        served(&d, OTHER);
    for (int i = 0; i < 5; i++)
        siege_end(&s[i], pid[i]);
    daemon_stop(&d);
}

/* How many of the n silent ones have been closed: the oldest, with the reason, and none that is younger than one that is open. */
static int silent_closed(struct raw *const all[], int n)
{
    const struct fcc_reply *reply;
    bool is_open = false;
    int closed = 0;

    for (int i = 0; i < n; i++) {
        ssize_t got =
            msg_recv(all[i]->sock, all[i]->in, sizeof(all[i]->in), MSG_DONTWAIT | MSG_PEEK, all[i]->fds, &all[i]->nfds);
        is_open |= got == -EAGAIN;
        if (got == -EAGAIN)
            continue;
        reply = (const struct fcc_reply *)all[i]->in;
        CHECK(!is_open && got >= (ssize_t)sizeof(*reply) && reply->msg.type == FCC_MSG_ERROR && reply->status == -EUSERS);
        CHECK(strstr(reply->text, "has said nothing: this one makes room for another") != NULL);
        closed++;
    }
    return closed;
}

/* Of a user's connections the silent one that came first goes first; one that has asked stays, though it is older than all of them. */
static void oldest_first(void)
{
    enum { N = 600, WAVES = 3 }; /* more than a share in the second */
    static struct raw *all[N];
    struct test_daemon d;
    int status, closed = 0, n = 0;

    daemon_start(&d, NULL);
    struct raw *asker = job_open_raw(&d, "", FCC_ROLE_CONTROL, &status);
    CHECK(status == 0);
    for (int wave = 1; wave <= WAVES; wave++) {
        while (n < N * wave / WAVES)
            all[n++] = raw_open(&d);
        raw_close(job_open_raw(&d, "", FCC_ROLE_CONTROL, &status)); /* the broker has accepted those before it */
        CHECK(status == 0);
        int more = silent_closed(all, n);
        printf("%d of %d silent ones have gone\n", more, n);
        CHECK(more > closed || wave == 1);
        closed = more;
    }
    CHECK(closed < N);
    const struct fcc_query q = {.msg = {.length = sizeof(q), .type = FCC_MSG_QUERY, .id = 2}, .what = FCC_QUERY_STATUS};
    raw_send(asker, &q, sizeof(q), NULL, 0);
    CHECK(raw_receive(asker)->status == 0);
    raw_close(asker);
    while (n)
        raw_close(all[--n]);
    daemon_stop(&d);
}

/* Who has said something is late by no fault of his own: the broker has not listened. All are answered, however many came at once. */
static void heard_first(void)
{
    enum { N = 700 };
    static struct raw *all[N];
    struct test_daemon d;
    struct fcc_hello h = hello_make();

    daemon_start(&d, NULL);
    CHECK(kill(d.pid, SIGSTOP) == 0);
    h.version = 99;
    for (int i = 0; i < N; i++) {
        all[i] = raw_open(&d);
        raw_send(all[i], &h, sizeof(h), NULL, 0);
    }
    CHECK(kill(d.pid, SIGCONT) == 0);
    for (int i = 0; i < N; i++) {
        CHECK(raw_receive(all[i])->status == -EPROTO && strstr(((struct fcc_reply *)all[i]->in)->text, "version 99"));
        raw_close(all[i]);
    }
    daemon_stop(&d);
}

/* ---- the log ---- */

static int log_lines(const struct test_daemon *d, const char *text)
{
    char line[2048];
    int n = 0;
    FILE *f = fopen(d->log, "re");

    while (f && fgets(line, sizeof(line), f))
        n += strstr(line, text) != NULL;
    if (f)
        (void)fclose(f);
    return n;
}

static void refusals(void)
{
    struct test_daemon d;
    struct fcc_hello h = hello_make();

    daemon_start(&d, NULL);
    h.version = 99;
    for (int i = 0; i < 1000; i++) {
        struct raw *r = raw_open(&d);
        raw_send(r, &h, sizeof(h), NULL, 0);
        CHECK(raw_receive(r)->status == -EPROTO);
        raw_close(r);
    }
    daemon_stop(&d);
    /* 20 in the first window and one in each other, and their counts: on a slow machine there are more windows. */
    int lines = log_lines(&d, "protocol version 99");
    CHECK(lines >= 21 && lines < 100);
    CHECK(log_lines(&d, "more lines like this one") >= 1);
}

/* A worker's lines, too: communicators that are aborted one after the other. */
static void aborts(void)
{
    struct test_daemon d;
    fcc_context *context;
    struct fcc_unique_id id;
    fcc_comm *comm;

    daemon_start(&d, NULL);
    OK(fcc_connect(NULL, &context));
    for (int i = 0; i < 300; i++) {
        OK(fcc_get_unique_id(context, &id));
        OK(fcc_comm_init(context, &id, 1, 0, NULL, &comm));
        OK(fcc_comm_abort(comm, "enough"));
        fcc_comm_destroy(comm);
    }
    fcc_disconnect(context);
    daemon_stop(&d);
    int lines = log_lines(&d, ": aborted: ");
    CHECK(lines >= 21 && lines < 100);
    CHECK(log_lines(&d, "more lines like this one") >= 1);
}

/* ---- descriptors ---- */

/* Of the broker, in ticks of the clock. */
static long processor_time(pid_t pid)
{
    char path[64], text[1024];
    unsigned long user = 0, system = 0;

    (void)snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    FILE *f = fopen(path, "re");
    CHECK(f != NULL && fgets(text, sizeof(text), f) != NULL);
    (void)fclose(f);
    const char *at = strrchr(text, ')');
    CHECK(at && sscanf(at, ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system) == 2);
    return (long)(user + system);
}

/* How many it may have from now on; what it had before. */
static rlim_t descriptors_limit(pid_t pid, rlim_t n)
{
    struct rlimit limit;

    CHECK(prlimit(pid, RLIMIT_NOFILE, NULL, &limit) == 0);
    rlim_t before = limit.rlim_cur;
    limit.rlim_cur = n;
    CHECK(prlimit(pid, RLIMIT_NOFILE, &limit, NULL) == 0);
    return before;
}

/* No descriptor is left, and no connection that could make room: the broker waits, and goes on when there is one. */
static void table_full(void)
{
    struct test_daemon d;
    struct pollfd p;

    daemon_start(&d, NULL);
    rlim_t before = descriptors_limit(d.pid, 3); /* more than that it has */
    struct fcc_hello h = hello_make();
    struct raw *r = raw_open(&d);
    raw_send(r, &h, sizeof(h), NULL, 0);
    long ticks = processor_time(d.pid);
    p = (struct pollfd){.fd = r->sock, .events = POLLIN};
    CHECK(poll(&p, 1, 2000) == 0);
    /* One that spins takes all of the 2 s. */
    CHECK(processor_time(d.pid) - ticks < sysconf(_SC_CLK_TCK));
    CHECK(log_lines(&d, "accept: Too many open files") < 50);
    (void)descriptors_limit(d.pid, before);
    r->length = msg_recv(r->sock, r->in, sizeof(r->in), 0, r->fds, &r->nfds);
    CHECK(r->length == sizeof(struct fcc_welcome));
    fds_close(r->fds, r->nfds);
    raw_close(r);
    daemon_stop(&d);
}

/* Silent connections have taken all descriptors: they make room, one after the other. */
static void table_full_of_silent(void)
{
    struct test_daemon d;
    struct siege *s = shared_memory(sizeof(*s));

    needs_users();
    daemon_start(&d, NULL);
    open_to_all(&d);
    rlim_t before = descriptors_limit(d.pid, (rlim_t)descriptors_count(d.pid) + 20);
    *s = (struct siege){.connections = 60};
    pid_t pid = siege_start(&d, s, HOSTILE);
    (void)sleep(1);
    CHECK(log_lines(&d, "accept: Too many open files") < 50);
    /* A worker cannot be started now, but whoever comes is heard. */
    for (int i = 0; i < 10; i++) {
        struct raw *r = raw_open(&d);
        struct fcc_hello h = hello_make();
        h.version = 99;
        raw_send(r, &h, sizeof(h), NULL, 0);
        CHECK(raw_receive(r)->status == -EPROTO);
        raw_close(r);
    }
    siege_end(s, pid);
    (void)descriptors_limit(d.pid, before);
    served(&d, OTHER);
    daemon_stop(&d);
}

/* ---- connections without number ---- */

static void connect_to(const char *job, fcc_context **out)
{
    struct fcc_connect_options options = {.job = job};
    OK(fcc_connect(&options, out));
}

static void too_many_connections(void)
{
    static const char *const options[] = {"--connections-per-job", "3", "--connections-per-user", "5", NULL};
    struct fcc_connect_options first = {.job = "first"}, third = {.job = "third"};
    struct test_daemon d;
    fcc_context *context[5], *more;
    struct fcc_hello h = hello_make();

    daemon_start(&d, options);
    for (int i = 0; i < 5; i++)
        connect_to(i < 3 ? "first" : "second", &context[i]);
    FAILS(fcc_connect(&first, &more), -EUSERS, "first", "3 connections", "CONNECTIONS_PER_JOB allows 3");
    FAILS(fcc_connect(&third, &more), -EUSERS, "5 connections", "CONNECTIONS_PER_USER allows 5");
    /* fccctl's to a worker count, too */
    h.role = FCC_ROLE_CONTROL;
    h.uid = getuid();
    memcpy(h.job, "second", sizeof("second"));
    struct raw *r = raw_open(&d);
    raw_send(r, &h, sizeof(h), NULL, 0);
    CHECK(raw_receive(r)->status == -EUSERS && raw_closed(r));
    raw_close(r);
    /* One goes, and one more may come: soon, as the worker tells. */
    fcc_disconnect(context[0]);
    double until = await_end();
    while (fcc_connect(&first, &context[0])) {
        CHECK(now_ms() < until);
        (void)usleep(2000);
    }
    for (int i = 0; i < 5; i++)
        fcc_disconnect(context[i]);
    daemon_stop(&d);
}

/* Many that come at once are not more than are allowed: what is on its way to the worker counts. */
static void connections_at_once(void)
{
    enum { N = 40, MAY = 10 };
    static const char *const options[] = {"--connections-per-job", "10", NULL};
    static struct raw *all[N];
    struct test_daemon d;
    struct fcc_hello h = hello_make();
    int well = 0;

    daemon_start(&d, options);
    for (int i = 0; i < N; i++) {
        all[i] = raw_open(&d);
        raw_send(all[i], &h, sizeof(h), NULL, 0);
    }
    for (int i = 0; i < N; i++) {
        int status = raw_receive(all[i])->status;
        CHECK(status == 0 || status == -EUSERS);
        well += status == 0;
    }
    CHECK(well == MAY);
    for (int i = 0; i < N; i++)
        raw_close(all[i]);
    daemon_stop(&d);
}

int main(void)
{
    const struct test tests[] = {
        {"silent", silent, 0},
        {"asking", asking, 0},
        {"silent_users", silent_users, 0},
        {"oldest_first", oldest_first, 0},
        {"heard_first", heard_first, 0},
        {"refusals", refusals, 0},
        {"aborts", aborts, 0},
        {"table_full", table_full, 0},
        {"table_full_of_silent", table_full_of_silent, 0},
        {"too_many_connections", too_many_connections, 0},
        {"connections_at_once", connections_at_once, 0},
    };
    return tests_run("visitors", TESTS(tests));
}
