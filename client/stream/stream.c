/* SPDX-License-Identifier: MIT
 *
 * stream.c - an operator that takes its place on a stream of the program.
 *
 * The slot's two words are the hand-over (struct fcc_slot in session.h). Each operator in a slot has a number n, one more than
 * the last. In this order:
 *
 *   the stream    sets stream_started to n
 *   the ring      gets the SUBMIT with stream = n
 *   the stream    waits until stream_finished has reached n
 *
 * The submission comes before the wait, so a stream never waits for what the worker has not heard of: if it cannot be
 * submitted, a word was written that nobody looks at. It comes after the write, so two threads that enqueue on one stream at
 * the same time cannot block each other: whatever is submitted has its write on the stream before any wait that could stand
 * in its way.
 *
 * Both words only grow (cyclically). stream_finished: there is one operator in a slot at a time, and its number is the last
 * that was given out. stream_started: an operator that failed early may be completed before its stream has come to the write,
 * and then the write of a later one could be overtaken by it. So a slot is used again only when its write has come: when the
 * word is n, which the worker never stores (slot_collect()).
 *
 * Where it can be, the two words lie in the memory of GPUs instead (struct fcc_stream_words): started on each GPU of the
 * communicator, so that the worker's streams there each wait for their own, finished on the rank's (words.c). stream_started is
 * written behind them, for who looks from a CPU.
 *
 * When the context dies, every slot's last number is stored into stream_finished, and then into finished on the GPUs, which only
 * a GPU's stream can do, and so the watch's thread does it. Numbers are given out under context->lock and
 * only while the context lives, and it dies under context->lock. So every number that was ever given out is covered, and a
 * wait that is put on its stream after that finds its word there already.
 *
 * Where a device's streams cannot wait for words, the first step is a fill of four bytes and the last one a function on the
 * CPU, put onto the stream, that waits. Not events between the processes: the program's CPU could let its stream wait for an
 * event of the worker only after the worker has recorded it, so it would have to wait for the worker's CPU in every call; and
 * nothing ends a wait for an event whose worker has died. A driver may run the functions of all streams one after the other,
 * so the first step must not be one: then a function that waits holds up others that wait, and never what it waits for.
 */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <time.h>

#include "client/core/call.h"
#include "client/core/request.h"
#include "client/stream/bound.h"
#include "client/stream/repeated.h"
#include "client/stream/stream.h"
#include "proto/session.h"

#define CALL ACCELERATOR_CALL
#define FUNCTION_SLEEP_NS 50000 /* how long a function on the CPU sleeps between looks */

static bool stream_word_reached(const _Atomic uint32_t *word, uint32_t value)
{
    return (int32_t)(atomic_load_explicit(word, memory_order_acquire) - value) >= 0;
}

/* An operator that has not completed still has its slot, so the slot's number says where its stream is. The numbers are not older
 * than the call; of requests that came later they may say nothing, hence `last`. */
int streams_look(struct fcc_comm *comm, uint64_t last)
{
    struct fcc_context *c = comm->context;
    uint32_t finished[FCC_SLOTS];
    struct fcc_request *r;
    int status;

    if (comm->words_gpus) {
        status = words_finished(comm, finished);
        if (status)
            return status;
    } else {
        for (unsigned s = 0; s < FCC_SLOTS; s++)
            finished[s] = atomic_load_explicit(&c->memory->slot[s].stream_finished, memory_order_acquire);
    }
    (void)pthread_mutex_lock(&c->lock);
    LIST_FOREACH(r, &c->orphans, link)
        if (r->comm == comm && r->unattended && r->id <= last &&
            (r->run.place ? run_is_over(c, &r->run) : (int32_t)(finished[r->slot] - r->stream) >= 0))
            r->past = true;
    (void)pthread_mutex_unlock(&c->lock);
    return 0;
}

