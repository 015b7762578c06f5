/* SPDX-License-Identifier: MIT
 *
 * product_cases.h - gemv_all_reduce in memory of the ranks' own, on streams: cases drawn at random, and what their results are. All numbers are
 * small and whole, so all sums are exact in f32, in any order, and results are right to the bit.
 */
#ifndef FCC_TEST_PRODUCT_CASES_H
#define FCC_TEST_PRODUCT_CASES_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bed/harness.h"
#include "tests/bed/unwatched.h"

#ifndef ROOM
#define ROOM (64 << 20) /* bytes of each tensor's memory */
#endif

enum { RANKS_MOST = 8, TENSORS = 5 };
enum part { PART_X, PART_W, PART_Y, PART_BIAS, PART_RESIDUAL };

struct rank {
    /* Copies the first bytes of the image to a tensor's memory, or (out) from there, behind the stream's work. */
    void (*move)(const struct rank *r, enum part part, size_t bytes, bool out);
    fcc_comm *comm;
    int rank, n;
    void *stream;
    uint64_t memory[TENSORS]; /* ROOM bytes each */
    unsigned char *image;
};

struct product_case {
    enum fcc_dtype dtype;
    int64_t m, n, k[RANKS_MOST];
    int64_t gap[TENSORS]; /* elements between rows */
    int64_t at[TENSORS];  /* element at which the tensor begins */
    bool bias, residual, in_place;
    unsigned seed;
};

static inline size_t element_bytes(enum fcc_dtype dtype)
{
    return dtype == FCC_F32 ? 4 : 2;
}

/* ---- numbers ---- */

/* Element i of a rank's tensor: -2 to 2. */
static inline int small(unsigned seed, int rank, enum part part, int64_t i)
{
    uint64_t x = ((uint64_t)seed * 64 + (unsigned)rank * TENSORS + part) * 0x9E3779B97F4A7C15u + (uint64_t)i;

    x *= 0xBF58476D1CE4E5B9u;
    x ^= x >> 31;
    x *= 0x94D049BB133111EBu;
    return (int)((x >> 40) % 5) - 2;
}

/* A number's bits in a dtype, rounded to the nearest, ties to even. Whole, and not too large for f16. */
static inline uint32_t bits_of(enum fcc_dtype dtype, double v)
{
    float f = (float)v;
    uint32_t bits;
    int exponent;

    memcpy(&bits, &f, sizeof(bits));
    if (dtype == FCC_F32)
        return bits;
    if (dtype == FCC_BF16)
        return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    if (v == 0)
        return 0;
    (void)frexp(fabs(v), &exponent); /* 2^(exponent - 1) <= |v| */
    double mantissa = nearbyint(ldexp(fabs(v), 11 - exponent));
    if (mantissa == 2048) {
        mantissa = 1024;
        exponent++;
    }
    return (v < 0 ? 0x8000u : 0) | ((uint32_t)(exponent + 14) << 10 | ((uint32_t)mantissa - 1024));
}

static inline void bits_put(enum fcc_dtype dtype, void *data, int64_t i, uint32_t bits)
{
    size_t size = element_bytes(dtype);

    memcpy((char *)data + (size_t)i * size, &bits, size);
}

/* ---- tensors ---- */

static inline int64_t rows_of(const struct product_case *c, enum part part)
{
    return part == PART_BIAS ? 1 : part == PART_W ? c->n : c->m;
}

static inline int64_t columns_of(const struct product_case *c, int rank, enum part part)
{
    return part == PART_X || part == PART_W ? c->k[rank] : c->n;
}

static inline int64_t stride_of(const struct product_case *c, int rank, enum part part)
{
    return columns_of(c, rank, part) + c->gap[part];
}

