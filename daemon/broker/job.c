/* SPDX-License-Identifier: MIT
 *
 * job.c - the broker's side of jobs and their workers.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/broker/metrics/metrics.h"
#include "daemon/broker/share/share.h"
#include "daemon/broker/store.h"
#include "proto/base/log.h"
#include "proto/msg.h"

static void job_read(evutil_socket_t sock, short what, void *arg);

struct job *job_find(struct broker *b, uid_t uid, const char *name)
{
    struct job *j;

    LIST_FOREACH(j, &b->jobs, link)
        if (!j->retired && j->uid == uid && !strcmp(j->name, name))
            return j;
    return NULL;
}

static uint32_t user_jobs(const struct broker *b, uid_t uid)
{
    const struct job *j;
    uint32_t n = 0;

    LIST_FOREACH(j, &b->jobs, link)
        n += j->uid == uid && !j->retired;
    return n;
}

void job_disconnect(struct job *j)
{
    bool had = j->control >= 0;

    j->retired = true;
    job_peers_forget(j);
    channel_close(j);
    event_stop(&j->event);
    if (had) {
        store_job_is(j, STORE_RETIRED);      /* its process still has its part of the account */
        (void)shutdown(j->control, SHUT_WR); /* the service manager may have it, too */
        msg_close(j->control);
        if (j->slot >= 0)
            store_drop(j->broker, store_name("worker", (unsigned)j->slot).text);
    }
    j->control = -1;
    if (had)
        job_adoption_end(j);
}

void job_end(struct job *j)
{
    event_stop(&j->ended);
    job_disconnect(j);
    job_ledger_close(j);
    job_account_close(j);
    store_job_end(j);
    fd_close(&j->process);
    LIST_REMOVE(j, link);
    free(j);
}

void job_kill(const struct job *j)
{
    if (j->process >= 0)
        (void)pidfd_send_signal(j->process, SIGKILL, NULL, 0);
    else
        (void)kill(j->pid, SIGKILL); /* a child of this process that is not reaped */
}

void jobs_leave(struct broker *b)
{
    struct job *j, *next;

    LIST_FOREACH_SAFE(j, &b->jobs, link, next) {
        event_stop(&j->ended);
        event_stop(&j->event);
        channel_drop(j);
        fd_close(&j->control); /* no shutdown(): the next broker takes it */
        fd_close(&j->process);
        job_account_close(j);
        job_ledger_close(j);
        LIST_REMOVE(j, link);
        free(j);
    }
}

/* Handles the worker's CLOSED: sends its START, and then the messages that were queued meanwhile. */
static int worker_greet(struct job *j)
{
    struct control_start start = {
        .msg.type = CONTROL_START, .config = j->broker->config, .uid = j->uid, .place = j->place, .self = j->worker};

    start.limits = config_limits(&start.config);
    memcpy(start.job, j->name, sizeof(start.job));
    memcpy(start.mps_pipe, j->mps_pipe, sizeof(start.mps_pipe));
    int status = job_meeting(j, &start);
    if (!status)
        status = channel_greet(j, &start.msg, sizeof(start), j->user->account_fd);
    if (!status)
        trouble_tell(j);
    explicit_bzero(start.meeting_key, sizeof(start.meeting_key));
    return status;
}

/* Kills the worker. The job is freed when the process is reaped. */
static void worker_give_up(struct job *j)
{
    job_kill(j);
    job_disconnect(j);
}

/* Queues the worker's ledger until it has its START; it comes before any connection. */
static void worker_ledger_send(struct job *j)
{
    struct fcc_msg m = {.type = CONTROL_LEDGER};
    int fd = job_ledger_open(j), status = fd < 0 ? fd : channel_send(j, &m, sizeof(m), fd);

    if (!status && j->slot >= 0)
        (void)store_keep(j->broker, store_name("ledger", (unsigned)j->slot).text, fd);
    fd_close(&fd);
    if (status)
        job_log(LOG_LEVEL_WARNING, j, "its worker gets no ledger: %s: its operators are not counted", strerror(-status));
}

int job_listen(struct job *j)
{
    (void)event_assign(&j->event, j->broker->base, j->control, EV_READ | EV_PERSIST, job_read, j);
    return event_add(&j->event, NULL) ? -ENOMEM : 0;
}

