/* SPDX-License-Identifier: MIT
 *
 * test_sim.c - what the simulation says of machines so simple that everyone can say it: one mechanism at a time, the others being free.
 */
#include "tests/sim/sim_case.h"

#include <math.h>

#include "kernels/sim/inside.h"

/* Eight ranks that send to one take eight times as long as one does. */
static void test_incast(void **state)
{
    (void)state;
    for (int inside = 0; inside <= 1; inside++) {
        double times[2];
        for (int many = 0; many <= 1; many++) {
            const int n = many ? 9 : 2;
            struct sim_machine m = machine_of(inside ? 1 : n, inside ? n : 1);
            m.fabric.bytes_s = m.node.link_bytes_s = RATE;
            times[many] = seconds_of(&m, vector_of(FCC_OP_GATHER, n, inside ? 1 : n, EACH));
        }
        expect_near(times[0], BYTES / RATE, 1e5);
        expect_near(times[1], 8 * times[0], 1e5);
    }
}

/* All in a ring send at once, so it takes as long as one message, however many there are. */
static void test_ring(void **state)
{
    (void)state;
    for (int n = 2; n <= 64; n *= 2) {
        struct sim_machine m = machine_of(n, 1);
        m.fabric.bytes_s = RATE;
        expect_near(seconds_of(&m, vector_of(FCC_OP_SEND_RECEIVE, n, n, EACH)), BYTES / RATE, 1e5);
        m.fabric.kind = SIM_TORUS;
        m.fabric.dimensions = 1;
        m.fabric.shape[0] = n;
        expect_near(seconds_of(&m, vector_of(FCC_OP_SEND_RECEIVE, n, n, EACH)), BYTES / RATE, 1e5);
    }
}

/* A message takes its latency besides, and each further hop its own. */
static void test_latency(void **state)
{
    struct sim_machine m = machine_of(8, 1);

    (void)state;
    m.fabric.bytes_s = RATE;
    m.fabric.latency_s = 1;
    m.fabric.hop_s = 0.25;
    expect_near(seconds_of(&m, vector_of(FCC_OP_SEND_RECEIVE, 8, 8, EACH)), 1 + BYTES / RATE, 1e6);
    m.fabric.leaf = 4; /* rank 3 sends to rank 4, and 7 to 0, over two more switches */
    expect_near(seconds_of(&m, vector_of(FCC_OP_SEND_RECEIVE, 8, 8, EACH)), 1.5 + BYTES / RATE, 1e6);
    m.node.link_latency_s = 2;
    m.node.ranks = 8;
    m.nodes = 1;
    m.node.link_bytes_s = RATE;
    expect_near(seconds_of(&m, vector_of(FCC_OP_SEND_RECEIVE, 8, 1, EACH)), 2 + BYTES / RATE, 1e6);
    m.device.launch_s = 3;
    m.device.hand_over_s = 4;
    expect_near(seconds_of(&m, vector_of(FCC_OP_SEND_RECEIVE, 8, 1, EACH)), 9 + BYTES / RATE, 1e6);
}

/* Of an All-to-All between two leaves the bundles carry half of everything, and an oversubscribed one takes so much longer. */
static void test_oversubscription(void **state)
{
    enum { N = 16, LEAF = 8 };
    struct sim_machine m = machine_of(N, 1);

    (void)state;
    m.fabric.bytes_s = RATE;
    m.fabric.leaf = LEAF;
    m.fabric.in_flight = 16;
    for (int over = 4; over <= 16; over *= 2) {
        m.fabric.oversubscription = over;
        expect_near(seconds_of(&m, vector_of(FCC_OP_ALL_TO_ALL, N, N, 4096)), 4.0 * 4096 * LEAF * LEAF / (LEAF * RATE / over),
                    50);
    }
}

