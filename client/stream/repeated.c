/* SPDX-License-Identifier: MIT
 *
 * repeated.c - operators that come to streams again and again: the worker binds them, and then this process puts their kernels onto
 * the streams itself (struct fcc_binding in session.h; daemon/worker/comm/bound/launcher.h has the whole and the argument).
 *
 * A request (a noop, gemv or gemm) is of the same kind as another if it differs in nothing but where its tensors lie, except that a
 * result into which other ranks store is the same. When its buffer is freed the kind is forgotten. A kind that has come to streams
 * often enough is asked for. When the worker has bound it, this process maps what its runs need, and from the operator on that
 * the worker names, every operator of the kind is a run. If the worker has it launched differently again (`until`), the kind begins
 * anew, and has to come twice as often.
 *
 * Order. A rank's operators have one order, and a run must not begin before the rank's earlier operators have ended. So before an
 * operator is put onto a stream, that stream waits for the end of the communicator's operator before, if either is a run and the
 * stream is not behind it already: it is another stream, or a group is open (stream.c). An operator that is on no stream must have
 * completed: until then there are no runs. For the same reason the communicator's operators are submitted and put onto their
 * streams one at a time (comm->order).
 *
 * What the worker would refuse is no run, as the worker sees a run only when it has begun: an input outside of its buffer, or
 * where a result is stored.
 */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "client/core/request.h"
#include "client/stream/bound.h"
#include "client/stream/stream.h"
#include "kernels/plan/plan.h"
#include "kernels/plan/spec.h"
#include "proto/session.h"

#define ASK_AFTER 16u        /* requests of a kind */
#define ASK_AFTER_MOST 4096u /* of one whose bindings end again and again after few runs */
#define RUNS_ENOUGH 4u       /* times the requests that it took, runs are enough for what binding costs */
#define KINDS 16u            /* of requests that are remembered, in a communicator */
#define KIND_TENSORS 3u
#define KIND_ATTRS 17u /* words: a number for each of 16 ranks, behind their key */

/* Of a request, in the order of its message, what must be the same. */
struct kind_key {
    uint32_t op, schedule, ntensors, nattrs;
    struct fcc_wire_tensor tensors[KIND_TENSORS]; /* without where those lie that may lie elsewhere each time */
    int64_t attrs[KIND_ATTRS];
};

struct kind {
    struct kind_key key;
    uint64_t bytes[KIND_TENSORS];  /* from the first byte of each tensor to behind its last one */
    uint32_t number;               /* this process's id of the bind request; 0: the place is free */
    uint32_t requests;             /* that have come to streams, until it is asked for */
    uint32_t after;                /* requests, after which it is asked for */
    uint64_t used;                 /* the newest operator of it */
    uint32_t looked;               /* session memory's `announced` when it was looked for last */
    struct fcc_prepared *prepared; /* the worker has bound it, and this process can launch it; or NULL */
    uint64_t first;                /* operators from this one on are runs; 0: not known yet */
    uint64_t run;                  /* prepared: the number of the first run */
};

struct repeats {
    uint32_t kinds_made;
    struct kind kinds[KINDS];
};

