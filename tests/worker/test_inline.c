/* SPDX-License-Identifier: MIT
 *
 * test_inline.c - small operators of several cpu devices, which the engine runs itself and with its helpers, without clients: results
 * are right whoever takes which part, however many helpers there are and share a part. Meant for the thread sanitizer.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/worker/comm/comm.h"
#include "daemon/worker/comm/turn.h"
#include "daemon/worker/device/device.h"
#include "daemon/worker/device/helpers.h"
#include "daemon/worker/device/launch.h"
#include "daemon/worker/nodes/nodes.h"
#include "daemon/worker/track/track.h"
#include "kernels/cpu/view.h"

#define RANKS 4
#define ROUNDS 300

/* A worker with RANKS devices, and a communicator with a rank on each. */
struct bed {
    struct worker w;
    struct device devices[RANKS];
    struct comm *c;
    unsigned seed;
};

static void bed_open(struct bed *b, int helpers)
{
    struct error e = {0};
    int account;

    *b = (struct bed){.seed = 1};
    b->w = (struct worker){.control = -1,
                           .wake_fd = -1,
                           .devices = b->devices,
                           .ndevices = RANKS,
                           .cores = 64,
                           .span = &span_over_nodes,
                           .track = &track_over_rules};
    assert_return_code(sched_getaffinity(0, sizeof(b->w.affinity), &b->w.affinity), 0);
    b->w.config.spin_us = 100000;
    b->w.config.cpu_workgroups = 1;
    b->w.config.memory_per_user_mb = 64;
    b->w.base = event_base_new();
    b->w.views = views_new();
    b->w.helpers_tried = true; /* so there are as many as it says here */
    TAILQ_INIT(&b->w.sessions);
    LIST_INIT(&b->w.comms);
    assert_true(b->w.base && b->w.views);
    assert_int_equal(account_make(&b->w.account, 1, &account), 0);
    (void)close(account);
    memset(&b->w.limits, 0x7f, sizeof(b->w.limits)); /* nobody reaches them */
    assert_int_equal(helpers_open(helpers, b->w.config.spin_us, &b->w.helpers, &e), 0);
    for (int i = 0; i < RANKS; i++) {
        b->devices[i] = (struct device){.ops = &device_cpu, .worker = &b->w, .index = i, .workgroups = 1};
        assert_int_equal(device_open(&b->devices[i], &e), 0);
    }
    struct comm *c = b->c = calloc(1, sizeof(*c) + RANKS * sizeof(c->members[0]));
    assert_non_null(c);
    c->dev.ops = &device_cpu;
    c->worker = c->dev.worker = &b->w;
    c->dev.ranks = calloc(RANKS, sizeof(c->dev.ranks[0]));
    assert_non_null(c->dev.ranks);
    c->state = COMM_ACTIVE;
    c->nranks = c->dev.nranks = RANKS;
    c->dev.time_limit_ms = 30000;
    c->problem = problem_new(RANKS);
    c->args = calloc(RANKS, sizeof(c->args[0]));
    assert_non_null(c->args);
    c->tune = tune_new();
    c->timer = evtimer_new(b->w.base, comm_deadline_passed, c);
    LIST_INIT(&c->trace_waiters);
    LIST_INSERT_HEAD(&b->w.comms, c, link);
    assert_true(c->problem && c->tune && c->timer && !device_cpu.comm_open(b->devices, &c->dev, &e));
    for (int r = 0; r < RANKS; r++) {
        struct member *m = &c->members[r];
        *m = (struct member){.comm = c, .rank = r, .dev = &c->dev.ranks[r], .state = MEMBER_JOINED};
        m->dev->device = &b->devices[r];
        TAILQ_INIT(&m->queue);
        assert_int_equal(device_memory_alloc(m->dev->device, GPU_FLAG_WORDS * sizeof(uint64_t), &m->dev->flags, NULL, &e), 0);
    }
}