/* A link between two groups of a dragonfly carries what all of one have for the other. */
static void test_dragonfly(void **state)
{
    enum { N = 12, GROUP = 4 };
    struct sim_machine m = machine_of(N, 1);
    struct sim *s = NULL;
    struct error e;

    (void)state;
    m.fabric.kind = SIM_DRAGONFLY;
    m.fabric.leaf = GROUP;
    m.fabric.bytes_s = RATE;
    m.fabric.in_flight = 16;
    m.fabric.global_bytes_s = RATE / 8;
    expect_near(seconds_of(&m, vector_of(FCC_OP_ALL_TO_ALL, N, N, 4096)), 4.0 * 4096 * GROUP * GROUP / (RATE / 8), 50);
    m.fabric.global_bytes_s = 0;
    assert_int_equal(sim_new(&m, 1, &s, &e), -EINVAL);
    assert_string_equal(e.text, "fabric: disconnected: no bandwidth between groups");
}

/* A proxy takes triggers one after the other, and what it copies itself at its own pace. */
static void test_proxy(void **state)
{
    struct sim_machine m = machine_of(9, 1);

    (void)state;
    m.fabric.message_s = 0.5; /* to eight ranks */
    expect_near(seconds_of(&m, vector_of(FCC_OP_SCATTER, 9, 9, 256)), 8 * 0.5, 1e5);
    m.fabric.message_s = 0;
    m.fabric.receive_s = 0.25;
    expect_near(seconds_of(&m, vector_of(FCC_OP_GATHER, 9, 9, 256)), 8 * 0.25, 1e5);
    m.fabric.receive_s = 0;
    m.fabric.copy_bytes_s = RATE; /* both ends copy, the receiver all that eight have sent */
    expect_near(seconds_of(&m, vector_of(FCC_OP_GATHER, 9, 9, EACH)), BYTES / RATE / 4 + 8 * BYTES / RATE, 4);
}

/* A proxy without a core of its own sends nothing while its node computes, unless it has waited for as long as it has to. */
static void test_core_wait(void **state)
{
    enum { RANKS = 2, M = 1024, N = 1024, K = 256 };
    const double compute = 2.0 * M * N * K / 1e9, send = 4.0 * M * N / RANKS / 4e6; /* about as long */
    double times[3];

    (void)state;
    for (int i = 0; i < 3; i++) { /* its own core; a time slice of half of the time; one of all */
        struct sim_machine m = machine_of(RANKS, 1);
        struct problem *p = problem_begun(FCC_OP_GEMM_ALL_TO_ALL, RANKS, RANKS);
        int64_t rows[RANKS] = {M / RANKS, M / RANKS};
        m.device.flops_s[COMPUTE_GEMM] = 1e9;
        m.fabric.bytes_s = 4e6;
        m.fabric.core_wait_s = compute * i / 2 * 1.5;
        p->dim[DIM_N] = N;
        for (int r = 0; r < RANKS; r++) {
            p->rank_dim[DIM_K][r] = K;
            problem_counts_set(p, r, rows);
        }
        struct sim_operator o = operator_of(p, FCC_SCHEDULE_FUSED, PLAN_CPU);
        o.schedule.slice_rows = 16;
        struct sim *s = run_of(&m, &o, 1);
        times[i] = sim_seconds(s);
        sim_free(s);
        problem_free(p);
    }
    assert_true(times[0] < 1.1 * (compute > send + compute / 2 ? compute : send + compute / 2));
    assert_true(times[1] > times[0] * 1.05 && times[1] < times[2]);
    expect_near(times[2], compute + send, 50);
}

/* gemv reads w at the memory's bandwidth, whatever the number of workgroups; one alone has its own limit. */
static void test_memory(void **state)
{
    enum { N = 4096, K = 4096 };
    const double bytes = 4.0 * N * K;

    (void)state;
    for (uint32_t workgroups = 1; workgroups <= 64; workgroups *= 4) {
        struct sim_machine m = machine_of(1, 1);
        m.device.memory_bytes_s = RATE;
        m.device.workgroups = workgroups;
        for (int most = 0; most <= 1; most++) {
            struct problem *p = problem_begun(FCC_OP_GEMV_ALL_REDUCE, 1, 1);
            p->dim[DIM_M] = 1;
            p->dim[DIM_N] = N;
            p->rank_dim[DIM_K][0] = K;
            m.device.workgroup_bytes_s = most ? RATE / 16 : 0;
            expect_near(seconds_of(&m, p), bytes / (most && workgroups < 16 ? RATE / 16 * workgroups : RATE), 20);
        }
    }
}

