/* SPDX-License-Identifier: MIT
 *
 * bound_prepare.c - how operators come that this process launches itself (bound.c): the worker is asked for the plan, with all other ranks, memory is
 * mapped, and the plug-in opens the operator.
 */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "client/stream/bound.h"
#include "proto/session.h"

void prepared_load(const struct fcc_comm *comm)
{
    const struct accelerator *a = comm->accelerator;
    const struct gpu_prepared_functions *functions;
    struct error ignored = {.status = 0};
    int before = 0;

    if (prepared_functions_load(comm, "another", &functions) || accelerator_enter(a, &before))
        return;
    (void)pthread_mutex_lock(&prepared_plugin_lock);
    (void)functions->load(a->ordinal, &ignored);
    (void)pthread_mutex_unlock(&prepared_plugin_lock);
    accelerator_leave(a, before);
}

static uint64_t buffer_address(const fcc_buffer *b)
{
    return b ? b->map.gpu.address : 0;
}

/* The words of the rank's streams, as the worker's launches use them. */
static void places_fill(const struct fcc_comm *comm, struct gpu_stream_places *out)
{
    const struct accelerator *a = comm->accelerator;

    for (unsigned gpu = 0; gpu < FCC_MAX_GPUS; gpu++)
        if (comm->words_gpus >> gpu & 1u) {
            out->started[out->n].address = a->words[gpu].address + offsetof(struct fcc_stream_words, started);
            out->started[out->n++].pitch = sizeof(struct fcc_stream_word);
        }
    out->started[out->n].address =
        a->memory + offsetof(struct fcc_session_memory, slot) + offsetof(struct fcc_slot, stream_started);
    out->started[out->n++].pitch = sizeof(struct fcc_slot);
    out->finished.address = a->words[a->number].address + offsetof(struct fcc_stream_words, finished);
    out->finished.pitch = sizeof(struct fcc_stream_word);
}

/* buffers is NULL: each run has its own. */
static int memories_map(struct fcc_prepared *p, const struct prepared_buffers *buffers, struct gpu_prepared_memory *out,
                        struct gpu_prepared_sizes *sizes)
{
    const struct fcc_comm *comm = p->comm;
    uint64_t words =
        comm->accelerator->memory + offsetof(struct fcc_session_memory, bindings) + p->place * sizeof(struct fcc_binding);
    int status = 0;

    *out = (struct gpu_prepared_memory){.begun = words + offsetof(struct fcc_binding, begun),
                                        .ended = words + offsetof(struct fcc_binding, ended),
                                        .failed = words + offsetof(struct fcc_binding, until),
                                        .clash = words + offsetof(struct fcc_binding, clash)};
    if (!buffers)
        places_fill(comm, &out->places);
    for (int i = 0; buffers && i < GPU_PREPARED_INPUTS; i++)
        out->inputs[i] = buffer_address(buffers->inputs[i]);
    for (int r = 0; r < comm->nranks && !status; r++) {
        status = prepared_memory_map(comm, p->number, FCC_PREPARED_AREA, r, &p->areas[r]);
        if (!status && r != comm->rank && p->needs_results)
            status = prepared_memory_map(comm, p->number, FCC_PREPARED_RESULT, r, &p->results[r]);
        sizes->areas[r] = p->areas[r].bytes;
        sizes->results[r] = r != comm->rank ? p->results[r].bytes
                            : buffers       ? (buffers->result ? buffers->result->bytes : 0)
                                            : UINT64_MAX;
        if (!status && r != comm->rank && p->needs_inputs)
            status = prepared_memory_map(comm, p->number, FCC_PREPARED_INPUT, r, &p->ins[r]);
        sizes->ins[r] = r != comm->rank ? p->ins[r].bytes : buffers && buffers->inputs[0] ? buffers->inputs[0]->bytes : 0;
        out->ins[r] = r != comm->rank ? p->ins[r].address : out->inputs[0];
        out->areas[r] = p->areas[r].address;
        out->results[r] = r != comm->rank ? p->results[r].address : buffers ? buffer_address(buffers->result) : 0;
    }
    return status;
}

