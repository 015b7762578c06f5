/* SPDX-License-Identifier: MIT
 *
 * bench_rank.c - one rank of a benchmark, in a process of its own: an ordinary client of fccd.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/fccctl/bench/bench.h"

/* What one rank calls the operator with. */
struct job {
    struct bench *b;
    int rank;
    fcc_context *context;
    fcc_comm *comm;
    fcc_buffer *in[3], *out;
    fcc_prepared *prepared; /* NULL without --prepared */
    size_t out_bytes;
    int64_t *counts;  /* table_rows, batch_split or send_rows */
    int64_t *counts2; /* embedding: batch_split */
    int64_t recv_rows[FCC_MAX_RANKS];
    void *room; /* for one piece of a tensor */
    union {
        struct fcc_embedding_all_to_all_args embedding;
        struct fcc_gemv_all_reduce_args gemv;
        struct fcc_gemm_all_to_all_args gemm;
    } args;
};

static int fail(const struct job *j, int status, const char *what, const char *why)
{
    struct bench_rank *r = &j->b->ranks[j->rank];

    r->status = status;
    (void)snprintf(r->text, sizeof(r->text), "%s: %s", what, why);
    return status;
}

static int fail_fcc(const struct job *j, int status, const char *what)
{
    return fail(j, status, what, fcc_last_error());
}

/* The communicator's id, from rank 0 over the pipe: nranks - 1 copies, each written and read whole. */
static int id_exchange(struct job *j, struct fcc_unique_id *id)
{
    struct bench *b = j->b;
    int status;

    if (j->rank == 0) {
        status = fcc_get_unique_id(j->context, id);
        if (status)
            return fail_fcc(j, status, "fcc_get_unique_id");
        for (int r = 1; r < b->shape.nranks; r++) {
            if (write(b->id_pipe[1], id, sizeof(*id)) != (ssize_t)sizeof(*id))
                return fail(j, -EPIPE, "the communicator's id", "the other ranks are gone");
        }
        (void)close(b->id_pipe[1]);
        return 0;
    }
    (void)close(b->id_pipe[1]); /* so that rank 0's end is the last one, and its death an end of file */
    if (read(b->id_pipe[0], id, sizeof(*id)) != (ssize_t)sizeof(*id))
        return fail(j, -ECONNABORTED, "the communicator's id", "rank 0 ended before it sent it");
    return 0;
}

static int join(struct job *j)
{
    const struct fcc_connect_options options = {.socket_path = j->b->sockets[bench_node(j->b, j->rank)], .job = j->b->job};
    const struct fcc_comm_options comm_options = {.device = j->b->devices[j->rank], .device_kind = j->b->device_kind};
    struct fcc_unique_id id;
    int status = fcc_connect(&options, &j->context);

    if (status)
        return fail_fcc(j, status, "fcc_connect");
    status = id_exchange(j, &id);
    if (status)
        return status;
    status = fcc_comm_init(j->context, &id, j->b->shape.nranks, j->rank, &comm_options, &j->comm);
    return status ? fail_fcc(j, status, "fcc_comm_init") : 0;
}

static int alloc(struct job *j, enum fcc_buffer_kind kind, int64_t elements, enum fcc_dtype dtype, fcc_buffer **out)
{
    size_t bytes = (size_t)elements * fcc_dtype_size(dtype);
    int status = fcc_buffer_alloc(j->comm, kind, bytes ? bytes : 1, out);

    if (status)
        return fail_fcc(j, status, "fcc_buffer_alloc");
    return 0;
}

#define PIECE (INT64_C(1) << 20) /* elements that are made and written at a time; a sign of life after each */

/* Write `n` elements of `size` bytes from `first` on. */
static int put(struct job *j, fcc_buffer *buffer, int64_t first, int64_t n, size_t size, const void *from)
{
    int status = fcc_buffer_write(buffer, (uint64_t)first * size, from, (size_t)n * size);

    bench_progress(j->b, j->rank);
    return status ? fail_fcc(j, status, "fcc_buffer_write") : 0;
}

static int64_t piece_at(int64_t first, int64_t elements)
{
    return elements - first < PIECE ? elements - first : PIECE;
}

