/* SPDX-License-Identifier: MIT
 *
 * test_early_nodes.c - collectives of one rank on each of two or three nodes, whose data goes with the request before other ranks have come
 * (daemon/worker/nodes/early.c), some all_reduces of them in place. Most rounds are as the other nodes expect; others have another operator, length, root, buffer or place in it, on one
 * rank or on all, so that what came early is dropped. Results are those of the inputs as they were, and what lies beside them stays.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "tests/bed/harness.h"

enum { ROUNDS = 600, LENGTHS = 5, ROOM = 100000 };

/* Elements: a flag alone, one frame's, as many as a node keeps, more. */
static const int64_t lengths[LENGTHS] = {6, 1002, 16386, 32766, 90000};

static int nranks;

enum what { ALL_GATHER, ALL_REDUCE, BROADCAST, GATHER, REDUCE, REDUCE_SCATTER, WHATS };

/* A round, as one rank comes to it. */
struct round {
    enum what what;
    int64_t n, at; /* elements in all; where the result begins */
    int64_t root;
    int in, out;   /* which buffers */
    bool in_place; /* an all_reduce's input lies where its result does */
    int late_us;
};

struct rank_state {
    fcc_comm *comm;
    fcc_buffer *in[2], *out[2];
};

static uint32_t mix(uint32_t round, uint32_t salt)
{
    uint32_t h = (round * 2654435761u) ^ (salt * 40503u);

    h ^= h >> 13;
    h *= 0x5bd1e995u;
    return h ^ h >> 15;
}

/* Blocks of rounds that repeat each other, with strays among them. Both ranks find the same but for what may differ between them. */
static struct round round_of(int number, int rank)
{
    uint32_t block = mix((uint32_t)number / 12, 1), stray = mix((uint32_t)number, 2) % 6 == 0 ? mix((uint32_t)number, 3) : 0;
    struct round r = {
        .what = (enum what)(block % WHATS), .n = lengths[block / WHATS % LENGTHS], .root = (block >> 8) % (uint32_t)nranks};

    if (stray % 5 == 1)
        r.what = (enum what)(stray / 5 % WHATS);
    else if (stray % 5 == 2)
        r.n = lengths[stray / 5 % LENGTHS];
    else if (stray % 5 == 3)
        r.root = (r.root + 1) % nranks;
    if (stray % 3 == 1 && (int)(stray / 15 % (uint32_t)nranks) == rank) { /* of one rank only */
        r.in = 1;
        r.out = (int)(stray >> 16 & 1);
        r.at = stray >> 17 & 1 ? 16 : 0;
    }
    r.in_place = r.what == ALL_REDUCE && block >> 16 & 1 && (block >> 17 & 1 || rank == 0);
    r.late_us = (int)(mix((uint32_t)number, 4 + (uint32_t)rank) % 8 ? 0 : 300);
    return r;
}

/* Whole numbers, whose sums are exact. */
static float value_of(int round, int rank, int64_t i)
{
    return (float)((round * 7 + rank * 3 + i) % 251 + 1);
}

static int64_t input_length(const struct round *r, int rank)
{
    return r->what == ALL_GATHER || r->what == GATHER ? r->n / nranks : r->what == BROADCAST && r->root != rank ? 0 : r->n;
}

static int run(const struct rank_state *s, const struct round *r, int rank, int64_t n)
{
    static const struct fcc_tensor none;
    struct fcc_tensor in = fcc_tensor_1d(s->in[r->in], 0, FCC_F32, r->what == ALL_GATHER || r->what == GATHER ? n / nranks : n);
    struct fcc_tensor out =
        fcc_tensor_1d(s->out[r->out], (uint64_t)r->at * sizeof(float), FCC_F32, r->what == REDUCE_SCATTER ? n / nranks : n);

    if (r->in_place)
        in = out;
    switch (r->what) {
    case ALL_GATHER:
        return fcc_all_gather(s->comm, &(struct fcc_all_gather_args){.in = in, .out = out});
    case ALL_REDUCE:
        return fcc_all_reduce(s->comm, &(struct fcc_all_reduce_args){.in = in, .out = out});
    case BROADCAST:
        return fcc_broadcast(s->comm,
                             &(struct fcc_broadcast_args){.in = r->root == rank ? in : none, .out = out, .root = r->root});
    case REDUCE:
        return fcc_reduce(s->comm, &(struct fcc_reduce_args){.in = in, .out = r->root == rank ? out : none, .root = r->root});
    case REDUCE_SCATTER:
        return fcc_reduce_scatter(s->comm, &(struct fcc_reduce_scatter_args){.in = in, .out = out});
    default:
        return fcc_gather(s->comm, &(struct fcc_gather_args){.in = in, .out = r->root == rank ? out : none, .root = r->root});
    }
}

static float sum_of(int number, int64_t i)
{
    float sum = 0;

    for (int rank = 0; rank < nranks; rank++)
        sum += value_of(number, rank, i);
    return sum;
}

static float expected(const struct round *r, int number, int rank, int64_t i)
{
    int64_t part = r->n / nranks;

    switch (r->what) {
    case ALL_REDUCE:
    case REDUCE:
        return sum_of(number, i);
    case REDUCE_SCATTER:
        return sum_of(number, rank * part + i);
    case BROADCAST:
        return value_of(number, (int)r->root, i);
    default:
        return value_of(number, (int)(i / part), i % part);
    }
}

