/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_overlap.c - inputs that lie where a result is stored, of operators that the ranks' own processes launch: prepared ones, and
 * those that come to a stream again and again (test_gpu_worker_repeated.c). They are refused on all ranks before anything is stored, and the
 * next ones are right. With the real daemon and the real library on fake GPUs; what the worker launches: test_overlap.c.
 */
#include "tests/fake_gpu/fake_gpu_repeated.h"

enum { WRONG = 1, NVICTIMS = 2 /* inputs of an operator */ };

/* An input's first element is the result's last one. */
static void onto_last(struct fcc_tensor *input, const struct fcc_tensor *result)
{
    input->buffer = result->buffer;
    input->offset = result->offset + (uint64_t)(result->shape[0] * result->shape[1] - 1) * sizeof(float);
}

/* One input and the result are the same memory, or share its last element. */
static void spoil(struct fcc_tensor *input, const struct fcc_tensor *result, bool same)
{
    if (same) {
        input->buffer = result->buffer;
        input->offset = result->offset;
    } else {
        onto_last(input, result);
    }
}

struct call {
    enum work work;
    int input;
    bool same, grouped;
};

/* What the error says of it: which input overlaps which result. */
static void says(const struct call *c, bool prepares, char input[40], char result[32])
{
    static const char *const names[2][NVICTIMS] = {{"x", "w"}, {"a", "b"}};
    bool rows = c->work == ROWS_SENT;

    (void)snprintf(input, 40, "_all_%s%s: %s: bytes ", rows ? "to_all" : "reduce", prepares ? "_prepare" : "",
                   names[rows][c->input]);
    (void)snprintf(result, 32, " overlap %s, bytes ", rows ? "c" : "y");
}

/* The arguments of the rank that is wrong; the others' are right. */
static int call_make(struct lane *l, const struct call *c, fcc_prepared **prepared)
{
    struct fcc_gemv_all_reduce_args gemv = gemv_args(l, c->work);
    struct fcc_gemm_all_to_all_args gemm = gemm_args(l);
    bool wrong = l->rank == WRONG, rows = c->work == ROWS_SENT;

    if (wrong && rows)
        spoil(c->input ? &gemm.b : &gemm.a, &gemm.c, c->same);
    else if (wrong)
        spoil(c->input ? &gemv.w : &gemv.x, &gemv.y, c->same);
    if (prepared)
        return rows ? fcc_gemm_all_to_all_prepare(l->comm, &gemm, prepared)
                    : fcc_gemv_all_reduce_prepare(l->comm, &gemv, prepared);
    gemv.schedule = FCC_SCHEDULE_FUSED;
    gemm.recv_rows = NULL;
    return rows ? fcc_gemm_all_to_all_enqueue(l->comm, &gemm, l->stream, NULL)
                : fcc_gemv_all_reduce_enqueue(l->comm, &gemv, l->stream, NULL);
}

static void each_call(struct lane *l, enum work work, void (*make)(struct lane *l, const struct call *c))
{
    for (int input = 0; input < NVICTIMS; input++)
        for (int same = 0; same < 2; same++)
            make(l, &(struct call){work, input, same, same == input});
}

static void scene_run(void (*rank)(int, const struct ranks *, void *))
{
    struct test_daemon d;

    fake_start(&d, GPUS, NULL);
    ranks_all(GPUS, rank);
    CHECK(fake->wrong == 0);
    fake_stop(&d);
}

/* ---- prepared ---- */

static void prepared_refused(struct lane *l, const struct call *c)
{
    char input[40], result[32];
    fcc_prepared *p = NULL;

    says(c, true, input, result);
    FAILS(call_make(l, c, &p), -EINVAL, "rank 1: ", input, result, "allowed are inputs that no result is stored into");
    CHECK(!p);
}

static void prepared_rank(int rank, const struct ranks *all, void *argument)
{
    struct lane l;

    (void)argument;
    lane_open(&l, all, rank, 0);
    for (int work = 0; work < WORKS; work++)
        each_call(&l, (enum work)work, prepared_refused);
    lane_works(&l);
    lane_close(&l);
}

static void prepared(void)
{
    scene_run(prepared_rank);
}

/* ---- repeated ---- */

static void untouched_check(void *result)
{
    int rows, cols;
    const float *data = result_data(result, &rows, &cols);

    for (int i = 0; i < rows * cols; i++)
        CHECK(isnan(data[i]));
}

static void repeated_run(struct lane *l, enum work work)
{
    struct fcc_gemm_all_to_all_args args = gemm_args(l);

    if (work == ONE_STEP) {
        sum_runs(l, 1);
        return;
    }
    args.recv_rows = NULL;
    CHECK(gpu.stream_function(l->stream, result_wipe, &l->results[work]) == 0);
    OK(fcc_gemm_all_to_all_enqueue(l->comm, &args, l->stream, NULL));
    CHECK(gpu.stream_function(l->stream, sum_check, &l->results[work]) == 0);
}

static void repeated_runs(struct lane *l, enum work work, int n)
{
    for (int i = 0; i < n; i++)
        repeated_run(l, work);
    all_well(l);
}

/* By now their kernels stand on the streams before the worker has seen the arguments. Of those that are refused none has stored anything. */
static void repeated_refused(struct lane *l, const struct call *c)
{
    char input[40], result[32];

    says(c, false, input, result);
    CHECK(gpu.stream_function(l->stream, result_wipe, &l->results[c->work]) == 0);
    if (c->grouped)
        fcc_group_begin();
    for (int i = 0; i < 3; i++)
        OK(call_make(l, c, NULL));
    if (c->grouped)
        OK(fcc_group_end());
    CHECK(gpu.stream_function(l->stream, untouched_check, &l->results[c->work]) == 0);
    stream_sync(l->stream);
    FAILS(fcc_comm_error_wait(l->comm, -1), -EINVAL, "rank 1: ", input, result);
    OK(fcc_comm_error_wait(l->comm, -1)); /* the first of them was kept */
    OK(fcc_noop(l->comm));                /* nobody stores any more: what comes next may spoil the results */
    repeated_runs(l, c->work, UNTIL + MORE);
}

static void repeated_rank(int rank, const struct ranks *all, void *argument, enum work work)
{
    struct lane l;
    int bound;

    (void)argument;
    lane_open(&l, all, rank, 0);
    repeated_runs(&l, work, UNTIL + MORE);
    bound = fake->bound;
    CHECK(bound > 0);
    each_call(&l, work, repeated_refused);
    CHECK(fake->recalled > 0); /* they had been put onto the streams */
    CHECK(fake->bound > bound);
    lane_close(&l);
}

static void repeated_gemv_rank(int rank, const struct ranks *all, void *argument)
{
    repeated_rank(rank, all, argument, ONE_STEP);
}

static void repeated_gemm_rank(int rank, const struct ranks *all, void *argument)
{
    repeated_rank(rank, all, argument, ROWS_SENT);
}

static void repeated_gemv(void)
{
    scene_run(repeated_gemv_rank);
}

static void repeated_gemm(void)
{
    scene_run(repeated_gemm_rank);
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {
        {"prepared", prepared, 0},
        {"repeated_gemv", repeated_gemv, 0},
        {"repeated_gemm", repeated_gemm, 0},
    };
    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_overlap", TESTS(tests));
}
