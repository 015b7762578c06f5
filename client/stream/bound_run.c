/* SPDX-License-Identifier: MIT
 *
 * bound_run.c - the runs of operators that this process launches itself.
 */
#include "client/stream/bound.h"

#include <errno.h>
#include <string.h>

#include "proto/session.h"

#define CALL ACCELERATOR_CALL

/* The GPU is the current one. p->lock held: runs come onto the stream in the order of their numbers. */
static int run_start(struct fcc_prepared *p, void *stream)
{
    const struct accelerator *a = p->comm->accelerator;
    int capturing = DRIVER_NOT_CAPTURING, status = CALL(a, stream_capturing, stream, &capturing);
    struct error e = {.status = 0};

    if (status)
        return status;
    if (capturing != DRIVER_NOT_CAPTURING)
        return last_error_set(-EINVAL, "rank %d: stream: it is being captured into a graph: not allowed", p->comm->rank);
    if (p->functions->start(p->gpu, p->runs + 1, stream, &e))
        return last_error_set(e.status, "rank %d: %s", p->comm->rank, e.text);
    p->runs++;
    return 0;
}

static int run_enqueue(struct fcc_prepared *p, void *stream)
{
    int before = 0, status = accelerator_enter(p->comm->accelerator, &before);

    if (status)
        return status;
    status = run_start(p, stream);
    accelerator_leave(p->comm->accelerator, before);
    return status;
}

/* Tell the worker, for ranks whose run waits for this one, that the run is refused with the last error (which is kept), or,
 * status 0, that it is on the stream after all. */
static void run_tell(const struct fcc_prepared *p, uint64_t run, int status)
{
    struct fcc_run_refused_msg msg = {
        .comm = p->comm->handle, .number = p->number, .run = (uint32_t)run, .refused = (uint32_t)-status};
    struct fcc_reply reply;

    text_copy(msg.text, sizeof(msg.text), status ? text_without_rank(p->comm->rank, fcc_last_error()) : "");
    context_tell(p->comm->context, CALL_OF(RUN_REFUSED, &msg, &reply));
}

int prepared_repeat(struct fcc_prepared *p, const struct gpu_repeated_run *run, void *stream)
{
    struct error e = {.status = 0};

    p->runs = run->epoch; /* also of a run that is lost */
    if (p->functions->repeat(p->gpu, run, stream, &e))
        return last_error_set(e.status, "rank %d: %s", p->comm->rank, e.text);
    return 0;
}

void prepared_run_lost(struct fcc_prepared *p, uint64_t run)
{
    atomic_store_explicit(&p->words->begun, run, memory_order_relaxed);
    atomic_store_explicit(&p->words->ended, gpu_done_make((uint32_t)run, 0), memory_order_release);
}

/* The communicator is over. Get the reason from a request, which ends at once, if the worker still answers. */
static int over_explain(struct fcc_comm *comm, int status)
{
    int why;

    (void)pthread_mutex_lock(&comm->context->lock);
    why = context_dead(comm->context, "fcc_prepared_enqueue");
    (void)pthread_mutex_unlock(&comm->context->lock);
    if (!why)
        why = comm_meet(comm);
    return why ? why : last_error_set(status, "rank %d: the communicator is over: %s", comm->rank, strerror(-status));
}

int fcc_prepared_enqueue(fcc_prepared *prepared, void *stream)
{
    int status = handle_check("prepared", prepared ? prepared->comm->context : NULL);
    bool news;

    if (status || !prepared) /* NULL is refused by now */
        return status;
    status = status_of(prepared->comm);
    if (status)
        return over_explain(prepared->comm, status);
    (void)pthread_mutex_lock(&prepared->lock);
    status = run_enqueue(prepared, stream);
    news = status || prepared->is_refused;
    if (news) {
        run_tell(prepared, prepared->runs + !!status, status);
        prepared->is_refused = status != 0;
    }
    (void)pthread_mutex_unlock(&prepared->lock);
    return status;
}
