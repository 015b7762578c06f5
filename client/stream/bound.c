/* SPDX-License-Identifier: MIT
 *
 * bound.c - operators that this process launches itself: kernels/gpu/bound.h says how they work, and why nobody waits for ever. Here are their runs, and
 * their end; bound_prepare.c opens them, and bound_plan.c gets what the worker has made.
 *
 * The plug-in is fccd's own file, which the worker names: it has the kernels that fit the worker's plans, and libfccclient
 * needs no GPU runtime to be built or loaded. It stays loaded. Its runtime works in the GPU's primary context, as the program's
 * does.
 *
 * When the context dies (the worker is gone), the failure epoch of each operator's own area is written by the thread that
 * watches, as the words of streams are (words.c).
 */
#include "client/stream/bound.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "proto/session.h"

#define CALL ACCELERATOR_CALL
#define RUNS_LIMIT_MS 1000

pthread_mutex_t prepared_plugin_lock = PTHREAD_MUTEX_INITIALIZER;

void prepared_forked(void)
{
    (void)pthread_mutex_init(&prepared_plugin_lock, NULL);
}

/* ---- the end ---- */

bool prepared_is_idle(const struct fcc_prepared *p)
{
    const struct slot_run last = {.place = p->place, .number = (uint32_t)p->runs};

    return run_is_over(p->comm->context, &last);
}

/* Wait until all runs of a repeated operator have ended, which the program does not wait for. Their operators are over, or their
 * kernels leave early. False: not within the time. */
static bool runs_await(const struct fcc_prepared *p)
{
    int64_t deadline = deadline_in_ms(RUNS_LIMIT_MS);
    static const struct timespec nap = {.tv_nsec = 1000000};

    while (!prepared_is_idle(p)) {
        if (now_ns() >= deadline)
            return false;
        (void)nanosleep(&nap, NULL);
    }
    return true;
}

/* Free all that this process has of a prepared operator, whose communicator may be gone. a may be NULL: nothing is open or
 * mapped. */
static void prepared_dispose(void *prepared, const struct accelerator *a)
{
    struct fcc_prepared *p = prepared;
    int before = 0;

    if (p->gpu && !accelerator_enter(a, &before)) {
        (void)pthread_mutex_lock(&prepared_plugin_lock);
        p->functions->close(p->gpu);
        (void)pthread_mutex_unlock(&prepared_plugin_lock);
        accelerator_leave(a, before);
    }
    for (int r = 0; r < GPU_MAX_RANKS; r++) {
        if (p->areas[r].bytes)
            accelerator_unmap(a, &p->areas[r]);
        if (p->results[r].bytes)
            accelerator_unmap(a, &p->results[r]);
        if (p->ins[r].bytes)
            accelerator_unmap(a, &p->ins[r]);
    }
    (void)pthread_mutex_destroy(&p->lock);
    free(p);
}

/* Let the kernels of this rank's runs leave, also those that come later. */
static void kernels_end(const struct fcc_prepared *p)
{
    static const uint64_t all = UINT64_MAX;

    (void)accelerator_copy_in(p->comm->accelerator, p->areas[p->comm->rank].address + GPU_PREPARED_FAILURE_AT, &all,
                              sizeof(all));
}

void prepared_end(struct fcc_prepared *p)
{
    if (p->is_captured) {
        kernels_end(p);
        if (graphs_hold(p->comm->graphs, prepared_dispose, p))
            return;
    }
    prepared_dispose(p, p->comm->accelerator);
}

void prepared_tell_freed(const struct fcc_prepared *p)
{
    struct fcc_prepared_msg msg = {.comm = p->comm->handle, .number = p->number};
    struct fcc_reply reply;

    context_tell(p->comm->context, CALL_OF(PREPARED_FREE, &msg, &reply));
}

void fcc_prepared_free(fcc_prepared *prepared)
{
    if (!prepared || handle_check("prepared", prepared->comm->context))
        return;
    struct fcc_context *c = prepared->comm->context;

    (void)pthread_mutex_lock(&c->prepared_lock);
    LIST_REMOVE(prepared, link);
    (void)pthread_mutex_unlock(&c->prepared_lock);
    if (prepared->repeated && !runs_await(prepared))
        return;                    /* a GPU that hangs: what its kernels use stays where it is */
    prepared_tell_freed(prepared); /* the memory is there as long as it is mapped */
    prepared_end(prepared);
    graphs_look();
}

void prepared_free_all(struct fcc_comm *comm)
{
    struct fcc_context *c = comm->context;
    struct fcc_prepared *p;

    do {
        (void)pthread_mutex_lock(&c->prepared_lock);
        LIST_FOREACH(p, &c->prepared, link)
            if (p->comm == comm)
                break;
        (void)pthread_mutex_unlock(&c->prepared_lock);
        fcc_prepared_free(p);
    } while (p);
}