static inline struct fcc_tensor tensor_of(const struct rank *r, const struct product_case *c, enum part part)
{
    const enum part place = part == PART_RESIDUAL && c->in_place ? PART_Y : part;
    const uint64_t at = r->memory[place] + (uint64_t)c->at[place] * element_bytes(c->dtype);
    struct fcc_tensor t = fcc_tensor_2d(FCC_ADDRESS, at, c->dtype, rows_of(c, part), columns_of(c, r->rank, part));

    if (part == PART_BIAS)
        return fcc_tensor_1d(FCC_ADDRESS, at, c->dtype, c->n);
    t.stride[0] = stride_of(c, r->rank, place);
    t.stride[1] = 1;
    return t;
}

/* The numbers of one tensor to the GPU. What lies beside it is 0xee everywhere. */
static inline void tensor_fill(const struct rank *r, const struct product_case *c, enum part part)
{
    const enum part place = part == PART_RESIDUAL && c->in_place ? PART_Y : part;
    const int64_t rows = rows_of(c, part), columns = columns_of(c, r->rank, part), stride = stride_of(c, r->rank, place);
    const size_t bytes = (size_t)(c->at[place] + rows * stride + 8) * element_bytes(c->dtype);
    const int source = part == PART_BIAS || part == PART_RESIDUAL ? 0 : r->rank; /* the same on all ranks */

    CHECK(bytes <= ROOM);
    memset(r->image, 0xee, bytes);
    for (int64_t row = 0; row < rows && part != PART_Y; row++)
        for (int64_t col = 0; col < columns; col++)
            bits_put(c->dtype, r->image, c->at[place] + row * stride + col,
                     bits_of(c->dtype, small(c->seed, source, part, row * columns + col)));
    r->move(r, place, bytes, false);
}

static inline void case_fill(const struct rank *r, const struct product_case *c)
{
    tensor_fill(r, c, PART_X);
    tensor_fill(r, c, PART_W);
    if (!c->residual || !c->in_place)
        tensor_fill(r, c, PART_Y);
    if (c->bias)
        tensor_fill(r, c, PART_BIAS);
    if (c->residual)
        tensor_fill(r, c, PART_RESIDUAL);
}

/* Sums are exact where partial sums travel in f32: GPU tests, whose machines may have cuBLAS, ask for that. */
static uint32_t product_schedule = FCC_SCHEDULE_AUTO;

static inline int case_enqueue(const struct rank *r, const struct product_case *c)
{
    const struct fcc_gemv_all_reduce_args args = {
        .x = tensor_of(r, c, PART_X), .w = tensor_of(r, c, PART_W), .y = tensor_of(r, c, PART_Y), .schedule = product_schedule};
    struct fcc_epilogue epilogue = {.bias = {.buffer = NULL}};

    if (c->bias)
        epilogue.bias = tensor_of(r, c, PART_BIAS);
    if (c->residual)
        epilogue.residual = tensor_of(r, c, PART_RESIDUAL);
    return c->bias || c->residual ? fcc_gemv_all_reduce_epilogue_enqueue(r->comm, &args, &epilogue, r->stream, NULL)
                                  : fcc_gemv_all_reduce_enqueue(r->comm, &args, r->stream, NULL);
}

/* ---- results ---- */

static UNWATCHED int32_t product_dot(const int16_t *x, const int16_t *w, int64_t k)
{
    int32_t sum = 0;

    for (int64_t i = 0; i < k; i++)
        sum += x[i] * w[i];
    return sum;
}

/* The sums of all ranks' products, [m][n]. */
static inline int32_t *sums_make(const struct rank *r, const struct product_case *c)
{
    int32_t *sums = calloc((size_t)(c->m * c->n) + 1, sizeof(sums[0]));

    CHECK(sums != NULL);
    for (int rank = 0; rank < r->n; rank++) {
        const int64_t k = c->k[rank];
        int16_t *x = malloc((size_t)(c->m * k + 1) * sizeof(x[0])), *w = malloc((size_t)(k + 1) * sizeof(w[0]));
        CHECK(x != NULL && w != NULL);
        for (int64_t i = 0; i < c->m * k; i++)
            x[i] = (int16_t)small(c->seed, rank, PART_X, i);
        for (int64_t col = 0; col < c->n; col++) {
            for (int64_t i = 0; i < k; i++)
                w[i] = (int16_t)small(c->seed, rank, PART_W, col * k + i);
            for (int64_t row = 0; row < c->m; row++)
                sums[row * c->n + col] += product_dot(x + row * k, w, k);
        }
        free(x);
        free(w);
    }
    return sums;
}