static int prepared_open(struct fcc_prepared *p, const struct prepared_wanted *wanted, const struct prepared_buffers *buffers)
{
    const struct accelerator *a = p->comm->accelerator;
    struct prepared_plan plan = {.plan = NULL};
    struct gpu_prepared_sizes sizes = {.areas = {0}};
    struct prepared_step_parts parts = {.numbers = NULL};
    struct gpu_prepared_memory memory;
    struct error e = {.status = 0};
    int before = 0, status = prepared_plan_get(p->comm, p->number, wanted, &plan);

    if (status)
        return status;
    p->functions = plan.functions;
    p->needs_results = plan.plan->shares_result;
    p->needs_inputs = plan.plan->reads_inputs;
    p->level = plan.plan->shape.exchange == EXCHANGE_RINGS ? (uint32_t)plan.plan->shape.n : 0;
    p->has_library = p->level != 0;
    status = memories_map(p, buffers, &memory, &sizes);
    if (!status)
        status = prepared_sizes_check(p->comm, &plan, &sizes);
    if (!status && wanted->step)
        status = prepared_step_get(p, plan.plan, wanted->step, &sizes, &parts);
    memory.numbers = parts.numbers;
    memory.nnumbers = parts.nnumbers;
    memory.image = parts.image;
    memory.image_bytes = parts.image_bytes;
    if (!status)
        status = accelerator_enter(a, &before);
    if (!status) {
        (void)pthread_mutex_lock(&prepared_plugin_lock);
        if (p->functions->open(a->ordinal, plan.plan, plan.bytes, &memory, &p->gpu, &e))
            status = last_error_set(e.status, "rank %d: prepare: %s", p->comm->rank, e.text);
        (void)pthread_mutex_unlock(&prepared_plugin_lock);
        accelerator_leave(a, before);
    }
    prepared_step_free(&parts);
    free(plan.plan);
    return status;
}

/* Ask the worker, with all other ranks: values[0] and values[1] are set. */
static int prepare_submit(struct fcc_comm *comm, struct fcc_submit *msg, size_t length, int64_t *recv_rows, int64_t values[2])
{
    fcc_request *request = NULL;
    int status;

    msg->prepare = FCC_PREPARE_ONLY;
    status = comm_submit(comm, msg, length, NULL, &request);
    if (status)
        return status;
    status = fcc_request_wait(request, -1);
    if (!status && request->result.nvalues < 2)
        status = last_error_set(-EPROTO, "prepare: the worker completed it with %u values", request->result.nvalues);
    if (!status)
        memcpy(values, request->result.values, 2 * sizeof(values[0]));
    if (!status && recv_rows && request->result.nvalues == 2 + (uint32_t)comm->nranks)
        memcpy(recv_rows, request->result.values + 2, (size_t)comm->nranks * sizeof(recv_rows[0]));
    fcc_request_free(request);
    if (!status && (values[0] < 1 || values[0] > UINT32_MAX || values[1] < 0 || values[1] >= FCC_PREPARED_MAX))
        status =
            last_error_set(-EPROTO, "prepare: the worker gave it number %lld and place %lld: allowed are 1 to %u and 0 to %d",
                           (long long)values[0], (long long)values[1], UINT32_MAX, FCC_PREPARED_MAX - 1);
    return status;
}

static struct fcc_prepared *prepared_new(struct fcc_comm *comm, int64_t number, int64_t place)
{
    struct fcc_prepared *p = calloc(1, sizeof(*p));

    if (!p)
        return NULL;
    p->comm = comm;
    p->number = (uint32_t)number;
    p->place = (uint32_t)place;
    p->words = &comm->context->memory->bindings[place];
    (void)pthread_mutex_init(&p->lock, NULL);
    return p;
}

/* Open the operator by the worker's answer. 0: *out is p, and the context owns it. Otherwise p has been freed. */
static int prepared_begin(struct fcc_prepared *p, const struct prepared_wanted *wanted, const struct prepared_buffers *buffers,
                          struct fcc_prepared **out)
{
    struct fcc_context *c = p->comm->context;
    struct error why;
    int status = prepared_open(p, wanted, buffers);

