/* SPDX-License-Identifier: MIT
 *
 * test_program_products.c - gemv_all_reduce with its epilogue, gemm_reduce_scatter, gemm_all_reduce and embedding_all_to_all, written as programs: their steps are the calls
 * that a caller of these operators makes, and the plans that the worker makes of both are the same.
 */
#include <string.h>

#include "client/core/epilogue.h"
#include "client/memory/buffer.h"
#include "client/program/program.h"
#include "kernels/plan/epilogue.h"
#include "tests/bed/harness.h"

enum { R = 3, T = 6, ROWS = 11, D = 20, B = 10, NNZ = 80, M = 7, K = 20, N = 130, BUFFERS = 8 };

/* Buffers have addresses of their own. */
static struct fcc_buffer buffers[BUFFERS];

/* ---- requests as the worker has them ---- */

static struct tensor tensor_of(const struct fcc_tensor *t, bool result)
{
    struct tensor out = {.dtype = (enum fcc_dtype)t->dtype, .ndim = (int)t->ndim, .symmetric = result};
    int64_t dense = 1;

    if (!t->buffer)
        return (struct tensor){.data = NULL};
    out.data = (unsigned char *)(((uintptr_t)(t->buffer - buffers) + 1) << 32) + t->offset;
    for (unsigned d = t->ndim; d-- > 0; dense *= t->shape[d]) {
        out.shape[d] = t->shape[d];
        out.stride[d] = t->stride[d] ? t->stride[d] : dense;
    }
    return out;
}

/* One attribute as the library writes it. Returns its words. */
static size_t attr_put(const struct attr_spec *spec, const void *args, int64_t *to)
{
    const unsigned char *at = (const unsigned char *)args + spec->at;
    const int64_t *values = NULL;
    int64_t number = 0;
    int32_t half, count = spec->kind == ATTR_NUMBER ? 1 : R;

    if (spec->kind == ATTR_LIST)
        memcpy(&count, (const unsigned char *)args + spec->count_at, sizeof(count));
    if (spec->kind == ATTR_NUMBER && spec->bytes == sizeof(half)) {
        memcpy(&half, at, sizeof(half));
        number = half;
    } else if (spec->kind == ATTR_NUMBER) {
        memcpy(&number, at, sizeof(number));
    } else {
        memcpy(&values, at, sizeof(values));
    }
    if (spec->kind != ATTR_NUMBER && !values)
        return 0;
    to[0] = (int64_t)((uint64_t)spec->key << 32 | (uint32_t)count);
    memcpy(to + 1, values ? values : &number, (size_t)count * sizeof(*to));
    return 1 + (size_t)count;
}

static void request_make(enum fcc_op op, const void *args, const struct fcc_epilogue *epilogue, struct op_args *out,
                         int64_t words[64])
{
    const struct op_spec *spec = op_spec(op);
    size_t n = 0;

    *out = (struct op_args){.op = op, .ntensors = spec->ntensors, .attrs = words};
    for (int i = 0; i < spec->ntensors; i++)
        out->tensors[i] = tensor_of(
            (const struct fcc_tensor *)(const void *)((const unsigned char *)args + spec->tensors[i].at), i == spec->result);
    for (int i = 0; i < spec->nattrs; i++)
        n += attr_put(&spec->attrs[i], args, words + n);
    for (int i = 0; epilogue && i < STAGES; i++)
        out->tensors[out->ntensors++] =
            tensor_of((const struct fcc_tensor *)(const void *)((const unsigned char *)epilogue + epilogue_specs[i].at), false);
    if (epilogue)
        n += epilogue_attr(epilogue, words + n);
    out->nattrs = n;
}

static struct plan *plan_of(const struct op_args requests[R], int rank, const struct schedule *schedule,
                            struct problem **problem)
{
    struct error e = {.status = 0};
    struct plan *plan;

