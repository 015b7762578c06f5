/* SPDX-License-Identifier: MIT
 *
 * stream.c - enqueues operators on streams of the program (CUDA or HIP streams).
 *
 * The program's stream and the worker synchronize by two words of the operator's completion slot (struct fcc_slot in
 * session.h). The operators of a slot are numbered: each operator's number n is one more than that of the slot's operator
 * before. An operator is enqueued in three steps:
 *
 *   1. on the stream: store n into stream_started
 *   2. into the submission ring: SUBMIT with stream = n
 *   3. on the stream: wait until stream_finished has reached n
 *
 * Step 2 comes before step 3, so a stream never waits for an operator that the worker does not know. If step 2 fails, the
 * stream has stored a number that nobody reads. Step 2 comes after step 1, so two threads that enqueue on one stream at the
 * same time cannot cause a deadlock: an operator's store is on the stream before the wait of any operator that is submitted
 * later.
 *
 * Both words only grow (they are compared cyclically). stream_finished grows because a slot has one operator at a time.
 * stream_started could be set back: an operator that fails early may complete before its stream has executed the store of step
 * 1. If the slot were used again then, this late store could overwrite the next operator's number. Therefore a slot is used
 * again only after the store has been executed: when stream_started is n, a value that the worker never stores there
 * (slot_collect()).
 *
 * Where the driver allows it, streams use stream words in GPU memory instead (struct fcc_stream_words; words.c). `started` is
 * on every GPU of the communicator, so that each of the worker's GPUs waits for a word in its own memory. `finished` is on the
 * rank's GPU. Step 1 then stores stream_started last, for readers on a CPU.
 *
 * When the context dies (its connection to the worker has ended), the last number of every slot is stored into
 * stream_finished, and after that into the `finished` words. Only a GPU's stream can store into the latter, so the watch thread
 * enqueues that. Numbers are given out under context->lock while the context is alive, and the context dies under the same
 * lock. So the stored values cover every number that was ever given out, and a wait that is enqueued afterwards ends at once.
 *
 * Some devices' streams cannot wait for values in memory (hipStreamWaitValue32, cuStreamWaitValue32). There step 1 is a memset
 * of four bytes, and step 3 is a host function on the stream (cudaLaunchHostFunc), which waits. Events that both processes
 * share are no substitute: the program can let its stream wait for the worker's event only after the worker has recorded that
 * event, so every call would have to wait for the worker's CPU; and a wait for an event never ends if the worker dies. A driver
 * may run the host functions of all streams one after the other. Therefore step 1 is not a host function: a host function that
 * waits may delay other host functions, but never the store that it waits for.
 */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <time.h>

#include "client/core/call.h"
#include "client/core/request.h"
#include "client/stream/bound.h"
#include "client/stream/stream.h"
#include "proto/session.h"

#define CALL ACCELERATOR_CALL
#define FUNCTION_SLEEP_NS 50000 /* how long a host function sleeps before it reads the word again */

static bool stream_word_reached(const _Atomic uint32_t *word, uint32_t value)
{
    return (int32_t)(atomic_load_explicit(word, memory_order_acquire) - value) >= 0;
}

/* An operator that has not completed still has its slot, so the slot's `finished` number tells whether the stream has passed the
 * operator. The numbers are read after the call began, but before the lock is taken: they may be too old for requests that were
 * submitted meanwhile, whose ids are above `last`. */
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
    LIST_FOREACH(r, &c->requests, link)
        if (r->comm == comm && r->unattended && r->id <= last &&
            (r->run.place ? run_is_over(c, &r->run) : (int32_t)(finished[r->slot] - r->stream) >= 0))
            r->past = true;
    (void)pthread_mutex_unlock(&c->lock);
    return 0;
}

