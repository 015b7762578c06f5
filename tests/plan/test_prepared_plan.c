/* SPDX-License-Identifier: MIT
 *
 * test_prepared_plan.c - plans that come from another process: every one that a worker makes is found right, and each number that leads a
 * kernel elsewhere is refused, with words that name it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/plan/compute/step.h"
#include "tests/plan/prepared_plans.h"

static uint64_t state = 88172645463325252u;

static uint32_t below(uint32_t n)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state % n);
}

static struct problem *problem_make(enum fcc_op op, int nranks, int64_t m, int64_t n, int64_t k)
{
    struct problem *p = problem_new(nranks);
    int64_t rows[GPU_MAX_GPUS];

    assert_true(p && problem_begin(p, op) == 0);
    for (int r = 0; r < nranks; r++) {
        p->rank_dim[DIM_K][r] = k;
        rows[r] = m;
    }
    for (int r = 0; r < nranks && op == FCC_OP_GEMM_ALL_TO_ALL; r++)
        problem_counts_set(p, r, rows);
    p->dim[DIM_M] = op == FCC_OP_GEMV_ALL_REDUCE ? m : 0;
    p->dim[DIM_N] = n;
    return p;
}

static struct problem *problem_random(void)
{
    static const enum fcc_dtype dtypes[] = {FCC_F32, FCC_F16, FCC_BF16};
    static const int64_t sizes[] = {0, 1, 2, 7, 8, 9, 63, 64, 65, 127, 128, 500, 1024, 4097, 20000};
    bool gemv = below(2);
    int nranks = 1 + (int)below(GPU_MAX_GPUS);
    struct problem *p = problem_make(FCC_OP_GEMV_ALL_REDUCE, nranks, 1 + below(40), sizes[below(15)], sizes[below(12)]);

    if (!gemv) {
        int64_t n = p->dim[DIM_N], k = p->rank_dim[DIM_K][0], rows[GPU_MAX_GPUS];
        problem_begin(p, FCC_OP_GEMM_ALL_TO_ALL);
        p->dim[DIM_N] = n;
        for (int r = 0; r < nranks; r++) {
            p->rank_dim[DIM_K][r] = k;
            for (int to = 0; to < nranks; to++)
                rows[to] = below(3) ? below(300) : 0;
            problem_counts_set(p, r, rows);
        }
    }
    p->dtype = dtypes[below(3)];
    for (int r = 0; r < nranks; r++)
        if (gemv && below(3) == 0)
            p->rank_dim[DIM_K][r] = below(300);
    return p;
}

static void sizes_of(const struct gpu_prepared_plan *plan, struct gpu_prepared_sizes *sizes)
{
    *sizes = (struct gpu_prepared_sizes){.areas = {0}};
    for (uint32_t r = 0; r < plan->shape.nranks; r++) {
        sizes->areas[r] = plan->slots_at + 2 * plan->slots_bytes;
        sizes->results[r] = gpu_prepared_result_bytes(plan, r);
    }
}

static void test_all_that_are_made(void **unused)
{
    unsigned made = 0;

    (void)unused;
    for (int i = 0; i < 3000; i++) {
        struct problem *p = problem_random();
        struct gpu_prepared_plan *plan = prepared_plan_make(p, (int)below((uint32_t)p->nranks));
        struct gpu_prepared_sizes sizes;
        struct error e = {.status = 0};
        if (!plan) {
            problem_free(p);
            continue;
        }
        if (gpu_prepared_plan_check(plan, plan->bytes, &e))
            fail_msg("%s of %d ranks: %s", op_name(p->op), p->nranks, e.text);
        sizes_of(plan, &sizes);
        if (gpu_prepared_sizes_check(plan, &sizes, &e))
            fail_msg("%s of %d ranks: %s", op_name(p->op), p->nranks, e.text);
        plan_follow(plan, &sizes);
        made++;
        free(plan);
        problem_free(p);
    }
    assert_true(made > 2000);
}

/* ---- what is wrong ---- */

struct wrong {
    const char *words; /* of the error */
    int status;
    size_t at, size;
    uint64_t value;
};
#define HEAD(field, number, status, words)                                                                                     \
    {                                                                                                                          \
        words, status, offsetof(struct gpu_prepared_plan, field), sizeof(((struct gpu_prepared_plan *)0)->field), number       \
    }

