/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_pieces_errors.c - gemm_all_reduce, gemm_reduce_scatter and all_gather_gemm that the ranks launch themselves, on fake GPUs: arguments that
 * are wrong, and ranks that differ. All ranks hear the same, and the communicator goes on.
 */
#include "tests/fake_gpu/fake_gpu_pieces.h"

/* ---- arguments that are wrong on the last rank ---- */

/* A case whose a, b, c and rows are of 12 rows, 16 columns, and K of 8. */
static union piece_args right_args(const struct rank *r, enum kind kind, uint32_t schedule)
{
    static struct piece_case c; /* its rows are the arguments' */

    c = piece_of(r, kind, FCC_F32, 12, 16);
    c.schedule = schedule;
    c.gathered = true;
    return piece_args(r, &c);
}

/* Each rank's own error begins with its number, as what the others hear does. */
static void refused_is(const struct rank *r, enum kind kind, const union piece_args *args, const char *text)
{
    char all[320];

    (void)snprintf(all, sizeof(all), "rank %d: %s: %s", r->n - 1, kind_names[kind], text);
    piece_error_is(r, args_enqueue(r, kind, args, NULL), all);
}

#define WRONG(kind, change, text)                                                                                              \
    do {                                                                                                                       \
        union piece_args args = right_args(r, kind, schedule);                                                                 \
        if (r->rank == r->n - 1)                                                                                               \
            (void)(change);                                                                                                    \
        refused_is(r, kind, &args, text);                                                                                      \
    } while (0)

static void wrong_sums(const struct rank *r, uint32_t schedule)
{
    static int64_t too_many[GPUS] = {9, 9, 9};

    WRONG(SUM, args.sum.a.buffer = NULL, "a: absent: it must be there");
    WRONG(SUM, args.sum.b.offset = 0, "b: address 0: not allowed");
    WRONG(SUM, args.sum.a.dtype = FCC_I32, "a: dtype i32: allowed: f32, f16, bf16, f8e4m3");
    WRONG(SUM, args.sum.a.ndim = 3, "a: 3 dimensions: allowed is 2");
    WRONG(SUM, args.sum.a.offset += 2, "a: address 0x");
    WRONG(SUM, args.sum.a.shape[0] = -1, "a: shape[0] -1: allowed are 0 to");
    WRONG(SUM, args.sum.b.shape[0] = 9, "b: shape[0] 9: allowed is 8 (a's shape[1], K)");
    WRONG(SUM, args.sum.c.shape[0] = 11, "c: shape[0] 11: allowed is 12 (a's shape[0], M)");
    WRONG(SUM, args.sum.c.shape[1] = 17, "c: shape[1] 17: allowed is 16 (b's shape[1], N)");
    WRONG(SUM, args.sum.a.stride[1] = 2, "a: stride[1] 2: allowed is 1");
    WRONG(SUM, args.sum.a.stride[0] = 0, "a: stride[0] 0: rows overlap: allowed with FCC_ADDRESS are 8 and more");
    WRONG(SUM, args.sum.b.stride[0] = 15, "b: stride[0] 15: rows overlap: allowed with FCC_ADDRESS are 16 and more");
    WRONG(SUM, args.sum.c.stride[0] = 15, "c: stride[0] 15: elements overlap");
    WRONG(SUM, args.sum.c.offset = args.sum.b.offset + 4, "b: overlaps c: allowed is apart from it");
    WRONG(SUM, args.sum.reserved[6] = 1, "reserved[6]: 1: must be 0");
    WRONG(SCATTER, args.scatter.rows = too_many, "rows[1]: 9: allowed are 0 to 3, for all to add up to a's shape[0], M, 12");
    WRONG(SCATTER, args.scatter.c.shape[0] += 1, "c: shape[0] ");
    WRONG(SCATTER, args.scatter.c.offset = args.scatter.a.offset, "a: overlaps c: allowed is apart from it");
    WRONG(SCATTER,
          (args.scatter.b.shape[1] = args.scatter.c.shape[1] = 131073,
           args.scatter.b.stride[0] = args.scatter.c.stride[0] = 131073, args.scatter.a.offset = r->memory[PART_GATHERED]),
          "c: shape[1] 131073: allowed with FCC_ADDRESS are at most 131072");
}

