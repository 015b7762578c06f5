/* SPDX-License-Identifier: MIT
 *
 * adopt.c - workers that another broker has started: control.h, "another broker", and store.h.
 *
 * No connection is accepted before all these workers have said what they have, or ADOPT_WAIT_MS have passed: until then the limits of their
 * users are not known. A worker that is stopped, or busy, keeps nobody waiting for longer; for its connections counts what it has said last.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/broker/metrics/metrics.h"
#include "daemon/broker/store.h"
#include "proto/base/log.h"
#include "proto/msg.h"

#define ADOPT_WAIT_MS 2000

static void on_ended(evutil_socket_t process, short what, void *arg)
{
    struct job *j = arg;
    struct broker *b = j->broker;

    (void)process, (void)what;
    /* How it ended is told to its parent, which this process is not. A worker that ends well was asked to, or has asked. */
    b->workers_died += !j->leaves;
    job_log(j->leaves ? LOG_LEVEL_INFO : LOG_LEVEL_ERROR, j, "worker %d %s", j->pid, j->leaves ? "ended" : "died");
    job_end(j);
    if (b->draining && LIST_EMPTY(&b->jobs))
        (void)event_base_loopbreak(b->base);
}

static void adoption_look(struct broker *b)
{
    const struct job *j;

    LIST_FOREACH(j, &b->jobs, link)
        if (j->foreign && j->asked && j->control >= 0)
            return;
    event_stop(&b->adopt_event);
    b->adoption_changed = NULL;
    b->serve(b);
}

static void on_late(evutil_socket_t sock, short what, void *arg)
{
    struct broker *b = arg;
    const struct job *j;

    (void)sock, (void)what;
    LIST_FOREACH(j, &b->jobs, link)
        if (j->foreign && j->asked && j->control >= 0)
            job_log(LOG_LEVEL_WARNING, j, "its worker %d has not answered for %d ms: this fccd serves without its word", j->pid,
                    ADOPT_WAIT_MS);
    b->adoption_changed = NULL;
    b->serve(b);
}

/* ---- at the start ---- */

static bool is_channel(int fd)
{
    int type = 0, family = 0;
    socklen_t size = sizeof(int);

    return !getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) && type == SOCK_SEQPACKET &&
           !getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &size) && family == AF_UNIX;
}

static bool entry_is_whole(const struct store_job *s)
{
    return memchr(s->name, 0, sizeof(s->name)) && s->name[0] && s->pid > 0 && s->worker.number &&
           (geteuid() == 0 || s->uid == geteuid());
}

/* The worker has retired, but may not have heard that it may: says so again, and waits for its process to end. */
static void retired_tell(struct job *j)
{
    struct fcc_msg yes = {.type = CONTROL_RETIRE};

    j->leaves = true;
    (void)channel_try(j, &yes, sizeof(yes), -1);
    job_disconnect(j);
}

/* A worker of a version that this broker does not speak. */
static void stranger_drain(struct job *j, uint32_t version)
{
    struct fcc_msg drain = {.type = CONTROL_DRAIN};

    job_log(LOG_LEVEL_WARNING, j,
            "its worker %d speaks version %u with its broker, and this fccd (%u to %u) does not: the job drains, and ends",
            j->pid, version, CONTROL_OLDEST, CONTROL_VERSION);
    j->leaves = j->retired = true;
    (void)channel_try(j, &drain, sizeof(drain), -1);
}

/* NULL: the entry is free, or there is no memory. A worker that is STARTING has charged nothing, and its entry may still have the place of the one before. */
static struct job *job_make(struct broker *b, unsigned slot, const struct store_job *s)
{
    const uint32_t state = atomic_load_explicit(&s->state, memory_order_acquire);
    struct job *j = state == STORE_FREE ? NULL : calloc(1, sizeof(*j));
    struct error e = {0};

    if (!j)
        return NULL;
    *j = (struct job){.broker = b,
                      .uid = s->uid,
                      .pid = s->pid,
                      .worker = s->worker,
                      .started_ns = s->started_ns,
                      .connections = s->connections,
                      .sessions = s->sessions,
                      .version = s->version,
                      .proto = s->proto,
                      .proto_oldest = s->proto_oldest,
                      .answered = atomic_load_explicit(&s->answered, memory_order_relaxed),
                      .slot = (int)slot,
                      .foreign = true,
                      .closed = true};
    memcpy(j->name, s->name, sizeof(j->name));
    j->control = store_take(b, store_name("worker", slot).text);
    j->process = store_take(b, store_name("process", slot).text);
    int ledger = store_take(b, store_name("ledger", slot).text);
    LIST_INSERT_HEAD(&b->jobs, j, link);
    if (ledger >= 0)
        job_ledger_adopt(j, ledger);
    if (j->control >= 0 && !is_channel(j->control))
        fd_close(&j->control);
    channel_open(j);
    if (state != STORE_STARTING && job_account_adopt(j, s->place, &e))
        job_log(LOG_LEVEL_WARNING, j, "%s", e.text);
    return j;
}

/* Its process has no entry any more. The service manager drops one that has ended, and may keep less than it said: then the worker lives, and drains. */
static void entry_end(struct job *j, uint32_t state)
{
    struct pollfd channel = {.fd = j->control};

    if (state == STORE_LIVE && j->control >= 0 && poll(&channel, 1, 0) == 0) {
        job_log(LOG_LEVEL_WARNING, j, "the service manager has not kept the process of its worker %d: the job ends", j->pid);
    } else if (state == STORE_LIVE) {
        j->broker->workers_died++;
        job_log(LOG_LEVEL_ERROR, j, "worker %d ended while there was no fccd", j->pid);
    }
    job_end(j);
}

/* Takes over the worker of an entry, or ends it. */
static void entry_take(struct broker *b, struct job *j, const struct store_job *s)
{
    const uint32_t state = atomic_load_explicit(&s->state, memory_order_relaxed);

    if (j->process < 0) { /* it had no process yet, or that has ended */
        entry_end(j, state);
        return;
    }
    (void)event_assign(&j->ended, b->base, j->process, EV_READ, on_ended, j);
    if (event_add(&j->ended, NULL) || state == STORE_STARTING || !j->user || !entry_is_whole(s)) {
        j->leaves = state == STORE_STARTING; /* its clients come again */
        job_kill(j);
        job_disconnect(j);
        return;
    }
    if (j->control < 0) {
        j->leaves = state == STORE_RETIRED;
        job_disconnect(j);
    } else if (state == STORE_RETIRED) {
        retired_tell(j);
    } else if (s->version < CONTROL_OLDEST || s->version > CONTROL_VERSION) {
        stranger_drain(j, s->version);
    } else if (job_listen(j)) {
        job_disconnect(j);
    } else {
        job_adopt_ask(j);
        trouble_tell(j);
    }
}

void jobs_adopt(struct broker *b)
{
    struct job *made[STORE_JOBS] = {NULL};

    (void)evtimer_assign(&b->adopt_event, b->base, on_late, b);
    for (unsigned slot = 0; slot < STORE_JOBS && store_job(b, slot); slot++)
        made[slot] = job_make(b, slot, store_job(b, slot));
    /* Now all who have an account have it: if the first ones end, it stays for the others. */
    for (unsigned slot = 0; slot < STORE_JOBS; slot++)
        if (made[slot])
            entry_take(b, made[slot], store_job(b, slot));
    store_settle(b);
    b->adoption_changed = adoption_look;
    if (event_add_ms(&b->adopt_event, ADOPT_WAIT_MS))
        on_late(-1, 0, b);
    else
        adoption_look(b);
}
