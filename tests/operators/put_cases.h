/* SPDX-License-Identifier: MIT
 *
 * put_cases.h - gemm_all_to_all in memory of the ranks' own, on streams: cases drawn at random, and what their results are. The tensors lie where
 * those of product_cases.h lie (a: PART_X, b: PART_W, c: PART_Y), and their numbers are as small.
 */
#ifndef FCC_TEST_PUT_CASES_H
#define FCC_TEST_PUT_CASES_H

#include "tests/operators/product_cases.h"

struct put_case {
    enum fcc_dtype dtype;
    int64_t n, k[RANKS_MOST], rows[RANKS_MOST][RANKS_MOST]; /* rows[s][d]: that rank s has for rank d */
    int64_t more;                                           /* rows of c that nothing comes into */
    int64_t gap[TENSORS], at[TENSORS];
    bool bias, residual;
    bool copies; /* there is no b: a's rows are sent as they are, and K is N */
    unsigned seed;
};

static inline int64_t put_sent(const struct put_case *c, int n, int rank)
{
    int64_t rows = 0;

    for (int to = 0; to < n; to++)
        rows += c->rows[rank][to];
    return rows;
}

static inline int64_t put_received(const struct put_case *c, int n, int rank)
{
    int64_t rows = 0;

    for (int from = 0; from < n; from++)
        rows += c->rows[from][rank];
    return rows;
}

static inline int64_t put_k(const struct put_case *c, int rank)
{
    return c->copies ? c->n : c->k[rank];
}

static inline int64_t put_rows(const struct rank *r, const struct put_case *c, enum part part)
{
    return part == PART_BIAS ? 1
           : part == PART_W  ? put_k(c, r->rank)
           : part == PART_Y  ? put_received(c, r->n, r->rank) + c->more
                             : put_sent(c, r->n, r->rank);
}

static inline int64_t put_columns(const struct rank *r, const struct put_case *c, enum part part)
{
    return part == PART_X ? put_k(c, r->rank) : c->n;
}

static inline struct fcc_tensor put_tensor(const struct rank *r, const struct put_case *c, enum part part)
{
    const uint64_t at = r->memory[part] + (uint64_t)c->at[part] * element_bytes(c->dtype);
    struct fcc_tensor t = fcc_tensor_2d(FCC_ADDRESS, at, c->dtype, put_rows(r, c, part), put_columns(r, c, part));

    if (part == PART_BIAS)
        return fcc_tensor_1d(FCC_ADDRESS, at, c->dtype, c->n);
    t.stride[0] = put_columns(r, c, part) + c->gap[part];
    t.stride[1] = 1;
    return t;
}

static inline void put_tensor_fill(const struct rank *r, const struct put_case *c, enum part part)
{
    const int64_t rows = put_rows(r, c, part), columns = put_columns(r, c, part), stride = columns + c->gap[part];
    const size_t bytes = (size_t)(c->at[part] + rows * stride + 8) * element_bytes(c->dtype);

    CHECK(bytes <= ROOM);
    memset(r->image, 0xee, bytes);
    for (int64_t row = 0; row < rows && part != PART_Y; row++)
        for (int64_t col = 0; col < columns; col++)
            bits_put(c->dtype, r->image, c->at[part] + row * stride + col,
                     bits_of(c->dtype, small(c->seed, r->rank, part, row * columns + col)));
    r->move(r, part, bytes, false);
}

static inline void put_fill(const struct rank *r, const struct put_case *c)
{
    put_tensor_fill(r, c, PART_X);
    if (!c->copies)
        put_tensor_fill(r, c, PART_W);
    put_tensor_fill(r, c, PART_Y);
    if (c->bias)
        put_tensor_fill(r, c, PART_BIAS);
    if (c->residual)
        put_tensor_fill(r, c, PART_RESIDUAL);
}

static inline int put_enqueue(const struct rank *r, const struct put_case *c)
{
    struct fcc_gemm_all_to_all_args args = {
        .a = put_tensor(r, c, PART_X), .c = put_tensor(r, c, PART_Y), .send_rows = c->rows[r->rank]};
    struct fcc_epilogue epilogue = {.bias = {.buffer = NULL}};

    if (!c->copies)
        args.b = put_tensor(r, c, PART_W);
    if (c->bias)
        epilogue.bias = put_tensor(r, c, PART_BIAS);
    if (c->residual)
        epilogue.residual = put_tensor(r, c, PART_RESIDUAL);
    return c->bias || c->residual ? fcc_gemm_all_to_all_epilogue_enqueue(r->comm, &args, &epilogue, r->stream, NULL)
                                  : fcc_gemm_all_to_all_enqueue(r->comm, &args, r->stream, NULL);
}

/* ---- results ---- */

/* Row `row` of what rank `from` computes. */
static UNWATCHED void put_row(const struct put_case *c, int from, int64_t row, const int8_t *b, int32_t *out)
{
    const int64_t k = put_k(c, from);

    for (int64_t col = 0; col < c->n; col++)
        out[col] = c->copies ? small(c->seed, from, PART_X, row * k + col)
                             : (c->bias ? small(c->seed, from, PART_BIAS, col) : 0) +
                                   (c->residual ? small(c->seed, from, PART_RESIDUAL, row * c->n + col) : 0);
    for (int64_t i = 0; i < k && !c->copies; i++) {
        const int x = small(c->seed, from, PART_X, row * k + i);
        for (int64_t col = 0; col < c->n; col++)
            out[col] += x * b[i * c->n + col];
    }
}