static void number_put(void *at, size_t size, uint64_t value)
{
    memcpy(at, &value, size); /* the least significant bytes come first on all machines that have such GPUs */
}

static void refused(const struct gpu_prepared_plan *plan, const struct wrong *w, size_t at)
{
    unsigned char *copy = malloc(plan->bytes);
    struct error e = {.status = 0};

    assert_non_null(copy);
    memcpy(copy, plan, plan->bytes);
    number_put(copy + at, w->size, w->value);
    int status = gpu_prepared_plan_check((const struct gpu_prepared_plan *)(void *)copy, plan->bytes, &e);
    if (status != w->status || !strstr(e.text, w->words))
        fail_msg("%zu bytes at %zu become %llx: %d %s, not %d %s", w->size, at, (unsigned long long)w->value, status, e.text,
                 w->status, w->words);
    free(copy);
}

static void test_heads(void **unused)
{
    static const struct wrong heads[] = {
        HEAD(abi, GPU_PLUGIN_ABI + 1, -EPROTO, "plug-in"),
        HEAD(bytes, 1 << 30, -EPROTO, "plug-in"),
        HEAD(rank, 4, -EINVAL, "rank 4 of 4"),
        HEAD(shape.nranks, 0, -EINVAL, "of 0"),
        HEAD(shape.nranks, GPU_MAX_GPUS + 1, -EINVAL, "of 17"),
        HEAD(shape.nranks, UINT32_MAX, -EINVAL, "1 to 16 ranks"),
        HEAD(shape.compute, COMPUTE_BAG, -EINVAL, "compute 1"),
        HEAD(shape.compute, COMPUTE_NONE, -EINVAL, "compute 0, exchange 2"),
        HEAD(shape.compute, COMPUTE_GEMM, -EINVAL, "compute 3, exchange 2"),
        HEAD(shape.compute, COMPUTE_KINDS, -EINVAL, "compute 6"),
        HEAD(shape.exchange, EXCHANGE_NONE, -EINVAL, "compute 2, exchange 0"),
        HEAD(shape.exchange, EXCHANGE_PUT, -EINVAL, "compute 2, exchange 1"),
        HEAD(shape.exchange, UINT16_MAX, -EINVAL, "exchange 65535"),
        HEAD(shape.dtype, FCC_I64, -EINVAL, "dtype"),
        HEAD(shape.dtype, 77, -EINVAL, "dtype 77"),
        HEAD(shape.over_nodes, 1, -EINVAL, "over_nodes 1"),
        HEAD(only_slots, 2, -EINVAL, "only_slots 2"),
        HEAD(shape.m, -1ull, -EINVAL, "m -1"),
        HEAD(shape.n, INT64_MAX, -EINVAL, "allowed are 0 to"),
        HEAD(shape.n, 1ull << 31, -EINVAL, "n 2147483648"),
        HEAD(shape.k, 1ull << 40, -EINVAL, "allowed are 0 to"),
        HEAD(in.gemv.k, -2ull, -EINVAL, "and -2"),
        HEAD(shape.first[2], -1ull, -EINVAL, "rank 2 reduces from column -1"),
        HEAD(shape.first[1], 1ull << 33, -EINVAL, "rank 1 reduces"),
        HEAD(shape.slot_bytes, 1ull << 40, -EINVAL, "slots of"),
        HEAD(shape.slot_bytes, 8, -EINVAL, "slots of 8"),
        HEAD(shape.slot_bytes, 0, -EINVAL, "slice 0"),
        HEAD(slots_at, 0, -EINVAL, "from 0 on"),
        HEAD(slots_at, GPU_PREPARED_SLOTS_AT - 256, -EINVAL, "begin behind"),
        HEAD(slots_at, 1ull << 63, -EINVAL, "begin behind"),
        HEAD(slots_bytes, 1ull << 63, -EINVAL, "begin behind"),
        HEAD(slots_bytes, 256, -EINVAL, "in 256 bytes"),
        HEAD(lines, 1, -EINVAL, "lines 1 of 4 ranks, exchange 2"),
        HEAD(first[0], 1, -EINVAL, "phase 0"),
        HEAD(first[1], UINT32_MAX, -EINVAL, "phase 1"),
        HEAD(first[GPU_PHASES], UINT32_MAX, -EINVAL, "allowed are 1 to"),
        HEAD(first[GPU_PHASES], 1 << 19, -EINVAL, "not in its"),
        HEAD(ngroups, UINT32_MAX, -EINVAL, "not in its"),
        HEAD(slices, 0, -EINVAL, "not in its"),
        HEAD(slices, 8, -EINVAL, "not in its"),
        HEAD(slices, UINT64_MAX - 47, -EINVAL, "not in its"),
        HEAD(slices, sizeof(struct gpu_prepared_plan) + 1, -EINVAL, "not in its"),
        HEAD(groups, UINT64_MAX, -EINVAL, "not in its"),
        HEAD(groups, 1ull << 63, -EINVAL, "not in its"),
    };
    struct problem *p = problem_make(FCC_OP_GEMV_ALL_REDUCE, 4, 8, 20000, 500);
    struct gpu_prepared_plan *plan = prepared_plan_make(p, 1);
    struct error e;

    (void)unused;
    assert_non_null(plan);
    assert_true(plan->ngroups && !plan->only_slots);
    assert_int_equal(gpu_prepared_plan_check(plan, plan->bytes, &e), 0);
    for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++)
        refused(plan, &heads[i], heads[i].at);
    for (size_t bytes = 0; bytes < plan->bytes; bytes += 100)
        assert_int_equal(gpu_prepared_plan_check(plan, bytes, &e), -EPROTO);
    free(plan);
    problem_free(p);
}