static int fill(struct job *j, enum bench_tensor tensor, fcc_buffer *buffer, int64_t elements)
{
    size_t size = fcc_dtype_size(j->b->shape.dtype);
    int status = 0;

    for (int64_t first = 0; first < elements && !status; first += PIECE) {
        int64_t n = piece_at(first, elements);
        data_fill(&j->b->shape, tensor, j->rank, (uint64_t)first, (uint64_t)n, j->room);
        status = put(j, buffer, first, n, size, j->room);
    }
    return status;
}

/* Element i of the indices, or of the offsets. */
static int64_t index_value(const struct job *j, bool is_offset, int64_t i)
{
    return is_offset ? i * j->b->shape.pooling : data_id(&j->b->shape, j->rank, (uint64_t)i);
}

static int fill_indices(struct job *j, bool is_offset, fcc_buffer *buffer, int64_t elements)
{
    const struct shape *s = &j->b->shape;
    int status = 0;

    for (int64_t first = 0; first < elements && !status; first += PIECE) {
        int64_t n = piece_at(first, elements);
        for (int64_t i = 0; i < n; i++) {
            int64_t value = index_value(j, is_offset, first + i);
            if (s->index_dtype == FCC_I32)
                ((int32_t *)j->room)[i] = (int32_t)value;
            else
                ((int64_t *)j->room)[i] = value;
        }
        status = put(j, buffer, first, n, fcc_dtype_size(s->index_dtype), j->room);
    }
    return status;
}

static int setup_embedding(struct job *j)
{
    const struct shape *s = &j->b->shape;
    int64_t rows = s->tables * s->rows, nnz = s->tables * s->batch * s->pooling, bags = s->tables * s->batch;
    int64_t samples = shape_share(s->batch, s->nranks, j->rank), most = shape_share(s->batch, s->nranks, 0);
    int status;

    j->counts = calloc((size_t)s->tables, sizeof(int64_t));
    j->counts2 = calloc((size_t)s->nranks, sizeof(int64_t));
    if (!j->counts || !j->counts2)
        return fail(j, -ENOMEM, "memory", "used up");
    for (int64_t t = 0; t < s->tables; t++)
        j->counts[t] = s->rows;
    for (int r = 0; r < s->nranks; r++)
        j->counts2[r] = shape_share(s->batch, s->nranks, r);
    if ((status = alloc(j, FCC_BUFFER_LOCAL, rows * s->dim, s->dtype, &j->in[0])) ||
        (status = alloc(j, FCC_BUFFER_LOCAL, nnz, s->index_dtype, &j->in[1])) ||
        (status = alloc(j, FCC_BUFFER_LOCAL, bags + 1, s->index_dtype, &j->in[2])) ||
        (status = alloc(j, FCC_BUFFER_SYMMETRIC, most * s->tables * s->nranks * s->dim, s->dtype, &j->out)) ||
        (status = fill(j, BENCH_TABLES, j->in[0], rows * s->dim)) || (status = fill_indices(j, false, j->in[1], nnz)) ||
        (status = fill_indices(j, true, j->in[2], bags + 1)))
        return status;
    j->args.embedding = (struct fcc_embedding_all_to_all_args){
        .tables = fcc_tensor_2d(j->in[0], 0, s->dtype, rows, s->dim),
        .table_rows = j->counts,
        .num_tables = (int32_t)s->tables,
        .pooling = FCC_POOLING_SUM,
        .indices = fcc_tensor_1d(j->in[1], 0, s->index_dtype, nnz),
        .offsets = fcc_tensor_1d(j->in[2], 0, s->index_dtype, bags + 1),
        .batch = s->batch,
        .batch_split = j->counts2,
        .out = fcc_tensor_3d(j->out, 0, s->dtype, samples, s->tables * s->nranks, s->dim),
    };
    return 0;
}

static int setup_gemv(struct job *j)
{
    const struct shape *s = &j->b->shape;
    int status;

    if ((status = alloc(j, FCC_BUFFER_LOCAL, s->m * s->k, s->dtype, &j->in[0])) ||
        (status = alloc(j, FCC_BUFFER_LOCAL, s->n * s->k, s->dtype, &j->in[1])) ||
        (status = alloc(j, FCC_BUFFER_SYMMETRIC, s->m * s->n, s->dtype, &j->out)) ||
        (status = fill(j, BENCH_X, j->in[0], s->m * s->k)) || (status = fill(j, BENCH_W, j->in[1], s->n * s->k)))
        return status;
    j->args.gemv = (struct fcc_gemv_all_reduce_args){
        .x = fcc_tensor_2d(j->in[0], 0, s->dtype, s->m, s->k),
        .w = fcc_tensor_2d(j->in[1], 0, s->dtype, s->n, s->k),
        .y = fcc_tensor_2d(j->out, 0, s->dtype, s->m, s->n),
    };
    return 0;
}

