/* SPDX-License-Identifier: MIT
 *
 * test_fccctl_trace.c - what `fccctl trace` shows: of slices that were computed together, and of the next operator.
 */
#include "tests/fccctl/fccctl_run.h"

static void product_rank(int rank, const struct ranks *all, void *argument)
{
    enum { M = 256, N = 256, K = 256 };
    struct stage *stage = argument;
    fcc_comm *comm = comm_open(all, rank, 0);
    fcc_buffer *a, *b, *c;

    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, M * K * 4, &a));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, K * N * 4, &b));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, M * N * 4, &c));
    struct fcc_gemm_all_to_all_args args = {.a = fcc_tensor_2d(a, 0, FCC_F32, M, K),
                                            .b = fcc_tensor_2d(b, 0, FCC_F32, K, N),
                                            .c = fcc_tensor_2d(c, 0, FCC_F32, M, N),
                                            .schedule = FCC_SCHEDULE_FUSED};
    OK(fcc_gemm_all_to_all(comm, &args));
    stage->ready++;
    while (!stage->go)
        (void)usleep(1000);
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

/* Slices that a workgroup computes by one product: each has its own part of the time, and all together no more than there was. */
static void trace_together(void)
{
    struct test_daemon d;
    struct ranks r;
    struct stage *stage = shared_memory(sizeof(*stage));
    double until = await_end();

    daemon_start(&d, (const char *const[]){"--cpu-workgroups", "1", NULL});
    ranks_start(&r, 2, product_rank, stage);
    while (stage->ready < 2)
        AWAITING(until);
    CHECK(FCCCTL("trace", "--json") == 0);
    struct json_object *o = parse();
    for (int rank = 0; rank < 2; rank++) {
        char path[64];
        int64_t end = 0;
        (void)snprintf(path, sizeof(path), "ranks.%d.workgroups.0.events", rank);
        struct json_object *events = field(o, path);
        size_t computed = 0, n = json_object_array_length(events);
        for (size_t i = 0; i < n; i++) {
            struct json_object *e = json_object_array_get_idx(events, i);
            bool computes = strcmp(text(e, "kind"), "compute+put") == 0;
            CHECK(number(e, "start_ns") >= end && number(e, "end_ns") >= number(e, "start_ns"));
            CHECK(!computes || number(e, "end_ns") > number(e, "start_ns"));
            CHECK(!computes || computed == 0 || number(e, "start_ns") == end); /* they were together */
            end = number(e, "end_ns");
            computed += computes;
        }
        CHECK(computed == 2 && end <= number(o, "duration_ns"));
    }
    (void)json_object_put(o);
    stage->go = 1;
    ranks_join(&r);
    daemon_stop(&d);
    free(output);
    output = NULL;
}

static void next_rank(int rank, const struct ranks *all, void *argument)
{
    struct stage *stage = argument;
    fcc_comm *comm = comm_open(all, rank, 0);

    while (!stage->go)
        gemv_once(comm, 1), (void)usleep(2000);
    (void)stage;
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void trace_next(void)
{
    struct test_daemon d;
    struct ranks r;
    struct stage *stage = shared_memory(sizeof(*stage));

    daemon_start(&d, NULL);
    ranks_start(&r, 1, next_rank, stage);
    double until = await_end();
    while (FCCCTL("trace", "--next", "--wait", "5", "--json") != 0) /* until the rank has joined */
        AWAITING(until);
    struct json_object *o = parse();
    CHECK(strcmp(text(o, "op"), "gemv_all_reduce") == 0);
    (void)json_object_put(o);
    CHECK(FCCCTL("trace", "--json") == 0); /* the last one, also while the next one runs */
    stage->go = 1;
    ranks_join(&r);
    daemon_stop(&d);
    free(output);
    output = NULL;
}

int main(void)
{
    static const struct test tests[] = {
        {"trace_together", trace_together, 0},
        {"trace_next", trace_next, 0},
    };
    return tests_run("fccctl_trace", TESTS(tests));
}