static inline const char *dtype_text(enum fcc_dtype dtype)
{
    return dtype == FCC_F32 ? "f32" : dtype == FCC_F16 ? "f16" : "bf16";
}

/* y is what it should be, and what lies beside it is untouched. */
static inline void case_check(const struct rank *r, const struct product_case *c, int number)
{
    const int64_t stride = stride_of(c, r->rank, PART_Y), last = c->at[PART_Y] + c->m * stride + 8;
    const size_t size = element_bytes(c->dtype);
    int32_t *sums = sums_make(r, c);

    r->move(r, PART_Y, (size_t)last * size, true);
    OK(fcc_comm_error(r->comm));
    for (int64_t i = 0; i < last && c->n; i++) {
        const int64_t from = i - c->at[PART_Y], row = from / stride, col = from % stride;
        const bool inside = from >= 0 && row < c->m && col < c->n;
        uint32_t want = 0xeeeeeeee, got = 0;
        if (inside)
            want = bits_of(c->dtype, sums[row * c->n + col] + (c->bias ? small(c->seed, 0, PART_BIAS, col) : 0) +
                                         (c->residual ? small(c->seed, 0, PART_RESIDUAL, row * c->n + col) : 0));
        memcpy(&got, r->image + (size_t)i * size, size);
        if (memcmp(&got, &want, size) != 0)
            check_failed(__FILE__, __LINE__,
                         "case %d: rank %d of %d, %s, m %ld, n %ld, k %ld%s%s%s: y[%ld][%ld] is 0x%x, expected 0x%x", number,
                         r->rank, r->n, dtype_text(c->dtype), (long)c->m, (long)c->n, (long)c->k[r->rank],
                         c->bias ? ", bias" : "", c->residual ? ", residual" : "", c->in_place ? ", in place" : "", (long)row,
                         (long)col, got, want);
    }
    free(sums);
}

/* ---- drawing ---- */

static uint64_t draw_state;

static inline int64_t draw(int64_t below)
{
    draw_state = draw_state * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((draw_state >> 33) % (uint64_t)below);
}

static inline int64_t draw_of(const int64_t *some, int n, int64_t most)
{
    const int64_t i = draw(2 * n);

    return i < n ? some[i] : draw(most) + 1;
}

static inline void case_draw(struct product_case *c, int n)
{
    static const enum fcc_dtype dtypes[] = {FCC_F32, FCC_F16, FCC_BF16};
    static const int64_t ms[] = {1, 1, 1, 2, 4, 8, 16, 64}, ns[] = {0, 1, 7, 8, 64, 512, 1000, 4096},
                         ks[] = {0, 1, 8, 31, 128, 512, 1000, 2048};
    const bool aligned = draw(2), dense = draw(2);

    *c = (struct product_case){.dtype = dtypes[draw(3)], .seed = (unsigned)draw(1 << 30)};
    c->m = draw_of(ms, 8, 64);
    c->n = draw_of(ns, 8, 2000);
    for (int r = 0; r < n; r++) {
        do
            c->k[r] = draw_of(ks, 8, 1500);
        while (c->m * c->n * c->k[r] > 20000000);
    }
    for (int i = 0; i < TENSORS; i++) {
        c->at[i] = aligned ? 8 * draw(4) : draw(9);
        c->gap[i] = dense ? 0 : aligned ? 8 * draw(4) : draw(9);
    }
    c->bias = draw(4) == 0;
    c->residual = draw(4) == 0;
    c->in_place = c->residual && draw(2);
}

#endif
