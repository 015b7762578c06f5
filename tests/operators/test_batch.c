/* SPDX-License-Identifier: MIT
 *
 * test_batch.c - FCC_SCHEDULE_BATCH_INVARIANT: equal rows of the first factor give rows of the same bits, among however many others and wherever
 * they are, on one node and over several. Elements have all bits of their dtype, so that sums in another order are other ones.
 */
#include <errno.h>

#define ROOM (8 << 20)
#include "tests/operators/stage_cases.h"

enum { CASES = 25, TIMES = 5, CONTENTS = 3, MOST_M = 64, MOST_N = 300, MOST_K = 1500 };

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
static uint32_t bits_of(enum fcc_dtype dtype, uint64_t seed, int64_t i)
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

static void bits_fill(const struct rank *r, enum part part, enum fcc_dtype dtype, uint64_t seed, int64_t first, int64_t n)
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
static uint64_t seed_of(const struct batch *b, enum part part, int r, int content)
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

static void batch_fill(const struct rank *r, const struct batch *b)
{
    const int k = b->k[r->rank];

    for (int i = 0; i < b->m; i++) {
        bits_fill(r, PART_A, b->dtype, seed_of(b, PART_A, r->rank, b->content[i]), (int64_t)i * k, k);
        bits_fill(r, PART_RESIDUAL, b->dtype, seed_of(b, PART_RESIDUAL, r->rank, b->content[i]), (int64_t)i * b->n, b->n);
    }
    bits_fill(r, PART_B, b->f8 ? FCC_F8E4M3 : b->dtype, seed_of(b, PART_B, r->rank, 0), 0, (int64_t)b->n * k);
    bits_fill(r, PART_WEIGHT, b->dtype, seed_of(b, PART_WEIGHT, 0, 0), 0, b->n);
}

/* The rows that a rank gets, and the first of them. */
static int rows_of(const struct rank *r, const struct batch *b)
{
    return b->scatters ? (int)share_of(b->m, r->n, r->rank) : b->m;
}

static size_t result_bytes(const struct rank *r, const struct batch *b)
{
    return (size_t)(rows_of(r, b) * b->n) * dtype_bytes(b->dtype);
}

/* Moves the tensors to where they lie, and calls the operator. */
static int batch_call(const struct rank *r, const struct batch *b)
{
    const enum fcc_dtype of_b = b->f8 ? FCC_F8E4M3 : b->dtype;
    const int k = b->k[r->rank];
    const struct fcc_tensor x = part_of(r, PART_A, b->dtype, b->m, k);
    const struct fcc_tensor w = b->op == OP_GEMV ? part_of(r, PART_B, of_b, b->n, k) : part_of(r, PART_B, of_b, k, b->n);
    const struct fcc_tensor y = tensor_in(r, 1, 0, b->dtype, rows_of(r, b), b->n);
    struct fcc_epilogue stages = {.norm = b->norm ? FCC_RMS_NORM : FCC_NO_NORM, .norm_eps = b->norm ? 1e-5f : 0}, *e = &stages;

    if (b->norm)
        stages.norm_weight = part_of(r, PART_WEIGHT, b->dtype, -1, b->n);
    if (b->residual)
        stages.residual = part_of(r, PART_RESIDUAL, b->dtype, b->m, b->n);
    if (b->residual && b->scatters)
        stages.residual = rows_share(stages.residual, r->n, r->rank);
    if (!b->norm && !b->residual)
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
    return STAGE_CALL(gemm_all_to_all, .a = x, .b = w, .c = y, .schedule = b->schedule);
}

static void row_check(const struct rank *r, const struct batch *b, int row, struct seen *seen)
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

static struct batch batch_draw(int nranks, unsigned number)
{
    static const enum fcc_dtype dtypes[] = {FCC_F32, FCC_F16, FCC_BF16};
    static const uint32_t schedules[] = {FCC_SCHEDULE_AUTO, FCC_SCHEDULE_FUSED, FCC_SCHEDULE_SEQUENTIAL,
                                         FCC_SCHEDULE_FUSED | FCC_SCHEDULE_FLAT,
                                         FCC_SCHEDULE_FUSED | FCC_SCHEDULE_HIERARCHICAL};
    struct batch b = {.op = (enum stage_op)random_below(OP_SUM),
                      .dtype = dtypes[random_below(3)],
                      .schedule = schedules[random_below(5)] | FCC_SCHEDULE_BATCH_INVARIANT,
                      .f8 = random_below(4) == 0,
                      .norm = random_below(2),
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
static void rows_draw(struct batch *b, int nranks)
{
    b->m = 1 + (int)random_below(random_below(2) ? 4 : MOST_M);
    if (b->op == OP_PUT)
        b->m = b->m < nranks ? nranks : b->m / nranks * nranks;
    for (int i = 0; i < b->m; i++)
        b->content[i] = (int)random_below(CONTENTS);
}

static void cases_rank(int rank, const struct ranks *all, void *argument)
{
    static struct seen seen;
    struct rank r;

    random_state = *(const uint64_t *)argument;
    rank_open(&r, rank, all);
    for (unsigned i = 1; i <= (unsigned)test_rounds(CASES); i++) {
        struct batch b = batch_draw(all->n, i);
        memset(&seen, 0, sizeof(seen));
        for (int again = 0; again < TIMES; again++) {
            rows_draw(&b, all->n);
            batch_fill(&r, &b);
            OK(batch_call(&r, &b));
            result_move(&r, result_bytes(&r, &b), true);
            for (int row = 0; row < rows_of(&r, &b); row++)
                row_check(&r, &b, row, &seen);
            OK(fcc_noop(r.comm)); /* nobody fills memory anew that others read, before all have looked */
        }
    }
    rank_close(&r);
}

static void on_one_node(void)
{
    cases_on(1, 3, cases_rank);
}

static void on_two_nodes(void)
{
    cases_on(2, 4, cases_rank);
}

/* ---- what is refused, on all ranks; and another kind of run with the same tensors, which may have begun early ---- */

static void refused_rank(int rank, const struct ranks *all, void *argument)
{
    struct batch b = {.op = OP_GEMV, .dtype = FCC_F32, .n = 200, .k = {700, 700}, .m = 1, .seed = 7};
    static unsigned char bits[200 * sizeof(float)];
    struct rank r;

    (void)argument;
    rank_open(&r, rank, all);
    batch_fill(&r, &b);
    b.schedule = rank ? FCC_SCHEDULE_BATCH_INVARIANT | FCC_SCHEDULE_FLAT : FCC_SCHEDULE_FLAT;
    FAILS(batch_call(&r, &b), -EINVAL);
    CHECK(strstr(fcc_last_error(), "gemv_all_reduce: schedule: rank 1 has batch invariant, rank 0 has no batch invariance"));
    for (int i = 0; i < 200; i++) {
        b.schedule = FCC_SCHEDULE_FLAT | (i % 2 ? FCC_SCHEDULE_BATCH_INVARIANT : 0);
        OK(batch_call(&r, &b));
        result_move(&r, result_bytes(&r, &b), true);
        if (i == 1)
            memcpy(bits, r.images[1], sizeof(bits));
        CHECK(i % 2 == 0 || memcmp(bits, r.images[1], sizeof(bits)) == 0);
        OK(fcc_noop(r.comm));
    }
    rank_close(&r);
}

static void by_turns(void)
{
    pair_run(refused_rank);
}

int main(void)
{
    static const struct test tests[] = {
        {"on_one_node", on_one_node, 120}, {"on_two_nodes", on_two_nodes, 120}, {"by_turns", by_turns, 60}};

    return tests_run("batch", TESTS(tests));
}
