/* SPDX-License-Identifier: MIT */
#include "client/fccctl/bench/shape.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "client/fccctl/field.h"

#define NOT_GIVEN (-1)
#define ELEMENTS_MAX (INT64_C(1) << 38) /* the most elements of one tensor */

/* The sizes, with their defaults for each compute. 0: the compute has no such size. */
struct size {
    const char *name;
    size_t offset; /* in struct shape */
    int64_t otherwise[COMPUTE_KINDS];
};

static const struct size sizes[] = {
    {"m", offsetof(struct shape, m), {[COMPUTE_GEMV] = 1, [COMPUTE_GEMM] = 1024}},
    {"n", offsetof(struct shape, n), {[COMPUTE_GEMV] = 4096, [COMPUTE_GEMM] = 1024}},
    {"k", offsetof(struct shape, k), {[COMPUTE_GEMV] = 4096, [COMPUTE_GEMM] = 1024}},
    {"tables", offsetof(struct shape, tables), {[COMPUTE_BAG] = 8}},
    {"rows", offsetof(struct shape, rows), {[COMPUTE_BAG] = 100000}},
    {"dim", offsetof(struct shape, dim), {[COMPUTE_BAG] = 64}},
    {"batch", offsetof(struct shape, batch), {[COMPUTE_BAG] = 2048}},
    {"pooling", offsetof(struct shape, pooling), {[COMPUTE_BAG] = 20}},
};
#define NSIZES (sizeof(sizes) / sizeof(sizes[0]))

static bool is_here(const struct shape *shape, const struct size *size)
{
    return size->otherwise[shape->spec->compute] != 0;
}

static int64_t *size_at(struct shape *shape, const struct size *size)
{
    return (int64_t *)(void *)((char *)shape + size->offset);
}

static int64_t size_value(const struct shape *shape, const struct size *size)
{
    return *(const int64_t *)(const void *)((const char *)shape + size->offset);
}

size_t shape_args(struct shape *s, struct arg args[SHAPE_ARGS])
{
    static const char *const dtypes[] = {"f32", "f16", "bf16", NULL}, *const indices[] = {"i64", "i32", NULL};
    const int64_t most = INT32_MAX;
    const struct arg rows[] = {
        {"ranks", 0, ARG_INT, &s->ranks_option, 1, FCC_MAX_RANKS, NULL, "N", "ranks of the communicator [2]"},
        {"dtype", 0, ARG_CHOICE, &s->dtype_option, 0, 0, dtypes, "TYPE", "f32, f16 or bf16 [f32]"},
        {NULL, 'm', ARG_INT, &s->m, 1, most, NULL, "M", "gemv: rows of x, at most 64 [1]; gemm: rows of A per rank [1024]"},
        {NULL, 'n', ARG_INT, &s->n, 1, most, NULL, "N", "gemv: columns of y [4096]; gemm: columns of C [1024]"},
        {NULL, 'k', ARG_INT, &s->k, 1, most, NULL, "K", "what is summed over, per rank [gemv 4096, gemm 1024]"},
        {"tables", 0, ARG_INT, &s->tables, 1, FCC_MAX_TABLES, NULL, "T", "embedding: tables per rank [8]"},
        {"rows", 0, ARG_INT, &s->rows, 1, most, NULL, "R", "embedding: rows of a table [100000]"},
        {"dim", 0, ARG_INT, &s->dim, 1, most, NULL, "D", "embedding: columns of a table [64]"},
        {"batch", 0, ARG_INT, &s->batch, 1, most, NULL, "B", "embedding: samples, of all ranks together [2048]"},
        {"pooling", 0, ARG_INT, &s->pooling, 0, most, NULL, "L", "embedding: ids per bag [20]"},
        {"zipf", 0, ARG_NUMBER, &s->zipf, 0, 10, NULL, "S", "embedding: skew of the ids, 0 is uniform [0]"},
        {"index", 0, ARG_CHOICE, &s->index_option, 0, 0, indices, "TYPE", "embedding: i64 or i32 [i64]"},
    };
    _Static_assert(sizeof(rows) / sizeof(rows[0]) <= SHAPE_ARGS, "room");

    *s = (struct shape){.zipf = NOT_GIVEN, .ranks_option = 2, .index_option = NOT_GIVEN};
    for (size_t i = 0; i < NSIZES; i++)
        *size_at(s, &sizes[i]) = NOT_GIVEN;
    memcpy(args, rows, sizeof(rows));
    return sizeof(rows) / sizeof(rows[0]);
}

#define TOO_MANY "allowed are %" PRId64 " elements"

static bool product_fits(int64_t a, int64_t b, int64_t c)
{
    int64_t ab, abc;
    return !__builtin_mul_overflow(a, b, &ab) && !__builtin_mul_overflow(ab, c, &abc) && abc <= ELEMENTS_MAX;
}

static int bag_limits(const struct shape *s, const struct call *call)
{
    if (!product_fits(s->tables, s->rows, s->dim))
        return usage_error(call, "--tables %" PRId64 " --rows %" PRId64 " --dim %" PRId64 ": the tables: " TOO_MANY, s->tables,
                           s->rows, s->dim, ELEMENTS_MAX);
    if (!product_fits(s->tables, s->batch, s->pooling))
        return usage_error(call, "--tables %" PRId64 " --batch %" PRId64 " --pooling %" PRId64 ": the ids: " TOO_MANY,
                           s->tables, s->batch, s->pooling, ELEMENTS_MAX);
    if (!product_fits(s->tables * s->nranks, s->batch, s->dim))
        return usage_error(call,
                           "--ranks %d --tables %" PRId64 " --batch %" PRId64 " --dim %" PRId64 ": the results: " TOO_MANY,
                           s->nranks, s->tables, s->batch, s->dim, ELEMENTS_MAX);
    return 0;
}

