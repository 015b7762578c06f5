/* SPDX-License-Identifier: MIT
 *
 * bound_plan.h - what the worker has made of a prepared operator: fetched from it, and judged before anything is done with it.
 */
#ifndef FCC_CLIENT_STREAM_BOUND_PLAN_H
#define FCC_CLIENT_STREAM_BOUND_PLAN_H

#include "client/core/context.h"
#include "client/device/accelerator.h"
#include "kernels/gpu/bound_check.h"

/* What was asked for. */
struct prepared_wanted {
    uint32_t op, ntensors;
    const struct fcc_wire_tensor *tensors; /* in the operator's order */
    bool offered;                          /* each run has inputs and a result of its own: where these lie is not the plan's */
};

/* What it needs, and the plug-in's functions for it. */
struct prepared_plan {
    struct gpu_prepared_plan *plan; /* to be freed with free() */
    size_t bytes;
    const struct gpu_prepared_functions *functions;
};

/* Operator `number` of the communicator, which is to be the wanted one. -EPROTO: it is not, or nothing that kernels may follow. */
int prepared_plan_get(const struct fcc_comm *comm, uint32_t number, const struct prepared_wanted *wanted,
                      struct prepared_plan *out);
/* Is it all mapped that its kernels store into? -EPROTO. */
int prepared_sizes_check(const struct fcc_comm *comm, const struct prepared_plan *plan, const struct gpu_prepared_sizes *sizes);
/* Map the memory of a rank's area or result. */
int prepared_memory_map(const struct fcc_comm *comm, uint32_t number, enum fcc_prepared_what what, int rank,
                        struct accelerator_memory *out);

#endif