static int setup_gemm(struct job *j)
{
    const struct shape *s = &j->b->shape;
    int64_t most = shape_share(s->m, s->nranks, 0) * s->nranks, rows, cols;
    int status;

    result_size(s, j->rank, &rows, &cols);
    j->counts = calloc((size_t)s->nranks, sizeof(int64_t));
    if (!j->counts)
        return fail(j, -ENOMEM, "memory", "used up");
    for (int r = 0; r < s->nranks; r++)
        j->counts[r] = shape_share(s->m, s->nranks, r);
    if ((status = alloc(j, FCC_BUFFER_LOCAL, s->m * s->k, s->dtype, &j->in[0])) ||
        (status = alloc(j, FCC_BUFFER_LOCAL, s->k * s->n, s->dtype, &j->in[1])) ||
        (status = alloc(j, FCC_BUFFER_SYMMETRIC, most * s->n, s->dtype, &j->out)) ||
        (status = fill(j, BENCH_X, j->in[0], s->m * s->k)) || (status = fill(j, BENCH_W, j->in[1], s->k * s->n)))
        return status;
    j->args.gemm = (struct fcc_gemm_all_to_all_args){
        .a = fcc_tensor_2d(j->in[0], 0, s->dtype, s->m, s->k),
        .b = fcc_tensor_2d(j->in[1], 0, s->dtype, s->k, s->n),
        .send_rows = j->counts,
        .c = fcc_tensor_2d(j->out, 0, s->dtype, rows, s->n),
        .recv_rows = j->recv_rows,
    };
    return 0;
}

static int setup(struct job *j)
{
    const struct shape *s = &j->b->shape;
    int64_t rows, cols;

    result_size(s, j->rank, &rows, &cols);
    j->out_bytes = (size_t)(rows * cols) * fcc_dtype_size(s->dtype);
    j->room = malloc((size_t)PIECE * sizeof(int64_t));
    if (!j->room)
        return fail(j, -ENOMEM, "memory", "used up");
    switch (s->op) {
    case FCC_OP_EMBEDDING_ALL_TO_ALL:
        return setup_embedding(j);
    case FCC_OP_GEMV_ALL_REDUCE:
        return setup_gemv(j);
    case FCC_OP_GEMM_ALL_TO_ALL:
        return setup_gemm(j);
    case FCC_OP_NOOP:
    case FCC_OP_COUNT:
        break;
    }
    return 0;
}

static const uint32_t schedules[BENCH_KINDS] = {
    [BENCH_AUTO] = FCC_SCHEDULE_AUTO,
    [BENCH_FUSED] = FCC_SCHEDULE_FUSED,
    [BENCH_SEQUENTIAL] = FCC_SCHEDULE_SEQUENTIAL,
    [BENCH_COMPUTE] = FCC_SCHEDULE_COMPUTE_ONLY,
    [BENCH_COMM] = FCC_SCHEDULE_COMM_ONLY,
    [BENCH_FLAT] = FCC_SCHEDULE_FUSED | FCC_SCHEDULE_FLAT,
    [BENCH_HIERARCHICAL] = FCC_SCHEDULE_FUSED | FCC_SCHEDULE_HIERARCHICAL,
    [BENCH_COMM_FLAT] = FCC_SCHEDULE_COMM_ONLY | FCC_SCHEDULE_FLAT,
    [BENCH_COMM_HIERARCHICAL] = FCC_SCHEDULE_COMM_ONLY | FCC_SCHEDULE_HIERARCHICAL,
};