/* Locked; may release the lock. The request has its slot: give it the slot's next number. */
static int stream_number(struct fcc_request *r, const struct accelerator *a)
{
    struct fcc_context *c = r->context;
    struct fcc_slot *slot = &c->memory->slot[r->slot];
    int status = 0;

    if (c->stream_count[r->slot] == FCC_STREAM_LAST) {
        if (!a->driver->waits_cyclically) {
            /* Start again at 1. No stream may read the words while they are set to 0, and a stream may still execute its wait
             * when its operator has completed. */
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
        c->stream_count[r->slot] = 0; /* 0 is no operator's number */
    }
    r->stream = ++c->stream_count[r->slot];
    return 0;
}

/* ---- step 3 where streams cannot wait for values in memory: a host function ---- */

/* The argument of one operator's host function, which frees it. (It leaks if the driver does not run the function because its
 * GPU context is lost.) */
struct host_wait {
    const struct fcc_slot *slot;
    uint32_t value;
    uint32_t spin_us;
};

/* The host function. It ends when stream_finished reaches the number, at the latest when the context dies. */
static void host_wait_run(void *argument)
{
    static const struct timespec slice = {.tv_nsec = FUNCTION_SLEEP_NS};
    struct host_wait *wait = argument;
    struct spin spin;

    spin_begin(&spin, wait->spin_us, NEVER);
    while (!stream_word_reached(&wait->slot->stream_finished, wait->value))
        if (!spin_more(&spin))
            (void)nanosleep(&slice, NULL);
    free(wait);
}

static void host_wait_callback(void *stream, int status, void *argument)
{
    (void)stream;
    (void)status;
    host_wait_run(argument);
}

static int host_wait_enqueue(const struct fcc_request *r, const struct accelerator *a, void *stream)
{
    struct host_wait *wait = malloc(sizeof(*wait));
    int status;

    if (!wait)
        return last_error_set(-ENOMEM, "stream: out of memory");
    *wait = (struct host_wait){.slot = &r->context->memory->slot[r->slot], .value = r->stream, .spin_us = r->context->spin_us};
    status = a->driver->stream_function ? CALL(a, stream_function, stream, host_wait_run, wait)
                                        : CALL(a, stream_callback, stream, host_wait_callback, wait, 0);
    if (status)
        free(wait);
    return status;
}

/* ---- the steps ---- */

static uint64_t word_address(const struct fcc_request *r, const struct accelerator *a, size_t member)
{
    return a->memory + offsetof(struct fcc_session_memory, slot) + r->slot * sizeof(struct fcc_slot) + member;
}

/* Whether the driver's streams can store to and wait for words, and the program lets them. */
static bool uses_words(const struct fcc_request *r, const struct accelerator *a)
{
    return a->stream_words && !r->context->no_stream_words;
}

/* Step 1. */
static int stream_begin(const struct fcc_request *r, const struct accelerator *a, void *stream)
{
    uint64_t word = word_address(r, a, offsetof(struct fcc_slot, stream_started));

    if (r->comm->words_gpus)
        return words_begin(r, a, word, stream);
    return uses_words(r, a) ? CALL(a, stream_write, stream, word, r->stream, 0)
                            : CALL(a, stream_fill, word, r->stream, 1, stream);
}

/* Step 3. */
static int stream_end(const struct fcc_request *r, const struct accelerator *a, void *stream)
{
    uint64_t word = word_address(r, a, offsetof(struct fcc_slot, stream_finished));

    if (r->comm->words_gpus)
        return words_end(r, a, stream);
    if (!uses_words(r, a))
        return host_wait_enqueue(r, a, stream);
    return a->driver->stream_wait ? CALL(a, stream_wait, stream, word, r->stream, DRIVER_WAIT_REACHED)
                                  : CALL(a, stream_wait_masked, stream, word, r->stream, DRIVER_WAIT_REACHED, UINT32_MAX);
}

/* comm->order held. Take a slot and its next number, and add the request to the context's. *left: number of slots that are still
 * free. */
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
            slot_return(c, r->slot, false);
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

/* Launch the kernel of a bound operator's run on the stream. The run has been submitted, so the worker knows of it. The other ranks'
 * kernels wait for this one, so if it cannot be launched the communicator is aborted. */
static int run_launch(const struct fcc_request *r, struct repeat *repeat, void *stream)
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

/* Let the stream wait for the end of the communicator's previous operator, if one of the two is a run of a bound operator and the
 * stream's own order does not ensure it (repeated.c).
 *
 * Memory order: a run that is `fenced` ends with a release fence, so the waiting stream sees its stores. Runs before the
 * communicator's first change of streams have no fence. The wait after such a run relies on time: the word that ends the run travels
 * through host memory, which takes much longer than the run's last stores take in the GPU's memory. */
static int order_wait(struct fcc_comm *comm, struct repeat *repeat, void *stream)
{
    const struct stream_end *last = &comm->last;

    comm->has_streams |= last->word && last->stream != stream;
    repeat->run.fenced = comm->has_streams;
    if (!last->word || (last->stream == stream && !last->deferred) || !(last->is_run || repeat->prepared))
        return 0;
    return CALL(comm->accelerator, stream_wait, stream, last->word, last->value, DRIVER_WAIT_REACHED);
}

/* Remember the operator's end for the next order_wait(). */
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
                                        : words_finished_at(a, r->slot);
    comm->last.value = comm->last.is_run ? r->run.number : r->stream;
    comm->last.deferred = !comm->last.is_run && group_is_open();
}

