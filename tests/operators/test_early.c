/* SPDX-License-Identifier: MIT
 *
 * test_early.c - small operators whose products begin before all ranks have come (daemon/worker/comm/early.c): the last rank comes late, with what
 * the first ones expected, or with something else; and what these come with changes, too. Results are those of the inputs as they were
 * when the operator was called.
 */
#include <errno.h>
#include <json-c/json.h>
#include <unistd.h>

#include "tests/bed/harness.h"
#include "tests/bed/program.h"

enum { RANKS = 3, N = 256, K = 256, ROUNDS = 60, LATE_US = 3000 };

/* How a round differs from the plain one. */
enum how { PLAIN, OTHER_X, SHORTER, TOO_SHORT, NOTHING, NOTHING_FITS, HOWS };

struct turns {
    _Atomic uint32_t early; /* by early_bit(): an operator has begun early, as was seen */
    _Atomic int submitted;  /* rounds that all ranks but the last have submitted, each counted once for each of them */
};

struct rank_state {
    int rank;
    fcc_comm *comm;
    fcc_buffer *x[2], *w, *y;
};

/* Of a round: whole numbers, small enough for their sums to be exact. */
static float x_of(int round, int which, int rank)
{
    return (float)(round % 5 + 2 * which + rank + 1);
}

static float w_of(int row)
{
    return (float)(row % 7 + 1);
}

static enum how how_of(int round)
{
    return round % 3 < 2 ? PLAIN : (enum how)(round / 3 % HOWS);
}

/* Another one with every round, as a benchmark does it. */
static enum fcc_schedule_kind schedule_of(int round)
{
    static const enum fcc_schedule_kind kinds[] = {FCC_SCHEDULE_AUTO, FCC_SCHEDULE_FUSED, FCC_SCHEDULE_SEQUENTIAL};

    return kinds[(round + round / 3) % 3];
}

static uint32_t early_bit(enum fcc_schedule_kind schedule, bool counts)
{
    return UINT32_C(1) << (2 * schedule + counts);
}

/* A bit for each schedule. */
static uint32_t early_all(bool counts)
{
    return early_bit(FCC_SCHEDULE_AUTO, counts) | early_bit(FCC_SCHEDULE_FUSED, counts) |
           early_bit(FCC_SCHEDULE_SEQUENTIAL, counts);
}

static void x_fill(const struct rank_state *s, int which, float value)
{
    float x[K];

    for (int i = 0; i < K; i++)
        x[i] = value;
    OK(fcc_buffer_write(s->x[which], 0, x, sizeof(x)));
}

static void result_check(const struct rank_state *s, int round, int which, int k)
{
    float y[N], sum = 0;

    OK(fcc_buffer_read(s->y, 0, y, sizeof(y)));
    for (int r = 0; r < RANKS; r++)
        sum += x_of(round, which, r);
    for (int i = 0; i < N; i++)
        if (y[i] != sum * w_of(i) * (float)k)
            check_failed(__FILE__, __LINE__, "rank %d, round %d: y[%d] is %g, expected %g", s->rank, round, i, (double)y[i],
                         (double)(sum * w_of(i) * (float)k));
}

/* An operator's time begins with its first slice. Was that before the last rank had come? (On a busy machine the worker may have seen the
 * first rank no sooner.) */
static bool was_early(void)
{
    static char text[1 << 20];
    struct json_object *duration;

    CHECK(program_run(text, sizeof(text), fccctl_binary(), (const char *const[]){"trace", "--json", NULL}) == 0);
    struct json_object *o = json_tokener_parse(text);
    CHECK(o && json_object_object_get_ex(o, "duration_ns", &duration));
    int64_t ns = json_object_get_int64(duration);
    printf("an operator whose last rank came %d us late took %lld us\n", LATE_US, (long long)ns / 1000);
    (void)json_object_put(o);
    return ns > LATE_US * 500;
}

/* The last rank comes late. */
static void others_await(const struct turns *turns, int round)
{
    while (turns->submitted < (round + 1) * (RANKS - 1))
        nap();
    (void)usleep(LATE_US);
}

static void request_end(fcc_request *request, bool fails)
{
    int status = fcc_request_wait(request, -1);

    fcc_request_free(request);
    if (fails)
        CHECK(status == -EINVAL);
    else
        OK(status);
}

/* The same by gemm_all_reduce, whose ranks add in any order to what is there: also then a wrong guess leaves nothing behind. */
static bool in_any_order;

static int sum_start(const struct rank_state *s, const struct fcc_gemv_all_reduce_args *args, fcc_request **out)
{
    const int64_t n = args->w.shape[0], k = args->w.shape[1];
    struct fcc_gemm_all_reduce_args sum = {.a = args->x,
                                           .b = fcc_tensor_2d(s->w, 0, FCC_F32, k, n),
                                           .c = args->y,
                                           .schedule = args->schedule | FCC_SCHEDULE_ANY_ORDER};

    sum.b.stride[0] = N;
    sum.b.stride[1] = 1;
    return in_any_order ? fcc_gemm_all_reduce_start(s->comm, &sum, out) : fcc_gemv_all_reduce_start(s->comm, args, out);
}