static void wrong_gathers(const struct rank *r, uint32_t schedule)
{
    const int own = 12 / r->n;
    char text[160];

    WRONG(GATHER, args.gather.a.stride[0] = 7, "a: stride[0] 7: rows overlap: allowed are 8 and more");
    WRONG(GATHER, args.gather.b.stride[0] = 1, "b: stride[0] 1: rows overlap: allowed with FCC_ADDRESS are 16 and more");
    WRONG(GATHER, args.gather.gathered.stride[0] = 7, "gathered: stride[0] 7: rows overlap: allowed are 8 and more");
    WRONG(GATHER, args.gather.gathered.shape[0] = 11, "gathered: shape[0] 11: allowed is 12 (c's shape[0], M)");
    WRONG(GATHER, args.gather.gathered.shape[1] = 7, "gathered: shape[1] 7: allowed is 8 (a's shape[1], K)");
    WRONG(GATHER, args.gather.gathered.dtype = FCC_F16, "gathered: dtype f16: allowed");
    WRONG(GATHER, args.gather.gathered.offset = args.gather.c.offset + 64, "c: overlaps gathered: allowed is apart from it");
    WRONG(GATHER, args.gather.gathered.offset = args.gather.a.offset, "a: overlaps gathered: allowed is apart from it");
    WRONG(GATHER, args.gather.gathered.offset = args.gather.b.offset + 32, "b: overlaps gathered: allowed is apart from it");
    WRONG(GATHER, args.gather.c.offset = args.gather.gathered.offset, "c: overlaps gathered: allowed is apart from it");
    (void)snprintf(text, sizeof(text), "c: shape[0] 3: allowed are the rows of all ranks' a, of which this one has %d", own);
    WRONG(GATHER, args.gather.c.shape[0] = args.gather.gathered.shape[0] = 3, text);
}
#undef WRONG

/* What would need more memory than there is, on all ranks. */
static void sizes_of_sequence(const struct rank *r)
{
    enum { WIDE = 8192, M = 1026 };
    struct piece_case c = piece_of(r, GATHER, FCC_F32, M, 1);
    char text[240];

    for (int p = 0; p < r->n; p++)
        c.k[p] = WIDE;
    c.schedule = FCC_SCHEDULE_SEQUENTIAL;
    c.gathered = false;
    (void)snprintf(
        text, sizeof(text),
        "all_gather_gemm: the ranks' a: %d rows of %d: allowed in sequence, or on more than two ranks, are 33554432 bytes "
        "together, unless gathered is there and dense",
        M, WIDE);
    piece_error_is(r, piece_enqueue(r, &c, NULL), text);
    c.gathered = true;
    c.gap[PART_GATHERED] = 1;
    piece_error_is(r, piece_enqueue(r, &c, NULL), text);
    c.gap[PART_GATHERED] = 0;
    piece_works(r, &c, 0);
    for (int p = 0; p < r->n; p++)
        c.rows[p] = p ? 0 : M;
    c.gap[PART_X] = 8;
    piece_error_is(
        r, piece_enqueue(r, &c, NULL),
        "rank 0: all_gather_gemm: a: stride[0] 8200: allowed of more than 33554432 bytes in sequence, or on more than two "
        "ranks, is 8192");
}

static void wrong_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;
    fcc_context *context = pieces_open(&r, rank, all, 0);

    (void)argument;
    OK(fcc_products_prepare(r.comm));
    wrong_sums(&r, FCC_SCHEDULE_FUSED);
    wrong_gathers(&r, FCC_SCHEDULE_FUSED);
    wrong_gathers(&r, FCC_SCHEDULE_SEQUENTIAL);
    sizes_of_sequence(&r);
    pieces_close(&r, context);
}

static void wrong_arguments(void)
{
    fake_ranks_run(PAIR, wrong_rank, NULL);
}

static void wrong_arguments_of_three(void)
{
    fake_ranks_run(GPUS, wrong_rank, NULL);
}

/* ---- what this process does not launch ---- */

static void not_launched_is(const struct rank *r, int status, const char *op, const char *text)
{
    FAILS(status, -EOPNOTSUPP, op, text);
    (void)fcc_comm_error_wait(r->comm, -1);
    struct piece_case c = piece_of(r, SCATTER, FCC_BF16, 9, 31);
    piece_works(r, &c, 0);
}