/* The GPU is the current one; comm->order held. *submitted: the worker has the request, also if a later step fails. */
static int request_enqueue(struct fcc_request *r, struct fcc_submit *msg, void *stream, bool unattended, struct repeat *repeat,
                           bool *submitted)
{
    const struct accelerator *a = r->comm->accelerator;
    int status, left;

    if (repeat->prepared)
        r->run = (struct slot_run){.place = repeat->prepared->place, .number = (uint32_t)repeat->run.epoch};
    status = request_open(r, a, &left);
    if (status)
        return status;
    status = order_wait(r->comm, repeat, stream);
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
    /* A run does not need the worker, which is left to sleep soundly (enum fcc_worker_sleeps), unless few slots are left or the
     * program has the request and may wait for it. */
    status = ring_push(r->context, msg, repeat->prepared && unattended && left >= (int)FCC_SLOTS / 2);
    if (status) {
        request_close(r, !repeat->prepared);
        return comm_lose(r->comm, status);
    }
    *submitted = true;
    order_note(r, repeat, stream);
    return repeat->prepared ? run_launch(r, repeat, stream) : stream_end(r, a, stream);
}

/* The worker launches the operator, so no graph can: says what graphs can have, or why they can have nothing of this communicator. Returns
 * the status. */
static int capture_refuse(struct fcc_comm *comm)
{
    struct error why;

    (void)pthread_mutex_lock(&comm->rings_lock);
    why = comm->rings_none;
    (void)pthread_mutex_unlock(&comm->rings_lock);
    if (why.status)
        return last_error_set(-EOPNOTSUPP,
                              "rank %d: stream: it is being captured into a graph, and fccd launches the operator: %s",
                              comm->rank, why.text);
    return last_error_set(-EOPNOTSUPP,
                          "rank %d: stream: it is being captured into a graph, and fccd launches the operator: allowed are "
                          "prepared operators, and collectives without a request, where the ranks can launch them",
                          comm->rank);
}

static int request_order(struct fcc_request *r, struct fcc_submit *msg, const struct tensor_place places[], void *stream,
                         bool unattended, bool *submitted)
{
    struct fcc_comm *comm = r->comm;
    const struct accelerator *a = comm->accelerator;
    int capturing = DRIVER_NOT_CAPTURING, status = CALL(a, stream_capturing, stream, &capturing);
    struct repeat repeat;

    if (!status && capturing != DRIVER_NOT_CAPTURING)
        status = capture_refuse(comm);
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

/* 0 if the rank's operators can be enqueued on streams; otherwise the reason. */
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
    r->recv_rows = NULL;
    r->orphan = r->unattended = true;
    (void)pthread_mutex_unlock(&c->lock);
    return status;
}
