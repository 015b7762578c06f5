/* SPDX-License-Identifier: MIT
 *
 * operators.c - a typed call becomes a SUBMIT message.
 *
 * What is checked here is only what the message could not carry, or would carry wrongly: pointers to nothing, buffers that are
 * not this connection's, numbers that do not fit their fields. All else is the daemon's to judge, which tells every rank; and so it does
 * of what is refused here (refusal.c).
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/core/client.h"
#include "client/stream/bound.h"

size_t fcc_dtype_size(enum fcc_dtype dtype)
{
    switch (dtype) {
    case FCC_F16:
    case FCC_BF16:
        return 2;
    case FCC_F32:
    case FCC_I32:
        return 4;
    case FCC_I64:
        return 8;
    }
    return 0;
}

/* How an operator is called: it is waited for if `out` is NULL and it is not enqueued. */
struct manner {
    bool enqueue, start; /* start: `out` must not be NULL */
    void *stream;
    fcc_request **out;
    bool prepare; /* it is not called, but prepared */
    fcc_prepared **prepared;
};

static const char *const op_names[] = {
#define X(NAME, name, number) [number] = #name,
    FCC_OPERATORS(X)
#undef X
        [FCC_OP_COUNT] = "fcc_buffer_alloc",
};

const char *operator_name(uint16_t op)
{
    static const char *const prepared[] = {
#define X(NAME, name, number) [FCC_OP_##NAME] = #name "_prepare",
        FCC_OPERATORS(X)
#undef X
    };

    return op & OP_PREPARED ? prepared[op & ~OP_PREPARED] : op_names[op];
}

/* ---- a SUBMIT message under construction: the first failure is kept, later calls do nothing ---- */

