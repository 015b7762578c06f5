/* SPDX-License-Identifier: MIT
 *
 * fake_gpu_ring.h - rule_ring.h on fake GPUs: ranks that send rows to the next one, of a source that is wider than what is sent, into a place that is wider, too.
 */
#ifndef FCC_TEST_FAKE_GPU_RING_H
#define FCC_TEST_FAKE_GPU_RING_H

#include "tests/bed/rule_ring.h"
#include "tests/fake_gpu/fake_gpu_bed.h"

enum { ROWS = 5, COLS = 48, FROM_COLS = 64, TO_COLS = 56 };

/* limit_ms: the communicator's time limit; 0: the default. */
static inline struct ring ring_open(const struct ranks *all, int rank, enum fcc_rule_action action, uint32_t limit_ms)
{
    driver_use();
    struct ring r = {
        .rank = rank, .to = (rank + 1) % all->n, .from = (rank + all->n - 1) % all->n, .context = client_connect(NULL)};

    r.comm = client_join(r.context, &all->id, all->n, rank, limit_ms);
    OK(fcc_buffer_alloc(r.comm, FCC_BUFFER_LOCAL, (size_t)ROWS * FROM_COLS * 4, &r.source));
    OK(fcc_buffer_alloc(r.comm, FCC_BUFFER_SYMMETRIC, (size_t)ROWS * TO_COLS * 4, &r.place));
    OK(fcc_buffer_alloc(r.comm, FCC_BUFFER_SYMMETRIC, sizeof(struct ring_words), &r.words));
    r.stream = stream_open();
    ring_rules(&r, action, ROWS, COLS, FROM_COLS, TO_COLS);
    OK(fcc_noop(r.comm));
    return r;
}

static inline void ring_close(struct ring *r)
{
    stream_close(r->stream);
    fcc_comm_destroy(r->comm);
    client_end(r->context);
}

static inline float value_of(int rank, int run, int i)
{
    return (float)(rank * 100 + run * 3 + i % 7);
}

static inline void source_fill(struct ring *r, int run)
{
    float *out = fcc_buffer_data(r->source);

    for (int i = 0; i < ROWS * FROM_COLS; i++)
        out[i] = value_of(r->rank, run, i);
}

/* The rows of the rank before of run `run`, or their sums of all runs up to it. */
static inline void rows_check(const struct ring *r, int run, bool sums)
{
    const float *in = fcc_buffer_data(r->place);

    for (int row = 0; row < ROWS; row++)
        for (int i = 0; i < TO_COLS; i++) {
            float want = 0;
            for (int k = sums ? 1 : run; k <= run && i < COLS; k++)
                want += value_of(r->from, k, row * FROM_COLS + i);
            if (in[row * TO_COLS + i] != want)
                check_failed(__FILE__, __LINE__, "rank %d: run %d: row %d, column %d is %g, expected %g", r->rank, run, row, i,
                             (double)in[row * TO_COLS + i], (double)want);
        }
}

/* ---- ends: streams that wait go on, and so do those that come later ---- */

#define RING_WHY "the loss is not a number"

enum ring_end { RING_ABORT, RING_KILL, RING_TRACKER_FREED, RING_BUFFER_FREED };

struct ring_ending { /* in memory that the ranks share */
    enum ring_end end;
    _Atomic int met;
    void (*wait)(const struct ring *r);                    /* what the streams do, which waits for rows that nobody sends */
    void (*look)(const struct ring *r, enum ring_end end); /* ... behind them. NULL: nothing more is looked at */
};

static inline void ring_ends_rank(int rank, const struct ranks *all, void *argument)
{
    struct ring_ending *ending = argument;
    const enum ring_end end = ending->end;
    struct ring r = ring_open(all, rank, FCC_RULE_STORE, 0);
    void *waits;

    driver->capture_begin();
    ending->wait(&r);
    waits = driver->capture_end();
    OK(fcc_noop(r.comm));
    ending->met++;
    await(&ending->met, GPUS); /* an end of the communicator may overtake that of the noop */
    if (rank == 0 && end == RING_KILL)
        _exit(0);
    driver->graph_launch(waits, r.stream);
    if (rank == 0 && end == RING_ABORT)
        OK(fcc_comm_abort(r.comm, RING_WHY));
    if (end == RING_TRACKER_FREED)
        fcc_tracker_free(r.tracker);
    if (end == RING_BUFFER_FREED)
        fcc_buffer_free(r.words);
    stream_sync(r.stream);
    for (int i = 0; i < 3; i++)
        driver->graph_launch(waits, r.stream);
    stream_sync(r.stream);
    if (end == RING_ABORT)
        FAILS(fcc_tracker_wait(r.tracker, r.come, 1, -1), -ECONNABORTED, RING_WHY);
    if (end == RING_KILL)
        FAILS(fcc_tracker_wait(r.tracker, r.come, 1, -1), -ECONNABORTED, "rank 0");
    if (end == RING_BUFFER_FREED)
        FAILS(fcc_tracker_wait(r.tracker, r.come, 1, -1), -ENOENT, "freed");
    if (ending->look)
        ending->look(&r, end);
    if (end == RING_BUFFER_FREED)
        OK(fcc_noop(r.comm)); /* nobody leaves before all have looked */
    driver->graph_destroy(waits);
    ring_close(&r);
}

static inline void ring_ends(enum ring_end end, void (*wait)(const struct ring *r),
                             void (*look)(const struct ring *r, enum ring_end end))
{
    struct ring_ending *ending = shared_memory(sizeof(*ending));

    ending->end = end;
    ending->wait = wait;
    ending->look = look;
    fake_ranks_run(GPUS, ring_ends_rank, ending);
}

#endif