static void not_launched_rank(int rank, const struct ranks *all, void *argument)
{
    static const char *const schedules = "schedule: allowed with FCC_ADDRESS are auto, fused and sequential";
    static const char *const plain = "FCC_ADDRESS: allowed without an epilogue, factors in e4m3 and batch invariance";
    static const char *const request =
        "FCC_ADDRESS: allowed only where this process launches the operator: on a stream of a CUDA GPU, without a request";
    struct fcc_epilogue epilogue = {.bias = {.buffer = NULL}};
    struct rank r;
    fcc_context *context = pieces_open(&r, rank, all, 0);

    (void)argument;
    OK(fcc_products_prepare(r.comm));
    for (int kind = 0; kind < KINDS; kind++) {
        union piece_args args = right_args(&r, (enum kind)kind, FCC_SCHEDULE_FUSED | FCC_SCHEDULE_BATCH_INVARIANT);
        fcc_request *started = NULL;
        not_launched_is(&r, args_enqueue(&r, (enum kind)kind, &args, NULL), kind_names[kind], plain);
        args = right_args(&r, (enum kind)kind, FCC_SCHEDULE_AUTO);
        args.sum.a.dtype = FCC_F8E4M3; /* the first two of all */
        not_launched_is(&r, args_enqueue(&r, (enum kind)kind, &args, NULL), kind_names[kind], plain);
        args = right_args(&r, (enum kind)kind, FCC_SCHEDULE_COMPUTE_ONLY);
        not_launched_is(&r, args_enqueue(&r, (enum kind)kind, &args, NULL), kind_names[kind], schedules);
        args = right_args(&r, (enum kind)kind, FCC_SCHEDULE_FUSED | FCC_SCHEDULE_HIERARCHICAL);
        not_launched_is(&r, args_enqueue(&r, (enum kind)kind, &args, NULL), kind_names[kind], schedules);
        args = right_args(&r, (enum kind)kind, FCC_SCHEDULE_AUTO);
        not_launched_is(&r, args_enqueue(&r, (enum kind)kind, &args, &started), kind_names[kind], request);
        CHECK(started == NULL);
    }
    union piece_args args = right_args(&r, SUM, FCC_SCHEDULE_AUTO);
    epilogue.bias = fcc_tensor_1d(FCC_ADDRESS, r.memory[PART_BIAS], FCC_F32, 16);
    not_launched_is(&r, fcc_gemm_all_reduce_epilogue_enqueue(r.comm, &args.sum, &epilogue, r.stream, NULL), kind_names[SUM],
                    plain);
    not_launched_is(&r, fcc_gemm_all_reduce(r.comm, &args.sum), kind_names[SUM], request);
    pieces_close(&r, context);
}

static void not_launched(void)
{
    fake_ranks_run(PAIR, not_launched_rank, NULL);
}

/* Of a wish that there is not, on all ranks; the communicator goes on with one that there is. */
static void wrong_wish_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;
    char text[160];

    (void)argument;
    CHECK(setenv("FCC_FUSED", "tile", 1) == 0);
    fcc_context *context = pieces_open(&r, rank, all, 0);
    struct piece_case c = piece_of(&r, SCATTER, FCC_BF16, 9, 31);
    (void)snprintf(text, sizeof(text), "rank %d: FCC_FUSED=tile: allowed are auto, tiles and pieces", rank);
    FAILS(piece_enqueue(&r, &c, NULL), -EINVAL, text);
    CHECK(setenv("FCC_FUSED", "pieces", 1) == 0);
    piece_works(&r, &c, 0);
    pieces_close(&r, context);
}

static void wrong_wish(void)
{
    fake_ranks_run(PAIR, wrong_wish_rank, NULL);
}

/* ---- ranks that differ ---- */

struct differs {
    enum fcc_dtype dtype;
    uint32_t schedule;
    int64_t m, n, k;
};