/* Of rings: lines are for two ranks. */
static void test_rings(void **unused)
{
    (void)unused;
    for (int nranks = 1; nranks <= 3; nranks++) {
        struct problem *p = problem_make(FCC_OP_RINGS, nranks, 0, 0, 0);
        struct gpu_prepared_plan *plan = prepared_plan_make(p, nranks - 1);
        struct error e;
        assert_non_null(plan);
        for (uint32_t lines = 0; lines < 3; lines++) {
            plan->lines = lines;
            assert_int_equal(gpu_prepared_plan_check(plan, plan->bytes, &e),
                             lines == 0 || (lines == 1 && nranks == 2) ? 0 : -EINVAL);
        }
        plan->lines = 0;
        plan->slots_bytes -= GPU_PREPARED_ALIGN;
        assert_int_equal(gpu_prepared_plan_check(plan, plan->bytes, &e), -EINVAL);
        free(plan);
        problem_free(p);
    }
}

#define SLICE(field, number)                                                                                                   \
    {                                                                                                                          \
        "slice", -EINVAL, offsetof(struct slice, field), sizeof(((struct slice *)0)->field), number                            \
    }

static void slices_refused(const struct gpu_prepared_plan *plan, enum gpu_phase phase, const struct wrong wrongs[], size_t n)
{
    assert_true(plan->first[phase] < plan->first[phase + 1]);
    for (size_t i = 0; i < n; i++)
        refused(plan, &wrongs[i], plan->slices + plan->first[phase] * sizeof(struct slice) + wrongs[i].at);
}

static void test_slices_of_gemv(void **unused)
{
    static const struct wrong puts[] = {
        SLICE(kind, 0),
        SLICE(kind, SLICE_COMPUTE),
        SLICE(kind, SLICE_PUT),
        SLICE(kind, SLICE_REDUCE),
        SLICE(kind, 255),
        SLICE(dst, 4),
        SLICE(dst, SLICE_DST_SET),
        SLICE(dst, SLICE_DST_SET + 1),
        SLICE(dst, 0xfffe),
        SLICE(row, 1),
        SLICE(row, UINT32_MAX),
        SLICE(rows, 0),
        SLICE(rows, 9),
        SLICE(cols, 0),
        SLICE(cols, 20001),
        SLICE(cols, UINT32_MAX),
        SLICE(col, UINT32_MAX),
        SLICE(col, 0),
        SLICE(group, 1 << 20),
        SLICE(group, UINT32_MAX - 1),
        SLICE(wait_count, 1),
        SLICE(dst_row, 1),
        SLICE(dst_col, 1),
    };
    static const struct wrong reductions[] = {
        SLICE(kind, SLICE_COMPUTE_PUT),
        SLICE(dst, 0),
        SLICE(dst, SLICE_DST_SET),
        SLICE(col, 0),
        SLICE(rows, 9),
        SLICE(cols, 20001),
        SLICE(group, 1 << 20),
        SLICE(dst_col, 19999),
    };
    static const struct wrong waits[] = {
        SLICE(kind, SLICE_COMPUTE_PUT),   SLICE(wait_first, GPU_FLAGS),  SLICE(wait_first, UINT32_MAX),
        SLICE(wait_count, GPU_FLAGS + 1), SLICE(wait_count, UINT32_MAX), SLICE(wait_stride, UINT32_MAX),
    };
    struct problem *p = problem_make(FCC_OP_GEMV_ALL_REDUCE, 4, 8, 20000, 500);
    struct gpu_prepared_plan *plan = prepared_plan_make(p, 1);

    (void)unused;
    assert_non_null(plan);
    slices_refused(plan, GPU_PHASE_FREE, puts, sizeof(puts) / sizeof(puts[0]));
    slices_refused(plan, GPU_PHASE_REDUCE, reductions, sizeof(reductions) / sizeof(reductions[0]));
    slices_refused(plan, GPU_PHASE_WAIT, waits, sizeof(waits) / sizeof(waits[0]));
    free(plan);
    problem_free(p);
}

