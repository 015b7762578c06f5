/* SPDX-License-Identifier: MIT
 *
 * rank.c - one rank in a process of its own: connect, join, then for each workload its buffers, the timed runs and the checked
 * runs.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "tests/demo/demo.h"

#define ID_LIMIT_MS 20000
#define LEAVE_LIMIT_MS (DEMO_LIMIT_S * 1000)

const struct workload *const demo_workloads[DEMO_WORKLOADS] = {
    [DEMO_DLRM] = &dlrm_workload,
    [DEMO_MLP_BF16] = &mlp_bf16_workload,
    [DEMO_MLP_F32] = &mlp_f32_workload,
    [DEMO_MOE] = &moe_workload,
};

static const enum fcc_schedule_kind kinds[DEMO_SCHEDULES] = {
    [DEMO_FUSED] = FCC_SCHEDULE_FUSED,
    [DEMO_SEQUENTIAL] = FCC_SCHEDULE_SEQUENTIAL,
};

size_t demo_result_bytes(const struct demo *demo, enum demo_workload which)
{
    const struct workload *w = demo_workloads[which];
    int64_t most = 1;

    for (int r = 0; r < DEMO_RANKS; r++)
        most = w->elements(demo, r) > most ? w->elements(demo, r) : most;
    return (size_t)most * fcc_dtype_size(w->dtype);
}

static int failed_call(struct member *m, int status, const char *what)
{
    return error_set(&m->report->error, status, "%s: %s", what, fcc_last_error());
}

int member_alloc(struct member *m, enum fcc_buffer_kind kind, size_t bytes, fcc_buffer **out)
{
    int status = fcc_buffer_alloc(m->comm, kind, bytes ? bytes : 1, out);

    return status ? failed_call(m, status, "fcc_buffer_alloc") : 0;
}

static double now_s(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Until somebody has set the flag (then its writes before that are seen), or failed, or the time is up. */
static int flag_wait(struct member *m, _Atomic int *flag, int limit_ms, const char *what)
{
    const struct timespec step = {.tv_nsec = 1000000};

    for (double end = now_s() + limit_ms * 1e-3; now_s() < end; (void)nanosleep(&step, NULL)) {
        if (atomic_load_explicit(flag, memory_order_acquire))
            return 0;
        if (atomic_load_explicit(&m->demo->shared->failed, memory_order_relaxed))
            return error_set(&m->report->error, -ECONNABORTED, "%s: another rank failed", what);
    }
    return error_set(&m->report->error, -ETIMEDOUT, "%s: not there after %d s", what, limit_ms / 1000);
}

static int join(struct member *m)
{
    const struct fcc_connect_options options = {.socket_path = m->demo->socket, .job = m->demo->job};
    struct demo_shared *shared = m->demo->shared;
    int status = fcc_connect(&options, &m->context);

    if (status)
        return failed_call(m, status, "fcc_connect");
    if (m->rank == 0) {
        status = fcc_get_unique_id(m->context, &shared->id);
        if (status)
            return failed_call(m, status, "fcc_get_unique_id");
        atomic_store_explicit(&shared->have_id, 1, memory_order_release);
    } else {
        status = flag_wait(m, &shared->have_id, ID_LIMIT_MS, "the communicator's id from rank 0");
        if (status)
            return status;
    }
    status = fcc_comm_init(m->context, &shared->id, DEMO_RANKS, m->rank, NULL, &m->comm);
    return status ? failed_call(m, status, "fcc_comm_init") : 0;
}

static int meet(struct member *m)
{
    int status = fcc_noop(m->comm);

    return status ? failed_call(m, status, "fcc_noop") : 0;
}

/* Once, timed, all ranks starting together. */
static int run_timed(struct member *m, enum demo_workload which, enum demo_schedule schedule, double *seconds)
{
    const struct workload *w = demo_workloads[which];
    int status = meet(m);
    double start = now_s();

    if (status)
        return status;
    status = w->run(m, kinds[schedule]);
    *seconds = now_s() - start;
    return status ? failed_call(m, status, w->op) : 0;
}

/* Once onto poison, which is not a number in any dtype. All ranks have poisoned before any of them sends, and all have copied
 * before anybody goes on. */
static int run_checked(struct member *m, enum demo_workload which, enum demo_schedule schedule)
{
    const struct workload *w = demo_workloads[which];
    size_t bytes = (size_t)w->elements(m->demo, m->rank) * fcc_dtype_size(w->dtype);
    void *result = fcc_buffer_data(m->out[which]);
    int status;

    memset(result, 0xff, fcc_buffer_size(m->out[which]));
    status = meet(m);
    if (status)
        return status;
    status = w->run(m, kinds[schedule]);
    if (status)
        return failed_call(m, status, w->op);
    memcpy(m->demo->results[which][schedule][m->rank], result, bytes);
    return meet(m);
}

/* Fused and sequential take turns, and who begins too, so that what disturbs the machine meets both. */
static int run_workload(struct member *m, enum demo_workload which)
{
    int status = demo_workloads[which]->open(m);

    for (int i = -1; i < DEMO_ITERS && status == 0; i++) {
        for (int j = 0; j < DEMO_SCHEDULES && status == 0; j++) {
            enum demo_schedule schedule = (enum demo_schedule)(i & 1 ? DEMO_SCHEDULES - 1 - j : j);
            double seconds;
            status = run_timed(m, which, schedule, &seconds);
            if (status == 0 && i >= 0)
                m->report->seconds[which][schedule][i] = seconds;
        }
    }
    for (int j = 0; j < DEMO_SCHEDULES && status == 0; j++)
        status = run_checked(m, which, (enum demo_schedule)j);
    return status;
}

/* The operator whose timeline the parent draws must be the communicator's last one, and its job still be there. */
static int be_traced(struct member *m)
{
    double seconds;
    int status = run_timed(m, DEMO_DLRM, DEMO_FUSED, &seconds);

    if (status)
        return status;
    (void)atomic_fetch_add_explicit(&m->demo->shared->traced, 1, memory_order_release);
    return flag_wait(m, &m->demo->shared->leave, LEAVE_LIMIT_MS, "the timeline");
}

int rank_main(const struct demo *demo, int rank)
{
    struct member m = {.demo = demo, .rank = rank, .report = &demo->shared->ranks[rank]};
    int status = join(&m);

    for (int w = 0; w < DEMO_WORKLOADS && status == 0; w++)
        status = run_workload(&m, (enum demo_workload)w);
    if (status == 0)
        status = be_traced(&m);
    if (status)
        atomic_store_explicit(&demo->shared->failed, 1, memory_order_relaxed);
    else
        fcc_comm_destroy(m.comm);
    fcc_disconnect(m.context);
    return status ? 1 : 0;
}
