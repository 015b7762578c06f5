/* SPDX-License-Identifier: MIT
 *
 * bench_args.c - the arguments of a rank's operator call: tensors and attributes by the operator's row, their sizes and
 * contents by its compute.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/fccctl/bench/bench.h"

/* ---- the functions of each operator ---- */

/* Defines a function with untyped arguments that calls the typed one. */
#define UNTYPED(name, call, ...)                                                                                               \
    static int name(fcc_comm *comm, const void *args, ##__VA_ARGS__)                                                           \
    {                                                                                                                          \
        (void)args;                                                                                                            \
        return call;                                                                                                           \
    }
#define PREPARE_NEVER(name)
#define PREPARE_REPEATED(name)
#define PREPARE_PREPARED(name) UNTYPED(name##_prepare, fcc_##name##_prepare(comm, args, out), fcc_prepared **out)
#define PREPARE_BARE_PREPARED(name) UNTYPED(name##_prepare, fcc_##name##_prepare(comm, out), fcc_prepared **out)
#define OPERATOR(NAME, name, compute, exchange, bind, ...)                                                                     \
    _Static_assert(sizeof(struct fcc_##name##_args) <= BENCH_ARGS_BYTES, "room");                                              \
    UNTYPED(name##_call, fcc_##name(comm, args))                                                                               \
    UNTYPED(name##_enqueue, fcc_##name##_enqueue(comm, args, stream, out), void *stream, fcc_request **out)                    \
    PREPARE_##bind(name)
#define OPERATOR_BARE(NAME, name, compute, exchange, bind)                                                                     \
    UNTYPED(name##_call, fcc_##name(comm))                                                                                     \
    UNTYPED(name##_enqueue, fcc_##name##_enqueue(comm, stream, out), void *stream, fcc_request **out)                          \
    PREPARE_BARE_##bind(name)
#define OPERATOR_INSIDE(NAME, name, compute, exchange)
#define OPERATOR_STEP(NAME, name, compute, exchange)
#include "kernels/plan/operators.def"
#undef PREPARE_PREPARED
#undef OPERATOR
#undef OPERATOR_BARE

#define PREPARE_PREPARED(name) .prepare = name##_prepare
#define OPERATOR(NAME, name, compute, exchange, bind, ...)                                                                     \
    [FCC_OP_##NAME] = {.call = name##_call, .enqueue = name##_enqueue, PREPARE_##bind(name)},
#define OPERATOR_BARE(NAME, name, compute, exchange, bind) OPERATOR(NAME, name, compute, exchange, bind, )

const struct bench_calls *bench_calls(enum fcc_op op)
{
    static const struct bench_calls calls[FCC_OP_COUNT] = {
#include "kernels/plan/operators.def"
    };

    return &calls[op];
}

/* ---- tensors ---- */

/* An input tensor of an operator, by the operator's compute. */
struct input {
    int64_t dims[2];
    enum { ABSENT, VALUES, IDS, OFFSETS } how;
    enum bench_tensor tensor; /* VALUES */
};

static struct input input_of(const struct shape *s, int rank, int t)
{
    const int64_t bags = s->tables * s->batch, elements = s->spec->compute == COMPUTE_VECTOR ? vector_length(s, true, rank) : 0;
    const struct input inputs[COMPUTE_KINDS][FCC_MAX_TENSORS] = {
        [COMPUTE_BAG] = {{{s->tables * s->rows, s->dim}, VALUES, BENCH_TABLES},
                         {.dims = {bags * s->pooling}, .how = IDS},
                         {.dims = {bags + 1}, .how = OFFSETS}},
        [COMPUTE_GEMV] = {{{s->m, s->k}, VALUES, BENCH_X}, {{s->n, s->k}, VALUES, BENCH_W}},
        [COMPUTE_GEMM] = {{{s->m, s->k}, VALUES, BENCH_X}, {{s->k, s->n}, VALUES, BENCH_W}},
        [COMPUTE_VECTOR] = {{{elements}, elements < 0 ? ABSENT : VALUES, BENCH_X}},
    };

    return inputs[s->spec->compute][t];
}

static int64_t input_elements(const struct shape *s, const struct input *in, int t)
{
    return in->how == ABSENT ? 0 : s->spec->tensors[t].ndim == 1 ? in->dims[0] : in->dims[0] * in->dims[1];
}

static enum fcc_dtype input_dtype(const struct shape *s, const struct input *in)
{
    return in->how == VALUES ? s->dtype : s->index_dtype;
}

static int alloc(struct bench *b, int rank, fcc_comm *comm, enum fcc_buffer_kind kind, int64_t elements, enum fcc_dtype dtype,
                 fcc_buffer **out)
{
    size_t bytes = (size_t)elements * fcc_dtype_size(dtype);

    return bench_tried(b, rank, fcc_buffer_alloc(comm, kind, bytes ? bytes : 1, out), "fcc_buffer_alloc");
}

/* A piece of an input: its elements from `first` on. */
static void piece_make(const struct shape *s, int rank, const struct input *in, int64_t first, int64_t n, void *room)
{
    if (in->how == VALUES) {
        data_fill(s, in->tensor, rank, (uint64_t)first, (uint64_t)n, room);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t value = in->how == OFFSETS ? (first + i) * s->pooling : data_id(s, rank, (uint64_t)(first + i));
        if (s->index_dtype == FCC_I32)
            ((int32_t *)room)[i] = (int32_t)value;
        else
            ((int64_t *)room)[i] = value;
    }
}

static int fill(struct bench *b, int rank, const struct input *in, int64_t elements, fcc_buffer *buffer, void *room)
{
    size_t size = fcc_dtype_size(input_dtype(&b->shape, in));
    int status = 0;

    for (int64_t first = 0; first < elements && !status; first += BENCH_PIECE) {
        int64_t n = elements - first < BENCH_PIECE ? elements - first : BENCH_PIECE;
        piece_make(&b->shape, rank, in, first, n, room);
        status = fcc_buffer_write(buffer, (uint64_t)first * size, room, (size_t)n * size);
        bench_progress(b, rank);
    }
    return bench_tried(b, rank, status, "fcc_buffer_write");
}

static void tensor_set(struct bench_args *a, const struct tensor_spec *t, fcc_buffer *buffer, enum fcc_dtype dtype,
                       const int64_t dims[])
{
    struct fcc_tensor *out = (struct fcc_tensor *)(void *)(a->args + t->at);

    *out = (struct fcc_tensor){.buffer = buffer, .dtype = (uint32_t)dtype, .ndim = t->ndim};
    memcpy(out->shape, dims, t->ndim * sizeof(dims[0]));
}

/* The result. A symmetric buffer has the same size on all ranks: that of the largest result. */
static int result_make(struct bench *b, int rank, fcc_comm *comm, struct bench_args *a)
{
    const struct shape *s = &b->shape;
    const struct tensor_spec *t = &s->spec->tensors[s->spec->result];
    int64_t rows, cols;
    int status;

    result_size(s, 0, &rows, &cols);
    status = alloc(b, rank, comm, FCC_BUFFER_SYMMETRIC, rows * cols, s->dtype, &a->result);
    if (status)
        return status;
    result_size(s, rank, &rows, &cols);
    if (s->spec->compute == COMPUTE_VECTOR && vector_length(s, false, rank) < 0)
        return 0;
    if (t->ndim == 1)
        tensor_set(a, t, a->result, s->dtype, (const int64_t[]){cols});
    else if (t->ndim == 3) /* rows of vectors */
        tensor_set(a, t, a->result, s->dtype, (const int64_t[]){rows, cols / s->dim, s->dim});
    else
        tensor_set(a, t, a->result, s->dtype, (const int64_t[]){rows, cols});
    return 0;
}

static int tensors_make(struct bench *b, int rank, fcc_comm *comm, struct bench_args *a)
{
    const struct shape *s = &b->shape;
    fcc_buffer *buffers[FCC_MAX_TENSORS] = {NULL};
    int status = 0;

    for (int t = 0; t < s->spec->ntensors && !status; t++) {
        struct input in = input_of(s, rank, t);
        if (t == s->spec->result)
            status = result_make(b, rank, comm, a);
        else if (in.how != ABSENT)
            status = alloc(b, rank, comm, FCC_BUFFER_LOCAL, input_elements(s, &in, t), input_dtype(s, &in), &buffers[t]);
    }
    for (int t = 0; t < s->spec->ntensors && !status; t++) {
        struct input in = input_of(s, rank, t);
        if (!buffers[t])
            continue;
        tensor_set(a, &s->spec->tensors[t], buffers[t], input_dtype(s, &in), in.dims);
        status = fill(b, rank, &in, input_elements(s, &in, t), buffers[t], a->room);
    }
    return status;
}

/* ---- attributes ---- */

static int64_t attr_value(const struct shape *s, enum fcc_attr key, int rank, int64_t i)
{
    switch (key) {
    case FCC_ATTR_TABLE_ROWS:
        return s->rows;
    case FCC_ATTR_POOLING:
        return FCC_POOLING_SUM;
    case FCC_ATTR_BATCH:
        return s->batch;
    case FCC_ATTR_BATCH_SPLIT:
        return shape_share(s->batch, s->nranks, (int)i);
    case FCC_ATTR_SEND_ROWS:
    case FCC_ATTR_ROWS:
        return shape_share(s->m, s->nranks, (int)i);
    default:
        return vector_attr(s, key, rank, i);
    }
}

static bool attr_make(const struct shape *s, int rank, const struct attr_spec *spec, struct bench_args *a, int64_t **numbers)
{
    int64_t value = attr_value(s, (enum fcc_attr)spec->key, rank, 0), count = spec->kind == ATTR_LIST ? s->tables : s->nranks;
    int32_t narrow = (int32_t)value, list = (int32_t)count;

    if (spec->kind == ATTR_NUMBER) {
        memcpy(a->args + spec->at, spec->bytes == sizeof(narrow) ? (const void *)&narrow : &value, spec->bytes);
        return true;
    }
    *numbers = calloc((size_t)count, sizeof(**numbers));
    if (!*numbers)
        return false;
    for (int64_t i = 0; i < count; i++)
        (*numbers)[i] = attr_value(s, (enum fcc_attr)spec->key, rank, i);
    memcpy(a->args + spec->at, numbers, sizeof(*numbers));
    if (spec->kind == ATTR_LIST)
        memcpy(a->args + spec->count_at, &list, sizeof(list));
    return true;
}

int bench_args_make(struct bench *b, int rank, fcc_comm *comm, struct bench_args *out)
{
    const struct op_spec *spec = b->shape.spec;
    int64_t *values = out->recv_rows;
    bool made;

    out->room = malloc(BENCH_PIECE_BYTES);
    made = out->room != NULL;
    for (int i = 0; i < spec->nattrs && made; i++)
        made = attr_make(&b->shape, rank, &spec->attrs[i], out, &out->numbers[i]);
    if (!made)
        return bench_fail(b, rank, -ENOMEM, "memory", "used up");
    if (spec->values_at)
        memcpy(out->args + spec->values_at, &values, sizeof(values));
    return tensors_make(b, rank, comm, out);
}

void bench_args_schedule(const struct bench *b, struct bench_args *a, uint32_t schedule)
{
    if (b->shape.spec->args_bytes)
        memcpy(a->args + b->shape.spec->schedule_at, &schedule, sizeof(schedule));
}

void bench_args_free(struct bench_args *a)
{
    for (size_t i = 0; i < sizeof(a->numbers) / sizeof(a->numbers[0]); i++)
        free(a->numbers[i]);
    free(a->room);
}