static void test_slices_of_gemm(void **unused)
{
    static const struct wrong puts[] = {
        SLICE(kind, SLICE_PUT),
        SLICE(kind, SLICE_REDUCE),
        SLICE(dst, 3),
        SLICE(dst, SLICE_DST_ALL),
        SLICE(rows, 0),
        SLICE(rows, UINT32_MAX),
        SLICE(row, INT32_MAX),
        SLICE(dst_row, INT32_MAX),
        SLICE(cols, 0),
        SLICE(cols, UINT32_MAX),
        SLICE(col, 1000),
        SLICE(dst_col, UINT32_MAX),
        SLICE(dst_col, 1000),
        SLICE(group, UINT32_MAX - 100),
        SLICE(wait_count, 100000),
        SLICE(dst_row, UINT32_MAX),
    };
    static const struct wrong only_slots = HEAD(only_slots, 1, -EINVAL, "only_slots 1");
    struct problem *p = problem_make(FCC_OP_GEMM_ALL_TO_ALL, 3, 100, 1000, 64);
    struct gpu_prepared_plan *plan = prepared_plan_make(p, 2);

    (void)unused;
    assert_non_null(plan);
    slices_refused(plan, GPU_PHASE_FREE, puts, sizeof(puts) / sizeof(puts[0]));
    refused(plan, &only_slots, only_slots.at); /* then the others' results would not be mapped */
    free(plan);
    problem_free(p);
}

#define GROUP(field, number)                                                                                                   \
    {                                                                                                                          \
        "group 0", -EINVAL, offsetof(struct signal_group, field), sizeof(((struct signal_group *)0)->field), number            \
    }

/* Phases that only operators over several nodes have: no slice may be in them, of whatever kind. */
static void test_phases_of_nodes(void **unused)
{
    static const enum fcc_op ops[] = {FCC_OP_GEMV_ALL_REDUCE, FCC_OP_GEMM_ALL_TO_ALL};
    static const enum gpu_phase phases[] = {GPU_PHASE_NODE, GPU_PHASE_FORWARD};
    struct error e;

    (void)unused;
    for (int i = 0; i < 2; i++) {
        struct problem *p = problem_make(ops[i], 4, 8, 40, 500);
        struct gpu_prepared_plan *plan = prepared_plan_make(p, 1);
        assert_non_null(plan);
        assert_true(plan->first[GPU_PHASES] > 0);
        for (int j = 0; j < 2; j++) {
            for (int phase = 0; phase <= GPU_PHASES; phase++)
                plan->first[phase] = phase > (int)phases[j];
            struct slice *s = (struct slice *)(void *)((char *)plan + plan->slices);
            for (unsigned kind = 0; kind <= UINT8_MAX; kind++) {
                s->kind = (uint8_t)kind;
                assert_int_equal(gpu_prepared_plan_check(plan, plan->bytes, &e), -EINVAL);
                assert_non_null(strstr(e.text, "plan: slice 0, in phase "));
            }
        }
        free(plan);
        problem_free(p);
    }
}

static void test_groups(void **unused)
{
    static const struct wrong wrongs[] = {
        GROUP(dst, 4),           GROUP(dst, SLICE_DST_SET), GROUP(dst, 0xfffe),        GROUP(flag, GPU_FLAGS),
        GROUP(flag, UINT32_MAX), GROUP(slices, 0),          GROUP(slices, UINT32_MAX),
    };
    struct problem *p = problem_make(FCC_OP_GEMV_ALL_REDUCE, 4, 8, 20000, 500);
    struct gpu_prepared_plan *plan = prepared_plan_make(p, 1);

    (void)unused;
    assert_non_null(plan);
    for (size_t i = 0; i < sizeof(wrongs) / sizeof(wrongs[0]); i++)
        refused(plan, &wrongs[i], plan->groups + wrongs[i].at);
    free(plan);
    problem_free(p);
}