/* Locked; may release the lock. Give the request, which has its slot, the slot's next number. */
static int stream_number(struct fcc_request *r, const struct accelerator *a)
{
    struct fcc_context *c = r->context;
    struct fcc_slot *slot = &c->memory->slot[r->slot];
    int status = 0;

    if (c->stream_count[r->slot] == FCC_STREAM_LAST) {
        if (!a->driver->waits_cyclically) {
            /* The words begin anew, when no stream looks at them any more: it may do so a little longer than its operator
             * runs. */
            (void)pthread_mutex_unlock(&c->lock);
            status = accelerators_synchronize(c);
            (void)pthread_mutex_lock(&c->lock);
            if (!status)
                status = context_dead(c, operator_name(r->op));
            if (status)
                return status;
            atomic_store(&slot->stream_started, 0);
            atomic_store(&slot->stream_finished, 0);
        }
        c->stream_count[r->slot] = 0; /* which is no number */
    }
    r->stream = ++c->stream_count[r->slot];
    return 0;
}

/* ---- where streams cannot wait: by a function on the CPU ---- */

/* What the function of an operator knows; it frees it. (A driver that has lost its context may not run it.) */
struct turn {
    const struct fcc_slot *slot;
    uint32_t value;
    uint32_t spin_us;
};

/* Ends when the context dies, as every wait for the word does. */
static void turn_wait(void *argument)
{
    static const struct timespec slice = {.tv_nsec = FUNCTION_SLEEP_NS};
    struct turn *t = argument;
    struct spin spin;

    spin_begin(&spin, t->spin_us, NEVER);
    while (!stream_word_reached(&t->slot->stream_finished, t->value))
        if (!spin_more(&spin))
            (void)nanosleep(&slice, NULL);
    free(t);
}

static void turn_wait_callback(void *stream, int status, void *argument)
{
    (void)stream;
    (void)status;
    turn_wait(argument);
}

static int turn_end(const struct fcc_request *r, const struct accelerator *a, void *stream)
{
    struct turn *t = malloc(sizeof(*t));
    int status;

    if (!t)
        return last_error_set(-ENOMEM, "stream: out of memory");
    *t = (struct turn){.slot = &r->context->memory->slot[r->slot], .value = r->stream, .spin_us = r->context->spin_us};
    status = a->driver->stream_function ? CALL(a, stream_function, stream, turn_wait, t)
                                        : CALL(a, stream_callback, stream, turn_wait_callback, t, 0);
    if (status)
        free(t);
    return status;
}

/* ---- on the stream ---- */

static uint64_t word_address(const struct fcc_request *r, const struct accelerator *a, size_t member)
{
    return a->memory + offsetof(struct fcc_session_memory, slot) + r->slot * sizeof(struct fcc_slot) + member;
}

static bool uses_words(const struct fcc_request *r, const struct accelerator *a)
{
    return a->stream_words && !r->context->no_stream_words;
}

static int stream_begin(const struct fcc_request *r, const struct accelerator *a, void *stream)
{
    uint64_t word = word_address(r, a, offsetof(struct fcc_slot, stream_started));

    if (r->comm->words_gpus)
        return words_begin(r, a, word, stream);
    return uses_words(r, a) ? CALL(a, stream_write, stream, word, r->stream, 0)
                            : CALL(a, stream_fill, word, r->stream, 1, stream);
}

static int stream_end(const struct fcc_request *r, const struct accelerator *a, void *stream)
{
    uint64_t word = word_address(r, a, offsetof(struct fcc_slot, stream_finished));

    if (r->comm->words_gpus)
        return words_end(r, a, stream);
    if (!uses_words(r, a))
        return turn_end(r, a, stream);
    return a->driver->stream_wait ? CALL(a, stream_wait, stream, word, r->stream, DRIVER_WAIT_REACHED)
                                  : CALL(a, stream_wait_masked, stream, word, r->stream, DRIVER_WAIT_REACHED, UINT32_MAX);
}

