/* SPDX-License-Identifier: MIT
 *
 * test_sim_costs.c - what work takes on a device, of machines so simple that everyone can say it: tiles of a GPU's products, and caches of cores.
 */
#include <math.h>

#include "tests/sim/sim_case.h"

enum { WORKGROUPS = 128, N_MANY = 8192, N_FEW = 4096, K = 4096 };

/* gemm_all_to_all of two ranks, `rows` rows for each, f16. */
static struct problem *product(int64_t rows, int64_t n)
{
    struct problem *p = problem_begun(FCC_OP_GEMM_ALL_TO_ALL, 2, 1);
    const int64_t to[2] = {rows, rows};

    p->dtype = FCC_F16;
    p->dim[DIM_N] = n;
    for (int r = 0; r < 2; r++) {
        p->rank_dim[DIM_K][r] = K;
        problem_counts_set(p, r, to);
    }
    return p;
}

static struct sim_machine gpus(void)
{
    struct sim_machine m = machine_of(1, 2);

    m.device.target = PLAN_GPU;
    m.device.workgroups = WORKGROUPS;
    m.device.tile_bytes_s = 1e15;
    return m;
}

/* 128 tiles of 64 x 64, each of both destinations' rows, for as many workgroups: what comes to one of them is 64 columns and the rows that there are. */
static void test_tile_loads(void **state)
{
    (void)state;
    for (int64_t rows = 4; rows <= 32; rows *= 2) {
        struct sim_machine m = gpus();
        m.device.tile_bytes_s = RATE;
        expect_near(seconds_of(&m, product(rows, N_MANY)), (double)(2 * rows + 64) * K * 2 / RATE, 1000);
    }
}

/* All rows of a tile are multiplied, so it takes as long with 8 rows as with 64; and a tile more than there are workgroups another round. */
static void test_tile_flops(void **state)
{
    const double tile_flops = 2.0 * 64 * 64 * K;

    (void)state;
    for (int more = 0; more <= 1; more++)
        for (int64_t rows = 4; rows <= 32; rows *= 2) {
            struct sim_machine m = gpus();
            m.device.flops_s[COMPUTE_GEMM] = tile_flops * WORKGROUPS / 1e-3;
            expect_near(seconds_of(&m, product(rows, N_MANY + 64 * more)), 1e-3 * (1 + more), 1000);
        }
}

/* Of 64 tiles each has two workgroups, which share K, and give each other half of the sums. */
static void test_tile_split(void **state)
{
    struct sim_machine m = gpus();

    (void)state;
    m.device.tile_bytes_s = RATE;
    expect_near(seconds_of(&m, product(4, N_FEW)), (8.0 + 64) * (K / 2.0) * 2 / RATE, 1000);
    m = gpus();
    m.device.tile_sums_bytes_s = RATE;
    expect_near(seconds_of(&m, product(4, N_FEW)), 64.0 * 64 * sizeof(float) / 2 / RATE, 1000);
}

/* A product's kernel begins and ends later than others', and its rows fill a link with less; what is no product has neither. */
static void test_tile_begin_and_store(void **state)
{
    struct sim_machine m = gpus();
    struct problem *p = vector_of(FCC_OP_ALL_TO_ALL, 2, 1, EACH);

    (void)state;
    m.device.tile_begin_s = 1e-3;
    expect_near(seconds_of(&m, product(4, N_MANY)), 1e-3, 1000);
    m.node.link_bytes_s = RATE;
    m.device.tile_store_bytes_s = RATE / 4;
    expect_near(seconds_of(&m, product(512, N_MANY)), 1e-3 + 512.0 * N_MANY * 2 / (RATE / 4), 100);
    expect_near(seconds_of(&m, p), BYTES / RATE, 100);
}

/* A gemv of N x K elements of f32, of each of n ranks. */
static struct problem *vector_product(int n, int64_t cols, int64_t k)
{
    struct problem *p = problem_begun(FCC_OP_GEMV_ALL_REDUCE, n, 1);

    p->dim[DIM_M] = 1;
    p->dim[DIM_N] = cols;
    for (int r = 0; r < n; r++)
        p->rank_dim[DIM_K][r] = k;
    return p;
}