    *problem = problem_new(R);
    CHECK(*problem && problem_begin(*problem, requests[0].op) == 0);
    for (int r = 0; r < R; r++)
        if (op_check(&requests[r], R, r, &e))
            check_failed(__FILE__, __LINE__, "rank %d: %s", r, e.text);
    if (op_match(requests, R, *problem, &e) || plan_make(*problem, rank, schedule, &plan, &e))
        check_failed(__FILE__, __LINE__, "%s", e.text);
    return plan;
}

static void expect_one_plan(const struct op_args ours[R], const struct op_args theirs[R])
{
    for (int kind = 0; kind < 2; kind++)
        for (int r = 0; r < R; r++) {
            const struct schedule schedule = {.kind = kind ? FCC_SCHEDULE_FUSED : FCC_SCHEDULE_SEQUENTIAL, .workgroups = 2};
            struct problem *p, *q;
            struct plan *a = plan_of(ours, r, &schedule, &p), *b = plan_of(theirs, r, &schedule, &q);
            CHECK(a->op == b->op && a->nslices == b->nslices && a->ngroups == b->ngroups && a->nflags == b->nflags &&
                  a->staging_bytes == b->staging_bytes && a->nlevels == b->nlevels && a->shared == b->shared);
            CHECK(a->nslices > 1 && memcmp(&a->schedule, &b->schedule, sizeof(a->schedule)) == 0);
            CHECK(memcmp(a->slices, b->slices, a->nslices * sizeof(*a->slices)) == 0);
            CHECK(memcmp(a->groups, b->groups, a->ngroups * sizeof(*a->groups)) == 0);
            plan_free(a);
            plan_free(b);
            problem_free(p);
            problem_free(q);
        }
}

/* ---- programs ---- */

/* A program of one step, as one rank has it. Parameter i lies in buffer i. */
struct written {
    struct fcc_comm comm;
    struct fcc_program p;
    struct fcc_tensor tensors[BUFFERS];
    int64_t *places[BUFFERS];
};

static const struct program_step *written_make(struct written *w, const char *text, int rank)
{
    struct error e = {.status = 0};

    *w = (struct written){.comm = {.rank = rank, .nranks = R}};
    w->p = (struct fcc_program){
        .comm = &w->comm, .group = &w->comm, .rank = rank, .nranks = R, .tensors = w->tensors, .places = w->places};
    if (program_parse(text, strlen(text), &w->p.program, &e) || program_bind(w->p.program, R, NULL, 0, &e) ||
        program_schedule(w->p.program, &e) || program_steps(w->p.program, &w->p.steps, &e))
        check_failed(__FILE__, __LINE__, "%s", e.text);
    for (uint32_t i = 0; i < w->p.program->nparameters; i++) {
        const struct value *v = &w->p.program->parameters[i].value;
        w->tensors[i] = fcc_tensor_1d(&buffers[i], 0, (enum fcc_dtype)v->dtype, value_elements_of(v, R, rank));
    }
    CHECK(w->p.steps.nsteps == 1);
    return &w->p.steps.steps[0];
}

static void written_end(struct written *w)
{
    program_steps_free(&w->p.steps);
    program_free(w->p.program);
}

static enum step_product step_call(const char *text, int rank, struct product_call *call)
{
    struct written w;
    const struct program_step *step = written_make(&w, text, rank);

    CHECK(step->kind == STEP_OF_PRODUCT);
    product_call_make(&w.p, step, call);
    const enum step_product product = (enum step_product)step->product;
    written_end(&w);
    return product;
}

static int64_t begin_of(int64_t n, int rank)
{
    return n * rank / R;
}

static int64_t part(int64_t n, int rank)
{
    return begin_of(n, rank + 1) - begin_of(n, rank);
}

