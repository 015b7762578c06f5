/* SPDX-License-Identifier: MIT
 *
 * fake_gpu_offers.h - what the tests of operators that are offered have in common.
 */
#ifndef FAKE_GPU_OFFERS_H
#define FAKE_GPU_OFFERS_H

#include "tests/fake_gpu/fake_gpu_runs.h"

enum {
    UNTIL = 16 + 128 + 16, /* operators by which they are offered: asked for, from then on so many, and some */
    MORE = 100,
    GRANTED_AHEAD = 16, /* daemon/worker/device/gpu/parts.h */
};

static inline void ranks_all(int n, void (*rank)(int, const struct ranks *, void *))
{
    struct ranks r;

    ranks_start(&r, n, rank, NULL);
    ranks_join(&r);
}

/* The result, if something was computed. */
static inline void offered_check(void *result)
{
    int rows, cols;
    const float *data = result_data(result, &rows, &cols);

    if (!isnan(data[0]) || !isnan(data[rows * cols - 1]))
        result_check(result);
}

static inline void offered_run(struct lane *l, uint32_t schedule, void *stream, fcc_request **out)
{
    struct fcc_gemv_all_reduce_args args = gemv_args(l, ONE_STEP);

    args.schedule = schedule;
    CHECK(gpu.stream_function(stream, result_wipe, &l->results[ONE_STEP]) == 0);
    OK(fcc_gemv_all_reduce_enqueue(l->comm, &args, stream, out));
    CHECK(gpu.stream_function(stream, offered_check, &l->results[ONE_STEP]) == 0);
}

static inline void offered_runs(struct lane *l, int n)
{
    for (int i = 0; i < n; i++)
        offered_run(l, FCC_SCHEDULE_FUSED, l->stream, NULL);
}

static inline void all_well(struct lane *l)
{
    stream_sync(l->stream);
    OK(fcc_noop(l->comm));
    OK(fcc_comm_error(l->comm));
}

#endif