struct submission {
    struct fcc_comm *comm;
    enum fcc_op op;
    struct fcc_submit *msg; /* malloc'ed, room bytes; NULL: there was no memory, or too much would be needed */
    size_t room, length;
    struct error error;                  /* why it is refused */
    uint64_t addresses[FCC_MAX_TENSORS]; /* of the tensors' first elements on the rank's GPU, if it is on one */
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

/* A message with room for ntensors tensors and nwords words of attributes. */
static void submission_begin(struct submission *s, fcc_comm *comm, enum fcc_op op, size_t ntensors, size_t nwords)
{
    s->comm = comm;
    s->op = op;
    s->room = sizeof(*s->msg) + ntensors * sizeof(struct fcc_wire_tensor) + nwords * sizeof(int64_t);
    s->length = sizeof(*s->msg);
    s->error.status = 0; /* its text costs time, and is seldom needed */
    memset(s->addresses, 0, sizeof(s->addresses));
    s->msg = malloc(s->room);
    if (s->msg)
        *s->msg = (struct fcc_submit){.op = (uint16_t)op};
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

/* Fill in the strides of a dense tensor. One that is too large for any buffer gets strides that are; the daemon says so. */
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
    bool dense = true;

    if (s->error.status)
        return;
    s->msg->ntensors++;
    if (!t->buffer) {
        memset(submission_extend(s, sizeof(w)), 0, sizeof(w));
        return;
    }
    (void)pthread_mutex_lock(&s->comm->context->lock);
    w.buffer = buffer_handle(s->comm->context, t->buffer, &s->addresses[s->msg->ntensors - 1]);
    (void)pthread_mutex_unlock(&s->comm->context->lock);
    s->addresses[s->msg->ntensors - 1] += t->offset;
    if (!w.buffer) /* another connection's, or freed: a handle that there is not, so that all ranks hear of it */
        w.buffer = UINT32_MAX;
    if (t->dtype > UINT16_MAX)
        submission_fail(s, -EINVAL, "%s: dtype %u: allowed are %d to %d", name, t->dtype, FCC_F32, FCC_I64);
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

static void submission_attr(struct submission *s, enum fcc_attr key, const int64_t *values, size_t count)
{
    int64_t *words;

    if (s->error.status)
        return;
    words = submission_extend(s, (1 + count) * sizeof(*words));
    words[0] = (int64_t)((uint64_t)key << 32 | count);
    if (count)
        memcpy(words + 1, values, count * sizeof(*words));
    s->msg->nattrs += (uint32_t)(1 + count);
}

static int operator_refuse(fcc_comm *comm, enum fcc_op op, int status, const char *text, const struct manner *how)
{
    return comm_refuse(comm, op | (how->prepare ? OP_PREPARED : 0), status, text, !how->enqueue && !how->start);
}

/* Submit the finished message, or give up with the first failure. */
static int submission_end(struct submission *s, int64_t *recv_rows, const struct prepared_buffers *buffers,
                          const struct manner *how)
{
    int status;

    if (s->length > FCC_MSG_MAX)
        submission_fail(s, -EINVAL, "request: %zu bytes: allowed are at most %u", s->length, FCC_MSG_MAX);
    if (how->enqueue && !how->out && recv_rows)
        submission_fail(s, -EINVAL, "recv_rows: not NULL: allowed only with a request, which says when they are there");
    if (s->error.status)
        status = operator_refuse(s->comm, s->op, s->error.status, s->error.text, how);
    else if (how->prepare)
        status = comm_prepare(s->comm, s->msg, s->length, recv_rows, buffers, how->prepared);
    else if (how->enqueue)
        status = comm_enqueue(s->comm, s->msg, s->length, s->addresses, recv_rows, how->stream, how->out);
    else
        status = comm_submit(s->comm, s->msg, s->length, recv_rows, how->out);
    free(s->msg);
    return status;
}

/* ---- the operators: each submits ---- */

/* Pointers to nothing. 0: there are none. */
static int call_check(fcc_comm *comm, enum fcc_op op, bool has_args, const struct manner *how)
{
    int status = comm_check(comm);

    if (status)
        return status;
    if (!has_args)
        return operator_refuse(comm, op, -EINVAL, "args: NULL: not allowed", how);
    if ((how->start && !how->out) || (how->prepare && !how->prepared))
        return operator_refuse(comm, op, -EINVAL, "out: NULL: not allowed", how);
    return 0;
}

static int noop_submit(fcc_comm *comm, const struct manner *how)
{
    struct submission s;
    int status = call_check(comm, FCC_OP_NOOP, true, how);

    if (status)
        return status;
    submission_begin(&s, comm, FCC_OP_NOOP, 0, 0);
    return submission_end(&s, NULL, NULL, how);
}

static int embedding_submit(fcc_comm *comm, const struct fcc_embedding_all_to_all_args *args, const struct manner *how)
{
    struct submission s;
    size_t ntables, nranks;
    int64_t pooling;
    bool well;
    int status = call_check(comm, FCC_OP_EMBEDDING_ALL_TO_ALL, args != NULL, how);

    if (status || !args)
        return status;
    well = args->num_tables >= 0 && args->num_tables <= FCC_MAX_TABLES;
    ntables = well && args->table_rows ? (size_t)args->num_tables : 0;
    nranks = (size_t)comm->nranks;
    pooling = args->pooling;
    submission_begin(&s, comm, FCC_OP_EMBEDDING_ALL_TO_ALL, FCC_EMB_TENSORS, ntables + nranks + 6);
    if (!well)
        submission_fail(&s, -EINVAL, "num_tables: %d: allowed are 0 to %d", args->num_tables, FCC_MAX_TABLES);
    else if (args->num_tables && !args->table_rows)
        submission_fail(&s, -EINVAL, "table_rows: NULL: allowed only if num_tables is 0");
    submission_options(&s, args->schedule, args->reserved);
    submission_tensor(&s, "tables", &args->tables);
    submission_tensor(&s, "indices", &args->indices);
    submission_tensor(&s, "offsets", &args->offsets);
    submission_tensor(&s, "sample_weights", &args->sample_weights);
    submission_tensor(&s, "out", &args->out);
    submission_attr(&s, FCC_ATTR_TABLE_ROWS, args->table_rows, ntables);
    submission_attr(&s, FCC_ATTR_POOLING, &pooling, 1);
    submission_attr(&s, FCC_ATTR_BATCH, &args->batch, 1);
    if (args->batch_split)
        submission_attr(&s, FCC_ATTR_BATCH_SPLIT, args->batch_split, nranks);
    return submission_end(&s, NULL, NULL, how);
}

static int gemv_submit(fcc_comm *comm, const struct fcc_gemv_all_reduce_args *args, const struct manner *how)
{
    struct submission s;
    int status = call_check(comm, FCC_OP_GEMV_ALL_REDUCE, args != NULL, how);

    if (status || !args)
        return status;
    submission_begin(&s, comm, FCC_OP_GEMV_ALL_REDUCE, FCC_GEMV_TENSORS, 0);
    submission_options(&s, args->schedule, args->reserved);
    submission_tensor(&s, "x", &args->x);
    submission_tensor(&s, "w", &args->w);
    submission_tensor(&s, "y", &args->y);
    return submission_end(
        &s, NULL, &(struct prepared_buffers){.inputs = {args->x.buffer, args->w.buffer}, .result = args->y.buffer}, how);
}

static int gemm_submit(fcc_comm *comm, const struct fcc_gemm_all_to_all_args *args, const struct manner *how)
{
    struct submission s;
    size_t nranks;
    int status = call_check(comm, FCC_OP_GEMM_ALL_TO_ALL, args != NULL, how);

    if (status || !args)
        return status;
    nranks = (size_t)comm->nranks;
    submission_begin(&s, comm, FCC_OP_GEMM_ALL_TO_ALL, FCC_GEMM_TENSORS, nranks + 1);
    submission_options(&s, args->schedule, args->reserved);
    submission_tensor(&s, "a", &args->a);
    submission_tensor(&s, "b", &args->b);
    submission_tensor(&s, "c", &args->c);
    if (args->send_rows)
        submission_attr(&s, FCC_ATTR_SEND_ROWS, args->send_rows, nranks);
    return submission_end(&s, args->recv_rows,
                          &(struct prepared_buffers){.inputs = {args->a.buffer, args->b.buffer}, .result = args->c.buffer},
                          how);
}

int fcc_noop(fcc_comm *comm)
{
    return noop_submit(comm, &(struct manner){0});
}

int fcc_noop_start(fcc_comm *comm, fcc_request **out)
{
    return noop_submit(comm, &(struct manner){.start = true, .out = out});
}

int fcc_noop_enqueue(fcc_comm *comm, void *stream, fcc_request **out)
{
    return noop_submit(comm, &(struct manner){.enqueue = true, .stream = stream, .out = out});
}

int fcc_embedding_all_to_all(fcc_comm *comm, const struct fcc_embedding_all_to_all_args *args)
{
    return embedding_submit(comm, args, &(struct manner){0});
}

int fcc_embedding_all_to_all_start(fcc_comm *comm, const struct fcc_embedding_all_to_all_args *args, fcc_request **out)
{
    return embedding_submit(comm, args, &(struct manner){.start = true, .out = out});
}

int fcc_embedding_all_to_all_enqueue(fcc_comm *comm, const struct fcc_embedding_all_to_all_args *args, void *stream,
                                     fcc_request **out)
{
    return embedding_submit(comm, args, &(struct manner){.enqueue = true, .stream = stream, .out = out});
}

int fcc_gemv_all_reduce(fcc_comm *comm, const struct fcc_gemv_all_reduce_args *args)
{
    return gemv_submit(comm, args, &(struct manner){0});
}

int fcc_gemv_all_reduce_start(fcc_comm *comm, const struct fcc_gemv_all_reduce_args *args, fcc_request **out)
{
    return gemv_submit(comm, args, &(struct manner){.start = true, .out = out});
}

int fcc_gemv_all_reduce_enqueue(fcc_comm *comm, const struct fcc_gemv_all_reduce_args *args, void *stream, fcc_request **out)
{
    return gemv_submit(comm, args, &(struct manner){.enqueue = true, .stream = stream, .out = out});
}

int fcc_gemm_all_to_all(fcc_comm *comm, const struct fcc_gemm_all_to_all_args *args)
{
    return gemm_submit(comm, args, &(struct manner){0});
}

int fcc_gemm_all_to_all_start(fcc_comm *comm, const struct fcc_gemm_all_to_all_args *args, fcc_request **out)
{
    return gemm_submit(comm, args, &(struct manner){.start = true, .out = out});
}

int fcc_gemm_all_to_all_enqueue(fcc_comm *comm, const struct fcc_gemm_all_to_all_args *args, void *stream, fcc_request **out)
{
    return gemm_submit(comm, args, &(struct manner){.enqueue = true, .stream = stream, .out = out});
}

int fcc_gemv_all_reduce_prepare(fcc_comm *comm, const struct fcc_gemv_all_reduce_args *args, fcc_prepared **out)
{
    return gemv_submit(comm, args, &(struct manner){.prepare = true, .prepared = out});
}

int fcc_gemm_all_to_all_prepare(fcc_comm *comm, const struct fcc_gemm_all_to_all_args *args, fcc_prepared **out)
{
    return gemm_submit(comm, args, &(struct manner){.prepare = true, .prepared = out});
}
