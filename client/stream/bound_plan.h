/* SPDX-License-Identifier: MIT
 *
 * bound_plan.h - the worker's plan of a prepared operator: fetched from the worker, and checked before it is used.
 */
#ifndef FCC_CLIENT_STREAM_BOUND_PLAN_H
#define FCC_CLIENT_STREAM_BOUND_PLAN_H

#include "client/core/context.h"
#include "client/device/accelerator.h"
#include "kernels/gpu/bound_check.h"

/* The operator that was to be bound. */
struct prepared_wanted {
    uint32_t op, ntensors;
    const struct fcc_wire_tensor *tensors; /* in the operator's order */
    bool repeated; /* each run brings its own inputs and result, so the plan does not have their addresses */
};

/* The plan, and the plug-in's functions that run it. */
struct prepared_plan {
    struct gpu_prepared_plan *plan; /* to be freed with free() */
    size_t bytes;
    const struct gpu_prepared_functions *functions;
};

/* Fetch the plan of prepared operator `number`. -EPROTO: it is not the wanted operator, or the plan is not safe to run. */
int prepared_plan_get(const struct fcc_comm *comm, uint32_t number, const struct prepared_wanted *wanted,
                      struct prepared_plan *out);
/* The functions of the plug-in for the communicator's GPUs. -ENODEV, -EPROTO. `theirs` is the worker's plug-in file, for the error
 * text. */
int prepared_functions_load(const struct fcc_comm *comm, const char *theirs, const struct gpu_prepared_functions **out);
/* 0 if all memory that the plan's kernels store into is mapped; otherwise -EPROTO. */
int prepared_sizes_check(const struct fcc_comm *comm, const struct prepared_plan *plan, const struct gpu_prepared_sizes *sizes);
/* Map the memory of a rank's area or result. */
int prepared_memory_map(const struct fcc_comm *comm, uint32_t number, enum fcc_prepared_what what, int rank,
                        struct accelerator_memory *out);

#endif