static void bed_close(struct bed *b)
{
    comm_release(b->c);
    helpers_close(b->w.helpers);
    for (int i = 0; i < RANKS; i++)
        device_close(&b->devices[i]);
    views_free(b->w.views);
    event_base_free(b->w.base);
    account_close(&b->w.account);
}

/* Small numbers, so that sums are exact in any order. */
static struct tensor matrix(struct bed *b, int64_t rows, int64_t cols)
{
    struct tensor t = {.dtype = FCC_F32, .ndim = 2, .shape = {rows, cols}, .stride = {cols, 1}, .symmetric = true};

    t.data = aligned_alloc(64, (size_t)(rows * cols + 15) / 16 * 64);
    assert_non_null(t.data);
    for (int64_t i = 0; i < rows * cols; i++)
        ((float *)(void *)t.data)[i] = (float)((int)(rand_r(&b->seed) % 9) - 4);
    return t;
}

static float at(const struct tensor *t, int64_t row, int64_t col)
{
    return ((const float *)(const void *)t->data)[row * t->stride[0] + col];
}

/* One operator of all ranks, which is small enough to have ended when this returns. */
static void operator_try(struct bed *b, enum fcc_op op, enum fcc_schedule_kind kind, struct tensor tensors[RANKS][3])
{
    struct error e = {0};

    for (int r = 0; r < RANKS; r++) {
        struct member *m = &b->c->members[r];
        struct submission *sub = submission_new(NULL, SUBMISSION_OPERATOR, 0, 0);
        assert_non_null(sub);
        sub->args.op = op;
        sub->args.schedule = kind;
        sub->args.ntensors = 3;
        memcpy(sub->args.tensors, tensors[r], sizeof(tensors[r]));
        TAILQ_INSERT_TAIL(&m->queue, sub, link);
        m->queued++;
        m->next = sub;
    }
    assert_int_equal(launch_begin(b->c, &e), 0);
    assert_null(b->c->dev.current);
    assert_true(b->c->last->inline_ && b->c->last->is_long);
}

static void operator_run(struct bed *b, enum fcc_op op, enum fcc_schedule_kind kind, struct tensor tensors[RANKS][3])
{
    operator_try(b, op, kind, tensors);
    assert_int_equal(b->c->last->error.status, 0);
}

static void gemvs_run(struct bed *b, enum fcc_schedule_kind kind)
{
    enum { M = 2, N = 203, K = 70 };
    struct tensor t[RANKS][3];
    float *expected = calloc(M * N, sizeof(*expected));

    assert_non_null(expected);
    for (int r = 0; r < RANKS; r++) {
        t[r][FCC_GEMV_X] = matrix(b, M, K);
        t[r][FCC_GEMV_W] = matrix(b, N, K);
        t[r][FCC_GEMV_Y] = matrix(b, M, N);
        for (int i = 0; i < M * N; i++)
            for (int k = 0; k < K; k++)
                expected[i] += at(&t[r][FCC_GEMV_X], i / N, k) * at(&t[r][FCC_GEMV_W], i % N, k);
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (int r = 0; r < RANKS; r++)
            memset(t[r][FCC_GEMV_Y].data, 0xff, M * N * sizeof(float));
        operator_run(b, FCC_OP_GEMV_ALL_REDUCE, kind, t);
        for (int r = 0; r < RANKS; r++)
            assert_memory_equal(t[r][FCC_GEMV_Y].data, expected, M * N * sizeof(float));
    }
    for (int r = 0; r < RANKS; r++)
        for (int i = 0; i < 3; i++)
            free(t[r][i].data);
    free(expected);
}