/* What fits into a cache is read from there. Of what does not, a part f = e^(-(1 - f) touched / room) is: solutions found by bisection. */
static void test_cache(void **state)
{
    enum { N = 1024, K = 4096 };
    static const struct {
        double touched, found; /* in parts of the cache's room */
    } cases[] = {{0.5, 1}, {1.25, 0.62863}, {2, 0.203188}, {4, 0.0198274}, {1000, 0}};
    const double bytes = 4.0 * N * K;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct sim_machine m = machine_of(1, 1);
        struct problem *p = problem_begun(FCC_OP_GEMV_ALL_REDUCE, 1, 1);
        m.device.memory_bytes_s = RATE;
        m.device.cache_bytes = bytes / cases[i].touched;
        m.device.cache_bytes_s = 4 * RATE;
        p->dim[DIM_M] = 1;
        p->dim[DIM_N] = N;
        p->rank_dim[DIM_K][0] = K;
        expect_near(seconds_of(&m, p), bytes / RATE * (1 - 0.75 * cases[i].found), 100);
    }
}

/* What computes as long as its bytes come takes that time once if nothing of either is exposed, and twice if all is. */
static void test_exposed(void **state)
{
    enum { N = 1024, K = 4096 };
    const double seconds = 4.0 * N * K / RATE;

    (void)state;
    for (int i = 0; i <= 2; i++) {
        struct sim_machine m = machine_of(1, 1);
        struct problem *p = problem_begun(FCC_OP_GEMV_ALL_REDUCE, 1, 1);
        m.device.memory_bytes_s = RATE;
        m.device.flops_s[COMPUTE_GEMV] = 2.0 * N * K / seconds;
        m.device.exposed = i / 2.0;
        p->dim[DIM_M] = 1;
        p->dim[DIM_N] = N;
        p->rank_dim[DIM_K][0] = K;
        expect_near(seconds_of(&m, p), seconds * (1 + i / 2.0), 100);
    }
}

/* Rows of tables have a rate of their own, and computing goes on meanwhile, however exposed it is. */
static void test_table_rate(void **state)
{
    enum { READS = 5000, BAGS = 100, DIM = 256 };
    const double moved = READS * (4.0 * DIM + 8) + BAGS * (8.0 + 4.0 * DIM);

    (void)state;
    for (int computes_longer = 0; computes_longer <= 1; computes_longer++) {
        struct sim_machine m = machine_of(1, 1);
        struct problem *p = problem_begun(FCC_OP_EMBEDDING_ALL_TO_ALL, 1, 1);
        m.device.table_bytes_s = RATE;
        m.device.exposed = 1;
        m.device.flops_s[COMPUTE_BAG] = READS * DIM / (moved / RATE) * (computes_longer ? 0.5 : 2);
        p->dim[DIM_M] = p->rank_dim[DIM_M][0] = BAGS;
        p->dim[DIM_VECTOR] = DIM;
        p->rank_dim[DIM_N][0] = 1;
        p->rank_dim[DIM_K][0] = READS;
        expect_near(seconds_of(&m, p), moved / RATE * (computes_longer ? 2 : 1), 100);
    }
}