/* The last rank differs from all others, of which any may have found it first. `%d` is the last rank. */
static void differs_is(const struct rank *r, enum kind kind, int status, const char *text)
{
    char all[240], says[200], *other;

    (void)snprintf(says, sizeof(says), text, r->n - 1);
    (void)snprintf(all, sizeof(all), "%s: %s", kind_names[kind], says);
    other = strstr(all, "rank 0");
    if (r->n > PAIR && other)
        *other = 0;
    piece_error_is(r, status, all);
}

/* The last rank has other sizes. */
static void differ_is(const struct rank *r, enum kind kind, struct differs first, struct differs last, const char *text)
{
    const struct differs *mine = r->rank == r->n - 1 ? &last : &first;
    struct piece_case c = piece_of(r, kind, mine->dtype, mine->m, mine->n);

    for (int p = 0; p < r->n; p++)
        c.k[p] = mine->k;
    c.schedule = mine->schedule;
    c.gives_rows = false;
    differs_is(r, kind, piece_enqueue(r, &c, NULL), text);
}

static void differ_in_pieces(const struct rank *r)
{
    const uint32_t s = FCC_SCHEDULE_FUSED;
    const struct differs usual = {FCC_F32, s, 12, 16, 8};

    for (int kind = 0; kind < KINDS; kind++)
        differ_is(r, (enum kind)kind, usual, (struct differs){FCC_F16, s, 12, 16, 8},
                  "c: dtype: rank %d has f16, rank 0 has f32");
    for (int kind = 0; kind < GATHER; kind++) {
        differ_is(r, (enum kind)kind, usual, (struct differs){FCC_F32, s, 13, 16, 8},
                  "a: shape[0]: rank %d has 13, rank 0 has 12");
        differ_is(r, (enum kind)kind, usual, (struct differs){FCC_F32, s, 0, 16, 8},
                  "a: shape[0]: rank %d has 0, rank 0 has 12");
        differ_is(r, (enum kind)kind, usual, (struct differs){FCC_F32, s, 12, 17, 8},
                  "c: shape[1]: rank %d has 17, rank 0 has 16");
        differ_is(r, (enum kind)kind, usual, (struct differs){FCC_F32, s, 12, 0, 8},
                  "c: shape[1]: rank %d has 0, rank 0 has 16");
        differ_is(r, (enum kind)kind, usual, (struct differs){FCC_F32, FCC_SCHEDULE_AUTO, 12, 16, 8},
                  "schedule, or sizes: rank %d multiplies in sequence, rank 0 in pieces");
    }
    differ_is(r, GATHER, usual, (struct differs){FCC_F32, s, 14, 16, 8}, "c: shape[0]: rank %d has 14, rank 0 has 12");
    differ_is(r, GATHER, usual, (struct differs){FCC_F32, s, 12, 16, 9}, "a: shape[1]: rank %d has 9, rank 0 has 8");
}

static void differ_in_sequence(const struct rank *r)
{
    const uint32_t s = FCC_SCHEDULE_SEQUENTIAL;
    const struct differs usual = {FCC_F32, s, 12, 16, 8}, large = {FCC_F32, s, 9000, 1024, 1};

    for (int kind = 0; kind < KINDS; kind++)
        differ_is(r, (enum kind)kind, usual, (struct differs){FCC_BF16, s, 12, 16, 8},
                  "c: dtype: rank %d has bf16, rank 0 has f32");
    for (int kind = 0; kind < GATHER; kind++) {
        differ_is(r, (enum kind)kind, usual, (struct differs){FCC_F32, s, 15, 16, 8},
                  "the sum: rank %d has 240 elements at a time, rank 0 has 192");
        differ_is(r, (enum kind)kind, usual, (struct differs){FCC_F32, s, 0, 16, 8},
                  "the sum: rank %d has 0 elements at a time, rank 0 has 192");
        differ_is(r, (enum kind)kind, (struct differs){FCC_F32, s, 1, 16, 8}, (struct differs){FCC_F32, s, 0, 16, 8},
                  "the sum: rank %d has 0 elements at a time, rank 0 has 16");
        differ_is(r, (enum kind)kind, usual, (struct differs){FCC_F32, s, 16, 12, 8},
                  kind == SUM ? "c: rank %d has other numbers of rows, or of their elements, than rank 0"
                              : "rows, a, c: rank %d has other numbers of rows, or of their elements, than rank 0");
        differ_is(r, (enum kind)kind, large, usual,
                  "the sum: rank %d has 192 elements at a time, rank 0 has "); /* several runs, and one */
    }
    differ_is(r, GATHER, usual, (struct differs){FCC_F32, s, 12, 16, 9},
              "the whole a: rank %d has 108 elements, rank 0 has 96");
    differ_is(r, GATHER, usual, (struct differs){FCC_F32, s, 24, 16, 4},
              "a, c: rank %d has other numbers of rows, or of their elements, than rank 0");
}

