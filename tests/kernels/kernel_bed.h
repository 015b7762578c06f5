/* SPDX-License-Identifier: MIT
 *
 * kernel_bed.h - what test_kernels.c stands on: random inputs, numbers the slow way, tensors whose surroundings are watched,
 * and an executor for the plans of all ranks. Shares no code with the kernels.
 */
#ifndef FCC_TEST_KERNEL_BED_H
#define FCC_TEST_KERNEL_BED_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <errno.h>
#include <math.h>

#include "kernels/cpu/execute.h"
#include "kernels/plan/epilogue.h"
#include "tests/bed/random.h"

enum { RANKS = 8, GUARD = 256, POISON = 0xff, ATTRS = 256 };

static void *must(void *memory)
{
    assert_non_null(memory);
    return memory;
}

/* FCC_TEST_CASES: so many cases of each kind, where time is short (a sanitizer on a GPU). A quarter of them under the others. */
static int cases(int most)
{
    const char *fewer = getenv("FCC_TEST_CASES");
    int n = fewer ? atoi(fewer) : getenv("FCC_TEST_SLOW") ? (most + 3) / 4 : most;
    return n > 0 && n < most ? n : most;
}

/* ---- numbers, the slow way ---- */

/* fraction_bits without the leading one; exponents of normal numbers from least_exponent on */
static double float_value(uint32_t bits, int fraction_bits, int exponent_bits)
{
    int bias = (1 << (exponent_bits - 1)) - 1, all = (1 << exponent_bits) - 1;
    int exponent = (int)(bits >> fraction_bits) & all;
    double fraction = (double)(bits & ((1u << fraction_bits) - 1)), sign = bits >> (fraction_bits + exponent_bits) & 1 ? -1 : 1;

    if (exponent == all)
        return fraction > 0 ? (double)NAN : sign * INFINITY;
    if (exponent == 0)
        return sign * ldexp(fraction, 1 - bias - fraction_bits);
    return sign * ldexp(fraction + ldexp(1, fraction_bits), exponent - bias - fraction_bits);
}

/* The nearest value, ties to even, of a format with so many bits; infinity if there is none. */
static double float_round(double value, int fraction_bits, int exponent_bits)
{
    int bias = (1 << (exponent_bits - 1)) - 1, exponent;

    if (value == 0 || isnan(value) || isinf(value))
        return value;
    (void)frexp(value, &exponent);
    exponent = exponent - 1 < 1 - bias ? 1 - bias : exponent - 1;
    value = ldexp(nearbyint(ldexp(value, fraction_bits - exponent)), exponent - fraction_bits);
    return fabs(value) >= ldexp(1, bias + 1) ? copysign(INFINITY, value) : value;
}

static double get(const void *array, enum fcc_dtype dtype, int64_t i)
{
    float f;
    uint16_t h;

    if (dtype == FCC_F32) {
        memcpy(&f, (const char *)array + i * 4, sizeof(f));
        return (double)f;
    }
    memcpy(&h, (const char *)array + i * 2, sizeof(h));
    return dtype == FCC_F16 ? float_value(h, 10, 5) : float_value(h, 7, 8);
}

/* Any bits that are a number between -2 and 2. */
static void put_random(void *array, enum fcc_dtype dtype, int64_t i)
{
    uint16_t h;
    float f = (float)(random_u32() >> 8) * 0x1p-22f - 2.0f;

    if (dtype == FCC_F32) {
        memcpy((char *)array + i * 4, &f, sizeof(f));
        return;
    }
    do
        h = (uint16_t)random_u32();
    while (!(fabs(dtype == FCC_F16 ? float_value(h, 10, 5) : float_value(h, 7, 8)) < 2));
    memcpy((char *)array + i * 2, &h, sizeof(h));
}

/* ---- tensors ---- */

/* A tensor with memory of its own, which begins `before` bytes before its first element. */
struct memory {
    unsigned char *base;
    size_t bytes, before;
};

