/* SPDX-License-Identifier: MIT
 *
 * test_plan.c - properties of the plans of random problems, for all ranks together: what is computed and delivered, in which
 * order, which flags are raised and awaited, and that every order of execution comes to an end with complete results.
 *
 * FCC_TEST_SEED=N repeats a run; a failure prints the seed and the case.
 */
#include "tests/plan/plan_case.h"
#include "tests/plan/plan_expect.h"

enum { CASES = 4000 };

/* ---- the tests ---- */

static void test_properties(void **state)
{
    (void)state;
    for (int i = 0; i < CASES; i++) {
        struct test_case c;
        enum fcc_op op = i % 40 == 0 ? FCC_OP_NOOP : all_ops[1 + i % 4];
        case_open(&c, op, (enum fcc_schedule_kind)(FCC_SCHEDULE_FUSED + i / 4 % 4), i);
        expect_plans(&c);
        case_close(&c);
    }
    for (int target = PLAN_CPU; target <= PLAN_GPU; target++)
        EXPECT(chosen[target][PLAN_FLAT] > 10 && chosen[target][PLAN_HIERARCHICAL] > 10);
}

static void test_destinations(void **state)
{
    (void)state;
    (void)snprintf(case_text, sizeof(case_text), "destinations");
    for (int n = 1; n <= FCC_MAX_RANKS; n++) {
        struct problem p = {.op = FCC_OP_NOOP, .nranks = n};
        bool met[FCC_MAX_RANKS][FCC_MAX_RANKS] = {{false}};
        for (int r = 0; r < n; r++) {
            int order[FCC_MAX_RANKS];
            plan_destination_order(&p, r, order);
            EXPECT(order[n - 1] == r);
            for (int i = 0; i < n; i++) { /* on one node, no two ranks are at the same destination at any step */
                EXPECT(order[i] >= 0 && order[i] < n && !met[i][order[i]]);
                met[i][order[i]] = true;
            }
        }
    }
}

static void expect_refused(const struct problem *p, int rank, struct schedule schedule, const char *text)
{
    struct plan *plan = (struct plan *)-1;
    struct error e = {0};

    EXPECT(plan_make(p, rank, &schedule, &plan, &e) == -EINVAL);
    EXPECT(plan == (struct plan *)-1); /* outputs are set only on success */
    if (!strstr(e.text, text))
        fail_msg("\"%s\" does not say \"%s\"", e.text, text);
}

static void test_limits(void **state)
{
    struct problem p = {.op = FCC_OP_GEMM_ALL_TO_ALL, .dtype = FCC_F32, .nranks = 2};
    struct schedule fused = {.kind = FCC_SCHEDULE_FUSED},
                    small = {.kind = FCC_SCHEDULE_FUSED, .slice_rows = 1, .slice_cols = 1};
    struct plan *plan = NULL;
    struct error e;

    (void)state;
    (void)snprintf(case_text, sizeof(case_text), "limits");
    expect_refused(&p, 2, fused, "rank: 2: allowed are 0 to 1");
    expect_refused(&p, 0, (struct schedule){.kind = FCC_SCHEDULE_AUTO}, "schedule: auto");
    p.dim[DIM_N] = 1024;
    p.counts[0][1] = 1025;
    expect_refused(&p, 0, small, "more than 1048576");
    p.dim[DIM_N] = INT32_MAX; /* it ends with the last slice that is allowed, not with the last one that there would be */
    for (int kind = FCC_SCHEDULE_FUSED; kind <= FCC_SCHEDULE_COMPUTE_ONLY; kind++)
        expect_refused(&p, 0, (struct schedule){.kind = (enum fcc_schedule_kind)kind, .slice_rows = 1, .slice_cols = 1},
                       "more than 1048576");
    p.dim[DIM_N] = 1024;
    p.counts[0][1] = (int64_t)1 << 40;
    expect_refused(&p, 0, fused, "send_rows: 1099511627776");
    p.op = (enum fcc_op)77;
    expect_refused(&p, 0, fused, "operator: 77");
    p = (struct problem){.op = FCC_OP_NOOP, .nranks = 65};
    expect_refused(&p, 0, fused, "nranks: 65: allowed are 1 to 64");
    p = (struct problem){.op = FCC_OP_GEMV_ALL_REDUCE, .dtype = FCC_F16, .nranks = 64};
    p.dim[DIM_M] = 1;
    p.dim[DIM_N] = 1000003;
    EXPECT(plan_make(&p, 3, &small, &plan, &e) == 0); /* tiles grow until their flags are few enough */
    EXPECT(plan->nflags <= PLAN_MAX_FLAGS && plan->schedule.slice_cols > 1);
    plan_free(plan);
    p = (struct problem){.op = FCC_OP_EMBEDDING_ALL_TO_ALL, .dtype = FCC_F32, .nranks = 1};
    p.dim[DIM_VECTOR] = 1;
    p.rank_dim[DIM_N][0] = FCC_MAX_TABLES;
    p.dim[DIM_M] = p.rank_dim[DIM_M][0] = INT32_MAX;
    EXPECT(plan_make(&p, 0, &fused, &plan, &e) == 0);
    plan_free(plan);
}