/* The rows of the ranks, of as many altogether. */
static void rows_differ(const struct rank *r, uint32_t schedule)
{
    const bool last = r->rank == r->n - 1;

    for (enum kind kind = SCATTER; kind < KINDS; kind++) {
        struct piece_case c = piece_of(r, kind, FCC_F32, 12, 16);
        c.schedule = schedule;
        c.rows[r->n - 1] += last;
        c.rows[0] -= last;
        differs_is(r, kind, piece_enqueue(r, &c, NULL),
                   kind == SCATTER ? "rows, a, c: rank %d has other numbers of rows, or of their elements, than rank 0"
                   : r->n == PAIR  ? "a, c: rank %d has other numbers of rows, or of their elements, than rank 0"
                                   : "a: the ranks' have 104 elements together, c's rows need 96");
    }
}

/* A refusal of what others do in several runs is one run. */
static void refused(const struct rank *r)
{
    for (int kind = 0; kind < KINDS; kind++) {
        struct piece_case c = piece_of(r, (enum kind)kind, FCC_F32, kind == GATHER ? 30 : 9000, kind == GATHER ? 16 : 1024);
        c.schedule = FCC_SCHEDULE_SEQUENTIAL;
        c.gap[PART_Y] = r->rank;
        if (r->rank == r->n - 1)
            OK(fcc_refuse_enqueue(r->comm, kind_names[kind], "not today", r->stream));
        else
            OK(piece_enqueue(r, &c, NULL));
        stream_sync(r->stream);
        if (r->rank == r->n - 1)
            OK(fcc_comm_error(r->comm));
        else
            FAILS(fcc_comm_error(r->comm), -EINVAL, kind_names[kind], ": not today");
        c = piece_of(r, (enum kind)kind, FCC_F16, 12, 17);
        piece_works(r, &c, kind);
    }
}

static void operators_differ_in(const struct rank *r, uint32_t schedule)
{
    char text[120];

    for (int kind = 0; kind < KINDS; kind++) {
        struct piece_case c = piece_of(r, (enum kind)((kind + (r->rank == r->n - 1)) % KINDS), FCC_F32, 12, 16);
        c.schedule = schedule;
        (void)snprintf(text, sizeof(text), "rank %d called %s of f32, rank %s", r->n - 1, kind_names[(kind + 1) % KINDS],
                       r->n == PAIR ? "0 called " : "");
        piece_error_is(r, piece_enqueue(r, &c, NULL), text);
    }
}

static void differ_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;
    fcc_context *context = pieces_open(&r, rank, all, 0);

    (void)argument;
    OK(fcc_products_prepare(r.comm));
    if (r.n == PAIR) {
        differ_in_pieces(&r);
        rows_differ(&r, FCC_SCHEDULE_FUSED);
    }
    differ_in_sequence(&r);
    rows_differ(&r, FCC_SCHEDULE_SEQUENTIAL);
    operators_differ_in(&r, FCC_SCHEDULE_FUSED);
    operators_differ_in(&r, FCC_SCHEDULE_SEQUENTIAL);
    refused(&r);
    pieces_close(&r, context);
}

static void differ(void)
{
    fake_ranks_run(PAIR, differ_rank, NULL);
}

static void differ_of_three(void)
{
    fake_ranks_run(GPUS, differ_rank, NULL);
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {{"wrong_arguments", wrong_arguments, 300},
                                        {"wrong_arguments_of_three", wrong_arguments_of_three, 300},
                                        {"not_launched", not_launched, 200},
                                        {"wrong_wish", wrong_wish, 60},
                                        {"differ", differ, 300},
                                        {"differ_of_three", differ_of_three, 300}};

    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_pieces_errors", TESTS(tests));
}
