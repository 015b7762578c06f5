/* SPDX-License-Identifier: MIT
 *
 * operators.c - packs a typed call into a SUBMIT message, by the operator's row (kernels/plan/operators.def).
 *
 * This file checks only what a message cannot express: NULL pointers, buffers of other connections, numbers that do not fit
 * their fields. The daemon checks everything else. It reports each error to all ranks, those found here included (refusal.c).
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/core/epilogue.h"
#include "client/core/request.h"
#include "client/memory/buffer.h"
#include "client/stream/bound.h"
#include "client/stream/counts.h"
#include "client/stream/rings.h"
#include "client/stream/stream.h"
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
};

/* ---- a SUBMIT message under construction: the first failure is kept, later calls do nothing ---- */

struct submission {
    struct fcc_comm *comm;
    const struct op_spec *op;
    const unsigned char *args;           /* the public struct; NULL: the operator takes none */
    const struct fcc_epilogue *epilogue; /* NULL: none */
    struct fcc_submit *msg;              /* malloc'ed, `room` bytes; NULL: out of memory */
    size_t room, length;
    struct error error;                          /* the reason for refusing the operator */
    struct tensor_place places[FCC_MAX_TENSORS]; /* of the tensors */
};

static void submission_fail(struct submission *s, int status, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void submission_fail(struct submission *s, int status, const char *format, ...)
{
    va_list ap;

    if (s->error.status)
        return;
    s->error.status = status;
    va_start(ap, format);
    (void)vsnprintf(s->error.text, sizeof(s->error.text), format, ap);
    va_end(ap);
}

/* The numbers of an attribute; NULL: the attribute is absent. *count is 0 for a list that attr_check() refuses. `room`
 * holds a single number. */
static const int64_t *attr_values(const struct submission *s, const struct attr_spec *a, int64_t *room, size_t *count)
{
    const unsigned char *at = s->args + a->at;
    const int64_t *values = room;
    int32_t n;

    *count = 1;
    if (a->kind == ATTR_NUMBER) {
        *room = a->bytes == sizeof(int64_t) ? *(const int64_t *)(const void *)at : *(const int32_t *)(const void *)at;
        return values;
    }
    values = *(const int64_t *const *)(const void *)at;
    *count = (size_t)s->comm->nranks;
    if (a->kind == ATTR_RANKS)
        return values;
    n = *(const int32_t *)(const void *)(s->args + a->count_at);
    *count = values && n > 0 && n <= a->count_most ? (size_t)n : 0;
    return values ? values : room;
}

static void attr_check(struct submission *s, const struct attr_spec *a)
{
    int32_t n;

    if (a->kind != ATTR_LIST)
        return;
    n = *(const int32_t *)(const void *)(s->args + a->count_at);
    if (n < 0 || n > a->count_most)
        submission_fail(s, -EINVAL, "%s: %d: allowed are 0 to %d", a->count_name, n, a->count_most);
    else if (n && !*(const int64_t *const *)(const void *)(s->args + a->at))
        submission_fail(s, -EINVAL, "%s: NULL: allowed only if %s is 0", a->name, a->count_name);
}

/* Allocates a message with room for all tensors and attributes of the operator. */
static void submission_begin(struct submission *s, fcc_comm *comm, const struct op_spec *op, const void *args,
                             const struct fcc_epilogue *epilogue)
{
    int64_t number;
    size_t count;

    s->comm = comm;
    s->op = op;
    s->args = args;
    s->epilogue = epilogue;
    s->length = sizeof(*s->msg);
    s->room = sizeof(*s->msg) + (size_t)(op->ntensors + epilogue_tensors(epilogue)) * sizeof(struct fcc_wire_tensor) +
              (epilogue ? EPILOGUE_ATTR_WORDS * sizeof(int64_t) : 0);
    for (int i = 0; i < op->nattrs; i++)
        if (attr_values(s, &op->attrs[i], &number, &count))
            s->room += (1 + count) * sizeof(int64_t);
    s->error.status = 0; /* the text is not cleared: that costs time, and errors are rare */
    memset(s->places, 0, sizeof(s->places));
    s->msg = malloc(s->room);
    if (s->msg)
        *s->msg = (struct fcc_submit){.op = op->number};
    else
        submission_fail(s, -ENOMEM, "out of memory");
}

static void submission_options(struct submission *s, uint32_t schedule, const uint32_t reserved[7])
{
    if (s->error.status)
        return;
    if (schedule > UINT8_MAX)
        submission_fail(s, -EINVAL, "schedule: %u: allowed are %d to %d, and flat (%d) or hierarchical (%d) with it", schedule,
                        FCC_SCHEDULE_AUTO, FCC_SCHEDULE_COMM_ONLY, FCC_SCHEDULE_FLAT, FCC_SCHEDULE_HIERARCHICAL);
    for (int i = 0; i < 7; i++)
        if (reserved[i])
            submission_fail(s, -EINVAL, "reserved[%d]: %u: must be 0", i, reserved[i]);
    s->msg->schedule = (uint8_t)schedule;
}

static void *submission_extend(struct submission *s, size_t bytes)
{
    unsigned char *at = (unsigned char *)s->msg + s->length;

    assert(s->length + bytes <= s->room);
    s->length += bytes;
    return at;
}

/* Fills in the strides of a dense tensor. If it is larger than any buffer, so are its strides, and the daemon refuses it. */
static void strides_dense(struct fcc_wire_tensor *w)
{
    int64_t stride = 1;

    for (unsigned i = w->ndim; i-- > 0;) {
        w->stride[i] = stride;
        if (__builtin_mul_overflow(stride, w->shape[i], &stride))
            stride = INT64_MAX;
    }
}

static void submission_tensor(struct submission *s, const char *name, const struct fcc_tensor *t)
{
    struct fcc_wire_tensor w = {.offset = t->offset};
    struct tensor_place *place;
    bool dense = true;

    if (s->error.status)
        return;
    place = &s->places[s->msg->ntensors++];
    if (!t->buffer) {
        memset(submission_extend(s, sizeof(w)), 0, sizeof(w));
        return;
    }
    (void)pthread_mutex_lock(&s->comm->context->lock);
    w.buffer = buffer_handle(s->comm->context, t->buffer, place);
    (void)pthread_mutex_unlock(&s->comm->context->lock);
    place->address += t->offset;
    place->room = t->offset < place->room ? place->room - t->offset : 0;
    if (!w.buffer) /* another connection's buffer, or freed: sends an invalid handle, so that all ranks get the error */
        w.buffer = UINT32_MAX;
    if (t->dtype > UINT16_MAX)
        submission_fail(s, -EINVAL, "%s: dtype %u: allowed are %d to %d", name, t->dtype, FCC_F32, FCC_F8E5M2);
    if (t->ndim > FCC_MAX_DIMS)
        submission_fail(s, -EINVAL, "%s: %u dimensions: allowed are 1 to %d", name, t->ndim, FCC_MAX_DIMS);
    w.dtype = (uint16_t)t->dtype;
    w.ndim = (uint16_t)t->ndim;
    for (unsigned i = 0; !s->error.status && i < t->ndim; i++) {
        w.shape[i] = t->shape[i];
        w.stride[i] = t->stride[i];
        dense = dense && t->stride[i] == 0;
    }
    if (!s->error.status && dense)
        strides_dense(&w);
    if (!s->error.status)
        memcpy(submission_extend(s, sizeof(w)), &w, sizeof(w));
}

static void submission_attr(struct submission *s, const struct attr_spec *a)
{
    int64_t number, *words;
    size_t count;
    const int64_t *values = attr_values(s, a, &number, &count);

    if (s->error.status || !values)
        return;
    words = submission_extend(s, (1 + count) * sizeof(*words));
    words[0] = (int64_t)((uint64_t)a->key << 32 | count);
    if (count)
        memcpy(words + 1, values, count * sizeof(*words));
    if (a->kind == ATTR_RANKS)
        op_counts_in_elements(words + 1, count, op_row_elements(s->op, s->args));
    s->msg->nattrs += (uint32_t)(1 + count);
}

static void submission_epilogue_attr(struct submission *s)
{
    int64_t words[EPILOGUE_ATTR_WORDS];
    size_t n = epilogue_attr(s->epilogue, words);
    struct error why = {.status = 0};

    if (epilogue_reserved_check(s->epilogue, &why))
        submission_fail(s, why.status, "%s", why.text);
    if (s->error.status || !n)
        return;
    memcpy(submission_extend(s, n * sizeof(words[0])), words, n * sizeof(words[0]));
    s->msg->nattrs += (uint32_t)n;
}

static const struct fcc_tensor *arg_tensor(const struct submission *s, int i)
{
    return (const struct fcc_tensor *)(const void *)(s->args + s->op->tensors[i].at);
}

/* Packs the arguments, in the order of the wire. */
static void submission_pack(struct submission *s)
{
    const struct op_spec *op = s->op;
    const uint32_t *options = (const uint32_t *)(const void *)(s->args + op->schedule_at);

    for (int i = 0; i < op->nattrs; i++)
        attr_check(s, &op->attrs[i]);
    submission_options(s, options[0], options + 1);
    for (int i = 0; i < op->ntensors; i++)
        submission_tensor(s, op->tensors[i].name, arg_tensor(s, i));
    for (int i = 0; i < epilogue_tensors(s->epilogue); i++)
        submission_tensor(s, epilogue_specs[i].name, epilogue_arg(s->epilogue, i));
    for (int i = 0; i < op->nattrs; i++)
        submission_attr(s, &op->attrs[i]);
    submission_epilogue_attr(s);
}

static int operator_refuse(fcc_comm *comm, const struct op_spec *op, int status, const char *text, const struct manner *how)
{
    return comm_refuse(comm, op->number | (how->prepare ? OP_PREPARED : 0), status, text, !how->enqueue && !how->start);
}

static int submission_prepare(struct submission *s, int64_t *values, fcc_prepared **out)
{
    struct prepared_buffers buffers = {.result = NULL};
    int inputs = 0;

    for (int i = 0; i < s->op->ntensors; i++) {
        if (i == s->op->result)
            buffers.result = arg_tensor(s, i)->buffer;
        else
            buffers.inputs[inputs++] = arg_tensor(s, i)->buffer;
    }
    return comm_prepare(s->comm, s->msg, s->length, values, &buffers, out);
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
        status = submission_prepare(s, values, how->prepared);
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
    const bool product = op_is_product(op), plain = product || !epilogue_does(how->epilogue);
    const char *needed = rings_needed(comm, op, args, how->epilogue);
    struct error why = {.status = 0};

    if (!how->enqueue || how->out || !comm->accelerator || comm->context->no_ring || !plain) {
        if (!needed)
            return false;
        (void)error_set(
            &why, -EOPNOTSUPP,
            "%s: allowed only where this process launches the operator: on a stream of a CUDA GPU, without a request%s", needed,
            plain ? "" : ", and without an epilogue");
        *status = operator_refuse(comm, op, -EOPNOTSUPP, why.text, how);
        return true;
    }
    if (product && !product_has_rings(op, args)) {
        if (needed)
            *status = operator_refuse(comm, op, -EOPNOTSUPP, "schedule: allowed with FCC_ADDRESS are auto and fused", how);
        return needed;
    }
    if (product && !needed && (!rings_run_products(comm) || !product_prefers_rings(comm, op, how->stream)))
        return false;
    int launches = rings_get(comm, &why);
    if (launches == 1 && product && !rings_run_products(comm)) {
        (void)error_set(&why, -EOPNOTSUPP, "FCC_ADDRESS: the plug-in for these GPUs runs no products");
        launches = 0;
    }
    if (launches == 1)
        *status =
            product ? product_enqueue(comm, op, args, how->epilogue, how->stream) : rings_enqueue(comm, op, args, how->stream);
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
    if ((how->start && !how->out) || (how->prepare && !how->prepared))
        return operator_refuse(comm, op, -EINVAL, "out: NULL: not allowed", how);
    if (op_has_rings(op) && op_launch(comm, op, args, how, &status))
        return status;
    if (device_counts_given(op, args))
        return op_submit_counted(comm, op, args, how);
    return op_submit(comm, op, args, how);
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
#include "kernels/plan/operators.def"