/* Rows of a table that an embedding reads again come from a cache as far as the table fits, if a workgroup can read as fast. */
static void test_tables(void **state)
{
    enum { ROWS = 1000, READS = 5000, BAGS = 100, DIM = 256 };
    const double rows = ROWS * (1 - pow(1 - 1.0 / ROWS, READS)), again = 1 - rows / READS, vector = 4.0 * DIM;
    const double read = READS * (vector + 8) + BAGS * 8.0, stored = BAGS * vector;
    static const struct {
        double fits, workgroup, kept; /* of the table's bytes; of memory's rate; of what is read again */
    } cases[] = {{0, 8, 0}, {0.5, 8, 0.5}, {2, 8, 1}, {2, 1, 0}};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct sim_machine m = machine_of(1, 1);
        struct problem *p = problem_begun(FCC_OP_EMBEDDING_ALL_TO_ALL, 1, 1);
        struct sim_operator o;
        struct sim *s = NULL;
        struct error e = {0};
        m.device.memory_bytes_s = RATE;
        m.device.workgroup_bytes_s = cases[i].workgroup * RATE;
        m.device.table_cache_bytes = cases[i].fits * rows * vector;
        p->dim[DIM_M] = p->rank_dim[DIM_M][0] = BAGS;
        p->dim[DIM_VECTOR] = DIM;
        p->rank_dim[DIM_N][0] = 1;
        p->rank_dim[DIM_K][0] = READS;
        o = operator_of(p, FCC_SCHEDULE_FUSED, PLAN_CPU);
        o.table_rows = ROWS;
        assert_int_equal(sim_new(&m, 1, &s, &e), 0);
        assert_int_equal(sim_add(s, &o, &e), 0);
        assert_int_equal(sim_run(s, NULL, &e), 0);
        expect_near(sim_seconds(s), (read * (1 - again * cases[i].kept) + stored) / RATE, 100);
        sim_free(s);
        problem_free(p);
    }
}

/* Partial sums are added at a rate of their own, two for each element of a rank's half; and rows that are stored one by one take their time. */
static void test_sums_and_rows(void **state)
{
    enum { M = 64, N = 512, K = 16 };

    (void)state;
    for (int rows = 0; rows <= 1; rows++) {
        struct sim_machine m = machine_of(1, 2);
        struct problem *p = problem_begun(FCC_OP_GEMM_ALL_REDUCE, 2, 1);
        m.device.flops_s[COMPUTE_VECTOR] = rows ? 0 : RATE;
        m.device.row_s = rows ? 1e-3 : 0;
        p->dim[DIM_M] = M;
        p->dim[DIM_N] = N;
        p->rank_dim[DIM_K][0] = p->rank_dim[DIM_K][1] = K;
        /* sums are dense: a row for each of two tiles that are sent; results have M rows */
        expect_near(seconds_of(&m, p), rows ? (2 + M) * 1e-3 : M * N / 2.0 * 2 / RATE, 100);
    }
}

/* Partial sums of another core come at a rate of their own: half of a rank's half. A collective's owners read inputs, which nobody has just stored, and add them. */
static void test_fresh_sums(void **state)
{
    enum { M = 64, N = 512, K = 16 };
    struct sim_machine m = machine_of(1, 2);
    struct problem *p = problem_begun(FCC_OP_GEMM_ALL_REDUCE, 2, 1);

    (void)state;
    m.node.link = SIM_LINK_MEMORY;
    m.node.link_bytes_s = RATE;
    p->dim[DIM_M] = M;
    p->dim[DIM_N] = N;
    p->rank_dim[DIM_K][0] = p->rank_dim[DIM_K][1] = K;
    expect_near(seconds_of(&m, p), M * N / 2.0 * sizeof(float) / RATE, 100);
    m.device.flops_s[COMPUTE_VECTOR] = RATE;
    expect_near(seconds_of(&m, vector_of(FCC_OP_ALL_REDUCE, 2, 1, EACH)), 2.0 * EACH / RATE, 100);
    expect_near(seconds_of(&m, vector_of(FCC_OP_ALL_GATHER, 2, 1, EACH)), 4.0 * BYTES / 1e15, 10); /* its bytes alone */
}