/* What fits into the near cache comes from there, what fits into the other one from there, and the rest from memory. */
static void test_near_cache(void **state)
{
    enum { COLS = 1024, ROWS = 4096 };
    const double bytes = 4.0 * COLS * ROWS;
    static const struct {
        double near, far; /* room, of what is touched */
        double rate;      /* of memory's */
    } cases[] = {{2, 4, 8}, {0.001, 4, 4}, {0.001, 0.001, 1}};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct sim_machine m = machine_of(1, 1);
        m.device.memory_bytes_s = RATE;
        m.device.cache_bytes = cases[i].far * bytes;
        m.device.cache_bytes_s = 4 * RATE;
        m.device.near_bytes = cases[i].near * bytes;
        m.device.near_bytes_s = 8 * RATE;
        expect_near(seconds_of(&m, vector_product(1, COLS, ROWS)), bytes / (cases[i].rate * RATE), 100);
    }
}

/* Two ranks that share a cache have room for what is theirs if it has room for both; with one of its own each needs half of that. */
static void test_own_caches(void **state)
{
    enum { COLS = 1024, ROWS = 4096 };
    const double bytes = 4.0 * COLS * ROWS;

    (void)state;
    for (int own = 0; own <= 1; own++) {
        struct sim_machine m = machine_of(1, 2);
        m.device.memory_bytes_s = RATE;
        m.device.cache_bytes = 1.25 * bytes;
        m.device.cache_bytes_s = 4 * RATE;
        m.device.cache_ranks = own;
        const double shared = 1 - 0.75 * 0.3572; /* found = e^(-(1 - found) 1.6): by bisection */
        expect_near(seconds_of(&m, vector_product(2, COLS, ROWS)), bytes / RATE * (own ? 0.25 : shared), 50);
    }
}

/* Of rows that are read twice, the second time is found where one table has room, however much all tables have. */
static void test_rows_again(void **state)
{
    enum { ROWS = 1000, READS = 5000, BAGS = 100, DIM = 256, TABLES = 64 };
    const double rows = ROWS * (1 - pow(1 - 1.0 / ROWS, READS)), again = 1 - rows / READS, vector = 4.0 * DIM;
    const double bytes = TABLES * (READS * (vector + 8) + BAGS * (vector + 8));
    struct sim_machine m = machine_of(1, 1);
    struct problem *p = problem_begun(FCC_OP_EMBEDDING_ALL_TO_ALL, 1, 1);
    struct sim_operator o;
    struct sim *s = NULL;
    struct error e = {0};

    (void)state;
    m.device.memory_bytes_s = RATE;
    m.device.cache_bytes = 2 * rows * vector;
    m.device.cache_bytes_s = 4 * RATE;
    p->dim[DIM_M] = p->rank_dim[DIM_M][0] = BAGS;
    p->dim[DIM_VECTOR] = DIM;
    p->rank_dim[DIM_N][0] = TABLES;
    p->rank_dim[DIM_K][0] = (int64_t)TABLES * READS;
    o = operator_of(p, FCC_SCHEDULE_FUSED, PLAN_CPU);
    o.table_rows = ROWS;
    assert_int_equal(sim_new(&m, 1, &s, &e), 0);
    assert_int_equal(sim_add(s, &o, &e), 0);
    assert_int_equal(sim_run(s, NULL, &e), 0);
    expect_near(sim_seconds(s), bytes / RATE * (1 - again + again / 4), 20);
    sim_free(s);
    problem_free(p);
}

/* What only moves results touches no factors: a put finds them in a cache that the product's factors would fill many times. */
static void test_touched(void **state)
{
    enum { ROWS = 256, COLS = 256, DEEP = 65536 };
    struct sim_machine m = machine_of(1, 1);
    struct problem *p = problem_begun(FCC_OP_GEMM_ALL_TO_ALL, 1, 1);
    const int64_t to[1] = {ROWS};
    struct sim_operator o;
    struct sim *s;

    (void)state;
    m.device.memory_bytes_s = RATE;
    m.device.cache_bytes = 4.0 * 4 * ROWS * COLS;
    m.device.cache_bytes_s = 4 * RATE;
    p->dim[DIM_N] = COLS;
    p->rank_dim[DIM_K][0] = DEEP;
    problem_counts_set(p, 0, to);
    o = operator_of(p, FCC_SCHEDULE_COMM_ONLY, PLAN_CPU);
    s = run_of(&m, &o, 1);
    expect_near(sim_seconds(s), 2 * 4.0 * ROWS * COLS / (4 * RATE), 50);
    sim_free(s);
    problem_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tile_loads),           cmocka_unit_test(test_tile_flops), cmocka_unit_test(test_tile_split),
        cmocka_unit_test(test_tile_begin_and_store), cmocka_unit_test(test_near_cache), cmocka_unit_test(test_own_caches),
        cmocka_unit_test(test_rows_again),           cmocka_unit_test(test_touched),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