static int product_limits(const struct shape *s, const struct call *call)
{
    if (s->spec->compute == COMPUTE_GEMV && s->m > FCC_GEMV_MAX_M)
        return usage_error(call, "-m: %" PRId64 ": allowed are 1 to %d", s->m, FCC_GEMV_MAX_M);
    if (!product_fits(s->m, s->k, 1))
        return usage_error(call, "-m %" PRId64 " -k %" PRId64 ": " TOO_MANY, s->m, s->k, ELEMENTS_MAX);
    if (!product_fits(s->n, s->k, 1))
        return usage_error(call, "-n %" PRId64 " -k %" PRId64 ": " TOO_MANY, s->n, s->k, ELEMENTS_MAX);
    if (!product_fits(s->m, s->n, s->nranks))
        return usage_error(call, "--ranks %d -m %" PRId64 " -n %" PRId64 ": the results: " TOO_MANY, s->nranks, s->m, s->n,
                           ELEMENTS_MAX);
    return 0;
}

int shape_finish(struct shape *s, const struct call *call, const char *op)
{
    static const enum fcc_dtype dtypes[] = {FCC_F32, FCC_F16, FCC_BF16};
    int number = op_by_name(op);
    char names[256];

    if (number < 0)
        return usage_error(call, "\"%s\": no such operator; there are %s", op,
                           op_names(BIND_NEVER, ", ", names, sizeof(names)));
    s->op = (enum fcc_op)number;
    s->spec = op_spec(s->op);
    s->nranks = (int)s->ranks_option;
    s->dtype = dtypes[s->dtype_option];
    for (size_t i = 0; i < NSIZES; i++) {
        int64_t *value = size_at(s, &sizes[i]);
        if (*value != NOT_GIVEN && !is_here(s, &sizes[i]))
            return usage_error(call, "%s%s: %s has no such size", strlen(sizes[i].name) > 1 ? "--" : "-", sizes[i].name, op);
        if (*value == NOT_GIVEN)
            *value = sizes[i].otherwise[s->spec->compute];
    }
    if (s->spec->compute != COMPUTE_BAG && (s->zipf >= 0 || s->index_option != NOT_GIVEN))
        return usage_error(call, "--%s: %s has no ids", s->zipf >= 0 ? "zipf" : "index", op);
    s->zipf = s->zipf >= 0 ? s->zipf : 0;
    s->index_dtype = s->index_option == 1 ? FCC_I32 : FCC_I64;
    return s->spec->compute == COMPUTE_BAG ? bag_limits(s, call) : product_limits(s, call);
}

int64_t shape_share(int64_t total, int nranks, int rank)
{
    return total / nranks + (rank < total % nranks);
}

struct problem *shape_problem(const struct shape *s, int nodes)
{
    struct problem *p = problem_new(s->nranks);
    const bool bags = s->spec->compute == COMPUTE_BAG, puts_rows = !bags && s->spec->exchange == EXCHANGE_PUT;
    int64_t counts[FCC_MAX_RANKS];

    if (!p || problem_begin(p, s->op)) {
        problem_free(p);
        return NULL;
    }
    p->dtype = s->dtype;
    p->dim[DIM_M] = bags ? s->batch : puts_rows ? 0 : s->m;
    p->dim[DIM_N] = s->n;
    p->dim[DIM_VECTOR] = s->dim;
    for (int r = 0; r < s->nranks; r++) {
        p->node_of[r] = (int32_t)((int64_t)r * nodes / s->nranks);
        p->rank_dim[DIM_M][r] = shape_share(s->batch, s->nranks, r);
        p->rank_dim[DIM_N][r] = s->tables;
        p->rank_dim[DIM_K][r] = bags ? s->tables * s->batch * s->pooling : s->k;
        counts[r] = shape_share(s->m, s->nranks, r);
    }
    for (int r = 0; r < s->nranks && puts_rows; r++)
        problem_counts_set(p, r, counts);
    return p;
}

struct json_object *shape_json(const struct shape *s)
{
    struct json_object *object = json_object_new_object();

    for (size_t i = 0; i < NSIZES; i++) {
        if (is_here(s, &sizes[i]))
            JSON_ADD(object, {sizes[i].name, json_int(size_value(s, &sizes[i]))});
    }
    if (s->spec->compute == COMPUTE_BAG) {
        JSON_ADD(object, {"zipf", json_number(s->zipf, 3)}, {"index", json_text(dtype_name(s->index_dtype))});
    }
    return object;
}

struct words shape_text(const struct shape *s)
{
    struct words out = {""};

    for (size_t i = 0; i < NSIZES; i++) {
        if (is_here(s, &sizes[i]))
            words_add(&out, "%s%s %" PRId64, *out.text ? " " : "", sizes[i].name, size_value(s, &sizes[i]));
    }
    if (s->spec->compute == COMPUTE_BAG && s->zipf > 0)
        words_add(&out, " zipf %g", s->zipf);
    return out;
}