/* A product is bound by the device's rate; half of the workgroups take twice as long where there are slices for all. */
static void test_flops(void **state)
{
    enum { M = 512, N = 4096, K = 1024 };

    (void)state;
    for (uint32_t workgroups = 1; workgroups <= 4; workgroups *= 2) {
        struct sim_machine m = machine_of(1, 1);
        struct problem *p = problem_begun(FCC_OP_GEMM_ALL_REDUCE, 1, 1);
        m.device.workgroups = workgroups;
        m.device.flops_s[COMPUTE_GEMM] = 1e9;
        p->dim[DIM_M] = M;
        p->dim[DIM_N] = N;
        p->rank_dim[DIM_K][0] = K;
        expect_near(seconds_of(&m, p), 2.0 * M * N * K / 1e9, 100);
    }
}

/* Fused, sending overlaps computing: it takes as long as the longer one, and sequential as long as both. */
static void test_overlap(void **state)
{
    enum { RANKS = 4, M = 1024, N = 1024, K = 256 };
    const double compute = 2.0 * M * N * K / 1e9, send = 4.0 * M * N * (RANKS - 1) / RANKS / 1e6;

    (void)state;
    for (int kind = FCC_SCHEDULE_FUSED; kind <= FCC_SCHEDULE_SEQUENTIAL; kind++) {
        struct sim_machine m = machine_of(RANKS, 1);
        struct problem *p = problem_begun(FCC_OP_GEMM_ALL_TO_ALL, RANKS, RANKS);
        int64_t rows[RANKS] = {M / RANKS, M / RANKS, M / RANKS, M / RANKS};
        m.device.flops_s[COMPUTE_GEMM] = 1e9;
        m.fabric.bytes_s = 1e6;
        p->dim[DIM_N] = N;
        for (int r = 0; r < RANKS; r++) {
            p->rank_dim[DIM_K][r] = K;
            problem_counts_set(p, r, rows);
        }
        struct sim_operator o = operator_of(p, (enum fcc_schedule_kind)kind, PLAN_CPU);
        o.schedule.slice_rows = 16;
        struct sim *s = run_of(&m, &o, 1);
        expect_near(sim_seconds(s), kind == FCC_SCHEDULE_FUSED ? send : send + compute, 20);
        sim_free(s);
        problem_free(p);
    }
    assert_true(send > compute);
}

/* Ranks that are slow by a random factor: the slowest one decides, and the seed alone what it is. */
static void test_stragglers(void **state)
{
    double times[3];

    (void)state;
    for (int kind = SIM_UNIFORM; kind <= SIM_EXPONENTIAL; kind++) {
        for (int i = 0; i < 3; i++) {
            struct sim_machine m = machine_of(1, 16);
            struct problem *p = problem_begun(FCC_OP_GEMV_ALL_REDUCE, 16, 1);
            m.device.memory_bytes_s = RATE;
            m.stragglers = (struct sim_stragglers){
                .kind = (enum sim_spread_kind)kind, .rank_spread = 0.5, .slice_spread = 0.1, .start_s = 1e-3};
            p->dim[DIM_M] = 1;
            p->dim[DIM_N] = 4096;
            for (int r = 0; r < 16; r++)
                p->rank_dim[DIM_K][r] = 256;
            const struct sim_operator o = operator_of(p, FCC_SCHEDULE_FUSED, PLAN_CPU);
            struct sim *s = run_of(&m, &o, i == 2 ? 8 : 7);
            times[i] = sim_seconds(s);
            sim_free(s);
            problem_free(p);
        }
        assert_true(times[0] == times[1]);
        assert_true(times[0] != times[2]);
        assert_true(times[0] > 1.05 * 4096 * 256 * 4 / RATE);
    }
}

/* ---- operators ---- */

