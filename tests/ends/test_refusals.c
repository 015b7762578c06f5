/* SPDX-License-Identifier: MIT
 *
 * test_refusals.c - what one rank's own process refuses is an operator in its order: all ranks are told, with the rank and the argument, and
 * the operators behind it are taken together rightly. On one node and over two. FCC_TEST_DEVICE=cuda or hip: the same on GPUs.
 */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "tests/bed/harness.h"

enum { N = 100, K = 16, RANKS = 3, LIMIT_MS = 20000 };

/* A rank, and a gemv whose result says which of each rank's operators it is of. */
struct scene {
    fcc_comm *comm;
    int rank, step;
    fcc_buffer *x, *w, *y;
    struct fcc_gemv_all_reduce_args args;
};

static void scene_open(struct scene *s, fcc_comm *comm, int rank)
{
    float w[N * K];

    *s = (struct scene){.comm = comm, .rank = rank};
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, K * 4, &s->x));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, N * K * 4, &s->w));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, N * 4, &s->y));
    for (int i = 0; i < N * K; i++)
        w[i] = 1;
    OK(fcc_buffer_write(s->w, 0, w, sizeof(w)));
    s->args = (struct fcc_gemv_all_reduce_args){.x = fcc_tensor_2d(s->x, 0, FCC_F32, 1, K),
                                                .w = fcc_tensor_2d(s->w, 0, FCC_F32, N, K),
                                                .y = fcc_tensor_2d(s->y, 0, FCC_F32, 1, N)};
}

static void next_works(struct scene *s)
{
    float x[K], y[N];

    s->step++;
    for (int i = 0; i < K; i++)
        x[i] = (float)((s->rank + 1) * s->step);
    OK(fcc_buffer_write(s->x, 0, x, sizeof(x)));
    OK(fcc_gemv_all_reduce(s->comm, &s->args));
    OK(fcc_buffer_read(s->y, 0, y, sizeof(y)));
    for (int i = 0; i < N; i++)
        CHECK(fabsf(y[i] - (float)(K * (1 + 2 + 3) * s->step)) < 1e-3f);
}

/* ---- what rank 1 calls, and its process refuses ---- */

static int call_ndim(struct scene *s)
{
    struct fcc_gemv_all_reduce_args args = s->args;

    args.x.ndim = 5;
    return fcc_gemv_all_reduce(s->comm, &args);
}

static int call_dtype(struct scene *s)
{
    struct fcc_gemv_all_reduce_args args = s->args;

    args.w.dtype = 65536;
    return fcc_gemv_all_reduce(s->comm, &args);
}

static int call_schedule(struct scene *s)
{
    struct fcc_gemv_all_reduce_args args = s->args;

    args.schedule = 300;
    return fcc_gemv_all_reduce(s->comm, &args);
}

static int call_reserved(struct scene *s)
{
    struct fcc_gemv_all_reduce_args args = s->args;

    args.reserved[2] = 1;
    return fcc_gemv_all_reduce(s->comm, &args);
}

/* Several at once: the first one counts. */
static int call_gemm(struct scene *s)
{
    struct fcc_gemm_all_to_all_args args = {.b = s->args.w, .c = s->args.y, .reserved[6] = 7};

    args.b.ndim = 9;
    return fcc_gemm_all_to_all(s->comm, &args);
}

static int call_scatter(struct scene *s)
{
    struct fcc_gemm_reduce_scatter_args args = {.b = s->args.w, .c = s->args.y, .reserved[1] = 5};

    return fcc_gemm_reduce_scatter(s->comm, &args);
}

static int call_both_orders(struct scene *s)
{
    struct fcc_gemv_all_reduce_args args = s->args;

    args.schedule = FCC_SCHEDULE_FUSED | FCC_SCHEDULE_BATCH_INVARIANT | FCC_SCHEDULE_ANY_ORDER;
    return fcc_gemv_all_reduce(s->comm, &args);
}

static int call_tables(struct scene *s)
{
    return fcc_embedding_all_to_all(s->comm, &(struct fcc_embedding_all_to_all_args){.num_tables = FCC_MAX_TABLES + 1});
}

static int call_table_rows(struct scene *s)
{
    return fcc_embedding_all_to_all(s->comm, &(struct fcc_embedding_all_to_all_args){.num_tables = 3});
}

static int call_no_args(struct scene *s)
{
    return fcc_gemm_all_to_all(s->comm, NULL);
}