    if (status) {
        (void)error_set(&why, status, "%s", fcc_last_error());
        prepared_tell_freed(p);
        prepared_end(p);
        return last_error_set(status, "%s", why.text);
    }
    (void)pthread_mutex_lock(&c->prepared_lock);
    LIST_INSERT_HEAD(&c->prepared, p, link);
    (void)pthread_mutex_unlock(&c->prepared_lock);
    (void)pthread_mutex_lock(&c->lock);
    c->waits_unseen = true;
    (void)pthread_mutex_unlock(&c->lock);
    *out = p;
    return 0;
}

struct fcc_prepared *prepared_adopt(struct fcc_comm *comm, uint32_t number, uint32_t place,
                                    const struct prepared_wanted *wanted)
{
    struct fcc_prepared *p = prepared_new(comm, number, place), *out = NULL;

    if (!p) {
        prepared_tell_freed(&(struct fcc_prepared){.comm = comm, .number = number});
        return NULL;
    }
    p->repeated = true;
    p->runs = (uint32_t)atomic_load_explicit(&p->words->ended, memory_order_relaxed);
    if (!prepared_begin(p, wanted, NULL, &out))
        atomic_store_explicit(&p->words->adopted, 1, memory_order_release);
    return out;
}

int comm_prepare_begin(struct fcc_comm *comm, struct fcc_submit *msg, size_t length, int64_t *recv_rows,
                       const struct prepared_buffers *buffers, struct prepare_begun *out)
{
    struct fcc_prepared *p = prepared_new(comm, 0, 0); /* before anybody has been asked */
    int64_t values[2] = {0};
    int status;

    *out = (struct prepare_begun){.op = msg->op, .ntensors = msg->ntensors};
    if (!p)
        return comm_refuse(comm, msg->op | OP_PREPARED, -ENOMEM, "out of memory", true);
    graphs_look();
    status = prepare_submit(comm, msg, length, recv_rows, values);
    if (status) {
        prepared_end(p);
        return status;
    }
    memcpy(out->tensors, msg + 1, msg->ntensors * sizeof(out->tensors[0]));
    p->number = (uint32_t)values[0];
    p->place = (uint32_t)values[1];
    p->buffers = *buffers;
    p->words = &comm->context->memory->bindings[p->place];
    out->prepared = p;
    return 0;
}

void comm_prepare_drop(struct prepare_begun *begun)
{
    struct error why = {.status = 0};

    if (!begun->prepared)
        return;
    (void)error_set(&why, -EIO, "%s", fcc_last_error()); /* which stays */
    prepared_tell_freed(begun->prepared);
    prepared_end(begun->prepared);
    begun->prepared = NULL;
    (void)last_error_set(why.status, "%s", why.text);
}

int comm_prepare_end(struct prepare_begun *begun, const struct op_args *step, fcc_prepared **out)
{
    struct fcc_prepared *p = begun->prepared;
    struct fcc_comm *comm = p->comm;
    const unsigned called = begun->op | OP_PREPARED;
    struct error why = {.status = 0};
    int status, opened; /* opened: 0, or why not */

    begun->prepared = NULL;
    opened = prepared_begin(
        p, &(struct prepared_wanted){.op = begun->op, .ntensors = begun->ntensors, .tensors = begun->tensors, .step = step},
        &p->buffers, &p);
    if (opened)
        (void)error_set(&why, opened, "%s", fcc_last_error());
    /* All ranks have it from the worker. Agree with them that it was opened in every process, since no rank may keep an operator
     * that another one cannot run. */
    status = opened ? comm_refuse(comm, called, opened, why.text, true) : comm_meet(comm);
    if (status && !opened) {
        (void)error_set(&why, status, "%s", fcc_last_error());
        fcc_prepared_free(p);
        return last_error_set(status, "%s", why.text);
    }
    if (!status)
        *out = opened ? NULL : p;
    return status;
}

int comm_prepare(struct fcc_comm *comm, struct fcc_submit *msg, size_t length, int64_t *recv_rows,
                 const struct prepared_buffers *buffers, fcc_prepared **out)
{
    struct prepare_begun begun;
    const int status = comm_prepare_begin(comm, msg, length, recv_rows, buffers, &begun);

    return status || !begun.prepared ? status : comm_prepare_end(&begun, NULL, out);
}
