/* SPDX-License-Identifier: MIT
 *
 * fuzz_prepared.c - plans for kernels that a client launches itself, as a worker may send them: right ones, with some of their numbers
 * changed, or any bytes.
 *
 * Whatever comes: a plan that is found right, with memory that is found large enough, leads nobody out of that memory (prepared_plans.h
 * follows it, and the sanitizer watches); and one that was not changed is found right.
 */
#include "tests/fuzz/fuzz.h"

#include "tests/plan/prepared_plans.h"

enum { CHANGES_MAX = 6, MAPPED_MAX = 1 << 20 };

static struct problem *problem_read(struct input *in)
{
    static const enum fcc_dtype dtypes[] = {FCC_F32, FCC_F16, FCC_BF16};
    enum fcc_op op = input_below(in, 2) ? FCC_OP_GEMM_ALL_TO_ALL : FCC_OP_GEMV_ALL_REDUCE;
    enum fcc_dtype dtype = dtypes[input_below(in, 3)];
    struct problem *p = problem_new(1 + (int)input_below(in, 8));

    FUZZ_CHECK(problem_begin(p, op) == 0);
    p->dtype = dtype;
    if (op == FCC_OP_GEMV_ALL_REDUCE) {
        p->dim[DIM_M] = 1 + input_below(in, 16);
        p->dim[DIM_N] = input_below(in, 2000);
        for (int r = 0; r < p->nranks; r++)
            p->rank_dim[DIM_K][r] = input_below(in, 200);
        return p;
    }
    p->dim[DIM_N] = input_below(in, 600);
    for (int r = 0; r < p->nranks; r++) {
        int64_t rows[8];
        p->rank_dim[DIM_K][r] = input_below(in, 200);
        for (int to = 0; to < p->nranks; to++)
            rows[to] = input_below(in, 200);
        problem_counts_set(p, r, rows);
    }
    return p;
}

/* One number becomes another one: of the head, of a slice or of a group. */
static void plan_change(struct input *in, struct gpu_prepared_plan *plan, size_t bytes)
{
    struct slice *slices = (struct slice *)(void *)((char *)plan + sizeof(*plan));
    uint32_t what = input_below(in, 3);
    size_t at, size;

    if (what == 0) {
        at = input_below(in, sizeof(*plan) / 4) * (size_t)4;
        size = input_below(in, 2) && at + 8 <= sizeof(*plan) ? 8 : 4;
    } else if (what == 1) {
        size_t nslices = (bytes - sizeof(*plan)) / sizeof(*slices);
        if (!nslices)
            return;
        at = (size_t)((char *)&slices[input_below(in, (uint32_t)nslices)] - (char *)plan);
        size = input_below(in, 4);
        at += size == 1 ? input_below(in, 4) : size == 2 ? 2 : input_below(in, sizeof(*slices) / 4) * (size_t)4;
        size = size == 1 ? 1 : size == 2 ? 2 : 4;
    } else {
        at = bytes - 4 * (1 + input_below(in, bytes - sizeof(*plan) < 200 ? 3 : 50));
        size = 4;
    }
    int64_t value = input_number(in);
    if (at + size <= bytes)
        memcpy((char *)plan + at, &value, size);
}

/* As much as is needed, unless that is more than a client of this target maps. */
static void plan_judge(const struct gpu_prepared_plan *plan, size_t bytes, bool changed)
{
    struct gpu_prepared_sizes sizes = {.areas = {0}};
    struct error e = {.status = 0};
    int status = gpu_prepared_plan_check(plan, bytes, &e);

    FUZZ_CHECK(status == e.status && (!status || e.text[0]));
    if (!changed && status)
        fuzz_failed(__FILE__, __LINE__, "a plan that was not changed: %s", e.text);
    if (status)
        return;
    for (uint32_t r = 0; r < plan->shape.nranks; r++) {
        uint64_t area = plan->slots_at + 2 * plan->slots_bytes, result = gpu_prepared_result_bytes(plan, r);
        sizes.areas[r] = area < MAPPED_MAX ? area : MAPPED_MAX;
        sizes.results[r] = result < MAPPED_MAX ? result : MAPPED_MAX;
    }
    if (!gpu_prepared_sizes_check(plan, &sizes, &e))
        plan_follow(plan, &sizes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {.at = data, .left = size};
    struct gpu_prepared_plan *plan;

    if (input_rarely(&in, 16)) {
        plan = malloc(in.left ? in.left : 1);
        memcpy(plan, in.at, in.left);
        plan_judge(plan, in.left, true);
        free(plan);
        return 0;
    }
    struct problem *p = problem_read(&in);
    int rank = (int)input_below(&in, (uint32_t)p->nranks);
    plan = prepared_plan_make(p, rank);
    problem_free(p);
    if (!plan)
        return 0;
    size_t bytes = plan->bytes;
    uint32_t changes = input_below(&in, CHANGES_MAX + 1);
    for (uint32_t i = 0; i < changes; i++)
        plan_change(&in, plan, bytes);
    if (changes && input_rarely(&in, 8)) { /* cut */
        bytes -= input_below(&in, (uint32_t)(bytes < 60000 ? bytes : 60000));
        plan->bytes = bytes >= sizeof(*plan) ? bytes : plan->bytes;
    }
    struct gpu_prepared_plan *exact = malloc(bytes ? bytes : 1);
    memcpy(exact, plan, bytes);
    plan_judge(exact, bytes, changes > 0);
    free(exact);
    free(plan);
    return 0;
}