static int call_start(struct scene *s)
{
    struct fcc_gemv_all_reduce_args args = s->args;
    fcc_request *request = NULL;

    args.y.ndim = 6;
    int status = fcc_gemv_all_reduce_start(s->comm, &args, &request);
    CHECK(!request);
    return status;
}

static int call_start_no_args(struct scene *s)
{
    fcc_request *request = NULL;

    return fcc_embedding_all_to_all_start(s->comm, NULL, &request);
}

static int call_no_request(struct scene *s)
{
    return fcc_noop_start(s->comm, NULL);
}

static int call_enqueue(struct scene *s)
{
    struct fcc_gemv_all_reduce_args args = s->args;

    args.x.dtype = 1u << 20;
    int status = fcc_gemv_all_reduce_enqueue(s->comm, &args, NULL, NULL);
    CHECK(fcc_comm_error(s->comm) == 0); /* it has been told */
    return status;
}

static int call_enqueue_recv_rows(struct scene *s)
{
    int64_t recv_rows[RANKS];
    struct fcc_gemm_all_to_all_args args = {.recv_rows = recv_rows};

    return fcc_gemm_all_to_all_enqueue(s->comm, &args, NULL, NULL);
}

static int call_stream_on_cpu(struct scene *s)
{
    return fcc_noop_enqueue(s->comm, NULL, NULL);
}

static int call_prepare(struct scene *s)
{
    struct fcc_gemv_all_reduce_args args = s->args;
    fcc_prepared *prepared;

    args.w.ndim = 77;
    return fcc_gemv_all_reduce_prepare(s->comm, &args, &prepared);
}

static int call_prepare_no_out(struct scene *s)
{
    return fcc_gemv_all_reduce_prepare(s->comm, &s->args, NULL);
}

static int call_alloc(struct scene *s)
{
    return fcc_buffer_alloc(s->comm, FCC_BUFFER_SYMMETRIC, 64, NULL);
}

/* What only the worker can refuse. */
static int alloc_symmetric(struct scene *s, size_t bytes)
{
    fcc_buffer *b = NULL;
    int status = fcc_buffer_alloc(s->comm, FCC_BUFFER_SYMMETRIC, bytes, &b);

    CHECK(!b == (status != 0));
    return status;
}

static int call_alloc_nothing(struct scene *s)
{
    return alloc_symmetric(s, 0);
}

static int call_alloc_too_much(struct scene *s)
{
    return alloc_symmetric(s, SIZE_MAX);
}

/* ---- what the others call meanwhile ---- */

static int others_gemv(struct scene *s)
{
    return fcc_gemv_all_reduce(s->comm, &s->args);
}

static int others_start(struct scene *s)
{
    fcc_request *request;

    OK(fcc_gemv_all_reduce_start(s->comm, &s->args, &request));
    int status = fcc_request_wait(request, -1);
    fcc_request_free(request);
    return status;
}

/* Another operator: that one is wrong by itself says more than that they differ. */
static int others_noop(struct scene *s)
{
    return fcc_noop(s->comm);
}

static int others_prepare(struct scene *s)
{
    fcc_prepared *prepared;

    return fcc_gemv_all_reduce_prepare(s->comm, &s->args, &prepared);
}

static int others_alloc(struct scene *s)
{
    return alloc_symmetric(s, 64);
}

static const struct refusal {
    int (*call)(struct scene *s);
    int (*others)(struct scene *s);
    bool cpu; /* only where ranks are on the cpu */
    const char *says[2];
} refusals[] = {
    {call_ndim, others_gemv, false, {"gemv_all_reduce: x: 5 dimensions: allowed are 1 to 4", ""}},
    {call_dtype, others_start, false, {"gemv_all_reduce: w: dtype 65536: allowed are", ""}},
    {call_schedule, others_gemv, false, {"gemv_all_reduce: schedule: 300: allowed are", ""}},
    {call_reserved, others_gemv, false, {"gemv_all_reduce: reserved[2]: 1: must be 0", ""}},
    {call_gemm, others_noop, false, {"gemm_all_to_all: reserved[6]: 7: must be 0", ""}},
    {call_scatter, others_noop, false, {"gemm_reduce_scatter: reserved[1]: 5: must be 0", ""}},
    {call_both_orders,
     others_gemv,
     false,
     {"gemv_all_reduce: schedule: 49: batch invariant (32) and in any order (16): allowed is one of the two", ""}},
    {call_tables, others_noop, false, {"embedding_all_to_all: num_tables: 4097: allowed are 0 to 4096", ""}},
    {call_table_rows, others_noop, false, {"embedding_all_to_all: table_rows: NULL", ""}},
    {call_no_args, others_gemv, false, {"gemm_all_to_all: args: NULL", ""}},
    {call_start, others_gemv, false, {"gemv_all_reduce: y: 6 dimensions", ""}},
    {call_start_no_args, others_noop, false, {"embedding_all_to_all: args: NULL", ""}},
    {call_no_request, others_noop, false, {"noop: out: NULL", ""}},
    {call_enqueue, others_start, false, {"gemv_all_reduce: x: dtype 1048576", ""}},
    {call_enqueue_recv_rows, others_noop, false, {"gemm_all_to_all: recv_rows: not NULL", ""}},
    {call_stream_on_cpu, others_noop, true, {"noop: stream: rank 1 is on a cpu device", ""}},
    {call_prepare, others_prepare, false, {"gemv_all_reduce_prepare: w: 77 dimensions", ""}},
    {call_prepare_no_out, others_prepare, false, {"gemv_all_reduce_prepare: out: NULL", ""}},
    {call_alloc, others_alloc, false, {"fcc_buffer_alloc", "out: NULL"}},
    {call_alloc_nothing, others_alloc, false, {"fcc_buffer_alloc (symmetric): bytes: 0: allowed are 1 to", ""}},
    {call_alloc_too_much,
     others_alloc,
     false,
     {"fcc_buffer_alloc (symmetric): bytes: 18446744073709551615: allowed are 1 to", ""}},
};