/* What comes after another operator begins when that has ended; what does not, and finds room on the device, runs beside it. */
static void test_dependencies(void **state)
{
    (void)state;
    for (int beside = 0; beside <= 1; beside++) {
        struct sim_machine m = machine_of(1, 2);
        struct sim *s = NULL;
        struct error e = {0};
        struct sim_operator a = {.name = "a", .size = 1, .stride = 1, .compute = COMPUTE_GEMM, .flops = 1e9, .share = 0.5},
                            b = a;
        m.device.workgroups = 2;
        m.device.flops_s[COMPUTE_GEMM] = 1e9;
        b.nafter = !beside;
        assert_int_equal(sim_new(&m, 1, &s, &e), 0);
        assert_int_equal(sim_add(s, &a, &e), 0);
        assert_int_equal(sim_add(s, &b, &e), 1);
        assert_int_equal(sim_run(s, NULL, &e), 0);
        expect_near(sim_seconds(s), beside ? 2 : 4, 1e6);
        expect_near(sim_operator_times(s, 1).begin_s + 1, beside ? 1 : 3, 1e6);
        sim_free(s);
    }
}

/* A plan whose flag nobody raises: it is said which slice waits for what. */
static void test_stuck(void **state)
{
    struct sim_machine m = machine_of(1, 2);
    struct problem *p = vector_of(FCC_OP_ALL_GATHER, 2, 1, 64);
    struct sim_operator o = operator_of(p, FCC_SCHEDULE_FUSED, PLAN_CPU);
    struct plan *plans[2];
    struct sim *s = NULL;
    struct error e = {0};

    (void)state;
    for (int r = 0; r < 2; r++)
        assert_int_equal(plan_make(p, r, &o.schedule, &plans[r], &e), 0);
    for (uint32_t g = 0; g < plans[1]->ngroups; g++)
        plans[1]->groups[g].flag = plans[1]->groups[g].flag == 1 && plans[1]->groups[g].dst == 0 ? 2 : plans[1]->groups[g].flag;
    assert_int_equal(sim_new(&m, 1, &s, &e), 0);
    assert_int_equal(sim_add_plans(s, &o, plans, &e), 0);
    assert_int_equal(sim_run(s, NULL, &e), -EDEADLK);
    assert_string_equal(e.text,
                        "all_gather: it cannot progress: slice 2 (wait) of rank 0 waits for flag 1, which no slice raises");
    sim_free(s);
    problem_free(p);
}

/* Two ranks each of which waits for the other before it sends: it is said who is to raise what the first one waits for, and how far that one has come. */
static void test_circle(void **state)
{
    struct sim_machine m = machine_of(1, 2);
    struct problem *p = vector_of(FCC_OP_ALL_GATHER, 2, 1, 64);
    struct sim_operator o = operator_of(p, FCC_SCHEDULE_FUSED, PLAN_CPU);
    struct plan *plans[2];
    struct sim *s = NULL;
    struct error e = {0};

    (void)state;
    for (int r = 0; r < 2; r++) {
        assert_int_equal(plan_make(p, r, &o.schedule, &plans[r], &e), 0);
        struct slice *first = &plans[r]->slices[0];
        assert_true(slice_puts(first->kind) && first->group != SLICE_NO_GROUP);
        first->wait_first = (uint32_t)!r; /* the other one's flag */
        first->wait_count = first->wait_stride = 1;
    }
    assert_int_equal(sim_new(&m, 1, &s, &e), 0);
    assert_int_equal(sim_add_plans(s, &o, plans, &e), 0);
    assert_int_equal(sim_run(s, NULL, &e), -EDEADLK);
    assert_string_equal(e.text, "all_gather: it cannot progress: slice 0 (compute+put) of rank 0 waits for flag 1, which slice "
                                "0 (compute+put) of rank 1, "
                                "that has been taken, is to raise");
    sim_free(s);
    problem_free(p);
}