/* A gemm is shared by all workgroups of a cpu device, in slices that are not small; one workgroup has as long ones as there may be. */
static void test_workgroups(void **state)
{
    static const int64_t sizes[][2] = {{1024, 1024}, {4096, 512}, {512, 8192}, {130, 130}, {2, 100}};
    struct problem p = {.op = FCC_OP_GEMM_ALL_TO_ALL, .dtype = FCC_F32, .nranks = 2, .rank_dim[DIM_K] = {64, 64}};
    struct schedule schedule = {.kind = FCC_SCHEDULE_FUSED};
    struct plan *plan = NULL;
    struct error e;

    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        for (schedule.workgroups = 0; schedule.workgroups <= 64; schedule.workgroups = 2 * schedule.workgroups + 1) {
            (void)snprintf(case_text, sizeof(case_text), "%d x %d, %u workgroups", (int)sizes[i][0], (int)sizes[i][1],
                           schedule.workgroups);
            p.dim[DIM_N] = sizes[i][1];
            for (int r = 0; r < 2; r++)
                p.counts[r][0] = p.counts[r][1] = sizes[i][0] / 2;
            EXPECT(plan_make(&p, 1, &schedule, &plan, &e) == 0);
            const struct schedule *s = &plan->schedule;
            if (schedule.workgroups > 1)
                EXPECT(plan->nslices >= 2 * schedule.workgroups || (s->slice_rows <= 128 && s->slice_cols <= 128));
            else
                EXPECT(s->slice_cols == (sizes[i][1] > 6144 ? 4096 : sizes[i][1]));
            EXPECT(s->slice_rows >= 64 && (s->slice_cols >= 64 || s->slice_cols == p.dim[DIM_N]));
            plan_free(plan);
        }
}

/* What a GPU multiplies at a time is about as high as wide: 10 to 24 tiles of the same columns, unless there are no more rows, and an even
 * number of them, unless these are a destination's last ones. */
static void test_bands(void **state)
{
    struct problem p = {
        .op = FCC_OP_GEMM_ALL_TO_ALL, .dtype = FCC_F16, .nranks = 2, .dim[DIM_N] = 4096, .rank_dim[DIM_K] = {64, 64}};
    const struct schedule schedule = {.kind = FCC_SCHEDULE_FUSED, .target = PLAN_GPU};
    struct plan *plan = NULL;
    struct error e;

    (void)state;
    for (uint32_t high = 2; high <= 100; high++) {
        (void)snprintf(case_text, sizeof(case_text), "%u tiles high", high);
        p.counts[0][0] = p.counts[0][1] = high * 128 - 5;
        EXPECT(plan_make(&p, 0, &schedule, &plan, &e) == 0 && plan->schedule.slice_rows == 128);
        for (uint32_t i = 0, n; plan->slices[i].kind == SLICE_COMPUTE_PUT; i += n) {
            const struct slice *s = &plan->slices[i];
            for (n = 1; s[n].kind == SLICE_COMPUTE_PUT && s[n].col == s->col && s[n].row == s[n - 1].row + 128; n++)
                EXPECT(s[n].dst == s->dst);
            bool last = s[n - 1].rows < 128; /* of its destination */
            EXPECT(n <= 24 && (last || (n >= 10 && n % 2 == 0)) && (n == high || high > 23));
        }
        plan_free(plan);
    }
}

