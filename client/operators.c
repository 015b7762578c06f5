/* SPDX-License-Identifier: MIT
 *
 * operators.c - the operators' functions: who launches a call, this process or the worker, which gets it as a message (submission.c).
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/core/epilogue.h"
#include "client/core/request.h"
#include "client/stream/bound.h"
#include "client/stream/counts.h"
#include "client/stream/rings.h"
#include "client/stream/stream.h"
#include "client/submission.h"
#include "kernels/plan/compute/step.h"
#include "kernels/plan/plan.h"
#include "kernels/plan/spec.h"

size_t fcc_dtype_size(enum fcc_dtype dtype)
{
    return dtype_size(dtype);
}

/* How an operator is called. It is waited for if `out` is NULL and it is not enqueued. */
struct manner {
    bool enqueue, start; /* start: `out` must not be NULL */
    void *stream;
    fcc_request **out;
    const struct fcc_epilogue *epilogue; /* NULL: none */
    bool prepare;                        /* the operator is prepared, not called */
    fcc_prepared **prepared;
    const struct operator_step *step; /* prepared: it is a program's step, and is begun. NULL: another operator */
    struct prepare_begun *begun;
};

static int operator_refuse(fcc_comm *comm, const struct op_spec *op, int status, const char *text, const struct manner *how)
{
    return comm_refuse(comm, op->number | (how->prepare ? OP_PREPARED : 0), status, text, !how->enqueue && !how->start);
}

static int submission_prepare(struct submission *s, int64_t *values, const struct manner *how)
{
    struct prepared_buffers buffers = {.result = NULL};
    int inputs = 0;

    if (how->step) {
        buffers.inputs[0] = submission_arg(s, STEP_IN)->buffer;
        buffers.result = submission_arg(s, STEP_OUT)->buffer;
        memcpy(buffers.others, how->step->buffers, sizeof(buffers.others));
        return comm_prepare_begin(s->comm, s->msg, s->length, values, &buffers, how->begun);
    }
    for (int i = 0; i < s->op->ntensors; i++) {
        if (i == s->op->result)
            buffers.result = submission_arg(s, i)->buffer;
        else
            buffers.inputs[inputs++] = submission_arg(s, i)->buffer;
    }
    return comm_prepare(s->comm, s->msg, s->length, values, &buffers, how->prepared);
}

/* Submits the finished message, or refuses the operator with the first error. `values`: where the values of the completion
 * go. */
static int submission_end(struct submission *s, int64_t *values, const struct manner *how)
{
    int status;

    if (s->length > FCC_MSG_MAX)
        submission_fail(s, -EINVAL, "request: %zu bytes: allowed are at most %u", s->length, FCC_MSG_MAX);
    if (how->enqueue && !how->out && values)
        submission_fail(s, -EINVAL, "%s: not NULL: allowed only with a request, which says when they are there",
                        s->op->values_name);
    if (s->error.status)
        status = operator_refuse(s->comm, s->op, s->error.status, s->error.text, how);
    else if (how->prepare)
        status = submission_prepare(s, values, how);
    else if (how->enqueue)
        status = comm_enqueue(s->comm, s->msg, s->length, s->places, values, how->stream, how->out);
    else
        status = comm_submit(s->comm, s->msg, s->length, values, how->out);
    free(s->msg);
    return status;
}

/* ---- the operators: all are called alike ---- */

/* A collective or a product on a stream: whether this process launches it, and then *status. What fccd launches needs buffers. A product
 * in buffers is left to fccd unless the communicator has rings. */