/* Every operator, schedule and route comes to an end, on cores and GPUs, with ranks on nodes in several ways; all its slices run. */
static void test_all(void **state)
{
    static const int shapes[][2] = {{1, 1}, {1, 4}, {4, 1}, {3, 2}, {2, 4}};

    (void)state;
    for (int op = FCC_OP_NOOP; op < FCC_OP_COUNT; op++) {
        const struct op_spec *spec = op_spec((unsigned)op);
        for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]) && !spec->inside; i++)
            for (int kind = FCC_SCHEDULE_FUSED; kind <= FCC_SCHEDULE_COMM_ONLY; kind++)
                for (int target = PLAN_CPU; target <= PLAN_GPU; target++) {
                    const int nodes = shapes[i][0], n = nodes * shapes[i][1];
                    struct sim_machine m = machine_of(nodes, shapes[i][1]);
                    struct problem *p = spec->compute == COMPUTE_VECTOR ? vector_of((enum fcc_op)op, n, nodes, 5000)
                                                                        : problem_begun((enum fcc_op)op, n, nodes);
                    int64_t rows[8] = {3, 200, 0, 64, 17, 300, 1, 128};
                    for (int r = 0; r < n && spec->compute != COMPUTE_VECTOR; r++) {
                        p->dim[DIM_M] = spec->exchange == EXCHANGE_GATHER ? 713 : spec->compute == COMPUTE_BAG ? 4 * n : 64;
                        p->dim[DIM_N] = 900;
                        p->dim[DIM_VECTOR] = p->dim[DIM_K] = 64;
                        p->dim[DIM_FACTOR_BYTES] = 4;
                        p->rank_dim[DIM_M][r] = spec->exchange == EXCHANGE_GATHER   ? rows[r]
                                                : spec->exchange == EXCHANGE_REDUCE ? 64 / n + (r < 64 % n)
                                                                                    : 4;
                        p->rank_dim[DIM_N][r] = spec->compute == COMPUTE_BAG ? 3 : 900;
                        p->rank_dim[DIM_K][r] = 50;
                        if (op_counts((enum fcc_op)op))
                            problem_counts_set(p, r, rows);
                    }
                    if (spec->exchange == EXCHANGE_GATHER)
                        for (int r = 0, sum = 0; r < n; r++)
                            p->dim[DIM_M] = sum += (int)rows[r];
                    m.device.target = (enum plan_target)target;
                    m.device.workgroups = target == PLAN_GPU ? 40 : 2;
                    m.device.memory_bytes_s = m.node.link_bytes_s = m.fabric.bytes_s = RATE;
                    m.device.slice_s = m.device.step_s = m.fabric.latency_s = m.node.link_latency_s = 1e-6;
                    m.fabric.in_flight = 2;
                    struct sim_operator o = operator_of(p, (enum fcc_schedule_kind)kind, m.device.target);
                    struct sim *s = run_of(&m, &o, 1);
                    assert_true(sim_seconds(s) > 0 || op == FCC_OP_NOOP || kind > FCC_SCHEDULE_SEQUENTIAL);
                    uint64_t slices = 0;
                    for (int r = 0; r < n; r++)
                        slices += s->tasks[r].plan->nslices;
                    assert_int_equal(sim_counts(s).slices, slices);
                    sim_free(s);
                    problem_free(p);
                }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_incast),        cmocka_unit_test(test_ring),
        cmocka_unit_test(test_latency),       cmocka_unit_test(test_oversubscription),
        cmocka_unit_test(test_dragonfly),     cmocka_unit_test(test_proxy),
        cmocka_unit_test(test_core_wait),     cmocka_unit_test(test_exposed),
        cmocka_unit_test(test_memory),        cmocka_unit_test(test_flops),
        cmocka_unit_test(test_cache),         cmocka_unit_test(test_tables),
        cmocka_unit_test(test_fresh_sums),    cmocka_unit_test(test_table_rate),
        cmocka_unit_test(test_sums_and_rows), cmocka_unit_test(test_overlap),
        cmocka_unit_test(test_stragglers),    cmocka_unit_test(test_dependencies),
        cmocka_unit_test(test_stuck),         cmocka_unit_test(test_circle),
        cmocka_unit_test(test_all),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