static struct job *job_start(struct broker *b, const struct visitor *v, const struct fcc_hello *hello,
                             const struct groups *groups, struct error *e)
{
    const char *name = hello->job;
    int pair[2];
    struct job *j;

    if (user_jobs(b, v->uid) >= b->config.jobs_per_user) {
        (void)error_set(e, -EPERM, "job %s: uid %u has %u jobs: JOBS_PER_USER allows no more", name, v->uid,
                        b->config.jobs_per_user);
        return NULL;
    }
    j = calloc(1, sizeof(*j));
    if (!j || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair)) {
        (void)error_set(e, j ? -errno : -ENOMEM, "job %s: its worker cannot be started: %s", name,
                        strerror(j ? errno : ENOMEM));
        free(j);
        return NULL;
    }
    msg_fds_forbid(pair[0]); /* the worker runs as its user, and must not send descriptors to the broker */
    *j = (struct job){.broker = b,
                      .uid = v->uid,
                      .control = pair[0],
                      .slot = -1,
                      .process = -1,
                      .version = CONTROL_VERSION,
                      .proto = FCC_PROTO_VERSION,
                      .proto_oldest = FCC_PROTO_OLDEST,
                      .started_ns = clock_ns()};
    (void)snprintf(j->name, sizeof(j->name), "%s", name);
    text_copy(j->mps_pipe, sizeof(j->mps_pipe), hello->mps_pipe);
    b->last.number++;
    j->worker = b->last;
    LIST_INSERT_HEAD(&b->jobs, j, link);
    channel_open(j);
    (void)store_job_begin(j);
    worker_ledger_send(j);
    if (j->slot >= 0)
        job_adopt_ask(j);
    if (job_listen(j))
        (void)error_set(e, -ENOMEM, "job %s: out of memory", name);
    else if (!job_account_open(j, e))
        j->pid = worker_spawn(b->exe, v->uid, v->gid, groups, config_nice(&b->config, v->uid), pair[1], e);
    (void)close(pair[1]);
    if (j->pid <= 0) {
        job_end(j);
        return NULL;
    }
    job_account_owned(j);
    store_job_spawned(j);
    b->workers_started++;
    job_log(LOG_LEVEL_INFO, j, "started worker %d", j->pid);
    return j;
}

/* The worker's connections, and those on their way to it. */
static uint64_t job_connections(const struct job *j)
{
    return j->connections + (j->given - j->got);
}

/* May the visitor have one more connection to that job of user `uid` (NULL: a new job)? A visitor that inspects another user's
 * job, as root may, is not limited. */
static int connections_check(const struct broker *b, const struct visitor *v, uid_t uid, const struct job *j, struct error *e)
{
    const struct job *other;
    uint64_t job = j ? job_connections(j) : 0, all = 0;

    if (v->uid != uid)
        return 0;
    if (job >= b->config.connections_per_job)
        return error_set(e, -EUSERS, "job %u/%s: it has %llu connections, and CONNECTIONS_PER_JOB allows %u", uid, j->name,
                         (unsigned long long)job, b->config.connections_per_job);
    LIST_FOREACH(other, &b->jobs, link)
        all += other->uid == uid ? job_connections(other) : 0;
    if (all >= b->config.connections_per_user)
        return error_set(e, -EUSERS, "uid %u has %llu connections in all of its jobs, and CONNECTIONS_PER_USER allows %u", uid,
                         (unsigned long long)all, b->config.connections_per_user);
    return 0;
}

bool job_needs_groups(struct broker *b, const struct visitor *v, const struct fcc_hello *hello)
{
    return hello->role == FCC_ROLE_CLIENT && geteuid() == 0 && v->uid != 0 && !job_find(b, v->uid, hello->job);
}

int job_hand_over(struct broker *b, const struct visitor *v, const struct fcc_hello *hello, const struct groups *groups,
                  struct error *e)
{
    struct control_session m = {.msg = {.type = CONTROL_SESSION, .id = hello->msg.id},
                                .role = hello->role,
                                .uid = v->uid,
                                .pid = v->pid,
                                .version = hello->version};
    bool control = hello->role == FCC_ROLE_CONTROL;
    uid_t uid = control ? hello->uid : v->uid;

    text_copy(m.mps_pipe, sizeof(m.mps_pipe), hello->mps_pipe);
    for (int attempt = 0; attempt < 2; attempt++) {
        struct job *j = job_find(b, uid, hello->job);
        if (!j && control)
            return error_set(e, -ENOENT, "job %u/%s: no such job", uid, hello->job);
        if (connections_check(b, v, uid, j, e))
            return e->status;
        if (j && (hello->version < j->proto_oldest || hello->version > j->proto)) /* another fccd has started it */
            return version_refuse(hello->version, j->proto_oldest, j->proto, e);
        if (!j)
            j = job_start(b, v, hello, groups, e);
        if (!j)
            return e->status;
        int status = channel_send(j, &m.msg, sizeof(m), v->sock);
        if (!status) {
            j->handed++;
            j->given++;
            j->sessions += !control;
            job_peers_deliver(j); /* connections from other nodes that were held until the job has a worker */
            return 0;
        }
        if (status == -EAGAIN)
            return error_set(e, status, "job %u/%s: its worker (pid %d) does not take connections: too many wait already", uid,
                             hello->job, j->pid);
        if (status != -EPIPE && status != -ECONNRESET)
            return error_set(e, status, "job %u/%s: its worker (pid %d) does not take connections: %s", uid, hello->job, j->pid,
                             strerror(-status));
        job_disconnect(j); /* the worker has just died: try once more with a new one */
    }
    return error_set(e, -ECONNRESET, "job %u/%s: its workers die at once", uid, hello->job);
}

