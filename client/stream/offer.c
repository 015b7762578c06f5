/* SPDX-License-Identifier: MIT
 *
 * offer.c - operators that come to a stream again and again: they are prepared beside the program's requests, and then this process puts
 * their kernels onto the stream itself, ahead of the worker's decision (struct fcc_prepared_words in proto.h). What the worker and the GPUs
 * would have to hand to each other for every operator, it says once.
 *
 * A request (a noop, gemv or gemm) is of the same kind as another if it differs in nothing but where its tensors lie, except that a gemm's
 * result, into which other ranks store, is the same. When its buffer is freed the kind is forgotten. A kind that has come OFFER_AFTER times to a
 * stream is asked for, and when the worker says from which of the communicator's operators on it may be offered, every later one of
 * its kind is a run, also those that this rank does not offer: so all ranks number the runs alike, though each judges by itself whether
 * it offers one. It does not where
 *   - somebody has the request, who is told of its end by the worker, or it is on no stream;
 *   - others that are in flight may be on another stream than this one: they and the run would have no order;
 *   - an operator of the open group is still to be waited for: the stream has not got that wait yet (group.c), and the run may need what
 *     it is for.
 *
 * Order. A rank's operators are in one order for the worker and, if they are on one stream, in the same order there. An ordinary operator's
 * wait may come behind an offered kernel, and the other way round, without harm, but not in an order other than the worker's: a
 * kernel that stands behind the wait for a later operator would wait for ever. So the communicator's operators are submitted and put onto
 * their streams one at a time (comm->order).
 */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "client/stream/bound.h"
#include "client/stream/offer.h"
#include "client/stream/stream.h"
#include "kernels/plan/spec.h"

#define OFFER_AFTER 16u
#define KINDS 16u /* of requests that are remembered, in a communicator */
#define OFFER_TENSORS 3u
#define OFFER_ATTRS 17u /* words: a number for each of 16 ranks, behind their key */

/* Of a request, in the order of its message, what must be the same. */
struct kind_key {
    uint32_t op, schedule, ntensors, nattrs;
    struct fcc_wire_tensor tensors[OFFER_TENSORS]; /* without where those lie that may lie elsewhere each time */
    int64_t attrs[OFFER_ATTRS];
};

struct kind {
    struct kind_key key;
    uint32_t number;               /* what the worker is told; 0: the place is free */
    uint32_t requests;             /* that have come to a stream, unattended, until it is asked for */
    uint64_t used;                 /* the newest operator of it */
    uint32_t looked;               /* session memory's `offers` when it was looked for last */
    bool offered;                  /* the worker has prepared it */
    struct fcc_prepared *prepared; /* NULL: this process does not have it (yet) */
    uint64_t first;                /* operators from this one on are runs */
    uint64_t runs;
};

struct offers {
    uint32_t kinds_made;
    struct kind kinds[KINDS];
};

static bool key_make(const struct fcc_submit *msg, struct kind_key *key)
{
    const struct fcc_wire_tensor *tensors = (const struct fcc_wire_tensor *)(msg + 1);
    const struct op_spec *op = op_spec(msg->op);

    if (!op || op->bind == BIND_NEVER || msg->refused || msg->ntensors > OFFER_TENSORS || msg->nattrs > OFFER_ATTRS ||
        msg->prepare)
        return false;
    memset(key, 0, sizeof(*key));
    key->op = msg->op;
    key->schedule = msg->schedule;
    key->ntensors = msg->ntensors;
    key->nattrs = msg->nattrs;
    memcpy(key->tensors, tensors, msg->ntensors * sizeof(tensors[0]));
    memcpy(key->attrs, tensors + msg->ntensors, msg->nattrs * sizeof(key->attrs[0]));
    for (int i = 0; i < msg->ntensors; i++) {
        if (!key->tensors[i].buffer)
            return false; /* a rank without a part of the sum, say: left to the worker */
        if (op->tensors[i].role == TENSOR_SHARED)
            continue;
        key->tensors[i].buffer = 0;
        key->tensors[i].offset = 0;
    }
    return true;
}

/* The kind of the request; a new one takes the place of the one that has not come for longest and is not offered. NULL: there is none. */
static struct kind *kind_find(struct offers *o, const struct kind_key *key, uint64_t operator)
{
    struct kind *oldest = NULL;

    for (unsigned i = 0; i < KINDS; i++) {
        struct kind *k = &o->kinds[i];
        if (k->number && !memcmp(&k->key, key, sizeof(*key))) {
            k->used = operator;
            return k;
        }
        if (!k->offered && (!oldest || k->used < oldest->used))
            oldest = k;
    }
    if (oldest)
        *oldest = (struct kind){.key = *key, .number = ++o->kinds_made, .used = operator};
    return oldest;
}

/* What the worker offers. */
struct offering {
    uint64_t first;
    uint32_t number;
};

/* Does this place say that the worker has prepared the kind? Another thread's communicator may give the place back meanwhile, and the worker
 * may use it again: what was read is of one offering if `first`, which the worker takes back before it writes the rest, is still the
 * same (they are acquired, so that look comes behind them). All is read once and copied: what it says later changes nothing here. */
