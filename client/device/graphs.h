/* SPDX-License-Identifier: MIT
 *
 * graphs.h - what CUDA graphs use of this library. A graph into which runs of operators have been captured may be replayed at any
 * time, also when the program has freed an operator, a buffer or the communicator. Its kernels then find at their begin that
 * they are over, and leave (kernels/gpu/device/numbers.h). But they look at control memory, and bring inputs nearer, so all that
 * they use stays mapped until the last graph of the communicator is gone.
 *
 * The driver says that a graph, and all that was instantiated from it, is gone by calling a function (a user object), which must
 * not call the driver. So that function only counts. What nobody uses any more is freed by the library's next call that frees or
 * prepares something (graphs_look()).
 */
#ifndef FCC_CLIENT_DEVICE_GRAPHS_H
#define FCC_CLIENT_DEVICE_GRAPHS_H

#include "client/device/accelerator.h"

/* Of a communicator. */
struct graphs;

/* -ENOMEM, -EIO */
int graphs_open(const struct accelerator *a, struct graphs **out);
/* A stream of the GPU, which is current, is under capture into this graph: it retains what the communicator's operators use. */
int graphs_retain(struct graphs *g, void *graph);
/* Something of the communicator is to be freed. True: graphs may still use it, and end(argument, a) will be called when they are
 * gone, with a GPU that is there then. False: the caller frees it. g may be NULL. */
bool graphs_hold(struct graphs *g, void (*end)(void *argument, const struct accelerator *a), void *argument);
/* The same for memory, which is unmapped then. */
bool graphs_hold_memory(struct graphs *g, const struct accelerator_memory *m);
/* Free what no graph uses any more, of all communicators. */
void graphs_look(void);
/* A buffer leads here, which may be another communicator's, or become one's, and outlive this one. Until it is put, g is there. */
void graphs_share(struct graphs *g);
/* It does not any more; graphs_look() frees what is left. g may be NULL. */
void graphs_put(struct graphs *g);
/* The communicator is gone. g may be NULL. */
void graphs_leave(struct graphs *g);
/* In the child of a fork: the lock is free, and nothing is the child's. */
void graphs_forked(void);

#endif
