/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_sums.c - gemv_all_reduce on GPUs of several nodes, flat and hierarchical, and gemm_all_reduce and gemm_reduce_scatter on one and several: real
 * daemons and the real library, on fake GPUs.
 * Each result has the bits of the order of additions that its route is said to have, whatever the sizes, dtypes and ranks of nodes
 * are; and what goes between nodes is counted: hierarchical, one sum for each other node, and one result to it.
 * test_gpu_worker_sums_ends.c: sums that do not end well.
 */
#include "tests/bed/link_see.h"
#include "tests/fake_gpu/fake_gpu_exchange.h"

static const enum fcc_dtype dtypes[] = {FCC_F32, FCC_F16, FCC_BF16};
static const uint32_t kinds[] = {FCC_SCHEDULE_FUSED, FCC_SCHEDULE_SEQUENTIAL, FCC_SCHEDULE_AUTO};
static const uint32_t routes[] = {0, FCC_SCHEDULE_FLAT, FCC_SCHEDULE_HIERARCHICAL};
enum { NODES = 2, ROUTES = 3, KINDS = 3, DTYPES = 3 };

/* ---- right, whatever the sizes ---- */

enum { SIZES = 10 };
static const int sizes[SIZES][3] = {/* rows, columns, from row to row of y */
                                    {1, 1, 1},
                                    {1, 37, 37},
                                    {3, 129, 131},
                                    {PRODUCT_M, 65, 65},
                                    {5, 1000, 1003},
                                    {2, 2056, 2056},
                                    {PRODUCT_M / 3, 16, 24},
                                    {PRODUCT_M, 1031, 1033},
                                    {1, 2053, 2056},
                                    {PRODUCT_M - 1, 513, 2000}};

static void sums_rank(int rank, const struct ranks *all, void *argument)
{
    (void)argument;
    driver_use();
    fcc_context *context = client_connect(NULL);
    struct product p = product_open(client_join(context, &all->id, all->n, rank, 0));

    const bool slow = getenv("FCC_TEST_SLOW");                        /* every other size then, or the others, and one way */
    for (int s = slow ? all->n % 2 : 0; s < SIZES; s += slow ? 2 : 1) /* each size each way, dtypes and schedules in turn */
        for (int route = slow ? s % ROUTES : 0; route < ROUTES; route += slow ? ROUTES : 1) {
            product_reshape(&p, dtypes[(s + route) % DTYPES], sizes[s][0], sizes[s][1], sizes[s][2]);
            product_check(&p, kinds[s / DTYPES % KINDS] | routes[route]);
            product_gemm_check(&p, dtypes[(s + route) % DTYPES], 5 * sizes[s][0], sizes[s][1] / 4 + 1,
                               kinds[s / DTYPES % KINDS] | routes[route]);
            product_scatter_check(&p, dtypes[(s + route) % DTYPES], 5 * sizes[s][0], sizes[s][1] / 4 + 1,
                                  kinds[s / DTYPES % KINDS] | routes[route], s % 2);
        }
    for (int kind = 0; kind < KINDS; kind++) /* the largest, each way */
        for (int route = slow ? kind : 0; route < ROUTES; route += slow ? ROUTES : 1) {
            product_reshape(&p, dtypes[(kind + route) % DTYPES], PRODUCT_M, PRODUCT_N, PRODUCT_N);
            product_check(&p, kinds[kind] | routes[route]);
        }
    for (uint32_t kind = FCC_SCHEDULE_COMPUTE_ONLY; kind <= FCC_SCHEDULE_COMM_ONLY; kind++) {
        p.args.schedule = kind | FCC_SCHEDULE_HIERARCHICAL; /* its result is undefined */
        OK(fcc_gemv_all_reduce(p.comm, &p.args));
    }
    product_check(&p, FCC_SCHEDULE_FUSED);
    fcc_comm_destroy(p.comm);
    client_end(context);
}

static void sums_right(int nodes, int nranks, uint32_t copy_us)
{
    struct test_daemon d;
    struct ranks r;

    fake_nodes_start(&d, nodes, GPUS, NULL);
    fake->copy_us = copy_us;
    ranks_start(&r, nranks, sums_rank, NULL);
    ranks_join(&r);
    CHECK(fake->copied > 0);
    fake_stop(&d);
}

