/* SPDX-License-Identifier: MIT
 *
 * test_early.c - small operators whose products begin before all ranks have come (launch_early.c): the last rank comes late, with what
 * the first ones expected, or with something else; and what these come with changes, too. Results are those of the inputs as they were
 * when the operator was called.
 */
#include <errno.h>
#include <json-c/json.h>
#include <unistd.h>

#include "harness.h"
#include "program.h"

enum { RANKS = 3, N = 256, K = 256, ROUNDS = 60, LATE_US = 3000 };

/* How a round differs from the plain one. */
enum how { PLAIN, OTHER_X, SHORTER, TOO_SHORT, NOTHING, NOTHING_FITS, HOWS };

struct turns {
    _Atomic uint32_t early; /* by a bit for each schedule: an operator has begun early, as was seen */
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

/* The last rank's arguments do not fit the others' where it is to be an error: then they expect that. */
static void round_run(const struct rank_state *s, int round, struct turns *turns)
{
    enum how how = how_of(round);
    int which = how == OTHER_X, k = how == SHORTER ? K / 2 : K;
    bool last = s->rank == RANKS - 1;
    struct fcc_gemv_all_reduce_args args = {.x = fcc_tensor_2d(s->x[which], 0, FCC_F32, 1, k),
                                            .w = fcc_tensor_2d(s->w, 0, FCC_F32, N, k),
                                            .y = fcc_tensor_2d(s->y, 0, FCC_F32, 1, N),
                                            .schedule = schedule_of(round)};
    uint32_t bit = UINT32_C(1) << args.schedule;
    fcc_request *request;
    bool fails = how == TOO_SHORT || how == NOTHING_FITS;

    args.w.stride[0] = K;
    args.w.stride[1] = 1;
    x_fill(s, which, x_of(round, which, s->rank));
    if (last) {
        while (turns->submitted < (round + 1) * (RANKS - 1))
            nap();
        (void)usleep(LATE_US);
        if (fails)
            args.y.shape[1] = args.w.shape[0] = N - 1;
    }
    if (how == NOTHING || (how == NOTHING_FITS && last))
        OK(fcc_noop_start(s->comm, &request));
    else
        OK(fcc_gemv_all_reduce_start(s->comm, &args, &request));
    turns->submitted += !last;
    int status = fcc_request_wait(request, -1);
    fcc_request_free(request);
    if (fails)
        CHECK(status == -EINVAL);
    else
        OK(status);
    if (!fails && how != NOTHING)
        result_check(s, round, which, k);
    if (round % 3 == 1 && s->rank == 0 && !(turns->early & bit) && was_early())
        turns->early |= bit;
    OK(fcc_noop(s->comm)); /* nobody's x changes before that */
}

static void turns_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank_state s = {.rank = rank, .comm = comm_open(all, rank, 0)};
    static float w[N * K];

    for (int i = 0; i < N * K; i++)
        w[i] = w_of(i / K);
    OK(fcc_buffer_alloc(s.comm, FCC_BUFFER_LOCAL, K * sizeof(float), &s.x[0]));
    OK(fcc_buffer_alloc(s.comm, FCC_BUFFER_LOCAL, K * sizeof(float), &s.x[1]));
    OK(fcc_buffer_alloc(s.comm, FCC_BUFFER_LOCAL, sizeof(w), &s.w));
    OK(fcc_buffer_alloc(s.comm, FCC_BUFFER_SYMMETRIC, N * sizeof(float), &s.y));
    OK(fcc_buffer_write(s.w, 0, w, sizeof(w)));
    for (int round = 0; round < ROUNDS; round++)
        round_run(&s, round, argument);
    fcc_comm_destroy(s.comm);
    fcc_disconnect(comm_context());
}

/* Without spinning there are no helpers, so the engine computes, on machines with many cores, too. */
static const char *const unaided[] = {"--spin-us", "0", NULL};

static void late(void)
{
    struct turns *turns = shared_memory(sizeof(*turns));
    struct test_daemon d;
    struct ranks r;

    daemon_start(&d, unaided);
    ranks_start(&r, RANKS, turns_rank, turns);
    ranks_join(&r);
    CHECK(turns->early == (1u << FCC_SCHEDULE_AUTO | 1u << FCC_SCHEDULE_FUSED | 1u << FCC_SCHEDULE_SEQUENTIAL));
    daemon_stop(&d);
}

int main(void)
{
    static const struct test tests[] = {{"late", late, 0}};

    return tests_run("early", TESTS(tests));
}
