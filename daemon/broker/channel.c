/* SPDX-License-Identifier: MIT
 *
 * channel.c - the broker's messages to a worker (control.h). The broker never waits for a worker: messages for which the
 * worker's socket has no room are queued, and sent later in their order. So a stopped worker delays nobody. The queue is
 * limited in time and in number, so that it does not make the broker grow.
 *
 * A new worker gets no message before it has sent CLOSED (control.h, daemon/worker/engine/rights.c); until then messages are
 * queued, too.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <unistd.h>

#include "daemon/broker/store.h"
#include "proto/base/log.h"
#include "proto/msg.h"

/* The most connections that are queued for workers of one user: all ranks of a communicator may connect at a time. At most half of
 * the broker's descriptors */
#define PARCELS_PER_USER FCC_MAX_RANKS
#define PARCEL_MS 10000 /* how long a connection is queued before its client gets an error; a client waits as long */
#define AGAIN_MS 5      /* when to try again if the socket has room, but the kernel has too many descriptors in flight */

/* A queued message. Owned by job.parcels. */
struct parcel {
    TAILQ_ENTRY(parcel) link;
    int fd;            /* owned; -1: none */
    uint64_t until_ns; /* with a descriptor: when the message is given up. ADOPT is not */
    size_t length;
    _Alignas(16) unsigned char bytes[];
};

static void channel_again(struct job *j, bool has_room);

bool channel_is_full(int status)
{
    return status == -EAGAIN || status == -ETOOMANYREFS || status == -ENOBUFS || status == -ENOMEM;
}

static void parcel_free(struct job *j, struct parcel *p)
{
    TAILQ_REMOVE(&j->parcels, p, link);
    j->queued--;
    fd_close(&p->fd);
    explicit_bzero(p->bytes, p->length); /* START contains a key */
    free(p);
}

/* Gives up a queued message. If it is a client's connection, the client gets the error: this process still has the socket. If
 * it is the worker's START, the worker is killed, and its clients get an error when its process has ended. */
static void parcel_refuse(struct job *j, struct parcel *p, int status, const char *text)
{
    const struct fcc_msg *m = (const struct fcc_msg *)p->bytes;
    struct fcc_reply reply = {.msg = {.type = FCC_MSG_ERROR, .id = m->id}, .status = status};

    if (m->type == CONTROL_SESSION) {
        text_copy(reply.text, sizeof(reply.text), text);
        (void)msg_send(p->fd, &reply.msg, sizeof(reply), NULL, 0); /* if this fails, the closed connection says enough */
        log_about(LOG_LEVEL_INFO, log_user(j->uid), "refused a connection: %s", text);
        j->broker->refused++;
        j->handed--;
        j->given--;
        j->got = j->got < j->given ? j->got : j->given; /* `got` comes from the worker and is not trusted */
        j->sessions -= j->sessions && ((const struct control_session *)m)->role == FCC_ROLE_CLIENT;
        msg_close(p->fd);
        p->fd = -1;
    }
    if (m->type == CONTROL_START)
        job_kill(j);
    parcel_free(j, p);
}

static void parcels_expire(struct job *j)
{
    char text[FCC_TEXT_MAX];
    uint64_t now = clock_ns();
    struct parcel *p, *next;

    TAILQ_FOREACH_SAFE(p, &j->parcels, link, next) {
        if (now < p->until_ns)
            continue;
        (void)snprintf(text, sizeof(text),
                       "job %u/%s: its worker (pid %d) has not taken the connection for %d s: it does not answer", j->uid,
                       j->name, j->pid, PARCEL_MS / 1000);
        parcel_refuse(j, p, -ETIMEDOUT, text);
    }
}

