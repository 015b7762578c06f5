/* SPDX-License-Identifier: MIT
 *
 * example_ring.c - a matrix product whose results are reduced and scattered while they are made, by a BLAS that knows nothing of it: T3's
 * ring (arXiv 2401.16677). Rank r ends with its rows of the sum over all ranks of A . B, each rank with its own columns of A and rows of B.
 *
 * The sums travel around the ring. Rank r makes the rows of rank r - 1 first, those of r - 2 next, and its own last; so each product is
 * computed onto what the rank before has sent of the same rows (beta = 1). An output map lays the rows where the products go: the first ones
 * straight into the next rank's memory, the others onto what arrives. Rules send each finished product on.
 *
 *     cc example_ring.c $(pkg-config --cflags --libs libfccclient openblas) && ./a.out
 */
#include <cblas.h>
#include <fccclient.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define OK(call) ((call) ? (fprintf(stderr, "%s\n", fcc_last_error()), exit(1)) : (void)0)

enum { RANKS = 3, ROWS = 64 /* of each rank */, N = 256, K = 96 /* of each rank */, RUNS = 20 };
#define PART ((size_t)ROWS * N * sizeof(float)) /* bytes of a rank's rows: whole pages */

/* Of each slot: come: the last run whose sums are there, of the rank before. used: the last run that is used up in the next rank's slot. */
struct words {
    uint64_t come[RANKS - 1], used[RANKS - 1];
};

static float a_of(int rank, int row, int k, int run)
{
    return (float)((row * 7 + k * 3 + rank + run) % 5 - 2);
}

static float b_of(int rank, int k, int n)
{
    return (float)((k * 5 + n + rank * 2) % 7 - 3);
}

/* What the rules of a rank work on. */
struct ring {
    fcc_comm *comm;
    fcc_tracker *tracker;
    fcc_buffer *slots, *words; /* [RANKS - 1] parts; struct words */
    int rank, next, before;
    uint32_t send[RANKS - 1], used[RANKS - 1]; /* rules, by the slot that they send into, or that they are about */
};

/* A rule has sent what was in its slot: the rank before may fill it again. */
struct sent {
    struct ring *ring;
    int slot;
};

static void slot_is_free(void *argument, uint64_t run)
{
    struct sent *s = argument;

    (void)run;
    OK(fcc_tracker_add(s->ring->tracker, s->ring->used[s->slot], 1));
}

/* Slot s of the next rank gets what is in this rank's slot s - 1; slot 0 gets this rank's first product through the map. */
static void rules_make(struct ring *g, struct sent sent[])
{
    for (int s = 0; s < RANKS - 1; s++) {
        struct fcc_rule used = {.name = "used",
                                .count = 1,
                                .rank = g->before,
                                .signals = g->words,
                                .signal_offset = offsetof(struct words, used) + (uint64_t)s * 8};
        struct fcc_rule send = {.name = "send",
                                .count = 1,
                                .rank = g->next,
                                .signals = g->words,
                                .signal_offset = offsetof(struct words, come) + (uint64_t)s * 8};
        if (s > 0) {
            sent[s] = (struct sent){g, s - 1};
            send.action = FCC_RULE_STORE;
            send.rows = 1;
            send.row_bytes = PART;
            send.from = send.to = g->slots;
            send.from_offset = (uint64_t)(s - 1) * PART;
            send.to_offset = (uint64_t)s * PART;
            send.awaits[0] =
                (struct fcc_rule_await){.buffer = g->words, .offset = offsetof(struct words, used) + (uint64_t)s * 8, .lag = 1};
            send.call = slot_is_free;
            send.argument = &sent[s];
        }
        OK(fcc_tracker_rule(g->tracker, &used, &g->used[s]));
        OK(fcc_tracker_rule(g->tracker, &send, &g->send[s]));
    }
}

/* All rows, in order: those of the rank before lie in the next rank's slot 0, and the others in this rank's slots. */
static fcc_map *map_make(const struct ring *g)
{
    struct fcc_map_piece piece[RANKS];
    fcc_map *map;

    for (int step = 0; step < RANKS; step++) {
        int rows_of = (g->rank - 1 - step + 2 * RANKS) % RANKS;
        piece[step] = (struct fcc_map_piece){.at = (uint64_t)rows_of * PART,
                                             .bytes = PART,
                                             .buffer = g->slots,
                                             .offset = step ? (uint64_t)(step - 1) * PART : 0,
                                             .rank = step ? g->rank : g->next};
    }
    OK(fcc_map_create(g->comm, piece, RANKS, &map));
    return map;
}