/* comm->order held. Take a slot with a number in it, and a place among the context's requests. *left: slots that are free now. */
static int request_open(struct fcc_request *r, const struct accelerator *a, int *left)
{
    struct fcc_context *c = r->context;
    bool taken;
    int status;

    (void)pthread_mutex_lock(&c->lock);
    status = slot_take(c, r);
    taken = !status;
    if (taken) {
        status = stream_number(r, a);
        if (status)
            slot_return(c, r->slot);
    }
    if (!status) {
        c->slot_runs[r->slot] = r->run;
        r->id = ++c->last_id;
        LIST_INSERT_HEAD(&c->requests, r, link);
    }
    *left = __builtin_popcountll(c->free_slots);
    (void)pthread_mutex_unlock(&c->lock);
    return taken ? status : comm_lose(r->comm, status);
}

/* The worker has not heard of it. `written`: the stream may still be on its way to the slot's word. */
static void request_close(struct fcc_request *r, bool written)
{
    struct fcc_context *c = r->context;

    (void)pthread_mutex_lock(&c->lock);
    LIST_REMOVE(r, link);
    if (!r->finished && written)
        slot_return_late(c, r->slot);
    else if (!r->finished)
        slot_return(c, r->slot);
    (void)pthread_mutex_unlock(&c->lock);
}

/* Put the kernel of a run onto the stream, behind its submission, so that the worker knows of it. Without it the other ranks would
 * wait for this one in theirs, so if it cannot be had the communicator is over. */
static int run_put(const struct fcc_request *r, struct repeat *repeat, void *stream)
{
    struct error why;
    int status;

    repeat->run.slot = r->slot;
    repeat->run.value = r->stream;
    status = prepared_repeat(repeat->prepared, &repeat->run, stream);
    if (!status)
        return 0;
    (void)error_set(&why, status, "%s", fcc_last_error());
    prepared_run_lost(repeat->prepared, repeat->run.epoch);
    (void)comm_tell(r->comm, FCC_MSG_COMM_ABORT, "an operator's kernel could not be put onto its stream");
    return last_error_set(status, "%s", why.text);
}

/* Let the stream wait for the communicator's operator before, where one of the two is a run and the stream would not (repeated.c). The end of
 * a run releases what it has stored to another stream, but for those before the communicator's first change of streams, which have no
 * fence: their word travels through the host's memory, much longer than their last store through the GPU's own. */
static int order_keep(struct fcc_comm *comm, struct repeat *repeat, void *stream)
{
    const struct stream_end *last = &comm->last;

    comm->has_streams |= last->word && last->stream != stream;
    repeat->run.fenced = comm->has_streams;
    if (!last->word || (last->stream == stream && !last->deferred) || !(last->is_run || repeat->prepared))
        return 0;
    return CALL(comm->accelerator, stream_wait, stream, last->word, last->value, DRIVER_WAIT_REACHED);
}

static void order_note(const struct fcc_request *r, const struct repeat *repeat, const void *stream)
{
    struct fcc_comm *comm = r->comm;
    const struct accelerator *a = comm->accelerator;

    comm->operators++;
    if (!comm->words_gpus)
        return;
    comm->last = (struct stream_end){.stream = stream, .is_run = repeat->prepared != NULL};
    comm->last.word = comm->last.is_run ? a->memory + offsetof(struct fcc_session_memory, bindings) +
                                              r->run.place * sizeof(struct fcc_binding) + offsetof(struct fcc_binding, ended)
                                        : words_finished_at(r, a);
    comm->last.value = comm->last.is_run ? r->run.number : r->stream;
    comm->last.deferred = !comm->last.is_run && group_is_open();
}