/* The plan is right by itself, but its kernels would store beyond what the client has mapped. */
static void sizes_refused(const struct problem *p, int rank)
{
    struct gpu_prepared_plan *plan = prepared_plan_make(p, rank);
    struct gpu_prepared_sizes sizes;
    struct error e;

    assert_non_null(plan);
    sizes_of(plan, &sizes);
    assert_int_equal(gpu_prepared_sizes_check(plan, &sizes, &e), 0);
    for (uint32_t r = 0; r < plan->shape.nranks; r++) {
        sizes.areas[r]--;
        assert_int_equal(gpu_prepared_sizes_check(plan, &sizes, &e), -EINVAL);
        sizes.areas[r]++;
        if (!sizes.results[r])
            continue;
        sizes.results[r]--;
        assert_int_equal(gpu_prepared_sizes_check(plan, &sizes, &e), -EINVAL);
        sizes.results[r]++;
        struct gpu_output before = plan->out[r];
        plan->out[r].data = 8; /* the others' strides and places are the worker's word, too */
        assert_int_equal(gpu_prepared_sizes_check(plan, &sizes, &e), -EINVAL);
        plan->out[r].data = UINT64_MAX - 8;
        assert_int_equal(gpu_prepared_sizes_check(plan, &sizes, &e), -EINVAL);
        plan->out[r] = before;
        static const int64_t strides[] = {-1, INT64_MIN, INT64_MAX, (int64_t)1 << 32};
        for (int i = 0; i < 4; i++) {
            plan->out[r].stride[0] = strides[i];
            assert_int_equal(gpu_prepared_sizes_check(plan, &sizes, &e), -EINVAL);
        }
        plan->out[r] = before;
    }
    free(plan);
}

static void test_sizes(void **unused)
{
    struct problem *p[] = {problem_make(FCC_OP_GEMV_ALL_REDUCE, 4, 8, 20000, 500),
                           problem_make(FCC_OP_GEMV_ALL_REDUCE, 2, 3, 64, 500),
                           problem_make(FCC_OP_GEMM_ALL_TO_ALL, 3, 100, 1000, 64)};

    (void)unused;
    for (size_t i = 0; i < sizeof(p) / sizeof(p[0]); i++)
        for (int r = 0; r < p[i]->nranks; r++)
            sizes_refused(p[i], r);
    for (size_t i = 0; i < sizeof(p) / sizeof(p[0]); i++)
        problem_free(p[i]);
}

/* ---- steps of programs ---- */

/* Of n elements, which the ranks add up, or have in parts; or of as many tensors, whose elements they add up. */
static struct problem *step_make(int nranks, int64_t n, bool reduces, int64_t tensors)
{
    struct problem *p = problem_new(nranks);

    assert_true(p && problem_begin(p, FCC_PROGRAM_STEP) == 0);
    p->dtype = reduces ? FCC_BF16 : FCC_F32;
    p->dim[DIM_M] = 1;
    p->dim[DIM_N] = n;
    p->dim[DIM_ROOT] = reduces ? CODE_REDUCE : CODE_ELEMENTS;
    p->dim[DIM_REDUCTION] = FCC_SUM;
    p->dim[DIM_K] = reduces ? FCC_F32 : 0;
    p->dim[DIM_GATHERED] = tensors;
    for (int r = 0; r < nranks; r++) {
        p->rank_dim[DIM_N][r] = slice_begin(n, nranks, r);
        p->rank_dim[DIM_K][r] = slice_begin(n, nranks, r + 1) - slice_begin(n, nranks, r);
    }
    return p;
}

