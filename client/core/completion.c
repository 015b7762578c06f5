/* SPDX-License-Identifier: MIT
 *
 * completion.c - a request from its submission to its result.
 *
 * A request's message goes into the submission ring and its completion comes into a slot (ring.c), or both go over the socket
 * (call.c). The first thread that checks collects the completion under context->lock and sets `finished`: a thread that tests
 * or waits, needs a slot, or is in fcc_comm_destroy(). From then on the slot may have a new owner, so all other threads check
 * `finished` first.
 *
 * A request that is freed while it runs becomes an orphan: the worker will still write to its slot, so the slot (or the reply's
 * place) is kept until it has.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/core/call.h"
#include "client/core/request.h"
#include "kernels/plan/program.h"

/* Locked. r->result is as the worker wrote it: check it, and replace what is not valid. */
static void completion_check(struct fcc_request *r)
{
    struct fcc_submit_reply *result = &r->result;
    struct fcc_reply *reply = &result->reply;

    reply->text[FCC_TEXT_MAX - 1] = 0;
    if (reply->status)
        (void)text_clean(reply->text);
    if (reply->msg.id != r->id) {
        reply->status = -EPROTO;
        (void)snprintf(reply->text, sizeof(reply->text), "the worker completed request %llu in the slot of request %llu",
                       (unsigned long long)reply->msg.id, (unsigned long long)r->id);
    } else if (status_taken(reply->status) != reply->status) {
        (void)snprintf(reply->text, sizeof(reply->text),
                       "the worker completed a request with status %d: allowed are 0 and negative errno values", reply->status);
        reply->status = -EPROTO;
    } else if (!reply->status && ((result->nvalues > FCC_SLOT_VALUES && result->nvalues != (uint32_t)r->nranks) ||
                                  (r->recv_rows && result->nvalues != (uint32_t)r->nranks))) {
        (void)snprintf(reply->text, sizeof(reply->text), "the worker completed a request of %d ranks with %u values", r->nranks,
                       result->nvalues);
        reply->status = -EPROTO;
    } else if (reply->status && !reply->text[0]) {
        (void)snprintf(reply->text, sizeof(reply->text), "%s", strerror(-reply->status));
    }
}

/* Locked. Has r finished? Finishes it first if its completion is there or the context is dead. */
static bool request_poll(struct fcc_request *r)
{
    const struct error *dead = &r->context->dead;
    bool by_ring = r->slot != FCC_NO_SLOT;

    if (atomic_load_explicit(&r->finished, memory_order_relaxed))
        return true;
    /* The completion counts before the end of the context: an operator that finished before the worker died has finished. */
    if (by_ring ? slot_collect(r) : r->pending.done) {
        completion_check(r);
    } else if (dead->status) {
        r->result.reply.status = dead->status;
        dead_text(r->context, operator_name(r->op), r->result.reply.text);
    } else {
        return false;
    }
    if (r->comm) {
        r->comm->completed++;
        if (!r->stream)
            (void)atomic_fetch_sub_explicit(&r->comm->streamless, 1, memory_order_release);
    }
    atomic_store(&r->finished, true); /* before `sleepers` is read: see slot_sleep() */
    if (by_ring && atomic_load(&r->sleepers))
        slot_wake(r);
    return true;
}

/* Locked. An orphan has finished. If it was unattended, its error becomes its communicator's. */
static void orphan_end(struct fcc_request *r)
{
    const struct fcc_reply *reply = &r->result.reply;

    if (r->unattended && r->comm && reply->status && (!r->comm->error.status || r->id < r->comm->error_id)) {
        (void)error_set(&r->comm->error, reply->status, "%s", reply->text);
        r->comm->error_id = r->id; /* requests are not collected in the order of their ids */
    }
    LIST_REMOVE(r, link);
    free(r);
}

void context_collect(struct fcc_context *c)
{
    struct fcc_request *r, *next;

    LIST_FOREACH_SAFE(r, &c->requests, link, next)
        if (request_poll(r) && r->orphan)
            orphan_end(r);
}

bool comm_is_busy(const struct fcc_comm *comm)
{
    struct fcc_request *r;

    LIST_FOREACH(r, &comm->context->requests, link)
        if (r->comm == comm && !request_poll(r))
            return true;
    return false;
}

