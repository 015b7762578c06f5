/* SPDX-License-Identifier: MIT
 *
 * batch_cases.h - FCC_SCHEDULE_BATCH_INVARIANT: equal rows of the first factor give rows of the same bits, among however many others and wherever
 * they are. Elements have all bits of their dtype, so that sums in another order are other ones.
 */
#ifndef FCC_TEST_BATCH_CASES_H
#define FCC_TEST_BATCH_CASES_H

#ifndef ROOM
#define ROOM (8 << 20)
#endif
#include "tests/operators/stage_cases.h"

enum { TIMES = 5, CONTENTS = 3, MOST_M = 130, MOST_N = 300, MOST_K = 1500 };

struct batch {
    enum stage_op op; /* not SUM */
    enum fcc_dtype dtype;
    uint32_t schedule;
    bool f8, norm, residual;
    int n, k[STAGE_RANKS];
    int m, content[MOST_M]; /* the rows of each rank's first factor: which of CONTENTS they have */
    bool scatters;          /* GEMM: the sum's rows, in equal parts */
    uint64_t seed;
};

/* ---- factors ---- */

/* Element i of what has this seed: its bits, of 0.5 to 2 or the negative. */
static inline uint32_t bits_of(enum fcc_dtype dtype, uint64_t seed, int64_t i)
{
    uint64_t x = (seed * 1000003 + (uint64_t)i + 1) * 0x9E3779B97F4A7C15u;

    x = (x ^ x >> 29) * 0xBF58476D1CE4E5B9u;
    const uint32_t r = (uint32_t)(x >> 32), sign = r >> 31;
    switch (dtype) {
    case FCC_F16:
        return sign << 15 | (0x3800 + (r & 0x7ff));
    case FCC_BF16:
        return sign << 15 | (0x3f00 + (r & 0xff));
    case FCC_F8E4M3:
        return sign << 7 | (0x30 + (r & 0xf));
    default:
        return sign << 31 | (0x3f000000 + (r & 0xffffff));
    }
}

static inline void bits_fill(const struct rank *r, enum part part, enum fcc_dtype dtype, uint64_t seed, int64_t first,
                             int64_t n)
{
    const size_t size = dtype_bytes(dtype);
    unsigned char *at = r->images[0] + part_at(part) + (size_t)first * size;

    CHECK((uint64_t)(first + n) * size <= ROOM / PARTS / 64 * 64);
    for (int64_t i = 0; i < n; i++, at += size) {
        const uint32_t bits = bits_of(dtype, seed, i);
        memcpy(at, &bits, size); /* little-endian, as all of fccd */
    }
}

/* Seeds of a content, of rank r. All ranks have the same residual of a sum. */
static inline uint64_t seed_of(const struct batch *b, enum part part, int r, int content)
{
    const int of = part == PART_RESIDUAL && b->op != OP_PUT ? 0 : r;

    return b->seed + ((uint64_t)part * STAGE_RANKS + (uint64_t)of) * CONTENTS + (uint64_t)content;
}

/* ---- a run ---- */

/* What each rank's row with a content gave, whole. Rows of a sum are all rank 0's. */
struct seen {
    bool is[STAGE_RANKS][CONTENTS];
    unsigned char row[STAGE_RANKS][CONTENTS][MOST_N * 4];
};

static inline void batch_fill(const struct rank *r, const struct batch *b)
{
    const int k = b->k[r->rank];

    for (int i = 0; i < b->m; i++) {
        bits_fill(r, PART_A, b->dtype, seed_of(b, PART_A, r->rank, b->content[i]), (int64_t)i * k, k);
        bits_fill(r, PART_RESIDUAL, b->dtype, seed_of(b, PART_RESIDUAL, r->rank, b->content[i]), (int64_t)i * b->n, b->n);
    }
    bits_fill(r, PART_B, b->f8 ? FCC_F8E4M3 : b->dtype, seed_of(b, PART_B, r->rank, 0), 0, (int64_t)b->n * k);
    bits_fill(r, PART_WEIGHT, b->dtype, seed_of(b, PART_WEIGHT, 0, 0), 0, b->n);
}

/* The rows that a rank gets. */
static inline int rows_of(const struct rank *r, const struct batch *b)
{
    return b->scatters ? (int)share_of(b->m, r->n, r->rank) : b->m;
}

static inline size_t result_bytes(const struct rank *r, const struct batch *b)
{
    return (size_t)(rows_of(r, b) * b->n) * dtype_bytes(b->dtype);
}

