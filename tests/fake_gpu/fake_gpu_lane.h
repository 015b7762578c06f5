/* SPDX-License-Identifier: MIT
 *
 * fake_gpu_lane.h - a rank whose operators stand in the fake GPUs' queues one behind the other.
 */
#ifndef FAKE_GPU_LANE_H
#define FAKE_GPU_LANE_H

#include "tests/fake_gpu/fake_gpu_bed.h"

enum { AHEAD = 4 /* daemon/worker/device/gpu/device.c */, MANY = 2 * AHEAD + 1 };

/* A sanitizer's build on a machine that does other things takes its time for what is to be in time. */
static inline int limit_ms(void)
{
    return getenv("FCC_TEST_SLOW") ? 8000 : 1500;
}

/* Nothing more is put into the queues, though there would have been time. The first ones run. */
static inline void enqueued_stays(int n)
{
    await(&fake->enqueued, n);
    await(&fake->begun, PAIR);
    (void)usleep(20000);
    CHECK(fake->enqueued == n);
}

/* A rank with a product, a stream, and what it has asked for. */
struct lane {
    fcc_context *context;
    struct product p;
    void *stream;
    fcc_request *requests[MANY];
};

static inline struct lane lane_open(const struct ranks *all, int rank, uint32_t time_limit_ms)
{
    struct lane l;

    driver_use();
    l.context = client_connect(NULL);
    l.p = fused_open(client_join(l.context, &all->id, all->n, rank, time_limit_ms));
    l.stream = stream_open();
    return l;
}

/* The first row alone, which is done in one step: its partial sums go to all ranks. */
static inline struct product first_row(struct product p)
{
    p.args.x.shape[0] = p.args.y.shape[0] = 1;
    p.args.schedule = FCC_SCHEDULE_FUSED; /* in sequence it has flags */
    return p;
}

static inline void requests_free(fcc_request *requests[], int n)
{
    for (int i = 0; i < n; i++)
        fcc_request_free(requests[i]);
}

/* It has n requests. */
static inline void lane_close(struct lane *l, int n)
{
    requests_free(l->requests, n);
    stream_close(l->stream);
    fcc_comm_destroy(l->p.comm);
    client_end(l->context);
}

#endif