/* gemm's partial sums have flags there, too. */
static void one_node_rank(int rank, const struct ranks *all, void *argument)
{
    (void)argument;
    driver_use();
    fcc_context *context = client_connect(NULL);
    struct product p = product_open(client_join(context, &all->id, all->n, rank, 0));
    void *stream = stream_open();

    for (int s = 0; s < SIZES; s++)
        for (int kind = 0; kind < KINDS; kind++) {
            product_gemm_check(&p, dtypes[(s + kind) % DTYPES], 5 * sizes[s][0], sizes[s][1] / 4 + 1, kinds[kind]);
            product_scatter_check(&p, dtypes[(s + kind) % DTYPES], 5 * sizes[s][0], sizes[s][1] / 4 + 1,
                                  kinds[kind] | FCC_SCHEDULE_ANY_ORDER, s % 2); /* a permission that GPUs do not use */
            product_reshape(&p, FCC_F32, sizes[s][0], sizes[s][1], sizes[s][2]);
            product_enqueue(&p, stream, NULL);
        }
    stream_sync(stream);
    stream_close(stream);
    fcc_comm_destroy(p.comm);
    client_end(context);
}

static void one_node(void)
{
    fake_ranks_run(5, one_node_rank, NULL); /* on three GPUs */
}

/* The bias and the residual come to the GPU of the rank that adds up, and only then are sums other ones. */
static void epilogue_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_buffer *stages;

    (void)argument;
    driver_use();
    fcc_context *context = client_connect(NULL);
    struct product p = product_open(client_join(context, &all->id, all->n, rank, 0));
    void *stream = stream_open();

    OK(fcc_buffer_alloc(p.comm, FCC_BUFFER_LOCAL, (PRODUCT_N + PRODUCT_M * PRODUCT_N) * sizeof(float), &stages));
    for (int s = 0; s < SIZES; s++)
        for (int route = 0; route < ROUTES; route++) {
            product_epilogue_check(&p, stages, sizes[s][0], sizes[s][1], kinds[s % KINDS] | routes[route], s % 2,
                                   route == 1 ? stream : NULL);
            product_check(&p, kinds[s % KINDS] | routes[route]);
        }
    stream_close(stream);
    fcc_buffer_free(stages);
    fcc_comm_destroy(p.comm);
    client_end(context);
}

static void epilogues(void)
{
    struct test_daemon d;
    struct ranks r;

    fake_nodes_start(&d, NODES, GPUS, NULL);
    ranks_start(&r, 5, epilogue_rank, NULL);
    ranks_join(&r);
    fake_stop(&d);
}

static void two_nodes(void)
{
    sums_right(2, 4, 0);
}

/* A node with one rank: it has nobody to add with, and sends its partial sums straight to their owners. */
static void one_alone(void)
{
    sums_right(2, 3, 0);
}

static void uneven(void)
{
    sums_right(2, 7, 0); /* on three GPUs: some have several ranks */
}

static void three_nodes(void)
{
    sums_right(3, 8, 0);
}

/* A kernel that did not wait for copies would hand on what has not come. */
static void slow_copies(void)
{
    sums_right(2, 4, 300);
}

/* The two orders give other bits, or the tests above would not tell them apart. */
static void orders_differ(void)
{
    int unlike = 0;

    fake_nodes = NODES;
    for (int j = 0; j < PRODUCT_N; j++)
        unlike += product_sum(FCC_F32, 4, false, 0, j) != product_sum(FCC_F32, 4, true, 0, j);
    fake_nodes = 1;
    CHECK(unlike > PRODUCT_N / 10);
}

/* ---- what goes between nodes ---- */

static struct test_daemon *seen;

/* What the first node sends to the other one for one operator. */
static double bytes_sent(const struct product *p, uint32_t schedule)
{
    int64_t before = 0, after;
    int rank = fcc_comm_rank(p->comm);

    product_check(p, schedule); /* memory and regions are there */
    if (rank == 0)
        before = link_see(seen).bytes_out;
    OK(fcc_noop(p->comm));
    product_check(p, schedule);
    if (rank != 0)
        return 0;
    after = link_see(seen).bytes_out;
    return (double)(after - before);
}

/* Each node's ranks own half of the columns. Flat, each rank here sends its partial sums of the others' half, and each owner here its results
 * to each rank there; hierarchical, each of both goes once. */
static void counted_rank(int rank, const struct ranks *all, void *argument)
{
    (void)argument;
    driver_use();
    fcc_context *context = client_connect(NULL);
    struct product p = product_open(client_join(context, &all->id, all->n, rank, 0));
    double once = (double)PRODUCT_M * PRODUCT_N * sizeof(float) / NODES * 2; /* partial sums, and results */
    double beside = 16384.0 * all->n;                                        /* flags, requests, and the noop */

    for (int kind = 0; kind < (getenv("FCC_TEST_SLOW") ? 1 : 2); kind++)
        for (int route = 0; route < ROUTES; route++) {
            double sent = bytes_sent(&p, kinds[kind] | routes[route]);
            double times = routes[route] == FCC_SCHEDULE_FLAT ? all->n / NODES : 1; /* this size is hierarchical by the rule */
            if (rank == 0)
                printf("%d ranks, schedule 0x%x: %.0f bytes, %.3f of what goes once\n", all->n, kinds[kind] | routes[route],
                       sent, sent / once);
            CHECK(rank != 0 || (sent >= times * once && sent < times * once + beside));
        }
    fcc_comm_destroy(p.comm);
    client_end(context);
}

