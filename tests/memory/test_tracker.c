/* SPDX-License-Identifier: MIT
 *
 * test_tracker.c - rules: what is counted is stored, added and told at the ranks where it belongs, run after run, also when a neighbour is
 * ahead, on one node and between two. What ends them is in test_tracker_ends.c.
 */
#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "kernels/plan/dtype.h"
#include "tests/bed/harness.h"

#define RANKS 3
#define RUNS 400

static fcc_buffer *buffer_new(fcc_comm *comm, enum fcc_buffer_kind kind, size_t bytes)
{
    fcc_buffer *b;

    OK(fcc_buffer_alloc(comm, kind, bytes, &b));
    return b;
}

static void leave(fcc_comm *comm)
{
    OK(fcc_noop(comm));
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

/* ---- around a ring, with strides; the receiver says what it has used ---- */

enum { ROWS = 7, COLS = 33, FROM_COLS = 40, TO_COLS = 36 };
struct ring_words {
    uint64_t come, used; /* from the rank before; from the rank behind */
};
#define TO_BYTES ((size_t)ROWS * TO_COLS * 4)

static void ring_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comm = comm_open(all, rank, 0);
    const bool far = argument != NULL; /* each rank's neighbours are on another node: rows have the same stride at both ends */
    const int to = (rank + 1) % all->n, from = (rank + all->n - 1) % all->n, cols = far ? FROM_COLS : TO_COLS;
    fcc_buffer *source = buffer_new(comm, FCC_BUFFER_LOCAL, (size_t)ROWS * FROM_COLS * 4),
               *place = buffer_new(comm, FCC_BUFFER_SYMMETRIC, (size_t)ROWS * FROM_COLS * 4),
               *words = buffer_new(comm, FCC_BUFFER_SYMMETRIC, sizeof(struct ring_words));
    const struct ring_words *mine = fcc_buffer_data(words);
    uint32_t *out = fcc_buffer_data(source);
    const uint32_t *in = fcc_buffer_data(place);
    struct fcc_rule send = {.name = "send",
                            .count = ROWS,
                            .action = FCC_RULE_STORE,
                            .rank = to,
                            .rows = ROWS,
                            .row_bytes = COLS * 4,
                            .from_stride = FROM_COLS * 4,
                            .to_stride = (uint64_t)cols * 4,
                            .from = source,
                            .to = place,
                            .signals = words,
                            .signal_offset = offsetof(struct ring_words, come),
                            .awaits = {{.buffer = words, .offset = offsetof(struct ring_words, used), .lag = 1}}},
                    use = {.name = "used",
                           .count = 1,
                           .rank = from,
                           .signals = words,
                           .signal_offset = offsetof(struct ring_words, used)};
    uint32_t sent, used, seed = (uint32_t)rank;
    fcc_tracker *t;

    OK(fcc_tracker_create(comm, &t));
    OK(fcc_tracker_rule(t, &send, &sent));
    OK(fcc_tracker_rule(t, &use, &used));
    CHECK(sent == 0 && used == 1);
    OK(fcc_noop(comm));
    for (uint32_t run = 1; run <= RUNS; run++) {
        /* Another node's proxy reads the rows some time after the rule is done: until they have been used there. */
        if (run > 1 && far)
            OK(fcc_signal_wait(comm, &mine->used, run - 1, -1));
        else if (run > 1)
            OK(fcc_tracker_wait(t, sent, run - 1, -1));
        for (int row = 0; row < ROWS; row++) {
            for (int i = 0; i < COLS; i++)
                out[row * FROM_COLS + i] = run << 16 | (uint32_t)rank << 12 | (uint32_t)(row * COLS + i);
            OK(fcc_tracker_add(t, sent, 1));
        }
        seed = seed * 1664525u + 1013904223u;
        if (seed >> 28 == 0)
            (void)usleep(300); /* the neighbours are ahead now */
        OK(fcc_signal_wait(comm, &mine->come, run, -1));
        for (int row = 0; row < ROWS; row++)
            for (int i = 0; i < COLS; i++)
                CHECK(in[row * cols + i] == (run << 16 | (uint32_t)from << 12 | (uint32_t)(row * COLS + i)));
        for (int i = COLS; i < cols; i++)
            CHECK(in[i] == 0);
        OK(fcc_tracker_add(t, used, 1));
    }
    OK(fcc_tracker_wait(t, used, RUNS, -1));
    OK(fcc_signal_wait(comm, &mine->used, RUNS, -1));
    fcc_tracker_free(t);
    OK(fcc_tracker_create(comm, &t)); /* another one; its end is the communicator's */
    leave(comm);
}