/* Locked. The result of a finished request, for the thread that asked. */
static int request_result(struct fcc_request *r)
{
    const struct fcc_reply *reply = &r->result.reply;

    if (reply->status)
        return last_error_set(reply->status, "%s", reply->text);
    if (r->recv_rows) {
        size_t n = (size_t)r->nranks, short_n = n < FCC_SLOT_VALUES ? n : FCC_SLOT_VALUES;
        memcpy(r->recv_rows, r->result.values, short_n * sizeof(r->recv_rows[0]));
        memcpy(r->recv_rows + short_n, r->more, (n - short_n) * sizeof(r->recv_rows[0]));
        for (size_t i = 0; r->row_elements > 1 && i < n; i++)
            r->recv_rows[i] /= r->row_elements;
    }
    r->recv_rows = NULL;
    return 0;
}

void request_close(struct fcc_request *r, bool written)
{
    (void)pthread_mutex_lock(&r->context->lock);
    LIST_REMOVE(r, link);
    if (!r->finished)
        slot_return(r->context, r->slot, written);
    (void)pthread_mutex_unlock(&r->context->lock);
}

static int request_submit_ring(struct fcc_request *r, struct fcc_submit *msg)
{
    struct fcc_context *c = r->context;
    int status;

    (void)pthread_mutex_lock(&c->lock);
    status = slot_take(c, r);
    if (!status) {
        r->id = ++c->last_id;
        LIST_INSERT_HEAD(&c->requests, r, link);
    }
    (void)pthread_mutex_unlock(&c->lock);
    if (status)
        return status;

    msg->slot = r->slot;
    msg->msg.id = r->id;
    status = ring_push(c, msg, false);
    if (status)
        request_close(r, false);
    return status;
}

/* Locked; releases the lock. Wait until a request over the socket may be sent, so that no rank has more operators in flight
 * than the worker takes (over the ring, slots limit them). 0, -ETIMEDOUT, or the error that ended the context. */
static int socket_room(struct fcc_context *c, const char *called)
{
    int64_t deadline = 0;

    while (!c->dead.status) {
        const struct fcc_request *r;
        unsigned n = 0;
        context_collect(c);
        LIST_FOREACH(r, &c->requests, link)
            n += !r->finished;
        if (n < FCC_QUEUE_MAX)
            break;
        if (!deadline)
            deadline = deadline_in_ms(context_patience_ms(c));
        if (now_ns() >= deadline)
            return last_error_set(-ETIMEDOUT, "%u operators are in flight, and none has finished for %lld ms", n,
                                  (long long)context_patience_ms(c));
        context_pump(c, deadline);
    }
    return context_dead(c, called);
}

static int request_submit_socket(struct fcc_request *r, struct fcc_submit *msg)
{
    const struct op_spec *op = op_spec(msg->op);
    size_t more = op && op->values_at ? values_more(r->comm) * sizeof(r->more[0]) : 0;
    struct fcc_context *c = r->context;
    int status;

    r->slot = FCC_NO_SLOT;
    r->pending = (struct pending){
        .type = FCC_MSG_SUBMIT, .called = operator_name(r->op), .reply = &r->result.reply, .size = sizeof(r->result) + more};
    (void)pthread_mutex_lock(&c->lock);
    if (!LIST_EMPTY(&c->requests)) { /* no thread waits for orphans, so no thread has read their replies */
        context_pump(c, 0);
        context_collect(c);
    }
    status = socket_room(c, r->pending.called);
    if (!status) {
        pending_add(c, &r->pending);
        r->id = r->pending.id;
        LIST_INSERT_HEAD(&c->requests, r, link);
    }
    (void)pthread_mutex_unlock(&c->lock);
    if (status)
        return status;

    msg->slot = FCC_NO_SLOT;
    msg->msg.id = r->id;
    status = context_send(c, &msg->msg, msg->msg.length, r->pending.called);
    if (status) {
        (void)pthread_mutex_lock(&c->lock);
        LIST_REMOVE(r, link);
        if (!r->pending.done)
            LIST_REMOVE(&r->pending, link);
        (void)pthread_mutex_unlock(&c->lock);
    }
    return status;
}

