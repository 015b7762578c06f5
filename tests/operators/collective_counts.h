/* SPDX-License-Identifier: MIT
 *
 * collective_counts.h - all_to_all with counts in memory of the GPU, which the ranks launch themselves (collective_bed.h, `move`): there and
 * back in one graph, as experts do with tokens, replayed with other counts each time, some of them wrong; and what is refused.
 */
#ifndef FCC_TEST_COLLECTIVE_COUNTS_H
#define FCC_TEST_COLLECTIVE_COUNTS_H

#include "tests/operators/collective_errors.h"

/* In a rank's memories, beside the vectors: bytes. */
enum {
    COUNTS_BACK = ROOM / 2,   /* in results: what has come back */
    COUNTS_SENT = ROOM - 512, /* in inputs: rows for each rank */
    COUNTS_CAME = ROOM - 512, /* in results: rows from each rank */
    COUNTS_RETURNED = ROOM - 256,
    COUNTS_ROW = 3 /* elements */
};

static inline int64_t *counts_image(const struct rank *r, int which, uint64_t at)
{
    return (int64_t *)(void *)(r->images[which] + at);
}

/* Rows of `source` for `destination` in round `round`, of so many: none, few, or all that may be. */
static inline int64_t counts_of(const struct rank *r, int round, int source, int destination, int64_t rows)
{
    const int64_t most = rows / r->n;

    switch ((round + 2 * source + 3 * destination) % 5) {
    case 0:
        return 0;
    case 1:
        return most;
    default:
        return (int64_t)(round * 31 + source * 17 + destination * 7) % (most < 50 ? most : 50);
    }
}

static inline struct fcc_all_to_all_args counts_there(const struct rank *r, int64_t elements)
{
    return (struct fcc_all_to_all_args){
        .in = vector_at(r, 0, 0, FCC_I32, elements),
        .out = vector_at(r, 1, 0, FCC_I32, elements),
        .device_send_counts = (const int64_t *)(uintptr_t)(r->memory[0] + COUNTS_SENT),
        .device_receive_counts = (int64_t *)(uintptr_t)(r->memory[1] + COUNTS_CAME),
        .row_elements = COUNTS_ROW,
    };
}

static inline struct fcc_all_to_all_args counts_back(const struct rank *r, int64_t elements)
{
    return (struct fcc_all_to_all_args){
        .in = vector_at(r, 1, 0, FCC_I32, elements),
        .out = vector_at(r, 1, COUNTS_BACK, FCC_I32, elements),
        .device_send_counts = (const int64_t *)(uintptr_t)(r->memory[1] + COUNTS_CAME),
        .device_receive_counts = (int64_t *)(uintptr_t)(r->memory[1] + COUNTS_RETURNED),
        .row_elements = COUNTS_ROW,
    };
}

/* What a graph has: rows go to the ranks that their counts say, and come back. */
static inline void counts_enqueue(const struct rank *r, int64_t elements)
{
    const struct fcc_all_to_all_args there = counts_there(r, elements), back = counts_back(r, elements);

    OK(fcc_all_to_all_enqueue(r->comm, &there, r->stream, NULL));
    OK(fcc_all_to_all_enqueue(r->comm, &back, r->stream, NULL));
}

static inline int32_t counts_element(int round, int rank, int64_t i)
{
    return (int32_t)((int64_t)round * 1000003 + (int64_t)rank * 10000019 + i);
}

/* `wrong`: the rank that has a count below 0; -1: none. */
static inline void counts_fill(const struct rank *r, int round, int64_t elements, int wrong)
{
    int32_t *in = (int32_t *)(void *)r->images[0];
    int64_t *sent = counts_image(r, 0, COUNTS_SENT);

    for (int64_t i = 0; i < elements; i++)
        in[i] = counts_element(round, r->rank, i);
    for (int p = 0; p < r->n; p++)
        sent[p] = counts_of(r, round, r->rank, p, elements / COUNTS_ROW);
    if (r->rank == wrong)
        sent[r->n - 1] = -1 - round;
    memset(r->images[1], 0xee, ROOM);
    image_move(r, 0, false);
    image_move(r, 1, false);
}