static void expect_differs(struct problem *a, const struct problem *b, int64_t *word, bool differs)
{
    ++*word;
    EXPECT(problem_equal(a, b) != differs);
    --*word;
    EXPECT(problem_equal(a, b));
}

/* Problems are equal if all words are that their operator uses, of the ranks that there are. */
static void test_problems(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(all_ops) / sizeof(all_ops[0]); i++) {
        static struct problem a, b;
        const struct problem_spec *words = op_words(all_ops[i]);
        memset(&a, 0x55, sizeof(a)); /* beyond the ranks lies anything */
        memset(&b, 0x2a, sizeof(b));
        (void)snprintf(case_text, sizeof(case_text), "problems of %s", op_name(all_ops[i]));
        for (struct problem *p = &a; p; p = p == &a ? &b : NULL) {
            problem_begin(p, all_ops[i], 3);
            memset(p->node_of, 0, 3 * sizeof(p->node_of[0]));
            for (int r = 0; r < 3; r++)
                memset(p->counts[r], 0, 3 * sizeof(p->counts[r][0]));
        }
        EXPECT(problem_equal(&a, &b));
        for (int d = 0; d < DIMS; d++) {
            EXPECT(a.dim[d] == 0);
            expect_differs(&a, &b, &a.dim[d], true);
        }
        for (int r = 0; r < 4; r++)
            for (int d = 0; d < RANK_DIMS; d++) {
                EXPECT(r == 3 || a.rank_dim[d][r] == 0);
                expect_differs(&a, &b, &a.rank_dim[d][r], r < 3 && words->rank_dim[d].name);
            }
        for (int r = 0; r < 16; r++)
            expect_differs(&a, &b, &a.counts[r / 4][r % 4], r / 4 < 3 && r % 4 < 3 && op_counts(all_ops[i]));
        a.node_of[2] = 1;
        EXPECT(!problem_equal(&a, &b));
        a.node_of[2] = 0;
        a.dtype = FCC_BF16;
        EXPECT(!problem_equal(&a, &b));
    }
}

static void test_names(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(all_ops) / sizeof(all_ops[0]); i++)
        assert_int_equal(op_by_name(op_name(all_ops[i])), all_ops[i]);
    for (int d = FCC_F32; d <= FCC_I64; d++)
        assert_int_equal(dtype_by_name(dtype_name((enum fcc_dtype)d)), d);
    assert_int_equal(op_by_name("gemm"), -ENOENT);
    assert_int_equal(dtype_by_name("f64"), -ENOENT);
    assert_int_equal(dtype_by_name("unknown"), -ENOENT);
    assert_string_equal(op_name((enum fcc_op)99), "unknown");
    assert_string_equal(dtype_name((enum fcc_dtype)0), "unknown");
    assert_string_equal(schedule_name((enum fcc_schedule_kind)5), "unknown");
    assert_string_equal(slice_kind_name(SLICE_COMPUTE_PUT), "compute+put");
    assert_string_equal(slice_kind_name((enum slice_kind)0), "unknown");
    assert_int_equal(dtype_size(FCC_BF16), 2);
    assert_int_equal(dtype_size((enum fcc_dtype)9), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_properties), cmocka_unit_test(test_destinations), cmocka_unit_test(test_limits),
        cmocka_unit_test(test_workgroups), cmocka_unit_test(test_bands),        cmocka_unit_test(test_names),
        cmocka_unit_test(test_problems),
    };
    const char *seed = getenv("FCC_TEST_SEED");

    random_state = seed ? strtoull(seed, NULL, 0) : 1;
    (void)printf("FCC_TEST_SEED=%llu\n", (unsigned long long)random_state);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
