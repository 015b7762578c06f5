/* SPDX-License-Identifier: MIT
 *
 * bound.c - operators that this process launches itself: kernels/gpu/bound.h says how they work, and why nobody waits for ever;
 * bound_plan.c gets what the worker has made.
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

/* The plug-in is the process's: whatever the context, one thread at a time opens and closes operators. */
static pthread_mutex_t plugin_lock = PTHREAD_MUTEX_INITIALIZER;

void prepared_forked(void)
{
    (void)pthread_mutex_init(&plugin_lock, NULL);
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
        (void)pthread_mutex_lock(&plugin_lock);
        p->functions->close(p->gpu);
        (void)pthread_mutex_unlock(&plugin_lock);
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

/* The program does not use the operator any more. Graphs may still replay its runs, which are over then. */
static void prepared_end(struct fcc_prepared *p)
{
    if (p->is_captured) {
        kernels_end(p);
        if (graphs_hold(p->comm->graphs, prepared_dispose, p))
            return;
    }
    prepared_dispose(p, p->comm->accelerator);
}

static void prepared_tell_freed(const struct fcc_prepared *p)
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

/* ---- preparing ---- */

void prepared_load(const struct fcc_comm *comm)
{
    const struct accelerator *a = comm->accelerator;
    const struct gpu_prepared_functions *functions;
    struct error ignored = {.status = 0};
    int before = 0;

    if (prepared_functions_load(comm, "another", &functions) || accelerator_enter(a, &before))
        return;
    (void)pthread_mutex_lock(&plugin_lock);
    (void)functions->load(a->ordinal, &ignored);
    (void)pthread_mutex_unlock(&plugin_lock);
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
        (void)pthread_mutex_lock(&plugin_lock);
        if (p->functions->open(a->ordinal, plan.plan, plan.bytes, &memory, &p->gpu, &e))
            status = last_error_set(e.status, "rank %d: prepare: %s", p->comm->rank, e.text);
        (void)pthread_mutex_unlock(&plugin_lock);
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