static void result_check(const struct rank_state *s, const struct round *r, int number, int rank)
{
    bool has_result = (r->what != GATHER && r->what != REDUCE) || r->root == rank;
    int64_t length = r->what == REDUCE_SCATTER ? r->n / nranks : r->n;

    for (int b = 0; b < 2; b++) {
        const float *out = fcc_buffer_data(s->out[b]);
        for (int64_t i = 0; i < ROOM; i++) {
            bool is_result = has_result && b == r->out && i >= r->at && i < r->at + length;
            float should = is_result ? expected(r, number, rank, i - r->at) : -1;
            if (out[i] != should)
                check_failed(__FILE__, __LINE__, "rank %d, round %d (%d of %lld): out[%d][%lld] is %g, expected %g", rank,
                             number, r->what, (long long)r->n, b, (long long)i, (double)out[i], (double)should);
        }
    }
}

static void state_open(struct rank_state *s, const struct ranks *all, int rank)
{
    s->comm = comm_open(all, rank, 0);
    for (int b = 0; b < 2; b++) {
        OK(fcc_buffer_alloc(s->comm, FCC_BUFFER_LOCAL, ROOM * sizeof(float), &s->in[b]));
        OK(fcc_buffer_alloc(s->comm, FCC_BUFFER_RESULT, ROOM * sizeof(float), &s->out[b]));
    }
}

static void state_close(const struct rank_state *s)
{
    fcc_comm_destroy(s->comm);
    fcc_disconnect(comm_context());
}

static void input_fill(const struct rank_state *s, const struct round *r, int number, int rank)
{
    float *in = fcc_buffer_data(s->in[r->in]);

    for (int b = 0; b < 2; b++) {
        float *out = fcc_buffer_data(s->out[b]);
        for (int64_t i = 0; i < ROOM; i++)
            out[i] = -1;
    }
    if (r->in_place)
        in = (float *)fcc_buffer_data(s->out[r->out]) + r->at;
    for (int64_t i = 0; i < input_length(r, rank); i++)
        in[i] = value_of(number, rank, i);
}

static void on_nodes(void (*of_rank)(int rank, const struct ranks *all, void *argument))
{
    for (nranks = 2; nranks <= 3; nranks++) {
        struct test_daemon d;
        struct ranks r;
        daemons_start(&d, nranks, NULL);
        ranks_start(&r, nranks, of_rank, NULL);
        ranks_join(&r);
        daemon_stop(&d);
    }
}

/* A barrier comes before each round, as inputs and results are filled in by then. */
static void rounds_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank_state s;

    (void)argument;
    state_open(&s, all, rank);
    for (int number = 0; number < ROUNDS; number++) {
        const struct round r = round_of(number, rank);
        input_fill(&s, &r, number, rank);
        OK(fcc_noop(s.comm));
        if (r.late_us)
            (void)usleep((useconds_t)r.late_us);
        OK(run(&s, &r, rank, r.n));
        result_check(&s, &r, number, rank);
    }
    state_close(&s);
}

static void rounds(void)
{
    on_nodes(rounds_rank);
}

/* Without anything between: a rank that has no result to wait for is a turn ahead. */
static void ahead_rank(int rank, const struct ranks *all, void *argument)
{
    struct round r = {.what = GATHER, .n = 16386, .root = 0};
    struct rank_state s;

    (void)argument;
    state_open(&s, all, rank);
    for (int number = 0; number < ROUNDS; number++) {
        r.what = number / 50 % 2 ? REDUCE : GATHER;
        r.root = number / 100 % nranks;
        input_fill(&s, &r, number, rank);
        if (rank == r.root && number % 16 == 0)
            (void)usleep(500);
        OK(run(&s, &r, rank, r.n));
        result_check(&s, &r, number, rank);
    }
    state_close(&s);
}

static void ahead(void)
{
    on_nodes(ahead_rank);
}

/* Every few rounds the ranks do not fit together: both hear of it, nothing is stored, and the communicator goes on. */
static void apart_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank_state s;

    (void)argument;
    state_open(&s, all, rank);
    for (int number = 0; number < ROUNDS / 3; number++) {
        struct round r = {
            .what = (enum what)(number / 20 % WHATS), .n = lengths[1 + number / 20 % 3], .root = number / 40 % nranks};
        bool apart = number % 5 == 4;
        input_fill(&s, &r, number, rank);
        OK(fcc_noop(s.comm));
        if (number % 7 == rank)
            (void)usleep(300);
        int status = run(&s, &r, rank, apart && rank ? r.n - nranks : r.n);
        if (apart)
            CHECK(status == -EINVAL && strstr(fcc_last_error(), "rank"));
        else
            OK(status);
        if (!apart)
            result_check(&s, &r, number, rank);
    }
    state_close(&s);
}

static void apart(void)
{
    on_nodes(apart_rank);
}

int main(void)
{
    static const struct test tests[] = {{"rounds", rounds, 120}, {"ahead", ahead, 120}, {"apart", apart, 0}};

    return tests_run("early_nodes", TESTS(tests));
}
