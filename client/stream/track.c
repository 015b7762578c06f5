/* SPDX-License-Identifier: MIT
 *
 * track.c - points of streams at which a rule of a tracker is counted for, or waited for (client/memory/tracker.c has the rest). Each is a kernel of one
 * thread, which finds its words in the tracker's memory, so it may be captured and replayed: a replay counts again, and waits for what has been
 * counted for by then. A run that a stream works off itself is a kernel of one thread before its rows and one behind them; it uses the rule's
 * buffers, too, which the graph therefore keeps.
 */
#include <errno.h>

#include "client/device/driver.h"
#include "client/memory/tracker.h"
#include "client/stream/bound.h"

#define CALL ACCELERATOR_CALL

/* The GPU is the current one. If the stream is under capture, the tracker's memory lives as long as the graph, of which are *graphs then; otherwise
 * NULL. */
static int stream_look(struct fcc_comm *comm, void *stream, struct graphs **graphs)
{
    uint64_t number = 0;
    int capturing = 0, status = CALL(comm->accelerator, stream_capturing, stream, &capturing);

    *graphs = NULL;
    return status || capturing == DRIVER_NOT_CAPTURING ? status : capture_retain(comm, stream, &number, false, graphs);
}

enum point { COUNTS, AWAITS, RUNS };

/* COUNTS: n is counted. AWAITS: the stream waits. RUNS: it works off a run. */
static int point_enqueue(fcc_tracker *tracker, uint32_t rule, enum point point, uint64_t n, void *stream, const char *called)
{
    const struct gpu_prepared_functions *functions = NULL;
    struct gpu_rule_words words;
    struct gpu_rule_work work;
    struct fcc_comm *comm = NULL;
    struct graphs *graphs = NULL;
    struct error e = {.status = 0};
    int before = 0, status = point == RUNS ? tracker_rule_work(tracker, rule, called, &comm, &words, &work)
                                           : tracker_rule_words(tracker, rule, called, &comm, &words);

    if (!status)
        status = prepared_functions_load(comm, "another", &functions);
    if (!status)
        status = accelerator_enter(comm->accelerator, &before);
    if (status)
        return status;
    status = stream_look(comm, stream, &graphs);
    if (!status && graphs && point == RUNS)
        tracker_rule_capture(tracker, rule, graphs);
    if (!status && (point == COUNTS   ? functions->rule_add(&words, n, stream, &e)
                    : point == AWAITS ? functions->rule_await(&words, stream, &e)
                                      : functions->rule_run(&words, &work, stream, &e)))
        status = last_error_set(e.status, "rank %d: %s: %s", comm->rank, called, e.text);
    accelerator_leave(comm->accelerator, before);
    return status;
}

int fcc_tracker_add_enqueue(fcc_tracker *tracker, uint32_t rule, uint64_t n, void *stream)
{
    return point_enqueue(tracker, rule, COUNTS, n, stream, "fcc_tracker_add_enqueue");
}

int fcc_tracker_wait_enqueue(fcc_tracker *tracker, uint32_t rule, void *stream)
{
    return point_enqueue(tracker, rule, AWAITS, 0, stream, "fcc_tracker_wait_enqueue");
}

int fcc_tracker_run_enqueue(fcc_tracker *tracker, uint32_t rule, void *stream)
{
    return point_enqueue(tracker, rule, RUNS, 0, stream, "fcc_tracker_run_enqueue");
}
