/* SPDX-License-Identifier: MIT
 *
 * test_cost.c - work that is counted by the sizes of a collective or product, as the library does, is what the slices of its plans do together.
 */
#include "kernels/plan/compute/vector.h"
#include "kernels/plan/cost.h"
#include "kernels/sim/sim.h"
#include "tests/plan/plan_case.h"

enum { EACH = 4096 };

/* What a rank does, of all ranks' plans on one node. */
static struct cost_work of_plans(struct problem *p, enum fcc_schedule_kind kind)
{
    const struct schedule asked = {.kind = kind, .target = PLAN_CPU, .workgroups = 1};
    struct cost_work sum = {.operators = 0};

    for (int r = 0; r < p->nranks; r++) {
        struct plan *plan = NULL;
        struct error e = {0};
        if (plan_make(p, r, &asked, &plan, &e))
            fail_msg("%s: %s", op_name(p->op), e.text);
        const struct cost_work one = cost_plan(p, plan);
        cost_add(&sum, &one);
        plan_free(plan);
    }
    const double n = p->nranks;
    problem_free(p);
    return (struct cost_work){
        .bytes = sum.bytes / n, .worked_bytes = sum.worked_bytes / n, .flops = sum.flops / n, .link_bytes = sum.link_bytes / n};
}

static void expect_same(const char *what, int n, double found, double expected)
{
    if (!(found >= expected * 0.999999 && found <= expected * 1.000001))
        fail_msg("%s of %d ranks: the plans have %.9g, by the sizes it is %.9g", what, n, found, expected);
}

static void test_collectives(void **state)
{
    static const struct {
        enum fcc_op op;
        enum cost_exchange kind;
        bool in_all, out_all; /* the vectors that each rank has have all elements, or its own */
    } cases[] = {{FCC_OP_ALL_REDUCE, COST_ALL_REDUCE, true, true},
                 {FCC_OP_REDUCE_SCATTER, COST_REDUCE_SCATTER, true, false},
                 {FCC_OP_ALL_GATHER, COST_ALL_GATHER, false, true}};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (int n = 1; n <= 8; n++) {
            struct problem *p = problem_of(cases[i].op, n, FCC_F32);
            p->dim[DIM_M] = p->dim[DIM_K] = 1;
            p->dim[DIM_N] = (int64_t)EACH * n;
            for (int r = 0; r < n; r++) {
                p->rank_dim[DIM_N][r] = (int64_t)EACH * r;
                p->rank_dim[DIM_K][r] = EACH;
            }
            const double own = EACH * sizeof(float), all = own * n;
            const struct cost_work found = of_plans(p, FCC_SCHEDULE_FUSED),
                                   counted = cost_exchange(cases[i].kind, n, cases[i].in_all ? all : own,
                                                           cases[i].out_all ? all : own);
            expect_same(op_name(cases[i].op), n, found.link_bytes, counted.link_bytes);
            expect_same(op_name(cases[i].op), n, found.bytes, counted.bytes);
        }
}

static void test_products(void **state)
{
    enum { M = 512, N = 1024, K = 128 };

    (void)state;
    for (int scatters = 0; scatters <= 1; scatters++)
        for (int n = 1; n <= 8; n *= 2) {
            struct problem *p = problem_of(scatters ? FCC_OP_GEMM_REDUCE_SCATTER : FCC_OP_GEMM_ALL_REDUCE, n, FCC_F32);
            p->dim[DIM_M] = M;
            p->dim[DIM_N] = N;
            for (int r = 0; r < n; r++) {
                p->rank_dim[DIM_K][r] = K;
                p->rank_dim[DIM_M][r] = M / n;
            }
            const char *name = op_name(p->op);
            const struct cost_work found = of_plans(p, FCC_SCHEDULE_FUSED),
                                   counted = cost_product(scatters ? COST_OWN_SUMS : COST_ALL_SUMS, n, (double)M * N, K,
                                                          (double)(M + N) * K * sizeof(float), (double)M * N * sizeof(float));
            expect_same(name, n, found.flops, counted.flops);
            expect_same(name, n, found.link_bytes, counted.link_bytes);
            expect_same(name, n, found.worked_bytes, counted.worked_bytes);
            assert_true(found.bytes == 0 && counted.bytes == 0); /* all of it belongs to flops */
        }
}

/* A product alone takes the longer of its two times, in the sum of its work as in the simulation of its slices. */
static void test_longer(void **state)
{
    enum { M = 512, N = 1024, K = 128 };
    const double bytes = (double)((M + N) * K + M * N) * sizeof(float), flops = 2.0 * M * N * K;

    (void)state;
    for (int fast = 0; fast <= 1; fast++) {
        const struct cost_model m = {.memory_bytes_s = 1e9, .flops_s = fast ? 1e12 : 1e9};
        struct sim_machine machine = {.device = {.target = PLAN_CPU, .workgroups = 1, .memory_bytes_s = 1e9},
                                      .node = {.ranks = 1, .link = SIM_LINK_MEMORY, .rails = 1},
                                      .fabric = {.in_flight = 1},
                                      .nodes = 1};
        struct problem *p = problem_of(FCC_OP_GEMM_ALL_REDUCE, 1, FCC_F32);
        struct sim_operator o = {.name = "product", .problem = p, .size = 1, .stride = 1, .share = 1};
        const struct cost_work work =
            cost_product(COST_ALONE, 1, (double)M * N, K, (double)(M + N) * K * sizeof(float), (double)M * N * sizeof(float));
        struct sim *s = NULL;
        struct error e = {0};
        o.schedule = (struct schedule){.kind = FCC_SCHEDULE_COMPUTE_ONLY, .target = PLAN_CPU, .workgroups = 1};
        machine.device.flops_s[COMPUTE_GEMM] = m.flops_s;
        p->dim[DIM_M] = M;
        p->dim[DIM_N] = N;
        p->rank_dim[DIM_K][0] = K;
        expect_same("a product's time", 1, cost_time(&m, &work), fast ? bytes / 1e9 : flops / 1e9);
        if (sim_new(&machine, 1, &s, &e) || sim_add(s, &o, &e) < 0 || sim_run(s, NULL, &e))
            fail_msg("%s", e.text);
        expect_same("a product's simulated time", 1, sim_seconds(s), cost_time(&m, &work));
        sim_free(s);
        problem_free(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_collectives), cmocka_unit_test(test_products),
                                       cmocka_unit_test(test_longer)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
