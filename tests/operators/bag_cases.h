/* SPDX-License-Identifier: MIT
 *
 * bag_cases.h - embedding_all_to_all in memory of the ranks' own, on streams: cases drawn at random, and what their results are. All numbers are small
 * and whole, and means are of a power of two of them, so results are right to the bit.
 */
#ifndef FCC_TEST_BAG_CASES_H
#define FCC_TEST_BAG_CASES_H

#include "tests/operators/product_cases.h"

/* Where the tensors lie. */
enum { BAG_TABLES = PART_X, BAG_INDICES = PART_W, BAG_OUT = PART_Y, BAG_OFFSETS = PART_BIAS, BAG_WEIGHTS = PART_RESIDUAL };
enum { BAG_TABLES_MOST = 64, BAG_ROWS_MOST = 50 };

struct bag_case {
    enum fcc_dtype dtype;
    bool wide, mean, weighted, even;
    int64_t dim, batch, split[RANKS_MOST];
    int32_t tables[RANKS_MOST];
    int64_t depth; /* a bag has at most so many indices */
    int64_t row_gap, table_gap, sample_gap,
        at; /* elements: between the tables' rows, in out between tables and samples, before out */
    unsigned seed;
};

static inline uint64_t bag_mix(const struct bag_case *c, int rank, int64_t table, int64_t i, unsigned what)
{
    uint64_t x = ((uint64_t)c->seed * 64 + (unsigned)rank) * 0x9E3779B97F4A7C15u + (uint64_t)table * 0xD1B54A32D192ED03u +
                 (uint64_t)i * 8 + what;

    x ^= x >> 30;
    x *= 0xBF58476D1CE4E5B9u;
    x ^= x >> 27;
    x *= 0x94D049BB133111EBu;
    return x >> 20;
}

static inline int64_t bag_rows(const struct bag_case *c, int rank, int64_t table)
{
    return 1 + (int64_t)(bag_mix(c, rank, table, 0, 0) % BAG_ROWS_MOST);
}

/* Indices of a bag. */
static inline int64_t bag_length(const struct bag_case *c, int rank, int64_t table, int64_t sample)
{
    const uint64_t drawn = bag_mix(c, rank, table, sample, 1);
    int64_t length = (int64_t)(drawn % (uint64_t)(c->depth + 1));

    while (c->mean && length & (length - 1))
        length &= length - 1;
    return length;
}

static inline int64_t bag_index(const struct bag_case *c, int rank, int64_t table, int64_t sample, int64_t i)
{
    return (int64_t)(bag_mix(c, rank, table, sample * (c->depth + 1) + i, 2) % (uint64_t)bag_rows(c, rank, table));
}

static inline int bag_weight(const struct bag_case *c, int rank, int64_t table, int64_t sample, int64_t i)
{
    return c->weighted ? (int)(bag_mix(c, rank, table, sample * (c->depth + 1) + i, 3) % 5) - 2 : 1;
}

static inline int bag_element(const struct bag_case *c, int rank, int64_t table, int64_t row, int64_t col)
{
    return (int)(bag_mix(c, rank, table, row * c->dim + col, 4) % 5) - 2;
}

static inline int64_t bag_tables_of_all(const struct bag_case *c, int n)
{
    int64_t tables = 0;

    for (int r = 0; r < n; r++)
        tables += c->tables[r];
    return tables;
}

/* ---- a call ---- */

struct bag_call {
    int64_t table_rows[BAG_TABLES_MOST];
    struct fcc_embedding_all_to_all_args args;
};

static inline void index_put(const struct bag_case *c, unsigned char *image, int64_t at, int64_t value)
{
    const int32_t narrow = (int32_t)value;

    if (c->wide)
        memcpy(image + at * 8, &value, 8);
    else
        memcpy(image + at * 4, &narrow, 4);
}

static inline int64_t bag_indices(const struct bag_case *c, int rank)
{
    int64_t nnz = 0;

    for (int64_t t = 0; t < c->tables[rank]; t++)
        for (int64_t s = 0; s < c->batch; s++)
            nnz += bag_length(c, rank, t, s);
    return nnz;
}