static void goes_around(void)
{
    ranks_run(RANKS, ring_rank, NULL);
}

static void goes_around_alone(void)
{
    ranks_run(1, ring_rank, NULL);
}

static void goes_around_nodes(void)
{
    static int far;
    struct test_daemon d;
    struct ranks r;

    daemons_start(&d, 2, NULL);
    for (int n = 2; n <= 4; n += 2) {
        ranks_start(&r, n, ring_rank, &far);
        ranks_join(&r);
    }
    daemon_stop(&d);
}

/* ---- additions, each behind the one of the rank before ---- */

enum { ELEMENTS = 300000 }; /* more than are moved at a time */
static const enum fcc_dtype dtypes[] = {FCC_F32, FCC_F16, FCC_BF16};
enum { DTYPES = sizeof(dtypes) / sizeof(dtypes[0]) };

static void value_store(void *at, enum fcc_dtype dtype, size_t i, int value)
{
    const float f = (float)value;

    dtype_from_f32((unsigned char *)at + i * fcc_dtype_size(dtype), &f, dtype, 1);
}

static float value_load(const void *at, enum fcc_dtype dtype, size_t i)
{
    float f;

    dtype_to_f32(&f, (const unsigned char *)at + i * fcc_dtype_size(dtype), dtype, 1);
    return f;
}

/* Each rank's rule adds into the sum of the last rank, behind that of the rank before, and raises the word of the rank behind it. */
static void add_rank(int rank, const struct ranks *all, void *argument)
{
    enum { ADD_RUNS = 4 };
    fcc_comm *comm = comm_open(all, rank, 0);
    const int last = all->n - 1;
    fcc_buffer *words = buffer_new(comm, FCC_BUFFER_SYMMETRIC, DTYPES * 8), *source[DTYPES], *sum[DTYPES];
    const uint64_t *mine = fcc_buffer_data(words);
    uint32_t number[DTYPES];
    fcc_tracker *t;

    (void)argument;
    OK(fcc_tracker_create(comm, &t));
    for (int d = 0; d < DTYPES; d++) {
        const size_t bytes = ELEMENTS * fcc_dtype_size(dtypes[d]);
        source[d] = buffer_new(comm, FCC_BUFFER_LOCAL, bytes);
        sum[d] = buffer_new(comm, FCC_BUFFER_SYMMETRIC, bytes);
        for (size_t i = 0; i < ELEMENTS; i++)
            value_store(fcc_buffer_data(source[d]), dtypes[d], i, (int)(i % 5) + rank);
        const struct fcc_rule rule = {.name = "sum",
                                      .count = 1,
                                      .action = FCC_RULE_ADD,
                                      .dtype = dtypes[d],
                                      .rank = last,
                                      .rows = 1,
                                      .row_bytes = bytes,
                                      .from = source[d],
                                      .to = sum[d],
                                      .awaits = {{.buffer = rank ? words : NULL, .offset = (uint64_t)d * 8}}};
        OK(fcc_tracker_rule(t, &rule, &number[d]));
        /* What a rule adds to is the last rank's; the word behind it is the next rank's, or of the last rank its own. */
        const struct fcc_rule tell = {
            .count = 1, .rank = rank < last ? rank + 1 : rank, .signals = words, .signal_offset = (uint64_t)d * 8};
        if (rank < last) {
            uint32_t told;
            OK(fcc_tracker_rule(t, &tell, &told));
        }
    }
    OK(fcc_noop(comm));
    for (uint64_t run = 1; run <= ADD_RUNS; run++)
        for (int d = 0; d < DTYPES; d++) {
            OK(fcc_tracker_add(t, number[d], 1));
            OK(fcc_tracker_wait(t, number[d], run, -1));
            if (rank < last)
                OK(fcc_tracker_add(t, number[d] + 1, 1));
            OK(fcc_noop(comm));
            CHECK(rank == 0 || mine[d] == run);
            for (size_t i = 0; i < ELEMENTS && rank == last; i++) {
                const int each = (int)(i % 5) * all->n + all->n * (all->n - 1) / 2;
                const float want = (float)run * (float)each;
                CHECK(value_load(fcc_buffer_data(sum[d]), dtypes[d], i) == want);
            }
            OK(fcc_noop(comm));
        }
    leave(comm);
}