/* The elements of c from `first` to before `end` are untouched. */
static inline void put_untouched(const struct rank *r, const struct put_case *c, int number, int64_t first, int64_t end)
{
    const size_t size = element_bytes(c->dtype);

    for (size_t i = (size_t)first * size; i < (size_t)end * size; i++)
        if (r->image[i] != 0xee)
            check_failed(__FILE__, __LINE__, "case %d: rank %d of %d: byte %zu of c's memory was written to", number, r->rank,
                         r->n, i);
}

static inline void put_row_check(const struct rank *r, const struct put_case *c, int number, int from, int64_t row, int64_t at,
                                 const int32_t *want)
{
    const size_t size = element_bytes(c->dtype);

    for (int64_t col = 0; col < c->n; col++) {
        const uint32_t bits = bits_of(c->dtype, want[col]);
        if (memcmp(r->image + (size_t)(at + col) * size, &bits, size) != 0) {
            uint32_t got = 0;
            memcpy(&got, r->image + (size_t)(at + col) * size, size);
            check_failed(__FILE__, __LINE__,
                         "case %d: rank %d of %d, %s, n %ld, k %ld%s%s%s: row %ld of %ld from rank %d, column %ld is 0x%x, "
                         "expected 0x%x",
                         number, r->rank, r->n, dtype_text(c->dtype), (long)c->n, (long)put_k(c, from),
                         c->copies ? ", copies" : "", c->bias ? ", bias" : "", c->residual ? ", residual" : "", (long)row,
                         (long)c->rows[from][r->rank], from, (long)col, got, bits);
        }
    }
}

/* c is what it should be, and what lies beside it is untouched. Of many rows `each`-th ones are looked at. */
static inline void put_check_some(const struct rank *r, const struct put_case *c, int number, int64_t each)
{
    const int64_t stride = c->n + c->gap[PART_Y], rows = put_rows(r, c, PART_Y), last = c->at[PART_Y] + rows * stride + 8;
    int32_t *want = malloc((size_t)(c->n + 1) * sizeof(want[0]));
    int64_t at = c->at[PART_Y];

    CHECK(want != NULL);
    r->move(r, PART_Y, (size_t)last * element_bytes(c->dtype), true);
    OK(fcc_comm_error(r->comm));
    put_untouched(r, c, number, 0, at);
    for (int from = 0; from < r->n; from++) {
        const int64_t k = put_k(c, from), elements = c->copies ? 0 : k * c->n;
        int64_t first = 0;
        int8_t *b = malloc((size_t)elements + 1);
        CHECK(b != NULL);
        for (int64_t i = 0; i < elements && c->rows[from][r->rank]; i++)
            b[i] = (int8_t)small(c->seed, from, PART_W, i);
        for (int to = 0; to < r->rank; to++)
            first += c->rows[from][to];
        for (int64_t row = 0; row < c->rows[from][r->rank]; row++, at += stride) {
            put_untouched(r, c, number, at + c->n, at + stride);
            if (row % each && row != c->rows[from][r->rank] - 1)
                continue;
            put_row(c, from, first + row, b, want);
            put_row_check(r, c, number, from, row, at, want);
        }
        free(b);
    }
    put_untouched(r, c, number, at, last);
    free(want);
}

static inline void put_check(const struct rank *r, const struct put_case *c, int number)
{
    put_check_some(r, c, number, 1);
}

/* ---- drawing ---- */

static inline void put_draw(struct put_case *c, int n)
{
    static const enum fcc_dtype dtypes[] = {FCC_F32, FCC_F16, FCC_BF16};
    static const int64_t rows[] = {0, 1, 8, 16, 64, 100, 128, 300}, ns[] = {1, 7, 8, 64, 256, 512, 1000, 1024},
                         ks[] = {0, 1, 8, 64, 100, 128, 512, 520};
    const bool aligned = draw(3) > 0, dense = draw(2), equal = draw(3) == 0;
    const int64_t all = draw_of(rows, 8, 400);

    *c = (struct put_case){.dtype = dtypes[draw(3)], .seed = (unsigned)draw(1 << 30), .more = draw(3) ? 0 : draw(20)};
    c->n = draw_of(ns, 8, 1200);
    c->copies = draw(6) == 0;
    for (int from = 0; from < n; from++) {
        c->k[from] = draw_of(ks, 8, 600);
        for (int to = 0; to < n; to++)
            c->rows[from][to] = equal ? all : draw_of(rows, 8, 400);
    }
    for (int i = 0; i < TENSORS; i++) {
        c->at[i] = aligned ? 8 * draw(4) : draw(9);
        c->gap[i] = dense ? 0 : aligned ? 8 * draw(4) : draw(9);
    }
    c->bias = !c->copies && draw(5) == 0;
    c->residual = !c->copies && draw(5) == 0;
}

#endif