static bool key_make(const struct fcc_submit *msg, struct kind_key *key)
{
    const struct fcc_wire_tensor *tensors = (const struct fcc_wire_tensor *)(msg + 1);
    const struct op_spec *op = op_spec(msg->op);

    if (!op || op->bind == BIND_NEVER || msg->refused || msg->ntensors > KIND_TENSORS || msg->nattrs > KIND_ATTRS ||
        msg->ntensors != op->ntensors || msg->prepare)
        return false; /* more tensors than the operator's own: it has an epilogue */
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

/* Whether the worker would take these places for the tensors. */
static bool places_are_good(const struct fcc_comm *comm, const struct kind *k, const struct tensor_place places[])
{
    const struct op_spec *op = op_spec(k->key.op);
    const struct tensor_place *result = op->result < 0 ? NULL : &places[op->result];

    for (int i = 0; i < op->ntensors; i++) {
        const struct tensor_place *at = &places[i];
        size_t size = dtype_size((enum fcc_dtype)k->key.tensors[i].dtype);
        if (k->bytes[i] > at->room || !size || at->address % size || at->comm != comm)
            return false;
        if (result && at != result && at->address < result->address + k->bytes[op->result] &&
            result->address < at->address + k->bytes[i])
            return false;
    }
    return true;
}

/* A place for a kind that is not bound. */
static void kind_begin(struct repeats *all, struct kind *k, const struct kind_key *key, uint32_t after)
{
    *k = (struct kind){.key = *key, .number = ++all->kinds_made, .after = after};
    for (uint32_t i = 0; i < key->ntensors; i++)
        k->bytes[i] = wire_tensor_bytes(&key->tensors[i]);
}

/* The kind of the request; a new one takes the place of the one that has not come for longest and is not bound. NULL: there is
 * none. */
static struct kind *kind_find(struct repeats *all, const struct kind_key *key, uint64_t operator)
{
    struct kind *oldest = NULL;

    for (unsigned i = 0; i < KINDS; i++) {
        struct kind *k = &all->kinds[i];
        if (k->number && !memcmp(&k->key, key, sizeof(*key))) {
            k->used = operator;
            return k;
        }
        if (!k->prepared && (!oldest || k->used < oldest->used))
            oldest = k;
    }
    if (oldest)
        kind_begin(all, oldest, key, ASK_AFTER);
    if (oldest)
        oldest->used = operator;
    return oldest;
}

/* Does this place say that the worker has bound the kind? Then *number is the worker's. Another thread's communicator may give the place
 * back meanwhile, and the worker may use it again: what was read is of one binding if `number`, which the worker takes back
 * before it writes the rest, is still the same (they are acquired, so that look comes behind them). */
static bool place_has(const struct fcc_comm *comm, const struct kind *k, uint32_t place, uint32_t *number)
{
    const struct fcc_binding *words = &comm->context->memory->bindings[place];
    uint32_t now = atomic_load_explicit(&words->number, memory_order_acquire);
    uint32_t whose = atomic_load_explicit(&words->comm, memory_order_acquire);
    uint32_t request = atomic_load_explicit(&words->request, memory_order_acquire);

    *number = now;
    return now && whose == comm->handle && request == k->number &&
           atomic_load_explicit(&words->number, memory_order_relaxed) == now;
}

/* Has the worker bound it? Then this process maps what it needs, once, which takes its time. */
static void kind_look(struct fcc_comm *comm, struct kind *k)
{
    uint32_t announced = atomic_load_explicit(&comm->context->memory->announced, memory_order_acquire);
    const struct prepared_wanted wanted = {
        .op = k->key.op, .ntensors = k->key.ntensors, .tensors = k->key.tensors, .repeated = true};
    uint32_t number;

    if (announced == k->looked)
        return;
    k->looked = announced;
    for (uint32_t place = FCC_PREPARED_MAX; place < FCC_BINDINGS; place++) {
        if (!place_has(comm, k, place, &number))
            continue;
        k->prepared = prepared_adopt(comm, number, place, &wanted);
        if (k->prepared)
            k->run = k->prepared->runs + 1;
        else
            k->after = UINT32_MAX; /* it cannot be had in this process */
        return;
    }
}

/* The worker has ended the binding: as soon as its runs have ended, the kind begins anew. */
static void kind_end(struct repeats *all, struct kind *k)
{
    struct kind_key key = k->key;
    uint64_t used = k->used;
    uint32_t after = k->after < ASK_AFTER_MOST ? 2 * k->after : ASK_AFTER_MOST;

    if (!prepared_is_idle(k->prepared))
        return;
    if (k->prepared->runs + 1 - k->run >= RUNS_ENOUGH * k->after)
        after = ASK_AFTER;
    fcc_prepared_free(k->prepared);
    kind_begin(all, k, &key, after);
    k->used = used;
}

/* Whether operators of the communicator that are on no stream are in flight. */
static bool is_streamless(struct fcc_comm *comm)
{
    if (!atomic_load_explicit(&comm->streamless, memory_order_acquire))
        return false;
    (void)pthread_mutex_lock(&comm->context->lock);
    context_collect(comm->context);
    (void)pthread_mutex_unlock(&comm->context->lock);
    return atomic_load_explicit(&comm->streamless, memory_order_acquire) != 0;
}

/* Whether the operator is a run. */
static bool is_run(struct fcc_comm *comm, struct kind *k, const struct tensor_place places[])
{
    const struct fcc_binding *words = k->prepared->words;

    if (!k->first)
        k->first = atomic_load_explicit(&words->first, memory_order_acquire);
    return k->first && comm->operators + 1 >= k->first && !atomic_load_explicit(&words->until, memory_order_relaxed) &&
           !is_streamless(comm) && places_are_good(comm, k, places);
}

void repeat_begin(struct fcc_comm *comm, struct fcc_submit *msg, const struct tensor_place places[], struct repeat *out)
{
    struct kind_key key;
    struct kind *k;

    out->kind = NULL;
    out->prepared = NULL;
    if (!comm->words_gpus || !comm->accelerator || !key_make(msg, &key))
        return;
    if (!comm->repeats)
        comm->repeats = calloc(1, sizeof(*comm->repeats)); /* without memory nothing is bound */
    k = comm->repeats ? kind_find(comm->repeats, &key, comm->operators + 1) : NULL;
    if (!k)
        return;
    if (k->prepared && atomic_load_explicit(&k->prepared->words->until, memory_order_relaxed))
        kind_end(comm->repeats, k);
    if (!k->prepared && k->requests >= k->after)
        kind_look(comm, k);
    if (!k->prepared) {
        out->kind = k;
        if (k->requests + 1 < k->after)
            return;
        msg->prepare = FCC_PREPARE_ASK;
        msg->bound = k->number;
    } else if (is_run(comm, k, places)) {
        out->prepared = k->prepared;
        out->run = (struct gpu_repeated_run){.epoch = k->prepared->runs + 1};
        for (int i = 0, n = 0; i < msg->ntensors; i++)
            *(i == op_spec(msg->op)->result ? &out->run.result : &out->run.inputs[n++]) = places[i].address;
        msg->bound = k->prepared->number;
        msg->run = out->run.epoch;
    }
}

void repeat_end(const struct repeat *r)
{
    if (r->kind && r->kind->requests < UINT32_MAX)
        r->kind->requests++;
}

void repeats_end(struct fcc_comm *comm)
{
    (void)pthread_mutex_lock(&comm->order);
    for (unsigned i = 0; comm->repeats && i < KINDS; i++)
        fcc_prepared_free(comm->repeats->kinds[i].prepared);
    free(comm->repeats);
    comm->repeats = NULL;
    (void)pthread_mutex_unlock(&comm->order);
}

void repeats_forget(struct fcc_comm *comm, uint32_t handle)
{
    (void)pthread_mutex_lock(&comm->order);
    for (unsigned i = 0; comm->repeats && i < KINDS; i++) {
        struct kind *k = &comm->repeats->kinds[i];
        bool holds = false; /* the key has only those buffers that are the same in all requests of the kind */
        for (unsigned t = 0; t < KIND_TENSORS; t++)
            holds = holds || k->key.tensors[t].buffer == handle;
        if (!k->number || !holds)
            continue;
        fcc_prepared_free(k->prepared);
        *k = (struct kind){.number = 0};
    }
    (void)pthread_mutex_unlock(&comm->order);
}
