/* SPDX-License-Identifier: MIT */
#include "client/fccctl/bench/shape.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/fccctl/field.h"
#include "kernels/plan/compute/vector.h"

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
    {"count", offsetof(struct shape, count), {[COMPUTE_VECTOR] = 1 << 20}},
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
        {NULL, 'm', ARG_INT, &s->m, 1, most, NULL, "M", "gemv: rows of x [1]; gemm: rows of A per rank, or of the sum [1024]"},
        {NULL, 'n', ARG_INT, &s->n, 1, most, NULL, "N", "gemv: columns of y [4096]; gemm: columns of C [1024]"},
        {NULL, 'k', ARG_INT, &s->k, 1, most, NULL, "K", "what is summed over, per rank [gemv 4096, gemm 1024]"},
        {"tables", 0, ARG_INT, &s->tables, 1, FCC_MAX_TABLES, NULL, "T", "embedding: tables per rank [8]"},
        {"rows", 0, ARG_INT, &s->rows, 1, most, NULL, "R", "embedding: rows of a table [100000]"},
        {"dim", 0, ARG_INT, &s->dim, 1, most, NULL, "D", "embedding: columns of a table [64]"},
        {"batch", 0, ARG_INT, &s->batch, 1, most, NULL, "B", "embedding: samples, of all ranks together [2048]"},
        {"pooling", 0, ARG_INT, &s->pooling, 0, most, NULL, "L", "embedding: ids per bag [20]"},
        {"count", 0, ARG_INT, &s->count, 0, ELEMENTS_MAX, NULL, "N", "collectives: elements of the whole vector [1048576]"},
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

/* The largest tensors of each compute, and the options whose values are their sizes. */
static const struct {
    enum { BAG, PRODUCT, VECTOR } of;
    const char *what, *options[4];
} tensors[] = {
    {BAG, "the tables: ", {"tables", "rows", "dim"}},
    {BAG, "the ids: ", {"tables", "batch", "pooling"}},
    {BAG, "the results: ", {"ranks", "tables", "batch", "dim"}},
    {PRODUCT, "", {"m", "k"}},
    {PRODUCT, "", {"n", "k"}},
    {PRODUCT, "the results: ", {"ranks", "m", "n"}},
    {VECTOR, "", {"ranks", "count"}},
};

static int64_t option_value(const struct shape *s, const char *name)
{
    for (size_t i = 0; i < NSIZES; i++)
        if (strcmp(sizes[i].name, name) == 0)
            return size_value(s, &sizes[i]);
    return s->nranks;
}

static const char *dashes(const char *name)
{
    return name[1] ? "--" : "-";
}

static int tensor_check(const struct shape *s, const struct call *call, size_t t)
{
    struct words said = {""};
    int64_t elements = 1;
    bool fits = true;

    for (int i = 0; i < 4 && tensors[t].options[i]; i++) {
        const char *name = tensors[t].options[i];
        int64_t value = option_value(s, name);
        words_add(&said, "%s%s%s %" PRId64, i ? " " : "", dashes(name), name, value);
        fits = fits && !__builtin_mul_overflow(elements, value, &elements);
    }
    return fits && elements <= ELEMENTS_MAX ? 0
                                            : verb_error(call, EXIT_USAGE, "%s: %sallowed are %" PRId64 " elements", said.text,
                                                         tensors[t].what, ELEMENTS_MAX);
}

void shape_begin(struct shape *s, enum fcc_op op, int nranks, enum fcc_dtype dtype)
{
    *s = (struct shape){.op = op, .spec = op_spec(op), .dtype = dtype, .index_dtype = FCC_I64, .nranks = nranks};
    for (size_t i = 0; i < NSIZES; i++)
        *size_at(s, &sizes[i]) = NOT_GIVEN;
}

bool shape_size_set(struct shape *s, const char *name, int64_t value)
{
    for (size_t i = 0; i < NSIZES; i++)
        if (!strcmp(sizes[i].name, name) && is_here(s, &sizes[i])) {
            *size_at(s, &sizes[i]) = value;
            return true;
        }
    return false;
}

void shape_default(struct shape *s)
{
    for (size_t i = 0; i < NSIZES; i++)
        if (*size_at(s, &sizes[i]) == NOT_GIVEN)
            *size_at(s, &sizes[i]) = sizes[i].otherwise[s->spec->compute];
}

const char *shape_size_name(size_t i)
{
    return i < NSIZES ? sizes[i].name : NULL;
}

int shape_nodes_check(const struct shape *s, const struct call *call, int64_t nodes)
{
    return nodes <= s->nranks ? 0
                              : verb_error(call, EXIT_USAGE, "--nodes: %" PRId64 ": allowed are 1 to %d, the number of ranks",
                                           nodes, s->nranks);
}