/* The worker reads a record of the ring within a microsecond, or some tens if the doorbell has to wake it. If it takes longer,
 * it probably needs this core, and a yield need not give it the core if it has run for long (EEVDF, Linux 6.6). So the thread
 * stops spinning then. This is a hint: the unread records may be other threads'. */
#define TAKEN_WITHIN_NS 30000

static bool is_in_vain(const struct fcc_context *c, int64_t since)
{
    return !ring_is_taken(c) && now_ns() - since > TAKEN_WITHIN_NS;
}

/* Locked. Called when a thread waits for an unfinished request or tests it. The worker is given up, which ends the request,
 * if threads have done so for longer than a worker can take and no earlier operator has ended meanwhile. */
static void request_look(struct fcc_request *r)
{
    int64_t limit_ms = r->comm ? comm_patience_ms(r->comm) : context_patience_ms(r->context);
    uint64_t completed = r->comm ? r->comm->completed : 0;

    if (patience_has_begun(&r->patience) && !patience_over(&r->patience))
        return;
    if (patience_has_begun(&r->patience)) {
        context_collect(r->context);
        completed = r->comm ? r->comm->completed : 0;
        if (r->finished)
            return;
        if (completed == r->seen_completed) {
            (void)context_give_up(r->context, operator_name(r->op), limit_ms);
            return;
        }
    }
    r->seen_completed = completed;
    patience_begin(&r->patience, limit_ms);
}

/* Wait until the request has finished or the deadline has passed. The wait is over at some time even with NEVER: the
 * daemon's time limit ends every operator, the worker's end is noticed within WAIT_SLICE_NS, and a worker without progress
 * is given up. */
static int request_await(struct fcc_request *r, int64_t deadline)
{
    struct fcc_context *c = r->context;
    bool by_ring = r->slot != FCC_NO_SLOT, hung_up;
    struct spin spin;
    int status = -EAGAIN;

    if (by_ring) {
        uint32_t engine_core = atomic_load_explicit(&c->memory->engine_core, memory_order_relaxed);
        int64_t since = now_ns();
        spin_begin(&spin, c->spin_us, deadline);
        for (uint32_t state = slot_state(r);
             !(engine_core & FCC_ENGINE_CORE_STAY) && !atomic_load_explicit(&r->finished, memory_order_relaxed) &&
             state != FCC_SLOT_DONE && state != FCC_SLOT_RUNNING && !is_in_vain(c, since) && spin_more(&spin);)
            state = slot_state(r);
        core_share(&spin, engine_core);
    }
    (void)pthread_mutex_lock(&c->lock);
    while (!request_poll(r) && now_ns() < deadline) {
        request_look(r);
        if (r->context->dead.status)
            continue;
        if (!by_ring) {
            context_pump(c, deadline);
            continue;
        }
        (void)pthread_mutex_unlock(&c->lock);
        slot_sleep(r, deadline);
        hung_up = slot_state(r) != FCC_SLOT_DONE && context_hung_up(c, 0);
        (void)pthread_mutex_lock(&c->lock);
        if (hung_up)
            context_pump(c, 0);
    }
    if (r->finished)
        status = request_result(r);
    (void)pthread_mutex_unlock(&c->lock);
    return status;
}

/* Of the rows that the program's counts are in: the message has counts of elements. */
static int64_t message_row_elements(const struct fcc_submit *msg)
{
    const unsigned char *tensors = (const unsigned char *)(msg + 1);
    const struct op_args args = {.attrs =
                                     (const int64_t *)(const void *)(tensors + msg->ntensors * sizeof(struct fcc_wire_tensor)),
                                 .nattrs = msg->nattrs};
    size_t count;
    const int64_t *row = op_attr(&args, FCC_ATTR_ROW_ELEMENTS, &count);

    return row && *row > 1 ? *row : 1;
}

