/* SPDX-License-Identifier: MIT
 *
 * capture.c - runs of prepared operators that are captured into CUDA graphs. client/device/graphs.h says what a graph keeps.
 */
#include <errno.h>

#include "client/stream/bound.h"

#define CALL ACCELERATOR_CALL

/* The communicator's graphs. */
static int graphs_get(struct fcc_comm *comm, struct graphs **out)
{
    struct fcc_context *c = comm->context;
    int status = 0;

    (void)pthread_mutex_lock(&c->prepared_lock);
    if (!comm->graphs)
        status = graphs_open(comm->accelerator, &comm->graphs);
    *out = comm->graphs;
    (void)pthread_mutex_unlock(&c->prepared_lock);
    return status;
}

int capture_retain(struct fcc_comm *comm, void *stream, uint64_t *number, bool has_it, struct graphs **graphs)
{
    const struct accelerator *a = comm->accelerator;
    uint64_t now = 0;
    void *graph = NULL;
    int capturing, status = CALL(a, stream_capture, stream, &capturing, &now, &graph, NULL, NULL);

    *graphs = NULL;
    if (!status && capturing != DRIVER_CAPTURING)
        status = last_error_set(-EINVAL, "rank %d: stream: its capture into a graph has failed before", comm->rank);
    if (status || (has_it && *number == now))
        return status;
    status = graphs_get(comm, graphs);
    if (!status)
        status = graphs_retain(*graphs, graph);
    if (status)
        *graphs = NULL;
    *number = now;
    return status;
}

int prepared_capture(struct fcc_prepared *p, void *stream)
{
    struct fcc_context *c = p->comm->context;
    struct graphs *graphs;
    uint64_t number = p->capture;
    int status = capture_retain(p->comm, stream, &number, p->is_captured, &graphs);

    if (status || !graphs)
        return status;
    p->is_captured = true;
    p->capture = number;
    for (int i = 0; i < GPU_PREPARED_INPUTS; i++)
        buffer_capture(c, p->buffers.inputs[i], graphs);
    buffer_capture(c, p->buffers.result, graphs);
    for (int i = 0; i < FCC_MAX_TENSORS; i++)
        buffer_capture(c, p->buffers.others[i], graphs);
    return 0;
}