static bool op_launch(fcc_comm *comm, const struct op_spec *op, const void *args, const struct manner *how, int *status)
{
    const bool product = op_is_run_as_product(op, how->epilogue);
    const char *needed = rings_needed(comm, op, args, how->epilogue);
    struct error why = {.status = 0};

    if (!how->enqueue || how->out || !comm->accelerator || comm->context->no_ring) {
        if (!needed)
            return false;
        (void)error_set(
            &why, -EOPNOTSUPP,
            "%s: allowed only where this process launches the operator: on a stream of a CUDA GPU, without a request", needed);
        *status = operator_refuse(comm, op, -EOPNOTSUPP, why.text, how);
        return true;
    }
    if (op_is_in_pieces(op) && !pieces_suit(op, args, how->epilogue)) {
        if (needed)
            *status = operator_refuse(comm, op, -EOPNOTSUPP,
                                      "FCC_ADDRESS: allowed without an epilogue, factors in e4m3 and batch invariance", how);
        return needed;
    }
    if (product && !product_has_rings(op, args, needed != NULL)) {
        if (needed)
            *status = operator_refuse(comm, op, -EOPNOTSUPP,
                                      op->compute == COMPUTE_GEMV || op_is_in_pieces(op)
                                          ? "schedule: allowed with FCC_ADDRESS are auto, fused and sequential"
                                          : "schedule: allowed with FCC_ADDRESS are auto and fused",
                                      how);
        return needed;
    }
    if (op_is_product(op) && !needed && (!rings_run_products(comm) || !product_prefers_rings(comm, op, how->stream)))
        return false;
    int launches = rings_get(comm, &why);
    if (launches == 1 && product && !rings_run_products(comm)) {
        (void)error_set(&why, -EOPNOTSUPP, "FCC_ADDRESS: the plug-in for these GPUs runs no products");
        launches = 0;
    }
    if (launches == 1 && op_is_in_pieces(op) && !rings_run_pieces(comm)) {
        (void)error_set(&why, -EOPNOTSUPP, "FCC_ADDRESS: allowed where all ranks can load cuBLAS");
        launches = 0;
    }
    if (launches == 1)
        *status = op_is_in_pieces(op) ? pieces_enqueue(comm, op, args, how->stream)
                  : product           ? product_enqueue(comm, op, args, how->epilogue, how->stream)
                                      : rings_enqueue(comm, op, args, how->stream);
    else if (launches < 0)
        *status = launches;
    else if (needed)
        *status = operator_refuse(comm, op, -EOPNOTSUPP, why.text, how);
    return launches != 0 || needed;
}

/* The worker launches the operator. */
static int op_submit(fcc_comm *comm, const struct op_spec *op, const void *args, const struct manner *how)
{
    struct submission s;
    int64_t *values = NULL;

    submission_begin(&s, comm, op, args, how->epilogue);
    if (args)
        submission_pack(&s);
    if (args && op->values_at)
        values = *(int64_t *const *)(const void *)(s.args + op->values_at);
    return submission_end(&s, values, how);
}

/* With counts in memory that this thread can read. */
static int op_submit_counted(fcc_comm *comm, const struct op_spec *op, const void *args, const struct manner *how)
{
    struct counts_read *read = malloc(sizeof(*read));
    struct error why = {.status = -ENOMEM, .text = "out of memory"};
    int status = -ENOMEM;

    if (read) {
        why.status = 0;
        status = device_counts_read(op, args, comm->nranks, read, &why);
    }
    status = status ? operator_refuse(comm, op, status, why.text, how) : op_submit(comm, op, read->args.bytes, how);
    free(read);
    return status;
}

static int op_call(fcc_comm *comm, enum fcc_op number, const void *args, const struct manner *how)
{
    const struct op_spec *op = op_spec(number);
    int status = comm_check(comm);

    if (status)
        return status;
    if (op->args_bytes && !args)
        return operator_refuse(comm, op, -EINVAL, "args: NULL: not allowed", how);
    if ((how->start && !how->out) || (how->prepare && !how->prepared && !how->begun))
        return operator_refuse(comm, op, -EINVAL, "out: NULL: not allowed", how);
    if (op_has_rings(op) && op_launch(comm, op, args, how, &status))
        return status;
    if (device_counts_given(op, args))
        return op_submit_counted(comm, op, args, how);
    return op_submit(comm, op, args, how);
}

int operator_call(fcc_comm *comm, enum fcc_op op, const void *args)
{
    return op_call(comm, op, args, &(struct manner){.out = NULL});
}

int operator_prepare_step(fcc_comm *comm, const void *args, const struct operator_step *step, struct prepare_begun *out)
{
    return op_call(comm, FCC_PROGRAM_STEP, args, &(struct manner){.prepare = true, .begun = out, .step = step});
}