/* A kind that there is not is no call that all ranks make: it is refused where it is made, and the others are not concerned. Whoever
 * calls again rightly has what the others wait for. */
static void kind_unknown(struct scene *s)
{
    static const unsigned kinds[] = {3, 99, UINT32_MAX};
    fcc_buffer *b = NULL;

    for (size_t i = 0; s->rank == 1 && i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        FAILS(fcc_buffer_alloc(s->comm, (enum fcc_buffer_kind)kinds[i], 64, &b), -EINVAL,
              "rank 1: fcc_buffer_alloc: kind: ", "allowed are 0 to 2");
        CHECK(!b);
    }
    OK(alloc_symmetric(s, 64));
}

static void refusals_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene s;

    (void)argument;
    scene_open(&s, comm_open(all, rank, LIMIT_MS), rank);
    next_works(&s);
    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
        const struct refusal *r = &refusals[i];
        if (r->cpu && test_device() != FCC_DEVICE_CPU)
            continue;
        FAILS(rank == 1 ? r->call(&s) : r->others(&s), -EINVAL, "rank 1: ", r->says[0], r->says[1]);
        next_works(&s);
    }
    kind_unknown(&s);
    next_works(&s);
    FAILS(alloc_symmetric(&s, rank == 1 ? 65 : 64), -EINVAL,
          "fcc_buffer_alloc (symmetric): bytes: rank 1 has 65, rank 0 has 64");
    next_works(&s);
    /* one behind the other, before the others come to any */
    for (int i = 0; i < 4; i++)
        FAILS(rank == 1 ? call_start(&s) : others_gemv(&s), -EINVAL, "rank 1: gemv_all_reduce: y: 6 dimensions");
    next_works(&s);
    fcc_comm_destroy(s.comm);
    fcc_disconnect(comm_context());
}

static void nodes_run(int nodes, void (*run)(int rank, const struct ranks *all, void *argument), void *argument)
{
    struct test_daemon d;
    struct ranks r;

    daemons_start(&d, nodes, NULL);
    ranks_start(&r, RANKS, run, argument);
    ranks_join(&r);
    daemon_stop(&d);
}

static void one_node(void)
{
    nodes_run(1, refusals_rank, NULL);
}

static void two_nodes(void)
{
    nodes_run(2, refusals_rank, NULL);
}

/* ---- over the socket instead of the ring: refusals, and more operators in flight than the worker takes of a rank ---- */

static void no_ring_rank(int rank, const struct ranks *all, void *argument)
{
    enum { MANY = 1100 }; /* the worker takes 1024 */
    struct fcc_connect_options options = {.no_ring = 1};
    struct fcc_comm_options comm_options = {.device = -1, .device_kind = test_device(), .time_limit_ms = LIMIT_MS};
    static fcc_request *requests[MANY];
    _Atomic int *begun = argument;
    fcc_context *context;
    fcc_comm *comm;
    struct scene s;

    OK(fcc_connect(&options, &context));
    OK(fcc_comm_init(context, &all->id, RANKS, rank, &comm_options, &comm));
    scene_open(&s, comm, rank);
    FAILS(rank == 1 ? call_start(&s) : others_gemv(&s), -EINVAL, "rank 1: gemv_all_reduce: y: 6 dimensions");
    FAILS(rank == 1 ? call_reserved(&s) : others_start(&s), -EINVAL, "rank 1: gemv_all_reduce: reserved[2]: 1");
    next_works(&s);
    while (rank != 0 && *begun < 1000)
        nap();
    for (int i = 0; i < MANY; i++) {
        OK(fcc_noop_start(comm, &requests[i]));
        *begun += rank == 0;
    }
    for (int i = 0; i < MANY; i++) {
        OK(fcc_request_wait(requests[i], -1));
        fcc_request_free(requests[i]);
    }
    next_works(&s);
    fcc_comm_destroy(comm);
    fcc_disconnect(context);
}

