/* SPDX-License-Identifier: MIT
 *
 * code.h - generated code of programs' steps on GPUs: which kernel a launch has. Engine thread.
 *
 * A step's source (kernels/generate/generate.h) follows from its checked words, but for the numbers that a run may have anew; from the tensors' dtypes; and
 * from the number of ranks. The worker makes it, compiles it or reads it from its user's cache on disk, and loads it, when a step comes for the first time
 * and nothing is in the GPUs' queues: to load a kernel may wait for the GPU, whose queue may wait for a client. Until then, and whenever that fails, the
 * interpreter runs the step, with the same bits. Why it does is said once in the log, and in each trace.
 *
 * Compiling takes the engine about half a second, in which no other operator of the job begins; those that run go on. It happens once for each step, chip
 * and user.
 */
#ifndef FCC_DAEMON_WORKER_DEVICE_GPU_CODE_H
#define FCC_DAEMON_WORKER_DEVICE_GPU_CODE_H

#include "daemon/worker/device/launch.h"

struct gpus;
struct gpu_codes;

/* Lets the launch's part, which runs nowhere, run the kernel of its step: a generated one, or the interpreter; p->code_text says which. Nothing happens for
 * other operators. */
void gpu_code_choose(struct launch *l, struct launch_part *p);
/* Whether a request's step has been met before, so that nothing has to be loaded. Other operators: true. */
bool gpu_code_is_known(const struct gpus *g, const struct op_args *args, int nranks);
void gpu_codes_free(struct gpus *g);

#endif