static inline void bag_call_make(const struct rank *r, const struct bag_case *c, struct bag_call *call)
{
    const enum fcc_dtype index = c->wide ? FCC_I64 : FCC_I32;
    const size_t size = element_bytes(c->dtype);
    const int64_t tables = c->tables[r->rank], all = bag_tables_of_all(c, r->n), nnz = bag_indices(c, r->rank);
    int64_t rows = 0;

    for (int64_t t = 0; t < tables; t++)
        rows += call->table_rows[t] = bag_rows(c, r->rank, t);
    call->args = (struct fcc_embedding_all_to_all_args){
        .table_rows = call->table_rows,
        .num_tables = (int32_t)tables,
        .pooling = c->mean ? FCC_POOLING_MEAN : FCC_POOLING_SUM,
        .batch = c->batch,
        .batch_split = c->even ? NULL : c->split,
        .out = {.buffer = FCC_ADDRESS,
                .offset = r->memory[BAG_OUT] + (uint64_t)c->at * size,
                .dtype = c->dtype,
                .ndim = 3,
                .shape = {c->split[r->rank], all, c->dim},
                .stride = {all * (c->dim + c->table_gap) + c->sample_gap, c->dim + c->table_gap, 1}}};
    if (!tables)
        return;
    call->args.tables = fcc_tensor_2d(FCC_ADDRESS, r->memory[BAG_TABLES], c->dtype, rows, c->dim);
    call->args.tables.stride[0] = c->dim + c->row_gap;
    call->args.tables.stride[1] = 1;
    call->args.indices = fcc_tensor_1d(FCC_ADDRESS, r->memory[BAG_INDICES], index, nnz);
    call->args.offsets = fcc_tensor_1d(FCC_ADDRESS, r->memory[BAG_OFFSETS], index, tables * c->batch + 1);
    if (c->weighted)
        call->args.sample_weights = fcc_tensor_1d(FCC_ADDRESS, r->memory[BAG_WEIGHTS], FCC_F32, nnz);
}

static inline int bag_enqueue(const struct rank *r, const struct bag_case *c)
{
    struct bag_call call;

    bag_call_make(r, c, &call);
    return fcc_embedding_all_to_all_enqueue(r->comm, &call.args, r->stream, NULL);
}

/* ---- the inputs ---- */

static inline void bag_tables_fill(const struct rank *r, const struct bag_case *c)
{
    int64_t row = 0;

    for (int64_t t = 0; t < c->tables[r->rank]; t++)
        for (int64_t i = 0; i < bag_rows(c, r->rank, t); i++, row++)
            for (int64_t col = 0; col < c->dim; col++)
                bits_put(c->dtype, r->image, row * (c->dim + c->row_gap) + col,
                         bits_of(c->dtype, bag_element(c, r->rank, t, i, col)));
    r->move(r, (enum part)BAG_TABLES, (size_t)(row * (c->dim + c->row_gap)) * element_bytes(c->dtype), false);
}

static inline void bag_indices_fill(const struct rank *r, const struct bag_case *c)
{
    const size_t size = c->wide ? 8 : 4;
    const int64_t bags = c->tables[r->rank] * c->batch;
    int64_t at = 0;

    for (int64_t bag = 0; bag < bags; bag++)
        for (int64_t i = 0; i < bag_length(c, r->rank, bag / c->batch, bag % c->batch); i++)
            index_put(c, r->image, at++, bag_index(c, r->rank, bag / c->batch, bag % c->batch, i));
    r->move(r, (enum part)BAG_INDICES, (size_t)at * size, false);
    at = 0;
    for (int64_t bag = 0; bag <= bags; bag++) {
        index_put(c, r->image, bag, at);
        at += bag < bags ? bag_length(c, r->rank, bag / c->batch, bag % c->batch) : 0;
    }
    r->move(r, (enum part)BAG_OFFSETS, (size_t)(bags + 1) * size, false);
    at = 0;
    for (int64_t bag = 0; bag < bags; bag++)
        for (int64_t i = 0; i < bag_length(c, r->rank, bag / c->batch, bag % c->batch); i++)
            bits_put(FCC_F32, r->image, at++, bits_of(FCC_F32, bag_weight(c, r->rank, bag / c->batch, bag % c->batch, i)));
    r->move(r, (enum part)BAG_WEIGHTS, (size_t)at * sizeof(float), false);
}

static inline size_t bag_out_bytes(const struct rank *r, const struct bag_case *c)
{
    const int64_t all = bag_tables_of_all(c, r->n);

    return (size_t)(c->at + c->split[r->rank] * (all * (c->dim + c->table_gap) + c->sample_gap) + 8) * element_bytes(c->dtype);
}

static inline void bag_fill(const struct rank *r, const struct bag_case *c)
{
    CHECK(bag_out_bytes(r, c) <= ROOM);
    bag_tables_fill(r, c);
    bag_indices_fill(r, c);
    memset(r->image, 0xee, bag_out_bytes(r, c));
    r->move(r, (enum part)BAG_OUT, bag_out_bytes(r, c), false);
}

/* ---- results ---- */