/* Strides for a shape, with or without gaps. */
/* Addresses and strides of the matrices are multiples of 16 bytes: what GPUs have quicker ways for. */
static bool case_regular;

static void strides_choose(struct tensor *t, bool gaps)
{
    int64_t stride = 1;

    for (int i = t->ndim - 1; i >= 0; i--) {
        t->stride[i] = stride;
        stride = stride * (t->shape[i] > 0 ? t->shape[i] : 1) + (gaps ? random_below(9) * (case_regular ? 8 : 1) : 0);
    }
}

static int64_t tensor_extent(const struct tensor *t)
{
    int64_t last = 0;

    for (int i = 0; i < t->ndim; i++) {
        if (t->shape[i] == 0)
            return 0;
        last += (t->shape[i] - 1) * t->stride[i];
    }
    return last + 1;
}

static void input_open(struct tensor *t, struct memory *m, bool fill)
{
    int64_t n = tensor_extent(t);

    *m = (struct memory){.bytes = (size_t)n * dtype_size(t->dtype)};
    m->base = must(malloc(m->bytes ? m->bytes : 1));
    t->data = m->base;
    for (int64_t i = 0; i < n && fill; i++)
        put_random(m->base, t->dtype, i);
}

static void output_open(struct tensor *t, struct memory *m)
{
    *m = (struct memory){.bytes = (size_t)tensor_extent(t) * dtype_size(t->dtype) + (size_t)2 * GUARD, .before = GUARD};
    m->base = must(malloc(m->bytes));
    t->data = m->base + GUARD;
    t->symmetric = true;
}

static int64_t at3(const struct tensor *t, int64_t i, int64_t j, int64_t k)
{
    return i * t->stride[0] + j * t->stride[1] + (t->ndim > 2 ? k * t->stride[2] : 0);
}

/* A matrix as dense doubles, to be freed by the caller. */
static double *matrix_values(const struct tensor *t)
{
    double *values = must(malloc((size_t)(t->shape[0] * t->shape[1] + 1) * sizeof(double)));

    for (int64_t i = 0; i < t->shape[0]; i++)
        for (int64_t j = 0; j < t->shape[1]; j++)
            values[i * t->shape[1] + j] = get(t->data, t->dtype, at3(t, i, j, 0));
    return values;
}

/* The first rows of an output (2 or 3 dimensions) are like `reference` (dense), and nothing else was touched. */
static void expect_output(const struct tensor *t, const struct memory *m, int64_t rows, const double *reference)
{
    size_t size = dtype_size(t->dtype);
    bool *used = must(calloc(m->bytes + 1, 1));
    int64_t depth = t->ndim > 2 ? t->shape[2] : 1, n = 0;
    double difference = 0, norm = 0;

    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < t->shape[1]; j++)
            for (int64_t k = 0; k < depth; k++, n++) {
                int64_t at = at3(t, i, j, k);
                double d = get(t->data, t->dtype, at) - reference[n];
                difference += d * d; /* an element that was not stored is NaN */
                norm += reference[n] * reference[n];
                memset(used + m->before + (size_t)at * size, 1, size);
            }
    for (size_t i = 0; i < m->bytes; i++)
        EXPECT(used[i] || m->base[i] == POISON);
    free(used);
    if (!(sqrt(difference) <= (t->dtype == FCC_F32 ? 1e-5 : 1e-2) * sqrt(norm)))
        fail_msg("%s: %s, relative error %g", case_text, dtype_name(t->dtype), sqrt(difference / norm));
}

/* ---- a tiny executor ---- */

struct test_case {
    int nranks;
    struct op_args args[RANKS];
    int64_t attrs[RANKS][ATTRS];
    struct memory memory[RANKS][FCC_MAX_TENSORS];
    int result; /* which tensor is the output */
    int more;   /* another one; 0: there is none */
    /* The epilogue's tensors, whose memory follows that of the operator's own; in_place: the residual's values are put into the
     * result, which is the residual then. */
    bool has_epilogue, in_place;
    struct tensor stages[RANKS][STAGES];
    int32_t node_of[RANKS];
    struct problem *problem;
};