static bool place_offers(const struct fcc_comm *comm, const struct kind *k, uint32_t place, struct offering *out)
{
    const struct fcc_prepared_words *words = &comm->context->memory->prepared[place];
    uint64_t first = atomic_load_explicit(&words->first, memory_order_acquire);
    uint32_t whose = atomic_load_explicit(&words->comm, memory_order_acquire);
    uint32_t request = atomic_load_explicit(&words->request, memory_order_acquire);
    uint32_t number = atomic_load_explicit(&words->number, memory_order_acquire);

    if (!first || whose != comm->handle || request != k->number ||
        atomic_load_explicit(&words->first, memory_order_relaxed) != first)
        return false;
    *out = (struct offering){.first = first, .number = number};
    return true;
}

/* Has the worker prepared it? Then this process takes what it needs, once, which takes its time. */
static void kind_look(struct fcc_comm *comm, struct kind *k)
{
    const struct fcc_session_memory *memory = comm->context->memory;
    uint32_t offers = atomic_load_explicit(&memory->offers, memory_order_acquire);

    if (offers == k->looked)
        return;
    k->looked = offers;
    for (uint32_t place = FCC_PREPARED_MAX; place < FCC_PREPARED_PLACES && !k->offered; place++) {
        const struct prepared_wanted wanted = {
            .op = k->key.op, .ntensors = k->key.ntensors, .tensors = k->key.tensors, .offered = true};
        struct offering offering;
        if (!place_offers(comm, k, place, &offering))
            continue;
        k->offered = true;
        k->first = offering.first;
        if (offering.first != FCC_OFFERS_END)
            k->prepared = prepared_adopt(comm, offering.number, place, &wanted);
    }
}

/* Are all operators that are in flight on this stream? Of those on none nothing else is in flight: the worker sees to that. */
static bool is_in_order(struct fcc_comm *comm, const void *stream)
{
    uint64_t operator= comm->operators + 1;

    if (!comm->has_stream || comm->stream != stream)
        comm->in_order_from = comm->has_stream ? operator+ FCC_SLOTS : 0;
    comm->has_stream = true;
    comm->stream = stream;
    return operator>= comm->in_order_from;
}

void offer_begin(struct fcc_comm *comm, struct fcc_submit *msg, const struct offered_to *to, struct offer *out)
{
    bool enqueued = to && is_in_order(comm, to->stream) && to->unattended;
    struct kind_key key;
    struct kind *k;

    *out = (struct offer){.addresses = to ? to->addresses : NULL};
    if (!comm->words_gpus || !comm->accelerator || !key_make(msg, &key))
        return;
    if (!comm->offers)
        comm->offers = calloc(1, sizeof(*comm->offers)); /* without memory nothing is offered */
    k = comm->offers ? kind_find(comm->offers, &key, comm->operators + 1) : NULL;
    if (!k)
        return;
    if (!k->offered && k->requests >= OFFER_AFTER)
        kind_look(comm, k);
    if (k->prepared && !prepared_is_wanted(k->prepared) && prepared_is_idle(k->prepared)) {
        fcc_prepared_free(k->prepared);
        k->prepared = NULL;
    }
    if (k->offered && comm->operators + 1 >= k->first) {
        out->kind = k;
        out->run = k->runs + 1;
        if (enqueued && k->prepared && !group_is_waiting() && prepared_is_wanted(k->prepared))
            out->prepared = k->prepared;
    } else if (!k->offered && enqueued) {
        out->kind = k;
        out->asks = k->requests + 1 >= OFFER_AFTER;
    }
    msg->prepare = out->asks ? FCC_PREPARE_ASK : FCC_PREPARE_RUN;
    msg->offer = out->asks ? k->number : out->prepared ? prepared_number(out->prepared) : 0;
    msg->run = out->prepared ? out->run : 0;
}

void offer_addresses(const struct offer *o, uint64_t inputs[2], uint64_t *result)
{
    const struct op_spec *op = op_spec(o->kind->key.op);

    inputs[0] = inputs[1] = *result = 0;
    for (int i = 0, n = 0; i < op->ntensors; i++)
        *(i == op->result ? result : &inputs[n++]) = o->addresses[i];
}

void offers_end(struct fcc_comm *comm)
{
    (void)pthread_mutex_lock(&comm->order);
    for (unsigned i = 0; comm->offers && i < KINDS; i++)
        fcc_prepared_free(comm->offers->kinds[i].prepared);
    free(comm->offers);
    comm->offers = NULL;
    (void)pthread_mutex_unlock(&comm->order);
}

static void offers_forget_buffer(struct fcc_comm *comm, uint32_t handle)
{
    (void)pthread_mutex_lock(&comm->order);
    for (unsigned i = 0; comm->offers && i < KINDS; i++) {
        struct kind *k = &comm->offers->kinds[i];
        bool holds = false; /* the key has only those buffers that are the same in all requests of the kind */
        for (unsigned t = 0; t < OFFER_TENSORS; t++)
            holds = holds || k->key.tensors[t].buffer == handle;
        if (!k->number || !holds)
            continue;
        fcc_prepared_free(k->prepared);
        *k = (struct kind){.number = 0};
    }
    (void)pthread_mutex_unlock(&comm->order);
}

void offer_end(const struct offer *o)
{
    if (o->run)
        o->kind->runs = o->run;
    else if (o->kind)
        o->kind->requests++;
}

/* An operator that comes to no stream takes its number among the runs of its kind. If it cannot be submitted, the communicator is over, and the
 * numbers are of no use any more. */
static void offer_count(struct fcc_comm *comm, struct fcc_submit *msg)
{
    struct offer o;

    offer_begin(comm, msg, NULL, &o);
    offer_end(&o);
}

const struct comm_hooks offer_hooks = {.submit = offer_count, .buffer_free = offers_forget_buffer};