static void gemv(void)
{
    static const char text[] =
        "program t(M = 7, K = 20, N = 130)\nin x: f32[M, K] sliced(1)\nin w: f32[N, K] sliced(1)\nin b: f32[N]\nin r: f32[M, "
        "N]\nout y: f32[M, N]\nproduct = matmul(x, transpose(w))\ns = all_reduce(product)\ny = gelu(s + b + r)\nschedule\nfuse "
        "product, s, y\n";
    struct op_args ours[R], theirs[R];
    int64_t words[2 * R][64];
    struct product_call call;

    for (int r = 0; r < R; r++) {
        const struct fcc_gemv_all_reduce_args args = {.x = fcc_tensor_2d(&buffers[0], 0, FCC_F32, M, part(K, r)),
                                                      .w = fcc_tensor_2d(&buffers[1], 0, FCC_F32, N, part(K, r)),
                                                      .y = fcc_tensor_2d(&buffers[4], 0, FCC_F32, M, N)};
        const struct fcc_epilogue epilogue = {.bias = fcc_tensor_1d(&buffers[2], 0, FCC_F32, N),
                                              .residual = fcc_tensor_2d(&buffers[3], 0, FCC_F32, M, N),
                                              .activation = FCC_GELU};
        CHECK(step_call(text, r, &call) == PRODUCT_THIN && call.has_epilogue);
        request_make(FCC_OP_GEMV_ALL_REDUCE, &call.args, &call.epilogue, &ours[r], words[r]);
        request_make(FCC_OP_GEMV_ALL_REDUCE, &args, &epilogue, &theirs[r], words[R + r]);
        CHECK(op_tensors_equal(&ours[r], &theirs[r]) && ours[r].nattrs == theirs[r].nattrs);
        CHECK(memcmp(ours[r].attrs, theirs[r].attrs, ours[r].nattrs * sizeof(int64_t)) == 0);
    }
    expect_one_plan(ours, theirs);
}

static void scatter(void)
{
    static const char text[] = "program t(M = 7, K = 20, N = 130)\nin a: f32[M, K] sliced(1)\nin b: f32[K, N] sliced(0)\nin "
                               "bias: f32[N]\nin r: f32[M, N]\nout c: f32[M, N] sliced(0)\nproduct = matmul(a, b)\ns = "
                               "reduce_scatter(product)\nc = s + bias + as_slice(r, 0)\nschedule\nfuse product, s, c\n";
    struct op_args ours[R], theirs[R];
    int64_t words[2 * R][64], rows[R];
    struct product_call call;

    for (int r = 0; r < R; r++)
        rows[r] = part(M, r);
    for (int r = 0; r < R; r++) {
        const struct fcc_gemm_reduce_scatter_args args = {.a = fcc_tensor_2d(&buffers[0], 0, FCC_F32, M, part(K, r)),
                                                          .b = fcc_tensor_2d(&buffers[1], 0, FCC_F32, part(K, r), N),
                                                          .rows = rows,
                                                          .c = fcc_tensor_2d(&buffers[4], 0, FCC_F32, rows[r], N)};
        const struct fcc_epilogue epilogue = {
            .bias = fcc_tensor_1d(&buffers[2], 0, FCC_F32, N),
            .residual = fcc_tensor_2d(&buffers[3], (size_t)(begin_of(M, r) * N) * sizeof(float), FCC_F32, rows[r], N)};
        CHECK(step_call(text, r, &call) == PRODUCT_SCATTER && call.has_epilogue);
        request_make(FCC_OP_GEMM_REDUCE_SCATTER, &call.args, &call.epilogue, &ours[r], words[r]);
        request_make(FCC_OP_GEMM_REDUCE_SCATTER, &args, &epilogue, &theirs[r], words[R + r]);
        CHECK(op_tensors_equal(&ours[r], &theirs[r]) && ours[r].nattrs == theirs[r].nattrs);
        CHECK(memcmp(ours[r].attrs, theirs[r].attrs, ours[r].nattrs * sizeof(int64_t)) == 0);
    }
    expect_one_plan(ours, theirs);
}