/* Moves the tensors to where they lie, and calls the operator. */
static inline int batch_call(const struct rank *r, const struct batch *b)
{
    const enum fcc_dtype of_b = b->f8 ? FCC_F8E4M3 : b->dtype;
    const int k = b->k[r->rank];
    const struct fcc_tensor x = part_of(r, PART_A, b->dtype, b->m, k);
    const struct fcc_tensor w = b->op == OP_GEMV ? part_of(r, PART_B, of_b, b->n, k) : part_of(r, PART_B, of_b, k, b->n);
    const struct fcc_tensor y = tensor_in(r, 1, 0, b->dtype, rows_of(r, b), b->n);
    int64_t came[STAGE_RANKS]; /* on a stream it is said, otherwise heard */
    struct fcc_epilogue stages = {.norm = b->norm ? FCC_RMS_NORM : FCC_NO_NORM, .norm_eps = b->norm ? 1e-5f : 0}, *e = &stages;

    if (b->norm)
        stages.norm_weight = part_of(r, PART_WEIGHT, b->dtype, -1, b->n);
    if (b->residual)
        stages.residual = part_of(r, PART_RESIDUAL, b->dtype, b->m, b->n);
    if (b->residual && b->scatters)
        stages.residual = rows_share(stages.residual, r->n, r->rank);
    if (!b->norm && !b->residual && !b->f8)
        e = NULL;
    const struct fcc_tensor *const tensors[] = {&x, &w, &stages.norm_weight, &stages.residual};
    for (size_t i = 0; i < sizeof(tensors) / sizeof(tensors[0]); i++)
        tensor_move(r, tensors[i]);
    result_move(r, result_bytes(r, b), false);
    if (b->op == OP_GEMV)
        return STAGE_CALL(gemv_all_reduce, .x = x, .w = w, .y = y, .schedule = b->schedule);
    if (b->scatters)
        return STAGE_CALL(gemm_reduce_scatter, .a = x, .b = w, .c = y, .schedule = b->schedule);
    if (b->op == OP_GEMM)
        return STAGE_CALL(gemm_all_reduce, .a = x, .b = w, .c = y, .schedule = b->schedule);
    for (int p = 0; p < r->n; p++)
        came[p] = b->m / r->n;
    return STAGE_CALL(gemm_all_to_all, .a = x, .b = w, .c = y, .recv_rows = came, .schedule = b->schedule);
}

static inline void row_check(const struct rank *r, const struct batch *b, int row, struct seen *seen)
{
    const size_t bytes = (size_t)b->n * dtype_bytes(b->dtype);
    const int part = b->m / r->n, maker = b->op == OP_PUT ? row / part : 0;
    const int first = b->scatters ? (int)share_begin(b->m, r->n, r->rank) : 0;
    const int content = b->content[b->op == OP_PUT ? r->rank * part + row % part : first + row];
    const unsigned char *at = r->images[1] + (size_t)row * bytes;

    if (!seen->is[maker][content])
        memcpy(seen->row[maker][content], at, bytes);
    seen->is[maker][content] = true;
    if (memcmp(seen->row[maker][content], at, bytes) != 0)
        check_failed(
            __FILE__, __LINE__,
            "seed %lu, rank %d of %d: op %d, dtype %d, f8 %d, norm %d, m %d, n %d, k %d: row %d: not the bits of an equal one",
            (unsigned long)b->seed, r->rank, r->n, b->op, b->dtype, b->f8, b->norm, b->m, b->n, b->k[r->rank], row);
}

/* ---- drawing ---- */

static inline struct batch batch_draw(int nranks, unsigned number, bool on_stream)
{
    static const enum fcc_dtype dtypes[] = {FCC_F32, FCC_F16, FCC_BF16};
    static const uint32_t schedules[] = {FCC_SCHEDULE_AUTO, FCC_SCHEDULE_FUSED, FCC_SCHEDULE_SEQUENTIAL,
                                         FCC_SCHEDULE_FUSED | FCC_SCHEDULE_FLAT,
                                         FCC_SCHEDULE_FUSED | FCC_SCHEDULE_HIERARCHICAL};
    static const enum stage_op launched[] = {OP_GEMV, OP_PUT};
    const bool has_rows = on_stream || test_device() == FCC_DEVICE_CPU; /* what fccd launches on GPUs has no norms */
    struct batch b = {.op = on_stream ? launched[random_below(2)] : (enum stage_op)random_below(OP_SUM),
                      .dtype = dtypes[random_below(3)],
                      .schedule = schedules[random_below(on_stream ? 2 : 5)] | FCC_SCHEDULE_BATCH_INVARIANT,
                      .f8 = random_below(4) == 0,
                      .norm = random_below(2) && has_rows,
                      .residual = random_below(2),
                      .n = 1 + (int)random_below(MOST_N),
                      .seed = 1000u * number};

    b.scatters = b.op == OP_GEMM && random_below(2);
    for (int r = 0; r < nranks; r++)
        b.k[r] = 1 + (int)random_below(random_below(2) ? 40 : MOST_K);
    while ((size_t)b.n * MOST_K * 4 > ROOM / PARTS)
        b.n /= 2;
    return b;
}

/* Other rows; as many as gemm_all_to_all can divide. */
static inline void rows_draw(struct batch *b, int nranks, bool on_stream)
{
    const int most = b->op == OP_GEMV && (on_stream || test_device() == FCC_DEVICE_CPU) ? MOST_M : FCC_GEMV_MAX_M;

    b->m = 1 + (int)random_below(random_below(2) ? 4 : (unsigned)most);
    if (b->op == OP_PUT)
        b->m = b->m < nranks ? nranks : b->m / nranks * nranks;
    for (int i = 0; i < b->m; i++)
        b->content[i] = (int)random_below(CONTENTS);
}

/* A case again and again, with other rows. */
static inline void batch_run(const struct rank *r, struct batch *b)
{
    static struct seen seen;

    memset(&seen, 0, sizeof(seen));
    for (int again = 0; again < TIMES; again++) {
        rows_draw(b, r->n, r->move != NULL);
        batch_fill(r, b);
        OK(batch_call(r, b));
        result_move(r, result_bytes(r, b), true);
        for (int row = 0; row < rows_of(r, b); row++)
            row_check(r, b, row, &seen);
        if (!r->move) /* nobody fills memory anew that others read, before all have looked */
            OK(fcc_noop(r->comm));
    }
}

#endif
