/* SPDX-License-Identifier: MIT
 *
 * bound_inside.h - what bound.c and bound_run.c have in common.
 */
#ifndef FCC_CLIENT_STREAM_BOUND_INSIDE_H
#define FCC_CLIENT_STREAM_BOUND_INSIDE_H

#include "client/core/call.h"
#include "client/core/request.h"
#include "client/stream/bound.h"

struct fcc_prepared {
    LIST_ENTRY(fcc_prepared) link; /* context->prepared. context->prepared_lock */
    struct fcc_comm *comm;
    uint32_t number, place;
    bool needs_results;
    bool repeated; /* the worker has bound it, for repeated.c; the program does not know it */
    const struct gpu_prepared_functions *functions;
    struct gpu_prepared *gpu;                                               /* NULL: not open */
    struct accelerator_memory areas[GPU_MAX_RANKS], results[GPU_MAX_RANKS]; /* bytes is 0: not mapped */
    pthread_mutex_t lock;
    uint64_t runs;   /* number of the newest run. lock; of a repeated one: comm->order */
    bool is_refused; /* the worker knows that the next run is refused. lock */
};

#endif
