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

int prepared_capture(struct fcc_prepared *p, void *stream)
{
    const struct accelerator *a = p->comm->accelerator;
    struct fcc_context *c = p->comm->context;
    uint64_t number = 0;
    struct graphs *graphs;
    void *graph = NULL;
    int capturing, status = CALL(a, stream_capture, stream, &capturing, &number, &graph, NULL, NULL);

    if (!status && capturing != DRIVER_CAPTURING)
        status = last_error_set(-EINVAL, "rank %d: stream: its capture into a graph has failed before", p->comm->rank);
    if (status || (p->is_captured && p->capture == number))
        return status;
    status = graphs_get(p->comm, &graphs);
    if (!status)
        status = graphs_retain(graphs, graph);
    if (status)
        return status;
    p->is_captured = true;
    p->capture = number;
    for (int i = 0; i < GPU_PREPARED_INPUTS; i++)
        buffer_capture(c, p->buffers.inputs[i], graphs);
    buffer_capture(c, p->buffers.result, graphs);
    return 0;
}