static void parcels_send(struct job *j)
{
    struct parcel *p, *next;
    int status = 0;

    for (p = TAILQ_FIRST(&j->parcels); p && !status; p = next) {
        next = TAILQ_NEXT(p, link);
        status = msg_send(j->control, (struct fcc_msg *)p->bytes, p->length, &p->fd, p->fd >= 0);
        if (channel_is_full(status))
            channel_again(j, status != -EAGAIN);
        else if (status)
            parcel_refuse(j, p, status, strerror(-status)); /* the worker is dead; job_read() will see the channel's end */
        else
            parcel_free(j, p);
    }
    if (!status)
        job_peers_deliver(j);
}

static void on_channel(evutil_socket_t sock, short what, void *arg)
{
    struct job *j = arg;

    (void)sock, (void)what;
    parcels_expire(j);
    if (j->closed)
        parcels_send(j);
    if (!TAILQ_EMPTY(&j->parcels) && !event_pending(&j->write_event, EV_WRITE | EV_TIMEOUT, NULL))
        channel_again(j, false);
}

/* Arranges to try again: with has_room (or before CLOSED) by time only, otherwise when the socket becomes writable. The time
 * limit makes sure that old connections are given up. */
static void channel_again(struct job *j, bool has_room)
{
    struct timeval soon = {.tv_usec = AGAIN_MS * 1000}, late = {.tv_sec = PARCEL_MS / 1000 / 4};

    (void)event_del(&j->write_event);
    (void)event_assign(&j->write_event, j->broker->base, has_room || !j->closed ? -1 : j->control,
                       has_room || !j->closed ? 0 : EV_WRITE, on_channel, j);
    (void)event_add(&j->write_event, has_room ? &soon : &late);
}

void channel_open(struct job *j)
{
    TAILQ_INIT(&j->parcels);
    if (j->control >= 0) /* otherwise it has ended */
        (void)evutil_make_socket_nonblocking(j->control);
    (void)evtimer_assign(&j->write_event, j->broker->base, on_channel, j);
}

void channel_close(struct job *j)
{
    char text[FCC_TEXT_MAX];
    struct parcel *p, *next;

    (void)snprintf(text, sizeof(text), "job %u/%s: its worker (pid %d) ended before it had taken the connection", j->uid,
                   j->name, j->pid);
    TAILQ_FOREACH_SAFE(p, &j->parcels, link, next)
        parcel_refuse(j, p, -ECONNRESET, text);
    event_stop(&j->write_event);
}

void channel_drop(struct job *j)
{
    struct parcel *p, *next;

    TAILQ_FOREACH_SAFE(p, &j->parcels, link, next)
        parcel_free(j, p);
    event_stop(&j->write_event);
}

static unsigned user_parcels(const struct broker *b, uid_t uid)
{
    const struct job *j;
    const struct parcel *p;
    unsigned n = 0;

    LIST_FOREACH(j, &b->jobs, link)
        if (j->uid == uid)
            TAILQ_FOREACH(p, &j->parcels, link)
                n += p->fd >= 0;
    return n;
}

static int parcel_add(struct job *j, const struct fcc_msg *m, size_t length, int fd, bool first)
{
    unsigned half = j->broker->descriptors / 2, most = half < PARCELS_PER_USER ? half : PARCELS_PER_USER;
    struct parcel *p;

    if (fd >= 0 && user_parcels(j->broker, j->uid) >= most)
        return -EAGAIN;
    p = malloc(sizeof(*p) + length);
    if (!p)
        return -ENOMEM;
    *p = (struct parcel){.fd = fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1,
                         .until_ns = fd >= 0 && m->type != CONTROL_ADOPT ? clock_ns() + PARCEL_MS * 1000000ull : UINT64_MAX,
                         .length = length};
    if (fd >= 0 && p->fd < 0) {
        int status = -errno;
        free(p);
        return status;
    }
    memcpy(p->bytes, m, length);
    j->queued++;
    if (first)
        TAILQ_INSERT_HEAD(&j->parcels, p, link);
    else
        TAILQ_INSERT_TAIL(&j->parcels, p, link);
    return 0;
}

