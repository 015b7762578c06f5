/* SPDX-License-Identifier: MIT
 *
 * gpu_ends.h - graphs of operators that ranks launch themselves, replayed when a rank does not come, when it gives up, and when the
 * communicator and the connection are gone: each replay ends.
 */
#ifndef FCC_TEST_GPU_ENDS_H
#define FCC_TEST_GPU_ENDS_H

#include <stdbool.h>
#include <unistd.h>

#include "tests/gpu/gpu_client.h"

enum { LIMIT_MS = 1000 /* of a communicator in which a rank does not come */ };

/* All ranks replay the graph three times; then all but rank 0 do, which aborts the communicator (`aborts`) or stays away for longer than the
 * time limit. Returns what all hear. `op`: the graph's operator. */
static inline int replays_end(fcc_comm *comm, int rank, void *stream, void *graph, bool aborts, const char *op)
{
    double begun;

    for (int i = 0; i < 3; i++)
        CU(gpu.graph_launch(graph, stream));
    CU(gpu.stream_synchronize(stream));
    OK(fcc_noop(comm));
    begun = now_ms();
    if (rank > 0) {
        CU(gpu.graph_launch(graph, stream));
        CU(gpu.stream_synchronize(stream));
        printf("rank %d: the replay ended after %.0f ms\n", rank, now_ms() - begun);
    } else if (aborts) {
        (void)usleep(200000);
        OK(fcc_comm_abort(comm, "the loss is not a number"));
    } else {
        (void)usleep(LIMIT_MS * 3000);
    }
    int status = fcc_noop(comm);
    printf("rank %d heard: %d: %s\n", rank, status, fcc_last_error());
    CHECK(status == (aborts ? -ECONNABORTED : -ETIMEDOUT));
    CHECK(strstr(fcc_last_error(), aborts ? "the loss is not a number" : "rank 0 did not come within the time limit") != NULL);
    CHECK(strstr(fcc_last_error(), aborts ? "" : op) != NULL);
    return status;
}

/* The communicator has ended: so do replays, at once. */
static inline void replays_over(fcc_comm *comm, int rank, void *stream, void *graph)
{
    const double begun = now_ms();

    for (int i = 0; i < 10; i++)
        CU(gpu.graph_launch(graph, stream));
    CU(gpu.stream_synchronize(stream));
    printf("rank %d: ten replays that were over took %.3f ms\n", rank, now_ms() - begun);
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

/* All is well; then graphs outlive the communicator, and the last of them the connection. Their replays end at once. */
static inline void graphs_outlive(fcc_comm *comm, void *stream, void *const graphs[], int n)
{
    CU(gpu.stream_synchronize(stream));
    OK(fcc_comm_error(comm));
    OK(fcc_noop(comm));
    fcc_comm_destroy(comm);
    for (int i = 0; i < n - 1; i++)
        CU(gpu.graph_launch(graphs[i], stream));
    CU(gpu.stream_synchronize(stream));
    fcc_disconnect(comm_context());
    CU(gpu.graph_launch(graphs[n - 1], stream));
    CU(gpu.stream_synchronize(stream));
}

#endif
