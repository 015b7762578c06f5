/* SPDX-License-Identifier: MIT
 *
 * flights.c - flight recorders of workers. One is named by the number of its worker among those that this broker has started, which is never
 * used twice. The broker looks into none: it hands out copies, which fccctl checks.
 */
#include "daemon/broker/metrics/flights.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/broker/metrics/metrics.h"
#include "proto/base/json_fd.h"

#define PAST_PER_USER 4 /* recorders of a user's workers that have ended: up to 2 MiB each */
#define PAST_MAX 64

/* The recorder of a worker that has ended. Owned by ledgers.past. */
struct past {
    TAILQ_ENTRY(past) link;
    const struct flight *flight;
    uid_t uid;
    char job[FCC_JOB_MAX];
    pid_t pid;
    uint64_t number;
    uint64_t ended_ns;
};

static bool may_see(uid_t uid, uid_t asks)
{
    return uid == asks || asks == 0 || asks == geteuid();
}

/* ---- those of workers that have ended ---- */

static void past_free(struct ledgers *ls, struct past *p)
{
    TAILQ_REMOVE(&ls->past, p, link);
    ls->npast--;
    ledger_unmap(p->flight);
    free(p);
}

void flights_forget(struct ledgers *ls)
{
    struct past *p, *next;

    TAILQ_FOREACH_SAFE(p, &ls->past, link, next)
        past_free(ls, p);
}

static unsigned past_of(const struct ledgers *ls, uid_t uid, struct past **oldest)
{
    struct past *p;
    unsigned n = 0;

    *oldest = NULL;
    TAILQ_FOREACH(p, &ls->past, link) {
        if (p->uid != uid)
            continue;
        n++;
        *oldest = *oldest ? *oldest : p;
    }
    return n;
}

/* Where there is no more room, the user who has most of them gives one up. */
static void room_make(struct ledgers *ls)
{
    struct past *p, *oldest, *victim = NULL;
    unsigned most = 0;

    TAILQ_FOREACH(p, &ls->past, link) {
        unsigned n = past_of(ls, p->uid, &oldest);
        if (n > most) {
            most = n;
            victim = oldest;
        }
    }
    if (victim)
        past_free(ls, victim);
}

static bool has_records(const struct flight *f)
{
    for (unsigned i = 0; i < FLIGHT_COMMS; i++)
        if (atomic_load_explicit(&f->comms[i].number, memory_order_relaxed))
            return true;
    return false;
}

void flight_keep(const struct job *j, const struct flight *flight)
{
    struct ledgers *ls = j->broker->ledgers;
    struct past *p = has_records(flight) ? calloc(1, sizeof(*p)) : NULL, *oldest;

    if (!p) {
        ledger_unmap(flight);
        return;
    }
    if (past_of(ls, j->uid, &oldest) >= PAST_PER_USER)
        past_free(ls, oldest);
    else if (ls->npast >= PAST_MAX)
        room_make(ls);
    *p = (struct past){.flight = flight, .uid = j->uid, .pid = j->pid, .number = j->worker.number, .ended_ns = clock_ns()};
    memcpy(p->job, j->name, sizeof(p->job));
    TAILQ_INSERT_TAIL(&ls->past, p, link);
    ls->npast++;
}

/* ---- fccctl flight ---- */

static struct json_object *flight_describe(uint64_t number, uid_t uid, const char *job, pid_t pid)
{
    return JSON_OBJECT({"flight", json_int(number)}, {"uid", json_int(uid)}, {"job", json_text(job)}, {"pid", json_int(pid)});
}

struct json_object *flights_describe(const struct broker *b, uid_t asks)
{
    struct json_object *list = json_object_new_array(), *o;
    const struct past *p;
    const struct job *j;

    TAILQ_FOREACH(p, &b->ledgers->past, link) {
        if (!may_see(p->uid, asks))
            continue;
        o = flight_describe(p->number, p->uid, p->job, p->pid);
        JSON_ADD(o, {"ended_s", json_double((double)(clock_ns() - p->ended_ns) / 1e9)});
        json_object_array_add(list, o);
    }
    LIST_FOREACH(j, &b->jobs, link)
        if (job_flight(j) && may_see(j->uid, asks))
            json_object_array_add(list, flight_describe(j->worker.number, j->uid, j->name, j->pid));
    return JSON_OBJECT({"flights", list});
}

static const struct flight *flight_find(const struct broker *b, uint64_t number, uid_t asks)
{
    const struct past *p;
    const struct job *j;

    TAILQ_FOREACH(p, &b->ledgers->past, link)
        if (p->number == number && may_see(p->uid, asks))
            return p->flight;
    LIST_FOREACH(j, &b->jobs, link)
        if (j->worker.number == number && may_see(j->uid, asks))
            return job_flight(j);
    return NULL;
}

static int bytes_write(int fd, const void *bytes, size_t n, off_t at)
{
    for (size_t done = 0; done < n;) {
        ssize_t wrote = pwrite(fd, (const char *)bytes + done, n - done, at + (off_t)done);
        if (wrote < 0 && errno != EINTR)
            return -errno;
        done += wrote > 0 ? (size_t)wrote : 0;
    }
    return 0;
}

/* Writes a copy of all that was ever used; the rest stays a hole. */
static int copy_write(int fd, const struct flight *f)
{
    struct flight_comm *copy = malloc(sizeof(*copy));
    int status = copy ? bytes_write(fd, f, offsetof(struct flight, comms), 0) : -ENOMEM;

    for (unsigned i = 0; i < FLIGHT_COMMS && !status; i++) {
        if (!atomic_load_explicit(&f->comms[i].number, memory_order_relaxed))
            continue;
        flight_comm_copy(&f->comms[i], copy);
        status = bytes_write(fd, copy, sizeof(*copy), (off_t)((const char *)&f->comms[i] - (const char *)f));
    }
    free(copy);
    return status;
}

int flight_copy(const struct broker *b, uint64_t number, uid_t asks, struct error *e)
{
    const struct flight *f = flight_find(b, number, asks);
    int fd, status;

    if (!f)
        return error_set(e, -ENOENT, "flight: %llu: no such flight recorder; fccctl flight lists them",
                         (unsigned long long)number);
    fd = memfd_create("fccd-flight", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    status = fd < 0 || ftruncate(fd, sizeof(*f)) ? -errno : copy_write(fd, f);
    if (!status && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL))
        status = -errno;
    if (!status)
        return fd;
    fd_close(&fd);
    return error_set(e, status, "cannot copy the flight recorder: %s", strerror(-status));
}