static inline double bag_sum(const struct bag_case *c, int rank, int64_t table, int64_t sample, int64_t col)
{
    const int64_t length = bag_length(c, rank, table, sample);
    double sum = 0;

    for (int64_t i = 0; i < length; i++)
        sum += bag_weight(c, rank, table, sample, i) * bag_element(c, rank, table, bag_index(c, rank, table, sample, i), col);
    return c->mean && length ? sum / (double)length : sum;
}

/* out is what it should be, and what lies beside it is untouched. */
static inline void bag_check_all(const struct rank *r, const struct bag_case *c, int number)
{
    const size_t bytes = bag_out_bytes(r, c), size = element_bytes(c->dtype);
    const int64_t all = bag_tables_of_all(c, r->n), table_stride = c->dim + c->table_gap,
                  sample_stride = all * table_stride + c->sample_gap;
    unsigned char *want = malloc(bytes);
    int64_t first = 0, before = 0;

    CHECK(want != NULL);
    memset(want, 0xee, bytes);
    for (int p = 0; p < r->rank; p++)
        first += c->split[p];
    for (int from = 0; from < r->n; before += c->tables[from++])
        for (int64_t s = 0; s < c->split[r->rank]; s++)
            for (int64_t t = 0; t < c->tables[from]; t++)
                for (int64_t col = 0; col < c->dim; col++)
                    bits_put(c->dtype, want, c->at + s * sample_stride + (before + t) * table_stride + col,
                             bits_of(c->dtype, bag_sum(c, from, t, first + s, col)));
    r->move(r, (enum part)BAG_OUT, bytes, true);
    OK(fcc_comm_error(r->comm));
    for (size_t i = 0; i < bytes; i++)
        if (r->image[i] != want[i]) {
            const int64_t at = (int64_t)(i / size) - c->at;
            check_failed(__FILE__, __LINE__,
                         "case %d: rank %d of %d, %s, dim %ld, batch %ld, %d of %ld tables, depth %ld%s%s%s: sample %ld, table "
                         "%ld, column %ld, byte %zu is 0x%x, expected 0x%x",
                         number, r->rank, r->n, dtype_text(c->dtype), (long)c->dim, (long)c->batch, c->tables[r->rank],
                         (long)all, (long)c->depth, c->wide ? ", i64" : "", c->mean ? ", mean" : "",
                         c->weighted ? ", weights" : "", (long)(at / sample_stride), (long)(at % sample_stride / table_stride),
                         (long)(at % sample_stride % table_stride), i % size, r->image[i], want[i]);
        }
    free(want);
}

/* ---- drawing ---- */

/* Samples for each rank: the same for all, as far as that is possible. */
static inline void bag_split_evenly(struct bag_case *c, int n)
{
    c->even = true;
    for (int p = 0; p < n; p++)
        c->split[p] = c->batch / n + (p < c->batch % n);
}

static inline void bag_draw(struct bag_case *c, int n)
{
    static const enum fcc_dtype dtypes[] = {FCC_F32, FCC_F16, FCC_BF16};
    static const int64_t dims[] = {1, 4, 8, 31, 64, 100, 128, 256}, batches[] = {0, 1, 7, 16, 64, 100, 128, 200};
    const bool aligned = draw(2), dense = draw(2);

    *c = (struct bag_case){.dtype = dtypes[draw(3)], .wide = draw(2), .seed = (unsigned)draw(1 << 30)};
    c->mean = draw(3) == 0;
    c->weighted = !c->mean && draw(3) == 0;
    c->dim = draw_of(dims, 8, 300);
    c->batch = draw_of(batches, 8, 200);
    c->depth = draw(12);
    if (draw(2)) {
        bag_split_evenly(c, n);
    } else {
        int64_t left = c->batch;
        for (int p = 0; p < n; left -= c->split[p++])
            c->split[p] = p == n - 1 ? left : draw(left + 1);
    }
    for (int p = 0; p < n; p++)
        c->tables[p] = (int32_t)(draw(5) ? 1 + draw(6) : 0);
    c->at = aligned ? 8 * draw(4) : draw(9);
    c->row_gap = dense ? 0 : aligned ? 8 * draw(3) : draw(9);
    c->table_gap = dense ? 0 : aligned ? 8 * draw(3) : draw(9);
    c->sample_gap = dense ? 0 : aligned ? 8 * draw(3) : draw(9);
}

/* The same tables on all ranks. */
static inline struct bag_case bag_of(const struct rank *r, enum fcc_dtype dtype, int64_t batch, int32_t tables, int64_t dim)
{
    struct bag_case c = {.dtype = dtype, .dim = dim, .batch = batch, .depth = 7, .seed = (unsigned)(batch * 31 + dim)};

    bag_split_evenly(&c, r->n);
    for (int p = 0; p < r->n; p++)
        c.tables[p] = tables;
    return c;
}

#endif