static void attr_add(struct op_args *args, int64_t *words, enum fcc_attr key, const int64_t *values, size_t n)
{
    args->attrs = words;
    words[args->nattrs++] = (int64_t)((uint64_t)key << 32 | n);
    for (size_t i = 0; i < n; i++)
        words[args->nattrs++] = values[i];
    assert_true(args->nattrs <= ATTRS);
}

static void case_close(struct test_case *c)
{
    for (int r = 0; r < c->nranks; r++)
        for (int i = 0; i < FCC_MAX_TENSORS; i++)
            free(c->memory[r][i].base);
    problem_free(c->problem);
}

/* Where its ranks are. (On GPUs other kernels run the plans of one node and those of several.) */
static void case_place(struct test_case *c, int64_t nodes)
{
    for (int r = 0; r < c->nranks; r++)
        c->node_of[r] = (int32_t)random_below(nodes);
}

static void epilogue_place(struct test_case *c, int r)
{
    struct op_args *args = &c->args[r];
    int own = op_spec(args->op)->ntensors;

    args->ntensors = own + (c->has_epilogue ? STAGES : 0);
    for (int i = 0; i < STAGES && c->has_epilogue; i++)
        args->tensors[own + i] = c->stages[r][i];
    if (c->in_place)
        args->tensors[own + STAGE_RESIDUAL] = args->tensors[c->result];
}

static void case_match(struct test_case *c, enum fcc_op op)
{
    struct error e = {0};

    problem_free(c->problem); /* of the same case before */
    c->problem = problem_new(c->nranks);
    assert_non_null(c->problem);
    memcpy(c->problem->node_of, c->node_of, (size_t)c->nranks * sizeof(c->node_of[0]));
    assert_int_equal(problem_begin(c->problem, op), 0);
    for (int r = 0; r < c->nranks; r++) {
        c->args[r].op = op;
        epilogue_place(c, r);
        if (op_attrs_check(c->args[r].attrs, c->args[r].nattrs, &e) || op_check(&c->args[r], c->nranks, r, &e))
            fail_msg("%s: rank %d: %s", case_text, r, e.text);
    }
    if (op_match(c->args, c->nranks, c->problem, &e))
        fail_msg("%s: %s", case_text, e.text);
}

static bool is_ready(const struct slice *s, const bool *flags)
{
    for (uint32_t w = 0; w < s->wait_count; w++)
        if (!flags[s->wait_first + w * s->wait_stride])
            return false;
    return true;
}

struct execution {
    struct plan *plans[RANKS];
    bool *flags[RANKS];
    unsigned char *staging[RANKS];
    struct added_tile *added[RANKS];
    uint32_t next[RANKS];
};

static void slice_finished(const struct test_case *c, struct execution *x, const struct plan *plan, const struct slice *s)
{
    if (s->group == SLICE_NO_GROUP || --plan->groups[s->group].slices > 0)
        return;
    for (int q = 0; q < c->nranks; q++)
        if (plan_reaches(plan, plan->groups[s->group].dst, q))
            x->flags[q][plan->groups[s->group].flag] = true;
}

