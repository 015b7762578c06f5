/* SPDX-License-Identifier: MIT
 *
 * comm.c - communicators as their ranks see them, from when they have joined (comm_join.c) to the end.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "client/comm.h"
#include "client/core/call.h"
#include "client/core/request.h"
#include "client/memory/buffer.h"
#include "client/memory/tracker.h"
#include "client/stream/bound.h"
#include "client/stream/rings.h"
#include "client/stream/stream.h"

#define DESTROY_GRACE_MS 1000 /* beyond the time limit: the worker's limit ends running operators first */

/* Waits for operators in flight, at most for the time limit. Those that are left keep their slots and belong to the context
 * from then on. */
static void comm_drain(struct fcc_comm *comm)
{
    struct fcc_context *c = comm->context;
    struct patience patience;
    struct fcc_request *r;
    struct spin spin;

    patience_begin(&patience, (int64_t)comm->time_limit_ms + DESTROY_GRACE_MS);
    spin_begin(&spin, c->spin_us, NEVER);
    (void)pthread_mutex_lock(&c->lock);
    while ((comm_is_busy(comm) || triggers_left(comm)) && !patience_over(&patience))
        context_nap(c, &spin);
    context_collect(c);
    LIST_FOREACH(r, &c->requests, link)
        if (r->comm == comm)
            r->comm = NULL;
    (void)pthread_mutex_unlock(&c->lock);
}

static void comm_free_buffers(struct fcc_comm *comm)
{
    struct fcc_context *c = comm->context;
    struct fcc_buffer *b;

    do {
        (void)pthread_mutex_lock(&c->lock);
        LIST_FOREACH(b, &c->buffers, link)
            if (b->comm == comm)
                break;
        (void)pthread_mutex_unlock(&c->lock);
        fcc_buffer_free(b);
    } while (b);
}

void comm_free(struct fcc_comm *comm)
{
    tracker_end(comm);
    triggers_unmap(comm);
    (void)pthread_mutex_destroy(&comm->order);
    (void)pthread_mutex_destroy(&comm->rings_lock);
    free(comm->repeats);
    free(comm);
}

void fcc_comm_destroy(fcc_comm *comm)
{
    if (!comm || comm_check(comm))
        return;
    comm_drain(comm);
    fcc_tracker_free(comm->tracker);
    repeats_end(comm);
    rings_leave(comm);
    prepared_free_all(comm);
    comm_free_buffers(comm);
    graphs_leave(comm->graphs);
    (void)comm_tell(comm, FCC_MSG_COMM_DESTROY, ""); /* on failure the end of the connection has the same effect */
    (void)pthread_mutex_lock(&comm->context->lock);
    LIST_REMOVE(comm, link);
    (void)pthread_mutex_unlock(&comm->context->lock);
    comm_free(comm);
}

/* A communicator of a group of this one's ranks that has not been told of its abort yet; NULL: there is none. */
static struct fcc_comm *group_next(struct fcc_comm *comm)
{
    struct fcc_comm *group, *found = NULL;

    (void)pthread_mutex_lock(&comm->context->lock);
    LIST_FOREACH(group, &comm->context->comms, link)
        if (group->whole == comm && !group->whole_aborted)
            found = group;
    if (found)
        found->whole_aborted = true;
    (void)pthread_mutex_unlock(&comm->context->lock);
    return found;
}

int fcc_comm_abort(fcc_comm *comm, const char *reason)
{
    int status = comm_check(comm);

    if (status)
        return status;
    if (reason && strlen(reason) > FCC_ABORT_REASON_MAX)
        return last_error_set(-EINVAL, "reason: %zu characters: allowed are at most %d", strlen(reason), FCC_ABORT_REASON_MAX);
    status = comm_tell(comm, FCC_MSG_COMM_ABORT, reason ? reason : "");
    for (struct fcc_comm *group; (group = group_next(comm)) != NULL;)
        (void)comm_tell(group, FCC_MSG_COMM_ABORT, reason ? reason : "");
    return status;
}