static void test_steps_that_are_made(void **unused)
{
    static const int64_t sizes[] = {0, 1, 2, 63, 1000, 4097, 100000, 3000000, (int64_t)3 << 31};

    (void)unused;
    for (int nranks = 1; nranks <= GPU_MAX_GPUS; nranks += 3)
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
            for (int way = 0; way < 3; way++) {
                struct problem *p = step_make(nranks, sizes[i], way == 1, way == 2 ? 7 : 0);
                struct error e = {.status = 0};
                for (int rank = 0; rank < nranks; rank++) {
                    struct gpu_prepared_plan *plan = prepared_plan_make(p, rank);
                    assert_non_null(plan);
                    if (gpu_prepared_plan_check(plan, plan->bytes, &e))
                        fail_msg("%lld elements of rank %d of %d, way %d: %s", (long long)sizes[i], rank, nranks, way, e.text);
                    assert_int_equal(plan->reads_inputs, way == 1);
                    assert_int_equal(plan->shares_result, way == 1);
                    assert_true((plan->staging_bytes != 0) == (way == 2));
                    free(plan);
                }
                problem_free(p);
            }
}

static void test_steps(void **unused)
{
    static const struct wrong heads[] = {
        HEAD(shape.stages, 1, -EINVAL, "compute 5"),
        HEAD(shape.exchange, EXCHANGE_PUT, -EINVAL, "compute 5, exchange 1"),
        HEAD(only_slots, 1, -EINVAL, "only_slots 1"),
        HEAD(shape.n, -1ull, -EINVAL, "n -1"),
        HEAD(shape.n, (1ull << 48) + 1, -EINVAL, "allowed are 0 to"),
        HEAD(shape.n, 19999, -EINVAL, "from element 20000"),
        HEAD(shape.unit, 0, -EINVAL, "0 in a column"),
        HEAD(shape.unit, 1ull << 40, -EINVAL, "in a column"),
        HEAD(shape.element_bytes, 4, -EINVAL, "of 4 bytes"),
        HEAD(shape.reduction, FCC_PRODUCT, -EINVAL, "reduction 1"),
        HEAD(shape.keeps_own, 1, -EINVAL, "a step of"),
        HEAD(shape.elements[2], -1ull, -EINVAL, "rank 2 reduces from element -1"),
        HEAD(shape.elements[1], 20001, -EINVAL, "rank 1 reduces from element 20001"),
        HEAD(shape.elements[2], 5001, -EINVAL, "slice"),
        HEAD(shape.first[2], 1ull << 33, -EINVAL, "rank 2 reduces"),
        HEAD(table_words, UINT32_MAX, -EINVAL, "words of tables"),
        HEAD(tables, 0, -EINVAL, "words of tables"),
        HEAD(tables, sizeof(struct gpu_prepared_plan) + 4, -EINVAL, "words of tables"),
        HEAD(tables, 1ull << 62, -EINVAL, "words of tables"),
    };
    static const struct wrong reductions[] = {
        SLICE(kind, SLICE_COMPUTE_PUT),
        SLICE(kind, SLICE_PUT),
        SLICE(dst, 0),
        SLICE(dst, SLICE_DST_SET),
        SLICE(rows, 0),
        SLICE(rows, 2),
        SLICE(cols, 0),
        SLICE(cols, 5001),
        SLICE(cols, UINT32_MAX),
        SLICE(col, 0),
        SLICE(col, UINT32_MAX),
        SLICE(group, 1 << 20),
        SLICE(wait_count, 1),
    };
    static const struct wrong waits[] = {SLICE(kind, SLICE_REDUCE), SLICE(wait_first, GPU_FLAGS),
                                         SLICE(wait_count, UINT32_MAX)};
    struct problem *p = step_make(4, 20000, true, 0);
    struct gpu_prepared_plan *plan = prepared_plan_make(p, 1);
    struct error e;

    (void)unused;
    assert_non_null(plan);
    assert_int_equal(gpu_prepared_plan_check(plan, plan->bytes, &e), 0);
    for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++)
        refused(plan, &heads[i], heads[i].at);
    slices_refused(plan, GPU_PHASE_FREE, reductions, sizeof(reductions) / sizeof(reductions[0]));
    slices_refused(plan, GPU_PHASE_WAIT, waits, sizeof(waits) / sizeof(waits[0]));
    free(plan);
    problem_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_that_are_made),
        cmocka_unit_test(test_heads),
        cmocka_unit_test(test_rings),
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_steps_that_are_made),
        cmocka_unit_test(test_slices_of_gemv),
        cmocka_unit_test(test_slices_of_gemm),
        cmocka_unit_test(test_phases_of_nodes),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_sizes),
    };

    return cmocka_run_group_tests_name("prepared_plan", tests, NULL, NULL);
}