/* Run one slice of rank r, or several together if the workgroup is alone, and raise the flags of the groups that end. */
static int execute_slices(const struct test_case *c, struct execution *x, int r, struct workgroup *wg, struct error *e)
{
    const struct plan *plan = x->plans[r];
    uint32_t first = x->next[r], count = 1;
    const struct slice *s = &plan->slices[first];
    struct run run = {
        .plan = plan, .problem = c->problem, .rank = r, .args = c->args, .staging = x->staging, .added = x->added};
    int status = 0;

    if (wg->alone)
        count = cpu_slices_together(&run, first);
    EXPECT(count >= 1 && count <= plan->nslices - first);
    if (count > 1)
        status = cpu_slices(&run, first, count, wg, e);
    else if (s->kind != SLICE_WAIT)
        status = cpu_slice(&run, s, wg, e);
    x->next[r] += count;
    for (uint32_t i = 0; i < count && status == 0; i++) {
        EXPECT(count == 1 || s[i].wait_count == 0);
        slice_finished(c, x, plan, &s[i]);
    }
    return status;
}

static int execute_all(const struct test_case *c, struct execution *x, struct error *e)
{
    struct workgroup wg = {.alone = random_below(2)};
    bool moved = true;
    int status = 0;

    while (moved && status == 0) {
        moved = false;
        for (int r = 0; r < c->nranks && status == 0; r++) {
            if (x->next[r] == x->plans[r]->nslices || !is_ready(&x->plans[r]->slices[x->next[r]], x->flags[r]))
                continue;
            status = execute_slices(c, x, r, &wg, e);
            moved = true;
        }
    }
    workgroup_release(&wg);
    for (int r = 0; r < c->nranks && status == 0; r++)
        EXPECT(x->next[r] == x->plans[r]->nslices);
    return status;
}

static void element_copy(const struct tensor *to, const struct tensor *from, int64_t i, int64_t j)
{
    size_t size = dtype_size(to->dtype);

    memcpy(to->data + (size_t)at3(to, i, j, 0) * size, from->data + (size_t)at3(from, i, j, 0) * size, size);
}

static void tensor_copy(const struct tensor *to, const struct tensor *from)
{
    for (int64_t i = 0; i < from->shape[0]; i++)
        for (int64_t j = 0; j < (from->ndim > 1 ? from->shape[1] : 1); j++)
            element_copy(to, from, i, j);
}

#include "tests/kernels/gpu_bed.h"

/* Poison the outputs, make the plans, run them. */
static int execute(struct test_case *c, struct schedule schedule, struct error *e)
{
    struct execution x = {.next = {0}};
    int status = 0;

    /* A GPU's plan of sums with flags is of slices that a cpu can run, too. */
    if (bed.plugin || op_spec(c->problem->op)->exchange != EXCHANGE_REDUCE ||
        (op_compute(c->problem->op)->few_sums && !plan_is_over_nodes(c->problem)))
        schedule.target = bed.plugin ? PLAN_GPU : PLAN_CPU;
    for (int r = 0; r < c->nranks; r++) {
        void *staging = NULL;
        status = plan_make(c->problem, r, &schedule, &x.plans[r], e);
        if (status)
            fail_msg("%s: rank %d: %s", case_text, r, e->text);
        assert_int_equal(posix_memalign(&staging, 64, x.plans[r]->staging_bytes), 0);
        if (x.plans[r]->staging_bytes)
            memset(staging, schedule.kind == FCC_SCHEDULE_COMM_ONLY ? 0 : POISON, x.plans[r]->staging_bytes);
        x.staging[r] = staging;
        x.added[r] = must(calloc(x.plans[r]->added_tiles + 1, sizeof(x.added[r][0])));
        added_tiles_init(x.added[r], x.plans[r]->added_tiles);
        x.flags[r] = must(calloc(x.plans[r]->nflags + 1, sizeof(bool)));
        if (c->args[r].ntensors > 0)
            memset(c->memory[r][c->result].base, POISON, c->memory[r][c->result].bytes);
        if (c->more)
            memset(c->memory[r][c->more].base, POISON, c->memory[r][c->more].bytes);
        if (c->in_place)
            tensor_copy(&c->args[r].tensors[c->result], &c->stages[r][STAGE_RESIDUAL]);
    }
    status = bed.plugin ? bed_execute(c, x.plans, schedule.kind, e) : execute_all(c, &x, e);
    for (int r = 0; r < c->nranks; r++) {
        for (uint32_t i = 0; i < x.plans[r]->added_tiles && status == 0; i++)
            EXPECT(x.added[r][i].added == 0); /* as the next run needs them */
        free(x.added[r]);
        plan_free(x.plans[r]);
        free(x.flags[r]);
        free(x.staging[r]);
    }
    return status;
}

