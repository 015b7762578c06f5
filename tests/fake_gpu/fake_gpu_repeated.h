/* SPDX-License-Identifier: MIT
 *
 * fake_gpu_repeated.h - what the tests of repeated operators have in common.
 */
#ifndef FAKE_GPU_REPEATED_H
#define FAKE_GPU_REPEATED_H

#include "tests/fake_gpu/fake_gpu_runs.h"

enum {
    /* Operators by which they are bound: asked for; bound, which the ranks notice with as many in flight as can be, and adopt; the worker notices
     * that in the same way, and lets them run from so many on. */
    UNTIL = 16 + 3 * 65 + 16,
    MORE = 100,
    BOUND_AHEAD = 16, /* daemon/worker/device/gpu/parts.h */
};

static inline void ranks_all(int n, void (*rank)(int, const struct ranks *, void *))
{
    struct ranks r;

    ranks_start(&r, n, rank, NULL);
    ranks_join(&r);
}

/* The result, if something was computed. */
static inline void sum_check(void *result)
{
    int rows, cols;
    const float *data = result_data(result, &rows, &cols);

    if (!isnan(data[0]) || !isnan(data[rows * cols - 1]))
        result_check(result);
}

static inline void sum_run(struct lane *l, uint32_t schedule, void *stream, fcc_request **out)
{
    struct fcc_gemv_all_reduce_args args = gemv_args(l, ONE_STEP);

    args.schedule = schedule;
    CHECK(gpu.stream_function(stream, result_wipe, &l->results[ONE_STEP]) == 0);
    OK(fcc_gemv_all_reduce_enqueue(l->comm, &args, stream, out));
    CHECK(gpu.stream_function(stream, sum_check, &l->results[ONE_STEP]) == 0);
}

static inline void sum_runs(struct lane *l, int n)
{
    for (int i = 0; i < n; i++)
        sum_run(l, FCC_SCHEDULE_FUSED, l->stream, NULL);
}

static inline void all_well(struct lane *l)
{
    stream_sync(l->stream);
    OK(fcc_noop(l->comm));
    OK(fcc_comm_error(l->comm));
}

#endif