static void run_once(const struct ring *g, float *c, const float *a, const float *b, uint64_t run)
{
    const struct words *mine = fcc_buffer_data(g->words);

    for (int step = 0; step < RANKS; step++) {
        int rows_of = (g->rank - 1 - step + 2 * RANKS) % RANKS;
        if (step == 0) /* the next rank has used up what was there */
            OK(fcc_signal_wait(g->comm, &mine->used[0], run - 1, -1));
        else
            OK(fcc_signal_wait(g->comm, &mine->come[step - 1], run, -1));
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, ROWS, N, K, 1, a + (size_t)rows_of * ROWS * K, K, b, N,
                    step ? 1 : 0, c + (size_t)rows_of * ROWS * N, N);
        if (step < RANKS - 1)
            OK(fcc_tracker_add(g->tracker, g->send[step], 1));
    }
}

static int wrong_count(int rank, const float *rows, int run)
{
    int wrong = 0;

    for (int i = 0; i < ROWS; i++)
        for (int n = 0; n < N; n++) {
            double sum = 0;
            for (int r = 0; r < RANKS; r++)
                for (int k = 0; k < K; k++)
                    sum += (double)a_of(r, rank * ROWS + i, k, run) * (double)b_of(r, k, n);
            wrong += rows[i * N + n] != (float)sum; /* small integers: no rounding */
        }
    return wrong;
}

static int run(const struct fcc_unique_id *id, int rank)
{
    static float a[RANKS * ROWS * K], b[K * N];
    struct ring g = {.rank = rank, .next = (rank + 1) % RANKS, .before = (rank + RANKS - 1) % RANKS};
    struct sent sent[RANKS];
    fcc_context *context;
    fcc_map *map;
    int wrong = 0;

    OK(fcc_connect(NULL, &context));
    OK(fcc_comm_init(context, id, RANKS, rank, NULL, &g.comm));
    OK(fcc_buffer_alloc(g.comm, FCC_BUFFER_SYMMETRIC, (RANKS - 1) * PART, &g.slots));
    OK(fcc_buffer_alloc(g.comm, FCC_BUFFER_SYMMETRIC, sizeof(struct words), &g.words));
    OK(fcc_tracker_create(g.comm, &g.tracker));
    rules_make(&g, sent);
    map = map_make(&g);
    for (int i = 0; i < K * N; i++)
        b[i] = b_of(rank, i / N, i % N);
    OK(fcc_noop(g.comm)); /* all have made their rules */

    float *c = fcc_map_data(map);
    for (int n = 1; n <= RUNS; n++) {
        for (int i = 0; i < RANKS * ROWS * K; i++)
            a[i] = a_of(rank, i / K, i % K, n);
        run_once(&g, c, a, b, (uint64_t)n);
        wrong += wrong_count(rank, c + (size_t)rank * ROWS * N, n);
        OK(fcc_tracker_add(g.tracker, g.used[RANKS - 2], 1)); /* the result has been looked at */
    }
    OK(fcc_noop(g.comm));
    printf("rank %d of %d: c[0] = %g, %d of %d wrong in %d runs\n", rank, RANKS, (double)c[(size_t)rank * ROWS * N], wrong,
           RUNS * ROWS * N, RUNS);
    fcc_map_free(map);
    fcc_comm_destroy(g.comm);
    fcc_disconnect(context);
    return wrong != 0;
}

int main(void)
{
    fcc_context *context;
    struct fcc_unique_id id;
    int failed = 0, status;

    OK(fcc_connect(NULL, &context));
    OK(fcc_get_unique_id(context, &id));
    fcc_disconnect(context); /* a child connects anew */
    for (int rank = 0; rank < RANKS; rank++)
        if (fork() == 0)
            return run(&id, rank);
    while (wait(&status) > 0)
        failed |= status;
    return failed != 0;
}