static struct schedule random_schedule(enum fcc_schedule_kind kind, int64_t rows, int64_t cols)
{
    struct schedule s = {.kind = kind, .workgroups = (uint32_t)random_below(8)};

    if (random_below(2))
        s.slice_rows = (uint32_t)(1 + random_below(rows));
    if (random_below(2))
        s.slice_cols = (uint32_t)(1 + random_below(cols));
    return s;
}

/* The halves of sequential have no defined result; they must only come to an end and store nothing elsewhere. */
static void execute_halves(struct test_case *c)
{
    struct error e = {0};

    for (int kind = FCC_SCHEDULE_COMPUTE_ONLY; kind <= FCC_SCHEDULE_COMM_ONLY; kind++)
        if (execute(c, (struct schedule){.kind = (enum fcc_schedule_kind)kind}, &e))
            fail_msg("%s: %s", case_text, e.text);
}

static const enum fcc_dtype float_dtypes[] = {FCC_F32, FCC_F16, FCC_BF16};

static void matrix_open(struct tensor *t, struct memory *memory, enum fcc_dtype dtype, int64_t rows, int64_t cols, bool output)
{
    *t = (struct tensor){.dtype = dtype, .ndim = 2, .shape = {rows, cols}};
    strides_choose(t, random_below(2));
    if (!output && random_below(10) == 0)
        t->stride[0] = random_below(cols); /* rows of an input may overlap */
    if (output)
        output_open(t, memory);
    else
        input_open(t, memory, true);
}

/* An epilogue for open tensors: a bias, a residual, or both, for results of rows[rank] x n. Of sums, the same on all ranks. */
static void epilogue_open(struct test_case *c, int own, bool sums, const int64_t rows[], int64_t n)
{
    unsigned which = 1 + (unsigned)random_below(3);

    c->has_epilogue = true;
    c->in_place = sums && which >> STAGE_RESIDUAL && random_below(3) == 0;
    for (int r = 0; r < c->nranks; r++) {
        enum fcc_dtype dtype = c->args[r].tensors[0].dtype;
        struct tensor *t = c->stages[r];
        memset(t, 0, sizeof(c->stages[r]));
        if (which & 1u << STAGE_BIAS) {
            t[STAGE_BIAS] = (struct tensor){.dtype = dtype, .ndim = 1, .shape = {n}, .stride = {1}};
            input_open(&t[STAGE_BIAS], &c->memory[r][own + STAGE_BIAS], true);
        }
        if (which & 1u << STAGE_RESIDUAL) {
            t[STAGE_RESIDUAL] = (struct tensor){.dtype = dtype, .ndim = 2, .shape = {rows[r], n}};
            strides_choose(&t[STAGE_RESIDUAL], random_below(2));
            input_open(&t[STAGE_RESIDUAL], &c->memory[r][own + STAGE_RESIDUAL], true);
        }
        for (int i = 0; i < STAGES && sums; i++)
            if (t[i].data)
                tensor_copy(&t[i], &c->stages[0][i]);
    }
}

/* What rank r's epilogue adds to an element. */
static double epilogue_value(const struct test_case *c, int r, int64_t i, int64_t j)
{
    const struct tensor *bias = &c->stages[r][STAGE_BIAS], *residual = &c->stages[r][STAGE_RESIDUAL];

    return c->has_epilogue ? (bias->data ? get(bias->data, bias->dtype, j) : 0) +
                                 (residual->data ? get(residual->data, residual->dtype, at3(residual, i, j, 0)) : 0)
                           : 0;
}

#endif