int channel_try(struct job *j, struct fcc_msg *m, size_t length, int fd)
{
    if (j->control < 0)
        return -EPIPE;
    if (!j->closed || !TAILQ_EMPTY(&j->parcels))
        return -EAGAIN;
    return msg_send(j->control, m, length, &fd, fd >= 0);
}

int channel_send(struct job *j, struct fcc_msg *m, size_t length, int fd)
{
    int status = channel_try(j, m, length, fd);

    if (!channel_is_full(status))
        return status;
    bool first = TAILQ_EMPTY(&j->parcels);
    int kept = parcel_add(j, m, length, fd, false);
    if (!kept && first)
        channel_again(j, status != -EAGAIN);
    return kept;
}

int channel_send_newest(struct job *j, struct fcc_msg *m, size_t length)
{
    struct parcel *p;

    TAILQ_FOREACH(p, &j->parcels, link) {
        if (p->length != length || ((const struct fcc_msg *)p->bytes)->type != m->type)
            continue;
        memcpy(p->bytes, m, length);
        ((struct fcc_msg *)p->bytes)->length = (uint32_t)length;
        return 0;
    }
    return channel_send(j, m, length, -1);
}

int channel_greet(struct job *j, struct fcc_msg *start, size_t length, int fd)
{
    int status = msg_send(j->control, start, length, &fd, 1);

    j->closed = true;
    store_job_is(j, STORE_LIVE); /* before any client is handed over */
    if (!status) {
        parcels_send(j);
    } else if (channel_is_full(status)) { /* the kernel is short of something, as the worker's socket is empty */
        status = parcel_add(j, start, length, fd, true);
        channel_again(j, true);
    }
    return status;
}

/* ---- whose the worker is ---- */

uint64_t job_adoption_id(const struct job *j)
{
    return j->broker->started_ns;
}

void job_adopt_ask(struct job *j)
{
    const struct broker *b = j->broker;
    struct control_adopt m = {.msg = {.type = CONTROL_ADOPT, .id = job_adoption_id(j)},
                              .version = CONTROL_VERSION,
                              .oldest = CONTROL_OLDEST,
                              .pid = getpid(),
                              .answered = j->answered};
    const struct account_limits limits = config_limits(&b->config);
    int self = pidfd_open(getpid(), 0), status;

    for (int whose = 0; whose < ACCOUNT_WHOSE; whose++)
        memcpy(m.limits[whose], limits.of[whose], sizeof(limits.of[whose]));
    status = self < 0 ? -errno : channel_send(j, &m.msg, sizeof(m), self);
    j->asked = !status;
    if (status)
        job_log(LOG_LEVEL_WARNING, j, "its worker %d cannot be told of this fccd's process: %s: a restart ends the job", j->pid,
                strerror(-status));
    fd_close(&self);
}

void job_adoption_end(const struct job *j)
{
    if (j->broker->adoption_changed)
        j->broker->adoption_changed(j->broker);
}

void job_adopted(struct job *j, const struct control_adopted *m)
{
    if (m->version < CONTROL_OLDEST || m->version > CONTROL_VERSION) {
        job_log(LOG_LEVEL_WARNING, j, "its worker %d speaks no version of what this fccd does (%u to %u): it ends", j->pid,
                CONTROL_OLDEST, CONTROL_VERSION);
        j->leaves = j->retired = true;
    }
    j->asked = false;
    j->version = m->version;
    j->sessions = m->sessions;
    j->connections = m->sessions + m->controls;
    /* What this broker has sent comes on top; the worker's numbers affect only its user's limits. */
    j->given += m->got;
    j->got = m->got;
    j->handed += m->handed;
    j->answered = m->arrivals;
    store_job_answered(j);
    if (m->draining)
        j->leaves = j->retired = true;
    store_job_says(j);
    j->broker->workers_adopted += j->foreign;
    if (j->foreign)
        job_log(LOG_LEVEL_INFO, j, "took over worker %d with %u connections", j->pid, j->connections);
    job_peers_deliver(j);
    job_adoption_end(j);
}