/* With --prepared: the operator that all runs are of. */
static int prepare(struct job *j)
{
    int status;

    if (!j->b->prepared)
        return 0;
    memset(j->recv_rows, 0xff, sizeof(j->recv_rows)); /* it sets them, and runs do not */
    if (j->b->shape.op == FCC_OP_GEMM_ALL_TO_ALL) {
        j->args.gemm.schedule = schedules[j->b->kinds[0]];
        status = fcc_gemm_all_to_all_prepare(j->comm, &j->args.gemm, &j->prepared);
    } else {
        j->args.gemv.schedule = schedules[j->b->kinds[0]];
        status = fcc_gemv_all_reduce_prepare(j->comm, &j->args.gemv, &j->prepared);
    }
    return status ? fail_fcc(j, status, "prepare") : 0;
}

/* So many runs in a row on the default stream; returns when all are finished, which a noop behind them tells. */
static int run_prepared(struct job *j, int64_t runs)
{
    fcc_request *request;
    int status = 0;

    for (int64_t i = 0; i < runs && !status; i++)
        status = fcc_prepared_enqueue(j->prepared, NULL);
    if (!status)
        status = fcc_noop_enqueue(j->comm, NULL, &request);
    if (status)
        return status;
    status = fcc_request_wait(request, -1);
    fcc_request_free(request);
    return status;
}

static int run_once(struct job *j, enum bench_kind kind)
{
    if (j->prepared)
        return run_prepared(j, 1);
    switch (j->b->shape.op) {
    case FCC_OP_EMBEDDING_ALL_TO_ALL:
        j->args.embedding.schedule = schedules[kind];
        return fcc_embedding_all_to_all(j->comm, &j->args.embedding);
    case FCC_OP_GEMV_ALL_REDUCE:
        j->args.gemv.schedule = schedules[kind];
        return fcc_gemv_all_reduce(j->comm, &j->args.gemv);
    case FCC_OP_GEMM_ALL_TO_ALL:
        j->args.gemm.schedule = schedules[kind];
        return fcc_gemm_all_to_all(j->comm, &j->args.gemm);
    case FCC_OP_NOOP:
    case FCC_OP_COUNT:
        break;
    }
    return fcc_noop(j->comm);
}

/* The same onto the default stream: begins after what is on it. */
static int enqueue_once(struct job *j, enum bench_kind kind, fcc_request **out)
{
    switch (j->b->shape.op) {
    case FCC_OP_EMBEDDING_ALL_TO_ALL:
        j->args.embedding.schedule = schedules[kind];
        return fcc_embedding_all_to_all_enqueue(j->comm, &j->args.embedding, NULL, out);
    case FCC_OP_GEMV_ALL_REDUCE:
        j->args.gemv.schedule = schedules[kind];
        return fcc_gemv_all_reduce_enqueue(j->comm, &j->args.gemv, NULL, out);
    case FCC_OP_GEMM_ALL_TO_ALL:
        j->args.gemm.schedule = schedules[kind];
        return fcc_gemm_all_to_all_enqueue(j->comm, &j->args.gemm, NULL, out);
    case FCC_OP_NOOP:
    case FCC_OP_COUNT:
        break;
    }
    return fcc_noop_enqueue(j->comm, NULL, out);
}

/* As many operators on the stream as --stream says; returns when all are finished, with the first error. */
static int run_stream(struct job *j, enum bench_kind kind)
{
    fcc_request *requests[BENCH_STREAM_MAX];
    int status = 0, n = 0;

    if (j->prepared)
        return run_prepared(j, j->b->stream);
    if (j->b->group)
        fcc_group_begin();
    while (n < j->b->stream && !status) {
        status = enqueue_once(j, kind, &requests[n]);
        n += !status;
    }
    if (j->b->group) {
        int ended = fcc_group_end();
        status = status ? status : ended;
    }
    for (int i = 0; i < n; i++) {
        int result = fcc_request_wait(requests[i], -1);
        status = status ? status : result;
        fcc_request_free(requests[i]);
    }
    return status;
}