int operator_refuse_step(fcc_comm *comm, int status, const char *text)
{
    return operator_refuse(comm, op_spec(FCC_PROGRAM_STEP), status, text, &(struct manner){.prepare = true});
}

int operator_refuse_all(fcc_comm *comm, enum fcc_op op, int status, const char *text)
{
    return operator_refuse(comm, op_spec(op), status, text, &(struct manner){.out = NULL});
}

int fcc_collectives_prepare(fcc_comm *comm)
{
    struct error why = {.status = 0};
    int status = comm_check(comm), launches;

    if (status)
        return status;
    if (!comm->accelerator)
        return last_error_set(-EOPNOTSUPP, "rank %d: collectives: the rank is on a cpu device: allowed on CUDA GPUs",
                              comm->rank);
    launches = rings_get(comm, &why);
    if (launches != 1)
        return launches ? launches : last_error_set(why.status, "%s", why.text);
    status = status_of(comm);
    return status ? prepared_over_explain(comm, status, "fcc_collectives_prepare") : 0;
}

int fcc_products_prepare(fcc_comm *comm)
{
    int status = fcc_collectives_prepare(comm);

    if (status || rings_run_pieces(comm))
        return status;
    return last_error_set(-EOPNOTSUPP, "rank %d: products: allowed where all ranks can load cuBLAS", comm->rank);
}

/* Notes the first error and its text. */
static void error_note(struct error *first, int status)
{
    if (status && !first->status)
        (void)error_set(first, status, "%s", fcc_last_error());
}

static int ops_check(const struct fcc_comm *comm, const void *args, int n)
{
    int status = comm_check(comm);

    if (!status && (n < 0 || (n > 0 && !args)))
        status = last_error_set(-EINVAL, n < 0 ? "n: %d: allowed are 0 and more" : "args: NULL: not allowed with n %d", n);
    return status;
}

/* n operators that follow each other: `args` has their arguments. Returns when all have finished, with the first error. */
static int ops_call(fcc_comm *comm, enum fcc_op number, const void *args, int n)
{
    const struct op_spec *op = op_spec(number);
    struct error first = {.status = 0};
    int status = ops_check(comm, args, n);

    if (status)
        return status;
    fcc_request **requests = calloc((size_t)n + 1, sizeof(fcc_request *));
    if (!requests)
        return last_error_set(-ENOMEM, "out of memory");
    for (int i = 0; i < n; i++) {
        const struct manner how = {.start = true, .out = &requests[i]};
        error_note(&first, op_call(comm, number, (const unsigned char *)args + (size_t)i * op->args_bytes, &how));
    }
    for (int i = 0; i < n; i++) {
        if (requests[i])
            error_note(&first, fcc_request_wait(requests[i], -1));
        fcc_request_free(requests[i]);
    }
    free(requests);
    return first.status ? last_error_set(first.status, "%s", first.text) : 0;
}

/* The same on a stream, as a group: without a wait of the stream, or the host, between two of them. An error keeps none of the others from
 * taking its place, as the other ranks' operators have theirs. */
static int ops_enqueue(fcc_comm *comm, enum fcc_op number, const void *args, int n, void *stream)
{
    const struct manner how = {.enqueue = true, .stream = stream};
    const struct op_spec *op = op_spec(number);
    struct error first = {.status = 0};
    int status = ops_check(comm, args, n);

    if (status)
        return status;
    fcc_group_begin();
    for (int i = 0; i < n; i++)
        error_note(&first, op_call(comm, number, (const unsigned char *)args + (size_t)i * op->args_bytes, &how));
    error_note(&first, fcc_group_end());
    return first.status ? last_error_set(first.status, "%s", first.text) : 0;
}

/* ---- the functions ---- */

/* Defines fcc_NAME(), fcc_NAME_start(), fcc_NAME_enqueue(); for operators that can be prepared fcc_NAME_prepare(); and for those
 * that may have an epilogue fcc_NAME_epilogue(), fcc_NAME_epilogue_start() and fcc_NAME_epilogue_enqueue(). */