int fcc_comm_rank(const fcc_comm *comm)
{
    int status = comm_check(comm);

    return status ? status : comm->rank;
}

int fcc_comm_size(const fcc_comm *comm)
{
    int status = comm_check(comm);

    return status ? status : comm->nranks;
}

int fcc_comm_device(const fcc_comm *comm)
{
    int status = comm_check(comm);

    return status ? status : comm->device;
}

enum fcc_device_kind fcc_comm_device_kind(const fcc_comm *comm)
{
    int status = comm_check(comm);

    return status ? (enum fcc_device_kind)status : comm->kind;
}

/* Locked. Returns the communicator's error and resets it. */
static struct error error_take(struct fcc_comm *comm)
{
    struct error e = comm->error;

    comm->error.status = 0;
    return e;
}

/* The first error that the program has not heard of, of which `e` is one if it is set. All later ones until now are told with it. */
static int error_tell(struct fcc_comm *comm, const struct error *e)
{
    if (!e->status)
        return rings_error(comm);
    rings_error_pass(comm);
    return last_error_set(e->status, "%s", e->text);
}

int fcc_comm_error(fcc_comm *comm)
{
    struct error e;
    int status = comm_check(comm);

    if (status)
        return status;
    (void)pthread_mutex_lock(&comm->context->lock);
    context_collect(comm->context);
    e = error_take(comm);
    (void)pthread_mutex_unlock(&comm->context->lock);
    return error_tell(comm, &e);
}

/* Locked; collects completions. The number of unattended operators of `comm`, up to message `last`, that have not
 * completed; with `past` only those that their streams have passed. */
static unsigned comm_unattended(struct fcc_comm *comm, uint64_t last, bool past)
{
    const struct fcc_request *r;
    unsigned n = 0;

    context_collect(comm->context);
    LIST_FOREACH(r, &comm->context->requests, link)
        n += r->comm == comm && r->unattended && r->id <= last && (r->past || !past);
    return n;
}

/* A stream resumes when the operator's kernel stores a word; the worker completes the operator shortly after that. So this
 * waits only for operators that their streams have passed. Others may come after work that the caller has not enqueued yet. */
int fcc_comm_error_wait(fcc_comm *comm, int timeout_ms)
{
    struct fcc_context *c;
    struct error e = {0};
    struct spin spin;
    int64_t limit_ms, deadline;
    uint64_t last;
    unsigned left;
    int status = comm_check(comm);

    if (status)
        return status;
    if (timeout_ms < -1)
        return last_error_set(-EINVAL, "timeout_ms: %d: allowed are -1 (the time limit) and more", timeout_ms);
    c = comm->context;
    limit_ms = timeout_ms < 0 ? (int64_t)comm->time_limit_ms + DESTROY_GRACE_MS : timeout_ms;
    deadline = deadline_in_ms(limit_ms);
    (void)pthread_mutex_lock(&c->lock);
    last = c->last_id;
    left = comm_unattended(comm, last, false);
    (void)pthread_mutex_unlock(&c->lock);
    if (left)
        status = streams_look(comm, last);
    if (status)
        return status;
    spin_begin(&spin, c->spin_us, deadline);
    (void)pthread_mutex_lock(&c->lock);
    while ((left = comm_unattended(comm, last, true)) && now_ns() < deadline)
        context_nap(c, &spin);
    if (!left)
        e = error_take(comm);
    (void)pthread_mutex_unlock(&c->lock);
    if (left)
        return last_error_set(
            timeout_ms < 0 ? -ETIMEDOUT : -EAGAIN,
            "rank %d: streams have gone past %u operators of which it is not known after %lld ms how they went", comm->rank,
            left, (long long)limit_ms);
    rings_ask(comm);
    return error_tell(comm, &e);
}