static void gemm(void)
{
    static const char text[] =
        "program t(M = 7, K = 20, N = 130)\nin a: f32[M, K] sliced(1)\nin b: f32[K, N] sliced(0)\nout c: "
        "f32[M, N]\nc = all_reduce(matmul(a, b))\n";
    struct op_args ours[R], theirs[R];
    int64_t words[2 * R][64];
    struct product_call call;

    for (int r = 0; r < R; r++) {
        const struct fcc_gemm_all_reduce_args args = {.a = fcc_tensor_2d(&buffers[0], 0, FCC_F32, M, part(K, r)),
                                                      .b = fcc_tensor_2d(&buffers[1], 0, FCC_F32, part(K, r), N),
                                                      .c = fcc_tensor_2d(&buffers[2], 0, FCC_F32, M, N)};
        CHECK(step_call(text, r, &call) == PRODUCT_REDUCE && !call.has_epilogue);
        request_make(FCC_OP_GEMM_ALL_REDUCE, &call.args, NULL, &ours[r], words[r]);
        request_make(FCC_OP_GEMM_ALL_REDUCE, &args, NULL, &theirs[r], words[R + r]);
        CHECK(op_tensors_equal(&ours[r], &theirs[r]) && !ours[r].nattrs && !theirs[r].nattrs);
    }
    expect_one_plan(ours, theirs);
}

static void lookup(void)
{
    static const char text[] = "program t(T = 6, B = 10)\nin tables: f32[T, 11, 20] sliced(0)\nin i: i64[80] local\nin o: "
                               "i64[T*B/ranks + 1] local\nout y: "
                               "f32[B, T, 20] sliced(0)\nrows = embedding_mean(tables, i, o)\ny = all_to_all(rows, 0)\n";
    struct op_args ours[R], theirs[R];
    int64_t words[2 * R][64], rows[T / R], samples[R];
    struct lookup_call call[R];
    struct written w;

    for (int r = 0; r < R; r++)
        samples[r] = part(B, r);
    for (int t = 0; t < T / R; t++)
        rows[t] = ROWS;
    for (int r = 0; r < R; r++) {
        const struct fcc_embedding_all_to_all_args args = {
            .tables = fcc_tensor_2d(&buffers[0], 0, FCC_F32, (int64_t)T / R * ROWS, D),
            .table_rows = rows,
            .num_tables = T / R,
            .pooling = FCC_POOLING_MEAN,
            .indices = fcc_tensor_1d(&buffers[1], 0, FCC_I64, NNZ),
            .offsets = fcc_tensor_1d(&buffers[2], 0, FCC_I64, (int64_t)T / R * B + 1),
            .batch = B,
            .batch_split = samples,
            .out = {.buffer = &buffers[3], .dtype = FCC_F32, .ndim = 3, .shape = {samples[r], T, D}}};
        const struct program_step *step = written_make(&w, text, r);
        CHECK(step->kind == STEP_OF_LOOKUP);
        lookup_call_make(&w.p, step, &call[r]);
        request_make(FCC_OP_EMBEDDING_ALL_TO_ALL, &call[r].args, NULL, &ours[r], words[r]);
        request_make(FCC_OP_EMBEDDING_ALL_TO_ALL, &args, NULL, &theirs[r], words[R + r]);
        CHECK(op_tensors_equal(&ours[r], &theirs[r]) && ours[r].nattrs == theirs[r].nattrs);
        CHECK(memcmp(ours[r].attrs, theirs[r].attrs, ours[r].nattrs * sizeof(int64_t)) == 0);
        written_end(&w);
    }
    expect_one_plan(ours, theirs);
}

int main(void)
{
    const struct test tests[] = {{"gemv", gemv, 0}, {"scatter", scatter, 0}, {"gemm", gemm, 0}, {"lookup", lookup, 0}};

    return tests_run("program_products", TESTS(tests));
}
