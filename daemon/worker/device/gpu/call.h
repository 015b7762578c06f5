/* SPDX-License-Identifier: MIT
 *
 * call.h - from a problem, plans and requests to what a GPU plug-in is given, and from what a kernel wrote to words. Pure
 * functions, but for the plug-in's own.
 */
#ifndef FCC_DAEMON_WORKER_DEVICE_GPU_CALL_H
#define FCC_DAEMON_WORKER_DEVICE_GPU_CALL_H

#include "kernels/gpu/bound.h"
#include "kernels/plan/program.h"

/* Of the plan of any rank. */
void gpu_shape_make(const struct problem *problem, const struct plan *plan, struct gpu_shape *out);
/* Points into the plan, whose levels must be those of enum plan_level: -EINVAL if there are more. */
int gpu_run_make(const struct plan *plan, struct gpu_run *out, struct error *e);
/* What a client is told of a rank's plan, without the places of results and inputs; to be freed with free(). The shape is that of all ranks. */
int gpu_prepared_make(const struct problem *problem, const struct plan *plan, uint64_t slots_bytes,
                      struct gpu_prepared_plan **out, struct error *e);
/* Where one rank's result lies, and what it computes from. What an operator has not is left as it is. */
void gpu_rank_fill(const struct op_args *args, struct gpu_output *out, struct gpu_input *in);
/* The outputs of all ranks and the inputs of `run`, the index of args[rank]'s in the launch. One kernel runs all phases, and all ranks are
 * here: where that is not so the caller changes `nodes`. */
int gpu_call_fill(const struct gpu_plugin *plugin, struct gpu_launch *launch, const struct op_args args[], int nranks,
                  const int ranks[], int nruns, struct gpu_call *out, struct error *e);
/* -ERANGE with the reason, as the cpu says it; 0 if nothing was wrong. */
int gpu_failure_explain(const struct gpu_failure *failure, struct error *e);

#endif