#define CALL(function, parameters, NAME, ARGS, ...)                                                                            \
    int function parameters                                                                                                    \
    {                                                                                                                          \
        return op_call(comm, FCC_OP_##NAME, ARGS, &(struct manner){__VA_ARGS__});                                              \
    }
#define PREPARE_NEVER(NAME, name)
#define PREPARE_REPEATED(NAME, name)
#define PREPARE_PREPARED(NAME, name)                                                                                           \
    CALL(fcc_##name##_prepare, (fcc_comm * comm, const struct fcc_##name##_args *args, fcc_prepared **out), NAME, args,        \
         .prepare = true, .prepared = out)
#define PREPARE_BARE_PREPARED(NAME, name)                                                                                      \
    CALL(fcc_##name##_prepare, (fcc_comm * comm, fcc_prepared * *out), NAME, NULL, .prepare = true, .prepared = out)
#define EPILOGUE_PLAIN(NAME, name)
#define EPILOGUE_EPILOGUE(NAME, name)                                                                                          \
    CALL(fcc_##name##_epilogue, (fcc_comm * comm, const struct fcc_##name##_args *args, const struct fcc_epilogue *epilogue),  \
         NAME, args, .epilogue = epilogue)                                                                                     \
    CALL(fcc_##name##_epilogue_start,                                                                                          \
         (fcc_comm * comm, const struct fcc_##name##_args *args, const struct fcc_epilogue *epilogue, fcc_request **out),      \
         NAME, args, .epilogue = epilogue, .start = true, .out = out)                                                          \
    CALL(fcc_##name##_epilogue_enqueue,                                                                                        \
         (fcc_comm * comm, const struct fcc_##name##_args *args, const struct fcc_epilogue *epilogue, void *stream,            \
          fcc_request **out),                                                                                                  \
         NAME, args, .epilogue = epilogue, .enqueue = true, .stream = stream, .out = out)
#define MANY_BAG(NAME, name)
#define MANY_GEMV(NAME, name)
#define MANY_GEMM(NAME, name)
#define MANY_VECTOR(NAME, name)                                                                                                \
    int fcc_##name##_many(fcc_comm *comm, const struct fcc_##name##_args args[], int n)                                        \
    {                                                                                                                          \
        return ops_call(comm, FCC_OP_##NAME, args, n);                                                                         \
    }                                                                                                                          \
    int fcc_##name##_many_enqueue(fcc_comm *comm, const struct fcc_##name##_args args[], int n, void *stream)                  \
    {                                                                                                                          \
        return ops_enqueue(comm, FCC_OP_##NAME, args, n, stream);                                                              \
    }
#define OPERATOR(NAME, name, compute, exchange, bind, epilogue, tensors, attributes, values)                                   \
    CALL(fcc_##name, (fcc_comm * comm, const struct fcc_##name##_args *args), NAME, args, .out = NULL)                         \
    CALL(fcc_##name##_start, (fcc_comm * comm, const struct fcc_##name##_args *args, fcc_request **out), NAME, args,           \
         .start = true, .out = out)                                                                                            \
    CALL(fcc_##name##_enqueue, (fcc_comm * comm, const struct fcc_##name##_args *args, void *stream, fcc_request **out), NAME, \
         args, .enqueue = true, .stream = stream, .out = out)                                                                  \
    PREPARE_##bind(NAME, name) EPILOGUE_##epilogue(NAME, name) MANY_##compute(NAME, name)
#define OPERATOR_BARE(NAME, name, compute, exchange, bind)                                                                     \
    CALL(fcc_##name, (fcc_comm * comm), NAME, NULL, .out = NULL)                                                               \
    CALL(fcc_##name##_start, (fcc_comm * comm, fcc_request * *out), NAME, NULL, .start = true, .out = out)                     \
    CALL(fcc_##name##_enqueue, (fcc_comm * comm, void *stream, fcc_request **out), NAME, NULL, .enqueue = true,                \
         .stream = stream, .out = out)                                                                                         \
    PREPARE_BARE_##bind(NAME, name)
#define OPERATOR_INSIDE(NAME, name, compute, exchange)
#define OPERATOR_STEP(NAME, name, compute, exchange)
#include "kernels/plan/operators.def"