void prepared_forget_all(struct fcc_context *c)
{
    struct fcc_prepared *p;

    while ((p = LIST_FIRST(&c->prepared))) {
        LIST_REMOVE(p, link);
        if (!p->repeated || runs_await(p))
            prepared_end(p);
    }
}

void prepared_release(struct fcc_context *c)
{
    const struct fcc_prepared *p;

    (void)pthread_mutex_lock(&c->prepared_lock);
    LIST_FOREACH(p, &c->prepared, link)
        kernels_end(p);
    (void)pthread_mutex_unlock(&c->prepared_lock);
}

/* ---- runs ---- */

/* Whether only the GPU knows the runs' numbers. */
static bool gpu_counts(const struct fcc_prepared *p)
{
    return p->is_captured || p->is_counted;
}

/* The GPU is the current one. p->lock held: runs come onto the stream in the order of their numbers. */
static int run_start(struct fcc_prepared *p, void *stream, int *capturing)
{
    struct error e = {.status = 0};
    int status = CALL(p->comm->accelerator, stream_capturing, stream, capturing);

    if (!status && *capturing != DRIVER_NOT_CAPTURING)
        status = prepared_capture(p, stream);
    if (status)
        return status;
    if (p->functions->start(p->gpu, gpu_counts(p) ? 0 : p->runs + 1, stream, &e))
        return last_error_set(e.status, "rank %d: %s", p->comm->rank, e.text);
    p->runs++;
    return 0;
}

static int run_enqueue(struct fcc_prepared *p, void *stream, int *capturing)
{
    int before = 0, status = accelerator_enter(p->comm->accelerator, &before);

    if (status)
        return status;
    status = run_start(p, stream, capturing);
    accelerator_leave(p->comm->accelerator, before);
    return status;
}

void prepared_run_tell(struct fcc_prepared *p, uint64_t run, int status)
{
    struct fcc_run_refused_msg msg = {
        .comm = p->comm->handle, .number = p->number, .run = (uint32_t)run, .refused = (uint32_t)-status};
    struct fcc_reply reply;

    text_copy(msg.text, sizeof(msg.text), status ? text_without_rank(p->comm->rank, fcc_last_error()) : "");
    context_tell(p->comm->context, CALL_OF(RUN_REFUSED, &msg, &reply));
    p->is_refused = status != 0;
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

int prepared_over_explain(struct fcc_comm *comm, int status, const char *called)
{
    int why;

    (void)pthread_mutex_lock(&comm->context->lock);
    why = context_dead(comm->context, called);
    (void)pthread_mutex_unlock(&comm->context->lock);
    if (!why)
        why = comm_meet(comm);
    return why ? why : last_error_set(status, "rank %d: the communicator is over: %s", comm->rank, strerror(-status));
}

int prepared_capturing(const struct fcc_comm *comm, void *stream, int *capturing)
{
    int before = 0, status = accelerator_enter(comm->accelerator, &before);

    if (status)
        return status;
    status = CALL(comm->accelerator, stream_capturing, stream, capturing);
    accelerator_leave(comm->accelerator, before);
    return status;
}

int prepared_numbers(struct fcc_prepared *p, const int64_t words[], size_t n, void *stream)
{
    struct error e = {.status = 0};
    int before = 0, capturing = 0, status = accelerator_enter(p->comm->accelerator, &before);

    if (status)
        return status;
    (void)pthread_mutex_lock(&p->lock);
    status = CALL(p->comm->accelerator, stream_capturing, stream, &capturing);
    if (!status && capturing != DRIVER_NOT_CAPTURING)
        status = prepared_capture(p, stream);
    if (!status && p->functions->numbers(p->gpu, p->numbers_at, words, n, stream, &e))
        status = last_error_set(e.status, "rank %d: %s", p->comm->rank, e.text);
    (void)pthread_mutex_unlock(&p->lock);
    accelerator_leave(p->comm->accelerator, before);
    return status;
}

int fcc_prepared_enqueue(fcc_prepared *prepared, void *stream)
{
    int status = handle_check("prepared", prepared ? prepared->comm->context : NULL);
    int capturing = DRIVER_NOT_CAPTURING;
    bool news;

    if (status || !prepared) /* NULL is refused by now */
        return status;
    status = status_of(prepared->comm);
    if (status)
        return prepared_over_explain(prepared->comm, status, "fcc_prepared_enqueue");
    (void)pthread_mutex_lock(&prepared->lock);
    status = run_enqueue(prepared, stream, &capturing);
    /* What is captured is no run: nobody waits for it yet. */
    news = capturing == DRIVER_NOT_CAPTURING && (status || prepared->is_refused);
    if (news)
        prepared_run_tell(prepared, gpu_counts(prepared) ? 0 : prepared->runs + !!status, status);
    (void)pthread_mutex_unlock(&prepared->lock);
    return status;
}
