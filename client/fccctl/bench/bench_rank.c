/* SPDX-License-Identifier: MIT
 *
 * bench_rank.c - one rank of a benchmark: a process that is an ordinary client of fccd.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/fccctl/bench/bench.h"
#include "proto/base/clock.h"

/* One rank's state. */
struct job {
    struct bench *b;
    int rank;
    fcc_context *context;
    fcc_comm *comm;
    struct bench_args args;
    const struct bench_calls *calls;
    fcc_prepared *prepared; /* NULL without --prepared */
    size_t out_bytes;
};

int bench_fail(struct bench *b, int rank, int status, const char *what, const char *why)
{
    struct bench_rank *r = &b->ranks[rank];

    r->status = status;
    (void)snprintf(r->text, sizeof(r->text), "%s: %s", what, why);
    return status;
}

int bench_tried(struct bench *b, int rank, int status, const char *what)
{
    return status ? bench_fail(b, rank, status, what, fcc_last_error()) : 0;
}

static int fail(const struct job *j, int status, const char *what, const char *why)
{
    return bench_fail(j->b, j->rank, status, what, why);
}

static int tried(const struct job *j, int status, const char *what)
{
    return bench_tried(j->b, j->rank, status, what);
}

/* Passes the communicator's id from rank 0 to the others over the pipe: nranks - 1 copies, each written and read whole. */
static int id_exchange(struct job *j, struct fcc_unique_id *id)
{
    struct bench *b = j->b;
    int status;

    if (j->rank == 0) {
        status = tried(j, fcc_get_unique_id(j->context, id), "fcc_get_unique_id");
        if (status)
            return status;
        for (int r = 1; r < b->shape.nranks; r++) {
            if (write(b->id_pipe[1], id, sizeof(*id)) != (ssize_t)sizeof(*id))
                return fail(j, -EPIPE, "the communicator's id", "the other ranks are gone");
        }
        (void)close(b->id_pipe[1]);
        return 0;
    }
    (void)close(b->id_pipe[1]); /* then rank 0 has the last writing end, and its death is an end of file */
    if (read(b->id_pipe[0], id, sizeof(*id)) != (ssize_t)sizeof(*id))
        return fail(j, -ECONNABORTED, "the communicator's id", "rank 0 ended before it sent it");
    return 0;
}

static int join(struct job *j)
{
    const struct fcc_connect_options options = {.socket_path = j->b->sockets[bench_node(j->b, j->rank)], .job = j->b->job};
    const struct fcc_comm_options comm_options = {.device = j->b->devices[j->rank], .device_kind = j->b->device_kind};
    struct fcc_unique_id id;
    int status = tried(j, fcc_connect(&options, &j->context), "fcc_connect");

    if (!status)
        status = id_exchange(j, &id);
    if (status)
        return status;
    return tried(j, fcc_comm_init(j->context, &id, j->b->shape.nranks, j->rank, &comm_options, &j->comm), "fcc_comm_init");
}

static int setup(struct job *j)
{
    const struct shape *s = &j->b->shape;
    int64_t rows, cols;

    result_size(s, j->rank, &rows, &cols);
    j->out_bytes = (size_t)(rows * cols) * fcc_dtype_size(s->dtype);
    j->calls = bench_calls(s->op);
    return bench_args_make(j->b, j->rank, j->comm, &j->args);
}

/* With --prepared: prepares the operator whose runs are measured. */
static int prepare(struct job *j)
{
    if (!j->b->prepared)
        return 0;
    memset(j->args.recv_rows, 0xff, sizeof(j->args.recv_rows)); /* prepare sets recv_rows, runs do not */
    bench_args_schedule(j->b, &j->args, bench_kind_rows[j->b->kinds[0]].schedule);
    return tried(j, j->calls->prepare(j->comm, j->args.args, &j->prepared), "prepare");
}

/* Enqueues runs on the default stream, and a noop behind them. Returns when the noop, and so all runs, have finished. */
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
    bench_args_schedule(j->b, &j->args, bench_kind_rows[kind].schedule);
    return j->calls->call(j->comm, j->args.args);
}