int shape_finish(struct shape *s, const struct call *call)
{
    static const enum fcc_dtype dtypes[] = {FCC_F32, FCC_F16, FCC_BF16};
    const char *op = call->noperands ? call->operands[0] : NULL;
    int number = op ? op_by_name(op) : -1, status = 0;
    char names[512];

    if (!op)
        return verb_error(call, EXIT_USAGE, "which operator?");
    if (number < 0)
        return verb_error(call, EXIT_USAGE, "\"%s\": no such operator; there are %s", op,
                          op_names(BIND_NEVER, ", ", names, sizeof(names)));
    s->op = (enum fcc_op)number;
    s->spec = op_spec(s->op);
    s->nranks = (int)s->ranks_option;
    s->dtype = dtypes[s->dtype_option];
    for (size_t i = 0; i < NSIZES; i++) {
        int64_t *value = size_at(s, &sizes[i]);
        if (*value != NOT_GIVEN && !is_here(s, &sizes[i]))
            return verb_error(call, EXIT_USAGE, "%s%s: %s has no such size", dashes(sizes[i].name), sizes[i].name, op);
        if (*value == NOT_GIVEN)
            *value = sizes[i].otherwise[s->spec->compute];
    }
    if (s->spec->compute != COMPUTE_BAG && (s->zipf >= 0 || s->index_option != NOT_GIVEN))
        return verb_error(call, EXIT_USAGE, "--%s: %s has no ids", s->zipf >= 0 ? "zipf" : "index", op);
    s->zipf = s->zipf >= 0 ? s->zipf : 0;
    s->index_dtype = s->index_option == 1 ? FCC_I32 : FCC_I64;
    if (s->spec->compute == COMPUTE_GEMV && s->m > FCC_GEMV_MAX_ROWS)
        return verb_error(call, EXIT_USAGE, "-m: %" PRId64 ": allowed are 1 to %d", s->m, FCC_GEMV_MAX_ROWS);
    for (size_t t = 0; t < sizeof(tensors) / sizeof(tensors[0]) && !status; t++)
        if (tensors[t].of == (s->spec->compute == COMPUTE_BAG ? BAG : op_is_vector(s->op) ? VECTOR : PRODUCT))
            status = tensor_check(s, call, t);
    return status;
}

int64_t shape_share(int64_t total, int nranks, int rank)
{
    return total / nranks + (rank < total % nranks);
}

int64_t shape_received(const struct shape *s, int source, int rank)
{
    return op_is_vector(s->op) ? vector_sent(s, source, rank) : shape_share(s->m, s->nranks, rank);
}

struct problem *shape_problem(const struct shape *s, int nodes)
{
    struct problem *p = problem_new(s->nranks);
    const bool bags = s->spec->compute == COMPUTE_BAG, puts_rows = !bags && s->spec->exchange == EXCHANGE_PUT;
    int64_t *counts = calloc((size_t)s->nranks, sizeof(*counts));

    if (!p || !counts || problem_begin(p, s->op)) {
        problem_free(p);
        free(counts);
        return NULL;
    }
    p->dtype = s->dtype;
    for (int r = 0; r < s->nranks; r++)
        p->node_of[r] = (int32_t)((int64_t)r * nodes / s->nranks);
    if (op_is_vector(s->op)) {
        vector_problem(s, p, counts);
        free(counts);
        return p;
    }
    const bool gathers = s->spec->exchange == EXCHANGE_GATHER;
    p->dim[DIM_M] = bags ? s->batch : puts_rows ? 0 : gathers ? s->m * s->nranks : s->m;
    p->dim[DIM_N] = s->n;
    p->dim[DIM_VECTOR] = s->dim;
    p->dim[DIM_K] = gathers ? s->k : 0;
    p->dim[DIM_FACTOR_BYTES] = gathers ? (int64_t)dtype_size(s->dtype) : 0;
    for (int r = 0; r < s->nranks; r++) {
        p->rank_dim[DIM_M][r] = gathers ? s->m : shape_share(op_scatters_rows(s->op) ? s->m : s->batch, s->nranks, r);
        p->rank_dim[DIM_N][r] = gathers ? s->n : s->tables;
        p->rank_dim[DIM_K][r] = bags ? s->tables * s->batch * s->pooling : s->k;
        counts[r] = shape_share(s->m, s->nranks, r);
    }
    for (int r = 0; r < s->nranks && puts_rows; r++)
        problem_counts_set(p, r, counts);
    free(counts);
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