static double now_s(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* All schedules in turn, iteration by iteration, every other time backwards, so that what disturbs the machine, or what one
 * leaves in the caches, meets them alike. The ranks meet before each call (except of noop, which is nothing else), so that a
 * call's time is not its predecessor's. A negative iter is a warm-up. */
static int iterate(struct job *j, int64_t iter)
{
    struct bench *b = j->b;

    for (int i = 0; i < b->nkinds; i++) {
        int kind = iter & 1 ? b->nkinds - 1 - i : i, status = 0;
        double start;
        if (b->shape.op != FCC_OP_NOOP)
            status = fcc_noop(j->comm);
        if (status)
            return fail_fcc(j, status, "noop");
        start = now_s();
        status = b->stream ? run_stream(j, b->kinds[kind]) : run_once(j, b->kinds[kind]);
        if (status)
            return fail_fcc(j, status, op_name(b->shape.op));
        if (iter >= 0)
            *bench_time(b, kind, iter, j->rank) = (now_s() - start) / (double)(b->stream ? b->stream : 1);
    }
    bench_progress(b, j->rank);
    return 0;
}

static bool has_result(enum bench_kind kind)
{
    uint32_t schedule = schedules[kind] & ~(uint32_t)FCC_SCHEDULE_ROUTES;

    return schedule != FCC_SCHEDULE_COMPUTE_ONLY && schedule != FCC_SCHEDULE_COMM_ONLY;
}

/* Not a number, in every dtype, over the whole result. */
static int poison(struct job *j)
{
    size_t bytes = fcc_buffer_size(j->out), piece = (size_t)PIECE * sizeof(int64_t);
    int status = 0;

    memset(j->room, 0xff, piece);
    for (size_t at = 0; at < bytes && !status; at += piece)
        status = fcc_buffer_write(j->out, at, j->room, bytes - at < piece ? bytes - at : piece);
    return status ? fail_fcc(j, status, "fcc_buffer_write") : 0;
}

/* Run each schedule that has a result once more, onto poison, and keep a copy in results[i]. */
static int results_make(struct job *j, unsigned char *results[BENCH_KINDS])
{
    struct bench *b = j->b;
    int status;

    for (int i = 0; i < b->nkinds; i++) {
        if (!has_result(b->kinds[i]))
            continue;
        status = poison(j);
        if (status)
            return status;
        if (!j->prepared)
            memset(j->recv_rows, 0xff, sizeof(j->recv_rows));
        status = run_once(j, b->kinds[i]);
        if (status)
            return fail_fcc(j, status, op_name(b->shape.op));
        for (int r = 0; r < b->shape.nranks && b->shape.op == FCC_OP_GEMM_ALL_TO_ALL; r++)
            b->ranks[j->rank].wrong[b->kinds[i]] += j->recv_rows[r] != shape_share(b->shape.m, b->shape.nranks, j->rank);
        results[i] = malloc(j->out_bytes + 1);
        if (!results[i])
            return fail(j, -ENOMEM, "--check", "no memory for a copy of the result");
        status = fcc_buffer_read(j->out, 0, results[i], j->out_bytes);
        if (status)
            return fail_fcc(j, status, "fcc_buffer_read");
    }
    return 0;
}

/* The reference is made when all operators are done: it may take longer than an operator may wait for its ranks. */
static int check(struct job *j)
{
    struct bench *b = j->b;
    unsigned char *results[BENCH_KINDS] = {NULL};
    double *want = NULL;
    int status = results_make(j, results);

    if (!status) {
        status = fcc_noop(j->comm); /* nobody leaves before all have their results */
        if (status)
            (void)fail_fcc(j, status, "noop");
    }
    if (!status) {
        want = result_want(b, j->rank);
        if (!want)
            status = fail(j, -ENOMEM, "--check", "no memory for the reference");
    }
    for (int i = 0; i < b->nkinds; i++) {
        if (!status && has_result(b->kinds[i]))
            b->ranks[j->rank].wrong[b->kinds[i]] += result_wrong(&b->shape, j->rank, want, results[i]);
        free(results[i]);
    }
    free(want);
    return status;
}

int bench_rank_run(struct bench *b, int rank)
{
    struct job j = {.b = b, .rank = rank};
    int status = join(&j);

    if (!status)
        status = setup(&j);
    if (!status)
        status = prepare(&j);
    for (int64_t i = -b->warmup; i < b->iters && !status; i++)
        status = iterate(&j, i);
    if (!status && b->check && b->shape.op != FCC_OP_NOOP)
        status = check(&j);
    if (!status) {
        fcc_prepared_free(j.prepared);
        fcc_comm_destroy(j.comm);
    }
    fcc_disconnect(j.context);
    free(j.counts);
    free(j.counts2);
    free(j.room);
    return status;
}