/* Rank r's rows of the product go to the ranks in turn; its c has those of all ranks, in rank order. */
static void gemms_run(struct bed *b, enum fcc_schedule_kind kind)
{
    enum { EACH = 7, M = EACH * RANKS, N = 37, K = 41 };
    struct tensor t[RANKS][3];
    float *expected = calloc(RANKS * M * N, sizeof(*expected));

    assert_non_null(expected);
    for (int r = 0; r < RANKS; r++) {
        t[r][FCC_GEMM_A] = matrix(b, M, K);
        t[r][FCC_GEMM_B] = matrix(b, K, N);
        t[r][FCC_GEMM_C] = matrix(b, M, N);
        for (int i = 0; i < M * N; i++) {
            int row = i / N, dst = row / EACH;
            float *to = &expected[(dst * M + r * EACH + row % EACH) * N + i % N];
            for (int k = 0; k < K; k++)
                *to += at(&t[r][FCC_GEMM_A], row, k) * at(&t[r][FCC_GEMM_B], k, i % N);
        }
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (int r = 0; r < RANKS; r++)
            memset(t[r][FCC_GEMM_C].data, 0xff, M * N * sizeof(float));
        operator_run(b, FCC_OP_GEMM_ALL_TO_ALL, kind, t);
        for (int r = 0; r < RANKS; r++)
            assert_memory_equal(t[r][FCC_GEMM_C].data, expected + r * M * N, M * N * sizeof(float));
    }
    for (int r = 0; r < RANKS; r++)
        for (int i = 0; i < 3; i++)
            free(t[r][i].data);
    free(expected);
}

static void results_are_right(void **state)
{
    static const int helpers[] = {0, 1, RANKS - 1, HELPERS_MAX};

    (void)state;
    for (size_t i = 0; i < sizeof(helpers) / sizeof(helpers[0]); i++) {
        struct bed b;
        bed_open(&b, helpers[i]);
        gemvs_run(&b, FCC_SCHEDULE_FUSED);
        gemvs_run(&b, FCC_SCHEDULE_SEQUENTIAL);
        gemms_run(&b, FCC_SCHEDULE_FUSED);
        gemms_run(&b, FCC_SCHEDULE_SEQUENTIAL);
        bed_close(&b);
    }
}

/* A plan with an error in it: rank 1 waits for a flag that nobody raises. All ranks hear of that within the time limit, and the next
 * operator is as good as any. */
static void a_plan_waits_for_ever(void **state)
{
    enum { N = 256, K = 64, LIMIT_MS = 30, NOBODYS = PLAN_MAX_FLAGS - 1 };
    static const int helpers[] = {0, RANKS - 1};

    (void)state;
    for (size_t i = 0; i < sizeof(helpers) / sizeof(helpers[0]); i++) {
        struct tensor t[RANKS][3];
        struct bed b;
        uint32_t at = 0, right;

        bed_open(&b, helpers[i]);
        const uint32_t ample = b.c->dev.time_limit_ms;
        for (int r = 0; r < RANKS; r++) {
            t[r][FCC_GEMV_X] = matrix(&b, 1, K);
            t[r][FCC_GEMV_W] = matrix(&b, N, K);
            t[r][FCC_GEMV_Y] = matrix(&b, 1, N);
        }
        operator_run(&b, FCC_OP_GEMV_ALL_REDUCE, FCC_SCHEDULE_FUSED, t);
        struct plan *plan = b.c->last->runs[1].plan;
        while (!plan->slices[at].wait_count)
            assert_true(++at < plan->nslices);
        right = plan->slices[at].wait_first;
        plan->slices[at].wait_first = NOBODYS;
        b.c->dev.time_limit_ms = LIMIT_MS;
        operator_try(&b, FCC_OP_GEMV_ALL_REDUCE, FCC_SCHEDULE_FUSED, t);
        b.c->dev.time_limit_ms = ample;
        assert_int_equal(b.c->last->error.status, -ETIMEDOUT);
        assert_non_null(
            strstr(b.c->last->error.text, "gemv_all_reduce: within 30 ms not all that its plan waits for has come"));
        plan->slices[at].wait_first = right;
        operator_run(&b, FCC_OP_GEMV_ALL_REDUCE, FCC_SCHEDULE_FUSED, t);
        for (int r = 0; r < RANKS; r++)
            for (int j = 0; j < 3; j++)
                free(t[r][j].data);
        bed_close(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_are_right),
        cmocka_unit_test(a_plan_waits_for_ever),
    };
    return cmocka_run_group_tests_name("inline", tests, NULL, NULL);
}