static void early_note(struct turns *turns, const struct rank_state *s, int round, uint32_t bit)
{
    if (round % 3 == 1 && s->rank == 0 && !(turns->early & bit) && was_early())
        turns->early |= bit;
}

/* The last rank's arguments do not fit the others' where it is to be an error: then they expect that. */
static void gemv_round_run(const struct rank_state *s, int round, struct turns *turns)
{
    enum how how = how_of(round);
    int which = how == OTHER_X, k = how == SHORTER ? K / 2 : K;
    bool last = s->rank == RANKS - 1;
    struct fcc_gemv_all_reduce_args args = {.x = fcc_tensor_2d(s->x[which], 0, FCC_F32, 1, k),
                                            .w = fcc_tensor_2d(s->w, 0, FCC_F32, N, k),
                                            .y = fcc_tensor_2d(s->y, 0, FCC_F32, 1, N),
                                            .schedule = schedule_of(round)};
    uint32_t bit = early_bit(args.schedule, false);
    fcc_request *request;
    bool fails = how == TOO_SHORT || how == NOTHING_FITS;

    args.w.stride[0] = K;
    args.w.stride[1] = 1;
    x_fill(s, which, x_of(round, which, s->rank));
    if (last) {
        others_await(turns, round);
        if (fails)
            args.y.shape[1] = args.w.shape[0] = N - 1;
    }
    if (how == NOTHING || (how == NOTHING_FITS && last))
        OK(fcc_noop_start(s->comm, &request));
    else
        OK(sum_start(s, &args, &request));
    turns->submitted += !last;
    request_end(request, fails);
    if (!fails && how != NOTHING)
        result_check(s, round, which, k);
    early_note(turns, s, round, bit);
    OK(fcc_noop(s->comm)); /* nobody's x changes before that */
}

static void gemv_turns_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank_state s = {.rank = rank, .comm = comm_open(all, rank, 0)};
    static float w[N * K];

    for (int i = 0; i < N * K; i++)
        w[i] = w_of(in_any_order ? i % N : i / K);
    OK(fcc_buffer_alloc(s.comm, FCC_BUFFER_LOCAL, K * sizeof(float), &s.x[0]));
    OK(fcc_buffer_alloc(s.comm, FCC_BUFFER_LOCAL, K * sizeof(float), &s.x[1]));
    OK(fcc_buffer_alloc(s.comm, FCC_BUFFER_LOCAL, sizeof(w), &s.w));
    OK(fcc_buffer_alloc(s.comm, FCC_BUFFER_SYMMETRIC, N * sizeof(float), &s.y));
    OK(fcc_buffer_write(s.w, 0, w, sizeof(w)));
    for (int round = 0; round < ROUNDS; round++)
        gemv_round_run(&s, round, argument);
    fcc_comm_destroy(s.comm);
    fcc_disconnect(comm_context());
}

/* ---- gemm: results are other ranks' memory, and stay as they are until their rank comes ---- */

enum { PART = 16, ROWS = RANKS * PART, COLS = 64, DEPTH = 64, MOVED = 5 };
#define UNTOUCHED (-1.0f)

/* How many rows a rank sends to each: all the same, or some less to the next rank and more to the one after. */
static void rows_of(int rank, bool moved, int64_t rows[RANKS])
{
    for (int p = 0; p < RANKS; p++)
        rows[p] = PART;
    if (moved) {
        rows[(rank + 1) % RANKS] -= MOVED;
        rows[(rank + 2) % RANKS] += MOVED;
    }
}

static bool is_moved(enum how how)
{
    return how == SHORTER || how == NOTHING_FITS;
}

static float a_of(int round, int which, int rank, int row)
{
    return (float)(x_of(round, which, rank) + (float)row);
}

static void a_fill(const struct rank_state *s, int round, int which)
{
    static float a[ROWS * DEPTH];

    for (int i = 0; i < ROWS * DEPTH; i++)
        a[i] = a_of(round, which, s->rank, i / DEPTH);
    OK(fcc_buffer_write(s->x[which], 0, a, sizeof(a)));
}

static void c_fill(const struct rank_state *s)
{
    static float c[2 * ROWS * COLS];

    for (int i = 0; i < 2 * ROWS * COLS; i++)
        c[i] = UNTOUCHED;
    OK(fcc_buffer_write(s->y, 0, c, sizeof(c)));
}