static void counted(int nranks)
{
    struct test_daemon d;
    struct ranks r;

    fake_nodes_start(&d, NODES, GPUS, NULL);
    seen = &d;
    ranks_start(&r, nranks, counted_rank, NULL);
    ranks_join(&r);
    fake_stop(&d);
}

static void two_each_counted(void)
{
    counted(4);
}

static void four_each_counted(void)
{
    counted(8);
}

/* ---- several kernels ---- */

/* By turns with other operators, on streams, and with the other route: steps of one never meet those of the next. */
static void mixed_rank(int rank, const struct ranks *all, void *argument)
{
    (void)argument;
    driver_use();
    fcc_context *context = client_connect(NULL);
    struct product p = product_open(client_join(context, &all->id, all->n, rank, 0));
    void *stream = stream_open();
    struct exchange x;

    exchange_open(&x, p.comm, NOBODY);
    for (int round = 0; round < (getenv("FCC_TEST_SLOW") ? 4 : 12); round++) {
        product_works(&p, stream);
        p.args.schedule = kinds[round % KINDS] | routes[round % 5 % ROUTES];
        product_enqueue(&p, stream, NULL);
        if (round % 3 == 0)
            exchange_works(&x, FCC_SCHEDULE_FUSED, stream);
        product_check(&p, p.args.schedule);
    }
    exchange_close(&x);
    stream_close(stream);
    fcc_comm_destroy(p.comm);
    client_end(context);
}

static void mixed(void)
{
    struct test_daemon d;
    struct ranks r;

    fake_nodes_start(&d, NODES, GPUS, NULL);
    ranks_start(&r, 5, mixed_rank, NULL);
    ranks_join(&r);
    fake_stop(&d);
}

/* A kernel of one step is held on one GPU of each node, and goes on: meanwhile no rank's stream is told that all is over, on the other GPUs
 * either, and then all results are right. */
struct hold {
    _Atomic int ready, set, looked;
};
enum { RANKS = 6, HELD_PHASES = 3 };
static const enum gpu_phase held_phases[HELD_PHASES] = {GPU_PHASE_FREE, GPU_PHASE_REDUCE, GPU_PHASE_FORWARD};

static void passed_set(void *passed)
{
    *(_Atomic int *)passed = 1;
}

static void held_rank(int rank, const struct ranks *all, void *argument)
{
    struct hold *h = argument;
    static _Atomic int passed;

    driver_use();
    fcc_context *context = client_connect(NULL);
    struct product p = product_open(client_join(context, &all->id, all->n, rank, 0));
    void *stream = stream_open();
    p.args.schedule = FCC_SCHEDULE_FUSED | FCC_SCHEDULE_HIERARCHICAL;
    product_check(&p, p.args.schedule);
    for (int i = 0; i < HELD_PHASES; i++) {
        product_poison(&p);
        passed = 0;
        h->ready++;
        await(&h->ready, (i + 1) * all->n);
        if (rank == 0) {
            fake->hold_phase = held_phases[i];
            fake->hold = 1u << 1;
            h->set = i + 1;
        }
        await(&h->set, i + 1);
        product_enqueue(&p, stream, NULL);
        CHECK(gpu.stream_function(stream, passed_set, (void *)&passed) == 0);
        await(&fake->holding, NODES);
        (void)usleep(30000);
        CHECK(!passed);
        h->looked++;
        await(&h->looked, (i + 1) * all->n);
        fake->hold = 0;
        stream_sync(stream);
        OK(fcc_comm_error(p.comm));
        CHECK(passed);
        product_verify(&p, p.args.schedule);
    }
    stream_close(stream);
    fcc_comm_destroy(p.comm);
    client_end(context);
}

static void held(void)
{
    struct test_daemon d;
    struct ranks r;

    fake_nodes_start(&d, NODES, GPUS, NULL);
    ranks_start(&r, RANKS, held_rank, shared_memory(sizeof(struct hold)));
    ranks_join(&r);
    fake_stop(&d);
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {
        {"orders_differ", orders_differ, 0},
        {"one_node", one_node, 60},
        {"epilogues", epilogues, 60},
        {"two_nodes", two_nodes, 60},
        {"one_alone", one_alone, 60},
        {"uneven", uneven, 60},
        {"three_nodes", three_nodes, 60},
        {"slow_copies", slow_copies, 60},
        {"two_each_counted", two_each_counted, 60},
        {"four_each_counted", four_each_counted, 60},
        {"mixed", mixed, 60},
        {"held", held, 60},
    };

    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_sums", TESTS(tests));
}