static void adds_in_order(void)
{
    ranks_run(RANKS, add_rank, NULL);
}

/* ---- who counts, and who is called ---- */

enum { THREADS = 4, EACH = 5000, UNIT = 50 };
struct crowd {
    fcc_tracker *t;
    uint32_t rule;
    uint64_t *count; /* NULL: by calls */
    _Atomic uint64_t called;
    _Atomic int wrong;
};

static void *crowd_count(void *argument)
{
    struct crowd *c = argument;

    for (int i = 0; i < EACH; i++)
        if (c->count)
            (void)__atomic_fetch_add(c->count, 1, __ATOMIC_RELEASE);
        else
            OK(fcc_tracker_add(c->t, c->rule, 1));
    return NULL;
}

static void crowd_called(void *argument, uint64_t run)
{
    struct crowd *c = argument;

    c->wrong += run != c->called + 1;
    c->called = run;
}

static void crowd_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comm = comm_open(all, rank, 0);
    pthread_t thread[THREADS];

    (void)argument;
    for (int way = 0; way < 2; way++) {
        struct crowd c = {.count = NULL};
        const struct fcc_rule rule = {.name = "crowd", .count = UNIT, .call = crowd_called, .argument = &c};
        OK(fcc_tracker_create(comm, &c.t));
        FAILS(fcc_tracker_create(comm, &c.t), -EALREADY, "has one");
        OK(fcc_tracker_rule(c.t, &rule, &c.rule));
        if (way)
            CHECK((c.count = fcc_tracker_count(c.t, c.rule)) != NULL);
        CHECK(!fcc_tracker_count(c.t, c.rule + 1));
        for (int i = 0; i < THREADS; i++)
            CHECK(pthread_create(&thread[i], NULL, crowd_count, &c) == 0);
        OK(fcc_tracker_wait(c.t, c.rule, 1, -1));
        for (int i = 0; i < THREADS; i++)
            CHECK(pthread_join(thread[i], NULL) == 0);
        OK(fcc_tracker_wait(c.t, c.rule, THREADS * EACH / UNIT, -1));
        FAILS(fcc_tracker_wait(c.t, c.rule, THREADS * EACH / UNIT + 1, 20), -EAGAIN, "not done yet");
        FAILS(fcc_tracker_wait(c.t, c.rule, THREADS * EACH / UNIT + 1, 0), -EAGAIN, "not done yet");
        for (double until = await_end(); c.called < THREADS * EACH / UNIT;)
            AWAITING(until);
        fcc_tracker_free(c.t);
        CHECK(c.wrong == 0 && c.called == THREADS * EACH / UNIT);
    }
    leave(comm);
}

static void counts_a_crowd(void)
{
    ranks_run(2, crowd_rank, NULL);
}

int main(void)
{
    const struct test tests[] = {
        {"goes_around", goes_around, 60},
        {"goes_around_alone", goes_around_alone, 0},
        {"goes_around_nodes", goes_around_nodes, 60},
        {"adds_in_order", adds_in_order, 60},
        {"counts_a_crowd", counts_a_crowd, 60},
    };

    return tests_run("tracker", TESTS(tests));
}