/* `round` < 0: nothing has come. */
static void c_check(const struct rank_state *s, int round, int which, enum how how)
{
    static float c[2 * ROWS * COLS];
    int row = 0;

    OK(fcc_buffer_read(s->y, 0, c, sizeof(c)));
    for (int from = 0; from < RANKS && round >= 0; from++) {
        int64_t rows[RANKS];
        int first = 0;
        rows_of(from, is_moved(how), rows);
        for (int p = 0; p < s->rank; p++)
            first += (int)rows[p];
        for (int i = 0; i < rows[s->rank]; i++, row++)
            for (int j = 0; j < COLS; j++) {
                float expected = a_of(round, which, from, first + i) * w_of(j) * DEPTH;
                if (c[row * COLS + j] != expected)
                    check_failed(__FILE__, __LINE__, "rank %d, round %d: c[%d][%d] is %g, expected %g", s->rank, round, row, j,
                                 (double)c[row * COLS + j], (double)expected);
            }
    }
    for (int i = row * COLS; i < 2 * ROWS * COLS; i++)
        CHECK(c[i] == UNTOUCHED);
}

/* SHORTER: other numbers of rows. TOO_SHORT: the last rank's b and c are narrower. */
static void gemm_round_run(const struct rank_state *s, int round, struct turns *turns)
{
    enum how how = how_of(round);
    int which = how == OTHER_X;
    bool last = s->rank == RANKS - 1, fails = how == TOO_SHORT || how == NOTHING_FITS;
    int64_t rows[RANKS];
    struct fcc_gemm_all_to_all_args args = {.a = fcc_tensor_2d(s->x[which], 0, FCC_F32, ROWS, DEPTH),
                                            .b = fcc_tensor_2d(s->w, 0, FCC_F32, DEPTH, COLS),
                                            .c = fcc_tensor_2d(s->y, 0, FCC_F32, 2 * ROWS, COLS),
                                            .send_rows = round % 2 || is_moved(how) ? rows : NULL,
                                            .schedule = schedule_of(round)};
    uint32_t bit = early_bit(args.schedule, args.send_rows != NULL);
    fcc_request *request;

    rows_of(s->rank, is_moved(how), rows);
    a_fill(s, round, which);
    c_fill(s);
    OK(fcc_noop(s->comm)); /* all have */
    if (last) {
        others_await(turns, round);
        c_check(s, -1, 0, how);
        if (fails)
            args.c.shape[1] = args.b.shape[1] = COLS - 1;
    }
    if (how == NOTHING || (how == NOTHING_FITS && last))
        OK(fcc_noop_start(s->comm, &request));
    else
        OK(fcc_gemm_all_to_all_start(s->comm, &args, &request));
    turns->submitted += !last;
    request_end(request, fails);
    c_check(s, fails || how == NOTHING ? -1 : round, which, how);
    early_note(turns, s, round, bit);
    OK(fcc_noop(s->comm)); /* nobody's a changes before that */
}

static void gemm_turns_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank_state s = {.rank = rank, .comm = comm_open(all, rank, 0)};
    static float b[DEPTH * COLS];

    for (int i = 0; i < DEPTH * COLS; i++)
        b[i] = w_of(i % COLS);
    for (int i = 0; i < 2; i++)
        OK(fcc_buffer_alloc(s.comm, FCC_BUFFER_LOCAL, ROWS * DEPTH * sizeof(float), &s.x[i]));
    OK(fcc_buffer_alloc(s.comm, FCC_BUFFER_LOCAL, sizeof(b), &s.w));
    OK(fcc_buffer_alloc(s.comm, FCC_BUFFER_SYMMETRIC, 2 * ROWS * COLS * sizeof(float), &s.y));
    OK(fcc_buffer_write(s.w, 0, b, sizeof(b)));
    for (int round = 0; round < ROUNDS; round++)
        gemm_round_run(&s, round, argument);
    fcc_comm_destroy(s.comm);
    fcc_disconnect(comm_context());
}

/* ---- both ---- */

/* Without spinning there are no helpers, so the engine computes, on machines with many cores, too. */
static const char *const unaided[] = {"--spin-us", "0", NULL};

static void late(void (*rank)(int rank, const struct ranks *all, void *argument), uint32_t early)
{
    struct turns *turns = shared_memory(sizeof(*turns));
    struct test_daemon d;
    struct ranks r;

    daemon_start(&d, unaided);
    ranks_start(&r, RANKS, rank, turns);
    ranks_join(&r);
    CHECK(turns->early == early);
    daemon_stop(&d);
}

static void gemv(void)
{
    late(gemv_turns_rank, early_all(false));
}

static void any_order(void)
{
    in_any_order = true;
    late(gemv_turns_rank, early_all(false));
    in_any_order = false;
}

static void gemm(void)
{
    late(gemm_turns_rank, early_all(false) | early_all(true));
}

int main(void)
{
    static const struct test tests[] = {{"gemv", gemv, 0}, {"gemm", gemm, 0}, {"any_order", any_order, 0}};

    return tests_run("early", TESTS(tests));
}