static inline void counts_part_check(const struct rank *r, const char *what, uint64_t at, int64_t i, int32_t want)
{
    int32_t got;

    memcpy(&got, r->images[1] + at + (uint64_t)i * sizeof(got), sizeof(got));
    if (got != want)
        check_failed(__FILE__, __LINE__, "rank %d of %d: %s: element %ld is %d, expected %d", r->rank, r->n, what, (long)i, got,
                     want);
}

/* The results of both. What lies behind them is untouched. */
static inline void counts_check(const struct rank *r, int round, int64_t elements)
{
    const int64_t rows = elements / COUNTS_ROW;
    int64_t came = 0, sent = 0;

    image_move(r, 1, true);
    OK(fcc_comm_error(r->comm));
    for (int p = 0; p < r->n; p++) {
        const int64_t from = counts_of(r, round, p, r->rank, rows), to = counts_of(r, round, r->rank, p, rows);
        int64_t before = 0;
        for (int q = 0; q < r->rank; q++)
            before += counts_of(r, round, p, q, rows);
        CHECK(counts_image(r, 1, COUNTS_CAME)[p] == from && counts_image(r, 1, COUNTS_RETURNED)[p] == to);
        for (int64_t i = 0; i < from * COUNTS_ROW; i++)
            counts_part_check(r, "there", 0, came * COUNTS_ROW + i, counts_element(round, p, before * COUNTS_ROW + i));
        came += from;
        sent += to;
    }
    for (int64_t i = 0; i < sent * COUNTS_ROW; i++)
        counts_part_check(r, "back", COUNTS_BACK, i, counts_element(round, r->rank, i));
    counts_part_check(r, "behind", 0, came * COUNTS_ROW, (int32_t)0xeeeeeeee);
    counts_part_check(r, "behind", COUNTS_BACK, sent * COUNTS_ROW, (int32_t)0xeeeeeeee);
}

/* A run that all ranks give up because of one's count; then the communicator goes on. */
static inline void counts_error_comes(const struct rank *r, int round, int wrong, int64_t elements)
{
    char text[200];

    (void)snprintf(
        text, sizeof(text),
        "rank %d: all_to_all: device_send_counts: %d for rank %d: allowed are 0 and more, together at most the %ld rows", wrong,
        -1 - round, r->n - 1, (long)(elements / COUNTS_ROW));
    image_move(r, 1, true);
    FAILS(fcc_comm_error(r->comm), -EINVAL, text);
    OK(fcc_comm_error(r->comm));
}

/* Replays graphs, so many rounds: graphs[0] has what counts_enqueue() does, graphs[1] the way there alone, with a wrong count. */
static inline void counts_replay(const struct rank *r, void (*launch)(const struct rank *, void *), void *const graphs[2],
                                 int64_t elements, int rounds)
{
    for (int round = 0; round < rounds; round++) {
        const int wrong = round % 5 == 3 ? round % r->n : -1;
        counts_fill(r, round, elements, wrong);
        OK(fcc_noop(r->comm)); /* nobody's rows come before this */
        launch(r, graphs[wrong >= 0]);
        if (wrong < 0)
            counts_check(r, round, elements);
        else
            counts_error_comes(r, round, wrong, elements);
    }
}

/* ---- what is refused, or differs ---- */

static inline void counts_enqueued(const struct rank *r, const struct fcc_all_to_all_args *args, const char *text)
{
    error_is(r, fcc_all_to_all_enqueue(r->comm, args, r->stream, NULL), text);
}