/* The GPU is the current one; comm->order held. On failure *submitted says who has the request: the worker too, or the caller alone. */
static int request_enqueue(struct fcc_request *r, struct fcc_submit *msg, void *stream, bool unattended, struct repeat *repeat,
                           bool *submitted)
{
    const struct accelerator *a = r->comm->accelerator;
    int status, left;

    if (repeat->prepared)
        r->run = (struct slot_run){.place = prepared_place(repeat->prepared), .number = (uint32_t)repeat->run.epoch};
    status = request_open(r, a, &left);
    if (status)
        return status;
    status = order_keep(r->comm, repeat, stream);
    if (!status && !repeat->prepared)
        status = stream_begin(r, a, stream);
    if (status) {
        request_close(r, false);
        return status;
    }
    msg->msg.id = r->id;
    msg->slot = r->slot;
    msg->stream = r->stream;
    msg->gpu_words = r->comm->words_gpus != 0;
    /* If few slots are left, or somebody will wait, the worker is to see runs, too. */
    status = ring_push(r->context, msg, repeat->prepared && unattended && left >= (int)FCC_SLOTS / 2);
    if (status) {
        request_close(r, !repeat->prepared);
        return comm_lose(r->comm, status);
    }
    *submitted = true;
    order_note(r, repeat, stream);
    return repeat->prepared ? run_put(r, repeat, stream) : stream_end(r, a, stream);
}

static int request_order(struct fcc_request *r, struct fcc_submit *msg, const struct tensor_place places[], void *stream,
                         bool unattended, bool *submitted)
{
    struct fcc_comm *comm = r->comm;
    const struct accelerator *a = comm->accelerator;
    int capturing = DRIVER_NOT_CAPTURING, status = CALL(a, stream_capturing, stream, &capturing);
    struct repeat repeat;

    if (!status && capturing != DRIVER_NOT_CAPTURING)
        status = last_error_set(-EINVAL, "rank %d: stream: it is being captured into a graph: not allowed", comm->rank);
    if (status)
        return status;
    (void)pthread_mutex_lock(&comm->order);
    status = comm_lost(comm);
    if (!status) {
        repeat_begin(comm, msg, places, &repeat);
        status = request_enqueue(r, msg, stream, unattended, &repeat, submitted);
    }
    if (*submitted)
        repeat_end(&repeat);
    (void)pthread_mutex_unlock(&comm->order);
    return status;
}

/* Whether its operators can have places on streams. */
static int place_check(const struct fcc_comm *comm)
{
    if (!comm->accelerator)
        return last_error_set(-EINVAL, "stream: rank %d is on a cpu device: only operators of ranks on GPUs can be enqueued",
                              comm->rank);
    if (comm->context->no_ring)
        return last_error_set(
            -EINVAL, "stream: rank %d's connection has no_ring: operators can be enqueued only through the ring", comm->rank);
    return 0;
}

int comm_enqueue(struct fcc_comm *comm, struct fcc_submit *msg, size_t length, const struct tensor_place places[],
                 int64_t *recv_rows, void *stream, fcc_request **out)
{
    const struct accelerator *a = comm->accelerator;
    struct fcc_context *c = comm->context;
    bool submitted = false;
    struct fcc_request *r;
    int before = 0, status;

    status = place_check(comm);
    r = status ? NULL : malloc(sizeof(*r));
    if (!status && !r)
        status = last_error_set(-ENOMEM, "request: out of memory");
    if (!r)
        return comm_refuse_last(comm, msg->op, status);
    request_begin(r, comm, msg, length, recv_rows);
    status = accelerator_enter(a, &before);
    if (!status) {
        status = request_order(r, msg, places, stream, !out, &submitted);
        accelerator_leave(a, before);
    }
    if (status && !submitted) {
        free(r);
        return comm_refuse_last(comm, msg->op, status);
    }
    if (!status && out) {
        *out = r;
        return 0;
    }
    if (status) {
        struct error why;
        (void)error_set(&why, status, "%s", fcc_last_error());
        (void)last_error_set(status, "%.300s (the operator runs, but the stream does not wait for it)", why.text);
    }
    (void)pthread_mutex_lock(&c->lock);
    LIST_REMOVE(r, link);
    r->recv_rows = NULL;
    r->unattended = true;
    LIST_INSERT_HEAD(&c->orphans, r, link);
    (void)pthread_mutex_unlock(&c->lock);
    return status;
}