void request_begin(struct fcc_request *r, struct fcc_comm *comm, struct fcc_submit *msg, size_t length, int64_t *recv_rows)
{
    r->context = comm->context;
    r->comm = comm;
    r->stream = 0;
    r->run = (struct slot_run){.place = 0};
    r->orphan = r->unattended = false;
    r->past = false;
    r->patience = (struct patience){.looked_ns = 0};
    r->nranks = comm->nranks;
    r->recv_rows = recv_rows;
    r->row_elements = recv_rows ? message_row_elements(msg) : 1;
    atomic_init(&r->finished, false);
    atomic_init(&r->sleepers, 0);
    r->op = (uint16_t)(msg->op | (msg->prepare == FCC_PREPARE_ONLY ? OP_PREPARED : 0));
    msg->msg = (struct fcc_msg){.length = (uint32_t)length, .type = FCC_MSG_SUBMIT};
    msg->comm = comm->handle;
}

int comm_submit(struct fcc_comm *comm, struct fcc_submit *msg, size_t length, int64_t *recv_rows, fcc_request **out)
{
    struct fcc_context *c = comm->context;
    struct fcc_request on_stack, *r = &on_stack; /* not cleared: request_begin() sets the few fields that are needed */
    const bool socket = c->no_ring || comm->nranks > FCC_SLOT_VALUES;
    int status;

    if (out || socket)
        r = malloc(sizeof(*r) + values_more(comm) * sizeof(r->more[0]));
    if (!r)
        return msg->refused ? -ENOMEM
                            : comm_refuse(comm, msg->op | (msg->prepare == FCC_PREPARE_ONLY ? OP_PREPARED : 0), -ENOMEM,
                                          "request: out of memory", true);
    request_begin(r, comm, msg, length, recv_rows);
    (void)pthread_mutex_lock(&comm->order);
    status = comm_lost(comm);
    if (!status) {
        (void)atomic_fetch_add_explicit(&comm->streamless, 1, memory_order_relaxed);
        status = socket ? request_submit_socket(r, msg) : request_submit_ring(r, msg);
        if (status)
            status = comm_lose(comm, status);
        comm->operators += !status;
    }
    (void)pthread_mutex_unlock(&comm->order);
    if (status == 0 && out) {
        *out = r;
        return 0;
    }
    if (status == 0) {
        status = request_await(r, NEVER);
        (void)pthread_mutex_lock(&c->lock);
        LIST_REMOVE(r, link);
        (void)pthread_mutex_unlock(&c->lock);
    }
    if (r != &on_stack)
        free(r);
    return status;
}

int comm_meet(struct fcc_comm *comm)
{
    struct fcc_submit msg = {.op = FCC_BARRIER};

    return comm_submit(comm, &msg, sizeof(msg), NULL, NULL);
}

int fcc_request_test(fcc_request *request, int *done)
{
    struct fcc_context *c;
    bool finished;
    int status = request_check(request);

    if (status)
        return status;
    if (!done)
        return last_error_set(-EINVAL, "done: NULL: not allowed");
    c = request->context;
    (void)pthread_mutex_lock(&c->lock);
    if (!request_poll(request) && (request->slot == FCC_NO_SLOT || context_hung_up(c, 0)))
        context_pump(c, 0);
    if (!request_poll(request))
        request_look(request);
    finished = request_poll(request);
    if (finished && !request->result.reply.status)
        (void)request_result(request);
    (void)pthread_mutex_unlock(&c->lock);
    *done = finished;
    return 0;
}

int fcc_request_wait(fcc_request *request, int timeout_ms)
{
    int status = request_check(request);

    if (status)
        return status;
    if (timeout_ms < -1)
        return last_error_set(-EINVAL, "timeout_ms: %d: allowed are -1 (no limit) and more", timeout_ms);
    status = request_await(request, deadline_in_ms(timeout_ms));
    if (status == -EAGAIN && !request->finished)
        (void)last_error_set(status, "the operator has not finished within %d ms", timeout_ms);
    return status;
}

void fcc_request_free(fcc_request *request)
{
    struct fcc_context *c;

    if (!request || request_check(request))
        return;
    c = request->context;
    (void)pthread_mutex_lock(&c->lock);
    request->recv_rows = NULL;
    request->orphan = true;
    if (request_poll(request))
        orphan_end(request);
    (void)pthread_mutex_unlock(&c->lock);
}