/* What the library sees. */
static inline void counts_are_refused(const struct rank *r, bool last)
{
    const struct fcc_all_to_all_args good = counts_there(r, FEW);
    struct fcc_all_to_all_args args = good;
    const int64_t equal[16] = {FEW / COUNTS_ROW};

    if (last)
        args.device_send_counts = (const int64_t *)(uintptr_t)(r->memory[0] + COUNTS_SENT + 4);
    counts_enqueued(r, &args, "all_to_all: device_send_counts: address 0x");
    args = good;
    if (last)
        args.send_counts = equal;
    counts_enqueued(r, &args, "all_to_all: send_counts, device_send_counts: allowed is one of them");
    args = good;
    if (last)
        args.device_send_counts = (const int64_t *)(uintptr_t)(r->memory[1] + 8);
    counts_enqueued(r, &args, "all_to_all: device_send_counts: overlaps out: not allowed");
    args = good;
    if (last)
        args.device_receive_counts = (int64_t *)(uintptr_t)(r->memory[0] + 8);
    counts_enqueued(r, &args, "all_to_all: device_receive_counts: overlaps in: not allowed");
    args = good;
    if (last)
        args.device_receive_counts = (int64_t *)(uintptr_t)(r->memory[0] + COUNTS_SENT + 8);
    counts_enqueued(r, &args, "all_to_all: device_receive_counts: overlaps device_send_counts: not allowed");
    args = good;
    args.row_elements = last ? -1 : COUNTS_ROW;
    counts_enqueued(r, &args, "all_to_all: row_elements: -1: allowed are 0 (1) to ");
}

/* What only the kernels see. */
static inline void counts_are_wrong(const struct rank *r, int64_t elements, bool last)
{
    struct fcc_all_to_all_args args = counts_there(r, elements);
    int64_t *sent = counts_image(r, 0, COUNTS_SENT), want[16];
    const int64_t rows = elements / COUNTS_ROW;

    counts_fill(r, 0, elements, -1);
    sent[0] = last ? rows + 1 : 0;
    image_move(r, 0, false);
    counts_enqueued(r, &args, " for rank 0: allowed are 0 and more, together at most the ");
    for (int p = 0; p < r->n; p++)
        sent[p] = last && p < 2 ? rows / 2 + 1 : 0;
    image_move(r, 0, false);
    counts_enqueued(r, &args, " for rank 1: allowed are 0 and more, together at most the ");
    for (int p = 0; p < r->n; p++)
        sent[p] = last && p == 1 ? INT64_MAX : last ? 1 : 0;
    image_move(r, 0, false);
    counts_enqueued(r, &args, "all_to_all: device_send_counts: 9223372036854775807 for rank 1: allowed are 0 and more");
    counts_fill(r, 0, elements, -1);
    args.row_elements = last ? 1 : COUNTS_ROW;
    counts_enqueued(r, &args, "all_to_all: row_elements: rank ");
    args = counts_there(r, elements);
    counts_fill(r, 0, elements, -1);
    for (int p = 0; p < r->n; p++)
        want[p] = counts_of(r, 0, p, r->rank, rows);
    want[0] += last;
    args.expected_counts = want;
    args.out.shape[0] += COUNTS_ROW;
    error_comes(r, fcc_all_to_all_enqueue(r->comm, &args, r->stream, NULL), "all_to_all: expected_counts: rank 0 sends ", true);
    want[0] -= last;
    want[r->rank] += last; /* of itself, which no other rank sees */
    error_comes(r, fcc_all_to_all_enqueue(r->comm, &args, r->stream, NULL), "all_to_all: expected_counts: rank ", true);
    args = counts_there(r, elements);
    counts_fill(r, 0, elements, -1);
    for (int p = 0; p < r->n; p++)
        sent[p] = 1;
    image_move(r, 0, false);
    args.out.shape[0] = last ? r->n * COUNTS_ROW - 1 : r->n * COUNTS_ROW;
    error_comes(r, fcc_all_to_all_enqueue(r->comm, &args, r->stream, NULL), "all_to_all: out: rank ", true);
}

/* Two ranks or more. */
static inline void counts_errors_work(const struct rank *r)
{
    const bool last = r->rank == r->n - 1;

    counts_are_refused(r, last);
    counts_are_wrong(r, FEW, last);
    counts_are_wrong(r, MANY, last);
}

#endif
