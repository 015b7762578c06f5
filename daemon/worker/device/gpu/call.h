/* SPDX-License-Identifier: MIT
 *
 * call.h - makes the arguments of a GPU plug-in from a problem, plans and requests, and error texts from what a kernel reports. Apart from
 * calls of the plug-in, pure functions.
 */
#ifndef FCC_DAEMON_WORKER_DEVICE_GPU_CALL_H
#define FCC_DAEMON_WORKER_DEVICE_GPU_CALL_H

#include "kernels/gpu/bound.h"
#include "kernels/plan/program.h"

/* The shape of an operator, from any rank's plan. */
void gpu_shape_make(const struct problem *problem, const struct plan *plan, struct gpu_shape *out);
/* A rank's plan as kernels take it; *out points into the plan. -EINVAL: the plan has levels that enum plan_level does not have. */
int gpu_run_make(const struct plan *plan, struct gpu_run *out, struct error *e);
/* A rank's plan as its client gets it, without addresses of results and inputs. To be freed with free(). args: of all ranks, for a step of a program;
 * otherwise NULL will do. */
int gpu_prepared_make(const struct problem *problem, const struct plan *plan, const struct op_args args[], uint64_t slots_bytes,
                      struct gpu_prepared_plan **out, struct error *e);
/* One rank's result and inputs. Fields that the operator does not have are left as they are. */
void gpu_rank_fill(const struct op_args *args, struct gpu_output *out, struct gpu_input *in);
/* Fill in the call for one GPU's kernel: the results of all ranks, and the inputs of the nruns ranks on this GPU, ranks[]. Assumes
 * that one kernel runs all phases and that all ranks are here; otherwise the caller sets out->nodes. scales: room for those of nruns ranks, to which
 * the call points afterwards. */
int gpu_call_fill(const struct gpu_plugin *plugin, struct gpu_launch *launch, const struct problem *problem,
                  const struct op_args args[], const int ranks[], int nruns, struct gpu_factor_scales scales[],
                  struct gpu_call *out, struct error *e);
/* The error that a kernel has reported: -ERANGE with the same text as on cpu devices. 0: the kernel has reported none. */
int gpu_failure_explain(const struct gpu_failure *failure, struct error *e);

#endif