static void no_ring(void)
{
    nodes_run(1, no_ring_rank, shared_memory(sizeof(int)));
}

/* ---- a rank that ends when its own operator is refused: the others hear of the argument all the same ---- */

static void exits_rank(int rank, const struct ranks *all, void *argument)
{
    _Atomic int *step = argument; /* 1: rank 0 waits. 2: rank 1 has been refused. 3: rank 0 has been told */
    double start = now_ms();
    fcc_request *request;
    struct scene s;

    scene_open(&s, comm_open(all, rank, LIMIT_MS), rank);
    next_works(&s);
    if (rank == 0) {
        OK(fcc_gemv_all_reduce_start(s.comm, &s.args, &request));
        *step = 1;
        int status = fcc_request_wait(request, -1);
        check_error(__FILE__, __LINE__, "fcc_request_wait", status, -EINVAL,
                    (const char *const[]){"rank 1: gemv_all_reduce: y: 6 dimensions", NULL});
        CHECK(now_ms() - start < LIMIT_MS); /* not when the time limit has passed, that is */
        fcc_request_free(request);
        FAILS(others_gemv(&s), -ECONNABORTED, "rank 1 (pid ", "is gone", "rank 1: gemv_all_reduce: y: 6 dimensions");
        *step = 3;
    } else if (rank == 1) {
        while (*step < 1)
            nap();
        (void)usleep(200000); /* so that the worker has what rank 0 has submitted */
        FAILS(call_start(&s), -EINVAL, "rank 1: gemv_all_reduce: y: 6 dimensions");
        *step = 2;
        _exit(0);
    } else {
        while (*step < 3)
            nap();
        FAILS(others_gemv(&s), -ECONNABORTED, "rank 1 (pid ", "is gone", "rank 1: gemv_all_reduce: y: 6 dimensions");
    }
    fcc_comm_destroy(s.comm);
    fcc_disconnect(comm_context());
}

static void exits(void)
{
    nodes_run(1, exits_rank, shared_memory(sizeof(int)));
}

/* ---- a rank that allocates by itself what the others allocate together: they wait for it, and hear what it has done ---- */

static void alone_rank(int rank, const struct ranks *all, void *argument)
{
    _Atomic int *step = argument;                /* 2: ranks 1 and 2 have allocated. 3: rank 0 has been told */
    fcc_comm *comm = comm_open(all, rank, 3000); /* rank 0 waits that long for the others; nobody else waits */
    fcc_buffer *b = NULL;

    if (rank == 0) {
        while (*step < 2)
            nap();
        FAILS(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, 64, &b), -ETIMEDOUT,
              "fcc_buffer_alloc (symmetric) #1: rank 1, rank 2 did not come within the time limit of 3000 ms",
              "; since its last operator rank 1 has called fcc_buffer_alloc of kind 9 (unknown)",
              "; since its last operator rank 2 has called fcc_buffer_alloc of kind 2 (result)");
    } else if (rank == 1) {
        FAILS(fcc_buffer_alloc(comm, (enum fcc_buffer_kind)9, 64, &b), -EINVAL,
              "rank 1: fcc_buffer_alloc: kind: 9: allowed are 0 to 2");
    } else {
        OK(fcc_buffer_alloc(comm, FCC_BUFFER_RESULT, 64, &b));
    }
    for (++*step; *step < 3;)
        nap();
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void allocates_alone(void)
{
    nodes_run(1, alone_rank, shared_memory(sizeof(int)));
}

int main(void)
{
    static const struct test tests[] = {
        {"one_node", one_node, 0},
        {"two_nodes", two_nodes, 0},
        {"no_ring", no_ring, 0},
        {"exits", exits, 0},
        {"allocates_alone", allocates_alone, 0},
    };

    if (test_device_missing())
        return 0;
    return tests_run("refusals", TESTS(tests));
}