/* Handles RETIRE: agrees if the worker has received all that was sent to it. Otherwise the message in flight is the refusal:
 * control.h. */
static void retire_handle(struct job *j, const struct control_retire *m)
{
    struct fcc_msg yes = {.type = CONTROL_RETIRE};

    if (m->handed != j->handed)
        return;
    j->retired = j->leaves = true;
    store_job_is(j, STORE_RETIRED);              /* before the worker hears of it: the next broker would say it again */
    (void)channel_try(j, &yes, sizeof(yes), -1); /* if this fails, the closed channel says enough */
    job_disconnect(j);
}

/* Handles one message of the job's worker. */
static void job_read(evutil_socket_t sock, short what, void *arg)
{
    struct job *j = arg;
    int fds[FCC_MAX_FDS], nfds;
    static union { /* static: the broker has one thread */
        struct fcc_msg msg;
        struct control_sessions sessions;
        struct control_connect connect;
        struct control_deny deny;
        struct control_retire retire;
        struct control_adopted adopted;
        unsigned char room[FCC_MSG_MAX];
    } m;

    (void)sock, (void)what;
    ssize_t n = msg_recv(j->control, &m, sizeof(m), MSG_DONTWAIT, fds, &nfds);
    if (n == -EAGAIN)
        return;
    if (n > 0)
        fds_discard(fds, nfds); /* no message of a worker has descriptors */
    if (n == sizeof(m.msg) && m.msg.type == CONTROL_CLOSED && !j->closed) {
        if (worker_greet(j)) {
            job_log(LOG_LEVEL_ERROR, j, "cannot reach its new worker %d", j->pid);
            worker_give_up(j);
        }
    } else if (n > 0 && !j->closed) {
        job_log(LOG_LEVEL_ERROR, j, "worker %d sent a message of type %u before it was closed to tracing", j->pid, m.msg.type);
        worker_give_up(j);
    } else if (n == sizeof(m.sessions) && m.msg.type == CONTROL_SESSIONS) {
        /* The worker runs as its user and may send any numbers, which affect only that user's limits. */
        j->sessions = m.sessions.sessions;
        j->connections = m.sessions.sessions + m.sessions.controls;
        if (!j->asked)
            j->got = m.sessions.got < j->given ? m.sessions.got : j->given;
        store_job_says(j);
        job_share_heard(j);
    } else if (n == sizeof(m.adopted) && m.msg.type == CONTROL_ADOPTED && j->asked && m.msg.id == job_adoption_id(j)) {
        job_adopted(j, &m.adopted);
    } else if (n > 0 && j->asked) {
        return; /* the worker has said it before ADOPTED, and says it again: control.h */
    } else if (n == sizeof(m.connect) && m.msg.type == CONTROL_CONNECT) {
        job_connect(j, &m.connect);
    } else if (n == sizeof(m.deny) && m.msg.type == CONTROL_DENY) {
        job_deny(j, &m.deny);
    } else if (n == sizeof(m.retire) && m.msg.type == CONTROL_RETIRE) {
        retire_handle(j, &m.retire);
    } else {
        if (n > 0)
            job_log(LOG_LEVEL_WARNING, j, "worker %d sent a malformed message of type %u", j->pid, m.msg.type);
        job_disconnect(j); /* the worker, which runs as its user, has died or misbehaves */
    }
}

void jobs_reap(struct broker *b)
{
    struct job *j, *next;
    int status;

    LIST_FOREACH_SAFE(j, &b->jobs, link, next) {
        if (j->foreign || waitpid(j->pid, &status, WNOHANG) != j->pid)
            continue;
        if (WIFSIGNALED(status) || WEXITSTATUS(status)) {
            b->workers_died++;
            if (WIFSIGNALED(status))
                job_log(LOG_LEVEL_ERROR, j, "worker %d died: %s", j->pid, strsignal(WTERMSIG(status)));
            else
                job_log(LOG_LEVEL_ERROR, j, "worker %d failed with status %d", j->pid, WEXITSTATUS(status));
        } else {
            job_log(LOG_LEVEL_INFO, j, "worker %d ended", j->pid);
        }
        job_end(j);
    }
}

void jobs_drain(struct broker *b)
{
    struct fcc_msg drain = {.type = CONTROL_DRAIN};
    struct job *j;

    LIST_FOREACH(j, &b->jobs, link) {
        if (b->leaving && j->slot >= 0)
            continue;
        j->leaves = true;
        if (j->control >= 0)
            (void)channel_send(j, &drain, sizeof(drain), -1);
    }
}

void jobs_kill(struct broker *b)
{
    struct job *j;

    LIST_FOREACH(j, &b->jobs, link) {
        job_log(LOG_LEVEL_WARNING, j, "worker %d did not end in time: killed", j->pid);
        job_kill(j);
    }
}