/* Enqueues --stream operators. Returns when all have finished, with the first error. */
static int run_stream(struct job *j, enum bench_kind kind)
{
    fcc_request *requests[BENCH_STREAM_MAX];
    int status = 0, n = 0;

    if (j->prepared)
        return run_prepared(j, j->b->stream);
    bench_args_schedule(j->b, &j->args, bench_kind_rows[kind].schedule);
    if (j->b->group)
        fcc_group_begin();
    while (n < j->b->stream && !status) {
        status = j->calls->enqueue(j->comm, j->args.args, NULL, &requests[n]);
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

/* Measures n schedules from `first` on once, every other iteration in reverse order, so that disturbances and cache contents affect them
 * alike. The ranks meet before each call (except of noop), so that no call's time includes waiting for another call. A
 * negative iter is a warm-up. */
static int iterate(struct job *j, int64_t iter, int first, int n)
{
    struct bench *b = j->b;

    for (int i = 0; i < n; i++) {
        int kind = first + (iter & 1 ? n - 1 - i : i), status = 0;
        uint64_t start;
        if (b->shape.spec->compute)
            status = tried(j, fcc_noop(j->comm), "noop");
        start = clock_ns();
        if (!status)
            status = tried(j, b->stream ? run_stream(j, b->kinds[kind]) : run_once(j, b->kinds[kind]), op_name(b->shape.op));
        if (status)
            return status;
        if (iter >= 0)
            *bench_time(b, kind, iter, j->rank) = (double)(clock_ns() - start) * 1e-9 / (double)(b->stream ? b->stream : 1);
    }
    bench_progress(b, j->rank);
    return 0;
}

/* All schedules by turns, or --apart one after the other. */
static int measure(struct job *j)
{
    struct bench *b = j->b;
    const int n = b->apart ? 1 : b->nkinds;
    int status = 0;

    for (int first = 0; first < b->nkinds && !status; first += n)
        for (int64_t i = -b->warmup; i < b->iters && !status; i++)
            status = iterate(j, i, first, n);
    return status;
}

/* Fills the whole result with NaN, in every dtype. */
static int poison(struct job *j)
{
    size_t bytes = fcc_buffer_size(j->args.result), piece = BENCH_PIECE_BYTES;
    int status = 0;

    memset(j->args.room, 0xff, piece);
    for (size_t at = 0; at < bytes && !status; at += piece)
        status = fcc_buffer_write(j->args.result, at, j->args.room, bytes - at < piece ? bytes - at : piece);
    return tried(j, status, "fcc_buffer_write");
}

/* Runs each schedule that has a result once more, onto NaN, and copies the result to results[i]. */
static int results_make(struct job *j, unsigned char *results[BENCH_KINDS])
{
    struct bench *b = j->b;
    int status;

    for (int i = 0; i < b->nkinds; i++) {
        if (!bench_kind_rows[b->kinds[i]].has_result)
            continue;
        if (!j->prepared)
            memset(j->args.recv_rows, 0xff, sizeof(j->args.recv_rows));
        status = poison(j);
        if (!status)
            status = tried(j, run_once(j, b->kinds[i]), op_name(b->shape.op));
        if (status)
            return status;
        for (int r = 0; r < b->shape.nranks && b->shape.spec->values_at; r++)
            b->ranks[j->rank].wrong[b->kinds[i]] += j->args.recv_rows[r] != shape_received(&b->shape, r, j->rank);
        results[i] = malloc(j->out_bytes + 1);
        if (!results[i])
            return fail(j, -ENOMEM, "--check", "no memory for a copy of the result");
        status = tried(j, fcc_buffer_read(j->args.result, 0, results[i], j->out_bytes), "fcc_buffer_read");
        if (status)
            return status;
    }
    return 0;
}

/* Checks the results. The reference is computed after all operators, because it may take longer than ranks wait for each
 * other. */
static int check(struct job *j)
{
    struct bench *b = j->b;
    unsigned char *results[BENCH_KINDS] = {NULL};
    double *want = NULL;
    int status = results_make(j, results);

    if (!status)
        status = tried(j, fcc_noop(j->comm), "noop"); /* no rank leaves before all have their results */
    if (!status && !(want = result_want(b, j->rank)))
        status = fail(j, -ENOMEM, "--check", "no memory for the reference");
    for (int i = 0; i < b->nkinds; i++) {
        if (!status && bench_kind_rows[b->kinds[i]].has_result)
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
    if (!status)
        status = measure(&j);
    if (!status && b->check)
        status = check(&j);
    if (!status) {
        fcc_prepared_free(j.prepared);
        fcc_comm_destroy(j.comm);
    }
    fcc_disconnect(j.context);
    bench_args_free(&j.args);
    return status;
}
